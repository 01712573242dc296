/* Starts of many short pipelines. */
#ifndef ETH_HPP_PLAN_STARTS_PAIRS_H
#define ETH_HPP_PLAN_STARTS_PAIRS_H

#include "plan/starts.h"

/* Offers pipelines of two stages, between all pairs of disjoint sets of pools, and within the pools
 * of each set; the GPUs that are left idle, or each a pipeline of its own. `draft` is used for it.
 * For few GPUs: the ways double with each pool. Errors are left in the shop. */
void eth_hpp_pairs_try(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                       struct eth_hpp_draft *draft);

#endif
