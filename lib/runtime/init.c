/* The start of a rank: its plan, its place in it, the other ranks. */
#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "kernels/kernels.h"
#include "runtime/capabilities.h"
#include "runtime/context.h"

#define DEFAULT_TIMEOUT_S   120
#define DEFAULT_CHECK_STEPS 100
/* For ranks to meet: every rank ends within 30 s of the failure of one that does not come, the time
 * to find out who it is and to end those that hang included. */
#define DEFAULT_MEET_S 16

/* On an error the defaults stay, so that this rank can meet the others and say it. */
static enum eth_hpp_status find_timeout(const struct eth_hpp_init_options *options,
                                        double *timeout_s, double *meet_s,
                                        struct eth_hpp_error *err)
{
    const char *text = getenv("ETH_HPP_TIMEOUT");
    char *end;
    double given = options != NULL && options->timeout_s > 0 ? options->timeout_s : 0;
    *timeout_s = DEFAULT_TIMEOUT_S;
    *meet_s = DEFAULT_MEET_S;
    if (given == 0 && text != NULL && *text != '\0') {
        given = strtod(text, &end);
        if (*end != '\0' || !isfinite(given) || given <= 0)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                     "ETH_HPP_TIMEOUT: must be a number of seconds above 0, is "
                                     "\"%s\"",
                                     text);
    }
    if (given > 0)
        *timeout_s = *meet_s = given;
    return ETH_HPP_OK;
}

/* What this rank computes on, as eth_hpp_kernels_create takes it. */
static const char *device_name(void)
{
    const char *name = getenv("ETH_HPP_DEVICE");
    return name != NULL && *name != '\0' ? name : "cpu";
}

/* Are all ranks of the plan there? */
static enum eth_hpp_status check_ranks(const struct eth_hpp_context *context, const char *path,
                                       struct eth_hpp_error *err)
{
    const struct eth_hpp_plan *plan = &context->plan;
    int highest = -1;
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++)
            for (int w = 0; w < plan->pipelines[p].stages[s].worker_count; w++) {
                int rank = plan->pipelines[p].stages[s].workers[w].ranks[0];
                if (rank < 0)
                    return eth_hpp_error_set(
                        err, ETH_HPP_ERR_INPUT,
                        "%s: pipelines[%d].stages[%d].workers[%d] has no rank: "
                        "run the program through `eth-hpp launch --plan=%s`, "
                        "which binds the plan to the job",
                        path, p, s, w, path);
                highest = rank > highest ? rank : highest;
            }
    if (highest >= context->job.size)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: the plan needs %d ranks, the job has %d: start it with srun "
                                 "--ntasks=%d, or make a plan for what is there",
                                 path, highest + 1, context->job.size, highest + 1);
    return ETH_HPP_OK;
}

void eth_hpp_context_fill_assignment(struct eth_hpp_context *context)
{
    const struct eth_hpp_plan *plan = &context->plan;
    const struct eth_hpp_place place = eth_hpp_plan_find_rank(plan, context->job.rank);
    struct eth_hpp_assignment *a = &context->assignment;
    context->place = place;
    a->rank = context->job.rank;
    a->world_size = context->job.size;
    a->idle = place.pipeline < 0;
    a->layers = plan->layers;
    a->sequence_length = plan->sequence_length;
    a->global_batch = plan->global_batch;
    if (a->idle)
        return;
    const struct eth_hpp_pipeline *pipeline = &plan->pipelines[place.pipeline];
    const struct eth_hpp_stage *stage = &pipeline->stages[place.stage];
    a->pipeline = place.pipeline;
    a->stage = place.stage;
    a->stages = pipeline->stage_count;
    a->first_layer = stage->first_layer;
    a->end_layer = stage->end_layer;
    a->samples = stage->workers[place.worker].samples;
    a->micro_batches = pipeline->micro_batches;
    a->in_flight = stage->in_flight;
    a->recompute = stage->recompute;
}

/* What the plan allows this rank's device to hold. */
static double memory_limit(const struct eth_hpp_context *context)
{
    const struct eth_hpp_predicted *predicted = &context->plan.predicted;
    for (int i = 0; i < predicted->rank_count; i++)
        if (predicted->ranks[i].rank == context->job.rank)
            return predicted->ranks[i].memory_limit_bytes;
    return 0;
}

static enum eth_hpp_status load_plan(struct eth_hpp_context *context,
                                     const struct eth_hpp_init_options *options,
                                     struct eth_hpp_error *err)
{
    const char *path = options != NULL ? options->plan_path : NULL;
    if (path == NULL)
        path = getenv("ETH_HPP_PLAN_FILE");
    if (path == NULL || *path == '\0')
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "there is no plan: run the program through `eth-hpp launch`, or "
                                 "name a plan in ETH_HPP_PLAN_FILE");
    enum eth_hpp_status status = eth_hpp_plan_load(path, &context->plan, err);
    if (status == ETH_HPP_OK)
        status = check_ranks(context, path, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_capabilities_check(eth_hpp_capabilities_get(device_name()), &context->plan,
                                            err);
    if (status == ETH_HPP_OK)
        eth_hpp_context_fill_assignment(context);
    return status;
}

/* This rank's own part of the start, which may fail on some ranks alone. */
static enum eth_hpp_status start_alone(struct eth_hpp_context *context,
                                       const struct eth_hpp_init_options *options,
                                       struct eth_hpp_error *err)
{
    enum eth_hpp_status status = load_plan(context, options, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_emulator_from_environment(&context->emulator, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_kernels_create(device_name(), context->plan.dtype, &context->kernels, err);
    if (status != ETH_HPP_OK)
        return status;
    struct eth_hpp_kernels *kernels = context->kernels;
    if (kernels->remark != NULL && context->job.rank == 0) /* the others' are the same as a rule */
        eth_hpp_log_info("%s", kernels->remark);
    context->arena.kernels = kernels;
    context->arena.limit_bytes = memory_limit(context);
    /* What plans keep back on a GPU is for CUDA's and NCCL's own memory, which they take later. */
    const double own =
        context->arena.limit_bytes - (kernels->host_memory ? 0 : ETH_HPP_RESERVED_BYTES);
    if (own > 0)
        status = kernels->ops->reserve(kernels->state, (size_t)own, err);
    return status;
}

static enum eth_hpp_status open_group(struct eth_hpp_context *context, bool active_only,
                                      uint32_t id, struct eth_hpp_group **group,
                                      struct eth_hpp_error *err)
{
    int count = 0, *ranks = malloc(sizeof(*ranks) * (size_t)context->job.size);
    if (ranks == NULL)
        return eth_hpp_error_memory(err, "a group of ranks");
    for (int rank = 0; rank < context->job.size; rank++)
        if (!active_only || eth_hpp_plan_find_rank(&context->plan, rank).pipeline >= 0)
            ranks[count++] = rank;
    enum eth_hpp_status status =
        eth_hpp_comm_group_open(context->comm, ranks, count, id, group, err);
    free(ranks);
    return status;
}

/* All compute on GPUs or all on CPUs: replicas have the same bits on devices of one kind only, and
 * the plan's times are those of GPUs. */
static enum eth_hpp_status check_devices(const struct eth_hpp_context *context, double last_cpu,
                                         double last_gpu, struct eth_hpp_error *err)
{
    if (last_cpu == 0 || last_gpu == 0)
        return ETH_HPP_OK;
    if (context->job.rank > 0) /* all know it, and one says it */
        eth_hpp_leave_quietly();
    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                             "rank %d computes on a CPU and rank %d on a GPU: give every rank a "
                             "GPU, or none (ETH_HPP_DEVICE)",
                             (int)last_cpu - 1, (int)last_gpu - 1);
}

/* All ranks learn whether all could start; of those that could not, the lowest keeps its error. */
static enum eth_hpp_status agree(struct eth_hpp_context *context, enum eth_hpp_status own,
                                 struct eth_hpp_error *err)
{
    struct eth_hpp_group *everyone;
    struct eth_hpp_request *request;
    const int rank = context->job.rank, size = context->job.size;
    /* Who could not start, and a rank of each kind of device. */
    const bool gpu = context->kernels != NULL && !context->kernels->host_memory;
    double most[] = {own == ETH_HPP_OK ? 0 : size - rank, gpu ? 0 : rank + 1, gpu ? rank + 1 : 0};
    struct eth_hpp_error failure = {0};
    enum eth_hpp_status status = open_group(context, false, UINT32_MAX - 1, &everyone, &failure);
    if (status == ETH_HPP_OK)
        status =
            eth_hpp_comm_group_reduce(everyone, most, 3, ETH_HPP_REDUCE_MAX, &request, &failure);
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_wait(context->comm, request, context->timeout_s, &failure);
    if (status != ETH_HPP_OK)
        return eth_hpp_error_set(err, status, "%s", failure.text);
    const int failed = size - (int)most[0];
    if (failed < size && failed != rank) {
        eth_hpp_leave_quietly();
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "rank %d cannot start", failed);
    }
    return own != ETH_HPP_OK ? own : check_devices(context, most[1], most[2], err);
}

enum eth_hpp_status eth_hpp_context_open(struct eth_hpp_bootstrap *bootstrap,
                                         const struct eth_hpp_init_options *options,
                                         struct eth_hpp_context **context,
                                         struct eth_hpp_error *err)
{
    struct eth_hpp_context *c = calloc(1, sizeof(*c));
    double meet_s = 0;
    struct eth_hpp_error failure = {0};
    if (c == NULL) {
        eth_hpp_bootstrap_close(bootstrap);
        return eth_hpp_error_memory(err, "a rank");
    }
    const int asked = options != NULL ? options->check_replicas : 0;
    c->check_replicas = asked == 0 ? DEFAULT_CHECK_STEPS : asked > 0 ? asked : 0;
    c->job = *eth_hpp_bootstrap_get_place(bootstrap);
    enum eth_hpp_status own = find_timeout(options, &c->timeout_s, &meet_s, err);
    enum eth_hpp_status status = eth_hpp_comm_open(bootstrap, meet_s, &c->comm, &failure);
    if (status != ETH_HPP_OK && c->job.size > 1)
        eth_hpp_bootstrap_fail(bootstrap, &failure);
    if (status != ETH_HPP_OK)
        eth_hpp_error_set(err, status, "%s", failure.text);
    /* From here on the transport notices a rank that dies. PMIx is left at once: while a process
     * is in it, the death of another one kills the whole step before anybody can say why. */
    eth_hpp_bootstrap_close(bootstrap);
    if (status == ETH_HPP_OK && own == ETH_HPP_OK)
        own = start_alone(c, options, err);
    c->loss_scale = eth_hpp_loss_scale_first(c->plan.dtype);
    if (status == ETH_HPP_OK)
        status = agree(c, own, err);
    if (status == ETH_HPP_OK && eth_hpp_transport_reach_device(c, &failure) != ETH_HPP_OK)
        eth_hpp_fail(c, &failure); /* the others may wait for this rank */
    if (status == ETH_HPP_OK && !c->assignment.idle)
        status = open_group(c, true, (uint32_t)c->plan.block_count, &c->active, err);
    if (status != ETH_HPP_OK) {
        eth_hpp_finalize(c);
        return status;
    }
    eth_hpp_leave_watch(c);
    *context = c;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_init(const struct eth_hpp_init_options *options,
                                 struct eth_hpp_context **context, struct eth_hpp_error *err)
{
    struct eth_hpp_bootstrap *bootstrap;
    enum eth_hpp_status status = eth_hpp_bootstrap_open(&bootstrap, err);
    if (status != ETH_HPP_OK)
        return status;
    return eth_hpp_context_open(bootstrap, options, context, err);
}
