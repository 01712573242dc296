#include "plan/layout.h"

#include <stdlib.h>
#include <string.h>

static bool reserve(void **list, int *room, int needed, size_t size)
{
    if (needed <= *room)
        return true;
    int larger = needed > 2 * *room ? needed : 2 * *room;
    void *memory = realloc(*list, (size_t)larger * size);
    if (memory == NULL)
        return false;
    *list = memory;
    *room = larger;
    return true;
}

bool eth_hpp_layout_reserve(struct eth_hpp_layout *layout, int pipelines, int stages, int workers)
{
    return reserve((void **)&layout->pipelines, &layout->pipeline_room,
                   layout->pipeline_count + pipelines, sizeof(*layout->pipelines)) &&
           reserve((void **)&layout->stages, &layout->stage_room, layout->stage_count + stages,
                   sizeof(*layout->stages)) &&
           reserve((void **)&layout->workers, &layout->worker_room, layout->worker_count + workers,
                   sizeof(*layout->workers));
}

bool eth_hpp_layout_copy(struct eth_hpp_layout *to, const struct eth_hpp_layout *from)
{
    to->pipeline_count = to->stage_count = to->worker_count = 0;
    if (!eth_hpp_layout_reserve(to, from->pipeline_count, from->stage_count, from->worker_count))
        return false;
    to->pipeline_count = from->pipeline_count;
    to->stage_count = from->stage_count;
    to->worker_count = from->worker_count;
    to->sharded_optimizer = from->sharded_optimizer;
    memcpy(to->pipelines, from->pipelines, (size_t)from->pipeline_count * sizeof(*to->pipelines));
    memcpy(to->stages, from->stages, (size_t)from->stage_count * sizeof(*to->stages));
    memcpy(to->workers, from->workers, (size_t)from->worker_count * sizeof(*to->workers));
    return true;
}

void eth_hpp_layout_free(struct eth_hpp_layout *layout)
{
    free(layout->pipelines);
    free(layout->stages);
    free(layout->workers);
    *layout = (struct eth_hpp_layout){0};
}

static enum eth_hpp_status lay_stage(const struct eth_hpp_stage *stage,
                                     const struct eth_hpp_cluster *cluster,
                                     struct eth_hpp_layout *layout, struct eth_hpp_error *err)
{
    layout->stages[layout->stage_count++] =
        (struct eth_hpp_layout_stage){.first_layer = stage->first_layer,
                                      .end_layer = stage->end_layer,
                                      .tensor_parallel = stage->tensor_parallel,
                                      .in_flight = stage->in_flight,
                                      .recompute = stage->recompute,
                                      .first_worker = layout->worker_count,
                                      .worker_count = stage->worker_count};
    for (int w = 0; w < stage->worker_count; w++) {
        const struct eth_hpp_worker *worker = &stage->workers[w];
        int node = eth_hpp_cluster_find_node(cluster, worker->node);
        if (node < 0)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "the cluster has no node %s",
                                     worker->node);
        if (worker->gpus[0] >= cluster->nodes[node].gpus)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "node %s has no GPU %d, only %d",
                                     worker->node, worker->gpus[0], cluster->nodes[node].gpus);
        layout->workers[layout->worker_count++] =
            (struct eth_hpp_layout_worker){.node = node,
                                           .device = cluster->nodes[node].devices[worker->gpus[0]],
                                           .samples = worker->samples};
    }
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_layout_from_plan(const struct eth_hpp_plan *plan,
                                             const struct eth_hpp_cluster *cluster,
                                             struct eth_hpp_layout *layout,
                                             struct eth_hpp_error *err)
{
    layout->pipeline_count = layout->stage_count = layout->worker_count = 0;
    layout->sharded_optimizer = plan->sharded_optimizer;
    for (int p = 0; p < plan->pipeline_count; p++) {
        const struct eth_hpp_pipeline *pipeline = &plan->pipelines[p];
        int workers = 0;
        for (int s = 0; s < pipeline->stage_count; s++)
            workers += pipeline->stages[s].worker_count;
        if (!eth_hpp_layout_reserve(layout, 1, pipeline->stage_count, workers))
            return eth_hpp_error_memory(err, "a plan's layout");
        layout->pipelines[layout->pipeline_count++] =
            (struct eth_hpp_layout_pipeline){.micro_batch = pipeline->micro_batch,
                                             .micro_batches = pipeline->micro_batches,
                                             .first_stage = layout->stage_count,
                                             .stage_count = pipeline->stage_count};
        for (int s = 0; s < pipeline->stage_count; s++) {
            enum eth_hpp_status status = lay_stage(&pipeline->stages[s], cluster, layout, err);
            if (status != ETH_HPP_OK)
                return status;
        }
    }
    return ETH_HPP_OK;
}
