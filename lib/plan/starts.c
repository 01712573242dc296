#include "plan/starts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/classes.h"
#include "plan/partitions.h"
#include "plan/starts_pairs.h"

static const int counts[] = {1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128};
static const int shares[] = {1, 2, 4, 8, 16, 32}; /* samples of a worker in a micro-batch */
enum { COUNTS = 16, SHARES = 6, ROUNDS_MAX = 32 };
/* Of more GPUs pairs have brought nothing that other starts had not led to. */
enum { PAIRS_GPUS = 16 };

/* Characters of candidates, above those of partitions of the pools. */
enum { MIXED = 1 << 27, EVEN = 1 << 28, FEW = 1 << 29, ONE_NODE = 1 << 30 };

/* How many candidates are kept: a quick search goes on with the best one alone. */
static int most_candidates(const struct eth_hpp_workshop *shop)
{
    return shop->effort == ETH_HPP_EFFORT_QUICK ? 1 : ETH_HPP_CANDIDATES;
}

double eth_hpp_candidates_offer(struct eth_hpp_candidates *candidates,
                                struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft,
                                int character)
{
    int at = 0, most = most_candidates(shop);
    while (at < candidates->count && candidates->list[at].character != character)
        at++;
    double limit_s = INFINITY;
    if (at < candidates->count || at == most)
        limit_s = candidates->list[at < candidates->count ? at : at - 1].step_s;
    shop->limit_s = limit_s;
    enum eth_hpp_draft_fault fault = eth_hpp_draft_lay(shop, draft);
    shop->limit_s = INFINITY;
    if (fault == ETH_HPP_DRAFT_SLOW)
        return limit_s;
    if (fault != ETH_HPP_DRAFT_FITS)
        return INFINITY;
    double step_s = shop->step.step_s;
    if (at == candidates->count && at < most)
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

/* Ways after the first are tried only where that is within WAYS_WORTH of the best. */
#define WAYS_WORTH 1.3

void eth_hpp_candidates_offer_ways(struct eth_hpp_candidates *candidates,
                                   struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft,
                                   int character)
{
    for (int way = 0; way < 4; way++) {
        draft->sharded_optimizer = way & 2;
        if (draft->sharded_optimizer && shop->options->no_sharded)
            break;
        for (int g = 0; g < draft->group_count; g++)
            draft->groups[g].by_stage = way & 1;
        double step_s = eth_hpp_candidates_offer(candidates, shop, draft, character);
        if (step_s < INFINITY && step_s > WAYS_WORTH * candidates->list[0].step_s)
            break;
    }
}

/* The step that a draft must promise to be tried. A beat alone says little of fill, drain and sums:
 * with many candidates 1.1 x the worst that is kept. */
static double worth(const struct eth_hpp_workshop *shop,
                    const struct eth_hpp_candidates *candidates)
{
    int most = most_candidates(shop);
    if (candidates->count < most)
        return INFINITY;
    return (most > 1 ? 1.1 : 1) * candidates->list[most - 1].step_s;
}

/* Tries a draft of one group whose stages are set but for their layers: without recompute, else
 * with it, else with a sharded optimizer too. */
static void try_group(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                      struct eth_hpp_draft *draft, int character)
{
    struct eth_hpp_draft_group *group = &draft->groups[0];
    const struct eth_hpp_solver_options *options = shop->options;
    double rounds = (double)options->global_batch / group->micro_batch / group->replicas;
    double longest_s = worth(shop, candidates);
    for (int try = 0; try < 4; try++) {
        bool recompute = try & 1, sharded = try & 2;
        double beat_s = longest_s / rounds;
        if ((recompute && options->no_recompute) || (sharded && options->no_sharded))
            continue;
        draft->sharded_optimizer = sharded;
        for (int s = 0; s < group->stage_count; s++)
            group->stages[s].recompute = recompute;
        if (!eth_hpp_draft_balance(shop, draft, 0, &beat_s)) {
            if (isinf(beat_s) && longest_s < INFINITY)
                return;
            continue;
        }
        if (rounds * beat_s >= longest_s ||
            eth_hpp_candidates_offer(candidates, shop, draft, character) < INFINITY)
            return;
    }
}

/* ---- one node ---- */

/* Where the network is slow the GPUs of a single node may be all that is worth using. */
static void try_one_node(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                         struct eth_hpp_draft *draft)
{
    struct eth_hpp_draft_group groups[ETH_HPP_CLASSES_KEPT];
    struct eth_hpp_class_finder *finder = eth_hpp_class_finder_make(shop, true);
    if (finder == NULL) {
        shop->failed = true;
        eth_hpp_error_memory(&shop->error, "the solver");
        return;
    }
    for (int p = 0; p < shop->pools.count && p < ETH_HPP_CLASSES_POOLS; p++) {
        struct eth_hpp_classes classes = {0};
        if (shop->pools.pools[p].node_count == 1)
            continue; /* it is a pool as others */
        for (int i = 0; i < ETH_HPP_CLASSES_KEPT; i++)
            classes.kept[i].group = &groups[i];
        draft->group_count = 1;
        eth_hpp_class_finder_find(finder, 1u << p, shop->options->global_batch,
                                  worth(shop, candidates) / shop->options->global_batch,
                                  INT64_MAX / 2, &classes);
        for (int i = 0; i < classes.count; i++) {
            draft->groups[0] = *classes.kept[i].group;
            eth_hpp_candidates_offer_ways(candidates, shop, draft, ONE_NODE + p);
        }
    }
    eth_hpp_class_finder_free(finder);
}

/* ---- mixed stages ---- */

static void try_mixed(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                      struct eth_hpp_draft *draft, unsigned mask)
{
    int order[ETH_HPP_CLASSES_POOLS], pools = eth_hpp_classes_order(shop, mask, false, order);
    struct eth_hpp_draft_group *group = &draft->groups[0];
    double rate[ETH_HPP_CLASSES_POOLS]; /* samples a second of a GPU at best */
    draft->group_count = 1;
    if (pools < 2 || pools > ETH_HPP_DRAFT_PARTS)
        return;
    for (int i = 0; i < pools; i++)
        rate[i] = eth_hpp_classes_rate(shop, order[i]) / shop->pools.pools[order[i]].gpus;
    for (int c = 0; c < COUNTS; c++)
        for (int d = 0; d < COUNTS && counts[d] <= 16; d++) {
            int depth = counts[d];
            if (depth > shop->cost->profile->layer_count)
                continue;
            struct eth_hpp_draft_stage stage = {.degree = 0, .part_count = pools};
            bool whole = shop->cost->degree[0] == 1;
            double rates = 0;
            for (int i = 0; i < pools; i++) {
                stage.parts[i].pool = order[i];
                stage.parts[i].workers = shop->pools.pools[order[i]].gpus / (counts[c] * depth);
                whole = whole && stage.parts[i].workers > 0 &&
                        eth_hpp_classes_has_degree(shop, order[i], 0);
                rates += counts[c] * depth * stage.parts[i].workers * rate[i];
            }
            if (!whole || shop->options->global_batch >= rates * worth(shop, candidates))
                continue;
            group->replicas = counts[c];
            group->extra_in_flight = 0;
            group->by_stage = false;
            group->stage_count = depth;
            for (int s = 0; s < depth; s++)
                group->stages[s] = stage;
            for (int k = 1; k <= ROUNDS_MAX; k++) { /* micro-batches of each pipeline */
                group->micro_batch = shop->options->global_batch / (counts[c] * k);
                if (shop->options->global_batch % (counts[c] * k) == 0 &&
                    group->micro_batch >= eth_hpp_draft_workers(&stage))
                    try_group(shop, candidates, draft, MIXED + (int)mask);
            }
        }
}

/* ---- some of the GPUs ---- */

/* The other starts share out all GPUs of a pool. Where there are more GPUs than samples to give
 * them, a few pipelines of single GPUs are what is left. */
static void try_few(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                    struct eth_hpp_draft *draft)
{
    struct eth_hpp_draft_group *group = &draft->groups[0];
    int layers = shop->cost->profile->layer_count;
    draft->group_count = 1;
    for (int pool = 0; pool < shop->pools.count; pool++)
        for (int d = 0; d < shop->cost->degrees; d++)
            for (int depth = 1; depth <= layers && depth <= ETH_HPP_DRAFT_STAGES; depth++) {
                if (shop->cost->cluster->gpu_count > 1024 && candidates->count > 0)
                    break; /* where an evaluation takes milliseconds */
                for (int c = 0; c < COUNTS && eth_hpp_classes_may_use(shop, d); c++) {
                    if (counts[c] * depth * shop->cost->degree[d] > shop->pools.pools[pool].gpus ||
                        !eth_hpp_classes_has_degree(shop, pool, d))
                        break;
                    group->replicas = counts[c];
                    group->extra_in_flight = 0;
                    group->by_stage = false;
                    group->stage_count = depth;
                    for (int s = 0; s < depth; s++)
                        group->stages[s] = (struct eth_hpp_draft_stage){
                            .degree = d, .part_count = 1, .parts = {{pool, 1}}};
                    for (int k = 0; k < SHARES; k++) {
                        group->micro_batch = shares[k];
                        if (counts[c] * shares[k] <= shop->options->global_batch)
                            try_group(shop, candidates, draft, FEW + depth);
                    }
                }
            }
}

/* ---- even ---- */

/* The pool of the worker-th group of `tensor_parallel` GPUs in file order, or -1 if they differ. */
static int pool_of(const int *pool_of_gpu, int worker, int tensor_parallel)
{
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
            int pool = pool_of(pool_of_gpu, s * pipelines + p, tensor_parallel);
            if (pool < 0 || !eth_hpp_classes_has_degree(shop, pool, degree))
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
            if (!eth_hpp_classes_may_use(shop, d) || cluster->gpu_count % gpus != 0 ||
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
    int pools =
        shop->pools.count < ETH_HPP_CLASSES_POOLS ? shop->pools.count : ETH_HPP_CLASSES_POOLS;
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
    eth_hpp_partitions_try(shop, candidates, draft);
    if (shop->options->shape == ETH_HPP_SHAPE_HPP) {
        try_one_node(shop, candidates, draft);
        try_mixed(shop, candidates, draft, all);
        for (int p = 0; p < pools && pools > 2; p++)
            try_mixed(shop, candidates, draft, all ^ 1u << p);
        if (shop->effort != ETH_HPP_EFFORT_QUICK && shop->cost->cluster->gpu_count <= PAIRS_GPUS)
            eth_hpp_pairs_try(shop, candidates, draft);
    }
    if (candidates->count == 0)
        try_few(shop, candidates, draft);
    free(draft);
}
