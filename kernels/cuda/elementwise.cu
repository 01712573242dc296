#include "kernels/cuda/device.h"

namespace eth_hpp {

/* GELU's tanh form is x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3). */
constexpr float GELU_SCALE = 0.79788456080286535588f, GELU_CUBIC = 0.044715f;

/* sigmoid(2u), and what it lacks to 1 without the loss of digits that a difference would have. */
struct gelu_gate {
    float open, shut;
};

__device__ __forceinline__ gelu_gate gate_of(float x)
{
    const float u = GELU_SCALE * (x + GELU_CUBIC * x * x * x);
    const float e = expf(-2 * fabsf(u)), large = 1 / (1 + e), small = e * large;
    return u < 0 ? gelu_gate{small, large} : gelu_gate{large, small};
}

template <typename T> __global__ void gelu_forward_kernel(size_t count, const T *input, T *output)
{
    for (size_t i = grid_first(); i < count; i += grid_stride()) {
        const float x = to_float(input[i]);
        store(&output[i], x * gate_of(x).open);
    }
}

template <typename T>
__global__ void gelu_backward_kernel(size_t count, const T *input, T *gradient)
{
    for (size_t i = grid_first(); i < count; i += grid_stride()) {
        const float x = to_float(input[i]);
        const gelu_gate gate = gate_of(x);
        const float slope = GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x);
        store(&gradient[i],
              to_float(gradient[i]) * (gate.open + x * gate.open * gate.shut * 2 * slope));
    }
}

template <typename T> __global__ void add_kernel(size_t count, const T *addend, T *total)
{
    for (size_t i = grid_first(); i < count; i += grid_stride())
        store(&total[i], to_float(total[i]) + to_float(addend[i]));
}

__global__ void scale_kernel(size_t count, float factor, float *sums)
{
    for (size_t i = grid_first(); i < count; i += grid_stride())
        sums[i] *= factor;
}

static void gelu_forward(void *at, size_t count, const void *input, void *output)
{
    cuda *state = static_cast<cuda *>(at);
    with_value(state, [=](auto value) {
        using T = decltype(value);
        launch(state, "gelu_forward", gelu_forward_kernel<T>, blocks_for(state, count, THREADS),
               THREADS, count, (const T *)input, (T *)output);
    });
}

static void gelu_backward(void *at, size_t count, const void *input, void *gradient)
{
    cuda *state = static_cast<cuda *>(at);
    with_value(state, [=](auto value) {
        using T = decltype(value);
        launch(state, "gelu_backward", gelu_backward_kernel<T>, blocks_for(state, count, THREADS),
               THREADS, count, (const T *)input, (T *)gradient);
    });
}

static void add(void *at, size_t count, const void *addend, void *total)
{
    cuda *state = static_cast<cuda *>(at);
    with_value(state, [=](auto value) {
        using T = decltype(value);
        launch(state, "add", add_kernel<T>, blocks_for(state, count, THREADS), THREADS, count,
               (const T *)addend, (T *)total);
    });
}

static void scale(void *at, size_t count, double factor, void *sums)
{
    cuda *state = static_cast<cuda *>(at);
    launch(state, "scale", scale_kernel, blocks_for(state, count, THREADS), THREADS, count,
           (float)factor, (float *)sums);
}

void elementwise_provide(struct eth_hpp_kernels_ops *ops)
{
    ops->gelu_forward = gelu_forward;
    ops->gelu_backward = gelu_backward;
    ops->add = add;
    ops->scale = scale;
}

} // namespace eth_hpp
