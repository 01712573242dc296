/*
 * Where an inventory comes from. Each source fills a part of it and never fails for what the node
 * lacks; eth_hpp_inventory_collect puts them together. Internal to lib/inventory and its tests.
 */
#ifndef ETH_HPP_INVENTORY_SOURCES_H
#define ETH_HPP_INVENTORY_SOURCES_H

#include "inventory/inventory.h"

/* ---- NVML ---- */

/* Fills gpus, gpu_links, driver and source "nvml" from libnvidia-ml.so.1; where there is none, or
 * it fails, says so in why_empty. GPUs that cannot be read are left out with a warning in the log.
 * A GPU in MIG mode is replaced by its slices. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_nvml_collect(struct eth_hpp_inventory *inventory,
                                         struct eth_hpp_error *err);

/* ---- sysfs ---- */

/* Is a network interface of this name in the caller's network namespace? sysfs may have been
 * mounted in another one. */
typedef bool (*eth_hpp_sysfs_present)(const char *name);
bool eth_hpp_sysfs_interface_present(const char *name);

/* Fills nics: InfiniBand and RoCE ports, then network interfaces that are up and not a port's own.
 * Virtual interfaces count only where there is no hardware. `root` is "/sys". A speed that the
 * driver does not tell is 0. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_sysfs_collect_nics(const char *root, eth_hpp_sysfs_present present,
                                               struct eth_hpp_inventory *inventory,
                                               struct eth_hpp_error *err);

/* NUMA node of a PCI device such as "0000:07:00.0"; -1 unknown. */
int eth_hpp_sysfs_pci_numa_node(const char *root, const char *pci);

/* ---- the site's file ---- */

/* What any pair of a node of the first and one of the second hostlist is limited to. */
struct eth_hpp_site_link {
    char *between[2];
    double bandwidth, latency_s;
};

/* What a site's file states of one node, and its links of all nodes. Parts that are not stated have
 * their flag unset. Freed with eth_hpp_site_node_free. */
struct eth_hpp_site_node {
    bool found, has_gpus, has_nics, has_emulation;
    struct eth_hpp_inventory stated; /* its gpus, nics and emulation */
    struct eth_hpp_site_link *links;
    int link_count;
};
void eth_hpp_site_node_free(struct eth_hpp_site_node *site);

/* Reads the whole `eth-hpp-site` file strictly, and gives what its first matching entry states of
 * `node`. Refuses a file that is not owned by root or that others can write. Errors: INPUT. */
enum eth_hpp_status eth_hpp_site_file_load(const char *path, const char *node,
                                           struct eth_hpp_site_node *site,
                                           struct eth_hpp_error *err);
/* The same from memory, without the check of ownership; `name` stands for the file in messages. */
enum eth_hpp_status eth_hpp_site_file_parse(const char *name, const char *text, size_t size,
                                            const char *node, struct eth_hpp_site_node *site,
                                            struct eth_hpp_error *err);

/* Puts what the site states in place of what was found; `site`'s lists move to the inventory. */
void eth_hpp_site_node_apply(struct eth_hpp_site_node *site, struct eth_hpp_inventory *inventory);

/* ---- entries that the inventory and the site's file share ---- */

/* Reads the lists "gpus", "nics" and the object "emulation" of an object into the inventory, which
 * frees them also after an error. */
void eth_hpp_inventory_read_gpus(const struct eth_hpp_json *object,
                                 struct eth_hpp_inventory *inventory);
void eth_hpp_inventory_read_nics(const struct eth_hpp_json *object,
                                 struct eth_hpp_inventory *inventory);
void eth_hpp_inventory_read_emulation(const struct eth_hpp_json *object,
                                      struct eth_hpp_inventory *inventory);

#endif
