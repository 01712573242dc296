/* Where the layers of a group of pipelines are cut. */
#include <math.h>

#include "plan/draft.h"

#include <string.h>

/* A cut looks at each stage again and again. */
enum { CUT_WORK = 3 };

/* What a stage may hold and takes, layer kind by layer kind. */
struct appetite {
    double seconds[ETH_HPP_LAYER_KINDS_MAX]; /* forward + backward of a layer, slowest worker */
    double limit[ETH_HPP_DRAFT_PARTS];       /* memory of each part's device */
    int device[ETH_HPP_DRAFT_PARTS], samples[ETH_HPP_DRAFT_PARTS]; /* the most of a worker */
    int parts, live;
    double optimizer_share; /* of the optimizer's state that stays here */
};

static void find_appetite(const struct eth_hpp_workshop *shop,
                          const struct eth_hpp_draft_stage *stage, const int *samples,
                          double optimizer_share, struct appetite *out)
{
    const struct eth_hpp_cost *cost = shop->cost;
    *out = (struct appetite){
        .parts = stage->part_count, .live = 1, .optimizer_share = optimizer_share};
    for (int p = 0, at = 0; p < stage->part_count; at += stage->parts[p++].workers) {
        out->device[p] = eth_hpp_draft_device(shop, stage, p);
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

/* What a stage that grows layer by layer holds. */
struct filling {
    struct eth_hpp_stage_memory memory;
    unsigned kinds; /* of its layers */
};

/* Adds a layer to a stage, as eth_hpp_cost_memory would count it. */
static void take_layer(const struct eth_hpp_cost *cost, const struct eth_hpp_draft_stage *stage,
                       int layer, struct filling *filling)
{
    const struct eth_hpp_profile *profile = cost->profile;
    const struct eth_hpp_profile_memory *memory = cost->memory[stage->degree];
    int kind = profile->layers[layer];
    const struct eth_hpp_layer_memory *one = &memory->kinds[kind];
    struct eth_hpp_stage_memory *sum = &filling->memory;
    unsigned kinds = filling->kinds | 1u << kind;
    sum->state += one->state_bytes;
    sum->optimizer += one->optimizer_bytes;
    sum->workspace = sum->workspace > one->workspace_bytes ? sum->workspace : one->workspace_bytes;
    if (!stage->recompute) {
        sum->kept += one->saved_bytes;
    } else {
        sum->layer = sum->layer > one->saved_bytes ? sum->layer : one->saved_bytes;
        if (layer > 0) /* the input is the output of the layer before */
            sum->kept += profile->kinds[profile->layers[layer - 1]].output_bytes;
    }
    for (int t = 0; t < profile->tied_count && kinds != filling->kinds; t++)
        if ((profile->tied[t].kinds & kinds) != 0 &&
            (profile->tied[t].kinds & filling->kinds) == 0) {
            sum->state += memory->tied[t].state_bytes;
            sum->optimizer += memory->tied[t].optimizer_bytes;
        }
    filling->kinds = kinds;
}

/* Resident bytes of what is held. */
static double state_of(const struct appetite *appetite, const struct eth_hpp_stage_memory *memory)
{
    return memory->state - (1 - appetite->optimizer_share) * memory->optimizer;
}

static bool fits_memory(const struct eth_hpp_workshop *shop, const struct appetite *appetite,
                        const struct eth_hpp_stage_memory *memory)
{
    double state = state_of(appetite, memory);
    for (int p = 0; p < appetite->parts; p++)
        if (eth_hpp_cost_peak(shop->cost, memory, state, appetite->device[p], appetite->samples[p],
                              appetite->live) > appetite->limit[p])
            return false;
    return true;
}

/* How many of `most` more layers like the one taken last fit; they are taken. */
static int take_like_layers(const struct eth_hpp_workshop *shop,
                            const struct eth_hpp_draft_stage *stage,
                            const struct appetite *appetite, int kind, int most,
                            struct filling *filling)
{
    const struct eth_hpp_layer_memory *one = &shop->cost->memory[stage->degree]->kinds[kind];
    struct eth_hpp_stage_memory *sum = &filling->memory;
    double kept =
        stage->recompute ? shop->cost->profile->kinds[kind].output_bytes : one->saved_bytes;
    double resident = one->state_bytes - (1 - appetite->optimizer_share) * one->optimizer_bytes;
    double state = state_of(appetite, sum);
    for (int p = 0; p < appetite->parts; p++) {
        double left =
            appetite->limit[p] - eth_hpp_cost_peak(shop->cost, sum, state, appetite->device[p],
                                                   appetite->samples[p], appetite->live);
        double each = resident + (double)appetite->samples[p] * appetite->live * kept;
        if (left < most * each)
            most = (int)(left / each);
    }
    sum->state += most * one->state_bytes;
    sum->optimizer += most * one->optimizer_bytes;
    sum->kept += most * kept;
    return most;
}

/* Lets a stage take layers from `first` on, up to `end`, as its time and memory allow; returns the
 * first layer that it leaves. */
static int fill_stage(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft_stage *stage,
                      const struct appetite *appetite, double s, int first, int end)
{
    struct filling filling = {0};
    double spent = 0;
    for (int layer = first; layer < end;) {
        int kind = shop->cost->profile->layers[layer];
        int like = (shop->run_end[layer] < end ? shop->run_end[layer] : end) - layer;
        double each = appetite->seconds[kind];
        if (spent + like * each > s)
            like = (int)((s - spent) / each * (1 + 1e-12));
        if (like == 0)
            return layer;
        take_layer(shop->cost, stage, layer, &filling);
        if (!fits_memory(shop, appetite, &filling.memory))
            return layer;
        int taken = 1 + take_like_layers(shop, stage, appetite, kind, like - 1, &filling);
        layer += taken;
        spent += taken * each;
        if (taken < like)
            return layer;
    }
    return end;
}

/* Lets each stage in turn take as many layers as its time and memory allow; true if all are taken
 * and every stage has one. */
static bool cut_within(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft_group *group,
                       const struct appetite *appetites, double s, int *layers)
{
    int layer = 0, all = shop->cost->profile->layer_count;
    for (int i = 0; i < group->stage_count; i++) {
        int later = group->stage_count - 1 - i; /* one layer for each later stage */
        int end = fill_stage(shop, &group->stages[i], &appetites[i], s, layer, all - later);
        layers[i] = end - layer;
        if (layers[i] == 0)
            return false;
        layer = end;
    }
    return layer == all;
}

/* Seconds of layers in a stage. */
static double seconds_of(const struct eth_hpp_workshop *shop, const struct appetite *appetite,
                         int first, int end)
{
    double s = 0;
    for (int k = 0; k < shop->cost->profile->kind_count; k++)
        s += appetite->seconds[k] * eth_hpp_cost_count(shop->cost, k, first, end);
    return s;
}

/* Seconds of the slowest stage of a cut. */
static double slowest(const struct eth_hpp_workshop *shop, const struct appetite *appetites,
                      const int *layers, int stages)
{
    double worst = 0;
    for (int i = 0, layer = 0; i < stages; layer += layers[i++]) {
        double s = seconds_of(shop, &appetites[i], layer, layer + layers[i]);
        worst = s > worst ? s : worst;
    }
    return worst;
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
        double state = state_of(&appetites[i], &memory);
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
    eth_hpp_workshop_note_excess(shop, where, device, peak, limit);
}

/* The least number of owners of any block: every pipeline holds all layers. */
static int count_owners(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft)
{
    int owners = 0;
    for (int g = 0; g < draft->group_count; g++)
        owners += draft->groups[g].replicas;
    return owners > shop->least_owners ? owners : shop->least_owners;
}

/* Do the workers of both stages take the same time for a layer? */
static bool like_workers(const struct eth_hpp_draft_stage *a, const struct eth_hpp_draft_stage *b)
{
    return a->degree == b->degree && a->recompute == b->recompute &&
           a->part_count == b->part_count &&
           memcmp(a->parts, b->parts, (size_t)a->part_count * sizeof(a->parts[0])) == 0;
}

/* Speeds are compared on a layer of the middle, before the cuts are known. */
static bool find_appetites(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft,
                           const struct eth_hpp_draft_group *group, struct appetite *appetites)
{
    int samples[ETH_HPP_DRAFT_WORKERS], middle = shop->cost->profile->layer_count / 2;
    double share = draft->sharded_optimizer ? 1.0 / count_owners(shop, draft) : 1;
    for (int i = 0; i < group->stage_count; i++) {
        struct eth_hpp_draft_stage typical = group->stages[i];
        if (i > 0 && like_workers(&group->stages[i], &group->stages[i - 1])) {
            appetites[i] = appetites[i - 1];
            continue;
        }
        typical.layers = 1;
        if (eth_hpp_draft_workers(&typical) > ETH_HPP_DRAFT_WORKERS ||
            !eth_hpp_draft_split(shop, &typical, middle, group->micro_batch, samples))
            return false;
        find_appetite(shop, &group->stages[i], samples, share, &appetites[i]);
    }
    return true;
}

/* The beat if layers could be cut at any place and memory were no matter. */
static double perfect_s(const struct eth_hpp_workshop *shop, const struct appetite *appetites,
                        int stages)
{
    double rate = 0;
    for (int i = 0; i < stages; i++)
        rate += 1 / seconds_of(shop, &appetites[i], 0, shop->cost->profile->layer_count);
    return 1 / rate;
}

/* The beat of a cut whose memory does not hold 1F1B's micro-batches: stages then wait for each
 * other's round trips. */
static double lean_beat_s(const struct eth_hpp_workshop *shop,
                          const struct eth_hpp_draft_group *group, const struct appetite *appetites,
                          const int *layers)
{
    struct eth_hpp_stage_run runs[ETH_HPP_DRAFT_STAGES] = {0};
    int stages = group->stage_count, before = stages;
    for (int i = 0, layer = 0; i < stages; layer += layers[i++]) {
        struct appetite more = appetites[i];
        struct eth_hpp_stage_memory memory =
            eth_hpp_cost_memory(shop->cost, group->stages[i].degree, layer, layer + layers[i],
                                group->stages[i].recompute);
        runs[i].backward_s = seconds_of(shop, &appetites[i], layer, layer + layers[i]);
        before = before < stages - i ? before : stages - i;
        while (more.live < before) {
            more.live++;
            if (!fits_memory(shop, &more, &memory))
                break;
            runs[i].in_flight = more.live;
        }
        runs[i].in_flight = runs[i].in_flight > 0 ? runs[i].in_flight : 1;
        before = runs[i].in_flight;
    }
    return eth_hpp_pipeline_find_pace(runs, stages, 4 * stages).beat_s;
}

bool eth_hpp_draft_balance(struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft, int index,
                           double *beat_s)
{
    struct eth_hpp_draft_group *group = &draft->groups[index];
    struct appetite appetites[ETH_HPP_DRAFT_STAGES];
    int layers[ETH_HPP_DRAFT_STAGES], best[ETH_HPP_DRAFT_STAGES], stages = group->stage_count;
    shop->work += CUT_WORK * stages;
    if (stages > shop->cost->profile->layer_count)
        return false;
    if (!find_appetites(shop, draft, group, appetites))
        return false;
    double perfect = perfect_s(shop, appetites, stages);
    if (beat_s != NULL && perfect > *beat_s) {
        *beat_s = INFINITY;
        return false;
    }
    for (int lean = 0; lean < 2; lean++) { /* with 1F1B's micro-batches in flight, else with one */
        double high = 0, low = 0;
        for (int i = 0; i < stages; i++)
            appetites[i].live = lean ? 1 : stages - i;
        for (int i = 0; i < stages; i++)
            for (int k = 0; k < shop->cost->profile->kind_count; k++)
                high += appetites[i].seconds[k] * shop->cost->profile->layer_count;
        bool limited = beat_s != NULL && *beat_s < high;
        if (!cut_within(shop, group, appetites, limited ? *beat_s : high, best)) {
            if (lean && !limited)
                note_shortage(shop, group, appetites, high);
            continue;
        }
        high = slowest(shop, appetites, best, stages);
        double middle = 0.9 * perfect; /* seldom within reach */
        for (int turn = 0; turn < 30 && high - low > 1e-3 * high; turn++) {
            if (cut_within(shop, group, appetites, middle, layers)) {
                memcpy(best, layers, (size_t)stages * sizeof(*best));
                high = slowest(shop, appetites, best, stages);
            } else {
                low = middle;
            }
            middle = (low + high) / 2;
        }
        for (int i = 0; i < stages; i++)
            group->stages[i].layers = best[i];
        if (beat_s != NULL)
            *beat_s = lean ? lean_beat_s(shop, group, appetites, best) : high;
        return true;
    }
    return false;
}
