/*
 * Drafts: plans as the solver thinks of them. A group stands for like pipelines; a stage's workers
 * are counted by pool. Everything else of a plan (nodes, samples of each worker, micro-batches of
 * each pipeline, micro-batches in flight) follows from the draft by rules.
 */
#ifndef ETH_HPP_PLAN_DRAFT_H
#define ETH_HPP_PLAN_DRAFT_H

#include "plan/deal.h"
#include "plan/evaluate.h"
#include "plan/pools.h"
#include "plan/solver.h"
#include "plan/yard.h"

enum {
    ETH_HPP_DRAFT_GROUPS = ETH_HPP_DEAL_GROUPS,
    ETH_HPP_DRAFT_STAGES = 96,
    ETH_HPP_DRAFT_PARTS = 6,
    ETH_HPP_DRAFT_WORKERS = 4096 /* of a pipeline */
};

struct eth_hpp_draft_stage {
    int layers;
    int degree; /* index of the tensor parallelism in cost.degree */
    bool recompute;
    int part_count;
    struct {
        int pool, workers;
    } parts[ETH_HPP_DRAFT_PARTS];
};

struct eth_hpp_draft_group {
    int replicas, micro_batch;
    int extra_in_flight; /* beyond what keeps the stages in step, where memory allows */
    /* Nodes go to one stage of all pipelines after the other, rather than to one pipeline after the
     * other: sums then stay inside nodes and activations cross them. */
    bool by_stage;
    bool uncut; /* its layers are yet to be cut anew: the search does that once all moves are made
                 */
    int stage_count;
    struct eth_hpp_draft_stage stages[ETH_HPP_DRAFT_STAGES];
};

struct eth_hpp_draft {
    bool sharded_optimizer;
    int group_count;
    struct eth_hpp_draft_group groups[ETH_HPP_DRAFT_GROUPS];
};

/* Why a draft makes no plan, from the least to the most promising. */
enum eth_hpp_draft_fault {
    ETH_HPP_DRAFT_FITS,
    ETH_HPP_DRAFT_GPUS,    /* uses more than there are, or a group does not fit into nodes */
    ETH_HPP_DRAFT_SAMPLES, /* a worker without samples, or with more than was profiled */
    ETH_HPP_DRAFT_SLOW,    /* cannot be faster than the workshop's limit_s */
    ETH_HPP_DRAFT_BATCH,   /* micro-batches do not add up to the global batch */
    ETH_HPP_DRAFT_MEMORY
};

/* Where the pipelines of a group are in the layout. */
struct eth_hpp_stand {
    int begin, end;   /* but for those that were split off for their micro-batches */
    int fold, folded; /* so many pipelines from there stand for several of each; 0: none do */
    int *stride;      /* [pool] nodes from one copy of them to the next */
};

/* What a pipeline of a group takes. */
struct eth_hpp_price {
    struct eth_hpp_stage_run runs[ETH_HPP_DRAFT_STAGES];
    struct eth_hpp_pace pace;
};

/* What is known of a draft that was laid before: its step, INFINITY where it makes no plan, or that
 * it takes longer than so many seconds. */
enum { ETH_HPP_DRAFT_NOTES = 8192 };
struct eth_hpp_draft_note {
    uint64_t key; /* 0: nothing */
    double step_s, longer_s;
};

/* The workshop of one search: everything that laying out a draft needs. */
struct eth_hpp_workshop {
    const struct eth_hpp_cost *cost;
    const struct eth_hpp_solver_options *options;
    struct eth_hpp_pools pools;
    struct eth_hpp_evaluator evaluator;
    struct eth_hpp_layout forms;  /* one pipeline of each group, on no nodes */
    struct eth_hpp_price *prices; /* [group] of its form */
    struct eth_hpp_layout layout; /* of the draft laid out last */
    struct eth_hpp_stand *stands; /* [group] in the layout */
    struct eth_hpp_yard yard;
    int *smallest; /* [pool] for the placing of a group */
    int *used;     /* [pool] GPUs, for the laying out of a draft; 0 between two */
    bool unfolded; /* every pipeline of the layout stands for itself alone */
    struct eth_hpp_step step;
    enum eth_hpp_effort effort; /* of the search at hand: a thorough one begins with a quick one */
    int64_t considered;
    int64_t work;     /* done so far, in stages looked at: what a search's effort is measured by */
    int least_owners; /* of a block where its optimizer is sharded, whatever the draft says */
    double limit_s;   /* drafts that must take longer are not evaluated; INFINITY: all are */
    int *run_end;     /* [layer] end of the run of like layers that it stands in, */
    int *run_begin;   /* and its first layer */
    struct eth_hpp_draft_note *notes; /* [ETH_HPP_DRAFT_NOTES] by key */
    /* The draft that came closest to fitting: how far over memory, and where. */
    double least_excess;
    char excess[256];
    struct eth_hpp_error error; /* out of memory */
    bool failed;
};

/* Errors: MEMORY, INPUT (no device has times). */
enum eth_hpp_status eth_hpp_workshop_init(struct eth_hpp_workshop *shop,
                                          const struct eth_hpp_cost *cost,
                                          const struct eth_hpp_solver_options *options,
                                          struct eth_hpp_error *err);
void eth_hpp_workshop_free(struct eth_hpp_workshop *shop);

/* Notes a worker that needs `peak` of `limit` bytes in this stage of its pipeline, if no try before
 * came closer to fitting. */
void eth_hpp_workshop_note_excess(struct eth_hpp_workshop *shop, int stage, int device, double peak,
                                  double limit);

/* Lays out a draft and evaluates its step: shop->layout and shop->step. Like pipelines on like
 * nodes are laid out once, with their number, unless the shop is unfolded: the time that takes does
 * not grow with the GPUs of a kind. */
enum eth_hpp_draft_fault eth_hpp_draft_lay(struct eth_hpp_workshop *shop,
                                           const struct eth_hpp_draft *draft);

/* The draft's step, or INFINITY where it makes no plan or takes longer than shop->limit_s. Searches
 * come by the same drafts again and again: where it was laid before that is looked up, and
 * shop->layout and shop->step are not of this draft. */
double eth_hpp_draft_step_s(struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft);

/* Cuts the layers of the draft's group anew so that its slowest stage is as fast as memory allows.
 * *beat_s (may be NULL) is the longest beat of use, INFINITY where any is, and becomes the seconds
 * of a micro-batch, hand-overs left out. False where no cut fits, which leaves the group as it was,
 * and *beat_s but where no cut takes that little even were memory no matter: then it is INFINITY.
 */
bool eth_hpp_draft_balance(struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft, int group,
                           double *beat_s);

/* GPUs that the draft uses of a pool. */
int eth_hpp_draft_used(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft,
                       int pool);

/* Are there as many GPUs as the draft uses? In a time of what it has, not of all pools, of which
 * unlike nodes make thousands. */
bool eth_hpp_draft_has_gpus(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft);

/* A number that drafts that differ do not share, but by a chance of 1 in 2^64; never 0. */
uint64_t eth_hpp_draft_key(const struct eth_hpp_draft *draft);

/* Has it at least one pipeline, stage, sample and worker of each kind that it names? */
bool eth_hpp_draft_is_staffed(const struct eth_hpp_draft *draft);
/* Has every stage layers, and do they add up? */
bool eth_hpp_draft_has_layers(const struct eth_hpp_draft *draft, int layers);

/* Makes one group of groups that are alike. */
void eth_hpp_draft_join(struct eth_hpp_draft *draft);

void eth_hpp_draft_swap(struct eth_hpp_draft *a, struct eth_hpp_draft *b);
/* Copies what is in use. */
void eth_hpp_draft_copy(struct eth_hpp_draft *to, const struct eth_hpp_draft *from);

/* Splits a micro-batch over a stage's workers by speed: samples[i] of the workers in part order,
 * larger shares first within a part. False where a worker would get none or more than profiled. */
bool eth_hpp_draft_split(const struct eth_hpp_workshop *shop,
                         const struct eth_hpp_draft_stage *stage, int first_layer, int micro_batch,
                         int *samples);

/* The kind of GPU of a part of a stage. */
int eth_hpp_draft_device(const struct eth_hpp_workshop *shop,
                         const struct eth_hpp_draft_stage *stage, int part);

/* Workers of a stage. */
int eth_hpp_draft_workers(const struct eth_hpp_draft_stage *stage);

#endif
