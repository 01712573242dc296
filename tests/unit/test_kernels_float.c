/* What the library's own fp32 kernels promise beyond gradients. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/random.h"
#include "tests/unit/valgrind.h"

static struct eth_hpp_kernels *kernels;
static const struct eth_hpp_kernels_ops *op;

static int open_kernels(void **state)
{
    (void)state;
    if (eth_hpp_kernels_create("cpu", ETH_HPP_FP32, &kernels, NULL) != ETH_HPP_OK)
        return -1;
    op = kernels->ops;
    return 0;
}

static int close_kernels(void **state)
{
    (void)state;
    eth_hpp_kernels_destroy(kernels);
    return 0;
}

static void unknown_kernels_are_refused(void **state)
{
    (void)state;
    struct eth_hpp_kernels *none = NULL;
    struct eth_hpp_error err = {0};
    assert_int_equal(eth_hpp_kernels_create("abacus", ETH_HPP_FP32, &none, &err),
                     ETH_HPP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "abacus"));
    assert_null(none);
}

static void bad_thread_counts_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"0", "-1", "two", "1x", "99999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct eth_hpp_kernels *none = NULL;
        struct eth_hpp_error err = {0};
        assert_int_equal(setenv("ETH_HPP_CPU_THREADS", bad[i], 1), 0);
        assert_int_equal(eth_hpp_kernels_create("cpu", ETH_HPP_FP32, &none, &err),
                         ETH_HPP_ERR_INPUT);
        assert_non_null(strstr(err.text, "ETH_HPP_CPU_THREADS"));
        assert_null(none);
    }
    assert_int_equal(unsetenv("ETH_HPP_CPU_THREADS"), 0);
}

static void memory_is_aligned_and_copied(void **state)
{
    (void)state;
    void *first = NULL, *second = NULL;
    char host[100], back[100];
    memset(host, 7, sizeof(host));
    assert_int_equal(op->allocate(kernels->state, 100, &first, NULL), ETH_HPP_OK);
    assert_int_equal(op->allocate(kernels->state, 0, &second, NULL), ETH_HPP_OK);
    assert_int_equal((uintptr_t)first % 64, 0);
    assert_non_null(second);
    op->release(kernels->state, second);
    assert_int_equal(op->allocate(kernels->state, 100, &second, NULL), ETH_HPP_OK);
    assert_int_equal(op->to_device(kernels->state, first, host, 100, NULL), ETH_HPP_OK);
    op->copy(kernels->state, second, first, 100);
    op->zero(kernels->state, first, 100);
    assert_int_equal(op->synchronize(kernels->state, NULL), ETH_HPP_OK);
    assert_int_equal(op->to_host(kernels->state, back, second, 100, NULL), ETH_HPP_OK);
    assert_memory_equal(back, host, 100);
    assert_int_equal(op->to_host(kernels->state, back, first, 100, NULL), ETH_HPP_OK);
    assert_true(back[0] == 0 && back[99] == 0);
    op->release(kernels->state, first);
    op->release(kernels->state, second);
    op->release(kernels->state, NULL);

    struct eth_hpp_error err = {0};
    assert_int_equal(op->allocate(kernels->state, SIZE_MAX, &first, &err), ETH_HPP_ERR_MEMORY);
}

/* sigmoid(x) comes out of the gelu of large numbers and softmax out of the loss; here through the
 * loss of two classes, whose gradient is a sigmoid. */
static void exponentials_are_accurate(void **state)
{
    (void)state;
    const int32_t target = 1;
    for (double x = -80; x <= 80; x += 0.0137) {
        float logits[2] = {0, (float)x};
        op->cross_entropy_backward(kernels->state, 1, 2, logits, &target, 1);
        const double exact = 1 / (1 + exp((double)(float)x));
        assert_true(fabs((double)logits[0] - exact) <= 4e-7 * exact + 1e-37);
    }
}

/* A product that comes out subnormal takes a hundred times as long, also one that a compiler makes
 * for each element and then leaves out. */
static void gates_make_no_subnormal_numbers(void **state)
{
    enum { ROWS_OF_GATES = 3, WIDTH = 67, COUNT = ROWS_OF_GATES * 2 * WIDTH };
    (void)state;
    skip_in_valgrind("it does not tell of underflows");
    float input[COUNT], output[COUNT], gradient[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        input[i] = 0.01f * ((float)i - COUNT / 2);
        gradient[i] = 1e-3f;
    }
    feclearexcept(FE_ALL_EXCEPT);
    op->gelu_forward(kernels->state, COUNT, input, output);
    op->gelu_backward(kernels->state, COUNT, input, gradient);
    op->swiglu_forward(kernels->state, ROWS_OF_GATES, WIDTH, input, output);
    op->swiglu_backward(kernels->state, ROWS_OF_GATES, WIDTH, output, input);
    assert_false(fetestexcept(FE_UNDERFLOW));
}

static void a_nan_reaches_the_loss(void **state)
{
    (void)state;
    for (size_t at = 0; at < 20; at++) {
        float logits[20] = {0};
        double loss[2] = {0, 0};
        const int32_t target = 3;
        logits[at] = NAN;
        op->cross_entropy_forward(kernels->state, 1, 20, logits, &target, loss);
        assert_true(isnan(loss[0]));
    }
}

/* ---- AdamW ---- */

static float next_number(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / (1 << 24) - 0.5f;
}

static void adamw_follows_its_definition(void **state)
{
    (void)state;
    enum { COUNT = 37, STEPS = 5 };
    float w[COUNT], m[COUNT] = {0}, v[COUNT] = {0}, g[COUNT];
    double exact_w[COUNT], exact_m[COUNT] = {0}, exact_v[COUNT] = {0};
    unsigned seed = 1;
    for (size_t i = 0; i < COUNT; i++)
        exact_w[i] = w[i] = next_number(&seed);
    for (int step = 1; step <= STEPS; step++) {
        const struct eth_hpp_adamw by = {.learning_rate = 1e-2,
                                         .beta1 = 0.9,
                                         .beta2 = 0.95,
                                         .epsilon = 1e-8,
                                         .weight_decay = 0.1,
                                         .gradient_scale = 0.5,
                                         .step = step};
        for (size_t i = 0; i < COUNT; i++) {
            g[i] = next_number(&seed);
            const double gradient = 0.5 * (double)g[i];
            exact_m[i] = 0.9 * exact_m[i] + 0.1 * gradient;
            exact_v[i] = 0.95 * exact_v[i] + 0.05 * gradient * gradient;
            const double m_hat = exact_m[i] / (1 - pow(0.9, step));
            const double v_hat = exact_v[i] / (1 - pow(0.95, step));
            exact_w[i] -= 1e-2 * (m_hat / (sqrt(v_hat) + 1e-8) + 0.1 * exact_w[i]);
        }
        op->adamw(kernels->state, COUNT, &by, g, w, m, v);
    }
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(fabs(w[i] - exact_w[i]) < 1e-6);
        assert_true(fabs(m[i] - exact_m[i]) < 1e-7);
        assert_true(fabs(v[i] - exact_v[i]) < 1e-7);
    }
}

/* The steps of kernels.h one by one; volatile keeps the compiler from fusing or reordering them. */
static float adamw_weight_by_steps(float w, float g)
{
    const volatile float m = 0.1f * g;
    const volatile float square = g * g;
    const volatile float v = 0.05f * square;
    const volatile float m_hat = m * (float)(1 / (1 - 0.9));
    const volatile float v_hat = v * (float)(1 / (1 - 0.95));
    const volatile float below = sqrtf(v_hat) + 1e-8f;
    const volatile float ratio = m_hat / below;
    const volatile float decay = 0.1f * w;
    const volatile float sum = ratio + decay;
    const volatile float change = 1e-3f * sum;
    return w - change;
}

static void adamw_is_exact_to_the_bit(void **state)
{
    (void)state;
    enum { COUNT = 1003 };
    float w[COUNT], m[COUNT] = {0}, v[COUNT] = {0}, g[COUNT], expected[COUNT];
    unsigned seed = 7;
    for (size_t i = 0; i < COUNT; i++) {
        w[i] = next_number(&seed);
        g[i] = next_number(&seed);
        expected[i] = adamw_weight_by_steps(w[i], g[i]);
    }
    const struct eth_hpp_adamw by = {.learning_rate = 1e-3,
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .epsilon = 1e-8,
                                     .weight_decay = 0.1,
                                     .gradient_scale = 1,
                                     .step = 1};
    op->adamw(kernels->state, COUNT, &by, g, w, m, v);
    assert_memory_equal(w, expected, sizeof(w));
}

static void values_in_fp32_are_cast_as_they_are(void **state)
{
    (void)state;
    const float sums[3] = {1 + 0x1p-23f, -0.0f, 0x1p-140f};
    float values[3] = {0};
    op->cast(kernels->state, 3, sums, values);
    assert_memory_equal(values, sums, sizeof(sums));
}

/* ---- sums ---- */

static void sums_of_squares_are_added(void **state)
{
    (void)state;
    float x[13];
    double result = 1;
    for (size_t i = 0; i < 13; i++)
        x[i] = (float)i;
    op->sum_of_squares(kernels->state, 13, x, &result);
    assert_true(result == 1 + 650);
    op->sum_of_squares(kernels->state, 0, x, &result);
    assert_true(result == 651);
}

static uint64_t checksum_of(size_t count, const float *x)
{
    uint64_t result = 5;
    op->checksum(kernels->state, count, x, &result);
    return result - 5;
}

static void checksums_show_every_change(void **state)
{
    (void)state;
    float x[9] = {0, 1, -1, 2, 1e-30f, 0, 3, 4, 5};
    const uint64_t whole = checksum_of(9, x);
    assert_int_equal(checksum_of(0, x), 0);
    assert_true(checksum_of(9, x) == whole);
    for (size_t i = 0; i < 9; i++) {
        const float kept = x[i];
        x[i] = -kept;
        assert_true(checksum_of(9, x) != whole);
        x[i] = nextafterf(kept, 10);
        assert_true(checksum_of(9, x) != whole);
        x[i] = kept;
    }
    x[3] = 3; /* two that change places */
    x[6] = 2;
    assert_true(checksum_of(9, x) != whole);
}

static void scale_add_and_fill(void **state)
{
    (void)state;
    float x[5], y[5];
    op->fill(kernels->state, 5, 3, x);
    op->fill(kernels->state, 5, 0.5, y);
    op->scale(kernels->state, 5, 2, x);
    op->add(kernels->state, 5, x, y);
    for (size_t i = 0; i < 5; i++)
        assert_true(x[i] == 6 && y[i] == 6.5f);
}

/* ---- random numbers ---- */

/* Known answers: kat_vectors of the authors' Random123. */
static void philox_gives_the_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], output[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        uint32_t output[4];
        eth_hpp_random_philox(known[i].counter, known[i].key, output);
        assert_memory_equal(output, known[i].output, sizeof(output));
    }
}

static void quantiles_invert_the_distribution(void **state)
{
    (void)state;
    for (double p = 1e-10; p < 0.5; p *= 1.37) {
        const double x = eth_hpp_random_quantile(p);
        assert_true(fabs(0.5 * erfc(-x / sqrt(2)) - p) <= 1e-13 * p + 1e-16 + 1e-15 * x * x * p);
    }
    assert_true(fabs(eth_hpp_random_quantile(0.975) - 1.959963984540054) < 1e-14);
    assert_true(eth_hpp_random_quantile(0.25) == -eth_hpp_random_quantile(0.75));
    assert_true(eth_hpp_random_quantile(0.5) == 0);
}

static void normal_numbers_depend_on_their_place_alone(void **state)
{
    (void)state;
    enum { COUNT = 40001 };
    float *all = malloc(COUNT * sizeof(*all)), few[7], other[7];
    assert_non_null(all);
    op->random_normal(kernels->state, COUNT, 42, 3, 0.02, all);
    op->random_normal(kernels->state, 7, 42, 3, 0.02, few);
    assert_memory_equal(all, few, sizeof(few));
    op->random_normal(kernels->state, 7, 42, 4, 0.02, other);
    assert_memory_not_equal(all, other, sizeof(other));
    op->random_normal(kernels->state, 7, 43, 3, 0.02, other);
    assert_memory_not_equal(all, other, sizeof(other));

    double sum = 0, squares = 0, fourth = 0;
    for (size_t i = 0; i < COUNT; i++) {
        const double z = (double)all[i] / 0.02;
        sum += z;
        squares += z * z;
        fourth += z * z * z * z;
    }
    assert_true(fabs(sum / COUNT) < 4 / sqrt(COUNT));
    assert_true(fabs(squares / COUNT - 1) < 4 * sqrt(2.0 / COUNT));
    assert_true(fabs(fourth / COUNT - 3) < 4 * sqrt(96.0 / COUNT));
    free(all);
}

/* ---- products ---- */

/* So large that products are cut into tiles on both sides, and none of the last ones is whole. */
enum { ROWS = 257, IN = 10400, OUT = 193 };

/* Small numbers that repeat with another period each, so that sums are exact and each element's
 * place shows. */
static float small(int period, int i)
{
    return (float)(i % period - period / 2);
}

static float *outer_product(int rows, int row_period, int columns, int column_period)
{
    float *made = malloc((size_t)rows * (size_t)columns * sizeof(*made));
    assert_non_null(made);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            made[(size_t)r * (size_t)columns + (size_t)c] =
                small(row_period, r) * small(column_period, c);
    return made;
}

static float sum_of_small_squares(int period, int count)
{
    float sum = 0;
    for (int i = 0; i < count; i++)
        sum += small(period, i) * small(period, i);
    return sum;
}

static void expect_outer_product(const float *matrix, int rows, int row_period, int columns,
                                 int column_period, float factor)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            const float right = factor * small(row_period, r) * small(column_period, c);
            if (matrix[(size_t)r * (size_t)columns + (size_t)c] != right)
                fail_msg("row %d, column %d", r, c);
        }
}

/* All matrices are outer products of x (of rows), y (of inputs) and z (of outputs). */
static void large_products_are_whole(void **state)
{
    enum { X = 7, Y = 5, Z = 3 };
    (void)state;
    skip_in_valgrind("it takes too long");
    float *input = outer_product(ROWS, X, IN, Y), *output = outer_product(ROWS, X, OUT, Z);
    for (int out_major = 0; out_major < 2; out_major++) {
        const struct eth_hpp_linear shape = {ROWS, IN, OUT, out_major > 0};
        float *weight = out_major ? outer_product(OUT, Z, IN, Y) : outer_product(IN, Y, OUT, Z);
        float *made = outer_product(ROWS, X, IN, Y); /* as large as each of the results */
        op->linear_forward(kernels->state, &shape, input, weight, NULL, NULL, made);
        expect_outer_product(made, ROWS, X, OUT, Z, sum_of_small_squares(Y, IN));
        op->linear_forward(kernels->state, &shape, input, weight, NULL, output, made);
        expect_outer_product(made, ROWS, X, OUT, Z, sum_of_small_squares(Y, IN) + 1);
        op->linear_backward_input(kernels->state, &shape, output, weight, made);
        expect_outer_product(made, ROWS, X, IN, Y, sum_of_small_squares(Z, OUT));
        op->linear_backward_weight(kernels->state, &shape, output, input, weight, NULL);
        const float sums = 1 + sum_of_small_squares(X, ROWS);
        if (out_major)
            expect_outer_product(weight, OUT, Z, IN, Y, sums);
        else
            expect_outer_product(weight, IN, Y, OUT, Z, sums);
        free(weight);
        free(made);
    }
    free(input);
    free(output);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_kernels_are_refused),
        cmocka_unit_test(bad_thread_counts_are_refused),
        cmocka_unit_test(memory_is_aligned_and_copied),
        cmocka_unit_test(exponentials_are_accurate),
        cmocka_unit_test(gates_make_no_subnormal_numbers),
        cmocka_unit_test(a_nan_reaches_the_loss),
        cmocka_unit_test(adamw_follows_its_definition),
        cmocka_unit_test(adamw_is_exact_to_the_bit),
        cmocka_unit_test(values_in_fp32_are_cast_as_they_are),
        cmocka_unit_test(sums_of_squares_are_added),
        cmocka_unit_test(checksums_show_every_change),
        cmocka_unit_test(scale_add_and_fill),
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(quantiles_invert_the_distribution),
        cmocka_unit_test(normal_numbers_depend_on_their_place_alone),
        cmocka_unit_test(large_products_are_whole),
    };
    return cmocka_run_group_tests(tests, open_kernels, close_kernels);
}
