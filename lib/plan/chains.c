#include "plan/chains.h"

#include <math.h>
#include <stdlib.h>

#include "plan/chain_kit.h"

/* Micro-batches of a pipeline of which one more or less matters. */
enum { FEW = 64 };

/* How closely the beat is bisected. */
static const double close_of[] = {[ETH_HPP_EFFORT_QUICK] = 1.03,
                                  [ETH_HPP_EFFORT_DEFAULT] = 1.01,
                                  [ETH_HPP_EFFORT_THOROUGH] = 1.003};

#define CLOSE_COARSE 1.05

struct eth_hpp_chains *eth_hpp_chains_make(struct eth_hpp_workshop *shop)
{
    struct eth_hpp_chains *chains = calloc(1, sizeof(*chains));
    if (chains == NULL)
        return NULL;
    chains->shop = shop;
    chains->pools =
        shop->pools.count < ETH_HPP_CLASSES_POOLS ? shop->pools.count : ETH_HPP_CLASSES_POOLS;
    eth_hpp_chain_workers_init(&chains->workers, shop);
    size_t layers = (size_t)shop->cost->profile->layer_count + 1;
    chains->carried_s = malloc((size_t)shop->cost->cluster->node_count * (size_t)chains->pools *
                               sizeof(*chains->carried_s));
    chains->below = malloc(layers * sizeof(*chains->below));
    chains->reach = malloc(3 * ETH_HPP_CHAIN_TYPES * layers * sizeof(*chains->reach));
    if (chains->carried_s == NULL || chains->below == NULL || chains->reach == NULL) {
        eth_hpp_chains_free(chains);
        return NULL;
    }
    for (size_t i = 0; i < layers; i++)
        chains->below[i] = eth_hpp_cost_count(shop->cost, chains->workers.main_kind, 0, (int)i);
    for (size_t t = 0; t < ETH_HPP_CHAIN_TYPES; t++) {
        chains->types[t].reach = chains->reach + 3 * t * layers;
        chains->types[t].reach_plain = chains->reach + (3 * t + 1) * layers;
        chains->types[t].summed = chains->reach + (3 * t + 2) * layers;
    }
    return chains;
}

void eth_hpp_chains_free(struct eth_hpp_chains *chains)
{
    if (chains == NULL)
        return;
    eth_hpp_chain_workers_free(&chains->workers);
    free(chains->labels);
    free(chains->label_count);
    free(chains->carried_s);
    free(chains->below);
    free(chains->reach);
    free(chains);
}

void eth_hpp_chain_out_of_memory(struct eth_hpp_chains *chains)
{
    chains->shop->failed = true;
    eth_hpp_error_memory(&chains->shop->error, "the solver");
}

/* Seconds of all micro-batches: the first ones are run, the others go by at the beat. */
static double run_s(struct eth_hpp_chains *chains, struct eth_hpp_stage_run *runs, int stages,
                    double beat_s)
{
    struct eth_hpp_error *err = &chains->shop->error;
    double rounds = fmax(1, chains->task->rounds), end_s = INFINITY;
    int n = rounds < FEW ? (int)ceil(rounds) : FEW;
    if (eth_hpp_pipeline_run(runs, stages, n, false, &chains->shop->evaluator.pipeline, &end_s,
                             err) != ETH_HPP_OK)
        chains->shop->failed = true;
    return fmax(end_s + (rounds - n) * beat_s, rounds * beat_s);
}

/* Writes the chain that was found last, and returns what its micro-batches take. */
static double write_chain(struct eth_hpp_chains *chains, struct eth_hpp_draft_group *group,
                          double *beat_s, double *exposed_s)
{
    struct eth_hpp_stage_run runs[ETH_HPP_DRAFT_STAGES] = {0};
    const struct eth_hpp_chain_label *label = &chains->last;
    int state = chains->last_state;
    double drain_s = 0; /* from a stage's last backward to that of the first stage */
    *exposed_s = 0;
    *group = (struct eth_hpp_draft_group){.replicas = chains->task->replicas,
                                          .by_stage = chains->by_stage,
                                          .micro_batch = chains->task->micro_batch};
    for (int s = 0, depth = label->depth; s < depth; s++) {
        const struct eth_hpp_chain_type *type = &chains->types[label->type];
        state -= type->units * chains->stride[type->pool];
        const struct eth_hpp_chain_label *next = &chains->labels[state][label->from];
        group->stages[group->stage_count++] =
            (struct eth_hpp_draft_stage){.layers = next->first - label->first,
                                         .degree = type->degree,
                                         .recompute = type->worker->like.recompute,
                                         .part_count = 1,
                                         .parts = {{type->pool, type->width}}};
        runs[s].forward_s =
            label->seconds / 3; /* as is usual; only how forwards are held up depends on it */
        runs[s].backward_s = label->seconds - runs[s].forward_s;
        double sums_s = (next->first - label->first) * type->sum_s;
        double gather_s = chains->task->share < 1 ? sums_s / 2 : 0; /* which nothing hides */
        *exposed_s = fmax(*exposed_s, fmax(0, sums_s - gather_s - drain_s) + gather_s);
        runs[s].in_flight = label->in_flight;
        if (s + 1 < depth) {
            int pool = type->pool, to = chains->types[next->type].pool;
            runs[s].transfer_s = eth_hpp_chain_crosses(chains, type, next)
                                     ? chains->across_s[pool][to]
                                     : chains->within_s[pool];
        }
        drain_s += runs[s].backward_s + runs[s].transfer_s;
        label = next;
    }
    *beat_s = eth_hpp_pipeline_find_pace(runs, group->stage_count, 4 * group->stage_count).beat_s;
    double network_s = eth_hpp_chain_network_s(chains, group);
    double s = fmax(run_s(chains, runs, group->stage_count, *beat_s) + *exposed_s, network_s);
    *beat_s = fmax(*beat_s, (network_s - chains->pass_s) / fmax(1, chains->task->rounds));
    return s;
}

/* The shortest chain so far. */
struct best {
    double s, beat_s;
    enum eth_hpp_chain_flight flight;
    double exposed_s; /* by which the sums of the chain found last end after its last backward */
    struct eth_hpp_draft_group *group;
};

/* Tries a beat, and takes the chain if it is better. *beat_s becomes the chain's own beat. */
static bool improve(struct eth_hpp_chains *chains, double *beat_s, struct best *best)
{
    struct eth_hpp_draft_group group;
    if (!eth_hpp_chain_try(chains, *beat_s))
        return false;
    double own_s, s = write_chain(chains, &group, &own_s, &best->exposed_s);
    if (own_s < *beat_s)
        *beat_s = own_s;
    if (s < best->s) {
        best->s = s;
        best->beat_s = own_s;
        best->flight = chains->flight;
        *best->group = group;
    }
    return true;
}

/* Looks for the shortest beat between one that no chain can have and the longest of use. Beats near
 * the first are tried first: what cannot be is found out soonest there. */
static void bisect(struct eth_hpp_chains *chains, enum eth_hpp_chain_flight flight, double low,
                   double high, struct best *best)
{
    double close = chains->task->coarse ? CLOSE_COARSE : close_of[chains->shop->effort],
           more = close - 1, beat_s = 0, least = low;
    if (low == INFINITY)
        return;
    chains->flight = flight;
    high = fmin(high, ETH_HPP_CHAIN_SLOW * low);
    for (; beat_s < high; more *= 2) {
        beat_s = fmin(least * (1 + more), high);
        if (beat_s < low || chains->tries >= chains->limit)
            return;
        if (improve(chains, &beat_s, best))
            break;
        if (beat_s >= high)
            return;
        low = beat_s;
    }
    for (high = beat_s; high > close * low && chains->tries < chains->limit;) {
        double middle = sqrt(low * high);
        if (improve(chains, &middle, best))
            high = middle;
        else
            low = middle;
    }
}

/* The longest beat with which a chain could be better by a per cent. */
static double longest_beat_s(const struct eth_hpp_chains *chains, const struct best *best)
{
    double rounds = fmax(1, chains->task->rounds), fill_s = eth_hpp_chain_least_fill(chains);
    double limit_s = 0.99 * best->s;
    return rounds > 1 ? fmin(limit_s / rounds, (limit_s - fill_s) / (rounds - 1)) : limit_s;
}

/* Seconds in which the best stages of a pool sum their layers at the beat that was set last. */
static double natural_sums_s(const struct eth_hpp_chains *chains)
{
    double longest_s = 0;
    for (int p = 0; p < chains->pools; p++) {
        double most = 0, sums_s = 0;
        for (int t = chains->first_type[p]; t < chains->first_type[p + 1]; t++) {
            double layers = eth_hpp_chain_layers(&chains->types[t], 0);
            if (layers / chains->types[t].units <= most)
                continue;
            most = layers / chains->types[t].units;
            sums_s = layers * chains->types[t].sum_s;
        }
        longest_s = fmax(longest_s, sums_s);
    }
    return longest_s;
}

/* About the least time of any chain of the task, sums included, INFINITY where that is not below
 * limit_s; chains->exposed becomes what sums may take after the last backward in it. Where they
 * take long, fewer layers for stages on slow networks may be worth a longer beat. */
static double choose_sums(struct eth_hpp_chains *chains, double limit_s, double *unlimited_s)
{
    double rounds = fmax(1, chains->task->rounds), best_s = limit_s, best = INFINITY, known_s = 0;
    double exposed = INFINITY;
    for (int turn = 0; turn < 7; turn++) {
        double ignored_s, most_s = best_s / rounds / (turn == 0 ? 1 : 1 + exposed);
        chains->exposed = exposed;
        double low =
            eth_hpp_chain_least_beat(chains, known_s, most_s, turn == 0 ? unlimited_s : &ignored_s);
        if (low == INFINITY)
            break;
        double fill_s = fmax(low, eth_hpp_chain_least_fill(chains));
        double compute_s = (rounds - 1) * low + fill_s;
        known_s = low;
        if (turn == 0)
            exposed = fmax(0, natural_sums_s(chains) - fill_s / 3) / compute_s;
        double s = (1 + exposed) * compute_s;
        if (s < best_s) {
            best_s = s;
            best = chains->exposed;
        }
        if (exposed < 0.01) /* the beat only grows from here on */
            break;
        exposed /= 2;
    }
    chains->exposed = best;
    return best_s < limit_s ? best_s : INFINITY;
}

double eth_hpp_chains_bound(struct eth_hpp_chains *chains, const struct eth_hpp_chain_task *task,
                            bool *tight)
{
    double unlimited_s;
    if (!eth_hpp_chain_prepare(chains, task, task->alone && task->replicas > 1))
        return INFINITY;
    double s = choose_sums(chains, task->limit_s, &unlimited_s);
    *tight = *tight || fmin(s, task->limit_s) > 1.02 * fmax(1, task->rounds) * unlimited_s;
    return s;
}

/* Do hand-overs take so little of a beat that to hide them is not worth more micro-batches in
 * flight? */
static bool has_short_hand_overs(const struct eth_hpp_chains *chains, double beat_s)
{
    for (int p = 0; p < chains->pools; p++)
        if (chains->task->gpus[p] > 0 && 2 * chains->across_s[p][p] > 0.03 * beat_s)
            return false;
    return true;
}

/* Looks for a chain whose stages' sums take no longer than they may. */
static void find_placed(struct eth_hpp_chains *chains, struct best *best, bool *tight)
{
    double unlimited_s;
    double low = eth_hpp_chain_least_beat(chains, 0, INFINITY, &unlimited_s);
    if (chains->task->lean) {
        bisect(chains, ETH_HPP_CHAIN_HALF, low, longest_beat_s(chains, best), best);
        if (best->beat_s == INFINITY)
            bisect(chains, ETH_HPP_CHAIN_SINGLE, low, longest_beat_s(chains, best), best);
        return;
    }
    if (!has_short_hand_overs(chains, low))
        bisect(chains, ETH_HPP_CHAIN_LEVEL, low, longest_beat_s(chains, best), best);
    if (best->beat_s > 1.02 * unlimited_s && (!chains->task->coarse || best->beat_s == INFINITY))
        bisect(chains, ETH_HPP_CHAIN_PLAIN, low,
               fmin(0.98 * best->beat_s, longest_beat_s(chains, best)), best);
    *tight = *tight || best->beat_s > 1.02 * unlimited_s;
}

/* Looks for a chain with the nodes given out one way. */
static void find_summed(struct eth_hpp_chains *chains, const struct eth_hpp_chain_task *task,
                        bool by_stage, struct best *best, bool *tight)
{
    double unlimited_s;
    if (!eth_hpp_chain_prepare(chains, task, by_stage))
        return;
    if (choose_sums(chains, best->s, &unlimited_s) == INFINITY)
        return;
    double chosen = chains->exposed;
    best->exposed_s = 0;
    find_placed(chains, best, tight);
    if (task->coarse)
        return;
    if (chosen < INFINITY) {
        chains->exposed = INFINITY; /* what was chosen is reckoned, not known */
        find_placed(chains, best, tight);
    }
    double exposed = best->exposed_s / fmax(best->s - best->exposed_s, best->exposed_s);
    int step = chains->shop->effort == ETH_HPP_EFFORT_QUICK ? 4 : 2;
    for (int part = step; part <= 8 && task->alone && exposed / part > 0.01; part *= step) {
        chains->exposed = exposed / part;
        bisect(chains, best->flight, eth_hpp_chain_least_beat(chains, 0, INFINITY, &unlimited_s),
               longest_beat_s(chains, best), best);
    }
    if (task->rounds > FEW)
        return;
    /* While the last stages wait for the first micro-batch the first ones work, and they work on
     * when those are done: in n micro-batches there is time for one more. */
    chains->exposed = chosen;
    eth_hpp_chain_set_scale(chains, 1 + 1 / fmax(2, task->rounds));
    bisect(chains, best->flight, eth_hpp_chain_least_beat(chains, 0, INFINITY, &unlimited_s),
           longest_beat_s(chains, best), best);
}

void eth_hpp_chains_limit(struct eth_hpp_chains *chains, int64_t tries)
{
    chains->limit = chains->tries + tries;
}

int64_t eth_hpp_chains_tries(const struct eth_hpp_chains *chains)
{
    return chains->tries;
}

double eth_hpp_chains_find(struct eth_hpp_chains *chains, const struct eth_hpp_chain_task *task,
                           struct eth_hpp_draft_group *group, bool *tight)
{
    double unlimited_s;
    struct best best = {.s = task->limit_s, .beat_s = INFINITY, .group = group};
    if (task->alone && task->replicas > 1)
        find_summed(chains, task, true, &best, tight);
    if (!task->alone || task->replicas == 1 ||
        !has_short_hand_overs(chains, eth_hpp_chain_least_beat(chains, 0, INFINITY, &unlimited_s)))
        find_summed(chains, task, false, &best, tight);
    return best.beat_s < INFINITY ? best.s : INFINITY;
}
