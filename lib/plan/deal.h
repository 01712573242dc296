/* How many micro-batches each pipeline gets. */
#ifndef ETH_HPP_PLAN_DEAL_H
#define ETH_HPP_PLAN_DEAL_H

#include <stdbool.h>

enum { ETH_HPP_DEAL_GROUPS = 16 };

/* A group of like pipelines, each of which takes about fill + n x beat seconds for n micro-batches:
 * in step with its slowest stage or hand-over a pipeline is affine in n. */
struct eth_hpp_pace {
    double fill, beat;
    int micro_batch, replicas;
};

/* Deals the batch to the groups so that they end together: counts[g] micro-batches to each replica
 * of group g, one more to its first more[g] replicas; every replica gets one at least. False where
 * the batch cannot be dealt exactly. */
bool eth_hpp_deal(const struct eth_hpp_pace *paces, int groups, int global_batch, int *counts,
                  int *more);

/* Even data: every pipeline does the same number of micro-batches of the same size. False where the
 * batch does not divide so. */
bool eth_hpp_deal_evenly(const struct eth_hpp_pace *paces, int groups, int global_batch,
                         int *counts, int *more);

#endif
