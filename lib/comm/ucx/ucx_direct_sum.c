/*
 * Sums of data that all members, on one machine, can reach where they lie: each adds its share from
 * all and writes the sum to all. Whether every member's data are within what it shares is known
 * when all have begun.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/ucx/ucx_sum.h"

enum { STEP = 1 << 14 }; /* floats between two looks at messages */

/* ---- memory ---- */

static void *map(int descriptor, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

enum eth_hpp_status eth_hpp_ucx_share(void *state, size_t bytes, void **memory,
                                      struct eth_hpp_error *err)
{
    struct eth_hpp_ucx *ucx = state;
    struct eth_hpp_ucx_peer *own = &ucx->peers[ucx->rank];
    const int descriptor = ucx->shared < 0 ? memfd_create("eth-hpp-sums", MFD_CLOEXEC) : -1;
    if (descriptor >= 0 && bytes > 0 && ftruncate(descriptor, (off_t)bytes) == 0)
        own->shared = map(descriptor, bytes);
    if (own->shared == NULL || descriptor < 0) {
        if (descriptor >= 0)
            close(descriptor);
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED, "no memory can be shared");
    }
    ucx->shared = descriptor;
    own->shared_bytes = bytes;
    *memory = own->shared;
    return ETH_HPP_OK;
}

bool eth_hpp_ucx_share_map(struct eth_hpp_ucx_peer *peer, int descriptor, size_t bytes)
{
    char path[64];
    struct stat info;
    if (peer->shared != NULL)
        return true;
    if (descriptor < 0 || bytes == 0)
        return false;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", peer->pid, descriptor);
    const int opened = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);
    if (opened < 0)
        return false;
    if (fstat(opened, &info) == 0 && (size_t)info.st_size == bytes)
        peer->shared = map(opened, bytes);
    peer->shared_bytes = bytes;
    close(opened);
    return peer->shared != NULL;
}

void eth_hpp_ucx_share_free(struct eth_hpp_ucx_peer *peer)
{
    if (peer->shared != NULL)
        munmap(peer->shared, peer->shared_bytes);
}

/* ---- sums ---- */

/* Where the sum's data are in what this rank shares; SIZE_MAX: elsewhere. */
static size_t offset_of(const struct eth_hpp_ucx_sum *sum)
{
    const struct eth_hpp_ucx *ucx = sum->group->ucx;
    const struct eth_hpp_ucx_peer *own = &ucx->peers[ucx->rank];
    const uintptr_t from = (uintptr_t)own->shared, at = (uintptr_t)sum->data;
    if (own->shared == NULL || at < from || at - from > own->shared_bytes ||
        sum->count * sizeof(float) > own->shared_bytes - (at - from))
        return SIZE_MAX;
    return at - from;
}

void eth_hpp_ucx_direct_begin(struct eth_hpp_ucx_sum *sum)
{
    struct eth_hpp_ucx_group *group = sum->group;
    struct eth_hpp_ucx_seat *seat = &group->near->seats[group->seat];
    sum->way = ETH_HPP_UCX_UNDECIDED;
    seat->offset = offset_of(sum);
    eth_hpp_ucx_near_count(group, &seat->begun, ++group->sums);
}

bool eth_hpp_ucx_direct_decide(struct eth_hpp_ucx_sum *sum)
{
    struct eth_hpp_ucx_group *group = sum->group;
    if (!eth_hpp_ucx_near_all_have(sum, ETH_HPP_UCX_BEGUN, group->sums))
        return false;
    sum->way = ETH_HPP_UCX_DIRECTLY;
    for (int seat = 0; seat < group->count; seat++)
        if (group->near->seats[seat].offset == SIZE_MAX)
            sum->way = ETH_HPP_UCX_BY_SLOTS;
    if (sum->way == ETH_HPP_UCX_DIRECTLY)
        sum->end = group->chunks = sum->first + 1;
    return true;
}

static float *data_of(const struct eth_hpp_ucx_group *group, int seat)
{
    char *shared = group->ucx->peers[group->ranks[seat]].shared;
    return (float *)(void *)(shared + group->near->seats[seat].offset);
}

static void add_block(const struct eth_hpp_ucx_sum *sum, size_t at, size_t count)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    float total[ETH_HPP_UCX_ADD_BLOCK];
    memcpy(total, data_of(group, 0) + at, count * sizeof(float));
    for (int seat = 1; seat < group->count; seat++)
        eth_hpp_ucx_add(total, data_of(group, seat) + at, count);
    for (int seat = 0; seat < group->count; seat++)
        if (seat == group->seat || (sum->halves & ETH_HPP_SUM_GATHER))
            memcpy(data_of(group, seat) + at, total, count * sizeof(float));
}

/* An all-gather only hands this member's share to the others. */
static void hand_block(const struct eth_hpp_ucx_sum *sum, size_t at, size_t count)
{
    for (int seat = 0; seat < sum->group->count; seat++)
        if (seat != sum->group->seat)
            memcpy(data_of(sum->group, seat) + at, sum->data + at, count * sizeof(float));
}

static bool add_step(struct eth_hpp_ucx_sum *sum)
{
    const int members = sum->group->count, member = sum->group->seat;
    size_t at = eth_hpp_comm_share(sum->count, members, member) + sum->added;
    const size_t share_end = eth_hpp_comm_share(sum->count, members, member + 1);
    const size_t end = share_end - at < STEP ? share_end : at + STEP;
    sum->added += end - at;
    while (at < end) {
        const size_t left = end - at;
        const size_t count = left < ETH_HPP_UCX_ADD_BLOCK ? left : ETH_HPP_UCX_ADD_BLOCK;
        if (sum->halves & ETH_HPP_SUM_SCATTER)
            add_block(sum, at, count);
        else
            hand_block(sum, at, count);
        at += count;
    }
    return end == share_end;
}

bool eth_hpp_ucx_direct_advance(struct eth_hpp_ucx_sum *sum)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    struct eth_hpp_ucx_seat *seat = &group->near->seats[group->seat];
    if (sum->summed < sum->end) {
        if (add_step(sum)) {
            sum->filled = sum->summed = sum->end;
            atomic_store_explicit(&seat->filled, sum->end, memory_order_relaxed);
            eth_hpp_ucx_near_count(group, &seat->summed, sum->end);
        }
        return true;
    }
    if (sum->taken == sum->end || !eth_hpp_ucx_near_all_have(sum, ETH_HPP_UCX_SUMMED, sum->end))
        return false;
    sum->taken = sum->end;
    eth_hpp_ucx_near_count(group, &seat->taken, sum->end);
    return true;
}
