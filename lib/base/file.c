#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum eth_hpp_status system_error(struct eth_hpp_error *err, const char *path,
                                        const char *doing)
{
    int cause = errno;
    bool users = cause == ENOENT || cause == EACCES || cause == ENOTDIR || cause == EISDIR;
    return eth_hpp_error_set(err, users ? ETH_HPP_ERR_INPUT : ETH_HPP_ERR_IO, "%s: cannot %s: %s",
                             path, doing, strerror(cause));
}

/* Reads until `size` bytes or the end; returns the bytes read, or -1. */
static ssize_t read_full(int fd, char *to, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t n = read(fd, to + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

enum eth_hpp_status eth_hpp_file_read(const char *path, size_t limit, char **text, size_t *size,
                                      struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    char *buffer = NULL;
    struct stat info;
    /* O_NONBLOCK: a FIFO in place of a file must not hang the program. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return system_error(err, path, "open");
    if (fstat(fd, &info) != 0) {
        status = system_error(err, path, "stat");
        goto out;
    }
    if (!S_ISREG(info.st_mode)) {
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%s: is not a regular file", path);
        goto out;
    }
    if ((size_t)info.st_size > limit) {
        status =
            eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%s: has %lld bytes, at most %zu are read",
                              path, (long long)info.st_size, limit);
        goto out;
    }
    buffer = malloc((size_t)info.st_size + 1);
    if (buffer == NULL) {
        status = eth_hpp_error_memory(err, path);
        goto out;
    }
    ssize_t got = read_full(fd, buffer, (size_t)info.st_size);
    if (got < 0) {
        status = system_error(err, path, "read");
        goto out;
    }
    buffer[got] = '\0';
    *text = buffer;
    *size = (size_t)got;
    buffer = NULL;
out:
    free(buffer);
    close(fd);
    return status;
}

static int write_full(int fd, const char *from, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, from, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        from += n;
        size -= (size_t)n;
    }
    return 0;
}

/* Makes the rename itself durable. A folder that cannot be opened for reading still holds the file.
 */
static void sync_folder(const char *path)
{
    char *folder = strdup(path);
    if (folder == NULL)
        return;
    char *slash = strrchr(folder, '/');
    if (slash == folder)
        slash++;
    if (slash != NULL)
        *slash = '\0';
    int fd = open(slash != NULL ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

enum eth_hpp_status eth_hpp_file_write(const char *path, const void *data, size_t size, mode_t mode,
                                       struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    char *temporary = NULL;
    if (asprintf(&temporary, "%s.XXXXXX", path) < 0)
        return eth_hpp_error_memory(err, path);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        status = system_error(err, path, "create");
        goto out;
    }
    int failed = write_full(fd, data, size) != 0 || fchmod(fd, mode) != 0 || fsync(fd) != 0;
    if (failed)
        status = system_error(err, path, "write");
    if (close(fd) != 0 && !failed) {
        failed = 1;
        status = system_error(err, path, "write");
    }
    if (!failed && rename(temporary, path) != 0) {
        failed = 1;
        status = system_error(err, path, "replace");
    }
    if (failed)
        unlink(temporary);
    else
        sync_folder(path);
out:
    free(temporary);
    return status;
}
