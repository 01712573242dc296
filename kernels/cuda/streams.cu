/* Streams, events, and the host memory that they copy from and to. */
#include "kernels/cuda/cuda.h"

#include <cstdlib>

namespace eth_hpp {

/* An event is CUDA's own. */
static cudaEvent_t own(struct eth_hpp_event *event)
{
    return reinterpret_cast<cudaEvent_t>(event);
}

static enum eth_hpp_status allocate_host(void *, size_t bytes, void **memory,
                                         struct eth_hpp_error *err)
{
    const cudaError_t error = cudaMallocHost(memory, bytes == 0 ? 1 : bytes);
    if (error == cudaSuccess)
        return ETH_HPP_OK;
    return eth_hpp_error_set(err, ETH_HPP_ERR_MEMORY,
                             "the host has no %zu bytes that a GPU could reach: %s", bytes,
                             cudaGetErrorString(error));
}

static void release_host(void *state, void *memory)
{
    note(static_cast<cuda *>(state), "the release of host memory", cudaFreeHost(memory));
}

static void stream_to_device(void *at, int stream, void *to, const void *host, size_t bytes)
{
    cuda *state = static_cast<cuda *>(at);
    note(state, "a copy to the GPU",
         cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, state->streams[stream]));
}

static void stream_to_host(void *at, int stream, void *host, const void *from, size_t bytes)
{
    cuda *state = static_cast<cuda *>(at);
    note(state, "a copy from the GPU",
         cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, state->streams[stream]));
}

static enum eth_hpp_status event_create(void *, struct eth_hpp_event **event,
                                        struct eth_hpp_error *err)
{
    cudaEvent_t made;
    const cudaError_t error = cudaEventCreateWithFlags(&made, cudaEventDefault);
    if (error != cudaSuccess)
        return eth_hpp_error_set(err, ETH_HPP_ERR_MEMORY, "the GPU makes no event: %s",
                                 cudaGetErrorString(error));
    *event = reinterpret_cast<struct eth_hpp_event *>(made);
    return ETH_HPP_OK;
}

static void event_destroy(void *state, struct eth_hpp_event *event)
{
    if (event != nullptr)
        note(static_cast<cuda *>(state), "the end of an event", cudaEventDestroy(own(event)));
}

static void event_record(void *at, struct eth_hpp_event *event, int stream)
{
    cuda *state = static_cast<cuda *>(at);
    note(state, "an event", cudaEventRecord(own(event), state->streams[stream]));
}

static void stream_wait(void *at, int stream, struct eth_hpp_event *event)
{
    cuda *state = static_cast<cuda *>(at);
    note(state, "a wait for an event", cudaStreamWaitEvent(state->streams[stream], own(event), 0));
}

static enum eth_hpp_status event_test(void *at, struct eth_hpp_event *event, bool *done,
                                      struct eth_hpp_error *err)
{
    cuda *state = static_cast<cuda *>(at);
    const cudaError_t error = cudaEventQuery(own(event));
    if (error != cudaErrorNotReady)
        note(state, "what was issued before", error);
    *done = error == cudaSuccess;
    return tell(state, err);
}

static double event_seconds(void *state, struct eth_hpp_event *from, struct eth_hpp_event *to)
{
    float milliseconds = 0;
    note(static_cast<cuda *>(state), "the time between events",
         cudaEventElapsedTime(&milliseconds, own(from), own(to)));
    return milliseconds * 1e-3;
}

static cudaError_t add(cuda *state)
{
    const size_t count = (size_t)state->stream_count;
    void *more = realloc(state->streams, sizeof(*state->streams) * (count + 1));
    if (more == nullptr)
        return cudaErrorMemoryAllocation;
    state->streams = static_cast<cudaStream_t *>(more);
    const cudaError_t error =
        cudaStreamCreateWithFlags(&state->streams[count], cudaStreamNonBlocking);
    if (error == cudaSuccess)
        state->stream_count++;
    return error;
}

static enum eth_hpp_status stream_create(void *at, int *stream, struct eth_hpp_error *err)
{
    cuda *state = static_cast<cuda *>(at);
    const cudaError_t error = add(state);
    if (error != cudaSuccess)
        return eth_hpp_error_set(err, ETH_HPP_ERR_MEMORY, "the GPU makes no stream: %s",
                                 cudaGetErrorString(error));
    *stream = state->stream_count - 1;
    return ETH_HPP_OK;
}

static void *stream_native(void *state, int stream)
{
    return static_cast<cuda *>(state)->streams[stream];
}

cudaError_t streams_open(cuda *state)
{
    cudaError_t error = cudaSuccess;
    while (error == cudaSuccess && state->stream_count < ETH_HPP_STREAMS)
        error = add(state);
    return error;
}

void streams_close(cuda *state)
{
    for (int i = 0; i < state->stream_count; i++)
        cudaStreamDestroy(state->streams[i]);
    free(state->streams);
}

void streams_provide(struct eth_hpp_kernels_ops *ops)
{
    ops->allocate_host = allocate_host;
    ops->release_host = release_host;
    ops->stream_create = stream_create;
    ops->stream_native = stream_native;
    ops->stream_to_device = stream_to_device;
    ops->stream_to_host = stream_to_host;
    ops->event_create = event_create;
    ops->event_destroy = event_destroy;
    ops->event_record = event_record;
    ops->stream_wait = stream_wait;
    ops->event_test = event_test;
    ops->event_seconds = event_seconds;
}

} // namespace eth_hpp
