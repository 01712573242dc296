/*
 * A transport of host memory under a device whose memory is its own: what is sent or summed is
 * copied to the host first, what comes is copied to the device, on streams of the kernels'. Each
 * piece of device memory has a mirror in host memory, in which everything keeps its place; so a
 * place in the mirror is free when that on the device is.
 *
 * A request waits for the device (BEFORE), then for the transport (UNDER_WAY), then, where
 * something has come, for the device again (AFTER). Nobody tells when the device is ready, so
 * whoever waits asks, for all requests, in the order in which they were started.
 */
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "comm/component.h"
#include "kernels/kernels.h"

#define SPIN_S  1e-4
#define REST_NS 50000

enum kind { SEND, RECV, SUM, REDUCE, KINDS };
enum state { BEFORE, UNDER_WAY, AFTER, DONE };

struct mirror {
    char *device, *host;
    size_t bytes;
};

struct staged {
    struct eth_hpp_comm *comm; /* of host memory */
    struct eth_hpp_kernels *kernels;
    struct mirror *mirrors;
    size_t mirror_count;
    struct eth_hpp_request *first, *last; /* not done */
    struct eth_hpp_request *spare;        /* to be used again, with their events */
    struct eth_hpp_request *all;          /* that were ever made */
    struct eth_hpp_error failure;         /* of a transfer or of the device: nothing goes on */
};

struct group {
    struct staged *staged;
    struct eth_hpp_group *group; /* of host memory */
};

struct eth_hpp_request {
    struct staged *staged;
    struct eth_hpp_request *next, *all_next;
    struct eth_hpp_request *beneath; /* the transport's own */
    struct eth_hpp_event *event;
    enum kind kind;
    enum state state;
    char *device, *host;
    size_t size;
    int peer;
    uint32_t tag;
    struct eth_hpp_group *group;
    enum eth_hpp_sum_half halves;
};

static const enum eth_hpp_stream streams[KINDS] = {
    [SEND] = ETH_HPP_STREAM_SEND, [RECV] = ETH_HPP_STREAM_RECV, [SUM] = ETH_HPP_STREAM_SYNC};

/* ---- memory ---- */

static enum eth_hpp_status staged_register(void *state, void *memory, size_t bytes,
                                           struct eth_hpp_error *err)
{
    struct staged *staged = state;
    const struct eth_hpp_kernels *kernels = staged->kernels;
    void *host = NULL;
    struct mirror *mirrors =
        realloc(staged->mirrors, sizeof(*mirrors) * (staged->mirror_count + 1));
    if (mirrors == NULL)
        return eth_hpp_error_memory(err, "the mirrors of device memory");
    staged->mirrors = mirrors;
    enum eth_hpp_status status = kernels->ops->allocate_host(kernels->state, bytes, &host, err);
    if (status == ETH_HPP_OK)
        mirrors[staged->mirror_count++] =
            (struct mirror){.device = memory, .host = host, .bytes = bytes};
    return status;
}

static char *host_of(const struct staged *staged, const char *device, size_t size)
{
    for (size_t i = 0; i < staged->mirror_count; i++) {
        const struct mirror *m = &staged->mirrors[i];
        if (device >= m->device && device + size <= m->device + m->bytes)
            return m->host + (device - m->device);
    }
    return NULL;
}

/* ---- one request ---- */

static enum eth_hpp_status make(struct staged *staged, enum kind kind,
                                struct eth_hpp_request **request, struct eth_hpp_error *err)
{
    const struct eth_hpp_kernels *kernels = staged->kernels;
    struct eth_hpp_request *made = staged->spare;
    if (made != NULL) {
        staged->spare = made->next;
    } else {
        made = calloc(1, sizeof(*made));
        if (made == NULL)
            return eth_hpp_error_memory(err, "a transfer");
        made->all_next = staged->all;
        staged->all = made;
        enum eth_hpp_status status = kernels->ops->event_create(kernels->state, &made->event, err);
        if (status != ETH_HPP_OK)
            return status;
    }
    *made = (struct eth_hpp_request){
        .staged = staged, .all_next = made->all_next, .event = made->event, .kind = kind};
    *request = made;
    return ETH_HPP_OK;
}

static void spare(struct eth_hpp_request *request)
{
    request->next = request->staged->spare;
    request->staged->spare = request;
}

static void append(struct eth_hpp_request *request)
{
    struct staged *staged = request->staged;
    if (staged->last != NULL)
        staged->last->next = request;
    else
        staged->first = request;
    staged->last = request;
}

/* Puts it behind what has been issued on the compute stream, its first copy included. */
static enum eth_hpp_status start(struct eth_hpp_request *request, void *device, size_t size,
                                 struct eth_hpp_error *err)
{
    struct staged *staged = request->staged;
    const struct eth_hpp_kernels *kernels = staged->kernels;
    const enum eth_hpp_stream stream = streams[request->kind];
    request->device = device;
    request->size = size;
    request->host = host_of(staged, device, size);
    if (request->host == NULL) {
        spare(request);
        return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL,
                                 "device memory of %zu bytes is to be transferred that was not "
                                 "registered",
                                 size);
    }
    kernels->ops->event_record(kernels->state, request->event, ETH_HPP_STREAM_COMPUTE);
    if (request->kind != RECV) {
        kernels->ops->stream_wait(kernels->state, stream, request->event);
        kernels->ops->stream_to_host(kernels->state, stream, request->host, device, size);
        kernels->ops->event_record(kernels->state, request->event, stream);
    }
    append(request);
    return ETH_HPP_OK;
}

/* The device is ready: on to the transport. */
static enum eth_hpp_status go_under_way(struct eth_hpp_request *r, struct eth_hpp_error *err)
{
    struct eth_hpp_comm *comm = r->staged->comm;
    r->state = UNDER_WAY;
    switch (r->kind) {
    case SEND:
        return eth_hpp_comm_send(comm, r->host, r->size, r->peer, r->tag, &r->beneath, err);
    case RECV:
        return eth_hpp_comm_recv(comm, r->host, r->size, r->peer, r->tag, &r->beneath, err);
    case SUM:
        return eth_hpp_comm_group_sum(r->group, (float *)(void *)r->host, r->size / sizeof(float),
                                      r->halves, &r->beneath, err);
    case REDUCE:
    case KINDS:
        break;
    }
    return ETH_HPP_OK;
}

/* The transport's part is done, waited for and freed: what has come goes to the device. */
static void arrive(struct eth_hpp_request *r)
{
    const struct eth_hpp_kernels *kernels = r->staged->kernels;
    r->beneath = NULL;
    r->state = r->kind == SEND || r->kind == REDUCE ? DONE : AFTER;
    if (r->state == DONE)
        return;
    kernels->ops->stream_to_device(kernels->state, streams[r->kind], r->device, r->host, r->size);
    kernels->ops->event_record(kernels->state, r->event, streams[r->kind]);
}

static enum eth_hpp_status wait_beneath(struct eth_hpp_request *r, double timeout_s,
                                        struct eth_hpp_error *err)
{
    enum eth_hpp_status status = eth_hpp_comm_wait(r->staged->comm, r->beneath, timeout_s, err);
    if (status == ETH_HPP_OK)
        arrive(r);
    return status;
}

/* As far as it can go now. Values of a reduction are written by its wait only. */
static enum eth_hpp_status advance(struct eth_hpp_request *r, struct eth_hpp_error *err)
{
    struct staged *staged = r->staged;
    const struct eth_hpp_kernels *kernels = staged->kernels;
    enum eth_hpp_status status = ETH_HPP_OK;
    bool ready = true;
    if (r->state == BEFORE) {
        status = kernels->ops->event_test(kernels->state, r->event, &ready, err);
        if (status == ETH_HPP_OK && ready)
            status = go_under_way(r, err);
    }
    if (status == ETH_HPP_OK && r->state == UNDER_WAY && r->kind != REDUCE &&
        eth_hpp_comm_test(staged->comm, r->beneath)) {
        status = wait_beneath(r, 0, err);
    }
    if (status == ETH_HPP_OK && r->state == AFTER) {
        status = kernels->ops->event_test(kernels->state, r->event, &ready, err);
        if (status == ETH_HPP_OK && ready)
            r->state = DONE;
    }
    return status;
}

/* ---- all requests ---- */

/* Of one kind none overtakes another on its way to the transport: that counts on their order. */
static enum eth_hpp_status progress(struct staged *staged, struct eth_hpp_error *err)
{
    bool held[KINDS] = {false};
    struct eth_hpp_request **at = &staged->first, *last = NULL;
    while (staged->failure.status == ETH_HPP_OK && *at != NULL) {
        struct eth_hpp_request *r = *at;
        if (r->state != BEFORE || !held[r->kind])
            advance(r, &staged->failure);
        held[r->kind] = held[r->kind] || r->state == BEFORE;
        if (r->state == DONE) {
            *at = r->next; /* it is whoever waits for it that has it now */
        } else {
            last = r;
            at = &r->next;
        }
    }
    if (staged->failure.status != ETH_HPP_OK)
        return eth_hpp_error_set(err, staged->failure.status, "%s", staged->failure.text);
    staged->last = last;
    return ETH_HPP_OK;
}

static void staged_progress(void *state)
{
    progress(state, NULL);
}

/* Somebody has to look after the device while this waits for the transport. */
static bool device_matters(const struct staged *staged)
{
    for (const struct eth_hpp_request *r = staged->first; r != NULL; r = r->next)
        if (r->state == BEFORE)
            return true;
    return false;
}

static enum eth_hpp_status wait_until(struct eth_hpp_request *r, enum state state, double timeout_s,
                                      struct eth_hpp_error *err)
{
    const struct timespec rest = {.tv_nsec = REST_NS};
    const double begin = eth_hpp_clock_now();
    for (;;) {
        enum eth_hpp_status status = progress(r->staged, err);
        if (status != ETH_HPP_OK || r->state >= state)
            return status;
        const double waited = eth_hpp_clock_now() - begin, left = timeout_s - waited;
        if (r->state == UNDER_WAY && (left <= 0 || !device_matters(r->staged) ||
                                      eth_hpp_comm_test(r->staged->comm, r->beneath))) {
            status = wait_beneath(r, left > 0 ? left : 0, err);
            if (status != ETH_HPP_OK)
                return status;
        } else if (left <= 0) {
            return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT,
                                     "the device has not got to it after %.0f s", waited);
        } else if (waited > SPIN_S) {
            nanosleep(&rest, NULL);
        }
    }
}

static bool staged_test(struct eth_hpp_request *request)
{
    struct staged *staged = request->staged;
    if (request->kind == REDUCE)
        return eth_hpp_comm_test(staged->comm, request->beneath);
    return progress(staged, NULL) != ETH_HPP_OK || request->state == DONE;
}

/* The device waits for what comes; what is sent has to have left its mirror. */
static enum eth_hpp_status staged_join(struct eth_hpp_request *request, double timeout_s,
                                       struct eth_hpp_error *err)
{
    const struct eth_hpp_kernels *kernels = request->staged->kernels;
    enum eth_hpp_status status =
        wait_until(request, request->kind == SEND ? DONE : AFTER, timeout_s, err);
    if (status == ETH_HPP_OK && request->state == AFTER)
        kernels->ops->stream_wait(kernels->state, ETH_HPP_STREAM_COMPUTE, request->event);
    return status;
}

static enum eth_hpp_status staged_wait(struct eth_hpp_request *request, double timeout_s,
                                       struct eth_hpp_error *err)
{
    enum eth_hpp_status status = wait_until(request, DONE, timeout_s, err);
    if (status == ETH_HPP_OK)
        status = progress(request->staged, err); /* which takes it out of the list */
    if (status == ETH_HPP_OK)
        spare(request);
    return status;
}

/* ---- the interface ---- */

static enum eth_hpp_status transfer(struct staged *staged, enum kind kind, void *data, size_t size,
                                    int peer, uint32_t tag, struct eth_hpp_request **request,
                                    struct eth_hpp_error *err)
{
    struct eth_hpp_request *made;
    enum eth_hpp_status status = make(staged, kind, &made, err);
    if (status != ETH_HPP_OK)
        return status;
    made->peer = peer;
    made->tag = tag;
    status = start(made, data, size, err);
    if (status == ETH_HPP_OK)
        *request = made;
    return status;
}

static enum eth_hpp_status staged_send(void *state, const void *data, size_t size, int peer,
                                       uint32_t tag, struct eth_hpp_request **request,
                                       struct eth_hpp_error *err)
{
    return transfer(state, SEND, (void *)data, size, peer, tag, request, err);
}

static enum eth_hpp_status staged_recv(void *state, void *data, size_t size, int peer, uint32_t tag,
                                       struct eth_hpp_request **request, struct eth_hpp_error *err)
{
    return transfer(state, RECV, data, size, peer, tag, request, err);
}

static enum eth_hpp_status staged_group_open(void *state, const int *ranks, int count, uint32_t id,
                                             void **group, struct eth_hpp_error *err)
{
    struct staged *staged = state;
    struct group *made = malloc(sizeof(*made));
    if (made == NULL)
        return eth_hpp_error_memory(err, "a group of ranks");
    made->staged = staged;
    enum eth_hpp_status status =
        eth_hpp_comm_group_open(staged->comm, ranks, count, id, &made->group, err);
    if (status == ETH_HPP_OK)
        *group = made;
    else
        free(made);
    return status;
}

static enum eth_hpp_status staged_group_sum(void *group, float *data, size_t count,
                                            enum eth_hpp_sum_half halves,
                                            struct eth_hpp_request **request,
                                            struct eth_hpp_error *err)
{
    const struct group *of = group;
    struct eth_hpp_request *made;
    enum eth_hpp_status status = make(of->staged, SUM, &made, err);
    if (status != ETH_HPP_OK)
        return status;
    made->group = of->group;
    made->halves = halves;
    status = start(made, data, count * sizeof(float), err);
    if (status == ETH_HPP_OK)
        *request = made;
    return status;
}

static enum eth_hpp_status staged_group_reduce(void *group, double *values, int count,
                                               enum eth_hpp_reduction reduction,
                                               struct eth_hpp_request **request,
                                               struct eth_hpp_error *err)
{
    const struct group *of = group;
    struct eth_hpp_request *made;
    enum eth_hpp_status status = make(of->staged, REDUCE, &made, err);
    if (status != ETH_HPP_OK)
        return status;
    made->state = UNDER_WAY;
    status = eth_hpp_comm_group_reduce(of->group, values, count, reduction, &made->beneath, err);
    if (status != ETH_HPP_OK) {
        spare(made);
        return status;
    }
    append(made);
    *request = made;
    return ETH_HPP_OK;
}

static enum eth_hpp_status staged_check(void *state, struct eth_hpp_error *err)
{
    return eth_hpp_comm_check(((struct staged *)state)->comm, err);
}

static bool staged_fail(void *state, const struct eth_hpp_error *error, int exit_code)
{
    return eth_hpp_comm_fail(((struct staged *)state)->comm, error, exit_code);
}

static void staged_close(void *state)
{
    struct staged *staged = state;
    const struct eth_hpp_kernels *kernels = staged->kernels;
    eth_hpp_comm_close(staged->comm); /* until then it may write into the mirrors */
    while (staged->all != NULL) {
        struct eth_hpp_request *next = staged->all->all_next;
        kernels->ops->event_destroy(kernels->state, staged->all->event);
        free(staged->all);
        staged->all = next;
    }
    for (size_t i = 0; i < staged->mirror_count; i++)
        kernels->ops->release_host(kernels->state, staged->mirrors[i].host);
    free(staged->mirrors);
    free(staged);
}

static const struct eth_hpp_comm_ops staged_ops = {
    .name = "staged",
    .send = staged_send,
    .recv = staged_recv,
    .register_memory = staged_register,
    .group_open = staged_group_open,
    .group_sum = staged_group_sum,
    .group_reduce = staged_group_reduce,
    .group_free = free,
    .test = staged_test,
    .join = staged_join,
    .progress = staged_progress,
    .wait = staged_wait,
    .check = staged_check,
    .fail = staged_fail,
    .close = staged_close,
};

enum eth_hpp_status eth_hpp_comm_stage(struct eth_hpp_comm *comm, struct eth_hpp_kernels *kernels,
                                       struct eth_hpp_comm **staged, struct eth_hpp_error *err)
{
    struct staged *state = calloc(1, sizeof(*state));
    if (state == NULL)
        return eth_hpp_error_memory(err, "the transport");
    state->comm = comm;
    state->kernels = kernels;
    enum eth_hpp_status status = eth_hpp_comm_create(&staged_ops, state, staged, err);
    if (status != ETH_HPP_OK)
        free(state);
    return status;
}
