#include "models/transformer_measure.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "models/transformer_layers.h"

/* All device memory is one allocation, and these are its parts. */
struct eth_hpp_transformer_measure {
    struct eth_hpp_model model;
    struct eth_hpp_transformer_layer layer;
    struct eth_hpp_transformer_run run;
    size_t largest; /* index of the largest tensor */
    void *memory, *numbers, *input, *output, *gradient;
    void *masters, *moments[2]; /* of the largest */
};

/* Hands out the next part of the memory; with a NULL base it only counts. */
static void *part(char *base, size_t *used, size_t bytes)
{
    void *memory = base == NULL ? NULL : base + *used;
    *used += (bytes + 63) / 64 * 64;
    return memory;
}

/* Whether values are cast from masters. */
static bool is_mixed(const struct eth_hpp_transformer_measure *m)
{
    return m->run.shape.value_bytes < m->run.shape.sum_bytes;
}

/* Lays everything out from base on; returns the bytes it takes. */
static size_t lay_out(struct eth_hpp_transformer_measure *m, char *base, size_t samples)
{
    const struct eth_hpp_transformer_shape *shape = &m->run.shape;
    const size_t hidden = samples * shape->sequence * shape->hidden * shape->value_bytes;
    const size_t tokens = samples * shape->sequence * sizeof(int32_t);
    size_t used = 0, most = 0;
    for (size_t i = 0; i < eth_hpp_transformer_tensor_count(m->layer.kind); i++) {
        const size_t count = eth_hpp_transformer_tensor_size(&m->model, m->layer.kind, i);
        if (count == 0)
            continue;
        m->layer.weights[i] = part(base, &used, count * shape->value_bytes);
        m->layer.gradients[i] = part(base, &used, count * shape->sum_bytes);
        if (most < count) {
            most = count;
            m->largest = i;
        }
    }
    m->masters = m->layer.weights[m->largest];
    if (is_mixed(m))
        m->masters = part(base, &used, most * shape->sum_bytes);
    for (int i = 0; i < 2; i++)
        m->moments[i] = part(base, &used, most * shape->sum_bytes);
    m->numbers = part(base, &used, hidden / shape->value_bytes * shape->sum_bytes);
    m->input = part(base, &used, hidden);
    m->output = part(base, &used, hidden);
    m->gradient = part(base, &used, hidden);
    m->run.tokens = part(base, &used, tokens);
    m->run.targets = m->run.tokens; /* any numbers within the vocabulary will do */
    m->run.loss = part(base, &used, 2 * sizeof(double));
    m->run.loss_scale = 1;
    for (int b = 0; b < ETH_HPP_SAVED_COUNT; b++)
        m->run.saved[b] = part(base, &used,
                               samples * eth_hpp_transformer_saved_buffer(shape, m->layer.kind,
                                                                          (enum eth_hpp_saved)b));
    for (int b = 0; b < ETH_HPP_WORK_COUNT; b++)
        m->run.workspace[b] = part(base, &used,
                                   samples * eth_hpp_transformer_workspace_buffer(
                                                 shape, m->layer.kind, (enum eth_hpp_work)b));
    return used;
}

/* A tensor's first values, by way of its gradient's memory. */
static void fill_tensor(struct eth_hpp_transformer_measure *m, size_t index)
{
    const struct eth_hpp_kernels *kernels = m->run.kernels;
    const size_t count = eth_hpp_transformer_tensor_size(&m->model, m->layer.kind, index);
    eth_hpp_transformer_tensor_initialise(kernels, &m->model, m->layer.kind, 1, index, 1,
                                          m->layer.gradients[index]);
    kernels->ops->cast(kernels->state, count, m->layer.gradients[index], m->layer.weights[index]);
}

/* Ordinary numbers, since zeros and subnormals are not as fast as others. */
static void fill_in(struct eth_hpp_transformer_measure *m, size_t samples, size_t bytes)
{
    const struct eth_hpp_kernels *kernels = m->run.kernels;
    const size_t hidden = samples * m->run.shape.sequence * m->run.shape.hidden;
    kernels->ops->zero(kernels->state, m->memory, bytes);
    for (size_t i = 0; i < eth_hpp_transformer_tensor_count(m->layer.kind); i++)
        if (m->layer.weights[i] != NULL)
            fill_tensor(m, i);
    kernels->ops->random_normal(kernels->state, hidden, 1, UINT64_MAX, 1, m->numbers);
    kernels->ops->cast(kernels->state, hidden, m->numbers, m->input);
}

enum eth_hpp_status eth_hpp_transformer_measure_open(const struct eth_hpp_kernels *kernels,
                                                     const struct eth_hpp_model *model,
                                                     enum eth_hpp_kind kind, int sequence,
                                                     int samples,
                                                     struct eth_hpp_transformer_measure **measure,
                                                     struct eth_hpp_error *err)
{
    if (!eth_hpp_model_is_built_in(model))
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "model %s is of family %s, which is not built in and cannot be "
                                 "measured",
                                 model->name, eth_hpp_family_name(model->family));
    struct eth_hpp_transformer_measure *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return eth_hpp_error_memory(err, "calibration");
    made->model = *model;
    made->layer.kind = kind;
    made->run = (struct eth_hpp_transformer_run){
        .kernels = kernels,
        .model = &made->model,
        .shape = eth_hpp_transformer_shape_of(model, sequence, kernels->value_bytes,
                                              kernels->sum_bytes)};
    const size_t bytes = lay_out(made, NULL, (size_t)samples);
    enum eth_hpp_status status = kernels->ops->allocate(kernels->state, bytes, &made->memory, err);
    if (status != ETH_HPP_OK) {
        free(made);
        return eth_hpp_error_prefix(err, "calibration of %s on %d samples", eth_hpp_kind_name(kind),
                                    samples);
    }
    lay_out(made, made->memory, (size_t)samples);
    fill_in(made, (size_t)samples, bytes);
    *measure = made;
    return ETH_HPP_OK;
}

void eth_hpp_transformer_measure_close(struct eth_hpp_transformer_measure *measure)
{
    if (measure == NULL)
        return;
    measure->run.kernels->ops->release(measure->run.kernels->state, measure->memory);
    free(measure);
}

enum eth_hpp_status eth_hpp_transformer_measure_layer(struct eth_hpp_transformer_measure *measure,
                                                      int samples, double *forward_s,
                                                      double *backward_s, struct eth_hpp_error *err)
{
    const struct eth_hpp_kernels *kernels = measure->run.kernels;
    const struct eth_hpp_transformer_shape *shape = &measure->run.shape;
    const size_t bytes = (size_t)samples * shape->sequence * shape->hidden * shape->value_bytes;
    struct eth_hpp_transformer_run run = measure->run;
    run.samples = (size_t)samples;
    run.logits_held = true; /* as in 1F1B */
    kernels->ops->copy(kernels->state, measure->gradient, measure->input, bytes);
    enum eth_hpp_status status = kernels->ops->synchronize(kernels->state, err);
    if (status != ETH_HPP_OK)
        return status;
    const double start = eth_hpp_clock_now();
    eth_hpp_transformer_layer_forward(&measure->layer, &run, measure->input, measure->output);
    status = kernels->ops->synchronize(kernels->state, err);
    if (status != ETH_HPP_OK)
        return status;
    const double middle = eth_hpp_clock_now();
    eth_hpp_transformer_layer_backward(&measure->layer, &run, measure->input, measure->gradient);
    status = kernels->ops->synchronize(kernels->state, err);
    if (status != ETH_HPP_OK)
        return status;
    *forward_s = middle - start;
    *backward_s = eth_hpp_clock_now() - middle;
    return ETH_HPP_OK;
}

enum eth_hpp_status
eth_hpp_transformer_measure_optimizer(struct eth_hpp_transformer_measure *measure,
                                      double *s_per_parameter, struct eth_hpp_error *err)
{
    const struct eth_hpp_kernels *kernels = measure->run.kernels;
    const size_t count =
        eth_hpp_transformer_tensor_size(&measure->model, measure->layer.kind, measure->largest);
    const struct eth_hpp_adamw settings = {.learning_rate = 1e-4,
                                           .beta1 = 0.9,
                                           .beta2 = 0.95,
                                           .epsilon = 1e-8,
                                           .weight_decay = 0.1,
                                           .gradient_scale = 1,
                                           .step = 1};
    enum eth_hpp_status status = kernels->ops->synchronize(kernels->state, err);
    if (status != ETH_HPP_OK)
        return status;
    const double start = eth_hpp_clock_now();
    kernels->ops->adamw(kernels->state, count, &settings,
                        measure->layer.gradients[measure->largest], measure->masters,
                        measure->moments[0], measure->moments[1]);
    if (is_mixed(measure))
        kernels->ops->cast(kernels->state, count, measure->masters,
                           measure->layer.weights[measure->largest]);
    status = kernels->ops->synchronize(kernels->state, err);
    if (status != ETH_HPP_OK)
        return status;
    *s_per_parameter = (eth_hpp_clock_now() - start) / (double)count;
    return ETH_HPP_OK;
}
