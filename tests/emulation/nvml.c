/*
 * An EMULATED libnvidia-ml.so.1 for tests on machines without GPUs. ETH_HPP_NVML_EMULATION chooses
 * the node: "unlike" (three kinds of GPU over PCIe), "switch" (four A100 behind an NVSwitch),
 * "slices" (a GPU in MIG mode beside one that is not), "sick" (a lost GPU and one with memory
 * errors), "no-driver" (nvmlInit fails), "empty" (a driver without GPUs), "hang" (a driver that
 * never answers).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inventory/nvml_api.h"

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, NO_DRIVER = 9, GPU_IS_LOST = 15 };

struct eth_hpp_nvml_device {
    const char *name, *uuid;
    unsigned long long mib;
    int major, minor;
    unsigned cores, megahertz, bus, pcie_generation;
    unsigned links, link_version; /* all to a switch */
    unsigned multiprocessors, slices;
    int lost, ecc_errors;
    int mig_count; /* its slices follow it in the table */
};

struct node {
    const char *scenario;
    struct eth_hpp_nvml_device devices[5];
    unsigned count; /* without slices */
};

#define A100(uuid_, bus_)                                                                          \
    {                                                                                              \
        .name = "NVIDIA A100-SXM4-40GB", .uuid = uuid_, .mib = 40960, .major = 8, .minor = 0,      \
        .cores = 6912, .megahertz = 1410, .bus = bus_, .pcie_generation = 4, .links = 12,          \
        .link_version = 4                                                                          \
    }
#define V100(uuid_, bus_)                                                                          \
    {                                                                                              \
        .name = "Tesla V100-SXM2-16GB", .uuid = uuid_, .mib = 16384, .major = 7, .minor = 0,       \
        .cores = 5120, .megahertz = 1530, .bus = bus_, .pcie_generation = 3                        \
    }

static struct node nodes[] = {
    {.scenario = "unlike",
     .devices = {A100("GPU-emulated-0", 0x07),
                 V100("GPU-emulated-1", 0x0a),
                 {.name = "NVIDIA Future X1",
                  .uuid = "GPU-emulated-2",
                  .mib = 65536,
                  .major = 12,
                  .minor = 0,
                  .cores = 128 * 200,
                  .megahertz = 2000,
                  .bus = 0x81,
                  .pcie_generation = 5}},
     .count = 3},
    {.scenario = "switch",
     .devices = {A100("GPU-emulated-0", 0x07), A100("GPU-emulated-1", 0x0a),
                 A100("GPU-emulated-2", 0x47), A100("GPU-emulated-3", 0x4a)},
     .count = 4},
    {.scenario = "slices",
     .devices = {{.name = "NVIDIA A100-SXM4-80GB",
                  .uuid = "GPU-emulated-0",
                  .mib = 81920,
                  .major = 8,
                  .cores = 6912,
                  .megahertz = 1410,
                  .bus = 0x07,
                  .pcie_generation = 4,
                  .mig_count = 2},
                 A100("GPU-emulated-1", 0x0a),
                 {.name = "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
                  .uuid = "MIG-emulated-0",
                  .mib = 40192,
                  .multiprocessors = 42,
                  .slices = 3},
                 {.name = "NVIDIA A100-SXM4-80GB",
                  .uuid = "MIG-emulated-1",
                  .mib = 19968,
                  .multiprocessors = 28,
                  .slices = 2}},
     .count = 2},
    {.scenario = "sick",
     .devices = {{.name = "lost", .uuid = "GPU-emulated-0", .lost = 1},
                 {.name = "Tesla T4",
                  .uuid = "GPU-emulated-1",
                  .mib = 15360,
                  .major = 7,
                  .minor = 5,
                  .cores = 2560,
                  .megahertz = 1590,
                  .bus = 0x3b,
                  .pcie_generation = 3,
                  .ecc_errors = 4}},
     .count = 2},
    {.scenario = "empty"},
    {.scenario = "no-driver"},
    {.scenario = "hang"},
};

static struct node *node;

const char *nvmlErrorString(int code);
const char *nvmlErrorString(int code)
{
    switch (code) {
    case NO_DRIVER:
        return "Driver Not Loaded (emulated)";
    case GPU_IS_LOST:
        return "GPU is lost (emulated)";
    default:
        return "Not Supported (emulated)";
    }
}

#define EMULATE(name, ...)                                                                         \
    int nvml##name(__VA_ARGS__);                                                                   \
    int nvml##name(__VA_ARGS__)

EMULATE(Init_v2, void)
{
    const char *scenario = getenv("ETH_HPP_NVML_EMULATION");
    node = NULL;
    for (size_t i = 0; scenario != NULL && i < sizeof(nodes) / sizeof(nodes[0]); i++)
        if (strcmp(nodes[i].scenario, scenario) == 0)
            node = &nodes[i];
    if (node == NULL || strcmp(node->scenario, "no-driver") == 0)
        return NO_DRIVER;
    while (strcmp(node->scenario, "hang") == 0)
        pause();
    return OK;
}

EMULATE(Shutdown, void)
{
    return OK;
}

EMULATE(SystemGetDriverVersion, char *text, unsigned size)
{
    snprintf(text, size, "0.0-emulated");
    return OK;
}

EMULATE(DeviceGetCount_v2, unsigned *count)
{
    *count = node->count;
    return OK;
}

EMULATE(DeviceGetHandleByIndex_v2, unsigned index, eth_hpp_nvml_handle *handle)
{
    if (index >= node->count)
        return INVALID;
    if (node->devices[index].lost)
        return GPU_IS_LOST;
    *handle = &node->devices[index];
    return OK;
}

EMULATE(DeviceGetName, eth_hpp_nvml_handle device, char *text, unsigned size)
{
    snprintf(text, size, "%s", device->name);
    return OK;
}

EMULATE(DeviceGetUUID, eth_hpp_nvml_handle device, char *text, unsigned size)
{
    snprintf(text, size, "%s", device->uuid);
    return OK;
}

EMULATE(DeviceGetMemoryInfo, eth_hpp_nvml_handle device, struct eth_hpp_nvml_memory *memory)
{
    *memory = (struct eth_hpp_nvml_memory){.total = device->mib << 20, .free = device->mib << 20};
    return OK;
}

EMULATE(DeviceGetPciInfo_v3, eth_hpp_nvml_handle device, struct eth_hpp_nvml_pci *pci)
{
    memset(pci, 0, sizeof(*pci));
    pci->bus = device->bus;
    snprintf(pci->bus_id, sizeof(pci->bus_id), "00000000:%02X:00.0", device->bus);
    return OK;
}

EMULATE(DeviceGetCudaComputeCapability, eth_hpp_nvml_handle device, int *major, int *minor)
{
    *major = device->major;
    *minor = device->minor;
    return OK;
}

EMULATE(DeviceGetNumGpuCores, eth_hpp_nvml_handle device, unsigned *cores)
{
    *cores = device->cores;
    return OK;
}

EMULATE(DeviceGetAttributes_v2, eth_hpp_nvml_handle device,
        struct eth_hpp_nvml_attributes *attributes)
{
    if (device->multiprocessors == 0)
        return NOT_SUPPORTED;
    *attributes = (struct eth_hpp_nvml_attributes){.multiprocessors = device->multiprocessors,
                                                   .gpu_slices = device->slices,
                                                   .memory_mib = device->mib};
    return OK;
}

EMULATE(DeviceGetMaxClockInfo, eth_hpp_nvml_handle device, unsigned kind, unsigned *megahertz)
{
    *megahertz = device->megahertz;
    return kind == NVML_CLOCK_SM ? OK : INVALID;
}

EMULATE(DeviceGetMaxPcieLinkGeneration, eth_hpp_nvml_handle device, unsigned *generation)
{
    *generation = device->pcie_generation;
    return OK;
}

EMULATE(DeviceGetMaxPcieLinkWidth, eth_hpp_nvml_handle device, unsigned *width)
{
    (void)device;
    *width = 16;
    return OK;
}

EMULATE(DeviceGetMigMode, eth_hpp_nvml_handle device, unsigned *current, unsigned *pending)
{
    if (device->major < 8)
        return NOT_SUPPORTED;
    *current = *pending = device->mig_count > 0;
    return OK;
}

EMULATE(DeviceGetMaxMigDeviceCount, eth_hpp_nvml_handle device, unsigned *count)
{
    (void)device;
    *count = 7;
    return OK;
}

EMULATE(DeviceGetMigDeviceHandleByIndex, eth_hpp_nvml_handle device, unsigned index,
        eth_hpp_nvml_handle *handle)
{
    /* Places are sparse, as on a real card: the second slice stands at place 3. */
    unsigned slice = index == 3 ? 1 : index;
    if (slice >= (unsigned)device->mig_count || index == 1)
        return NOT_FOUND;
    *handle = &node->devices[node->count + slice];
    return OK;
}

EMULATE(DeviceGetTotalEccErrors, eth_hpp_nvml_handle device, unsigned type, unsigned counter,
        unsigned long long *errors)
{
    *errors = (unsigned long long)device->ecc_errors;
    return type == NVML_ECC_UNCORRECTED && counter == NVML_ECC_VOLATILE ? OK : INVALID;
}

EMULATE(DeviceGetNvLinkState, eth_hpp_nvml_handle device, unsigned link, unsigned *active)
{
    *active = link < device->links && strcmp(node->scenario, "switch") == 0;
    return OK;
}

EMULATE(DeviceGetNvLinkVersion, eth_hpp_nvml_handle device, unsigned link, unsigned *version)
{
    (void)link;
    *version = device->link_version;
    return OK;
}

EMULATE(DeviceGetNvLinkRemoteDeviceType, eth_hpp_nvml_handle device, unsigned link, unsigned *type)
{
    (void)device;
    (void)link;
    *type = NVML_NVLINK_REMOTE_SWITCH;
    return OK;
}

EMULATE(DeviceGetP2PStatus, eth_hpp_nvml_handle a, eth_hpp_nvml_handle b, unsigned capability,
        unsigned *state)
{
    (void)capability;
    *state = a->major != b->major; /* unlike GPUs do not reach each other's memory here */
    return OK;
}
