/*
 * Watching a simulated step. What the simulator computes it tells an observer, span by span, so
 * that drawings show the very step that is predicted.
 */
#ifndef ETH_HPP_PLAN_OBSERVE_H
#define ETH_HPP_PLAN_OBSERVE_H

#include "plan/program.h"

/* An instruction of a stage, with its time. The workers of a stage run in lock-step; each of them
 * has the instruction in its list. */
struct eth_hpp_span {
    enum eth_hpp_opcode opcode; /* FORWARD, BACKWARD, SEND_ACTIVATION, SEND_GRADIENT, SYNC_BLOCK,
                                   OPTIMIZER_STEP or GATHER_BLOCK */
    int stage;                  /* index in the layout: stages pipeline by pipeline */
    int micro_batch;            /* of a forward, backward or hand-over, else -1 */
    int block;                  /* of a sum or gather: index into plan.blocks, else -1 */
    double start_s, end_s;
};

struct eth_hpp_observer {
    /* Spans of one stage and opcode come in the order of time. */
    void (*see)(void *context, const struct eth_hpp_span *span);
    void *context;
    double offset_s; /* added to what is told: for parts that are computed from 0 on */
};

/* Tells a span; `observer` may be NULL. */
static inline void eth_hpp_observer_tell(const struct eth_hpp_observer *observer,
                                         struct eth_hpp_span span)
{
    if (observer == NULL)
        return;
    span.start_s += observer->offset_s;
    span.end_s += observer->offset_s;
    observer->see(observer->context, &span);
}

#endif
