/* The built-in GPT's numbers, in double: gradients, and that the split into stages and batches is
 * no matter. */
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
static struct eth_hpp_model dropping(void)
{
    struct eth_hpp_model model = tiny;
    model.embedding_dropout = 0.1;
    model.attention_dropout = 0.2;
    model.residual_dropout = 0.3;
    return model;
}

static void gradients_follow_the_loss(void **state)
{
    (void)state;
    const struct eth_hpp_model models[] = {tiny, dropping()};
    double loss[2][2];
    for (int m = 0; m < 2; m++) {
        struct stage *stage = whole_with_gradients(&models[m], loss[m]);
        for (size_t i = 0; i < stage->context.count; i++)
            gradient_check(stage->context.tensors[i].name, whole_loss, stage,
                           stage->context.weights[i], stage->context.tensors[i].count,
                           stage->context.gradients[i]);
        stage_close(stage);
    }
    assert_true(fabs(loss[0][0] - loss[1][0]) > 1e-3);
}

/* Other numbers at each step and with another seed. */
static void dropout_changes_with_step_and_seed(void **state)
{
    (void)state;
    const struct eth_hpp_model model = dropping();
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

/* Recorded from Hugging Face's GPT2LMHeadModel (transformers 5.24, torch 2.15, float64, no dropout)
 * of the same size, on the same samples, with element i of the t-th tensor below set to 0.3 sin(0.7
 * i + 1.3 t), norms' weights 1 more: cross_entropy(reduction="sum"), and of each gradient g the sum
 * of g[i] cos(0.3 i + t). */
static const double RECORDED_LOSS = 61.6147845146281;
static const struct {
    const char *name;
    double gradient;
} recorded[] = {
    {"transformer.wte.weight", 16.1211348918482},
    {"transformer.wpe.weight", 6.76803464253728},
    {"transformer.h.0.ln_1.weight", 0.980306918250285},
    {"transformer.h.0.ln_1.bias", 1.25209902593444},
    {"transformer.h.0.attn.c_attn.weight", -30.2014637689861},
    {"transformer.h.0.attn.c_attn.bias", -7.03983957717226},
    {"transformer.h.0.attn.c_proj.weight", -1.13770177645828},
    {"transformer.h.0.attn.c_proj.bias", 7.15038139301192},
    {"transformer.h.0.ln_2.weight", 0.472786090358833},
    {"transformer.h.0.ln_2.bias", -0.39403479855458},
    {"transformer.h.0.mlp.c_fc.weight", -0.0792177449425666},
    {"transformer.h.0.mlp.c_fc.bias", 0.295713466824428},
    {"transformer.h.0.mlp.c_proj.weight", -0.300453765342022},
    {"transformer.h.0.mlp.c_proj.bias", -2.52562737316943},
    {"transformer.h.1.ln_1.weight", -0.210868082733947},
    {"transformer.h.1.ln_1.bias", -0.626910595784077},
    {"transformer.h.1.attn.c_attn.weight", 10.3456313339042},
    {"transformer.h.1.attn.c_attn.bias", -3.23148123347774},
    {"transformer.h.1.attn.c_proj.weight", 0.144375215272567},
    {"transformer.h.1.attn.c_proj.bias", -2.47737398309903},
    {"transformer.h.1.ln_2.weight", -0.00995055005426027},
    {"transformer.h.1.ln_2.bias", -0.190525668340744},
    {"transformer.h.1.mlp.c_fc.weight", 0.360335285551471},
    {"transformer.h.1.mlp.c_fc.bias", 0.501198637507587},
    {"transformer.h.1.mlp.c_proj.weight", 0.261419552729664},
    {"transformer.h.1.mlp.c_proj.bias", -2.07760276140148},
    {"transformer.ln_f.weight", -2.79314907785207},
    {"transformer.ln_f.bias", -2.67149861220808},
};

static void loss_and_gradients_are_those_of_hugging_face(void **state)
{
    (void)state;
    enum { TENSORS = sizeof(recorded) / sizeof(recorded[0]) };
    struct stage *stage = stage_open(&tiny, 0, LAYERS, SAMPLES, 1, false);
    assert_int_equal(stage->context.count, TENSORS);
    for (size_t t = 0; t < TENSORS; t++) {
        const size_t at = stage_context_find(&stage->context, recorded[t].name);
        const bool norm = strstr(recorded[t].name, "ln_") && strstr(recorded[t].name, "weight");
        double *weights = stage->context.weights[at];
        for (size_t i = 0; i < stage->context.tensors[at].count; i++)
            weights[i] = 0.3 * sin(0.7 * (double)i + 1.3 * (double)t) + (norm ? 1 : 0);
    }
    double loss[2] = {0, 0};
    struct batch batch = batch_of(stage, 0, 0, SAMPLES, loss);
    run_forward(stage, &batch, NULL, NULL);
    run_backward(stage, &batch, NULL, NULL, NULL);
    assert_true(fabs(loss[0] - RECORDED_LOSS) < 1e-11);
    for (size_t t = 0; t < TENSORS; t++) {
        const size_t at = stage_context_find(&stage->context, recorded[t].name);
        const double *gradient = stage->context.gradients[at];
        double sum = 0;
        for (size_t i = 0; i < stage->context.tensors[at].count; i++)
            sum += gradient[i] * cos(0.3 * (double)i + (double)t);
        if (!(fabs(sum - recorded[t].gradient) < 1e-11))
            fail_msg("%s: %.15g, recorded %.15g", recorded[t].name, sum, recorded[t].gradient);
    }
    stage_close(stage);
}

static void an_untied_head_has_its_own_gradient(void **state)
{
    (void)state;
    struct eth_hpp_model untied = tiny;
    untied.tied = false;
    double loss[2];
    struct stage *stage = whole_with_gradients(&untied, loss);
    for (size_t i = 0; i < stage->context.count; i++)
        assert_null(stage->context.tensors[i].tied);
    const size_t head = stage_context_find(&stage->context, "lm_head.weight");
    const size_t tokens = stage_context_find(&stage->context, "transformer.wte.weight");
    gradient_check("head", whole_loss, stage, stage->context.weights[head], VOCABULARY * HIDDEN,
                   stage->context.gradients[head]);
    gradient_check("tokens", whole_loss, stage, stage->context.weights[tokens], VOCABULARY * HIDDEN,
                   stage->context.gradients[tokens]);
    stage_close(stage);
}

static void the_first_loss_is_that_of_chance(void **state)
{
    (void)state;
    double loss[2];
    struct stage *stage = whole_with_gradients(&tiny, loss);
    assert_true(loss[1] == 20);
    assert_true(fabs(loss[0] / loss[1] - log(VOCABULARY)) < 0.1);
    for (int l = 0; l < LAYERS; l++)
        assert_int_equal(stage->context.done[l], 1);
    stage_close(stage);
}

static void a_split_batch_sums_to_the_whole(void **state)
{
    (void)state;
    const struct eth_hpp_model model = dropping();
    double loss[2], whole[2];
    struct stage *expected = whole_with_gradients(&model, whole);
    for (int recompute = 0; recompute <= 1; recompute++) {
        struct stage *stage = stage_open(&model, 0, LAYERS, 3, 2, recompute);
        loss[0] = loss[1] = 0;
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
    }
    stage_close(expected);
}

static void stages_hand_over_what_the_whole_computes(void **state)
{
    (void)state;
    const struct eth_hpp_model model = dropping();
    double whole[2];
    struct stage *expected = whole_with_gradients(&model, whole);
    const size_t bytes = SAMPLES * SEQUENCE * HIDDEN * sizeof(double);
    double *passed = malloc(bytes), *gradient = malloc(bytes);
    for (int cut = 1; cut < LAYERS; cut++)
        for (int recompute = 0; recompute <= 1; recompute++) {
            double loss[2] = {0, 0};
            struct stage *first = stage_open(&model, 0, cut, SAMPLES, 1, recompute);
            struct stage *last = stage_open(&model, cut, LAYERS, SAMPLES, 1, recompute);
            assert_int_equal(first->context.input_bytes, 0);
            assert_int_equal(first->context.output_bytes, bytes / SAMPLES);
            assert_int_equal(last->context.input_bytes, bytes / SAMPLES);
            assert_int_equal(last->context.output_bytes, 0);
            struct batch batch = batch_of(first, 0, 0, SAMPLES, loss);
            run_forward(first, &batch, NULL, passed);
            run_forward(last, &batch, passed, NULL);
            run_backward(last, &batch, passed, NULL, gradient);
            run_backward(first, &batch, NULL, gradient, NULL);
            assert_true(loss[0] == whole[0] && loss[1] == whole[1]);

            /* the tied gradient is the sum of what its holders have */
            double *one =
                first->context
                    .gradients[stage_context_find(&first->context, "transformer.wte.weight")];
            double *other =
                last->context
                    .gradients[stage_context_find(&last->context, "transformer.wte.weight")];
            for (size_t i = 0; i < VOCABULARY * HIDDEN; i++)
                one[i] = other[i] = one[i] + other[i];
            assert_same_gradients(expected, first);
            assert_same_gradients(expected, last);
            stage_close(first);
            stage_close(last);
        }
    free(passed);
    free(gradient);
    stage_close(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_follow_the_loss),
        cmocka_unit_test(dropout_changes_with_step_and_seed),
        cmocka_unit_test(loss_and_gradients_are_those_of_hugging_face),
        cmocka_unit_test(an_untied_head_has_its_own_gradient),
        cmocka_unit_test(the_first_loss_is_that_of_chance),
        cmocka_unit_test(a_split_batch_sums_to_the_whole),
        cmocka_unit_test(stages_hand_over_what_the_whole_computes),
    };
    return cmocka_run_group_tests(tests, open_kernels, close_kernels);
}
