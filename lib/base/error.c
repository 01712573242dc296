#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum eth_hpp_status eth_hpp_error_set(struct eth_hpp_error *err, enum eth_hpp_status status,
                                      const char *format, ...)
{
    if (err != NULL) {
        /* The arguments may point into err->text, so the text is made beside it. */
        char text[sizeof(err->text)];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        memcpy(err->text, text, sizeof(text));
        err->status = status;
    }
    return status;
}

enum eth_hpp_status eth_hpp_error_prefix(struct eth_hpp_error *err, const char *format, ...)
{
    if (err == NULL)
        return ETH_HPP_ERR_INTERNAL;
    char prefix[sizeof(err->text)];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof(prefix), format, args);
    va_end(args);
    return eth_hpp_error_set(err, err->status, "%s: %s", prefix, err->text);
}

enum eth_hpp_status eth_hpp_error_memory(struct eth_hpp_error *err, const char *what)
{
    return eth_hpp_error_set(err, ETH_HPP_ERR_MEMORY, "out of memory for %s", what);
}

int eth_hpp_error_exit_code(enum eth_hpp_status status)
{
    switch (status) {
    case ETH_HPP_OK:
        return ETH_HPP_EXIT_OK;
    case ETH_HPP_ERR_INPUT:
    case ETH_HPP_ERR_UNSUPPORTED:
        return ETH_HPP_EXIT_USAGE;
    case ETH_HPP_ERR_INFEASIBLE:
        return ETH_HPP_EXIT_INFEASIBLE;
    default:
        return ETH_HPP_EXIT_FAILURE;
    }
}
