/* Checkpoints as the training sees them: taken between two steps, written beside the next ones. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "runtime/checkpoint_folder.h"
#include "runtime/checkpoint_write.h"

enum { POLL_NS = 10000000, SHARED_TRIES = 20, SHARED_WAIT_NS = 100000000 };

static void sleep_ns(long nanoseconds)
{
    struct timespec wait = {.tv_nsec = nanoseconds};
    nanosleep(&wait, NULL);
}

/* ---- while training goes on ---- */

/* All ranks know at once that all have written, and then that the manifest is there: each step's
 * end, while a checkpoint is under way, they tell each other. */
enum eth_hpp_status eth_hpp_checkpoint_poll(struct eth_hpp_context *context,
                                            struct eth_hpp_error *err)
{
    struct eth_hpp_checkpointer *c = context->checkpointer;
    enum eth_hpp_status status = ETH_HPP_OK;
    if (c == NULL || c->phase == ETH_HPP_CHECKPOINT_IDLE)
        return ETH_HPP_OK;
    if (c->running && atomic_load(&c->done))
        status = eth_hpp_checkpoint_writer_join(c, err);
    double busy = c->running;
    if (status == ETH_HPP_OK)
        status = eth_hpp_reduce_max(context, &busy, 1, err);
    if (status != ETH_HPP_OK || busy > 0)
        return status;
    if (c->phase == ETH_HPP_CHECKPOINT_PUBLISHING) {
        c->phase = ETH_HPP_CHECKPOINT_IDLE;
        if (c->publishes)
            eth_hpp_log_info("checkpoint of step %lld in %s after %.2f s", (long long)c->state.step,
                             c->folder, eth_hpp_clock_now() - c->started);
        return ETH_HPP_OK;
    }
    c->phase = ETH_HPP_CHECKPOINT_PUBLISHING;
    return c->publishes ? eth_hpp_checkpoint_writer_start(c, ETH_HPP_CHECKPOINT_PUBLISHING, err)
                        : ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_checkpoint_finish(struct eth_hpp_context *context,
                                              struct eth_hpp_error *err)
{
    struct eth_hpp_checkpointer *c = context->checkpointer;
    enum eth_hpp_status status = ETH_HPP_OK;
    while (status == ETH_HPP_OK && c != NULL && c->phase != ETH_HPP_CHECKPOINT_IDLE) {
        status = eth_hpp_checkpoint_poll(context, err);
        if (status == ETH_HPP_OK && c->phase != ETH_HPP_CHECKPOINT_IDLE)
            sleep_ns(POLL_NS);
    }
    context->failed = context->failed || status != ETH_HPP_OK;
    return status;
}

enum eth_hpp_status eth_hpp_checkpoint_save(struct eth_hpp_context *context,
                                            struct eth_hpp_error *err)
{
    struct eth_hpp_checkpointer *c = context->checkpointer;
    const float *weights;
    if (c == NULL || context->failed)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 c == NULL ? "eth_hpp_checkpoint_open comes before a checkpoint"
                                           : "no checkpoint can follow a failure");
    enum eth_hpp_status status = eth_hpp_checkpoint_finish(context, err);
    if (status != ETH_HPP_OK)
        return status;
    c->started = eth_hpp_clock_now();
    c->state.step = context->step;
    c->state.next_sample = context->next_sample;
    c->state.updates = context->updates;
    if (context->plan.dtype == ETH_HPP_FP16)
        c->state.loss_scale = context->loss_scale;
    c->phase = ETH_HPP_CHECKPOINT_WRITING;
    status = eth_hpp_weights_collect(context, &weights, err);
    if (status == ETH_HPP_OK && c->number > 0)
        status = eth_hpp_checkpoint_writer_copy(context, weights, err);
    if (status == ETH_HPP_OK && c->number > 0)
        status = eth_hpp_checkpoint_writer_start(c, ETH_HPP_CHECKPOINT_WRITING, err);
    context->failed = status != ETH_HPP_OK;
    return status;
}

/* ---- start and end ---- */

/* A file of the lowest rank by which the others know that its folder is theirs. */
static enum eth_hpp_status touch(const char *path, struct eth_hpp_error *err)
{
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0)
        return eth_hpp_error_set(
            err, errno == ENOSPC || errno == EIO ? ETH_HPP_ERR_IO : ETH_HPP_ERR_INPUT,
            "%s: cannot write in the folder: %s", path, strerror(errno));
    close(file);
    return ETH_HPP_OK;
}

/* A folder of the node's own, /tmp say, would hold a part of each checkpoint. */
static enum eth_hpp_status check_shared(struct eth_hpp_context *context, const char *folder,
                                        struct eth_hpp_error *err)
{
    const bool lowest = eth_hpp_is_lowest(context);
    double number = lowest ? (double)getpid() : 0, done = 0;
    char *path = NULL;
    enum eth_hpp_status status = eth_hpp_reduce_max(context, &number, 1, err);
    if (status != ETH_HPP_OK)
        return status;
    if (asprintf(&path, "%s/.shared-%.0f", folder, number) < 0)
        return eth_hpp_error_memory(err, folder);
    if (lowest)
        status = touch(path, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_reduce_max(context, &done, 1, err);
    int tries = 0;
    while (status == ETH_HPP_OK && access(path, F_OK) != 0 && ++tries < SHARED_TRIES)
        sleep_ns(SHARED_WAIT_NS); /* a network file system may take its time */
    if (tries == SHARED_TRIES)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "%s: is not the same folder on %s and on the first rank's node: "
                                   "checkpoints need one that all nodes share",
                                   folder, context->job.host);
    if (status == ETH_HPP_OK)
        status = eth_hpp_reduce_max(context, &done, 1, err);
    if (lowest)
        unlink(path);
    free(path);
    return status;
}

/* A new training must not mix its checkpoints with those of another one. */
static enum eth_hpp_status check_empty(const char *folder, struct eth_hpp_error *err)
{
    int64_t *steps;
    size_t count;
    enum eth_hpp_status status = eth_hpp_checkpoint_list(folder, &steps, &count, err);
    if (status != ETH_HPP_OK)
        return status;
    if (count > 0)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "%s: holds checkpoints up to step %lld: go on from them "
                                   "(--resume), or give another folder",
                                   folder, (long long)steps[0]);
    free(steps);
    return status;
}

static enum eth_hpp_status resume(struct eth_hpp_context *context,
                                  const struct eth_hpp_checkpoint_options *options,
                                  struct eth_hpp_checkpoint *resumed, struct eth_hpp_error *err)
{
    *resumed = (struct eth_hpp_checkpoint){.step = -1};
    if (options->resume == ETH_HPP_RESUME_NO)
        return check_empty(options->folder, err);
    enum eth_hpp_status status = eth_hpp_checkpoint_resume(context, options->folder, resumed, err);
    if (status == ETH_HPP_OK && resumed->step < 0 && options->resume == ETH_HPP_RESUME_YES)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "%s: there is no checkpoint to resume from", options->folder);
    if (status == ETH_HPP_OK && resumed->step >= 0) {
        context->step = resumed->step;
        context->next_sample = resumed->next_sample;
        context->updates = resumed->updates;
        if (context->plan.dtype == ETH_HPP_FP16 && resumed->loss_scale.factor > 0)
            context->loss_scale = resumed->loss_scale;
    }
    return status;
}

static enum eth_hpp_status create(struct eth_hpp_context *context,
                                  const struct eth_hpp_checkpoint_options *options,
                                  struct eth_hpp_error *err)
{
    struct eth_hpp_checkpointer *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return eth_hpp_error_memory(err, "checkpoints");
    context->checkpointer = c;
    c->keep = options->keep;
    c->publishes = eth_hpp_is_lowest(context);
    c->state = (struct eth_hpp_checkpoint){.seed = options->seed,
                                           .data_tokens = options->data_tokens,
                                           .global_batch = context->assignment.global_batch,
                                           .sequence_length = context->assignment.sequence_length};
    c->folder = strdup(options->folder);
    if (options->model_config != NULL)
        c->model_config = strdup(options->model_config);
    if (c->folder == NULL || (options->model_config != NULL && c->model_config == NULL))
        return eth_hpp_error_memory(err, "checkpoints");
    return eth_hpp_checkpoint_writer_open(context, err);
}

enum eth_hpp_status eth_hpp_checkpoint_open(struct eth_hpp_context *context,
                                            const struct eth_hpp_checkpoint_options *options,
                                            struct eth_hpp_checkpoint *resumed,
                                            struct eth_hpp_error *err)
{
    struct eth_hpp_checkpoint found;
    if (!context->registered || context->failed || context->checkpointer != NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "eth_hpp_checkpoint_open is called once, after eth_hpp_register");
    enum eth_hpp_status status = ETH_HPP_OK;
    if (eth_hpp_is_lowest(context)) {
        status = eth_hpp_checkpoint_make_folder(options->folder, err);
        if (status == ETH_HPP_OK)
            eth_hpp_checkpoint_remove_partial(options->folder);
    }
    if (status == ETH_HPP_OK)
        status = check_shared(context, options->folder, err);
    if (status == ETH_HPP_OK)
        status = resume(context, options, &found, err);
    if (status == ETH_HPP_OK)
        status = create(context, options, err);
    if (status == ETH_HPP_OK && found.step >= 0 && eth_hpp_is_lowest(context))
        eth_hpp_checkpoint_prune(options->folder, options->keep); /* room for the next one */
    if (status == ETH_HPP_OK && found.step >= 0)
        context->checkpointer->state.seed = found.seed;
    context->failed = status != ETH_HPP_OK;
    if (status == ETH_HPP_OK)
        *resumed = found;
    return status;
}

void eth_hpp_checkpoint_free(struct eth_hpp_context *context)
{
    if (context->checkpointer == NULL)
        return;
    eth_hpp_checkpoint_writer_free(context->checkpointer);
    free(context->checkpointer);
    context->checkpointer = NULL;
}
