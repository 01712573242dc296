/* One process: what it puts, it gets. */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/component.h"

struct entry {
    struct entry *next;
    char *key;
    void *value;
    size_t size;
};

struct single {
    struct entry *entries;
};

enum eth_hpp_status eth_hpp_bootstrap_single_open(void **state,
                                                  struct eth_hpp_bootstrap_place *place,
                                                  struct eth_hpp_error *err)
{
    *state = calloc(1, sizeof(struct single));
    if (*state == NULL)
        return eth_hpp_error_memory(err, "the bootstrap");
    place->rank = place->local_rank = 0;
    place->size = place->local_size = 1;
    return ETH_HPP_OK;
}

static void entry_free(struct entry *entry)
{
    if (entry == NULL)
        return;
    free(entry->key);
    free(entry->value);
    free(entry);
}

static enum eth_hpp_status single_put(void *state, const char *key, const void *value, size_t size,
                                      struct eth_hpp_error *err)
{
    struct single *single = state;
    struct entry *entry = calloc(1, sizeof(*entry));
    if (entry == NULL)
        goto fail;
    entry->key = strdup(key);
    entry->value = malloc(size + 1);
    entry->size = size;
    if (entry->key == NULL || entry->value == NULL)
        goto fail;
    memcpy(entry->value, value, size);
    entry->next = single->entries;
    single->entries = entry;
    return ETH_HPP_OK;
fail:
    entry_free(entry);
    return eth_hpp_error_memory(err, "a value of the bootstrap");
}

static enum eth_hpp_status single_fence(void *state, double timeout_s, struct eth_hpp_error *err)
{
    (void)state;
    (void)timeout_s;
    (void)err;
    return ETH_HPP_OK;
}

static enum eth_hpp_status single_get(void *state, int rank, const char *key, void **value,
                                      size_t *size, struct eth_hpp_error *err)
{
    struct single *single = state;
    for (struct entry *entry = single->entries; rank == 0 && entry != NULL; entry = entry->next) {
        if (strcmp(entry->key, key) != 0)
            continue;
        void *copy = malloc(entry->size + 1);
        if (copy == NULL)
            return eth_hpp_error_memory(err, "a value of the bootstrap");
        memcpy(copy, entry->value, entry->size);
        *value = copy;
        *size = entry->size;
        return ETH_HPP_OK;
    }
    return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "rank %d has not published %s", rank, key);
}

static void single_abort(void *state, int exit_code, const char *why)
{
    (void)state;
    (void)exit_code;
    (void)why;
}

static void single_close(void *state)
{
    struct single *single = state;
    while (single->entries != NULL) {
        struct entry *next = single->entries->next;
        entry_free(single->entries);
        single->entries = next;
    }
    free(single);
}

const struct eth_hpp_bootstrap_ops eth_hpp_bootstrap_single_ops = {
    .name = "single",
    .put = single_put,
    .fence = single_fence,
    .get = single_get,
    .abort = single_abort,
    .close = single_close,
};
