/*
 * Operations. What goes by NCCL is issued at once on the stream of its communicator, behind an
 * event of the compute stream, and an event behind it says when it is done: the device does the
 * rest. Small values go by the control transport.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "comm/nccl/nccl.h"

#define SPIN_S 1e-4

enum kind { SEND, RECV, SUM, REDUCE };

struct eth_hpp_request {
    struct eth_hpp_nccl *nccl;
    struct eth_hpp_request *next, *all_next;
    struct eth_hpp_request *beneath; /* of a REDUCE: the control transport's */
    struct eth_hpp_event *event;
    enum kind kind;
    const struct eth_hpp_nccl_communicator *communicator; /* NULL: of one rank, or a REDUCE */
};

static enum eth_hpp_status make(struct eth_hpp_nccl *nccl, enum kind kind,
                                struct eth_hpp_request **request, struct eth_hpp_error *err)
{
    const struct eth_hpp_kernels *kernels = nccl->kernels;
    struct eth_hpp_request *made = nccl->spare;
    if (made != NULL) {
        nccl->spare = made->next;
    } else {
        made = calloc(1, sizeof(*made));
        if (made == NULL)
            return eth_hpp_error_memory(err, "a transfer");
        made->all_next = nccl->all;
        nccl->all = made;
        enum eth_hpp_status status = kernels->ops->event_create(kernels->state, &made->event, err);
        if (status != ETH_HPP_OK)
            return status;
    }
    *made = (struct eth_hpp_request){
        .nccl = nccl, .all_next = made->all_next, .event = made->event, .kind = kind};
    *request = made;
    return ETH_HPP_OK;
}

static void spare(struct eth_hpp_request *request)
{
    request->next = request->nccl->spare;
    request->nccl->spare = request;
}

void eth_hpp_nccl_requests_free(struct eth_hpp_nccl *nccl)
{
    const struct eth_hpp_kernels *kernels = nccl->kernels;
    while (nccl->all != NULL) {
        struct eth_hpp_request *next = nccl->all->all_next;
        kernels->ops->event_destroy(kernels->state, nccl->all->event);
        free(nccl->all);
        nccl->all = next;
    }
}

/* ---- on the device ---- */

/* The communicator's stream goes on when the compute stream has come here. */
static void *begin(struct eth_hpp_request *request,
                   const struct eth_hpp_nccl_communicator *communicator)
{
    const struct eth_hpp_kernels *kernels = request->nccl->kernels;
    request->communicator = communicator;
    kernels->ops->event_record(kernels->state, request->event, ETH_HPP_STREAM_COMPUTE);
    kernels->ops->stream_wait(kernels->state, communicator->stream, request->event);
    return kernels->ops->stream_native(kernels->state, communicator->stream);
}

/* What it was told is on the stream only when the call is over. */
static enum eth_hpp_status end(struct eth_hpp_request *made, int result,
                               struct eth_hpp_request **request, struct eth_hpp_error *err)
{
    const struct eth_hpp_kernels *kernels = made->nccl->kernels;
    enum eth_hpp_status status =
        eth_hpp_nccl_settle(made->nccl, made->communicator->comm, result,
                            made->kind == SUM ? "a sum" : "a hand-over", err);
    if (status != ETH_HPP_OK) {
        spare(made);
        return status;
    }
    kernels->ops->event_record(kernels->state, made->event, made->communicator->stream);
    *request = made;
    return ETH_HPP_OK;
}

static enum eth_hpp_status find_route(const struct eth_hpp_nccl *nccl, int from, int to,
                                      struct eth_hpp_nccl_communicator **route,
                                      struct eth_hpp_error *err)
{
    *route = eth_hpp_nccl_find_route(nccl, from, to);
    if (*route != NULL)
        return ETH_HPP_OK;
    return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL,
                             "a hand-over from rank %d to rank %d, which the layout does not have",
                             from, to);
}

enum eth_hpp_status eth_hpp_nccl_send(void *state, const void *data, size_t size, int peer,
                                      uint32_t tag, struct eth_hpp_request **request,
                                      struct eth_hpp_error *err)
{
    struct eth_hpp_nccl *nccl = state;
    struct eth_hpp_nccl_communicator *route;
    struct eth_hpp_request *made;
    (void)tag; /* they come in the order in which they are sent */
    enum eth_hpp_status status = find_route(nccl, nccl->rank, peer, &route, err);
    if (status == ETH_HPP_OK)
        status = make(nccl, SEND, &made, err);
    if (status != ETH_HPP_OK)
        return status;
    void *stream = begin(made, route);
    return end(made, nccl->library.Send(data, size, NCCL_UINT8, 1, route->comm, stream), request,
               err);
}

enum eth_hpp_status eth_hpp_nccl_recv(void *state, void *data, size_t size, int peer, uint32_t tag,
                                      struct eth_hpp_request **request, struct eth_hpp_error *err)
{
    struct eth_hpp_nccl *nccl = state;
    struct eth_hpp_nccl_communicator *route;
    struct eth_hpp_request *made;
    (void)tag;
    enum eth_hpp_status status = find_route(nccl, peer, nccl->rank, &route, err);
    if (status == ETH_HPP_OK)
        status = make(nccl, RECV, &made, err);
    if (status != ETH_HPP_OK)
        return status;
    void *stream = begin(made, route);
    return end(made, nccl->library.Recv(data, size, NCCL_UINT8, 0, route->comm, stream), request,
               err);
}

/* NCCL's own order of a sum is one for all its ranks: each number is summed in one place and
 * copied from there, so replicas get the same bits. */
static int sum(const struct eth_hpp_nccl *nccl, const struct eth_hpp_nccl_communicator *c,
               float *data, size_t count, enum eth_hpp_sum_half halves, void *stream)
{
    const size_t share = count / (size_t)c->count;
    float *own = data + share * (size_t)c->position;
    switch (halves) {
    case ETH_HPP_SUM_SCATTER:
        return nccl->library.ReduceScatter(data, own, share, NCCL_FLOAT32, NCCL_SUM, c->comm,
                                           stream);
    case ETH_HPP_SUM_GATHER:
        return nccl->library.AllGather(own, data, share, NCCL_FLOAT32, c->comm, stream);
    case ETH_HPP_SUM_WHOLE:
        break;
    }
    return nccl->library.AllReduce(data, data, count, NCCL_FLOAT32, NCCL_SUM, c->comm, stream);
}

/* The halves of NCCL's sums are of shares that are alike: those of a sharded optimizer are. */
static enum eth_hpp_status check_sum(const struct eth_hpp_nccl_group *group, size_t count,
                                     enum eth_hpp_sum_half halves, struct eth_hpp_error *err)
{
    const struct eth_hpp_nccl_communicator *c = group->communicator;
    if (group->alone)
        return ETH_HPP_OK;
    if (c == NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL,
                                 "a sum over ranks that the layout does not have");
    if (halves != ETH_HPP_SUM_WHOLE && count % (size_t)c->count != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL,
                                 "half of a sum of %zu numbers, which %d ranks cannot share alike",
                                 count, c->count);
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_nccl_sum(void *of, float *data, size_t count,
                                     enum eth_hpp_sum_half halves, struct eth_hpp_request **request,
                                     struct eth_hpp_error *err)
{
    struct eth_hpp_nccl_group *group = of;
    struct eth_hpp_request *made;
    enum eth_hpp_status status = check_sum(group, count, halves, err);
    if (status == ETH_HPP_OK)
        status = make(group->nccl, SUM, &made, err);
    if (status != ETH_HPP_OK)
        return status;
    if (group->alone) {
        const struct eth_hpp_kernels *kernels = group->nccl->kernels;
        kernels->ops->event_record(kernels->state, made->event, ETH_HPP_STREAM_COMPUTE);
        *request = made;
        return ETH_HPP_OK;
    }
    void *stream = begin(made, group->communicator);
    return end(made, sum(group->nccl, group->communicator, data, count, halves, stream), request,
               err);
}

enum eth_hpp_status eth_hpp_nccl_reduce(void *of, double *values, int count,
                                        enum eth_hpp_reduction reduction,
                                        struct eth_hpp_request **request, struct eth_hpp_error *err)
{
    struct eth_hpp_nccl_group *group = of;
    struct eth_hpp_request *made;
    enum eth_hpp_status status = make(group->nccl, REDUCE, &made, err);
    if (status != ETH_HPP_OK)
        return status;
    status =
        eth_hpp_comm_group_reduce(group->control, values, count, reduction, &made->beneath, err);
    if (status == ETH_HPP_OK)
        *request = made;
    else
        spare(made);
    return status;
}

/* ---- waits ---- */

static enum eth_hpp_status ask(const struct eth_hpp_request *r, bool *done,
                               struct eth_hpp_error *err)
{
    const struct eth_hpp_kernels *kernels = r->nccl->kernels;
    if (r->kind != REDUCE)
        return kernels->ops->event_test(kernels->state, r->event, done, err);
    *done = eth_hpp_comm_test(r->nccl->control, r->beneath);
    return ETH_HPP_OK;
}

bool eth_hpp_nccl_test(struct eth_hpp_request *request)
{
    bool done = false;
    return ask(request, &done, NULL) != ETH_HPP_OK || done;
}

/* "a receive from rank 3", "a sum with ranks 0, 2" */
static void describe(const struct eth_hpp_request *r, char *text, size_t size)
{
    static const char *const what[] = {"a send to rank", "a receive from rank", "a sum with ranks"};
    const struct eth_hpp_nccl_communicator *c = r->communicator;
    if (c == NULL) {
        snprintf(text, size, "the device");
        return;
    }
    int used = snprintf(text, size, "%s", what[r->kind]);
    for (int i = 0, others = 0; i < c->count && used < (int)size; i++)
        if (i != c->position)
            used += snprintf(text + used, size - (size_t)used, "%s %d", others++ > 0 ? "," : "",
                             c->ranks[i]);
}

static enum eth_hpp_status late(const struct eth_hpp_request *r, double seconds,
                                struct eth_hpp_error *err)
{
    char text[200];
    describe(r, text, sizeof(text));
    return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT, "waited %.2g s for %s", seconds, text);
}

/* Until it is done. Of a REDUCE the control transport knows best whom it waits for. */
static enum eth_hpp_status wait_for(const struct eth_hpp_request *r, double timeout_s,
                                    struct eth_hpp_error *err)
{
    const double start = eth_hpp_clock_now();
    for (;;) {
        bool done = false;
        enum eth_hpp_status status = ask(r, &done, err);
        if (status == ETH_HPP_OK && !done)
            status = eth_hpp_nccl_check(r->nccl, err);
        if (status != ETH_HPP_OK || done)
            return status;
        const double waited = eth_hpp_clock_now() - start;
        if (waited > timeout_s)
            return r->kind == REDUCE ? ETH_HPP_OK : late(r, waited, err);
        if (waited > SPIN_S)
            eth_hpp_nccl_rest();
    }
}

enum eth_hpp_status eth_hpp_nccl_join(struct eth_hpp_request *request, double timeout_s,
                                      struct eth_hpp_error *err)
{
    const struct eth_hpp_kernels *kernels = request->nccl->kernels;
    if (request->kind == REDUCE)
        return wait_for(request, timeout_s, err);
    kernels->ops->stream_wait(kernels->state, ETH_HPP_STREAM_COMPUTE, request->event);
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_nccl_wait(struct eth_hpp_request *request, double timeout_s,
                                      struct eth_hpp_error *err)
{
    enum eth_hpp_status status = wait_for(request, timeout_s, err);
    if (status == ETH_HPP_OK && request->kind == REDUCE)
        status = eth_hpp_comm_wait(request->nccl->control, request->beneath, 0, err);
    if (status == ETH_HPP_OK)
        spare(request);
    return status;
}
