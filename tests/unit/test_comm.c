#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm_ranks.h"

/* ---- transfers ---- */

static char pattern(size_t i, int from, int to)
{
    return (char)(i * 7 + (size_t)from * 31 + (size_t)to * 101);
}

/* Everyone sends to everyone, all sizes at once, receives posted in the opposite order. */
static int exchange(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    static const size_t sizes[] = {0, 1, 7, 4096, 100000, 3000001};
    enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };
    const struct eth_hpp_bootstrap_place *place = eth_hpp_bootstrap_get_place(bootstrap);
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    struct eth_hpp_request *requests[2][RANKS_MAX][SIZES];
    char *data[2][RANKS_MAX][SIZES];
    (void)user;
    for (int peer = 0; peer < place->size; peer++) {
        if (peer == place->rank)
            continue;
        for (int s = SIZES - 1; s >= 0; s--) {
            data[0][peer][s] = malloc(sizes[s] + 1);
            RANK_CHECK(eth_hpp_comm_recv(comm, data[0][peer][s], sizes[s], peer, (uint32_t)s,
                                         &requests[0][peer][s], NULL) == ETH_HPP_OK);
        }
        for (int s = 0; s < SIZES; s++) {
            data[1][peer][s] = malloc(sizes[s] + 1);
            for (size_t i = 0; i < sizes[s]; i++)
                data[1][peer][s][i] = pattern(i, place->rank, peer);
            RANK_CHECK(eth_hpp_comm_send(comm, data[1][peer][s], sizes[s], peer, (uint32_t)s,
                                         &requests[1][peer][s], NULL) == ETH_HPP_OK);
        }
    }
    for (int peer = 0; peer < place->size; peer++)
        for (int s = 0; s < SIZES && peer != place->rank; s++) {
            finish(comm, requests[0][peer][s]);
            finish(comm, requests[1][peer][s]);
            for (size_t i = 0; i < sizes[s]; i++)
                RANK_CHECK(data[0][peer][s][i] == pattern(i, peer, place->rank));
            free(data[0][peer][s]);
            free(data[1][peer][s]);
        }
    eth_hpp_comm_close(comm);
    eth_hpp_bootstrap_close(bootstrap);
    return 0;
}

static void messages_of_all_sizes_arrive(void **state)
{
    (void)state;
    expect_success(3, exchange, NULL);
}

/* Messages with one tag arrive in order. */
static int stream(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    enum { MESSAGES = 200 };
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    int rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    int numbers[MESSAGES];
    struct eth_hpp_request *requests[MESSAGES];
    (void)user;
    for (int i = 0; i < MESSAGES; i++) {
        numbers[i] = rank == 0 ? i : -1;
        if (rank == 0)
            eth_hpp_comm_send(comm, &numbers[i], sizeof(int), 1, 5, &requests[i], NULL);
        else
            eth_hpp_comm_recv(comm, &numbers[i], sizeof(int), 0, 5, &requests[i], NULL);
    }
    for (int i = 0; i < MESSAGES; i++) {
        finish(comm, requests[i]);
        RANK_CHECK(numbers[i] == i, "%d came as number %d", numbers[i], i);
    }
    eth_hpp_comm_close(comm);
    eth_hpp_bootstrap_close(bootstrap);
    return 0;
}

static void messages_with_one_tag_stay_in_order(void **state)
{
    (void)state;
    expect_success(2, stream, NULL);
}

/* ---- sums ---- */

static float addend(size_t i, int rank)
{
    static const float sizes[] = {1, 10, 100, 1000, 1e4f};
    uint32_t bits = ((uint32_t)i + 1) * 2654435761u ^ ((uint32_t)rank + 1) * 2246822519u;
    return ((float)(bits >> 8) / 0x1p24f - 0.5f) * sizes[rank % 5];
}

static uint64_t checksum(const void *data, size_t size)
{
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    return sum;
}

struct sum_case {
    int ranks[RANKS_MAX], count;
    size_t elements;
    int machines[RANKS_MAX]; /* of all ranks; 0: this one */
    int sharers;             /* so many ranks, from 0 on, share the memory of the data */
};

/* A reduce-scatter leaves the whole sum's bits in each member's share, and an all-gather brings all
 * shares to all, whatever was in the rest. */
static void check_halves(struct eth_hpp_comm *comm, struct eth_hpp_group *group,
                         const struct sum_case *c, int rank, const float *whole, float *data)
{
    struct eth_hpp_request *request;
    const size_t n = c->elements;
    int position = 0;
    while (c->ranks[position] != rank)
        position++;
    const size_t begin = eth_hpp_comm_share(n, c->count, position);
    const size_t end = eth_hpp_comm_share(n, c->count, position + 1);
    for (size_t i = 0; i < n; i++)
        data[i] = addend(i, rank);
    RANK_CHECK(eth_hpp_comm_group_sum(group, data, n, ETH_HPP_SUM_SCATTER, &request, NULL) ==
               ETH_HPP_OK);
    finish(comm, request);
    RANK_CHECK(memcmp(data + begin, whole + begin, sizeof(float) * (end - begin)) == 0);
    for (size_t i = 0; i < n; i++)
        if (i < begin || i >= end)
            data[i] = NAN;
    RANK_CHECK(eth_hpp_comm_group_sum(group, data, n, ETH_HPP_SUM_GATHER, &request, NULL) ==
               ETH_HPP_OK);
    finish(comm, request);
    RANK_CHECK(memcmp(data, whole, sizeof(float) * n) == 0);
}

/* Sums among the members; then the bits are compared through a MAX of both halves of a checksum and
 * of its negative. */
static int sum(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    const struct sum_case *c = user;
    const int rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    RANK_CHECK(c->machines[rank] == 0 || ranks_move_to_machine(c->machines[rank]));
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    bool member = false;
    for (int i = 0; i < c->count; i++)
        member = member || c->ranks[i] == rank;
    if (member) {
        struct eth_hpp_group *group;
        struct eth_hpp_request *request;
        float *private = malloc(sizeof(float) * 2 * (c->elements + 1)), *data = private;
        void *shared;
        if (rank < c->sharers) {
            RANK_CHECK(eth_hpp_comm_share_memory(comm, sizeof(float) * 2 * (c->elements + 1),
                                                 &shared, NULL) == ETH_HPP_OK);
            data = shared;
        }
        for (size_t i = 0; i < c->elements; i++)
            data[i] = addend(i, rank);
        RANK_CHECK(eth_hpp_comm_group_open(comm, c->ranks, c->count, 9, &group, NULL) ==
                   ETH_HPP_OK);
        RANK_CHECK(eth_hpp_comm_group_sum(group, data, c->elements, ETH_HPP_SUM_WHOLE, &request,
                                          NULL) == ETH_HPP_OK);
        finish(comm, request);
        for (size_t i = 0; i < c->elements; i++) {
            double exact = 0, size = 0;
            for (int j = 0; j < c->count; j++) {
                exact += addend(i, c->ranks[j]);
                size += fabs((double)addend(i, c->ranks[j]));
            }
            RANK_CHECK(fabs(data[i] - exact) <= 1e-6 * size, "element %zu: %g for %g", i,
                       (double)data[i], exact);
        }
        uint64_t bits = checksum(data, sizeof(float) * c->elements);
        double halves[4] = {(double)(uint32_t)bits, (double)(bits >> 32)};
        halves[2] = -halves[0];
        halves[3] = -halves[1];
        RANK_CHECK(eth_hpp_comm_group_reduce(group, halves, 4, ETH_HPP_REDUCE_MAX, &request,
                                             NULL) == ETH_HPP_OK);
        finish(comm, request);
        RANK_CHECK(halves[0] == -halves[2] && halves[1] == -halves[3], "the bits differ");
        check_halves(comm, group, c, rank, data, data + c->elements + 1);
        check_halves(comm, group, c, rank, data, private); /* of what is not shared */
        free(private);
    }
    eth_hpp_comm_close(comm);
    eth_hpp_bootstrap_close(bootstrap);
    return 0;
}

static void sums_have_the_same_bits_on_all_members(void **state)
{
    (void)state;
    static struct sum_case cases[] = {
        {.ranks = {0, 1}, .count = 2, .elements = 1000},
        {.ranks = {0, 1, 2}, .count = 3, .elements = 2}, /* fewer elements than members */
        {.ranks = {0, 1, 2}, .count = 3, .elements = 0},
        {.ranks = {1}, .count = 1, .elements = 10},
        {.ranks = {0, 2, 3}, .count = 3, .elements = 1000003},
        {.ranks = {0, 1, 2, 3, 4}, .count = 5, .elements = 333333},
        {.ranks = {0, 1, 2}, .count = 3, .elements = 2, .sharers = 3},
        {.ranks = {0, 1, 2, 3, 4}, .count = 5, .elements = 333333, .sharers = 5},
        {.ranks = {0, 2, 3}, .count = 3, .elements = 100003, .sharers = 3}, /* one shares none */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_success(cases[i].count == 5 ? 5 : 4, sum, &cases[i]);
}

/* Members alone on their machines, several on some, and machines' members out of order; sums of one
 * round, of one chunk and of many. */
static void sums_over_machines_have_the_same_bits_on_all_members(void **state)
{
    (void)state;
    static struct sum_case cases[] = {
        {.ranks = {0, 1}, .count = 2, .elements = 50000, .machines = {1, 2}},
        {.ranks = {0, 1, 3}, .count = 3, .elements = 1000, .machines = {1, 2, 2, 3}},
        {.ranks = {0, 1, 2}, .count = 3, .elements = 700001, .machines = {1, 2, 3}},
        {.ranks = {0, 1, 2, 3}, .count = 4, .elements = 2, .machines = {1, 1, 2, 2}},
        {.ranks = {0, 1, 2, 3}, .count = 4, .elements = 1400003, .machines = {1, 1, 2, 2}},
        {.ranks = {0, 1, 2, 3, 4}, .count = 5, .elements = 50000, .machines = {1, 2, 1, 3, 2}},
        {.ranks = {0, 1, 2, 3, 4}, .count = 5, .elements = 700001, .machines = {1, 1, 1, 1, 2}},
    };
    if (!ranks_can_move()) {
        print_message(
            "# skipped: ranks get machines of their own from root alone, and not in valgrind\n");
        skip();
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_success(5, sum, &cases[i]);
}

/* Two overlapping groups, many sums under way at once, waited for in the opposite order. */
static int overlapping(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    enum { SUMS = 6, ELEMENTS = 50000 };
    static const int ranks[2][2] = {{0, 1}, {1, 2}};
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    int rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    struct eth_hpp_group *groups[2] = {NULL, NULL};
    struct eth_hpp_request *requests[2][SUMS];
    float *data[2][SUMS];
    (void)user;
    for (int g = 0; g < 2; g++) {
        if (rank != ranks[g][0] && rank != ranks[g][1])
            continue;
        RANK_CHECK(eth_hpp_comm_group_open(comm, ranks[g], 2, (uint32_t)g, &groups[g], NULL) ==
                   ETH_HPP_OK);
        for (int s = 0; s < SUMS; s++) {
            data[g][s] = malloc(sizeof(float) * ELEMENTS);
            for (size_t i = 0; i < ELEMENTS; i++)
                data[g][s][i] = (float)(s + g * 10 + rank);
            RANK_CHECK(eth_hpp_comm_group_sum(groups[g], data[g][s], ELEMENTS, ETH_HPP_SUM_WHOLE,
                                              &requests[g][s], NULL) == ETH_HPP_OK);
        }
    }
    for (int g = 1; g >= 0; g--)
        for (int s = SUMS - 1; s >= 0 && groups[g] != NULL; s--) {
            finish(comm, requests[g][s]);
            for (size_t i = 0; i < ELEMENTS; i++)
                RANK_CHECK(data[g][s][i] == (float)(2 * (s + g * 10) + ranks[g][0] + ranks[g][1]));
            free(data[g][s]);
        }
    eth_hpp_comm_close(comm);
    eth_hpp_bootstrap_close(bootstrap);
    return 0;
}

static void sums_of_several_groups_run_beside_each_other(void **state)
{
    (void)state;
    expect_success(3, overlapping, NULL);
}

static int reduce(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    static const int ranks[] = {0, 1, 2};
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    int rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    struct eth_hpp_group *group;
    struct eth_hpp_request *request;
    double values[] = {rank + 0.5, rank == 1 ? NAN : 1, -rank};
    (void)user;
    RANK_CHECK(eth_hpp_comm_group_open(comm, ranks, 3, 1, &group, NULL) == ETH_HPP_OK);
    eth_hpp_comm_group_reduce(group, values, 1, ETH_HPP_REDUCE_SUM, &request, NULL);
    finish(comm, request);
    RANK_CHECK(values[0] == 4.5);
    eth_hpp_comm_group_reduce(group, values + 1, 2, ETH_HPP_REDUCE_MAX, &request, NULL);
    finish(comm, request);
    RANK_CHECK(isnan(values[1]) && values[2] == 0);
    eth_hpp_comm_close(comm);
    eth_hpp_bootstrap_close(bootstrap);
    return 0;
}

static void reductions_sum_take_the_largest_and_keep_a_nan(void **state)
{
    (void)state;
    expect_success(3, reduce, NULL);
}

static int alone(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    static const int ranks[] = {0};
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    struct eth_hpp_group *group;
    struct eth_hpp_request *request;
    float sum[] = {1.5f};
    (void)user;
    RANK_CHECK(eth_hpp_comm_group_open(comm, ranks, 1, 0, &group, NULL) == ETH_HPP_OK);
    RANK_CHECK(eth_hpp_comm_group_sum(group, sum, 1, ETH_HPP_SUM_WHOLE, &request, NULL) ==
               ETH_HPP_OK);
    RANK_CHECK(eth_hpp_comm_test(comm, request));
    finish(comm, request);
    RANK_CHECK(sum[0] == 1.5f);
    eth_hpp_comm_close(comm);
    eth_hpp_bootstrap_close(bootstrap);
    return 0;
}

static void one_rank_needs_no_transport(void **state)
{
    (void)state;
    expect_success(1, alone, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_needs_no_transport),
        cmocka_unit_test(messages_of_all_sizes_arrive),
        cmocka_unit_test(messages_with_one_tag_stay_in_order),
        cmocka_unit_test(sums_have_the_same_bits_on_all_members),
        cmocka_unit_test(sums_over_machines_have_the_same_bits_on_all_members),
        cmocka_unit_test(sums_of_several_groups_run_beside_each_other),
        cmocka_unit_test(reductions_sum_take_the_largest_and_keep_a_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
