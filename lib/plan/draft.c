#include "plan/draft.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/sums.h"

enum { WORKERS_MAX = 4096 };

enum eth_hpp_status eth_hpp_workshop_init(struct eth_hpp_workshop *shop,
                                          const struct eth_hpp_cost *cost,
                                          const struct eth_hpp_solver_options *options,
                                          struct eth_hpp_error *err)
{
    struct eth_hpp_workshop made = {.cost = cost, .options = options, .least_excess = INFINITY};
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
    if (made.free_gpus == NULL || !eth_hpp_pipeline_remember(&made.evaluator.pipeline)) {
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
}

static enum eth_hpp_draft_fault out_of_memory(struct eth_hpp_workshop *shop)
{
    shop->failed = true;
    eth_hpp_error_memory(&shop->error, "the solver");
    return ETH_HPP_DRAFT_GPUS;
}

int eth_hpp_draft_workers(const struct eth_hpp_draft_stage *stage)
{
    int workers = 0;
    for (int p = 0; p < stage->part_count; p++)
        workers += stage->parts[p].workers;
    return workers;
}

int eth_hpp_draft_used(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft,
                       int pool)
{
    int used = 0;
    for (int g = 0; g < draft->group_count; g++)
        for (int s = 0; s < draft->groups[g].stage_count; s++) {
            const struct eth_hpp_draft_stage *stage = &draft->groups[g].stages[s];
            for (int p = 0; p < stage->part_count; p++)
                if (stage->parts[p].pool == pool)
                    used += draft->groups[g].replicas * stage->parts[p].workers *
                            shop->cost->degree[stage->degree];
        }
    return used;
}

void eth_hpp_draft_copy(struct eth_hpp_draft *to, const struct eth_hpp_draft *from)
{
    to->sharded_optimizer = from->sharded_optimizer;
    to->group_count = from->group_count;
    for (int g = 0; g < from->group_count; g++) {
        const struct eth_hpp_draft_group *group = &from->groups[g];
        memcpy(&to->groups[g], group,
               offsetof(struct eth_hpp_draft_group, stages) +
                   (size_t)group->stage_count * sizeof(group->stages[0]));
    }
}

/* ---- samples inside a stage ---- */

static int device_of(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft_stage *stage,
                     int part)
{
    return shop->pools.pools[stage->parts[part].pool].device;
}

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
            int device = device_of(shop, stage, p);
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
        int most = eth_hpp_cost_most_samples(shop->cost, device_of(shop, stage, p), stage->degree);
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
            *to++ = (struct eth_hpp_layout_worker){.node = p->nodes[best], .device = p->device};
        }
    }
    return true;
}

/* Larger parts choose their nodes first, so that small ones fill the gaps. */
static bool place(struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft)
{
    for (int p = 0; p < shop->pools.count; p++)
        for (int n = 0; n < shop->pools.pools[p].node_count; n++)
            shop->free_gpus[shop->first_free[p] + n] = shop->pools.pools[p].per_node;
    int size = INT32_MAX;
    while (size > 0) {
        int next = 0, pipeline = 0;
        for (int g = 0; g < draft->group_count; g++)
            for (int r = 0; r < draft->groups[g].replicas; r++, pipeline++)
                for (int s = 0; s < draft->groups[g].stage_count; s++) {
                    const struct eth_hpp_draft_stage *stage = &draft->groups[g].stages[s];
                    int at = shop->layout.stages[shop->layout.pipelines[pipeline].first_stage + s]
                                 .first_worker;
                    for (int p = 0; p < stage->part_count; p++) {
                        int tensor_parallel = shop->cost->degree[stage->degree];
                        int need = stage->parts[p].workers * tensor_parallel;
                        if (need < size && need > next)
                            next = need;
                        if (need == size &&
                            !take_gpus(shop, stage->parts[p].pool, stage->parts[p].workers,
                                       tensor_parallel, &shop->layout.workers[at]))
                            return false;
                        at += stage->parts[p].workers;
                    }
                }
        size = next;
    }
    return true;
}

/* ---- the layout without its micro-batches ---- */

static enum eth_hpp_draft_fault lay_stages(struct eth_hpp_workshop *shop,
                                           const struct eth_hpp_draft_group *group)
{
    struct eth_hpp_layout *layout = &shop->layout;
    int workers = 0, samples[WORKERS_MAX];
    for (int s = 0; s < group->stage_count; s++)
        workers += eth_hpp_draft_workers(&group->stages[s]);
    if (workers > WORKERS_MAX)
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
            layout->worker_count += count;
        }
    }
    return ETH_HPP_DRAFT_FITS;
}

/* Samples are written after the nodes, which overwrite the workers. */
static void write_samples(struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft)
{
    int samples[WORKERS_MAX], pipeline = 0;
    for (int g = 0; g < draft->group_count; g++) {
        const struct eth_hpp_draft_group *group = &draft->groups[g];
        for (int s = 0, layer = 0; s < group->stage_count; layer += group->stages[s++].layers) {
            eth_hpp_draft_split(shop, &group->stages[s], layer, group->micro_batch, samples);
            for (int r = 0; r < group->replicas; r++) {
                const struct eth_hpp_layout_stage *stage =
                    &shop->layout.stages[shop->layout.pipelines[pipeline + r].first_stage + s];
                for (int w = 0; w < stage->worker_count; w++)
                    shop->layout.workers[stage->first_worker + w].samples = samples[w];
            }
        }
        pipeline += group->replicas;
    }
}

/* ---- micro-batches in flight ---- */

static void note_excess(struct eth_hpp_workshop *shop, int stage, int device, double peak,
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

/* The most micro-batches that a stage's memory can hold, at most `wanted`. */
static int most_live(struct eth_hpp_workshop *shop, int stage, int position, int wanted)
{
    const struct eth_hpp_layout_stage *st = &shop->layout.stages[stage];
    struct eth_hpp_stage_memory memory =
        eth_hpp_cost_memory(shop->cost, eth_hpp_cost_degree(shop->cost, st->tensor_parallel),
                            st->first_layer, st->end_layer, st->recompute);
    double state = memory.state;
    if (shop->layout.sharded_optimizer)
        state -= eth_hpp_sums_sharded_bytes(shop->evaluator.sums, shop->cost, &shop->layout, stage);
    int live = wanted;
    for (int w = 0; w < st->worker_count; w++) {
        const struct eth_hpp_layout_worker *worker = &shop->layout.workers[st->first_worker + w];
        double limit = shop->cost->cluster->devices[worker->device].memory_bytes -
                       shop->options->memory_margin_bytes;
        double peak;
        while ((peak = eth_hpp_cost_peak(shop->cost, &memory, state, worker->device,
                                         worker->samples, live > 0 ? live : 1)) > limit &&
               live > 0)
            live--;
        if (live == 0) {
            note_excess(shop, position, worker->device, peak, limit);
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
        int before = INT32_MAX;
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

/* A pipeline of n micro-batches takes about fill + n x beat. */
struct pace {
    double fill, beat;
    int micro_batch, replicas;
};

static bool find_pace(struct eth_hpp_workshop *shop, int pipeline, struct pace *pace)
{
    const struct eth_hpp_layout_pipeline *p = &shop->layout.pipelines[pipeline];
    struct eth_hpp_stage_run runs[ETH_HPP_DRAFT_STAGES];
    double ends[2];
    int deepest = shop->layout.stages[p->first_stage].in_flight + p->stage_count;
    int counts[2] = {deepest + 1, deepest + 5};
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
    for (int k = 0; k < 2; k++)
        if (eth_hpp_pipeline_run(runs, p->stage_count, counts[k], false, &shop->evaluator.pipeline,
                                 &ends[k], &shop->error) != ETH_HPP_OK) {
            shop->failed = true;
            return false;
        }
    pace->beat = (ends[1] - ends[0]) / (counts[1] - counts[0]);
    pace->fill = ends[0] - counts[0] * pace->beat;
    return true;
}

static double pace_s(const struct pace *pace, int n)
{
    return pace->fill + n * pace->beat;
}

/* Micro-batches that every replica of a group can do within `s`, at least one. */
static int within(const struct pace *pace, double s)
{
    double n = floor((s - pace->fill) / pace->beat);
    return n < 1 ? 1 : n > 1e9 ? 1000000000 : (int)n;
}

static int64_t dealt(const struct pace *paces, int groups, double s)
{
    int64_t samples = 0;
    for (int g = 0; g < groups; g++)
        samples += (int64_t)paces[g].replicas * paces[g].micro_batch * within(&paces[g], s);
    return samples;
}

/* What is left over takes one more micro-batch of the pipelines that finish it first; a rest that
 * is no micro-batch is made by giving some back elsewhere. Replicas [0, more[g]) do one more. */
static bool deal_rest(const struct pace *paces, int groups, int *counts, int *more, int64_t rest)
{
    while (rest > 0) {
        int best = -1;
        for (int g = 0; g < groups; g++)
            if (paces[g].micro_batch <= rest && more[g] < paces[g].replicas &&
                (best < 0 ||
                 pace_s(&paces[g], counts[g] + 1) < pace_s(&paces[best], counts[best] + 1)))
                best = g;
        if (best < 0)
            break;
        int64_t can = rest / paces[best].micro_batch;
        int room = paces[best].replicas - more[best];
        int step = can < room ? (int)can : room;
        more[best] += step;
        rest -= (int64_t)step * paces[best].micro_batch;
        if (more[best] == paces[best].replicas) {
            counts[best]++;
            more[best] = 0;
        }
    }
    return rest == 0;
}

/* Deals the batch to the groups so that they end together. */
static bool deal(const struct pace *paces, int groups, int global_batch, int *counts, int *more)
{
    double low = 0, high = 1e-9;
    if (dealt(paces, groups, low) > global_batch)
        return false;
    while (dealt(paces, groups, high) <= global_batch)
        high *= 2;
    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        *(dealt(paces, groups, middle) <= global_batch ? &low : &high) = middle;
    }
    int64_t rest = global_batch - dealt(paces, groups, low);
    for (int g = 0; g < groups; g++)
        counts[g] = within(&paces[g], low);
    int start[ETH_HPP_DRAFT_GROUPS];
    memcpy(start, counts, (size_t)groups * sizeof(*counts));
    for (int g = -1; g < groups; g++) /* g gives back `back` micro-batches of each replica */
        for (int back = 0; back < 8; back++) {
            if ((g < 0) != (back == 0) || (g >= 0 && start[g] - back < 1))
                continue;
            memcpy(counts, start, (size_t)groups * sizeof(*counts));
            memset(more, 0, (size_t)groups * sizeof(*more));
            int64_t given = 0;
            if (g >= 0) {
                counts[g] -= back;
                given = (int64_t)back * paces[g].micro_batch * paces[g].replicas;
            }
            if (deal_rest(paces, groups, counts, more, rest + given))
                return true;
        }
    return false;
}

/* Even data: every pipeline does the same number of micro-batches of the same size. */
static bool deal_evenly(const struct pace *paces, int groups, int global_batch, int *counts,
                        int *more)
{
    int64_t round = 0;
    for (int g = 0; g < groups; g++) {
        if (paces[g].micro_batch != paces[0].micro_batch)
            return false;
        round += (int64_t)paces[g].replicas * paces[g].micro_batch;
    }
    for (int g = 0; g < groups; g++) {
        counts[g] = (int)(global_batch / round);
        more[g] = 0;
    }
    return global_batch % round == 0 && counts[0] > 0;
}

static enum eth_hpp_draft_fault deal_micro_batches(struct eth_hpp_workshop *shop,
                                                   const struct eth_hpp_draft *draft)
{
    struct pace paces[ETH_HPP_DRAFT_GROUPS];
    int counts[ETH_HPP_DRAFT_GROUPS], more[ETH_HPP_DRAFT_GROUPS], pipeline = 0;
    int batch = shop->options->global_batch;
    for (int g = 0; g < draft->group_count; g++) {
        paces[g] = (struct pace){.micro_batch = draft->groups[g].micro_batch,
                                 .replicas = draft->groups[g].replicas};
        if (!find_pace(shop, pipeline, &paces[g]))
            return ETH_HPP_DRAFT_BATCH;
        pipeline += paces[g].replicas;
    }
    bool even = shop->options->shape != ETH_HPP_SHAPE_HPP;
    if (even ? !deal_evenly(paces, draft->group_count, batch, counts, more)
             : !deal(paces, draft->group_count, batch, counts, more))
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
    write_samples(shop, draft);
    if (draft->sharded_optimizer &&
        !eth_hpp_evaluator_prepare(&shop->evaluator, layout)) /* owners decide the shares */
        return out_of_memory(shop);
    if (!fit_in_flight(shop, draft))
        return ETH_HPP_DRAFT_MEMORY;
    if ((fault = deal_micro_batches(shop, draft)) != ETH_HPP_DRAFT_FITS)
        return fault;
    if (eth_hpp_evaluate(&shop->evaluator, layout, NULL, &shop->step, &shop->error) != ETH_HPP_OK) {
        shop->failed = true;
        return ETH_HPP_DRAFT_GPUS;
    }
    return ETH_HPP_DRAFT_FITS;
}

/* ---- layer cuts ---- */

/* What a stage may hold and takes, layer kind by layer kind. */
struct appetite {
    double seconds[ETH_HPP_LAYER_KINDS_MAX]; /* forward + backward of a layer, slowest worker */
    double limit[ETH_HPP_DRAFT_PARTS];       /* memory of each part's device */
    int device[ETH_HPP_DRAFT_PARTS], samples[ETH_HPP_DRAFT_PARTS]; /* the most of a worker */
    int parts, live;
    double optimizer_share; /* of the optimizer's state that stays here */
};

static void find_appetite(const struct eth_hpp_workshop *shop,
                          const struct eth_hpp_draft_stage *stage, const int *samples, int live,
                          double optimizer_share, struct appetite *out)
{
    const struct eth_hpp_cost *cost = shop->cost;
    *out = (struct appetite){
        .parts = stage->part_count, .live = live, .optimizer_share = optimizer_share};
    for (int p = 0, at = 0; p < stage->part_count; at += stage->parts[p++].workers) {
        out->device[p] = device_of(shop, stage, p);
        out->samples[p] = samples[at]; /* larger shares come first */
        out->limit[p] = cost->cluster->devices[out->device[p]].memory_bytes -
                        shop->options->memory_margin_bytes;
        for (int k = 0; k < cost->profile->kind_count; k++) {
            struct eth_hpp_layer_time t =
                eth_hpp_cost_layer(cost, out->device[p], stage->degree, k, out->samples[p]);
            double s = t.backward_s + t.forward_s * (stage->recompute ? 2 : 1);
            out->seconds[k] = s > out->seconds[k] ? s : out->seconds[k];
        }
    }
}

static bool fits_memory(const struct eth_hpp_workshop *shop,
                        const struct eth_hpp_draft_stage *stage, const struct appetite *appetite,
                        int first, int end)
{
    struct eth_hpp_stage_memory memory =
        eth_hpp_cost_memory(shop->cost, stage->degree, first, end, stage->recompute);
    double state = memory.state - (1 - appetite->optimizer_share) * memory.optimizer;
    for (int p = 0; p < appetite->parts; p++)
        if (eth_hpp_cost_peak(shop->cost, &memory, state, appetite->device[p], appetite->samples[p],
                              appetite->live) > appetite->limit[p])
            return false;
    return true;
}

/* Lets each stage in turn take as many layers as its time and memory allow; true if all are taken
 * and every stage has one. */
static bool cut_within(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft_group *group,
                       const struct appetite *appetites, double s, int *layers)
{
    const struct eth_hpp_profile *profile = shop->cost->profile;
    int layer = 0;
    for (int i = 0; i < group->stage_count; i++) {
        int first = layer, keep = group->stage_count - 1 - i; /* one layer for each later stage */
        double spent = 0;
        while (layer < profile->layer_count - keep) {
            spent += appetites[i].seconds[profile->layers[layer]];
            if (spent > s || !fits_memory(shop, &group->stages[i], &appetites[i], first, layer + 1))
                break;
            layer++;
        }
        layers[i] = layer - first;
        if (layers[i] == 0)
            return false;
    }
    return layer == profile->layer_count;
}

/* Where no cut fits: by how much memory falls short at least, if that is closer than any try
 * before. The limits are widened until a cut fits; its fullest stage is what is short. */
static void note_shortage(struct eth_hpp_workshop *shop, const struct eth_hpp_draft_group *group,
                          struct appetite *appetites, double seconds)
{
    int layers[ETH_HPP_DRAFT_STAGES], stages = group->stage_count;
    double low = 1, high = shop->least_excess < 1e6 ? shop->least_excess : 1e6, factor = high;
    double limits[ETH_HPP_DRAFT_STAGES][ETH_HPP_DRAFT_PARTS];
    for (int i = 0; i < stages; i++)
        memcpy(limits[i], appetites[i].limit, sizeof(limits[i]));
    for (int turn = 0; turn < 20; turn++) {
        for (int i = 0; i < stages; i++)
            for (int p = 0; p < appetites[i].parts; p++)
                appetites[i].limit[p] = limits[i][p] * factor;
        bool fits = cut_within(shop, group, appetites, seconds, layers);
        if (!fits && turn == 0)
            return;
        *(fits ? &high : &low) = factor;
        factor = (low + high) / 2;
    }
    for (int i = 0; i < stages; i++)
        for (int p = 0; p < appetites[i].parts; p++)
            appetites[i].limit[p] = limits[i][p] * high;
    if (!cut_within(shop, group, appetites, seconds, layers))
        return;
    double worst = 0, peak = 0, limit = 1;
    int where = 0, device = 0;
    for (int i = 0, first = 0; i < stages; first += layers[i++]) {
        const struct eth_hpp_draft_stage *stage = &group->stages[i];
        struct eth_hpp_stage_memory memory = eth_hpp_cost_memory(
            shop->cost, stage->degree, first, first + layers[i], stage->recompute);
        double state = memory.state - (1 - appetites[i].optimizer_share) * memory.optimizer;
        for (int p = 0; p < appetites[i].parts; p++) {
            double bytes = eth_hpp_cost_peak(shop->cost, &memory, state, appetites[i].device[p],
                                             appetites[i].samples[p], 1);
            if (bytes / limits[i][p] <= worst)
                continue;
            worst = bytes / limits[i][p];
            peak = bytes;
            limit = limits[i][p];
            where = i;
            device = appetites[i].device[p];
        }
    }
    note_excess(shop, where, device, peak, limit);
}

/* The least number of owners of any block: every pipeline holds all layers. */
static int count_owners(const struct eth_hpp_draft *draft)
{
    int owners = 0;
    for (int g = 0; g < draft->group_count; g++)
        owners += draft->groups[g].replicas;
    return owners;
}

/* Speeds are compared on a layer of the middle, before the cuts are known. */
static bool find_appetites(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft,
                           const struct eth_hpp_draft_group *group, bool lean,
                           struct appetite *appetites)
{
    int samples[WORKERS_MAX], middle = shop->cost->profile->layer_count / 2;
    double share = draft->sharded_optimizer ? 1.0 / count_owners(draft) : 1;
    for (int i = 0; i < group->stage_count; i++) {
        struct eth_hpp_draft_stage typical = group->stages[i];
        typical.layers = 1;
        if (eth_hpp_draft_workers(&typical) > WORKERS_MAX ||
            !eth_hpp_draft_split(shop, &typical, middle, group->micro_batch, samples))
            return false;
        find_appetite(shop, &group->stages[i], samples, lean ? 1 : group->stage_count - i, share,
                      &appetites[i]);
    }
    return true;
}

bool eth_hpp_draft_balance(struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft, int index,
                           double *beat_s)
{
    struct eth_hpp_draft_group *group = &draft->groups[index];
    struct appetite appetites[ETH_HPP_DRAFT_STAGES];
    int layers[ETH_HPP_DRAFT_STAGES], best[ETH_HPP_DRAFT_STAGES], stages = group->stage_count;
    if (stages > shop->cost->profile->layer_count)
        return false;
    for (int lean = 0; lean < 2; lean++) { /* with 1F1B's micro-batches in flight, else with one */
        double high = 0, low = 0;
        if (!find_appetites(shop, draft, group, lean, appetites))
            return false;
        for (int i = 0; i < stages; i++)
            for (int k = 0; k < shop->cost->profile->kind_count; k++)
                high += appetites[i].seconds[k] * shop->cost->profile->layer_count;
        if (!cut_within(shop, group, appetites, high, best)) {
            if (lean)
                note_shortage(shop, group, appetites, high);
            continue;
        }
        for (int turn = 0; turn < 30 && high - low > 1e-4 * high; turn++) {
            double middle = (low + high) / 2;
            if (cut_within(shop, group, appetites, middle, layers)) {
                high = middle;
                memcpy(best, layers, (size_t)stages * sizeof(*best));
            } else {
                low = middle;
            }
        }
        for (int i = 0; i < stages; i++)
            group->stages[i].layers = best[i];
        if (beat_s != NULL)
            *beat_s = high;
        return true;
    }
    return false;
}
