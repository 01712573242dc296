/* Trainings of a tiny transformer on ranks with emulated GPUs, or on the CPU, by any plan. */
#ifndef ETH_HPP_TESTS_GPU_RUN_H
#define ETH_HPP_TESTS_GPU_RUN_H

#include "emulation/ranks.h"
#include "models/transformer.h"
#include "runtime/context.h"
#include "tiny_plan.h"

enum { GPU_STEPS_MAX = 8 };

/* With what planning calls the same layers as the tiny model of tiny_model.h; no dropout in the
 * second. */
extern const struct eth_hpp_model gpu_gpt, gpu_llama;

struct gpu_run {
    const struct eth_hpp_model *model;
    enum eth_hpp_dtype dtype;
    const char *optimizer;         /* replicated or sharded */
    const char *device[RANKS_MAX]; /* by rank */
    bool unlike; /* each rank's GPU is another model, with more processors than the last */
    const char *transport; /* that several ranks are to use; NULL: any */
    int steps;
    const char *folder; /* of checkpoints: one is taken up where there is any, and one left at the
                           end; NULL: none */
    int check_replicas; /* as in struct eth_hpp_init_options */
    /* In each rank, before each of its steps: to let things go wrong, or look at them; or NULL. */
    void (*before)(struct eth_hpp_context *context);
    char plan_path[64];
    /* In memory that the ranks share: what each step said on each rank. */
    struct eth_hpp_metrics (*metrics)[GPU_STEPS_MAX];
};

/* All ranks on one device; the rest as in a C initialiser. */
struct gpu_run gpu_run_make(const struct eth_hpp_model *model, enum eth_hpp_dtype dtype,
                            const char *device);

/* Runs the plan of these pipelines (tiny_plan.h); `result` says how the ranks ended. Ranks that it
 * does not name are idle. */
void gpu_run_ranks(struct gpu_run *run, int ranks, const char *pipelines,
                   struct ranks_result *result);
/* The same where all ranks are to end well: else the test fails, with the name. */
void gpu_run_well(struct gpu_run *run, int ranks, const char *pipelines, const char *name);
void gpu_run_free(struct gpu_run *run);

#define ONE_RANK PIPELINE(4, 2, STAGE(0, 6, "", WORKER(0, 4)))
#define CHAIN    PIPELINE(2, 4, STAGE(0, 3, "", WORKER(0, 2)) "," STAGE(3, 6, "", WORKER(1, 2)))
#define UNLIKE                                                                                     \
    PIPELINE(2, 3, STAGE(0, 2, "", WORKER(0, 2)) "," STAGE(2, 6, "", WORKER(1, 2)))                \
    "," PIPELINE(1, 2, STAGE(0, 6, "", WORKER(2, 1)))
#define SHARING                                                                                    \
    PIPELINE(4, 2, STAGE(0, 3, "", WORKER(0, 3) "," WORKER(1, 1)) "," STAGE(3, 6, "", WORKER(2, 4)))

#endif
