#include "kernels/cuda/device.h"

namespace eth_hpp {

__device__ __forceinline__ float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* A row of the input is `width` gates, then as many ups. */
template <typename T>
__global__ void swiglu_forward_kernel(size_t rows, size_t width, const T *input, T *output)
{
    for (size_t i = grid_first(); i < rows * width; i += grid_stride()) {
        const T *at = input + i / width * 2 * width + i % width;
        const float gate = to_float(at[0]);
        store(&output[i], gate * sigmoid(gate) * to_float(at[width]));
    }
}

/* With s = sigmoid(gate):  dup = dout gate s,  dgate = dout up s (1 + gate (1 - s)), where 1 - s is
 * sigmoid(-gate), without the loss of digits that the difference would have. */
template <typename T>
__global__ void swiglu_backward_kernel(size_t rows, size_t width, const T *output_gradient,
                                       T *input)
{
    for (size_t i = grid_first(); i < rows * width; i += grid_stride()) {
        T *at = input + i / width * 2 * width + i % width;
        const float gate = to_float(at[0]), up = to_float(at[width]);
        const float dout = to_float(output_gradient[i]);
        const float open = sigmoid(gate), silu = gate * open;
        store(&at[0], dout * up * (open + silu * sigmoid(-gate)));
        store(&at[width], dout * silu);
    }
}

static void swiglu_forward(void *at, size_t rows, size_t width, const void *input, void *output)
{
    cuda *state = static_cast<cuda *>(at);
    with_value(state, [=](auto value) {
        using T = decltype(value);
        launch(state, "swiglu_forward", swiglu_forward_kernel<T>,
               blocks_for(state, rows * width, THREADS), THREADS, rows, width, (const T *)input,
               (T *)output);
    });
}

static void swiglu_backward(void *at, size_t rows, size_t width, const void *output_gradient,
                            void *input)
{
    cuda *state = static_cast<cuda *>(at);
    with_value(state, [=](auto value) {
        using T = decltype(value);
        launch(state, "swiglu_backward", swiglu_backward_kernel<T>,
               blocks_for(state, rows * width, THREADS), THREADS, rows, width,
               (const T *)output_gradient, (T *)input);
    });
}

void swiglu_provide(struct eth_hpp_kernels_ops *ops)
{
    ops->swiglu_forward = swiglu_forward;
    ops->swiglu_backward = swiglu_backward;
}

} // namespace eth_hpp
