/* The GPUs that a plan leaves idle, with the reason. */
#ifndef ETH_HPP_PLAN_IDLE_H
#define ETH_HPP_PLAN_IDLE_H

#include "plan/cost.h"

/* Lists the GPUs that are not taken (by rank: the cost's cluster's GPUs counted node by node) in
 * plan->idle, an entry for each node and reason. step_s is the step of the plan. False when out of
 * memory; what is listed is freed with the plan. */
bool eth_hpp_idle_fill(const struct eth_hpp_cost *cost, const bool *taken, double step_s,
                       struct eth_hpp_plan *plan);

#endif
