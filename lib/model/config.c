/* Reading a Hugging Face config.json, and finding the model that a user named. */
#include "model/model.h"

#include <errno.h>
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

/* What the built-in transformer computes are the families as published; other settings are noted
 * for it. */

static void note_flag(const struct eth_hpp_json *root, const char *key, bool published,
                      struct eth_hpp_model *model)
{
    bool set = eth_hpp_json_boolean_or(root, key, published);
    if (set != published)
        snprintf(model->unlike, sizeof(model->unlike), "%s %s", key, set ? "true" : "false");
}

static void note_activation(const struct eth_hpp_json *root, const char *key, const char *published,
                            const char *same, struct eth_hpp_model *model)
{
    const char *activation = eth_hpp_json_string_or(root, key, 32, published);
    if (strcmp(activation, published) != 0 && strcmp(activation, same) != 0)
        snprintf(model->unlike, sizeof(model->unlike), "%s %s", key, activation);
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
    model->norm_epsilon = eth_hpp_json_number_or(root, "layer_norm_epsilon", 0, 1, 1e-5);
    note_activation(root, "activation_function", "gelu_new", "gelu_pytorch_tanh", model);
    note_flag(root, "scale_attn_weights", true, model);
    note_flag(root, "scale_attn_by_inverse_layer_idx", false, model);
    note_flag(root, "add_cross_attention", false, model);
}

/* Rotary positions: transformers 5 writes one object with all that concerns them, earlier ones the
 * theta beside `rope_scaling`, which asks for frequencies of other kinds. */
static void read_rotary(const struct eth_hpp_json *root, struct eth_hpp_model *model)
{
    static const char *const keys[] = {"rope_parameters", "rope_scaling"};
    model->rope_theta = eth_hpp_json_number_or(root, "rope_theta", 1, 1e12, 1e4);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (!eth_hpp_json_has(root, keys[i]))
            continue;
        const struct eth_hpp_json object = eth_hpp_json_object(root, keys[i]);
        const char *old = eth_hpp_json_string_or(&object, "type", 32, "default");
        const char *type = eth_hpp_json_string_or(&object, "rope_type", 32, old);
        model->rope_theta =
            eth_hpp_json_number_or(&object, "rope_theta", 1, 1e12, model->rope_theta);
        const double part = eth_hpp_json_number_or(&object, "partial_rotary_factor", 0, 1, 1);
        if (strcmp(type, "default") != 0)
            snprintf(model->unlike, sizeof(model->unlike), "rope_type %s", type);
        else if (part < 1)
            snprintf(model->unlike, sizeof(model->unlike), "partial_rotary_factor %g", part);
    }
}

/* A window as long as the context hides nothing. */
static void note_window(const struct eth_hpp_json *root, struct eth_hpp_model *model)
{
    const bool used =
        eth_hpp_json_boolean_or(root, "use_sliding_window", model->family == ETH_HPP_MISTRAL);
    const int64_t window =
        eth_hpp_json_integer_or(root, "sliding_window", 0, SIZE_MAX_VALUE, model->context);
    if (used && window < model->context)
        snprintf(model->unlike, sizeof(model->unlike), "sliding_window %lld", (long long)window);
}

static void read_gated(const struct eth_hpp_json *root, struct eth_hpp_model *model)
{
    model->norm_epsilon = eth_hpp_json_number_or(root, "rms_norm_eps", 0, 1, 1e-6);
    model->attention_dropout = read_dropout(root, "attention_dropout");
    read_rotary(root, model);
    note_activation(root, "hidden_act", "silu", "swish", model);
    if (model->family == ETH_HPP_LLAMA) {
        note_flag(root, "attention_bias", false, model);
        note_flag(root, "mlp_bias", false, model);
    } else {
        note_window(root, model);
    }
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
    if (eth_hpp_model_is_gated(model))
        read_gated(root, model);
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
    if (model->rope_theta > 0 && model->head_size % 2 != 0)
        eth_hpp_json_fail(root, "heads of %d values, an odd number, cannot be turned in pairs",
                          model->head_size);
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
