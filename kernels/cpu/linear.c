#include <string.h>

#include "kernels/cpu/cpu.h"

/* The weight's leading dimension and how BLAS has to read it as [in][out]. */
static CBLAS_TRANSPOSE weight_as_in_out(const struct eth_hpp_linear *shape)
{
    return shape->out_major ? CblasTrans : CblasNoTrans;
}

static int weight_stride(const struct eth_hpp_linear *shape)
{
    return (int)(shape->out_major ? shape->in : shape->out);
}

static void linear_forward(void *state, const struct eth_hpp_linear *shape, const void *input,
                           const void *weight, const void *bias, void *output)
{
    (void)state;
    if (bias != NULL)
        for (size_t r = 0; r < shape->rows; r++)
            memcpy((real *)output + r * shape->out, bias, shape->out * sizeof(real));
    ETH_HPP_CPU_GEMM(CblasRowMajor, CblasNoTrans, weight_as_in_out(shape), (int)shape->rows,
                     (int)shape->out, (int)shape->in, 1, input, (int)shape->in, weight,
                     weight_stride(shape), bias != NULL, output, (int)shape->out);
}

static void linear_backward_input(void *state, const struct eth_hpp_linear *shape,
                                  const void *output_gradient, const void *weight,
                                  void *input_gradient)
{
    (void)state;
    ETH_HPP_CPU_GEMM(CblasRowMajor, CblasNoTrans, shape->out_major ? CblasNoTrans : CblasTrans,
                     (int)shape->rows, (int)shape->in, (int)shape->out, 1, output_gradient,
                     (int)shape->out, weight, weight_stride(shape), 0, input_gradient,
                     (int)shape->in);
}

ETH_HPP_CPU_CLONES
static void add_rows(size_t rows, size_t width, const real *matrix, real *sums)
{
    for (size_t r = 0; r < rows; r++)
#pragma omp simd
        for (size_t i = 0; i < width; i++)
            sums[i] += matrix[r * width + i];
}

static void linear_backward_weight(void *state, const struct eth_hpp_linear *shape,
                                   const void *output_gradient, const void *input,
                                   void *weight_gradient, void *bias_gradient)
{
    (void)state;
    const int in = (int)shape->in, out = (int)shape->out;
    if (shape->out_major)
        ETH_HPP_CPU_GEMM(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, (int)shape->rows, 1,
                         output_gradient, out, input, in, 1, weight_gradient, in);
    else
        ETH_HPP_CPU_GEMM(CblasRowMajor, CblasTrans, CblasNoTrans, in, out, (int)shape->rows, 1,
                         input, in, output_gradient, out, 1, weight_gradient, out);
    if (bias_gradient != NULL)
        add_rows(shape->rows, shape->out, output_gradient, bias_gradient);
}

void ETH_HPP_CPU(linear_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->linear_forward = linear_forward;
    ops->linear_backward_input = linear_backward_input;
    ops->linear_backward_weight = linear_backward_weight;
}
