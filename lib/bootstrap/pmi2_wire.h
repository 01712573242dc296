/*
 * PMI-2's wire: a command is six digits, the length of the rest, and "cmd=NAME;KEY=VALUE;...", and
 * so is its answer. Not for others than the PMI-2 component.
 */
#ifndef ETH_HPP_BOOTSTRAP_PMI2_WIRE_H
#define ETH_HPP_BOOTSTRAP_PMI2_WIRE_H

#include <stdbool.h>

#include "base/error.h"

enum { ETH_HPP_PMI2_KEY_BYTES = 64, ETH_HPP_PMI2_VALUE_BYTES = 1024 };
enum { ETH_HPP_PMI2_MESSAGE_BYTES = ETH_HPP_PMI2_VALUE_BYTES + 256 };

/* Tells the server of this task, once in the task's life, which PMI is spoken. Errors: PEER,
 * TIMEOUT. */
enum eth_hpp_status eth_hpp_pmi2_wire_greet(int fd, double deadline, struct eth_hpp_error *err);

/* Sends the command `name` with its keys and values, "KEY=VALUE;...". Errors: PEER, TIMEOUT. */
enum eth_hpp_status eth_hpp_pmi2_wire_send(int fd, double deadline, const char *name,
                                           const char *fields, struct eth_hpp_error *err);

/* Reads the next answer, which must be that to the command `name` and say that all went well.
 * Errors: PEER; TIMEOUT where it has not come at the deadline, after which the connection is of no
 * use any more. */
enum eth_hpp_status eth_hpp_pmi2_wire_receive(int fd, double deadline, const char *name,
                                              char answer[ETH_HPP_PMI2_MESSAGE_BYTES],
                                              struct eth_hpp_error *err);

/* The value of a key in an answer; false where it is not there or does not fit. */
bool eth_hpp_pmi2_wire_field(const char *answer, const char *key, char *value, size_t size);

#endif
