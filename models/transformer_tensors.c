#include "models/transformer_tensors.h"

#include <math.h>
#include <stdio.h>

enum size { ONE, HIDDEN, QUERIES, KEYS, QKV, INNER, CONTEXT, VOCABULARY };
enum start { ZEROS, ONES, NORMAL, NORMAL_RESIDUAL };

/* A vector has one column. */
struct tensor {
    struct {
        const char *name; /* NULL after the last */
        enum size rows;
    } parts[ETH_HPP_TENSOR_PARTS];
    enum size columns;
    enum start start;
};

struct family {
    const char *prefix, *decoders; /* of names; decoders: of a decoder's, before its number */
    struct tensor embedding[2], decoder[ETH_HPP_LAYER_TENSORS], head[3];
};

/* Matrices are stored [in][out], but for the logits'. */
static const struct family gpt2 = {
    .prefix = "transformer.",
    .decoders = "h",
    .embedding = {[ETH_HPP_TOKENS] = {{{"wte.weight", VOCABULARY}}, HIDDEN, NORMAL},
                  [ETH_HPP_POSITIONS] = {{{"wpe.weight", CONTEXT}}, HIDDEN, NORMAL}},
    .decoder = {[ETH_HPP_NORM1_WEIGHT] = {{{"ln_1.weight", HIDDEN}}, ONE, ONES},
                [ETH_HPP_NORM1_BIAS] = {{{"ln_1.bias", HIDDEN}}, ONE, ZEROS},
                [ETH_HPP_QKV_WEIGHT] = {{{"attn.c_attn.weight", HIDDEN}}, QKV, NORMAL},
                [ETH_HPP_QKV_BIAS] = {{{"attn.c_attn.bias", QKV}}, ONE, ZEROS},
                [ETH_HPP_PROJECTION_WEIGHT] = {{{"attn.c_proj.weight", QUERIES}},
                                               HIDDEN,
                                               NORMAL_RESIDUAL},
                [ETH_HPP_PROJECTION_BIAS] = {{{"attn.c_proj.bias", HIDDEN}}, ONE, ZEROS},
                [ETH_HPP_NORM2_WEIGHT] = {{{"ln_2.weight", HIDDEN}}, ONE, ONES},
                [ETH_HPP_NORM2_BIAS] = {{{"ln_2.bias", HIDDEN}}, ONE, ZEROS},
                [ETH_HPP_INNER_WEIGHT] = {{{"mlp.c_fc.weight", HIDDEN}}, INNER, NORMAL},
                [ETH_HPP_INNER_BIAS] = {{{"mlp.c_fc.bias", INNER}}, ONE, ZEROS},
                [ETH_HPP_OUTER_WEIGHT] = {{{"mlp.c_proj.weight", INNER}}, HIDDEN, NORMAL_RESIDUAL},
                [ETH_HPP_OUTER_BIAS] = {{{"mlp.c_proj.bias", HIDDEN}}, ONE, ZEROS}},
    .head = {[ETH_HPP_NORM_WEIGHT] = {{{"ln_f.weight", HIDDEN}}, ONE, ONES},
             [ETH_HPP_NORM_BIAS] = {{{"ln_f.bias", HIDDEN}}, ONE, ZEROS},
             [ETH_HPP_LOGITS_WEIGHT] = {{{"lm_head.weight", VOCABULARY}}, HIDDEN, NORMAL}}};

/* Llama, Mistral and Qwen2; only the last has the bias. Matrices are stored [out][in]. */
static const struct family llama = {
    .prefix = "model.",
    .decoders = "layers",
    .embedding = {[ETH_HPP_TOKENS] = {{{"embed_tokens.weight", VOCABULARY}}, HIDDEN, NORMAL}},
    .decoder = {[ETH_HPP_NORM1_WEIGHT] = {{{"input_layernorm.weight", HIDDEN}}, ONE, ONES},
                [ETH_HPP_QKV_WEIGHT] = {{{"self_attn.q_proj.weight", QUERIES},
                                         {"self_attn.k_proj.weight", KEYS},
                                         {"self_attn.v_proj.weight", KEYS}},
                                        HIDDEN,
                                        NORMAL},
                [ETH_HPP_QKV_BIAS] = {{{"self_attn.q_proj.bias", QUERIES},
                                       {"self_attn.k_proj.bias", KEYS},
                                       {"self_attn.v_proj.bias", KEYS}},
                                      ONE,
                                      ZEROS},
                [ETH_HPP_PROJECTION_WEIGHT] = {{{"self_attn.o_proj.weight", HIDDEN}},
                                               QUERIES,
                                               NORMAL_RESIDUAL},
                [ETH_HPP_NORM2_WEIGHT] = {{{"post_attention_layernorm.weight", HIDDEN}}, ONE, ONES},
                [ETH_HPP_INNER_WEIGHT] = {{{"mlp.gate_proj.weight", INNER},
                                           {"mlp.up_proj.weight", INNER}},
                                          HIDDEN,
                                          NORMAL},
                [ETH_HPP_OUTER_WEIGHT] = {{{"mlp.down_proj.weight", HIDDEN}},
                                          INNER,
                                          NORMAL_RESIDUAL}},
    .head = {[ETH_HPP_NORM_WEIGHT] = {{{"norm.weight", HIDDEN}}, ONE, ONES},
             [ETH_HPP_LOGITS_WEIGHT] = {{{"lm_head.weight", VOCABULARY}}, HIDDEN, NORMAL}}};

static const struct family *family_of(const struct eth_hpp_model *model)
{
    return eth_hpp_model_is_gated(model) ? &llama : &gpt2;
}

static const struct tensor *tensor_of(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                      size_t index)
{
    const struct family *family = family_of(model);
    if (kind == ETH_HPP_KIND_EMBEDDING)
        return &family->embedding[index];
    return kind == ETH_HPP_KIND_DECODER ? &family->decoder[index] : &family->head[index];
}

size_t eth_hpp_transformer_tensor_count(enum eth_hpp_kind kind)
{
    if (kind == ETH_HPP_KIND_EMBEDDING)
        return ETH_HPP_POSITIONS + 1;
    return kind == ETH_HPP_KIND_DECODER ? ETH_HPP_LAYER_TENSORS : ETH_HPP_LOGITS_WEIGHT + 1;
}

bool eth_hpp_transformer_tensor_is_tied(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                        size_t index)
{
    return model->tied && ((kind == ETH_HPP_KIND_EMBEDDING && index == ETH_HPP_TOKENS) ||
                           (kind == ETH_HPP_KIND_HEAD && index == ETH_HPP_LOGITS_WEIGHT));
}

static size_t size_of(const struct eth_hpp_model *model, enum size size)
{
    const size_t keys = (size_t)model->key_value_heads * (size_t)model->head_size;
    const size_t queries = (size_t)model->heads * (size_t)model->head_size;
    switch (size) {
    case ONE:
        return 1;
    case HIDDEN:
        return (size_t)model->hidden;
    case QUERIES:
        return queries;
    case KEYS:
        return keys;
    case QKV:
        return queries + 2 * keys;
    case INNER:
        return (size_t)model->inner;
    case CONTEXT:
        return (size_t)model->context;
    case VOCABULARY:
        return (size_t)model->vocabulary;
    }
    return 0;
}

static size_t part_count(const struct eth_hpp_model *model, enum eth_hpp_kind kind, size_t index)
{
    const struct tensor *tensor = tensor_of(model, kind, index);
    size_t count = 0;
    if (tensor == &llama.decoder[ETH_HPP_QKV_BIAS] && model->family != ETH_HPP_QWEN2)
        return 0;
    while (count < ETH_HPP_TENSOR_PARTS && tensor->parts[count].name != NULL)
        count++;
    return count;
}

static void name_part(const struct eth_hpp_model *model, enum eth_hpp_kind kind, int decoder,
                      size_t index, const char *own, char name[ETH_HPP_TENSOR_NAME_MAX])
{
    const struct family *family = family_of(model);
    const bool logits = kind == ETH_HPP_KIND_HEAD && index == ETH_HPP_LOGITS_WEIGHT;
    if (eth_hpp_transformer_tensor_is_tied(model, kind, index))
        snprintf(name, ETH_HPP_TENSOR_NAME_MAX, "%s%s", family->prefix,
                 family->embedding[ETH_HPP_TOKENS].parts[0].name);
    else if (kind == ETH_HPP_KIND_DECODER)
        snprintf(name, ETH_HPP_TENSOR_NAME_MAX, "%s%s.%d.%s", family->prefix, family->decoders,
                 decoder, own);
    else
        snprintf(name, ETH_HPP_TENSOR_NAME_MAX, "%s%s", logits ? "" : family->prefix, own);
}

size_t eth_hpp_transformer_tensor_parts(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                        int decoder, size_t index,
                                        struct eth_hpp_tensor_part parts[ETH_HPP_TENSOR_PARTS])
{
    const struct tensor *tensor = tensor_of(model, kind, index);
    const size_t columns = size_of(model, tensor->columns), count = part_count(model, kind, index);
    for (size_t i = 0; i < count; i++) {
        name_part(model, kind, decoder, index, tensor->parts[i].name, parts[i].name);
        parts[i].count = size_of(model, tensor->parts[i].rows) * columns;
        parts[i].columns = tensor->columns == ONE ? 0 : columns;
    }
    return count;
}

size_t eth_hpp_transformer_tensor_size(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                       size_t index)
{
    struct eth_hpp_tensor_part parts[ETH_HPP_TENSOR_PARTS];
    const size_t count = eth_hpp_transformer_tensor_parts(model, kind, 0, index, parts);
    size_t size = 0;
    for (size_t i = 0; i < count; i++)
        size += parts[i].count;
    return size;
}

void eth_hpp_transformer_tensor_initialise(const struct eth_hpp_kernels *kernels,
                                           const struct eth_hpp_model *model,
                                           enum eth_hpp_kind kind, int layer, size_t index,
                                           uint64_t seed, void *weights)
{
    const enum start start = tensor_of(model, kind, index)->start;
    const size_t count = eth_hpp_transformer_tensor_size(model, kind, index);
    if (start == ZEROS || start == ONES) {
        kernels->ops->fill(kernels->state, count, start == ONES, weights);
        return;
    }
    /* A tied tensor is one stream of numbers, whichever of its layers asks. */
    const bool tied = eth_hpp_transformer_tensor_is_tied(model, kind, index);
    const uint64_t stream = tied ? 0 : (uint64_t)layer * ETH_HPP_LAYER_TENSORS + (uint64_t)index;
    const double deviation = start == NORMAL_RESIDUAL ? 0.02 / sqrt(2.0 * model->decoders) : 0.02;
    kernels->ops->random_normal(kernels->state, count, seed, stream, deviation, weights);
}
