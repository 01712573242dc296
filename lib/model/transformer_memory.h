/*
 * What the built-in transformer keeps in memory, buffer by buffer. The model allocates by these
 * functions and planning predicts by them, so they cannot disagree.
 *
 * All figures are bytes for ONE sample; k samples take k times as much. Every buffer is a multiple
 * of 64 bytes, so that buffers laid one after the other stay aligned.
 */
#ifndef ETH_HPP_MODEL_TRANSFORMER_MEMORY_H
#define ETH_HPP_MODEL_TRANSFORMER_MEMORY_H

#include "model/model.h"

struct eth_hpp_transformer_shape {
    size_t vocabulary, hidden, inner; /* inner: width inside the MLP, 4 x hidden in GPT-2 */
    size_t heads, key_value_heads, head_size;
    size_t sequence;
    size_t value_bytes, sum_bytes; /* of an element, see kernels.h: 4 and 4 in fp32 */
    bool gated;                    /* Llama's: RMS norms have no means, the MLP has gates and ups */
};

struct eth_hpp_transformer_shape eth_hpp_transformer_shape_of(const struct eth_hpp_model *model,
                                                              int sequence, size_t value_bytes,
                                                              size_t sum_bytes);

/* Values of a token's row: the queries of all heads, which is also the width of what attention
 * gives; queries, keys and values; and what is before the activation function. */
size_t eth_hpp_transformer_query_width(const struct eth_hpp_transformer_shape *shape);
size_t eth_hpp_transformer_qkv_width(const struct eth_hpp_transformer_shape *shape);
size_t eth_hpp_transformer_inner_width(const struct eth_hpp_transformer_shape *shape);

/* Kept from a layer's forward to its backward. The outputs of norms and of the activation function
 * are not: they are made again in backward, which costs little and saves 6 of 16 x hidden values a
 * token in GPT-2. */
enum eth_hpp_saved {
    ETH_HPP_SAVED_INPUT, /* but not of the stage's first layer: the runtime has received it */
    ETH_HPP_SAVED_NORM1_MEAN,
    ETH_HPP_SAVED_NORM1_RSTD,
    ETH_HPP_SAVED_QKV,
    ETH_HPP_SAVED_LOG_SUM,
    ETH_HPP_SAVED_ATTENTION,
    ETH_HPP_SAVED_MIDDLE, /* after the attention's residual */
    ETH_HPP_SAVED_NORM2_MEAN,
    ETH_HPP_SAVED_NORM2_RSTD,
    ETH_HPP_SAVED_INNER, /* before the activation function */
    ETH_HPP_SAVED_COUNT
};

/* Needed only while a layer runs; the layers of a stage share one such memory. */
enum eth_hpp_work {
    ETH_HPP_WORK_GRADIENT, /* of the layer's output, then of its input */
    ETH_HPP_WORK_LEFT,
    ETH_HPP_WORK_RIGHT, /* the head's logits */
    ETH_HPP_WORK_COUNT
};

/* Bytes of one buffer; 0 where layers of this kind do not have it. */
size_t eth_hpp_transformer_saved_buffer(const struct eth_hpp_transformer_shape *shape,
                                        enum eth_hpp_kind kind, enum eth_hpp_saved buffer);
size_t eth_hpp_transformer_workspace_buffer(const struct eth_hpp_transformer_shape *shape,
                                            enum eth_hpp_kind kind, enum eth_hpp_work buffer);

/* Their sums: the profile's saved_bytes and workspace_bytes of a layer. */
size_t eth_hpp_transformer_saved_bytes(const struct eth_hpp_transformer_shape *shape,
                                       enum eth_hpp_kind kind);
size_t eth_hpp_transformer_workspace_bytes(const struct eth_hpp_transformer_shape *shape,
                                           enum eth_hpp_kind kind);

#endif
