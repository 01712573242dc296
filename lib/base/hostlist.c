#include "base/hostlist.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 95, DIGITS_MAX = 9 };

struct names {
    char **list;
    int count, room, most;
    const char *text; /* the whole hostlist, for messages */
};

static enum eth_hpp_status bad(const struct names *names, struct eth_hpp_error *err,
                               const char *what)
{
    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "hostlist \"%.64s\": %s", names->text, what);
}

static enum eth_hpp_status add_name(struct names *names, const char *name,
                                    struct eth_hpp_error *err)
{
    if (name[0] == '\0')
        return bad(names, err, "has an empty name");
    if (names->count == names->most)
        return bad(names, err, "has too many names");
    if (names->count == names->room) {
        int room = names->room == 0 ? 16 : names->room * 2;
        char **list = realloc(names->list, (size_t)room * sizeof(*list));
        if (list == NULL)
            return eth_hpp_error_memory(err, "a hostlist");
        names->list = list;
        names->room = room;
    }
    char *copy = strdup(name);
    if (copy == NULL)
        return eth_hpp_error_memory(err, "a hostlist");
    names->list[names->count++] = copy;
    return ETH_HPP_OK;
}

/* Reads a number of a range; its width is that of its text. */
static const char *read_number(const char *at, long *value, int *width)
{
    char *end;
    if (!isdigit((unsigned char)*at))
        return NULL;
    *value = strtol(at, &end, 10);
    *width = (int)(end - at);
    return *width <= DIGITS_MAX ? end : NULL;
}

/* `done` is the name so far, `rest` what follows of this entry (no comma outside brackets). */
static enum eth_hpp_status expand_entry(struct names *names, const char *done, const char *rest,
                                        struct eth_hpp_error *err)
{
    const char *open = strchr(rest, '['), *close = strchr(rest, ']');
    char name[NAME_MAX_BYTES + 1];
    if (open == NULL && close == NULL) {
        if ((size_t)snprintf(name, sizeof(name), "%s%s", done, rest) >= sizeof(name))
            return bad(names, err, "has a name longer than 95 bytes");
        return add_name(names, name, err);
    }
    if (open == NULL || close == NULL || close < open)
        return bad(names, err, "has a bracket without its partner");
    const char *at = open + 1;
    while (true) {
        long low, high;
        int width, width_high;
        at = read_number(at, &low, &width);
        high = low;
        if (at != NULL && *at == '-')
            at = read_number(at + 1, &high, &width_high);
        if (at == NULL || (*at != ',' && *at != ']') || high < low)
            return bad(names, err, "has a range that is not of the form [01-04,07]");
        for (long i = low; i <= high; i++) {
            if ((size_t)snprintf(name, sizeof(name), "%s%.*s%0*ld", done, (int)(open - rest), rest,
                                 width, i) >= sizeof(name))
                return bad(names, err, "has a name longer than 95 bytes");
            enum eth_hpp_status status = expand_entry(names, name, close + 1, err);
            if (status != ETH_HPP_OK)
                return status;
        }
        if (*at++ == ']')
            return ETH_HPP_OK;
    }
}

enum eth_hpp_status eth_hpp_hostlist_expand(const char *text, int most, char ***list, int *count,
                                            struct eth_hpp_error *err)
{
    struct names names = {.most = most, .text = text};
    enum eth_hpp_status status = ETH_HPP_OK;
    const char *at = text;
    while (status == ETH_HPP_OK) {
        const char *end = at;
        for (int depth = 0; *end != '\0' && (*end != ',' || depth > 0); end++)
            depth += (*end == '[') - (*end == ']');
        char *entry = strndup(at, (size_t)(end - at));
        status = entry != NULL ? expand_entry(&names, "", entry, err)
                               : eth_hpp_error_memory(err, "a hostlist");
        free(entry);
        if (*end == '\0')
            break;
        at = end + 1;
    }
    if (status != ETH_HPP_OK) {
        eth_hpp_hostlist_free(names.list, names.count);
        return status;
    }
    *list = names.list;
    *count = names.count;
    return ETH_HPP_OK;
}

void eth_hpp_hostlist_free(char **names, int count)
{
    for (int i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

/* ---- folding ---- */

/* Length of a name without its last digits (those that fit a number). */
static size_t stem(const char *name)
{
    size_t length = strlen(name), digits = 0;
    while (digits < length && digits < DIGITS_MAX &&
           isdigit((unsigned char)name[length - digits - 1]))
        digits++;
    return length - digits;
}

static bool same_stem(const char *a, const char *b)
{
    size_t length = stem(a);
    return a[length] != '\0' && length == stem(b) && strncmp(a, b, length) == 0 &&
           strlen(a) == strlen(b);
}

static bool follows(const char *a, const char *b)
{
    return same_stem(a, b) && atol(b + stem(b)) == atol(a + stem(a)) + 1;
}

char *eth_hpp_hostlist_fold(const char *const *names, int count)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL)
        return NULL;
    for (int i = 0; i < count;) {
        int end = i + 1; /* names i .. end-1 share a stem */
        while (end < count && same_stem(names[i], names[end]))
            end++;
        fputs(i > 0 ? "," : "", out);
        if (end - i == 1) {
            fputs(names[i++], out);
            continue;
        }
        fprintf(out, "%.*s[", (int)stem(names[i]), names[i]);
        for (int first = i; i < end; first = i) {
            for (i++; i < end && follows(names[i - 1], names[i]);)
                i++;
            fputs(names[first] + stem(names[first]), out);
            if (i - first > 1)
                fprintf(out, "-%s", names[i - 1] + stem(names[i - 1]));
            fputs(i < end ? "," : "]", out);
        }
    }
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
