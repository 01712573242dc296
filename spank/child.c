/* What root's processes leave to a child without privileges: drivers may hang or crash, this
 * process may not. */
#include "spank/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    NOBODY =
        65534, /* the kernel's overflow id: looking a name up could hang in a directory service */
    OUTPUT_LIMIT = 1 << 20,
    COMPLAINT_BYTES = 200
};

#define REAP_S 1.0
/* What a driver's library takes is some tens of MB, and address space without limit, which is none
 * of this. */
#define MEMORY_LIMIT ((rlim_t)1 << 30)

struct output {
    int fd; /* -1: closed */
    char *text;
    size_t size, limit;
};

struct child {
    pid_t pid;
    struct output out, complaint; /* its standard output and error */
    char complaint_text[COMPLAINT_BYTES + 1];
    bool finished, reaped; /* both streams ended in time; the process is gone */
    int status;            /* as from waitpid, once reaped */
};

/* A daemon may have more open than the usual limit would let it. */
void eth_hpp_child_close_from(int first)
{
    struct rlimit limit;
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)first, ~0U, 0) == 0)
        return;
#endif
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        _exit(126);
    for (rlim_t fd = (rlim_t)first; fd < limit.rlim_max; fd++)
        close((int)fd);
}

void eth_hpp_child_exec(uid_t user, gid_t group, pid_t parent, int output, int complaint,
                        char *const argv[], char *const environment[])
{
    sigset_t none;
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0 ||
        dup2(output >= 0 ? output : null, STDOUT_FILENO) < 0 ||
        dup2(complaint >= 0 ? complaint : null, STDERR_FILENO) < 0)
        _exit(127);
    eth_hpp_child_close_from(STDERR_FILENO + 1);
    sigemptyset(&none);
    /* setsid: a group of its own, so that what the child starts can be ended with it. */
    if (setsid() < 0 || sigprocmask(SIG_SETMASK, &none, NULL) != 0 || setgroups(0, NULL) != 0 ||
        setresgid(group, group, group) != 0 || setresuid(user, user, user) != 0 ||
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || chdir("/") != 0)
        _exit(126);
    /* Only now, since a change of ids takes it back; the parent may have been killed before. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(126);
    execve(argv[0], argv, environment);
    _exit(127);
}

static void close_pair(int pair[2])
{
    close(pair[0]);
    close(pair[1]);
}

static enum eth_hpp_status start(char **argv, struct child *child, struct eth_hpp_error *err)
{
    static char *const environment[] = {(char *)"PATH=/usr/bin:/bin", (char *)"LC_ALL=C", NULL};
    int first[2], second[2];
    if (pipe2(first, O_CLOEXEC) != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "cannot make a pipe: %m");
    if (pipe2(second, O_CLOEXEC) != 0) {
        close_pair(first);
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "cannot make a pipe: %m");
    }
    const pid_t parent = getpid();
    child->pid = fork();
    if (child->pid < 0) {
        close_pair(first);
        close_pair(second);
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "cannot start a process: %m");
    }
    if (child->pid == 0) {
        const struct rlimit memory = {MEMORY_LIMIT, MEMORY_LIMIT};
        if (setrlimit(RLIMIT_DATA, &memory) != 0)
            _exit(126);
        eth_hpp_child_exec(NOBODY, NOBODY, parent, first[1], second[1], argv, environment);
    }
    close(first[1]);
    close(second[1]);
    child->out.fd = first[0];
    child->complaint.fd = second[0];
    return ETH_HPP_OK;
}

/* Reads once; what is over the limit is read and dropped. At the end of the stream closes it. */
static void read_some(struct output *output)
{
    char surplus[4096];
    bool full = output->size >= output->limit;
    char *to = full ? surplus : output->text + output->size;
    ssize_t n = read(output->fd, to, full ? sizeof(surplus) : output->limit - output->size);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0) {
        close(output->fd);
        output->fd = -1;
    } else if (!full) {
        output->size += (size_t)n;
    }
}

/* Reads both streams to their end, or until the time is over. */
static void read_until(struct child *child, double deadline)
{
    while (child->out.fd >= 0 || child->complaint.fd >= 0) {
        struct pollfd streams[2] = {{.fd = child->out.fd, .events = POLLIN},
                                    {.fd = child->complaint.fd, .events = POLLIN}};
        double left = deadline - eth_hpp_clock_now();
        if (left <= 0 || (poll(streams, 2, (int)(left * 1000) + 1) < 0 && errno != EINTR))
            return;
        if (streams[0].revents != 0)
            read_some(&child->out);
        if (streams[1].revents != 0)
            read_some(&child->complaint);
    }
    child->finished = true;
}

/* Asks again and again, without ever waiting blocking, until the process has ended or the time is
 * over. */
static bool has_ended(pid_t pid, double deadline)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    for (;;) {
        siginfo_t end = {0};
        int got = waitid(P_PID, (id_t)pid, &end, WEXITED | WNOHANG | WNOWAIT);
        if (got == 0 && end.si_pid == pid)
            return true;
        if ((got < 0 && errno != EINTR) || eth_hpp_clock_now() >= deadline)
            return false;
        nanosleep(&pause, NULL);
    }
}

bool eth_hpp_child_collect(pid_t pid, double grace_s, int *status)
{
    has_ended(pid, eth_hpp_clock_now() + grace_s);
    /* Its number is nobody else's until it is collected, and its group's not even then. */
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    return has_ended(pid, eth_hpp_clock_now() + REAP_S) && waitpid(pid, status, WNOHANG) == pid;
}

/* Whether what it printed can be taken. */
static enum eth_hpp_status judge(struct child *child, const char *launcher, double timeout_s,
                                 struct eth_hpp_error *err)
{
    char *complaint = child->complaint_text;
    if (!child->finished || !child->reaped)
        return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT,
                                 "taking the inventory took longer than %g s%s", timeout_s,
                                 child->reaped ? "" : " and cannot be ended");
    if (child->out.size >= OUTPUT_LIMIT)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "the inventory is larger than %d bytes",
                                 OUTPUT_LIMIT);
    if (WIFSIGNALED(child->status))
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "%.200s inventory was ended by signal %d",
                                 launcher, WTERMSIG(child->status));
    if (WEXITSTATUS(child->status) == 0)
        return ETH_HPP_OK;
    complaint[strcspn(complaint, "\n")] = '\0';
    if (complaint[0] != '\0')
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "%s", complaint);
    return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "%.200s inventory ended with %d%s", launcher,
                             WEXITSTATUS(child->status),
                             WEXITSTATUS(child->status) == 127 ? ": nobody cannot run it" : "");
}

static void close_stream(struct output *output)
{
    if (output->fd >= 0)
        close(output->fd);
}

enum eth_hpp_status eth_hpp_child_inventory(const char *launcher, const char *site_file,
                                            const char *node, double timeout_s, char **text,
                                            size_t *size, pid_t *stuck_pid,
                                            struct eth_hpp_error *err)
{
    char *argv[] = {(char *)launcher,
                    (char *)"inventory",
                    (char *)"--output",
                    (char *)"-",
                    (char *)"--node",
                    (char *)node,
                    (char *)(site_file != NULL ? "--site-file" : NULL),
                    (char *)site_file,
                    NULL};
    struct child child = {.out = {.text = malloc(OUTPUT_LIMIT + 1), .limit = OUTPUT_LIMIT},
                          .complaint = {.limit = COMPLAINT_BYTES}};
    double deadline = eth_hpp_clock_now() + timeout_s;
    child.complaint.text = child.complaint_text;
    if (child.out.text == NULL)
        return eth_hpp_error_memory(err, "the inventory");
    enum eth_hpp_status status = start(argv, &child, err);
    if (status != ETH_HPP_OK)
        goto fail;
    read_until(&child, deadline);
    /* One that has closed its streams is about to end by itself. */
    child.reaped = eth_hpp_child_collect(child.pid, child.finished ? REAP_S : 0, &child.status);
    close_stream(&child.out);
    close_stream(&child.complaint);
    if (!child.reaped)
        *stuck_pid = child.pid;
    status = judge(&child, launcher, timeout_s, err);
    if (status != ETH_HPP_OK)
        goto fail;
    child.out.text[child.out.size] = '\0';
    *text = child.out.text;
    *size = child.out.size;
    return ETH_HPP_OK;
fail:
    free(child.out.text);
    return status;
}
