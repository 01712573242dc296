/*
 * The cost model: what forwards, backwards, hand-overs, sums and the optimizer take, and what a
 * worker keeps in memory. It implements "Reference cost semantics" of FORMATS; formulas stand
 * beside the functions. Everything here is a pure function of a cluster and a profile.
 */
#ifndef ETH_HPP_PLAN_COST_H
#define ETH_HPP_PLAN_COST_H

#include "plan/layout.h"

/* Cluster and profile, indexed for computing with. Both must outlive it. */
struct eth_hpp_cost {
    const struct eth_hpp_cluster *cluster;
    const struct eth_hpp_profile *profile;
    int *kinds_below; /* [(layer_count + 1) * kind_count] layers of each kind below a layer */
    int degrees;      /* tensor-parallel degrees of the profile, ascending */
    int *degree;      /* [degrees] */
    const struct eth_hpp_times **times;           /* [device * degrees + d], NULL: no times */
    const struct eth_hpp_profile_memory **memory; /* [degrees] */
    double *optimizer_s;                          /* [device] per parameter */
    int *class_of;   /* [node] nodes of one class have the same links */
    int class_count; /* 0: there are no links */
    int *link_of;    /* [class * class_count + class] the link that counts, or -1 */
    /* Scratch of eth_hpp_cost_transfer. */
    int *leaving, *entering;  /* [node] samples; 0 between calls */
    struct eth_hpp_way *ways; /* [2 * GPUs] */
};

/* Samples that go from a node to another one, or back. */
struct eth_hpp_way {
    int lower, upper; /* the nodes */
    int samples;
    double bandwidth; /* that both ways together have */
};

/* Freed with eth_hpp_cost_free. Errors: MEMORY; INPUT (see link_classes.h). */
enum eth_hpp_status eth_hpp_cost_init(struct eth_hpp_cost *cost,
                                      const struct eth_hpp_cluster *cluster,
                                      const struct eth_hpp_profile *profile,
                                      struct eth_hpp_error *err);
void eth_hpp_cost_free(struct eth_hpp_cost *cost);

/* Index of a tensor-parallel degree, or -1. */
int eth_hpp_cost_degree(const struct eth_hpp_cost *cost, int tensor_parallel);
/* The most samples a worker may take: the largest profiled micro-batch; 0 without times. */
int eth_hpp_cost_most_samples(const struct eth_hpp_cost *cost, int device, int degree);
/* Layers of a kind in [first, end). */
int eth_hpp_cost_count(const struct eth_hpp_cost *cost, int kind, int first, int end);
/* Does [first, end) hold the tied tensor? */
bool eth_hpp_cost_holds_tied(const struct eth_hpp_cost *cost, int tied, int first, int end);

/* Seconds of one layer of a kind at k samples: linear between profiled points, never below the
 * smallest point. */
struct eth_hpp_layer_time eth_hpp_cost_layer(const struct eth_hpp_cost *cost, int device,
                                             int degree, int kind, int samples);
/* Seconds of layers [first, end) on one worker; with recompute a backward takes forward + backward.
 */
struct eth_hpp_layer_time eth_hpp_cost_layers(const struct eth_hpp_cost *cost, int device,
                                              int degree, int first, int end, int samples,
                                              bool recompute);

/* A stage's seconds: its slowest worker's, forward and backward each. `*slowest` (may be NULL)
 * becomes the worker whose backward is slowest, the last of equals. */
struct eth_hpp_layer_time eth_hpp_cost_stage(const struct eth_hpp_cost *cost,
                                             const struct eth_hpp_layout *layout, int stage,
                                             int *slowest);

/* Seconds to hand a micro-batch from a stage to the next: the largest latency, plus the slowest of
 * the largest intra-node pair, the busiest node's network, the busiest GPU's own limit, and the
 * limited pairs. Samples go by index. */
double eth_hpp_cost_transfer(const struct eth_hpp_cost *cost, const struct eth_hpp_layout *layout,
                             int stage);

/* The link between two different nodes, or NULL. */
const struct eth_hpp_link *eth_hpp_cost_link(const struct eth_hpp_cost *cost, int a, int b);

/* A piece of a hand-over: one worker of a stage gives samples to one of the next. */
struct eth_hpp_piece {
    int from, to; /* worker indices in the layout */
    int samples;
};
/* Where a walk over the pieces stands; zeros at the start. */
struct eth_hpp_piece_walk {
    int from, to, left_from, left_to;
    bool started;
};
/* The next piece from `stage` to the stage after it; false at the end. */
bool eth_hpp_cost_next_piece(const struct eth_hpp_layout *layout, int stage,
                             struct eth_hpp_piece_walk *at, struct eth_hpp_piece *piece);

/* Bytes per sample and resident bytes of a stage's workers. peak = reserved + state
 * + samples x (live x kept + layer + workspace), live = min(micro_batches, in_flight). With
 * recompute a layer keeps only its input and the largest single layer's saved bytes are added once.
 */
struct eth_hpp_stage_memory {
    double state;     /* resident, replicated optimizer */
    double optimizer; /* the part of it that sharding divides */
    double kept, layer, workspace;
};
struct eth_hpp_stage_memory eth_hpp_cost_memory(const struct eth_hpp_cost *cost, int degree,
                                                int first, int end, bool recompute);
/* The peak of a worker of the device, `state` being its resident bytes. */
double eth_hpp_cost_peak(const struct eth_hpp_cost *cost, const struct eth_hpp_stage_memory *memory,
                         double state, int device, int samples, int live);

#endif
