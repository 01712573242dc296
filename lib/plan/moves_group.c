/* Moves of whole groups of like pipelines: their number, depth, width and place. */
#include "plan/moves_kit.h"

bool eth_hpp_move_change_replicas(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    int before = group->replicas;
    switch (eth_hpp_moves_below(search, 6)) {
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
bool eth_hpp_move_reshape(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    bool wider = eth_hpp_moves_below(search, 2) == 0;
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
bool eth_hpp_move_flatten(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
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
    group->micro_batch *= eth_hpp_moves_below(search, 2) == 0 ? 1 : 2;
    group->uncut = true;
    bool changed = stages < group->stage_count;
    group->stage_count = stages;
    return changed;
}

/* Two stages of half the workers in place of each. */
bool eth_hpp_move_deepen(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    int before = group->stage_count;
    for (int s = 0; s < group->stage_count; s++) {
        struct eth_hpp_draft_stage *stage = &group->stages[s];
        if (stage->part_count > 1 || stage->parts[0].workers % 2 != 0)
            continue;
        if (group->stage_count == ETH_HPP_DRAFT_STAGES)
            return false;
        stage->parts[0].workers /= 2;
        eth_hpp_moves_insert(group, s++, stage);
    }
    if (group->micro_batch % 2 == 0 && eth_hpp_moves_below(search, 2) == 0)
        group->micro_batch /= 2;
    group->uncut = true;
    return group->stage_count > before;
}

/* Some of a group's pipelines become a group of their own, which the next moves change. */
bool eth_hpp_move_split_group(struct eth_hpp_search *search)
{
    struct eth_hpp_draft *draft = search->draft;
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    if (search->options->shape != ETH_HPP_SHAPE_HPP || group->replicas < 2 ||
        draft->group_count == ETH_HPP_DRAFT_GROUPS)
        return false;
    struct eth_hpp_draft_group *added = &draft->groups[draft->group_count++];
    *added = *group;
    added->replicas = 1 + eth_hpp_moves_below(search, group->replicas - 1);
    group->replicas -= added->replicas;
    search->focus = draft->group_count - 1;
    return true;
}

bool eth_hpp_move_drop_group(struct eth_hpp_search *search)
{
    struct eth_hpp_draft *draft = search->draft;
    if (draft->group_count < 2)
        return false;
    int g = eth_hpp_moves_below(search, draft->group_count);
    if (g != draft->group_count - 1)
        draft->groups[g] = draft->groups[draft->group_count - 1];
    draft->group_count--;
    return true;
}

/* A group of like pipelines, with a pipeline's worth of idle GPUs of one pool. */
bool eth_hpp_move_add_group(struct eth_hpp_search *search)
{
    struct eth_hpp_draft *draft = search->draft;
    int pool = eth_hpp_moves_below(search, search->shop->pools.count),
        left = eth_hpp_moves_idle(search, pool);
    if (search->options->shape != ETH_HPP_SHAPE_HPP || draft->group_count == ETH_HPP_DRAFT_GROUPS ||
        left <= 0)
        return false;
    struct eth_hpp_draft_group *group = &draft->groups[draft->group_count++];
    int depth = 1 + eth_hpp_moves_below(search, left < 8 ? left : 8), width = left / depth;
    width = width > 4 ? 1 << eth_hpp_moves_below(search, 3) : width;
    *group = (struct eth_hpp_draft_group){.replicas = left / (depth * width),
                                          .micro_batch = width << eth_hpp_moves_below(search, 4),
                                          .stage_count = depth};
    if (depth > search->shop->cost->profile->layer_count || search->shop->cost->degree[0] != 1)
        return false;
    for (int s = 0; s < depth; s++)
        group->stages[s] = (struct eth_hpp_draft_stage){.part_count = 1, .parts = {{pool, width}}};
    group->uncut = true;
    return true;
}

/* The cuts of one group become those of another of the same depth, so that blocks line up. */
bool eth_hpp_move_align_cuts(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *from = eth_hpp_moves_group(search),
                               *to = eth_hpp_moves_group(search);
    if (from == to || from->stage_count != to->stage_count)
        return false;
    for (int s = 0; s < from->stage_count; s++)
        to->stages[s].layers = from->stages[s].layers;
    return true;
}

bool eth_hpp_move_change_placement(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    group->by_stage = !group->by_stage;
    return group->replicas > 1 && group->stage_count > 1;
}

bool eth_hpp_move_rebalance(struct eth_hpp_search *search)
{
    struct eth_hpp_draft_group *group = eth_hpp_moves_group(search);
    group->uncut = true;
    return true;
}
