#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

static enum eth_hpp_status memory_allocate(void *state, size_t bytes, void **memory,
                                           struct eth_hpp_error *err)
{
    (void)state;
    const size_t alignment = 64;
    if (bytes > SIZE_MAX - alignment)
        return eth_hpp_error_memory(err, "a tensor");
    /* aligned_alloc wants a multiple of the alignment; an empty tensor still gets an address */
    void *allocated = aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
    if (allocated == NULL)
        return eth_hpp_error_memory(err, "a tensor");
    *memory = allocated;
    return ETH_HPP_OK;
}

static void memory_release(void *state, void *memory)
{
    (void)state;
    free(memory);
}

static enum eth_hpp_status memory_transfer(void *state, void *to, const void *from, size_t bytes,
                                           struct eth_hpp_error *err)
{
    (void)state;
    (void)err;
    memcpy(to, from, bytes);
    return ETH_HPP_OK;
}

static void memory_copy(void *state, void *to, const void *from, size_t bytes)
{
    (void)state;
    memcpy(to, from, bytes);
}

static void memory_zero(void *state, void *memory, size_t bytes)
{
    (void)state;
    memset(memory, 0, bytes);
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
    ops->to_device = memory_transfer;
    ops->to_host = memory_transfer;
    ops->copy = memory_copy;
    ops->zero = memory_zero;
    ops->synchronize = memory_synchronize;
}
