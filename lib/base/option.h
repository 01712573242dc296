/*
 * The one option table. A table of `struct eth_hpp_option` describes options once; srun's
 * --eth-hpp-NAME, the environment's ETH_HPP_NAME, plugstack.conf keys, the flags --NAME of the
 * subcommands, --help and the manual page are all made from it. Precedence: default < plugstack <
 * environment < option.
 */
#ifndef ETH_HPP_BASE_OPTION_H
#define ETH_HPP_BASE_OPTION_H

#include <stdio.h>

#include "base/error.h"

enum eth_hpp_option_kind {
    ETH_HPP_OPTION_FLAG, /* no argument; "yes"/"no"/"1"/"0" in the environment */
    ETH_HPP_OPTION_TEXT, /* any text of 1..4095 bytes without control characters */
    ETH_HPP_OPTION_FILE, /* a path, resolved against the working directory by the user's own process
                          */
    ETH_HPP_OPTION_COUNT,  /* a whole number within least..most */
    ETH_HPP_OPTION_NUMBER, /* a real number within least..most */
    ETH_HPP_OPTION_CHOICE  /* one of `choices`, separated by '|' */
};

struct eth_hpp_option {
    const char *name; /* "global-batch" */
    enum eth_hpp_option_kind kind;
    const char *argument; /* "N", for --help; NULL for a flag */
    const char *help;     /* one line */
    double least, most;   /* COUNT and NUMBER */
    const char *choices;  /* CHOICE */
    const char *fallback; /* the default as text, or NULL for none */
    const char *alone;    /* what the option means where no "=value" follows it; it then never takes
                             the next word. NULL: it needs a value */
    /* The same option in another table: all but the help, where this one has its own, is taken from
     * there. NULL: an option of its own. */
    const struct eth_hpp_option *like;
};

enum eth_hpp_option_source {
    ETH_HPP_FROM_DEFAULT,
    ETH_HPP_FROM_PLUGSTACK,
    ETH_HPP_FROM_ENVIRONMENT,
    ETH_HPP_FROM_OPTION
};

struct eth_hpp_option_value {
    char *text;    /* NULL: not set and no default */
    double number; /* COUNT, NUMBER; FLAG: 0 or 1; CHOICE: index of the choice */
    enum eth_hpp_option_source source;
};

/* A table and its values, index by index. The table is the set's own copy, with nothing left to be
 * taken from other tables. */
struct eth_hpp_option_set {
    struct eth_hpp_option *table;
    size_t count;
    struct eth_hpp_option_value *values;
};

/* The options of a job, which the plugin and `launch` have; other commands' are like some of them.
 */
enum eth_hpp_job_option {
    ETH_HPP_JOB_MODEL, /* srun: the argument of --eth-hpp itself */
    ETH_HPP_JOB_GLOBAL_BATCH,
    ETH_HPP_JOB_SEQ,
    ETH_HPP_JOB_DTYPE,
    ETH_HPP_JOB_PLAN,
    ETH_HPP_JOB_SAVE_PLAN,
    ETH_HPP_JOB_PROFILE,
    ETH_HPP_JOB_CALIBRATE,
    ETH_HPP_JOB_DRY_RUN,
    ETH_HPP_JOB_VERBOSE,
    ETH_HPP_JOB_OPTIONS
};
extern const struct eth_hpp_option eth_hpp_job_options[ETH_HPP_JOB_OPTIONS];

/* Sets every value to its default. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_option_set_init(struct eth_hpp_option_set *set,
                                            const struct eth_hpp_option *table, size_t count,
                                            struct eth_hpp_error *err);
void eth_hpp_option_set_free(struct eth_hpp_option_set *set);

/* Index of an option by its name, or -1. */
int eth_hpp_option_find(const struct eth_hpp_option_set *set, const char *name);

/* Checks the text against the option's kind and stores it, unless a stronger source has set it
 * already. A NULL text is a flag that was given. The error text says what is allowed; it does not
 * name the option, callers do (each has its own spelling). */
enum eth_hpp_status eth_hpp_option_assign(struct eth_hpp_option_set *set, size_t index,
                                          const char *text, enum eth_hpp_option_source source,
                                          struct eth_hpp_error *err);

/* Reads ETH_HPP_NAME for every option; an empty variable counts as unset. The error names the
 * variable. */
enum eth_hpp_status eth_hpp_option_from_environment(struct eth_hpp_option_set *set,
                                                    struct eth_hpp_error *err);

/* Writes the environment name of an option, e.g. "ETH_HPP_GLOBAL_BATCH". */
void eth_hpp_option_environment_name(const struct eth_hpp_option *option, char *name, size_t size);

/* Parses --name=value, --name value and flags up to the first word that is no option, or "--".
 * *rest becomes the index of the first word left over. Unknown options are refused with the nearest
 * name as a hint. *help is set by --help. */
enum eth_hpp_status eth_hpp_option_parse(struct eth_hpp_option_set *set, int argc, char **argv,
                                         int *rest, bool *help, struct eth_hpp_error *err);

/* Prints the options, a line each, as --help shows them. */
void eth_hpp_option_print(const struct eth_hpp_option_set *set, FILE *out);

/* Shorthands for reading. */
const char *eth_hpp_option_text(const struct eth_hpp_option_set *set, size_t index);
double eth_hpp_option_number(const struct eth_hpp_option_set *set, size_t index);
bool eth_hpp_option_flag(const struct eth_hpp_option_set *set, size_t index);

#endif
