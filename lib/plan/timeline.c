#include "plan/timeline.h"

#include <stdlib.h>
#include <string.h>

#include "plan/report.h"

void eth_hpp_timeline_free(struct eth_hpp_timeline *timeline)
{
    eth_hpp_simulation_free(&timeline->simulation);
    free(timeline->rows);
    free(timeline->spans);
    *timeline = (struct eth_hpp_timeline){0};
}

/* ---- rows ---- */

static int count_workers(const struct eth_hpp_plan *plan)
{
    int workers = 0;
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++)
            workers += plan->pipelines[p].stages[s].worker_count;
    return workers;
}

static void add_worker_rows(struct eth_hpp_timeline *timeline)
{
    const struct eth_hpp_plan *plan = timeline->plan;
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++)
            for (int w = 0; w < plan->pipelines[p].stages[s].worker_count; w++)
                timeline->rows[timeline->row_count++] = (struct eth_hpp_timeline_row){
                    .pipeline = p, .stage = s, .worker = w, .like = 1};
}

/* A pipeline that stands for those like it. */
struct class {
    int pipeline, like;
};

/* Sorts the plan's pipelines into classes; returns how many there are. */
static int find_classes(const struct eth_hpp_timeline *timeline, struct class *classes)
{
    const struct eth_hpp_plan *plan = timeline->plan;
    int count = 0;
    for (int p = 0; p < plan->pipeline_count; p++) {
        int c = 0;
        while (c < count &&
               !eth_hpp_report_like_pipelines(plan, timeline->cluster, classes[c].pipeline, p))
            c++;
        if (c == count)
            classes[count++] = (struct class){p, 0};
        classes[c].like++;
    }
    return count;
}

/* All stages of every class, or where these are too many, some of each: the first, the last, and
 * others as far apart as each other. */
static bool add_stage_rows(struct eth_hpp_timeline *timeline, int most_rows)
{
    const struct eth_hpp_plan *plan = timeline->plan;
    struct class *classes = malloc((size_t)plan->pipeline_count * sizeof(*classes));
    int count = classes != NULL ? find_classes(timeline, classes) : 0, all = 0;
    for (int c = 0; c < count; c++)
        all += plan->pipelines[classes[c].pipeline].stage_count;
    for (int c = 0; c < count; c++) {
        int stages = plan->pipelines[classes[c].pipeline].stage_count;
        int room = (most_rows - timeline->row_count) / (count - c);
        int shown = all <= most_rows || stages < room ? stages : room;
        timeline->left_out += stages - shown;
        for (int i = 0; i < shown; i++)
            timeline->rows[timeline->row_count++] = (struct eth_hpp_timeline_row){
                .pipeline = classes[c].pipeline,
                .stage = shown > 1 ? (int)((int64_t)i * (stages - 1) / (shown - 1)) : 0,
                .worker = -1,
                .like = classes[c].like};
    }
    free(classes);
    return classes != NULL;
}

/* ---- spans ---- */

/* What is seen of the stages that have rows. */
struct watch {
    int *first_stage; /* [pipeline], and one more: where its stages begin in the layout */
    bool *wanted;     /* [stage of the layout] */
    struct eth_hpp_span *spans;
    int count, room;
    bool failed; /* out of memory */
};

static void keep(struct watch *watch, struct eth_hpp_span span)
{
    if (!watch->wanted[span.stage] || watch->failed)
        return;
    if (watch->count == watch->room) {
        int room = watch->room == 0 ? 1024 : 2 * watch->room;
        struct eth_hpp_span *spans = realloc(watch->spans, (size_t)room * sizeof(*spans));
        if (spans == NULL) {
            watch->failed = true;
            return;
        }
        watch->spans = spans;
        watch->room = room;
    }
    watch->spans[watch->count++] = span;
}

/* A hand-over is an instruction of both stages. */
static void see(void *context, const struct eth_hpp_span *span)
{
    struct eth_hpp_span received = *span;
    keep(context, *span);
    if (span->opcode == ETH_HPP_SEND_ACTIVATION) {
        received.opcode = ETH_HPP_RECV_ACTIVATION;
        received.stage++;
        keep(context, received);
    } else if (span->opcode == ETH_HPP_SEND_GRADIENT) {
        received.opcode = ETH_HPP_RECV_GRADIENT;
        received.stage--;
        keep(context, received);
    }
}

static int compare(double a, double b)
{
    return (a > b) - (a < b);
}

static int compare_spans(const void *a, const void *b)
{
    const struct eth_hpp_span *x = a, *y = b;
    if (x->stage != y->stage)
        return compare(x->stage, y->stage);
    if (x->start_s != y->start_s)
        return compare(x->start_s, y->start_s);
    if (x->opcode != y->opcode)
        return compare(x->opcode, y->opcode);
    if (x->micro_batch != y->micro_batch)
        return compare(x->micro_batch, y->micro_batch);
    return compare(x->block, y->block);
}

static bool open_watch(struct watch *watch, const struct eth_hpp_timeline *timeline)
{
    const struct eth_hpp_plan *plan = timeline->plan;
    int stages = 0;
    watch->first_stage = malloc((size_t)plan->pipeline_count * sizeof(*watch->first_stage));
    for (int p = 0; watch->first_stage != NULL && p < plan->pipeline_count; p++) {
        watch->first_stage[p] = stages;
        stages += plan->pipelines[p].stage_count;
    }
    watch->wanted = calloc((size_t)stages + 1, sizeof(*watch->wanted));
    if (watch->first_stage == NULL || watch->wanted == NULL)
        return false;
    for (int r = 0; r < timeline->row_count; r++)
        watch->wanted[watch->first_stage[timeline->rows[r].pipeline] + timeline->rows[r].stage] =
            true;
    return true;
}

/* Hands the sorted spans out to the rows: workers of a stage have the same. */
static void deal_spans(struct eth_hpp_timeline *timeline, const struct watch *watch)
{
    int at = 0, end = 0, stage = -1;
    for (int r = 0; r < timeline->row_count; r++) {
        struct eth_hpp_timeline_row *row = &timeline->rows[r];
        int mine = watch->first_stage[row->pipeline] + row->stage;
        if (mine != stage)
            at = end;
        stage = mine;
        for (end = at; end < timeline->span_count && timeline->spans[end].stage == stage;)
            end++;
        row->spans = timeline->spans + at;
        row->span_count = end - at;
    }
}

/* ---- the workers' own times ---- */

static enum eth_hpp_status time_rows(struct eth_hpp_timeline *timeline,
                                     const struct eth_hpp_profile *profile,
                                     struct eth_hpp_error *err)
{
    struct eth_hpp_cost cost;
    enum eth_hpp_status status = eth_hpp_cost_init(&cost, timeline->cluster, profile, err);
    if (status != ETH_HPP_OK)
        return status;
    for (int r = 0; r < timeline->row_count; r++) {
        struct eth_hpp_timeline_row *row = &timeline->rows[r];
        const struct eth_hpp_stage *stage =
            &timeline->plan->pipelines[row->pipeline].stages[row->stage];
        int first = row->worker < 0 ? 0 : row->worker;
        int end = row->worker < 0 ? stage->worker_count : row->worker + 1;
        for (int w = first; w < end; w++) {
            const struct eth_hpp_worker *worker = &stage->workers[w];
            int node = eth_hpp_cluster_find_node(timeline->cluster, worker->node);
            struct eth_hpp_layer_time time = eth_hpp_cost_layers(
                &cost, timeline->cluster->nodes[node].devices[worker->gpus[0]],
                eth_hpp_cost_degree(&cost, stage->tensor_parallel), stage->first_layer,
                stage->end_layer, worker->samples, stage->recompute);
            row->forward_s = time.forward_s > row->forward_s ? time.forward_s : row->forward_s;
            row->backward_s = time.backward_s > row->backward_s ? time.backward_s : row->backward_s;
        }
    }
    eth_hpp_cost_free(&cost);
    return ETH_HPP_OK;
}

double eth_hpp_timeline_end(const struct eth_hpp_timeline_row *row, const struct eth_hpp_span *span)
{
    double own = span->opcode == ETH_HPP_FORWARD    ? row->forward_s
                 : span->opcode == ETH_HPP_BACKWARD ? row->backward_s
                                                    : span->end_s - span->start_s;
    return span->start_s + own < span->end_s ? span->start_s + own : span->end_s;
}

/* A computation of a row comes with up to two hand-overs, of 64 bytes each. */
enum { COMPUTATIONS_MOST = 1 << 19 };

static enum eth_hpp_status check_length(const struct eth_hpp_timeline *timeline,
                                        struct eth_hpp_error *err)
{
    double computations = 0;
    for (int i = 0; i < timeline->row_count; i++)
        computations += 2.0 * timeline->plan->pipelines[timeline->rows[i].pipeline].micro_batches;
    if (computations > COMPUTATIONS_MOST)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "the step is too long to be drawn: its %d rows have %.0f forwards "
                                 "and backwards, and %d are the most",
                                 timeline->row_count, computations, COMPUTATIONS_MOST);
    return ETH_HPP_OK;
}

enum eth_hpp_status
eth_hpp_timeline_make(const struct eth_hpp_plan *plan, const struct eth_hpp_cluster *cluster,
                      const struct eth_hpp_profile *profile, bool blocking_transfers, int most_rows,
                      struct eth_hpp_timeline *timeline, struct eth_hpp_error *err)
{
    struct eth_hpp_timeline made = {.plan = plan, .cluster = cluster};
    struct watch watch = {0};
    struct eth_hpp_observer observer = {.see = see, .context = &watch};
    enum eth_hpp_status status = ETH_HPP_OK;
    made.rows = calloc((size_t)most_rows, sizeof(*made.rows));
    if (made.rows == NULL)
        status = eth_hpp_error_memory(err, "the timeline");
    else if (count_workers(plan) <= most_rows)
        add_worker_rows(&made);
    else if (!add_stage_rows(&made, most_rows))
        status = eth_hpp_error_memory(err, "the timeline");
    if (status == ETH_HPP_OK)
        status = check_length(&made, err);
    if (status == ETH_HPP_OK && !open_watch(&watch, &made))
        status = eth_hpp_error_memory(err, "the timeline");
    if (status == ETH_HPP_OK)
        status = eth_hpp_simulate_observed(plan, cluster, profile, blocking_transfers, &observer,
                                           &made.simulation, err);
    if (status == ETH_HPP_OK)
        status = watch.failed ? eth_hpp_error_memory(err, "the timeline")
                              : time_rows(&made, profile, err);
    made.spans = watch.spans;
    made.span_count = watch.count;
    if (status == ETH_HPP_OK) {
        if (made.span_count > 0)
            qsort(made.spans, (size_t)made.span_count, sizeof(*made.spans), compare_spans);
        deal_spans(&made, &watch);
        *timeline = made;
    } else {
        eth_hpp_timeline_free(&made);
    }
    free(watch.first_stage);
    free(watch.wanted);
    return status;
}

/* ---- words ---- */

static const char *kind_of(const struct eth_hpp_timeline *timeline,
                           const struct eth_hpp_worker *worker)
{
    const char *kind = eth_hpp_report_kind(timeline->plan, timeline->cluster, worker);
    return kind != NULL ? kind : "GPU";
}

void eth_hpp_timeline_describe_row(const struct eth_hpp_timeline *timeline,
                                   const struct eth_hpp_timeline_row *row, char *text, size_t size)
{
    const struct eth_hpp_stage *stage =
        &timeline->plan->pipelines[row->pipeline].stages[row->stage];
    if (row->worker < 0) {
        char samples[256], kinds[256];
        eth_hpp_report_describe_workers(timeline->plan, timeline->cluster, stage, samples, kinds,
                                        sizeof(samples));
        snprintf(text, size, "stage %d, %s", row->stage, kinds);
        return;
    }
    const struct eth_hpp_worker *worker = &stage->workers[row->worker];
    if (stage->tensor_parallel == 1)
        snprintf(text, size, "rank %d, %s GPU %d, %s", worker->ranks[0], worker->node,
                 worker->gpus[0], kind_of(timeline, worker));
    else
        snprintf(text, size, "ranks %d-%d, %s, %d %s", worker->ranks[0],
                 worker->ranks[stage->tensor_parallel - 1], worker->node, stage->tensor_parallel,
                 kind_of(timeline, worker));
}

void eth_hpp_timeline_describe_pipeline(const struct eth_hpp_timeline *timeline,
                                        const struct eth_hpp_timeline_row *row, char *text,
                                        size_t size)
{
    const struct eth_hpp_pipeline *pipeline = &timeline->plan->pipelines[row->pipeline];
    char like[32] = "";
    if (row->like > 1)
        snprintf(like, sizeof(like), " and %d like it", row->like - 1);
    snprintf(text, size, "pipeline %d%s: %d micro-batch%s of %d", row->pipeline, like,
             pipeline->micro_batches, pipeline->micro_batches == 1 ? "" : "es",
             pipeline->micro_batch);
}

void eth_hpp_timeline_describe_step(const struct eth_hpp_timeline *timeline, char *text,
                                    size_t size)
{
    const struct eth_hpp_step *step = &timeline->simulation.step;
    char bound[64] = "";
    if (timeline->plan->predicted.lower_bound_s > 0)
        snprintf(bound, sizeof(bound), "; no plan is faster than %.4g s",
                 timeline->plan->predicted.lower_bound_s);
    snprintf(text, size,
             "%s: step %.4g s (compute %.4g s, exposed sync %.4g s, optimizer %.4g s)%s",
             timeline->plan->model, step->step_s, step->compute_s, step->exposed_sync_s,
             step->optimizer_s, bound);
}
