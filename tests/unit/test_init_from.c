/*
 * A model that Hugging Face's transformers have written computes here what it computes there.
 *
 * tests/recorded/gpt2-reference and llama-reference were made by transformers 5.24 (torch 2.15,
 * fp32): a model of the configuration there, its parameters drawn from a normal distribution of
 * deviation 0.4 (norm weights around 1) and saved by save_pretrained; logits.safetensors holds the
 * logits of the tokens (5 i^2 + 3 i + 7) mod 37, i = 0 .. 11. tests/recorded/make_llama makes the
 * second again.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "models/transformer.h"
#include "models/transformer_stage.h"
#include "runtime/safetensors.h"
#include "folder.h"

enum { VOCABULARY = 37, SEQUENCE = 12, LAYERS = 4 };

struct reference {
    const char *folder, *model, *logits;
    const char *prefix;  /* of the tensors' names, which a file may lack */
    const char *removed; /* a tensor without it */
};

static const struct reference references[] = {
    {RECORDED "/gpt2-reference", RECORDED "/gpt2-reference/model.safetensors",
     RECORDED "/gpt2-reference/logits.safetensors", "transformer.", "h.1.mlp.c_fc.bias"},
    {RECORDED "/llama-reference", RECORDED "/llama-reference/model.safetensors",
     RECORDED "/llama-reference/logits.safetensors", "model.", "layers.1.mlp.up_proj.weight"}};
enum { REFERENCES = sizeof(references) / sizeof(references[0]) };

/* ---- the model on one rank ---- */

static enum eth_hpp_status no_sample(void *data, int64_t number, int32_t *tokens, int32_t *targets,
                                     struct eth_hpp_error *err)
{
    (void)data;
    (void)number;
    (void)tokens;
    (void)targets;
    return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL, "nothing is trained here");
}

static void open_model(const struct reference *reference, struct eth_hpp_context **context,
                       struct eth_hpp_transformer **transformer)
{
    char path[64], plan[512];
    struct eth_hpp_model model;
    struct eth_hpp_error err = {0};
    snprintf(path, sizeof(path), "test_init_from.%d.json", (int)getpid());
    const struct eth_hpp_init_options options = {.plan_path = path, .timeout_s = 20};
    const struct eth_hpp_transformer_options making = {
        .model = &model, .seed = 1, .sample = no_sample};
    if (eth_hpp_model_find(reference->folder, &model, &err) != ETH_HPP_OK)
        fail_msg("%s", err.text);
    snprintf(
        plan, sizeof(plan),
        "{\"format\":\"eth-hpp-plan\",\"version\":1,\"model\":{\"name\":\"reference\",\"layers\":4,"
        "\"sequence_length\":12},\"global_batch\":1,\"schedule\":\"1f1b\",\"dtype\":\"fp32\","
        "\"pipelines\":[{\"micro_batch\":1,\"micro_batches\":1,\"stages\":[{\"layers\":[0,4],"
        "\"workers\":[{\"node\":\"here\",\"gpus\":[0],\"ranks\":[0],\"samples\":1}]}]}],"
        "\"blocks\":[{\"layers\":[0,4],\"ranks\":[0]}%s]}",
        model.tied ? ",{\"tied\":\"token-embedding\",\"ranks\":[0]}" : "");
    assert_int_equal(eth_hpp_file_write(path, plan, strlen(plan), 0600, &err), ETH_HPP_OK);
    if (eth_hpp_init(&options, context, &err) != ETH_HPP_OK ||
        eth_hpp_transformer_create(*context, &making, transformer, &err) != ETH_HPP_OK)
        fail_msg("%s", err.text);
    unlink(path);
}

/* Where the head leaves its logits. */
static const float *logits_of(const struct eth_hpp_transformer *transformer)
{
    const char *at = transformer->run.workspace[0];
    for (int b = 0; b < ETH_HPP_WORK_RIGHT; b++)
        at += eth_hpp_transformer_workspace_buffer(&transformer->run.shape, ETH_HPP_KIND_HEAD,
                                                   (enum eth_hpp_work)b);
    return (const float *)(const void *)at;
}

static void expect_recorded_logits(const struct reference *reference,
                                   struct eth_hpp_transformer *transformer)
{
    int32_t tokens[SEQUENCE], targets[SEQUENCE];
    double loss[2] = {0, 0};
    static float recorded[SEQUENCE * VOCABULARY];
    struct eth_hpp_safetensors file;
    struct eth_hpp_error err = {0};
    for (int i = 0; i < SEQUENCE; i++) {
        tokens[i] = (5 * i * i + 3 * i + 7) % VOCABULARY;
        targets[i] = i;
    }
    const struct eth_hpp_micro_batch batch = {
        .samples = 1, .tokens = tokens, .targets = targets, .loss = loss};
    if (eth_hpp_safetensors_open(reference->logits, &file, &err) != ETH_HPP_OK ||
        eth_hpp_safetensors_read(&file, &file.tensors[0], recorded, &err) != ETH_HPP_OK)
        fail_msg("%s", err.text);
    eth_hpp_safetensors_close(&file);
    assert_int_equal(eth_hpp_transformer_stage_forward(transformer, &batch, NULL, NULL, &err),
                     ETH_HPP_OK);
    const float *logits = logits_of(transformer);
    double most = 0;
    for (int i = 0; i < SEQUENCE * VOCABULARY; i++)
        most = fmax(most, fabs((double)logits[i] - (double)recorded[i]));
    if (!(most < 1e-5))
        fail_msg("logits differ by up to %g", most);
}

static void logits_are_those_of_hugging_face(void **state)
{
    (void)state;
    for (int i = 0; i < REFERENCES; i++) {
        struct eth_hpp_context *context;
        struct eth_hpp_transformer *transformer;
        struct eth_hpp_error err = {0};
        open_model(&references[i], &context, &transformer);
        if (eth_hpp_load_weights(context, references[i].folder, &err) != ETH_HPP_OK)
            fail_msg("%s", err.text);
        expect_recorded_logits(&references[i], transformer);
        eth_hpp_finalize(context);
        eth_hpp_transformer_destroy(transformer);
    }
}

/* ---- other spellings, and what is refused ---- */

/* Writes the reference's tensors again: by their bare names, as the published GPT-2 has them, all
 * but the one called `without`. */
static void write_bare(const struct reference *reference, const char *without)
{
    const size_t prefix = strlen(reference->prefix);
    struct eth_hpp_safetensors file;
    struct eth_hpp_safetensors_image image;
    struct eth_hpp_stored_tensor tensors[64];
    struct eth_hpp_error err = {0};
    char path[128];
    size_t count = 0;
    assert_int_equal(eth_hpp_safetensors_open(reference->model, &file, &err), ETH_HPP_OK);
    assert_in_range(file.count, 1, 64);
    for (size_t i = 0; i < file.count; i++) {
        tensors[count] = file.tensors[i];
        if (strncmp(tensors[count].name, reference->prefix, prefix) == 0)
            tensors[count].name += prefix;
        count += strcmp(tensors[count].name, without) != 0;
    }
    assert_int_equal(eth_hpp_safetensors_image_create(tensors, count, &image, &err), ETH_HPP_OK);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(eth_hpp_safetensors_read(&file, &tensors[i],
                                                  (float *)(void *)(image.bytes + image.begins[i]),
                                                  &err),
                         ETH_HPP_OK);
    eth_hpp_safetensors_image_seal(&image);
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    assert_int_equal(eth_hpp_file_write(path, image.bytes, image.size, 0644, &err), ETH_HPP_OK);
    eth_hpp_safetensors_image_free(&image);
    eth_hpp_safetensors_close(&file);
}

static void check_bare_names(const struct reference *reference)
{
    struct eth_hpp_context *context;
    struct eth_hpp_transformer *transformer;
    struct eth_hpp_error err = {0};
    char lacks[128];
    open_model(reference, &context, &transformer);
    write_bare(reference, "");
    if (eth_hpp_load_weights(context, folder, &err) != ETH_HPP_OK)
        fail_msg("%s", err.text);
    expect_recorded_logits(reference, transformer);
    write_bare(reference, reference->removed);
    assert_int_equal(eth_hpp_load_weights(context, folder, &err), ETH_HPP_ERR_INPUT);
    snprintf(lacks, sizeof(lacks), "has no tensor %s%s", reference->prefix, reference->removed);
    assert_non_null(strstr(err.text, lacks));
    remove_folder(NULL);
    assert_int_equal(eth_hpp_load_weights(context, folder, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "model.safetensors: cannot open"));
    eth_hpp_finalize(context);
    eth_hpp_transformer_destroy(transformer);
}

static void names_without_the_models_prefix_will_do(void **state)
{
    for (int i = 0; i < REFERENCES; i++) {
        assert_int_equal(make_folder(state), 0);
        check_bare_names(&references[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_hugging_face),
        cmocka_unit_test_teardown(names_without_the_models_prefix_will_do, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
