#include "plan/classes.h"

#include <math.h>

static const int widths[] = {1, 2, 4, 8};
static const int counts[] = {1,  2,  3,  4,  5,  6,  8,   10,  12, 16,
                             20, 24, 32, 48, 64, 96, 128, 256, 512};
enum { WIDTHS = 4, COUNTS = 19, OPTIONS_KEPT = 3, MICRO_BATCH_MAX = 256 };

bool eth_hpp_classes_has_degree(const struct eth_hpp_workshop *shop, int pool, int degree)
{
    const struct eth_hpp_pool *p = &shop->pools.pools[pool];
    return eth_hpp_cost_most_samples(shop->cost, p->device, degree) > 0 &&
           shop->cost->degree[degree] <= p->per_node;
}

bool eth_hpp_classes_may_use(const struct eth_hpp_workshop *shop, int degree)
{
    int most = shop->options->max_tensor_parallel;
    return most == 0 || shop->cost->degree[degree] <= most;
}

int eth_hpp_classes_order(const struct eth_hpp_workshop *shop, unsigned mask, bool reversed,
                          int *order)
{
    const struct eth_hpp_device *devices = shop->cost->cluster->devices;
    int count = 0;
    for (int p = 0; p < ETH_HPP_CLASSES_POOLS; p++) {
        if (!(mask >> p & 1))
            continue;
        int at = count++;
        double memory = devices[shop->pools.pools[p].device].memory_bytes;
        for (; at > 0; at--) {
            double before = devices[shop->pools.pools[order[at - 1]].device].memory_bytes;
            if (reversed ? before <= memory : before >= memory)
                break;
            order[at] = order[at - 1];
        }
        order[at] = p;
    }
    return count;
}

/* Forward and backward of the average layer. */
static double average_layer_s(const struct eth_hpp_workshop *shop, int pool, int degree,
                              int samples)
{
    const struct eth_hpp_cost *cost = shop->cost;
    int layers = cost->profile->layer_count;
    struct eth_hpp_layer_time time = eth_hpp_cost_layers(cost, shop->pools.pools[pool].device,
                                                         degree, 0, layers, samples, false);
    return (time.forward_s + time.backward_s) / layers;
}

double eth_hpp_classes_rate(const struct eth_hpp_workshop *shop, int pool)
{
    const struct eth_hpp_pool *p = &shop->pools.pools[pool];
    double best = 0;
    for (int d = 0; d < shop->cost->degrees; d++) {
        if (!eth_hpp_classes_has_degree(shop, pool, d) || !eth_hpp_classes_may_use(shop, d))
            continue;
        int most = eth_hpp_cost_most_samples(shop->cost, p->device, d);
        double rate = most / (average_layer_s(shop, pool, d, most) * shop->cost->degree[d]);
        best = rate > best ? rate : best;
    }
    return best * p->gpus;
}

/* How a pool's share of a pipeline can be cut into stages. */
struct option {
    int width, degree, stages;
    double layers_per_s; /* for one micro-batch after the other */
};

/* Keeps the fastest options, one of each number of stages, fastest first; returns their number. */
static int keep_option(struct option *kept, int count, struct option option)
{
    int at = 0;
    while (at < count && kept[at].stages != option.stages)
        at++;
    if (at == count && count < OPTIONS_KEPT)
        kept[count++].layers_per_s = 0;
    else if (at == count)
        at--; /* the slowest gives way */
    if (option.layers_per_s <= kept[at].layers_per_s)
        return count;
    for (; at > 0 && kept[at - 1].layers_per_s < option.layers_per_s; at--)
        kept[at] = kept[at - 1];
    kept[at] = option;
    return count;
}

static int find_options(const struct eth_hpp_workshop *shop, int pool, int replicas,
                        int micro_batch, struct option *options)
{
    const struct eth_hpp_pool *p = &shop->pools.pools[pool];
    int gpus = p->gpus / replicas, count = 0;
    for (int d = 0; d < shop->cost->degrees; d++) {
        if (!eth_hpp_classes_has_degree(shop, pool, d) || !eth_hpp_classes_may_use(shop, d))
            continue;
        for (int w = 0; w < WIDTHS && widths[w] <= micro_batch; w++) {
            int samples = (micro_batch + widths[w] - 1) / widths[w];
            int stages = gpus / (widths[w] * shop->cost->degree[d]);
            if (stages == 0 || samples > eth_hpp_cost_most_samples(shop->cost, p->device, d))
                continue;
            double layer_s = average_layer_s(shop, pool, d, samples);
            count = keep_option(options, count,
                                (struct option){widths[w], d, stages, stages / layer_s});
        }
    }
    return count;
}

/* Seconds a sample of a class that has `part` of them, its sums included. */
static double total(const struct eth_hpp_classes *classes, int i, double part)
{
    return classes->kept[i].s_per_sample + classes->kept[i].sync_s / part;
}

static double worst_kept(const struct eth_hpp_classes *classes, double part)
{
    return classes->count < ETH_HPP_CLASSES_KEPT ? INFINITY
                                                 : total(classes, ETH_HPP_CLASSES_KEPT - 1, part);
}

static void keep_class(struct eth_hpp_classes *classes, const struct eth_hpp_draft_group *group,
                       double s_per_sample, double sync_s, double part)
{
    int at = 0;
    double s = s_per_sample + sync_s / part;
    while (at < classes->count && classes->kept[at].group->stage_count != group->stage_count)
        at++; /* one of each depth */
    if (at == ETH_HPP_CLASSES_KEPT)
        at--;
    if (at == classes->count)
        classes->kept[classes->count++].s_per_sample = INFINITY;
    if (s >= total(classes, at, part))
        return;
    struct eth_hpp_draft_group *memory = classes->kept[at].group;
    for (; at > 0 && total(classes, at - 1, part) > s; at--)
        classes->kept[at] = classes->kept[at - 1];
    classes->kept[at].s_per_sample = s_per_sample;
    classes->kept[at].sync_s = sync_s;
    classes->kept[at].group = memory;
    *memory = *group;
}

/* What the chains of a class have in common while its options are tried. */
struct chain {
    int order[ETH_HPP_CLASSES_POOLS], pools;
    int option_count[ETH_HPP_CLASSES_POOLS];
    struct option options[ETH_HPP_CLASSES_POOLS][OPTIONS_KEPT];
    double part; /* of the batch, in samples */
    bool alone;  /* the class has all pools */
};

static bool set_stages(const struct chain *chain, int choice, bool recompute,
                       struct eth_hpp_draft_group *group, double *layers_per_s)
{
    group->stage_count = 0;
    *layers_per_s = 0;
    for (int i = 0; i < chain->pools; i++) {
        const struct option *option = &chain->options[i][choice % chain->option_count[i]];
        choice /= chain->option_count[i];
        *layers_per_s += option->layers_per_s;
        if (group->stage_count + option->stages > ETH_HPP_DRAFT_STAGES)
            return false;
        for (int s = 0; s < option->stages; s++)
            group->stages[group->stage_count++] =
                (struct eth_hpp_draft_stage){.degree = option->degree,
                                             .recompute = recompute,
                                             .part_count = 1,
                                             .parts = {{chain->order[i], option->width}}};
    }
    return true;
}

/* Seconds in which the network of the fullest node sums a stage's gradients at least, where its
 * like workers of all pipelines do not stand on one node. `alone`: there are no other classes. */
static double least_sync_s(const struct eth_hpp_workshop *shop,
                           const struct eth_hpp_draft_group *group, bool alone)
{
    const struct eth_hpp_cost *cost = shop->cost;
    double worst = 0;
    for (int s = 0, first = 0; s < group->stage_count; first += group->stages[s++].layers) {
        const struct eth_hpp_draft_stage *stage = &group->stages[s];
        const struct eth_hpp_pool *pool = &shop->pools.pools[stage->parts[0].pool];
        int workers = group->replicas * stage->parts[0].workers;
        if (alone && workers * cost->degree[stage->degree] <= pool->per_node)
            continue;
        double bytes = 0;
        for (int k = 0; k < cost->profile->kind_count; k++)
            bytes += eth_hpp_cost_count(cost, k, first, first + stage->layers) *
                     cost->profile->kinds[k].gradient_bytes;
        double sync_s = 2 * bytes / cost->cluster->nodes[pool->nodes[0]].inter_bandwidth;
        worst = sync_s > worst ? sync_s : worst;
    }
    return worst;
}

/* Tries all combinations of the pools' options for pipelines of this number and micro-batch. */
static void try_chain(struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft,
                      const struct chain *chain, struct eth_hpp_classes *classes)
{
    struct eth_hpp_draft_group *group = &draft->groups[0];
    int combinations = 1, layers = shop->cost->profile->layer_count;
    double rounds = chain->part / ((double)group->replicas * group->micro_batch);
    rounds = rounds < 1 ? 1 : rounds;
    for (int i = 0; i < chain->pools; i++)
        combinations *= chain->option_count[i];
    for (int c = 0; c < combinations; c++) {
        double layers_per_s, beat_s;
        bool fits = set_stages(chain, c, false, group, &layers_per_s);
        if (!fits || group->stage_count > layers)
            continue;
        double beats = rounds + group->stage_count - 1;
        if (beats * layers / layers_per_s / chain->part >= worst_kept(classes, chain->part))
            continue; /* no cut can be better than a perfect one */
        /* Recompute takes a third more: where memory costs no more than that, it cannot pay. */
        double bearable_s = 4.0 / 3 * layers / layers_per_s;
        for (int recompute = 0; recompute < 2; recompute++) {
            if (recompute && (shop->options->no_recompute || (fits && beat_s <= bearable_s)))
                break;
            set_stages(chain, c, recompute, group, &layers_per_s);
            beat_s = worst_kept(classes, chain->part) * chain->part / beats;
            fits = eth_hpp_draft_balance(shop, draft, 0, &beat_s);
            if (fits)
                keep_class(classes, group, beats * beat_s / chain->part,
                           least_sync_s(shop, group, chain->alone), chain->part);
        }
    }
}

/* Micro-batches that divide the batch can be dealt whatever other groups there are; even data asks
 * that the pipelines divide it too. */
static bool can_deal(const struct eth_hpp_workshop *shop, int replicas, int micro_batch)
{
    int64_t batch = shop->options->global_batch, round = (int64_t)replicas * micro_batch;
    if (round > batch)
        return false;
    return batch % (shop->options->shape == ETH_HPP_SHAPE_HPP ? micro_batch : round) == 0;
}

void eth_hpp_classes_find(struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft, unsigned mask,
                          double part, struct eth_hpp_classes *classes)
{
    struct chain chain = {.part = part, .alone = mask == (1u << shop->pools.count) - 1};
    struct eth_hpp_draft_group *group = &draft->groups[0];
    int pools = __builtin_popcount(mask); /* at most 27 combinations are tried */
    int options = pools <= 3 ? 3 : pools == 4 ? 2 : 1;
    for (int reversed = 0; reversed < (pools > 1 ? 2 : 1); reversed++) {
        chain.pools = eth_hpp_classes_order(shop, mask, reversed, chain.order);
        for (int c = 0; c < COUNTS; c++)
            for (int m = 1; m <= MICRO_BATCH_MAX; m++) {
                bool whole = can_deal(shop, counts[c], m);
                group->replicas = counts[c];
                group->extra_in_flight = 0;
                group->by_stage = false;
                group->micro_batch = m;
                for (int i = 0; whole && i < chain.pools; i++) {
                    int found = find_options(shop, chain.order[i], counts[c], m, chain.options[i]);
                    chain.option_count[i] = found < options ? found : options;
                    whole = found > 0;
                }
                if (whole)
                    try_chain(shop, draft, &chain, classes);
            }
    }
}
