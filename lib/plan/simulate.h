/* The predicted step of a plan: its instruction lists run against the cost model. */
#ifndef ETH_HPP_PLAN_SIMULATE_H
#define ETH_HPP_PLAN_SIMULATE_H

#include "plan/evaluate.h"

struct eth_hpp_simulation {
    struct eth_hpp_step step;
    struct eth_hpp_predicted predicted; /* ranks in ascending order; no bound */
    bool feasible;
    char why[384]; /* not feasible: the worker that is furthest over its memory, both figures */
};

/*
 * Simulates a completed plan (eth_hpp_plan_complete). The workers of a stage run in lock-step, so
 * the instruction list of one rank a stage is run and the others' are the same but for their
 * hand-overs. A plan over memory is simulated all the same; `feasible` tells. Freed with
 * eth_hpp_simulation_free. Errors: INPUT (a device without times, more samples than were profiled),
 * MEMORY.
 */
enum eth_hpp_status eth_hpp_simulate(const struct eth_hpp_plan *plan,
                                     const struct eth_hpp_cluster *cluster,
                                     const struct eth_hpp_profile *profile, bool blocking_transfers,
                                     struct eth_hpp_simulation *simulation,
                                     struct eth_hpp_error *err);
/* The same, with every span of the step told to the observer. */
enum eth_hpp_status
eth_hpp_simulate_observed(const struct eth_hpp_plan *plan, const struct eth_hpp_cluster *cluster,
                          const struct eth_hpp_profile *profile, bool blocking_transfers,
                          struct eth_hpp_observer *observer, struct eth_hpp_simulation *simulation,
                          struct eth_hpp_error *err);
void eth_hpp_simulation_free(struct eth_hpp_simulation *simulation);

#endif
