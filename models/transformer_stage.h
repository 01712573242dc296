/* The model's part on this rank: its layers, where they keep what, and its computation. */
#ifndef ETH_HPP_MODELS_TRANSFORMER_STAGE_H
#define ETH_HPP_MODELS_TRANSFORMER_STAGE_H

#include "models/transformer.h"
#include "models/transformer_layers.h"

/* One of the stage's layers. */
struct eth_hpp_transformer_stage_layer {
    struct eth_hpp_transformer_layer layer;
    size_t tensors[ETH_HPP_LAYER_TENSORS]; /* as registered */
    size_t kept_at;                        /* where its memory begins in a slot */
};

struct eth_hpp_transformer {
    struct eth_hpp_context *context;
    struct eth_hpp_model model;
    struct eth_hpp_transformer_options options;
    const struct eth_hpp_assignment *part;
    struct eth_hpp_transformer_stage_layer *layers; /* [count] */
    int count;
    struct eth_hpp_transformer_run run; /* what does not change from layer to layer */
    char *slots, *shared;               /* shared: with recompute, what the running layer saves */
    size_t slot_bytes;
    /* The micro-batch whose logits the workspace holds; the head's backward need not make them
     * again when it follows its forward at once, as it does in 1F1B. */
    int64_t logits_step;
    int logits_index;
};

static inline struct eth_hpp_transformer_stage_layer *
eth_hpp_transformer_stage_layer(const struct eth_hpp_transformer *transformer, int layer)
{
    return &transformer->layers[layer - transformer->part->first_layer];
}

/* Allocates slots, workspace and, with recompute, the shared memory. The layers' kinds are known.
 * Errors: those of eth_hpp_allocate. */
enum eth_hpp_status eth_hpp_transformer_stage_allocate(struct eth_hpp_transformer *transformer,
                                                       struct eth_hpp_error *err);

/* Of struct eth_hpp_stage_ops; user is the struct eth_hpp_transformer. */
enum eth_hpp_status eth_hpp_transformer_stage_forward(void *user,
                                                      const struct eth_hpp_micro_batch *micro_batch,
                                                      const void *input, void *output,
                                                      struct eth_hpp_error *err);
enum eth_hpp_status
eth_hpp_transformer_stage_backward(void *user, const struct eth_hpp_micro_batch *micro_batch,
                                   const void *input, const void *output_gradient,
                                   void *input_gradient, struct eth_hpp_error *err);

#endif
