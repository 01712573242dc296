#include "plan/bound_stages.h"

#include <stdlib.h>

/* Samples are looked at one by one up to SINGLE_SAMPLES where layers are few, otherwise in the
 * ranges between profiled points. */
enum { FEW_LAYERS = 34, SINGLE_SAMPLES = 8 };

/* GPUs of a kind, and the most on one node. */
static int count_gpus(const struct eth_hpp_cluster *cluster, int device, int *most)
{
    int gpus = 0;
    *most = 0;
    for (int n = 0; n < cluster->node_count; n++) {
        int here = 0;
        for (int g = 0; g < cluster->nodes[n].gpus; g++)
            here += cluster->nodes[n].devices[g] == device;
        gpus += here;
        *most = here > *most ? here : *most;
    }
    return gpus;
}

/* Times between profiled points are linear, so that the extremes of a range are at its ends. */
static struct eth_hpp_bound_setting make_setting(const struct eth_hpp_bound_room *b, int device,
                                                 struct eth_hpp_bound_setting s)
{
    for (int k = 0; k < b->kinds; k++) {
        struct eth_hpp_layer_time low =
            eth_hpp_cost_layer(b->cost, device, s.degree, k, s.least_samples);
        struct eth_hpp_layer_time high =
            eth_hpp_cost_layer(b->cost, device, s.degree, k, s.most_samples);
        low.backward_s += s.recompute ? low.forward_s : 0;
        high.backward_s += s.recompute ? high.forward_s : 0;
        s.forward_s[k] = eth_hpp_bound_smaller(low.forward_s, high.forward_s);
        s.backward_s[k] = eth_hpp_bound_smaller(low.backward_s, high.backward_s);
        s.most_s[k] =
            eth_hpp_bound_larger(low.forward_s + low.backward_s, high.forward_s + high.backward_s);
        s.once_s[k] = eth_hpp_bound_smaller((low.forward_s + low.backward_s) / s.least_samples,
                                            (high.forward_s + high.backward_s) / s.most_samples);
    }
    return s;
}

/* The settings of a device, appended to the list if there is one; returns how many. The largest
 * numbers of samples, which are the fastest as a rule, come first. */
static int list_settings(const struct eth_hpp_bound_room *b, int device, int most_per_node,
                         struct eth_hpp_bound_setting *settings)
{
    const struct eth_hpp_cost *cost = b->cost;
    int count = 0, single = cost->profile->layer_count <= FEW_LAYERS ? SINGLE_SAMPLES : 0;
    for (int i = 0; i < 2 * cost->degrees; i++) {
        int d = i % cost->degrees;
        const struct eth_hpp_times *times = cost->times[device * cost->degrees + d];
        if (times == NULL || cost->degree[d] > most_per_node)
            continue;
        for (int p = times->points - 1; p >= 0; p--) {
            int first = p > 0 ? times->samples[p - 1] + 1 : 1, least;
            for (int most = times->samples[p]; most >= first; most = least - 1, count++) {
                least = p > 0 && times->samples[p] <= single ? most : first;
                if (settings != NULL)
                    settings[count] =
                        make_setting(b, device,
                                     (struct eth_hpp_bound_setting){.degree = d,
                                                                    .recompute = i >= cost->degrees,
                                                                    .least_samples = least,
                                                                    .most_samples = most});
            }
        }
    }
    return count;
}

static bool find_devices(struct eth_hpp_bound_room *b)
{
    const struct eth_hpp_cluster *cluster = b->cost->cluster;
    size_t devices = (size_t)cluster->device_count;
    int count = 0, most;
    b->device = calloc(devices + 1, sizeof(*b->device));
    b->gpus = calloc(devices + 1, sizeof(*b->gpus));
    b->first_setting = calloc(devices + 2, sizeof(*b->first_setting));
    if (b->device == NULL || b->gpus == NULL || b->first_setting == NULL)
        return false;
    for (int d = 0; d < cluster->device_count; d++) {
        int gpus = count_gpus(cluster, d, &most), settings = list_settings(b, d, most, NULL);
        if (gpus == 0 || settings == 0)
            continue;
        b->device[b->devices] = d;
        b->gpus[b->devices++] = gpus;
        count += settings;
        b->first_setting[b->devices] = count;
    }
    b->settings = calloc((size_t)count + 1, sizeof(*b->settings));
    for (int i = 0; i < b->devices && b->settings != NULL; i++) {
        count_gpus(cluster, b->device[i], &most);
        list_settings(b, b->device[i], most, b->settings + b->first_setting[i]);
    }
    return b->settings != NULL;
}

/* The least of forward + backward of a layer, whoever runs it. */
static double least_layer_s(const struct eth_hpp_bound_room *b, int kind)
{
    double least = INFINITY;
    for (int i = 0; i < b->first_setting[b->devices]; i++)
        least = eth_hpp_bound_smaller(least, b->settings[i].forward_s[kind] +
                                                 b->settings[i].backward_s[kind]);
    return least;
}

/* The least that one worker takes for a sample of a layer. */
static double least_sample_s(const struct eth_hpp_bound_room *b, int kind)
{
    double least = INFINITY;
    for (int i = 0; i < b->first_setting[b->devices]; i++)
        least = eth_hpp_bound_smaller(least, b->settings[i].once_s[kind]);
    return least;
}

/* The best bandwidths and latencies anywhere. */
struct links {
    double pair, ring, latency_s; /* of a hand-over; of a sum, its tensor-parallel rings together */
};

static struct links find_links(const struct eth_hpp_bound_room *b)
{
    const struct eth_hpp_cluster *cluster = b->cost->cluster;
    struct links best = {0, 0, INFINITY};
    for (int n = 0; n < cluster->node_count; n++) {
        const struct eth_hpp_node *node = &cluster->nodes[n];
        int degree = 1;
        for (int d = 0; d < b->cost->degrees; d++)
            if (2 * b->cost->degree[d] <= node->gpus)
                degree = b->cost->degree[d];
        if (node->gpus > 1) {
            best.pair = eth_hpp_bound_larger(best.pair, node->intra_bandwidth);
            best.ring = eth_hpp_bound_larger(best.ring, degree * node->intra_bandwidth);
            best.latency_s = eth_hpp_bound_smaller(best.latency_s, node->intra_latency_s);
        }
        if (cluster->node_count > 1) {
            best.pair = eth_hpp_bound_larger(best.pair, node->inter_bandwidth);
            best.ring = eth_hpp_bound_larger(best.ring, node->inter_bandwidth);
            best.latency_s = eth_hpp_bound_smaller(best.latency_s, node->inter_latency_s);
        }
    }
    return best;
}

static void find_tail(struct eth_hpp_bound_room *b, const struct links *links)
{
    const struct eth_hpp_profile *profile = b->cost->profile;
    double parameters = 0, speed = 0;
    int first = profile->layers[0];
    for (int l = 0; l < profile->layer_count; l++)
        parameters += profile->kinds[profile->layers[l]].parameters;
    for (int t = 0; t < profile->tied_count; t++)
        parameters += profile->tied[t].parameters;
    for (int i = 0; i < b->devices; i++)
        speed += b->gpus[i] / b->cost->optimizer_s[b->device[i]];
    b->optimizer_s = parameters / speed; /* 0 where a device needs no time */
    if (links->ring <= 0)
        return; /* a GPU alone */
    b->sum_s = profile->kinds[first].gradient_bytes / links->ring + 2 * links->latency_s;
    b->alone_s = b->global_batch * least_sample_s(b, first);
    b->tied_alone_s = INFINITY;
    for (int t = 0; t < profile->tied_count; t++) {
        double alone = 0, below = 0;
        if (!(profile->tied[t].kinds >> first & 1))
            continue;
        for (int l = 0; l < profile->layer_count; l++) { /* its layers and all between */
            below += b->global_batch * least_sample_s(b, profile->layers[l]);
            if (profile->tied[t].kinds >> profile->layers[l] & 1)
                alone = below;
        }
        b->tied_sum_s += profile->tied[t].gradient_bytes / links->ring + 2 * links->latency_s;
        b->tied_alone_s = eth_hpp_bound_smaller(b->tied_alone_s, alone);
    }
}

static bool make_rows(struct eth_hpp_bound_room *b)
{
    int layers = b->cost->profile->layer_count;
    b->cells = layers < ETH_HPP_BOUND_CELLS ? layers : ETH_HPP_BOUND_CELLS;
    b->row = calloc((size_t)(b->cells * b->kinds) + 1, sizeof(*b->row));
    if (b->row == NULL)
        return false;
    for (int c = 0; c <= b->cells; c++)
        b->first_layer[c] = (int)((int64_t)layers * c / b->cells);
    for (int c = 0; c < b->cells; c++) {
        b->row_of[c] = b->rows;
        for (int k = 0; k < b->kinds; k++) {
            int count = eth_hpp_cost_count(b->cost, k, b->first_layer[c], b->first_layer[c + 1]);
            if (count > 0)
                b->row[b->rows++] = (struct row){c, k, count};
        }
    }
    b->row_of[b->cells] = b->rows;
    return true;
}

static void find_passages(struct eth_hpp_bound_room *b, const struct links *links)
{
    const struct eth_hpp_profile *profile = b->cost->profile;
    double least[ETH_HPP_LAYER_KINDS_MAX], bytes = INFINITY, below = 0, whole = 0, cut = 0;
    for (int k = 0; k < b->kinds; k++)
        least[k] = least_layer_s(b, k);
    for (int l = 0; l < profile->layer_count; l++) {
        whole += least[profile->layers[l]];
        if (l + 1 < profile->layer_count)
            bytes = eth_hpp_bound_smaller(bytes, profile->kinds[profile->layers[l]].output_bytes);
    }
    if (links->pair > 0 && b->cells > 1)
        cut = 2 * (bytes / links->pair + links->latency_s);
    for (int c = 0; c < b->cells; c++) {
        double inside = 0;
        for (int l = b->first_layer[c]; l < b->first_layer[c + 1]; l++)
            inside += least[profile->layers[l]];
        b->before_s[c] = c > 0 ? below + cut : 0;
        below += inside;
        b->behind_s[c] = c + 1 < b->cells ? eth_hpp_bound_larger(whole - below, 0) + cut : 0;
    }
}

static bool find_holdings(struct eth_hpp_bound_room *b)
{
    size_t count = (size_t)(b->cost->degrees * 2 * b->cells * b->cells);
    b->holding = calloc(count, sizeof(*b->holding));
    for (int d = 0; d < b->cost->degrees && b->holding != NULL; d++)
        for (int recompute = 0; recompute < 2; recompute++)
            for (int first = 0; first < b->cells; first++)
                for (int last = first; last < b->cells; last++) {
                    int from, end;
                    eth_hpp_bound_inner(b, first, last, &from, &end);
                    if (from >= end)
                        continue;
                    struct eth_hpp_stage_memory m = eth_hpp_cost_memory(
                        b->cost, d, b->first_layer[from], b->first_layer[end], recompute > 0);
                    *eth_hpp_bound_holding(b, d, recompute, first, last) = (struct holding){
                        m.state - m.optimizer * (1 - 1.0 / b->cost->cluster->gpu_count), m.kept,
                        m.layer + m.workspace};
                }
    return b->holding != NULL;
}

static void add_sums(const struct eth_hpp_bound_room *b, const struct eth_hpp_bound_setting *s,
                     struct sums *sums)
{
    sums[0] = (struct sums){0, 0, 0};
    for (int c = 0; c < b->cells; c++) {
        sums[c + 1] = sums[c];
        for (int r = b->row_of[c]; r < b->row_of[c + 1]; r++) {
            int k = b->row[r].kind, layers = b->row[r].layers;
            sums[c + 1].forward_s += layers * s->forward_s[k];
            sums[c + 1].backward_s += layers * s->backward_s[k];
            sums[c + 1].most_s += layers * s->most_s[k];
        }
    }
}

/* What stages of a setting can be at all, whatever the step. */
static bool find_reaches(struct eth_hpp_bound_room *b)
{
    size_t settings = (size_t)b->first_setting[b->devices], cells = (size_t)b->cells;
    b->sums = calloc(settings * (cells + 1), sizeof(*b->sums));
    b->reach = calloc(settings * cells, sizeof(*b->reach));
    if (b->sums == NULL || b->reach == NULL)
        return false;
    for (int i = 0; i < b->devices; i++)
        for (int j = b->first_setting[i]; j < b->first_setting[i + 1]; j++) {
            const struct eth_hpp_bound_setting *s = &b->settings[j];
            struct sums *sums = &b->sums[j * (b->cells + 1)];
            add_sums(b, s, sums);
            for (int first = 0; first < b->cells; first++) {
                struct reach *reach = &b->reach[j * b->cells + first];
                const struct holding *h =
                    eth_hpp_bound_holding(b, s->degree, s->recompute, first, first);
                for (reach->end = first; reach->end < b->cells; reach->end++, h++) {
                    int last = reach->end;
                    double in_flight =
                        eth_hpp_bound_in_flight(&b->cost->cluster->devices[b->device[i]], s, h);
                    if (in_flight < 1)
                        break;
                    reach->use = eth_hpp_bound_larger(
                        reach->use,
                        eth_hpp_bound_use(b, in_flight, sums[last + 1].most_s - sums[first].most_s,
                                          last));
                }
                reach->use = eth_hpp_bound_smaller(reach->use, 1);
            }
        }
    return true;
}

bool eth_hpp_bound_open(struct eth_hpp_bound_room *b)
{
    b->kinds = b->cost->profile->kind_count;
    if (!find_devices(b) || b->devices == 0 || !make_rows(b))
        return false;
    struct links links = find_links(b);
    find_tail(b, &links);
    find_passages(b, &links);
    return find_holdings(b) && find_reaches(b);
}

void eth_hpp_bound_close(struct eth_hpp_bound_room *b)
{
    free(b->device);
    free(b->gpus);
    free(b->first_setting);
    free(b->settings);
    free(b->row);
    free(b->holding);
    free(b->sums);
    free(b->reach);
}
