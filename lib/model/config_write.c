#include "model/config_write.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static void put_integer(struct json_object **root, const char *key, int value)
{
    eth_hpp_json_put(root, key, json_object_new_int(value));
}

static void put_number(struct json_object **root, const char *key, double value)
{
    eth_hpp_json_put(root, key, eth_hpp_json_new_number(value));
}

static void put_text(struct json_object **root, const char *key, const char *text)
{
    eth_hpp_json_put(root, key, json_object_new_string(text));
}

static struct json_object *describe_gpt2(const struct eth_hpp_model *model)
{
    struct json_object *root = json_object_new_object();
    put_integer(&root, "n_positions", model->context);
    put_integer(&root, "n_embd", model->hidden);
    put_integer(&root, "n_layer", model->decoders);
    put_integer(&root, "n_head", model->heads);
    put_integer(&root, "n_inner", model->inner);
    put_text(&root, "activation_function", "gelu_new");
    put_number(&root, "layer_norm_epsilon", model->norm_epsilon);
    put_number(&root, "resid_pdrop", model->residual_dropout);
    put_number(&root, "embd_pdrop", model->embedding_dropout);
    put_number(&root, "attn_pdrop", model->attention_dropout);
    return root;
}

/* With the theta both as transformers 5 reads it and as earlier ones do. */
static struct json_object *describe_gated(const struct eth_hpp_model *model)
{
    struct json_object *root = json_object_new_object(), *rotary = json_object_new_object();
    put_integer(&root, "max_position_embeddings", model->context);
    put_integer(&root, "hidden_size", model->hidden);
    put_integer(&root, "intermediate_size", model->inner);
    put_integer(&root, "num_hidden_layers", model->decoders);
    put_integer(&root, "num_attention_heads", model->heads);
    put_integer(&root, "num_key_value_heads", model->key_value_heads);
    put_integer(&root, "head_dim", model->head_size);
    put_text(&root, "hidden_act", "silu");
    put_number(&root, "rms_norm_eps", model->norm_epsilon);
    put_number(&root, "rope_theta", model->rope_theta);
    put_text(&rotary, "rope_type", "default");
    put_number(&rotary, "rope_theta", model->rope_theta);
    eth_hpp_json_put(&root, "rope_parameters", rotary);
    put_number(&root, "attention_dropout", model->attention_dropout);
    if (model->family == ETH_HPP_MISTRAL) /* else 4096 counts; one of the context hides nothing */
        put_integer(&root, "sliding_window", model->context);
    return root;
}

static struct json_object *describe(const struct eth_hpp_model *model)
{
    static const char *const names[ETH_HPP_FAMILIES] = {[ETH_HPP_GPT2] = "GPT2LMHeadModel",
                                                        [ETH_HPP_LLAMA] = "LlamaForCausalLM",
                                                        [ETH_HPP_MISTRAL] = "MistralForCausalLM",
                                                        [ETH_HPP_QWEN2] = "Qwen2ForCausalLM"};
    struct json_object *classes = json_object_new_array();
    struct json_object *root =
        eth_hpp_model_is_gated(model) ? describe_gated(model) : describe_gpt2(model);
    eth_hpp_json_append(&classes, json_object_new_string(names[model->family]));
    eth_hpp_json_put(&root, "architectures", classes);
    put_text(&root, "model_type", eth_hpp_family_name(model->family));
    put_integer(&root, "vocab_size", model->vocabulary);
    eth_hpp_json_put(&root, "tie_word_embeddings", json_object_new_boolean(model->tied));
    /* Hugging Face's defaults are tokens of the family's own vocabulary; the data's may have none.
     */
    put_integer(&root, "bos_token_id", model->vocabulary > 50256 ? 50256 : 0);
    put_integer(&root, "eos_token_id", model->vocabulary > 50256 ? 50256 : 0);
    return root;
}

enum eth_hpp_status eth_hpp_model_config_print(const struct eth_hpp_model *model, char **text,
                                               struct eth_hpp_error *err)
{
    if (!eth_hpp_model_is_built_in(model))
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "model %s is of family %s, whose config.json is not written",
                                 model->name, eth_hpp_family_name(model->family));
    struct json_object *root = describe(model);
    const char *body = root == NULL ? NULL
                                    : json_object_to_json_string_ext(
                                          root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED);
    char *copy = body != NULL ? strdup(body) : NULL;
    json_object_put(root);
    if (copy == NULL)
        return eth_hpp_error_memory(err, "the model's configuration");
    *text = copy;
    return ETH_HPP_OK;
}
