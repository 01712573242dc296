/*
 * What attention's forward and backward share. A block works on some rows (queries, or keys in one
 * of backward's kernels) of one head of one sample, kept in shared memory, and lets tiles of WARP
 * rows of the other kind stream through. A warp owns a few of the block's rows; its lanes are the
 * streamed rows while scores are made, and places within the head while products are summed up.
 */
#ifndef ETH_HPP_KERNELS_CUDA_ATTENTION_H
#define ETH_HPP_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/dropout.h"

namespace eth_hpp {

constexpr int ATTENTION_WARPS = 4, ATTENTION_THREADS = ATTENTION_WARPS * WARP;
/* Blocks of forward that share a multiprocessor: how many registers a thread may have. With more,
 * or by its own choice for some GPUs, the compiler spills registers. */
constexpr int ATTENTION_BLOCKS = 4;

/* A head's size, rounded up to 64, 128 or the most that there is, decides how many rows fit into
 * the 48 KiB of shared memory that every device has. */
template <int ROUNDED_SIZE> struct tiles {
    static constexpr int SIZE = ROUNDED_SIZE;
    static constexpr int ROWS = SIZE <= 128 ? 2048 / SIZE : ATTENTION_WARPS; /* of a block */
    static constexpr int OWN = ROWS / ATTENTION_WARPS;                       /* of a warp */
    static constexpr int PLACES = SIZE / WARP;                               /* of a lane */
    static constexpr int PITCH = SIZE + 1; /* so that lanes read different banks */
};

/* Calls `work` with the tiles of heads of this size. */
template <typename Work> void with_tiles(cuda *state, size_t size, Work work)
{
    if (size <= 64)
        work(tiles<64>());
    else if (size <= 128)
        work(tiles<128>());
    else if (size <= ETH_HPP_HEAD_SIZE_MOST)
        work(tiles<ETH_HPP_HEAD_SIZE_MOST>());
    else
        note(state, "attention of heads that are too large", cudaErrorInvalidValue);
}

/* What all heads have in common. */
struct head_place {
    size_t sequence, size;            /* rows, and values of a row */
    size_t heads, key_value_heads;    /* of a sample */
    size_t qkv_stride, output_stride; /* from a row to the next one */
    float scale;
    dropping drop;
};

inline head_place head_place_of(const struct eth_hpp_attention *shape)
{
    head_place p;
    p.sequence = shape->sequence;
    p.size = shape->head_size;
    p.heads = shape->heads;
    p.key_value_heads = shape->key_value_heads;
    p.qkv_stride = (shape->heads + 2 * shape->key_value_heads) * shape->head_size;
    p.output_stride = shape->heads * shape->head_size;
    p.scale = (float)(1 / sqrt((double)shape->head_size));
    p.drop = dropping_of(shape->dropout);
    return p;
}

/* How many heads share one of keys and values. */
__device__ __forceinline__ size_t group_of(const head_place &p)
{
    return p.heads / p.key_value_heads;
}

/* Where a head begins: its queries, or a head of keys and values, in qkv (values lie after all
 * keys), its rows in the output and among rows that have a number a head. Samples are blockIdx.z.
 */
__device__ __forceinline__ size_t in_queries(const head_place &p, size_t head)
{
    return blockIdx.z * p.sequence * p.qkv_stride + head * p.size;
}
__device__ __forceinline__ size_t in_keys(const head_place &p, size_t key_value_head)
{
    return in_queries(p, p.heads + key_value_head);
}
__device__ __forceinline__ size_t in_values(const head_place &p, size_t key_value_head)
{
    return in_keys(p, p.key_value_heads + key_value_head);
}
__device__ __forceinline__ size_t in_output(const head_place &p, size_t head)
{
    return blockIdx.z * p.sequence * p.output_stride + head * p.size;
}
__device__ __forceinline__ size_t in_rows(const head_place &p, size_t head)
{
    return (blockIdx.z * p.heads + head) * p.sequence;
}

/* Loads up to `rows` rows from `first` on; what lies beyond the sequence or the head is 0. */
template <typename T, int SIZE>
__device__ void load_rows(const head_place &p, int rows, size_t first, const T *from, size_t stride,
                          float (*to)[SIZE + 1])
{
    for (int i = threadIdx.x; i < rows * SIZE; i += ATTENTION_THREADS) {
        const size_t row = first + i / SIZE, place = i % SIZE;
        to[i / SIZE][place] =
            row < p.sequence && place < p.size ? to_float(from[row * stride + place]) : 0;
    }
}

/* The products of a warp's own rows with the lane's streamed row. */
template <int SIZE>
__device__ __forceinline__ void dots(const float (*rows)[SIZE + 1], const float *streamed,
                                     float *products)
{
#pragma unroll
    for (int own = 0; own < tiles<SIZE>::OWN; own++)
        products[own] = 0;
#pragma unroll 8
    for (int i = 0; i < SIZE; i++) {
        const float x = streamed[i];
#pragma unroll
        for (int own = 0; own < tiles<SIZE>::OWN; own++)
            products[own] = fmaf(rows[own][i], x, products[own]);
    }
}

/* sums += weights x streamed rows, for each of a warp's own rows: a lane has its places of them. */
template <int SIZE>
__device__ __forceinline__ void add_weighted(const float (*weights)[WARP],
                                             const float (*stream)[SIZE + 1], int lane,
                                             float (*sums)[tiles<SIZE>::PLACES])
{
#pragma unroll 4
    for (int row = 0; row < WARP; row++)
#pragma unroll
        for (int i = 0; i < tiles<SIZE>::PLACES; i++) {
            const float x = stream[row][lane + i * WARP];
#pragma unroll
            for (int own = 0; own < tiles<SIZE>::OWN; own++)
                sums[own][i] = fmaf(weights[own][row], x, sums[own][i]);
        }
}

/* What dropout multiplies a probability by: rows of keys count as whole spans. */
__device__ __forceinline__ float attention_drop(const head_place &p, size_t head, size_t query,
                                                size_t key)
{
    const uint64_t pitch = (p.sequence + SPAN - 1) / SPAN * SPAN;
    return drop_factor(p.drop, blockIdx.z, (head * p.sequence + query) * pitch + key);
}

void attention_backward(void *at, const struct eth_hpp_attention *shape,
                        const void *output_gradient, const void *qkv, const void *output,
                        const void *log_sum, void *qkv_gradient, void *scratch);

} // namespace eth_hpp

#endif
