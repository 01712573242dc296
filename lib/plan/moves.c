/* The moves of the search: each changes a draft a little. */
#include "plan/moves.h"

#include <string.h>

/* splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
static uint64_t draw(struct eth_hpp_search *search)
{
    uint64_t z = search->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int below(struct eth_hpp_search *search, int most)
{
    return (int)(draw(search) % (uint64_t)most);
}

double eth_hpp_search_unit(struct eth_hpp_search *search)
{
    return (double)(draw(search) >> 11) / 9007199254740992.0;
}

static struct eth_hpp_draft_group *any_group(struct eth_hpp_search *search)
{
    if (search->focus >= 0 && search->focus < search->draft->group_count)
        return &search->draft->groups[search->focus];
    return &search->draft->groups[below(search, search->draft->group_count)];
}

static struct eth_hpp_draft_stage *any_stage(struct eth_hpp_search *search,
                                             struct eth_hpp_draft_group *group)
{
    return &group->stages[below(search, group->stage_count)];
}

static int idle(const struct eth_hpp_search *search, int pool)
{
    return search->shop->pools.pools[pool].gpus -
           eth_hpp_draft_used(search->shop, search->draft, pool);
}

static void insert_stage(struct eth_hpp_draft_group *group, int at,
                         const struct eth_hpp_draft_stage *stage)
{
    struct eth_hpp_draft_stage copy = *stage; /* it may stand in the group itself */
    memmove(&group->stages[at + 1], &group->stages[at],
            (size_t)(group->stage_count - at) * sizeof(group->stages[0]));
    group->stages[at] = copy;
    group->stage_count++;
}

static void remove_stage(struct eth_hpp_draft_group *group, int at)
{
    group->stage_count--;
    memmove(&group->stages[at], &group->stages[at + 1],
            (size_t)(group->stage_count - at) * sizeof(group->stages[0]));
}

/* ---- moves: each changes the draft and says whether it did ---- */

static bool move_cut(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    if (group->stage_count < 2)
        return false;
    int s = below(search, group->stage_count - 1), down = below(search, 2);
    struct eth_hpp_draft_stage *from = &group->stages[s + down], *to = &group->stages[s + 1 - down];
    int layers = 1 + (below(search, 4) == 0);
    if (from->layers <= layers)
        return false;
    from->layers -= layers;
    to->layers += layers;
    return true;
}

/* One layer goes from one stage to another through all between. */
static bool move_cuts_between(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    struct eth_hpp_draft_stage *from = any_stage(search, group), *to = any_stage(search, group);
    if (from == to || from->layers < 2)
        return false;
    from->layers--;
    to->layers++;
    return true;
}

static bool change_micro_batch(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    int before = group->micro_batch;
    switch (below(search, 4)) {
    case 0:
        group->micro_batch *= 2;
        break;
    case 1:
        group->micro_batch /= 2;
        break;
    case 2:
        group->micro_batch += eth_hpp_draft_workers(&group->stages[0]);
        break;
    default:
        group->micro_batch -= eth_hpp_draft_workers(&group->stages[0]);
    }
    if (below(search, 3) == 0)
        group->uncut = true;
    return group->micro_batch > 0 && group->micro_batch != before;
}

static bool change_in_flight(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    int before = group->extra_in_flight;
    group->extra_in_flight += below(search, 2) == 0 ? 1 : -1;
    if (below(search, 4) == 0)
        group->extra_in_flight = below(search, 2) == 0 ? 0 : 4 * (before + 1);
    if (group->extra_in_flight < 0)
        group->extra_in_flight = 0;
    return group->extra_in_flight != before && group->extra_in_flight < 4096;
}

static bool change_recompute(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    if (search->options->no_recompute)
        return false;
    struct eth_hpp_draft_stage *stage = any_stage(search, group);
    stage->recompute = !stage->recompute;
    if (below(search, 2) == 0)
        group->uncut = true;
    return true;
}

static bool change_sharding(struct eth_hpp_search *search)
{
    if (search->options->no_sharded)
        return false;
    search->draft->sharded_optimizer = !search->draft->sharded_optimizer;
    return true;
}

static bool change_workers(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    struct eth_hpp_draft_stage *stage = any_stage(search, group);
    int part = below(search, stage->part_count);
    int before = stage->parts[part].workers;
    if (below(search, 2) == 0)
        stage->parts[part].workers = below(search, 2) == 0 ? before + 1 : before * 2;
    else
        stage->parts[part].workers = below(search, 2) == 0 ? before - 1 : before / 2;
    if (stage->parts[part].workers == 0) {
        if (stage->part_count == 1)
            return false;
        stage->parts[part] = stage->parts[--stage->part_count];
    }
    if (below(search, 2) == 0)
        group->uncut = true;
    return true;
}

/* A worker goes from one stage to another of the same pool. */
static bool shift_worker(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    struct eth_hpp_draft_stage *from = any_stage(search, group), *to = any_stage(search, group);
    if (from == to || from->parts[0].pool != to->parts[0].pool || from->parts[0].workers < 2)
        return false;
    from->parts[0].workers--;
    to->parts[0].workers++;
    group->uncut = true;
    return true;
}

static bool mix_stage(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    struct eth_hpp_draft_stage *stage = any_stage(search, group);
    int pool = below(search, search->shop->pools.count);
    if (search->options->shape != ETH_HPP_SHAPE_HPP || stage->part_count == ETH_HPP_DRAFT_PARTS ||
        eth_hpp_cost_most_samples(search->shop->cost, search->shop->pools.pools[pool].device,
                                  stage->degree) == 0)
        return false;
    for (int p = 0; p < stage->part_count; p++)
        if (stage->parts[p].pool == pool)
            return false;
    stage->parts[stage->part_count].pool = pool;
    stage->parts[stage->part_count++].workers = 1;
    if (below(search, 2) == 0)
        group->uncut = true;
    return true;
}

static bool change_pool(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    struct eth_hpp_draft_stage *stage = any_stage(search, group);
    int pool = below(search, search->shop->pools.count);
    if (stage->part_count > 1 || stage->parts[0].pool == pool ||
        eth_hpp_cost_most_samples(search->shop->cost, search->shop->pools.pools[pool].device,
                                  stage->degree) == 0)
        return false;
    stage->parts[0].pool = pool;
    group->uncut = true;
    return true;
}

static bool swap_stages(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    struct eth_hpp_draft_stage *a = any_stage(search, group), *b = any_stage(search, group);
    if (a->parts[0].pool == b->parts[0].pool && a->parts[0].workers == b->parts[0].workers)
        return false;
    struct eth_hpp_draft_stage keep = *a;
    *a = *b;
    *b = keep;
    group->uncut = true;
    return true;
}

/* The same GPUs in larger or smaller tensor-parallel groups. */
static bool change_degree(struct eth_hpp_search *search)
{
    const struct eth_hpp_cost *cost = search->shop->cost;
    struct eth_hpp_draft_group *group = any_group(search);
    int all = below(search, 2), chosen = below(search, group->stage_count);
    int step = below(search, 2) == 0 ? 1 : -1;
    bool changed = false;
    for (int s = 0; s < group->stage_count; s++) {
        struct eth_hpp_draft_stage *stage = &group->stages[s];
        int degree = stage->degree + step;
        if ((!all && s != chosen) || stage->part_count > 1 || degree < 0 || degree >= cost->degrees)
            continue;
        const struct eth_hpp_pool *pool = &search->shop->pools.pools[stage->parts[0].pool];
        int most = search->options->max_tensor_parallel;
        int gpus = stage->parts[0].workers * cost->degree[stage->degree];
        int tensor_parallel = cost->degree[degree];
        if (eth_hpp_cost_most_samples(cost, pool->device, degree) == 0 ||
            tensor_parallel > pool->per_node || (most > 0 && tensor_parallel > most))
            continue;
        stage->degree = degree;
        stage->parts[0].workers = gpus < tensor_parallel ? 1 : gpus / tensor_parallel;
        changed = true;
    }
    if (changed)
        group->uncut = true;
    return changed;
}

static bool split_stage(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    int s = below(search, group->stage_count);
    struct eth_hpp_draft_stage *stage = &group->stages[s];
    if (group->stage_count == ETH_HPP_DRAFT_STAGES || stage->layers < 2)
        return false;
    int layers = stage->layers, half = below(search, 2);
    insert_stage(group, s, stage);
    group->stages[s].layers = layers / 2;
    group->stages[s + 1].layers = layers - layers / 2;
    for (int p = 0; half && p < group->stages[s].part_count; p++) {
        int workers = group->stages[s].parts[p].workers;
        if (workers < 2)
            return false;
        group->stages[s].parts[p].workers = workers / 2;
        group->stages[s + 1].parts[p].workers = workers - workers / 2;
    }
    group->uncut = true;
    return true;
}

static bool merge_stages(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    if (group->stage_count < 2)
        return false;
    int s = below(search, group->stage_count - 1);
    struct eth_hpp_draft_stage *a = &group->stages[s], *b = a + 1;
    int layers = a->layers + b->layers;
    if (a->part_count == 1 && b->part_count == 1 && a->degree == b->degree &&
        a->parts[0].pool == b->parts[0].pool && below(search, 3) > 0)
        a->parts[0].workers += b->parts[0].workers;
    else if (below(search, 2) == 0)
        *a = *b;
    a->layers = layers;
    remove_stage(group, s + 1);
    if (below(search, 3) > 0)
        group->uncut = true;
    return true;
}

/* A stage on GPUs that stand idle. */
static bool add_stage(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    int pool = below(search, search->shop->pools.count);
    int at = below(search, group->stage_count + 1);
    struct eth_hpp_draft_stage stage =
        group->stages[at < group->stage_count ? at : group->stage_count - 1];
    if (group->stage_count == ETH_HPP_DRAFT_STAGES || idle(search, pool) < group->replicas ||
        eth_hpp_cost_most_samples(search->shop->cost, search->shop->pools.pools[pool].device,
                                  stage.degree) == 0)
        return false;
    stage.part_count = 1;
    stage.parts[0].pool = pool;
    insert_stage(group, at, &stage);
    group->uncut = true;
    return true;
}

static bool change_replicas(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    int before = group->replicas;
    switch (below(search, 6)) {
    case 0:
        group->replicas *= 2;
        break;
    case 1:
        group->replicas /= 2;
        break;
    case 2:
    case 3:
        group->replicas++;
        break;
    default:
        group->replicas--;
    }
    return group->replicas > 0 && group->replicas != before;
}

/* Fewer, wider pipelines or more, narrower ones from the same GPUs. */
static bool reshape(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    bool wider = below(search, 2) == 0;
    if (wider && group->replicas % 2 != 0)
        return false;
    for (int s = 0; s < group->stage_count; s++)
        for (int p = 0; p < group->stages[s].part_count; p++) {
            int *workers = &group->stages[s].parts[p].workers;
            if (!wider && *workers % 2 != 0)
                return false;
            *workers = wider ? *workers * 2 : *workers / 2;
        }
    group->replicas = wider ? group->replicas / 2 : group->replicas * 2;
    group->micro_batch = wider ? group->micro_batch * 2 : group->micro_batch / 2;
    return group->micro_batch > 0;
}

static bool like_stages(const struct eth_hpp_draft_stage *a, const struct eth_hpp_draft_stage *b)
{
    return a->part_count == 1 && b->part_count == 1 && a->degree == b->degree &&
           a->parts[0].pool == b->parts[0].pool;
}

/* Half as many stages of twice the workers, each run of like stages by itself. */
static bool flatten(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    int stages = 0;
    for (int s = 0, end; s < group->stage_count; s = end) {
        int workers = 0;
        for (end = s; end < group->stage_count &&
                      (end == s || like_stages(&group->stages[s], &group->stages[end]));)
            workers += group->stages[end++].parts[0].workers;
        int fewer = (end - s + 1) / 2;
        struct eth_hpp_draft_stage stage = group->stages[s];
        stage.parts[0].workers = workers / fewer;
        if (workers % fewer != 0)
            return false;
        for (int i = 0; i < fewer; i++)
            group->stages[stages++] = stage;
    }
    group->micro_batch *= below(search, 2) == 0 ? 1 : 2;
    group->uncut = true;
    bool changed = stages < group->stage_count;
    group->stage_count = stages;
    return changed;
}

/* Two stages of half the workers in place of each. */
static bool deepen(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    int before = group->stage_count;
    for (int s = 0; s < group->stage_count; s++) {
        struct eth_hpp_draft_stage *stage = &group->stages[s];
        if (stage->part_count > 1 || stage->parts[0].workers % 2 != 0)
            continue;
        if (group->stage_count == ETH_HPP_DRAFT_STAGES)
            return false;
        stage->parts[0].workers /= 2;
        insert_stage(group, s++, stage);
    }
    if (group->micro_batch % 2 == 0 && below(search, 2) == 0)
        group->micro_batch /= 2;
    group->uncut = true;
    return group->stage_count > before;
}

/* Some of a group's pipelines become a group of their own, which the next moves change. */
static bool split_group(struct eth_hpp_search *search)
{
    struct eth_hpp_draft *draft = search->draft;
    struct eth_hpp_draft_group *group = any_group(search);
    if (search->options->shape != ETH_HPP_SHAPE_HPP || group->replicas < 2 ||
        draft->group_count == ETH_HPP_DRAFT_GROUPS)
        return false;
    struct eth_hpp_draft_group *added = &draft->groups[draft->group_count++];
    *added = *group;
    added->replicas = 1 + below(search, group->replicas - 1);
    group->replicas -= added->replicas;
    search->focus = draft->group_count - 1;
    return true;
}

static bool drop_group(struct eth_hpp_search *search)
{
    struct eth_hpp_draft *draft = search->draft;
    if (draft->group_count < 2)
        return false;
    int g = below(search, draft->group_count);
    if (g != draft->group_count - 1)
        draft->groups[g] = draft->groups[draft->group_count - 1];
    draft->group_count--;
    return true;
}

/* A group of like pipelines, with a pipeline's worth of idle GPUs of one pool. */
static bool add_group(struct eth_hpp_search *search)
{
    struct eth_hpp_draft *draft = search->draft;
    int pool = below(search, search->shop->pools.count), left = idle(search, pool);
    if (search->options->shape != ETH_HPP_SHAPE_HPP || draft->group_count == ETH_HPP_DRAFT_GROUPS ||
        left <= 0)
        return false;
    struct eth_hpp_draft_group *group = &draft->groups[draft->group_count++];
    int depth = 1 + below(search, left < 8 ? left : 8), width = left / depth;
    width = width > 4 ? 1 << below(search, 3) : width;
    *group = (struct eth_hpp_draft_group){.replicas = left / (depth * width),
                                          .micro_batch = width << below(search, 4),
                                          .stage_count = depth};
    if (depth > search->shop->cost->profile->layer_count || search->shop->cost->degree[0] != 1)
        return false;
    for (int s = 0; s < depth; s++)
        group->stages[s] = (struct eth_hpp_draft_stage){.part_count = 1, .parts = {{pool, width}}};
    group->uncut = true;
    return true;
}

/* The cuts of one group become those of another of the same depth, so that blocks line up. */
static bool align_cuts(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *from = any_group(search), *to = any_group(search);
    if (from == to || from->stage_count != to->stage_count)
        return false;
    for (int s = 0; s < from->stage_count; s++)
        to->stages[s].layers = from->stages[s].layers;
    return true;
}

static bool change_placement(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    group->by_stage = !group->by_stage;
    return group->replicas > 1 && group->stage_count > 1;
}

static bool rebalance(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = any_group(search);
    group->uncut = true;
    return true;
}

static const struct {
    bool (*move)(struct eth_hpp_search *search);
    int weight;
} moves[] = {
    {move_cut, 24},        {move_cuts_between, 8}, {change_micro_batch, 12}, {change_in_flight, 6},
    {change_recompute, 5}, {change_sharding, 1},   {change_workers, 10},     {shift_worker, 8},
    {mix_stage, 2},        {change_pool, 6},       {swap_stages, 4},         {change_degree, 6},
    {split_stage, 6},      {merge_stages, 6},      {add_stage, 6},           {change_replicas, 8},
    {reshape, 4},          {split_group, 4},       {drop_group, 2},          {add_group, 4},
    {align_cuts, 2},       {rebalance, 2},         {change_placement, 4},    {flatten, 3},
    {deepen, 3},
};
enum { MOVES = sizeof(moves) / sizeof(moves[0]) };

static bool make_move(struct eth_hpp_search *search, int total_weight)
{
    int at = below(search, total_weight), i = 0;
    while (at >= moves[i].weight)
        at -= moves[i++].weight;
    return moves[i].move(search);
}

/* Cuts the layers where moves left that to do. What uses more GPUs than there are is not cut. */
static bool finish(struct eth_hpp_search *search)
{
    struct eth_hpp_workshop *shop = search->shop;
    for (int p = 0; p < shop->pools.count; p++)
        if (idle(search, p) < 0)
            return false;
    for (int g = 0; g < search->draft->group_count; g++) {
        bool uncut = search->draft->groups[g].uncut;
        search->draft->groups[g].uncut = false;
        if (uncut && !eth_hpp_draft_balance(shop, search->draft, g, NULL))
            return false;
    }
    return eth_hpp_draft_has_layers(search->draft, shop->cost->profile->layer_count);
}

bool eth_hpp_search_change(struct eth_hpp_search *search)
{
    int total_weight = 0;
    for (int i = 0; i < MOVES; i++)
        total_weight += moves[i].weight;
    int turns = below(search, 5);
    turns = turns < 3 ? 1 : turns - 1;
    search->focus = -1;
    for (int i = 0; i < turns; i++) {
        int before = search->focus;
        if (!make_move(search, total_weight) || !eth_hpp_draft_is_staffed(search->draft))
            return false;
        turns += search->focus != before; /* a new group is yet to become different */
    }
    if (!finish(search))
        return false;
    eth_hpp_draft_join(search->draft);
    return true;
}
