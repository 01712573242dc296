/* What the search of chains is made of; not for others than chains.c and chain_*.c. */
#ifndef ETH_HPP_PLAN_CHAIN_KIT_H
#define ETH_HPP_PLAN_CHAIN_KIT_H

#include "plan/chain_workers.h"
#include "plan/chains.h"

enum { ETH_HPP_CHAIN_TYPES = 512, ETH_HPP_CHAIN_LABELS = 4 };
/* Chains whose beat is so many times that of perfectly cut ones are of no use. */
#define ETH_HPP_CHAIN_SLOW 1000

/* How many micro-batches stages hold in flight. */
enum eth_hpp_chain_flight {
    ETH_HPP_CHAIN_LEVEL, /* as many as it takes where each stage takes the whole beat */
    ETH_HPP_CHAIN_PLAIN, /* 1F1B's, and stages take less than the beat by what their hand-overs take
                          */
    ETH_HPP_CHAIN_HALF,  /* half of 1F1B's */
    ETH_HPP_CHAIN_SINGLE /* one: stages wait for each other */
};

/* A kind of stage. */
struct eth_hpp_chain_type {
    struct eth_hpp_chain_worker *worker;
    int pool, width, degree;
    int units;          /* of the pool's GPUs, */
    double part;        /* and one divided by them */
    double rate;        /* layers a second */
    double sum_s;       /* of a layer's sums, */
    double sums_per_s;  /* and how many a second; INFINITY where there is nothing to sum */
    double cross_s;     /* of a node's network for its stages' hand-overs on one side, in a step */
    int most, most_end; /* layers whose sums it carries besides those on both sides, on one */
    double likely;      /* layers that take a beat */
    double held[ETH_HPP_CHAIN_BUCKETS]; /* the worker's */
    int16_t *reach;       /* [end] first layer of the longest stage that takes a beat, */
    int16_t *reach_plain; /* and of that which leaves time for its hand-overs */
    int16_t *summed;      /* [end] first layer of that whose sums take what they may */
};

/* A chain's last stages over the GPUs of a state. */
struct eth_hpp_chain_label {
    int16_t first; /* layer that they begin with */
    int16_t in_flight, depth;
    int16_t type;                             /* of the first of them */
    int16_t from;                             /* label of the state of the others */
    int16_t narrow;                           /* hand-overs from and to pools of few crossings */
    uint8_t crossings[ETH_HPP_CLASSES_POOLS]; /* hand-overs that cross nodes of each pool */
    uint8_t run; /* of stages of one pool and size that they begin with */
    float seconds;
};

struct eth_hpp_chains {
    struct eth_hpp_workshop *shop;
    struct eth_hpp_chain_workers workers;
    /* the task */
    const struct eth_hpp_chain_task *task;
    bool by_stage; /* see struct eth_hpp_draft_group */
    struct eth_hpp_chain_type types[ETH_HPP_CHAIN_TYPES];
    int type_count, first_type[ETH_HPP_CLASSES_POOLS + 1], pools;
    int active[ETH_HPP_CHAIN_TYPES],
        first_active[ETH_HPP_CLASSES_POOLS + 1]; /* that are of use at a beat */
    int unit[ETH_HPP_CLASSES_POOLS], units[ETH_HPP_CLASSES_POOLS], stride[ETH_HPP_CLASSES_POOLS];
    double scale[ETH_HPP_DRAFT_STAGES + 1]; /* [stages behind] of the beat that a stage may take */
    double within_s[ETH_HPP_CLASSES_POOLS]; /* hand-overs: inside a node, and between pools */
    double across_s[ETH_HPP_CLASSES_POOLS][ETH_HPP_CLASSES_POOLS];
    double hand_over_s[ETH_HPP_CLASSES_POOLS]; /* of a node's network */
    double network_s[ETH_HPP_CLASSES_POOLS];   /* of each node for one that crosses nodes */
    double pass_s;     /* about the least time in which a micro-batch passes all layers, */
    double drain_s;    /* and its backward one of them */
    double *carried_s; /* [node] scratch */
    /* the beat at hand */
    double beat_s;
    enum eth_hpp_chain_flight flight;
    double exposed;  /* what sums may take after the last backward, as a part of the step; */
    double sums_s;   /* and in seconds at the beat */
    double end_more; /* layers that the network lets a stage at an end take more than others */
    double capacity[ETH_HPP_CLASSES_POOLS][ETH_HPP_CHAIN_BUCKETS]; /* layers of a unit, */
    double longest[ETH_HPP_CHAIN_BUCKETS];                         /* and of the best stage */
    int crossings[ETH_HPP_CLASSES_POOLS]; /* that its nodes' networks carry of a pipeline */
    /* states */
    int state_count, state_room;
    struct eth_hpp_chain_label (*labels)[ETH_HPP_CHAIN_LABELS];
    unsigned char *label_count;
    struct eth_hpp_chain_label last; /* the shortest whole chain: its first stage */
    int last_state;
    int most_depth, most_in_flight;
    int64_t tries;  /* stages put in front of others so far, */
    int64_t limit;  /* and where searches end */
    int *below;     /* [layer] layers of the most frequent kind before it */
    int16_t *reach; /* memory of all types */
};

/* ---- chain_types.c ---- */

/* Sets what a task has to choose from: units, types of stages, hand-overs, states. False where
 * there is nothing, or too much. */
bool eth_hpp_chain_prepare(struct eth_hpp_chains *chains, const struct eth_hpp_chain_task *task,
                           bool by_stage);

/* Lets each stage take `more` times as long as the one behind it. */
void eth_hpp_chain_set_scale(struct eth_hpp_chains *chains, double more);

/* ---- chain_beat.c ---- */

/* Layers, a whole number, of a stage of the type at the beat, with 1 << bucket micro-batches in
 * flight. */
double eth_hpp_chain_layers(const struct eth_hpp_chain_type *type, int bucket);
/* Sets the beat: what GPUs can take at it, which types are of use, and how far they reach. */
void eth_hpp_chain_set_beat(struct eth_hpp_chains *chains, double beat_s);
/* A beat that no chain can fall below, INFINITY where there is none below most_s; *unlimited_s were
 * memory no matter. It is known that none falls below known_s. Changes the beat. */
double eth_hpp_chain_least_beat(struct eth_hpp_chains *chains, double known_s, double most_s,
                                double *unlimited_s);
/* About the least time in which a micro-batch passes all layers at the beat, where the pools share
 * them by what they can take. */
double eth_hpp_chain_least_fill(const struct eth_hpp_chains *chains);

/* ---- chain_network.c ---- */

/* Seconds in which the busiest node's network carries all hand-overs and sums of a step of the task
 * with such pipelines; kinds of GPUs that share a node are taken to have one each. */
double eth_hpp_chain_network_s(const struct eth_hpp_chains *chains,
                               const struct eth_hpp_draft_group *group);

/* ---- chain_states.c ---- */

/* Does the hand-over from a stage of the type to the stages of a label cross nodes? Nodes are
 * filled with the larger stages first, so that those of one size stand together. */
bool eth_hpp_chain_crosses(const struct eth_hpp_chains *chains,
                           const struct eth_hpp_chain_type *type,
                           const struct eth_hpp_chain_label *label);
/* Looks for the chain of fewest stages at a beat, or for any where the task is coarse; true if
 * there is one. */
bool eth_hpp_chain_try(struct eth_hpp_chains *chains, double beat_s);

void eth_hpp_chain_out_of_memory(struct eth_hpp_chains *chains);

#endif
