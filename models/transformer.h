/*
 * The built-in transformer: embedding, decoders and head of a stage on the public API and the
 * tensor operations, for GPT-2 and for Llama and its kin (Mistral, Qwen2). Layer 0 is the
 * embedding, 1 .. decoders are the decoders, the last is the head (final norm, logits, loss).
 *
 * Micro-batches are kept in slots; with recompute a slot holds the layers' inputs only, and
 * backward makes the rest again layer by layer, in one memory that all layers share. The runtime's
 * replayed forward then has nothing to do.
 */
#ifndef ETH_HPP_MODELS_TRANSFORMER_H
#define ETH_HPP_MODELS_TRANSFORMER_H

#include "base/error.h"
#include "model/model.h"

struct eth_hpp_transformer;

struct eth_hpp_transformer_options {
    const struct eth_hpp_model *model; /* copied; of a family that is built in */
    uint64_t seed; /* of the initial weights and of dropout: the same on every rank */
    /* The data, as in eth_hpp_stage_ops. Tokens outside the vocabulary are refused. */
    enum eth_hpp_status (*sample)(void *data, int64_t number, int32_t *tokens, int32_t *targets,
                                  struct eth_hpp_error *err);
    void *data;
};

/* Registers this rank's layers, allocates what they keep and writes their initial weights. Called
 * by every rank, the idle ones too. Freed with eth_hpp_transformer_destroy after the last step; the
 * device memory belongs to the context. Errors: UNSUPPORTED (another model), INPUT (model and plan
 * do not fit together), MEMORY, and those of eth_hpp_register. */
enum eth_hpp_status eth_hpp_transformer_create(struct eth_hpp_context *context,
                                               const struct eth_hpp_transformer_options *options,
                                               struct eth_hpp_transformer **transformer,
                                               struct eth_hpp_error *err);
/* Of dropout from the next step on, where a training that is taken up has had another. */
void eth_hpp_transformer_set_seed(struct eth_hpp_transformer *transformer, uint64_t seed);
/* NULL is fine. */
void eth_hpp_transformer_destroy(struct eth_hpp_transformer *transformer);

#endif
