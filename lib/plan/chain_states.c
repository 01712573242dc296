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
        place->left[b] = chains->end_more; /* one of them may be the first stage */
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
    int gpus = type->units * chains->unit[type->pool] * like; /* that stages take together */
    return next->units != type->units || per_node % gpus != 0 || label->run * gpus % per_node == 0;
}

/* May a hand-over between the pools cross nodes, or do their networks not carry one more? */
static bool may_cross(const struct eth_hpp_chains *chains, const struct eth_hpp_chain_label *label,
                      int from, int to)
{
    return label->crossings[from] + (from == to) < chains->crossings[from] &&
           label->crossings[to] < chains->crossings[to];
}

static void count_crossing(const struct eth_hpp_chains *chains, int from, int to,
                           struct eth_hpp_chain_label *out)
{
    out->crossings[from]++;
    out->crossings[to]++;
    out->narrow += (chains->crossings[from] < NARROW) + (chains->crossings[to] < NARROW);
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

/* How stages of a pool hand over to the stages of a label. */
struct way {
    bool open;
    int in_flight; /* in a stage in front */
    int bucket;    /* of that */
};

static struct way find_way(const struct eth_hpp_chains *chains,
                           const struct eth_hpp_chain_label *label, int pool, bool across)
{
    int next = chains->types[label->type].pool;
    double hand_s = across ? chains->across_s[pool][next] : chains->within_s[pool];
    struct way way = {true, 0, 0};
    if (label->depth == 0)
        hand_s = 0;
    if (hand_s > chains->beat_s || (across && !may_cross(chains, label, pool, next)))
        return (struct way){false, 0, 0};
    way.in_flight = flight_before(chains, label, hand_s);
    way.bucket = bucket_of(way.in_flight);
    return way;
}

/* Does the stage stand on one node with all that is behind it? */
static bool is_on_last_node(const struct eth_hpp_chains *chains,
                            const struct eth_hpp_chain_type *type,
                            const struct eth_hpp_chain_label *label)
{
    const struct eth_hpp_chain_type *next = &chains->types[label->type];
    int like = chains->by_stage ? chains->task->replicas : 1;
    if (label->depth == 0)
        return true;
    return label->run == label->depth && next->pool == type->pool && next->units == type->units &&
           (label->depth + 1) * type->units * chains->unit[type->pool] * like <=
               chains->shop->pools.pools[type->pool].per_node;
}

/* How far the stage reaches from `first` on with what stages in front of others may take longer,
 * and with what their nodes' networks carry more of where they hand over on one side only. */
static int reach_more(const struct eth_hpp_chains *chains, const struct eth_hpp_chain_type *type,
                      const struct eth_hpp_chain_label *label, int first)
{
    const double *until_s = type->worker->until_s;
    double limit_s = chains->beat_s * chains->scale[label->depth] * (1 + 1e-9);
    int end = label->first, least = type->summed[end], most = first;
    while (most > least && until_s[end] - until_s[most - 1] <= limit_s &&
           end - most < type->most_end)
        most--;
    if (most == 0 || is_on_last_node(chains, type, label))
        return most;
    int between = end - type->most;
    return most > between ? most : between < first ? between : first;
}

/* The first layer of a stage of a type in front of the stages of a label; their first one where it
 * takes no layer, or where what is left of the GPUs cannot take the layers before it. */
static int find_first(const struct eth_hpp_chains *chains, const struct place *place,
                      const struct eth_hpp_chain_type *type,
                      const struct eth_hpp_chain_label *label, const struct way *way)
{
    int end = label->first;
    bool plain = chains->flight != ETH_HPP_CHAIN_LEVEL && label->depth > 0;
    int first = (plain ? type->reach_plain : type->reach)[end];
    if (type->most < type->most_end || chains->scale[label->depth] > 1)
        first = reach_more(chains, type, label, first);
    double left =
        place->left[way->bucket] - type->units * chains->capacity[type->pool][way->bucket] + 1e-9;
    if (first == end || chains->below[first] > left)
        return end;
    int holds = eth_hpp_chain_worker_holds(&chains->workers, type->worker, way->in_flight, end);
    first = first > holds ? first : holds;
    return chains->below[first] > left ? end : first;
}

/* Puts a stage of a type, from a layer on, in front of the stages of a label. */
static struct eth_hpp_chain_label put_before(const struct eth_hpp_chains *chains, int type,
                                             int first, const struct eth_hpp_chain_label *label,
                                             int in_flight)
{
    const struct eth_hpp_chain_type *t = &chains->types[type], *next = &chains->types[label->type];
    const double *until_s = t->worker->until_s;
    struct eth_hpp_chain_label out = *label;
    bool same = next->pool == t->pool && next->units == t->units && label->depth > 0;
    out.depth = (int16_t)(label->depth + 1);
    out.in_flight = (int16_t)in_flight;
    out.first = (int16_t)first;
    out.run = (uint8_t)(same ? label->run + 1 : 1);
    out.type = (int16_t)type;
    out.seconds = (float)(until_s[label->first] - until_s[first]);
    return out;
}

/* Puts stages of a pool's types in front of a label of the state. */
static void extend_with(struct eth_hpp_chains *chains, const struct place *place, int index,
                        int pool)
{
    const struct eth_hpp_chain_label *label = &chains->labels[place->state][index];
    int next = chains->types[label->type].pool, spare = chains->units[pool] - place->used[pool];
    struct way inside = {false, 0, 0}, across = {false, 0, 0};
    if (label->depth == 0 || pool == next)
        inside = find_way(chains, label, pool, false);
    if (label->depth > 0)
        across = find_way(chains, label, pool, true);
    for (int i = chains->first_active[pool]; i < chains->first_active[pool + 1]; i++) {
        const struct eth_hpp_chain_type *type = &chains->types[chains->active[i]];
        int most = chains->last.depth > 0 ? chains->last.depth - 1 : chains->most_depth;
        if (type->units > spare)
            continue;
        if (label->depth >= most)
            return;
        bool crosses = label->depth > 0 && eth_hpp_chain_crosses(chains, type, label);
        const struct way *way = crosses ? &across : &inside;
        int first = way->open ? find_first(chains, place, type, label, way) : label->first;
        if (first == label->first)
            continue;
        struct eth_hpp_chain_label made =
            put_before(chains, chains->active[i], first, label, way->in_flight);
        made.from = (int16_t)index;
        if (crosses)
            count_crossing(chains, pool, next, &made);
        int state = place->state + type->units * chains->stride[pool];
        if (first == 0) {
            chains->last = made;
            chains->last_state = state;
        } else if (made.depth < most) {
            keep_label(chains, state, &made);
        }
    }
}

/* Puts stages of all types in front of a label of the state. Returns how many were tried. */
static int extend(struct eth_hpp_chains *chains, const struct place *place, int index)
{
    for (int p = 0; p < chains->pools; p++)
        if (place->used[p] < chains->units[p])
            extend_with(chains, place, index, p);
    return chains->first_active[chains->pools];
}

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
        if (chains->task->coarse && chains->last.depth > 0)
            break; /* fewer stages may do */
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
