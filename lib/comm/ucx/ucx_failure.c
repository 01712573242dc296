/*
 * One failure causes errors on many ranks. The lowest rank that is not lost decides: whoever
 * notices something reports it there, it waits a moment for other reports, logs the gravest one as
 * the root cause and tells all ranks that the job ends. Where a rank waited too long for another,
 * that one is made to give up its own wait, if it waits, and so on: the last one in this chain
 * names the rank that hangs. A rank whose report is not answered turns to the next host, which is
 * likelier to answer than that one's other ranks, in the end to itself. So one line is logged, and
 * a rank that computes for long ends as well.
 *
 * Where a network is cut in two, each part finds ranks of the other one missing. One that reaches
 * no host but its own, of three or more, takes itself for the one that was cut off, and is silent.
 * Of two hosts none can tell: the one without rank 0 leaves the other the time to end the job.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/ucx/ucx.h"

#define COLLECT_S  0.2 /* for reports of other ranks about the same failure */
#define CHAIN_S    1.0 /* for a rank that is waited for to say what it waits for */
#define PATIENCE_S 5.0 /* for the decision of another rank */
#define FLUSH_S    2.0 /* for telling the others */
#define GRACE_S    5.0 /* for the program to end by itself once the job has failed */
/* For another host to decide and have the job killed, beyond when this one turns away from it. */
#define OTHER_HOST_S (GRACE_S + FLUSH_S + 1)

/* A notice on its way to another rank. */
struct delivery {
    struct eth_hpp_ucx_message message;
    struct eth_hpp_ucx_notice notice;
    bool flushing;
};

static void deliver_step(struct eth_hpp_ucx_message *message, ucs_status_t status);

static void deliver(struct eth_hpp_ucx *ucx, int rank, const struct eth_hpp_ucx_notice *notice)
{
    struct delivery *delivery = calloc(1, sizeof(*delivery));
    if (delivery == NULL)
        return; /* that rank notices by itself that this one is gone */
    delivery->notice = *notice;
    delivery->message.done = deliver_step;
    ucx->failure.sending++;
    eth_hpp_ucx_send(ucx, &delivery->message, &delivery->notice, sizeof(delivery->notice), rank,
                     ETH_HPP_UCX_CONTROL, 0);
}

static void delivered(struct eth_hpp_ucx_message *message, ucs_status_t status)
{
    struct eth_hpp_ucx *ucx = message->ucx;
    (void)status;
    free(message);
    pthread_mutex_lock(&ucx->mutex);
    ucx->failure.sending--;
    pthread_cond_broadcast(&ucx->changed);
    pthread_mutex_unlock(&ucx->mutex);
}

/* What is sent is not what has left: this process is about to end. */
static void deliver_step(struct eth_hpp_ucx_message *message, ucs_status_t status)
{
    if (status != UCS_OK) {
        delivered(message, status);
        return;
    }
    message->done = delivered;
    eth_hpp_ucx_flush(message->ucx, message, message->peer);
}

/* The rank that decides, as far as this one knows. */
static int decider(const struct eth_hpp_ucx *ucx)
{
    for (int rank = 0; rank < ucx->size; rank++)
        if (!ucx->peers[rank].lost && !ucx->peers[rank].silent && !ucx->peers[rank].far)
            return rank;
    /* No host is left: then a rank of one whose other ranks are silent. */
    for (int rank = 0; rank < ucx->size; rank++)
        if (!ucx->peers[rank].lost && !ucx->peers[rank].silent)
            return rank;
    return ucx->rank;
}

static void take_for_silent(struct eth_hpp_ucx *ucx, int silent)
{
    ucx->peers[silent].silent = true;
    for (int rank = 0; rank < ucx->size; rank++)
        if (strcmp(ucx->peers[rank].host, ucx->peers[silent].host) == 0)
            ucx->peers[rank].far = true;
}

/* How many other hosts there are, 2 for more, if this rank has heard of none of them; else 0. */
static int hosts_out_of_reach(const struct eth_hpp_ucx *ucx)
{
    const char *own = ucx->peers[ucx->rank].host, *other = NULL;
    int hosts = 0;
    for (int rank = 0; rank < ucx->size; rank++) {
        const struct eth_hpp_ucx_peer *peer = &ucx->peers[rank];
        if (strcmp(peer->host, own) == 0)
            continue;
        if (peer->heard)
            return 0;
        if (other == NULL || strcmp(peer->host, other) != 0)
            hosts = other == NULL ? 1 : 2;
        other = peer->host;
    }
    return hosts;
}

static void set_state(struct eth_hpp_ucx *ucx, int state, double deadline)
{
    pthread_mutex_lock(&ucx->mutex);
    ucx->failure.state = state;
    ucx->failure.deadline = deadline;
    pthread_cond_broadcast(&ucx->changed);
    pthread_mutex_unlock(&ucx->mutex);
}

/* If the program's thread waits, its wait ends now. */
static void give_up(struct eth_hpp_ucx *ucx)
{
    pthread_mutex_lock(&ucx->mutex);
    ucx->failure.give_up = ucx->failure.waiting;
    pthread_cond_broadcast(&ucx->changed);
    pthread_mutex_unlock(&ucx->mutex);
}

static void ask_to_give_up(struct eth_hpp_ucx *ucx, int rank)
{
    const struct eth_hpp_ucx_notice request = {.kind = ETH_HPP_UCX_GIVE_UP};
    if (rank == ucx->rank)
        give_up(ucx);
    else if (rank >= 0 && !ucx->peers[rank].lost)
        deliver(ucx, rank, &request);
}

/* Does this report say more about the cause than the one that was the best so far? */
static bool is_nearer(const struct eth_hpp_ucx_failure *failure,
                      const struct eth_hpp_ucx_notice *notice)
{
    if (failure->state == ETH_HPP_UCX_RUNNING || notice->gravity > failure->notice.gravity)
        return true;
    return notice->gravity == ETH_HPP_UCX_LATE && failure->notice.gravity == ETH_HPP_UCX_LATE &&
           notice->origin == failure->notice.blames;
}

static void tell_all(struct eth_hpp_ucx *ucx, const struct eth_hpp_ucx_notice *notice)
{
    for (int rank = 0; rank < ucx->size; rank++)
        if (rank != ucx->rank && !ucx->peers[rank].lost)
            deliver(ucx, rank, notice);
}

/* Who answers, answers before the decision. */
static void call_all(struct eth_hpp_ucx *ucx)
{
    const struct eth_hpp_ucx_notice call = {.kind = ETH_HPP_UCX_CALL, .origin = ucx->rank};
    if (!ucx->failure.called)
        tell_all(ucx, &call);
    ucx->failure.called = true;
}

/* To the rank that decides, or to a decision. */
static void pass_on(struct eth_hpp_ucx *ucx)
{
    const int rank = decider(ucx);
    const bool late = ucx->failure.notice.gravity == ETH_HPP_UCX_LATE;
    set_state(ucx, ETH_HPP_UCX_NOTICED,
              eth_hpp_clock_now() + (rank != ucx->rank ? PATIENCE_S
                                     : late            ? CHAIN_S
                                                       : COLLECT_S));
    if (rank != ucx->rank)
        deliver(ucx, rank, &ucx->failure.notice);
    else if (late)
        call_all(ucx);
}

/* An error was noticed here, or another rank reports one. */
static void consider(struct eth_hpp_ucx *ucx, const struct eth_hpp_ucx_notice *notice)
{
    struct eth_hpp_ucx_failure *failure = &ucx->failure;
    const bool decides = decider(ucx) == ucx->rank;
    if (failure->state == ETH_HPP_UCX_ENDED || !is_nearer(failure, notice))
        return;
    pthread_mutex_lock(&ucx->mutex);
    failure->notice = *notice;
    pthread_mutex_unlock(&ucx->mutex);
    if (decides && notice->gravity == ETH_HPP_UCX_LATE)
        ask_to_give_up(ucx, notice->blames);
    pass_on(ucx);
}

/* Where the Slurm plugin runs, it logs which signal has ended a rank. */
static bool signals_are_reported(void)
{
    return getenv("ETH_HPP_SIGNALS_REPORTED") != NULL;
}

void eth_hpp_ucx_failure_lost(struct eth_hpp_ucx *ucx, const struct eth_hpp_ucx_peer *peer)
{
    struct eth_hpp_ucx_notice notice = {.kind = ETH_HPP_UCX_REPORT,
                                        .origin = ucx->rank,
                                        .blames = peer->rank,
                                        .gravity = ETH_HPP_UCX_GONE,
                                        .exit_code = ETH_HPP_EXIT_FAILURE};
    if (peer->ended) {
        notice.quiet = signals_are_reported();
        snprintf(notice.text, sizeof(notice.text),
                 "rank %d on %s is lost: its process was killed or crashed", peer->rank,
                 peer->host);
    } else {
        notice.gravity = ETH_HPP_UCX_BROKEN;
        snprintf(notice.text, sizeof(notice.text),
                 "rank %d on %s is lost: its connection with rank %d on %s broke (%s)", peer->rank,
                 peer->host, ucx->rank, ucx->peers[ucx->rank].host,
                 eth_hpp_ucp.status_string(peer->broken));
    }
    consider(ucx, &notice);
}

static void decide(struct eth_hpp_ucx *ucx)
{
    struct eth_hpp_ucx_notice *notice = &ucx->failure.notice;
    if (!notice->quiet && !(notice->gravity == ETH_HPP_UCX_LATE && hosts_out_of_reach(ucx) > 1)) {
        eth_hpp_log_set_origin(""); /* the text says whose error it is */
        eth_hpp_log_error("%s", notice->text);
    }
    pthread_mutex_lock(&ucx->mutex);
    notice->kind = ETH_HPP_UCX_END;
    ucx->failure.decided = true;
    pthread_mutex_unlock(&ucx->mutex);
    tell_all(ucx, notice);
    set_state(ucx, ETH_HPP_UCX_ENDED, eth_hpp_clock_now() + GRACE_S);
}

/* Is it the other one's turn, of two hosts that do not reach each other? Not for ever: it may hang.
 */
static bool must_wait(struct eth_hpp_ucx *ucx)
{
    struct eth_hpp_ucx_failure *failure = &ucx->failure;
    if (failure->has_waited || failure->notice.gravity != ETH_HPP_UCX_LATE ||
        hosts_out_of_reach(ucx) != 1 || strcmp(ucx->peers[0].host, ucx->peers[ucx->rank].host) == 0)
        return false;
    pthread_mutex_lock(&ucx->mutex);
    failure->has_waited = true;
    pthread_mutex_unlock(&ucx->mutex);
    set_state(ucx, ETH_HPP_UCX_NOTICED, eth_hpp_clock_now() + OTHER_HOST_S);
    return true;
}

static void heard(struct eth_hpp_ucx_message *message, ucs_status_t status)
{
    if (status == UCS_OK) /* else it was cancelled by the close */
        message->ucx->failure.arrived = true;
}

static void hear_next(struct eth_hpp_ucx *ucx)
{
    struct eth_hpp_ucx_failure *failure = &ucx->failure;
    failure->listener.done = heard;
    eth_hpp_ucx_receive(ucx, &failure->listener, &failure->incoming, sizeof(failure->incoming), -1,
                        ETH_HPP_UCX_CONTROL, 0);
}

void eth_hpp_ucx_failure_open(struct eth_hpp_ucx *ucx)
{
    ucx->failure.others = ucx->size - 1;
    ucx->failure.waited_for = -1;
    hear_next(ucx);
}

static void note_sender(struct eth_hpp_ucx *ucx, int rank)
{
    if (rank >= 0 && rank < ucx->size)
        ucx->peers[rank].heard = true;
}

static void answer(struct eth_hpp_ucx *ucx, int rank)
{
    const struct eth_hpp_ucx_notice here = {.kind = ETH_HPP_UCX_HERE, .origin = ucx->rank};
    if (rank >= 0 && rank < ucx->size && rank != ucx->rank && !ucx->peers[rank].lost)
        deliver(ucx, rank, &here);
}

static void end(struct eth_hpp_ucx *ucx, const struct eth_hpp_ucx_notice *decision)
{
    if (ucx->failure.state == ETH_HPP_UCX_ENDED)
        return;
    pthread_mutex_lock(&ucx->mutex);
    ucx->failure.notice = *decision;
    pthread_mutex_unlock(&ucx->mutex);
    set_state(ucx, ETH_HPP_UCX_ENDED, eth_hpp_clock_now() + GRACE_S);
}

static void hear(struct eth_hpp_ucx *ucx)
{
    struct eth_hpp_ucx_notice *notice = &ucx->failure.incoming;
    ucx->failure.arrived = false;
    notice->text[sizeof(notice->text) - 1] = '\0';
    switch (notice->kind) {
    case ETH_HPP_UCX_REPORT:
        note_sender(ucx, notice->origin);
        consider(ucx, notice);
        break;
    case ETH_HPP_UCX_GIVE_UP:
        give_up(ucx);
        break;
    case ETH_HPP_UCX_END:
        end(ucx, notice);
        break;
    case ETH_HPP_UCX_CALL:
        answer(ucx, notice->origin);
        break;
    case ETH_HPP_UCX_HERE:
        note_sender(ucx, notice->origin);
        break;
    }
    hear_next(ucx);
}

void eth_hpp_ucx_failure_left(struct eth_hpp_ucx *ucx)
{
    pthread_mutex_lock(&ucx->mutex);
    ucx->failure.others--;
    pthread_cond_broadcast(&ucx->changed);
    pthread_mutex_unlock(&ucx->mutex);
}

double eth_hpp_ucx_failure_poll(struct eth_hpp_ucx *ucx)
{
    struct eth_hpp_ucx_failure *failure = &ucx->failure;
    while (failure->arrived)
        hear(ucx);
    if (failure->state == ETH_HPP_UCX_RUNNING)
        return -1;
    double left = failure->deadline - eth_hpp_clock_now();
    if (left > 0)
        return left;
    if (failure->state == ETH_HPP_UCX_ENDED) {
        if (!ucx->closing && !ucx->failing)
            _exit(failure->notice.exit_code);
    } else if (decider(ucx) == ucx->rank) {
        if (!must_wait(ucx))
            decide(ucx);
    } else {
        take_for_silent(ucx, decider(ucx));
        pass_on(ucx);
    }
    return COLLECT_S;
}

/* ---- an error of the program itself ---- */

struct report {
    struct eth_hpp_request base;
    struct eth_hpp_ucx_notice notice;
};

static void report_start(struct eth_hpp_request *request)
{
    consider(request->ucx, &((struct report *)request)->notice);
    eth_hpp_ucx_complete(request, UCS_OK);
}

static void report_release(struct eth_hpp_request *request)
{
    free(request);
}

static void submit_report(struct eth_hpp_ucx *ucx, const struct eth_hpp_error *error, int exit_code)
{
    struct report *report = calloc(1, sizeof(*report));
    if (report == NULL)
        return;
    report->base.what = "a report to";
    report->base.start = report_start;
    report->base.release = report_release;
    report->notice.kind = ETH_HPP_UCX_REPORT;
    report->notice.origin = ucx->rank;
    report->notice.blames = ucx->failure.waited_for;
    report->notice.exit_code = exit_code;
    report->notice.quiet = error == NULL;
    report->notice.gravity = error != NULL && error->status == ETH_HPP_ERR_TIMEOUT
                                 ? ETH_HPP_UCX_LATE
                                 : ETH_HPP_UCX_ERROR;
    snprintf(report->notice.text, sizeof(report->notice.text), "rank %d on %s: %s", ucx->rank,
             ucx->peers[ucx->rank].host, error == NULL ? "it ended the job" : error->text);
    eth_hpp_ucx_submit(ucx, &report->base);
}

/* Waits until the others are told; where this rank has decided, until they have ended too. */
static bool is_over(const struct eth_hpp_ucx_failure *failure)
{
    return failure->state == ETH_HPP_UCX_ENDED &&
           (failure->decided ? failure->others == 0 : failure->sending == 0);
}

/* When a rank leaves at the latest: one that is told that the job ends has nothing to wait for but
 * messages to ranks that may be out of reach. `deadline`: without a decision. */
static double latest(const struct eth_hpp_ucx_failure *failure, double deadline)
{
    if (failure->decided || failure->has_waited)
        return failure->deadline + FLUSH_S;
    return failure->state == ETH_HPP_UCX_ENDED ? failure->deadline : deadline;
}

bool eth_hpp_ucx_failure_fail(void *state, const struct eth_hpp_error *error, int exit_code)
{
    struct eth_hpp_ucx *ucx = state;
    pthread_mutex_lock(&ucx->mutex);
    bool known = ucx->failure.state != ETH_HPP_UCX_RUNNING;
    pthread_mutex_unlock(&ucx->mutex);
    /* A PEER error is how this rank learned of a failure that is being dealt with. */
    if (!known || (error != NULL && error->status != ETH_HPP_ERR_PEER))
        submit_report(ucx, error, exit_code);

    const double deadline = eth_hpp_clock_now() + 2 * PATIENCE_S + OTHER_HOST_S + FLUSH_S;
    pthread_mutex_lock(&ucx->mutex);
    ucx->failing = true; /* this thread sees to the end of the process */
    while (!is_over(&ucx->failure))
        if (!eth_hpp_ucx_wait_until(ucx, latest(&ucx->failure, deadline)))
            break;
    const bool stragglers = ucx->failure.decided && ucx->failure.others > 0;
    pthread_mutex_unlock(&ucx->mutex);
    return stragglers;
}
