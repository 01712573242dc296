#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "inventory/device_db.h"
#include "inventory/nvml_api.h"
#include "inventory/sources.h"

/* ---- the library ---- */

/* Opens the library; a reason in `why` where that is not possible. */
static bool nvml_open(struct eth_hpp_nvml *nvml, char *why, size_t size)
{
    *nvml = (struct eth_hpp_nvml){0};
    nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (nvml->library == NULL) {
        snprintf(why, size, "no NVIDIA driver on this node (libnvidia-ml.so.1 is not there)");
        return false;
    }
    *(void **)&nvml->ErrorString = dlsym(nvml->library, "nvmlErrorString");
#define LOAD(name, arguments) *(void **)&nvml->name = dlsym(nvml->library, "nvml" #name);
    ETH_HPP_NVML_REQUIRED(LOAD)
    ETH_HPP_NVML_OPTIONAL(LOAD)
#undef LOAD
    bool complete = nvml->ErrorString != NULL;
#define CHECK(name, arguments) complete = complete && nvml->name != NULL;
    ETH_HPP_NVML_REQUIRED(CHECK)
#undef CHECK
    if (!complete) {
        snprintf(why, size, "the NVIDIA driver is too old: its libnvidia-ml.so.1 lacks functions");
        dlclose(nvml->library);
        return false;
    }
    int code = nvml->Init_v2();
    if (code != NVML_OK) {
        snprintf(why, size, "the NVIDIA driver does not answer: %s", nvml->ErrorString(code));
        dlclose(nvml->library);
        return false;
    }
    return true;
}

static void nvml_close(struct eth_hpp_nvml *nvml)
{
    nvml->Shutdown();
    dlclose(nvml->library);
}

/* ---- one GPU ---- */

/* FP32 lanes of one multiprocessor (CUDA programming guide, compute capabilities). */
static int cores_per_multiprocessor(int major, int minor)
{
    if ((major == 6 && minor == 0) || major == 7 || (major == 8 && minor == 0))
        return 64;
    return major >= 6 ? 128 : 0;
}

static void read_compute(const struct eth_hpp_nvml *nvml, struct eth_hpp_nvml_gpu *gpu,
                         struct eth_hpp_inventory_gpu *out)
{
    int major, minor;
    unsigned cores, megahertz;
    eth_hpp_nvml_handle h = gpu->handle;
    if (nvml->DeviceGetCudaComputeCapability != NULL &&
        nvml->DeviceGetCudaComputeCapability(h, &major, &minor) == NVML_OK) {
        gpu->compute_major = major;
        snprintf(out->compute_capability, sizeof(out->compute_capability), "%d.%d", major, minor);
        int lanes = cores_per_multiprocessor(major, minor);
        if (lanes > 0 && nvml->DeviceGetNumGpuCores != NULL &&
            nvml->DeviceGetNumGpuCores(h, &cores) == NVML_OK)
            out->multiprocessors = (int)cores / lanes;
    }
    if (nvml->DeviceGetMaxClockInfo != NULL &&
        nvml->DeviceGetMaxClockInfo(h, NVML_CLOCK_SM, &megahertz) == NVML_OK)
        out->max_sm_clock_hz = megahertz * 1e6;
}

/* NVML writes "00000000:07:00.0" in upper case, sysfs "0000:07:00.0" in lower case. */
static void pci_to_sysfs(const struct eth_hpp_nvml_pci *pci, char *text, size_t size)
{
    unsigned domain, bus, device, function;
    if (sscanf(pci->bus_id, "%x:%x:%x.%x", &domain, &bus, &device, &function) == 4)
        snprintf(text, size, "%04x:%02x:%02x.%x", domain, bus, device, function);
}

static void read_place(const struct eth_hpp_nvml *nvml, struct eth_hpp_nvml_gpu *gpu,
                       struct eth_hpp_inventory_gpu *out)
{
    struct eth_hpp_nvml_pci pci = {0};
    unsigned value;
    if (nvml->DeviceGetPciInfo_v3 != NULL &&
        nvml->DeviceGetPciInfo_v3(gpu->handle, &pci) == NVML_OK) {
        pci.bus_id[sizeof(pci.bus_id) - 1] = '\0';
        pci_to_sysfs(&pci, out->pci, sizeof(out->pci));
        memcpy(gpu->bus_id, pci.bus_id, sizeof(gpu->bus_id));
    }
    if (nvml->DeviceGetMaxPcieLinkGeneration != NULL &&
        nvml->DeviceGetMaxPcieLinkGeneration(gpu->handle, &value) == NVML_OK)
        out->pcie_generation = (int)value;
    if (nvml->DeviceGetMaxPcieLinkWidth != NULL &&
        nvml->DeviceGetMaxPcieLinkWidth(gpu->handle, &value) == NVML_OK)
        out->pcie_width = (int)value;
    out->numa_node = eth_hpp_sysfs_pci_numa_node("/sys", out->pci);
}

/* Uncorrected memory errors since the last reset, or rows that could not be remapped: results are
 * not to be trusted. */
static bool is_healthy(const struct eth_hpp_nvml *nvml, eth_hpp_nvml_handle handle)
{
    unsigned long long errors;
    unsigned corrected, uncorrected, pending, failure;
    if (nvml->DeviceGetTotalEccErrors != NULL &&
        nvml->DeviceGetTotalEccErrors(handle, NVML_ECC_UNCORRECTED, NVML_ECC_VOLATILE, &errors) ==
            NVML_OK &&
        errors > 0)
        return false;
    if (nvml->DeviceGetRemappedRows != NULL &&
        nvml->DeviceGetRemappedRows(handle, &corrected, &uncorrected, &pending, &failure) ==
            NVML_OK &&
        failure != 0)
        return false;
    return true;
}

/* What every device must tell: name, UUID and memory. Returns NVML's code. */
static int read_identity(const struct eth_hpp_nvml *nvml, eth_hpp_nvml_handle handle,
                         struct eth_hpp_inventory_gpu *out)
{
    struct eth_hpp_nvml_memory memory;
    int code = nvml->DeviceGetName(handle, out->name, sizeof(out->name));
    if (code == NVML_OK)
        code = nvml->DeviceGetUUID(handle, out->uuid, sizeof(out->uuid));
    if (code == NVML_OK)
        code = nvml->DeviceGetMemoryInfo(handle, &memory);
    if (code == NVML_OK)
        out->memory_bytes = (double)memory.total;
    return code;
}

static int read_gpu(const struct eth_hpp_nvml *nvml, struct eth_hpp_nvml_gpu *gpu,
                    struct eth_hpp_inventory_gpu *out)
{
    int code = read_identity(nvml, gpu->handle, out);
    if (code != NVML_OK)
        return code;
    const struct eth_hpp_device_spec *spec = eth_hpp_device_db_match(out->name, out->memory_bytes);
    snprintf(out->device, sizeof(out->device), "%s", spec != NULL ? spec->device : out->name);
    read_compute(nvml, gpu, out);
    read_place(nvml, gpu, out);
    out->healthy = is_healthy(nvml, gpu->handle);
    return NVML_OK;
}

/* ---- MIG ---- */

/* "A100-SXM-80GB/3g.40gb": from the slice's own name ("... MIG 3g.40gb") where the driver tells it,
 * else from its slices and memory. */
static void name_slice(const struct eth_hpp_nvml *nvml, eth_hpp_nvml_handle handle,
                       const char *parent, struct eth_hpp_inventory_gpu *slice)
{
    struct eth_hpp_nvml_attributes attributes = {0};
    bool known = nvml->DeviceGetAttributes_v2 != NULL &&
                 nvml->DeviceGetAttributes_v2(handle, &attributes) == NVML_OK;
    if (known)
        slice->multiprocessors = (int)attributes.multiprocessors;
    const char *profile = strstr(slice->name, " MIG ");
    if (profile != NULL)
        snprintf(slice->device, sizeof(slice->device), "%.60s/%.30s", parent, profile + 5);
    else if (known)
        snprintf(slice->device, sizeof(slice->device), "%.60s/%ug.%llugb", parent,
                 attributes.gpu_slices, (attributes.memory_mib + 1023) / 1024);
    else
        snprintf(slice->device, sizeof(slice->device), "%.60s/mig", parent);
}

static bool in_mig_mode(const struct eth_hpp_nvml *nvml, eth_hpp_nvml_handle handle)
{
    unsigned current = 0, pending;
    return nvml->DeviceGetMigMode != NULL && nvml->DeviceGetMaxMigDeviceCount != NULL &&
           nvml->DeviceGetMigDeviceHandleByIndex != NULL &&
           nvml->DeviceGetMigMode(handle, &current, &pending) == NVML_OK && current == 1;
}

/* ---- the node ---- */

static void add_gpu(struct eth_hpp_inventory *inventory, struct eth_hpp_nvml_gpu *gpus,
                    const struct eth_hpp_inventory_gpu *out, const struct eth_hpp_nvml_gpu *gpu)
{
    int i = inventory->gpu_count;
    if (i == ETH_HPP_INVENTORY_GPUS_MAX)
        return;
    inventory->gpus[i] = *out;
    inventory->gpus[i].index = i;
    gpus[i] = *gpu;
    inventory->gpu_count++;
}

static void add_slices(const struct eth_hpp_nvml *nvml, struct eth_hpp_inventory *inventory,
                       struct eth_hpp_nvml_gpu *gpus, const struct eth_hpp_inventory_gpu *parent,
                       const struct eth_hpp_nvml_gpu *gpu)
{
    unsigned most = 0;
    if (nvml->DeviceGetMaxMigDeviceCount(gpu->handle, &most) != NVML_OK)
        return;
    for (unsigned m = 0; m < most; m++) {
        /* A slice shares its card's clock, PCI place and health; the rest is its own. */
        struct eth_hpp_inventory_gpu slice = *parent;
        struct eth_hpp_nvml_gpu own = *gpu;
        slice.mig = true;
        slice.multiprocessors = 0;
        if (nvml->DeviceGetMigDeviceHandleByIndex(gpu->handle, m, &own.handle) != NVML_OK ||
            read_identity(nvml, own.handle, &slice) != NVML_OK)
            continue; /* a place without a slice */
        name_slice(nvml, own.handle, parent->device, &slice);
        add_gpu(inventory, gpus, &slice, &own);
    }
}

static void collect_gpus(const struct eth_hpp_nvml *nvml, struct eth_hpp_inventory *inventory,
                         struct eth_hpp_nvml_gpu *gpus)
{
    unsigned count = 0;
    int code = nvml->DeviceGetCount_v2(&count);
    if (code != NVML_OK)
        snprintf(inventory->why_empty, sizeof(inventory->why_empty),
                 "the NVIDIA driver cannot count its GPUs: %s", nvml->ErrorString(code));
    for (unsigned i = 0; i < count; i++) {
        struct eth_hpp_inventory_gpu out = {.numa_node = -1};
        struct eth_hpp_nvml_gpu gpu = {0};
        code = nvml->DeviceGetHandleByIndex_v2(i, &gpu.handle);
        if (code == NVML_OK)
            code = read_gpu(nvml, &gpu, &out);
        if (code != NVML_OK) {
            eth_hpp_log_warning("GPU %u is left out of the inventory: %s", i,
                                nvml->ErrorString(code));
            snprintf(inventory->why_empty, sizeof(inventory->why_empty), "GPU %u: %s", i,
                     nvml->ErrorString(code));
        } else if (in_mig_mode(nvml, gpu.handle)) {
            add_slices(nvml, inventory, gpus, &out, &gpu);
        } else {
            add_gpu(inventory, gpus, &out, &gpu);
        }
    }
    if (inventory->gpu_count > 0)
        inventory->why_empty[0] = '\0';
    else if (inventory->why_empty[0] == '\0')
        snprintf(inventory->why_empty, sizeof(inventory->why_empty),
                 "the NVIDIA driver sees no GPU");
}

enum eth_hpp_status eth_hpp_nvml_collect(struct eth_hpp_inventory *inventory,
                                         struct eth_hpp_error *err)
{
    struct eth_hpp_nvml nvml;
    struct eth_hpp_nvml_gpu gpus[ETH_HPP_INVENTORY_GPUS_MAX];
    if (!nvml_open(&nvml, inventory->why_empty, sizeof(inventory->why_empty)))
        return ETH_HPP_OK;
    enum eth_hpp_status status = ETH_HPP_OK;
    inventory->gpus = calloc(ETH_HPP_INVENTORY_GPUS_MAX, sizeof(*inventory->gpus));
    if (inventory->gpus == NULL) {
        status = eth_hpp_error_memory(err, "the inventory");
        goto out;
    }
    snprintf(inventory->source, sizeof(inventory->source), "nvml");
    if (nvml.SystemGetDriverVersion != NULL &&
        nvml.SystemGetDriverVersion(inventory->driver, sizeof(inventory->driver)) != NVML_OK)
        inventory->driver[0] = '\0';
    collect_gpus(&nvml, inventory, gpus);
    status = eth_hpp_nvml_collect_links(&nvml, gpus, inventory, err);
out:
    nvml_close(&nvml);
    return status;
}
