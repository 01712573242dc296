#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/cpu/threads.h"

enum { THREADS_MAX = 1024 };

/* A variable's leading number (OMP_NUM_THREADS may be a list); 0 where it has none. */
static int number_in(const char *name)
{
    const char *text = getenv(name);
    const long number = text == NULL ? 0 : strtol(text, NULL, 10);
    return number < 1 || number > THREADS_MAX ? 0 : (int)number;
}

static int cores_allowed(void)
{
    cpu_set_t set;
    const int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    return cores > 0 ? cores : 1;
}

/* A process alone may use all the cores that it is let run on. Of several ranks each has the cores
 * that Slurm gave it: those asked for, or those it is bound to. Ranks that are not bound share the
 * node's, and take one each. */
static int cores_of_its_own(void)
{
    const int cores = cores_allowed(), asked = number_in("SLURM_CPUS_PER_TASK");
    const bool alone = number_in("SLURM_STEP_NUM_TASKS") <= 1 && number_in("WORLD_SIZE") <= 1;
    if (asked > 0)
        return asked < cores ? asked : cores;
    if (alone || cores < sysconf(_SC_NPROCESSORS_ONLN))
        return cores;
    return 1;
}

enum eth_hpp_status eth_hpp_cpu_threads_count(int *count, struct eth_hpp_error *err)
{
    const char *text = getenv("ETH_HPP_CPU_THREADS");
    if (text == NULL || *text == '\0') {
        const int common = number_in("OMP_NUM_THREADS");
        *count = common > 0 ? common : cores_of_its_own();
        return ETH_HPP_OK;
    }
    char *end;
    errno = 0;
    const long threads = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || threads < 1 || threads > THREADS_MAX)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "ETH_HPP_CPU_THREADS must be a number in 1..%d, is \"%s\"",
                                 THREADS_MAX, text);
    *count = (int)threads;
    return ETH_HPP_OK;
}
