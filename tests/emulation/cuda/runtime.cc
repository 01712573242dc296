/* EMULATED: streams, events and memory (see include/cuda_runtime.h). */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/emulation/cuda/simt.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

struct eth_hpp_emulated_stream {
    std::deque<std::function<bool()>> work; /* a piece is done when it returns true */
    uint64_t issued = 0, done = 0;          /* pieces of work */
};

using time_point = std::chrono::steady_clock::time_point;

struct eth_hpp_emulated_event {
    cudaStream_t stream = nullptr; /* the one it was recorded on last */
    uint64_t after = 0;            /* how much of that stream's work it stands behind */
    std::shared_ptr<time_point> time = std::make_shared<time_point>();
};

namespace {

/* Every allocation; the device's memory can be touched while a stream's work runs only. */
std::map<char *, size_t> allocations, host_allocations;
std::vector<cudaStream_t> streams;
int working;
bool reachable; /* device memory, by a piece of work that runs */

size_t environment(const char *name, size_t otherwise)
{
    const char *text = getenv(name);
    return text == nullptr ? otherwise : (size_t)strtoull(text, nullptr, 10);
}

size_t total_bytes()
{
    return environment("ETH_HPP_EMULATED_BYTES", (size_t)1 << 30);
}

size_t left_bytes()
{
    size_t left = total_bytes();
    for (const auto &one : allocations)
        left -= one.second;
    return left;
}

/* How many pieces of work a device that nobody watches does until the next question: none or some,
 * in an order that the seed chooses (Park and Miller 1988). */
size_t pieces_meanwhile()
{
    static uint64_t state = environment("ETH_HPP_EMULATED_ORDER", 1);
    state = state * 48271 % 2147483647;
    return state % 32;
}

/* The address sanitizer is to see what reaches beyond the end, too. */
void forbid(char *memory, size_t size)
{
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(memory, size);
#else
    (void)memory;
    (void)size;
#endif
}

void permit(char *memory, size_t size)
{
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(memory, size);
#else
    (void)memory;
    (void)size;
#endif
}

size_t in_pages(size_t size)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size / page + 1) * page;
}

void protect_all(int protection)
{
    for (const auto &one : allocations)
        if (mprotect(one.first, in_pages(one.second), protection) != 0) {
            perror("emulated: mprotect");
            abort();
        }
}

[[noreturn]] void refuse(const char *why)
{
    fprintf(stderr, "emulated: %s\n", why);
    abort();
}

bool lies_in(const std::map<char *, size_t> &all, const void *memory, size_t size)
{
    auto next = all.upper_bound((char *)memory);
    if (next == all.begin())
        return false;
    --next;
    return (char *)memory + size <= next->first + next->second;
}

bool is_device(const void *memory, size_t size)
{
    return lies_in(allocations, memory, size);
}

bool is_page_locked(const void *memory, size_t size)
{
    return lies_in(host_allocations, memory, size);
}

/* Works on the stream until `until` pieces are done, or one has to wait for another process: then
 * false. A piece may itself wait for another stream. */
bool work_on(cudaStream_t stream, uint64_t until)
{
    if (stream == nullptr)
        refuse("work on the default stream, which waits for all others");
    if (stream->done >= until)
        return true;
    working++;
    while (stream->done < until) {
        if (stream->work.empty())
            refuse("streams wait for each other in a circle");
        std::function<bool()> piece = std::move(stream->work.front());
        stream->work.pop_front();
        if (!piece()) {
            stream->work.push_front(std::move(piece));
            break;
        }
        stream->done++;
    }
    if (--working == 0 && reachable) {
        protect_all(PROT_NONE);
        reachable = false;
    }
    return stream->done >= until;
}

/* Waits for them; meanwhile all streams go on. */
void work_off(cudaStream_t stream, uint64_t until)
{
    while (!work_on(stream, until)) {
        for (cudaStream_t other : streams)
            work_on(other, other->issued);
        usleep(100);
    }
}

void work_all_off()
{
    for (cudaStream_t stream : streams)
        work_off(stream, stream->issued);
}

/* Some pieces of a stream's first `until`. */
void work_meanwhile(cudaStream_t stream, uint64_t until)
{
    for (size_t pieces = pieces_meanwhile(); pieces > 0 && stream->done < until; pieces--)
        if (!work_on(stream, stream->done + 1))
            return;
}

} // namespace

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    }
    return "unrecognized error code";
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    if (device != 0)
        return cudaErrorInvalidValue;
    *properties = cudaDeviceProp();
    const char *model = getenv("ETH_HPP_EMULATED_MODEL");
    snprintf(properties->name, sizeof(properties->name), "%s",
             model != nullptr ? model : "emulated GPU");
    for (int i = 0; i < 16; i++) /* GPU-000102... */
        properties->uuid.bytes[i] = (char)i;
    properties->major = (int)environment("ETH_HPP_EMULATED_MAJOR", 8);
    properties->minor = 0;
    properties->multiProcessorCount = (int)environment("ETH_HPP_EMULATED_PROCESSORS", 4);
    properties->totalGlobalMem = total_bytes();
    return cudaSuccess;
}

/* What is written at the start of new memory; a workspace that nobody touches stays cheap. */
constexpr size_t FILLED_BYTES = 4 << 20;

/* A test says when a program has all that it may need. */
static bool may_allocate()
{
    return environment("ETH_HPP_EMULATED_NO_MORE_MEMORY", 0) == 0;
}

/* New memory holds NaNs, whatever it is read as. */
cudaError_t cudaMalloc(void **memory, size_t size)
{
    if (size == 0 || size > left_bytes() || !may_allocate())
        return cudaErrorMemoryAllocation;
    void *made =
        mmap(nullptr, in_pages(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    memset(made, 0xff, std::min(size, FILLED_BYTES));
    forbid((char *)made + size, in_pages(size) - size);
    if (!reachable)
        mprotect(made, in_pages(size), PROT_NONE);
    allocations[(char *)made] = size;
    *memory = made;
    return cudaSuccess;
}

/* The memory may be in use: the device is waited for. */
cudaError_t cudaFree(void *memory)
{
    if (memory == nullptr)
        return cudaSuccess;
    work_all_off();
    const auto found = allocations.find((char *)memory);
    if (found == allocations.end())
        return cudaErrorInvalidValue;
    permit(found->first, in_pages(found->second));
    munmap(memory, in_pages(found->second));
    allocations.erase(found);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **memory, size_t size)
{
    *memory = may_allocate() ? malloc(size) : nullptr;
    if (*memory == nullptr)
        return cudaErrorMemoryAllocation;
    memset(*memory, 0xff, size);
    host_allocations[(char *)*memory] = size;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    work_all_off();
    if (memory != nullptr && host_allocations.erase((char *)memory) == 0)
        return cudaErrorInvalidValue;
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    *left = left_bytes();
    *total = total_bytes();
    return cudaSuccess;
}

bool eth_hpp_emulated_reaches(const void *memory, size_t size)
{
    return is_device(memory, size) || is_page_locked(memory, size);
}

bool eth_hpp_emulated_is_stream(cudaStream_t stream)
{
    return std::find(streams.begin(), streams.end(), stream) != streams.end();
}

void eth_hpp_emulated_reach(void)
{
    if (working == 0)
        refuse("device memory is reached outside of a stream's work");
    if (!reachable)
        protect_all(PROT_READ | PROT_WRITE);
    reachable = true;
}

void eth_hpp_emulated_work_on(void)
{
    for (cudaStream_t stream : streams)
        work_meanwhile(stream, stream->issued);
}

cudaError_t eth_hpp_emulated_enqueue(cudaStream_t stream, std::function<void()> work)
{
    return eth_hpp_emulated_enqueue_until(stream, [work = std::move(work)] {
        eth_hpp_emulated_reach();
        work();
        return true;
    });
}

cudaError_t eth_hpp_emulated_enqueue_until(cudaStream_t stream, std::function<bool()> work)
{
    if (stream == nullptr)
        refuse("work on the default stream, which waits for all others");
    stream->work.push_back(std::move(work));
    stream->issued++;
    return cudaSuccess;
}

cudaError_t eth_hpp_emulated_launch(const cudaLaunchConfig_t *config, std::function<void()> thread)
{
    const dim3 grid = config->gridDim, block = config->blockDim;
    return eth_hpp_emulated_enqueue(config->stream, [grid, block, thread = std::move(thread)] {
        eth_hpp_simt_run(grid, block, thread);
    });
}

/* Pageable host memory is read and written late, too: the real call may wait for it or not. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    if (is_device(to, size) != (kind != cudaMemcpyDeviceToHost) ||
        is_device(from, size) != (kind != cudaMemcpyHostToDevice))
        return cudaErrorInvalidValue;
    return eth_hpp_emulated_enqueue(stream, [=] { memcpy(to, from, size); });
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t size, cudaStream_t stream)
{
    if (!is_device(memory, size))
        return cudaErrorInvalidValue;
    return eth_hpp_emulated_enqueue(stream, [=] { memset(memory, value, size); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    if (flags != cudaStreamNonBlocking)
        return cudaErrorInvalidValue;
    *stream = new eth_hpp_emulated_stream();
    streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    work_off(stream, stream->issued);
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    work_off(stream, stream->issued);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    const cudaStream_t other = event->stream;
    const uint64_t after = event->after;
    if (other == nullptr || other == stream)
        return cudaSuccess;
    return eth_hpp_emulated_enqueue_until(stream, [=] { return work_on(other, after); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    if (flags != cudaEventDefault)
        return cudaErrorInvalidValue;
    *event = new eth_hpp_emulated_event();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    const cudaError_t error = eth_hpp_emulated_enqueue(
        stream, [time = event->time] { *time = std::chrono::steady_clock::now(); });
    event->stream = stream;
    event->after = stream->issued;
    return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (event->stream != nullptr)
        work_off(event->stream, event->after);
    return cudaSuccess;
}

static bool is_done(cudaEvent_t event)
{
    return event->stream == nullptr || event->stream->done >= event->after;
}

/* A device works on by itself. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (!is_done(event))
        eth_hpp_emulated_work_on();
    return is_done(event) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    if (from->stream == nullptr || to->stream == nullptr)
        return cudaErrorInvalidValue;
    if (!is_done(from) || !is_done(to))
        return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(*to->time - *from->time).count();
    return cudaSuccess;
}
