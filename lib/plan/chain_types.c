/* What a chain is made of: types of stages over the pools' GPUs, counted in units. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/chain_kit.h"

static const int widths[] = {1, 2, 4, 8};
enum { WIDTHS = 4 };

static bool may_use(const struct eth_hpp_chains *chains, int pool, int degree)
{
    return eth_hpp_classes_has_degree(chains->shop, pool, degree) &&
           eth_hpp_classes_may_use(chains->shop, degree);
}

double eth_hpp_chains_rate(struct eth_hpp_chains *chains, int pool, int micro_batch)
{
    const struct eth_hpp_workshop *shop = chains->shop;
    int device = shop->pools.pools[pool].device, layers = shop->cost->profile->layer_count;
    double best = 0;
    for (int d = 0; d < shop->cost->degrees; d++) {
        if (!may_use(chains, pool, d))
            continue;
        for (int w = 0; w < WIDTHS && widths[w] <= micro_batch; w++) {
            int samples = (micro_batch + widths[w] - 1) / widths[w];
            if (samples > eth_hpp_cost_most_samples(shop->cost, device, d))
                continue;
            struct eth_hpp_layer_time time =
                eth_hpp_cost_layers(shop->cost, device, d, 0, layers, samples, false);
            double rate = micro_batch /
                          ((time.forward_s + time.backward_s) * widths[w] * shop->cost->degree[d]);
            best = rate > best ? rate : best;
        }
    }
    return best;
}

/* Stages that the fullest node holds GPUs of, where each stands on so many and nodes are filled in
 * turn. */
static int stages_of_node(int gpus, int per_node)
{
    if (gpus >= per_node)
        return gpus % per_node == 0 ? 1 : 2;
    return per_node / gpus + (per_node % gpus == 0 ? 0 : 2);
}

/* Seconds in which a node's network sums a layer of a stage of so many GPUs, with all that it sums
 * besides. Nodes that hold one stage of several pipelines sum it once; where they
 * hold that of all, there is nothing to sum across nodes. */
static double sum_s(const struct eth_hpp_chains *chains, int pool, int width, int gpus)
{
    const struct eth_hpp_chain_task *task = chains->task;
    const struct eth_hpp_cost *cost = chains->shop->cost;
    const struct eth_hpp_pool *p = &chains->shop->pools.pools[pool];
    int like = chains->by_stage ? task->replicas : 1;
    int own = task->gpus[pool] * like, per_node = p->per_node < own ? p->per_node : own;
    bool together = task->alone && (chains->by_stage || task->replicas == 1);
    if (task->alone && task->replicas * width == 1)
        return 0;
    if (together && like * gpus <= p->per_node)
        return 0;
    return 2 * cost->profile->kinds[chains->workers.main_kind].gradient_bytes *
           stages_of_node(like * gpus, per_node) /
           cost->cluster->nodes[p->nodes[0]].inter_bandwidth;
}

/* Seconds in which a node's network hands over one side of what stands there, in a whole step. */
static double cross_s(const struct eth_hpp_chains *chains, int pool, int gpus)
{
    int per_node = chains->shop->pools.pools[pool].per_node, own = chains->task->gpus[pool];
    int like = chains->by_stage ? chains->task->replicas : 1;
    double pipelines = like; /* that stand on a node with one stage or with several */
    if (like * gpus >= per_node)
        pipelines = (double)per_node / gpus;
    else if (like * own < per_node && like < chains->task->replicas)
        pipelines = per_node / own;
    return pipelines * fmax(1, chains->task->rounds) * chains->hand_over_s[pool];
}

/* Is a type never worth more than another of as many GPUs of its pool, whatever the beat? */
static bool is_no_better(const struct eth_hpp_chain_type *a, const struct eth_hpp_chain_type *b)
{
    bool no_better = a->units == b->units && a->rate <= b->rate && a->sum_s >= b->sum_s &&
                     a->cross_s >= b->cross_s;
    for (int i = 0; i < ETH_HPP_CHAIN_BUCKETS && no_better; i++)
        no_better = a->held[i] <= b->held[i];
    return no_better;
}

/* Adds a type to those of its pool, in place of one that it makes useless. */
static void keep_type(struct eth_hpp_chains *chains, const struct eth_hpp_chain_type *type)
{
    int at = chains->first_type[type->pool];
    for (int i = at; i < chains->type_count; i++)
        if (is_no_better(type, &chains->types[i]))
            return;
    while (at < chains->type_count && !is_no_better(&chains->types[at], type))
        at++;
    struct eth_hpp_chain_type *kept = &chains->types[at];
    int16_t *reach = kept->reach, *reach_plain = kept->reach_plain, *summed = kept->summed;
    *kept = *type;
    kept->summed = summed; /* these stay where they are */
    kept->reach = reach;
    kept->reach_plain = reach_plain;
    chains->type_count += at == chains->type_count;
}

static void add_type(struct eth_hpp_chains *chains, int pool, int degree, int width, bool recompute)
{
    const struct eth_hpp_workshop *shop = chains->shop;
    int gpus = width * shop->cost->degree[degree];
    int samples = (chains->task->micro_batch + width - 1) / width;
    struct eth_hpp_chain_like like = {.device = shop->pools.pools[pool].device,
                                      .degree = degree,
                                      .samples = samples,
                                      .recompute = recompute,
                                      .share = chains->task->share};
    if (chains->type_count == ETH_HPP_CHAIN_TYPES || gpus % chains->unit[pool] != 0 ||
        gpus > chains->task->gpus[pool] ||
        samples > eth_hpp_cost_most_samples(shop->cost, like.device, degree))
        return;
    struct eth_hpp_chain_type type = {.worker = eth_hpp_chain_workers_get(&chains->workers, &like),
                                      .pool = pool,
                                      .width = width,
                                      .degree = degree,
                                      .units = gpus / chains->unit[pool],
                                      .sum_s = sum_s(chains, pool, width, gpus),
                                      .cross_s = cross_s(chains, pool, gpus)};
    if (type.worker == NULL) {
        eth_hpp_chain_out_of_memory(chains);
        return;
    }
    type.part = 1.0 / type.units;
    type.rate = 1 / type.worker->layer_s;
    type.sums_per_s = type.sum_s > 0 ? 1 / type.sum_s : INFINITY;
    for (int b = 0; b < ETH_HPP_CHAIN_BUCKETS; b++)
        type.held[b] = type.worker->held[b];
    if (type.held[0] > 0)
        keep_type(chains, &type);
}

static void list_types(struct eth_hpp_chains *chains)
{
    const struct eth_hpp_workshop *shop = chains->shop;
    chains->type_count = 0;
    for (int p = 0; p < chains->pools; p++) {
        chains->first_type[p] = chains->type_count;
        for (int d = 0; d < shop->cost->degrees && chains->task->gpus[p] > 0; d++)
            for (int w = 0; w < WIDTHS && widths[w] <= chains->task->micro_batch; w++)
                for (int recompute = 0; recompute < (shop->options->no_recompute ? 1 : 2) &&
                                        may_use(chains, p, d) && !shop->failed;
                     recompute++)
                    add_type(chains, p, d, widths[w], recompute);
    }
    chains->first_type[chains->pools] = chains->type_count;
}

/* Counts GPUs by as few as the states allow, coarsest where that leaves none over. False where even
 * the coarsest way has too many states. */
static bool choose_units(struct eth_hpp_chains *chains)
{
    const int *gpus = chains->task->gpus;
    for (int p = 0; p < chains->pools; p++)
        chains->unit[p] = 1;
    for (;;) {
        double states = 1, most = 0;
        int coarsest = -1;
        for (int p = 0; p < chains->pools; p++) {
            int units = gpus[p] / chains->unit[p];
            double worth = units / (units % 2 == 0 ? 1.0 : 1.5);
            states *= units + 1;
            if (worth > most && chains->unit[p] < 8 && units > 1) {
                most = worth;
                coarsest = p;
            }
        }
        if (states <= chains->task->states)
            break;
        if (coarsest < 0)
            return false;
        chains->unit[coarsest] *= 2;
    }
    chains->state_count = 1;
    for (int p = 0; p < chains->pools; p++) {
        chains->units[p] = gpus[p] / chains->unit[p];
        chains->stride[p] = chains->state_count;
        chains->state_count *= chains->units[p] + 1;
    }
    return true;
}

static void find_hand_overs(struct eth_hpp_chains *chains)
{
    const struct eth_hpp_cost *cost = chains->shop->cost;
    double bytes =
        chains->task->micro_batch * cost->profile->kinds[chains->workers.main_kind].output_bytes;
    for (int p = 0; p < chains->pools; p++) {
        int x = chains->shop->pools.pools[p].nodes[0];
        const struct eth_hpp_node *a = &cost->cluster->nodes[x];
        chains->within_s[p] = a->intra_latency_s + bytes / a->intra_bandwidth;
        chains->hand_over_s[p] = bytes / a->inter_bandwidth;
        if (chains->task->gpus[p] > 0)
            chains->network_s[p] = bytes / a->inter_bandwidth *
                                   chains->shop->pools.pools[p].per_node / chains->task->gpus[p];
        for (int q = 0; q < chains->pools; q++) {
            int y = chains->shop->pools.pools[q].nodes[0];
            const struct eth_hpp_node *b = &cost->cluster->nodes[y];
            const struct eth_hpp_link *link = x != y ? eth_hpp_cost_link(cost, x, y) : NULL;
            double bandwidth = fmin(a->inter_bandwidth, b->inter_bandwidth);
            double latency_s = fmax(a->inter_latency_s, b->inter_latency_s);
            if (link != NULL) {
                bandwidth = fmin(bandwidth, link->bandwidth);
                latency_s = fmax(latency_s, link->latency_s);
            }
            chains->across_s[p][q] = latency_s + bytes / bandwidth;
        }
    }
}

/* About the least time in which a micro-batch passes all layers. */
static double pass_s(const struct eth_hpp_chains *chains)
{
    double rates = 0, passed = 0;
    for (int p = 0; p < chains->pools; p++) {
        double best = 0, layer_s = 0; /* layers a second of a unit */
        for (int t = chains->first_type[p]; t < chains->first_type[p + 1]; t++) {
            double rate = chains->types[t].rate * chains->types[t].part;
            if (rate <= best)
                continue;
            best = rate;
            layer_s = chains->types[t].worker->layer_s;
        }
        rates += chains->units[p] * best;
        passed += chains->units[p] * best * layer_s;
    }
    return rates > 0 ? passed / rates * chains->below[chains->shop->cost->profile->layer_count] : 0;
}

void eth_hpp_chain_set_scale(struct eth_hpp_chains *chains, double more)
{
    for (int depth = 0; depth <= ETH_HPP_DRAFT_STAGES; depth++)
        chains->scale[depth] = depth == 0 ? 1 : more * chains->scale[depth - 1];
}

bool eth_hpp_chain_prepare(struct eth_hpp_chains *chains, const struct eth_hpp_chain_task *task,
                           bool by_stage)
{
    int most = chains->shop->options->max_in_flight;
    int layers = chains->shop->cost->profile->layer_count;
    chains->most_depth = layers < ETH_HPP_DRAFT_STAGES ? layers : ETH_HPP_DRAFT_STAGES;
    eth_hpp_chain_set_scale(chains, 1);
    if (layers >= INT16_MAX) /* what labels count to */
        return false;
    chains->task = task;
    chains->exposed = INFINITY;
    chains->by_stage = by_stage;
    chains->most_in_flight =
        task->rounds < ETH_HPP_CHAIN_FLIGHT ? (int)task->rounds : ETH_HPP_CHAIN_FLIGHT;
    if (most > 0 && most < chains->most_in_flight)
        chains->most_in_flight = most;
    if (chains->most_in_flight < 1)
        chains->most_in_flight = 1;
    if (!choose_units(chains))
        return false;
    find_hand_overs(chains);
    list_types(chains);
    chains->pass_s = pass_s(chains);
    chains->drain_s = chains->pass_s / chains->shop->cost->profile->layer_count / 2;
    if (chains->state_count > chains->state_room) {
        free(chains->labels);
        free(chains->label_count);
        chains->labels = malloc((size_t)chains->state_count * sizeof(*chains->labels));
        chains->label_count = malloc((size_t)chains->state_count);
        chains->state_room = chains->state_count;
        if (chains->labels == NULL || chains->label_count == NULL)
            eth_hpp_chain_out_of_memory(chains);
    }
    return chains->type_count > 0 && !chains->shop->failed;
}
