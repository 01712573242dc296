/*
 * Tensor operations: one table that every kind of device fills. A model is written once on top of
 * it and knows neither BLAS nor CUDA.
 *
 * Memory. Every pointer to tensor data is device memory (host memory on CPUs), except where a
 * parameter is called `host`.
 *
 * Types. A tensor is one of these; the kernels say how large their elements are:
 *   value   activations, their gradients, and the weights that operations read (value_bytes)
 *   sum     gradients of weights, statistics, optimizer moments, master weights (sum_bytes)
 * The "cpu" kernels have fp32 for both. Tokens and targets are int32_t, losses double.
 *
 * Order. Operations are asynchronous: they are issued on the compute stream and complete in the
 * order of their calls; only `to_device`, `to_host` and `synchronize` wait. They allocate nothing
 * and read nothing back; where one needs scratch memory, the caller passes it. What is issued on
 * one stream is done in order; streams run beside each other, and where one needs what another
 * does, it waits for an event of that one. On CPUs everything is done when its call returns, on
 * every stream.
 *
 * Results. OVERWRITES or ADDS TO is said at each. Inputs and outputs do not overlap unless "in
 * place" is said. Matrices are row-major without padding. `rows` counts tokens: samples x sequence.
 *
 * Errors. An operation cannot fail for correct arguments; a device's own failure is reported by the
 * next `synchronize`, `to_device`, `to_host` or `event_test`.
 */
#ifndef ETH_HPP_KERNELS_H
#define ETH_HPP_KERNELS_H

#include "base/dtype.h"
#include "base/error.h"

/* A linear layer: output[rows][out] = input[rows][in] x weight + bias. */
struct eth_hpp_linear {
    size_t rows, in, out;
    bool out_major; /* the weight is stored [out][in] (embeddings, llama), else [in][out] (GPT-2) */
};

/* Which elements are dropped (Srivastava et al. 2014): each with probability `rate`; the others are
 * multiplied by 1 / (1 - rate). That depends on seed, step, the sample's global number, layer,
 * operation and the element's place in the sample alone (Philox 4x32-10): it is the same under
 * every plan, in backward, and where a forward is replayed. */
struct eth_hpp_dropout {
    double rate; /* 0 <= rate < 1 */
    uint64_t seed;
    int64_t step, first_sample; /* global number of the first of the operation's samples */
    uint16_t layer;
    uint8_t operation; /* of the layer */
};

/* Values of a head of attention that GPUs have kernels for; on CPUs there is no limit. */
#define ETH_HPP_HEAD_SIZE_MOST 256

/* Causal self-attention. A row of `qkv` is the queries of all heads, then the keys, then the
 * values: (heads + 2 x key_value_heads) x head_size values. heads / key_value_heads heads, one
 * after the other, share a head of keys and values (arXiv:2305.13245); it divides without a rest,
 * and there are as many of both in plain attention. */
struct eth_hpp_attention {
    size_t samples, sequence, heads, key_value_heads;
    size_t head_size;                      /* on GPUs ETH_HPP_HEAD_SIZE_MOST at most */
    const struct eth_hpp_dropout *dropout; /* of the probabilities; NULL: none */
};

/* Rotary position embedding (arXiv:2104.09864) of the first `heads` heads of rows of `stride`
 * values: of the queries and keys of a row of qkv. As Hugging Face's models have it, element i of a
 * head's first half makes a pair with element i of its second half; the pair is turned by the angle
 * position x theta^(-2 i / head_size), where the position is row % sequence. */
struct eth_hpp_rotary {
    size_t rows, sequence, heads, head_size, stride; /* head_size is even */
    double theta;
    bool back; /* by the angles' negatives: gradients in backward */
};

/* AdamW (Loshchilov and Hutter, arXiv:1711.05101), with the learning rate of this step. */
struct eth_hpp_adamw {
    double learning_rate, beta1, beta2, epsilon;
    double weight_decay;
    double gradient_scale; /* every gradient is multiplied by this first */
    int64_t step;          /* 1 at the first update */
};

/* Where work of the host's own is issued: hand-overs and sums have streams for their copies. Where
 * an operation takes a stream, it is one of these or one that stream_create has made. */
enum eth_hpp_stream {
    ETH_HPP_STREAM_COMPUTE,
    ETH_HPP_STREAM_SEND, /* from the device, to other ranks */
    ETH_HPP_STREAM_RECV,
    ETH_HPP_STREAM_SYNC, /* sums over ranks */
    ETH_HPP_STREAMS
};

/* A place in a stream, and the time when the device came to it. */
struct eth_hpp_event;

struct eth_hpp_kernels_ops {
    /* ---- memory ---- */

    /* Uninitialised memory, aligned to 64 bytes at least; `release` takes NULL too. */
    enum eth_hpp_status (*allocate)(void *state, size_t bytes, void **memory,
                                    struct eth_hpp_error *err);
    void (*release)(void *state, void *memory);
    /* Takes this much at once, or what a device has left if that is less; what is allocated from
     * here on is cut from it, as long as there is enough of it, and goes with the kernels. Devices
     * where that brings nothing ignore it. Errors: MEMORY. */
    enum eth_hpp_status (*reserve)(void *state, size_t bytes, struct eth_hpp_error *err);
    /* Of any host memory; both wait until the data are there. */
    enum eth_hpp_status (*to_device)(void *state, void *to, const void *host, size_t bytes,
                                     struct eth_hpp_error *err);
    enum eth_hpp_status (*to_host)(void *state, void *host, const void *from, size_t bytes,
                                   struct eth_hpp_error *err);
    void (*copy)(void *state, void *to, const void *from, size_t bytes);
    void (*zero)(void *state, void *memory, size_t bytes);
    /* Waits, without a deadline, until everything issued on the compute stream so far is done. */
    enum eth_hpp_status (*synchronize)(void *state, struct eth_hpp_error *err);

    /* ---- streams and events ---- */

    /* Host memory that copies on a stream reach (page-locked for a GPU); `release_host` takes NULL
     * too. Not in a step. */
    enum eth_hpp_status (*allocate_host)(void *state, size_t bytes, void **memory,
                                         struct eth_hpp_error *err);
    void (*release_host)(void *state, void *memory);
    /* A stream more, for a library that puts work of its own there: it goes with the kernels. Such
     * a library knows a stream by what stream_native returns (a cudaStream_t). Both NULL on CPUs.
     * Errors: MEMORY. */
    enum eth_hpp_status (*stream_create)(void *state, int *stream, struct eth_hpp_error *err);
    void *(*stream_native)(void *state, int stream);
    /* Copies between the device and such host memory, which is in use until an event behind them is
     * done. */
    void (*stream_to_device)(void *state, int stream, void *to, const void *host, size_t bytes);
    void (*stream_to_host)(void *state, int stream, void *host, const void *from, size_t bytes);
    enum eth_hpp_status (*event_create)(void *state, struct eth_hpp_event **event,
                                        struct eth_hpp_error *err);
    void (*event_destroy)(void *state, struct eth_hpp_event *event); /* NULL is fine */
    /* Puts the event behind all that has been issued on the stream so far; where it stood before is
     * forgotten. */
    void (*event_record)(void *state, struct eth_hpp_event *event, int stream);
    /* What is issued on the stream from here on waits for the event where it stands now. */
    void (*stream_wait)(void *state, int stream, struct eth_hpp_event *event);
    /* Does not wait. *done: the device has come to it, or it was never recorded. Errors: IO (the
     * device has failed). */
    enum eth_hpp_status (*event_test)(void *state, struct eth_hpp_event *event, bool *done,
                                      struct eth_hpp_error *err);
    /* From one event to another, both done. */
    double (*event_seconds)(void *state, struct eth_hpp_event *from, struct eth_hpp_event *to);

    /* ---- embedding ---- */

    /* OVERWRITES output[rows][width] with token_table[tokens[r]] + position_table[r % sequence]; a
     * NULL position_table adds nothing. Tokens are valid rows of the table: whoever brings the data
     * checks that. */
    void (*embedding_forward)(void *state, size_t rows, size_t sequence, size_t width,
                              const int32_t *tokens, const void *token_table,
                              const void *position_table, void *output);
    /* ADDS TO both gradients (sums; position_gradient may be NULL). */
    void (*embedding_backward)(void *state, size_t rows, size_t sequence, size_t width,
                               const int32_t *tokens, const void *output_gradient,
                               void *token_gradient, void *position_gradient);

    /* ---- layer normalisation (arXiv:1607.06450) ---- */

    /* OVERWRITES output, and mean[rows] and rstd[rows] (sums): the row's mean and
     * 1 / sqrt(variance + epsilon). Without mean, bias and bias_gradient (NULL) it is RMSNorm
     * (arXiv:1910.07467): the mean counts as 0, for the variance and for the gradients too. */
    void (*layernorm_forward)(void *state, size_t rows, size_t width, double epsilon,
                              const void *input, const void *weight, const void *bias, void *output,
                              void *mean, void *rstd);
    /* ADDS TO input_gradient (values) and to both weight gradients (sums). */
    void (*layernorm_backward)(void *state, size_t rows, size_t width, const void *output_gradient,
                               const void *input, const void *weight, const void *mean,
                               const void *rstd, void *input_gradient, void *weight_gradient,
                               void *bias_gradient);

    /* ---- linear layers ---- */

    /* OVERWRITES output. bias: [out] or NULL; residual: added to the output, laid out like it, or
     * NULL. */
    void (*linear_forward)(void *state, const struct eth_hpp_linear *shape, const void *input,
                           const void *weight, const void *bias, const void *residual,
                           void *output);
    /* OVERWRITES input_gradient. */
    void (*linear_backward_input)(void *state, const struct eth_hpp_linear *shape,
                                  const void *output_gradient, const void *weight,
                                  void *input_gradient);
    /* ADDS TO weight_gradient, in the weight's layout, and bias_gradient (sums; the latter may be
     * NULL). */
    void (*linear_backward_weight)(void *state, const struct eth_hpp_linear *shape,
                                   const void *output_gradient, const void *input,
                                   void *weight_gradient, void *bias_gradient);

    /* ---- attention ---- */

    /* OVERWRITES output[rows][heads x head_size] and log_sum[samples][heads][sequence] (sums): the
     * logarithm of each query's sum of exponentials, all that backward needs of the scores. Tiled
     * with an online softmax (arXiv:2307.08691), so no sequence x sequence matrix is ever stored.
     * Scores are scaled by 1 / sqrt(head_size). Probabilities are dropped after the softmax. */
    void (*attention_forward)(void *state, const struct eth_hpp_attention *shape, const void *qkv,
                              void *output, void *log_sum);
    /* OVERWRITES qkv_gradient, laid out like qkv. scratch: samples x heads x sequence sums. */
    void (*attention_backward)(void *state, const struct eth_hpp_attention *shape,
                               const void *output_gradient, const void *qkv, const void *output,
                               const void *log_sum, void *qkv_gradient, void *scratch);

    /* ---- element by element ---- */

    /* OVERWRITES output. GELU in its tanh form, as GPT-2 has it (arXiv:1606.08415). */
    void (*gelu_forward)(void *state, size_t count, const void *input, void *output);
    /* In place: turns the gradient of gelu's output into that of its input. */
    void (*gelu_backward)(void *state, size_t count, const void *input, void *gradient);
    /* OVERWRITES output[rows][width] with silu(gate) x up (SwiGLU, arXiv:2002.05202), where a row
     * of input is `width` gates, then as many ups, and silu(x) = x / (1 + exp(-x)). */
    void (*swiglu_forward)(void *state, size_t rows, size_t width, const void *input, void *output);
    /* In place: turns swiglu's input into its gradient. */
    void (*swiglu_backward)(void *state, size_t rows, size_t width, const void *output_gradient,
                            void *input);
    /* In place. */
    void (*rotary)(void *state, const struct eth_hpp_rotary *shape, void *values);
    /* In place: drops some of the `count` values of each sample and scales the others: of values in
     * forward, of their gradients in backward. */
    void (*dropout)(void *state, const struct eth_hpp_dropout *dropout, size_t samples,
                    size_t count, void *values);
    /* ADDS `addend` to `total` (values). */
    void (*add)(void *state, size_t count, const void *addend, void *total);
    /* In place (sums). */
    void (*scale)(void *state, size_t count, double factor, void *sums);

    /* ---- loss ---- */

    /* Softmax and cross-entropy over logits[rows][classes]; a target below 0 is not counted. ADDS
     * TO loss[0] the sum of the losses and to loss[1] the number of counted targets. */
    void (*cross_entropy_forward)(void *state, size_t rows, size_t classes, const void *logits,
                                  const int32_t *targets, double *loss);
    /* In place: turns logits into the gradient of `scale` times the SUM of the losses. */
    void (*cross_entropy_backward)(void *state, size_t rows, size_t classes, void *logits,
                                   const int32_t *targets, double scale);

    /* ---- optimizer and norms ---- */

    /* One update of master weights and moments (sums), in place. Every element by itself, each
     * arithmetic step rounded on its own (no contraction) in the order written down in
     * cpu/adamw.c, so that replicas stay bit-identical on unlike devices. */
    void (*adamw)(void *state, size_t count, const struct eth_hpp_adamw *settings,
                  const void *gradient, void *weights, void *first_moment, void *second_moment);
    /* ADDS the sum of the squares (of sums, in double, in a fixed order) TO *result. */
    void (*sum_of_squares)(void *state, size_t count, const void *sums, double *result);

    /* OVERWRITES values with the sums, rounded to nearest (ties to even): the same bits on every
     * device. Where values have the type of sums it is a copy. */
    void (*cast)(void *state, size_t count, const void *sums, void *values);

    /* ADDS to *result (modulo 2^64) a number that shows any change of the memory's bits: of each of
     * `count` words of 32 bits mix(word + (i + 1) x 0x9e3779b97f4a7c15), with the finaliser of
     * splitmix64 as mix, so that words may be taken in any order. */
    void (*checksum)(void *state, size_t count, const void *words, uint64_t *result);

    /* ---- initialisation ---- */

    /* OVERWRITES master weights with normal numbers of mean 0. Element i depends on seed, tensor
     * and i alone (Philox 4x32-10) and has the same bits on every device: all owners of a tensor
     * fill it alike. */
    void (*random_normal)(void *state, size_t count, uint64_t seed, uint64_t tensor,
                          double deviation, void *weights);
    /* OVERWRITES master weights with one number. */
    void (*fill)(void *state, size_t count, double number, void *weights);
};

struct eth_hpp_kernels {
    const char *name; /* "cpu", "cuda"; with "emulated" in it where it is only that */
    const struct eth_hpp_kernels_ops *ops;
    void *state;
    size_t value_bytes, sum_bytes;
    bool host_memory;  /* its memory is the host's, which a program and a transport reach */
    const char *model; /* the GPU's name, which tells GPUs of unlike kinds apart; NULL on CPUs */
    const char *uuid;  /* which one of them it is, in hexadecimal digits; NULL on CPUs */
    const char *nccl;  /* the file of the library that moves its memory between ranks; NULL: none */
    const char *remark; /* what their opening changed and a user should know; NULL: nothing */
    void (*destroy)(struct eth_hpp_kernels *kernels);
};

/* Opens the kernels of a device for values of this dtype: "cpu" (matrix products by oneDNN; on
 * $ETH_HPP_CPU_THREADS threads, else $OMP_NUM_THREADS, else the cores that are this rank's own;
 * fp32 only), "cuda", the first GPU that CUDA shows, or "cuda:GPU-...", that of this UUID. What is
 * computed does not depend on the number of threads. The GPU module is opened here
 * ($ETH_HPP_CUDA_MODULE in place of the installed one). Freed with eth_hpp_kernels_destroy. Errors:
 * UNSUPPORTED (not built, no such device, no driver, a dtype that it does not have), INPUT (a bad
 * variable), MEMORY, IO. */
enum eth_hpp_status eth_hpp_kernels_create(const char *device, enum eth_hpp_dtype values,
                                           struct eth_hpp_kernels **kernels,
                                           struct eth_hpp_error *err);
/* NULL is fine. Memory that was allocated must have been released. */
void eth_hpp_kernels_destroy(struct eth_hpp_kernels *kernels);

#endif
