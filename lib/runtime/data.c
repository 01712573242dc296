#include "runtime/data.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

enum {
    HEADER_WORDS = 256,
    HEADER_BYTES = 4 * HEADER_WORDS,
    HEADER_MAGIC = 20240520,
    WIDE_MAGIC = 20240801, /* llm.c's files of 4-byte tokens, for Llama 3 */
    HEADER_VERSION = 1,
    BYTE_VOCABULARY = 256,
    WORD_VOCABULARY = 65535,
    PADDING = 65535 /* in a .bin file */
};

/* Read, not mapped: a file that is cut off or cannot be read while it is in use is an error then,
 * and no signal. */
struct eth_hpp_data {
    struct eth_hpp_data_options options;
    char *path; /* for messages */
    int file;
    size_t bytes, begin; /* of the file; of its first token */
    int token_bytes;
    unsigned char *read; /* room for a sample and the token after it */
    int64_t token_count, sample_count;
};

static bool has_suffix(const char *path, const char *suffix)
{
    size_t length = strlen(path), n = strlen(suffix);
    return length >= n && strcmp(path + length - n, suffix) == 0;
}

/* A .bin file: its header, where it has one, must agree with its size. */
static enum eth_hpp_status read_header(struct eth_hpp_data *data, struct eth_hpp_error *err)
{
    const char *path = data->path;
    unsigned char bytes[12] = {0};
    int32_t header[3];
    enum eth_hpp_status status = ETH_HPP_OK;
    if (data->bytes >= sizeof(bytes))
        status = eth_hpp_file_read_at(data->file, path, bytes, sizeof(bytes), 0, err);
    if (status != ETH_HPP_OK)
        return status;
    memcpy(header, bytes, sizeof(bytes));
    bool headed = header[0] == HEADER_MAGIC;
    data->begin = headed ? HEADER_BYTES : 0;
    if (header[0] == WIDE_MAGIC)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: holds 4-byte tokens (llm.c's format for Llama 3): this "
                                 "program reads 2-byte tokens",
                                 path);
    if (headed && header[1] != HEADER_VERSION)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: its header says version %d, this program reads version %d",
                                 path, header[1], HEADER_VERSION);
    if (data->bytes < data->begin || (data->bytes - data->begin) % 2 != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: is cut off: it has %zu bytes, which is no whole number of "
                                 "2-byte tokens%s",
                                 path, data->bytes, headed ? " behind a header" : "");
    data->token_bytes = 2;
    data->token_count = (int64_t)(data->bytes - data->begin) / 2;
    if (headed && header[2] != data->token_count)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: is cut off or overlong: its header says %d tokens, %lld are "
                                 "there",
                                 path, header[2], (long long)data->token_count);
    return ETH_HPP_OK;
}

static enum eth_hpp_status count_samples(struct eth_hpp_data *data, struct eth_hpp_error *err)
{
    const int length = data->options.sequence_length;
    /* The last target of a sample is the first token of the next one. */
    data->sample_count = (data->token_count - 1) / length;
    if (data->sample_count < 1)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: has %lld tokens, a sample of sequence length %d needs %d: "
                                 "give more data or a shorter sequence",
                                 data->path, (long long)data->token_count, length, length + 1);
    data->read = malloc(((size_t)length + 1) * (size_t)data->token_bytes);
    return data->read != NULL ? ETH_HPP_OK : eth_hpp_error_memory(err, data->path);
}

enum eth_hpp_status eth_hpp_data_open(const char *path, const struct eth_hpp_data_options *options,
                                      struct eth_hpp_data **data, struct eth_hpp_error *err)
{
    struct eth_hpp_data *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return eth_hpp_error_memory(err, "the data");
    d->options = *options;
    d->file = -1;
    d->path = strdup(path);
    enum eth_hpp_status status = d->path != NULL ? eth_hpp_file_open(path, &d->file, &d->bytes, err)
                                                 : eth_hpp_error_memory(err, path);
    if (status == ETH_HPP_OK && d->bytes == 0)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%s: the file is empty", path);
    d->token_bytes = 1;
    d->token_count = (int64_t)d->bytes;
    if (status == ETH_HPP_OK && has_suffix(path, ".bin"))
        status = read_header(d, err);
    if (status == ETH_HPP_OK)
        status = count_samples(d, err);
    if (status != ETH_HPP_OK) {
        eth_hpp_data_close(d);
        return status;
    }
    *data = d;
    return ETH_HPP_OK;
}

void eth_hpp_data_close(struct eth_hpp_data *data)
{
    if (data == NULL)
        return;
    if (data->file >= 0)
        close(data->file);
    free(data->path);
    free(data->read);
    free(data);
}

int64_t eth_hpp_data_tokens(const struct eth_hpp_data *data)
{
    return data->token_count;
}

int64_t eth_hpp_data_samples(const struct eth_hpp_data *data)
{
    return data->sample_count;
}

int eth_hpp_data_vocabulary(const struct eth_hpp_data *data)
{
    return data->token_bytes == 1 ? BYTE_VOCABULARY : WORD_VOCABULARY;
}

/* The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection that mixes all bits. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* A permutation of 0 .. count-1 without a table: a Feistel network of four rounds over the smallest
 * even number of bits that holds count, walked along its cycle until it falls inside (Black and
 * Rogaway 2002). Any rank finds any sample by its number alone. */
static int64_t permute(int64_t index, int64_t count, uint64_t key)
{
    int half = 1;
    while (half < 31 && INT64_C(1) << (2 * half) < count)
        half++;
    const uint64_t mask = (UINT64_C(1) << half) - 1;
    uint64_t x = (uint64_t)index;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t next = left ^ (mix(right ^ mix(key + round)) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)count);
    return (int64_t)x;
}

static int32_t token_at(const struct eth_hpp_data *data, int i)
{
    if (data->token_bytes == 1)
        return data->read[i];
    return data->read[2 * i] | data->read[2 * i + 1] << 8;
}

enum eth_hpp_status eth_hpp_data_sample(void *data, int64_t number, int32_t *tokens,
                                        int32_t *targets, struct eth_hpp_error *err)
{
    const struct eth_hpp_data *d = data;
    const int length = d->options.sequence_length;
    if (number < 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "sample %lld does not exist",
                                 (long long)number);
    const int64_t pass = number / d->sample_count;
    int64_t sample = number % d->sample_count;
    if (d->options.shuffle)
        sample = permute(sample, d->sample_count, mix(d->options.seed) + (uint64_t)pass);
    const size_t token_bytes = (size_t)d->token_bytes;
    enum eth_hpp_status status =
        eth_hpp_file_read_at(d->file, d->path, d->read, ((size_t)length + 1) * token_bytes,
                             d->begin + (size_t)sample * (size_t)length * token_bytes, err);
    if (status != ETH_HPP_OK)
        return status;
    const bool may_pad = token_bytes == 2;
    for (int i = 0; i < length; i++) {
        tokens[i] = token_at(d, i);
        targets[i] = token_at(d, i + 1);
        if (may_pad && tokens[i] == PADDING)
            tokens[i] = 0; /* any token of a vocabulary */
        if (may_pad && targets[i] == PADDING)
            targets[i] = ETH_HPP_NO_TARGET;
    }
    return ETH_HPP_OK;
}
