/*
 * The one log: lines on standard error that start with "eth-hpp: ". A line is one write(2), so
 * lines of many ranks do not mix, and control characters are shown as \xNN, so that no input can
 * forge a line. What an error says is logged once, where it is decided that the program or the hook
 * fails.
 */
#ifndef ETH_HPP_BASE_LOG_H
#define ETH_HPP_BASE_LOG_H

#include "base/error.h"

enum eth_hpp_log_level {
    ETH_HPP_LOG_ERROR,
    ETH_HPP_LOG_WARNING,
    ETH_HPP_LOG_INFO,
    ETH_HPP_LOG_DEBUG
};

/* Lines above this level are dropped; INFO at the start. */
void eth_hpp_log_set_level(enum eth_hpp_log_level level);

/* Put between "eth-hpp: " and the message from now on, e.g. "rank 5 on gpu017: "; at most 127
 * bytes, "" for none. */
void eth_hpp_log_set_origin(const char *origin);

/* The plugin sends its lines through Slurm instead; NULL restores standard error. The text has no
 * newline. */
typedef void (*eth_hpp_log_sink)(enum eth_hpp_log_level level, const char *line);
void eth_hpp_log_set_sink(eth_hpp_log_sink sink);

void eth_hpp_log_error(const char *format, ...) ETH_HPP_PRINTF(1, 2);
void eth_hpp_log_warning(const char *format, ...) ETH_HPP_PRINTF(1, 2);
void eth_hpp_log_info(const char *format, ...) ETH_HPP_PRINTF(1, 2);
void eth_hpp_log_debug(const char *format, ...) ETH_HPP_PRINTF(1, 2);

#endif
