#include <inttypes.h>

#include "base/log.h"
#include "comm/ucx/ucx.h"

#define KIND_SHIFT   56
#define SOURCE_SHIFT 32
#define SOURCE_MASK  (UINT64_C(0xffffff) << SOURCE_SHIFT)

static uint64_t seal(const struct eth_hpp_ucx *ucx, enum eth_hpp_ucx_kind kind, int source,
                     uint32_t tag)
{
    return ((uint64_t)kind << KIND_SHIFT | (uint64_t)source << SOURCE_SHIFT | tag) ^ ucx->seal;
}

static bool is_sealed(const struct eth_hpp_ucx *ucx, uint64_t sealed)
{
    const uint64_t plain = sealed ^ ucx->seal, kind = plain >> KIND_SHIFT;
    return kind >= ETH_HPP_UCX_TRANSFER && kind <= ETH_HPP_UCX_CONTROL &&
           (plain & SOURCE_MASK) >> SOURCE_SHIFT < (uint64_t)ucx->size;
}

static void enter(struct eth_hpp_ucx *ucx, struct eth_hpp_ucx_message *message, size_t size,
                  int peer, bool receive)
{
    message->ucx = ucx;
    message->handle = NULL;
    message->peer = peer;
    message->receive = receive;
    message->size = size;
    message->previous = NULL;
    message->next = ucx->messages;
    if (ucx->messages != NULL)
        ucx->messages->previous = message;
    ucx->messages = message;
}

static void leave(struct eth_hpp_ucx_message *message, ucs_status_t status)
{
    if (message->previous != NULL)
        message->previous->next = message->next;
    else
        message->ucx->messages = message->next;
    if (message->next != NULL)
        message->next->previous = message->previous;
    message->handle = NULL;
    message->done(message, status);
}

static void sent(void *handle, ucs_status_t status, void *user)
{
    eth_hpp_ucp.request_free(handle);
    leave(user, status);
}

static void received(void *handle, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user)
{
    struct eth_hpp_ucx_message *message = user;
    if (status == UCS_OK && info->length != message->size)
        status = UCS_ERR_MESSAGE_TRUNCATED;
    if (message->starting) { /* called from within ucp_tag_recv_nbx */
        message->starting = false;
        message->early_status = status;
        return;
    }
    eth_hpp_ucp.request_free(handle);
    leave(message, status);
}

/* UCX gives NULL for what is done already, an error, or a handle whose callback comes. */
static void started(struct eth_hpp_ucx_message *message, ucs_status_ptr_t handle)
{
    if (handle == NULL)
        leave(message, UCS_OK);
    else if (UCS_PTR_IS_ERR(handle))
        leave(message, UCS_PTR_STATUS(handle));
    else
        message->handle = handle;
}

void eth_hpp_ucx_send(struct eth_hpp_ucx *ucx, struct eth_hpp_ucx_message *message,
                      const void *data, size_t size, int peer, enum eth_hpp_ucx_kind kind,
                      uint32_t tag)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = sent,
        .user_data = message,
    };
    ucp_ep_h endpoint = eth_hpp_ucx_endpoint(ucx, peer);
    enter(ucx, message, size, peer, false);
    started(message, endpoint == NULL
                         ? UCS_STATUS_PTR(UCS_ERR_CONNECTION_RESET)
                         : eth_hpp_ucp.tag_send_nbx(endpoint, data, size,
                                                    seal(ucx, kind, ucx->rank, tag), &param));
}

void eth_hpp_ucx_receive(struct eth_hpp_ucx *ucx, struct eth_hpp_ucx_message *message, void *data,
                         size_t size, int peer, enum eth_hpp_ucx_kind kind, uint32_t tag)
{
    /* What has come before is told by the callback too: UCX 1.13 fills no recv_info for it. */
    const ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv = received,
        .user_data = message,
    };
    enter(ucx, message, size, peer, true);
    if (peer >= 0 && ucx->peers[peer].lost) {
        leave(message, UCS_ERR_CONNECTION_RESET);
        return;
    }
    message->starting = true;
    ucs_status_ptr_t handle =
        eth_hpp_ucp.tag_recv_nbx(ucx->worker, data, size, seal(ucx, kind, peer < 0 ? 0 : peer, tag),
                                 peer < 0 ? ~SOURCE_MASK : ~UINT64_C(0), &param);
    if (UCS_PTR_IS_PTR(handle) && !message->starting) {
        eth_hpp_ucp.request_free(handle);
        leave(message, message->early_status);
        return;
    }
    message->starting = false;
    started(message, handle);
}

void eth_hpp_ucx_flush(struct eth_hpp_ucx *ucx, struct eth_hpp_ucx_message *message, int peer)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = sent,
        .user_data = message,
    };
    ucp_ep_h endpoint = ucx->peers[peer].endpoint;
    enter(ucx, message, 0, peer, false);
    started(message, endpoint == NULL ? NULL : eth_hpp_ucp.ep_flush_nbx(endpoint, &param));
}

/* The bits that are 0 in each tag of the job's before it is sealed: most, so that of a stranger's
 * tags next to none has none of them set. */
static uint64_t unused_bits(const struct eth_hpp_ucx *ucx)
{
    uint64_t kinds = 1, sources = 1;
    while (kinds <= ETH_HPP_UCX_CONTROL)
        kinds <<= 1;
    while (sources < (uint64_t)ucx->size)
        sources <<= 1;
    return ~(kinds - 1) << KIND_SHIFT | (~(sources - 1) << SOURCE_SHIFT & SOURCE_MASK);
}

/* The oldest message that nobody receives yet and that has these bits in its tag; false: none. */
static bool refuse(struct eth_hpp_ucx *ucx, uint64_t tag, uint64_t mask)
{
    const ucp_request_param_t nowhere = {.op_attr_mask = 0};
    ucp_tag_recv_info_t info;
    ucp_tag_message_h message = eth_hpp_ucp.tag_probe_nb(ucx->worker, tag, mask, 1, &info);
    if (message == NULL)
        return false;
    ucs_status_ptr_t handle = eth_hpp_ucp.tag_msg_recv_nbx(ucx->worker, NULL, 0, message, &nowhere);
    if (UCS_PTR_IS_PTR(handle))
        eth_hpp_ucp.request_free(handle);
    ucx->strangers++;
    if ((ucx->strangers & (ucx->strangers - 1)) == 0) /* of many a few are told of */
        eth_hpp_log_warning("rank %d on %s refused a message of %zu bytes from somebody on the "
                            "network who is not of this job (%" PRIu64 " so far)",
                            ucx->rank, ucx->peers[ucx->rank].host, info.length, ucx->strangers);
    return true;
}

void eth_hpp_ucx_refuse_strangers(struct eth_hpp_ucx *ucx)
{
    ucp_tag_recv_info_t oldest;
    for (;;) {
        if (eth_hpp_ucp.tag_probe_nb(ucx->worker, 0, 0, 0, &oldest) == NULL)
            return;
        if (is_sealed(ucx, oldest.sender_tag))
            break;
        refuse(ucx, 0, 0);
    }
    /* One of the job's may wait for long, and strangers' behind it would add up. */
    for (uint64_t left = unused_bits(ucx); left != 0; left &= left - 1) {
        const uint64_t bit = left & -left;
        while (refuse(ucx, ~ucx->seal & bit, bit))
            ;
    }
}

int eth_hpp_ucx_cancel_receives(struct eth_hpp_ucx *ucx, int peer)
{
    int cancelled = 0;
    struct eth_hpp_ucx_message *next;
    for (struct eth_hpp_ucx_message *message = ucx->messages; message != NULL; message = next) {
        next = message->next; /* its callback may take it out of the list at once */
        if (message->receive && message->handle != NULL && (peer < 0 || message->peer == peer)) {
            eth_hpp_ucp.request_cancel(ucx->worker, message->handle);
            cancelled++;
        }
    }
    return cancelled;
}
