/*
 * How ranks find each other before there is a transport: PMIx or PMI-2 under Slurm, or a single
 * process. One component is chosen at eth_hpp_bootstrap_open. Every wait has a deadline of its own,
 * since PMIx's are long and name nobody, and PMI-2 has none.
 */
#ifndef ETH_HPP_BOOTSTRAP_BOOTSTRAP_H
#define ETH_HPP_BOOTSTRAP_BOOTSTRAP_H

#include <stdbool.h>

#include "base/error.h"

struct eth_hpp_bootstrap;

/* A component: an implementation of the bootstrap. */
struct eth_hpp_bootstrap_ops {
    const char *name; /* "pmix", "pmi2", "single" */
    bool asks;        /* after a deadline ranks ask each other who is there, and stay for that */
    size_t value_max; /* longest value of one put; longer ones are cut into chunks. 0: no limit */
    enum eth_hpp_status (*put)(void *state, const char *key, const void *value, size_t size,
                               struct eth_hpp_error *err);
    enum eth_hpp_status (*fence)(void *state, double timeout_s, struct eth_hpp_error *err);
    enum eth_hpp_status (*get)(void *state, int rank, const char *key, void **value, size_t *size,
                               struct eth_hpp_error *err);
    void (*abort)(void *state, int exit_code, const char *why); /* returns if it failed */
    void (*close)(void *state);
};

struct eth_hpp_bootstrap_place {
    int rank, size; /* in the job, over all components of a heterogeneous job */
    int local_rank, local_size;
    char host[256];
};

/* PMIx or PMI-2 where its environment is there; a single process where there is no Slurm step or it
 * has one task; else an error that names --mpi=pmix and --mpi=pmi2. Errors: INPUT, UNSUPPORTED
 * (built without PMIx), PEER.
 */
enum eth_hpp_status eth_hpp_bootstrap_open(struct eth_hpp_bootstrap **bootstrap,
                                           struct eth_hpp_error *err);

/* Puts a component's state behind the interface, e.g. one of a test; the state belongs to the
 * bootstrap on success. `ops` must outlive it. */
enum eth_hpp_status eth_hpp_bootstrap_create(const struct eth_hpp_bootstrap_ops *ops, void *state,
                                             const struct eth_hpp_bootstrap_place *place,
                                             struct eth_hpp_bootstrap **bootstrap,
                                             struct eth_hpp_error *err);

/* Leaves PMIx in order (a rank that does not gets the step killed) and frees. NULL is fine. */
void eth_hpp_bootstrap_close(struct eth_hpp_bootstrap *bootstrap);

const struct eth_hpp_bootstrap_place *
eth_hpp_bootstrap_get_place(const struct eth_hpp_bootstrap *bootstrap);

enum { ETH_HPP_BOOTSTRAP_VALUE_MAX = 1 << 20, ETH_HPP_BOOTSTRAP_KEY_MAX = 24 };

/* Publishes a value under a key of this rank; seen by others after the next fence. At most 1 MiB,
 * at most 24 bytes of key (PMI-2 takes no long ones). A key is used once in the life of a
 * bootstrap: PMIx may show others the old value else, so a key that was put already is refused. */
enum eth_hpp_status eth_hpp_bootstrap_put(struct eth_hpp_bootstrap *bootstrap, const char *key,
                                          const void *value, size_t size,
                                          struct eth_hpp_error *err);
/* Collective: all that was put before is there for all after. Errors: PEER; TIMEOUT, whose text
 * names who is missing on the lowest rank that is there and is empty on the others. After an error
 * nothing is left but eth_hpp_bootstrap_fail. */
enum eth_hpp_status eth_hpp_bootstrap_fence(struct eth_hpp_bootstrap *bootstrap, double timeout_s,
                                            struct eth_hpp_error *err);
/* A value of another rank; the caller frees *value. A missing key is an error at once, never a
 * wait. */
enum eth_hpp_status eth_hpp_bootstrap_get(struct eth_hpp_bootstrap *bootstrap, int rank,
                                          const char *key, void **value, size_t *size,
                                          struct eth_hpp_error *err);
/* Ends the job on all ranks after an error that not all of them have: logs its text and ends them;
 * where it is empty, another rank does so and this one only leaves. Does not return. */
void eth_hpp_bootstrap_fail(struct eth_hpp_bootstrap *bootstrap, const struct eth_hpp_error *error)
    __attribute__((noreturn));
/* Ends what is left of the job and this process, which has left the bootstrap: asks Slurm to, and
 * where it cannot, PMIx. Does not return. */
void eth_hpp_bootstrap_end_stragglers(int exit_code) __attribute__((noreturn));
/* Kills all ranks of the job; it ends with this exit code. Does not return. */
void eth_hpp_bootstrap_abort(struct eth_hpp_bootstrap *bootstrap, int exit_code, const char *why)
    __attribute__((noreturn));

#endif
