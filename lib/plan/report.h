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

#endif
