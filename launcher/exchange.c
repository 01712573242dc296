#include "launcher/exchange.h"

#include <stdlib.h>
#include <string.h>

void eth_hpp_exchange_free(struct eth_hpp_exchange_word *words, int count)
{
    for (int i = 0; words != NULL && i < count; i++)
        free(words[i].data);
    free(words);
}

/* A word goes out with its status in front: one byte. */
static enum eth_hpp_status say(struct eth_hpp_bootstrap *bootstrap, const char *name,
                               enum eth_hpp_status own, const void *data, size_t size,
                               struct eth_hpp_error *err)
{
    size_t used = own == ETH_HPP_OK ? size : 0;
    unsigned char *message = malloc(used + 1);
    if (message == NULL)
        return eth_hpp_error_memory(err, "the exchange");
    message[0] = (unsigned char)own;
    if (used > 0)
        memcpy(message + 1, data, used);
    enum eth_hpp_status status = eth_hpp_bootstrap_put(bootstrap, name, message, used + 1, err);
    free(message);
    return status;
}

/* One rank's word; *status is how it stands there. */
static enum eth_hpp_status hear(struct eth_hpp_bootstrap *bootstrap, int rank, const char *name,
                                struct eth_hpp_exchange_word *word, enum eth_hpp_status *theirs,
                                struct eth_hpp_error *err)
{
    void *message;
    size_t size;
    enum eth_hpp_status status = eth_hpp_bootstrap_get(bootstrap, rank, name, &message, &size, err);
    if (status != ETH_HPP_OK)
        return status;
    if (size == 0) {
        free(message);
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "rank %d said nothing in round %s", rank,
                                 name);
    }
    *theirs = (enum eth_hpp_status) * (unsigned char *)message;
    /* The word keeps the NUL that stands behind it. */
    memmove(message, (char *)message + 1, size);
    *word = (struct eth_hpp_exchange_word){.data = message, .size = size - 1};
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_exchange_round(struct eth_hpp_bootstrap *bootstrap, const char *name,
                                           double timeout_s, enum eth_hpp_status own,
                                           const void *data, size_t size,
                                           struct eth_hpp_exchange_word **words,
                                           struct eth_hpp_error *err)
{
    const struct eth_hpp_bootstrap_place *place = eth_hpp_bootstrap_get_place(bootstrap);
    struct eth_hpp_error failure = {0};
    struct eth_hpp_exchange_word *heard = calloc((size_t)place->size, sizeof(*heard));
    enum eth_hpp_status first = ETH_HPP_OK;
    if (heard == NULL)
        eth_hpp_error_memory(&failure, "the exchange");
    if (failure.status != ETH_HPP_OK ||
        say(bootstrap, name, own, data, size, &failure) != ETH_HPP_OK ||
        eth_hpp_bootstrap_fence(bootstrap, timeout_s, &failure) != ETH_HPP_OK)
        eth_hpp_bootstrap_fail(bootstrap, &failure);
    for (int rank = 0; rank < place->size; rank++) {
        enum eth_hpp_status theirs = ETH_HPP_OK;
        if (hear(bootstrap, rank, name, &heard[rank], &theirs, &failure) != ETH_HPP_OK)
            eth_hpp_bootstrap_fail(bootstrap, &failure);
        if (theirs != ETH_HPP_OK && first == ETH_HPP_OK) {
            first = theirs;
            if (rank != place->rank)
                *err = (struct eth_hpp_error){.status = theirs};
        }
    }
    if (first != ETH_HPP_OK) {
        eth_hpp_exchange_free(heard, place->size);
        return first;
    }
    *words = heard;
    return ETH_HPP_OK;
}
