/* A cluster whose nodes stand in an order of their own, whatever the file's. */
#ifndef ETH_HPP_PLAN_ORDER_H
#define ETH_HPP_PLAN_ORDER_H

#include "plan/cluster.h"

/*
 * Copies a cluster with its devices sorted by name and its nodes by their GPUs' names, bandwidths,
 * latencies and, where these are alike, by name with numbers in it by value: what is found for it
 * does not depend on the order in the file. rank_of[r] (gpu_count of them, freed by the caller)
 * is the given cluster's rank of the ordered one's rank r. Freed with eth_hpp_cluster_free. Errors:
 * MEMORY.
 */
enum eth_hpp_status eth_hpp_order_make(const struct eth_hpp_cluster *cluster,
                                       struct eth_hpp_cluster *ordered, int **rank_of,
                                       struct eth_hpp_error *err);

#endif
