#include "kernels/cpu/cpu.h"
#include "kernels/cpu/softmax.h"

/* GELU's tanh form is x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3). */
static const real GELU_SCALE = (real)0.79788456080286535588;
static const real GELU_CUBIC = (real)0.044715;

static inline __attribute__((always_inline)) real gelu_gate(real x)
{
    const real u = GELU_SCALE * (x + GELU_CUBIC * x * x * x);
    return 1 / (1 + eth_hpp_cpu_exp(-2 * u));
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

static void gelu_forward(void *state, size_t count, const void *input, void *output)
{
    (void)state;
    apply_gelu(count, input, output);
}

static void gelu_backward(void *state, size_t count, const void *input, void *gradient)
{
    (void)state;
    apply_gelu_slope(count, input, gradient);
}

static void add(void *state, size_t count, const void *addend, void *total)
{
    (void)state;
    const real *a = addend;
    real *t = total;
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        t[i] += a[i];
}

static void scale(void *state, size_t count, double factor, void *sums)
{
    (void)state;
    const real f = (real)factor;
    real *s = sums;
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        s[i] *= f;
}

void ETH_HPP_CPU(elementwise_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->gelu_forward = gelu_forward;
    ops->gelu_backward = gelu_backward;
    ops->add = add;
    ops->scale = scale;
}
