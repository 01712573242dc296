/* Where calibrated profiles are kept between jobs. */
#include "launcher/calibrate.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEY_LENGTH = 2048, FOLDER_LENGTH = 2048 };

/* FNV-1a, 64 bits (the IETF draft of Fowler, Noll and Vo). */
static uint64_t sum_of(const char *text)
{
    uint64_t sum = 0xcbf29ce484222325u;
    for (; *text != '\0'; text++)
        sum = (sum ^ (unsigned char)*text) * 0x100000001b3u;
    return sum;
}

static bool cache_folder(char *folder, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = -1;
    if (cache != NULL && cache[0] == '/')
        length = snprintf(folder, size, "%s/eth-hpp", cache);
    else if (home != NULL && home[0] == '/' && access(home, W_OK | X_OK) == 0)
        length = snprintf(folder, size, "%s/.cache/eth-hpp", home);
    return length > 0 && (size_t)length < size;
}

bool eth_hpp_cache_path(const struct eth_hpp_model *model, int sequence, enum eth_hpp_dtype dtype,
                        const struct eth_hpp_launch_rank *rank, char *path, size_t size)
{
    char key[KEY_LENGTH], name[128], folder[FOLDER_LENGTH];
    if (!cache_folder(folder, sizeof(folder)))
        return false;
    snprintf(key, sizeof(key), "%s|%d %d %d %d %d %d %d %d %d|%d|%d|%s|%s|%s|%s %d|%g %g|%g",
             rank->version, model->family, model->vocabulary, model->context, model->hidden,
             model->inner, model->heads, model->key_value_heads, model->head_size, model->tied,
             sequence, dtype, rank->device, rank->driver, rank->node, rank->gpu.uuid,
             rank->gpu.index, rank->speed, rank->time_scale, rank->gpu.memory_bytes);
    snprintf(name, sizeof(name), "%.40s-%s-%d-%.40s", model->name, eth_hpp_dtype_name(dtype),
             sequence, rank->device);
    for (char *p = name; *p != '\0'; p++)
        if (!isalnum((unsigned char)*p) && *p != '.' && *p != '-')
            *p = '_';
    int length =
        snprintf(path, size, "%s/%s-%016llx.json", folder, name, (unsigned long long)sum_of(key));
    return length > 0 && (size_t)length < size;
}

bool eth_hpp_cache_make_folder(const char *path)
{
    char folder[FOLDER_LENGTH + 256];
    snprintf(folder, sizeof(folder), "%s", path);
    for (char *slash = folder + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        if (mkdir(folder, 0755) != 0 && errno != EEXIST)
            return false;
        *slash = '/';
    }
    return true;
}
