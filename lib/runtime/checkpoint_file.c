#include "runtime/checkpoint_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/file.h"
#include "base/json.h"
#include "runtime/checkpoint_folder.h"

#define MANIFEST_MAX (256u << 20)
#define TEXT_MAX     (64u << 20)
enum { FILES_MAX = 1 << 20, TENSORS_MAX = 1 << 24, NAME_LONGEST = 1100 };
#define STEPS_MAX      INT64_C(1000000000000000)
#define LOSS_SCALE_MAX 0x1p127 /* gradients times it are fp32 */

char *eth_hpp_checkpoint_part_name(const char *tensor, const char *moment, size_t first, size_t end)
{
    char *name = NULL;
    return asprintf(&name, "%s.%s[%zu:%zu]", tensor, moment, first, end) < 0 ? NULL : name;
}

static struct json_object *new_checksum(uint32_t checksum)
{
    char text[16];
    snprintf(text, sizeof(text), "%08x", checksum);
    return json_object_new_string(text);
}

static uint32_t read_checksum(const struct eth_hpp_json *object, const char *key)
{
    const char *text = eth_hpp_json_string(object, key, 8);
    char *end;
    uint32_t checksum = (uint32_t)strtoul(text, &end, 16);
    if (!eth_hpp_json_failed(object) && (strlen(text) != 8 || *end != '\0'))
        eth_hpp_json_fail(object, "%s: \"%s\" is no checksum", key, text);
    return checksum;
}

/* ---- writing ---- */

/* What a checkpoint consists of, while its manifest and index are made. */
struct contents {
    const char *partial;               /* the folder */
    struct json_object *files, *texts; /* of the manifest */
    struct json_object *weights;       /* of the index: tensor to file */
    double weight_bytes;
};

/* The last part of a path. */
static const char *name_in(const char *path)
{
    return strrchr(path, '/') + 1;
}

/* Notes a file of tensors that a rank has written. */
static enum eth_hpp_status note_file(struct contents *contents, const char *part, int number,
                                     int count, struct eth_hpp_error *err)
{
    struct eth_hpp_safetensors file;
    char *path = eth_hpp_checkpoint_file(contents->partial, part, number, count);
    if (path == NULL)
        return eth_hpp_error_memory(err, part);
    enum eth_hpp_status status = eth_hpp_safetensors_open(path, &file, err);
    free(path);
    if (status != ETH_HPP_OK)
        return status;
    const bool model = strcmp(part, "model") == 0;
    struct json_object *entry = json_object_new_object(), *names = json_object_new_array();
    for (size_t i = 0; i < file.count; i++) {
        eth_hpp_json_append(&names, json_object_new_string(file.tensors[i].name));
        if (!model)
            continue;
        contents->weight_bytes += (double)file.tensors[i].bytes;
        eth_hpp_json_put(&contents->weights, file.tensors[i].name,
                         json_object_new_string(name_in(file.path)));
    }
    eth_hpp_json_put(&entry, "name", json_object_new_string(name_in(file.path)));
    eth_hpp_json_put(&entry, "bytes", json_object_new_int64((int64_t)file.bytes));
    eth_hpp_json_put(&entry, "head_checksum", new_checksum(file.head_checksum));
    eth_hpp_json_put(&entry, "tensors", names);
    eth_hpp_json_append(&contents->files, entry);
    eth_hpp_safetensors_close(&file);
    return ETH_HPP_OK;
}

/* Writes a text into the checkpoint and notes it. */
static enum eth_hpp_status add_text(struct contents *contents, const char *name, const char *text,
                                    struct eth_hpp_error *err)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", contents->partial, name) < 0)
        return eth_hpp_error_memory(err, name);
    enum eth_hpp_status status = eth_hpp_file_write(path, text, strlen(text), 0644, err);
    free(path);
    struct json_object *entry = json_object_new_object();
    eth_hpp_json_put(&entry, "name", json_object_new_string(name));
    eth_hpp_json_put(&entry, "bytes", json_object_new_int64((int64_t)strlen(text)));
    eth_hpp_json_put(&entry, "checksum", new_checksum(eth_hpp_checksum(0, text, strlen(text))));
    eth_hpp_json_append(&contents->texts, entry);
    return status;
}

static enum eth_hpp_status add_index(struct contents *contents, struct eth_hpp_error *err)
{
    struct json_object *index = json_object_new_object(), *metadata = json_object_new_object();
    eth_hpp_json_put(&metadata, "total_size", eth_hpp_json_new_number(contents->weight_bytes));
    eth_hpp_json_put(&index, "metadata", metadata);
    eth_hpp_json_put(&index, "weight_map", json_object_get(contents->weights));
    const char *text = index == NULL
                           ? NULL
                           : json_object_to_json_string_ext(
                                 index, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE);
    enum eth_hpp_status status = text != NULL
                                     ? add_text(contents, "model.safetensors.index.json", text, err)
                                     : eth_hpp_error_memory(err, "the index");
    json_object_put(index);
    return status;
}

/* Of the manifest as it is without its checksum, however it is laid out. */
static uint32_t manifest_checksum(struct json_object *root)
{
    size_t length;
    const char *text = json_object_to_json_string_length(
        root, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &length);
    return text != NULL ? eth_hpp_checksum(0, text, length) : 0;
}

static void put_loss_scale(struct json_object **root, const struct eth_hpp_loss_scale *scale)
{
    struct json_object *entry = json_object_new_object();
    eth_hpp_json_put(&entry, "factor", eth_hpp_json_new_number(scale->factor));
    eth_hpp_json_put(&entry, "steps", json_object_new_int64(scale->steps));
    eth_hpp_json_put(root, "loss_scale", entry);
}

static enum eth_hpp_status write_manifest(struct contents *contents,
                                          const struct eth_hpp_checkpoint *state,
                                          struct eth_hpp_error *err)
{
    struct json_object *root = eth_hpp_json_new_file("eth-hpp-checkpoint", 1);
    char *path = NULL;
    if (asprintf(&path, "%s/%s", contents->partial, ETH_HPP_CHECKPOINT_MANIFEST) < 0) {
        json_object_put(root);
        return eth_hpp_error_memory(err, "the manifest");
    }
    eth_hpp_json_put(&root, "step", json_object_new_int64(state->step));
    eth_hpp_json_put(&root, "updates", json_object_new_int64(state->updates));
    if (state->loss_scale.factor > 0)
        put_loss_scale(&root, &state->loss_scale);
    eth_hpp_json_put(&root, "next_sample", json_object_new_int64(state->next_sample));
    eth_hpp_json_put(&root, "seed", json_object_new_int64((int64_t)state->seed));
    eth_hpp_json_put(&root, "data_tokens", json_object_new_int64(state->data_tokens));
    eth_hpp_json_put(&root, "global_batch", json_object_new_int(state->global_batch));
    eth_hpp_json_put(&root, "sequence_length", json_object_new_int(state->sequence_length));
    eth_hpp_json_put(&root, "files", json_object_get(contents->files));
    eth_hpp_json_put(&root, "texts", json_object_get(contents->texts));
    if (root != NULL)
        eth_hpp_json_put(&root, "checksum", new_checksum(manifest_checksum(root)));
    enum eth_hpp_status status = eth_hpp_json_save(root, path, err);
    free(path);
    return status;
}

/* The partial folder gets its final name; one of the same step gives way. */
static enum eth_hpp_status rename_folder(const char *folder, const char *partial, int64_t step,
                                         struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    char *path = eth_hpp_checkpoint_path(folder, step, "");
    if (path == NULL)
        return eth_hpp_error_memory(err, folder);
    eth_hpp_checkpoint_sync_folder(partial);
    eth_hpp_checkpoint_remove(path);
    if (rename(partial, path) != 0)
        status =
            eth_hpp_error_set(err, ETH_HPP_ERR_IO, "%s: cannot rename to %s: %m", partial, path);
    eth_hpp_checkpoint_sync_folder(folder);
    free(path);
    return status;
}

enum eth_hpp_status eth_hpp_checkpoint_publish(const char *folder,
                                               const struct eth_hpp_checkpoint *state,
                                               const char *config, int count, int keep,
                                               struct eth_hpp_error *err)
{
    char *partial = eth_hpp_checkpoint_path(folder, state->step, ETH_HPP_CHECKPOINT_PARTIAL);
    struct contents contents = {.partial = partial,
                                .files = json_object_new_array(),
                                .texts = json_object_new_array(),
                                .weights = json_object_new_object()};
    enum eth_hpp_status status =
        partial != NULL ? ETH_HPP_OK : eth_hpp_error_memory(err, "a checkpoint");
    for (int n = 1; status == ETH_HPP_OK && n <= count; n++) {
        status = note_file(&contents, "model", n, count, err);
        if (status == ETH_HPP_OK)
            status = note_file(&contents, "optimizer", n, count, err);
    }
    if (status == ETH_HPP_OK && config != NULL)
        status = add_text(&contents, "config.json", config, err);
    if (status == ETH_HPP_OK && count > 1)
        status = add_index(&contents, err);
    if (status == ETH_HPP_OK)
        status = write_manifest(&contents, state, err);
    if (status == ETH_HPP_OK)
        status = rename_folder(folder, partial, state->step, err);
    if (status == ETH_HPP_OK)
        eth_hpp_checkpoint_prune(folder, keep);
    json_object_put(contents.files);
    json_object_put(contents.texts);
    json_object_put(contents.weights);
    free(partial);
    return status;
}

/* ---- reading ---- */

static void read_loss_scale(const struct eth_hpp_json *root, struct eth_hpp_loss_scale *scale)
{
    *scale = (struct eth_hpp_loss_scale){.factor = 0};
    if (!eth_hpp_json_has(root, "loss_scale"))
        return;
    const struct eth_hpp_json entry = eth_hpp_json_object(root, "loss_scale");
    eth_hpp_json_keys(&entry, "factor", "steps", NULL);
    scale->factor = eth_hpp_json_number(&entry, "factor", 1, LOSS_SCALE_MAX);
    scale->steps = eth_hpp_json_integer(&entry, "steps", 0, STEPS_MAX);
}

static void read_state(const struct eth_hpp_json *root, struct eth_hpp_checkpoint *state)
{
    state->step = eth_hpp_json_integer(root, "step", 0, STEPS_MAX);
    state->updates = eth_hpp_json_integer_or(root, "updates", 0, state->step, state->step);
    read_loss_scale(root, &state->loss_scale);
    state->next_sample = eth_hpp_json_integer(root, "next_sample", 0, INT64_MAX / 2);
    state->seed = (uint64_t)eth_hpp_json_integer(root, "seed", 0, INT64_MAX / 2);
    state->data_tokens = eth_hpp_json_integer(root, "data_tokens", 0, INT64_MAX / 2);
    state->global_batch = (int)eth_hpp_json_integer(root, "global_batch", 1, INT32_MAX);
    state->sequence_length = (int)eth_hpp_json_integer(root, "sequence_length", 1, INT32_MAX);
}

static enum eth_hpp_status read_file(const struct eth_hpp_json *file,
                                     struct eth_hpp_tensor_set *set, struct eth_hpp_error *err)
{
    size_t index;
    eth_hpp_json_keys(file, "name", "bytes", "head_checksum", "tensors", NULL);
    const char *name = eth_hpp_json_string(file, "name", NAME_LONGEST);
    const int64_t bytes = eth_hpp_json_integer(file, "bytes", 1, INT64_MAX / 2);
    const uint32_t checksum = read_checksum(file, "head_checksum");
    struct eth_hpp_json tensors = eth_hpp_json_array(file, "tensors", 0, TENSORS_MAX);
    if (eth_hpp_json_failed(file))
        return ETH_HPP_OK; /* the document has the error */
    enum eth_hpp_status status = eth_hpp_tensor_set_add_file(set, name, &index, err);
    if (status != ETH_HPP_OK)
        return status;
    set->files[index].bytes = (size_t)bytes;
    set->files[index].head_checksum = checksum;
    for (size_t i = 0; status == ETH_HPP_OK && i < eth_hpp_json_length(&tensors); i++)
        status = eth_hpp_tensor_set_add(set, eth_hpp_json_item_string(&tensors, i, NAME_LONGEST),
                                        index, err);
    return status;
}

static void check_manifest(const struct eth_hpp_json *root)
{
    eth_hpp_json_format(root, "eth-hpp-checkpoint", 1);
    const uint32_t stored = read_checksum(root, "checksum");
    if (eth_hpp_json_failed(root))
        return;
    json_object_object_del(root->value, "checksum");
    if (manifest_checksum(root->value) != stored)
        eth_hpp_json_fail(root, "is damaged: its content does not have the checksum at its end");
    eth_hpp_json_keys(root, "format", "version", "step", "updates", "loss_scale", "next_sample",
                      "seed", "data_tokens", "global_batch", "sequence_length", "files", "texts",
                      NULL);
}

/* Holds the texts beside the tensors against what the manifest knows of them. */
static enum eth_hpp_status check_texts(const char *path, const struct eth_hpp_json *root,
                                       struct eth_hpp_error *err)
{
    struct eth_hpp_json texts = eth_hpp_json_array(root, "texts", 0, FILES_MAX);
    enum eth_hpp_status status = ETH_HPP_OK;
    for (size_t i = 0; status == ETH_HPP_OK && i < eth_hpp_json_length(&texts); i++) {
        struct eth_hpp_json at = eth_hpp_json_item(&texts, i);
        const char *name = eth_hpp_json_string(&at, "name", NAME_LONGEST);
        const uint32_t checksum = read_checksum(&at, "checksum");
        char *file = NULL, *text = NULL;
        size_t size;
        if (asprintf(&file, "%s/%s", path, name) < 0)
            return eth_hpp_error_memory(err, name);
        status = eth_hpp_file_read(file, TEXT_MAX, &text, &size, err);
        if (status == ETH_HPP_OK && eth_hpp_checksum(0, text, size) != checksum)
            status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                       "%s: is damaged between offset 0 and %zu: its bytes do not "
                                       "have the checksum of when they were written",
                                       file, size);
        free(text);
        free(file);
    }
    return status;
}

/* `texts`: check them, too. */
static enum eth_hpp_status read_manifest(const char *path, bool texts,
                                         struct eth_hpp_checkpoint *state,
                                         struct eth_hpp_tensor_set *set, struct eth_hpp_error *err)
{
    struct eth_hpp_json root;
    char *file = NULL;
    if (asprintf(&file, "%s/%s", path, ETH_HPP_CHECKPOINT_MANIFEST) < 0)
        return eth_hpp_error_memory(err, path);
    struct eth_hpp_json_document *document = eth_hpp_json_load(file, MANIFEST_MAX, &root, err);
    free(file);
    if (document == NULL)
        return err->status;
    check_manifest(&root);
    read_state(&root, state);
    struct eth_hpp_json files = eth_hpp_json_array(&root, "files", 1, FILES_MAX);
    enum eth_hpp_status status = eth_hpp_tensor_set_begin(path, set, err);
    for (size_t i = 0; status == ETH_HPP_OK && i < eth_hpp_json_length(&files); i++) {
        struct eth_hpp_json at = eth_hpp_json_item(&files, i);
        status = read_file(&at, set, err);
    }
    if (status == ETH_HPP_OK && texts && !eth_hpp_json_failed(&root))
        status = check_texts(path, &root, err);
    enum eth_hpp_status read = eth_hpp_json_finish(document, status == ETH_HPP_OK ? err : NULL);
    status = status != ETH_HPP_OK ? status : read;
    return status == ETH_HPP_OK ? eth_hpp_tensor_set_complete(set, err) : status;
}

static enum eth_hpp_status open_checkpoint(const char *path, bool texts,
                                           struct eth_hpp_checkpoint *state,
                                           struct eth_hpp_tensor_set *set,
                                           struct eth_hpp_error *err)
{
    struct eth_hpp_checkpoint read = {0};
    struct eth_hpp_tensor_set made = {0};
    struct eth_hpp_error local;
    err = err != NULL ? err : &local;
    enum eth_hpp_status status = read_manifest(path, texts, &read, &made, err);
    if (status != ETH_HPP_OK) {
        eth_hpp_tensor_set_close(&made);
        return status;
    }
    *state = read;
    *set = made;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_checkpoint_read(const char *path, struct eth_hpp_checkpoint *state,
                                            struct eth_hpp_tensor_set *set,
                                            struct eth_hpp_error *err)
{
    return open_checkpoint(path, false, state, set, err);
}

enum eth_hpp_status eth_hpp_checkpoint_verify(const char *path, struct eth_hpp_error *err)
{
    struct eth_hpp_checkpoint state;
    struct eth_hpp_tensor_set set;
    enum eth_hpp_status status = open_checkpoint(path, true, &state, &set, err);
    if (status != ETH_HPP_OK)
        return status;
    for (size_t i = 0; status == ETH_HPP_OK && i < set.entry_count; i++) {
        const struct eth_hpp_safetensors *file;
        const struct eth_hpp_stored_tensor *tensor;
        status = eth_hpp_tensor_set_get(&set, i, &file, &tensor, err);
        if (status == ETH_HPP_OK)
            status = eth_hpp_safetensors_read(file, tensor, NULL, err);
    }
    eth_hpp_tensor_set_close(&set);
    return status;
}
