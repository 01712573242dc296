/* Small changes of a draft, from which the search makes its steps. */
#ifndef ETH_HPP_PLAN_MOVES_H
#define ETH_HPP_PLAN_MOVES_H

#include "plan/draft.h"

struct eth_hpp_search {
    struct eth_hpp_workshop *shop;
    const struct eth_hpp_solver_options *options;
    struct eth_hpp_draft *draft; /* the one that moves change */
    int focus;                   /* the group that moves are to change, -1: any */
    uint64_t random;
};

/* Changes search->draft within the options: a cut, a micro-batch, a stage's workers, kind or tensor
 * parallelism, a pipeline's depth, the number of like pipelines, groups as a whole, recompute,
 * micro-batches in flight, the optimizer's placement. One to three moves at a time: some changes
 * only pay together. False where a move did not apply, which spoils the draft, since it may have
 * stopped half-way. */
bool eth_hpp_search_change(struct eth_hpp_search *search);

/* The next random number in [0, 1). */
double eth_hpp_search_unit(struct eth_hpp_search *search);

#endif
