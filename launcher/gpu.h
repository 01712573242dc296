/* Which GPU is this rank's own. */
#ifndef ETH_HPP_LAUNCHER_GPU_H
#define ETH_HPP_LAUNCHER_GPU_H

#include "bootstrap/bootstrap.h"
#include "inventory/inventory.h"

/* What a machine without GPUs trains on, alone. */
#define ETH_HPP_CPU_DEVICE "CPU"

/* Finds the rank's GPU among those of its node. With a driver, $CUDA_VISIBLE_DEVICES names devices
 * as the task sees them (numbers, which a cgroup may have shifted, or UUIDs): `visible` is what the
 * driver shows this very process, and the match goes by UUID. Where GPUs are described or emulated,
 * numbers are the node's own. A task with one visible device uses it, else the local rank chooses.
 * Errors: INPUT (no GPU, more ranks than GPUs, a device that the inventory does not have, or one
 * that is not healthy), with what to ask Slurm for. */
enum eth_hpp_status
eth_hpp_gpu_find(const struct eth_hpp_inventory *inventory, const struct eth_hpp_inventory *visible,
                 const struct eth_hpp_bootstrap_place *place, const char *cuda_visible_devices,
                 const struct eth_hpp_inventory_gpu **gpu, struct eth_hpp_error *err);

/* The device of a process on a machine without GPUs: its processors and memory. */
void eth_hpp_gpu_processors(struct eth_hpp_inventory_gpu *gpu);

#endif
