/* What the program finds: its plan, its environment. */
#include "launcher/launch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_LENGTH = 4096 };

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

enum eth_hpp_status eth_hpp_launch_plan_leave(const char *text, char *path, size_t size,
                                              struct eth_hpp_error *err)
{
    const int seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    const size_t length = strlen(text);
    const int fd = memfd_create("eth-hpp-plan", MFD_ALLOW_SEALING); /* the program inherits it */
    if (fd < 0 || write(fd, text, length) != (ssize_t)length ||
        fcntl(fd, F_ADD_SEALS, seals) != 0) {
        eth_hpp_error_set(err, ETH_HPP_ERR_IO, "cannot hand the plan to the program: %s",
                          strerror(errno));
        if (fd >= 0)
            close(fd);
        return ETH_HPP_ERR_IO;
    }
    /* The program has its launcher's process id, and so is found by processes that it starts. */
    snprintf(path, size, "/proc/%ld/fd/%d", (long)getpid(), fd);
    return ETH_HPP_OK;
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
