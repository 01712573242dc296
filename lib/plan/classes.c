#include "plan/classes.h"

#include <math.h>
#include <stdlib.h>

#include "plan/chains.h"

static const int counts[] = {1,   2,   3,   4,   5,   6,   7,   8,   9,   10,   12,   14,
                             16,  20,  24,  28,  32,  40,  48,  56,  64,  80,   96,   112,
                             128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048};
/* What a class may take over the best to be kept. */
static const double worth_of[] = {
    [ETH_HPP_EFFORT_QUICK] = 1.0, [ETH_HPP_EFFORT_DEFAULT] = 1.06, [ETH_HPP_EFFORT_THOROUGH] = 1.1};
/* Shapes that chains are looked for of each set of pools, the most promising first. */
static const int shapes_of[] = {
    [ETH_HPP_EFFORT_QUICK] = 8, [ETH_HPP_EFFORT_DEFAULT] = 60, [ETH_HPP_EFFORT_THOROUGH] = 200};
/* States of the search of a chain where there are up to 64 GPUs; fewer at first. */
static const double states_of[] = {[ETH_HPP_EFFORT_QUICK] = 700,
                                   [ETH_HPP_EFFORT_DEFAULT] = 3000,
                                   [ETH_HPP_EFFORT_THOROUGH] = 20000};
static const double first_states_of[] = {
    [ETH_HPP_EFFORT_QUICK] = 400, [ETH_HPP_EFFORT_DEFAULT] = 400, [ETH_HPP_EFFORT_THOROUGH] = 3000};
/* How much longer than what is kept a chain may be then to be looked at closely, */
#define COARSE 1.05
/* how many are, */
static const int refined_of[] = {
    [ETH_HPP_EFFORT_QUICK] = 2, [ETH_HPP_EFFORT_DEFAULT] = 12, [ETH_HPP_EFFORT_THOROUGH] = 40};
/* and what part of the tries that are left each shape may take. */
#define TRIES_FIRST   0.125
#define TRIES_REFINED 0.5
/* Stages that are taken to pass before the last one begins, where shapes are compared. */
#define FILL_STAGES 8
enum { COUNTS = sizeof(counts) / sizeof(counts[0]), MICRO_BATCH_MAX = 128 };

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

/* ---- shapes ---- */

/* Like pipelines: how many, and of which micro-batch. */
struct shape {
    int replicas, micro_batch;
    double least_s;   /* no chain of this shape takes less for a sample, sums not counted */
    double promise_s; /* and with few micro-batches the fill takes longer than that knows */
    bool bounded;     /* memory is considered in both */
    double found_s; /* what the chain found takes for a sample; INFINITY: none that may be better */
};

struct eth_hpp_class_finder {
    struct eth_hpp_workshop *shop;
    struct eth_hpp_chains *chains;
    int pools, gpus[ETH_HPP_CLASSES_POOLS]; /* that there are of each pool */
    int micro_batches;
    double (*rates)[ETH_HPP_CLASSES_POOLS]; /* [micro-batch] samples a second of a GPU; 0: none */
    struct shape *shapes;                   /* [COUNTS x micro-batches] scratch */
};

struct eth_hpp_class_finder *eth_hpp_class_finder_make(struct eth_hpp_workshop *shop, bool one_node)
{
    struct eth_hpp_class_finder *finder = calloc(1, sizeof(*finder));
    if (finder == NULL)
        return NULL;
    int pools = shop->pools.count, batch = shop->options->global_batch;
    finder->shop = shop;
    finder->pools = pools < ETH_HPP_CLASSES_POOLS ? pools : ETH_HPP_CLASSES_POOLS;
    finder->micro_batches = batch < MICRO_BATCH_MAX ? batch : MICRO_BATCH_MAX;
    size_t micro_batches = (size_t)finder->micro_batches;
    finder->chains = eth_hpp_chains_make(shop);
    finder->rates = calloc(micro_batches + 1, sizeof(*finder->rates));
    finder->shapes = calloc(COUNTS * micro_batches, sizeof(*finder->shapes));
    if (finder->chains == NULL || finder->rates == NULL || finder->shapes == NULL) {
        eth_hpp_class_finder_free(finder);
        return NULL;
    }
    for (int p = 0; p < finder->pools; p++) {
        finder->gpus[p] = one_node ? shop->pools.pools[p].per_node : shop->pools.pools[p].gpus;
        for (int m = 1; m <= finder->micro_batches; m++)
            if (batch % m == 0)
                finder->rates[m][p] = eth_hpp_chains_rate(finder->chains, p, m);
    }
    return finder;
}

void eth_hpp_class_finder_free(struct eth_hpp_class_finder *finder)
{
    if (finder == NULL)
        return;
    eth_hpp_chains_free(finder->chains);
    free(finder->rates);
    free(finder->shapes);
    free(finder);
}

/* Micro-batches that divide the batch can be dealt whatever other groups there are; even data asks
 * that the pipelines divide it too. */
static bool can_deal(const struct eth_hpp_workshop *shop, int replicas, int micro_batch)
{
    int64_t batch = shop->options->global_batch, round = (int64_t)replicas * micro_batch;
    int most = shop->options->max_pipelines;
    if (round > batch || (most > 0 && replicas > most))
        return false;
    return batch % (shop->options->shape == ETH_HPP_SHAPE_HPP ? micro_batch : round) == 0;
}

static void set_least(struct shape *shape, double least_s, double part)
{
    double rounds = part / shape->replicas / shape->micro_batch;
    shape->least_s = least_s;
    shape->promise_s = least_s * (1 + FILL_STAGES / rounds);
}

static int compare_shapes(const void *a, const void *b)
{
    const struct shape *x = a, *y = b;
    if (x->promise_s != y->promise_s)
        return x->promise_s < y->promise_s ? -1 : 1;
    if (x->replicas != y->replicas)
        return x->replicas - y->replicas;
    return x->micro_batch - y->micro_batch;
}

/* The shapes that the pools of a mask allow, the most promising first; returns their number. */
static int sort_shapes(const struct eth_hpp_class_finder *finder, unsigned mask, double part)
{
    int count = 0;
    for (int m = 1; m <= finder->micro_batches; m++)
        for (int c = 0; c < COUNTS && finder->shop->options->global_batch % m == 0; c++) {
            double rate = 0, round = (double)counts[c] * m;
            bool whole = can_deal(finder->shop, counts[c], m);
            for (int p = 0; p < finder->pools && whole; p++) {
                if (!(mask >> p & 1))
                    continue;
                whole = finder->gpus[p] >= counts[c] && finder->rates[m][p] > 0;
                rate += finder->gpus[p] / counts[c] * finder->rates[m][p];
            }
            if (!whole)
                continue;
            struct shape *shape = &finder->shapes[count++];
            *shape = (struct shape){.replicas = counts[c], .micro_batch = m, .found_s = INFINITY};
            set_least(shape, fmax(1, part / round) * m / (rate * part), part);
        }
    qsort(finder->shapes, (size_t)count, sizeof(finder->shapes[0]), compare_shapes);
    return count;
}

/* ---- the best classes ---- */

/* What a class may take to be kept: less than the worst that is, and little more than the best. */
static double worst_kept(const struct eth_hpp_class_finder *finder,
                         const struct eth_hpp_classes *classes)
{
    double worth = INFINITY;
    if (classes->count > 0)
        worth = worth_of[finder->shop->effort] * classes->kept[0].s_per_sample;
    if (classes->count == ETH_HPP_CLASSES_KEPT)
        worth = fmin(worth, classes->kept[ETH_HPP_CLASSES_KEPT - 1].s_per_sample);
    return worth;
}

static void keep_class(struct eth_hpp_classes *classes, const struct eth_hpp_draft_group *group,
                       double s_per_sample)
{
    int at = 0;
    while (at < classes->count && classes->kept[at].group->replicas != group->replicas)
        at++; /* one of each number of pipelines */
    if (at == ETH_HPP_CLASSES_KEPT)
        at--;
    if (at == classes->count)
        classes->kept[classes->count++].s_per_sample = INFINITY;
    if (s_per_sample >= classes->kept[at].s_per_sample)
        return;
    struct eth_hpp_draft_group *memory = classes->kept[at].group;
    for (; at > 0 && classes->kept[at - 1].s_per_sample > s_per_sample; at--)
        classes->kept[at] = classes->kept[at - 1];
    classes->kept[at].s_per_sample = s_per_sample;
    classes->kept[at].group = memory;
    *memory = *group;
}

/* Owners of a sharded optimizer, with other classes as if all GPUs stood in such pipelines: a round
 * number, so that fewer tables are made. */
static int round_owners(int owners)
{
    int step = 1;
    while (owners >= 8 * step)
        step *= 2;
    return owners / step * step;
}

/* The search of one set of pools. */
struct hunt {
    struct eth_hpp_class_finder *finder;
    struct eth_hpp_classes *classes;
    unsigned mask;
    bool alone;           /* there are no other pools */
    bool lean;            /* see struct eth_hpp_chain_task */
    double part, limit_s; /* samples; seconds of one */
    int64_t tries;        /* left */
    int open, shapes;     /* those yet to be tried come first, a heap: its first promises most */
};

static struct eth_hpp_chain_task make_task(const struct hunt *hunt, const struct shape *shape,
                                           const double *states)
{
    const struct eth_hpp_class_finder *finder = hunt->finder;
    const struct eth_hpp_workshop *shop = finder->shop;
    double round = (double)shape->replicas * shape->micro_batch, all_states = 1;
    struct eth_hpp_chain_task task = {
        .replicas = shape->replicas,
        .micro_batch = shape->micro_batch,
        .rounds = hunt->part / round,
        .share = 1,
        .states = states[shop->effort] * sqrt(fmax(1, shop->cost->cluster->gpu_count / 64.0)),
        .alone = hunt->alone,
        .lean = hunt->lean};
    int all = 0, own = 0;
    for (int p = 0; p < finder->pools; p++) {
        all += finder->gpus[p];
        if (!(hunt->mask >> p & 1))
            continue;
        own += finder->gpus[p];
        task.gpus[p] = finder->gpus[p] / shape->replicas;
        all_states *= 1 + task.gpus[p];
    }
    task.coarse = states == first_states_of && all_states > task.states;
    if (!shop->options->no_sharded)
        task.share = 1.0 / round_owners((int)(shape->replicas * ((double)all / own)));
    return task;
}

/* Looks for the chain of a shape, with a part of the tries, and keeps it if it is among the best.
 * Returns what it takes for a sample; INFINITY where that is not below limit_s. */
static double try_shape(struct hunt *hunt, struct eth_hpp_chain_task *task, double limit_s,
                        double tries)
{
    struct eth_hpp_chains *chains = hunt->finder->chains;
    struct eth_hpp_draft_group group;
    int64_t before = eth_hpp_chains_tries(chains);
    task->limit_s = hunt->part * limit_s;
    eth_hpp_chains_limit(chains, (int64_t)(tries * (double)hunt->tries));
    double s = eth_hpp_chains_find(chains, task, &group, &hunt->classes->tight) / hunt->part;
    hunt->tries -= eth_hpp_chains_tries(chains) - before;
    if (s < INFINITY)
        keep_class(hunt->classes, &group, s);
    return s;
}

/* Puts the first of the open shapes where it belongs in their heap. */
static void sift(struct hunt *hunt)
{
    struct shape *shapes = hunt->finder->shapes, moved = shapes[0];
    int at = 0;
    for (int child; (child = 2 * at + 1) < hunt->open; at = child) {
        if (child + 1 < hunt->open && compare_shapes(&shapes[child + 1], &shapes[child]) < 0)
            child++;
        if (compare_shapes(&moved, &shapes[child]) <= 0)
            break;
        shapes[at] = shapes[child];
    }
    shapes[at] = moved;
}

/* Takes the first shape out of the heap, to behind it. */
static struct shape *take_first(struct hunt *hunt)
{
    struct shape *shapes = hunt->finder->shapes, first = shapes[0];
    shapes[0] = shapes[--hunt->open];
    sift(hunt);
    shapes[hunt->open] = first;
    return &shapes[hunt->open];
}

/* The most promising shape, whose bound is known, now behind the open ones. NULL: no shape is worth
 * a try. */
static struct shape *next_shape(struct hunt *hunt)
{
    const struct eth_hpp_class_finder *finder = hunt->finder;
    while (hunt->open > 0) {
        struct shape *best = finder->shapes;
        double limit_s = fmin(hunt->limit_s, worst_kept(finder, hunt->classes));
        if (best->least_s < limit_s && best->bounded)
            return take_first(hunt);
        if (best->least_s >= limit_s) {
            *take_first(hunt) = finder->shapes[--hunt->shapes];
            continue;
        }
        struct eth_hpp_chain_task task = make_task(hunt, best, first_states_of);
        task.limit_s = hunt->part * limit_s;
        double s = eth_hpp_chains_bound(finder->chains, &task, &hunt->classes->tight);
        best->bounded = true;
        set_least(best, s / hunt->part, hunt->part);
        sift(hunt);
    }
    return NULL;
}

/* Tries the shapes, the most promising first. */
static void try_shapes(struct hunt *hunt)
{
    const struct eth_hpp_workshop *shop = hunt->finder->shop;
    struct shape *shape;
    int left = shapes_of[shop->effort];
    while (left-- > 0 && hunt->tries > 0 && !shop->failed && (shape = next_shape(hunt)) != NULL) {
        struct eth_hpp_classes *classes = hunt->classes;
        double before_s = classes->count > 0 ? classes->kept[0].s_per_sample : INFINITY;
        struct eth_hpp_chain_task task = make_task(hunt, shape, first_states_of);
        double limit_s = fmin(hunt->limit_s, worst_kept(hunt->finder, classes));
        double s = try_shape(hunt, &task, task.coarse ? COARSE * limit_s : limit_s, TRIES_FIRST);
        if (hunt->alone && classes->count > 0 && classes->kept[0].s_per_sample < before_s)
            left = shapes_of[shop->effort];
        shape->found_s = task.coarse ? s : INFINITY;
    }
}

/* Looks at the best of the shapes that were tried once more, closely. */
static void refine_shapes(struct hunt *hunt)
{
    const struct eth_hpp_workshop *shop = hunt->finder->shop;
    struct shape *begin = hunt->finder->shapes + hunt->open;
    struct shape *end = hunt->finder->shapes + hunt->shapes;
    for (int i = 0; i < refined_of[shop->effort] && hunt->tries > 0 && begin < end; i++) {
        struct shape *best = begin;
        for (struct shape *shape = begin; shape < end; shape++)
            if (shape->found_s < best->found_s)
                best = shape;
        if (best->found_s == INFINITY || shop->failed)
            break;
        struct eth_hpp_chain_task task = make_task(hunt, best, states_of);
        try_shape(hunt, &task, fmin(hunt->limit_s, worst_kept(hunt->finder, hunt->classes)),
                  TRIES_REFINED);
        best->found_s = INFINITY;
    }
}

void eth_hpp_class_finder_find(struct eth_hpp_class_finder *finder, unsigned mask, double part,
                               double limit_s, int64_t tries, struct eth_hpp_classes *classes)
{
    struct hunt hunt = {.finder = finder,
                        .classes = classes,
                        .mask = mask,
                        .alone = mask == (1u << finder->shop->pools.count) - 1,
                        .part = part,
                        .limit_s = limit_s};
    for (int lean = 0; lean < 2 && (lean == 0 || (classes->count == 0 && classes->tight)); lean++) {
        hunt.lean = lean;
        hunt.open = hunt.shapes = sort_shapes(finder, mask, part);
        hunt.tries = tries / 2;
        try_shapes(&hunt);
        hunt.tries = tries / 2;
        refine_shapes(&hunt);
    }
}
