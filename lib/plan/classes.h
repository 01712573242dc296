/* Classes: the best groups of equal pipelines, each a chain over the same pools. */
#ifndef ETH_HPP_PLAN_CLASSES_H
#define ETH_HPP_PLAN_CLASSES_H

#include "plan/draft.h"

/* With more pools than that the families combine the first ones only. */
enum { ETH_HPP_CLASSES_POOLS = 6, ETH_HPP_CLASSES_KEPT = 8 };

/* The best groups over a set of pools, best first. */
struct eth_hpp_classes {
    int count;
    bool tight; /* memory ruled some out */
    struct {
        double s_per_sample; /* the sums included */
        struct eth_hpp_draft_group *group;
    } kept[ETH_HPP_CLASSES_KEPT];
};

/* Can the pool's GPUs run at this tensor parallelism? And do the options allow it? */
bool eth_hpp_classes_has_degree(const struct eth_hpp_workshop *shop, int pool, int degree);
bool eth_hpp_classes_may_use(const struct eth_hpp_workshop *shop, int degree);

/* The pools of a mask by memory, more first: early stages hold more micro-batches. Reversed for the
 * other order. Returns their number. */
int eth_hpp_classes_order(const struct eth_hpp_workshop *shop, unsigned mask, bool reversed,
                          int *order);

/* Samples a second that all GPUs of a pool could do at best. */
double eth_hpp_classes_rate(const struct eth_hpp_workshop *shop, int pool);

/* What is known of all pools before classes are looked for: their GPUs, or those of one node of
 * each. NULL when out of memory. The shop must outlive it. */
struct eth_hpp_class_finder *eth_hpp_class_finder_make(struct eth_hpp_workshop *shop,
                                                       bool one_node);
void eth_hpp_class_finder_free(struct eth_hpp_class_finder *finder);

/* Adds the best classes over the pools of a mask to *classes, whose kept[].group the caller
 * provides, one of each number of pipelines. `part` samples of the batch are taken to be theirs;
 * classes that take limit_s or more for a sample are of no use. `tries` limits the search. Errors
 * are left in the shop. */
void eth_hpp_class_finder_find(struct eth_hpp_class_finder *finder, unsigned mask, double part,
                               double limit_s, int64_t tries, struct eth_hpp_classes *classes);

#endif
