/*
 * The tensors of several safetensors files under one roof: those of a checkpoint, or of a Hugging
 * Face folder. Files are opened when the first of their tensors is asked for, so a rank opens only
 * those that hold something of its own.
 */
#ifndef ETH_HPP_RUNTIME_TENSOR_SET_H
#define ETH_HPP_RUNTIME_TENSOR_SET_H

#include "runtime/safetensors.h"

/* What is known of a file before it is opened. */
struct eth_hpp_tensor_file {
    char *name;                        /* in the folder */
    size_t bytes;                      /* 0: not known */
    uint32_t head_checksum;            /* where bytes is known */
    struct eth_hpp_safetensors opened; /* path NULL: not yet */
};

struct eth_hpp_tensor_entry {
    char *name;
    size_t file;
};

struct eth_hpp_tensor_set {
    char *folder;
    struct eth_hpp_tensor_file *files;
    size_t file_count;
    struct eth_hpp_tensor_entry *entries; /* sorted by name once it is complete */
    size_t entry_count, entry_room;
};

/* Builds a set: begin, then files and their tensors, then complete. Freed with
 * eth_hpp_tensor_set_close, in any state. Errors: MEMORY; INPUT (a name that leaves the folder; at
 * the end, a tensor that stands twice). */
enum eth_hpp_status eth_hpp_tensor_set_begin(const char *folder, struct eth_hpp_tensor_set *set,
                                             struct eth_hpp_error *err);
/* *index becomes the file's number; a name that is there already gives its own. */
enum eth_hpp_status eth_hpp_tensor_set_add_file(struct eth_hpp_tensor_set *set, const char *name,
                                                size_t *index, struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_tensor_set_add(struct eth_hpp_tensor_set *set, const char *name,
                                           size_t file, struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_tensor_set_complete(struct eth_hpp_tensor_set *set,
                                                struct eth_hpp_error *err);

/* The model of a Hugging Face folder: model.safetensors, or what model.safetensors.index.json
 * lists. Errors: INPUT, IO, MEMORY. */
enum eth_hpp_status eth_hpp_tensor_set_open_model(const char *folder,
                                                  struct eth_hpp_tensor_set *set,
                                                  struct eth_hpp_error *err);
void eth_hpp_tensor_set_close(struct eth_hpp_tensor_set *set);

/* Index of the entry of this name, or of the first after it in the order of names. */
size_t eth_hpp_tensor_set_find(const struct eth_hpp_tensor_set *set, const char *name);

/* The opened file of an entry, and the tensor in it. Errors: INPUT (the file is not what is known
 * of it, or has no such tensor), IO, MEMORY. */
enum eth_hpp_status eth_hpp_tensor_set_get(struct eth_hpp_tensor_set *set, size_t entry,
                                           const struct eth_hpp_safetensors **file,
                                           const struct eth_hpp_stored_tensor **tensor,
                                           struct eth_hpp_error *err);

#endif
