#include "kernels/cuda/attention.h"

namespace eth_hpp {

/* Each query's running softmax (arXiv:2307.08691): the largest score and the sum of exponentials so
 * far, held by every lane of its warp, and the weighted sum of values, of which a lane has its
 * places. */
template <typename T, int SIZE>
__global__ void __launch_bounds__(ATTENTION_THREADS, ATTENTION_BLOCKS)
    attention_forward_kernel(head_place p, const T *qkv, T *output, float *log_sum)
{
    using tile = tiles<SIZE>;
    __shared__ float queries[tile::ROWS][tile::PITCH], stream[WARP][tile::PITCH];
    __shared__ float weights[tile::ROWS][WARP];
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * tile::OWN;
    const size_t head = blockIdx.y, first = (size_t)blockIdx.x * tile::ROWS;
    const size_t end = first + tile::ROWS < p.sequence ? first + tile::ROWS : p.sequence;
    float most[tile::OWN], sum[tile::OWN] = {}, sums[tile::OWN][tile::PLACES] = {};
    const T *keys_from = qkv + in_keys(p, head / group_of(p));
    const T *values_from = qkv + in_values(p, head / group_of(p));
#pragma unroll
    for (int i = 0; i < tile::OWN; i++)
        most[i] = -INFINITY; /* all see key 0, and have a finite one after the first tile */
    load_rows<T, SIZE>(p, tile::ROWS, first, qkv + in_queries(p, head), p.qkv_stride, queries);
    for (size_t keys = 0; keys < end; keys += WARP) {
        float scores[tile::OWN];
        __syncthreads(); /* the tile before has been used */
        load_rows<T, SIZE>(p, WARP, keys, keys_from, p.qkv_stride, stream);
        __syncthreads();
        dots<SIZE>(queries + own, stream[lane], scores);
#pragma unroll
        for (int i = 0; i < tile::OWN; i++) {
            const size_t query = first + own + i, key = keys + lane;
            const bool seen = key <= query;
            const float score = seen ? scores[i] * p.scale : -INFINITY;
            const float now = larger(most[i], warp_largest(score)), fade = expf(most[i] - now);
            const float weight = seen ? expf(score - now) : 0;
            sum[i] = sum[i] * fade + warp_sum(weight); /* dropped ones, too */
            most[i] = now;
#pragma unroll
            for (int place = 0; place < tile::PLACES; place++)
                sums[i][place] *= fade;
            weights[own + i][lane] = seen ? weight * attention_drop(p, head, query, key) : 0;
        }
        __syncthreads(); /* the keys have been used */
        load_rows<T, SIZE>(p, WARP, keys, values_from, p.qkv_stride, stream);
        __syncthreads();
        add_weighted<SIZE>(weights + own, stream, lane, sums);
    }
    output += in_output(p, head);
#pragma unroll
    for (int i = 0; i < tile::OWN; i++) {
        const size_t query = first + own + i;
#pragma unroll
        for (int place = 0; place < tile::PLACES; place++)
            if (query < p.sequence && (size_t)(lane + place * WARP) < p.size)
                store(&output[query * p.output_stride + lane + place * WARP],
                      sums[i][place] / sum[i]);
        if (query < p.sequence && lane == 0)
            log_sum[in_rows(p, head) + query] = most[i] + logf(sum[i]);
    }
}

static void attention_forward(void *at, const struct eth_hpp_attention *shape, const void *qkv,
                              void *output, void *log_sum)
{
    cuda *state = static_cast<cuda *>(at);
    const head_place p = head_place_of(shape);
    const unsigned heads = (unsigned)shape->heads, samples = (unsigned)shape->samples;
    with_value(state, [=](auto value) {
        with_tiles(state, p.size, [=](auto tile) {
            using T = decltype(value);
            using tiles = decltype(tile);
            launch(state, "attention_forward", attention_forward_kernel<T, tiles::SIZE>,
                   dim3((unsigned)divide_up(p.sequence, tiles::ROWS), heads, samples),
                   ATTENTION_THREADS, p, (const T *)qkv, (T *)output, (float *)log_sum);
        });
    });
}

void attention_provide(struct eth_hpp_kernels_ops *ops)
{
    ops->attention_forward = attention_forward;
    ops->attention_backward = attention_backward;
}

} // namespace eth_hpp
