/* What it takes to hand a micro-batch from a stage to the next. */
#include <stdlib.h>

#include "plan/cost.h"

static double larger(double a, double b)
{
    return a > b ? a : b;
}

const struct eth_hpp_link *eth_hpp_cost_link(const struct eth_hpp_cost *cost, int a, int b)
{
    if (cost->class_count == 0)
        return NULL;
    int link = cost->link_of[cost->class_of[a] * cost->class_count + cost->class_of[b]];
    return link >= 0 ? &cost->cluster->links[link] : NULL;
}

bool eth_hpp_cost_next_piece(const struct eth_hpp_layout *layout, int stage,
                             struct eth_hpp_piece_walk *at, struct eth_hpp_piece *piece)
{
    const struct eth_hpp_layout_stage *a = &layout->stages[stage], *b = a + 1;
    const struct eth_hpp_layout_worker *from = layout->workers + a->first_worker;
    const struct eth_hpp_layout_worker *to = layout->workers + b->first_worker;
    if (!at->started) {
        *at = (struct eth_hpp_piece_walk){0, 0, from[0].samples, to[0].samples, true};
    } else {
        if (at->left_from == 0 && ++at->from < a->worker_count)
            at->left_from = from[at->from].samples;
        if (at->left_to == 0 && ++at->to < b->worker_count)
            at->left_to = to[at->to].samples;
    }
    if (at->from >= a->worker_count || at->to >= b->worker_count)
        return false;
    int samples = at->left_from < at->left_to ? at->left_from : at->left_to;
    *piece = (struct eth_hpp_piece){a->first_worker + at->from, b->first_worker + at->to, samples};
    at->left_from -= samples;
    at->left_to -= samples;
    return true;
}

/* ---- what a node's network carries ---- */

/* Samples that leave and enter each node, in the cost's scratch. */
static void count_crossing(const struct eth_hpp_cost *cost, const struct eth_hpp_layout *layout,
                           int stage)
{
    struct eth_hpp_piece_walk walk = {0};
    struct eth_hpp_piece piece;
    while (eth_hpp_cost_next_piece(layout, stage, &walk, &piece)) {
        const int x = layout->workers[piece.from].node, y = layout->workers[piece.to].node;
        if (x == y)
            continue;
        cost->leaving[x] += piece.samples;
        cost->entering[y] += piece.samples;
    }
}

static void clear_crossing(const struct eth_hpp_cost *cost, const struct eth_hpp_layout *layout,
                           int stage)
{
    const struct eth_hpp_layout_stage *a = &layout->stages[stage], *b = a + 1;
    for (int w = 0; w < a->worker_count; w++)
        cost->leaving[layout->workers[a->first_worker + w].node] = 0;
    for (int w = 0; w < b->worker_count; w++)
        cost->entering[layout->workers[b->first_worker + w].node] = 0;
}

/* ---- pairs of nodes whose link is limited ---- */

static int by_nodes(const void *a, const void *b)
{
    const struct eth_hpp_way *x = a, *y = b;
    if (x->lower != y->lower)
        return x->lower < y->lower ? -1 : 1;
    return (x->upper > y->upper) - (x->upper < y->upper);
}

/* Seconds per byte of the pair that takes longest. */
static double slowest_pair_s(struct eth_hpp_way *ways, int count)
{
    double slowest = 0;
    int samples = 0;
    if (count > 1)
        qsort(ways, (size_t)count, sizeof(*ways), by_nodes);
    for (int i = 0; i < count; i++) {
        if (i > 0 && by_nodes(&ways[i - 1], &ways[i]) != 0)
            samples = 0;
        samples += ways[i].samples;
        slowest = larger(slowest, samples / ways[i].bandwidth);
    }
    return slowest;
}

/* ---- the whole ---- */

/* Pieces come in the order of both stages' workers, so that those of one worker follow each other.
 */
struct worker_sums {
    int from, to; /* the workers of the piece before */
    int leaving, entering;
};

static void count_workers(struct worker_sums *sums, const struct eth_hpp_piece *piece)
{
    if (piece->from != sums->from)
        sums->leaving = 0;
    if (piece->to != sums->to)
        sums->entering = 0;
    sums->from = piece->from;
    sums->to = piece->to;
    sums->leaving += piece->samples;
    sums->entering += piece->samples;
}

double eth_hpp_cost_transfer(const struct eth_hpp_cost *cost, const struct eth_hpp_layout *layout,
                             int stage)
{
    const int last = layout->stages[stage].end_layer - 1;
    const double unit = cost->profile->kinds[cost->profile->layers[last]].output_bytes;
    double latency = 0, s = 0;
    int ways = 0;
    struct eth_hpp_piece_walk walk = {0};
    struct eth_hpp_piece piece;
    struct worker_sums sums = {-1, -1, 0, 0};
    count_crossing(cost, layout, stage);
    while (eth_hpp_cost_next_piece(layout, stage, &walk, &piece)) {
        const int x = layout->workers[piece.from].node, y = layout->workers[piece.to].node;
        const struct eth_hpp_node *a = &cost->cluster->nodes[x], *b = &cost->cluster->nodes[y];
        if (x == y) {
            latency = larger(latency, a->intra_latency_s);
            s = larger(s, piece.samples / a->intra_bandwidth);
            continue;
        }
        count_workers(&sums, &piece);
        latency = larger(latency, larger(a->inter_latency_s, b->inter_latency_s));
        s = larger(s, cost->leaving[x] / a->inter_bandwidth);
        s = larger(s, cost->entering[y] / b->inter_bandwidth);
        if (a->inter_bandwidth_per_gpu > 0)
            s = larger(s, sums.leaving / a->inter_bandwidth_per_gpu);
        if (b->inter_bandwidth_per_gpu > 0)
            s = larger(s, sums.entering / b->inter_bandwidth_per_gpu);
        const struct eth_hpp_link *link = eth_hpp_cost_link(cost, x, y);
        if (link == NULL)
            continue;
        latency = larger(latency, link->latency_s);
        cost->ways[ways++] =
            (struct eth_hpp_way){x < y ? x : y, x < y ? y : x, piece.samples, link->bandwidth};
    }
    clear_crossing(cost, layout, stage);
    return latency + larger(s, slowest_pair_s(cost->ways, ways)) * unit;
}
