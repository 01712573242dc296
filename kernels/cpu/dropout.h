/* Dropout's random choice on CPUs. */
#ifndef ETH_HPP_KERNELS_CPU_DROPOUT_H
#define ETH_HPP_KERNELS_CPU_DROPOUT_H

#include "kernels/cpu/cpu.h"

/* In place: the values are elements first .. first + count - 1 of a sample, `sample` counted from
 * the operation's first; `first` is a multiple of 4, of which one random block decides. */
void ETH_HPP_CPU(drop)(const struct eth_hpp_dropout *dropout, size_t sample, size_t first,
                       size_t count, real *values);

#endif
