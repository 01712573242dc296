#include "runtime/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/file.h"
#include "base/json.h"

enum { LENGTH_BYTES = 8, NAME_MAX_BYTES = 1024, CHECKSUM_WIDTH = 9 };
#define HEAD_MAX    (100u << 20) /* as the format's own library has it */
#define TENSORS_MAX 10000000
#define PIECE_BYTES ((size_t)1 << 20)

static const struct {
    const char *name;
    size_t bytes;
    enum eth_hpp_stored_type type;
} types[] = {
    {"F32", 4, ETH_HPP_STORED_F32},    {"F16", 2, ETH_HPP_STORED_F16},
    {"BF16", 2, ETH_HPP_STORED_BF16},  {"F64", 8, ETH_HPP_STORED_OTHER},
    {"I64", 8, ETH_HPP_STORED_OTHER},  {"I32", 4, ETH_HPP_STORED_OTHER},
    {"I16", 2, ETH_HPP_STORED_OTHER},  {"I8", 1, ETH_HPP_STORED_OTHER},
    {"U64", 8, ETH_HPP_STORED_OTHER},  {"U32", 4, ETH_HPP_STORED_OTHER},
    {"U16", 2, ETH_HPP_STORED_OTHER},  {"U8", 1, ETH_HPP_STORED_OTHER},
    {"BOOL", 1, ETH_HPP_STORED_OTHER},
};
enum { TYPES = sizeof(types) / sizeof(types[0]) };

static enum eth_hpp_status read_at(const struct eth_hpp_safetensors *file, void *to, size_t bytes,
                                   size_t offset, struct eth_hpp_error *err)
{
    return eth_hpp_file_read_at(file->fd, file->path, to, bytes, offset, err);
}

/* ---- the head ---- */

/* Reads a tensor's entry; its place is checked when all are known. */
static void read_entry(const struct eth_hpp_json *entry, struct eth_hpp_stored_tensor *tensor,
                       const struct eth_hpp_safetensors *file)
{
    const int64_t data_bytes = (int64_t)(file->bytes - file->head_bytes);
    eth_hpp_json_keys(entry, "dtype", "shape", "data_offsets", NULL);
    const char *type = eth_hpp_json_string(entry, "dtype", 16);
    struct eth_hpp_json shape = eth_hpp_json_array(entry, "shape", 0, ETH_HPP_SHAPE_MAX);
    struct eth_hpp_json offsets = eth_hpp_json_array(entry, "data_offsets", 2, 2);
    size_t t = 0;
    while (t < TYPES && strcmp(types[t].name, type) != 0)
        t++;
    if (t == TYPES) {
        eth_hpp_json_fail(entry, "dtype: is \"%s\", which is not known", type);
        return;
    }
    tensor->type = types[t].type;
    tensor->dimensions = (int)eth_hpp_json_length(&shape);
    tensor->count = 1;
    for (int d = 0; d < tensor->dimensions; d++) {
        tensor->shape[d] = (size_t)eth_hpp_json_item_integer(&shape, (size_t)d, 0, INT32_MAX);
        if (__builtin_mul_overflow(tensor->count, tensor->shape[d], &tensor->count))
            eth_hpp_json_fail(entry, "shape: has more elements than a file can hold");
    }
    const int64_t begin = eth_hpp_json_item_integer(&offsets, 0, 0, INT64_MAX / 2);
    const int64_t end = eth_hpp_json_item_integer(&offsets, 1, begin, INT64_MAX / 2);
    if (eth_hpp_json_failed(entry))
        return;
    tensor->begin = file->head_bytes + (size_t)begin;
    tensor->bytes = (size_t)(end - begin);
    if (end > data_bytes)
        eth_hpp_json_fail(entry,
                          "lies at bytes %zu to %zu, but the file ends at offset %zu: it is cut "
                          "off",
                          tensor->begin, tensor->begin + tensor->bytes, file->bytes);
    else if (tensor->bytes / types[t].bytes != tensor->count || tensor->bytes % types[t].bytes != 0)
        eth_hpp_json_fail(entry, "has %zu elements of %s, but %zu bytes", tensor->count, type,
                          tensor->bytes);
}

static int order_places(const void *left, const void *right)
{
    const struct eth_hpp_stored_tensor *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static void check_places(const struct eth_hpp_json *root, struct eth_hpp_safetensors *file)
{
    size_t at = file->head_bytes;
    qsort(file->tensors, file->count, sizeof(*file->tensors), order_places);
    for (size_t i = 0; i < file->count; i++) {
        const struct eth_hpp_stored_tensor *tensor = &file->tensors[i];
        if (tensor->begin != at)
            eth_hpp_json_fail(root, "%s begins at offset %zu, the one before it ends at %zu",
                              tensor->name, tensor->begin, at);
        at = tensor->begin + tensor->bytes;
    }
    if (at != file->bytes)
        eth_hpp_json_fail(root, "the last tensor ends at offset %zu, the file at %zu", at,
                          file->bytes);
}

/* The checksums stand in one text, in the order of the tensors' places. */
static void read_checksums(const struct eth_hpp_json *metadata, struct eth_hpp_safetensors *file)
{
    if (!eth_hpp_json_has(metadata, "crc32c"))
        return;
    const char *text = eth_hpp_json_string(metadata, "crc32c", HEAD_MAX);
    if (!eth_hpp_json_failed(metadata) && strlen(text) != file->count * CHECKSUM_WIDTH) {
        eth_hpp_json_fail(metadata, "crc32c: must have %zu checksums", file->count);
        return;
    }
    for (size_t i = 0; i < file->count && !eth_hpp_json_failed(metadata); i++) {
        char *end;
        file->tensors[i].checksum = (uint32_t)strtoul(text + i * CHECKSUM_WIDTH, &end, 16);
        if (end != text + (i + 1) * CHECKSUM_WIDTH - 1)
            eth_hpp_json_fail(metadata, "crc32c: checksum %zu is none", i);
    }
    file->has_checksums = true;
}

static void read_tensors(const struct eth_hpp_json *root, struct eth_hpp_safetensors *file)
{
    struct eth_hpp_json value, metadata = {0};
    const char *key;
    size_t room = (size_t)json_object_object_length(root->value);
    file->tensors = calloc(room + 1, sizeof(*file->tensors));
    if (file->tensors == NULL) {
        eth_hpp_json_fail(root, "out of memory for its %zu tensors", room);
        return;
    }
    for (void *iterator = NULL; eth_hpp_json_next(root, &iterator, &key, &value);) {
        if (strcmp(key, "__metadata__") == 0) {
            metadata = value;
            continue;
        }
        struct eth_hpp_stored_tensor *tensor = &file->tensors[file->count++];
        tensor->name = strdup(key);
        if (tensor->name == NULL || strlen(key) > NAME_MAX_BYTES)
            eth_hpp_json_fail(&value, "no room for a tensor's name of %zu bytes", strlen(key));
        read_entry(&value, tensor, file);
    }
    if (eth_hpp_json_failed(root))
        return;
    check_places(root, file);
    if (metadata.document != NULL)
        read_checksums(&metadata, file);
}

static enum eth_hpp_status read_head(struct eth_hpp_safetensors *file, struct eth_hpp_error *err)
{
    unsigned char length[LENGTH_BYTES] = {0};
    struct eth_hpp_json root;
    uint64_t head = 0;
    if (file->bytes < LENGTH_BYTES)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: is cut off at offset %zu: a file of tensors has 8 bytes at "
                                 "least",
                                 file->path, file->bytes);
    enum eth_hpp_status status = read_at(file, length, LENGTH_BYTES, 0, err);
    for (int i = 0; i < LENGTH_BYTES; i++)
        head |= (uint64_t)length[i] << (8 * i);
    if (status == ETH_HPP_OK && (head > HEAD_MAX || head > file->bytes - LENGTH_BYTES))
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "%s: the head's length at offset 0 is %llu, of a file of %zu "
                                   "bytes: it is cut off or no file of tensors (safetensors)",
                                   file->path, (unsigned long long)head, file->bytes);
    if (status != ETH_HPP_OK)
        return status;
    file->head_bytes = LENGTH_BYTES + (size_t)head;
    char *text = malloc(file->head_bytes);
    if (text == NULL)
        return eth_hpp_error_memory(err, file->path);
    status = read_at(file, text, file->head_bytes, 0, err);
    if (status == ETH_HPP_OK) {
        file->head_checksum = eth_hpp_checksum(0, text, file->head_bytes);
        struct eth_hpp_json_document *document =
            eth_hpp_json_parse(file->path, text + LENGTH_BYTES, (size_t)head, &root, err);
        status = document == NULL ? err->status : ETH_HPP_OK;
        if (document != NULL) {
            read_tensors(&root, file);
            status = eth_hpp_json_finish(document, err);
        }
        if (status != ETH_HPP_OK)
            eth_hpp_error_set(err, status, "%s (in its head, from offset 8 to %zu)", err->text,
                              file->head_bytes);
    }
    free(text);
    return status;
}

enum eth_hpp_status eth_hpp_safetensors_open(const char *path, struct eth_hpp_safetensors *file,
                                             struct eth_hpp_error *err)
{
    struct eth_hpp_safetensors opened = {.fd = -1};
    struct eth_hpp_error local;
    err = err != NULL ? err : &local;
    opened.path = strdup(path);
    if (opened.path == NULL)
        return eth_hpp_error_memory(err, path);
    enum eth_hpp_status status = eth_hpp_file_open(path, &opened.fd, &opened.bytes, err);
    if (status == ETH_HPP_OK)
        status = read_head(&opened, err);
    if (status == ETH_HPP_OK)
        *file = opened;
    else
        eth_hpp_safetensors_close(&opened);
    return status;
}

void eth_hpp_safetensors_close(struct eth_hpp_safetensors *file)
{
    if (file->path == NULL)
        return;
    for (size_t i = 0; i < file->count; i++)
        free(file->tensors[i].name);
    free(file->tensors);
    free(file->path);
    if (file->fd >= 0)
        close(file->fd);
    *file = (struct eth_hpp_safetensors){.fd = -1};
}

const struct eth_hpp_stored_tensor *eth_hpp_safetensors_find(const struct eth_hpp_safetensors *file,
                                                             const char *name)
{
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

/* ---- the tensors ---- */

/* An IEEE half-precision number. */
static float from_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half >> 15) << 31, exponent = half >> 10 & 0x1f;
    const uint32_t fraction = half & 0x3ff;
    uint32_t bits;
    float value;
    if (exponent == 0) /* zero or subnormal */
        return (sign != 0 ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
    if (exponent == 0x1f)
        bits = sign | 0x7f800000u | fraction << 13;
    else
        bits = sign | (exponent + 127 - 15) << 23 | fraction << 13;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static float from_bfloat(uint16_t bfloat)
{
    const uint32_t bits = (uint32_t)bfloat << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void convert(enum eth_hpp_stored_type type, const char *from, size_t bytes, float *to)
{
    if (type == ETH_HPP_STORED_F32) {
        memcpy(to, from, bytes);
        return;
    }
    for (size_t i = 0; i < bytes / sizeof(uint16_t); i++) {
        uint16_t stored;
        memcpy(&stored, from + i * sizeof(stored), sizeof(stored));
        to[i] = type == ETH_HPP_STORED_F16 ? from_half(stored) : from_bfloat(stored);
    }
}

enum eth_hpp_status eth_hpp_safetensors_read(const struct eth_hpp_safetensors *file,
                                             const struct eth_hpp_stored_tensor *tensor, float *to,
                                             struct eth_hpp_error *err)
{
    const size_t element = tensor->type == ETH_HPP_STORED_F32 ? sizeof(float) : sizeof(uint16_t);
    enum eth_hpp_status status = ETH_HPP_OK;
    uint32_t checksum = 0;
    if (to != NULL && tensor->type == ETH_HPP_STORED_OTHER)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: %s, at offset %zu, is not of type F32, F16 or BF16",
                                 file->path, tensor->name, tensor->begin);
    char *piece = malloc(PIECE_BYTES);
    if (piece == NULL)
        return eth_hpp_error_memory(err, file->path);
    for (size_t done = 0; status == ETH_HPP_OK && done < tensor->bytes;) {
        const size_t left = tensor->bytes - done, bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
        status = read_at(file, piece, bytes, tensor->begin + done, err);
        if (status != ETH_HPP_OK)
            break;
        if (file->has_checksums)
            checksum = eth_hpp_checksum(checksum, piece, bytes);
        if (to != NULL)
            convert(tensor->type, piece, bytes, to + done / element);
        done += bytes;
    }
    free(piece);
    if (status == ETH_HPP_OK && file->has_checksums && checksum != tensor->checksum)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "%s: is damaged between offset %zu and %zu: the bytes of %s do "
                                   "not have the checksum of when they were written",
                                   file->path, tensor->begin, tensor->begin + tensor->bytes,
                                   tensor->name);
    return status;
}
