/* What the transport's components share; not for others. */
#ifndef ETH_HPP_COMM_COMPONENT_H
#define ETH_HPP_COMM_COMPONENT_H

#include "comm/comm.h"

enum eth_hpp_status eth_hpp_comm_self_open(const struct eth_hpp_bootstrap_place *place,
                                           struct eth_hpp_comm **comm, struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_comm_ucx_open(struct eth_hpp_bootstrap *bootstrap, double timeout_s,
                                          struct eth_hpp_comm **comm, struct eth_hpp_error *err);

/* The two that reach a device's memory (eth_hpp_comm_reach_device). *device is NULL where no rank
 * has NCCL. What is staged is copied to page-locked host memory first, and what comes from there,
 * on the kernels' streams for that. */
enum eth_hpp_status eth_hpp_comm_nccl_open(struct eth_hpp_comm *comm,
                                           struct eth_hpp_kernels *kernels,
                                           const struct eth_hpp_bootstrap_place *place,
                                           const struct eth_hpp_comm_layout *layout,
                                           double timeout_s, struct eth_hpp_comm **device,
                                           struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_comm_stage(struct eth_hpp_comm *comm, struct eth_hpp_kernels *kernels,
                                       struct eth_hpp_comm **staged, struct eth_hpp_error *err);

#endif
