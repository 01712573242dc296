#include "model/config_write.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static void put_integer(struct json_object **root, const char *key, int value)
{
    eth_hpp_json_put(root, key, json_object_new_int(value));
}

static struct json_object *describe(const struct eth_hpp_model *model)
{
    struct json_object *root = json_object_new_object(), *classes = json_object_new_array();
    eth_hpp_json_append(&classes, json_object_new_string("GPT2LMHeadModel"));
    eth_hpp_json_put(&root, "architectures", classes);
    eth_hpp_json_put(&root, "model_type", json_object_new_string("gpt2"));
    put_integer(&root, "vocab_size", model->vocabulary);
    put_integer(&root, "n_positions", model->context);
    put_integer(&root, "n_embd", model->hidden);
    put_integer(&root, "n_layer", model->decoders);
    put_integer(&root, "n_head", model->heads);
    put_integer(&root, "n_inner", model->inner);
    eth_hpp_json_put(&root, "activation_function", json_object_new_string("gelu_new"));
    eth_hpp_json_put(&root, "layer_norm_epsilon", eth_hpp_json_new_number(1e-5));
    eth_hpp_json_put(&root, "tie_word_embeddings", json_object_new_boolean(model->tied));
    eth_hpp_json_put(&root, "resid_pdrop", eth_hpp_json_new_number(model->residual_dropout));
    eth_hpp_json_put(&root, "embd_pdrop", eth_hpp_json_new_number(model->embedding_dropout));
    eth_hpp_json_put(&root, "attn_pdrop", eth_hpp_json_new_number(model->attention_dropout));
    /* Hugging Face's defaults are tokens of GPT-2's own vocabulary; the data's may have none. */
    put_integer(&root, "bos_token_id", model->vocabulary > 50256 ? 50256 : 0);
    put_integer(&root, "eos_token_id", model->vocabulary > 50256 ? 50256 : 0);
    return root;
}

enum eth_hpp_status eth_hpp_model_config_print(const struct eth_hpp_model *model, char **text,
                                               struct eth_hpp_error *err)
{
    if (model->family != ETH_HPP_GPT2)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "model %s is of family %s: only gpt2's config.json is written",
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
