#include "model/model.h"

#include "model/transformer_memory.h"

#define TOKEN_BYTES 4.0

static const char *const family_names[] = {
    [ETH_HPP_GPT2] = "gpt2",   [ETH_HPP_LLAMA] = "llama", [ETH_HPP_MISTRAL] = "mistral",
    [ETH_HPP_QWEN2] = "qwen2", [ETH_HPP_OPT] = "opt",     [ETH_HPP_GPT_NEOX] = "gpt_neox"};

const char *eth_hpp_family_name(enum eth_hpp_family family)
{
    return family_names[family];
}

static const char *const kind_names[] = {[ETH_HPP_KIND_EMBEDDING] = "embedding",
                                         [ETH_HPP_KIND_DECODER] = "decoder",
                                         [ETH_HPP_KIND_HEAD] = "head"};

const char *eth_hpp_kind_name(enum eth_hpp_kind kind)
{
    return kind_names[kind];
}

int eth_hpp_model_layers(const struct eth_hpp_model *model)
{
    return model->decoders + 2;
}

enum eth_hpp_kind eth_hpp_model_kind(const struct eth_hpp_model *model, int layer)
{
    if (layer == 0)
        return ETH_HPP_KIND_EMBEDDING;
    return layer <= model->decoders ? ETH_HPP_KIND_DECODER : ETH_HPP_KIND_HEAD;
}

bool eth_hpp_model_is_gated(const struct eth_hpp_model *model)
{
    return model->family == ETH_HPP_LLAMA || model->family == ETH_HPP_MISTRAL ||
           model->family == ETH_HPP_QWEN2;
}

bool eth_hpp_model_is_built_in(const struct eth_hpp_model *model)
{
    return model->family == ETH_HPP_GPT2 || eth_hpp_model_is_gated(model);
}

static double query_size(const struct eth_hpp_model *model)
{
    return (double)model->heads * model->head_size;
}

static double key_value_size(const struct eth_hpp_model *model)
{
    return 2.0 * model->key_value_heads * model->head_size;
}

/* Elements of a decoder's matrices, each of which takes two operations a token. */
static double decoder_matrices(const struct eth_hpp_model *model)
{
    double h = model->hidden, q = query_size(model), kv = key_value_size(model);
    return h * (q + kv) + q * h + (eth_hpp_model_is_gated(model) ? 3.0 : 2.0) * h * model->inner;
}

static double decoder_parameters(const struct eth_hpp_model *model)
{
    double h = model->hidden, q = query_size(model), kv = key_value_size(model);
    double matrices = decoder_matrices(model);
    if (!eth_hpp_model_is_gated(model)) /* two LayerNorms; biases of all four matrices */
        return matrices + 4 * h + (q + kv) + h + model->inner + h;
    return matrices + 2 * h + (model->family == ETH_HPP_QWEN2 ? q + kv : 0);
}

static double position_parameters(const struct eth_hpp_model *model)
{
    if (model->family == ETH_HPP_GPT2)
        return (double)model->context * model->hidden;
    if (model->family == ETH_HPP_OPT) /* its positions start at 2 */
        return (model->context + 2.0) * model->hidden;
    return 0;
}

double eth_hpp_model_tied_parameters(const struct eth_hpp_model *model)
{
    return model->tied ? (double)model->vocabulary * model->hidden : 0;
}

double eth_hpp_model_parameters(const struct eth_hpp_model *model, enum eth_hpp_kind kind)
{
    double tokens = model->tied ? 0 : (double)model->vocabulary * model->hidden;
    switch (kind) {
    case ETH_HPP_KIND_EMBEDDING:
        return tokens + position_parameters(model);
    case ETH_HPP_KIND_DECODER:
        return decoder_parameters(model);
    case ETH_HPP_KIND_HEAD:
        return tokens + (eth_hpp_model_is_gated(model) ? 1.0 : 2.0) * model->hidden;
    case ETH_HPP_KINDS:
        break;
    }
    return 0;
}

double eth_hpp_model_forward_flops(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                   int sequence)
{
    double s = sequence, h = model->hidden;
    switch (kind) {
    case ETH_HPP_KIND_EMBEDDING:
        return 2 * s * h;
    case ETH_HPP_KIND_DECODER:
        return 2 * s * decoder_matrices(model) + 4 * s * s * query_size(model);
    case ETH_HPP_KIND_HEAD:
        return 2 * s * h * model->vocabulary;
    case ETH_HPP_KINDS:
        break;
    }
    return 0;
}

double eth_hpp_model_output_bytes(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                  int sequence, enum eth_hpp_dtype dtype)
{
    if (kind == ETH_HPP_KIND_HEAD)
        return 0;
    return (double)sequence * model->hidden * eth_hpp_dtype_bytes(dtype);
}

/* A layer's sizes; gradients, statistics and sums are fp32 whatever the dtype. */
static struct eth_hpp_transformer_shape shape_of(const struct eth_hpp_model *model, int sequence,
                                                 enum eth_hpp_dtype dtype)
{
    return eth_hpp_transformer_shape_of(model, sequence, (size_t)eth_hpp_dtype_bytes(dtype), 4);
}

double eth_hpp_model_saved_bytes(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                 int sequence, enum eth_hpp_dtype dtype)
{
    const struct eth_hpp_transformer_shape shape = shape_of(model, sequence, dtype);
    const double tokens = kind == ETH_HPP_KIND_DECODER ? 0 : TOKEN_BYTES * sequence;
    return (double)eth_hpp_transformer_saved_bytes(&shape, kind) + tokens;
}

/* How many vectors a token the hand-overs take: gradients to send and an input received ahead on
 * the side of the layer before; activations to send and gradients received on the other. One more
 * is for what no formula of a layer has: sums, and the tokens kept beside recomputed activations.
 */
static int hand_over_buffers(enum eth_hpp_kind kind)
{
    int buffers = 1;
    if (kind != ETH_HPP_KIND_EMBEDDING)
        buffers += ETH_HPP_SEND_BUFFERS + 1;
    if (kind != ETH_HPP_KIND_HEAD)
        buffers += ETH_HPP_SEND_BUFFERS + ETH_HPP_GRADIENT_BUFFERS;
    return buffers;
}

double eth_hpp_model_workspace_bytes(const struct eth_hpp_model *model, enum eth_hpp_kind kind,
                                     int sequence, enum eth_hpp_dtype dtype)
{
    const struct eth_hpp_transformer_shape shape = shape_of(model, sequence, dtype);
    double unit = (double)sequence * model->hidden * eth_hpp_dtype_bytes(dtype);
    return (double)eth_hpp_transformer_workspace_bytes(&shape, kind) +
           hand_over_buffers(kind) * unit;
}
