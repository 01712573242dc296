/*
 * One step: the rank's instruction list, run for real. The list is issued in order; transfers and
 * sums proceed beside compute, which waits only for what the list says.
 */
#include <math.h>

#include "base/clock.h"
#include "runtime/context.h"

enum eth_hpp_status eth_hpp_executor_name(const struct eth_hpp_context *context, int i,
                                          struct eth_hpp_error *err)
{
    const struct eth_hpp_instruction *at = &context->executor.program.instructions[i];
    const long long step = context->step;
    if (at->micro_batch >= 0)
        return eth_hpp_error_prefix(err, "step %lld, micro-batch %d of pipeline %d, %s", step,
                                    at->micro_batch, context->place.pipeline,
                                    eth_hpp_opcode_name(at->opcode));
    if (at->block >= 0)
        return eth_hpp_error_prefix(err, "step %lld, %s %d", step, eth_hpp_opcode_name(at->opcode),
                                    at->block);
    return eth_hpp_error_prefix(err, "step %lld, %s", step, eth_hpp_opcode_name(at->opcode));
}

enum eth_hpp_status eth_hpp_executor_join(struct eth_hpp_context *context, int i,
                                          struct eth_hpp_error *err)
{
    struct eth_hpp_request **request = &context->executor.requests[i];
    if (*request == NULL)
        return ETH_HPP_OK;
    enum eth_hpp_status status = eth_hpp_comm_join(context->comm, request, context->timeout_s, err);
    return status == ETH_HPP_ERR_TIMEOUT ? eth_hpp_executor_name(context, i, err) : status;
}

enum eth_hpp_status eth_hpp_executor_wait(struct eth_hpp_context *context, int i,
                                          struct eth_hpp_error *err)
{
    struct eth_hpp_executor *executor = &context->executor;
    struct eth_hpp_request *request = executor->requests[i];
    if (request == NULL)
        return ETH_HPP_OK;
    executor->requests[i] = NULL;
    enum eth_hpp_status status = eth_hpp_comm_wait(context->comm, request, context->timeout_s, err);
    return status == ETH_HPP_ERR_TIMEOUT ? eth_hpp_executor_name(context, i, err) : status;
}

/* The loss is the same on all ranks, so all of them stop together. */
static enum eth_hpp_status check_loss(const struct eth_hpp_context *context,
                                      struct eth_hpp_error *err)
{
    const double *totals = context->executor.totals;
    if (totals[1] <= 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_NUMERIC,
                                 "step %lld: no target of the batch is counted",
                                 (long long)context->step);
    if (!isfinite(totals[0]))
        return eth_hpp_error_set(err, ETH_HPP_ERR_NUMERIC,
                                 "step %lld: the loss is not finite: lower the learning rate%s",
                                 (long long)context->step,
                                 context->plan.dtype == ETH_HPP_FP16
                                     ? ", or plan with --dtype=bf16 or fp32, which hold larger "
                                       "activations"
                                     : " or clip the gradients");
    return ETH_HPP_OK;
}

static enum eth_hpp_status run_norm(struct eth_hpp_context *context, int i,
                                    struct eth_hpp_error *err)
{
    enum eth_hpp_status status = eth_hpp_sync_wait(context, err);
    eth_hpp_device_mark(context, context->executor.summed);
    if (status == ETH_HPP_OK)
        status = check_loss(context, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_sync_norm(context, i, err);
    return status;
}

static enum eth_hpp_status run_update(struct eth_hpp_context *context,
                                      const struct eth_hpp_optimizer_options *optimizer,
                                      const struct eth_hpp_device_span *span,
                                      struct eth_hpp_metrics *metrics, struct eth_hpp_error *err)
{
    eth_hpp_device_mark(context, span->from);
    enum eth_hpp_status status = eth_hpp_optimizer_update(context, optimizer, metrics, err);
    eth_hpp_device_mark(context, span->to);
    return status;
}

static enum eth_hpp_status run_instruction(struct eth_hpp_context *context, int i,
                                           const struct eth_hpp_optimizer_options *optimizer,
                                           struct eth_hpp_metrics *metrics,
                                           struct eth_hpp_error *err)
{
    const struct eth_hpp_instruction *at = &context->executor.program.instructions[i];
    const struct eth_hpp_device_span *span = &context->executor.spans[i];
    context->executor.issuing = i;
    switch (at->opcode) {
    case ETH_HPP_RECV_ACTIVATION:
    case ETH_HPP_SEND_ACTIVATION:
    case ETH_HPP_RECV_GRADIENT:
    case ETH_HPP_SEND_GRADIENT:
        return eth_hpp_handover_start(context, i, err);
    case ETH_HPP_FORWARD:
        return eth_hpp_compute_forward(context, at->micro_batch, span, err);
    case ETH_HPP_BACKWARD:
        return eth_hpp_compute_backward(context, at->micro_batch, span, err);
    case ETH_HPP_SYNC_BLOCK:
        return ETH_HPP_OK; /* started by the last backward */
    case ETH_HPP_REDUCE_LOSS:
        return eth_hpp_sync_loss(context, i, err);
    case ETH_HPP_REDUCE_NORM:
        return run_norm(context, i, err);
    case ETH_HPP_OPTIMIZER_STEP:
        return run_update(context, optimizer, span, metrics, err);
    case ETH_HPP_GATHER_BLOCK:
        return eth_hpp_sync_gather(context, i, err);
    }
    return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL, "instruction %d has no meaning", i);
}

static void begin(struct eth_hpp_context *context)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    struct eth_hpp_executor *executor = &context->executor;
    kernels->ops->zero(kernels->state, context->parameters.gradients,
                       context->parameters.total * sizeof(float));
    kernels->ops->zero(kernels->state, executor->loss, 2 * sizeof(double));
    executor->last_backward = false;
    executor->syncs_started = 0;
}

/* The instruction of this kind that was issued last. */
static const struct eth_hpp_device_span *last_span(const struct eth_hpp_executor *executor,
                                                   enum eth_hpp_opcode opcode)
{
    int i = executor->program.count - 1;
    while (executor->program.instructions[i].opcode != opcode)
        i--;
    return &executor->spans[i];
}

/* Waits for all that is under way, and measures it. */
static enum eth_hpp_status end(struct eth_hpp_context *context, struct eth_hpp_metrics *metrics,
                               struct eth_hpp_error *err)
{
    struct eth_hpp_executor *executor = &context->executor;
    const struct eth_hpp_kernels *kernels = context->kernels;
    const struct eth_hpp_device_span *update = last_span(executor, ETH_HPP_OPTIMIZER_STEP);
    const struct eth_hpp_device_span *backward = last_span(executor, ETH_HPP_BACKWARD);
    enum eth_hpp_status status = eth_hpp_device_await(context, update->to, err);
    const double updated = eth_hpp_clock_now();
    for (int i = 0; status == ETH_HPP_OK && i < executor->program.count; i++)
        status = eth_hpp_executor_wait(context, i, err);
    if (status != ETH_HPP_OK)
        return status;
    metrics->sync_exposed_s =
        kernels->ops->event_seconds(kernels->state, backward->to, executor->summed);
    if (context->plan.sharded_optimizer)
        metrics->sync_exposed_s += eth_hpp_clock_now() - updated;
    metrics->optimizer_s = kernels->ops->event_seconds(kernels->state, update->from, update->to);
    return eth_hpp_replicas_compare(context, err);
}

enum eth_hpp_status eth_hpp_executor_run(struct eth_hpp_context *context,
                                         const struct eth_hpp_optimizer_options *optimizer,
                                         struct eth_hpp_metrics *metrics, struct eth_hpp_error *err)
{
    struct eth_hpp_executor *executor = &context->executor;
    struct eth_hpp_metrics measured = {.step = context->step};
    enum eth_hpp_status status = ETH_HPP_OK;
    const double start = eth_hpp_clock_now();
    begin(context);
    for (int i = 0; status == ETH_HPP_OK && i < executor->program.count; i++)
        status = run_instruction(context, i, optimizer, &measured, err);
    if (status == ETH_HPP_OK)
        status = end(context, &measured, err);
    if (status != ETH_HPP_OK)
        return status;
    measured.loss = executor->totals[0] / executor->totals[1];
    measured.targets = (int64_t)executor->totals[1];
    measured.busy_s = executor->busy_s;
    measured.mean_busy_s =
        executor->squares_and_busy[1] / eth_hpp_plan_computing_ranks(&context->plan);
    measured.step_s = eth_hpp_clock_now() - start;
    measured.peak_bytes = context->arena.bytes;
    measured.stop = executor->totals[2] > 0;
    context->busy_s += executor->busy_s;
    context->step++;
    context->next_sample += context->assignment.global_batch;
    if (metrics != NULL)
        *metrics = measured;
    return ETH_HPP_OK;
}
