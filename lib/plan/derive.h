/* A profile where nothing is measured: layer times from datasheets. */
#ifndef ETH_HPP_PLAN_DERIVE_H
#define ETH_HPP_PLAN_DERIVE_H

#include "model/model.h"
#include "plan/cluster.h"
#include "plan/profile.h"

struct eth_hpp_derive_options {
    int sequence_length;
    enum eth_hpp_dtype dtype;
    double emulated_time_scale; /* > 0: times of emulated devices (FORMATS: 1e-4 s + time_scale x
                                   k x FLOPs / (0.45 x half peak)) instead of real ones */
};

/* bf16 where every device computes it, else fp16 where every device has a half-precision peak, else
 * fp32. */
enum eth_hpp_dtype eth_hpp_derive_dtype(const struct eth_hpp_cluster *cluster);

/* Layer kinds, sizes, tied tensor and memory of a model, without any times. *profile is freed by
 * the caller. Errors: INPUT (the sequence is longer than the model's context), MEMORY. */
enum eth_hpp_status eth_hpp_derive_layers(const struct eth_hpp_model *model, int sequence_length,
                                          enum eth_hpp_dtype dtype, struct eth_hpp_profile *profile,
                                          struct eth_hpp_error *err);

/* The same with estimated times of every device of the cluster, tensor parallelism 1:
 * forward 50e-6 s + FLOPs / (0.45 x dense peak of the dtype), backward twice that; the optimizer is
 * bound by memory (28 bytes read and written a parameter at 0.8 of the bandwidth; nothing for a
 * device whose bandwidth is not known). Errors: INPUT (a device without a known peak), MEMORY. */
enum eth_hpp_status eth_hpp_derive_profile(const struct eth_hpp_model *model,
                                           const struct eth_hpp_cluster *cluster,
                                           const struct eth_hpp_derive_options *options,
                                           struct eth_hpp_profile *profile,
                                           struct eth_hpp_error *err);

#endif
