/* A simulated step as rows of spans, and its drawings: in a terminal, as trace events, as SVG. */
#ifndef ETH_HPP_PLAN_TIMELINE_H
#define ETH_HPP_PLAN_TIMELINE_H

#include <stdio.h>

#include "plan/simulate.h"

/* A worker, or a stage of like pipelines where a plan has too many workers. */
struct eth_hpp_timeline_row {
    int pipeline, stage; /* the stage within its pipeline */
    int worker;          /* within the stage; -1: the row is the whole stage */
    int like;            /* pipelines that the row stands for, its own included */
    double forward_s,
        backward_s; /* of a micro-batch: the worker's own, the stage's may be longer */
    /* In the order of time: the stage's instructions, those of its neighbours that hand something
     * to it as RECV_ACTIVATION and RECV_GRADIENT. */
    const struct eth_hpp_span *spans;
    int span_count;
};

struct eth_hpp_timeline {
    const struct eth_hpp_plan *plan;
    const struct eth_hpp_cluster *cluster;
    struct eth_hpp_simulation simulation;
    struct eth_hpp_timeline_row *rows; /* pipeline by pipeline, stage by stage */
    int row_count;
    int left_out;               /* stages that there was no room for */
    struct eth_hpp_span *spans; /* all rows' */
    int span_count;
};

/* Simulates a completed plan (eth_hpp_plan_complete). There is a row for each worker where that
 * makes at most `most_rows`, else one for each stage of the pipelines, like pipelines once, and of
 * long pipelines some stages where even that makes more than `most_rows`. Plan and cluster must
 * outlive it. Freed with eth_hpp_timeline_free. Errors: those of eth_hpp_simulate; UNSUPPORTED: the
 * step is too long to be drawn. */
enum eth_hpp_status
eth_hpp_timeline_make(const struct eth_hpp_plan *plan, const struct eth_hpp_cluster *cluster,
                      const struct eth_hpp_profile *profile, bool blocking_transfers, int most_rows,
                      struct eth_hpp_timeline *timeline, struct eth_hpp_error *err);
void eth_hpp_timeline_free(struct eth_hpp_timeline *timeline);

/* When a row has done its part of a span: a fast worker is through with a forward or backward
 * before its stage is. */
double eth_hpp_timeline_end(const struct eth_hpp_timeline_row *row,
                            const struct eth_hpp_span *span);

/* Who a row is: "rank 3, gpu017 GPU 3, A100-SXM-40GB", "stage 1, 4 A100-SXM-40GB". */
void eth_hpp_timeline_describe_row(const struct eth_hpp_timeline *timeline,
                                   const struct eth_hpp_timeline_row *row, char *text, size_t size);
/* What pipeline a row belongs to: "pipeline 0: 12 micro-batches of 4", "pipeline 0 and 7 like it:
 * ...". */
void eth_hpp_timeline_describe_pipeline(const struct eth_hpp_timeline *timeline,
                                        const struct eth_hpp_timeline_row *row, char *text,
                                        size_t size);
/* "gpt2: step 1.23 s (compute 1.1 s, exposed sync 0.1 s, optimizer 0.03 s)" and, where the plan has
 * a bound, "; no plan is faster than 1.15 s". */
void eth_hpp_timeline_describe_step(const struct eth_hpp_timeline *timeline, char *text,
                                    size_t size);

/* ---- drawings ---- */

/* Draws the rows with letters, `columns` wide, with colours behind them or without. */
void eth_hpp_timeline_print(const struct eth_hpp_timeline *timeline, int columns, bool colour,
                            FILE *out);

/* The step as Chrome trace events, which ui.perfetto.dev and chrome://tracing open: a process for
 * each row, named after who it is, with threads for its computation, what it sends and receives,
 * and sums. *text is freed by the caller. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_trace_print(const struct eth_hpp_timeline *timeline, char **text,
                                        struct eth_hpp_error *err);

/* The step as a picture. Its size is bounded whatever the plan: what is narrower than a pixel is
 * drawn by its share. *text is freed by the caller. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_svg_print(const struct eth_hpp_timeline *timeline, char **text,
                                      struct eth_hpp_error *err);

#endif
