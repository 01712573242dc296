#include "plan/starts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int widths[] = {1, 2, 4, 8};
static const int counts[] = {1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128};
static const int shares[] = {1, 2, 4, 8, 16, 32}; /* samples of a worker in a micro-batch */
/* POOLS_MAX: with more pools than that the families combine the first ones only. */
enum { WIDTHS = 4, COUNTS = 16, SHARES = 6, POOLS_MAX = 16, CLASSES_KEPT = 3 };

/* Characters of candidates: the family, and for equal pipelines the pools and the depth. */
enum { CLASS_PER_KIND = 1 << 26, MIXED = 1 << 27, EVEN = 1 << 28 };

double eth_hpp_candidates_offer(struct eth_hpp_candidates *candidates,
                                struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft,
                                int character)
{
    if (eth_hpp_draft_lay(shop, draft) != ETH_HPP_DRAFT_FITS)
        return INFINITY;
    double step_s = shop->step.step_s;
    int at = 0;
    while (at < candidates->count && candidates->list[at].character != character)
        at++;
    if (at == candidates->count && at < ETH_HPP_CANDIDATES)
        candidates->list[candidates->count++].step_s = INFINITY;
    else if (at == candidates->count)
        at--; /* none of this character: the worst gives way */
    if (step_s >= candidates->list[at].step_s)
        return step_s;
    for (; at > 0 && candidates->list[at - 1].step_s > step_s; at--) {
        candidates->list[at].step_s = candidates->list[at - 1].step_s;
        candidates->list[at].character = candidates->list[at - 1].character;
        eth_hpp_draft_copy(&candidates->list[at].draft, &candidates->list[at - 1].draft);
    }
    candidates->list[at].step_s = step_s;
    candidates->list[at].character = character;
    eth_hpp_draft_copy(&candidates->list[at].draft, draft);
    return step_s;
}

static bool has_degree(const struct eth_hpp_workshop *shop, int pool, int degree)
{
    const struct eth_hpp_pool *p = &shop->pools.pools[pool];
    return eth_hpp_cost_most_samples(shop->cost, p->device, degree) > 0 &&
           shop->cost->degree[degree] <= p->per_node;
}

static bool degree_allowed(const struct eth_hpp_workshop *shop, int degree)
{
    int most = shop->options->max_tensor_parallel;
    return most == 0 || shop->cost->degree[degree] <= most;
}

/* Tries a draft of one group whose stages are set but for their layers: without recompute, else
 * with it, else with a sharded optimizer too. `worth` is the step that it must promise. */
static void try_group(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                      struct eth_hpp_draft *draft, int character, double worth)
{
    struct eth_hpp_draft_group *group = &draft->groups[0];
    const struct eth_hpp_solver_options *options = shop->options;
    for (int try = 0; try < 4; try++) {
        bool recompute = try & 1, sharded = try & 2;
        double beat_s;
        if ((recompute && options->no_recompute) || (sharded && options->no_sharded))
            continue;
        draft->sharded_optimizer = sharded;
        for (int s = 0; s < group->stage_count; s++)
            group->stages[s].recompute = recompute;
        if (!eth_hpp_draft_balance(shop, draft, 0, &beat_s))
            continue;
        double rounds = (double)options->global_batch / group->micro_batch / group->replicas;
        if (rounds * beat_s < worth &&
            eth_hpp_candidates_offer(candidates, shop, draft, character) < INFINITY)
            return;
        if (rounds * beat_s >= worth)
            return;
    }
}

static double worth(const struct eth_hpp_candidates *candidates)
{
    /* A beat alone says little of fill, drain and sums: 1.1 x the worst that is kept. */
    return candidates->count < ETH_HPP_CANDIDATES
               ? INFINITY
               : 1.1 * candidates->list[ETH_HPP_CANDIDATES - 1].step_s;
}

/* ---- equal pipelines ---- */

/* Pools by memory, more first: early stages hold more micro-batches. Reversed for the other order.
 */
static int order_pools(const struct eth_hpp_workshop *shop, unsigned mask, bool reversed,
                       int *order)
{
    const struct eth_hpp_device *devices = shop->cost->cluster->devices;
    int count = 0;
    for (int p = 0; p < POOLS_MAX; p++) {
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

/* A chain of stages of `width` workers over the pools: as many as `replicas` such chains leave. */
static bool make_chain(const struct eth_hpp_workshop *shop, const int *order, int pools,
                       int replicas, int width, int degree, struct eth_hpp_draft_group *group)
{
    group->replicas = replicas;
    group->stage_count = 0;
    group->extra_in_flight = 0;
    for (int i = 0; i < pools; i++) {
        int share = shop->pools.pools[order[i]].gpus / replicas;
        if (!has_degree(shop, order[i], degree))
            return false;
        int stages = share / (width * shop->cost->degree[degree]);
        if (stages == 0 || group->stage_count + stages > ETH_HPP_DRAFT_STAGES)
            return false;
        for (int s = 0; s < stages; s++)
            group->stages[group->stage_count++] = (struct eth_hpp_draft_stage){
                .degree = degree, .part_count = 1, .parts = {{order[i], width}}};
    }
    return group->stage_count <= shop->cost->profile->layer_count;
}

static void try_chains(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                       struct eth_hpp_draft *draft, unsigned mask, bool reversed)
{
    int order[POOLS_MAX], pools = order_pools(shop, mask, reversed, order);
    draft->group_count = 1;
    for (int d = 0; d < shop->cost->degrees; d++)
        for (int c = 0; c < COUNTS && degree_allowed(shop, d); c++)
            for (int w = 0; w < WIDTHS; w++) {
                struct eth_hpp_draft_group *group = &draft->groups[0];
                if (!make_chain(shop, order, pools, counts[c], widths[w], d, group))
                    continue;
                for (int k = 0; k < SHARES; k++) {
                    group->micro_batch = shares[k] * widths[w];
                    if ((int64_t)group->micro_batch * counts[c] <= shop->options->global_batch)
                        try_group(shop, candidates, draft, (int)(mask << 8) + group->stage_count,
                                  worth(candidates));
                }
            }
}

/* ---- a class of pipelines for each kind ---- */

/* The best groups of a pool by itself, best first. */
struct classes {
    int count;
    struct {
        double s_per_sample;
        struct eth_hpp_draft_group *group;
    } kept[CLASSES_KEPT];
};

static void keep_class(struct classes *classes, const struct eth_hpp_draft_group *group,
                       double s_per_sample)
{
    int at = classes->count;
    for (int i = 0; i < classes->count; i++) /* one of each depth */
        if (classes->kept[i].group->stage_count == group->stage_count)
            at = i;
    if (at == CLASSES_KEPT)
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

/* All pipelines of one pool. Its share of the batch is not known yet: fill and drain are weighed as
 * if it were the pool's part of all GPUs. */
static void find_classes(struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft, int pool,
                         struct classes *classes)
{
    struct eth_hpp_draft_group *group = &draft->groups[0];
    double part = 0;
    for (int p = 0; p < shop->pools.count; p++)
        part += shop->pools.pools[p].gpus;
    part = shop->options->global_batch * (shop->pools.pools[pool].gpus / part);
    draft->group_count = 1;
    draft->sharded_optimizer = false;
    for (int d = 0; d < shop->cost->degrees; d++)
        for (int w = 0; w < WIDTHS && degree_allowed(shop, d); w++)
            for (int depth = 1; depth <= 24 && depth <= shop->cost->profile->layer_count; depth++) {
                int gpus = depth * widths[w] * shop->cost->degree[d];
                int replicas = shop->pools.pools[pool].gpus / gpus;
                if (replicas == 0 || !has_degree(shop, pool, d))
                    continue;
                *group = (struct eth_hpp_draft_group){.replicas = replicas, .stage_count = depth};
                for (int k = 0; k < 2 * SHARES; k++) {
                    bool recompute = k >= SHARES;
                    double beat_s;
                    for (int s = 0; s < depth; s++)
                        group->stages[s] =
                            (struct eth_hpp_draft_stage){.degree = d,
                                                         .recompute = recompute,
                                                         .part_count = 1,
                                                         .parts = {{pool, widths[w]}}};
                    group->micro_batch = shares[k % SHARES] * widths[w];
                    if ((recompute && shop->options->no_recompute) ||
                        !eth_hpp_draft_balance(shop, draft, 0, &beat_s))
                        continue;
                    double rounds = part / (replicas * group->micro_batch);
                    keep_class(classes, group,
                               (rounds < 1 ? 1 : rounds) * beat_s / part +
                                   (depth - 1) * beat_s / part);
                }
            }
}

static void offer_classes(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                          struct eth_hpp_draft *draft, const struct classes *classes, unsigned mask,
                          int other_pool, int other)
{
    draft->group_count = 0;
    for (int p = 0; p < POOLS_MAX; p++) {
        int choice = p == other_pool ? other : 0;
        if ((mask >> p & 1) && choice < classes[p].count)
            draft->groups[draft->group_count++] = *classes[p].kept[choice].group;
    }
    for (int sharded = 0; sharded < 2 && draft->group_count > 0; sharded++) {
        draft->sharded_optimizer = sharded;
        if (!sharded || !shop->options->no_sharded)
            eth_hpp_candidates_offer(candidates, shop, draft, CLASS_PER_KIND + (int)(mask << 2));
    }
}

static void try_classes(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                        struct eth_hpp_draft *draft)
{
    int pools = shop->pools.count < POOLS_MAX ? shop->pools.count : POOLS_MAX;
    struct classes classes[POOLS_MAX] = {0};
    struct eth_hpp_draft_group *memory = calloc((size_t)pools * CLASSES_KEPT, sizeof(*memory));
    if (memory == NULL) {
        shop->failed = true;
        eth_hpp_error_memory(&shop->error, "the solver");
        return;
    }
    for (int p = 0; p < pools; p++) {
        for (int i = 0; i < CLASSES_KEPT; i++)
            classes[p].kept[i].group = &memory[p * CLASSES_KEPT + i];
        find_classes(shop, draft, p, &classes[p]);
    }
    unsigned all = (1u << pools) - 1;
    for (unsigned mask = all; mask > 0; mask--) {
        if (pools > 6 && __builtin_popcount(mask ^ all) > 2)
            continue;
        for (int p = 0; p < pools; p++)
            for (int i = p == 0 ? 0 : 1; i < CLASSES_KEPT; i++)
                offer_classes(shop, candidates, draft, classes, mask, p, i);
    }
    free(memory);
}

/* ---- mixed stages ---- */

static void try_mixed(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                      struct eth_hpp_draft *draft, unsigned mask)
{
    int order[POOLS_MAX], pools = order_pools(shop, mask, false, order);
    struct eth_hpp_draft_group *group = &draft->groups[0];
    draft->group_count = 1;
    if (pools < 2 || pools > ETH_HPP_DRAFT_PARTS)
        return;
    for (int c = 0; c < COUNTS; c++)
        for (int depth = 1; depth <= 16 && depth <= shop->cost->profile->layer_count; depth++) {
            struct eth_hpp_draft_stage stage = {.degree = 0, .part_count = pools};
            bool whole = shop->cost->degree[0] == 1;
            for (int i = 0; i < pools; i++) {
                stage.parts[i].pool = order[i];
                stage.parts[i].workers = shop->pools.pools[order[i]].gpus / (counts[c] * depth);
                whole = whole && stage.parts[i].workers > 0 && has_degree(shop, order[i], 0);
            }
            if (!whole)
                continue;
            group->replicas = counts[c];
            group->extra_in_flight = 0;
            group->stage_count = depth;
            for (int s = 0; s < depth; s++)
                group->stages[s] = stage;
            for (int k = 0; k < SHARES; k++) {
                group->micro_batch = shares[k] * eth_hpp_draft_workers(&stage);
                try_group(shop, candidates, draft, MIXED + (int)mask, worth(candidates));
            }
        }
}

/* ---- even ---- */

/* The pool of the worker-th group of `tensor_parallel` GPUs in file order, or -1 if they differ. */
static int pool_of(const struct eth_hpp_workshop *shop, const int *pool_of_gpu, int worker,
                   int tensor_parallel)
{
    (void)shop;
    int first = worker * tensor_parallel;
    for (int i = 1; i < tensor_parallel; i++)
        if (pool_of_gpu[first + i] != pool_of_gpu[first])
            return -1;
    return pool_of_gpu[first];
}

/* Decoders in equal numbers, the rest to the first stages; the first and the last layer (embedding
 * and head) come on top. */
static void cut_evenly(struct eth_hpp_draft_group *group, int layers)
{
    int depth = group->stage_count, middle = layers > 2 ? layers - 2 : 0;
    for (int s = 0; s < depth; s++)
        group->stages[s].layers = middle / depth + (s < middle % depth);
    group->stages[0].layers += layers > 1;
    group->stages[depth - 1].layers += 1;
}

/* Stage s of pipeline p is worker s x pipelines + p in file order, as launchers number ranks. */
static bool make_even(const struct eth_hpp_workshop *shop, const int *pool_of_gpu, int pipelines,
                      int depth, int degree, struct eth_hpp_draft *draft)
{
    int tensor_parallel = shop->cost->degree[degree];
    draft->group_count = 0;
    for (int p = 0; p < pipelines; p++) {
        struct eth_hpp_draft_group group = {.replicas = 1, .stage_count = depth};
        for (int s = 0; s < depth; s++) {
            int pool = pool_of(shop, pool_of_gpu, s * pipelines + p, tensor_parallel);
            if (pool < 0 || !has_degree(shop, pool, degree))
                return false;
            group.stages[s] = (struct eth_hpp_draft_stage){
                .degree = degree, .part_count = 1, .parts = {{pool, 1}}};
        }
        cut_evenly(&group, shop->cost->profile->layer_count);
        struct eth_hpp_draft_group *before =
            draft->group_count > 0 ? &draft->groups[draft->group_count - 1] : NULL;
        if (before != NULL && memcmp(before->stages, group.stages, sizeof(group.stages)) == 0)
            before->replicas++;
        else if (draft->group_count == ETH_HPP_DRAFT_GROUPS)
            return false;
        else
            draft->groups[draft->group_count++] = group;
    }
    return true;
}

static void try_even(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                     struct eth_hpp_draft *draft)
{
    const struct eth_hpp_cluster *cluster = shop->cost->cluster;
    int layers = shop->cost->profile->layer_count, at = 0;
    int *pool_of_gpu = malloc((size_t)cluster->gpu_count * sizeof(*pool_of_gpu));
    if (pool_of_gpu == NULL) {
        shop->failed = true;
        eth_hpp_error_memory(&shop->error, "the solver");
        return;
    }
    for (int n = 0; n < cluster->node_count; n++)
        for (int g = 0; g < cluster->nodes[n].gpus; g++, at++) {
            pool_of_gpu[at] = -1;
            for (int p = 0; p < shop->pools.count; p++) {
                const struct eth_hpp_pool *pool = &shop->pools.pools[p];
                for (int i = 0; i < pool->node_count; i++)
                    if (pool->nodes[i] == n && pool->device == cluster->nodes[n].devices[g])
                        pool_of_gpu[at] = p;
            }
        }
    for (int d = 0; d < shop->cost->degrees; d++)
        for (int depth = 1; depth <= layers && depth <= ETH_HPP_DRAFT_STAGES; depth++) {
            int gpus = depth * shop->cost->degree[d];
            if (!degree_allowed(shop, d) || cluster->gpu_count % gpus != 0 ||
                (depth > 1 && layers - 2 < depth) ||
                !make_even(shop, pool_of_gpu, cluster->gpu_count / gpus, depth, d, draft))
                continue;
            for (int k = 0; k < 2 * SHARES; k++) {
                draft->sharded_optimizer = false;
                for (int g = 0; g < draft->group_count; g++) {
                    draft->groups[g].micro_batch = shares[k % SHARES];
                    for (int s = 0; s < depth; s++)
                        draft->groups[g].stages[s].recompute = k >= SHARES;
                }
                if (k < SHARES || !shop->options->no_recompute)
                    eth_hpp_candidates_offer(candidates, shop, draft, EVEN);
            }
        }
    free(pool_of_gpu);
}

void eth_hpp_starts_collect(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates)
{
    struct eth_hpp_draft *draft = calloc(1, sizeof(*draft));
    int pools = shop->pools.count < POOLS_MAX ? shop->pools.count : POOLS_MAX;
    unsigned all = (1u << pools) - 1;
    if (draft == NULL) {
        shop->failed = true;
        eth_hpp_error_memory(&shop->error, "the solver");
        return;
    }
    if (shop->options->shape == ETH_HPP_SHAPE_EVEN) {
        try_even(shop, candidates, draft);
        free(draft);
        return;
    }
    for (int reversed = 0; reversed < (pools > 1 ? 2 : 1); reversed++) {
        try_chains(shop, candidates, draft, all, reversed);
        for (int p = 0; p < pools && pools > 1; p++) {
            if (pools > 2)
                try_chains(shop, candidates, draft, all ^ 1u << p, reversed);
            if (!reversed)
                try_chains(shop, candidates, draft, 1u << p, false);
        }
    }
    if (shop->options->shape == ETH_HPP_SHAPE_HPP) {
        try_classes(shop, candidates, draft);
        try_mixed(shop, candidates, draft, all);
        for (int p = 0; p < pools && pools > 2; p++)
            try_mixed(shop, candidates, draft, all ^ 1u << p);
    }
    free(draft);
}
