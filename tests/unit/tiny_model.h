/* A small model on the public API alone, to test the runtime with: layer 0 looks up a table of
 * token vectors, the middle layers are x + tanh(x W + b), the last one compares with the same table
 * (tied) and computes the cross-entropy. */
#ifndef ETH_HPP_TESTS_TINY_MODEL_H
#define ETH_HPP_TESTS_TINY_MODEL_H

#include "eth_hpp.h"

enum { TINY_LAYERS = 6, TINY_WIDTH = 8, TINY_VOCABULARY = 11, TINY_SEQUENCE = 5 };
enum {
    TINY_TABLE = TINY_VOCABULARY * TINY_WIDTH,
    TINY_TENSORS = 2 * TINY_LAYERS + 1,
    TINY_WEIGHTS = TINY_WIDTH * TINY_WIDTH
};

struct tiny_model {
    struct eth_hpp_context *context;
    const struct eth_hpp_assignment *part;
    int tensor_of[TINY_LAYERS][2], table; /* registered numbers; -1: not here */
    float *kept;                          /* [in_flight][layers][samples][sequence][width] */
    /* Called at the start of every forward, to let things go wrong. */
    void (*disturb)(const struct eth_hpp_micro_batch *micro_batch, float *kept);
    bool report_layers; /* call eth_hpp_layer_done */
};

/* Registers the rank's part and writes the initial weights. */
enum eth_hpp_status tiny_model_open(struct tiny_model *model, struct eth_hpp_context *context,
                                    struct eth_hpp_error *err);
void tiny_model_close(struct tiny_model *model);

#endif
