#include "plan/derive.h"

#include <stdio.h>
#include <stdlib.h>

#include "inventory/device_db.h"

#define EFFICIENCY      0.45  /* of the dense peak; FORMATS "Profile" */
#define LAUNCH_S        50e-6 /* a layer's kernel launches */
#define EMULATED_S      1e-4  /* FORMATS "Emulated devices" */
#define OPTIMIZER_BYTES 28.0  /* weight, gradient, two moments read; weight, moments written */
#define BANDWIDTH_SHARE 0.8

static const int points[] = {1, 2, 4, 8, 16, 32, 64};
enum { POINTS = sizeof(points) / sizeof(points[0]) };

enum eth_hpp_dtype eth_hpp_derive_dtype(const struct eth_hpp_cluster *cluster)
{
    bool bf16 = true, half = true;
    for (int i = 0; i < cluster->device_count; i++) {
        bf16 = bf16 && cluster->devices[i].bf16;
        half = half && cluster->devices[i].half_flops > 0;
    }
    if (bf16)
        return ETH_HPP_BF16;
    return half ? ETH_HPP_FP16 : ETH_HPP_FP32;
}

static void fill_kind(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                      struct eth_hpp_profile *profile)
{
    struct eth_hpp_layer_kind *layer = &profile->kinds[kind];
    int sequence = profile->sequence_length;
    snprintf(layer->name, sizeof(layer->name), "%s", eth_hpp_kind_name(kind));
    layer->parameters = eth_hpp_model_parameters(model, kind);
    layer->gradient_bytes = 4 * layer->parameters;
    layer->output_bytes = eth_hpp_model_output_bytes(model, kind, sequence, profile->dtype);
    profile->memory[0].kinds[kind] = (struct eth_hpp_layer_memory){
        .state_bytes = layer->parameters * eth_hpp_dtype_state_bytes(profile->dtype),
        .optimizer_bytes = layer->parameters * eth_hpp_dtype_optimizer_bytes(profile->dtype),
        .saved_bytes = eth_hpp_model_saved_bytes(model, kind, sequence, profile->dtype),
        .workspace_bytes = eth_hpp_model_workspace_bytes(model, kind, sequence, profile->dtype)};
}

static void fill_tied(const struct eth_hpp_model *model, struct eth_hpp_profile *profile)
{
    struct eth_hpp_tied *tied = &profile->tied[profile->tied_count++];
    snprintf(tied->name, sizeof(tied->name), "%s", ETH_HPP_TOKEN_EMBEDDING);
    tied->kinds = 1u << ETH_HPP_KIND_EMBEDDING | 1u << ETH_HPP_KIND_HEAD;
    tied->parameters = eth_hpp_model_tied_parameters(model);
    tied->gradient_bytes = 4 * tied->parameters;
    profile->memory[0].tied[0] = (struct eth_hpp_layer_memory){
        .state_bytes = tied->parameters * eth_hpp_dtype_state_bytes(profile->dtype),
        .optimizer_bytes = tied->parameters * eth_hpp_dtype_optimizer_bytes(profile->dtype)};
}

enum eth_hpp_status eth_hpp_derive_layers(const struct eth_hpp_model *model, int sequence_length,
                                          enum eth_hpp_dtype dtype, struct eth_hpp_profile *profile,
                                          struct eth_hpp_error *err)
{
    if (sequence_length > model->context)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "a sequence of %d tokens is longer than the context of %s, %d",
                                 sequence_length, model->name, model->context);
    struct eth_hpp_profile made = {.sequence_length = sequence_length,
                                   .dtype = dtype,
                                   .kind_count = ETH_HPP_KINDS,
                                   .layer_count = eth_hpp_model_layers(model),
                                   .memory_count = 1};
    snprintf(made.model, sizeof(made.model), "%s", model->name);
    made.layers = malloc((size_t)made.layer_count * sizeof(*made.layers));
    made.memory = calloc(1, sizeof(*made.memory));
    if (made.layers == NULL || made.memory == NULL) {
        eth_hpp_profile_free(&made);
        return eth_hpp_error_memory(err, "a profile");
    }
    made.memory[0].tensor_parallel = 1;
    for (int i = 0; i < made.layer_count; i++)
        made.layers[i] = eth_hpp_model_kind(model, i);
    for (int k = 0; k < ETH_HPP_KINDS; k++)
        fill_kind(model, (enum eth_hpp_kind)k, &made);
    if (model->tied)
        fill_tied(model, &made);
    *profile = made;
    return ETH_HPP_OK;
}

static enum eth_hpp_status derive_device(const struct eth_hpp_model *model,
                                         const struct eth_hpp_device *device,
                                         const struct eth_hpp_derive_options *options,
                                         struct eth_hpp_profile *profile, struct eth_hpp_error *err)
{
    bool emulated = options->emulated_time_scale > 0;
    double peak =
        emulated || options->dtype != ETH_HPP_FP32 ? device->half_flops : device->single_flops;
    struct eth_hpp_times *times;
    if (peak <= 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "nothing is known of how fast a %s is: give a measured profile",
                                 device->name);
    enum eth_hpp_status status =
        eth_hpp_profile_add_times(profile, device->name, 1, points, POINTS, &times, err);
    if (status != ETH_HPP_OK)
        return status;
    for (int i = 0; i < POINTS; i++)
        for (int k = 0; k < ETH_HPP_KINDS; k++) {
            double flops =
                eth_hpp_model_forward_flops(model, (enum eth_hpp_kind)k, options->sequence_length);
            double compute = points[i] * flops / (EFFICIENCY * peak);
            double forward =
                emulated ? EMULATED_S + options->emulated_time_scale * compute : LAUNCH_S + compute;
            times->times[i * profile->kind_count + k] =
                (struct eth_hpp_layer_time){.forward_s = forward, .backward_s = 2 * forward};
        }
    const struct eth_hpp_device_spec *spec = eth_hpp_device_db_find(device->name);
    if (spec == NULL || emulated) /* an emulated device runs the real optimizer, not timed here */
        return ETH_HPP_OK;
    return eth_hpp_profile_set_optimizer_s(
        profile, device->name, OPTIMIZER_BYTES / (BANDWIDTH_SHARE * spec->memory_bandwidth), err);
}

enum eth_hpp_status eth_hpp_derive_profile(const struct eth_hpp_model *model,
                                           const struct eth_hpp_cluster *cluster,
                                           const struct eth_hpp_derive_options *options,
                                           struct eth_hpp_profile *profile,
                                           struct eth_hpp_error *err)
{
    struct eth_hpp_profile made;
    enum eth_hpp_status status =
        eth_hpp_derive_layers(model, options->sequence_length, options->dtype, &made, err);
    if (status != ETH_HPP_OK)
        return status;
    made.estimated = true;
    for (int i = 0; i < cluster->device_count && status == ETH_HPP_OK; i++)
        status = derive_device(model, &cluster->devices[i], options, &made, err);
    if (status == ETH_HPP_OK)
        *profile = made;
    else
        eth_hpp_profile_free(&made);
    return status;
}
