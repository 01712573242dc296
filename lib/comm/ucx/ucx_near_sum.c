#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/ucx/ucx_near.h"

enum { BLOCK = 1024 }; /* floats that stay in the nearest cache while they are added */

struct near_sum {
    struct eth_hpp_request base;
    struct eth_hpp_ucx_group *group;
    float *data;
    size_t count;
    enum eth_hpp_sum_half halves;
    bool started;
    size_t first, end;            /* its chunks, among all of the group */
    size_t filled, summed, taken; /* as in this member's seat */
};

/* A part of the data, or its place in a slot. */
struct piece {
    size_t from, count, slot_at;
};

static struct piece piece_of(const struct near_sum *sum, size_t chunk, int member)
{
    const int members = sum->group->count;
    const size_t most = ETH_HPP_UCX_SLOT / (size_t)members;
    const size_t end = eth_hpp_comm_share(sum->count, members, member + 1);
    const size_t from =
        eth_hpp_comm_share(sum->count, members, member) + (chunk - sum->first) * most;
    const size_t left = from < end ? end - from : 0;
    return (struct piece){from, left < most ? left : most, (size_t)member * most};
}

static float *slot(float *slots, size_t chunk)
{
    return slots + chunk % 2 * ETH_HPP_UCX_SLOT;
}

static float *addends_of(const struct eth_hpp_ucx_near *near, size_t chunk, int member)
{
    return slot(near->addends + (size_t)member * 2 * ETH_HPP_UCX_SLOT, chunk);
}

/* ---- what others have done ---- */

enum counter { FILLED, SUMMED, TAKEN };

static size_t count_of(struct eth_hpp_ucx_seat *seat, enum counter counter)
{
    atomic_size_t *counts[] = {&seat->filled, &seat->summed, &seat->taken};
    return atomic_load_explicit(counts[counter], memory_order_acquire);
}

/* Have all members counted that far? Remembers who has not. */
static bool all_have(struct near_sum *sum, enum counter counter, size_t count)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    for (int member = 0; member < group->count; member++)
        if (count_of(&group->near->seats[member], counter) < count) {
            if (member != group->position)
                atomic_store_explicit(&sum->base.waits_for, group->ranks[member],
                                      memory_order_relaxed);
            return false;
        }
    return true;
}

static void wake_sleepers(const struct eth_hpp_ucx_group *group)
{
    atomic_thread_fence(memory_order_seq_cst);
    for (int member = 0; member < group->count; member++) {
        struct eth_hpp_ucx_seat *seat = &group->near->seats[member];
        if (member == group->position || !atomic_load(&seat->asleep) ||
            !atomic_exchange(&seat->asleep, false))
            continue;
        ssize_t written = write(group->ucx->peers[group->ranks[member]].bell, "", 1);
        (void)written; /* it fails only where the pipe is full, and then the sleeper wakes anyway */
    }
}

/* ---- what this member does ---- */

static void fill(const struct near_sum *sum, size_t chunk)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    float *to = addends_of(group->near, chunk, group->position);
    for (int member = 0; member < group->count; member++) {
        const struct piece piece = piece_of(sum, chunk, member);
        if (member != group->position)
            memcpy(to + piece.slot_at, sum->data + piece.from, piece.count * sizeof(float));
    }
}

static void add(float *restrict total, const float *restrict addend, size_t count)
{
    for (size_t i = 0; i < count; i++)
        total[i] += addend[i];
}

static void add_all(const struct near_sum *sum, size_t chunk)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    const struct piece piece = piece_of(sum, chunk, group->position);
    const bool scatters = sum->halves & ETH_HPP_SUM_SCATTER;
    float total[BLOCK], *own = sum->data + piece.from;
    float *result = slot(group->near->sums, chunk) + piece.slot_at;
    for (size_t at = 0; at < piece.count; at += BLOCK) {
        const size_t count = piece.count - at < BLOCK ? piece.count - at : BLOCK;
        for (int member = 0; member < group->count; member++) {
            const float *from = member == group->position
                                    ? own
                                    : addends_of(group->near, chunk, member) + piece.slot_at;
            if (!scatters && member != group->position)
                continue;
            if (member == 0 || !scatters)
                memcpy(total, from + at, count * sizeof(float));
            else
                add(total, from + at, count);
        }
        memcpy(result + at, total, count * sizeof(float));
        memcpy(own + at, total, count * sizeof(float));
    }
}

static void take(const struct near_sum *sum, size_t chunk)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    const float *from = slot(group->near->sums, chunk);
    for (int member = 0; member < group->count; member++) {
        const struct piece piece = piece_of(sum, chunk, member);
        if (member != group->position)
            memcpy(sum->data + piece.from, from + piece.slot_at, piece.count * sizeof(float));
    }
}

static void count_on(atomic_size_t *counter, size_t *own)
{
    atomic_store_explicit(counter, ++*own, memory_order_release);
}

/* One thing of one chunk, the one that others wait for first; false where nothing can be done. A
 * slot is free when all are done with the chunk two before. */
static bool do_one(struct near_sum *sum)
{
    struct eth_hpp_ucx_seat *seat = &sum->group->near->seats[sum->group->position];
    if (sum->summed < sum->filled && all_have(sum, FILLED, sum->summed + 1) &&
        (sum->summed < 2 || all_have(sum, TAKEN, sum->summed - 1))) {
        add_all(sum, sum->summed);
        count_on(&seat->summed, &sum->summed);
    } else if (sum->filled < sum->end &&
               (sum->filled < 2 || all_have(sum, SUMMED, sum->filled - 1))) {
        if (sum->halves & ETH_HPP_SUM_SCATTER)
            fill(sum, sum->filled);
        count_on(&seat->filled, &sum->filled);
    } else if (sum->taken < sum->summed && all_have(sum, SUMMED, sum->taken + 1)) {
        if (sum->halves & ETH_HPP_SUM_GATHER)
            take(sum, sum->taken);
        count_on(&seat->taken, &sum->taken);
    } else {
        return false;
    }
    wake_sleepers(sum->group);
    return true;
}

static void begin(struct near_sum *sum)
{
    struct eth_hpp_ucx_group *group = sum->group;
    const size_t members = (size_t)group->count, most = ETH_HPP_UCX_SLOT / members;
    const size_t share = (sum->count + members - 1) / members;
    sum->started = true;
    sum->first = sum->filled = sum->summed = sum->taken = group->near->chunks;
    sum->end = group->near->chunks = sum->first + (share + most - 1) / most;
    group->next_near = group->ucx->near_running;
    group->ucx->near_running = group;
}

static void unlink_running(struct eth_hpp_ucx_group *group)
{
    struct eth_hpp_ucx_group **at = &group->ucx->near_running;
    while (*at != group)
        at = &(*at)->next_near;
    *at = group->next_near;
}

static bool advance(struct near_sum *sum)
{
    bool some = false;
    if (!sum->started)
        begin(sum);
    while (do_one(sum))
        some = true;
    if (sum->taken == sum->end) {
        unlink_running(sum->group);
        eth_hpp_ucx_group_finish(sum->group, UCS_OK);
        return true;
    }
    return some;
}

static void near_advance(struct eth_hpp_request *request)
{
    advance((struct near_sum *)request);
}

static bool advance_running(struct eth_hpp_ucx *ucx)
{
    bool some = false;
    struct eth_hpp_ucx_group *next;
    for (struct eth_hpp_ucx_group *group = ucx->near_running; group != NULL; group = next) {
        next = group->next_near; /* it may leave the list */
        some = advance((struct near_sum *)group->first) || some;
    }
    return some;
}

static void set_asleep(struct eth_hpp_ucx *ucx, bool asleep)
{
    for (struct eth_hpp_ucx_group *group = ucx->near_running; group != NULL;
         group = group->next_near)
        if (group->near->asleep != asleep) {
            group->near->asleep = asleep;
            atomic_store(&group->near->seats[group->position].asleep, asleep);
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

static void near_start(struct eth_hpp_request *request)
{
    eth_hpp_ucx_group_enqueue(((struct near_sum *)request)->group, request);
}

static void near_release(struct eth_hpp_request *request)
{
    free(request);
}

enum eth_hpp_status eth_hpp_ucx_near_sum(struct eth_hpp_ucx_group *group, float *data, size_t count,
                                         enum eth_hpp_sum_half halves,
                                         struct eth_hpp_request **request,
                                         struct eth_hpp_error *err)
{
    struct near_sum *sum = calloc(1, sizeof(*sum));
    if (sum == NULL)
        return eth_hpp_error_memory(err, "a gradient sum");
    sum->base.what = "a sum with";
    sum->base.start = near_start;
    sum->base.advance = near_advance;
    sum->base.release = near_release;
    sum->group = group;
    sum->data = data;
    sum->count = count;
    sum->halves = halves;
    eth_hpp_ucx_submit(group->ucx, &sum->base);
    *request = &sum->base;
    return ETH_HPP_OK;
}
