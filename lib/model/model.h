/*
 * What a model consists of, for planning: layers of three kinds, what they hold, compute and hand
 * on. Layer 0 is the embedding, then the decoders, then the head (final norm, logits and loss).
 * Needs libc and json-c only, so that the Slurm plugin can check a model's name.
 */
#ifndef ETH_HPP_MODEL_MODEL_H
#define ETH_HPP_MODEL_MODEL_H

#include "base/dtype.h"
#include "base/error.h"

enum eth_hpp_family {
    ETH_HPP_GPT2,
    ETH_HPP_LLAMA,
    ETH_HPP_MISTRAL,
    ETH_HPP_QWEN2,
    ETH_HPP_OPT,
    ETH_HPP_GPT_NEOX,
    ETH_HPP_FAMILIES
};
const char *eth_hpp_family_name(enum eth_hpp_family family); /* Hugging Face's model_type */

/* The kinds of layer. */
enum eth_hpp_kind {
    ETH_HPP_KIND_EMBEDDING,
    ETH_HPP_KIND_DECODER,
    ETH_HPP_KIND_HEAD,
    ETH_HPP_KINDS
};
const char *eth_hpp_kind_name(enum eth_hpp_kind kind); /* "embedding", "decoder", "head" */

/* The name of the tensor that a tied model's embedding and head share. */
#define ETH_HPP_TOKEN_EMBEDDING "token-embedding"

struct eth_hpp_model {
    char name[96];
    enum eth_hpp_family family;
    int vocabulary, context; /* tokens; the longest sequence */
    int decoders, hidden, inner;
    int heads, key_value_heads, head_size;
    bool tied; /* the head uses the embedding's matrix */
    /* What its configuration asks for and the built-in transformer does not do, though costs are
     * the same: "activation_function relu"; "" for nothing. */
    char unlike[96];
    /* Probabilities, each of 0 .. 1: of the embedding's output, of attention's, of what the
     * residual stream is given. */
    double embedding_dropout, attention_dropout, residual_dropout;
    double norm_epsilon; /* added to the variance; read where the model can be trained */
    double rope_theta;   /* of rotary positions; 0: the model has others */
};

/* A preset by name, or NULL; and the names, separated by ", ". */
const struct eth_hpp_model *eth_hpp_preset_find(const char *name);
const char *eth_hpp_preset_names(void);

/* The model that a user named: a preset, a Hugging Face config.json or a folder that holds one.
 * Errors: INPUT (neither; what is wrong in the file), UNSUPPORTED (an architecture not known). */
enum eth_hpp_status eth_hpp_model_find(const char *name, struct eth_hpp_model *model,
                                       struct eth_hpp_error *err);

/* Llama and its kin: RMS norms, rotary positions, a gated MLP of three matrices, and no biases but
 * those that Qwen2 adds to queries, keys and values. */
bool eth_hpp_model_is_gated(const struct eth_hpp_model *model);

/* Whether the built-in transformer trains models of this family. */
bool eth_hpp_model_is_built_in(const struct eth_hpp_model *model);

/* Layers in all, and the kind of layer i. */
int eth_hpp_model_layers(const struct eth_hpp_model *model);
enum eth_hpp_kind eth_hpp_model_kind(const struct eth_hpp_model *model, int layer);

/* Parameters of one layer of a kind, the tied tensor left out; and of the tied tensor (0: none). */
double eth_hpp_model_parameters(const struct eth_hpp_model *model, enum eth_hpp_kind kind);
double eth_hpp_model_tied_parameters(const struct eth_hpp_model *model);

/* Floating-point operations of one layer's forward on one sample: two for each multiply-add of the
 * matrix products, the whole sequence x sequence square for attention. */
double eth_hpp_model_forward_flops(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                   int sequence);

/* What a sample hands to the next layer: sequence x hidden values; 0 for the head. */
double eth_hpp_model_output_bytes(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                  int sequence, enum eth_hpp_dtype dtype);

/* The hand-over buffers that a rank has beside one input for each micro-batch in flight
 * (lib/plan/program.h): each of activations and gradients that are sent, and of gradients that are
 * received. */
enum { ETH_HPP_SEND_BUFFERS = 4, ETH_HPP_GRADIENT_BUFFERS = 2 };

/* Per sample, of one layer: kept from forward to backward; and needed only while it runs, with the
 * hand-over buffers of a stage of such layers that has neighbours on both sides. The figures of
 * families that are built in are what models/transformer.c allocates; the tokens of an embedding
 * and the targets of a head are kept too. */
double eth_hpp_model_saved_bytes(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                 int sequence, enum eth_hpp_dtype dtype);
double eth_hpp_model_workspace_bytes(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                     int sequence, enum eth_hpp_dtype dtype);

#endif
