/* Improvement of a draft by simulated annealing on the whole predicted step. */
#ifndef ETH_HPP_PLAN_ANNEAL_H
#define ETH_HPP_PLAN_ANNEAL_H

#include "plan/draft.h"

/* A step so close to what no plan can beat is as good as that. */
#define ETH_HPP_ANNEAL_CLOSED 1.0001
/* A temperature to begin with: a step that is this fraction longer is accepted with probability
 * 1/e. Where GPUs are few a single move changes the step by much. */
static inline double eth_hpp_anneal_hot(int gpus)
{
    if (gpus <= 8)
        return 0.2;
    return gpus <= 16 ? 0.05 : 0.01;
}

/* Improves *draft, whose step is *step_s, with `work` (see the workshop's); the best draft met is
 * left in both. Begins at the temperature `hot`. Deterministic in `seed`. Stops early once the step
 * is within 0.01 % of lower_bound_s. Errors are left in the shop. */
void eth_hpp_anneal(struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft, double *step_s,
                    int64_t work, uint64_t seed, double hot, double lower_bound_s);

#endif
