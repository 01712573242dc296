#include "plan/polish.h"

#include <math.h>
#include <stdlib.h>

/* Micro-batches in flight are changed by no more than that at once. */
enum { REACH = 12 };

struct polish {
    struct eth_hpp_workshop *shop;
    struct eth_hpp_layout *layout; /* the shop's */
    int64_t tries;
    double best_s;
};

static bool fits(const struct polish *polish)
{
    const struct eth_hpp_layout *layout = polish->layout;
    for (int p = 0; p < layout->pipeline_count; p++)
        for (int i = 0; i < layout->pipelines[p].stage_count; i++)
            if (!eth_hpp_evaluate_fits(&polish->shop->evaluator, layout, p,
                                       layout->pipelines[p].first_stage + i,
                                       polish->shop->options->memory_margin_bytes))
                return false;
    return true;
}

/* Is the layout as it stands a shorter plan? Then its step is the best one from now on. */
static bool is_better(struct polish *polish)
{
    struct eth_hpp_workshop *shop = polish->shop;
    struct eth_hpp_step step;
    if (polish->tries-- <= 0 || shop->failed)
        return false;
    shop->considered++;
    if (eth_hpp_evaluate(&shop->evaluator, polish->layout, NULL, &step, &shop->error) !=
        ETH_HPP_OK) {
        shop->failed = true;
        return false;
    }
    if (step.step_s >= polish->best_s * (1 - 1e-9) || !fits(polish))
        return false;
    polish->best_s = step.step_s;
    shop->step = step;
    return true;
}

/* ---- changes; each is undone unless it is better ---- */

static int most_samples(const struct polish *polish, const struct eth_hpp_layout_stage *stage,
                        int worker)
{
    const struct eth_hpp_cost *cost = polish->shop->cost;
    return eth_hpp_cost_most_samples(cost, polish->layout->workers[worker].device,
                                     eth_hpp_cost_degree(cost, stage->tensor_parallel));
}

/* Tries all micro-batches in flight that the stages before and behind it allow. */
static bool polish_in_flight(struct polish *polish, const struct eth_hpp_layout_pipeline *pipeline,
                             int i)
{
    struct eth_hpp_layout_stage *stages = polish->layout->stages + pipeline->first_stage;
    int given = stages[i].in_flight, limit = polish->shop->options->max_in_flight, best = given;
    int least = i + 1 < pipeline->stage_count ? stages[i + 1].in_flight : 1;
    int most = i > 0 ? stages[i - 1].in_flight : pipeline->micro_batches;
    most = limit > 0 && limit < most ? limit : most;
    for (int v = least; v <= most; v++) {
        stages[i].in_flight = v;
        if (v != given && abs(v - given) <= REACH && is_better(polish))
            best = v;
    }
    stages[i].in_flight = best;
    return best != given;
}

/* One more or one less in flight in all stages up to this one. */
static bool polish_in_flights(struct polish *polish, const struct eth_hpp_layout_pipeline *pipeline,
                              int i)
{
    struct eth_hpp_layout_stage *stages = polish->layout->stages + pipeline->first_stage;
    int limit = polish->shop->options->max_in_flight;
    for (int by = -1; by <= 1; by += 2) {
        int most = stages[0].in_flight + by, least = stages[i].in_flight + by;
        if (most > pipeline->micro_batches || (limit > 0 && most > limit) || least < 1 ||
            (i + 1 < pipeline->stage_count && least < stages[i + 1].in_flight))
            continue;
        for (int s = 0; s <= i; s++)
            stages[s].in_flight += by;
        if (is_better(polish))
            return true;
        for (int s = 0; s <= i; s++)
            stages[s].in_flight -= by;
    }
    return false;
}

/* The other choice, with as many in flight or what is best then. */
static bool polish_recompute(struct polish *polish, const struct eth_hpp_layout_pipeline *pipeline,
                             int i)
{
    struct eth_hpp_layout_stage *stage = polish->layout->stages + pipeline->first_stage + i;
    if (polish->shop->options->no_recompute)
        return false;
    stage->recompute = !stage->recompute;
    if (is_better(polish) || polish_in_flight(polish, pipeline, i))
        return true;
    stage->recompute = !stage->recompute;
    return false;
}

static bool polish_cut(struct polish *polish, const struct eth_hpp_layout_pipeline *pipeline, int i)
{
    struct eth_hpp_layout_stage *a = polish->layout->stages + pipeline->first_stage + i, *b = a + 1;
    int given = a->end_layer;
    for (int by = -1; by <= 1 && i + 1 < pipeline->stage_count; by += 2) {
        a->end_layer = b->first_layer = given + by;
        if (a->end_layer > a->first_layer && b->end_layer > b->first_layer && is_better(polish))
            return true;
        a->end_layer = b->first_layer = given;
    }
    return false;
}

static bool polish_samples(struct polish *polish, const struct eth_hpp_layout_pipeline *pipeline,
                           int i)
{
    const struct eth_hpp_layout_stage *stage = polish->layout->stages + pipeline->first_stage + i;
    struct eth_hpp_layout_worker *workers = polish->layout->workers;
    int end = stage->first_worker + stage->worker_count;
    for (int from = stage->first_worker; from < end; from++)
        for (int to = stage->first_worker; to < end; to++) {
            if (from == to || workers[from].samples == 1 ||
                workers[to].samples == most_samples(polish, stage, to))
                continue;
            workers[from].samples--;
            workers[to].samples++;
            if (is_better(polish))
                return true;
            workers[from].samples++;
            workers[to].samples--;
        }
    return false;
}

/* Moves a micro-batch from a pipeline to another of the same size. A stage holds no more in flight
 * than there are. */
static bool polish_deal(struct polish *polish, int from, int to)
{
    struct eth_hpp_layout_pipeline *a = &polish->layout->pipelines[from];
    struct eth_hpp_layout_pipeline *b = &polish->layout->pipelines[to];
    if (a->micro_batch != b->micro_batch || a->micro_batches == 1 ||
        polish->layout->stages[a->first_stage].in_flight == a->micro_batches)
        return false;
    a->micro_batches--;
    b->micro_batches++;
    if (is_better(polish))
        return true;
    a->micro_batches++;
    b->micro_batches--;
    return false;
}

/* Every change once; true if any was better. */
static bool polish_all(struct polish *polish)
{
    const struct eth_hpp_layout *layout = polish->layout;
    bool better = false;
    for (int p = 0; p < layout->pipeline_count; p++) {
        const struct eth_hpp_layout_pipeline *pipeline = &layout->pipelines[p];
        for (int i = pipeline->stage_count - 1; i >= 0; i--) {
            better |= polish_in_flight(polish, pipeline, i);
            better |= polish_in_flights(polish, pipeline, i);
            better |= polish_recompute(polish, pipeline, i);
            better |= polish_cut(polish, pipeline, i);
            better |= polish_samples(polish, pipeline, i);
        }
        for (int q = 0; q < layout->pipeline_count; q++)
            better |= q != p && polish_deal(polish, p, q);
    }
    return better;
}

void eth_hpp_polish(struct eth_hpp_workshop *shop, int64_t tries)
{
    bool extrapolate = shop->evaluator.extrapolate;
    struct polish polish = {
        .shop = shop, .layout = &shop->layout, .tries = tries, .best_s = INFINITY};
    shop->evaluator.extrapolate = false;
    for (int p = 0; p < shop->layout.pipeline_count; p++)
        shop->layout.pipelines[p].like = 0; /* from now on they may differ */
    polish.tries++;
    if (is_better(&polish)) /* the step of the plan as it is */
        while (polish_all(&polish) && polish.tries > 0)
            continue;
    shop->evaluator.extrapolate = extrapolate;
}
