/* What tests of the transport have in common: ranks that open it, wait, and are to succeed. */
#ifndef ETH_HPP_UNIT_COMM_RANKS_H
#define ETH_HPP_UNIT_COMM_RANKS_H

#include "comm/comm.h"
#include "emulation/ranks.h"

static struct eth_hpp_comm *open_comm(struct eth_hpp_bootstrap *bootstrap)
{
    struct eth_hpp_comm *comm;
    struct eth_hpp_error err = {0};
    RANK_CHECK(eth_hpp_comm_open(bootstrap, 20, &comm, &err) == ETH_HPP_OK, "%s", err.text);
    return comm;
}

static void finish(struct eth_hpp_comm *comm, struct eth_hpp_request *request)
{
    struct eth_hpp_error err = {0};
    RANK_CHECK(eth_hpp_comm_wait(comm, request, 20, &err) == ETH_HPP_OK, "%s", err.text);
}

static inline void expect_success(int count, rank_main body, void *user)
{
    struct ranks_result result;
    ranks_run(count, body, user, 60, &result);
    for (int rank = 0; rank < count; rank++)
        if (result.exit_code[rank] != 0)
            fail_msg("rank %d ended with %d: %s", rank, result.exit_code[rank], result.log);
}

#endif
