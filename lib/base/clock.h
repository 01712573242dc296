/* The one clock that durations and deadlines are measured on. */
#ifndef ETH_HPP_BASE_CLOCK_H
#define ETH_HPP_BASE_CLOCK_H

/* Seconds of the monotonic clock: it never jumps, and means nothing on another node. */
double eth_hpp_clock_now(void);

#endif
