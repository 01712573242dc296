/*
 * Rounds in which all ranks tell all others something, or that they have failed. One failure ends
 * the launch on every rank with the same exit code, and one rank alone says why.
 */
#ifndef ETH_HPP_LAUNCHER_EXCHANGE_H
#define ETH_HPP_LAUNCHER_EXCHANGE_H

#include "bootstrap/bootstrap.h"

/* A rank may have died before it could be noticed: all ranks end within 30 s of that, the time to
 * find out who it is and to end those that hang included. */
#define ETH_HPP_EXCHANGE_FIRST_S 16.0
/* Once ranks have met, the death of one ends the step at once (PMIx); this is for one that hangs,
 * and for slow devices that are measured. */
#define ETH_HPP_EXCHANGE_NEXT_S 110.0

/* What one rank said in a round. */
struct eth_hpp_exchange_word {
    void *data;
    size_t size;
};

/* A collective round named `name` (a fresh one each time). `own` is how things stand on this rank;
 * where it is an error, `err` holds its text and data is ignored. On success *words has one entry a
 * rank, freed with eth_hpp_exchange_free. If any rank has failed, all return the status of the
 * lowest one; err keeps its text on that rank and is emptied on the others, so that the reason is
 * logged once. If some rank does not come within timeout_s the job is ended here, with one line on
 * one rank: this does not return then. */
enum eth_hpp_status eth_hpp_exchange_round(struct eth_hpp_bootstrap *bootstrap, const char *name,
                                           double timeout_s, enum eth_hpp_status own,
                                           const void *data, size_t size,
                                           struct eth_hpp_exchange_word **words,
                                           struct eth_hpp_error *err);
void eth_hpp_exchange_free(struct eth_hpp_exchange_word *words, int count);

#endif
