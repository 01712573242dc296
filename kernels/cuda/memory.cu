#include "kernels/cuda/cuda.h"

namespace eth_hpp {

static enum eth_hpp_status allocate(void *, size_t bytes, void **memory, struct eth_hpp_error *err)
{
    /* an empty tensor still gets an address */
    const cudaError_t error = cudaMalloc(memory, bytes == 0 ? 1 : bytes);
    if (error == cudaSuccess)
        return ETH_HPP_OK;
    return eth_hpp_error_set(err, ETH_HPP_ERR_MEMORY, "the GPU has no %zu bytes left: %s", bytes,
                             cudaGetErrorString(error));
}

static void release(void *state, void *memory)
{
    note(static_cast<cuda *>(state), "the release of memory", cudaFree(memory));
}

static enum eth_hpp_status to_device(void *at, void *to, const void *host, size_t bytes,
                                     struct eth_hpp_error *err)
{
    cuda *state = static_cast<cuda *>(at);
    const cudaError_t error =
        cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, state->stream);
    if (error == cudaSuccess)
        return ETH_HPP_OK;
    return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "a copy to the GPU failed: %s",
                             cudaGetErrorString(error));
}

static enum eth_hpp_status synchronize(void *at, struct eth_hpp_error *err)
{
    cuda *state = static_cast<cuda *>(at);
    note(state, "what was issued before", cudaStreamSynchronize(state->stream));
    if (state->failure.status == ETH_HPP_OK)
        return ETH_HPP_OK;
    return eth_hpp_error_set(err, state->failure.status, "%s", state->failure.text);
}

static enum eth_hpp_status to_host(void *at, void *host, const void *from, size_t bytes,
                                   struct eth_hpp_error *err)
{
    cuda *state = static_cast<cuda *>(at);
    note(state, "a copy from the GPU",
         cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, state->stream));
    return synchronize(state, err);
}

static void copy(void *at, void *to, const void *from, size_t bytes)
{
    cuda *state = static_cast<cuda *>(at);
    note(state, "a copy",
         cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, state->stream));
}

static void zero(void *at, void *memory, size_t bytes)
{
    cuda *state = static_cast<cuda *>(at);
    note(state, "zeroing memory", cudaMemsetAsync(memory, 0, bytes, state->stream));
}

void memory_provide(struct eth_hpp_kernels_ops *ops)
{
    ops->allocate = allocate;
    ops->release = release;
    ops->to_device = to_device;
    ops->to_host = to_host;
    ops->copy = copy;
    ops->zero = zero;
    ops->synchronize = synchronize;
}

} // namespace eth_hpp
