/* Which elements are dropped, in device code: the same as on the CPU (kernels/cpu/dropout.c). */
#ifndef ETH_HPP_KERNELS_CUDA_DROPOUT_H
#define ETH_HPP_KERNELS_CUDA_DROPOUT_H

#include "kernels/cuda/device.h"
#include "kernels/random.h"

namespace eth_hpp {

/* Elements are counted in spans of this many, the blocks of four random words of a span being
 * dealt out to elements that lie a quarter of it apart. */
constexpr int SPAN = 64, SPAN_BLOCKS = SPAN / 4;

/* An operation's dropout as kernels read it. */
struct dropping {
    uint32_t key[2];
    uint32_t place; /* layer and operation */
    uint32_t threshold;
    float kept; /* what others are multiplied by */
    uint64_t first_sample;
};

/* No dropout: NULL. */
inline dropping dropping_of(const struct eth_hpp_dropout *dropout)
{
    dropping d = {};
    d.kept = 1;
    if (dropout == nullptr)
        return d;
    /* Keeps the streams of dropout apart from those of the initial weights. */
    const uint32_t domain = 0x80000000u;
    d.key[0] = (uint32_t)dropout->seed;
    d.key[1] = (uint32_t)(dropout->seed >> 32) ^ (uint32_t)dropout->step ^ domain;
    d.place = (uint32_t)dropout->layer << 16 | (uint32_t)dropout->operation << 8;
    d.threshold = (uint32_t)(dropout->rate * 4294967296.0);
    d.kept = (float)(1 / (1 - dropout->rate));
    d.first_sample = (uint64_t)dropout->first_sample;
    return d;
}

/* The random words of four elements: those at `block % SPAN_BLOCKS` of each quarter of the span. */
__device__ __forceinline__ void draw(const dropping &d, size_t sample, uint64_t block,
                                     uint32_t words[4])
{
    const uint64_t number = d.first_sample + sample;
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32 & 0xff) | d.place,
                                 (uint32_t)number, (uint32_t)(number >> 32)};
    eth_hpp_random_philox(counter, d.key, words);
}

/* What an element of a sample is multiplied by. */
__device__ __forceinline__ float drop_factor(const dropping &d, size_t sample, uint64_t element)
{
    uint32_t words[4];
    if (d.threshold == 0)
        return 1;
    const unsigned in_span = (unsigned)(element % SPAN);
    draw(d, sample, element / SPAN * SPAN_BLOCKS + in_span % SPAN_BLOCKS, words);
    /* No index, which would put the words into memory. */
    const uint32_t low = in_span < 2 * SPAN_BLOCKS ? words[0] : words[2];
    const uint32_t high = in_span < 2 * SPAN_BLOCKS ? words[1] : words[3];
    return (in_span / SPAN_BLOCKS % 2 == 0 ? low : high) < d.threshold ? 0 : d.kept;
}

} // namespace eth_hpp

#endif
