/*
 * The threads that CPU kernels share their loops among. A loop is cut into chunks whose borders do
 * not depend on the number of threads, and whoever is free takes the next one: results have the
 * same bits on any number of threads, and a thread that is held up holds up one chunk only.
 */
#ifndef ETH_HPP_KERNELS_CPU_THREADS_H
#define ETH_HPP_KERNELS_CPU_THREADS_H

#include "base/error.h"

struct eth_hpp_cpu_threads;

/* Computes the elements first..end-1 of a loop. */
typedef void (*eth_hpp_cpu_part)(const void *work, size_t first, size_t end);

/* Starts count - 1 threads beside the caller's. Errors: MEMORY, IO (the threads cannot be
 * started). */
enum eth_hpp_status eth_hpp_cpu_threads_start(int count, struct eth_hpp_cpu_threads **threads,
                                              struct eth_hpp_error *err);
/* NULL is fine. */
void eth_hpp_cpu_threads_stop(struct eth_hpp_cpu_threads *threads);

/* Calls part for all of 0..count-1, in chunks of `chunk` elements (the last may be shorter), and
 * returns when all are done; signals are held until then. NULL threads: all by the caller. One
 * caller at a time. */
void eth_hpp_cpu_threads_run(struct eth_hpp_cpu_threads *threads, size_t count, size_t chunk,
                             eth_hpp_cpu_part part, const void *work);

/* How many threads a process should use: $ETH_HPP_CPU_THREADS, else $OMP_NUM_THREADS, else the
 * cores that are its own (as thread_count.c reckons them). Errors: INPUT (ETH_HPP_CPU_THREADS is
 * not a number in 1..1024). */
enum eth_hpp_status eth_hpp_cpu_threads_count(int *count, struct eth_hpp_error *err);

#endif
