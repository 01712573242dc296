#include "plan/remedy.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_NODES = 64,
    TRIES = 96, /* of clusters of up to 64 GPUs, a try taking some 20 ms there */
    LEAST_TRIES = 8
};
#define LEAST_MEMORY (64.0 * (1 << 20))
#define MOST_MEMORY  (1e12)

/* What is being mended. */
struct bench {
    const struct eth_hpp_cluster *cluster;
    const struct eth_hpp_profile *profile;
    struct eth_hpp_solver_options options;
    int tries; /* left */
    enum eth_hpp_status status;
    struct eth_hpp_error *err;
};

/* ---- the changed cluster ---- */

/* Adds the new nodes to a link's list if the node that they are like is on it. */
static int *extend(const int *list, int count, int like, int first, int nodes, int *extended)
{
    int *longer = malloc((size_t)(count + nodes) * sizeof(*longer));
    bool found = false;
    *extended = count;
    for (int i = 0; longer != NULL && i < count; i++) {
        longer[i] = list[i];
        found = found || list[i] == like;
    }
    for (int i = 0; longer != NULL && found && i < nodes; i++)
        longer[(*extended)++] = first + i;
    return longer;
}

static enum eth_hpp_status copy_link(const struct eth_hpp_link *link,
                                     const struct eth_hpp_remedy *remedy, int first,
                                     struct eth_hpp_cluster *to, struct eth_hpp_error *err)
{
    struct eth_hpp_link copy = *link;
    copy.from = extend(link->from, link->from_count, remedy->like_node, first, remedy->nodes,
                       &copy.from_count);
    copy.to =
        extend(link->to, link->to_count, remedy->like_node, first, remedy->nodes, &copy.to_count);
    enum eth_hpp_status status = copy.from != NULL && copy.to != NULL
                                     ? eth_hpp_cluster_add_link(to, &copy, err)
                                     : eth_hpp_error_memory(err, "a larger cluster");
    free(copy.from);
    free(copy.to);
    return status;
}

enum eth_hpp_status eth_hpp_remedy_apply(const struct eth_hpp_cluster *cluster,
                                         const struct eth_hpp_remedy *remedy,
                                         struct eth_hpp_cluster *changed, struct eth_hpp_error *err)
{
    struct eth_hpp_cluster made = {0};
    enum eth_hpp_status status = ETH_HPP_OK;
    for (int d = 0, index; d < cluster->device_count && status == ETH_HPP_OK; d++) {
        status = eth_hpp_cluster_add_device(&made, cluster->devices[d].name, &index, err);
        if (status != ETH_HPP_OK)
            break;
        made.devices[index] = cluster->devices[d];
        made.devices[index].memory_bytes += remedy->memory_bytes;
    }
    for (int n = 0; n < cluster->node_count && status == ETH_HPP_OK; n++)
        status = eth_hpp_cluster_add_node(&made, &cluster->nodes[n], err);
    for (int i = 0; i < remedy->nodes && status == ETH_HPP_OK; i++) {
        struct eth_hpp_node node = cluster->nodes[remedy->like_node];
        snprintf(node.name, sizeof(node.name), "%.80s+%d", cluster->nodes[remedy->like_node].name,
                 i + 1);
        status = eth_hpp_cluster_add_node(&made, &node, err);
    }
    for (int i = 0; i < cluster->link_count && status == ETH_HPP_OK; i++)
        status = copy_link(&cluster->links[i], remedy, cluster->node_count, &made, err);
    if (status == ETH_HPP_OK)
        *changed = made;
    else
        eth_hpp_cluster_free(&made);
    return status;
}

/* ---- trying ---- */

/* Does it fit so? False as well where no tries are left or something failed. */
static bool fits(struct bench *bench, const struct eth_hpp_remedy *remedy,
                 const struct eth_hpp_solver_options *options)
{
    struct eth_hpp_cluster changed;
    struct eth_hpp_plan plan = {0};
    if (bench->tries-- <= 0 || bench->status != ETH_HPP_OK)
        return false;
    bench->status = eth_hpp_remedy_apply(bench->cluster, remedy, &changed, bench->err);
    if (bench->status != ETH_HPP_OK)
        return false;
    enum eth_hpp_status status =
        eth_hpp_solve(&changed, bench->profile, options, &plan, bench->err);
    if (status != ETH_HPP_OK && status != ETH_HPP_ERR_INFEASIBLE)
        bench->status = status;
    eth_hpp_plan_free(&plan);
    eth_hpp_cluster_free(&changed);
    return status == ETH_HPP_OK;
}

static bool like_nodes(const struct eth_hpp_node *a, const struct eth_hpp_node *b)
{
    return a->gpus == b->gpus &&
           memcmp(a->devices, b->devices, (size_t)a->gpus * sizeof(*a->devices)) == 0;
}

/* Is it the first of its kind? */
static bool is_first(const struct eth_hpp_cluster *cluster, int node)
{
    for (int n = 0; n < node; n++)
        if (like_nodes(&cluster->nodes[n], &cluster->nodes[node]))
            return false;
    return true;
}

/* The fewest nodes of one kind: twice as many of each until one fits, then between. */
static void try_nodes(struct bench *bench, struct eth_hpp_remedy *found)
{
    int enough = 0;
    struct eth_hpp_remedy change = {0};
    for (int nodes = 1; nodes <= MOST_NODES && enough == 0; nodes *= 2)
        for (int n = 0; n < bench->cluster->node_count && enough == 0; n++) {
            if (!is_first(bench->cluster, n))
                continue;
            change = (struct eth_hpp_remedy){.nodes = nodes, .like_node = n};
            if (fits(bench, &change, &bench->options))
                enough = nodes;
        }
    if (enough == 0)
        return;
    for (int few = enough / 2; enough - few > 1;) {
        change.nodes = (few + enough) / 2;
        if (fits(bench, &change, &bench->options))
            enough = change.nodes;
        else
            few = change.nodes;
    }
    found->nodes = enough;
    found->like_node = change.like_node;
}

/* The least memory more on each GPU, to a sixteenth. */
static void try_memory(struct bench *bench, struct eth_hpp_remedy *found)
{
    struct eth_hpp_remedy change = {.memory_bytes = LEAST_MEMORY};
    double few = 0, enough;
    while (!fits(bench, &change, &bench->options)) {
        few = change.memory_bytes;
        change.memory_bytes *= 2;
        if (change.memory_bytes > MOST_MEMORY || bench->tries <= 0)
            return;
    }
    enough = change.memory_bytes;
    while (enough - few > enough / 16 && bench->tries > 0) {
        change.memory_bytes = (few + enough) / 2;
        *(fits(bench, &change, &bench->options) ? &enough : &few) = change.memory_bytes;
    }
    found->memory_bytes = enough;
}

/* Each setting alone, where it restricts anything. */
static void try_settings(struct bench *bench, struct eth_hpp_remedy *found)
{
    const struct eth_hpp_remedy nothing = {0};
    const struct eth_hpp_solver_options given = bench->options;
    struct eth_hpp_solver_options o = given;
    o.no_recompute = false;
    found->recompute = given.no_recompute && fits(bench, &nothing, &o);
    o = given;
    o.no_sharded = false;
    found->sharded = given.no_sharded && fits(bench, &nothing, &o);
    o = given;
    o.max_tensor_parallel = 0;
    found->tensor_parallel = given.max_tensor_parallel > 0 && fits(bench, &nothing, &o);
    o = given;
    o.max_in_flight = 0;
    found->in_flight = given.max_in_flight > 0 && fits(bench, &nothing, &o);
    o = given;
    o.max_pipelines = 0;
    found->pipelines = given.max_pipelines > 0 && fits(bench, &nothing, &o);
    o = given;
    o.memory_margin_bytes = 0;
    found->margin = given.memory_margin_bytes > 0 && fits(bench, &nothing, &o);
}

enum eth_hpp_status eth_hpp_remedy_find(const struct eth_hpp_cluster *cluster,
                                        const struct eth_hpp_profile *profile,
                                        const struct eth_hpp_solver_options *options,
                                        struct eth_hpp_remedy *remedy, struct eth_hpp_error *err)
{
    struct bench bench = {.cluster = cluster, .profile = profile, .options = *options, .err = err};
    struct eth_hpp_remedy found = {0};
    int tries = cluster->gpu_count > 64 ? TRIES * 64 / cluster->gpu_count : TRIES;
    tries = tries > LEAST_TRIES ? tries : LEAST_TRIES;
    bench.options.effort = ETH_HPP_EFFORT_QUICK;
    bench.tries = tries;
    try_settings(&bench, &found);
    bench.tries = tries;
    try_nodes(&bench, &found);
    bench.tries = tries;
    try_memory(&bench, &found);
    if (bench.status == ETH_HPP_OK)
        *remedy = found;
    return bench.status;
}

/* ---- words ---- */

/* What is said so far, and whether it is the first remedy. */
struct words {
    struct eth_hpp_error *err;
    bool any;
};

static void say(struct words *words, const char *format, ...) ETH_HPP_PRINTF(2, 3);
static void say(struct words *words, const char *format, ...)
{
    char *text = words->err->text;
    size_t used = strlen(text), room = sizeof(words->err->text) - used;
    va_list list;
    int length = snprintf(text + used, room, "%s", words->any ? ", or " : "; what would do: ");
    words->any = true;
    if (length < 0 || (size_t)length >= room)
        return;
    va_start(list, format);
    vsnprintf(text + used + length, room - (size_t)length, format, list);
    va_end(list);
}

static void explain(const struct eth_hpp_remedy *remedy, const struct eth_hpp_cluster *cluster,
                    bool settings, struct eth_hpp_error *err)
{
    struct words words = {err, false};
    if (settings && remedy->recompute)
        say(&words, "recompute");
    if (settings && remedy->sharded)
        say(&words, "a sharded optimizer");
    if (settings && remedy->tensor_parallel)
        say(&words, "more tensor parallelism");
    if (settings && remedy->in_flight)
        say(&words, "more micro-batches in flight");
    if (settings && remedy->pipelines)
        say(&words, "more pipelines");
    if (settings && remedy->margin)
        say(&words, "no memory margin");
    if (remedy->nodes > 0)
        say(&words, "%d more node%s like %s", remedy->nodes, remedy->nodes > 1 ? "s" : "",
            cluster->nodes[remedy->like_node].name);
    if (remedy->memory_bytes > 0)
        say(&words, "%.2f GiB more on each GPU", remedy->memory_bytes / (1 << 30));
    if (!words.any) {
        size_t used = strlen(err->text);
        snprintf(err->text + used, sizeof(err->text) - used,
                 "; no nodes more like these and no memory that were tried would do");
    }
}

enum eth_hpp_status eth_hpp_remedy_solve(const struct eth_hpp_cluster *cluster,
                                         const struct eth_hpp_profile *profile,
                                         const struct eth_hpp_solver_options *options,
                                         bool settings, struct eth_hpp_plan *plan,
                                         struct eth_hpp_error *err)
{
    struct eth_hpp_remedy remedy;
    enum eth_hpp_status status = eth_hpp_solve(cluster, profile, options, plan, err);
    if (status != ETH_HPP_ERR_INFEASIBLE || err == NULL)
        return status;
    struct eth_hpp_error other = {0};
    if (eth_hpp_remedy_find(cluster, profile, options, &remedy, &other) == ETH_HPP_OK)
        explain(&remedy, cluster, settings, err);
    return status;
}
