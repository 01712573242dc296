/*
 * The UCX transport's inner parts.
 *
 * One thread at a time drives: it calls into UCX, runs the sums and notices what has come. This is
 * the component's thread, asleep on one epoll descriptor whenever there is nothing to do (many
 * ranks share the cores). The program's thread drives in its stead while it starts an operation or
 * waits for one, as long as that gets on without a sleep: nothing is then handed from thread to
 * thread. `drive` guards all of that. The list of submissions, the operations' `done` and the
 * failure's state are shared beside it, and `mutex` guards exactly these.
 */
#ifndef ETH_HPP_COMM_UCX_UCX_H
#define ETH_HPP_COMM_UCX_UCX_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/component.h"
#include "comm/ucx/ucx_library.h"

struct eth_hpp_ucx;

/* ---- messages (ucx_message.c): used by the thread that drives ---- */

enum eth_hpp_ucx_kind {
    ETH_HPP_UCX_TRANSFER = 1, /* of the program: its tag */
    ETH_HPP_UCX_SCATTER,      /* of a group's sums: its id */
    ETH_HPP_UCX_GATHER,
    ETH_HPP_UCX_REDUCE,
    ETH_HPP_UCX_CONTROL /* failures */
};

/* One message under way; part of whatever wants it. */
struct eth_hpp_ucx_message {
    struct eth_hpp_ucx_message *next, *previous; /* among all under way */
    struct eth_hpp_ucx *ucx;
    void *handle; /* UCX's own, NULL when it is not with UCX */
    int peer;     /* -1: any */
    bool receive;
    size_t size;
    bool starting; /* UCX has not returned from taking the receive */
    ucs_status_t early_status;
    /* Called once, perhaps before send or receive return: must not start messages. */
    void (*done)(struct eth_hpp_ucx_message *message, ucs_status_t status);
};

void eth_hpp_ucx_send(struct eth_hpp_ucx *ucx, struct eth_hpp_ucx_message *message,
                      const void *data, size_t size, int peer, enum eth_hpp_ucx_kind kind,
                      uint32_t tag);
/* peer -1: from any rank, of this kind only. */
void eth_hpp_ucx_receive(struct eth_hpp_ucx *ucx, struct eth_hpp_ucx_message *message, void *data,
                         size_t size, int peer, enum eth_hpp_ucx_kind kind, uint32_t tag);
/* Done when all that was sent to the peer has left this process. */
void eth_hpp_ucx_flush(struct eth_hpp_ucx *ucx, struct eth_hpp_ucx_message *message, int peer);
/* Drops what has come from somebody who is not of this job, and says so. Such a message matches no
 * receive: tags are sealed with a number that only the job's ranks have. */
void eth_hpp_ucx_refuse_strangers(struct eth_hpp_ucx *ucx);
/* Cancels the receives from one rank, or from all (-1), so that they end with an error; how many.
 */
int eth_hpp_ucx_cancel_receives(struct eth_hpp_ucx *ucx, int peer);

/* ---- peers (ucx_peer.c) ---- */

/* What a rank publishes in front of its worker's address, under the key. */
struct eth_hpp_ucx_card {
    uint32_t version;
    int32_t pid, bell;  /* its pipe's descriptor */
    uint64_t pid_space; /* processes with the same machine and pid_space see each other's pid */
    uint64_t seal;      /* of the job, if all take this rank's */
    char machine[40];
    char host[64];
};
#define ETH_HPP_UCX_CARD "comm-ucx"

struct eth_hpp_ucx_peer {
    struct eth_hpp_ucx *ucx;
    int rank;
    char host[64];
    ucp_address_t *address;
    ucp_ep_h endpoint;   /* made at the first message */
    ucs_status_t broken; /* what UCX said of it; OK: nothing */
    bool lost;
    bool silent, far; /* did not answer a report; is on the host of one that did not */
    bool heard;       /* reports or answers in this failure */
    char machine_id[40];
    uint64_t pid_space;
    int machine;             /* lowest rank on its machine where its pid means the same */
    int pid, pid_descriptor; /* of a near process, to notice its end at once; or -1 */
    int bell;                /* a pipe that wakes a near process; or -1 */
    bool ended;              /* that process has */
    void *shared;            /* what a near process, or this one, shares for sums, or NULL */
    size_t shared_bytes;
};

/* Publishes this rank's address, fills ucx->peers. */
enum eth_hpp_status eth_hpp_ucx_peers_open(struct eth_hpp_ucx *ucx,
                                           struct eth_hpp_bootstrap *bootstrap, double timeout_s,
                                           struct eth_hpp_error *err);
/* NULL where no endpoint can be made; then the peer is lost. */
ucp_ep_h eth_hpp_ucx_endpoint(struct eth_hpp_ucx *ucx, int rank);
/* Turns what was noticed since the last call (broken endpoints, ended processes) into lost peers.
 */
void eth_hpp_ucx_peers_poll(struct eth_hpp_ucx *ucx);
void eth_hpp_ucx_peers_close(struct eth_hpp_ucx *ucx);
void eth_hpp_ucx_peers_free(struct eth_hpp_ucx *ucx);

/* ---- operations (ucx_request.c) ---- */

/* Start of every kind of operation; begun by submit, or by the component's thread. */
struct eth_hpp_request {
    struct eth_hpp_request *next; /* in the list of submissions, then of a group */
    struct eth_hpp_request *all_next, *all_previous;
    struct eth_hpp_ucx *ucx;
    const char *what;                                 /* for messages: "a send to", "a sum with" */
    void (*start)(struct eth_hpp_request *request);   /* by the thread that drives */
    void (*advance)(struct eth_hpp_request *request); /* of a group's operation */
    void (*deliver)(struct eth_hpp_request *request); /* by a wait that succeeds; NULL: nothing */
    void (*release)(struct eth_hpp_request *request); /* frees it */
    atomic_int waits_for;                             /* the rank that is to act next, or -1 */
    bool done;
    ucs_status_t status;
};

void eth_hpp_ucx_submit(struct eth_hpp_ucx *ucx, struct eth_hpp_request *request);
bool eth_hpp_ucx_test(struct eth_hpp_request *request);
enum eth_hpp_status eth_hpp_ucx_wait(struct eth_hpp_request *request, double timeout_s,
                                     struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_ucx_check(void *state, struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_ucx_transfer_send(void *state, const void *data, size_t size, int peer,
                                              uint32_t tag, struct eth_hpp_request **request,
                                              struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_ucx_transfer_recv(void *state, void *data, size_t size, int peer,
                                              uint32_t tag, struct eth_hpp_request **request,
                                              struct eth_hpp_error *err);
/* By the thread that drives: the operation is over. */
void eth_hpp_ucx_complete(struct eth_hpp_request *request, ucs_status_t status);

/* ---- groups (ucx_group.c, ucx_reduce.c) ---- */

/* Operations of a group run one after the other, in the order of their calls. */
struct eth_hpp_ucx_group {
    struct eth_hpp_ucx *ucx;
    int *ranks, count, position; /* this rank's place among them */
    uint32_t id;
    struct eth_hpp_request *first, *last; /* the first one runs */
    bool ready;                           /* something of it has changed */
    struct eth_hpp_ucx_group *next_ready;

    /* For sums (ucx_sum.h): members that share memory count as one machine. */
    int *order;                  /* [count] positions, machine by machine */
    int *machine_start;          /* [machines + 1] in the order */
    int machines, machine, seat; /* this rank's machine, and its place there */
    size_t sums;                 /* begun so far, where members reach each other's data */
    size_t chunk, chunks;        /* floats of a chunk; chunks of all sums up to the running one */
    struct eth_hpp_ucx_piece *pieces; /* [count] of the chunk that was looked at last */
    struct eth_hpp_ucx_group *here;   /* of the members on this machine, to open their memory */
    struct eth_hpp_ucx_near *near;    /* their memory, or NULL: all are alone on their machines */
    struct eth_hpp_ucx_far *far;      /* messages between machines, or NULL: there is one */
    struct eth_hpp_ucx_group *next_near; /* among those whose sum runs, or that were given up */
};

/* Without memory that its members share: not collective. */
enum eth_hpp_status eth_hpp_ucx_group_make(struct eth_hpp_ucx *ucx, const int *ranks, int count,
                                           uint32_t id, struct eth_hpp_ucx_group **group,
                                           struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_ucx_group_open(void *state, const int *ranks, int count, uint32_t id,
                                           void **group, struct eth_hpp_error *err);
void eth_hpp_ucx_group_free(void *group);
/* Puts a started operation into its group's queue. */
void eth_hpp_ucx_group_enqueue(struct eth_hpp_ucx_group *group, struct eth_hpp_request *request);
/* The running operation of the group is to be advanced soon. */
void eth_hpp_ucx_group_touch(struct eth_hpp_ucx_group *group);
/* Ends the running operation. */
void eth_hpp_ucx_group_finish(struct eth_hpp_ucx_group *group, ucs_status_t status);
/* Advances the groups that were touched; false if there was none. */
bool eth_hpp_ucx_groups_poll(struct eth_hpp_ucx *ucx);

enum eth_hpp_status eth_hpp_ucx_group_sum(void *group, float *data, size_t count,
                                          enum eth_hpp_sum_half halves,
                                          struct eth_hpp_request **request,
                                          struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_ucx_group_reduce(void *group, double *values, int count,
                                             enum eth_hpp_reduction reduction,
                                             struct eth_hpp_request **request,
                                             struct eth_hpp_error *err);

/* ---- sums (ucx_sum.c, ucx_near.c) ---- */

/* Memory of this rank that the others on this machine reach (ucx_direct_sum.c). */
enum eth_hpp_status eth_hpp_ucx_share(void *state, size_t bytes, void **memory,
                                      struct eth_hpp_error *err);
/* What a near peer shares, by its descriptor there; false where it cannot be reached. */
bool eth_hpp_ucx_share_map(struct eth_hpp_ucx_peer *peer, int descriptor, size_t bytes);
void eth_hpp_ucx_share_free(struct eth_hpp_ucx_peer *peer);
/* Makes the memory that members on one machine share, for groups of several on one. Collective. */
enum eth_hpp_status eth_hpp_ucx_near_open(struct eth_hpp_ucx_group *group,
                                          struct eth_hpp_error *err);
void eth_hpp_ucx_near_free(struct eth_hpp_ucx_group *group);
/* Advances the sums that run in shared memory; false if there was nothing to do. */
bool eth_hpp_ucx_near_poll(struct eth_hpp_ucx *ucx);
/* From now on others wake this process; false if it has something to do already. */
bool eth_hpp_ucx_near_sleep(struct eth_hpp_ucx *ucx);

/* ---- failures (ucx_failure.c) ---- */

enum eth_hpp_ucx_gravity { /* of several errors, the gravest is the likeliest cause of the others */
                           ETH_HPP_UCX_LATE,   /* a deadline passed: somebody else's fault */
                           ETH_HPP_UCX_ERROR,  /* a rank says that it cannot go on */
                           ETH_HPP_UCX_BROKEN, /* no connection to a rank */
                           ETH_HPP_UCX_GONE    /* the process of a rank was seen to end */
};

struct eth_hpp_ucx_notice {
    enum {
        ETH_HPP_UCX_REPORT,  /* to the rank that decides */
        ETH_HPP_UCX_GIVE_UP, /* to a rank that another one waited for too long: if it waits as well,
                                it is to say for whom */
        ETH_HPP_UCX_END,     /* to all: the decision */
        ETH_HPP_UCX_CALL,    /* to all: who can be reached? */
        ETH_HPP_UCX_HERE     /* the answer */
    } kind;
    int32_t origin, blames; /* who reports, calls or answers; whom it waited for, or -1 */
    int32_t gravity, exit_code, quiet;
    char text[1100];
};

struct eth_hpp_ucx_failure {
    enum { ETH_HPP_UCX_RUNNING, ETH_HPP_UCX_NOTICED, ETH_HPP_UCX_ENDED } state;
    struct eth_hpp_ucx_notice notice, incoming;
    struct eth_hpp_ucx_message listener;
    bool arrived;
    int sending;           /* notices under way */
    int others;            /* ranks that are not lost */
    bool called, decided;  /* by this rank */
    bool has_waited;       /* for another host to decide */
    double deadline;       /* noticed: when this rank decides by itself; ended: when it leaves */
    bool waiting, give_up; /* the program's thread; it is to end its wait */
    int waited_for;        /* whom its last wait was too long for; -1: nobody */
};

/* Listens for other ranks' notices. */
void eth_hpp_ucx_failure_open(struct eth_hpp_ucx *ucx);
void eth_hpp_ucx_failure_lost(struct eth_hpp_ucx *ucx, const struct eth_hpp_ucx_peer *peer);
/* A rank is no longer there. */
void eth_hpp_ucx_failure_left(struct eth_hpp_ucx *ucx);
/* What is due; returns the seconds until the next thing is, or -1. */
double eth_hpp_ucx_failure_poll(struct eth_hpp_ucx *ucx);
bool eth_hpp_ucx_failure_fail(void *state, const struct eth_hpp_error *error, int exit_code);

/* ---- the whole ---- */

struct eth_hpp_ucx {
    int rank, size;
    uint64_t seal;      /* of the job's tags; who listens on the network does learn it */
    uint64_t strangers; /* messages refused so far */
    ucp_context_h context;
    ucp_worker_h worker;
    struct eth_hpp_ucx_peer *peers; /* [size] */
    struct eth_hpp_ucx_message *messages;
    struct eth_hpp_ucx_group *ready;
    struct eth_hpp_ucx_group *near_running;
    struct eth_hpp_ucx_group *given_up; /* not opened, but perhaps with a reduction under way */
    struct eth_hpp_ucx_group *everyone;
    bool trouble;        /* a peer is broken or has ended */
    atomic_bool failing; /* the program's thread ends the process */
    atomic_bool closing; /* this rank waits for nothing but the common close */

    int shared;      /* descriptor of what this rank shares for sums, or -1 */
    int progress;    /* descriptor of UCX's: something has come */
    int epoll, wake; /* descriptors */
    int bell[2];     /* a pipe: near processes write a byte to wake this one */
    double timeout_s;
    pthread_t thread;
    pthread_mutex_t drive; /* held by the thread that calls into UCX and advances operations */
    atomic_bool wanted;    /* the component's thread waits for it */
    atomic_bool resting;   /* the program's thread sleeps, holding it */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct eth_hpp_request *submitted, *submitted_last, *all;
    struct eth_hpp_ucx_failure failure;
    bool stop;
};

/* Waits for a change until the deadline, on the clock of base/clock.h. */
bool eth_hpp_ucx_wait_until(struct eth_hpp_ucx *ucx, double deadline);

/* How long a thread looks for something to do before it sleeps. */
#define ETH_HPP_UCX_SPIN_S 1e-4
/* Does what can be done now, holding `drive`; false if that was nothing. */
bool eth_hpp_ucx_pass(struct eth_hpp_ucx *ucx);
/* The program's thread takes over for a moment, if the component's sleeps; then it lets go. */
bool eth_hpp_ucx_take_over(struct eth_hpp_ucx *ucx);
void eth_hpp_ucx_let_go(struct eth_hpp_ucx *ucx);
/* Having taken over: sleeps until something comes, or the component's thread wants its turn. */
void eth_hpp_ucx_rest(struct eth_hpp_ucx *ucx, double most_s);
/* No failure is known that the component's thread should look into. */
bool eth_hpp_ucx_is_calm(const struct eth_hpp_ucx *ucx);

/* The component's thread (ucx_thread.c). */
void *eth_hpp_ucx_thread(void *ucx);
void eth_hpp_ucx_wake(struct eth_hpp_ucx *ucx);
/* Wakes the process whose bell this is. */
void eth_hpp_ucx_ring(int bell);

#endif
