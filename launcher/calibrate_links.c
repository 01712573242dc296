/* Latency and bandwidth of one pair after the other, over the transport that training uses. */
#include "base/clock.h"
#include "launcher/calibrate.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/emulation.h"

enum {
    PINGS = 10,
    LARGE_MESSAGES = 3,
    FIRST_BYTES = 1 << 20,
    MOST_BYTES = 32 << 20,
    TAG = 0x4c0000,
    WAIT_S = 20
};
#define TOGETHER_S 0.6 /* all rounds */

/* What messages are sent from and received to. */
struct room {
    uint64_t size;
    char answer[8];
    char message[MOST_BYTES];
};

static enum eth_hpp_status send_to(struct eth_hpp_comm *comm, int peer, const void *data,
                                   size_t size, struct eth_hpp_error *err)
{
    struct eth_hpp_request *request;
    enum eth_hpp_status status = eth_hpp_comm_send(comm, data, size, peer, TAG, &request, err);
    return status != ETH_HPP_OK ? status : eth_hpp_comm_wait(comm, request, WAIT_S, err);
}

static enum eth_hpp_status recv_from(struct eth_hpp_comm *comm, int peer, void *data, size_t size,
                                     struct eth_hpp_error *err)
{
    struct eth_hpp_request *request;
    enum eth_hpp_status status = eth_hpp_comm_recv(comm, data, size, peer, TAG, &request, err);
    return status != ETH_HPP_OK ? status : eth_hpp_comm_wait(comm, request, WAIT_S, err);
}

/* Sends `size` bytes and waits for the answer: seconds for both. */
static enum eth_hpp_status time_message(struct eth_hpp_comm *comm, int peer, struct room *room,
                                        size_t size, double *seconds, struct eth_hpp_error *err)
{
    double start = eth_hpp_clock_now();
    enum eth_hpp_status status = send_to(comm, peer, room->message, size, err);
    if (status == ETH_HPP_OK)
        status = recv_from(comm, peer, room->answer, sizeof(room->answer), err);
    *seconds = eth_hpp_clock_now() - start;
    return status;
}

/* Bandwidth from two messages of unlike size, so that latency and set-up cancel. */
static double slope(double small_s, double large_s, size_t small, size_t large)
{
    double seconds = large_s - small_s;
    double extra = (double)(large - small);
    return seconds > 0.1 * large_s ? extra / seconds : (double)large / large_s;
}

/* The side that measures. The peer is told each size beforehand; 0 ends. */
static enum eth_hpp_status lead(struct eth_hpp_comm *comm, struct eth_hpp_link_measure *pair,
                                double budget_s, struct room *room, struct eth_hpp_error *err)
{
    double seconds = 0, least = 1e9, first_s = 0, second_s = 0;
    enum eth_hpp_status status = ETH_HPP_OK;
    for (int i = 0; i < PINGS && status == ETH_HPP_OK; i++) {
        status = time_message(comm, pair->to, room, 8, &seconds, err);
        least = seconds < least ? seconds : least;
    }
    /* The first large message makes connections and buffers ready; the second one tells how large
     * the others may be. What disturbs a message only makes it longer. */
    for (int i = 0; i < 2 && status == ETH_HPP_OK; i++)
        status = time_message(comm, pair->to, room, FIRST_BYTES, &first_s, err);
    double fits =
        first_s > 0 ? 0.8 / LARGE_MESSAGES * budget_s / first_s * FIRST_BYTES : MOST_BYTES;
    room->size = fits < 2.0 * FIRST_BYTES ? 2 * FIRST_BYTES
                 : fits > MOST_BYTES      ? MOST_BYTES
                                          : (uint64_t)fits;
    if (status == ETH_HPP_OK)
        status = send_to(comm, pair->to, &room->size, sizeof(room->size), err);
    for (int i = 0; i < LARGE_MESSAGES && status == ETH_HPP_OK; i++) {
        status = time_message(comm, pair->to, room, room->size, &seconds, err);
        second_s = i == 0 || seconds < second_s ? seconds : second_s;
    }
    if (status != ETH_HPP_OK)
        return status;
    pair->latency_s = least / 2;
    pair->bandwidth = slope(first_s, second_s, FIRST_BYTES, room->size);
    return ETH_HPP_OK;
}

static enum eth_hpp_status answer(struct eth_hpp_comm *comm, int peer, struct room *room,
                                  size_t size, struct eth_hpp_error *err)
{
    enum eth_hpp_status status = recv_from(comm, peer, room->message, size, err);
    return status != ETH_HPP_OK ? status
                                : send_to(comm, peer, room->answer, sizeof(room->answer), err);
}

static enum eth_hpp_status follow(struct eth_hpp_comm *comm, int peer, struct room *room,
                                  struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    for (int i = 0; i < PINGS && status == ETH_HPP_OK; i++)
        status = answer(comm, peer, room, 8, err);
    for (int i = 0; i < 2 && status == ETH_HPP_OK; i++)
        status = answer(comm, peer, room, FIRST_BYTES, err);
    if (status == ETH_HPP_OK)
        status = recv_from(comm, peer, &room->size, sizeof(room->size), err);
    if (status == ETH_HPP_OK && room->size > MOST_BYTES)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_PEER,
                                   "rank %d asks for a message of %llu bytes in calibration", peer,
                                   (unsigned long long)room->size);
    for (int i = 0; i < LARGE_MESSAGES && status == ETH_HPP_OK; i++)
        status = answer(comm, peer, room, room->size, err);
    return status;
}

enum eth_hpp_status eth_hpp_calibrate_links(struct eth_hpp_comm *comm, int rank,
                                            struct eth_hpp_link_measure *pairs, const int *rounds,
                                            int pair_count, struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    int last = pair_count > 0 ? rounds[pair_count - 1] : 0;
    double budget_s = TOGETHER_S / (last + 1);
    struct room *room = malloc(sizeof(*room));
    if (room == NULL)
        return eth_hpp_error_memory(err, "calibration");
    memset(room, 1, sizeof(*room)); /* or the first use of each page would be measured */
    /* A rank's pairs stand in the list in one order for both ends, so no two wait for each other.
     */
    for (int i = 0; i < pair_count && status == ETH_HPP_OK; i++) {
        if (pairs[i].from == rank)
            status = lead(comm, &pairs[i], budget_s, room, err);
        else if (pairs[i].to == rank)
            status = follow(comm, pairs[i].from, room, err);
    }
    /* After an error the transport may use it still, until the process ends. */
    if (status == ETH_HPP_OK)
        free(room);
    return status;
}
