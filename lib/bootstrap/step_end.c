#include "bootstrap/step_end.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "bootstrap/component.h"

#define SCANCEL_S 1.0 /* for scancel to hand a signal over */
#define SLICE_S   0.02
/* For the first node to name those that are missing and end the job, and for each one after it,
 * which may have come to the exchange earlier; all from the last turn on have it at once. */
#define FIRST_TURN_S 3.0
#define TURN_S       2.5
enum { LAST_TURN = 3 };

extern char **environ;

static volatile sig_atomic_t heard;

static void hear(int signal_number)
{
    (void)signal_number;
    heard = 1;
}

void eth_hpp_step_end_listen(void)
{
    struct sigaction action = {.sa_handler = hear, .sa_flags = SA_RESTART};
    sigset_t term;
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_UNBLOCK, &term, NULL);
}

bool eth_hpp_step_end_heard(void)
{
    return heard != 0;
}

void eth_hpp_step_end_pause(double seconds, bool listening)
{
    const struct timespec slice = {.tv_nsec = (long)(SLICE_S * 1e9)};
    const double end = eth_hpp_clock_now() + seconds;
    while (eth_hpp_clock_now() < end && !(listening && heard))
        nanosleep(&slice, NULL);
}

/* Without the task's streams: as long as one is open the step does not end. With SIGTERM blocked:
 * scancel itself sends to one node after another, and as a process of the step gets the signal from
 * the first of them, maybe before it has come to the last. */
static bool start(char *const argv[], pid_t *child)
{
    posix_spawn_file_actions_t quiet;
    posix_spawnattr_t deaf;
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    if (posix_spawn_file_actions_init(&quiet) != 0)
        return false;
    bool started = posix_spawnattr_init(&deaf) == 0;
    if (started) {
        started =
            posix_spawnattr_setsigmask(&deaf, &blocked) == 0 &&
            posix_spawnattr_setflags(&deaf, POSIX_SPAWN_SETSIGMASK) == 0 &&
            posix_spawn_file_actions_addopen(&quiet, STDIN_FILENO, "/dev/null", O_RDWR, 0) == 0 &&
            posix_spawn_file_actions_adddup2(&quiet, STDIN_FILENO, STDOUT_FILENO) == 0 &&
            posix_spawn_file_actions_adddup2(&quiet, STDIN_FILENO, STDERR_FILENO) == 0 &&
            posix_spawnp(child, argv[0], &quiet, &deaf, argv, environ) == 0;
        posix_spawnattr_destroy(&deaf);
    }
    posix_spawn_file_actions_destroy(&quiet);
    return started;
}

/* Never longer than SCANCEL_S: Slurm's controller may be away. False where there is no scancel. */
static bool send(const char *signal_option, const char *step)
{
    char *const argv[] = {(char *)"scancel", (char *)"--quiet", (char *)signal_option, (char *)step,
                          NULL};
    pid_t child;
    if (!start(argv, &child))
        return false;
    for (double waited = 0; waitpid(child, NULL, WNOHANG) == 0 && waited < SCANCEL_S;
         waited += SLICE_S)
        eth_hpp_step_end_pause(SLICE_S, false);
    return true;
}

/* Goes on after this process has ended, as long as the step has not. */
static void kill_later(const char *step)
{
    char *const argv[] = {
        (char *)"sh", (char *)"-c",
        (char *)"trap '' TERM; sleep 3; exec scancel --quiet --signal=KILL \"$0\"", (char *)step,
        NULL};
    pid_t child;
    (void)start(argv, &child);
}

bool eth_hpp_step_end_ask(void)
{
    const int job = eth_hpp_bootstrap_environment("SLURM_JOB_ID");
    const int number = eth_hpp_bootstrap_environment("SLURM_STEP_ID");
    char step[32];
    if (job < 0 || number < 0)
        return false;
    snprintf(step, sizeof(step), "%d.%d", job, number);
    /* In this order: a step that has got SIGTERM may be over for Slurm, which then passes nothing
     * on. */
    if (!send("--signal=CONT", step))
        return false;
    kill_later(step);
    return send("--signal=TERM", step);
}

bool eth_hpp_step_end_turn(int turn)
{
    if (turn > 0)
        eth_hpp_step_end_pause(FIRST_TURN_S + TURN_S * ((turn < LAST_TURN ? turn : LAST_TURN) - 1),
                               true);
    return !eth_hpp_step_end_heard();
}
