/* Attention and what turns its queries and keys, in double: by definition, and gradients against
 * finite differences. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/unit/kernels64.h"

/* ---- attention ---- */

struct attention {
    struct eth_hpp_attention shape;
    double *qkv, *output, *log_sum, *direction;
    double *factors; /* of dropout, [sample][head][query][key], rows of a multiple of 64 */
};

static double attention_loss(void *at)
{
    struct attention *a = at;
    op->attention_forward(NULL, &a->shape, a->qkv, a->output, a->log_sum);
    return gradient_check_dot(a->output, a->direction,
                              a->shape.samples * a->shape.sequence * a->shape.heads *
                                  a->shape.head_size);
}

/* Values of a row of qkv. */
static size_t qkv_width(const struct eth_hpp_attention *shape)
{
    return (shape->heads + 2 * shape->key_value_heads) * shape->head_size;
}

/* Softmax of all scores of one query at once. */
static void assert_attention_by_definition(const struct attention *a)
{
    const size_t width = a->shape.heads * a->shape.head_size, size = a->shape.head_size;
    const size_t group = a->shape.heads / a->shape.key_value_heads, stride = qkv_width(&a->shape);
    const size_t pitch = (a->shape.sequence + 63) / 64 * 64, heads = a->shape.heads;
    for (size_t row = 0; row < a->shape.samples * a->shape.sequence; row++)
        for (size_t h = 0; h < a->shape.heads; h++) {
            const size_t first = row - row % a->shape.sequence;
            const double *query = a->qkv + row * stride + h * size;
            double total = 0, sums[8] = {0};
            for (size_t other = first; other <= row; other++) {
                const double *key = a->qkv + other * stride + width + h / group * size;
                const double *value = key + a->shape.key_value_heads * size;
                const double p = exp(gradient_check_dot(query, key, size) / sqrt((double)size));
                const double factor =
                    a->factors[(first * heads + h * a->shape.sequence + row - first) * pitch +
                               other - first];
                total += p;
                for (size_t i = 0; i < size; i++)
                    sums[i] += p * factor * value[i];
            }
            for (size_t i = 0; i < size; i++)
                assert_true(fabs(a->output[row * width + h * size + i] - sums[i] / total) < 1e-12);
        }
}

static void check_attention(size_t samples, size_t sequence, size_t heads, size_t key_value_heads,
                            size_t head_size, double rate)
{
    const size_t rows = samples * sequence, width = heads * head_size;
    const size_t row_count = (sequence + 63) / 64 * 64;
    const size_t qkv_count = rows * (heads + 2 * key_value_heads) * head_size;
    const struct eth_hpp_dropout dropout = {
        .rate = rate, .seed = 3, .step = 2, .first_sample = 9, .layer = 4, .operation = 1};
    struct attention a = {
        .shape = {samples, sequence, heads, key_value_heads, head_size, rate > 0 ? &dropout : NULL},
        .factors = malloc(rows * heads * row_count * sizeof(double)),
        .qkv = gradient_check_numbers(qkv_count, 1),
        .output = gradient_check_numbers(rows * width, 2),
        .log_sum = gradient_check_numbers(rows * heads, 3),
        .direction = gradient_check_numbers(rows * width, 4)};
    double *gradient = started(qkv_count), *scratch = started(rows * heads);
    for (size_t i = 0; i < qkv_count; i++)
        a.qkv[i] *= 3; /* so that the running maximum changes */
    for (size_t i = 0; i < rows * heads * row_count; i++)
        a.factors[i] = 1;
    op->dropout(NULL, &dropout, samples, heads * sequence * row_count, a.factors);
    attention_loss(&a);
    assert_attention_by_definition(&a);
    op->attention_backward(NULL, &a.shape, a.direction, a.qkv, a.output, a.log_sum, gradient,
                           scratch);
    gradient_check("qkv", attention_loss, &a, a.qkv, qkv_count, gradient);
    free(a.factors);
    free(a.qkv);
    free(a.output);
    free(a.log_sum);
    free(a.direction);
    free(gradient);
    free(scratch);
}

static void attention_gradients(void **state)
{
    (void)state;
    check_attention(1, 1, 1, 1, 1, 0);
    check_attention(2, 5, 3, 3, 4, 0);
    check_attention(1, 64, 1, 1, 3, 0); /* exactly a tile */
    check_attention(2, 65, 2, 2, 4, 0); /* one more */
    check_attention(1, 150, 1, 1, 8, 0);
    check_attention(2, 67, 2, 2, 4, 0.3);
    check_attention(1, 150, 2, 2, 8, 0.1);
}

static void heads_that_share_keys_add_to_their_gradients(void **state)
{
    (void)state;
    check_attention(2, 5, 6, 2, 4, 0);
    check_attention(1, 130, 4, 1, 3, 0);
    check_attention(2, 67, 4, 2, 4, 0.3);
}

/* ---- rotary embedding ---- */

enum { R_SAMPLES = 2, R_SEQUENCE = 5, R_HEADS = 3, R_SIZE = 6, R_STRIDE = 20 };

/* Element i of a head's first half and of its second are x and y of a point. */
static void pairs_are_turned_by_their_position(void **state)
{
    (void)state;
    enum { ROWS = R_SAMPLES * R_SEQUENCE, HALF = R_SIZE / 2 };
    struct eth_hpp_rotary shape = {ROWS, R_SEQUENCE, R_HEADS, R_SIZE, R_STRIDE, 100, false};
    double *before = gradient_check_numbers(ROWS * R_STRIDE, 1), after[ROWS * R_STRIDE];
    memcpy(after, before, sizeof(after));
    op->rotary(NULL, &shape, after);
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < R_STRIDE; k++) {
            const int head = k / R_SIZE, i = k % R_SIZE % HALF, at = r * R_STRIDE;
            const double angle = r % R_SEQUENCE * pow(100, -2.0 * i / R_SIZE);
            const double x = before[at + head * R_SIZE + i];
            const double y = head < R_HEADS ? before[at + head * R_SIZE + i + HALF] : 0;
            double expected = k % R_SIZE < HALF ? x * cos(angle) - y * sin(angle)
                                                : y * cos(angle) + x * sin(angle);
            if (head >= R_HEADS) /* the values of attention */
                expected = before[at + k];
            assert_true(fabs(after[at + k] - expected) < 1e-14);
        }
    shape.back = true;
    op->rotary(NULL, &shape, after);
    for (int i = 0; i < ROWS * R_STRIDE; i++)
        assert_true(fabs(after[i] - before[i]) < 1e-14);
    free(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_gradients),
        cmocka_unit_test(heads_that_share_keys_add_to_their_gradients),
        cmocka_unit_test(pairs_are_turned_by_their_position),
    };
    return cmocka_run_group_tests(tests, open_kernels, close_kernels);
}
