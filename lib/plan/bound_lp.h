/* The linear programme of the bound: work dealt fractionally to kinds of GPU. */
#ifndef ETH_HPP_PLAN_BOUND_LP_H
#define ETH_HPP_PLAN_BOUND_LP_H

/*
 * min M,  sum_d x[r,d] = 1,  sum_r x[r,d] load[r * devices + d] <= M, all x >= 0.
 * Loads are finite. Returns a figure that M cannot be below, proven by the duals of the simplex
 * method's last table whether or not it got to the optimum; 0 when out of memory. prices[device]
 * become the duals: they add up to 1, or are all 0.
 */
double eth_hpp_bound_lp(const double *load, int rows, int devices, double *prices);

/* What any prices of the devices that add up to 1, or are all 0, prove that M cannot be below:
 * sum_r min_d prices[d] load[r * devices + d]. */
double eth_hpp_bound_lp_proven(const double *load, int rows, int devices, const double *prices);

#endif
