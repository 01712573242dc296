#include "comm/ucx/ucx.h"

#define KIND_SHIFT   56
#define SOURCE_SHIFT 32
#define KIND_MASK    (UINT64_C(0xff) << KIND_SHIFT)

uint64_t eth_hpp_ucx_tag(enum eth_hpp_ucx_kind kind, int source, uint32_t tag)
{
    return (uint64_t)kind << KIND_SHIFT | (uint64_t)source << SOURCE_SHIFT | tag;
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
                                                    eth_hpp_ucx_tag(kind, ucx->rank, tag), &param));
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
    ucs_status_ptr_t handle = eth_hpp_ucp.tag_recv_nbx(
        ucx->worker, data, size, eth_hpp_ucx_tag(kind, peer < 0 ? 0 : peer, tag),
        peer < 0 ? KIND_MASK : ~UINT64_C(0), &param);
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
