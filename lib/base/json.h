/*
 * Strict JSON reading with the place in every message, and writing.
 *
 * A cursor is a value and where it stands. Reading functions keep the FIRST error in the document
 * and return a harmless value afterwards, so a reader reads everything straight through and asks
 * once at the end (eth_hpp_json_finish). A message reads like `cluster.json: nodes[3].count: must
 * be 1..1024, is 0`.
 *
 *     struct eth_hpp_json root;
 *     struct eth_hpp_json_document *doc = eth_hpp_json_load(path, limit, &root, err);
 *     if (doc == NULL) return err->status;
 *     eth_hpp_json_format(&root, "eth-hpp-cluster", 1);
 *     eth_hpp_json_keys(&root, "format", "version", "nodes", "extra", NULL);
 *     struct eth_hpp_json nodes = eth_hpp_json_array(&root, "nodes", 1, 100000);
 *     for (size_t i = 0; i < eth_hpp_json_length(&nodes); i++) {
 *         struct eth_hpp_json node = eth_hpp_json_item(&nodes, i);
 *         count = eth_hpp_json_integer(&node, "count", 1, 1024);
 *     }
 *     return eth_hpp_json_finish(doc, err);     // frees the document
 */
#ifndef ETH_HPP_BASE_JSON_H
#define ETH_HPP_BASE_JSON_H

#include <json-c/json.h>

#include "base/error.h"

struct eth_hpp_json_document;

/* Copied by value; points to its parent only through the path text, so copies are safe while the
 * document lives. */
struct eth_hpp_json {
    struct eth_hpp_json_document *document;
    struct json_object *value; /* NULL after an error */
    char path[160];            /* "nodes[3].gpus", "" for the root; cut in the middle when longer */
};

/* Parses a file of at most `limit` bytes that holds one object, nested at most 32 deep; duplicate
 * keys, comments, trailing text, NUL bytes and invalid UTF-8 are refused (NaN and Infinity where a
 * number is read). Returns NULL
 * with err filled, else a document that eth_hpp_json_finish frees. */
struct eth_hpp_json_document *eth_hpp_json_load(const char *path, size_t limit,
                                                struct eth_hpp_json *root,
                                                struct eth_hpp_error *err);
/* The same from memory; `name` stands for the file in messages. */
struct eth_hpp_json_document *eth_hpp_json_parse(const char *name, const char *text, size_t size,
                                                 struct eth_hpp_json *root,
                                                 struct eth_hpp_error *err);

/* Frees the document; the first error of the reading, or OK. */
enum eth_hpp_status eth_hpp_json_finish(struct eth_hpp_json_document *document,
                                        struct eth_hpp_error *err);

/* Has an error been met? To leave loops early. */
bool eth_hpp_json_failed(const struct eth_hpp_json *at);

/* Records an error at this place (kept only if it is the first). */
void eth_hpp_json_fail(const struct eth_hpp_json *at, const char *format, ...) ETH_HPP_PRINTF(2, 3);

/* Requires "format" and "version" of an object: an unknown format or a newer version is refused,
 * naming both. */
void eth_hpp_json_format(const struct eth_hpp_json *object, const char *format, int version);

/* Refuses keys that are not in the NULL-terminated list, and a value that is not an object. "extra"
 * is always allowed. */
void eth_hpp_json_keys(const struct eth_hpp_json *object, ...) __attribute__((sentinel));

/* Is the key there (and not null)? */
bool eth_hpp_json_has(const struct eth_hpp_json *object, const char *key);

/* Required values within inclusive bounds; the _or forms give `fallback` where the key is missing
 * or null. A whole number may be written 25e9. Strings are owned by the document, and have no
 * control characters. */
double eth_hpp_json_number(const struct eth_hpp_json *object, const char *key, double least,
                           double most);
double eth_hpp_json_number_or(const struct eth_hpp_json *object, const char *key, double least,
                              double most, double fallback);
int64_t eth_hpp_json_integer(const struct eth_hpp_json *object, const char *key, int64_t least,
                             int64_t most);
int64_t eth_hpp_json_integer_or(const struct eth_hpp_json *object, const char *key, int64_t least,
                                int64_t most, int64_t fallback);
const char *eth_hpp_json_string(const struct eth_hpp_json *object, const char *key, size_t longest);
const char *eth_hpp_json_string_or(const struct eth_hpp_json *object, const char *key,
                                   size_t longest, const char *fallback);
bool eth_hpp_json_boolean_or(const struct eth_hpp_json *object, const char *key, bool fallback);

/* A required object or array (with its number of items within bounds). */
struct eth_hpp_json eth_hpp_json_object(const struct eth_hpp_json *object, const char *key);
struct eth_hpp_json eth_hpp_json_array(const struct eth_hpp_json *object, const char *key,
                                       size_t least, size_t most);

/* Arrays: the number of items (0 after an error), an item, and an item as a value. */
size_t eth_hpp_json_length(const struct eth_hpp_json *array);
struct eth_hpp_json eth_hpp_json_item(const struct eth_hpp_json *array, size_t i);
double eth_hpp_json_item_number(const struct eth_hpp_json *array, size_t i, double least,
                                double most);
int64_t eth_hpp_json_item_integer(const struct eth_hpp_json *array, size_t i, int64_t least,
                                  int64_t most);
const char *eth_hpp_json_item_string(const struct eth_hpp_json *array, size_t i, size_t longest);

/* Objects used as maps: members in the file's order. Start with *iterator = NULL; false at the end.
 * *key is owned by the document. */
bool eth_hpp_json_next(const struct eth_hpp_json *object, void **iterator, const char **key,
                       struct eth_hpp_json *value);

/* ---- writing ---- */

/* A number in the shortest form that reads back as the same double (json-c alone prints 17 digits).
 */
struct json_object *eth_hpp_json_new_number(double value);

/* {"format": format, "version": version} to fill further; NULL when out of memory. */
struct json_object *eth_hpp_json_new_file(const char *format, int version);

/* Adds a value to an object or a list and takes it over. When out of memory (a NULL value or object
 * included) both are freed and *object becomes NULL, so that a file is built without a check at
 * each line. */
void eth_hpp_json_put(struct json_object **object, const char *key, struct json_object *value);
void eth_hpp_json_append(struct json_object **array, struct json_object *value);

/* Writes the value to a file, whole or not at all; path "-" is standard output. Frees the value in
 * every case; a NULL value is an out-of-memory error. */
enum eth_hpp_status eth_hpp_json_save(struct json_object *value, const char *path,
                                      struct eth_hpp_error *err);

#endif
