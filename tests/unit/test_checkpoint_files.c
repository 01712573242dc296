/* Files of tensors and checkpoints on disk: what is written is read back, and damage is named. */
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

#include "base/checksum.h"
#include "base/file.h"
#include "runtime/checkpoint_file.h"
#include "runtime/checkpoint_folder.h"
#include "folder.h"

static const char *in_folder(const char *name)
{
    static char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

/* A file of a head and data. */
static void write_tensors(const char *name, const char *head, const void *data, size_t bytes)
{
    FILE *file = fopen(in_folder(name), "w");
    const uint64_t length = strlen(head);
    assert_non_null(file);
    assert_int_equal(fwrite(&length, sizeof(length), 1, file), 1);
    assert_int_equal(fwrite(head, 1, length, file), length);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void change_byte(const char *path, long offset)
{
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    assert_int_equal(fclose(file), 0);
}

/* ---- checksums ---- */

static void checksums_are_those_of_the_standard(void **state)
{
    (void)state;
    unsigned char zeros[32] = {0}, counting[32];
    for (int i = 0; i < 32; i++)
        counting[i] = (unsigned char)i;
    /* RFC 3720, appendix B.4 */
    assert_int_equal(eth_hpp_checksum(0, zeros, 32), 0x8a9136aa);
    assert_int_equal(eth_hpp_checksum(0, counting, 32), 0x46dd794e);
    assert_int_equal(eth_hpp_checksum(0, "123456789", 9), 0xe3069283);
    for (size_t cut = 0; cut <= 9; cut++)
        assert_int_equal(
            eth_hpp_checksum(eth_hpp_checksum(0, "123456789", cut), &"123456789"[cut], 9 - cut),
            0xe3069283);
}

/* ---- safetensors ---- */

static void tensors_come_back_as_they_were_written(void **state)
{
    (void)state;
    char names[2][8] = {"matrix", "vector"};
    const struct eth_hpp_stored_tensor tensors[] = {
        {.name = names[0], .shape = {2, 3}, .dimensions = 2, .count = 6},
        {.name = names[1], .shape = {5}, .dimensions = 1, .count = 5}};
    struct eth_hpp_safetensors_image image;
    struct eth_hpp_safetensors file;
    struct eth_hpp_error err;
    float values[11], read[6];
    for (int i = 0; i < 11; i++)
        values[i] = 0.25f * (float)i - 1;
    assert_int_equal(eth_hpp_safetensors_image_create(tensors, 2, &image, &err), ETH_HPP_OK);
    memcpy(image.bytes + image.begins[0], values, sizeof(values));
    eth_hpp_safetensors_image_seal(&image);
    assert_int_equal(
        eth_hpp_file_write(in_folder("own.safetensors"), image.bytes, image.size, 0644, &err),
        ETH_HPP_OK);
    eth_hpp_safetensors_image_free(&image);
    assert_int_equal(eth_hpp_safetensors_open(in_folder("own.safetensors"), &file, &err),
                     ETH_HPP_OK);
    assert_int_equal(file.count, 2);
    assert_int_equal(file.head_bytes % 8, 0);
    assert_true(file.has_checksums);
    const struct eth_hpp_stored_tensor *matrix = eth_hpp_safetensors_find(&file, "matrix");
    assert_non_null(matrix);
    assert_null(eth_hpp_safetensors_find(&file, "other"));
    assert_true(matrix->dimensions == 2 && matrix->shape[0] == 2 && matrix->shape[1] == 3);
    assert_int_equal(eth_hpp_safetensors_read(&file, matrix, read, &err), ETH_HPP_OK);
    assert_memory_equal(read, values, sizeof(read));
    const long damaged = (long)matrix->begin + 9;
    char where[96];
    snprintf(where, sizeof(where),
             "own.safetensors: is damaged between offset %zu and %zu: ", matrix->begin,
             matrix->begin + 24);
    change_byte(in_folder("own.safetensors"), damaged);
    assert_int_equal(eth_hpp_safetensors_read(&file, matrix, read, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, where));
    assert_non_null(strstr(err.text, "matrix"));
    assert_int_equal(eth_hpp_safetensors_read(&file, &file.tensors[1], read, &err), ETH_HPP_OK);
    eth_hpp_safetensors_close(&file);
}

static void half_precision_is_read_as_fp32(void **state)
{
    (void)state;
    static const uint16_t stored[] = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x8000,  /* F16 */
                                      0x3f80, 0xc040, 0x0000, 0x7f80, 0x4049}; /* BF16 */
    static const float halves[] = {1, -2, 0x1p-24f, 65504, -0.0f};
    struct eth_hpp_safetensors file;
    struct eth_hpp_error err;
    float read[5];
    write_tensors("half.safetensors",
                  "{\"a\":{\"dtype\":\"F16\",\"shape\":[5],\"data_offsets\":[0,10]},"
                  "\"b\":{\"dtype\":\"BF16\",\"shape\":[5],\"data_offsets\":[10,20]}}",
                  stored, sizeof(stored));
    if (eth_hpp_safetensors_open(in_folder("half.safetensors"), &file, &err) != ETH_HPP_OK)
        fail_msg("%s", err.text);
    assert_int_equal(
        eth_hpp_safetensors_read(&file, eth_hpp_safetensors_find(&file, "a"), read, &err),
        ETH_HPP_OK);
    assert_memory_equal(read, halves, sizeof(halves));
    assert_int_equal(
        eth_hpp_safetensors_read(&file, eth_hpp_safetensors_find(&file, "b"), read, &err),
        ETH_HPP_OK);
    assert_true(read[0] == 1 && read[1] == -3 && read[2] == 0 && read[4] == 3.140625f);
    eth_hpp_safetensors_close(&file);
}

static void files_that_are_no_tensors_are_refused_with_the_place(void **state)
{
    (void)state;
    static const struct {
        const char *head, *text;
        size_t bytes;
    } wrong[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
         "the file ends at offset ", 12},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         "the last tensor ends at offset ", 16},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,16]}}",
         "a: has 3 elements of F32, but 16 bytes", 16},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", "a begins at offset ",
         16},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[4],\"data_offsets\":[0,16]}}", "is \"F33\"", 16},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[65536,65536,65536,65536],\"data_offsets\":[0,16]}}",
         "more elements than a file can hold", 16},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}", "must be 0..", 16},
        {"{\"a\":[1]}", "a: must be an object", 0},
        {"{\"a\":{\"dtype\":\"F32\"", "from offset 8", 16},
        {"{\"__metadata__\":{\"crc32c\":\"00\"}}", "crc32c: must have 0 checksums", 0},
    };
    char data[16] = {0};
    struct eth_hpp_safetensors file;
    struct eth_hpp_error err;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        write_tensors("wrong.safetensors", wrong[i].head, data, wrong[i].bytes);
        assert_int_equal(eth_hpp_safetensors_open(in_folder("wrong.safetensors"), &file, &err),
                         ETH_HPP_ERR_INPUT);
        if (strstr(err.text, wrong[i].text) == NULL ||
            strstr(err.text, "wrong.safetensors") == NULL)
            fail_msg("%zu: %s", i, err.text);
    }
    assert_int_equal(eth_hpp_file_write(in_folder("text"), "a text, no tensors", 18, 0644, &err),
                     ETH_HPP_OK);
    assert_int_equal(eth_hpp_safetensors_open(in_folder("text"), &file, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "text: the head's length at offset 0 is "));
    assert_int_equal(eth_hpp_file_write(in_folder("text"), "short", 5, 0644, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_safetensors_open(in_folder("text"), &file, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "is cut off at offset 5"));
}

/* ---- checkpoints ---- */

/* Rank `number` of two writes a weight and its moments into the partial folder. */
static void write_part(int64_t step, int number)
{
    char name[16], moment[48];
    struct eth_hpp_error err;
    struct eth_hpp_stored_tensor tensor = {.name = name, .shape = {4}, .dimensions = 1, .count = 4};
    char *partial = eth_hpp_checkpoint_path(folder, step, ETH_HPP_CHECKPOINT_PARTIAL);
    static const char *const parts[] = {"model", "optimizer"};
    snprintf(name, sizeof(name), "weight%d", number);
    snprintf(moment, sizeof(moment), "weight%d.first_moment[0:4]", number);
    assert_int_equal(eth_hpp_checkpoint_make_folder(partial, &err), ETH_HPP_OK);
    for (int i = 0; i < 2; i++) {
        struct eth_hpp_safetensors_image image;
        tensor.name = i == 0 ? name : moment;
        assert_int_equal(eth_hpp_safetensors_image_create(&tensor, 1, &image, &err), ETH_HPP_OK);
        memset(image.bytes + image.begins[0], number, 16);
        eth_hpp_safetensors_image_seal(&image);
        char *path = eth_hpp_checkpoint_file(partial, parts[i], number, 2);
        assert_int_equal(eth_hpp_file_write(path, image.bytes, image.size, 0644, &err), ETH_HPP_OK);
        eth_hpp_safetensors_image_free(&image);
        free(path);
    }
    free(partial);
}

static void publish(int64_t step, int keep)
{
    const struct eth_hpp_checkpoint state = {.step = step,
                                             .next_sample = 16 * step,
                                             .seed = 7,
                                             .data_tokens = 1000,
                                             .global_batch = 16,
                                             .sequence_length = 64};
    struct eth_hpp_error err;
    write_part(step, 1);
    write_part(step, 2);
    if (eth_hpp_checkpoint_publish(folder, &state, "{\"model_type\":\"gpt2\"}", 2, keep, &err) !=
        ETH_HPP_OK)
        fail_msg("%s", err.text);
}

static char *path_of(int64_t step, const char *file)
{
    static char path[256];
    snprintf(path, sizeof(path), "%s/step-%09lld/%s", folder, (long long)step, file);
    return path;
}

static void expect_steps(const int64_t *expected, size_t count)
{
    int64_t *steps;
    size_t found;
    assert_int_equal(eth_hpp_checkpoint_list(folder, &steps, &found, NULL), ETH_HPP_OK);
    assert_int_equal(found, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(steps[i], expected[i]);
    free(steps);
}

static void the_newest_checkpoints_stay(void **state)
{
    (void)state;
    for (int64_t step = 5; step <= 20; step += 5)
        publish(step, 2);
    expect_steps((const int64_t[]){20, 15}, 2);
    publish(20, 0); /* once more: it replaces the first one */
    expect_steps((const int64_t[]){20, 15}, 2);
    write_part(25, 1); /* a run that was killed */
    expect_steps((const int64_t[]){20, 15}, 2);
    eth_hpp_checkpoint_remove_partial(folder);
    assert_int_not_equal(access(in_folder("step-000000025.partial"), F_OK), 0);
}

static void a_checkpoint_knows_what_is_in_it(void **state)
{
    (void)state;
    struct eth_hpp_checkpoint read;
    struct eth_hpp_tensor_set set;
    struct eth_hpp_error err;
    const struct eth_hpp_safetensors *file;
    const struct eth_hpp_stored_tensor *tensor;
    publish(3, 0);
    const char *path = path_of(3, "");
    assert_int_equal(eth_hpp_checkpoint_read(path, &read, &set, &err), ETH_HPP_OK);
    assert_true(read.step == 3 && read.next_sample == 48 && read.seed == 7);
    assert_true(read.data_tokens == 1000 && read.global_batch == 16 && read.sequence_length == 64);
    assert_int_equal(set.entry_count, 4);
    const size_t entry = eth_hpp_tensor_set_find(&set, "weight2");
    assert_string_equal(set.entries[entry].name, "weight2");
    assert_int_equal(eth_hpp_tensor_set_get(&set, entry, &file, &tensor, &err), ETH_HPP_OK);
    assert_non_null(strstr(file->path, "model-00002-of-00002.safetensors"));
    eth_hpp_tensor_set_close(&set);
    /* as Hugging Face's libraries find it */
    assert_int_equal(eth_hpp_tensor_set_open_model(path, &set, &err), ETH_HPP_OK);
    assert_int_equal(set.entry_count, 2);
    eth_hpp_tensor_set_close(&set);
}

/* Whatever byte of a checkpoint changes, it is found; and cut off files are. */
static void every_damaged_byte_is_found(void **state)
{
    (void)state;
    static const char *const files[] = {
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "optimizer-00002-of-00002.safetensors", "model.safetensors.index.json", "config.json"};
    struct eth_hpp_error err;
    publish(4, 0);
    const char *whole = "%s/step-000000004";
    char checkpoint[128];
    snprintf(checkpoint, sizeof(checkpoint), whole, folder);
    assert_int_equal(eth_hpp_checkpoint_verify(checkpoint, &err), ETH_HPP_OK);
    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
        struct stat info;
        const char *path = path_of(4, files[f]);
        assert_int_equal(stat(path, &info), 0);
        for (long at = 0; at < info.st_size; at += 1 + at % 3) {
            change_byte(path, at);
            if (eth_hpp_checkpoint_verify(checkpoint, &err) != ETH_HPP_ERR_INPUT ||
                strstr(err.text, files[f]) == NULL || strstr(err.text, "offset") == NULL)
                fail_msg("byte %ld of %s: %s", at, files[f], err.text);
            change_byte(path, at);
        }
        assert_int_equal(truncate(path, info.st_size - 1), 0);
        assert_int_equal(eth_hpp_checkpoint_verify(checkpoint, &err), ETH_HPP_ERR_INPUT);
        assert_non_null(strstr(err.text, files[f]));
        publish(4, 0);
    }
}

static void a_manifest_is_whole_or_refused(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    struct eth_hpp_checkpoint read;
    struct eth_hpp_tensor_set set;
    char checkpoint[128], *text;
    size_t size;
    publish(6, 0);
    snprintf(checkpoint, sizeof(checkpoint), "%s/step-000000006", folder);
    const char *path = path_of(6, ETH_HPP_CHECKPOINT_MANIFEST);
    assert_int_equal(eth_hpp_file_read(path, 100000, &text, &size, &err), ETH_HPP_OK);
    char *digit = strstr(text, "\"next_sample\": 96");
    assert_non_null(digit);
    change_byte(path, digit - text + 15);
    assert_int_equal(eth_hpp_checkpoint_read(checkpoint, &read, &set, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "checkpoint.json: is damaged"));
    free(text);
    assert_int_equal(truncate(path, (off_t)size / 2), 0);
    assert_int_equal(eth_hpp_checkpoint_read(checkpoint, &read, &set, &err), ETH_HPP_ERR_INPUT);
    unlink(path);
    assert_int_equal(eth_hpp_checkpoint_read(checkpoint, &read, &set, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "checkpoint.json: cannot open"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums_are_those_of_the_standard),
        cmocka_unit_test_setup_teardown(tensors_come_back_as_they_were_written, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(half_precision_is_read_as_fp32, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(files_that_are_no_tensors_are_refused_with_the_place,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(the_newest_checkpoints_stay, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_checkpoint_knows_what_is_in_it, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(every_damaged_byte_is_found, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_manifest_is_whole_or_refused, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
