#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

/* Writes a number with so many digits; is it the same when it is read again? */
static bool write_digits(double value, int digits, char *text, size_t size)
{
    snprintf(text, size, "%.*g", digits, value);
    return strtod(text, NULL) == value;
}

struct json_object *eth_hpp_json_new_number(double value)
{
    char text[40];
    /* What was computed mostly takes 16 or 17 digits, what was stated few. */
    int digits = write_digits(value, 15, text, sizeof(text)) ? 9 : 16;
    while (!write_digits(value, digits, text, sizeof(text)) && digits < 17)
        digits++;
    /* A whole number keeps the form of one, so that strict readers of counts accept it. */
    return json_object_new_double_s(value, text);
}

struct json_object *eth_hpp_json_new_file(const char *format, int version)
{
    struct json_object *root = json_object_new_object();
    if (root == NULL)
        return NULL;
    if (json_object_object_add(root, "format", json_object_new_string(format)) != 0 ||
        json_object_object_add(root, "version", json_object_new_int(version)) != 0) {
        json_object_put(root);
        return NULL;
    }
    return root;
}

/* Frees both where a value or its place could not be made, so that a writer builds a whole file
 * without a check at each line: eth_hpp_json_save reports the NULL that is left. */
static void lose(struct json_object **object, struct json_object *value)
{
    json_object_put(value);
    json_object_put(*object);
    *object = NULL;
}

void eth_hpp_json_put(struct json_object **object, const char *key, struct json_object *value)
{
    if (*object == NULL || value == NULL || json_object_object_add(*object, key, value) != 0)
        lose(object, value);
}

void eth_hpp_json_append(struct json_object **array, struct json_object *value)
{
    if (*array == NULL || value == NULL || json_object_array_add(*array, value) != 0)
        lose(array, value);
}

enum eth_hpp_status eth_hpp_json_save(struct json_object *value, const char *path,
                                      struct eth_hpp_error *err)
{
    if (value == NULL)
        return eth_hpp_error_memory(err, path);
    enum eth_hpp_status status = ETH_HPP_OK;
    char *text = NULL;
    const char *body = json_object_to_json_string_ext(
        value, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE);
    if (body == NULL || asprintf(&text, "%s\n", body) < 0) {
        text = NULL;
        status = eth_hpp_error_memory(err, path);
    } else {
        status = eth_hpp_file_output(path, text, err);
    }
    free(text);
    json_object_put(value);
    return status;
}
