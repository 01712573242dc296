/*
 * eth-hpp train: trains the built-in transformer on the public API. Without a plan in the
 * environment it starts itself through `eth-hpp launch`.
 */
#include "launcher/train.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "kernels/kernels.h"
#include "launcher/command.h"
#include "launcher/train_options.h"
#include "models/transformer.h"
#include "runtime/data.h"

/* What a run consists of, in the order in which it is made. */
struct run {
    const struct eth_hpp_option_set *set;
    struct eth_hpp_plan plan;
    struct eth_hpp_model model;
    struct eth_hpp_data *data;
    struct eth_hpp_context *context;
    struct eth_hpp_transformer *transformer;
    struct eth_hpp_progress *progress;
    struct eth_hpp_saver saver;
    struct eth_hpp_checkpoint resumed; /* step -1: a new training */
    double *peak_bytes;                /* [world_size] of the ranks' arenas */
    bool shows;                        /* the one rank that prints */
    bool stopped;                      /* a signal asked for the end */
};

/* ---- before there is a plan ---- */

/* A fine-tuned model is that of the folder. */
static const char *model_argument(const struct eth_hpp_option_set *set)
{
    const char *model = eth_hpp_option_text(set, ETH_HPP_TRAIN_MODEL);
    return model != NULL ? model : eth_hpp_option_text(set, ETH_HPP_TRAIN_INIT_FROM);
}

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

static bool add_model(char **words, int *count, const struct eth_hpp_option_set *set)
{
    const char *model = model_argument(set);
    if (model == NULL)
        return true;
    bool made = asprintf(&words[*count], "--model=%s", model) >= 0;
    *count += made;
    return made;
}

/* `eth-hpp train OPTIONS` becomes `eth-hpp launch JOB-OPTIONS -- eth-hpp train OPTIONS`. */
static enum eth_hpp_status start_through_launch(const struct eth_hpp_option_set *set,
                                                struct eth_hpp_error *err)
{
    char *words[2 * ETH_HPP_TRAIN_OPTIONS + 8] = {0}, self[4096];
    int count = 0, code = ETH_HPP_EXIT_FAILURE;
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length < 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "cannot find this program's own file: %s",
                                 strerror(errno));
    self[length] = '\0';
    bool complete = add_word(words, &count, "launch") && add_model(words, &count, set) &&
                    add_option(words, &count, set, ETH_HPP_TRAIN_GLOBAL_BATCH) &&
                    add_option(words, &count, set, ETH_HPP_TRAIN_SEQ) &&
                    add_word(words, &count, "--") && add_word(words, &count, self) &&
                    add_word(words, &count, "train");
    /* As they were typed: defaults and the environment are there as well. */
    for (int i = 0; i < ETH_HPP_TRAIN_OPTIONS && complete; i++)
        if (set->values[i].source == ETH_HPP_FROM_OPTION)
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

static enum eth_hpp_status open_data(struct run *run, uint64_t seed, struct eth_hpp_error *err)
{
    struct eth_hpp_data_options reading = {
        .sequence_length = run->plan.sequence_length, .shuffle = true, .seed = seed};
    return eth_hpp_data_open(eth_hpp_option_text(run->set, ETH_HPP_TRAIN_DATA), &reading,
                             &run->data, err);
}

/* Only now that all ranks have met: what one of them cannot read then ends all with one line. */
static enum eth_hpp_status open_inputs(struct run *run, struct eth_hpp_error *err)
{
    const char *path = getenv("ETH_HPP_PLAN_FILE"), *model = model_argument(run->set);
    enum eth_hpp_status status = eth_hpp_plan_load(path, &run->plan, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_model_find(model != NULL ? model : run->plan.model, &run->model, err);
    /* What the environment asks for may have been overruled when the plan was made. */
    static const int from_plan[] = {ETH_HPP_TRAIN_GLOBAL_BATCH, ETH_HPP_TRAIN_SEQ};
    const int planned[] = {run->plan.global_batch, run->plan.sequence_length};
    for (int i = 0; i < 2 && status == ETH_HPP_OK; i++)
        if (run->set->values[from_plan[i]].source == ETH_HPP_FROM_OPTION)
            status = eth_hpp_command_agrees(run->set, from_plan[i], planned[i], err);
    if (status != ETH_HPP_OK || eth_hpp_get_assignment(run->context)->idle)
        return status;
    return open_data(run, (uint64_t)eth_hpp_option_number(run->set, ETH_HPP_TRAIN_SEED), err);
}

/* What is trained on may change after the model is made: a checkpoint knows its own seed. */
static enum eth_hpp_status sample(void *user, int64_t number, int32_t *tokens, int32_t *targets,
                                  struct eth_hpp_error *err)
{
    const struct run *run = user;
    return eth_hpp_data_sample(run->data, number, tokens, targets, err);
}

/* The lowest rank that computes prints: an idle one has no metrics. */
static int showing_rank(const struct eth_hpp_plan *plan, int world_size)
{
    for (int rank = 0; rank < world_size; rank++)
        if (eth_hpp_plan_find_rank(plan, rank).pipeline >= 0)
            return rank;
    return 0;
}

static enum eth_hpp_status open_context(struct run *run, struct eth_hpp_error *err)
{
    const int check = (int)eth_hpp_option_number(run->set, ETH_HPP_TRAIN_CHECK_REPLICAS);
    const struct eth_hpp_init_options starting = {.check_replicas = check > 0 ? check : -1};
    return eth_hpp_init(&starting, &run->context, err);
}

static enum eth_hpp_status open_model(struct run *run, struct eth_hpp_error *err)
{
    struct eth_hpp_transformer_options model = {
        .model = &run->model,
        .seed = (uint64_t)eth_hpp_option_number(run->set, ETH_HPP_TRAIN_SEED),
        .sample = sample,
        .data = run};
    const struct eth_hpp_assignment *own = eth_hpp_get_assignment(run->context);
    run->shows = own->rank == showing_rank(&run->plan, own->world_size);
    return eth_hpp_transformer_create(run->context, &model, &run->transformer, err);
}

/* Goes on from a checkpoint, or starts from another model's weights. */
static enum eth_hpp_status open_checkpoints(struct run *run, struct eth_hpp_error *err)
{
    const struct eth_hpp_option_set *set = run->set;
    const char *init_from = eth_hpp_option_text(set, ETH_HPP_TRAIN_INIT_FROM);
    const struct eth_hpp_saver_options saving = {
        .folder = eth_hpp_option_text(set, ETH_HPP_TRAIN_CHECKPOINT),
        .every = (int64_t)eth_hpp_option_number(set, ETH_HPP_TRAIN_CHECKPOINT_EVERY),
        .keep = (int)eth_hpp_option_number(set, ETH_HPP_TRAIN_CHECKPOINT_KEEP),
        .resume = (enum eth_hpp_resume)eth_hpp_option_number(set, ETH_HPP_TRAIN_RESUME),
        .model = &run->model,
        .seed = (uint64_t)eth_hpp_option_number(set, ETH_HPP_TRAIN_SEED),
        .seed_given = set->values[ETH_HPP_TRAIN_SEED].source != ETH_HPP_FROM_DEFAULT,
        .data_tokens = eth_hpp_data_tokens(run->data)};
    enum eth_hpp_status status =
        eth_hpp_saver_open(run->context, &saving, &run->saver, &run->resumed, err);
    if (status != ETH_HPP_OK)
        return status;
    if (run->resumed.step < 0)
        return init_from != NULL ? eth_hpp_load_weights(run->context, init_from, err) : ETH_HPP_OK;
    if (run->shows)
        eth_hpp_log_info("going on from step %lld of %s", (long long)run->resumed.step,
                         saving.folder);
    if (run->shows && run->resumed.global_batch != run->plan.global_batch)
        eth_hpp_log_warning("the checkpoint was trained with %d samples a step, this plan has %d: "
                            "the loss will not go on as it would have; --global-batch=%d keeps it",
                            run->resumed.global_batch, run->plan.global_batch,
                            run->resumed.global_batch);
    if (run->resumed.seed == saving.seed)
        return ETH_HPP_OK;
    eth_hpp_transformer_set_seed(run->transformer, run->resumed.seed);
    eth_hpp_data_close(run->data);
    run->data = NULL;
    return open_data(run, run->resumed.seed, err);
}

static enum eth_hpp_status open_progress(struct run *run, struct eth_hpp_error *err)
{
    const struct eth_hpp_progress_options showing = {
        .first = run->resumed.step > 0 ? run->resumed.step : 0,
        .steps = (int64_t)eth_hpp_option_number(run->set, ETH_HPP_TRAIN_STEPS),
        .every = (int64_t)eth_hpp_option_number(run->set, ETH_HPP_TRAIN_LOG_EVERY),
        .metrics_path = eth_hpp_option_text(run->set, ETH_HPP_TRAIN_METRICS),
        .peak_bytes = run->peak_bytes,
        .ranks = eth_hpp_get_assignment(run->context)->world_size};
    /* Of a plan for real GPUs, too, where their module is no more than emulated. */
    if (strstr(eth_hpp_get_kernels(run->context)->name, "emulated") != NULL)
        run->plan.emulated = true;
    return eth_hpp_progress_open(&run->plan, &showing, &run->progress, err);
}

/* ---- training ---- */

static enum eth_hpp_status train_steps(struct run *run, struct eth_hpp_error *err)
{
    const struct eth_hpp_option_set *set = run->set;
    struct eth_hpp_schedule schedule = {
        .peak = eth_hpp_option_number(set, ETH_HPP_TRAIN_LR),
        .least = eth_hpp_option_number(set, ETH_HPP_TRAIN_MIN_LR),
        .warmup = (int64_t)eth_hpp_option_number(set, ETH_HPP_TRAIN_WARMUP),
        .steps = (int64_t)eth_hpp_option_number(set, ETH_HPP_TRAIN_STEPS)};
    struct eth_hpp_optimizer_options optimizer = {
        .beta1 = 0.9,
        .beta2 = 0.95,
        .epsilon = 1e-8,
        .weight_decay = eth_hpp_option_number(set, ETH_HPP_TRAIN_WEIGHT_DECAY),
        .clip_norm = eth_hpp_option_number(set, ETH_HPP_TRAIN_CLIP)};
    enum eth_hpp_status status = ETH_HPP_OK;
    int64_t step = run->resumed.step > 0 ? run->resumed.step : 0;
    while (status == ETH_HPP_OK && step < schedule.steps && !run->stopped) {
        struct eth_hpp_metrics metrics;
        optimizer.learning_rate = eth_hpp_schedule_rate(&schedule, step);
        status = eth_hpp_step(run->context, &optimizer, &metrics, err);
        if (status == ETH_HPP_OK && run->shows)
            status = eth_hpp_progress_step(run->progress, &metrics, optimizer.learning_rate, err);
        if (status == ETH_HPP_OK)
            status = eth_hpp_saver_step(&run->saver, &metrics, &run->stopped, err);
        step++;
    }
    if (status == ETH_HPP_OK)
        status = eth_hpp_saver_finish(&run->saver, step, err);
    if (status == ETH_HPP_OK && run->shows)
        eth_hpp_progress_finish(run->progress);
    if (status == ETH_HPP_OK && run->shows && run->stopped)
        eth_hpp_log_info("stopped by signal %d after step %lld: --resume goes on from there",
                         eth_hpp_saver_signal(), (long long)step);
    return status;
}

static enum eth_hpp_status train_rank(struct run *run, struct eth_hpp_error *err)
{
    const int ranks = eth_hpp_get_assignment(run->context)->world_size;
    enum eth_hpp_status status = open_checkpoints(run, err);
    run->peak_bytes = calloc((size_t)ranks, sizeof(double));
    if (status == ETH_HPP_OK && run->peak_bytes == NULL)
        status = eth_hpp_error_memory(err, "the ranks' figures");
    if (status == ETH_HPP_OK)
        status = eth_hpp_get_peaks(run->context, run->peak_bytes, err);
    if (status == ETH_HPP_OK && run->shows)
        status = open_progress(run, err);
    return status == ETH_HPP_OK ? train_steps(run, err) : status;
}

static void close_run(struct run *run)
{
    eth_hpp_saver_close();
    eth_hpp_transformer_destroy(run->transformer);
    eth_hpp_finalize(run->context);
    eth_hpp_progress_close(run->progress);
    eth_hpp_data_close(run->data);
    free(run->peak_bytes);
    eth_hpp_plan_free(&run->plan);
}

/* For the exit code: a signal has ended the training, in order. */
static bool stopped;

/* Who types one of these believes that there will be checkpoints. */
static enum eth_hpp_status check_checkpoint_options(const struct eth_hpp_option_set *set,
                                                    struct eth_hpp_error *err)
{
    static const enum eth_hpp_train_option needy[] = {
        ETH_HPP_TRAIN_CHECKPOINT_EVERY, ETH_HPP_TRAIN_CHECKPOINT_KEEP, ETH_HPP_TRAIN_RESUME};
    if (eth_hpp_option_text(set, ETH_HPP_TRAIN_CHECKPOINT) != NULL)
        return ETH_HPP_OK;
    for (size_t i = 0; i < sizeof(needy) / sizeof(needy[0]); i++)
        if (set->values[needy[i]].source == ETH_HPP_FROM_OPTION &&
            strcmp(set->values[needy[i]].text, "no") != 0)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                     "--%s=%s needs a folder of checkpoints: give --checkpoint=DIR",
                                     set->table[needy[i]].name, set->values[needy[i]].text);
    return ETH_HPP_OK;
}

static enum eth_hpp_status check_options(const struct eth_hpp_option_set *set,
                                         struct eth_hpp_error *err)
{
    if (eth_hpp_option_text(set, ETH_HPP_TRAIN_DATA) == NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "no data: give --data=FILE");
    if (eth_hpp_option_number(set, ETH_HPP_TRAIN_MIN_LR) >
        eth_hpp_option_number(set, ETH_HPP_TRAIN_LR))
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "--min-lr=%s is above --lr=%s: the rate falls from --lr to "
                                 "--min-lr",
                                 eth_hpp_option_text(set, ETH_HPP_TRAIN_MIN_LR),
                                 eth_hpp_option_text(set, ETH_HPP_TRAIN_LR));
    return check_checkpoint_options(set, err);
}

static enum eth_hpp_status train(const struct eth_hpp_option_set *set, int argc, char **argv,
                                 struct eth_hpp_error *err)
{
    (void)argc;
    (void)argv;
    struct run run = {.set = set, .resumed = {.step = -1}};
    enum eth_hpp_status status = check_options(set, err);
    if (status != ETH_HPP_OK && !eth_hpp_command_is_first_task())
        err->text[0] = '\0'; /* the same on all tasks of a step: the first one says it */
    if (status != ETH_HPP_OK)
        return status;
    if (getenv("ETH_HPP_PLAN_FILE") == NULL)
        return start_through_launch(set, err);
    status = open_context(&run, err);
    if (status == ETH_HPP_OK)
        status = open_inputs(&run, err);
    if (status == ETH_HPP_OK)
        status = open_model(&run, err);
    if (status == ETH_HPP_OK && !eth_hpp_get_assignment(run.context)->idle)
        status = train_rank(&run, err);
    else if (status == ETH_HPP_OK && eth_hpp_option_text(set, ETH_HPP_TRAIN_CHECKPOINT) != NULL)
        eth_hpp_saver_outlast_signals();
    if (status != ETH_HPP_OK)
        eth_hpp_fail(run.context, err); /* tells the others, and says it once */
    close_run(&run);
    stopped = run.stopped;
    return status;
}

int eth_hpp_command_train(int argc, char **argv)
{
    static const struct eth_hpp_command command = {
        .name = "train",
        .arguments = "--data=FILE [OPTIONS]",
        .what = "Trains the built-in transformer by the plan of `eth-hpp launch`; without one it "
                "launches "
                "itself.",
        .table = eth_hpp_train_options,
        .count = ETH_HPP_TRAIN_OPTIONS,
        .environment = true,
        .run = train};
    int code = eth_hpp_command_run(&command, argc, argv);
    return code == ETH_HPP_EXIT_OK && stopped ? ETH_HPP_EXIT_SIGNAL + eth_hpp_saver_signal() : code;
}
