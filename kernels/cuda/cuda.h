/*
 * The CUDA kernels: portable CUDA C++ (compute capability 7.5 and later; no tensor-core or TMA
 * instructions, those are cuBLASLt's), a file for each kind of operation, each with one function
 * that puts its operations into the table. Values are fp32, bf16 or fp16, sums fp32; all arithmetic
 * is done in fp32. Operations are issued on the compute stream and allocate nothing.
 *
 * These files are also compiled for the host (tests/emulation/cuda): kernels are launched through
 * `launch`, shared memory is static, and shuffles and barriers are of whole warps and blocks.
 */
#ifndef ETH_HPP_KERNELS_CUDA_CUDA_H
#define ETH_HPP_KERNELS_CUDA_CUDA_H

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

extern "C" {
#include "kernels/cuda/create.h"
}

namespace eth_hpp {

/* What tensors are cut from, one after the other. */
struct piece {
    char *memory; /* NULL: nothing is reserved, each tensor is allocated by itself */
    size_t bytes, used;
};

constexpr int SETTINGS = 2; /* environment variables that are set for CUDA */

/* The state that operations get. */
struct cuda {
    enum eth_hpp_dtype values;
    size_t value_bytes;
    int processors;        /* multiprocessors */
    cudaStream_t *streams; /* first those of enum eth_hpp_stream */
    int stream_count;
    char model[256], uuid[33];
    char *given[SETTINGS]; /* what the user had set them to; NULL: not */
    char remark[400];      /* on what was set otherwise; "": nothing */
    piece reserved;
    struct products *products;    /* linear.cu's */
    double *parts;                /* PARTS partial sums on the device */
    struct eth_hpp_error failure; /* the first that was met, told by `tell` */
};

inline cudaStream_t compute_stream(const cuda *state)
{
    return state->streams[ETH_HPP_STREAM_COMPUTE];
}

constexpr int PARTS = 256;

/* Keeps the first failure of the device or of a library. */
void note(cuda *state, const char *what, cudaError_t error);
void note(cuda *state, const char *what, cublasStatus_t status);

/* The first failure, if there was one. */
enum eth_hpp_status tell(const cuda *state, struct eth_hpp_error *err);

template <typename... Parameters, typename... Arguments>
void launch(cuda *state, const char *name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            Arguments... arguments)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = compute_stream(state);
    note(state, name, cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

/* Blocks of `threads` for a loop over `count` elements, in which a thread takes one after another:
 * at most as many as the device can hold a few times. */
inline unsigned blocks_for(const cuda *state, size_t count, size_t threads)
{
    const size_t wanted = (count + threads - 1) / threads, most = (size_t)state->processors * 16;
    return (unsigned)(wanted < most ? wanted : most);
}

inline size_t divide_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

/* Calls `work` with a value of the type that values have. */
template <typename Work> void with_value(const cuda *state, Work work)
{
    switch (state->values) {
    case ETH_HPP_FP32:
        work(float());
        return;
    case ETH_HPP_BF16:
        work(__nv_bfloat16());
        return;
    case ETH_HPP_FP16:
        work(__half());
        return;
    }
}

void memory_provide(struct eth_hpp_kernels_ops *ops);
void streams_provide(struct eth_hpp_kernels_ops *ops);
void embedding_provide(struct eth_hpp_kernels_ops *ops);
void layernorm_provide(struct eth_hpp_kernels_ops *ops);
void linear_provide(struct eth_hpp_kernels_ops *ops);
void attention_provide(struct eth_hpp_kernels_ops *ops);
void elementwise_provide(struct eth_hpp_kernels_ops *ops);
void swiglu_provide(struct eth_hpp_kernels_ops *ops);
void rotary_provide(struct eth_hpp_kernels_ops *ops);
void dropout_provide(struct eth_hpp_kernels_ops *ops);
void cross_entropy_provide(struct eth_hpp_kernels_ops *ops);
void optimizer_provide(struct eth_hpp_kernels_ops *ops);
void initialise_provide(struct eth_hpp_kernels_ops *ops);

/* What CUDA is to read of the environment (environment.cu), before anything is asked of it, and
 * after all: the program may start others. False: no memory. */
bool environment_set(cuda *state);
void environment_restore(cuda *state);

/* All streams. */
cudaError_t streams_open(cuda *state);
void streams_close(cuda *state);

/* linear.cu's handle and workspace. */
enum eth_hpp_status products_open(cuda *state, struct eth_hpp_error *err);
void products_close(cuda *state);

} // namespace eth_hpp

#endif
