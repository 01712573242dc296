/* One rank: sums are what they are already, and there is nobody to send to. */
#include <stdlib.h>

#include "base/log.h"
#include "comm/component.h"

/* Every request is done when it is made, so one serves all. */
struct eth_hpp_request {
    char unused;
};
static struct eth_hpp_request request_done;

static enum eth_hpp_status self_send(void *state, const void *data, size_t size, int peer,
                                     uint32_t tag, struct eth_hpp_request **request,
                                     struct eth_hpp_error *err)
{
    (void)state;
    (void)data;
    (void)size;
    (void)tag;
    (void)request;
    return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL,
                             "a transfer with rank %d in a job of one rank", peer);
}

static enum eth_hpp_status self_recv(void *state, void *data, size_t size, int peer, uint32_t tag,
                                     struct eth_hpp_request **request, struct eth_hpp_error *err)
{
    return self_send(state, data, size, peer, tag, request, err);
}

static enum eth_hpp_status self_group_open(void *state, const int *ranks, int count, uint32_t id,
                                           void **group, struct eth_hpp_error *err)
{
    (void)id;
    if (count != 1 || ranks[0] != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL,
                                 "a group of %d ranks in a job of one rank", count);
    *group = state;
    return ETH_HPP_OK;
}

static enum eth_hpp_status self_group_sum(void *group, float *data, size_t count,
                                          enum eth_hpp_sum_half halves,
                                          struct eth_hpp_request **request,
                                          struct eth_hpp_error *err)
{
    (void)group;
    (void)data;
    (void)count;
    (void)halves;
    (void)err;
    *request = &request_done;
    return ETH_HPP_OK;
}

static enum eth_hpp_status self_group_reduce(void *group, double *values, int count,
                                             enum eth_hpp_reduction reduction,
                                             struct eth_hpp_request **request,
                                             struct eth_hpp_error *err)
{
    (void)group;
    (void)values;
    (void)count;
    (void)reduction;
    (void)err;
    *request = &request_done;
    return ETH_HPP_OK;
}

static void self_group_free(void *group)
{
    (void)group;
}

static bool self_test(struct eth_hpp_request *request)
{
    (void)request;
    return true;
}

static enum eth_hpp_status self_wait(struct eth_hpp_request *request, double timeout_s,
                                     struct eth_hpp_error *err)
{
    (void)request;
    (void)timeout_s;
    (void)err;
    return ETH_HPP_OK;
}

static bool self_fail(void *state, const struct eth_hpp_error *error, int exit_code)
{
    const struct eth_hpp_bootstrap_place *place = state;
    (void)exit_code;
    if (error != NULL) {
        eth_hpp_log_set_origin("");
        eth_hpp_log_error("rank %d on %s: %s", place->rank, place->host, error->text);
    }
    return false;
}

static const struct eth_hpp_comm_ops self_ops = {
    .name = "self",
    .send = self_send,
    .recv = self_recv,
    .group_open = self_group_open,
    .group_sum = self_group_sum,
    .group_reduce = self_group_reduce,
    .group_free = self_group_free,
    .test = self_test,
    .wait = self_wait,
    .fail = self_fail,
    .close = free,
};

enum eth_hpp_status eth_hpp_comm_self_open(const struct eth_hpp_bootstrap_place *place,
                                           struct eth_hpp_comm **comm, struct eth_hpp_error *err)
{
    struct eth_hpp_bootstrap_place *state = malloc(sizeof(*state));
    if (state == NULL)
        return eth_hpp_error_memory(err, "the transport");
    *state = *place;
    enum eth_hpp_status status = eth_hpp_comm_create(&self_ops, state, comm, err);
    if (status != ETH_HPP_OK)
        free(state);
    return status;
}
