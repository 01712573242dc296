#include "plan/draft.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/sums.h"

enum eth_hpp_status eth_hpp_workshop_init(struct eth_hpp_workshop *shop,
                                          const struct eth_hpp_cost *cost,
                                          const struct eth_hpp_solver_options *options,
                                          struct eth_hpp_error *err)
{
    struct eth_hpp_workshop made = {
        .cost = cost, .options = options, .least_excess = INFINITY, .limit_s = INFINITY};
    enum eth_hpp_status status = eth_hpp_pools_make(cost, &made.pools, err);
    if (status != ETH_HPP_OK)
        return status;
    if (made.pools.count == 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "the profile has times of none of the cluster's devices");
    made.evaluator.cost = cost;
    made.evaluator.extrapolate = true;
    made.first_free = calloc((size_t)made.pools.count + 1, sizeof(*made.first_free));
    for (int p = 0; made.first_free != NULL && p < made.pools.count; p++)
        made.first_free[p + 1] = made.first_free[p] + made.pools.pools[p].node_count;
    if (made.first_free != NULL)
        made.free_gpus = calloc((size_t)made.first_free[made.pools.count], sizeof(*made.free_gpus));
    int layers = cost->profile->layer_count;
    made.run_end = calloc((size_t)layers, sizeof(*made.run_end));
    for (int i = layers - 1; made.run_end != NULL && i >= 0; i--)
        made.run_end[i] = i + 1 < layers && cost->profile->layers[i] == cost->profile->layers[i + 1]
                              ? made.run_end[i + 1]
                              : i + 1;
    if (made.free_gpus == NULL || made.run_end == NULL ||
        !eth_hpp_pipeline_remember(&made.evaluator.pipeline)) {
        eth_hpp_workshop_free(&made);
        return eth_hpp_error_memory(err, "the solver");
    }
    *shop = made;
    return ETH_HPP_OK;
}

void eth_hpp_workshop_free(struct eth_hpp_workshop *shop)
{
    eth_hpp_pools_free(&shop->pools);
    eth_hpp_evaluator_free(&shop->evaluator);
    eth_hpp_layout_free(&shop->layout);
    free(shop->free_gpus);
    free(shop->first_free);
    free(shop->run_end);
}

static enum eth_hpp_draft_fault out_of_memory(struct eth_hpp_workshop *shop)
{
    shop->failed = true;
    eth_hpp_error_memory(&shop->error, "the solver");
    return ETH_HPP_DRAFT_GPUS;
}

/* ---- samples inside a stage ---- */

/* Each sample goes to the part whose worker would be done first with one more; all workers of that
 * part then have the same claim, so they get one each. */
static bool split_mixed(const struct eth_hpp_workshop *shop,
                        const struct eth_hpp_draft_stage *stage, int first_layer, int micro_batch,
                        int *total)
{
    int given = 0;
    for (int p = 0; p < stage->part_count; p++) {
        total[p] = stage->parts[p].workers; /* one each to begin with */
        given += total[p];
    }
    while (given < micro_batch) {
        int best = -1;
        double best_s = INFINITY;
        for (int p = 0; p < stage->part_count; p++) {
            int device = eth_hpp_draft_device(shop, stage, p);
            int most = eth_hpp_cost_most_samples(shop->cost, device, stage->degree);
            int samples = total[p] / stage->parts[p].workers + 1;
            if (samples > most)
                continue;
            struct eth_hpp_layer_time time =
                eth_hpp_cost_layers(shop->cost, device, stage->degree, first_layer,
                                    first_layer + stage->layers, samples, false);
            if (time.forward_s + time.backward_s < best_s) {
                best = p;
                best_s = time.forward_s + time.backward_s;
            }
        }
        if (best < 0)
            return false;
        int workers = stage->parts[best].workers, more = workers - total[best] % workers;
        more = more < micro_batch - given ? more : micro_batch - given;
        total[best] += more;
        given += more;
    }
    return true;
}

bool eth_hpp_draft_split(const struct eth_hpp_workshop *shop,
                         const struct eth_hpp_draft_stage *stage, int first_layer, int micro_batch,
                         int *samples)
{
    int total[ETH_HPP_DRAFT_PARTS] = {micro_batch}, at = 0;
    if (micro_batch < eth_hpp_draft_workers(stage))
        return false;
    if (stage->part_count > 1 && !split_mixed(shop, stage, first_layer, micro_batch, total))
        return false;
    for (int p = 0; p < stage->part_count; p++) {
        int workers = stage->parts[p].workers;
        int most = eth_hpp_cost_most_samples(shop->cost, eth_hpp_draft_device(shop, stage, p),
                                             stage->degree);
        for (int w = 0; w < workers; w++)
            samples[at++] = total[p] / workers + (w < total[p] % workers);
        if ((total[p] + workers - 1) / workers > most)
            return false;
    }
    return true;
}

/* ---- nodes ---- */

/* Takes the GPUs of a stage's part: whole in the node where they fit most closely, else in as few
 * nodes as it takes. Writes the node of each worker. */
static bool take_gpus(struct eth_hpp_workshop *shop, int pool, int workers, int tensor_parallel,
                      struct eth_hpp_layout_worker *to)
{
    const struct eth_hpp_pool *p = &shop->pools.pools[pool];
    int *left = shop->free_gpus + shop->first_free[pool];
    while (workers > 0) {
        int best = -1, need = workers * tensor_parallel;
        for (int n = 0; n < p->node_count; n++) {
            if (left[n] < tensor_parallel)
                continue;
            if (best < 0)
                best = n;
            else if (left[best] >= need ? left[n] >= need && left[n] < left[best]
                                        : left[n] > left[best])
                best = n;
            if (left[best] == need)
                break;
        }
        if (best < 0)
            return false;
        for (; workers > 0 && left[best] >= tensor_parallel; workers--) {
            left[best] -= tensor_parallel;
            to->node = p->nodes[best];
            (to++)->device = p->device;
        }
    }
    return true;
}

/* Takes the GPUs of a stage's parts of `size` GPUs; *next becomes the next smaller size. */
static bool place_stage(struct eth_hpp_workshop *shop, const struct eth_hpp_draft_stage *stage,
                        int layout_stage, int size, int *next)
{
    int at = shop->layout.stages[layout_stage].first_worker;
    int tensor_parallel = shop->cost->degree[stage->degree];
    for (int p = 0; p < stage->part_count; p++) {
        int need = stage->parts[p].workers * tensor_parallel;
        if (need < size && need > *next)
            *next = need;
        if (need == size && !take_gpus(shop, stage->parts[p].pool, stage->parts[p].workers,
                                       tensor_parallel, &shop->layout.workers[at]))
            return false;
        at += stage->parts[p].workers;
    }
    return true;
}

/* Larger parts choose their nodes first, so that small ones fill the gaps. */
static bool place(struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft)
{
    for (int p = 0; p < shop->pools.count; p++)
        for (int n = 0; n < shop->pools.pools[p].node_count; n++)
            shop->free_gpus[shop->first_free[p] + n] = shop->pools.pools[p].per_node;
    for (int size = INT32_MAX, next; size > 0; size = next) {
        int pipeline = next = 0;
        for (int g = 0; g < draft->group_count; g++) {
            const struct eth_hpp_draft_group *group = &draft->groups[g];
            int first = shop->layout.pipelines[pipeline].first_stage;
            for (int i = 0; i < group->replicas * group->stage_count; i++) {
                int s = group->by_stage ? i / group->replicas : i % group->stage_count;
                int r = group->by_stage ? i % group->replicas : i / group->stage_count;
                if (!place_stage(shop, &group->stages[s], first + r * group->stage_count + s, size,
                                 &next))
                    return false;
            }
            pipeline += group->replicas;
        }
    }
    return true;
}

/* ---- the layout without its micro-batches ---- */

static enum eth_hpp_draft_fault lay_stages(struct eth_hpp_workshop *shop,
                                           const struct eth_hpp_draft_group *group)
{
    struct eth_hpp_layout *layout = &shop->layout;
    int workers = 0, samples[ETH_HPP_DRAFT_WORKERS];
    for (int s = 0; s < group->stage_count; s++)
        workers += eth_hpp_draft_workers(&group->stages[s]);
    if (workers > ETH_HPP_DRAFT_WORKERS)
        return ETH_HPP_DRAFT_SAMPLES;
    int layer = 0, at = 0;
    for (int s = 0; s < group->stage_count; layer += group->stages[s++].layers) {
        if (!eth_hpp_draft_split(shop, &group->stages[s], layer, group->micro_batch, samples + at))
            return ETH_HPP_DRAFT_SAMPLES;
        at += eth_hpp_draft_workers(&group->stages[s]);
    }
    if (!eth_hpp_layout_reserve(layout, group->replicas, group->replicas * group->stage_count,
                                group->replicas * workers))
        return out_of_memory(shop);
    for (int r = 0; r < group->replicas; r++) {
        layout->pipelines[layout->pipeline_count++] =
            (struct eth_hpp_layout_pipeline){.micro_batch = group->micro_batch,
                                             .first_stage = layout->stage_count,
                                             .stage_count = group->stage_count};
        layer = at = 0;
        for (int s = 0; s < group->stage_count; s++) {
            const struct eth_hpp_draft_stage *stage = &group->stages[s];
            int count = eth_hpp_draft_workers(stage);
            layout->stages[layout->stage_count++] =
                (struct eth_hpp_layout_stage){.first_layer = layer,
                                              .end_layer = layer + stage->layers,
                                              .tensor_parallel = shop->cost->degree[stage->degree],
                                              .recompute = stage->recompute,
                                              .first_worker = layout->worker_count,
                                              .worker_count = count};
            layer += stage->layers;
            for (int w = 0; w < count; w++)
                layout->workers[layout->worker_count++].samples = samples[at++];
        }
    }
    return ETH_HPP_DRAFT_FITS;
}

/* ---- micro-batches in flight ---- */

void eth_hpp_workshop_note_excess(struct eth_hpp_workshop *shop, int stage, int device, double peak,
                                  double limit)
{
    const struct eth_hpp_device *kind = &shop->cost->cluster->devices[device];
    if (peak <= limit || peak / limit >= shop->least_excess)
        return;
    shop->least_excess = peak / limit;
    snprintf(shop->excess, sizeof(shop->excess),
             "the best try needs %.2f GiB of the %.2f GiB of a %s in stage %d of its pipeline",
             peak / (1 << 30), limit / (1 << 30), kind->name, stage);
}

/* The most micro-batches that a worker's memory can hold, at most `wanted`; 0 where not even one
 * fits, and then *peak is what one takes. */
static int live_within(const struct eth_hpp_cost *cost, const struct eth_hpp_stage_memory *memory,
                       double state, const struct eth_hpp_layout_worker *worker, double limit,
                       int wanted, double *peak)
{
    int live = wanted;
    double each = worker->samples * memory->kept;
    *peak = eth_hpp_cost_peak(cost, memory, state, worker->device, worker->samples, live);
    if (*peak <= limit)
        return live;
    double over = each > 0 ? floor((*peak - limit) / each) : live;
    live = over < live - 1 ? live - (int)over : 1; /* may still be one too many */
    while ((*peak = eth_hpp_cost_peak(cost, memory, state, worker->device, worker->samples,
                                      live > 0 ? live : 1)) > limit &&
           live > 0)
        live--;
    return live;
}

/* The most micro-batches that a stage's memory can hold, at most `wanted`. */
static int most_live(struct eth_hpp_workshop *shop, int stage, int position, int wanted)
{
    const struct eth_hpp_layout_stage *st = &shop->layout.stages[stage];
    const struct eth_hpp_layout_worker *workers = shop->layout.workers + st->first_worker;
    struct eth_hpp_stage_memory memory =
        eth_hpp_cost_memory(shop->cost, eth_hpp_cost_degree(shop->cost, st->tensor_parallel),
                            st->first_layer, st->end_layer, st->recompute);
    double state = memory.state, peak;
    if (shop->layout.sharded_optimizer)
        state -= eth_hpp_sums_sharded_bytes(shop->evaluator.sums, shop->cost, &shop->layout, stage);
    int live = wanted;
    for (int w = 0; w < st->worker_count; w++) {
        if (w > 0 && workers[w].device == workers[w - 1].device &&
            workers[w].samples == workers[w - 1].samples)
            continue;
        double limit = shop->cost->cluster->devices[workers[w].device].memory_bytes -
                       shop->options->memory_margin_bytes;
        live = live_within(shop->cost, &memory, state, &workers[w], limit, live, &peak);
        if (live == 0) {
            eth_hpp_workshop_note_excess(shop, position, workers[w].device, peak, limit);
            return 0;
        }
    }
    return live;
}

/* Like replicas share their numbers unless their blocks differ, which they do not. */
static bool fit_in_flight(struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft)
{
    struct eth_hpp_layout *layout = &shop->layout;
    int pipeline = 0, limit = shop->options->max_in_flight;
    for (int g = 0; g < draft->group_count; g++) {
        const struct eth_hpp_draft_group *group = &draft->groups[g];
        int before = shop->options->global_batch / group->micro_batch; /* all there can be */
        before = before > 1 ? before : 1;
        for (int s = 0; s < group->stage_count; s++) {
            int first = layout->pipelines[pipeline].first_stage + s;
            int wanted = group->stage_count - s + group->extra_in_flight;
            wanted = wanted < before ? wanted : before;
            wanted = limit > 0 && limit < wanted ? limit : wanted;
            int live = most_live(shop, first, s, wanted);
            if (live == 0)
                return false;
            for (int r = 0; r < group->replicas; r++)
                layout->stages[first + r * group->stage_count].in_flight = live;
            before = live;
        }
        pipeline += group->replicas;
    }
    return true;
}

/* ---- micro-batches of each pipeline ---- */

/* What the stages of a pipeline take. */
static void time_stages(const struct eth_hpp_workshop *shop, int pipeline,
                        struct eth_hpp_stage_run *runs)
{
    const struct eth_hpp_layout_pipeline *p = &shop->layout.pipelines[pipeline];
    for (int i = 0; i < p->stage_count; i++) {
        int s = p->first_stage + i, slowest;
        struct eth_hpp_layer_time time = eth_hpp_cost_stage(shop->cost, &shop->layout, s, &slowest);
        runs[i] = (struct eth_hpp_stage_run){
            .forward_s = time.forward_s,
            .backward_s = time.backward_s,
            .transfer_s =
                i + 1 < p->stage_count ? eth_hpp_cost_transfer(shop->cost, &shop->layout, s) : 0,
            .in_flight = shop->layout.stages[s].in_flight};
    }
}

static struct eth_hpp_pace find_pace(const struct eth_hpp_workshop *shop, int pipeline,
                                     const struct eth_hpp_draft_group *group)
{
    struct eth_hpp_stage_run runs[ETH_HPP_DRAFT_STAGES];
    time_stages(shop, pipeline, runs);
    int typical = runs[0].in_flight + 2 * group->stage_count;
    struct eth_hpp_pipeline_pace pace =
        eth_hpp_pipeline_find_pace(runs, group->stage_count, typical);
    return (struct eth_hpp_pace){.fill = pace.least_s - typical * pace.beat_s,
                                 .beat = pace.beat_s,
                                 .micro_batch = group->micro_batch,
                                 .replicas = group->replicas};
}

static enum eth_hpp_draft_fault deal_micro_batches(struct eth_hpp_workshop *shop,
                                                   const struct eth_hpp_draft *draft)
{
    struct eth_hpp_pace paces[ETH_HPP_DRAFT_GROUPS];
    int counts[ETH_HPP_DRAFT_GROUPS], more[ETH_HPP_DRAFT_GROUPS], pipeline = 0;
    int batch = shop->options->global_batch;
    for (int g = 0; g < draft->group_count; g++) {
        paces[g] = find_pace(shop, pipeline, &draft->groups[g]);
        pipeline += paces[g].replicas;
    }
    bool even = shop->options->shape != ETH_HPP_SHAPE_HPP;
    if (even ? !eth_hpp_deal_evenly(paces, draft->group_count, batch, counts, more)
             : !eth_hpp_deal(paces, draft->group_count, batch, counts, more))
        return ETH_HPP_DRAFT_BATCH;
    pipeline = 0;
    for (int g = 0; g < draft->group_count; g++)
        for (int r = 0; r < paces[g].replicas; r++, pipeline++) {
            struct eth_hpp_layout_pipeline *p = &shop->layout.pipelines[pipeline];
            p->micro_batches = counts[g] + (r < more[g]);
            for (int i = 0; i < p->stage_count; i++) {
                struct eth_hpp_layout_stage *stage = &shop->layout.stages[p->first_stage + i];
                if (stage->in_flight > p->micro_batches)
                    stage->in_flight = p->micro_batches;
            }
        }
    return ETH_HPP_DRAFT_FITS;
}

/* Must the draft take longer than what is still of use? */
static bool is_too_slow(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft)
{
    struct eth_hpp_stage_run runs[ETH_HPP_DRAFT_STAGES];
    int pipeline = 0;
    for (int g = 0; g < draft->group_count && shop->limit_s < INFINITY; g++) {
        time_stages(shop, pipeline, runs);
        if (eth_hpp_pipeline_find_pace(runs, draft->groups[g].stage_count,
                                       shop->layout.pipelines[pipeline].micro_batches)
                .least_s > shop->limit_s)
            return true;
        pipeline += draft->groups[g].replicas;
    }
    return false;
}

/* ---- the whole ---- */

enum eth_hpp_draft_fault eth_hpp_draft_lay(struct eth_hpp_workshop *shop,
                                           const struct eth_hpp_draft *draft)
{
    struct eth_hpp_layout *layout = &shop->layout;
    enum eth_hpp_draft_fault fault;
    shop->considered++;
    int pipelines = 0;
    for (int p = 0; p < shop->pools.count; p++)
        if (eth_hpp_draft_used(shop, draft, p) > shop->pools.pools[p].gpus)
            return ETH_HPP_DRAFT_GPUS;
    layout->pipeline_count = layout->stage_count = layout->worker_count = 0;
    layout->sharded_optimizer = draft->sharded_optimizer;
    for (int g = 0; g < draft->group_count; g++) {
        pipelines += draft->groups[g].replicas;
        if ((fault = lay_stages(shop, &draft->groups[g])) != ETH_HPP_DRAFT_FITS)
            return fault;
    }
    if (shop->options->max_pipelines > 0 && pipelines > shop->options->max_pipelines)
        return ETH_HPP_DRAFT_GPUS;
    if (!place(shop, draft))
        return ETH_HPP_DRAFT_GPUS;
    if (draft->sharded_optimizer &&
        !eth_hpp_evaluator_prepare(&shop->evaluator, layout)) /* owners decide the shares */
        return out_of_memory(shop);
    if (!fit_in_flight(shop, draft))
        return ETH_HPP_DRAFT_MEMORY;
    if ((fault = deal_micro_batches(shop, draft)) != ETH_HPP_DRAFT_FITS)
        return fault;
    if (is_too_slow(shop, draft))
        return ETH_HPP_DRAFT_SLOW;
    if (eth_hpp_evaluate(&shop->evaluator, layout, NULL, &shop->step, &shop->error) != ETH_HPP_OK) {
        shop->failed = true;
        return ETH_HPP_DRAFT_GPUS;
    }
    return ETH_HPP_DRAFT_FITS;
}
