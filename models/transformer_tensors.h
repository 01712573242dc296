/* The parameter tensors of GPT-2, kind by kind of layer: names, sizes, first values. */
#ifndef ETH_HPP_MODELS_TRANSFORMER_TENSORS_H
#define ETH_HPP_MODELS_TRANSFORMER_TENSORS_H

#include "kernels/kernels.h"
#include "model/transformer_memory.h"
#include "model/model.h"

/* Indices into a layer's tensors. */
enum eth_hpp_embedding_tensor { ETH_HPP_TOKENS, ETH_HPP_POSITIONS };
enum eth_hpp_decoder_tensor {
    ETH_HPP_NORM1_WEIGHT,
    ETH_HPP_NORM1_BIAS,
    ETH_HPP_QKV_WEIGHT,
    ETH_HPP_QKV_BIAS,
    ETH_HPP_PROJECTION_WEIGHT,
    ETH_HPP_PROJECTION_BIAS,
    ETH_HPP_NORM2_WEIGHT,
    ETH_HPP_NORM2_BIAS,
    ETH_HPP_INNER_WEIGHT,
    ETH_HPP_INNER_BIAS,
    ETH_HPP_OUTER_WEIGHT,
    ETH_HPP_OUTER_BIAS
};
enum eth_hpp_head_tensor { ETH_HPP_NORM_WEIGHT, ETH_HPP_NORM_BIAS, ETH_HPP_LOGITS_WEIGHT };
enum { ETH_HPP_LAYER_TENSORS = 12, ETH_HPP_TENSOR_NAME_MAX = 64 };

/* How many tensors a layer of this kind has, tied ones included. */
size_t eth_hpp_transformer_tensor_count(enum eth_hpp_kind kind);

/* Whether the tensor is the model's tied token embedding. */
bool eth_hpp_transformer_tensor_is_tied(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                        size_t index);

/* Elements of a tensor, and whether it is a matrix, which weight decay is for. */
size_t eth_hpp_transformer_tensor_size(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                       size_t index);
/* Of a matrix; 0 of a vector. */
size_t eth_hpp_transformer_tensor_columns(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                          size_t index);
bool eth_hpp_transformer_tensor_is_matrix(enum eth_hpp_kind kind, size_t index);

/* Writes the name that Hugging Face's GPT2LMHeadModel has, "transformer.h.3.attn.c_attn.weight";
 * `decoder` counts from 0. */
void eth_hpp_transformer_tensor_name(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                     int decoder, size_t index, char name[ETH_HPP_TENSOR_NAME_MAX]);

/* Writes a tensor's first values, the same at every owner: normal numbers of deviation 0.02
 * (projections into the residual stream: 0.02 / sqrt(2 x decoders)), as in GPT-2's paper; norms 1,
 * biases 0. */
void eth_hpp_transformer_tensor_initialise(const struct eth_hpp_kernels *kernels,
                                           const struct eth_hpp_model *model,
                                           enum eth_hpp_kind kind, int layer, size_t index,
                                           uint64_t seed, void *weights);

#endif
