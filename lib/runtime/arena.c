#include "runtime/arena.h"

#include <stdlib.h>

static enum eth_hpp_status keep(struct eth_hpp_arena *arena, void *memory,
                                struct eth_hpp_error *err)
{
    void **pieces = realloc(arena->pieces, sizeof(*pieces) * (arena->piece_count + 1));
    if (pieces == NULL)
        return eth_hpp_error_memory(err, "the arena");
    pieces[arena->piece_count++] = memory;
    arena->pieces = pieces;
    return ETH_HPP_OK;
}

static enum eth_hpp_status check_room(const struct eth_hpp_arena *arena, size_t bytes,
                                      const char *what, struct eth_hpp_error *err)
{
    if (arena->limit_bytes > 0 && (double)arena->bytes + (double)bytes > arena->limit_bytes)
        return eth_hpp_error_set(err, ETH_HPP_ERR_MEMORY,
                                 "%s needs %zu bytes beside the %zu that are held, but the device "
                                 "has %.0f: plan with a smaller micro-batch or with recompute",
                                 what, bytes, arena->bytes, arena->limit_bytes);
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_arena_allocate(struct eth_hpp_arena *arena, size_t bytes,
                                           const char *what, void **memory,
                                           struct eth_hpp_error *err)
{
    struct eth_hpp_kernels *kernels = arena->kernels;
    void *piece;
    enum eth_hpp_status status = check_room(arena, bytes, what, err);
    if (status != ETH_HPP_OK)
        return status;
    status = kernels->ops->allocate(kernels->state, bytes > 0 ? bytes : 1, &piece, err);
    if (status != ETH_HPP_OK)
        return eth_hpp_error_prefix(err, "%s (%zu bytes beside %zu that are held)", what, bytes,
                                    arena->bytes);
    status = keep(arena, piece, err);
    if (status != ETH_HPP_OK) {
        kernels->ops->release(kernels->state, piece);
        return status;
    }
    kernels->ops->zero(kernels->state, piece, bytes);
    arena->bytes += bytes;
    *memory = piece;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_arena_count(struct eth_hpp_arena *arena, size_t bytes, const char *what,
                                        struct eth_hpp_error *err)
{
    enum eth_hpp_status status = check_room(arena, bytes, what, err);
    if (status == ETH_HPP_OK)
        arena->bytes += bytes;
    return status;
}

void eth_hpp_arena_free(struct eth_hpp_arena *arena)
{
    for (size_t i = 0; i < arena->piece_count; i++)
        arena->kernels->ops->release(arena->kernels->state, arena->pieces[i]);
    free(arena->pieces);
    *arena = (struct eth_hpp_arena){.kernels = arena->kernels};
}
