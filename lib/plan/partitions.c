#include "plan/partitions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/classes.h"

enum { PARTITIONS_MAX = 1024, CHOICES = ETH_HPP_CLASSES_POOLS * ETH_HPP_CLASSES_KEPT };

/* How much of all sums is taken not to be hidden where pipelines are unlike. */
#define UNLIKE_SUMS 0.3

struct partitions {
    int count;
    struct partition {
        double samples_per_s;
        double step_s; /* of the computation and the sums */
        int blocks;
        unsigned masks[ETH_HPP_CLASSES_POOLS];
    } list[PARTITIONS_MAX];
    const struct eth_hpp_classes *classes; /* [mask] */
    const struct eth_hpp_workshop *shop;
};

/* Seconds in which unlike pipelines over these pools sum their gradients: their cuts do not line
 * up, so that blocks wait for each other, and the slowest network is in all their rings. */
static double unlike_sums_s(const struct eth_hpp_workshop *shop, unsigned pools)
{
    const struct eth_hpp_profile *profile = shop->cost->profile;
    double bytes = 0, bandwidth = INFINITY;
    for (int k = 0; k < profile->kind_count; k++)
        bytes += eth_hpp_cost_count(shop->cost, k, 0, profile->layer_count) *
                 profile->kinds[k].gradient_bytes;
    for (int p = 0; p < shop->pools.count && p < ETH_HPP_CLASSES_POOLS; p++)
        if (pools >> p & 1)
            bandwidth =
                fmin(bandwidth,
                     shop->cost->cluster->nodes[shop->pools.pools[p].nodes[0]].inter_bandwidth);
    return UNLIKE_SUMS * 2 * bytes / bandwidth;
}

/* Each pool in turn stays idle or joins a block with some of the later ones. */
static void list_partitions(struct partitions *all, struct partition *now, unsigned left)
{
    if (left == 0) {
        unsigned used = 0;
        for (int b = 0; b < now->blocks; b++)
            used |= now->masks[b];
        now->step_s = all->shop->options->global_batch / now->samples_per_s;
        now->step_s += now->blocks > 1 ? unlike_sums_s(all->shop, used) : 0;
        if (now->blocks > 0 && all->count < PARTITIONS_MAX)
            all->list[all->count++] = *now;
        return;
    }
    unsigned lowest = left & -left, others = left ^ lowest;
    for (unsigned with = others;; with = (with - 1) & others) {
        const struct eth_hpp_classes *classes = &all->classes[lowest | with];
        if (classes->count > 0) {
            struct partition before = *now;
            now->masks[now->blocks++] = lowest | with;
            now->samples_per_s += 1 / classes->kept[0].s_per_sample;
            list_partitions(all, now, others ^ with);
            *now = before;
        }
        if (with == 0)
            break;
    }
    list_partitions(all, now, others);
}

static int compare_partitions(const void *a, const void *b)
{
    const struct partition *x = a, *y = b;
    if (x->step_s != y->step_s)
        return x->step_s < y->step_s ? -1 : 1;
    return memcmp(x->masks, y->masks, sizeof(x->masks));
}

/* The best class of every block, and each block's other classes in turn. */
static void offer_partition(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                            struct eth_hpp_draft *draft, const struct partitions *all, int index)
{
    const struct partition *partition = &all->list[index];
    draft->group_count = partition->blocks;
    for (int other = 0; other < partition->blocks; other++)
        for (int choice = other == 0 ? 0 : 1; choice < ETH_HPP_CLASSES_KEPT; choice++) {
            if (choice >= all->classes[partition->masks[other]].count)
                break;
            for (int b = 0; b < partition->blocks; b++)
                draft->groups[b] =
                    *all->classes[partition->masks[b]].kept[b == other ? choice : 0].group;
            eth_hpp_candidates_offer_ways(candidates, shop, draft,
                                          index * CHOICES + other * ETH_HPP_CLASSES_KEPT + choice);
        }
}

/* What is known of each set of pools while classes are looked for. */
struct prospects {
    int pools, masks;
    double batch;
    double part[1 << ETH_HPP_CLASSES_POOLS];   /* [mask] of the batch, in samples */
    double found[1 << ETH_HPP_CLASSES_POOLS];  /* [mask] samples a second of what is found */
    double best_s;                             /* a sample of the best partition that is found */
    double most[1 << ETH_HPP_CLASSES_POOLS];   /* [mask] that partitions of it could reach */
    double sums_s[1 << ETH_HPP_CLASSES_POOLS]; /* [mask] of partitions with such a class */
};

static void begin_prospects(const struct eth_hpp_workshop *shop, struct prospects *prospects)
{
    double total = 0, rate[ETH_HPP_CLASSES_POOLS];
    for (int p = 0; p < prospects->pools; p++)
        total += rate[p] = eth_hpp_classes_rate(shop, p);
    prospects->best_s = INFINITY;
    prospects->batch = shop->options->global_batch;
    for (int mask = 0; mask < prospects->masks; mask++) {
        prospects->most[mask] = prospects->found[mask] = 0;
        for (int p = 0; p < prospects->pools; p++)
            prospects->most[mask] += mask >> p & 1 ? rate[p] : 0;
        prospects->sums_s[mask] = unlike_sums_s(shop, (unsigned)mask);
        prospects->part[mask] = shop->options->global_batch;
        if (shop->options->shape == ETH_HPP_SHAPE_HPP)
            prospects->part[mask] *= prospects->most[mask] / total;
    }
}

/* Takes note of the rate of a set's class, and of what is found of sets of more pools with it. */
static void note_class(struct prospects *prospects, int mask, double rate)
{
    double most = rate;
    for (int part = (mask - 1) & mask; part > 0; part = (part - 1) & mask)
        most = fmax(most, prospects->most[part] + prospects->most[mask ^ part]);
    prospects->most[mask] = fmin(most, prospects->most[mask]);
    prospects->found[mask] = fmax(rate, prospects->found[mask]);
    for (int others = prospects->masks - 1; others > 0; others--) {
        int both = others | mask;
        if ((others & mask) != 0 || rate == 0 || prospects->found[others] == 0)
            continue;
        double together = rate + prospects->found[others];
        prospects->found[both] = fmax(prospects->found[both], together);
        prospects->best_s =
            fmin(prospects->best_s, 1 / together + prospects->sums_s[both] / prospects->batch);
    }
}

/* Seconds a sample below which a set's class can be part of a partition that is worth trying: with
 * all other pools idle, or with what they could do at most and the sums of unlike pipelines. */
static double limit_of(const struct prospects *prospects, int mask, double worth)
{
    double alone_s = worth * prospects->best_s;
    double others = prospects->most[(prospects->masks - 1) ^ mask];
    double shared_s = alone_s - prospects->sums_s[mask] / prospects->batch;
    if (others == 0 || shared_s <= 0)
        return alone_s;
    double rate = 1 / shared_s - others;
    return rate > 0 ? fmax(alone_s, 1 / rate) : INFINITY;
}

/* GPUs from which on an evaluation takes milliseconds. */
enum { MANY = 1024 };

/* Seconds a sample of a plan of one class, which may take longer than the class promises. */
static double class_alone_s(struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft,
                            const struct eth_hpp_draft_group *class)
{
    double least_s = INFINITY;
    draft->group_count = 1;
    draft->groups[0] = *class;
    for (int way = 0; way < (shop->cost->cluster->gpu_count > MANY ? 1 : 4); way++) {
        draft->sharded_optimizer = way & 2;
        draft->groups[0].by_stage = way & 1;
        if (draft->sharded_optimizer && shop->options->no_sharded)
            break;
        if (eth_hpp_draft_lay(shop, draft) == ETH_HPP_DRAFT_FITS)
            least_s = fmin(least_s, shop->step.step_s / shop->options->global_batch);
    }
    return least_s;
}

/* How much longer than the best partition's the step of one may be that is tried. */
static const double partition_worth[] = {
    [ETH_HPP_EFFORT_QUICK] = 1.0, [ETH_HPP_EFFORT_DEFAULT] = 1.1, [ETH_HPP_EFFORT_THOROUGH] = 1.2};

/* Stages that are tried to find the class of all pools of 64 GPUs, and about as many for all sets
 * of fewer pools. */
static const double tries_of[] = {
    [ETH_HPP_EFFORT_QUICK] = 2e5, [ETH_HPP_EFFORT_DEFAULT] = 4e6, [ETH_HPP_EFFORT_THOROUGH] = 5e7};

/* The classes of each set of pools: that of all of them first, then from few pools to many. */
static void find_classes(struct eth_hpp_workshop *shop, struct eth_hpp_class_finder *finder,
                         struct eth_hpp_draft *draft, struct prospects *prospects,
                         struct eth_hpp_classes *classes)
{
    double tries =
        tries_of[shop->effort] * pow(fmax(1, shop->cost->cluster->gpu_count / 64.0), 0.45);
    begin_prospects(shop, prospects);
    for (int turn = 0; turn < prospects->pools && !shop->failed; turn++)
        for (int mask = 1; mask < prospects->masks; mask++) {
            double limit_s = limit_of(prospects, mask, partition_worth[shop->effort]);
            if (__builtin_popcount((unsigned)mask) != (turn == 0 ? prospects->pools : turn))
                continue;
            eth_hpp_class_finder_find(finder, (unsigned)mask, prospects->part[mask], limit_s,
                                      (int64_t)(turn == 0 ? tries : tries / prospects->masks),
                                      &classes[mask]);
            if (classes[mask].count == 0) {
                note_class(prospects, mask, 0);
                continue;
            }
            note_class(prospects, mask, 1 / classes[mask].kept[0].s_per_sample);
            if (classes[mask].kept[0].s_per_sample < prospects->best_s)
                prospects->best_s = fmin(prospects->best_s,
                                         class_alone_s(shop, draft, classes[mask].kept[0].group));
        }
}

void eth_hpp_partitions_try(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                            struct eth_hpp_draft *draft)
{
    struct prospects prospects = {.pools = shop->pools.count < ETH_HPP_CLASSES_POOLS
                                               ? shop->pools.count
                                               : ETH_HPP_CLASSES_POOLS};
    prospects.masks = 1 << prospects.pools;
    size_t masks = (size_t)prospects.masks;
    struct eth_hpp_classes *classes = calloc(masks, sizeof(*classes));
    struct eth_hpp_draft_group *memory = calloc(masks * ETH_HPP_CLASSES_KEPT, sizeof(*memory));
    struct partitions *all = calloc(1, sizeof(*all));
    struct eth_hpp_class_finder *finder = eth_hpp_class_finder_make(shop, false);
    if (classes == NULL || memory == NULL || all == NULL || finder == NULL) {
        shop->failed = true;
        eth_hpp_error_memory(&shop->error, "the solver");
        goto out;
    }
    for (size_t i = 0; i < masks * ETH_HPP_CLASSES_KEPT; i++)
        classes[i / ETH_HPP_CLASSES_KEPT].kept[i % ETH_HPP_CLASSES_KEPT].group = &memory[i];
    find_classes(shop, finder, draft, &prospects, classes);
    all->classes = classes;
    all->shop = shop;
    struct partition none = {0};
    list_partitions(all, &none, (unsigned)masks - 1);
    qsort(all->list, (size_t)all->count, sizeof(all->list[0]), compare_partitions);
    int limit = shop->effort == ETH_HPP_EFFORT_QUICK ? 40 : 200, offered = 0;
    if (shop->cost->cluster->gpu_count > MANY)
        limit /= 8;
    for (int i = 0; i < all->count && offered < limit; i++)
        if (shop->options->shape == ETH_HPP_SHAPE_HPP || all->list[i].blocks == 1) {
            offer_partition(shop, candidates, draft, all, i);
            offered++;
        }
out:
    eth_hpp_class_finder_free(finder);
    free(classes);
    free(memory);
    free(all);
}
