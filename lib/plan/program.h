/*
 * The instruction list: what one rank does in one step, and the only description of a schedule. The
 * simulator runs these lists against the cost model, the runtime runs them for real, the verifier
 * proves them matched and free of deadlock, the timeline report draws them.
 *
 * Semantics. Instructions are ISSUED in list order. Each goes to a queue; a queue completes its
 * instructions in order, queues run beside each other. Besides the queue's order an instruction
 * waits for exactly this:
 *
 *     RECV_ACTIVATION(m)  BACKWARD(m - input_buffers), which frees its buffer
 *     FORWARD(m)          all RECV_ACTIVATION(m), and SEND_ACTIVATION(m - output_buffers)
 *     SEND_ACTIVATION(m)  FORWARD(m)
 *     RECV_GRADIENT(m)    BACKWARD(m - output_gradient_buffers)
 *     BACKWARD(m)         FORWARD(m), all RECV_GRADIENT(m), and
 *                         SEND_GRADIENT(m - input_gradient_buffers)
 *     SEND_GRADIENT(m)    BACKWARD(m)
 *     SYNC_BLOCK(b)       the last BACKWARD having passed the block's layers (a tied block: the
 *                         lowest of its layers held here)
 *     REDUCE_LOSS         the last FORWARD
 *     REDUCE_NORM         all SYNC_BLOCK and REDUCE_LOSS
 *     OPTIMIZER_STEP      REDUCE_NORM
 *     GATHER_BLOCK(b)     OPTIMIZER_STEP (sharded optimizer only: the updated weights go back to
 *                         all owners, first block first)
 *
 * SYNC_BLOCKs stand in front of the last BACKWARD, so that each can start as soon as that backward
 * has passed its layers; all ranks issue their sums in one order, the blocks from last to first,
 * then the tied tensors. A block that only one worker holds needs no sum and has no instruction.
 *
 * Micro-batch m uses hand-over buffer m % count of each kind. There is one more input buffer than
 * micro-batches in flight, so that a receive can be posted one micro-batch ahead; receives stand in
 * the list as early as their buffers are free. Waits for an earlier send bind only behind a link
 * that is several micro-batches late.
 */
#ifndef ETH_HPP_PLAN_PROGRAM_H
#define ETH_HPP_PLAN_PROGRAM_H

#include "model/model.h" /* the numbers of hand-over buffers */
#include "plan/plan.h"

/* A stage that had more than this many micro-batches in flight beyond the next one's would wait
 * for gradients to leave that the next stages take only after its forwards: activations and
 * gradients to send and received ones fill all buffers then. So it has no more, whatever its plan
 * says. */
enum { ETH_HPP_MORE_IN_FLIGHT = 2 * ETH_HPP_SEND_BUFFERS + ETH_HPP_GRADIENT_BUFFERS + 1 };

enum eth_hpp_opcode {
    ETH_HPP_RECV_ACTIVATION,
    ETH_HPP_FORWARD,
    ETH_HPP_SEND_ACTIVATION,
    ETH_HPP_RECV_GRADIENT,
    ETH_HPP_BACKWARD,
    ETH_HPP_SEND_GRADIENT,
    ETH_HPP_SYNC_BLOCK,
    ETH_HPP_REDUCE_LOSS,
    ETH_HPP_REDUCE_NORM,
    ETH_HPP_OPTIMIZER_STEP,
    ETH_HPP_GATHER_BLOCK
};
const char *eth_hpp_opcode_name(enum eth_hpp_opcode opcode); /* "recv-activation", ... */

/* A queue is a stream with a communicator: compute, one for each direction of each neighbour, and
 * one for all sums. */
enum eth_hpp_queue_kind {
    ETH_HPP_QUEUE_COMPUTE,
    ETH_HPP_QUEUE_SEND, /* to `peer`, both activations and gradients go one way: downstream or
                           upstream */
    ETH_HPP_QUEUE_RECV, /* from `peer` */
    ETH_HPP_QUEUE_SYNC
};

struct eth_hpp_queue {
    enum eth_hpp_queue_kind kind;
    int peer; /* rank, or -1 */
    /* The queue of this rank whose communicator, communicator's resources or stream it uses: what
     * queues that name the same one issue is completed in the order of issue, whichever queue it is
     * on, as a device does with communicators that share resources (NCCL's splitShare) or stand on
     * one stream. Compiled lists share nothing, as the transport over NCCL (comm/nccl): each queue
     * names itself. Sums of different blocks stand on one queue, so their communicators may share
     * resources. */
    int shares;
};

struct eth_hpp_instruction {
    enum eth_hpp_opcode opcode;
    int micro_batch; /* of the pipeline, or -1 */
    int peer;        /* rank of a hand-over, or -1 */
    int first_sample,
        samples;  /* of a hand-over: which of THIS worker's samples (0-based within its share) */
    int block;    /* index into plan.blocks of a SYNC_BLOCK or GATHER_BLOCK, or -1 */
    double bytes; /* of a hand-over or a sum */
    int queue;    /* index into the program's queues */
};

struct eth_hpp_program {
    int rank;
    struct eth_hpp_place place;
    struct eth_hpp_instruction *instructions;
    int count;
    struct eth_hpp_queue *queues;
    int queue_count;
    int input_buffers, output_buffers;                   /* activations received and sent */
    int output_gradient_buffers, input_gradient_buffers; /* gradients received and sent */
};

/* What every layer hands on per sample and what every block sums, in bytes: the sizes that programs
 * are compiled with. *output_bytes has plan->layers entries, *gradient_bytes plan->block_count; the
 * caller frees both. Errors: INPUT (the plan's layers or tied tensors are not the profile's). */
enum eth_hpp_status eth_hpp_program_sizes(const struct eth_hpp_plan *plan,
                                          const struct eth_hpp_profile *profile,
                                          double **output_bytes, double **gradient_bytes,
                                          struct eth_hpp_error *err);

/* Compiles the list of one rank. `output_bytes[l]` is what layer l hands on per sample,
 * `gradient_bytes[b]` what block b sums; eth_hpp_program_sizes makes both. The program of an
 * idle rank is empty. Of a tensor-parallel group the first rank hands over for all; what the group
 * exchanges among itself belongs to FORWARD and BACKWARD. Freed with eth_hpp_program_free. Errors:
 * INPUT (ranks or blocks of the plan are not filled in), MEMORY. */
enum eth_hpp_status eth_hpp_program_compile(const struct eth_hpp_plan *plan,
                                            const double *output_bytes,
                                            const double *gradient_bytes, int rank,
                                            struct eth_hpp_program *program,
                                            struct eth_hpp_error *err);
void eth_hpp_program_free(struct eth_hpp_program *program);

/* Proves all ranks' programs together (idle ranks' empty ones may be left out): each send has its
 * receive with the same bytes and in the same order on its queue; each block is summed by exactly
 * its owners, sums come in one order on all ranks; no rank holds more micro-batches than its
 * stage's in_flight; and the graph of all waits has no cycle: the waits above, the order of each
 * queue and of queues that share, the free buffers, a send that completes only once its receive is
 * posted, and an issue that waits for the computation listed before it. Errors: INTERNAL, naming
 * rank, instruction and peer; MEMORY. */
enum eth_hpp_status eth_hpp_program_verify(const struct eth_hpp_plan *plan,
                                           const struct eth_hpp_program *programs, int count,
                                           struct eth_hpp_error *err);

#endif
