/* Activations and their gradients on the way between the stages of a pipeline. */
#include <stdlib.h>

#include "runtime/context.h"

static enum eth_hpp_handover kind_of(enum eth_hpp_opcode opcode)
{
    switch (opcode) {
    case ETH_HPP_RECV_ACTIVATION:
        return ETH_HPP_HANDOVER_INPUT;
    case ETH_HPP_SEND_ACTIVATION:
        return ETH_HPP_HANDOVER_OUTPUT;
    case ETH_HPP_RECV_GRADIENT:
        return ETH_HPP_HANDOVER_OUTPUT_GRADIENT;
    case ETH_HPP_SEND_GRADIENT:
        return ETH_HPP_HANDOVER_INPUT_GRADIENT;
    default:
        return ETH_HPP_HANDOVERS;
    }
}

static bool receives(enum eth_hpp_handover kind)
{
    return kind == ETH_HPP_HANDOVER_INPUT || kind == ETH_HPP_HANDOVER_OUTPUT_GRADIENT;
}

static enum eth_hpp_status open_buffers(struct eth_hpp_context *context, enum eth_hpp_handover kind,
                                        int buffers, size_t sample_bytes, const char *what,
                                        struct eth_hpp_error *err)
{
    struct eth_hpp_handover_buffers *h = &context->executor.handovers[kind];
    void *memory = NULL;
    enum eth_hpp_status status = ETH_HPP_OK;
    h->buffers = buffers;
    h->sample_bytes = sample_bytes;
    h->first = malloc(sizeof(*h->first) * (size_t)context->assignment.micro_batches);
    if (h->first == NULL)
        return eth_hpp_error_memory(err, "the table of hand-overs");
    for (int m = 0; m < context->assignment.micro_batches; m++)
        h->first[m] = -1;
    if (sample_bytes > 0)
        status = eth_hpp_arena_allocate(
            &context->arena, (size_t)buffers * (size_t)context->assignment.samples * sample_bytes,
            what, &memory, err);
    h->memory = memory;
    if (status == ETH_HPP_OK && memory != NULL)
        status = eth_hpp_comm_register_memory(
            context->comm, memory,
            (size_t)buffers * (size_t)context->assignment.samples * sample_bytes, err);
    return status;
}

/* Chains the instructions of each kind and micro-batch. */
static void index_instructions(struct eth_hpp_executor *executor)
{
    for (int i = executor->program.count - 1; i >= 0; i--) {
        const struct eth_hpp_instruction *at = &executor->program.instructions[i];
        enum eth_hpp_handover kind = kind_of(at->opcode);
        if (kind == ETH_HPP_HANDOVERS)
            continue;
        int *first = &executor->handovers[kind].first[at->micro_batch];
        executor->next[i] = *first;
        *first = i;
    }
}

enum eth_hpp_status eth_hpp_handovers_open(struct eth_hpp_context *context, size_t input_bytes,
                                           size_t output_bytes, struct eth_hpp_error *err)
{
    const struct eth_hpp_program *program = &context->executor.program;
    enum eth_hpp_status status =
        open_buffers(context, ETH_HPP_HANDOVER_INPUT, program->input_buffers, input_bytes,
                     "received activations", err);
    if (status == ETH_HPP_OK)
        status = open_buffers(context, ETH_HPP_HANDOVER_OUTPUT, program->output_buffers,
                              output_bytes, "activations to send", err);
    if (status == ETH_HPP_OK)
        status =
            open_buffers(context, ETH_HPP_HANDOVER_OUTPUT_GRADIENT,
                         program->output_gradient_buffers, output_bytes, "received gradients", err);
    if (status == ETH_HPP_OK)
        status =
            open_buffers(context, ETH_HPP_HANDOVER_INPUT_GRADIENT, program->input_gradient_buffers,
                         input_bytes, "gradients to send", err);
    if (status == ETH_HPP_OK)
        index_instructions(&context->executor);
    return status;
}

void *eth_hpp_handover_buffer(const struct eth_hpp_executor *executor, enum eth_hpp_handover kind,
                              int micro_batch, int samples)
{
    const struct eth_hpp_handover_buffers *h = &executor->handovers[kind];
    if (h->memory == NULL)
        return NULL;
    return h->memory + (size_t)(micro_batch % h->buffers) * (size_t)samples * h->sample_bytes;
}

/* Two messages between two ranks never share a tag unless they come in the same order. */
static uint32_t tag_of(enum eth_hpp_handover kind, int micro_batch)
{
    bool gradient =
        kind == ETH_HPP_HANDOVER_OUTPUT_GRADIENT || kind == ETH_HPP_HANDOVER_INPUT_GRADIENT;
    return (uint32_t)micro_batch << 1 | gradient;
}

enum eth_hpp_status eth_hpp_handover_start(struct eth_hpp_context *context, int i,
                                           struct eth_hpp_error *err)
{
    struct eth_hpp_executor *executor = &context->executor;
    const struct eth_hpp_instruction *at = &executor->program.instructions[i];
    const enum eth_hpp_handover kind = kind_of(at->opcode);
    const size_t sample_bytes = executor->handovers[kind].sample_bytes;
    char *data = (char *)eth_hpp_handover_buffer(executor, kind, at->micro_batch,
                                                 context->assignment.samples) +
                 (size_t)at->first_sample * sample_bytes;
    const size_t size = (size_t)at->samples * sample_bytes;
    const uint32_t tag = tag_of(kind, at->micro_batch);
    if (receives(kind))
        return eth_hpp_comm_recv(context->comm, data, size, at->peer, tag, &executor->requests[i],
                                 err);
    return eth_hpp_comm_send(context->comm, data, size, at->peer, tag, &executor->requests[i], err);
}

enum eth_hpp_status eth_hpp_handover_join(struct eth_hpp_context *context,
                                          enum eth_hpp_handover kind, int micro_batch,
                                          struct eth_hpp_error *err)
{
    struct eth_hpp_executor *executor = &context->executor;
    enum eth_hpp_status status = ETH_HPP_OK;
    if (micro_batch < 0)
        return ETH_HPP_OK;
    for (int i = executor->handovers[kind].first[micro_batch]; status == ETH_HPP_OK && i >= 0;
         i = executor->next[i])
        status = eth_hpp_executor_join(context, i, err);
    return status;
}
