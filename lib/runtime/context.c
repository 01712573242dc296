#include "runtime/context.h"

const struct eth_hpp_assignment *eth_hpp_get_assignment(const struct eth_hpp_context *context)
{
    return &context->assignment;
}

struct eth_hpp_kernels *eth_hpp_get_kernels(struct eth_hpp_context *context)
{
    return context->kernels;
}

void *eth_hpp_tensor_weights(struct eth_hpp_context *context, size_t i)
{
    return eth_hpp_weights_values(context, context->parameters.tensors[i].offset);
}

void eth_hpp_tensor_set_weights(struct eth_hpp_context *context, size_t i, const float *from)
{
    eth_hpp_weights_set(context, i, from);
}

float *eth_hpp_tensor_gradient(struct eth_hpp_context *context, size_t i)
{
    return context->parameters.gradients + context->parameters.tensors[i].offset;
}

enum eth_hpp_status eth_hpp_allocate(struct eth_hpp_context *context, size_t bytes, void **memory,
                                     struct eth_hpp_error *err)
{
    return eth_hpp_arena_allocate(&context->arena, bytes, "the model's memory", memory, err);
}

enum eth_hpp_status eth_hpp_register(struct eth_hpp_context *context,
                                     const struct eth_hpp_tensor *tensors, size_t count,
                                     size_t input_bytes, size_t output_bytes,
                                     const struct eth_hpp_stage_ops *ops, void *user,
                                     struct eth_hpp_error *err)
{
    if (context->assignment.idle)
        return count == 0 ? ETH_HPP_OK
                          : eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                              "an idle rank registers no tensors, got %zu", count);
    const struct eth_hpp_assignment *a = &context->assignment;
    if ((input_bytes == 0) != (a->first_layer == 0) ||
        (output_bytes == 0) != (a->end_layer == a->layers))
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "layers %d to %d of %d cannot have %zu bytes of input and %zu of "
                                 "output: the model's ends have 0, all others more",
                                 a->first_layer, a->end_layer - 1, a->layers, input_bytes,
                                 output_bytes);
    if (context->registered)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "the tensors are registered already");
    context->registered = true;
    context->ops = *ops;
    context->user = user;
    enum eth_hpp_status status = eth_hpp_parameters_open(context, tensors, count, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_executor_open(context, input_bytes, output_bytes, err);
    context->failed = status != ETH_HPP_OK;
    return status;
}

bool eth_hpp_is_lowest(const struct eth_hpp_context *context)
{
    for (int rank = 0; rank < context->job.rank; rank++)
        if (eth_hpp_plan_find_rank(&context->plan, rank).pipeline >= 0)
            return false;
    return !context->assignment.idle;
}

enum eth_hpp_status eth_hpp_reduce_max(struct eth_hpp_context *context, double *values, int count,
                                       struct eth_hpp_error *err)
{
    struct eth_hpp_request *request;
    enum eth_hpp_status status = eth_hpp_comm_group_reduce(context->active, values, count,
                                                           ETH_HPP_REDUCE_MAX, &request, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_wait(context->comm, request, context->timeout_s, err);
    return status;
}

enum eth_hpp_status eth_hpp_exchange_number(struct eth_hpp_context *context, double own,
                                            double *values, struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    const int size = context->job.size;
    for (int rank = 0; rank < size; rank++)
        values[rank] = rank == context->job.rank ? own : 0;
    for (int first = 0; status == ETH_HPP_OK && first < size; first += ETH_HPP_REDUCE_MAX_VALUES) {
        const int left = size - first;
        status = eth_hpp_reduce_max(
            context, values + first,
            left < ETH_HPP_REDUCE_MAX_VALUES ? left : ETH_HPP_REDUCE_MAX_VALUES, err);
    }
    return status;
}

enum eth_hpp_status eth_hpp_get_peaks(struct eth_hpp_context *context, double *bytes,
                                      struct eth_hpp_error *err)
{
    return eth_hpp_exchange_number(context, (double)context->arena.bytes, bytes, err);
}

void eth_hpp_request_stop(struct eth_hpp_context *context)
{
    context->stop_asked = 1;
}

enum eth_hpp_status eth_hpp_step(struct eth_hpp_context *context,
                                 const struct eth_hpp_optimizer_options *optimizer,
                                 struct eth_hpp_metrics *metrics, struct eth_hpp_error *err)
{
    if (!context->registered || context->failed)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 context->assignment.idle ? "an idle rank has no steps to run"
                                 : context->failed        ? "no step can follow a failure"
                                                          : "eth_hpp_register comes before a step");
    enum eth_hpp_status status = eth_hpp_executor_run(context, optimizer, metrics, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_checkpoint_poll(context, err);
    context->failed = status != ETH_HPP_OK;
    return status;
}
