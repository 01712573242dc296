/* When the trainer takes checkpoints: every so many steps, at the end, and when Slurm asks it to
 * leave (time limit, preemption, requeue). */
#include <signal.h>
#include <stdlib.h>

#include "base/log.h"
#include "launcher/train.h"
#include "model/config_write.h"

static struct eth_hpp_context *volatile asked_context; /* of the handler; NULL on an idle rank */
static volatile sig_atomic_t asked_by;

static void ask_to_stop(int signal_number)
{
    asked_by = signal_number;
    if (asked_context != NULL)
        eth_hpp_request_stop(asked_context);
}

void eth_hpp_saver_outlast_signals(void)
{
    struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

void eth_hpp_saver_close(void)
{
    asked_context = NULL;
}

int eth_hpp_saver_signal(void)
{
    return asked_by != 0 ? asked_by : SIGTERM;
}

/* What was given must not contradict what is resumed. */
static enum eth_hpp_status check_resumed(const struct eth_hpp_saver_options *options,
                                         const struct eth_hpp_checkpoint *resumed,
                                         struct eth_hpp_error *err)
{
    if (options->seed_given && resumed->seed != options->seed)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "--seed=%llu contradicts the checkpoint in %s, which has %llu: "
                                 "leave it out",
                                 (unsigned long long)options->seed, options->folder,
                                 (unsigned long long)resumed->seed);
    if (resumed->data_tokens != options->data_tokens)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "the data have %lld tokens, those of the checkpoint in %s had "
                                 "%lld: go on with the same data, or start from its weights "
                                 "(--init-from)",
                                 (long long)options->data_tokens, options->folder,
                                 (long long)resumed->data_tokens);
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_saver_open(struct eth_hpp_context *context,
                                       const struct eth_hpp_saver_options *options,
                                       struct eth_hpp_saver *saver,
                                       struct eth_hpp_checkpoint *resumed,
                                       struct eth_hpp_error *err)
{
    char *config = NULL;
    struct eth_hpp_checkpoint found = {.step = -1};
    *saver = (struct eth_hpp_saver){.context = context, .options = *options, .saved = -1};
    *resumed = found;
    if (options->folder == NULL)
        return ETH_HPP_OK;
    enum eth_hpp_status status = eth_hpp_model_config_print(options->model, &config, err);
    if (status != ETH_HPP_OK)
        return status;
    const struct eth_hpp_checkpoint_options opening = {.folder = options->folder,
                                                       .keep = options->keep,
                                                       .resume = options->resume,
                                                       .model_config = config,
                                                       .seed = options->seed,
                                                       .data_tokens = options->data_tokens};
    status = eth_hpp_checkpoint_open(context, &opening, &found, err);
    free(config);
    if (status == ETH_HPP_OK && found.step >= 0)
        status = check_resumed(options, &found, err);
    if (status != ETH_HPP_OK)
        return status;
    saver->saved = found.step;
    asked_context = context;
    eth_hpp_saver_outlast_signals();
    *resumed = found;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_saver_step(struct eth_hpp_saver *saver,
                                       const struct eth_hpp_metrics *metrics, bool *stop,
                                       struct eth_hpp_error *err)
{
    const int64_t done = metrics->step + 1, every = saver->options.every;
    *stop = metrics->stop;
    if (saver->options.folder == NULL || metrics->stop || every == 0 || done % every != 0)
        return ETH_HPP_OK;
    saver->saved = done;
    return eth_hpp_checkpoint_save(saver->context, err);
}

enum eth_hpp_status eth_hpp_saver_finish(struct eth_hpp_saver *saver, int64_t steps,
                                         struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    if (saver->options.folder == NULL)
        return ETH_HPP_OK;
    if (saver->saved != steps)
        status = eth_hpp_checkpoint_save(saver->context, err);
    saver->saved = steps;
    return status == ETH_HPP_OK ? eth_hpp_checkpoint_finish(saver->context, err) : status;
}
