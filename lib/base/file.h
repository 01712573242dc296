/* Files read whole within a limit, and written whole or not at all. */
#ifndef ETH_HPP_BASE_FILE_H
#define ETH_HPP_BASE_FILE_H

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

/* Opens a regular file for reading; never waits, whatever stands at `path`. The caller closes
 * *opened; *size is its bytes. */
enum eth_hpp_status eth_hpp_file_open(const char *path, int *opened, size_t *size,
                                      struct eth_hpp_error *err);

/* Reads a regular file of at most `limit` bytes. *text is NUL-terminated, *size excludes the NUL;
 * the caller frees it. */
enum eth_hpp_status eth_hpp_file_read(const char *path, size_t limit, char **text, size_t *size,
                                      struct eth_hpp_error *err);

/* The same of a file that eth_hpp_file_open opened and found to have `bytes`; `path` stands in
 * messages, and the caller closes fd. */
enum eth_hpp_status eth_hpp_file_read_opened(int fd, const char *path, size_t bytes, size_t limit,
                                             char **text, size_t *size, struct eth_hpp_error *err);

/* Reads `bytes` at an offset of an opened file; `path` stands in messages. Errors: INPUT where the
 * file ends before, by the offset of its end; IO. */
enum eth_hpp_status eth_hpp_file_read_at(int fd, const char *path, void *to, size_t bytes,
                                         size_t offset, struct eth_hpp_error *err);

/* Writes to a temporary file beside `path`, syncs it and renames it over `path` (then syncs the
 * folder): a reader sees the old file or the new one, whatever happens in between. A symbolic link
 * stays, and the file it leads to is replaced; what is there and no regular file is refused. On
 * failure, and on SIGHUP, SIGINT and SIGTERM, the temporary file is gone. */
enum eth_hpp_status eth_hpp_file_write(const char *path, const void *data, size_t size, mode_t mode,
                                       struct eth_hpp_error *err);

/* Writes a text where a user asked for it: to a file as above, or to standard output for "-". */
enum eth_hpp_status eth_hpp_file_output(const char *path, const char *text,
                                        struct eth_hpp_error *err);

#endif
