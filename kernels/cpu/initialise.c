#include "kernels/cpu/cpu.h"
#include "kernels/random.h"

struct initialise {
    uint64_t seed, tensor;
    double number; /* the deviation, or what to fill with */
    real *weights;
};

/* Blocks of four numbers lie within a chunk, whose length is a multiple of 4. */
static void random_part(const void *work, size_t first, size_t end)
{
    const struct initialise *at = work;
    for (size_t i = first; i < end; i += 4) {
        double normal[4];
        eth_hpp_random_normal4(at->seed, at->tensor, i / 4, normal);
        for (size_t lane = 0; lane < 4 && i + lane < end; lane++)
            at->weights[i + lane] = (real)(normal[lane] * at->number);
    }
}

static void fill_part(const void *work, size_t first, size_t end)
{
    const struct initialise *at = work;
    for (size_t i = first; i < end; i++)
        at->weights[i] = (real)at->number;
}

static void random_normal(void *state, size_t count, uint64_t seed, uint64_t tensor,
                          double deviation, void *weights)
{
    const struct initialise at = {seed, tensor, deviation, weights};
    eth_hpp_cpu_threads_run(state, count, ETH_HPP_CPU_ELEMENTS, random_part, &at);
}

static void fill(void *state, size_t count, double number, void *weights)
{
    const struct initialise at = {.number = number, .weights = weights};
    eth_hpp_cpu_threads_run(state, count, ETH_HPP_CPU_ELEMENTS, fill_part, &at);
}

void ETH_HPP_CPU(initialise_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->random_normal = random_normal;
    ops->fill = fill;
}
