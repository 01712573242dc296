/* EMULATED: sums, gathers and transfers, turn by turn: each rank posts a chunk, and takes those of
 * the others when all are there (see nccl.h). */
#include "tests/emulation/nccl/nccl.h"

#include <algorithm>

namespace emulated_nccl {

namespace {

const char *const names[] = {"an all-reduce", "a reduce-scatter", "an all-gather", "a send",
                             "a receive"};

size_t size_of(int type)
{
    return type == NCCL_FLOAT32 ? sizeof(float) : 1;
}

struct operation {
    std::shared_ptr<communicator> comm;
    kind what;
    const char *from;
    char *to;
    size_t count;
    int type;
    uint64_t ticket; /* among those of the family */
    size_t begin = 0;
    bool posted = false;

    /* Elements that a rank posts in all, or that are received. */
    size_t length() const
    {
        return what == kind::REDUCE_SCATTER ? count * (size_t)comm->count : count;
    }
    size_t part() const
    {
        return std::min(length() - begin, CHUNK / size_of(type));
    }
    bool step();

  private:
    bool all(std::atomic<uint64_t> board::*) const;
    bool wait(uint64_t turn) const;
    void post(uint64_t turn);
    void check(int rank) const;
    void take();
    void sum(size_t first, size_t end, char *result) const;
};

/* Two ranks each at an operation that needs the other one, which the other cannot come to: NCCL
 * completes what shares resources in the order of issue. */
void look_for_deadlock(const communicator *mine, uint64_t turn)
{
    const family &family = *mine->resources;
    for (int rank = 0; rank < mine->count; rank++) {
        auto &other = family.shared->ranks[mine->family_ranks[rank]];
        const uint64_t number = other.waits_on, at = other.waits_turn;
        const communicator *theirs = number == 0 ? nullptr : find(number);
        if (theirs == nullptr || theirs == mine || theirs->resources != mine->resources)
            continue;
        if (theirs->shared->ranks[theirs->rank].posted < at &&
            mine->shared->ranks[rank].posted < turn && other.waits_on == number &&
            other.waits_turn == at)
            violation("ranks %d and %d wait for each other: they use communicators that share "
                      "resources in different orders",
                      family.rank, mine->family_ranks[rank]);
    }
}

bool operation::wait(uint64_t turn) const
{
    auto &own = comm->resources->shared->ranks[comm->resources->rank];
    own.waits_on = 0;
    own.waits_turn = turn;
    own.waits_on = comm->number();
    look_for_deadlock(comm.get(), turn);
    return false;
}

void operation::post(uint64_t turn)
{
    auto &own = comm->shared->ranks[comm->rank];
    own.posts = {what, type, count, begin};
    eth_hpp_emulated_reach();
    if (what != kind::RECV)
        memcpy(own.data, from + begin * size_of(type), part() * size_of(type));
    own.posted = turn;
    posted = true;
}

void operation::check(int rank) const
{
    const description &theirs = comm->shared->ranks[rank].posts;
    const kind wanted = what == kind::SEND ? kind::RECV : what == kind::RECV ? kind::SEND : what;
    if (theirs.what != wanted || theirs.type != type || theirs.count != count)
        violation("rank %d of a communicator is at %s of %zu, rank %d at %s of %zu", comm->rank,
                  names[(int)what], count, rank, names[(int)theirs.what], theirs.count);
}

/* Elements [first, end) of the whole, of which this turn's are posted, in the order of the ranks.
 */
void operation::sum(size_t first, size_t end, char *result) const
{
    for (size_t i = std::max(first, begin); i < std::min(end, begin + part()); i++) {
        float total = 0;
        for (int rank = 0; rank < comm->count; rank++) {
            float one;
            memcpy(&one, comm->shared->ranks[rank].data + (i - begin) * sizeof(one), sizeof(one));
            total += one;
        }
        memcpy(result + (i - first) * sizeof(total), &total, sizeof(total));
    }
}

void operation::take()
{
    const size_t bytes = part() * size_of(type);
    const size_t share = count * (size_t)comm->rank;
    for (int rank = 0; rank < comm->count; rank++)
        if (rank != comm->rank)
            check(rank);
    eth_hpp_emulated_reach();
    switch (what) {
    case kind::ALL_REDUCE:
        sum(0, count, to);
        break;
    case kind::REDUCE_SCATTER:
        sum(share, share + count, to);
        break;
    case kind::ALL_GATHER:
        for (int rank = 0; rank < comm->count; rank++)
            memcpy(to + (count * (size_t)rank + begin) * size_of(type),
                   comm->shared->ranks[rank].data, bytes);
        break;
    case kind::RECV:
        memcpy(to + begin * size_of(type), comm->shared->ranks[1 - comm->rank].data, bytes);
        break;
    case kind::SEND:
        break;
    }
}

/* As far as the other ranks let it go: true when it is done. */
bool operation::step()
{
    board &shared = *comm->shared;
    family &resources = *comm->resources;
    if (!comm->aborted && resources.done != ticket)
        return false;
    do {
        const uint64_t turn = comm->turns + 1;
        if (comm->aborted)
            break;
        for (int rank = 0; rank < comm->count && !posted; rank++)
            if (shared.ranks[rank].taken < turn - 1)
                return wait(turn);
        if (!posted)
            post(turn);
        for (int rank = 0; rank < comm->count; rank++)
            if (shared.ranks[rank].posted < turn)
                return wait(turn);
        take();
        shared.ranks[comm->rank].taken = turn;
        comm->turns = turn;
        begin += part();
        posted = false;
    } while (begin < length());
    resources.shared->ranks[resources.rank].waits_on = 0;
    resources.done++;
    comm->under_way--;
    return true;
}

/* What an operation reads and writes. */
void check_memory(const communicator &comm, kind what, const void *from, const void *to,
                  size_t bytes)
{
    const size_t all = bytes * (size_t)comm.count;
    const size_t read = what == kind::REDUCE_SCATTER ? all : bytes;
    const size_t written = what == kind::ALL_GATHER ? all : bytes;
    if ((what != kind::RECV && !eth_hpp_emulated_reaches(from, read)) ||
        (what != kind::SEND && !eth_hpp_emulated_reaches(to, written)))
        violation("%s of memory that the device does not reach", names[(int)what]);
}

/* What sums connects when a communicator is made where NCCL is told so. */
bool is_connected_early(kind what)
{
    const char *late = getenv("NCCL_RUNTIME_CONNECT");
    return what != kind::SEND && what != kind::RECV && late != nullptr && strcmp(late, "0") == 0;
}

} // namespace

int operate(std::shared_ptr<communicator> comm, kind what, const void *from, void *to, size_t count,
            int type, void *stream)
{
    const cudaStream_t on = static_cast<cudaStream_t>(stream);
    if (!eth_hpp_emulated_is_stream(on))
        violation("%s on what is no stream", names[(int)what]);
    if (comm->stream != nullptr && comm->stream != on)
        violation("a communicator is used from two streams");
    if ((what == kind::SEND || what == kind::RECV) && comm->count != 2)
        violation("%s on a communicator of %d ranks: hand-overs have one of two", names[(int)what],
                  comm->count);
    check_memory(*comm, what, from, to, count * size_of(type));
    comm->stream = on;
    comm->under_way++;
    auto work = std::make_shared<operation>(operation{comm, what, static_cast<const char *>(from),
                                                      static_cast<char *>(to), count, type,
                                                      comm->resources->issued++});
    const auto enqueue = [on, work] {
        eth_hpp_emulated_enqueue_until(on, [work] { return work->step(); });
    };
    if (comm->connected || is_connected_early(what)) {
        enqueue();
        return NCCL_SUCCESS;
    }
    comm->connected = true;
    comm->shared->connected++;
    communicator *one = comm.get();
    comm->advance = [one, enqueue] {
        if (one->shared->connected < one->count)
            return NCCL_IN_PROGRESS;
        enqueue();
        return NCCL_SUCCESS;
    };
    comm->state = NCCL_IN_PROGRESS;
    return NCCL_IN_PROGRESS;
}

} // namespace emulated_nccl
