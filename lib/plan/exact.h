/* Plans for few GPUs, found by trying all that may be shorter than the best one known. */
#ifndef ETH_HPP_PLAN_EXACT_H
#define ETH_HPP_PLAN_EXACT_H

#include "plan/draft.h"

/* Clusters of more GPUs, or of more ways to take some of them, are left to other searches; so are
 * batches that are larger. */
enum { ETH_HPP_EXACT_GPUS = 12, ETH_HPP_EXACT_USES = 256, ETH_HPP_EXACT_BATCH = 128 };

/*
 * Branch and bound. For each use of the GPUs (how many of each node and kind) and each micro-batch
 * all pipelines are made, stage by stage: cuts, workers of any kinds with their samples, tensor
 * parallelism, recompute. What has been made of one is dropped as soon as it must take longer than
 * is of use (exact_pipelines.c says by which proofs). Then pipelines that together serve the batch
 * are put together and evaluated as a whole. First plans are looked for that are 5 % shorter than
 * the best one known, which is quick, then 1 % and 0.1 %.
 *
 * *closed: everything was tried, so that no plan is 0.1 % shorter, but for what is left to
 * polishing: the order of a stage's workers and micro-batches in flight that do not shorten their
 * own pipeline. Otherwise so many stages were looked at as `work` allows.
 *
 * *step_s is the step of the best plan known (INFINITY: there is none). Where a shorter one is
 * found it is left, polished, in shop->layout and shop->step, *step_s becomes its step, and the
 * function returns true. Errors are left in the shop.
 */
bool eth_hpp_exact_search(struct eth_hpp_workshop *shop, int64_t work, double *step_s,
                          bool *closed);

#endif
