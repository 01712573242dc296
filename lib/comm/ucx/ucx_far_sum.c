/*
 * A chunk's sum over machines. Each machine has a part of the chunk: the others send it theirs of
 * that part, it adds them in the order of the machines and sends all the sum. So a chunk takes two
 * rounds of messages, however many machines there are, and the bits are the same everywhere. Of
 * machines m, each starts with the one after it, so that no one receives from all at once.
 *
 * Where little is to be summed over few machines they send each other all of it and each adds all:
 * one round of larger messages.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/ucx/ucx_sum.h"

/* A round costs about as much as this many bytes more. */
#define ROUND_BYTES (56 << 10)

enum message_kind { SCATTER_SEND, SCATTER_RECEIVE, GATHER_SEND, GATHER_RECEIVE, MESSAGE_KINDS };

struct far_message {
    struct eth_hpp_ucx_message message;
    struct eth_hpp_ucx_group *group;
    int *pending;
    bool under_way;
};

/* The exchange of one chunk. */
struct exchange {
    int pending[MESSAGE_KINDS];
    struct far_message *messages[MESSAGE_KINDS]; /* [machines] */
    float *scratch;                              /* [machines - 1] parts */
};

struct eth_hpp_ucx_far {
    struct exchange exchanges[ETH_HPP_UCX_SLOTS];
    struct far_message *messages;
    float *scratch;
};

struct part {
    float *data;
    size_t count;
};

/* The bytes that the one round of all data costs more than two rounds of parts. */
static size_t extra_bytes(int machines, size_t bytes)
{
    const size_t n = (size_t)machines;
    return bytes * (n - 1) * (n - 2) / n;
}

static size_t members_here(const struct eth_hpp_ucx_group *group)
{
    return (size_t)eth_hpp_ucx_members_here(group);
}

static size_t chunk_of(const struct eth_hpp_ucx_sum *sum, size_t exchange)
{
    return exchange * members_here(sum->group) + (size_t)sum->group->seat;
}

static struct exchange *flight_of(const struct eth_hpp_ucx_sum *sum, size_t exchange)
{
    return &sum->group->far->exchanges[exchange % ETH_HPP_UCX_SLOTS];
}

/* A machine's part of the chunk that was laid out last. Where one half of a sum is wanted it is the
 * members' pieces, else all parts are alike, whatever the number of members. */
static struct part part_of(const struct eth_hpp_ucx_sum *sum, size_t chunk, size_t floats,
                           int machine)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    const struct eth_hpp_ucx_piece *first = &group->pieces[group->machine_start[machine]];
    const struct eth_hpp_ucx_piece *last = &group->pieces[group->machine_start[machine + 1] - 1];
    size_t from = first->at, end = last->at + last->count;
    if (group->near == NULL)
        return sum->at_once ? (struct part){sum->data, floats}
                            : (struct part){sum->data + first->from, first->count};
    if (sum->halves == ETH_HPP_SUM_WHOLE) {
        from = eth_hpp_comm_share(floats, group->machines, machine);
        end = eth_hpp_comm_share(floats, group->machines, machine + 1);
    }
    if (sum->at_once) {
        from = 0;
        end = floats;
    }
    return (struct part){eth_hpp_ucx_sum_slot(group, group->near->sums, chunk) + from, end - from};
}

/* Of another machine's addends for this one's part, `floats` each. */
static float *scratch_of(const struct eth_hpp_ucx_sum *sum, const struct exchange *flight,
                         size_t floats, int machine)
{
    return flight->scratch + floats * (size_t)(machine - (machine > sum->group->machine));
}

/* ---- messages ---- */

static void landed(struct eth_hpp_ucx_message *message, ucs_status_t status)
{
    struct far_message *m = (struct far_message *)message;
    struct eth_hpp_ucx_sum *sum = (struct eth_hpp_ucx_sum *)m->group->first;
    if (status != UCS_OK && sum->status == UCS_OK)
        sum->status = status;
    m->under_way = false;
    --*m->pending;
    eth_hpp_ucx_group_touch(m->group);
}

static void start(const struct eth_hpp_ucx_sum *sum, size_t exchange, enum message_kind kind,
                  int machine, float *data, size_t count)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    struct exchange *flight = flight_of(sum, exchange);
    struct far_message *m = &flight->messages[kind][machine];
    const int seat = eth_hpp_ucx_exchanger(group, machine, chunk_of(sum, exchange));
    const int peer = eth_hpp_ucx_member(group, machine, seat);
    const enum eth_hpp_ucx_kind tag_kind =
        kind == SCATTER_SEND || kind == SCATTER_RECEIVE ? ETH_HPP_UCX_SCATTER : ETH_HPP_UCX_GATHER;
    if (count == 0)
        return;
    flight->pending[kind]++;
    m->under_way = true;
    if (kind == SCATTER_SEND || kind == GATHER_SEND)
        eth_hpp_ucx_send(group->ucx, &m->message, data, count * sizeof(float), peer, tag_kind,
                         group->id);
    else
        eth_hpp_ucx_receive(group->ucx, &m->message, data, count * sizeof(float), peer, tag_kind,
                            group->id);
}

/* Starts a kind of message with every other machine, the next one first (receives: the one before).
 */
static void start_all(const struct eth_hpp_ucx_sum *sum, size_t exchange, enum message_kind kind)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    const size_t chunk = chunk_of(sum, exchange), floats = eth_hpp_ucx_sum_lay(sum, chunk);
    const struct part own = part_of(sum, chunk, floats, group->machine);
    const bool sends = kind == SCATTER_SEND || kind == GATHER_SEND;
    for (int i = 1; i < group->machines; i++) {
        const int step = sends ? i : group->machines - i;
        const int machine = (group->machine + step) % group->machines;
        struct part part = part_of(sum, chunk, floats, machine);
        if (kind == SCATTER_RECEIVE)
            part = (struct part){scratch_of(sum, flight_of(sum, exchange), own.count, machine),
                                 own.count};
        else if (kind == GATHER_SEND)
            part = own;
        start(sum, exchange, kind, machine, part.data, part.count);
    }
}

/* ---- the steps of an exchange ---- */

static void add_all(const struct eth_hpp_ucx_sum *sum, size_t exchange)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    const struct exchange *flight = flight_of(sum, exchange);
    const size_t chunk = chunk_of(sum, exchange), floats = eth_hpp_ucx_sum_lay(sum, chunk);
    const struct part own = part_of(sum, chunk, floats, group->machine);
    float total[ETH_HPP_UCX_ADD_BLOCK];
    for (size_t at = 0; at < own.count; at += ETH_HPP_UCX_ADD_BLOCK) {
        const size_t left = own.count - at;
        const size_t count = left < ETH_HPP_UCX_ADD_BLOCK ? left : ETH_HPP_UCX_ADD_BLOCK;
        for (int machine = 0; machine < group->machines; machine++) {
            const float *from =
                machine == group->machine ? own.data : scratch_of(sum, flight, own.count, machine);
            if (machine == 0)
                memcpy(total, from + at, count * sizeof(float));
            else
                eth_hpp_ucx_add(total, from + at, count);
        }
        memcpy(own.data + at, total, count * sizeof(float));
    }
}

static bool may_open(const struct eth_hpp_ucx_sum *sum)
{
    return sum->opened < sum->exchange_end && sum->opened < sum->settled + ETH_HPP_UCX_SLOTS;
}

static bool may_send(struct eth_hpp_ucx_sum *sum)
{
    return sum->sent < sum->opened &&
           (sum->group->near == NULL || eth_hpp_ucx_near_summed(sum, chunk_of(sum, sum->sent)));
}

/* Sums are received over what must have been sent. */
static bool may_await(const struct eth_hpp_ucx_sum *sum)
{
    return sum->awaited < sum->sent && flight_of(sum, sum->awaited)->pending[SCATTER_SEND] == 0;
}

static bool may_add(const struct eth_hpp_ucx_sum *sum)
{
    return sum->added < sum->sent && flight_of(sum, sum->added)->pending[SCATTER_RECEIVE] == 0 &&
           (!sum->at_once || sum->added < sum->awaited);
}

static bool has_received(const struct eth_hpp_ucx_sum *sum)
{
    return sum->received < sum->added && sum->received < sum->awaited &&
           flight_of(sum, sum->received)->pending[GATHER_RECEIVE] == 0;
}

static bool has_settled(const struct eth_hpp_ucx_sum *sum)
{
    return sum->settled < sum->received && flight_of(sum, sum->settled)->pending[GATHER_SEND] == 0;
}

/* One step of one exchange, what others wait for first; false where there is none. */
static bool do_one(struct eth_hpp_ucx_sum *sum)
{
    const bool scatters = sum->halves & ETH_HPP_SUM_SCATTER;
    const bool gathers = (sum->halves & ETH_HPP_SUM_GATHER) && !sum->at_once;
    if (may_add(sum)) {
        if (scatters)
            add_all(sum, sum->added);
        if (gathers)
            start_all(sum, sum->added, GATHER_SEND);
        sum->added++;
    } else if (may_send(sum)) {
        if (scatters)
            start_all(sum, sum->sent, SCATTER_SEND);
        sum->sent++;
    } else if (may_await(sum)) {
        if (gathers)
            start_all(sum, sum->awaited, GATHER_RECEIVE);
        sum->awaited++;
    } else if (has_received(sum)) {
        if (sum->group->near != NULL)
            eth_hpp_ucx_near_exchanged(sum, chunk_of(sum, sum->received));
        sum->received++;
    } else if (has_settled(sum)) {
        sum->settled++;
    } else if (may_open(sum)) {
        if (scatters)
            start_all(sum, sum->opened, SCATTER_RECEIVE);
        sum->opened++;
    } else {
        return false;
    }
    return true;
}

/* A message that has not come, or else not left; NULL where all have. */
static const struct far_message *missing(const struct eth_hpp_ucx_group *group)
{
    const struct far_message *left = NULL;
    const size_t count = (size_t)group->machines * MESSAGE_KINDS * ETH_HPP_UCX_SLOTS;
    for (size_t i = 0; i < count; i++) {
        const struct far_message *m = &group->far->messages[i];
        if (m->under_way && m->message.receive)
            return m;
        if (m->under_way)
            left = m;
    }
    return left;
}

bool eth_hpp_ucx_far_advance(struct eth_hpp_ucx_sum *sum)
{
    bool some = false;
    while (sum->status == UCS_OK && do_one(sum))
        some = true;
    const struct far_message *m = missing(sum->group);
    if (m != NULL)
        atomic_store(&sum->base.waits_for, m->message.peer);
    return some;
}

bool eth_hpp_ucx_far_is_over(const struct eth_hpp_ucx_sum *sum)
{
    if (sum->status == UCS_OK)
        return sum->settled == sum->exchange_end;
    return missing(sum->group) == NULL;
}

/* The first exchange of this member whose chunk is not before the given one. */
static size_t exchange_from(const struct eth_hpp_ucx_group *group, size_t chunk)
{
    const size_t members = members_here(group);
    return (chunk + members - 1 - (size_t)group->seat) / members;
}

void eth_hpp_ucx_far_begin(struct eth_hpp_ucx_sum *sum)
{
    const struct eth_hpp_ucx_group *group = sum->group;
    sum->opened = sum->sent = sum->awaited = sum->added = sum->received = sum->settled =
        exchange_from(group, sum->first);
    sum->exchange_end = exchange_from(group, sum->end);
    sum->at_once = sum->halves == ETH_HPP_SUM_WHOLE && sum->end == sum->first + 1 &&
                   extra_bytes(group->machines, sum->count * sizeof(float)) <= ROUND_BYTES;
}

/* ---- memory ---- */

/* The floats of a machine's part of a chunk, of all chunk where it is sent at once. */
static size_t part_most(const struct eth_hpp_ucx_group *group)
{
    const size_t pieces = group->chunk / (size_t)group->count * members_here(group);
    const size_t share = group->chunk / (size_t)group->machines + 1;
    return pieces > share ? pieces : share;
}

static size_t at_once_most(const struct eth_hpp_ucx_group *group)
{
    size_t floats = group->chunk;
    while (extra_bytes(group->machines, floats * sizeof(float)) > ROUND_BYTES)
        floats /= 2;
    return 2 * floats < group->chunk ? 2 * floats : group->chunk;
}

enum eth_hpp_status eth_hpp_ucx_far_open(struct eth_hpp_ucx_group *group, struct eth_hpp_error *err)
{
    const size_t machines = (size_t)group->machines;
    const size_t flight = (machines - 1) * part_most(group);
    const size_t at_once = (machines - 1) * at_once_most(group);
    struct eth_hpp_ucx_far *far = calloc(1, sizeof(*far));
    if (far == NULL)
        return eth_hpp_error_memory(err, "a group of ranks");
    group->far = far;
    far->messages = calloc(machines * MESSAGE_KINDS * ETH_HPP_UCX_SLOTS, sizeof(*far->messages));
    /* A sum that is sent at once is one chunk, and so may use the others' memory. */
    far->scratch = malloc(sizeof(float) * (ETH_HPP_UCX_SLOTS * flight + at_once));
    if (far->messages == NULL || far->scratch == NULL)
        return eth_hpp_error_memory(err, "a group of ranks");
    struct far_message *next = far->messages;
    for (size_t e = 0; e < ETH_HPP_UCX_SLOTS; e++) {
        struct exchange *exchange = &far->exchanges[e];
        exchange->scratch = far->scratch + e * flight;
        for (int kind = 0; kind < MESSAGE_KINDS; kind++) {
            exchange->messages[kind] = next;
            for (size_t machine = 0; machine < machines; machine++, next++) {
                next->message.done = landed;
                next->group = group;
                next->pending = &exchange->pending[kind];
            }
        }
    }
    return ETH_HPP_OK;
}

void eth_hpp_ucx_far_free(struct eth_hpp_ucx_group *group)
{
    if (group->far == NULL)
        return;
    free(group->far->messages);
    free(group->far->scratch);
    free(group->far);
}
