/* Reading and writing of `eth-hpp-cluster` files. */
#include "plan/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hostlist.h"

enum {
    ENTRIES_MAX = 100000,
    NODES_MAX = 200000,
    GPUS_MAX = 1 << 14,
    LINK_ENDS_MAX = 1 << 20, /* nodes of all sides of all links together */
    DEVICES_MAX = 256,
    HOSTLIST_MAX = 4096
};
#define FILE_MAX      (64u << 20)
#define MEMORY_MAX    1e15
#define BANDWIDTH_MAX 1e16
#define LATENCY_MAX   1e3

/* Hands an error that has no place of its own to the document. */
static void fail_at(const struct eth_hpp_json *at, const struct eth_hpp_error *err)
{
    eth_hpp_json_fail(at, "%s", err->text);
}

static void read_devices(const struct eth_hpp_json *root, struct eth_hpp_cluster *cluster)
{
    if (!eth_hpp_json_has(root, "devices"))
        return;
    struct eth_hpp_json devices = eth_hpp_json_object(root, "devices"), entry;
    const char *name;
    void *iterator = NULL;
    while (eth_hpp_json_next(&devices, &iterator, &name, &entry)) {
        struct eth_hpp_error err;
        int index;
        if (name[0] == '\0' || strlen(name) >= ETH_HPP_NAME_MAX ||
            cluster->device_count == DEVICES_MAX) {
            eth_hpp_json_fail(&entry, "names have 1..%d bytes, and there are at most %d devices",
                              ETH_HPP_NAME_MAX - 1, DEVICES_MAX);
            return;
        }
        eth_hpp_json_keys(&entry, "memory_bytes", "reserved_bytes", NULL);
        if (eth_hpp_cluster_add_device(cluster, name, &index, &err) != ETH_HPP_OK) {
            fail_at(&entry, &err);
            return;
        }
        struct eth_hpp_device *device = &cluster->devices[index];
        if (device->memory_bytes == 0 || eth_hpp_json_has(&entry, "memory_bytes"))
            device->memory_bytes = eth_hpp_json_number(&entry, "memory_bytes", 1, MEMORY_MAX);
        device->reserved_bytes =
            eth_hpp_json_number_or(&entry, "reserved_bytes", 0, device->memory_bytes, 0);
    }
}

static int read_device(const struct eth_hpp_json *at, const char *name,
                       struct eth_hpp_cluster *cluster)
{
    struct eth_hpp_error err;
    int index = 0;
    if (eth_hpp_json_failed(at))
        return 0;
    if (eth_hpp_cluster_add_device(cluster, name, &index, &err) != ETH_HPP_OK)
        fail_at(at, &err);
    else if (cluster->devices[index].memory_bytes == 0)
        eth_hpp_json_fail(at,
                          "device \"%s\" is not in the device database: state its memory_bytes "
                          "under \"devices\"",
                          name);
    return index;
}

/* The GPUs of a node entry: "gpus":["A","B"], or "device" and "count". */
static void read_gpus(const struct eth_hpp_json *entry, struct eth_hpp_cluster *cluster,
                      struct eth_hpp_node *node)
{
    if (eth_hpp_json_has(entry, "gpus")) {
        if (eth_hpp_json_has(entry, "device") || eth_hpp_json_has(entry, "count"))
            eth_hpp_json_fail(entry, "has both \"gpus\" and \"device\" or \"count\": keep one");
        struct eth_hpp_json gpus = eth_hpp_json_array(entry, "gpus", 1, ETH_HPP_NODE_GPUS_MAX);
        node->gpus = (int)eth_hpp_json_length(&gpus);
        for (int i = 0; i < node->gpus && !eth_hpp_json_failed(entry); i++)
            node->devices[i] = read_device(
                &gpus, eth_hpp_json_item_string(&gpus, (size_t)i, ETH_HPP_NAME_MAX - 1), cluster);
        return;
    }
    const char *name = eth_hpp_json_string(entry, "device", ETH_HPP_NAME_MAX - 1);
    int device = read_device(entry, name, cluster);
    node->gpus = (int)eth_hpp_json_integer(entry, "count", 1, ETH_HPP_NODE_GPUS_MAX);
    for (int i = 0; i < node->gpus; i++)
        node->devices[i] = device;
}

static void read_node(const struct eth_hpp_json *entry, struct eth_hpp_cluster *cluster)
{
    int devices[ETH_HPP_NODE_GPUS_MAX];
    struct eth_hpp_node node = {.devices = devices};
    struct eth_hpp_error err;
    eth_hpp_json_keys(entry, "name", "device", "count", "gpus", "intra_bandwidth",
                      "intra_latency_s", "inter_bandwidth", "inter_latency_s",
                      "inter_bandwidth_per_gpu", NULL);
    const char *hostlist = eth_hpp_json_string(entry, "name", HOSTLIST_MAX);
    read_gpus(entry, cluster, &node);
    node.intra_bandwidth = eth_hpp_json_number(entry, "intra_bandwidth", 1, BANDWIDTH_MAX);
    node.intra_latency_s = eth_hpp_json_number_or(entry, "intra_latency_s", 0, LATENCY_MAX, 0);
    node.inter_bandwidth = eth_hpp_json_number(entry, "inter_bandwidth", 1, BANDWIDTH_MAX);
    node.inter_latency_s = eth_hpp_json_number_or(entry, "inter_latency_s", 0, LATENCY_MAX, 0);
    if (eth_hpp_json_has(entry, "inter_bandwidth_per_gpu"))
        node.inter_bandwidth_per_gpu =
            eth_hpp_json_number(entry, "inter_bandwidth_per_gpu", 1, BANDWIDTH_MAX);
    if (eth_hpp_json_failed(entry))
        return;
    char **names;
    int count;
    if (eth_hpp_hostlist_expand(hostlist, NODES_MAX, &names, &count, &err) != ETH_HPP_OK) {
        fail_at(entry, &err);
        return;
    }
    for (int i = 0; i < count && !eth_hpp_json_failed(entry); i++) {
        snprintf(node.name, sizeof(node.name), "%s", names[i]);
        if (cluster->node_count == NODES_MAX)
            eth_hpp_json_fail(entry, "there are more than %d nodes", NODES_MAX);
        else if (cluster->gpu_count + node.gpus > GPUS_MAX)
            eth_hpp_json_fail(entry, "there are more than %d GPUs", GPUS_MAX);
        else if (eth_hpp_cluster_add_node(cluster, &node, &err) != ETH_HPP_OK)
            fail_at(entry, &err);
    }
    eth_hpp_hostlist_free(names, count);
}

/* ---- nodes by name: links name very many ---- */

struct named_node {
    const char *name;
    int node;
};

static int compare_names(const void *a, const void *b)
{
    const struct named_node *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* The nodes in the order of their names, for the caller to free; refuses a name that stands twice.
 */
static struct named_node *sort_nodes(const struct eth_hpp_json *at,
                                     const struct eth_hpp_cluster *cluster)
{
    size_t n = (size_t)cluster->node_count;
    struct named_node *sorted = malloc((n > 0 ? n : 1) * sizeof(*sorted));
    if (sorted == NULL) {
        eth_hpp_json_fail(at, "out of memory");
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        sorted[i] = (struct named_node){.name = cluster->nodes[i].name, .node = (int)i};
    qsort(sorted, n, sizeof(*sorted), compare_names);
    for (size_t i = 0; i + 1 < n; i++)
        if (compare_names(&sorted[i], &sorted[i + 1]) == 0)
            eth_hpp_json_fail(at, "node %s stands twice", sorted[i].name);
    return sorted;
}

/* ---- links ---- */

/* What links are read with. */
struct link_reader {
    struct eth_hpp_cluster *cluster;
    struct named_node *sorted;
    int ends_left; /* of LINK_ENDS_MAX */
};

/* One side of a link, as node indices. */
static int *read_link_side(const struct eth_hpp_json *between, size_t side,
                           struct link_reader *reader, int *count)
{
    struct eth_hpp_error err;
    const char *text = eth_hpp_json_item_string(between, side, HOSTLIST_MAX);
    char **names;
    *count = 0;
    if (eth_hpp_json_failed(between))
        return NULL;
    if (eth_hpp_hostlist_expand(text, reader->ends_left, &names, count, &err) != ETH_HPP_OK) {
        fail_at(between, &err);
        return NULL;
    }
    reader->ends_left -= *count;
    int *nodes = malloc((size_t)(*count > 0 ? *count : 1) * sizeof(*nodes));
    if (nodes == NULL)
        eth_hpp_json_fail(between, "out of memory");
    for (int i = 0; nodes != NULL && i < *count; i++) {
        const struct named_node wanted = {.name = names[i]};
        const struct named_node *found =
            bsearch(&wanted, reader->sorted, (size_t)reader->cluster->node_count, sizeof(wanted),
                    compare_names);
        nodes[i] = found != NULL ? found->node : 0;
        if (found == NULL)
            eth_hpp_json_fail(between, "there is no node %s", names[i]);
    }
    eth_hpp_hostlist_free(names, *count);
    return nodes;
}

static void read_link(const struct eth_hpp_json *entry, struct link_reader *reader)
{
    struct eth_hpp_link link = {0};
    struct eth_hpp_error err;
    eth_hpp_json_keys(entry, "between", "bandwidth", "latency_s", NULL);
    struct eth_hpp_json between = eth_hpp_json_array(entry, "between", 2, 2);
    link.bandwidth = eth_hpp_json_number(entry, "bandwidth", 1, BANDWIDTH_MAX);
    link.latency_s = eth_hpp_json_number_or(entry, "latency_s", 0, LATENCY_MAX, 0);
    link.from = read_link_side(&between, 0, reader, &link.from_count);
    link.to = read_link_side(&between, 1, reader, &link.to_count);
    if (!eth_hpp_json_failed(entry) &&
        eth_hpp_cluster_add_link(reader->cluster, &link, &err) != ETH_HPP_OK)
        fail_at(entry, &err);
    free(link.from);
    free(link.to);
}

static enum eth_hpp_status read_document(struct eth_hpp_json_document *document,
                                         const struct eth_hpp_json *root,
                                         struct eth_hpp_cluster *cluster, struct eth_hpp_error *err)
{
    struct eth_hpp_cluster read = {0};
    eth_hpp_json_format(root, "eth-hpp-cluster", 1);
    eth_hpp_json_keys(root, "format", "version", "devices", "nodes", "links", NULL);
    read_devices(root, &read);
    struct eth_hpp_json nodes = eth_hpp_json_array(root, "nodes", 1, ENTRIES_MAX);
    for (size_t i = 0; i < eth_hpp_json_length(&nodes) && !eth_hpp_json_failed(root); i++) {
        struct eth_hpp_json entry = eth_hpp_json_item(&nodes, i);
        read_node(&entry, &read);
    }
    struct link_reader reader = {
        .cluster = &read, .sorted = sort_nodes(&nodes, &read), .ends_left = LINK_ENDS_MAX};
    if (eth_hpp_json_has(root, "links")) {
        struct eth_hpp_json links = eth_hpp_json_array(root, "links", 0, ENTRIES_MAX);
        for (size_t i = 0; i < eth_hpp_json_length(&links) && !eth_hpp_json_failed(root); i++) {
            struct eth_hpp_json entry = eth_hpp_json_item(&links, i);
            read_link(&entry, &reader);
        }
    }
    free(reader.sorted);
    enum eth_hpp_status status = eth_hpp_json_finish(document, err);
    if (status == ETH_HPP_OK)
        *cluster = read;
    else
        eth_hpp_cluster_free(&read);
    return status;
}

enum eth_hpp_status eth_hpp_cluster_load(const char *path, struct eth_hpp_cluster *cluster,
                                         struct eth_hpp_error *err)
{
    struct eth_hpp_error local;
    struct eth_hpp_json root;
    err = err != NULL ? err : &local;
    struct eth_hpp_json_document *document = eth_hpp_json_load(path, FILE_MAX, &root, err);
    return document == NULL ? err->status : read_document(document, &root, cluster, err);
}

enum eth_hpp_status eth_hpp_cluster_parse(const char *name, const char *text, size_t size,
                                          struct eth_hpp_cluster *cluster,
                                          struct eth_hpp_error *err)
{
    struct eth_hpp_error local;
    struct eth_hpp_json root;
    err = err != NULL ? err : &local;
    struct eth_hpp_json_document *document = eth_hpp_json_parse(name, text, size, &root, err);
    return document == NULL ? err->status : read_document(document, &root, cluster, err);
}

/* ---- writing ---- */

static bool same_but_for_name(const struct eth_hpp_node *a, const struct eth_hpp_node *b)
{
    return a->gpus == b->gpus &&
           memcmp(a->devices, b->devices, (size_t)a->gpus * sizeof(*a->devices)) == 0 &&
           a->intra_bandwidth == b->intra_bandwidth && a->intra_latency_s == b->intra_latency_s &&
           a->inter_bandwidth == b->inter_bandwidth && a->inter_latency_s == b->inter_latency_s &&
           a->inter_bandwidth_per_gpu == b->inter_bandwidth_per_gpu;
}

/* The hostlist of some nodes as a JSON string; NULL when out of memory. */
static struct json_object *hostlist(const struct eth_hpp_cluster *cluster, const int *nodes,
                                    int first, int count)
{
    const char **names = malloc((size_t)(count > 0 ? count : 1) * sizeof(*names));
    for (int i = 0; names != NULL && i < count; i++)
        names[i] = cluster->nodes[nodes != NULL ? nodes[i] : first + i].name;
    char *text = names != NULL ? eth_hpp_hostlist_fold(names, count) : NULL;
    struct json_object *value = text != NULL ? json_object_new_string(text) : NULL;
    free(names);
    free(text);
    return value;
}

static struct json_object *write_nodes(const struct eth_hpp_cluster *cluster)
{
    struct json_object *list = json_object_new_array();
    for (int i = 0, end; i < cluster->node_count; i = end) {
        const struct eth_hpp_node *node = &cluster->nodes[i];
        for (end = i + 1;
             end < cluster->node_count && same_but_for_name(node, &cluster->nodes[end]);)
            end++;
        struct json_object *entry = json_object_new_object(), *gpus = json_object_new_array();
        eth_hpp_json_put(&entry, "name", hostlist(cluster, NULL, i, end - i));
        for (int g = 0; g < node->gpus; g++)
            eth_hpp_json_append(&gpus,
                                json_object_new_string(cluster->devices[node->devices[g]].name));
        eth_hpp_json_put(&entry, "gpus", gpus);
        eth_hpp_json_put(&entry, "intra_bandwidth", eth_hpp_json_new_number(node->intra_bandwidth));
        eth_hpp_json_put(&entry, "intra_latency_s", eth_hpp_json_new_number(node->intra_latency_s));
        eth_hpp_json_put(&entry, "inter_bandwidth", eth_hpp_json_new_number(node->inter_bandwidth));
        eth_hpp_json_put(&entry, "inter_latency_s", eth_hpp_json_new_number(node->inter_latency_s));
        if (node->inter_bandwidth_per_gpu > 0)
            eth_hpp_json_put(&entry, "inter_bandwidth_per_gpu",
                             eth_hpp_json_new_number(node->inter_bandwidth_per_gpu));
        eth_hpp_json_append(&list, entry);
    }
    return list;
}

static struct json_object *write_links(const struct eth_hpp_cluster *cluster)
{
    struct json_object *list = json_object_new_array();
    for (int i = 0; i < cluster->link_count; i++) {
        const struct eth_hpp_link *link = &cluster->links[i];
        struct json_object *entry = json_object_new_object(), *between = json_object_new_array();
        eth_hpp_json_append(&between, hostlist(cluster, link->from, 0, link->from_count));
        eth_hpp_json_append(&between, hostlist(cluster, link->to, 0, link->to_count));
        eth_hpp_json_put(&entry, "between", between);
        eth_hpp_json_put(&entry, "bandwidth", eth_hpp_json_new_number(link->bandwidth));
        eth_hpp_json_put(&entry, "latency_s", eth_hpp_json_new_number(link->latency_s));
        eth_hpp_json_append(&list, entry);
    }
    return list;
}

enum eth_hpp_status eth_hpp_cluster_save(const struct eth_hpp_cluster *cluster, const char *path,
                                         struct eth_hpp_error *err)
{
    struct json_object *root = eth_hpp_json_new_file("eth-hpp-cluster", 1);
    struct json_object *devices = json_object_new_object();
    for (int i = 0; i < cluster->device_count; i++) {
        const struct eth_hpp_device *device = &cluster->devices[i];
        struct json_object *entry = json_object_new_object();
        eth_hpp_json_put(&entry, "memory_bytes", eth_hpp_json_new_number(device->memory_bytes));
        eth_hpp_json_put(&entry, "reserved_bytes", eth_hpp_json_new_number(device->reserved_bytes));
        eth_hpp_json_put(&devices, device->name, entry);
    }
    eth_hpp_json_put(&root, "devices", devices);
    eth_hpp_json_put(&root, "nodes", write_nodes(cluster));
    if (cluster->link_count > 0)
        eth_hpp_json_put(&root, "links", write_links(cluster));
    return eth_hpp_json_save(root, path, err);
}
