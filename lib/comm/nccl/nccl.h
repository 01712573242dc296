/* Inner parts of the transport over NCCL; not for others. */
#ifndef ETH_HPP_COMM_NCCL_H
#define ETH_HPP_COMM_NCCL_H

#include "comm/component.h"
#include "comm/nccl/nccl_api.h"
#include "kernels/kernels.h"

/* A communicator of NCCL's: of a hand-over's two ranks, of a group that sums, or their parent. */
struct eth_hpp_nccl_communicator {
    struct eth_hpp_nccl_communicator *next; /* the one that was made before */
    eth_hpp_nccl_comm comm;
    int *ranks, count, position; /* of the job, by their rank in it; and this one's there */
    int stream;                  /* of the kernels */
};

struct eth_hpp_nccl {
    struct eth_hpp_comm *control;   /* of host memory: small values, and the failures of ranks */
    struct eth_hpp_group *everyone; /* of the layout, there */
    struct eth_hpp_kernels *kernels;
    struct eth_hpp_nccl_library library;
    int rank;
    double timeout_s;
    struct eth_hpp_nccl_communicator *last; /* that was made */
    void *token;                            /* page-locked: what routes are tried with */
    struct eth_hpp_request *spare;          /* to be used again, with their events */
    struct eth_hpp_request *all;            /* that were ever made */
    struct eth_hpp_error failure;           /* of NCCL or of the device: nothing goes on */
};

/* ---- the first exchange (nccl_exchange.c) ---- */

/* Says to all ranks of the layout what NCCL and which variables this one has, and learns whether
 * all of them can use it: *used. If so they agree on an id, and algorithm and protocol are pinned
 * where GPUs are unlike, since ranks would choose differently. Errors, the same on all: UNSUPPORTED
 * (unlike versions, missing on some, or it gives no id), INPUT (unlike variables). */
enum eth_hpp_status eth_hpp_nccl_meet(struct eth_hpp_nccl *nccl,
                                      const struct eth_hpp_bootstrap_place *place,
                                      const struct eth_hpp_comm_layout *layout, bool *used,
                                      struct eth_hpp_nccl_id *id, struct eth_hpp_error *err);

/* A message of host memory between two ranks, waited for. */
enum eth_hpp_status eth_hpp_nccl_tell(struct eth_hpp_nccl *nccl, const void *data, size_t size,
                                      int peer, struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_nccl_hear(struct eth_hpp_nccl *nccl, void *data, size_t size, int peer,
                                      struct eth_hpp_error *err);

/* ---- communicators (nccl_communicator.c) ---- */

/* Makes all of them: the parent of this id, the groups' as its children, the routes'. */
enum eth_hpp_status eth_hpp_nccl_communicators_open(struct eth_hpp_nccl *nccl,
                                                    const struct eth_hpp_comm_layout *layout,
                                                    const struct eth_hpp_nccl_id *id,
                                                    struct eth_hpp_error *err);
/* The one that hands over to `to` from `from`, or sums over these ranks; NULL: there is none. */
struct eth_hpp_nccl_communicator *eth_hpp_nccl_find_route(const struct eth_hpp_nccl *nccl, int from,
                                                          int to);
struct eth_hpp_nccl_communicator *eth_hpp_nccl_find_group(const struct eth_hpp_nccl *nccl,
                                                          const int *ranks, int count);
/* Waits until a call that began with this result, on this communicator, is over: non-blocking ones
 * go on by themselves. Errors: IO (NCCL says why), PEER, TIMEOUT. */
enum eth_hpp_status eth_hpp_nccl_settle(struct eth_hpp_nccl *nccl, eth_hpp_nccl_comm comm,
                                        int result, const char *what, struct eth_hpp_error *err);
/* Asks all of them, and the control transport, for failures. */
enum eth_hpp_status eth_hpp_nccl_check(struct eth_hpp_nccl *nccl, struct eth_hpp_error *err);
void eth_hpp_nccl_rest(void); /* for a moment, between two questions */
/* In order, with all ranks; or at once, within some seconds. False: something may still run on the
 * device, so that nothing that waits for it may be called. */
bool eth_hpp_nccl_communicators_close(struct eth_hpp_nccl *nccl);
bool eth_hpp_nccl_communicators_abort(struct eth_hpp_nccl *nccl);

/* ---- operations (nccl_request.c) ---- */

struct eth_hpp_nccl_group {
    struct eth_hpp_nccl *nccl;
    struct eth_hpp_group *control;                  /* the same ranks */
    struct eth_hpp_nccl_communicator *communicator; /* NULL: it only reduces, or is one rank */
    bool alone;                                     /* one rank, whose sums are its own data */
};

enum eth_hpp_status eth_hpp_nccl_send(void *state, const void *data, size_t size, int peer,
                                      uint32_t tag, struct eth_hpp_request **request,
                                      struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_nccl_recv(void *state, void *data, size_t size, int peer, uint32_t tag,
                                      struct eth_hpp_request **request, struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_nccl_sum(void *group, float *data, size_t count,
                                     enum eth_hpp_sum_half halves, struct eth_hpp_request **request,
                                     struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_nccl_reduce(void *group, double *values, int count,
                                        enum eth_hpp_reduction reduction,
                                        struct eth_hpp_request **request,
                                        struct eth_hpp_error *err);
bool eth_hpp_nccl_test(struct eth_hpp_request *request);
enum eth_hpp_status eth_hpp_nccl_join(struct eth_hpp_request *request, double timeout_s,
                                      struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_nccl_wait(struct eth_hpp_request *request, double timeout_s,
                                      struct eth_hpp_error *err);
void eth_hpp_nccl_requests_free(struct eth_hpp_nccl *nccl);

#endif
