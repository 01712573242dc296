#include "plan/chain_workers.h"

#include <math.h>
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
            for (int f = 0; worker->first != NULL && f <= ETH_HPP_CHAIN_FLIGHT; f++)
                free(worker->first[f]);
            free(worker->first);
            free(worker);
        }
}

static bool fits(const struct eth_hpp_workshop *shop, const struct eth_hpp_chain_worker *worker,
                 int in_flight, int first, int end)
{
    struct eth_hpp_stage_memory memory =
        eth_hpp_cost_memory(shop->cost, worker->like.degree, first, end, worker->like.recompute);
    double state = memory.state - (1 - worker->like.share) * memory.optimizer;
    return eth_hpp_cost_peak(shop->cost, &memory, state, worker->like.device, worker->like.samples,
                             in_flight) <=
           shop->cost->cluster->devices[worker->like.device].memory_bytes -
               shop->options->memory_margin_bytes;
}

/* Bytes of a worker that any number of layers of some kinds take together: tied tensors, and what
 * is needed only while a layer runs. */
static double shared_bytes(const struct eth_hpp_cost *cost,
                           const struct eth_hpp_chain_worker *worker, unsigned kinds)
{
    const struct eth_hpp_profile *profile = cost->profile;
    const struct eth_hpp_profile_memory *memory = cost->memory[worker->like.degree];
    double workspace = 0, saved = 0, state = 0;
    for (int k = 0; k < profile->kind_count; k++)
        if (kinds >> k & 1) {
            workspace = fmax(workspace, memory->kinds[k].workspace_bytes);
            saved = fmax(saved, memory->kinds[k].saved_bytes);
        }
    for (int t = 0; t < profile->tied_count; t++)
        if ((profile->tied[t].kinds & kinds) != 0)
            state += memory->tied[t].state_bytes -
                     (1 - worker->like.share) * memory->tied[t].optimizer_bytes;
    return state + worker->like.samples * (workspace + (worker->like.recompute ? saved : 0));
}

/* Bytes of a layer of a kind behind one of kind `before`, -1 for the first layer of all. */
static double layer_bytes(const struct eth_hpp_cost *cost,
                          const struct eth_hpp_chain_worker *worker, int in_flight, int kind,
                          int before)
{
    const struct eth_hpp_layer_memory *layer = &cost->memory[worker->like.degree]->kinds[kind];
    double kept = layer->saved_bytes;
    if (worker->like.recompute)
        kept = before >= 0 ? cost->profile->kinds[before].output_bytes : 0;
    return layer->state_bytes - (1 - worker->like.share) * layer->optimizer_bytes +
           (double)worker->like.samples * in_flight * kept;
}

/* The first layer of the longest stage up to `end` that fits, `end` where none does; to rounding.
 * Goes back run by run of like layers. */
static int reckon_first(const struct eth_hpp_workshop *shop,
                        const struct eth_hpp_chain_worker *worker, int in_flight, int end)
{
    const struct eth_hpp_cost *cost = shop->cost;
    const struct eth_hpp_device *device = &cost->cluster->devices[worker->like.device];
    const int *layers = cost->profile->layers;
    double limit = device->memory_bytes - shop->options->memory_margin_bytes, taken = 0;
    unsigned kinds = 0;
    for (int stop = end; stop > 0;) {
        int kind = layers[stop - 1], begin = shop->run_begin[stop - 1], like = stop - begin - 1;
        kinds |= 1u << kind;
        double left = limit - device->reserved_bytes - taken - shared_bytes(cost, worker, kinds);
        double each = layer_bytes(cost, worker, in_flight, kind, kind);
        if (left < like * each)
            return left < each ? stop : stop - (int)(left / each);
        double last =
            layer_bytes(cost, worker, in_flight, kind, begin > 0 ? layers[begin - 1] : -1);
        if (left < like * each + last)
            return begin + 1;
        taken += like * each + last;
        stop = begin;
    }
    return 0;
}

static int find_first(const struct eth_hpp_chain_workers *workers,
                      const struct eth_hpp_chain_worker *worker, int in_flight, int end)
{
    int first = reckon_first(workers->shop, worker, in_flight, end);
    while (first < end && !fits(workers->shop, worker, in_flight, first, end))
        first++;
    return first;
}

int eth_hpp_chain_worker_find(const struct eth_hpp_chain_workers *workers,
                              struct eth_hpp_chain_worker *worker, int in_flight, int end)
{
    int first = find_first(workers, worker, in_flight, end);
    if (worker->first == NULL) /* without rows it is found again each time */
        worker->first = calloc(ETH_HPP_CHAIN_FLIGHT + 1, sizeof(*worker->first));
    int16_t **row = worker->first != NULL ? &worker->first[in_flight] : NULL;
    if (row != NULL && *row == NULL)
        *row = calloc((size_t)workers->layers + 1, sizeof(**row));
    if (row != NULL && *row != NULL)
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
        struct eth_hpp_layer_time time = eth_hpp_cost_layer(
            cost, worker->like.device, worker->like.degree, k, worker->like.samples);
        seconds[k] = time.backward_s + time.forward_s * (worker->like.recompute ? 2 : 1);
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

static bool is_like(const struct eth_hpp_chain_like *a, const struct eth_hpp_chain_like *b)
{
    return a->device == b->device && a->degree == b->degree && a->samples == b->samples &&
           a->recompute == b->recompute && a->share == b->share;
}

struct eth_hpp_chain_worker *eth_hpp_chain_workers_get(struct eth_hpp_chain_workers *workers,
                                                       const struct eth_hpp_chain_like *like)
{
    unsigned owners = (unsigned)(1 / like->share + 0.5), hash = (unsigned)like->device;
    const unsigned parts[] = {(unsigned)like->degree, (unsigned)like->samples, owners,
                              like->recompute};
    for (int i = 0; i < 4; i++)
        hash = (hash ^ parts[i]) * 0x9e3779b1u;
    struct eth_hpp_chain_worker **first = &workers->list[(hash >> 16) % ETH_HPP_CHAIN_HASHES];
    for (struct eth_hpp_chain_worker *w = *first; w != NULL; w = w->next)
        if (is_like(&w->like, like))
            return w;
    struct eth_hpp_chain_worker *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    made->like = *like;
    made->next = *first;
    *first = made;
    return fill(workers, made) ? made : NULL;
}

void eth_hpp_chain_worker_reach(const struct eth_hpp_chain_worker *worker, double s, int most,
                                const int16_t *least, int layers, int16_t *reach)
{
    for (int end = 0, first = 0; end <= layers; end++) {
        while (first < end && (worker->until_s[end] - worker->until_s[first] > s ||
                               end - first > most || first < least[end]))
            first++;
        reach[end] = (int16_t)first;
    }
}
