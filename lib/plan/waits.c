#include "plan/waits.h"

#include <stdlib.h>

/* Follows waits backwards among the nodes that never got free: after as many steps as there are
 * nodes that walk is inside a cycle. before[] is a waiting predecessor of each. */
static int walk_into_cycle(const int (*edges)[2], int edge_count, int nodes, const int *waits,
                           int *before)
{
    int at = 0;
    for (int e = 0; e < edge_count; e++)
        if (waits[edges[e][0]] > 0)
            before[edges[e][1]] = edges[e][0];
    while (waits[at] == 0)
        at++;
    for (int steps = 0; steps < nodes; steps++)
        at = before[at];
    return at;
}

/* Kahn's algorithm: nodes without waits are freed, and free others. */
bool eth_hpp_waits_find_cycle(const int (*edges)[2], int edge_count, int nodes, int *stuck)
{
    size_t size = (size_t)nodes + 1;
    int *waits = calloc(size, sizeof(*waits)); /* edges into a node whose source is not free */
    int *first = calloc(size, sizeof(*first)); /* of a node's targets */
    int *targets = malloc(((size_t)edge_count + 1) * sizeof(*targets));
    int *ready = malloc(size * sizeof(*ready));
    bool done = waits != NULL && first != NULL && targets != NULL && ready != NULL;
    if (!done)
        goto out;
    for (int e = 0; e < edge_count; e++) {
        waits[edges[e][1]]++;
        first[edges[e][0]]++;
    }
    for (int i = 0, sum = 0; i <= nodes; i++) {
        sum += first[i]; /* the end of node i's targets, moved down to their beginning below */
        first[i] = sum;
    }
    for (int e = edge_count - 1; e >= 0; e--)
        targets[--first[edges[e][0]]] = edges[e][1];
    int count = 0, freed = 0;
    for (int i = 0; i < nodes; i++)
        if (waits[i] == 0)
            ready[count++] = i;
    while (freed < count) {
        int node = ready[freed++];
        for (int t = first[node]; t < first[node + 1]; t++)
            if (--waits[targets[t]] == 0)
                ready[count++] = targets[t];
    }
    *stuck = freed == nodes ? -1 : walk_into_cycle(edges, edge_count, nodes, waits, ready);
out:
    free(waits);
    free(first);
    free(targets);
    free(ready);
    return done;
}
