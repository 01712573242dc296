/*
 * Emulated devices, for demonstrations and tests without GPUs: the CPU does the real arithmetic of
 * a small model, and every layer is stretched to the time that the emulated device would take at
 * `time_scale`. Only time is emulated; whatever shows an emulated figure says so.
 */
#ifndef ETH_HPP_RUNTIME_EMULATION_H
#define ETH_HPP_RUNTIME_EMULATION_H

#include "base/error.h"

struct eth_hpp_emulator {
    double half_flops; /* dense peak of the emulated device; 0: nothing is emulated */
    double speed, time_scale;
    double late_s; /* total by which real arithmetic outlasted the emulated time */
};

/* Emulated forward seconds of one layer on k samples: 1e-4 + time_scale x k x flops / (0.45 x
 * half_flops x speed), where flops is the layer's forward FLOPs for one sample. A backward takes
 * twice that. */
double eth_hpp_emulator_forward_s(const struct eth_hpp_emulator *emulator, int samples,
                                  double flops);

/* Sleeps until start + duration, a sub-millisecond rest included; adds to late_s if that has passed
 * already. */
void eth_hpp_emulator_stretch(struct eth_hpp_emulator *emulator, double start, double duration);

/* From ETH_HPP_EMULATION ("DEVICE:SPEED:TIME_SCALE", set by `eth-hpp launch`); unset: half_flops 0.
 * Errors: INPUT. */
enum eth_hpp_status eth_hpp_emulator_from_environment(struct eth_hpp_emulator *emulator,
                                                      struct eth_hpp_error *err);

#endif
