/* The subcommands of `eth-hpp`. Each is a file of its own; main.c has the table. */
#ifndef ETH_HPP_LAUNCHER_COMMAND_H
#define ETH_HPP_LAUNCHER_COMMAND_H

#include "base/error.h"
#include "base/option.h"

/* argv[0] is the subcommand's name; the exit code of the program is returned:
 *     int eth_hpp_command_NAME(int argc, char **argv); */

/* Prints "usage: eth-hpp NAME ARGUMENTS", what it does, and its options. */
void eth_hpp_command_help(const char *name, const char *arguments, const char *what,
                          const struct eth_hpp_option *table, size_t count);

/* Logs the error once and gives the exit code that belongs to it. */
int eth_hpp_command_failed(const struct eth_hpp_error *err);

#endif
