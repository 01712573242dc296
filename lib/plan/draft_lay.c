/* From a draft to the step of its layout: forms, memory, nodes, micro-batches. What cannot be of
 * use is dropped as soon as that is known. */
#include <math.h>
#include <stdlib.h>

#include "plan/draft_place.h"
#include "plan/sums.h"

/* What laying a draft costs however small it is; and so many computations of a pipeline that is run
 * take as long as all else of one stage. */
enum { LAY_WORK = 5, COMPUTATIONS_A_STAGE = 8 };

/* ---- forms ---- */

/* Appends one pipeline of a group, on no nodes. */
static enum eth_hpp_draft_fault make_form(struct eth_hpp_workshop *shop,
                                          const struct eth_hpp_draft_group *group)
{
    struct eth_hpp_layout *forms = &shop->forms;
    int workers = 0, layer = 0, samples[ETH_HPP_DRAFT_WORKERS];
    for (int s = 0; s < group->stage_count; s++)
        workers += eth_hpp_draft_workers(&group->stages[s]);
    if (workers > ETH_HPP_DRAFT_WORKERS)
        return ETH_HPP_DRAFT_SAMPLES;
    if (!eth_hpp_layout_reserve(forms, 1, group->stage_count, workers)) {
        shop->failed = true;
        eth_hpp_error_memory(&shop->error, "the solver");
        return ETH_HPP_DRAFT_GPUS;
    }
    forms->pipelines[forms->pipeline_count++] =
        (struct eth_hpp_layout_pipeline){.micro_batch = group->micro_batch,
                                         .first_stage = forms->stage_count,
                                         .stage_count = group->stage_count};
    for (int s = 0; s < group->stage_count; s++) {
        const struct eth_hpp_draft_stage *stage = &group->stages[s];
        if (!eth_hpp_draft_split(shop, stage, layer, group->micro_batch, samples))
            return ETH_HPP_DRAFT_SAMPLES;
        forms->stages[forms->stage_count++] =
            (struct eth_hpp_layout_stage){.first_layer = layer,
                                          .end_layer = layer + stage->layers,
                                          .tensor_parallel = shop->cost->degree[stage->degree],
                                          .recompute = stage->recompute,
                                          .first_worker = forms->worker_count,
                                          .worker_count = eth_hpp_draft_workers(stage),
                                          .others = group->replicas - 1};
        layer += stage->layers;
        for (int p = 0, at = 0; p < stage->part_count; p++)
            for (int w = 0; w < stage->parts[p].workers; w++)
                forms->workers[forms->worker_count++] = (struct eth_hpp_layout_worker){
                    .device = eth_hpp_draft_device(shop, stage, p), .samples = samples[at++]};
    }
    return ETH_HPP_DRAFT_FITS;
}

static enum eth_hpp_draft_fault make_forms(struct eth_hpp_workshop *shop,
                                           const struct eth_hpp_draft *draft)
{
    shop->forms.pipeline_count = shop->forms.stage_count = shop->forms.worker_count = 0;
    shop->forms.sharded_optimizer = draft->sharded_optimizer;
    for (int g = 0; g < draft->group_count; g++) {
        enum eth_hpp_draft_fault fault = make_form(shop, &draft->groups[g]);
        if (fault != ETH_HPP_DRAFT_FITS)
            return fault;
    }
    return ETH_HPP_DRAFT_FITS;
}

/* ---- micro-batches in flight ---- */

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

/* The most micro-batches that the memory of a form's stage can hold, at most `wanted`. */
static int most_live(struct eth_hpp_workshop *shop, int stage, int position, int wanted)
{
    const struct eth_hpp_layout_stage *st = &shop->forms.stages[stage];
    const struct eth_hpp_layout_worker *workers = shop->forms.workers + st->first_worker;
    struct eth_hpp_stage_memory memory =
        eth_hpp_cost_memory(shop->cost, eth_hpp_cost_degree(shop->cost, st->tensor_parallel),
                            st->first_layer, st->end_layer, st->recompute);
    double state = memory.state, peak;
    if (shop->forms.sharded_optimizer)
        state -= eth_hpp_sums_sharded_bytes(shop->evaluator.sums, shop->cost, &shop->forms, stage);
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

/* How many micro-batches each stage's memory could hold at most; false where not even one fits. */
static bool fit_memory(struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft)
{
    int limit = shop->options->max_in_flight;
    for (int g = 0; g < draft->group_count; g++) {
        const struct eth_hpp_draft_group *group = &draft->groups[g];
        int most = shop->options->global_batch / group->micro_batch; /* all there can be */
        most = limit > 0 && limit < most ? limit : most;
        most = most > 1 ? most : 1;
        for (int s = 0; s < group->stage_count; s++) { /* never more than the stage before */
            most = most_live(shop, shop->forms.pipelines[g].first_stage + s, s, most);
            if (most == 0)
                return false;
            shop->prices[g].runs[s].in_flight = most;
        }
    }
    return true;
}

/* The fewest micro-batches in flight with which the stages go at a beat: while s..u go round once,
 * the micro-batches between them advance by needed[s] - needed[u] + 1. False where memory holds
 * fewer. */
static bool find_needed(const struct eth_hpp_stage_run *runs, int stage_count, double beat_s,
                        int *needed)
{
    int last = stage_count - 1;
    double rate = (1 - 1e-9) / beat_s;
    needed[last] = 1;
    for (int s = last - 1; s >= 0; s--) {
        double round = runs[s].forward_s + runs[s].backward_s;
        int most = needed[s + 1];
        for (int u = s + 1; u <= last; u++) {
            round += 2 * runs[u - 1].transfer_s + runs[u].forward_s + runs[u].backward_s;
            double more = needed[u] - 1 + round * rate;
            if (more > runs[s].in_flight)
                return false;
            if (more > most)
                most = (int)more + ((int)more < more);
        }
        needed[s] = most;
    }
    return true;
}

/* Of the micro-batches that memory could hold in flight only those that keep the stages in step at
 * the shortest beat within reach: more in a later stage delay the backwards before it. Then
 * extra_in_flight more but for the last stage, which has nothing to wait for. */
static void choose_in_flight(const struct eth_hpp_draft_group *group,
                             struct eth_hpp_stage_run *runs)
{
    int needed[ETH_HPP_DRAFT_STAGES], last = group->stage_count - 1;
    double low = 0, high = 0;
    for (int s = 0; s <= last; s++) {
        low = fmax(low, fmax(runs[s].forward_s + runs[s].backward_s, runs[s].transfer_s));
        high += runs[s].forward_s + runs[s].backward_s + 2 * runs[s].transfer_s;
    }
    if (!find_needed(runs, group->stage_count, low, needed)) {
        while (high - low > 0.01 * high) {
            double middle = (low + high) / 2;
            *(find_needed(runs, group->stage_count, middle, needed) ? &high : &low) = middle;
        }
        find_needed(runs, group->stage_count, high, needed);
    }
    for (int s = 0; s <= last; s++) {
        int64_t wanted = (int64_t)needed[s] + (s < last ? group->extra_in_flight : 0);
        runs[s].in_flight = wanted < runs[s].in_flight ? (int)wanted : runs[s].in_flight;
    }
}

/* ---- time ---- */

/* What the stages of the forms compute. */
static void price_forms(struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft)
{
    for (int g = 0; g < draft->group_count; g++)
        for (int i = 0; i < draft->groups[g].stage_count; i++) {
            int s = shop->forms.pipelines[g].first_stage + i;
            struct eth_hpp_layer_time time = eth_hpp_cost_stage(shop->cost, &shop->forms, s, NULL);
            struct eth_hpp_stage_run *run = &shop->prices[g].runs[i];
            *run = (struct eth_hpp_stage_run){.forward_s = time.forward_s,
                                              .backward_s = time.backward_s,
                                              .in_flight = run->in_flight};
        }
}

/* No deal of the batch can be faster, wherever the workers stand: a pipeline's slowest stage works
 * for all its micro-batches, one after the other, and the first and last of them passes the stages
 * before it. */
static double least_s(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft)
{
    double samples = shop->options->global_batch, rate = 0, least = 0;
    for (int g = 0; g < draft->group_count; g++) {
        const struct eth_hpp_draft_group *group = &draft->groups[g];
        double passed = 0, fill = 0, beat = 0;
        for (int i = 0; i < group->stage_count; i++) {
            const struct eth_hpp_stage_run *run = &shop->prices[g].runs[i];
            double s = run->forward_s + run->backward_s;
            if (s > beat) {
                beat = s;
                fill = passed;
            }
            passed += s;
        }
        double each = (double)group->replicas * group->micro_batch / beat;
        rate += each;
        samples += each * fill;
        least = fill + beat > least ? fill + beat : least; /* every pipeline does one at least */
    }
    return samples / rate > least ? samples / rate : least;
}

/* What each group keeps in flight where its first pipeline stands, and its pace. */
static void find_paces(struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft)
{
    for (int g = 0; g < draft->group_count; g++) {
        const struct eth_hpp_draft_group *group = &draft->groups[g];
        struct eth_hpp_price *price = &shop->prices[g];
        int first = shop->layout.pipelines[shop->stands[g].begin].first_stage;
        for (int i = 0; i + 1 < group->stage_count; i++)
            price->runs[i].transfer_s = eth_hpp_cost_transfer(shop->cost, &shop->layout, first + i);
        choose_in_flight(group, price->runs);
        for (int p = shop->stands[g].begin; p < shop->stands[g].end; p++)
            for (int i = 0; i < group->stage_count; i++)
                shop->layout.stages[shop->layout.pipelines[p].first_stage + i].in_flight =
                    price->runs[i].in_flight;
        int typical = price->runs[0].in_flight + 2 * group->stage_count;
        struct eth_hpp_pipeline_pace pace =
            eth_hpp_pipeline_find_pace(price->runs, group->stage_count, typical);
        price->pace = (struct eth_hpp_pace){.fill = pace.least_s - typical * pace.beat_s,
                                            .beat = pace.beat_s,
                                            .micro_batch = group->micro_batch,
                                            .replicas = group->replicas};
    }
}

static enum eth_hpp_draft_fault deal_micro_batches(struct eth_hpp_workshop *shop,
                                                   const struct eth_hpp_draft *draft, int *counts)
{
    struct eth_hpp_pace paces[ETH_HPP_DRAFT_GROUPS];
    int more[ETH_HPP_DRAFT_GROUPS], batch = shop->options->global_batch;
    for (int g = 0; g < draft->group_count; g++)
        paces[g] = shop->prices[g].pace;
    bool even = shop->options->shape != ETH_HPP_SHAPE_HPP;
    if (even ? !eth_hpp_deal_evenly(paces, draft->group_count, batch, counts, more)
             : !eth_hpp_deal(paces, draft->group_count, batch, counts, more))
        return ETH_HPP_DRAFT_BATCH;
    for (int g = 0; g < draft->group_count; g++) {
        if (!eth_hpp_draft_give(shop, draft, g, counts[g], more[g])) {
            shop->failed = true;
            eth_hpp_error_memory(&shop->error, "the solver");
            return ETH_HPP_DRAFT_GPUS;
        }
        counts[g] += more[g] > 0;
    }
    return ETH_HPP_DRAFT_FITS;
}

/* Must the draft take longer than what is still of use? */
static bool is_too_slow(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft,
                        const int *counts)
{
    for (int g = 0; g < draft->group_count && shop->limit_s < INFINITY; g++)
        if (eth_hpp_pipeline_find_pace(shop->prices[g].runs, draft->groups[g].stage_count,
                                       counts[g])
                .least_s > shop->limit_s)
            return true;
    return false;
}

/* ---- the whole ---- */

/* Are there so many GPUs, and may there be so many pipelines? */
static bool is_within(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft)
{
    int pipelines = 0, most = shop->options->max_pipelines;
    if (!eth_hpp_draft_has_gpus(shop, draft))
        return false;
    for (int g = 0; g < draft->group_count; g++)
        pipelines += draft->groups[g].replicas;
    return most == 0 || pipelines <= most;
}

enum eth_hpp_draft_fault eth_hpp_draft_lay(struct eth_hpp_workshop *shop,
                                           const struct eth_hpp_draft *draft)
{
    enum eth_hpp_draft_fault fault;
    int counts[ETH_HPP_DRAFT_GROUPS]; /* the most micro-batches of a pipeline */
    shop->considered++;
    if (!is_within(shop, draft))
        return ETH_HPP_DRAFT_GPUS;
    if ((fault = make_forms(shop, draft)) != ETH_HPP_DRAFT_FITS)
        return fault;
    shop->work += LAY_WORK + shop->forms.stage_count;
    if (draft->sharded_optimizer && /* owners decide the shares */
        !eth_hpp_evaluator_find_owners(&shop->evaluator, &shop->forms)) {
        shop->failed = true;
        eth_hpp_error_memory(&shop->error, "the solver");
        return ETH_HPP_DRAFT_GPUS;
    }
    if (!fit_memory(shop, draft))
        return ETH_HPP_DRAFT_MEMORY;
    price_forms(shop, draft);
    if (least_s(shop, draft) > shop->limit_s)
        return ETH_HPP_DRAFT_SLOW;
    if ((fault = eth_hpp_draft_place(shop, draft)) != ETH_HPP_DRAFT_FITS)
        return fault;
    find_paces(shop, draft);
    if ((fault = deal_micro_batches(shop, draft, counts)) != ETH_HPP_DRAFT_FITS)
        return fault;
    if (is_too_slow(shop, draft, counts))
        return ETH_HPP_DRAFT_SLOW;
    int64_t computations = shop->evaluator.pipeline.computations;
    if (eth_hpp_evaluate(&shop->evaluator, &shop->layout, NULL, &shop->step, &shop->error) !=
        ETH_HPP_OK) {
        shop->failed = true;
        return ETH_HPP_DRAFT_GPUS;
    }
    computations = shop->evaluator.pipeline.computations - computations;
    shop->work += 2 * shop->layout.stage_count + computations / COMPUTATIONS_A_STAGE;
    return ETH_HPP_DRAFT_FITS;
}

double eth_hpp_draft_step_s(struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft)
{
    uint64_t key = eth_hpp_draft_key(draft);
    struct eth_hpp_draft_note *note = &shop->notes[key % ETH_HPP_DRAFT_NOTES];
    if (note->key != key || (note->step_s == 0 && note->longer_s < shop->limit_s)) {
        enum eth_hpp_draft_fault fault = eth_hpp_draft_lay(shop, draft);
        *note = (struct eth_hpp_draft_note){.key = key, .step_s = INFINITY};
        if (fault == ETH_HPP_DRAFT_FITS)
            note->step_s = shop->step.step_s;
        if (fault == ETH_HPP_DRAFT_SLOW)
            *note = (struct eth_hpp_draft_note){.key = key, .longer_s = shop->limit_s};
    } else {
        shop->considered++;
        shop->work += LAY_WORK;
    }
    bool known = note->step_s > 0 && note->step_s <= shop->limit_s;
    return known ? note->step_s : INFINITY;
}
