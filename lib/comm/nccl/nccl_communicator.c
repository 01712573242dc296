/*
 * NCCL's communicators, made before the first step and in one order on all ranks.
 *
 * Communicators that share resources, or a stream, complete what is issued on them in one order on
 * the device, and so do both directions of one communicator. So groups that sum are children of one
 * parent that share its resources, on the stream of sums: sums are issued in one order on all
 * ranks. A hand-over waits for what its peer computes, in an order that is another one on either
 * side: each direction between two ranks has a communicator and a stream of its own, which shares
 * nothing. The verifier (plan/verify.c) has the same queues.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "comm/nccl/nccl.h"

#define REST_NS 50000
#define ABORT_S 5.0 /* to stop what runs on the device */
#define CLOSE_S 2.0 /* once all ranks close */
#define BLAME_S 1.0 /* until a rank's death is known that NCCL has noticed */

/* A kernel that waits for other ranks takes multiprocessors from what computes beside it: one
 * direction of a link needs few of them. */
enum { ROUTE_CTAS = 2, SUM_CTAS = 8 };

static struct eth_hpp_nccl_config config_of(int most_ctas)
{
    return (struct eth_hpp_nccl_config){.size = sizeof(struct eth_hpp_nccl_config),
                                        .magic = NCCL_CONFIG_MAGIC,
                                        .version = NCCL_CONFIG_VERSION,
                                        .blocking = 0,
                                        .cga_cluster_size = NCCL_UNDEFINED,
                                        .min_ctas = 1,
                                        .max_ctas = most_ctas,
                                        .net_name = NULL,
                                        .split_share = 1};
}

void eth_hpp_nccl_rest(void)
{
    const struct timespec time = {.tv_nsec = REST_NS};
    nanosleep(&time, NULL);
}

/* ---- failures ---- */

/* NCCL may notice a rank that died before the control transport does, which knows which one. */
static enum eth_hpp_status failed(const struct eth_hpp_nccl *nccl, eth_hpp_nccl_comm comm,
                                  int result, const char *what, struct eth_hpp_error *err)
{
    const double deadline = eth_hpp_clock_now() + BLAME_S;
    enum eth_hpp_status status = eth_hpp_comm_check(nccl->control, err);
    while (status == ETH_HPP_OK && eth_hpp_clock_now() < deadline) {
        eth_hpp_nccl_rest();
        status = eth_hpp_comm_check(nccl->control, err);
    }
    if (status != ETH_HPP_OK)
        return status;
    const char *more = nccl->library.GetLastError(comm);
    return eth_hpp_error_set(err, result == NCCL_REMOTE_ERROR ? ETH_HPP_ERR_PEER : ETH_HPP_ERR_IO,
                             "NCCL failed at %s: %s (%s)", what,
                             nccl->library.GetErrorString(result), more != NULL ? more : "");
}

enum eth_hpp_status eth_hpp_nccl_settle(struct eth_hpp_nccl *nccl, eth_hpp_nccl_comm comm,
                                        int result, const char *what, struct eth_hpp_error *err)
{
    const double deadline = eth_hpp_clock_now() + nccl->timeout_s;
    while (result == NCCL_IN_PROGRESS) {
        int said = NCCL_SUCCESS;
        result = nccl->library.CommGetAsyncError(comm, &said);
        if (result == NCCL_SUCCESS)
            result = said;
        if (result != NCCL_IN_PROGRESS)
            break;
        enum eth_hpp_status status = eth_hpp_comm_check(nccl->control, err);
        if (status != ETH_HPP_OK)
            return status;
        if (eth_hpp_clock_now() > deadline)
            return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT,
                                     "NCCL is not done with %s after %.0f s", what,
                                     nccl->timeout_s);
        eth_hpp_nccl_rest();
    }
    return result == NCCL_SUCCESS ? ETH_HPP_OK : failed(nccl, comm, result, what, err);
}

enum eth_hpp_status eth_hpp_nccl_check(struct eth_hpp_nccl *nccl, struct eth_hpp_error *err)
{
    struct eth_hpp_error *failure = &nccl->failure;
    for (const struct eth_hpp_nccl_communicator *c = nccl->last;
         failure->status == ETH_HPP_OK && c != NULL; c = c->next) {
        int said = NCCL_SUCCESS;
        const int result = nccl->library.CommGetAsyncError(c->comm, &said);
        if (result != NCCL_SUCCESS || (said != NCCL_SUCCESS && said != NCCL_IN_PROGRESS))
            failed(nccl, c->comm, result != NCCL_SUCCESS ? result : said, "what is under way",
                   failure);
    }
    if (failure->status != ETH_HPP_OK)
        return eth_hpp_error_set(err, failure->status, "%s", failure->text);
    return eth_hpp_comm_check(nccl->control, err);
}

/* ---- one communicator ---- */

/* Takes its place in the list, so that whatever becomes of it is ended with the others. */
static enum eth_hpp_status add(struct eth_hpp_nccl *nccl, const int *ranks, int count, int stream,
                               struct eth_hpp_nccl_communicator **communicator,
                               struct eth_hpp_error *err)
{
    struct eth_hpp_nccl_communicator *made = calloc(1, sizeof(*made));
    int *members = malloc(sizeof(*members) * (size_t)count);
    if (made == NULL || members == NULL) {
        free(made);
        free(members);
        return eth_hpp_error_memory(err, "a communicator");
    }
    memcpy(members, ranks, sizeof(*members) * (size_t)count);
    made->ranks = members;
    made->count = count;
    made->stream = stream;
    made->position = -1; /* this rank is not among them */
    for (int i = 0; i < count; i++)
        if (ranks[i] == nccl->rank)
            made->position = i;
    made->next = nccl->last;
    nccl->last = made;
    *communicator = made;
    return ETH_HPP_OK;
}

/* Forgets the one that was made last. */
static void drop(struct eth_hpp_nccl *nccl)
{
    struct eth_hpp_nccl_communicator *last = nccl->last;
    nccl->last = last->next;
    free(last->ranks);
    free(last);
}

static enum eth_hpp_status init(struct eth_hpp_nccl *nccl, const struct eth_hpp_nccl_id *id,
                                int most_ctas, struct eth_hpp_nccl_communicator *c,
                                struct eth_hpp_error *err)
{
    struct eth_hpp_nccl_config config = config_of(most_ctas);
    const int result =
        nccl->library.CommInitRankConfig(&c->comm, c->count, *id, c->position, &config);
    return eth_hpp_nccl_settle(nccl, c->comm, result, "the start of a communicator", err);
}

/* ---- groups that sum ---- */

static bool same_ranks(const struct eth_hpp_nccl_communicator *c, const int *ranks, int count)
{
    return c->count == count && memcmp(c->ranks, ranks, sizeof(*ranks) * (size_t)count) == 0;
}

/* The blocks of one owner set share one. All ranks of the parent take part, members or not. */
static enum eth_hpp_status open_group(struct eth_hpp_nccl *nccl, eth_hpp_nccl_comm parent,
                                      const struct eth_hpp_comm_members *group,
                                      struct eth_hpp_error *err)
{
    struct eth_hpp_nccl_config config = config_of(SUM_CTAS);
    struct eth_hpp_nccl_communicator *c;
    enum eth_hpp_status status =
        add(nccl, group->ranks, group->count, ETH_HPP_STREAM_SYNC, &c, err);
    if (status != ETH_HPP_OK)
        return status;
    const int result = nccl->library.CommSplit(parent, c->position < 0 ? NCCL_NO_COLOR : 0,
                                               c->position, &c->comm, &config);
    status = eth_hpp_nccl_settle(nccl, parent, result, "the start of a group's communicator", err);
    if (status == ETH_HPP_OK && c->comm != NULL)
        status = eth_hpp_nccl_settle(nccl, c->comm, NCCL_IN_PROGRESS,
                                     "the start of a group's communicator", err);
    if (c->comm == NULL && c->position < 0)
        drop(nccl);
    return status;
}

static bool came_before(const struct eth_hpp_comm_layout *layout, int g)
{
    const struct eth_hpp_comm_members *group = &layout->groups[g];
    for (int i = 0; i < g; i++)
        if (layout->groups[i].count == group->count &&
            memcmp(layout->groups[i].ranks, group->ranks,
                   sizeof(*group->ranks) * (size_t)group->count) == 0)
            return true;
    return false;
}

static enum eth_hpp_status open_groups(struct eth_hpp_nccl *nccl,
                                       const struct eth_hpp_comm_layout *layout,
                                       const struct eth_hpp_nccl_id *id, struct eth_hpp_error *err)
{
    struct eth_hpp_nccl_communicator *parent;
    enum eth_hpp_status status =
        add(nccl, layout->all.ranks, layout->all.count, ETH_HPP_STREAM_SYNC, &parent, err);
    if (status == ETH_HPP_OK)
        status = init(nccl, id, SUM_CTAS, parent, err);
    for (int g = 0; status == ETH_HPP_OK && g < layout->group_count; g++)
        if (layout->groups[g].count > 1 && !came_before(layout, g))
            status = open_group(nccl, parent->comm, &layout->groups[g], err);
    return status;
}

struct eth_hpp_nccl_communicator *eth_hpp_nccl_find_group(const struct eth_hpp_nccl *nccl,
                                                          const int *ranks, int count)
{
    for (struct eth_hpp_nccl_communicator *c = nccl->last; c != NULL; c = c->next)
        if (c->stream == ETH_HPP_STREAM_SYNC && same_ranks(c, ranks, count))
            return c;
    return NULL;
}

/* ---- routes of hand-overs ---- */

/* Who sends makes the id. One that cannot be had is told as zeros, since the other waits for it. */
static enum eth_hpp_status agree_on_id(struct eth_hpp_nccl *nccl,
                                       const struct eth_hpp_comm_route *route,
                                       struct eth_hpp_nccl_id *id, struct eth_hpp_error *err)
{
    static const struct eth_hpp_nccl_id none;
    int result = NCCL_SUCCESS;
    enum eth_hpp_status status;
    *id = none;
    if (route->from == nccl->rank) {
        result = nccl->library.GetUniqueId(id);
        if (result != NCCL_SUCCESS)
            *id = none;
        status = eth_hpp_nccl_tell(nccl, id, sizeof(*id), route->to, err);
    } else {
        status = eth_hpp_nccl_hear(nccl, id, sizeof(*id), route->from, err);
    }
    if (status == ETH_HPP_OK && memcmp(id, &none, sizeof(none)) == 0)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_IO, "NCCL gives no id: %s",
                                   result != NCCL_SUCCESS ? nccl->library.GetErrorString(result)
                                                          : "it failed on the sender");
    return status;
}

/* NCCL connects two ranks at their first transfer, in which each waits for the other: not in a
 * step, in which they come to it in orders of their own. */
static enum eth_hpp_status try_route(struct eth_hpp_nccl *nccl,
                                     const struct eth_hpp_nccl_communicator *c,
                                     struct eth_hpp_error *err)
{
    const struct eth_hpp_kernels *kernels = nccl->kernels;
    void *stream = kernels->ops->stream_native(kernels->state, c->stream);
    const int result =
        c->position == 0
            ? nccl->library.Send(nccl->token, 1, NCCL_UINT8, 1, c->comm, stream)
            : nccl->library.Recv((char *)nccl->token + 1, 1, NCCL_UINT8, 0, c->comm, stream);
    return eth_hpp_nccl_settle(nccl, c->comm, result, "the connection for hand-overs", err);
}

static enum eth_hpp_status open_route(struct eth_hpp_nccl *nccl,
                                      const struct eth_hpp_comm_route *route,
                                      struct eth_hpp_error *err)
{
    const struct eth_hpp_kernels *kernels = nccl->kernels;
    const int ranks[] = {route->from, route->to}; /* so that each direction is found as one */
    struct eth_hpp_nccl_communicator *c;
    struct eth_hpp_nccl_id id;
    int stream = 0;
    enum eth_hpp_status status = kernels->ops->stream_create(kernels->state, &stream, err);
    if (status == ETH_HPP_OK)
        status = add(nccl, ranks, 2, stream, &c, err);
    if (status == ETH_HPP_OK)
        status = agree_on_id(nccl, route, &id, err);
    if (status == ETH_HPP_OK)
        status = init(nccl, &id, ROUTE_CTAS, c, err);
    if (status == ETH_HPP_OK)
        status = try_route(nccl, c, err);
    return status == ETH_HPP_OK ? status
                                : eth_hpp_error_prefix(err, "hand-overs from rank %d to rank %d",
                                                       route->from, route->to);
}

struct eth_hpp_nccl_communicator *eth_hpp_nccl_find_route(const struct eth_hpp_nccl *nccl, int from,
                                                          int to)
{
    const int ranks[] = {from, to};
    for (struct eth_hpp_nccl_communicator *c = nccl->last; c != NULL; c = c->next)
        if (c->stream != ETH_HPP_STREAM_SYNC && same_ranks(c, ranks, 2))
            return c;
    return NULL;
}

/* ---- all ---- */

enum eth_hpp_status eth_hpp_nccl_communicators_open(struct eth_hpp_nccl *nccl,
                                                    const struct eth_hpp_comm_layout *layout,
                                                    const struct eth_hpp_nccl_id *id,
                                                    struct eth_hpp_error *err)
{
    const struct eth_hpp_kernels *kernels = nccl->kernels;
    enum eth_hpp_status status = kernels->ops->allocate_host(kernels->state, 2, &nccl->token, err);
    if (status == ETH_HPP_OK && layout->group_count > 0)
        status = open_groups(nccl, layout, id, err);
    for (int i = 0; status == ETH_HPP_OK && i < layout->route_count; i++)
        status = open_route(nccl, &layout->routes[i], err);
    return status;
}

bool eth_hpp_nccl_communicators_close(struct eth_hpp_nccl *nccl)
{
    const double timeout_s = nccl->timeout_s;
    struct eth_hpp_error failure = {0};
    nccl->timeout_s = CLOSE_S;
    for (struct eth_hpp_nccl_communicator *c = nccl->last;
         failure.status == ETH_HPP_OK && c != NULL; c = c->next)
        eth_hpp_nccl_settle(nccl, c->comm, nccl->library.CommFinalize(c->comm),
                            "the end of a communicator", &failure);
    nccl->timeout_s = timeout_s;
    if (failure.status != ETH_HPP_OK)
        return eth_hpp_nccl_communicators_abort(nccl);
    while (nccl->last != NULL) {
        nccl->library.CommDestroy(nccl->last->comm);
        drop(nccl);
    }
    return true;
}

/* An abort waits for the device, and perhaps for a network that does not answer: a thread does it,
 * and is left behind where it takes too long, in a process that is about to end. */
struct abortion {
    struct eth_hpp_nccl_library library;
    struct eth_hpp_nccl_communicator *last;
    atomic_bool done;
};

static void *abort_all(void *user)
{
    struct abortion *abortion = user;
    for (struct eth_hpp_nccl_communicator *c = abortion->last; c != NULL; c = c->next)
        if (c->comm != NULL)
            abortion->library.CommAbort(c->comm);
    atomic_store(&abortion->done, true);
    return NULL;
}

bool eth_hpp_nccl_communicators_abort(struct eth_hpp_nccl *nccl)
{
    const double deadline = eth_hpp_clock_now() + ABORT_S;
    struct abortion *abortion = calloc(1, sizeof(*abortion));
    pthread_t thread;
    if (abortion == NULL)
        return false;
    abortion->library = nccl->library;
    abortion->last = nccl->last;
    nccl->last = NULL;
    if (pthread_create(&thread, NULL, abort_all, abortion) != 0) {
        free(abortion);
        return false;
    }
    while (!atomic_load(&abortion->done) && eth_hpp_clock_now() < deadline)
        eth_hpp_nccl_rest();
    if (!atomic_load(&abortion->done)) {
        pthread_detach(thread);
        return false;
    }
    pthread_join(thread, NULL);
    nccl->last = abortion->last;
    while (nccl->last != NULL)
        drop(nccl);
    free(abortion);
    return true;
}
