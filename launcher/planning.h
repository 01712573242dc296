/* What the commands have in common that plan without a cluster at hand: plan, show, simulate. */
#ifndef ETH_HPP_LAUNCHER_PLANNING_H
#define ETH_HPP_LAUNCHER_PLANNING_H

#include "base/option.h"
#include "plan/plan.h"

/* Options for their tables to be like: files that they read, and pictures that they write. */
extern const struct eth_hpp_option eth_hpp_planning_cluster, eth_hpp_planning_profile,
    eth_hpp_planning_trace, eth_hpp_planning_svg;

/* An estimated profile of a model (a preset or a config.json) for the cluster's devices.
 * sequence_length 0: the model's context; dtype -1: the best that all devices have. */
enum eth_hpp_status eth_hpp_planning_estimate(const char *model, int sequence_length, int dtype,
                                              const struct eth_hpp_cluster *cluster,
                                              struct eth_hpp_profile *profile,
                                              struct eth_hpp_error *err);

/* Writes the pictures of a completed plan that were asked for (NULL: was not): trace events and an
 * SVG. */
enum eth_hpp_status eth_hpp_planning_draw(const char *trace, const char *svg,
                                          const struct eth_hpp_plan *plan,
                                          const struct eth_hpp_cluster *cluster,
                                          const struct eth_hpp_profile *profile,
                                          bool blocking_transfers, struct eth_hpp_error *err);

#endif
