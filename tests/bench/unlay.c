#include "tests/bench/unlay.h"

#include <stdio.h>
#include <stdlib.h>

#include "plan/simulate.h"

/* The lowest GPU of the kind on the node that is not taken yet; -1: none. */
static int take(const struct eth_hpp_cluster *cluster, const struct eth_hpp_layout_worker *worker,
                bool *taken)
{
    const struct eth_hpp_node *node = &cluster->nodes[worker->node];
    for (int g = 0; g < node->gpus; g++)
        if (node->devices[g] == worker->device && !taken[node->first_rank + g]) {
            taken[node->first_rank + g] = true;
            return g;
        }
    return -1;
}

static void print_stage(const struct eth_hpp_layout *layout,
                        const struct eth_hpp_layout_stage *stage,
                        const struct eth_hpp_cluster *cluster, bool *taken, FILE *out)
{
    fprintf(out,
            "{\"layers\":[%d,%d],\"tensor_parallel\":%d,\"recompute\":%s,\"in_flight\":%d,"
            "\"workers\":[",
            stage->first_layer, stage->end_layer, stage->tensor_parallel,
            stage->recompute ? "true" : "false", stage->in_flight);
    for (int w = 0; w < stage->worker_count; w++) {
        const struct eth_hpp_layout_worker *worker = &layout->workers[stage->first_worker + w];
        fprintf(out, "%s{\"node\":\"%s\",\"samples\":%d,\"gpus\":[", w > 0 ? "," : "",
                cluster->nodes[worker->node].name, worker->samples);
        for (int t = 0; t < stage->tensor_parallel; t++)
            fprintf(out, "%s%d", t > 0 ? "," : "", take(cluster, worker, taken));
        fprintf(out, "]}");
    }
    fprintf(out, "]}");
}

static void print_plan(const struct eth_hpp_layout *layout, const struct eth_hpp_cluster *cluster,
                       const struct eth_hpp_profile *profile, bool *taken, FILE *out)
{
    int batch = 0;
    for (int p = 0; p < layout->pipeline_count; p++)
        batch += layout->pipelines[p].micro_batch * layout->pipelines[p].micro_batches;
    fprintf(out,
            "{\"format\":\"eth-hpp-plan\",\"version\":1,\"model\":{\"name\":\"%s\",\"layers\":%d,"
            "\"sequence_length\":%d},\"global_batch\":%d,\"schedule\":\"1f1b\",\"dtype\":\"%s\","
            "\"optimizer\":\"%s\",\"pipelines\":[",
            profile->model, profile->layer_count, profile->sequence_length, batch,
            eth_hpp_dtype_name(profile->dtype),
            layout->sharded_optimizer ? "sharded" : "replicated");
    for (int p = 0; p < layout->pipeline_count; p++) {
        const struct eth_hpp_layout_pipeline *pipeline = &layout->pipelines[p];
        fprintf(out, "%s{\"micro_batch\":%d,\"micro_batches\":%d,\"stages\":[", p > 0 ? "," : "",
                pipeline->micro_batch, pipeline->micro_batches);
        for (int s = 0; s < pipeline->stage_count; s++) {
            fprintf(out, "%s", s > 0 ? "," : "");
            print_stage(layout, &layout->stages[pipeline->first_stage + s], cluster, taken, out);
        }
        fprintf(out, "]}");
    }
    fprintf(out, "]}");
}

enum eth_hpp_status unlay(const struct eth_hpp_layout *layout,
                          const struct eth_hpp_cluster *cluster,
                          const struct eth_hpp_profile *profile, struct eth_hpp_plan *plan,
                          struct eth_hpp_error *err)
{
    char *text = NULL;
    size_t size = 0;
    struct eth_hpp_plan made = {0};
    struct eth_hpp_simulation simulation;
    bool *taken = calloc((size_t)cluster->gpu_count, sizeof(*taken));
    FILE *out = taken != NULL ? open_memstream(&text, &size) : NULL;
    enum eth_hpp_status status = ETH_HPP_OK;
    if (out != NULL)
        print_plan(layout, cluster, profile, taken, out);
    if (out == NULL || fclose(out) != 0)
        status = eth_hpp_error_memory(err, "a plan");
    if (status == ETH_HPP_OK)
        status = eth_hpp_plan_parse("plan", text, size, &made, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_plan_complete(&made, cluster, profile, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_simulate(&made, cluster, profile, false, &simulation, err);
    if (status == ETH_HPP_OK) {
        if (!simulation.feasible)
            status = eth_hpp_error_set(err, ETH_HPP_ERR_INFEASIBLE, "the plan %s", simulation.why);
        made.predicted = simulation.predicted; /* takes the ranks over */
    }
    if (status == ETH_HPP_OK)
        *plan = made;
    else
        eth_hpp_plan_free(&made);
    free(text);
    free(taken);
    return status;
}
