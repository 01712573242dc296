/*
 * PMI-2, as Slurm's --mpi=pmi2 serves it over a socket that each task inherits. Facts that shape
 * this file: the server takes one greeting in a task's life (a second one makes slurmstepd close
 * descriptors that are in use, and the job may never end), and is gone after a Finalize. So
 * `eth-hpp launch` and the program that it becomes share one connection, which libpmi2 cannot: it
 * greets at each start, and waits without a deadline. Here nothing is finalized, and the socket
 * itself remembers that it has greeted.
 *
 * What is put is seen by all after the next fence; attributes of the node are seen at once, on that
 * node: by them its ranks know who of them has come. A rank enters the fence only when all of its
 * node have, so that who is missing there is named, and the others know that it is none of theirs.
 * Keys are one space for all ranks, and values are text: here they carry the rank and are hex.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "bootstrap/component.h"
#include "bootstrap/pmi2_wire.h"
#include "bootstrap/step_end.h"

/* For the server of this node, which may be busy with what other nodes have put. */
#define ANSWER_S 10.0
/* Many ranks ask one server, each the less often the longer it has waited already. */
#define POLL_MIN_S 0.001
#define POLL_MAX_S 0.05
#define POLL_SHARE 16 /* of the time waited */

/* The SO_PRIORITY of a socket that has greeted: all processes of the task see it, and on a local
 * socket it has no effect. */
enum { GREETED = 1 };
enum { VALUE_BYTES = (ETH_HPP_PMI2_VALUE_BYTES - 1) / 2 };

struct pmi2 {
    int fd;
    int rank;
    int *local; /* [local_size] the ranks of this node */
    int local_size;
    int round; /* of the bootstrap */
    int fence; /* the last one, from 1 */
    bool failed;
    char host[256];
};

/* One command and its answer; a late one is an error like others. */
__attribute__((format(printf, 5, 6))) static enum eth_hpp_status
ask(const struct pmi2 *pmi2, const char *name, char answer[ETH_HPP_PMI2_MESSAGE_BYTES],
    struct eth_hpp_error *err, const char *format, ...)
{
    const double deadline = eth_hpp_clock_now() + ANSWER_S;
    char fields[ETH_HPP_PMI2_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fields, sizeof(fields), format, arguments);
    va_end(arguments);
    enum eth_hpp_status status = eth_hpp_pmi2_wire_send(pmi2->fd, deadline, name, fields, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_pmi2_wire_receive(pmi2->fd, deadline, name, answer, err);
    if (status == ETH_HPP_ERR_TIMEOUT)
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER,
                                 "PMI-2: this node's server has not answered %s for %.0f s", name,
                                 ANSWER_S);
    return status;
}

/* ---- the way in ---- */

static enum eth_hpp_status greet(int fd, struct eth_hpp_error *err)
{
    int priority = 0;
    socklen_t size = sizeof(priority);
    if (getsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, &size) == 0 && priority == GREETED)
        return ETH_HPP_OK;
    priority = GREETED;
    if (setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority)) != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "PMI-2: the socket of PMI_FD: %m");
    enum eth_hpp_status status = eth_hpp_pmi2_wire_greet(fd, eth_hpp_clock_now() + ANSWER_S, err);
    return status == ETH_HPP_ERR_TIMEOUT
               ? eth_hpp_error_set(err, ETH_HPP_ERR_PEER,
                                   "PMI-2: this node's server does not greet back")
               : status;
}

static enum eth_hpp_status find_place(struct pmi2 *pmi2, const char *job,
                                      struct eth_hpp_bootstrap_place *place,
                                      struct eth_hpp_error *err)
{
    char answer[ETH_HPP_PMI2_MESSAGE_BYTES], rank[16], size[16];
    enum eth_hpp_status status =
        ask(pmi2, "fullinit", answer, err, "pmijobid=%s;pmirank=%d;threaded=FALSE;", job,
            eth_hpp_bootstrap_environment("PMI_RANK"));
    if (status != ETH_HPP_OK)
        return status;
    if (!eth_hpp_pmi2_wire_field(answer, "rank", rank, sizeof(rank)) ||
        !eth_hpp_pmi2_wire_field(answer, "size", size, sizeof(size)) || atoi(rank) < 0 ||
        atoi(rank) >= atoi(size))
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER,
                                 "PMI-2: the server does not say which rank this is: %.200s",
                                 answer);
    pmi2->rank = place->rank = atoi(rank);
    place->size = atoi(size);
    return ETH_HPP_OK;
}

/* SLURM_GTIDS is a list of the node's ranks. In a heterogeneous job they are counted within the
 * component, and the server's rank in the whole job. */
static enum eth_hpp_status find_neighbours(struct pmi2 *pmi2, struct eth_hpp_bootstrap_place *place,
                                           struct eth_hpp_error *err)
{
    const char *list = getenv("SLURM_GTIDS");
    const int own = eth_hpp_bootstrap_environment("SLURM_LOCALID");
    int count = 0;
    pmi2->local = calloc((size_t)place->size, sizeof(*pmi2->local));
    if (pmi2->local == NULL)
        return eth_hpp_error_memory(err, "the ranks of this node");
    for (const char *next = list; next != NULL && *next != '\0' && count < place->size; count++) {
        char *end;
        pmi2->local[count] = (int)strtol(next, &end, 10);
        next = *end == ',' ? end + 1 : NULL;
    }
    if (own < 0 || own >= count)
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER,
                                 "PMI-2: SLURM_GTIDS (%.100s) and SLURM_LOCALID do not tell the "
                                 "ranks of this node",
                                 list != NULL ? list : "not set");
    const int offset = pmi2->rank - pmi2->local[own];
    for (int i = 0; i < count; i++)
        pmi2->local[i] += offset;
    place->local_rank = own;
    place->local_size = pmi2->local_size = count;
    return ETH_HPP_OK;
}

static enum eth_hpp_status is_here(const struct pmi2 *pmi2, int rank, bool *here,
                                   struct eth_hpp_error *err)
{
    char answer[ETH_HPP_PMI2_MESSAGE_BYTES], value[16];
    enum eth_hpp_status status =
        ask(pmi2, "info-getnodeattr", answer, err, "key=eth-hpp.%d.fence.%d.%d;wait=FALSE;",
            pmi2->round, pmi2->fence, rank);
    *here = status == ETH_HPP_OK && eth_hpp_pmi2_wire_field(answer, "value", value, sizeof(value));
    return status;
}

/* How many bootstraps of this task have announced a fence before. */
static enum eth_hpp_status find_round(struct pmi2 *pmi2, struct eth_hpp_error *err)
{
    enum eth_hpp_status status;
    bool here;
    pmi2->fence = 1;
    for (pmi2->round = 0; (status = is_here(pmi2, pmi2->rank, &here, err)) == ETH_HPP_OK && here;)
        pmi2->round++;
    pmi2->fence = 0;
    return status;
}

static void pmi2_close(void *state)
{
    struct pmi2 *pmi2 = state;
    free(pmi2->local);
    free(pmi2);
}

/* A step of --mpi=none within another one has that one's variables, but not its socket. */
static bool is_socket(int fd)
{
    struct stat kind;
    return fd >= 0 && fstat(fd, &kind) == 0 && S_ISSOCK(kind.st_mode);
}

enum eth_hpp_status eth_hpp_bootstrap_pmi2_open(void **state, struct eth_hpp_bootstrap_place *place,
                                                int *round, bool *reachable,
                                                struct eth_hpp_error *err)
{
    const char *job = getenv("PMI_JOBID");
    const int fd = eth_hpp_bootstrap_environment("PMI_FD");
    *reachable = job != NULL && is_socket(fd);
    if (!*reachable)
        return ETH_HPP_OK;
    struct pmi2 *pmi2 = calloc(1, sizeof(*pmi2));
    if (pmi2 == NULL)
        return eth_hpp_error_memory(err, "the bootstrap");
    pmi2->fd = fd;
    memcpy(pmi2->host, place->host, sizeof(pmi2->host));
    enum eth_hpp_status status = greet(fd, err);
    if (status == ETH_HPP_OK)
        status = find_place(pmi2, job, place, err);
    if (status == ETH_HPP_OK)
        status = find_neighbours(pmi2, place, err);
    if (status == ETH_HPP_OK)
        status = find_round(pmi2, err);
    if (status != ETH_HPP_OK) {
        pmi2_close(pmi2);
        return status;
    }
    *round = pmi2->round;
    *state = pmi2;
    return ETH_HPP_OK;
}

/* ---- values ---- */

static enum eth_hpp_status global_key(char key[ETH_HPP_PMI2_KEY_BYTES], int rank, const char *name,
                                      struct eth_hpp_error *err)
{
    return snprintf(key, ETH_HPP_PMI2_KEY_BYTES, "%d.%s", rank, name) < ETH_HPP_PMI2_KEY_BYTES
               ? ETH_HPP_OK
               : eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL, "PMI-2: the key %s is too long",
                                   name);
}

static enum eth_hpp_status pmi2_put(void *state, const char *name, const void *value, size_t size,
                                    struct eth_hpp_error *err)
{
    const struct pmi2 *pmi2 = state;
    const unsigned char *bytes = value;
    char key[ETH_HPP_PMI2_KEY_BYTES], text[2 * VALUE_BYTES + 1] = "";
    char answer[ETH_HPP_PMI2_MESSAGE_BYTES];
    enum eth_hpp_status status = global_key(key, pmi2->rank, name, err);
    if (status != ETH_HPP_OK)
        return status;
    for (size_t i = 0; i < size; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return ask(pmi2, "kvs-put", answer, err, "key=%s;value=%s;", key, text);
}

static int hex_digit(char digit)
{
    return digit >= '0' && digit <= '9'   ? digit - '0'
           : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
                                          : -1;
}

static enum eth_hpp_status pmi2_get(void *state, int rank, const char *name, void **value,
                                    size_t *size, struct eth_hpp_error *err)
{
    char key[ETH_HPP_PMI2_KEY_BYTES], text[ETH_HPP_PMI2_VALUE_BYTES];
    char answer[ETH_HPP_PMI2_MESSAGE_BYTES];
    enum eth_hpp_status status = global_key(key, rank, name, err);
    if (status == ETH_HPP_OK)
        status = ask(state, "kvs-get", answer, err, "key=%s;", key);
    if (status != ETH_HPP_OK)
        return status;
    if (!eth_hpp_pmi2_wire_field(answer, "value", text, sizeof(text)))
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "rank %d has not published %s", rank, name);
    const size_t count = strlen(text) / 2;
    unsigned char *bytes = malloc(count + 1);
    if (bytes == NULL)
        return eth_hpp_error_memory(err, "a value of the bootstrap");
    for (size_t i = 0; i < count; i++) {
        const int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            free(bytes);
            return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "rank %d published %s as no hex", rank,
                                     name);
        }
        bytes[i] = (unsigned char)(high << 4 | low);
    }
    *value = bytes;
    *size = count;
    return ETH_HPP_OK;
}

/* ---- the fence ---- */

static enum eth_hpp_status announce(struct pmi2 *pmi2, struct eth_hpp_error *err)
{
    char answer[ETH_HPP_PMI2_MESSAGE_BYTES];
    pmi2->fence++;
    return ask(pmi2, "info-putnodeattr", answer, err, "key=eth-hpp.%d.fence.%d.%d;value=here;",
               pmi2->round, pmi2->fence, pmi2->rank);
}

/* Where some of the node are missing: names them on the lowest rank that is there. */
static enum eth_hpp_status name_missing(const struct pmi2 *pmi2, double timeout_s,
                                        struct eth_hpp_error *err)
{
    int lowest = pmi2->rank, first = -1, count = 0;
    char more[32] = "";
    for (int i = 0; i < pmi2->local_size; i++) {
        const int rank = pmi2->local[i];
        bool here;
        enum eth_hpp_status status = is_here(pmi2, rank, &here, err);
        if (status != ETH_HPP_OK)
            return status;
        if (here)
            lowest = rank < lowest ? rank : lowest;
        else if (count++ == 0 || rank < first)
            first = rank;
    }
    if (lowest != pmi2->rank)
        return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT, "%s", "");
    if (count > 1)
        snprintf(more, sizeof(more), " and %d more", count - 1);
    return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT,
                             "rank %d on %.100s%s did not come to the exchange among all ranks "
                             "within %.0f s: it has failed or hangs before it",
                             first, pmi2->host, more, timeout_s);
}

static void poll_pause(double waited_s)
{
    const double pause_s = fmin(fmax(waited_s / POLL_SHARE, POLL_MIN_S), POLL_MAX_S);
    const struct timespec pause = {.tv_nsec = (long)(pause_s * 1e9)};
    nanosleep(&pause, NULL);
}

/* Waits until all ranks of this node have announced the fence. */
static enum eth_hpp_status await_node(const struct pmi2 *pmi2, double deadline, double timeout_s,
                                      struct eth_hpp_error *err)
{
    const double begin = eth_hpp_clock_now();
    for (int i = 0; i < pmi2->local_size; i++) {
        for (;;) {
            bool here;
            enum eth_hpp_status status = is_here(pmi2, pmi2->local[i], &here, err);
            if (status != ETH_HPP_OK)
                return status;
            if (here)
                break;
            if (eth_hpp_clock_now() > deadline)
                return name_missing(pmi2, timeout_s, err);
            poll_pause(eth_hpp_clock_now() - begin);
        }
    }
    return ETH_HPP_OK;
}

/* Where all of this node have come and it is other nodes' that have not: theirs that are there name
 * them, and only where nobody does, one rank of each of these, one after another. */
static enum eth_hpp_status blame_others(const struct pmi2 *pmi2, double timeout_s,
                                        struct eth_hpp_error *err)
{
    int lowest = pmi2->rank;
    for (int i = 0; i < pmi2->local_size; i++)
        lowest = pmi2->local[i] < lowest ? pmi2->local[i] : lowest;
    eth_hpp_step_end_listen();
    if (lowest != pmi2->rank ||
        !eth_hpp_step_end_turn(1 + eth_hpp_bootstrap_environment("SLURM_NODEID")))
        return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT, "%s", "");
    return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT,
                             "the exchange among all ranks was not done within %.0f s: all ranks "
                             "of %.100s came to it, but not those of other nodes, none of which "
                             "says who: Slurm's messages say which tasks have ended, else they "
                             "hang or their nodes cannot be reached",
                             timeout_s, pmi2->host);
}

static enum eth_hpp_status pmi2_fence(void *state, double timeout_s, struct eth_hpp_error *err)
{
    struct pmi2 *pmi2 = state;
    const double deadline = eth_hpp_clock_now() + timeout_s;
    char answer[ETH_HPP_PMI2_MESSAGE_BYTES];
    if (pmi2->failed)
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "PMI-2: an exchange failed before");
    pmi2->failed = true;
    enum eth_hpp_status status = announce(pmi2, err);
    if (status == ETH_HPP_OK)
        status = await_node(pmi2, deadline, timeout_s, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_pmi2_wire_send(pmi2->fd, deadline, "kvs-fence", "", err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_pmi2_wire_receive(pmi2->fd, deadline, "kvs-fence", answer, err);
    if (status == ETH_HPP_ERR_TIMEOUT)
        return blame_others(pmi2, timeout_s, err);
    pmi2->failed = status != ETH_HPP_OK;
    return status;
}

/* All tasks of the step are killed; the server gives no answer. */
static void pmi2_abort(void *state, int exit_code, const char *why)
{
    const struct pmi2 *pmi2 = state;
    (void)exit_code;
    (void)why;
    (void)eth_hpp_pmi2_wire_send(pmi2->fd, eth_hpp_clock_now() + ANSWER_S, "abort",
                                 "isworld=TRUE;msg=eth-hpp;", NULL);
}

const struct eth_hpp_bootstrap_ops eth_hpp_bootstrap_pmi2_ops = {
    .name = "pmi2",
    .value_max = VALUE_BYTES,
    .put = pmi2_put,
    .fence = pmi2_fence,
    .get = pmi2_get,
    .abort = pmi2_abort,
    .close = pmi2_close,
};
