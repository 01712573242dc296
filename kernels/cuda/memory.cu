#include "kernels/cuda/cuda.h"

namespace eth_hpp {

constexpr size_t ALIGNMENT = 256; /* as cudaMalloc has it */
constexpr size_t KEPT_FREE = 64;  /* a part of the memory, for what CUDA's libraries load later */

static enum eth_hpp_status take(size_t bytes, void **memory, struct eth_hpp_error *err)
{
    const cudaError_t error = cudaMalloc(memory, bytes);
    if (error == cudaSuccess)
        return ETH_HPP_OK;
    return eth_hpp_error_set(err, ETH_HPP_ERR_MEMORY, "the GPU has no %zu bytes left: %s", bytes,
                             cudaGetErrorString(error));
}

static enum eth_hpp_status reserve(void *at, size_t bytes, struct eth_hpp_error *err)
{
    cuda *state = static_cast<cuda *>(at);
    size_t left = 0, total = 0;
    void *memory = nullptr;
    const cudaError_t error = cudaMemGetInfo(&left, &total);
    if (error != cudaSuccess)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO,
                                 "the GPU does not tell what memory it has: %s",
                                 cudaGetErrorString(error));
    const size_t most = left > total / KEPT_FREE ? left - total / KEPT_FREE : left;
    const size_t taken = bytes < most ? bytes : most;
    const enum eth_hpp_status status = take(taken, &memory, err);
    if (status == ETH_HPP_OK)
        state->reserved = piece{static_cast<char *>(memory), taken, 0};
    return status;
}

static enum eth_hpp_status allocate(void *at, size_t bytes, void **memory,
                                    struct eth_hpp_error *err)
{
    piece *from = &static_cast<cuda *>(at)->reserved;
    const size_t wanted = divide_up(bytes == 0 ? 1 : bytes, ALIGNMENT) * ALIGNMENT;
    if (wanted > from->bytes - from->used) /* or nothing was reserved */
        return take(bytes == 0 ? 1 : bytes, memory, err);
    *memory = from->memory + from->used;
    from->used += wanted;
    return ETH_HPP_OK;
}

/* What was reserved goes with the kernels. */
static void release(void *at, void *memory)
{
    cuda *state = static_cast<cuda *>(at);
    const char *begin = state->reserved.memory, *one = static_cast<char *>(memory);
    if (begin == nullptr || one < begin || one >= begin + state->reserved.bytes)
        note(state, "the release of memory", cudaFree(memory));
}

static enum eth_hpp_status synchronize(void *at, struct eth_hpp_error *err)
{
    cuda *state = static_cast<cuda *>(at);
    note(state, "what was issued before", cudaStreamSynchronize(compute_stream(state)));
    return tell(state, err);
}

/* CUDA may read pageable memory after its call has returned, as where a GPU reaches it by itself.
 */
static enum eth_hpp_status to_device(void *at, void *to, const void *host, size_t bytes,
                                     struct eth_hpp_error *err)
{
    cuda *state = static_cast<cuda *>(at);
    note(state, "a copy to the GPU",
         cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, compute_stream(state)));
    return synchronize(state, err);
}

static enum eth_hpp_status to_host(void *at, void *host, const void *from, size_t bytes,
                                   struct eth_hpp_error *err)
{
    cuda *state = static_cast<cuda *>(at);
    note(state, "a copy from the GPU",
         cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, compute_stream(state)));
    return synchronize(state, err);
}

static void copy(void *at, void *to, const void *from, size_t bytes)
{
    cuda *state = static_cast<cuda *>(at);
    note(state, "a copy",
         cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, compute_stream(state)));
}

static void zero(void *at, void *memory, size_t bytes)
{
    cuda *state = static_cast<cuda *>(at);
    note(state, "zeroing memory", cudaMemsetAsync(memory, 0, bytes, compute_stream(state)));
}

void memory_provide(struct eth_hpp_kernels_ops *ops)
{
    ops->allocate = allocate;
    ops->release = release;
    ops->reserve = reserve;
    ops->to_device = to_device;
    ops->to_host = to_host;
    ops->copy = copy;
    ops->zero = zero;
    ops->synchronize = synchronize;
}

} // namespace eth_hpp
