/*
 * The one error type. A function that can fail returns a status, writes its outputs only on
 * success, and on failure leaves a text that a user can act on: which file or rank, which place in
 * it, what to do.
 */
#ifndef ETH_HPP_BASE_ERROR_H
#define ETH_HPP_BASE_ERROR_H

#include "eth_hpp.h"

#define ETH_HPP_PRINTF(text, first) __attribute__((format(printf, text, first)))

/* Exit codes of every program of the project, documented in eth-hpp(1). */
enum eth_hpp_exit {
    ETH_HPP_EXIT_OK = 0,
    ETH_HPP_EXIT_FAILURE = 1,    /* something failed while running: a peer, the disk, the system */
    ETH_HPP_EXIT_USAGE = 2,      /* a command line, a file or a setting that cannot be used */
    ETH_HPP_EXIT_INFEASIBLE = 3, /* no plan fits the devices */
    ETH_HPP_EXIT_SIGNAL = 128    /* + the signal that ended the program */
};

/* Fills err (which may be NULL) with a status and a formatted text; returns the status, so that a
 * caller can write `return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, ...)`. Over-long text is cut.
 */
enum eth_hpp_status eth_hpp_error_set(struct eth_hpp_error *err, enum eth_hpp_status status,
                                      const char *format, ...) ETH_HPP_PRINTF(3, 4);

/* Puts "prefix: " in front of err's text and keeps its status, which it returns. */
enum eth_hpp_status eth_hpp_error_prefix(struct eth_hpp_error *err, const char *format, ...)
    ETH_HPP_PRINTF(2, 3);

/* The error of an allocation that failed: `what` names what it was for. */
enum eth_hpp_status eth_hpp_error_memory(struct eth_hpp_error *err, const char *what);

/* The exit code that a program ends with for this status. */
int eth_hpp_error_exit_code(enum eth_hpp_status status);

#endif
