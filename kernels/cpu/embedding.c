#include "kernels/cpu/cpu.h"

static void embedding_forward(void *state, size_t rows, size_t sequence, size_t width,
                              const int32_t *tokens, const void *token_table,
                              const void *position_table, void *output)
{
    (void)state;
    for (size_t r = 0; r < rows; r++) {
        const real *token = (const real *)token_table + (size_t)tokens[r] * width;
        const real *position = (const real *)position_table + r % sequence * width;
        real *out = (real *)output + r * width;
        for (size_t i = 0; i < width; i++)
            out[i] = token[i] + position[i];
    }
}

static void embedding_backward(void *state, size_t rows, size_t sequence, size_t width,
                               const int32_t *tokens, const void *output_gradient,
                               void *token_gradient, void *position_gradient)
{
    (void)state;
    for (size_t r = 0; r < rows; r++) {
        real *token = (real *)token_gradient + (size_t)tokens[r] * width;
        real *position = (real *)position_gradient + r % sequence * width;
        const real *gradient = (const real *)output_gradient + r * width;
        for (size_t i = 0; i < width; i++) {
            token[i] += gradient[i];
            position[i] += gradient[i];
        }
    }
}

void ETH_HPP_CPU(embedding_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->embedding_forward = embedding_forward;
    ops->embedding_backward = embedding_backward;
}
