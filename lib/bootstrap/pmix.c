/*
 * PMIx, as Slurm's --mpi=pmix serves it. Facts that shape this file: a fence is a barrier only when
 * it collects data; a Get of a missing key waits for ever unless it is OPTIONAL or IMMEDIATE; the
 * server's own deadline is minutes and names nobody; a process that leaves without Finalize gets
 * the whole step killed.
 *
 * And one: where `eth-hpp launch` has left PMIx and become the program, the server notices the end
 * of the old connection when it comes to it. If another rank of the node waits in a fence at that
 * time, the server counts the rank as lost, takes the fence for complete on this node and passes
 * it on without data (openpmix 4.2, lost_connection in ptl_base_sendrecv.c): it then fails, and the
 * rank that comes later waits in vain. So no rank begins the first fence before all of its node are
 * connected anew: a rank's old connection is closed, and seen to be, before its new one is used.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <pmix.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "bootstrap/component.h"
#include "bootstrap/pmix_presence.h"

/* How long a server may take to end the job before this process ends alone. */
enum { ABORT_SECONDS = 10 };

struct fence {
    pthread_mutex_t mutex;
    pthread_cond_t arrived;
    bool done;
    pmix_status_t result;
};

struct pmix {
    pmix_proc_t self;
    struct fence fence;
    struct eth_hpp_pmix_presence presence;
    bool failed; /* a fence failed or is under way still: its memory and PMIx are not to be torn
                    down under it */
};

static enum eth_hpp_status pmix_error(struct eth_hpp_error *err, const char *what,
                                      pmix_status_t code)
{
    return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "PMIx: %s failed: %s", what,
                             PMIx_Error_string(code));
}

/* A number that the server knows about a process of this job; -1 where it does not. */
static int job_number(const pmix_proc_t *proc, const char *key)
{
    bool yes = true;
    int number = -1;
    pmix_info_t immediate;
    pmix_value_t *value = NULL;
    PMIX_INFO_LOAD(&immediate, PMIX_IMMEDIATE, &yes, PMIX_BOOL);
    if (PMIx_Get(proc, key, &immediate, 1, &value) == PMIX_SUCCESS) {
        if (value->type == PMIX_UINT32)
            number = (int)value->data.uint32;
        else if (value->type == PMIX_UINT16)
            number = (int)value->data.uint16;
        PMIX_VALUE_RELEASE(value);
    }
    PMIX_INFO_DESTRUCT(&immediate);
    return number;
}

static enum eth_hpp_status find_place(const struct pmix *pmix,
                                      struct eth_hpp_bootstrap_place *place,
                                      struct eth_hpp_error *err)
{
    pmix_proc_t job;
    PMIX_LOAD_PROCID(&job, pmix->self.nspace, PMIX_RANK_WILDCARD);
    int size = job_number(&job, PMIX_JOB_SIZE);
    if (size < 1 || pmix->self.rank >= (pmix_rank_t)size)
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER,
                                 "PMIx: rank %u does not lie within the job's %d processes",
                                 pmix->self.rank, size);
    int local_rank = job_number(&pmix->self, PMIX_LOCAL_RANK);
    int local_size = job_number(&job, PMIX_LOCAL_SIZE);
    if (local_rank < 0)
        local_rank = eth_hpp_bootstrap_environment("SLURM_LOCALID");
    if (local_rank < 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER,
                                 "PMIx: the server does not say which process of its node rank %u "
                                 "is, and SLURM_LOCALID is not set",
                                 pmix->self.rank);
    place->rank = (int)pmix->self.rank;
    place->size = size;
    place->local_rank = local_rank;
    place->local_size = local_size > local_rank ? local_size : local_rank + 1;
    return ETH_HPP_OK;
}

static enum eth_hpp_status fence_init(struct fence *fence, struct eth_hpp_error *err)
{
    pthread_condattr_t attributes;
    int code = pthread_condattr_init(&attributes);
    if (code == 0) {
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        code = pthread_cond_init(&fence->arrived, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    if (code == 0)
        code = pthread_mutex_init(&fence->mutex, NULL);
    return code == 0 ? ETH_HPP_OK
                     : eth_hpp_error_set(err, ETH_HPP_ERR_IO, "a lock: %s", strerror(code));
}

/* The server shows others the old values of a key that is put again, and this rank none of its own
 * of an earlier connection. So the task's bootstraps are counted by the length of a file, in the
 * step's own folder, which Slurm removes with the step. */
static enum eth_hpp_status next_round(const struct pmix *pmix, int *round,
                                      struct eth_hpp_error *err)
{
    const char *folder = getenv("PMIX_SERVER_TMPDIR");
    char path[PATH_MAX];
    struct stat info;
    if (folder == NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER,
                                 "PMIx: the step has no folder: PMIX_SERVER_TMPDIR is not set");
    snprintf(path, sizeof(path), "%s/eth-hpp.%u", folder, pmix->self.rank);
    const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    const bool counted = file >= 0 && fstat(file, &info) == 0 && write(file, "+", 1) == 1;
    enum eth_hpp_status status =
        counted ? ETH_HPP_OK : eth_hpp_error_set(err, ETH_HPP_ERR_IO, "%s: %m", path);
    if (file >= 0)
        close(file);
    if (counted)
        *round = (int)info.st_size;
    return status;
}

enum eth_hpp_status eth_hpp_bootstrap_pmix_open(void **state, struct eth_hpp_bootstrap_place *place,
                                                int *round, bool *reachable,
                                                struct eth_hpp_error *err)
{
    struct pmix *pmix = calloc(1, sizeof(*pmix));
    if (pmix == NULL)
        return eth_hpp_error_memory(err, "the bootstrap");
    enum eth_hpp_status status = fence_init(&pmix->fence, err);
    if (status != ETH_HPP_OK)
        goto free_state;

    pmix_status_t code = PMIx_Init(&pmix->self, NULL, 0);
    if (code == PMIX_ERR_UNREACH) {
        *reachable = false;
        goto free_state;
    }
    if (code != PMIX_SUCCESS) {
        status = pmix_error(err, "the connection to this node's server", code);
        goto free_state;
    }
    status = find_place(pmix, place, err);
    if (status == ETH_HPP_OK)
        status = next_round(pmix, round, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_pmix_presence_open(&pmix->self, place->size, *round, &pmix->presence, err);
    if (status != ETH_HPP_OK) {
        PMIx_Finalize(NULL, 0);
        goto free_state;
    }
    *reachable = true;
    *state = pmix;
    return ETH_HPP_OK;

free_state:
    free(pmix);
    return status;
}

static enum eth_hpp_status pmix_put(void *state, const char *key, const void *value, size_t size,
                                    struct eth_hpp_error *err)
{
    (void)state;
    pmix_value_t wrapped;
    PMIX_VALUE_CONSTRUCT(&wrapped);
    wrapped.type = PMIX_BYTE_OBJECT;
    wrapped.data.bo.bytes = (char *)value; /* PMIx copies it */
    wrapped.data.bo.size = size;
    pmix_status_t code = PMIx_Put(PMIX_GLOBAL, key, &wrapped);
    return code == PMIX_SUCCESS ? ETH_HPP_OK : pmix_error(err, "publishing a value", code);
}

static void fence_arrived(pmix_status_t result, void *user)
{
    struct fence *fence = user;
    pthread_mutex_lock(&fence->mutex);
    fence->result = result;
    fence->done = true;
    pthread_cond_signal(&fence->arrived);
    pthread_mutex_unlock(&fence->mutex);
}

static bool fence_wait(struct fence *fence, double deadline)
{
    const struct timespec until = {.tv_sec = (time_t)deadline,
                                   .tv_nsec = (long)((deadline - (double)(time_t)deadline) * 1e9)};
    int code = 0;
    pthread_mutex_lock(&fence->mutex);
    while (!fence->done && code == 0)
        code = pthread_cond_timedwait(&fence->arrived, &fence->mutex, &until);
    bool done = fence->done;
    pthread_mutex_unlock(&fence->mutex);
    return done;
}

/* The fence itself; *in_time is false where it is under way still at the deadline. */
static pmix_status_t fence_all(struct pmix *pmix, double deadline, bool *in_time)
{
    bool yes = true;
    pmix_info_t collect;
    pmix->fence.done = false;
    PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    pmix_status_t code = PMIx_Fence_nb(NULL, 0, &collect, 1, fence_arrived, &pmix->fence);
    *in_time = code != PMIX_SUCCESS || fence_wait(&pmix->fence, deadline);
    if (*in_time)
        PMIX_INFO_DESTRUCT(&collect); /* else PMIx may read it still */
    return code == PMIX_SUCCESS && *in_time ? pmix->fence.result : code;
}

static enum eth_hpp_status pmix_fence(void *state, double timeout_s, struct eth_hpp_error *err)
{
    struct pmix *pmix = state;
    const double deadline = eth_hpp_clock_now() + timeout_s;
    bool in_time = true;
    pmix_status_t code = PMIX_SUCCESS;

    if (pmix->failed)
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "PMIx: an exchange failed before");
    enum eth_hpp_status status = eth_hpp_pmix_presence_announce(&pmix->presence, err);
    if (status == ETH_HPP_OK && pmix->presence.fence == 1)
        status = eth_hpp_pmix_presence_await_node(&pmix->presence, timeout_s, &in_time, err);
    if (status != ETH_HPP_OK)
        return status;
    pmix->failed = true;
    if (in_time)
        code = fence_all(pmix, deadline, &in_time);
    if (!in_time)
        return eth_hpp_pmix_presence_report(&pmix->presence, timeout_s, err);
    if (code != PMIX_SUCCESS && code != PMIX_OPERATION_SUCCEEDED)
        return pmix_error(err, "the exchange among all ranks", code);
    pmix->failed = false;
    return ETH_HPP_OK;
}

static enum eth_hpp_status pmix_get(void *state, int rank, const char *key, void **value,
                                    size_t *size, struct eth_hpp_error *err)
{
    struct pmix *pmix = state;
    bool yes = true;
    pmix_info_t immediate;
    pmix_proc_t proc;
    pmix_value_t *found = NULL;
    enum eth_hpp_status status = ETH_HPP_OK;

    PMIX_LOAD_PROCID(&proc, pmix->self.nspace, (pmix_rank_t)rank);
    PMIX_INFO_LOAD(&immediate, PMIX_IMMEDIATE, &yes, PMIX_BOOL);
    pmix_status_t code = PMIx_Get(&proc, key, &immediate, 1, &found);
    PMIX_INFO_DESTRUCT(&immediate);
    if (code != PMIX_SUCCESS)
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "rank %d has not published %s (PMIx: %s)",
                                 rank, key, PMIx_Error_string(code));
    if (found->type != PMIX_BYTE_OBJECT) {
        status = eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "rank %d published %s as PMIx type %d",
                                   rank, key, found->type);
        goto release;
    }
    void *copy = malloc(found->data.bo.size + 1);
    if (copy == NULL) {
        status = eth_hpp_error_memory(err, "a value of the bootstrap");
        goto release;
    }
    memcpy(copy, found->data.bo.bytes, found->data.bo.size);
    *value = copy;
    *size = found->data.bo.size;
release:
    PMIX_VALUE_RELEASE(found);
    return status;
}

static volatile sig_atomic_t abort_code;

static void abort_late(int signal_number)
{
    (void)signal_number;
    _exit(abort_code);
}

static void pmix_abort(void *state, int exit_code, const char *why)
{
    (void)state;
    abort_code = exit_code;
    signal(SIGALRM, abort_late);
    alarm(ABORT_SECONDS);
    PMIx_Abort(exit_code, why, NULL, 0);
}

static void pmix_close(void *state)
{
    struct pmix *pmix = state;
    PMIx_Finalize(NULL, 0);
    /* The callback of a fence that was given up may come until the process ends. */
    if (pmix->failed)
        return;
    eth_hpp_pmix_presence_close(&pmix->presence);
    pthread_cond_destroy(&pmix->fence.arrived);
    pthread_mutex_destroy(&pmix->fence.mutex);
    free(pmix);
}

const struct eth_hpp_bootstrap_ops eth_hpp_bootstrap_pmix_ops = {
    .name = "pmix",
    .asks = true,
    .value_max = 32768,
    .put = pmix_put,
    .fence = pmix_fence,
    .get = pmix_get,
    .abort = pmix_abort,
    .close = pmix_close,
};
