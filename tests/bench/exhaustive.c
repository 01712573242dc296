#include "tests/bench/exhaustive.h"

#include <math.h>
#include <stdlib.h>

/* ---- uses: how many GPUs of each pool, as one number ---- */

void exhaustive_open_use(const struct exhaustive *x, int use, int *taken)
{
    for (int p = 0; p < x->pool_count; p++) {
        taken[p] = use % (x->pools[p].gpus + 1);
        use /= x->pools[p].gpus + 1;
    }
}

/* Does `all` hold the GPUs of `use`? *rest becomes what is left. */
static bool holds(const struct exhaustive *x, int all, int use, int *rest)
{
    int a[EXHAUSTIVE_POOLS], b[EXHAUSTIVE_POOLS];
    exhaustive_open_use(x, all, a);
    exhaustive_open_use(x, use, b);
    for (int p = 0; p < x->pool_count; p++)
        if (b[p] > a[p])
            return false;
    *rest = all - use; /* digit by digit, since none borrows */
    return true;
}

/* ---- plans ---- */

bool exhaustive_lay(struct exhaustive *x, const struct exhaustive_pipeline *pipeline)
{
    struct eth_hpp_layout *layout = &x->layout;
    if (!eth_hpp_layout_reserve(layout, 1, EXHAUSTIVE_GPUS, EXHAUSTIVE_GPUS))
        return false;
    layout->sharded_optimizer = x->sharded;
    layout->pipelines[layout->pipeline_count++] =
        (struct eth_hpp_layout_pipeline){.micro_batch = pipeline->micro_batch,
                                         .micro_batches = pipeline->micro_batches,
                                         .first_stage = layout->stage_count,
                                         .stage_count = pipeline->stage_count};
    for (int s = 0; s < pipeline->stage_count; s++) {
        const struct exhaustive_stage *stage = &pipeline->stages[s];
        layout->stages[layout->stage_count++] =
            (struct eth_hpp_layout_stage){.first_layer = stage->first_layer,
                                          .end_layer = stage->end_layer,
                                          .tensor_parallel = x->cost->degree[stage->degree],
                                          .in_flight = stage->in_flight,
                                          .recompute = stage->recompute,
                                          .first_worker = layout->worker_count,
                                          .worker_count = stage->worker_count};
        for (int w = 0; w < stage->worker_count; w++) {
            const struct exhaustive_pool *pool = &x->pools[stage->workers[w].pool];
            layout->workers[layout->worker_count++] =
                (struct eth_hpp_layout_worker){pool->node, pool->device, stage->workers[w].samples};
        }
    }
    return true;
}

static bool fits(const struct exhaustive *x)
{
    const struct eth_hpp_layout *layout = &x->layout;
    for (int p = 0; p < layout->pipeline_count; p++)
        for (int s = 0; s < layout->pipelines[p].stage_count; s++) {
            int at = layout->pipelines[p].first_stage + s;
            for (int w = 0; w < layout->stages[at].worker_count; w++) {
                int worker = layout->stages[at].first_worker + w;
                int device = layout->workers[worker].device;
                if (eth_hpp_evaluate_peak(&x->evaluator, layout, p, at, worker) >
                    x->cost->cluster->devices[device].memory_bytes)
                    return false;
            }
        }
    return true;
}

void exhaustive_try(struct exhaustive *x, const struct exhaustive_pipeline *const *pipelines,
                    int count)
{
    struct eth_hpp_step step;
    x->layout.pipeline_count = x->layout.stage_count = x->layout.worker_count = 0;
    for (int i = 0; i < count; i++)
        x->failed = x->failed || !exhaustive_lay(x, pipelines[i]);
    x->evaluated++;
    if (x->failed || eth_hpp_evaluate(&x->evaluator, &x->layout, NULL, &step, NULL) != ETH_HPP_OK) {
        x->failed = true;
        return;
    }
    if (step.step_s >= x->best_s || !fits(x))
        return;
    x->best_s = step.step_s;
    x->limit_s = step.step_s * (1 - 1e-9);
    x->failed = !eth_hpp_layout_copy(&x->best, &x->layout);
}

/* ---- all sets of pipelines ---- */

/* The pipelines chosen so far; later ones come no later in the lists, so that no set is met twice.
 */
struct chosen {
    const struct exhaustive_pipeline *pipelines[EXHAUSTIVE_GPUS];
    int count;
};

static void combine(struct exhaustive *x, struct chosen *chosen, int free_use, int samples,
                    int last_use, int last_samples, int last_index)
{
    if (samples == 0) {
        exhaustive_try(x, chosen->pipelines, chosen->count);
        return;
    }
    for (int use = 1; use <= last_use; use++) {
        int rest;
        if (!holds(x, free_use, use, &rest))
            continue;
        for (int b = 1; b <= samples; b++) {
            const struct exhaustive_list *list = &x->lists[use][b];
            int end = list->count;
            if (use == last_use && b > last_samples)
                break;
            if (use == last_use && b == last_samples && last_index < end)
                end = last_index + 1;
            if (!(x->reach[rest] >> (samples - b) & 1))
                continue;
            for (int i = 0; i < end && !x->failed; i++) {
                if (list->pipelines[i].least_s > x->limit_s)
                    continue;
                chosen->pipelines[chosen->count++] = &list->pipelines[i];
                combine(x, chosen, rest, samples - b, use, b, i);
                chosen->count--;
            }
        }
    }
}

/* Finds how many samples may be served by which GPUs, then the pipelines that do it. */
static void search(struct exhaustive *x)
{
    int all = x->use_count - 1, batch = x->global_batch;
    uint32_t serves[EXHAUSTIVE_USES] = {0};
    struct chosen chosen = {.count = 0};
    for (int use = 1; use <= all; use++)
        for (int b = 1; b <= batch && !x->failed; b++) {
            exhaustive_find_pipelines(x, use, b, NULL);
            serves[use] |= (uint32_t)x->found << b;
        }
    for (int free_use = 0; free_use <= all; free_use++) {
        x->reach[free_use] = 1;
        for (int use = 1; use <= free_use; use++) {
            int rest;
            if (!holds(x, free_use, use, &rest))
                continue;
            for (int b = 1; b <= batch; b++)
                if (serves[use] >> b & 1)
                    x->reach[free_use] |= x->reach[rest] << b;
        }
    }
    for (int use = 1; use <= all; use++)
        for (int b = 1; b <= batch && !x->failed; b++)
            if ((serves[use] >> b & 1) && (x->reach[all - use] >> (batch - b) & 1))
                exhaustive_find_pipelines(x, use, b, &x->lists[use][b]);
    if (!x->failed)
        combine(x, &chosen, all, batch, all, batch, INT32_MAX);
    for (int use = 0; use <= all; use++)
        for (int b = 0; b <= batch; b++) {
            free(x->lists[use][b].pipelines);
            x->lists[use][b] = (struct exhaustive_list){0};
        }
}

/* False where the instance is not tiny. */
static bool find_pools(struct exhaustive *x)
{
    const struct eth_hpp_cluster *cluster = x->cost->cluster;
    x->use_count = 1;
    if (cluster->gpu_count > EXHAUSTIVE_GPUS || x->global_batch > EXHAUSTIVE_BATCH)
        return false;
    for (int n = 0; n < cluster->node_count; n++)
        for (int d = 0; d < cluster->device_count; d++) {
            int gpus = 0;
            for (int g = 0; g < cluster->nodes[n].gpus; g++)
                gpus += cluster->nodes[n].devices[g] == d;
            if (gpus == 0)
                continue;
            x->pools[x->pool_count++] = (struct exhaustive_pool){n, d, gpus};
            x->use_count *= gpus + 1;
            x->gpus += gpus;
        }
    return true;
}

bool exhaustive_search(const struct eth_hpp_cost *cost, int global_batch, double known_s,
                       struct eth_hpp_layout *best, double *best_s)
{
    struct exhaustive *x = calloc(1, sizeof(*x));
    bool done = false;
    if (x == NULL)
        return false;
    x->cost = cost;
    x->evaluator.cost = cost;
    x->global_batch = global_batch;
    x->best_s = known_s;
    x->limit_s = known_s * (1 - 1e-9);
    if (find_pools(x)) {
        for (int sharded = 0; sharded < 2 && !x->failed; sharded++) {
            x->sharded = sharded > 0;
            search(x);
        }
        done = !x->failed;
    }
    if (done) {
        *best = x->best;
        *best_s = x->best_s;
    } else {
        eth_hpp_layout_free(&x->best);
    }
    eth_hpp_layout_free(&x->layout);
    eth_hpp_evaluator_free(&x->evaluator);
    free(x);
    return done;
}
