#include "models/gpt.h"

#include <stdlib.h>
#include <string.h>

#include "models/gpt_layers.h"

/* One of the stage's layers. */
struct stage_layer {
    struct eth_hpp_gpt_layer layer;
    size_t tensors[ETH_HPP_GPT_LAYER_TENSORS]; /* as registered */
    size_t kept_at;                            /* where its memory begins in a slot */
};

struct eth_hpp_gpt {
    struct eth_hpp_context *context;
    struct eth_hpp_model model;
    struct eth_hpp_gpt_options options;
    const struct eth_hpp_assignment *part;
    struct stage_layer *layers; /* [count] */
    int count;
    struct eth_hpp_gpt_run run; /* what does not change from layer to layer */
    char *slots, *shared;       /* shared: with recompute, what the running layer saves */
    size_t slot_bytes;
    /* The micro-batch whose logits the workspace holds; the head's backward need not make them
     * again when it follows its forward at once, as it does in 1F1B. */
    int64_t logits_step;
    int logits_index;
};

static struct stage_layer *layer_at(const struct eth_hpp_gpt *gpt, int layer)
{
    return &gpt->layers[layer - gpt->part->first_layer];
}

/* ---- memory ---- */

/* What a slot keeps of one buffer of a layer. The first layer's input is the runtime's. */
static size_t kept_bytes(const struct eth_hpp_gpt *gpt, int layer, enum eth_hpp_gpt_saved buffer)
{
    const bool is_input = buffer == ETH_HPP_GPT_INPUT;
    if (is_input ? layer == gpt->part->first_layer : gpt->part->recompute)
        return 0;
    return (size_t)gpt->part->samples *
           eth_hpp_gpt_saved_buffer(&gpt->run.shape, layer_at(gpt, layer)->layer.kind, buffer);
}

/* Lays out the slots; returns the bytes of workspace and of shared memory that the largest layer
 * needs. */
static void plan_memory(struct eth_hpp_gpt *gpt, size_t *workspace, size_t *shared)
{
    const size_t samples = (size_t)gpt->part->samples;
    *workspace = *shared = 0;
    for (int l = gpt->part->first_layer; l < gpt->part->end_layer; l++) {
        struct stage_layer *at = layer_at(gpt, l);
        at->kept_at = gpt->slot_bytes;
        for (int b = 0; b < ETH_HPP_GPT_SAVED_COUNT; b++)
            gpt->slot_bytes += kept_bytes(gpt, l, (enum eth_hpp_gpt_saved)b);
        const size_t work = samples * eth_hpp_gpt_workspace_bytes(&gpt->run.shape, at->layer.kind);
        const size_t saved = samples * eth_hpp_gpt_saved_bytes(&gpt->run.shape, at->layer.kind);
        if (*workspace < work)
            *workspace = work;
        if (gpt->part->recompute && *shared < saved)
            *shared = saved;
    }
}

static enum eth_hpp_status allocate(struct eth_hpp_gpt *gpt, struct eth_hpp_error *err)
{
    size_t workspace, shared;
    void *memory;
    plan_memory(gpt, &workspace, &shared);
    const size_t slots = gpt->slot_bytes * (size_t)gpt->part->in_flight;
    enum eth_hpp_status status =
        eth_hpp_allocate(gpt->context, slots + shared + workspace, &memory, err);
    if (status != ETH_HPP_OK)
        return eth_hpp_error_prefix(err, "activations of the stage");
    gpt->slots = memory;
    gpt->shared = gpt->slots + slots;
    gpt->run.workspace[0] = gpt->shared + shared;
    return ETH_HPP_OK;
}

/* What a layer gets: its micro-batch, its places in the slot and in the workspace. */
static struct eth_hpp_gpt_run run_of(const struct eth_hpp_gpt *gpt, int layer,
                                     const struct eth_hpp_micro_batch *micro_batch)
{
    struct eth_hpp_gpt_run run = gpt->run;
    const enum eth_hpp_gpt_kind kind = layer_at(gpt, layer)->layer.kind;
    const size_t room = (size_t)gpt->part->samples;
    char *saved = gpt->part->recompute ? gpt->shared
                                       : gpt->slots + (size_t)micro_batch->slot * gpt->slot_bytes +
                                             layer_at(gpt, layer)->kept_at +
                                             kept_bytes(gpt, layer, ETH_HPP_GPT_INPUT);
    for (int b = ETH_HPP_GPT_INPUT + 1; b < ETH_HPP_GPT_SAVED_COUNT; b++) {
        run.saved[b] = saved;
        saved += room * eth_hpp_gpt_saved_buffer(&run.shape, kind, (enum eth_hpp_gpt_saved)b);
    }
    char *workspace = run.workspace[0];
    for (int b = 0; b < ETH_HPP_GPT_WORKSPACE_COUNT; b++) {
        run.workspace[b] = workspace;
        workspace +=
            room * eth_hpp_gpt_workspace_buffer(&run.shape, kind, (enum eth_hpp_gpt_workspace)b);
    }
    run.samples = (size_t)micro_batch->samples;
    run.tokens = micro_batch->tokens;
    run.targets = micro_batch->targets;
    run.loss = micro_batch->loss;
    run.logits_held =
        gpt->logits_step == micro_batch->step && gpt->logits_index == micro_batch->index;
    return run;
}

static void *kept_input(const struct eth_hpp_gpt *gpt, int layer, int slot)
{
    return gpt->slots + (size_t)slot * gpt->slot_bytes + layer_at(gpt, layer)->kept_at;
}

/* ---- the stage's computation ---- */

static enum eth_hpp_status forward(void *user, const struct eth_hpp_micro_batch *micro_batch,
                                   const void *input, void *output, struct eth_hpp_error *err)
{
    struct eth_hpp_gpt *gpt = user;
    const int end = gpt->part->end_layer;
    (void)err;
    if (micro_batch->replay)
        return ETH_HPP_OK;
    for (int l = gpt->part->first_layer; l < end; l++) {
        const struct eth_hpp_gpt_run run = run_of(gpt, l, micro_batch);
        void *next = l + 1 < end ? kept_input(gpt, l + 1, micro_batch->slot) : output;
        eth_hpp_gpt_layer_forward(&layer_at(gpt, l)->layer, &run, input, next);
        input = next;
    }
    gpt->logits_step = micro_batch->step;
    gpt->logits_index = micro_batch->index;
    return ETH_HPP_OK;
}

static enum eth_hpp_status backward(void *user, const struct eth_hpp_micro_batch *micro_batch,
                                    const void *input, const void *output_gradient,
                                    void *input_gradient, struct eth_hpp_error *err)
{
    struct eth_hpp_gpt *gpt = user;
    const struct eth_hpp_kernels *kernels = gpt->run.kernels;
    const size_t bytes = (size_t)micro_batch->samples * gpt->run.shape.sequence *
                         gpt->run.shape.hidden * gpt->run.shape.value_bytes;
    void *gradient = input_gradient;
    (void)err;
    if (gradient == NULL) /* the first of the workspace's buffers, at one place in all layers */
        gradient = gpt->run.workspace[ETH_HPP_GPT_GRADIENT];
    if (output_gradient != NULL)
        kernels->ops->copy(kernels->state, gradient, output_gradient, bytes);
    for (int l = gpt->part->end_layer - 1; l >= gpt->part->first_layer; l--) {
        const struct eth_hpp_gpt_run run = run_of(gpt, l, micro_batch);
        const struct eth_hpp_gpt_layer *layer = &layer_at(gpt, l)->layer;
        const void *entered =
            l == gpt->part->first_layer ? input : kept_input(gpt, l, micro_batch->slot);
        if (gpt->part->recompute)
            eth_hpp_gpt_layer_recompute(layer, &run, entered);
        eth_hpp_gpt_layer_backward(layer, &run, entered, gradient);
        eth_hpp_layer_done(gpt->context, l);
    }
    gpt->logits_index = -1;
    return ETH_HPP_OK;
}

static enum eth_hpp_status sample(void *user, int64_t number, int32_t *tokens, int32_t *targets,
                                  struct eth_hpp_error *err)
{
    struct eth_hpp_gpt *gpt = user;
    const int32_t vocabulary = gpt->model.vocabulary;
    enum eth_hpp_status status =
        gpt->options.sample(gpt->options.data, number, tokens, targets, err);
    if (status != ETH_HPP_OK)
        return status;
    for (int i = 0; i < gpt->part->sequence_length; i++) {
        const bool bad_token = tokens[i] < 0 || tokens[i] >= vocabulary;
        if (bad_token || targets[i] < -1 || targets[i] >= vocabulary)
            return eth_hpp_error_set(
                err, ETH_HPP_ERR_INPUT,
                "sample %lld of the data: token %d does not exist in a vocabulary of %d; train a "
                "model with the vocabulary that the data were made with",
                (long long)number, (int)(bad_token ? tokens[i] : targets[i]), (int)vocabulary);
    }
    return ETH_HPP_OK;
}

/* ---- tensors ---- */

static enum eth_hpp_gpt_kind kind_of(const struct eth_hpp_gpt *gpt, int layer)
{
    return (enum eth_hpp_gpt_kind)eth_hpp_model_kind(&gpt->model, layer);
}

/* The stage's tensors and their names while they are registered. */
struct registration {
    struct eth_hpp_tensor *tensors;
    char (*names)[ETH_HPP_GPT_NAME_MAX];
    size_t count;
};

/* Adds a layer's tensors; a tied one that another layer of the stage has brought is shared. */
static void register_layer(struct eth_hpp_gpt *gpt, int layer, struct registration *all)
{
    struct stage_layer *at = layer_at(gpt, layer);
    const enum eth_hpp_gpt_kind kind = at->layer.kind;
    for (size_t i = 0; i < eth_hpp_gpt_tensor_count(kind); i++) {
        const bool tied = eth_hpp_gpt_tensor_is_tied(&gpt->model, kind, i);
        size_t known = all->count;
        for (size_t t = 0; tied && t < all->count; t++)
            if (all->tensors[t].tied != NULL)
                known = t;
        at->tensors[i] = known;
        if (known < all->count)
            continue;
        eth_hpp_gpt_tensor_name(&gpt->model, kind, layer - 1, i, all->names[known]);
        all->tensors[known] =
            (struct eth_hpp_tensor){.name = all->names[known],
                                    .layer = layer,
                                    .tied = tied ? ETH_HPP_TOKEN_EMBEDDING : NULL,
                                    .count = eth_hpp_gpt_tensor_size(&gpt->model, kind, i),
                                    .weight_decay = eth_hpp_gpt_tensor_is_matrix(kind, i)};
        all->count++;
    }
}

static enum eth_hpp_status register_stage(struct eth_hpp_gpt *gpt, struct eth_hpp_error *err)
{
    static const struct eth_hpp_stage_ops ops = {
        .forward = forward, .backward = backward, .sample = sample};
    const struct eth_hpp_assignment *part = gpt->part;
    const size_t most = (size_t)gpt->count * ETH_HPP_GPT_LAYER_TENSORS + 1;
    const size_t handed =
        gpt->run.shape.sequence * gpt->run.shape.hidden * gpt->run.shape.value_bytes;
    struct registration all = {.tensors = calloc(most, sizeof(*all.tensors)),
                               .names = calloc(most, sizeof(*all.names))};
    enum eth_hpp_status status;
    if (all.tensors == NULL || all.names == NULL) {
        status = eth_hpp_error_memory(err, "the model's tensors");
        goto out;
    }
    for (int l = part->first_layer; l < part->first_layer + gpt->count; l++)
        register_layer(gpt, l, &all);
    const bool first = part->idle || part->first_layer == 0;
    const bool last = part->idle || part->end_layer == part->layers;
    status = eth_hpp_register(gpt->context, all.tensors, all.count, first ? 0 : handed,
                              last ? 0 : handed, &ops, gpt, err);
out:
    free(all.tensors);
    free(all.names);
    return status;
}

static void initialise_weights(struct eth_hpp_gpt *gpt)
{
    for (int l = gpt->part->first_layer; l < gpt->part->end_layer; l++) {
        struct stage_layer *at = layer_at(gpt, l);
        for (size_t i = 0; i < eth_hpp_gpt_tensor_count(at->layer.kind); i++) {
            at->layer.weights[i] = eth_hpp_tensor_weights(gpt->context, at->tensors[i]);
            at->layer.gradients[i] = eth_hpp_tensor_gradient(gpt->context, at->tensors[i]);
            eth_hpp_gpt_tensor_initialise(gpt->run.kernels, &gpt->model, at->layer.kind, l, i,
                                          gpt->options.seed, at->layer.weights[i]);
        }
    }
}

/* ---- start and end ---- */

static enum eth_hpp_status check(const struct eth_hpp_model *model,
                                 const struct eth_hpp_assignment *part, struct eth_hpp_error *err)
{
    if (model->family != ETH_HPP_GPT2)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "model %s is of family %s; the built-in runtime trains gpt2",
                                 model->name, eth_hpp_family_name(model->family));
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

enum eth_hpp_status eth_hpp_gpt_create(struct eth_hpp_context *context,
                                       const struct eth_hpp_gpt_options *options,
                                       struct eth_hpp_gpt **gpt, struct eth_hpp_error *err)
{
    const struct eth_hpp_assignment *part = eth_hpp_get_assignment(context);
    enum eth_hpp_status status = check(options->model, part, err);
    if (status != ETH_HPP_OK)
        return status;
    struct eth_hpp_gpt *made = calloc(1, sizeof(*made));
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
        made->run.shape =
            eth_hpp_gpt_layer_shape(&made->model, part->sequence_length, made->run.kernels);
    }
    made->layers = calloc((size_t)made->count + 1, sizeof(*made->layers));
    if (made->layers == NULL) {
        status = eth_hpp_error_memory(err, "the model's layers");
        goto fail;
    }
    for (int i = 0; i < made->count; i++)
        made->layers[i].layer.kind = kind_of(made, part->first_layer + i);
    status = register_stage(made, err);
    if (status != ETH_HPP_OK)
        goto fail;
    if (!part->idle) {
        status = allocate(made, err);
        if (status != ETH_HPP_OK)
            goto fail;
        initialise_weights(made);
    }
    *gpt = made;
    return ETH_HPP_OK;
fail:
    eth_hpp_gpt_destroy(made);
    return status;
}

void eth_hpp_gpt_destroy(struct eth_hpp_gpt *gpt)
{
    if (gpt == NULL)
        return;
    free(gpt->layers);
    free(gpt);
}
