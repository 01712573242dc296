/*
 * Emulated: the ranks of a job as processes forked by a test, which find each other through shared
 * memory in place of PMIx. Everything else (transport, runtime) is real.
 */
#ifndef ETH_HPP_TESTS_RANKS_H
#define ETH_HPP_TESTS_RANKS_H

#include <stdio.h>

#include "bootstrap/bootstrap.h"

enum { RANKS_MAX = 8 };

/* What a rank does; its result is the exit code of its process. */
typedef int (*rank_main)(struct eth_hpp_bootstrap *bootstrap, void *user);

struct ranks_result {
    int exit_code[RANKS_MAX]; /* 128 + signal where one ended it */
    double seconds;
    char log[8192]; /* what all of them wrote to standard error */
};

/* Runs `count` ranks and waits for them; those still there after `limit_s` are killed (137). */
void ranks_run(int count, rank_main body, void *user, double limit_s, struct ranks_result *result);

/* In a rank: from now on its process seems to run on another machine, by the boot id that it sees;
 * before it opens a transport. False where that is not allowed. */
bool ranks_move_to_machine(int number);
bool ranks_can_move(void);

/* How often `text` stands in the log. */
int ranks_log_count(const struct ranks_result *result, const char *text);

/* In a rank: ends it with exit code 99 and a line on standard error where a condition is false. */
#define RANK_CHECK(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s:", __FILE__, __LINE__, #condition);                         \
            fprintf(stderr, " " __VA_ARGS__);                                                      \
            fputc('\n', stderr);                                                                   \
            _exit(99);                                                                             \
        }                                                                                          \
    } while (0)

#endif
