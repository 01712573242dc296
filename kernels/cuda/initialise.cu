#include "kernels/cuda/device.h"
#include "kernels/random.h"

namespace eth_hpp {

/* A thread makes four numbers at a time. */
__global__ void random_normal_kernel(size_t count, uint64_t seed, uint64_t tensor, double deviation,
                                     float *weights)
{
    const size_t blocks = (count + 3) / 4;
    for (size_t block = grid_first(); block < blocks; block += grid_stride()) {
        double normal[4];
        eth_hpp_random_normal4(seed, tensor, block, normal);
        for (size_t i = 0; i < 4 && block * 4 + i < count; i++)
            weights[block * 4 + i] = (float)(normal[i] * deviation);
    }
}

__global__ void fill_kernel(size_t count, float number, float *weights)
{
    for (size_t i = grid_first(); i < count; i += grid_stride())
        weights[i] = number;
}

static void random_normal(void *at, size_t count, uint64_t seed, uint64_t tensor, double deviation,
                          void *weights)
{
    cuda *state = static_cast<cuda *>(at);
    launch(state, "random_normal", random_normal_kernel,
           blocks_for(state, divide_up(count, 4), THREADS), THREADS, count, seed, tensor, deviation,
           (float *)weights);
}

static void fill(void *at, size_t count, double number, void *weights)
{
    cuda *state = static_cast<cuda *>(at);
    launch(state, "fill", fill_kernel, blocks_for(state, count, THREADS), THREADS, count,
           (float)number, (float *)weights);
}

void initialise_provide(struct eth_hpp_kernels_ops *ops)
{
    ops->random_normal = random_normal;
    ops->fill = fill;
}

} // namespace eth_hpp
