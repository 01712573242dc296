/*
 * Loss and gradients are those of Hugging Face's models: recorded from transformers 5.24
 * (torch 2.15, float64, no dropout) for models of these sizes, on the same samples, with element i
 * of the t-th tensor of a list set to 0.3 sin(0.7 i + 1.3 t), norms' weights 1 more:
 * cross_entropy(reduction="sum"), and of each gradient g the sum of g[i] cos(0.3 i + t).
 * tests/recorded/make_llama makes those of the Llama family again.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/unit/gradient_check.h"
#include "tests/unit/tiny_transformer.h"

struct recorded {
    const char *name;
    double gradient;
};

static const struct recorded of_gpt2[] = {
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

static const struct recorded of_llama[] = {
    {"model.embed_tokens.weight", 0.961359009679097},
    {"model.layers.0.input_layernorm.weight", 0.23566410782451},
    {"model.layers.0.self_attn.q_proj.weight", 0.0200179044894656},
    {"model.layers.0.self_attn.k_proj.weight", 0.0315103319171458},
    {"model.layers.0.self_attn.v_proj.weight", -0.00345241435842353},
    {"model.layers.0.self_attn.o_proj.weight", -0.0160287657282097},
    {"model.layers.0.post_attention_layernorm.weight", 0.000973190134685848},
    {"model.layers.0.mlp.gate_proj.weight", -0.000379046265805956},
    {"model.layers.0.mlp.up_proj.weight", 0.00135229644783065},
    {"model.layers.0.mlp.down_proj.weight", -0.0399869666877873},
    {"model.layers.1.input_layernorm.weight", 0.0352515954403162},
    {"model.layers.1.self_attn.q_proj.weight", 7.07568495322917e-06},
    {"model.layers.1.self_attn.k_proj.weight", 0.000485657804109749},
    {"model.layers.1.self_attn.v_proj.weight", -0.00169504428502456},
    {"model.layers.1.self_attn.o_proj.weight", 0.0631871500702297},
    {"model.layers.1.post_attention_layernorm.weight", 0.00938091551843528},
    {"model.layers.1.mlp.gate_proj.weight", -0.0027531507995776},
    {"model.layers.1.mlp.up_proj.weight", -0.00136927794543325},
    {"model.layers.1.mlp.down_proj.weight", 0.013207223617597},
    {"model.norm.weight", 0.52216367865935},
    {"lm_head.weight", 0.179393487338002},
};

static const struct recorded of_qwen2[] = {
    {"model.embed_tokens.weight", -0.2192641154633},
    {"model.layers.0.input_layernorm.weight", -0.0314212584588215},
    {"model.layers.0.self_attn.q_proj.weight", -0.266382345399001},
    {"model.layers.0.self_attn.k_proj.weight", -0.193345702522094},
    {"model.layers.0.self_attn.v_proj.weight", 0.0561139937021739},
    {"model.layers.0.self_attn.q_proj.bias", -0.012633316189184},
    {"model.layers.0.self_attn.k_proj.bias", 0.00438516236987284},
    {"model.layers.0.self_attn.v_proj.bias", -0.0202591054001169},
    {"model.layers.0.self_attn.o_proj.weight", 0.375491019031475},
    {"model.layers.0.post_attention_layernorm.weight", 0.00279900460118377},
    {"model.layers.0.mlp.gate_proj.weight", -0.000248562099992902},
    {"model.layers.0.mlp.up_proj.weight", 0.00152496495442406},
    {"model.layers.0.mlp.down_proj.weight", 0.0114083638603589},
    {"model.layers.1.input_layernorm.weight", -0.00770786615294139},
    {"model.layers.1.self_attn.q_proj.weight", -0.000501380600293954},
    {"model.layers.1.self_attn.k_proj.weight", -0.000815712201030682},
    {"model.layers.1.self_attn.v_proj.weight", 0.00149630564818273},
    {"model.layers.1.self_attn.q_proj.bias", -0.00399172702097102},
    {"model.layers.1.self_attn.k_proj.bias", -0.00128908348786662},
    {"model.layers.1.self_attn.v_proj.bias", 0.0202156370326345},
    {"model.layers.1.self_attn.o_proj.weight", 0.00856100933572444},
    {"model.layers.1.post_attention_layernorm.weight", -0.00899994162175344},
    {"model.layers.1.mlp.gate_proj.weight", -0.00509031654280701},
    {"model.layers.1.mlp.up_proj.weight", 0.00261061174984178},
    {"model.layers.1.mlp.down_proj.weight", 0.0266093433530366},
    {"model.norm.weight", -0.0601761727317116},
};

static void check(const struct eth_hpp_model *model, const struct recorded *recorded, size_t count,
                  double recorded_loss)
{
    struct stage *stage = stage_open(model, 0, LAYERS, SAMPLES, 1, false);
    assert_int_equal(stage->context.count, count);
    for (size_t t = 0; t < count; t++) {
        const size_t at = stage_context_find(&stage->context, recorded[t].name);
        const char *name = recorded[t].name;
        const bool norm = (strstr(name, "ln_") || strstr(name, "norm")) && strstr(name, "weight");
        double *weights = stage->context.weights[at];
        for (size_t i = 0; i < stage->context.tensors[at].count; i++)
            weights[i] = 0.3 * sin(0.7 * (double)i + 1.3 * (double)t) + (norm ? 1 : 0);
    }
    double loss[2] = {0, 0};
    struct batch batch = batch_of(stage, 0, 0, SAMPLES, loss);
    run_forward(stage, &batch, NULL, NULL);
    run_backward(stage, &batch, NULL, NULL, NULL);
    if (!(fabs(loss[0] - recorded_loss) < 1e-11))
        fail_msg("%s: loss %.15g, recorded %.15g", model->name, loss[0], recorded_loss);
    for (size_t t = 0; t < count; t++) {
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

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static void gpt2_is_that_of_hugging_face(void **state)
{
    (void)state;
    check(&tiny, of_gpt2, COUNT(of_gpt2), 61.6147845146281);
}

static void llama_is_that_of_hugging_face(void **state)
{
    (void)state;
    check(&tiny_llama, of_llama, COUNT(of_llama), 49.4139270415917);
}

static void qwen2_is_that_of_hugging_face(void **state)
{
    (void)state;
    check(&tiny_qwen2, of_qwen2, COUNT(of_qwen2), 47.7834116902011);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_is_that_of_hugging_face),
        cmocka_unit_test(llama_is_that_of_hugging_face),
        cmocka_unit_test(qwen2_is_that_of_hugging_face),
    };
    return cmocka_run_group_tests(tests, open_kernels, close_kernels);
}
