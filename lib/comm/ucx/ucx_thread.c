#include <math.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/ucx/ucx.h"

enum {
    EVENTS = 16,
    LONGEST_REST_MS = 1000, /* since poll counts in an int; the wait then rests again */
    PASSES = 8 /* before the program's thread leaves what comes all the time to the component's */
};

void eth_hpp_ucx_wake(struct eth_hpp_ucx *ucx)
{
    uint64_t one = 1;
    ssize_t written = write(ucx->wake, &one, sizeof(one));
    (void)written; /* it fails only where the counter is full, and then the thread is awake */
}

void eth_hpp_ucx_ring(int bell)
{
    ssize_t written = write(bell, "", 1);
    (void)written; /* it fails only where the pipe is full, and then the sleeper wakes anyway */
}

/* Starts what the program has submitted; false if there was nothing. */
static bool take_submissions(struct eth_hpp_ucx *ucx)
{
    pthread_mutex_lock(&ucx->mutex);
    struct eth_hpp_request *request = ucx->submitted;
    ucx->submitted = ucx->submitted_last = NULL;
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

bool eth_hpp_ucx_pass(struct eth_hpp_ucx *ucx)
{
    bool busy = take_submissions(ucx);
    if (eth_hpp_ucp.worker_progress(ucx->worker) != 0) {
        eth_hpp_ucx_refuse_strangers(ucx);
        busy = true;
    }
    busy = eth_hpp_ucx_groups_poll(ucx) || busy;
    return eth_hpp_ucx_near_poll(ucx) || busy;
}

/* Nothing can be done before something comes, and then the sleeper is woken. */
static bool may_sleep(struct eth_hpp_ucx *ucx)
{
    return ucx->ready == NULL && !ucx->trouble && eth_hpp_ucx_near_sleep(ucx) &&
           eth_hpp_ucp.worker_arm(ucx->worker) == UCS_OK;
}

/* Whether the component's thread, asleep, is woken by a descriptor that its epoll set has, for
 * which this cannot fail. */
static void heed(const struct eth_hpp_ucx *ucx, int descriptor, void *tag, bool does)
{
    struct epoll_event event = {.events = does ? EPOLLIN : 0, .data.ptr = tag};
    epoll_ctl(ucx->epoll, EPOLL_CTL_MOD, descriptor, &event);
}

bool eth_hpp_ucx_take_over(struct eth_hpp_ucx *ucx)
{
    if (ucx->wanted || pthread_mutex_trylock(&ucx->drive) != 0)
        return false;
    heed(ucx, ucx->progress, NULL, false);
    return true;
}

bool eth_hpp_ucx_is_calm(const struct eth_hpp_ucx *ucx)
{
    return !ucx->trouble && !ucx->failure.arrived && ucx->failure.state == ETH_HPP_UCX_RUNNING;
}

/* The component's thread sleeps, and what comes from now on wakes it. */
void eth_hpp_ucx_let_go(struct eth_hpp_ucx *ucx)
{
    bool quiet = false;
    for (int i = 0; i < PASSES && !quiet && eth_hpp_ucx_is_calm(ucx); i++) {
        quiet = may_sleep(ucx);
        if (!quiet)
            eth_hpp_ucx_pass(ucx);
    }
    heed(ucx, ucx->progress, NULL, true);
    pthread_mutex_unlock(&ucx->drive);
    if (!quiet)
        eth_hpp_ucx_wake(ucx);
}

static void drain(int descriptor)
{
    char bytes[64];
    while (read(descriptor, bytes, sizeof(bytes)) == sizeof(bytes))
        ;
}

void eth_hpp_ucx_rest(struct eth_hpp_ucx *ucx, double most_s)
{
    struct pollfd arrivals[] = {{.fd = ucx->progress, .events = POLLIN},
                                {.fd = ucx->bell[0], .events = POLLIN}};
    heed(ucx, ucx->bell[0], ucx, false);
    ucx->resting = true;
    if (may_sleep(ucx) && !ucx->wanted && most_s > 0)
        poll(arrivals, 2, (int)fmin(ceil(most_s * 1e3), LONGEST_REST_MS));
    ucx->resting = false;
    drain(ucx->bell[0]);
    heed(ucx, ucx->bell[0], ucx, true);
}

static void handle_event(struct eth_hpp_ucx *ucx, const struct epoll_event *event)
{
    if (event->data.ptr == ucx) { /* the wake-up counter or the bell; UCX's own need no handling */
        drain(ucx->wake);
        drain(ucx->bell[0]);
    } else if (event->data.ptr != NULL) {
        struct eth_hpp_ucx_peer *peer = event->data.ptr;
        /* Its last messages may lie in shared memory: they count. */
        while (eth_hpp_ucp.worker_progress(ucx->worker) != 0)
            ;
        peer->ended = true;
        ucx->trouble = true;
    }
}

/* Takes the lock even where the program's thread takes and drops it all the time, or rests. */
static void take_turn(struct eth_hpp_ucx *ucx)
{
    ucx->wanted = true;
    if (ucx->resting)
        eth_hpp_ucx_ring(ucx->bell[1]);
    pthread_mutex_lock(&ucx->drive);
    ucx->wanted = false;
}

/* Not holding the lock; has it again afterwards. */
static void sleep_until_event(struct eth_hpp_ucx *ucx, double most_s)
{
    struct epoll_event events[EVENTS];
    const int timeout_ms = most_s < 0 ? -1 : (int)ceil(most_s * 1e3);
    pthread_mutex_unlock(&ucx->drive);
    const int n = epoll_wait(ucx->epoll, events, EVENTS, timeout_ms);
    take_turn(ucx);
    for (int i = 0; i < n; i++)
        handle_event(ucx, &events[i]);
}

static void yield_turn(struct eth_hpp_ucx *ucx)
{
    pthread_mutex_unlock(&ucx->drive);
    sched_yield();
    take_turn(ucx);
}

static bool is_stopped(struct eth_hpp_ucx *ucx)
{
    pthread_mutex_lock(&ucx->mutex);
    const bool stop = ucx->stop;
    pthread_mutex_unlock(&ucx->mutex);
    return stop;
}

void *eth_hpp_ucx_thread(void *user)
{
    struct eth_hpp_ucx *ucx = user;
    double last = 0;
    take_turn(ucx);
    while (!is_stopped(ucx)) {
        const bool busy = eth_hpp_ucx_pass(ucx);
        eth_hpp_ucx_peers_poll(ucx);
        const double next = eth_hpp_ucx_failure_poll(ucx);
        if (busy) {
            last = eth_hpp_clock_now();
        } else if (ucx->near_running != NULL && eth_hpp_clock_now() - last < ETH_HPP_UCX_SPIN_S) {
            yield_turn(ucx);
        } else if (may_sleep(ucx)) {
            sleep_until_event(ucx, next);
        }
    }
    pthread_mutex_unlock(&ucx->drive);
    return NULL;
}
