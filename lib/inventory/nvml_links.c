#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "inventory/nvml_api.h"
#include "inventory/sources.h"

/* Bytes a second of one link, one direction. Values are nvmlNvlinkVersion_t: 1.0, 2.0, 2.2, 3.0,
 * 3.1, 4.0, 5.0; a Hopper GPU may call its links of version 4.0 "5.0", so the GPU decides there. */
static double nvlink_rate(unsigned version, int compute_major)
{
    if (version <= 1)
        return 20e9;
    return version >= 7 && compute_major >= 10 ? 50e9 : 25e9;
}

/* Usable bytes a second of one PCIe lane, one direction, after line coding, by generation. */
static double pcie_lane_rate(int generation)
{
    static const double rates[] = {0, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};
    int most = (int)(sizeof(rates) / sizeof(rates[0])) - 1;
    return rates[generation > most ? most : generation];
}

static double pcie_rate(const struct eth_hpp_inventory_gpu *gpu)
{
    return pcie_lane_rate(gpu->pcie_generation) * gpu->pcie_width;
}

/* NVLinks of GPU a that lead to GPU b: straight, or through a switch that joins all GPUs. */
static double nvlink_bandwidth(const struct eth_hpp_nvml *nvml, const struct eth_hpp_nvml_gpu *a,
                               const struct eth_hpp_nvml_gpu *b)
{
    double bandwidth = 0;
    if (nvml->DeviceGetNvLinkState == NULL)
        return 0;
    for (unsigned link = 0; link < NVML_LINKS_MAX; link++) {
        struct eth_hpp_nvml_pci remote = {0};
        unsigned active = 0, version = 0, type = 0;
        if (nvml->DeviceGetNvLinkState(a->handle, link, &active) != NVML_OK || active == 0)
            continue;
        if (nvml->DeviceGetNvLinkVersion == NULL ||
            nvml->DeviceGetNvLinkVersion(a->handle, link, &version) != NVML_OK)
            continue;
        bool to_switch = nvml->DeviceGetNvLinkRemoteDeviceType != NULL &&
                         nvml->DeviceGetNvLinkRemoteDeviceType(a->handle, link, &type) == NVML_OK &&
                         type == NVML_NVLINK_REMOTE_SWITCH;
        bool direct = nvml->DeviceGetNvLinkRemotePciInfo_v2 != NULL &&
                      nvml->DeviceGetNvLinkRemotePciInfo_v2(a->handle, link, &remote) == NVML_OK &&
                      strncasecmp(remote.bus_id, b->bus_id, sizeof(remote.bus_id)) == 0;
        if (to_switch || direct)
            bandwidth += nvlink_rate(version, a->compute_major);
    }
    return bandwidth;
}

static bool peer_to_peer(const struct eth_hpp_nvml *nvml, eth_hpp_nvml_handle a,
                         eth_hpp_nvml_handle b)
{
    unsigned state;
    return nvml->DeviceGetP2PStatus != NULL &&
           nvml->DeviceGetP2PStatus(a, b, NVML_P2P_READ, &state) == NVML_OK &&
           state == NVML_P2P_STATUS_OK;
}

/* The link between two GPUs; bandwidth 0 where nothing is known of it. */
static struct eth_hpp_inventory_gpu_link find_link(const struct eth_hpp_nvml *nvml,
                                                   const struct eth_hpp_nvml_gpu *gpus,
                                                   const struct eth_hpp_inventory *inventory, int a,
                                                   int b)
{
    const struct eth_hpp_inventory_gpu *left = &inventory->gpus[a], *right = &inventory->gpus[b];
    struct eth_hpp_inventory_gpu_link link = {.gpus = {left->index, right->index}};
    bool slices = left->mig || right->mig; /* no peer-to-peer between slices */
    double there = slices ? 0 : nvlink_bandwidth(nvml, &gpus[a], &gpus[b]);
    double back = slices ? 0 : nvlink_bandwidth(nvml, &gpus[b], &gpus[a]);
    const char *kind = "nvlink";
    link.bandwidth = there < back ? there : back;
    if (link.bandwidth <= 0) {
        bool direct = !slices && peer_to_peer(nvml, gpus[a].handle, gpus[b].handle);
        kind = direct ? "pcie" : "host";
        link.bandwidth = pcie_rate(left) < pcie_rate(right) ? pcie_rate(left) : pcie_rate(right);
    }
    snprintf(link.kind, sizeof(link.kind), "%s", kind);
    return link;
}

enum eth_hpp_status eth_hpp_nvml_collect_links(const struct eth_hpp_nvml *nvml,
                                               const struct eth_hpp_nvml_gpu *gpus,
                                               struct eth_hpp_inventory *inventory,
                                               struct eth_hpp_error *err)
{
    int n = inventory->gpu_count;
    if (n < 2)
        return ETH_HPP_OK;
    inventory->gpu_links = calloc((size_t)n * (size_t)(n - 1) / 2, sizeof(*inventory->gpu_links));
    if (inventory->gpu_links == NULL)
        return eth_hpp_error_memory(err, "GPU links");
    for (int a = 0; a < n; a++)
        for (int b = a + 1; b < n; b++) {
            struct eth_hpp_inventory_gpu_link link = find_link(nvml, gpus, inventory, a, b);
            if (link.bandwidth > 0)
                inventory->gpu_links[inventory->gpu_link_count++] = link;
        }
    return ETH_HPP_OK;
}
