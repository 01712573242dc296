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
        output[i] = (x[i] - mean) * rstd * weight[i];
    if (bias == NULL)
        return;
#pragma omp simd
    for (size_t i = 0; i < width; i++)
        output[i] += bias[i];
}

struct forward {
    size_t width;
    double epsilon;
    const real *input, *weight, *bias;
    real *output, *mean, *rstd;
};

static void forward_rows(const void *work, size_t first, size_t end)
{
    const struct forward *at = work;
    const size_t width = at->width;
    for (size_t r = first; r < end; r++) {
        const real *x = at->input + r * width;
        const real m = at->mean == NULL ? 0 : row_mean(width, x);
        const real s = (real)(1 / sqrt((double)row_variance(width, x, m) + at->epsilon));
        normalise_row(width, x, m, s, at->weight, at->bias, at->output + r * width);
        at->rstd[r] = s;
        if (at->mean != NULL)
            at->mean[r] = m;
    }
}

static void layernorm_forward(void *state, size_t rows, size_t width, double epsilon,
                              const void *input, const void *weight, const void *bias, void *output,
                              void *mean, void *rstd)
{
    const struct forward at = {width, epsilon, input, weight, bias, output, mean, rstd};
    eth_hpp_cpu_threads_run(state, rows, eth_hpp_cpu_rows(width), forward_rows, &at);
}

/* With n = (x - mean) rstd and g = dout w:  dx = rstd (g - mean(g) - n mean(g n)), without mean(g)
 * where no mean was taken off. */
ETH_HPP_CPU_CLONES
static void backward_row(size_t width, const real *dout, const real *x, const real *weight,
                         const real *mean_taken, real rstd, real *dx)
{
    const real mean = mean_taken == NULL ? 0 : *mean_taken;
    real sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
    for (size_t i = 0; i < width; i++) {
        const real g = dout[i] * weight[i];
        sum += g;
        product += g * (x[i] - mean) * rstd;
    }
    sum = mean_taken == NULL ? 0 : sum / (real)width;
    product /= (real)width;
#pragma omp simd
    for (size_t i = 0; i < width; i++) {
        const real n = (x[i] - mean) * rstd;
        dx[i] += rstd * (dout[i] * weight[i] - sum - n * product);
    }
}

ETH_HPP_CPU_CLONES
static void backward_weights(size_t columns, const real *dout, const real *x, real mean, real rstd,
                             real *dweight, real *dbias)
{
#pragma omp simd
    for (size_t i = 0; i < columns; i++)
        dweight[i] += dout[i] * ((x[i] - mean) * rstd);
    if (dbias == NULL)
        return;
#pragma omp simd
    for (size_t i = 0; i < columns; i++)
        dbias[i] += dout[i];
}

struct backward {
    size_t rows, width;
    const real *output_gradient, *input, *weight, *mean, *rstd;
    real *input_gradient, *weight_gradient, *bias_gradient;
};

static void backward_rows(const void *work, size_t first, size_t end)
{
    const struct backward *at = work;
    for (size_t r = first; r < end; r++)
        backward_row(at->width, at->output_gradient + r * at->width, at->input + r * at->width,
                     at->weight, at->mean == NULL ? NULL : at->mean + r, at->rstd[r],
                     at->input_gradient + r * at->width);
}

/* Column by column, so that each is summed up in one order. */
static void backward_columns(const void *work, size_t first, size_t end)
{
    const struct backward *at = work;
    for (size_t r = 0; r < at->rows; r++)
        backward_weights(end - first, at->output_gradient + r * at->width + first,
                         at->input + r * at->width + first, at->mean == NULL ? 0 : at->mean[r],
                         at->rstd[r], at->weight_gradient + first,
                         at->bias_gradient == NULL ? NULL : at->bias_gradient + first);
}

static void layernorm_backward(void *state, size_t rows, size_t width, const void *output_gradient,
                               const void *input, const void *weight, const void *mean,
                               const void *rstd, void *input_gradient, void *weight_gradient,
                               void *bias_gradient)
{
    const struct backward at = {rows, width, output_gradient, input,           weight,
                                mean, rstd,  input_gradient,  weight_gradient, bias_gradient};
    eth_hpp_cpu_threads_run(state, rows, eth_hpp_cpu_rows(width), backward_rows, &at);
    eth_hpp_cpu_threads_run(state, width, ETH_HPP_CPU_COLUMNS, backward_columns, &at);
}

void ETH_HPP_CPU(layernorm_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->layernorm_forward = layernorm_forward;
    ops->layernorm_backward = layernorm_backward;
}
