#include "kernels/cpu/threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The chunk that is to be taken next: the number of the loop in the upper half, the chunk's in the
 * lower. Both in one word, so that a thread that comes late cannot take a chunk of the next loop
 * for one of its own. */
static uint64_t ticket_of(uint64_t loop, uint64_t chunk)
{
    return loop << 32 | chunk;
}

static uint64_t loop_of(uint64_t ticket)
{
    return ticket >> 32;
}

struct eth_hpp_cpu_threads {
    pthread_t *others;
    int other_count;
    /* The loop. Late threads may read it while the next one is written, so all of it is atomic. */
    _Atomic(eth_hpp_cpu_part) part;
    _Atomic(const void *) work;
    atomic_size_t count, chunk;
    _Alignas(64) atomic_uint_least64_t ticket;
    _Alignas(64) atomic_size_t finished; /* chunks */
    /* Who sleeps does it here. */
    pthread_mutex_t mutex;
    pthread_cond_t started, ended;
    atomic_int sleeping;
    atomic_bool caller_sleeps, stop;
};

/* Loops follow each other within microseconds; only then is it worth not to sleep. */
enum { SPINS = 2000 };

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static size_t chunks_of(size_t count, size_t chunk)
{
    return (count + chunk - 1) / chunk;
}

/* Takes chunks of the loop until there is none left. */
static void take_chunks(struct eth_hpp_cpu_threads *threads, uint64_t loop)
{
    uint64_t ticket = atomic_load(&threads->ticket);
    while (loop_of(ticket) == loop) {
        const eth_hpp_cpu_part part = atomic_load(&threads->part);
        const void *work = atomic_load(&threads->work);
        const size_t count = atomic_load(&threads->count), chunk = atomic_load(&threads->chunk);
        const size_t first = (size_t)(ticket & UINT32_MAX) * chunk;
        if (first >= count)
            return;
        /* While a chunk is left the loop cannot end: what was read above is this loop's. */
        if (!atomic_compare_exchange_weak(&threads->ticket, &ticket, ticket + 1))
            continue;
        part(work, first, count - first < chunk ? count : first + chunk);
        const size_t finished = atomic_fetch_add(&threads->finished, 1) + 1;
        if (finished == chunks_of(count, chunk) && atomic_load(&threads->caller_sleeps)) {
            pthread_mutex_lock(&threads->mutex);
            pthread_cond_signal(&threads->ended);
            pthread_mutex_unlock(&threads->mutex);
        }
        ticket = atomic_load(&threads->ticket);
    }
}

/* Waits for another loop than the one last seen; false when there will be none. */
static bool await_loop(struct eth_hpp_cpu_threads *threads, uint64_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (loop_of(atomic_load(&threads->ticket)) != seen)
            return true;
        pause_briefly();
    }
    pthread_mutex_lock(&threads->mutex);
    atomic_fetch_add(&threads->sleeping, 1);
    while (!atomic_load(&threads->stop) && loop_of(atomic_load(&threads->ticket)) == seen)
        pthread_cond_wait(&threads->started, &threads->mutex);
    atomic_fetch_sub(&threads->sleeping, 1);
    pthread_mutex_unlock(&threads->mutex);
    return !atomic_load(&threads->stop);
}

static void *thread_main(void *at)
{
    struct eth_hpp_cpu_threads *threads = at;
    uint64_t loop = 0;
    while (await_loop(threads, loop)) {
        loop = loop_of(atomic_load(&threads->ticket));
        take_chunks(threads, loop);
    }
    return NULL;
}

static void await_end(struct eth_hpp_cpu_threads *threads, size_t chunks)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&threads->finished) == chunks)
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&threads->mutex);
    atomic_store(&threads->caller_sleeps, true);
    while (atomic_load(&threads->finished) != chunks)
        pthread_cond_wait(&threads->ended, &threads->mutex);
    atomic_store(&threads->caller_sleeps, false);
    pthread_mutex_unlock(&threads->mutex);
}

/* oneDNN's matrix products point the stack pointer into a buffer from the heap (seen in 2.6): the
 * frame of a signal's handler would overwrite what lies in front of it. So handlers wait for the
 * end of the loop, but for those of the computation's own faults. */
static void hold_signals(sigset_t *before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    sigset_t held;
    sigfillset(&held);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sigdelset(&held, faults[i]);
    pthread_sigmask(SIG_BLOCK, &held, before);
}

static void run(struct eth_hpp_cpu_threads *threads, size_t count, size_t chunk,
                eth_hpp_cpu_part part, const void *work)
{
    if (threads == NULL || count <= chunk) {
        for (size_t first = 0; first < count; first += chunk)
            part(work, first, count - first < chunk ? count : first + chunk);
        return;
    }
    const uint64_t before = loop_of(atomic_load(&threads->ticket));
    const uint64_t loop = (before + 1) & UINT32_MAX;
    /* A late thread of the loop before must not take its next chunk for one of this loop, whose
     * count it may read already. */
    atomic_store(&threads->ticket, ticket_of(before, UINT32_MAX));
    atomic_store(&threads->part, part);
    atomic_store(&threads->work, work);
    atomic_store(&threads->count, count);
    atomic_store(&threads->chunk, chunk);
    atomic_store(&threads->finished, 0);
    atomic_store(&threads->ticket, ticket_of(loop, 0));
    if (atomic_load(&threads->sleeping) > 0) {
        pthread_mutex_lock(&threads->mutex);
        pthread_cond_broadcast(&threads->started);
        pthread_mutex_unlock(&threads->mutex);
    }
    take_chunks(threads, loop);
    await_end(threads, chunks_of(count, chunk));
}

void eth_hpp_cpu_threads_run(struct eth_hpp_cpu_threads *threads, size_t count, size_t chunk,
                             eth_hpp_cpu_part part, const void *work)
{
    sigset_t before;
    hold_signals(&before);
    run(threads, count, chunk, part, work);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

enum eth_hpp_status eth_hpp_cpu_threads_start(int count, struct eth_hpp_cpu_threads **threads,
                                              struct eth_hpp_error *err)
{
    struct eth_hpp_cpu_threads *made = aligned_alloc(64, (sizeof(*made) + 63) / 64 * 64);
    if (made == NULL)
        return eth_hpp_error_memory(err, "threads");
    memset(made, 0, sizeof(*made));
    pthread_mutex_init(&made->mutex, NULL);
    pthread_cond_init(&made->started, NULL);
    pthread_cond_init(&made->ended, NULL);
    made->others = calloc((size_t)count, sizeof(*made->others));
    if (made->others == NULL) {
        eth_hpp_cpu_threads_stop(made);
        return eth_hpp_error_memory(err, "threads");
    }
    int failed = 0;
    sigset_t before;
    hold_signals(&before); /* of the new threads for good: signals are the program's own threads' */
    while (made->other_count < count - 1 && failed == 0) {
        failed = pthread_create(&made->others[made->other_count], NULL, thread_main, made);
        made->other_count += failed == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        eth_hpp_cpu_threads_stop(made);
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "cannot start %d threads: %s", count,
                                 strerror(failed));
    }
    *threads = made;
    return ETH_HPP_OK;
}

void eth_hpp_cpu_threads_stop(struct eth_hpp_cpu_threads *threads)
{
    if (threads == NULL)
        return;
    pthread_mutex_lock(&threads->mutex);
    atomic_store(&threads->stop, true);
    pthread_cond_broadcast(&threads->started);
    pthread_mutex_unlock(&threads->mutex);
    for (int i = 0; i < threads->other_count; i++)
        pthread_join(threads->others[i], NULL);
    pthread_cond_destroy(&threads->started);
    pthread_cond_destroy(&threads->ended);
    pthread_mutex_destroy(&threads->mutex);
    free(threads->others);
    free(threads);
}
