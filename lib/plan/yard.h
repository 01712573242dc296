/*
 * The yard: which GPUs of the pools are free while a draft's workers are given their nodes. A
 * pool's nodes are taken in their order, so that the untouched ones are the last; of the others
 * those are listed that have GPUs left. Like nodes that were left alike are listed as one.
 */
#ifndef ETH_HPP_PLAN_YARD_H
#define ETH_HPP_PLAN_YARD_H

#include "plan/layout.h"
#include "plan/pools.h"

/* Nodes with as many GPUs left: `copies` of them, `stride` apart. */
struct eth_hpp_yard_rest {
    int node; /* index in the pool's nodes */
    int stride, copies, free;
};

struct eth_hpp_yard {
    struct eth_hpp_pools pools; /* the caller's */
    struct eth_hpp_yard_pool {
        int fresh; /* nodes from here on are untouched */
        int start; /* where the pattern that is watched began */
        int rest_count;
        struct eth_hpp_yard_rest *rests;
    } * pool; /* [pool] */
    bool old; /* the pattern has taken GPUs of nodes that were touched before it began */
};

/* False when out of memory. */
bool eth_hpp_yard_make(struct eth_hpp_yard *yard, const struct eth_hpp_pools *pools);
void eth_hpp_yard_free(struct eth_hpp_yard *yard);

/* All GPUs are free. */
void eth_hpp_yard_clear(struct eth_hpp_yard *yard);

/* Takes the GPUs of like workers: whole in the node where they fit most closely, else in as few
 * nodes as it takes. Writes the node and device of each worker; false where there is no room. */
bool eth_hpp_yard_take(struct eth_hpp_yard *yard, int pool, int workers, int tensor_parallel,
                       struct eth_hpp_layout_worker *to);

/* A pattern begins: what is taken from now on. */
void eth_hpp_yard_watch(struct eth_hpp_yard *yard);

/* Has the pattern filled its nodes, but for what is too small: fewer than smallest[pool] GPUs of a
 * node? */
bool eth_hpp_yard_is_full(const struct eth_hpp_yard *yard, const int *smallest);

/* Takes the same pattern up to `most` more times on untouched nodes; returns how often that went.
 * stride[pool] becomes the number of nodes from one to the next. */
int eth_hpp_yard_repeat(struct eth_hpp_yard *yard, int most, int *stride);

#endif
