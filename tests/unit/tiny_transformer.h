/* Tiny models in double and one stage of them, driven by hand. */
#ifndef ETH_HPP_TESTS_TINY_TRANSFORMER_H
#define ETH_HPP_TESTS_TINY_TRANSFORMER_H

#define ETH_HPP_CPU_FLOAT64
#include "kernels/cpu/cpu.h"
#include "models/transformer.h"
#include "tests/unit/stage_context.h"

enum { VOCABULARY = 11, SEQUENCE = 6, HIDDEN = 8, LAYERS = 4, SAMPLES = 4 };

static const struct eth_hpp_model tiny = {.name = "tiny",
                                          .family = ETH_HPP_GPT2,
                                          .vocabulary = VOCABULARY,
                                          .context = 8,
                                          .decoders = LAYERS - 2,
                                          .hidden = HIDDEN,
                                          .inner = 4 * HIDDEN,
                                          .heads = 2,
                                          .key_value_heads = 2,
                                          .head_size = HIDDEN / 2,
                                          .tied = true,
                                          .norm_epsilon = 1e-5};

/* Queries wider than the residual stream, and heads that share keys and values. */
#define TINY_GATED                                                                                 \
    .vocabulary = VOCABULARY, .context = 8, .decoders = LAYERS - 2, .hidden = HIDDEN,              \
    .inner = 3 * HIDDEN, .heads = 2, .key_value_heads = 1, .head_size = 2 * HIDDEN

static const struct eth_hpp_model tiny_llama = {.name = "tiny-llama",
                                                .family = ETH_HPP_LLAMA,
                                                TINY_GATED,
                                                .norm_epsilon = 1e-5,
                                                .rope_theta = 1e4};
static const struct eth_hpp_model tiny_qwen2 = {.name = "tiny-qwen2",
                                                .family = ETH_HPP_QWEN2,
                                                TINY_GATED,
                                                .tied = true,
                                                .norm_epsilon = 1e-6,
                                                .rope_theta = 1e6};

static const struct eth_hpp_model *const tiny_models[] = {&tiny, &tiny_llama, &tiny_qwen2};
enum { TINY_MODELS = sizeof(tiny_models) / sizeof(tiny_models[0]) };

static struct eth_hpp_kernels *kernels;

static inline int open_kernels(void **state)
{
    (void)state;
    return eth_hpp_cpu64_create(&kernels, NULL) == ETH_HPP_OK ? 0 : -1;
}

static inline int close_kernels(void **state)
{
    (void)state;
    eth_hpp_kernels_destroy(kernels);
    return 0;
}

/* Sample n: tokens that count on from n, every fifth target not counted. */
static inline enum eth_hpp_status counting_sample(void *data, int64_t number, int32_t *tokens,
                                                  int32_t *targets, struct eth_hpp_error *err)
{
    (void)data;
    (void)err;
    for (int i = 0; i < SEQUENCE; i++) {
        tokens[i] = (int32_t)((number * 5 + i * i) % VOCABULARY);
        targets[i] = (i + number) % 5 == 4 ? -1 : (int32_t)((number * 3 + i) % VOCABULARY);
    }
    return ETH_HPP_OK;
}

/* ---- a stage with its model ---- */

struct stage {
    struct eth_hpp_context context;
    struct eth_hpp_transformer *transformer;
};

static inline struct stage *stage_open(const struct eth_hpp_model *model, int first, int end,
                                       int samples, int in_flight, bool recompute)
{
    struct stage *stage = calloc(1, sizeof(*stage));
    assert_non_null(stage);
    stage->context.kernels = kernels;
    stage->context.assignment = (struct eth_hpp_assignment){.world_size = 1,
                                                            .stages = 1,
                                                            .first_layer = first,
                                                            .end_layer = end,
                                                            .layers = LAYERS,
                                                            .samples = samples,
                                                            .micro_batches = in_flight,
                                                            .in_flight = in_flight,
                                                            .recompute = recompute,
                                                            .sequence_length = SEQUENCE,
                                                            .global_batch = SAMPLES};
    const struct eth_hpp_transformer_options options = {
        .model = model, .seed = 5, .sample = counting_sample};
    struct eth_hpp_error err = {0};
    if (eth_hpp_transformer_create(&stage->context, &options, &stage->transformer, &err) !=
        ETH_HPP_OK)
        fail_msg("%s", err.text);
    return stage;
}

static inline void stage_close(struct stage *stage)
{
    eth_hpp_transformer_destroy(stage->transformer);
    stage_context_close(&stage->context);
    free(stage);
}

/* A micro-batch with its own data. */
struct batch {
    struct eth_hpp_micro_batch view;
    int32_t tokens[SAMPLES * SEQUENCE], targets[SAMPLES * SEQUENCE];
};

static inline struct batch batch_of(struct stage *stage, int index, int64_t first_sample,
                                    int samples, double loss[2])
{
    struct batch batch = {.view = {.index = index,
                                   .slot = index,
                                   .first_sample = first_sample,
                                   .samples = samples,
                                   .loss = loss,
                                   .loss_scale = 1}};
    for (int i = 0; i < samples; i++)
        assert_int_equal(stage->context.ops.sample(stage->context.user, first_sample + i,
                                                   batch.tokens + i * SEQUENCE,
                                                   batch.targets + i * SEQUENCE, NULL),
                         ETH_HPP_OK);
    return batch;
}

static inline void run_forward(struct stage *stage, struct batch *batch, const void *input,
                               void *output)
{
    batch->view.tokens = batch->tokens;
    batch->view.targets = batch->targets;
    assert_int_equal(
        stage->context.ops.forward(stage->context.user, &batch->view, input, output, NULL),
        ETH_HPP_OK);
}

static inline void run_backward(struct stage *stage, struct batch *batch, const void *input,
                                const void *output_gradient, void *input_gradient)
{
    if (stage->context.assignment.recompute) {
        batch->view.replay = true;
        run_forward(stage, batch, input, NULL);
        batch->view.replay = false;
    }
    assert_int_equal(stage->context.ops.backward(stage->context.user, &batch->view, input,
                                                 output_gradient, input_gradient, NULL),
                     ETH_HPP_OK);
}

#endif
