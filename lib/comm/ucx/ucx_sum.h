/*
 * Sums: inside each machine through memory that its members share, between machines by messages.
 *
 * The data are cut into chunks; of a chunk every member has a piece, a part of its own share of the
 * data, and the pieces of one machine's members lie side by side. Four things are done for each
 * chunk, each counted in the seat of the member that did it:
 *
 *     filled     its addends for what others of its machine add are copied into its slot
 *     summed     its part of the chunk is added over its machine's members, in their order
 *     exchanged  the machines' sums are added (ucx_far_sum.c), each chunk by another member
 *     taken      the sums are copied out
 *
 * A reduce-scatter takes its own piece only; an all-gather fills nothing, and what it sums is its
 * own piece. Several chunks may be under way, each in a slot. A member that can do nothing spins
 * for a moment and then sleeps; whoever counts on wakes the sleepers by a byte in their pipes.
 *
 * Where every member is alone on its machine the data themselves are exchanged, without slots.
 */
#ifndef ETH_HPP_COMM_UCX_UCX_SUM_H
#define ETH_HPP_COMM_UCX_UCX_SUM_H

#include "comm/ucx/ucx.h"

enum {
    /* Few, and small chunks: what is under way should stay in the caches from the sender's copy to
     * the receiver's. */
    ETH_HPP_UCX_SLOTS = 2,
    /* Floats of a chunk: of all members' pieces on one machine; with others at least, and of a
     * machine's part at least. */
    ETH_HPP_UCX_NEAR_CHUNK = 1 << 14,
    ETH_HPP_UCX_FAR_CHUNK = 1 << 15,
    ETH_HPP_UCX_FAR_PART = 1 << 13,
    ETH_HPP_UCX_ADD_BLOCK = 1024 /* floats that stay in the nearest cache while added */
};

/* What a member tells the others of its machine: numbers of chunks, over all sums of the group. */
struct eth_hpp_ucx_seat {
    _Alignas(64) atomic_size_t filled, summed, exchanged, taken;
    atomic_size_t begun; /* sums of the group */
    size_t offset;       /* of the data of the sum begun last in what it shares, or SIZE_MAX */
    atomic_bool asleep;  /* wants its bell to be rung */
};

struct eth_hpp_ucx_near {
    void *memory; /* shared by the machine's members */
    size_t bytes;
    struct eth_hpp_ucx_seat *seats; /* [members] in it */
    float *addends;                 /* [members][slots][chunk] in it */
    float *sums;                    /* [slots][chunk] in it */
    bool reaches;                   /* what all members share (ucx_direct_sum.c) */
    bool asleep;                    /* as its seat may say */
};

/* Of a member, in a chunk. */
struct eth_hpp_ucx_piece {
    size_t from, count; /* floats of the data */
    size_t at;          /* in the chunk */
};

struct eth_hpp_ucx_sum {
    struct eth_hpp_request base;
    struct eth_hpp_ucx_group *group;
    float *data;
    size_t count;
    enum eth_hpp_sum_half halves;
    bool started;
    enum { ETH_HPP_UCX_BY_SLOTS, ETH_HPP_UCX_UNDECIDED, ETH_HPP_UCX_DIRECTLY } way;
    size_t first, end;            /* its chunks, among all of the group */
    size_t filled, summed, taken; /* as in this member's seat */
    /* Between machines: machines send each other all of the one chunk, which saves a round. */
    bool at_once;
    /* Chunks that this member exchanges, numbered over all sums of the group: how far they are. */
    size_t exchange_end, opened, sent, awaited, added, received, settled;
    ucs_status_t status;
};

/* Lays the chunk's pieces out in group->pieces; returns the chunk's floats. */
size_t eth_hpp_ucx_sum_lay(const struct eth_hpp_ucx_sum *sum, size_t chunk);
/* Where a chunk lies in slots that follow each other. */
float *eth_hpp_ucx_sum_slot(const struct eth_hpp_ucx_group *group, float *slots, size_t chunk);

static inline int eth_hpp_ucx_members_here(const struct eth_hpp_ucx_group *group)
{
    return group->machine_start[group->machine + 1] - group->machine_start[group->machine];
}

/* The rank of a member of a machine. */
static inline int eth_hpp_ucx_member(const struct eth_hpp_ucx_group *group, int machine, int seat)
{
    return group->ranks[group->order[group->machine_start[machine] + seat]];
}

/* The member of a machine that exchanges a chunk. */
static inline int eth_hpp_ucx_exchanger(const struct eth_hpp_ucx_group *group, int machine,
                                        size_t chunk)
{
    const int members = group->machine_start[machine + 1] - group->machine_start[machine];
    return (int)(chunk % (size_t)members);
}

/* By whole vectors, which compilers do at -O2 only where they see how many floats there are. */
static inline void eth_hpp_ucx_add(float *restrict total, const float *restrict addend,
                                   size_t count)
{
    enum { VECTOR = 16 };
    size_t i = 0;
    for (; i + VECTOR <= count; i += VECTOR)
        for (size_t j = 0; j < VECTOR; j++)
            total[i + j] += addend[i + j];
    for (; i < count; i++)
        total[i] += addend[i];
}

/* ---- inside the machine (ucx_near.c, ucx_near_sum.c); group->near is not NULL ---- */

enum eth_hpp_ucx_counter {
    ETH_HPP_UCX_BEGUN,
    ETH_HPP_UCX_FILLED,
    ETH_HPP_UCX_SUMMED,
    ETH_HPP_UCX_EXCHANGED,
    ETH_HPP_UCX_TAKEN
};

/* Have all members of this machine counted that far? Remembers who has not. */
bool eth_hpp_ucx_near_all_have(struct eth_hpp_ucx_sum *sum, enum eth_hpp_ucx_counter counter,
                               size_t count);
/* Tells the others that this member has counted that far. */
void eth_hpp_ucx_near_count(const struct eth_hpp_ucx_group *group, atomic_size_t *counter,
                            size_t count);
/* Have all members of this machine summed their parts of the chunk? */
bool eth_hpp_ucx_near_summed(struct eth_hpp_ucx_sum *sum, size_t chunk);
/* The chunk has been exchanged by this member. */
void eth_hpp_ucx_near_exchanged(struct eth_hpp_ucx_sum *sum, size_t chunk);
/* One thing of one chunk, the one that others wait for first; false where nothing can be done. */
bool eth_hpp_ucx_near_advance(struct eth_hpp_ucx_sum *sum);

/* ---- in place, inside one machine (ucx_direct_sum.c); group->near->reaches ---- */

void eth_hpp_ucx_direct_begin(struct eth_hpp_ucx_sum *sum);
/* Sets sum->way as soon as all members have begun; false before. */
bool eth_hpp_ucx_direct_decide(struct eth_hpp_ucx_sum *sum);
/* Does a step; false if nothing can be done. */
bool eth_hpp_ucx_direct_advance(struct eth_hpp_ucx_sum *sum);

/* ---- between machines (ucx_far_sum.c) ---- */

/* Makes group->far where there are several machines. */
enum eth_hpp_status eth_hpp_ucx_far_open(struct eth_hpp_ucx_group *group,
                                         struct eth_hpp_error *err);
void eth_hpp_ucx_far_free(struct eth_hpp_ucx_group *group);
void eth_hpp_ucx_far_begin(struct eth_hpp_ucx_sum *sum);
/* Does what can be done; false if that was nothing. */
bool eth_hpp_ucx_far_advance(struct eth_hpp_ucx_sum *sum);
/* Has every chunk that this member exchanges been exchanged, or failed for good? */
bool eth_hpp_ucx_far_is_over(const struct eth_hpp_ucx_sum *sum);

#endif
