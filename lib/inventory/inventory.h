/*
 * What one node has (`eth-hpp-inventory`). Sources, strongest first: the site's file, NVML (by
 * dlopen), nothing. Network cards and NUMA nodes come from sysfs.
 */
#ifndef ETH_HPP_INVENTORY_INVENTORY_H
#define ETH_HPP_INVENTORY_INVENTORY_H

#include "base/json.h"

enum {
    ETH_HPP_TEXT_MAX = 96,
    ETH_HPP_INVENTORY_GPUS_MAX = 64,
    ETH_HPP_INVENTORY_NICS_MAX = 64,
    ETH_HPP_INVENTORY_LINKS_MAX = 64 * 63 / 2
};

struct eth_hpp_inventory_gpu {
    int index; /* node-wide */
    char uuid[ETH_HPP_TEXT_MAX], name[ETH_HPP_TEXT_MAX], device[ETH_HPP_TEXT_MAX];
    double memory_bytes;
    char compute_capability[16]; /* "8.0", "" unknown */
    int multiprocessors;         /* 0 unknown */
    double max_sm_clock_hz;
    char pci[32];
    int pcie_generation, pcie_width, numa_node; /* 0, 0, -1 unknown */
    bool mig, healthy;
};

struct eth_hpp_inventory_gpu_link {
    int gpus[2];
    char kind[32];    /* "nvlink", "pcie" */
    double bandwidth; /* one direction */
};

struct eth_hpp_inventory_nic {
    char name[ETH_HPP_TEXT_MAX], kind[32]; /* "infiniband", "ethernet" */
    double bandwidth;                      /* one direction */
    int numa_node;
};

/* Emulated devices: GPU i of the node behaves like devices[i] at speed[i]. */
struct eth_hpp_emulation {
    int count; /* 0: nothing is emulated */
    struct {
        char device[ETH_HPP_TEXT_MAX];
        double speed;
    } gpus[ETH_HPP_INVENTORY_GPUS_MAX];
    double time_scale;
};

struct eth_hpp_inventory {
    char node[ETH_HPP_TEXT_MAX], collected_at[32];
    char source[16];           /* "nvml", "file", "none" */
    char why_empty[256];       /* in "extra": why there are no GPUs; "" otherwise */
    char driver[64], nccl[32]; /* "" unknown */
    struct eth_hpp_inventory_gpu *gpus;
    int gpu_count;
    struct eth_hpp_inventory_gpu_link *gpu_links;
    int gpu_link_count;
    struct eth_hpp_inventory_nic *nics;
    int nic_count;
    struct eth_hpp_emulation emulation;
};

/* Collects this node's inventory. `site_file` may be NULL. Never fails for what the node lacks: the
 * inventory then says why it is empty. May hang in a driver: callers that must not run it in a
 * child. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_inventory_collect(const char *node, const char *site_file,
                                              struct eth_hpp_inventory *inventory,
                                              struct eth_hpp_error *err);

enum eth_hpp_status eth_hpp_inventory_load(const char *path, struct eth_hpp_inventory *inventory,
                                           struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_inventory_parse(const char *name, const char *text, size_t size,
                                            struct eth_hpp_inventory *inventory,
                                            struct eth_hpp_error *err);
/* The file's text; freed by the caller. */
enum eth_hpp_status eth_hpp_inventory_print(const struct eth_hpp_inventory *inventory, char **text,
                                            struct eth_hpp_error *err);
void eth_hpp_inventory_free(struct eth_hpp_inventory *inventory);

#endif
