#include <string.h>

#include "comm/ucx/ucx_sum.h"

struct range {
    size_t from, end; /* floats of a chunk */
};

static float *addends_of(const struct eth_hpp_ucx_group *group, size_t chunk, int seat)
{
    const size_t slots = ETH_HPP_UCX_SLOTS * group->chunk;
    return eth_hpp_ucx_sum_slot(group, group->near->addends + (size_t)seat * slots, chunk);
}

static float *sums_of(const struct eth_hpp_ucx_group *group, size_t chunk)
{
    return eth_hpp_ucx_sum_slot(group, group->near->sums, chunk);
}

static struct range own_piece(const struct eth_hpp_ucx_group *group)
{
    const struct eth_hpp_ucx_piece *own =
        &group->pieces[group->machine_start[group->machine] + group->seat];
    return (struct range){own->at, own->at + own->count};
}

/* What this member adds: its own piece, whose sum is then where it belongs; with other machines an
 * equal part, since their pieces are to be added, too. */
static struct range own_part(const struct eth_hpp_ucx_group *group, size_t floats)
{
    const int members = eth_hpp_ucx_members_here(group);
    if (group->machines == 1)
        return own_piece(group);
    return (struct range){eth_hpp_comm_share(floats, members, group->seat),
                          eth_hpp_comm_share(floats, members, group->seat + 1)};
}

/* ---- what others of this machine have done ---- */

static size_t count_of(struct eth_hpp_ucx_seat *seat, enum eth_hpp_ucx_counter counter)
{
    atomic_size_t *counts[] = {&seat->begun, &seat->filled, &seat->summed, &seat->exchanged,
                               &seat->taken};
    return atomic_load_explicit(counts[counter], memory_order_acquire);
}

/* Has a member counted that far? Remembers who has not. */
static bool has(struct eth_hpp_ucx_sum *sum, int seat, enum eth_hpp_ucx_counter counter,
                size_t count)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    if (count_of(&group->near->seats[seat], counter) >= count)
        return true;
    if (seat != group->seat)
        atomic_store_explicit(&sum->base.waits_for, eth_hpp_ucx_member(group, group->machine, seat),
                              memory_order_relaxed);
    return false;
}

bool eth_hpp_ucx_near_all_have(struct eth_hpp_ucx_sum *sum, enum eth_hpp_ucx_counter counter,
                               size_t count)
{
    for (int seat = 0; seat < eth_hpp_ucx_members_here(sum->group); seat++)
        if (!has(sum, seat, counter, count))
            return false;
    return true;
}

static void wake_sleepers(const struct eth_hpp_ucx_group *group)
{
    atomic_thread_fence(memory_order_seq_cst);
    for (int at = 0; at < eth_hpp_ucx_members_here(group); at++) {
        struct eth_hpp_ucx_seat *seat = &group->near->seats[at];
        if (at == group->seat || !atomic_load(&seat->asleep) ||
            !atomic_exchange(&seat->asleep, false))
            continue;
        const int rank = eth_hpp_ucx_member(group, group->machine, at);
        eth_hpp_ucx_ring(group->ucx->peers[rank].bell);
    }
}

void eth_hpp_ucx_near_count(const struct eth_hpp_ucx_group *group, atomic_size_t *counter,
                            size_t count)
{
    atomic_store_explicit(counter, count, memory_order_release);
    wake_sleepers(group);
}

bool eth_hpp_ucx_near_summed(struct eth_hpp_ucx_sum *sum, size_t chunk)
{
    return eth_hpp_ucx_near_all_have(sum, ETH_HPP_UCX_SUMMED, chunk + 1);
}

void eth_hpp_ucx_near_exchanged(struct eth_hpp_ucx_sum *sum, size_t chunk)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    eth_hpp_ucx_near_count(group, &group->near->seats[group->seat].exchanged, chunk + 1);
}

/* ---- what this member does ---- */

enum direction { INTO_SLOT, OUT_OF_SLOT };

static void copy(const struct eth_hpp_ucx_sum *sum, float *slot, struct range range,
                 enum direction direction)
{
    for (int i = 0; i < sum->group->count; i++) {
        const struct eth_hpp_ucx_piece *piece = &sum->group->pieces[i];
        const size_t from = range.from > piece->at ? range.from : piece->at;
        const size_t piece_end = piece->at + piece->count;
        const size_t end = range.end < piece_end ? range.end : piece_end;
        float *data = sum->data + piece->from + (from - piece->at);
        if (from >= end)
            continue;
        if (direction == INTO_SLOT)
            memcpy(slot + from, data, (end - from) * sizeof(float));
        else
            memcpy(data, slot + from, (end - from) * sizeof(float));
    }
}

static void copy_others(const struct eth_hpp_ucx_sum *sum, float *slot, struct range own,
                        size_t floats, enum direction direction)
{
    copy(sum, slot, (struct range){0, own.from}, direction);
    copy(sum, slot, (struct range){own.end, floats}, direction);
}

static void fill(const struct eth_hpp_ucx_sum *sum, size_t chunk)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    const size_t floats = eth_hpp_ucx_sum_lay(sum, chunk);
    copy_others(sum, addends_of(group, chunk, group->seat), own_part(group, floats), floats,
                INTO_SLOT);
}

/* Adds in the order of the members; this one's addends are still in the data. */
static void add_run(const struct eth_hpp_ucx_sum *sum, size_t chunk, size_t at, float *own,
                    size_t count)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    const int members = eth_hpp_ucx_members_here(group);
    float total[ETH_HPP_UCX_ADD_BLOCK];
    for (int seat = 0; seat < members; seat++) {
        const float *from = seat == group->seat ? own : addends_of(group, chunk, seat) + at;
        if (seat == 0)
            memcpy(total, from, count * sizeof(float));
        else
            eth_hpp_ucx_add(total, from, count);
    }
    memcpy(sums_of(group, chunk) + at, total, count * sizeof(float));
    if (group->machines == 1)
        memcpy(own, total, count * sizeof(float));
}

static void add_part(const struct eth_hpp_ucx_sum *sum, size_t chunk)
{
    const size_t floats = eth_hpp_ucx_sum_lay(sum, chunk);
    const struct range part = own_part(sum->group, floats);
    for (int i = 0; i < sum->group->count; i++) {
        const struct eth_hpp_ucx_piece *piece = &sum->group->pieces[i];
        size_t at = part.from > piece->at ? part.from : piece->at;
        const size_t piece_end = piece->at + piece->count;
        const size_t end = part.end < piece_end ? part.end : piece_end;
        while (at < end) {
            const size_t left = end - at;
            const size_t count = left < ETH_HPP_UCX_ADD_BLOCK ? left : ETH_HPP_UCX_ADD_BLOCK;
            add_run(sum, chunk, at, sum->data + piece->from + (at - piece->at), count);
            at += count;
        }
    }
}

static void offer_own_piece(const struct eth_hpp_ucx_sum *sum, size_t chunk)
{
    eth_hpp_ucx_sum_lay(sum, chunk);
    copy(sum, sums_of(sum->group, chunk), own_piece(sum->group), INTO_SLOT);
}

static void take(const struct eth_hpp_ucx_sum *sum, size_t chunk)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    const size_t floats = eth_hpp_ucx_sum_lay(sum, chunk);
    float *sums = sums_of(group, chunk);
    if (group->machines > 1)
        copy(sum, sums,
             sum->halves == ETH_HPP_SUM_SCATTER ? own_piece(group) : (struct range){0, floats},
             OUT_OF_SLOT);
    else if (sum->halves & ETH_HPP_SUM_GATHER)
        copy_others(sum, sums, own_piece(group), floats, OUT_OF_SLOT);
}

/* A slot is free when all are done with the chunk that was in it. */
static bool may_sum(struct eth_hpp_ucx_sum *sum)
{
    const size_t slots = ETH_HPP_UCX_SLOTS, chunk = sum->summed;
    return chunk < sum->filled && eth_hpp_ucx_near_all_have(sum, ETH_HPP_UCX_FILLED, chunk + 1) &&
           (chunk < slots || eth_hpp_ucx_near_all_have(sum, ETH_HPP_UCX_TAKEN, chunk + 1 - slots));
}

static bool may_fill(struct eth_hpp_ucx_sum *sum)
{
    const size_t slots = ETH_HPP_UCX_SLOTS, chunk = sum->filled;
    return chunk < sum->end &&
           (chunk < slots || eth_hpp_ucx_near_all_have(sum, ETH_HPP_UCX_SUMMED, chunk + 1 - slots));
}

static bool may_take(struct eth_hpp_ucx_sum *sum)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    const size_t chunk = sum->taken;
    if (chunk >= sum->summed)
        return false;
    if (group->machines == 1)
        return eth_hpp_ucx_near_all_have(sum, ETH_HPP_UCX_SUMMED, chunk + 1);
    const int exchanger = eth_hpp_ucx_exchanger(group, group->machine, chunk);
    if (!has(sum, exchanger, ETH_HPP_UCX_EXCHANGED, chunk + 1))
        return false;
    /* What is taken may be written over, so the exchanger's messages must have left it. */
    return exchanger != group->seat ||
           chunk / (size_t)eth_hpp_ucx_members_here(group) < sum->settled;
}

bool eth_hpp_ucx_near_advance(struct eth_hpp_ucx_sum *sum)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    struct eth_hpp_ucx_seat *seat = &group->near->seats[group->seat];
    if (may_sum(sum)) {
        if (sum->halves & ETH_HPP_SUM_SCATTER)
            add_part(sum, sum->summed);
        else
            offer_own_piece(sum, sum->summed);
        eth_hpp_ucx_near_count(group, &seat->summed, ++sum->summed);
    } else if (may_fill(sum)) {
        if (sum->halves & ETH_HPP_SUM_SCATTER)
            fill(sum, sum->filled);
        eth_hpp_ucx_near_count(group, &seat->filled, ++sum->filled);
    } else if (may_take(sum)) {
        take(sum, sum->taken);
        eth_hpp_ucx_near_count(group, &seat->taken, ++sum->taken);
    } else {
        return false;
    }
    return true;
}
