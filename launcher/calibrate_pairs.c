/* Which ranks measure with which, and what that says of the cluster. */
#include "launcher/calibrate.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 15 };
#define LIMITED        0.6 /* a pair below this part of what its ends can do has a slow link */
#define LIKE_BANDWIDTH 0.7 /* figures that differ by less than this are the same, but for noise */
#define LIKE_LATENCY   0.4

/* First rank of each node, in the order of ranks; returns the number of nodes. */
static int find_firsts(const struct eth_hpp_launch_rank *ranks, int count, int *firsts)
{
    int nodes = 0;
    for (int r = 0; r < count; r++) {
        bool known = false;
        for (int n = 0; n < nodes && !known; n++)
            known = strcmp(ranks[firsts[n]].node, ranks[r].node) == 0;
        if (!known)
            firsts[nodes++] = r;
    }
    return nodes;
}

static int second_of_node(const struct eth_hpp_launch_rank *ranks, int count, int first)
{
    for (int r = first + 1; r < count; r++)
        if (strcmp(ranks[r].node, ranks[first].node) == 0)
            return r;
    return -1;
}

/* Partner of place i in a round of the circle method for an even number of places: place 0 stays,
 * the others walk around. */
static int partner(int i, int round, int places)
{
    int circle = places - 1;
    if (i == 0)
        return 1 + round % circle;
    int position = (i - 1 - round % circle + circle) % circle; /* 0 is opposite of place 0 */
    if (position == 0)
        return 0;
    return 1 + (circle - position + round % circle) % circle;
}

enum eth_hpp_status eth_hpp_calibrate_pairs(const struct eth_hpp_launch_rank *ranks, int count,
                                            struct eth_hpp_link_measure **pairs, int **rounds,
                                            int *pair_count, struct eth_hpp_error *err)
{
    int *firsts = calloc((size_t)count, sizeof(*firsts));
    if (firsts == NULL)
        return eth_hpp_error_memory(err, "calibration");
    int nodes = find_firsts(ranks, count, firsts);
    int places = nodes + nodes % 2, made = 0;
    int round_count = places - 1 < ROUNDS_MAX ? places - 1 : ROUNDS_MAX;
    size_t most = (size_t)(nodes + round_count * (places / 2));
    struct eth_hpp_link_measure *list = calloc(most, sizeof(*list));
    int *when = calloc(most, sizeof(*when));
    if (list == NULL || when == NULL) {
        free(firsts);
        free(list);
        free(when);
        return eth_hpp_error_memory(err, "calibration");
    }
    for (int n = 0; n < nodes; n++) {
        int second = second_of_node(ranks, count, firsts[n]);
        if (second >= 0)
            list[made++] = (struct eth_hpp_link_measure){.from = firsts[n], .to = second};
    }
    for (int round = 0; round < round_count; round++)
        for (int n = 0; n < nodes; n++) {
            int other = partner(n, round, places);
            if (other <= n || other >= nodes)
                continue; /* has been listed, or stays out this round */
            when[made] = round + 1;
            list[made++] = (struct eth_hpp_link_measure){.from = firsts[n], .to = firsts[other]};
        }
    free(firsts);
    *pairs = list;
    *rounds = when;
    *pair_count = made;
    return ETH_HPP_OK;
}

/* ---- what was measured ---- */

static struct eth_hpp_node *node_of(struct eth_hpp_cluster *cluster,
                                    const struct eth_hpp_launch_rank *rank)
{
    return &cluster->nodes[eth_hpp_cluster_find_node(cluster, rank->node)];
}

static void use_for_network(struct eth_hpp_node *node, const struct eth_hpp_link_measure *pair,
                            bool *measured)
{
    if (!*measured || pair->bandwidth > node->inter_bandwidth)
        node->inter_bandwidth = pair->bandwidth;
    if (!*measured || pair->latency_s < node->inter_latency_s)
        node->inter_latency_s = pair->latency_s;
    node->inter_bandwidth_per_gpu = 0; /* it is in the measured figure */
    *measured = true;
}

static int order_falling(const void *left, const void *right)
{
    double a = **(double *const *)left, b = **(double *const *)right;
    return (a < b) - (a > b);
}

/* Gives figures that are the same but for noise one value, so that like nodes stay interchangeable
 * to the solver. `figures` are `count` places, which are sorted here. */
static void level(double **figures, int count, double like)
{
    qsort(figures, (size_t)count, sizeof(*figures), order_falling);
    for (int first = 0, end; first < count; first = end) {
        for (end = first; end < count && *figures[end] >= like * *figures[first]; end++)
            ;
        double middle = *figures[(first + end - 1) / 2];
        for (int i = first; i < end; i++)
            *figures[i] = middle;
    }
}

static enum eth_hpp_status level_nodes(struct eth_hpp_cluster *cluster, struct eth_hpp_error *err)
{
    int n = cluster->node_count;
    double **figures = calloc((size_t)n, sizeof(*figures));
    if (figures == NULL)
        return eth_hpp_error_memory(err, "calibration");
    for (int i = 0; i < n; i++)
        figures[i] = &cluster->nodes[i].intra_bandwidth;
    level(figures, n, LIKE_BANDWIDTH);
    for (int i = 0; i < n; i++)
        figures[i] = &cluster->nodes[i].inter_bandwidth;
    level(figures, n, LIKE_BANDWIDTH);
    for (int i = 0; i < n; i++)
        figures[i] = &cluster->nodes[i].intra_latency_s;
    level(figures, n, LIKE_LATENCY);
    for (int i = 0; i < n; i++)
        figures[i] = &cluster->nodes[i].inter_latency_s;
    level(figures, n, LIKE_LATENCY);
    free(figures);
    return ETH_HPP_OK;
}

static enum eth_hpp_status limit_link(const struct eth_hpp_link_measure *pair,
                                      const struct eth_hpp_node *a, const struct eth_hpp_node *b,
                                      struct eth_hpp_cluster *cluster, struct eth_hpp_error *err)
{
    double best = a->inter_bandwidth < b->inter_bandwidth ? a->inter_bandwidth : b->inter_bandwidth;
    if (pair->bandwidth >= LIMITED * best)
        return ETH_HPP_OK;
    int from = (int)(a - cluster->nodes), to = (int)(b - cluster->nodes);
    struct eth_hpp_link link = {.from = &from,
                                .to = &to,
                                .from_count = 1,
                                .to_count = 1,
                                .bandwidth = pair->bandwidth,
                                .latency_s = pair->latency_s};
    return eth_hpp_cluster_add_link(cluster, &link, err);
}

enum eth_hpp_status eth_hpp_calibrate_apply_links(const struct eth_hpp_link_measure *pairs,
                                                  int pair_count,
                                                  const struct eth_hpp_launch_rank *ranks,
                                                  struct eth_hpp_cluster *cluster,
                                                  struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    bool *measured = calloc((size_t)cluster->node_count, sizeof(*measured));
    if (measured == NULL)
        return eth_hpp_error_memory(err, "calibration");
    for (int i = 0; i < pair_count; i++) {
        struct eth_hpp_node *a = node_of(cluster, &ranks[pairs[i].from]);
        struct eth_hpp_node *b = node_of(cluster, &ranks[pairs[i].to]);
        if (pairs[i].bandwidth <= 0)
            continue;
        if (a == b) {
            a->intra_bandwidth = pairs[i].bandwidth;
            a->intra_latency_s = pairs[i].latency_s;
        } else {
            use_for_network(a, &pairs[i], &measured[a - cluster->nodes]);
            use_for_network(b, &pairs[i], &measured[b - cluster->nodes]);
        }
    }
    if (pair_count > 0)
        status = level_nodes(cluster, err);
    for (int i = 0; i < pair_count && status == ETH_HPP_OK; i++) {
        const struct eth_hpp_node *a = node_of(cluster, &ranks[pairs[i].from]);
        const struct eth_hpp_node *b = node_of(cluster, &ranks[pairs[i].to]);
        if (a != b && pairs[i].bandwidth > 0)
            status = limit_link(&pairs[i], a, b, cluster, err);
    }
    free(measured);
    return status;
}
