/*
 * Libraries that are opened when they are first needed: what plans, shows or launches starts faster
 * without those that compute and transfer.
 */
#ifndef ETH_HPP_BASE_LIBRARY_H
#define ETH_HPP_BASE_LIBRARY_H

#include "base/error.h"

/* Opens `file`, found as the dynamic loader finds what a program is linked with. It stays until the
 * process ends. `package` is what the message says to install where it is missing. Errors:
 * UNSUPPORTED. */
enum eth_hpp_status eth_hpp_library_open(const char *file, const char *package, void **library,
                                         struct eth_hpp_error *err);

/* Sets *function, a pointer to a function, to the one of that name in the library or in those that
 * it is linked with. Errors: UNSUPPORTED (there is none: `file` is of another version). */
enum eth_hpp_status eth_hpp_library_find(void *library, const char *file, const char *name,
                                         void *function, struct eth_hpp_error *err);

#endif
