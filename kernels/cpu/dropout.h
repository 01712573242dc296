/* Dropout's random choice on CPUs. */
#ifndef ETH_HPP_KERNELS_CPU_DROPOUT_H
#define ETH_HPP_KERNELS_CPU_DROPOUT_H

#include "kernels/cpu/cpu.h"

/* Element i of a span is decided by word i / 16 of the random block i % 16 of its blocks, so that
 * vectors of either lie side by side. */
enum { ETH_HPP_CPU_SPAN = 64 };

/* In place: the values are elements first .. first + count - 1 of a sample, `sample` counted from
 * the operation's first; `first` is a multiple of ETH_HPP_CPU_SPAN, whose random numbers are made
 * together. */
void ETH_HPP_CPU(drop)(const struct eth_hpp_dropout *dropout, size_t sample, size_t first,
                       size_t count, real *values);

#endif
