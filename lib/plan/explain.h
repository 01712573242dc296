/* What bounds a plan's step, and what more of something would give. */
#ifndef ETH_HPP_PLAN_EXPLAIN_H
#define ETH_HPP_PLAN_EXPLAIN_H

#include <stdio.h>

#include "plan/solver.h"

/* A resource that the step may wait for. */
struct eth_hpp_explained_resource {
    enum eth_hpp_explained_kind {
        ETH_HPP_EXPLAINED_COMPUTE,   /* of a kind of device; index: device */
        ETH_HPP_EXPLAINED_OPTIMIZER, /* all updates */
        ETH_HPP_EXPLAINED_INSIDE,    /* links inside a kind of node; index: first node of it */
        ETH_HPP_EXPLAINED_NETWORK,   /* networks of a kind of node; index: first node of it */
        ETH_HPP_EXPLAINED_LINK       /* a limited link between nodes; index: link */
    } kind;
    int index;
    char *nodes;  /* hostlist of a kind of node, or NULL */
    double share; /* of the step: how much shorter the step gets a little of the way, over how much
                     faster the resource */
    double twice_s; /* the step were it twice as fast */
};

enum { ETH_HPP_EXPLAINED_BATCHES = 4 }; /* times the batch that is tried */

/* A cluster with one node more. */
struct eth_hpp_explained_node {
    int like_node;
    double step_s; /* of the quick search's plan */
};

struct eth_hpp_explanation {
    double step_s;
    struct eth_hpp_explained_resource *resources; /* the largest share first */
    int resource_count;
    /* What no single resource's share covers: several hold the step up at once, and only all of
     * them together make it shorter. */
    double several_share;
    /* Parts of the step: until pipelines are full and after they run dry; until the last pipeline
     * ends after data that could be split at will would have; sums that nothing hides. */
    double fill_drain_s, whole_micro_batches_s, exposed_sync_s;
    /* Found by the quick search (0: it found no plan): the step for the cluster as it is, were
     * memory unlimited, with a batch so many times as large, and with one node more of each kind.
     */
    double quick_s, unlimited_memory_s, larger_batch_s;
    struct eth_hpp_explained_node *nodes;
    int node_count;
    int kinds_left_out; /* of nodes: only so many are tried */
};

/*
 * Explains a completed plan of the cluster. `options` are those that it was found with.
 *
 * Shares. Scaling all durations scales the step, so by Euler's theorem on homogeneous functions the
 * sum of duration x d(step)/d(duration) is the step: each resource's term is its share. The terms
 * are differences of simulated steps with one resource a hundred-thousandth faster. Between
 * pipelines the data is taken to be dealt anew, in fractions of micro-batches, so that all end
 * together: with n_p micro-batches of m_p samples, ends E_p and a beat t_p for each micro-batch
 * more, that is after sum over p of (m_p / t_p) E_p  /  sum over p of m_p / t_p.
 *
 * The simulator is run twice for each resource, the solver once for each of up to eight kinds of
 * node and three times more: the time is bounded. Freed with eth_hpp_explanation_free. Errors:
 * those of eth_hpp_simulate and eth_hpp_solve.
 */
enum eth_hpp_status
eth_hpp_explain(const struct eth_hpp_plan *plan, const struct eth_hpp_cluster *cluster,
                const struct eth_hpp_profile *profile, const struct eth_hpp_solver_options *options,
                struct eth_hpp_explanation *explanation, struct eth_hpp_error *err);
void eth_hpp_explanation_free(struct eth_hpp_explanation *explanation);

/* The two halves of it: fills in all but what the searches find, and that. */
enum eth_hpp_status eth_hpp_explain_shares(const struct eth_hpp_plan *plan,
                                           const struct eth_hpp_cluster *cluster,
                                           const struct eth_hpp_profile *profile,
                                           struct eth_hpp_explanation *explanation,
                                           struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_explain_more(const struct eth_hpp_cluster *cluster,
                                         const struct eth_hpp_profile *profile,
                                         const struct eth_hpp_solver_options *options,
                                         struct eth_hpp_explanation *explanation,
                                         struct eth_hpp_error *err);

/* Nodes with the same devices, links and network. */
bool eth_hpp_explain_like_nodes(const struct eth_hpp_node *a, const struct eth_hpp_node *b);

/* Says it to a person. */
void eth_hpp_explanation_print(const struct eth_hpp_explanation *explanation,
                               const struct eth_hpp_cluster *cluster, FILE *out);
/* The same as JSON, which the caller owns; NULL when out of memory. */
struct json_object *eth_hpp_explanation_json(const struct eth_hpp_explanation *explanation,
                                             const struct eth_hpp_cluster *cluster);

#endif
