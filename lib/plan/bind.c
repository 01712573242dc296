/* Binding a given plan to an allocation, by kinds of GPU. */
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum eth_hpp_status eth_hpp_plan_note_nodes(struct eth_hpp_plan *plan,
                                            const struct eth_hpp_cluster *cluster,
                                            struct eth_hpp_error *err)
{
    int count = 0;
    struct eth_hpp_plan_node *nodes = calloc((size_t)cluster->node_count + 1, sizeof(*nodes));
    for (; nodes != NULL && count < cluster->node_count; count++) {
        const struct eth_hpp_node *node = &cluster->nodes[count];
        snprintf(nodes[count].name, sizeof(nodes[count].name), "%s", node->name);
        nodes[count].gpus = node->gpus;
        nodes[count].devices = calloc((size_t)node->gpus, sizeof(*nodes[count].devices));
        if (nodes[count].devices == NULL)
            break;
        for (int g = 0; g < node->gpus; g++)
            snprintf(nodes[count].devices[g], sizeof(nodes[count].devices[g]), "%s",
                     cluster->devices[node->devices[g]].name);
    }
    struct eth_hpp_plan_node *old = plan->nodes;
    int old_count = plan->node_count;
    bool done = nodes != NULL && count == cluster->node_count;
    if (done) {
        plan->nodes = nodes;
        plan->node_count = count;
    } else {
        old = nodes;
        old_count = count;
    }
    for (int n = 0; n < old_count; n++)
        free(old[n].devices);
    free(old);
    return done ? ETH_HPP_OK : eth_hpp_error_memory(err, "the plan's nodes");
}

/* ---- matching nodes ---- */

/* A GPU that calibration told apart ("A100-SXM-40GB~0.80") is still of its kind. */
static bool same_kind(const char *a, const char *b)
{
    size_t length = strcspn(a, "~");
    return length == strcspn(b, "~") && strncmp(a, b, length) == 0;
}

/* Index of the GPU that takes the place of GPU g: the node's next of that kind, or -1. */
static int counterpart(const struct eth_hpp_plan_node *from, int g,
                       const struct eth_hpp_cluster *cluster, const struct eth_hpp_node *to)
{
    int skip = 0;
    for (int i = 0; i < g; i++)
        skip += same_kind(from->devices[i], from->devices[g]);
    for (int i = 0; i < to->gpus; i++)
        if (same_kind(cluster->devices[to->devices[i]].name, from->devices[g]) && skip-- == 0)
            return i;
    return -1;
}

/* GPUs that the node has beyond those of the plan's node, or -1 where it lacks one. */
static int surplus(const struct eth_hpp_plan_node *from, const struct eth_hpp_cluster *cluster,
                   const struct eth_hpp_node *to)
{
    for (int g = 0; g < from->gpus; g++)
        if (counterpart(from, g, cluster, to) < 0)
            return -1;
    return to->gpus - from->gpus;
}

/* Is anything of the plan's node used? */
static bool is_used(const struct eth_hpp_plan *plan, const char *name)
{
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++) {
            const struct eth_hpp_stage *stage = &plan->pipelines[p].stages[s];
            for (int w = 0; w < stage->worker_count; w++)
                if (strcmp(stage->workers[w].node, name) == 0)
                    return true;
        }
    return false;
}

static enum eth_hpp_status lacking(const struct eth_hpp_plan_node *from, struct eth_hpp_error *err)
{
    char kinds[512] = "";
    for (int g = 0; g < from->gpus; g++)
        snprintf(kinds + strlen(kinds), sizeof(kinds) - strlen(kinds), "%s%.60s", g > 0 ? ", " : "",
                 from->devices[g]);
    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                             "the plan was made for a node like %s (%s), and the allocation has no "
                             "such node left: ask for one, or leave the plan out",
                             from->name, kinds);
}

/* Chooses a node of the cluster for each used node of the plan: match[n], -1 where it is not used.
 * Own names first, then the closest fit. */
static enum eth_hpp_status match_nodes(const struct eth_hpp_plan *plan,
                                       const struct eth_hpp_cluster *cluster, int *match,
                                       bool *taken, struct eth_hpp_error *err)
{
    for (int n = 0; n < plan->node_count; n++) {
        int own = eth_hpp_cluster_find_node(cluster, plan->nodes[n].name);
        match[n] = -1;
        if (is_used(plan, plan->nodes[n].name) && own >= 0 && !taken[own] &&
            surplus(&plan->nodes[n], cluster, &cluster->nodes[own]) >= 0) {
            match[n] = own;
            taken[own] = true;
        }
    }
    for (int n = 0; n < plan->node_count; n++) {
        int least = -1;
        if (match[n] >= 0 || !is_used(plan, plan->nodes[n].name))
            continue;
        for (int c = 0; c < cluster->node_count; c++) {
            int more = taken[c] ? -1 : surplus(&plan->nodes[n], cluster, &cluster->nodes[c]);
            if (more >= 0 && (least < 0 || more < least)) {
                least = more;
                match[n] = c;
            }
        }
        if (match[n] < 0)
            return lacking(&plan->nodes[n], err);
        taken[match[n]] = true;
    }
    return ETH_HPP_OK;
}

/* ---- rewriting ---- */

static int find_plan_node(const struct eth_hpp_plan *plan, const char *name)
{
    for (int n = 0; n < plan->node_count; n++)
        if (strcmp(plan->nodes[n].name, name) == 0)
            return n;
    return -1;
}

/* Checks before anything is changed: every worker's node is noted, every GPU is on it. */
static enum eth_hpp_status check_workers(const struct eth_hpp_plan *plan,
                                         const struct eth_hpp_cluster *cluster,
                                         struct eth_hpp_error *err)
{
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++) {
            const struct eth_hpp_stage *stage = &plan->pipelines[p].stages[s];
            for (int i = 0; i < stage->worker_count * stage->tensor_parallel; i++) {
                const struct eth_hpp_worker *worker = &stage->workers[i / stage->tensor_parallel];
                int gpu = worker->gpus[i % stage->tensor_parallel], gpus = 0;
                int noted = find_plan_node(plan, worker->node);
                int own = eth_hpp_cluster_find_node(cluster, worker->node);
                if (noted >= 0)
                    gpus = plan->nodes[noted].gpus;
                else if (plan->node_count == 0 && own >= 0)
                    gpus = cluster->nodes[own].gpus;
                else
                    return eth_hpp_error_set(
                        err, ETH_HPP_ERR_INPUT,
                        "the plan does not note the kinds of GPU of node %s, and the allocation "
                        "has no node of that name",
                        worker->node);
                if (gpu >= gpus)
                    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                             "the plan uses GPU %d of node %s, which has only %d",
                                             gpu, worker->node, gpus);
            }
        }
    return ETH_HPP_OK;
}

/* Blocks name ranks, which are now others; eth_hpp_plan_complete makes them anew. */
static void drop_blocks(struct eth_hpp_plan *plan)
{
    for (int b = 0; b < plan->block_count; b++)
        free(plan->blocks[b].ranks);
    free(plan->blocks);
    plan->blocks = NULL;
    plan->block_count = 0;
}

static void rewrite_workers(struct eth_hpp_plan *plan, const struct eth_hpp_cluster *cluster,
                            const int *match)
{
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++) {
            struct eth_hpp_stage *stage = &plan->pipelines[p].stages[s];
            for (int w = 0; w < stage->worker_count; w++) {
                struct eth_hpp_worker *worker = &stage->workers[w];
                int n = find_plan_node(plan, worker->node);
                const struct eth_hpp_node *node =
                    &cluster->nodes[n >= 0 ? match[n]
                                           : eth_hpp_cluster_find_node(cluster, worker->node)];
                for (int t = 0; t < stage->tensor_parallel; t++) {
                    if (n >= 0)
                        worker->gpus[t] =
                            counterpart(&plan->nodes[n], worker->gpus[t], cluster, node);
                    worker->ranks[t] = node->first_rank + worker->gpus[t];
                }
                snprintf(worker->node, sizeof(worker->node), "%s", node->name);
            }
        }
}

/* GPUs of the allocation that the plan leaves idle, node by node. */
static enum eth_hpp_status rewrite_idle(struct eth_hpp_plan *plan,
                                        const struct eth_hpp_cluster *cluster,
                                        struct eth_hpp_error *err)
{
    struct eth_hpp_idle *list = calloc((size_t)cluster->node_count + 1, sizeof(*list));
    int count = 0;
    for (int n = 0; list != NULL && n < cluster->node_count; n++) {
        const struct eth_hpp_node *node = &cluster->nodes[n];
        struct eth_hpp_idle *idle = &list[count];
        for (int g = 0; g < node->gpus; g++) {
            if (eth_hpp_plan_find_rank(plan, node->first_rank + g).pipeline >= 0)
                continue;
            if (idle->gpu_count == 0) {
                count++;
                snprintf(idle->node, sizeof(idle->node), "%s", node->name);
                snprintf(idle->why, sizeof(idle->why), "the given plan does not use it");
                idle->gpus = malloc((size_t)node->gpus * sizeof(*idle->gpus));
                idle->ranks = malloc((size_t)node->gpus * sizeof(*idle->ranks));
            }
            if (idle->gpus == NULL || idle->ranks == NULL)
                goto failed;
            idle->gpus[idle->gpu_count] = g;
            idle->ranks[idle->gpu_count++] = node->first_rank + g;
        }
    }
    if (list == NULL)
        return eth_hpp_error_memory(err, "the plan's idle GPUs");
    for (int i = 0; i < plan->idle_count; i++) {
        free(plan->idle[i].gpus);
        free(plan->idle[i].ranks);
    }
    free(plan->idle);
    plan->idle = list;
    plan->idle_count = count;
    return ETH_HPP_OK;
failed:
    for (int i = 0; i < count; i++) {
        free(list[i].gpus);
        free(list[i].ranks);
    }
    free(list);
    return eth_hpp_error_memory(err, "the plan's idle GPUs");
}

enum eth_hpp_status eth_hpp_plan_bind(struct eth_hpp_plan *plan,
                                      const struct eth_hpp_cluster *cluster,
                                      const struct eth_hpp_profile *profile,
                                      struct eth_hpp_error *err)
{
    int *match = malloc((size_t)(plan->node_count + 1) * sizeof(*match));
    bool *taken = calloc((size_t)cluster->node_count + 1, sizeof(*taken));
    enum eth_hpp_status status = ETH_HPP_OK;
    if (match == NULL || taken == NULL)
        status = eth_hpp_error_memory(err, "the binding of a plan");
    if (status == ETH_HPP_OK)
        status = check_workers(plan, cluster, err);
    if (status == ETH_HPP_OK)
        status = match_nodes(plan, cluster, match, taken, err);
    if (status == ETH_HPP_OK && plan->layers != profile->layer_count)
        status =
            eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "the plan is for %d layers, but %s has %d",
                              plan->layers, profile->model, profile->layer_count);
    if (status == ETH_HPP_OK) {
        rewrite_workers(plan, cluster, match);
        drop_blocks(plan);
        status = rewrite_idle(plan, cluster, err);
    }
    if (status == ETH_HPP_OK)
        status = eth_hpp_plan_note_nodes(plan, cluster, err);
    if (status == ETH_HPP_OK) {
        /* What was predicted was for other ranks and perhaps other links. */
        free(plan->predicted.ranks);
        plan->predicted = (struct eth_hpp_predicted){0};
        status = eth_hpp_plan_complete(plan, cluster, profile, err);
    }
    free(match);
    free(taken);
    return status;
}

/* ---- other numbers ---- */

static bool renumber_list(int *ranks, int length, const int *rank_of, int count)
{
    for (int i = 0; i < length; i++) {
        if (ranks[i] < 0 || ranks[i] >= count || rank_of[ranks[i]] < 0)
            return false;
        ranks[i] = rank_of[ranks[i]];
    }
    return true;
}

static int compare_ints(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static int compare_predicted(const void *a, const void *b)
{
    const struct eth_hpp_predicted_rank *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

enum eth_hpp_status eth_hpp_plan_renumber(struct eth_hpp_plan *plan, const int *rank_of, int count,
                                          struct eth_hpp_error *err)
{
    bool whole = true;
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++) {
            struct eth_hpp_stage *stage = &plan->pipelines[p].stages[s];
            for (int w = 0; w < stage->worker_count; w++)
                whole = renumber_list(stage->workers[w].ranks, stage->tensor_parallel, rank_of,
                                      count) &&
                        whole;
        }
    for (int b = 0; b < plan->block_count; b++) {
        struct eth_hpp_block *block = &plan->blocks[b];
        whole = renumber_list(block->ranks, block->rank_count, rank_of, count) && whole;
        qsort(block->ranks, (size_t)block->rank_count, sizeof(*block->ranks), compare_ints);
    }
    for (int i = 0; i < plan->idle_count; i++)
        whole =
            renumber_list(plan->idle[i].ranks, plan->idle[i].gpu_count, rank_of, count) && whole;
    struct eth_hpp_predicted *predicted = &plan->predicted;
    for (int i = 0; i < predicted->rank_count; i++)
        whole = renumber_list(&predicted->ranks[i].rank, 1, rank_of, count) && whole;
    if (predicted->rank_count > 0)
        qsort(predicted->ranks, (size_t)predicted->rank_count, sizeof(*predicted->ranks),
              compare_predicted);
    return whole ? ETH_HPP_OK
                 : eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                     "the plan has a rank that the job does not have");
}
