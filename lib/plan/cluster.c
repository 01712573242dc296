#include "plan/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inventory/device_db.h"

void eth_hpp_cluster_free(struct eth_hpp_cluster *cluster)
{
    for (int i = 0; i < cluster->node_count; i++)
        free(cluster->nodes[i].devices);
    for (int i = 0; i < cluster->link_count; i++) {
        free(cluster->links[i].from);
        free(cluster->links[i].to);
    }
    free(cluster->devices);
    free(cluster->nodes);
    free(cluster->by_name);
    free(cluster->links);
    *cluster = (struct eth_hpp_cluster){0};
}

/* How many nodes come before the name; with `equal` those of this name, too. */
static int count_before(const struct eth_hpp_cluster *cluster, const char *name, bool equal)
{
    int low = 0, high = cluster->node_count;
    while (low < high) {
        int middle = (low + high) / 2;
        int order = strcmp(cluster->nodes[cluster->by_name[middle]].name, name);
        if (order < 0 || (order == 0 && equal))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int eth_hpp_cluster_find_node(const struct eth_hpp_cluster *cluster, const char *name)
{
    int at = count_before(cluster, name, false);
    if (at == cluster->node_count || strcmp(cluster->nodes[cluster->by_name[at]].name, name) != 0)
        return -1;
    return cluster->by_name[at];
}

int eth_hpp_cluster_find_device(const struct eth_hpp_cluster *cluster, const char *name)
{
    for (int i = 0; i < cluster->device_count; i++)
        if (strcmp(cluster->devices[i].name, name) == 0)
            return i;
    return -1;
}

/* Makes room for one more; the room doubles, so its size follows from the count. */
static bool grow(void **list, int count, size_t size)
{
    if ((count & (count - 1)) != 0)
        return true;
    void *larger = realloc(*list, (count == 0 ? 1 : (size_t)count * 2) * size);
    if (larger == NULL)
        return false;
    *list = larger;
    return true;
}

static int *copy_list(const int *list, int count)
{
    int *copy = malloc((size_t)(count > 0 ? count : 1) * sizeof(*copy));
    if (copy != NULL && count > 0)
        memcpy(copy, list, (size_t)count * sizeof(*copy));
    return copy;
}

enum eth_hpp_status eth_hpp_cluster_add_device(struct eth_hpp_cluster *cluster, const char *name,
                                               int *index, struct eth_hpp_error *err)
{
    int found = eth_hpp_cluster_find_device(cluster, name);
    if (found < 0) {
        if (!grow((void **)&cluster->devices, cluster->device_count, sizeof(*cluster->devices)))
            return eth_hpp_error_memory(err, "the cluster's devices");
        struct eth_hpp_device *device = &cluster->devices[cluster->device_count];
        *device = (struct eth_hpp_device){.reserved_bytes = ETH_HPP_RESERVED_BYTES};
        snprintf(device->name, sizeof(device->name), "%s", name);
        const struct eth_hpp_device_spec *spec = eth_hpp_device_db_find(name);
        if (spec != NULL) {
            device->memory_bytes = spec->memory_bytes;
            device->half_flops = spec->half_flops;
            device->single_flops = spec->single_flops;
            device->bf16 = spec->bf16;
        }
        found = cluster->device_count++;
    }
    *index = found;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_cluster_add_node(struct eth_hpp_cluster *cluster,
                                             const struct eth_hpp_node *node,
                                             struct eth_hpp_error *err)
{
    int *devices = copy_list(node->devices, node->gpus);
    if (devices == NULL ||
        !grow((void **)&cluster->nodes, cluster->node_count, sizeof(*cluster->nodes)) ||
        !grow((void **)&cluster->by_name, cluster->node_count, sizeof(*cluster->by_name))) {
        free(devices);
        return eth_hpp_error_memory(err, "the cluster's nodes");
    }
    int at = count_before(cluster, node->name, true);
    memmove(&cluster->by_name[at + 1], &cluster->by_name[at],
            (size_t)(cluster->node_count - at) * sizeof(*cluster->by_name));
    cluster->by_name[at] = cluster->node_count;
    struct eth_hpp_node *added = &cluster->nodes[cluster->node_count++];
    *added = *node;
    added->devices = devices;
    added->first_rank = cluster->gpu_count;
    cluster->gpu_count += node->gpus;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_cluster_add_link(struct eth_hpp_cluster *cluster,
                                             const struct eth_hpp_link *link,
                                             struct eth_hpp_error *err)
{
    int *from = copy_list(link->from, link->from_count);
    int *to = copy_list(link->to, link->to_count);
    if (from == NULL || to == NULL ||
        !grow((void **)&cluster->links, cluster->link_count, sizeof(*cluster->links))) {
        free(from);
        free(to);
        return eth_hpp_error_memory(err, "the cluster's links");
    }
    struct eth_hpp_link *added = &cluster->links[cluster->link_count++];
    *added = *link;
    added->from = from;
    added->to = to;
    return ETH_HPP_OK;
}
