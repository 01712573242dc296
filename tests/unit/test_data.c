#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/data.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "test_data.XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder); /* fails where a test has left something */
}

static const char *put(const char *name, const void *bytes, size_t size)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
    return path;
}

static struct eth_hpp_data *open_data(const char *path, int length, bool shuffle, uint64_t seed)
{
    const struct eth_hpp_data_options options = {
        .sequence_length = length, .shuffle = shuffle, .seed = seed};
    struct eth_hpp_data *data;
    struct eth_hpp_error err;
    if (eth_hpp_data_open(path, &options, &data, &err) != ETH_HPP_OK)
        fail_msg("%s", err.text);
    return data;
}

static void targets_are_the_tokens_that_follow(void **state)
{
    (void)state;
    int32_t tokens[4], targets[4];
    const char *path = put("text", "abcdefghijkl\xff", 13);
    struct eth_hpp_data *data = open_data(path, 4, false, 0);
    assert_int_equal(eth_hpp_data_samples(data), 3);
    assert_int_equal(eth_hpp_data_vocabulary(data), 256);
    assert_int_equal(eth_hpp_data_sample(data, 2, tokens, targets, NULL), ETH_HPP_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(tokens[i], 'i' + i);
    assert_int_equal(targets[0], 'j');
    assert_int_equal(targets[3], 0xff);
    /* After the last sample the file begins anew. */
    assert_int_equal(eth_hpp_data_sample(data, 3, tokens, targets, NULL), ETH_HPP_OK);
    assert_int_equal(tokens[0], 'a');
    eth_hpp_data_close(data);
    unlink(path);
}

/* Each pass has every sample once, in an order of its own that depends on the seed alone. */
static void a_shuffle_is_a_permutation_of_each_pass(void **state)
{
    (void)state;
    enum { SAMPLES = 97 };
    char text[SAMPLES + 1];
    for (int i = 0; i <= SAMPLES; i++)
        text[i] = (char)i;
    const char *path = put("text", text, sizeof(text));
    struct eth_hpp_data *data = open_data(path, 1, true, 7), *again = open_data(path, 1, true, 7),
                        *other = open_data(path, 1, true, 8);
    int same_pass = 0, same_seed = 0, in_order = 0;
    int32_t first[SAMPLES], target;
    for (int pass = 0; pass < 3; pass++) {
        bool seen[SAMPLES] = {false};
        for (int i = 0; i < SAMPLES; i++) {
            int32_t token, twin, stranger;
            eth_hpp_data_sample(data, pass * SAMPLES + i, &token, &target, NULL);
            eth_hpp_data_sample(again, pass * SAMPLES + i, &twin, &target, NULL);
            eth_hpp_data_sample(other, pass * SAMPLES + i, &stranger, &target, NULL);
            assert_false(seen[token]);
            seen[token] = true;
            assert_int_equal(token, twin);
            if (pass == 0)
                first[i] = token;
            same_pass += pass == 1 && token == first[i];
            same_seed += token == stranger;
            in_order += token == i;
        }
    }
    assert_true(same_pass < 20 && same_seed < 60 && in_order < 60);
    eth_hpp_data_close(data);
    eth_hpp_data_close(again);
    eth_hpp_data_close(other);
    unlink(path);
}

static void token_files_are_read_with_and_without_header(void **state)
{
    (void)state;
    int32_t header[256] = {20240520, 1, 5}, token, target;
    uint16_t words[5] = {1, 50256, 3, 65535, 5};
    char file[sizeof(header) + sizeof(words)];
    memcpy(file, header, sizeof(header));
    memcpy(file + sizeof(header), words, sizeof(words));
    for (int headed = 0; headed < 2; headed++) {
        const char *path =
            headed ? put("t.bin", file, sizeof(file)) : put("t.bin", words, sizeof(words));
        struct eth_hpp_data *data = open_data(path, 1, false, 0);
        assert_int_equal(eth_hpp_data_tokens(data), 5);
        eth_hpp_data_sample(data, 1, &token, &target, NULL);
        assert_int_equal(token, 50256);
        eth_hpp_data_sample(data, 2, &token, &target, NULL);
        assert_int_equal(target, -100); /* padding */
        eth_hpp_data_sample(data, 3, &token, &target, NULL);
        assert_true(token == 0 && target == 5);
        eth_hpp_data_close(data);
        unlink(path);
    }
}

static void bad_files_are_refused_with_the_reason(void **state)
{
    (void)state;
    int32_t short_header[257] = {20240520, 1, 5}, newer[257] = {20240520, 2, 2},
            wide[257] = {20240801, 7, 1};
    const struct {
        const char *name;
        const void *bytes;
        size_t size;
        const char *message;
    } cases[] = {
        {"t.txt", "", 0, "the file is empty"},
        {"t.txt", "abcd", 4, "has 4 tokens, a sample of sequence length 4 needs 5"},
        {"t.bin", "abc", 3, "is cut off: it has 3 bytes"},
        {"t.bin", short_header, sizeof(short_header), "its header says 5 tokens, 2 are there"},
        {"t.bin", short_header, 600, "is cut off: it has 600 bytes"},
        {"t.bin", wide, sizeof(wide), "holds 4-byte tokens"},
        {"t.bin", newer, sizeof(newer), "its header says version 2"},
    };
    const struct eth_hpp_data_options options = {.sequence_length = 4};
    struct eth_hpp_data *data = NULL;
    struct eth_hpp_error err;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *path = put(cases[i].name, cases[i].bytes, cases[i].size);
        assert_int_equal(eth_hpp_data_open(path, &options, &data, &err), ETH_HPP_ERR_INPUT);
        if (strstr(err.text, cases[i].message) == NULL || strstr(err.text, path) == NULL)
            fail_msg("\"%s\" lacks \"%s\"", err.text, cases[i].message);
        unlink(path);
    }
    assert_int_equal(eth_hpp_data_open("no/such/file", &options, &data, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "no/such/file: cannot open"));
    assert_int_equal(eth_hpp_data_open(folder, &options, &data, &err), ETH_HPP_ERR_INPUT);
    const char *fifo = put("t.fifo", "", 0); /* one that nobody writes to */
    assert_int_equal(unlink(fifo), 0);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(eth_hpp_data_open(fifo, &options, &data, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "is not a regular file"));
    unlink(fifo);
    assert_null(data);
}

static void a_file_that_is_cut_off_while_it_is_read_is_an_error(void **state)
{
    (void)state;
    int32_t tokens[4], targets[4];
    struct eth_hpp_error err;
    const char *path = put("text", "abcdefghijklm", 13);
    struct eth_hpp_data *data = open_data(path, 4, false, 0);
    assert_int_equal(truncate(path, 7), 0);
    assert_int_equal(eth_hpp_data_sample(data, 0, tokens, targets, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_data_sample(data, 1, tokens, targets, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "/text: is cut off at offset 7"));
    eth_hpp_data_close(data);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(targets_are_the_tokens_that_follow),
        cmocka_unit_test(a_shuffle_is_a_permutation_of_each_pass),
        cmocka_unit_test(token_files_are_read_with_and_without_header),
        cmocka_unit_test(bad_files_are_refused_with_the_reason),
        cmocka_unit_test(a_file_that_is_cut_off_while_it_is_read_is_an_error),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
