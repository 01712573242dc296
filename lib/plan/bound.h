/* A step time that no plan can beat. */
#ifndef ETH_HPP_PLAN_BOUND_H
#define ETH_HPP_PLAN_BOUND_H

#include "plan/cost.h"

/*
 * The whole batch's layers dealt freely and fractionally to the GPUs, each at its best profiled
 * rate for that kind of layer, without bubble, communication or memory limit: a linear programme,
 *     min T,  sum_d x[k,d] = 1,  sum_k x[k,d] x batch x layers[k] x best[k,d] / gpus[d] <= T,
 * solved by the simplex method. best[k,d] is the least (forward + backward) x tensor parallelism /
 * samples over the profiled points; between points times are linear, so no other number of samples
 * does better. Returns 0 when out of memory or where no device has times.
 */
double eth_hpp_bound(const struct eth_hpp_cost *cost, int global_batch);

#endif
