/* The cluster that planning reads (`eth-hpp-cluster`): nodes, their GPUs, links. Hostlists are
 * expanded. */
#ifndef ETH_HPP_PLAN_CLUSTER_H
#define ETH_HPP_PLAN_CLUSTER_H

#include "base/json.h"

enum { ETH_HPP_NAME_MAX = 96, ETH_HPP_NODE_GPUS_MAX = 1024 };

/* A kind of GPU. Node entries refer to it by index. */
struct eth_hpp_device {
    char name[ETH_HPP_NAME_MAX]; /* key of the device database or the profile, e.g. "A100-SXM-40GB"
                                    or "A100-SXM-40GB~0.80" */
    double memory_bytes, reserved_bytes;
    double half_flops,
        single_flops; /* dense peaks, FLOP/s; half: bf16 where there is one, else fp16; 0 unknown */
    bool bf16;
    bool estimated; /* not in the database: derived from multiprocessors x clock */
};

struct eth_hpp_node {
    char name[ETH_HPP_NAME_MAX];
    int gpus;
    int *devices;   /* [gpus] index into cluster.devices */
    int first_rank; /* offline rank of its GPU 0: GPUs counted node by node in file order */
    double intra_bandwidth, intra_latency_s; /* between two GPUs of the node, one direction */
    double inter_bandwidth, inter_latency_s; /* its network, one direction */
    double inter_bandwidth_per_gpu;          /* 0: no limit of its own */
};

/* What any pair of one node of the first and one of the second list is limited to. */
struct eth_hpp_link {
    int *from, *to; /* node indices */
    int from_count, to_count;
    double bandwidth, latency_s;
};

struct eth_hpp_cluster {
    struct eth_hpp_device *devices;
    int device_count;
    struct eth_hpp_node *nodes;
    int node_count;
    struct eth_hpp_link *links;
    int link_count;
    int gpu_count; /* all GPUs */
};

/* Reads a cluster file; devices not stated in it come from the device database. *cluster is freed
 * by the caller with eth_hpp_cluster_free. Errors: INPUT with the JSON path. */
enum eth_hpp_status eth_hpp_cluster_load(const char *path, struct eth_hpp_cluster *cluster,
                                         struct eth_hpp_error *err);
/* Writes it in the same format, like nodes in a row folded into a hostlist. */
enum eth_hpp_status eth_hpp_cluster_save(const struct eth_hpp_cluster *cluster, const char *path,
                                         struct eth_hpp_error *err);
void eth_hpp_cluster_free(struct eth_hpp_cluster *cluster);

/* Index of a node by name, or -1. */
int eth_hpp_cluster_find_node(const struct eth_hpp_cluster *cluster, const char *name);
/* Index of a device by name, or -1. */
int eth_hpp_cluster_find_device(const struct eth_hpp_cluster *cluster, const char *name);

#endif
