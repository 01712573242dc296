/* What the parts of the exact search share; private to exact.c and exact_pipelines.c. */
#ifndef ETH_HPP_PLAN_EXACT_PARTS_H
#define ETH_HPP_PLAN_EXACT_PARTS_H

#include "plan/exact.h"

enum { ETH_HPP_EXACT_KEPT = 48 }; /* pipelines of a use and number of samples */

/* GPUs of one kind on one node. */
struct eth_hpp_exact_pool {
    int node, device, gpus;
    int like; /* the first pool on a node like its own */
};

struct eth_hpp_exact_pipeline {
    int micro_batch, micro_batches;
    double least_s;    /* no step with it is shorter */
    double backward_s; /* of its first stage and a micro-batch */
    int stage_count, worker_count;
    struct eth_hpp_layout_stage stages[ETH_HPP_EXACT_GPUS]; /* workers count from its own first */
    struct eth_hpp_layout_worker workers[ETH_HPP_EXACT_GPUS];
    int pools[ETH_HPP_EXACT_GPUS]; /* of the workers */
};

/* The pipelines of a use that serve so many samples, the shortest first. */
struct eth_hpp_exact_list {
    struct eth_hpp_exact_pipeline *pipelines;
    int count, room;
};

/* What GPUs can do with micro-batches of up to so many samples. */
struct eth_hpp_exact_weights {
    double *weight; /* [layers + 1] of the layers from one on: seconds a sample on the best GPU */
    double *rest_s; /* [layers + 1] what a micro-batch takes for the layers from one on, at least */
    double rate[ETH_HPP_EXACT_GPUS]; /* [pool] the most weight that a GPU does in a second */
};

struct eth_hpp_exact {
    struct eth_hpp_workshop *shop;
    const struct eth_hpp_cost *cost;
    int global_batch;
    bool sharded;
    struct eth_hpp_exact_pool pools[ETH_HPP_EXACT_GPUS];
    int pool_count, use_count, gpus;
    double limit_s;     /* only plans shorter than that are of interest */
    double optimizer_s; /* of any plan, at least */
    /* Sums of the first layer, and of what is tied to it, between GPUs of two pools. */
    double sum_s[ETH_HPP_EXACT_GPUS][ETH_HPP_EXACT_GPUS];
    double byte_s[ETH_HPP_EXACT_GPUS][ETH_HPP_EXACT_GPUS]; /* of a sum between GPUs of two pools */
    int sizes;                                /* micro-batches of 1 to so many samples */
    struct eth_hpp_exact_weights *weights_of; /* [micro-batch] */
    double *sums;                             /* their memory */
    struct eth_hpp_exact_list *lists;         /* [use * (global_batch + 1) + samples] */
    double *soonest_s; /* [as lists] when the slowest of pipelines that serve them ends, at best */
    int serves[ETH_HPP_EXACT_USES]; /* samples that the GPUs of a use can serve at most */
    int64_t work_end;               /* of what is at hand */
    bool cut_short;                 /* something was left out for lack of work or room */
    struct eth_hpp_layout layout, best;
    struct eth_hpp_step best_step;
    /* The pipeline at hand, whose use and micro-batch are fixed. */
    struct eth_hpp_exact_pipeline made;
    struct eth_hpp_stage_run runs[ETH_HPP_EXACT_GPUS];
    int most[ETH_HPP_EXACT_GPUS];            /* micro-batches in flight that a stage can hold */
    int left[ETH_HPP_EXACT_GPUS], left_gpus; /* that it has yet to use */
    double left_rate;
    const struct eth_hpp_exact_weights *weights; /* of its micro-batch */
    int use, use_gpus, least_n, most_n;
    bool is_alone;  /* it serves the whole batch */
    double until_s; /* when it must have ended */
};

/* GPUs of each pool of a use. */
void eth_hpp_exact_open_use(const struct eth_hpp_exact *x, int use, int *taken);

/* Are the GPUs of a use among those of another? Then the rest of them is `all` - `use`. */
bool eth_hpp_exact_holds(const struct eth_hpp_exact *x, int all, int use);
/* The use that takes as many GPUs of like nodes, more of earlier ones. stand[p] becomes the pool in
 * which what it takes of pool p stands. Pipelines are only made of such uses. */
int eth_hpp_exact_standard(const struct eth_hpp_exact *x, int use, int *stand);

/* Finds the micro-batches that there can be and their weights: x->sizes, x->weights_of. False when
 * out of memory. */
bool eth_hpp_exact_weigh(struct eth_hpp_exact *x);

/* Finds all pipelines of just these GPUs that do least_n to most_n micro-batches and may be part of
 * a plan within limit_s of which sums take tail_s at the end, and keeps them in x->lists. */
void eth_hpp_exact_find(struct eth_hpp_exact *x, int use, int micro_batch, int least_n, int most_n,
                        double tail_s);

/* Chooses what is in flight of the pipeline in x->made, x->runs and x->most, so that it ends early;
 * returns its end. What is chosen is in x->runs. */
double eth_hpp_exact_settle(struct eth_hpp_exact *x, int n);

/* Puts the pipelines of x->lists together to plans within limit_s, which falls to the step of the
 * best one met: x->best and x->best_step. */
void eth_hpp_exact_combine(struct eth_hpp_exact *x);

/* The pipeline in x->made is a plan of its own: keeps it if it is the best. */
void eth_hpp_exact_try_alone(struct eth_hpp_exact *x);

#endif
