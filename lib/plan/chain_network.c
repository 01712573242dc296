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

/* Does one node hold both spans, `shift` GPUs further on? */
static bool stand_together(const struct span *a, const struct span *b, int shift)
{
    int node = (a->begin + shift) / a->per_node;
    return a->pool == b->pool && (a->end + shift - 1) / a->per_node == node &&
           (b->begin + shift) / b->per_node == node && (b->end + shift - 1) / b->per_node == node;
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

/* Adds a stage's share to the nodes of its span: each of its GPUs hands over for so long, and each
 * node from `new` on sums its layers. */
static void carry(double *carried_s, const struct span *span, int shift, double each_s, int new,
                  double sums_s)
{
    int last = span->end + shift;
    for (int at = span->begin + shift, end; at < last; at = end) {
        int node = at / span->per_node;
        end = (node + 1) * span->per_node;
        end = end < last ? end : last;
        carried_s[node] += (end - at) * each_s + (node >= new ? sums_s : 0);
    }
}

/* Adds the r-th pipeline, or all of them where they are placed stage by stage. */
static void carry_pipeline(const struct eth_hpp_chains *chains,
                           const struct eth_hpp_draft_group *group, const struct span *spans, int r,
                           double *const *carried_s)
{
    for (int s = 0, first = 0; s < group->stage_count; first += group->stages[s++].layers) {
        const struct span *span = &spans[s];
        int own = chains->task->gpus[span->pool], shift = r * own;
        int new = r > 0 ? (span->end + shift - own - 1) / span->per_node + 1 : 0;
        int sides = (s > 0 && !stand_together(span, span - 1, shift)) +
                    (s + 1 < group->stage_count && !stand_together(span, span + 1, shift));
        double each_s = sides * chains->task->rounds * chains->hand_over_s[span->pool] *
                        (chains->by_stage ? group->replicas : 1) / span->gpus;
        carry(carried_s[span->pool], span, shift, each_s, new,
              stage_sums_s(chains, group, span, s, first));
    }
}

double eth_hpp_chain_network_s(const struct eth_hpp_chains *chains,
                               const struct eth_hpp_draft_group *group)
{
    struct span spans[ETH_HPP_DRAFT_STAGES];
    double *carried_s[ETH_HPP_CLASSES_POOLS] = {NULL}, busiest_s = 0;
    int nodes = 0;
    place(chains, group, spans);
    for (int p = 0; p < chains->pools; p++) {
        carried_s[p] = chains->carried_s + nodes;
        nodes += chains->shop->pools.pools[p].node_count;
    }
    memset(chains->carried_s, 0, (size_t)nodes * sizeof(*chains->carried_s));
    carry_pipeline(chains, group, spans, 0, carried_s);
    for (int r = 1; r < group->replicas && !chains->by_stage && !fills_nodes(chains, r); r++)
        carry_pipeline(chains, group, spans, r, carried_s); /* later ones are like these */
    for (int n = 0; n < nodes; n++)
        busiest_s = fmax(busiest_s, chains->carried_s[n]);
    return busiest_s;
}
