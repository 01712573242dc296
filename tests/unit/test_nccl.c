/*
 * The transport over NCCL between GPUs. Both are EMULATED (tests/emulation/cuda, nccl): the double
 * of NCCL ends a rank that breaks one of its rules.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include "comm/nccl/nccl.h"
#include "nccl_ranks.h"

/* ---- sums ---- */

enum { SUMMED = 100003 }; /* more than the double takes at a time */

static float addend(size_t i, int sum, int rank)
{
    const uint32_t bits =
        ((uint32_t)i + 1) * 2654435761u ^ ((uint32_t)(rank + 8 * sum) + 1) * 7919u;
    return ((float)(bits >> 8) / 0x1p24f - 0.5f) * (float)(rank * rank + 1);
}

/* Owner sets as blocks of unlike pipelines have them: of unlike sizes, overlapping, one twice, one
 * of a rank alone. */
static const int all[] = {0, 1, 2, 3}, left[] = {0, 1}, outer[] = {0, 2, 3}, right[] = {1, 3};
static const struct eth_hpp_comm_members ragged[] = {{outer, 3}, {left, 2}, {all, 4},
                                                     {right, 2}, {left, 2}, {all, 1}};
enum { RAGGED = sizeof(ragged) / sizeof(ragged[0]) };

static bool holds(const struct eth_hpp_comm_members *group, int rank)
{
    for (int i = 0; i < group->count; i++)
        if (group->ranks[i] == rank)
            return true;
    return false;
}

static void check_sum(const struct eth_hpp_comm_members *group, int number, const float *sum)
{
    for (size_t i = 0; i < SUMMED; i++) {
        double exact = 0, size = 0;
        for (int j = 0; j < group->count; j++) {
            exact += (double)addend(i, number, group->ranks[j]);
            size += fabs((double)addend(i, number, group->ranks[j]));
        }
        RANK_CHECK(fabs(sum[i] - exact) <= 1e-6 * size, "sum %d, element %zu: %g for %g", number, i,
                   (double)sum[i], exact);
    }
}

/* By a MAX of both halves of a checksum and of their negatives. */
static void check_bits(struct device *device, struct eth_hpp_group *group, const float *sum)
{
    uint64_t bits = 14695981039346656037u;
    for (size_t i = 0; i < sizeof(*sum) * SUMMED; i++)
        bits = (bits ^ ((const unsigned char *)sum)[i]) * 1099511628211u;
    double halves[4] = {(double)(uint32_t)bits, (double)(bits >> 32)};
    struct eth_hpp_request *request;
    halves[2] = -halves[0];
    halves[3] = -halves[1];
    RANK_CHECK(eth_hpp_comm_group_reduce(group, halves, 4, ETH_HPP_REDUCE_MAX, &request, NULL) ==
               ETH_HPP_OK);
    finish(device->comm, request);
    RANK_CHECK(halves[0] == -halves[2] && halves[1] == -halves[3], "the bits differ");
}

/* All sums are under way at once. */
static int sum(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    const struct eth_hpp_comm_layout layout = {
        .all = {all, 4}, .groups = ragged, .group_count = RAGGED};
    struct device device = device_open(bootstrap, &layout);
    struct eth_hpp_group *groups[RAGGED];
    struct eth_hpp_request *requests[RAGGED];
    float *data[RAGGED], *host = malloc(sizeof(*host) * SUMMED);
    (void)user;
    for (int g = 0; g < RAGGED; g++) {
        if (!holds(&ragged[g], device.rank))
            continue;
        for (size_t i = 0; i < SUMMED; i++)
            host[i] = addend(i, g, device.rank);
        data[g] = device_put(&device, host, sizeof(*host) * SUMMED);
        RANK_CHECK(eth_hpp_comm_group_open(device.comm, ragged[g].ranks, ragged[g].count,
                                           (uint32_t)g, &groups[g], NULL) == ETH_HPP_OK);
        RANK_CHECK(eth_hpp_comm_group_sum(groups[g], data[g], SUMMED, ETH_HPP_SUM_WHOLE,
                                          &requests[g], NULL) == ETH_HPP_OK);
    }
    for (int g = RAGGED - 1; g >= 0; g--) {
        if (!holds(&ragged[g], device.rank))
            continue;
        device_take(&device, &requests[g], host, data[g], sizeof(*host) * SUMMED);
        check_sum(&ragged[g], g, host);
        check_bits(&device, groups[g], host);
    }
    free(host);
    device_close(&device, bootstrap);
    return 0;
}

static void sums_of_ragged_owner_sets_have_the_same_bits_on_all_owners(void **state)
{
    (void)state;
    expect_success(4, sum, NULL);
}

/* What a sharded optimizer does: a share of the sum, then all shares. */
static int sum_by_halves(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    enum { SHARE = 40000 };
    const struct eth_hpp_comm_members group = {all, 3};
    const struct eth_hpp_comm_layout layout = {.all = group, .groups = &group, .group_count = 1};
    struct device device = device_open(bootstrap, &layout);
    struct eth_hpp_group *opened;
    struct eth_hpp_request *request;
    float *host = malloc(sizeof(*host) * 3 * SHARE);
    (void)user;
    for (int i = 0; i < 3 * SHARE; i++)
        host[i] = (float)(i % 1000 * (device.rank + 1));
    float *data = device_put(&device, host, sizeof(*host) * 3 * SHARE);
    RANK_CHECK(eth_hpp_comm_group_open(device.comm, all, 3, 1, &opened, NULL) == ETH_HPP_OK);
    RANK_CHECK(eth_hpp_comm_group_sum(opened, data, 3 * SHARE, ETH_HPP_SUM_SCATTER, &request,
                                      NULL) == ETH_HPP_OK);
    device_take(&device, &request, host, data, sizeof(*host) * 3 * SHARE);
    for (int i = device.rank * SHARE; i < (device.rank + 1) * SHARE; i++)
        RANK_CHECK(host[i] == (float)(i % 1000 * 6));
    RANK_CHECK(eth_hpp_comm_group_sum(opened, data, 3 * SHARE, ETH_HPP_SUM_GATHER, &request,
                                      NULL) == ETH_HPP_OK);
    device_take(&device, &request, host, data, sizeof(*host) * 3 * SHARE);
    for (int i = 0; i < 3 * SHARE; i++)
        RANK_CHECK(host[i] == (float)(i % 1000 * 6));
    free(host);
    device_close(&device, bootstrap);
    return 0;
}

static void halves_of_a_sum_make_the_whole(void **state)
{
    (void)state;
    expect_success(3, sum_by_halves, NULL);
}

/* ---- hand-overs ---- */

enum { MESSAGES = 6 };
static const size_t sizes[MESSAGES] = {1, 4096, 1000001, 0, 7, 300000};

static char pattern(size_t i, int message, int from)
{
    return (char)(i * 7 + (size_t)message * 31 + (size_t)from * 101);
}

struct neighbour {
    int rank;
    struct eth_hpp_request *received[MESSAGES], *sent[MESSAGES];
    char *in[MESSAGES], *out[MESSAGES];
};

static void receive_ahead(struct device *device, struct neighbour *from)
{
    static const char nothing[1 << 20];
    for (int m = 0; m < MESSAGES; m++) {
        from->in[m] = device_put(device, nothing, sizes[m] + 1);
        RANK_CHECK(eth_hpp_comm_recv(device->comm, from->in[m], sizes[m], from->rank, (uint32_t)m,
                                     &from->received[m], NULL) == ETH_HPP_OK);
    }
}

static void send_message(struct device *device, int m, struct neighbour *to)
{
    static char host[1 << 20];
    for (size_t i = 0; i < sizes[m]; i++)
        host[i] = pattern(i, m, device->rank);
    to->out[m] = device_put(device, host, sizes[m] + 1);
    RANK_CHECK(eth_hpp_comm_send(device->comm, to->out[m], sizes[m], to->rank, (uint32_t)m,
                                 &to->sent[m], NULL) == ETH_HPP_OK);
}

static void check_messages(struct device *device, struct neighbour *from)
{
    static char host[1 << 20];
    for (int m = 0; m < MESSAGES; m++) {
        device_take(device, &from->received[m], host, from->in[m], sizes[m] + 1);
        for (size_t i = 0; i < sizes[m]; i++)
            RANK_CHECK(host[i] == pattern(i, m, from->rank), "message %d, byte %zu", m, i);
        finish(device->comm, from->sent[m]);
    }
}

/* Ranks of a chain receive from both neighbours what these send to both at the same time; receives
 * are posted ahead of the sends, as activations one way and gradients the other. */
static int hand_over(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    enum { LAST = 2 };
    const int rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    const struct eth_hpp_comm_route chain[] = {{0, 1}, {1, 0}, {1, 2}, {2, 1}};
    const struct eth_hpp_comm_layout layout = {.all = {all, LAST + 1},
                                               .routes = rank == LAST ? chain + 2 : chain,
                                               .route_count = rank == 1 ? 4 : 2};
    struct device device = device_open(bootstrap, &layout);
    struct neighbour neighbours[2];
    int count = 0;
    (void)user;
    for (int other = rank - 1; other <= rank + 1; other += 2)
        if (other >= 0 && other <= LAST)
            neighbours[count++].rank = other;
    for (int n = 0; n < count; n++)
        receive_ahead(&device, &neighbours[n]);
    for (int m = 0; m < MESSAGES; m++)
        for (int n = count - 1; n >= 0; n--)
            send_message(&device, m, &neighbours[n]);
    for (int n = 0; n < count; n++)
        check_messages(&device, &neighbours[n]);
    device_close(&device, bootstrap);
    return 0;
}

static void hand_overs_go_both_ways_at_once(void **state)
{
    (void)state;
    for (int order = 1; order <= 2; order++) { /* what the device does meanwhile, by other seeds */
        char seed[16];
        snprintf(seed, sizeof(seed), "%d", order);
        setenv("ETH_HPP_EMULATED_ORDER", seed, 1);
        expect_success(3, hand_over, NULL);
    }
    unsetenv("ETH_HPP_EMULATED_ORDER");
}

/* Rank 0 closes, and the others hand over for longer than the end of a communicator may take. */
static int hand_over_late(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    const struct eth_hpp_comm_route chain[] = {{0, 1}, {1, 2}};
    const int rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    const struct eth_hpp_comm_layout layout = {
        .all = {all, 3}, .routes = rank == 2 ? chain + 1 : chain, .route_count = rank == 1 ? 2 : 1};
    struct device device = device_open(bootstrap, &layout);
    struct eth_hpp_request *request;
    int number = rank;
    (void)user;
    if (rank > 0) {
        sleep(3);
        int *data = device_put(&device, &number, sizeof(number));
        if (rank == 1)
            RANK_CHECK(eth_hpp_comm_send(device.comm, data, sizeof(*data), 2, 1, &request, NULL) ==
                       ETH_HPP_OK);
        else
            RANK_CHECK(eth_hpp_comm_recv(device.comm, data, sizeof(*data), 1, 1, &request, NULL) ==
                       ETH_HPP_OK);
        device_take(&device, &request, &number, data, sizeof(number));
        RANK_CHECK(number == 1);
        RANK_CHECK(eth_hpp_comm_check(device.comm, NULL) == ETH_HPP_OK);
    }
    device_close(&device, bootstrap);
    return 0;
}

static void a_rank_that_closes_first_waits_for_the_others(void **state)
{
    (void)state;
    expect_success(3, hand_over_late, NULL);
}

/* ---- what communicators share ---- */

static void check_apart(const struct eth_hpp_nccl *nccl, const struct eth_hpp_comm_layout *layout)
{
    for (int r = 0; r < layout->route_count; r++) {
        const struct eth_hpp_nccl_communicator *route =
            eth_hpp_nccl_find_route(nccl, layout->routes[r].from, layout->routes[r].to);
        RANK_CHECK(route != NULL && route->stream >= ETH_HPP_STREAMS);
        for (const struct eth_hpp_nccl_communicator *c = nccl->last; c != NULL; c = c->next)
            RANK_CHECK(c == route || (c->comm != route->comm && c->stream != route->stream));
    }
    for (int g = 0; g < layout->group_count; g++) {
        const struct eth_hpp_nccl_communicator *group =
            eth_hpp_nccl_find_group(nccl, layout->groups[g].ranks, layout->groups[g].count);
        RANK_CHECK(group != NULL && group->stream == ETH_HPP_STREAM_SYNC);
    }
}

/* As queues of instruction lists are: the proof of these holds for the device then. */
static int open_communicators(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    const struct eth_hpp_comm_members groups[] = {{all, 2}, {all, 2}};
    const struct eth_hpp_comm_route routes[] = {{0, 1}, {1, 0}};
    const struct eth_hpp_comm_layout layout = {
        .all = {all, 2}, .routes = routes, .route_count = 2, .groups = groups, .group_count = 2};
    struct device device = device_make(bootstrap);
    struct eth_hpp_nccl nccl = {
        .control = device.control, .kernels = device.kernels, .rank = device.rank, .timeout_s = 20};
    struct eth_hpp_nccl_id id;
    bool used = false;
    (void)user;
    RANK_CHECK(eth_hpp_nccl_meet(&nccl, eth_hpp_bootstrap_get_place(bootstrap), &layout, &used, &id,
                                 NULL) == ETH_HPP_OK);
    RANK_CHECK(eth_hpp_nccl_communicators_open(&nccl, &layout, &id, NULL) == ETH_HPP_OK);
    check_apart(&nccl, &layout);
    eth_hpp_nccl_communicators_close(&nccl);
    device.kernels->ops->release_host(device.kernels->state, nccl.token);
    device.comm = device.control;
    device_close(&device, bootstrap);
    return 0;
}

static void hand_overs_share_no_communicator_and_no_stream(void **state)
{
    (void)state;
    expect_success(2, open_communicators, NULL);
}

/* ---- unlike GPUs ---- */

static int mix(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    const bool mixed = *(bool *)user;
    const struct eth_hpp_comm_members group = {all, 2};
    const struct eth_hpp_comm_layout layout = {.all = group, .groups = &group, .group_count = 1};
    if (mixed && eth_hpp_bootstrap_get_place(bootstrap)->rank == 1)
        setenv("ETH_HPP_EMULATED_MODEL", "another emulated GPU", 1);
    struct device device = device_open(bootstrap, &layout);
    RANK_CHECK(strcmp(getenv("NCCL_MULTI_RANK_GPU_ENABLE"), "1") == 0); /* there is one GPU */
    const char *algorithm = getenv("NCCL_ALGO"), *protocol = getenv("NCCL_PROTO");
    if (mixed)
        RANK_CHECK(strcmp(algorithm, "Ring") == 0 && strcmp(protocol, "Simple") == 0);
    else
        RANK_CHECK(algorithm == NULL && protocol == NULL);
    device_close(&device, bootstrap);
    return 0;
}

static void algorithm_and_protocol_are_pinned_among_unlike_gpus_only(void **state)
{
    (void)state;
    expect_success(2, mix, &(bool){true});
    expect_success(2, mix, &(bool){false});
}

/* ---- what the device is told ---- */

/* A receive that is posted ahead occupies its queue to the device, and holds up what is loaded. */
static int look_at_settings(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    struct device device = device_make(bootstrap);
    (void)user;
    RANK_CHECK(strcmp(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32") == 0);
    RANK_CHECK(strcmp(getenv("CUDA_MODULE_LOADING"), "EAGER") == 0);
    device.comm = device.control;
    device_close(&device, bootstrap);
    return 0;
}

static void streams_are_kept_apart_whatever_the_environment_says(void **state)
{
    (void)state;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    expect_success(1, look_at_settings, NULL);
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

static int use_nccl(void **state)
{
    (void)state;
    setenv("ETH_HPP_CUDA_MODULE", EMULATED_MODULE, 1);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_ragged_owner_sets_have_the_same_bits_on_all_owners),
        cmocka_unit_test(halves_of_a_sum_make_the_whole),
        cmocka_unit_test(hand_overs_go_both_ways_at_once),
        cmocka_unit_test(a_rank_that_closes_first_waits_for_the_others),
        cmocka_unit_test(hand_overs_share_no_communicator_and_no_stream),
        cmocka_unit_test(streams_are_kept_apart_whatever_the_environment_says),
        cmocka_unit_test(algorithm_and_protocol_are_pinned_among_unlike_gpus_only),
    };
    return cmocka_run_group_tests(tests, use_nccl, NULL);
}
