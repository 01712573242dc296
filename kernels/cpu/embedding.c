#include <string.h>

#include "kernels/cpu/cpu.h"

struct embedding {
    size_t rows, sequence, width;
    const int32_t *tokens;
    const real *token_table, *position_table, *output_gradient;
    real *output, *token_gradient, *position_gradient;
};

static void add_row(size_t width, const real *addend, real *row)
{
    for (size_t i = 0; i < width; i++)
        row[i] += addend[i];
}

static void forward_rows(const void *work, size_t first, size_t end)
{
    const struct embedding *at = work;
    const size_t width = at->width;
    for (size_t r = first; r < end; r++) {
        const real *token = at->token_table + (size_t)at->tokens[r] * width;
        real *out = at->output + r * width;
        memcpy(out, token, width * sizeof(*out));
        if (at->position_table != NULL)
            add_row(width, at->position_table + r % at->sequence * width, out);
    }
}

static void embedding_forward(void *state, size_t rows, size_t sequence, size_t width,
                              const int32_t *tokens, const void *token_table,
                              const void *position_table, void *output)
{
    const struct embedding at = {.rows = rows,
                                 .sequence = sequence,
                                 .width = width,
                                 .tokens = tokens,
                                 .token_table = token_table,
                                 .position_table = position_table,
                                 .output = output};
    eth_hpp_cpu_threads_run(state, rows, eth_hpp_cpu_rows(width), forward_rows, &at);
}

/* Rows may be of one token, so threads share the columns. */
static void backward_columns(const void *work, size_t first, size_t end)
{
    const struct embedding *at = work;
    const size_t width = at->width;
    for (size_t r = 0; r < at->rows; r++) {
        const real *gradient = at->output_gradient + r * width + first;
        add_row(end - first, gradient, at->token_gradient + (size_t)at->tokens[r] * width + first);
        if (at->position_gradient != NULL)
            add_row(end - first, gradient,
                    at->position_gradient + r % at->sequence * width + first);
    }
}

static void embedding_backward(void *state, size_t rows, size_t sequence, size_t width,
                               const int32_t *tokens, const void *output_gradient,
                               void *token_gradient, void *position_gradient)
{
    const struct embedding at = {.rows = rows,
                                 .sequence = sequence,
                                 .width = width,
                                 .tokens = tokens,
                                 .output_gradient = output_gradient,
                                 .token_gradient = token_gradient,
                                 .position_gradient = position_gradient};
    eth_hpp_cpu_threads_run(state, width, ETH_HPP_CPU_COLUMNS, backward_columns, &at);
}

void ETH_HPP_CPU(embedding_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->embedding_forward = embedding_forward;
    ops->embedding_backward = embedding_backward;
}
