#include <string.h>

#include "kernels/cpu/gemm.h"

/* ---- products shared among the threads ---- */

/* A product is cut into tiles of this many multiply-adds at least, so that its threads end at about
 * the same time; but into none narrower than oneDNN is fast with, nor, across, lower than LOW. */
static const double LEAST_WORK = 2.5e7, MOST_WORK = 5e8;
enum { NARROW = 192, LOW = 128 };
/* A multiple of what the vector kernels compute at a time. */
enum { TILE_STEP = 48 };

struct tiled {
    struct eth_hpp_cpu_gemm product;
    const real *bias;     /* of c's columns, or NULL */
    const real *residual; /* laid out like c, or NULL */
    size_t rows, columns; /* of a tile */
};

static size_t tiles_of(size_t side, size_t length)
{
    return (side + length - 1) / length;
}

static double work_of(size_t m, size_t n, size_t k)
{
    return (double)m * (double)n * (double)k;
}

/* How long a tile is on the longer side. */
static size_t tile_length(const struct eth_hpp_cpu_gemm *p, size_t side)
{
    const size_t tiles = (size_t)(work_of(p->m, p->n, p->k) / LEAST_WORK);
    const size_t length = tiles < 2 ? side : side / tiles;
    return length < NARROW ? NARROW : (length + TILE_STEP - 1) / TILE_STEP * TILE_STEP;
}

/* And across, where such a tile would still take long. */
static size_t tile_width(const struct eth_hpp_cpu_gemm *p, size_t length, size_t width)
{
    while (width / 2 >= LOW && work_of(length, width, p->k) > MOST_WORK)
        width = (width + 1) / 2;
    return width;
}

ETH_HPP_CPU_CLONES
static void add_row(size_t count, const real *a, const real *b, real *sum)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        sum[i] = a[i] + b[i];
}

/* What the product is added to: the bias, the residual or the sum of both, one of which there is.
 */
static void fill_rows(const struct eth_hpp_cpu_gemm *p, const real *bias, const real *residual)
{
    for (size_t r = 0; r < p->m; r++) {
        real *c = p->c + r * p->c_stride;
        const real *other = residual == NULL ? NULL : residual + r * p->c_stride;
        if (bias != NULL && other != NULL)
            add_row(p->n, bias, other, c);
        else
            memcpy(c, bias != NULL ? bias : other, p->n * sizeof(real));
    }
}

static void multiply_tile(const struct tiled *tiled, size_t row, size_t column)
{
    struct eth_hpp_cpu_gemm tile = tiled->product;
    tile.m = tile.m - row < tiled->rows ? tile.m - row : tiled->rows;
    tile.n = tile.n - column < tiled->columns ? tile.n - column : tiled->columns;
    tile.a += row * (tile.a_transposed ? 1 : tile.a_stride);
    tile.b += column * (tile.b_transposed ? tile.b_stride : 1);
    const size_t at = row * tile.c_stride + column;
    tile.c += at;
    if (tiled->bias != NULL || tiled->residual != NULL)
        fill_rows(&tile, tiled->bias == NULL ? NULL : tiled->bias + column,
                  tiled->residual == NULL ? NULL : tiled->residual + at);
    ETH_HPP_CPU(gemm)(&tile);
}

static void multiply_tiles(const void *work, size_t first, size_t end)
{
    const struct tiled *tiled = work;
    const size_t down = tiles_of(tiled->product.m, tiled->rows);
    for (size_t i = first; i < end; i++)
        multiply_tile(tiled, i % down * tiled->rows, i / down * tiled->columns);
}

static void multiply(void *state, struct tiled *tiled)
{
    const struct eth_hpp_cpu_gemm *p = &tiled->product;
    if (p->m > p->n) {
        tiled->rows = tile_length(p, p->m);
        tiled->columns = tile_width(p, tiled->rows, p->n);
    } else {
        tiled->columns = tile_length(p, p->n);
        tiled->rows = tile_width(p, tiled->columns, p->m);
    }
    eth_hpp_cpu_threads_run(state, tiles_of(p->m, tiled->rows) * tiles_of(p->n, tiled->columns), 1,
                            multiply_tiles, tiled);
}

/* ---- linear layers ---- */

static size_t weight_stride(const struct eth_hpp_linear *shape)
{
    return shape->out_major ? shape->in : shape->out;
}

static void linear_forward(void *state, const struct eth_hpp_linear *shape, const void *input,
                           const void *weight, const void *bias, const void *residual, void *output)
{
    struct tiled tiled = {.product = {.m = shape->rows,
                                      .n = shape->out,
                                      .k = shape->in,
                                      .b_transposed = shape->out_major,
                                      .factor = 1,
                                      .kept = bias != NULL || residual != NULL,
                                      .a = input,
                                      .a_stride = shape->in,
                                      .b = weight,
                                      .b_stride = weight_stride(shape),
                                      .c = output,
                                      .c_stride = shape->out},
                          .bias = bias,
                          .residual = residual};
    multiply(state, &tiled);
}

static void linear_backward_input(void *state, const struct eth_hpp_linear *shape,
                                  const void *output_gradient, const void *weight,
                                  void *input_gradient)
{
    struct tiled tiled = {.product = {.m = shape->rows,
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
    struct tiled tiled = {.product = {.m = out_major ? shape->out : shape->in,
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
