/* Moves within a pipeline: cuts, workers, kinds, tensor parallelism, stages more or less,
 * micro-batches. */
#include "plan/moves_kit.h"

bool eth_hpp_move_cut(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    if (group->stage_count < 2)
        return false;
    int s = eth_hpp_moves_below(search, group->stage_count - 1),
        down = eth_hpp_moves_below(search, 2);
    struct eth_hpp_draft_stage *from = &group->stages[s + down], *to = &group->stages[s + 1 - down];
    int layers = 1 + (eth_hpp_moves_below(search, 4) == 0);
    if (from->layers <= layers)
        return false;
    from->layers -= layers;
    to->layers += layers;
    return true;
}

/* One layer goes from one stage to another through all between. */
bool eth_hpp_move_cuts_between(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    struct eth_hpp_draft_stage *from = eth_hpp_moves_stage(search, group),
                               *to = eth_hpp_moves_stage(search, group);
    if (from == to || from->layers < 2)
        return false;
    from->layers--;
    to->layers++;
    return true;
}

bool eth_hpp_move_change_micro_batch(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    int before = group->micro_batch;
    switch (eth_hpp_moves_below(search, 4)) {
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
    if (eth_hpp_moves_below(search, 3) == 0)
        group->uncut = true;
    return group->micro_batch > 0 && group->micro_batch != before;
}

bool eth_hpp_move_change_in_flight(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    int before = group->extra_in_flight;
    group->extra_in_flight += eth_hpp_moves_below(search, 2) == 0 ? 1 : -1;
    if (eth_hpp_moves_below(search, 4) == 0)
        group->extra_in_flight = eth_hpp_moves_below(search, 2) == 0 ? 0 : 4 * (before + 1);
    if (group->extra_in_flight < 0)
        group->extra_in_flight = 0;
    return group->extra_in_flight != before && group->extra_in_flight < 4096;
}

bool eth_hpp_move_change_recompute(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    if (search->options->no_recompute)
        return false;
    struct eth_hpp_draft_stage *stage = eth_hpp_moves_stage(search, group);
    stage->recompute = !stage->recompute;
    if (eth_hpp_moves_below(search, 2) == 0)
        group->uncut = true;
    return true;
}

bool eth_hpp_move_change_sharding(struct eth_hpp_search *search)
{
    if (search->options->no_sharded)
        return false;
    search->draft->sharded_optimizer = !search->draft->sharded_optimizer;
    return true;
}

bool eth_hpp_move_change_workers(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    struct eth_hpp_draft_stage *stage = eth_hpp_moves_stage(search, group);
    int part = eth_hpp_moves_below(search, stage->part_count);
    int before = stage->parts[part].workers;
    if (eth_hpp_moves_below(search, 2) == 0)
        stage->parts[part].workers = eth_hpp_moves_below(search, 2) == 0 ? before + 1 : before * 2;
    else
        stage->parts[part].workers = eth_hpp_moves_below(search, 2) == 0 ? before - 1 : before / 2;
    if (stage->parts[part].workers == 0) {
        if (stage->part_count == 1)
            return false;
        stage->parts[part] = stage->parts[--stage->part_count];
    }
    if (eth_hpp_moves_below(search, 2) == 0)
        group->uncut = true;
    return true;
}

/* A worker goes from one stage to another of the same pool. */
bool eth_hpp_move_shift_worker(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    struct eth_hpp_draft_stage *from = eth_hpp_moves_stage(search, group),
                               *to = eth_hpp_moves_stage(search, group);
    if (from == to || from->parts[0].pool != to->parts[0].pool || from->parts[0].workers < 2)
        return false;
    from->parts[0].workers--;
    to->parts[0].workers++;
    group->uncut = true;
    return true;
}

bool eth_hpp_move_mix_stage(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    struct eth_hpp_draft_stage *stage = eth_hpp_moves_stage(search, group);
    int pool = eth_hpp_moves_below(search, search->shop->pools.count);
    if (search->options->shape != ETH_HPP_SHAPE_HPP || stage->part_count == ETH_HPP_DRAFT_PARTS ||
        eth_hpp_cost_most_samples(search->shop->cost, search->shop->pools.pools[pool].device,
                                  stage->degree) == 0)
        return false;
    for (int p = 0; p < stage->part_count; p++)
        if (stage->parts[p].pool == pool)
            return false;
    stage->parts[stage->part_count].pool = pool;
    stage->parts[stage->part_count++].workers = 1;
    if (eth_hpp_moves_below(search, 2) == 0)
        group->uncut = true;
    return true;
}

bool eth_hpp_move_change_pool(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    struct eth_hpp_draft_stage *stage = eth_hpp_moves_stage(search, group);
    int pool = eth_hpp_moves_below(search, search->shop->pools.count);
    if (stage->part_count > 1 || stage->parts[0].pool == pool ||
        eth_hpp_cost_most_samples(search->shop->cost, search->shop->pools.pools[pool].device,
                                  stage->degree) == 0)
        return false;
    stage->parts[0].pool = pool;
    group->uncut = true;
    return true;
}

bool eth_hpp_move_swap_stages(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    struct eth_hpp_draft_stage *a = eth_hpp_moves_stage(search, group),
                               *b = eth_hpp_moves_stage(search, group);
    if (a->parts[0].pool == b->parts[0].pool && a->parts[0].workers == b->parts[0].workers)
        return false;
    struct eth_hpp_draft_stage keep = *a;
    *a = *b;
    *b = keep;
    group->uncut = true;
    return true;
}

/* The same GPUs in larger or smaller tensor-parallel groups. */
bool eth_hpp_move_change_degree(struct eth_hpp_search *search)
{
    const struct eth_hpp_cost *cost = search->shop->cost;
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    int all = eth_hpp_moves_below(search, 2),
        chosen = eth_hpp_moves_below(search, group->stage_count);
    int step = eth_hpp_moves_below(search, 2) == 0 ? 1 : -1;
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

bool eth_hpp_move_split_stage(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    int s = eth_hpp_moves_below(search, group->stage_count);
    struct eth_hpp_draft_stage *stage = &group->stages[s];
    if (group->stage_count == ETH_HPP_DRAFT_STAGES || stage->layers < 2)
        return false;
    int layers = stage->layers, half = eth_hpp_moves_below(search, 2);
    eth_hpp_moves_insert(group, s, stage);
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

bool eth_hpp_move_merge_stages(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    if (group->stage_count < 2)
        return false;
    int s = eth_hpp_moves_below(search, group->stage_count - 1);
    struct eth_hpp_draft_stage *a = &group->stages[s], *b = a + 1;
    int layers = a->layers + b->layers;
    if (a->part_count == 1 && b->part_count == 1 && a->degree == b->degree &&
        a->parts[0].pool == b->parts[0].pool && eth_hpp_moves_below(search, 3) > 0)
        a->parts[0].workers += b->parts[0].workers;
    else if (eth_hpp_moves_below(search, 2) == 0)
        *a = *b;
    a->layers = layers;
    eth_hpp_moves_remove(group, s + 1);
    if (eth_hpp_moves_below(search, 3) > 0)
        group->uncut = true;
    return true;
}

/* A stage on GPUs that stand idle. */
bool eth_hpp_move_add_stage(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    int pool = eth_hpp_moves_below(search, search->shop->pools.count);
    int at = eth_hpp_moves_below(search, group->stage_count + 1);
    struct eth_hpp_draft_stage stage =
        group->stages[at < group->stage_count ? at : group->stage_count - 1];
    if (group->stage_count == ETH_HPP_DRAFT_STAGES ||
        eth_hpp_moves_idle(search, pool) < group->replicas ||
        eth_hpp_cost_most_samples(search->shop->cost, search->shop->pools.pools[pool].device,
                                  stage.degree) == 0)
        return false;
    stage.part_count = 1;
    stage.parts[0].pool = pool;
    eth_hpp_moves_insert(group, at, &stage);
    group->uncut = true;
    return true;
}
