/* Forward and backward of a micro-batch: what they wait for, the model's own computation, and the
 * sums that start as a backward gets through its layers. */
#include "base/clock.h"
#include "runtime/context.h"

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
        .loss_scale = context->loss_scale.factor,
    };
}

static void load(const struct eth_hpp_context *context, const int32_t *to, const int32_t *host)
{
    const struct eth_hpp_kernels *kernels = context->kernels;
    const struct eth_hpp_assignment *a = &context->assignment;
    if (to != NULL)
        kernels->ops->stream_to_device(kernels->state, ETH_HPP_STREAM_COMPUTE, (void *)to, host,
                                       sizeof(int32_t) * (size_t)a->samples *
                                           (size_t)a->sequence_length);
}

static enum eth_hpp_status load_samples(struct eth_hpp_context *context,
                                        const struct eth_hpp_micro_batch *micro_batch,
                                        struct eth_hpp_error *err)
{
    const size_t length = (size_t)context->assignment.sequence_length;
    if (micro_batch->tokens == NULL && micro_batch->targets == NULL)
        return ETH_HPP_OK;
    const struct eth_hpp_loading *loading = &context->executor.loadings[micro_batch->slot];
    int32_t *tokens = loading->host, *targets = tokens + (size_t)micro_batch->samples * length;
    /* Those of an earlier micro-batch may not have left yet. */
    enum eth_hpp_status status = eth_hpp_device_await(context, loading->loaded, err);
    for (int i = 0; status == ETH_HPP_OK && i < micro_batch->samples; i++)
        status =
            context->ops.sample(context->user, micro_batch->first_sample + i,
                                tokens + (size_t)i * length, targets + (size_t)i * length, err);
    if (status != ETH_HPP_OK)
        return status;
    load(context, micro_batch->tokens, tokens);
    load(context, micro_batch->targets, targets);
    eth_hpp_device_mark(context, loading->loaded);
    return ETH_HPP_OK;
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

/* Waits as long as an emulated device would have taken. */
static enum eth_hpp_status settle(struct eth_hpp_context *context, double start, double emulated,
                                  struct eth_hpp_error *err)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    if (context->executor.forward_s == NULL)
        return ETH_HPP_OK;
    enum eth_hpp_status status = kernels->ops->synchronize(kernels->state, err);
    if (status == ETH_HPP_OK)
        eth_hpp_emulator_stretch(&context->emulator, start, emulated);
    return status;
}

enum eth_hpp_status eth_hpp_compute_forward(struct eth_hpp_context *context, int m,
                                            const struct eth_hpp_device_span *span,
                                            struct eth_hpp_error *err)
{
    struct eth_hpp_executor *executor = &context->executor;
    const int samples = context->assignment.samples;
    const struct eth_hpp_micro_batch micro_batch = micro_batch_of(context, m);
    enum eth_hpp_status status = eth_hpp_handover_join(context, ETH_HPP_HANDOVER_INPUT, m, err);
    if (status == ETH_HPP_OK)
        status =
            eth_hpp_handover_join(context, ETH_HPP_HANDOVER_OUTPUT,
                                  m - executor->handovers[ETH_HPP_HANDOVER_OUTPUT].buffers, err);
    if (status != ETH_HPP_OK)
        return status;
    const double start = eth_hpp_clock_now();
    eth_hpp_device_mark(context, span->from);
    status = load_samples(context, &micro_batch, err);
    if (status == ETH_HPP_OK)
        status = context->ops.forward(
            context->user, &micro_batch,
            eth_hpp_handover_buffer(executor, ETH_HPP_HANDOVER_INPUT, m, samples),
            eth_hpp_handover_buffer(executor, ETH_HPP_HANDOVER_OUTPUT, m, samples), err);
    if (status == ETH_HPP_OK)
        status = settle(context, start, forward_s(context, context->assignment.first_layer), err);
    eth_hpp_device_mark(context, span->to);
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

enum eth_hpp_status eth_hpp_compute_backward(struct eth_hpp_context *context, int m,
                                             const struct eth_hpp_device_span *span,
                                             struct eth_hpp_error *err)
{
    struct eth_hpp_executor *executor = &context->executor;
    const int first_layer = context->assignment.first_layer;
    enum eth_hpp_status status =
        eth_hpp_handover_join(context, ETH_HPP_HANDOVER_OUTPUT_GRADIENT, m, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_handover_join(
            context, ETH_HPP_HANDOVER_INPUT_GRADIENT,
            m - executor->handovers[ETH_HPP_HANDOVER_INPUT_GRADIENT].buffers, err);
    if (status != ETH_HPP_OK)
        return status;
    executor->last_backward = m == context->assignment.micro_batches - 1;
    executor->backward_start = eth_hpp_clock_now();
    eth_hpp_device_mark(context, span->from);
    executor->layer_error = (struct eth_hpp_error){.status = ETH_HPP_OK};
    status = call_backward(context, m, err);
    if (status == ETH_HPP_OK && executor->layer_error.status != ETH_HPP_OK)
        status =
            eth_hpp_error_set(err, executor->layer_error.status, "%s", executor->layer_error.text);
    if (status == ETH_HPP_OK)
        status = settle(context, executor->backward_start, backward_s(context, first_layer), err);
    if (status == ETH_HPP_OK && executor->last_backward) /* layers that were not reported */
        status = eth_hpp_sync_passed(context, first_layer, err);
    eth_hpp_device_mark(context, span->to);
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
