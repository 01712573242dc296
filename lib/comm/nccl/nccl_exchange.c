/*
 * What ranks say to each other before the first communicator: NCCL hangs, or computes wrongly,
 * where they have unlike versions or settings, and says nothing of it. The lowest rank hears all of
 * them and tells the verdict to all, so that they fail together, with one text. It goes over the
 * control transport, which has deadlines and notices the death of a rank, and not by the bootstrap,
 * which is left by then.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/library.h"
#include "base/log.h"
#include "comm/nccl/nccl.h"

extern char **environ;

enum { TAG = 1 }; /* before the first hand-over, which may have the same */

struct hello {
    int version; /* 0: it is not there, for this reason */
    char reason[400];
    bool named; /* its file, by the user */
    char host[64], model[64], uuid[40];
    char variables[3000]; /* lines NAME=VALUE, cut where there are more */
};

struct verdict {
    enum eth_hpp_status status;
    char text[800];             /* of the error */
    bool used, pinned, sharing; /* of GPUs */
    struct eth_hpp_nccl_id id;
};

enum eth_hpp_status eth_hpp_nccl_tell(struct eth_hpp_nccl *nccl, const void *data, size_t size,
                                      int peer, struct eth_hpp_error *err)
{
    struct eth_hpp_request *request;
    enum eth_hpp_status status =
        eth_hpp_comm_send(nccl->control, data, size, peer, TAG, &request, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_wait(nccl->control, request, nccl->timeout_s, err);
    return status;
}

enum eth_hpp_status eth_hpp_nccl_hear(struct eth_hpp_nccl *nccl, void *data, size_t size, int peer,
                                      struct eth_hpp_error *err)
{
    struct eth_hpp_request *request;
    enum eth_hpp_status status =
        eth_hpp_comm_recv(nccl->control, data, size, peer, TAG, &request, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_wait(nccl->control, request, nccl->timeout_s, err);
    return status;
}

/* ---- what this rank has ---- */

static enum eth_hpp_status open_library(const char *file, struct eth_hpp_nccl_library *library,
                                        struct eth_hpp_error *err)
{
    void *opened;
    enum eth_hpp_status status = eth_hpp_library_open(file, "NCCL", &opened, err);
#define FIND(result, name, arguments)                                                              \
    if (status == ETH_HPP_OK)                                                                      \
        status = eth_hpp_library_find(opened, file, "nccl" #name, &library->name, err);
    ETH_HPP_NCCL_FUNCTIONS(FIND)
#undef FIND
    return status;
}

static void find_version(struct eth_hpp_nccl *nccl, struct hello *hello)
{
    const char *file = getenv("ETH_HPP_NCCL_LIBRARY");
    struct eth_hpp_error err = {0};
    hello->named = file != NULL && *file != '\0' && strcmp(file, "none") != 0;
    if (file == NULL || *file == '\0')
        file = nccl->kernels->nccl;
    if (file == NULL || strcmp(file, "none") == 0)
        snprintf(hello->reason, sizeof(hello->reason), "ETH_HPP_NCCL_LIBRARY is none");
    else if (open_library(file, &nccl->library, &err) != ETH_HPP_OK)
        snprintf(hello->reason, sizeof(hello->reason), "%.*s", (int)sizeof(hello->reason) - 1,
                 err.text);
    else if (nccl->library.GetVersion(&hello->version) != NCCL_SUCCESS)
        snprintf(hello->reason, sizeof(hello->reason), "%.300s does not tell its version", file);
}

/* Names that say where things are on a node, or what is logged, and may differ. */
static bool is_of_a_node(const char *variable, size_t length)
{
    static const char *const names[] = {
        "NCCL_DEBUG",  "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS",  "NCCL_GRAPH_FILE",
        "NCCL_HOSTID", "NCCL_IB_HCA",     "NCCL_SOCKET_IFNAME", "NCCL_TOPO_FILE"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strlen(names[i]) == length && strncmp(names[i], variable, length) == 0)
            return true;
    return false;
}

static void list_variables(char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (char **at = environ; *at != NULL; at++) {
        const size_t length = strlen(*at);
        if (strncmp(*at, "NCCL_", 5) != 0 || is_of_a_node(*at, strcspn(*at, "=")) ||
            used + length + 2 > size)
            continue;
        used += (size_t)snprintf(text + used, size - used, "%s\n", *at);
    }
}

static void introduce(struct eth_hpp_nccl *nccl, const char *host, struct hello *hello)
{
    find_version(nccl, hello);
    snprintf(hello->host, sizeof(hello->host), "%.63s", host);
    snprintf(hello->model, sizeof(hello->model), "%.63s", nccl->kernels->model);
    snprintf(hello->uuid, sizeof(hello->uuid), "%.39s", nccl->kernels->uuid);
    list_variables(hello->variables, sizeof(hello->variables));
}

/* ---- the verdict, on the lowest rank ---- */

/* The line of that name, or NULL. */
static const char *find_line(const char *lines, const char *name, size_t length)
{
    for (const char *at = lines; *at != '\0'; at += strcspn(at, "\n") + 1)
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return at;
    return NULL;
}

/* The first line of one that the other has not: its name's length, or 0. */
static size_t find_difference(const char *one, const char *other, const char **name)
{
    for (const char *at = one; *at != '\0'; at += strcspn(at, "\n") + 1) {
        const size_t length = strcspn(at, "="), whole = strcspn(at, "\n");
        const char *same = find_line(other, at, length);
        if (same == NULL || strcspn(same, "\n") != whole || strncmp(same, at, whole) != 0) {
            *name = at;
            return length;
        }
    }
    return 0;
}

/* "NCCL_ALGO=Ring", or "no NCCL_ALGO" */
static void print_variable(const char *lines, const char *name, size_t length, char *text,
                           size_t size)
{
    const char *line = find_line(lines, name, length);
    if (line != NULL)
        snprintf(text, size, "%.*s", (int)strcspn(line, "\n"), line);
    else
        snprintf(text, size, "no %.*s", (int)length, name);
}

static enum eth_hpp_status compare_variables(const struct hello *first, int first_rank,
                                             const struct hello *other, int rank,
                                             struct eth_hpp_error *err)
{
    char theirs[160], ours[160];
    const char *name = NULL;
    size_t length = find_difference(other->variables, first->variables, &name);
    if (length == 0)
        length = find_difference(first->variables, other->variables, &name);
    if (length == 0)
        return ETH_HPP_OK;
    print_variable(other->variables, name, length, theirs, sizeof(theirs));
    print_variable(first->variables, name, length, ours, sizeof(ours));
    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                             "rank %d on %s has %s in its environment, rank %d on %s has %s: NCCL "
                             "needs the same on all ranks",
                             rank, other->host, theirs, first_rank, first->host, ours);
}

static void print_version(int version, char *text, size_t size)
{
    snprintf(text, size, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static enum eth_hpp_status compare_versions(const struct hello *first, int first_rank,
                                            const struct hello *other, int rank,
                                            struct eth_hpp_error *err)
{
    char theirs[32] = "no NCCL", ours[32] = "no NCCL";
    if (first->version == other->version)
        return ETH_HPP_OK;
    if (other->version > 0)
        print_version(other->version, theirs, sizeof(theirs));
    if (first->version > 0)
        print_version(first->version, ours, sizeof(ours));
    return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                             "rank %d on %s has %s, rank %d on %s has %s: install the same on all "
                             "nodes (ETH_HPP_NCCL_LIBRARY names the file, or none)%s%.300s",
                             rank, other->host, theirs, first_rank, first->host, ours,
                             other->version == 0 || first->version == 0 ? "; " : "",
                             other->version == 0   ? other->reason
                             : first->version == 0 ? first->reason
                                                   : "");
}

/* Who has named a file does not want to do without. */
static enum eth_hpp_status refuse_missing(const struct hello *hellos,
                                          const struct eth_hpp_comm_members *all,
                                          struct eth_hpp_error *err)
{
    for (int i = 0; i < all->count; i++)
        if (hellos[i].version == 0 && hellos[i].named)
            return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                     "rank %d on %s cannot use the NCCL that ETH_HPP_NCCL_LIBRARY "
                                     "names: %s",
                                     all->ranks[i], hellos[i].host, hellos[i].reason);
    return ETH_HPP_OK;
}

enum { OLDEST = 21800, SHARING = 23000 }; /* what puts several ranks on one GPU */

static enum eth_hpp_status judge(const struct hello *hellos, const struct eth_hpp_comm_members *all,
                                 struct verdict *verdict, struct eth_hpp_error *err)
{
    const int first = all->ranks[0];
    char version[32];
    enum eth_hpp_status status = ETH_HPP_OK;
    print_version(hellos[0].version, version, sizeof(version));
    for (int i = 1; status == ETH_HPP_OK && i < all->count; i++)
        status = compare_versions(&hellos[0], first, &hellos[i], all->ranks[i], err);
    if (status == ETH_HPP_OK)
        status = refuse_missing(hellos, all, err);
    for (int i = 1; status == ETH_HPP_OK && i < all->count; i++)
        status = compare_variables(&hellos[0], first, &hellos[i], all->ranks[i], err);
    if (status == ETH_HPP_OK && hellos[0].version > 0 && hellos[0].version < OLDEST)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "%s is too old: install 2.18 or later on all nodes, or set "
                                 "ETH_HPP_NCCL_LIBRARY=none",
                                 version);
    verdict->used = status == ETH_HPP_OK && hellos[0].version > 0;
    for (int i = 1; i < all->count; i++)
        if (strcmp(hellos[i].model, hellos[0].model) != 0)
            verdict->pinned = verdict->used;
    return status;
}

/* Where two ranks share a GPU NCCL is told to let them, or left alone if it cannot. */
static void look_for_sharing(const struct hello *hellos, const struct eth_hpp_comm_members *all,
                             struct verdict *verdict, char *why, size_t size)
{
    char version[32];
    print_version(hellos[0].version, version, sizeof(version));
    for (int i = 0; verdict->used && i < all->count; i++)
        for (int j = 0; j < i; j++)
            if (strcmp(hellos[i].host, hellos[j].host) == 0 &&
                strcmp(hellos[i].uuid, hellos[j].uuid) == 0) {
                verdict->sharing = verdict->used = hellos[0].version >= SHARING;
                snprintf(why, size,
                         "ranks %d and %d share a GPU of %s, which %s cannot do, 2.30 can",
                         all->ranks[j], all->ranks[i], hellos[i].host, version);
            }
}

/* What ranks would choose by their own GPU; and connections are made before the first sum, at
 * which ranks would wait for each other on the host else. */
static void set_variables(const struct verdict *verdict)
{
    if (verdict->pinned) {
        setenv("NCCL_ALGO", "Ring", 0);
        setenv("NCCL_PROTO", "Simple", 0);
    }
    if (verdict->sharing)
        setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    if (verdict->used)
        setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

/* For lines that tell of devices. */
static const char *emulated(const struct eth_hpp_nccl *nccl)
{
    return strstr(nccl->kernels->name, "emulated") != NULL ? ", emulated" : "";
}

static void say_version(const struct eth_hpp_nccl *nccl, int version, bool pinned)
{
    char text[32];
    print_version(version, text, sizeof(text));
    eth_hpp_log_info("GPUs exchange data by %s%s%s", text, emulated(nccl),
                     pinned ? ", with NCCL_ALGO and NCCL_PROTO pinned since GPUs are unlike" : "");
}

/* An id that cannot be had is told like any other verdict: the others wait for one. */
static void decide(struct eth_hpp_nccl *nccl, const struct hello *hellos,
                   const struct eth_hpp_comm_members *all, struct verdict *verdict)
{
    struct eth_hpp_error err = {0};
    char why[sizeof(hellos->reason)];
    snprintf(why, sizeof(why), "%s", hellos[0].reason);
    verdict->status = judge(hellos, all, verdict, &err);
    look_for_sharing(hellos, all, verdict, why, sizeof(why));
    set_variables(verdict);
    if (verdict->used) {
        const int result = nccl->library.GetUniqueId(&verdict->id);
        if (result != NCCL_SUCCESS)
            verdict->status = eth_hpp_error_set(
                &err, ETH_HPP_ERR_UNSUPPORTED, "NCCL gives no id on rank %d on %s: %s",
                all->ranks[0], hellos[0].host, nccl->library.GetErrorString(result));
    }
    snprintf(verdict->text, sizeof(verdict->text), "%.799s", err.text);
    if (verdict->used)
        say_version(nccl, hellos[0].version, verdict->pinned);
    else if (verdict->status == ETH_HPP_OK)
        eth_hpp_log_info("GPUs exchange data through the host%s: %s", emulated(nccl), why);
}

static enum eth_hpp_status hear_all(struct eth_hpp_nccl *nccl, struct hello *hellos,
                                    const struct eth_hpp_comm_members *all, struct verdict *verdict,
                                    struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    for (int i = 1; status == ETH_HPP_OK && i < all->count; i++)
        status = eth_hpp_nccl_hear(nccl, &hellos[i], sizeof(hellos[i]), all->ranks[i], err);
    if (status == ETH_HPP_OK)
        decide(nccl, hellos, all, verdict);
    for (int i = 1; status == ETH_HPP_OK && i < all->count; i++)
        status = eth_hpp_nccl_tell(nccl, verdict, sizeof(*verdict), all->ranks[i], err);
    return status;
}

static enum eth_hpp_status be_heard(struct eth_hpp_nccl *nccl, const struct hello *hello,
                                    int lowest, struct verdict *verdict, struct eth_hpp_error *err)
{
    enum eth_hpp_status status = eth_hpp_nccl_tell(nccl, hello, sizeof(*hello), lowest, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_nccl_hear(nccl, verdict, sizeof(*verdict), lowest, err);
    if (status == ETH_HPP_OK)
        set_variables(verdict);
    return status;
}

enum eth_hpp_status eth_hpp_nccl_meet(struct eth_hpp_nccl *nccl,
                                      const struct eth_hpp_bootstrap_place *place,
                                      const struct eth_hpp_comm_layout *layout, bool *used,
                                      struct eth_hpp_nccl_id *id, struct eth_hpp_error *err)
{
    const int lowest = layout->all.ranks[0];
    struct verdict verdict = {0};
    struct hello *hellos = calloc((size_t)layout->all.count, sizeof(*hellos));
    if (hellos == NULL)
        return eth_hpp_error_memory(err, "what ranks say of NCCL");
    introduce(nccl, place->host, &hellos[0]);
    enum eth_hpp_status status = place->rank == lowest
                                     ? hear_all(nccl, hellos, &layout->all, &verdict, err)
                                     : be_heard(nccl, &hellos[0], lowest, &verdict, err);
    free(hellos);
    if (status == ETH_HPP_OK && verdict.status != ETH_HPP_OK)
        status = eth_hpp_error_set(err, verdict.status, "%s", verdict.text);
    if (status == ETH_HPP_OK) {
        *used = verdict.used;
        *id = verdict.id;
    }
    return status;
}
