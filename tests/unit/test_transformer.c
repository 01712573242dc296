/* The built-in transformer's numbers, in double: gradients, and that the split into stages and
 * batches is no matter. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/unit/gradient_check.h"
#include "tests/unit/tiny_transformer.h"

/* The whole model on SAMPLES samples at once; gradients stay in the stage. */
static double whole_loss(void *at)
{
    struct stage *stage = at;
    double loss[2] = {0, 0};
    struct batch batch = batch_of(stage, 0, 0, SAMPLES, loss);
    run_forward(stage, &batch, NULL, NULL);
    return loss[0];
}

static struct stage *whole_with_gradients(const struct eth_hpp_model *model, double loss[2])
{
    struct stage *stage = stage_open(model, 0, LAYERS, SAMPLES, 1, false);
    struct batch batch = batch_of(stage, 0, 0, SAMPLES, loss);
    loss[0] = loss[1] = 0;
    run_forward(stage, &batch, NULL, NULL);
    run_backward(stage, &batch, NULL, NULL, NULL);
    return stage;
}

/* Every tensor of `part` against the whole model's. */
static void assert_same_gradients(const struct stage *whole, const struct stage *part)
{
    for (size_t i = 0; i < part->context.count; i++) {
        const struct eth_hpp_tensor *tensor = &part->context.tensors[i];
        const size_t w = stage_context_find(&whole->context, tensor->name);
        const double *expected = whole->context.gradients[w], *got = part->context.gradients[i];
        for (size_t k = 0; k < tensor->count; k++)
            if (!(fabs(expected[k] - got[k]) <= 1e-12 * (1 + fabs(expected[k]))))
                fail_msg("%s[%zu]: %.17g, expected %.17g", tensor->name, k, got[k], expected[k]);
    }
}

/* ---- tests ---- */

/* With dropout everywhere, at rates that tell the places apart. */
static struct eth_hpp_model dropping(const struct eth_hpp_model *plain)
{
    struct eth_hpp_model model = *plain;
    model.embedding_dropout = 0.1;
    model.attention_dropout = 0.2;
    model.residual_dropout = 0.3;
    return model;
}

static void gradients_follow_the_loss(void **state)
{
    (void)state;
    for (size_t m = 0; m < TINY_MODELS; m++) {
        const struct eth_hpp_model models[] = {*tiny_models[m], dropping(tiny_models[m])};
        double loss[2][2];
        for (int d = 0; d < 2; d++) {
            struct stage *stage = whole_with_gradients(&models[d], loss[d]);
            for (size_t i = 0; i < stage->context.count; i++)
                gradient_check(stage->context.tensors[i].name, whole_loss, stage,
                               stage->context.weights[i], stage->context.tensors[i].count,
                               stage->context.gradients[i]);
            stage_close(stage);
        }
        assert_true(fabs(loss[0][0] - loss[1][0]) > 1e-3);
    }
}

/* Other numbers at each step and with another seed. */
static void dropout_changes_with_step_and_seed(void **state)
{
    (void)state;
    const struct eth_hpp_model model = dropping(&tiny);
    struct stage *stage = stage_open(&model, 0, LAYERS, SAMPLES, 1, false);
    double losses[4];
    for (int i = 0; i < 4; i++) {
        double loss[2] = {0, 0};
        struct batch batch = batch_of(stage, 0, 0, SAMPLES, loss);
        batch.view.step = i == 1;
        eth_hpp_transformer_set_seed(stage->transformer, i == 2 ? 6 : 5);
        run_forward(stage, &batch, NULL, NULL);
        losses[i] = loss[0];
    }
    assert_true(losses[0] == losses[3] && losses[0] != losses[1] && losses[0] != losses[2]);
    stage_close(stage);
}

static void an_untied_head_has_its_own_gradient(void **state)
{
    (void)state;
    for (size_t m = 0; m < TINY_MODELS; m++) {
        struct eth_hpp_model untied = *tiny_models[m];
        untied.tied = false;
        double loss[2];
        struct stage *stage = whole_with_gradients(&untied, loss);
        const size_t tokens = 0, head = stage_context_find(&stage->context, "lm_head.weight");
        for (size_t i = 0; i < stage->context.count; i++)
            assert_null(stage->context.tensors[i].tied);
        gradient_check("head", whole_loss, stage, stage->context.weights[head], VOCABULARY * HIDDEN,
                       stage->context.gradients[head]);
        gradient_check("tokens", whole_loss, stage, stage->context.weights[tokens],
                       VOCABULARY * HIDDEN, stage->context.gradients[tokens]);
        stage_close(stage);
    }
}

static void the_first_loss_is_that_of_chance(void **state)
{
    (void)state;
    for (size_t m = 0; m < TINY_MODELS; m++) {
        double loss[2];
        struct stage *stage = whole_with_gradients(tiny_models[m], loss);
        assert_true(loss[1] == 20);
        assert_true(fabs(loss[0] / loss[1] - log(VOCABULARY)) < 0.1);
        for (int l = 0; l < LAYERS; l++)
            assert_int_equal(stage->context.done[l], 1);
        stage_close(stage);
    }
}

static void check_split_batch(const struct eth_hpp_model *model, bool recompute)
{
    double loss[2] = {0, 0}, whole[2];
    struct stage *expected = whole_with_gradients(model, whole);
    struct stage *stage = stage_open(model, 0, LAYERS, 3, 2, recompute);
    struct batch one = batch_of(stage, 0, 0, 1, loss);
    struct batch three = batch_of(stage, 1, 1, 3, loss);
    run_forward(stage, &one, NULL, NULL);
    run_forward(stage, &three, NULL, NULL);
    run_backward(stage, &one, NULL, NULL, NULL);
    run_backward(stage, &three, NULL, NULL, NULL);
    assert_true(fabs(loss[0] - whole[0]) < 1e-12 * whole[0]);
    assert_true(loss[1] == whole[1]);
    assert_same_gradients(expected, stage);
    stage_close(stage);
    stage_close(expected);
}

static void a_split_batch_sums_to_the_whole(void **state)
{
    (void)state;
    for (size_t m = 0; m < TINY_MODELS; m++) {
        const struct eth_hpp_model model = dropping(tiny_models[m]);
        check_split_batch(&model, false);
        check_split_batch(&model, true);
    }
}

/* Turns the gradients of a tied tensor into the sum of what its holders have. */
static void sum_tied(struct stage *first, struct stage *last)
{
    double *one = NULL, *other = NULL;
    for (size_t i = 0; i < first->context.count; i++)
        if (first->context.tensors[i].tied != NULL)
            one = first->context.gradients[i];
    for (size_t i = 0; i < last->context.count; i++)
        if (last->context.tensors[i].tied != NULL)
            other = last->context.gradients[i];
    for (size_t i = 0; one != NULL && i < VOCABULARY * HIDDEN; i++)
        one[i] = other[i] = one[i] + other[i];
}

/* Two stages, the second from layer `cut` on. */
static void check_stages(const struct eth_hpp_model *model, int cut, bool recompute)
{
    static double passed[SAMPLES * SEQUENCE * HIDDEN], gradient[SAMPLES * SEQUENCE * HIDDEN];
    double whole[2], loss[2] = {0, 0};
    struct stage *expected = whole_with_gradients(model, whole);
    struct stage *first = stage_open(model, 0, cut, SAMPLES, 1, recompute);
    struct stage *last = stage_open(model, cut, LAYERS, SAMPLES, 1, recompute);
    assert_int_equal(first->context.input_bytes, 0);
    assert_int_equal(first->context.output_bytes, sizeof(passed) / SAMPLES);
    assert_int_equal(last->context.input_bytes, sizeof(passed) / SAMPLES);
    assert_int_equal(last->context.output_bytes, 0);
    struct batch batch = batch_of(first, 0, 0, SAMPLES, loss);
    run_forward(first, &batch, NULL, passed);
    run_forward(last, &batch, passed, NULL);
    run_backward(last, &batch, passed, NULL, gradient);
    run_backward(first, &batch, NULL, gradient, NULL);
    assert_true(loss[0] == whole[0] && loss[1] == whole[1]);
    sum_tied(first, last);
    assert_same_gradients(expected, first);
    assert_same_gradients(expected, last);
    stage_close(first);
    stage_close(last);
    stage_close(expected);
}

static void stages_hand_over_what_the_whole_computes(void **state)
{
    (void)state;
    for (size_t m = 0; m < TINY_MODELS; m++) {
        const struct eth_hpp_model model = dropping(tiny_models[m]);
        for (int cut = 1; cut < LAYERS; cut++) {
            check_stages(&model, cut, false);
            check_stages(&model, cut, true);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_follow_the_loss),
        cmocka_unit_test(dropout_changes_with_step_and_seed),
        cmocka_unit_test(an_untied_head_has_its_own_gradient),
        cmocka_unit_test(the_first_loss_is_that_of_chance),
        cmocka_unit_test(a_split_batch_sums_to_the_whole),
        cmocka_unit_test(stages_hand_over_what_the_whole_computes),
    };
    return cmocka_run_group_tests(tests, open_kernels, close_kernels);
}
