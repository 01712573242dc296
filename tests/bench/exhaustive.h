/*
 * The best plan of a tiny instance by trying all of them: every set of pipelines, stages, mixed
 * workers with their samples and order, micro-batches, micro-batches in flight, recompute, tensor
 * parallelism and both optimizers. Plans are priced with the library's own evaluation, and left out
 * only where it is proven that they cannot be shorter than the best one known:
 *  - every order of computations is fixed, so that nothing starts earlier when a computation takes
 *    longer: a pipeline takes at least what its longest chains of waits take, with the stages not
 *    yet chosen at no time at all;
 *  - of two pipelines that differ only in micro-batches in flight, the one whose last backwards
 *    start and end no later everywhere is no worse in any plan;
 *  - recompute lengthens backwards, so where the workers of a stage are of one kind it is of use
 *    only with more in flight than fit without;
 *  - nodes and kinds tell GPUs apart, nothing else does.
 */
#ifndef ETH_HPP_TESTS_EXHAUSTIVE_H
#define ETH_HPP_TESTS_EXHAUSTIVE_H

#include "plan/evaluate.h"

enum {
    EXHAUSTIVE_GPUS = 6,
    EXHAUSTIVE_BATCH = 31,
    EXHAUSTIVE_POOLS = EXHAUSTIVE_GPUS,
    EXHAUSTIVE_USES = 1 << EXHAUSTIVE_GPUS /* ways to take GPUs of pools: at most one a subset */
};

struct exhaustive_worker {
    int pool, samples;
};

struct exhaustive_stage {
    int first_layer, end_layer;
    int degree; /* index in cost.degree */
    int in_flight, least_in_flight, most_in_flight;
    bool recompute;
    int worker_count;
    struct exhaustive_worker workers[EXHAUSTIVE_GPUS];
};

struct exhaustive_pipeline {
    int micro_batch, micro_batches;
    double least_s; /* no step with it is shorter */
    int stage_count;
    struct exhaustive_stage stages[EXHAUSTIVE_GPUS];
    double start_s[EXHAUSTIVE_GPUS], end_s[EXHAUSTIVE_GPUS]; /* of the last backwards */
};

struct exhaustive_list {
    struct exhaustive_pipeline *pipelines;
    int count, room;
};

/* GPUs of one kind on one node. */
struct exhaustive_pool {
    int node, device, gpus;
};

struct exhaustive {
    const struct eth_hpp_cost *cost;
    int global_batch;
    bool sharded;
    struct exhaustive_pool pools[EXHAUSTIVE_POOLS];
    int pool_count, use_count, gpus;
    double limit_s;    /* only plans shorter than that are of interest */
    int64_t evaluated; /* whole plans */
    int64_t run;       /* pipelines */
    /* The pipelines of every use of GPUs and number of samples. */
    struct exhaustive_list lists[EXHAUSTIVE_USES][EXHAUSTIVE_BATCH + 1];
    /* Bit b: pipelines that serve b samples together may fit into these GPUs. */
    uint32_t reach[EXHAUSTIVE_USES];
    struct eth_hpp_evaluator evaluator;
    struct eth_hpp_layout layout, best;
    double best_s;
    bool failed; /* out of memory */
    /* The pipeline at hand. */
    struct exhaustive_pipeline made;
    int left[EXHAUSTIVE_POOLS]; /* GPUs that it still has to use */
    int left_gpus;
    struct exhaustive_list *to; /* NULL: only whether there is any */
    bool found;
};

/* GPUs of each pool of a use. */
void exhaustive_open_use(const struct exhaustive *x, int use, int *taken);

/* Appends the pipelines that use just these GPUs for `samples` samples a step to `to`, or (NULL)
 * only finds out whether there is one: x->found. */
void exhaustive_find_pipelines(struct exhaustive *x, int use, int samples,
                               struct exhaustive_list *to);

/* Lays out pipelines, evaluates them and keeps them if they are the best. */
void exhaustive_try(struct exhaustive *x, const struct exhaustive_pipeline *const *pipelines,
                    int count);

/* Adds a pipeline to x->layout; false when out of memory. */
bool exhaustive_lay(struct exhaustive *x, const struct exhaustive_pipeline *pipeline);

/*
 * Finds a plan shorter than known_s, a step that is known to be possible (INFINITY: none is), or
 * none. *best becomes it and *best_s its step, which stays known_s where there is none. Freed with
 * eth_hpp_layout_free. False when out of memory or where the instance is not tiny.
 */
bool exhaustive_search(const struct eth_hpp_cost *cost, int global_batch, double known_s,
                       struct eth_hpp_layout *best, double *best_s);

#endif
