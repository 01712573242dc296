/* Reading a Hugging Face config.json, and finding the model that a user named. */
#include "model/model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"

enum { SIZE_MAX_VALUE = 1 << 24, LAYERS_MAX = 4096, HEADS_MAX = 4096 };
#define FILE_MAX    (1u << 20)
#define DROPOUT_MAX 0.99

static int size_of(const struct eth_hpp_json *root, const char *key)
{
    return (int)eth_hpp_json_integer(root, key, 1, SIZE_MAX_VALUE);
}

/* What the built-in GPT computes is GPT-2 as published; other settings are noted for it. */
static void note_unlike(const struct eth_hpp_json *root, struct eth_hpp_model *model)
{
    static const struct {
        const char *key;
        bool published;
    } flags[] = {{"scale_attn_weights", true},
                 {"scale_attn_by_inverse_layer_idx", false},
                 {"add_cross_attention", false}};
    const char *activation = eth_hpp_json_string_or(root, "activation_function", 32, "gelu_new");
    double epsilon = eth_hpp_json_number_or(root, "layer_norm_epsilon", 0, 1, 1e-5);
    char *to = model->unlike;
    if (strcmp(activation, "gelu_new") != 0 && strcmp(activation, "gelu_pytorch_tanh") != 0)
        snprintf(to, sizeof(model->unlike), "activation_function %s", activation);
    else if (fabs(epsilon - 1e-5) > 1e-9)
        snprintf(to, sizeof(model->unlike), "layer_norm_epsilon %g", epsilon);
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        bool set = eth_hpp_json_boolean_or(root, flags[i].key, flags[i].published);
        if (set != flags[i].published)
            snprintf(to, sizeof(model->unlike), "%s %s", flags[i].key, set ? "true" : "false");
    }
}

/* Below 1, since what is kept is multiplied by 1 / (1 - rate). */
static double read_dropout(const struct eth_hpp_json *root, const char *key)
{
    return eth_hpp_json_number_or(root, key, 0, DROPOUT_MAX, 0);
}

static void read_gpt2(const struct eth_hpp_json *root, struct eth_hpp_model *model)
{
    model->hidden = size_of(root, "n_embd");
    model->decoders = (int)eth_hpp_json_integer(root, "n_layer", 1, LAYERS_MAX);
    model->heads = (int)eth_hpp_json_integer(root, "n_head", 1, HEADS_MAX);
    model->context = size_of(root, "n_positions");
    model->inner = (int)eth_hpp_json_integer_or(root, "n_inner", 1, SIZE_MAX_VALUE,
                                                4 * (int64_t)model->hidden);
    model->key_value_heads = model->heads;
    model->tied = eth_hpp_json_boolean_or(root, "tie_word_embeddings", true);
    model->embedding_dropout = read_dropout(root, "embd_pdrop");
    model->attention_dropout = read_dropout(root, "attn_pdrop");
    model->residual_dropout = read_dropout(root, "resid_pdrop");
    note_unlike(root, model);
}

static void read_others(const struct eth_hpp_json *root, struct eth_hpp_model *model)
{
    bool opt = model->family == ETH_HPP_OPT;
    model->hidden = size_of(root, "hidden_size");
    model->decoders = (int)eth_hpp_json_integer(root, "num_hidden_layers", 1, LAYERS_MAX);
    model->heads = (int)eth_hpp_json_integer(root, "num_attention_heads", 1, HEADS_MAX);
    model->context = size_of(root, "max_position_embeddings");
    model->inner = size_of(root, opt ? "ffn_dim" : "intermediate_size");
    model->key_value_heads =
        (int)eth_hpp_json_integer_or(root, "num_key_value_heads", 1, HEADS_MAX, model->heads);
    model->tied = eth_hpp_json_boolean_or(root, "tie_word_embeddings", opt);
    int projection =
        (int)eth_hpp_json_integer_or(root, "word_embed_proj_dim", 1, SIZE_MAX_VALUE, model->hidden);
    if (projection != model->hidden)
        eth_hpp_json_fail(root,
                          "word_embed_proj_dim: %d differs from hidden_size %d, which is not "
                          "supported",
                          projection, model->hidden);
}

static void read_config(const struct eth_hpp_json *root, struct eth_hpp_model *model)
{
    const char *type = eth_hpp_json_string(root, "model_type", 64);
    int family = 0;
    while (family < ETH_HPP_FAMILIES &&
           strcmp(eth_hpp_family_name((enum eth_hpp_family)family), type) != 0)
        family++;
    if (family == ETH_HPP_FAMILIES) {
        eth_hpp_json_fail(root,
                          "model_type: must be gpt2, llama, mistral, qwen2, opt or gpt_neox, "
                          "is \"%s\"",
                          type);
        return;
    }
    model->family = (enum eth_hpp_family)family;
    model->vocabulary = size_of(root, "vocab_size");
    if (model->family == ETH_HPP_GPT2)
        read_gpt2(root, model);
    else
        read_others(root, model);
    if (eth_hpp_json_failed(root))
        return;
    if (!eth_hpp_json_has(root, "head_dim") && model->hidden % model->heads != 0)
        eth_hpp_json_fail(root, "the hidden size %d is no multiple of the %d attention heads",
                          model->hidden, model->heads);
    if (model->heads % model->key_value_heads != 0)
        eth_hpp_json_fail(root, "%d attention heads are no multiple of the %d key-value heads",
                          model->heads, model->key_value_heads);
    model->head_size = (int)eth_hpp_json_integer_or(root, "head_dim", 1, SIZE_MAX_VALUE,
                                                    model->hidden / model->heads);
}

/* "dir/config.json" and "dir" are both called dir; "tiny.json" is called tiny. */
static void name_after(const char *path, char *name, size_t size)
{
    size_t length = strlen(path);
    static const char *const endings[] = {"/config.json", ".json", "/"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(endings[i]);
        if (length > n && strncmp(path + length - n, endings[i], n) == 0)
            length -= n;
    }
    size_t start = length;
    while (start > 0 && path[start - 1] != '/')
        start--;
    snprintf(name, size, "%.*s", (int)(length - start), path + start);
}

enum eth_hpp_status eth_hpp_model_find(const char *name, struct eth_hpp_model *model,
                                       struct eth_hpp_error *err)
{
    const struct eth_hpp_model *preset = eth_hpp_preset_find(name);
    struct eth_hpp_error local;
    struct stat status;
    char path[4096];
    err = err != NULL ? err : &local;
    if (preset != NULL) {
        *model = *preset;
        return ETH_HPP_OK;
    }
    if (stat(name, &status) != 0 && errno != ENOENT)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%s: cannot open: %s", name,
                                 strerror(errno));
    if (stat(name, &status) != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "there is no model \"%.200s\": neither a file (config.json) nor a "
                                 "preset (%s)",
                                 name, eth_hpp_preset_names());
    if ((size_t)snprintf(path, sizeof(path), "%s%s", name,
                         S_ISDIR(status.st_mode) ? "/config.json" : "") >= sizeof(path))
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "the path of the model is too long");
    struct eth_hpp_json root;
    struct eth_hpp_json_document *document = eth_hpp_json_load(path, FILE_MAX, &root, err);
    if (document == NULL)
        return err->status;
    struct eth_hpp_model read = {0};
    name_after(path, read.name, sizeof(read.name));
    read_config(&root, &read);
    enum eth_hpp_status result = eth_hpp_json_finish(document, err);
    if (result == ETH_HPP_OK)
        *model = read;
    return result;
}
