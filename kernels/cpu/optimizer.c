#include <string.h>
#include <tgmath.h>

#include "kernels/adamw.h"
#include "kernels/cpu/cpu.h"

struct adamw_factors {
    real gradient, beta1, rest1, beta2, rest2, unbias1, unbias2, rate, epsilon, decay;
};

static struct adamw_factors factors_of(const struct eth_hpp_adamw *settings)
{
    return (struct adamw_factors){
        .gradient = (real)settings->gradient_scale,
        .beta1 = (real)settings->beta1,
        .rest1 = (real)(1 - settings->beta1),
        .beta2 = (real)settings->beta2,
        .rest2 = (real)(1 - settings->beta2),
        .unbias1 = (real)eth_hpp_adamw_unbias(settings->beta1, settings->step),
        .unbias2 = (real)eth_hpp_adamw_unbias(settings->beta2, settings->step),
        .rate = (real)settings->learning_rate,
        .epsilon = (real)settings->epsilon,
        .decay = (real)settings->weight_decay,
    };
}

/* The order of these steps is part of the interface: other devices follow it, each step rounded to
 * nearest. (This folder is compiled with -ffp-contract=off.) */
ETH_HPP_CPU_CLONES
static void update(size_t count, const struct adamw_factors *by, const real *gradient, real *w,
                   real *m, real *v)
{
    const struct adamw_factors f = *by;
#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        const real g = gradient[i] * f.gradient;
        m[i] = f.beta1 * m[i] + f.rest1 * g;
        v[i] = f.beta2 * v[i] + f.rest2 * (g * g);
        const real root = sqrt(v[i] * f.unbias2);
        w[i] -= f.rate * (m[i] * f.unbias1 / (root + f.epsilon) + f.decay * w[i]);
    }
}

struct adamw {
    struct adamw_factors factors;
    const real *gradient;
    real *weights, *first_moment, *second_moment;
};

static void adamw_part(const void *work, size_t first, size_t end)
{
    const struct adamw *at = work;
    update(end - first, &at->factors, at->gradient + first, at->weights + first,
           at->first_moment + first, at->second_moment + first);
}

static void adamw(void *state, size_t count, const struct eth_hpp_adamw *settings,
                  const void *gradient, void *weights, void *first_moment, void *second_moment)
{
    const struct adamw at = {factors_of(settings), gradient, weights, first_moment, second_moment};
    eth_hpp_cpu_threads_run(state, count, ETH_HPP_CPU_ELEMENTS, adamw_part, &at);
}

/* Eight partial sums whatever the width of the vectors, added up in one order. */
ETH_HPP_CPU_CLONES
static double squares_in_lanes(size_t count, const real *x)
{
    enum { LANES = 8 };
    double lanes[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            lanes[lane] += (double)x[i + lane] * (double)x[i + lane];
    for (; i < count; i++)
        lanes[i % LANES] += (double)x[i] * (double)x[i];
    double total = 0;
    for (size_t lane = 0; lane < LANES; lane++)
        total += lanes[lane];
    return total;
}

/* A long sum is that of up to this many parts. */
enum { SQUARE_PARTS = 1024 };

struct squares {
    size_t chunk;
    const real *sums;
    double *parts;
};

static void squares_part(const void *work, size_t first, size_t end)
{
    const struct squares *at = work;
    at->parts[first / at->chunk] = squares_in_lanes(end - first, at->sums + first);
}

static void sum_of_squares(void *state, size_t count, const void *sums, double *result)
{
    double parts[SQUARE_PARTS] = {0};
    const size_t least = 4 * ETH_HPP_CPU_ELEMENTS, share = count / SQUARE_PARTS + 1;
    const struct squares at = {
        .chunk = share < least ? least : share, .sums = sums, .parts = parts};
    eth_hpp_cpu_threads_run(state, count, at.chunk, squares_part, &at);
    for (size_t i = 0; i * at.chunk < count; i++)
        *result += parts[i];
}

/* Steele, Lea and Flood 2014. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

ETH_HPP_CPU_CLONES
static uint64_t mixed_sum(size_t count, const char *words)
{
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, words + i * sizeof(word), sizeof(word));
        total += mix(word + (i + 1) * UINT64_C(0x9e3779b97f4a7c15));
    }
    return total;
}

static void checksum(void *state, size_t count, const void *words, uint64_t *result)
{
    (void)state;
    *result += mixed_sum(count, words);
}

static void cast(void *state, size_t count, const void *sums, void *values)
{
    (void)state;
    memcpy(values, sums, count * sizeof(real));
}

void ETH_HPP_CPU(optimizer_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->adamw = adamw;
    ops->sum_of_squares = sum_of_squares;
    ops->cast = cast;
    ops->checksum = checksum;
}
