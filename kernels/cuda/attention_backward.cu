/*
 * With P = exp(S - log_sum), dropout's factors M and dP = M dO V^T:
 *   dV = (M P)^T dO,   dS = P (dP - row_sum),   dQ = scale dS K,   dK = scale dS^T Q,
 * where row_sum of a query is that of its output x output's gradient. One kernel goes over the
 * queries that see a key, of all heads that share it, one over the keys that a query sees: scores
 * are made twice, but nothing is added up by atomics, so that results are the same in every run.
 */
#include "kernels/cuda/attention.h"

namespace eth_hpp {

/* What backward reads and writes; all of it by the places of attention.h. */
template <typename T> struct backward_data {
    const T *output_gradient, *qkv;
    const float *log_sum, *row_sum;
    T *qkv_gradient;
};

/* A warp takes a row of a head: its grid goes over rows, heads and samples. */
template <typename T>
__global__ void row_sum_kernel(head_place p, const T *output_gradient, const T *output,
                               float *row_sum)
{
    const size_t head = blockIdx.y, row = (size_t)blockIdx.x * ATTENTION_WARPS + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP;
    if (row >= p.sequence)
        return; /* the whole warp */
    const size_t at = in_output(p, head) + row * p.output_stride;
    float sum = 0;
    for (size_t i = lane; i < p.size; i += WARP)
        sum = fmaf(to_float(output[at + i]), to_float(output_gradient[at + i]), sum);
    sum = warp_sum(sum);
    if (lane == 0)
        row_sum[in_rows(p, head) + row] = sum;
}

/* Writes a lane's places of a row of a gradient. */
template <typename T, int SIZE>
__device__ __forceinline__ void store_row(const head_place &p, size_t row, int lane,
                                          const float *sums, T *to)
{
#pragma unroll
    for (int i = 0; i < tiles<SIZE>::PLACES; i++)
        if (row < p.sequence && (size_t)(lane + i * WARP) < p.size)
            store(&to[row * p.qkv_stride + lane + i * WARP], sums[i]);
}

template <typename T, int SIZE>
__global__ void __launch_bounds__(ATTENTION_THREADS)
    query_gradient_kernel(head_place p, backward_data<T> data)
{
    using tile = tiles<SIZE>;
    __shared__ float queries[tile::ROWS][tile::PITCH], slopes[tile::ROWS][tile::PITCH];
    __shared__ float stream[WARP][tile::PITCH], weights[tile::ROWS][WARP];
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * tile::OWN;
    const size_t head = blockIdx.y, first = (size_t)blockIdx.x * tile::ROWS;
    const size_t end = first + tile::ROWS < p.sequence ? first + tile::ROWS : p.sequence;
    const T *keys_from = data.qkv + in_keys(p, head / group_of(p));
    const T *values_from = data.qkv + in_values(p, head / group_of(p));
    float gradient[tile::OWN][tile::PLACES] = {};
    load_rows<T, SIZE>(p, tile::ROWS, first, data.qkv + in_queries(p, head), p.qkv_stride, queries);
    load_rows<T, SIZE>(p, tile::ROWS, first, data.output_gradient + in_output(p, head),
                       p.output_stride, slopes);
    for (size_t keys = 0; keys < end; keys += WARP) {
        float of_probability[tile::OWN], scores[tile::OWN];
        __syncthreads(); /* the tile before has been used */
        load_rows<T, SIZE>(p, WARP, keys, values_from, p.qkv_stride, stream);
        __syncthreads();
        dots<SIZE>(slopes + own, stream[lane], of_probability);
        __syncthreads();
        load_rows<T, SIZE>(p, WARP, keys, keys_from, p.qkv_stride, stream);
        __syncthreads();
        dots<SIZE>(queries + own, stream[lane], scores);
#pragma unroll
        for (int i = 0; i < tile::OWN; i++) {
            const size_t query = first + own + i, key = keys + lane;
            float slope = 0;
            if (key <= query && query < p.sequence) {
                const size_t row = in_rows(p, head) + query;
                slope =
                    expf(scores[i] * p.scale - data.log_sum[row]) *
                    (of_probability[i] * attention_drop(p, head, query, key) - data.row_sum[row]) *
                    p.scale;
            }
            weights[own + i][lane] = slope;
        }
        __syncwarp(); /* a warp reads what its own lanes wrote */
        add_weighted<SIZE>(weights + own, stream, lane, gradient);
    }
#pragma unroll
    for (int i = 0; i < tile::OWN; i++)
        store_row<T, SIZE>(p, first + own + i, lane, gradient[i],
                           data.qkv_gradient + in_queries(p, head));
}

template <typename T, int SIZE>
__global__ void __launch_bounds__(ATTENTION_THREADS)
    key_value_gradient_kernel(head_place p, backward_data<T> data)
{
    using tile = tiles<SIZE>;
    __shared__ float keys[tile::ROWS][tile::PITCH], values[tile::ROWS][tile::PITCH];
    __shared__ float stream[WARP][tile::PITCH], weights[tile::ROWS][WARP];
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * tile::OWN;
    const size_t group = group_of(p), first = (size_t)blockIdx.x * tile::ROWS;
    const size_t own_keys = in_keys(p, blockIdx.y), own_values = in_values(p, blockIdx.y);
    float of_key[tile::OWN][tile::PLACES] = {}, of_value[tile::OWN][tile::PLACES] = {};
    load_rows<T, SIZE>(p, tile::ROWS, first, data.qkv + own_keys, p.qkv_stride, keys);
    load_rows<T, SIZE>(p, tile::ROWS, first, data.qkv + own_values, p.qkv_stride, values);
    const size_t tiles_seen = (p.sequence + WARP - 1) / WARP - first / WARP;
    for (size_t at = 0; at < group * tiles_seen; at++) { /* one head after the other */
        const size_t head = blockIdx.y * group + at / tiles_seen;
        const size_t queries = (first / WARP + at % tiles_seen) * WARP;
        const size_t query = queries + lane, row = in_rows(p, head) + query;
        float probability[tile::OWN], slope[tile::OWN];
        __syncthreads(); /* the tile before has been used */
        load_rows<T, SIZE>(p, WARP, queries, data.qkv + in_queries(p, head), p.qkv_stride, stream);
        __syncthreads();
        dots<SIZE>(keys + own, stream[lane], probability);
        __syncthreads();
        load_rows<T, SIZE>(p, WARP, queries, data.output_gradient + in_output(p, head),
                           p.output_stride, stream);
        __syncthreads();
        dots<SIZE>(values + own, stream[lane], slope);
#pragma unroll
        for (int i = 0; i < tile::OWN; i++) {
            const size_t key = first + own + i;
            float kept = 0;
            if (key <= query && query < p.sequence) {
                kept = attention_drop(p, head, query, key);
                probability[i] = expf(probability[i] * p.scale - data.log_sum[row]);
                slope[i] = probability[i] * (slope[i] * kept - data.row_sum[row]) * p.scale;
            } else {
                slope[i] = 0;
            }
            weights[own + i][lane] = probability[i] * kept;
        }
        __syncwarp(); /* a warp reads what its own lanes wrote */
        add_weighted<SIZE>(weights + own, stream, lane, of_value);
        __syncthreads();
        load_rows<T, SIZE>(p, WARP, queries, data.qkv + in_queries(p, head), p.qkv_stride, stream);
#pragma unroll
        for (int i = 0; i < tile::OWN; i++)
            weights[own + i][lane] = slope[i];
        __syncthreads();
        add_weighted<SIZE>(weights + own, stream, lane, of_key);
    }
#pragma unroll
    for (int i = 0; i < tile::OWN; i++) {
        store_row<T, SIZE>(p, first + own + i, lane, of_key[i], data.qkv_gradient + own_keys);
        store_row<T, SIZE>(p, first + own + i, lane, of_value[i], data.qkv_gradient + own_values);
    }
}

template <typename T, int SIZE>
static void launch_backward(cuda *state, const head_place &p, dim3 heads,
                            const backward_data<T> &data)
{
    const dim3 grid((unsigned)divide_up(p.sequence, tiles<SIZE>::ROWS), heads.y, heads.z);
    launch(state, "attention_backward", query_gradient_kernel<T, SIZE>, grid, ATTENTION_THREADS, p,
           data);
    launch(state, "attention_backward", key_value_gradient_kernel<T, SIZE>,
           dim3(grid.x, (unsigned)p.key_value_heads, grid.z), ATTENTION_THREADS, p, data);
}

void attention_backward(void *at, const struct eth_hpp_attention *shape,
                        const void *output_gradient, const void *qkv, const void *output,
                        const void *log_sum, void *qkv_gradient, void *scratch)
{
    cuda *state = static_cast<cuda *>(at);
    const head_place p = head_place_of(shape);
    const dim3 rows((unsigned)divide_up(p.sequence, ATTENTION_WARPS), (unsigned)shape->heads,
                    (unsigned)shape->samples);
    with_value(state, [=](auto value) {
        using T = decltype(value);
        const backward_data<T> data = {(const T *)output_gradient, (const T *)qkv,
                                       (const float *)log_sum, (const float *)scratch,
                                       (T *)qkv_gradient};
        launch(state, "attention_backward", row_sum_kernel<T>, rows, ATTENTION_THREADS, p,
               (const T *)output_gradient, (const T *)output, (float *)scratch);
        with_tiles(state, p.size,
                   [&](auto tile) { launch_backward<T, tile.SIZE>(state, p, rows, data); });
    });
}

} // namespace eth_hpp
