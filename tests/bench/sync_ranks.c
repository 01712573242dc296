/*
 * A rank of tests/bench/sync: sums of the transport and MPI_Allreduce by turns, in the same
 * processes on the same memory. Prints a line for each group and size:
 *     sum GROUP BYTES SECONDS MPI_SECONDS RATIO
 * and one for the blocks of a model:
 *     blocks LAYER_BYTES SECONDS PER_LAYER_SECONDS PER_LAYER_MPI_SECONDS
 * Times are medians over the turns, each that of the slowest member; RATIO is the median of ratios.
 * Ranks that take no part sleep.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "sync_bootstrap.h"

enum { RANKS = 8, TURNS_MOST = 41, LAYERS = 24 };
#define TIMEOUT_S 120.0
#define TURNS_S   1.0  /* all turns of one group and size take about this long */
#define BATCH_S   2e-3 /* short operations are timed several at a time */

struct team {
    struct eth_hpp_group *group;
    MPI_Comm mpi;
    bool member;
};

struct work {
    struct team *team;  /* of one sum */
    struct team *teams; /* [BLOCKS], of a model's */
    float *data;
    size_t count;
};

static struct eth_hpp_comm *comm;
static int rank;

static void check(enum eth_hpp_status status, const struct eth_hpp_error *err)
{
    if (status == ETH_HPP_OK)
        return;
    fprintf(stderr, "rank %d: %s\n", rank, err->text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void wait_for(struct eth_hpp_request *request)
{
    struct eth_hpp_error err;
    check(eth_hpp_comm_wait(comm, request, TIMEOUT_S, &err), &err);
}

static struct eth_hpp_request *start(struct eth_hpp_group *group, float *data, size_t count)
{
    struct eth_hpp_error err;
    struct eth_hpp_request *request;
    check(eth_hpp_comm_group_sum(group, data, count, ETH_HPP_SUM_WHOLE, &request, &err), &err);
    return request;
}

static void mpi_sum(MPI_Comm mpi, float *data, size_t count)
{
    MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, mpi);
}

static void open_team(struct team *team, unsigned mask, uint32_t id)
{
    struct eth_hpp_error err;
    int ranks[RANKS], count = 0;
    for (int r = 0; r < RANKS; r++)
        if (mask >> r & 1)
            ranks[count++] = r;
    team->member = mask >> rank & 1;
    MPI_Comm_split(MPI_COMM_WORLD, team->member ? 0 : MPI_UNDEFINED, rank, &team->mpi);
    if (team->member)
        check(eth_hpp_comm_group_open(comm, ranks, count, id, &team->group, &err), &err);
}

/* ---- what is timed ---- */

static void sum_ours(const struct work *work)
{
    wait_for(start(work->team->group, work->data, work->count));
}

static void sum_mpi(const struct work *work)
{
    mpi_sum(work->team->mpi, work->data, work->count);
}

/* Four unlike pipelines of 24 layers: ranks 0,1 cut at 9; 2,3 at 14; 4,5,6 at 6 and 17; 7 has all.
 */
static const struct {
    int first, end;
    unsigned owners;
} blocks[] = {{17, 24, 0xca}, {14, 17, 0xaa}, {9, 14, 0xa6}, {6, 9, 0xa5}, {0, 6, 0x95}};
enum { BLOCKS = sizeof(blocks) / sizeof(blocks[0]) };

static void blocks_ours(const struct work *work)
{
    struct eth_hpp_request *requests[BLOCKS];
    for (int b = 0; b < BLOCKS; b++)
        if (work->teams[b].member)
            requests[b] =
                start(work->teams[b].group, work->data + work->count * (size_t)blocks[b].first,
                      work->count * (size_t)(blocks[b].end - blocks[b].first));
    for (int b = 0; b < BLOCKS; b++)
        if (work->teams[b].member)
            wait_for(requests[b]);
}

static void layers_ours(const struct work *work)
{
    for (int b = 0; b < BLOCKS; b++)
        for (int l = blocks[b].end - 1; l >= blocks[b].first && work->teams[b].member; l--)
            wait_for(
                start(work->teams[b].group, work->data + work->count * (size_t)l, work->count));
}

static void layers_mpi(const struct work *work)
{
    for (int b = 0; b < BLOCKS; b++)
        for (int l = blocks[b].end - 1; l >= blocks[b].first && work->teams[b].member; l--)
            mpi_sum(work->teams[b].mpi, work->data + work->count * (size_t)l, work->count);
}

typedef void operation(const struct work *work);

/* ---- timing ---- */

/* The largest of all members' numbers, for which those that are early sleep: MPI's would poll, on
 * the cores that the late ones need. */
static double largest(struct eth_hpp_group *members, double number)
{
    struct eth_hpp_error err;
    struct eth_hpp_request *request;
    check(eth_hpp_comm_group_reduce(members, &number, 1, ETH_HPP_REDUCE_MAX, &request, &err), &err);
    wait_for(request);
    return number;
}

static double time_of(operation *run, const struct work *work, struct eth_hpp_group *members,
                      int repeats)
{
    largest(members, 0);
    const double begin = eth_hpp_clock_now();
    for (int i = 0; i < repeats; i++)
        run(work);
    return largest(members, (eth_hpp_clock_now() - begin) / repeats);
}

static int order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), order);
    return (values[count / 2] + values[(count - 1) / 2]) / 2;
}

/* The operations by turns, a different one first each time; seconds[o] becomes the median of the
 * o-th, ratios[o] that of the ratio of the first to it. */
static void compare(operation *const *operations, int count, const struct work *work,
                    struct eth_hpp_group *members, double *seconds, double *ratios)
{
    double times[3][TURNS_MOST], quotients[TURNS_MOST], slowest = 0, all = 0;
    for (int o = 0; o < count; o++) { /* warms up, too */
        time_of(operations[o], work, members, 1);
        const double once = time_of(operations[o], work, members, 1);
        slowest = once > slowest ? once : slowest;
        all += once;
    }
    const int repeats = slowest < BATCH_S ? (int)(BATCH_S / slowest) + 1 : 1;
    int turns = (int)(TURNS_S / (all * repeats));
    turns = turns < 3 ? 3 : turns > TURNS_MOST ? TURNS_MOST : turns;
    for (int turn = 0; turn < turns; turn++)
        for (int i = 0; i < count; i++) {
            const int o = (turn + i) % count;
            times[o][turn] = time_of(operations[o], work, members, repeats);
        }
    for (int o = 0; o < count; o++) {
        for (int turn = 0; turn < turns; turn++)
            quotients[turn] = times[0][turn] / times[o][turn];
        ratios[o] = median(quotients, turns);
    }
    for (int o = 0; o < count; o++)
        seconds[o] = median(times[o], turns);
}

/* Whole numbers that fp32 adds exactly: both must have the same sum, bit by bit. */
static void check_sum(const struct work *work)
{
    int members;
    MPI_Comm_size(work->team->mpi, &members);
    double expected = 0, own = rank + 1;
    MPI_Allreduce(&own, &expected, 1, MPI_DOUBLE, MPI_SUM, work->team->mpi);
    for (size_t i = 0; i < work->count; i++)
        work->data[i] = (float)((rank + 1) * (int)(i % 1000));
    sum_ours(work);
    for (size_t i = 0; i < work->count; i++)
        if (work->data[i] != (float)(expected * (double)(i % 1000))) {
            fprintf(stderr, "rank %d: float %zu of %zu is %g, not %g\n", rank, i, work->count,
                    (double)work->data[i], expected * (double)(i % 1000));
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    memset(work->data, 0, sizeof(float) * work->count); /* sums of sums must not overflow */
}

static void run_group(struct team *team, unsigned mask, float *data, size_t most_bytes)
{
    operation *const operations[] = {sum_ours, sum_mpi};
    for (size_t bytes = 1024; bytes <= most_bytes; bytes *= 4) {
        const struct work work = {.team = team, .data = data, .count = bytes / sizeof(float)};
        double seconds[2], ratios[2];
        int first;
        check_sum(&work);
        compare(operations, 2, &work, team->group, seconds, ratios);
        MPI_Comm_rank(team->mpi, &first);
        if (first != 0)
            continue;
        printf("sum ");
        for (int r = 0, some = 0; r < RANKS; r++)
            if (mask >> r & 1)
                printf(some++ ? ",%d" : "%d", r);
        printf(" %zu %.6g %.6g %.4f\n", bytes, seconds[0], seconds[1], ratios[1]);
        fflush(stdout);
    }
}

static void run_blocks(struct team *teams, struct eth_hpp_group *all, float *data,
                       size_t layer_bytes)
{
    operation *const operations[] = {blocks_ours, layers_ours, layers_mpi};
    const struct work work = {.teams = teams, .data = data, .count = layer_bytes / sizeof(float)};
    double seconds[3], ratios[3];
    memset(data, 0, layer_bytes * LAYERS);
    compare(operations, 3, &work, all, seconds, ratios);
    if (rank == 0)
        printf("blocks %zu %.6g %.6g %.6g\n", layer_bytes, seconds[0], seconds[1], seconds[2]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const unsigned groups[] = {0x03, 0x11, 0x0f, 0x29, 0xd6, 0x7f, 0xff};
    enum { GROUPS = sizeof(groups) / sizeof(groups[0]) };
    struct team teams[GROUPS] = {0}, owners[BLOCKS] = {0}, all = {0};
    struct eth_hpp_bootstrap *bootstrap;
    struct eth_hpp_error err;
    int size, threads;
    const size_t most_bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    size_t bytes = most_bytes;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &threads);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != RANKS || most_bytes == 0) {
        fprintf(stderr, "usage: sync_ranks MOST_BYTES LAYER_BYTES..., by %d ranks of MPI\n", RANKS);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    check(sync_bootstrap_open(&bootstrap, &err), &err);
    check(eth_hpp_comm_open(bootstrap, TIMEOUT_S, &comm, &err), &err);
    for (int i = 2; i < argc; i++)
        if (LAYERS * strtoull(argv[i], NULL, 10) > bytes)
            bytes = LAYERS * strtoull(argv[i], NULL, 10);
    void *data; /* where gradients lie, too */
    check(eth_hpp_comm_share_memory(comm, bytes, &data, &err), &err);
    memset(data, 0, bytes);
    open_team(&all, 0xff, 1);
    for (int g = 0; g < GROUPS; g++)
        open_team(&teams[g], groups[g], 2 + (uint32_t)g);
    for (int b = 0; b < BLOCKS; b++)
        open_team(&owners[b], blocks[b].owners, 2 + GROUPS + (uint32_t)b);
    for (int i = 2; i < argc; i++)
        run_blocks(owners, all.group, data, strtoull(argv[i], NULL, 10));
    for (int g = 0; g < GROUPS; g++) {
        if (teams[g].member)
            run_group(&teams[g], groups[g], data, most_bytes);
        largest(all.group, 0);
    }
    eth_hpp_comm_close(comm);
    eth_hpp_bootstrap_close(bootstrap);
    MPI_Finalize();
    return 0;
}
