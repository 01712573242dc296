/* slurmstepd: the end of a step that a rank has died in, asked for as the user whose step it is. */
#include "spank/plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORD_BYTES = 64, PATH_BYTES = 512 };

void eth_hpp_step_end(spank_t spank)
{
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
            eth_hpp_child_exec(user, group, 0, -1, -1, argv, environment);
        _exit(0);
    }
    if (between > 0)
        waitpid(between, NULL, 0);
}
