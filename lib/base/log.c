#include "base/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/control.h"

enum { LINE_MAX_BYTES = 2048 };

static enum eth_hpp_log_level log_level = ETH_HPP_LOG_INFO;
static char log_origin[128];

static void sink_stderr(enum eth_hpp_log_level level, const char *line)
{
    (void)level;
    char out[LINE_MAX_BYTES + 1];
    int n = snprintf(out, sizeof(out), "%s\n", line);
    if (n >= (int)sizeof(out)) {
        n = sizeof(out) - 1;
        out[n - 1] = '\n';
    }
    /* A log that cannot be written has nowhere to complain. */
    ssize_t written = write(STDERR_FILENO, out, (size_t)n);
    (void)written;
}

static eth_hpp_log_sink log_sink = sink_stderr;

void eth_hpp_log_set_level(enum eth_hpp_log_level level)
{
    log_level = level;
}

void eth_hpp_log_set_origin(const char *origin)
{
    snprintf(log_origin, sizeof(log_origin), "%s", origin);
}

void eth_hpp_log_set_sink(eth_hpp_log_sink sink)
{
    log_sink = sink != NULL ? sink : sink_stderr;
}

/* Appends text with control characters spelled out; returns the new length. */
static size_t append_visible(char *line, size_t length, const char *text)
{
    for (int control = 0; *text != '\0' && length + 5 < LINE_MAX_BYTES; text++) {
        if (control == 0)
            control = eth_hpp_control_bytes(text);
        if (control > 0) {
            length += (size_t)snprintf(line + length, LINE_MAX_BYTES - length, "\\x%02x",
                                       (unsigned char)*text);
            control--;
        } else {
            line[length++] = *text;
        }
    }
    line[length] = '\0';
    return length;
}

static void log_line(enum eth_hpp_log_level level, const char *label, const char *format,
                     va_list args)
{
    if (level > log_level)
        return;
    char text[LINE_MAX_BYTES];
    vsnprintf(text, sizeof(text), format, args);
    char line[LINE_MAX_BYTES] = "eth-hpp: ";
    size_t length = append_visible(line, strlen(line), log_origin);
    length = append_visible(line, length, label);
    append_visible(line, length, text);
    log_sink(level, line);
}

#define DEFINE_LEVEL(name, level, label)                                                           \
    void name(const char *format, ...)                                                             \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, format);                                                                    \
        log_line(level, label, format, args);                                                      \
        va_end(args);                                                                              \
    }

DEFINE_LEVEL(eth_hpp_log_error, ETH_HPP_LOG_ERROR, "")
DEFINE_LEVEL(eth_hpp_log_warning, ETH_HPP_LOG_WARNING, "warning: ")
DEFINE_LEVEL(eth_hpp_log_info, ETH_HPP_LOG_INFO, "")
DEFINE_LEVEL(eth_hpp_log_debug, ETH_HPP_LOG_DEBUG, "debug: ")
