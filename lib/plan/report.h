/* The plan as a table for people. */
#ifndef ETH_HPP_PLAN_REPORT_H
#define ETH_HPP_PLAN_REPORT_H

#include <stdio.h>

#include "plan/plan.h"

/* Prints pipelines, stages, devices, layers, data shares, memory, the predicted step with its
 * parts, bound and gap, idle GPUs and why. Like pipelines in a row are shown once. With a cluster
 * (may be NULL) the kinds of GPU are named. */
void eth_hpp_report_print(const struct eth_hpp_plan *plan, const struct eth_hpp_cluster *cluster,
                          FILE *out);

/* ---- parts of it ---- */

/* The name of a worker's kind of GPU, or NULL where it is not known (`cluster` may be NULL). */
const char *eth_hpp_report_kind(const struct eth_hpp_cluster *cluster,
                                const struct eth_hpp_worker *worker);

/* Are two pipelines the same but for the nodes that they stand on? */
bool eth_hpp_report_like_pipelines(const struct eth_hpp_pipeline *a,
                                   const struct eth_hpp_pipeline *b,
                                   const struct eth_hpp_cluster *cluster);

/* "2 x 3 + 1 x 1": workers x samples, and each run's kind: "2 A100-SXM-40GB + 1 T4"; both texts
 * have `size` bytes. */
void eth_hpp_report_describe_workers(const struct eth_hpp_stage *stage,
                                     const struct eth_hpp_cluster *cluster, char *samples,
                                     char *kinds, size_t size);

#endif
