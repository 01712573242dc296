/*
 * Where checkpoints lie: DIR/step-000000100 is a whole one, a Hugging Face folder with optimizer
 * states and a manifest beside the model; ".partial" at its end says that it is being written,
 * ".damaged" that it was refused and an older one taken.
 */
#ifndef ETH_HPP_RUNTIME_CHECKPOINT_FOLDER_H
#define ETH_HPP_RUNTIME_CHECKPOINT_FOLDER_H

#include "base/error.h"

#define ETH_HPP_CHECKPOINT_PARTIAL  ".partial"
#define ETH_HPP_CHECKPOINT_DAMAGED  ".damaged"
#define ETH_HPP_CHECKPOINT_MANIFEST "checkpoint.json"

/* "DIR/step-000000100" and an ending; freed by the caller. NULL when out of memory. */
char *eth_hpp_checkpoint_path(const char *folder, int64_t step, const char *ending);

/* "FOLDER/model-00001-of-00004.safetensors", or "FOLDER/model.safetensors" where it is the only
 * one; `part` is "model" or "optimizer", `number` counts from 1. Freed by the caller; NULL when out
 * of memory. */
char *eth_hpp_checkpoint_file(const char *folder, const char *part, int number, int count);

/* Makes a folder and those above it. Errors: INPUT, IO, MEMORY. */
enum eth_hpp_status eth_hpp_checkpoint_make_folder(const char *path, struct eth_hpp_error *err);

/* The steps of the whole checkpoints in `folder`, newest first; *steps is freed by the caller.
 * Errors: INPUT (no such folder), IO, MEMORY. */
enum eth_hpp_status eth_hpp_checkpoint_list(const char *folder, int64_t **steps, size_t *count,
                                            struct eth_hpp_error *err);

/* Removes what runs that were killed left half-written. */
void eth_hpp_checkpoint_remove_partial(const char *folder);

/* Removes one checkpoint's folder, its manifest first: one that is half removed is none. */
void eth_hpp_checkpoint_remove(const char *path);

/* Of the checkpoints in `folder` the newest `keep` stay; 0: all. */
void eth_hpp_checkpoint_prune(const char *folder, int keep);

/* Makes what was done in a folder (files made, renamed) durable. */
void eth_hpp_checkpoint_sync_folder(const char *path);

#endif
