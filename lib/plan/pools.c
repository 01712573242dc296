#include "plan/pools.h"

#include <stdint.h>
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
    return a->gpus == b->gpus && a->intra_bandwidth == b->intra_bandwidth &&
           a->intra_latency_s == b->intra_latency_s && a->inter_bandwidth == b->inter_bandwidth &&
           a->inter_latency_s == b->inter_latency_s &&
           a->inter_bandwidth_per_gpu == b->inter_bandwidth_per_gpu &&
           (cost->class_count == 0 || cost->class_of[x] == cost->class_of[y]) &&
           memcmp(a->devices, b->devices, (size_t)a->gpus * sizeof(*a->devices)) == 0;
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

/* Room for twice as many nodes whenever it is full. */
static bool add_node(struct eth_hpp_pool *pool, int node)
{
    const int count = pool->node_count;
    if ((count & (count - 1)) == 0) {
        int *nodes = realloc(pool->nodes, (count > 0 ? 2 * (size_t)count : 1) * sizeof(*nodes));
        if (nodes == NULL)
            return false;
        pool->nodes = nodes;
    }
    pool->nodes[pool->node_count++] = node;
    return true;
}

/* Finds the pool of like GPUs: there may be as many pools as nodes. */
struct index {
    int *last;   /* [size] of the pools that fall there, or -1 */
    int *before; /* [pool] another one that falls there, or -1 */
    size_t size;
};

static size_t place_of(const struct index *index, const struct eth_hpp_node *node, int device)
{
    const double numbers[] = {node->intra_bandwidth,
                              node->intra_latency_s,
                              node->inter_bandwidth,
                              node->inter_latency_s,
                              device,
                              node->gpus};
    uint64_t key = 0;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        uint64_t bits;
        memcpy(&bits, &numbers[i], sizeof(bits));
        key = (key ^ bits) * 0x9e3779b97f4a7c15u;
        key ^= key >> 29;
    }
    return key % index->size;
}

static bool open_index(struct index *index, const struct eth_hpp_cluster *cluster)
{
    index->size = 2 * (size_t)cluster->node_count;
    index->last = malloc(index->size * sizeof(*index->last));
    index->before = malloc((size_t)cluster->gpu_count * sizeof(*index->before));
    for (size_t i = 0; index->last != NULL && i < index->size; i++)
        index->last[i] = -1;
    return index->last != NULL && index->before != NULL;
}

static void close_index(struct index *index)
{
    free(index->last);
    free(index->before);
}

/* Adds a node's GPUs of one kind to the pool of like ones, or to a new one. */
static bool add_gpus(const struct eth_hpp_cost *cost, struct eth_hpp_pools *pools,
                     struct index *index, int node, int device, int count)
{
    int *last = &index->last[place_of(index, &cost->cluster->nodes[node], device)], p = *last;
    while (p >= 0 &&
           !(pools->pools[p].device == device && like_nodes(cost, pools->pools[p].nodes[0], node)))
        p = index->before[p];
    if (p < 0) {
        p = pools->count;
        index->before[p] = *last;
        *last = p;
        struct eth_hpp_pool *list = realloc(pools->pools, (size_t)(p + 1) * sizeof(*list));
        if (list == NULL)
            return false;
        pools->pools = list;
        list[p] = (struct eth_hpp_pool){.device = device, .per_node = count};
        pools->count++;
    }
    pools->pools[p].gpus += count;
    return add_node(&pools->pools[p], node);
}

enum eth_hpp_status eth_hpp_pools_make(const struct eth_hpp_cost *cost, struct eth_hpp_pools *pools,
                                       struct eth_hpp_error *err)
{
    struct eth_hpp_pools made = {0};
    struct index index = {0};
    bool fine = open_index(&index, cost->cluster);
    for (int n = 0; n < cost->cluster->node_count; n++)
        for (int d = 0; d < cost->cluster->device_count && fine; d++) {
            int count = count_device(&cost->cluster->nodes[n], d);
            if (count > 0 && has_times(cost, d))
                fine = add_gpus(cost, &made, &index, n, d, count);
        }
    close_index(&index);
    if (!fine) {
        eth_hpp_pools_free(&made);
        return eth_hpp_error_memory(err, "the pools of GPUs");
    }
    *pools = made;
    return ETH_HPP_OK;
}
