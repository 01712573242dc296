/*
 * All pipelines of a number of GPUs that may be part of a shorter plan. What has been made of one
 * is dropped where one of these says that it ends too late (f, b, t: forward, backward, hand-over
 * of a micro-batch; n: micro-batches; every order of computations is fixed, so that nothing ends
 * earlier when something takes longer):
 *  - a stage computes n (f + b) after the first micro-batch has come to it and before the last one
 *    has gone from it: in + n (f + b) + out;
 *  - one micro-batch passes everything, and the slowest f, b or t goes by n - 1 more times;
 *  - the layers that are left take the GPUs that are left at least `weight` samples x seconds, each
 *    GPU at its best rate, in the time between in and out;
 *  - stages s to u go round once for each micro-batch, with no more in flight than s can hold:
 *    floor((n - 1) / most(s)) rounds follow each other (see eth_hpp_pipeline_find_pace).
 */
#include <math.h>
#include <stdlib.h>

#include "plan/classes.h"
#include "plan/exact_parts.h"

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static int smaller_int(int a, int b)
{
    return a < b ? a : b;
}

/* What has been made so far takes. */
struct passage {
    double in_s;  /* until the first micro-batch has come to the next stage */
    double out_s; /* from its last gradient to the end */
    double through_s, slowest_s;
    double optimizer_s;
};

/* ---- what is kept ---- */

static struct eth_hpp_exact_list *list_of(const struct eth_hpp_exact *x, int n)
{
    return &x->lists[x->use * (x->global_batch + 1) + n * x->made.micro_batch];
}

/* What the last pipeline takes of those that are kept, INFINITY where there is room for more. */
static double worst_s(const struct eth_hpp_exact *x, int n)
{
    const struct eth_hpp_exact_list *list = list_of(x, n);
    return list->count < ETH_HPP_EXACT_KEPT ? INFINITY
                                            : list->pipelines[ETH_HPP_EXACT_KEPT - 1].least_s;
}

/* Keeps the pipeline at hand if it is among the best of its use and samples. */
static void keep(struct eth_hpp_exact *x)
{
    const struct eth_hpp_exact_pipeline *made = &x->made;
    struct eth_hpp_exact_list *list = list_of(x, made->micro_batches);
    int at = list->count;
    x->cut_short = x->cut_short || at == ETH_HPP_EXACT_KEPT;
    if (at == ETH_HPP_EXACT_KEPT && list->pipelines[--at].least_s <= made->least_s)
        return;
    if (at == list->room) {
        int room =
            2 * list->room + 4 < ETH_HPP_EXACT_KEPT ? 2 * list->room + 4 : ETH_HPP_EXACT_KEPT;
        struct eth_hpp_exact_pipeline *pipelines =
            realloc(list->pipelines, (size_t)room * sizeof(*pipelines));
        if (pipelines == NULL) {
            x->shop->failed = true;
            eth_hpp_error_memory(&x->shop->error, "the solver");
            return;
        }
        list->pipelines = pipelines;
        list->room = room;
    }
    list->count = at + 1;
    for (; at > 0 && list->pipelines[at - 1].least_s > made->least_s; at--)
        list->pipelines[at] = list->pipelines[at - 1];
    list->pipelines[at] = *made;
}

/* No choice of what is in flight ends earlier: the last of the proofs above. */
static double least_rounds_s(const struct eth_hpp_exact *x, double through_s, int n)
{
    double least = 0;
    for (int s = 0; s < x->made.stage_count; s++) {
        double round = 0;
        for (int u = s; u < x->made.stage_count; u++) {
            round += x->runs[u].forward_s + x->runs[u].backward_s;
            if (u > s)
                round += 2 * x->runs[u - 1].transfer_s;
        }
        least = larger(least, through_s + (n - 1) / smaller_int(x->most[s], n) * round);
    }
    return least;
}

/* The pipeline at hand is whole: for all numbers of micro-batches that it is quick enough for. */
static void close_pipeline(struct eth_hpp_exact *x, const struct passage *at)
{
    for (int n = x->least_n; n <= x->most_n && !x->shop->failed; n++) {
        double least_s = least_rounds_s(x, at->through_s, n) + at->optimizer_s;
        if (least_s > x->until_s)
            break;
        if (!x->is_alone && least_s >= worst_s(x, n)) {
            x->cut_short = true;
            continue;
        }
        x->made.micro_batches = n;
        x->made.backward_s = x->runs[0].backward_s;
        x->made.least_s = eth_hpp_exact_settle(x, n) + at->optimizer_s;
        if (x->made.least_s > x->until_s)
            break;
        for (int s = 0; s < x->made.stage_count; s++)
            x->made.stages[s].in_flight = x->runs[s].in_flight;
        if (x->is_alone)
            eth_hpp_exact_try_alone(x);
        else
            keep(x);
    }
}

/* ---- stages ---- */

static void choose_stage(struct eth_hpp_exact *x, const struct passage *before);

static bool is_hopeful(const struct eth_hpp_exact *x, const struct passage *at, double compute_s,
                       int end)
{
    int n = x->least_n;
    double rest_s = x->weights->rest_s[end], until_s = x->until_s - at->optimizer_s;
    if (at->through_s + rest_s + (n - 1) * at->slowest_s > until_s ||
        at->in_s + n * compute_s + at->out_s > until_s)
        return false;
    return true;
}

static bool is_rest_hopeful(const struct eth_hpp_exact *x, const struct passage *at, int end)
{
    double window_s = x->until_s - at->optimizer_s - at->in_s - at->out_s;
    return (double)x->least_n * x->made.micro_batch * x->weights->weight[end] <=
           window_s * x->left_rate * (1 + 1e-9);
}

/* The most owners of a tensor of the stage if the optimizer is sharded: its own workers and all
 * GPUs of other pipelines; or any GPU where the tensor is tied. */
static int most_owners(const struct eth_hpp_exact *x, const struct eth_hpp_layout_stage *stage,
                       bool tied)
{
    if (!x->sharded)
        return 1;
    return tied ? x->gpus : stage->worker_count + (x->is_alone ? 0 : x->gpus - x->use_gpus);
}

/* Seconds for the slowest worker's optimizer, at least. */
static double optimizer_s(const struct eth_hpp_exact *x, const struct eth_hpp_layout_stage *stage)
{
    const struct eth_hpp_cost *cost = x->cost;
    const struct eth_hpp_profile *profile = cost->profile;
    double parameters = 0, slowest = 0;
    for (int k = 0; k < profile->kind_count; k++)
        parameters += eth_hpp_cost_count(cost, k, stage->first_layer, stage->end_layer) *
                      profile->kinds[k].parameters / most_owners(x, stage, false);
    for (int t = 0; t < profile->tied_count; t++)
        if (eth_hpp_cost_holds_tied(cost, t, stage->first_layer, stage->end_layer))
            parameters += profile->tied[t].parameters / most_owners(x, stage, true);
    for (int w = stage->first_worker; w < stage->first_worker + stage->worker_count; w++)
        slowest = larger(slowest, cost->optimizer_s[x->made.workers[w].device]);
    return slowest * parameters / stage->tensor_parallel;
}

/* The most micro-batches that all workers of a stage can hold, up to all there are. */
static int most_in_flight(const struct eth_hpp_exact *x, const struct eth_hpp_layout_stage *stage,
                          int degree)
{
    const struct eth_hpp_cost *cost = x->cost;
    struct eth_hpp_stage_memory memory =
        eth_hpp_cost_memory(cost, degree, stage->first_layer, stage->end_layer, stage->recompute);
    double state = memory.state, tied = 0;
    for (int t = 0; t < cost->profile->tied_count; t++)
        if (eth_hpp_cost_holds_tied(cost, t, stage->first_layer, stage->end_layer))
            tied += cost->memory[degree]->tied[t].optimizer_bytes;
    state -= tied * (1 - 1.0 / most_owners(x, stage, true));
    state -= (memory.optimizer - tied) * (1 - 1.0 / most_owners(x, stage, false));
    int most = x->most_n, limit = x->shop->options->max_in_flight;
    most = limit > 0 ? smaller_int(most, limit) : most;
    for (int w = stage->first_worker; w < stage->first_worker + stage->worker_count; w++) {
        const struct eth_hpp_layout_worker *worker = &x->made.workers[w];
        double bytes = cost->cluster->devices[worker->device].memory_bytes -
                       x->shop->options->memory_margin_bytes;
        while (most > 0 && eth_hpp_cost_peak(cost, &memory, state, worker->device, worker->samples,
                                             most) > bytes)
            most--;
    }
    return most;
}

/* Workers of a pool in the stage at hand. */
struct part {
    int pool, workers, samples;
};

struct parts {
    int count, workers, degree;
    struct part list[ETH_HPP_EXACT_GPUS];
};

/* The slowest worker's time for some layers. */
static struct eth_hpp_layer_time time_of(const struct eth_hpp_exact *x, const struct parts *parts,
                                         int first, int end, bool recompute)
{
    struct eth_hpp_layer_time worst = {0, 0};
    for (int p = 0; p < parts->count; p++) {
        const struct part *part = &parts->list[p];
        struct eth_hpp_layer_time time =
            eth_hpp_cost_layers(x->cost, x->pools[part->pool].device, parts->degree, first, end,
                                (part->samples + part->workers - 1) / part->workers, recompute);
        worst.forward_s = larger(worst.forward_s, time.forward_s);
        worst.backward_s = larger(worst.backward_s, time.backward_s);
    }
    return worst;
}

/* The stage at hand with its layers, once without and once with recompute. */
static void close_stage(struct eth_hpp_exact *x, const struct passage *before,
                        const struct parts *parts)
{
    int at = x->made.stage_count, plain = 0;
    struct eth_hpp_layout_stage *stage = &x->made.stages[at];
    struct eth_hpp_layout view = {.stages = x->made.stages, .workers = x->made.workers};
    double transfer_s = at > 0 ? eth_hpp_cost_transfer(x->cost, &view, at - 1) : 0;
    for (int recompute = 0; recompute < (x->shop->options->no_recompute ? 1 : 2); recompute++) {
        struct passage next = *before;
        stage->recompute = recompute > 0;
        int most = most_in_flight(x, stage, parts->degree);
        most = at > 0 ? smaller_int(most, x->most[at - 1]) : most;
        x->shop->work++;
        if (most <= plain) /* what it costs buys nothing */
            continue;
        plain = x->most[at] = most;
        struct eth_hpp_layer_time time =
            time_of(x, parts, stage->first_layer, stage->end_layer, recompute > 0);
        double compute_s = time.forward_s + time.backward_s;
        next.in_s += transfer_s;
        next.out_s += transfer_s;
        next.through_s += compute_s + 2 * transfer_s;
        next.slowest_s =
            larger(next.slowest_s, larger(transfer_s, larger(time.forward_s, time.backward_s)));
        next.optimizer_s = larger(next.optimizer_s, optimizer_s(x, stage));
        if (!is_hopeful(x, &next, compute_s, stage->end_layer))
            continue;
        next.in_s += time.forward_s;
        next.out_s += time.backward_s;
        if (x->left_gpus > 0 && !is_rest_hopeful(x, &next, stage->end_layer))
            continue;
        x->runs[at] =
            (struct eth_hpp_stage_run){.forward_s = time.forward_s, .backward_s = time.backward_s};
        if (at > 0)
            x->runs[at - 1].transfer_s = transfer_s;
        x->made.stage_count++;
        if (x->left_gpus > 0)
            choose_stage(x, &next);
        else
            close_pipeline(x, &next);
        x->made.stage_count--;
    }
}

/* The stage at hand has its workers and their samples: gives it layers, more and more. */
static void choose_layers(struct eth_hpp_exact *x, const struct passage *before,
                          const struct parts *parts)
{
    struct eth_hpp_exact_pipeline *made = &x->made;
    struct eth_hpp_layout_stage *stage = &made->stages[made->stage_count];
    int layers = x->cost->profile->layer_count, first = stage->first_layer;
    stage->first_worker = made->worker_count;
    stage->tensor_parallel = x->cost->degree[parts->degree];
    stage->worker_count = parts->workers;
    for (int p = 0; p < parts->count; p++) {
        const struct part *part = &parts->list[p];
        for (int w = 0; w < part->workers; w++) {
            made->pools[made->worker_count] = part->pool;
            made->workers[made->worker_count++] = (struct eth_hpp_layout_worker){
                x->pools[part->pool].node, x->pools[part->pool].device,
                part->samples / part->workers + (w < part->samples % part->workers)};
        }
    }
    int end = x->left_gpus > 0 ? first + 1 : layers, last = x->left_gpus > 0 ? layers - 1 : layers;
    for (; end <= last && x->shop->work < x->work_end && !x->shop->failed; end++) {
        struct eth_hpp_layer_time time = time_of(x, parts, first, end, false);
        struct passage with = *before;
        with.through_s += time.forward_s + time.backward_s;
        with.slowest_s = larger(with.slowest_s, larger(time.forward_s, time.backward_s));
        if (!is_hopeful(x, &with, time.forward_s + time.backward_s, end))
            break;
        stage->end_layer = end;
        close_stage(x, before, parts);
    }
    made->worker_count -= parts->workers;
}

/* Gives the parts from `part` on their samples. */
static void choose_samples(struct eth_hpp_exact *x, const struct passage *before,
                           struct parts *parts, int at, int left, int later_workers)
{
    struct part *part = &parts->list[at];
    int device = x->pools[part->pool].device;
    int most = part->workers * eth_hpp_cost_most_samples(x->cost, device, parts->degree);
    x->shop->work++;
    later_workers -= part->workers;
    most = smaller_int(most, left - later_workers);
    if (at + 1 == parts->count) {
        part->samples = left;
        if (left <= most)
            choose_layers(x, before, parts);
        return;
    }
    for (part->samples = part->workers; part->samples <= most && x->shop->work < x->work_end;
         part->samples++)
        choose_samples(x, before, parts, at + 1, left - part->samples, later_workers);
}

/* Is the pool like an earlier one that the pipeline has not touched either? */
static bool is_twin(const struct eth_hpp_exact *x, const int *taken, int pool)
{
    for (int q = x->pools[pool].like; q < pool; q++)
        if (x->pools[q].like == x->pools[pool].like && x->left[q] == x->left[pool] &&
            x->left[q] == taken[q] && x->left[pool] == taken[pool])
            return true;
    return false;
}

/* Adds workers of the pools from `pool` on to the stage at hand. */
static void choose_parts(struct eth_hpp_exact *x, const struct passage *before, const int *all,
                         struct parts *parts, int pool)
{
    int degree = x->cost->degree[parts->degree];
    if (parts->count > 0 &&
        (x->left_gpus == 0 ||
         x->made.stages[x->made.stage_count].first_layer + 1 < x->cost->profile->layer_count))
        choose_samples(x, before, parts, 0, x->made.micro_batch, parts->workers);
    for (int p = pool; p < x->pool_count; p++) {
        if (x->left[p] < degree || is_twin(x, all, p) ||
            eth_hpp_cost_most_samples(x->cost, x->pools[p].device, parts->degree) == 0)
            continue;
        int left = x->left[p], left_gpus = x->left_gpus;
        double left_rate = x->left_rate;
        struct part *part = &parts->list[parts->count++];
        for (int w = 1; w * degree <= left && parts->workers + w <= x->made.micro_batch &&
                        x->shop->work < x->work_end;
             w++) {
            *part = (struct part){.pool = p, .workers = w};
            parts->workers += w;
            x->left[p] = left - w * degree;
            x->left_gpus = left_gpus - w * degree;
            x->left_rate = left_rate - w * degree * x->weights->rate[p];
            choose_parts(x, before, all, parts, p + 1);
            parts->workers -= w;
        }
        parts->count--;
        x->left[p] = left;
        x->left_gpus = left_gpus;
        x->left_rate = left_rate;
    }
}

static void choose_stage(struct eth_hpp_exact *x, const struct passage *before)
{
    struct eth_hpp_exact_pipeline *made = &x->made;
    int taken[ETH_HPP_EXACT_GPUS];
    eth_hpp_exact_open_use(x, x->use, taken);
    made->stages[made->stage_count] = (struct eth_hpp_layout_stage){
        .first_layer = made->stage_count > 0 ? made->stages[made->stage_count - 1].end_layer : 0};
    for (int d = 0; d < x->cost->degrees; d++) {
        struct parts parts = {.degree = d};
        if (eth_hpp_classes_may_use(x->shop, d))
            choose_parts(x, before, taken, &parts, 0);
    }
}

/* ---- what any pipeline takes ---- */

/* Seconds per sample of a layer on a GPU of a device, at best, with so many samples at most. */
static double once_s(const struct eth_hpp_exact *x, int device, int kind, int samples)
{
    const struct eth_hpp_cost *cost = x->cost;
    double least = INFINITY;
    for (int d = 0; d < cost->degrees; d++) {
        int most = smaller_int(samples, eth_hpp_cost_most_samples(cost, device, d));
        for (int k = 1; k <= most; k++) {
            struct eth_hpp_layer_time t = eth_hpp_cost_layer(cost, device, d, kind, k);
            least = fmin(least, cost->degree[d] * (t.forward_s + t.backward_s) / k);
        }
    }
    return least;
}

/* A layer's weight is what it takes on the best GPU; a GPU's rate is the most weight that it does
 * in a second of any layer. */
static void weigh(struct eth_hpp_exact *x, int micro_batch)
{
    const struct eth_hpp_profile *profile = x->cost->profile;
    struct eth_hpp_exact_weights *to = &x->weights_of[micro_batch];
    double weight[ETH_HPP_LAYER_KINDS_MAX], rest_s[ETH_HPP_LAYER_KINDS_MAX];
    int share = (micro_batch + x->gpus - 1) / x->gpus, layers = profile->layer_count;
    for (int k = 0; k < profile->kind_count; k++) {
        double once[ETH_HPP_EXACT_GPUS];
        weight[k] = rest_s[k] = INFINITY;
        for (int p = 0; p < x->pool_count; p++) {
            int device = x->pools[p].device;
            once[p] = once_s(x, device, k, micro_batch);
            weight[k] = fmin(weight[k], once[p]);
            for (int d = 0; d < x->cost->degrees; d++)
                if (eth_hpp_cost_most_samples(x->cost, device, d) >= share) {
                    struct eth_hpp_layer_time t = eth_hpp_cost_layer(x->cost, device, d, k, share);
                    rest_s[k] = fmin(rest_s[k], t.forward_s + t.backward_s);
                }
        }
        for (int p = 0; p < x->pool_count; p++)
            to->rate[p] = larger(to->rate[p], weight[k] / once[p]);
    }
    for (int i = layers - 1; i >= 0; i--) {
        to->weight[i] = to->weight[i + 1] + weight[profile->layers[i]];
        to->rest_s[i] = to->rest_s[i + 1] + rest_s[profile->layers[i]];
    }
}

bool eth_hpp_exact_weigh(struct eth_hpp_exact *x)
{
    size_t layers = (size_t)x->cost->profile->layer_count + 1;
    for (int d = 0; d < x->cost->cluster->device_count; d++)
        for (int i = 0; i < x->cost->degrees; i++) {
            int most = x->gpus * eth_hpp_cost_most_samples(x->cost, d, i);
            x->sizes = most > x->sizes ? most : x->sizes;
        }
    x->sizes = smaller_int(x->sizes, x->global_batch);
    x->weights_of = calloc((size_t)x->sizes + 1, sizeof(*x->weights_of));
    x->sums = calloc(2 * layers * ((size_t)x->sizes + 1), sizeof(*x->sums));
    for (int m = 1; x->weights_of != NULL && x->sums != NULL && m <= x->sizes; m++) {
        x->weights_of[m].weight = x->sums + 2 * layers * (size_t)m;
        x->weights_of[m].rest_s = x->weights_of[m].weight + layers;
        weigh(x, m);
    }
    return x->weights_of != NULL && x->sums != NULL;
}

void eth_hpp_exact_find(struct eth_hpp_exact *x, int use, int micro_batch, int least_n, int most_n,
                        double tail_s)
{
    const struct passage nothing = {.optimizer_s = x->optimizer_s};
    x->made.micro_batch = micro_batch;
    x->weights = &x->weights_of[micro_batch];
    x->made.stage_count = x->made.worker_count = 0;
    x->use = use;
    x->least_n = least_n;
    x->most_n = most_n;
    x->is_alone = least_n * micro_batch == x->global_batch;
    x->until_s = x->limit_s - tail_s;
    eth_hpp_exact_open_use(x, use, x->left);
    x->left_gpus = 0;
    x->left_rate = 0;
    for (int p = 0; p < x->pool_count; p++) {
        x->left_gpus += x->left[p];
        x->left_rate += x->left[p] * x->weights->rate[p];
    }
    x->use_gpus = x->left_gpus;
    choose_stage(x, &nothing);
}
