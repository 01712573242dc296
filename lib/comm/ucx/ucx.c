#include "comm/ucx/ucx.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <ucs/config/global_opts.h>

#define FOREVER_S 1e9

/* ---- operations ---- */

void eth_hpp_ucx_submit(struct eth_hpp_ucx *ucx, struct eth_hpp_request *request)
{
    request->ucx = ucx;
    atomic_store(&request->waits_for, -1);
    pthread_mutex_lock(&ucx->mutex);
    request->all_next = ucx->all;
    if (ucx->all != NULL)
        ucx->all->all_previous = request;
    ucx->all = request;
    if (ucx->submitted == NULL)
        ucx->submitted = request;
    else
        ucx->submitted_last->next = request;
    ucx->submitted_last = request;
    pthread_mutex_unlock(&ucx->mutex);
    eth_hpp_ucx_wake(ucx);
}

void eth_hpp_ucx_complete(struct eth_hpp_request *request, ucs_status_t status)
{
    struct eth_hpp_ucx *ucx = request->ucx;
    pthread_mutex_lock(&ucx->mutex);
    request->status = status;
    request->done = true;
    pthread_cond_broadcast(&ucx->changed);
    pthread_mutex_unlock(&ucx->mutex);
}

bool eth_hpp_ucx_wait_until(struct eth_hpp_ucx *ucx, double deadline)
{
    struct timespec time = {.tv_sec = (time_t)deadline};
    time.tv_nsec = (long)((deadline - (double)time.tv_sec) * 1e9);
    return pthread_cond_timedwait(&ucx->changed, &ucx->mutex, &time) != ETIMEDOUT;
}

static void unlink_request(struct eth_hpp_request *request)
{
    if (request->all_previous != NULL)
        request->all_previous->all_next = request->all_next;
    else
        request->ucx->all = request->all_next;
    if (request->all_next != NULL)
        request->all_next->all_previous = request->all_previous;
}

static bool ucx_test(struct eth_hpp_request *request)
{
    struct eth_hpp_ucx *ucx = request->ucx;
    pthread_mutex_lock(&ucx->mutex);
    bool over = request->done || ucx->failure.state != ETH_HPP_UCX_RUNNING;
    pthread_mutex_unlock(&ucx->mutex);
    return over;
}

static enum eth_hpp_status late(struct eth_hpp_request *request, double seconds,
                                struct eth_hpp_error *err)
{
    int rank = atomic_load(&request->waits_for);
    request->ucx->failure.waited_for = rank;
    if (rank < 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT, "waited %.2g s", seconds);
    return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT, "waited %.2g s for %s rank %d on %s",
                             seconds, request->what, rank, request->ucx->peers[rank].host);
}

static enum eth_hpp_status ucx_wait(struct eth_hpp_request *request, double timeout_s,
                                    struct eth_hpp_error *err)
{
    struct eth_hpp_ucx *ucx = request->ucx;
    enum eth_hpp_status status = ETH_HPP_OK;
    const double start = eth_hpp_ucx_now();
    bool in_time = true;

    pthread_mutex_lock(&ucx->mutex);
    ucx->failure.waiting = true;
    while (!request->done && ucx->failure.state == ETH_HPP_UCX_RUNNING && in_time &&
           !ucx->failure.give_up)
        in_time = eth_hpp_ucx_wait_until(ucx, start + timeout_s);
    ucx->failure.waiting = false;
    if (request->done && request->status == UCS_OK)
        unlink_request(request);
    else if (!request->done && ucx->failure.give_up)
        status = late(request, eth_hpp_ucx_now() - start, err);
    else if (ucx->failure.state != ETH_HPP_UCX_RUNNING)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "%s", ucx->failure.notice.text);
    else if (!request->done)
        status = late(request, eth_hpp_ucx_now() - start, err);
    else
        status =
            eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "%s rank %d failed: %s", request->what,
                              atomic_load(&request->waits_for), ucs_status_string(request->status));
    pthread_mutex_unlock(&ucx->mutex);
    if (status == ETH_HPP_OK)
        request->release(request);
    return status; /* what failed is freed by the close, when UCX has let go of it */
}

/* ---- transfers ---- */

struct transfer {
    struct eth_hpp_request base;
    struct eth_hpp_ucx_message message;
    void *data;
    size_t size;
    int peer;
    uint32_t tag;
    bool receive;
};

static void transfer_done(struct eth_hpp_ucx_message *message, ucs_status_t status)
{
    struct transfer *transfer =
        (struct transfer *)((char *)message - offsetof(struct transfer, message));
    eth_hpp_ucx_complete(&transfer->base, status);
}

static void transfer_start(struct eth_hpp_request *request)
{
    struct transfer *t = (struct transfer *)request;
    atomic_store(&request->waits_for, t->peer);
    if (t->receive)
        eth_hpp_ucx_receive(request->ucx, &t->message, t->data, t->size, t->peer,
                            ETH_HPP_UCX_TRANSFER, t->tag);
    else
        eth_hpp_ucx_send(request->ucx, &t->message, t->data, t->size, t->peer, ETH_HPP_UCX_TRANSFER,
                         t->tag);
}

static void transfer_release(struct eth_hpp_request *request)
{
    free(request);
}

static enum eth_hpp_status transfer(struct eth_hpp_ucx *ucx, void *data, size_t size, int peer,
                                    uint32_t tag, bool receive, struct eth_hpp_request **request,
                                    struct eth_hpp_error *err)
{
    if (peer < 0 || peer >= ucx->size || peer == ucx->rank)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL, "a transfer with rank %d of %d", peer,
                                 ucx->size);
    struct transfer *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return eth_hpp_error_memory(err, "a transfer");
    t->base.what = receive ? "a receive from" : "a send to";
    t->base.start = transfer_start;
    t->base.release = transfer_release;
    t->message.done = transfer_done;
    t->data = data;
    t->size = size;
    t->peer = peer;
    t->tag = tag;
    t->receive = receive;
    eth_hpp_ucx_submit(ucx, &t->base);
    *request = &t->base;
    return ETH_HPP_OK;
}

static enum eth_hpp_status ucx_send(void *state, const void *data, size_t size, int peer,
                                    uint32_t tag, struct eth_hpp_request **request,
                                    struct eth_hpp_error *err)
{
    return transfer(state, (void *)data, size, peer, tag, false, request, err);
}

static enum eth_hpp_status ucx_recv(void *state, void *data, size_t size, int peer, uint32_t tag,
                                    struct eth_hpp_request **request, struct eth_hpp_error *err)
{
    return transfer(state, data, size, peer, tag, true, request, err);
}

/* ---- open and close ---- */

static void ucx_free(struct eth_hpp_ucx *ucx)
{
    while (ucx->all != NULL) {
        struct eth_hpp_request *request = ucx->all;
        ucx->all = request->all_next;
        request->release(request);
    }
    eth_hpp_ucx_group_free(ucx->everyone);
    if (ucx->worker != NULL)
        ucp_worker_destroy(ucx->worker);
    eth_hpp_ucx_peers_free(ucx);
    if (ucx->context != NULL)
        ucp_cleanup(ucx->context);
    if (ucx->epoll >= 0)
        close(ucx->epoll);
    if (ucx->wake >= 0)
        close(ucx->wake);
    pthread_cond_destroy(&ucx->changed);
    pthread_mutex_destroy(&ucx->mutex);
    free(ucx);
}

/* All ranks come to their close before any of them takes its connections away. Some may compute for
 * long before; if one dies, all learn of it. */
static void meet_everyone(struct eth_hpp_ucx *ucx)
{
    struct eth_hpp_request *request;
    double nothing = 0;
    ucx->closing = true;
    if (eth_hpp_ucx_group_reduce(ucx->everyone, &nothing, 1, ETH_HPP_REDUCE_MAX, &request, NULL) ==
        ETH_HPP_OK)
        ucx_wait(request, FOREVER_S, NULL);
}

static void ucx_close(void *state)
{
    struct eth_hpp_ucx *ucx = state;
    meet_everyone(ucx);
    pthread_mutex_lock(&ucx->mutex);
    ucx->stop = true;
    pthread_mutex_unlock(&ucx->mutex);
    eth_hpp_ucx_wake(ucx);
    pthread_join(ucx->thread, NULL);
    eth_hpp_ucx_cancel_receives(ucx, -1);
    eth_hpp_ucx_peers_close(ucx);
    ucx_free(ucx);
}

static const struct eth_hpp_comm_ops ucx_ops = {
    .name = "ucx",
    .send = ucx_send,
    .recv = ucx_recv,
    .group_open = eth_hpp_ucx_group_open,
    .group_sum = eth_hpp_ucx_group_sum,
    .group_reduce = eth_hpp_ucx_group_reduce,
    .group_free = eth_hpp_ucx_group_free,
    .test = ucx_test,
    .wait = ucx_wait,
    .fail = eth_hpp_ucx_failure_fail,
    .close = ucx_close,
};

static enum eth_hpp_status ucx_error(struct eth_hpp_error *err, const char *what, ucs_status_t code)
{
    return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "UCX: %s: %s", what, ucs_status_string(code));
}

static enum eth_hpp_status open_worker(struct eth_hpp_ucx *ucx, struct eth_hpp_error *err)
{
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
        .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
        .estimated_num_eps = (size_t)ucx->size,
    };
    /* Only the component's thread calls into the worker, but this one makes it. */
    const ucp_worker_params_t worker_params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    ucp_config_t *config;

    /* A lost peer is reported here, once; UCX would add lines of its own on every rank. */
    if (getenv("UCX_LOG_LEVEL") == NULL)
        ucs_global_opts_set_value("LOG_LEVEL", "fatal");
    ucs_status_t code = ucp_config_read(NULL, NULL, &config);
    if (code != UCS_OK)
        return ucx_error(err, "its settings in the environment cannot be used", code);
    if (getenv("UCX_KEEPALIVE_INTERVAL") == NULL) /* a node that vanishes is noticed in seconds */
        ucp_config_modify(config, "KEEPALIVE_INTERVAL", "3s");
    code = ucp_init(&params, config, &ucx->context);
    ucp_config_release(config);
    if (code != UCS_OK)
        return ucx_error(err, "it does not start", code);
    code = ucp_worker_create(ucx->context, &worker_params, &ucx->worker);
    if (code != UCS_OK)
        return ucx_error(err, "no transport can be opened (is UCX_TLS set?)", code);
    return ETH_HPP_OK;
}

static enum eth_hpp_status open_events(struct eth_hpp_ucx *ucx, struct eth_hpp_error *err)
{
    struct epoll_event wake = {.events = EPOLLIN, .data.ptr = ucx};
    struct epoll_event progress = {.events = EPOLLIN, .data.ptr = NULL};
    int descriptor;
    ucs_status_t code = ucp_worker_get_efd(ucx->worker, &descriptor);
    if (code != UCS_OK)
        return ucx_error(err, "its transports cannot wake a sleeping process", code);
    ucx->epoll = epoll_create1(EPOLL_CLOEXEC);
    ucx->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ucx->epoll < 0 || ucx->wake < 0 ||
        epoll_ctl(ucx->epoll, EPOLL_CTL_ADD, ucx->wake, &wake) != 0 ||
        epoll_ctl(ucx->epoll, EPOLL_CTL_ADD, descriptor, &progress) != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "the transport's descriptors: %m");
    return ETH_HPP_OK;
}

static enum eth_hpp_status open_everyone(struct eth_hpp_ucx *ucx, struct eth_hpp_error *err)
{
    void *group;
    int *ranks = malloc(sizeof(*ranks) * (size_t)ucx->size);
    if (ranks == NULL)
        return eth_hpp_error_memory(err, "the group of all ranks");
    for (int rank = 0; rank < ucx->size; rank++)
        ranks[rank] = rank;
    enum eth_hpp_status status =
        eth_hpp_ucx_group_open(ucx, ranks, ucx->size, UINT32_MAX, &group, err);
    free(ranks);
    if (status == ETH_HPP_OK)
        ucx->everyone = group;
    return status;
}

/* Signals are for the program's threads. */
static enum eth_hpp_status start_thread(struct eth_hpp_ucx *ucx, struct eth_hpp_error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&ucx->thread, NULL, eth_hpp_ucx_thread, ucx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code == 0 ? ETH_HPP_OK
                     : eth_hpp_error_set(err, ETH_HPP_ERR_IO, "the transport's thread: %s",
                                         strerror(code));
}

enum eth_hpp_status eth_hpp_comm_ucx_open(struct eth_hpp_bootstrap *bootstrap, double timeout_s,
                                          struct eth_hpp_comm **comm, struct eth_hpp_error *err)
{
    const struct eth_hpp_bootstrap_place *place = eth_hpp_bootstrap_get_place(bootstrap);
    struct eth_hpp_comm *opened = NULL;
    pthread_condattr_t monotonic;
    struct eth_hpp_ucx *ucx = calloc(1, sizeof(*ucx));
    if (ucx == NULL)
        return eth_hpp_error_memory(err, "the transport");
    ucx->rank = place->rank;
    ucx->size = place->size;
    ucx->epoll = ucx->wake = -1;
    pthread_mutex_init(&ucx->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ucx->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);

    enum eth_hpp_status status = open_worker(ucx, err);
    if (status == ETH_HPP_OK)
        status = open_events(ucx, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_ucx_peers_open(ucx, bootstrap, timeout_s, err);
    if (status == ETH_HPP_OK)
        status = open_everyone(ucx, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_create(&ucx_ops, ucx, &opened, err);
    if (status == ETH_HPP_OK) {
        eth_hpp_ucx_failure_open(ucx);
        status = start_thread(ucx, err);
    }
    if (status != ETH_HPP_OK) {
        free(opened);
        ucx_free(ucx);
        return status;
    }
    *comm = opened;
    return ETH_HPP_OK;
}
