#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_stage(struct eth_hpp_stage *stage)
{
    for (int w = 0; w < stage->worker_count; w++) {
        free(stage->workers[w].gpus);
        free(stage->workers[w].ranks);
    }
    free(stage->workers);
}

void eth_hpp_plan_free(struct eth_hpp_plan *plan)
{
    for (int p = 0; p < plan->pipeline_count; p++) {
        for (int s = 0; s < plan->pipelines[p].stage_count; s++)
            free_stage(&plan->pipelines[p].stages[s]);
        free(plan->pipelines[p].stages);
    }
    for (int b = 0; b < plan->block_count; b++)
        free(plan->blocks[b].ranks);
    for (int i = 0; i < plan->idle_count; i++) {
        free(plan->idle[i].gpus);
        free(plan->idle[i].ranks);
    }
    for (int n = 0; n < plan->node_count; n++)
        free(plan->nodes[n].devices);
    free(plan->nodes);
    free(plan->pipelines);
    free(plan->blocks);
    free(plan->idle);
    free(plan->predicted.ranks);
    *plan = (struct eth_hpp_plan){0};
}

int eth_hpp_plan_computing_ranks(const struct eth_hpp_plan *plan)
{
    int count = 0;
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++)
            count += plan->pipelines[p].stages[s].worker_count *
                     plan->pipelines[p].stages[s].tensor_parallel;
    return count;
}

struct eth_hpp_place eth_hpp_plan_find_rank(const struct eth_hpp_plan *plan, int rank)
{
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++) {
            const struct eth_hpp_stage *stage = &plan->pipelines[p].stages[s];
            for (int w = 0; w < stage->worker_count; w++)
                for (int t = 0; t < stage->tensor_parallel; t++)
                    if (stage->workers[w].ranks[t] == rank)
                        return (struct eth_hpp_place){p, s, w};
        }
    return (struct eth_hpp_place){-1, -1, -1};
}

/* Finds the worker's node and GPUs in the cluster and numbers its ranks where the file did not. */
static enum eth_hpp_status complete_worker(const struct eth_hpp_stage *stage,
                                           struct eth_hpp_worker *worker,
                                           const struct eth_hpp_cluster *cluster,
                                           struct eth_hpp_error *err)
{
    int index = eth_hpp_cluster_find_node(cluster, worker->node);
    if (index < 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "the cluster has no node %s",
                                 worker->node);
    const struct eth_hpp_node *node = &cluster->nodes[index];
    for (int t = 0; t < stage->tensor_parallel; t++) {
        if (worker->gpus[t] >= node->gpus)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "node %s has no GPU %d, only %d",
                                     worker->node, worker->gpus[t], node->gpus);
        if (node->devices[worker->gpus[t]] != node->devices[worker->gpus[0]])
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                     "node %s: a tensor-parallel group of unlike GPUs",
                                     worker->node);
        if (worker->ranks[t] < 0)
            worker->ranks[t] = node->first_rank + worker->gpus[t];
    }
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_plan_complete(struct eth_hpp_plan *plan,
                                          const struct eth_hpp_cluster *cluster,
                                          const struct eth_hpp_profile *profile,
                                          struct eth_hpp_error *err)
{
    if (plan->layers != profile->layer_count)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "the plan has %d layers, the profile of %s has %d", plan->layers,
                                 profile->model, profile->layer_count);
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++) {
            struct eth_hpp_stage *stage = &plan->pipelines[p].stages[s];
            for (int w = 0; w < stage->worker_count; w++) {
                enum eth_hpp_status status =
                    complete_worker(stage, &stage->workers[w], cluster, err);
                if (status != ETH_HPP_OK)
                    return eth_hpp_error_prefix(err, "pipeline %d stage %d", p, s);
            }
        }
    return eth_hpp_plan_make_blocks(plan, profile, err);
}
