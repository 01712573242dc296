#include "sync_bootstrap.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What ranks have put, one record after the other: a key, the size of its value, the value. */
struct record {
    char key[ETH_HPP_BOOTSTRAP_KEY_MAX + 32];
    size_t size;
};

struct board {
    char *own;
    size_t own_size;
    char *all;         /* of all ranks, as of the last fence */
    int *size, *start; /* [ranks] of their parts of it */
    int ranks;
};

static enum eth_hpp_status board_put(void *state, const char *key, const void *value, size_t size,
                                     struct eth_hpp_error *err)
{
    struct board *board = state;
    struct record record = {.size = size};
    char *own = realloc(board->own, board->own_size + sizeof(record) + size);
    if (own == NULL)
        return eth_hpp_error_memory(err, "the exchange");
    strncpy(record.key, key, sizeof(record.key) - 1);
    memcpy(own + board->own_size, &record, sizeof(record));
    memcpy(own + board->own_size + sizeof(record), value, size);
    board->own = own;
    board->own_size += sizeof(record) + size;
    return ETH_HPP_OK;
}

static enum eth_hpp_status board_fence(void *state, double timeout_s, struct eth_hpp_error *err)
{
    struct board *board = state;
    int size = (int)board->own_size, total = 0;
    (void)timeout_s;
    MPI_Allgather(&size, 1, MPI_INT, board->size, 1, MPI_INT, MPI_COMM_WORLD);
    for (int rank = 0; rank < board->ranks; rank++) {
        board->start[rank] = total;
        total += board->size[rank];
    }
    char *all = realloc(board->all, (size_t)total + 1);
    if (all == NULL)
        return eth_hpp_error_memory(err, "the exchange");
    board->all = all;
    MPI_Allgatherv(board->own, size, MPI_CHAR, all, board->size, board->start, MPI_CHAR,
                   MPI_COMM_WORLD);
    return ETH_HPP_OK;
}

static enum eth_hpp_status board_get(void *state, int rank, const char *key, void **value,
                                     size_t *size, struct eth_hpp_error *err)
{
    struct board *board = state;
    struct record record;
    const char *end = board->all + board->start[rank] + board->size[rank];
    for (const char *at = board->all + board->start[rank]; at < end;
         at += sizeof(record) + record.size) {
        memcpy(&record, at, sizeof(record));
        if (strcmp(record.key, key) != 0)
            continue;
        *value = malloc(record.size + 1);
        if (*value == NULL)
            return eth_hpp_error_memory(err, "the exchange");
        memcpy(*value, at + sizeof(record), record.size);
        *size = record.size;
        return ETH_HPP_OK;
    }
    return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "rank %d has not published %s", rank, key);
}

static void board_abort(void *state, int exit_code, const char *why)
{
    (void)state;
    (void)why;
    MPI_Abort(MPI_COMM_WORLD, exit_code);
}

static void board_close(void *state)
{
    struct board *board = state;
    free(board->own);
    free(board->all);
    free(board->size);
    free(board->start);
    free(board);
}

static const struct eth_hpp_bootstrap_ops board_ops = {
    .name = "mpi",
    .put = board_put,
    .fence = board_fence,
    .get = board_get,
    .abort = board_abort,
    .close = board_close,
};

enum eth_hpp_status sync_bootstrap_open(struct eth_hpp_bootstrap **bootstrap,
                                        struct eth_hpp_error *err)
{
    struct eth_hpp_bootstrap_place place = {0};
    MPI_Comm node;
    struct board *board = calloc(1, sizeof(*board));
    if (board == NULL)
        return eth_hpp_error_memory(err, "the exchange");
    MPI_Comm_rank(MPI_COMM_WORLD, &place.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &place.size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, place.rank, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &place.local_rank);
    MPI_Comm_size(node, &place.local_size);
    MPI_Comm_free(&node);
    gethostname(place.host, sizeof(place.host) - 1);
    board->ranks = place.size;
    board->size = calloc((size_t)place.size, sizeof(int));
    board->start = calloc((size_t)place.size, sizeof(int));
    enum eth_hpp_status status = ETH_HPP_OK;
    if (board->size == NULL || board->start == NULL)
        status = eth_hpp_error_memory(err, "the exchange");
    if (status == ETH_HPP_OK)
        status = eth_hpp_bootstrap_create(&board_ops, board, &place, bootstrap, err);
    if (status != ETH_HPP_OK)
        board_close(board);
    return status;
}
