/* What the bound knows of the stages that GPUs can hold; private to bound.c and bound_stages.c. */
#ifndef ETH_HPP_PLAN_BOUND_STAGES_H
#define ETH_HPP_PLAN_BOUND_STAGES_H

#include <math.h>

#include "plan/cost.h"

enum { ETH_HPP_BOUND_CELLS = 48 }; /* models of more layers are looked at in so many cells */

/* A range of samples at one tensor parallelism, with the most favourable figures in it. With
 * recompute a backward is forward + backward. */
struct eth_hpp_bound_setting {
    int degree; /* index */
    bool recompute;
    int least_samples, most_samples;
    double once_s[ETH_HPP_LAYER_KINDS_MAX]; /* forward + backward of a sample */
    double forward_s[ETH_HPP_LAYER_KINDS_MAX], backward_s[ETH_HPP_LAYER_KINDS_MAX]; /* least */
    double most_s[ETH_HPP_LAYER_KINDS_MAX]; /* forward + backward, at most */
};

/* What a stage of these cells holds, by degree, recompute and cells. */
struct holding {
    double state, kept, other; /* bytes: resident, and per sample in flight and running */
};

/* Seconds of the cells below one. */
struct sums {
    double forward_s, backward_s, most_s;
};

/* The stages of a setting that begin in one cell: the cell that none of them reaches any more, and
 * the most that any can use of its window for what is in flight. */
struct reach {
    int end;
    double use;
};

/* Layers of one kind in one cell. */
struct row {
    int cell, kind, layers;
};

struct eth_hpp_bound_room {
    const struct eth_hpp_cost *cost;
    int global_batch;
    int cells, rows, kinds, devices;
    int first_layer[ETH_HPP_BOUND_CELLS + 1];
    double before_s[ETH_HPP_BOUND_CELLS],
        behind_s[ETH_HPP_BOUND_CELLS]; /* passage of the layers before and behind a cell */
    struct row *row;
    int row_of[ETH_HPP_BOUND_CELLS + 1]; /* the first row of a cell */
    struct holding *holding;
    int *device, *gpus; /* of the cluster's devices those with times */
    struct eth_hpp_bound_setting *settings;
    int *first_setting;  /* [devices + 1] */
    struct sums *sums;   /* [setting][cells + 1] */
    struct reach *reach; /* [setting][cell] */
    double optimizer_s;
    double sum_s, alone_s;           /* of the first layer; with one owner it takes alone_s */
    double tied_sum_s, tied_alone_s; /* of the tensors tied to it */
    double *price;                   /* [row * devices + device] c[l,d] of the proof */
    double *worth;                   /* [device] w[d] of the programme that was solved last */
    double *load;                    /* of the programme, */
    int *layers, *load_kind;         /* and the layers and their kind of its rows */
    int load_rows;
    double forward_s; /* by which no forward of the whole batch can have ended */
};

static inline double eth_hpp_bound_larger(double a, double b)
{
    return a > b ? a : b;
}

static inline double eth_hpp_bound_smaller(double a, double b)
{
    return a < b ? a : b;
}

/* The cells that a stage from some layer of cell `first` to some layer of cell `last` surely holds
 * whole: all where a cell is a layer. */
static inline void eth_hpp_bound_inner(const struct eth_hpp_bound_room *b, int first, int last,
                                       int *from, int *end)
{
    bool whole = b->cells == b->cost->profile->layer_count;
    *from = whole ? first : first + 1;
    *end = whole ? last + 1 : last;
}

static inline struct holding *eth_hpp_bound_holding(const struct eth_hpp_bound_room *b, int degree,
                                                    int recompute, int first, int last)
{
    return &b->holding[((degree * 2 + recompute) * b->cells + first) * b->cells + last];
}

/* Rounded down; what is all but a whole number is that. */
static inline double eth_hpp_bound_whole(double x)
{
    x *= 1 + 1e-12;
    return x < 1e15 ? (double)(int64_t)x : x;
}

/* Micro-batches in flight that fit; who keeps nothing of them holds any number. */
static inline double eth_hpp_bound_in_flight(const struct eth_hpp_device *device,
                                             const struct eth_hpp_bound_setting *s,
                                             const struct holding *h)
{
    double left = device->memory_bytes * (1 + 1e-12) - device->reserved_bytes - h->state -
                  s->least_samples * h->other;
    if (left < 0)
        return 0;
    return h->kept > 0 ? eth_hpp_bound_whole(left / (s->least_samples * h->kept)) : INFINITY;
}

/* The part of its window that a worker can compute in for the micro-batches that it can hold: step
 * 3 of the proof. */
static inline double eth_hpp_bound_use(const struct eth_hpp_bound_room *b, double in_flight,
                                       double most_s, int last)
{
    return b->behind_s[last] > 0 ? in_flight * most_s / (most_s + b->behind_s[last]) : 1;
}

/* Finds everything in `b` that does not depend on the step, from its cost and global_batch. False
 * when out of memory or where no device has times. eth_hpp_bound_close frees it in both cases. */
bool eth_hpp_bound_open(struct eth_hpp_bound_room *b);
void eth_hpp_bound_close(struct eth_hpp_bound_room *b);

#endif
