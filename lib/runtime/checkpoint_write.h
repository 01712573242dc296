/* One rank's part of a checkpoint: the tensors that it writes, as files in memory, and the thread
 * that brings them to disk beside the training. */
#ifndef ETH_HPP_RUNTIME_CHECKPOINT_WRITE_H
#define ETH_HPP_RUNTIME_CHECKPOINT_WRITE_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/context.h"
#include "runtime/safetensors.h"

enum eth_hpp_checkpoint_phase {
    ETH_HPP_CHECKPOINT_IDLE,
    ETH_HPP_CHECKPOINT_WRITING,   /* every writer its files */
    ETH_HPP_CHECKPOINT_PUBLISHING /* the lowest rank the manifest; older ones are removed */
};

struct eth_hpp_checkpointer {
    char *folder, *model_config;
    int keep;
    struct eth_hpp_checkpoint state; /* of the checkpoint that is being written */
    bool publishes;                  /* the lowest rank that is not idle */
    int number, count;               /* of this rank's files, from 1; 0: writes none */
    size_t *tensors;                 /* [tensor_count] as registered, those that this rank writes */
    size_t tensor_count;
    size_t *states; /* [state_count] those of whose moments it writes the part that it updates */
    size_t state_count;
    struct eth_hpp_safetensors_image model, optimizer;
    double started; /* monotonic seconds */

    enum eth_hpp_checkpoint_phase phase; /* the same on all ranks */
    bool running;                        /* a thread is there to be joined */
    pthread_t thread;
    enum eth_hpp_checkpoint_phase task; /* what the thread does */
    atomic_bool done;
    enum eth_hpp_status status; /* the thread's, once it is done */
    struct eth_hpp_error failure;
};

/* Finds out what this rank writes and lays its files out. Collective over the ranks that are not
 * idle. Errors: MEMORY, PEER, TIMEOUT. */
enum eth_hpp_status eth_hpp_checkpoint_writer_open(struct eth_hpp_context *context,
                                                   struct eth_hpp_error *err);

/* Copies weights, as eth_hpp_weights_collect gives them, and moments into the files in memory. */
enum eth_hpp_status eth_hpp_checkpoint_writer_copy(struct eth_hpp_context *context,
                                                   const float *weights, struct eth_hpp_error *err);

/* Starts a thread for the task. Errors: IO. */
enum eth_hpp_status eth_hpp_checkpoint_writer_start(struct eth_hpp_checkpointer *checkpointer,
                                                    enum eth_hpp_checkpoint_phase task,
                                                    struct eth_hpp_error *err);
/* Takes a thread that is done, or that is waited for, in; its error. */
enum eth_hpp_status eth_hpp_checkpoint_writer_join(struct eth_hpp_checkpointer *checkpointer,
                                                   struct eth_hpp_error *err);
void eth_hpp_checkpoint_writer_free(struct eth_hpp_checkpointer *checkpointer);

#endif
