/* What the program finds: its plan, its environment. */
#include "launcher/launch.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"

enum { PATH_LENGTH = 4096, HOST_LENGTH = 256, KEPT_S = 3600 };

static bool is_executable(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

static bool on_search_path(const char *program)
{
    const char *search = getenv("PATH");
    char path[PATH_LENGTH];
    for (const char *folder = search != NULL ? search : "/bin:/usr/bin"; folder != NULL;) {
        size_t length = strcspn(folder, ":");
        snprintf(path, sizeof(path), "%.*s/%s", (int)length, length > 0 ? folder : ".", program);
        if (length == 0)
            snprintf(path, sizeof(path), "./%s", program);
        if (is_executable(path))
            return true;
        folder = folder[length] == ':' ? folder + length + 1 : NULL;
    }
    return false;
}

enum eth_hpp_status eth_hpp_launch_program_check(const char *program, struct eth_hpp_error *err)
{
    bool path = strchr(program, '/') != NULL;
    if (path ? is_executable(program) : on_search_path(program))
        return ETH_HPP_OK;
    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%.512s: %s", program,
                             path ? "there is no such program, or it cannot be executed"
                                  : "there is no such program on the PATH");
}

/* Makes the folder, or takes it where it is this user's and nobody else can write into it. */
static enum eth_hpp_status own_folder(const char *path, struct eth_hpp_error *err)
{
    struct stat info;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "%.512s: cannot make the folder: %s", path,
                                 strerror(errno));
    if (lstat(path, &info) != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "%.512s: cannot stat: %s", path,
                                 strerror(errno));
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 022) != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%.512s: is not a folder of your own that nobody else can write: "
                                 "remove it, or set TMPDIR",
                                 path);
    return ETH_HPP_OK;
}

static const char *environment_or(const char *name, const char *fallback)
{
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? text : fallback;
}

/* The program has its launcher's process id, so a plan is in use while that process lives. The host
 * is in the name, since hosts may share the folder; the job, since containers may share process
 * ids. */
static void plan_prefix(char *prefix, size_t size)
{
    char host[HOST_LENGTH] = "";
    gethostname(host, sizeof(host) - 1);
    snprintf(prefix, size, "plan-%s-", host);
}

/* Of this host, old, and of a process that is gone? A young one may be another container's. */
static bool has_ended(const char *folder, const char *name, const char *prefix, char *path,
                      size_t size)
{
    struct stat info;
    char *end;
    const char *number = strrchr(name, '-');
    if (strncmp(name, prefix, strlen(prefix)) != 0)
        return false;
    long pid = strtol(number + 1, &end, 10);
    snprintf(path, size, "%s/%s", folder, name);
    return strcmp(end, ".json") == 0 && pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH &&
           lstat(path, &info) == 0 && time(NULL) - info.st_mtime > KEPT_S;
}

static void remove_ended(const char *folder, const char *prefix)
{
    char path[PATH_LENGTH];
    DIR *files = opendir(folder);
    if (files == NULL)
        return; /* what cannot be cleaned up harms nothing */
    for (const struct dirent *file; (file = readdir(files)) != NULL;)
        if (has_ended(folder, file->d_name, prefix, path, sizeof(path)))
            unlink(path);
    closedir(files);
}

enum eth_hpp_status eth_hpp_launch_plan_leave(const char *text, char *path, size_t size,
                                              struct eth_hpp_error *err)
{
    char folder[PATH_LENGTH / 2], prefix[HOST_LENGTH + 8];
    snprintf(folder, sizeof(folder), "%s/eth-hpp-%u", environment_or("TMPDIR", "/tmp"),
             (unsigned)geteuid());
    enum eth_hpp_status status = own_folder(folder, err);
    if (status != ETH_HPP_OK)
        return status;
    plan_prefix(prefix, sizeof(prefix));
    remove_ended(folder, prefix);
    int length = snprintf(path, size, "%s/%s%s-%ld.json", folder, prefix,
                          environment_or("SLURM_JOB_ID", "local"), (long)getpid());
    if (length < 0 || (size_t)length >= size)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%.512s: the path is too long", folder);
    return eth_hpp_file_write(path, text, strlen(text), 0600, err);
}

enum eth_hpp_status eth_hpp_launch_port_find(int *port, struct eth_hpp_error *err)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool found = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
                 getsockname(fd, (struct sockaddr *)&address, &length) == 0;
    int cause = errno;
    if (fd >= 0)
        close(fd);
    if (!found)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "cannot find a free TCP port: %s",
                                 strerror(cause));
    *port = ntohs(address.sin_port);
    return ETH_HPP_OK;
}

/* ---- the environment ---- */

static void set(bool *failed, const char *name, const char *format, ...) ETH_HPP_PRINTF(3, 4);
static void set(bool *failed, const char *name, const char *format, ...)
{
    char text[PATH_LENGTH];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    *failed = setenv(name, text, 1) != 0 || *failed;
}

enum eth_hpp_status eth_hpp_launch_environment(const struct eth_hpp_bootstrap_place *place,
                                               const struct eth_hpp_launch_rank *ranks,
                                               const struct eth_hpp_launch_job *job,
                                               const char *plan_path, int port,
                                               struct eth_hpp_error *err)
{
    const struct eth_hpp_launch_rank *own = &ranks[place->rank];
    char device[ETH_HPP_LAUNCH_DEVICE_MAX];
    bool failed = false;
    eth_hpp_launch_device(own, device);
    set(&failed, "ETH_HPP_DEVICE", "%s", device);
    set(&failed, "RANK", "%d", place->rank);
    set(&failed, "WORLD_SIZE", "%d", place->size);
    set(&failed, "LOCAL_RANK", "%d", place->local_rank);
    set(&failed, "MASTER_ADDR", "%s", ranks[0].host);
    set(&failed, "MASTER_PORT", "%d", port);
    set(&failed, "ETH_HPP_PLAN_FILE", "%s", plan_path);
    set(&failed, "ETH_HPP_MODEL", "%s", job->model_argument);
    set(&failed, "ETH_HPP_NODE", "%s", own->node);
    set(&failed, "ETH_HPP_GPU", "%d", own->gpu.index);
    if (own->time_scale > 0)
        set(&failed, "ETH_HPP_EMULATION", "%s:%.17g:%.17g", own->gpu.device, own->speed,
            own->time_scale);
    else
        failed = unsetenv("ETH_HPP_EMULATION") != 0 || failed;
    return failed ? eth_hpp_error_memory(err, "the environment") : ETH_HPP_OK;
}
