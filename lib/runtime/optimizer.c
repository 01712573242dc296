/* The update: one division by the number of targets and the loss scale, clipping by the global
 * norm, AdamW. Every owner of a tensor does the same on the same bits, or where the optimizer is
 * sharded each its own share of them. */
#include <math.h>

#include "runtime/context.h"

/* As torch.nn.utils.clip_grad_norm_ does it. */
#define CLIP_EPSILON 1e-6

static double clip_factor(double norm, double clip_norm)
{
    double factor = clip_norm / (norm + CLIP_EPSILON);
    return clip_norm > 0 && factor < 1 ? factor : 1;
}

/* What is not finite: an overflow that half of the scale may cure, or the training's end. */
static enum eth_hpp_status leave_out(struct eth_hpp_context *context,
                                     struct eth_hpp_metrics *metrics, struct eth_hpp_error *err)
{
    metrics->overflow = eth_hpp_loss_scale_overflows(&context->loss_scale);
    if (metrics->overflow)
        return ETH_HPP_OK;
    return eth_hpp_error_set(err, ETH_HPP_ERR_NUMERIC,
                             "step %lld: the gradients' norm is not finite%s: lower the learning "
                             "rate",
                             (long long)context->step,
                             context->plan.dtype == ETH_HPP_FP16 ? ", even without a loss scale"
                                                                 : "");
}

static void update(struct eth_hpp_context *context, struct eth_hpp_adamw settings,
                   double weight_decay)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    const struct eth_hpp_parameters *parameters = &context->parameters;
    for (size_t i = 0; i < parameters->tensor_count; i++) {
        const struct eth_hpp_parameter *tensor = &parameters->tensors[i];
        if (tensor->alias)
            continue;
        const struct eth_hpp_updated_part part = eth_hpp_parameters_updated(parameters, i);
        if (part.first == part.end)
            continue;
        settings.weight_decay = tensor->weight_decay ? weight_decay : 0;
        kernels->ops->adamw(kernels->state, part.end - part.first, &settings,
                            parameters->gradients + tensor->offset + part.first,
                            eth_hpp_weights_masters(context, i),
                            parameters->first_moments + part.moments,
                            parameters->second_moments + part.moments);
        eth_hpp_weights_cast(context, i);
    }
}

enum eth_hpp_status eth_hpp_optimizer_update(struct eth_hpp_context *context,
                                             const struct eth_hpp_optimizer_options *options,
                                             struct eth_hpp_metrics *metrics,
                                             struct eth_hpp_error *err)
{
    const double scaled = context->executor.totals[1] * context->loss_scale.factor;
    const double mean_norm = sqrt(context->executor.squares_and_busy[0]) / scaled;
    metrics->loss_scale = context->loss_scale.factor;
    if (!isfinite(mean_norm))
        return leave_out(context, metrics, err);
    const struct eth_hpp_adamw settings = {
        .learning_rate = options->learning_rate,
        .beta1 = options->beta1,
        .beta2 = options->beta2,
        .epsilon = options->epsilon,
        .gradient_scale = clip_factor(mean_norm, options->clip_norm) / scaled,
        .step = ++context->updates,
    };
    update(context, settings, options->weight_decay);
    if (context->plan.dtype == ETH_HPP_FP16)
        eth_hpp_loss_scale_fits(&context->loss_scale);
    metrics->gradient_norm = mean_norm;
    return ETH_HPP_OK;
}
