#include "plan/cost.h"

#include <stdlib.h>
#include <string.h>

#include "plan/link_classes.h"

void eth_hpp_cost_free(struct eth_hpp_cost *cost)
{
    free(cost->kinds_below);
    free(cost->degree);
    free(cost->times);
    free(cost->memory);
    free(cost->optimizer_s);
    free(cost->class_of);
    free(cost->link_of);
    free(cost->leaving);
    free(cost->entering);
    free(cost->ways);
    *cost = (struct eth_hpp_cost){0};
}

/* ---- indexing ---- */

static void index_layers(struct eth_hpp_cost *cost)
{
    int kinds = cost->profile->kind_count;
    for (int i = 0; i < cost->profile->layer_count; i++) {
        int *row = cost->kinds_below + i * kinds;
        memcpy(row + kinds, row, (size_t)kinds * sizeof(*row));
        row[kinds + cost->profile->layers[i]]++;
    }
}

static int compare_ints(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static void index_degrees(struct eth_hpp_cost *cost)
{
    const struct eth_hpp_profile *profile = cost->profile;
    const struct eth_hpp_cluster *cluster = cost->cluster;
    cost->degrees = profile->memory_count;
    for (int d = 0; d < cost->degrees; d++)
        cost->degree[d] = profile->memory[d].tensor_parallel;
    qsort(cost->degree, (size_t)cost->degrees, sizeof(*cost->degree), compare_ints);
    for (int d = 0; d < cost->degrees; d++) {
        cost->memory[d] = eth_hpp_profile_find_memory(profile, cost->degree[d]);
        for (int i = 0; i < cluster->device_count; i++)
            cost->times[i * cost->degrees + d] =
                eth_hpp_profile_find_times(profile, cluster->devices[i].name, cost->degree[d]);
    }
    for (int i = 0; i < cluster->device_count; i++)
        cost->optimizer_s[i] = eth_hpp_profile_optimizer_s(profile, cluster->devices[i].name);
}

enum eth_hpp_status eth_hpp_cost_init(struct eth_hpp_cost *cost,
                                      const struct eth_hpp_cluster *cluster,
                                      const struct eth_hpp_profile *profile,
                                      struct eth_hpp_error *err)
{
    size_t layers = (size_t)profile->layer_count, kinds = (size_t)profile->kind_count;
    size_t devices = (size_t)cluster->device_count, degrees = (size_t)profile->memory_count;
    struct eth_hpp_cost made = {.cluster = cluster, .profile = profile};
    enum eth_hpp_status status = ETH_HPP_OK;
    made.kinds_below = calloc((layers + 1) * kinds, sizeof(*made.kinds_below));
    made.degree = calloc(degrees, sizeof(*made.degree));
    made.times = calloc(devices * degrees, sizeof(*made.times));
    made.memory = calloc(degrees, sizeof(*made.memory));
    made.optimizer_s = calloc(devices, sizeof(*made.optimizer_s));
    made.leaving = calloc((size_t)cluster->node_count, sizeof(*made.leaving));
    made.entering = calloc((size_t)cluster->node_count, sizeof(*made.entering));
    made.ways = calloc(2 * (size_t)cluster->gpu_count, sizeof(*made.ways));
    if (made.leaving == NULL || made.entering == NULL || made.ways == NULL ||
        made.kinds_below == NULL || made.degree == NULL || made.times == NULL ||
        made.memory == NULL || made.optimizer_s == NULL)
        status = eth_hpp_error_memory(err, "the cost model");
    else if (cluster->link_count > 0)
        status = eth_hpp_link_classes_make(cluster, &made.class_of, &made.link_of,
                                           &made.class_count, err);
    if (status != ETH_HPP_OK) {
        eth_hpp_cost_free(&made);
        return status;
    }
    index_layers(&made);
    index_degrees(&made);
    *cost = made;
    return ETH_HPP_OK;
}

int eth_hpp_cost_degree(const struct eth_hpp_cost *cost, int tensor_parallel)
{
    for (int d = 0; d < cost->degrees; d++)
        if (cost->degree[d] == tensor_parallel)
            return d;
    return -1;
}

int eth_hpp_cost_most_samples(const struct eth_hpp_cost *cost, int device, int degree)
{
    const struct eth_hpp_times *times = cost->times[device * cost->degrees + degree];
    return times != NULL ? times->samples[times->points - 1] : 0;
}

int eth_hpp_cost_count(const struct eth_hpp_cost *cost, int kind, int first, int end)
{
    int kinds = cost->profile->kind_count;
    return cost->kinds_below[end * kinds + kind] - cost->kinds_below[first * kinds + kind];
}

bool eth_hpp_cost_holds_tied(const struct eth_hpp_cost *cost, int tied, int first, int end)
{
    for (int k = 0; k < cost->profile->kind_count; k++)
        if ((cost->profile->tied[tied].kinds >> k & 1) &&
            eth_hpp_cost_count(cost, k, first, end) > 0)
            return true;
    return false;
}

/* ---- computation ---- */

/* The points around a number of samples and where it stands between them. */
static inline int find_point(const struct eth_hpp_times *times, int samples, double *share)
{
    int i = 1;
    *share = 0;
    if (samples <= times->samples[0] || times->points == 1)
        return 0;
    while (i + 1 < times->points && times->samples[i] < samples)
        i++;
    *share =
        (double)(samples - times->samples[i - 1]) / (times->samples[i] - times->samples[i - 1]);
    return i - 1;
}

static inline struct eth_hpp_layer_time at_point(const struct eth_hpp_times *times, int kinds,
                                                 int kind, int point, double share)
{
    struct eth_hpp_layer_time low = times->times[point * kinds + kind], high;
    if (share == 0)
        return low;
    high = times->times[(point + 1) * kinds + kind];
    low.forward_s += share * (high.forward_s - low.forward_s);
    low.backward_s += share * (high.backward_s - low.backward_s);
    return low;
}

struct eth_hpp_layer_time eth_hpp_cost_layer(const struct eth_hpp_cost *cost, int device,
                                             int degree, int kind, int samples)
{
    const struct eth_hpp_times *times = cost->times[device * cost->degrees + degree];
    double share;
    int point = find_point(times, samples, &share);
    return at_point(times, cost->profile->kind_count, kind, point, share);
}

struct eth_hpp_layer_time eth_hpp_cost_layers(const struct eth_hpp_cost *cost, int device,
                                              int degree, int first, int end, int samples,
                                              bool recompute)
{
    const struct eth_hpp_times *times = cost->times[device * cost->degrees + degree];
    struct eth_hpp_layer_time sum = {0, 0};
    double share;
    int point = find_point(times, samples, &share), kinds = cost->profile->kind_count;
    for (int k = 0; k < kinds; k++) {
        int count = eth_hpp_cost_count(cost, k, first, end);
        if (count == 0)
            continue;
        struct eth_hpp_layer_time one = at_point(times, kinds, k, point, share);
        sum.forward_s += count * one.forward_s;
        sum.backward_s += count * one.backward_s;
    }
    if (recompute)
        sum.backward_s += sum.forward_s;
    return sum;
}

struct eth_hpp_layer_time eth_hpp_cost_stage(const struct eth_hpp_cost *cost,
                                             const struct eth_hpp_layout *layout, int stage,
                                             int *slowest)
{
    const struct eth_hpp_layout_stage *st = &layout->stages[stage];
    const struct eth_hpp_layout_worker *workers = layout->workers + st->first_worker;
    int degree = eth_hpp_cost_degree(cost, st->tensor_parallel);
    struct eth_hpp_layer_time worst = {0, 0}, time = {0, 0};
    for (int w = 0; w < st->worker_count; w++) {
        bool repeats = w > 0 && workers[w].device == workers[w - 1].device &&
                       workers[w].samples == workers[w - 1].samples;
        if (!repeats)
            time = eth_hpp_cost_layers(cost, workers[w].device, degree, st->first_layer,
                                       st->end_layer, workers[w].samples, st->recompute);
        if (time.forward_s > worst.forward_s)
            worst.forward_s = time.forward_s;
        if (time.backward_s >= worst.backward_s) {
            worst.backward_s = time.backward_s;
            if (slowest != NULL)
                *slowest = st->first_worker + w;
        }
    }
    return worst;
}

/* ---- memory ---- */

static double larger(double a, double b)
{
    return a > b ? a : b;
}

struct eth_hpp_stage_memory eth_hpp_cost_memory(const struct eth_hpp_cost *cost, int degree,
                                                int first, int end, bool recompute)
{
    const struct eth_hpp_profile *profile = cost->profile;
    const struct eth_hpp_profile_memory *memory = cost->memory[degree];
    struct eth_hpp_stage_memory sum = {0};
    for (int k = 0; k < profile->kind_count; k++) {
        int count = eth_hpp_cost_count(cost, k, first, end);
        if (count == 0)
            continue;
        const struct eth_hpp_layer_memory *layer = &memory->kinds[k];
        sum.state += count * layer->state_bytes;
        sum.optimizer += count * layer->optimizer_bytes;
        sum.workspace = larger(sum.workspace, layer->workspace_bytes);
        if (recompute)
            sum.layer = larger(sum.layer, layer->saved_bytes);
        else
            sum.kept += count * layer->saved_bytes;
    }
    for (int t = 0; t < profile->tied_count; t++)
        if (eth_hpp_cost_holds_tied(cost, t, first, end)) {
            sum.state += memory->tied[t].state_bytes;
            sum.optimizer += memory->tied[t].optimizer_bytes;
        }
    if (recompute) /* a layer keeps its input: the output of the layer before */
        for (int k = 0; k < profile->kind_count; k++)
            sum.kept += eth_hpp_cost_count(cost, k, first > 0 ? first - 1 : 0, end - 1) *
                        profile->kinds[k].output_bytes;
    return sum;
}

double eth_hpp_cost_peak(const struct eth_hpp_cost *cost, const struct eth_hpp_stage_memory *memory,
                         double state, int device, int samples, int live)
{
    return cost->cluster->devices[device].reserved_bytes + state +
           samples * (live * memory->kept + memory->layer + memory->workspace);
}
