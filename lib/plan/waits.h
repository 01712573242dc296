/* Circles in a graph of waits. */
#ifndef ETH_HPP_PLAN_WAITS_H
#define ETH_HPP_PLAN_WAITS_H

#include <stdbool.h>

/* Looks for a cycle among the edges (from, to) of nodes 0 .. nodes-1: *stuck is a node of one, or
 * -1 where there is none. False when out of memory. */
bool eth_hpp_waits_find_cycle(const int (*edges)[2], int edge_count, int nodes, int *stuck);

#endif
