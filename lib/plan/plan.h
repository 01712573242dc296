/* The plan (`eth-hpp-plan`): which rank runs which layers on which samples. */
#ifndef ETH_HPP_PLAN_PLAN_H
#define ETH_HPP_PLAN_PLAN_H

#include "base/json.h"
#include "plan/cluster.h"
#include "plan/profile.h"

/* One GPU, or one tensor-parallel group inside a node. */
struct eth_hpp_worker {
    char node[ETH_HPP_NAME_MAX];
    int *gpus, *ranks; /* [tensor_parallel of the stage]; node-wide GPU indices, global ranks */
    int samples;       /* of each micro-batch, >= 1 */
};

struct eth_hpp_stage {
    int first_layer, end_layer; /* half-open */
    int tensor_parallel;
    bool recompute;
    int in_flight; /* micro-batches between their forward and backward, <= micro_batches */
    struct eth_hpp_worker *workers;
    int worker_count;
};

struct eth_hpp_pipeline {
    int micro_batch, micro_batches;
    struct eth_hpp_stage *stages;
    int stage_count;
};

/* A maximal run of layers with one owner set, or a tied tensor. Owners are in ascending rank order;
 * of a tensor-parallel worker the block lists all ranks. */
struct eth_hpp_block {
    int first_layer, end_layer; /* both 0 for a tied tensor */
    int tied;                   /* index of the tied tensor, or -1 */
    char tied_name[ETH_HPP_NAME_MAX];
    int *ranks;
    int rank_count;
};

struct eth_hpp_idle {
    char node[ETH_HPP_NAME_MAX];
    int *gpus, *ranks;
    int gpu_count;
    char why[160];
};

struct eth_hpp_predicted_rank {
    int rank;
    double busy_s, peak_memory_bytes, memory_limit_bytes;
};

struct eth_hpp_predicted {
    double step_s, compute_s, exposed_sync_s, optimizer_s;
    double bubble_fraction; /* share of the step in which the computing GPUs do not compute, all of
                               them together */
    double lower_bound_s, gap;
    struct eth_hpp_predicted_rank *ranks;
    int rank_count;
};

/* The kinds of GPU of a node that the plan was made for, so that it can be bound to another
 * allocation. In the file they stand under "extra". */
struct eth_hpp_plan_node {
    char name[ETH_HPP_NAME_MAX];
    int gpus;
    char (*devices)[ETH_HPP_NAME_MAX]; /* [gpus] */
};

struct eth_hpp_plan {
    char model[ETH_HPP_NAME_MAX];
    int layers, sequence_length, global_batch;
    enum eth_hpp_dtype dtype;
    bool sharded_optimizer;
    struct eth_hpp_pipeline *pipelines;
    int pipeline_count;
    struct eth_hpp_block *blocks; /* layer blocks in ascending order, then tied tensors */
    int block_count;
    struct eth_hpp_idle *idle;
    int idle_count;
    struct eth_hpp_predicted predicted; /* step_s 0: not predicted */
    struct eth_hpp_plan_node *nodes;    /* may be missing: node_count 0 */
    int node_count;
    bool estimated, emulated; /* times derived, not measured; devices emulated */
    struct {
        double seconds;
        int64_t considered;
        char solver[ETH_HPP_NAME_MAX];
    } search;
};

/* Reads and checks a plan in itself (layers covered once, samples add up, whole batch, in_flight
 * not growing, no GPU or rank twice, blocks that are the maximal runs) and fills defaults. Where
 * the file leaves out ranks they are -1 and there are no blocks, where it leaves out blocks the
 * tied ones are missing: eth_hpp_plan_complete fills them in. Freed with eth_hpp_plan_free. */
enum eth_hpp_status eth_hpp_plan_load(const char *path, struct eth_hpp_plan *plan,
                                      struct eth_hpp_error *err);
/* The same from a text, e.g. one that rank 0 published; `name` stands for the file in messages. */
enum eth_hpp_status eth_hpp_plan_parse(const char *name, const char *text, size_t size,
                                       struct eth_hpp_plan *plan, struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_plan_save(const struct eth_hpp_plan *plan, const char *path,
                                      struct eth_hpp_error *err);
/* The plan file's text; *text is freed by the caller. */
enum eth_hpp_status eth_hpp_plan_print(const struct eth_hpp_plan *plan, char **text,
                                       struct eth_hpp_error *err);
void eth_hpp_plan_free(struct eth_hpp_plan *plan);

/* Fills in what a file may leave out: ranks (the cluster's GPUs counted node by node) and blocks,
 * with the profile's tied tensors. Errors: INPUT where a node or GPU is not in the cluster, a
 * tensor-parallel group has unlike GPUs, or the layers are not the profile's. */
enum eth_hpp_status eth_hpp_plan_complete(struct eth_hpp_plan *plan,
                                          const struct eth_hpp_cluster *cluster,
                                          const struct eth_hpp_profile *profile,
                                          struct eth_hpp_error *err);

/* Notes the kinds of GPU of the cluster's nodes in the plan. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_plan_note_nodes(struct eth_hpp_plan *plan,
                                            const struct eth_hpp_cluster *cluster,
                                            struct eth_hpp_error *err);

/* Binds a given plan to an allocation: each of its nodes becomes a node of the cluster with the
 * same kinds of GPU (the one of its own name where that fits), GPUs and ranks follow, idle ones
 * anew. A plan that does not note kinds needs the cluster to have its very nodes. Errors: INPUT,
 * naming what the allocation lacks, which leaves the plan as it was; MEMORY. */
enum eth_hpp_status eth_hpp_plan_bind(struct eth_hpp_plan *plan,
                                      const struct eth_hpp_cluster *cluster,
                                      const struct eth_hpp_profile *profile,
                                      struct eth_hpp_error *err);

/* Gives ranks other numbers, rank r becoming rank_of[r] (count of them): where a job's ranks do not
 * count the cluster's GPUs in order. Errors: INPUT (a rank without a new number), MEMORY. */
enum eth_hpp_status eth_hpp_plan_renumber(struct eth_hpp_plan *plan, const int *rank_of, int count,
                                          struct eth_hpp_error *err);

/* Makes the plan's blocks anew: the maximal runs of layers with one owner set, then the profile's
 * tied tensors (`profile` NULL: tied blocks stay as they are). All ranks must be known. Errors:
 * MEMORY. */
enum eth_hpp_status eth_hpp_plan_make_blocks(struct eth_hpp_plan *plan,
                                             const struct eth_hpp_profile *profile,
                                             struct eth_hpp_error *err);

/* Where a rank stands in the plan. */
struct eth_hpp_place {
    int pipeline, stage, worker; /* pipeline -1: idle */
};
struct eth_hpp_place eth_hpp_plan_find_rank(const struct eth_hpp_plan *plan, int rank);

/* Ranks that the plan gives work to. */
int eth_hpp_plan_computing_ranks(const struct eth_hpp_plan *plan);

#endif
