/* The update: one division by the number of targets, clipping by the global norm, AdamW. Every
 * owner of a tensor does the same on the same bits, or where the optimizer is sharded each its own
 * share of them. */
#include <math.h>

#include "runtime/context.h"

/* As torch.nn.utils.clip_grad_norm_ does it. */
#define CLIP_EPSILON 1e-6

static double clip_factor(double norm, double clip_norm)
{
    double factor = clip_norm / (norm + CLIP_EPSILON);
    return clip_norm > 0 && factor < 1 ? factor : 1;
}

enum eth_hpp_status eth_hpp_optimizer_update(struct eth_hpp_context *context,
                                             const struct eth_hpp_optimizer_options *options,
                                             double *norm, struct eth_hpp_error *err)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    const struct eth_hpp_parameters *parameters = &context->parameters;
    const double targets = context->executor.totals[1];
    const double mean_norm = sqrt(context->executor.squares_and_busy[0]) / targets;
    struct eth_hpp_adamw settings = {
        .learning_rate = options->learning_rate,
        .beta1 = options->beta1,
        .beta2 = options->beta2,
        .epsilon = options->epsilon,
        .gradient_scale = clip_factor(mean_norm, options->clip_norm) / targets,
        .step = context->step + 1,
    };
    if (!isfinite(mean_norm))
        return eth_hpp_error_set(err, ETH_HPP_ERR_NUMERIC,
                                 "step %lld: the gradients' norm is not finite: lower the learning "
                                 "rate",
                                 (long long)context->step);
    for (size_t i = 0; i < parameters->tensor_count; i++) {
        const struct eth_hpp_parameter *tensor = &parameters->tensors[i];
        if (tensor->alias)
            continue;
        const struct eth_hpp_updated_part part = eth_hpp_parameters_updated(parameters, i);
        if (part.first == part.end)
            continue;
        settings.weight_decay = tensor->weight_decay ? options->weight_decay : 0;
        kernels->ops->adamw(kernels->state, part.end - part.first, &settings,
                            parameters->gradients + tensor->offset + part.first,
                            eth_hpp_weights_masters(context, i),
                            parameters->first_moments + part.moments,
                            parameters->second_moments + part.moments);
        eth_hpp_weights_cast(context, i);
    }
    *norm = mean_norm;
    return ETH_HPP_OK;
}
