/* What GPUs behind slow networks can take part in; private to the bound. */
#ifndef ETH_HPP_PLAN_BOUND_NETWORK_H
#define ETH_HPP_PLAN_BOUND_NETWORK_H

#include "plan/bound_stages.h"

/* Of all_s, the seconds that all GPUs take at least to compute the whole batch, those of the
 * forwards. */
double eth_hpp_bound_forward_s(const struct eth_hpp_bound_room *b, double all_s);

/*
 * How many times what there is it takes to end within a step, what node networks carry counted:
 * more than 1 proves that no plan does. By the loads in b, of which GPUs take load_s. 0 where all
 * networks are fast enough to say nothing, or when out of memory. Step 5 of the proof in bound.h.
 */
double eth_hpp_bound_over_network(const struct eth_hpp_bound_room *b, double step_s, double load_s);

#endif
