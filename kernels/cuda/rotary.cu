#include "kernels/cuda/device.h"

namespace eth_hpp {

constexpr double PI = 3.14159265358979323846;

/* A thread takes one pair of all heads at one position of all samples. Far positions turn the first
 * pairs by many whole turns, which are taken off in double. */
template <typename T>
__global__ void rotary_kernel(struct eth_hpp_rotary shape, double log2_theta, T *values)
{
    const size_t half = shape.head_size / 2;
    for (size_t i = grid_first(); i < shape.sequence * half; i += grid_stride()) {
        const size_t position = i / half, pair = i % half;
        const double slower = exp2(-(double)pair / (double)half * log2_theta);
        const double turns = (double)position * slower / (2 * PI);
        const float half_turns = 2 * (float)(turns - rint(turns));
        const float cosine = cospif(half_turns);
        const float sine = shape.back ? -sinpif(half_turns) : sinpif(half_turns);
        for (size_t row = position; row < shape.rows; row += shape.sequence)
            for (size_t head = 0; head < shape.heads; head++) {
                T *at = values + row * shape.stride + head * shape.head_size + pair;
                const float first = to_float(at[0]), second = to_float(at[half]);
                store(&at[0], first * cosine - second * sine);
                store(&at[half], second * cosine + first * sine);
            }
    }
}

static void rotary(void *at, const struct eth_hpp_rotary *shape, void *values)
{
    cuda *state = static_cast<cuda *>(at);
    const struct eth_hpp_rotary by = *shape;
    with_value(state, [=](auto value) {
        using T = decltype(value);
        launch(state, "rotary", rotary_kernel<T>,
               blocks_for(state, by.sequence * by.head_size / 2, THREADS), THREADS, by,
               log2(by.theta), (T *)values);
    });
}

void rotary_provide(struct eth_hpp_kernels_ops *ops)
{
    ops->rotary = rotary;
}

} // namespace eth_hpp
