/* The GPU module on emulated GPUs: what it sets for CUDA, and what must not depend on the GPU. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_run.h"
#include "unit/valgrind.h"

static struct eth_hpp_kernels *open_gpu(void)
{
    struct eth_hpp_kernels *kernels = NULL;
    struct eth_hpp_error err = {0};
    setenv("ETH_HPP_CUDA_MODULE", EMULATED_MODULE, 1);
    if (eth_hpp_kernels_create("cuda", ETH_HPP_FP32, &kernels, &err) != ETH_HPP_OK)
        fail_msg("%s", err.text);
    return kernels;
}

/* ---- environment ---- */

static void cuda_reads_what_keeps_streams_apart(void **state)
{
    (void)state;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    unsetenv("CUDA_MODULE_LOADING");
    struct eth_hpp_kernels *kernels = open_gpu();
    assert_string_equal(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
    assert_string_equal(getenv("CUDA_MODULE_LOADING"), "EAGER");
    assert_non_null(kernels->remark);
    assert_non_null(strstr(kernels->remark, "CUDA_DEVICE_MAX_CONNECTIONS=32 in place of 1: "));
    assert_null(strstr(kernels->remark, "CUDA_MODULE_LOADING"));
    eth_hpp_kernels_destroy(kernels);
}

static void programs_that_are_started_later_have_the_users_environment(void **state)
{
    (void)state;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    unsetenv("CUDA_MODULE_LOADING");
    eth_hpp_kernels_destroy(open_gpu());
    assert_string_equal(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "1");
    assert_null(getenv("CUDA_MODULE_LOADING"));
}

static void what_is_set_right_is_not_remarked_on(void **state)
{
    (void)state;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    struct eth_hpp_kernels *kernels = open_gpu();
    assert_null(kernels->remark);
    eth_hpp_kernels_destroy(kernels);
    assert_string_equal(getenv("CUDA_MODULE_LOADING"), "EAGER");
}

static void one_rank_tells_the_user(void **state)
{
    struct gpu_run run = gpu_run_make(&gpu_gpt, ETH_HPP_FP32, "cuda");
    struct ranks_result result;
    (void)state;
    skip_in_valgrind("the log is looked at");
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    setenv("CUDA_MODULE_LOADING", "LAZY", 1);
    run.steps = 1;
    gpu_run_ranks(&run, 2, CHAIN, &result);
    assert_int_equal(result.exit_code[0], 0);
    assert_int_equal(ranks_log_count(&result,
                                     "eth-hpp: CUDA_DEVICE_MAX_CONNECTIONS=32 in place of 1, "
                                     "CUDA_MODULE_LOADING=EAGER in place of LAZY: "),
                     1);
    gpu_run_free(&run);
}

/* ---- heads ---- */

/* A program's own model may ask for them. */
static void heads_without_a_kernel_are_an_error(void **state)
{
    const struct eth_hpp_attention shape = {1, 1, 1, 1, ETH_HPP_HEAD_SIZE_MOST + 1, NULL};
    struct eth_hpp_kernels *kernels = open_gpu();
    const struct eth_hpp_kernels_ops *ops = kernels->ops;
    struct eth_hpp_error err = {0};
    void *memory;
    (void)state;
    assert_int_equal(ops->allocate(kernels->state, 4 * 4096, &memory, &err), ETH_HPP_OK);
    ops->attention_forward(kernels->state, &shape, memory, (char *)memory + 4096,
                           (char *)memory + 8192);
    assert_int_equal(ops->synchronize(kernels->state, &err), ETH_HPP_ERR_IO);
    assert_non_null(strstr(err.text, "heads that are too large"));
    ops->release(kernels->state, memory);
    eth_hpp_kernels_destroy(kernels);
}

/* ---- sums that all replicas need alike ---- */

enum { COUNT = 200001 };

/* Sizes so far apart that each order of additions has another sum. */
static void make_numbers(float *numbers)
{
    uint32_t random = 1;
    for (int i = 0; i < COUNT; i++) {
        random = random * 1664525u + 1013904223u;
        numbers[i] = ldexpf((float)(random >> 8), (int)(random >> 3) % 32 - 40);
    }
}

/* Bits, which are NaN's as good as others'. */
struct sums {
    uint64_t norm, checksum;
};

static struct sums sum_up(int processors, const float *numbers)
{
    char text[16];
    struct eth_hpp_error err = {0};
    struct sums sums = {0};
    void *values, *results;
    snprintf(text, sizeof(text), "%d", processors);
    setenv("ETH_HPP_EMULATED_PROCESSORS", text, 1);
    struct eth_hpp_kernels *kernels = open_gpu();
    const struct eth_hpp_kernels_ops *ops = kernels->ops;
    void *at = kernels->state;
    assert_int_equal(ops->allocate(at, COUNT * sizeof(*numbers), &values, &err), ETH_HPP_OK);
    assert_int_equal(ops->allocate(at, sizeof(sums), &results, &err), ETH_HPP_OK);
    assert_int_equal(ops->to_device(at, values, numbers, COUNT * sizeof(*numbers), &err),
                     ETH_HPP_OK);
    ops->zero(at, results, sizeof(sums));
    ops->sum_of_squares(at, COUNT, values, results);
    ops->checksum(at, COUNT, values, (uint64_t *)results + 1);
    assert_int_equal(ops->to_host(at, &sums, results, sizeof(sums), &err), ETH_HPP_OK);
    ops->release(at, values);
    ops->release(at, results);
    eth_hpp_kernels_destroy(kernels);
    unsetenv("ETH_HPP_EMULATED_PROCESSORS");
    return sums;
}

static void norms_have_the_same_bits_whatever_the_number_of_processors(void **state)
{
    static const int processors[] = {4, 7, 132};
    static float numbers[COUNT];
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    make_numbers(numbers);
    const struct sums one = sum_up(1, numbers);
    assert_true(one.norm != 0 && one.checksum != 0);
    for (size_t i = 0; i < sizeof(processors) / sizeof(processors[0]); i++) {
        const struct sums sums = sum_up(processors[i], numbers);
        assert_int_equal(sums.norm, one.norm);
        assert_int_equal(sums.checksum, one.checksum);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuda_reads_what_keeps_streams_apart),
        cmocka_unit_test(programs_that_are_started_later_have_the_users_environment),
        cmocka_unit_test(what_is_set_right_is_not_remarked_on),
        cmocka_unit_test(one_rank_tells_the_user),
        cmocka_unit_test(heads_without_a_kernel_are_an_error),
        cmocka_unit_test(norms_have_the_same_bits_whatever_the_number_of_processors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
