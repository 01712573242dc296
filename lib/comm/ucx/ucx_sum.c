/*
 * Ring all-reduce: k - 1 steps in which each chunk is summed as it goes around, then k - 1 steps in
 * which the sums go around. A chunk is summed in one order on one rank, so the result has the same
 * bits everywhere. Chunks travel in segments, so that adding one runs beside the transfer of the
 * next.
 *
 * All segments of all steps are counted through as units: unit u belongs to step u / segments. In
 * step s position p sends chunk p - s - 1 and receives chunk p - s - 2 (modulo k), so unit u sends
 * what unit u - segments has received, and the data themselves give the order. The first half ends
 * with chunk p, its share, summed on position p: reduce-scatter is that half alone, all-gather the
 * other.
 */
#include <stdlib.h>

#include "comm/ucx/ucx.h"

enum {
    SEGMENT = 1 << 16, /* floats: 256 KiB */
    WINDOW = 4         /* units under way each way */
};

struct flight {
    struct eth_hpp_ucx_message message;
    struct sum *sum;
    bool arrived;
    float *scratch; /* of a receive */
};

struct sum {
    struct eth_hpp_request base;
    struct eth_hpp_ucx_group *group;
    float *data;
    size_t count, segments, units, reduce_units;
    size_t sends, sends_done, receives, receives_done; /* units started and done, in order */
    ucs_status_t status;
    struct flight send[WINDOW], receive[WINDOW];
    float scratch[];
};

struct span {
    float *data;
    size_t count;
};

/* The part of the data that a unit carries, given the chunk that this position has in step 0. */
static struct span unit_span(const struct sum *sum, size_t unit, int chunk_at_start)
{
    size_t k = (size_t)sum->group->count;
    size_t step = unit / sum->segments, segment = unit % sum->segments;
    size_t chunk = ((size_t)chunk_at_start + 2 * k - step % k) % k;
    size_t start = eth_hpp_comm_share(sum->count, (int)k, (int)chunk);
    size_t end = eth_hpp_comm_share(sum->count, (int)k, (int)chunk + 1);
    size_t from = start + segment * SEGMENT;
    if (from >= end)
        return (struct span){sum->data, 0};
    return (struct span){sum->data + from, end - from < SEGMENT ? end - from : SEGMENT};
}

static struct span send_span(const struct sum *sum, size_t unit)
{
    return unit_span(sum, unit, sum->group->position - 1 + sum->group->count);
}

static struct span receive_span(const struct sum *sum, size_t unit)
{
    return unit_span(sum, unit, sum->group->position - 2 + sum->group->count);
}

static int neighbour(const struct sum *sum, int distance)
{
    int k = sum->group->count;
    return sum->group->ranks[(sum->group->position + distance + k) % k];
}

static void landed(struct eth_hpp_ucx_message *message, ucs_status_t status)
{
    struct flight *flight = (struct flight *)message;
    if (status != UCS_OK && flight->sum->status == UCS_OK)
        flight->sum->status = status;
    flight->arrived = true;
    eth_hpp_ucx_group_touch(flight->sum->group);
}

static void add(float *total, const float *addend, size_t count)
{
    for (size_t i = 0; i < count; i++)
        total[i] += addend[i];
}

static void collect(struct sum *sum)
{
    while (sum->sends_done < sum->sends && sum->send[sum->sends_done % WINDOW].arrived)
        sum->sends_done++;
    while (sum->receives_done < sum->receives &&
           sum->receive[sum->receives_done % WINDOW].arrived) {
        if (sum->receives_done < sum->reduce_units && sum->status == UCS_OK) {
            struct span span = receive_span(sum, sum->receives_done);
            add(span.data, sum->receive[sum->receives_done % WINDOW].scratch, span.count);
        }
        sum->receives_done++;
    }
}

/* In the second half a unit is received in its place, which the first half must have sent. */
static bool may_receive(const struct sum *sum)
{
    size_t unit = sum->receives;
    return unit < sum->units && unit < sum->receives_done + WINDOW &&
           (unit < sum->reduce_units || unit - sum->reduce_units < sum->sends_done);
}

static bool may_send(const struct sum *sum)
{
    size_t unit = sum->sends;
    return unit < sum->units && unit < sum->sends_done + WINDOW &&
           (unit < sum->segments || unit - sum->segments < sum->receives_done);
}

static void start_receive(struct sum *sum)
{
    struct flight *flight = &sum->receive[sum->receives % WINDOW];
    struct span span = receive_span(sum, sum->receives);
    float *to = sum->receives < sum->reduce_units ? flight->scratch : span.data;
    sum->receives++;
    flight->arrived = span.count == 0;
    if (!flight->arrived)
        eth_hpp_ucx_receive(sum->base.ucx, &flight->message, to, span.count * sizeof(float),
                            neighbour(sum, -1), ETH_HPP_UCX_SUM, sum->group->id);
}

static void start_send(struct sum *sum)
{
    struct flight *flight = &sum->send[sum->sends % WINDOW];
    struct span span = send_span(sum, sum->sends);
    sum->sends++;
    flight->arrived = span.count == 0;
    if (!flight->arrived)
        eth_hpp_ucx_send(sum->base.ucx, &flight->message, span.data, span.count * sizeof(float),
                         neighbour(sum, 1), ETH_HPP_UCX_SUM, sum->group->id);
}

static void sum_advance(struct eth_hpp_request *request)
{
    struct sum *sum = (struct sum *)request;
    bool more = true;
    while (more) {
        collect(sum);
        more = false;
        while (sum->status == UCS_OK && may_receive(sum)) {
            start_receive(sum);
            more = true;
        }
        while (sum->status == UCS_OK && may_send(sum)) {
            start_send(sum);
            more = true;
        }
    }
    bool settled = sum->sends_done == sum->sends && sum->receives_done == sum->receives;
    atomic_store(&request->waits_for, neighbour(sum, sum->receives_done < sum->units ? -1 : 1));
    if (settled && (sum->status != UCS_OK || sum->receives_done == sum->units))
        eth_hpp_ucx_group_finish(sum->group, sum->status);
}

static void sum_start(struct eth_hpp_request *request)
{
    eth_hpp_ucx_group_enqueue(((struct sum *)request)->group, request);
}

static void sum_release(struct eth_hpp_request *request)
{
    free(request);
}

enum eth_hpp_status eth_hpp_ucx_group_sum(void *group, float *data, size_t count,
                                          enum eth_hpp_sum_half halves,
                                          struct eth_hpp_request **request,
                                          struct eth_hpp_error *err)
{
    struct eth_hpp_ucx_group *g = group;
    if (g->near != NULL)
        return eth_hpp_ucx_near_sum(g, data, count, halves, request, err);
    size_t k = (size_t)g->count;
    size_t largest = (count + k - 1) / k;
    size_t scratch = largest < SEGMENT ? largest : SEGMENT;
    struct sum *sum = calloc(1, sizeof(*sum) + WINDOW * scratch * sizeof(float));
    if (sum == NULL)
        return eth_hpp_error_memory(err, "a gradient sum");
    sum->base.what = "a sum with";
    sum->base.start = sum_start;
    sum->base.advance = sum_advance;
    sum->base.release = sum_release;
    sum->group = g;
    sum->data = data;
    sum->count = count;
    sum->segments = (largest + SEGMENT - 1) / SEGMENT;
    sum->reduce_units = (k - 1) * sum->segments;
    sum->units = (halves & ETH_HPP_SUM_GATHER) ? 2 * sum->reduce_units : sum->reduce_units;
    if (!(halves & ETH_HPP_SUM_SCATTER)) /* the first half counts as done */
        sum->sends = sum->sends_done = sum->receives = sum->receives_done = sum->reduce_units;
    for (int i = 0; i < WINDOW; i++) {
        sum->send[i].message.done = sum->receive[i].message.done = landed;
        sum->send[i].sum = sum->receive[i].sum = sum;
        sum->receive[i].scratch = sum->scratch + (size_t)i * scratch;
    }
    eth_hpp_ucx_submit(g->ucx, &sum->base);
    *request = &sum->base;
    return ETH_HPP_OK;
}
