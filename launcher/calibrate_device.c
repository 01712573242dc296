/* How long layers and the optimizer take on this rank's own device. */
#include "base/clock.h"
#include "launcher/calibrate.h"

#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "inventory/device_db.h"
#include "kernels/kernels.h"
#include "models/transformer_measure.h"
#include "plan/derive.h"
#include "runtime/emulation.h"

enum { REPEATS = 5 };
#define LAYER_SHARE 0.1 /* of the budget, for the repeats of one layer */

/* What measuring goes by. */
struct bench {
    const struct eth_hpp_kernels *kernels;
    const struct eth_hpp_model *model;
    int sequence;
    enum eth_hpp_dtype dtype;
    const struct eth_hpp_calibrate_request *request;
    struct eth_hpp_emulator emulator; /* half_flops 0: the device is real */
};

/* Sleeps until an operation that took real_s has taken as long as on the emulated device; the
 * seconds in all, by the clock. */
static double stretched(struct bench *bench, double real_s, double emulated_s)
{
    double start = eth_hpp_clock_now();
    eth_hpp_emulator_stretch(&bench->emulator, start - real_s, emulated_s);
    return real_s + eth_hpp_clock_now() - start;
}

static enum eth_hpp_status time_once(struct bench *bench,
                                     struct eth_hpp_transformer_measure *measure,
                                     enum eth_hpp_kind kind, int samples,
                                     struct eth_hpp_layer_time *time, struct eth_hpp_error *err)
{
    enum eth_hpp_status status = eth_hpp_transformer_measure_layer(
        measure, samples, &time->forward_s, &time->backward_s, err);
    if (status != ETH_HPP_OK || bench->emulator.half_flops <= 0)
        return status;
    double flops = eth_hpp_model_forward_flops(bench->model, kind, bench->sequence);
    double forward = eth_hpp_emulator_forward_s(&bench->emulator, samples, flops);
    time->forward_s = stretched(bench, time->forward_s, forward);
    time->backward_s = stretched(bench, time->backward_s, 2 * forward);
    return ETH_HPP_OK;
}

/* The least of some runs: what disturbs a run only makes it longer. */
static enum eth_hpp_status time_layer(struct bench *bench, enum eth_hpp_kind kind, int samples,
                                      struct eth_hpp_launch_times *times, struct eth_hpp_error *err)
{
    struct eth_hpp_layer_time *best = &times->times[times->points][kind], once;
    struct eth_hpp_transformer_measure *measure;
    double start = eth_hpp_clock_now();
    enum eth_hpp_status status = eth_hpp_transformer_measure_open(
        bench->kernels, bench->model, kind, bench->sequence, samples, &measure, err);
    if (status != ETH_HPP_OK)
        return status;
    status =
        eth_hpp_transformer_measure_layer(measure, samples, &once.forward_s, &once.backward_s, err);
    for (int i = 0; i < REPEATS && status == ETH_HPP_OK; i++) {
        if (i > 0 && eth_hpp_clock_now() - start > LAYER_SHARE * bench->request->budget_s)
            break; /* so long a run is hardly disturbed */
        status = time_once(bench, measure, kind, samples, &once, err);
        if (i == 0 || once.forward_s < best->forward_s)
            best->forward_s = once.forward_s;
        if (i == 0 || once.backward_s < best->backward_s)
            best->backward_s = once.backward_s;
    }
    for (int i = 0;
         i < REPEATS && kind == ETH_HPP_KIND_DECODER && times->points == 0 && status == ETH_HPP_OK;
         i++) {
        double seconds;
        status = eth_hpp_transformer_measure_optimizer(measure, &seconds, err);
        if (i == 0 || seconds < times->optimizer_s_per_parameter)
            times->optimizer_s_per_parameter = seconds;
    }
    eth_hpp_transformer_measure_close(measure);
    return status;
}

/* Bytes that measuring the largest layer on so many samples takes. */
static double bytes_needed(const struct bench *bench, int samples)
{
    double most = 0;
    for (int k = 0; k < ETH_HPP_KINDS; k++) {
        enum eth_hpp_kind kind = (enum eth_hpp_kind)k;
        double bytes =
            samples *
                (eth_hpp_model_saved_bytes(bench->model, kind, bench->sequence, bench->dtype) +
                 eth_hpp_model_workspace_bytes(bench->model, kind, bench->sequence, bench->dtype)) +
            eth_hpp_dtype_state_bytes(bench->dtype) *
                (eth_hpp_model_parameters(bench->model, kind) +
                 eth_hpp_model_tied_parameters(bench->model));
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* The next number of samples to measure: the double, but on a slow device straight what is needed.
 */
static int next_samples(int samples, int need, double left_s, double last_s)
{
    return 2 * samples < need && 4 * last_s > left_s ? need : 2 * samples;
}

/* More and more samples until the time is used up, or the memory, or there are enough. */
static enum eth_hpp_status measure(struct bench *bench, double memory_bytes,
                                   struct eth_hpp_launch_times *times, struct eth_hpp_error *err)
{
    const int need = bench->request->need, most = bench->request->most;
    const double budget_s = bench->request->budget_s;
    double start = eth_hpp_clock_now(), last_s = 0;
    int measured = 0;
    *times = (struct eth_hpp_launch_times){0};
    for (int samples = 1; times->points < ETH_HPP_LAUNCH_POINTS_MAX;) {
        double now = eth_hpp_clock_now();
        bool enough = measured >= need && (samples > most || now - start + 2 * last_s > budget_s);
        if (times->points > 0 && (enough || bytes_needed(bench, samples) > memory_bytes))
            break;
        for (int k = 0; k < ETH_HPP_KINDS; k++) {
            enum eth_hpp_status status =
                time_layer(bench, (enum eth_hpp_kind)k, samples, times, err);
            if (status == ETH_HPP_ERR_MEMORY && times->points > 0)
                return ETH_HPP_OK;
            if (status != ETH_HPP_OK)
                return status;
        }
        times->samples[times->points++] = measured = samples;
        last_s = eth_hpp_clock_now() - now;
        samples = next_samples(samples, need, budget_s - (eth_hpp_clock_now() - start), last_s);
    }
    return ETH_HPP_OK;
}

/* ---- the cache ---- */

enum eth_hpp_status eth_hpp_calibrate_profile(const struct eth_hpp_model *model, int sequence,
                                              enum eth_hpp_dtype dtype, const char *device,
                                              const struct eth_hpp_launch_times *times,
                                              struct eth_hpp_profile *profile,
                                              struct eth_hpp_error *err)
{
    struct eth_hpp_profile made;
    struct eth_hpp_times *out;
    enum eth_hpp_status status = eth_hpp_derive_layers(model, sequence, dtype, &made, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_profile_add_times(&made, device, 1, times->samples, times->points, &out, err);
    if (status == ETH_HPP_OK) {
        for (int p = 0; p < times->points; p++)
            memcpy(&out->times[p * made.kind_count], times->times[p],
                   ETH_HPP_KINDS * sizeof(*out->times));
        status =
            eth_hpp_profile_set_optimizer_s(&made, device, times->optimizer_s_per_parameter, err);
    }
    if (status == ETH_HPP_OK)
        *profile = made;
    else
        eth_hpp_profile_free(&made);
    return status;
}

/* What another job left; false where there is nothing that fits. */
static bool load(const char *path, const char *device, int need, struct eth_hpp_launch_times *times)
{
    struct eth_hpp_profile profile;
    if (access(path, R_OK) != 0 || eth_hpp_profile_load(path, &profile, NULL) != ETH_HPP_OK)
        return false;
    const struct eth_hpp_times *found = eth_hpp_profile_find_times(&profile, device, 1);
    bool fits = found != NULL && found->points <= ETH_HPP_LAUNCH_POINTS_MAX &&
                found->samples[found->points - 1] >= need && profile.kind_count == ETH_HPP_KINDS;
    if (fits) {
        *times = (struct eth_hpp_launch_times){.points = found->points,
                                               .optimizer_s_per_parameter =
                                                   eth_hpp_profile_optimizer_s(&profile, device)};
        memcpy(times->samples, found->samples, (size_t)found->points * sizeof(*found->samples));
        memcpy(times->times, found->times,
               (size_t)found->points * ETH_HPP_KINDS * sizeof(*found->times));
    }
    eth_hpp_profile_free(&profile);
    return fits;
}

/* A cache that cannot be written costs time in the next job, nothing more. */
static void save(const char *path, const struct bench *bench, const char *device,
                 const struct eth_hpp_launch_times *times)
{
    struct eth_hpp_profile profile;
    struct eth_hpp_error reason = {0};
    if (!eth_hpp_cache_make_folder(path) ||
        eth_hpp_calibrate_profile(bench->model, bench->sequence, bench->dtype, device, times,
                                  &profile, &reason) != ETH_HPP_OK)
        return;
    if (eth_hpp_profile_save(&profile, path, &reason) != ETH_HPP_OK)
        eth_hpp_log_debug("times are not kept: %s", reason.text);
    eth_hpp_profile_free(&profile);
}

/* ---- the rank's device ---- */

/* The ranks of a node share its memory, but not that of GPUs, which hold what their driver needs.
 */
static double memory_limit(const struct eth_hpp_launch_rank *rank, bool host_memory)
{
    if (!host_memory)
        return 0.8 * rank->gpu.memory_bytes;
    double free_bytes = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double share = free_bytes / (2.0 * (rank->local_size > 0 ? rank->local_size : 1));
    return share < rank->gpu.memory_bytes ? share : rank->gpu.memory_bytes;
}

enum eth_hpp_status eth_hpp_calibrate_device(const struct eth_hpp_model *model, int sequence,
                                             enum eth_hpp_dtype dtype,
                                             const struct eth_hpp_launch_rank *rank,
                                             const struct eth_hpp_calibrate_request *request,
                                             struct eth_hpp_launch_times *times,
                                             struct eth_hpp_error *err)
{
    char path[4096];
    const bool built_in = eth_hpp_model_is_built_in(model);
    *times = (struct eth_hpp_launch_times){0};
    if (!built_in && request->when == ETH_HPP_CALIBRATE_YES)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "this device cannot be measured: only models that are built in "
                                 "can be: gpt2, llama, mistral and qwen2");
    if (!built_in || request->when == ETH_HPP_CALIBRATE_NO)
        return ETH_HPP_OK;
    bool cache = eth_hpp_cache_path(model, sequence, dtype, rank, path, sizeof(path));
    if (cache && request->when == ETH_HPP_CALIBRATE_AUTO &&
        load(path, rank->device, request->need, times))
        return ETH_HPP_OK;

    struct bench bench = {.model = model, .sequence = sequence, .dtype = dtype, .request = request};
    struct eth_hpp_kernels *kernels;
    const struct eth_hpp_device_spec *spec = eth_hpp_device_db_find(rank->device);
    if (rank->time_scale > 0 && spec != NULL)
        bench.emulator = (struct eth_hpp_emulator){
            .half_flops = spec->half_flops, .speed = rank->speed, .time_scale = rank->time_scale};
    char device[ETH_HPP_LAUNCH_DEVICE_MAX];
    eth_hpp_launch_device(rank, device);
    enum eth_hpp_status status = eth_hpp_kernels_create(device, dtype, &kernels, err);
    if (status == ETH_HPP_ERR_UNSUPPORTED && request->when == ETH_HPP_CALIBRATE_AUTO) {
        eth_hpp_log_debug("times are not measured: %s", err->text);
        return ETH_HPP_OK; /* a plan can be made all the same, for a program of another kind */
    }
    if (status == ETH_HPP_ERR_UNSUPPORTED)
        return eth_hpp_error_prefix(err, "this device cannot be measured");
    if (status != ETH_HPP_OK)
        return status;
    bench.kernels = kernels;
    const double start = eth_hpp_clock_now();
    status = measure(&bench, memory_limit(rank, kernels->host_memory), times, err);
    times->measuring_s = eth_hpp_clock_now() - start;
    eth_hpp_kernels_destroy(kernels);
    if (status == ETH_HPP_OK && cache)
        save(path, &bench, rank->device, times);
    return status;
}
