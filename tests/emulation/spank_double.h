/*
 * A double of Slurm's side of SPANK for unit tests: the functions that a plugin calls, working on
 * plain variables that a test sets and looks at. It emulates Slurm 22.05 as far as the plugin sees
 * it.
 */
#ifndef ETH_HPP_TESTS_SPANK_DOUBLE_H
#define ETH_HPP_TESTS_SPANK_DOUBLE_H

#include <stdint.h>
#include <sys/types.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

enum { SPANK_DOUBLE_OPTIONS = 32, SPANK_DOUBLE_VARIABLES = 32 };

struct spank_double {
    spank_context_t context;
    uint32_t job, step, rank;
    int exit_status;
    char *argv[8];
    int argc;
    struct spank_option options[SPANK_DOUBLE_OPTIONS]; /* what the plugin registered */
    int option_count;
    spank_err_t register_result;
    struct {
        char name[64], value[512];
    } variables[SPANK_DOUBLE_VARIABLES]; /* the job's environment */
    int variable_count;
    char log[2048];        /* lines for the user, as slurm_spank_log writes them */
    char daemon_log[2048]; /* lines of the daemon's log */
};

/* What the functions work on; a test clears it first. */
extern struct spank_double spank_double;

/* Calls the callback of a registered option; -1 where there is none of the name. */
int spank_double_give(const char *name, const char *argument);

/* A variable of the job's environment, or NULL. */
const char *spank_double_variable(const char *name);

#endif
