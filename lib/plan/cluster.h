/* The cluster that planning reads (`eth-hpp-cluster`): nodes, their GPUs, links. Hostlists are
 * expanded. */
#ifndef ETH_HPP_PLAN_CLUSTER_H
#define ETH_HPP_PLAN_CLUSTER_H

#include "base/json.h"

enum { ETH_HPP_NAME_MAX = 96, ETH_HPP_NODE_GPUS_MAX = 1024 };

/* What a GPU's driver keeps for itself where a cluster file does not state the device. */
#define ETH_HPP_RESERVED_BYTES 1.5e9

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

/* What any pair of one node of the first and one of the second list is limited to. Of several links
 * for one pair the last one counts. */
struct eth_hpp_link {
    int *from, *to; /* node indices */
    int from_count, to_count;
    double bandwidth, latency_s;
};

struct eth_hpp_cluster {
    struct eth_hpp_device *devices;
    int device_count;
    struct eth_hpp_node *nodes;
    int *by_name; /* indices of the nodes in the order of their names */
    int node_count;
    struct eth_hpp_link *links;
    int link_count;
    int gpu_count; /* all GPUs */
};

/* Reads a cluster file; devices not stated in it come from the device database. *cluster is freed
 * by the caller with eth_hpp_cluster_free. Errors: INPUT with the JSON path. */
enum eth_hpp_status eth_hpp_cluster_load(const char *path, struct eth_hpp_cluster *cluster,
                                         struct eth_hpp_error *err);
/* The same from a text; `name` stands for the file in messages. */
enum eth_hpp_status eth_hpp_cluster_parse(const char *name, const char *text, size_t size,
                                          struct eth_hpp_cluster *cluster,
                                          struct eth_hpp_error *err);
/* Writes it in the same format, like nodes in a row folded into a hostlist. */
enum eth_hpp_status eth_hpp_cluster_save(const struct eth_hpp_cluster *cluster, const char *path,
                                         struct eth_hpp_error *err);
void eth_hpp_cluster_free(struct eth_hpp_cluster *cluster);

/* ---- making one in memory: start from a zeroed struct ---- */

/* Index of the device of this name, which is added from the device database if it is new. A device
 * that the database does not know is added with zeros for the caller to fill in. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_cluster_add_device(struct eth_hpp_cluster *cluster, const char *name,
                                               int *device, struct eth_hpp_error *err);
/* Appends a copy of the node and sets its first_rank. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_cluster_add_node(struct eth_hpp_cluster *cluster,
                                             const struct eth_hpp_node *node,
                                             struct eth_hpp_error *err);
/* Limits every pair of one node of `from` and one of `to`; the lists are copied. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_cluster_add_link(struct eth_hpp_cluster *cluster,
                                             const struct eth_hpp_link *link,
                                             struct eth_hpp_error *err);

/* Index of a node by name, or -1. */
int eth_hpp_cluster_find_node(const struct eth_hpp_cluster *cluster, const char *name);
/* Index of a device by name, or -1. */
int eth_hpp_cluster_find_device(const struct eth_hpp_cluster *cluster, const char *name);

#endif
