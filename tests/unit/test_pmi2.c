/* The PMI-2 component against a double of Slurm's server, for one rank of a node of two. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/bootstrap.h"
#include "bootstrap/component.h"

enum { MESSAGE_BYTES = 2048, STORE_MAX = 64 };

/* The double. It keeps what is put, and answers the commands that the component knows. */
struct server {
    int sockets[2]; /* the server's, the task's */
    pthread_t thread;
    int greetings, stored;
    char keys[STORE_MAX][MESSAGE_BYTES], values[STORE_MAX][MESSAGE_BYTES];
    const char *greeting;     /* what it says to a greeting */
    const char *instead_of;   /* this command is answered by `nonsense`, as it stands */
    const char *nonsense;     /* NULL: the connection is closed */
    const char *neighbour_is; /* "here": rank 4 has come to every fence */
};

static bool read_all(int fd, char *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        const ssize_t count = read(fd, bytes + done, size - done);
        if (count <= 0)
            return false;
        done += (size_t)count;
    }
    return true;
}

static void answer(const struct server *server, const char *command, const char *fields)
{
    char text[MESSAGE_BYTES + 128], message[MESSAGE_BYTES + 160];
    snprintf(text, sizeof(text), "cmd=%s-response;rc=0;%s", command, fields);
    const int size = snprintf(message, sizeof(message), "%-6zu%s", strlen(text), text);
    assert_int_equal(write(server->sockets[0], message, (size_t)size), size);
}

/* "key=K;value=V;" of a message. */
static void take(const char *message, const char *field, char value[MESSAGE_BYTES])
{
    const char *at = strstr(message, field);
    value[0] = '\0';
    if (at != NULL)
        sscanf(at + strlen(field), "%2047[^;]", value);
}

static void find(const struct server *server, const char *key, char fields[MESSAGE_BYTES + 32])
{
    strcpy(fields, "found=FALSE;");
    for (int i = 0; i < server->stored; i++)
        if (strcmp(server->keys[i], key) == 0)
            snprintf(fields, MESSAGE_BYTES + 32, "found=TRUE;value=%s;", server->values[i]);
    if (strstr(key, ".fence.") != NULL && strcmp(strrchr(key, '.'), ".4") == 0 &&
        server->neighbour_is != NULL)
        snprintf(fields, MESSAGE_BYTES + 32, "found=TRUE;value=%s;", server->neighbour_is);
}

/* False where the connection is to end. */
static bool serve_one(struct server *server, const char *message)
{
    char command[64] = "", key[MESSAGE_BYTES], fields[MESSAGE_BYTES + 32] = "";
    sscanf(message, "cmd=%63[^;]", command);
    take(message, ";key=", key);
    if (server->instead_of != NULL && strcmp(command, server->instead_of) == 0) {
        if (server->nonsense == NULL)
            return false;
        const size_t size = strlen(server->nonsense);
        assert_int_equal(write(server->sockets[0], server->nonsense, size), size);
        return true;
    }
    if (strcmp(command, "fullinit") == 0) {
        strcpy(fields, "rank=5;size=8;appnum=0;");
    } else if (strstr(command, "put") != NULL) {
        assert_true(server->stored < STORE_MAX);
        strcpy(server->keys[server->stored], key);
        take(message, ";value=", server->values[server->stored++]);
    } else if (strstr(command, "get") != NULL) {
        find(server, key, fields);
    }
    answer(server, command, fields);
    return true;
}

static void *serve(void *argument)
{
    struct server *server = argument;
    char length[7] = "", message[MESSAGE_BYTES];
    bool going_on = true;
    while (going_on && read_all(server->sockets[0], length, 6)) {
        if (memcmp(length, "cmd=in", 6) == 0) { /* the greeting has no length */
            while (read_all(server->sockets[0], message, 1) && message[0] != '\n')
                ;
            server->greetings++;
            const size_t size = strlen(server->greeting);
            assert_int_equal(write(server->sockets[0], server->greeting, size), size);
            continue;
        }
        const size_t size = (size_t)atoi(length);
        assert_true(size < sizeof(message) && read_all(server->sockets[0], message, size));
        message[size] = '\0';
        going_on = serve_one(server, message);
    }
    close(server->sockets[0]);
    return NULL;
}

/* A task of a heterogeneous job: rank 1 of its component, and 5 of the whole. */
static int start(void **state)
{
    char fd[16];
    struct server *server = calloc(1, sizeof(*server));
    assert_non_null(server);
    server->greeting = "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n";
    server->neighbour_is = "here";
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, server->sockets), 0);
    snprintf(fd, sizeof(fd), "%d", server->sockets[1]);
    unsetenv("PMIX_NAMESPACE");
    setenv("PMI_FD", fd, 1);
    setenv("PMI_RANK", "5", 1);
    setenv("PMI_JOBID", "7.0", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "8", 1);
    setenv("SLURM_GTIDS", "0,1", 1);
    setenv("SLURM_LOCALID", "1", 1);
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
    *state = server;
    return 0;
}

static int stop(void **state)
{
    struct server *server = *state;
    close(server->sockets[1]);
    pthread_join(server->thread, NULL);
    free(server);
    return 0;
}

static struct eth_hpp_bootstrap *open_one(void)
{
    struct eth_hpp_bootstrap *bootstrap;
    struct eth_hpp_error err;
    const enum eth_hpp_status status = eth_hpp_bootstrap_open(&bootstrap, &err);
    if (status != ETH_HPP_OK)
        fail_msg("%s", err.text);
    return bootstrap;
}

static void a_rank_finds_its_place_in_the_whole_job(void **state)
{
    (void)state;
    struct eth_hpp_bootstrap *bootstrap = open_one();
    const struct eth_hpp_bootstrap_place *place = eth_hpp_bootstrap_get_place(bootstrap);
    assert_int_equal(place->rank, 5);
    assert_int_equal(place->size, 8);
    assert_int_equal(place->local_rank, 1);
    assert_int_equal(place->local_size, 2);
    eth_hpp_bootstrap_close(bootstrap);
}

/* Slurm's server takes no second one, and launcher and program are one task. */
static void one_greeting_serves_all_of_a_task(void **state)
{
    const struct server *server = *state;
    for (int i = 0; i < 3; i++)
        eth_hpp_bootstrap_close(open_one());
    assert_int_equal(server->greetings, 1);
}

static void values_of_any_bytes_and_length_come_back(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 511, 512, 3000};
    struct eth_hpp_bootstrap *bootstrap = open_one();
    struct eth_hpp_error err;
    char data[3000];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (char)(i * 31);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char key[16];
        void *value;
        size_t size;
        snprintf(key, sizeof(key), "key%zu", i);
        assert_int_equal(eth_hpp_bootstrap_put(bootstrap, key, data, sizes[i], &err), ETH_HPP_OK);
        assert_int_equal(eth_hpp_bootstrap_fence(bootstrap, 10, &err), ETH_HPP_OK);
        assert_int_equal(eth_hpp_bootstrap_get(bootstrap, 5, key, &value, &size, &err), ETH_HPP_OK);
        assert_int_equal(size, sizes[i]);
        assert_memory_equal(value, data, size);
        free(value);
    }
    eth_hpp_bootstrap_close(bootstrap);
}

static void what_a_rank_has_not_published_is_an_error(void **state)
{
    (void)state;
    struct eth_hpp_bootstrap *bootstrap = open_one();
    struct eth_hpp_error err;
    void *value;
    size_t size;
    assert_int_equal(eth_hpp_bootstrap_get(bootstrap, 3, "nothing", &value, &size, &err),
                     ETH_HPP_ERR_PEER);
    assert_non_null(strstr(err.text, "rank 3 has not published"));
    eth_hpp_bootstrap_close(bootstrap);
}

/* As after `eth-hpp launch`, whichever process of the task launches again. */
static void a_later_bootstrap_does_not_see_what_an_earlier_one_published(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    for (int i = 0; i < 3; i++) {
        struct eth_hpp_bootstrap *bootstrap = open_one();
        void *value;
        size_t size;
        assert_int_equal(eth_hpp_bootstrap_get(bootstrap, 5, "key", &value, &size, &err),
                         ETH_HPP_ERR_PEER);
        assert_int_equal(eth_hpp_bootstrap_put(bootstrap, "key", &i, sizeof(i), &err), ETH_HPP_OK);
        assert_int_equal(eth_hpp_bootstrap_fence(bootstrap, 10, &err), ETH_HPP_OK);
        assert_int_equal(eth_hpp_bootstrap_get(bootstrap, 5, "key", &value, &size, &err),
                         ETH_HPP_OK);
        assert_memory_equal(value, &i, sizeof(i));
        free(value);
        eth_hpp_bootstrap_close(bootstrap);
    }
}

static void a_rank_of_the_node_that_does_not_come_is_named(void **state)
{
    struct server *server = *state;
    struct eth_hpp_bootstrap *bootstrap = open_one();
    struct eth_hpp_error err;
    server->neighbour_is = NULL;
    assert_int_equal(eth_hpp_bootstrap_fence(bootstrap, 0.05, &err), ETH_HPP_ERR_TIMEOUT);
    assert_non_null(strstr(err.text, "rank 4 on "));
    assert_non_null(strstr(err.text, "did not come to the exchange"));
    assert_int_equal(eth_hpp_bootstrap_fence(bootstrap, 10, &err), ETH_HPP_ERR_PEER);
    eth_hpp_bootstrap_close(bootstrap);
}

/* Each at opening; `text` is what the error says of it. */
static void refuse(struct server *server, const char *command, const char *nonsense,
                   const char *text)
{
    struct eth_hpp_bootstrap *bootstrap;
    struct eth_hpp_error err;
    server->instead_of = command;
    server->nonsense = nonsense;
    assert_int_equal(eth_hpp_bootstrap_open(&bootstrap, &err), ETH_HPP_ERR_PEER);
    if (strstr(err.text, text) == NULL)
        fail_msg("%s: does not say: %s", err.text, text);
}

static void an_answer_that_makes_no_sense_is_an_error(void **state)
{
    struct server *server = *state;
    refuse(server, "fullinit", "99999 ", "a length of '99999 '");
    refuse(server, "fullinit", "-1    ", "a length of '-1    '");
    refuse(server, "fullinit", "24    cmd=fullinit-response;x;", "fullinit failed");
    refuse(server, "fullinit", "28    cmd=fullinit-response;rc=14;", "rc=14");
    refuse(server, "fullinit", "27    cmd=fullinit-response;rc=0;", "which rank this is");
    refuse(server, "fullinit", "41    cmd=fullinit-response;rc=0;rank=8;size=8;",
           "which rank this is");
    refuse(server, "fullinit", NULL, "closed");
}

static void a_server_that_speaks_another_version_is_an_error(void **state)
{
    struct server *server = *state;
    server->greeting = "cmd=response_to_init rc=1 pmi_version=1 pmi_subversion=1\n";
    refuse(server, NULL, NULL, "does not speak it");
}

static void ranks_that_slurm_does_not_tell_are_an_error(void **state)
{
    setenv("SLURM_LOCALID", "2", 1);
    refuse(*state, NULL, NULL, "SLURM_GTIDS (0,1) and SLURM_LOCALID");
}

/* As in a step of --mpi=none within one of --mpi=pmi2. */
static void a_descriptor_that_is_no_socket_is_no_server(void **state)
{
    (void)state;
    struct eth_hpp_bootstrap *bootstrap;
    struct eth_hpp_error err;
    setenv("PMI_FD", "999", 1);
    assert_int_equal(eth_hpp_bootstrap_open(&bootstrap, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "8 tasks"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_rank_finds_its_place_in_the_whole_job),
        TEST(one_greeting_serves_all_of_a_task),
        TEST(values_of_any_bytes_and_length_come_back),
        TEST(what_a_rank_has_not_published_is_an_error),
        TEST(a_later_bootstrap_does_not_see_what_an_earlier_one_published),
        TEST(a_rank_of_the_node_that_does_not_come_is_named),
        TEST(an_answer_that_makes_no_sense_is_an_error),
        TEST(a_server_that_speaks_another_version_is_an_error),
        TEST(ranks_that_slurm_does_not_tell_are_an_error),
        TEST(a_descriptor_that_is_no_socket_is_no_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
