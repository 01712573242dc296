/*
 * EMULATED. The part of the CUDA runtime that the GPU module uses, on the host, so that the
 * module's own sources run where there is neither a toolkit nor a GPU. Names and values are those
 * of CUDA's programming guide and runtime API reference; what is not declared here cannot be
 * called.
 *
 * Kernels run thread by thread (simt.h). Work on a stream is put off until somebody waits for it or
 * asks for it, and goes on by some pieces at each question ($ETH_HPP_EMULATED_ORDER seeds how
 * many), so that streams overtake each other in ever other ways and a missing wait shows as a wrong
 * result. Device memory, of which there are $ETH_HPP_EMULATED_BYTES, is out of the host's reach;
 * what is copied from or to host memory is read or written when the copy's turn comes.
 */
#ifndef ETH_HPP_EMULATED_CUDA_RUNTIME_H
#define ETH_HPP_EMULATED_CUDA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#define ETH_HPP_EMULATED_CUDA 1
#define CUDART_VERSION        12000

/* ---- the language ---- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
/* The blocks of a grid run one after the other. */
#define __shared__ static

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned along_x = 1, unsigned along_y = 1, unsigned along_z = 1)
        : x(along_x), y(along_y), z(along_z)
    {
    }
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

void __syncthreads(void);
void __syncwarp(unsigned mask = 0xffffffffu);
/* What a lane of the warp hands to `source`'s reader; all lanes of the mask take part. */
uint64_t eth_hpp_emulated_shuffle(unsigned mask, uint64_t bits, int source);

template <typename T> T eth_hpp_emulated_shuffle_of(unsigned mask, T value, int source)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves at most eight bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = eth_hpp_emulated_shuffle(mask, bits, source);
    memcpy(&value, &bits, sizeof(T));
    return value;
}

int eth_hpp_emulated_lane(void);

template <typename T> T __shfl_sync(unsigned mask, T value, int lane)
{
    return eth_hpp_emulated_shuffle_of(mask, value, lane & 31);
}

template <typename T> T __shfl_xor_sync(unsigned mask, T value, int lanes)
{
    return eth_hpp_emulated_shuffle_of(mask, value, eth_hpp_emulated_lane() ^ lanes);
}

template <typename T> T eth_hpp_emulated_add(T *at, T value)
{
    T before = *at;
    *at = before + value;
    return before;
}

inline float atomicAdd(float *at, float value)
{
    return eth_hpp_emulated_add(at, value);
}
inline double atomicAdd(double *at, double value)
{
    return eth_hpp_emulated_add(at, value);
}
inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long value)
{
    return eth_hpp_emulated_add(at, value);
}

/* Each rounded by itself: this is compiled without contraction. */
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fsub_rn(float a, float b)
{
    return a - b;
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
inline float cospif(float a)
{
    return (float)cos(3.14159265358979323846 * (double)a);
}
inline float sinpif(float a)
{
    return (float)sin(3.14159265358979323846 * (double)a);
}
inline float rsqrtf(float a)
{
    return 1 / sqrtf(a);
}

/* ---- the runtime ---- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorNotReady = 600,
    cudaErrorLaunchFailure = 719,
};

enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
};

enum { cudaStreamNonBlocking = 1, cudaEventDefault = 0 };

typedef struct eth_hpp_emulated_stream *cudaStream_t;
typedef struct eth_hpp_emulated_event *cudaEvent_t;

struct cudaUUID_t {
    char bytes[16];
};

struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    int major, minor, multiProcessorCount;
    size_t totalGlobalMem;
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    void *attrs;
    unsigned numAttrs;
};

const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaMalloc(void **memory, size_t size);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **memory, size_t size);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemGetInfo(size_t *left, size_t *total);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *memory, int value, size_t size, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to);

/* Puts work at a stream's end. The doubles of the libraries use it, too. */
cudaError_t eth_hpp_emulated_enqueue(cudaStream_t stream, std::function<void()> work);
/* The same of work that may have to wait for another process: it is called until it is true, and
 * says when it reaches device memory. */
cudaError_t eth_hpp_emulated_enqueue_until(cudaStream_t stream, std::function<bool()> work);
void eth_hpp_emulated_reach(void);
/* The device works on by itself for a while, on all streams. */
void eth_hpp_emulated_work_on(void);
/* Does the device reach these bytes, its own or page-locked ones? Is this a stream? */
bool eth_hpp_emulated_reaches(const void *memory, size_t size);
bool eth_hpp_emulated_is_stream(cudaStream_t stream);

/* The file of this module, which is the double of NCCL as well (tests/emulation/nccl). */
const char *eth_hpp_emulated_nccl(void);
cudaError_t eth_hpp_emulated_launch(const cudaLaunchConfig_t *config, std::function<void()> thread);

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...),
                               Arguments &&...arguments)
{
    return [&](Parameters... coerced) {
        return eth_hpp_emulated_launch(config, [=] { kernel(coerced...); });
    }(std::forward<Arguments>(arguments)...);
}

#endif
