/* What tests of the transport over NCCL have in common: ranks with emulated GPUs. */
#ifndef ETH_HPP_UNIT_NCCL_RANKS_H
#define ETH_HPP_UNIT_NCCL_RANKS_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm_ranks.h"
#include "kernels/kernels.h"

struct device {
    int rank;
    struct eth_hpp_kernels *kernels;
    struct eth_hpp_comm *control; /* until it is reached */
    struct eth_hpp_comm *comm;
    void *memory[32]; /* allocated */
    int memory_count;
};

/* All but reaching it. */
static struct device device_make(struct eth_hpp_bootstrap *bootstrap)
{
    struct device device = {.rank = eth_hpp_bootstrap_get_place(bootstrap)->rank};
    struct eth_hpp_error err = {0};
    device.control = open_comm(bootstrap);
    RANK_CHECK(eth_hpp_kernels_create("cuda", ETH_HPP_FP32, &device.kernels, &err) == ETH_HPP_OK,
               "%s", err.text);
    return device;
}

static enum eth_hpp_status device_reach(struct device *device, struct eth_hpp_bootstrap *bootstrap,
                                        const struct eth_hpp_comm_layout *layout,
                                        struct eth_hpp_error *err)
{
    return eth_hpp_comm_reach_device(device->control, device->kernels,
                                     eth_hpp_bootstrap_get_place(bootstrap), layout, 20,
                                     &device->comm, err);
}

static inline struct device device_open(struct eth_hpp_bootstrap *bootstrap,
                                        const struct eth_hpp_comm_layout *layout)
{
    struct device device = device_make(bootstrap);
    struct eth_hpp_error err = {0};
    RANK_CHECK(device_reach(&device, bootstrap, layout, &err) == ETH_HPP_OK, "%s", err.text);
    RANK_CHECK(strcmp(eth_hpp_comm_name(device.comm), "nccl") == 0);
    return device;
}

/* New memory with these bytes, written by the compute stream when it gets to it: it has other
 * things to do first. */
static inline void *device_put(struct device *device, const void *host, size_t size)
{
    const struct eth_hpp_kernels *kernels = device->kernels;
    void *memory = NULL;
    RANK_CHECK(device->memory_count < 32);
    RANK_CHECK(kernels->ops->allocate(kernels->state, size, &memory, NULL) == ETH_HPP_OK);
    for (int i = 0; i < 100; i++)
        kernels->ops->zero(kernels->state, memory, 1);
    RANK_CHECK(kernels->ops->to_device(kernels->state, memory, host, size, NULL) == ETH_HPP_OK);
    RANK_CHECK(eth_hpp_comm_register_memory(device->comm, memory, size, NULL) == ETH_HPP_OK);
    device->memory[device->memory_count++] = memory;
    return memory;
}

/* What the compute stream finds there behind the request. The question lets all streams of the
 * emulated device go on a bit, others than the compute stream perhaps further than they may. */
static inline void device_take(struct device *device, struct eth_hpp_request **request, void *host,
                               const void *memory, size_t size)
{
    const struct eth_hpp_kernels *kernels = device->kernels;
    struct eth_hpp_error err = {0};
    eth_hpp_comm_test(device->comm, *request);
    RANK_CHECK(eth_hpp_comm_join(device->comm, request, 20, &err) == ETH_HPP_OK, "%s", err.text);
    RANK_CHECK(kernels->ops->to_host(kernels->state, host, memory, size, &err) == ETH_HPP_OK, "%s",
               err.text);
    if (*request != NULL)
        finish(device->comm, *request);
}

static inline void device_close(struct device *device, struct eth_hpp_bootstrap *bootstrap)
{
    const struct eth_hpp_kernels *kernels = device->kernels;
    eth_hpp_comm_close(device->comm);
    for (int i = 0; i < device->memory_count; i++)
        kernels->ops->release(kernels->state, device->memory[i]);
    eth_hpp_kernels_destroy(device->kernels);
    eth_hpp_bootstrap_close(bootstrap);
}

#endif
