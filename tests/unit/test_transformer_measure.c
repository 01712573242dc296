/* Measuring layers: it runs every kind, gives times, and refuses what it cannot run. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "models/transformer_measure.h"

static const struct eth_hpp_model small = {.name = "small",
                                           .family = ETH_HPP_GPT2,
                                           .vocabulary = 50,
                                           .context = 32,
                                           .decoders = 2,
                                           .hidden = 16,
                                           .inner = 64,
                                           .heads = 2,
                                           .key_value_heads = 2,
                                           .head_size = 8,
                                           .tied = true,
                                           .norm_epsilon = 1e-5};

static void every_kind_takes_time(void **state)
{
    (void)state;
    struct eth_hpp_kernels *kernels;
    assert_int_equal(eth_hpp_kernels_create("cpu", ETH_HPP_FP32, &kernels, NULL), ETH_HPP_OK);
    for (int kind = 0; kind < ETH_HPP_KINDS; kind++) {
        struct eth_hpp_transformer_measure *measure;
        struct eth_hpp_error err = {0};
        assert_int_equal(
            eth_hpp_transformer_measure_open(kernels, &small, kind, 32, 3, &measure, &err),
            ETH_HPP_OK);
        for (int samples = 1; samples <= 3; samples++) {
            double forward_s = 0, backward_s = 0;
            assert_int_equal(
                eth_hpp_transformer_measure_layer(measure, samples, &forward_s, &backward_s, &err),
                ETH_HPP_OK);
            assert_true(forward_s > 0 && isfinite(forward_s));
            assert_true(backward_s > 0 && isfinite(backward_s));
        }
        double s_per_parameter = 0;
        assert_int_equal(eth_hpp_transformer_measure_optimizer(measure, &s_per_parameter, &err),
                         ETH_HPP_OK);
        assert_true(s_per_parameter > 0 && isfinite(s_per_parameter));
        eth_hpp_transformer_measure_close(measure);
    }
    eth_hpp_transformer_measure_close(NULL);
    eth_hpp_kernels_destroy(kernels);
}

static enum eth_hpp_status no_memory(void *state, size_t bytes, void **memory,
                                     struct eth_hpp_error *err)
{
    (void)state;
    (void)bytes;
    (void)memory;
    return eth_hpp_error_memory(err, "a tensor");
}

static void what_cannot_run_is_an_error(void **state)
{
    (void)state;
    struct eth_hpp_kernels *kernels;
    assert_int_equal(eth_hpp_kernels_create("cpu", ETH_HPP_FP32, &kernels, NULL), ETH_HPP_OK);
    struct eth_hpp_transformer_measure *measure = NULL;
    struct eth_hpp_error err = {0};
    struct eth_hpp_model opt = small;
    opt.family = ETH_HPP_OPT;
    assert_int_equal(eth_hpp_transformer_measure_open(kernels, &opt, ETH_HPP_KIND_DECODER, 8, 1,
                                                      &measure, &err),
                     ETH_HPP_ERR_UNSUPPORTED);

    struct eth_hpp_kernels_ops full_ops = *kernels->ops;
    full_ops.allocate = no_memory;
    struct eth_hpp_kernels full = *kernels;
    full.ops = &full_ops;
    assert_int_equal(
        eth_hpp_transformer_measure_open(&full, &small, ETH_HPP_KIND_HEAD, 8, 4, &measure, &err),
        ETH_HPP_ERR_MEMORY);
    assert_non_null(strstr(err.text, "calibration of head on 4 samples"));
    assert_null(measure);
    eth_hpp_kernels_destroy(kernels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_takes_time),
        cmocka_unit_test(what_cannot_run_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
