#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/json.h"
#include "runtime/safetensors.h"

enum { CHECKSUM_WIDTH = 9, LENGTH_BYTES = 8, ALIGNMENT = 8 }; /* eight digits and a space */
static const char checksums_key[] = "\"crc32c\":\"";

/* {"format":"pt","crc32c":"00000000 00000000 "}; transformers wants the first. */
static struct json_object *make_metadata(size_t count)
{
    struct json_object *metadata = json_object_new_object();
    char *room = malloc(count * CHECKSUM_WIDTH + 1);
    if (room != NULL) {
        for (size_t i = 0; i < count; i++)
            memcpy(room + i * CHECKSUM_WIDTH, "00000000 ", CHECKSUM_WIDTH);
        eth_hpp_json_put(&metadata, "format", json_object_new_string("pt"));
        eth_hpp_json_put(&metadata, "crc32c",
                         json_object_new_string_len(room, (int)(count * CHECKSUM_WIDTH)));
    } else {
        json_object_put(metadata);
        metadata = NULL;
    }
    free(room);
    return metadata;
}

static struct json_object *make_entry(const struct eth_hpp_stored_tensor *tensor, size_t begin)
{
    struct json_object *entry = json_object_new_object();
    struct json_object *shape = json_object_new_array(), *offsets = json_object_new_array();
    for (int d = 0; d < tensor->dimensions; d++)
        eth_hpp_json_append(&shape, json_object_new_int64((int64_t)tensor->shape[d]));
    eth_hpp_json_append(&offsets, json_object_new_int64((int64_t)begin));
    eth_hpp_json_append(&offsets,
                        json_object_new_int64((int64_t)(begin + tensor->count * sizeof(float))));
    eth_hpp_json_put(&entry, "dtype", json_object_new_string("F32"));
    eth_hpp_json_put(&entry, "shape", shape);
    eth_hpp_json_put(&entry, "data_offsets", offsets);
    return entry;
}

static struct json_object *make_head(const struct eth_hpp_stored_tensor *tensors, size_t count)
{
    struct json_object *head = json_object_new_object();
    size_t begin = 0;
    eth_hpp_json_put(&head, "__metadata__", make_metadata(count));
    for (size_t i = 0; i < count; i++) {
        eth_hpp_json_put(&head, tensors[i].name, make_entry(&tensors[i], begin));
        begin += tensors[i].count * sizeof(float);
    }
    return head;
}

enum eth_hpp_status eth_hpp_safetensors_image_create(const struct eth_hpp_stored_tensor *tensors,
                                                     size_t count,
                                                     struct eth_hpp_safetensors_image *image,
                                                     struct eth_hpp_error *err)
{
    struct eth_hpp_safetensors_image made = {.count = count};
    enum eth_hpp_status status = ETH_HPP_OK;
    struct json_object *head = make_head(tensors, count);
    const char *text = head == NULL
                           ? NULL
                           : json_object_to_json_string_ext(
                                 head, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
    made.begins = malloc((count + 1) * sizeof(*made.begins));
    if (text == NULL || made.begins == NULL) {
        status = eth_hpp_error_memory(err, "the head of a file of tensors");
        goto out;
    }
    const size_t used = strlen(text);
    const size_t padded = (used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    made.head_bytes = made.size = LENGTH_BYTES + padded;
    for (size_t i = 0; i < count; i++) {
        made.begins[i] = made.size;
        made.size += tensors[i].count * sizeof(float);
    }
    made.begins[count] = made.size;
    made.bytes = malloc(made.size);
    if (made.bytes == NULL) {
        status = eth_hpp_error_set(err, ETH_HPP_ERR_MEMORY,
                                   "out of memory for a checkpoint's copy of %zu bytes", made.size);
        goto out;
    }
    for (int i = 0; i < LENGTH_BYTES; i++)
        made.bytes[i] = (char)(padded >> (8 * i) & 0xff);
    memcpy(made.bytes + LENGTH_BYTES, text, used);
    memset(made.bytes + LENGTH_BYTES + used, ' ', padded - used);
    made.checksums = made.bytes + LENGTH_BYTES + (strstr(text, checksums_key) - text) +
                     sizeof(checksums_key) - 1;
    *image = made;
out:
    json_object_put(head);
    if (status != ETH_HPP_OK)
        eth_hpp_safetensors_image_free(&made);
    return status;
}

void eth_hpp_safetensors_image_seal(struct eth_hpp_safetensors_image *image)
{
    for (size_t i = 0; i < image->count; i++) {
        char text[CHECKSUM_WIDTH];
        const uint32_t checksum = eth_hpp_checksum(0, image->bytes + image->begins[i],
                                                   image->begins[i + 1] - image->begins[i]);
        snprintf(text, sizeof(text), "%08x", checksum);
        memcpy(image->checksums + i * CHECKSUM_WIDTH, text, CHECKSUM_WIDTH - 1);
    }
}

void eth_hpp_safetensors_image_free(struct eth_hpp_safetensors_image *image)
{
    free(image->bytes);
    free(image->begins);
    *image = (struct eth_hpp_safetensors_image){0};
}
