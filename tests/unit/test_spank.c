/* The plugin in slurmstepd, against a double of Slurm's side: what the cluster tests cannot reach.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "config.h"
#include "spank/plugin.h"
#include "tests/emulation/spank_double.h"

static char program[] = "./train", argument[] = "--steps=3";

static int fresh_step(void **state)
{
    (void)state;
    spank_double = (struct spank_double){.context = S_CTX_REMOTE,
                                         .job = 77,
                                         .step = 0,
                                         .rank = 5,
                                         .argv = {program, argument},
                                         .argc = 2};
    spank_setenv(NULL, "SLURMD_NODENAME", "gpu017", 1);
    return 0;
}

static int end_step(void **state)
{
    (void)state;
    return slurm_spank_exit(NULL, 0, NULL);
}

static void open_plugin(int words, char **plugstack)
{
    assert_int_equal(slurm_spank_init(NULL, words, plugstack), ESPANK_SUCCESS);
}

static void the_task_runs_through_the_launcher(void **state)
{
    (void)state;
    char launcher[] = "launcher=/bin/sh", batch[] = "global_batch=64", seq[] = "seq=99";
    open_plugin(3, (char *[]){launcher, batch, seq});
    spank_setenv(NULL, "ETH_HPP_SEQ", "100", 1);
    spank_setenv(NULL, "ETH_HPP_DTYPE", "fp32", 1);
    spank_setenv(NULL, "ETH_HPP_INVENTORY", "/etc/shadow", 1);
    assert_int_equal(spank_double_give("eth-hpp", "gpt2"), 0);
    assert_int_equal(spank_double_give("eth-hpp-dtype", "bf16"), 0);
    assert_int_equal(spank_double_give("eth-hpp-verbose", ""), 0);
    assert_int_equal(slurm_spank_task_init(NULL, 0, NULL), 0);
    assert_string_equal(spank_double_variable("ETH_HPP_MODEL"), "gpt2");
    assert_string_equal(spank_double_variable("ETH_HPP_GLOBAL_BATCH"), "64");
    assert_string_equal(spank_double_variable("ETH_HPP_SEQ"), "100");
    assert_string_equal(spank_double_variable("ETH_HPP_DTYPE"), "bf16");
    assert_string_equal(spank_double_variable("ETH_HPP_VERBOSE"), "yes");
    assert_null(spank_double_variable("ETH_HPP_INVENTORY"));
#ifndef HAVE_SPANK_PREPEND_TASK_ARGV
    assert_string_equal(spank_double_variable("ETH_HPP_STEP_LAUNCHER"), "/bin/sh");
    assert_string_equal(spank_double_variable("ETH_HPP_STEP_COMMAND"), "./train");
    assert_string_equal(spank_double.argv[1], "--steps=3");
#endif
}

static void other_steps_are_untouched(void **state)
{
    (void)state;
    const uint32_t steps[] = {SLURM_BATCH_SCRIPT, SLURM_INTERACTIVE_STEP, SLURM_EXTERN_CONT};
    open_plugin(0, NULL);
    spank_double_give("eth-hpp", "gpt2");
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        spank_double.step = steps[i];
        spank_double.exit_status = 9;
        assert_int_equal(slurm_spank_task_init(NULL, 0, NULL), 0);
        assert_int_equal(slurm_spank_task_exit(NULL, 0, NULL), 0);
    }
    assert_ptr_equal(spank_double.argv[0], program);
    assert_int_equal(spank_double.variable_count, 1);
    assert_string_equal(spank_double.log, "");
}

static void a_step_that_did_not_ask_is_untouched(void **state)
{
    (void)state;
    open_plugin(0, NULL);
    assert_int_equal(slurm_spank_task_init(NULL, 0, NULL), 0);
    assert_ptr_equal(spank_double.argv[0], program);
    assert_int_equal(spank_double.variable_count, 1);
}

/* srun checks too, but slurmstepd cannot know that it was an honest srun. */
static void a_bad_value_that_reaches_the_node_fails_the_task_and_forges_no_line(void **state)
{
    (void)state;
    open_plugin(0, NULL);
    spank_double_give("eth-hpp", "gpt2");
    assert_int_equal(spank_double_give("eth-hpp-global-batch", "-1\nforged"), 0);
    assert_int_equal(slurm_spank_task_init(NULL, 0, NULL), -1);
    assert_string_equal(spank_double.log, ""); /* rank 0 says it for all */
    spank_double.rank = 0;
    assert_int_equal(slurm_spank_task_init(NULL, 0, NULL), -1);
    assert_ptr_equal(strstr(spank_double.log, "eth-hpp: --eth-hpp-global-batch: must be a whole"),
                     spank_double.log);
    assert_ptr_equal(strchr(spank_double.log, '\n'),
                     spank_double.log + strlen(spank_double.log) - 1);
    assert_ptr_equal(spank_double.argv[0], program);
}

static void a_launcher_that_is_not_there_is_named(void **state)
{
    (void)state;
    char launcher[] = "launcher=/no/eth-hpp";
    open_plugin(1, (char *[]){launcher});
    spank_double_give("eth-hpp", "gpt2");
    assert_int_equal(slurm_spank_task_init(NULL, 0, NULL), -1);
    assert_ptr_equal(strstr(spank_double.log, "eth-hpp: cannot run the launcher /no/eth-hpp: No"),
                     spank_double.log);
    assert_ptr_equal(spank_double.argv[0], program);
}

static void an_option_of_100_megabytes_is_refused_in_a_short_line(void **state)
{
    (void)state;
    const size_t size = 100000000;
    char *huge = malloc(size + 1);
    assert_non_null(huge);
    memset(huge, '7', size);
    huge[size] = '\0';
    open_plugin(0, NULL);
    spank_double_give("eth-hpp", "gpt2");
    assert_int_equal(spank_double_give("eth-hpp-global-batch", huge), 0);
    free(huge);
    spank_double.rank = 0;
    assert_int_equal(slurm_spank_task_init(NULL, 0, NULL), -1);
    assert_in_range(strlen(spank_double.log), 20, 1000);
}

static void only_a_signal_that_is_news_is_reported(void **state)
{
    (void)state;
    open_plugin(0, NULL);
    spank_double_give("eth-hpp", "gpt2");
    spank_double.exit_status = 3 << 8;
    slurm_spank_task_exit(NULL, 0, NULL);
    spank_double.exit_status = 15;
    slurm_spank_task_exit(NULL, 0, NULL);
    assert_string_equal(spank_double.log, "");
    spank_double.exit_status = 11 | 0x80;
    slurm_spank_task_exit(NULL, 0, NULL);
    assert_ptr_equal(strstr(spank_double.log, "eth-hpp: rank 5 on "), spank_double.log);
    assert_non_null(strstr(spank_double.log, "signal 11 (Segmentation fault), core dumped\n"));
}

static void a_node_name_cannot_lead_out_of_the_folder(void **state)
{
    (void)state;
    char path[64];
    assert_true(eth_hpp_node_inventory_path(7, "gpu-01.rack_2", path, sizeof(path)));
    assert_string_equal(path, "/run/eth-hpp/7/gpu-01.rack_2.json");
    assert_false(eth_hpp_node_inventory_path(7, "../x", path, sizeof(path)));
    assert_false(eth_hpp_node_inventory_path(7, "a/b", path, sizeof(path)));
    assert_false(eth_hpp_node_inventory_path(7, "", path, sizeof(path)));
    assert_false(eth_hpp_node_inventory_path(7, NULL, path, sizeof(path)));
    assert_false(eth_hpp_node_inventory_path(7, "n1", path, 8));
}

static void a_refused_registration_is_an_error(void **state)
{
    (void)state;
    spank_double.register_result = ESPANK_BAD_ARG;
    assert_int_equal(slurm_spank_init(NULL, 0, NULL), ESPANK_BAD_ARG);
}

static void slurmd_itself_gets_no_options(void **state)
{
    (void)state;
    spank_double.context = S_CTX_SLURMD;
    open_plugin(0, NULL);
    assert_int_equal(spank_double.option_count, 0);
    assert_string_equal(spank_double.daemon_log, "");
}

static void every_wrong_word_of_plugstack_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *word, *said;
    } cases[] = {
        {"color=red", "\"color=red\" is no KEY=VALUE that is known"},
        {"enabled", "\"enabled\" is no KEY=VALUE that is known"},
        {"enabled=maybe", "enabled: must be one of yes|no, is \"maybe\""},
        {"inventory=never", "inventory: must be one of asked|always, is \"never\""},
        {"site_file=site.json", "site_file: must be an absolute path"},
        {"launcher=", "launcher: must have 1..4095 bytes, has 0"},
        {"timeout=61", "timeout: must be a whole number 1..60, is \"61\""},
        {"global_batch=none", "global_batch: must be a whole number 1..16777216, is \"none\""},
    };
    spank_double.context = S_CTX_SLURMD;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char word[64], expected[256];
        snprintf(word, sizeof(word), "%s", cases[i].word);
        snprintf(expected, sizeof(expected),
                 "eth-hpp: plugstack.conf: %s; jobs that ask for eth-hpp are refused\n",
                 cases[i].said);
        spank_double.daemon_log[0] = '\0';
        open_plugin(1, &(char *){word});
        assert_string_equal(spank_double.daemon_log, expected);
    }
}

static void a_wrong_word_stays_out_of_the_way_of_who_did_not_ask(void **state)
{
    (void)state;
    char word[] = "color=red";
    open_plugin(1, &(char *){word});
    assert_int_equal(slurm_spank_task_init(NULL, 0, NULL), 0);
    slurm_spank_exit(NULL, 0, NULL);
    assert_int_equal(slurm_spank_job_prolog(NULL, 1, &(char *){word}), ESPANK_SUCCESS);
    assert_string_equal(spank_double.log, "");
    assert_string_equal(spank_double.daemon_log, "");
}

static void switched_off_it_says_so_to_slurmd_and_to_who_asks(void **state)
{
    (void)state;
    char word[] = "enabled=no";
    static const char line[] = "eth-hpp: switched off by enabled=no in plugstack.conf\n";
    spank_double.context = S_CTX_SLURMD;
    open_plugin(1, &(char *){word});
    assert_string_equal(spank_double.daemon_log, line);
    spank_double.context = S_CTX_REMOTE;
    open_plugin(1, &(char *){word});
    assert_int_equal(slurm_spank_task_init(NULL, 0, NULL), 0);
    assert_string_equal(spank_double.log, "");
    spank_double_give("eth-hpp", "gpt2");
    assert_int_equal(slurm_spank_task_init(NULL, 0, NULL), -1);
    assert_string_equal(spank_double.log, line);
    assert_ptr_equal(spank_double.argv[0], program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_task_runs_through_the_launcher, fresh_step, end_step),
        cmocka_unit_test_setup_teardown(other_steps_are_untouched, fresh_step, end_step),
        cmocka_unit_test_setup_teardown(a_step_that_did_not_ask_is_untouched, fresh_step, end_step),
        cmocka_unit_test_setup_teardown(
            a_bad_value_that_reaches_the_node_fails_the_task_and_forges_no_line, fresh_step,
            end_step),
        cmocka_unit_test_setup_teardown(a_launcher_that_is_not_there_is_named, fresh_step,
                                        end_step),
        cmocka_unit_test_setup_teardown(an_option_of_100_megabytes_is_refused_in_a_short_line,
                                        fresh_step, end_step),
        cmocka_unit_test_setup_teardown(only_a_signal_that_is_news_is_reported, fresh_step,
                                        end_step),
        cmocka_unit_test_setup_teardown(a_node_name_cannot_lead_out_of_the_folder, fresh_step,
                                        end_step),
        cmocka_unit_test_setup_teardown(a_refused_registration_is_an_error, fresh_step, end_step),
        cmocka_unit_test_setup_teardown(slurmd_itself_gets_no_options, fresh_step, end_step),
        cmocka_unit_test_setup_teardown(every_wrong_word_of_plugstack_is_named, fresh_step,
                                        end_step),
        cmocka_unit_test_setup_teardown(a_wrong_word_stays_out_of_the_way_of_who_did_not_ask,
                                        fresh_step, end_step),
        cmocka_unit_test_setup_teardown(switched_off_it_says_so_to_slurmd_and_to_who_asks,
                                        fresh_step, end_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
