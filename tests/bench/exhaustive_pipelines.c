/* All pipelines of a number of GPUs that may be part of a shorter plan. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/exhaustive.h"

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static int smaller_int(int a, int b)
{
    return a < b ? a : b;
}

/* What a stage takes, as far as it has been made. */
struct passage {
    double forward_s, backward_s; /* of its slowest workers */
    double in_s;                  /* first micro-batch's arrival */
    double out_s;                 /* from its backward to the pipeline's end */
    double least_s;               /* what the stages before say of the whole */
    double through_s, slowest_s;  /* all stages so far */
    double optimizer_s;
};

/* Seconds that the layers from `first` on take at least for one micro-batch. */
static double least_rest_s(const struct exhaustive *x, int first)
{
    const struct eth_hpp_cost *cost = x->cost;
    double sum = 0;
    for (int k = 0; k < cost->profile->kind_count; k++) {
        int count = eth_hpp_cost_count(cost, k, first, cost->profile->layer_count);
        double least = INFINITY;
        for (int p = 0; p < x->pool_count && count > 0; p++)
            for (int d = 0; d < cost->degrees; d++)
                if (eth_hpp_cost_most_samples(cost, x->pools[p].device, d) > 0) {
                    struct eth_hpp_layer_time t =
                        eth_hpp_cost_layer(cost, x->pools[p].device, d, k, 1);
                    least = fmin(least, t.forward_s + t.backward_s);
                }
        sum += count > 0 ? count * least : 0;
    }
    return sum;
}

static double optimizer_s(const struct exhaustive *x, const struct exhaustive_stage *stage)
{
    const struct eth_hpp_cost *cost = x->cost;
    const struct eth_hpp_profile *profile = cost->profile;
    double parameters = 0, slowest = 0;
    for (int k = 0; k < profile->kind_count; k++)
        parameters += eth_hpp_cost_count(cost, k, stage->first_layer, stage->end_layer) *
                      profile->kinds[k].parameters;
    for (int t = 0; t < profile->tied_count; t++)
        if (eth_hpp_cost_holds_tied(cost, t, stage->first_layer, stage->end_layer))
            parameters += profile->tied[t].parameters;
    for (int w = 0; w < stage->worker_count; w++)
        slowest = larger(slowest, cost->optimizer_s[x->pools[stage->workers[w].pool].device] *
                                      parameters / cost->degree[stage->degree] /
                                      (x->sharded ? x->gpus : 1));
    return slowest;
}

/* The most micro-batches that all workers can keep; 0 where not even one fits. A sharded optimizer
 * is divided by as many owners as there can be. */
static int most_in_flight(const struct exhaustive *x, const struct exhaustive_stage *stage,
                          bool recompute)
{
    const struct eth_hpp_cost *cost = x->cost;
    struct eth_hpp_stage_memory memory =
        eth_hpp_cost_memory(cost, stage->degree, stage->first_layer, stage->end_layer, recompute);
    double state = memory.state - (x->sharded ? memory.optimizer * (1 - 1.0 / x->gpus) : 0);
    int most = x->made.micro_batches;
    for (int w = 0; w < stage->worker_count; w++) {
        int device = x->pools[stage->workers[w].pool].device;
        while (most > 0 &&
               eth_hpp_cost_peak(cost, &memory, state, device, stage->workers[w].samples, most) >
                   cost->cluster->devices[device].memory_bytes)
            most--;
    }
    return most;
}

static bool one_kind(const struct exhaustive *x, const struct exhaustive_stage *stage)
{
    for (int w = 1; w < stage->worker_count; w++)
        if (x->pools[stage->workers[w].pool].device != x->pools[stage->workers[0].pool].device)
            return false;
    return true;
}

/* ---- micro-batches in flight ---- */

static bool no_worse(const struct exhaustive *x, const struct exhaustive_pipeline *a,
                     const struct exhaustive_pipeline *b)
{
    for (int s = 0; s < a->stage_count; s++)
        if (a->start_s[s] > b->start_s[s] || a->end_s[s] > b->end_s[s] ||
            (x->sharded && a->stages[s].in_flight > b->stages[s].in_flight))
            return false;
    return true;
}

/* Keeps the pipeline at hand unless another of the same stages, kept since `first`, is no worse. */
static void keep(struct exhaustive *x, int first)
{
    struct exhaustive_list *to = x->to;
    int kept = first;
    for (int i = first; i < to->count; i++)
        if (no_worse(x, &to->pipelines[i], &x->made))
            return;
    for (int i = first; i < to->count; i++)
        if (!no_worse(x, &x->made, &to->pipelines[i]))
            to->pipelines[kept++] = to->pipelines[i];
    to->count = kept;
    if (to->count == to->room) {
        int room = 2 * to->room + 16;
        struct exhaustive_pipeline *list = realloc(to->pipelines, (size_t)room * sizeof(*list));
        if (list == NULL) {
            x->failed = true;
            return;
        }
        to->pipelines = list;
        to->room = room;
    }
    to->pipelines[to->count++] = x->made;
}

static void run(struct exhaustive *x, struct eth_hpp_stage_run *runs, double optimizer, int first)
{
    struct exhaustive_pipeline *made = &x->made;
    int n = made->micro_batches;
    double end = 0;
    for (int s = 0; s < made->stage_count; s++)
        runs[s].in_flight = made->stages[s].in_flight;
    if (eth_hpp_pipeline_find_pace(runs, made->stage_count, n).least_s + optimizer > x->limit_s)
        return;
    x->run++;
    if (eth_hpp_pipeline_run(runs, made->stage_count, n, false, &x->evaluator.pipeline, &end,
                             NULL) != ETH_HPP_OK) {
        x->failed = true;
        return;
    }
    made->least_s = end + optimizer;
    if (made->least_s > x->limit_s)
        return;
    x->found = true;
    for (int s = 0; s < made->stage_count; s++) {
        made->start_s[s] = runs[s].last_start_s;
        made->end_s[s] = runs[s].last_end_s;
    }
    if (x->to != NULL)
        keep(x, first);
}

static void choose_in_flight(struct exhaustive *x, int stage, struct eth_hpp_stage_run *runs,
                             double optimizer, int first)
{
    struct exhaustive_stage *stages = x->made.stages;
    if (stage == x->made.stage_count) {
        run(x, runs, optimizer, first);
        return;
    }
    int most = stages[stage].most_in_flight;
    most = stage > 0 ? smaller_int(most, stages[stage - 1].in_flight) : most;
    for (int i = stages[stage].least_in_flight;
         i <= most && !x->failed && !(x->found && x->to == NULL); i++) {
        stages[stage].in_flight = i;
        choose_in_flight(x, stage + 1, runs, optimizer, first);
    }
}

static void close_pipeline(struct exhaustive *x, double optimizer)
{
    struct eth_hpp_stage_run runs[EXHAUSTIVE_GPUS] = {0};
    x->layout.pipeline_count = x->layout.stage_count = x->layout.worker_count = 0;
    if (!exhaustive_lay(x, &x->made)) {
        x->failed = true;
        return;
    }
    for (int s = 0; s < x->made.stage_count; s++) {
        struct eth_hpp_layer_time t = eth_hpp_cost_stage(x->cost, &x->layout, s, &runs[s].slowest);
        runs[s].forward_s = t.forward_s;
        runs[s].backward_s = t.backward_s;
        if (s + 1 < x->made.stage_count)
            runs[s].transfer_s = eth_hpp_cost_transfer(x->cost, &x->layout, s);
    }
    choose_in_flight(x, 0, runs, optimizer, x->to != NULL ? x->to->count : 0);
}

/* ---- stages ---- */

static void choose_stage(struct exhaustive *x, const struct passage *before);

/* What the pipeline takes at least with this stage, whatever follows. */
static double least_s(const struct exhaustive *x, const struct passage *at, double rest_s)
{
    int n = x->made.micro_batches;
    double through = at->through_s + at->forward_s + at->backward_s + rest_s;
    double slowest = larger(at->slowest_s, larger(at->forward_s, at->backward_s));
    double least = larger(at->least_s, through + (n - 1) * slowest);
    return larger(least, at->in_s + n * (at->forward_s + at->backward_s) + at->out_s);
}

/* The stage at hand has all its workers. */
static void close_stage(struct exhaustive *x, const struct passage *at)
{
    struct exhaustive_pipeline *made = &x->made;
    struct exhaustive_stage *stage = &made->stages[made->stage_count];
    int plain = most_in_flight(x, stage, false), again = most_in_flight(x, stage, true);
    bool last = stage->end_layer == x->cost->profile->layer_count;
    for (int recompute = 0; recompute < 2; recompute++) {
        struct passage next = *at;
        stage->recompute = recompute > 0;
        stage->least_in_flight = recompute > 0 && one_kind(x, stage) ? plain + 1 : 1;
        stage->most_in_flight = recompute > 0 ? again : plain;
        if (stage->most_in_flight < stage->least_in_flight)
            continue;
        next.backward_s += recompute > 0 ? next.forward_s : 0;
        if (recompute > 0 && !one_kind(x, stage))
            next.backward_s = at->backward_s; /* whose backward is slowest may change: at least */
        next.optimizer_s = larger(at->optimizer_s, optimizer_s(x, stage));
        next.least_s = least_s(x, &next, least_rest_s(x, stage->end_layer));
        if (next.least_s + next.optimizer_s > x->limit_s)
            continue;
        next.slowest_s = larger(next.slowest_s, larger(next.forward_s, next.backward_s));
        next.through_s += next.forward_s + next.backward_s;
        next.in_s += next.forward_s;
        next.out_s += next.backward_s;
        made->stage_count++;
        if (!last)
            choose_stage(x, &next);
        else if (x->left_gpus == 0)
            close_pipeline(x, next.optimizer_s);
        made->stage_count--;
    }
}

/* Adds workers until the stage's samples are the micro-batch. */
static void choose_workers(struct exhaustive *x, const struct passage *at, int samples)
{
    const struct eth_hpp_cost *cost = x->cost;
    struct exhaustive_stage *stage = &x->made.stages[x->made.stage_count];
    int wanted = x->made.micro_batch, degree = cost->degree[stage->degree];
    double rest_s = least_rest_s(x, stage->end_layer);
    if (samples == wanted) {
        close_stage(x, at);
        return;
    }
    for (int p = 0; p < x->pool_count; p++) {
        int device = x->pools[p].device;
        int most =
            smaller_int(wanted - samples, eth_hpp_cost_most_samples(cost, device, stage->degree));
        if (x->left[p] < degree || degree > x->pools[p].gpus)
            continue;
        for (int k = 1; k <= most && !x->failed && !(x->found && x->to == NULL); k++) {
            struct passage next = *at;
            struct eth_hpp_layer_time t = eth_hpp_cost_layers(
                cost, device, stage->degree, stage->first_layer, stage->end_layer, k, false);
            next.forward_s = larger(next.forward_s, t.forward_s);
            next.backward_s = larger(next.backward_s, t.backward_s);
            if (least_s(x, &next, rest_s) + next.optimizer_s > x->limit_s)
                continue;
            stage->workers[stage->worker_count++] = (struct exhaustive_worker){p, k};
            x->left[p] -= degree;
            x->left_gpus -= degree;
            choose_workers(x, &next, samples + k);
            x->left[p] += degree;
            x->left_gpus += degree;
            stage->worker_count--;
        }
    }
}

static void choose_stage(struct exhaustive *x, const struct passage *before)
{
    struct exhaustive_pipeline *made = &x->made;
    int layers = x->cost->profile->layer_count;
    int first = made->stage_count > 0 ? made->stages[made->stage_count - 1].end_layer : 0;
    if (x->left_gpus == 0)
        return;
    for (int end = first + 1; end <= layers; end++)
        for (int d = 0; d < x->cost->degrees; d++) {
            struct passage at = *before;
            at.forward_s = at.backward_s = 0;
            made->stages[made->stage_count] =
                (struct exhaustive_stage){.first_layer = first, .end_layer = end, .degree = d};
            choose_workers(x, &at, 0);
        }
}

void exhaustive_find_pipelines(struct exhaustive *x, int use, int samples,
                               struct exhaustive_list *to)
{
    const struct passage nothing = {0};
    x->found = false;
    x->to = to;
    for (int m = 1; m <= samples; m++) {
        if (samples % m != 0)
            continue;
        x->made = (struct exhaustive_pipeline){.micro_batch = m, .micro_batches = samples / m};
        exhaustive_open_use(x, use, x->left);
        x->left_gpus = 0;
        for (int p = 0; p < x->pool_count; p++)
            x->left_gpus += x->left[p];
        choose_stage(x, &nothing);
    }
}
