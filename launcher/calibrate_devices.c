/* From the times of each rank to the times of each device. */
#include "launcher/calibrate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAME_KIND 0.05 /* GPUs this close to the median of their kind are one device */

static int order_numbers(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), order_numbers);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Seconds of the whole model, forward and backward, at a point. */
static double model_s(const struct eth_hpp_launch_times *times, int point, int decoders)
{
    double seconds = 0;
    for (int k = 0; k < ETH_HPP_KINDS; k++) {
        const struct eth_hpp_layer_time *layer = &times->times[point][k];
        seconds +=
            (k == ETH_HPP_KIND_DECODER ? decoders : 1) * (layer->forward_s + layer->backward_s);
    }
    return seconds;
}

/* Ranks measure the same points in the same order, but slow ones may stop earlier. */
static int common_points(const struct eth_hpp_launch_times *times,
                         const struct eth_hpp_launch_rank *ranks, int count, const char *device)
{
    int points = 0;
    for (int r = 0; r < count; r++)
        if (times[r].points > 0 && strcmp(ranks[r].device, device) == 0 &&
            (points == 0 || times[r].points < points))
            points = times[r].points;
    return points;
}

static bool is_first_of_device(const struct eth_hpp_launch_times *times,
                               const struct eth_hpp_launch_rank *ranks, int rank)
{
    if (times[rank].points == 0)
        return false;
    for (int r = 0; r < rank; r++)
        if (times[r].points > 0 && strcmp(ranks[r].device, ranks[rank].device) == 0)
            return false;
    return true;
}

/* Names the ranks of one kind; `kind` is a copy, since the ranks' own names change here. */
static void name_kind(const struct eth_hpp_launch_times *times, int decoders, const char *kind,
                      double *costs, struct eth_hpp_launch_rank *ranks, int count)
{
    int point = common_points(times, ranks, count, kind) - 1, members = 0;
    for (int r = 0; r < count; r++)
        if (times[r].points > 0 && strcmp(ranks[r].device, kind) == 0)
            costs[members++] = model_s(&times[r], point, decoders);
    /* Of two the faster one keeps the name. */
    qsort(costs, (size_t)members, sizeof(*costs), order_numbers);
    double middle = costs[(members - 1) / 2];
    for (int r = 0; r < count; r++) {
        if (times[r].points == 0 || strcmp(ranks[r].device, kind) != 0)
            continue;
        double speed = middle / model_s(&times[r], point, decoders);
        if (fabs(speed - 1) > SAME_KIND)
            snprintf(ranks[r].device, sizeof(ranks[r].device), "%.80s~%.2f", kind, speed);
    }
}

enum eth_hpp_status eth_hpp_calibrate_name_devices(const struct eth_hpp_launch_times *times,
                                                   int decoders, struct eth_hpp_launch_rank *ranks,
                                                   int count, struct eth_hpp_error *err)
{
    double *costs = calloc((size_t)count, sizeof(*costs));
    if (costs == NULL)
        return eth_hpp_error_memory(err, "calibration");
    for (int r = 0; r < count; r++) {
        char kind[ETH_HPP_NAME_MAX];
        snprintf(kind, sizeof(kind), "%s", ranks[r].device);
        /* A derived name has been given already, by the kind's first rank. */
        if (strchr(kind, '~') == NULL && is_first_of_device(times, ranks, r))
            name_kind(times, decoders, kind, costs, ranks, count);
    }
    free(costs);
    return ETH_HPP_OK;
}

/* ---- a given profile ---- */

/* The speed of a device beside its kind: "A100-SXM-40GB~0.80" is 0.8, a plain name 1. */
static double speed_of(const char *device)
{
    const char *tilde = strchr(device, '~');
    return tilde != NULL ? strtod(tilde + 1, NULL) : 1;
}

static bool same_kind(const char *a, const char *b)
{
    size_t length = strcspn(a, "~");
    return length == strcspn(b, "~") && strncmp(a, b, length) == 0;
}

void eth_hpp_calibrate_match_devices(const struct eth_hpp_profile *profile,
                                     struct eth_hpp_launch_rank *ranks, int count)
{
    for (int r = 0; r < count; r++) {
        const char *nearest = NULL;
        double wanted = speed_of(ranks[r].device);
        for (int t = 0; t < profile->times_count; t++) {
            const char *device = profile->times[t].device;
            if (same_kind(device, ranks[r].device) &&
                (nearest == NULL ||
                 fabs(speed_of(device) - wanted) < fabs(speed_of(nearest) - wanted)))
                nearest = device;
        }
        if (nearest != NULL)
            snprintf(ranks[r].device, sizeof(ranks[r].device), "%s", nearest);
    }
}

/* ---- the profile ---- */

enum { FORWARD, BACKWARD, OPTIMIZER };

/* Median over the ranks of a device of one figure. */
static double device_median(const struct eth_hpp_launch_times *times,
                            const struct eth_hpp_launch_rank *ranks, int count, const char *device,
                            int figure, int point, int kind, double *values)
{
    int members = 0;
    for (int r = 0; r < count; r++) {
        if (times[r].points == 0 || strcmp(ranks[r].device, device) != 0)
            continue;
        const struct eth_hpp_layer_time *layer = &times[r].times[point][kind];
        values[members++] = figure == FORWARD    ? layer->forward_s
                            : figure == BACKWARD ? layer->backward_s
                                                 : times[r].optimizer_s_per_parameter;
    }
    return median(values, members);
}

static enum eth_hpp_status fill_device(const struct eth_hpp_launch_times *times,
                                       const struct eth_hpp_launch_rank *ranks, int count,
                                       int first, double *values, struct eth_hpp_profile *profile,
                                       struct eth_hpp_error *err)
{
    const char *device = ranks[first].device;
    int points = common_points(times, ranks, count, device);
    struct eth_hpp_times *out;
    enum eth_hpp_status status =
        eth_hpp_profile_add_times(profile, device, 1, times[first].samples, points, &out, err);
    if (status != ETH_HPP_OK)
        return status;
    for (int p = 0; p < points; p++)
        for (int k = 0; k < ETH_HPP_KINDS; k++)
            out->times[p * profile->kind_count + k] = (struct eth_hpp_layer_time){
                .forward_s = device_median(times, ranks, count, device, FORWARD, p, k, values),
                .backward_s = device_median(times, ranks, count, device, BACKWARD, p, k, values)};
    return eth_hpp_profile_set_optimizer_s(
        profile, device, device_median(times, ranks, count, device, OPTIMIZER, 0, 0, values), err);
}

enum eth_hpp_status eth_hpp_calibrate_fill_profile(const struct eth_hpp_launch_times *times,
                                                   const struct eth_hpp_launch_rank *ranks,
                                                   int count, struct eth_hpp_profile *profile,
                                                   struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    double *values = calloc((size_t)count, sizeof(*values));
    if (values == NULL)
        return eth_hpp_error_memory(err, "calibration");
    for (int r = 0; r < count && status == ETH_HPP_OK; r++)
        if (is_first_of_device(times, ranks, r))
            status = fill_device(times, ranks, count, r, values, profile, err);
    free(values);
    return status;
}
