/* The limited links of a cluster as a table, so that a pair's link is a look-up. */
#ifndef ETH_HPP_PLAN_LINK_CLASSES_H
#define ETH_HPP_PLAN_LINK_CLASSES_H

#include "plan/cluster.h"

/* Splits the nodes into classes that have the same links. *class_of has a class for each node,
 * *link_of for each pair of classes, [class * *class_count + class], the index of the link that
 * counts, the last one stated for the pair, or -1; the caller frees both. Takes time in proportion
 * to the nodes that the links name, and to the pairs of classes. Errors: MEMORY; INPUT where the
 * links tell too many classes apart. */
enum eth_hpp_status eth_hpp_link_classes_make(const struct eth_hpp_cluster *cluster, int **class_of,
                                              int **link_of, int *class_count,
                                              struct eth_hpp_error *err);

#endif
