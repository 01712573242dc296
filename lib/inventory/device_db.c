#include "inventory/device_db.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

#define MIB 1048576.0
#define GB  1e9
#define TF  1e12

/* Datasheets' dense peaks; memory as the driver reports it (with ECC on where it is the default).
 * The first entry of a name stands for cards whose memory is not known. */
static const struct eth_hpp_device_spec devices[] = {
    /* device, name patterns, memory, its bandwidth, half peak, single peak, bf16, NVLink */
    {"P100-SXM", {"*P100-SXM2*"}, 16384 * MIB, 732 * GB, 21.2 * TF, 10.6 * TF, false, 160 * GB},
    {"V100-SXM-16GB",
     {"*V100-SXM2*16GB"},
     16384 * MIB,
     900 * GB,
     125 * TF,
     15.7 * TF,
     false,
     300 * GB},
    {"V100-SXM-32GB",
     {"*V100-SXM2*32GB", "*V100-SXM3*"},
     32768 * MIB,
     900 * GB,
     125 * TF,
     15.7 * TF,
     false,
     300 * GB},
    {"V100-PCIe-16GB", {"*V100-PCIE-16GB"}, 16384 * MIB, 900 * GB, 112 * TF, 14 * TF, false, 0},
    {"V100-PCIe-32GB", {"*V100-PCIE-32GB"}, 32768 * MIB, 900 * GB, 112 * TF, 14 * TF, false, 0},
    {"T4", {"Tesla T4", "NVIDIA T4", "T4"}, 15360 * MIB, 320 * GB, 65 * TF, 8.1 * TF, false, 0},
    {"A10", {"*NVIDIA A10", "A10"}, 23028 * MIB, 600 * GB, 125 * TF, 31.2 * TF, true, 0},
    {"A30", {"*NVIDIA A30", "A30"}, 24576 * MIB, 933 * GB, 165 * TF, 10.3 * TF, true, 200 * GB},
    {"A40", {"*NVIDIA A40", "A40"}, 46068 * MIB, 696 * GB, 149.7 * TF, 37.4 * TF, true, 112.5 * GB},
    {"A100-SXM-40GB",
     {"*A100-SXM4-40GB"},
     40960 * MIB,
     1555 * GB,
     312 * TF,
     19.5 * TF,
     true,
     600 * GB},
    {"A100-SXM-80GB",
     {"*A100-SXM4-80GB", "*A100-SXM-80GB", "*A100-SXM-64GB"},
     81920 * MIB,
     2039 * GB,
     312 * TF,
     19.5 * TF,
     true,
     600 * GB},
    {"A100-PCIe-40GB",
     {"*A100-PCIE-40GB", "*A100-PCI*40GB*"},
     40960 * MIB,
     1555 * GB,
     312 * TF,
     19.5 * TF,
     true,
     0},
    {"A100-PCIe-80GB",
     {"*A100 80GB PCIe", "*A100-PCI*80GB*"},
     81920 * MIB,
     1935 * GB,
     312 * TF,
     19.5 * TF,
     true,
     0},
    {"L4", {"*NVIDIA L4", "L4"}, 23034 * MIB, 300 * GB, 121 * TF, 30.3 * TF, true, 0},
    {"L40S", {"*NVIDIA L40S", "L40S"}, 46068 * MIB, 864 * GB, 362 * TF, 91.6 * TF, true, 0},
    {"H100-PCIe", {"*H100 PCIe"}, 81559 * MIB, 2000 * GB, 756 * TF, 51 * TF, true, 0},
    {"H100-SXM",
     {"*H100 80GB HBM3", "*H100-SXM*"},
     81559 * MIB,
     3350 * GB,
     989 * TF,
     67 * TF,
     true,
     900 * GB},
    {"H200", {"*NVIDIA H200*", "H200"}, 143771 * MIB, 4800 * GB, 989 * TF, 67 * TF, true, 900 * GB},
    {"GH200", {"*GH200*"}, 97871 * MIB, 4000 * GB, 989 * TF, 67 * TF, true, 900 * GB},
    {"H20", {"*NVIDIA H20", "H20"}, 97871 * MIB, 4000 * GB, 148 * TF, 44 * TF, true, 900 * GB},
    {"B200",
     {"*NVIDIA B200*", "B200"},
     183359 * MIB,
     8000 * GB,
     2250 * TF,
     80 * TF,
     true,
     1800 * GB},
    {"RTX-3090", {"*GeForce RTX 3090"}, 24576 * MIB, 936 * GB, 71 * TF, 35.6 * TF, true, 0},
    {"RTX-4090", {"*GeForce RTX 4090"}, 24564 * MIB, 1008 * GB, 165 * TF, 82.6 * TF, true, 0},
    {"RTX-A6000", {"*RTX A6000"}, 49140 * MIB, 768 * GB, 155 * TF, 38.7 * TF, true, 112.5 * GB},
    {"RTX-6000-Ada", {"*RTX 6000 Ada*"}, 49140 * MIB, 960 * GB, 364 * TF, 91.1 * TF, true, 0},
    {"MI210", {"*MI210*"}, 65536 * MIB, 1638 * GB, 181 * TF, 22.6 * TF, true, 0},
    /* One of its two dies, which the system shows as a device each. */
    {"MI250X", {"*MI250X*"}, 65536 * MIB, 1638 * GB, 191.5 * TF, 23.9 * TF, true, 0},
    {"MI300X", {"*MI300X*"}, 196608 * MIB, 5300 * GB, 1307 * TF, 163.4 * TF, true, 0},
};
enum { DEVICES = sizeof(devices) / sizeof(devices[0]) };

const struct eth_hpp_device_spec *eth_hpp_device_db_find(const char *device)
{
    size_t length = strcspn(device, "~");
    for (int i = 0; i < DEVICES; i++)
        if (strlen(devices[i].device) == length && strncmp(devices[i].device, device, length) == 0)
            return &devices[i];
    return NULL;
}

static bool name_matches(const struct eth_hpp_device_spec *spec, const char *nvml_name)
{
    for (int i = 0; i < 4 && spec->patterns[i] != NULL; i++)
        if (fnmatch(spec->patterns[i], nvml_name, 0) == 0)
            return true;
    return false;
}

const struct eth_hpp_device_spec *eth_hpp_device_db_match(const char *nvml_name,
                                                          double memory_bytes)
{
    const struct eth_hpp_device_spec *best = NULL;
    for (int i = 0; i < DEVICES; i++)
        if (name_matches(&devices[i], nvml_name) &&
            (best == NULL || fabs(devices[i].memory_bytes - memory_bytes) <
                                 fabs(best->memory_bytes - memory_bytes)))
            best = &devices[i];
    return best;
}

size_t eth_hpp_device_db_list(const struct eth_hpp_device_spec **specs)
{
    *specs = devices;
    return DEVICES;
}
