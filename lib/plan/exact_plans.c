/* Pipelines put together to whole plans. */
#include <stdlib.h>
#include <string.h>

#include "plan/exact_parts.h"

/* The pipelines of a plan, and the pool in which the workers of each pool stand. */
struct chosen {
    const struct eth_hpp_exact_pipeline *pipelines[ETH_HPP_EXACT_GPUS];
    int stand[ETH_HPP_EXACT_GPUS][ETH_HPP_EXACT_GPUS];
    int count;
};

static bool lay(struct eth_hpp_exact *x, const struct chosen *chosen)
{
    struct eth_hpp_layout *layout = &x->layout;
    layout->pipeline_count = layout->stage_count = layout->worker_count = 0;
    layout->sharded_optimizer = x->sharded;
    for (int i = 0; i < chosen->count; i++) {
        const struct eth_hpp_exact_pipeline *from = chosen->pipelines[i];
        if (!eth_hpp_layout_reserve(layout, 1, from->stage_count, from->worker_count))
            return false;
        layout->pipelines[layout->pipeline_count++] =
            (struct eth_hpp_layout_pipeline){.micro_batch = from->micro_batch,
                                             .micro_batches = from->micro_batches,
                                             .first_stage = layout->stage_count,
                                             .stage_count = from->stage_count};
        for (int s = 0; s < from->stage_count; s++) {
            struct eth_hpp_layout_stage *stage = &layout->stages[layout->stage_count++];
            *stage = from->stages[s];
            stage->first_worker += layout->worker_count;
        }
        for (int w = 0; w < from->worker_count; w++) {
            struct eth_hpp_layout_worker *worker = &layout->workers[layout->worker_count++];
            *worker = from->workers[w];
            worker->node = x->pools[chosen->stand[i][from->pools[w]]].node;
        }
    }
    return true;
}

/* The most micro-batches that a stage can hold, up to `most`, now that all owners are known. */
static int most_in_flight(const struct eth_hpp_exact *x, int pipeline, int s, int most)
{
    struct eth_hpp_layout_stage *stage = &x->layout.stages[s];
    int in_flight = stage->in_flight;
    for (stage->in_flight = most;
         stage->in_flight > 0 && !eth_hpp_evaluate_fits(&x->shop->evaluator, &x->layout, pipeline,
                                                        s, x->shop->options->memory_margin_bytes);)
        stage->in_flight--;
    most = stage->in_flight;
    stage->in_flight = in_flight;
    return most;
}

/* Chooses anew what is in flight of a pipeline of the layout, within x->most. */
static void settle(struct eth_hpp_exact *x, struct eth_hpp_layout_pipeline *pipeline)
{
    struct eth_hpp_layout_stage *stages = x->layout.stages + pipeline->first_stage;
    x->made.stage_count = pipeline->stage_count;
    x->until_s = x->limit_s;
    for (int i = 0; i < pipeline->stage_count; i++) {
        int s = pipeline->first_stage + i;
        struct eth_hpp_layer_time time = eth_hpp_cost_stage(x->cost, &x->layout, s, NULL);
        x->runs[i] =
            (struct eth_hpp_stage_run){.forward_s = time.forward_s, .backward_s = time.backward_s};
        if (i + 1 < pipeline->stage_count)
            x->runs[i].transfer_s = eth_hpp_cost_transfer(x->cost, &x->layout, s);
    }
    eth_hpp_exact_settle(x, pipeline->micro_batches);
    for (int i = 0; i < pipeline->stage_count; i++)
        stages[i].in_flight = x->runs[i].in_flight;
}

/* Who shares a sharded optimizer is not known when a pipeline is made: it may hold fewer in flight
 * than was hoped. False where not even one fits. */
static bool fit(struct eth_hpp_exact *x)
{
    struct eth_hpp_workshop *shop = x->shop;
    struct eth_hpp_layout *layout = &x->layout;
    if (!eth_hpp_evaluator_find_owners(&shop->evaluator, layout)) {
        shop->failed = true;
        eth_hpp_error_memory(&shop->error, "the solver");
        return false;
    }
    for (int p = 0; p < layout->pipeline_count; p++) {
        struct eth_hpp_layout_pipeline *pipeline = &layout->pipelines[p];
        int most = pipeline->micro_batches, limit = shop->options->max_in_flight;
        bool fits = true;
        most = limit > 0 && limit < most ? limit : most;
        for (int i = 0; i < pipeline->stage_count; i++) {
            most = most_in_flight(x, p, pipeline->first_stage + i, most);
            if (most == 0)
                return false;
            x->most[i] = most;
            fits = fits && layout->stages[pipeline->first_stage + i].in_flight <= most;
        }
        if (!fits)
            settle(x, pipeline);
    }
    return true;
}

static void try_plan(struct eth_hpp_exact *x, const struct chosen *chosen)
{
    struct eth_hpp_workshop *shop = x->shop;
    struct eth_hpp_step step;
    shop->considered++;
    bool laid = lay(x, chosen);
    if (laid && x->sharded && !fit(x))
        return;
    shop->work += 5 + 3 * x->layout.stage_count;
    if (!laid ||
        eth_hpp_evaluate(&shop->evaluator, &x->layout, NULL, &step, &shop->error) != ETH_HPP_OK) {
        shop->failed = true;
        eth_hpp_error_memory(&shop->error, "the solver");
        return;
    }
    if (step.step_s >= x->limit_s)
        return;
    x->limit_s = step.step_s;
    x->best_step = step;
    if (!eth_hpp_layout_copy(&x->best, &x->layout)) {
        shop->failed = true;
        eth_hpp_error_memory(&shop->error, "the solver");
    }
}

void eth_hpp_exact_try_alone(struct eth_hpp_exact *x)
{
    struct chosen chosen = {.pipelines = {&x->made}, .count = 1};
    int most[ETH_HPP_EXACT_GPUS];
    memcpy(most, x->most, sizeof(most)); /* stages stand before other ones yet */
    for (int p = 0; p < x->pool_count; p++)
        chosen.stand[0][p] = p;
    try_plan(x, &chosen);
    x->until_s = x->limit_s;
    memcpy(x->most, most, sizeof(most));
}

/* Does the use take GPUs of a node where a like one would do as well? */
static bool is_odd(const struct eth_hpp_exact *x, int free_use, int use)
{
    int there[ETH_HPP_EXACT_GPUS], taken[ETH_HPP_EXACT_GPUS];
    eth_hpp_exact_open_use(x, free_use, there);
    eth_hpp_exact_open_use(x, use, taken);
    for (int p = 0; p < x->pool_count; p++)
        for (int q = x->pools[p].like; q < p && there[p] == x->pools[p].gpus; q++)
            if (x->pools[q].like == x->pools[p].like && there[q] == there[p] && taken[q] < taken[p])
                return true;
    return false;
}

/* Adds pipelines until the batch is served. Later ones come no later in the lists, so that no set
 * is met twice. */
static void combine(struct eth_hpp_exact *x, struct chosen *chosen, int free_use, int samples,
                    int last_list, int last_index)
{
    int width = x->global_batch + 1, most = x->shop->options->max_pipelines;
    if (samples == 0) {
        try_plan(x, chosen);
        return;
    }
    if (most > 0 && chosen->count == most)
        return;
    for (int use = 1; use < x->use_count; use++) {
        if (!eth_hpp_exact_holds(x, free_use, use) || is_odd(x, free_use, use))
            continue;
        int row = eth_hpp_exact_standard(x, use, chosen->stand[chosen->count]) * width;
        x->shop->work++;
        for (int b = samples; b > 0 && b + x->serves[free_use - use] >= samples; b--) {
            const struct eth_hpp_exact_list *list = &x->lists[row + b];
            int end = row + b > last_list ? 0 : row + b == last_list ? last_index + 1 : list->count;
            end = end < list->count ? end : list->count;
            for (int i = 0; i < end && list->pipelines[i].least_s < x->limit_s; i++) {
                if (x->shop->failed || x->shop->work >= x->work_end)
                    return;
                chosen->pipelines[chosen->count++] = &list->pipelines[i];
                combine(x, chosen, free_use - use, samples - b, row + b, i);
                chosen->count--;
            }
        }
    }
}

void eth_hpp_exact_combine(struct eth_hpp_exact *x)
{
    struct chosen chosen = {.count = 0};
    combine(x, &chosen, x->use_count - 1, x->global_batch, INT32_MAX, INT32_MAX);
}
