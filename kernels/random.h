/*
 * Counter-based random numbers: a number depends on its key and its position alone, so every owner
 * of a tensor, every plan and every replay sees the same ones. Plain integer arithmetic and
 * correctly rounded double steps only (no libm), compiled without contraction, so the bits are the
 * same on every machine. Inline, for CUDA's device code uses them, too.
 */
#ifndef ETH_HPP_KERNELS_RANDOM_H
#define ETH_HPP_KERNELS_RANDOM_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define ETH_HPP_ANYWHERE __host__ __device__
#else
#define ETH_HPP_ANYWHERE
#endif

/* Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11). */
static ETH_HPP_ANYWHERE inline void eth_hpp_random_philox(const uint32_t counter[4],
                                                          const uint32_t key[2], uint32_t output[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t product0 = (uint64_t)0xD2511F53u * c0;
        const uint64_t product1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    output[0] = c0;
    output[1] = c1;
    output[2] = c2;
    output[3] = c3;
}

/* ln(x) for 0 < x < 1 without libm: x = m 2^e with m in [1/sqrt(2), sqrt(2)), and ln(m) =
 * 2 atanh((m - 1) / (m + 1)), whose series has converged after 11 terms. */
static ETH_HPP_ANYWHERE inline double eth_hpp_random_logarithm(double x)
{
    int exponent;
    double m = frexp(x, &exponent);
    if (m < 0.70710678118654752440) {
        m *= 2;
        exponent--;
    }
    const double t = (m - 1) / (m + 1), square = t * t;
    double series = 0;
    for (int odd = 23; odd >= 1; odd -= 2)
        series = series * square + 1.0 / odd;
    return exponent * 0.69314718055994530942 + 2 * t * series;
}

/* The quotient of two polynomials of degree 7, lowest coefficients first. */
static ETH_HPP_ANYWHERE inline double eth_hpp_random_quotient(const double above[8],
                                                              const double below[8], double x)
{
    double numerator = 0, denominator = 0;
    for (int i = 7; i >= 0; i--) {
        numerator = numerator * x + above[i];
        denominator = denominator * x + below[i];
    }
    return numerator / denominator;
}

/* The standard normal number at this cumulative probability, strictly between 0 and 1: Wichura's
 * algorithm AS 241 (PPND16), about 16 digits. */
static ETH_HPP_ANYWHERE inline double eth_hpp_random_quantile(double probability)
{
    static const double middle_above[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                                           1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                           4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                           3.3430575583588128105e+4, 2.5090809287301226727e+3};
    static const double middle_below[8] = {1,
                                           4.2313330701600911252e+1,
                                           6.8718700749205790830e+2,
                                           5.3941960214247511077e+3,
                                           2.1213794301586595867e+4,
                                           3.9307895800092710610e+4,
                                           2.8729085735721942674e+4,
                                           5.2264952788528545610e+3};
    static const double tail_above[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                         5.76949722146069140550e0,  3.64784832476320460504e0,
                                         1.27045825245236838258e0,  2.41780725177450611770e-1,
                                         2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static const double tail_below[8] = {1,
                                         2.05319162663775882187e0,
                                         1.67638483018380384940e0,
                                         6.89767334985100004550e-1,
                                         1.48103976427480074590e-1,
                                         1.51986665636164571966e-2,
                                         5.47593808499534494600e-4,
                                         1.05075007164441684324e-9};
    static const double far_above[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                        1.78482653991729133580e0,  2.96560571828504891230e-1,
                                        2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                        2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static const double far_below[8] = {1,
                                        5.99832206555887937690e-1,
                                        1.36929880922735805310e-1,
                                        1.48753612908506148525e-2,
                                        7.86869131145613259100e-4,
                                        1.84631831751005468180e-5,
                                        1.42151175831644588870e-7,
                                        2.04426310338993978564e-15};
    const double q = probability - 0.5;
    if (fabs(q) <= 0.425)
        return q * eth_hpp_random_quotient(middle_above, middle_below, 0.180625 - q * q);
    const double r = sqrt(-eth_hpp_random_logarithm(q < 0 ? probability : 1 - probability));
    const double x = r <= 5 ? eth_hpp_random_quotient(tail_above, tail_below, r - 1.6)
                            : eth_hpp_random_quotient(far_above, far_below, r - 5);
    return q < 0 ? -x : x;
}

/* Four standard normal numbers: those of `block` in the stream that seed and tensor name. Each
 * comes from 32 random bits, so they lie within +-6.4. */
static ETH_HPP_ANYWHERE inline void eth_hpp_random_normal4(uint64_t seed, uint64_t tensor,
                                                           uint64_t block, double normal[4])
{
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)tensor,
                                 (uint32_t)(tensor >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t bits[4];
    eth_hpp_random_philox(counter, key, bits);
    for (int i = 0; i < 4; i++)
        normal[i] = eth_hpp_random_quantile((bits[i] + 0.5) / 4294967296.0);
}

#endif
