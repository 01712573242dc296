#include "models/transformer_tensors.h"

#include <math.h>
#include <stdio.h>

enum size { ONE, HIDDEN, QKV, INNER, CONTEXT, VOCABULARY };
enum start { ZEROS, ONES, NORMAL, NORMAL_RESIDUAL };

struct tensor {
    const char *name;
    enum size rows, columns;
    enum start start;
};

static const struct tensor embedding_tensors[] = {
    [ETH_HPP_TOKENS] = {"wte.weight", VOCABULARY, HIDDEN, NORMAL},
    [ETH_HPP_POSITIONS] = {"wpe.weight", CONTEXT, HIDDEN, NORMAL},
};

static const struct tensor decoder_tensors[] = {
    [ETH_HPP_NORM1_WEIGHT] = {"ln_1.weight", ONE, HIDDEN, ONES},
    [ETH_HPP_NORM1_BIAS] = {"ln_1.bias", ONE, HIDDEN, ZEROS},
    [ETH_HPP_QKV_WEIGHT] = {"attn.c_attn.weight", HIDDEN, QKV, NORMAL},
    [ETH_HPP_QKV_BIAS] = {"attn.c_attn.bias", ONE, QKV, ZEROS},
    [ETH_HPP_PROJECTION_WEIGHT] = {"attn.c_proj.weight", HIDDEN, HIDDEN, NORMAL_RESIDUAL},
    [ETH_HPP_PROJECTION_BIAS] = {"attn.c_proj.bias", ONE, HIDDEN, ZEROS},
    [ETH_HPP_NORM2_WEIGHT] = {"ln_2.weight", ONE, HIDDEN, ONES},
    [ETH_HPP_NORM2_BIAS] = {"ln_2.bias", ONE, HIDDEN, ZEROS},
    [ETH_HPP_INNER_WEIGHT] = {"mlp.c_fc.weight", HIDDEN, INNER, NORMAL},
    [ETH_HPP_INNER_BIAS] = {"mlp.c_fc.bias", ONE, INNER, ZEROS},
    [ETH_HPP_OUTER_WEIGHT] = {"mlp.c_proj.weight", INNER, HIDDEN, NORMAL_RESIDUAL},
    [ETH_HPP_OUTER_BIAS] = {"mlp.c_proj.bias", ONE, HIDDEN, ZEROS},
};

static const struct tensor head_tensors[] = {
    [ETH_HPP_NORM_WEIGHT] = {"ln_f.weight", ONE, HIDDEN, ONES},
    [ETH_HPP_NORM_BIAS] = {"ln_f.bias", ONE, HIDDEN, ZEROS},
    [ETH_HPP_LOGITS_WEIGHT] = {"lm_head.weight", VOCABULARY, HIDDEN, NORMAL},
};

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static const struct {
    const struct tensor *tensors;
    size_t count;
} kinds[] = {
    [ETH_HPP_KIND_EMBEDDING] = {embedding_tensors, COUNT(embedding_tensors)},
    [ETH_HPP_KIND_DECODER] = {decoder_tensors, COUNT(decoder_tensors)},
    [ETH_HPP_KIND_HEAD] = {head_tensors, COUNT(head_tensors)},
};

size_t eth_hpp_transformer_tensor_count(enum eth_hpp_kind kind)
{
    return kinds[kind].count;
}

bool eth_hpp_transformer_tensor_is_tied(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                        size_t index)
{
    return model->tied && ((kind == ETH_HPP_KIND_EMBEDDING && index == ETH_HPP_TOKENS) ||
                           (kind == ETH_HPP_KIND_HEAD && index == ETH_HPP_LOGITS_WEIGHT));
}

static size_t size_of(const struct eth_hpp_model *model, enum size size)
{
    switch (size) {
    case ONE:
        return 1;
    case HIDDEN:
        return (size_t)model->hidden;
    case QKV:
        return 3 * (size_t)model->hidden;
    case INNER:
        return (size_t)model->inner;
    case CONTEXT:
        return (size_t)model->context;
    case VOCABULARY:
        return (size_t)model->vocabulary;
    }
    return 0;
}

size_t eth_hpp_transformer_tensor_size(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                       size_t index)
{
    const struct tensor *tensor = &kinds[kind].tensors[index];
    return size_of(model, tensor->rows) * size_of(model, tensor->columns);
}

size_t eth_hpp_transformer_tensor_columns(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                          size_t index)
{
    const struct tensor *tensor = &kinds[kind].tensors[index];
    return tensor->rows == ONE ? 0 : size_of(model, tensor->columns);
}

bool eth_hpp_transformer_tensor_is_matrix(enum eth_hpp_kind kind, size_t index)
{
    return kinds[kind].tensors[index].rows != ONE;
}

void eth_hpp_transformer_tensor_name(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                     int decoder, size_t index, char name[ETH_HPP_TENSOR_NAME_MAX])
{
    const bool logits = kind == ETH_HPP_KIND_HEAD && index == ETH_HPP_LOGITS_WEIGHT;
    if (eth_hpp_transformer_tensor_is_tied(model, kind, index))
        snprintf(name, ETH_HPP_TENSOR_NAME_MAX, "transformer.%s",
                 embedding_tensors[ETH_HPP_TOKENS].name);
    else if (kind == ETH_HPP_KIND_DECODER)
        snprintf(name, ETH_HPP_TENSOR_NAME_MAX, "transformer.h.%d.%s", decoder,
                 decoder_tensors[index].name);
    else
        snprintf(name, ETH_HPP_TENSOR_NAME_MAX, "%s%s", logits ? "" : "transformer.",
                 kinds[kind].tensors[index].name);
}

void eth_hpp_transformer_tensor_initialise(const struct eth_hpp_kernels *kernels,
                                           const struct eth_hpp_model *model,
                                           enum eth_hpp_kind kind, int layer, size_t index,
                                           uint64_t seed, void *weights)
{
    const enum start start = kinds[kind].tensors[index].start;
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
