/*
 * The balance solver: the plan with the shortest predicted step under hard per-GPU memory.
 *
 * GPUs of one kind on like nodes are counted, not told apart (pools). The search runs over drafts:
 * groups of like pipelines whose stages are made of workers of pools. A draft's samples are split
 * inside stages by speed, its pipelines laid onto nodes (like ones on like nodes once, with their
 * number), as many micro-batches kept in flight as the stages need to be in step and memory holds,
 * micro-batches dealt to pipelines so that they end together, and the whole step evaluated with the
 * simulator's own code. Starting families are enumerated; annealing on drafts improves the best of
 * them. Every effort begins with those below it, so more effort never finds less. The same input
 * gives the same plan: effort counts the stages that are looked at, never clock time.
 */
#ifndef ETH_HPP_PLAN_SOLVER_H
#define ETH_HPP_PLAN_SOLVER_H

#include "plan/plan.h"

enum eth_hpp_shape {
    ETH_HPP_SHAPE_HPP,  /* the whole space */
    ETH_HPP_SHAPE_EVEN, /* today's homogeneous training: same layers and data for every GPU */
    ETH_HPP_SHAPE_LAYER_BALANCED /* one pipeline shape with unequal layers, even data */
};

enum eth_hpp_effort { ETH_HPP_EFFORT_QUICK, ETH_HPP_EFFORT_DEFAULT, ETH_HPP_EFFORT_THOROUGH };

struct eth_hpp_solver_options {
    int global_batch;
    enum eth_hpp_shape shape;
    enum eth_hpp_effort effort;
    int max_tensor_parallel; /* 0: what the profile has */
    int max_in_flight;       /* micro-batches a stage may hold; 0: no limit */
    int max_pipelines;       /* 0: no limit */
    bool no_recompute, no_sharded;
    double memory_margin_bytes; /* left free on each GPU */
};

/* Finds a plan. Its ranks count the cluster's GPUs node by node (plan->pipelines[..].ranks may be
 * renumbered by the caller), idle GPUs carry the reason, predicted is the simulator's with a lower
 * bound that no plan can beat and the gap to it. Freed with eth_hpp_plan_free. Errors: INPUT (a
 * setting out of range, no device with times), INFEASIBLE (nothing fits: the text says which
 * resource is short by how much at the best try), MEMORY. */
enum eth_hpp_status eth_hpp_solve(const struct eth_hpp_cluster *cluster,
                                  const struct eth_hpp_profile *profile,
                                  const struct eth_hpp_solver_options *options,
                                  struct eth_hpp_plan *plan, struct eth_hpp_error *err);

#endif
