#include "kernels/cpu/cpu.h"

#include <stdlib.h>

#include "kernels/cpu/gemm.h"

static void destroy(struct eth_hpp_kernels *kernels)
{
    eth_hpp_cpu_threads_stop(kernels->state);
    free(kernels);
}

enum eth_hpp_status ETH_HPP_CPU(create)(struct eth_hpp_kernels **kernels, struct eth_hpp_error *err)
{
    static struct eth_hpp_kernels_ops ops;
    struct eth_hpp_cpu_threads *threads = NULL;
    int count;
    enum eth_hpp_status status = ETH_HPP_CPU(gemm_open)(err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_cpu_threads_count(&count, err);
    if (status == ETH_HPP_OK && count > 1)
        status = eth_hpp_cpu_threads_start(count, &threads, err);
    if (status != ETH_HPP_OK)
        return status;
    struct eth_hpp_kernels *made = malloc(sizeof(*made));
    if (made == NULL) {
        eth_hpp_cpu_threads_stop(threads);
        return eth_hpp_error_memory(err, "the CPU kernels");
    }
    ETH_HPP_CPU(memory_provide)(&ops);
    ETH_HPP_CPU(streams_provide)(&ops);
    ETH_HPP_CPU(embedding_provide)(&ops);
    ETH_HPP_CPU(layernorm_provide)(&ops);
    ETH_HPP_CPU(linear_provide)(&ops);
    ETH_HPP_CPU(attention_provide)(&ops);
    ETH_HPP_CPU(dropout_provide)(&ops);
    ETH_HPP_CPU(elementwise_provide)(&ops);
    ETH_HPP_CPU(swiglu_provide)(&ops);
    ETH_HPP_CPU(rotary_provide)(&ops);
    ETH_HPP_CPU(cross_entropy_provide)(&ops);
    ETH_HPP_CPU(optimizer_provide)(&ops);
    ETH_HPP_CPU(initialise_provide)(&ops);
    *made = (struct eth_hpp_kernels){.name = "cpu",
                                     .ops = &ops,
                                     .state = threads,
                                     .value_bytes = sizeof(real),
                                     .sum_bytes = sizeof(real),
                                     .host_memory = true,
                                     .destroy = destroy};
    *kernels = made;
    return ETH_HPP_OK;
}
