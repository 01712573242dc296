#include <math.h>

#include "kernels/cpu/cpu.h"

ETH_HPP_CPU_CLONES
static real row_mean(size_t width, const real *x)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < width; i++)
        sum += x[i];
    return sum / (real)width;
}

ETH_HPP_CPU_CLONES
static real row_variance(size_t width, const real *x, real mean)
{
    real squares = 0;
#pragma omp simd reduction(+ : squares)
    for (size_t i = 0; i < width; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    return squares / (real)width;
}

ETH_HPP_CPU_CLONES
static void normalise_row(size_t width, const real *x, real mean, real rstd, const real *weight,
                          const real *bias, real *output)
{
#pragma omp simd
    for (size_t i = 0; i < width; i++)
        output[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
}

static void layernorm_forward(void *state, size_t rows, size_t width, double epsilon,
                              const void *input, const void *weight, const void *bias, void *output,
                              void *mean, void *rstd)
{
    (void)state;
    for (size_t r = 0; r < rows; r++) {
        const real *x = (const real *)input + r * width;
        const real m = row_mean(width, x);
        const real s = (real)(1 / sqrt((double)row_variance(width, x, m) + epsilon));
        normalise_row(width, x, m, s, weight, bias, (real *)output + r * width);
        ((real *)mean)[r] = m;
        ((real *)rstd)[r] = s;
    }
}

/* With n = (x - mean) rstd and g = dout w:  dx = rstd (g - mean(g) - n mean(g n)). */
ETH_HPP_CPU_CLONES
static void backward_row(size_t width, const real *dout, const real *x, const real *weight,
                         real mean, real rstd, real *dx, real *dweight, real *dbias)
{
    real sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
    for (size_t i = 0; i < width; i++) {
        const real g = dout[i] * weight[i];
        sum += g;
        product += g * (x[i] - mean) * rstd;
    }
    sum /= (real)width;
    product /= (real)width;
#pragma omp simd
    for (size_t i = 0; i < width; i++) {
        const real n = (x[i] - mean) * rstd;
        dweight[i] += dout[i] * n;
        dbias[i] += dout[i];
        dx[i] += rstd * (dout[i] * weight[i] - sum - n * product);
    }
}

static void layernorm_backward(void *state, size_t rows, size_t width, const void *output_gradient,
                               const void *input, const void *weight, const void *mean,
                               const void *rstd, void *input_gradient, void *weight_gradient,
                               void *bias_gradient)
{
    (void)state;
    for (size_t r = 0; r < rows; r++)
        backward_row(width, (const real *)output_gradient + r * width,
                     (const real *)input + r * width, weight, ((const real *)mean)[r],
                     ((const real *)rstd)[r], (real *)input_gradient + r * width, weight_gradient,
                     bias_gradient);
}

void ETH_HPP_CPU(layernorm_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->layernorm_forward = layernorm_forward;
    ops->layernorm_backward = layernorm_backward;
}
