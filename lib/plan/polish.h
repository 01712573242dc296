/* Small changes of a whole plan, which drafts and their rules do not make. */
#ifndef ETH_HPP_PLAN_POLISH_H
#define ETH_HPP_PLAN_POLISH_H

#include "plan/draft.h"

/*
 * Improves shop->layout and shop->step: micro-batches in flight and recompute of each stage, cuts
 * by a layer, samples between two workers and micro-batches between two pipelines, each plan
 * evaluated as it is, until none is shorter or `tries` plans were evaluated. The layout's pipelines
 * stand for themselves alone (shop->unfolded). Errors are left in the shop.
 */
void eth_hpp_polish(struct eth_hpp_workshop *shop, int64_t tries);

#endif
