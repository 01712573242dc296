/* The rounds in which ranks learn of each other and measure; `launch` and `profile` share them. */
#include "launcher/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "comm/comm.h"
#include "launcher/calibrate.h"
#include "launcher/command.h"
#include "launcher/exchange.h"
#include "launcher/node.h"

enum { PLAN_LIMIT = 16 << 20 };
#define DRIVER_TIMEOUT_S 6.0 /* twice: below the first deadline of the exchange */
#define LINKS_TIMEOUT_S  20.0

/* ---- before ranks meet ---- */

/* Children are started here, while the process has one thread. */
static enum eth_hpp_status look_around(struct eth_hpp_launch *l, struct eth_hpp_error *err)
{
    enum eth_hpp_status status = eth_hpp_node_inventory(&l->inventory, DRIVER_TIMEOUT_S, err);
    if (status == ETH_HPP_OK && strcmp(l->inventory.source, "nvml") == 0)
        status = eth_hpp_node_visible(&l->visible, DRIVER_TIMEOUT_S, err);
    return status;
}

/* The tasks of a step cannot tell each other yet: what is wrong for all of them is said by the
 * first one alone. */
static enum eth_hpp_status open_bootstrap(struct eth_hpp_launch *l, struct eth_hpp_error *err)
{
    enum eth_hpp_status status = eth_hpp_bootstrap_open(&l->bootstrap, err);
    if ((status == ETH_HPP_ERR_INPUT || status == ETH_HPP_ERR_UNSUPPORTED) &&
        !eth_hpp_command_is_first_task())
        err->text[0] = '\0';
    if (status == ETH_HPP_OK)
        l->place = eth_hpp_bootstrap_get_place(l->bootstrap);
    return status;
}

/* ---- round 1: who is there ---- */

static enum eth_hpp_status describe_self(const struct eth_hpp_launch *l,
                                         struct eth_hpp_launch_rank *self,
                                         struct eth_hpp_error *err)
{
    const struct eth_hpp_inventory_gpu *gpu = NULL;
    struct eth_hpp_inventory_gpu processors;
    if (l->inventory.gpu_count == 0 && l->place->size == 1) {
        eth_hpp_gpu_processors(&processors);
        gpu = &processors;
    } else {
        enum eth_hpp_status status = eth_hpp_gpu_find(&l->inventory, &l->visible, l->place,
                                                      getenv("CUDA_VISIBLE_DEVICES"), &gpu, err);
        if (status != ETH_HPP_OK)
            return status;
    }
    eth_hpp_launch_rank_fill(&l->inventory, gpu, l->place, self);
    return ETH_HPP_OK;
}

/* Does the given profile have times of GPUs that are off their kind? */
static enum eth_hpp_status read_profile(const char *path, bool *tells_apart,
                                        struct eth_hpp_error *err)
{
    struct eth_hpp_profile profile;
    enum eth_hpp_status status = eth_hpp_profile_load(path, &profile, err);
    if (status != ETH_HPP_OK)
        return status;
    for (int t = 0; t < profile.times_count; t++)
        *tells_apart = *tells_apart || strchr(profile.times[t].device, '~') != NULL;
    eth_hpp_profile_free(&profile);
    return ETH_HPP_OK;
}

/* A rank's word: its description, behind which rank 0 puts the text of the given plan and its end,
 * so that an empty plan is not taken for none. */
static enum eth_hpp_status make_hello(const struct eth_hpp_launch *l, char **hello, size_t *size,
                                      struct eth_hpp_error *err)
{
    struct eth_hpp_launch_rank self;
    const char *path = eth_hpp_option_text(l->options, ETH_HPP_JOB_PLAN);
    const char *profile = eth_hpp_option_text(l->options, ETH_HPP_JOB_PROFILE);
    char *plan = NULL;
    size_t plan_size = 0; /* with the 0 at its end */
    enum eth_hpp_status status = describe_self(l, &self, err);
    if (status == ETH_HPP_OK && path != NULL && l->place->rank == 0)
        status = eth_hpp_file_read(path, PLAN_LIMIT, &plan, &plan_size, err);
    plan_size += plan != NULL;
    if (status == ETH_HPP_OK && profile != NULL && l->place->rank == 0)
        status = read_profile(profile, &self.profile_tells_apart, err);
    if (status != ETH_HPP_OK) {
        free(plan);
        return status;
    }
    char *made = malloc(sizeof(self) + plan_size);
    if (made == NULL) {
        free(plan);
        return eth_hpp_error_memory(err, "the exchange");
    }
    memcpy(made, &self, sizeof(self));
    if (plan_size > 0)
        memcpy(made + sizeof(self), plan, plan_size);
    free(plan);
    *hello = made;
    *size = sizeof(self) + plan_size;
    return ETH_HPP_OK;
}

static enum eth_hpp_status read_hellos(struct eth_hpp_launch *l,
                                       const struct eth_hpp_exchange_word *words,
                                       struct eth_hpp_error *err)
{
    for (int r = 0; r < l->place->size; r++) {
        bool fits = r == 0 ? words[r].size >= sizeof(*l->ranks) /* the given plan may follow */
                           : words[r].size == sizeof(*l->ranks);
        if (!fits)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                     "rank %d runs another version of eth-hpp: install one version "
                                     "on all nodes",
                                     r);
        memcpy(&l->ranks[r], words[r].data, sizeof(*l->ranks));
    }
    if (words[0].size > sizeof(*l->ranks)) {
        l->given_plan = strdup((char *)words[0].data + sizeof(*l->ranks));
        if (l->given_plan == NULL)
            return eth_hpp_error_memory(err, "the given plan");
    }
    return ETH_HPP_OK;
}

/* `looked` is how looking around went on this rank. */
static enum eth_hpp_status meet(struct eth_hpp_launch *l, enum eth_hpp_status looked,
                                struct eth_hpp_error *err)
{
    struct eth_hpp_exchange_word *words = NULL;
    char *hello = NULL;
    size_t size = 0;
    enum eth_hpp_status status = looked;
    if (status == ETH_HPP_OK)
        status = make_hello(l, &hello, &size, err);
    if (status != ETH_HPP_OK && l->place->size > 1)
        eth_hpp_error_prefix(err, "rank %d on %s", l->place->rank, l->place->host);
    status = eth_hpp_exchange_round(l->bootstrap, "launch.hello", ETH_HPP_EXCHANGE_FIRST_S, status,
                                    hello, size, &words, err);
    free(hello);
    if (status != ETH_HPP_OK)
        return status;
    status = read_hellos(l, words, err);
    eth_hpp_exchange_free(words, l->place->size);
    if (status == ETH_HPP_ERR_INPUT && l->place->rank != 0)
        err->text[0] = '\0'; /* it is the same on all ranks */
    return status;
}

/* ---- round 2: what it is to be, and how fast devices are ---- */

/* May the worker be run on such a device? Yes where the plan does not note what it was made for. */
static bool may_run_on(const struct eth_hpp_plan *plan, const struct eth_hpp_worker *worker,
                       const char *device)
{
    for (int n = 0; n < plan->node_count; n++) {
        const struct eth_hpp_plan_node *node = &plan->nodes[n];
        if (strcmp(node->name, worker->node) != 0 || worker->gpus[0] >= node->gpus)
            continue;
        const char *noted = node->devices[worker->gpus[0]];
        size_t kind = strcspn(noted, "~"); /* without what calibration found that day */
        return strlen(device) == kind && strncmp(device, noted, kind) == 0;
    }
    return true;
}

/* The most samples that the given plan may have such a device compute at once. */
static int largest_share(const struct eth_hpp_launch_job *job, const char *device)
{
    int largest = 1;
    for (int p = 0; job->has_plan && p < job->plan.pipeline_count; p++)
        for (int s = 0; s < job->plan.pipelines[p].stage_count; s++) {
            const struct eth_hpp_stage *stage = &job->plan.pipelines[p].stages[s];
            for (int w = 0; w < stage->worker_count; w++)
                if (stage->workers[w].samples > largest &&
                    may_run_on(&job->plan, &stage->workers[w], device))
                    largest = stage->workers[w].samples;
        }
    return largest;
}

static enum eth_hpp_status prepare(struct eth_hpp_launch *l, struct eth_hpp_launch_times *own,
                                   struct eth_hpp_error *err)
{
    const struct eth_hpp_launch_rank *self = &l->ranks[l->place->rank];
    struct eth_hpp_calibrate_request request = {
        .budget_s = l->measure_s,
        .when =
            (enum eth_hpp_calibrate_when)eth_hpp_option_number(l->options, ETH_HPP_JOB_CALIBRATE)};
    enum eth_hpp_status status = eth_hpp_launch_ranks_check(l->ranks, l->place->size, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_launch_job_make(l->options, l->given_plan, l->ranks, l->place->size,
                                         &l->job, err);
    if (status != ETH_HPP_OK)
        return status;
    if (eth_hpp_option_text(l->options, ETH_HPP_JOB_PROFILE) != NULL &&
        !l->ranks[0].profile_tells_apart)
        request.when = ETH_HPP_CALIBRATE_NO; /* the file has the times */
    request.need = largest_share(&l->job, self->device);
    request.most = l->job.global_batch;
    status = eth_hpp_calibrate_device(&l->job.model, l->job.sequence_length, l->job.dtype, self,
                                      &request, own, err);
    if (status != ETH_HPP_OK && l->place->size > 1)
        eth_hpp_error_prefix(err, "rank %d on %s", l->place->rank, self->node);
    return status;
}

static enum eth_hpp_status measure_devices(struct eth_hpp_launch *l, struct eth_hpp_error *err)
{
    struct eth_hpp_exchange_word *words = NULL;
    struct eth_hpp_launch_times own;
    enum eth_hpp_status status = prepare(l, &own, err);
    status = eth_hpp_exchange_round(l->bootstrap, "launch.times", ETH_HPP_EXCHANGE_NEXT_S, status,
                                    &own, sizeof(own), &words, err);
    if (status != ETH_HPP_OK)
        return status;
    for (int r = 0; r < l->place->size; r++)
        memcpy(&l->times[r], words[r].data, sizeof(own));
    eth_hpp_exchange_free(words, l->place->size);
    return ETH_HPP_OK;
}

/* ---- round 3: how fast links are ---- */

/* Copies the pairs that a rank has measured to `to`; their number. */
static int own_pairs(const struct eth_hpp_launch *l, int rank, struct eth_hpp_link_measure *to)
{
    int count = 0;
    for (int i = 0; i < l->pair_count; i++)
        if (l->pairs[i].from == rank)
            to[count++] = l->pairs[i];
    return count;
}

/* Each rank has said the figures of its own pairs, in the list's order. */
static void join_pairs(struct eth_hpp_launch *l, const struct eth_hpp_exchange_word *words)
{
    for (int r = 0; r < l->place->size; r++) {
        size_t at = 0;
        for (int i = 0; i < l->pair_count; i++)
            if (l->pairs[i].from == r && at + sizeof(*l->pairs) <= words[r].size) {
                memcpy(&l->pairs[i], (char *)words[r].data + at, sizeof(*l->pairs));
                at += sizeof(*l->pairs);
            }
    }
}

/* Once there is a transport, it ends the others and says why, once. */
static void end_by_transport(struct eth_hpp_launch *l, struct eth_hpp_comm *comm,
                             const struct eth_hpp_error *err)
{
    int code = eth_hpp_error_exit_code(err->status);
    eth_hpp_comm_fail(comm, err, code);
    eth_hpp_bootstrap_abort(l->bootstrap, code, err->text);
}

static enum eth_hpp_status measure_links(struct eth_hpp_launch *l, struct eth_hpp_error *err)
{
    struct eth_hpp_exchange_word *words = NULL;
    struct eth_hpp_comm *comm = NULL;
    int *rounds = NULL;
    const char *calibrate = eth_hpp_option_text(l->options, ETH_HPP_JOB_CALIBRATE);
    if (l->place->size == 1 || strcmp(calibrate, "no") == 0)
        return ETH_HPP_OK;
    enum eth_hpp_status status =
        eth_hpp_calibrate_pairs(l->ranks, l->place->size, &l->pairs, &rounds, &l->pair_count, err);
    if (status != ETH_HPP_OK)
        return status;
    if (eth_hpp_comm_open(l->bootstrap, LINKS_TIMEOUT_S, &comm, err) != ETH_HPP_OK)
        eth_hpp_bootstrap_fail(l->bootstrap, err);
    const double start = eth_hpp_clock_now();
    status = eth_hpp_calibrate_links(comm, l->place->rank, l->pairs, rounds, l->pair_count, err);
    l->links_s = eth_hpp_clock_now() - start;
    if (status != ETH_HPP_OK)
        end_by_transport(l, comm, err);
    eth_hpp_comm_close(comm);
    free(rounds);
    struct eth_hpp_link_measure *own = calloc((size_t)l->pair_count, sizeof(*own));
    int count = own != NULL ? own_pairs(l, l->place->rank, own) : 0;
    if (own == NULL && status == ETH_HPP_OK)
        status = eth_hpp_error_memory(err, "calibration");
    status = eth_hpp_exchange_round(l->bootstrap, "launch.links", ETH_HPP_EXCHANGE_NEXT_S, status,
                                    own, (size_t)count * sizeof(*own), &words, err);
    free(own);
    if (status != ETH_HPP_OK)
        return status;
    join_pairs(l, words);
    eth_hpp_exchange_free(words, l->place->size);
    return ETH_HPP_OK;
}

/* ---- all of them ---- */

enum eth_hpp_status eth_hpp_launch_open(struct eth_hpp_launch *l,
                                        const struct eth_hpp_option_set *options, double measure_s,
                                        struct eth_hpp_error *err)
{
    *l = (struct eth_hpp_launch){.options = options, .measure_s = measure_s};
    enum eth_hpp_status looked = look_around(l, err);
    struct eth_hpp_error why = *err;
    enum eth_hpp_status status = open_bootstrap(l, err);
    if (status != ETH_HPP_OK)
        return status;
    *err = why;
    size_t size = (size_t)l->place->size;
    l->ranks = calloc(size, sizeof(*l->ranks));
    l->times = calloc(size, sizeof(*l->times));
    if (l->ranks == NULL || l->times == NULL)
        return eth_hpp_error_memory(err, "the launch");
    status = meet(l, looked, err);
    if (status == ETH_HPP_OK)
        status = measure_devices(l, err);
    if (status == ETH_HPP_OK)
        status = measure_links(l, err);
    return status;
}

void eth_hpp_launch_close(struct eth_hpp_launch *l)
{
    eth_hpp_bootstrap_close(l->bootstrap);
    eth_hpp_inventory_free(&l->inventory);
    eth_hpp_inventory_free(&l->visible);
    eth_hpp_launch_job_free(&l->job);
    free(l->ranks);
    free(l->times);
    free(l->pairs);
    free(l->given_plan);
    *l = (struct eth_hpp_launch){0};
}
