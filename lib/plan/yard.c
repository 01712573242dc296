#include "plan/yard.h"

#include <stdlib.h>

bool eth_hpp_yard_make(struct eth_hpp_yard *yard, const struct eth_hpp_pools *pools)
{
    yard->pools = *pools;
    yard->pool = calloc((size_t)pools->count, sizeof(*yard->pool));
    for (int p = 0; yard->pool != NULL && p < pools->count; p++) {
        yard->pool[p].rests =
            calloc((size_t)pools->pools[p].node_count, sizeof(*yard->pool[p].rests));
        if (yard->pool[p].rests == NULL)
            return false;
    }
    return yard->pool != NULL;
}

void eth_hpp_yard_free(struct eth_hpp_yard *yard)
{
    for (int p = 0; yard->pool != NULL && p < yard->pools.count; p++)
        free(yard->pool[p].rests);
    free(yard->pool);
    *yard = (struct eth_hpp_yard){0};
}

void eth_hpp_yard_clear(struct eth_hpp_yard *yard)
{
    for (int p = 0; p < yard->pools.count; p++)
        yard->pool[p].fresh = yard->pool[p].rest_count = 0;
}

/* The rest where `need` GPUs fit most closely, or the largest where they fit nowhere; an untouched
 * node has `whole`. -1: an untouched node is best, -2: there is nothing. */
static int choose(const struct eth_hpp_yard_pool *pool, int need, int least, int whole, bool fresh)
{
    int best = fresh ? -1 : -2, best_free = fresh ? whole : 0;
    for (int r = 0; r < pool->rest_count; r++) {
        int free_gpus = pool->rests[r].free;
        if (free_gpus < least)
            continue;
        bool closer =
            best_free >= need ? free_gpus >= need && free_gpus < best_free : free_gpus > best_free;
        if (best == -2 || closer) {
            best = r;
            best_free = free_gpus;
        }
        if (best_free == need)
            break;
    }
    return best;
}

/* Takes one node out of the list; returns its index in the pool's nodes. */
static int open_node(struct eth_hpp_yard *yard, struct eth_hpp_yard_pool *pool, int choice,
                     int whole, int *free_gpus)
{
    if (choice < 0) {
        *free_gpus = whole;
        return pool->fresh++;
    }
    struct eth_hpp_yard_rest *rest = &pool->rests[choice];
    int node = rest->node;
    *free_gpus = rest->free;
    yard->old = yard->old || node < pool->start;
    rest->node += rest->stride;
    if (--rest->copies == 0)
        *rest = pool->rests[--pool->rest_count];
    return node;
}

bool eth_hpp_yard_take(struct eth_hpp_yard *yard, int index, int workers, int tensor_parallel,
                       struct eth_hpp_layout_worker *to)
{
    const struct eth_hpp_pool *kind = &yard->pools.pools[index];
    struct eth_hpp_yard_pool *pool = &yard->pool[index];
    while (workers > 0) {
        int left, choice = choose(pool, workers * tensor_parallel, tensor_parallel, kind->per_node,
                                  pool->fresh < kind->node_count);
        if (choice == -2)
            return false;
        int node = open_node(yard, pool, choice, kind->per_node, &left);
        for (; workers > 0 && left >= tensor_parallel; workers--) {
            left -= tensor_parallel;
            to->node = kind->nodes[node];
            (to++)->device = kind->device;
        }
        if (left > 0)
            pool->rests[pool->rest_count++] =
                (struct eth_hpp_yard_rest){.node = node, .copies = 1, .free = left};
    }
    return true;
}

void eth_hpp_yard_watch(struct eth_hpp_yard *yard)
{
    for (int p = 0; p < yard->pools.count; p++)
        yard->pool[p].start = yard->pool[p].fresh;
    yard->old = false;
}

bool eth_hpp_yard_is_full(const struct eth_hpp_yard *yard, const int *smallest)
{
    for (int p = 0; p < yard->pools.count; p++) {
        const struct eth_hpp_yard_pool *pool = &yard->pool[p];
        for (int r = 0; r < pool->rest_count; r++)
            if (pool->rests[r].node >= pool->start && pool->rests[r].free >= smallest[p])
                return false;
    }
    return true;
}

int eth_hpp_yard_repeat(struct eth_hpp_yard *yard, int most, int *stride)
{
    for (int p = 0; p < yard->pools.count; p++) {
        const struct eth_hpp_yard_pool *pool = &yard->pool[p];
        stride[p] = pool->fresh - pool->start;
        int left = yard->pools.pools[p].node_count - pool->fresh;
        if (stride[p] > 0 && left / stride[p] < most)
            most = left / stride[p];
    }
    for (int p = 0; p < yard->pools.count && most > 0; p++) {
        struct eth_hpp_yard_pool *pool = &yard->pool[p];
        for (int r = 0; r < pool->rest_count; r++)
            if (pool->rests[r].node >= pool->start) {
                pool->rests[r].stride = stride[p];
                pool->rests[r].copies = 1 + most;
            }
        pool->fresh += most * stride[p];
    }
    return most;
}
