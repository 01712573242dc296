/* What would make a model fit that does not: found by trying it. */
#ifndef ETH_HPP_PLAN_REMEDY_H
#define ETH_HPP_PLAN_REMEDY_H

#include "plan/solver.h"

/* Changes each of which, alone, lets the solver find a plan. */
struct eth_hpp_remedy {
    int nodes, like_node; /* so many nodes more like this one of the cluster; 0: none that was tried
                             helps */
    double memory_bytes;  /* more on each GPU; 0: none that was tried helps */
    /* Settings given up, where they restrict the search. */
    bool recompute, sharded, tensor_parallel, in_flight, pipelines, margin;
};

/*
 * Tries remedies with the quick search: nodes of each kind that there is, the fewest that do (up to
 * 64, fewer for large clusters), memory, and each setting that restricts the search. The number of
 * tries is bounded, and smaller for large clusters. Errors: MEMORY, INPUT (what eth_hpp_solve
 * refuses).
 */
enum eth_hpp_status eth_hpp_remedy_find(const struct eth_hpp_cluster *cluster,
                                        const struct eth_hpp_profile *profile,
                                        const struct eth_hpp_solver_options *options,
                                        struct eth_hpp_remedy *remedy, struct eth_hpp_error *err);

/* The cluster with what the remedy adds to it: nodes or memory. Freed with eth_hpp_cluster_free.
 * Errors: MEMORY. */
enum eth_hpp_status eth_hpp_remedy_apply(const struct eth_hpp_cluster *cluster,
                                         const struct eth_hpp_remedy *remedy,
                                         struct eth_hpp_cluster *changed,
                                         struct eth_hpp_error *err);

/* eth_hpp_solve, whose text for what is infeasible goes on with the remedies. `settings`: may the
 * user give up settings? */
enum eth_hpp_status eth_hpp_remedy_solve(const struct eth_hpp_cluster *cluster,
                                         const struct eth_hpp_profile *profile,
                                         const struct eth_hpp_solver_options *options,
                                         bool settings, struct eth_hpp_plan *plan,
                                         struct eth_hpp_error *err);

#endif
