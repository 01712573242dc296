#include "launcher/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"

/* Where neither the inventory nor a measurement knows better. */
#define ASSUMED_INTRA_BANDWIDTH 10e9
#define ASSUMED_INTRA_LATENCY_S 5e-6
#define ASSUMED_INTER_BANDWIDTH 1.25e9
#define ASSUMED_INTER_LATENCY_S 3e-5

/* ---- one rank ---- */

static double slowest_link(const struct eth_hpp_inventory *inventory, int gpu)
{
    double slowest = 0;
    for (int i = 0; i < inventory->gpu_link_count; i++) {
        const struct eth_hpp_inventory_gpu_link *link = &inventory->gpu_links[i];
        bool touches = link->gpus[0] == gpu || link->gpus[1] == gpu;
        if (touches && (slowest == 0 || link->bandwidth < slowest))
            slowest = link->bandwidth;
    }
    return slowest;
}

void eth_hpp_launch_rank_fill(const struct eth_hpp_inventory *inventory,
                              const struct eth_hpp_inventory_gpu *gpu,
                              const struct eth_hpp_bootstrap_place *place,
                              struct eth_hpp_launch_rank *rank)
{
    *rank = (struct eth_hpp_launch_rank){.version = PACKAGE_VERSION,
                                         .local_rank = place->local_rank,
                                         .local_size = place->local_size,
                                         .gpu = *gpu,
                                         .gpu_bandwidth = slowest_link(inventory, gpu->index)};
    snprintf(rank->node, sizeof(rank->node), "%s", inventory->node);
    snprintf(rank->host, sizeof(rank->host), "%s", place->host);
    snprintf(rank->driver, sizeof(rank->driver), "%s", inventory->driver);
    snprintf(rank->device, sizeof(rank->device), "%s", gpu->device);
    for (int i = 0; i < inventory->nic_count; i++) {
        double bandwidth = inventory->nics[i].bandwidth;
        rank->network_bandwidth += bandwidth;
        if (inventory->nic_count > 1 && bandwidth > rank->card_bandwidth)
            rank->card_bandwidth = bandwidth;
    }
    /* The emulation counts GPUs by their place in the list. */
    for (int i = 0; i < inventory->emulation.count && i < inventory->gpu_count; i++) {
        if (&inventory->gpus[i] != gpu)
            continue;
        rank->speed = inventory->emulation.gpus[i].speed;
        rank->time_scale = inventory->emulation.time_scale;
        snprintf(rank->device, sizeof(rank->device), "%s", inventory->emulation.gpus[i].device);
    }
}

void eth_hpp_launch_device(const struct eth_hpp_launch_rank *rank,
                           char device[ETH_HPP_LAUNCH_DEVICE_MAX])
{
    const bool gpu = rank->time_scale <= 0 && strcmp(rank->gpu.device, ETH_HPP_CPU_DEVICE) != 0;
    snprintf(device, ETH_HPP_LAUNCH_DEVICE_MAX, "%s%s%s", gpu ? "cuda" : "cpu",
             gpu && rank->gpu.uuid[0] != '\0' ? ":" : "", gpu ? rank->gpu.uuid : "");
}

/* ---- all ranks ---- */

static bool same_gpu(const struct eth_hpp_launch_rank *a, const struct eth_hpp_launch_rank *b)
{
    if (a->gpu.uuid[0] != '\0' && b->gpu.uuid[0] != '\0')
        return strcmp(a->gpu.uuid, b->gpu.uuid) == 0;
    return strcmp(a->node, b->node) == 0 && a->gpu.index == b->gpu.index;
}

enum eth_hpp_status eth_hpp_launch_ranks_check(const struct eth_hpp_launch_rank *ranks, int count,
                                               struct eth_hpp_error *err)
{
    for (int r = 0; r < count; r++) {
        if (strcmp(ranks[r].version, ranks[0].version) != 0)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                     "rank %d on %s runs eth-hpp %.32s, rank 0 on %s runs %.32s: "
                                     "install one version on all nodes",
                                     r, ranks[r].node, ranks[r].version, ranks[0].node,
                                     ranks[0].version);
        if ((ranks[r].time_scale > 0) != (ranks[0].time_scale > 0))
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                     "%s has emulated devices and %s has not: they cannot train "
                                     "together",
                                     ranks[r].time_scale > 0 ? ranks[r].node : ranks[0].node,
                                     ranks[r].time_scale > 0 ? ranks[0].node : ranks[r].node);
        for (int q = 0; q < r; q++)
            if (same_gpu(&ranks[q], &ranks[r]))
                return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                         "ranks %d and %d both have GPU %d of node %s: start one "
                                         "rank for each GPU, e.g. --gpus-per-task=1",
                                         q, r, ranks[r].gpu.index, ranks[r].node);
    }
    return ETH_HPP_OK;
}

/* ---- devices ---- */

/* Dense half-precision FLOPs of one multiprocessor in one cycle, by compute capability: datasheet
 * peak / (multiprocessors x boost clock) of V100, A100, A10, L40S, H100, B200. */
static double half_flops_per_cycle(int major, int minor)
{
    if (major == 8 && minor == 0)
        return 2048;
    if (major == 9)
        return 4096;
    return major == 10 ? 8192 : 1024;
}

/* A GPU that the database does not know gets its numbers from multiprocessors x clock. */
static enum eth_hpp_status estimate_device(const struct eth_hpp_inventory_gpu *gpu,
                                           struct eth_hpp_device *device, struct eth_hpp_error *err)
{
    int major = 0, minor = 0;
    double cycles = gpu->multiprocessors * gpu->max_sm_clock_hz;
    if (sscanf(gpu->compute_capability, "%d.%d", &major, &minor) != 2 || cycles <= 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "nothing is known of the GPU \"%s\": state its device in the "
                                 "site's file, or give a measured profile",
                                 gpu->name);
    device->half_flops = cycles * half_flops_per_cycle(major, minor);
    device->single_flops = cycles * 2 * 64;
    device->bf16 = major >= 8;
    device->estimated = true;
    return ETH_HPP_OK;
}

static enum eth_hpp_status add_device(const struct eth_hpp_launch_rank *rank,
                                      struct eth_hpp_cluster *cluster, int *index,
                                      struct eth_hpp_error *err)
{
    int before = cluster->device_count;
    enum eth_hpp_status status = eth_hpp_cluster_add_device(cluster, rank->device, index, err);
    if (status != ETH_HPP_OK)
        return status;
    struct eth_hpp_device *device = &cluster->devices[*index];
    /* Planned for the smallest of a kind: a site may state less than the datasheet. */
    if (*index >= before || rank->gpu.memory_bytes < device->memory_bytes)
        device->memory_bytes = rank->gpu.memory_bytes;
    bool cpu = strcmp(rank->device, ETH_HPP_CPU_DEVICE) == 0;
    if (rank->time_scale > 0 || cpu)
        device->reserved_bytes = 0; /* no driver and no context beside the runtime's own arena */
    if (*index >= before && device->half_flops <= 0 && rank->time_scale <= 0 && !cpu)
        status = estimate_device(&rank->gpu, device, err);
    return status;
}

/* ---- nodes ---- */

static double known_or(double known, double assumed)
{
    return known > 0 ? known : assumed;
}

/* Adds the node of ranks[first] with all its ranks' GPUs; rank_of continues at the cluster's count.
 */
static enum eth_hpp_status add_node(const struct eth_hpp_launch_rank *ranks, int count, int first,
                                    struct eth_hpp_cluster *cluster, int *rank_of,
                                    struct eth_hpp_error *err)
{
    const struct eth_hpp_launch_rank *own = &ranks[first];
    struct eth_hpp_node node = {.intra_latency_s = ASSUMED_INTRA_LATENCY_S,
                                .inter_latency_s = ASSUMED_INTER_LATENCY_S,
                                .inter_bandwidth =
                                    known_or(own->network_bandwidth, ASSUMED_INTER_BANDWIDTH),
                                .inter_bandwidth_per_gpu = own->card_bandwidth};
    enum eth_hpp_status status = ETH_HPP_OK;
    snprintf(node.name, sizeof(node.name), "%s", own->node);
    node.devices = calloc((size_t)count, sizeof(*node.devices));
    if (node.devices == NULL)
        return eth_hpp_error_memory(err, "the cluster");
    double slowest = 0;
    for (int r = first; r < count && status == ETH_HPP_OK; r++) {
        if (strcmp(ranks[r].node, own->node) != 0)
            continue;
        rank_of[cluster->gpu_count + node.gpus] = r;
        if (ranks[r].gpu_bandwidth > 0 && (slowest == 0 || ranks[r].gpu_bandwidth < slowest))
            slowest = ranks[r].gpu_bandwidth;
        status = add_device(&ranks[r], cluster, &node.devices[node.gpus], err);
        node.gpus++;
    }
    node.intra_bandwidth = known_or(slowest, ASSUMED_INTRA_BANDWIDTH);
    if (status == ETH_HPP_OK)
        status = eth_hpp_cluster_add_node(cluster, &node, err);
    free(node.devices);
    return status;
}

enum eth_hpp_status eth_hpp_launch_cluster_make(const struct eth_hpp_launch_rank *ranks, int count,
                                                struct eth_hpp_cluster *cluster, int **rank_of,
                                                struct eth_hpp_error *err)
{
    struct eth_hpp_cluster made = {0};
    enum eth_hpp_status status = ETH_HPP_OK;
    int *numbers = calloc((size_t)count, sizeof(*numbers));
    if (numbers == NULL)
        return eth_hpp_error_memory(err, "the cluster");
    for (int r = 0; r < count && status == ETH_HPP_OK; r++)
        if (eth_hpp_cluster_find_node(&made, ranks[r].node) < 0)
            status = add_node(ranks, count, r, &made, numbers, err);
    if (status != ETH_HPP_OK) {
        eth_hpp_cluster_free(&made);
        free(numbers);
        return status;
    }
    *cluster = made;
    *rank_of = numbers;
    return ETH_HPP_OK;
}
