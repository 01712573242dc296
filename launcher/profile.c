/* eth-hpp profile: measures devices and links as a launch does, and writes the files that planning
 * reads. */
#include "launcher/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/exchange.h"
#include "launcher/launch.h"

enum { MODEL, SEQ, SAMPLES, SECONDS, DTYPE, OUTPUT, SAVE_CLUSTER, OPTIONS };

static const struct eth_hpp_option options[OPTIONS] = {
    [MODEL] = {.like = &eth_hpp_job_options[ETH_HPP_JOB_MODEL],
               .help = "a preset (gpt2, llama-7b, ...) or a Hugging Face config.json"},
    [SEQ] = {.like = &eth_hpp_job_options[ETH_HPP_JOB_SEQ]},
    [SAMPLES] = {.name = "samples",
                 .kind = ETH_HPP_OPTION_COUNT,
                 .argument = "N",
                 .help = "largest micro-batch to measure",
                 .least = 1,
                 .most = 4096,
                 .fallback = "64"},
    [SECONDS] = {.name = "seconds",
                 .kind = ETH_HPP_OPTION_NUMBER,
                 .argument = "S",
                 .help = "how long measuring a device may take; longer gives larger micro-batches",
                 .least = 0.1,
                 .most = 3600,
                 .fallback = "5"},
    [DTYPE] = {.like = &eth_hpp_job_options[ETH_HPP_JOB_DTYPE]},
    [OUTPUT] = {.name = "output",
                .kind = ETH_HPP_OPTION_FILE,
                .argument = "FILE",
                .help = "where to write the profile; - is standard output",
                .fallback = "-"},
    [SAVE_CLUSTER] = {.name = "save-cluster",
                      .kind = ETH_HPP_OPTION_FILE,
                      .argument = "FILE",
                      .help = "where to write the cluster with its measured links"},
};

/* The job of which a launch would measure the same. */
static enum eth_hpp_status make_job(const struct eth_hpp_option_set *set,
                                    struct eth_hpp_option_set *job, struct eth_hpp_error *err)
{
    static const struct {
        int from, to;
    } same[] = {{MODEL, ETH_HPP_JOB_MODEL},
                {SEQ, ETH_HPP_JOB_SEQ},
                {SAMPLES, ETH_HPP_JOB_GLOBAL_BATCH},
                {DTYPE, ETH_HPP_JOB_DTYPE}};
    enum eth_hpp_status status =
        eth_hpp_option_set_init(job, eth_hpp_job_options, ETH_HPP_JOB_OPTIONS, err);
    if (status != ETH_HPP_OK)
        return status;
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]) && status == ETH_HPP_OK; i++) {
        const char *text = eth_hpp_option_text(set, (size_t)same[i].from);
        if (text != NULL)
            status = eth_hpp_option_assign(job, (size_t)same[i].to, text, ETH_HPP_FROM_OPTION, err);
    }
    if (status == ETH_HPP_OK)
        status = eth_hpp_option_assign(job, ETH_HPP_JOB_CALIBRATE, "yes", ETH_HPP_FROM_OPTION, err);
    if (status != ETH_HPP_OK)
        eth_hpp_option_set_free(job);
    return status;
}

static enum eth_hpp_status write_files(const struct eth_hpp_option_set *set,
                                       struct eth_hpp_launch *launch, struct eth_hpp_error *err)
{
    struct eth_hpp_launch_facts facts;
    const char *cluster = eth_hpp_option_text(set, SAVE_CLUSTER);
    enum eth_hpp_status status = eth_hpp_launch_facts_make(launch, &facts, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_profile_save(&facts.profile, eth_hpp_option_text(set, OUTPUT), err);
    if (status == ETH_HPP_OK && cluster != NULL)
        status = eth_hpp_cluster_save(&facts.cluster, cluster, err);
    eth_hpp_launch_facts_free(&facts);
    return status;
}

static enum eth_hpp_status profile(const struct eth_hpp_option_set *set, int argc, char **argv,
                                   struct eth_hpp_error *err)
{
    (void)argc;
    (void)argv;
    struct eth_hpp_option_set job;
    struct eth_hpp_launch launch;
    struct eth_hpp_exchange_word *words = NULL;
    enum eth_hpp_status status = make_job(set, &job, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_launch_open(&launch, &job, eth_hpp_option_number(set, SECONDS), err);
    if (status == ETH_HPP_OK) {
        int size = launch.place->size;
        if (launch.place->rank == 0)
            status = write_files(set, &launch, err);
        status = eth_hpp_exchange_round(launch.bootstrap, "profile.written",
                                        ETH_HPP_EXCHANGE_NEXT_S, status, "", 0, &words, err);
        if (status == ETH_HPP_OK)
            eth_hpp_exchange_free(words, size);
    }
    eth_hpp_launch_close(&launch);
    eth_hpp_option_set_free(&job);
    return status;
}

int eth_hpp_command_profile(int argc, char **argv)
{
    static const struct eth_hpp_command command = {
        .name = "profile",
        .arguments = "--model=MODEL [OPTIONS]",
        .what = "Measures how long the model's layers take, as a launch does, and writes the "
                "profile that\n`plan`, `simulate` and `launch --profile` read. Started with srun "
                "on several GPUs it measures\nall of them, and the links between them.",
        .table = options,
        .count = OPTIONS,
        .run = profile};
    return eth_hpp_command_run(&command, argc, argv);
}
