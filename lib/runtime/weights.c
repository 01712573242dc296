/*
 * The weights twice, where values have 2 bytes: the values that operations read, whole on every
 * owner of a block, and fp32 masters, which the optimizer updates, of what this rank updates only.
 * A master is cast to its value after each update. What goes over the ranks are values in a step
 * (2 bytes a parameter) and masters for a checkpoint. Where values are fp32 they are the masters.
 *
 * Between two steps the gradients are free: whole weights in fp32 pass through their memory.
 */
#include "runtime/context.h"

size_t eth_hpp_weights_words(const struct eth_hpp_context *context, size_t count)
{
    return count * context->kernels->value_bytes / sizeof(uint32_t);
}

void *eth_hpp_weights_values(const struct eth_hpp_context *context, size_t offset)
{
    return (char *)context->parameters.weights + offset * context->kernels->value_bytes;
}

float *eth_hpp_weights_masters(const struct eth_hpp_context *context, size_t t)
{
    const struct eth_hpp_parameters *parameters = &context->parameters;
    const struct eth_hpp_updated_part part = eth_hpp_parameters_updated(parameters, t);
    if (parameters->masters != NULL)
        return parameters->masters + part.moments;
    return eth_hpp_weights_values(context, parameters->tensors[t].offset + part.first);
}

void eth_hpp_weights_cast(struct eth_hpp_context *context, size_t t)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    const struct eth_hpp_parameters *parameters = &context->parameters;
    const struct eth_hpp_updated_part part = eth_hpp_parameters_updated(parameters, t);
    if (parameters->masters != NULL)
        kernels->ops->cast(
            kernels->state, part.end - part.first, parameters->masters + part.moments,
            eth_hpp_weights_values(context, parameters->tensors[t].offset + part.first));
}

void eth_hpp_weights_set(struct eth_hpp_context *context, size_t t, const float *from)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    const struct eth_hpp_parameters *parameters = &context->parameters;
    const struct eth_hpp_parameter *tensor = &parameters->tensors[t];
    const struct eth_hpp_updated_part part = eth_hpp_parameters_updated(parameters, t);
    kernels->ops->cast(kernels->state, tensor->count, from,
                       eth_hpp_weights_values(context, tensor->offset));
    if (parameters->masters != NULL)
        kernels->ops->copy(kernels->state, parameters->masters + part.moments, from + part.first,
                           (part.end - part.first) * sizeof(float));
}

/* Hands the masters of a block, each owner's share in its gradients' memory, to all owners. */
static enum eth_hpp_status gather(struct eth_hpp_context *context,
                                  const struct eth_hpp_owned_block *own, struct eth_hpp_error *err)
{
    struct eth_hpp_request *request;
    enum eth_hpp_status status =
        eth_hpp_comm_group_sum(own->group, context->parameters.gradients + own->offset, own->count,
                               ETH_HPP_SUM_GATHER, &request, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_wait(context->comm, request, context->timeout_s, err);
    return status;
}

enum eth_hpp_status eth_hpp_weights_collect(struct eth_hpp_context *context, const float **weights,
                                            struct eth_hpp_error *err)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    const struct eth_hpp_parameters *parameters = &context->parameters;
    enum eth_hpp_status status = ETH_HPP_OK;
    if (parameters->masters == NULL) {
        *weights = parameters->weights;
        return ETH_HPP_OK;
    }
    for (int b = 0; status == ETH_HPP_OK && b < context->plan.block_count; b++) {
        const struct eth_hpp_owned_block *own = &parameters->blocks[b];
        if (own->block < 0 || own->count == 0)
            continue;
        kernels->ops->copy(kernels->state, parameters->gradients + own->updated,
                           parameters->masters + own->moments,
                           (own->updated_end - own->updated) * sizeof(float));
        if (context->plan.sharded_optimizer)
            status = gather(context, own, err);
    }
    if (status == ETH_HPP_OK)
        *weights = parameters->gradients;
    return status;
}
