#include "kernels/cuda/device.h"

namespace eth_hpp {

template <typename T>
__global__ void embedding_forward_kernel(size_t rows, size_t sequence, size_t width,
                                         const int32_t *tokens, const T *token_table,
                                         const T *position_table, T *output)
{
    for (size_t i = grid_first(); i < rows * width; i += grid_stride()) {
        const size_t row = i / width, column = i % width;
        float sum = to_float(token_table[(size_t)tokens[row] * width + column]);
        if (position_table != nullptr)
            sum += to_float(position_table[row % sequence * width + column]);
        store(&output[i], sum);
    }
}

/* Rows may be of one token: its gradient is added up in any order. */
template <typename T>
__global__ void token_gradient_kernel(size_t rows, size_t width, const int32_t *tokens,
                                      const T *output_gradient, float *token_gradient)
{
    for (size_t i = grid_first(); i < rows * width; i += grid_stride())
        atomicAdd(&token_gradient[(size_t)tokens[i / width] * width + i % width],
                  to_float(output_gradient[i]));
}

template <typename T>
__global__ void position_gradient_kernel(size_t rows, size_t sequence, size_t width,
                                         const T *output_gradient, float *position_gradient)
{
    for (size_t i = grid_first(); i < sequence * width; i += grid_stride()) {
        float sum = 0;
        for (size_t at = i; at < rows * width; at += sequence * width)
            sum += to_float(output_gradient[at]);
        position_gradient[i] += sum;
    }
}

static void embedding_forward(void *at, size_t rows, size_t sequence, size_t width,
                              const int32_t *tokens, const void *token_table,
                              const void *position_table, void *output)
{
    cuda *state = static_cast<cuda *>(at);
    with_value(state, [=](auto value) {
        using T = decltype(value);
        launch(state, "embedding_forward", embedding_forward_kernel<T>,
               blocks_for(state, rows * width, THREADS), THREADS, rows, sequence, width, tokens,
               (const T *)token_table, (const T *)position_table, (T *)output);
    });
}

static void embedding_backward(void *at, size_t rows, size_t sequence, size_t width,
                               const int32_t *tokens, const void *output_gradient,
                               void *token_gradient, void *position_gradient)
{
    cuda *state = static_cast<cuda *>(at);
    with_value(state, [=](auto value) {
        using T = decltype(value);
        launch(state, "embedding_backward", token_gradient_kernel<T>,
               blocks_for(state, rows * width, THREADS), THREADS, rows, width, tokens,
               (const T *)output_gradient, (float *)token_gradient);
        if (position_gradient != nullptr)
            launch(state, "embedding_backward", position_gradient_kernel<T>,
                   blocks_for(state, sequence * width, THREADS), THREADS, rows, sequence, width,
                   (const T *)output_gradient, (float *)position_gradient);
    });
}

void embedding_provide(struct eth_hpp_kernels_ops *ops)
{
    ops->embedding_forward = embedding_forward;
    ops->embedding_backward = embedding_backward;
}

} // namespace eth_hpp
