#include "models/transformer_stage.h"

/* ---- memory ---- */

/* What a slot keeps of one buffer of a layer. The first layer's input is the runtime's. */
static size_t kept_bytes(const struct eth_hpp_transformer *transformer, int layer,
                         enum eth_hpp_saved buffer)
{
    const bool is_input = buffer == ETH_HPP_SAVED_INPUT;
    if (is_input ? layer == transformer->part->first_layer : transformer->part->recompute)
        return 0;
    return (size_t)transformer->part->samples *
           eth_hpp_transformer_saved_buffer(
               &transformer->run.shape,
               eth_hpp_transformer_stage_layer(transformer, layer)->layer.kind, buffer);
}

/* Lays out the slots; returns the bytes of workspace and of shared memory that the largest layer
 * needs. */
static void plan_memory(struct eth_hpp_transformer *transformer, size_t *workspace, size_t *shared)
{
    const size_t samples = (size_t)transformer->part->samples;
    *workspace = *shared = 0;
    for (int l = transformer->part->first_layer; l < transformer->part->end_layer; l++) {
        struct eth_hpp_transformer_stage_layer *at =
            eth_hpp_transformer_stage_layer(transformer, l);
        at->kept_at = transformer->slot_bytes;
        for (int b = 0; b < ETH_HPP_SAVED_COUNT; b++)
            transformer->slot_bytes += kept_bytes(transformer, l, (enum eth_hpp_saved)b);
        const size_t work =
            samples * eth_hpp_transformer_workspace_bytes(&transformer->run.shape, at->layer.kind);
        const size_t saved =
            samples * eth_hpp_transformer_saved_bytes(&transformer->run.shape, at->layer.kind);
        if (*workspace < work)
            *workspace = work;
        if (transformer->part->recompute && *shared < saved)
            *shared = saved;
    }
}

enum eth_hpp_status eth_hpp_transformer_stage_allocate(struct eth_hpp_transformer *transformer,
                                                       struct eth_hpp_error *err)
{
    size_t workspace, shared;
    void *memory;
    plan_memory(transformer, &workspace, &shared);
    const size_t slots = transformer->slot_bytes * (size_t)transformer->part->in_flight;
    enum eth_hpp_status status =
        eth_hpp_allocate(transformer->context, slots + shared + workspace, &memory, err);
    if (status != ETH_HPP_OK)
        return eth_hpp_error_prefix(err, "activations of the stage");
    transformer->slots = memory;
    transformer->shared = transformer->slots + slots;
    transformer->run.workspace[0] = transformer->shared + shared;
    return ETH_HPP_OK;
}

/* What a layer gets: its micro-batch, its places in the slot and in the workspace. */
static struct eth_hpp_transformer_run run_of(const struct eth_hpp_transformer *transformer,
                                             int layer,
                                             const struct eth_hpp_micro_batch *micro_batch)
{
    struct eth_hpp_transformer_run run = transformer->run;
    const enum eth_hpp_kind kind = eth_hpp_transformer_stage_layer(transformer, layer)->layer.kind;
    const size_t room = (size_t)transformer->part->samples;
    char *saved = transformer->part->recompute
                      ? transformer->shared
                      : transformer->slots + (size_t)micro_batch->slot * transformer->slot_bytes +
                            eth_hpp_transformer_stage_layer(transformer, layer)->kept_at +
                            kept_bytes(transformer, layer, ETH_HPP_SAVED_INPUT);
    for (int b = ETH_HPP_SAVED_INPUT + 1; b < ETH_HPP_SAVED_COUNT; b++) {
        run.saved[b] = saved;
        saved += room * eth_hpp_transformer_saved_buffer(&run.shape, kind, (enum eth_hpp_saved)b);
    }
    char *workspace = run.workspace[0];
    for (int b = 0; b < ETH_HPP_WORK_COUNT; b++) {
        run.workspace[b] = workspace;
        workspace +=
            room * eth_hpp_transformer_workspace_buffer(&run.shape, kind, (enum eth_hpp_work)b);
    }
    run.samples = (size_t)micro_batch->samples;
    run.step = micro_batch->step;
    run.first_sample = micro_batch->first_sample;
    run.tokens = micro_batch->tokens;
    run.targets = micro_batch->targets;
    run.loss = micro_batch->loss;
    run.loss_scale = micro_batch->loss_scale;
    run.logits_held = transformer->logits_step == micro_batch->step &&
                      transformer->logits_index == micro_batch->index;
    return run;
}

static void *kept_input(const struct eth_hpp_transformer *transformer, int layer, int slot)
{
    return transformer->slots + (size_t)slot * transformer->slot_bytes +
           eth_hpp_transformer_stage_layer(transformer, layer)->kept_at;
}

/* ---- the stage's computation ---- */

enum eth_hpp_status eth_hpp_transformer_stage_forward(void *user,
                                                      const struct eth_hpp_micro_batch *micro_batch,
                                                      const void *input, void *output,
                                                      struct eth_hpp_error *err)
{
    struct eth_hpp_transformer *transformer = user;
    const int end = transformer->part->end_layer;
    (void)err;
    if (micro_batch->replay)
        return ETH_HPP_OK;
    for (int l = transformer->part->first_layer; l < end; l++) {
        const struct eth_hpp_transformer_run run = run_of(transformer, l, micro_batch);
        void *next = l + 1 < end ? kept_input(transformer, l + 1, micro_batch->slot) : output;
        eth_hpp_transformer_layer_forward(&eth_hpp_transformer_stage_layer(transformer, l)->layer,
                                          &run, input, next);
        input = next;
    }
    transformer->logits_step = micro_batch->step;
    transformer->logits_index = micro_batch->index;
    return ETH_HPP_OK;
}

enum eth_hpp_status
eth_hpp_transformer_stage_backward(void *user, const struct eth_hpp_micro_batch *micro_batch,
                                   const void *input, const void *output_gradient,
                                   void *input_gradient, struct eth_hpp_error *err)
{
    struct eth_hpp_transformer *transformer = user;
    const struct eth_hpp_kernels *kernels = transformer->run.kernels;
    const size_t bytes = (size_t)micro_batch->samples * transformer->run.shape.sequence *
                         transformer->run.shape.hidden * transformer->run.shape.value_bytes;
    void *gradient = input_gradient;
    (void)err;
    if (gradient == NULL) /* the first of the workspace's buffers, at one place in all layers */
        gradient = transformer->run.workspace[ETH_HPP_WORK_GRADIENT];
    if (output_gradient != NULL)
        kernels->ops->copy(kernels->state, gradient, output_gradient, bytes);
    for (int l = transformer->part->end_layer - 1; l >= transformer->part->first_layer; l--) {
        const struct eth_hpp_transformer_run run = run_of(transformer, l, micro_batch);
        const struct eth_hpp_transformer_layer *layer =
            &eth_hpp_transformer_stage_layer(transformer, l)->layer;
        const void *entered = l == transformer->part->first_layer
                                  ? input
                                  : kept_input(transformer, l, micro_batch->slot);
        if (transformer->part->recompute)
            eth_hpp_transformer_layer_recompute(layer, &run, entered);
        eth_hpp_transformer_layer_backward(layer, &run, entered, gradient);
        eth_hpp_layer_done(transformer->context, l);
    }
    transformer->logits_index = -1;
    return ETH_HPP_OK;
}
