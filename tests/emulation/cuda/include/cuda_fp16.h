/* EMULATED: half precision as far as the GPU module uses it: storage, and conversion to and from
 * float. */
#ifndef ETH_HPP_EMULATED_CUDA_FP16_H
#define ETH_HPP_EMULATED_CUDA_FP16_H

#include <cmath>
#include <cstdint>

struct __half {
    uint16_t bits;
};

/* Rounds to nearest, ties to even (nearbyintf's rounding); too large becomes infinite. */
inline __half __float2half(float x)
{
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const float size = fabsf(x);
    if (std::isnan(x))
        return {0x7fff};
    if (size >= 65520.0f) /* half-way to the first number that there is not */
        return {(uint16_t)(sign | 0x7c00)};
    if (size < 0x1p-14f) /* subnormal: a multiple of 2^-24 */
        return {(uint16_t)(sign | (uint16_t)nearbyintf(size * 0x1p24f))};
    int exponent;
    const float mantissa = frexpf(size, &exponent); /* in [0.5, 1) */
    const int steps = (int)nearbyintf(mantissa * 2048);
    return {(uint16_t)(sign | (uint16_t)(((exponent + 13) << 10) + steps))};
}

inline float __half2float(__half x)
{
    const int exponent = x.bits >> 10 & 31, mantissa = x.bits & 1023;
    const float sign = x.bits & 0x8000 ? -1 : 1;
    if (exponent == 31)
        return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexpf((float)mantissa, -24);
    return sign * ldexpf((float)(1024 + mantissa), exponent - 25);
}

#endif
