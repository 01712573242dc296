/* The part of AdamW's arithmetic that is done on the host, for every kind of device alike. */
#ifndef ETH_HPP_KERNELS_ADAMW_H
#define ETH_HPP_KERNELS_ADAMW_H

#include <stdint.h>

/* 1 / (1 - beta^step), which takes the bias off a moment after so many steps. The power is found by
 * squaring: the same bits everywhere, which the C libraries' pow does not promise. */
static inline double eth_hpp_adamw_unbias(double beta, int64_t step)
{
    double power = 1;
    for (; step > 0; step >>= 1) {
        if (step & 1)
            power *= beta;
        beta *= beta;
    }
    return 1 / (1 - power);
}

#endif
