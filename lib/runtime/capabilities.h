/* What this runtime can run. The launcher restricts the solver to it and refuses a given plan
 * outside of it; eth_hpp_init refuses the rest. */
#ifndef ETH_HPP_RUNTIME_CAPABILITIES_H
#define ETH_HPP_RUNTIME_CAPABILITIES_H

#include "plan/plan.h"

struct eth_hpp_capabilities {
    int max_tensor_parallel;
    bool recompute, sharded_optimizer;
    bool dtypes[3]; /* [enum eth_hpp_dtype] */
};

/* On every device that there are kernels for; eth_hpp_kernels_create knows which. */
const struct eth_hpp_capabilities *eth_hpp_capabilities_get(void);

/* Errors: UNSUPPORTED, with the place in the plan and what would do. */
enum eth_hpp_status eth_hpp_capabilities_check(const struct eth_hpp_capabilities *capabilities,
                                               const struct eth_hpp_plan *plan,
                                               struct eth_hpp_error *err);

#endif
