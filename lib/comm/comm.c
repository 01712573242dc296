#include "config.h"

#include "comm/comm.h"

#include <stdlib.h>

#include "comm/component.h"

struct eth_hpp_group {
    struct eth_hpp_group *next;
    const struct eth_hpp_comm_ops *ops;
    void *state;
};

struct eth_hpp_comm {
    const struct eth_hpp_comm_ops *ops;
    void *state;
    struct eth_hpp_group *groups;
};

enum eth_hpp_status eth_hpp_comm_create(const struct eth_hpp_comm_ops *ops, void *state,
                                        struct eth_hpp_comm **comm, struct eth_hpp_error *err)
{
    struct eth_hpp_comm *c = malloc(sizeof(*c));
    if (c == NULL)
        return eth_hpp_error_memory(err, "the transport");
    c->ops = ops;
    c->state = state;
    c->groups = NULL;
    *comm = c;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_comm_open(struct eth_hpp_bootstrap *bootstrap, double timeout_s,
                                      struct eth_hpp_comm **comm, struct eth_hpp_error *err)
{
    const struct eth_hpp_bootstrap_place *place = eth_hpp_bootstrap_get_place(bootstrap);
    if (place->size == 1)
        return eth_hpp_comm_self_open(place, comm, err);
#ifdef HAVE_UCX
    return eth_hpp_comm_ucx_open(bootstrap, timeout_s, comm, err);
#else
    (void)timeout_s;
    return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                             "eth-hpp was built without UCX, which %d ranks need to exchange data: "
                             "install libucx-dev and build it again",
                             place->size);
#endif
}

void eth_hpp_comm_close(struct eth_hpp_comm *comm)
{
    if (comm == NULL)
        return;
    comm->ops->close(comm->state);
    while (comm->groups != NULL) {
        struct eth_hpp_group *next = comm->groups->next;
        comm->ops->group_free(comm->groups->state);
        free(comm->groups);
        comm->groups = next;
    }
    free(comm);
}

const char *eth_hpp_comm_name(const struct eth_hpp_comm *comm)
{
    return comm->ops->name;
}

bool eth_hpp_comm_fail(struct eth_hpp_comm *comm, const struct eth_hpp_error *error, int exit_code)
{
    return comm->ops->fail(comm->state, error, exit_code);
}

enum eth_hpp_status eth_hpp_comm_send(struct eth_hpp_comm *comm, const void *data, size_t size,
                                      int peer, uint32_t tag, struct eth_hpp_request **request,
                                      struct eth_hpp_error *err)
{
    return comm->ops->send(comm->state, data, size, peer, tag, request, err);
}

enum eth_hpp_status eth_hpp_comm_recv(struct eth_hpp_comm *comm, void *data, size_t size, int peer,
                                      uint32_t tag, struct eth_hpp_request **request,
                                      struct eth_hpp_error *err)
{
    return comm->ops->recv(comm->state, data, size, peer, tag, request, err);
}

enum eth_hpp_status eth_hpp_comm_share_memory(struct eth_hpp_comm *comm, size_t bytes,
                                              void **memory, struct eth_hpp_error *err)
{
    if (comm->ops->share == NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED, "the transport %s shares no memory",
                                 comm->ops->name);
    return comm->ops->share(comm->state, bytes, memory, err);
}

enum eth_hpp_status eth_hpp_comm_register_memory(struct eth_hpp_comm *comm, void *memory,
                                                 size_t bytes, struct eth_hpp_error *err)
{
    if (comm->ops->register_memory == NULL)
        return ETH_HPP_OK;
    return comm->ops->register_memory(comm->state, memory, bytes, err);
}

enum eth_hpp_status eth_hpp_comm_group_open(struct eth_hpp_comm *comm, const int *ranks, int count,
                                            uint32_t id, struct eth_hpp_group **group,
                                            struct eth_hpp_error *err)
{
    struct eth_hpp_group *g = malloc(sizeof(*g));
    if (g == NULL)
        return eth_hpp_error_memory(err, "a group of ranks");
    g->ops = comm->ops;
    enum eth_hpp_status status =
        comm->ops->group_open(comm->state, ranks, count, id, &g->state, err);
    if (status != ETH_HPP_OK) {
        free(g);
        return status;
    }
    g->next = comm->groups;
    comm->groups = g;
    *group = g;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_comm_group_sum(struct eth_hpp_group *group, float *data, size_t count,
                                           enum eth_hpp_sum_half halves,
                                           struct eth_hpp_request **request,
                                           struct eth_hpp_error *err)
{
    return group->ops->group_sum(group->state, data, count, halves, request, err);
}

enum eth_hpp_status eth_hpp_comm_group_reduce(struct eth_hpp_group *group, double *values,
                                              int count, enum eth_hpp_reduction reduction,
                                              struct eth_hpp_request **request,
                                              struct eth_hpp_error *err)
{
    if (count < 1 || count > ETH_HPP_REDUCE_MAX_VALUES)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL,
                                 "a reduction of %d values, 1..%d can be", count,
                                 ETH_HPP_REDUCE_MAX_VALUES);
    return group->ops->group_reduce(group->state, values, count, reduction, request, err);
}

enum eth_hpp_status eth_hpp_comm_join(struct eth_hpp_comm *comm, struct eth_hpp_request **request,
                                      double timeout_s, struct eth_hpp_error *err)
{
    if (comm->ops->join != NULL)
        return comm->ops->join(*request, timeout_s, err);
    struct eth_hpp_request *waited = *request;
    *request = NULL;
    return comm->ops->wait(waited, timeout_s, err);
}

enum eth_hpp_status eth_hpp_comm_check(struct eth_hpp_comm *comm, struct eth_hpp_error *err)
{
    return comm->ops->check != NULL ? comm->ops->check(comm->state, err) : ETH_HPP_OK;
}

void eth_hpp_comm_progress(struct eth_hpp_comm *comm)
{
    if (comm->ops->progress != NULL)
        comm->ops->progress(comm->state);
}

bool eth_hpp_comm_test(struct eth_hpp_comm *comm, struct eth_hpp_request *request)
{
    return comm->ops->test(request);
}

enum eth_hpp_status eth_hpp_comm_wait(struct eth_hpp_comm *comm, struct eth_hpp_request *request,
                                      double timeout_s, struct eth_hpp_error *err)
{
    return comm->ops->wait(request, timeout_s, err);
}
