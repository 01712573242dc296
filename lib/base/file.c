#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum eth_hpp_status system_error(struct eth_hpp_error *err, const char *path,
                                        const char *doing)
{
    int cause = errno;
    bool users = cause == ENOENT || cause == EACCES || cause == ENOTDIR || cause == EISDIR ||
                 cause == EROFS || cause == ENAMETOOLONG || cause == ELOOP;
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

enum eth_hpp_status eth_hpp_file_open(const char *path, int *opened, size_t *size,
                                      struct eth_hpp_error *err)
{
    struct stat info;
    enum eth_hpp_status status = ETH_HPP_OK;
    /* O_NONBLOCK: a FIFO in place of a file must not hang the program. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return system_error(err, path, "open");
    if (fstat(fd, &info) != 0)
        status = system_error(err, path, "stat");
    else if (!S_ISREG(info.st_mode))
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%s: is not a regular file", path);
    if (status != ETH_HPP_OK) {
        close(fd);
        return status;
    }
    *opened = fd;
    *size = (size_t)info.st_size;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_file_read_opened(int fd, const char *path, size_t bytes, size_t limit,
                                             char **text, size_t *size, struct eth_hpp_error *err)
{
    if (bytes > limit)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%s: has %zu bytes, at most %zu are read",
                                 path, bytes, limit);
    char *buffer = malloc(bytes + 1);
    if (buffer == NULL)
        return eth_hpp_error_memory(err, path);
    ssize_t got = read_full(fd, buffer, bytes);
    if (got < 0) {
        enum eth_hpp_status status = system_error(err, path, "read");
        free(buffer);
        return status;
    }
    buffer[got] = '\0';
    *text = buffer;
    *size = (size_t)got;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_file_read(const char *path, size_t limit, char **text, size_t *size,
                                      struct eth_hpp_error *err)
{
    int fd;
    size_t bytes;
    enum eth_hpp_status status = eth_hpp_file_open(path, &fd, &bytes, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_file_read_opened(fd, path, bytes, limit, text, size, err);
    close(fd);
    return status;
}

enum eth_hpp_status eth_hpp_file_read_at(int fd, const char *path, void *to, size_t bytes,
                                         size_t offset, struct eth_hpp_error *err)
{
    for (char *at = to; bytes > 0;) {
        ssize_t n = pread(fd, at, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "%s: cannot read at offset %zu: %s", path,
                                     offset, strerror(errno));
        if (n == 0)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%s: is cut off at offset %zu", path,
                                     offset);
        at += n;
        offset += (size_t)n;
        bytes -= (size_t)n;
    }
    return ETH_HPP_OK;
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

/* What a rename is to replace: the file that symbolic links lead to. Never a device or a FIFO: root
 * would lose /dev/null. */
static enum eth_hpp_status find_target(const char *path, char **target, struct eth_hpp_error *err)
{
    struct stat info;
    char *real = realpath(path, NULL);
    if (real == NULL && errno != ENOENT)
        return system_error(err, path, "create");
    if (real != NULL && stat(real, &info) == 0 && !S_ISREG(info.st_mode)) {
        free(real);
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: is there and not a regular file: give the name of a file",
                                 path);
    }
    *target = real != NULL ? real : strdup(path);
    return *target != NULL ? ETH_HPP_OK : eth_hpp_error_memory(err, path);
}

/* Writes to a temporary file beside `target` and renames it; `path` is what messages call it. */
static enum eth_hpp_status replace(const char *path, const char *target, const void *data,
                                   size_t size, mode_t mode, struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    char *temporary = NULL;
    if (asprintf(&temporary, "%s.XXXXXX", target) < 0)
        return eth_hpp_error_memory(err, path);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        status = system_error(err, path, "create");
        goto out;
    }
    if (write_full(fd, data, size) != 0 || fchmod(fd, mode) != 0 || fsync(fd) != 0)
        status = system_error(err, path, "write");
    if (close(fd) != 0 && status == ETH_HPP_OK)
        status = system_error(err, path, "write");
    if (status == ETH_HPP_OK && rename(temporary, target) != 0)
        status = system_error(err, path, "replace");
    if (status != ETH_HPP_OK)
        unlink(temporary);
    else
        sync_folder(target);
out:
    free(temporary);
    return status;
}

enum eth_hpp_status eth_hpp_file_write(const char *path, const void *data, size_t size, mode_t mode,
                                       struct eth_hpp_error *err)
{
    char *target;
    sigset_t ending, before;
    enum eth_hpp_status status = find_target(path, &target, err);
    if (status != ETH_HPP_OK)
        return status;
    /* A signal that ends the program waits until no temporary file would be left. */
    sigemptyset(&ending);
    sigaddset(&ending, SIGHUP);
    sigaddset(&ending, SIGINT);
    sigaddset(&ending, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ending, &before);
    status = replace(path, target, data, size, mode, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    free(target);
    return status;
}

enum eth_hpp_status eth_hpp_file_output(const char *path, const char *text,
                                        struct eth_hpp_error *err)
{
    if (strcmp(path, "-") != 0)
        return eth_hpp_file_write(path, text, strlen(text), 0644, err);
    if (fputs(text, stdout) < 0 || fflush(stdout) != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "cannot write to standard output: %s",
                                 strerror(errno));
    return ETH_HPP_OK;
}
