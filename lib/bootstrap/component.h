/* What the components of the bootstrap share; not for others. */
#ifndef ETH_HPP_BOOTSTRAP_COMPONENT_H
#define ETH_HPP_BOOTSTRAP_COMPONENT_H

#include "bootstrap/bootstrap.h"

/* Each fills *place and hands out the state for its ops. */
extern const struct eth_hpp_bootstrap_ops eth_hpp_bootstrap_single_ops;
enum eth_hpp_status eth_hpp_bootstrap_single_open(void **state,
                                                  struct eth_hpp_bootstrap_place *place,
                                                  struct eth_hpp_error *err);

extern const struct eth_hpp_bootstrap_ops eth_hpp_bootstrap_pmix_ops;
/* *reachable becomes false, with status OK and no state, where no PMIx server answers. *round: how
 * many bootstraps there were in this task before, in whichever of its processes: keys of theirs
 * have values still. */
enum eth_hpp_status eth_hpp_bootstrap_pmix_open(void **state, struct eth_hpp_bootstrap_place *place,
                                                int *round, bool *reachable,
                                                struct eth_hpp_error *err);

/* The same for PMI-2, whose server is reached by a socket that the task has inherited. Uses
 * place->host. */
extern const struct eth_hpp_bootstrap_ops eth_hpp_bootstrap_pmi2_ops;
enum eth_hpp_status eth_hpp_bootstrap_pmi2_open(void **state, struct eth_hpp_bootstrap_place *place,
                                                int *round, bool *reachable,
                                                struct eth_hpp_error *err);

/* A whole number >= 0 from the environment, or -1. */
int eth_hpp_bootstrap_environment(const char *name);

#endif
