/* Which transport reaches the memory of a device. */
#include "comm/component.h"
#include "kernels/kernels.h"

enum eth_hpp_status eth_hpp_comm_reach_device(struct eth_hpp_comm *comm,
                                              struct eth_hpp_kernels *kernels,
                                              const struct eth_hpp_bootstrap_place *place,
                                              const struct eth_hpp_comm_layout *layout,
                                              double timeout_s, struct eth_hpp_comm **device,
                                              struct eth_hpp_error *err)
{
    struct eth_hpp_comm *by_nccl = NULL;
    enum eth_hpp_status status = ETH_HPP_OK;
    if (layout->all.count > 1)
        status = eth_hpp_comm_nccl_open(comm, kernels, place, layout, timeout_s, &by_nccl, err);
    if (status == ETH_HPP_OK && by_nccl == NULL)
        return eth_hpp_comm_stage(comm, kernels, device, err);
    if (status == ETH_HPP_OK)
        *device = by_nccl;
    return status;
}
