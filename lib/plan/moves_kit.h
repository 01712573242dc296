/* What moves are made of; not for others than the moves. */
#ifndef ETH_HPP_PLAN_MOVES_KIT_H
#define ETH_HPP_PLAN_MOVES_KIT_H

#include "plan/moves.h"

/* A random number in [0, most). */
int eth_hpp_moves_below(struct eth_hpp_search *search, int most);
/* The group in focus, or a random one; a random stage of a group. */
struct eth_hpp_draft_group *eth_hpp_moves_group(struct eth_hpp_search *search);
struct eth_hpp_draft_stage *eth_hpp_moves_stage(struct eth_hpp_search *search,
                                                struct eth_hpp_draft_group *group);
/* GPUs of a pool that the draft leaves idle; below 0: it uses more than there are. */
int eth_hpp_moves_idle(const struct eth_hpp_search *search, int pool);
/* Puts a stage in front of stage `at`, for which there must be room; takes stage `at` out. */
void eth_hpp_moves_insert(struct eth_hpp_draft_group *group, int at,
                          const struct eth_hpp_draft_stage *stage);
void eth_hpp_moves_remove(struct eth_hpp_draft_group *group, int at);

/* Each changes the draft and says whether it did. moves_stage.c: */
bool eth_hpp_move_cut(struct eth_hpp_search *search);
bool eth_hpp_move_cuts_between(struct eth_hpp_search *search);
bool eth_hpp_move_change_micro_batch(struct eth_hpp_search *search);
bool eth_hpp_move_change_in_flight(struct eth_hpp_search *search);
bool eth_hpp_move_change_recompute(struct eth_hpp_search *search);
bool eth_hpp_move_change_sharding(struct eth_hpp_search *search);
bool eth_hpp_move_change_workers(struct eth_hpp_search *search);
bool eth_hpp_move_shift_worker(struct eth_hpp_search *search);
bool eth_hpp_move_mix_stage(struct eth_hpp_search *search);
bool eth_hpp_move_change_pool(struct eth_hpp_search *search);
bool eth_hpp_move_swap_stages(struct eth_hpp_search *search);
bool eth_hpp_move_change_degree(struct eth_hpp_search *search);
bool eth_hpp_move_split_stage(struct eth_hpp_search *search);
bool eth_hpp_move_merge_stages(struct eth_hpp_search *search);
bool eth_hpp_move_add_stage(struct eth_hpp_search *search);

/* moves_group.c: */
bool eth_hpp_move_change_replicas(struct eth_hpp_search *search);
bool eth_hpp_move_reshape(struct eth_hpp_search *search);
bool eth_hpp_move_flatten(struct eth_hpp_search *search);
bool eth_hpp_move_deepen(struct eth_hpp_search *search);
bool eth_hpp_move_split_group(struct eth_hpp_search *search);
bool eth_hpp_move_drop_group(struct eth_hpp_search *search);
bool eth_hpp_move_add_group(struct eth_hpp_search *search);
bool eth_hpp_move_align_cuts(struct eth_hpp_search *search);
bool eth_hpp_move_change_placement(struct eth_hpp_search *search);
bool eth_hpp_move_rebalance(struct eth_hpp_search *search);

#endif
