#include "models/transformer.h"

#include <stdlib.h>
#include <string.h>

#include "models/transformer_stage.h"
#include "runtime/data.h"

static enum eth_hpp_status sample(void *user, int64_t number, int32_t *tokens, int32_t *targets,
                                  struct eth_hpp_error *err)
{
    struct eth_hpp_transformer *transformer = user;
    const int32_t vocabulary = transformer->model.vocabulary;
    enum eth_hpp_status status =
        transformer->options.sample(transformer->options.data, number, tokens, targets, err);
    if (status != ETH_HPP_OK)
        return status;
    for (int i = 0; i < transformer->part->sequence_length; i++) {
        const bool bad_token = tokens[i] < 0 || tokens[i] >= vocabulary;
        const bool counted = targets[i] != -1 && targets[i] != ETH_HPP_NO_TARGET;
        if (bad_token || (counted && (targets[i] < 0 || targets[i] >= vocabulary)))
            return eth_hpp_error_set(
                err, ETH_HPP_ERR_INPUT,
                "sample %lld of the data: token %d does not exist in a vocabulary of %d; train a "
                "model with the vocabulary that the data were made with",
                (long long)number, (int)(bad_token ? tokens[i] : targets[i]), (int)vocabulary);
    }
    return ETH_HPP_OK;
}

/* ---- tensors ---- */

static enum eth_hpp_kind kind_of(const struct eth_hpp_transformer *transformer, int layer)
{
    return eth_hpp_model_kind(&transformer->model, layer);
}

/* The stage's tensors and their names while they are registered. */
struct registration {
    struct eth_hpp_tensor *tensors;
    char (*names)[ETH_HPP_TENSOR_NAME_MAX];
    size_t count;
};

/* The tied tensor where it is registered, else the next free place. */
static size_t find_tied(const struct registration *all)
{
    size_t t = 0;
    while (t < all->count && all->tensors[t].tied == NULL)
        t++;
    return t;
}

static void add_part(const struct eth_hpp_tensor_part *part, int layer, bool tied,
                     struct registration *all)
{
    memcpy(all->names[all->count], part->name, sizeof(part->name));
    all->tensors[all->count] =
        (struct eth_hpp_tensor){.name = all->names[all->count],
                                .layer = layer,
                                .tied = tied ? ETH_HPP_TOKEN_EMBEDDING : NULL,
                                .count = part->count,
                                .columns = part->columns,
                                .weight_decay = part->columns != 0};
    all->count++;
}

/* Adds a layer's tensors; a tied one that another layer of the stage has brought is shared. */
static void register_layer(struct eth_hpp_transformer *transformer, int layer,
                           struct registration *all)
{
    struct eth_hpp_transformer_stage_layer *at =
        eth_hpp_transformer_stage_layer(transformer, layer);
    const enum eth_hpp_kind kind = at->layer.kind;
    for (size_t i = 0; i < eth_hpp_transformer_tensor_count(kind); i++) {
        struct eth_hpp_tensor_part parts[ETH_HPP_TENSOR_PARTS];
        const bool tied = eth_hpp_transformer_tensor_is_tied(&transformer->model, kind, i);
        const size_t first = tied ? find_tied(all) : all->count;
        const size_t count =
            first < all->count
                ? 0
                : eth_hpp_transformer_tensor_parts(&transformer->model, kind, layer - 1, i, parts);
        at->tensors[i] = first;
        for (size_t p = 0; p < count; p++)
            add_part(&parts[p], layer, tied, all);
    }
}

static enum eth_hpp_status register_stage(struct eth_hpp_transformer *transformer,
                                          struct eth_hpp_error *err)
{
    static const struct eth_hpp_stage_ops ops = {.forward = eth_hpp_transformer_stage_forward,
                                                 .backward = eth_hpp_transformer_stage_backward,
                                                 .sample = sample};
    const struct eth_hpp_assignment *part = transformer->part;
    const size_t most =
        (size_t)transformer->count * ETH_HPP_LAYER_TENSORS * ETH_HPP_TENSOR_PARTS + 1;
    const size_t handed = transformer->run.shape.sequence * transformer->run.shape.hidden *
                          transformer->run.shape.value_bytes;
    struct registration all = {.tensors = calloc(most, sizeof(*all.tensors)),
                               .names = calloc(most, sizeof(*all.names))};
    enum eth_hpp_status status;
    if (all.tensors == NULL || all.names == NULL) {
        status = eth_hpp_error_memory(err, "the model's tensors");
        goto out;
    }
    for (int l = part->first_layer; l < part->first_layer + transformer->count; l++)
        register_layer(transformer, l, &all);
    const bool first = part->idle || part->first_layer == 0;
    const bool last = part->idle || part->end_layer == part->layers;
    status = eth_hpp_register(transformer->context, all.tensors, all.count, first ? 0 : handed,
                              last ? 0 : handed, &ops, transformer, err);
out:
    free(all.tensors);
    free(all.names);
    return status;
}

/* All parts at once, in their gradients' memory. */
static void initialise_tensor(struct eth_hpp_transformer *transformer, int layer, size_t index)
{
    const struct eth_hpp_transformer_stage_layer *at =
        eth_hpp_transformer_stage_layer(transformer, layer);
    struct eth_hpp_tensor_part parts[ETH_HPP_TENSOR_PARTS];
    const size_t count = eth_hpp_transformer_tensor_parts(&transformer->model, at->layer.kind,
                                                          layer - 1, index, parts);
    eth_hpp_transformer_tensor_initialise(transformer->run.kernels, &transformer->model,
                                          at->layer.kind, layer, index, transformer->options.seed,
                                          at->layer.gradients[index]);
    for (size_t t = at->tensors[index]; t < at->tensors[index] + count; t++)
        eth_hpp_tensor_set_weights(transformer->context, t,
                                   eth_hpp_tensor_gradient(transformer->context, t));
}

static void initialise_weights(struct eth_hpp_transformer *transformer)
{
    for (int l = transformer->part->first_layer; l < transformer->part->end_layer; l++) {
        struct eth_hpp_transformer_stage_layer *at =
            eth_hpp_transformer_stage_layer(transformer, l);
        for (size_t i = 0; i < eth_hpp_transformer_tensor_count(at->layer.kind); i++) {
            if (eth_hpp_transformer_tensor_size(&transformer->model, at->layer.kind, i) == 0)
                continue; /* the family lacks it, and it stays NULL */
            at->layer.weights[i] = eth_hpp_tensor_weights(transformer->context, at->tensors[i]);
            at->layer.gradients[i] = eth_hpp_tensor_gradient(transformer->context, at->tensors[i]);
            initialise_tensor(transformer, l, i);
        }
    }
}

/* ---- start and end ---- */

/* Whether the parts of the decoders' tensors lie without gaps. */
static bool parts_are_aligned(const struct eth_hpp_model *model)
{
    struct eth_hpp_tensor_part parts[ETH_HPP_TENSOR_PARTS];
    for (size_t i = 0; i < ETH_HPP_LAYER_TENSORS; i++) {
        const size_t count =
            eth_hpp_transformer_tensor_parts(model, ETH_HPP_KIND_DECODER, 0, i, parts);
        for (size_t p = 0; p + 1 < count; p++)
            if (parts[p].count % ETH_HPP_TENSOR_ALIGNMENT != 0)
                return false;
    }
    return true;
}

/* Launchers ask before they plan; a program may be started with any plan. */
static enum eth_hpp_status check_heads(const struct eth_hpp_model *model,
                                       const struct eth_hpp_kernels *kernels,
                                       struct eth_hpp_error *err)
{
    if (kernels->host_memory || model->head_size <= ETH_HPP_HEAD_SIZE_MOST)
        return ETH_HPP_OK;
    return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                             "%s has attention heads of %d values (head_dim, else hidden_size by "
                             "num_attention_heads): GPUs compute heads of %d at most: take more "
                             "and smaller heads, or train on CPUs",
                             model->name, model->head_size, ETH_HPP_HEAD_SIZE_MOST);
}

static enum eth_hpp_status check(const struct eth_hpp_model *model,
                                 const struct eth_hpp_assignment *part, struct eth_hpp_error *err)
{
    if (!eth_hpp_model_is_built_in(model))
        return eth_hpp_error_set(
            err, ETH_HPP_ERR_UNSUPPORTED,
            "model %s is of family %s; the built-in runtime trains gpt2, llama, mistral and qwen2",
            model->name, eth_hpp_family_name(model->family));
    if (model->unlike[0] != '\0')
        return eth_hpp_error_set(
            err, ETH_HPP_ERR_UNSUPPORTED,
            "the configuration of %s has %s; the built-in transformer computes "
            "%s as published",
            model->name, model->unlike, eth_hpp_family_name(model->family));
    if (!parts_are_aligned(model))
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "the queries, keys or inner activations of %s have sizes that are "
                                 "no multiples of %d",
                                 model->name, ETH_HPP_TENSOR_ALIGNMENT);
    if (part->idle)
        return ETH_HPP_OK;
    if (part->layers != eth_hpp_model_layers(model))
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "the plan is for %d layers, model %s has %d", part->layers,
                                 model->name, eth_hpp_model_layers(model));
    if (part->sequence_length > model->context)
        return eth_hpp_error_set(
            err, ETH_HPP_ERR_INPUT,
            "the plan's sequence length %d is beyond the context of model %s, %d",
            part->sequence_length, model->name, model->context);
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_transformer_create(struct eth_hpp_context *context,
                                               const struct eth_hpp_transformer_options *options,
                                               struct eth_hpp_transformer **transformer,
                                               struct eth_hpp_error *err)
{
    const struct eth_hpp_assignment *part = eth_hpp_get_assignment(context);
    enum eth_hpp_status status = check(options->model, part, err);
    if (status == ETH_HPP_OK && !part->idle)
        status = check_heads(options->model, eth_hpp_get_kernels(context), err);
    if (status != ETH_HPP_OK)
        return status;
    struct eth_hpp_transformer *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return eth_hpp_error_memory(err, "the model");
    made->context = context;
    made->model = *options->model;
    made->options = *options;
    made->options.model = &made->model;
    made->part = part;
    made->logits_index = -1;
    made->count = part->idle ? 0 : part->end_layer - part->first_layer;
    if (!part->idle) {
        made->run.kernels = eth_hpp_get_kernels(context);
        made->run.model = &made->model;
        made->run.shape = eth_hpp_transformer_shape_of(&made->model, part->sequence_length,
                                                       made->run.kernels->value_bytes,
                                                       made->run.kernels->sum_bytes);
        made->run.seed = options->seed;
    }
    made->layers = calloc((size_t)made->count + 1, sizeof(*made->layers));
    if (made->layers == NULL) {
        status = eth_hpp_error_memory(err, "the model's layers");
        goto fail;
    }
    for (int i = 0; i < made->count; i++) {
        made->layers[i].layer.kind = kind_of(made, part->first_layer + i);
        made->layers[i].layer.number = part->first_layer + i;
    }
    status = register_stage(made, err);
    if (status != ETH_HPP_OK)
        goto fail;
    if (!part->idle) {
        status = eth_hpp_transformer_stage_allocate(made, err);
        if (status != ETH_HPP_OK)
            goto fail;
        initialise_weights(made);
    }
    *transformer = made;
    return ETH_HPP_OK;
fail:
    eth_hpp_transformer_destroy(made);
    return status;
}

void eth_hpp_transformer_set_seed(struct eth_hpp_transformer *transformer, uint64_t seed)
{
    transformer->run.seed = seed;
}

void eth_hpp_transformer_destroy(struct eth_hpp_transformer *transformer)
{
    if (transformer == NULL)
        return;
    free(transformer->layers);
    free(transformer);
}
