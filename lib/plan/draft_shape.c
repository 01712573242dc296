/* What can be said of a draft without laying it out. */
#include "plan/draft.h"

#include <string.h>

int eth_hpp_draft_workers(const struct eth_hpp_draft_stage *stage)
{
    int workers = 0;
    for (int p = 0; p < stage->part_count; p++)
        workers += stage->parts[p].workers;
    return workers;
}

int eth_hpp_draft_used(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft,
                       int pool)
{
    int used = 0;
    for (int g = 0; g < draft->group_count; g++)
        for (int s = 0; s < draft->groups[g].stage_count; s++) {
            const struct eth_hpp_draft_stage *stage = &draft->groups[g].stages[s];
            for (int p = 0; p < stage->part_count; p++)
                if (stage->parts[p].pool == pool)
                    used += draft->groups[g].replicas * stage->parts[p].workers *
                            shop->cost->degree[stage->degree];
        }
    return used;
}

/* Counts the GPUs of a group into shop->used, or for sign -1 out of it. False where there are not
 * as many. */
static bool count_used(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft_group *group,
                       int sign)
{
    bool are_there = true;
    for (int s = 0; s < group->stage_count; s++) {
        const struct eth_hpp_draft_stage *stage = &group->stages[s];
        for (int p = 0; p < stage->part_count; p++) {
            const int pool = stage->parts[p].pool;
            shop->used[pool] += sign * group->replicas * stage->parts[p].workers *
                                shop->cost->degree[stage->degree];
            are_there = are_there && shop->used[pool] <= shop->pools.pools[pool].gpus;
        }
    }
    return are_there;
}

bool eth_hpp_draft_has_gpus(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft)
{
    bool are_there = true;
    for (int g = 0; g < draft->group_count; g++)
        are_there = count_used(shop, &draft->groups[g], 1) && are_there;
    for (int g = 0; g < draft->group_count; g++)
        count_used(shop, &draft->groups[g], -1);
    return are_there;
}

void eth_hpp_draft_copy(struct eth_hpp_draft *to, const struct eth_hpp_draft *from)
{
    to->sharded_optimizer = from->sharded_optimizer;
    to->group_count = from->group_count;
    for (int g = 0; g < from->group_count; g++) {
        const struct eth_hpp_draft_group *group = &from->groups[g];
        memcpy(&to->groups[g], group,
               offsetof(struct eth_hpp_draft_group, stages) +
                   (size_t)group->stage_count * sizeof(group->stages[0]));
    }
}

void eth_hpp_draft_swap(struct eth_hpp_draft *a, struct eth_hpp_draft *b)
{
    struct eth_hpp_draft_group keep;
    int groups = a->group_count > b->group_count ? a->group_count : b->group_count;
    bool sharded = a->sharded_optimizer;
    int count = a->group_count;
    a->sharded_optimizer = b->sharded_optimizer;
    a->group_count = b->group_count;
    b->sharded_optimizer = sharded;
    b->group_count = count;
    for (int g = 0; g < groups; g++) {
        keep = a->groups[g];
        a->groups[g] = b->groups[g];
        b->groups[g] = keep;
    }
}

int eth_hpp_draft_device(const struct eth_hpp_workshop *shop,
                         const struct eth_hpp_draft_stage *stage, int part)
{
    return shop->pools.pools[stage->parts[part].pool].device;
}

bool eth_hpp_draft_has_layers(const struct eth_hpp_draft *draft, int layers)
{
    for (int g = 0; g < draft->group_count; g++) {
        int sum = 0;
        for (int s = 0; s < draft->groups[g].stage_count; s++) {
            if (draft->groups[g].stages[s].layers < 1)
                return false;
            sum += draft->groups[g].stages[s].layers;
        }
        if (sum != layers)
            return false;
    }
    return true;
}

bool eth_hpp_draft_is_staffed(const struct eth_hpp_draft *draft)
{
    for (int g = 0; g < draft->group_count; g++) {
        const struct eth_hpp_draft_group *group = &draft->groups[g];
        if (group->replicas < 1 || group->micro_batch < 1 || group->stage_count < 1)
            return false;
        for (int s = 0; s < group->stage_count; s++) {
            if (group->stages[s].part_count < 1)
                return false;
            for (int p = 0; p < group->stages[s].part_count; p++)
                if (group->stages[s].parts[p].workers < 1)
                    return false;
        }
    }
    return draft->group_count > 0;
}

static bool like_groups(const struct eth_hpp_draft_group *a, const struct eth_hpp_draft_group *b)
{
    if (a->micro_batch != b->micro_batch || a->extra_in_flight != b->extra_in_flight ||
        a->by_stage != b->by_stage || a->stage_count != b->stage_count)
        return false;
    for (int s = 0; s < a->stage_count; s++) {
        const struct eth_hpp_draft_stage *x = &a->stages[s], *y = &b->stages[s];
        if (x->layers != y->layers || x->degree != y->degree || x->recompute != y->recompute ||
            x->part_count != y->part_count ||
            memcmp(x->parts, y->parts, (size_t)x->part_count * sizeof(x->parts[0])) != 0)
            return false;
    }
    return true;
}

void eth_hpp_draft_join(struct eth_hpp_draft *draft)
{
    for (int a = 0; a < draft->group_count; a++)
        for (int b = draft->group_count - 1; b > a; b--)
            if (like_groups(&draft->groups[a], &draft->groups[b])) {
                draft->groups[a].replicas += draft->groups[b].replicas;
                draft->group_count--;
                if (b != draft->group_count)
                    draft->groups[b] = draft->groups[draft->group_count];
            }
}

static uint64_t mix(uint64_t key, int number)
{
    key = (key ^ (unsigned)number) * 0x9e3779b97f4a7c15u;
    return key ^ key >> 29;
}

uint64_t eth_hpp_draft_key(const struct eth_hpp_draft *draft)
{
    uint64_t key = mix(draft->sharded_optimizer, draft->group_count);
    for (int g = 0; g < draft->group_count; g++) {
        const struct eth_hpp_draft_group *group = &draft->groups[g];
        key = mix(mix(key, group->replicas), group->micro_batch);
        key = mix(mix(key, 2 * group->extra_in_flight + group->by_stage), group->stage_count);
        for (int s = 0; s < group->stage_count; s++) {
            const struct eth_hpp_draft_stage *stage = &group->stages[s];
            key = mix(mix(key, stage->layers), 2 * stage->degree + stage->recompute);
            for (int p = 0; p < stage->part_count; p++)
                key = mix(mix(key, stage->parts[p].pool), stage->parts[p].workers);
            key = mix(key, -stage->part_count);
        }
    }
    return key != 0 ? key : 1;
}
