/* The step of a whole layout: pipelines, block sums beside them, optimizer. The simulator and the
 * solver both stand on this. */
#ifndef ETH_HPP_PLAN_EVALUATE_H
#define ETH_HPP_PLAN_EVALUATE_H

#include "plan/cost.h"
#include "plan/pipeline.h"

/* A step, in seconds. step = compute + exposed sync + optimizer. */
struct eth_hpp_step {
    double step_s;
    double compute_s;      /* until the last backward of all */
    double exposed_sync_s; /* sums (and gathers) that nothing hides */
    double optimizer_s;
    double network_s; /* busy time of the busiest node's network */
    int gpus;         /* in use */
    int blocks;
};

/* Memory for one evaluation after the other; zeroed at the start. */
struct eth_hpp_evaluator {
    const struct eth_hpp_cost *cost;
    bool blocking_transfers;
    bool extrapolate; /* long pipelines by their beat, which is all but exact: for searching */
    struct eth_hpp_observer *observer; /* sees the step, or NULL; not with extrapolate */
    struct eth_hpp_pipeline_scratch pipeline;
    struct eth_hpp_stage_run *runs; /* [stage of the layout], after an evaluation */
    int run_room;
    struct eth_hpp_sums *sums; /* private */
};

void eth_hpp_evaluator_free(struct eth_hpp_evaluator *evaluator);

/* Computes the step. `orders` has the compute order of each stage, or is NULL for 1F1B. The layout
 * must be whole: layers covered, samples within what is profiled. Errors: MEMORY, INTERNAL. */
enum eth_hpp_status eth_hpp_evaluate(struct eth_hpp_evaluator *evaluator,
                                     const struct eth_hpp_layout *layout,
                                     const struct eth_hpp_compute *const *orders,
                                     struct eth_hpp_step *step, struct eth_hpp_error *err);

/* Only finds the blocks and their owners, which the memory of a sharded optimizer depends on; no
 * worker needs a node yet. False when out of memory. */
bool eth_hpp_evaluator_find_owners(struct eth_hpp_evaluator *evaluator,
                                   const struct eth_hpp_layout *layout);

/* Peak bytes of a worker of the layout; evaluate first where the optimizer is sharded, since the
 * share depends on the blocks' owners. */
double eth_hpp_evaluate_peak(const struct eth_hpp_evaluator *evaluator,
                             const struct eth_hpp_layout *layout, int pipeline, int stage,
                             int worker);

/* Do all workers of a stage fit into their memory less `margin_bytes`? As for the peak. */
bool eth_hpp_evaluate_fits(const struct eth_hpp_evaluator *evaluator,
                           const struct eth_hpp_layout *layout, int pipeline, int stage,
                           double margin_bytes);

#endif
