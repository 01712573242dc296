#include "bootstrap/pmix_presence.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "bootstrap/first_here.h"
#include "bootstrap/step_end.h"

/* Seconds for a rank's server to say whether the rank is there, and ranks that are asked at once.
 */
enum { ANSWER_S = 1, ASKED_AT_ONCE = 64 };
#define POLL_S 0.002

/* A question to ranks' servers. Answers may come when nobody waits for them any more, so it is not
 * freed before all of them have come; the process ends then anyway. */
struct question {
    pthread_mutex_t mutex;
    pthread_cond_t answered;
    int open;
    bool here[ASKED_AT_ONCE];
};

struct answer {
    struct question *question;
    int at;
};

/* ---- the map of the job ---- */

/* Notes which ranks run on a node, the job's `index`th. */
static void map_node(struct eth_hpp_pmix_presence *presence, char *node, int index)
{
    pmix_proc_t *processes = NULL;
    size_t count = 0;
    if (PMIx_Resolve_peers(node, presence->self.nspace, &processes, &count) != PMIX_SUCCESS)
        return;
    for (size_t i = 0; i < count; i++) {
        if (processes[i].rank < (pmix_rank_t)presence->size)
            presence->node_of[processes[i].rank] = node;
        if (processes[i].rank == presence->self.rank)
            presence->own_node = index;
    }
    PMIX_PROC_FREE(processes, count);
}

/* PMIX_HOSTNAME of a rank is not found any more once the rank has published values in an earlier
 * connection. */
enum eth_hpp_status eth_hpp_pmix_presence_open(const pmix_proc_t *self, int size, int round,
                                               struct eth_hpp_pmix_presence *presence,
                                               struct eth_hpp_error *err)
{
    int index = 0;
    char *rest;
    *presence = (struct eth_hpp_pmix_presence){.self = *self, .size = size, .round = round};
    presence->node_of = calloc((size_t)size, sizeof(*presence->node_of));
    if (presence->node_of == NULL)
        return eth_hpp_error_memory(err, "the map of the job");
    if (PMIx_Resolve_nodes(self->nspace, &presence->names) != PMIX_SUCCESS ||
        presence->names == NULL)
        return ETH_HPP_OK;
    for (char *node = strtok_r(presence->names, ",", &rest); node != NULL;
         node = strtok_r(NULL, ",", &rest))
        map_node(presence, node, index++);
    return ETH_HPP_OK;
}

void eth_hpp_pmix_presence_close(struct eth_hpp_pmix_presence *presence)
{
    free(presence->names);
    free(presence->node_of);
}

static void announce_key(char *key, const struct eth_hpp_pmix_presence *presence)
{
    snprintf(key, PMIX_MAX_KEYLEN, "eth-hpp.%d.fence.%d", presence->round, presence->fence);
}

static enum eth_hpp_status pmix_error(struct eth_hpp_error *err, const char *what,
                                      pmix_status_t code)
{
    return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "PMIx: %s failed: %s", what,
                             PMIx_Error_string(code));
}

enum eth_hpp_status eth_hpp_pmix_presence_announce(struct eth_hpp_pmix_presence *presence,
                                                   struct eth_hpp_error *err)
{
    char key[PMIX_MAX_KEYLEN];
    pmix_value_t here;
    PMIX_VALUE_CONSTRUCT(&here);
    here.type = PMIX_BOOL;
    here.data.flag = true;
    presence->fence++;
    announce_key(key, presence);
    pmix_status_t code = PMIx_Put(PMIX_GLOBAL, key, &here);
    if (code == PMIX_SUCCESS)
        code = PMIx_Commit();
    return code == PMIX_SUCCESS ? ETH_HPP_OK
                                : pmix_error(err, "handing over the published values", code);
}

/* ---- the ranks of this node ---- */

/* What is known without asking or waiting; NULL where it is not. To be released. */
static pmix_value_t *look_up(const struct eth_hpp_pmix_presence *presence, pmix_rank_t rank,
                             const char *key)
{
    bool yes = true;
    pmix_info_t immediate;
    pmix_proc_t proc;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&proc, presence->self.nspace, rank);
    PMIX_INFO_LOAD(&immediate, PMIX_IMMEDIATE, &yes, PMIX_BOOL);
    if (PMIx_Get(&proc, key, &immediate, 1, &value) != PMIX_SUCCESS)
        value = NULL;
    PMIX_INFO_DESTRUCT(&immediate);
    return value;
}

static bool is_here(const struct eth_hpp_pmix_presence *presence, pmix_rank_t rank)
{
    char key[PMIX_MAX_KEYLEN];
    announce_key(key, presence);
    pmix_value_t *value = look_up(presence, rank, key);
    if (value == NULL)
        return false;
    PMIX_VALUE_RELEASE(value);
    return true;
}

enum eth_hpp_status eth_hpp_pmix_presence_await_node(const struct eth_hpp_pmix_presence *presence,
                                                     double timeout_s, bool *all,
                                                     struct eth_hpp_error *err)
{
    const struct timespec pause = {.tv_nsec = (long)(POLL_S * 1e9)};
    const double deadline = eth_hpp_clock_now() + timeout_s;
    pmix_value_t *peers = look_up(presence, PMIX_RANK_WILDCARD, PMIX_LOCAL_PEERS);
    if (peers == NULL || peers->type != PMIX_STRING || peers->data.string == NULL) {
        if (peers != NULL)
            PMIX_VALUE_RELEASE(peers);
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER,
                                 "PMIx: the server does not say which ranks share the node of "
                                 "rank %u",
                                 presence->self.rank);
    }
    bool in_time = true;
    for (const char *next = peers->data.string; in_time && *next != '\0';) {
        char *end;
        pmix_rank_t rank = (pmix_rank_t)strtoul(next, &end, 10);
        while (!is_here(presence, rank) && (in_time = eth_hpp_clock_now() < deadline))
            nanosleep(&pause, NULL);
        next = *end == ',' ? end + 1 : "";
    }
    PMIX_VALUE_RELEASE(peers);
    *all = in_time;
    return ETH_HPP_OK;
}

/* ---- all ranks ---- */

static struct question *question_new(void)
{
    struct question *question = calloc(1, sizeof(*question));
    pthread_condattr_t attributes;
    if (question == NULL || pthread_condattr_init(&attributes) != 0) {
        free(question);
        return NULL;
    }
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&question->answered, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&question->mutex, NULL);
    return question;
}

static void take_answer(pmix_status_t status, pmix_value_t *value, void *user)
{
    struct answer *answer = user;
    struct question *question = answer->question;
    pthread_mutex_lock(&question->mutex);
    question->here[answer->at] = status == PMIX_SUCCESS && value != NULL;
    question->open--;
    pthread_cond_signal(&question->answered);
    pthread_mutex_unlock(&question->mutex);
    free(answer);
}

static void put_question(struct question *question, const struct eth_hpp_pmix_presence *presence,
                         int first, int at)
{
    char key[PMIX_MAX_KEYLEN];
    pmix_proc_t proc;
    struct answer *answer = malloc(sizeof(*answer));
    if (answer == NULL)
        return;
    *answer = (struct answer){.question = question, .at = at};
    announce_key(key, presence);
    PMIX_LOAD_PROCID(&proc, presence->self.nspace, (pmix_rank_t)(first + at));
    pthread_mutex_lock(&question->mutex);
    question->open++;
    pthread_mutex_unlock(&question->mutex);
    pmix_status_t code = PMIx_Get_nb(&proc, key, NULL, 0, take_answer, answer);
    if (code == PMIX_SUCCESS)
        return;
    pthread_mutex_lock(&question->mutex);
    question->open--;
    pthread_mutex_unlock(&question->mutex);
    free(answer);
}

/* Are the ranks [first, end), ASKED_AT_ONCE at most, there? The server of one that is not does not
 * answer, or says no. */
static void ask(const struct eth_hpp_pmix_presence *presence, int first, int end, bool *here)
{
    struct question *question = question_new();
    struct timespec deadline;
    int code = 0;
    memset(here, 0, ASKED_AT_ONCE * sizeof(*here));
    if (question == NULL)
        return;
    for (int at = 0; first + at < end; at++)
        put_question(question, presence, first, at);
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += ANSWER_S;
    pthread_mutex_lock(&question->mutex);
    while (question->open > 0 && code == 0)
        code = pthread_cond_timedwait(&question->answered, &question->mutex, &deadline);
    memcpy(here, question->here, sizeof(question->here));
    bool done = question->open == 0;
    pthread_mutex_unlock(&question->mutex);
    if (!done)
        return;
    pthread_cond_destroy(&question->answered);
    pthread_mutex_destroy(&question->mutex);
    free(question);
}

static bool is_lowest(const struct eth_hpp_pmix_presence *presence)
{
    bool here[ASKED_AT_ONCE];
    const int self = (int)presence->self.rank;
    /* The first ones mostly answer for all: few are missing. */
    for (int first = 0, end; first < self; first = end) {
        end = first == 0 ? 1 : first + ASKED_AT_ONCE;
        end = end < self ? end : self;
        ask(presence, first, end, here);
        for (int at = 0; first + at < end; at++)
            if (here[at])
                return false;
    }
    return true;
}

static const char *node_of(const struct eth_hpp_pmix_presence *presence, int rank)
{
    return presence->node_of[rank] != NULL ? presence->node_of[rank] : "";
}

static void name_missing(const struct eth_hpp_pmix_presence *presence, int first, int last,
                         int count, double timeout_s, struct eth_hpp_error *err)
{
    char who[320];
    const char *node = node_of(presence, first);
    int used =
        snprintf(who, sizeof(who), "rank %d%s%.256s", first, *node != '\0' ? " on " : "", node);
    if (count > 1)
        snprintf(who + used, sizeof(who) - (size_t)used, " and %d more", count - 1);
    if (strcmp(node, node_of(presence, last)) == 0)
        eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT,
                          "%s did not come to the exchange among all ranks within %.0f s: it has "
                          "failed or hangs before it",
                          who, timeout_s);
    else /* one node that is gone is enough: see may_speak */
        eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT,
                          "the exchange among all ranks was not done within %.0f s: nobody answers "
                          "for %s: Slurm's messages say which tasks have ended, else they hang or "
                          "their nodes cannot be reached",
                          timeout_s, who);
}

static void name_all_missing(const struct eth_hpp_pmix_presence *presence, double timeout_s,
                             struct eth_hpp_error *err)
{
    bool here[ASKED_AT_ONCE];
    int missing = 0, first_missing = -1, last_missing = -1;
    for (int first = 0; first < presence->size; first += ASKED_AT_ONCE) {
        int end = first + ASKED_AT_ONCE < presence->size ? first + ASKED_AT_ONCE : presence->size;
        ask(presence, first, end, here);
        for (int rank = first; rank < end; rank++) {
            if (here[rank - first] || rank == (int)presence->self.rank)
                continue;
            if (missing++ == 0)
                first_missing = rank;
            last_missing = rank;
        }
    }
    if (missing > 0)
        name_missing(presence, first_missing, last_missing, missing, timeout_s, err);
    else
        eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT,
                          "the exchange among all ranks was not done within %.0f s, although all "
                          "came to it: can their nodes reach each other?",
                          timeout_s);
}

/* Where all ranks of a node have left, its server is gone, and servers that try to reach it answer
 * nobody for half a minute: several ranks may then take themselves for the lowest. One of each node
 * is left, they speak one after another, and the first ends the job. */
static bool may_speak(const struct eth_hpp_pmix_presence *presence)
{
    char meeting[96];
    snprintf(meeting, sizeof(meeting), "%d.%d.%.64s", presence->round, presence->fence,
             presence->self.nspace);
    return eth_hpp_first_here(meeting) && eth_hpp_step_end_turn(presence->own_node);
}

enum eth_hpp_status eth_hpp_pmix_presence_report(const struct eth_hpp_pmix_presence *presence,
                                                 double timeout_s, struct eth_hpp_error *err)
{
    struct eth_hpp_error named;
    eth_hpp_step_end_listen();
    if (is_lowest(presence)) {
        name_all_missing(presence, timeout_s, &named);
        if (may_speak(presence)) {
            *err = named;
            return named.status;
        }
    }
    return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT, "%s", "");
}
