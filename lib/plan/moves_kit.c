#include "plan/moves_kit.h"

#include <string.h>

/* splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
static uint64_t draw(struct eth_hpp_search *search)
{
    uint64_t z = search->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int eth_hpp_moves_below(struct eth_hpp_search *search, int most)
{
    return (int)(draw(search) % (uint64_t)most);
}

double eth_hpp_search_unit(struct eth_hpp_search *search)
{
    return (double)(draw(search) >> 11) / 9007199254740992.0;
}

struct eth_hpp_draft_group *eth_hpp_moves_group(struct eth_hpp_search *search)
{
    if (search->focus >= 0 && search->focus < search->draft->group_count)
        return &search->draft->groups[search->focus];
    return &search->draft->groups[eth_hpp_moves_below(search, search->draft->group_count)];
}

struct eth_hpp_draft_stage *eth_hpp_moves_stage(struct eth_hpp_search *search,
                                                struct eth_hpp_draft_group *group)
{
    return &group->stages[eth_hpp_moves_below(search, group->stage_count)];
}

int eth_hpp_moves_idle(const struct eth_hpp_search *search, int pool)
{
    return search->shop->pools.pools[pool].gpus -
           eth_hpp_draft_used(search->shop, search->draft, pool);
}

void eth_hpp_moves_insert(struct eth_hpp_draft_group *group, int at,
                          const struct eth_hpp_draft_stage *stage)
{
    struct eth_hpp_draft_stage copy = *stage; /* it may stand in the group itself */
    memmove(&group->stages[at + 1], &group->stages[at],
            (size_t)(group->stage_count - at) * sizeof(group->stages[0]));
    group->stages[at] = copy;
    group->stage_count++;
}

void eth_hpp_moves_remove(struct eth_hpp_draft_group *group, int at)
{
    group->stage_count--;
    memmove(&group->stages[at], &group->stages[at + 1],
            (size_t)(group->stage_count - at) * sizeof(group->stages[0]));
}
