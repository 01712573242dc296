#include "plan/pools.h"

#include <stdlib.h>
#include <string.h>

void eth_hpp_pools_free(struct eth_hpp_pools *pools)
{
    for (int i = 0; i < pools->count; i++)
        free(pools->pools[i].nodes);
    free(pools->pools);
    *pools = (struct eth_hpp_pools){0};
}

static bool like_nodes(const struct eth_hpp_cost *cost, int x, int y)
{
    const struct eth_hpp_node *a = &cost->cluster->nodes[x], *b = &cost->cluster->nodes[y];
    return a->gpus == b->gpus &&
           memcmp(a->devices, b->devices, (size_t)a->gpus * sizeof(*a->devices)) == 0 &&
           a->intra_bandwidth == b->intra_bandwidth && a->intra_latency_s == b->intra_latency_s &&
           a->inter_bandwidth == b->inter_bandwidth && a->inter_latency_s == b->inter_latency_s &&
           a->inter_bandwidth_per_gpu == b->inter_bandwidth_per_gpu &&
           (cost->class_count == 0 || cost->class_of[x] == cost->class_of[y]);
}

static bool has_times(const struct eth_hpp_cost *cost, int device)
{
    for (int d = 0; d < cost->degrees; d++)
        if (cost->times[device * cost->degrees + d] != NULL)
            return true;
    return false;
}

static int count_device(const struct eth_hpp_node *node, int device)
{
    int count = 0;
    for (int g = 0; g < node->gpus; g++)
        count += node->devices[g] == device;
    return count;
}

/* Adds a node's GPUs of one kind to the pool of like ones, or to a new one. */
static bool add_gpus(const struct eth_hpp_cost *cost, struct eth_hpp_pools *pools, int node,
                     int device, int count)
{
    int p = 0;
    while (p < pools->count &&
           !(pools->pools[p].device == device && like_nodes(cost, pools->pools[p].nodes[0], node)))
        p++;
    if (p == pools->count) {
        struct eth_hpp_pool *list = realloc(pools->pools, (size_t)(p + 1) * sizeof(*list));
        if (list == NULL)
            return false;
        pools->pools = list;
        list[p] = (struct eth_hpp_pool){.device = device, .per_node = count};
        list[p].nodes = malloc((size_t)cost->cluster->node_count * sizeof(*list[p].nodes));
        if (list[p].nodes == NULL)
            return false;
        pools->count++;
    }
    pools->pools[p].nodes[pools->pools[p].node_count++] = node;
    pools->pools[p].gpus += count;
    return true;
}

enum eth_hpp_status eth_hpp_pools_make(const struct eth_hpp_cost *cost, struct eth_hpp_pools *pools,
                                       struct eth_hpp_error *err)
{
    struct eth_hpp_pools made = {0};
    for (int n = 0; n < cost->cluster->node_count; n++)
        for (int d = 0; d < cost->cluster->device_count; d++) {
            int count = count_device(&cost->cluster->nodes[n], d);
            if (count > 0 && has_times(cost, d) && !add_gpus(cost, &made, n, d, count)) {
                eth_hpp_pools_free(&made);
                return eth_hpp_error_memory(err, "the pools of GPUs");
            }
        }
    *pools = made;
    return ETH_HPP_OK;
}
