/* The plan as a table for people. */
#ifndef ETH_HPP_PLAN_REPORT_H
#define ETH_HPP_PLAN_REPORT_H

#include <stdio.h>

#include "plan/plan.h"

/* Prints pipelines, stages, devices, layers, data shares, memory, the predicted step with its
 * parts, bound and gap, idle GPUs and why. Like pipelines in a row are shown once. The kinds of GPU
 * are the cluster's (may be NULL) or those that the plan notes. */
void eth_hpp_report_print(const struct eth_hpp_plan *plan, const struct eth_hpp_cluster *cluster,
                          FILE *out);

/* ---- parts of it ---- */

/* The name of a worker's kind of GPU by the cluster (may be NULL) or what the plan notes, or NULL.
 */
const char *eth_hpp_report_kind(const struct eth_hpp_plan *plan,
                                const struct eth_hpp_cluster *cluster,
                                const struct eth_hpp_worker *worker);

/* Are pipelines p and q the same but for the nodes that they stand on? */
bool eth_hpp_report_like_pipelines(const struct eth_hpp_plan *plan,
                                   const struct eth_hpp_cluster *cluster, int p, int q);

/* "2 x 3 + 1 x 1": workers x samples, and each run's kind: "2 A100-SXM-40GB + 1 T4"; both texts
 * have `size` bytes. */
void eth_hpp_report_describe_workers(const struct eth_hpp_plan *plan,
                                     const struct eth_hpp_cluster *cluster,
                                     const struct eth_hpp_stage *stage, char *samples, char *kinds,
                                     size_t size);

#endif
