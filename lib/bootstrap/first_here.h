/*
 * One of a user's processes on a host speaks for all of them. Not for others than the bootstrap.
 */
#ifndef ETH_HPP_BOOTSTRAP_FIRST_HERE_H
#define ETH_HPP_BOOTSTRAP_FIRST_HERE_H

#include <stdbool.h>

/* Takes a name, of 80 characters at most, that one process of this user's on this host can have,
 * until it ends. False where another one of this user's has it. What other users do with the name,
 * which they can know, is no matter. */
bool eth_hpp_first_here(const char *what);

#endif
