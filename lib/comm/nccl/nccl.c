/* The transport of GPUs: NCCL under the interface of comm.h. */
#include <stdlib.h>

#include "comm/nccl/nccl.h"

enum { EVERYONE = INT32_MAX }; /* the id of a group: none of a block's */

static enum eth_hpp_status nccl_group_open(void *state, const int *ranks, int count, uint32_t id,
                                           void **group, struct eth_hpp_error *err)
{
    struct eth_hpp_nccl *nccl = state;
    struct eth_hpp_nccl_group *made = malloc(sizeof(*made));
    if (made == NULL)
        return eth_hpp_error_memory(err, "a group of ranks");
    made->nccl = nccl;
    made->communicator = eth_hpp_nccl_find_group(nccl, ranks, count);
    made->alone = count == 1;
    enum eth_hpp_status status =
        eth_hpp_comm_group_open(nccl->control, ranks, count, id, &made->control, err);
    if (status == ETH_HPP_OK)
        *group = made;
    else
        free(made);
    return status;
}

static enum eth_hpp_status nccl_check(void *state, struct eth_hpp_error *err)
{
    return eth_hpp_nccl_check(state, err);
}

/* The others are told first: what this rank's device waits for may never come. */
static bool nccl_fail(void *state, const struct eth_hpp_error *error, int exit_code)
{
    struct eth_hpp_nccl *nccl = state;
    const bool stragglers = eth_hpp_comm_fail(nccl->control, error, exit_code);
    eth_hpp_nccl_communicators_abort(nccl);
    return stragglers;
}

static void forget(struct eth_hpp_nccl *nccl, bool stopped)
{
    const struct eth_hpp_kernels *kernels = nccl->kernels;
    eth_hpp_nccl_requests_free(nccl);
    if (stopped) /* else it would be waited for */
        kernels->ops->release_host(kernels->state, nccl->token);
    free(nccl);
}

/* A rank may close long before the others, whose communicators its own are to outlive. */
static bool all_close(struct eth_hpp_nccl *nccl)
{
    struct eth_hpp_request *request;
    double nothing = 0;
    if (eth_hpp_comm_group_reduce(nccl->everyone, &nothing, 1, ETH_HPP_REDUCE_SUM, &request,
                                  NULL) != ETH_HPP_OK)
        return false;
    while (!eth_hpp_comm_test(nccl->control, request)) {
        if (eth_hpp_nccl_check(nccl, NULL) != ETH_HPP_OK)
            return false;
        eth_hpp_nccl_rest();
    }
    return eth_hpp_comm_wait(nccl->control, request, 0, NULL) == ETH_HPP_OK;
}

static void nccl_close(void *state)
{
    struct eth_hpp_nccl *nccl = state;
    const bool stopped = all_close(nccl) ? eth_hpp_nccl_communicators_close(nccl)
                                         : eth_hpp_nccl_communicators_abort(nccl);
    eth_hpp_comm_close(nccl->control);
    forget(nccl, stopped);
}

static const struct eth_hpp_comm_ops nccl_ops = {
    .name = "nccl",
    .send = eth_hpp_nccl_send,
    .recv = eth_hpp_nccl_recv,
    .group_open = nccl_group_open,
    .group_sum = eth_hpp_nccl_sum,
    .group_reduce = eth_hpp_nccl_reduce,
    .group_free = free,
    .test = eth_hpp_nccl_test,
    .join = eth_hpp_nccl_join,
    .wait = eth_hpp_nccl_wait,
    .check = nccl_check,
    .fail = nccl_fail,
    .close = nccl_close,
};

enum eth_hpp_status eth_hpp_comm_nccl_open(struct eth_hpp_comm *comm,
                                           struct eth_hpp_kernels *kernels,
                                           const struct eth_hpp_bootstrap_place *place,
                                           const struct eth_hpp_comm_layout *layout,
                                           double timeout_s, struct eth_hpp_comm **device,
                                           struct eth_hpp_error *err)
{
    struct eth_hpp_nccl_id id;
    struct eth_hpp_comm *made = NULL;
    bool used = false;
    struct eth_hpp_nccl *nccl = calloc(1, sizeof(*nccl));
    if (nccl == NULL)
        return eth_hpp_error_memory(err, "the transport");
    nccl->control = comm;
    nccl->kernels = kernels;
    nccl->rank = place->rank;
    nccl->timeout_s = timeout_s;
    enum eth_hpp_status status = eth_hpp_nccl_meet(nccl, place, layout, &used, &id, err);
    if (status == ETH_HPP_OK && used)
        status = eth_hpp_nccl_communicators_open(nccl, layout, &id, err);
    if (status == ETH_HPP_OK && used)
        status = eth_hpp_comm_group_open(comm, layout->all.ranks, layout->all.count, EVERYONE,
                                         &nccl->everyone, err);
    if (status == ETH_HPP_OK && used)
        status = eth_hpp_comm_create(&nccl_ops, nccl, &made, err);
    if (made == NULL)
        forget(nccl, eth_hpp_nccl_communicators_abort(nccl));
    if (status == ETH_HPP_OK)
        *device = made;
    return status;
}
