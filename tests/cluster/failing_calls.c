/*
 * Preloaded into Slurm's processes: one call of the plugin's fails, or all from one on. Calls of
 * Slurm's own go through. FAULT is "CLASS NUMBER ERRNO [on]": the class of calls, which of them,
 * counted from 1 in each process, with which errno, and whether those after it fail too. A line in
 * FAULT_LOG says that it came to that.
 *
 *   memory     allocations, also those of json-c for the plugin
 *   files      what opens, makes, writes, renames or removes files and folders
 *   signals    the same calls, but ERRNO is the number of a signal that the process gets in front
 *   processes  fork and pipes; in the child, what it does before it becomes another program
 *   waits      poll, read, nanosleep, and waitpid where it waits
 *   interrupts the same calls, with a signal in front
 *   stuck      waitid: the child has not ended
 *   clock      time(): it jumps by NUMBER seconds
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static char fault_class[16], fault_on[4];
static char fault_log[256]; /* a copy: slurmstepd writes its title over the environment */
static long fault_number;
static int fault_errno, calls;

__attribute__((constructor)) static void arm(void)
{
    const char *fault = getenv("FAULT"), *log = getenv("FAULT_LOG");
    if (fault != NULL && log != NULL &&
        sscanf(fault, "%15s %ld %d %3s", fault_class, &fault_number, &fault_errno, fault_on) >= 3)
        snprintf(fault_log, sizeof(fault_log), "%s", log);
}

static bool is_plugins(const char *class, const void *caller)
{
    Dl_info from;
    return fault_log[0] != '\0' && strcmp(class, fault_class) == 0 && dladdr(caller, &from) != 0 &&
           from.dli_fname != NULL &&
           (strstr(from.dli_fname, "spank_eth_hpp") != NULL ||
            strstr(from.dli_fname, "libjson-c") != NULL);
}

static void note(void)
{
    int fd = open(fault_log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (write(fd, "fired\n", 6) != 6)
        abort();
    close(fd);
}

/* Is it this call's turn, among those of its class? */
static bool is_due(const char *class, const void *caller)
{
    if (!is_plugins(class, caller))
        return false;
    calls++;
    if (calls < fault_number || (calls > fault_number && fault_on[0] == '\0'))
        return false;
    note();
    return true;
}

static bool fails(const char *class, const void *caller)
{
    if ((strcmp(class, "files") == 0 && is_due("signals", caller)) ||
        (strcmp(class, "waits") == 0 && is_due("interrupts", caller)))
        kill(getpid(), fault_errno); /* raise would be this thread's alone */
    bool failing = is_due(class, caller);
    if (failing)
        errno = fault_errno;
    return failing;
}

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        abort();
    return found;
}

/* dlsym itself may allocate. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);

void *malloc(size_t size)
{
    return fails("memory", __builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    return fails("memory", __builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    return fails("memory", __builtin_return_address(0)) ? NULL : __libc_realloc(memory, size);
}

int asprintf(char **to, const char *format, ...)
{
    va_list args;
    int length = -1;
    if (fails("memory", __builtin_return_address(0)))
        return -1;
    va_start(args, format);
    length = vasprintf(to, format, args);
    va_end(args);
    return length;
}

static int open_next(const char *path, int flags, mode_t mode)
{
    int (*call)(const char *, int, mode_t) = next("open");
    return call(path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    va_list args;
    if (fails("files", __builtin_return_address(0)))
        return -1;
    if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    return open_next(path, flags, mode);
}

/* A call that fails with `failed` in its class, else is the next library's. */
#define FAILING(class, result, failed, name, parameters, arguments)                                \
    result name parameters                                                                         \
    {                                                                                              \
        result(*call) parameters = next(#name);                                                    \
        return fails(class, __builtin_return_address(0)) ? failed : call arguments;                \
    }

FAILING("memory", char *, NULL, strdup, (const char *text), (text))
FAILING("memory", char *, NULL, strndup, (const char *text, size_t size), (text, size))
FAILING("memory", FILE *, NULL, open_memstream, (char **text, size_t *size), (text, size))
FAILING("files", FILE *, NULL, fopen, (const char *path, const char *mode), (path, mode))
FAILING("files", char *, NULL, realpath, (const char *path, char *to), (path, to))
FAILING("files", int, -1, mkostemp, (char *name, int flags), (name, flags))
FAILING("files", ssize_t, -1, write, (int fd, const void *data, size_t size), (fd, data, size))
FAILING("files", int, -1, fsync, (int fd), (fd))
FAILING("files", int, -1, fchmod, (int fd, mode_t mode), (fd, mode))
FAILING("files", int, -1, chmod, (const char *path, mode_t mode), (path, mode))
FAILING("files", int, -1, mkdir, (const char *path, mode_t mode), (path, mode))
FAILING("files", int, -1, setxattr,
        (const char *path, const char *name, const void *value, size_t size, int flags),
        (path, name, value, size, flags))
FAILING("files", int, -1, rename, (const char *from, const char *to), (from, to))
FAILING("files", int, -1, unlink, (const char *path), (path))
FAILING("files", int, -1, unlinkat, (int folder, const char *path, int flags),
        (folder, path, flags))
FAILING("files", DIR *, NULL, opendir, (const char *path), (path))
FAILING("files", int, -1, rmdir, (const char *path), (path))
FAILING("files", int, -1, stat, (const char *path, struct stat *info), (path, info))
FAILING("files", int, -1, lstat, (const char *path, struct stat *info), (path, info))
FAILING("files", int, -1, access, (const char *path, int mode), (path, mode))
FAILING("processes", pid_t, -1, fork, (void), ())
FAILING("processes", int, -1, pipe2, (int ends[2], int flags), (ends, flags))
FAILING("processes", int, -1, dup2, (int from, int to), (from, to))
FAILING("processes", pid_t, -1, setsid, (void), ())
FAILING("processes", int, -1, setgroups, (size_t count, const gid_t *groups), (count, groups))
FAILING("processes", int, -1, setrlimit, (__rlimit_resource_t resource, const struct rlimit *limit),
        (resource, limit))
FAILING("processes", int, -1, setresgid, (gid_t a, gid_t b, gid_t c), (a, b, c))
FAILING("processes", int, -1, setresuid, (uid_t a, uid_t b, uid_t c), (a, b, c))
FAILING("waits", int, -1, poll, (struct pollfd * fds, nfds_t count, int ms), (fds, count, ms))
FAILING("waits", ssize_t, -1, read, (int fd, void *to, size_t size), (fd, to, size))

/* A call that does not wait is not interrupted. */
pid_t waitpid(pid_t pid, int *status, int options)
{
    pid_t (*call)(pid_t, int *, int) = next("waitpid");
    if ((options & WNOHANG) == 0 && fails("waits", __builtin_return_address(0)))
        return -1;
    return call(pid, status, options);
}

int waitid(idtype_t type, id_t id, siginfo_t *info, int options)
{
    int (*call)(idtype_t, id_t, siginfo_t *, int) = next("waitid");
    if (!fails("stuck", __builtin_return_address(0)))
        return call(type, id, info, options);
    info->si_pid = 0;
    return 0;
}

int nanosleep(const struct timespec *asked, struct timespec *left)
{
    int (*call)(const struct timespec *, struct timespec *) = next("nanosleep");
    return fails("waits", __builtin_return_address(0)) ? -1 : call(asked, left);
}

time_t time(time_t *to)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (is_plugins("clock", __builtin_return_address(0))) {
        note();
        now.tv_sec += fault_number;
    }
    if (to != NULL)
        *to = now.tv_sec;
    return now.tv_sec;
}
