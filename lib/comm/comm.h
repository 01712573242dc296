/*
 * The transport between ranks. Components: ucx (CPUs: shared memory inside a node, TCP or RDMA
 * between nodes), self (one rank), nccl (GPUs), staged (GPUs without it). Everything is
 * non-blocking and makes progress beside compute without being called, unless eth_hpp_comm_progress
 * is said to be needed.
 *
 * Order. What is started here comes after all that has been issued on the device's compute stream
 * (kernels.h) by then: a send and a sum find their data made, a receive its memory free. It never
 * waits for what is issued later, and nothing issued later waits for it before eth_hpp_comm_join:
 * data that are received or summed may be used, and those that are sent overwritten, by what is
 * issued after that. Transports of host memory start at once and join by waiting on the host, since
 * on CPUs all that has been issued is done; those of device memory have streams of their own, which
 * wait for an event of the compute stream, and a join makes that wait for an event of theirs.
 */
#ifndef ETH_HPP_COMM_COMM_H
#define ETH_HPP_COMM_COMM_H

#include "base/error.h"
#include "bootstrap/bootstrap.h"

struct eth_hpp_comm;
struct eth_hpp_group;
struct eth_hpp_request;

enum eth_hpp_reduction { ETH_HPP_REDUCE_SUM, ETH_HPP_REDUCE_MAX };
enum { ETH_HPP_REDUCE_MAX_VALUES = 64 };

/* A sum has two halves: each member gets the whole sum of its share, then all get all shares. */
enum eth_hpp_sum_half {
    ETH_HPP_SUM_SCATTER = 1,
    ETH_HPP_SUM_GATHER = 2,
    ETH_HPP_SUM_WHOLE = ETH_HPP_SUM_SCATTER | ETH_HPP_SUM_GATHER
};

struct eth_hpp_comm_ops {
    const char *name;
    enum eth_hpp_status (*send)(void *state, const void *data, size_t size, int peer, uint32_t tag,
                                struct eth_hpp_request **request, struct eth_hpp_error *err);
    enum eth_hpp_status (*recv)(void *state, void *data, size_t size, int peer, uint32_t tag,
                                struct eth_hpp_request **request, struct eth_hpp_error *err);
    enum eth_hpp_status (*share)(void *state, size_t bytes, void **memory,
                                 struct eth_hpp_error *err); /* NULL: it cannot */
    enum eth_hpp_status (*register_memory)(void *state, void *memory, size_t bytes,
                                           struct eth_hpp_error *err); /* NULL: it need not know */
    enum eth_hpp_status (*group_open)(void *state, const int *ranks, int count, uint32_t id,
                                      void **group, struct eth_hpp_error *err);
    enum eth_hpp_status (*group_sum)(void *group, float *data, size_t count,
                                     enum eth_hpp_sum_half halves, struct eth_hpp_request **request,
                                     struct eth_hpp_error *err);
    enum eth_hpp_status (*group_reduce)(void *group, double *values, int count,
                                        enum eth_hpp_reduction reduction,
                                        struct eth_hpp_request **request,
                                        struct eth_hpp_error *err);
    void (*group_free)(void *group); /* after close */
    bool (*test)(struct eth_hpp_request *request);
    enum eth_hpp_status (*join)(struct eth_hpp_request *request, double timeout_s,
                                struct eth_hpp_error *err); /* NULL: by a wait */
    void (*progress)(void *state);                          /* NULL: it needs none */
    enum eth_hpp_status (*wait)(struct eth_hpp_request *request, double timeout_s,
                                struct eth_hpp_error *err);
    enum eth_hpp_status (*check)(void *state, struct eth_hpp_error *err); /* NULL: all is well */
    bool (*fail)(void *state, const struct eth_hpp_error *error, int exit_code);
    void (*close)(void *state);
};

/* Opens the transport among all ranks of the bootstrap: one exchange, after which the bootstrap is
 * not needed any more. From then on the death of any rank is noticed and ends the job on all of
 * them (see eth_hpp_comm_fail). Collective. Errors: UNSUPPORTED (built without UCX), PEER, TIMEOUT.
 */
enum eth_hpp_status eth_hpp_comm_open(struct eth_hpp_bootstrap *bootstrap, double timeout_s,
                                      struct eth_hpp_comm **comm, struct eth_hpp_error *err);

/* Waits until all ranks close, so that no connection breaks under a rank that still needs it (a
 * rank may close long before the others: the wait ends with the job), then frees everything,
 * requests that were never waited for included. Collective, unless the job has failed. NULL is
 * fine. */
void eth_hpp_comm_close(struct eth_hpp_comm *comm);

/* Which component it is: "ucx", "self", "staged", "nccl". */
const char *eth_hpp_comm_name(const struct eth_hpp_comm *comm);

/* Puts a component's state behind the interface; the state belongs to the comm on success. */
enum eth_hpp_status eth_hpp_comm_create(const struct eth_hpp_comm_ops *ops, void *state,
                                        struct eth_hpp_comm **comm, struct eth_hpp_error *err);

/* Which ranks transfer and sum, as far as a transport has to know it before they do. Ranks of a
 * list ascend. */
struct eth_hpp_comm_route {
    int from, to;
};
struct eth_hpp_comm_members {
    const int *ranks;
    int count;
};
struct eth_hpp_comm_layout {
    struct eth_hpp_comm_members all;         /* that take part in anything */
    const struct eth_hpp_comm_route *routes; /* of this rank, by `from` and then by `to` */
    int route_count;
    const struct eth_hpp_comm_members *groups; /* all that sum, the same list on all ranks */
    int group_count;
};

/* Puts what reaches a device's memory on top of a transport of host memory, which goes on to carry
 * small values and to notice failures: NCCL, or, where no rank has it ($ETH_HPP_NCCL_LIBRARY in
 * place of the device's own file, which then has to be there, `none` for none), copies through
 * page-locked host memory. Collective of the layout's ranks. Needs eth_hpp_comm_progress. On
 * success the transport belongs to *device, which is used in its place and closed before the
 * kernels are; after an error ranks may be left waiting for this one, and the job is to be ended.
 * Errors: UNSUPPORTED, INPUT (ranks that have unlike NCCLs or settings), IO, PEER, TIMEOUT, MEMORY.
 */
struct eth_hpp_kernels;
enum eth_hpp_status eth_hpp_comm_reach_device(struct eth_hpp_comm *comm,
                                              struct eth_hpp_kernels *kernels,
                                              const struct eth_hpp_bootstrap_place *place,
                                              const struct eth_hpp_comm_layout *layout,
                                              double timeout_s, struct eth_hpp_comm **device,
                                              struct eth_hpp_error *err);

/* This rank cannot go on: tells all others, whose waits then return PEER and whose processes end
 * with exit_code within seconds even if they never wait again. Of all the errors that one failure
 * causes on many ranks one line is logged, on one rank. NULL for `error`: nothing is logged.
 * Returns when the others are told and have ended, after some seconds at most; the caller then ends
 * its process with exit_code. True on one rank where others have not ended, since their processes
 * are stopped or stuck in the kernel: the caller should have them killed by whoever started them.
 */
bool eth_hpp_comm_fail(struct eth_hpp_comm *comm, const struct eth_hpp_error *error, int exit_code);

/* Starts a transfer between this rank and another. The memory stays untouched until the request is
 * done. Messages between two ranks with one tag arrive in order; a tag names the queue and kind,
 * e.g. activation of micro-batch m. *request is freed by wait. */
enum eth_hpp_status eth_hpp_comm_send(struct eth_hpp_comm *comm, const void *data, size_t size,
                                      int peer, uint32_t tag, struct eth_hpp_request **request,
                                      struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_comm_recv(struct eth_hpp_comm *comm, void *data, size_t size, int peer,
                                      uint32_t tag, struct eth_hpp_request **request,
                                      struct eth_hpp_error *err);

/* Zeroed memory in which other ranks may read and write while they sum it with this one: sums of
 * what lies in it, on all members, are faster. Once, before the groups that sum it are opened. It
 * belongs to the comm and goes with it. Errors: UNSUPPORTED, and then any memory will do. */
enum eth_hpp_status eth_hpp_comm_share_memory(struct eth_hpp_comm *comm, size_t bytes,
                                              void **memory, struct eth_hpp_error *err);

/* Device memory of this rank in which transfers and sums will lie; said of all of it before the
 * first of them. It must outlive the comm. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_comm_register_memory(struct eth_hpp_comm *comm, void *memory,
                                                 size_t bytes, struct eth_hpp_error *err);

/* A group of ranks (ascending, this one among them) that sums together. All members open their
 * groups in one global order with the same id, which no other group of these ranks has. It belongs
 * to the comm and goes with it. */
enum eth_hpp_status eth_hpp_comm_group_open(struct eth_hpp_comm *comm, const int *ranks, int count,
                                            uint32_t id, struct eth_hpp_group **group,
                                            struct eth_hpp_error *err);

/* Starts an in-place SUM of fp32 over the group, or one half of it. The result has the same bits on
 * every member. SCATTER leaves a member the sum of its share only, the rest of the data undefined;
 * GATHER hands every member's share, whatever is in it, to all. What a group does is started in the
 * same order, with the same counts and halves, on every member. */
enum eth_hpp_status eth_hpp_comm_group_sum(struct eth_hpp_group *group, float *data, size_t count,
                                           enum eth_hpp_sum_half halves,
                                           struct eth_hpp_request **request,
                                           struct eth_hpp_error *err);
/* Where the share of the member at `position` of `members` begins; it ends where that of the next
 * one does. The shares cover the data once; some are empty where there are fewer floats. */
static inline size_t eth_hpp_comm_share(size_t count, int members, int position)
{
    return count * (size_t)position / (size_t)members;
}
/* The same for a few doubles (1..ETH_HPP_REDUCE_MAX_VALUES) in host memory (loss, norm, flags),
 * with no regard to the device; the same bits on every member. A NaN on one member is a NaN on all.
 * Values are read here and written by a wait that succeeds, never else. */
enum eth_hpp_status eth_hpp_comm_group_reduce(struct eth_hpp_group *group, double *values,
                                              int count, enum eth_hpp_reduction reduction,
                                              struct eth_hpp_request **request,
                                              struct eth_hpp_error *err);

/* What is issued on the compute stream from here on comes after the transfer or sum. *request is
 * NULL afterwards where that took a wait, which freed it; else it still has to be waited for.
 * Errors: those of eth_hpp_comm_wait. */
enum eth_hpp_status eth_hpp_comm_join(struct eth_hpp_comm *comm, struct eth_hpp_request **request,
                                      double timeout_s, struct eth_hpp_error *err);
/* To be called now and then while the program waits for the device by itself: what other ranks wait
 * for may have become ready. Every test, join and wait does it, too. */
void eth_hpp_comm_progress(struct eth_hpp_comm *comm);

/* Whether the job goes on, without waiting. Errors: PEER, and those of the device: every wait would
 * return them. */
enum eth_hpp_status eth_hpp_comm_check(struct eth_hpp_comm *comm, struct eth_hpp_error *err);

/* Done without waiting? */
bool eth_hpp_comm_test(struct eth_hpp_comm *comm, struct eth_hpp_request *request);
/* Waits (asleep, not spinning) until done, then frees the request. Errors: TIMEOUT, PEER; the text
 * names the peer. After an error the memory of a transfer or a sum may be written, or read, until
 * the comm is closed: it must outlive that.
 */
enum eth_hpp_status eth_hpp_comm_wait(struct eth_hpp_comm *comm, struct eth_hpp_request *request,
                                      double timeout_s, struct eth_hpp_error *err);

#endif
