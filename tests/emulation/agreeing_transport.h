/*
 * A double of the transport for tests of one rank alone: groups open at once, every reduction
 * agrees with what this rank has, and nothing is sent. Its state may be anything but NULL: requests
 * and groups are that.
 */
#ifndef ETH_HPP_TESTS_AGREEING_TRANSPORT_H
#define ETH_HPP_TESTS_AGREEING_TRANSPORT_H

#include "comm/comm.h"

static inline enum eth_hpp_status agreeing_group_open(void *state, const int *ranks, int count,
                                                      uint32_t id, void **group,
                                                      struct eth_hpp_error *err)
{
    (void)ranks;
    (void)count;
    (void)id;
    (void)err;
    *group = state;
    return ETH_HPP_OK;
}

static inline enum eth_hpp_status agreeing_group_reduce(void *group, double *values, int count,
                                                        enum eth_hpp_reduction reduction,
                                                        struct eth_hpp_request **request,
                                                        struct eth_hpp_error *err)
{
    (void)values;
    (void)count;
    (void)reduction;
    (void)err;
    *request = group;
    return ETH_HPP_OK;
}

static inline enum eth_hpp_status agreeing_wait(struct eth_hpp_request *request, double timeout_s,
                                                struct eth_hpp_error *err)
{
    (void)request;
    (void)timeout_s;
    (void)err;
    return ETH_HPP_OK;
}

static inline void agreeing_forget(void *state)
{
    (void)state;
}

/* What a test does not put functions of its own in place of. */
#define AGREEING_TRANSPORT                                                                         \
    .name = "agreeing", .group_open = agreeing_group_open, .group_reduce = agreeing_group_reduce,  \
    .group_free = agreeing_forget, .close = agreeing_forget

#endif
