/* UCX's functions, from a library that is opened with the first transport. */
#ifndef ETH_HPP_COMM_UCX_UCX_LIBRARY_H
#define ETH_HPP_COMM_UCX_UCX_LIBRARY_H

#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>

#include "base/error.h"

#define ETH_HPP_UCP_FUNCTIONS(X)                                                                   \
    X(ucp, cleanup)                                                                                \
    X(ucp, config_modify)                                                                          \
    X(ucp, config_read)                                                                            \
    X(ucp, config_release)                                                                         \
    X(ucp, ep_close_nbx)                                                                           \
    X(ucp, ep_create)                                                                              \
    X(ucp, ep_flush_nbx)                                                                           \
    X(ucp, init_version) /* what ucp_init calls */                                                 \
    X(ucp, request_cancel)                                                                         \
    X(ucp, request_check_status)                                                                   \
    X(ucp, request_free)                                                                           \
    X(ucp, tag_msg_recv_nbx)                                                                       \
    X(ucp, tag_probe_nb)                                                                           \
    X(ucp, tag_recv_nbx)                                                                           \
    X(ucp, tag_send_nbx)                                                                           \
    X(ucp, worker_arm)                                                                             \
    X(ucp, worker_create)                                                                          \
    X(ucp, worker_destroy)                                                                         \
    X(ucp, worker_get_address)                                                                     \
    X(ucp, worker_get_efd)                                                                         \
    X(ucp, worker_progress)                                                                        \
    X(ucp, worker_release_address)                                                                 \
    X(ucs, global_opts_set_value)                                                                  \
    X(ucs, status_string)

struct eth_hpp_ucp {
#define DECLARE(prefix, name) __typeof__(&prefix##_##name) name;
    ETH_HPP_UCP_FUNCTIONS(DECLARE)
#undef DECLARE
};

extern struct eth_hpp_ucp eth_hpp_ucp;

/* Fills eth_hpp_ucp. Errors: UNSUPPORTED (UCX is not installed, or another version). */
enum eth_hpp_status eth_hpp_ucp_open(struct eth_hpp_error *err);

#endif
