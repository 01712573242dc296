/* EMULATED: bfloat16 as far as the GPU module uses it: storage, and conversion to and from float.
 */
#ifndef ETH_HPP_EMULATED_CUDA_BF16_H
#define ETH_HPP_EMULATED_CUDA_BF16_H

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
    uint16_t bits;
};

/* Rounds to nearest, ties to even; a NaN stays one. */
inline __nv_bfloat16 __float2bfloat16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return {0x7fff};
    return {(uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}

inline float __bfloat162float(__nv_bfloat16 x)
{
    const uint32_t bits = (uint32_t)x.bits << 16;
    float number;
    memcpy(&number, &bits, sizeof(number));
    return number;
}

#endif
