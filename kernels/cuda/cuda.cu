#include "kernels/cuda/cuda.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

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

enum eth_hpp_status tell(const cuda *state, struct eth_hpp_error *err)
{
    if (state->failure.status == ETH_HPP_OK)
        return ETH_HPP_OK;
    return eth_hpp_error_set(err, state->failure.status, "%s", state->failure.text);
}

static const struct eth_hpp_kernels_ops *table()
{
    static struct eth_hpp_kernels_ops ops;
    memory_provide(&ops);
    streams_provide(&ops);
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

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "GPU-" and the bytes in hexadecimal digits, with dashes in between. */
static bool has_uuid(const cudaDeviceProp &properties, const char *text)
{
    const char *at = strchr(text, '-');
    for (size_t i = 0; at != nullptr && i < sizeof(properties.uuid.bytes); i++, at += 2) {
        at += *at == '-';
        const int high = digit(at[0]), low = high < 0 ? -1 : digit(at[1]);
        if (low < 0 || (unsigned char)properties.uuid.bytes[i] != high * 16 + low)
            return false;
    }
    return at != nullptr && *at == '\0';
}

/* A process sees one MIG slice only, whose UUID CUDA does not tell. */
static bool is_slice(const char *uuid)
{
    return strncmp(uuid, "MIG-", 4) == 0;
}

static enum eth_hpp_status find_device(const char *uuid, int *device, cudaDeviceProp *properties,
                                       struct eth_hpp_error *err)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED, "no usable GPU: %s",
                                 error != cudaSuccess ? cudaGetErrorString(error)
                                                      : "CUDA sees none");
    for (*device = 0; *device < count; ++*device) {
        error = cudaGetDeviceProperties(properties, *device);
        if (error != cudaSuccess)
            return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "GPU %d cannot be used: %s", *device,
                                     cudaGetErrorString(error));
        if (uuid == nullptr || is_slice(uuid) || has_uuid(*properties, uuid))
            return ETH_HPP_OK;
    }
    return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                             "%s is none of the %d GPUs that CUDA sees: is CUDA_VISIBLE_DEVICES "
                             "right?",
                             uuid, count);
}

static enum eth_hpp_status check_device(int device, const cudaDeviceProp &properties,
                                        enum eth_hpp_dtype values, struct eth_hpp_error *err)
{
    const cudaError_t error = cudaSetDevice(device);
    if (error != cudaSuccess)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "GPU %d cannot be used: %s", device,
                                 cudaGetErrorString(error));
    if (values == ETH_HPP_BF16 && properties.major < 8)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "GPU %d (%s) has no bf16: choose fp16 or fp32", device,
                                 properties.name);
    return ETH_HPP_OK;
}

static void close(cuda *state)
{
    streams_close(state);
    products_close(state);
    cudaFree(state->parts);
    cudaFree(state->reserved.memory);
    environment_restore(state);
    free(state);
}

static void destroy(struct eth_hpp_kernels *kernels)
{
    close(static_cast<cuda *>(kernels->state));
    free(kernels);
}

static enum eth_hpp_status open(const char *uuid, enum eth_hpp_dtype values, cuda *state,
                                struct eth_hpp_error *err)
{
    int device = 0;
    cudaDeviceProp properties;
    if (!environment_set(state))
        return eth_hpp_error_memory(err, "the CUDA kernels");
    enum eth_hpp_status status = find_device(uuid, &device, &properties, err);
    if (status == ETH_HPP_OK)
        status = check_device(device, properties, values, err);
    if (status != ETH_HPP_OK)
        return status;
    state->processors = properties.multiProcessorCount;
    memcpy(state->model, properties.name, sizeof(state->model));
    for (int i = 0; i < 16; i++)
        snprintf(state->uuid + 2 * i, 3, "%02x", (unsigned char)properties.uuid.bytes[i]);
    state->values = values;
    state->value_bytes = (size_t)eth_hpp_dtype_bytes(values);
    cudaError_t error = streams_open(state);
    if (error == cudaSuccess)
        error = cudaMalloc(reinterpret_cast<void **>(&state->parts), PARTS * sizeof(double));
    if (error != cudaSuccess)
        return eth_hpp_error_set(err, ETH_HPP_ERR_MEMORY, "GPU %d has no memory left: %s", device,
                                 cudaGetErrorString(error));
    return products_open(state, err);
}

} // namespace eth_hpp

enum eth_hpp_status eth_hpp_cuda_create(const char *uuid, enum eth_hpp_dtype values,
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
    status = eth_hpp::open(uuid, values, state, err);
    if (status != ETH_HPP_OK) {
        eth_hpp::close(state);
        free(made);
        return status;
    }
#ifdef ETH_HPP_EMULATED_CUDA
    made->name = "cuda, emulated";
    made->nccl = eth_hpp_emulated_nccl();
#else
    made->name = "cuda";
    made->nccl = "libnccl.so.2";
#endif
    made->ops = eth_hpp::table();
    made->state = state;
    made->model = state->model;
    made->uuid = state->uuid;
    made->remark = state->remark[0] != '\0' ? state->remark : nullptr;
    made->value_bytes = state->value_bytes;
    made->sum_bytes = sizeof(float);
    made->destroy = eth_hpp::destroy;
    *kernels = made;
    return ETH_HPP_OK;
}
