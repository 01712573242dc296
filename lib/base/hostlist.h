/* Slurm's hostlist syntax: "a100-[01-04,07],login" stands for six names. */
#ifndef ETH_HPP_BASE_HOSTLIST_H
#define ETH_HPP_BASE_HOSTLIST_H

#include "base/error.h"

/* Expands a hostlist of at most `most` names, in order, the digits' width kept. *names is a list of
 * *count texts that eth_hpp_hostlist_free frees. Errors: INPUT (an open bracket, a range that
 * counts down or is no number, an empty name, too many names), MEMORY. */
enum eth_hpp_status eth_hpp_hostlist_expand(const char *text, int most, char ***names, int *count,
                                            struct eth_hpp_error *err);
void eth_hpp_hostlist_free(char **names, int count);

/* The shortest hostlist for names in this order: neighbours that differ in a last number alone are
 * folded. NULL when out of memory; the caller frees it. */
char *eth_hpp_hostlist_fold(const char *const *names, int count);

#endif
