#include "tests/device/values.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Bits of the mantissa behind the point, and of the smallest normal number's exponent. */
struct format {
    int mantissa, least;
};

static struct format format_of(enum eth_hpp_dtype dtype)
{
    if (dtype == ETH_HPP_BF16)
        return (struct format){7, -126};
    if (dtype == ETH_HPP_FP16)
        return (struct format){10, -14};
    return (struct format){23, -126};
}

double device_values_rounding(enum eth_hpp_dtype dtype)
{
    return ldexp(1, -format_of(dtype).mantissa - 1);
}

/* Rounds to the format's nearest number; none of the checks' numbers is too large for one. */
static double rounded(struct format format, double x)
{
    int exponent;
    frexp(x, &exponent);
    const int place = (exponent - 1 > format.least ? exponent - 1 : format.least) - format.mantissa;
    return ldexp(nearbyint(ldexp(x, -place)), place);
}

static uint16_t half_bits(double x)
{
    int exponent;
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double size = fabs(x), mantissa = frexp(size, &exponent);
    if (size < 0x1p-14)
        return (uint16_t)(sign | (uint16_t)ldexp(size, 24));
    return (uint16_t)(sign | ((exponent + 14) << 10) | ((uint16_t)ldexp(mantissa, 11) & 1023));
}

static double half_number(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 31)
        return mantissa != 0 ? NAN : sign * INFINITY;
    return sign * (exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25));
}

void device_values_pack(enum eth_hpp_dtype dtype, size_t count, double *numbers, void *elements)
{
    const struct format format = format_of(dtype);
    for (size_t i = 0; i < count; i++) {
        numbers[i] = rounded(format, numbers[i]);
        const float single = (float)numbers[i];
        uint32_t bits;
        memcpy(&bits, &single, sizeof(bits));
        if (dtype == ETH_HPP_FP32)
            ((float *)elements)[i] = single;
        else if (dtype == ETH_HPP_BF16)
            ((uint16_t *)elements)[i] = (uint16_t)(bits >> 16);
        else
            ((uint16_t *)elements)[i] = half_bits(numbers[i]);
    }
}

void device_values_unpack(enum eth_hpp_dtype dtype, size_t count, const void *elements,
                          double *numbers)
{
    for (size_t i = 0; i < count; i++) {
        if (dtype == ETH_HPP_FP32) {
            numbers[i] = (double)((const float *)elements)[i];
        } else if (dtype == ETH_HPP_BF16) {
            const uint32_t bits = (uint32_t)((const uint16_t *)elements)[i] << 16;
            float single;
            memcpy(&single, &bits, sizeof(single));
            numbers[i] = (double)single;
        } else {
            numbers[i] = half_number(((const uint16_t *)elements)[i]);
        }
    }
}
