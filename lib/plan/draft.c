#include "plan/draft.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Runs of like layers. */
static bool find_runs(struct eth_hpp_workshop *shop, const struct eth_hpp_profile *profile)
{
    size_t layers = (size_t)profile->layer_count;
    shop->run_end = calloc(layers, sizeof(*shop->run_end));
    shop->run_begin = calloc(layers, sizeof(*shop->run_begin));
    if (shop->run_end == NULL || shop->run_begin == NULL)
        return false;
    for (int begin = 0, end; begin < profile->layer_count; begin = end) {
        for (end = begin + 1;
             end < profile->layer_count && profile->layers[end] == profile->layers[begin];)
            end++;
        for (int i = begin; i < end; i++) {
            shop->run_begin[i] = begin;
            shop->run_end[i] = end;
        }
    }
    return true;
}

enum eth_hpp_status eth_hpp_workshop_init(struct eth_hpp_workshop *shop,
                                          const struct eth_hpp_cost *cost,
                                          const struct eth_hpp_solver_options *options,
                                          struct eth_hpp_error *err)
{
    struct eth_hpp_workshop made = {
        .cost = cost, .options = options, .least_excess = INFINITY, .limit_s = INFINITY};
    enum eth_hpp_status status = eth_hpp_pools_make(cost, &made.pools, err);
    if (status != ETH_HPP_OK)
        return status;
    if (made.pools.count == 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "the profile has times of none of the cluster's devices");
    made.evaluator.cost = cost;
    made.evaluator.extrapolate = true;
    if (!find_runs(&made, cost->profile)) {
        eth_hpp_workshop_free(&made);
        return eth_hpp_error_memory(err, "the solver");
    }
    size_t pools = (size_t)made.pools.count;
    made.prices = calloc(ETH_HPP_DRAFT_GROUPS, sizeof(*made.prices));
    made.stands = calloc(ETH_HPP_DRAFT_GROUPS, sizeof(*made.stands));
    made.notes = calloc(ETH_HPP_DRAFT_NOTES, sizeof(*made.notes));
    made.smallest = calloc(pools * (1 + ETH_HPP_DRAFT_GROUPS), sizeof(*made.smallest));
    made.used = calloc(pools, sizeof(*made.used));
    for (size_t g = 0; made.stands != NULL && made.smallest != NULL && g < ETH_HPP_DRAFT_GROUPS;
         g++)
        made.stands[g].stride = made.smallest + pools * (1 + g); /* one piece of memory */
    if (made.prices == NULL || made.notes == NULL || made.stands == NULL || made.smallest == NULL ||
        made.used == NULL || !eth_hpp_yard_make(&made.yard, &made.pools) ||
        !eth_hpp_pipeline_remember(&made.evaluator.pipeline)) {
        eth_hpp_workshop_free(&made);
        return eth_hpp_error_memory(err, "the solver");
    }
    *shop = made;
    return ETH_HPP_OK;
}

void eth_hpp_workshop_free(struct eth_hpp_workshop *shop)
{
    eth_hpp_pools_free(&shop->pools);
    eth_hpp_evaluator_free(&shop->evaluator);
    eth_hpp_layout_free(&shop->forms);
    eth_hpp_layout_free(&shop->layout);
    eth_hpp_yard_free(&shop->yard);
    free(shop->prices);
    free(shop->stands);
    free(shop->notes);
    free(shop->smallest);
    free(shop->used);
    free(shop->run_end);
    free(shop->run_begin);
}

void eth_hpp_workshop_note_excess(struct eth_hpp_workshop *shop, int stage, int device, double peak,
                                  double limit)
{
    const struct eth_hpp_device *kind = &shop->cost->cluster->devices[device];
    if (peak <= limit || peak / limit >= shop->least_excess)
        return;
    shop->least_excess = peak / limit;
    snprintf(shop->excess, sizeof(shop->excess),
             "the best try needs %.2f GiB of the %.2f GiB of a %s in stage %d of its pipeline",
             peak / (1 << 30), limit / (1 << 30), kind->name, stage);
}

/* ---- samples inside a stage ---- */

/* Seconds that a part's worker takes with one more sample; INFINITY where that was not profiled. */
static double next_s(const struct eth_hpp_workshop *shop, const struct eth_hpp_draft_stage *stage,
                     int part, int first_layer, int total)
{
    int device = eth_hpp_draft_device(shop, stage, part);
    int samples = total / stage->parts[part].workers + 1;
    if (samples > eth_hpp_cost_most_samples(shop->cost, device, stage->degree))
        return INFINITY;
    struct eth_hpp_layer_time time =
        eth_hpp_cost_layers(shop->cost, device, stage->degree, first_layer,
                            first_layer + stage->layers, samples, false);
    return time.forward_s + time.backward_s;
}

/* Each sample goes to the part whose worker would be done first with one more; all workers of that
 * part then have the same claim, so they get one each. */
static bool split_mixed(const struct eth_hpp_workshop *shop,
                        const struct eth_hpp_draft_stage *stage, int first_layer, int micro_batch,
                        int *total)
{
    double next[ETH_HPP_DRAFT_PARTS];
    int given = 0;
    for (int p = 0; p < stage->part_count; p++) {
        total[p] = stage->parts[p].workers; /* one each to begin with */
        given += total[p];
        next[p] = next_s(shop, stage, p, first_layer, total[p]);
    }
    while (given < micro_batch) {
        int best = 0;
        for (int p = 1; p < stage->part_count; p++)
            best = next[p] < next[best] ? p : best;
        if (isinf(next[best]))
            return false;
        int workers = stage->parts[best].workers, more = workers - total[best] % workers;
        more = more < micro_batch - given ? more : micro_batch - given;
        total[best] += more;
        given += more;
        next[best] = next_s(shop, stage, best, first_layer, total[best]);
    }
    return true;
}

bool eth_hpp_draft_split(const struct eth_hpp_workshop *shop,
                         const struct eth_hpp_draft_stage *stage, int first_layer, int micro_batch,
                         int *samples)
{
    int total[ETH_HPP_DRAFT_PARTS] = {micro_batch}, at = 0;
    if (micro_batch < eth_hpp_draft_workers(stage))
        return false;
    if (stage->part_count > 1 && !split_mixed(shop, stage, first_layer, micro_batch, total))
        return false;
    for (int p = 0; p < stage->part_count; p++) {
        int workers = stage->parts[p].workers;
        int most = eth_hpp_cost_most_samples(shop->cost, eth_hpp_draft_device(shop, stage, p),
                                             stage->degree);
        for (int w = 0; w < workers; w++)
            samples[at++] = total[p] / workers + (w < total[p] % workers);
        if ((total[p] + workers - 1) / workers > most)
            return false;
    }
    return true;
}
