/* Is the test run in valgrind? It makes computing a hundred times slower, knows no pidfd_open and
 * prints lines of its own, so tests of time, of how a rank's death is noticed and of what is logged
 * show nothing there. */
#ifndef ETH_HPP_TESTS_VALGRIND_H
#define ETH_HPP_TESTS_VALGRIND_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline bool in_valgrind(void)
{
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded != NULL && strstr(preloaded, "vgpreload") != NULL;
}

/* Ends a test that valgrind cannot show, and says why. */
#define skip_in_valgrind(why)                                                                      \
    do {                                                                                           \
        if (in_valgrind()) {                                                                       \
            print_message("# skipped in valgrind: %s\n", why);                                     \
            skip();                                                                                \
        }                                                                                          \
    } while (0)

#endif
