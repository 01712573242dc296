/*
 * libethhpp: heterogeneous pipeline parallel training from a plan.
 *
 * A program calls, on every rank:
 *
 *     eth_hpp_init            reads the plan that `eth-hpp launch` left in the environment, meets
 *                             the other ranks
 *     eth_hpp_get_assignment  says which layers this rank holds
 *     eth_hpp_register        names the parameters of those layers and the callbacks that compute a
 *                             stage
 *     ... gives the initial weights to eth_hpp_tensor_set_weights, or reads them with
 *         eth_hpp_load_weights; eth_hpp_checkpoint_open takes an earlier run up again ...
 *     eth_hpp_step            one optimizer step over the global batch, as often as wanted
 *     eth_hpp_finalize
 *
 * The library owns weights, gradients and optimizer states; it moves activations, sums gradients
 * block by block over each block's owners, clips by the global norm and runs AdamW. The loss curve
 * does not depend on the plan.
 *
 * Conventions. A function that can fail returns a status, writes its outputs only on success and
 * fills `err` (which may be NULL) with one line that says what failed and what to do. All sizes are
 * in bytes, times in seconds. A context belongs to one thread. After an error other than
 * ETH_HPP_ERR_INPUT only eth_hpp_abort and eth_hpp_finalize may be called.
 */
#ifndef ETH_HPP_H
#define ETH_HPP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ETH_HPP_API __attribute__((visibility("default")))
#else
#define ETH_HPP_API
#endif

enum eth_hpp_status {
    ETH_HPP_OK = 0,
    ETH_HPP_ERR_INPUT,       /* a file, an option or an argument is wrong */
    ETH_HPP_ERR_INFEASIBLE,  /* no plan fits the devices */
    ETH_HPP_ERR_UNSUPPORTED, /* right in itself, but this build or runtime cannot do it */
    ETH_HPP_ERR_IO,          /* the disk or the system failed */
    ETH_HPP_ERR_MEMORY,      /* out of memory */
    ETH_HPP_ERR_PEER,        /* another rank failed or left */
    ETH_HPP_ERR_TIMEOUT,     /* a deadline passed */
    ETH_HPP_ERR_NUMERIC,     /* the loss or a gradient is not finite */
    ETH_HPP_ERR_INTERNAL     /* a bug in this library */
};

struct eth_hpp_error {
    enum eth_hpp_status status;
    char text[1024];
};

struct eth_hpp_context;

/* ---- start and end ---- */

struct eth_hpp_init_options {
    const char *plan_path; /* NULL: $ETH_HPP_PLAN_FILE, which `eth-hpp launch` sets */
    double timeout_s;      /* no wait for another rank is longer; 0: $ETH_HPP_TIMEOUT, or 16 in
                              eth_hpp_init and 120 after it */
    int check_replicas; /* steps from one comparison of the replicas' weights to the next; 0: 100,
                           negative: never */
};

/* Reads the plan, meets the other ranks (PMIx; a single process without it), and opens the
 * transport. `options` may be NULL. Collective over all ranks of the job, the idle ones too.
 * Errors: INPUT (no plan, or one that does not fit the job), UNSUPPORTED (the plan asks for what
 * the runtime cannot run), PEER, TIMEOUT. Where ranks do not meet in time, or one cannot meet the
 * others, the job is ended here on all ranks, with one line that names the rank. */
ETH_HPP_API enum eth_hpp_status eth_hpp_init(const struct eth_hpp_init_options *options,
                                             struct eth_hpp_context **context,
                                             struct eth_hpp_error *err);

/* Waits for the other ranks (an idle one: until they have trained), closes the transport and frees
 * the context and all that it handed out. NULL is fine. A rank that ends without it counts as lost:
 * the job fails. */
ETH_HPP_API void eth_hpp_finalize(struct eth_hpp_context *context);

/* How a program leaves after an error of any function here: ends the whole job, every process with
 * the exit code of the error's status, and never returns. However many ranks an error shows up on,
 * one line with the root cause is logged, on one of them: a program prints no line of its own.
 * `context` is NULL where eth_hpp_init has failed. */
ETH_HPP_API void eth_hpp_fail(struct eth_hpp_context *context, const struct eth_hpp_error *error)
    __attribute__((noreturn));

/* Ends the whole job at once with this exit code (1..127) and without a line; never returns. For a
 * rank that cannot go on for reasons of its own, which it has printed. */
ETH_HPP_API void eth_hpp_abort(struct eth_hpp_context *context, int exit_code)
    __attribute__((noreturn));

/* ---- what this rank has to do ---- */

struct eth_hpp_assignment {
    int rank, world_size;
    bool idle; /* the plan leaves this rank out: only finalize is to be called */
    int pipeline, stage, stages;
    int first_layer, end_layer,
        layers;        /* half-open range of this stage; layers of the whole model */
    int samples;       /* samples of each micro-batch that this rank computes */
    int micro_batches; /* per step */
    int in_flight;     /* micro-batches whose forward may be kept at once: slots 0 .. in_flight-1 */
    bool recompute;    /* keep only the stage's input; forward again before backward */
    int sequence_length; /* tokens of a sample */
    int global_batch;    /* samples of a step over all pipelines */
};

/* Belongs to the context; valid until eth_hpp_finalize. */
ETH_HPP_API const struct eth_hpp_assignment *
eth_hpp_get_assignment(const struct eth_hpp_context *context);

/* ---- the model ---- */

/* Tensors begin at multiples of so many elements. */
enum { ETH_HPP_TENSOR_ALIGNMENT = 16 };

/* One parameter tensor of `count` elements. The order of the tensors inside a layer, and
 * their counts, must be the same on every rank that holds the layer. In memory they lie one after
 * the other in that order, tied ones left out, without gaps but for the alignment: several of whole
 * multiples of it may be used as one matrix. */
struct eth_hpp_tensor {
    const char *name; /* as files have it, e.g. "transformer.h.3.attn.c_attn.weight"; checkpoints
                         need names that differ */
    int layer;        /* absolute layer number; ignored where tied is set */
    const char *tied; /* name of the tied tensor in the plan's blocks, or NULL */
    size_t count;
    size_t columns; /* of a matrix, stored row by row; 0: a vector */
    bool weight_decay;
};

/* One micro-batch as this rank sees it: `samples` whole samples, consecutive in the global order.
 */
struct eth_hpp_micro_batch {
    int64_t step;
    int index;            /* of this pipeline: 0 .. micro_batches-1 */
    int slot;             /* 0 .. in_flight-1: where its kept activations live */
    int64_t first_sample; /* global number of its first sample: step x global_batch + offset */
    int samples;
    const int32_t *tokens;  /* samples x sequence_length, in device memory; only where layer 0 is
                               held, else NULL */
    const int32_t *targets; /* the same shape; -1 and -100 are not counted;
                               only where the last layer is held, else NULL */
    double *loss; /* device memory, two values: the forward of the last layer adds the sum of the
                     losses and the number of counted targets; NULL elsewhere */
    double loss_scale; /* the backward of the last layer begins with the gradient of so many times
                          the loss: 1 unless values are fp16 */
    bool replay;       /* this forward repeats an earlier one (recompute): do not add to loss */
};

/* The stage's computation. Pointers are device memory of the kernels' kind (host memory on CPUs); a
 * value handed to the next stage has samples x output_bytes of its layer in the profile. Gradients
 * are SUMS over samples and tokens, accumulated (+=) into eth_hpp_tensor_gradient; the library
 * zeroes them and divides once per step. */
struct eth_hpp_stage_ops {
    /* input: NULL on the first stage; output: NULL on the last, and where a forward is replayed. */
    enum eth_hpp_status (*forward)(void *user, const struct eth_hpp_micro_batch *micro_batch,
                                   const void *input, void *output, struct eth_hpp_error *err);
    /* output_gradient: NULL on the last stage; input_gradient: NULL on the first. `input` is what
     * forward got. Calls eth_hpp_layer_done after each layer, last to first, so that its gradients
     * can be summed meanwhile. */
    enum eth_hpp_status (*backward)(void *user, const struct eth_hpp_micro_batch *micro_batch,
                                    const void *input, const void *output_gradient,
                                    void *input_gradient, struct eth_hpp_error *err);
    /* Writes one sample's tokens and targets (sequence_length each, host memory). The same number
     * always gives the same sample. */
    enum eth_hpp_status (*sample)(void *user, int64_t number, int32_t *tokens, int32_t *targets,
                                  struct eth_hpp_error *err);
};

struct eth_hpp_optimizer_options {
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    double clip_norm; /* global norm over all pipelines, each tensor once; 0: no clipping */
};

/* Registers all tensors of this rank's layers, in any order, allocates weights, gradients and
 * optimizer states (zeroed), and makes the communicators. `activation_bytes` is what one sample
 * hands over at this stage's input and output. Called once, by every rank that is not idle; idle
 * ranks call it with count 0. Copies tensors and ops. Errors: INPUT (a layer missing or not held, a
 * tied name unknown), MEMORY, PEER, TIMEOUT. */
ETH_HPP_API enum eth_hpp_status eth_hpp_register(struct eth_hpp_context *context,
                                                 const struct eth_hpp_tensor *tensors, size_t count,
                                                 size_t input_bytes, size_t output_bytes,
                                                 const struct eth_hpp_stage_ops *ops, void *user,
                                                 struct eth_hpp_error *err);

/* Device memory of tensor i as registered; valid until finalize. Weights are values, of the type
 * that the plan's dtype names; gradients are always fp32, and free for the program's own use before
 * the first step. */
ETH_HPP_API void *eth_hpp_tensor_weights(struct eth_hpp_context *context, size_t i);
ETH_HPP_API float *eth_hpp_tensor_gradient(struct eth_hpp_context *context, size_t i);

/* Gives tensor i its first weights: `count` fp32 numbers in device memory, the tensor's gradient
 * for one. They are kept in fp32 beside the values where these are not that themselves. Every owner
 * gives the same. Before the first step. */
ETH_HPP_API void eth_hpp_tensor_set_weights(struct eth_hpp_context *context, size_t i,
                                            const float *from);

/* Device memory from the rank's arena (for kept activations and workspace), before the first step;
 * freed by finalize. Errors: MEMORY when the device or the plan's limit is exceeded, with both
 * figures. */
ETH_HPP_API enum eth_hpp_status eth_hpp_allocate(struct eth_hpp_context *context, size_t bytes,
                                                 void **memory, struct eth_hpp_error *err);

/* To be called inside backward once the gradients of a layer are complete for this micro-batch. */
ETH_HPP_API void eth_hpp_layer_done(struct eth_hpp_context *context, int layer);

/* The tensor operations of this rank's device (kernels.h), for models written on them. */
struct eth_hpp_kernels;
ETH_HPP_API struct eth_hpp_kernels *eth_hpp_get_kernels(struct eth_hpp_context *context);

/* ---- training ---- */

struct eth_hpp_metrics {
    int64_t step;
    double loss; /* mean over the counted targets of the whole batch; the same on every rank */
    int64_t targets;
    double gradient_norm;  /* before clipping; 0 where the update was left out */
    double loss_scale;     /* of this step: 1 unless values are fp16 */
    bool overflow;         /* gradients overflowed in fp16: the update was left out, and the next
                              step has half of the scale */
    double step_s;         /* this step on this rank */
    double busy_s;         /* of it, in forward and backward */
    double mean_busy_s;    /* the same, the mean over all ranks that are not idle */
    double sync_exposed_s; /* of it, waiting for gradient sums after the last backward, and for the
                              updated weights where the optimizer is sharded */
    double optimizer_s;
    size_t peak_bytes; /* of the rank's arena so far */
    bool stop;         /* a rank has asked for the end: true on all in the same step */
};

/* One step: all micro-batches, gradient sums, clipping, AdamW. Collective over the ranks that are
 * not idle. `metrics` may be NULL. Errors: NUMERIC (the loss is not finite; owners of a block hold
 * unlike weights: the text names block and ranks), PEER, TIMEOUT (the text names rank, instruction,
 * peer). */
ETH_HPP_API enum eth_hpp_status eth_hpp_step(struct eth_hpp_context *context,
                                             const struct eth_hpp_optimizer_options *optimizer,
                                             struct eth_hpp_metrics *metrics,
                                             struct eth_hpp_error *err);

/* What each rank's arena holds: world_size figures, 0 for a rank that is idle. All of it is taken
 * before the first step. Collective over the ranks that are not idle. Errors: PEER, TIMEOUT. */
ETH_HPP_API enum eth_hpp_status eth_hpp_get_peaks(struct eth_hpp_context *context, double *bytes,
                                                  struct eth_hpp_error *err);

/* Asks for the end of the training: metrics.stop tells all ranks after the step that runs. For
 * signal handlers. */
ETH_HPP_API void eth_hpp_request_stop(struct eth_hpp_context *context);

/* ---- weights and checkpoints ---- */

/* Reads the weights of this rank's tensors, by their names (a leading "transformer." or
 * "model." may be missing), from a folder as Hugging Face's libraries write it: model.safetensors,
 * or several files with their index; F32, F16 or BF16. Every rank reads for itself. Errors: INPUT
 * (a tensor missing, of another shape, damaged), IO, MEMORY. */
ETH_HPP_API enum eth_hpp_status eth_hpp_load_weights(struct eth_hpp_context *context,
                                                     const char *folder, struct eth_hpp_error *err);

/* By which gradients are multiplied where values are fp16. */
struct eth_hpp_loss_scale {
    double factor;
    int64_t steps; /* since it was changed */
};

/* How far a training has come. */
struct eth_hpp_checkpoint {
    int64_t step;        /* steps that are done; -1: none, a new training */
    int64_t updates;     /* of them, those that changed the weights */
    int64_t next_sample; /* global number of the next step's first sample */
    uint64_t seed;       /* as eth_hpp_checkpoint_options has them */
    int64_t data_tokens;
    int global_batch, sequence_length;    /* of the plan */
    struct eth_hpp_loss_scale loss_scale; /* factor 0: values were not fp16 */
};

enum eth_hpp_resume {
    ETH_HPP_RESUME_NO,   /* a new training; the folder must not have checkpoints */
    ETH_HPP_RESUME_AUTO, /* go on where there is a checkpoint, else a new training */
    ETH_HPP_RESUME_YES   /* there must be one */
};

struct eth_hpp_checkpoint_options {
    const char *folder; /* seen by all ranks; made where it is missing */
    int keep;           /* so many of the newest checkpoints stay; 0: all */
    enum eth_hpp_resume resume;
    const char *model_config; /* text of the config.json that goes with the tensors; or NULL */
    uint64_t seed;            /* kept for the program: its seed, below 2^62 ... */
    int64_t data_tokens;      /* ... and what tells its data from others; 0: nothing */
};

/* Prepares checkpoints, and takes the newest one up: weights, optimizer states, step and data
 * position, whatever plan it was written under. One that is damaged or not this model's is passed
 * over with a warning, its folder set aside as "step-N.damaged", and the one before it taken.
 * Called once, after eth_hpp_register and before the first step; collective over the ranks that are
 * not idle. Copies the options. *resumed: what was found. Errors: INPUT (no checkpoint that can be
 * used though there are some, or there must be one; a folder that not all ranks see), IO, MEMORY.
 */
ETH_HPP_API enum eth_hpp_status
eth_hpp_checkpoint_open(struct eth_hpp_context *context,
                        const struct eth_hpp_checkpoint_options *options,
                        struct eth_hpp_checkpoint *resumed, struct eth_hpp_error *err);

/* Starts a checkpoint of the training as it is between two steps: copies weights and optimizer
 * states in memory (12 bytes for each parameter that this rank writes), which threads then write
 * while training goes on; waits for one that is being written. A checkpoint that cannot be written
 * is the error of a later step or of eth_hpp_checkpoint_finish; earlier ones stay as they are.
 * Collective over the ranks that are not idle. */
ETH_HPP_API enum eth_hpp_status eth_hpp_checkpoint_save(struct eth_hpp_context *context,
                                                        struct eth_hpp_error *err);

/* Waits until the last checkpoint is whole. Collective over the ranks that are not idle. */
ETH_HPP_API enum eth_hpp_status eth_hpp_checkpoint_finish(struct eth_hpp_context *context,
                                                          struct eth_hpp_error *err);

#ifdef __cplusplus
}
#endif

#endif
