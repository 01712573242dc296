#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/bootstrap.h"
#include "bootstrap/component.h"
#include "bootstrap/first_here.h"

/* Whatever started this test must not be seen by the code under test. */
static int leave_the_step(void **state)
{
    (void)state;
    unsetenv("PMIX_NAMESPACE");
    unsetenv("PMIX_RANK");
    unsetenv("PMI_FD");
    unsetenv("SLURM_STEP_ID");
    unsetenv("SLURM_STEP_NUM_TASKS");
    return 0;
}

static void one_process_needs_no_server(void **state)
{
    (void)state;
    struct eth_hpp_bootstrap *bootstrap;
    struct eth_hpp_error err;
    void *value;
    size_t size;
    assert_int_equal(eth_hpp_bootstrap_open(&bootstrap, &err), ETH_HPP_OK);
    const struct eth_hpp_bootstrap_place *place = eth_hpp_bootstrap_get_place(bootstrap);
    assert_int_equal(place->rank, 0);
    assert_int_equal(place->size, 1);
    assert_int_equal(place->local_size, 1);
    assert_true(place->host[0] != '\0');
    assert_int_equal(eth_hpp_bootstrap_put(bootstrap, "text", "hello", 5, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_bootstrap_put(bootstrap, "empty", "", 0, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_bootstrap_fence(bootstrap, 1, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_bootstrap_get(bootstrap, 0, "text", &value, &size, &err), ETH_HPP_OK);
    assert_int_equal(size, 5);
    assert_string_equal(value, "hello");
    free(value);
    assert_int_equal(eth_hpp_bootstrap_get(bootstrap, 0, "empty", &value, &size, &err), ETH_HPP_OK);
    assert_int_equal(size, 0);
    free(value);
    eth_hpp_bootstrap_close(bootstrap);
}

static void a_missing_key_is_an_error_at_once(void **state)
{
    (void)state;
    struct eth_hpp_bootstrap *bootstrap;
    struct eth_hpp_error err;
    void *value = NULL;
    size_t size;
    assert_int_equal(eth_hpp_bootstrap_open(&bootstrap, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_bootstrap_get(bootstrap, 0, "nothing", &value, &size, &err),
                     ETH_HPP_ERR_PEER);
    assert_non_null(strstr(err.text, "rank 0 has not published"));
    assert_non_null(strstr(err.text, "nothing"));
    assert_null(value);
    eth_hpp_bootstrap_close(bootstrap);
}

static void a_key_is_used_once(void **state)
{
    (void)state;
    struct eth_hpp_bootstrap *bootstrap;
    struct eth_hpp_error err;
    assert_int_equal(eth_hpp_bootstrap_open(&bootstrap, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_bootstrap_put(bootstrap, "key", "1", 1, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_bootstrap_put(bootstrap, "key", "2", 1, &err), ETH_HPP_ERR_INTERNAL);
    eth_hpp_bootstrap_close(bootstrap);
}

static void several_tasks_without_pmix_are_refused(void **state)
{
    (void)state;
    struct eth_hpp_bootstrap *bootstrap = NULL;
    struct eth_hpp_error err;
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    assert_int_equal(eth_hpp_bootstrap_open(&bootstrap, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "4 tasks"));
    assert_non_null(strstr(err.text, "--mpi=pmix, or --mpi=pmi2"));
    assert_null(bootstrap);
}

/* A batch script has the job's task count in its environment, but is one process. */
static void a_batch_script_is_one_process(void **state)
{
    (void)state;
    struct eth_hpp_bootstrap *bootstrap;
    struct eth_hpp_error err;
    setenv("SLURM_NTASKS", "4", 1);
    assert_int_equal(eth_hpp_bootstrap_open(&bootstrap, &err), ETH_HPP_OK);
    eth_hpp_bootstrap_close(bootstrap);
    unsetenv("SLURM_NTASKS");
}

/* ---- a component with a small limit: the single one behind a check ---- */

static size_t longest;

static enum eth_hpp_status short_put(void *state, const char *key, const void *value, size_t size,
                                     struct eth_hpp_error *err)
{
    longest = size > longest ? size : longest;
    return eth_hpp_bootstrap_single_ops.put(state, key, value, size, err);
}

static void long_values_are_cut_and_put_together(void **state)
{
    (void)state;
    struct eth_hpp_bootstrap_ops ops = eth_hpp_bootstrap_single_ops;
    struct eth_hpp_bootstrap_place place = {.size = 1};
    struct eth_hpp_bootstrap *bootstrap;
    struct eth_hpp_error err;
    void *single, *value;
    size_t size;
    static const size_t sizes[] = {0, 1, 99, 100, 101, 200, 1234};

    ops.put = short_put;
    ops.value_max = 100;
    longest = 0;
    assert_int_equal(eth_hpp_bootstrap_single_open(&single, &place, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_bootstrap_create(&ops, single, &place, &bootstrap, &err), ETH_HPP_OK);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char key[16], data[1234];
        for (size_t j = 0; j < sizeof(data); j++)
            data[j] = (char)(j * 31 + i);
        snprintf(key, sizeof(key), "key%zu", i);
        assert_int_equal(eth_hpp_bootstrap_put(bootstrap, key, data, sizes[i], &err), ETH_HPP_OK);
        assert_int_equal(eth_hpp_bootstrap_get(bootstrap, 0, key, &value, &size, &err), ETH_HPP_OK);
        assert_int_equal(size, sizes[i]);
        assert_memory_equal(value, data, size);
        free(value);
    }
    assert_int_equal(longest, 100);
    assert_int_equal(
        eth_hpp_bootstrap_put(bootstrap, "huge", "", (size_t)ETH_HPP_BOOTSTRAP_VALUE_MAX + 1, &err),
        ETH_HPP_ERR_INTERNAL);
    eth_hpp_bootstrap_close(bootstrap);
}

/* ---- who speaks for all of a host ---- */

static pid_t start_taking(const char *what, int *taken)
{
    int ends[2];
    char answer;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        answer = eth_hpp_first_here(what) ? 'y' : 'n';
        if (write(ends[1], &answer, 1) == 1)
            pause();
        _exit(1);
    }
    assert_int_equal(read(ends[0], &answer, 1), 1);
    close(ends[0]);
    close(ends[1]);
    *taken = answer == 'y';
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void one_process_of_a_host_is_the_first_until_it_ends(void **state)
{
    (void)state;
    char what[64];
    int first, second;
    snprintf(what, sizeof(what), "test.%d", (int)getpid());
    pid_t one = start_taking(what, &first), other = start_taking(what, &second);
    assert_true(first);
    assert_false(second);
    end(other);
    end(one);
    one = start_taking(what, &first);
    assert_true(first);
    end(one);
}

/* The name as another user may take it. */
static int squat(const char *what, bool listening, uid_t user)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "eth-hpp.%u.%s", (unsigned)geteuid(),
             what);
    assert_int_equal(seteuid(user), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof(name)), 0);
    if (listening)
        assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(seteuid(getuid()), 0);
    return fd;
}

static void nobody_is_silenced_by_who_takes_the_name_before(void **state)
{
    (void)state;
    char what[64];
    int first;
    snprintf(what, sizeof(what), "test.%d", (int)getpid());
    int fd = squat(what, false, geteuid());
    end(start_taking(what, &first));
    close(fd);
    assert_true(first);
    if (getuid() != 0) {
        print_message("# skipped: only root can be another user\n");
        skip();
    }
    fd = squat(what, true, 33);
    end(start_taking(what, &first));
    close(fd);
    assert_true(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(one_process_needs_no_server, leave_the_step),
        cmocka_unit_test_setup(a_missing_key_is_an_error_at_once, leave_the_step),
        cmocka_unit_test_setup(a_key_is_used_once, leave_the_step),
        cmocka_unit_test_setup(several_tasks_without_pmix_are_refused, leave_the_step),
        cmocka_unit_test_setup(a_batch_script_is_one_process, leave_the_step),
        cmocka_unit_test_setup(long_values_are_cut_and_put_together, leave_the_step),
        cmocka_unit_test(one_process_of_a_host_is_the_first_until_it_ends),
        cmocka_unit_test(nobody_is_silenced_by_who_takes_the_name_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
