/* What the kernels' device code shares: values as floats, sums over a warp and a block. */
#ifndef ETH_HPP_KERNELS_CUDA_DEVICE_H
#define ETH_HPP_KERNELS_CUDA_DEVICE_H

#include "kernels/cuda/cuda.h"

namespace eth_hpp {

constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int WARP = 32;
/* Threads of a block of the kernels that reduce over a block, or loop over elements. */
constexpr int THREADS = 256;

__device__ __forceinline__ float to_float(float x)
{
    return x;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x)
{
    return __half2float(x);
}

__device__ __forceinline__ void store(float *to, float x)
{
    *to = x;
}
__device__ __forceinline__ void store(__nv_bfloat16 *to, float x)
{
    *to = __float2bfloat16(x);
}
__device__ __forceinline__ void store(__half *to, float x)
{
    *to = __float2half(x);
}

/* This thread's first element and the distance to its next in a loop over a grid of blocks. */
__device__ __forceinline__ size_t grid_first()
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ size_t grid_stride()
{
    return (size_t)gridDim.x * blockDim.x;
}

/* Every lane gets the result, in the same order of additions on each. */
template <typename T> __device__ __forceinline__ T warp_sum(T x)
{
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, lanes);
    return x;
}

/* A NaN wins, as it does in a sum. */
__device__ __forceinline__ float larger(float a, float b)
{
    return a > b || a != a ? a : b;
}

__device__ __forceinline__ float warp_largest(float x)
{
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2)
        x = larger(x, __shfl_xor_sync(ALL_LANES, x, lanes));
    return x;
}

/* The same over a block of THREADS; every thread gets the result and takes part. */
template <typename T> __device__ __forceinline__ T block_sum(T x)
{
    __shared__ T sums[THREADS / WARP];
    x = warp_sum(x);
    __syncthreads(); /* the sums of the call before have been read */
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = x;
    __syncthreads();
    T total = sums[0];
    for (int i = 1; i < THREADS / WARP; i++)
        total += sums[i];
    return total;
}

__device__ __forceinline__ float block_largest(float x)
{
    __shared__ float largest[THREADS / WARP];
    x = warp_largest(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        largest[threadIdx.x / WARP] = x;
    __syncthreads();
    float most = largest[0];
    for (int i = 1; i < THREADS / WARP; i++)
        most = larger(most, largest[i]);
    return most;
}

} // namespace eth_hpp

#endif
