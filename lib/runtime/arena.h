/* The rank's device memory: everything that the runtime and the model hold, counted against a
 * limit, freed together. */
#ifndef ETH_HPP_RUNTIME_ARENA_H
#define ETH_HPP_RUNTIME_ARENA_H

#include "kernels/kernels.h"

struct eth_hpp_arena {
    struct eth_hpp_kernels *kernels;
    double limit_bytes; /* 0: what the device has */
    size_t bytes;       /* held; nothing is given back before the end, so the peak as well */
    void **pieces;
    size_t piece_count;
};

/* Zeroed memory; it belongs to the arena. `what` names it in messages. Errors: MEMORY, with what is
 * asked, held and allowed. */
enum eth_hpp_status eth_hpp_arena_allocate(struct eth_hpp_arena *arena, size_t bytes,
                                           const char *what, void **memory,
                                           struct eth_hpp_error *err);
/* Counts memory that belongs to somebody else. Errors: as above. */
enum eth_hpp_status eth_hpp_arena_count(struct eth_hpp_arena *arena, size_t bytes, const char *what,
                                        struct eth_hpp_error *err);
void eth_hpp_arena_free(struct eth_hpp_arena *arena);

#endif
