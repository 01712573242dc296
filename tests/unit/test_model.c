#include "plan_fixtures.h"

#include <math.h>
#include <unistd.h>

#include "inventory/device_db.h"
#include "model/config_write.h"
#include "plan/derive.h"

static void find(const char *name, struct eth_hpp_model *model)
{
    struct eth_hpp_error err = {0};
    must(eth_hpp_model_find(name, model, &err), &err);
}

static double parameters(const struct eth_hpp_model *model)
{
    double sum = eth_hpp_model_tied_parameters(model);
    for (int i = 0; i < eth_hpp_model_layers(model); i++)
        sum += eth_hpp_model_parameters(model, eth_hpp_model_kind(model, i));
    return sum;
}

/* Totals as Hugging Face's models count them. */
static void presets_have_the_published_numbers_of_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double parameters;
    } cases[] = {{"gpt2", 124439808},        {"gpt2-xl", 1557611200},    {"llama-7b", 6738415616},
                 {"llama-70b", 68976648192}, {"mistral-7b", 7241732096}, {"qwen2-7b", 7615616512},
                 {"opt-1.3b", 1315758080}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_model model;
        find(cases[i].name, &model);
        if (parameters(&model) != cases[i].parameters)
            fail_msg("%s has %.0f parameters", cases[i].name, parameters(&model));
    }
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void a_configuration_equals_its_preset(void **state)
{
    (void)state;
    char path[] = "test_model.XXXXXX";
    struct eth_hpp_model model, preset;
    struct eth_hpp_error err = {0};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    write_file(path, "{\"model_type\":\"gpt2\",\"n_embd\":768,\"n_layer\":12,\"n_head\":12,"
                     "\"n_positions\":1024,\"vocab_size\":50257,\"n_inner\":null,"
                     "\"activation_function\":\"gelu_new\",\"resid_pdrop\":0.1}");
    find(path, &model);
    find("gpt2", &preset);
    assert_true(parameters(&model) == parameters(&preset) && model.tied && model.inner == 3072);
    assert_true(model.unlike[0] == '\0' && model.residual_dropout == 0.1 &&
                model.embedding_dropout == 0 && preset.residual_dropout == 0);
    write_file(path, "{\"model_type\":\"gpt2\",\"n_embd\":768,\"n_layer\":12,\"n_head\":12,"
                     "\"n_positions\":1024,\"vocab_size\":50257,"
                     "\"activation_function\":\"relu\",\"attn_pdrop\":0}");
    find(path, &model);
    assert_string_equal(model.unlike, "activation_function relu");
    assert_true(model.attention_dropout == 0);
    write_file(path, "{\"model_type\":\"gpt2\",\"n_embd\":768,\"n_layer\":12,\"n_head\":12,"
                     "\"n_positions\":1024,\"vocab_size\":50257,\"attn_pdrop\":1}");
    assert_int_equal(eth_hpp_model_find(path, &model, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "attn_pdrop: must be "));
    write_file(path, "{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_hidden_layers\":32,"
                     "\"num_attention_heads\":32,\"num_key_value_heads\":8,"
                     "\"intermediate_size\":14336,\"max_position_embeddings\":8192,"
                     "\"vocab_size\":128256}");
    find(path, &model);
    assert_true(parameters(&model) == 8030261248.0); /* Llama 3 8B */
    unlink(path);
}

/* What a Llama's configuration says beside sizes, as transformers 5 and earlier ones write it. */
static void what_llamas_have_is_read(void **state)
{
    (void)state;
    static const char sizes[] = "{\"model_type\":\"llama\",\"hidden_size\":64,"
                                "\"num_hidden_layers\":2,\"num_attention_heads\":4,"
                                "\"intermediate_size\":176,\"max_position_embeddings\":128,"
                                "\"vocab_size\":256,\"rms_norm_eps\":1e-5}";
    static const struct {
        const char *from, *to, *unlike;
        double theta;
    } cases[] = {
        {"}", ",\"rope_scaling\":null}", "", 1e4},
        {"}", ",\"rope_theta\":5e5}", "", 5e5},
        {"}", ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":3e5}}", "", 3e5},
        {"}", ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", "rope_type llama3",
         1e4},
        {"}", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", "rope_type linear", 1e4},
        {"}", ",\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", "partial_rotary_factor 0.5",
         1e4},
        {"}", ",\"attention_bias\":true}", "attention_bias true", 1e4},
        {"}", ",\"mlp_bias\":true}", "mlp_bias true", 1e4},
        {"}", ",\"hidden_act\":\"gelu\"}", "hidden_act gelu", 1e4},
        {"llama", "mistral", "", 1e4},
        {"llama\"", "mistral\",\"sliding_window\":128", "", 1e4},
        {"llama\"", "mistral\",\"sliding_window\":64", "sliding_window 64", 1e4},
        {"llama\"", "qwen2\",\"sliding_window\":64", "", 1e4},
        {"llama\"", "qwen2\",\"sliding_window\":64,\"use_sliding_window\":true",
         "sliding_window 64", 1e4},
    };
    char path[] = "test_model.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_model model;
        write_file(path, with(sizes, cases[i].from, cases[i].to));
        find(path, &model);
        assert_string_equal(model.unlike, cases[i].unlike);
        assert_true(model.rope_theta == cases[i].theta && model.norm_epsilon == 1e-5);
        assert_true(eth_hpp_model_is_built_in(&model) && model.key_value_heads == 4);
    }
    unlink(path);
}

/* What a checkpoint's config.json says is the model again. */
static void a_written_configuration_is_read_back(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2", "llama-tiny", "llama-70b", "mistral-7b",
                                        "qwen2-7b"};
    char path[] = "test_model.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct eth_hpp_model model, again;
        struct eth_hpp_error err = {0};
        char *text;
        find(names[i], &model);
        model.attention_dropout = 0.25;
        must(eth_hpp_model_config_print(&model, &text, &err), &err);
        write_file(path, text);
        free(text);
        find(path, &again);
        memcpy(again.name, model.name, sizeof(model.name));
        assert_memory_equal(&again, &model, sizeof(model));
    }
    unlink(path);
    struct eth_hpp_model opt;
    struct eth_hpp_error err = {0};
    char *text;
    find("opt-1.3b", &opt);
    assert_int_equal(eth_hpp_model_config_print(&opt, &text, &err), ETH_HPP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "family opt"));
}

static void bad_configurations_are_refused(void **state)
{
    (void)state;
    static const char good[] = "{\"model_type\":\"gpt2\",\"n_embd\":768,\"n_layer\":12,"
                               "\"n_head\":12,\"n_positions\":1024,\"vocab_size\":50257}";
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"\"gpt2\"", "\"bert\"", "model_type: must be gpt2, llama"},
        {"\"n_head\":12", "\"n_head\":7", "no multiple of the 7 attention heads"},
        {"\"n_layer\":12", "\"n_layer\":0", "n_layer: must be 1.."},
        {"\"n_embd\":768,", "", "n_embd: must be a whole number, is missing"},
        {"\"vocab_size\":50257", "\"vocab_size\":1e12", "vocab_size: must be"},
        {"\"gpt2\"",
         "\"llama\",\"hidden_size\":8,\"num_hidden_layers\":2,\"num_attention_heads\":2,"
         "\"intermediate_size\":16,\"max_position_embeddings\":8,\"head_dim\":3",
         "heads of 3 values"},
        {"{", "", "not valid JSON"},
    };
    char path[] = "test_model.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_model model;
        struct eth_hpp_error err = {0};
        write_file(path, with(good, cases[i].from, cases[i].to));
        assert_int_equal(eth_hpp_model_find(path, &model, &err), ETH_HPP_ERR_INPUT);
        if (strstr(err.text, cases[i].message) == NULL)
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.text, cases[i].message);
    }
    unlink(path);
    struct eth_hpp_model model;
    struct eth_hpp_error err = {0};
    assert_int_equal(eth_hpp_model_find("gtp2", &model, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "neither a file (config.json) nor a preset (gpt2, "));
}

static void forward_flops_are_twice_the_multiply_adds(void **state)
{
    (void)state;
    struct eth_hpp_model model;
    find("gpt2", &model);
    double s = 1024, h = 768;
    assert_true(eth_hpp_model_forward_flops(&model, ETH_HPP_KIND_DECODER, 1024) ==
                2 * s * 12 * h * h + 4 * s * s * h);
    assert_true(eth_hpp_model_forward_flops(&model, ETH_HPP_KIND_HEAD, 1024) == 2 * s * h * 50257);
}

static void derived_times_follow_the_datasheet(void **state)
{
    (void)state;
    static const char text[] = "{\"format\":\"eth-hpp-cluster\",\"version\":1,\"nodes\":["
                               "{\"name\":\"n\",\"gpus\":[\"H100-SXM\",\"T4\"],"
                               "\"intra_bandwidth\":1e9,\"inter_bandwidth\":1e9}]}";
    struct eth_hpp_cluster cluster;
    struct eth_hpp_model model;
    struct eth_hpp_profile profile;
    struct eth_hpp_error err = {0};
    find("gpt2", &model);
    must(eth_hpp_cluster_parse("c", text, strlen(text), &cluster, &err), &err);
    assert_int_equal(eth_hpp_derive_dtype(&cluster), ETH_HPP_FP16); /* a T4 has no bf16 */
    struct eth_hpp_derive_options options = {.sequence_length = 512, .dtype = ETH_HPP_FP16};
    must(eth_hpp_derive_profile(&model, &cluster, &options, &profile, &err), &err);
    double flops = eth_hpp_model_forward_flops(&model, ETH_HPP_KIND_DECODER, 512);
    const struct eth_hpp_times *times = eth_hpp_profile_find_times(&profile, "T4", 1);
    assert_int_equal(times->samples[2], 4);
    const struct eth_hpp_layer_time *time = &times->times[2 * ETH_HPP_KINDS + ETH_HPP_KIND_DECODER];
    assert_true(fabs(time->forward_s - (50e-6 + 4 * flops / (0.45 * 65e12))) < 1e-12);
    assert_true(time->backward_s == 2 * time->forward_s);
    assert_true(profile.estimated && profile.tied_count == 1);
    eth_hpp_profile_free(&profile);
    options.emulated_time_scale = 1000;
    must(eth_hpp_derive_profile(&model, &cluster, &options, &profile, &err), &err);
    time = &eth_hpp_profile_find_times(&profile, "T4", 1)->times[ETH_HPP_KIND_DECODER];
    assert_true(fabs(time->forward_s - (1e-4 + 1000 * flops / (0.45 * 65e12))) < 1e-12);
    eth_hpp_profile_free(&profile);
    options.sequence_length = 2048;
    assert_int_equal(eth_hpp_derive_profile(&model, &cluster, &options, &profile, &err),
                     ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "longer than the context of gpt2, 1024"));
    eth_hpp_cluster_free(&cluster);
}

static void devices_are_found_by_name_and_memory(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double memory_bytes;
        const char *device;
    } cases[] = {{"NVIDIA A100-SXM4-40GB", 42949672960, "A100-SXM-40GB"},
                 {"Tesla V100-SXM2-16GB", 16e9, "V100-SXM-16GB"},
                 {"NVIDIA H100 80GB HBM3", 85e9, "H100-SXM"},
                 {"NVIDIA L4", 24e9, "L4"},
                 {"NVIDIA L40S", 48e9, "L40S"},
                 {"Tesla T4", 15e9, "T4"},
                 {"NVIDIA GeForce RTX 3090", 24e9, "RTX-3090"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct eth_hpp_device_spec *spec =
            eth_hpp_device_db_match(cases[i].name, cases[i].memory_bytes);
        assert_non_null(spec);
        assert_string_equal(spec->device, cases[i].device);
    }
    assert_null(eth_hpp_device_db_match("NVIDIA Z900", 1e12));
    assert_string_equal(eth_hpp_device_db_find("T4~0.80")->device, "T4");
    assert_null(eth_hpp_device_db_find("T"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_have_the_published_numbers_of_parameters),
        cmocka_unit_test(a_configuration_equals_its_preset),
        cmocka_unit_test(what_llamas_have_is_read),
        cmocka_unit_test(a_written_configuration_is_read_back),
        cmocka_unit_test(bad_configurations_are_refused),
        cmocka_unit_test(forward_flops_are_twice_the_multiply_adds),
        cmocka_unit_test(derived_times_follow_the_datasheet),
        cmocka_unit_test(devices_are_found_by_name_and_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
