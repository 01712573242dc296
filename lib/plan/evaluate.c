#include "plan/evaluate.h"

#include <stdlib.h>

#include "plan/sums.h"

void eth_hpp_evaluator_free(struct eth_hpp_evaluator *evaluator)
{
    eth_hpp_pipeline_scratch_free(&evaluator->pipeline);
    if (evaluator->sums != NULL)
        eth_hpp_sums_free(evaluator->sums);
    free(evaluator->sums);
    free(evaluator->runs);
    *evaluator = (struct eth_hpp_evaluator){0};
}

static bool reserve(struct eth_hpp_evaluator *evaluator, int stages)
{
    if (evaluator->sums == NULL && (evaluator->sums = calloc(1, sizeof(*evaluator->sums))) == NULL)
        return false;
    if (stages <= evaluator->run_room)
        return true;
    struct eth_hpp_stage_run *runs =
        realloc(evaluator->runs, 2 * (size_t)stages * sizeof(*evaluator->runs));
    if (runs == NULL)
        return false;
    evaluator->runs = runs;
    evaluator->run_room = 2 * stages;
    return true;
}

/* What a stage computes; pipelines that are like another take that from it. */
static struct eth_hpp_stage_run time_stage(const struct eth_hpp_cost *cost,
                                           const struct eth_hpp_layout *layout, int like, int s,
                                           int i, const struct eth_hpp_stage_run *runs)
{
    struct eth_hpp_stage_run run = {0};
    if (like >= 0) {
        int other = layout->pipelines[like].first_stage + i;
        run.forward_s = runs[other].forward_s;
        run.backward_s = runs[other].backward_s;
        run.slowest = runs[other].slowest - layout->stages[other].first_worker +
                      layout->stages[s].first_worker;
        return run;
    }
    struct eth_hpp_layer_time time = eth_hpp_cost_stage(cost, layout, s, &run.slowest);
    run.forward_s = time.forward_s;
    run.backward_s = time.backward_s;
    return run;
}

/* Fills in what the stages of a pipeline take. */
static void time_stages(const struct eth_hpp_cost *cost, const struct eth_hpp_layout *layout,
                        const struct eth_hpp_layout_pipeline *pipeline,
                        const struct eth_hpp_compute *const *orders, struct eth_hpp_stage_run *runs)
{
    for (int i = 0; i < pipeline->stage_count; i++) {
        int s = pipeline->first_stage + i;
        bool last = i + 1 == pipeline->stage_count;
        runs[s] = time_stage(cost, layout, pipeline->like - 1, s, i, runs);
        runs[s].transfer_s = last ? 0 : eth_hpp_cost_transfer(cost, layout, s);
        runs[s].in_flight = layout->stages[s].in_flight;
        runs[s].order = orders != NULL ? orders[s] : NULL;
    }
}

static bool same_stage(const struct eth_hpp_stage_run *a, const struct eth_hpp_stage_run *b)
{
    return a->forward_s == b->forward_s && a->backward_s == b->backward_s &&
           a->transfer_s == b->transfer_s && a->in_flight == b->in_flight && a->order == b->order;
}

/* Like pipelines take the same time: an earlier one's run is taken over where there is one. */
static bool take_over(const struct eth_hpp_layout *layout, int p, struct eth_hpp_stage_run *runs)
{
    const struct eth_hpp_layout_pipeline *mine = &layout->pipelines[p];
    for (int q = p - 1; q >= 0; q--) {
        const struct eth_hpp_layout_pipeline *other = &layout->pipelines[q];
        bool same =
            other->stage_count == mine->stage_count && other->micro_batches == mine->micro_batches;
        for (int i = 0; same && i < mine->stage_count; i++)
            same = same_stage(&runs[mine->first_stage + i], &runs[other->first_stage + i]);
        if (!same)
            continue;
        for (int i = 0; i < mine->stage_count; i++) {
            const struct eth_hpp_stage_run *run = &runs[other->first_stage + i];
            runs[mine->first_stage + i].last_start_s = run->last_start_s;
            runs[mine->first_stage + i].last_end_s = run->last_end_s;
        }
        return true;
    }
    return false;
}

bool eth_hpp_evaluator_find_owners(struct eth_hpp_evaluator *evaluator,
                                   const struct eth_hpp_layout *layout)
{
    return reserve(evaluator, layout->stage_count) &&
           eth_hpp_sums_find_owners(evaluator->sums, evaluator->cost, layout);
}

/* Takes a pipeline to end after its longest chain of waits, with a drain that nothing holds up. */
static void reckon(struct eth_hpp_stage_run *runs, int stages, int micro_batches)
{
    double end = eth_hpp_pipeline_find_pace(runs, stages, micro_batches).least_s;
    for (int i = stages - 1; i >= 0; i--) {
        double drain = 0;
        for (int j = 0; j < i; j++)
            drain += runs[j].backward_s + runs[j].transfer_s;
        runs[i].last_end_s = end - drain;
        runs[i].last_start_s = end - drain - runs[i].backward_s;
    }
}

/* Pipelines with many more micro-batches than this a stage are in step with their slowest part;
 * where even that is more computations than COSTLY, they are reckoned. */
enum { SETTLED = 6, COSTLY = 2048 };

/* Where a search wants it quickly, fewer micro-batches are run than where it has to be exact. */
static enum eth_hpp_status run(struct eth_hpp_evaluator *evaluator,
                               const struct eth_hpp_layout_pipeline *pipeline,
                               struct eth_hpp_stage_run *runs, struct eth_hpp_error *err)
{
    int n = pipeline->micro_batches, stages = pipeline->stage_count;
    int most = evaluator->observer != NULL || runs[0].order != NULL ? n
               : evaluator->extrapolate ? 2 * (runs[0].in_flight + stages) + SETTLED
                                        : eth_hpp_pipeline_exact(runs);
    double end;
    if (evaluator->extrapolate && (n < most ? n : most) * stages > COSTLY) {
        reckon(runs, stages, n);
        return ETH_HPP_OK;
    }
    evaluator->pipeline.observer = evaluator->observer;
    evaluator->pipeline.first_stage = pipeline->first_stage;
    return eth_hpp_pipeline_run_most(runs, stages, n, most, evaluator->blocking_transfers,
                                     &evaluator->pipeline, &end, err);
}

/* What is computed from 0 on from now on begins at that time of the step. */
static void observe_from(struct eth_hpp_evaluator *evaluator, double start_s)
{
    if (evaluator->observer != NULL)
        evaluator->observer->offset_s = start_s;
}

enum eth_hpp_status eth_hpp_evaluate(struct eth_hpp_evaluator *evaluator,
                                     const struct eth_hpp_layout *layout,
                                     const struct eth_hpp_compute *const *orders,
                                     struct eth_hpp_step *step, struct eth_hpp_error *err)
{
    const struct eth_hpp_cost *cost = evaluator->cost;
    struct eth_hpp_step out = {0};
    if (!reserve(evaluator, layout->stage_count) ||
        !eth_hpp_sums_prepare(evaluator->sums, cost, layout))
        return eth_hpp_error_memory(err, "the evaluation of a plan");
    for (int p = 0; p < layout->pipeline_count; p++) {
        const struct eth_hpp_layout_pipeline *pipeline = &layout->pipelines[p];
        struct eth_hpp_stage_run *runs = evaluator->runs + pipeline->first_stage;
        time_stages(cost, layout, pipeline, orders, evaluator->runs);
        if (evaluator->observer != NULL || !take_over(layout, p, evaluator->runs)) {
            enum eth_hpp_status status = run(evaluator, pipeline, runs, err);
            if (status != ETH_HPP_OK)
                return status;
        }
        for (int i = 0; i < pipeline->stage_count; i++) {
            const struct eth_hpp_layout_stage *stage = &layout->stages[pipeline->first_stage + i];
            out.gpus += stage->worker_count * stage->tensor_parallel * (1 + stage->others);
            if (runs[i].last_end_s > out.compute_s)
                out.compute_s = runs[i].last_end_s;
        }
    }
    struct eth_hpp_sums *sums = evaluator->sums;
    sums->observer = evaluator->observer;
    double sync =
        eth_hpp_sums_end(sums, cost, layout, evaluator->runs, layout->sharded_optimizer ? 1 : 2);
    out.network_s = eth_hpp_sums_network_s(sums, cost, layout);
    double end = out.compute_s;
    end = sync > end ? sync : end;
    end = out.network_s > end ? out.network_s : end;
    observe_from(evaluator, end);
    out.optimizer_s = eth_hpp_sums_optimizer_s(sums, cost, layout);
    observe_from(evaluator, end + out.optimizer_s);
    double gather = layout->sharded_optimizer ? eth_hpp_sums_gather_s(sums, cost, layout) : 0;
    observe_from(evaluator, 0);
    out.exposed_sync_s = end - out.compute_s + gather;
    out.step_s = end + out.optimizer_s + gather;
    out.blocks = sums->layer_blocks;
    *step = out;
    return ETH_HPP_OK;
}

double eth_hpp_evaluate_peak(const struct eth_hpp_evaluator *evaluator,
                             const struct eth_hpp_layout *layout, int pipeline, int stage,
                             int worker)
{
    const struct eth_hpp_cost *cost = evaluator->cost;
    const struct eth_hpp_layout_stage *st = &layout->stages[stage];
    const struct eth_hpp_layout_worker *w = &layout->workers[worker];
    struct eth_hpp_stage_memory memory =
        eth_hpp_cost_memory(cost, eth_hpp_cost_degree(cost, st->tensor_parallel), st->first_layer,
                            st->end_layer, st->recompute);
    int n = layout->pipelines[pipeline].micro_batches;
    double state = memory.state;
    if (layout->sharded_optimizer)
        state -= eth_hpp_sums_sharded_bytes(evaluator->sums, cost, layout, stage);
    return eth_hpp_cost_peak(cost, &memory, state, w->device, w->samples,
                             n < st->in_flight ? n : st->in_flight);
}

bool eth_hpp_evaluate_fits(const struct eth_hpp_evaluator *evaluator,
                           const struct eth_hpp_layout *layout, int pipeline, int stage,
                           double margin_bytes)
{
    const struct eth_hpp_layout_stage *st = &layout->stages[stage];
    for (int w = st->first_worker; w < st->first_worker + st->worker_count; w++) {
        int device = layout->workers[w].device;
        if (eth_hpp_evaluate_peak(evaluator, layout, pipeline, stage, w) >
            evaluator->cost->cluster->devices[device].memory_bytes - margin_bytes)
            return false;
    }
    return true;
}
