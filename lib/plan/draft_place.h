/* Where the workers of a draft stand. */
#ifndef ETH_HPP_PLAN_DRAFT_PLACE_H
#define ETH_HPP_PLAN_DRAFT_PLACE_H

#include "plan/draft.h"

/* Makes shop->layout and shop->stands from shop->forms: gives every worker a node, larger parts
 * first. Like pipelines that fill like nodes in the same pattern stand there once, with their
 * number. GPUS where there is no room; FITS. */
enum eth_hpp_draft_fault eth_hpp_draft_place(struct eth_hpp_workshop *shop,
                                             const struct eth_hpp_draft *draft);

/* Gives the pipelines of group g their micro-batches: `count` each, one more to `more` of them.
 * Pipelines that stand for several are split where some of them get more. False when out of memory.
 */
bool eth_hpp_draft_give(struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft, int g,
                        int count, int more);

#endif
