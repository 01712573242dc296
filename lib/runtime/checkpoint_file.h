/* The manifest of a checkpoint (`eth-hpp-checkpoint`): what was trained how far, and which files
 * hold it. Written last, so a folder without one is no checkpoint. */
#ifndef ETH_HPP_RUNTIME_CHECKPOINT_FILE_H
#define ETH_HPP_RUNTIME_CHECKPOINT_FILE_H

#include "runtime/tensor_set.h"

/* An optimizer's state of a tensor, or of a range of its elements, is stored under
 * "TENSOR.first_moment[FIRST:END]": owners may each hold a range. */
#define ETH_HPP_FIRST_MOMENT  "first_moment"
#define ETH_HPP_SECOND_MOMENT "second_moment"
/* The name of such a part; freed by the caller, NULL when out of memory. */
char *eth_hpp_checkpoint_part_name(const char *tensor, const char *moment, size_t first,
                                   size_t end);

/* Makes the partial folder a checkpoint: `count` files each of model and optimizer are there. Adds
 * config.json (`config`: its text, or NULL), the index of the model's files and the manifest, and
 * gives the folder its final name. Then of the checkpoints in `folder` the newest `keep` stay (0:
 * all). Errors: INPUT, IO, MEMORY. */
enum eth_hpp_status eth_hpp_checkpoint_publish(const char *folder,
                                               const struct eth_hpp_checkpoint *state,
                                               const char *config, int count, int keep,
                                               struct eth_hpp_error *err);

/* Reads the manifest in a checkpoint's folder; the set has all its tensors, of model and optimizer.
 * Freed with eth_hpp_tensor_set_close. Errors: INPUT (no checkpoint, damaged), IO, MEMORY. */
enum eth_hpp_status eth_hpp_checkpoint_read(const char *path, struct eth_hpp_checkpoint *state,
                                            struct eth_hpp_tensor_set *set,
                                            struct eth_hpp_error *err);

/* Reads every byte and holds it against its checksum: the set's tensors, and config.json and index
 * as the manifest knows them. Errors: INPUT (the first damage, with file and offset), IO, MEMORY.
 */
enum eth_hpp_status eth_hpp_checkpoint_verify(const char *path, struct eth_hpp_error *err);

#endif
