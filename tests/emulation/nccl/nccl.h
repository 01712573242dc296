/*
 * EMULATED NCCL, between processes of one machine, on emulated GPUs (tests/emulation/cuda), with
 * its rules checked: what breaks one ends the process with a line that begins with "emulated
 * NCCL:".
 *   - all ranks of a communicator do the same operations in the same order, with the same counts;
 *     a send meets a receive
 *   - communicators that share resources (splitShare) complete what they do in the order of issue;
 *     two ranks that wait for each other by that are reported
 *   - a communicator is used from one stream, not before its init is over, not after its end, and
 *     is not left behind; the device reaches the memory
 * Nothing blocks (config.blocking = 0): what is in progress gets on at each ncclCommGetAsyncError.
 * Calls that the transport has no use for, those of groups among them, are not there.
 *
 * Processes meet in files of $ETH_HPP_EMULATED_NCCL_FOLDER, or /dev/shm. There is no NCCL to fail,
 * so $ETH_HPP_EMULATED_NCCL_VERSION is another version, and $ETH_HPP_EMULATED_NCCL_FAULT a call
 * that fails: unique-id, init, send (an error that shows later), or abort, which does not return.
 */
#ifndef ETH_HPP_EMULATED_NCCL_H
#define ETH_HPP_EMULATED_NCCL_H

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include <cuda_runtime.h>

extern "C" {
#include "comm/nccl/nccl_api.h"
}

namespace emulated_nccl {

constexpr int RANKS = 16, SPLITS = 64;
constexpr size_t CHUNK = 256 << 10; /* bytes that a rank posts at a time */

enum class kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, SEND, RECV };

/* What a rank says of the operation that it posts. */
struct description {
    kind what;
    int type;
    size_t count, begin; /* elements; of those that are posted now */
};

/* Shared by the ranks of a communicator, zeroed at first. A rank writes to its own part only. */
struct board {
    std::atomic<int> joined, connected, finalized, aborted;
    struct {
        std::atomic<uint64_t> posted, taken; /* turns */
        description posts;
        std::atomic<int> splits; /* begun so far */
        int color[SPLITS], key[SPLITS];
        /* What the rank's communicators that share this one's resources wait for: a communicator
         * and its turn; 0: for nothing. */
        std::atomic<uint64_t> waits_on, waits_turn;
        char data[CHUNK];
    } ranks[RANKS];
};

/* Communicators that share resources. */
struct family {
    std::shared_ptr<board> shared; /* of the first of them */
    int rank = 0;                  /* this process there */
    uint64_t issued = 0, done = 0; /* operations */
};

struct communicator {
    std::string name;
    int rank = 0, count = 0;
    std::shared_ptr<board> shared;
    std::shared_ptr<family> resources;
    int family_ranks[RANKS] = {}; /* its ranks in the family */
    uint64_t turns = 0;           /* done */
    uint64_t under_way = 0;       /* operations */
    bool connected = false;       /* by a first operation */
    cudaStream_t stream = nullptr;
    int state = NCCL_IN_PROGRESS; /* of its init, then its own error */
    bool aborted = false, finalizing = false;
    std::function<int()> advance; /* an init or a split that is under way; or empty */

    uint64_t number() const
    {
        return std::hash<std::string>()(name) | 1;
    }
};

/* Ends the process: a rule is broken. */
[[noreturn]] void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The board of this name, made by whoever comes first. */
std::shared_ptr<board> board_open(const std::string &name);
void board_forget(const std::string &name); /* all have it */

/* The communicator that this process has under a family's number, or NULL. */
communicator *find(uint64_t number);

/* Puts an operation on the stream: the first one of a communicator when all ranks have come to it,
 * and until then it is in progress. */
int operate(std::shared_ptr<communicator> comm, kind what, const void *from, void *to, size_t count,
            int type, void *stream);

} // namespace emulated_nccl

#endif
