#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm_ranks.h"
#include "unit/valgrind.h"

/* A wait that fails leaves the values alone, on the stack of a function that is over by then, also
 * when the other rank comes late. */
static int reduce_late(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    const int both[] = {0, 1}, rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    struct eth_hpp_group *group;
    struct eth_hpp_request *request;
    double value = 1 + rank;
    (void)user;
    RANK_CHECK(eth_hpp_comm_group_open(comm, both, 2, 9, &group, NULL) == ETH_HPP_OK);
    if (rank == 1)
        usleep(500000);
    RANK_CHECK(eth_hpp_comm_group_reduce(group, &value, 1, ETH_HPP_REDUCE_SUM, &request, NULL) ==
               ETH_HPP_OK);
    if (rank == 0) {
        RANK_CHECK(eth_hpp_comm_wait(comm, request, 0.1, NULL) == ETH_HPP_ERR_TIMEOUT);
        usleep(800000);
        RANK_CHECK(value == 1);
    } else {
        finish(comm, request);
        RANK_CHECK(value == 3);
    }
    eth_hpp_comm_close(comm);
    eth_hpp_bootstrap_close(bootstrap);
    return 0;
}

static void a_reduction_that_is_given_up_leaves_its_values_alone(void **state)
{
    (void)state;
    expect_success(2, reduce_late, NULL);
}

/* As a program does it: an error ends the job. */
static void end_of(struct eth_hpp_comm *comm, const struct eth_hpp_error *err)
{
    eth_hpp_comm_fail(comm, err, 1);
    _exit(1);
}

static void wait_or_end(struct eth_hpp_comm *comm, struct eth_hpp_request *request,
                        double timeout_s)
{
    struct eth_hpp_error err;
    if (eth_hpp_comm_wait(comm, request, timeout_s, &err) != ETH_HPP_OK)
        end_of(comm, &err);
}

/* Rank 2 (or the given one) dies; the others wait for it, or for one that does. */
static int die(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    const struct eth_hpp_bootstrap_place *place = eth_hpp_bootstrap_get_place(bootstrap);
    int dying = *(int *)user, before = (place->rank + place->size - 1) % place->size;
    struct eth_hpp_request *request;
    float number = 0;
    if (place->rank == dying) {
        usleep(100000);
        raise(SIGKILL);
    }
    eth_hpp_comm_recv(comm, &number, sizeof(number), before, 1, &request, NULL);
    wait_or_end(comm, request, 30);
    return 0;
}

static void a_killed_rank_ends_all_others_with_one_line(void **state)
{
    (void)state;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    for (int dying = 0; dying < 4; dying++) {
        struct ranks_result result;
        char line[64];
        ranks_run(4, die, &dying, 30, &result);
        for (int rank = 0; rank < 4; rank++)
            assert_int_equal(result.exit_code[rank], rank == dying ? 128 + SIGKILL : 1);
        snprintf(line, sizeof(line), "eth-hpp: rank %d on host%d is lost: ", dying, dying / 2);
        if (ranks_log_count(&result, line) != 1 || ranks_log_count(&result, "\n") != 1)
            fail_msg("not one line \"%s\" but: %s", line, result.log);
        assert_true(result.seconds < 10);
    }
}

/* Nobody sends: the first deadline names who is waited for. */
static int starve(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    struct eth_hpp_request *request;
    float number;
    (void)user;
    if (eth_hpp_bootstrap_get_place(bootstrap)->rank == 1) {
        sleep(20); /* a rank that hangs is ended by the others' decision */
        return 0;
    }
    eth_hpp_comm_recv(comm, &number, sizeof(number), 1, 1, &request, NULL);
    wait_or_end(comm, request, 0.3);
    return 0;
}

static void a_deadline_names_the_peer_and_ends_the_one_that_hangs(void **state)
{
    (void)state;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    struct ranks_result result;
    ranks_run(2, starve, NULL, 30, &result);
    assert_int_equal(result.exit_code[0], 1);
    assert_int_equal(result.exit_code[1], 1);
    assert_int_equal(ranks_log_count(&result, "rank 0 on host0: waited 0.3"), 1);
    assert_int_equal(ranks_log_count(&result, " s for a receive from rank 1 on host0\n"), 1);
    assert_true(result.seconds < 10);
}

/* Rank 2 waits for 1, 1 for 0, which decides what is said, and 0 for 3, which hangs. */
static int wait_in_a_row(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    const int peers[] = {3, 0, 1}, rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    struct eth_hpp_request *request;
    float number;
    (void)user;
    if (rank == 3) {
        sleep(20);
        return 0;
    }
    eth_hpp_comm_recv(comm, &number, sizeof(number), peers[rank], 1, &request, NULL);
    wait_or_end(comm, request, rank == 2 ? 0.3 : 30);
    return 0;
}

static void the_rank_that_hangs_at_the_end_of_a_row_is_named(void **state)
{
    (void)state;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    struct ranks_result result;
    ranks_run(4, wait_in_a_row, NULL, 30, &result);
    if (ranks_log_count(&result, "rank 0 on host0: waited ") != 1 ||
        ranks_log_count(&result, " for a receive from rank 3 on host1\n") != 1 ||
        ranks_log_count(&result, "\n") != 1)
        fail_msg("not one line about rank 3 but: %s", result.log);
    assert_true(result.seconds < 10);
}

/* Rank 1's device is late, which is no wait of the transport's: it blames nobody, least of all rank
 * 0, whose own wait says less about the cause. */
static int be_late_by_device(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    struct eth_hpp_request *request;
    struct eth_hpp_error err = {0};
    float number;
    (void)user;
    if (eth_hpp_bootstrap_get_place(bootstrap)->rank == 1) {
        usleep(200000);
        eth_hpp_error_set(&err, ETH_HPP_ERR_TIMEOUT, "the device is not done");
        end_of(comm, &err);
    }
    eth_hpp_comm_recv(comm, &number, sizeof(number), 1, 1, &request, NULL);
    wait_or_end(comm, request, 20);
    return 0;
}

static void a_rank_whose_device_is_late_says_so_itself(void **state)
{
    (void)state;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    struct ranks_result result;
    ranks_run(2, be_late_by_device, NULL, 30, &result);
    if (ranks_log_count(&result, "rank 1 on host0: the device is not done\n") != 1 ||
        ranks_log_count(&result, "\n") != 1)
        fail_msg("not one line about rank 1 but: %s", result.log);
}

/* The ranks of the first of two hosts are stopped, once all are connected; the others of the second
 * host cannot tell that from a network that is cut. */
static int wait_for_the_first_host(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    const int rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    pid_t *stopped = user;
    struct eth_hpp_request *request;
    float number = 0;
    struct eth_hpp_error err;
    if (rank < 2) {
        stopped[rank] = getpid();
        raise(SIGSTOP);
        return 0;
    }
    eth_hpp_comm_recv(comm, &number, sizeof(number), rank - 2, 1, &request, NULL);
    RANK_CHECK(eth_hpp_comm_wait(comm, request, 1, &err) == ETH_HPP_ERR_TIMEOUT);
    if (eth_hpp_comm_fail(comm, &err, 1)) /* as the job's end would */
        for (int i = 0; i < 2; i++)
            kill(stopped[i], SIGKILL);
    _exit(1);
}

static void a_host_whose_only_other_one_hangs_speaks_in_the_end(void **state)
{
    (void)state;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    struct ranks_result result;
    pid_t *stopped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(stopped != MAP_FAILED);
    ranks_run(4, wait_for_the_first_host, stopped, 40, &result);
    munmap(stopped, 4096);
    if (ranks_log_count(&result, "rank 2 on host1: waited ") +
                ranks_log_count(&result, "rank 3 on host1: waited ") !=
            1 ||
        ranks_log_count(&result, "\n") != 1)
        fail_msg("not one line but: %s", result.log);
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(result.exit_code[rank], rank < 2 ? 137 : 1);
    assert_true(result.seconds < 35);
}

/* All ranks meet the same error at once, as with a loss that is not finite. */
static int all_fail(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    struct eth_hpp_error err;
    (void)user;
    eth_hpp_error_set(&err, ETH_HPP_ERR_NUMERIC, "the loss is not finite");
    end_of(comm, &err);
    return 0;
}

static void an_error_on_all_ranks_is_one_line(void **state)
{
    (void)state;
    skip_in_valgrind("it knows no pidfd_open, and adds lines of its own to the log");
    struct ranks_result result;
    ranks_run(4, all_fail, NULL, 30, &result);
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(result.exit_code[rank], 1);
    assert_int_equal(ranks_log_count(&result, "the loss is not finite"), 1);
    assert_int_equal(ranks_log_count(&result, "\n"), 1);
    assert_true(result.seconds < 10);
}

/* A message of another size than expected is an error, not a cut. */
static int mismatch(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    int rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    struct eth_hpp_request *request;
    struct eth_hpp_error err = {0};
    char data[16] = {0};
    if (rank == 0) {
        eth_hpp_comm_send(comm, data, 8, 1, 1, &request, NULL);
        finish(comm, request);
    } else {
        usleep(*(const useconds_t *)user);
        eth_hpp_comm_recv(comm, data, 16, 0, 1, &request, NULL);
        RANK_CHECK(eth_hpp_comm_wait(comm, request, 10, &err) == ETH_HPP_ERR_PEER);
        RANK_CHECK(strstr(err.text, "rank 0") != NULL, "%s", err.text);
    }
    eth_hpp_comm_close(comm);
    eth_hpp_bootstrap_close(bootstrap);
    return 0;
}

static void a_message_of_another_size_is_an_error(void **state)
{
    (void)state;
    useconds_t delays[] = {0, 300000}; /* the message comes after the receive is posted, before */
    for (int i = 0; i < 2; i++)
        expect_success(2, mismatch, &delays[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reduction_that_is_given_up_leaves_its_values_alone),
        cmocka_unit_test(a_message_of_another_size_is_an_error),
        cmocka_unit_test(a_killed_rank_ends_all_others_with_one_line),
        cmocka_unit_test(a_deadline_names_the_peer_and_ends_the_one_that_hangs),
        cmocka_unit_test(the_rank_that_hangs_at_the_end_of_a_row_is_named),
        cmocka_unit_test(a_rank_whose_device_is_late_says_so_itself),
        cmocka_unit_test(an_error_on_all_ranks_is_one_line),
        cmocka_unit_test(a_host_whose_only_other_one_hangs_speaks_in_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
