#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "launcher/train.h"

/* ---- learning rate ---- */

static void the_rate_rises_over_the_warm_up_and_falls_on_half_a_cosine(void **state)
{
    (void)state;
    struct eth_hpp_schedule schedule = {.peak = 1, .least = 0.1, .warmup = 4, .steps = 104};
    assert_true(fabs(eth_hpp_schedule_rate(&schedule, 0) - 0.25) < 1e-12);
    assert_true(fabs(eth_hpp_schedule_rate(&schedule, 3) - 1) < 1e-12);
    assert_true(fabs(eth_hpp_schedule_rate(&schedule, 4) - 1) < 1e-12);
    assert_true(fabs(eth_hpp_schedule_rate(&schedule, 54) - 0.55) < 1e-12);
    assert_true(fabs(eth_hpp_schedule_rate(&schedule, 104) - 0.1) < 1e-12);
    for (int64_t step = 5; step < 104; step++)
        assert_true(eth_hpp_schedule_rate(&schedule, step) <
                    eth_hpp_schedule_rate(&schedule, step - 1));
}

static void a_warm_up_as_long_as_the_training_only_rises(void **state)
{
    (void)state;
    struct eth_hpp_schedule schedule = {.peak = 1, .warmup = 10, .steps = 10};
    assert_true(fabs(eth_hpp_schedule_rate(&schedule, 9) - 1) < 1e-12);
    schedule.warmup = 20;
    assert_true(fabs(eth_hpp_schedule_rate(&schedule, 9) - 0.5) < 1e-12);
}

/* ---- what is shown and kept ---- */

static enum eth_hpp_status open_progress(const struct eth_hpp_plan *plan, int64_t first,
                                         const char *metrics, struct eth_hpp_progress **progress,
                                         struct eth_hpp_error *err)
{
    const struct eth_hpp_progress_options options = {
        .first = first, .steps = first + 4, .every = 2, .metrics_path = metrics};
    return eth_hpp_progress_open(plan, &options, progress, err);
}

/* Runs four steps from `first` on with standard output and metrics in files of `folder`. */
static void show_steps(const char *folder, const struct eth_hpp_plan *plan, int first)
{
    struct eth_hpp_progress *progress;
    struct eth_hpp_error err;
    char path[64];
    snprintf(path, sizeof(path), "%s/out", folder);
    fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    assert_non_null(freopen(path, "w", stdout));
    snprintf(path, sizeof(path), "%s/metrics", folder);
    assert_int_equal(open_progress(plan, first, path, &progress, &err), ETH_HPP_OK);
    for (int step = 0; step < 4; step++) {
        struct eth_hpp_metrics metrics = {.step = first + step,
                                          .loss = 4 - step,
                                          .targets = 64,
                                          .step_s = step == 0 ? 9 : 0.5,
                                          .busy_s = 0.4,
                                          .mean_busy_s = 0.3,
                                          .sync_exposed_s = 0.05};
        assert_int_equal(eth_hpp_progress_step(progress, &metrics, 0.001, &err), ETH_HPP_OK);
    }
    eth_hpp_progress_finish(progress);
    eth_hpp_progress_close(progress);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    clearerr(stdout);
}

static char *read_file(const char *folder, const char *name)
{
    char path[64], *text;
    size_t size;
    struct eth_hpp_error err;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(eth_hpp_file_read(path, 100000, &text, &size, &err), ETH_HPP_OK);
    unlink(path);
    return text;
}

static void lines_in_a_file_say_loss_speed_and_what_was_predicted(void **state)
{
    (void)state;
    char folder[] = "test_progress.XXXXXX";
    struct eth_hpp_plan plan = {.global_batch = 8, .predicted.step_s = 0.4, .emulated = true};
    assert_non_null(mkdtemp(folder));
    show_steps(folder, &plan, 0);
    char *out = read_file(folder, "out"), *metrics = read_file(folder, "metrics");
    assert_non_null(strstr(out, "step 2/4  loss 3.0000  16.0 samples/s  step 0.500 s (predicted "
                                "0.400, emulated)  bubble 40 %  sync 10 %\n"));
    assert_non_null(strstr(out, "step 1/4"));
    assert_null(strstr(out, "step 3/4")); /* every second step, the first and the last */
    assert_null(strchr(out, '\r'));
    /* The first step warms up and does not count. */
    assert_non_null(strstr(out, "eth-hpp: 4 steps, loss 4.0000 -> 1.0000, 16.0 samples/s, median "
                                "step 0.5000 s, predicted 0.4000 s, measured/predicted 1.250 "
                                "(emulated devices)\n"));
    int lines = 0;
    for (char *line = strtok(metrics, "\n"); line != NULL; line = strtok(NULL, "\n"), lines++) {
        struct eth_hpp_json root;
        struct eth_hpp_error err;
        struct eth_hpp_json_document *document =
            eth_hpp_json_parse("line", line, strlen(line), &root, &err);
        assert_non_null(document);
        assert_int_equal(eth_hpp_json_integer(&root, "step", 0, 9), lines);
        assert_true(eth_hpp_json_number(&root, "loss", 0, 9) == 4 - lines);
        assert_true(eth_hpp_json_boolean_or(&root, "emulated", false));
        assert_int_equal(eth_hpp_json_finish(document, &err), ETH_HPP_OK);
    }
    assert_int_equal(lines, 4);
    free(out);
    free(metrics);
    assert_int_equal(rmdir(folder), 0);
}

static void a_run_that_goes_on_keeps_the_metrics_of_the_steps_before_it(void **state)
{
    (void)state;
    char folder[] = "test_progress.XXXXXX";
    struct eth_hpp_plan plan = {.global_batch = 8};
    assert_non_null(mkdtemp(folder));
    show_steps(folder, &plan, 0);
    free(read_file(folder, "out"));
    show_steps(folder, &plan, 2); /* steps 2 and 3 are done again */
    char *out = read_file(folder, "out"), *metrics = read_file(folder, "metrics");
    assert_non_null(strstr(out, "step 3/6 "));
    assert_non_null(strstr(out, "step 6/6 "));
    int lines = 0;
    for (char *line = strtok(metrics, "\n"); line != NULL; line = strtok(NULL, "\n"), lines++) {
        char start[32];
        snprintf(start, sizeof(start), "{\"step\":%d,", lines);
        assert_memory_equal(line, start, strlen(start));
    }
    assert_int_equal(lines, 6);
    free(out);
    free(metrics);
    assert_int_equal(rmdir(folder), 0);
}

static void a_metrics_file_that_cannot_be_made_is_refused(void **state)
{
    (void)state;
    struct eth_hpp_progress *progress;
    struct eth_hpp_plan plan = {0};
    struct eth_hpp_error err;
    assert_int_equal(open_progress(&plan, 0, "/no/such/folder/m", &progress, &err),
                     ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "/no/such/folder/m: cannot create"));
    assert_int_equal(open_progress(&plan, 0, "-", &progress, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "name a file"));
    char folder[] = "test_progress.XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/fifo", folder); /* one that nobody reads */
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(open_progress(&plan, 0, path, &progress, &err), ETH_HPP_ERR_INPUT);
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rate_rises_over_the_warm_up_and_falls_on_half_a_cosine),
        cmocka_unit_test(a_warm_up_as_long_as_the_training_only_rises),
        cmocka_unit_test(lines_in_a_file_say_loss_speed_and_what_was_predicted),
        cmocka_unit_test(a_run_that_goes_on_keeps_the_metrics_of_the_steps_before_it),
        cmocka_unit_test(a_metrics_file_that_cannot_be_made_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
