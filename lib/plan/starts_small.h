/* Starts for clusters of a few GPUs, which the families of like pipelines seldom divide well. */
#ifndef ETH_HPP_PLAN_STARTS_SMALL_H
#define ETH_HPP_PLAN_STARTS_SMALL_H

#include "plan/starts.h"

/* Clusters of more GPUs, or of more ways to take some of them, are left to the other families. */
enum { ETH_HPP_SMALL_GPUS = 8, ETH_HPP_SMALL_USES = 128 };

/*
 * Makes chains of stages of any workers for every use of the GPUs (how many of each pool), and
 * keeps the best chains of each use for each micro-batch. Then the GPUs are divided among 1, 2, ...
 * pipelines so that together they serve the batch soonest, by dynamic programming over uses, and
 * each of these sets is offered with both optimizers and placements. Characters begin at
 * `character`. The chains tried are counted, and limited by the effort. Errors are left in the
 * shop.
 */
void eth_hpp_starts_small(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                          int character);

#endif
