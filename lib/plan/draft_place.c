#include "plan/draft_place.h"

#include <stdlib.h>
#include <string.h>

static enum eth_hpp_draft_fault out_of_memory(struct eth_hpp_workshop *shop)
{
    shop->failed = true;
    eth_hpp_error_memory(&shop->error, "the solver");
    return ETH_HPP_DRAFT_GPUS;
}

/* Appends pipelines like those from `first` on, with their stages and workers. */
static bool append(struct eth_hpp_layout *to, const struct eth_hpp_layout *from, int first,
                   int count, int others)
{
    const struct eth_hpp_layout_pipeline *begin = &from->pipelines[first],
                                         *last = &from->pipelines[first + count - 1];
    int stages = last->first_stage + last->stage_count - begin->first_stage;
    const struct eth_hpp_layout_stage *end = &from->stages[begin->first_stage + stages - 1];
    int first_worker = from->stages[begin->first_stage].first_worker;
    int workers = end->first_worker + end->worker_count - first_worker;
    int first_stage = begin->first_stage;
    if (!eth_hpp_layout_reserve(to, count, stages, workers))
        return false;
    int more_stages = to->stage_count - first_stage, more_workers = to->worker_count - first_worker;
    for (int p = 0; p < count; p++) {
        struct eth_hpp_layout_pipeline *pipeline = &to->pipelines[to->pipeline_count++];
        *pipeline = from->pipelines[first + p];
        pipeline->first_stage += more_stages;
    }
    for (int s = 0; s < stages; s++) {
        struct eth_hpp_layout_stage *stage = &to->stages[to->stage_count++];
        *stage = from->stages[first_stage + s];
        stage->first_worker += more_workers;
        stage->others = others;
    }
    memcpy(&to->workers[to->worker_count], &from->workers[first_worker],
           (size_t)workers * sizeof(*to->workers));
    to->worker_count += workers;
    return true;
}

/* ---- the pattern of a group ---- */

/* A part of a stage, to be placed. */
struct piece {
    int stage, part, gpus;
};

/* What is placed of a group at a time, again and again. */
struct pattern {
    struct piece pieces[ETH_HPP_DRAFT_STAGES * ETH_HPP_DRAFT_PARTS]; /* larger ones first */
    int count;
    int pipelines; /* taken together: 1, or where each stage takes its nodes for some of them */
};

static int greatest_divisor(int a, int b)
{
    return b == 0 ? a : greatest_divisor(b, a % b);
}

static int compare_pieces(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    if (x->gpus != y->gpus)
        return y->gpus - x->gpus;
    return x->stage != y->stage ? x->stage - y->stage : x->part - y->part;
}

static void find_pattern(const struct eth_hpp_workshop *shop,
                         const struct eth_hpp_draft_group *group, struct pattern *pattern)
{
    enum { TOGETHER_MAX = 64 };
    bool sorted = true;
    pattern->count = 0;
    pattern->pipelines = 1;
    for (int s = 0; s < group->stage_count; s++)
        for (int p = 0; p < group->stages[s].part_count; p++) {
            int gpus =
                group->stages[s].parts[p].workers * shop->cost->degree[group->stages[s].degree];
            int per_node = shop->pools.pools[group->stages[s].parts[p].pool].per_node;
            int fill = gpus < per_node ? per_node / gpus
                                       : per_node / greatest_divisor(gpus % per_node, per_node);
            if (group->by_stage)
                pattern->pipelines *= fill / greatest_divisor(fill, pattern->pipelines);
            if (pattern->pipelines > TOGETHER_MAX)
                pattern->pipelines = TOGETHER_MAX;
            if (pattern->count > 0)
                sorted = sorted && gpus <= pattern->pieces[pattern->count - 1].gpus;
            pattern->pieces[pattern->count++] = (struct piece){s, p, gpus};
        }
    if (!sorted)
        qsort(pattern->pieces, (size_t)pattern->count, sizeof(pattern->pieces[0]), compare_pieces);
}

/* GPUs of a node that no piece would take whole. */
static void find_smallest(const struct eth_hpp_workshop *shop,
                          const struct eth_hpp_draft_group *group, const struct pattern *pattern,
                          int *smallest)
{
    for (int p = 0; p < shop->pools.count; p++)
        smallest[p] = INT32_MAX;
    for (int i = 0; i < pattern->count; i++) {
        const struct piece *piece = &pattern->pieces[i];
        int pool = group->stages[piece->stage].parts[piece->part].pool;
        int least = piece->gpus <= shop->pools.pools[pool].per_node
                        ? piece->gpus
                        : shop->cost->degree[group->stages[piece->stage].degree];
        smallest[pool] = least < smallest[pool] ? least : smallest[pool];
    }
}

/* Where the workers of a part begin among those of their stage. */
static int first_of_part(const struct eth_hpp_draft_stage *stage, int part)
{
    int at = 0;
    for (int p = 0; p < part; p++)
        at += stage->parts[p].workers;
    return at;
}

/* Places the pieces of `count` pipelines from `first` of the layout on. */
static bool place_pieces(struct eth_hpp_workshop *shop, const struct eth_hpp_draft_group *group,
                         const struct pattern *pattern, int first, int count)
{
    struct eth_hpp_layout *layout = &shop->layout;
    for (int i = 0; i < pattern->count; i++) {
        const struct piece *piece = &pattern->pieces[i];
        const struct eth_hpp_draft_stage *stage = &group->stages[piece->stage];
        int offset = first_of_part(stage, piece->part);
        for (int r = 0; r < count; r++) {
            int s = layout->pipelines[first + r].first_stage + piece->stage;
            if (!eth_hpp_yard_take(&shop->yard, stage->parts[piece->part].pool,
                                   stage->parts[piece->part].workers,
                                   shop->cost->degree[stage->degree],
                                   &layout->workers[layout->stages[s].first_worker + offset]))
                return false;
        }
    }
    return true;
}

/* The pattern that was watched fills its nodes: it stands for as many like ones as there are nodes
 * for. Returns how many pipelines that are. */
static int fold(struct eth_hpp_workshop *shop, int g, int first, int left)
{
    struct eth_hpp_layout *layout = &shop->layout;
    int pipelines = layout->pipeline_count - first;
    struct eth_hpp_stand *stand = &shop->stands[g];
    int most = left / pipelines;
    int more = most > 0 ? eth_hpp_yard_repeat(&shop->yard, most, stand->stride) : 0;
    if (more == 0)
        return 0;
    for (int s = layout->pipelines[first].first_stage; s < layout->stage_count; s++)
        layout->stages[s].others = more;
    stand->fold = first;
    stand->folded = pipelines;
    return more * pipelines;
}

static enum eth_hpp_draft_fault place_group(struct eth_hpp_workshop *shop,
                                            const struct eth_hpp_draft *draft, int g)
{
    const struct eth_hpp_draft_group *group = &draft->groups[g];
    struct eth_hpp_layout *layout = &shop->layout;
    struct pattern pattern;
    int begin = layout->pipeline_count, watched = begin, count;
    bool folded = shop->unfolded;
    find_pattern(shop, group, &pattern);
    find_smallest(shop, group, &pattern, shop->smallest);
    shop->stands[g].begin = begin;
    shop->stands[g].folded = 0;
    eth_hpp_yard_watch(&shop->yard);
    for (int left = group->replicas; left > 0; left -= count) {
        count = shop->unfolded || pattern.pipelines > left ? left : pattern.pipelines;
        if (!group->by_stage)
            count = 1;
        int at = layout->pipeline_count;
        for (int r = 0; r < count; r++) {
            if (!append(layout, &shop->forms, g, 1, 0))
                return out_of_memory(shop);
            if (layout->pipeline_count - 1 > begin)
                layout->pipelines[layout->pipeline_count - 1].like = 1 + begin;
        }
        if (!place_pieces(shop, group, &pattern, at, count))
            return ETH_HPP_DRAFT_GPUS;
        if (shop->yard.old) {
            watched = layout->pipeline_count;
            eth_hpp_yard_watch(&shop->yard);
        } else if (!folded && eth_hpp_yard_is_full(&shop->yard, shop->smallest)) {
            left -= fold(shop, g, watched, left - count);
            folded = true;
        }
    }
    shop->stands[g].end = layout->pipeline_count;
    return ETH_HPP_DRAFT_FITS;
}

/* GPUs of a group's largest part. */
static int largest_part(const struct eth_hpp_workshop *shop,
                        const struct eth_hpp_draft_group *group)
{
    int largest = 0;
    for (int s = 0; s < group->stage_count; s++)
        for (int p = 0; p < group->stages[s].part_count; p++) {
            int gpus =
                group->stages[s].parts[p].workers * shop->cost->degree[group->stages[s].degree];
            largest = gpus > largest ? gpus : largest;
        }
    return largest;
}

enum eth_hpp_draft_fault eth_hpp_draft_place(struct eth_hpp_workshop *shop,
                                             const struct eth_hpp_draft *draft)
{
    int order[ETH_HPP_DRAFT_GROUPS], largest[ETH_HPP_DRAFT_GROUPS];
    for (int g = 0; g < draft->group_count; g++) {
        int size = largest_part(shop, &draft->groups[g]), at = g;
        for (; at > 0 && largest[at - 1] < size; at--) {
            largest[at] = largest[at - 1];
            order[at] = order[at - 1];
        }
        largest[at] = size;
        order[at] = g;
    }
    eth_hpp_yard_clear(&shop->yard);
    shop->layout.pipeline_count = shop->layout.stage_count = shop->layout.worker_count = 0;
    shop->layout.sharded_optimizer = draft->sharded_optimizer;
    for (int i = 0; i < draft->group_count; i++) {
        enum eth_hpp_draft_fault fault = place_group(shop, draft, order[i]);
        if (fault != ETH_HPP_DRAFT_FITS)
            return fault;
    }
    return ETH_HPP_DRAFT_FITS;
}

/* ---- micro-batches ---- */

static void set_micro_batches(struct eth_hpp_layout *layout, int first, int count,
                              int micro_batches)
{
    for (int p = first; p < first + count; p++) {
        struct eth_hpp_layout_pipeline *pipeline = &layout->pipelines[p];
        pipeline->micro_batches = micro_batches;
        for (int s = pipeline->first_stage; s < pipeline->first_stage + pipeline->stage_count; s++)
            if (layout->stages[s].in_flight > micro_batches)
                layout->stages[s].in_flight = micro_batches;
    }
}

/* The node that stands `steps` patterns behind this one in its pool. */
static int later_node(const struct eth_hpp_pool *pool, int node, int steps)
{
    int low = 0, high = pool->node_count - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (pool->nodes[middle] < node)
            low = middle + 1;
        else
            high = middle;
    }
    return pool->nodes[low + steps];
}

/* Lets the folded pattern stand for its first `copies` only, and another one for the rest of them.
 * Returns the first pipeline of that, or -1 when out of memory. */
static int split_fold(struct eth_hpp_workshop *shop, const struct eth_hpp_draft_group *group,
                      const struct eth_hpp_stand *stand, int from, int copies)
{
    struct eth_hpp_layout *layout = &shop->layout;
    int at = layout->pipeline_count, first_stage = layout->pipelines[from].first_stage;
    int all = 1 + layout->stages[first_stage].others;
    if (!append(layout, layout, from, stand->folded, all - copies - 1))
        return -1;
    for (int p = 0; p < stand->folded; p++) {
        layout->pipelines[at + p].like = 1 + stand->begin;
        for (int s = 0; s < group->stage_count; s++) {
            struct eth_hpp_layout_stage *stage =
                &layout->stages[layout->pipelines[at + p].first_stage + s];
            struct eth_hpp_layout_worker *worker = &layout->workers[stage->first_worker];
            layout->stages[layout->pipelines[from + p].first_stage + s].others = copies - 1;
            for (int i = 0; i < group->stages[s].part_count; i++) {
                int pool = group->stages[s].parts[i].pool;
                for (int w = 0; w < group->stages[s].parts[i].workers; w++, worker++)
                    worker->node = later_node(&shop->pools.pools[pool], worker->node,
                                              copies * stand->stride[pool]);
            }
        }
    }
    return at;
}

/* The folded pattern: the first `more` of its pipelines, all copies of it counted, get one more. */
static bool give_fold(struct eth_hpp_workshop *shop, const struct eth_hpp_draft_group *group,
                      const struct eth_hpp_stand *stand, int count, int more)
{
    struct eth_hpp_layout *layout = &shop->layout;
    int at = stand->fold, size = stand->folded;
    int copies = 1 + layout->stages[layout->pipelines[at].first_stage].others;
    int whole = more / size, mixed = more % size;
    if (whole > 0) {
        int rest = whole < copies ? split_fold(shop, group, stand, at, whole) : at;
        if (rest < 0)
            return false;
        set_micro_batches(layout, at, size, count + 1);
        at = rest;
        copies -= whole;
    }
    if (copies > 0 && mixed > 0) {
        int rest = copies > 1 ? split_fold(shop, group, stand, at, 1) : at;
        if (rest < 0)
            return false;
        set_micro_batches(layout, at, mixed, count + 1);
        set_micro_batches(layout, at + mixed, size - mixed, count);
        at = rest;
        copies--;
    }
    if (copies > 0)
        set_micro_batches(layout, at, size, count);
    return true;
}

bool eth_hpp_draft_give(struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft, int g,
                        int count, int more)
{
    const struct eth_hpp_stand *stand = &shop->stands[g];
    for (int p = stand->begin; p < stand->end; p++) {
        if (p == stand->fold && stand->folded > 0) {
            int first_stage = shop->layout.pipelines[p].first_stage;
            int pipelines = stand->folded * (1 + shop->layout.stages[first_stage].others);
            int here = more < pipelines ? more : pipelines;
            if (!give_fold(shop, &draft->groups[g], stand, count, here))
                return false;
            more -= here;
            p += stand->folded - 1;
        } else {
            set_micro_batches(&shop->layout, p, 1, count + (more > 0));
            more -= more > 0;
        }
    }
    return true;
}
