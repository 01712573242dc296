#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"
#include "comm/ucx/ucx.h"

enum { EVENTS = 16 };

void eth_hpp_ucx_wake(struct eth_hpp_ucx *ucx)
{
    uint64_t one = 1;
    ssize_t written = write(ucx->wake, &one, sizeof(one));
    (void)written; /* it fails only where the counter is full, and then the thread is awake */
}

/* Starts what the program has submitted; false if there was nothing. */
static bool take_submissions(struct eth_hpp_ucx *ucx, bool *stop)
{
    pthread_mutex_lock(&ucx->mutex);
    struct eth_hpp_request *request = ucx->submitted;
    ucx->submitted = ucx->submitted_last = NULL;
    *stop = ucx->stop;
    pthread_mutex_unlock(&ucx->mutex);
    if (request == NULL)
        return false;
    while (request != NULL) {
        struct eth_hpp_request *next = request->next;
        request->start(request);
        request = next;
    }
    return true;
}

static void handle_event(struct eth_hpp_ucx *ucx, const struct epoll_event *event)
{
    uint64_t count;
    if (event->data.ptr == ucx) { /* the wake-up counter; UCX's own events need no handling */
        ssize_t n = read(ucx->wake, &count, sizeof(count));
        (void)n;
    } else if (event->data.ptr != NULL) {
        struct eth_hpp_ucx_peer *peer = event->data.ptr;
        /* Its last messages may lie in shared memory: they count. */
        while (ucp_worker_progress(ucx->worker) != 0)
            ;
        peer->ended = true;
        ucx->trouble = true;
    }
}

static void sleep_until_event(struct eth_hpp_ucx *ucx, double most_s)
{
    struct epoll_event events[EVENTS];
    int timeout_ms = most_s < 0 ? -1 : (int)ceil(most_s * 1e3);
    if (ucp_worker_arm(ucx->worker) != UCS_OK)
        return; /* something has come meanwhile */
    int n = epoll_wait(ucx->epoll, events, EVENTS, timeout_ms);
    for (int i = 0; i < n; i++)
        handle_event(ucx, &events[i]);
}

void *eth_hpp_ucx_thread(void *user)
{
    struct eth_hpp_ucx *ucx = user;
    bool stop = false;
    while (!stop) {
        bool busy = take_submissions(ucx, &stop);
        busy = ucp_worker_progress(ucx->worker) != 0 || busy;
        busy = eth_hpp_ucx_groups_poll(ucx) || busy;
        eth_hpp_ucx_peers_poll(ucx);
        double next = eth_hpp_ucx_failure_poll(ucx);
        if (!busy && !stop && ucx->ready == NULL && !ucx->trouble)
            sleep_until_event(ucx, next);
    }
    return NULL;
}
