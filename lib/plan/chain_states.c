/* The dynamic programming: the best last stages over each state's GPUs. */
#include <string.h>

#include "plan/chain_kit.h"

enum { NARROW = 8, WORK_UNIT = 32 };

static int bucket_of(int in_flight)
{
    int bucket = 31 - __builtin_clz((unsigned)in_flight);
    return bucket < ETH_HPP_CHAIN_BUCKETS ? bucket : ETH_HPP_CHAIN_BUCKETS - 1;
}

/* The state at hand. */
struct place {
    int state, used[ETH_HPP_CLASSES_POOLS];
    double left[ETH_HPP_CHAIN_BUCKETS]; /* layers that the GPUs that it leaves can take */
};

static void find_left(const struct eth_hpp_chains *chains, struct place *place)
{
    for (int b = 0; b < ETH_HPP_CHAIN_BUCKETS; b++) {
        place->left[b] = 0;
        for (int p = 0; p < chains->pools; p++)
            place->left[b] += (chains->units[p] - place->used[p]) * chains->capacity[p][b];
    }
}

/* Keeps a label unless others leave as few layers with as few micro-batches in flight. */
static void keep_label(struct eth_hpp_chains *chains, int state,
                       const struct eth_hpp_chain_label *label)
{
    struct eth_hpp_chain_label *kept = chains->labels[state];
    int count = chains->label_count[state], at = 0;
    for (int i = 0; i < count; i++)
        if (kept[i].first <= label->first && kept[i].in_flight <= label->in_flight &&
            kept[i].narrow <= label->narrow)
            return;
    for (int i = 0; i < count; i++) /* those that it replaces go */
        if (kept[i].first < label->first || kept[i].in_flight < label->in_flight ||
            kept[i].narrow < label->narrow)
            kept[at++] = kept[i];
    if (at == ETH_HPP_CHAIN_LABELS) { /* the one that leaves most layers goes */
        int worst = 0;
        for (int i = 1; i < ETH_HPP_CHAIN_LABELS; i++)
            if (kept[i].first > kept[worst].first)
                worst = i;
        if (kept[worst].first < label->first)
            return;
        at--;
        kept[worst] = kept[at];
    }
    kept[at++] = *label;
    chains->label_count[state] = (unsigned char)at;
}

bool eth_hpp_chain_crosses(const struct eth_hpp_chains *chains,
                           const struct eth_hpp_chain_type *type,
                           const struct eth_hpp_chain_label *label)
{
    const struct eth_hpp_chain_type *next = &chains->types[label->type];
    int per_node = chains->shop->pools.pools[type->pool].per_node;
    int like = chains->by_stage ? chains->task->replicas : 1;
    if (next->pool != type->pool)
        return true;
    if (chains->task->gpus[type->pool] * like <= per_node)
        return false;
    return next->units != type->units ||
           label->run * type->units * chains->unit[type->pool] * like % per_node == 0;
}

/* Counts a hand-over that crosses nodes; false where their networks do not carry it. */
static bool count_crossing(const struct eth_hpp_chains *chains, int from, int to,
                           struct eth_hpp_chain_label *out)
{
    const int pools[] = {from, to};
    for (int i = 0; i < 2; i++) {
        if (out->crossings[pools[i]] >= chains->crossings[pools[i]])
            return false;
        out->crossings[pools[i]]++;
        out->narrow += chains->crossings[pools[i]] < NARROW;
    }
    return true;
}

/* Micro-batches that a stage in front of the label's holds in flight. */
static int flight_before(const struct eth_hpp_chains *chains,
                         const struct eth_hpp_chain_label *label, double hand_s)
{
    int more = label->depth + 1;
    if (chains->flight == ETH_HPP_CHAIN_LEVEL && label->depth > 0) {
        double round_s = (label->seconds + 2 * hand_s) * (1 - 1e-6);
        more = label->in_flight + 1 + (round_s > chains->beat_s) + (round_s > 2 * chains->beat_s);
    }
    if (chains->flight == ETH_HPP_CHAIN_HALF)
        more = (label->depth + 2) / 2;
    if (chains->flight == ETH_HPP_CHAIN_SINGLE)
        more = 1;
    return more < chains->most_in_flight ? more : chains->most_in_flight;
}

/* How far the stage reaches with what stages in front of `depth` others may take longer. */
static int reach_more(const struct eth_hpp_chains *chains, const struct eth_hpp_chain_type *type,
                      int depth, int first, int end)
{
    const double *until_s = type->worker->until_s;
    double s = until_s[end] - until_s[first], limit_s = chains->beat_s * chains->scale[depth];
    if (chains->scale[depth] <= 1)
        return first;
    while (first > 0 && s + until_s[first] - until_s[first - 1] <= limit_s &&
           (type->sum_s == 0 || (end - first + 1) * type->sum_s <= chains->sums_s)) {
        first--;
        s += until_s[first + 1] - until_s[first];
    }
    return first;
}

/* Puts a stage of a type in front of the stages of a label; false where it takes no layer or where
 * what is left of the GPUs cannot take the layers before it. */
static bool put_before(const struct eth_hpp_chains *chains, const struct place *place, int type,
                       const struct eth_hpp_chain_label *label, struct eth_hpp_chain_label *out)
{
    const struct eth_hpp_chain_type *t = &chains->types[type];
    int end = label->first, next = chains->types[label->type].pool;
    bool across = label->depth > 0 && eth_hpp_chain_crosses(chains, t, label);
    bool plain = chains->flight != ETH_HPP_CHAIN_LEVEL && label->depth > 0;
    double hand_s = 0;
    if (label->depth > 0)
        hand_s = across ? chains->across_s[t->pool][next] : chains->within_s[t->pool];
    int in_flight = flight_before(chains, label, hand_s), bucket = bucket_of(in_flight);
    int first = (plain ? t->reach_plain : t->reach)[end];
    first = reach_more(chains, t, label->depth, first, end);
    double left = place->left[bucket] - t->units * chains->capacity[t->pool][bucket] + 1e-9;
    if (first == end || hand_s > chains->beat_s || chains->below[first] > left)
        return false;
    int holds = eth_hpp_chain_worker_holds(&chains->workers, t->worker, in_flight, end);
    first = first > holds ? first : holds;
    if (first == end || chains->below[first] > left)
        return false;
    *out = *label;
    out->depth = (int16_t)(label->depth + 1);
    out->in_flight = (int16_t)in_flight;
    out->first = (int16_t)first;
    bool same = next == t->pool && chains->types[label->type].units == t->units && label->depth > 0;
    out->run = (uint8_t)(same ? label->run + 1 : 1);
    out->type = (int16_t)type;
    out->seconds = (float)(t->worker->until_s[end] - t->worker->until_s[first]);
    return !across || count_crossing(chains, t->pool, next, out);
}

/* Puts stages of all types in front of a label of the state. Returns how many were tried. */
static int extend(struct eth_hpp_chains *chains, const struct place *place, int index)
{
    const struct eth_hpp_chain_label *label = &chains->labels[place->state][index];
    int tried = 0;
    for (int p = 0; p < chains->pools; p++)
        for (int i = chains->first_active[p]; i < chains->first_active[p + 1]; i++) {
            int type = chains->active[i], units = chains->types[type].units;
            int most = chains->last.depth > 0 ? chains->last.depth - 1 : chains->most_depth;
            struct eth_hpp_chain_label made;
            tried++;
            if (units > chains->units[p] - place->used[p] || label->depth >= most ||
                !put_before(chains, place, type, label, &made))
                continue;
            made.from = (int16_t)index;
            int state = place->state + units * chains->stride[p];
            if (made.first == 0) {
                chains->last = made;
                chains->last_state = state;
            } else if (made.depth < most) {
                keep_label(chains, state, &made);
            }
        }
    return tried;
}

/* Looks for the chain of fewest stages at a beat; true if there is one. */
bool eth_hpp_chain_try(struct eth_hpp_chains *chains, double beat_s)
{
    struct place place = {0};
    int64_t tried = 0;
    eth_hpp_chain_set_beat(chains, beat_s);
    memset(chains->label_count, 0, (size_t)chains->state_count);
    chains->label_count[0] = 1;
    chains->labels[0][0] =
        (struct eth_hpp_chain_label){.first = (int16_t)chains->shop->cost->profile->layer_count};
    chains->last.depth = 0;
    for (place.state = 0; place.state < chains->state_count; place.state++) {
        if (chains->label_count[place.state] > 0)
            find_left(chains, &place);
        for (int i = 0; i < chains->label_count[place.state]; i++)
            tried += extend(chains, &place, i);
        for (int p = 0; p < chains->pools; p++) { /* the next number in a mixed radix */
            if (place.used[p]++ < chains->units[p])
                break;
            place.used[p] = 0;
        }
    }
    chains->shop->work += 1 + tried / WORK_UNIT;
    chains->tries += tried;
    return chains->last.depth > 0;
}
