/* What the commands have in common that plan without a cluster at hand: plan, show, simulate. */
#ifndef ETH_HPP_LAUNCHER_PLANNING_H
#define ETH_HPP_LAUNCHER_PLANNING_H

#include "base/option.h"

/* The files that they read, for tables of options to be like. */
extern const struct eth_hpp_option eth_hpp_planning_cluster, eth_hpp_planning_profile;

#endif
