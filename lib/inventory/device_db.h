/* The device database: what is known of each kind of GPU from its datasheet, by patterns of NVML
 * names. */
#ifndef ETH_HPP_INVENTORY_DEVICE_DB_H
#define ETH_HPP_INVENTORY_DEVICE_DB_H

#include <stdbool.h>
#include <stddef.h>

struct eth_hpp_device_spec {
    const char *device;      /* "A100-SXM-40GB" */
    const char *patterns[4]; /* fnmatch patterns of NVML names, NULL-terminated; memory decides
                                among like names */
    double memory_bytes;
    double memory_bandwidth;
    double half_flops;   /* dense peak, bf16 where there is one, else fp16 */
    double single_flops; /* fp32 */
    bool bf16;
    double nvlink_bandwidth; /* both directions together; 0 none */
};

/* By its own name, or NULL. "DEVICE~0.80" (a derived device) finds DEVICE. */
const struct eth_hpp_device_spec *eth_hpp_device_db_find(const char *device);

/* By the name and memory that NVML reports, or NULL. */
const struct eth_hpp_device_spec *eth_hpp_device_db_match(const char *nvml_name,
                                                          double memory_bytes);

/* All of them, in the database's order; returns their number. */
size_t eth_hpp_device_db_list(const struct eth_hpp_device_spec **specs);

#endif
