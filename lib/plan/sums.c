#include "plan/sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void eth_hpp_sums_free(struct eth_hpp_sums *sums)
{
    free(sums->blocks);
    free(sums->owner_list);
    free(sums->cut);
    free(sums->free_s);
    free(sums->card_s);
    free(sums->ring_bytes);
    free(sums->hand_over_bytes);
    free(sums->mark);
    free(sums->touched);
    free(sums->class_mark);
    *sums = (struct eth_hpp_sums){0};
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

/* ---- memory ---- */

static bool make_tables(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost)
{
    size_t nodes = (size_t)cost->cluster->node_count;
    if (sums->cut != NULL)
        return true;
    sums->cut = calloc((size_t)cost->profile->layer_count + 1, sizeof(*sums->cut));
    sums->card_s = calloc(nodes, sizeof(*sums->card_s));
    sums->ring_bytes = calloc(nodes, sizeof(*sums->ring_bytes));
    sums->hand_over_bytes = calloc(nodes, sizeof(*sums->hand_over_bytes));
    sums->mark = calloc(nodes, sizeof(*sums->mark));
    sums->touched = calloc(nodes, sizeof(*sums->touched));
    sums->class_mark = calloc((size_t)cost->class_count + 1, sizeof(*sums->class_mark));
    sums->block_room = cost->profile->layer_count + cost->profile->tied_count;
    sums->blocks = calloc((size_t)sums->block_room, sizeof(*sums->blocks));
    return sums->cut != NULL && sums->card_s != NULL && sums->ring_bytes != NULL &&
           sums->hand_over_bytes != NULL && sums->mark != NULL && sums->touched != NULL &&
           sums->class_mark != NULL && sums->blocks != NULL;
}

static bool reserve_stages(struct eth_hpp_sums *sums, int stages, int owners)
{
    if (stages > sums->stage_room) {
        double *free_s = realloc(sums->free_s, 2 * (size_t)stages * sizeof(*free_s));
        if (free_s == NULL)
            return false;
        sums->free_s = free_s;
        sums->stage_room = 2 * stages;
    }
    if (owners > sums->owner_room) {
        int *list = realloc(sums->owner_list, 2 * (size_t)owners * sizeof(*list));
        if (list == NULL)
            return false;
        sums->owner_list = list;
        sums->owner_room = 2 * owners;
    }
    return true;
}

/* ---- blocks and rings ---- */

static bool owns(const struct eth_hpp_cost *cost, const struct eth_hpp_layout_stage *stage,
                 const struct eth_hpp_sum *block)
{
    if (block->tied >= 0)
        return eth_hpp_cost_holds_tied(cost, block->tied, stage->first_layer, stage->end_layer);
    return stage->first_layer <= block->first_layer && block->end_layer <= stage->end_layer;
}

/* Marks the nodes of the block's workers with how many stand there. */
static void mark_nodes(struct eth_hpp_sums *sums, const struct eth_hpp_layout *layout,
                       const struct eth_hpp_sum *block)
{
    for (int i = 0; i < sums->touched_count; i++)
        sums->mark[sums->touched[i]] = 0;
    sums->touched_count = 0;
    for (int o = 0; o < block->owner_stages; o++) {
        const struct eth_hpp_layout_stage *stage =
            &layout->stages[sums->owner_list[block->first_owner + o]];
        for (int w = 0; w < stage->worker_count; w++) {
            int node = layout->workers[stage->first_worker + w].node;
            if (sums->mark[node]++ == 0)
                sums->touched[sums->touched_count++] = node;
        }
    }
}

/* A limited pair of nodes in the ring slows it, whichever way the ring goes. */
static void limit_by_links(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                           struct eth_hpp_sum *block)
{
    int classes = cost->class_count;
    for (int c = 0; c < classes; c++)
        sums->class_mark[c] = 0;
    for (int i = 0; i < sums->touched_count && classes > 0; i++)
        sums->class_mark[cost->class_of[sums->touched[i]]]++;
    for (int a = 0; a < classes; a++)
        for (int b = a; b < classes; b++) {
            int link = cost->link_of[a * classes + b];
            bool both = a == b ? sums->class_mark[a] > 1
                               : sums->class_mark[a] > 0 && sums->class_mark[b] > 0;
            if (!both || link < 0)
                continue;
            const struct eth_hpp_link *limit = &cost->cluster->links[link];
            block->bandwidth = smaller(block->bandwidth, limit->bandwidth / block->tensor_parallel);
            block->latency_s = larger(block->latency_s, limit->latency_s);
        }
}

/* Each of the tensor-parallel rings crosses every node's network, so they share it. */
static void find_ring(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                      const struct eth_hpp_layout *layout, struct eth_hpp_sum *block)
{
    const struct eth_hpp_node *nodes = cost->cluster->nodes;
    mark_nodes(sums, layout, block);
    block->across = sums->touched_count > 1 || block->copied;
    if (!block->across) {
        block->bandwidth = nodes[sums->touched[0]].intra_bandwidth;
        block->latency_s = nodes[sums->touched[0]].intra_latency_s;
        return;
    }
    block->bandwidth = INFINITY;
    block->latency_s = 0;
    for (int i = 0; i < sums->touched_count; i++) {
        const struct eth_hpp_node *node = &nodes[sums->touched[i]];
        block->bandwidth =
            smaller(block->bandwidth, node->inter_bandwidth / block->tensor_parallel);
        if (node->inter_bandwidth_per_gpu > 0)
            block->bandwidth = smaller(block->bandwidth, node->inter_bandwidth_per_gpu *
                                                             sums->mark[sums->touched[i]]);
        block->latency_s = larger(block->latency_s, node->inter_latency_s);
    }
    limit_by_links(sums, cost, block);
}

static void add_block(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                      const struct eth_hpp_layout *layout, struct eth_hpp_sum block,
                      int *owner_count)
{
    const struct eth_hpp_profile *profile = cost->profile;
    if (block.tied >= 0) {
        block.bytes = profile->tied[block.tied].gradient_bytes;
        block.parameters = profile->tied[block.tied].parameters;
    }
    for (int k = 0; k < profile->kind_count && block.tied < 0; k++) {
        int count = eth_hpp_cost_count(cost, k, block.first_layer, block.end_layer);
        block.bytes += count * profile->kinds[k].gradient_bytes;
        block.parameters += count * profile->kinds[k].parameters;
    }
    block.first_owner = *owner_count;
    for (int s = 0; s < layout->stage_count; s++) {
        const struct eth_hpp_layout_stage *stage = &layout->stages[s];
        if (!owns(cost, stage, &block))
            continue;
        sums->owner_list[(*owner_count)++] = s;
        block.owner_stages++;
        block.owners += stage->worker_count * (1 + stage->others);
        block.copied = block.copied || stage->others > 0;
        if (block.tensor_parallel == 0 || stage->tensor_parallel < block.tensor_parallel)
            block.tensor_parallel = stage->tensor_parallel;
    }
    sums->blocks[sums->block_count++] = block;
}

bool eth_hpp_sums_find_owners(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                              const struct eth_hpp_layout *layout)
{
    int layers = cost->profile->layer_count, cuts = 0, owner_count = 0;
    if (!make_tables(sums, cost))
        return false;
    memset(sums->cut, 0, (size_t)layers * sizeof(*sums->cut));
    for (int s = 0; s < layout->stage_count; s++) {
        cuts += !sums->cut[layout->stages[s].first_layer];
        sums->cut[layout->stages[s].first_layer] = true;
    }
    if (!reserve_stages(sums, layout->stage_count,
                        cuts * layout->pipeline_count +
                            cost->profile->tied_count * layout->stage_count))
        return false;
    sums->block_count = 0;
    for (int layer = 0, end; layer < layers; layer = end) {
        for (end = layer + 1; end < layers && !sums->cut[end];)
            end++;
        add_block(sums, cost, layout,
                  (struct eth_hpp_sum){.first_layer = layer, .end_layer = end, .tied = -1},
                  &owner_count);
    }
    sums->layer_blocks = sums->block_count;
    for (int t = 0; t < cost->profile->tied_count; t++)
        add_block(sums, cost, layout, (struct eth_hpp_sum){.tied = t}, &owner_count);
    return true;
}

bool eth_hpp_sums_prepare(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                          const struct eth_hpp_layout *layout)
{
    if (!eth_hpp_sums_find_owners(sums, cost, layout))
        return false;
    for (int b = 0; b < sums->block_count; b++)
        if (sums->blocks[b].owners > 0)
            find_ring(sums, cost, layout, &sums->blocks[b]);
    return true;
}

/* ---- time ---- */

/* The i-th block in the order in which sums are issued: last layers first, then tied tensors. */
static const struct eth_hpp_sum *in_order(const struct eth_hpp_sums *sums, int i)
{
    return &sums->blocks[i < sums->layer_blocks ? sums->layer_blocks - 1 - i : i];
}

static void reset(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                  const struct eth_hpp_layout *layout)
{
    memset(sums->card_s, 0, (size_t)cost->cluster->node_count * sizeof(*sums->card_s));
    for (int s = 0; s < layout->stage_count; s++)
        sums->free_s[s] = 0;
}

/* A ring over k owners from `ready` on: rounds x ((k-1)/k x bytes / bandwidth + (k-1) x latency).
 * (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009; nccl-tests counts so too.)
 * Returns its end, which becomes the time from which its owners and networks are free. */
static double run_ring(struct eth_hpp_sums *sums, const struct eth_hpp_layout *layout,
                       const struct eth_hpp_sum *block, enum eth_hpp_opcode opcode, int rounds,
                       double ready)
{
    int k = block->owners;
    double start = ready;
    if (k > 1) {
        if (block->across)
            mark_nodes(sums, layout, block);
        for (int i = 0; block->across && i < sums->touched_count; i++)
            ready = larger(ready, sums->card_s[sums->touched[i]]);
        start = ready;
        ready +=
            rounds * ((k - 1.0) / k * block->bytes / block->tensor_parallel / block->bandwidth +
                      (k - 1) * block->latency_s);
        for (int i = 0; block->across && i < sums->touched_count; i++)
            sums->card_s[sums->touched[i]] = ready;
    }
    for (int o = 0; o < block->owner_stages; o++) {
        int stage = sums->owner_list[block->first_owner + o];
        sums->free_s[stage] = ready;
        if (k > 1)
            eth_hpp_observer_tell(sums->observer,
                                  (struct eth_hpp_span){.opcode = opcode,
                                                        .stage = stage,
                                                        .micro_batch = -1,
                                                        .block = (int)(block - sums->blocks),
                                                        .start_s = start,
                                                        .end_s = ready});
    }
    return ready;
}

/* The lowest layer of the block that a stage holds: its last backward must have passed that. */
static int lowest_layer(const struct eth_hpp_cost *cost, const struct eth_hpp_layout_stage *stage,
                        const struct eth_hpp_sum *block)
{
    if (block->tied < 0)
        return block->first_layer;
    unsigned kinds = cost->profile->tied[block->tied].kinds;
    int layer = stage->first_layer;
    while (!(kinds >> cost->profile->layers[layer] & 1))
        layer++;
    return layer;
}

double eth_hpp_sums_end(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                        const struct eth_hpp_layout *layout, const struct eth_hpp_stage_run *runs,
                        int rounds)
{
    double end = 0;
    reset(sums, cost, layout);
    for (int i = 0; i < sums->block_count; i++) {
        const struct eth_hpp_sum *block = in_order(sums, i);
        double ready = 0;
        for (int o = 0; o < block->owner_stages; o++) {
            int s = sums->owner_list[block->first_owner + o];
            const struct eth_hpp_layout_stage *stage = &layout->stages[s];
            const struct eth_hpp_layout_worker *worker = &layout->workers[runs[s].slowest];
            int degree = eth_hpp_cost_degree(cost, stage->tensor_parallel);
            double passed =
                eth_hpp_cost_layers(cost, worker->device, degree, lowest_layer(cost, stage, block),
                                    stage->end_layer, worker->samples, stage->recompute)
                    .backward_s;
            ready = larger(ready, smaller(runs[s].last_end_s, runs[s].last_start_s + passed));
            ready = larger(ready, sums->free_s[s]);
        }
        end = larger(end, run_ring(sums, layout, block, ETH_HPP_SYNC_BLOCK, rounds, ready));
    }
    return end;
}

double eth_hpp_sums_gather_s(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                             const struct eth_hpp_layout *layout)
{
    double end = 0;
    reset(sums, cost, layout);
    for (int i = sums->block_count - 1; i >= 0; i--) {
        const struct eth_hpp_sum *block = in_order(sums, i);
        double ready = 0;
        for (int o = 0; o < block->owner_stages; o++)
            ready = larger(ready, sums->free_s[sums->owner_list[block->first_owner + o]]);
        end = larger(end, run_ring(sums, layout, block, ETH_HPP_GATHER_BLOCK, 1, ready));
    }
    return end;
}

/* ---- network ---- */

static void count_hand_overs(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                             const struct eth_hpp_layout *layout,
                             const struct eth_hpp_layout_pipeline *pipeline)
{
    for (int i = 0; i + 1 < pipeline->stage_count; i++) {
        int s = pipeline->first_stage + i, last = layout->stages[s].end_layer - 1;
        double unit = cost->profile->kinds[cost->profile->layers[last]].output_bytes *
                      pipeline->micro_batches;
        struct eth_hpp_piece_walk walk = {0};
        struct eth_hpp_piece piece;
        while (eth_hpp_cost_next_piece(layout, s, &walk, &piece)) {
            int x = layout->workers[piece.from].node, y = layout->workers[piece.to].node;
            if (x == y)
                continue; /* the activation goes one way, its gradient back: both are one way each
                           */
            sums->hand_over_bytes[x] += piece.samples * unit;
            sums->hand_over_bytes[y] += piece.samples * unit;
        }
    }
}

double eth_hpp_sums_network_s(struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                              const struct eth_hpp_layout *layout)
{
    int nodes = cost->cluster->node_count;
    double busiest = 0;
    memset(sums->ring_bytes, 0, (size_t)nodes * sizeof(*sums->ring_bytes));
    memset(sums->hand_over_bytes, 0, (size_t)nodes * sizeof(*sums->hand_over_bytes));
    for (int p = 0; p < layout->pipeline_count; p++)
        count_hand_overs(sums, cost, layout, &layout->pipelines[p]);
    for (int b = 0; b < sums->block_count; b++) {
        const struct eth_hpp_sum *block = &sums->blocks[b];
        if (!block->across)
            continue;
        mark_nodes(sums, layout, block);
        for (int i = 0; i < sums->touched_count; i++)
            sums->ring_bytes[sums->touched[i]] +=
                2 * (block->owners - 1.0) / block->owners * block->bytes;
    }
    for (int n = 0; n < nodes; n++)
        busiest = larger(busiest, (sums->hand_over_bytes[n] + sums->ring_bytes[n]) /
                                      cost->cluster->nodes[n].inter_bandwidth);
    return busiest;
}

/* ---- optimizer ---- */

double eth_hpp_sums_optimizer_s(const struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                                const struct eth_hpp_layout *layout)
{
    double slowest = 0;
    for (int s = 0; s < layout->stage_count; s++) {
        const struct eth_hpp_layout_stage *stage = &layout->stages[s];
        double parameters = 0;
        for (int b = 0; b < sums->block_count; b++)
            if (owns(cost, stage, &sums->blocks[b]))
                parameters += sums->blocks[b].parameters /
                              (layout->sharded_optimizer ? sums->blocks[b].owners : 1);
        double update_s = 0;
        for (int w = 0; w < stage->worker_count; w++)
            update_s = larger(
                update_s, parameters / stage->tensor_parallel *
                              cost->optimizer_s[layout->workers[stage->first_worker + w].device]);
        slowest = larger(slowest, update_s);
        eth_hpp_observer_tell(sums->observer,
                              (struct eth_hpp_span){.opcode = ETH_HPP_OPTIMIZER_STEP,
                                                    .stage = s,
                                                    .micro_batch = -1,
                                                    .block = -1,
                                                    .end_s = update_s});
    }
    return slowest;
}

double eth_hpp_sums_sharded_bytes(const struct eth_hpp_sums *sums, const struct eth_hpp_cost *cost,
                                  const struct eth_hpp_layout *layout, int s)
{
    const struct eth_hpp_layout_stage *stage = &layout->stages[s];
    const struct eth_hpp_profile_memory *memory =
        cost->memory[eth_hpp_cost_degree(cost, stage->tensor_parallel)];
    double bytes = 0;
    for (int b = 0; b < sums->block_count; b++) {
        const struct eth_hpp_sum *block = &sums->blocks[b];
        if (!owns(cost, stage, block))
            continue;
        double optimizer = 0;
        if (block->tied >= 0)
            optimizer = memory->tied[block->tied].optimizer_bytes;
        for (int k = 0; k < cost->profile->kind_count && block->tied < 0; k++)
            optimizer += eth_hpp_cost_count(cost, k, block->first_layer, block->end_layer) *
                         memory->kinds[k].optimizer_bytes;
        bytes += optimizer * (1 - 1.0 / block->owners);
    }
    return bytes;
}
