#include "plan/explain.h"

#include <stdlib.h>
#include <string.h>

#include "base/hostlist.h"
#include "plan/evaluate.h"

void eth_hpp_explanation_free(struct eth_hpp_explanation *explanation)
{
    for (int r = 0; r < explanation->resource_count; r++)
        free(explanation->resources[r].nodes);
    free(explanation->resources);
    free(explanation->nodes);
    *explanation = (struct eth_hpp_explanation){0};
}

bool eth_hpp_explain_like_nodes(const struct eth_hpp_node *a, const struct eth_hpp_node *b)
{
    return a->gpus == b->gpus &&
           memcmp(a->devices, b->devices, (size_t)a->gpus * sizeof(*a->devices)) == 0 &&
           a->intra_bandwidth == b->intra_bandwidth && a->intra_latency_s == b->intra_latency_s &&
           a->inter_bandwidth == b->inter_bandwidth && a->inter_latency_s == b->inter_latency_s &&
           a->inter_bandwidth_per_gpu == b->inter_bandwidth_per_gpu;
}

/* ---- a world in which something is faster ---- */

/* Copies of what resources are made of, beside the originals. */
struct world {
    const struct eth_hpp_cluster *real_cluster;
    const struct eth_hpp_profile *real_profile;
    struct eth_hpp_cluster cluster; /* nodes and links are copies, their lists the originals' */
    struct eth_hpp_profile profile; /* times and optimizer are copies, their lists too */
    struct eth_hpp_layer_time *layer_times;
    const struct eth_hpp_layout *layout;
    struct eth_hpp_evaluator evaluator;
    struct eth_hpp_cost cost;
};

static size_t layer_times(const struct eth_hpp_profile *profile, int i)
{
    return (size_t)profile->times[i].points * (size_t)profile->kind_count;
}

/* Everything as it is. */
static void restore(struct world *world)
{
    const struct eth_hpp_cluster *cluster = world->real_cluster;
    const struct eth_hpp_profile *profile = world->real_profile;
    struct eth_hpp_layer_time *at = world->layer_times;
    memcpy(world->cluster.nodes, cluster->nodes,
           (size_t)cluster->node_count * sizeof(*cluster->nodes));
    if (cluster->link_count > 0)
        memcpy(world->cluster.links, cluster->links,
               (size_t)cluster->link_count * sizeof(*cluster->links));
    for (int i = 0; i < profile->times_count; i++) {
        world->profile.times[i] = profile->times[i];
        world->profile.times[i].times = at;
        memcpy(at, profile->times[i].times, layer_times(profile, i) * sizeof(*at));
        at += layer_times(profile, i);
    }
    if (profile->optimizer_count > 0)
        memcpy(world->profile.optimizer, profile->optimizer,
               (size_t)profile->optimizer_count * sizeof(*profile->optimizer));
}

static void close_world(struct world *world)
{
    free(world->cluster.nodes);
    free(world->cluster.links);
    free(world->profile.times);
    free(world->profile.optimizer);
    free(world->layer_times);
    eth_hpp_evaluator_free(&world->evaluator);
}

static bool open_world(struct world *world, const struct eth_hpp_cluster *cluster,
                       const struct eth_hpp_profile *profile, const struct eth_hpp_layout *layout)
{
    size_t times = 0;
    for (int i = 0; i < profile->times_count; i++)
        times += layer_times(profile, i);
    *world = (struct world){.real_cluster = cluster,
                            .real_profile = profile,
                            .cluster = *cluster,
                            .profile = *profile,
                            .layer_times = malloc((times + 1) * sizeof(*world->layer_times)),
                            .layout = layout};
    world->evaluator.cost = &world->cost;
    world->cluster.nodes = calloc((size_t)cluster->node_count + 1, sizeof(*cluster->nodes));
    world->cluster.links = calloc((size_t)cluster->link_count + 1, sizeof(*cluster->links));
    world->profile.times = calloc((size_t)profile->times_count + 1, sizeof(*profile->times));
    world->profile.optimizer =
        calloc((size_t)profile->optimizer_count + 1, sizeof(*profile->optimizer));
    return world->layer_times != NULL && world->cluster.nodes != NULL &&
           world->cluster.links != NULL && world->profile.times != NULL &&
           world->profile.optimizer != NULL;
}

static void quicken_device(struct world *world, int device, double factor)
{
    const char *name = world->cluster.devices[device].name;
    for (int i = 0; i < world->profile.times_count; i++) {
        struct eth_hpp_times *times = &world->profile.times[i];
        for (size_t t = 0; strcmp(times->device, name) == 0 && t < layer_times(&world->profile, i);
             t++) {
            times->times[t].forward_s *= factor;
            times->times[t].backward_s *= factor;
        }
    }
}

static void quicken_nodes(struct world *world, int like, bool inside, double factor)
{
    for (int n = 0; n < world->cluster.node_count; n++) {
        struct eth_hpp_node *node = &world->cluster.nodes[n];
        if (!eth_hpp_explain_like_nodes(&world->real_cluster->nodes[n],
                                        &world->real_cluster->nodes[like]))
            continue;
        if (inside) {
            node->intra_bandwidth /= factor;
            node->intra_latency_s *= factor;
        } else {
            node->inter_bandwidth /= factor;
            node->inter_bandwidth_per_gpu /= factor;
            node->inter_latency_s *= factor;
        }
    }
}

/* The resource takes `factor` times as long. */
static void quicken(struct world *world, const struct eth_hpp_explained_resource *resource,
                    double factor)
{
    restore(world);
    switch (resource->kind) {
    case ETH_HPP_EXPLAINED_COMPUTE:
        quicken_device(world, resource->index, factor);
        break;
    case ETH_HPP_EXPLAINED_OPTIMIZER:
        for (int i = 0; i < world->profile.optimizer_count; i++)
            world->profile.optimizer[i].s_per_parameter *= factor;
        break;
    case ETH_HPP_EXPLAINED_LINK:
        world->cluster.links[resource->index].bandwidth /= factor;
        world->cluster.links[resource->index].latency_s *= factor;
        break;
    default:
        quicken_nodes(world, resource->index, resource->kind == ETH_HPP_EXPLAINED_INSIDE, factor);
    }
}

/* ---- its step ---- */

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* A step whose data is dealt in fractions. */
struct dealt {
    struct eth_hpp_step step; /* as it is */
    double compute_s;         /* when all pipelines end together */
    double fill_drain_s;
};

static enum eth_hpp_status measure(struct world *world, struct dealt *dealt,
                                   struct eth_hpp_error *err)
{
    const struct eth_hpp_layout *layout = world->layout;
    enum eth_hpp_status status =
        eth_hpp_cost_init(&world->cost, &world->cluster, &world->profile, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_evaluate(&world->evaluator, layout, NULL, &dealt->step, err);
    double weights = 0, ends = 0, fills = 0;
    for (int p = 0; p < layout->pipeline_count && status == ETH_HPP_OK; p++) {
        const struct eth_hpp_layout_pipeline *pipeline = &layout->pipelines[p];
        const struct eth_hpp_stage_run *runs = world->evaluator.runs + pipeline->first_stage;
        double end = 0, beat = eth_hpp_pipeline_find_pace(runs, pipeline->stage_count,
                                                          pipeline->micro_batches + 1)
                                   .beat_s;
        for (int s = 0; s < pipeline->stage_count; s++)
            end = larger(end, runs[s].last_end_s);
        double weight = pipeline->micro_batch / beat;
        weights += weight;
        ends += weight * end;
        fills += weight * (end - pipeline->micro_batches * beat);
    }
    dealt->compute_s = ends / weights;
    dealt->fill_drain_s = fills / weights;
    eth_hpp_cost_free(&world->cost);
    return status;
}

static double total(const struct dealt *dealt)
{
    return dealt->compute_s + dealt->step.step_s - dealt->step.compute_s;
}

/* ---- the resources ---- */

/* Does the plan compute on the device? */
static bool computes(const struct eth_hpp_layout *layout, int device)
{
    for (int w = 0; w < layout->worker_count; w++)
        if (layout->workers[w].device == device)
            return true;
    return false;
}

static struct eth_hpp_explained_resource *add(struct eth_hpp_explanation *e,
                                              enum eth_hpp_explained_kind kind, int index)
{
    struct eth_hpp_explained_resource *resource = &e->resources[e->resource_count++];
    *resource = (struct eth_hpp_explained_resource){.kind = kind, .index = index};
    return resource;
}

/* Nodes like this one as a hostlist; NULL when out of memory, or where an earlier one is like it
 * (*first is false then). */
static char *fold_like(const struct eth_hpp_cluster *cluster, int node, bool *first)
{
    const char **names = malloc((size_t)cluster->node_count * sizeof(*names));
    int count = 0;
    *first = true;
    for (int n = 0; names != NULL && n < cluster->node_count && *first; n++)
        if (eth_hpp_explain_like_nodes(&cluster->nodes[n], &cluster->nodes[node])) {
            *first = n >= node;
            names[count++] = cluster->nodes[n].name;
        }
    char *text = names != NULL && *first ? eth_hpp_hostlist_fold(names, count) : NULL;
    free(names);
    return text;
}

static bool list_resources(struct eth_hpp_explanation *e, const struct eth_hpp_cluster *cluster,
                           const struct eth_hpp_layout *layout)
{
    size_t most = (size_t)cluster->device_count + 1 + 2 * (size_t)cluster->node_count +
                  (size_t)cluster->link_count;
    e->resources = malloc(most * sizeof(*e->resources));
    if (e->resources == NULL)
        return false;
    for (int d = 0; d < cluster->device_count; d++)
        if (computes(layout, d))
            add(e, ETH_HPP_EXPLAINED_COMPUTE, d);
    add(e, ETH_HPP_EXPLAINED_OPTIMIZER, -1);
    for (int n = 0; n < cluster->node_count; n++) {
        bool first;
        char *nodes = fold_like(cluster, n, &first);
        if (!first)
            continue;
        add(e, ETH_HPP_EXPLAINED_INSIDE, n)->nodes = nodes;
        struct eth_hpp_explained_resource *network = add(e, ETH_HPP_EXPLAINED_NETWORK, n);
        network->nodes = nodes != NULL ? strdup(nodes) : NULL;
        if (network->nodes == NULL)
            return false;
    }
    for (int i = 0; i < cluster->link_count; i++)
        add(e, ETH_HPP_EXPLAINED_LINK, i);
    return true;
}

static int compare_resources(const void *a, const void *b)
{
    const struct eth_hpp_explained_resource *x = a, *y = b;
    if (x->share != y->share)
        return x->share < y->share ? 1 : -1;
    return x->kind != y->kind ? (int)x->kind - (int)y->kind : x->index - y->index;
}

static enum eth_hpp_status weigh(struct world *world, struct eth_hpp_explanation *e,
                                 struct eth_hpp_error *err)
{
    const double little = 1e-5;
    struct dealt now, then;
    restore(world);
    enum eth_hpp_status status = measure(world, &now, err);
    if (status != ETH_HPP_OK)
        return status;
    e->step_s = now.step.step_s;
    e->exposed_sync_s = now.step.exposed_sync_s;
    /* Differences of like numbers: not below zero by a rounding error. */
    e->fill_drain_s = larger(0, now.fill_drain_s);
    e->whole_micro_batches_s = larger(0, now.step.compute_s - now.compute_s);
    e->several_share = 1;
    for (int r = 0; r < e->resource_count && status == ETH_HPP_OK; r++) {
        struct eth_hpp_explained_resource *resource = &e->resources[r];
        quicken(world, resource, 1 - little);
        status = measure(world, &then, err);
        if (status != ETH_HPP_OK)
            break;
        resource->share = (total(&now) - total(&then)) / little / total(&now);
        e->several_share -= resource->share;
        quicken(world, resource, 0.5);
        status = measure(world, &then, err);
        resource->twice_s = e->step_s - total(&now) + total(&then);
    }
    qsort(e->resources, (size_t)e->resource_count, sizeof(*e->resources), compare_resources);
    return status;
}

enum eth_hpp_status eth_hpp_explain_shares(const struct eth_hpp_plan *plan,
                                           const struct eth_hpp_cluster *cluster,
                                           const struct eth_hpp_profile *profile,
                                           struct eth_hpp_explanation *explanation,
                                           struct eth_hpp_error *err)
{
    struct world world = {0};
    struct eth_hpp_layout layout = {0};
    struct eth_hpp_explanation made = {0};
    enum eth_hpp_status status = eth_hpp_layout_from_plan(plan, cluster, &layout, err);
    if (status == ETH_HPP_OK && (!open_world(&world, cluster, profile, &layout) ||
                                 !list_resources(&made, cluster, &layout)))
        status = eth_hpp_error_memory(err, "the explanation");
    if (status == ETH_HPP_OK)
        status = weigh(&world, &made, err);
    if (status == ETH_HPP_OK)
        *explanation = made;
    else
        eth_hpp_explanation_free(&made);
    close_world(&world);
    eth_hpp_layout_free(&layout);
    return status;
}

enum eth_hpp_status
eth_hpp_explain(const struct eth_hpp_plan *plan, const struct eth_hpp_cluster *cluster,
                const struct eth_hpp_profile *profile, const struct eth_hpp_solver_options *options,
                struct eth_hpp_explanation *explanation, struct eth_hpp_error *err)
{
    struct eth_hpp_explanation made;
    enum eth_hpp_status status = eth_hpp_explain_shares(plan, cluster, profile, &made, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_explain_more(cluster, profile, options, &made, err);
    if (status == ETH_HPP_OK)
        *explanation = made;
    else
        eth_hpp_explanation_free(&made);
    return status;
}
