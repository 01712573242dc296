/* Block sums of a layout: who owns what, when a sum can start and when it ends. */
#ifndef ETH_HPP_PLAN_SUMS_H
#define ETH_HPP_PLAN_SUMS_H

#include "plan/cost.h"
#include "plan/observe.h"
#include "plan/pipeline.h"

/* Memory for one layout after the other; zeroed at the start. */
struct eth_hpp_sums {
    int block_count; /* layer blocks, ascending, then tied tensors */
    int layer_blocks;
    struct eth_hpp_sum {
        int first_layer, end_layer, tied; /* tied: -1 for layers */
        double bytes, parameters;
        int owner_stages; /* stages that own it, listed at owners[first_owner] */
        int first_owner;
        int owners;                  /* workers in all */
        int tensor_parallel;         /* smallest among the owners */
        double bandwidth, latency_s; /* of each of its rings */
        bool across;                 /* nodes */
        bool copied;                 /* an owner stands for several on nodes of their own */
    } * blocks;
    int *owner_list;
    int block_room, owner_room;
    bool *cut;      /* [layers + 1] */
    double *free_s; /* [stage] when its workers have finished their earlier sums */
    int stage_room;
    double *card_s;                       /* [node] when its network is free */
    double *ring_bytes, *hand_over_bytes; /* [node] */
    int *mark;                            /* [node] workers of the block at hand that stand there */
    int *touched, touched_count;          /* nodes with a mark */
    int *class_mark;                      /* [class] nodes of the block at hand */
    const struct eth_hpp_observer *observer; /* of sums, gathers and updates, or NULL */
};

void eth_hpp_sums_free(struct eth_hpp_sums *sums);

/* Finds the blocks and their owners, wherever the workers stand; false when out of memory. */
bool eth_hpp_sums_find_owners(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                              const struct eth_hpp_layout *layout);
/* Finds the bandwidth of their rings too. */
bool eth_hpp_sums_prepare(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                          const struct eth_hpp_layout *layout);

/* When the last sum ends. `runs` are the stages' runs. A block starts when every owner has passed
 * its layers in its last backward and finished its earlier block; blocks that cross one node's
 * network take turns on it. rounds: 2 for sums (all-reduce), 1 for reduce-scatters. */
double eth_hpp_sums_end(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                        const struct eth_hpp_layout *layout, const struct eth_hpp_stage_run *runs,
                        int rounds);

/* Seconds for the updated weights to go back to all owners (sharded optimizer), first block first.
 */
double eth_hpp_sums_gather_s(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                             const struct eth_hpp_layout *layout);

/* Seconds that the busiest node's network carries hand-overs and sums in one step. */
double eth_hpp_sums_network_s(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                              const struct eth_hpp_layout *layout);

/* The slowest worker's optimizer update: parameters held, or its share of them where sharded. */
double eth_hpp_sums_optimizer_s(const struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                                const struct eth_hpp_layout *layout);

/* Bytes of a stage's optimizer state that its fellow owners hold instead (sharded optimizer). */
double eth_hpp_sums_sharded_bytes(const struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                                  const struct eth_hpp_layout *layout, int stage);

#endif
