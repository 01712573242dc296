/*
 * A context for tests of models: one stage on one rank, driven by hand. It implements what a model
 * calls of the public API, on kernels of the test's choice.
 */
#ifndef ETH_HPP_TESTS_STAGE_CONTEXT_H
#define ETH_HPP_TESTS_STAGE_CONTEXT_H

#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

enum { STAGE_TENSORS_MAX = 64, STAGE_ALLOCATIONS_MAX = 8 };

struct eth_hpp_context {
    struct eth_hpp_assignment assignment;
    struct eth_hpp_kernels *kernels;
    struct eth_hpp_tensor tensors[STAGE_TENSORS_MAX]; /* names are the context's own copies */
    void *weights[STAGE_TENSORS_MAX], *gradients[STAGE_TENSORS_MAX]; /* parts of the first's */
    size_t count;
    struct eth_hpp_stage_ops ops;
    void *user;
    void *memory[STAGE_ALLOCATIONS_MAX];
    size_t allocations, allocated_bytes, input_bytes, output_bytes;
    int done[16]; /* how often each layer was done */
};

static void stage_context_close(struct eth_hpp_context *context)
{
    for (size_t i = 0; i < context->count; i++)
        free((void *)(uintptr_t)context->tensors[i].name);
    free(context->weights[0]);
    free(context->gradients[0]);
    for (size_t i = 0; i < context->allocations; i++)
        free(context->memory[i]);
}

static size_t stage_context_find(const struct eth_hpp_context *context, const char *name)
{
    for (size_t i = 0; i < context->count; i++)
        if (strcmp(context->tensors[i].name, name) == 0)
            return i;
    fail_msg("no tensor %s", name);
    return 0;
}

const struct eth_hpp_assignment *eth_hpp_get_assignment(const struct eth_hpp_context *context)
{
    return &context->assignment;
}

struct eth_hpp_kernels *eth_hpp_get_kernels(struct eth_hpp_context *context)
{
    return context->kernels;
}

enum eth_hpp_status eth_hpp_register(struct eth_hpp_context *context,
                                     const struct eth_hpp_tensor *tensors, size_t count,
                                     size_t input_bytes, size_t output_bytes,
                                     const struct eth_hpp_stage_ops *ops, void *user,
                                     struct eth_hpp_error *err)
{
    (void)err;
    size_t at[STAGE_TENSORS_MAX], total = 0;
    assert_in_range(count, 0, STAGE_TENSORS_MAX);
    for (size_t i = 0; i < count; i++) {
        const size_t whole = ETH_HPP_TENSOR_ALIGNMENT;
        context->tensors[i] = tensors[i];
        context->tensors[i].name = strdup(tensors[i].name);
        assert_non_null(context->tensors[i].name);
        at[i] = total * context->kernels->sum_bytes;
        total += (tensors[i].count + whole - 1) / whole * whole;
    }
    char *weights = calloc(total + 1, sizeof(double)),
         *gradients = calloc(total + 1, sizeof(double));
    assert_true(weights != NULL && gradients != NULL);
    context->weights[0] = weights;
    context->gradients[0] = gradients;
    for (size_t i = 0; i < count; i++) {
        context->weights[i] = weights + at[i];
        context->gradients[i] = gradients + at[i];
    }
    context->count = count;
    context->ops = *ops;
    context->user = user;
    context->input_bytes = input_bytes;
    context->output_bytes = output_bytes;
    return ETH_HPP_OK;
}

void *eth_hpp_tensor_weights(struct eth_hpp_context *context, size_t i)
{
    return context->weights[i];
}

/* From the gradient, which it leaves zero, as it is when a step begins. */
void eth_hpp_tensor_set_weights(struct eth_hpp_context *context, size_t i, const float *from)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    const size_t count = context->tensors[i].count;
    assert_ptr_equal(from, context->gradients[i]);
    kernels->ops->cast(kernels->state, count, from, context->weights[i]);
    kernels->ops->zero(kernels->state, context->gradients[i], count * kernels->sum_bytes);
}

float *eth_hpp_tensor_gradient(struct eth_hpp_context *context, size_t i)
{
    return context->gradients[i];
}

enum eth_hpp_status eth_hpp_allocate(struct eth_hpp_context *context, size_t bytes, void **memory,
                                     struct eth_hpp_error *err)
{
    (void)err;
    assert_in_range(context->allocations, 0, STAGE_ALLOCATIONS_MAX - 1);
    *memory = malloc(bytes);
    assert_non_null(*memory);
    memset(*memory, 0xff, bytes); /* NaN: nothing may be read before it is written */
    context->memory[context->allocations++] = *memory;
    context->allocated_bytes += bytes;
    return ETH_HPP_OK;
}

void eth_hpp_layer_done(struct eth_hpp_context *context, int layer)
{
    context->done[layer]++;
}

#endif
