/*
 * The part of NVML that the inventory uses, with prototypes of our own: the library is opened at
 * run time, so that one build serves nodes with and without a driver. Names, numbers and layouts
 * are those of NVML's stable interface (the NVML API reference).
 */
#ifndef ETH_HPP_INVENTORY_NVML_API_H
#define ETH_HPP_INVENTORY_NVML_API_H

#include "inventory/inventory.h"

typedef struct eth_hpp_nvml_device *eth_hpp_nvml_handle; /* nvmlDevice_t, opaque */

enum {
    NVML_OK = 0,
    NVML_CLOCK_SM = 1,
    NVML_ECC_UNCORRECTED = 1,
    NVML_ECC_VOLATILE = 0,
    NVML_P2P_READ = 0,
    NVML_P2P_STATUS_OK = 0,
    NVML_NVLINK_REMOTE_SWITCH = 2,
    NVML_LINKS_MAX = 18,
    NVML_TEXT_MAX = 96
};

struct eth_hpp_nvml_memory { /* nvmlMemory_t */
    unsigned long long total, free, used;
};

struct eth_hpp_nvml_pci { /* nvmlPciInfo_t of the _v3 calls */
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32]; /* "00000000:07:00.0" */
};

struct eth_hpp_nvml_attributes { /* nvmlDeviceAttributes_t */
    unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices,
        compute_slices;
    unsigned long long memory_mib;
};

/* name, arguments; the first group must be there, of the second a NULL pointer means that the
 * driver is too old to tell. */
#define ETH_HPP_NVML_REQUIRED(X)                                                                   \
    X(Init_v2, (void))                                                                             \
    X(Shutdown, (void))                                                                            \
    X(DeviceGetCount_v2, (unsigned *))                                                             \
    X(DeviceGetHandleByIndex_v2, (unsigned, eth_hpp_nvml_handle *))                                \
    X(DeviceGetName, (eth_hpp_nvml_handle, char *, unsigned))                                      \
    X(DeviceGetUUID, (eth_hpp_nvml_handle, char *, unsigned))                                      \
    X(DeviceGetMemoryInfo, (eth_hpp_nvml_handle, struct eth_hpp_nvml_memory *))
#define ETH_HPP_NVML_OPTIONAL(X)                                                                   \
    X(SystemGetDriverVersion, (char *, unsigned))                                                  \
    X(DeviceGetPciInfo_v3, (eth_hpp_nvml_handle, struct eth_hpp_nvml_pci *))                       \
    X(DeviceGetCudaComputeCapability, (eth_hpp_nvml_handle, int *, int *))                         \
    X(DeviceGetNumGpuCores, (eth_hpp_nvml_handle, unsigned *))                                     \
    X(DeviceGetAttributes_v2, (eth_hpp_nvml_handle, struct eth_hpp_nvml_attributes *))             \
    X(DeviceGetMaxClockInfo, (eth_hpp_nvml_handle, unsigned, unsigned *))                          \
    X(DeviceGetMaxPcieLinkGeneration, (eth_hpp_nvml_handle, unsigned *))                           \
    X(DeviceGetMaxPcieLinkWidth, (eth_hpp_nvml_handle, unsigned *))                                \
    X(DeviceGetMigMode, (eth_hpp_nvml_handle, unsigned *, unsigned *))                             \
    X(DeviceGetMaxMigDeviceCount, (eth_hpp_nvml_handle, unsigned *))                               \
    X(DeviceGetMigDeviceHandleByIndex, (eth_hpp_nvml_handle, unsigned, eth_hpp_nvml_handle *))     \
    X(DeviceGetTotalEccErrors, (eth_hpp_nvml_handle, unsigned, unsigned, unsigned long long *))    \
    X(DeviceGetRemappedRows,                                                                       \
      (eth_hpp_nvml_handle, unsigned *, unsigned *, unsigned *, unsigned *))                       \
    X(DeviceGetNvLinkState, (eth_hpp_nvml_handle, unsigned, unsigned *))                           \
    X(DeviceGetNvLinkVersion, (eth_hpp_nvml_handle, unsigned, unsigned *))                         \
    X(DeviceGetNvLinkRemoteDeviceType, (eth_hpp_nvml_handle, unsigned, unsigned *))                \
    X(DeviceGetNvLinkRemotePciInfo_v2, (eth_hpp_nvml_handle, unsigned, struct eth_hpp_nvml_pci *)) \
    X(DeviceGetP2PStatus, (eth_hpp_nvml_handle, eth_hpp_nvml_handle, unsigned, unsigned *))

struct eth_hpp_nvml {
    void *library;
    const char *(*ErrorString)(int);
#define ETH_HPP_NVML_MEMBER(name, arguments) int(*name) arguments;
    ETH_HPP_NVML_REQUIRED(ETH_HPP_NVML_MEMBER)
    ETH_HPP_NVML_OPTIONAL(ETH_HPP_NVML_MEMBER)
#undef ETH_HPP_NVML_MEMBER
};

/* A GPU while it is being read: what the links are found by. */
struct eth_hpp_nvml_gpu {
    eth_hpp_nvml_handle handle;
    char bus_id[32];
    int compute_major;
};

/* Links between the GPUs of the inventory; gpus[i] belongs to inventory->gpus[i]. */
enum eth_hpp_status eth_hpp_nvml_collect_links(const struct eth_hpp_nvml *nvml,
                                               const struct eth_hpp_nvml_gpu *gpus,
                                               struct eth_hpp_inventory *inventory,
                                               struct eth_hpp_error *err);

#endif
