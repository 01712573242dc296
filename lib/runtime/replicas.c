/* Now and then the owners of each block compare their weights: replicas that drift apart would
 * train another model than the plan's, and nothing else would show it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/context.h"

/* 64 bits as two whole doubles, which ranks can exchange exactly. */
struct halves {
    double high, low;
};
enum { HALVES_MAX = ETH_HPP_REDUCE_MAX_VALUES / 2 };

/* Of the values, and of the masters where every owner has all of them. */
static enum eth_hpp_status checksum(struct eth_hpp_context *context,
                                    const struct eth_hpp_owned_block *block, struct halves *sum,
                                    struct eth_hpp_error *err)
{
    struct eth_hpp_kernels *kernels = context->kernels;
    const float *masters = context->parameters.masters;
    uint64_t bits, *device = (uint64_t *)(void *)context->executor.norm;
    kernels->ops->zero(kernels->state, device, sizeof(*device));
    kernels->ops->checksum(kernels->state, eth_hpp_weights_words(context, block->count),
                           eth_hpp_weights_values(context, block->offset), device);
    if (masters != NULL && !context->plan.sharded_optimizer)
        kernels->ops->checksum(kernels->state, block->count, masters + block->moments, device);
    enum eth_hpp_status status = eth_hpp_device_read(context, &bits, device, sizeof(bits), err);
    if (status == ETH_HPP_OK)
        *sum = (struct halves){.high = (double)(bits >> 32), .low = (double)(bits & UINT32_MAX)};
    return status;
}

static enum eth_hpp_status reduce_max(struct eth_hpp_context *context, struct eth_hpp_group *group,
                                      double *values, int count, struct eth_hpp_error *err)
{
    struct eth_hpp_request *request;
    enum eth_hpp_status status =
        eth_hpp_comm_group_reduce(group, values, count, ETH_HPP_REDUCE_MAX, &request, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_wait(context->comm, request, context->timeout_s, err);
    return status;
}

/* ---- which ranks differ ---- */

/* Every owner learns the checksums of all, in the order of the block's ranks. */
static enum eth_hpp_status gather(struct eth_hpp_context *context,
                                  const struct eth_hpp_owned_block *own, struct halves sum,
                                  struct halves *all, struct eth_hpp_error *err)
{
    const struct eth_hpp_block *block = &context->plan.blocks[own->block];
    enum eth_hpp_status status = ETH_HPP_OK;
    for (int first = 0; status == ETH_HPP_OK && first < block->rank_count; first += HALVES_MAX) {
        struct halves part[HALVES_MAX] = {{0}};
        const int left = block->rank_count - first, count = left < HALVES_MAX ? left : HALVES_MAX;
        for (int i = 0; i < count; i++)
            if (block->ranks[first + i] == context->job.rank)
                part[i] = sum;
        status = reduce_max(context, own->group, &part[0].high, 2 * count, err);
        memcpy(all + first, part, sizeof(*part) * (size_t)count);
    }
    return status;
}

static bool same(const struct halves *a, const struct halves *b)
{
    return a->high == b->high && a->low == b->low;
}

/* The first of those that most owners agree with. */
static int most_common(const struct halves *all, int count)
{
    int best = 0, best_votes = 0;
    for (int i = 0; i < count; i++) {
        int votes = 0;
        for (int j = 0; j < count; j++)
            votes += same(&all[i], &all[j]);
        if (votes > best_votes) {
            best = i;
            best_votes = votes;
        }
    }
    return best;
}

static enum eth_hpp_status name_ranks(const struct eth_hpp_context *context,
                                      const struct eth_hpp_block *block, const struct halves *all,
                                      struct eth_hpp_error *err)
{
    char ranks[400] = "", layers[80];
    const int common = most_common(all, block->rank_count);
    int unlike = 0;
    for (int i = 0; i < block->rank_count; i++) {
        const size_t used = strlen(ranks);
        if (same(&all[i], &all[common]))
            continue;
        snprintf(ranks + used, sizeof(ranks) - used, "%s%d", unlike++ > 0 ? ", " : "",
                 block->ranks[i]);
    }
    if (block->first_layer == block->end_layer)
        snprintf(layers, sizeof(layers), "tied tensor %.60s", block->tied_name);
    else
        snprintf(layers, sizeof(layers), "layers %d to %d", block->first_layer,
                 block->end_layer - 1);
    return eth_hpp_error_set(
        err, ETH_HPP_ERR_NUMERIC,
        "step %lld: the owners of block %d (%s) no longer hold the same "
        "weights: rank%s %s differ%s from rank %d%s: a device computes wrongly",
        (long long)context->step, (int)(block - context->plan.blocks), layers,
        unlike > 1 ? "s" : "", ranks, unlike > 1 ? "" : "s", block->ranks[common],
        block->rank_count - unlike > 1 ? " and others" : "");
}

/* ---- the comparison ---- */

static enum eth_hpp_status compare_block(struct eth_hpp_context *context,
                                         const struct eth_hpp_owned_block *own,
                                         struct eth_hpp_error *err)
{
    const struct eth_hpp_block *block = &context->plan.blocks[own->block];
    struct halves sum;
    enum eth_hpp_status status = checksum(context, own, &sum, err);
    if (status != ETH_HPP_OK)
        return status;
    double bounds[4] = {sum.high, -sum.high, sum.low, -sum.low};
    status = reduce_max(context, own->group, bounds, 4, err);
    if (status != ETH_HPP_OK || (bounds[0] == -bounds[1] && bounds[2] == -bounds[3]))
        return status;
    struct halves *all = malloc(sizeof(*all) * (size_t)block->rank_count);
    if (all == NULL)
        return eth_hpp_error_memory(err, "the replicas' checksums");
    status = gather(context, own, sum, all, err);
    if (status == ETH_HPP_OK)
        status = name_ranks(context, block, all, err);
    free(all);
    return status;
}

enum eth_hpp_status eth_hpp_replicas_compare(struct eth_hpp_context *context,
                                             struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    if (context->check_replicas == 0 || context->step % context->check_replicas != 0)
        return ETH_HPP_OK;
    for (int b = 0; status == ETH_HPP_OK && b < context->plan.block_count; b++) {
        const struct eth_hpp_owned_block *block = &context->parameters.blocks[b];
        if (block->block >= 0 && context->plan.blocks[b].rank_count > 1)
            status = compare_block(context, block, err);
    }
    return status;
}
