#include "launcher/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inventory/device_db.h"
#include "launcher/command.h"
#include "plan/derive.h"
#include "runtime/capabilities.h"

enum { SAMPLES_PER_GPU = 8 };

void eth_hpp_launch_job_free(struct eth_hpp_launch_job *job)
{
    if (job->has_plan)
        eth_hpp_plan_free(&job->plan);
    *job = (struct eth_hpp_launch_job){0};
}

static enum eth_hpp_status take_plan(const struct eth_hpp_option_set *options, const char *text,
                                     struct eth_hpp_launch_job *job, struct eth_hpp_error *err)
{
    const char *path = eth_hpp_option_text(options, ETH_HPP_JOB_PLAN);
    enum eth_hpp_status status =
        eth_hpp_plan_parse(path != NULL ? path : "plan", text, strlen(text), &job->plan, err);
    if (status != ETH_HPP_OK)
        return status;
    job->has_plan = true;
    job->sequence_length = job->plan.sequence_length;
    job->global_batch = job->plan.global_batch;
    job->dtype = job->plan.dtype;
    status = eth_hpp_command_agrees(options, ETH_HPP_JOB_SEQ, job->sequence_length, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_command_agrees(options, ETH_HPP_JOB_GLOBAL_BATCH, job->global_batch, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_command_agrees_dtype(options, ETH_HPP_JOB_DTYPE, job->dtype, err);
    return status;
}

static enum eth_hpp_status find_model(const struct eth_hpp_option_set *options,
                                      struct eth_hpp_launch_job *job, struct eth_hpp_error *err)
{
    const char *name = eth_hpp_option_text(options, ETH_HPP_JOB_MODEL);
    if (name == NULL && job->has_plan)
        name = job->plan.model;
    if (name == NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "no model: give --model=MODEL (srun: --eth-hpp=MODEL), a preset "
                                 "or a Hugging Face config.json");
    enum eth_hpp_status status = eth_hpp_model_find(name, &job->model, err);
    if (status != ETH_HPP_OK)
        return status;
    /* The program may have another working directory. */
    char *absolute = eth_hpp_preset_find(name) == NULL ? realpath(name, NULL) : NULL;
    snprintf(job->model_argument, sizeof(job->model_argument), "%s",
             absolute != NULL ? absolute : name);
    free(absolute);
    if (job->has_plan && job->plan.layers != eth_hpp_model_layers(&job->model))
        return eth_hpp_error_set(
            err, ETH_HPP_ERR_INPUT, "the given plan has %d layers, the model %s has %d",
            job->plan.layers, job->model.name, eth_hpp_model_layers(&job->model));
    return ETH_HPP_OK;
}

/* Whether the runtime trains in the dtype on the rank's device, as far as that is known. */
static bool is_able(const struct eth_hpp_launch_rank *rank, enum eth_hpp_dtype dtype)
{
    const struct eth_hpp_device_spec *spec = eth_hpp_device_db_find(rank->device);
    char device[ETH_HPP_LAUNCH_DEVICE_MAX];
    eth_hpp_launch_device(rank, device);
    return eth_hpp_capabilities_get(device)->dtypes[dtype] &&
           (dtype != ETH_HPP_BF16 || spec == NULL || spec->bf16);
}

/* The first rank that is not, or `count`. */
static int find_unable(const struct eth_hpp_launch_rank *ranks, int count, enum eth_hpp_dtype dtype)
{
    int r = 0;
    while (r < count && is_able(&ranks[r], dtype))
        r++;
    return r;
}

/* `whose` begins the message: where the dtype was asked for. */
static enum eth_hpp_status check_dtype(const char *whose, enum eth_hpp_dtype dtype,
                                       const struct eth_hpp_launch_rank *ranks, int count,
                                       struct eth_hpp_error *err)
{
    const int unable = find_unable(ranks, count, dtype);
    if (unable == count)
        return ETH_HPP_OK;
    return eth_hpp_error_set(
        err, ETH_HPP_ERR_UNSUPPORTED,
        "%s%s: the runtime cannot train in it on the device of rank %d (%s); take fp32", whose,
        eth_hpp_dtype_name(dtype), unable,
        ranks[unable].time_scale > 0 ? "emulated by the processors" : ranks[unable].gpu.name);
}

/* Heads of attention that the built-in model has kernels for on all devices. */
static enum eth_hpp_status check_heads(const struct eth_hpp_model *model,
                                       const struct eth_hpp_launch_rank *ranks, int count,
                                       struct eth_hpp_error *err)
{
    for (int r = 0; r < count && eth_hpp_model_is_built_in(model); r++) {
        char device[ETH_HPP_LAUNCH_DEVICE_MAX];
        eth_hpp_launch_device(&ranks[r], device);
        const int most = eth_hpp_capabilities_get(device)->max_head_size;
        if (model->head_size > most)
            return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                     "%s has attention heads of %d values: on the device of rank "
                                     "%d the runtime computes heads of %d at most",
                                     model->name, model->head_size, r, most);
    }
    return ETH_HPP_OK;
}

/* "auto": the best that all devices and the runtime have. */
static enum eth_hpp_status choose_dtype(const struct eth_hpp_option_set *options,
                                        const struct eth_hpp_launch_rank *ranks, int count,
                                        enum eth_hpp_dtype *dtype, struct eth_hpp_error *err)
{
    struct eth_hpp_cluster cluster;
    int *rank_of, asked = eth_hpp_dtype_find(eth_hpp_option_text(options, ETH_HPP_JOB_DTYPE));
    if (asked >= 0) {
        *dtype = (enum eth_hpp_dtype)asked;
        return check_dtype("--dtype=", *dtype, ranks, count, err);
    }
    enum eth_hpp_status status = eth_hpp_launch_cluster_make(ranks, count, &cluster, &rank_of, err);
    if (status != ETH_HPP_OK)
        return status;
    enum eth_hpp_dtype best = eth_hpp_derive_dtype(&cluster);
    *dtype = find_unable(ranks, count, best) == count ? best : ETH_HPP_FP32;
    eth_hpp_cluster_free(&cluster);
    free(rank_of);
    return ETH_HPP_OK;
}

static enum eth_hpp_status fill_defaults(const struct eth_hpp_option_set *options,
                                         const struct eth_hpp_launch_rank *ranks, int count,
                                         struct eth_hpp_launch_job *job, struct eth_hpp_error *err)
{
    bool seq = eth_hpp_option_text(options, ETH_HPP_JOB_SEQ) != NULL;
    bool batch = eth_hpp_option_text(options, ETH_HPP_JOB_GLOBAL_BATCH) != NULL;
    job->sequence_length =
        seq ? (int)eth_hpp_option_number(options, ETH_HPP_JOB_SEQ) : job->model.context;
    job->global_batch = batch ? (int)eth_hpp_option_number(options, ETH_HPP_JOB_GLOBAL_BATCH)
                              : SAMPLES_PER_GPU * count;
    return choose_dtype(options, ranks, count, &job->dtype, err);
}

enum eth_hpp_status eth_hpp_launch_job_make(const struct eth_hpp_option_set *options,
                                            const char *plan_text,
                                            const struct eth_hpp_launch_rank *ranks, int count,
                                            struct eth_hpp_launch_job *job,
                                            struct eth_hpp_error *err)
{
    struct eth_hpp_launch_job made = {0};
    enum eth_hpp_status status = ETH_HPP_OK;
    if (eth_hpp_option_text(options, ETH_HPP_JOB_PROFILE) != NULL &&
        strcmp(eth_hpp_option_text(options, ETH_HPP_JOB_CALIBRATE), "yes") == 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "--profile and --calibrate=yes contradict each other: times are "
                                 "either read or measured");
    if (plan_text != NULL)
        status = take_plan(options, plan_text, &made, err);
    if (status == ETH_HPP_OK)
        status = find_model(options, &made, err);
    if (status == ETH_HPP_OK)
        status = made.has_plan
                     ? check_dtype("the given plan's dtype ", made.dtype, ranks, count, err)
                     : fill_defaults(options, ranks, count, &made, err);
    if (status == ETH_HPP_OK)
        status = check_heads(&made.model, ranks, count, err);
    if (status == ETH_HPP_OK && made.sequence_length > made.model.context)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "--seq=%d is longer than the context of %s, %d tokens",
                                   made.sequence_length, made.model.name, made.model.context);
    if (status != ETH_HPP_OK) {
        eth_hpp_launch_job_free(&made);
        return status;
    }
    *job = made;
    return ETH_HPP_OK;
}
