/* Now and then the owners of each block compare their weights: replicas that drift apart would
 * train another model than the plan's, and nothing else would show it. */
#include "runtime/context.h"

enum { STEPS_BETWEEN = 100 };

/* The sum of the squares in a fixed order: equal bits for equal weights. */
static enum eth_hpp_status checksum(struct eth_hpp_context *context,
                                    const struct eth_hpp_owned_block *block, double *sum,
                                    struct eth_hpp_error *err)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    double *device = context->executor.norm;
    kernels->ops->zero(kernels->state, device, sizeof(*device));
    kernels->ops->sum_of_squares(kernels->state, block->count,
                                 context->parameters.weights + block->offset, device);
    return kernels->ops->to_host(kernels->state, sum, device, sizeof(*sum), err);
}

static enum eth_hpp_status compare_block(struct eth_hpp_context *context,
                                         const struct eth_hpp_owned_block *block,
                                         struct eth_hpp_error *err)
{
    struct eth_hpp_request *request;
    double sum, bounds[2];
    enum eth_hpp_status status = checksum(context, block, &sum, err);
    if (status != ETH_HPP_OK)
        return status;
    bounds[0] = sum;
    bounds[1] = -sum;
    status = eth_hpp_comm_group_reduce(block->group, bounds, 2, ETH_HPP_REDUCE_MAX, &request, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_wait(context->comm, request, context->timeout_s, err);
    if (status == ETH_HPP_OK && bounds[0] != -bounds[1])
        status = eth_hpp_error_set(err, ETH_HPP_ERR_NUMERIC,
                                   "step %lld: the owners of block %d no longer hold the same "
                                   "weights (squares add up to %.17g on one, %.17g on another): a "
                                   "device computes wrongly",
                                   (long long)context->step, block->block, bounds[0], -bounds[1]);
    return status;
}

enum eth_hpp_status eth_hpp_replicas_compare(struct eth_hpp_context *context,
                                             struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    if (context->step % STEPS_BETWEEN != 0)
        return ETH_HPP_OK;
    for (int b = 0; status == ETH_HPP_OK && b < context->plan.block_count; b++) {
        const struct eth_hpp_owned_block *block = &context->parameters.blocks[b];
        if (block->block >= 0 && context->plan.blocks[b].rank_count > 1)
            status = compare_block(context, block, err);
    }
    return status;
}
