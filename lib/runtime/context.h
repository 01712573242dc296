/* The runtime's inner state, shared by its parts. */
#ifndef ETH_HPP_RUNTIME_CONTEXT_H
#define ETH_HPP_RUNTIME_CONTEXT_H

#include <signal.h>

#include "comm/comm.h"
#include "plan/plan.h"
#include "plan/program.h"
#include "runtime/arena.h"
#include "runtime/emulation.h"

/* ---- parameters (register.c) ---- */

/* Weights and gradients are arrays of one layout: layer by layer, in a layer as registered, then
 * the tied tensors. So the gradients of a block are one slice, summed as they lie. The moments and
 * masters have the same layout, less what other owners update where the optimizer is sharded. Then
 * the owners' shares of a block are alike and aligned, so that the shares of its values are those
 * of any block of words, too.
 */
struct eth_hpp_parameter {
    char *name;
    size_t offset, count; /* elements */
    size_t columns;       /* of a matrix; 0: a vector */
    int block;            /* of the plan */
    bool weight_decay;
    bool alias; /* another name of a tied tensor that stands before it */
};

/* A block of the plan that this rank owns. */
struct eth_hpp_owned_block {
    int block;            /* of the plan; -1: not owned */
    size_t offset, count; /* elements */
    int lowest_layer;     /* complete when the backward has passed it */
    /* This owner's share of it, elements of the arrays: it counts their squares. */
    size_t share, share_end;
    /* What it updates: its share where the optimizer is sharded, else all; and where the moments of
     * that begin in their arrays. */
    size_t updated, updated_end, moments;
    struct eth_hpp_group *group;
};

/* The elements of a tensor that this rank updates, none where first == end, and the offset of their
 * moments. */
struct eth_hpp_updated_part {
    size_t first, end, moments;
};

struct eth_hpp_parameters {
    struct eth_hpp_parameter *tensors; /* as registered */
    size_t tensor_count;
    struct eth_hpp_owned_block *blocks; /* [plan.block_count] */
    size_t total, moments_total;        /* elements of each array */
    void *weights;                      /* values, which operations read */
    float *gradients, *first_moments, *second_moments;
    float *masters; /* of the values, laid out like the moments; NULL where values are fp32 */
};

/* ---- the step (executor.c, device.c, handover.c, sync.c) ---- */

enum eth_hpp_handover {
    ETH_HPP_HANDOVER_INPUT,           /* RECV_ACTIVATION */
    ETH_HPP_HANDOVER_OUTPUT,          /* SEND_ACTIVATION */
    ETH_HPP_HANDOVER_OUTPUT_GRADIENT, /* RECV_GRADIENT */
    ETH_HPP_HANDOVER_INPUT_GRADIENT,  /* SEND_GRADIENT */
    ETH_HPP_HANDOVERS
};

/* The buffers of one kind of hand-over and its instructions by micro-batch. */
struct eth_hpp_handover_buffers {
    char *memory; /* [buffers][samples][sample_bytes] */
    int buffers;
    size_t sample_bytes;
    int *first; /* [micro_batches] index of the first instruction, or -1 */
};

/* What the device does for an instruction. */
struct eth_hpp_device_span {
    struct eth_hpp_event *from, *to;
};

/* Samples on their way to the device, of one slot of micro-batches in flight: streams' host memory,
 * tokens and then targets. */
struct eth_hpp_loading {
    int32_t *host;
    struct eth_hpp_event *loaded;
};

struct eth_hpp_executor {
    struct eth_hpp_program program;
    struct eth_hpp_request **requests; /* [instructions] under way, or NULL */
    struct eth_hpp_device_span *spans; /* [instructions] of those that compute; else NULLs */
    int *next;                         /* [instructions] the next of its kind and micro-batch */
    struct eth_hpp_handover_buffers handovers[ETH_HPP_HANDOVERS];
    int64_t first_sample;      /* of this worker in a step's first micro-batch */
    int32_t *tokens, *targets; /* device, [in_flight][samples][sequence]; NULL where not needed */
    struct eth_hpp_loading *loadings; /* [in_flight] */
    double *loss, *norm;              /* device: sum and count; sum of squares */
    double *forward_s;             /* emulated, [layers of the stage]; NULL: nothing is emulated */
    struct eth_hpp_event *summed;  /* all sums are done */
    struct eth_hpp_event *reading; /* what is read next has been made */

    /* of the step that runs */
    double totals[3]; /* loss, targets and whether to stop, of this rank and then of all */
    double squares_and_busy[2]; /* the same of the gradients' squares and of busy_s */
    int issuing;                /* the instruction */
    bool last_backward;
    int syncs_started; /* instructions before this one have been looked at */
    double backward_start;
    double busy_s;
    struct eth_hpp_error layer_error; /* of a sum that eth_hpp_layer_done started */
};

struct eth_hpp_context {
    struct eth_hpp_plan plan;
    struct eth_hpp_bootstrap_place job; /* this process among the job's */
    struct eth_hpp_place place;         /* this rank in the plan */
    struct eth_hpp_assignment assignment;
    double timeout_s;
    int check_replicas; /* steps; 0: never */
    struct eth_hpp_comm *comm;
    struct eth_hpp_group *active; /* all ranks that are not idle */
    struct eth_hpp_kernels *kernels;
    struct eth_hpp_arena arena;
    struct eth_hpp_emulator emulator;
    double busy_s; /* of all steps */
    struct eth_hpp_stage_ops ops;
    void *user;
    bool registered, failed;
    struct eth_hpp_parameters parameters;
    struct eth_hpp_executor executor;
    int64_t step;    /* the one that runs or comes next */
    int64_t updates; /* steps that changed the weights */
    struct eth_hpp_loss_scale loss_scale;
    int64_t next_sample; /* global number of its first sample */
    volatile sig_atomic_t stop_asked;
    struct eth_hpp_checkpointer *checkpointer; /* NULL: no checkpoints */
};

/* eth_hpp_init on a bootstrap, which it closes in every case (init.c). */
enum eth_hpp_status eth_hpp_context_open(struct eth_hpp_bootstrap *bootstrap,
                                         const struct eth_hpp_init_options *options,
                                         struct eth_hpp_context **context,
                                         struct eth_hpp_error *err);

/* Puts the transport of the device's memory in the place of the host's, where it is not the host's
 * (transport.c). After an error the job is to be ended. */
enum eth_hpp_status eth_hpp_transport_reach_device(struct eth_hpp_context *context,
                                                   struct eth_hpp_error *err);

/* Place and assignment of this rank, by plan and job (init.c). */
void eth_hpp_context_fill_assignment(struct eth_hpp_context *context);

/* Is this the lowest rank that is not idle, which does what one rank does for all? */
bool eth_hpp_is_lowest(const struct eth_hpp_context *context);
/* The largest of each value over the ranks that are not idle; waits for it. */
enum eth_hpp_status eth_hpp_reduce_max(struct eth_hpp_context *context, double *values, int count,
                                       struct eth_hpp_error *err);
/* One number of each rank, not negative: values[job.size], 0 for idle ranks; waits for it. */
enum eth_hpp_status eth_hpp_exchange_number(struct eth_hpp_context *context, double own,
                                            double *values, struct eth_hpp_error *err);

/* Another rank says why this one has to leave (leave.c). */
void eth_hpp_leave_quietly(void);
/* A program that ends before eth_hpp_finalize ends the job. */
void eth_hpp_leave_watch(struct eth_hpp_context *context);

/* Takes the tensors in and makes memory and groups (register.c). */
enum eth_hpp_status eth_hpp_parameters_open(struct eth_hpp_context *context,
                                            const struct eth_hpp_tensor *tensors, size_t count,
                                            struct eth_hpp_error *err);
void eth_hpp_parameters_free(struct eth_hpp_context *context);
struct eth_hpp_updated_part eth_hpp_parameters_updated(const struct eth_hpp_parameters *parameters,
                                                       size_t tensor);

/* Weights as values and as masters (weights.c). */
/* The words of 32 bits that so many values take. */
size_t eth_hpp_weights_words(const struct eth_hpp_context *context, size_t count);
/* Values from an element of the arrays on. */
void *eth_hpp_weights_values(const struct eth_hpp_context *context, size_t offset);
/* In fp32, of the part of a tensor that this rank updates: what the optimizer updates. */
float *eth_hpp_weights_masters(const struct eth_hpp_context *context, size_t tensor);
/* Gives this part's values what its masters are. */
void eth_hpp_weights_cast(struct eth_hpp_context *context, size_t tensor);
/* Gives a whole tensor the weights of this device memory, which may be its gradient's. */
void eth_hpp_weights_set(struct eth_hpp_context *context, size_t tensor, const float *from);
/* All weights of this rank in fp32, in the arrays' layout, valid until the next step: in the
 * gradients' memory where values have 2 bytes. Collective over the ranks that are not idle. Errors:
 * PEER, TIMEOUT. */
enum eth_hpp_status eth_hpp_weights_collect(struct eth_hpp_context *context, const float **weights,
                                            struct eth_hpp_error *err);

/* Compiles this rank's list and makes its buffers. */
enum eth_hpp_status eth_hpp_executor_open(struct eth_hpp_context *context, size_t input_bytes,
                                          size_t output_bytes, struct eth_hpp_error *err);
void eth_hpp_executor_free(struct eth_hpp_context *context);
enum eth_hpp_status eth_hpp_executor_run(struct eth_hpp_context *context,
                                         const struct eth_hpp_optimizer_options *optimizer,
                                         struct eth_hpp_metrics *metrics,
                                         struct eth_hpp_error *err);

/* What is issued from here on comes after what instruction i has under way, if anything; the error
 * says what it was. */
enum eth_hpp_status eth_hpp_executor_join(struct eth_hpp_context *context, int i,
                                          struct eth_hpp_error *err);
/* Waits for that. */
enum eth_hpp_status eth_hpp_executor_wait(struct eth_hpp_context *context, int i,
                                          struct eth_hpp_error *err);
/* Puts the instruction's name in front of the error's text, whose status it returns. */
enum eth_hpp_status eth_hpp_executor_name(const struct eth_hpp_context *context, int i,
                                          struct eth_hpp_error *err);

/* Forward and backward of one micro-batch (compute.c); `span` is what the device takes for it. */
enum eth_hpp_status eth_hpp_compute_forward(struct eth_hpp_context *context, int m,
                                            const struct eth_hpp_device_span *span,
                                            struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_compute_backward(struct eth_hpp_context *context, int m,
                                             const struct eth_hpp_device_span *span,
                                             struct eth_hpp_error *err);

/* The device (device.c). */
/* Puts the event behind what the device has been told to compute. */
void eth_hpp_device_mark(struct eth_hpp_context *context, struct eth_hpp_event *event);
/* Waits until the event is done. Errors: TIMEOUT, naming the instruction that the device does not
 * get on with, and IO. */
enum eth_hpp_status eth_hpp_device_await(struct eth_hpp_context *context,
                                         struct eth_hpp_event *event, struct eth_hpp_error *err);
/* Copies to ordinary host memory what all that has been issued leaves on the device. Errors: the
 * same. */
enum eth_hpp_status eth_hpp_device_read(struct eth_hpp_context *context, void *host,
                                        const void *from, size_t bytes, struct eth_hpp_error *err);

/* Hand-overs (handover.c). */
enum eth_hpp_status eth_hpp_handovers_open(struct eth_hpp_context *context, size_t input_bytes,
                                           size_t output_bytes, struct eth_hpp_error *err);
void *eth_hpp_handover_buffer(const struct eth_hpp_executor *executor, enum eth_hpp_handover kind,
                              int micro_batch, int samples);
enum eth_hpp_status eth_hpp_handover_start(struct eth_hpp_context *context, int i,
                                           struct eth_hpp_error *err);
/* Joins all of a kind of one micro-batch; nothing where it is not a micro-batch. */
enum eth_hpp_status eth_hpp_handover_join(struct eth_hpp_context *context,
                                          enum eth_hpp_handover kind, int micro_batch,
                                          struct eth_hpp_error *err);

/* Gradient sums and the update (sync.c, optimizer.c). */
/* Starts the sums, in the list's order, of the blocks that a backward has passed: reduce-scatters
 * where the optimizer is sharded. */
enum eth_hpp_status eth_hpp_sync_passed(struct eth_hpp_context *context, int layer,
                                        struct eth_hpp_error *err);
/* Starts handing the updated values of a block to all its owners. */
enum eth_hpp_status eth_hpp_sync_gather(struct eth_hpp_context *context, int i,
                                        struct eth_hpp_error *err);
/* Joins the sums and waits for the loss. */
enum eth_hpp_status eth_hpp_sync_wait(struct eth_hpp_context *context, struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_sync_loss(struct eth_hpp_context *context, int i,
                                      struct eth_hpp_error *err);
/* The global sum of squares, and of busy seconds, into executor.squares_and_busy. */
enum eth_hpp_status eth_hpp_sync_norm(struct eth_hpp_context *context, int i,
                                      struct eth_hpp_error *err);
/* Fills in gradient_norm, of the mean gradient before clipping, loss_scale and overflow. */
enum eth_hpp_status eth_hpp_optimizer_update(struct eth_hpp_context *context,
                                             const struct eth_hpp_optimizer_options *options,
                                             struct eth_hpp_metrics *metrics,
                                             struct eth_hpp_error *err);

/* The scale of the loss (loss_scale.c): that of a new training, */
struct eth_hpp_loss_scale eth_hpp_loss_scale_first(enum eth_hpp_dtype dtype);
/* after a step whose gradients were finite, */
void eth_hpp_loss_scale_fits(struct eth_hpp_loss_scale *scale);
/* and after one whose gradients were not. False where no scale is to blame. */
bool eth_hpp_loss_scale_overflows(struct eth_hpp_loss_scale *scale);

/* Checkpoints (checkpoint.c, checkpoint_load.c). */
/* Called between steps: tells whether what is being written is whole by now. */
enum eth_hpp_status eth_hpp_checkpoint_poll(struct eth_hpp_context *context,
                                            struct eth_hpp_error *err);
/* Ends the threads, waiting for what they write, and frees. */
void eth_hpp_checkpoint_free(struct eth_hpp_context *context);
/* Takes the newest checkpoint of the folder that can be used; *resumed has step -1 where there is
 * none. Errors: INPUT where there are some and none can be used. */
enum eth_hpp_status eth_hpp_checkpoint_resume(struct eth_hpp_context *context, const char *folder,
                                              struct eth_hpp_checkpoint *resumed,
                                              struct eth_hpp_error *err);

/* Compares the replicas of this rank's blocks in some of the steps (replicas.c). Errors: NUMERIC
 * where they differ, naming block and ranks. */
enum eth_hpp_status eth_hpp_replicas_compare(struct eth_hpp_context *context,
                                             struct eth_hpp_error *err);

#endif
