/* What this runtime can run. The launcher restricts the solver to it and refuses a given plan
 * outside of it; eth_hpp_init refuses the rest. */
#ifndef ETH_HPP_RUNTIME_CAPABILITIES_H
#define ETH_HPP_RUNTIME_CAPABILITIES_H

#include "plan/plan.h"

struct eth_hpp_capabilities {
    int max_tensor_parallel;
    int max_head_size; /* values of a head of attention */
    bool recompute, sharded_optimizer;
    bool dtypes[3]; /* [enum eth_hpp_dtype] */
};

/* On a device, as eth_hpp_kernels_create takes it. That knows what this very device has: which
 * devices there are at all, and that older GPUs have no bf16. */
const struct eth_hpp_capabilities *eth_hpp_capabilities_get(const char *device);

/* Errors: UNSUPPORTED, with the place in the plan and what would do. */
enum eth_hpp_status eth_hpp_capabilities_check(const struct eth_hpp_capabilities *capabilities,
                                               const struct eth_hpp_plan *plan,
                                               struct eth_hpp_error *err);

#endif
