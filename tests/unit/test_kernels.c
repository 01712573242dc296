/* Every operation's gradients, in double, against finite differences. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#define ETH_HPP_CPU_FLOAT64
#include "kernels/cpu/cpu.h"
#include "kernels/random.h"
#include "tests/unit/gradient_check.h"

static struct eth_hpp_kernels *kernels;
static const struct eth_hpp_kernels_ops *op;

static int open_kernels(void **state)
{
    (void)state;
    if (eth_hpp_cpu64_create(&kernels, NULL) != ETH_HPP_OK)
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

/* Gradients start from something, so that ADDS TO is seen; `expect_added` takes it off again. */
static const double START = 0.25;

static double *started(size_t count)
{
    double *numbers = malloc(count * sizeof(*numbers));
    assert_non_null(numbers);
    for (size_t i = 0; i < count; i++)
        numbers[i] = START;
    return numbers;
}

static const double *without_start(double *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        numbers[i] -= START;
    return numbers;
}

/* ---- embedding ---- */

enum { E_ROWS = 6, E_SEQUENCE = 3, E_WIDTH = 5, E_TOKENS = 4 };

struct embedding {
    int32_t tokens[E_ROWS];
    double *table, *positions, *output, *direction;
};

static double embedding_loss(void *at)
{
    struct embedding *e = at;
    op->embedding_forward(NULL, E_ROWS, E_SEQUENCE, E_WIDTH, e->tokens, e->table, e->positions,
                          e->output);
    return gradient_check_dot(e->output, e->direction, E_ROWS * E_WIDTH);
}

static void embedding_gradients(void **state)
{
    (void)state;
    enum { TABLE = E_TOKENS * E_WIDTH, POSITIONS = E_SEQUENCE * E_WIDTH, OUT = E_ROWS * E_WIDTH };
    struct embedding e = {.tokens = {0, 3, 3, 1, 3, 0},
                          .table = gradient_check_numbers(TABLE, 1),
                          .positions = gradient_check_numbers(POSITIONS, 2),
                          .output = gradient_check_numbers(OUT, 3),
                          .direction = gradient_check_numbers(OUT, 4)};
    double *table = started(TABLE), *positions = started(POSITIONS);
    op->embedding_backward(NULL, E_ROWS, E_SEQUENCE, E_WIDTH, e.tokens, e.direction, table,
                           positions);
    gradient_check("table", embedding_loss, &e, e.table, TABLE, without_start(table, TABLE));
    gradient_check("positions", embedding_loss, &e, e.positions, POSITIONS,
                   without_start(positions, POSITIONS));
    free(e.table);
    free(e.positions);
    free(e.output);
    free(e.direction);
    free(table);
    free(positions);
}

/* ---- layer normalisation ---- */

enum { N_ROWS = 4, N_WIDTH = 7 };

struct layernorm {
    double *x, *weight, *bias, *output, *direction, mean[N_ROWS], rstd[N_ROWS];
};

static double layernorm_loss(void *at)
{
    struct layernorm *n = at;
    op->layernorm_forward(NULL, N_ROWS, N_WIDTH, 1e-5, n->x, n->weight, n->bias, n->output, n->mean,
                          n->rstd);
    return gradient_check_dot(n->output, n->direction, N_ROWS * N_WIDTH);
}

static void layernorm_gradients(void **state)
{
    (void)state;
    enum { ALL = N_ROWS * N_WIDTH };
    struct layernorm n = {.x = gradient_check_numbers(ALL, 1),
                          .weight = gradient_check_numbers(N_WIDTH, 2),
                          .bias = gradient_check_numbers(N_WIDTH, 3),
                          .output = gradient_check_numbers(ALL, 4),
                          .direction = gradient_check_numbers(ALL, 5)};
    double *x = started(ALL), *weight = started(N_WIDTH), *bias = started(N_WIDTH);
    layernorm_loss(&n);
    op->layernorm_backward(NULL, N_ROWS, N_WIDTH, n.direction, n.x, n.weight, n.mean, n.rstd, x,
                           weight, bias);
    gradient_check("input", layernorm_loss, &n, n.x, ALL, without_start(x, ALL));
    gradient_check("weight", layernorm_loss, &n, n.weight, N_WIDTH, without_start(weight, N_WIDTH));
    gradient_check("bias", layernorm_loss, &n, n.bias, N_WIDTH, without_start(bias, N_WIDTH));
    free(n.x);
    free(n.weight);
    free(n.bias);
    free(n.output);
    free(n.direction);
    free(x);
    free(weight);
    free(bias);
}

/* ---- linear layers ---- */

enum { L_ROWS = 5, L_IN = 3, L_OUT = 4 };

struct linear {
    struct eth_hpp_linear shape;
    double *input, *weight, *bias, *output, *direction;
};

static double linear_loss(void *at)
{
    struct linear *l = at;
    op->linear_forward(NULL, &l->shape, l->input, l->weight, l->bias, l->output);
    return gradient_check_dot(l->output, l->direction, L_ROWS * L_OUT);
}

static void check_linear(bool out_major, bool with_bias)
{
    struct linear l = {.shape = {L_ROWS, L_IN, L_OUT, out_major},
                       .input = gradient_check_numbers(L_ROWS * L_IN, 1),
                       .weight = gradient_check_numbers(L_IN * L_OUT, 2),
                       .bias = with_bias ? gradient_check_numbers(L_OUT, 3) : NULL,
                       .output = gradient_check_numbers(L_ROWS * L_OUT, 4),
                       .direction = gradient_check_numbers(L_ROWS * L_OUT, 5)};
    double *input = started(L_ROWS * L_IN), *weight = started(L_IN * L_OUT);
    double *bias = with_bias ? started(L_OUT) : NULL;
    linear_loss(&l);
    for (size_t r = 0; r < L_ROWS; r++)
        for (size_t o = 0; o < L_OUT; o++) {
            double sum = with_bias ? l.bias[o] : 0;
            for (size_t i = 0; i < L_IN; i++)
                sum += l.input[r * L_IN + i] * l.weight[out_major ? o * L_IN + i : i * L_OUT + o];
            assert_true(fabs(sum - l.output[r * L_OUT + o]) < 1e-13);
        }
    op->linear_backward_input(NULL, &l.shape, l.direction, l.weight, input);
    op->linear_backward_weight(NULL, &l.shape, l.direction, l.input, weight, bias);
    gradient_check("input", linear_loss, &l, l.input, L_ROWS * L_IN, input);
    gradient_check("weight", linear_loss, &l, l.weight, L_IN * L_OUT,
                   without_start(weight, L_IN * L_OUT));
    if (with_bias)
        gradient_check("bias", linear_loss, &l, l.bias, L_OUT, without_start(bias, L_OUT));
    free(l.input);
    free(l.weight);
    free(l.bias);
    free(l.output);
    free(l.direction);
    free(input);
    free(weight);
    free(bias);
}

static void linear_gradients(void **state)
{
    (void)state;
    check_linear(false, true);
    check_linear(false, false);
    check_linear(true, true);
    check_linear(true, false);
}

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

/* Softmax of all scores of one query at once. */
static void assert_attention_by_definition(const struct attention *a)
{
    const size_t width = a->shape.heads * a->shape.head_size, size = a->shape.head_size;
    const size_t pitch = (a->shape.sequence + 63) / 64 * 64, heads = a->shape.heads;
    for (size_t row = 0; row < a->shape.samples * a->shape.sequence; row++)
        for (size_t h = 0; h < a->shape.heads; h++) {
            const size_t first = row - row % a->shape.sequence;
            const double *query = a->qkv + row * 3 * width + h * size;
            double total = 0, sums[8] = {0};
            for (size_t other = first; other <= row; other++) {
                const double *key = a->qkv + other * 3 * width + width + h * size;
                const double p = exp(gradient_check_dot(query, key, size) / sqrt((double)size));
                const double factor =
                    a->factors[(first * heads + h * a->shape.sequence + row - first) * pitch +
                               other - first];
                total += p;
                for (size_t i = 0; i < size; i++)
                    sums[i] += p * factor * key[width + i];
            }
            for (size_t i = 0; i < size; i++)
                assert_true(fabs(a->output[row * width + h * size + i] - sums[i] / total) < 1e-12);
        }
}

static void check_attention(size_t samples, size_t sequence, size_t heads, size_t head_size,
                            double rate)
{
    const size_t rows = samples * sequence, width = heads * head_size;
    const size_t row_count = (sequence + 63) / 64 * 64;
    const struct eth_hpp_dropout dropout = {
        .rate = rate, .seed = 3, .step = 2, .first_sample = 9, .layer = 4, .operation = 1};
    struct attention a = {
        .shape = {samples, sequence, heads, head_size, rate > 0 ? &dropout : NULL},
        .factors = malloc(rows * heads * row_count * sizeof(double)),
        .qkv = gradient_check_numbers(rows * 3 * width, 1),
        .output = gradient_check_numbers(rows * width, 2),
        .log_sum = gradient_check_numbers(rows * heads, 3),
        .direction = gradient_check_numbers(rows * width, 4)};
    double *gradient = started(rows * 3 * width), *scratch = started(rows * heads);
    for (size_t i = 0; i < rows * 3 * width; i++)
        a.qkv[i] *= 3; /* so that the running maximum changes */
    for (size_t i = 0; i < rows * heads * row_count; i++)
        a.factors[i] = 1;
    op->dropout(NULL, &dropout, samples, heads * sequence * row_count, a.factors);
    attention_loss(&a);
    assert_attention_by_definition(&a);
    op->attention_backward(NULL, &a.shape, a.direction, a.qkv, a.output, a.log_sum, gradient,
                           scratch);
    gradient_check("qkv", attention_loss, &a, a.qkv, rows * 3 * width, gradient);
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
    check_attention(1, 1, 1, 1, 0);
    check_attention(2, 5, 3, 4, 0);
    check_attention(1, 64, 1, 3, 0); /* exactly a tile */
    check_attention(2, 65, 2, 4, 0); /* one more */
    check_attention(1, 150, 1, 8, 0);
    check_attention(2, 67, 2, 4, 0.3);
    check_attention(1, 150, 2, 8, 0.1);
}

/* ---- dropout ---- */

static void dropout_depends_on_the_place_alone(void **state)
{
    (void)state;
    enum { COUNT = 1001, TOGETHER = 3 };
    const struct eth_hpp_dropout all = {.rate = 0.25,
                                        .seed = 0x1234567890ull,
                                        .step = 7,
                                        .first_sample = 40,
                                        .layer = 2,
                                        .operation = 3};
    double together[TOGETHER * COUNT], alone[COUNT];
    int dropped = 0, alike[4] = {0};
    for (int i = 0; i < TOGETHER * COUNT; i++)
        together[i] = 3;
    op->dropout(NULL, &all, TOGETHER, COUNT, together);
    for (int i = 0; i < TOGETHER * COUNT; i++) {
        assert_true(together[i] == 0 || together[i] == 4);
        dropped += together[i] == 0;
    }
    assert_in_range(dropped, 650, 850); /* of 3003 at 0.25: 751, deviation 24 */
    for (int change = 0; change < 5; change++) {
        struct eth_hpp_dropout other = all;
        int same = 0;
        other.first_sample += 1; /* the second sample, and in another micro-batch */
        other.step += change == 1;
        other.layer += change == 2;
        other.operation += change == 3;
        other.seed += change == 4;
        for (int i = 0; i < COUNT; i++)
            alone[i] = 3;
        op->dropout(NULL, &other, 1, COUNT, alone);
        for (int i = 0; i < COUNT; i++)
            same += alone[i] == together[COUNT + i];
        if (change == 0)
            assert_int_equal(same, COUNT);
        else
            alike[change - 1] = same;
    }
    for (int change = 0; change < 4; change++)
        assert_in_range(alike[change], 550, 700); /* by chance 1 - 2 x 0.25 x 0.75 */
    /* the reference generator's bits: block 5 decides the elements 5, 21, 37 and 53 */
    const uint32_t counter[4] = {5, 2u << 16 | 3u << 8, 40, 0};
    const uint32_t key[2] = {0x34567890u, 0x12u ^ 7u ^ 0x80000000u};
    uint32_t bits[4];
    eth_hpp_random_philox(counter, key, bits);
    for (int i = 0; i < 4; i++)
        assert_int_equal(together[5 + 16 * i] == 0, bits[i] < 1u << 30);
}

/* ---- gelu and cross-entropy ---- */

struct gelu {
    size_t count;
    double *x, *output, *direction;
};

static double gelu_loss(void *at)
{
    struct gelu *g = at;
    op->gelu_forward(NULL, g->count, g->x, g->output);
    return gradient_check_dot(g->output, g->direction, g->count);
}

static void gelu_gradients(void **state)
{
    (void)state;
    enum { COUNT = 40 };
    struct gelu g = {COUNT, gradient_check_numbers(COUNT, 1), gradient_check_numbers(COUNT, 2),
                     gradient_check_numbers(COUNT, 3)};
    double gradient[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        g.x[i] *= 6;
    gelu_loss(&g);
    for (size_t i = 0; i < COUNT; i++) {
        const double x = g.x[i], u = sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
        assert_true(fabs(g.output[i] - 0.5 * x * (1 + tanh(u))) < 1e-13);
    }
    memcpy(gradient, g.direction, sizeof(gradient));
    op->gelu_backward(NULL, COUNT, g.x, gradient);
    gradient_check("gelu", gelu_loss, &g, g.x, COUNT, gradient);
    free(g.x);
    free(g.output);
    free(g.direction);
}

enum { C_ROWS = 4, C_CLASSES = 11 };

struct cross_entropy {
    double *logits;
    int32_t targets[C_ROWS];
};

static double cross_entropy_loss(void *at)
{
    struct cross_entropy *c = at;
    double loss[2] = {0, 0};
    op->cross_entropy_forward(NULL, C_ROWS, C_CLASSES, c->logits, c->targets, loss);
    return loss[0];
}

static void cross_entropy_gradients(void **state)
{
    (void)state;
    struct cross_entropy c = {gradient_check_numbers(C_ROWS * C_CLASSES, 1), {0, -1, 10, 4}};
    double gradient[C_ROWS * C_CLASSES], loss[2] = {10, 100};
    for (size_t i = 0; i < C_ROWS * C_CLASSES; i++)
        c.logits[i] *= 5;
    memcpy(gradient, c.logits, sizeof(gradient));
    op->cross_entropy_backward(NULL, C_ROWS, C_CLASSES, gradient, c.targets);
    gradient_check("logits", cross_entropy_loss, &c, c.logits, C_ROWS * C_CLASSES, gradient);
    op->cross_entropy_forward(NULL, C_ROWS, C_CLASSES, c.logits, c.targets, loss);
    assert_true(fabs(loss[0] - 10 - cross_entropy_loss(&c)) < 1e-12);
    assert_true(loss[1] == 103);
    free(c.logits);
}

static void cross_entropy_of_huge_logits_is_finite(void **state)
{
    (void)state;
    double logits[2][3] = {{1e4, -1e4, 0}, {-1e300, -1e300, -1e300}}, loss[2] = {0, 0};
    const int32_t targets[2] = {0, 1};
    op->cross_entropy_forward(NULL, 2, 3, logits, targets, loss);
    assert_true(fabs(loss[0] - log(3)) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_gradients),
        cmocka_unit_test(layernorm_gradients),
        cmocka_unit_test(linear_gradients),
        cmocka_unit_test(attention_gradients),
        cmocka_unit_test(dropout_depends_on_the_place_alone),
        cmocka_unit_test(gelu_gradients),
        cmocka_unit_test(cross_entropy_gradients),
        cmocka_unit_test(cross_entropy_of_huge_logits_is_finite),
    };
    return cmocka_run_group_tests(tests, open_kernels, close_kernels);
}
