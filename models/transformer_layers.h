/*
 * One layer of a transformer, forward and backward, on tensor operations alone. Training and
 * calibration both run layers through here, so what is measured is what is run.
 */
#ifndef ETH_HPP_MODELS_TRANSFORMER_LAYERS_H
#define ETH_HPP_MODELS_TRANSFORMER_LAYERS_H

#include "models/transformer_tensors.h"

struct eth_hpp_transformer_layer {
    enum eth_hpp_kind kind;
    int number;                           /* of the whole model */
    void *weights[ETH_HPP_LAYER_TENSORS]; /* by the indices of transformer_tensors.h, NULL where the
                                              family lacks one */
    void *gradients[ETH_HPP_LAYER_TENSORS];
};

/* What a layer runs on. Memory is the caller's, sized by transformer_memory.h for at least
 * `samples`. */
struct eth_hpp_transformer_run {
    const struct eth_hpp_kernels *kernels;
    struct eth_hpp_transformer_shape shape;
    size_t samples;
    const struct eth_hpp_model *model;
    uint64_t seed;              /* of dropout */
    int64_t step, first_sample; /* of the micro-batch */
    const int32_t *tokens;      /* embedding */
    const int32_t *targets;     /* head */
    double *loss;               /* head: two values are added to */
    double loss_scale;          /* head: gradients are those of so many times the loss */
    bool logits_held;           /* head: ETH_HPP_WORK_RIGHT still has this micro-batch's logits */
    void *saved[ETH_HPP_SAVED_COUNT]; /* ETH_HPP_SAVED_INPUT is not used: inputs are passed */
    void *workspace[ETH_HPP_WORK_COUNT];
};

/* input and output: samples x sequence x hidden values; the embedding has no input, the head no
 * output. Fills run->saved, and leaves the head's logits in the workspace. */
void eth_hpp_transformer_layer_forward(const struct eth_hpp_transformer_layer *layer,
                                       const struct eth_hpp_transformer_run *run, const void *input,
                                       void *output);

/* Fills run->saved again from the input, without what backward does not need. */
void eth_hpp_transformer_layer_recompute(const struct eth_hpp_transformer_layer *layer,
                                         const struct eth_hpp_transformer_run *run,
                                         const void *input);

/* In place: turns the gradient of the layer's output into that of its input (the head only writes
 * it; the embedding, which has no input, leaves anything in it). Adds to the layer's gradients.
 * What is in run->saved is used up. */
void eth_hpp_transformer_layer_backward(const struct eth_hpp_transformer_layer *layer,
                                        const struct eth_hpp_transformer_run *run,
                                        const void *input, void *gradient);

#endif
