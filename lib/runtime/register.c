#include <stdlib.h>
#include <string.h>

#include "runtime/context.h"

/* 64 bytes: a cache line or a vector. */
static size_t aligned(size_t count)
{
    return (count + ETH_HPP_TENSOR_ALIGNMENT - 1) / ETH_HPP_TENSOR_ALIGNMENT *
           ETH_HPP_TENSOR_ALIGNMENT;
}

/* The elements that a block takes: as many in each owner's share, and those aligned, where the
 * optimizer is sharded. */
static size_t in_shares(const struct eth_hpp_context *context, int block, size_t count)
{
    const int owners = context->plan.blocks[block].rank_count;
    const size_t members = context->plan.sharded_optimizer ? (size_t)owners : 1;
    return aligned((count + members - 1) / members) * members;
}

/* The tied block of this name that this rank owns, or -1. */
static int find_tied(const struct eth_hpp_context *context, const char *name)
{
    for (int b = 0; b < context->plan.block_count; b++)
        if (context->plan.blocks[b].tied_name[0] != '\0' &&
            strcmp(context->plan.blocks[b].tied_name, name) == 0 &&
            context->parameters.blocks[b].block >= 0)
            return b;
    return -1;
}

static bool is_tied(const struct eth_hpp_block *block)
{
    return block->first_layer == block->end_layer;
}

static void find_owned_blocks(struct eth_hpp_context *context)
{
    for (int b = 0; b < context->plan.block_count; b++) {
        const struct eth_hpp_block *block = &context->plan.blocks[b];
        struct eth_hpp_owned_block *own = &context->parameters.blocks[b];
        own->block = -1;
        own->lowest_layer = is_tied(block) ? context->plan.layers : block->first_layer;
        for (int i = 0; i < block->rank_count; i++)
            if (block->ranks[i] == context->job.rank)
                own->block = b;
    }
}

/* What this rank counts and updates of its blocks, and where the moments of that lie. */
static void place_shares(struct eth_hpp_context *context)
{
    struct eth_hpp_parameters *parameters = &context->parameters;
    for (int b = 0; b < context->plan.block_count; b++) {
        const struct eth_hpp_block *block = &context->plan.blocks[b];
        struct eth_hpp_owned_block *own = &parameters->blocks[b];
        int position = 0;
        if (own->block < 0)
            continue;
        while (block->ranks[position] != context->job.rank)
            position++;
        own->share = own->offset + eth_hpp_comm_share(own->count, block->rank_count, position);
        own->share_end =
            own->offset + eth_hpp_comm_share(own->count, block->rank_count, position + 1);
        own->updated = context->plan.sharded_optimizer ? own->share : own->offset;
        own->updated_end =
            context->plan.sharded_optimizer ? own->share_end : own->offset + own->count;
        own->moments = parameters->moments_total;
        parameters->moments_total += aligned(own->updated_end - own->updated);
    }
}

static enum eth_hpp_status check_tensor(const struct eth_hpp_context *context,
                                        const struct eth_hpp_tensor *tensor,
                                        struct eth_hpp_error *err)
{
    const struct eth_hpp_assignment *a = &context->assignment;
    if (tensor->layer < a->first_layer || tensor->layer >= a->end_layer)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "tensor %s is of layer %d, this rank holds layers %d to %d",
                                 tensor->name, tensor->layer, a->first_layer, a->end_layer - 1);
    if (tensor->columns != 0 && tensor->count % tensor->columns != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "tensor %s has %zu elements, no whole number of rows of %zu",
                                 tensor->name, tensor->count, tensor->columns);
    if (tensor->tied != NULL && find_tied(context, tensor->tied) < 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "tensor %s: the plan has no tied block \"%s\" on this rank: was "
                                 "it made for another model?",
                                 tensor->name, tensor->tied);
    return ETH_HPP_OK;
}

/* Places the own tensors of a block's layer; *end is where the next one goes. */
static enum eth_hpp_status place_layer(struct eth_hpp_context *context,
                                       const struct eth_hpp_tensor *tensors, int block, int layer,
                                       size_t *end, struct eth_hpp_error *err)
{
    bool found = false;
    for (size_t i = 0; i < context->parameters.tensor_count; i++) {
        if (tensors[i].layer != layer)
            continue;
        found = true;
        if (tensors[i].tied != NULL)
            continue;
        context->parameters.tensors[i].offset = *end;
        context->parameters.tensors[i].block = block;
        *end += aligned(tensors[i].count);
    }
    return found ? ETH_HPP_OK
                 : eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                     "no tensor of layer %d is registered, which this rank holds",
                                     layer);
}

/* Places a tied tensor: once, however many layers of this rank name it. */
static enum eth_hpp_status place_tied(struct eth_hpp_context *context,
                                      const struct eth_hpp_tensor *tensors, int block, size_t *end,
                                      struct eth_hpp_error *err)
{
    const struct eth_hpp_tensor *first = NULL;
    struct eth_hpp_owned_block *own = &context->parameters.blocks[block];
    const char *name = context->plan.blocks[block].tied_name;
    for (size_t i = 0; i < context->parameters.tensor_count; i++) {
        if (tensors[i].tied == NULL || strcmp(tensors[i].tied, name) != 0)
            continue;
        if (first == NULL)
            first = &tensors[i];
        if (tensors[i].count != first->count)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                     "tied tensor %s: %s has %zu elements and %s has %zu", name,
                                     first->name, first->count, tensors[i].name, tensors[i].count);
        context->parameters.tensors[i].offset = *end;
        context->parameters.tensors[i].block = block;
        context->parameters.tensors[i].alias = first != &tensors[i];
        if (tensors[i].layer < own->lowest_layer)
            own->lowest_layer = tensors[i].layer;
    }
    if (first == NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "tied tensor %s of the plan is not registered on this rank", name);
    own->offset = *end;
    own->count = in_shares(context, block, first->count);
    *end += own->count;
    return ETH_HPP_OK;
}

static enum eth_hpp_status place_all(struct eth_hpp_context *context,
                                     const struct eth_hpp_tensor *tensors,
                                     struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    struct eth_hpp_parameters *parameters = &context->parameters;
    size_t end = 0;
    for (int b = 0; status == ETH_HPP_OK && b < context->plan.block_count; b++) {
        const struct eth_hpp_block *block = &context->plan.blocks[b];
        if (parameters->blocks[b].block < 0 || is_tied(block))
            continue;
        parameters->blocks[b].offset = end;
        for (int l = block->first_layer; status == ETH_HPP_OK && l < block->end_layer; l++)
            status = place_layer(context, tensors, b, l, &end, err);
        parameters->blocks[b].count = in_shares(context, b, end - parameters->blocks[b].offset);
        end = parameters->blocks[b].offset + parameters->blocks[b].count;
    }
    for (int b = 0; status == ETH_HPP_OK && b < context->plan.block_count; b++)
        if (parameters->blocks[b].block >= 0 && is_tied(&context->plan.blocks[b]))
            status = place_tied(context, tensors, b, &end, err);
    parameters->total = end;
    place_shares(context);
    return status;
}

static enum eth_hpp_status copy_tensors(struct eth_hpp_context *context,
                                        const struct eth_hpp_tensor *tensors, size_t count,
                                        struct eth_hpp_error *err)
{
    struct eth_hpp_parameters *parameters = &context->parameters;
    enum eth_hpp_status status = ETH_HPP_OK;
    parameters->tensors = calloc(count + 1, sizeof(*parameters->tensors));
    parameters->blocks = calloc((size_t)context->plan.block_count + 1, sizeof(*parameters->blocks));
    if (parameters->tensors == NULL || parameters->blocks == NULL)
        return eth_hpp_error_memory(err, "the tensors' table");
    parameters->tensor_count = count;
    find_owned_blocks(context);
    for (size_t i = 0; status == ETH_HPP_OK && i < count; i++) {
        parameters->tensors[i].name = strdup(tensors[i].name);
        if (parameters->tensors[i].name == NULL)
            return eth_hpp_error_memory(err, "the tensors' table");
        parameters->tensors[i].count = tensors[i].count;
        parameters->tensors[i].columns = tensors[i].columns;
        parameters->tensors[i].weight_decay = tensors[i].weight_decay;
        status = check_tensor(context, &tensors[i], err);
    }
    return status;
}

/* From the transport where it can share memory, since what it sums is faster there. */
static enum eth_hpp_status allocate_summed(struct eth_hpp_context *context, size_t bytes,
                                           const char *what, void **memory,
                                           struct eth_hpp_error *err)
{
    struct eth_hpp_arena *arena = &context->arena;
    if (eth_hpp_comm_share_memory(context->comm, bytes, memory, NULL) != ETH_HPP_OK)
        return eth_hpp_arena_allocate(arena, bytes, what, memory, err);
    return eth_hpp_arena_count(arena, bytes, what, err);
}

/* What the optimizer keeps of the elements that this rank updates. */
static enum eth_hpp_status allocate_states(struct eth_hpp_context *context,
                                           struct eth_hpp_error *err)
{
    static const char *const what[] = {"first moments", "second moments", "master weights"};
    struct eth_hpp_parameters *parameters = &context->parameters;
    float **arrays[] = {&parameters->first_moments, &parameters->second_moments,
                        &parameters->masters};
    const int count = context->kernels->value_bytes < sizeof(float) ? 3 : 2;
    enum eth_hpp_status status = ETH_HPP_OK;
    for (int i = 0; status == ETH_HPP_OK && i < count; i++) {
        void *memory = NULL;
        status = eth_hpp_arena_allocate(&context->arena, parameters->moments_total * sizeof(float),
                                        what[i], &memory, err);
        *arrays[i] = memory;
    }
    return status;
}

static enum eth_hpp_status allocate(struct eth_hpp_context *context, struct eth_hpp_error *err)
{
    struct eth_hpp_parameters *parameters = &context->parameters;
    const size_t value_bytes = parameters->total * context->kernels->value_bytes;
    const size_t sum_bytes = parameters->total * sizeof(float);
    void *memory = NULL;
    enum eth_hpp_status status =
        eth_hpp_arena_allocate(&context->arena, value_bytes, "weights", &parameters->weights, err);
    if (status == ETH_HPP_OK)
        status = allocate_summed(context, sum_bytes, "gradients", &memory, err);
    parameters->gradients = memory;
    if (status == ETH_HPP_OK)
        status = allocate_states(context, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_register_memory(context->comm, memory, sum_bytes, err);
    if (status == ETH_HPP_OK && context->plan.sharded_optimizer) /* gathered after the update */
        status = eth_hpp_comm_register_memory(context->comm, parameters->weights, value_bytes, err);
    return status;
}

/* A number for the tensors of a block that unlike registrations are unlikely to share. */
static uint32_t block_signature(const struct eth_hpp_context *context, int block)
{
    const struct eth_hpp_owned_block *own = &context->parameters.blocks[block];
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < context->parameters.tensor_count; i++) {
        const struct eth_hpp_parameter *tensor = &context->parameters.tensors[i];
        if (tensor->offset < own->offset || tensor->offset >= own->offset + own->count ||
            is_tied(&context->plan.blocks[block]))
            continue; /* a tied tensor may be named once or several times */
        hash = (hash ^ (uint32_t)(tensor->offset - own->offset)) * 16777619u;
        hash = (hash ^ (uint32_t)tensor->count ^ (tensor->weight_decay ? 1u << 31 : 0)) * 16777619u;
    }
    return hash;
}

/* Opens the block's group, in which all owners must have the same tensors. */
static enum eth_hpp_status open_block(struct eth_hpp_context *context, int b,
                                      struct eth_hpp_error *err)
{
    const struct eth_hpp_block *block = &context->plan.blocks[b];
    struct eth_hpp_owned_block *own = &context->parameters.blocks[b];
    struct eth_hpp_request *request;
    const double signature = block_signature(context, b), count = (double)own->count;
    double bounds[4] = {signature, -signature, count, -count};
    enum eth_hpp_status status = eth_hpp_comm_group_open(
        context->comm, block->ranks, block->rank_count, (uint32_t)b, &own->group, err);
    if (status == ETH_HPP_OK)
        status =
            eth_hpp_comm_group_reduce(own->group, bounds, 4, ETH_HPP_REDUCE_MAX, &request, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_wait(context->comm, request, context->timeout_s, err);
    if (status == ETH_HPP_OK && (bounds[0] != -bounds[1] || bounds[2] != -bounds[3]))
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "block %d of the plan (%s%d to %d): its owners have registered "
                                   "different tensors; order, counts and weight decay must agree",
                                   b, is_tied(block) ? block->tied_name : "layers ",
                                   block->first_layer, block->end_layer - 1);
    return status;
}

enum eth_hpp_status eth_hpp_parameters_open(struct eth_hpp_context *context,
                                            const struct eth_hpp_tensor *tensors, size_t count,
                                            struct eth_hpp_error *err)
{
    enum eth_hpp_status status = copy_tensors(context, tensors, count, err);
    if (status == ETH_HPP_OK)
        status = place_all(context, tensors, err);
    if (status == ETH_HPP_OK)
        status = allocate(context, err);
    for (int b = 0; status == ETH_HPP_OK && b < context->plan.block_count; b++)
        if (context->parameters.blocks[b].block >= 0)
            status = open_block(context, b, err);
    return status;
}

struct eth_hpp_updated_part eth_hpp_parameters_updated(const struct eth_hpp_parameters *parameters,
                                                       size_t tensor)
{
    const struct eth_hpp_parameter *at = &parameters->tensors[tensor];
    const struct eth_hpp_owned_block *own = &parameters->blocks[at->block];
    const size_t tensor_end = at->offset + at->count;
    const size_t first = at->offset > own->updated ? at->offset : own->updated;
    const size_t end = tensor_end < own->updated_end ? tensor_end : own->updated_end;
    if (first >= end)
        return (struct eth_hpp_updated_part){0, 0, 0};
    return (struct eth_hpp_updated_part){first - at->offset, end - at->offset,
                                         own->moments + first - own->updated};
}

void eth_hpp_parameters_free(struct eth_hpp_context *context)
{
    struct eth_hpp_parameters *parameters = &context->parameters;
    for (size_t i = 0; i < parameters->tensor_count; i++)
        free(parameters->tensors[i].name);
    free(parameters->tensors);
    free(parameters->blocks);
}
