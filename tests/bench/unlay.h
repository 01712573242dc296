/* A layout as a plan: names in place of indices, GPUs handed out lowest first. */
#ifndef ETH_HPP_TESTS_UNLAY_H
#define ETH_HPP_TESTS_UNLAY_H

#include "plan/layout.h"

/* Makes a complete plan of at most some hundred workers and predicts its step. It passes the strict
 * reader on the way. Freed with eth_hpp_plan_free. Errors: INPUT, MEMORY, and INFEASIBLE where it
 * does not fit. */
enum eth_hpp_status unlay(const struct eth_hpp_layout *layout,
                          const struct eth_hpp_cluster *cluster,
                          const struct eth_hpp_profile *profile, struct eth_hpp_plan *plan,
                          struct eth_hpp_error *err);

#endif
