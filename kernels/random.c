#include "kernels/random.h"

#include "kernels/random_inline.h"

void eth_hpp_random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t output[4])
{
    eth_hpp_philox(counter, key, output);
}

double eth_hpp_random_quantile(double probability)
{
    return eth_hpp_quantile(probability);
}

void eth_hpp_random_normal4(uint64_t seed, uint64_t tensor, uint64_t block, double normal[4])
{
    eth_hpp_normal4(seed, tensor, block, normal);
}
