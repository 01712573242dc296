/* The transport of a device whose memory the host does not reach: which ranks hand over and sum is
 * known from the plan, before the program has registered anything. */
#include <stdlib.h>

#include "kernels/kernels.h"
#include "runtime/context.h"

struct layout {
    struct eth_hpp_comm_layout layout;
    int *ranks;
    struct eth_hpp_comm_route *routes;
    struct eth_hpp_comm_members *groups;
};

static int compare_routes(const void *a, const void *b)
{
    const struct eth_hpp_comm_route *x = a, *y = b;
    return x->from != y->from ? (x->from > y->from) - (x->from < y->from)
                              : (x->to > y->to) - (x->to < y->to);
}

/* Of this rank's queues. */
static enum eth_hpp_status find_routes(const struct eth_hpp_program *program, struct layout *layout,
                                       struct eth_hpp_error *err)
{
    int count = 0;
    layout->routes = calloc((size_t)program->queue_count + 1, sizeof(*layout->routes));
    if (layout->routes == NULL)
        return eth_hpp_error_memory(err, "the routes of hand-overs");
    for (int q = 0; q < program->queue_count; q++) {
        const struct eth_hpp_queue *queue = &program->queues[q];
        if (queue->kind == ETH_HPP_QUEUE_SEND)
            layout->routes[count++] = (struct eth_hpp_comm_route){program->rank, queue->peer};
        else if (queue->kind == ETH_HPP_QUEUE_RECV)
            layout->routes[count++] = (struct eth_hpp_comm_route){queue->peer, program->rank};
    }
    qsort(layout->routes, (size_t)count, sizeof(*layout->routes), compare_routes);
    layout->layout.routes = layout->routes;
    layout->layout.route_count = count;
    return ETH_HPP_OK;
}

/* The list says with whom whatever the sizes are, which the program has not registered yet. */
static enum eth_hpp_status list_routes(const struct eth_hpp_context *context, struct layout *layout,
                                       struct eth_hpp_error *err)
{
    const struct eth_hpp_plan *plan = &context->plan;
    const int most = plan->layers > plan->block_count ? plan->layers : plan->block_count;
    struct eth_hpp_program program = {0};
    double *no_bytes = calloc((size_t)most + 1, sizeof(*no_bytes));
    if (no_bytes == NULL)
        return eth_hpp_error_memory(err, "the instruction list");
    enum eth_hpp_status status =
        eth_hpp_program_compile(plan, no_bytes, no_bytes, context->job.rank, &program, err);
    if (status == ETH_HPP_OK)
        status = find_routes(&program, layout, err);
    eth_hpp_program_free(&program);
    free(no_bytes);
    return status;
}

static enum eth_hpp_status list_members(const struct eth_hpp_context *context,
                                        struct layout *layout, struct eth_hpp_error *err)
{
    const struct eth_hpp_plan *plan = &context->plan;
    struct eth_hpp_comm_layout *to = &layout->layout;
    layout->ranks = malloc(sizeof(*layout->ranks) * (size_t)context->job.size);
    layout->groups = calloc((size_t)plan->block_count + 1, sizeof(*layout->groups));
    if (layout->ranks == NULL || layout->groups == NULL)
        return eth_hpp_error_memory(err, "the groups of ranks");
    for (int rank = 0; rank < context->job.size; rank++)
        if (eth_hpp_plan_find_rank(plan, rank).pipeline >= 0)
            layout->ranks[to->all.count++] = rank;
    for (int b = 0; b < plan->block_count; b++)
        if (plan->blocks[b].rank_count > 1)
            layout->groups[to->group_count++] =
                (struct eth_hpp_comm_members){plan->blocks[b].ranks, plan->blocks[b].rank_count};
    to->all.ranks = layout->ranks;
    to->groups = layout->groups;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_transport_reach_device(struct eth_hpp_context *context,
                                                   struct eth_hpp_error *err)
{
    struct layout layout = {0};
    /* One rank alone hands nothing over, and an idle one neither. */
    if (context->kernels->host_memory || context->job.size == 1 || context->assignment.idle)
        return ETH_HPP_OK;
    enum eth_hpp_status status = list_members(context, &layout, err);
    if (status == ETH_HPP_OK)
        status = list_routes(context, &layout, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_reach_device(context->comm, context->kernels, &context->job,
                                           &layout.layout, context->timeout_s, &context->comm, err);
    free(layout.ranks);
    free(layout.routes);
    free(layout.groups);
    return status;
}
