/* The transport's bootstrap over MPI, so that the ranks of an MPI program can open it. */
#ifndef ETH_HPP_TESTS_BENCH_SYNC_BOOTSTRAP_H
#define ETH_HPP_TESTS_BENCH_SYNC_BOOTSTRAP_H

#include "bootstrap/bootstrap.h"

/* MPI must be initialised, and outlive it. Collective over MPI_COMM_WORLD. */
enum eth_hpp_status sync_bootstrap_open(struct eth_hpp_bootstrap **bootstrap,
                                        struct eth_hpp_error *err);

#endif
