/* Starting families of the search: drafts that are good before anything is improved. */
#ifndef ETH_HPP_PLAN_STARTS_H
#define ETH_HPP_PLAN_STARTS_H

#include "plan/draft.h"

enum { ETH_HPP_CANDIDATES = 16 };

/* The best drafts found so far, each of another character, best first. */
struct eth_hpp_candidates {
    int count;
    struct eth_hpp_candidate {
        double step_s;
        int character; /* one candidate is kept of each */
        struct eth_hpp_draft draft;
    } list[ETH_HPP_CANDIDATES];
};

/* Evaluates a draft and keeps it if it is among the best. Returns its step, or INFINITY where it
 * makes no plan. */
double eth_hpp_candidates_offer(struct eth_hpp_candidates *candidates,
                                struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft,
                                int character);

/* Offers it with the nodes given out pipeline by pipeline and stage by stage, and with the
 * optimizer whole and sharded, which it changes. */
void eth_hpp_candidates_offer_ways(struct eth_hpp_candidates *candidates,
                                   struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft,
                                   int character);

/*
 * Enumerates, within the options' shape:
 *   partitions        the pools are divided into classes (or left idle), and each class is a group
 *                     of equal pipelines, each a chain over the class's pools (partitions.h)
 *   mixed stages      one group whose every stage has workers of all pools
 *   pairs             many pipelines of two stages, of few GPUs (starts_pairs.h)
 *   even              what training without regard to kinds does (shape EVEN)
 */
void eth_hpp_starts_collect(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates);

#endif
