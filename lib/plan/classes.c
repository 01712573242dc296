#include "plan/classes.h"

#include <math.h>
#include <stdlib.h>

static const int widths[] = {1, 2, 4, 8};
static const int counts[] = {1,  2,  3,  4,  5,  6,  8,   10,  12, 16,
                             20, 24, 32, 48, 64, 96, 128, 256, 512};
#define WORTH 1.2
/* Cuts of layers that are tried of each number of pipelines over all pools, half as many where one
 * is left out, and so on; the most promising come first. */
static const int cuts_of[] = {[ETH_HPP_EFFORT_QUICK] = 150,
                              [ETH_HPP_EFFORT_DEFAULT] = 2000,
                              [ETH_HPP_EFFORT_THOROUGH] = 10000};
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

/* ---- how pools can be cut into stages ---- */

/* How a pool's share of a pipeline can be cut into stages. */
struct option {
    int width, degree, stages;
    double layers_per_s; /* for one micro-batch after the other */
};

/* Like pipelines: how many, and of which micro-batch. */
struct shape {
    int count; /* index in counts */
    int replicas, micro_batch;
    struct choice {
        int count;
        struct option options[OPTIONS_KEPT]; /* fastest first */
    } pools[ETH_HPP_CLASSES_POOLS];
};

struct eth_hpp_class_finder {
    int pools, shape_count;
    struct promise {
        int shape;
        double least_s; /* no chain of this shape takes less for a sample */
    } * promises;       /* [shape] scratch */
    struct shape shapes[];
};

/* Keeps the fastest options, one of each number of stages. */
static void keep_option(struct choice *kept, struct option option)
{
    int at = 0;
    while (at < kept->count && kept->options[at].stages != option.stages)
        at++;
    if (at == kept->count && kept->count < OPTIONS_KEPT)
        kept->options[kept->count++].layers_per_s = 0;
    else if (at == kept->count)
        at--; /* the slowest gives way */
    if (option.layers_per_s <= kept->options[at].layers_per_s)
        return;
    for (; at > 0 && kept->options[at - 1].layers_per_s < option.layers_per_s; at--)
        kept->options[at] = kept->options[at - 1];
    kept->options[at] = option;
}

static void find_options(const struct eth_hpp_workshop *shop, int pool, bool one_node,
                         const struct shape *shape, struct choice *kept)
{
    const struct eth_hpp_pool *p = &shop->pools.pools[pool];
    int gpus = (one_node ? p->per_node : p->gpus) / shape->replicas;
    for (int d = 0; d < shop->cost->degrees; d++) {
        if (!eth_hpp_classes_has_degree(shop, pool, d) || !eth_hpp_classes_may_use(shop, d))
            continue;
        for (int w = 0; w < WIDTHS && widths[w] <= shape->micro_batch; w++) {
            int samples = (shape->micro_batch + widths[w] - 1) / widths[w];
            int stages = gpus / (widths[w] * shop->cost->degree[d]);
            if (stages == 0 || samples > eth_hpp_cost_most_samples(shop->cost, p->device, d))
                continue;
            double layer_s = average_layer_s(shop, pool, d, samples);
            keep_option(kept, (struct option){widths[w], d, stages, stages / layer_s});
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

struct eth_hpp_class_finder *eth_hpp_class_finder_make(const struct eth_hpp_workshop *shop,
                                                       bool one_node)
{
    int count = 0, pools = shop->pools.count;
    pools = pools < ETH_HPP_CLASSES_POOLS ? pools : ETH_HPP_CLASSES_POOLS;
    for (int c = 0; c < COUNTS; c++)
        for (int m = 1; m <= MICRO_BATCH_MAX; m++)
            count += can_deal(shop, counts[c], m);
    struct eth_hpp_class_finder *finder =
        calloc(1, sizeof(*finder) + (size_t)count * sizeof(finder->shapes[0]));
    if (finder == NULL)
        return NULL;
    finder->promises = calloc((size_t)count + 1, sizeof(*finder->promises));
    if (finder->promises == NULL) {
        free(finder);
        return NULL;
    }
    finder->pools = pools;
    for (int c = 0; c < COUNTS; c++)
        for (int m = 1; m <= MICRO_BATCH_MAX; m++) {
            struct shape *shape = &finder->shapes[finder->shape_count];
            if (!can_deal(shop, counts[c], m))
                continue;
            shape->count = c;
            shape->replicas = counts[c];
            shape->micro_batch = m;
            for (int p = 0; p < pools; p++)
                find_options(shop, p, one_node, shape, &shape->pools[p]);
            finder->shape_count++;
        }
    return finder;
}

void eth_hpp_class_finder_free(struct eth_hpp_class_finder *finder)
{
    if (finder != NULL)
        free(finder->promises);
    free(finder);
}

/* ---- the best classes ---- */

/* Seconds a sample of a class that has `part` of them, its sums included. */
static double total(const struct eth_hpp_classes *classes, int i, double part)
{
    return classes->kept[i].s_per_sample + classes->kept[i].sync_s / part;
}

/* What a class may take to be kept: less than the worst that is, and little more than the best. */
static double worst_kept(const struct eth_hpp_classes *classes, double part)
{
    double worth = classes->count > 0 ? WORTH * total(classes, 0, part) : INFINITY;
    if (classes->count == ETH_HPP_CLASSES_KEPT)
        worth = fmin(worth, total(classes, ETH_HPP_CLASSES_KEPT - 1, part));
    return worth;
}

static bool returns(const struct eth_hpp_draft_group *group)
{
    const struct eth_hpp_draft_stage *first = &group->stages[0],
                                     *last = &group->stages[group->stage_count - 1];
    return first->parts[0].pool == last->parts[0].pool && group->stage_count > 1;
}

static void keep_class(struct eth_hpp_classes *classes, const struct eth_hpp_draft_group *group,
                       double s_per_sample, double sync_s, double part)
{
    int at = 0;
    double s = s_per_sample + sync_s / part;
    while (at < classes->count && (classes->kept[at].group->stage_count != group->stage_count ||
                                   returns(classes->kept[at].group) != returns(group)))
        at++; /* one of each depth, and of those that end where they began */
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
    int around; /* the pool in the order that stands at both ends, or -1 */
    const struct shape *shape;
    int options;      /* of each pool that are tried */
    double part;      /* of the batch, in samples */
    bool alone;       /* the class has all pools */
    double others;    /* GPUs of all pools over those of the class */
    int cuts[COUNTS]; /* that may still be tried of each number of pipelines */
};

static const struct option *choose(const struct chain *chain, int i, int *choice)
{
    const struct choice *pool = &chain->shape->pools[chain->order[i]];
    int count = pool->count < chain->options ? pool->count : chain->options;
    const struct option *option = &pool->options[*choice % count];
    *choice /= count;
    return option;
}

static bool add_stages(struct eth_hpp_draft_group *group, const struct option *option, int pool,
                       int stages, bool recompute)
{
    if (group->stage_count + stages > ETH_HPP_DRAFT_STAGES)
        return false;
    for (int s = 0; s < stages; s++)
        group->stages[group->stage_count++] =
            (struct eth_hpp_draft_stage){.degree = option->degree,
                                         .recompute = recompute,
                                         .part_count = 1,
                                         .parts = {{pool, option->width}}};
    return true;
}

static bool set_stages(const struct chain *chain, int choice, bool recompute,
                       struct eth_hpp_draft_group *group, double *layers_per_s)
{
    const struct option *chosen[ETH_HPP_CLASSES_POOLS] = {NULL};
    bool fits = true;
    int around = chain->around;
    group->stage_count = 0;
    *layers_per_s = 0;
    for (int i = 0; i < chain->pools; i++) {
        chosen[i] = choose(chain, i, &choice);
        *layers_per_s += chosen[i]->layers_per_s;
    }
    if (around >= 0 && chosen[around]->stages < 2)
        return false;
    if (around >= 0)
        fits = add_stages(group, chosen[around], chain->order[around],
                          (chosen[around]->stages + 1) / 2, recompute);
    for (int i = 0; i < chain->pools && fits; i++)
        if (i != around)
            fits = add_stages(group, chosen[i], chain->order[i], chosen[i]->stages, recompute);
    if (around >= 0 && fits)
        fits = add_stages(group, chosen[around], chain->order[around], chosen[around]->stages / 2,
                          recompute);
    return fits;
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

/* Layers whose state and one micro-batch all stages together could hold, were layers all alike. */
static double capacity(const struct eth_hpp_workshop *shop, const struct chain *chain, int choice,
                       bool recompute, bool sharded)
{
    const struct eth_hpp_profile *profile = shop->cost->profile;
    double layers = 0;
    for (int i = 0; i < chain->pools; i++) {
        const struct option *option = choose(chain, i, &choice);
        int device = shop->pools.pools[chain->order[i]].device;
        int samples = (chain->shape->micro_batch + option->width - 1) / option->width;
        struct eth_hpp_stage_memory all =
            eth_hpp_cost_memory(shop->cost, option->degree, 0, profile->layer_count, recompute);
        double state = all.state - (sharded ? all.optimizer : 0);
        double bytes =
            shop->cost->cluster->devices[device].memory_bytes - shop->options->memory_margin_bytes -
            eth_hpp_cost_peak(shop->cost, &(struct eth_hpp_stage_memory){0}, 0, device, samples, 1);
        layers += option->stages * bytes * profile->layer_count / (state + samples * all.kept);
    }
    return layers;
}

/* Tries all combinations of the pools' options for pipelines of this shape. */
static void try_chain(struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft,
                      struct chain *chain, struct eth_hpp_classes *classes)
{
    struct eth_hpp_draft_group *group = &draft->groups[0];
    int combinations = 1, layers = shop->cost->profile->layer_count;
    double rounds = chain->part / ((double)chain->shape->replicas * chain->shape->micro_batch);
    rounds = rounds < 1 ? 1 : rounds;
    group->replicas = chain->shape->replicas;
    group->micro_batch = chain->shape->micro_batch;
    group->extra_in_flight = 0;
    group->by_stage = group->uncut = false;
    /* The optimizer is shared with other classes, as if all GPUs stood in such pipelines. */
    shop->least_owners = (int)(group->replicas * chain->others);
    for (int i = 0; i < chain->pools; i++) {
        int count = chain->shape->pools[chain->order[i]].count;
        combinations *= count < chain->options ? count : chain->options;
    }
    for (int c = 0; c < combinations && chain->cuts[chain->shape->count] > 0; c++) {
        double layers_per_s, beat_s;
        bool fits = set_stages(chain, c, false, group, &layers_per_s);
        if (!fits || group->stage_count > layers)
            continue;
        double beats = rounds + group->stage_count - 1;
        if (beats * layers / layers_per_s / chain->part >= worst_kept(classes, chain->part))
            continue; /* no cut can be better than a perfect one */
        /* Recompute takes a third more: where memory costs no more than that, it cannot pay. */
        double bearable_s = 4.0 / 3 * layers / layers_per_s;
        bool sharded = draft->sharded_optimizer;
        for (int recompute = 0; recompute < 2; recompute++) {
            if (recompute && (shop->options->no_recompute || (fits && beat_s <= bearable_s)))
                break;
            fits = capacity(shop, chain, c, recompute, sharded) >= layers;
            if (!fits) {
                classes->tight = true;
                continue;
            }
            set_stages(chain, c, recompute, group, &layers_per_s);
            beat_s = worst_kept(classes, chain->part) * chain->part / beats;
            fits = eth_hpp_draft_balance(shop, draft, 0, &beat_s);
            chain->cuts[chain->shape->count]--;
            if (fits)
                keep_class(classes, group, beats * beat_s / chain->part,
                           least_sync_s(shop, group, chain->alone), chain->part);
        }
    }
}

static int compare_promises(const void *a, const void *b)
{
    const struct promise *x = a, *y = b;
    if (x->least_s != y->least_s)
        return x->least_s < y->least_s ? -1 : 1;
    return x->shape - y->shape;
}

/* The shapes that the pools of a mask allow, the most promising first; returns their number. */
static int sort_shapes(const struct eth_hpp_workshop *shop, struct eth_hpp_class_finder *finder,
                       unsigned mask, double part)
{
    int count = 0;
    for (int i = 0; i < finder->shape_count; i++) {
        const struct shape *shape = &finder->shapes[i];
        double layers_per_s = 0, round = (double)shape->replicas * shape->micro_batch;
        bool whole = true;
        for (int p = 0; p < ETH_HPP_CLASSES_POOLS; p++) {
            if (!(mask >> p & 1))
                continue;
            whole = whole && shape->pools[p].count > 0;
            layers_per_s += shape->pools[p].options[0].layers_per_s;
        }
        if (whole)
            finder->promises[count++] = (struct promise){
                i, fmax(1, part / round) * shop->cost->profile->layer_count / layers_per_s / part};
    }
    qsort(finder->promises, (size_t)count, sizeof(finder->promises[0]), compare_promises);
    return count;
}

void eth_hpp_class_finder_find(struct eth_hpp_class_finder *finder, struct eth_hpp_workshop *shop,
                               struct eth_hpp_draft *draft, unsigned mask, double part,
                               struct eth_hpp_classes *classes)
{
    struct chain chain = {.part = part, .alone = mask == (1u << shop->pools.count) - 1};
    int pools = __builtin_popcount(mask); /* at most 27 combinations are tried */
    int all = 0, own = 0;
    for (int p = 0; p < finder->pools; p++) {
        all += shop->pools.pools[p].gpus;
        own += mask >> p & 1 ? shop->pools.pools[p].gpus : 0;
    }
    chain.others = (double)all / own;
    int shapes = sort_shapes(shop, finder, mask, part);
    for (int c = 0; c < COUNTS; c++)
        chain.cuts[c] = cuts_of[shop->effort] >> (finder->pools - pools);
    chain.options = pools <= 3 ? 3 : pools == 4 ? 2 : 1;
    for (int i = 0; i < shapes; i++) {
        if (finder->promises[i].least_s >= worst_kept(classes, part))
            break;
        chain.shape = &finder->shapes[finder->promises[i].shape];
        for (int reversed = 0; reversed < (pools > 1 ? 2 : 1); reversed++) {
            chain.pools = eth_hpp_classes_order(shop, mask, reversed, chain.order);
            for (chain.around = -1; chain.around < (pools > 1 && !reversed ? pools : 0);
                 chain.around++)
                try_chain(shop, draft, &chain, classes);
        }
    }
    shop->least_owners = 0;
}
