#include "kernels/cuda/dropout.h"

namespace eth_hpp {

/* A thread takes the four elements of a block of random words. */
template <typename T>
__global__ void dropout_kernel(dropping d, size_t samples, size_t count, T *values)
{
    const size_t blocks = (count + SPAN - 1) / SPAN * SPAN_BLOCKS;
    for (size_t i = grid_first(); i < samples * blocks; i += grid_stride()) {
        const size_t sample = i / blocks, block = i % blocks;
        const size_t first = block / SPAN_BLOCKS * SPAN + block % SPAN_BLOCKS;
        uint32_t words[4];
        draw(d, sample, block, words);
        for (int word = 0; word < 4; word++) {
            const size_t element = first + (size_t)word * SPAN_BLOCKS;
            if (element >= count)
                break;
            T *value = &values[sample * count + element];
            store(value, words[word] < d.threshold ? 0 : to_float(*value) * d.kept);
        }
    }
}

static void dropout(void *at, const struct eth_hpp_dropout *dropout, size_t samples, size_t count,
                    void *values)
{
    cuda *state = static_cast<cuda *>(at);
    with_value(state, [=](auto value) {
        using T = decltype(value);
        launch(state, "dropout", dropout_kernel<T>,
               blocks_for(state, divide_up(samples * count, 4), THREADS), THREADS,
               dropping_of(dropout), samples, count, (T *)values);
    });
}

void dropout_provide(struct eth_hpp_kernels_ops *ops)
{
    ops->dropout = dropout;
}

} // namespace eth_hpp
