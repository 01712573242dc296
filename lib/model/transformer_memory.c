#include "model/transformer_memory.h"

static size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
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
    case ETH_HPP_SAVED_ATTENTION:
    case ETH_HPP_SAVED_MIDDLE:
        return rounded(values * shape->hidden);
    case ETH_HPP_SAVED_QKV:
        return rounded(values * 3 * shape->hidden);
    case ETH_HPP_SAVED_INNER:
        return rounded(values * shape->inner);
    case ETH_HPP_SAVED_LOG_SUM:
        return rounded(sums * shape->heads);
    case ETH_HPP_SAVED_NORM1_MEAN:
    case ETH_HPP_SAVED_NORM1_RSTD:
    case ETH_HPP_SAVED_NORM2_MEAN:
    case ETH_HPP_SAVED_NORM2_RSTD:
        return rounded(sums);
    case ETH_HPP_SAVED_COUNT:
        break;
    }
    return 0;
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
    /* Each holds either the MLP's inner activations or the attention's three (RIGHT) or an
     * activation and the attention's row sums (LEFT). */
    size_t attention = values * 3 * shape->hidden;
    size_t inner = values * shape->inner;
    return rounded(attention > inner ? attention : inner);
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
