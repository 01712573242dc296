#include "plan/explain.h"

#include <string.h>

#include "base/hostlist.h"

/* Shares and changes below these are not worth a line. */
#define LEAST_SHARE  0.005
#define LEAST_CHANGE 0.005
#define LEAST_OTHER  0.05

enum { NODES_MOST = 40 };

/* "computation of A100-SXM-40GB", "network of a100-[01-04]". */
static void describe(const struct eth_hpp_explained_resource *resource,
                     const struct eth_hpp_cluster *cluster, char *text, size_t size)
{
    switch (resource->kind) {
    case ETH_HPP_EXPLAINED_COMPUTE:
        snprintf(text, size, "computation of %s", cluster->devices[resource->index].name);
        break;
    case ETH_HPP_EXPLAINED_OPTIMIZER:
        snprintf(text, size, "optimizer updates");
        break;
    case ETH_HPP_EXPLAINED_LINK: {
        const struct eth_hpp_link *link = &cluster->links[resource->index];
        snprintf(text, size, "link %d, of %s and others to %s and others", resource->index,
                 cluster->nodes[link->from[0]].name, cluster->nodes[link->to[0]].name);
        break;
    }
    default:
        snprintf(text, size, "%s %.*s%s",
                 resource->kind == ETH_HPP_EXPLAINED_INSIDE ? "links inside" : "network of",
                 NODES_MOST, resource->nodes, strlen(resource->nodes) > NODES_MOST ? "..." : "");
    }
}

/* "8 A100-SXM-40GB" or "4 A100-SXM-40GB + 4 T4". */
static void describe_node(const struct eth_hpp_cluster *cluster, int index, char *text, size_t size)
{
    const struct eth_hpp_node *node = &cluster->nodes[index];
    size_t used = 0;
    text[0] = '\0';
    for (int g = 0, end; g < node->gpus && used < size; g = end) {
        for (end = g + 1; end < node->gpus && node->devices[end] == node->devices[g];)
            end++;
        used += (size_t)snprintf(text + used, size - used, "%s%d %s", g > 0 ? " + " : "", end - g,
                                 cluster->devices[node->devices[g]].name);
    }
}

/* "1.23 s, 4.5 % shorter". */
static void describe_change(double step_s, double before_s, char *text, size_t size)
{
    double change = 1 - step_s / before_s;
    if (step_s == 0 || before_s == 0)
        snprintf(text, size, "no plan was found");
    else if (change < LEAST_CHANGE)
        snprintf(text, size, "%.4g s, no shorter plan was found", step_s);
    else
        snprintf(text, size, "%.4g s, %.1f %% shorter", step_s, 100 * change);
}

static void print_shares(const struct eth_hpp_explanation *e, const struct eth_hpp_cluster *cluster,
                         FILE *out)
{
    char text[256];
    for (int r = 0; r < e->resource_count; r++) {
        const struct eth_hpp_explained_resource *resource = &e->resources[r];
        if (resource->share < LEAST_SHARE)
            continue;
        describe(resource, cluster, text, sizeof(text));
        fprintf(out, "  %5.1f %%  %-44s twice as fast: %.4g s\n", 100 * resource->share, text,
                resource->twice_s);
    }
    if (e->several_share >= LEAST_SHARE)
        fprintf(out, "  %5.1f %%  several of these at once: none alone makes it shorter\n",
                100 * e->several_share);
}

static void print_part(const char *what, double part_s, double step_s, FILE *out)
{
    fprintf(out, "  %5.1f %%  %-44s %.4g s\n", 100 * part_s / step_s, what, part_s);
}

/* In one line: the resource, and the largest of what is no resource, where that matters. */
static void print_verdict(const struct eth_hpp_explanation *e,
                          const struct eth_hpp_cluster *cluster, FILE *out)
{
    const struct {
        const char *what;
        double part;
    } others[] = {
        {"pipelines that fill and drain", e->fill_drain_s / e->step_s},
        {"sums of gradients that nothing hides", e->exposed_sync_s / e->step_s},
        {"whole micro-batches", e->whole_micro_batches_s / e->step_s},
        {"memory", e->unlimited_memory_s > 0 ? 1 - e->unlimited_memory_s / e->quick_s : 0}};
    int most = 0;
    char text[256];
    describe(&e->resources[0], cluster, text, sizeof(text));
    if (e->several_share > e->resources[0].share)
        fprintf(out, "the step of %.4g s is bound by several resources at once", e->step_s);
    else
        fprintf(out, "the step of %.4g s is bound by the %s", e->step_s, text);
    for (int i = 1; i < 4; i++)
        most = others[i].part > others[most].part ? i : most;
    if (others[most].part >= LEAST_OTHER)
        fprintf(out, ", and by %s: %.1f %%", others[most].what, 100 * others[most].part);
    fputc('\n', out);
}

static void print_searches(const struct eth_hpp_explanation *e,
                           const struct eth_hpp_cluster *cluster, FILE *out)
{
    char text[256], change[96];
    fprintf(out, " what the quick search finds, which finds %.4g s for the cluster as it is:\n",
            e->quick_s);
    describe_change(e->unlimited_memory_s, e->quick_s, change, sizeof(change));
    fprintf(out, "    unlimited memory: %s\n", change);
    describe_change(e->larger_batch_s / ETH_HPP_EXPLAINED_BATCHES, e->quick_s, change,
                    sizeof(change));
    fprintf(out, "    the step of %d times the batch, over %d: %s\n", ETH_HPP_EXPLAINED_BATCHES,
            ETH_HPP_EXPLAINED_BATCHES, change);
    for (int i = 0; i < e->node_count; i++) {
        describe_node(cluster, e->nodes[i].like_node, text, sizeof(text));
        describe_change(e->nodes[i].step_s, e->quick_s, change, sizeof(change));
        fprintf(out, "    one more node like %s (%s): %s\n",
                cluster->nodes[e->nodes[i].like_node].name, text, change);
    }
    if (e->kinds_left_out > 0)
        fprintf(out, "    %d more kinds of node were not tried\n", e->kinds_left_out);
}

void eth_hpp_explanation_print(const struct eth_hpp_explanation *e,
                               const struct eth_hpp_cluster *cluster, FILE *out)
{
    print_verdict(e, cluster, out);
    fprintf(out, " what it waits for:\n");
    print_shares(e, cluster, out);
    fprintf(out, " parts of it:\n");
    print_part("pipelines fill and drain", e->fill_drain_s, e->step_s, out);
    print_part("sums of gradients that nothing hides", e->exposed_sync_s, e->step_s, out);
    print_part("micro-batches are whole", e->whole_micro_batches_s, e->step_s, out);
    if (e->quick_s > 0)
        print_searches(e, cluster, out);
}

/* ---- JSON ---- */

static struct json_object *number(double value)
{
    return eth_hpp_json_new_number(value);
}

static struct json_object *text(const char *value)
{
    return json_object_new_string(value);
}

static struct json_object *resource_json(const struct eth_hpp_explained_resource *resource,
                                         const struct eth_hpp_cluster *cluster)
{
    static const char *const kinds[] = {[ETH_HPP_EXPLAINED_COMPUTE] = "compute",
                                        [ETH_HPP_EXPLAINED_OPTIMIZER] = "optimizer",
                                        [ETH_HPP_EXPLAINED_INSIDE] = "links-inside",
                                        [ETH_HPP_EXPLAINED_NETWORK] = "network",
                                        [ETH_HPP_EXPLAINED_LINK] = "link"};
    struct json_object *entry = json_object_new_object();
    eth_hpp_json_put(&entry, "resource", text(kinds[resource->kind]));
    if (resource->kind == ETH_HPP_EXPLAINED_COMPUTE)
        eth_hpp_json_put(&entry, "device", text(cluster->devices[resource->index].name));
    else if (resource->kind == ETH_HPP_EXPLAINED_LINK)
        eth_hpp_json_put(&entry, "link", json_object_new_int(resource->index));
    else if (resource->nodes != NULL)
        eth_hpp_json_put(&entry, "nodes", text(resource->nodes));
    eth_hpp_json_put(&entry, "share", number(resource->share));
    eth_hpp_json_put(&entry, "step_if_twice_as_fast_s", number(resource->twice_s));
    return entry;
}

/* A search's step; null where it found no plan. */
static struct json_object *found(double step_s)
{
    return step_s > 0 ? number(step_s) : json_object_new_null();
}

struct json_object *eth_hpp_explanation_json(const struct eth_hpp_explanation *e,
                                             const struct eth_hpp_cluster *cluster)
{
    struct json_object *root = json_object_new_object(), *resources = json_object_new_array();
    struct json_object *nodes = json_object_new_array();
    for (int r = 0; r < e->resource_count; r++)
        eth_hpp_json_append(&resources, resource_json(&e->resources[r], cluster));
    for (int i = 0; i < e->node_count; i++) {
        struct json_object *entry = json_object_new_object();
        eth_hpp_json_put(&entry, "like", text(cluster->nodes[e->nodes[i].like_node].name));
        eth_hpp_json_put(&entry, "gpus",
                         json_object_new_int(cluster->nodes[e->nodes[i].like_node].gpus));
        eth_hpp_json_put(&entry, "step_s", found(e->nodes[i].step_s));
        eth_hpp_json_append(&nodes, entry);
    }
    eth_hpp_json_put(&root, "step_s", number(e->step_s));
    eth_hpp_json_put(&root, "waits_for", resources);
    eth_hpp_json_put(&root, "several_share", number(e->several_share));
    eth_hpp_json_put(&root, "fill_drain_s", number(e->fill_drain_s));
    eth_hpp_json_put(&root, "exposed_sync_s", number(e->exposed_sync_s));
    eth_hpp_json_put(&root, "whole_micro_batches_s", number(e->whole_micro_batches_s));
    eth_hpp_json_put(&root, "quick_search_s", found(e->quick_s));
    eth_hpp_json_put(&root, "unlimited_memory_s", found(e->unlimited_memory_s));
    eth_hpp_json_put(&root, "batch_times", json_object_new_int(ETH_HPP_EXPLAINED_BATCHES));
    eth_hpp_json_put(&root, "larger_batch_s", found(e->larger_batch_s));
    eth_hpp_json_put(&root, "one_more_node", nodes);
    eth_hpp_json_put(&root, "kinds_of_node_left_out", json_object_new_int(e->kinds_left_out));
    return root;
}
