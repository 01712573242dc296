/* The moves of the search, and how often each is made. */
#include "plan/moves.h"

#include "plan/moves_kit.h"

static const struct {
    bool (*move)(struct eth_hpp_search *search);
    int weight;
} moves[] = {
    {eth_hpp_move_cut, 24},
    {eth_hpp_move_cuts_between, 8},
    {eth_hpp_move_change_micro_batch, 12},
    {eth_hpp_move_change_in_flight, 6},
    {eth_hpp_move_change_recompute, 5},
    {eth_hpp_move_change_sharding, 1},
    {eth_hpp_move_change_workers, 10},
    {eth_hpp_move_shift_worker, 8},
    {eth_hpp_move_mix_stage, 2},
    {eth_hpp_move_change_pool, 6},
    {eth_hpp_move_swap_stages, 4},
    {eth_hpp_move_change_degree, 6},
    {eth_hpp_move_split_stage, 6},
    {eth_hpp_move_merge_stages, 6},
    {eth_hpp_move_add_stage, 6},
    {eth_hpp_move_change_replicas, 8},
    {eth_hpp_move_reshape, 4},
    {eth_hpp_move_split_group, 4},
    {eth_hpp_move_drop_group, 2},
    {eth_hpp_move_add_group, 4},
    {eth_hpp_move_align_cuts, 2},
    {eth_hpp_move_rebalance, 2},
    {eth_hpp_move_change_placement, 4},
    {eth_hpp_move_flatten, 3},
    {eth_hpp_move_deepen, 3},
};
enum { MOVES = sizeof(moves) / sizeof(moves[0]) };

static bool make_move(struct eth_hpp_search *search, int total_weight)
{
    int at = eth_hpp_moves_below(search, total_weight), i = 0;
    while (at >= moves[i].weight)
        at -= moves[i++].weight;
    return moves[i].move(search);
}

/* Cuts the layers where moves left that to do. What uses more GPUs than there are is not cut. */
static bool finish(struct eth_hpp_search *search)
{
    struct eth_hpp_workshop *shop = search->shop;
    if (!eth_hpp_draft_has_gpus(shop, search->draft))
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
    int turns = eth_hpp_moves_below(search, 5);
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
