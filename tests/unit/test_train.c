/* One process trains the built-in GPT from a plan file: the loss falls, and how the batch is cut
 * does not matter. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/transformer.h"
#include "unit/valgrind.h"

enum { SEQUENCE = 32, STEPS = 30 };

static const struct eth_hpp_model small = {.name = "small",
                                           .family = ETH_HPP_GPT2,
                                           .vocabulary = 128,
                                           .context = SEQUENCE,
                                           .decoders = 2,
                                           .hidden = 32,
                                           .inner = 128,
                                           .heads = 4,
                                           .key_value_heads = 4,
                                           .head_size = 8,
                                           .tied = true,
                                           .norm_epsilon = 1e-5};

static const char text[] =
    "A pipeline is a chain of stages. A stage holds some of the layers and hands its activations "
    "on "
    "to the next; gradients come back the other way. Unlike devices stand side by side, and each "
    "takes as many samples as it can finish while the others are busy with theirs. Nobody waits "
    "for the slowest one, because the slowest one was given the least to do.";

static enum eth_hpp_status text_sample(void *data, int64_t number, int32_t *tokens,
                                       int32_t *targets, struct eth_hpp_error *err)
{
    (void)data;
    (void)err;
    const size_t length = sizeof(text) - 1;
    for (size_t i = 0; i < SEQUENCE; i++) {
        const size_t at = (size_t)number * 37 + i;
        tokens[i] = text[at % length];
        targets[i] = text[(at + 1) % length];
    }
    return ETH_HPP_OK;
}

static void write_plan(const char *path, int micro_batch, int in_flight, const char *recompute)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "{\"format\":\"eth-hpp-plan\",\"version\":1,"
            "\"model\":{\"name\":\"small\",\"layers\":4,\"sequence_length\":%d},"
            "\"global_batch\":8,\"schedule\":\"1f1b\",\"dtype\":\"fp32\",\"pipelines\":[{"
            "\"micro_batch\":%d,\"micro_batches\":%d,\"stages\":[{\"layers\":[0,4],"
            "\"in_flight\":%d,\"recompute\":%s,\"workers\":[{\"node\":\"here\",\"gpus\":[0],"
            "\"ranks\":[0],\"samples\":%d}]}]}],"
            "\"blocks\":[{\"layers\":[0,4],\"ranks\":[0]},"
            "{\"tied\":\"token-embedding\",\"ranks\":[0]}]}",
            (int)SEQUENCE, micro_batch, 8 / micro_batch, in_flight, recompute, micro_batch);
    assert_int_equal(fclose(file), 0);
}

/* Valgrind makes them a hundred times slower, and a few show it what there is to see. */
static int steps(void)
{
    return in_valgrind() ? 2 : STEPS;
}

static void train(int micro_batch, int in_flight, const char *recompute, double losses[STEPS])
{
    char path[] = "/tmp/eth-hpp-train-XXXXXX";
    const int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    write_plan(path, micro_batch, in_flight, recompute);

    struct eth_hpp_error err = {0};
    struct eth_hpp_context *context;
    struct eth_hpp_transformer *transformer;
    const struct eth_hpp_init_options options = {.plan_path = path, .timeout_s = 20};
    const struct eth_hpp_transformer_options model = {
        .model = &small, .seed = 3, .sample = text_sample};
    const struct eth_hpp_optimizer_options optimizer = {.learning_rate = 3e-3,
                                                        .beta1 = 0.9,
                                                        .beta2 = 0.95,
                                                        .epsilon = 1e-8,
                                                        .weight_decay = 0.1,
                                                        .clip_norm = 1};
    if (eth_hpp_init(&options, &context, &err) != ETH_HPP_OK)
        fail_msg("%s", err.text);
    unlink(path);
    if (eth_hpp_transformer_create(context, &model, &transformer, &err) != ETH_HPP_OK)
        fail_msg("%s", err.text);
    for (int step = 0; step < steps(); step++) {
        struct eth_hpp_metrics metrics;
        if (eth_hpp_step(context, &optimizer, &metrics, &err) != ETH_HPP_OK)
            fail_msg("%s", err.text);
        assert_int_equal(metrics.targets, 8 * SEQUENCE);
        losses[step] = metrics.loss;
    }
    eth_hpp_finalize(context);
    eth_hpp_transformer_destroy(transformer);
}

static void the_loss_falls_however_the_batch_is_cut(void **state)
{
    (void)state;
    static const struct {
        int micro_batch, in_flight;
        const char *recompute;
    } cuts[] = {{4, 1, "false"}, {1, 8, "false"}, {2, 2, "true"}};
    double whole[STEPS], losses[STEPS];
    train(8, 1, "false", whole);
    assert_true(fabs(whole[0] - log(small.vocabulary)) < 0.1);
    assert_true(whole[steps() - 1] < (steps() == STEPS ? 0.6 : 1) * whole[0]);
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        train(cuts[i].micro_batch, cuts[i].in_flight, cuts[i].recompute, losses);
        for (int step = 0; step < steps(); step++)
            if (!(fabs(losses[step] - whole[step]) <= 1e-4 * whole[step]))
                fail_msg("cut %zu, step %d: loss %.9g, whole batch %.9g", i, step, losses[step],
                         whole[step]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loss_falls_however_the_batch_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
