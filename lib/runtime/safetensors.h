/*
 * Files of tensors in Hugging Face's safetensors format: 8 bytes of length (little-endian), that
 * many bytes of JSON that name each tensor's type, shape and place, then the tensors' bytes without
 * gaps (https://huggingface.co/docs/safetensors).
 *
 * Files that are written here also have CRC-32C checksums of the tensors in the JSON's metadata, in
 * the order of the tensors in the file: damage is found where it is. Other files are read without.
 */
#ifndef ETH_HPP_RUNTIME_SAFETENSORS_H
#define ETH_HPP_RUNTIME_SAFETENSORS_H

#include "base/error.h"

enum { ETH_HPP_SHAPE_MAX = 4 };

enum eth_hpp_stored_type {
    ETH_HPP_STORED_F32,
    ETH_HPP_STORED_F16,
    ETH_HPP_STORED_BF16,
    ETH_HPP_STORED_OTHER /* masks and the like: not to be read as numbers */
};

struct eth_hpp_stored_tensor {
    char *name;
    enum eth_hpp_stored_type type;
    size_t shape[ETH_HPP_SHAPE_MAX];
    int dimensions;
    size_t count;        /* elements */
    size_t begin, bytes; /* in the file, which begins at 0 */
    uint32_t checksum;   /* where the file has them */
};

/* ---- reading ---- */

struct eth_hpp_safetensors {
    char *path;
    int fd;
    size_t bytes, head_bytes; /* of the file; before the first tensor */
    uint32_t head_checksum;   /* of the head's bytes */
    bool has_checksums;
    struct eth_hpp_stored_tensor *tensors; /* in the order of their bytes */
    size_t count;
};

/* Reads the head and checks that it describes the file: its tensors fill it without gaps. Freed
 * with eth_hpp_safetensors_close. Errors: INPUT (with file and offset), IO, MEMORY. */
enum eth_hpp_status eth_hpp_safetensors_open(const char *path, struct eth_hpp_safetensors *file,
                                             struct eth_hpp_error *err);
void eth_hpp_safetensors_close(struct eth_hpp_safetensors *file);

/* NULL where there is none of this name. */
const struct eth_hpp_stored_tensor *eth_hpp_safetensors_find(const struct eth_hpp_safetensors *file,
                                                             const char *name);

/* Reads a tensor as fp32, to tensor->count floats; `to` NULL: only checks its bytes. Errors: INPUT
 * (damaged, with the offset; a type that is no number), IO, MEMORY. */
enum eth_hpp_status eth_hpp_safetensors_read(const struct eth_hpp_safetensors *file,
                                             const struct eth_hpp_stored_tensor *tensor, float *to,
                                             struct eth_hpp_error *err);

/* ---- writing ---- */

/* A whole file in memory. Its tensors' places are known from the start, so that they can be filled
 * from the device without another copy. */
struct eth_hpp_safetensors_image {
    char *bytes;
    size_t size, head_bytes;
    size_t *begins; /* [count + 1] where each tensor begins; the end of the file */
    size_t count;
    char *checksums; /* in bytes: the text of the checksums */
};

/* Lays out fp32 tensors in the order given (name, shape, dimensions and count are read). Freed with
 * eth_hpp_safetensors_image_free. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_safetensors_image_create(const struct eth_hpp_stored_tensor *tensors,
                                                     size_t count,
                                                     struct eth_hpp_safetensors_image *image,
                                                     struct eth_hpp_error *err);
/* Writes the checksums of what the tensors hold now into the image. */
void eth_hpp_safetensors_image_seal(struct eth_hpp_safetensors_image *image);
void eth_hpp_safetensors_image_free(struct eth_hpp_safetensors_image *image);

#endif
