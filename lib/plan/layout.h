/*
 * A plan laid flat for computing with: indices in place of names, one array of each thing. The
 * simulator makes one from a plan, the solver searches on them.
 */
#ifndef ETH_HPP_PLAN_LAYOUT_H
#define ETH_HPP_PLAN_LAYOUT_H

#include "plan/plan.h"

struct eth_hpp_layout_worker {
    int node, device; /* indices into the cluster */
    int samples;
};

struct eth_hpp_layout_stage {
    int first_layer, end_layer;
    int tensor_parallel, in_flight;
    bool recompute;
    int first_worker, worker_count; /* in layout.workers */
    int others; /* like stages, of like pipelines on nodes of their own, that it stands for too */
};

struct eth_hpp_layout_pipeline {
    int micro_batch, micro_batches;
    int first_stage, stage_count; /* in layout.stages; its stages follow each other */
    int like; /* 1 + an earlier pipeline with the same layers, devices and samples; 0: unknown */
};

struct eth_hpp_layout {
    struct eth_hpp_layout_pipeline *pipelines;
    struct eth_hpp_layout_stage *stages;
    struct eth_hpp_layout_worker *workers;
    int pipeline_count, stage_count, worker_count;
    int pipeline_room, stage_room, worker_room;
    bool sharded_optimizer;
};

/* Lays out a plan. Errors: INPUT (a node, GPU or layer that is not there), MEMORY. *layout starts
 * zeroed or holds an earlier one, whose memory is used again. */
enum eth_hpp_status eth_hpp_layout_from_plan(const struct eth_hpp_plan *plan,
                                             const struct eth_hpp_cluster *cluster,
                                             struct eth_hpp_layout *layout,
                                             struct eth_hpp_error *err);

/* Makes room for so many more of each; false when out of memory. Moves the arrays. */
bool eth_hpp_layout_reserve(struct eth_hpp_layout *layout, int pipelines, int stages, int workers);
/* Makes `to` equal to `from`; false when out of memory. */
bool eth_hpp_layout_copy(struct eth_hpp_layout *to, const struct eth_hpp_layout *from);
void eth_hpp_layout_free(struct eth_hpp_layout *layout);

#endif
