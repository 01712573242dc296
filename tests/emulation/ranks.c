#include "emulation/ranks.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum { VALUES_MAX = 64, VALUE_BYTES = 4096 };

/* Shared by all ranks. A rank writes only to its own part, and the fence counts arrivals. */
struct board {
    int count;
    volatile int arrived; /* over all fences */
    struct {
        volatile int used, fences;
        struct {
            char key[128];
            size_t size;
            char value[VALUE_BYTES];
        } values[VALUES_MAX];
    } ranks[RANKS_MAX];
};

struct seat {
    struct board *board;
    int rank, fences;
};

static enum eth_hpp_status seat_put(void *state, const char *key, const void *value, size_t size,
                                    struct eth_hpp_error *err)
{
    struct seat *seat = state;
    int i = seat->board->ranks[seat->rank].used;
    if (i == VALUES_MAX || size > VALUE_BYTES)
        return eth_hpp_error_memory(err, "the emulated exchange");
    snprintf(seat->board->ranks[seat->rank].values[i].key, 128, "%s", key);
    memcpy(seat->board->ranks[seat->rank].values[i].value, value, size);
    seat->board->ranks[seat->rank].values[i].size = size;
    seat->board->ranks[seat->rank].used++;
    return ETH_HPP_OK;
}

static bool came(const struct seat *seat, int rank)
{
    return __atomic_load_n(&seat->board->ranks[rank].fences, __ATOMIC_SEQ_CST) >= seat->fences;
}

/* As the PMIx component does: the lowest rank that is there names who is not. */
static enum eth_hpp_status name_missing(const struct seat *seat, struct eth_hpp_error *err)
{
    int lowest = 0, missing = 0;
    while (!came(seat, lowest))
        lowest++;
    while (missing < seat->board->count - 1 && came(seat, missing))
        missing++;
    if (lowest != seat->rank)
        return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT, "%s", "");
    return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT, "rank %d on host%d did not come", missing,
                             missing / 2);
}

static enum eth_hpp_status seat_fence(void *state, double timeout_s, struct eth_hpp_error *err)
{
    struct seat *seat = state;
    double deadline = eth_hpp_clock_now() + timeout_s;
    seat->fences++;
    __atomic_store_n(&seat->board->ranks[seat->rank].fences, seat->fences, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&seat->board->arrived, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&seat->board->arrived, __ATOMIC_SEQ_CST) <
           seat->fences * seat->board->count) {
        if (eth_hpp_clock_now() > deadline)
            return name_missing(seat, err);
        usleep(200);
    }
    return ETH_HPP_OK;
}

static enum eth_hpp_status seat_get(void *state, int rank, const char *key, void **value,
                                    size_t *size, struct eth_hpp_error *err)
{
    struct seat *seat = state;
    for (int i = 0; i < seat->board->ranks[rank].used; i++) {
        if (strcmp(seat->board->ranks[rank].values[i].key, key) != 0)
            continue;
        *size = seat->board->ranks[rank].values[i].size;
        *value = malloc(*size + 1);
        memcpy(*value, seat->board->ranks[rank].values[i].value, *size);
        return ETH_HPP_OK;
    }
    return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "rank %d has not published %s", rank, key);
}

static void seat_abort(void *state, int exit_code, const char *why)
{
    (void)state;
    (void)exit_code;
    (void)why;
}

static void seat_close(void *state)
{
    free(state);
}

static const struct eth_hpp_bootstrap_ops seat_ops = {
    .name = "emulated",
    .value_max = VALUE_BYTES,
    .put = seat_put,
    .fence = seat_fence,
    .get = seat_get,
    .abort = seat_abort,
    .close = seat_close,
};

static void rank_process(struct board *board, int rank, rank_main body, void *user, FILE *log)
{
    struct eth_hpp_bootstrap_place place = {
        .rank = rank, .size = board->count, .local_rank = rank, .local_size = board->count};
    struct eth_hpp_bootstrap *bootstrap;
    struct seat *seat = calloc(1, sizeof(*seat));
    seat->board = board;
    seat->rank = rank;
    snprintf(place.host, sizeof(place.host), "host%d", rank / 2);
    dup2(fileno(log), STDERR_FILENO);
    setenv("ETH_HPP_CPU_THREADS", "1", 0); /* all ranks share this machine's cores */
    if (eth_hpp_bootstrap_create(&seat_ops, seat, &place, &bootstrap, NULL) != ETH_HPP_OK)
        _exit(98);
    int code = body(bootstrap, user);
    /* The test's own process ends, not a copy of its test runner; but leaks are to be looked for.
     */
    fclose(log);
    exit(code);
}

static int reap(pid_t pid, double deadline)
{
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (eth_hpp_clock_now() > deadline)
            kill(pid, SIGKILL);
        usleep(500);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void ranks_run(int count, rank_main body, void *user, double limit_s, struct ranks_result *result)
{
    pid_t pids[RANKS_MAX];
    FILE *log = tmpfile();
    double start = eth_hpp_clock_now();
    struct board *board =
        mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    board->count = count;
    fflush(NULL);
    for (int rank = 0; rank < count; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0)
            rank_process(board, rank, body, user, log);
    }
    for (int rank = 0; rank < count; rank++)
        result->exit_code[rank] = reap(pids[rank], start + limit_s);
    result->seconds = eth_hpp_clock_now() - start;
    rewind(log);
    result->log[fread(result->log, 1, sizeof(result->log) - 1, log)] = '\0';
    fclose(log);
    munmap(board, sizeof(*board));
}

int ranks_log_count(const struct ranks_result *result, const char *text)
{
    int n = 0;
    for (const char *at = result->log; (at = strstr(at, text)) != NULL; at++)
        n++;
    return n;
}

/* ---- other machines ---- */

bool ranks_move_to_machine(int number)
{
    char path[] = "/tmp/eth-hpp-boot-id-XXXXXX";
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return false;
    const int file = mkstemp(path);
    if (file < 0)
        return false;
    bool moved = dprintf(file, "00000000-0000-4000-8000-%012d\n", number) > 0;
    moved = moved && mount(path, "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL) == 0;
    close(file);
    unlink(path);
    return moved;
}

bool ranks_can_move(void)
{
    int status;
    const pid_t child = fork();
    if (child == 0)
        _exit(ranks_move_to_machine(1) ? 0 : 1);
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}
