/* What the quick search finds for other clusters. */
#include "plan/explain.h"

#include <stdlib.h>

#include "plan/remedy.h"

/* Kinds of node that are tried, and what memory that never binds is. */
enum { KINDS_MOST = 8 };
#define UNLIMITED_BYTES 1e15

/* The step of the quick search's plan for the changed cluster; 0 where it finds none. */
static enum eth_hpp_status search(const struct eth_hpp_cluster *cluster,
                                  const struct eth_hpp_profile *profile,
                                  const struct eth_hpp_solver_options *options,
                                  struct eth_hpp_remedy change, double *step_s,
                                  struct eth_hpp_error *err)
{
    struct eth_hpp_cluster changed;
    struct eth_hpp_plan plan;
    struct eth_hpp_solver_options quick = *options;
    quick.effort = ETH_HPP_EFFORT_QUICK;
    enum eth_hpp_status status = eth_hpp_remedy_apply(cluster, &change, &changed, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_solve(&changed, profile, &quick, &plan, err);
    *step_s = status == ETH_HPP_OK ? plan.predicted.step_s : 0;
    if (status == ETH_HPP_OK)
        eth_hpp_plan_free(&plan);
    eth_hpp_cluster_free(&changed);
    return status == ETH_HPP_ERR_INFEASIBLE ? ETH_HPP_OK : status;
}

static bool is_first_of_kind(const struct eth_hpp_cluster *cluster, int node)
{
    for (int n = 0; n < node; n++)
        if (eth_hpp_explain_like_nodes(&cluster->nodes[n], &cluster->nodes[node]))
            return false;
    return true;
}

enum eth_hpp_status eth_hpp_explain_more(const struct eth_hpp_cluster *cluster,
                                         const struct eth_hpp_profile *profile,
                                         const struct eth_hpp_solver_options *options,
                                         struct eth_hpp_explanation *explanation,
                                         struct eth_hpp_error *err)
{
    struct eth_hpp_explained_node nodes[KINDS_MOST];
    int count = 0, left_out = 0;
    double quick_s, unlimited_s, larger_s;
    struct eth_hpp_solver_options larger = *options;
    larger.global_batch = options->global_batch * ETH_HPP_EXPLAINED_BATCHES;
    enum eth_hpp_status status =
        search(cluster, profile, options, (struct eth_hpp_remedy){0}, &quick_s, err);
    if (status == ETH_HPP_OK)
        status =
            search(cluster, profile, options,
                   (struct eth_hpp_remedy){.memory_bytes = UNLIMITED_BYTES}, &unlimited_s, err);
    if (status == ETH_HPP_OK)
        status = search(cluster, profile, &larger, (struct eth_hpp_remedy){0}, &larger_s, err);
    for (int n = 0; n < cluster->node_count && status == ETH_HPP_OK; n++) {
        if (!is_first_of_kind(cluster, n))
            continue;
        if (count == KINDS_MOST) {
            left_out++;
            continue;
        }
        nodes[count].like_node = n;
        status =
            search(cluster, profile, options, (struct eth_hpp_remedy){.nodes = 1, .like_node = n},
                   &nodes[count++].step_s, err);
    }
    if (status != ETH_HPP_OK)
        return status;
    struct eth_hpp_explained_node *list = malloc((size_t)(count + 1) * sizeof(*list));
    if (list == NULL)
        return eth_hpp_error_memory(err, "the explanation");
    for (int i = 0; i < count; i++)
        list[i] = nodes[i];
    explanation->quick_s = quick_s;
    explanation->unlimited_memory_s = unlimited_s;
    explanation->larger_batch_s = larger_s;
    explanation->nodes = list;
    explanation->node_count = count;
    explanation->kinds_left_out = left_out;
    return ETH_HPP_OK;
}
