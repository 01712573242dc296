/* Numbers as a dtype has them, on the host. */
#ifndef ETH_HPP_TESTS_DEVICE_VALUES_H
#define ETH_HPP_TESTS_DEVICE_VALUES_H

#include <stddef.h>

#include "base/dtype.h"

/* Writes numbers as elements of the dtype, rounded to nearest, and back into the numbers what was
 * written. */
void device_values_pack(enum eth_hpp_dtype dtype, size_t count, double *numbers, void *elements);

void device_values_unpack(enum eth_hpp_dtype dtype, size_t count, const void *elements,
                          double *numbers);

/* Half the distance from 1 to the next number. */
double device_values_rounding(enum eth_hpp_dtype dtype);

#endif
