#include "models/gpt_stage.h"

/* ---- memory ---- */

/* What a slot keeps of one buffer of a layer. The first layer's input is the runtime's. */
static size_t kept_bytes(const struct eth_hpp_gpt *gpt, int layer, enum eth_hpp_gpt_saved buffer)
{
    const bool is_input = buffer == ETH_HPP_GPT_INPUT;
    if (is_input ? layer == gpt->part->first_layer : gpt->part->recompute)
        return 0;
    return (size_t)gpt->part->samples *
           eth_hpp_gpt_saved_buffer(&gpt->run.shape,
                                    eth_hpp_gpt_stage_layer(gpt, layer)->layer.kind, buffer);
}

/* Lays out the slots; returns the bytes of workspace and of shared memory that the largest layer
 * needs. */
static void plan_memory(struct eth_hpp_gpt *gpt, size_t *workspace, size_t *shared)
{
    const size_t samples = (size_t)gpt->part->samples;
    *workspace = *shared = 0;
    for (int l = gpt->part->first_layer; l < gpt->part->end_layer; l++) {
        struct eth_hpp_gpt_stage_layer *at = eth_hpp_gpt_stage_layer(gpt, l);
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

enum eth_hpp_status eth_hpp_gpt_stage_allocate(struct eth_hpp_gpt *gpt, struct eth_hpp_error *err)
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
    const enum eth_hpp_gpt_kind kind = eth_hpp_gpt_stage_layer(gpt, layer)->layer.kind;
    const size_t room = (size_t)gpt->part->samples;
    char *saved = gpt->part->recompute ? gpt->shared
                                       : gpt->slots + (size_t)micro_batch->slot * gpt->slot_bytes +
                                             eth_hpp_gpt_stage_layer(gpt, layer)->kept_at +
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
    run.step = micro_batch->step;
    run.first_sample = micro_batch->first_sample;
    run.tokens = micro_batch->tokens;
    run.targets = micro_batch->targets;
    run.loss = micro_batch->loss;
    run.logits_held =
        gpt->logits_step == micro_batch->step && gpt->logits_index == micro_batch->index;
    return run;
}

static void *kept_input(const struct eth_hpp_gpt *gpt, int layer, int slot)
{
    return gpt->slots + (size_t)slot * gpt->slot_bytes +
           eth_hpp_gpt_stage_layer(gpt, layer)->kept_at;
}

/* ---- the stage's computation ---- */

enum eth_hpp_status eth_hpp_gpt_stage_forward(void *user,
                                              const struct eth_hpp_micro_batch *micro_batch,
                                              const void *input, void *output,
                                              struct eth_hpp_error *err)
{
    struct eth_hpp_gpt *gpt = user;
    const int end = gpt->part->end_layer;
    (void)err;
    if (micro_batch->replay)
        return ETH_HPP_OK;
    for (int l = gpt->part->first_layer; l < end; l++) {
        const struct eth_hpp_gpt_run run = run_of(gpt, l, micro_batch);
        void *next = l + 1 < end ? kept_input(gpt, l + 1, micro_batch->slot) : output;
        eth_hpp_gpt_layer_forward(&eth_hpp_gpt_stage_layer(gpt, l)->layer, &run, input, next);
        input = next;
    }
    gpt->logits_step = micro_batch->step;
    gpt->logits_index = micro_batch->index;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_gpt_stage_backward(void *user,
                                               const struct eth_hpp_micro_batch *micro_batch,
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
        const struct eth_hpp_gpt_layer *layer = &eth_hpp_gpt_stage_layer(gpt, l)->layer;
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
