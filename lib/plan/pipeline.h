/* One pipeline's step, event by event. */
#ifndef ETH_HPP_PLAN_PIPELINE_H
#define ETH_HPP_PLAN_PIPELINE_H

#include "base/error.h"
#include "plan/observe.h"
#include "plan/schedule.h"

/* What a stage does and how it went. */
struct eth_hpp_stage_run {
    double forward_s, backward_s; /* of one micro-batch */
    double transfer_s;            /* to the next stage, and the gradient back; 0 for the last */
    int in_flight;
    int slowest;                         /* worker whose backward is slowest: for the caller */
    const struct eth_hpp_compute *order; /* 2 x micro_batches entries; NULL: 1F1B */
    /* filled in */
    double last_start_s, last_end_s; /* of the last backward */
};

/* A run that is remembered: pipelines of up to so many stages, found by their numbers. */
enum { ETH_HPP_REMEMBERED = 1024, ETH_HPP_REMEMBERED_STAGES = 12 };
struct eth_hpp_remembered_run {
    int stage_count, micro_batches; /* 0: empty */
    double end_s;
    struct eth_hpp_stage_run stages[ETH_HPP_REMEMBERED_STAGES];
};

/* Where the times of hand-overs are kept; zeroed at the start, memory is used again. */
struct eth_hpp_pipeline_scratch {
    struct eth_hpp_remembered_run *remembered; /* [ETH_HPP_REMEMBERED]; NULL: nothing is */
    double *arrivals;
    int *position;
    double *clock; /* clock, activation channel and gradient channel of each stage */
    size_t arrival_room;
    int stage_room;
    int64_t computations;                    /* that were run so far */
    const struct eth_hpp_observer *observer; /* of runs, or NULL */
    int first_stage;                         /* what it calls the stage that comes first */
};
void eth_hpp_pipeline_scratch_free(struct eth_hpp_pipeline_scratch *scratch);

/* From now on remembers runs of 1F1B, for a search that meets the same pipelines again and again.
 * False when out of memory. */
bool eth_hpp_pipeline_remember(struct eth_hpp_pipeline_scratch *scratch);

/*
 * Runs the stages' orders: a computation starts when its stage is free and its input has arrived.
 * Transfers run beside computation on one channel a direction between neighbours, first in, first
 * out; with `blocking` the sender waits for its transfer, as in trainers that send on the stream
 * they compute on (DeepSpeed's pipeline engine does). *end_s is when the last backward of all
 * ends. Errors: INTERNAL (the orders deadlock), MEMORY.
 */
enum eth_hpp_status eth_hpp_pipeline_run(struct eth_hpp_stage_run *stages, int stage_count,
                                         int micro_batches, bool blocking,
                                         struct eth_hpp_pipeline_scratch *scratch, double *end_s,
                                         struct eth_hpp_error *err);

/* The same where the others than the first `most` micro-batches go by at the beat (below), which is
 * all but exact where these are many more than are in flight. Not with orders of their own. */
enum eth_hpp_status eth_hpp_pipeline_run_most(struct eth_hpp_stage_run *stages, int stage_count,
                                              int micro_batches, int most, bool blocking,
                                              struct eth_hpp_pipeline_scratch *scratch,
                                              double *end_s, struct eth_hpp_error *err);

/* So many as to tell no difference. */
static inline int eth_hpp_pipeline_exact(const struct eth_hpp_stage_run *stages)
{
    return 4096 + 64 * stages[0].in_flight;
}

/* How 1F1B's time grows with the micro-batches, without running it. */
struct eth_hpp_pipeline_pace {
    double beat_s;  /* of a micro-batch once the pipeline is in step: exact */
    double least_s; /* all micro-batches take at least that, and seldom some per cent more */
};

/*
 * The longest chains of waits: stages s..u go round once, down with a forward and up with a
 * backward, while the micro-batches between them advance by in_flight(s) - in_flight(u) + 1, since
 * u starts backward i only after forward i + in_flight(u) - 1, and s forward i + in_flight(s) only
 * after backward i. The beat is the largest round trip over its advance.
 */
struct eth_hpp_pipeline_pace eth_hpp_pipeline_find_pace(const struct eth_hpp_stage_run *stages,
                                                        int stage_count, int micro_batches);

#endif
