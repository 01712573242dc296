/* Sums over ranks: gradients block by block beside the backward, the loss and the norm. */

#include "runtime/context.h"

static enum eth_hpp_status start_sum(struct eth_hpp_context *context, int i,
                                     struct eth_hpp_error *err)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    const struct eth_hpp_owned_block *block =
        &context->parameters.blocks[context->executor.program.instructions[i].block];
    if (block->count == 0)
        return ETH_HPP_OK;
    enum eth_hpp_status status = kernels->ops->synchronize(kernels->state, err);
    if (status != ETH_HPP_OK)
        return status;
    return eth_hpp_comm_group_sum(block->group, context->parameters.gradients + block->offset,
                                  block->count, &context->executor.requests[i], err);
}

enum eth_hpp_status eth_hpp_sync_passed(struct eth_hpp_context *context, int layer,
                                        struct eth_hpp_error *err)
{
    struct eth_hpp_executor *executor = &context->executor;
    enum eth_hpp_status status = ETH_HPP_OK;
    for (; executor->syncs_started < executor->program.count; executor->syncs_started++) {
        const struct eth_hpp_instruction *at =
            &executor->program.instructions[executor->syncs_started];
        if (at->opcode != ETH_HPP_SYNC_BLOCK)
            continue;
        if (context->parameters.blocks[at->block].lowest_layer < layer)
            break;
        status = start_sum(context, executor->syncs_started, err);
        if (status != ETH_HPP_OK)
            break;
    }
    return status;
}

enum eth_hpp_status eth_hpp_sync_wait(struct eth_hpp_context *context, struct eth_hpp_error *err)
{
    const struct eth_hpp_program *program = &context->executor.program;
    enum eth_hpp_status status = ETH_HPP_OK;
    for (int i = 0; status == ETH_HPP_OK && i < program->count; i++)
        if (program->instructions[i].opcode == ETH_HPP_SYNC_BLOCK ||
            program->instructions[i].opcode == ETH_HPP_REDUCE_LOSS)
            status = eth_hpp_executor_wait(context, i, err);
    return status;
}

enum eth_hpp_status eth_hpp_sync_loss(struct eth_hpp_context *context, int i,
                                      struct eth_hpp_error *err)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    double *totals = context->executor.totals;
    enum eth_hpp_status status = kernels->ops->to_host(
        kernels->state, totals, context->executor.loss, 2 * sizeof(*totals), err);
    if (status != ETH_HPP_OK)
        return status;
    totals[2] = context->stop_asked;
    return eth_hpp_comm_group_reduce(context->active, totals, 3, ETH_HPP_REDUCE_SUM,
                                     &context->executor.requests[i], err);
}

/* Each block's share is added by its first owner alone: every tensor counts once. */
enum eth_hpp_status eth_hpp_sync_norm(struct eth_hpp_context *context, int i,
                                      struct eth_hpp_error *err)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    struct eth_hpp_executor *executor = &context->executor;
    kernels->ops->zero(kernels->state, executor->norm, sizeof(double));
    for (int b = 0; b < context->plan.block_count; b++) {
        const struct eth_hpp_owned_block *block = &context->parameters.blocks[b];
        if (block->block >= 0 && block->counted_here && block->count > 0)
            kernels->ops->sum_of_squares(kernels->state, block->count,
                                         context->parameters.gradients + block->offset,
                                         executor->norm);
    }
    enum eth_hpp_status status = kernels->ops->to_host(kernels->state, executor->squares_and_busy,
                                                       executor->norm, sizeof(double), err);
    executor->squares_and_busy[1] = executor->busy_s; /* all backwards are done */
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_group_reduce(context->active, executor->squares_and_busy, 2,
                                           ETH_HPP_REDUCE_SUM, &executor->requests[i], err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_executor_wait(context, i, err);
    return status;
}
