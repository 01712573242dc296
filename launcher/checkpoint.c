/* eth-hpp checkpoint: looks at what `train` has left, checks it, and makes a plain Hugging Face
 * folder of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "launcher/command.h"
#include "runtime/checkpoint_file.h"
#include "runtime/checkpoint_folder.h"

enum { OUTPUT, JSON, OPTIONS };
#define CONFIG_MAX (16u << 20)

static const struct eth_hpp_option options[OPTIONS] = {
    [OUTPUT] = {.name = "output",
                .kind = ETH_HPP_OPTION_FILE,
                .argument = "DIR",
                .help = "convert: the folder to make"},
    [JSON] = {.name = "json", .kind = ETH_HPP_OPTION_FLAG, .help = "show: print JSON"},
};

/* ---- which checkpoints ---- */

/* The checkpoints that a user means: the folder itself, or all in it, newest first. */
struct choice {
    char **paths;
    size_t count;
};

static void free_choice(struct choice *choice)
{
    for (size_t i = 0; i < choice->count; i++)
        free(choice->paths[i]);
    free(choice->paths);
    *choice = (struct choice){0};
}

static bool is_checkpoint(const char *path)
{
    char manifest[4200];
    snprintf(manifest, sizeof(manifest), "%s/%s", path, ETH_HPP_CHECKPOINT_MANIFEST);
    return access(manifest, F_OK) == 0;
}

static enum eth_hpp_status choose(const char *path, struct choice *choice,
                                  struct eth_hpp_error *err)
{
    int64_t *steps = NULL;
    size_t count = 1;
    const bool single = is_checkpoint(path);
    enum eth_hpp_status status =
        single ? ETH_HPP_OK : eth_hpp_checkpoint_list(path, &steps, &count, err);
    if (status != ETH_HPP_OK)
        return status;
    if (count == 0)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "%s: is no checkpoint and holds none: it has neither %s nor "
                                   "folders like step-000000100",
                                   path, ETH_HPP_CHECKPOINT_MANIFEST);
    choice->paths = calloc(count + 1, sizeof(*choice->paths));
    for (size_t i = 0; status == ETH_HPP_OK && i < count; i++) {
        char *found = choice->paths == NULL ? NULL
                      : single              ? strdup(path)
                                            : eth_hpp_checkpoint_path(path, steps[i], "");
        if (found == NULL)
            status = eth_hpp_error_memory(err, path);
        else
            choice->paths[choice->count++] = found;
    }
    free(steps);
    if (status != ETH_HPP_OK)
        free_choice(choice);
    return status;
}

static enum eth_hpp_status choose_from(int argc, char **argv, struct choice *choice,
                                       struct eth_hpp_error *err)
{
    if (argc != 1)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "one checkpoint, or a folder of some, is needed behind the "
                                 "options; %d are given",
                                 argc);
    return choose(argv[0], choice, err);
}

/* ---- show ---- */

static double bytes_of(const struct eth_hpp_tensor_set *set)
{
    double bytes = 0;
    for (size_t i = 0; i < set->file_count; i++)
        bytes += (double)set->files[i].bytes;
    return bytes;
}

static bool is_weight(const struct eth_hpp_tensor_set *set, size_t entry)
{
    return strncmp(set->files[set->entries[entry].file].name, "model", 5) == 0;
}

static enum eth_hpp_status print_tensors(struct eth_hpp_tensor_set *set, struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    for (size_t i = 0; status == ETH_HPP_OK && i < set->entry_count; i++) {
        const struct eth_hpp_safetensors *file;
        const struct eth_hpp_stored_tensor *tensor;
        char shape[64] = "";
        status = eth_hpp_tensor_set_get(set, i, &file, &tensor, err);
        for (int d = 0; status == ETH_HPP_OK && d < tensor->dimensions; d++)
            snprintf(shape + strlen(shape), sizeof(shape) - strlen(shape), "%s%zu",
                     d > 0 ? " x " : "", tensor->shape[d]);
        if (status == ETH_HPP_OK)
            printf("  %-56s %-16s %s at %zu\n", tensor->name, shape,
                   set->files[set->entries[i].file].name, tensor->begin);
    }
    return status;
}

static void print_state(const char *path, const struct eth_hpp_checkpoint *state,
                        const struct eth_hpp_tensor_set *set)
{
    printf("%s: step %lld, %lld samples of %d tokens seen, %d a step, seed %llu; %.1f MB in %zu "
           "files\n",
           path, (long long)state->step, (long long)state->next_sample, state->sequence_length,
           state->global_batch, (unsigned long long)state->seed, bytes_of(set) / 1e6,
           set->file_count);
}

static struct json_object *describe(const char *path, const struct eth_hpp_checkpoint *state,
                                    const struct eth_hpp_tensor_set *set)
{
    struct json_object *entry = json_object_new_object();
    eth_hpp_json_put(&entry, "path", json_object_new_string(path));
    eth_hpp_json_put(&entry, "step", json_object_new_int64(state->step));
    eth_hpp_json_put(&entry, "next_sample", json_object_new_int64(state->next_sample));
    eth_hpp_json_put(&entry, "global_batch", json_object_new_int(state->global_batch));
    eth_hpp_json_put(&entry, "sequence_length", json_object_new_int(state->sequence_length));
    eth_hpp_json_put(&entry, "seed", json_object_new_int64((int64_t)state->seed));
    eth_hpp_json_put(&entry, "data_tokens", json_object_new_int64(state->data_tokens));
    eth_hpp_json_put(&entry, "bytes", eth_hpp_json_new_number(bytes_of(set)));
    eth_hpp_json_put(&entry, "files", json_object_new_int64((int64_t)set->file_count));
    return entry;
}

/* The state of each, and the tensors where it is one alone. */
static enum eth_hpp_status show(const struct eth_hpp_option_set *set, int argc, char **argv,
                                struct eth_hpp_error *err)
{
    const bool json = eth_hpp_option_flag(set, 0);
    struct choice choice = {0};
    struct json_object *list = json_object_new_array();
    enum eth_hpp_status status = choose_from(argc, argv, &choice, err);
    for (size_t i = 0; status == ETH_HPP_OK && i < choice.count; i++) {
        struct eth_hpp_checkpoint state;
        struct eth_hpp_tensor_set tensors;
        status = eth_hpp_checkpoint_read(choice.paths[i], &state, &tensors, err);
        if (status != ETH_HPP_OK)
            break;
        if (json)
            eth_hpp_json_append(&list, describe(choice.paths[i], &state, &tensors));
        else
            print_state(choice.paths[i], &state, &tensors);
        if (!json && choice.count == 1)
            status = print_tensors(&tensors, err);
        eth_hpp_tensor_set_close(&tensors);
    }
    if (status == ETH_HPP_OK && json) {
        struct json_object *root = json_object_new_object();
        eth_hpp_json_put(&root, "checkpoints", list);
        list = NULL;
        status = eth_hpp_json_save(root, "-", err);
    }
    json_object_put(list);
    free_choice(&choice);
    return status;
}

/* ---- verify ---- */

/* All are looked at; the last error is the command's. */
static enum eth_hpp_status verify(const struct eth_hpp_option_set *set, int argc, char **argv,
                                  struct eth_hpp_error *err)
{
    struct choice choice = {0};
    size_t damaged = 0;
    (void)set;
    enum eth_hpp_status status = choose_from(argc, argv, &choice, err);
    for (size_t i = 0; i < choice.count; i++) {
        struct eth_hpp_error why = {0};
        if (eth_hpp_checkpoint_verify(choice.paths[i], &why) == ETH_HPP_OK) {
            printf("%s: whole\n", choice.paths[i]);
            continue;
        }
        damaged++;
        status = why.status;
        if (choice.count > 1)
            eth_hpp_log_error("%s", why.text);
        else
            *err = why;
    }
    if (damaged > 0 && choice.count > 1)
        eth_hpp_error_set(err, status, "%zu of %zu checkpoints are damaged", damaged, choice.count);
    free_choice(&choice);
    return status;
}

/* ---- convert ---- */

static enum eth_hpp_status copy_config(const char *from, const char *to, struct eth_hpp_error *err)
{
    char source[4200], target[4200], *text;
    size_t size;
    snprintf(source, sizeof(source), "%s/config.json", from);
    snprintf(target, sizeof(target), "%s/config.json", to);
    enum eth_hpp_status status = eth_hpp_file_read(source, CONFIG_MAX, &text, &size, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_file_write(target, text, size, 0644, err);
    free(text);
    return status;
}

/* All weights in one file in memory. `stored` has room for every entry. */
static enum eth_hpp_status gather(struct eth_hpp_tensor_set *set,
                                  struct eth_hpp_stored_tensor *stored,
                                  struct eth_hpp_safetensors_image *image,
                                  struct eth_hpp_error *err)
{
    const struct eth_hpp_safetensors *file;
    const struct eth_hpp_stored_tensor *tensor;
    enum eth_hpp_status status = ETH_HPP_OK;
    size_t count = 0;
    for (size_t i = 0; status == ETH_HPP_OK && i < set->entry_count; i++) {
        if (!is_weight(set, i))
            continue;
        status = eth_hpp_tensor_set_get(set, i, &file, &tensor, err);
        if (status == ETH_HPP_OK)
            stored[count++] = *tensor;
    }
    if (status == ETH_HPP_OK)
        status = eth_hpp_safetensors_image_create(stored, count, image, err);
    for (size_t i = 0, at = 0; status == ETH_HPP_OK && i < set->entry_count; i++) {
        if (!is_weight(set, i))
            continue;
        status = eth_hpp_tensor_set_get(set, i, &file, &tensor, err);
        if (status == ETH_HPP_OK)
            status = eth_hpp_safetensors_read(
                file, tensor, (float *)(void *)(image->bytes + image->begins[at]), err);
        at++;
    }
    if (status == ETH_HPP_OK)
        eth_hpp_safetensors_image_seal(image);
    return status;
}

static enum eth_hpp_status convert_to(const char *path, const char *output,
                                      struct eth_hpp_error *err)
{
    struct eth_hpp_checkpoint state;
    struct eth_hpp_tensor_set set;
    struct eth_hpp_safetensors_image image = {0};
    char target[4200];
    if ((size_t)snprintf(target, sizeof(target), "%s/model.safetensors", output) >= sizeof(target))
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "the path of the folder is too long");
    if (access(target, F_OK) == 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%s: is there already", target);
    enum eth_hpp_status status = eth_hpp_checkpoint_verify(path, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_checkpoint_read(path, &state, &set, err);
    if (status != ETH_HPP_OK)
        return status;
    struct eth_hpp_stored_tensor *stored = calloc(set.entry_count + 1, sizeof(*stored));
    status = stored != NULL ? gather(&set, stored, &image, err)
                            : eth_hpp_error_memory(err, "the weights");
    if (status == ETH_HPP_OK)
        status = eth_hpp_checkpoint_make_folder(output, err);
    if (status == ETH_HPP_OK)
        status = copy_config(path, output, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_file_write(target, image.bytes, image.size, 0644, err);
    if (status == ETH_HPP_OK)
        printf("%s: the weights of step %lld, %.1f MB\n", target, (long long)state.step,
               (double)image.size / 1e6);
    free(stored);
    eth_hpp_safetensors_image_free(&image);
    eth_hpp_tensor_set_close(&set);
    return status;
}

static enum eth_hpp_status convert(const struct eth_hpp_option_set *set, int argc, char **argv,
                                   struct eth_hpp_error *err)
{
    const char *output = eth_hpp_option_text(set, 0);
    struct choice choice = {0};
    if (output == NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "no folder to make: give --output=DIR");
    enum eth_hpp_status status = choose_from(argc, argv, &choice, err);
    if (status == ETH_HPP_OK)
        status = convert_to(choice.paths[0], output, err);
    free_choice(&choice);
    return status;
}

/* ---- the command ---- */

static enum eth_hpp_status nothing(const struct eth_hpp_option_set *set, int argc, char **argv,
                                   struct eth_hpp_error *err)
{
    (void)set;
    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%s%.64s%s: show, verify or convert?",
                             argc > 0 ? "there is no \"" : "what is to be done",
                             argc > 0 ? argv[0] : "", argc > 0 ? "\"" : "");
}

int eth_hpp_command_checkpoint(int argc, char **argv)
{
    static const struct eth_hpp_command any = {
        .name = "checkpoint",
        .arguments = "show|verify|convert [OPTIONS] DIR",
        .what = "Lists the checkpoints in a folder, or the tensors of one; checks every byte of "
                "them; makes a plain\nHugging Face folder of one, the newest where several are "
                "there.",
        .table = options,
        .count = OPTIONS,
        .words = true,
        .run = nothing};
    static const struct {
        const char *name;
        size_t first_option, options;
        enum eth_hpp_status (*run)(const struct eth_hpp_option_set *set, int argc, char **argv,
                                   struct eth_hpp_error *err);
    } actions[] = {
        {"show", JSON, 1, show}, {"verify", 0, 0, verify}, {"convert", OUTPUT, 1, convert}};
    for (size_t i = 0; argc > 1 && i < sizeof(actions) / sizeof(actions[0]); i++) {
        if (strcmp(argv[1], actions[i].name) != 0)
            continue;
        struct eth_hpp_command action = any;
        action.table = options + actions[i].first_option;
        action.count = actions[i].options;
        action.run = actions[i].run;
        return eth_hpp_command_run(&action, argc - 1, argv + 1);
    }
    return eth_hpp_command_run(&any, argc, argv);
}
