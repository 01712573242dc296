/*
 * What json-c does not see in a text, or sees too late.
 *
 * Duplicate keys: json-c keeps the last of two equal keys in silence, which would hide a typing
 * error, so the text itself is searched.
 */
#ifndef ETH_HPP_BASE_JSON_KEYS_H
#define ETH_HPP_BASE_JSON_KEYS_H

#include <stdbool.h>
#include <stddef.h>

enum { ETH_HPP_JSON_DEPTH_MAX = 32 };

/* Are there so many lists and objects in the text that each has next to nothing in it? No real file
 * is like that, and json-c takes some 800 bytes for an empty object, 300 times what it is in the
 * file. Looks at any text, JSON or not. */
bool eth_hpp_json_is_hollow(const char *text, size_t size);

/* Searches a text that is valid JSON, nested at most ETH_HPP_JSON_DEPTH_MAX deep, for an object in
 * which a key stands twice: true and the key as written (pointing into the text) for the first one
 * found. */
bool eth_hpp_json_find_duplicate_key(const char *text, size_t size, const char **key,
                                     size_t *length);

#endif
