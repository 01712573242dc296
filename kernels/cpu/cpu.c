#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <stdlib.h>

/* OpenBLAS keeps one setting for the process. */
static enum eth_hpp_status set_threads(struct eth_hpp_error *err)
{
    const char *text = getenv("ETH_HPP_CPU_THREADS");
    long threads = 1;
    if (text != NULL && *text != '\0') {
        char *end;
        errno = 0;
        threads = strtol(text, &end, 10);
        if (errno != 0 || *end != '\0' || threads < 1 || threads > 1024)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                     "ETH_HPP_CPU_THREADS must be a number in 1..1024, is \"%s\"",
                                     text);
    }
    openblas_set_num_threads((int)threads);
    return ETH_HPP_OK;
}

enum eth_hpp_status ETH_HPP_CPU(create)(struct eth_hpp_kernels **kernels, struct eth_hpp_error *err)
{
    static struct eth_hpp_kernels_ops ops;
    enum eth_hpp_status status = set_threads(err);
    if (status != ETH_HPP_OK)
        return status;
    struct eth_hpp_kernels *made = malloc(sizeof(*made));
    if (made == NULL)
        return eth_hpp_error_memory(err, "the CPU kernels");
    ETH_HPP_CPU(memory_provide)(&ops);
    ETH_HPP_CPU(embedding_provide)(&ops);
    ETH_HPP_CPU(layernorm_provide)(&ops);
    ETH_HPP_CPU(linear_provide)(&ops);
    ETH_HPP_CPU(attention_provide)(&ops);
    ETH_HPP_CPU(elementwise_provide)(&ops);
    ETH_HPP_CPU(cross_entropy_provide)(&ops);
    ETH_HPP_CPU(optimizer_provide)(&ops);
    ETH_HPP_CPU(initialise_provide)(&ops);
    *made = (struct eth_hpp_kernels){
        .name = "cpu", .ops = &ops, .value_bytes = sizeof(real), .sum_bytes = sizeof(real)};
    *kernels = made;
    return ETH_HPP_OK;
}
