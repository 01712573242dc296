#include "base/json_keys.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* json-c keeps the last of two equal keys in silence, so the text itself is searched: a strict scan
 * of an already valid document that compares the keys of each object. */
struct key {
    const char *text;
    size_t length;
    int depth;
};

static const char *skip_string(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++)
        if (*p == '\\')
            p++;
    return p;
}

/* The next character of a key, or -1 at its end. Escapes of ASCII characters are undone: "a" and
 * "\u0061" are one key. */
static int next_character(const char **at, const char *end)
{
    static const char escapes[] = "bfnrt", meant[] = "\b\f\n\r\t";
    if (*at >= end)
        return -1;
    int c = (unsigned char)*(*at)++;
    if (c != '\\' || *at >= end)
        return c;
    c = (unsigned char)*(*at)++;
    if (c == 'u') {
        char digits[5] = {0};
        for (int i = 0; i < 4 && *at < end; i++)
            digits[i] = *(*at)++;
        return (int)strtol(digits, NULL, 16);
    }
    const char *found = strchr(escapes, c);
    return found != NULL ? meant[found - escapes] : c;
}

static int compare_keys(const void *left, const void *right)
{
    const struct key *a = left, *b = right;
    const char *at_a = a->text, *at_b = b->text;
    int x, y;
    do {
        x = next_character(&at_a, a->text + a->length);
        y = next_character(&at_b, b->text + b->length);
    } while (x == y && x >= 0);
    return x - y;
}

struct key_stack {
    struct key *keys;
    size_t count, room;
    size_t first[ETH_HPP_JSON_DEPTH_MAX + 2]; /* first key of the open object at each depth */
};

static bool push_key(struct key_stack *stack, const char *text, size_t length)
{
    if (stack->count == stack->room) {
        size_t room = stack->room == 0 ? 64 : stack->room * 2;
        struct key *keys = realloc(stack->keys, room * sizeof(*keys));
        if (keys == NULL)
            return false;
        stack->keys = keys;
        stack->room = room;
    }
    stack->keys[stack->count++] = (struct key){.text = text, .length = length};
    return true;
}

/* Closes the object at `depth`: the first key that stands twice in it, or NULL. */
static const struct key *close_object(struct key_stack *stack, int depth)
{
    size_t first = stack->first[depth], n = stack->count - first;
    const struct key *twice = NULL;
    if (n == 0)
        return NULL;
    qsort(stack->keys + first, n, sizeof(struct key), compare_keys);
    for (size_t i = first; twice == NULL && i + 1 < stack->count; i++)
        if (compare_keys(&stack->keys[i], &stack->keys[i + 1]) == 0)
            twice = &stack->keys[i];
    stack->count = first;
    return twice;
}

bool eth_hpp_json_is_hollow(const char *text, size_t size)
{
    enum { FREE = 1000, BYTES_EACH = 6 };
    const char *end = text + size;
    size_t opened = 0;
    for (const char *p = text; p < end; p++) {
        if (*p == '"')
            p = skip_string(p, end);
        else
            opened += *p == '{' || *p == '[';
    }
    return opened > FREE + size / BYTES_EACH;
}

bool eth_hpp_json_find_duplicate_key(const char *text, size_t size, const char **key,
                                     size_t *length)
{
    struct key_stack stack = {0};
    const char *end = text + size;
    const struct key *twice = NULL;
    int depth = 0;
    for (const char *p = text; p < end && twice == NULL; p++) {
        if (*p == '"') {
            const char *close = skip_string(p, end), *after = close + 1;
            while (after < end && isspace((unsigned char)*after))
                after++;
            if (after < end && *after == ':' && !push_key(&stack, p + 1, (size_t)(close - p - 1)))
                break;
            p = close;
        } else if ((*p == '{' || *p == '[') && depth <= ETH_HPP_JSON_DEPTH_MAX) {
            stack.first[++depth] = stack.count;
        } else if ((*p == '}' || *p == ']') && depth > 0) {
            twice = close_object(&stack, depth--);
        }
    }
    if (twice != NULL) {
        *key = twice->text;
        *length = twice->length;
    }
    free(stack.keys);
    return twice != NULL;
}
