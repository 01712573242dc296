#include "comm/ucx/ucx.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define FOREVER_S 1e9

static void ucx_free(struct eth_hpp_ucx *ucx)
{
    while (ucx->all != NULL) {
        struct eth_hpp_request *request = ucx->all;
        ucx->all = request->all_next;
        request->release(request);
    }
    eth_hpp_ucx_group_free(ucx->everyone);
    while (ucx->given_up != NULL) {
        struct eth_hpp_ucx_group *group = ucx->given_up;
        ucx->given_up = group->next_near;
        eth_hpp_ucx_group_free(group);
    }
    if (ucx->worker != NULL)
        eth_hpp_ucp.worker_destroy(ucx->worker);
    eth_hpp_ucx_peers_free(ucx);
    if (ucx->context != NULL)
        eth_hpp_ucp.cleanup(ucx->context);
    if (ucx->shared >= 0)
        close(ucx->shared);
    if (ucx->epoll >= 0)
        close(ucx->epoll);
    if (ucx->wake >= 0)
        close(ucx->wake);
    for (int end = 0; end < 2; end++)
        if (ucx->bell[end] >= 0)
            close(ucx->bell[end]);
    pthread_cond_destroy(&ucx->changed);
    pthread_mutex_destroy(&ucx->mutex);
    pthread_mutex_destroy(&ucx->drive);
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
        eth_hpp_ucx_wait(request, FOREVER_S, NULL);
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
    .send = eth_hpp_ucx_transfer_send,
    .recv = eth_hpp_ucx_transfer_recv,
    .share = eth_hpp_ucx_share,
    .group_open = eth_hpp_ucx_group_open,
    .group_sum = eth_hpp_ucx_group_sum,
    .group_reduce = eth_hpp_ucx_group_reduce,
    .group_free = eth_hpp_ucx_group_free,
    .test = eth_hpp_ucx_test,
    .wait = eth_hpp_ucx_wait,
    .check = eth_hpp_ucx_check,
    .fail = eth_hpp_ucx_failure_fail,
    .close = ucx_close,
};

static enum eth_hpp_status ucx_error(struct eth_hpp_error *err, const char *what, ucs_status_t code)
{
    return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "UCX: %s: %s", what,
                             eth_hpp_ucp.status_string(code));
}

static enum eth_hpp_status open_worker(struct eth_hpp_ucx *ucx, struct eth_hpp_error *err)
{
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
        .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
        .estimated_num_eps = (size_t)ucx->size,
    };
    /* One thread at a time calls into the worker. */
    const ucp_worker_params_t worker_params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    ucp_config_t *config;

    /* A lost peer is reported here, once; UCX would add lines of its own on every rank. */
    if (getenv("UCX_LOG_LEVEL") == NULL)
        eth_hpp_ucp.global_opts_set_value("LOG_LEVEL", "fatal");
    ucs_status_t code = eth_hpp_ucp.config_read(NULL, NULL, &config);
    if (code != UCS_OK)
        return ucx_error(err, "its settings in the environment cannot be used", code);
    if (getenv("UCX_KEEPALIVE_INTERVAL") == NULL) /* a node that vanishes is noticed in seconds */
        eth_hpp_ucp.config_modify(config, "KEEPALIVE_INTERVAL", "3s");
    /* A part of a chunk goes to TCP in one call. These are read from nowhere but the environment.
     */
    setenv("UCX_TCP_TX_SEG_SIZE", "128k", 0);
    setenv("UCX_TCP_RX_SEG_SIZE", "128k", 0);
    code = eth_hpp_ucp.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &ucx->context);
    eth_hpp_ucp.config_release(config);
    if (code != UCS_OK)
        return ucx_error(err, "it does not start", code);
    code = eth_hpp_ucp.worker_create(ucx->context, &worker_params, &ucx->worker);
    if (code != UCS_OK)
        return ucx_error(err, "no transport can be opened (is UCX_TLS set?)", code);
    return ETH_HPP_OK;
}

static enum eth_hpp_status open_events(struct eth_hpp_ucx *ucx, struct eth_hpp_error *err)
{
    struct epoll_event wake = {.events = EPOLLIN, .data.ptr = ucx};
    struct epoll_event bell = {.events = EPOLLIN, .data.ptr = ucx};
    struct epoll_event progress = {.events = EPOLLIN, .data.ptr = NULL};
    ucs_status_t code = eth_hpp_ucp.worker_get_efd(ucx->worker, &ucx->progress);
    if (code != UCS_OK)
        return ucx_error(err, "its transports cannot wake a sleeping process", code);
    ucx->epoll = epoll_create1(EPOLL_CLOEXEC);
    ucx->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ucx->epoll < 0 || ucx->wake < 0 || pipe2(ucx->bell, O_CLOEXEC | O_NONBLOCK) != 0 ||
        epoll_ctl(ucx->epoll, EPOLL_CTL_ADD, ucx->bell[0], &bell) != 0 ||
        epoll_ctl(ucx->epoll, EPOLL_CTL_ADD, ucx->wake, &wake) != 0 ||
        epoll_ctl(ucx->epoll, EPOLL_CTL_ADD, ucx->progress, &progress) != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "the transport's descriptors: %m");
    return ETH_HPP_OK;
}

static enum eth_hpp_status open_everyone(struct eth_hpp_ucx *ucx, struct eth_hpp_error *err)
{
    int *ranks = malloc(sizeof(*ranks) * (size_t)ucx->size);
    if (ranks == NULL)
        return eth_hpp_error_memory(err, "the group of all ranks");
    for (int rank = 0; rank < ucx->size; rank++)
        ranks[rank] = rank;
    enum eth_hpp_status status =
        eth_hpp_ucx_group_make(ucx, ranks, ucx->size, UINT32_MAX, &ucx->everyone, err);
    free(ranks);
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
    enum eth_hpp_status status = eth_hpp_ucp_open(err);
    if (status != ETH_HPP_OK)
        return status;
    struct eth_hpp_ucx *ucx = calloc(1, sizeof(*ucx));
    if (ucx == NULL)
        return eth_hpp_error_memory(err, "the transport");
    ucx->rank = place->rank;
    ucx->size = place->size;
    ucx->shared = ucx->epoll = ucx->wake = ucx->bell[0] = ucx->bell[1] = -1;
    ucx->timeout_s = timeout_s;
    pthread_mutex_init(&ucx->mutex, NULL);
    pthread_mutex_init(&ucx->drive, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ucx->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);

    status = open_worker(ucx, err);
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
