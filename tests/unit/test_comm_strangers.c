/* Somebody on the network who has a rank's address, but is not of its job. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/ucx/ucx.h"
#include "comm_ranks.h"

enum { SMALL = 8, LARGE = 1 << 20, TAG = 5, MESSAGES = 5, FLOOD = 2000 };

struct stranger {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h endpoint;
};

static void progress_until_done(struct stranger *stranger, ucs_status_ptr_t handle)
{
    RANK_CHECK(!UCS_PTR_IS_ERR(handle));
    if (handle == NULL)
        return;
    for (int i = 0; i < 2000 && eth_hpp_ucp.request_check_status(handle) == UCS_INPROGRESS; i++)
        if (eth_hpp_ucp.worker_progress(stranger->worker) == 0)
            usleep(1000);
    eth_hpp_ucp.request_free(handle);
}

static void open_stranger(struct stranger *stranger, const ucp_address_t *address)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_TAG};
    const ucp_worker_params_t worker_params = {.field_mask = 0};
    const ucp_ep_params_t endpoint = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                    UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                                      .address = address,
                                      .err_mode = UCP_ERR_HANDLING_MODE_PEER};
    ucp_config_t *config;
    RANK_CHECK(eth_hpp_ucp.config_read(NULL, NULL, &config) == UCS_OK);
    RANK_CHECK(eth_hpp_ucp.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config,
                                        &stranger->context) == UCS_OK);
    eth_hpp_ucp.config_release(config);
    RANK_CHECK(eth_hpp_ucp.worker_create(stranger->context, &worker_params, &stranger->worker) ==
               UCS_OK);
    RANK_CHECK(eth_hpp_ucp.ep_create(stranger->worker, &endpoint, &stranger->endpoint) == UCS_OK);
}

static void close_stranger(struct stranger *stranger)
{
    const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    progress_until_done(stranger, eth_hpp_ucp.ep_close_nbx(stranger->endpoint, &force));
    eth_hpp_ucp.worker_destroy(stranger->worker);
    eth_hpp_ucp.cleanup(stranger->context);
}

/* What rank 1 waits for from rank 0, as far as a stranger can know it. */
static void intrude(const ucp_address_t *address)
{
    static const char false_data[LARGE] = "false";
    const ucp_request_param_t plain = {.op_attr_mask = 0};
    const uint64_t guess = (uint64_t)ETH_HPP_UCX_TRANSFER << 56 | TAG;
    const uint64_t end = (uint64_t)ETH_HPP_UCX_CONTROL << 56;
    struct stranger stranger;
    open_stranger(&stranger, address);
    for (int i = 0; i < MESSAGES - 2; i++)
        progress_until_done(&stranger, eth_hpp_ucp.tag_send_nbx(stranger.endpoint, false_data,
                                                                SMALL, guess, &plain));
    progress_until_done(&stranger,
                        eth_hpp_ucp.tag_send_nbx(stranger.endpoint, false_data,
                                                 sizeof(struct eth_hpp_ucx_notice), end, &plain));
    progress_until_done(
        &stranger, eth_hpp_ucp.tag_send_nbx(stranger.endpoint, false_data, LARGE, guess, &plain));
    progress_until_done(&stranger, eth_hpp_ucp.ep_flush_nbx(stranger.endpoint, &plain));
    close_stranger(&stranger);
}

static void flood(const ucp_address_t *address)
{
    static const char nothing[SMALL];
    const ucp_request_param_t plain = {.op_attr_mask = 0};
    struct stranger stranger;
    open_stranger(&stranger, address);
    for (uint64_t i = 1; i <= FLOOD; i++)
        progress_until_done(&stranger,
                            eth_hpp_ucp.tag_send_nbx(stranger.endpoint, nothing, SMALL,
                                                     i * UINT64_C(0x9e3779b97f4a7c15), &plain));
    progress_until_done(&stranger, eth_hpp_ucp.ep_flush_nbx(stranger.endpoint, &plain));
    close_stranger(&stranger);
}

static void visit_rank_1(struct eth_hpp_bootstrap *bootstrap, void (*as)(const ucp_address_t *))
{
    void *value;
    size_t size;
    RANK_CHECK(eth_hpp_bootstrap_get(bootstrap, 1, ETH_HPP_UCX_CARD, &value, &size, NULL) ==
               ETH_HPP_OK);
    as((const ucp_address_t *)((char *)value + sizeof(struct eth_hpp_ucx_card)));
    free(value);
}

/* Rank 0 lets the stranger go first. */
static int be_intruded_on(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    struct eth_hpp_request *request;
    char data[SMALL] = "true";
    (void)user;
    if (eth_hpp_bootstrap_get_place(bootstrap)->rank == 0) {
        visit_rank_1(bootstrap, intrude);
        RANK_CHECK(eth_hpp_comm_send(comm, data, SMALL, 1, TAG, &request, NULL) == ETH_HPP_OK);
        finish(comm, request);
    } else {
        RANK_CHECK(eth_hpp_comm_recv(comm, data, SMALL, 0, TAG, &request, NULL) == ETH_HPP_OK);
        finish(comm, request);
        RANK_CHECK(strcmp(data, "true") == 0, "it received '%.8s'", data);
    }
    eth_hpp_comm_close(comm);
    eth_hpp_bootstrap_close(bootstrap);
    return 0;
}

static void a_message_from_outside_the_job_is_refused_and_logged(void **state)
{
    struct ranks_result result;
    (void)state;
    ranks_run(2, be_intruded_on, NULL, 60, &result);
    if (result.exit_code[0] != 0 || result.exit_code[1] != 0 ||
        ranks_log_count(&result, "not of this job (4 so far)") != 1)
        fail_msg("ended with %d and %d: %s", result.exit_code[0], result.exit_code[1], result.log);
}

/* A message of rank 0's waits for its receive, and a stranger's pile up behind it, if they can. */
static int be_flooded(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    struct eth_hpp_request *early, *late;
    char first[SMALL] = "first", second[SMALL] = "second";
    (void)user;
    if (eth_hpp_bootstrap_get_place(bootstrap)->rank == 0) {
        RANK_CHECK(eth_hpp_comm_send(comm, first, SMALL, 1, TAG, &early, NULL) == ETH_HPP_OK);
        finish(comm, early);
        visit_rank_1(bootstrap, flood);
        RANK_CHECK(eth_hpp_comm_send(comm, second, SMALL, 1, TAG + 1, &late, NULL) == ETH_HPP_OK);
        finish(comm, late);
    } else {
        memset(first, 0, SMALL);
        memset(second, 0, SMALL);
        RANK_CHECK(eth_hpp_comm_recv(comm, second, SMALL, 0, TAG + 1, &late, NULL) == ETH_HPP_OK);
        finish(comm, late);
        fprintf(stderr, "rank 1 has got through\n");
        RANK_CHECK(eth_hpp_comm_recv(comm, first, SMALL, 0, TAG, &early, NULL) == ETH_HPP_OK);
        finish(comm, early);
        RANK_CHECK(strcmp(first, "first") == 0 && strcmp(second, "second") == 0);
    }
    eth_hpp_comm_close(comm);
    eth_hpp_bootstrap_close(bootstrap);
    return 0;
}

static void a_flood_from_outside_is_refused_while_messages_of_the_job_wait(void **state)
{
    struct ranks_result result;
    (void)state;
    ranks_run(2, be_flooded, NULL, 60, &result);
    const char *through = strstr(result.log, "rank 1 has got through");
    const char *refused = strstr(result.log, "not of this job (1024 so far)");
    if (result.exit_code[0] != 0 || result.exit_code[1] != 0 || refused == NULL ||
        refused > through)
        fail_msg("ended with %d and %d: %s", result.exit_code[0], result.exit_code[1], result.log);
}

/* The port that this process listens on for TCP, or 0. */
static int own_tcp_port(void)
{
    for (int descriptor = 3; descriptor < 256; descriptor++) {
        struct sockaddr_in at;
        socklen_t size = sizeof(at), flag_size = sizeof(int);
        int listens = 0;
        if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &flag_size) == 0 &&
            listens && getsockname(descriptor, (struct sockaddr *)&at, &size) == 0 &&
            at.sin_family == AF_INET)
            return ntohs(at.sin_port);
    }
    return 0;
}

static void call_with(int port, const char *bytes, size_t size)
{
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int caller = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    RANK_CHECK(caller >= 0 && connect(caller, (const struct sockaddr *)&at, sizeof(at)) == 0);
    const ssize_t sent = send(caller, bytes, size, MSG_NOSIGNAL);
    (void)sent; /* it may have been hung up on already */
    close(caller);
}

/* Rank 0 is called by who does not speak UCX, and then gets its message. */
static int be_called(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    struct eth_hpp_comm *comm = open_comm(bootstrap);
    struct eth_hpp_request *request;
    const int rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    char data[SMALL] = "";
    (void)user;
    if (rank == 0) {
        const int port = own_tcp_port();
        RANK_CHECK(port != 0);
        call_with(port, "", 0);
        call_with(port, "GET / HTTP/1.0\r\n\r\n", 18);
        for (int i = 0; i < 20; i++)
            call_with(port, (const char[4096]){(char)i, (char)0xff, (char)0xff, 0x7f}, 4096);
    }
    RANK_CHECK((rank == 0 ? eth_hpp_comm_recv(comm, data, SMALL, 1, TAG, &request, NULL)
                          : eth_hpp_comm_send(comm, "hello!!", SMALL, 0, TAG, &request, NULL)) ==
               ETH_HPP_OK);
    finish(comm, request);
    RANK_CHECK(rank == 1 || strcmp(data, "hello!!") == 0);
    eth_hpp_comm_close(comm);
    eth_hpp_bootstrap_close(bootstrap);
    return 0;
}

static void a_caller_that_does_not_speak_ucx_harms_nobody(void **state)
{
    (void)state;
    setenv("UCX_TLS", "tcp", 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
    expect_success(2, be_called, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_from_outside_the_job_is_refused_and_logged),
        cmocka_unit_test(a_flood_from_outside_is_refused_while_messages_of_the_job_wait),
        cmocka_unit_test(a_caller_that_does_not_speak_ucx_harms_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
