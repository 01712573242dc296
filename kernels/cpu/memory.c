#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cpu/cpu.h"

static const size_t HUGE_PAGE = 1 << 21;

static enum eth_hpp_status memory_allocate(void *state, size_t bytes, void **memory,
                                           struct eth_hpp_error *err)
{
    (void)state;
    const size_t alignment = bytes < 2 * HUGE_PAGE ? 64 : HUGE_PAGE;
    if (bytes > SIZE_MAX - alignment)
        return eth_hpp_error_memory(err, "a tensor");
    /* aligned_alloc wants a multiple of the alignment; an empty tensor still gets an address */
    const size_t size = (bytes / alignment + 1) * alignment;
    void *allocated = aligned_alloc(alignment, size);
    if (allocated == NULL)
        return eth_hpp_error_memory(err, "a tensor");
    /* The optimizer walks through all of it. Where there are no huge pages, it is only slower. */
    if (alignment == HUGE_PAGE)
        madvise(allocated, size, MADV_HUGEPAGE);
    *memory = allocated;
    return ETH_HPP_OK;
}

static void memory_release(void *state, void *memory)
{
    (void)state;
    free(memory);
}

/* Each tensor by itself: tools see accesses beyond its end. */
static enum eth_hpp_status memory_reserve(void *state, size_t bytes, struct eth_hpp_error *err)
{
    (void)state;
    (void)bytes;
    (void)err;
    return ETH_HPP_OK;
}

static enum eth_hpp_status memory_transfer(void *state, void *to, const void *from, size_t bytes,
                                           struct eth_hpp_error *err)
{
    (void)state;
    (void)err;
    memcpy(to, from, bytes);
    return ETH_HPP_OK;
}

struct bytes {
    const char *from;
    char *to;
};

enum { BYTES_AT_ONCE = 1 << 20 };

static void copy_part(const void *work, size_t first, size_t end)
{
    const struct bytes *at = work;
    memcpy(at->to + first, at->from + first, end - first);
}

static void zero_part(const void *work, size_t first, size_t end)
{
    const struct bytes *at = work;
    memset(at->to + first, 0, end - first);
}

static void memory_copy(void *state, void *to, const void *from, size_t bytes)
{
    const struct bytes at = {from, to};
    eth_hpp_cpu_threads_run(state, bytes, BYTES_AT_ONCE, copy_part, &at);
}

static void memory_zero(void *state, void *memory, size_t bytes)
{
    const struct bytes at = {.to = memory};
    eth_hpp_cpu_threads_run(state, bytes, BYTES_AT_ONCE, zero_part, &at);
}

static enum eth_hpp_status memory_synchronize(void *state, struct eth_hpp_error *err)
{
    (void)state;
    (void)err;
    return ETH_HPP_OK;
}

void ETH_HPP_CPU(memory_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->allocate = memory_allocate;
    ops->release = memory_release;
    ops->reserve = memory_reserve;
    ops->to_device = memory_transfer;
    ops->to_host = memory_transfer;
    ops->copy = memory_copy;
    ops->zero = memory_zero;
    ops->synchronize = memory_synchronize;
}
