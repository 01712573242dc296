/* Files read whole within a limit, and written whole or not at all. */
#ifndef ETH_HPP_BASE_FILE_H
#define ETH_HPP_BASE_FILE_H

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

/* Reads a regular file of at most `limit` bytes. *text is NUL-terminated, *size excludes the NUL;
 * the caller frees it. */
enum eth_hpp_status eth_hpp_file_read(const char *path, size_t limit, char **text, size_t *size,
                                      struct eth_hpp_error *err);

/* Writes to a temporary file beside `path`, syncs it and renames it over `path` (then syncs the
 * folder): a reader sees the old file or the new one, whatever happens in between. On failure the
 * temporary file is gone. */
enum eth_hpp_status eth_hpp_file_write(const char *path, const void *data, size_t size, mode_t mode,
                                       struct eth_hpp_error *err);

#endif
