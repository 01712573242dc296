#include <stdlib.h>
#include <string.h>

#include "comm/ucx/ucx_sum.h"

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Brings the members into the order of their machines, each alone on one where `apart`. */
static void arrange(struct eth_hpp_ucx_group *group, bool apart)
{
    int placed = 0;
    group->machines = 0;
    for (int i = 0; i < group->count; i++) {
        const int machine = group->ucx->peers[group->ranks[i]].machine;
        bool first = true;
        for (int j = 0; j < i && !apart; j++)
            first = first && group->ucx->peers[group->ranks[j]].machine != machine;
        if (!first)
            continue;
        group->machine_start[group->machines] = placed;
        for (int j = i; j < (apart ? i + 1 : group->count); j++) {
            if (!apart && group->ucx->peers[group->ranks[j]].machine != machine)
                continue;
            if (j == group->position) {
                group->machine = group->machines;
                group->seat = placed - group->machine_start[group->machines];
            }
            group->order[placed++] = j;
        }
        group->machines++;
    }
    group->machine_start[group->machines] = placed;
    group->chunk = group->machines == 1 ? ETH_HPP_UCX_NEAR_CHUNK
                                        : larger(ETH_HPP_UCX_FAR_CHUNK,
                                                 (size_t)group->machines * ETH_HPP_UCX_FAR_PART);
    group->chunk = larger(group->chunk, (size_t)group->count);
}

enum eth_hpp_status eth_hpp_ucx_group_make(struct eth_hpp_ucx *ucx, const int *ranks, int count,
                                           uint32_t id, struct eth_hpp_ucx_group **group,
                                           struct eth_hpp_error *err)
{
    int position = -1;
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= ucx->size || (i > 0 && ranks[i] <= ranks[i - 1]))
            return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL,
                                     "group %u: its ranks are not in ascending order within 0..%d",
                                     id, ucx->size - 1);
        if (ranks[i] == ucx->rank)
            position = i;
    }
    if (position < 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL, "group %u: rank %d is no member", id,
                                 ucx->rank);
    struct eth_hpp_ucx_group *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return eth_hpp_error_memory(err, "a group of ranks");
    g->ranks = malloc(sizeof(*ranks) * (size_t)count);
    g->order = malloc(sizeof(*g->order) * (size_t)count);
    g->machine_start = malloc(sizeof(*g->machine_start) * ((size_t)count + 1));
    g->pieces = malloc(sizeof(*g->pieces) * (size_t)count);
    if (g->ranks == NULL || g->order == NULL || g->machine_start == NULL || g->pieces == NULL) {
        eth_hpp_ucx_group_free(g);
        return eth_hpp_error_memory(err, "a group of ranks");
    }
    memcpy(g->ranks, ranks, sizeof(*ranks) * (size_t)count);
    g->ucx = ucx;
    g->count = count;
    g->position = position;
    g->id = id;
    arrange(g, false);
    *group = g;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_ucx_group_open(void *state, const int *ranks, int count, uint32_t id,
                                           void **group, struct eth_hpp_error *err)
{
    struct eth_hpp_ucx_group *made = NULL;
    struct eth_hpp_ucx *ucx = state;
    enum eth_hpp_status status = eth_hpp_ucx_group_make(ucx, ranks, count, id, &made, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_ucx_near_open(made, err);
    if (status == ETH_HPP_OK && made->near == NULL)
        arrange(made, true);
    if (status == ETH_HPP_OK && made->machines > 1)
        status = eth_hpp_ucx_far_open(made, err);
    if (status != ETH_HPP_OK) {
        made->next_near = ucx->given_up;
        ucx->given_up = made;
        return status;
    }
    *group = made;
    return ETH_HPP_OK;
}

void eth_hpp_ucx_group_free(void *group)
{
    struct eth_hpp_ucx_group *g = group;
    if (g == NULL)
        return;
    eth_hpp_ucx_near_free(g);
    eth_hpp_ucx_far_free(g);
    eth_hpp_ucx_group_free(g->here);
    free(g->ranks);
    free(g->order);
    free(g->machine_start);
    free(g->pieces);
    free(g);
}

void eth_hpp_ucx_group_touch(struct eth_hpp_ucx_group *group)
{
    if (group->ready)
        return;
    group->ready = true;
    group->next_ready = group->ucx->ready;
    group->ucx->ready = group;
}

void eth_hpp_ucx_group_enqueue(struct eth_hpp_ucx_group *group, struct eth_hpp_request *request)
{
    request->next = NULL;
    if (group->first == NULL)
        group->first = request;
    else
        group->last->next = request;
    group->last = request;
    eth_hpp_ucx_group_touch(group);
}

void eth_hpp_ucx_group_finish(struct eth_hpp_ucx_group *group, ucs_status_t status)
{
    struct eth_hpp_request *request = group->first;
    group->first = request->next;
    if (group->first != NULL)
        eth_hpp_ucx_group_touch(group);
    eth_hpp_ucx_complete(request, status);
}

bool eth_hpp_ucx_groups_poll(struct eth_hpp_ucx *ucx)
{
    struct eth_hpp_ucx_group *group = ucx->ready;
    ucx->ready = NULL;
    if (group == NULL)
        return false;
    while (group != NULL) {
        struct eth_hpp_ucx_group *next = group->next_ready;
        group->ready = false;
        if (group->first != NULL)
            group->first->advance(group->first);
        group = next;
    }
    return true;
}
