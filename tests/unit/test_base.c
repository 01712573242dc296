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
#include "base/library.h"
#include "base/log.h"
#include "base/option.h"

/* ---- json ---- */

static enum eth_hpp_status read_count(const char *text, int64_t *count, struct eth_hpp_error *err)
{
    struct eth_hpp_json root;
    struct eth_hpp_json_document *document =
        eth_hpp_json_parse("f.json", text, strlen(text), &root, err);
    if (document == NULL)
        return err->status;
    eth_hpp_json_format(&root, "eth-hpp-test", 1);
    eth_hpp_json_keys(&root, "format", "version", "nodes", NULL);
    struct eth_hpp_json nodes = eth_hpp_json_array(&root, "nodes", 1, 8);
    for (size_t i = 0; i < eth_hpp_json_length(&nodes); i++) {
        struct eth_hpp_json node = eth_hpp_json_item(&nodes, i);
        eth_hpp_json_keys(&node, "count", NULL);
        *count = eth_hpp_json_integer(&node, "count", 1, 1024);
    }
    return eth_hpp_json_finish(document, err);
}

#define HEAD "{\"format\":\"eth-hpp-test\",\"version\":1,"

static void json_reads_what_is_right(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    int64_t count = 0;
    assert_int_equal(
        read_count(HEAD "\"nodes\":[{\"count\":8}],\"extra\":{\"a\":1}}", &count, &err),
        ETH_HPP_OK);
    assert_int_equal(count, 8);
    assert_int_equal(read_count(HEAD "\"nodes\":[{\"count\":1e3}]}", &count, &err), ETH_HPP_OK);
    assert_int_equal(count, 1000);
}

static void json_errors_name_the_file_and_the_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {HEAD "\"nodes\":[{\"count\":1},{\"count\":0}]}",
         "f.json: nodes[1].count: must be 1..1024, is 0"},
        {HEAD "\"nodes\":[{\"count\":2.5}]}",
         "f.json: nodes[0].count: must be a whole number, is 2.5"},
        {HEAD "\"nodes\":[{\"cuont\":1}]}", "f.json: nodes[0]: unknown key \"cuont\""},
        {HEAD "\"nodes\":[]}", "f.json: nodes: must have 1..8 entries, has 0"},
        {HEAD "\"nodes\":7}", "f.json: nodes: must be a list, is int"},
        {HEAD "\"nodes\":[{}]}", "nodes[0].count: must be a whole number, is missing"},
        {HEAD "\"nodes\":[{\"count\":1,\"count\":2}]}", "key \"count\" stands twice"},
        {HEAD "\"nodes\":[{\"count\":NaN}]}", "must be a whole number, is NaN"},
        {HEAD "\"nodes\":[{\"count\":1}]} x", "line 1: not valid JSON: unexpected character"},
        {HEAD "\"nodes\":[", "truncated"},
        {"", "the file is empty"},
        {"{\"format\":\"eth-hpp-plan\",\"version\":1}",
         "format: must be \"eth-hpp-test\", is \"eth-hpp-plan\""},
        {"{\"format\":\"eth-hpp-test\",\"version\":9}", "reads eth-hpp-test up to version 1"},
        {"[1]", "must be an object"},
        {HEAD "\"nodes\":[{\"count\":1,\"c\\u006funt\":2}]}", "stands twice"},
        {HEAD "\"\xff\":1}", "invalid utf-8"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_error err = {0};
        int64_t count;
        assert_int_equal(read_count(cases[i].text, &count, &err), ETH_HPP_ERR_INPUT);
        if (strstr(err.text, cases[i].message) == NULL)
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.text, cases[i].message);
    }
}

static void json_refuses_deep_nesting(void **state)
{
    (void)state;
    char deep[20000];
    memset(deep, '[', sizeof(deep));
    struct eth_hpp_json root;
    struct eth_hpp_error err;
    assert_null(eth_hpp_json_parse("deep", deep, sizeof(deep), &root, &err));
    assert_int_equal(err.status, ETH_HPP_ERR_INPUT);
}

static void json_refuses_what_hides_behind_a_nul_byte(void **state)
{
    (void)state;
    static const char text[] = "{}\0{\"count\":1}";
    struct eth_hpp_json root;
    struct eth_hpp_error err;
    assert_null(eth_hpp_json_parse("f.json", text, sizeof(text) - 1, &root, &err));
    assert_non_null(strstr(err.text, "NUL byte"));
}

/* A megabyte of empty objects would take 300 megabytes of memory. */
static void json_refuses_heaps_of_nothing(void **state)
{
    (void)state;
    enum { BYTES = 30000 };
    char *text = malloc(BYTES + 1);
    struct eth_hpp_json root;
    struct eth_hpp_error err;
    assert_non_null(text);
    for (int i = 0; i < BYTES; i++)
        text[i] = "{},"[i % 3];
    memcpy(text, "{\"extra\":[", 10);
    memcpy(text + BYTES - 4, "1]} ", 5);
    text[10] = text[11] = ' ';
    assert_null(eth_hpp_json_parse("f.json", text, BYTES, &root, &err));
    assert_non_null(strstr(err.text, "little but brackets"));
    free(text);
}

static void json_numbers_read_back_as_they_were(void **state)
{
    (void)state;
    static const double values[] = {0.1, 1.0 / 3, 25e9, 42949672960.0, 5e-6, 0};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        struct json_object *number = eth_hpp_json_new_number(values[i]);
        assert_true(strtod(json_object_to_json_string(number), NULL) == values[i]);
        json_object_put(number);
    }
}

/* ---- files ---- */

static void files_are_replaced_whole_and_leave_no_temporary(void **state)
{
    (void)state;
    char folder[] = "test_base.XXXXXX", path[64], *text;
    size_t size;
    struct eth_hpp_error err;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/f", folder);
    assert_int_equal(eth_hpp_file_write(path, "one", 3, 0600, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_file_write(path, "four", 4, 0600, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_file_read(path, 100, &text, &size, &err), ETH_HPP_OK);
    assert_string_equal(text, "four");
    free(text);
    assert_int_equal(eth_hpp_file_read(path, 3, &text, &size, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "at most 3 are read"));
    assert_int_equal(eth_hpp_file_read(folder, 100, &text, &size, &err), ETH_HPP_ERR_INPUT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* fails if a temporary file was left */
    assert_int_equal(eth_hpp_file_write(path, "x", 1, 0600, &err), ETH_HPP_ERR_INPUT);
}

static void devices_and_fifos_are_neither_read_nor_replaced(void **state)
{
    (void)state;
    char folder[] = "test_base.XXXXXX", path[64], *text;
    size_t size;
    struct stat info;
    struct eth_hpp_error err;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(eth_hpp_file_read(path, 100, &text, &size, &err), ETH_HPP_ERR_INPUT);
    assert_int_equal(eth_hpp_file_write(path, "x", 1, 0600, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "not a regular file"));
    assert_int_equal(stat(path, &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
    assert_int_equal(eth_hpp_file_write(folder, "x", 1, 0600, &err), ETH_HPP_ERR_INPUT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void a_link_stays_and_its_file_is_replaced(void **state)
{
    (void)state;
    char folder[] = "test_base.XXXXXX", path[64], link[64], *text;
    size_t size;
    struct stat info;
    struct eth_hpp_error err;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/f", folder);
    snprintf(link, sizeof(link), "%s/link", folder);
    assert_int_equal(eth_hpp_file_write(path, "old", 3, 0600, &err), ETH_HPP_OK);
    assert_int_equal(symlink("f", link), 0);
    assert_int_equal(eth_hpp_file_write(link, "new", 3, 0600, &err), ETH_HPP_OK);
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(eth_hpp_file_read(path, 100, &text, &size, &err), ETH_HPP_OK);
    assert_string_equal(text, "new");
    free(text);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- options ---- */

static enum eth_hpp_status parse(struct eth_hpp_option_set *set, int argc, char **argv, int *rest,
                                 struct eth_hpp_error *err)
{
    bool help;
    assert_int_equal(eth_hpp_option_set_init(set, eth_hpp_job_options, ETH_HPP_JOB_OPTIONS, err),
                     ETH_HPP_OK);
    return eth_hpp_option_parse(set, argc, argv, rest, &help, err);
}

static void options_take_both_spellings_and_stop_at_the_command(void **state)
{
    (void)state;
    char *argv[] = {"--model=gpt2", "--global-batch", "64", "--dry-run", "--", "./train", "--seq"};
    struct eth_hpp_option_set set;
    struct eth_hpp_error err;
    int rest = 0;
    assert_int_equal(parse(&set, 7, argv, &rest, &err), ETH_HPP_OK);
    assert_int_equal(rest, 5);
    assert_string_equal(eth_hpp_option_text(&set, ETH_HPP_JOB_MODEL), "gpt2");
    assert_int_equal((int)eth_hpp_option_number(&set, ETH_HPP_JOB_GLOBAL_BATCH), 64);
    assert_true(eth_hpp_option_flag(&set, ETH_HPP_JOB_DRY_RUN));
    assert_string_equal(eth_hpp_option_text(&set, ETH_HPP_JOB_DTYPE), "auto");
    assert_null(eth_hpp_option_text(&set, ETH_HPP_JOB_SEQ));
    eth_hpp_option_set_free(&set);
}

static void bad_options_are_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        char *word;
        const char *message;
    } cases[] = {
        {"--global-batch=0", "--global-batch: must be a whole number 1..16777216, is \"0\""},
        {"--global-batch=1e3", "must be a whole number"},
        {"--global-batch=-4", "must be a whole number"},
        {"--global-batch=", "must be a whole number"},
        {"--dtype=bf8", "must be one of auto|bf16|fp16|fp32, is \"bf8\""},
        {"--golbal-batch=3", "did you mean --global-batch?"},
        {"--frobnicate", "--help lists them"},
        {"--seq", "--seq: needs a value: N"},
        {"--model=", "must have 1..4095 bytes"},
        {"--model=a\nb", "control characters"},
        {"--model=a\xc2\x9bm", "control characters"}, /* a terminal's command, as one character */
        {"--dry-run=maybe", "must be one of no|yes|0|1"},
        {"-x", "unknown option -x"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_option_set set;
        struct eth_hpp_error err = {0};
        int rest;
        char *argv[] = {cases[i].word};
        assert_int_equal(parse(&set, 1, argv, &rest, &err), ETH_HPP_ERR_INPUT);
        if (strstr(err.text, cases[i].message) == NULL)
            fail_msg("%s: \"%s\" lacks \"%s\"", cases[i].word, err.text, cases[i].message);
        eth_hpp_option_set_free(&set);
    }
}

static void an_option_wins_over_the_environment_whatever_the_order(void **state)
{
    (void)state;
    struct eth_hpp_option_set set;
    struct eth_hpp_error err;
    int rest;
    char *argv[] = {"--seq=5"};
    setenv("ETH_HPP_SEQ", "7", 1);
    setenv("ETH_HPP_GLOBAL_BATCH", "9", 1);
    assert_int_equal(parse(&set, 1, argv, &rest, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_option_from_environment(&set, &err), ETH_HPP_OK);
    assert_int_equal((int)eth_hpp_option_number(&set, ETH_HPP_JOB_SEQ), 5);
    assert_int_equal((int)eth_hpp_option_number(&set, ETH_HPP_JOB_GLOBAL_BATCH), 9);
    setenv("ETH_HPP_SEQ", "many", 1);
    assert_int_equal(eth_hpp_option_from_environment(&set, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "ETH_HPP_SEQ"));
    unsetenv("ETH_HPP_SEQ");
    unsetenv("ETH_HPP_GLOBAL_BATCH");
    eth_hpp_option_set_free(&set);
}

static void an_option_like_another_differs_in_its_help_only(void **state)
{
    (void)state;
    static const struct eth_hpp_option table[] = {
        {.like = &eth_hpp_job_options[ETH_HPP_JOB_SEQ]},
        {.like = &eth_hpp_job_options[ETH_HPP_JOB_DTYPE], .help = "of the numbers"}};
    struct eth_hpp_option_set set;
    struct eth_hpp_error err;
    int rest;
    bool help;
    char *argv[] = {"--seq=0"};
    assert_int_equal(eth_hpp_option_set_init(&set, table, 2, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_option_parse(&set, 1, argv, &rest, &help, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "--seq: must be a whole number 1..1048576"));
    assert_string_equal(set.table[0].help, eth_hpp_job_options[ETH_HPP_JOB_SEQ].help);
    assert_string_equal(set.table[1].name, "dtype");
    assert_string_equal(set.table[1].help, "of the numbers");
    assert_string_equal(eth_hpp_option_text(&set, 1), "auto");
    eth_hpp_option_set_free(&set);
}

/* ---- log ---- */

static char last_line[4096];

static void keep_line(enum eth_hpp_log_level level, const char *line)
{
    (void)level;
    snprintf(last_line, sizeof(last_line), "%s", line);
}

static void no_input_can_forge_a_log_line(void **state)
{
    (void)state;
    eth_hpp_log_set_sink(keep_line);
    eth_hpp_log_set_origin("rank 5 on gpu017: ");
    eth_hpp_log_error("bad name \"%s\"", "a\neth-hpp: all is well\x1b[2J\xc2\x9b 2J\xc3\xa4");
    assert_string_equal(last_line, "eth-hpp: rank 5 on gpu017: bad name \"a\\x0aeth-hpp: all is "
                                   "well\\x1b[2J\\xc2\\x9b 2J\xc3\xa4\"");
    eth_hpp_log_debug("dropped");
    assert_null(strstr(last_line, "dropped"));
    eth_hpp_log_set_origin("");
    eth_hpp_log_set_sink(NULL);
}

static void errors_keep_their_status_through_prefixes(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    eth_hpp_error_set(&err, ETH_HPP_ERR_INFEASIBLE, "too %s", "large");
    assert_int_equal(eth_hpp_error_prefix(&err, "stage %d", 3), ETH_HPP_ERR_INFEASIBLE);
    assert_string_equal(err.text, "stage 3: too large");
    assert_int_equal(eth_hpp_error_exit_code(err.status), ETH_HPP_EXIT_INFEASIBLE);
}

/* ---- libraries ---- */

static void a_library_that_is_missing_or_another_version_is_named(void **state)
{
    (void)state;
    void *library, *function = NULL;
    struct eth_hpp_error err;
    assert_int_equal(eth_hpp_library_open("libeth-hpp-nothing.so.7", "nothing7", &library, &err),
                     ETH_HPP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "libeth-hpp-nothing.so.7: "));
    assert_non_null(strstr(err.text, ": install nothing7"));
    assert_int_equal(eth_hpp_library_open("libc.so.6", "libc6", &library, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_library_find(library, "libc.so.6", "eth_hpp_nothing", &function, &err),
                     ETH_HPP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "libc.so.6: has no eth_hpp_nothing"));
    assert_null(function);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_reads_what_is_right),
        cmocka_unit_test(json_errors_name_the_file_and_the_place),
        cmocka_unit_test(json_refuses_deep_nesting),
        cmocka_unit_test(json_refuses_what_hides_behind_a_nul_byte),
        cmocka_unit_test(json_refuses_heaps_of_nothing),
        cmocka_unit_test(json_numbers_read_back_as_they_were),
        cmocka_unit_test(files_are_replaced_whole_and_leave_no_temporary),
        cmocka_unit_test(devices_and_fifos_are_neither_read_nor_replaced),
        cmocka_unit_test(a_link_stays_and_its_file_is_replaced),
        cmocka_unit_test(options_take_both_spellings_and_stop_at_the_command),
        cmocka_unit_test(bad_options_are_refused_with_the_reason),
        cmocka_unit_test(an_option_wins_over_the_environment_whatever_the_order),
        cmocka_unit_test(an_option_like_another_differs_in_its_help_only),
        cmocka_unit_test(no_input_can_forge_a_log_line),
        cmocka_unit_test(errors_keep_their_status_through_prefixes),
        cmocka_unit_test(a_library_that_is_missing_or_another_version_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
