/* What the transport's components share; not for others. */
#ifndef ETH_HPP_COMM_COMPONENT_H
#define ETH_HPP_COMM_COMPONENT_H

#include "comm/comm.h"

enum eth_hpp_status eth_hpp_comm_self_open(const struct eth_hpp_bootstrap_place *place,
                                           struct eth_hpp_comm **comm, struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_comm_ucx_open(struct eth_hpp_bootstrap *bootstrap, double timeout_s,
                                          struct eth_hpp_comm **comm, struct eth_hpp_error *err);

#endif
