#include "plan/chain_workers.h"

#include <stdlib.h>

void eth_hpp_chain_workers_init(struct eth_hpp_chain_workers *workers,
                                struct eth_hpp_workshop *shop)
{
    const struct eth_hpp_profile *profile = shop->cost->profile;
    int all = profile->layer_count, most = 0;
    *workers = (struct eth_hpp_chain_workers){.shop = shop, .layers = all};
    for (int k = 0; k < profile->kind_count; k++)
        if (eth_hpp_cost_count(shop->cost, k, 0, all) > most) {
            most = eth_hpp_cost_count(shop->cost, k, 0, all);
            workers->main_kind = k;
        }
    for (int layer = 0; layer < all; layer = shop->run_end[layer])
        if (profile->layers[layer] == workers->main_kind &&
            shop->run_end[layer] - layer > workers->main_run) {
            workers->main_end = shop->run_end[layer];
            workers->main_run = workers->main_end - layer;
        }
}

void eth_hpp_chain_workers_free(struct eth_hpp_chain_workers *workers)
{
    for (int i = 0; i < ETH_HPP_CHAIN_HASHES; i++)
        for (struct eth_hpp_chain_worker *worker = workers->list[i], *next; worker != NULL;
             worker = next) {
            next = worker->next;
            free(worker->until_s);
            for (int f = 0; f <= ETH_HPP_CHAIN_FLIGHT; f++)
                free(worker->first[f]);
            free(worker);
        }
}

static bool fits(const struct eth_hpp_workshop *shop, const struct eth_hpp_chain_worker *worker,
                 int in_flight, int first, int end)
{
    struct eth_hpp_stage_memory memory =
        eth_hpp_cost_memory(shop->cost, worker->degree, first, end, worker->recompute);
    double state = memory.state - (1 - worker->share) * memory.optimizer;
    return eth_hpp_cost_peak(shop->cost, &memory, state, worker->device, worker->samples,
                             in_flight) <=
           shop->cost->cluster->devices[worker->device].memory_bytes -
               shop->options->memory_margin_bytes;
}

/* The first layer of the longest stage up to `end` that fits, `end` where none does. */
static int find_first(const struct eth_hpp_chain_workers *workers,
                      const struct eth_hpp_chain_worker *worker, int in_flight, int end)
{
    int low = 0, high = end; /* a stage from `high` on fits, be it empty */
    while (low < high) {
        int middle = (low + high) / 2;
        if (fits(workers->shop, worker, in_flight, middle, end))
            high = middle;
        else
            low = middle + 1;
    }
    return high;
}

int eth_hpp_chain_worker_find(const struct eth_hpp_chain_workers *workers,
                              struct eth_hpp_chain_worker *worker, int in_flight, int end)
{
    int first = find_first(workers, worker, in_flight, end);
    int16_t **row = &worker->first[in_flight]; /* without one it is found again each time */
    if (*row == NULL)
        *row = calloc((size_t)workers->layers + 1, sizeof(**row));
    if (*row != NULL)
        (*row)[end] = (int16_t)(first + 1);
    return first;
}

static bool fill(const struct eth_hpp_chain_workers *workers, struct eth_hpp_chain_worker *worker)
{
    const struct eth_hpp_cost *cost = workers->shop->cost;
    int layers = cost->profile->layer_count;
    double seconds[ETH_HPP_LAYER_KINDS_MAX];
    worker->until_s = malloc((size_t)(layers + 1) * sizeof(*worker->until_s));
    if (worker->until_s == NULL)
        return false;
    for (int k = 0; k < cost->profile->kind_count; k++) {
        struct eth_hpp_layer_time time =
            eth_hpp_cost_layer(cost, worker->device, worker->degree, k, worker->samples);
        seconds[k] = time.backward_s + time.forward_s * (worker->recompute ? 2 : 1);
    }
    worker->layer_s = seconds[workers->main_kind];
    worker->until_s[0] = 0;
    for (int i = 0; i < layers; i++)
        worker->until_s[i + 1] = worker->until_s[i] + seconds[cost->profile->layers[i]];
    for (int b = 0, end = workers->main_end; b < ETH_HPP_CHAIN_BUCKETS; b++) {
        int held = end - find_first(workers, worker, 1 << b, end);
        worker->held[b] = held < workers->main_run ? held : INT16_MAX;
    }
    return true;
}

struct eth_hpp_chain_worker *eth_hpp_chain_workers_get(struct eth_hpp_chain_workers *workers,
                                                       struct eth_hpp_chain_worker like)
{
    int owners = (int)(1 / like.share + 0.5);
    unsigned hash =
        (unsigned)(((like.device * 31 + like.degree) * 31 + like.samples) * 31 + owners);
    struct eth_hpp_chain_worker **first =
        &workers->list[(2 * hash + like.recompute) % ETH_HPP_CHAIN_HASHES];
    for (struct eth_hpp_chain_worker *w = *first; w != NULL; w = w->next)
        if (w->device == like.device && w->degree == like.degree && w->samples == like.samples &&
            w->recompute == like.recompute && w->share == like.share)
            return w;
    struct eth_hpp_chain_worker *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    *made = like;
    made->next = *first;
    *first = made;
    return fill(workers, made) ? made : NULL;
}

void eth_hpp_chain_worker_reach(const struct eth_hpp_chain_worker *worker, double s, int most,
                                int layers, int16_t *reach)
{
    for (int end = 0, first = 0; end <= layers; end++) {
        while (first < end &&
               (worker->until_s[end] - worker->until_s[first] > s || end - first > most))
            first++;
        reach[end] = (int16_t)first;
    }
}
