/* What workers of a stage can hold and what they take, tabulated for the search of chains. */
#ifndef ETH_HPP_PLAN_CHAIN_WORKERS_H
#define ETH_HPP_PLAN_CHAIN_WORKERS_H

#include "plan/draft.h"

/* Stages with more micro-batches in flight are taken to hold so many. */
enum { ETH_HPP_CHAIN_FLIGHT = 128, ETH_HPP_CHAIN_BUCKETS = 8, ETH_HPP_CHAIN_HASHES = 4096 };

/* Workers of one device at one tensor parallelism with so many samples of a micro-batch. */
struct eth_hpp_chain_like {
    int device, degree, samples;
    bool recompute;
    double share; /* of the optimizer's state that stays here */
};

struct eth_hpp_chain_worker {
    struct eth_hpp_chain_worker *next; /* of the same hash */
    struct eth_hpp_chain_like like;
    double layer_s;  /* forward and backward of the model's most frequent kind of layer */
    double *until_s; /* [layer] of all layers before it */
    int held[ETH_HPP_CHAIN_BUCKETS]; /* layers of that kind that memory holds with 1, 2, 4, ...
                                        micro-batches in flight; many where the model has fewer */
    int16_t **first; /* [in flight][end] 1 + the first layer of the longest stage up to `end` that
                        memory holds; 0: not known yet; NULL: none is */
};

/* All workers that were asked for so far. */
struct eth_hpp_chain_workers {
    struct eth_hpp_workshop *shop;
    int layers;    /* of the model */
    int main_kind; /* the most frequent kind of layer */
    int main_end;  /* end of its longest run */
    int main_run;  /* layers of that */
    struct eth_hpp_chain_worker *list[ETH_HPP_CHAIN_HASHES];
};

void eth_hpp_chain_workers_init(struct eth_hpp_chain_workers *workers,
                                struct eth_hpp_workshop *shop);
void eth_hpp_chain_workers_free(struct eth_hpp_chain_workers *workers);

/* The table of a worker, made where there is none yet; NULL when out of memory. */
struct eth_hpp_chain_worker *eth_hpp_chain_workers_get(struct eth_hpp_chain_workers *workers,
                                                       const struct eth_hpp_chain_like *like);

/* Finds what the table of eth_hpp_chain_worker_holds() does not know yet. */
int eth_hpp_chain_worker_find(const struct eth_hpp_chain_workers *workers,
                              struct eth_hpp_chain_worker *worker, int in_flight, int end);

/* The first layer of the longest stage up to `end` that memory holds with so many micro-batches in
 * flight, at most ETH_HPP_CHAIN_FLIGHT; `end` where it does not hold a single layer. */
static inline int eth_hpp_chain_worker_holds(const struct eth_hpp_chain_workers *workers,
                                             struct eth_hpp_chain_worker *worker, int in_flight,
                                             int end)
{
    const int16_t *row = worker->first != NULL ? worker->first[in_flight] : NULL;
    if (row != NULL && row[end] > 0)
        return row[end] - 1;
    return eth_hpp_chain_worker_find(workers, worker, in_flight, end);
}

/* reach[end] becomes the first layer of the longest stage up to `end` that takes at most `s`, has
 * at most so many layers, and does not begin before least[end]. */
void eth_hpp_chain_worker_reach(const struct eth_hpp_chain_worker *worker, double s, int most,
                                const int16_t *least, int layers, int16_t *reach);

#endif
