#include "plan/link_classes.h"

#include <stdlib.h>
#include <string.h>

enum { CLASSES_MAX = 4096 };

/* Partition refinement: every side of a link cuts the classes that it holds in part. A class is
 * never empty, so there are at most as many as nodes. */
struct partition {
    int *class_of; /* [node] */
    int *size;     /* [class] nodes of it */
    int *held;     /* [class] nodes of it in the side at hand */
    int *split;    /* [class] the class that takes them, or -1 */
    int *seen;     /* [node] the side that has counted the node: a list may name it twice */
    int *touched;  /* [class] classes of which the side has nodes */
    int count, side;
};

static void partition_free(struct partition *p)
{
    free(p->class_of);
    free(p->size);
    free(p->held);
    free(p->split);
    free(p->seen);
    free(p->touched);
}

static bool partition_make(struct partition *p, size_t nodes)
{
    *p = (struct partition){.class_of = calloc(nodes, sizeof(int)),
                            .size = calloc(nodes, sizeof(int)),
                            .held = calloc(nodes, sizeof(int)),
                            .split = malloc(nodes * sizeof(int)),
                            .seen = calloc(nodes, sizeof(int)),
                            .touched = malloc(nodes * sizeof(int)),
                            .count = 1};
    if (p->class_of == NULL || p->size == NULL || p->held == NULL || p->split == NULL ||
        p->seen == NULL || p->touched == NULL)
        return false;
    p->size[0] = (int)nodes;
    for (size_t i = 0; i < nodes; i++)
        p->split[i] = -1;
    return true;
}

static void cut(struct partition *p, const int *side, int length)
{
    int touched = 0;
    p->side += 2; /* side - 1: counted, side: moved where it must */
    for (int i = 0; i < length; i++) {
        if (p->seen[side[i]] >= p->side - 1)
            continue;
        p->seen[side[i]] = p->side - 1;
        int class = p->class_of[side[i]];
        if (p->held[class]++ == 0)
            p->touched[touched++] = class;
    }
    for (int t = 0; t < touched; t++)
        if (p->held[p->touched[t]] < p->size[p->touched[t]])
            p->split[p->touched[t]] = p->count++;
    for (int i = 0; i < length; i++) {
        int class = p->class_of[side[i]];
        if (p->seen[side[i]] == p->side || p->split[class] < 0)
            continue;
        p->seen[side[i]] = p->side;
        p->class_of[side[i]] = p->split[class];
    }
    for (int t = 0; t < touched; t++) {
        int class = p->touched[t];
        if (p->split[class] >= 0) {
            p->size[p->split[class]] = p->held[class];
            p->size[class] -= p->held[class];
        }
        p->held[class] = 0;
        p->split[class] = -1;
    }
}

/* The classes of a side, each once; returns how many. */
static int list_classes(struct partition *p, const int *side, int length, int *classes)
{
    int count = 0;
    for (int i = 0; i < length; i++)
        if (p->held[p->class_of[side[i]]]++ == 0)
            classes[count++] = p->class_of[side[i]];
    for (int i = 0; i < count; i++)
        p->held[classes[i]] = 0;
    return count;
}

static void fill_table(struct partition *p, const struct eth_hpp_cluster *cluster, int *link_of)
{
    int *from = p->touched, *to = p->seen; /* both have room for every class */
    for (int i = 0; i < p->count * p->count; i++)
        link_of[i] = -1;
    for (int l = 0; l < cluster->link_count; l++) {
        const struct eth_hpp_link *link = &cluster->links[l];
        int froms = list_classes(p, link->from, link->from_count, from);
        int tos = list_classes(p, link->to, link->to_count, to);
        for (int a = 0; a < froms; a++)
            for (int b = 0; b < tos; b++) {
                link_of[from[a] * p->count + to[b]] = l;
                link_of[to[b] * p->count + from[a]] = l;
            }
    }
}

enum eth_hpp_status eth_hpp_link_classes_make(const struct eth_hpp_cluster *cluster, int **class_of,
                                              int **link_of, int *class_count,
                                              struct eth_hpp_error *err)
{
    struct partition p;
    int *table = NULL;
    enum eth_hpp_status status = ETH_HPP_OK;
    bool made = partition_make(&p, (size_t)cluster->node_count);
    for (int l = 0; made && l < cluster->link_count && p.count <= CLASSES_MAX; l++) {
        cut(&p, cluster->links[l].from, cluster->links[l].from_count);
        cut(&p, cluster->links[l].to, cluster->links[l].to_count);
    }
    if (made && p.count > CLASSES_MAX)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "the cluster's links tell more than %d groups of nodes apart: "
                                   "state them for larger groups",
                                   CLASSES_MAX);
    else if (!made || (table = malloc((size_t)p.count * (size_t)p.count * sizeof(int))) == NULL)
        status = eth_hpp_error_memory(err, "the links");
    if (status == ETH_HPP_OK) {
        fill_table(&p, cluster, table);
        *class_of = p.class_of;
        *link_of = table;
        *class_count = p.count;
        p.class_of = NULL;
    }
    partition_free(&p);
    return status;
}
