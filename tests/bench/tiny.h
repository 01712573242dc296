/* Random tiny instances: few GPUs, layers and samples, but everything that a plan depends on. */
#ifndef ETH_HPP_TESTS_TINY_H
#define ETH_HPP_TESTS_TINY_H

#include "plan/profile.h"

struct tiny {
    struct eth_hpp_cluster cluster;
    struct eth_hpp_profile profile;
    int global_batch;
};

/* Makes the instance of a seed: at most `gpus` (2 to 6) GPUs of up to three kinds on up to three
 * nodes, `layers` (1 to 8) layers and `batch` samples. Freed with tiny_close. False with a message
 * in err where the texts are refused. */
bool tiny_open(struct tiny *tiny, unsigned seed, int gpus, int layers, int batch,
               struct eth_hpp_error *err);
void tiny_close(struct tiny *tiny);

#endif
