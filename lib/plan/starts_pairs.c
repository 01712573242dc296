/*
 * Many short pipelines, each on a few GPUs: pairs of a first and a last stage, of GPUs of two sets
 * of pools or of one pool's, one stage so much wider as GPUs of its pool are slower. What is left
 * of the pools works alone, or is idle.
 */
#include "plan/starts_pairs.h"

#include <string.h>

#include "plan/classes.h"

enum { PAIRS = 1 << 26, OWN_PAIRS = 1 << 25 }; /* characters, with the first stages' pools */
enum { SHARES_MOST = 4 };                      /* samples of a worker in the wider stage */

/* Workers of the first and the last stage. */
struct width {
    int first, last;
};
static const struct width widths[] = {{1, 1}, {2, 1}, {3, 1}, {4, 1},
                                      {1, 2}, {1, 3}, {2, 3}, {3, 2}};
enum { WIDTHS = sizeof(widths) / sizeof(widths[0]) };

/* Where memory asks for it first stages recompute, which hold the most, then all. */
static bool cut(struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft, int g)
{
    struct eth_hpp_draft_group *group = &draft->groups[g];
    const int most = shop->options->no_recompute ? 0 : group->stage_count;
    for (int recomputed = 0; recomputed <= most; recomputed++) {
        for (int s = 0; s < group->stage_count; s++)
            group->stages[s].recompute = s < recomputed;
        if (eth_hpp_draft_balance(shop, draft, g, NULL))
            return true;
    }
    return false;
}

/* Pipelines of one stage or two, whose workers stand in these pools. */
static bool add_group(struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft, int replicas,
                      int micro_batch, const int *pools, const int *workers, int stages)
{
    const int layers = shop->cost->profile->layer_count, g = draft->group_count;
    if (g == ETH_HPP_DRAFT_GROUPS)
        return false;
    struct eth_hpp_draft_group *group = &draft->groups[g];
    memset(group, 0, sizeof(*group));
    group->replicas = replicas;
    group->micro_batch = micro_batch;
    group->stage_count = stages;
    for (int s = 0; s < stages; s++) {
        group->stages[s].part_count = 1;
        group->stages[s].parts[0].pool = pools[s];
        group->stages[s].parts[0].workers = workers[s];
        group->stages[s].layers = s + 1 < stages ? 1 : layers - s;
    }
    draft->group_count++;
    if (!cut(shop, draft, g))
        draft->group_count--;
    return draft->group_count > g;
}

/* How many pairs two pools, which may be one, have GPUs for. */
static int count_pairs(const int *left, int a, int b, struct width width)
{
    if (a == b)
        return left[a] / (width.first + width.last);
    const int firsts = left[a] / width.first, lasts = left[b] / width.last;
    return firsts < lasts ? firsts : lasts;
}

/* As many pairs as there are GPUs for in both sets, within pools where the sets are one;
 * left[pool] becomes what is left of each. */
static bool make_pairs(struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft, unsigned firsts,
                       unsigned lasts, struct width width, int micro_batch, int *left)
{
    draft->group_count = 0;
    for (int p = 0; p < shop->pools.count; p++)
        left[p] = shop->pools.pools[p].gpus;
    for (int a = 0; a < shop->pools.count; a++)
        for (int b = 0; b < shop->pools.count && firsts >> a & 1; b++) {
            const int pools[] = {a, b}, workers[] = {width.first, width.last};
            const bool may = lasts >> b & 1 && (firsts != lasts || a == b);
            const int pairs = may ? count_pairs(left, a, b, width) : 0;
            if (pairs == 0)
                continue;
            if (!add_group(shop, draft, pairs, micro_batch, pools, workers, 2))
                return false;
            left[a] -= pairs * width.first;
            left[b] -= pairs * width.last;
        }
    return draft->group_count > 0;
}

/* GPUs that are left as pipelines of their own, of pools where that fits. */
static void add_single(struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft, int micro_batch,
                       const int *left)
{
    const int one = 1;
    for (int p = 0; p < shop->pools.count; p++)
        if (left[p] > 0)
            add_group(shop, draft, left[p], micro_batch, &p, &one, 1);
}

static void try_pairs(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                      struct eth_hpp_draft *draft, unsigned firsts, unsigned lasts)
{
    int left[ETH_HPP_CLASSES_POOLS];
    for (int w = 0; w < WIDTHS; w++)
        for (int share = 1; share <= SHARES_MOST && !shop->failed; share *= 2) {
            const int widest = widths[w].first > widths[w].last ? widths[w].first : widths[w].last;
            if (widest * share > shop->options->global_batch ||
                !make_pairs(shop, draft, firsts, lasts, widths[w], widest * share, left))
                continue;
            const int character = firsts == lasts ? OWN_PAIRS + (int)firsts : PAIRS + (int)firsts;
            const int pairs = draft->group_count;
            eth_hpp_candidates_offer_ways(candidates, shop, draft, character);
            add_single(shop, draft, share, left);
            if (draft->group_count > pairs)
                eth_hpp_candidates_offer_ways(candidates, shop, draft, character);
        }
}

void eth_hpp_pairs_try(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                       struct eth_hpp_draft *draft)
{
    const int pools = shop->pools.count;
    if (pools > ETH_HPP_CLASSES_POOLS || shop->cost->profile->layer_count < 2 ||
        shop->cost->degree[0] != 1)
        return;
    for (unsigned firsts = 1; firsts < 1u << pools; firsts++)
        for (unsigned lasts = 1; lasts < 1u << pools; lasts++) {
            if (firsts == lasts || (firsts & lasts) == 0)
                try_pairs(shop, candidates, draft, firsts, lasts);
        }
}
