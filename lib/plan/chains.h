/*
 * Chains: one pipeline's stages over given numbers of GPUs of each pool, by dynamic programming.
 * At a beat that is asked for, the states are the GPUs that the last stages of a chain use (how
 * many of each pool, in any order), and what is kept of each state is how few layers they leave to
 * the stages before them, and with how many micro-batches in flight. The shortest beat is bisected.
 */
#ifndef ETH_HPP_PLAN_CHAINS_H
#define ETH_HPP_PLAN_CHAINS_H

#include "plan/classes.h"

/* The pipelines that a chain is looked for. */
struct eth_hpp_chain_task {
    int gpus[ETH_HPP_CLASSES_POOLS]; /* of each pool that a pipeline may use */
    int replicas, micro_batch;
    double rounds;  /* micro-batches of each pipeline */
    double limit_s; /* longer ones are of no use */
    double share;   /* of the optimizer's state that stays on a worker */
    double states;  /* that a search may have: with more, GPUs are counted by twos, fours, ... */
    bool coarse;    /* a chain that is about the shortest will do */
    bool alone;     /* there are no other pipelines */
    bool lean;      /* fewer micro-batches in flight than 1F1B's, where memory holds no more */
};

/* Memory for one search after the other: tables of what workers hold and take, and states. */
struct eth_hpp_chains;

/* NULL when out of memory. The shop must outlive it. */
struct eth_hpp_chains *eth_hpp_chains_make(struct eth_hpp_workshop *shop);
void eth_hpp_chains_free(struct eth_hpp_chains *chains);

/* Sets the stages, replicas and micro-batch of *group to the chain whose `rounds` take the least
 * time, fill and drain counted, sums not, and returns that time; INFINITY where there is none below
 * limit_s. *tight says whether memory made it longer. Work is counted in the shop, errors are left
 * there. */
double eth_hpp_chains_find(struct eth_hpp_chains *chains, const struct eth_hpp_chain_task *task,
                           struct eth_hpp_draft_group *group, bool *tight);

/* Ends searches after so many more tries of a stage; what they have found by then counts. */
void eth_hpp_chains_limit(struct eth_hpp_chains *chains, int64_t tries);
/* Tries so far. */
int64_t eth_hpp_chains_tries(const struct eth_hpp_chains *chains);

/* What no chain of the task can fall below, its fill counted; INFINITY where that is not below
 * limit_s. *tight as above. */
double eth_hpp_chains_bound(struct eth_hpp_chains *chains, const struct eth_hpp_chain_task *task,
                            bool *tight);

/* Samples a second of one GPU of the pool at best with this micro-batch, were layers alike and
 * memory no matter; 0 where it cannot run it. */
double eth_hpp_chains_rate(struct eth_hpp_chains *chains, int pool, int micro_batch);

#endif
