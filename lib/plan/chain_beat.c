/* What types of stages take at a beat, and which beats cannot be. */
#include <math.h>
#include <string.h>

#include "plan/chain_kit.h"

/* Stages that take so many times fewer layers a GPU than the best of their pool are of no use. */
#define POOR 1.4
/* What stages may take is reckoned as with so many behind them. */
enum { TYPICAL = 4 };

double eth_hpp_chain_layers(const struct eth_hpp_chain_type *type, int bucket)
{
    return type->held[bucket] < type->likely ? type->held[bucket] : type->likely;
}

static int whole(double layers)
{
    return layers < INT16_MAX ? (int)layers : INT16_MAX;
}

/* Layers of a stage of the type whose sums take no longer than that. */
static int summed_within(const struct eth_hpp_chain_type *type, double s)
{
    return s < 0 ? 0 : whole(s * type->sums_per_s);
}

/* The first layer of the longest stage of the type up to `end` whose sums take no longer than they
 * may and than the layers before it take for their last backward. */
static int summed_first(const struct eth_hpp_chains *chains, const struct eth_hpp_chain_type *type,
                        int end)
{
    double first = (end * type->sum_s - chains->sums_s) / (type->sum_s + chains->drain_s);
    return first > 0 ? (int)ceil(first) : 0;
}

/* What stages of a type take at a beat of `beat_s` in a step of `step_s`. */
static void set_likely(struct eth_hpp_chains *chains, struct eth_hpp_chain_type *type,
                       double beat_s, double step_s)
{
    int layers = chains->shop->cost->profile->layer_count;
    int likely = whole(beat_s * (1 + 1e-9) * chains->scale[TYPICAL] * type->rate);
    int summed = summed_within(type, chains->sums_s + chains->drain_s * layers / 2);
    likely = likely < summed ? likely : summed;
    type->most = summed_within(type, step_s - 2 * type->cross_s);
    type->most_end = summed_within(type, step_s - type->cross_s);
    int end = likely < type->most_end ? likely : type->most_end;
    likely = likely < type->most ? likely : type->most;
    type->likely = likely;
    chains->end_more = fmax(chains->end_more, end - likely);
}

/* Layers that stages take at a beat, with each number of micro-batches in flight: those of a unit
 * of each pool's GPUs, and of the best stage of all. */
static void reckon(struct eth_hpp_chains *chains, double beat_s)
{
    double step_s = (fmax(1, chains->task->rounds) - 1) * beat_s + fmax(chains->pass_s, beat_s);
    double *longest = chains->longest;
    chains->sums_s = chains->exposed * step_s;
    chains->end_more = 0;
    memset(chains->capacity, 0, sizeof(chains->capacity));
    memset(chains->longest, 0, sizeof(chains->longest));
    for (int t = 0; t < chains->type_count; t++) {
        struct eth_hpp_chain_type *type = &chains->types[t];
        double *capacity = chains->capacity[type->pool];
        set_likely(chains, type, beat_s, step_s);
        for (int b = 0; b < ETH_HPP_CHAIN_BUCKETS; b++) {
            double layers = type->held[b] < type->likely ? type->held[b] : type->likely;
            double each = layers * type->part;
            capacity[b] = capacity[b] > each ? capacity[b] : each;
            longest[b] = longest[b] > layers ? longest[b] : layers;
        }
    }
}

/* Is a type never worth its GPUs at the beat: does another of as many of them take as many layers
 * with any number of micro-batches in flight, or the best type of its pool twice as many a GPU? */
static bool is_useless(const struct eth_hpp_chains *chains, int t)
{
    const struct eth_hpp_chain_type *type = &chains->types[t];
    bool poor = true;
    for (int b = 0; b < ETH_HPP_CHAIN_BUCKETS; b++)
        poor = poor &&
               POOR * eth_hpp_chain_layers(type, b) < type->units * chains->capacity[type->pool][b];
    for (int i = chains->first_type[type->pool]; i < chains->first_type[type->pool + 1]; i++) {
        const struct eth_hpp_chain_type *other = &chains->types[i];
        bool better = other->units == type->units && i != t;
        bool same = other->worker->layer_s == type->worker->layer_s;
        for (int b = 0; b < ETH_HPP_CHAIN_BUCKETS && better; b++) {
            better = eth_hpp_chain_layers(other, b) >= eth_hpp_chain_layers(type, b);
            same = same && eth_hpp_chain_layers(other, b) == eth_hpp_chain_layers(type, b);
        }
        if (better && (same ? i < t : other->worker->layer_s <= type->worker->layer_s))
            return true;
    }
    return poor;
}

/* The types that are of use at the beat, and how far their stages reach. */
static void list_active(struct eth_hpp_chains *chains)
{
    int layers = chains->shop->cost->profile->layer_count, count = 0;
    for (int p = 0; p < chains->pools; p++) {
        chains->first_active[p] = count;
        for (int t = chains->first_type[p]; t < chains->first_type[p + 1]; t++) {
            struct eth_hpp_chain_type *type = &chains->types[t];
            if (eth_hpp_chain_layers(type, 0) == 0 ? type->most_end == 0 || type->most > 0
                                                   : is_useless(chains, t))
                continue;
            chains->active[count++] = t;
            bool inside = type->units * chains->unit[p] < chains->shop->pools.pools[p].per_node;
            bool limited = type->sum_s > 0 && chains->sums_s < INFINITY;
            double hand_s = inside ? chains->within_s[p] : chains->across_s[p][p];
            if (limited)
                for (int end = 0; end <= layers; end++)
                    type->summed[end] = (int16_t)summed_first(chains, type, end);
            else
                memset(type->summed, 0, (size_t)(layers + 1) * sizeof(*type->summed));
            eth_hpp_chain_worker_reach(type->worker, chains->beat_s * (1 + 1e-9), type->most,
                                       type->summed, layers, type->reach);
            if (chains->flight != ETH_HPP_CHAIN_LEVEL)
                eth_hpp_chain_worker_reach(type->worker, chains->beat_s - 2 * hand_s, type->most,
                                           type->summed, layers, type->reach_plain);
        }
    }
    chains->first_active[chains->pools] = count;
}

void eth_hpp_chain_set_beat(struct eth_hpp_chains *chains, double beat_s)
{
    chains->beat_s = beat_s;
    reckon(chains, beat_s);
    for (int p = 0; p < chains->pools; p++) {
        bool many = chains->network_s[p] * UINT8_MAX < beat_s;
        chains->crossings[p] = many ? UINT8_MAX : (int)(beat_s / chains->network_s[p]);
    }
    list_active(chains);
}

/* Could all GPUs together take all layers at the beat? A stage with d - 1 behind it holds d
 * micro-batches in flight at least: of the first 2^b stages each takes what the best type does with
 * as few as it may hold, and the others no more than their GPUs do with 2^b. */
static bool could_take(struct eth_hpp_chains *chains, double beat_s)
{
    int all = chains->below[chains->shop->cost->profile->layer_count];
    reckon(chains, beat_s);
    double behind = 2 * chains->end_more;
    for (int b = 0; b < ETH_HPP_CHAIN_BUCKETS && 1 << b <= chains->most_in_flight; b++) {
        double layers = behind;
        for (int p = 0; p < chains->pools; p++)
            layers += chains->units[p] * chains->capacity[p][b];
        if (layers < all)
            return false;
        if (chains->task->lean)
            break;
        behind += chains->longest[b] * (1 << b);
    }
    return true;
}

/* The beat were memory no matter. */
static double unlimited_beat(const struct eth_hpp_chains *chains)
{
    double rate = 0;
    for (int p = 0; p < chains->pools; p++) {
        double best = 0;
        for (int t = chains->first_type[p]; t < chains->first_type[p + 1]; t++) {
            double each = chains->types[t].worker->layer_s * chains->types[t].units;
            best = 1 / each > best ? 1 / each : best;
        }
        rate += chains->units[p] * best;
    }
    return chains->below[chains->shop->cost->profile->layer_count] / rate;
}

double eth_hpp_chain_least_beat(struct eth_hpp_chains *chains, double known_s, double most_s,
                                double *unlimited_s)
{
    *unlimited_s = unlimited_beat(chains);
    double low = fmax(known_s, *unlimited_s),
           high = fmin(most_s, ETH_HPP_CHAIN_SLOW * *unlimited_s);
    if (low > high)
        return INFINITY;
    if (could_take(chains, low))
        return low;
    if (!could_take(chains, high))
        return INFINITY;
    for (double more = 1.01; more * low < high; more *= more) { /* most are not far from it */
        if (could_take(chains, more * low)) {
            high = more * low;
            break;
        }
        low *= more;
    }
    while (high > 1.01 * low) {
        double middle = sqrt(low * high);
        *(could_take(chains, middle) ? &high : &low) = middle;
    }
    return low;
}

/* About the least time in which a micro-batch passes all layers, where the pools share them by what
 * they could take at the beat that was set last. */
double eth_hpp_chain_least_fill(const struct eth_hpp_chains *chains)
{
    double layers = 0, s = 0;
    for (int p = 0; p < chains->pools; p++) {
        double most = 0, layer_s = 0;
        for (int t = chains->first_type[p]; t < chains->first_type[p + 1]; t++) {
            const struct eth_hpp_chain_type *type = &chains->types[t];
            double each = eth_hpp_chain_layers(type, 0) / type->units;
            if (each > most) {
                most = each;
                layer_s = type->worker->layer_s;
            }
        }
        layers += chains->units[p] * most;
        s += chains->units[p] * most * layer_s;
    }
    double all = chains->below[chains->shop->cost->profile->layer_count];
    return layers > 0 ? 0.85 * s * all / layers : 0;
}
