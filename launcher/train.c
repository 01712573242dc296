/*
 * eth-hpp train: trains the built-in GPT on the public API. Without a plan in the environment it
 * starts itself through `eth-hpp launch`.
 */
#include "launcher/train.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "launcher/command.h"
#include "models/gpt.h"
#include "runtime/data.h"

enum {
    DATA,
    MODEL,
    GLOBAL_BATCH,
    SEQ,
    STEPS,
    LR,
    MIN_LR,
    WARMUP,
    WEIGHT_DECAY,
    CLIP,
    SEED,
    METRICS,
    LOG_EVERY,
    OPTIONS
};

static const struct eth_hpp_option options[OPTIONS] = {
    [DATA] = {.name = "data",
              .kind = ETH_HPP_OPTION_FILE,
              .argument = "FILE",
              .help = "text, of which every byte is a token, or tokens in a .bin file"},
    [MODEL] = {.like = &eth_hpp_job_options[ETH_HPP_JOB_MODEL],
               .help = "preset or config.json of the family gpt2 (default: the plan's)"},
    [GLOBAL_BATCH] = {.like = &eth_hpp_job_options[ETH_HPP_JOB_GLOBAL_BATCH],
                      .help = "samples of a step, where there is no plan yet"},
    [SEQ] = {.like = &eth_hpp_job_options[ETH_HPP_JOB_SEQ],
             .help = "tokens of a sample, where there is no plan yet"},
    [STEPS] = {.name = "steps",
               .kind = ETH_HPP_OPTION_COUNT,
               .argument = "N",
               .help = "optimizer steps",
               .least = 1,
               .most = 1e9,
               .fallback = "100"},
    [LR] = {.name = "lr",
            .kind = ETH_HPP_OPTION_NUMBER,
            .argument = "RATE",
            .help = "learning rate after the warm-up",
            .least = 0,
            .most = 1e3,
            .fallback = "6e-4"},
    [MIN_LR] = {.name = "min-lr",
                .kind = ETH_HPP_OPTION_NUMBER,
                .argument = "RATE",
                .help = "learning rate at the end of the cosine",
                .least = 0,
                .most = 1e3,
                .fallback = "0"},
    [WARMUP] = {.name = "warmup",
                .kind = ETH_HPP_OPTION_COUNT,
                .argument = "N",
                .help = "steps over which the learning rate rises",
                .least = 0,
                .most = 1e9,
                .fallback = "0"},
    [WEIGHT_DECAY] = {.name = "weight-decay",
                      .kind = ETH_HPP_OPTION_NUMBER,
                      .argument = "X",
                      .help = "of AdamW, for matrices",
                      .least = 0,
                      .most = 10,
                      .fallback = "0.1"},
    [CLIP] = {.name = "clip",
              .kind = ETH_HPP_OPTION_NUMBER,
              .argument = "NORM",
              .help = "largest global norm of the gradient; 0 does not clip",
              .least = 0,
              .most = 1e9,
              .fallback = "1"},
    [SEED] = {.name = "seed",
              .kind = ETH_HPP_OPTION_COUNT,
              .argument = "N",
              .help = "of the initial weights and the order of the data",
              .least = 0,
              .most = 9e15,
              .fallback = "1"},
    [METRICS] = {.name = "metrics",
                 .kind = ETH_HPP_OPTION_FILE,
                 .argument = "FILE",
                 .help = "write a line of JSON for each step"},
    [LOG_EVERY] = {.name = "log-every",
                   .kind = ETH_HPP_OPTION_COUNT,
                   .argument = "N",
                   .help = "steps from line to line where standard output is no terminal",
                   .least = 1,
                   .most = 1e9,
                   .fallback = "10"},
};

/* What a run consists of, in the order in which it is made. */
struct run {
    const struct eth_hpp_option_set *set;
    struct eth_hpp_plan plan;
    struct eth_hpp_model model;
    struct eth_hpp_data *data;
    struct eth_hpp_context *context;
    struct eth_hpp_gpt *gpt;
    struct eth_hpp_progress *progress;
    bool shows; /* the one rank that prints */
};

/* ---- before there is a plan ---- */

/* Adds "--name=value" to the words. */
static bool add_option(char **words, int *count, const struct eth_hpp_option_set *set, int index)
{
    const char *text = eth_hpp_option_text(set, (size_t)index);
    if (text == NULL)
        return true;
    bool made = asprintf(&words[*count], "--%s=%s", set->table[index].name, text) >= 0;
    *count += made;
    return made;
}

static bool add_word(char **words, int *count, const char *text)
{
    words[*count] = strdup(text);
    *count += words[*count] != NULL;
    return words[*count - 1] != NULL;
}

/* `eth-hpp train OPTIONS` becomes `eth-hpp launch JOB-OPTIONS -- eth-hpp train OPTIONS`. */
static enum eth_hpp_status start_through_launch(const struct eth_hpp_option_set *set,
                                                struct eth_hpp_error *err)
{
    char *words[2 * OPTIONS + 8] = {0}, self[4096];
    int count = 0, code = ETH_HPP_EXIT_FAILURE;
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length < 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "cannot find this program's own file: %s",
                                 strerror(errno));
    self[length] = '\0';
    bool complete = add_word(words, &count, "launch") && add_option(words, &count, set, MODEL) &&
                    add_option(words, &count, set, GLOBAL_BATCH) &&
                    add_option(words, &count, set, SEQ) && add_word(words, &count, "--") &&
                    add_word(words, &count, self) && add_word(words, &count, "train");
    for (int i = 0; i < OPTIONS && complete; i++)
        complete = add_option(words, &count, set, i);
    if (complete)
        code = eth_hpp_command_launch(count, words); /* comes back only if it failed */
    while (count > 0)
        free(words[--count]);
    if (!complete)
        return eth_hpp_error_memory(err, "the command line");
    *err = (struct eth_hpp_error){0}; /* the launch has said why */
    return code == ETH_HPP_EXIT_USAGE        ? ETH_HPP_ERR_INPUT
           : code == ETH_HPP_EXIT_INFEASIBLE ? ETH_HPP_ERR_INFEASIBLE
                                             : ETH_HPP_ERR_IO;
}

/* ---- set-up ---- */

static enum eth_hpp_status open_inputs(struct run *run, struct eth_hpp_error *err)
{
    const char *path = getenv("ETH_HPP_PLAN_FILE"), *data = eth_hpp_option_text(run->set, DATA);
    const char *model = eth_hpp_option_text(run->set, MODEL);
    enum eth_hpp_status status = eth_hpp_plan_load(path, &run->plan, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_model_find(model != NULL ? model : run->plan.model, &run->model, err);
    /* What the environment asks for may have been overruled when the plan was made. */
    static const int from_plan[] = {GLOBAL_BATCH, SEQ};
    const int planned[] = {run->plan.global_batch, run->plan.sequence_length};
    for (int i = 0; i < 2 && status == ETH_HPP_OK; i++)
        if (run->set->values[from_plan[i]].source == ETH_HPP_FROM_OPTION)
            status = eth_hpp_command_agrees(run->set, from_plan[i], planned[i], err);
    if (status != ETH_HPP_OK)
        return status;
    struct eth_hpp_data_options reading = {.sequence_length = run->plan.sequence_length,
                                           .shuffle = true,
                                           .seed = (uint64_t)eth_hpp_option_number(run->set, SEED)};
    return eth_hpp_data_open(data, &reading, &run->data, err);
}

/* The lowest rank that computes prints: an idle one has no metrics. */
static int showing_rank(const struct eth_hpp_plan *plan, int world_size)
{
    for (int rank = 0; rank < world_size; rank++)
        if (eth_hpp_plan_find_rank(plan, rank).pipeline >= 0)
            return rank;
    return 0;
}

static enum eth_hpp_status open_model(struct run *run, struct eth_hpp_error *err)
{
    struct eth_hpp_gpt_options gpt = {.model = &run->model,
                                      .seed = (uint64_t)eth_hpp_option_number(run->set, SEED),
                                      .sample = eth_hpp_data_sample,
                                      .data = run->data};
    enum eth_hpp_status status = eth_hpp_init(NULL, &run->context, err);
    if (status != ETH_HPP_OK)
        return status;
    const struct eth_hpp_assignment *own = eth_hpp_get_assignment(run->context);
    run->shows = own->rank == showing_rank(&run->plan, own->world_size);
    if (run->shows && run->model.dropout)
        eth_hpp_log_warning("the configuration of %s asks for dropout, which the built-in GPT does "
                            "not do",
                            run->model.name);
    status = eth_hpp_gpt_create(run->context, &gpt, &run->gpt, err);
    if (status == ETH_HPP_OK && run->shows)
        status = eth_hpp_progress_open(&run->plan, (int64_t)eth_hpp_option_number(run->set, STEPS),
                                       (int64_t)eth_hpp_option_number(run->set, LOG_EVERY),
                                       eth_hpp_option_text(run->set, METRICS), &run->progress, err);
    return status;
}

/* ---- training ---- */

static enum eth_hpp_status train_steps(struct run *run, struct eth_hpp_error *err)
{
    const struct eth_hpp_option_set *set = run->set;
    struct eth_hpp_schedule schedule = {.peak = eth_hpp_option_number(set, LR),
                                        .least = eth_hpp_option_number(set, MIN_LR),
                                        .warmup = (int64_t)eth_hpp_option_number(set, WARMUP),
                                        .steps = (int64_t)eth_hpp_option_number(set, STEPS)};
    struct eth_hpp_optimizer_options optimizer = {.beta1 = 0.9,
                                                  .beta2 = 0.95,
                                                  .epsilon = 1e-8,
                                                  .weight_decay =
                                                      eth_hpp_option_number(set, WEIGHT_DECAY),
                                                  .clip_norm = eth_hpp_option_number(set, CLIP)};
    for (int64_t step = 0; step < schedule.steps; step++) {
        struct eth_hpp_metrics metrics;
        optimizer.learning_rate = eth_hpp_schedule_rate(&schedule, step);
        enum eth_hpp_status status = eth_hpp_step(run->context, &optimizer, &metrics, err);
        if (status == ETH_HPP_OK && run->shows)
            status = eth_hpp_progress_step(run->progress, &metrics, optimizer.learning_rate, err);
        if (status != ETH_HPP_OK)
            return status;
    }
    if (run->shows)
        eth_hpp_progress_finish(run->progress);
    return ETH_HPP_OK;
}

static void close_run(struct run *run)
{
    eth_hpp_gpt_destroy(run->gpt);
    eth_hpp_finalize(run->context);
    eth_hpp_progress_close(run->progress);
    eth_hpp_data_close(run->data);
    eth_hpp_plan_free(&run->plan);
}

static enum eth_hpp_status train(const struct eth_hpp_option_set *set, int argc, char **argv,
                                 struct eth_hpp_error *err)
{
    (void)argc;
    (void)argv;
    struct run run = {.set = set};
    if (eth_hpp_option_text(set, DATA) == NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "no data: give --data=FILE");
    if (eth_hpp_option_number(set, MIN_LR) > eth_hpp_option_number(set, LR))
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "--min-lr=%s is above --lr=%s: the rate falls from --lr to "
                                 "--min-lr",
                                 eth_hpp_option_text(set, MIN_LR), eth_hpp_option_text(set, LR));
    if (getenv("ETH_HPP_PLAN_FILE") == NULL)
        return start_through_launch(set, err);
    enum eth_hpp_status status = open_inputs(&run, err);
    if (status == ETH_HPP_OK)
        status = open_model(&run, err);
    if (status == ETH_HPP_OK && !eth_hpp_get_assignment(run.context)->idle)
        status = train_steps(&run, err);
    if (status != ETH_HPP_OK)
        eth_hpp_fail(run.context, err); /* tells the others, and says it once */
    close_run(&run);
    return status;
}

int eth_hpp_command_train(int argc, char **argv)
{
    static const struct eth_hpp_command command = {
        .name = "train",
        .arguments = "--data=FILE [OPTIONS]",
        .what = "Trains the built-in GPT by the plan of `eth-hpp launch`; without one it launches "
                "itself.",
        .table = options,
        .count = OPTIONS,
        .environment = true,
        .run = train};
    return eth_hpp_command_run(&command, argc, argv);
}
