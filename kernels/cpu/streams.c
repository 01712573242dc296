/* Streams and events where everything is done when its call returns: an event is the time at which
 * it was recorded. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/cpu/cpu.h"

struct eth_hpp_event {
    double time;
};

static enum eth_hpp_status allocate_host(void *state, size_t bytes, void **memory,
                                         struct eth_hpp_error *err)
{
    (void)state;
    void *allocated = malloc(bytes > 0 ? bytes : 1);
    if (allocated == NULL)
        return eth_hpp_error_memory(err, "host memory");
    *memory = allocated;
    return ETH_HPP_OK;
}

static void release_host(void *state, void *memory)
{
    (void)state;
    free(memory);
}

static void stream_copy(void *state, int stream, void *to, const void *from, size_t bytes)
{
    (void)state;
    (void)stream;
    memcpy(to, from, bytes);
}

static enum eth_hpp_status event_create(void *state, struct eth_hpp_event **event,
                                        struct eth_hpp_error *err)
{
    (void)state;
    struct eth_hpp_event *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return eth_hpp_error_memory(err, "an event");
    *event = made;
    return ETH_HPP_OK;
}

static void event_destroy(void *state, struct eth_hpp_event *event)
{
    (void)state;
    free(event);
}

static void event_record(void *state, struct eth_hpp_event *event, int stream)
{
    (void)state;
    (void)stream;
    event->time = eth_hpp_clock_now();
}

static void stream_wait(void *state, int stream, struct eth_hpp_event *event)
{
    (void)state;
    (void)stream;
    (void)event;
}

static enum eth_hpp_status event_test(void *state, struct eth_hpp_event *event, bool *done,
                                      struct eth_hpp_error *err)
{
    (void)state;
    (void)event;
    (void)err;
    *done = true;
    return ETH_HPP_OK;
}

static double event_seconds(void *state, struct eth_hpp_event *from, struct eth_hpp_event *to)
{
    (void)state;
    return to->time - from->time;
}

void ETH_HPP_CPU(streams_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->allocate_host = allocate_host;
    ops->release_host = release_host;
    ops->stream_to_device = stream_copy;
    ops->stream_to_host = stream_copy;
    ops->event_create = event_create;
    ops->event_destroy = event_destroy;
    ops->event_record = event_record;
    ops->stream_wait = stream_wait;
    ops->event_test = event_test;
    ops->event_seconds = event_seconds;
}
