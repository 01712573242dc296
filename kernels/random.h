/*
 * Counter-based random numbers: a number depends on its key and its position alone, so every owner
 * of a tensor, every plan and every replay sees the same ones. Plain integer arithmetic and
 * correctly rounded double steps only (no libm), so the bits are the same on every machine.
 */
#ifndef ETH_HPP_KERNELS_RANDOM_H
#define ETH_HPP_KERNELS_RANDOM_H

#include <stdint.h>

/* Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11). */
void eth_hpp_random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t output[4]);

/* The standard normal number at this cumulative probability, strictly between 0 and 1: Wichura's
 * algorithm AS 241 (PPND16), about 16 digits. */
double eth_hpp_random_quantile(double probability);

/* Four standard normal numbers: those of `block` in the stream that seed and tensor name. Each
 * comes from 32 random bits, so they lie within +-6.4. */
void eth_hpp_random_normal4(uint64_t seed, uint64_t tensor, uint64_t block, double normal[4]);

#endif
