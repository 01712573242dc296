/* This node's name and inventory, as the launcher finds them. */
#ifndef ETH_HPP_LAUNCHER_NODE_H
#define ETH_HPP_LAUNCHER_NODE_H

#include "inventory/inventory.h"

/* Slurm's name of the node ($SLURMD_NODENAME), which inventories and site files use; without Slurm
 * the host's name up to its first dot. */
void eth_hpp_node_name(char *name, size_t size);

/* The inventory of this node: the file that $ETH_HPP_INVENTORY names, which the plugin left at
 * allocation, else collected now with the site's file of $ETH_HPP_SITE_FILE, in a child process
 * that is given up after timeout_s, so that a hanging driver cannot hang the job; the inventory
 * then says why it is empty. Errors: INPUT (the file is wrong), IO, MEMORY. */
enum eth_hpp_status eth_hpp_node_inventory(struct eth_hpp_inventory *inventory, double timeout_s,
                                           struct eth_hpp_error *err);

/* What the driver shows to this very process, collected in the same way and without a site's file:
 * inside a cgroup that is less than the node has. */
enum eth_hpp_status eth_hpp_node_visible(struct eth_hpp_inventory *inventory, double timeout_s,
                                         struct eth_hpp_error *err);

#endif
