#include "runtime/tensor_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"

#define INDEX_MAX (64u << 20)
enum { NAME_LONGEST = 1024 };

enum eth_hpp_status eth_hpp_tensor_set_begin(const char *folder, struct eth_hpp_tensor_set *set,
                                             struct eth_hpp_error *err)
{
    *set = (struct eth_hpp_tensor_set){.folder = strdup(folder)};
    return set->folder != NULL ? ETH_HPP_OK : eth_hpp_error_memory(err, folder);
}

enum eth_hpp_status eth_hpp_tensor_set_add_file(struct eth_hpp_tensor_set *set, const char *name,
                                                size_t *index, struct eth_hpp_error *err)
{
    for (size_t i = 0; i < set->file_count; i++)
        if (strcmp(set->files[i].name, name) == 0) {
            *index = i;
            return ETH_HPP_OK;
        }
    if (strchr(name, '/') != NULL || name[0] == '\0' || name[0] == '.')
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: names \"%.200s\", which is no file of this folder",
                                 set->folder, name);
    struct eth_hpp_tensor_file *files = realloc(set->files, (set->file_count + 1) * sizeof(*files));
    if (files == NULL)
        return eth_hpp_error_memory(err, set->folder);
    set->files = files;
    files[set->file_count] = (struct eth_hpp_tensor_file){.name = strdup(name)};
    if (files[set->file_count].name == NULL)
        return eth_hpp_error_memory(err, set->folder);
    *index = set->file_count++;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_tensor_set_add(struct eth_hpp_tensor_set *set, const char *name,
                                           size_t file, struct eth_hpp_error *err)
{
    if (set->entry_count == set->entry_room) {
        const size_t room = 2 * set->entry_room + 64;
        struct eth_hpp_tensor_entry *entries = realloc(set->entries, room * sizeof(*entries));
        if (entries == NULL)
            return eth_hpp_error_memory(err, set->folder);
        set->entries = entries;
        set->entry_room = room;
    }
    struct eth_hpp_tensor_entry *entry = &set->entries[set->entry_count];
    *entry = (struct eth_hpp_tensor_entry){.name = strdup(name), .file = file};
    if (entry->name == NULL)
        return eth_hpp_error_memory(err, set->folder);
    set->entry_count++;
    return ETH_HPP_OK;
}

static int order_names(const void *left, const void *right)
{
    const struct eth_hpp_tensor_entry *a = left, *b = right;
    return strcmp(a->name, b->name);
}

enum eth_hpp_status eth_hpp_tensor_set_complete(struct eth_hpp_tensor_set *set,
                                                struct eth_hpp_error *err)
{
    if (set->entry_count > 0)
        qsort(set->entries, set->entry_count, sizeof(*set->entries), order_names);
    for (size_t i = 1; i < set->entry_count; i++)
        if (strcmp(set->entries[i - 1].name, set->entries[i].name) == 0)
            return eth_hpp_error_set(
                err, ETH_HPP_ERR_INPUT, "%s: tensor %.200s stands twice, in %.100s and %.100s",
                set->folder, set->entries[i].name, set->files[set->entries[i - 1].file].name,
                set->files[set->entries[i].file].name);
    return ETH_HPP_OK;
}

void eth_hpp_tensor_set_close(struct eth_hpp_tensor_set *set)
{
    for (size_t i = 0; i < set->file_count; i++) {
        eth_hpp_safetensors_close(&set->files[i].opened);
        free(set->files[i].name);
    }
    for (size_t i = 0; i < set->entry_count; i++)
        free(set->entries[i].name);
    free(set->files);
    free(set->entries);
    free(set->folder);
    *set = (struct eth_hpp_tensor_set){0};
}

size_t eth_hpp_tensor_set_find(const struct eth_hpp_tensor_set *set, const char *name)
{
    size_t low = 0, high = set->entry_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(set->entries[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static enum eth_hpp_status open_file(struct eth_hpp_tensor_set *set, size_t index,
                                     struct eth_hpp_error *err)
{
    struct eth_hpp_tensor_file *file = &set->files[index];
    char *path = NULL;
    if (file->opened.path != NULL)
        return ETH_HPP_OK;
    if (asprintf(&path, "%s/%s", set->folder, file->name) < 0)
        return eth_hpp_error_memory(err, file->name);
    enum eth_hpp_status status = eth_hpp_safetensors_open(path, &file->opened, err);
    if (status == ETH_HPP_OK && file->bytes > 0 && file->opened.bytes != file->bytes)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "%s: ends at offset %zu, but had %zu bytes when it was written",
                                   path, file->opened.bytes, file->bytes);
    if (status == ETH_HPP_OK && file->bytes > 0 &&
        file->opened.head_checksum != file->head_checksum)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "%s: is damaged between offset 0 and %zu, in its head: those "
                                   "bytes do not have the checksum of when they were written",
                                   path, file->opened.head_bytes);
    free(path);
    return status;
}

enum eth_hpp_status eth_hpp_tensor_set_get(struct eth_hpp_tensor_set *set, size_t entry,
                                           const struct eth_hpp_safetensors **file,
                                           const struct eth_hpp_stored_tensor **tensor,
                                           struct eth_hpp_error *err)
{
    const struct eth_hpp_tensor_entry *at = &set->entries[entry];
    enum eth_hpp_status status = open_file(set, at->file, err);
    if (status != ETH_HPP_OK)
        return status;
    const struct eth_hpp_safetensors *opened = &set->files[at->file].opened;
    const struct eth_hpp_stored_tensor *found = eth_hpp_safetensors_find(opened, at->name);
    if (found == NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: has no tensor %.200s, which should "
                                 "be in it",
                                 opened->path, at->name);
    *file = opened;
    *tensor = found;
    return ETH_HPP_OK;
}

/* ---- Hugging Face folders ---- */

static enum eth_hpp_status add_index(const char *path, struct eth_hpp_tensor_set *set,
                                     struct eth_hpp_error *err)
{
    struct eth_hpp_json root, value;
    const char *name;
    enum eth_hpp_status status = ETH_HPP_OK;
    struct eth_hpp_json_document *document = eth_hpp_json_load(path, INDEX_MAX, &root, err);
    if (document == NULL)
        return err->status;
    struct eth_hpp_json map = eth_hpp_json_object(&root, "weight_map");
    for (void *iterator = NULL;
         status == ETH_HPP_OK && eth_hpp_json_next(&map, &iterator, &name, &value);) {
        size_t file;
        const char *file_name = eth_hpp_json_string(&map, name, NAME_LONGEST);
        if (eth_hpp_json_failed(&map))
            break;
        status = eth_hpp_tensor_set_add_file(set, file_name, &file, err);
        if (status == ETH_HPP_OK)
            status = eth_hpp_tensor_set_add(set, name, file, err);
    }
    enum eth_hpp_status read = eth_hpp_json_finish(document, status == ETH_HPP_OK ? err : NULL);
    return status != ETH_HPP_OK ? status : read;
}

/* The one file has to be opened to know what is in it. */
static enum eth_hpp_status add_single(struct eth_hpp_tensor_set *set, struct eth_hpp_error *err)
{
    size_t file;
    enum eth_hpp_status status = eth_hpp_tensor_set_add_file(set, "model.safetensors", &file, err);
    if (status == ETH_HPP_OK)
        status = open_file(set, file, err);
    for (size_t i = 0; status == ETH_HPP_OK && i < set->files[file].opened.count; i++)
        status = eth_hpp_tensor_set_add(set, set->files[file].opened.tensors[i].name, file, err);
    return status;
}

enum eth_hpp_status eth_hpp_tensor_set_open_model(const char *folder,
                                                  struct eth_hpp_tensor_set *set,
                                                  struct eth_hpp_error *err)
{
    struct eth_hpp_tensor_set made;
    struct eth_hpp_error local;
    char *index = NULL;
    err = err != NULL ? err : &local;
    enum eth_hpp_status status = eth_hpp_tensor_set_begin(folder, &made, err);
    if (status == ETH_HPP_OK && asprintf(&index, "%s/model.safetensors.index.json", folder) < 0) {
        index = NULL;
        status = eth_hpp_error_memory(err, folder);
    }
    if (status == ETH_HPP_OK)
        status = access(index, F_OK) == 0 ? add_index(index, &made, err) : add_single(&made, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_tensor_set_complete(&made, err);
    free(index);
    if (status == ETH_HPP_OK)
        *set = made;
    else
        eth_hpp_tensor_set_close(&made);
    return status;
}
