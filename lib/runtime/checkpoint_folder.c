#include "runtime/checkpoint_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char prefix[] = "step-";

char *eth_hpp_checkpoint_path(const char *folder, int64_t step, const char *ending)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s%09lld%s", folder, prefix, (long long)step, ending) < 0)
        return NULL;
    return path;
}

char *eth_hpp_checkpoint_file(const char *folder, const char *part, int number, int count)
{
    char *path = NULL;
    int made = count == 1
                   ? asprintf(&path, "%s/%s.safetensors", folder, part)
                   : asprintf(&path, "%s/%s-%05d-of-%05d.safetensors", folder, part, number, count);
    return made < 0 ? NULL : path;
}

enum eth_hpp_status eth_hpp_checkpoint_make_folder(const char *path, struct eth_hpp_error *err)
{
    struct stat info;
    enum eth_hpp_status status = ETH_HPP_OK;
    char *made = strdup(path);
    if (made == NULL)
        return eth_hpp_error_memory(err, path);
    for (char *slash = strchr(made + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(made, 0777); /* what could not be made shows at the last one */
        *slash = '/';
    }
    if (mkdir(made, 0777) != 0 && errno != EEXIST)
        status = eth_hpp_error_set(
            err, errno == ENOSPC || errno == EIO ? ETH_HPP_ERR_IO : ETH_HPP_ERR_INPUT,
            "%s: cannot make the folder: %s", path, strerror(errno));
    else if (stat(made, &info) != 0 || !S_ISDIR(info.st_mode))
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%s: is there and not a folder", path);
    free(made);
    return status;
}

/* The step of a name like "step-000000100"; -1 for others. *ending becomes what follows. */
static int64_t step_of(const char *name, const char **ending)
{
    if (strncmp(name, prefix, sizeof(prefix) - 1) != 0)
        return -1;
    const char *digits = name + sizeof(prefix) - 1;
    size_t length = strspn(digits, "0123456789");
    if (length < 9 || length > 15)
        return -1;
    *ending = digits + length;
    return strtoll(digits, NULL, 10);
}

static int order_newest(const void *left, const void *right)
{
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a < b) - (a > b);
}

enum eth_hpp_status eth_hpp_checkpoint_list(const char *folder, int64_t **steps, size_t *count,
                                            struct eth_hpp_error *err)
{
    int64_t *found = NULL;
    size_t used = 0, room = 0;
    enum eth_hpp_status status = ETH_HPP_OK;
    DIR *directory = opendir(folder);
    if (directory == NULL)
        return eth_hpp_error_set(err, errno == EIO ? ETH_HPP_ERR_IO : ETH_HPP_ERR_INPUT,
                                 "%s: cannot open the folder: %s", folder, strerror(errno));
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        const char *ending;
        const int64_t step = step_of(entry->d_name, &ending);
        if (step < 0 || *ending != '\0')
            continue;
        if (used == room) {
            room = 2 * room + 16;
            int64_t *grown = realloc(found, room * sizeof(*grown));
            if (grown == NULL) {
                status = eth_hpp_error_memory(err, folder);
                goto out;
            }
            found = grown;
        }
        found[used++] = step;
    }
    if (used > 0)
        qsort(found, used, sizeof(*found), order_newest);
    *steps = found;
    *count = used;
    found = NULL;
out:
    free(found);
    closedir(directory);
    return status;
}

static void remove_files(int folder)
{
    DIR *directory = fdopendir(folder);
    if (directory == NULL) {
        close(folder);
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        unlinkat(folder, entry->d_name, 0); /* "." and ".." are no files */
    closedir(directory);
}

void eth_hpp_checkpoint_remove(const char *path)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (folder < 0)
        return;
    unlinkat(folder, ETH_HPP_CHECKPOINT_MANIFEST, 0);
    fsync(folder);
    remove_files(folder);
    rmdir(path);
}

void eth_hpp_checkpoint_remove_partial(const char *folder)
{
    DIR *directory = opendir(folder);
    if (directory == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        const char *ending;
        const int64_t step = step_of(entry->d_name, &ending);
        if (step < 0 || strcmp(ending, ETH_HPP_CHECKPOINT_PARTIAL) != 0)
            continue;
        char *path = eth_hpp_checkpoint_path(folder, step, ending);
        if (path != NULL)
            eth_hpp_checkpoint_remove(path);
        free(path);
    }
    closedir(directory);
}

void eth_hpp_checkpoint_prune(const char *folder, int keep)
{
    int64_t *steps;
    size_t count;
    if (keep == 0 || eth_hpp_checkpoint_list(folder, &steps, &count, NULL) != ETH_HPP_OK)
        return;
    for (size_t i = (size_t)keep; i < count; i++) {
        char *path = eth_hpp_checkpoint_path(folder, steps[i], "");
        if (path != NULL)
            eth_hpp_checkpoint_remove(path);
        free(path);
    }
    free(steps);
}

void eth_hpp_checkpoint_sync_folder(const char *path)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return;
    fsync(folder);
    close(folder);
}
