/* The double of NCCL (tests/emulation/nccl) ends who breaks a rule, and says which. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/library.h"
#include "comm/nccl/nccl_api.h"
#include "emulation/ranks.h"
#include "folder.h"
#include "kernels/kernels.h"
#include "unit/valgrind.h"

enum { RANKS = 2, COUNT = 4, STREAMS = 2 };

struct rank {
    int rank;
    struct eth_hpp_nccl_library nccl;
    struct eth_hpp_kernels *kernels;
    void *streams[STREAMS];
    float *data;
    eth_hpp_nccl_comm comm; /* of both */
};

static struct eth_hpp_nccl_config config_of(bool shares)
{
    return (struct eth_hpp_nccl_config){.size = sizeof(struct eth_hpp_nccl_config),
                                        .magic = NCCL_CONFIG_MAGIC,
                                        .version = NCCL_CONFIG_VERSION,
                                        .blocking = 0,
                                        .split_share = shares};
}

static void settle(struct rank *r, eth_hpp_nccl_comm comm, int result)
{
    while (result == NCCL_IN_PROGRESS) {
        usleep(100);
        RANK_CHECK(r->nccl.CommGetAsyncError(comm, &result) == NCCL_SUCCESS);
    }
    RANK_CHECK(result == NCCL_SUCCESS, "%s", r->nccl.GetErrorString(result));
}

static void find_calls(struct eth_hpp_nccl_library *nccl)
{
    void *opened;
    RANK_CHECK(eth_hpp_library_open(EMULATED_MODULE, "it", &opened, NULL) == ETH_HPP_OK);
#define FIND(result, name, arguments)                                                              \
    RANK_CHECK(eth_hpp_library_find(opened, EMULATED_MODULE, "nccl" #name, &nccl->name, NULL) ==   \
               ETH_HPP_OK);
    ETH_HPP_NCCL_FUNCTIONS(FIND)
#undef FIND
}

static int begin_init(struct rank *r)
{
    struct eth_hpp_nccl_id id = {{0}};
    struct eth_hpp_nccl_config config = config_of(false);
    snprintf(id.internal, sizeof(id.internal), "rules.%d", (int)getppid());
    return r->nccl.CommInitRankConfig(&r->comm, RANKS, id, r->rank, &config);
}

static void open_rank(struct rank *r, struct eth_hpp_bootstrap *bootstrap)
{
    int stream = 0;
    r->rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    find_calls(&r->nccl);
    RANK_CHECK(eth_hpp_kernels_create("cuda", ETH_HPP_FP32, &r->kernels, NULL) == ETH_HPP_OK);
    const struct eth_hpp_kernels_ops *ops = r->kernels->ops;
    for (int i = 0; i < STREAMS; i++) {
        RANK_CHECK(ops->stream_create(r->kernels->state, &stream, NULL) == ETH_HPP_OK);
        r->streams[i] = ops->stream_native(r->kernels->state, stream);
    }
    RANK_CHECK(ops->allocate(r->kernels->state, COUNT * RANKS * sizeof(float), (void **)&r->data,
                             NULL) == ETH_HPP_OK);
}

static void sum(struct rank *r, eth_hpp_nccl_comm comm, size_t count, int stream)
{
    settle(r, comm,
           r->nccl.AllReduce(r->data, r->data, count, NCCL_FLOAT32, NCCL_SUM, comm,
                             r->streams[stream]));
}

static void gather(struct rank *r, eth_hpp_nccl_comm comm)
{
    settle(r, comm,
           r->nccl.AllGather(r->data + COUNT * r->rank, r->data, COUNT, NCCL_FLOAT32, comm,
                             r->streams[0]));
}

static void send(struct rank *r, eth_hpp_nccl_comm comm, size_t size)
{
    settle(r, comm, r->nccl.Send(r->data, size, NCCL_UINT8, 1 - r->rank, comm, r->streams[0]));
}

static void receive(struct rank *r, eth_hpp_nccl_comm comm, size_t size)
{
    settle(r, comm, r->nccl.Recv(r->data, size, NCCL_UINT8, 1 - r->rank, comm, r->streams[0]));
}

static void end(struct rank *r, eth_hpp_nccl_comm comm)
{
    settle(r, comm, r->nccl.CommFinalize(comm));
    RANK_CHECK(r->nccl.CommDestroy(comm) == NCCL_SUCCESS);
}

static eth_hpp_nccl_comm split(struct rank *r, bool shares)
{
    struct eth_hpp_nccl_config config = config_of(shares);
    eth_hpp_nccl_comm made = NULL;
    settle(r, r->comm, r->nccl.CommSplit(r->comm, 0, r->rank, &made, &config));
    return made;
}

/* ---- what ranks do ---- */

static void all_is_well(struct rank *r)
{
    eth_hpp_nccl_comm one = split(r, true), other = split(r, true);
    sum(r, one, COUNT, 0);
    sum(r, other, COUNT, 1);
    gather(r, r->comm);
    if (r->rank == 0)
        send(r, r->comm, 3);
    else
        receive(r, r->comm, 3);
    end(r, one);
    end(r, other);
    end(r, r->comm);
}

static void unlike_operations(struct rank *r)
{
    if (r->rank == 0)
        sum(r, r->comm, COUNT, 0);
    else
        gather(r, r->comm);
    end(r, r->comm);
}

static void unlike_counts(struct rank *r)
{
    sum(r, r->comm, r->rank == 0 ? COUNT : COUNT - 1, 0);
    end(r, r->comm);
}

static void both_send(struct rank *r)
{
    send(r, r->comm, 1);
    end(r, r->comm);
}

static void unlike_sizes(struct rank *r)
{
    if (r->rank == 0)
        send(r, r->comm, 5);
    else
        receive(r, r->comm, 4);
    end(r, r->comm);
}

/* Each rank first on another one of two communicators, on two streams. */
static void crosswise(struct rank *r, bool shares)
{
    eth_hpp_nccl_comm made[] = {split(r, shares), split(r, shares)};
    for (int i = 0; i < 2; i++) {
        const int c = r->rank == 0 ? i : 1 - i;
        const int result = r->nccl.AllReduce(r->data, r->data, COUNT, NCCL_FLOAT32, NCCL_SUM,
                                             made[c], r->streams[c]);
        RANK_CHECK(result == NCCL_SUCCESS);
    }
    end(r, made[0]);
    end(r, made[1]);
    end(r, r->comm);
}

static void crosswise_with_shared_resources(struct rank *r)
{
    crosswise(r, true);
}

static void crosswise_with_resources_of_their_own(struct rank *r)
{
    crosswise(r, false);
}

static void a_hand_over_to_itself(struct rank *r)
{
    r->nccl.Send(r->data, 1, NCCL_UINT8, r->rank, r->comm, r->streams[0]);
}

static void two_streams(struct rank *r)
{
    sum(r, r->comm, COUNT, 0);
    sum(r, r->comm, COUNT, 1);
    end(r, r->comm);
}

static void no_stream(struct rank *r)
{
    r->nccl.AllReduce(r->data, r->data, COUNT, NCCL_FLOAT32, NCCL_SUM, r->comm, NULL);
}

static void memory_of_the_host(struct rank *r)
{
    static float data[COUNT];
    r->nccl.AllReduce(data, data, COUNT, NCCL_FLOAT32, NCCL_SUM, r->comm, r->streams[0]);
}

static void memory_that_is_too_short(struct rank *r)
{
    r->nccl.AllGather(r->data, r->data, COUNT * 1000, NCCL_FLOAT32, r->comm, r->streams[0]);
}

static void use_before_its_init_is_over(struct rank *r)
{
    begin_init(r);
    r->nccl.AllReduce(r->data, r->data, COUNT, NCCL_FLOAT32, NCCL_SUM, r->comm, r->streams[0]);
}

static void use_after_its_abort(struct rank *r)
{
    r->nccl.CommAbort(r->comm);
    sum(r, r->comm, COUNT, 0);
}

static void use_after_its_end(struct rank *r)
{
    eth_hpp_nccl_comm comm = r->comm;
    end(r, comm);
    sum(r, comm, COUNT, 0);
}

static void end_in_use(struct rank *r)
{
    RANK_CHECK(r->nccl.AllReduce(r->data, r->data, COUNT, NCCL_FLOAT32, NCCL_SUM, r->comm,
                                 r->streams[0]) == NCCL_SUCCESS);
    r->nccl.CommDestroy(r->comm);
}

static void left_behind(struct rank *r)
{
    eth_hpp_kernels_destroy(r->kernels);
    exit(0);
}

/* ---- the tests ---- */

struct act {
    const char *name;
    void (*body)(struct rank *r);
    bool by_itself;   /* begins without a communicator */
    const char *said; /* NULL: it is let pass */
};

static int run_act(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    const struct act *act = user;
    struct rank r = {0};
    open_rank(&r, bootstrap);
    if (!act->by_itself) {
        const int result = begin_init(&r);
        settle(&r, r.comm, result);
    }
    act->body(&r);
    r.kernels->ops->release(r.kernels->state, r.data);
    eth_hpp_kernels_destroy(r.kernels);
    eth_hpp_bootstrap_close(bootstrap);
    return 0;
}

static void check_act(const struct act *act)
{
    struct ranks_result result;
    int ended = 0, well = 0;
    ranks_run(RANKS, run_act, (void *)act, 5, &result);
    for (int rank = 0; rank < RANKS; rank++) {
        well += result.exit_code[rank] == 0;
        ended += result.exit_code[rank] == 128 + SIGABRT;
    }
    if (act->said == NULL ? well != RANKS : ended == 0 || ranks_log_count(&result, act->said) == 0)
        fail_msg("%s: ended with %d and %d: %s", act->name, result.exit_code[0],
                 result.exit_code[1], result.log);
}

static void who_breaks_a_rule_is_ended(void **state)
{
    static const struct act acts[] = {
        {"unlike operations", unlike_operations, false, "at an all-gather of 4"},
        {"unlike counts", unlike_counts, false, "at an all-reduce of 3"},
        {"both send", both_send, false, "is at a send of 1, rank"},
        {"unlike sizes", unlike_sizes, false, "at a receive of 4"},
        {"to itself", a_hand_over_to_itself, false, "a hand-over between rank 0 of a communicator"},
        {"crosswise", crosswise_with_shared_resources, false,
         "ranks 0 and 1 wait for each other: they use communicators that share resources in "
         "different orders"},
        {"two streams", two_streams, false, "a communicator is used from two streams"},
        {"no stream", no_stream, false, "an all-reduce on what is no stream"},
        {"host memory", memory_of_the_host, false,
         "an all-reduce of memory that the device does not reach"},
        {"short memory", memory_that_is_too_short, false,
         "an all-gather of memory that the device does not reach"},
        {"too early", use_before_its_init_is_over, true,
         "ncclAllReduce with a communicator whose init is not over"},
        {"after its abort", use_after_its_abort, false,
         "ncclAllReduce with a communicator that has ended"},
        {"after its end", use_after_its_end, false,
         "ncclAllReduce with a communicator that has ended"},
        {"end in use", end_in_use, false, "the end of a communicator that is in use"},
        {"left behind", left_behind, false, "1 communicators are left behind"},
    };
    (void)state;
    skip_in_valgrind("aborts add lines to the log");
    for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++)
        check_act(&acts[i]);
}

static void who_keeps_to_them_is_not(void **state)
{
    (void)state;
    check_act(&(struct act){"well", all_is_well, false, NULL});
    check_act(&(struct act){"crosswise", crosswise_with_resources_of_their_own, false, NULL});
}

/* As the transport has it: what sums is connected when it is made. */
static int use_double(void **state)
{
    setenv("ETH_HPP_CUDA_MODULE", EMULATED_MODULE, 1);
    setenv("NCCL_RUNTIME_CONNECT", "0", 1);
    if (make_folder(state) != 0)
        return -1;
    return setenv("ETH_HPP_EMULATED_NCCL_FOLDER", folder, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_breaks_a_rule_is_ended),
        cmocka_unit_test(who_keeps_to_them_is_not),
    };
    return cmocka_run_group_tests(tests, use_double, remove_folder);
}
