#include "kernels/cuda/cuda.h"

#include <cstdlib>

namespace eth_hpp {

void note(cuda *state, const char *what, cudaError_t error)
{
    if (error != cudaSuccess && state->failure.status == ETH_HPP_OK)
        eth_hpp_error_set(&state->failure, ETH_HPP_ERR_IO, "the GPU failed at %s: %s", what,
                          cudaGetErrorString(error));
}

void note(cuda *state, const char *what, cublasStatus_t status)
{
    if (status != CUBLAS_STATUS_SUCCESS && state->failure.status == ETH_HPP_OK)
        eth_hpp_error_set(&state->failure, ETH_HPP_ERR_IO, "cuBLASLt failed at %s: %s", what,
                          cublasLtGetStatusString(status));
}

static const struct eth_hpp_kernels_ops *table()
{
    static struct eth_hpp_kernels_ops ops;
    memory_provide(&ops);
    embedding_provide(&ops);
    layernorm_provide(&ops);
    linear_provide(&ops);
    attention_provide(&ops);
    elementwise_provide(&ops);
    swiglu_provide(&ops);
    rotary_provide(&ops);
    dropout_provide(&ops);
    cross_entropy_provide(&ops);
    optimizer_provide(&ops);
    initialise_provide(&ops);
    return &ops;
}

static enum eth_hpp_status check_device(int device, enum eth_hpp_dtype values, cuda *state,
                                        struct eth_hpp_error *err)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED, "no usable GPU: %s",
                                 cudaGetErrorString(error));
    if (device < 0 || device >= count)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "there is no GPU %d: CUDA sees %d of them", device, count);
    cudaDeviceProp properties;
    error = cudaGetDeviceProperties(&properties, device);
    if (error == cudaSuccess)
        error = cudaSetDevice(device);
    if (error != cudaSuccess)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "GPU %d cannot be used: %s", device,
                                 cudaGetErrorString(error));
    if (values == ETH_HPP_BF16 && properties.major < 8)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "GPU %d (%s) has no bf16: choose fp16 or fp32", device,
                                 properties.name);
    state->processors = properties.multiProcessorCount;
    return ETH_HPP_OK;
}

static void close(cuda *state)
{
    if (state->stream != nullptr)
        cudaStreamSynchronize(state->stream);
    products_close(state);
    cudaFree(state->parts);
    if (state->stream != nullptr)
        cudaStreamDestroy(state->stream);
    free(state);
}

static void destroy(struct eth_hpp_kernels *kernels)
{
    close(static_cast<cuda *>(kernels->state));
    free(kernels);
}

static enum eth_hpp_status open(int device, enum eth_hpp_dtype values, cuda *state,
                                struct eth_hpp_error *err)
{
    const enum eth_hpp_status status = check_device(device, values, state, err);
    if (status != ETH_HPP_OK)
        return status;
    state->values = values;
    state->value_bytes = (size_t)eth_hpp_dtype_bytes(values);
    cudaError_t error = cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaMalloc(reinterpret_cast<void **>(&state->parts), PARTS * sizeof(double));
    if (error != cudaSuccess)
        return eth_hpp_error_set(err, ETH_HPP_ERR_MEMORY, "GPU %d has no memory left: %s", device,
                                 cudaGetErrorString(error));
    return products_open(state, err);
}

} // namespace eth_hpp

enum eth_hpp_status eth_hpp_cuda_create(int device, enum eth_hpp_dtype values,
                                        struct eth_hpp_kernels **kernels, struct eth_hpp_error *err)
{
    auto *state = static_cast<eth_hpp::cuda *>(calloc(1, sizeof(eth_hpp::cuda)));
    auto *made = static_cast<struct eth_hpp_kernels *>(calloc(1, sizeof(struct eth_hpp_kernels)));
    enum eth_hpp_status status = ETH_HPP_OK;
    if (state == nullptr || made == nullptr) {
        free(state);
        free(made);
        return eth_hpp_error_memory(err, "the CUDA kernels");
    }
    status = eth_hpp::open(device, values, state, err);
    if (status != ETH_HPP_OK) {
        eth_hpp::close(state);
        free(made);
        return status;
    }
    made->name = "cuda";
    made->ops = eth_hpp::table();
    made->state = state;
    made->value_bytes = state->value_bytes;
    made->sum_bytes = sizeof(float);
    made->destroy = eth_hpp::destroy;
    *kernels = made;
    return ETH_HPP_OK;
}
