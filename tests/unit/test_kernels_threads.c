/* The threads of the CPU kernels: how many, that they do all of a loop once, and that results do
 * not depend on their number. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "kernels/cpu/threads.h"
#include "kernels/kernels.h"
#include "tests/unit/valgrind.h"

/* ---- loops ---- */

enum { LOOPS = 100, MOST = 100 };

struct marks {
    atomic_int seen[MOST];
    size_t chunk;
};

static void mark(const void *work, size_t first, size_t end)
{
    struct marks *marks = *(struct marks *const *)work;
    if (first % marks->chunk != 0 || end - first > marks->chunk)
        return;
    for (size_t i = first; i < end; i++)
        atomic_fetch_add(&marks->seen[i], 1);
}

static void every_element_is_visited_once(void **state)
{
    (void)state;
    for (int count = 1; count <= 4; count++) {
        struct eth_hpp_cpu_threads *threads = NULL;
        assert_int_equal(eth_hpp_cpu_threads_start(count, &threads, NULL), ETH_HPP_OK);
        for (size_t loop = 0; loop < LOOPS; loop++) {
            struct marks marks = {.chunk = loop % 7 + 1}, *at = &marks;
            const size_t elements = loop % MOST;
            eth_hpp_cpu_threads_run(threads, elements, marks.chunk, mark, &at);
            for (size_t i = 0; i < MOST; i++)
                assert_int_equal(atomic_load(&marks.seen[i]), i < elements);
        }
        eth_hpp_cpu_threads_stop(threads);
    }
    eth_hpp_cpu_threads_stop(NULL);
}

static void count_one(const void *work, size_t first, size_t end)
{
    atomic_int *seen = *(atomic_int *const *)work;
    (void)end;
    atomic_fetch_add(&seen[first], 1);
}

/* A thread that is late with a short loop must take nothing of the longer one that follows. */
static void loops_that_follow_each_other_stay_apart(void **state)
{
    (void)state;
    enum { SHORT = 3, LONG = 24 };
    const int pairs = in_valgrind() ? 500 : 60000;
    struct eth_hpp_cpu_threads *threads = NULL;
    assert_int_equal(eth_hpp_cpu_threads_start(3, &threads, NULL), ETH_HPP_OK);
    for (int pair = 0; pair < pairs; pair++) {
        atomic_int few[SHORT] = {0}, many[LONG] = {0}, *at_few = few, *at_many = many;
        eth_hpp_cpu_threads_run(threads, SHORT, 1, count_one, &at_few);
        eth_hpp_cpu_threads_run(threads, LONG, 1, count_one, &at_many);
        for (size_t i = 0; i < LONG; i++)
            assert_int_equal(atomic_load(&many[i]), 1);
    }
    eth_hpp_cpu_threads_stop(threads);
}

static void threads_that_fell_asleep_wake_up(void **state)
{
    (void)state;
    struct eth_hpp_cpu_threads *threads = NULL;
    assert_int_equal(eth_hpp_cpu_threads_start(3, &threads, NULL), ETH_HPP_OK);
    for (int i = 0; i < 5; i++) {
        struct marks marks = {.chunk = 1}, *at = &marks;
        usleep(5000);
        eth_hpp_cpu_threads_run(threads, MOST, 1, mark, &at);
        for (size_t e = 0; e < MOST; e++)
            assert_int_equal(atomic_load(&marks.seen[e]), 1);
    }
    eth_hpp_cpu_threads_stop(threads);
}

/* ---- how many ---- */

static const char *const variables[] = {"ETH_HPP_CPU_THREADS", "OMP_NUM_THREADS",
                                        "SLURM_CPUS_PER_TASK", "SLURM_STEP_NUM_TASKS",
                                        "WORLD_SIZE"};
enum { VARIABLES = sizeof(variables) / sizeof(variables[0]) };

static int count_with(const char *const values[VARIABLES])
{
    int count = 0;
    for (int i = 0; i < VARIABLES; i++) {
        if (values[i] == NULL)
            assert_int_equal(unsetenv(variables[i]), 0);
        else
            assert_int_equal(setenv(variables[i], values[i], 1), 0);
    }
    assert_int_equal(eth_hpp_cpu_threads_count(&count, NULL), ETH_HPP_OK);
    return count;
}

static void the_number_of_threads_follows_the_environment(void **state)
{
    (void)state;
    const int alone = count_with((const char *[VARIABLES]){0});
    assert_true(alone >= 1);
    assert_int_equal(count_with((const char *[VARIABLES]){"3", "5", "1", "8", "8"}), 3);
    assert_int_equal(count_with((const char *[VARIABLES]){NULL, "5", "1", "8", "8"}), 5);
    assert_int_equal(count_with((const char *[VARIABLES]){NULL, "4,2"}), 4);
    assert_int_equal(count_with((const char *[VARIABLES]){NULL, "many"}), alone);
    assert_int_equal(count_with((const char *[VARIABLES]){"", NULL, "1"}), 1);
    assert_int_equal(count_with((const char *[VARIABLES]){NULL, NULL, "1000"}), alone);
    assert_int_equal(count_with((const char *[VARIABLES]){NULL, NULL, NULL, "1"}), alone);
    if (alone == sysconf(_SC_NPROCESSORS_ONLN)) {
        assert_int_equal(count_with((const char *[VARIABLES]){NULL, NULL, NULL, "8"}), 1);
        assert_int_equal(count_with((const char *[VARIABLES]){NULL, NULL, NULL, NULL, "8"}), 1);
    }
    count_with((const char *[VARIABLES]){0});
}

/* ---- results ---- */

/* Sizes beyond what a thread takes at once. */
enum { SAMPLES = 3, SEQUENCE = 70, HEADS = 4, SIZE = 24, WIDTH = HEADS * SIZE, CLASSES = 3000 };
enum { ROWS = SAMPLES * SEQUENCE, ELEMENTS = 100001 };

static float *numbers(size_t count, unsigned seed)
{
    float *made = malloc(count * sizeof(*made));
    assert_non_null(made);
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        made[i] = (float)(seed >> 8) / (1 << 24) - 0.5f;
    }
    return made;
}

/* What each operation that shares its work has written, one after the other. */
struct results {
    float *written[20];
    size_t counts[20], used;
    double sums[3];
};

static float *keep(struct results *results, size_t count, unsigned seed)
{
    results->counts[results->used] = count;
    return results->written[results->used++] = numbers(count, seed);
}

static void compute(const char *threads, struct results *r)
{
    struct eth_hpp_kernels *kernels = NULL;
    assert_int_equal(setenv("ETH_HPP_CPU_THREADS", threads, 1), 0);
    assert_int_equal(eth_hpp_kernels_create("cpu", ETH_HPP_FP32, &kernels, NULL), ETH_HPP_OK);
    assert_int_equal(unsetenv("ETH_HPP_CPU_THREADS"), 0);
    const struct eth_hpp_kernels_ops *op = kernels->ops;
    void *state = kernels->state;
    *r = (struct results){0};

    const struct eth_hpp_linear shape = {ROWS, WIDTH, CLASSES, true};
    float *input = keep(r, (size_t)ROWS * WIDTH, 1), *logits = keep(r, (size_t)ROWS * CLASSES, 3);
    float *weight = keep(r, (size_t)CLASSES * WIDTH, 2), *bias = keep(r, CLASSES, 4);
    float *output = keep(r, (size_t)ROWS * WIDTH, 5), *scratch = keep(r, 2 * ROWS, 6);
    op->linear_forward(state, &shape, input, weight, bias, NULL, logits);
    int32_t targets[ROWS], tokens[ROWS];
    for (int i = 0; i < ROWS; i++) {
        targets[i] = i % 5 == 0 ? -1 : i * 7;
        tokens[i] = i % 3;
    }
    op->cross_entropy_forward(state, ROWS, CLASSES, logits, targets, r->sums);
    op->cross_entropy_backward(state, ROWS, CLASSES, logits, targets, 1);
    op->linear_backward_input(state, &shape, logits, weight, output);
    op->linear_backward_weight(state, &shape, logits, input, weight, bias);
    op->layernorm_forward(state, ROWS, WIDTH, 1e-5, input, weight, bias, output, scratch,
                          scratch + ROWS);
    op->layernorm_backward(state, ROWS, WIDTH, output, input, weight, scratch, scratch + ROWS,
                           keep(r, (size_t)ROWS * WIDTH, 7), keep(r, WIDTH, 8), keep(r, WIDTH, 9));
    op->embedding_backward(state, ROWS, SEQUENCE, WIDTH, tokens, output,
                           keep(r, (size_t)3 * WIDTH, 10), keep(r, (size_t)SEQUENCE * WIDTH, 11));

    const struct eth_hpp_attention attention = {SAMPLES, SEQUENCE, HEADS, HEADS, SIZE, NULL};
    float *qkv = keep(r, (size_t)3 * ROWS * WIDTH, 12);
    float *log_sum = keep(r, (size_t)2 * ROWS * HEADS, 13);
    op->attention_forward(state, &attention, qkv, output, log_sum);
    op->attention_backward(state, &attention, input, qkv, output, log_sum,
                           keep(r, (size_t)3 * ROWS * WIDTH, 14), log_sum + ROWS * HEADS);

    const struct eth_hpp_adamw settings = {1e-3, 0.9, 0.95, 1e-8, 0.1, 1, 1};
    float *weights = keep(r, ELEMENTS, 15);
    op->random_normal(state, ELEMENTS, 1, 2, 0.02, weights);
    float *moment = keep(r, ELEMENTS, 16), *squares = keep(r, ELEMENTS, 17);
    op->fill(state, ELEMENTS, 0.01, squares);
    op->adamw(state, ELEMENTS, &settings, logits, weights, moment, squares);
    op->sum_of_squares(state, ELEMENTS, weights, &r->sums[2]);
    eth_hpp_kernels_destroy(kernels);
}

static void release(struct results *results)
{
    for (size_t i = 0; i < results->used; i++)
        free(results->written[i]);
}

static void expect_same(const struct results *one, const struct results *other)
{
    assert_memory_equal(one->sums, other->sums, sizeof(one->sums));
    for (size_t i = 0; i < one->used; i++)
        if (memcmp(one->written[i], other->written[i], one->counts[i] * sizeof(float)) != 0)
            fail_msg("result %zu differs", i);
}

static void results_are_the_same_on_any_number_of_threads(void **state)
{
    (void)state;
    struct results one, more;
    compute("1", &one);
    compute("3", &more);
    expect_same(&one, &more);
    release(&one);
    release(&more);
}

/* ---- signals ---- */

static volatile sig_atomic_t alarms;

static void count_alarm(int number)
{
    (void)number;
    alarms = alarms + 1;
}

/* The matrix products of a library may keep their stack pointer where a handler's frame does harm:
 * a profiler's signals, or Slurm's, must change nothing. */
static void signals_while_kernels_compute_change_nothing(void **state)
{
    (void)state;
    const struct itimerval often = {{0, 50}, {0, 50}}, never = {0};
    struct sigaction counting = {.sa_handler = count_alarm, .sa_flags = SA_RESTART}, before;
    struct results quiet, disturbed;
    for (int i = 0; i < 2; i++) {
        const char *threads = i == 0 ? "1" : "3";
        compute(threads, &quiet);
        alarms = 0;
        assert_int_equal(sigaction(SIGALRM, &counting, &before), 0);
        for (int round = 0; round < 20; round++) {
            assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
            compute(threads, &disturbed);
            assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
            expect_same(&quiet, &disturbed);
            release(&disturbed);
        }
        assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
        assert_true(alarms > 0);
        release(&quiet);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_visited_once),
        cmocka_unit_test(loops_that_follow_each_other_stay_apart),
        cmocka_unit_test(threads_that_fell_asleep_wake_up),
        cmocka_unit_test(the_number_of_threads_follows_the_environment),
        cmocka_unit_test(results_are_the_same_on_any_number_of_threads),
        cmocka_unit_test(signals_while_kernels_compute_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
