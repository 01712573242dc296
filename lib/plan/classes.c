#include "plan/classes.h"

#include <math.h>
#include <stdlib.h>

#include "plan/chains.h"

static const int counts[] = {1,   2,   3,   4,   5,   6,   7,   8,   9,   10,   12,   14,
                             16,  20,  24,  28,  32,  40,  48,  56,  64,  80,   96,   112,
                             128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048};
/* What a class may take over the best to be kept. */
static const double worth_of[] = {[ETH_HPP_EFFORT_QUICK] = 0.99,
                                  [ETH_HPP_EFFORT_DEFAULT] = 1.03,
                                  [ETH_HPP_EFFORT_THOROUGH] = 1.1};
/* Shapes that chains are looked for of each set of pools, the most promising first. */
static const int shapes_of[] = {
    [ETH_HPP_EFFORT_QUICK] = 24, [ETH_HPP_EFFORT_DEFAULT] = 60, [ETH_HPP_EFFORT_THOROUGH] = 200};
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
    double least_s; /* no chain of this shape takes less for a sample, sums not counted */
    bool bounded;   /* memory is considered in that */
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

static int compare_shapes(const void *a, const void *b)
{
    const struct shape *x = a, *y = b;
    if (x->least_s != y->least_s)
        return x->least_s < y->least_s ? -1 : 1;
    if (x->replicas != y->replicas)
        return x->replicas - y->replicas;
    return x->micro_batch - y->micro_batch;
}

/* The shapes that the pools of a mask allow, the most promising first; returns their number. */
static int sort_shapes(const struct eth_hpp_class_finder *finder, unsigned mask, double part)
{
    int count = 0;
    for (int c = 0; c < COUNTS; c++)
        for (int m = 1; m <= finder->micro_batches; m++) {
            double rate = 0, round = (double)counts[c] * m;
            bool whole = can_deal(finder->shop, counts[c], m);
            for (int p = 0; p < finder->pools && whole; p++) {
                if (!(mask >> p & 1))
                    continue;
                whole = finder->gpus[p] >= counts[c] && finder->rates[m][p] > 0;
                rate += finder->gpus[p] / counts[c] * finder->rates[m][p];
            }
            if (whole)
                finder->shapes[count++] =
                    (struct shape){counts[c], m, fmax(1, part / round) * m / (rate * part), false};
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

static struct eth_hpp_chain_task make_task(const struct eth_hpp_class_finder *finder,
                                           const struct shape *shape, unsigned mask, double part)
{
    struct eth_hpp_chain_task task = {.replicas = shape->replicas,
                                      .micro_batch = shape->micro_batch,
                                      .rounds =
                                          part / ((double)shape->replicas * shape->micro_batch),
                                      .share = 1};
    int all = 0, own = 0;
    for (int p = 0; p < finder->pools; p++) {
        all += finder->gpus[p];
        if (!(mask >> p & 1))
            continue;
        own += finder->gpus[p];
        task.gpus[p] = finder->gpus[p] / shape->replicas;
    }
    task.alone = mask == (1u << finder->shop->pools.count) - 1;
    if (!finder->shop->options->no_sharded)
        task.share = 1.0 / round_owners((int)(shape->replicas * ((double)all / own)));
    return task;
}

/* Looks for the chain of a shape and keeps it if it is among the best. */
static void try_shape(struct eth_hpp_class_finder *finder, struct eth_hpp_chain_task *task,
                      double part, double limit_s, struct eth_hpp_classes *classes)
{
    struct eth_hpp_draft_group group;
    task->limit_s = limit_s;
    double s = eth_hpp_chains_find(finder->chains, task, &group, &classes->tight);
    if (s < INFINITY)
        keep_class(classes, &group, s / part);
}

static void find(struct eth_hpp_class_finder *finder, unsigned mask, double part, double limit_s,
                 bool lean, struct eth_hpp_classes *classes)
{
    int tries = shapes_of[finder->shop->effort], count = sort_shapes(finder, mask, part);
    bool alone = mask == (1u << finder->shop->pools.count) - 1;
    while (count > 0 && tries > 0 && eth_hpp_chains_may_go_on(finder->chains) &&
           !finder->shop->failed) {
        int at = 0; /* the most promising; of those whose bound is not known yet the first is */
        for (int i = 1; i < count; i++)
            if (finder->shapes[i].least_s < finder->shapes[at].least_s)
                at = i;
        struct shape *shape = &finder->shapes[at];
        double worst_s = part * fmin(limit_s, worst_kept(finder, classes));
        if (part * shape->least_s >= worst_s)
            break;
        struct eth_hpp_chain_task task = make_task(finder, shape, mask, part);
        task.lean = lean;
        if (!shape->bounded) {
            shape->bounded = true;
            shape->least_s = eth_hpp_chains_bound(finder->chains, &task, &classes->tight) / part;
            continue;
        }
        double before_s = classes->count > 0 ? classes->kept[0].s_per_sample : INFINITY;
        try_shape(finder, &task, part, worst_s, classes);
        if (alone && classes->count > 0 && classes->kept[0].s_per_sample < before_s)
            tries = shapes_of[finder->shop->effort];
        *shape = finder->shapes[--count];
        tries--;
    }
}

void eth_hpp_class_finder_find(struct eth_hpp_class_finder *finder, unsigned mask, double part,
                               double limit_s, int64_t tries, struct eth_hpp_classes *classes)
{
    eth_hpp_chains_limit(finder->chains, tries);
    find(finder, mask, part, limit_s, false, classes);
    eth_hpp_chains_limit(finder->chains, tries);
    if (classes->count == 0 && classes->tight)
        find(finder, mask, part, limit_s, true, classes);
}
