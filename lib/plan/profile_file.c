/* Reading and writing of `eth-hpp-profile` files. */
#include "plan/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS_MAX = 10000,
    DEVICES_MAX = 256,
    POINTS_MAX = 256,
    TENSOR_PARALLEL_MAX = 1024,
    SAMPLES_MAX = 1 << 20
};
#define FILE_MAX       (64u << 20)
#define BYTES_MAX      1e18
#define PARAMETERS_MAX 1e15
#define TIME_MIN       1e-9 /* no layer runs faster than a clock tick */
#define TIME_MAX       1e6

static bool same_kind(const struct eth_hpp_layer_kind *a, const struct eth_hpp_layer_kind *b)
{
    return a->parameters == b->parameters && a->gradient_bytes == b->gradient_bytes &&
           a->output_bytes == b->output_bytes;
}

static void read_layer(const struct eth_hpp_json *entry, struct eth_hpp_profile *profile)
{
    struct eth_hpp_layer_kind kind = {0};
    eth_hpp_json_keys(entry, "kind", "repeat", "parameters", "gradient_bytes", "output_bytes",
                      NULL);
    snprintf(kind.name, sizeof(kind.name), "%s",
             eth_hpp_json_string(entry, "kind", ETH_HPP_NAME_MAX - 1));
    kind.parameters = eth_hpp_json_number(entry, "parameters", 0, PARAMETERS_MAX);
    kind.gradient_bytes = eth_hpp_json_number(entry, "gradient_bytes", 0, BYTES_MAX);
    kind.output_bytes = eth_hpp_json_number(entry, "output_bytes", 0, BYTES_MAX);
    int repeat = (int)eth_hpp_json_integer_or(entry, "repeat", 1, LAYERS_MAX, 1);
    int index = eth_hpp_profile_find_kind(profile, kind.name);
    if (index >= 0 && !same_kind(&kind, &profile->kinds[index]))
        eth_hpp_json_fail(entry, "kind \"%s\" stood before with other sizes: give it another name",
                          kind.name);
    if (index < 0 && profile->kind_count == ETH_HPP_LAYER_KINDS_MAX)
        eth_hpp_json_fail(entry, "there are more than %d kinds of layer", ETH_HPP_LAYER_KINDS_MAX);
    if (profile->layer_count + repeat > LAYERS_MAX)
        eth_hpp_json_fail(entry, "there are more than %d layers", LAYERS_MAX);
    int *layers = realloc(profile->layers,
                          (size_t)(profile->layer_count + repeat) * sizeof(*profile->layers));
    if (layers == NULL)
        eth_hpp_json_fail(entry, "out of memory");
    else
        profile->layers = layers;
    if (eth_hpp_json_failed(entry))
        return;
    if (index < 0) {
        index = profile->kind_count++;
        profile->kinds[index] = kind;
    }
    for (int i = 0; i < repeat; i++)
        profile->layers[profile->layer_count++] = index;
}

static void read_tied(const struct eth_hpp_json *entry, struct eth_hpp_profile *profile)
{
    struct eth_hpp_tied *tied = &profile->tied[profile->tied_count];
    eth_hpp_json_keys(entry, "name", "kinds", "parameters", "gradient_bytes", NULL);
    snprintf(tied->name, sizeof(tied->name), "%s",
             eth_hpp_json_string(entry, "name", ETH_HPP_NAME_MAX - 1));
    tied->parameters = eth_hpp_json_number(entry, "parameters", 0, PARAMETERS_MAX);
    tied->gradient_bytes = eth_hpp_json_number(entry, "gradient_bytes", 0, BYTES_MAX);
    struct eth_hpp_json kinds = eth_hpp_json_array(entry, "kinds", 1, ETH_HPP_LAYER_KINDS_MAX);
    for (size_t i = 0; i < eth_hpp_json_length(&kinds); i++) {
        const char *name = eth_hpp_json_item_string(&kinds, i, ETH_HPP_NAME_MAX - 1);
        int kind = eth_hpp_profile_find_kind(profile, name);
        if (kind < 0)
            eth_hpp_json_fail(&kinds, "\"%s\" is no kind of layer in this profile", name);
        else
            tied->kinds |= 1u << kind;
    }
    for (int i = 0; i < profile->tied_count; i++)
        if (strcmp(profile->tied[i].name, tied->name) == 0)
            eth_hpp_json_fail(entry, "\"%s\" stands twice", tied->name);
    if (eth_hpp_profile_find_kind(profile, tied->name) >= 0)
        eth_hpp_json_fail(entry, "\"%s\" is a kind of layer already: give it another name",
                          tied->name);
    profile->tied_count++;
}

/* A key that is a whole number, such as the samples of a point. */
static int read_key(const struct eth_hpp_json *at, const char *key, int most, const char *what)
{
    char *end;
    long value = strtol(key, &end, 10);
    if (key[0] < '1' || key[0] > '9' || *end != '\0' || value > most) {
        eth_hpp_json_fail(at, "%s must be a whole number 1..%d, is \"%.32s\"", what, most, key);
        return 1;
    }
    return (int)value;
}

static int compare_ints(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Every kind, and only kinds, must be there: [forward_s, backward_s]. */
static void read_point(const struct eth_hpp_json *entry, const struct eth_hpp_profile *profile,
                       struct eth_hpp_layer_time *times)
{
    struct eth_hpp_json pair;
    const char *name;
    void *iterator = NULL;
    int seen = 0;
    while (eth_hpp_json_next(entry, &iterator, &name, &pair)) {
        int kind = eth_hpp_profile_find_kind(profile, name);
        if (kind < 0) {
            eth_hpp_json_fail(&pair, "is no kind of layer in this profile");
            return;
        }
        if (eth_hpp_json_length(&pair) != 2)
            eth_hpp_json_fail(&pair, "must be [forward_s, backward_s]");
        times[kind].forward_s = eth_hpp_json_item_number(&pair, 0, TIME_MIN, TIME_MAX);
        times[kind].backward_s = eth_hpp_json_item_number(&pair, 1, TIME_MIN, TIME_MAX);
        seen++;
    }
    if (seen != profile->kind_count)
        eth_hpp_json_fail(entry, "has times of %d kinds of layer, but there are %d", seen,
                          profile->kind_count);
}

/* The name of a device as a key, the count-th one of its object. */
static void check_device(const struct eth_hpp_json *at, const char *name, int count)
{
    if (name[0] == '\0' || strlen(name) >= ETH_HPP_NAME_MAX || count > DEVICES_MAX)
        eth_hpp_json_fail(at, "names have 1..%d bytes, and there are at most %d devices",
                          ETH_HPP_NAME_MAX - 1, DEVICES_MAX);
}

static void read_times(const struct eth_hpp_json *at, const char *device, int tensor_parallel,
                       struct eth_hpp_profile *profile)
{
    struct eth_hpp_json entry;
    struct eth_hpp_error err;
    struct eth_hpp_times *times;
    int samples[POINTS_MAX], points = 0;
    const char *key;
    void *iterator = NULL;
    while (eth_hpp_json_next(at, &iterator, &key, &entry)) {
        if (points == POINTS_MAX)
            eth_hpp_json_fail(at, "has more than %d points", POINTS_MAX);
        else
            samples[points++] = read_key(&entry, key, SAMPLES_MAX, "samples");
    }
    if (points == 0)
        eth_hpp_json_fail(at, "must have times of at least one micro-batch");
    if (eth_hpp_json_failed(at))
        return;
    qsort(samples, (size_t)points, sizeof(samples[0]), compare_ints);
    if (eth_hpp_profile_add_times(profile, device, tensor_parallel, samples, points, &times,
                                  &err) != ETH_HPP_OK) {
        eth_hpp_json_fail(at, "%s", err.text);
        return;
    }
    iterator = NULL;
    while (eth_hpp_json_next(at, &iterator, &key, &entry)) {
        int point = 0;
        while (samples[point] != atoi(key))
            point++;
        read_point(&entry, profile, times->times + point * profile->kind_count);
    }
}

static void read_all_times(const struct eth_hpp_json *root, struct eth_hpp_profile *profile)
{
    struct eth_hpp_json devices = eth_hpp_json_object(root, "times"), device, degree;
    const char *name, *key;
    void *iterator = NULL;
    int count = 0;
    while (eth_hpp_json_next(&devices, &iterator, &name, &device)) {
        void *inner = NULL;
        check_device(&device, name, ++count);
        while (eth_hpp_json_next(&device, &inner, &key, &degree))
            read_times(&degree, name,
                       read_key(&degree, key, TENSOR_PARALLEL_MAX, "tensor parallelism"), profile);
    }
    if (profile->times_count == 0)
        eth_hpp_json_fail(&devices, "must have times of at least one device");
}

static void read_bytes(const struct eth_hpp_json *entry, struct eth_hpp_layer_memory *memory)
{
    eth_hpp_json_keys(entry, "state_bytes", "optimizer_bytes", "saved_bytes", "workspace_bytes",
                      NULL);
    memory->state_bytes = eth_hpp_json_number(entry, "state_bytes", 0, BYTES_MAX);
    memory->optimizer_bytes =
        eth_hpp_json_number_or(entry, "optimizer_bytes", 0, memory->state_bytes, 0);
    memory->saved_bytes = eth_hpp_json_number_or(entry, "saved_bytes", 0, BYTES_MAX, 0);
    memory->workspace_bytes = eth_hpp_json_number_or(entry, "workspace_bytes", 0, BYTES_MAX, 0);
}

static void read_memory(const struct eth_hpp_json *degree, int tensor_parallel,
                        struct eth_hpp_profile *profile)
{
    struct eth_hpp_profile_memory *list =
        realloc(profile->memory, (size_t)(profile->memory_count + 1) * sizeof(*list));
    if (list == NULL) {
        eth_hpp_json_fail(degree, "out of memory");
        return;
    }
    profile->memory = list;
    struct eth_hpp_profile_memory *memory = &list[profile->memory_count++];
    *memory = (struct eth_hpp_profile_memory){.tensor_parallel = tensor_parallel};
    struct eth_hpp_json entry;
    const char *name;
    void *iterator = NULL;
    int seen = 0;
    while (eth_hpp_json_next(degree, &iterator, &name, &entry)) {
        int kind = eth_hpp_profile_find_kind(profile, name), tied = 0;
        while (tied < profile->tied_count && strcmp(profile->tied[tied].name, name) != 0)
            tied++;
        if (kind >= 0)
            read_bytes(&entry, &memory->kinds[kind]);
        else if (tied < profile->tied_count)
            read_bytes(&entry, &memory->tied[tied]);
        else
            eth_hpp_json_fail(&entry, "is neither a kind of layer nor a tied tensor here");
        seen++;
    }
    if (seen != profile->kind_count + profile->tied_count)
        eth_hpp_json_fail(degree,
                          "has %d entries, but there are %d kinds of layer and %d tied "
                          "tensors",
                          seen, profile->kind_count, profile->tied_count);
}

static void read_all_memory(const struct eth_hpp_json *root, struct eth_hpp_profile *profile)
{
    struct eth_hpp_json degrees = eth_hpp_json_object(root, "memory"), degree;
    const char *key;
    void *iterator = NULL;
    while (eth_hpp_json_next(&degrees, &iterator, &key, &degree))
        read_memory(&degree, read_key(&degree, key, TENSOR_PARALLEL_MAX, "tensor parallelism"),
                    profile);
    for (int i = 0; i < profile->times_count && !eth_hpp_json_failed(root); i++)
        if (eth_hpp_profile_find_memory(profile, profile->times[i].tensor_parallel) == NULL)
            eth_hpp_json_fail(&degrees, "has nothing for tensor parallelism %d, which has times",
                              profile->times[i].tensor_parallel);
}

static void read_optimizer(const struct eth_hpp_json *root, struct eth_hpp_profile *profile)
{
    if (!eth_hpp_json_has(root, "optimizer_s_per_parameter"))
        return;
    struct eth_hpp_json devices = eth_hpp_json_object(root, "optimizer_s_per_parameter"), value;
    struct eth_hpp_error err;
    const char *name;
    void *iterator = NULL;
    int count = 0;
    while (eth_hpp_json_next(&devices, &iterator, &name, &value)) {
        check_device(&value, name, ++count);
        double seconds = eth_hpp_json_number(&devices, name, 0, 1);
        if (eth_hpp_profile_set_optimizer_s(profile, name, seconds, &err) != ETH_HPP_OK)
            eth_hpp_json_fail(&value, "%s", err.text);
    }
}

static void read_profile(const struct eth_hpp_json *root, struct eth_hpp_profile *profile)
{
    eth_hpp_json_format(root, "eth-hpp-profile", 1);
    eth_hpp_json_keys(root, "format", "version", "model", "sequence_length", "dtype", "layers",
                      "tied", "times", "memory", "optimizer_s_per_parameter", NULL);
    snprintf(profile->model, sizeof(profile->model), "%s",
             eth_hpp_json_string(root, "model", ETH_HPP_NAME_MAX - 1));
    profile->sequence_length = (int)eth_hpp_json_integer(root, "sequence_length", 1, 1 << 24);
    const char *dtype = eth_hpp_json_string(root, "dtype", 16);
    if (eth_hpp_dtype_find(dtype) < 0)
        eth_hpp_json_fail(root, "dtype: must be fp32, bf16 or fp16, is \"%s\"", dtype);
    else
        profile->dtype = (enum eth_hpp_dtype)eth_hpp_dtype_find(dtype);
    struct eth_hpp_json layers = eth_hpp_json_array(root, "layers", 1, LAYERS_MAX);
    for (size_t i = 0; i < eth_hpp_json_length(&layers) && !eth_hpp_json_failed(root); i++) {
        struct eth_hpp_json entry = eth_hpp_json_item(&layers, i);
        read_layer(&entry, profile);
    }
    if (eth_hpp_json_has(root, "tied")) {
        struct eth_hpp_json tied = eth_hpp_json_array(root, "tied", 0, ETH_HPP_TIED_MAX);
        for (size_t i = 0; i < eth_hpp_json_length(&tied) && !eth_hpp_json_failed(root); i++) {
            struct eth_hpp_json entry = eth_hpp_json_item(&tied, i);
            read_tied(&entry, profile);
        }
    }
    read_all_times(root, profile);
    read_all_memory(root, profile);
    read_optimizer(root, profile);
    if (eth_hpp_json_has(root, "extra")) {
        struct eth_hpp_json extra = eth_hpp_json_object(root, "extra");
        profile->estimated = eth_hpp_json_boolean_or(&extra, "estimated", false);
    }
}

static enum eth_hpp_status finish(struct eth_hpp_json_document *document,
                                  const struct eth_hpp_json *root, struct eth_hpp_profile *profile,
                                  struct eth_hpp_error *err)
{
    struct eth_hpp_profile read = {0};
    read_profile(root, &read);
    enum eth_hpp_status status = eth_hpp_json_finish(document, err);
    if (status == ETH_HPP_OK)
        *profile = read;
    else
        eth_hpp_profile_free(&read);
    return status;
}

enum eth_hpp_status eth_hpp_profile_load(const char *path, struct eth_hpp_profile *profile,
                                         struct eth_hpp_error *err)
{
    struct eth_hpp_error local;
    struct eth_hpp_json root;
    err = err != NULL ? err : &local;
    struct eth_hpp_json_document *document = eth_hpp_json_load(path, FILE_MAX, &root, err);
    return document == NULL ? err->status : finish(document, &root, profile, err);
}

enum eth_hpp_status eth_hpp_profile_parse(const char *name, const char *text, size_t size,
                                          struct eth_hpp_profile *profile,
                                          struct eth_hpp_error *err)
{
    struct eth_hpp_error local;
    struct eth_hpp_json root;
    err = err != NULL ? err : &local;
    struct eth_hpp_json_document *document = eth_hpp_json_parse(name, text, size, &root, err);
    return document == NULL ? err->status : finish(document, &root, profile, err);
}

/* ---- writing ---- */

static struct json_object *write_layers(const struct eth_hpp_profile *profile)
{
    struct json_object *list = json_object_new_array();
    for (int i = 0, end; i < profile->layer_count; i = end) {
        const struct eth_hpp_layer_kind *kind = &profile->kinds[profile->layers[i]];
        struct json_object *entry = json_object_new_object();
        for (end = i + 1; end < profile->layer_count && profile->layers[end] == profile->layers[i];)
            end++;
        eth_hpp_json_put(&entry, "kind", json_object_new_string(kind->name));
        if (end - i > 1)
            eth_hpp_json_put(&entry, "repeat", json_object_new_int(end - i));
        eth_hpp_json_put(&entry, "parameters", eth_hpp_json_new_number(kind->parameters));
        eth_hpp_json_put(&entry, "gradient_bytes", eth_hpp_json_new_number(kind->gradient_bytes));
        eth_hpp_json_put(&entry, "output_bytes", eth_hpp_json_new_number(kind->output_bytes));
        eth_hpp_json_append(&list, entry);
    }
    return list;
}

static struct json_object *write_tied(const struct eth_hpp_profile *profile)
{
    struct json_object *list = json_object_new_array();
    for (int i = 0; i < profile->tied_count; i++) {
        const struct eth_hpp_tied *tied = &profile->tied[i];
        struct json_object *entry = json_object_new_object(), *kinds = json_object_new_array();
        for (int k = 0; k < profile->kind_count; k++)
            if (tied->kinds >> k & 1)
                eth_hpp_json_append(&kinds, json_object_new_string(profile->kinds[k].name));
        eth_hpp_json_put(&entry, "name", json_object_new_string(tied->name));
        eth_hpp_json_put(&entry, "kinds", kinds);
        eth_hpp_json_put(&entry, "parameters", eth_hpp_json_new_number(tied->parameters));
        eth_hpp_json_put(&entry, "gradient_bytes", eth_hpp_json_new_number(tied->gradient_bytes));
        eth_hpp_json_append(&list, entry);
    }
    return list;
}

static struct json_object *write_points(const struct eth_hpp_profile *profile,
                                        const struct eth_hpp_times *times)
{
    struct json_object *points = json_object_new_object();
    for (int i = 0; i < times->points; i++) {
        struct json_object *point = json_object_new_object();
        for (int k = 0; k < profile->kind_count; k++) {
            const struct eth_hpp_layer_time *time = &times->times[i * profile->kind_count + k];
            struct json_object *pair = json_object_new_array();
            eth_hpp_json_append(&pair, eth_hpp_json_new_number(time->forward_s));
            eth_hpp_json_append(&pair, eth_hpp_json_new_number(time->backward_s));
            eth_hpp_json_put(&point, profile->kinds[k].name, pair);
        }
        char key[16];
        snprintf(key, sizeof(key), "%d", times->samples[i]);
        eth_hpp_json_put(&points, key, point);
    }
    return points;
}

static struct json_object *write_times(const struct eth_hpp_profile *profile)
{
    struct json_object *devices = json_object_new_object();
    for (int i = 0; i < profile->times_count; i++) {
        const struct eth_hpp_times *times = &profile->times[i];
        bool first = true; /* of its device: all its degrees are written with the first one */
        for (int j = 0; j < i; j++)
            first = first && strcmp(profile->times[j].device, times->device) != 0;
        if (!first)
            continue;
        struct json_object *degrees = json_object_new_object();
        for (int j = i; j < profile->times_count; j++) {
            if (strcmp(profile->times[j].device, times->device) != 0)
                continue;
            char key[16];
            snprintf(key, sizeof(key), "%d", profile->times[j].tensor_parallel);
            eth_hpp_json_put(&degrees, key, write_points(profile, &profile->times[j]));
        }
        eth_hpp_json_put(&devices, times->device, degrees);
    }
    return devices;
}

static struct json_object *write_bytes(const struct eth_hpp_layer_memory *memory)
{
    struct json_object *entry = json_object_new_object();
    eth_hpp_json_put(&entry, "state_bytes", eth_hpp_json_new_number(memory->state_bytes));
    eth_hpp_json_put(&entry, "optimizer_bytes", eth_hpp_json_new_number(memory->optimizer_bytes));
    eth_hpp_json_put(&entry, "saved_bytes", eth_hpp_json_new_number(memory->saved_bytes));
    eth_hpp_json_put(&entry, "workspace_bytes", eth_hpp_json_new_number(memory->workspace_bytes));
    return entry;
}

static struct json_object *write_memory(const struct eth_hpp_profile *profile)
{
    struct json_object *degrees = json_object_new_object();
    for (int i = 0; i < profile->memory_count; i++) {
        const struct eth_hpp_profile_memory *memory = &profile->memory[i];
        struct json_object *degree = json_object_new_object();
        for (int k = 0; k < profile->kind_count; k++)
            eth_hpp_json_put(&degree, profile->kinds[k].name, write_bytes(&memory->kinds[k]));
        for (int t = 0; t < profile->tied_count; t++)
            eth_hpp_json_put(&degree, profile->tied[t].name, write_bytes(&memory->tied[t]));
        char key[16];
        snprintf(key, sizeof(key), "%d", memory->tensor_parallel);
        eth_hpp_json_put(&degrees, key, degree);
    }
    return degrees;
}

enum eth_hpp_status eth_hpp_profile_save(const struct eth_hpp_profile *profile, const char *path,
                                         struct eth_hpp_error *err)
{
    struct json_object *root = eth_hpp_json_new_file("eth-hpp-profile", 1);
    eth_hpp_json_put(&root, "model", json_object_new_string(profile->model));
    eth_hpp_json_put(&root, "sequence_length", json_object_new_int(profile->sequence_length));
    eth_hpp_json_put(&root, "dtype", json_object_new_string(eth_hpp_dtype_name(profile->dtype)));
    eth_hpp_json_put(&root, "layers", write_layers(profile));
    if (profile->tied_count > 0)
        eth_hpp_json_put(&root, "tied", write_tied(profile));
    eth_hpp_json_put(&root, "times", write_times(profile));
    eth_hpp_json_put(&root, "memory", write_memory(profile));
    struct json_object *optimizer = json_object_new_object();
    for (int i = 0; i < profile->optimizer_count; i++)
        eth_hpp_json_put(&optimizer, profile->optimizer[i].device,
                         eth_hpp_json_new_number(profile->optimizer[i].s_per_parameter));
    eth_hpp_json_put(&root, "optimizer_s_per_parameter", optimizer);
    if (profile->estimated) {
        struct json_object *extra = json_object_new_object();
        eth_hpp_json_put(&extra, "estimated", json_object_new_boolean(true));
        eth_hpp_json_put(&root, "extra", extra);
    }
    return eth_hpp_json_save(root, path, err);
}
