/* Partitions of the pools into classes: starts of the search. */
#ifndef ETH_HPP_PLAN_PARTITIONS_H
#define ETH_HPP_PLAN_PARTITIONS_H

#include "plan/starts.h"

/* Looks for the best classes over each set of pools, divides the pools into such sets (or leaves
 * them idle), and offers the most promising of these partitions. A candidate's character is the
 * partition's number and the choice of its classes. *draft is used for trying. Errors are left in
 * the shop. */
void eth_hpp_partitions_try(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                            struct eth_hpp_draft *draft);

#endif
