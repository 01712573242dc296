/* slurmstepd: the end of a step that a rank has died in, asked for as the user whose step it is. */
#include "spank/plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WORD_BYTES = 64, PATH_BYTES = 512 };

#define FORK_S 1.0
/* Slurm's own commands wait as long for an answer. */
#define SCANCEL_S 10.0

/* Its user may stop the process: it would stay, beyond the step, as the user's outside of a job. */
static void run_for_a_while(uid_t user, gid_t group, char *const argv[], char *const environment[])
{
    int status;
    const pid_t keeper = getpid();
    eth_hpp_child_close_from(0); /* whoever is at slurmstepd's other ends waits for that */
    const pid_t child = fork();
    if (child == 0)
        eth_hpp_child_exec(user, group, keeper, -1, -1, argv, environment);
    if (child > 0)
        eth_hpp_child_collect(child, SCANCEL_S, &status);
}

void eth_hpp_step_end(spank_t spank)
{
    int status;
    uint32_t job, step;
    uid_t user;
    gid_t group;
    char target[WORD_BYTES], configuration[PATH_BYTES];
    char *const argv[] = {(char *)ETH_HPP_SCANCEL, (char *)"--quiet", (char *)"--signal=TERM",
                          target, NULL};
    /* slurmd's own environment says where Slurm is configured; no user can write there. */
    const char *file = getenv("SLURM_CONF");
    char *const environment[] = {(char *)"LC_ALL=C", file != NULL ? configuration : NULL, NULL};
    if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_UID, &user) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_GID, &group) != ESPANK_SUCCESS ||
        snprintf(configuration, sizeof(configuration), "SLURM_CONF=%s", file != NULL ? file : "") >=
            (int)sizeof(configuration))
        return;
    snprintf(target, sizeof(target), "%u.%u", job, step);
    pid_t between = fork();
    if (between == 0) {
        /* A grandchild is nobody's here: slurmstepd neither waits for it nor finds it among its
         * tasks. */
        if (fork() == 0)
            run_for_a_while(user, group, argv, environment);
        _exit(0);
    }
    if (between > 0)
        eth_hpp_child_collect(between, FORK_S, &status);
}
