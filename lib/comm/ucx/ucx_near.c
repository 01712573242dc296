/* Memory that the members of a group share where all of them run on one machine. */
#include "comm/ucx/ucx_near.h"

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

static size_t shared_bytes(int members)
{
    /* Two slots for each member's addends, two for the sums. */
    return seats_bytes(members) + sizeof(float) * ETH_HPP_UCX_SLOT * 2 * ((size_t)members + 1);
}

/* By the machine alone, so that all members answer alike. */
static bool on_one_machine(const struct eth_hpp_ucx_group *group)
{
    for (int i = 0; i < group->count; i++)
        if (!group->ucx->peers[group->ranks[i]].near)
            return false;
    return group->count > 1;
}

/* The end of every member is noticed, and every member can be woken. */
static bool reaches_all(const struct eth_hpp_ucx_group *group)
{
    for (int i = 0; i < group->count; i++) {
        const struct eth_hpp_ucx_peer *peer = &group->ucx->peers[group->ranks[i]];
        if (i != group->position && (peer->pid_descriptor < 0 || peer->bell < 0))
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
    const off_t bytes = (off_t)shared_bytes(group->count);
    if (group->position == 0) {
        descriptor = memfd_create("eth-hpp", MFD_CLOEXEC);
        if (descriptor < 0 || ftruncate(descriptor, bytes) == 0)
            return descriptor;
    } else {
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", group->ucx->peers[group->ranks[0]].pid,
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
    near->bytes = shared_bytes(group->count);
    near->memory = mmap(NULL, near->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (near->memory == MAP_FAILED) {
        free(near);
        return NULL;
    }
    near->seats = near->memory;
    near->addends = (float *)((char *)near->memory + seats_bytes(group->count));
    near->sums = near->addends + (size_t)group->count * 2 * ETH_HPP_UCX_SLOT;
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

enum eth_hpp_status eth_hpp_ucx_near_open(struct eth_hpp_ucx_group *group,
                                          struct eth_hpp_error *err)
{
    if (!on_one_machine(group))
        return ETH_HPP_OK;
    int descriptor = group->position == 0 ? open_memory(group, -1) : -1;
    double first_descriptor = descriptor, failed;
    enum eth_hpp_status status = largest(group, &first_descriptor, 1, err);
    if (status != ETH_HPP_OK) {
        if (descriptor >= 0)
            close(descriptor);
        return status;
    }
    if (group->position > 0)
        descriptor = open_memory(group, (int)first_descriptor);
    group->near = map(group, descriptor);
    failed = group->near == NULL || !reaches_all(group);
    status = largest(group, &failed, 1, err); /* after it the memory lives by its maps */
    if (descriptor >= 0)
        close(descriptor);
    if (status != ETH_HPP_OK || failed != 0)
        eth_hpp_ucx_near_free(group);
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
