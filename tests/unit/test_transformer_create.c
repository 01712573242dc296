/* What the built-in GPT registers, allocates, starts from and refuses. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>

#include "model/transformer_memory.h"
#include "tests/unit/tiny_transformer.h"

static void memory_is_what_planning_predicts(void **state)
{
    (void)state;
    const struct eth_hpp_transformer_shape shape =
        eth_hpp_transformer_shape_of(&tiny, SEQUENCE, sizeof(double), sizeof(double));
    const size_t input = SEQUENCE * HIDDEN * sizeof(double);
    const size_t decoder = eth_hpp_transformer_saved_bytes(&shape, ETH_HPP_KIND_DECODER);
    const size_t head = eth_hpp_transformer_saved_bytes(&shape, ETH_HPP_KIND_HEAD);
    const size_t work = eth_hpp_transformer_workspace_bytes(&shape, ETH_HPP_KIND_DECODER);

    struct stage *plain = stage_open(&tiny, 0, LAYERS, 3, 2, false);
    assert_int_equal(plain->context.allocated_bytes, 3 * (2 * (2 * decoder + head) + work));
    stage_close(plain);

    struct stage *lean = stage_open(&tiny, 0, LAYERS, 3, 2, true);
    assert_int_equal(lean->context.allocated_bytes, 3 * (2 * 3 * input + decoder + work));
    stage_close(lean);
}

static void owners_start_from_the_same_weights(void **state)
{
    (void)state;
    struct stage *whole = stage_open(&tiny, 0, LAYERS, 1, 1, false);
    struct stage *part = stage_open(&tiny, 2, LAYERS, 2, 1, false);
    for (size_t i = 0; i < part->context.count; i++) {
        const struct eth_hpp_tensor *tensor = &part->context.tensors[i];
        const size_t w = stage_context_find(&whole->context, tensor->name);
        assert_memory_equal(part->context.weights[i], whole->context.weights[w],
                            tensor->count * sizeof(double));
    }
    stage_close(whole);
    stage_close(part);
}

static void tensors_have_their_names_and_sizes(void **state)
{
    (void)state;
    struct stage *stage = stage_open(&tiny, 0, LAYERS, 1, 1, false);
    size_t parameters = 0;
    for (size_t i = 0; i < stage->context.count; i++)
        parameters += stage->context.tensors[i].count;
    double expected = eth_hpp_model_tied_parameters(&tiny);
    for (int l = 0; l < LAYERS; l++)
        expected += eth_hpp_model_parameters(&tiny, eth_hpp_model_kind(&tiny, l));
    assert_true((double)parameters == expected);
    const struct eth_hpp_tensor *qkv =
        &stage->context
             .tensors[stage_context_find(&stage->context, "transformer.h.1.attn.c_attn.weight")];
    assert_int_equal(qkv->layer, 2);
    assert_true(qkv->weight_decay);
    const struct eth_hpp_tensor *bias =
        &stage->context
             .tensors[stage_context_find(&stage->context, "transformer.h.0.mlp.c_fc.bias")];
    assert_false(bias->weight_decay);
    const struct eth_hpp_tensor *tokens =
        &stage->context.tensors[stage_context_find(&stage->context, "transformer.wte.weight")];
    assert_string_equal(tokens->tied, "token-embedding");
    stage_close(stage);
}

/* ---- refusals ---- */

static enum eth_hpp_status alien_sample(void *data, int64_t number, int32_t *tokens,
                                        int32_t *targets, struct eth_hpp_error *err)
{
    const int32_t *alien = data; /* a token and a target */
    enum eth_hpp_status status = counting_sample(NULL, number, tokens, targets, err);
    tokens[3] = alien[0];
    targets[4] = alien[1];
    return status;
}

static void tokens_outside_the_vocabulary_are_refused(void **state)
{
    (void)state;
    static const int32_t aliens[][2] = {{VOCABULARY, 0}, {-1, 0}, {0, VOCABULARY}, {0, -2}};
    for (size_t i = 0; i < sizeof(aliens) / sizeof(aliens[0]); i++) {
        int32_t alien[2] = {aliens[i][0], aliens[i][1]}, tokens[SEQUENCE], targets[SEQUENCE];
        struct eth_hpp_context context = {.kernels = kernels,
                                          .assignment = {.end_layer = LAYERS,
                                                         .layers = LAYERS,
                                                         .samples = 1,
                                                         .in_flight = 1,
                                                         .sequence_length = SEQUENCE}};
        const struct eth_hpp_transformer_options options = {
            .model = &tiny, .sample = alien_sample, .data = alien};
        struct eth_hpp_transformer *transformer;
        struct eth_hpp_error err = {0};
        assert_int_equal(eth_hpp_transformer_create(&context, &options, &transformer, &err),
                         ETH_HPP_OK);
        assert_int_equal(context.ops.sample(context.user, 17, tokens, targets, &err),
                         ETH_HPP_ERR_INPUT);
        assert_non_null(strstr(err.text, "sample 17"));
        assert_non_null(strstr(err.text, "vocabulary of 11"));
        eth_hpp_transformer_destroy(transformer);
        stage_context_close(&context);
    }
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct eth_hpp_model opt = tiny, unlike = tiny_llama, odd = tiny_llama;
    opt.family = ETH_HPP_OPT;
    snprintf(unlike.unlike, sizeof(unlike.unlike), "rope_type yarn");
    odd.head_size = 1; /* 8 values of a key's weights */
    const struct eth_hpp_assignment fits = {.end_layer = LAYERS,
                                            .layers = LAYERS,
                                            .samples = 1,
                                            .in_flight = 1,
                                            .sequence_length = SEQUENCE};
    struct eth_hpp_assignment deeper = fits, longer = fits;
    deeper.layers = LAYERS + 1;
    longer.sequence_length = 9;
    const struct {
        const struct eth_hpp_model *model;
        const struct eth_hpp_assignment *assignment;
        enum eth_hpp_status status;
        const char *text;
    } cases[] = {{&opt, &fits, ETH_HPP_ERR_UNSUPPORTED, "family opt"},
                 {&unlike, &fits, ETH_HPP_ERR_UNSUPPORTED, "has rope_type yarn"},
                 {&odd, &fits, ETH_HPP_ERR_UNSUPPORTED, "no multiples of 16"},
                 {&tiny, &deeper, ETH_HPP_ERR_INPUT, "5 layers, model tiny has 4"},
                 {&tiny, &longer, ETH_HPP_ERR_INPUT, "sequence length 9"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_context context = {.kernels = kernels, .assignment = *cases[i].assignment};
        const struct eth_hpp_transformer_options options = {.model = cases[i].model,
                                                            .sample = counting_sample};
        struct eth_hpp_transformer *transformer = NULL;
        struct eth_hpp_error err = {0};
        assert_int_equal(eth_hpp_transformer_create(&context, &options, &transformer, &err),
                         cases[i].status);
        assert_null(transformer);
        if (strstr(err.text, cases[i].text) == NULL)
            fail_msg("\"%s\" lacks \"%s\"", err.text, cases[i].text);
    }
}

static void heads_that_gpus_have_no_kernel_for_are_refused(void **state)
{
    (void)state;
    struct eth_hpp_kernels gpu = *kernels;
    struct eth_hpp_model model = tiny;
    model.head_size = ETH_HPP_HEAD_SIZE_MOST + 1;
    gpu.host_memory = false;
    struct eth_hpp_context context = {
        .kernels = &gpu, .assignment = {.layers = LAYERS, .sequence_length = SEQUENCE}};
    const struct eth_hpp_transformer_options options = {.model = &model, .sample = counting_sample};
    struct eth_hpp_transformer *transformer = NULL;
    struct eth_hpp_error err = {0};
    assert_int_equal(eth_hpp_transformer_create(&context, &options, &transformer, &err),
                     ETH_HPP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "tiny has attention heads of 257 values (head_dim"));
}

static void idle_ranks_hold_nothing(void **state)
{
    (void)state;
    struct eth_hpp_context context = {.assignment = {.idle = true}};
    const struct eth_hpp_transformer_options options = {.model = &tiny, .sample = counting_sample};
    struct eth_hpp_transformer *transformer = NULL;
    assert_int_equal(eth_hpp_transformer_create(&context, &options, &transformer, NULL),
                     ETH_HPP_OK);
    assert_int_equal(context.count, 0);
    assert_int_equal(context.allocations, 0);
    eth_hpp_transformer_destroy(transformer);
    stage_context_close(&context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_what_planning_predicts),
        cmocka_unit_test(owners_start_from_the_same_weights),
        cmocka_unit_test(tensors_have_their_names_and_sizes),
        cmocka_unit_test(tokens_outside_the_vocabulary_are_refused),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(heads_that_gpus_have_no_kernel_for_are_refused),
        cmocka_unit_test(idle_ranks_hold_nothing),
    };
    return cmocka_run_group_tests(tests, open_kernels, close_kernels);
}
