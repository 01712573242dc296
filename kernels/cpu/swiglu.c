#include "kernels/cpu/cpu.h"
#include "kernels/cpu/softmax.h"

ETH_HPP_CPU_CLONES
static void apply_swiglu(size_t width, const real *gate, const real *up, real *output)
{
#pragma omp simd
    for (size_t i = 0; i < width; i++)
        output[i] = gate[i] * eth_hpp_cpu_sigmoid(gate[i]) * up[i];
}

/* With s = sigmoid(gate):  dup = dout gate s,  dgate = dout up s (1 + gate (1 - s)). */
ETH_HPP_CPU_CLONES
static void apply_swiglu_slope(size_t width, const real *dout, real *gate, real *up)
{
#pragma omp simd
    for (size_t i = 0; i < width; i++) {
        const real open = eth_hpp_cpu_sigmoid(gate[i]), silu = gate[i] * open;
        gate[i] = dout[i] * up[i] * (open + silu * (1 - open));
        up[i] = dout[i] * silu;
    }
}

struct swiglu {
    size_t width;
    const real *input;
    real *output;
    const real *output_gradient;
    real *changed; /* backward: the input that turns into its gradient */
};

static void forward_rows(const void *work, size_t first, size_t end)
{
    const struct swiglu *at = work;
    for (size_t r = first; r < end; r++) {
        const real *row = at->input + r * 2 * at->width;
        apply_swiglu(at->width, row, row + at->width, at->output + r * at->width);
    }
}

static void backward_rows(const void *work, size_t first, size_t end)
{
    const struct swiglu *at = work;
    for (size_t r = first; r < end; r++) {
        real *row = at->changed + r * 2 * at->width;
        apply_swiglu_slope(at->width, at->output_gradient + r * at->width, row, row + at->width);
    }
}

static void swiglu_forward(void *state, size_t rows, size_t width, const void *input, void *output)
{
    const struct swiglu at = {.width = width, .input = input, .output = output};
    eth_hpp_cpu_threads_run(state, rows, eth_hpp_cpu_rows(width), forward_rows, &at);
}

static void swiglu_backward(void *state, size_t rows, size_t width, const void *output_gradient,
                            void *input)
{
    const struct swiglu at = {.width = width, .output_gradient = output_gradient, .changed = input};
    eth_hpp_cpu_threads_run(state, rows, eth_hpp_cpu_rows(width), backward_rows, &at);
}

void ETH_HPP_CPU(swiglu_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->swiglu_forward = swiglu_forward;
    ops->swiglu_backward = swiglu_backward;
}
