/* The parameter tensors, family by family and kind by kind of layer: names, sizes, first values. */
#ifndef ETH_HPP_MODELS_TRANSFORMER_TENSORS_H
#define ETH_HPP_MODELS_TRANSFORMER_TENSORS_H

#include "kernels/kernels.h"
#include "model/model.h"
#include "model/transformer_memory.h"

/* Indices into a layer's tensors, by what they are for: the same in all families, of which one may
 * lack some. A bias follows its weight. */
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
enum { ETH_HPP_LAYER_TENSORS = 12, ETH_HPP_TENSOR_PARTS = 3, ETH_HPP_TENSOR_NAME_MAX = 64 };

/* How many indices a layer of this kind has. */
size_t eth_hpp_transformer_tensor_count(enum eth_hpp_kind kind);

/* Whether the tensor is the model's tied token embedding. */
bool eth_hpp_transformer_tensor_is_tied(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                        size_t index);

/* A tensor as files have it. In Llama's the weights of queries, keys and values are three, as are
 * gates and ups two: registered one after the other they lie so in memory (eth_hpp.h), and are one
 * matrix to a product. */
struct eth_hpp_tensor_part {
    char name[ETH_HPP_TENSOR_NAME_MAX]; /* Hugging Face's, "transformer.h.3.attn.c_attn.weight" */
    size_t count, columns;              /* elements; columns of a matrix, 0 of a vector */
};

/* The parts of a tensor; returns how many they are: 0 where the family lacks it. `decoder` counts
 * from 0. */
size_t eth_hpp_transformer_tensor_parts(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                        int decoder, size_t index,
                                        struct eth_hpp_tensor_part parts[ETH_HPP_TENSOR_PARTS]);

/* Elements of all its parts; 0 where the family lacks it. */
size_t eth_hpp_transformer_tensor_size(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                       size_t index);

/* Writes a tensor's first values, the same at every owner: normal numbers of deviation 0.02
 * (projections into the residual stream: 0.02 / sqrt(2 x decoders)), as in GPT-2's paper; norms 1,
 * biases 0. */
void eth_hpp_transformer_tensor_initialise(const struct eth_hpp_kernels *kernels,
                                           const struct eth_hpp_model *model,
                                           enum eth_hpp_kind kind, int layer, size_t index,
                                           uint64_t seed, void *weights);

#endif
