#include "plan/report.h"

#include <stdlib.h>
#include <string.h>

#include "base/hostlist.h"

#define GIB 1073741824.0

const char *eth_hpp_report_kind(const struct eth_hpp_plan *plan,
                                const struct eth_hpp_cluster *cluster,
                                const struct eth_hpp_worker *worker)
{
    int node = cluster != NULL ? eth_hpp_cluster_find_node(cluster, worker->node) : -1;
    if (node >= 0 && worker->gpus[0] < cluster->nodes[node].gpus)
        return cluster->devices[cluster->nodes[node].devices[worker->gpus[0]]].name;
    for (int n = 0; n < plan->node_count; n++)
        if (strcmp(plan->nodes[n].name, worker->node) == 0 && worker->gpus[0] < plan->nodes[n].gpus)
            return plan->nodes[n].devices[worker->gpus[0]];
    return NULL;
}

static bool same_kind(const struct eth_hpp_plan *plan, const struct eth_hpp_cluster *cluster,
                      const struct eth_hpp_worker *a, const struct eth_hpp_worker *b)
{
    const char *x = eth_hpp_report_kind(plan, cluster, a);
    const char *y = eth_hpp_report_kind(plan, cluster, b);
    return x == y || (x != NULL && y != NULL && strcmp(x, y) == 0);
}

static bool like_stages(const struct eth_hpp_plan *plan, const struct eth_hpp_cluster *cluster,
                        const struct eth_hpp_stage *a, const struct eth_hpp_stage *b)
{
    if (a->first_layer != b->first_layer || a->end_layer != b->end_layer ||
        a->tensor_parallel != b->tensor_parallel || a->recompute != b->recompute ||
        a->in_flight != b->in_flight || a->worker_count != b->worker_count)
        return false;
    for (int w = 0; w < a->worker_count; w++)
        if (a->workers[w].samples != b->workers[w].samples ||
            !same_kind(plan, cluster, &a->workers[w], &b->workers[w]))
            return false;
    return true;
}

bool eth_hpp_report_like_pipelines(const struct eth_hpp_plan *plan,
                                   const struct eth_hpp_cluster *cluster, int p, int q)
{
    const struct eth_hpp_pipeline *a = &plan->pipelines[p], *b = &plan->pipelines[q];
    if (a->micro_batch != b->micro_batch || a->micro_batches != b->micro_batches ||
        a->stage_count != b->stage_count)
        return false;
    for (int s = 0; s < a->stage_count; s++)
        if (!like_stages(plan, cluster, &a->stages[s], &b->stages[s]))
            return false;
    return true;
}

/* ---- columns ---- */

static void add(char *text, size_t size, const char *more)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s", more);
}

void eth_hpp_report_describe_workers(const struct eth_hpp_plan *plan,
                                     const struct eth_hpp_cluster *cluster,
                                     const struct eth_hpp_stage *stage, char *samples, char *kinds,
                                     size_t size)
{
    char text[ETH_HPP_NAME_MAX + 32];
    samples[0] = kinds[0] = '\0';
    for (int w = 0, end; w < stage->worker_count; w = end) {
        const struct eth_hpp_worker *worker = &stage->workers[w];
        for (end = w + 1;
             end < stage->worker_count && stage->workers[end].samples == worker->samples;)
            end++;
        snprintf(text, sizeof(text), "%s%d x %d", w > 0 ? " + " : "", end - w, worker->samples);
        add(samples, size, text);
    }
    for (int w = 0, end; w < stage->worker_count; w = end) {
        const char *kind = eth_hpp_report_kind(plan, cluster, &stage->workers[w]);
        for (end = w + 1; end < stage->worker_count &&
                          same_kind(plan, cluster, &stage->workers[end], &stage->workers[w]);)
            end++;
        snprintf(text, sizeof(text), "%s%d %s", w > 0 ? " + " : "",
                 (end - w) * stage->tensor_parallel, kind != NULL ? kind : "GPU");
        add(kinds, size, text);
    }
}

/* The nodes of a stage over like pipelines, each once, as a hostlist that the caller frees. */
static char *list_nodes(const struct eth_hpp_plan *plan, int first, int end, int s)
{
    int count = 0, room = 0;
    for (int p = first; p < end; p++)
        room += plan->pipelines[p].stages[s].worker_count;
    const char **names = malloc((size_t)room * sizeof(*names));
    for (int p = first; names != NULL && p < end; p++)
        for (int w = 0; w < plan->pipelines[p].stages[s].worker_count; w++) {
            const char *name = plan->pipelines[p].stages[s].workers[w].node;
            int seen = count - 1;
            while (seen >= 0 && strcmp(names[seen], name) != 0)
                seen--;
            if (seen < 0)
                names[count++] = name;
        }
    char *text = names != NULL ? eth_hpp_hostlist_fold(names, count) : NULL;
    free(names);
    return text;
}

static const struct eth_hpp_predicted_rank *find_rank(const struct eth_hpp_predicted *predicted,
                                                      int rank)
{
    for (int low = 0, high = predicted->rank_count - 1; low <= high;) {
        int middle = (low + high) / 2;
        if (predicted->ranks[middle].rank == rank)
            return &predicted->ranks[middle];
        if (predicted->ranks[middle].rank < rank)
            low = middle + 1;
        else
            high = middle - 1;
    }
    return NULL;
}

/* The fullest GPU of the stage. */
static void describe_memory(const struct eth_hpp_plan *plan, const struct eth_hpp_stage *stage,
                            char *text, size_t size)
{
    const struct eth_hpp_predicted_rank *fullest = NULL;
    for (int w = 0; w < stage->worker_count; w++) {
        const struct eth_hpp_predicted_rank *rank =
            find_rank(&plan->predicted, stage->workers[w].ranks[0]);
        if (rank != NULL &&
            (fullest == NULL || rank->peak_memory_bytes / rank->memory_limit_bytes >
                                    fullest->peak_memory_bytes / fullest->memory_limit_bytes))
            fullest = rank;
    }
    if (fullest == NULL)
        snprintf(text, size, "-");
    else
        snprintf(text, size, "%.1f of %.1f GiB", fullest->peak_memory_bytes / GIB,
                 fullest->memory_limit_bytes / GIB);
}

/* ---- parts of the table ---- */

static void print_stage(const struct eth_hpp_plan *plan, const struct eth_hpp_cluster *cluster,
                        int first, int end, int s, FILE *out)
{
    const struct eth_hpp_stage *stage = &plan->pipelines[first].stages[s];
    char samples[256], kinds[256], memory[64], layers[32], notes[64] = "";
    eth_hpp_report_describe_workers(plan, cluster, stage, samples, kinds, sizeof(samples));
    describe_memory(plan, stage, memory, sizeof(memory));
    snprintf(layers, sizeof(layers), "%d-%d", stage->first_layer, stage->end_layer - 1);
    if (stage->tensor_parallel > 1)
        snprintf(notes, sizeof(notes), " tensor parallel %d", stage->tensor_parallel);
    if (stage->recompute)
        add(notes, sizeof(notes), " recompute");
    char *nodes = list_nodes(plan, first, end, s);
    fprintf(out, "    stage %-3d layers %-8s %-24s samples %-14s in flight %-3d %-18s %s%s\n", s,
            layers, kinds, samples, stage->in_flight, memory, nodes != NULL ? nodes : "", notes);
    free(nodes);
}

static void print_pipelines(const struct eth_hpp_plan *plan, const struct eth_hpp_cluster *cluster,
                            FILE *out)
{
    for (int p = 0, end; p < plan->pipeline_count; p = end) {
        const struct eth_hpp_pipeline *pipeline = &plan->pipelines[p];
        for (end = p + 1;
             end < plan->pipeline_count && eth_hpp_report_like_pipelines(plan, cluster, p, end);)
            end++;
        int64_t samples = (int64_t)pipeline->micro_batch * pipeline->micro_batches;
        if (end - p == 1)
            fprintf(out, "  pipeline %d: ", p);
        else
            fprintf(out, "  pipelines %d-%d, each: ", p, end - 1);
        fprintf(out, "%d micro-batch%s of %d sample%s, %.1f %% of the batch\n",
                pipeline->micro_batches, pipeline->micro_batches == 1 ? "" : "es",
                pipeline->micro_batch, pipeline->micro_batch == 1 ? "" : "s",
                100.0 * (double)samples / plan->global_batch);
        for (int s = 0; s < pipeline->stage_count; s++)
            print_stage(plan, cluster, p, end, s, out);
    }
}

static void print_predicted(const struct eth_hpp_plan *plan, FILE *out)
{
    const struct eth_hpp_predicted *predicted = &plan->predicted;
    if (predicted->step_s <= 0)
        return;
    fprintf(out,
            "  predicted step %.4g s (%.4g samples/s): compute %.4g s, exposed sync %.4g s, "
            "optimizer %.4g s; bubble %.1f %%\n",
            predicted->step_s, plan->global_batch / predicted->step_s, predicted->compute_s,
            predicted->exposed_sync_s, predicted->optimizer_s, 100 * predicted->bubble_fraction);
    if (predicted->lower_bound_s > 0)
        fprintf(out, "  no plan can be faster than %.4g s: this one is within %.1f %% of that\n",
                predicted->lower_bound_s, 100 * predicted->gap);
    if (plan->search.seconds > 0)
        fprintf(out, "  %lld plans were compared in %.3g s\n", (long long)plan->search.considered,
                plan->search.seconds);
    if (plan->estimated)
        fprintf(out, "  layer times are estimated from datasheets, not measured\n");
    if (plan->emulated)
        fprintf(out, "  the devices are emulated\n");
}

static bool alike(const struct eth_hpp_idle *a, const struct eth_hpp_idle *b)
{
    return a->gpu_count == b->gpu_count && strcmp(a->why, b->why) == 0 &&
           memcmp(a->gpus, b->gpus, (size_t)a->gpu_count * sizeof(*a->gpus)) == 0;
}

static int compare_names(const void *a, const void *b)
{
    return strverscmp(*(const char *const *)a, *(const char *const *)b);
}

/* The nodes of idle entries as a hostlist that the caller frees; NULL when out of memory. */
static char *fold_idle(const struct eth_hpp_plan *plan, int first, int end)
{
    const char **names = malloc((size_t)(end - first) * sizeof(*names));
    for (int i = first; names != NULL && i < end; i++)
        names[i - first] = plan->idle[i].node;
    if (names != NULL)
        qsort(names, (size_t)(end - first), sizeof(*names), compare_names);
    char *text = names != NULL ? eth_hpp_hostlist_fold(names, end - first) : NULL;
    free(names);
    return text;
}

static void print_idle(const struct eth_hpp_plan *plan, FILE *out)
{
    for (int i = 0, end; i < plan->idle_count; i = end) {
        const struct eth_hpp_idle *idle = &plan->idle[i];
        for (end = i + 1; end < plan->idle_count && alike(idle, &plan->idle[end]);)
            end++;
        char *nodes = fold_idle(plan, i, end);
        fprintf(out, "  idle: %s GPU", nodes != NULL ? nodes : idle->node);
        free(nodes);
        for (int g = 0; g < idle->gpu_count; g++)
            fprintf(out, "%s%d", g > 0 ? "," : " ", idle->gpus[g]);
        fprintf(out, ": %s\n", idle->why);
    }
}

void eth_hpp_report_print(const struct eth_hpp_plan *plan, const struct eth_hpp_cluster *cluster,
                          FILE *out)
{
    int gpus = 0;
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++)
            gpus += plan->pipelines[p].stages[s].worker_count *
                    plan->pipelines[p].stages[s].tensor_parallel;
    fprintf(out,
            "plan for %s: %d layers, global batch %d, sequence %d, %s; %d pipeline%s on %d GPU%s, "
            "%s optimizer\n",
            plan->model, plan->layers, plan->global_batch, plan->sequence_length,
            eth_hpp_dtype_name(plan->dtype), plan->pipeline_count,
            plan->pipeline_count == 1 ? "" : "s", gpus, gpus == 1 ? "" : "s",
            plan->sharded_optimizer ? "sharded" : "replicated");
    print_pipelines(plan, cluster, out);
    print_predicted(plan, out);
    print_idle(plan, out);
}
