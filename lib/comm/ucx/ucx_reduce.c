/*
 * Reduction of a few doubles: the group's first rank gathers them, combines them in the order of
 * the ranks and sends the result to all, so it has the same bits everywhere.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/ucx/ucx.h"

struct exchange {
    struct eth_hpp_ucx_message message;
    struct reduce *reduce;
};

struct reduce {
    struct eth_hpp_request base;
    struct eth_hpp_ucx_group *group;
    double *result; /* the program's: not touched before its wait has succeeded */
    double *values; /* this rank's, then everybody's */
    int count;
    enum eth_hpp_reduction reduction;
    enum { WAITING, GATHERING, SPREADING } phase;
    int under_way;
    ucs_status_t status;
    double *gathered;            /* [members][count], on the first rank */
    struct exchange exchanges[]; /* [members] */
};

static void exchanged(struct eth_hpp_ucx_message *message, ucs_status_t status)
{
    struct reduce *reduce = ((struct exchange *)message)->reduce;
    if (status != UCS_OK && reduce->status == UCS_OK)
        reduce->status = status;
    reduce->under_way--;
    eth_hpp_ucx_group_touch(reduce->group);
}

static void receive_from(struct reduce *reduce, int slot, int position, double *values)
{
    struct eth_hpp_ucx_group *group = reduce->group;
    reduce->under_way++;
    eth_hpp_ucx_receive(group->ucx, &reduce->exchanges[slot].message, values,
                        sizeof(*values) * (size_t)reduce->count, group->ranks[position],
                        ETH_HPP_UCX_REDUCE, group->id);
}

static void send_to(struct reduce *reduce, int slot, int position, const double *values)
{
    struct eth_hpp_ucx_group *group = reduce->group;
    reduce->under_way++;
    eth_hpp_ucx_send(group->ucx, &reduce->exchanges[slot].message, values,
                     sizeof(*values) * (size_t)reduce->count, group->ranks[position],
                     ETH_HPP_UCX_REDUCE, group->id);
}

static double combine(double a, double b, enum eth_hpp_reduction reduction)
{
    if (reduction == ETH_HPP_REDUCE_SUM)
        return a + b;
    return isnan(a) || isnan(b) ? NAN : fmax(a, b);
}

static void combine_all(struct reduce *reduce)
{
    for (int member = 1; member < reduce->group->count; member++)
        for (int i = 0; i < reduce->count; i++)
            reduce->values[i] = combine(
                reduce->values[i], reduce->gathered[member * reduce->count + i], reduce->reduction);
}

static void begin(struct reduce *reduce)
{
    int members = reduce->group->count;
    if (reduce->group->position == 0) {
        for (int member = 1; member < members; member++)
            receive_from(reduce, member, member, &reduce->gathered[member * reduce->count]);
    } else {
        /* UCX may still be reading the values when the result comes, so it gets a place of its own.
         */
        send_to(reduce, 0, 0, reduce->values);
        receive_from(reduce, 1, 0, reduce->gathered);
    }
}

static void spread(struct reduce *reduce)
{
    if (reduce->group->position == 0) {
        combine_all(reduce);
        for (int member = 1; member < reduce->group->count; member++)
            send_to(reduce, member, member, reduce->values);
    } else {
        memcpy(reduce->values, reduce->gathered, sizeof(*reduce->values) * (size_t)reduce->count);
    }
}

/* Which member is waited for: on the first rank the first that has not come. */
static int missing(const struct reduce *reduce)
{
    const struct eth_hpp_ucx_group *group = reduce->group;
    for (int member = 1; group->position == 0 && member < group->count; member++)
        if (reduce->exchanges[member].message.handle != NULL)
            return group->ranks[member];
    return group->ranks[0];
}

static void reduce_advance(struct eth_hpp_request *request)
{
    struct reduce *reduce = (struct reduce *)request;
    if (reduce->phase == WAITING) {
        reduce->phase = GATHERING;
        begin(reduce);
    }
    if (reduce->phase == GATHERING && reduce->under_way == 0 && reduce->status == UCS_OK) {
        reduce->phase = SPREADING;
        spread(reduce);
    }
    atomic_store(&request->waits_for, missing(reduce));
    if (reduce->under_way == 0)
        eth_hpp_ucx_group_finish(reduce->group, reduce->status);
}

static void reduce_start(struct eth_hpp_request *request)
{
    eth_hpp_ucx_group_enqueue(((struct reduce *)request)->group, request);
}

static void reduce_deliver(struct eth_hpp_request *request)
{
    struct reduce *reduce = (struct reduce *)request;
    memcpy(reduce->result, reduce->values, sizeof(*reduce->values) * (size_t)reduce->count);
}

static void reduce_release(struct eth_hpp_request *request)
{
    free(((struct reduce *)request)->gathered);
    free(request);
}

enum eth_hpp_status eth_hpp_ucx_group_reduce(void *group, double *values, int count,
                                             enum eth_hpp_reduction reduction,
                                             struct eth_hpp_request **request,
                                             struct eth_hpp_error *err)
{
    struct eth_hpp_ucx_group *g = group;
    size_t slots = g->count < 2 ? 2 : (size_t)g->count;
    struct reduce *reduce = calloc(1, sizeof(*reduce) + slots * sizeof(reduce->exchanges[0]));
    if (reduce == NULL)
        goto no_memory;
    reduce->gathered = calloc((slots + 1) * (size_t)count, sizeof(*values));
    if (reduce->gathered == NULL)
        goto no_memory;
    reduce->result = values;
    reduce->values = reduce->gathered + slots * (size_t)count;
    memcpy(reduce->values, values, sizeof(*values) * (size_t)count);
    reduce->base.what = "a reduction with";
    reduce->base.start = reduce_start;
    reduce->base.advance = reduce_advance;
    reduce->base.deliver = reduce_deliver;
    reduce->base.release = reduce_release;
    reduce->group = g;
    reduce->count = count;
    reduce->reduction = reduction;
    for (size_t i = 0; i < slots; i++) {
        reduce->exchanges[i].reduce = reduce;
        reduce->exchanges[i].message.done = exchanged;
    }
    eth_hpp_ucx_submit(g->ucx, &reduce->base);
    *request = &reduce->base;
    return ETH_HPP_OK;
no_memory:
    free(reduce);
    return eth_hpp_error_memory(err, "a reduction");
}
