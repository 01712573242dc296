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
#include "launcher/calibrate.h"
#include "launcher/command.h"
#include "launcher/exchange.h"

struct shared_plan {
    char *text;
    int port; /* for MASTER_PORT */
};

/* ---- round 4: the plan ---- */

static enum eth_hpp_status plan_and_show(struct eth_hpp_launch *l, char **text,
                                         struct eth_hpp_error *err)
{
    struct eth_hpp_plan plan;
    const char *save = eth_hpp_option_text(l->options, ETH_HPP_JOB_SAVE_PLAN);
    enum eth_hpp_status status = eth_hpp_launch_plan_make(l, &plan, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_plan_print(&plan, text, err);
    if (status == ETH_HPP_OK && save != NULL)
        status = eth_hpp_file_output(save, *text, err);
    eth_hpp_plan_free(&plan);
    return status;
}

/* Rank 0's word: "PORT\n" and the plan's text. */
static enum eth_hpp_status make_plan_word(struct eth_hpp_launch *l, char **word,
                                          struct eth_hpp_error *err)
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

static enum eth_hpp_status share_plan(struct eth_hpp_launch *l, struct shared_plan *plan,
                                      struct eth_hpp_error *err)
{
    struct eth_hpp_exchange_word *words = NULL;
    char *word = NULL, *end;
    enum eth_hpp_status status = ETH_HPP_OK;
    if (l->place->rank == 0)
        status = make_plan_word(l, &word, err);
    status = eth_hpp_exchange_round(l->bootstrap, "launch.plan", ETH_HPP_EXCHANGE_NEXT_S, status,
                                    word, word != NULL ? strlen(word) : 0, &words, err);
    free(word);
    if (status != ETH_HPP_OK)
        return status;
    plan->port = (int)strtol(words[0].data, &end, 10);
    plan->text = strdup(*end == '\n' ? end + 1 : end);
    eth_hpp_exchange_free(words, l->place->size);
    return plan->text != NULL ? ETH_HPP_OK : eth_hpp_error_memory(err, "the plan");
}

/* ---- round 5: all are ready to become the program ---- */

static enum eth_hpp_status get_ready(struct eth_hpp_launch *l, const struct shared_plan *plan,
                                     const char *program, struct eth_hpp_error *err)
{
    struct eth_hpp_exchange_word *words = NULL;
    char path[4096];
    enum eth_hpp_status status = eth_hpp_launch_program_check(program, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_launch_plan_leave(plan->text, path, sizeof(path), err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_launch_environment(l->place, l->ranks, &l->job, path, plan->port, err);
    if (status != ETH_HPP_OK && l->place->size > 1)
        eth_hpp_error_prefix(err, "rank %d on %s", l->place->rank, l->inventory.node);
    status = eth_hpp_exchange_round(l->bootstrap, "launch.ready", ETH_HPP_EXCHANGE_NEXT_S, status,
                                    "", 0, &words, err);
    if (status == ETH_HPP_OK)
        eth_hpp_exchange_free(words, l->place->size);
    return status;
}

/* ---- the flow ---- */

static enum eth_hpp_status launch(const struct eth_hpp_option_set *options, int argc, char **argv,
                                  struct eth_hpp_error *err)
{
    struct eth_hpp_launch l;
    struct shared_plan plan = {0};
    bool dry_run = eth_hpp_option_flag(options, ETH_HPP_JOB_DRY_RUN);
    if (eth_hpp_option_flag(options, ETH_HPP_JOB_VERBOSE))
        eth_hpp_log_set_level(ETH_HPP_LOG_DEBUG);
    if (argc == 0 && !dry_run)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%s",
                                 eth_hpp_command_is_first_task()
                                     ? "no program: eth-hpp launch [OPTIONS] -- PROGRAM [ARGUMENTS]"
                                     : "");
    enum eth_hpp_status status = eth_hpp_launch_open(&l, options, ETH_HPP_CALIBRATE_DEVICE_S, err);
    if (status == ETH_HPP_OK)
        status = share_plan(&l, &plan, err);
    if (status == ETH_HPP_OK && !dry_run)
        status = get_ready(&l, &plan, argv[0], err);
    eth_hpp_launch_close(&l);
    free(plan.text);
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
