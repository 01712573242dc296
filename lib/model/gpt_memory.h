/*
 * What the built-in GPT-2 keeps in memory, buffer by buffer. The model allocates by these functions
 * and planning predicts by them, so they cannot disagree.
 *
 * All figures are bytes for ONE sample; k samples take k times as much. Every buffer is a multiple
 * of 64 bytes, so that buffers laid one after the other stay aligned.
 */
#ifndef ETH_HPP_MODEL_GPT_MEMORY_H
#define ETH_HPP_MODEL_GPT_MEMORY_H

#include <stddef.h>

enum eth_hpp_gpt_kind { ETH_HPP_GPT_EMBEDDING, ETH_HPP_GPT_DECODER, ETH_HPP_GPT_HEAD };

struct eth_hpp_gpt_shape {
    size_t vocabulary, hidden, inner, heads; /* inner: width inside the MLP, 4 x hidden in GPT-2 */
    size_t sequence;
    size_t value_bytes, sum_bytes; /* of an element, see kernels.h: 4 and 4 in fp32 */
};

/* Kept from a layer's forward to its backward. The outputs of LayerNorm and GELU are not: they are
 * made again in backward, which costs little and saves 6 of 16 x hidden values a token. */
enum eth_hpp_gpt_saved {
    ETH_HPP_GPT_INPUT, /* the stage's first layer has it in the runtime's receive buffer instead */
    ETH_HPP_GPT_NORM1_MEAN,
    ETH_HPP_GPT_NORM1_RSTD,
    ETH_HPP_GPT_QKV,
    ETH_HPP_GPT_LOG_SUM,
    ETH_HPP_GPT_ATTENTION,
    ETH_HPP_GPT_MIDDLE, /* after the attention's residual */
    ETH_HPP_GPT_NORM2_MEAN,
    ETH_HPP_GPT_NORM2_RSTD,
    ETH_HPP_GPT_INNER, /* before GELU */
    ETH_HPP_GPT_SAVED_COUNT
};

/* Needed only while a layer runs; the layers of a stage share one such memory. */
enum eth_hpp_gpt_workspace {
    ETH_HPP_GPT_GRADIENT, /* of the layer's output, then of its input */
    ETH_HPP_GPT_LEFT,
    ETH_HPP_GPT_RIGHT, /* the head's logits */
    ETH_HPP_GPT_WORKSPACE_COUNT
};

/* Bytes of one buffer; 0 where layers of this kind do not have it. */
size_t eth_hpp_gpt_saved_buffer(const struct eth_hpp_gpt_shape *shape, enum eth_hpp_gpt_kind kind,
                                enum eth_hpp_gpt_saved buffer);
size_t eth_hpp_gpt_workspace_buffer(const struct eth_hpp_gpt_shape *shape,
                                    enum eth_hpp_gpt_kind kind, enum eth_hpp_gpt_workspace buffer);

/* Their sums: the profile's saved_bytes and workspace_bytes of a layer. */
size_t eth_hpp_gpt_saved_bytes(const struct eth_hpp_gpt_shape *shape, enum eth_hpp_gpt_kind kind);
size_t eth_hpp_gpt_workspace_bytes(const struct eth_hpp_gpt_shape *shape,
                                   enum eth_hpp_gpt_kind kind);

#endif
