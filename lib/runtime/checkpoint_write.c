#include "runtime/checkpoint_write.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "runtime/checkpoint_file.h"
#include "runtime/checkpoint_folder.h"

/* ---- who writes what ---- */

/* A block's owners each write a share of its tensors, cut by bytes as they lie. */
static bool writes_tensor(const struct eth_hpp_context *context, size_t t)
{
    const struct eth_hpp_parameter *tensor = &context->parameters.tensors[t];
    if (tensor->alias)
        return false;
    const struct eth_hpp_owned_block *own = &context->parameters.blocks[tensor->block];
    const struct eth_hpp_block *block = &context->plan.blocks[tensor->block];
    const size_t share = (tensor->offset - own->offset) * (size_t)block->rank_count / own->count;
    return block->ranks[share] == context->job.rank;
}

/* Moments stand where the weights do, or with a sharded optimizer where they are held. */
static bool writes_states(const struct eth_hpp_context *context, size_t t)
{
    if (!context->plan.sharded_optimizer)
        return writes_tensor(context, t);
    const struct eth_hpp_updated_part part = eth_hpp_parameters_updated(&context->parameters, t);
    return !context->parameters.tensors[t].alias && part.first < part.end;
}

/* Numbers the ranks that write anything, in their order. */
static enum eth_hpp_status number_files(struct eth_hpp_context *context,
                                        struct eth_hpp_checkpointer *checkpointer,
                                        struct eth_hpp_error *err)
{
    const bool any = checkpointer->tensor_count + checkpointer->state_count > 0;
    double *writes = malloc(sizeof(*writes) * (size_t)context->job.size);
    if (writes == NULL)
        return eth_hpp_error_memory(err, "the checkpoint's files");
    enum eth_hpp_status status = eth_hpp_exchange_number(context, any, writes, err);
    for (int rank = 0; status == ETH_HPP_OK && rank < context->job.size; rank++) {
        checkpointer->count += writes[rank] > 0;
        if (rank == context->job.rank && any)
            checkpointer->number = checkpointer->count;
    }
    free(writes);
    return status;
}

static struct eth_hpp_stored_tensor describe(const struct eth_hpp_parameter *tensor)
{
    struct eth_hpp_stored_tensor stored = {
        .name = tensor->name, .type = ETH_HPP_STORED_F32, .count = tensor->count};
    if (tensor->columns != 0)
        stored.shape[stored.dimensions++] = tensor->count / tensor->columns;
    stored.shape[stored.dimensions++] = tensor->columns != 0 ? tensor->columns : tensor->count;
    return stored;
}

static enum eth_hpp_status make_model_image(const struct eth_hpp_context *context,
                                            struct eth_hpp_checkpointer *checkpointer,
                                            struct eth_hpp_error *err)
{
    const size_t count = checkpointer->tensor_count;
    struct eth_hpp_stored_tensor *weights = calloc(count + 1, sizeof(*weights));
    if (weights == NULL)
        return eth_hpp_error_memory(err, "the checkpoint's tensors");
    for (size_t i = 0; i < count; i++)
        weights[i] = describe(&context->parameters.tensors[checkpointer->tensors[i]]);
    enum eth_hpp_status status =
        eth_hpp_safetensors_image_create(weights, count, &checkpointer->model, err);
    free(weights);
    return status;
}

/* Lays out first and second moments in turn. */
static enum eth_hpp_status make_optimizer_image(const struct eth_hpp_context *context,
                                                struct eth_hpp_checkpointer *checkpointer,
                                                struct eth_hpp_error *err)
{
    static const char *const moments[] = {ETH_HPP_FIRST_MOMENT, ETH_HPP_SECOND_MOMENT};
    const size_t count = checkpointer->state_count;
    struct eth_hpp_stored_tensor *states = calloc(2 * count + 1, sizeof(*states));
    enum eth_hpp_status status =
        states != NULL ? ETH_HPP_OK : eth_hpp_error_memory(err, "the checkpoint's tensors");
    for (size_t i = 0; status == ETH_HPP_OK && i < 2 * count; i++) {
        const size_t t = checkpointer->states[i / 2];
        const struct eth_hpp_updated_part part =
            eth_hpp_parameters_updated(&context->parameters, t);
        states[i] = (struct eth_hpp_stored_tensor){.type = ETH_HPP_STORED_F32,
                                                   .shape = {part.end - part.first},
                                                   .dimensions = 1,
                                                   .count = part.end - part.first};
        states[i].name = eth_hpp_checkpoint_part_name(context->parameters.tensors[t].name,
                                                      moments[i % 2], part.first, part.end);
        if (states[i].name == NULL)
            status = eth_hpp_error_memory(err, "the checkpoint's tensors");
    }
    if (status == ETH_HPP_OK)
        status = eth_hpp_safetensors_image_create(states, 2 * count, &checkpointer->optimizer, err);
    for (size_t i = 0; states != NULL && i < 2 * count; i++)
        free(states[i].name);
    free(states);
    return status;
}

static int order_texts(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* Files tell tensors apart by their names alone. */
static enum eth_hpp_status check_names(const struct eth_hpp_parameters *parameters,
                                       struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    const char **names = malloc((parameters->tensor_count + 1) * sizeof(*names));
    size_t count = 0;
    if (names == NULL)
        return eth_hpp_error_memory(err, "the checkpoint's tensors");
    for (size_t t = 0; t < parameters->tensor_count; t++)
        if (!parameters->tensors[t].alias)
            names[count++] = parameters->tensors[t].name;
    qsort(names, count, sizeof(*names), order_texts);
    for (size_t i = 1; status == ETH_HPP_OK && i < count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                       "two tensors are registered as \"%s\": a checkpoint needs "
                                       "names that differ",
                                       names[i]);
    free(names);
    return status;
}

enum eth_hpp_status eth_hpp_checkpoint_writer_open(struct eth_hpp_context *context,
                                                   struct eth_hpp_error *err)
{
    struct eth_hpp_checkpointer *checkpointer = context->checkpointer;
    const size_t most = context->parameters.tensor_count;
    checkpointer->tensors = malloc((most + 1) * sizeof(*checkpointer->tensors));
    checkpointer->states = malloc((most + 1) * sizeof(*checkpointer->states));
    if (checkpointer->tensors == NULL || checkpointer->states == NULL)
        return eth_hpp_error_memory(err, "the checkpoint's tensors");
    for (size_t t = 0; t < most; t++) {
        if (writes_tensor(context, t))
            checkpointer->tensors[checkpointer->tensor_count++] = t;
        if (writes_states(context, t))
            checkpointer->states[checkpointer->state_count++] = t;
    }
    enum eth_hpp_status status = check_names(&context->parameters, err);
    if (status == ETH_HPP_OK)
        status = number_files(context, checkpointer, err);
    if (status == ETH_HPP_OK && checkpointer->number > 0)
        status = make_model_image(context, checkpointer, err);
    if (status == ETH_HPP_OK && checkpointer->number > 0)
        status = make_optimizer_image(context, checkpointer, err);
    return status;
}

enum eth_hpp_status eth_hpp_checkpoint_writer_copy(struct eth_hpp_context *context,
                                                   const float *weights, struct eth_hpp_error *err)
{
    struct eth_hpp_checkpointer *checkpointer = context->checkpointer;
    const struct eth_hpp_parameters *parameters = &context->parameters;
    struct eth_hpp_safetensors_image *model = &checkpointer->model;
    struct eth_hpp_safetensors_image *optimizer = &checkpointer->optimizer;
    enum eth_hpp_status status = ETH_HPP_OK;
    for (size_t i = 0; status == ETH_HPP_OK && i < checkpointer->tensor_count; i++)
        status = eth_hpp_device_read(context, model->bytes + model->begins[i],
                                     weights + parameters->tensors[checkpointer->tensors[i]].offset,
                                     model->begins[i + 1] - model->begins[i], err);
    for (size_t i = 0; status == ETH_HPP_OK && i < 2 * checkpointer->state_count; i++) {
        const float *moments = i % 2 == 0 ? parameters->first_moments : parameters->second_moments;
        status = eth_hpp_device_read(
            context, optimizer->bytes + optimizer->begins[i],
            moments + eth_hpp_parameters_updated(parameters, checkpointer->states[i / 2]).moments,
            optimizer->begins[i + 1] - optimizer->begins[i], err);
    }
    return status;
}

/* ---- the thread ---- */

static enum eth_hpp_status write_image(const struct eth_hpp_checkpointer *checkpointer,
                                       const char *partial, const char *part,
                                       struct eth_hpp_safetensors_image *image,
                                       struct eth_hpp_error *err)
{
    char *path = eth_hpp_checkpoint_file(partial, part, checkpointer->number, checkpointer->count);
    if (path == NULL)
        return eth_hpp_error_memory(err, partial);
    eth_hpp_safetensors_image_seal(image);
    enum eth_hpp_status status = eth_hpp_file_write(path, image->bytes, image->size, 0644, err);
    free(path);
    return status;
}

/* What will not become a checkpoint must not fill the disk. Other ranks may be writing beside. */
static void remove_own(const struct eth_hpp_checkpointer *checkpointer, const char *partial)
{
    static const char *const parts[] = {"model", "optimizer"};
    for (size_t i = 0; i < 2; i++) {
        char *path =
            eth_hpp_checkpoint_file(partial, parts[i], checkpointer->number, checkpointer->count);
        if (path != NULL)
            unlink(path);
        free(path);
    }
    rmdir(partial); /* where it is empty */
}

static enum eth_hpp_status write_own(struct eth_hpp_checkpointer *checkpointer, const char *partial,
                                     struct eth_hpp_error *err)
{
    enum eth_hpp_status status = eth_hpp_checkpoint_make_folder(partial, err);
    if (status == ETH_HPP_OK)
        status = write_image(checkpointer, partial, "model", &checkpointer->model, err);
    if (status == ETH_HPP_OK)
        status = write_image(checkpointer, partial, "optimizer", &checkpointer->optimizer, err);
    if (status != ETH_HPP_OK)
        remove_own(checkpointer, partial);
    return status;
}

static enum eth_hpp_status run_task(struct eth_hpp_checkpointer *checkpointer,
                                    struct eth_hpp_error *err)
{
    char *partial = eth_hpp_checkpoint_path(checkpointer->folder, checkpointer->state.step,
                                            ETH_HPP_CHECKPOINT_PARTIAL);
    enum eth_hpp_status status;
    if (partial == NULL)
        return eth_hpp_error_memory(err, "a checkpoint");
    if (checkpointer->task == ETH_HPP_CHECKPOINT_WRITING) {
        status = write_own(checkpointer, partial, err);
    } else {
        status = eth_hpp_checkpoint_publish(checkpointer->folder, &checkpointer->state,
                                            checkpointer->model_config, checkpointer->count,
                                            checkpointer->keep, err);
        if (status != ETH_HPP_OK)
            eth_hpp_checkpoint_remove(partial);
    }
    free(partial);
    return status;
}

static void *run_thread(void *argument)
{
    struct eth_hpp_checkpointer *checkpointer = argument;
    checkpointer->status = run_task(checkpointer, &checkpointer->failure);
    atomic_store(&checkpointer->done, true);
    return NULL;
}

enum eth_hpp_status eth_hpp_checkpoint_writer_start(struct eth_hpp_checkpointer *checkpointer,
                                                    enum eth_hpp_checkpoint_phase task,
                                                    struct eth_hpp_error *err)
{
    sigset_t all, before;
    checkpointer->task = task;
    atomic_store(&checkpointer->done, false);
    sigfillset(&all); /* signals are the program's own threads' */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&checkpointer->thread, NULL, run_thread, checkpointer);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "cannot start the checkpoint's thread: %s",
                                 strerror(failed));
    checkpointer->running = true;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_checkpoint_writer_join(struct eth_hpp_checkpointer *checkpointer,
                                                   struct eth_hpp_error *err)
{
    pthread_join(checkpointer->thread, NULL);
    checkpointer->running = false;
    if (checkpointer->status == ETH_HPP_OK)
        return ETH_HPP_OK;
    return eth_hpp_error_set(err, checkpointer->status, "the checkpoint of step %lld: %s",
                             (long long)checkpointer->state.step, checkpointer->failure.text);
}

void eth_hpp_checkpoint_writer_free(struct eth_hpp_checkpointer *checkpointer)
{
    if (checkpointer->running)
        pthread_join(checkpointer->thread, NULL);
    eth_hpp_safetensors_image_free(&checkpointer->model);
    eth_hpp_safetensors_image_free(&checkpointer->optimizer);
    free(checkpointer->tensors);
    free(checkpointer->states);
    free(checkpointer->folder);
    free(checkpointer->model_config);
}
