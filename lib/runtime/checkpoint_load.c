/* Weights and optimizer states from files: each rank reads what it holds, whatever ranks wrote it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "runtime/checkpoint_file.h"
#include "runtime/checkpoint_folder.h"
#include "runtime/context.h"

/* Hugging Face's models are saved with or without the head, and so with or without one of these. */
static const char *bare_name(const char *name)
{
    static const char *const prefixes[] = {"transformer.", "model."};
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return name + strlen(prefixes[i]);
    return name;
}

/* ---- weights ---- */

static bool has(const struct eth_hpp_tensor_set *set, const char *name, size_t *entry)
{
    *entry = eth_hpp_tensor_set_find(set, name);
    return *entry < set->entry_count && strcmp(set->entries[*entry].name, name) == 0;
}

static enum eth_hpp_status check_shape(const struct eth_hpp_parameter *parameter,
                                       const struct eth_hpp_safetensors *file,
                                       const struct eth_hpp_stored_tensor *tensor,
                                       struct eth_hpp_error *err)
{
    const size_t rows = parameter->columns != 0 ? parameter->count / parameter->columns : 0;
    const bool fits = parameter->columns == 0
                          ? tensor->dimensions == 1 && tensor->count == parameter->count
                          : tensor->dimensions == 2 && tensor->shape[0] == rows &&
                                tensor->shape[1] == parameter->columns;
    if (fits)
        return ETH_HPP_OK;
    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                             "%s: %s, at offset %zu, has the shape [%zu, %zu] where this model has "
                             "[%zu, %zu]: it is another model's",
                             file->path, tensor->name, tensor->begin,
                             tensor->dimensions > 0 ? tensor->shape[0] : 0,
                             tensor->dimensions > 1 ? tensor->shape[1] : 0,
                             rows != 0 ? rows : parameter->count, parameter->columns);
}

/* `host` has room for the tensor. */
static enum eth_hpp_status load_weight(struct eth_hpp_context *context,
                                       struct eth_hpp_tensor_set *set, size_t t, float *host,
                                       struct eth_hpp_error *err)
{
    const struct eth_hpp_parameter *parameter = &context->parameters.tensors[t];
    struct eth_hpp_kernels *kernels = context->kernels;
    float *device = context->parameters.gradients + parameter->offset; /* free before a step */
    const struct eth_hpp_safetensors *file;
    const struct eth_hpp_stored_tensor *tensor;
    size_t entry;
    if (!has(set, parameter->name, &entry) && !has(set, bare_name(parameter->name), &entry))
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: has no tensor %s: it is another model's", set->folder,
                                 parameter->name);
    enum eth_hpp_status status = eth_hpp_tensor_set_get(set, entry, &file, &tensor, err);
    if (status == ETH_HPP_OK)
        status = check_shape(parameter, file, tensor, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_safetensors_read(file, tensor, host, err);
    if (status == ETH_HPP_OK)
        status = kernels->ops->to_device(kernels->state, device, host,
                                         parameter->count * sizeof(float), err);
    if (status == ETH_HPP_OK)
        eth_hpp_weights_set(context, t, device);
    return status;
}

/* ---- optimizer states ---- */

/* Reads one part, "TENSOR.first_moment[0:768]", to its place; *covered grows by its elements. */
static enum eth_hpp_status load_part(struct eth_hpp_tensor_set *set, size_t entry,
                                     const char *range, size_t count, float *host, size_t *covered,
                                     struct eth_hpp_error *err)
{
    const struct eth_hpp_safetensors *file;
    const struct eth_hpp_stored_tensor *tensor;
    size_t first, end;
    int length = 0;
    enum eth_hpp_status status = eth_hpp_tensor_set_get(set, entry, &file, &tensor, err);
    if (status != ETH_HPP_OK)
        return status;
    if (sscanf(range, "%zu:%zu]%n", &first, &end, &length) != 2 || range[length] != '\0' ||
        first > end || end > count || tensor->count != end - first)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: %s, at offset %zu, is no part of %zu elements", file->path,
                                 tensor->name, tensor->begin, count);
    *covered += end - first;
    return eth_hpp_safetensors_read(file, tensor, host + first, err);
}

static enum eth_hpp_status load_moment(struct eth_hpp_context *context,
                                       struct eth_hpp_tensor_set *set, size_t t, const char *moment,
                                       float *device, float *host, struct eth_hpp_error *err)
{
    const struct eth_hpp_parameter *parameter = &context->parameters.tensors[t];
    struct eth_hpp_kernels *kernels = context->kernels;
    enum eth_hpp_status status = ETH_HPP_OK;
    char *prefix = NULL;
    size_t covered = 0;
    if (asprintf(&prefix, "%s.%s[", parameter->name, moment) < 0)
        return eth_hpp_error_memory(err, parameter->name);
    const size_t length = strlen(prefix);
    for (size_t e = eth_hpp_tensor_set_find(set, prefix);
         status == ETH_HPP_OK && e < set->entry_count &&
         strncmp(set->entries[e].name, prefix, length) == 0;
         e++)
        status =
            load_part(set, e, set->entries[e].name + length, parameter->count, host, &covered, err);
    free(prefix);
    if (status == ETH_HPP_OK && covered != parameter->count)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "%s: has %zu of the %zu elements of the %s of %s", set->folder,
                                   covered, parameter->count, moment, parameter->name);
    const struct eth_hpp_updated_part own = eth_hpp_parameters_updated(&context->parameters, t);
    if (status == ETH_HPP_OK && own.first < own.end)
        status = kernels->ops->to_device(kernels->state, device + own.moments, host + own.first,
                                         (own.end - own.first) * sizeof(float), err);
    return status;
}

/* ---- all of a rank's tensors ---- */

static enum eth_hpp_status load_tensors(struct eth_hpp_context *context,
                                        struct eth_hpp_tensor_set *set, bool moments,
                                        struct eth_hpp_error *err)
{
    const struct eth_hpp_parameters *parameters = &context->parameters;
    enum eth_hpp_status status = ETH_HPP_OK;
    size_t most = 1;
    for (size_t t = 0; t < parameters->tensor_count; t++)
        if (parameters->tensors[t].count > most)
            most = parameters->tensors[t].count;
    float *host = malloc(most * sizeof(*host));
    if (host == NULL)
        return eth_hpp_error_memory(err, "the largest tensor");
    for (size_t t = 0; status == ETH_HPP_OK && t < parameters->tensor_count; t++) {
        if (parameters->tensors[t].alias)
            continue;
        status = load_weight(context, set, t, host, err);
        if (status == ETH_HPP_OK && moments)
            status = load_moment(context, set, t, ETH_HPP_FIRST_MOMENT, parameters->first_moments,
                                 host, err);
        if (status == ETH_HPP_OK && moments)
            status = load_moment(context, set, t, ETH_HPP_SECOND_MOMENT, parameters->second_moments,
                                 host, err);
    }
    free(host);
    return status;
}

enum eth_hpp_status eth_hpp_load_weights(struct eth_hpp_context *context, const char *folder,
                                         struct eth_hpp_error *err)
{
    struct eth_hpp_tensor_set set;
    if (!context->registered)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "eth_hpp_register comes before eth_hpp_load_weights");
    enum eth_hpp_status status = eth_hpp_tensor_set_open_model(folder, &set, err);
    if (status != ETH_HPP_OK)
        return status;
    status = load_tensors(context, &set, false, err);
    eth_hpp_tensor_set_close(&set);
    return status;
}

/* ---- checkpoints ---- */

static enum eth_hpp_status load_checkpoint(struct eth_hpp_context *context, const char *path,
                                           int64_t step, struct eth_hpp_checkpoint *state,
                                           struct eth_hpp_error *err)
{
    struct eth_hpp_tensor_set set;
    enum eth_hpp_status status = eth_hpp_checkpoint_read(path, state, &set, err);
    if (status != ETH_HPP_OK)
        return status;
    if (state->step != step)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "%s: its manifest is that of step %lld: the folder has been "
                                   "renamed",
                                   path, (long long)state->step);
    else if (state->sequence_length != context->assignment.sequence_length)
        status =
            eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                              "%s: was trained on samples of %d tokens, this run has %d: "
                              "where it was in the data means nothing here",
                              path, state->sequence_length, context->assignment.sequence_length);
    if (status == ETH_HPP_OK)
        status = load_tensors(context, &set, true, err);
    eth_hpp_tensor_set_close(&set);
    return status;
}

/* One candidate, on all ranks: *taken is the same on all. Of those that refuse it the lowest warns,
 * and keeps its reason in `refusal`; the others' is empty. */
static enum eth_hpp_status try_step(struct eth_hpp_context *context, const char *folder,
                                    int64_t step, struct eth_hpp_checkpoint *state, bool *taken,
                                    struct eth_hpp_error *refusal, struct eth_hpp_error *err)
{
    struct eth_hpp_error own = {0};
    char *path = eth_hpp_checkpoint_path(folder, step, "");
    if (path == NULL)
        return eth_hpp_error_memory(err, folder);
    enum eth_hpp_status loaded = load_checkpoint(context, path, step, state, &own);
    free(path);
    double refused = loaded == ETH_HPP_OK ? 0 : context->job.size - context->job.rank;
    const double mine = refused;
    enum eth_hpp_status status = eth_hpp_reduce_max(context, &refused, 1, err);
    if (status != ETH_HPP_OK)
        return status;
    *taken = refused == 0;
    *refusal = (struct eth_hpp_error){0};
    if (refused > 0 && mine == refused)
        *refusal = own;
    return ETH_HPP_OK;
}

/* Those that were passed over are set aside, so that they do not count among the newest. */
static void set_aside(const char *folder, const int64_t *steps, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char *path = eth_hpp_checkpoint_path(folder, steps[i], "");
        char *aside = eth_hpp_checkpoint_path(folder, steps[i], ETH_HPP_CHECKPOINT_DAMAGED);
        if (path != NULL && aside != NULL) {
            eth_hpp_checkpoint_remove(aside);
            if (rename(path, aside) != 0)
                eth_hpp_log_warning("%s: cannot rename to %s: %m", path, aside);
        }
        free(path);
        free(aside);
    }
}

/* A network file system may show unlike lists: that of the lowest rank counts. */
static enum eth_hpp_status agree_on_list(struct eth_hpp_context *context, const char *folder,
                                         int64_t **steps, size_t *count, struct eth_hpp_error *err)
{
    const bool lowest = eth_hpp_is_lowest(context);
    int64_t *found = NULL;
    size_t used = 0;
    enum eth_hpp_status status =
        lowest ? eth_hpp_checkpoint_list(folder, &found, &used, err) : ETH_HPP_OK;
    if (status != ETH_HPP_OK)
        return status;
    double length = (double)used;
    status = eth_hpp_reduce_max(context, &length, 1, err);
    if (status == ETH_HPP_OK && !lowest) {
        found = malloc(((size_t)length + 1) * sizeof(*found));
        if (found == NULL)
            status = eth_hpp_error_memory(err, folder);
    }
    for (size_t i = 0; status == ETH_HPP_OK && i < (size_t)length; i++) {
        double step = lowest ? (double)found[i] : -1;
        status = eth_hpp_reduce_max(context, &step, 1, err);
        if (status == ETH_HPP_OK)
            found[i] = (int64_t)step;
    }
    if (status != ETH_HPP_OK) {
        free(found);
        return status;
    }
    *steps = found;
    *count = (size_t)length;
    return ETH_HPP_OK;
}

/* The rank that refused the newest one says why; the others end with it. */
static enum eth_hpp_status refuse_all(struct eth_hpp_context *context, const char *folder,
                                      const struct eth_hpp_error *first, struct eth_hpp_error *err)
{
    double nothing = 0;
    if (first->text[0] != '\0')
        return eth_hpp_error_set(err, first->status, "%s: no checkpoint can be used: %s", folder,
                                 first->text);
    enum eth_hpp_status status = eth_hpp_reduce_max(context, &nothing, 1, err);
    return status != ETH_HPP_OK
               ? status
               : eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "%s: no checkpoint can be used", folder);
}

enum eth_hpp_status eth_hpp_checkpoint_resume(struct eth_hpp_context *context, const char *folder,
                                              struct eth_hpp_checkpoint *resumed,
                                              struct eth_hpp_error *err)
{
    struct eth_hpp_error refusal = {0}, first = {0};
    struct eth_hpp_checkpoint state = {.step = -1};
    int64_t *steps;
    size_t count, i = 0;
    bool taken = false;
    enum eth_hpp_status status = agree_on_list(context, folder, &steps, &count, err);
    if (status != ETH_HPP_OK)
        return status;
    for (; status == ETH_HPP_OK && i < count; i++) {
        status = try_step(context, folder, steps[i], &state, &taken, &refusal, err);
        if (status != ETH_HPP_OK || taken)
            break;
        if (i == 0)
            first = refusal;
        if (refusal.text[0] != '\0' && i + 1 < count)
            eth_hpp_log_warning("%s; trying the checkpoint before it", refusal.text);
    }
    if (status == ETH_HPP_OK && taken && eth_hpp_is_lowest(context))
        set_aside(folder, steps, i);
    if (status == ETH_HPP_OK && count > 0 && !taken)
        status = refuse_all(context, folder, &first, err);
    free(steps);
    if (status == ETH_HPP_OK && taken)
        *resumed = state;
    return status;
}
