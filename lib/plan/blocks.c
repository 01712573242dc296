/* Blocks: what is summed together because the same ranks hold it. */
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_ints(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static bool stage_holds_tied(const struct eth_hpp_stage *stage,
                             const struct eth_hpp_profile *profile, const struct eth_hpp_tied *tied)
{
    for (int i = stage->first_layer; i < stage->end_layer; i++)
        if (tied->kinds >> profile->layers[i] & 1)
            return true;
    return false;
}

static bool stage_owns(const struct eth_hpp_stage *stage, const struct eth_hpp_block *block,
                       const struct eth_hpp_profile *profile)
{
    if (block->tied >= 0)
        return stage_holds_tied(stage, profile, &profile->tied[block->tied]);
    return stage->first_layer <= block->first_layer && block->end_layer <= stage->end_layer;
}

/* Lists the ranks of all stages that own the block, ascending. */
static enum eth_hpp_status fill_owners(const struct eth_hpp_plan *plan,
                                       const struct eth_hpp_profile *profile,
                                       struct eth_hpp_block *block, struct eth_hpp_error *err)
{
    for (int pass = 0; pass < 2; pass++) {
        int count = 0;
        for (int p = 0; p < plan->pipeline_count; p++)
            for (int s = 0; s < plan->pipelines[p].stage_count; s++) {
                const struct eth_hpp_stage *stage = &plan->pipelines[p].stages[s];
                if (!stage_owns(stage, block, profile))
                    continue;
                for (int w = 0; w < stage->worker_count; w++)
                    for (int t = 0; t < stage->tensor_parallel; t++, count++)
                        if (pass == 1)
                            block->ranks[count] = stage->workers[w].ranks[t];
            }
        if (pass == 0) {
            block->ranks = malloc((size_t)(count > 0 ? count : 1) * sizeof(*block->ranks));
            if (block->ranks == NULL)
                return eth_hpp_error_memory(err, "the plan's blocks");
            block->rank_count = count;
        }
    }
    qsort(block->ranks, (size_t)block->rank_count, sizeof(*block->ranks), compare_ints);
    return ETH_HPP_OK;
}

/* Marks the layers at which a stage begins anywhere; returns their number. */
static int mark_cuts(const struct eth_hpp_plan *plan, bool *cut)
{
    int count = 0;
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++) {
            int layer = plan->pipelines[p].stages[s].first_layer;
            count += !cut[layer];
            cut[layer] = true;
        }
    return count;
}

/* Holds the tied blocks that the plan has against those that follow from the profile. */
static enum eth_hpp_status check_tied(const struct eth_hpp_plan *plan,
                                      const struct eth_hpp_block *made, int count, int given,
                                      struct eth_hpp_error *err)
{
    if (given != count)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "the plan has %d blocks of tied tensors, the profile %d tied "
                                 "tensors: leave the plan's \"blocks\" out, or correct them",
                                 given, count);
    for (int b = 0; b < plan->block_count; b++) {
        const struct eth_hpp_block *block = &plan->blocks[b];
        int t = 0;
        while (block->tied >= 0 && t < count && strcmp(made[t].tied_name, block->tied_name) != 0)
            t++;
        if (block->tied < 0)
            continue;
        if (t == count)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                     "blocks[%d].tied: the profile has no tied tensor \"%s\"", b,
                                     block->tied_name);
        if (block->rank_count != made[t].rank_count ||
            memcmp(block->ranks, made[t].ranks, (size_t)made[t].rank_count * sizeof(int)) != 0)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                     "blocks[%d].ranks: are not the %d ranks that hold \"%s\"", b,
                                     made[t].rank_count, block->tied_name);
    }
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_plan_make_blocks(struct eth_hpp_plan *plan,
                                             const struct eth_hpp_profile *profile,
                                             struct eth_hpp_error *err)
{
    int old_tied = 0, tied = profile != NULL ? profile->tied_count : 0;
    for (int b = 0; b < plan->block_count; b++)
        old_tied += plan->blocks[b].tied >= 0;
    if (profile == NULL)
        tied = old_tied;
    bool *cut = calloc((size_t)plan->layers + 1, sizeof(*cut));
    int layer_blocks = cut != NULL ? mark_cuts(plan, cut) : 0;
    struct eth_hpp_block *blocks = calloc((size_t)(layer_blocks + tied), sizeof(*blocks));
    enum eth_hpp_status status = ETH_HPP_OK;
    int count = 0;
    if (cut == NULL || blocks == NULL) {
        status = eth_hpp_error_memory(err, "the plan's blocks");
        goto out;
    }
    for (int layer = 0; layer < plan->layers && status == ETH_HPP_OK;) {
        struct eth_hpp_block *block = &blocks[count++];
        block->tied = -1;
        block->first_layer = layer++;
        while (layer < plan->layers && !cut[layer])
            layer++;
        block->end_layer = layer;
        status = fill_owners(plan, profile, block, err);
    }
    for (int t = 0; profile != NULL && t < tied && status == ETH_HPP_OK; t++) {
        struct eth_hpp_block *block = &blocks[count++];
        block->tied = t;
        snprintf(block->tied_name, sizeof(block->tied_name), "%s", profile->tied[t].name);
        status = fill_owners(plan, profile, block, err);
    }
    if (status == ETH_HPP_OK && profile != NULL && old_tied > 0)
        status = check_tied(plan, blocks + layer_blocks, tied, old_tied, err);
    if (status != ETH_HPP_OK)
        goto out;
    for (int b = 0; b < plan->block_count; b++) {
        if (profile == NULL && plan->blocks[b].tied >= 0)
            blocks[count++] = plan->blocks[b];
        else
            free(plan->blocks[b].ranks);
    }
    free(plan->blocks);
    plan->blocks = blocks;
    plan->block_count = count;
    blocks = NULL;
    count = 0;
out:
    for (int b = 0; b < count; b++)
        free(blocks[b].ranks);
    free(blocks);
    free(cut);
    return status;
}
