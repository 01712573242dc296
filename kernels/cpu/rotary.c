#include <math.h>

#include "kernels/cpu/cpu.h"

struct rotary {
    const struct eth_hpp_rotary *shape;
    real *values;
};

/* Turns pair i of all heads at one position of all samples. */
static void turn_pair(const struct rotary *at, size_t position, size_t i, real cosine, real sine)
{
    const struct eth_hpp_rotary *shape = at->shape;
    const size_t half = shape->head_size / 2;
    for (size_t row = position; row < shape->rows; row += shape->sequence)
        for (size_t head = 0; head < shape->heads; head++) {
            real *pair = at->values + row * shape->stride + head * shape->head_size + i;
            const real first = pair[0], second = pair[half];
            pair[0] = first * cosine - second * sine;
            pair[half] = second * cosine + first * sine;
        }
}

static void turn_positions(const void *work, size_t begin, size_t end)
{
    const struct rotary *at = work;
    const size_t half = at->shape->head_size / 2;
    const double slower = pow(at->shape->theta, -1 / (double)half);
    for (size_t position = begin; position < end; position++) {
        double frequency = at->shape->back ? -1 : 1;
        for (size_t i = 0; i < half; i++, frequency *= slower) {
            const double angle = (double)position * frequency;
            turn_pair(at, position, i, (real)cos(angle), (real)sin(angle));
        }
    }
}

static void rotary(void *state, const struct eth_hpp_rotary *shape, void *values)
{
    const struct rotary at = {shape, values};
    const size_t samples = shape->rows / shape->sequence;
    eth_hpp_cpu_threads_run(state, shape->sequence,
                            eth_hpp_cpu_rows(samples * shape->heads * shape->head_size),
                            turn_positions, &at);
}

void ETH_HPP_CPU(rotary_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->rotary = rotary;
}
