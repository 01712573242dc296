/*
 * Who has come to a fence of PMIx: each rank says so under a key of that fence, which the others
 * can see before the fence is done. Not for others than the PMIx component.
 */
#ifndef ETH_HPP_BOOTSTRAP_PMIX_PRESENCE_H
#define ETH_HPP_BOOTSTRAP_PMIX_PRESENCE_H

#include <pmix.h>

#include "base/error.h"

struct eth_hpp_pmix_presence {
    pmix_proc_t self;
    int size;  /* ranks of the job */
    int round; /* of the bootstrap */
    int fence; /* the one that was announced last, from 1 */
    /* The map of the job, read before anything can fail: a server that tries to reach a node that
     * is gone answers nobody for half a minute. */
    char *names;    /* of the nodes, what node_of points into */
    char **node_of; /* [size] of each rank; NULL where it is not known */
    int own_node;   /* this rank's among those of the job, from 0 */
};

/* Fills a presence; closed with eth_hpp_pmix_presence_close. A map that PMIx does not have is left
 * empty. Errors: IO (no memory). */
enum eth_hpp_status eth_hpp_pmix_presence_open(const pmix_proc_t *self, int size, int round,
                                               struct eth_hpp_pmix_presence *presence,
                                               struct eth_hpp_error *err);
void eth_hpp_pmix_presence_close(struct eth_hpp_pmix_presence *presence);

/* The next fence begins for this rank, and all that was put goes to the server. Errors: PEER. */
enum eth_hpp_status eth_hpp_pmix_presence_announce(struct eth_hpp_pmix_presence *presence,
                                                   struct eth_hpp_error *err);

/* Waits until all ranks of this node have announced the fence; *all is false where they did not
 * within `timeout_s`. Errors: PEER. */
enum eth_hpp_status eth_hpp_pmix_presence_await_node(const struct eth_hpp_pmix_presence *presence,
                                                     double timeout_s, bool *all,
                                                     struct eth_hpp_error *err);

/* To be called on every rank whose fence is not done in time; sets TIMEOUT. On the lowest rank that
 * is there the text names who is missing; on the others it is empty, so that it is said once. May
 * take some seconds, and the process does not end by SIGTERM any more. */
enum eth_hpp_status eth_hpp_pmix_presence_report(const struct eth_hpp_pmix_presence *presence,
                                                 double timeout_s, struct eth_hpp_error *err);

#endif
