/* This node's name and inventory, as the launcher finds them. */
#ifndef ETH_HPP_LAUNCHER_NODE_H
#define ETH_HPP_LAUNCHER_NODE_H

#include "inventory/inventory.h"

/* Slurm's name of the node ($SLURMD_NODENAME), which inventories and site files use; without Slurm
 * the host's name up to its first dot. */
void eth_hpp_node_name(char *name, size_t size);

/* The inventory of this node: the file that $ETH_HPP_INVENTORY names, which the plugin left at
 * allocation, else collected now, in a child process that is given up after some seconds so that a
 * hanging driver cannot hang the job. The inventory then says why it is empty. Errors: INPUT (the
 * file is wrong), IO, MEMORY. */
enum eth_hpp_status eth_hpp_node_inventory(struct eth_hpp_inventory *inventory,
                                           struct eth_hpp_error *err);

#endif
