#include "plan/bound_network.h"

#include <stdlib.h>

#include "plan/bound_lp.h"

/* How often the worth of GPUs is found anew once it is known how little networks let them do. */
enum { TURNS = 4 };
/* GPUs of a kind are never counted as fewer than this part of them: the programme's loads are
 * finite. */
#define LEAST_PART 1e-3

double eth_hpp_bound_forward_s(const struct eth_hpp_bound_room *b, double all_s)
{
    const struct eth_hpp_cost *cost = b->cost;
    double least = 1;
    for (int i = 0; i < b->devices * cost->degrees; i++) {
        const struct eth_hpp_times *times =
            cost->times[b->device[i / cost->degrees] * cost->degrees + i % cost->degrees];
        for (int t = 0; times != NULL && t < times->points * b->kinds; t++) {
            double both = times->times[t].forward_s + times->times[t].backward_s;
            if (both > 0)
                least = eth_hpp_bound_smaller(least, times->times[t].forward_s / both);
        }
    }
    return least * all_s;
}

/* ---- what there is to share ---- */

/* Layers that a node may share with others. */
struct share {
    double worth, bytes; /* of the whole batch, and of its gradients */
};

/* The best layers for their bytes come first. */
static int compare_shares(const void *a, const void *b)
{
    const struct share *x = a, *y = b;
    double left = x->worth * y->bytes, right = y->worth * x->bytes;
    return (left < right) - (left > right);
}

/* What is known of all nodes. */
struct network {
    struct share *shares;
    int count;
    double gradient_bytes; /* of all layers and tied tensors */
    double batch_bytes;    /* of the least hand-over of the whole batch */
    double room_s, sums_s; /* in which networks carry anything, and sums */
};

static void measure(const struct eth_hpp_bound_room *b, double step_s, struct network *network)
{
    const struct eth_hpp_profile *profile = b->cost->profile;
    double least = INFINITY;
    for (int l = 0; l < profile->layer_count; l++) {
        network->gradient_bytes += profile->kinds[profile->layers[l]].gradient_bytes;
        if (l + 1 < profile->layer_count)
            least = eth_hpp_bound_smaller(least, profile->kinds[profile->layers[l]].output_bytes);
    }
    for (int t = 0; t < profile->tied_count; t++)
        network->gradient_bytes += profile->tied[t].gradient_bytes;
    network->batch_bytes = least * b->global_batch;
    network->room_s = eth_hpp_bound_larger(step_s - b->optimizer_s, 0);
    network->sums_s = eth_hpp_bound_larger(network->room_s - b->forward_s, 0);
}

/* Can a node share all layers, or hand the whole batch over? Then nothing is said of it. */
static bool is_fast(const struct network *network, double bandwidth)
{
    return network->gradient_bytes <= bandwidth * network->sums_s ||
           network->batch_bytes <= bandwidth * network->room_s;
}

/* The most that a node shares without sharing all layers: the sums of what it shares, x bytes,
 * leave (N - x) for hand-overs, of batch_bytes for all samples of those layers. */
static double most_shared(const struct network *network, double bandwidth)
{
    double all = bandwidth * network->room_s, sums = bandwidth * network->sums_s;
    double bytes = 0, worth = 0, most = 0;
    for (int i = 0; i < network->count && bytes <= sums; i++) {
        const struct share *share = &network->shares[i];
        double end = eth_hpp_bound_smaller(bytes + share->bytes, sums), best = end;
        double slope = share->bytes > 0 ? share->worth / share->bytes : 0;
        if (slope > 0) /* where worth x what is left is largest */
            best = eth_hpp_bound_smaller(
                end, eth_hpp_bound_larger(bytes, (all + bytes - worth / slope) / 2));
        double here = share->bytes > 0 ? worth + slope * (best - bytes) : worth + share->worth;
        most = eth_hpp_bound_larger(most, here * (all - best) / network->batch_bytes);
        worth += share->worth;
        bytes += share->bytes;
    }
    return most;
}

/* ---- the nodes ---- */

/* GPUs as they are counted, what one of each kind is worth, and what comes of them. */
struct worths {
    double *parts;          /* [device] that is counted of its GPUs */
    double *prices;         /* [device] of all of these */
    double *useful;         /* [device] GPUs that networks let work */
    double together, alone; /* what all nodes can do; and at most one that does almost all itself */
};

static int find_device(const struct eth_hpp_bound_room *b, int device)
{
    int i = 0;
    while (i < b->devices && b->device[i] != device)
        i++;
    return i;
}

static void add_node(const struct eth_hpp_bound_room *b, const struct network *network,
                     const struct eth_hpp_node *node, struct worths *worths)
{
    double own = 0, useful = 1;
    for (int g = 0; g < node->gpus; g++) {
        int i = find_device(b, node->devices[g]);
        own += i < b->devices ? worths->prices[i] / (worths->parts[i] * b->gpus[i]) : 0;
    }
    if (!is_fast(network, node->inter_bandwidth)) {
        double shared = most_shared(network, node->inter_bandwidth);
        worths->alone = eth_hpp_bound_larger(worths->alone, own + shared);
        useful = shared < own ? shared / own : 1;
    }
    worths->together += useful * own;
    for (int g = 0; g < node->gpus; g++) {
        int i = find_device(b, node->devices[g]);
        if (i < b->devices)
            worths->useful[i] += useful;
    }
}

static bool all_are_fast(const struct eth_hpp_cluster *cluster, const struct network *network)
{
    for (int n = 0; n < cluster->node_count; n++)
        if (!is_fast(network, cluster->nodes[n].inter_bandwidth))
            return false;
    return true;
}

/* Finds prices with GPUs counted in parts, and what all layers and the nodes are worth at them.
 * Returns the layers' worth. */
static double find_worths(const struct eth_hpp_bound_room *b, double load_s, double *load,
                          struct network *network, struct worths *worths)
{
    int rows = b->load_rows;
    double all = 0;
    for (int i = 0; i < rows * b->devices; i++)
        load[i] = b->load[i] / (load_s * worths->parts[i % b->devices]);
    eth_hpp_bound_lp(load, rows, b->devices, worths->prices);
    network->count = rows;
    for (int r = 0; r < rows; r++) {
        struct share *share = &network->shares[r];
        share->worth = INFINITY;
        for (int i = 0; i < b->devices; i++)
            share->worth =
                eth_hpp_bound_smaller(share->worth, worths->prices[i] * load[r * b->devices + i]);
        share->bytes = b->layers[r] * b->cost->profile->kinds[b->load_kind[r]].gradient_bytes;
        all += share->worth;
    }
    qsort(network->shares, (size_t)rows, sizeof(*network->shares), compare_shares);
    worths->together = worths->alone = 0;
    for (int i = 0; i < b->devices; i++)
        worths->useful[i] = 0;
    for (int n = 0; n < b->cost->cluster->node_count; n++)
        add_node(b, network, &b->cost->cluster->nodes[n], worths);
    return all;
}

double eth_hpp_bound_over_network(const struct eth_hpp_bound_room *b, double step_s, double load_s)
{
    size_t devices = (size_t)b->devices, rows = (size_t)b->load_rows;
    struct network network = {0};
    struct worths worths = {0};
    double together = 0, alone = INFINITY, *load = NULL;
    measure(b, step_s, &network);
    if (b->cost->cluster->node_count == 1 || all_are_fast(b->cost->cluster, &network))
        return 0;
    load = calloc(rows * devices, sizeof(*load));
    network.shares = calloc(rows, sizeof(*network.shares));
    worths.parts = calloc(devices, sizeof(*worths.parts));
    worths.prices = calloc(devices, sizeof(*worths.prices));
    worths.useful = calloc(devices, sizeof(*worths.useful));
    if (load == NULL || network.shares == NULL || worths.parts == NULL || worths.prices == NULL ||
        worths.useful == NULL)
        goto out;
    for (int i = 0; i < b->devices; i++)
        worths.parts[i] = 1;
    for (int turn = 0; turn < TURNS && together <= 1; turn++) {
        double all = find_worths(b, load_s, load, &network, &worths);
        if (!(all > 0)) /* out of memory */
            break;
        together = eth_hpp_bound_larger(together, all / worths.together);
        if (turn == 0)
            alone = all / worths.alone;
        for (int i = 0; i < b->devices; i++)
            worths.parts[i] = eth_hpp_bound_larger(LEAST_PART, worths.useful[i] / b->gpus[i]);
    }
out:
    free(load);
    free(network.shares);
    free(worths.parts);
    free(worths.prices);
    free(worths.useful);
    return eth_hpp_bound_smaller(together, alone);
}
