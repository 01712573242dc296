#include "kernels/cpu/cpu.h"
#include "kernels/random.h"

static void random_normal(void *state, size_t count, uint64_t seed, uint64_t tensor,
                          double deviation, void *weights)
{
    (void)state;
    real *w = weights;
    for (size_t i = 0; i < count; i += 4) {
        double normal[4];
        eth_hpp_random_normal4(seed, tensor, i / 4, normal);
        for (size_t lane = 0; lane < 4 && i + lane < count; lane++)
            w[i + lane] = (real)(normal[lane] * deviation);
    }
}

static void fill(void *state, size_t count, double number, void *weights)
{
    (void)state;
    real *w = weights;
    for (size_t i = 0; i < count; i++)
        w[i] = (real)number;
}

void ETH_HPP_CPU(initialise_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->random_normal = random_normal;
    ops->fill = fill;
}
