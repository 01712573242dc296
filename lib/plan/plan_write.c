/* Writing of `eth-hpp-plan` files. */
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hostlist.h"

static struct json_object *int_list(const int *list, int count)
{
    struct json_object *array = json_object_new_array();
    for (int i = 0; i < count; i++)
        eth_hpp_json_append(&array, json_object_new_int(list[i]));
    return array;
}

static struct json_object *range(int first, int end)
{
    return int_list((int[]){first, end}, 2);
}

static void put_int(struct json_object **object, const char *key, int value)
{
    eth_hpp_json_put(object, key, json_object_new_int(value));
}

static void put_number(struct json_object **object, const char *key, double value)
{
    eth_hpp_json_put(object, key, eth_hpp_json_new_number(value));
}

static void put_text(struct json_object **object, const char *key, const char *text)
{
    eth_hpp_json_put(object, key, json_object_new_string(text));
}

static struct json_object *write_stage(const struct eth_hpp_stage *stage)
{
    struct json_object *object = json_object_new_object(), *workers = json_object_new_array();
    eth_hpp_json_put(&object, "layers", range(stage->first_layer, stage->end_layer));
    put_int(&object, "tensor_parallel", stage->tensor_parallel);
    eth_hpp_json_put(&object, "recompute", json_object_new_boolean(stage->recompute));
    put_int(&object, "in_flight", stage->in_flight);
    for (int w = 0; w < stage->worker_count; w++) {
        const struct eth_hpp_worker *worker = &stage->workers[w];
        struct json_object *entry = json_object_new_object();
        put_text(&entry, "node", worker->node);
        eth_hpp_json_put(&entry, "gpus", int_list(worker->gpus, stage->tensor_parallel));
        if (worker->ranks[0] >= 0)
            eth_hpp_json_put(&entry, "ranks", int_list(worker->ranks, stage->tensor_parallel));
        put_int(&entry, "samples", worker->samples);
        eth_hpp_json_append(&workers, entry);
    }
    eth_hpp_json_put(&object, "workers", workers);
    return object;
}

static struct json_object *write_pipelines(const struct eth_hpp_plan *plan)
{
    struct json_object *list = json_object_new_array();
    for (int p = 0; p < plan->pipeline_count; p++) {
        const struct eth_hpp_pipeline *pipeline = &plan->pipelines[p];
        struct json_object *entry = json_object_new_object(), *stages = json_object_new_array();
        put_int(&entry, "micro_batch", pipeline->micro_batch);
        put_int(&entry, "micro_batches", pipeline->micro_batches);
        for (int s = 0; s < pipeline->stage_count; s++)
            eth_hpp_json_append(&stages, write_stage(&pipeline->stages[s]));
        eth_hpp_json_put(&entry, "stages", stages);
        eth_hpp_json_append(&list, entry);
    }
    return list;
}

static struct json_object *write_blocks(const struct eth_hpp_plan *plan)
{
    struct json_object *list = json_object_new_array();
    for (int b = 0; b < plan->block_count; b++) {
        const struct eth_hpp_block *block = &plan->blocks[b];
        struct json_object *entry = json_object_new_object();
        if (block->tied >= 0)
            put_text(&entry, "tied", block->tied_name);
        else
            eth_hpp_json_put(&entry, "layers", range(block->first_layer, block->end_layer));
        eth_hpp_json_put(&entry, "ranks", int_list(block->ranks, block->rank_count));
        eth_hpp_json_append(&list, entry);
    }
    return list;
}

static struct json_object *write_idle(const struct eth_hpp_plan *plan)
{
    struct json_object *list = json_object_new_array();
    for (int i = 0; i < plan->idle_count; i++) {
        const struct eth_hpp_idle *idle = &plan->idle[i];
        struct json_object *entry = json_object_new_object();
        put_text(&entry, "node", idle->node);
        eth_hpp_json_put(&entry, "gpus", int_list(idle->gpus, idle->gpu_count));
        if (idle->ranks[0] >= 0)
            eth_hpp_json_put(&entry, "ranks", int_list(idle->ranks, idle->gpu_count));
        put_text(&entry, "why", idle->why);
        eth_hpp_json_append(&list, entry);
    }
    return list;
}

static struct json_object *write_predicted(const struct eth_hpp_predicted *predicted)
{
    struct json_object *object = json_object_new_object(), *ranks = json_object_new_array();
    put_number(&object, "step_s", predicted->step_s);
    put_number(&object, "compute_s", predicted->compute_s);
    put_number(&object, "exposed_sync_s", predicted->exposed_sync_s);
    put_number(&object, "optimizer_s", predicted->optimizer_s);
    put_number(&object, "bubble_fraction", predicted->bubble_fraction);
    put_number(&object, "lower_bound_s", predicted->lower_bound_s);
    put_number(&object, "gap", predicted->gap);
    for (int i = 0; i < predicted->rank_count; i++) {
        const struct eth_hpp_predicted_rank *rank = &predicted->ranks[i];
        struct json_object *entry = json_object_new_object();
        put_int(&entry, "rank", rank->rank);
        put_number(&entry, "busy_s", rank->busy_s);
        put_number(&entry, "peak_memory_bytes", rank->peak_memory_bytes);
        put_number(&entry, "memory_limit_bytes", rank->memory_limit_bytes);
        eth_hpp_json_append(&ranks, entry);
    }
    eth_hpp_json_put(&object, "ranks", ranks);
    return object;
}

static bool same_gpus(const struct eth_hpp_plan_node *a, const struct eth_hpp_plan_node *b)
{
    if (a->gpus != b->gpus)
        return false;
    for (int g = 0; g < a->gpus; g++)
        if (strcmp(a->devices[g], b->devices[g]) != 0)
            return false;
    return true;
}

/* Like nodes in a row are folded into a hostlist. */
static struct json_object *write_nodes(const struct eth_hpp_plan *plan)
{
    struct json_object *list = json_object_new_array();
    const char **names = malloc((size_t)(plan->node_count + 1) * sizeof(*names));
    for (int n = 0, end; n < plan->node_count; n = end) {
        const struct eth_hpp_plan_node *node = &plan->nodes[n];
        struct json_object *entry = json_object_new_object(), *gpus = json_object_new_array();
        for (end = n; names != NULL && end < plan->node_count && same_gpus(node, &plan->nodes[end]);
             end++)
            names[end - n] = plan->nodes[end].name;
        char *text = names != NULL ? eth_hpp_hostlist_fold(names, end - n) : NULL;
        eth_hpp_json_put(&entry, "name", text != NULL ? json_object_new_string(text) : NULL);
        for (int g = 0; g < node->gpus; g++)
            eth_hpp_json_append(&gpus, json_object_new_string(node->devices[g]));
        eth_hpp_json_put(&entry, "gpus", gpus);
        eth_hpp_json_append(&list, entry);
        free(text);
        if (names == NULL)
            break;
    }
    free(names);
    return list;
}

static struct json_object *write_extra(const struct eth_hpp_plan *plan)
{
    struct json_object *extra = json_object_new_object();
    if (plan->estimated)
        eth_hpp_json_put(&extra, "estimated", json_object_new_boolean(true));
    if (plan->emulated)
        eth_hpp_json_put(&extra, "emulated", json_object_new_boolean(true));
    if (plan->node_count > 0)
        eth_hpp_json_put(&extra, "nodes", write_nodes(plan));
    return extra;
}

/* NULL when out of memory. */
static struct json_object *write_plan(const struct eth_hpp_plan *plan)
{
    struct json_object *root = eth_hpp_json_new_file("eth-hpp-plan", 1);
    struct json_object *model = json_object_new_object(), *search = json_object_new_object();
    put_text(&model, "name", plan->model);
    put_int(&model, "layers", plan->layers);
    put_int(&model, "sequence_length", plan->sequence_length);
    eth_hpp_json_put(&root, "model", model);
    put_int(&root, "global_batch", plan->global_batch);
    put_text(&root, "schedule", "1f1b");
    put_text(&root, "dtype", eth_hpp_dtype_name(plan->dtype));
    put_text(&root, "optimizer", plan->sharded_optimizer ? "sharded" : "replicated");
    eth_hpp_json_put(&root, "pipelines", write_pipelines(plan));
    if (plan->block_count > 0)
        eth_hpp_json_put(&root, "blocks", write_blocks(plan));
    eth_hpp_json_put(&root, "idle", write_idle(plan));
    if (plan->predicted.step_s > 0)
        eth_hpp_json_put(&root, "predicted", write_predicted(&plan->predicted));
    if (plan->search.solver[0] != '\0') {
        /* Not its seconds: the same input gives the same file. */
        eth_hpp_json_put(&search, "considered", json_object_new_int64(plan->search.considered));
        put_text(&search, "solver", plan->search.solver);
        eth_hpp_json_put(&root, "search", search);
    } else {
        json_object_put(search);
    }
    if (plan->estimated || plan->emulated || plan->node_count > 0)
        eth_hpp_json_put(&root, "extra", write_extra(plan));
    return root;
}

enum eth_hpp_status eth_hpp_plan_print(const struct eth_hpp_plan *plan, char **text,
                                       struct eth_hpp_error *err)
{
    struct json_object *root = write_plan(plan);
    const char *body = root != NULL ? json_object_to_json_string_ext(
                                          root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED |
                                                    JSON_C_TO_STRING_NOSLASHESCAPE)
                                    : NULL;
    char *copy = body != NULL ? strdup(body) : NULL;
    json_object_put(root);
    if (copy == NULL)
        return eth_hpp_error_memory(err, "the plan's text");
    *text = copy;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_plan_save(const struct eth_hpp_plan *plan, const char *path,
                                      struct eth_hpp_error *err)
{
    return eth_hpp_json_save(write_plan(plan), path, err);
}
