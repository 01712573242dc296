/* Sums over ranks: gradients block by block beside the backward, the loss and the norm. */

#include "runtime/context.h"

/* The block of an instruction. */
static const struct eth_hpp_owned_block *block_of(const struct eth_hpp_context *context, int i)
{
    return &context->parameters.blocks[context->executor.program.instructions[i].block];
}

static enum eth_hpp_status start_sum(struct eth_hpp_context *context, int i,
                                     struct eth_hpp_error *err)
{
    const struct eth_hpp_owned_block *block = block_of(context, i);
    const enum eth_hpp_sum_half halves =
        context->plan.sharded_optimizer ? ETH_HPP_SUM_SCATTER : ETH_HPP_SUM_WHOLE;
    if (block->count == 0)
        return ETH_HPP_OK;
    return eth_hpp_comm_group_sum(block->group, context->parameters.gradients + block->offset,
                                  block->count, halves, &context->executor.requests[i], err);
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

enum eth_hpp_status eth_hpp_sync_gather(struct eth_hpp_context *context, int i,
                                        struct eth_hpp_error *err)
{
    const struct eth_hpp_owned_block *block = block_of(context, i);
    if (block->count == 0)
        return ETH_HPP_OK;
    return eth_hpp_comm_group_sum(block->group, eth_hpp_weights_values(context, block->offset),
                                  eth_hpp_weights_words(context, block->count), ETH_HPP_SUM_GATHER,
                                  &context->executor.requests[i], err);
}

enum eth_hpp_status eth_hpp_sync_wait(struct eth_hpp_context *context, struct eth_hpp_error *err)
{
    const struct eth_hpp_program *program = &context->executor.program;
    enum eth_hpp_status status = ETH_HPP_OK;
    for (int i = 0; status == ETH_HPP_OK && i < program->count; i++) {
        if (program->instructions[i].opcode == ETH_HPP_SYNC_BLOCK)
            status = eth_hpp_executor_join(context, i, err);
        else if (program->instructions[i].opcode == ETH_HPP_REDUCE_LOSS)
            status = eth_hpp_executor_wait(context, i, err);
    }
    return status;
}

enum eth_hpp_status eth_hpp_sync_loss(struct eth_hpp_context *context, int i,
                                      struct eth_hpp_error *err)
{
    double *totals = context->executor.totals;
    enum eth_hpp_status status =
        eth_hpp_device_read(context, totals, context->executor.loss, 2 * sizeof(*totals), err);
    if (status != ETH_HPP_OK)
        return status;
    totals[2] = context->stop_asked;
    return eth_hpp_comm_group_reduce(context->active, totals, 3, ETH_HPP_REDUCE_SUM,
                                     &context->executor.requests[i], err);
}

/* Of forwards and backwards. */
static double busy_s(const struct eth_hpp_context *context)
{
    const struct eth_hpp_executor *executor = &context->executor;
    const struct eth_hpp_kernels *kernels = context->kernels;
    double seconds = 0;
    for (int i = 0; i < executor->program.count; i++) {
        const enum eth_hpp_opcode opcode = executor->program.instructions[i].opcode;
        if (opcode == ETH_HPP_FORWARD || opcode == ETH_HPP_BACKWARD)
            seconds += kernels->ops->event_seconds(kernels->state, executor->spans[i].from,
                                                   executor->spans[i].to);
    }
    return seconds;
}

/* Each owner adds its share of a block: every element counts once. */
enum eth_hpp_status eth_hpp_sync_norm(struct eth_hpp_context *context, int i,
                                      struct eth_hpp_error *err)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    struct eth_hpp_executor *executor = &context->executor;
    kernels->ops->zero(kernels->state, executor->norm, sizeof(double));
    for (int b = 0; b < context->plan.block_count; b++) {
        const struct eth_hpp_owned_block *block = &context->parameters.blocks[b];
        if (block->block >= 0 && block->share < block->share_end)
            kernels->ops->sum_of_squares(kernels->state, block->share_end - block->share,
                                         context->parameters.gradients + block->share,
                                         executor->norm);
    }
    enum eth_hpp_status status = eth_hpp_device_read(context, executor->squares_and_busy,
                                                     executor->norm, sizeof(double), err);
    if (status != ETH_HPP_OK)
        return status;
    executor->busy_s = busy_s(context); /* all backwards are done */
    executor->squares_and_busy[1] = executor->busy_s;
    status = eth_hpp_comm_group_reduce(context->active, executor->squares_and_busy, 2,
                                       ETH_HPP_REDUCE_SUM, &executor->requests[i], err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_executor_wait(context, i, err);
    return status;
}
