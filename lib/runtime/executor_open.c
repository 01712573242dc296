/* What a rank needs before its first step: its instruction list and the memory that it names. */
#include <stdlib.h>

#include "runtime/context.h"

static enum eth_hpp_status compile(struct eth_hpp_context *context, size_t input_bytes,
                                   size_t output_bytes, struct eth_hpp_error *err)
{
    const struct eth_hpp_plan *plan = &context->plan;
    const struct eth_hpp_assignment *a = &context->assignment;
    enum eth_hpp_status status;
    double *hand_over = calloc((size_t)plan->layers, sizeof(double));
    double *gradient = calloc((size_t)plan->block_count + 1, sizeof(double));
    if (hand_over == NULL || gradient == NULL) {
        status = eth_hpp_error_memory(err, "the instruction list");
        goto out;
    }
    /* This rank's list mentions the ends of its own stage and its own blocks only. */
    if (a->first_layer > 0)
        hand_over[a->first_layer - 1] = (double)input_bytes;
    if (a->end_layer < a->layers)
        hand_over[a->end_layer - 1] = (double)output_bytes;
    for (int b = 0; b < plan->block_count; b++)
        gradient[b] = (double)context->parameters.blocks[b].count * sizeof(float);
    status = eth_hpp_program_compile(plan, hand_over, gradient, a->rank, &context->executor.program,
                                     err);
out:
    free(hand_over);
    free(gradient);
    return status;
}

static int64_t first_sample_of(const struct eth_hpp_context *context)
{
    const struct eth_hpp_plan *plan = &context->plan;
    const struct eth_hpp_place *place = &context->place;
    const struct eth_hpp_stage *stage = &plan->pipelines[place->pipeline].stages[place->stage];
    int64_t sample = 0;
    for (int p = 0; p < place->pipeline; p++)
        sample += (int64_t)plan->pipelines[p].micro_batch * plan->pipelines[p].micro_batches;
    for (int w = 0; w < place->worker; w++)
        sample += stage->workers[w].samples;
    return sample;
}

/* Of a slot of micro-batches in flight. */
static enum eth_hpp_status open_loadings(struct eth_hpp_context *context, struct eth_hpp_error *err)
{
    const struct eth_hpp_assignment *a = &context->assignment;
    struct eth_hpp_executor *executor = &context->executor;
    const struct eth_hpp_kernels *kernels = context->kernels;
    const size_t numbers = 2 * (size_t)a->samples * (size_t)a->sequence_length;
    enum eth_hpp_status status = ETH_HPP_OK;
    executor->loadings = calloc((size_t)a->in_flight, sizeof(*executor->loadings));
    if (executor->loadings == NULL)
        return eth_hpp_error_memory(err, "samples");
    for (int slot = 0; status == ETH_HPP_OK && slot < a->in_flight; slot++) {
        struct eth_hpp_loading *loading = &executor->loadings[slot];
        void *memory = NULL;
        status =
            kernels->ops->allocate_host(kernels->state, sizeof(int32_t) * numbers, &memory, err);
        loading->host = memory;
        if (status == ETH_HPP_OK)
            status = kernels->ops->event_create(kernels->state, &loading->loaded, err);
    }
    return status;
}

/* Tokens where the first layer is, targets where the last is. */
static enum eth_hpp_status open_samples(struct eth_hpp_context *context, struct eth_hpp_error *err)
{
    const struct eth_hpp_assignment *a = &context->assignment;
    struct eth_hpp_executor *executor = &context->executor;
    const size_t sample_bytes = sizeof(int32_t) * (size_t)a->sequence_length;
    const size_t bytes = sample_bytes * (size_t)a->samples * (size_t)a->in_flight;
    enum eth_hpp_status status = ETH_HPP_OK;
    void *memory;
    executor->first_sample = first_sample_of(context);
    if (a->first_layer == 0 || a->end_layer == a->layers)
        status = open_loadings(context, err);
    if (status == ETH_HPP_OK && a->first_layer == 0) {
        status = eth_hpp_arena_allocate(&context->arena, bytes, "tokens", &memory, err);
        if (status == ETH_HPP_OK)
            executor->tokens = memory;
    }
    if (status == ETH_HPP_OK && a->end_layer == a->layers) {
        status = eth_hpp_arena_allocate(&context->arena, bytes, "targets", &memory, err);
        if (status == ETH_HPP_OK)
            executor->targets = memory;
    }
    if (status == ETH_HPP_OK)
        status =
            eth_hpp_arena_allocate(&context->arena, 3 * sizeof(double), "the loss", &memory, err);
    if (status == ETH_HPP_OK) {
        executor->loss = memory;
        executor->norm = executor->loss + 2;
    }
    return status;
}

static bool computes(enum eth_hpp_opcode opcode)
{
    return opcode == ETH_HPP_FORWARD || opcode == ETH_HPP_BACKWARD ||
           opcode == ETH_HPP_OPTIMIZER_STEP;
}

static enum eth_hpp_status open_events(struct eth_hpp_context *context, struct eth_hpp_error *err)
{
    struct eth_hpp_executor *executor = &context->executor;
    const struct eth_hpp_kernels *kernels = context->kernels;
    enum eth_hpp_status status = kernels->ops->event_create(kernels->state, &executor->summed, err);
    if (status == ETH_HPP_OK)
        status = kernels->ops->event_create(kernels->state, &executor->reading, err);
    for (int i = 0; status == ETH_HPP_OK && i < executor->program.count; i++) {
        struct eth_hpp_device_span *span = &executor->spans[i];
        if (!computes(executor->program.instructions[i].opcode))
            continue;
        status = kernels->ops->event_create(kernels->state, &span->from, err);
        if (status == ETH_HPP_OK)
            status = kernels->ops->event_create(kernels->state, &span->to, err);
    }
    return status;
}

/* The emulated time of each layer; the model's FLOPs are known by its name. */
static enum eth_hpp_status open_emulation(struct eth_hpp_context *context,
                                          struct eth_hpp_error *err)
{
    const struct eth_hpp_assignment *a = &context->assignment;
    const char *name = getenv("ETH_HPP_MODEL");
    struct eth_hpp_model model;
    if (context->emulator.half_flops <= 0)
        return ETH_HPP_OK;
    enum eth_hpp_status status =
        eth_hpp_model_find(name != NULL && *name != '\0' ? name : context->plan.model, &model, err);
    if (status != ETH_HPP_OK)
        return eth_hpp_error_prefix(err, "emulated devices need to know the model");
    if (eth_hpp_model_layers(&model) != a->layers)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "model %s has %d layers, the plan has %d",
                                 model.name, eth_hpp_model_layers(&model), a->layers);
    context->executor.forward_s = malloc(sizeof(double) * (size_t)(a->end_layer - a->first_layer));
    if (context->executor.forward_s == NULL)
        return eth_hpp_error_memory(err, "the emulated times");
    for (int l = a->first_layer; l < a->end_layer; l++)
        context->executor.forward_s[l - a->first_layer] = eth_hpp_emulator_forward_s(
            &context->emulator, a->samples,
            eth_hpp_model_forward_flops(&model, eth_hpp_model_kind(&model, l), a->sequence_length));
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_executor_open(struct eth_hpp_context *context, size_t input_bytes,
                                          size_t output_bytes, struct eth_hpp_error *err)
{
    struct eth_hpp_executor *executor = &context->executor;
    enum eth_hpp_status status = compile(context, input_bytes, output_bytes, err);
    if (status != ETH_HPP_OK)
        return status;
    size_t count = (size_t)executor->program.count;
    executor->requests = calloc(count + 1, sizeof(struct eth_hpp_request *));
    executor->spans = calloc(count + 1, sizeof(*executor->spans));
    executor->next = malloc(sizeof(int) * (count + 1));
    if (executor->requests == NULL || executor->spans == NULL || executor->next == NULL)
        return eth_hpp_error_memory(err, "the instruction list");
    status = open_events(context, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_handovers_open(context, input_bytes, output_bytes, err);
    if (status == ETH_HPP_OK)
        status = open_samples(context, err);
    if (status == ETH_HPP_OK)
        status = open_emulation(context, err);
    return status;
}

static void free_events(struct eth_hpp_context *context)
{
    struct eth_hpp_executor *executor = &context->executor;
    const struct eth_hpp_kernels *kernels = context->kernels;
    for (int i = 0; executor->spans != NULL && i < executor->program.count; i++) {
        kernels->ops->event_destroy(kernels->state, executor->spans[i].from);
        kernels->ops->event_destroy(kernels->state, executor->spans[i].to);
    }
    for (int slot = 0; executor->loadings != NULL && slot < context->assignment.in_flight; slot++) {
        kernels->ops->release_host(kernels->state, executor->loadings[slot].host);
        kernels->ops->event_destroy(kernels->state, executor->loadings[slot].loaded);
    }
    if (executor->spans == NULL)
        return;
    kernels->ops->event_destroy(kernels->state, executor->summed);
    kernels->ops->event_destroy(kernels->state, executor->reading);
}

void eth_hpp_executor_free(struct eth_hpp_context *context)
{
    struct eth_hpp_executor *executor = &context->executor;
    free_events(context);
    for (int kind = 0; kind < ETH_HPP_HANDOVERS; kind++)
        free(executor->handovers[kind].first);
    eth_hpp_program_free(&executor->program);
    free(executor->requests);
    free(executor->spans);
    free(executor->next);
    free(executor->loadings);
    free(executor->forward_s);
}
