/* Waiting for the device. It may hang, and then somebody has to say in what; and while it computes,
 * other ranks may wait for what it has finished. */
#include <time.h>

#include "base/clock.h"
#include "runtime/context.h"

#define SPIN_S  1e-4 /* most waits are short, or over before they begin */
#define REST_NS 50000

void eth_hpp_device_mark(struct eth_hpp_context *context, struct eth_hpp_event *event)
{
    const struct eth_hpp_kernels *kernels = context->kernels;
    kernels->ops->event_record(kernels->state, event, ETH_HPP_STREAM_COMPUTE);
}

static bool is_done(struct eth_hpp_context *context, int i)
{
    const struct eth_hpp_kernels *kernels = context->kernels;
    const struct eth_hpp_executor *executor = &context->executor;
    struct eth_hpp_event *end = executor->spans[i].to;
    bool done = true;
    if (executor->requests[i] != NULL && !eth_hpp_comm_test(context->comm, executor->requests[i]))
        return false;
    return end == NULL ||
           (kernels->ops->event_test(kernels->state, end, &done, NULL) == ETH_HPP_OK && done);
}

/* The first instruction that is not done, of those that have been issued. */
static int first_unfinished(struct eth_hpp_context *context)
{
    const int last = context->executor.issuing;
    int i = 0;
    while (i < last && is_done(context, i))
        i++;
    return i;
}

enum eth_hpp_status eth_hpp_device_await(struct eth_hpp_context *context,
                                         struct eth_hpp_event *event, struct eth_hpp_error *err)
{
    const struct eth_hpp_kernels *kernels = context->kernels;
    const struct timespec rest = {.tv_nsec = REST_NS};
    const double start = eth_hpp_clock_now();
    double since = start; /* the device got on */
    int waits_for = -1;
    for (;;) {
        bool done;
        enum eth_hpp_status status = kernels->ops->event_test(kernels->state, event, &done, err);
        if (status != ETH_HPP_OK || done)
            return status;
        eth_hpp_comm_progress(context->comm);
        status = eth_hpp_comm_check(context->comm, err); /* else what it waits for may never come */
        if (status != ETH_HPP_OK)
            return status;
        const double now = eth_hpp_clock_now();
        if (now - start > SPIN_S)
            nanosleep(&rest, NULL);
        if (now - since < context->timeout_s && waits_for >= 0)
            continue;
        const int unfinished = first_unfinished(context);
        if (unfinished == waits_for) {
            eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT, "the device is not done after %.0f s",
                              now - since);
            return eth_hpp_executor_name(context, unfinished, err);
        }
        waits_for = unfinished;
        since = now;
    }
}

enum eth_hpp_status eth_hpp_device_read(struct eth_hpp_context *context, void *host,
                                        const void *from, size_t bytes, struct eth_hpp_error *err)
{
    const struct eth_hpp_kernels *kernels = context->kernels;
    struct eth_hpp_event *made = context->executor.reading;
    eth_hpp_device_mark(context, made);
    enum eth_hpp_status status = eth_hpp_device_await(context, made, err);
    if (status == ETH_HPP_OK)
        status = kernels->ops->to_host(kernels->state, host, from, bytes, err);
    return status;
}
