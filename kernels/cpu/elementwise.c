#include "kernels/cpu/cpu.h"
#include "kernels/cpu/softmax.h"

/* GELU's tanh form is x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3). */
static const real GELU_SCALE = (real)0.79788456080286535588;
static const real GELU_CUBIC = (real)0.044715;

static inline __attribute__((always_inline)) real gelu_gate(real x)
{
    const real u = GELU_SCALE * (x + GELU_CUBIC * x * x * x);
    return eth_hpp_cpu_sigmoid(2 * u);
}

ETH_HPP_CPU_CLONES
static void apply_gelu(size_t count, const real *x, real *y)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        y[i] = x[i] * gelu_gate(x[i]);
}

ETH_HPP_CPU_CLONES
static void apply_gelu_slope(size_t count, const real *x, real *gradient)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        const real gate = gelu_gate(x[i]);
        const real slope = GELU_SCALE * (1 + 3 * GELU_CUBIC * x[i] * x[i]);
        gradient[i] *= gate + x[i] * gate * (1 - gate) * 2 * slope;
    }
}

ETH_HPP_CPU_CLONES
static void apply_add(size_t count, const real *addend, real *total)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        total[i] += addend[i];
}

ETH_HPP_CPU_CLONES
static void apply_scale(size_t count, real factor, real *sums)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        sums[i] *= factor;
}

/* One array that is read, one that is written, and a number. */
struct arrays {
    const real *in;
    real *out;
    real factor;
};

static void gelu_part(const void *work, size_t first, size_t end)
{
    const struct arrays *at = work;
    apply_gelu(end - first, at->in + first, at->out + first);
}

static void gelu_slope_part(const void *work, size_t first, size_t end)
{
    const struct arrays *at = work;
    apply_gelu_slope(end - first, at->in + first, at->out + first);
}

static void add_part(const void *work, size_t first, size_t end)
{
    const struct arrays *at = work;
    apply_add(end - first, at->in + first, at->out + first);
}

static void scale_part(const void *work, size_t first, size_t end)
{
    const struct arrays *at = work;
    apply_scale(end - first, at->factor, at->out + first);
}

static void gelu_forward(void *state, size_t count, const void *input, void *output)
{
    const struct arrays at = {.in = input, .out = output};
    eth_hpp_cpu_threads_run(state, count, ETH_HPP_CPU_ELEMENTS, gelu_part, &at);
}

static void gelu_backward(void *state, size_t count, const void *input, void *gradient)
{
    const struct arrays at = {.in = input, .out = gradient};
    eth_hpp_cpu_threads_run(state, count, ETH_HPP_CPU_ELEMENTS, gelu_slope_part, &at);
}

static void add(void *state, size_t count, const void *addend, void *total)
{
    const struct arrays at = {.in = addend, .out = total};
    eth_hpp_cpu_threads_run(state, count, ETH_HPP_CPU_ELEMENTS, add_part, &at);
}

static void scale(void *state, size_t count, double factor, void *sums)
{
    const struct arrays at = {.out = sums, .factor = (real)factor};
    eth_hpp_cpu_threads_run(state, count, ETH_HPP_CPU_ELEMENTS, scale_part, &at);
}

void ETH_HPP_CPU(elementwise_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->gelu_forward = gelu_forward;
    ops->gelu_backward = gelu_backward;
    ops->add = add;
    ops->scale = scale;
}
