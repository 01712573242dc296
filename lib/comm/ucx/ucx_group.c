#include <stdlib.h>
#include <string.h>

#include "comm/ucx/ucx.h"

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
    if (g == NULL || (g->ranks = malloc(sizeof(*ranks) * (size_t)count)) == NULL) {
        free(g);
        return eth_hpp_error_memory(err, "a group of ranks");
    }
    memcpy(g->ranks, ranks, sizeof(*ranks) * (size_t)count);
    g->ucx = ucx;
    g->count = count;
    g->position = position;
    g->id = id;
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
    free(g->ranks);
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
