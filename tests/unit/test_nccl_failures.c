/*
 * The transport over NCCL where something is wrong: every rank ends, soon, and one line says why.
 * GPUs and NCCL are EMULATED (tests/emulation/cuda, nccl).
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <signal.h>

#include "folder.h"
#include "nccl_ranks.h"
#include "unit/valgrind.h"

enum { RANKS = 3, REFUSED = 3 };

static const int all[] = {0, 1, 2};
static const struct eth_hpp_comm_members everyone = {all, RANKS};
static const struct eth_hpp_comm_route chain[] = {{0, 1}, {1, 2}};

static struct eth_hpp_comm_layout layout_of(int rank)
{
    return (struct eth_hpp_comm_layout){.all = everyone,
                                        .routes = rank == RANKS - 1 ? chain + 1 : chain,
                                        .route_count = rank == 1 ? 2 : 1,
                                        .groups = &everyone,
                                        .group_count = 1};
}

static void set_on(int rank, int on, const char *name, const char *value)
{
    if (name != NULL && (on < 0 || on == rank))
        setenv(name, value, 1);
}

/* ---- at the start ---- */

/* One variable of one rank's environment, or of all where `rank` is -1; and what is said. */
struct setting {
    int rank;
    const char *name, *value;
    const char *line;
};

/* As a program does it. */
static void end_job(struct eth_hpp_comm *comm, const struct eth_hpp_error *err)
{
    eth_hpp_comm_fail(comm, err, REFUSED);
    _exit(REFUSED);
}

/* All have come so far. */
static enum eth_hpp_status meet(struct eth_hpp_comm *comm, struct eth_hpp_group **group,
                                struct eth_hpp_error *err)
{
    struct eth_hpp_request *request;
    double value = 0;
    enum eth_hpp_status status = eth_hpp_comm_group_open(comm, all, RANKS, 1, group, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_group_reduce(*group, &value, 1, ETH_HPP_REDUCE_SUM, &request, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_wait(comm, request, 20, err);
    return status;
}

/* What all ranks find out together each of them returns, with the same text; else one tells the
 * others. */
static int start(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    const struct setting *setting = user;
    struct device device = device_make(bootstrap);
    const struct eth_hpp_comm_layout layout = layout_of(device.rank);
    struct eth_hpp_group *group;
    struct eth_hpp_error err = {0};
    set_on(device.rank, setting->rank, setting->name, setting->value);
    enum eth_hpp_status status = device_reach(&device, bootstrap, &layout, &err);
    struct eth_hpp_comm *comm = status == ETH_HPP_OK ? device.comm : device.control;
    if (status == ETH_HPP_OK)
        status = meet(comm, &group, &err);
    if (status != ETH_HPP_OK)
        end_job(comm, &err);
    device_close(&device, bootstrap);
    return 0;
}

static void check_start(const struct setting *setting, int code)
{
    struct ranks_result result;
    ranks_run(RANKS, start, (void *)setting, 30, &result);
    for (int rank = 0; rank < RANKS; rank++)
        if (result.exit_code[rank] != code)
            fail_msg("%s=%s: rank %d ended with %d: %s", setting->name, setting->value, rank,
                     result.exit_code[rank], result.log);
    if (ranks_log_count(&result, setting->line) != 1)
        fail_msg("%s=%s: not once \"%s\" in: %s", setting->name, setting->value, setting->line,
                 result.log);
    assert_true(result.seconds < 15);
}

static void what_ranks_do_not_have_alike_is_refused_by_name(void **state)
{
    static const struct setting settings[] = {
        {2, "ETH_HPP_EMULATED_NCCL_VERSION", "22907",
         "rank 2 on host1 has NCCL 2.29.7, rank 0 on host0 has NCCL 2.30.7: install the same"},
        {0, "ETH_HPP_EMULATED_NCCL_VERSION", "22907",
         "rank 1 on host0 has NCCL 2.30.7, rank 0 on host0 has NCCL 2.29.7"},
        {1, "ETH_HPP_NCCL_LIBRARY", "/nowhere/libnccl.so.2",
         "rank 1 on host0 has no NCCL, rank 0 on host0 has NCCL 2.30.7"},
        {-1, "ETH_HPP_NCCL_LIBRARY", "/nowhere/libnccl.so.2",
         "rank 0 on host0 cannot use the NCCL that ETH_HPP_NCCL_LIBRARY names: "
         "/nowhere/libnccl.so.2: cannot open"},
        {1, "NCCL_ALGO", "Tree",
         "rank 1 on host0 has NCCL_ALGO=Tree in its environment, rank 0 on host0 has no NCCL_ALGO"},
        {0, "NCCL_P2P_DISABLE", "1",
         "rank 1 on host0 has no NCCL_P2P_DISABLE in its environment, rank 0 on host0 has "
         "NCCL_P2P_DISABLE=1"},
        {-1, "ETH_HPP_EMULATED_NCCL_VERSION", "21704", "NCCL 2.17.4 is too old: install 2.18"},
    };
    (void)state;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        check_start(&settings[i], REFUSED);
}

static void what_may_differ_is_let_pass(void **state)
{
    static const struct setting settings[] = {
        {1, "NCCL_DEBUG", "WARN", "GPUs exchange data by NCCL 2.30.7, emulated"},
        {1, "NCCL_SOCKET_IFNAME", "eth7", "GPUs exchange data by NCCL 2.30.7, emulated"},
        {-1, "ETH_HPP_EMULATED_NCCL_VERSION", "22907",
         "GPUs exchange data through the host, emulated: ranks 0 and 1 share a GPU of host0, which "
         "NCCL "
         "2.29.7 cannot do, 2.30 can"},
        {-1, "NCCL_ALGO", "Ring", "GPUs exchange data by NCCL 2.30.7, emulated"},
        {-1, "ETH_HPP_NCCL_LIBRARY", "none", "GPUs exchange data through the host"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        check_start(&settings[i], 0);
}

/* Ranks that wait for one whose call fails do not wait for long. */
static void a_call_that_fails_on_one_rank_ends_all(void **state)
{
    static const struct setting settings[] = {
        {0, "ETH_HPP_EMULATED_NCCL_FAULT", "unique-id", "NCCL gives no id on rank 0 on host0"},
        {1, "ETH_HPP_EMULATED_NCCL_FAULT", "unique-id",
         "hand-overs from rank 1 to rank 2: NCCL gives no id: "},
        {2, "ETH_HPP_EMULATED_NCCL_FAULT", "init",
         "rank 2 on host1: NCCL failed at the start of a communicator: unhandled cuda error"},
        {0, "ETH_HPP_EMULATED_NCCL_FAULT", "send",
         "rank 0 on host0: hand-overs from rank 0 to rank 1: NCCL failed at the connection"},
    };
    (void)state;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        check_start(&settings[i], REFUSED);
}

/* ---- later ---- */

enum what { HAND_OVER, SUM };

struct loss {
    enum what what;    /* that rank 0 waits for */
    bool dies;         /* rank 1: is killed, or does something else */
    const char *fault; /* of the double, on rank 0 */
    double timeout_s;
    const char *line;
};

/* It is killed; or it computes, and looks now and then whether the job goes on. */
static void lose_rank_1(struct device *device, bool dies)
{
    struct eth_hpp_error err = {0};
    if (dies)
        raise(SIGKILL);
    while (eth_hpp_comm_check(device->comm, &err) == ETH_HPP_OK)
        usleep(1000);
    end_job(device->comm, &err);
}

static enum eth_hpp_status begin(struct device *device, enum what what, struct eth_hpp_group *group,
                                 struct eth_hpp_request **request, struct eth_hpp_error *err)
{
    const float number = 1;
    float *data = device_put(device, &number, sizeof(number));
    if (what == SUM)
        return eth_hpp_comm_group_sum(group, data, 1, ETH_HPP_SUM_WHOLE, request, err);
    if (device->rank == 0)
        return eth_hpp_comm_send(device->comm, data, sizeof(number), 1, 1, request, err);
    return eth_hpp_comm_recv(device->comm, data, sizeof(number), 1, 1, request, err);
}

static int wait_for_rank_1(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    const struct loss *loss = user;
    const int rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    const struct eth_hpp_comm_layout layout = layout_of(rank);
    struct device device = device_open(bootstrap, &layout);
    struct eth_hpp_group *group;
    struct eth_hpp_request *request = NULL;
    struct eth_hpp_error err = {0};
    RANK_CHECK(meet(device.comm, &group, &err) == ETH_HPP_OK);
    if (rank == 1)
        lose_rank_1(&device, loss->dies);
    set_on(rank, 0, loss->fault != NULL ? "ETH_HPP_EMULATED_NCCL_FAULT" : NULL, loss->fault);
    enum eth_hpp_status status = begin(&device, loss->what, group, &request, &err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_comm_wait(device.comm, request, rank == 0 ? loss->timeout_s : 20, &err);
    RANK_CHECK(status != ETH_HPP_OK);
    end_job(device.comm, &err);
    return 0;
}

static void check_loss(const struct loss *loss)
{
    struct ranks_result result;
    ranks_run(RANKS, wait_for_rank_1, (void *)loss, 30, &result);
    if (result.exit_code[1] != (loss->dies ? 128 + SIGKILL : REFUSED))
        fail_msg("rank 1 ended with %d: %s", result.exit_code[1], result.log);
    if (result.exit_code[0] != REFUSED || result.exit_code[2] != REFUSED ||
        ranks_log_count(&result, loss->line) != 1)
        fail_msg("ended with %d and %d; not once \"%s\" in: %s", result.exit_code[0],
                 result.exit_code[2], loss->line, result.log);
    assert_true(result.seconds < 15);
}

static void a_killed_rank_ends_those_whose_devices_wait_for_it(void **state)
{
    (void)state;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    check_loss(&(struct loss){HAND_OVER, true, NULL, 20, "rank 1 on host0 is lost: "});
    check_loss(&(struct loss){SUM, true, NULL, 20, "rank 1 on host0 is lost: "});
}

static void a_deadline_names_the_ranks_that_are_waited_for(void **state)
{
    (void)state;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    check_loss(&(struct loss){HAND_OVER, false, NULL, 0.3, " s for a send to rank 1\n"});
    check_loss(&(struct loss){SUM, false, NULL, 0.3, " s for a sum with ranks 1, 2\n"});
}

static void an_abort_that_does_not_return_holds_nobody_up(void **state)
{
    (void)state;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    check_loss(&(struct loss){HAND_OVER, true, "abort", 20, "rank 1 on host0 is lost: "});
}

static int close_without_rank_1(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    const int rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    const struct eth_hpp_comm_layout layout = layout_of(rank);
    struct device device = device_open(bootstrap, &layout);
    struct eth_hpp_group *group;
    struct eth_hpp_request *request = NULL;
    struct eth_hpp_error err = {0};
    (void)user;
    RANK_CHECK(meet(device.comm, &group, &err) == ETH_HPP_OK);
    if (rank == 1)
        raise(SIGKILL);
    set_on(rank, 0, "ETH_HPP_EMULATED_NCCL_FAULT", "abort");
    RANK_CHECK(begin(&device, SUM, group, &request, &err) == ETH_HPP_OK);
    eth_hpp_comm_close(device.comm);
    _exit(0); /* what the device may still use is left to it */
}

/* What runs on rank 0's device is waited for by nobody. */
static void a_transport_whose_abort_does_not_return_can_be_closed(void **state)
{
    struct ranks_result result;
    (void)state;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    ranks_run(RANKS, close_without_rank_1, NULL, 30, &result);
    if (result.exit_code[0] != 0 || result.exit_code[2] != 0)
        fail_msg("ended with %d and %d: %s", result.exit_code[0], result.exit_code[2], result.log);
}

/* What is left of communicators that nobody ended goes with the folder. */
static int use_nccl(void **state)
{
    setenv("ETH_HPP_CUDA_MODULE", EMULATED_MODULE, 1);
    if (make_folder(state) != 0)
        return -1;
    return setenv("ETH_HPP_EMULATED_NCCL_FOLDER", folder, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_ranks_do_not_have_alike_is_refused_by_name),
        cmocka_unit_test(what_may_differ_is_let_pass),
        cmocka_unit_test(a_call_that_fails_on_one_rank_ends_all),
        cmocka_unit_test(a_killed_rank_ends_those_whose_devices_wait_for_it),
        cmocka_unit_test(a_deadline_names_the_ranks_that_are_waited_for),
        cmocka_unit_test(an_abort_that_does_not_return_holds_nobody_up),
        cmocka_unit_test(a_transport_whose_abort_does_not_return_can_be_closed),
    };
    return cmocka_run_group_tests(tests, use_nccl, remove_folder);
}
