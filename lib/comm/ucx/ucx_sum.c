#include "comm/ucx/ucx_sum.h"

#include <stdlib.h>

size_t eth_hpp_ucx_sum_lay(const struct eth_hpp_ucx_sum *sum, size_t chunk)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    const size_t most = group->chunk / (size_t)group->count;
    size_t total = 0;
    for (int i = 0; i < group->count; i++) {
        const int member = group->order[i];
        const size_t end = eth_hpp_comm_share(sum->count, group->count, member + 1);
        const size_t from =
            eth_hpp_comm_share(sum->count, group->count, member) + (chunk - sum->first) * most;
        const size_t left = from < end ? end - from : 0;
        group->pieces[i] = (struct eth_hpp_ucx_piece){from, left < most ? left : most, total};
        total += group->pieces[i].count;
    }
    return total;
}

float *eth_hpp_ucx_sum_slot(const struct eth_hpp_ucx_group *group, float *slots, size_t chunk)
{
    return slots + chunk % ETH_HPP_UCX_SLOTS * group->chunk;
}

static void begin(struct eth_hpp_ucx_sum *sum)
{
    struct eth_hpp_ucx_group *group = sum->group;
    const size_t members = (size_t)group->count, most = group->chunk / members;
    const size_t share = (sum->count + members - 1) / members;
    sum->started = true;
    sum->first = sum->filled = sum->summed = sum->taken = group->chunks;
    sum->end = group->chunks = sum->first + (share + most - 1) / most;
    if (group->machines > 1)
        eth_hpp_ucx_far_begin(sum);
    if (group->near == NULL)
        return;
    if (group->near->reaches)
        eth_hpp_ucx_direct_begin(sum);
    struct eth_hpp_ucx_group **last = &group->ucx->near_running;
    while (*last != NULL)
        last = &(*last)->next_near;
    group->next_near = NULL;
    *last = group;
}

static void unlink_running(struct eth_hpp_ucx_group *group)
{
    struct eth_hpp_ucx_group **at = &group->ucx->near_running;
    while (*at != group)
        at = &(*at)->next_near;
    *at = group->next_near;
}

static bool advance_near(struct eth_hpp_ucx_sum *sum)
{
    switch (sum->way) {
    case ETH_HPP_UCX_UNDECIDED:
        return eth_hpp_ucx_direct_decide(sum);
    case ETH_HPP_UCX_DIRECTLY:
        return eth_hpp_ucx_direct_advance(sum);
    case ETH_HPP_UCX_BY_SLOTS:
        return eth_hpp_ucx_near_advance(sum);
    }
    return false;
}

/* One thing inside the machine, and all that can be done between machines; false if that was
 * nothing. */
static bool advance(struct eth_hpp_ucx_sum *sum)
{
    struct eth_hpp_ucx_group *group = sum->group;
    bool some = false;
    if (!sum->started)
        begin(sum);
    if (group->near != NULL && sum->status == UCS_OK)
        some = advance_near(sum);
    if (group->machines > 1)
        some = eth_hpp_ucx_far_advance(sum) || some;
    if (group->machines > 1 && !eth_hpp_ucx_far_is_over(sum))
        return some;
    if (group->near != NULL && sum->status == UCS_OK &&
        (sum->way == ETH_HPP_UCX_UNDECIDED || sum->taken < sum->end))
        return some;
    if (group->near != NULL)
        unlink_running(group);
    eth_hpp_ucx_group_finish(group, sum->status);
    return true;
}

static void sum_advance(struct eth_hpp_request *request)
{
    advance((struct eth_hpp_ucx_sum *)request);
}

/* One step of the oldest sum that can do one: between two steps messages are looked after, and what
 * a sum uses stays in the caches. */
static bool advance_running(struct eth_hpp_ucx *ucx)
{
    struct eth_hpp_ucx_group *next;
    for (struct eth_hpp_ucx_group *group = ucx->near_running; group != NULL; group = next) {
        next = group->next_near; /* it may leave the list */
        if (advance((struct eth_hpp_ucx_sum *)group->first))
            return true;
    }
    return false;
}

static void set_asleep(struct eth_hpp_ucx *ucx, bool asleep)
{
    for (struct eth_hpp_ucx_group *group = ucx->near_running; group != NULL;
         group = group->next_near)
        if (group->near->asleep != asleep) {
            group->near->asleep = asleep;
            atomic_store(&group->near->seats[group->seat].asleep, asleep);
        }
}

bool eth_hpp_ucx_near_poll(struct eth_hpp_ucx *ucx)
{
    set_asleep(ucx, false);
    return advance_running(ucx);
}

bool eth_hpp_ucx_near_sleep(struct eth_hpp_ucx *ucx)
{
    set_asleep(ucx, true);
    atomic_thread_fence(memory_order_seq_cst);
    return !advance_running(ucx);
}

static void sum_start(struct eth_hpp_request *request)
{
    eth_hpp_ucx_group_enqueue(((struct eth_hpp_ucx_sum *)request)->group, request);
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
    struct eth_hpp_ucx_sum *sum = calloc(1, sizeof(*sum));
    if (sum == NULL)
        return eth_hpp_error_memory(err, "a gradient sum");
    sum->base.what = "a sum with";
    sum->base.start = sum_start;
    sum->base.advance = sum_advance;
    sum->base.release = sum_release;
    sum->group = group;
    sum->data = data;
    sum->count = count;
    sum->halves = halves;
    eth_hpp_ucx_submit(sum->group->ucx, &sum->base);
    *request = &sum->base;
    return ETH_HPP_OK;
}
