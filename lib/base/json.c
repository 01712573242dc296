/* Documents: parsing, and the first error of the reading. json_read.c reads the values. */
#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_keys.h"

struct eth_hpp_json_document {
    struct json_object *root;
    char *name; /* the file, for messages */
    struct eth_hpp_error error;
};

/* ---- errors ---- */

bool eth_hpp_json_failed(const struct eth_hpp_json *at)
{
    return at->document->error.status != ETH_HPP_OK;
}

void eth_hpp_json_fail(const struct eth_hpp_json *at, const char *format, ...)
{
    if (eth_hpp_json_failed(at))
        return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    eth_hpp_error_set(&at->document->error, ETH_HPP_ERR_INPUT, "%s: %s%s%s", at->document->name,
                      at->path, at->path[0] != '\0' ? ": " : "", text);
}

/* ---- documents ---- */

static void parse_failed(const struct eth_hpp_json *root, struct json_tokener *tokener,
                         const char *text, size_t size)
{
    enum json_tokener_error cause = json_tokener_get_error(tokener);
    size_t at = json_tokener_get_parse_end(tokener), line = 1;
    for (size_t i = 0; i < at && i < size; i++)
        line += text[i] == '\n';
    if (size == 0)
        eth_hpp_json_fail(root, "the file is empty");
    else if (cause == json_tokener_continue)
        eth_hpp_json_fail(root, "line %zu: the file ends too early; it looks truncated", line);
    else
        eth_hpp_json_fail(root, "line %zu: not valid JSON: %s", line,
                          json_tokener_error_desc(cause));
}

struct eth_hpp_json_document *eth_hpp_json_parse(const char *name, const char *text, size_t size,
                                                 struct eth_hpp_json *root,
                                                 struct eth_hpp_error *err)
{
    struct eth_hpp_json_document *document = calloc(1, sizeof(*document));
    struct json_tokener *tokener = json_tokener_new_ex(ETH_HPP_JSON_DEPTH_MAX);
    if (document == NULL || tokener == NULL || (document->name = strdup(name)) == NULL) {
        eth_hpp_error_memory(err, name);
        goto failed;
    }
    *root = (struct eth_hpp_json){.document = document};
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    if (size > INT32_MAX) {
        eth_hpp_json_fail(root, "is too large");
    } else if (memchr(text, '\0', size) != NULL) {
        /* json-c would take it for the end, and what follows for nothing. */
        eth_hpp_json_fail(root, "holds a NUL byte: it is not a JSON text");
    } else if (eth_hpp_json_is_hollow(text, size)) {
        eth_hpp_json_fail(root, "holds little but brackets: it is no file of this program");
    } else {
        document->root = json_tokener_parse_ex(tokener, text, (int)size);
        if (json_tokener_get_error(tokener) != json_tokener_success)
            parse_failed(root, tokener, text, size);
        else if (document->root == NULL && memchr(text, '{', size) != NULL)
            eth_hpp_error_memory(&document->error, name); /* json-c does not say so */
        else if (!json_object_is_type(document->root, json_type_object))
            eth_hpp_json_fail(root, "must be an object, {...}");
    }
    root->value = document->root;
    const char *key;
    size_t length;
    if (!eth_hpp_json_failed(root) && eth_hpp_json_find_duplicate_key(text, size, &key, &length))
        eth_hpp_json_fail(root, "key \"%.*s\" stands twice in one object",
                          length > 64 ? 64 : (int)length, key);
    if (eth_hpp_json_failed(root)) {
        eth_hpp_error_set(err, document->error.status, "%s", document->error.text);
        goto failed;
    }
    json_tokener_free(tokener);
    return document;
failed:
    if (tokener != NULL)
        json_tokener_free(tokener);
    if (document != NULL)
        eth_hpp_json_finish(document, NULL);
    return NULL;
}

struct eth_hpp_json_document *eth_hpp_json_load(const char *path, size_t limit,
                                                struct eth_hpp_json *root,
                                                struct eth_hpp_error *err)
{
    char *text;
    size_t size;
    if (eth_hpp_file_read(path, limit, &text, &size, err) != ETH_HPP_OK)
        return NULL;
    struct eth_hpp_json_document *document = eth_hpp_json_parse(path, text, size, root, err);
    free(text);
    return document;
}

enum eth_hpp_status eth_hpp_json_finish(struct eth_hpp_json_document *document,
                                        struct eth_hpp_error *err)
{
    enum eth_hpp_status status = document->error.status;
    if (status != ETH_HPP_OK)
        eth_hpp_error_set(err, status, "%s", document->error.text);
    json_object_put(document->root);
    free(document->name);
    free(document);
    return status;
}
