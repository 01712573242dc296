/* EMULATED: communicators, and the calls of NCCL (see nccl.h). */
#include "tests/emulation/nccl/nccl.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace emulated_nccl {

namespace {

/* All that have not ended. Who aborts one has given up, and may leave others. */
struct live_communicators {
    std::map<eth_hpp_nccl_comm, std::shared_ptr<communicator>> all;
    std::atomic<bool> given_up{false};
    ~live_communicators()
    {
        if (!given_up && !all.empty())
            violation("%zu communicators are left behind", all.size());
    }
} live;

std::string path_of(const std::string &name)
{
    const char *folder = getenv("ETH_HPP_EMULATED_NCCL_FOLDER");
    return std::string(folder != nullptr ? folder : "/dev/shm") + "/emulated-nccl-" + name;
}

bool fault(const char *call)
{
    const char *chosen = getenv("ETH_HPP_EMULATED_NCCL_FAULT");
    return chosen != nullptr && strcmp(chosen, call) == 0;
}

std::shared_ptr<communicator> use(eth_hpp_nccl_comm handle, const char *call)
{
    const auto found = live.all.find(handle);
    if (found == live.all.end())
        violation("%s with a communicator that has ended", call);
    return found->second;
}

std::shared_ptr<communicator> use_ready(eth_hpp_nccl_comm handle, const char *call)
{
    auto comm = use(handle, call);
    if (comm->state == NCCL_IN_PROGRESS || comm->advance != nullptr || comm->finalizing)
        violation("%s with a communicator whose init is not over, or whose end has begun", call);
    return comm;
}

eth_hpp_nccl_comm handle_of(communicator *comm)
{
    return reinterpret_cast<eth_hpp_nccl_comm>(comm);
}

std::shared_ptr<communicator> join(const std::string &name, int rank, int count,
                                   std::shared_ptr<family> resources)
{
    auto comm = std::make_shared<communicator>();
    comm->name = name;
    comm->rank = rank;
    comm->count = count;
    comm->shared = board_open(name);
    if (resources == nullptr) {
        resources = std::make_shared<family>();
        resources->shared = comm->shared;
        resources->rank = rank;
        for (int i = 0; i < count; i++)
            comm->family_ranks[i] = i;
    }
    comm->resources = resources;
    if (++comm->shared->joined == count)
        board_forget(name);
    return comm;
}

int is_whole(const communicator &comm)
{
    return comm.shared->joined == comm.count ? NCCL_SUCCESS : NCCL_IN_PROGRESS;
}

void check_config(const eth_hpp_nccl_config *config)
{
    if (config->magic != NCCL_CONFIG_MAGIC || config->size < sizeof(*config) ||
        config->blocking != 0)
        violation("a configuration that is none, or blocks");
}

void check_peer(const communicator &comm, int peer)
{
    if (peer < 0 || peer >= comm.count || peer == comm.rank)
        violation("a hand-over between rank %d of a communicator and rank %d", comm.rank, peer);
}

/* A split that this rank has begun, when all ranks of the parent have. */
struct split {
    communicator *parent;
    int number;
    bool shares;
    eth_hpp_nccl_comm *made;
    std::shared_ptr<communicator> child;

    void join_child(int color)
    {
        std::vector<std::pair<int, int>> members; /* by key */
        for (int rank = 0; rank < parent->count; rank++)
            if (parent->shared->ranks[rank].color[number] == color)
                members.emplace_back(parent->shared->ranks[rank].key[number], rank);
        std::sort(members.begin(), members.end());
        int own = 0;
        while (members[(size_t)own].second != parent->rank)
            own++;
        child = join(parent->name + "." + std::to_string(number) + "." + std::to_string(color), own,
                     (int)members.size(), shares ? parent->resources : nullptr);
        for (size_t i = 0; shares && i < members.size(); i++)
            child->family_ranks[i] = parent->family_ranks[members[i].second];
    }

    int operator()()
    {
        const int color = parent->shared->ranks[parent->rank].color[number];
        for (int rank = 0; rank < parent->count; rank++)
            if (parent->shared->ranks[rank].splits <= number)
                return NCCL_IN_PROGRESS;
        if (color == NCCL_NO_COLOR)
            return NCCL_SUCCESS;
        if (child == nullptr)
            join_child(color);
        if (is_whole(*child) != NCCL_SUCCESS)
            return NCCL_IN_PROGRESS;
        child->state = NCCL_SUCCESS;
        live.all[handle_of(child.get())] = child;
        *made = handle_of(child.get());
        return NCCL_SUCCESS;
    }
};

} // namespace

void violation(const char *format, ...)
{
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    fprintf(stderr, "emulated NCCL: %s\n", text);
    abort();
}

std::shared_ptr<board> board_open(const std::string &name)
{
    const int file = open(path_of(name).c_str(), O_RDWR | O_CREAT, 0600);
    void *memory = MAP_FAILED;
    if (file >= 0 && ftruncate(file, sizeof(board)) == 0)
        memory = mmap(nullptr, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        violation("no memory that processes share: %s", path_of(name).c_str());
    close(file);
    return std::shared_ptr<board>(static_cast<board *>(memory),
                                  [](board *one) { munmap(one, sizeof(*one)); });
}

void board_forget(const std::string &name)
{
    unlink(path_of(name).c_str());
}

communicator *find(uint64_t number)
{
    for (const auto &one : live.all)
        if (one.second->number() == number)
            return one.second.get();
    return nullptr;
}

} // namespace emulated_nccl

using namespace emulated_nccl;

const char *eth_hpp_emulated_nccl(void)
{
    static Dl_info info;
    return dladdr(reinterpret_cast<void *>(&eth_hpp_emulated_nccl), &info) != 0 ? info.dli_fname
                                                                                : nullptr;
}

#define CALL(result) extern "C" __attribute__((visibility("default"))) result

CALL(int) ncclGetVersion(int *version)
{
    const char *text = getenv("ETH_HPP_EMULATED_NCCL_VERSION");
    *version = text != nullptr ? atoi(text) : 23007;
    return NCCL_SUCCESS;
}

CALL(int) ncclGetUniqueId(eth_hpp_nccl_id *id)
{
    static int made;
    if (fault("unique-id"))
        return NCCL_SYSTEM_ERROR;
    snprintf(id->internal, sizeof(id->internal), "%d.%lx.%d", (int)getpid(), random(), made++);
    return NCCL_SUCCESS;
}

CALL(int)
ncclCommInitRankConfig(eth_hpp_nccl_comm *made, int count, eth_hpp_nccl_id id, int rank,
                       eth_hpp_nccl_config *config)
{
    check_config(config);
    *made = nullptr;
    if (fault("init"))
        return NCCL_UNHANDLED_CUDA_ERROR;
    if (id.internal[0] == '\0' || count < 1 || count > RANKS || rank < 0 || rank >= count)
        return NCCL_INVALID_ARGUMENT;
    auto comm = join(id.internal, rank, count, nullptr);
    communicator *one = comm.get();
    comm->advance = [one] { return is_whole(*one); };
    *made = handle_of(one);
    live.all[*made] = comm;
    return NCCL_IN_PROGRESS;
}

CALL(int)
ncclCommSplit(eth_hpp_nccl_comm handle, int color, int key, eth_hpp_nccl_comm *made,
              eth_hpp_nccl_config *config)
{
    auto parent = use_ready(handle, "ncclCommSplit");
    auto &own = parent->shared->ranks[parent->rank];
    const int number = own.splits;
    check_config(config);
    *made = nullptr;
    if (number == SPLITS)
        violation("more than %d splits", SPLITS);
    own.color[number] = color;
    own.key[number] = key;
    own.splits = number + 1;
    parent->advance = split{parent.get(), number, config->split_share == 1, made, nullptr};
    parent->state = NCCL_IN_PROGRESS;
    return NCCL_IN_PROGRESS;
}

CALL(int) ncclCommGetAsyncError(eth_hpp_nccl_comm handle, int *error)
{
    auto comm = use(handle, "ncclCommGetAsyncError");
    eth_hpp_emulated_work_on();
    if (comm->advance != nullptr) {
        comm->state = comm->advance();
        if (comm->state != NCCL_IN_PROGRESS)
            comm->advance = nullptr;
    }
    *error =
        comm->state == NCCL_SUCCESS && comm->shared->aborted > 0 ? NCCL_REMOTE_ERROR : comm->state;
    return NCCL_SUCCESS;
}

CALL(int) ncclCommFinalize(eth_hpp_nccl_comm handle)
{
    auto comm = use_ready(handle, "ncclCommFinalize");
    communicator *one = comm.get();
    comm->finalizing = true;
    comm->shared->finalized++;
    comm->advance = [one] {
        return one->under_way == 0 && one->shared->finalized == one->count ? NCCL_SUCCESS
                                                                           : NCCL_IN_PROGRESS;
    };
    comm->state = NCCL_IN_PROGRESS;
    return NCCL_IN_PROGRESS;
}

CALL(int) ncclCommDestroy(eth_hpp_nccl_comm handle)
{
    auto comm = use(handle, "ncclCommDestroy");
    if (comm->under_way > 0 || comm->advance != nullptr)
        violation("the end of a communicator that is in use");
    live.all.erase(handle);
    return NCCL_SUCCESS;
}

CALL(int) ncclCommAbort(eth_hpp_nccl_comm handle)
{
    auto comm = use(handle, "ncclCommAbort");
    live.given_up = true;
    while (fault("abort"))
        sleep(1);
    comm->aborted = true;
    comm->shared->aborted++;
    board_forget(comm->name);
    live.all.erase(handle);
    return NCCL_SUCCESS;
}

CALL(int)
ncclAllReduce(const void *from, void *to, size_t count, int type, int, eth_hpp_nccl_comm comm,
              void *stream)
{
    return operate(use_ready(comm, "ncclAllReduce"), kind::ALL_REDUCE, from, to, count, type,
                   stream);
}

CALL(int)
ncclReduceScatter(const void *from, void *to, size_t count, int type, int, eth_hpp_nccl_comm comm,
                  void *stream)
{
    return operate(use_ready(comm, "ncclReduceScatter"), kind::REDUCE_SCATTER, from, to, count,
                   type, stream);
}

CALL(int)
ncclAllGather(const void *from, void *to, size_t count, int type, eth_hpp_nccl_comm comm,
              void *stream)
{
    return operate(use_ready(comm, "ncclAllGather"), kind::ALL_GATHER, from, to, count, type,
                   stream);
}

CALL(int)
ncclSend(const void *from, size_t count, int type, int peer, eth_hpp_nccl_comm handle, void *stream)
{
    auto comm = use_ready(handle, "ncclSend");
    check_peer(*comm, peer);
    const int result = operate(comm, kind::SEND, from, nullptr, count, type, stream);
    if (fault("send"))
        comm->advance = [] { return NCCL_SYSTEM_ERROR; };
    return result;
}

CALL(int)
ncclRecv(void *to, size_t count, int type, int peer, eth_hpp_nccl_comm handle, void *stream)
{
    auto comm = use_ready(handle, "ncclRecv");
    check_peer(*comm, peer);
    return operate(comm, kind::RECV, nullptr, to, count, type, stream);
}

CALL(const char *) ncclGetErrorString(int result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result >= 0 && result <= NCCL_IN_PROGRESS ? texts[result] : "unknown result code";
}

CALL(const char *) ncclGetLastError(eth_hpp_nccl_comm)
{
    return "emulated";
}
