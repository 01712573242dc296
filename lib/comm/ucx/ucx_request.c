/* Operations on their way between the program's thread and the component's. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "comm/ucx/ucx.h"

void eth_hpp_ucx_submit(struct eth_hpp_ucx *ucx, struct eth_hpp_request *request)
{
    request->ucx = ucx;
    atomic_store(&request->waits_for, -1);
    const bool drives = eth_hpp_ucx_take_over(ucx);
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
    if (drives) {
        eth_hpp_ucx_pass(ucx);
        eth_hpp_ucx_let_go(ucx);
    } else {
        eth_hpp_ucx_wake(ucx);
    }
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

bool eth_hpp_ucx_test(struct eth_hpp_request *request)
{
    struct eth_hpp_ucx *ucx = request->ucx;
    pthread_mutex_lock(&ucx->mutex);
    bool over = request->done || ucx->failure.state == ETH_HPP_UCX_ENDED;
    pthread_mutex_unlock(&ucx->mutex);
    return over;
}

/* Gets on with what there is, without handing anything to the component's thread, unless that wants
 * its turn. */
static void drive(struct eth_hpp_request *request, double deadline)
{
    struct eth_hpp_ucx *ucx = request->ucx;
    if (!eth_hpp_ucx_take_over(ucx))
        return;
    double last = eth_hpp_clock_now(), now = last;
    while (!eth_hpp_ucx_test(request) && eth_hpp_ucx_is_calm(ucx) && !ucx->wanted &&
           now < deadline) {
        const bool busy = eth_hpp_ucx_pass(ucx);
        now = eth_hpp_clock_now();
        if (busy)
            last = now;
        else if (now - last < ETH_HPP_UCX_SPIN_S)
            sched_yield();
        else
            eth_hpp_ucx_rest(ucx, deadline - now);
    }
    eth_hpp_ucx_let_go(ucx);
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

enum eth_hpp_status eth_hpp_ucx_wait(struct eth_hpp_request *request, double timeout_s,
                                     struct eth_hpp_error *err)
{
    struct eth_hpp_ucx *ucx = request->ucx;
    enum eth_hpp_status status = ETH_HPP_OK;
    const double start = eth_hpp_clock_now();
    bool in_time = true;

    pthread_mutex_lock(&ucx->mutex);
    ucx->failure.waiting = true;
    ucx->failure.give_up = false; /* what was asked of a wait that has ended since */
    pthread_mutex_unlock(&ucx->mutex);
    drive(request, start + timeout_s);
    pthread_mutex_lock(&ucx->mutex);
    /* While a failure is looked into this wait goes on: what it waits for may be nearer the cause.
     */
    while (!request->done && ucx->failure.state != ETH_HPP_UCX_ENDED && in_time &&
           !ucx->failure.give_up)
        in_time = eth_hpp_ucx_wait_until(ucx, start + timeout_s);
    ucx->failure.waiting = false;
    if (request->done && request->status == UCS_OK)
        unlink_request(request);
    else if (!request->done && (ucx->failure.give_up || !in_time))
        status = late(request, eth_hpp_clock_now() - start, err);
    else if (ucx->failure.state != ETH_HPP_UCX_RUNNING)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "%s", ucx->failure.notice.text);
    else
        status = eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "%s rank %d failed: %s", request->what,
                                   atomic_load(&request->waits_for),
                                   eth_hpp_ucp.status_string(request->status));
    pthread_mutex_unlock(&ucx->mutex);
    if (status == ETH_HPP_OK && request->deliver != NULL)
        request->deliver(request);
    if (status == ETH_HPP_OK)
        request->release(request);
    return status; /* what failed is freed by the close, when UCX has let go of it */
}

enum eth_hpp_status eth_hpp_ucx_check(void *state, struct eth_hpp_error *err)
{
    struct eth_hpp_ucx *ucx = state;
    enum eth_hpp_status status = ETH_HPP_OK;
    pthread_mutex_lock(&ucx->mutex);
    if (ucx->failure.state == ETH_HPP_UCX_ENDED)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "%s", ucx->failure.notice.text);
    pthread_mutex_unlock(&ucx->mutex);
    return status;
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

enum eth_hpp_status eth_hpp_ucx_transfer_send(void *state, const void *data, size_t size, int peer,
                                              uint32_t tag, struct eth_hpp_request **request,
                                              struct eth_hpp_error *err)
{
    return transfer(state, (void *)data, size, peer, tag, false, request, err);
}

enum eth_hpp_status eth_hpp_ucx_transfer_recv(void *state, void *data, size_t size, int peer,
                                              uint32_t tag, struct eth_hpp_request **request,
                                              struct eth_hpp_error *err)
{
    return transfer(state, data, size, peer, tag, true, request, err);
}
