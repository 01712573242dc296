/* Pipelines put together to whole plans. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/exact_parts.h"

/* The pipelines of a plan, and the pool in which the workers of each pool stand. */
struct chosen {
    const struct eth_hpp_exact_pipeline *pipelines[ETH_HPP_EXACT_GPUS];
    int stand[ETH_HPP_EXACT_GPUS][ETH_HPP_EXACT_GPUS];
    int count;
    double from_s, until_s; /* what its slowest pipeline takes */
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

/* The first pool of a use, and what one GPU of it counts. */
static int first_pool(const struct eth_hpp_exact *x, int use, int *unit)
{
    int taken[ETH_HPP_EXACT_GPUS], p = 0;
    eth_hpp_exact_open_use(x, use, taken);
    for (*unit = 1; taken[p] == 0; p++)
        *unit *= x->pools[p].gpus + 1;
    return p;
}

/* Adds one pipeline of `use` to others of the rest of `all`. */
static void find_soonest_with(struct eth_hpp_exact *x, int all, int use, int least, int most)
{
    int stand[ETH_HPP_EXACT_GPUS], width = x->global_batch + 1;
    const struct eth_hpp_exact_list *lists =
        &x->lists[eth_hpp_exact_standard(x, use, stand) * width];
    const double *rest_s = &x->soonest_s[(all - use) * width];
    double *soonest_s = &x->soonest_s[all * width];
    for (int mine = 1; mine <= most; mine++) {
        if (lists[mine].count == 0)
            continue;
        double mine_s = lists[mine].pipelines[0].least_s;
        x->shop->work += 1 + (most - least) / 32;
        for (int b = mine > least ? mine : least; b <= most; b++)
            soonest_s[b] = fmin(soonest_s[b], fmax(mine_s, rest_s[b - mine]));
    }
}

/* Finds when the slowest of some pipelines ends at best that serve some samples with some GPUs:
 * each GPU of the first pool is left idle, or works in one of them. */
static void find_soonest(struct eth_hpp_exact *x)
{
    int width = x->global_batch + 1, whole = x->use_count - 1;
    for (int all = 0; all < x->use_count; all++) {
        double *soonest_s = &x->soonest_s[all * width];
        int least = x->global_batch - x->serves[whole - all], most = x->serves[all], unit;
        for (int b = 0; b < width; b++)
            soonest_s[b] = b > 0 ? INFINITY : 0;
        if (all == 0 || x->shop->work >= x->work_end)
            continue;
        int pool = first_pool(x, all, &unit);
        memcpy(soonest_s, &x->soonest_s[(all - unit) * width], (size_t)width * sizeof(*soonest_s));
        for (int use = 1; use <= all; use++)
            if (use / unit % (x->pools[pool].gpus + 1) > 0 && eth_hpp_exact_holds(x, all, use))
                find_soonest_with(x, all, use, least > 1 ? least : 1, most);
    }
}

/* The most that a byte of a layer's sum takes between a pool and the workers of another pipeline.
 */
static double byte_s(const struct eth_hpp_exact *x, const struct chosen *chosen, int pool,
                     int other, int layer)
{
    const struct eth_hpp_exact_pipeline *pipeline = chosen->pipelines[other];
    const struct eth_hpp_layout_stage *stage = pipeline->stages;
    double most = 0;
    while (stage->end_layer <= layer)
        stage++;
    for (int w = stage->first_worker; w < stage->first_worker + stage->worker_count; w++)
        most = fmax(most, x->byte_s[pool][chosen->stand[other][pipeline->pools[w]]]);
    return most;
}

/* The pipelines chosen so far take so long, whatever others there are. A worker of a first stage
 * takes part in the sums of all its layers, one after the other, from its last backward on; of the
 * first layer and what is tied to it from its end on. A sum is no shorter than between any two of
 * its owners. */
static double least_s(const struct eth_hpp_exact *x, const struct chosen *chosen)
{
    const struct eth_hpp_profile *profile = x->cost->profile;
    double least = 0;
    for (int i = 0; i < chosen->count; i++) {
        const struct eth_hpp_exact_pipeline *mine = chosen->pipelines[i];
        int pool = chosen->stand[i][mine->pools[0]];
        double sums_s = -mine->backward_s, first_s = 0;
        for (int l = 0; l < mine->stages[0].end_layer; l++) {
            double most = 0;
            for (int j = 0; j < chosen->count; j++)
                if (j != i)
                    most = fmax(most, byte_s(x, chosen, pool, j, l));
            sums_s += most * profile->kinds[profile->layers[l]].gradient_bytes;
        }
        for (int j = 0; j < chosen->count; j++)
            if (j != i)
                first_s =
                    fmax(first_s, x->sum_s[pool][chosen->stand[j][chosen->pipelines[j]->pools[0]]]);
        least = fmax(least, mine->least_s + fmax(sums_s, first_s));
    }
    return least;
}

/* Adds pipelines until the batch is served. Later ones come no later in the lists, so that no set
 * is met twice. Of them `slowest_s` is what the slowest so far takes. */
static void combine(struct eth_hpp_exact *x, struct chosen *chosen, int free_use, int samples,
                    int last_list, int last_index, double slowest_s)
{
    int width = x->global_batch + 1, most = x->shop->options->max_pipelines;
    if (samples == 0) {
        if (slowest_s >= chosen->from_s)
            try_plan(x, chosen);
        return;
    }
    if (most > 0 && chosen->count == most)
        return;
    for (int use = 1; use < x->use_count; use++) {
        if (!eth_hpp_exact_holds(x, free_use, use) || is_odd(x, free_use, use))
            continue;
        const double *rest_s = &x->soonest_s[(free_use - use) * width];
        int row = eth_hpp_exact_standard(x, use, chosen->stand[chosen->count]) * width;
        x->shop->work++;
        for (int b = samples; b > 0 && b + x->serves[free_use - use] >= samples; b--) {
            const struct eth_hpp_exact_list *list = &x->lists[row + b];
            int end = row + b > last_list ? 0 : row + b == last_list ? last_index + 1 : list->count;
            end = end < list->count ? end : list->count;
            for (int i = 0; i < end; i++) {
                double with_s = fmax(list->pipelines[i].least_s, slowest_s);
                if (fmax(with_s, rest_s[samples - b]) >= fmin(x->limit_s, chosen->until_s))
                    break;
                if (x->shop->failed || x->shop->work >= x->work_end)
                    return;
                chosen->pipelines[chosen->count++] = &list->pipelines[i];
                x->shop->work += chosen->count;
                if (chosen->count == 1 || least_s(x, chosen) < x->limit_s)
                    combine(x, chosen, free_use - use, samples - b, row + b, i, with_s);
                chosen->count--;
            }
        }
    }
}

/* Sets whose slowest pipeline ends early come first: there may be too many for all. */
void eth_hpp_exact_combine(struct eth_hpp_exact *x)
{
    static const double steps[] = {1e-9, 0.01, 0.03, 0.1, INFINITY};
    struct chosen chosen = {.count = 0};
    find_soonest(x);
    double soonest_s = x->soonest_s[x->use_count * (x->global_batch + 1) - 1];
    for (int i = 0; i < 5 && soonest_s < x->limit_s; i++) {
        chosen.until_s = soonest_s * (1 + steps[i]);
        combine(x, &chosen, x->use_count - 1, x->global_batch, INT32_MAX, INT32_MAX, 0);
        chosen.from_s = chosen.until_s;
    }
}
