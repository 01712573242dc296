#include "runtime/emulation.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "inventory/device_db.h"

#define LAYER_S    1e-4 /* of one layer, whatever it computes; FORMATS "Emulated devices" */
#define EFFICIENCY 0.45 /* of the dense peak */

double eth_hpp_emulator_forward_s(const struct eth_hpp_emulator *emulator, int samples,
                                  double flops)
{
    return LAYER_S + emulator->time_scale * samples * flops /
                         (EFFICIENCY * emulator->half_flops * emulator->speed);
}

void eth_hpp_emulator_stretch(struct eth_hpp_emulator *emulator, double start, double duration)
{
    double end = start + duration, left = end - eth_hpp_clock_now();
    if (left < 0) {
        emulator->late_s -= left;
        return;
    }
    struct timespec until = {.tv_sec = (time_t)end};
    until.tv_nsec = (long)((end - (double)until.tv_sec) * 1e9);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

static enum eth_hpp_status parse(const char *text, struct eth_hpp_emulator *emulator,
                                 struct eth_hpp_error *err)
{
    char device[96];
    double speed, time_scale;
    int end = 0;
    if (sscanf(text, "%95[^:]:%lf:%lf%n", device, &speed, &time_scale, &end) != 3 ||
        text[end] != '\0' || !isfinite(speed) || !isfinite(time_scale) || speed <= 0 ||
        time_scale <= 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "ETH_HPP_EMULATION: must be DEVICE:SPEED:TIME_SCALE with both "
                                 "numbers above 0, is \"%s\"",
                                 text);
    const struct eth_hpp_device_spec *spec = eth_hpp_device_db_find(device);
    if (spec == NULL || spec->half_flops <= 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "ETH_HPP_EMULATION: no device \"%s\" is known", device);
    *emulator = (struct eth_hpp_emulator){
        .half_flops = spec->half_flops, .speed = speed, .time_scale = time_scale};
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_emulator_from_environment(struct eth_hpp_emulator *emulator,
                                                      struct eth_hpp_error *err)
{
    const char *text = getenv("ETH_HPP_EMULATION");
    if (text != NULL && *text != '\0')
        return parse(text, emulator, err);
    *emulator = (struct eth_hpp_emulator){.half_flops = 0};
    return ETH_HPP_OK;
}
