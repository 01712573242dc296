#include "config.h"

#include "bootstrap/bootstrap.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "bootstrap/component.h"
#include "bootstrap/step_end.h"

/* After a deadline the ranks that are there stay until they have all been asked whether they are,
 * or hear that the step ends, and leave. Then the one that speaks has ended what hangs: rank 0,
 * which speaks early, waits until they have left, any other one speaks after that. */
#define STAY_S        2.0
#define FIRST_STAYS_S 3.0
#define NEWS_S        1.0
enum { CLOSE_S = 1 };

struct used_key {
    struct used_key *next;
    char name[];
};

struct eth_hpp_bootstrap {
    const struct eth_hpp_bootstrap_ops *ops;
    void *state;
    struct eth_hpp_bootstrap_place place;
    struct used_key *used;
    int round; /* of the task: PMIx may show others an old value of a key that is put again */
};

int eth_hpp_bootstrap_environment(const char *name)
{
    const char *text = getenv(name);
    if (text == NULL || *text < '0' || *text > '9')
        return -1;
    char *end;
    long value = strtol(text, &end, 10);
    return *end == '\0' && value <= INT_MAX ? (int)value : -1;
}

enum eth_hpp_status eth_hpp_bootstrap_create(const struct eth_hpp_bootstrap_ops *ops, void *state,
                                             const struct eth_hpp_bootstrap_place *place,
                                             struct eth_hpp_bootstrap **bootstrap,
                                             struct eth_hpp_error *err)
{
    struct eth_hpp_bootstrap *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return eth_hpp_error_memory(err, "the bootstrap");
    b->ops = ops;
    b->state = state;
    b->place = *place;
    *bootstrap = b;
    return ETH_HPP_OK;
}

/* Tasks of the Slurm step that this process was started in; 1 outside of a step. A batch script has
 * the job's SLURM_NTASKS in its environment too, but only a step's tasks have SLURM_STEP_NUM_TASKS.
 */
static int step_tasks(void)
{
    int tasks = eth_hpp_bootstrap_environment("SLURM_STEP_NUM_TASKS");
    return tasks > 1 && getenv("SLURM_STEP_ID") != NULL ? tasks : 1;
}

/* Whoever sees no server of a step of several tasks would be one of as many trainings. */
static enum eth_hpp_status refuse(int tasks, bool pmix, struct eth_hpp_error *err)
{
#ifndef HAVE_PMIX
    if (pmix)
        return eth_hpp_error_set(
            err, ETH_HPP_ERR_UNSUPPORTED,
            "this step has %d tasks, but eth-hpp was built without PMIx, which they need to find "
            "each other: install libpmix-dev and build it again, or start it with srun --mpi=pmi2",
            tasks);
#endif
    (void)pmix;
    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                             "this step has %d tasks, but they cannot find each other: start it "
                             "with srun --mpi=pmix, or --mpi=pmi2 where Slurm has no PMIx",
                             tasks);
}

static enum eth_hpp_status choose(const struct eth_hpp_bootstrap_ops **ops, void **state,
                                  int *round, struct eth_hpp_bootstrap_place *place,
                                  struct eth_hpp_error *err)
{
    const int tasks = step_tasks();
    /* Some other starter than Slurm (mpirun) may have set PMIX_RANK as well. */
    const bool pmix = getenv("PMIX_NAMESPACE") != NULL && getenv("PMIX_RANK") != NULL;
    enum eth_hpp_status status = ETH_HPP_OK;
    bool reachable = false;
#ifdef HAVE_PMIX
    if (pmix) {
        *ops = &eth_hpp_bootstrap_pmix_ops;
        status = eth_hpp_bootstrap_pmix_open(state, place, round, &reachable, err);
        if (status != ETH_HPP_OK || reachable)
            return status;
    }
#endif
    if (getenv("PMI_FD") != NULL && getenv("SLURM_STEP_ID") != NULL) {
        *ops = &eth_hpp_bootstrap_pmi2_ops;
        status = eth_hpp_bootstrap_pmi2_open(state, place, round, &reachable, err);
        if (status != ETH_HPP_OK || reachable)
            return status;
    }
    if (tasks > 1)
        return refuse(tasks, pmix, err);
    *ops = &eth_hpp_bootstrap_single_ops;
    return eth_hpp_bootstrap_single_open(state, place, err);
}

enum eth_hpp_status eth_hpp_bootstrap_open(struct eth_hpp_bootstrap **bootstrap,
                                           struct eth_hpp_error *err)
{
    const struct eth_hpp_bootstrap_ops *ops = NULL;
    void *state = NULL;
    struct eth_hpp_bootstrap_place place = {.rank = 0};
    enum eth_hpp_status status;
    int round = 0;

    if (gethostname(place.host, sizeof(place.host) - 1) != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "the host's name cannot be read: %m");
    status = choose(&ops, &state, &round, &place, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_bootstrap_create(ops, state, &place, bootstrap, err);
    if (status != ETH_HPP_OK)
        ops->close(state);
    else
        (*bootstrap)->round = round;
    return status;
}

void eth_hpp_bootstrap_close(struct eth_hpp_bootstrap *bootstrap)
{
    if (bootstrap == NULL)
        return;
    bootstrap->ops->close(bootstrap->state);
    while (bootstrap->used != NULL) {
        struct used_key *next = bootstrap->used->next;
        free(bootstrap->used);
        bootstrap->used = next;
    }
    free(bootstrap);
}

const struct eth_hpp_bootstrap_place *
eth_hpp_bootstrap_get_place(const struct eth_hpp_bootstrap *bootstrap)
{
    return &bootstrap->place;
}

static enum eth_hpp_status use_key(struct eth_hpp_bootstrap *bootstrap, const char *key,
                                   struct eth_hpp_error *err)
{
    if (strlen(key) > ETH_HPP_BOOTSTRAP_KEY_MAX)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL, "the key %s is too long", key);
    for (struct used_key *used = bootstrap->used; used != NULL; used = used->next)
        if (strcmp(used->name, key) == 0)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL,
                                     "the key %s has been published already", key);
    struct used_key *used = malloc(sizeof(*used) + strlen(key) + 1);
    if (used == NULL)
        return eth_hpp_error_memory(err, "a key of the bootstrap");
    strcpy(used->name, key);
    used->next = bootstrap->used;
    bootstrap->used = used;
    return ETH_HPP_OK;
}

enum { NAME_MAX_BYTES = ETH_HPP_BOOTSTRAP_KEY_MAX + 48 };

/* A value is stored as "eth-hpp.ROUND.key" (its size as eight bytes) and the same with ".0", ".1",
 * ... (its chunks). */
static void size_name(char *name, const struct eth_hpp_bootstrap *bootstrap, const char *key)
{
    snprintf(name, NAME_MAX_BYTES, "eth-hpp.%d.%s", bootstrap->round, key);
}

static void chunk_name(char *name, const struct eth_hpp_bootstrap *bootstrap, const char *key,
                       size_t i)
{
    snprintf(name, NAME_MAX_BYTES, "eth-hpp.%d.%s.%zu", bootstrap->round, key, i);
}

enum eth_hpp_status eth_hpp_bootstrap_put(struct eth_hpp_bootstrap *bootstrap, const char *key,
                                          const void *value, size_t size, struct eth_hpp_error *err)
{
    const struct eth_hpp_bootstrap_ops *ops = bootstrap->ops;
    size_t most = ops->value_max != 0 ? ops->value_max : size;
    uint64_t total = size;

    if (size > ETH_HPP_BOOTSTRAP_VALUE_MAX)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL,
                                 "the value of %s has %zu bytes, at most %d can be published", key,
                                 size, ETH_HPP_BOOTSTRAP_VALUE_MAX);
    enum eth_hpp_status status = use_key(bootstrap, key, err);
    char name[NAME_MAX_BYTES];
    size_name(name, bootstrap, key);
    if (status == ETH_HPP_OK)
        status = ops->put(bootstrap->state, name, &total, sizeof(total), err);
    for (size_t at = 0, i = 0; status == ETH_HPP_OK && at < size; at += most, i++) {
        chunk_name(name, bootstrap, key, i);
        status = ops->put(bootstrap->state, name, (const char *)value + at,
                          size - at < most ? size - at : most, err);
    }
    return status;
}

enum eth_hpp_status eth_hpp_bootstrap_fence(struct eth_hpp_bootstrap *bootstrap, double timeout_s,
                                            struct eth_hpp_error *err)
{
    return bootstrap->ops->fence(bootstrap->state, timeout_s, err);
}

static enum eth_hpp_status get_size(struct eth_hpp_bootstrap *bootstrap, int rank, const char *key,
                                    size_t *size, struct eth_hpp_error *err)
{
    void *found;
    size_t found_size;
    uint64_t total = UINT64_MAX;
    char name[NAME_MAX_BYTES];
    size_name(name, bootstrap, key);
    enum eth_hpp_status status =
        bootstrap->ops->get(bootstrap->state, rank, name, &found, &found_size, err);
    if (status != ETH_HPP_OK)
        return status;
    if (found_size == sizeof(total))
        memcpy(&total, found, sizeof(total));
    free(found);
    if (total > ETH_HPP_BOOTSTRAP_VALUE_MAX)
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER,
                                 "rank %d published %s in another format: is another version of "
                                 "eth-hpp installed there?",
                                 rank, key);
    *size = (size_t)total;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_bootstrap_get(struct eth_hpp_bootstrap *bootstrap, int rank,
                                          const char *key, void **value, size_t *size,
                                          struct eth_hpp_error *err)
{
    size_t total = 0;
    enum eth_hpp_status status = get_size(bootstrap, rank, key, &total, err);
    if (status != ETH_HPP_OK)
        return status;
    char *all = malloc(total + 1); /* a NUL behind it, for texts */
    if (all == NULL)
        return eth_hpp_error_memory(err, "a value of the bootstrap");
    for (size_t at = 0, i = 0; status == ETH_HPP_OK && at < total; i++) {
        char name[NAME_MAX_BYTES];
        void *chunk;
        size_t chunk_size;
        chunk_name(name, bootstrap, key, i);
        status = bootstrap->ops->get(bootstrap->state, rank, name, &chunk, &chunk_size, err);
        if (status != ETH_HPP_OK)
            break;
        if (chunk_size == 0 || chunk_size > total - at)
            status = eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "rank %d published %s cut wrongly",
                                       rank, key);
        else
            memcpy(all + at, chunk, chunk_size);
        at += chunk_size;
        free(chunk);
    }
    if (status != ETH_HPP_OK) {
        free(all);
        return status;
    }
    all[total] = '\0';
    *value = all;
    *size = total;
    return ETH_HPP_OK;
}

static void *close_aside(void *bootstrap)
{
    eth_hpp_bootstrap_close(bootstrap);
    return NULL;
}

/* Leaves in order, or not at all: a server that tries to reach a node that is gone answers nobody
 * for long. */
static void leave(struct eth_hpp_bootstrap *bootstrap)
{
    pthread_t thread;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += CLOSE_S;
    if (pthread_create(&thread, NULL, close_aside, bootstrap) == 0)
        pthread_timedjoin_np(thread, NULL, &until);
}

void eth_hpp_bootstrap_fail(struct eth_hpp_bootstrap *bootstrap, const struct eth_hpp_error *error)
{
    const int exit_code = eth_hpp_error_exit_code(error->status);
    const struct eth_hpp_bootstrap_place *place = &bootstrap->place;
    if (error->status == ETH_HPP_ERR_PEER) {
        /* Mostly the death of another rank, for which the step is being ended with its own line. */
        eth_hpp_step_end_listen();
        eth_hpp_step_end_pause(NEWS_S, true);
        if (eth_hpp_step_end_heard())
            _exit(exit_code);
    }
    if (error->status != ETH_HPP_ERR_TIMEOUT) {
        eth_hpp_log_error("rank %d on %s: %s", place->rank, place->host, error->text);
        eth_hpp_bootstrap_abort(bootstrap, exit_code, error->text);
    }
    const bool speaks = error->text[0] != '\0';
    if (speaks)
        eth_hpp_log_error("%s", error->text);
    eth_hpp_step_end_listen();
    const bool first_stays = bootstrap->ops->asks && place->rank == 0;
    eth_hpp_step_end_pause(!speaks ? STAY_S : first_stays ? FIRST_STAYS_S : 0, !speaks);
    /* At once, and only then in order: leaving may take a second, after which it would be another
     * rank's turn to speak. */
    if (speaks && !eth_hpp_step_end_ask())
        eth_hpp_bootstrap_abort(bootstrap, exit_code, error->text);
    leave(bootstrap);
    _exit(exit_code);
}

void eth_hpp_bootstrap_end_stragglers(int exit_code)
{
    struct eth_hpp_bootstrap *bootstrap;
    eth_hpp_step_end_listen();
    if (!eth_hpp_step_end_ask() && eth_hpp_bootstrap_open(&bootstrap, NULL) == ETH_HPP_OK)
        eth_hpp_bootstrap_abort(bootstrap, exit_code, "a rank does not end");
    _exit(exit_code);
}

void eth_hpp_bootstrap_abort(struct eth_hpp_bootstrap *bootstrap, int exit_code, const char *why)
{
    bootstrap->ops->abort(bootstrap->state, exit_code, why);
    _exit(exit_code);
}
