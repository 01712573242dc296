/* The order of a stage's forwards and backwards, from which instruction lists are made. */
#ifndef ETH_HPP_PLAN_SCHEDULE_H
#define ETH_HPP_PLAN_SCHEDULE_H

#include <stdbool.h>

/* One forward or backward of a micro-batch. */
struct eth_hpp_compute {
    bool backward;
    int micro_batch;
};

/* Entry i of the 2 x micro_batches entries of 1F1B with in_flight <= micro_batches: in_flight - 1
 * warm-up forwards, then one forward and one backward in turn, then the rest of the backwards. With
 * in_flight equal to micro_batches this is GPipe. */
static inline struct eth_hpp_compute eth_hpp_schedule_at(int micro_batches, int in_flight, int i)
{
    int warm_up = in_flight - 1, turns = micro_batches - warm_up;
    int j = i - warm_up;
    if (j < 0)
        return (struct eth_hpp_compute){false, i};
    if (j >= 2 * turns)
        return (struct eth_hpp_compute){true, j - turns};
    return j % 2 == 0 ? (struct eth_hpp_compute){false, warm_up + j / 2}
                      : (struct eth_hpp_compute){true, j / 2};
}

#endif
