#include "plan/idle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The kind that most layers are of. */
static int main_kind(const struct eth_hpp_cost *cost)
{
    int layers = cost->profile->layer_count, best = 0;
    for (int k = 1; k < cost->profile->kind_count; k++)
        if (eth_hpp_cost_count(cost, k, 0, layers) > eth_hpp_cost_count(cost, best, 0, layers))
            best = k;
    return best;
}

/* The least time of a sample of a layer on the device; INFINITY without times. */
static double least_sample_s(const struct eth_hpp_cost *cost, int device, int kind)
{
    double least = INFINITY;
    for (int d = 0; d < cost->degrees; d++) {
        const struct eth_hpp_times *times = cost->times[device * cost->degrees + d];
        if (times == NULL)
            continue;
        struct eth_hpp_layer_time t = eth_hpp_cost_layer(cost, device, d, kind, 1);
        least = fmin(least, t.forward_s + t.backward_s);
    }
    return least;
}

/* Can the device hold a layer with a sample, its optimizer state shared by all GPUs? */
static bool holds_layer(const struct eth_hpp_cost *cost, int device, int layer)
{
    for (int d = 0; d < cost->degrees; d++)
        for (int recompute = 0; recompute < 2; recompute++) {
            struct eth_hpp_stage_memory memory =
                eth_hpp_cost_memory(cost, d, layer, layer + 1, recompute > 0);
            double state = memory.state - memory.optimizer * (1 - 1.0 / cost->cluster->gpu_count);
            if (cost->times[device * cost->degrees + d] != NULL &&
                eth_hpp_cost_peak(cost, &memory, state, device, 1, 1) <=
                    cost->cluster->devices[device].memory_bytes)
                return true;
        }
    return false;
}

static bool holds_any(const struct eth_hpp_cost *cost, int device)
{
    for (int l = 0; l < cost->profile->layer_count; l++)
        if (holds_layer(cost, device, l))
            return true;
    return false;
}

/* Why a GPU of this kind on this node is left out. */
static void explain(const struct eth_hpp_cost *cost, const struct eth_hpp_node *node, int device,
                    double step_s, char *why, size_t size)
{
    int kind = main_kind(cost);
    const struct eth_hpp_layer_kind *layer = &cost->profile->kinds[kind];
    double sample_s = least_sample_s(cost, device, kind);
    double sum_s = layer->gradient_bytes / node->inter_bandwidth;
    if (isinf(sample_s))
        snprintf(why, size, "the profile has no times of its kind");
    else if (!holds_any(cost, device))
        snprintf(why, size, "not even a layer with one sample fits into its memory");
    else if (sample_s > step_s)
        snprintf(why, size, "one sample of one %.32s takes it %.3g s, the whole step %.3g s",
                 layer->name, sample_s, step_s);
    else if (cost->cluster->node_count > 1 && sum_s > step_s)
        snprintf(why, size,
                 "the gradient of one %.32s takes its network %.3g s, the whole step %.3g s",
                 layer->name, sum_s, step_s);
    else
        snprintf(why, size, "no plan was found in which it makes the step shorter");
}

static struct eth_hpp_idle *open_idle(struct eth_hpp_plan *plan, const struct eth_hpp_node *node,
                                      const char *why)
{
    struct eth_hpp_idle *list = realloc(plan->idle, (size_t)(plan->idle_count + 1) * sizeof(*list));
    if (list == NULL)
        return NULL;
    plan->idle = list;
    struct eth_hpp_idle *idle = &list[plan->idle_count++];
    *idle = (struct eth_hpp_idle){0};
    snprintf(idle->node, sizeof(idle->node), "%s", node->name);
    snprintf(idle->why, sizeof(idle->why), "%s", why);
    idle->gpus = malloc((size_t)node->gpus * sizeof(*idle->gpus));
    idle->ranks = malloc((size_t)node->gpus * sizeof(*idle->ranks));
    return idle->gpus != NULL && idle->ranks != NULL ? idle : NULL;
}

bool eth_hpp_idle_fill(const struct eth_hpp_cost *cost, const bool *taken, double step_s,
                       struct eth_hpp_plan *plan)
{
    const struct eth_hpp_cluster *cluster = cost->cluster;
    for (int n = 0; n < cluster->node_count; n++) {
        const struct eth_hpp_node *node = &cluster->nodes[n];
        int first = plan->idle_count; /* the node's own entries begin here */
        for (int g = 0; g < node->gpus; g++) {
            char why[sizeof(plan->idle->why)];
            int at = first;
            if (taken[node->first_rank + g])
                continue;
            explain(cost, node, node->devices[g], step_s, why, sizeof(why));
            while (at < plan->idle_count && strcmp(plan->idle[at].why, why) != 0)
                at++;
            if (at == plan->idle_count && open_idle(plan, node, why) == NULL)
                return false;
            struct eth_hpp_idle *idle = &plan->idle[at];
            idle->gpus[idle->gpu_count] = g;
            idle->ranks[idle->gpu_count++] = node->first_rank + g;
        }
    }
    return true;
}
