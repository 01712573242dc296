/*
 * Sums inside one machine, through memory that the group's members share.
 *
 * The data are cut into chunks; of a chunk every member has a piece, a part of its own share of the
 * data. Three things are done for each chunk, each counted in the member's seat:
 *
 *     filled  its addends for the others' pieces are copied into its slot
 *     summed  all members' addends of its piece are added, in the order of the members
 *     taken   the sums of the others' pieces are copied out
 *
 * A reduce-scatter takes nothing; an all-gather fills nothing, and what it sums is its own piece.
 *
 * Two chunks may be under way, in two slots. A member that can do nothing spins for a moment and
 * then sleeps; whoever counts on wakes the sleepers by a byte in their pipes.
 */
#ifndef ETH_HPP_COMM_UCX_UCX_NEAR_H
#define ETH_HPP_COMM_UCX_UCX_NEAR_H

#include "comm/ucx/ucx.h"

enum { ETH_HPP_UCX_SLOT = 1 << 16 }; /* floats of all members' pieces of a chunk: 256 KiB */

/* What a member tells the others: numbers of chunks, over all sums of the group. */
struct eth_hpp_ucx_seat {
    _Alignas(64) atomic_size_t filled, summed, taken;
    atomic_bool asleep; /* wants its bell to be rung */
};

struct eth_hpp_ucx_near {
    void *memory; /* shared by all members */
    size_t bytes;
    struct eth_hpp_ucx_seat *seats; /* [members] in it */
    float *addends;                 /* [members][2][SLOT] in it */
    float *sums;                    /* [2][SLOT] in it */
    size_t chunks;                  /* of the group's sums up to the running one */
    bool asleep;                    /* as its seat may say */
};

#endif
