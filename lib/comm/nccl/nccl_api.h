/*
 * The part of NCCL that the transport uses, with prototypes of our own: the library is opened at
 * run time, so that one build serves nodes with and without it, and any release from 2.18 on.
 * Names, numbers and layouts are those of nccl.h (tests/unit/test_nccl_api.c compares them).
 */
#ifndef ETH_HPP_COMM_NCCL_API_H
#define ETH_HPP_COMM_NCCL_API_H

#include <limits.h>
#include <stddef.h>

typedef struct ncclComm *eth_hpp_nccl_comm; /* ncclComm_t, opaque */

enum { /* ncclResult_t */
       NCCL_SUCCESS = 0,
       NCCL_UNHANDLED_CUDA_ERROR = 1,
       NCCL_SYSTEM_ERROR = 2,
       NCCL_INTERNAL_ERROR = 3,
       NCCL_INVALID_ARGUMENT = 4,
       NCCL_INVALID_USAGE = 5,
       NCCL_REMOTE_ERROR = 6,
       NCCL_IN_PROGRESS = 7
};

enum {
    NCCL_UINT8 = 1,   /* ncclDataType_t */
    NCCL_FLOAT32 = 7, /* the same */
    NCCL_SUM = 0,     /* ncclRedOp_t */
    NCCL_NO_COLOR = -1,
    NCCL_UNDEFINED = INT_MIN
};

struct eth_hpp_nccl_id { /* ncclUniqueId */
    char internal[128];
};

/* ncclConfig_t as 2.18 had it: later ones put members behind these and read no more than `size`. */
struct eth_hpp_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
};
#define NCCL_CONFIG_MAGIC   0xcafebeefu
#define NCCL_CONFIG_VERSION 21800u

/* Result, name, arguments. A `void *` at the end is a cudaStream_t. */
#define ETH_HPP_NCCL_FUNCTIONS(X)                                                                  \
    X(int, GetVersion, (int *))                                                                    \
    X(int, GetUniqueId, (struct eth_hpp_nccl_id *))                                                \
    X(int, CommInitRankConfig,                                                                     \
      (eth_hpp_nccl_comm *, int, struct eth_hpp_nccl_id, int, struct eth_hpp_nccl_config *))       \
    X(int, CommSplit,                                                                              \
      (eth_hpp_nccl_comm, int, int, eth_hpp_nccl_comm *, struct eth_hpp_nccl_config *))            \
    X(int, CommGetAsyncError, (eth_hpp_nccl_comm, int *))                                          \
    X(int, CommFinalize, (eth_hpp_nccl_comm))                                                      \
    X(int, CommDestroy, (eth_hpp_nccl_comm))                                                       \
    X(int, CommAbort, (eth_hpp_nccl_comm))                                                         \
    X(int, AllReduce, (const void *, void *, size_t, int, int, eth_hpp_nccl_comm, void *))         \
    X(int, ReduceScatter, (const void *, void *, size_t, int, int, eth_hpp_nccl_comm, void *))     \
    X(int, AllGather, (const void *, void *, size_t, int, eth_hpp_nccl_comm, void *))              \
    X(int, Send, (const void *, size_t, int, int, eth_hpp_nccl_comm, void *))                      \
    X(int, Recv, (void *, size_t, int, int, eth_hpp_nccl_comm, void *))                            \
    X(const char *, GetErrorString, (int))                                                         \
    X(const char *, GetLastError, (eth_hpp_nccl_comm))

struct eth_hpp_nccl_library {
#define ETH_HPP_NCCL_MEMBER(result, name, arguments) result(*name) arguments;
    ETH_HPP_NCCL_FUNCTIONS(ETH_HPP_NCCL_MEMBER)
#undef ETH_HPP_NCCL_MEMBER
};

#endif
