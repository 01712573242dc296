/* Checkpoints of several ranks: any plan goes on from any other's, and what goes wrong is told. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emulation/ranks.h"
#include "runtime/context.h"
#include "tiny_plan.h"
#include "folder.h"
#include "unit/valgrind.h"

enum { STEPS = 15 };

/* In memory that the ranks share. */
static struct record {
    double loss[RANKS_MAX][STEPS];
    bool stopped[RANKS_MAX][STEPS];
    int64_t resumed[RANKS_MAX], next_sample[RANKS_MAX];
} * record;

struct run {
    int ranks, first, end; /* steps that are expected to run */
    int every;             /* a checkpoint each so many steps; 0: none */
    enum eth_hpp_resume resume;
    int stop_rank, stop_step;
    bool sharded;
    void (*between)(void); /* on rank 0, before the last step */
};

static char plan_path[64];

static void run_steps(const struct run *run, struct eth_hpp_context *context)
{
    const struct eth_hpp_assignment *a = eth_hpp_get_assignment(context);
    struct eth_hpp_error err = {0};
    for (int step = run->first; step < run->end; step++) {
        struct eth_hpp_metrics metrics;
        if (run->between != NULL && a->rank == 0 && step == run->end - 1)
            run->between();
        if (run->stop_rank == a->rank && run->stop_step == step)
            eth_hpp_request_stop(context);
        if (eth_hpp_step(context, &tiny_optimizer, &metrics, &err) != ETH_HPP_OK)
            eth_hpp_fail(context, &err);
        RANK_CHECK(metrics.step == step);
        record->loss[a->rank][step] = metrics.loss;
        record->stopped[a->rank][step] = metrics.stop;
        if (run->every > 0 && (step + 1) % run->every == 0 &&
            eth_hpp_checkpoint_save(context, &err) != ETH_HPP_OK)
            eth_hpp_fail(context, &err);
    }
    if (eth_hpp_checkpoint_finish(context, &err) != ETH_HPP_OK)
        eth_hpp_fail(context, &err);
}

static int train(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    const struct run *run = user;
    const struct eth_hpp_init_options options = {.plan_path = plan_path, .timeout_s = 20};
    const struct eth_hpp_checkpoint_options checkpoints = {.folder = folder,
                                                           .keep = 2,
                                                           .resume = run->resume,
                                                           .model_config = "{}",
                                                           .seed = 5,
                                                           .data_tokens = 99};
    struct eth_hpp_context *context = NULL;
    struct eth_hpp_checkpoint resumed;
    struct eth_hpp_error err = {0};
    struct tiny_model model = {.report_layers = true};
    if (eth_hpp_context_open(bootstrap, &options, &context, &err) != ETH_HPP_OK)
        eth_hpp_fail(NULL, &err);
    const struct eth_hpp_assignment *a = eth_hpp_get_assignment(context);
    if (tiny_model_open(&model, context, &err) != ETH_HPP_OK)
        eth_hpp_fail(context, &err);
    if (!a->idle) {
        if (eth_hpp_checkpoint_open(context, &checkpoints, &resumed, &err) != ETH_HPP_OK)
            eth_hpp_fail(context, &err);
        record->resumed[a->rank] = resumed.step;
        record->next_sample[a->rank] = resumed.next_sample;
        run_steps(run, context);
    }
    eth_hpp_finalize(context);
    tiny_model_close(&model);
    return 0;
}

static struct ranks_result run_plan(struct run run, const char *pipelines)
{
    struct ranks_result result;
    tiny_plan_write(plan_path, "table", ETH_HPP_FP32, run.sharded ? "sharded" : "replicated",
                    pipelines);
    for (int rank = 0; rank < RANKS_MAX; rank++)
        record->resumed[rank] = -2;
    ranks_run(run.ranks, train, &run, 60, &result);
    unlink(plan_path);
    return result;
}

static void expect_success(struct run run, const char *pipelines)
{
    struct ranks_result result = run_plan(run, pipelines);
    for (int rank = 0; rank < run.ranks; rank++)
        if (result.exit_code[rank] != 0)
            fail_msg("rank %d ended with %d: %s", rank, result.exit_code[rank], result.log);
}

#define ONE_RANK PIPELINE(4, 2, STAGE(0, 6, "", WORKER(0, 4)))
#define UNLIKE                                                                                     \
    PIPELINE(2, 3, STAGE(0, 2, "", WORKER(0, 2)) "," STAGE(2, 6, "", WORKER(1, 2)))                \
    "," PIPELINE(1, 2, STAGE(0, 6, "", WORKER(2, 1)))
#define TWINS                                                                                      \
    PIPELINE(4, 1, STAGE(0, 6, "", WORKER(0, 4))) "," PIPELINE(4, 1, STAGE(0, 6, "", WORKER(1, 4)))
#define CHAIN                                                                                      \
    PIPELINE(2, 4,                                                                                 \
             STAGE(0, 3, "", WORKER(1, 2)) "," STAGE(                                              \
                 3, 5, "", WORKER(0, 1) "," WORKER(2, 1)) "," STAGE(5, 6, "", WORKER(3, 2)))

static double reference[STEPS];

static void expect_losses(int ranks, int first, int end)
{
    for (int rank = 0; rank < ranks; rank++)
        for (int step = first; step < end && record->resumed[rank] != -2; step++)
            if (fabs(record->loss[rank][step] - reference[step]) > 1e-5 * reference[step])
                fail_msg("step %d on rank %d: loss %.9g for %.9g", step, rank,
                         record->loss[rank][step], reference[step]);
}

static void in_folder(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void in_folder(const char *format, ...)
{
    char command[256];
    va_list args;
    int used = snprintf(command, sizeof(command), "cd %s && ", folder);
    va_start(args, format);
    vsnprintf(command + used, sizeof(command) - (size_t)used, format, args);
    va_end(args);
    assert_int_equal(system(command), 0);
}

/* ---- the tests ---- */

static void any_plan_goes_on_from_any_others_checkpoint(void **state)
{
    (void)state;
    static const struct {
        const char *pipelines;
        int ranks;
        bool sharded;
    } plans[] = {{UNLIKE, 3, false},
                 {CHAIN, 5, false},
                 {TWINS, 2, true},
                 {UNLIKE, 3, true},
                 {ONE_RANK, 1, false}};
    enum { PLANS = sizeof(plans) / sizeof(plans[0]) };
    for (int p = 0; p < PLANS; p++) {
        const int first = 3 * p;
        expect_success((struct run){.ranks = plans[p].ranks,
                                    .first = first,
                                    .end = first + 3,
                                    .every = 3,
                                    .resume = ETH_HPP_RESUME_AUTO,
                                    .stop_rank = -1,
                                    .sharded = plans[p].sharded},
                       plans[p].pipelines);
        assert_int_equal(record->resumed[0], p == 0 ? -1 : first);
        if (p > 0)
            assert_int_equal(record->next_sample[0], first * TINY_GLOBAL_BATCH);
        expect_losses(plans[p].ranks, first, first + 3);
    }
    in_folder("test \"$(ls | tr '\\n' ' ')\" = 'step-000000012 step-000000015 '");
}

static void a_wish_to_stop_reaches_all_ranks_in_the_same_step(void **state)
{
    (void)state;
    expect_success((struct run){.ranks = 3, .end = 4, .stop_rank = 1, .stop_step = 2}, UNLIKE);
    for (int rank = 0; rank < 3; rank++)
        for (int step = 0; step < 4; step++)
            assert_int_equal(record->stopped[rank][step], step >= 2);
}

static void a_damaged_checkpoint_gives_way_to_the_one_before(void **state)
{
    (void)state;
    struct run resume = {
        .ranks = 3, .first = 3, .end = 6, .resume = ETH_HPP_RESUME_YES, .stop_rank = -1};
    struct ranks_result result;
    expect_success((struct run){.ranks = 3, .end = 6, .every = 3, .stop_rank = -1}, UNLIKE);
    /* the last byte, of a part that not all ranks read */
    in_folder("f=$(ls step-000000006/optimizer-00003*) && "
              "printf X | dd of=$f bs=1 conv=notrunc status=none seek=$(($(stat -c %%s $f) - 1))");
    result = run_plan(resume, UNLIKE);
    for (int rank = 0; rank < 3; rank++)
        if (result.exit_code[rank] != 0 || record->resumed[rank] != 3)
            fail_msg("rank %d ended with %d: %s", rank, result.exit_code[rank], result.log);
    assert_int_equal(ranks_log_count(&result, "is damaged between offset"), 1);
    assert_int_equal(ranks_log_count(&result, "trying the checkpoint before it"), 1);
    expect_losses(3, 3, 6);
    in_folder("test -d step-000000006.damaged && test ! -e step-000000006");
    /* and when there is no other, that is said */
    in_folder("rm step-000000003/checkpoint.json");
    result = run_plan(resume, UNLIKE);
    assert_int_equal(result.exit_code[0], 2);
    assert_int_equal(ranks_log_count(&result, "no checkpoint can be used"), 1);
    assert_int_equal(ranks_log_count(&result, "\n"), 1);
}

static void put_a_file_in_the_way(void)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/step-000000006.partial", folder);
    FILE *file = fopen(path, "w");
    if (file != NULL)
        fclose(file);
}

static void a_checkpoint_that_cannot_be_written_ends_all_with_one_line(void **state)
{
    (void)state;
    struct ranks_result result;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    result = run_plan(
        (struct run){
            .ranks = 3, .end = 6, .every = 3, .stop_rank = -1, .between = put_a_file_in_the_way},
        UNLIKE);
    for (int rank = 0; rank < 3; rank++)
        if (result.exit_code[rank] == 0)
            fail_msg("rank %d ended well: %s", rank, result.log);
    assert_int_equal(ranks_log_count(&result, "the checkpoint of step 6: "), 1);
    assert_int_equal(ranks_log_count(&result, "is there and not a folder"), 1);
    in_folder("test -e step-000000003/checkpoint.json");
}

static void a_new_training_does_not_mix_with_another_ones_checkpoints(void **state)
{
    (void)state;
    const struct run fresh = {.ranks = 1, .end = 1, .every = 1, .stop_rank = -1};
    const struct run resume = {.ranks = 1, .resume = ETH_HPP_RESUME_YES, .stop_rank = -1};
    struct ranks_result result = run_plan(resume, ONE_RANK);
    assert_int_equal(result.exit_code[0], 2);
    assert_int_equal(ranks_log_count(&result, "there is no checkpoint to resume from"), 1);
    expect_success(fresh, ONE_RANK);
    result = run_plan(fresh, ONE_RANK);
    assert_int_equal(result.exit_code[0], 2);
    assert_int_equal(ranks_log_count(&result, "holds checkpoints up to step 1"), 1);
}

static int open_record(void **state)
{
    (void)state;
    struct run whole = {.ranks = 1, .end = STEPS, .stop_rank = -1};
    snprintf(plan_path, sizeof(plan_path), "test_checkpoint.%d.json", (int)getpid());
    record = mmap(NULL, sizeof(*record), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (record == MAP_FAILED || make_folder(NULL) != 0)
        return -1;
    struct ranks_result result = run_plan(whole, ONE_RANK);
    memcpy(reference, record->loss[0], sizeof(reference));
    return result.exit_code[0] + remove_folder(NULL);
}

static int close_record(void **state)
{
    (void)state;
    return munmap(record, sizeof(*record));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(any_plan_goes_on_from_any_others_checkpoint, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_wish_to_stop_reaches_all_ranks_in_the_same_step,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_damaged_checkpoint_gives_way_to_the_one_before,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_checkpoint_that_cannot_be_written_ends_all_with_one_line,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_new_training_does_not_mix_with_another_ones_checkpoints,
                                        make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, open_record, close_record);
}
