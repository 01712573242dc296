/*
 * `eth-hpp launch`: from an allocation to a running program. The flow stands in launch.c; each part
 * is a file of its own. Ranks are PMIx's throughout; a plan that the solver made counts the
 * cluster's GPUs instead and is renumbered once (launch_cluster.c).
 */
#ifndef ETH_HPP_LAUNCHER_LAUNCH_H
#define ETH_HPP_LAUNCHER_LAUNCH_H

#include "base/option.h"
#include "bootstrap/bootstrap.h"
#include "inventory/inventory.h"
#include "launcher/gpu.h"
#include "model/model.h"
#include "plan/cluster.h"
#include "plan/plan.h"
#include "plan/profile.h"

/* ---- what ranks tell each other ---- */

/* One rank: who it is, its GPU and what that can reach. Sent as it is: all ranks run one build,
 * which `version` and the size make sure of. */
struct eth_hpp_launch_rank {
    char version[32];
    char node[ETH_HPP_TEXT_MAX]; /* Slurm's name */
    char host[256];              /* the host's own name, where others reach it */
    int local_rank, local_size;
    struct eth_hpp_inventory_gpu gpu;
    char driver[64];
    double gpu_bandwidth;     /* its slowest link to another GPU of the node; 0 unknown */
    double network_bandwidth; /* all network cards of the node; 0 unknown */
    double card_bandwidth;    /* the fastest one, where there are several; 0: no limit of its own */
    double speed, time_scale; /* emulated device; time_scale 0: nothing is emulated */
    bool profile_tells_apart; /* rank 0: the given profile has derived devices, so that ranks
                                 are measured to know which of them they are */
    char device[ETH_HPP_NAME_MAX]; /* what it is planned as: gpu.device, or derived from it */
};

/* Measured times of one rank's device. */
enum { ETH_HPP_LAUNCH_POINTS_MAX = 12 };
struct eth_hpp_launch_times {
    int points; /* 0: nothing was measured */
    int samples[ETH_HPP_LAUNCH_POINTS_MAX];
    struct eth_hpp_layer_time times[ETH_HPP_LAUNCH_POINTS_MAX][ETH_HPP_KINDS];
    double optimizer_s_per_parameter;
    double measuring_s; /* what measuring took; 0: the times are cached ones */
};

/* ---- what is to be run ---- */

struct eth_hpp_launch_job {
    struct eth_hpp_model model;
    char model_argument[4096]; /* as the program finds it again: a preset or an absolute path */
    int sequence_length, global_batch;
    enum eth_hpp_dtype dtype;
    bool has_plan;
    struct eth_hpp_plan plan; /* the given one */
};

/* From the options, the text of a given plan (NULL: none) and what the ranks have. Errors: INPUT
 * (no model, a wrong one, options that contradict the plan), UNSUPPORTED (a dtype that the runtime
 * does not have). Freed with eth_hpp_launch_job_free. */
enum eth_hpp_status eth_hpp_launch_job_make(const struct eth_hpp_option_set *options,
                                            const char *plan_text,
                                            const struct eth_hpp_launch_rank *ranks, int count,
                                            struct eth_hpp_launch_job *job,
                                            struct eth_hpp_error *err);
void eth_hpp_launch_job_free(struct eth_hpp_launch_job *job);

/* ---- the allocation as a cluster ---- */

/* What this rank is: its node, its GPU and what the inventory knows about its links. */
void eth_hpp_launch_rank_fill(const struct eth_hpp_inventory *inventory,
                              const struct eth_hpp_inventory_gpu *gpu,
                              const struct eth_hpp_bootstrap_place *place,
                              struct eth_hpp_launch_rank *rank);

/* What the rank computes on, as eth_hpp_kernels_create takes it: its GPU, by UUID, where it has one
 * that is not emulated, else the processors. */
enum { ETH_HPP_LAUNCH_DEVICE_MAX = 128 };
void eth_hpp_launch_device(const struct eth_hpp_launch_rank *rank,
                           char device[ETH_HPP_LAUNCH_DEVICE_MAX]);

/* Refuses ranks of different versions, two ranks on one GPU, and emulated beside real devices. The
 * same on every rank. Errors: INPUT. */
enum eth_hpp_status eth_hpp_launch_ranks_check(const struct eth_hpp_launch_rank *ranks, int count,
                                               struct eth_hpp_error *err);

/* The cluster of the ranks' GPUs, nodes in the order of their first rank. (*rank_of)[g] is the rank
 * that has the cluster's GPU g, counted node by node; freed by the caller. Links that nobody has
 * measured are taken from the inventory, or assumed. Errors: INPUT (nothing known of a GPU),
 * MEMORY.
 */
enum eth_hpp_status eth_hpp_launch_cluster_make(const struct eth_hpp_launch_rank *ranks, int count,
                                                struct eth_hpp_cluster *cluster, int **rank_of,
                                                struct eth_hpp_error *err);

/* ---- the rounds ---- */

/* What a rank knows after the rounds of finding and measuring, the same on all ranks. */
struct eth_hpp_launch {
    const struct eth_hpp_option_set *options; /* eth_hpp_job_options */
    double measure_s;                         /* how long measuring a device may take */
    struct eth_hpp_inventory inventory, visible;
    struct eth_hpp_bootstrap *bootstrap;
    const struct eth_hpp_bootstrap_place *place;
    struct eth_hpp_launch_rank *ranks;  /* [size] */
    struct eth_hpp_launch_times *times; /* [size]; points 0: not measured */
    struct eth_hpp_link_measure *pairs; /* links that were measured */
    int pair_count;
    double links_s; /* what measuring them took, device start-up apart */
    struct eth_hpp_launch_job job;
    char *given_plan; /* text of --plan; NULL: none */
};

/* Finds this rank's GPU, meets the others, decides what the job is, measures devices (each within
 * about measure_s) and links.
 * Collective. Closed by eth_hpp_launch_close also after an error. Errors: all kinds; the text is
 * empty where another rank says it. */
enum eth_hpp_status eth_hpp_launch_open(struct eth_hpp_launch *launch,
                                        const struct eth_hpp_option_set *options, double measure_s,
                                        struct eth_hpp_error *err);
void eth_hpp_launch_close(struct eth_hpp_launch *launch);

/* ---- the plan ---- */

/* What planning reads. */
struct eth_hpp_launch_facts {
    struct eth_hpp_cluster cluster;
    struct eth_hpp_profile profile;
    int *rank_of; /* [cluster.gpu_count] the PMIx rank of each GPU of the cluster */
};

/* From what was measured, or the given profile, or datasheets. Gives ranks the names of derived
 * devices. Freed with eth_hpp_launch_facts_free. Errors: INPUT, MEMORY. */
enum eth_hpp_status eth_hpp_launch_facts_make(struct eth_hpp_launch *launch,
                                              struct eth_hpp_launch_facts *facts,
                                              struct eth_hpp_error *err);
void eth_hpp_launch_facts_free(struct eth_hpp_launch_facts *facts);

/* Makes the job's plan, or binds the given one to the allocation, within what the runtime can run,
 * shows it as a table on standard error, proves its programs sound, and numbers it by PMIx ranks.
 * *plan is freed by the caller. Errors: INPUT, INFEASIBLE, UNSUPPORTED (a given plan that the
 * runtime cannot run), MEMORY. */
enum eth_hpp_status eth_hpp_launch_plan_make(struct eth_hpp_launch *launch,
                                             struct eth_hpp_plan *plan, struct eth_hpp_error *err);

/* ---- the end: the program ---- */

/* Is there such a program (by $PATH, as execvp finds it)? Errors: INPUT. */
enum eth_hpp_status eth_hpp_launch_program_check(const char *program, struct eth_hpp_error *err);

/* Leaves the plan as a file in memory that this process has open, and so the program that it
 * becomes: nobody else can be in its way, and none is left behind. Errors: IO. */
enum eth_hpp_status eth_hpp_launch_plan_leave(const char *text, char *path, size_t size,
                                              struct eth_hpp_error *err);

/* A TCP port that is free on this host now, for MASTER_PORT. Errors: IO. */
enum eth_hpp_status eth_hpp_launch_port_find(int *port, struct eth_hpp_error *err);

/* Sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and ETH_HPP_* for the program. */
enum eth_hpp_status eth_hpp_launch_environment(const struct eth_hpp_bootstrap_place *place,
                                               const struct eth_hpp_launch_rank *ranks,
                                               const struct eth_hpp_launch_job *job,
                                               const char *plan_path, int port,
                                               struct eth_hpp_error *err);

#endif
