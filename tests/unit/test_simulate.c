/* The simulator against small cases worked out by hand. */
#include "plan_fixtures.h"

#include <math.h>

#include "plan/simulate.h"

static void simulate(const struct fixture *f, bool blocking, struct eth_hpp_simulation *simulation)
{
    struct eth_hpp_error err = {0};
    must(eth_hpp_simulate(&f->plan, &f->cluster, &f->profile, blocking, simulation, &err), &err);
}

/* In place, the first time that it stands there. */
static void replace(char *text, size_t size, const char *old, const char *new)
{
    char *at = strstr(text, old);
    assert_non_null(at);
    const size_t tail = strlen(at + strlen(old)) + 1;
    assert_true((size_t)(at - text) + strlen(new) + tail <= size);
    memmove(at + strlen(new), at + strlen(old), tail);
    memcpy(at, new, strlen(new));
}

static void assert_near(double a, double b)
{
    if (fabs(a - b) > 1e-9 * fabs(b))
        fail_msg("%.12g is not %.12g", a, b);
}

#define ONE_GPU                                                                                    \
    PLAN_HEAD "\"global_batch\":6,\"pipelines\":[{\"micro_batch\":2,\"micro_batches\":3,"          \
              "\"stages\":[{\"layers\":[0,6],\"workers\":["                                        \
              "{\"node\":\"a1\",\"gpus\":[0],\"samples\":2}]}]}]}"

static void one_gpu_takes_the_sum_of_its_layers(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_simulation s;
    fixture_open(&f, CLUSTER, PROFILE, ONE_GPU);
    simulate(&f, false, &s);
    /* a sample: 0.1 + 4 x 1 + 1 ms forward, 0.1 + 4 x 2 + 2 ms backward; 6 samples */
    assert_near(s.step.compute_s, 6 * 15.2e-3);
    assert_near(s.step.optimizer_s, 5.101e6 * 1e-10); /* tied tensor once */
    assert_near(s.step.step_s, 6 * 15.2e-3 + 5.101e6 * 1e-10);
    assert_near(s.predicted.bubble_fraction, s.step.optimizer_s / s.step.step_s);
    /* state 1.6e6 + 4 x 1.6e7 + 1.6e4 + 1.6e7; 2 samples x (1e6 + 4e8 + 1e6 saved + 1e7) */
    assert_near(s.predicted.ranks[0].peak_memory_bytes, 81.616e6 + 2 * 412e6);
    assert_true(s.feasible);
    eth_hpp_simulation_free(&s);
    fixture_close(&f);
}

#define TWO_STAGES(extra)                                                                          \
    PLAN_HEAD "\"global_batch\":3,\"pipelines\":[{\"micro_batch\":1,\"micro_batches\":3,"          \
              "\"stages\":[{\"layers\":[0,3]," extra "\"workers\":["                               \
              "{\"node\":\"a1\",\"gpus\":[0],\"samples\":1}]},"                                    \
              "{\"layers\":[3,6],\"workers\":["                                                    \
              "{\"node\":\"a2\",\"gpus\":[0],\"samples\":1}]}]}]}"

static void two_stages_follow_1f1b(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_simulation s;
    fixture_open(&f, CLUSTER, PROFILE, TWO_STAGES(""));
    simulate(&f, false, &s);
    /* Stage 0: forward 2.1, backward 4.1 ms; stage 1: 3 and 6; a hand-over 1e6/1e10 = 0.1 ms.
     * Stage 1 runs F0 2.2-5.2 B0 -11.2 F1 -14.2 B1 -20.2 F2 -23.2 B2 -29.2 and is never short of
     * input; the last gradient arrives at 29.3, and B2 of stage 0 ends at 33.4. */
    assert_near(s.step.compute_s, 33.4e-3);
    eth_hpp_simulation_free(&s);
    simulate(&f, true, &s);
    /* Waiting for its gradients' transfers costs stage 1 0.1 ms twice. */
    assert_near(s.step.compute_s, 33.6e-3);
    eth_hpp_simulation_free(&s);
    fixture_close(&f);
}

static double compute_of_long(bool blocking, int micro_batches)
{
    char plan[1024], count[64];
    struct fixture f;
    struct eth_hpp_simulation s;
    snprintf(plan, sizeof(plan), "%s", TWO_STAGES(""));
    snprintf(count, sizeof(count), "\"global_batch\":%d,", micro_batches);
    replace(plan, sizeof(plan), "\"global_batch\":3,", count);
    snprintf(count, sizeof(count), "\"micro_batches\":%d,", micro_batches);
    replace(plan, sizeof(plan), "\"micro_batches\":3,", count);
    fixture_open(&f, CLUSTER, PROFILE, plan);
    simulate(&f, blocking, &s);
    const double compute_s = s.step.compute_s;
    eth_hpp_simulation_free(&s);
    fixture_close(&f);
    return compute_s;
}

/* Of so many that most go by at the beat, as if all were run: stage 1 sets it, by 9 ms, and with
 * senders that wait by 9.1. */
static void millions_of_micro_batches_take_as_long_as_if_all_were_run(void **state)
{
    (void)state;
    assert_near(compute_of_long(false, 1 << 23), 33.4e-3 + ((1 << 23) - 3) * 9e-3);
    assert_near(compute_of_long(true, 1 << 23), 33.6e-3 + ((1 << 23) - 3) * 9.1e-3);
}

struct seen {
    struct eth_hpp_span spans[64];
    int count;
};

static void see(void *context, const struct eth_hpp_span *span)
{
    struct seen *seen = context;
    assert_true(seen->count < 64);
    seen->spans[seen->count++] = *span;
}

/* The number-th span of that kind on a stage, in the order in which it was told. */
static const struct eth_hpp_span *find_span(const struct seen *seen, enum eth_hpp_opcode opcode,
                                            int stage, int number)
{
    for (int i = 0; i < seen->count; i++)
        if (seen->spans[i].opcode == opcode && seen->spans[i].stage == stage && number-- == 0)
            return &seen->spans[i];
    fail_msg("no such span");
    return NULL;
}

static void assert_span(const struct eth_hpp_span *span, int number, double start_s, double end_s)
{
    assert_int_equal(span->micro_batch >= 0 ? span->micro_batch : span->block, number);
    assert_near(span->start_s, start_s);
    assert_near(span->end_s, end_s);
}

static void an_observer_sees_the_step_that_is_predicted(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_simulation s;
    struct eth_hpp_error err = {0};
    struct seen seen = {.count = 0};
    struct eth_hpp_observer observer = {.see = see, .context = &seen};
    fixture_open(&f, CLUSTER, PROFILE, TWO_STAGES(""));
    must(eth_hpp_simulate_observed(&f.plan, &f.cluster, &f.profile, false, &observer, &s, &err),
         &err);
    assert_span(find_span(&seen, ETH_HPP_SEND_ACTIVATION, 0, 0), 0, 2.1e-3, 2.2e-3);
    assert_span(find_span(&seen, ETH_HPP_FORWARD, 1, 0), 0, 2.2e-3, 5.2e-3);
    assert_span(find_span(&seen, ETH_HPP_SEND_GRADIENT, 1, 2), 2, 29.2e-3, 29.3e-3);
    assert_span(find_span(&seen, ETH_HPP_BACKWARD, 0, 2), 2, 29.3e-3, 33.4e-3);
    /* The tied tensor is the third block: both stages hold it, and its sum takes 4e6/1e10 s from
     * when the embedding's backward is through. */
    assert_span(find_span(&seen, ETH_HPP_SYNC_BLOCK, 1, 0), 2, 33.4e-3, 33.8e-3);
    assert_near(find_span(&seen, ETH_HPP_OPTIMIZER_STEP, 0, 0)->end_s, s.step.step_s);
    /* 6 forwards, 6 backwards, 3 hand-overs each way, the tied sum and an update on each stage */
    assert_int_equal(seen.count, 12 + 6 + 2 + 2);
    eth_hpp_simulation_free(&s);
    fixture_close(&f);
}

static void recompute_runs_the_forward_again_and_keeps_inputs_only(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_simulation s;
    fixture_open(&f, CLUSTER, PROFILE, TWO_STAGES("\"recompute\":true,"));
    simulate(&f, false, &s);
    assert_near(s.step.compute_s, 29.3e-3 + 6.2e-3);
    /* two in flight: inputs of both decoders, one decoder's saved bytes and workspace */
    double resident = 1.6e6 + 2 * 1.6e7 + 1.6e7;
    assert_near(s.predicted.ranks[0].peak_memory_bytes, resident + 2 * 2e6 + 1e8 + 1e7);
    eth_hpp_simulation_free(&s);
    fixture_close(&f);
}

static void in_flight_counts_in_memory(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_simulation s;
    fixture_open(&f, CLUSTER, PROFILE, TWO_STAGES("\"in_flight\":3,"));
    simulate(&f, false, &s);
    double resident = 1.6e6 + 2 * 1.6e7 + 1.6e7;
    assert_near(s.predicted.ranks[0].peak_memory_bytes, resident + 3 * 2.01e8 + 1e7);
    eth_hpp_simulation_free(&s);
    fixture_close(&f);
}

/* A fast and a slow GPU, each a whole pipeline. */
#define REPLICAS(optimizer)                                                                        \
    PLAN_HEAD optimizer                                                                            \
        "\"global_batch\":4,\"pipelines\":["                                                       \
        "{\"micro_batch\":1,\"micro_batches\":3,\"stages\":[{\"layers\":[0,6],\"workers\":["       \
        "{\"node\":\"a1\",\"gpus\":[0],\"samples\":1}]}]},"                                        \
        "{\"micro_batch\":1,\"micro_batches\":1,\"stages\":[{\"layers\":[0,6],\"workers\":["       \
        "{\"node\":\"b1\",\"gpus\":[0],\"samples\":1}]}]}]}"

static void sums_cross_the_slowest_network(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_simulation s;
    fixture_open(&f, CLUSTER, PROFILE, REPLICAS(""));
    simulate(&f, false, &s);
    /* Both take 45.6 ms; then 16.404 MB of layers and 4 MB tied: 2 x 1/2 x bytes / 1e9 */
    assert_near(s.step.compute_s, 45.6e-3);
    assert_near(s.step.exposed_sync_s, 20.404e-3);
    assert_near(s.step.optimizer_s, 5.101e6 * 2e-10);
    eth_hpp_simulation_free(&s);
    fixture_close(&f);
}

static void a_sharded_optimizer_halves_states_and_updates(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_simulation s;
    fixture_open(&f, CLUSTER, PROFILE, REPLICAS("\"optimizer\":\"sharded\","));
    simulate(&f, false, &s);
    /* Half of the sum before the update, half after. */
    assert_near(s.step.exposed_sync_s, 20.404e-3);
    assert_near(s.step.optimizer_s, 5.101e6 / 2 * 2e-10);
    double resident = 81.616e6, optimizer = 40.808e6;
    assert_near(s.predicted.ranks[0].peak_memory_bytes, resident - optimizer / 2 + 412e6);
    eth_hpp_simulation_free(&s);
    fixture_close(&f);
}

static void a_limited_link_slows_what_crosses_it(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_simulation s;
    fixture_open(&f,
                 with(CLUSTER, "\"nodes\":[",
                      "\"links\":[{\"between\":[\"a1\",\"a2\"],\"bandwidth\":1e8,"
                      "\"latency_s\":1e-3}],\"nodes\":["),
                 PROFILE, TWO_STAGES(""));
    simulate(&f, false, &s);
    /* A hand-over takes 1 + 10 ms each way: F0 2.1, arrives 13.1; F1 arrives 23.1 + 1 ... the
     * first gradient is back at 33.1 (B0 22.1 + 11) and so on. */
    assert_true(s.step.compute_s > 60e-3);
    eth_hpp_simulation_free(&s);
    fixture_close(&f);
}

static void memory_over_the_limit_names_the_worker(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_simulation s;
    fixture_open(&f, with(CLUSTER, "4e10", "5e8"), PROFILE, ONE_GPU);
    simulate(&f, false, &s);
    assert_false(s.feasible);
    assert_non_null(
        strstr(s.why, "needs 0.84 GiB of the 0.47 GiB of GPU 0 of a1 (fast), pipeline 0 stage 0"));
    eth_hpp_simulation_free(&s);
    fixture_close(&f);
}

static void times_that_nobody_measured_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_simulation s;
    struct eth_hpp_error err = {0};
    fixture_open(&f, CLUSTER, PROFILE, ONE_GPU);
    f.plan.pipelines[0].stages[0].workers[0].samples = 9;
    assert_int_equal(eth_hpp_simulate(&f.plan, &f.cluster, &f.profile, false, &s, &err),
                     ETH_HPP_ERR_INPUT);
    assert_non_null(
        strstr(err.text, "9 samples on a fast of a1, whose times are profiled up to 8"));
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_gpu_takes_the_sum_of_its_layers),
        cmocka_unit_test(two_stages_follow_1f1b),
        cmocka_unit_test(millions_of_micro_batches_take_as_long_as_if_all_were_run),
        cmocka_unit_test(an_observer_sees_the_step_that_is_predicted),
        cmocka_unit_test(recompute_runs_the_forward_again_and_keeps_inputs_only),
        cmocka_unit_test(in_flight_counts_in_memory),
        cmocka_unit_test(sums_cross_the_slowest_network),
        cmocka_unit_test(a_sharded_optimizer_halves_states_and_updates),
        cmocka_unit_test(a_limited_link_slows_what_crosses_it),
        cmocka_unit_test(memory_over_the_limit_names_the_worker),
        cmocka_unit_test(times_that_nobody_measured_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
