/* Reading of `eth-hpp-plan` files; plan_write.c writes them. */
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hostlist.h"

enum {
    PIPELINES_MAX = 200000,
    STAGES_MAX = 10000,
    WORKERS_MAX = 200000,
    SAMPLES_MAX = 1 << 24,
    RANKS_MAX = 1 << 24,
    LAYERS_MAX = 10000
};
#define FILE_MAX    (256u << 20)
#define SECONDS_MAX 1e18 /* more than TIME_MAX of a profile for every layer and sample */
#define BYTES_MAX   1e18

/* calloc that records its failure in the document. */
static void *allocate(const struct eth_hpp_json *at, size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL)
        eth_hpp_json_fail(at, "out of memory");
    return memory;
}

static void copy_text(char *to, size_t size, const char *text)
{
    snprintf(to, size, "%s", text);
}

/* A list of `count` whole numbers; where it may be missing, all are -1. */
static int *read_list(const struct eth_hpp_json *object, const char *key, int count, int most,
                      bool optional)
{
    int *list = allocate(object, (size_t)count, sizeof(*list));
    if (list == NULL)
        return NULL;
    for (int i = 0; i < count; i++)
        list[i] = -1;
    if (optional && !eth_hpp_json_has(object, key))
        return list;
    struct eth_hpp_json array = eth_hpp_json_array(object, key, (size_t)count, (size_t)count);
    for (int i = 0; i < count && !eth_hpp_json_failed(object); i++)
        list[i] = (int)eth_hpp_json_item_integer(&array, (size_t)i, 0, most);
    return list;
}

static void read_worker(const struct eth_hpp_json *entry, int tensor_parallel,
                        struct eth_hpp_worker *worker)
{
    eth_hpp_json_keys(entry, "node", "gpus", "ranks", "samples", NULL);
    copy_text(worker->node, sizeof(worker->node),
              eth_hpp_json_string(entry, "node", ETH_HPP_NAME_MAX - 1));
    worker->gpus = read_list(entry, "gpus", tensor_parallel, ETH_HPP_NODE_GPUS_MAX - 1, false);
    worker->ranks = read_list(entry, "ranks", tensor_parallel, RANKS_MAX, true);
    worker->samples = (int)eth_hpp_json_integer(entry, "samples", 1, SAMPLES_MAX);
}

static void read_stage(const struct eth_hpp_json *entry, const struct eth_hpp_pipeline *pipeline,
                       int s, int layers, struct eth_hpp_stage *stage)
{
    eth_hpp_json_keys(entry, "layers", "tensor_parallel", "recompute", "in_flight", "workers",
                      NULL);
    struct eth_hpp_json range = eth_hpp_json_array(entry, "layers", 2, 2);
    stage->first_layer = (int)eth_hpp_json_item_integer(&range, 0, 0, layers);
    stage->end_layer = (int)eth_hpp_json_item_integer(&range, 1, 0, layers);
    int begin = s > 0 ? stage[-1].end_layer : 0;
    if (stage->first_layer != begin || stage->end_layer <= begin)
        eth_hpp_json_fail(&range, "[%d, %d) does not follow layer %d", stage->first_layer,
                          stage->end_layer, begin);
    stage->tensor_parallel =
        (int)eth_hpp_json_integer_or(entry, "tensor_parallel", 1, ETH_HPP_NODE_GPUS_MAX, 1);
    stage->recompute = eth_hpp_json_boolean_or(entry, "recompute", false);
    stage->in_flight =
        (int)eth_hpp_json_integer_or(entry, "in_flight", 1, SAMPLES_MAX, pipeline->stage_count - s);
    if (stage->in_flight > pipeline->micro_batches)
        stage->in_flight = pipeline->micro_batches;
    if (s > 0 && stage->in_flight > stage[-1].in_flight)
        eth_hpp_json_fail(entry, "in_flight: must not grow from a stage to the next (%d after %d)",
                          stage->in_flight, stage[-1].in_flight);
    struct eth_hpp_json workers = eth_hpp_json_array(entry, "workers", 1, WORKERS_MAX);
    int count = (int)eth_hpp_json_length(&workers);
    stage->workers = allocate(entry, (size_t)count, sizeof(*stage->workers));
    long total = 0;
    for (int w = 0; w < count && !eth_hpp_json_failed(entry); w++) {
        struct eth_hpp_json item = eth_hpp_json_item(&workers, (size_t)w);
        stage->worker_count = w + 1;
        read_worker(&item, stage->tensor_parallel, &stage->workers[w]);
        total += stage->workers[w].samples;
    }
    if (total != pipeline->micro_batch)
        eth_hpp_json_fail(&workers, "samples add up to %ld, but the micro-batch is %d", total,
                          pipeline->micro_batch);
}

static void read_pipeline(const struct eth_hpp_json *entry, int layers,
                          struct eth_hpp_pipeline *pipeline)
{
    eth_hpp_json_keys(entry, "micro_batch", "micro_batches", "stages", NULL);
    pipeline->micro_batch = (int)eth_hpp_json_integer(entry, "micro_batch", 1, SAMPLES_MAX);
    pipeline->micro_batches = (int)eth_hpp_json_integer(entry, "micro_batches", 1, SAMPLES_MAX);
    struct eth_hpp_json stages = eth_hpp_json_array(entry, "stages", 1, STAGES_MAX);
    int count = (int)eth_hpp_json_length(&stages);
    pipeline->stages = allocate(entry, (size_t)count, sizeof(*pipeline->stages));
    pipeline->stage_count = pipeline->stages != NULL ? count : 0;
    for (int s = 0; s < pipeline->stage_count && !eth_hpp_json_failed(entry); s++) {
        struct eth_hpp_json item = eth_hpp_json_item(&stages, (size_t)s);
        read_stage(&item, pipeline, s, layers, &pipeline->stages[s]);
    }
    if (!eth_hpp_json_failed(entry) && pipeline->stages[count - 1].end_layer != layers)
        eth_hpp_json_fail(&stages, "end at layer %d, but the model has %d",
                          pipeline->stages[count - 1].end_layer, layers);
}

static void read_pipelines(const struct eth_hpp_json *root, struct eth_hpp_plan *plan)
{
    struct eth_hpp_json pipelines = eth_hpp_json_array(root, "pipelines", 1, PIPELINES_MAX);
    int count = (int)eth_hpp_json_length(&pipelines);
    long total = 0;
    plan->pipelines = allocate(root, (size_t)count, sizeof(*plan->pipelines));
    plan->pipeline_count = plan->pipelines != NULL ? count : 0;
    for (int p = 0; p < plan->pipeline_count && !eth_hpp_json_failed(root); p++) {
        struct eth_hpp_json item = eth_hpp_json_item(&pipelines, (size_t)p);
        read_pipeline(&item, plan->layers, &plan->pipelines[p]);
        total += (long)plan->pipelines[p].micro_batch * plan->pipelines[p].micro_batches;
    }
    if (total != plan->global_batch)
        eth_hpp_json_fail(&pipelines,
                          "micro-batches add up to %ld samples, but the global batch "
                          "is %d",
                          total, plan->global_batch);
}

static void read_idle(const struct eth_hpp_json *root, struct eth_hpp_plan *plan)
{
    if (!eth_hpp_json_has(root, "idle"))
        return;
    struct eth_hpp_json list = eth_hpp_json_array(root, "idle", 0, WORKERS_MAX);
    int count = (int)eth_hpp_json_length(&list);
    plan->idle = allocate(root, (size_t)count, sizeof(*plan->idle));
    for (int i = 0; i < count && !eth_hpp_json_failed(root); i++) {
        struct eth_hpp_json entry = eth_hpp_json_item(&list, (size_t)i);
        struct eth_hpp_idle *idle = &plan->idle[plan->idle_count++];
        eth_hpp_json_keys(&entry, "node", "gpus", "ranks", "why", NULL);
        copy_text(idle->node, sizeof(idle->node),
                  eth_hpp_json_string(&entry, "node", ETH_HPP_NAME_MAX - 1));
        struct eth_hpp_json gpus = eth_hpp_json_array(&entry, "gpus", 1, ETH_HPP_NODE_GPUS_MAX);
        idle->gpu_count = (int)eth_hpp_json_length(&gpus);
        idle->gpus = read_list(&entry, "gpus", idle->gpu_count, ETH_HPP_NODE_GPUS_MAX - 1, false);
        idle->ranks = read_list(&entry, "ranks", idle->gpu_count, RANKS_MAX, true);
        copy_text(idle->why, sizeof(idle->why),
                  eth_hpp_json_string_or(&entry, "why", sizeof(idle->why) - 1, ""));
    }
}

/* ---- no GPU and no rank twice ---- */

struct use {
    const char *node;
    int gpu, rank;
};

static int compare_gpus(const void *a, const void *b)
{
    const struct use *x = a, *y = b;
    int names = strcmp(x->node, y->node);
    return names != 0 ? names : (x->gpu > y->gpu) - (x->gpu < y->gpu);
}

static int compare_ranks(const void *a, const void *b)
{
    const struct use *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Lists every GPU of the plan, or counts them where `uses` is NULL. */
static int list_uses(const struct eth_hpp_plan *plan, struct use *uses)
{
    int count = 0;
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++) {
            const struct eth_hpp_stage *stage = &plan->pipelines[p].stages[s];
            for (int w = 0; w < stage->worker_count; w++)
                for (int t = 0; t < stage->tensor_parallel; t++, count++)
                    if (uses != NULL)
                        uses[count] =
                            (struct use){stage->workers[w].node, stage->workers[w].gpus[t],
                                         stage->workers[w].ranks[t]};
        }
    for (int i = 0; i < plan->idle_count; i++)
        for (int g = 0; g < plan->idle[i].gpu_count; g++, count++)
            if (uses != NULL)
                uses[count] =
                    (struct use){plan->idle[i].node, plan->idle[i].gpus[g], plan->idle[i].ranks[g]};
    return count;
}

/* Refuses GPUs and ranks that stand twice; *ranked: do all GPUs have a rank? */
static void check_uses(const struct eth_hpp_json *root, const struct eth_hpp_plan *plan,
                       bool *ranked)
{
    int count = list_uses(plan, NULL), unranked = 0;
    struct use *uses = allocate(root, (size_t)count, sizeof(*uses));
    if (uses == NULL)
        return;
    list_uses(plan, uses);
    qsort(uses, (size_t)count, sizeof(*uses), compare_gpus);
    for (int i = 0; i + 1 < count; i++)
        if (compare_gpus(&uses[i], &uses[i + 1]) == 0)
            eth_hpp_json_fail(root, "GPU %d of node %s is used twice", uses[i].gpu, uses[i].node);
    qsort(uses, (size_t)count, sizeof(*uses), compare_ranks);
    for (int i = 0; i < count; i++)
        unranked += uses[i].rank < 0;
    for (int i = unranked; i + 1 < count; i++)
        if (uses[i].rank == uses[i + 1].rank)
            eth_hpp_json_fail(root, "rank %d is used twice", uses[i].rank);
    if (unranked > 0 && unranked < count)
        eth_hpp_json_fail(root, "ranks must be given for all GPUs or for none");
    *ranked = unranked == 0;
    free(uses);
}

/* ---- blocks ---- */

/* Compares a layer block of the file with the one that the stages make. */
static void check_layers(const struct eth_hpp_json *entry, const struct eth_hpp_block *block)
{
    struct eth_hpp_json range = eth_hpp_json_array(entry, "layers", 2, 2);
    int first = (int)eth_hpp_json_item_integer(&range, 0, 0, LAYERS_MAX);
    int end = (int)eth_hpp_json_item_integer(&range, 1, 0, LAYERS_MAX);
    struct eth_hpp_json ranks = eth_hpp_json_array(entry, "ranks", 1, RANKS_MAX);
    bool same = first == block->first_layer && end == block->end_layer &&
                (int)eth_hpp_json_length(&ranks) == block->rank_count;
    for (int i = 0; same && i < block->rank_count; i++)
        same = eth_hpp_json_item_integer(&ranks, (size_t)i, 0, RANKS_MAX) == block->ranks[i];
    if (!same)
        eth_hpp_json_fail(entry,
                          "is not the maximal run of layers with one owner set, which here "
                          "is [%d, %d) of %d ranks in ascending order",
                          block->first_layer, block->end_layer, block->rank_count);
}

static void read_tied(const struct eth_hpp_json *entry, int tied, struct eth_hpp_block *block)
{
    block->tied = tied;
    copy_text(block->tied_name, sizeof(block->tied_name),
              eth_hpp_json_string(entry, "tied", ETH_HPP_NAME_MAX - 1));
    struct eth_hpp_json ranks = eth_hpp_json_array(entry, "ranks", 1, RANKS_MAX);
    block->rank_count = (int)eth_hpp_json_length(&ranks);
    block->ranks = read_list(entry, "ranks", block->rank_count, RANKS_MAX, false);
    for (int i = 0; block->ranks != NULL && i + 1 < block->rank_count; i++)
        if (block->ranks[i] >= block->ranks[i + 1])
            eth_hpp_json_fail(&ranks, "must be in ascending order");
}

static void read_blocks(const struct eth_hpp_json *root, struct eth_hpp_plan *plan, bool ranked)
{
    struct eth_hpp_error err;
    if (!ranked || eth_hpp_json_failed(root))
        return; /* eth_hpp_plan_complete makes them */
    if (eth_hpp_plan_make_blocks(plan, NULL, &err) != ETH_HPP_OK) {
        eth_hpp_json_fail(root, "%s", err.text);
        return;
    }
    if (!eth_hpp_json_has(root, "blocks"))
        return;
    struct eth_hpp_json list = eth_hpp_json_array(root, "blocks", 1, LAYERS_MAX);
    int count = (int)eth_hpp_json_length(&list), layer_blocks = plan->block_count;
    struct eth_hpp_block *blocks =
        realloc(plan->blocks, (size_t)(layer_blocks + count) * sizeof(*blocks));
    if (blocks == NULL) {
        eth_hpp_json_fail(root, "out of memory");
        return;
    }
    plan->blocks = blocks;
    for (int i = 0; i < count && !eth_hpp_json_failed(root); i++) {
        struct eth_hpp_json entry = eth_hpp_json_item(&list, (size_t)i);
        eth_hpp_json_keys(&entry, "layers", "tied", "ranks", NULL);
        if (i < layer_blocks) {
            check_layers(&entry, &blocks[i]);
        } else {
            struct eth_hpp_block *block = &blocks[plan->block_count++];
            *block = (struct eth_hpp_block){0};
            read_tied(&entry, i - layer_blocks, block);
        }
    }
    if (count < layer_blocks)
        eth_hpp_json_fail(&list, "has %d entries, but the layers fall into %d blocks", count,
                          layer_blocks);
}

/* ---- what the planner said ---- */

static void read_predicted(const struct eth_hpp_json *root, struct eth_hpp_predicted *predicted)
{
    if (!eth_hpp_json_has(root, "predicted"))
        return;
    struct eth_hpp_json at = eth_hpp_json_object(root, "predicted");
    eth_hpp_json_keys(&at, "step_s", "compute_s", "exposed_sync_s", "optimizer_s",
                      "bubble_fraction", "lower_bound_s", "gap", "ranks", NULL);
    predicted->step_s = eth_hpp_json_number_or(&at, "step_s", 0, SECONDS_MAX, 0);
    predicted->compute_s = eth_hpp_json_number_or(&at, "compute_s", 0, SECONDS_MAX, 0);
    predicted->exposed_sync_s = eth_hpp_json_number_or(&at, "exposed_sync_s", 0, SECONDS_MAX, 0);
    predicted->optimizer_s = eth_hpp_json_number_or(&at, "optimizer_s", 0, SECONDS_MAX, 0);
    predicted->bubble_fraction = eth_hpp_json_number_or(&at, "bubble_fraction", 0, 1, 0);
    predicted->lower_bound_s = eth_hpp_json_number_or(&at, "lower_bound_s", 0, SECONDS_MAX, 0);
    predicted->gap = eth_hpp_json_number_or(&at, "gap", -1, SECONDS_MAX, 0);
    if (!eth_hpp_json_has(&at, "ranks"))
        return;
    struct eth_hpp_json ranks = eth_hpp_json_array(&at, "ranks", 0, RANKS_MAX);
    int count = (int)eth_hpp_json_length(&ranks);
    predicted->ranks = allocate(&at, (size_t)count, sizeof(*predicted->ranks));
    for (int i = 0; i < count && !eth_hpp_json_failed(root); i++) {
        struct eth_hpp_json entry = eth_hpp_json_item(&ranks, (size_t)i);
        struct eth_hpp_predicted_rank *rank = &predicted->ranks[predicted->rank_count++];
        eth_hpp_json_keys(&entry, "rank", "busy_s", "peak_memory_bytes", "memory_limit_bytes",
                          NULL);
        rank->rank = (int)eth_hpp_json_integer(&entry, "rank", 0, RANKS_MAX);
        rank->busy_s = eth_hpp_json_number(&entry, "busy_s", 0, SECONDS_MAX);
        rank->peak_memory_bytes = eth_hpp_json_number(&entry, "peak_memory_bytes", 0, BYTES_MAX);
        rank->memory_limit_bytes = eth_hpp_json_number(&entry, "memory_limit_bytes", 0, BYTES_MAX);
    }
}

static void read_search(const struct eth_hpp_json *root, struct eth_hpp_plan *plan)
{
    if (!eth_hpp_json_has(root, "search"))
        return;
    struct eth_hpp_json at = eth_hpp_json_object(root, "search");
    eth_hpp_json_keys(&at, "seconds", "considered", "solver", NULL);
    plan->search.seconds = eth_hpp_json_number_or(&at, "seconds", 0, SECONDS_MAX, 0);
    plan->search.considered = eth_hpp_json_integer_or(&at, "considered", 0, INT64_MAX, 0);
    copy_text(plan->search.solver, sizeof(plan->search.solver),
              eth_hpp_json_string_or(&at, "solver", ETH_HPP_NAME_MAX - 1, ""));
}

/* "extra": {"nodes": [{"name": "a100-[01-02]", "gpus": ["A100-SXM-40GB", ...]}]} */
static void read_node_entry(const struct eth_hpp_json *entry, struct eth_hpp_plan *plan,
                            int *gpus_left)
{
    struct eth_hpp_error err;
    char **names;
    int count;
    eth_hpp_json_keys(entry, "name", "gpus", NULL);
    const char *hostlist = eth_hpp_json_string(entry, "name", 1 << 16);
    struct eth_hpp_json gpus = eth_hpp_json_array(entry, "gpus", 1, ETH_HPP_NODE_GPUS_MAX);
    if (eth_hpp_json_failed(entry))
        return;
    if (eth_hpp_hostlist_expand(hostlist, WORKERS_MAX, &names, &count, &err) != ETH_HPP_OK) {
        eth_hpp_json_fail(entry, "%s", err.text);
        return;
    }
    struct eth_hpp_plan_node *nodes =
        realloc(plan->nodes, (size_t)(plan->node_count + count) * sizeof(*nodes));
    if (nodes == NULL)
        eth_hpp_json_fail(entry, "out of memory");
    else
        plan->nodes = nodes;
    *gpus_left -= count * (int)eth_hpp_json_length(&gpus);
    if (*gpus_left < 0)
        eth_hpp_json_fail(entry, "there are more than %d GPUs", WORKERS_MAX);
    for (int i = 0; i < count && !eth_hpp_json_failed(entry); i++) {
        struct eth_hpp_plan_node *node = &nodes[plan->node_count++];
        node->gpus = (int)eth_hpp_json_length(&gpus);
        copy_text(node->name, sizeof(node->name), names[i]);
        node->devices = allocate(entry, (size_t)node->gpus, sizeof(*node->devices));
        for (int g = 0; node->devices != NULL && g < node->gpus; g++)
            copy_text(node->devices[g], sizeof(node->devices[g]),
                      eth_hpp_json_item_string(&gpus, (size_t)g, ETH_HPP_NAME_MAX - 1));
    }
    eth_hpp_hostlist_free(names, count);
}

static void read_extra(const struct eth_hpp_json *root, struct eth_hpp_plan *plan)
{
    if (!eth_hpp_json_has(root, "extra"))
        return;
    struct eth_hpp_json extra = eth_hpp_json_object(root, "extra");
    plan->estimated = eth_hpp_json_boolean_or(&extra, "estimated", false);
    plan->emulated = eth_hpp_json_boolean_or(&extra, "emulated", false);
    if (!eth_hpp_json_has(&extra, "nodes"))
        return;
    int gpus_left = WORKERS_MAX;
    struct eth_hpp_json nodes = eth_hpp_json_array(&extra, "nodes", 0, WORKERS_MAX);
    for (size_t i = 0; i < eth_hpp_json_length(&nodes) && !eth_hpp_json_failed(root); i++) {
        struct eth_hpp_json entry = eth_hpp_json_item(&nodes, i);
        read_node_entry(&entry, plan, &gpus_left);
    }
}

static void read_choices(const struct eth_hpp_json *root, struct eth_hpp_plan *plan)
{
    const char *schedule = eth_hpp_json_string(root, "schedule", 64);
    if (!eth_hpp_json_failed(root) && strcmp(schedule, "1f1b") != 0)
        eth_hpp_json_fail(root, "schedule: must be \"1f1b\", is \"%s\"", schedule);
    const char *optimizer = eth_hpp_json_string_or(root, "optimizer", 64, "replicated");
    plan->sharded_optimizer = strcmp(optimizer, "sharded") == 0;
    if (!plan->sharded_optimizer && strcmp(optimizer, "replicated") != 0)
        eth_hpp_json_fail(root, "optimizer: must be \"replicated\" or \"sharded\", is \"%s\"",
                          optimizer);
    const char *dtype = eth_hpp_json_string_or(root, "dtype", 16, "fp32");
    if (eth_hpp_dtype_find(dtype) < 0)
        eth_hpp_json_fail(root, "dtype: must be fp32, bf16 or fp16, is \"%s\"", dtype);
    else
        plan->dtype = (enum eth_hpp_dtype)eth_hpp_dtype_find(dtype);
}

static void read_plan(const struct eth_hpp_json *root, struct eth_hpp_plan *plan)
{
    bool ranked = false;
    eth_hpp_json_format(root, "eth-hpp-plan", 1);
    eth_hpp_json_keys(root, "format", "version", "model", "global_batch", "schedule", "dtype",
                      "optimizer", "pipelines", "blocks", "idle", "predicted", "search", NULL);
    struct eth_hpp_json model = eth_hpp_json_object(root, "model");
    eth_hpp_json_keys(&model, "name", "layers", "sequence_length", NULL);
    copy_text(plan->model, sizeof(plan->model),
              eth_hpp_json_string(&model, "name", ETH_HPP_NAME_MAX - 1));
    plan->layers = (int)eth_hpp_json_integer(&model, "layers", 1, LAYERS_MAX);
    plan->sequence_length = (int)eth_hpp_json_integer(&model, "sequence_length", 1, 1 << 24);
    plan->global_batch = (int)eth_hpp_json_integer(root, "global_batch", 1, SAMPLES_MAX);
    read_choices(root, plan);
    read_extra(root, plan);
    read_pipelines(root, plan);
    read_idle(root, plan);
    if (!eth_hpp_json_failed(root))
        check_uses(root, plan, &ranked);
    read_blocks(root, plan, ranked);
    read_predicted(root, &plan->predicted);
    read_search(root, plan);
}

static enum eth_hpp_status finish(struct eth_hpp_json_document *document,
                                  const struct eth_hpp_json *root, struct eth_hpp_plan *plan,
                                  struct eth_hpp_error *err)
{
    struct eth_hpp_plan read = {0};
    read_plan(root, &read);
    enum eth_hpp_status status = eth_hpp_json_finish(document, err);
    if (status == ETH_HPP_OK)
        *plan = read;
    else
        eth_hpp_plan_free(&read);
    return status;
}

enum eth_hpp_status eth_hpp_plan_load(const char *path, struct eth_hpp_plan *plan,
                                      struct eth_hpp_error *err)
{
    struct eth_hpp_error local;
    struct eth_hpp_json root;
    err = err != NULL ? err : &local;
    struct eth_hpp_json_document *document = eth_hpp_json_load(path, FILE_MAX, &root, err);
    return document == NULL ? err->status : finish(document, &root, plan, err);
}

enum eth_hpp_status eth_hpp_plan_parse(const char *name, const char *text, size_t size,
                                       struct eth_hpp_plan *plan, struct eth_hpp_error *err)
{
    struct eth_hpp_error local;
    struct eth_hpp_json root;
    err = err != NULL ? err : &local;
    struct eth_hpp_json_document *document = eth_hpp_json_parse(name, text, size, &root, err);
    return document == NULL ? err->status : finish(document, &root, plan, err);
}
