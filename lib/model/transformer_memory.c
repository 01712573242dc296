#include "model/transformer_memory.h"

static size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

struct eth_hpp_transformer_shape eth_hpp_transformer_shape_of(const struct eth_hpp_model *model,
                                                              int sequence, size_t value_bytes,
                                                              size_t sum_bytes)
{
    return (struct eth_hpp_transformer_shape){.vocabulary = (size_t)model->vocabulary,
                                              .hidden = (size_t)model->hidden,
                                              .inner = (size_t)model->inner,
                                              .heads = (size_t)model->heads,
                                              .key_value_heads = (size_t)model->key_value_heads,
                                              .head_size = (size_t)model->head_size,
                                              .sequence = (size_t)sequence,
                                              .value_bytes = value_bytes,
                                              .sum_bytes = sum_bytes,
                                              .gated = eth_hpp_model_is_gated(model)};
}

size_t eth_hpp_transformer_query_width(const struct eth_hpp_transformer_shape *shape)
{
    return shape->heads * shape->head_size;
}

size_t eth_hpp_transformer_qkv_width(const struct eth_hpp_transformer_shape *shape)
{
    return (shape->heads + 2 * shape->key_value_heads) * shape->head_size;
}

size_t eth_hpp_transformer_inner_width(const struct eth_hpp_transformer_shape *shape)
{
    return shape->gated ? 2 * shape->inner : shape->inner;
}

size_t eth_hpp_transformer_saved_buffer(const struct eth_hpp_transformer_shape *shape,
                                        enum eth_hpp_kind kind, enum eth_hpp_saved buffer)
{
    const size_t values = shape->sequence * shape->value_bytes;
    const size_t sums = shape->sequence * shape->sum_bytes;
    if (kind == ETH_HPP_KIND_EMBEDDING)
        return 0;
    if (kind == ETH_HPP_KIND_HEAD && buffer > ETH_HPP_SAVED_NORM1_RSTD)
        return 0;
    switch (buffer) {
    case ETH_HPP_SAVED_INPUT:
    case ETH_HPP_SAVED_MIDDLE:
        return rounded(values * shape->hidden);
    case ETH_HPP_SAVED_ATTENTION:
        return rounded(values * eth_hpp_transformer_query_width(shape));
    case ETH_HPP_SAVED_QKV:
        return rounded(values * eth_hpp_transformer_qkv_width(shape));
    case ETH_HPP_SAVED_INNER:
        return rounded(values * eth_hpp_transformer_inner_width(shape));
    case ETH_HPP_SAVED_LOG_SUM:
        return rounded(sums * shape->heads);
    case ETH_HPP_SAVED_NORM1_MEAN:
    case ETH_HPP_SAVED_NORM2_MEAN:
        return shape->gated ? 0 : rounded(sums);
    case ETH_HPP_SAVED_NORM1_RSTD:
    case ETH_HPP_SAVED_NORM2_RSTD:
        return rounded(sums);
    case ETH_HPP_SAVED_COUNT:
        break;
    }
    return 0;
}

/* What a decoder's backward puts into LEFT: what was activated, or attention's gradient, of the
 * residual stream's width or the queries', and behind it such a vector or attention's row sums. */
static size_t decoder_left(const struct eth_hpp_transformer_shape *shape)
{
    const size_t values = shape->sequence * shape->value_bytes;
    const size_t first = larger(shape->hidden, eth_hpp_transformer_query_width(shape));
    const size_t second =
        larger(values * shape->hidden, shape->sequence * shape->sum_bytes * shape->heads);
    return larger(values * shape->inner, values * first + second);
}

/* And into RIGHT, where forward has what was activated: the gradients of queries, keys and values,
 * or two vectors. */
static size_t decoder_right(const struct eth_hpp_transformer_shape *shape)
{
    const size_t attention = larger(eth_hpp_transformer_qkv_width(shape), 2 * shape->hidden);
    return shape->sequence * shape->value_bytes * larger(shape->inner, attention);
}

size_t eth_hpp_transformer_workspace_buffer(const struct eth_hpp_transformer_shape *shape,
                                            enum eth_hpp_kind kind, enum eth_hpp_work buffer)
{
    const size_t values = shape->sequence * shape->value_bytes;
    if (buffer == ETH_HPP_WORK_GRADIENT)
        return rounded(values * shape->hidden);
    if (kind == ETH_HPP_KIND_EMBEDDING)
        return 0;
    if (kind == ETH_HPP_KIND_HEAD)
        return rounded(values * (buffer == ETH_HPP_WORK_LEFT ? shape->hidden : shape->vocabulary));
    return rounded(buffer == ETH_HPP_WORK_LEFT ? decoder_left(shape) : decoder_right(shape));
}

size_t eth_hpp_transformer_saved_bytes(const struct eth_hpp_transformer_shape *shape,
                                       enum eth_hpp_kind kind)
{
    size_t bytes = 0;
    for (int i = 0; i < ETH_HPP_SAVED_COUNT; i++)
        bytes += eth_hpp_transformer_saved_buffer(shape, kind, (enum eth_hpp_saved)i);
    return bytes;
}

size_t eth_hpp_transformer_workspace_bytes(const struct eth_hpp_transformer_shape *shape,
                                           enum eth_hpp_kind kind)
{
    size_t bytes = 0;
    for (int i = 0; i < ETH_HPP_WORK_COUNT; i++)
        bytes += eth_hpp_transformer_workspace_buffer(shape, kind, (enum eth_hpp_work)i);
    return bytes;
}
