#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/ucx/ucx.h"

enum { CARD_VERSION = 4 };

static enum eth_hpp_status card_fill(struct eth_hpp_ucx_card *card, const struct eth_hpp_ucx *ucx,
                                     const struct eth_hpp_bootstrap_place *place,
                                     struct eth_hpp_error *err)
{
    struct stat space;
    memset(card, 0, sizeof(*card));
    card->version = CARD_VERSION;
    card->pid = getpid();
    card->bell = ucx->bell[1];
    snprintf(card->host, sizeof(card->host), "%.63s", place->host);
    if (stat("/proc/self/ns/pid", &space) == 0)
        card->pid_space = space.st_ino;
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t n = read(file, card->machine, sizeof(card->machine) - 1);
        card->machine[n > 0 ? n : 0] = '\0';
        close(file);
    }
    /* No more than some bytes are asked for: they come at once and whole. */
    if (getrandom(&card->seal, sizeof(card->seal), 0) != sizeof(card->seal))
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "the kernel has no random number: %m");
    return ETH_HPP_OK;
}

static enum eth_hpp_status publish(struct eth_hpp_ucx *ucx, struct eth_hpp_bootstrap *bootstrap,
                                   const struct eth_hpp_ucx_card *card, struct eth_hpp_error *err)
{
    ucp_address_t *address;
    size_t size;
    ucs_status_t code = eth_hpp_ucp.worker_get_address(ucx->worker, &address, &size);
    if (code != UCS_OK)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "UCX: this process has no address: %s",
                                 eth_hpp_ucp.status_string(code));
    enum eth_hpp_status status;
    char *value = malloc(sizeof(*card) + size);
    if (value == NULL) {
        status = eth_hpp_error_memory(err, "this rank's address");
    } else {
        memcpy(value, card, sizeof(*card));
        memcpy(value + sizeof(*card), address, size);
        status =
            eth_hpp_bootstrap_put(bootstrap, ETH_HPP_UCX_CARD, value, sizeof(*card) + size, err);
    }
    free(value);
    eth_hpp_ucp.worker_release_address(ucx->worker, address);
    return status;
}

/* The end of a process of this machine makes its descriptor readable. */
static void watch_process(struct eth_hpp_ucx *ucx, struct eth_hpp_ucx_peer *peer)
{
#ifdef SYS_pidfd_open
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
    peer->pid_descriptor = (int)syscall(SYS_pidfd_open, peer->pid, 0);
    if (peer->pid_descriptor >= 0)
        epoll_ctl(ucx->epoll, EPOLL_CTL_ADD, peer->pid_descriptor, &event);
#else
    (void)ucx;
    (void)peer;
#endif
}

/* Read and write, so that writing is no error when its process has ended. */
static void find_bell(struct eth_hpp_ucx_peer *peer, int descriptor)
{
    char path[64];
    struct stat info;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", peer->pid, descriptor);
    peer->bell = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (peer->bell >= 0 && (fstat(peer->bell, &info) != 0 || !S_ISFIFO(info.st_mode))) {
        close(peer->bell);
        peer->bell = -1;
    }
}

static void know_machine(struct eth_hpp_ucx_peer *peer, const struct eth_hpp_ucx_card *card)
{
    peer->pid_space = card->pid_space;
    snprintf(peer->machine_id, sizeof(peer->machine_id), "%.39s", card->machine);
}

static bool on_same_machine(const struct eth_hpp_ucx_peer *peer,
                            const struct eth_hpp_ucx_peer *other)
{
    return peer == other || (peer->pid_space == other->pid_space && peer->machine_id[0] != '\0' &&
                             strcmp(peer->machine_id, other->machine_id) == 0);
}

static enum eth_hpp_status read_card(struct eth_hpp_ucx *ucx, int rank, const char *value,
                                     size_t size, struct eth_hpp_error *err)
{
    struct eth_hpp_ucx_peer *peer = &ucx->peers[rank];
    struct eth_hpp_ucx_card card;
    if (size > sizeof(card))
        memcpy(&card, value, sizeof(card));
    if (size <= sizeof(card) || card.version != CARD_VERSION)
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER,
                                 "rank %d runs another version of eth-hpp: install the same one on "
                                 "all nodes",
                                 rank);
    peer->address = malloc(size - sizeof(card));
    if (peer->address == NULL)
        return eth_hpp_error_memory(err, "a rank's address");
    memcpy(peer->address, value + sizeof(card), size - sizeof(card));
    snprintf(peer->host, sizeof(peer->host), "%.63s", card.host);
    peer->pid = card.pid;
    if (rank == 0)
        ucx->seal = card.seal;
    know_machine(peer, &card);
    peer->machine = 0;
    while (!on_same_machine(peer, &ucx->peers[peer->machine]))
        peer->machine++;
    if (on_same_machine(peer, &ucx->peers[ucx->rank]) && rank != ucx->rank) {
        watch_process(ucx, peer);
        find_bell(peer, card.bell);
    }
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_ucx_peers_open(struct eth_hpp_ucx *ucx,
                                           struct eth_hpp_bootstrap *bootstrap, double timeout_s,
                                           struct eth_hpp_error *err)
{
    struct eth_hpp_ucx_card own;
    ucx->peers = calloc((size_t)ucx->size, sizeof(*ucx->peers));
    if (ucx->peers == NULL)
        return eth_hpp_error_memory(err, "the addresses of all ranks");
    for (int rank = 0; rank < ucx->size; rank++) {
        ucx->peers[rank].ucx = ucx;
        ucx->peers[rank].rank = rank;
        ucx->peers[rank].pid_descriptor = -1;
        ucx->peers[rank].bell = -1;
    }
    enum eth_hpp_status status = card_fill(&own, ucx, eth_hpp_bootstrap_get_place(bootstrap), err);
    know_machine(&ucx->peers[ucx->rank], &own); /* the others are compared with it */
    if (status == ETH_HPP_OK)
        status = publish(ucx, bootstrap, &own, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_bootstrap_fence(bootstrap, timeout_s, err);
    for (int rank = 0; status == ETH_HPP_OK && rank < ucx->size; rank++) {
        void *value;
        size_t size;
        status = eth_hpp_bootstrap_get(bootstrap, rank, ETH_HPP_UCX_CARD, &value, &size, err);
        if (status != ETH_HPP_OK)
            break;
        status = read_card(ucx, rank, value, size, err);
        free(value);
    }
    return status;
}

/* UCX calls this from within ucp_worker_progress, where the endpoint must not be closed. */
static void endpoint_broke(void *user, ucp_ep_h endpoint, ucs_status_t status)
{
    struct eth_hpp_ucx_peer *peer = user;
    (void)endpoint;
    peer->broken = status;
    peer->ucx->trouble = true;
}

ucp_ep_h eth_hpp_ucx_endpoint(struct eth_hpp_ucx *ucx, int rank)
{
    struct eth_hpp_ucx_peer *peer = &ucx->peers[rank];
    if (peer->endpoint != NULL || peer->lost || peer->broken != UCS_OK)
        return peer->broken == UCS_OK ? peer->endpoint : NULL;
    /* UCX leaves shared memory out where it has to notice failures; a watched process needs no such
     * care. Both ends decide alike. */
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = peer->address,
        .err_mode =
            peer->pid_descriptor >= 0 ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = endpoint_broke, .arg = peer},
    };
    ucs_status_t status = eth_hpp_ucp.ep_create(ucx->worker, &params, &peer->endpoint);
    if (status != UCS_OK) {
        peer->endpoint = NULL;
        peer->broken = status;
        ucx->trouble = true;
    }
    return peer->endpoint;
}

static void close_now(struct eth_hpp_ucx_peer *peer)
{
    const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    if (peer->endpoint == NULL)
        return;
    ucs_status_ptr_t handle = eth_hpp_ucp.ep_close_nbx(peer->endpoint, &force);
    if (UCS_PTR_IS_PTR(handle))
        eth_hpp_ucp.request_free(handle);
    peer->endpoint = NULL;
}

static void lose(struct eth_hpp_ucx_peer *peer)
{
    peer->lost = true;
    eth_hpp_ucx_failure_left(peer->ucx);
    close_now(peer);
    if (peer->pid_descriptor >= 0) {
        close(peer->pid_descriptor); /* leaves the epoll set with it */
        peer->pid_descriptor = -1;
    }
    /* In the common close ranks leave one after the other; one that is still waited for may not. */
    bool missed = eth_hpp_ucx_cancel_receives(peer->ucx, peer->rank) > 0;
    if (missed || !peer->ucx->closing)
        eth_hpp_ucx_failure_lost(peer->ucx, peer);
}

void eth_hpp_ucx_peers_poll(struct eth_hpp_ucx *ucx)
{
    if (!ucx->trouble)
        return;
    ucx->trouble = false;
    for (int rank = 0; rank < ucx->size; rank++) {
        struct eth_hpp_ucx_peer *peer = &ucx->peers[rank];
        if (!peer->lost && (peer->ended || peer->broken != UCS_OK))
            lose(peer);
    }
}

/* Flushes what is left for each peer, for a second at most. */
void eth_hpp_ucx_peers_close(struct eth_hpp_ucx *ucx)
{
    const ucp_request_param_t flush = {.op_attr_mask = 0};
    double deadline = eth_hpp_clock_now() + 1;
    for (int rank = 0; rank < ucx->size; rank++) {
        struct eth_hpp_ucx_peer *peer = &ucx->peers[rank];
        if (peer->endpoint == NULL || peer->broken != UCS_OK)
            continue;
        ucs_status_ptr_t handle = eth_hpp_ucp.ep_close_nbx(peer->endpoint, &flush);
        peer->endpoint = NULL;
        if (!UCS_PTR_IS_PTR(handle))
            continue;
        while (eth_hpp_ucp.request_check_status(handle) == UCS_INPROGRESS &&
               eth_hpp_clock_now() < deadline)
            if (eth_hpp_ucp.worker_progress(ucx->worker) == 0)
                usleep(100);
        eth_hpp_ucp.request_free(handle);
    }
    for (int rank = 0; rank < ucx->size; rank++)
        close_now(&ucx->peers[rank]);
}

void eth_hpp_ucx_peers_free(struct eth_hpp_ucx *ucx)
{
    if (ucx->peers == NULL)
        return;
    for (int rank = 0; rank < ucx->size; rank++) {
        if (ucx->peers[rank].pid_descriptor >= 0)
            close(ucx->peers[rank].pid_descriptor);
        if (ucx->peers[rank].bell >= 0)
            close(ucx->peers[rank].bell);
        eth_hpp_ucx_share_free(&ucx->peers[rank]);
        free(ucx->peers[rank].address);
    }
    free(ucx->peers);
}
