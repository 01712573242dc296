/* The inner loops' parts of a softmax and of gates, in forms that compilers can vectorise, unlike
 * libm's exp and a plain maximum. */
#ifndef ETH_HPP_KERNELS_CPU_SOFTMAX_H
#define ETH_HPP_KERNELS_CPU_SOFTMAX_H

#include <math.h>
#include <stdint.h>

#include "kernels/cpu/cpu.h"

/* x, held between two bounds; a NaN stays one. */
static inline __attribute__((always_inline)) real eth_hpp_cpu_held(real x, real least, real most)
{
    x = x < least ? least : x;
    return x > most ? most : x;
}

#ifdef ETH_HPP_CPU_FLOAT64
static inline double eth_hpp_cpu_exp(double x)
{
    return exp(x);
}

static inline double eth_hpp_cpu_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
#else
/* Below this the result would be subnormal. */
#define ETH_HPP_CPU_EXP_LEAST     (-87.0f)
#define ETH_HPP_CPU_EXP_MOST      88.0f
/* A sigmoid of less is held to that of this, 9e-27: compilers compute the held case for each
 * element and select afterwards, and numbers near the subnormal ones would come out of the
 * products, which take a hundred times as long. */
#define ETH_HPP_CPU_SIGMOID_LEAST (-60.0f)

/* 2^n x exp(r) with |r| <= ln(2)/2, exp(r) by the polynomial of Cephes' expf: within 2 units in the
 * last place, for an x at which the result is a normal number. */
static inline __attribute__((always_inline)) float eth_hpp_cpu_exp_in_range(float x)
{
    union number {
        float real;
        uint32_t bits;
    };
    const float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    /* Adding 1.5 x 2^23 rounds to a whole number, which then stands in the lowest bits. */
    const union number to_whole = {.real = 12582912.0f};
    const union number shifted = {.real = x * log2_e + to_whole.real};
    const float whole = shifted.real - to_whole.real;
    const float r = x - whole * ln2_high - whole * ln2_low;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const union number power = {.bits = (shifted.bits - to_whole.bits + 127) << 23};
    return p * power.real;
}

static inline __attribute__((always_inline)) float eth_hpp_cpu_exp(float x)
{
    return eth_hpp_cpu_exp_in_range(
        eth_hpp_cpu_held(x, ETH_HPP_CPU_EXP_LEAST, ETH_HPP_CPU_EXP_MOST));
}

static inline __attribute__((always_inline)) float eth_hpp_cpu_sigmoid(float x)
{
    return 1 / (1 + eth_hpp_cpu_exp_in_range(
                        eth_hpp_cpu_held(-x, ETH_HPP_CPU_EXP_LEAST, -ETH_HPP_CPU_SIGMOID_LEAST)));
}
#endif

static inline __attribute__((always_inline)) real eth_hpp_cpu_largest(size_t count, const real *x)
{
    enum { LANES = 8 };
    real lanes[LANES];
    for (size_t lane = 0; lane < LANES; lane++)
        lanes[lane] = x[0];
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    real most = lanes[0];
    for (size_t lane = 1; lane < LANES; lane++)
        most = lanes[lane] > most ? lanes[lane] : most;
    for (; i < count; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

#endif
