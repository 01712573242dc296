#include "plan/order.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- comparing ---- */

/* Texts, with numbers in them by their value: a2 before a10. */
static int compare_names(const char *a, const char *b)
{
    while (*a != '\0' && *b != '\0') {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            size_t x = strspn(a, "0"), y = strspn(b, "0");
            size_t m = strspn(a + x, "0123456789"), n = strspn(b + y, "0123456789");
            int order = m != n ? (m > n) - (m < n) : strncmp(a + x, b + y, m);
            if (order != 0)
                return order;
            a += x + m;
            b += y + n;
        } else if (*a != *b) {
            return (unsigned char)*a - (unsigned char)*b;
        } else {
            a++;
            b++;
        }
    }
    return (*a != '\0') - (*b != '\0');
}

static int compare_numbers(double a, double b)
{
    return (a > b) - (a < b);
}

static int compare_devices(const void *a, const void *b)
{
    const struct eth_hpp_device *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

struct ordered_node {
    const struct eth_hpp_cluster *cluster;
    const struct eth_hpp_node *node;
};

static int compare_nodes(const void *a, const void *b)
{
    const struct ordered_node *p = a, *q = b;
    const struct eth_hpp_node *x = p->node, *y = q->node;
    int order = 0;
    for (int g = 0; g < x->gpus && g < y->gpus && order == 0; g++)
        if (x->devices[g] != y->devices[g])
            order = strcmp(p->cluster->devices[x->devices[g]].name,
                           p->cluster->devices[y->devices[g]].name);
    if (order == 0)
        order = y->gpus - x->gpus;
    if (order == 0)
        order = compare_numbers(y->intra_bandwidth, x->intra_bandwidth);
    if (order == 0)
        order = compare_numbers(y->inter_bandwidth, x->inter_bandwidth);
    if (order == 0)
        order = compare_numbers(y->inter_bandwidth_per_gpu, x->inter_bandwidth_per_gpu);
    if (order == 0)
        order = compare_numbers(x->intra_latency_s, y->intra_latency_s);
    if (order == 0)
        order = compare_numbers(x->inter_latency_s, y->inter_latency_s);
    if (order == 0)
        order = compare_names(x->name, y->name);
    return order != 0 ? order : strcmp(x->name, y->name);
}

/* ---- copying ---- */

/* device_of[d] becomes the ordered index of device d. */
static enum eth_hpp_status copy_devices(const struct eth_hpp_cluster *cluster,
                                        struct eth_hpp_cluster *ordered, int *device_of,
                                        struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    const struct eth_hpp_device **sorted =
        malloc((size_t)(cluster->device_count + 1) * sizeof(*sorted));
    if (sorted == NULL)
        return eth_hpp_error_memory(err, "the ordered cluster");
    for (int d = 0; d < cluster->device_count; d++)
        sorted[d] = &cluster->devices[d];
    qsort(sorted, (size_t)cluster->device_count, sizeof(*sorted), compare_devices);
    for (int d = 0, index; d < cluster->device_count && status == ETH_HPP_OK; d++) {
        status = eth_hpp_cluster_add_device(ordered, sorted[d]->name, &index, err);
        if (status != ETH_HPP_OK)
            break;
        ordered->devices[index] = *sorted[d];
        device_of[sorted[d] - cluster->devices] = index;
    }
    free(sorted);
    return status;
}

/* node_of[n] becomes the ordered index of node n. */
static enum eth_hpp_status copy_nodes(const struct eth_hpp_cluster *cluster, const int *device_of,
                                      struct eth_hpp_cluster *ordered, int *node_of, int *rank_of,
                                      struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    struct ordered_node *sorted = malloc((size_t)(cluster->node_count + 1) * sizeof(*sorted));
    if (sorted == NULL)
        return eth_hpp_error_memory(err, "the ordered cluster");
    for (int n = 0; n < cluster->node_count; n++)
        sorted[n] = (struct ordered_node){cluster, &cluster->nodes[n]};
    qsort(sorted, (size_t)cluster->node_count, sizeof(*sorted), compare_nodes);
    for (int n = 0; n < cluster->node_count && status == ETH_HPP_OK; n++) {
        const struct eth_hpp_node *node = sorted[n].node;
        status = eth_hpp_cluster_add_node(ordered, node, err);
        if (status != ETH_HPP_OK)
            break;
        struct eth_hpp_node *added = &ordered->nodes[n];
        node_of[node - cluster->nodes] = n;
        for (int g = 0; g < node->gpus; g++) {
            added->devices[g] = device_of[node->devices[g]];
            rank_of[added->first_rank + g] = node->first_rank + g;
        }
    }
    free(sorted);
    return status;
}

static int compare_ints(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static void translate(int *list, int count, const int *node_of)
{
    for (int i = 0; i < count; i++)
        list[i] = node_of[list[i]];
    qsort(list, (size_t)count, sizeof(*list), compare_ints);
}

static enum eth_hpp_status copy_links(const struct eth_hpp_cluster *cluster, const int *node_of,
                                      struct eth_hpp_cluster *ordered, struct eth_hpp_error *err)
{
    for (int i = 0; i < cluster->link_count; i++) {
        enum eth_hpp_status status = eth_hpp_cluster_add_link(ordered, &cluster->links[i], err);
        if (status != ETH_HPP_OK)
            return status;
        struct eth_hpp_link *link = &ordered->links[i];
        translate(link->from, link->from_count, node_of);
        translate(link->to, link->to_count, node_of);
    }
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_order_make(const struct eth_hpp_cluster *cluster,
                                       struct eth_hpp_cluster *ordered, int **rank_of,
                                       struct eth_hpp_error *err)
{
    struct eth_hpp_cluster made = {0};
    enum eth_hpp_status status = ETH_HPP_OK;
    int *device_of = calloc((size_t)cluster->device_count + 1, sizeof(*device_of));
    int *node_of = calloc((size_t)cluster->node_count + 1, sizeof(*node_of));
    int *ranks = calloc((size_t)cluster->gpu_count + 1, sizeof(*ranks));
    if (device_of == NULL || node_of == NULL || ranks == NULL)
        status = eth_hpp_error_memory(err, "the ordered cluster");
    if (status == ETH_HPP_OK)
        status = copy_devices(cluster, &made, device_of, err);
    if (status == ETH_HPP_OK)
        status = copy_nodes(cluster, device_of, &made, node_of, ranks, err);
    if (status == ETH_HPP_OK)
        status = copy_links(cluster, node_of, &made, err);
    free(device_of);
    free(node_of);
    if (status == ETH_HPP_OK) {
        *ordered = made;
        *rank_of = ranks;
    } else {
        free(ranks);
        eth_hpp_cluster_free(&made);
    }
    return status;
}
