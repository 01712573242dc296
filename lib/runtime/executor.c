/*
 * One step: the rank's instruction list, run for real. The list is issued in order; transfers and
 * sums proceed beside compute, which waits only for what the list says.
 */
#include <math.h>

#include "base/clock.h"
#include "runtime/context.h"

enum eth_hpp_status eth_hpp_executor_wait(struct eth_hpp_context *context, int i,
                                          struct eth_hpp_error *err)
{
    struct eth_hpp_executor *executor = &context->executor;
    const struct eth_hpp_instruction *at = &executor->program.instructions[i];
    struct eth_hpp_request *request = executor->requests[i];
    if (request == NULL)
        return ETH_HPP_OK;
    executor->requests[i] = NULL;
    enum eth_hpp_status status = eth_hpp_comm_wait(context->comm, request, context->timeout_s, err);
    if (status != ETH_HPP_ERR_TIMEOUT)
        return status;
    if (at->micro_batch >= 0)
        return eth_hpp_error_prefix(err, "step %lld, micro-batch %d of pipeline %d, %s",
                                    (long long)context->step, at->micro_batch,
                                    context->place.pipeline, eth_hpp_opcode_name(at->opcode));
    return eth_hpp_error_prefix(err, "step %lld, %s %d", (long long)context->step,
                                eth_hpp_opcode_name(at->opcode), at->block);
}

static struct eth_hpp_micro_batch micro_batch_of(const struct eth_hpp_context *context, int m)
{
    const struct eth_hpp_assignment *a = &context->assignment;
    const struct eth_hpp_executor *executor = &context->executor;
    const int slot = m % a->in_flight;
    const size_t tokens_at = (size_t)slot * (size_t)a->samples * (size_t)a->sequence_length;
    return (struct eth_hpp_micro_batch){
        .step = context->step,
        .index = m,
        .slot = slot,
        .first_sample = context->next_sample + executor->first_sample +
                        (int64_t)m * context->plan.pipelines[context->place.pipeline].micro_batch,
        .samples = a->samples,
        .tokens = executor->tokens != NULL ? executor->tokens + tokens_at : NULL,
        .targets = executor->targets != NULL ? executor->targets + tokens_at : NULL,
        .loss = a->end_layer == a->layers ? executor->loss : NULL,
    };
}

static enum eth_hpp_status load_samples(struct eth_hpp_context *context,
                                        const struct eth_hpp_micro_batch *micro_batch,
                                        struct eth_hpp_error *err)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    const int length = context->assignment.sequence_length;
    const size_t bytes = sizeof(int32_t) * (size_t)length;
    int32_t *host = context->executor.host_samples;
    enum eth_hpp_status status = ETH_HPP_OK;
    if (micro_batch->tokens == NULL && micro_batch->targets == NULL)
        return ETH_HPP_OK;
    for (int i = 0; status == ETH_HPP_OK && i < micro_batch->samples; i++) {
        const size_t at = (size_t)i * (size_t)length;
        status = context->ops.sample(context->user, micro_batch->first_sample + i, host,
                                     host + length, err);
        if (status == ETH_HPP_OK && micro_batch->tokens != NULL)
            status = kernels->ops->to_device(kernels->state, (int32_t *)micro_batch->tokens + at,
                                             host, bytes, err);
        if (status == ETH_HPP_OK && micro_batch->targets != NULL)
            status = kernels->ops->to_device(kernels->state, (int32_t *)micro_batch->targets + at,
                                             host + length, bytes, err);
    }
    return status;
}

/* Emulated seconds of a forward of the stage's layers from `layer` to its end; 0 of a real device.
 */
static double forward_s(const struct eth_hpp_context *context, int layer)
{
    double seconds = 0;
    if (context->executor.forward_s == NULL)
        return 0;
    for (int l = layer; l < context->assignment.end_layer; l++)
        seconds += context->executor.forward_s[l - context->assignment.first_layer];
    return seconds;
}

static double backward_s(const struct eth_hpp_context *context, int layer)
{
    return (context->assignment.recompute ? 3 : 2) * forward_s(context, layer);
}

/* Waits until the device is done, as long as the emulated one would have taken. */
static enum eth_hpp_status settle(struct eth_hpp_context *context, double start, double emulated,
                                  struct eth_hpp_error *err)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    enum eth_hpp_status status = kernels->ops->synchronize(kernels->state, err);
    if (status == ETH_HPP_OK && context->executor.forward_s != NULL)
        eth_hpp_emulator_stretch(&context->emulator, start, emulated);
    return status;
}

static enum eth_hpp_status run_forward(struct eth_hpp_context *context, int m,
                                       struct eth_hpp_error *err)
{
    struct eth_hpp_executor *executor = &context->executor;
    const int samples = context->assignment.samples;
    const struct eth_hpp_micro_batch micro_batch = micro_batch_of(context, m);
    enum eth_hpp_status status = eth_hpp_handover_wait(context, ETH_HPP_HANDOVER_INPUT, m, err);
    if (status == ETH_HPP_OK)
        status =
            eth_hpp_handover_wait(context, ETH_HPP_HANDOVER_OUTPUT,
                                  m - executor->handovers[ETH_HPP_HANDOVER_OUTPUT].buffers, err);
    if (status != ETH_HPP_OK)
        return status;
    const double start = eth_hpp_clock_now();
    status = load_samples(context, &micro_batch, err);
    if (status == ETH_HPP_OK)
        status = context->ops.forward(
            context->user, &micro_batch,
            eth_hpp_handover_buffer(executor, ETH_HPP_HANDOVER_INPUT, m, samples),
            eth_hpp_handover_buffer(executor, ETH_HPP_HANDOVER_OUTPUT, m, samples), err);
    if (status == ETH_HPP_OK)
        status = settle(context, start, forward_s(context, context->assignment.first_layer), err);
    executor->busy_s += eth_hpp_clock_now() - start;
    return status;
}

/* With recompute the stage's forward runs again before its backward. */
static enum eth_hpp_status call_backward(struct eth_hpp_context *context, int m,
                                         struct eth_hpp_error *err)
{
    struct eth_hpp_executor *executor = &context->executor;
    const int samples = context->assignment.samples;
    struct eth_hpp_micro_batch micro_batch = micro_batch_of(context, m);
    const void *input = eth_hpp_handover_buffer(executor, ETH_HPP_HANDOVER_INPUT, m, samples);
    enum eth_hpp_status status = ETH_HPP_OK;
    if (context->assignment.recompute) {
        micro_batch.replay = true; /* without output: that was sent long ago */
        status = context->ops.forward(context->user, &micro_batch, input, NULL, err);
        micro_batch.replay = false;
    }
    if (status == ETH_HPP_OK)
        status = context->ops.backward(
            context->user, &micro_batch, input,
            eth_hpp_handover_buffer(executor, ETH_HPP_HANDOVER_OUTPUT_GRADIENT, m, samples),
            eth_hpp_handover_buffer(executor, ETH_HPP_HANDOVER_INPUT_GRADIENT, m, samples), err);
    return status;
}

static enum eth_hpp_status run_backward(struct eth_hpp_context *context, int m,
                                        struct eth_hpp_error *err)
{
    struct eth_hpp_executor *executor = &context->executor;
    const int first_layer = context->assignment.first_layer;
    enum eth_hpp_status status =
        eth_hpp_handover_wait(context, ETH_HPP_HANDOVER_OUTPUT_GRADIENT, m, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_handover_wait(
            context, ETH_HPP_HANDOVER_INPUT_GRADIENT,
            m - executor->handovers[ETH_HPP_HANDOVER_INPUT_GRADIENT].buffers, err);
    if (status != ETH_HPP_OK)
        return status;
    executor->last_backward = m == context->assignment.micro_batches - 1;
    executor->backward_start = eth_hpp_clock_now();
    executor->layer_error = (struct eth_hpp_error){.status = ETH_HPP_OK};
    status = call_backward(context, m, err);
    if (status == ETH_HPP_OK && executor->layer_error.status != ETH_HPP_OK)
        status =
            eth_hpp_error_set(err, executor->layer_error.status, "%s", executor->layer_error.text);
    if (status == ETH_HPP_OK)
        status = settle(context, executor->backward_start, backward_s(context, first_layer), err);
    if (status == ETH_HPP_OK && executor->last_backward) /* layers that were not reported */
        status = eth_hpp_sync_passed(context, first_layer, err);
    executor->backward_end = eth_hpp_clock_now();
    executor->busy_s += executor->backward_end - executor->backward_start;
    return status;
}

void eth_hpp_layer_done(struct eth_hpp_context *context, int layer)
{
    struct eth_hpp_executor *executor = &context->executor;
    struct eth_hpp_error *err = &executor->layer_error;
    if (err->status != ETH_HPP_OK || !executor->last_backward)
        return;
    /* An emulated device is not done before its time; lateness is counted at the stage's end. */
    const double seconds = backward_s(context, layer);
    if (eth_hpp_clock_now() < executor->backward_start + seconds)
        eth_hpp_emulator_stretch(&context->emulator, executor->backward_start, seconds);
    eth_hpp_sync_passed(context, layer, err);
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
                                 "step %lld: the loss is not finite: lower the learning rate or "
                                 "clip the gradients",
                                 (long long)context->step);
    return ETH_HPP_OK;
}

static enum eth_hpp_status run_norm(struct eth_hpp_context *context, int i,
                                    struct eth_hpp_metrics *metrics, struct eth_hpp_error *err)
{
    enum eth_hpp_status status = eth_hpp_sync_wait(context, err);
    metrics->sync_exposed_s = eth_hpp_clock_now() - context->executor.backward_end;
    if (status == ETH_HPP_OK)
        status = check_loss(context, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_sync_norm(context, i, err);
    return status;
}

static enum eth_hpp_status run_update(struct eth_hpp_context *context,
                                      const struct eth_hpp_optimizer_options *optimizer,
                                      struct eth_hpp_metrics *metrics, struct eth_hpp_error *err)
{
    const double start = eth_hpp_clock_now();
    enum eth_hpp_status status =
        eth_hpp_optimizer_update(context, optimizer, &metrics->gradient_norm, err);
    metrics->optimizer_s = eth_hpp_clock_now() - start;
    return status;
}

static enum eth_hpp_status run_instruction(struct eth_hpp_context *context, int i,
                                           const struct eth_hpp_optimizer_options *optimizer,
                                           struct eth_hpp_metrics *metrics,
                                           struct eth_hpp_error *err)
{
    const struct eth_hpp_instruction *at = &context->executor.program.instructions[i];
    switch (at->opcode) {
    case ETH_HPP_RECV_ACTIVATION:
    case ETH_HPP_SEND_ACTIVATION:
    case ETH_HPP_RECV_GRADIENT:
    case ETH_HPP_SEND_GRADIENT:
        return eth_hpp_handover_start(context, i, err);
    case ETH_HPP_FORWARD:
        return run_forward(context, at->micro_batch, err);
    case ETH_HPP_BACKWARD:
        return run_backward(context, at->micro_batch, err);
    case ETH_HPP_SYNC_BLOCK:
        return ETH_HPP_OK; /* started by the last backward */
    case ETH_HPP_REDUCE_LOSS:
        return eth_hpp_sync_loss(context, i, err);
    case ETH_HPP_REDUCE_NORM:
        return run_norm(context, i, metrics, err);
    case ETH_HPP_OPTIMIZER_STEP:
        return run_update(context, optimizer, metrics, err);
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
    executor->busy_s = 0;
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
    const double updated = eth_hpp_clock_now();
    for (int i = 0; status == ETH_HPP_OK && i < executor->program.count; i++)
        status = eth_hpp_executor_wait(context, i, err);
    if (context->plan.sharded_optimizer)
        measured.sync_exposed_s += eth_hpp_clock_now() - updated;
    if (status == ETH_HPP_OK)
        status = eth_hpp_replicas_compare(context, err);
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
