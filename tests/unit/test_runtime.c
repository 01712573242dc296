#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emulation/ranks.h"
#include "unit/valgrind.h"
#include "plan/plan.h"
#include "runtime/capabilities.h"
#include "runtime/context.h"
#include "tiny_model.h"
#include "tiny_plan.h"

#ifdef __SANITIZE_ADDRESS__
/* The leak checker crashes on the thread-local data that libraries opened at run time leave in the
 * ranks. */
__attribute__((visibility("default"))) const char *__lsan_default_options(void);
const char *__lsan_default_options(void)
{
    return "use_tls=0";
}
#endif

enum { STEPS = 12 };

/* What the ranks leave for the test to look at; in memory that they share. */
struct record {
    double loss[RANKS_MAX][STEPS], norm[RANKS_MAX][STEPS];
    float layers[RANKS_MAX][TINY_LAYERS][TINY_WEIGHTS], table[RANKS_MAX][TINY_TABLE];
    bool holds[RANKS_MAX][TINY_LAYERS];
    bool idle[RANKS_MAX];
};

struct run {
    char plan_path[64];
    int ranks;
    double timeout_s;
    void (*disturb)(const struct eth_hpp_micro_batch *micro_batch, float *kept);
    bool silent_layers; /* the model does not call eth_hpp_layer_done */
    bool sharded;       /* the optimizer */
    struct record *record;
};

/* ---- a rank ---- */

static struct tiny_model *model_of_rank; /* for what disturbs it */

static void keep_weights(const struct tiny_model *model, struct record *record)
{
    const struct eth_hpp_assignment *a = model->part;
    for (int l = a->first_layer; l < a->end_layer; l++) {
        record->holds[a->rank][l] = true;
        if (l > 0 && l < TINY_LAYERS - 1)
            memcpy(record->layers[a->rank][l],
                   eth_hpp_tensor_weights(model->context, (size_t)model->tensor_of[l][0]),
                   sizeof(float) * TINY_WEIGHTS);
    }
    if (model->table >= 0)
        memcpy(record->table[a->rank], eth_hpp_tensor_weights(model->context, (size_t)model->table),
               sizeof(float) * TINY_TABLE);
}

static int train(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    const struct run *run = user;
    const struct eth_hpp_init_options options = {.plan_path = run->plan_path,
                                                 .timeout_s = run->timeout_s};
    struct eth_hpp_context *context = NULL;
    struct eth_hpp_error err = {0};
    struct eth_hpp_metrics metrics;
    struct tiny_model model = {.disturb = run->disturb, .report_layers = !run->silent_layers};
    if (eth_hpp_context_open(bootstrap, &options, &context, &err) != ETH_HPP_OK)
        eth_hpp_fail(NULL, &err);
    const struct eth_hpp_assignment *a = eth_hpp_get_assignment(context);
    model_of_rank = &model;
    if (tiny_model_open(&model, context, &err) != ETH_HPP_OK)
        eth_hpp_fail(context, &err);
    run->record->idle[a->rank] = a->idle;
    for (int step = 0; step < STEPS && !a->idle; step++) {
        if (eth_hpp_step(context, &tiny_optimizer, &metrics, &err) != ETH_HPP_OK)
            eth_hpp_fail(context, &err);
        RANK_CHECK(metrics.step == step);
        run->record->loss[a->rank][step] = metrics.loss;
        run->record->norm[a->rank][step] = metrics.gradient_norm;
    }
    if (!a->idle)
        keep_weights(&model, run->record);
    eth_hpp_finalize(context);
    tiny_model_close(&model);
    return 0;
}

/* ---- plans ---- */

static void write_plan(struct run *run, const char *pipelines)
{
    snprintf(run->plan_path, sizeof(run->plan_path), "test_runtime.%d.json", (int)getpid());
    tiny_plan_write(run->plan_path, "table", ETH_HPP_FP32, run->sharded ? "sharded" : "replicated",
                    pipelines);
}

static void run_plan(struct run *run, const char *pipelines, struct ranks_result *result)
{
    write_plan(run, pipelines);
    run->record =
        mmap(NULL, sizeof(*run->record), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (run->timeout_s == 0)
        run->timeout_s = 20;
    ranks_run(run->ranks, train, run, 60, result);
    unlink(run->plan_path);
}

static void end_run(struct run *run)
{
    munmap(run->record, sizeof(*run->record));
}

#define ONE_RANK PIPELINE(4, 2, STAGE(0, 6, "", WORKER(0, 4)))

/* ---- the loss does not depend on the plan ---- */

static void compare_losses(const struct run *run, const struct record *reference, const char *name)
{
    for (int rank = 0; rank < run->ranks; rank++)
        for (int step = 0; step < STEPS && !run->record->idle[rank]; step++) {
            double loss = run->record->loss[rank][step], right = reference->loss[0][step];
            double norm = run->record->norm[rank][step], right_norm = reference->norm[0][step];
            if (fabs(loss - right) > 1e-5 * right || fabs(norm - right_norm) > 1e-4 * right_norm)
                fail_msg("%s: step %d on rank %d: loss %.9g for %.9g, norm %.9g for %.9g", name,
                         step, rank, loss, right, norm, right_norm);
        }
}

/* All owners of a layer end with the same bits. */
static void compare_replicas(const struct run *run, const char *name)
{
    const struct record *record = run->record;
    for (int layer = 0; layer < TINY_LAYERS; layer++) {
        int first = -1;
        for (int rank = 0; rank < run->ranks; rank++) {
            if (!record->holds[rank][layer])
                continue;
            if (first < 0)
                first = rank;
            if (memcmp(record->layers[first][layer], record->layers[rank][layer],
                       sizeof(record->layers[0][0])) != 0)
                fail_msg("%s: layer %d differs on ranks %d and %d", name, layer, first, rank);
        }
    }
    for (int rank = 1; rank < run->ranks; rank++)
        if (record->holds[rank][0] || record->holds[rank][TINY_LAYERS - 1])
            assert_memory_equal(record->table[0], record->table[rank], sizeof(record->table[0]));
}

static void every_plan_gives_the_same_losses(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int ranks;
        const char *pipelines;
        bool sharded;
    } plans[] = {
        {"two unlike pipelines", 3,
         PIPELINE(2, 3,
                  STAGE(0, 2, "", WORKER(0, 2)) "," STAGE(
                      2, 6, "", WORKER(1, 2))) "," PIPELINE(1, 2, STAGE(0, 6, "", WORKER(2, 1))),
         .sharded = false},
        {"a mixed stage", 3,
         PIPELINE(4, 2,
                  STAGE(0, 3, "", WORKER(0, 3) "," WORKER(1, 1)) "," STAGE(3, 6, "", WORKER(2, 4))),
         .sharded = false},
        {"mixed stages that cut a micro-batch differently, and an idle rank", 5,
         PIPELINE(4, 2,
                  STAGE(0, 3, "", WORKER(0, 3) "," WORKER(1, 1)) "," STAGE(
                      3, 6, "", WORKER(4, 2) "," WORKER(2, 2))),
         .sharded = false},
        {"one deep pipeline", 4,
         PIPELINE(2, 4,
                  STAGE(0, 1, "", WORKER(0, 2)) "," STAGE(1, 3, "", WORKER(1, 2)) "," STAGE(
                      3, 5, "", WORKER(2, 2)) "," STAGE(5, 6, "", WORKER(3, 2))),
         .sharded = false},
        {"all micro-batches in flight", 3,
         PIPELINE(1, 8,
                  STAGE(0, 2, ",\"in_flight\":8", WORKER(0, 1)) "," STAGE(
                      2, 4, ",\"in_flight\":8", WORKER(1, 1)) "," STAGE(4, 6, ",\"in_flight\":8",
                                                                        WORKER(2, 1))),
         .sharded = false},
        {"fewer micro-batches than stages", 4,
         PIPELINE(8, 1,
                  STAGE(0, 1, "", WORKER(0, 8)) "," STAGE(1, 3, "", WORKER(1, 8)) "," STAGE(
                      3, 5, "", WORKER(2, 8)) "," STAGE(5, 6, "", WORKER(3, 8))),
         .sharded = false},
        {"recompute", 3,
         PIPELINE(2, 3,
                  STAGE(0, 2, ",\"recompute\":true", WORKER(0, 2)) "," STAGE(
                      2, 6, ",\"recompute\":true",
                      WORKER(1, 2))) "," PIPELINE(2, 1,
                                                  STAGE(0, 6, ",\"recompute\":true", WORKER(2, 2))),
         .sharded = false},
        {"two unlike pipelines, sharded", 3,
         PIPELINE(2, 3,
                  STAGE(0, 2, "", WORKER(0, 2)) "," STAGE(
                      2, 6, "", WORKER(1, 2))) "," PIPELINE(1, 2, STAGE(0, 6, "", WORKER(2, 1))),
         .sharded = true},
        {"mixed stages beside a whole model, sharded", 5,
         PIPELINE(3, 2,
                  STAGE(0, 3, "", WORKER(0, 2) "," WORKER(1, 1)) "," STAGE(
                      3, 6, "", WORKER(4, 1) "," WORKER(2, 2))) "," PIPELINE(2, 1,
                                                                             STAGE(0, 6, "",
                                                                                   WORKER(3, 2))),
         .sharded = true},
    };
    struct run reference = {.ranks = 1};
    struct ranks_result result;
    run_plan(&reference, ONE_RANK, &result);
    if (result.exit_code[0] != 0)
        fail_msg("%s", result.log);
    assert_true(reference.record->loss[0][STEPS - 1] < 0.9 * reference.record->loss[0][0]);
    assert_true(reference.record->norm[0][0] > tiny_optimizer.clip_norm); /* clipping is at work */
    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
        struct run run = {
            .ranks = plans[i].ranks, .silent_layers = i == 1, .sharded = plans[i].sharded};
        run_plan(&run, plans[i].pipelines, &result);
        for (int rank = 0; rank < run.ranks; rank++)
            if (result.exit_code[rank] != 0)
                fail_msg("%s: rank %d ended with %d: %s", plans[i].name, rank,
                         result.exit_code[rank], result.log);
        compare_losses(&run, reference.record, plans[i].name);
        compare_replicas(&run, plans[i].name);
        end_run(&run);
    }
    end_run(&reference);
}

/* ---- failures ---- */

#define THREE_STAGES                                                                               \
    PIPELINE(2, 4,                                                                                 \
             STAGE(0, 2, "", WORKER(0, 2)) "," STAGE(2, 5, "", WORKER(1, 2)) "," STAGE(            \
                 5, 6, "", WORKER(2, 2)))

static void die_in_the_middle(const struct eth_hpp_micro_batch *micro_batch, float *kept)
{
    (void)kept;
    if (micro_batch->step == 3 && micro_batch->index == 2 && micro_batch->targets != NULL)
        raise(SIGKILL);
}

static void hang_in_the_middle(const struct eth_hpp_micro_batch *micro_batch, float *kept)
{
    (void)kept;
    if (micro_batch->step == 3 && micro_batch->index == 2 && micro_batch->targets != NULL)
        sleep(30);
}

/* The log has one line, with this in it. */
static void expect_one_line(struct run *run, const char *line, const int *exit_codes)
{
    static struct ranks_result result;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    run_plan(run, THREE_STAGES, &result);
    end_run(run);
    for (int rank = 0; rank < run->ranks; rank++)
        if (result.exit_code[rank] != exit_codes[rank])
            fail_msg("rank %d ended with %d: %s", rank, result.exit_code[rank], result.log);
    if (ranks_log_count(&result, line) != 1 || ranks_log_count(&result, "\n") != 1)
        fail_msg("not one line \"%s\" but: %s", line, result.log);
    assert_true(result.seconds < 15);
}

static void a_rank_killed_in_mid_training_ends_all(void **state)
{
    (void)state;
    struct run run = {.ranks = 3, .disturb = die_in_the_middle};
    expect_one_line(&run, "eth-hpp: rank 2 on host1 is lost: its process was killed or crashed",
                    (int[]){1, 1, 137});
}

static void leave_in_the_middle(const struct eth_hpp_micro_batch *micro_batch, float *kept)
{
    (void)kept;
    if (micro_batch->step == 3 && micro_batch->targets != NULL)
        exit(7);
}

static void a_program_that_ends_early_ends_all_with_its_exit_code(void **state)
{
    (void)state;
    struct run run = {.ranks = 3, .disturb = leave_in_the_middle};
    expect_one_line(&run, "eth-hpp: rank 2 on host1: the program ended with exit code 7",
                    (int[]){1, 1, 7});
}

static void a_rank_that_hangs_is_named_with_the_instruction(void **state)
{
    (void)state;
    struct run run = {.ranks = 3, .disturb = hang_in_the_middle, .timeout_s = 1};
    expect_one_line(&run,
                    "eth-hpp: rank 1 on host0: step 3, micro-batch 2 of pipeline 0, recv-gradient: "
                    "waited ",
                    (int[]){1, 1, 1});
}

static void poison(const struct eth_hpp_micro_batch *micro_batch, float *kept)
{
    (void)kept;
    if (micro_batch->step == 2 && micro_batch->targets != NULL)
        micro_batch->loss[0] += NAN;
}

static void a_loss_that_is_not_finite_stops_all_with_one_line(void **state)
{
    (void)state;
    struct run run = {.ranks = 3, .disturb = poison};
    expect_one_line(&run, "step 2: the loss is not finite", (int[]){1, 1, 1});
}

/* A sign, which no sum of squares would show, changes on rank 2: the comparison in step 0 finds it.
 */
static void drift(const struct eth_hpp_micro_batch *micro_batch, float *kept)
{
    (void)kept;
    if (micro_batch->step == 0 && micro_batch->first_sample == 6) {
        float *weights =
            eth_hpp_tensor_weights(model_of_rank->context, (size_t)model_of_rank->tensor_of[3][0]);
        weights[5] = -weights[5];
    }
}

static void replicas_that_drift_apart_are_found(void **state)
{
    (void)state;
    struct run run = {.ranks = 3, .disturb = drift};
    struct ranks_result result;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    run_plan(
        &run,
        PIPELINE(4, 1, STAGE(0, 6, "", WORKER(0, 4))) "," PIPELINE(
            2, 1, STAGE(0, 6, "", WORKER(1, 2))) "," PIPELINE(2, 1, STAGE(0, 6, "", WORKER(2, 2))),
        &result);
    end_run(&run);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(result.exit_code[rank], 1);
    if (ranks_log_count(&result, "step 0: the owners of block 0 (layers 0 to 5) no longer hold the "
                                 "same weights: rank 2 differs from rank 0 and others: ") != 1)
        fail_msg("%s", result.log);
}

static void a_plan_for_more_ranks_is_refused(void **state)
{
    (void)state;
    struct run run = {.ranks = 2};
    expect_one_line(&run, "the plan needs 3 ranks, the job has 2", (int[]){2, 1});
}

/* ---- what is refused on one rank ---- */

static int refuse(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    const struct run *run = user;
    const struct eth_hpp_init_options options = {.plan_path = run->plan_path};
    static const struct eth_hpp_stage_ops ops;
    static const struct eth_hpp_tensor cases[][7] = {
        {{.name = "a", .layer = 6, .count = 1}},
        {{.name = "a", .layer = 0, .tied = "nothing", .count = 1}},
        {{.name = "a", .layer = 0, .count = 1}, {.name = "b", .layer = 1, .count = 1}},
    };
    static const char *const messages[] = {"tensor a is of layer 6, this rank holds layers 0 to 5",
                                           "has no tied block \"nothing\"",
                                           "no tensor of layer 2 is registered"};
    struct eth_hpp_error err = {0};
    (void)bootstrap;
    for (size_t i = 0; i < 3; i++) {
        struct eth_hpp_context *context;
        RANK_CHECK(eth_hpp_init(&options, &context, &err) == ETH_HPP_OK, "%s", err.text);
        RANK_CHECK(eth_hpp_step(context, &tiny_optimizer, NULL, &err) == ETH_HPP_ERR_INPUT);
        RANK_CHECK(eth_hpp_register(context, cases[i], i < 2 ? 1 : 2, 0, 0, &ops, NULL, &err) ==
                   ETH_HPP_ERR_INPUT);
        RANK_CHECK(strstr(err.text, messages[i]) != NULL, "%s", err.text);
        eth_hpp_finalize(context);
    }
    eth_hpp_bootstrap_close(bootstrap);
    return 0;
}

static void wrong_registrations_are_refused(void **state)
{
    (void)state;
    struct run run = {.ranks = 1};
    struct ranks_result result;
    write_plan(&run, ONE_RANK);
    ranks_run(1, refuse, &run, 30, &result);
    unlink(run.plan_path);
    if (result.exit_code[0] != 0)
        fail_msg("%s", result.log);
}

/* ---- what this runtime cannot run, or the device cannot hold ---- */

static void parse_plan(const char *change, const char *to, struct eth_hpp_plan *plan)
{
    char text[2048];
    const char *whole =
        "{\"format\":\"eth-hpp-plan\",\"version\":1,\"model\":{\"name\":\"tiny\",\"layers\":6,"
        "\"sequence_length\":5},\"global_batch\":2,\"schedule\":\"1f1b\",\"dtype\":\"fp32\","
        "\"optimizer\":\"replicated\",\"pipelines\":[{\"micro_batch\":1,\"micro_batches\":2,"
        "\"stages\":[{\"layers\":[0,6],\"tensor_parallel\":1,\"workers\":[{\"node\":\"n\","
        "\"gpus\":[0],\"ranks\":[0],\"samples\":1}]}]}]}";
    struct eth_hpp_error err = {0};
    const char *at = strstr(whole, change);
    assert_non_null(at);
    snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - whole), whole, to, at + strlen(change));
    if (eth_hpp_plan_parse("test", text, strlen(text), plan, &err) != ETH_HPP_OK)
        fail_msg("%s", err.text);
}

static void plans_beyond_the_runtime_are_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        const char *change, *to, *message;
    } cases[] = {
        {"fp32", "bf16", "dtype is bf16"},
        {"\"tensor_parallel\":1,\"workers\":[{\"node\":\"n\",\"gpus\":[0],\"ranks\":[0]",
         "\"tensor_parallel\":2,\"workers\":[{\"node\":\"n\",\"gpus\":[0,1],\"ranks\":[0,1]",
         "pipelines[0].stages[0] has tensor_parallel 2"},
    };
    const struct eth_hpp_capabilities *runtime = eth_hpp_capabilities_get("cpu");
    struct eth_hpp_error err = {0};
    struct eth_hpp_plan plan;
    parse_plan("fp32", "fp32", &plan);
    assert_int_equal(eth_hpp_capabilities_check(runtime, &plan, &err), ETH_HPP_OK);
    eth_hpp_plan_free(&plan);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        parse_plan(cases[i].change, cases[i].to, &plan);
        assert_int_equal(eth_hpp_capabilities_check(runtime, &plan, &err), ETH_HPP_ERR_UNSUPPORTED);
        if (strstr(err.text, cases[i].message) == NULL)
            fail_msg("\"%s\" lacks \"%s\"", err.text, cases[i].message);
        eth_hpp_plan_free(&plan);
    }
}

static void the_arena_keeps_to_the_devices_memory(void **state)
{
    (void)state;
    struct eth_hpp_kernels *kernels;
    struct eth_hpp_error err = {0};
    void *memory = NULL;
    assert_int_equal(eth_hpp_kernels_create("cpu", ETH_HPP_FP32, &kernels, &err), ETH_HPP_OK);
    struct eth_hpp_arena arena = {.kernels = kernels, .limit_bytes = 1000};
    assert_int_equal(eth_hpp_arena_allocate(&arena, 600, "weights", &memory, &err), ETH_HPP_OK);
    for (int i = 0; i < 600; i++)
        assert_int_equal(((char *)memory)[i], 0);
    assert_int_equal(eth_hpp_arena_allocate(&arena, 401, "moments", &memory, &err),
                     ETH_HPP_ERR_MEMORY);
    assert_non_null(strstr(err.text, "moments needs 401 bytes beside the 600 that are held"));
    assert_int_equal(eth_hpp_arena_allocate(&arena, 400, "moments", &memory, &err), ETH_HPP_OK);
    assert_int_equal(arena.bytes, 1000);
    eth_hpp_arena_free(&arena);
    eth_hpp_kernels_destroy(kernels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plan_gives_the_same_losses),
        cmocka_unit_test(a_rank_killed_in_mid_training_ends_all),
        cmocka_unit_test(a_program_that_ends_early_ends_all_with_its_exit_code),
        cmocka_unit_test(a_rank_that_hangs_is_named_with_the_instruction),
        cmocka_unit_test(a_loss_that_is_not_finite_stops_all_with_one_line),
        cmocka_unit_test(replicas_that_drift_apart_are_found),
        cmocka_unit_test(a_plan_for_more_ranks_is_refused),
        cmocka_unit_test(wrong_registrations_are_refused),
        cmocka_unit_test(plans_beyond_the_runtime_are_refused_with_the_reason),
        cmocka_unit_test(the_arena_keeps_to_the_devices_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
