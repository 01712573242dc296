/* Reading the values of a document, each with its place. */
#include "base/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/control.h"

/* ---- places ---- */

/* Appends to a path; where it gets too long, the middle gives way so that the end stays readable.
 */
static void path_append(char *path, size_t size, const char *format, ...) ETH_HPP_PRINTF(3, 4);
static void path_append(char *path, size_t size, const char *format, ...)
{
    char tail[128];
    va_list args;
    va_start(args, format);
    vsnprintf(tail, sizeof(tail), format, args);
    va_end(args);
    size_t used = strlen(path), more = strlen(tail);
    if (used + more + 1 > size) {
        used = size - more - 1;
        if (used >= 3)
            memcpy(path + used - 3, "...", 3);
    }
    memcpy(path + used, tail, more + 1);
}

static struct eth_hpp_json child(const struct eth_hpp_json *at, struct json_object *value)
{
    struct eth_hpp_json out = *at;
    out.value = value;
    return out;
}

static struct eth_hpp_json member(const struct eth_hpp_json *object, const char *key)
{
    struct json_object *value = NULL;
    if (json_object_is_type(object->value, json_type_object))
        json_object_object_get_ex(object->value, key, &value);
    struct eth_hpp_json out = child(object, value);
    path_append(out.path, sizeof(out.path), "%s%.100s", object->path[0] != '\0' ? "." : "", key);
    return out;
}

/* ---- objects ---- */

void eth_hpp_json_format(const struct eth_hpp_json *object, const char *format, int version)
{
    const char *found = eth_hpp_json_string(object, "format", 64);
    if (!eth_hpp_json_failed(object) && strcmp(found, format) != 0) {
        struct eth_hpp_json at = member(object, "format");
        eth_hpp_json_fail(&at, "must be \"%s\", is \"%s\"", format, found);
    }
    int64_t number = eth_hpp_json_integer(object, "version", 1, INT32_MAX);
    if (!eth_hpp_json_failed(object) && number > version) {
        struct eth_hpp_json at = member(object, "version");
        eth_hpp_json_fail(
            &at, "is %lld, but this program reads %s up to version %d: use a newer eth-hpp",
            (long long)number, format, version);
    }
}

void eth_hpp_json_keys(const struct eth_hpp_json *object, ...)
{
    if (eth_hpp_json_failed(object))
        return;
    if (!json_object_is_type(object->value, json_type_object)) {
        eth_hpp_json_fail(object, "must be an object");
        return;
    }
    json_object_object_foreach(object->value, key, value)
    {
        (void)value;
        bool known = strcmp(key, "extra") == 0;
        va_list args;
        va_start(args, object);
        const char *name;
        while (!known && (name = va_arg(args, const char *)) != NULL)
            known = strcmp(key, name) == 0;
        va_end(args);
        if (!known) {
            eth_hpp_json_fail(object, "unknown key \"%.64s\" (is it a typing error?)", key);
            return;
        }
    }
}

bool eth_hpp_json_has(const struct eth_hpp_json *object, const char *key)
{
    return member(object, key).value != NULL;
}

bool eth_hpp_json_next(const struct eth_hpp_json *object, void **iterator, const char **key,
                       struct eth_hpp_json *value)
{
    if (eth_hpp_json_failed(object) || !json_object_is_type(object->value, json_type_object))
        return false;
    struct lh_entry *entry = *iterator == NULL ? json_object_get_object(object->value)->head
                                               : ((struct lh_entry *)*iterator)->next;
    if (entry == NULL)
        return false;
    *iterator = entry;
    *key = lh_entry_k(entry);
    *value = member(object, *key);
    return true;
}

/* ---- values ---- */

static const char *type_name(struct json_object *value)
{
    return value == NULL ? "missing" : json_type_to_name(json_object_get_type(value));
}

static double read_number(const struct eth_hpp_json *at, double least, double most)
{
    if (eth_hpp_json_failed(at))
        return least;
    enum json_type type = json_object_get_type(at->value);
    if (type != json_type_int && type != json_type_double) {
        eth_hpp_json_fail(at, "must be a number, is %s", type_name(at->value));
        return least;
    }
    double value = json_object_get_double(at->value);
    if (!isfinite(value) || value < least || value > most) {
        eth_hpp_json_fail(at, "must be %g..%g, is %g", least, most, value);
        return least;
    }
    return value;
}

static int64_t read_integer(const struct eth_hpp_json *at, int64_t least, int64_t most)
{
    if (eth_hpp_json_failed(at))
        return least;
    int64_t value = 0;
    enum json_type type = json_object_get_type(at->value);
    double real = type == json_type_double ? json_object_get_double(at->value) : 0.0;
    if (type == json_type_int) {
        value = json_object_get_int64(at->value);
    } else if (type == json_type_double && real == floor(real) && fabs(real) < 9e15) {
        value = (int64_t)real; /* a whole number may be written 25e9 */
    } else {
        eth_hpp_json_fail(at, "must be a whole number, is %s",
                          type == json_type_double ? json_object_get_string(at->value)
                                                   : type_name(at->value));
        return least;
    }
    if (value < least || value > most) {
        eth_hpp_json_fail(at, "must be %lld..%lld, is %lld", (long long)least, (long long)most,
                          (long long)value);
        return least;
    }
    return value;
}

static const char *read_string(const struct eth_hpp_json *at, size_t longest)
{
    if (eth_hpp_json_failed(at))
        return "";
    if (!json_object_is_type(at->value, json_type_string)) {
        eth_hpp_json_fail(at, "must be a string, is %s", type_name(at->value));
        return "";
    }
    const char *text = json_object_get_string(at->value);
    size_t length = (size_t)json_object_get_string_len(at->value);
    if (length > longest) {
        eth_hpp_json_fail(at, "must have at most %zu bytes, has %zu", longest, length);
        return "";
    }
    for (size_t i = 0; i < length; i++)
        if (eth_hpp_control_bytes(text + i) != 0) {
            eth_hpp_json_fail(at, "must not hold control characters");
            return "";
        }
    return text;
}

double eth_hpp_json_number(const struct eth_hpp_json *object, const char *key, double least,
                           double most)
{
    struct eth_hpp_json at = member(object, key);
    return read_number(&at, least, most);
}

double eth_hpp_json_number_or(const struct eth_hpp_json *object, const char *key, double least,
                              double most, double fallback)
{
    return eth_hpp_json_has(object, key) ? eth_hpp_json_number(object, key, least, most) : fallback;
}

int64_t eth_hpp_json_integer(const struct eth_hpp_json *object, const char *key, int64_t least,
                             int64_t most)
{
    struct eth_hpp_json at = member(object, key);
    return read_integer(&at, least, most);
}

int64_t eth_hpp_json_integer_or(const struct eth_hpp_json *object, const char *key, int64_t least,
                                int64_t most, int64_t fallback)
{
    return eth_hpp_json_has(object, key) ? eth_hpp_json_integer(object, key, least, most)
                                         : fallback;
}

const char *eth_hpp_json_string(const struct eth_hpp_json *object, const char *key, size_t longest)
{
    struct eth_hpp_json at = member(object, key);
    return read_string(&at, longest);
}

const char *eth_hpp_json_string_or(const struct eth_hpp_json *object, const char *key,
                                   size_t longest, const char *fallback)
{
    return eth_hpp_json_has(object, key) ? eth_hpp_json_string(object, key, longest) : fallback;
}

bool eth_hpp_json_boolean_or(const struct eth_hpp_json *object, const char *key, bool fallback)
{
    struct eth_hpp_json at = member(object, key);
    if (at.value == NULL)
        return fallback;
    if (!json_object_is_type(at.value, json_type_boolean)) {
        eth_hpp_json_fail(&at, "must be true or false, is %s", type_name(at.value));
        return fallback;
    }
    return json_object_get_boolean(at.value);
}

struct eth_hpp_json eth_hpp_json_object(const struct eth_hpp_json *object, const char *key)
{
    struct eth_hpp_json at = member(object, key);
    if (!json_object_is_type(at.value, json_type_object)) {
        eth_hpp_json_fail(&at, "must be an object, is %s", type_name(at.value));
        at.value = NULL;
    }
    return at;
}

/* ---- arrays ---- */

struct eth_hpp_json eth_hpp_json_array(const struct eth_hpp_json *object, const char *key,
                                       size_t least, size_t most)
{
    struct eth_hpp_json at = member(object, key);
    if (!json_object_is_type(at.value, json_type_array)) {
        eth_hpp_json_fail(&at, "must be a list, is %s", type_name(at.value));
        at.value = NULL;
    } else if (json_object_array_length(at.value) < least ||
               json_object_array_length(at.value) > most) {
        eth_hpp_json_fail(&at, "must have %zu..%zu entries, has %zu", least, most,
                          json_object_array_length(at.value));
        at.value = NULL;
    }
    return at;
}

size_t eth_hpp_json_length(const struct eth_hpp_json *array)
{
    if (eth_hpp_json_failed(array) || !json_object_is_type(array->value, json_type_array))
        return 0;
    return json_object_array_length(array->value);
}

struct eth_hpp_json eth_hpp_json_item(const struct eth_hpp_json *array, size_t i)
{
    bool is_array = json_object_is_type(array->value, json_type_array);
    struct eth_hpp_json out =
        child(array, is_array ? json_object_array_get_idx(array->value, i) : NULL);
    path_append(out.path, sizeof(out.path), "[%zu]", i);
    return out;
}

double eth_hpp_json_item_number(const struct eth_hpp_json *array, size_t i, double least,
                                double most)
{
    struct eth_hpp_json at = eth_hpp_json_item(array, i);
    return read_number(&at, least, most);
}

int64_t eth_hpp_json_item_integer(const struct eth_hpp_json *array, size_t i, int64_t least,
                                  int64_t most)
{
    struct eth_hpp_json at = eth_hpp_json_item(array, i);
    return read_integer(&at, least, most);
}

const char *eth_hpp_json_item_string(const struct eth_hpp_json *array, size_t i, size_t longest)
{
    struct eth_hpp_json at = eth_hpp_json_item(array, i);
    return read_string(&at, longest);
}
