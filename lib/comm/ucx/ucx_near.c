/* Memory that those members of a group share that run on one machine. */
#include "comm/ucx/ucx_sum.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static size_t seats_bytes(int members)
{
    return (sizeof(struct eth_hpp_ucx_seat) * (size_t)members + 4095) / 4096 * 4096;
}

static size_t shared_bytes(const struct eth_hpp_ucx_group *group)
{
    /* Slots for each member's addends and for the sums. */
    const size_t runs = (size_t)eth_hpp_ucx_members_here(group) + 1;
    return seats_bytes(eth_hpp_ucx_members_here(group)) +
           sizeof(float) * group->chunk * ETH_HPP_UCX_SLOTS * runs;
}

/* The end of every member is noticed, and every member can be woken. */
static bool wakes_all(const struct eth_hpp_ucx_group *group)
{
    for (int seat = 0; seat < eth_hpp_ucx_members_here(group); seat++) {
        const int rank = eth_hpp_ucx_member(group, group->machine, seat);
        const struct eth_hpp_ucx_peer *peer = &group->ucx->peers[rank];
        if (seat != group->seat && (peer->pid_descriptor < 0 || peer->bell < 0))
            return false;
    }
    return true;
}

/* The first member's descriptor, or of another one the same memory by way of it; or -1. */
static int open_memory(const struct eth_hpp_ucx_group *group, int first_descriptor)
{
    char path[64];
    int descriptor;
    struct stat info;
    const off_t bytes = (off_t)shared_bytes(group);
    if (group->seat == 0) {
        descriptor = memfd_create("eth-hpp", MFD_CLOEXEC);
        if (descriptor < 0 || ftruncate(descriptor, bytes) == 0)
            return descriptor;
    } else {
        const int first = eth_hpp_ucx_member(group, group->machine, 0);
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", group->ucx->peers[first].pid,
                 first_descriptor);
        descriptor = first_descriptor < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);
        if (descriptor < 0 || (fstat(descriptor, &info) == 0 && info.st_size == bytes))
            return descriptor;
    }
    close(descriptor);
    return -1;
}

static struct eth_hpp_ucx_near *map(const struct eth_hpp_ucx_group *group, int descriptor)
{
    struct eth_hpp_ucx_near *near = descriptor < 0 ? NULL : calloc(1, sizeof(*near));
    if (near == NULL)
        return NULL;
    near->bytes = shared_bytes(group);
    near->memory = mmap(NULL, near->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (near->memory == MAP_FAILED) {
        free(near);
        return NULL;
    }
    near->seats = near->memory;
    const size_t members = (size_t)eth_hpp_ucx_members_here(group);
    near->addends = (float *)((char *)near->memory + seats_bytes((int)members));
    near->sums = near->addends + members * ETH_HPP_UCX_SLOTS * group->chunk;
    return near;
}

static enum eth_hpp_status largest(struct eth_hpp_ucx_group *group, double *values, int count,
                                   struct eth_hpp_error *err)
{
    struct eth_hpp_request *request;
    enum eth_hpp_status status =
        eth_hpp_ucx_group_reduce(group, values, count, ETH_HPP_REDUCE_MAX, &request, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_ucx_wait(request, group->ucx->timeout_s, err);
    return status;
}

enum { REACH_MOST = (ETH_HPP_REDUCE_MAX_VALUES - 1) / 2 };

/* Its part of values[2 x members], of which the largest are taken: descriptors, then bytes. */
static void offer(const struct eth_hpp_ucx_group *group, double *values)
{
    const struct eth_hpp_ucx *ucx = group->ucx;
    for (int i = 0; i < 2 * group->count; i++)
        values[i] = -1;
    values[group->seat] = ucx->shared;
    values[group->count + group->seat] = (double)ucx->peers[ucx->rank].shared_bytes;
}

static bool reach_all(const struct eth_hpp_ucx_group *group, const double *values)
{
    for (int seat = 0; seat < group->count; seat++)
        if (!eth_hpp_ucx_share_map(&group->ucx->peers[group->ranks[seat]], (int)values[seat],
                                   (size_t)values[group->count + seat]))
            return false;
    return true;
}

/* Maps what the first member here has made; *descriptor keeps it alive until all have it. */
static enum eth_hpp_status share_memory(struct eth_hpp_ucx_group *group, int *descriptor,
                                        struct eth_hpp_error *err)
{
    const int start = group->machine_start[group->machine];
    const int members = eth_hpp_ucx_members_here(group);
    int ranks[members];
    for (int seat = 0; seat < members; seat++)
        ranks[seat] = group->ranks[group->order[start + seat]];
    enum eth_hpp_status status =
        eth_hpp_ucx_group_make(group->ucx, ranks, members, group->id, &group->here, err);
    if (status != ETH_HPP_OK)
        return status;
    *descriptor = group->seat == 0 ? open_memory(group, -1) : -1;
    /* Of the memory; then of what each member shares, and how much that is. */
    double values[1 + 2 * REACH_MOST] = {*descriptor};
    const bool reach = group->machines == 1 && members <= REACH_MOST;
    if (reach)
        offer(group, values + 1);
    if (members > 1)
        status = largest(group->here, values, reach ? 1 + 2 * members : 1, err);
    if (status == ETH_HPP_OK && group->seat > 0)
        *descriptor = open_memory(group, (int)values[0]);
    if (status == ETH_HPP_OK)
        group->near = map(group, *descriptor);
    if (group->near != NULL)
        group->near->reaches = reach && reach_all(group, values + 1);
    return status;
}

enum eth_hpp_status eth_hpp_ucx_near_open(struct eth_hpp_ucx_group *group,
                                          struct eth_hpp_error *err)
{
    int descriptor = -1;
    if (group->machines == group->count)
        return ETH_HPP_OK;
    enum eth_hpp_status status = share_memory(group, &descriptor, err);
    const bool failed = group->near == NULL || !wakes_all(group);
    double worst[] = {failed, failed || !group->near->reaches};
    if (status == ETH_HPP_OK)
        status = largest(group, worst, 2, err); /* after it the memory lives by its maps */
    if (descriptor >= 0)
        close(descriptor);
    if (status != ETH_HPP_OK || worst[0] != 0)
        eth_hpp_ucx_near_free(group);
    else
        group->near->reaches = worst[1] == 0;
    return status;
}

void eth_hpp_ucx_near_free(struct eth_hpp_ucx_group *group)
{
    if (group->near == NULL)
        return;
    munmap(group->near->memory, group->near->bytes);
    free(group->near);
    group->near = NULL;
}
