#include <string.h>

#include "kernels/cpu/gemm.h"

/* ---- products shared among the threads ---- */

/* A product is cut along its longer side into tiles of this many multiply-adds at least: about half
 * a millisecond of one core, so that none has to wait long for the other's last one. */
static const double TILE_WORK = 2.5e7;
/* A multiple of what the vector kernels compute at a time. */
enum { TILE_STEP = 48 };

struct tiled {
    struct eth_hpp_cpu_gemm product;
    const real *bias; /* of c's columns, or NULL */
};

static void fill_rows(const struct eth_hpp_cpu_gemm *p, const real *bias)
{
    for (size_t r = 0; r < p->m; r++)
        memcpy(p->c + r * p->c_stride, bias, p->n * sizeof(real));
}

/* The rows first..end-1 of c. */
static void row_tile(const void *work, size_t first, size_t end)
{
    const struct tiled *tiled = work;
    struct eth_hpp_cpu_gemm tile = tiled->product;
    tile.m = end - first;
    tile.a += first * (tile.a_transposed ? 1 : tile.a_stride);
    tile.c += first * tile.c_stride;
    if (tiled->bias != NULL)
        fill_rows(&tile, tiled->bias);
    ETH_HPP_CPU(gemm)(&tile);
}

/* The columns first..end-1 of c. */
static void column_tile(const void *work, size_t first, size_t end)
{
    const struct tiled *tiled = work;
    struct eth_hpp_cpu_gemm tile = tiled->product;
    tile.n = end - first;
    tile.b += first * (tile.b_transposed ? tile.b_stride : 1);
    tile.c += first;
    if (tiled->bias != NULL)
        fill_rows(&tile, tiled->bias + first);
    ETH_HPP_CPU(gemm)(&tile);
}

/* How long a tile is: an even number of like tiles. */
static size_t tile_length(const struct eth_hpp_cpu_gemm *p, size_t side)
{
    const double work = (double)p->m * (double)p->n * (double)p->k;
    const size_t pairs = (size_t)(work / TILE_WORK / 2);
    const size_t length = pairs == 0 ? side : side / (2 * pairs);
    return (length + TILE_STEP - 1) / TILE_STEP * TILE_STEP;
}

static void multiply(void *state, const struct tiled *tiled)
{
    const struct eth_hpp_cpu_gemm *p = &tiled->product;
    if (p->m > p->n)
        eth_hpp_cpu_threads_run(state, p->m, tile_length(p, p->m), row_tile, tiled);
    else
        eth_hpp_cpu_threads_run(state, p->n, tile_length(p, p->n), column_tile, tiled);
}

/* ---- linear layers ---- */

static size_t weight_stride(const struct eth_hpp_linear *shape)
{
    return shape->out_major ? shape->in : shape->out;
}

static void linear_forward(void *state, const struct eth_hpp_linear *shape, const void *input,
                           const void *weight, const void *bias, void *output)
{
    const struct tiled tiled = {.product = {.m = shape->rows,
                                            .n = shape->out,
                                            .k = shape->in,
                                            .b_transposed = shape->out_major,
                                            .factor = 1,
                                            .kept = bias != NULL,
                                            .a = input,
                                            .a_stride = shape->in,
                                            .b = weight,
                                            .b_stride = weight_stride(shape),
                                            .c = output,
                                            .c_stride = shape->out},
                                .bias = bias};
    multiply(state, &tiled);
}

static void linear_backward_input(void *state, const struct eth_hpp_linear *shape,
                                  const void *output_gradient, const void *weight,
                                  void *input_gradient)
{
    const struct tiled tiled = {.product = {.m = shape->rows,
                                            .n = shape->in,
                                            .k = shape->out,
                                            .b_transposed = !shape->out_major,
                                            .factor = 1,
                                            .a = output_gradient,
                                            .a_stride = shape->out,
                                            .b = weight,
                                            .b_stride = weight_stride(shape),
                                            .c = input_gradient,
                                            .c_stride = shape->in}};
    multiply(state, &tiled);
}

struct row_sums {
    size_t rows, width;
    const real *matrix;
    real *sums;
};

ETH_HPP_CPU_CLONES
static void add_rows(size_t rows, size_t width, size_t columns, const real *matrix, real *sums)
{
    for (size_t r = 0; r < rows; r++)
#pragma omp simd
        for (size_t i = 0; i < columns; i++)
            sums[i] += matrix[r * width + i];
}

static void sum_columns(const void *work, size_t first, size_t end)
{
    const struct row_sums *at = work;
    add_rows(at->rows, at->width, end - first, at->matrix + first, at->sums + first);
}

static void linear_backward_weight(void *state, const struct eth_hpp_linear *shape,
                                   const void *output_gradient, const void *input,
                                   void *weight_gradient, void *bias_gradient)
{
    const bool out_major = shape->out_major;
    const struct tiled tiled = {.product = {.m = out_major ? shape->out : shape->in,
                                            .n = out_major ? shape->in : shape->out,
                                            .k = shape->rows,
                                            .a_transposed = true,
                                            .factor = 1,
                                            .kept = 1,
                                            .a = out_major ? output_gradient : input,
                                            .a_stride = out_major ? shape->out : shape->in,
                                            .b = out_major ? input : output_gradient,
                                            .b_stride = out_major ? shape->in : shape->out,
                                            .c = weight_gradient,
                                            .c_stride = weight_stride(shape)}};
    multiply(state, &tiled);
    if (bias_gradient == NULL)
        return;
    const struct row_sums sums = {shape->rows, shape->out, output_gradient, bias_gradient};
    eth_hpp_cpu_threads_run(state, shape->out, ETH_HPP_CPU_COLUMNS, sum_columns, &sums);
}

void ETH_HPP_CPU(linear_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->linear_forward = linear_forward;
    ops->linear_backward_input = linear_backward_input;
    ops->linear_backward_weight = linear_backward_weight;
}
