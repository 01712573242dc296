/* Pools: GPUs of one kind on like nodes, which are interchangeable to the solver. */
#ifndef ETH_HPP_PLAN_POOLS_H
#define ETH_HPP_PLAN_POOLS_H

#include "plan/cost.h"

struct eth_hpp_pool {
    int device;
    int gpus;     /* in all */
    int per_node; /* GPUs of this kind on a node */
    int *nodes;   /* its nodes, ascending */
    int node_count;
};

struct eth_hpp_pools {
    struct eth_hpp_pool *pools;
    int count;
};

/* Groups the cluster's GPUs. Devices without any times are left out. Freed with
 * eth_hpp_pools_free. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_pools_make(const struct eth_hpp_cost *cost, struct eth_hpp_pools *pools,
                                       struct eth_hpp_error *err);
void eth_hpp_pools_free(struct eth_hpp_pools *pools);

#endif
