/* What the nodes' networks carry of chains. */
#include <math.h>
#include <string.h>

#include "plan/chain_kit.h"

/* The pool's GPUs of a stage, of all pipelines that are placed together. */
struct span {
    int pool, per_node, gpus, begin, end;
};

/* Nodes are filled with the larger stages first. */
static void place(const struct eth_hpp_chains *chains, const struct eth_hpp_draft_group *group,
                  struct span *spans)
{
    const struct eth_hpp_workshop *shop = chains->shop;
    int like = chains->by_stage ? group->replicas : 1;
    for (int s = 0; s < group->stage_count; s++) {
        const struct eth_hpp_draft_stage *stage = &group->stages[s];
        int pool = stage->parts[0].pool;
        spans[s] = (struct span){.pool = pool,
                                 .per_node = shop->pools.pools[pool].per_node,
                                 .gpus = like * stage->parts[0].workers *
                                         shop->cost->degree[stage->degree]};
        for (int t = 0; t < s; t++) {
            if (spans[t].pool != pool)
                continue;
            bool first = spans[t].gpus >= spans[s].gpus;
            *(first ? &spans[s].begin : &spans[t].begin) += spans[first ? t : s].gpus;
        }
    }
    for (int s = 0; s < group->stage_count; s++)
        spans[s].end = spans[s].begin + spans[s].gpus;
}

static bool stand_together(const struct span *a, const struct span *b, int shift_a, int shift_b)
{
    int node = (a->begin + shift_a) / a->per_node;
    return a->pool == b->pool && (a->end + shift_a - 1) / a->per_node == node &&
           (b->begin + shift_b) / b->per_node == node &&
           (b->end + shift_b - 1) / b->per_node == node;
}

/* Do so many pipelines leave no node of any pool with some of its GPUs? */
static bool fills_nodes(const struct eth_hpp_chains *chains, int pipelines)
{
    for (int p = 0; p < chains->pools; p++)
        if (pipelines * chains->task->gpus[p] % chains->shop->pools.pools[p].per_node != 0)
            return false;
    return true;
}

/* Seconds in which a node of the span's pool sums the stage's layers with their other owners. */
static double stage_sums_s(const struct eth_hpp_chains *chains,
                           const struct eth_hpp_draft_group *group, const struct span *span, int s,
                           int first)
{
    const struct eth_hpp_cost *cost = chains->shop->cost;
    const struct eth_hpp_chain_task *task = chains->task;
    int width = group->stages[s].parts[0].workers;
    bool inside = span->begin / span->per_node == (span->end - 1) / span->per_node;
    double bytes = 0, owners = (double)task->replicas * width;
    if (task->alone && (owners == 1 || (inside && (chains->by_stage || task->replicas == 1))))
        return 0;
    for (int k = 0; k < cost->profile->kind_count; k++)
        bytes += eth_hpp_cost_count(cost, k, first, first + group->stages[s].layers) *
                 cost->profile->kinds[k].gradient_bytes;
    return 2 * bytes * (task->alone ? 1 - 1 / owners : 1) /
           cost->cluster->nodes[chains->shop->pools.pools[span->pool].nodes[0]].inter_bandwidth;
}

double eth_hpp_chain_network_s(const struct eth_hpp_chains *chains,
                               const struct eth_hpp_draft_group *group)
{
    struct span spans[ETH_HPP_DRAFT_STAGES];
    double *carried_s[ETH_HPP_CLASSES_POOLS], busiest_s = 0;
    int nodes = 0, like = chains->by_stage ? group->replicas : 1;
    int patterns = chains->by_stage ? 1 : group->replicas;
    place(chains, group, spans);
    for (int p = 0; p < chains->pools; p++) {
        carried_s[p] = chains->carried_s + nodes;
        nodes += chains->shop->pools.pools[p].node_count;
    }
    memset(chains->carried_s, 0, (size_t)nodes * sizeof(*chains->carried_s));
    for (int r = 0; r < patterns; r++) {
        if (r > 0 && fills_nodes(chains, r * like))
            break; /* the others are like those before */
        for (int s = 0, first = 0; s < group->stage_count; first += group->stages[s++].layers) {
            const struct span *span = &spans[s];
            int own = chains->task->gpus[span->pool] * like, shift = r * own;
            double sums_s = stage_sums_s(chains, group, span, s, first);
            int sides = 0;
            for (int t = s - 1; t <= s + 1; t += 2)
                sides += t >= 0 && t < group->stage_count &&
                         !stand_together(span, &spans[t], shift, shift);
            int before = r > 0 ? (span->end + shift - own - 1) / span->per_node : -1;
            double each_s = sides * chains->task->rounds * chains->hand_over_s[span->pool] * like /
                            span->gpus; /* of a GPU */
            for (int at = span->begin + shift, end; at < span->end + shift; at = end) {
                int node = at / span->per_node;
                end = (node + 1) * span->per_node;
                end = end < span->end + shift ? end : span->end + shift;
                carried_s[span->pool][node] +=
                    (end - at) * each_s + (node > before ? sums_s : 0);
            }
        }
    }
    for (int n = 0; n < nodes; n++)
        busiest_s = fmax(busiest_s, chains->carried_s[n]);
    return busiest_s;
}
