/* The subcommands of `eth-hpp`. Each is a file of its own; main.c has the table. */
#ifndef ETH_HPP_LAUNCHER_COMMAND_H
#define ETH_HPP_LAUNCHER_COMMAND_H

#include "base/dtype.h"
#include "base/error.h"
#include "base/option.h"

/* argv[0] is the subcommand's name; the exit code of the program is returned. */
int eth_hpp_command_checkpoint(int argc, char **argv);
int eth_hpp_command_inventory(int argc, char **argv);
int eth_hpp_command_simulate(int argc, char **argv);
int eth_hpp_command_launch(int argc, char **argv);
int eth_hpp_command_plan(int argc, char **argv);
int eth_hpp_command_profile(int argc, char **argv);
int eth_hpp_command_show(int argc, char **argv);
int eth_hpp_command_train(int argc, char **argv);

/* A subcommand that is described by its table of options. --help prints "usage: eth-hpp NAME
 * ARGUMENTS", what it does, and its options. */
struct eth_hpp_command {
    const char *name, *arguments, *what;
    const struct eth_hpp_option *table;
    size_t count;
    bool environment; /* ETH_HPP_* variables count too */
    bool words;       /* words may follow the options: they are given to run */
    bool mixed;       /* options may stand behind words, too */
    /* The exit code follows from the status; an error without a text has been logged already. */
    enum eth_hpp_status (*run)(const struct eth_hpp_option_set *set, int argc, char **argv,
                               struct eth_hpp_error *err);
};

/* Reads the options, prints the help or runs the command, and logs an error once. */
int eth_hpp_command_run(const struct eth_hpp_command *command, int argc, char **argv);

/* Is this the task of its Slurm step that says what is wrong for all of them? True outside of
 * Slurm.
 */
bool eth_hpp_command_is_first_task(void);

/* Does an option, where it is set, repeat what the plan has? INPUT where it contradicts it. A dtype
 * that is chosen automatically never does. */
enum eth_hpp_status eth_hpp_command_agrees(const struct eth_hpp_option_set *set, int option,
                                           int planned, struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_command_agrees_dtype(const struct eth_hpp_option_set *set, int option,
                                                 enum eth_hpp_dtype planned,
                                                 struct eth_hpp_error *err);

/* Logs the error once and gives the exit code that belongs to it. */
int eth_hpp_command_failed(const struct eth_hpp_error *err);

/* Before anything is opened: holds the numbers of closed standard streams, so that no file of the
 * program gets one of them and a message lands in it. Writing to a closed one still fails. */
void eth_hpp_command_hold_streams(void);

/* At the end: what was printed must have arrived. Gives `code` back, or that of a failure (said
 * once) where standard output lost something and nothing else went wrong. */
int eth_hpp_command_end(int code);

#endif
