/*
 * eth-hpp launch: each rank finds its GPU, all tell each other, devices and links are measured,
 * rank 0 plans, everybody gets the plan and becomes the program.
 */
#include "launcher/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "comm/comm.h"
#include "launcher/calibrate.h"
#include "launcher/command.h"
#include "launcher/exchange.h"
#include "launcher/node.h"

enum { PLAN_LIMIT = 16 << 20 };
#define DRIVER_TIMEOUT_S 10.0
#define LINKS_TIMEOUT_S  20.0

struct launch {
    const struct eth_hpp_option_set *options;
    struct eth_hpp_inventory inventory, visible;
    struct eth_hpp_bootstrap *bootstrap;
    const struct eth_hpp_bootstrap_place *place;
    struct eth_hpp_launch_rank *ranks;  /* [size] */
    struct eth_hpp_launch_times *times; /* [size] */
    struct eth_hpp_link_measure *pairs;
    int pair_count;
    struct eth_hpp_launch_job job;
    char *given_plan; /* text of --plan, the same on every rank; NULL: none */
    char *plan;       /* text of the plan that is run */
    int port;
};

/* ---- before ranks meet ---- */

/* Children are started here, while the process has one thread. */
static enum eth_hpp_status look_around(struct launch *l, struct eth_hpp_error *err)
{
    enum eth_hpp_status status = eth_hpp_node_inventory(&l->inventory, DRIVER_TIMEOUT_S, err);
    if (status == ETH_HPP_OK && strcmp(l->inventory.source, "nvml") == 0)
        status = eth_hpp_node_visible(&l->visible, DRIVER_TIMEOUT_S, err);
    return status;
}

/* The tasks of a step cannot tell each other yet: what is wrong for all of them is said by the
 * first one alone. */
static enum eth_hpp_status open_bootstrap(struct launch *l, struct eth_hpp_error *err)
{
    enum eth_hpp_status status = eth_hpp_bootstrap_open(&l->bootstrap, err);
    const char *task = getenv("SLURM_PROCID");
    if ((status == ETH_HPP_ERR_INPUT || status == ETH_HPP_ERR_UNSUPPORTED) && task != NULL &&
        strcmp(task, "0") != 0)
        err->text[0] = '\0';
    if (status == ETH_HPP_OK)
        l->place = eth_hpp_bootstrap_get_place(l->bootstrap);
    return status;
}

/* ---- round 1: who is there ---- */

static enum eth_hpp_status describe_self(const struct launch *l, struct eth_hpp_launch_rank *self,
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

/* A rank's word: its description, behind which rank 0 puts the text of the given plan. */
static enum eth_hpp_status make_hello(const struct launch *l, char **hello, size_t *size,
                                      struct eth_hpp_error *err)
{
    struct eth_hpp_launch_rank self;
    const char *path = eth_hpp_option_text(l->options, ETH_HPP_JOB_PLAN);
    char *plan = NULL;
    size_t plan_size = 0;
    enum eth_hpp_status status = describe_self(l, &self, err);
    if (status == ETH_HPP_OK && path != NULL && l->place->rank == 0)
        status = eth_hpp_file_read(path, PLAN_LIMIT, &plan, &plan_size, err);
    if (status != ETH_HPP_OK)
        return status;
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

static enum eth_hpp_status read_hellos(struct launch *l, const struct eth_hpp_exchange_word *words,
                                       struct eth_hpp_error *err)
{
    for (int r = 0; r < l->place->size; r++) {
        if (words[r].size < sizeof(*l->ranks))
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

static enum eth_hpp_status meet(struct launch *l, struct eth_hpp_error *err)
{
    struct eth_hpp_exchange_word *words = NULL;
    char *hello = NULL;
    size_t size = 0;
    enum eth_hpp_status status = make_hello(l, &hello, &size, err);
    if (status != ETH_HPP_OK && l->place->size > 1)
        eth_hpp_error_prefix(err, "rank %d on %s", l->place->rank, l->inventory.node);
    status = eth_hpp_exchange_round(l->bootstrap, "launch.hello", status, hello, size, &words, err);
    free(hello);
    if (status != ETH_HPP_OK)
        return status;
    status = read_hellos(l, words, err);
    eth_hpp_exchange_free(words, l->place->size);
    return status;
}

/* ---- round 2: what it is to be, and how fast devices are ---- */

static enum eth_hpp_status prepare(struct launch *l, struct eth_hpp_launch_times *own,
                                   struct eth_hpp_error *err)
{
    const struct eth_hpp_launch_rank *self = &l->ranks[l->place->rank];
    enum eth_hpp_calibrate_when when =
        (enum eth_hpp_calibrate_when)eth_hpp_option_number(l->options, ETH_HPP_JOB_CALIBRATE);
    enum eth_hpp_status status = eth_hpp_launch_ranks_check(l->ranks, l->place->size, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_launch_job_make(l->options, l->given_plan, l->ranks, l->place->size,
                                         &l->job, err);
    if (status != ETH_HPP_OK)
        return status;
    if (eth_hpp_option_text(l->options, ETH_HPP_JOB_PROFILE) != NULL)
        when = ETH_HPP_CALIBRATE_NO; /* the file has the times */
    status = eth_hpp_calibrate_device(&l->job.model, l->job.sequence_length, l->job.dtype, self,
                                      l->job.global_batch, when, own, err);
    if (status != ETH_HPP_OK && l->place->size > 1)
        eth_hpp_error_prefix(err, "rank %d on %s", l->place->rank, self->node);
    return status;
}

static enum eth_hpp_status measure_devices(struct launch *l, struct eth_hpp_error *err)
{
    struct eth_hpp_exchange_word *words = NULL;
    struct eth_hpp_launch_times own;
    enum eth_hpp_status status = prepare(l, &own, err);
    status = eth_hpp_exchange_round(l->bootstrap, "launch.times", status, &own, sizeof(own), &words,
                                    err);
    if (status != ETH_HPP_OK)
        return status;
    for (int r = 0; r < l->place->size; r++)
        memcpy(&l->times[r], words[r].data, sizeof(own));
    eth_hpp_exchange_free(words, l->place->size);
    return ETH_HPP_OK;
}

/* ---- round 3: how fast links are ---- */

/* Each rank says all its pairs' figures; those that it did not measure itself are 0. */
static void join_pairs(struct launch *l, const struct eth_hpp_exchange_word *words)
{
    for (int i = 0; i < l->pair_count; i++) {
        const struct eth_hpp_exchange_word *word = &words[l->pairs[i].from];
        if (word->size == (size_t)l->pair_count * sizeof(*l->pairs))
            memcpy(&l->pairs[i], (char *)word->data + (size_t)i * sizeof(*l->pairs),
                   sizeof(*l->pairs));
    }
}

static enum eth_hpp_status measure_links(struct launch *l, struct eth_hpp_error *err)
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
    status = eth_hpp_comm_open(l->bootstrap, LINKS_TIMEOUT_S, &comm, err);
    if (status == ETH_HPP_OK)
        status =
            eth_hpp_calibrate_links(comm, l->place->rank, l->pairs, rounds, l->pair_count, err);
    if (status == ETH_HPP_OK)
        eth_hpp_comm_close(comm);
    else if (comm != NULL)
        eth_hpp_comm_fail(comm, err, eth_hpp_error_exit_code(status));
    free(rounds);
    status = eth_hpp_exchange_round(l->bootstrap, "launch.links", status, l->pairs,
                                    (size_t)l->pair_count * sizeof(*l->pairs), &words, err);
    if (status != ETH_HPP_OK)
        return status;
    join_pairs(l, words);
    eth_hpp_exchange_free(words, l->place->size);
    return ETH_HPP_OK;
}

/* ---- round 4: the plan ---- */

static enum eth_hpp_status plan_and_show(struct launch *l, char **text, struct eth_hpp_error *err)
{
    struct eth_hpp_plan plan;
    const char *save = eth_hpp_option_text(l->options, ETH_HPP_JOB_SAVE_PLAN);
    struct eth_hpp_launch_facts facts = {.ranks = l->ranks,
                                         .count = l->place->size,
                                         .times = l->times,
                                         .pairs = l->pairs,
                                         .pair_count = l->pair_count};
    enum eth_hpp_status status = eth_hpp_launch_plan_make(l->options, &l->job, &facts, &plan, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_plan_print(&plan, text, err);
    if (status == ETH_HPP_OK && save != NULL)
        status = eth_hpp_file_write(save, *text, strlen(*text), 0644, err);
    eth_hpp_plan_free(&plan);
    return status;
}

/* Rank 0's word: "PORT\n" and the plan's text. */
static enum eth_hpp_status make_plan_word(struct launch *l, char **word, struct eth_hpp_error *err)
{
    char *text = NULL;
    int port = 0;
    enum eth_hpp_status status = eth_hpp_launch_port_find(&port, err);
    if (status == ETH_HPP_OK)
        status = plan_and_show(l, &text, err);
    if (status == ETH_HPP_OK && asprintf(word, "%d\n%s", port, text) < 0) {
        *word = NULL;
        status = eth_hpp_error_memory(err, "the plan");
    }
    free(text);
    return status;
}

static enum eth_hpp_status share_plan(struct launch *l, struct eth_hpp_error *err)
{
    struct eth_hpp_exchange_word *words = NULL;
    char *word = NULL, *end;
    enum eth_hpp_status status = ETH_HPP_OK;
    if (l->place->rank == 0)
        status = make_plan_word(l, &word, err);
    status = eth_hpp_exchange_round(l->bootstrap, "launch.plan", status, word,
                                    word != NULL ? strlen(word) : 0, &words, err);
    free(word);
    if (status != ETH_HPP_OK)
        return status;
    l->port = (int)strtol(words[0].data, &end, 10);
    l->plan = strdup(*end == '\n' ? end + 1 : end);
    eth_hpp_exchange_free(words, l->place->size);
    return l->plan != NULL ? ETH_HPP_OK : eth_hpp_error_memory(err, "the plan");
}

/* ---- round 5: all are ready to become the program ---- */

static enum eth_hpp_status get_ready(struct launch *l, const char *program,
                                     struct eth_hpp_error *err)
{
    struct eth_hpp_exchange_word *words = NULL;
    char path[4096];
    enum eth_hpp_status status = eth_hpp_launch_program_check(program, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_launch_plan_leave(l->plan, l->place->rank, path, sizeof(path), err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_launch_environment(l->place, l->ranks, &l->job, path, l->port, err);
    if (status != ETH_HPP_OK && l->place->size > 1)
        eth_hpp_error_prefix(err, "rank %d on %s", l->place->rank, l->inventory.node);
    status = eth_hpp_exchange_round(l->bootstrap, "launch.ready", status, "", 0, &words, err);
    if (status == ETH_HPP_OK)
        eth_hpp_exchange_free(words, l->place->size);
    return status;
}

/* ---- the flow ---- */

static enum eth_hpp_status run_rounds(struct launch *l, const char *program,
                                      struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    size_t size = (size_t)l->place->size;
    l->ranks = calloc(size, sizeof(*l->ranks));
    l->times = calloc(size, sizeof(*l->times));
    if (l->ranks == NULL || l->times == NULL)
        return eth_hpp_error_memory(err, "the launch");
    status = meet(l, err);
    if (status == ETH_HPP_OK)
        status = measure_devices(l, err);
    if (status == ETH_HPP_OK)
        status = measure_links(l, err);
    if (status == ETH_HPP_OK)
        status = share_plan(l, err);
    if (status == ETH_HPP_OK && program != NULL)
        status = get_ready(l, program, err);
    return status;
}

static void free_launch(struct launch *l)
{
    eth_hpp_bootstrap_close(l->bootstrap);
    eth_hpp_inventory_free(&l->inventory);
    eth_hpp_inventory_free(&l->visible);
    eth_hpp_launch_job_free(&l->job);
    free(l->ranks);
    free(l->times);
    free(l->pairs);
    free(l->given_plan);
    free(l->plan);
}

static enum eth_hpp_status launch(const struct eth_hpp_option_set *options, int argc, char **argv,
                                  struct eth_hpp_error *err)
{
    struct launch l = {.options = options};
    bool dry_run = eth_hpp_option_flag(options, ETH_HPP_JOB_DRY_RUN);
    if (eth_hpp_option_flag(options, ETH_HPP_JOB_VERBOSE))
        eth_hpp_log_set_level(ETH_HPP_LOG_DEBUG);
    if (argc == 0 && !dry_run)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "no program: eth-hpp launch [OPTIONS] -- PROGRAM [ARGUMENTS]");
    enum eth_hpp_status status = look_around(&l, err);
    if (status == ETH_HPP_OK)
        status = open_bootstrap(&l, err);
    if (status == ETH_HPP_OK)
        status = run_rounds(&l, dry_run ? NULL : argv[0], err);
    free_launch(&l);
    if (status != ETH_HPP_OK || dry_run)
        return status;
    execvp(argv[0], argv);
    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%.512s: cannot run it: %s", argv[0],
                             strerror(errno));
}

int eth_hpp_command_launch(int argc, char **argv)
{
    static const struct eth_hpp_command command = {
        .name = "launch",
        .arguments = "[OPTIONS] -- PROGRAM [ARGUMENTS]",
        .what = "Plans a job for the GPUs of its allocation and runs the program with that plan.\n"
                "Started once for each GPU, e.g. srun --mpi=pmix eth-hpp launch --model=gpt2 -- "
                "./train",
        .table = eth_hpp_job_options,
        .count = ETH_HPP_JOB_OPTIONS,
        .environment = true,
        .words = true,
        .run = launch};
    return eth_hpp_command_run(&command, argc, argv);
}
