#include "tests/emulation/cuda/simt.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include <ucontext.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace {

constexpr size_t STACK_BYTES = 128 << 10;
constexpr unsigned WARP = 32, MOST_THREADS = 1024;

/* How often all threads that take part have met here, and how many have come for the next time. */
struct meeting {
    uint64_t held = 0;
    unsigned arrived = 0;
};

struct warp {
    meeting lanes;
    /* What lanes hand over, of two meetings: a lane may come to the next one before another has
     * read what this one brought. */
    uint64_t handed[2][WARP];
};

/* Where a stack goes on. Switching by jumps makes no system call, which
 * swapcontext does. */
struct place_in_stack {
    ucontext_t context;
    void *jump[5]; /* for the compiler's own setjmp */
    bool jumps;    /* it has been left by a jump */
    const void *bottom;
    size_t bytes;
    void *fake_stack; /* the address sanitizer's */
};

#ifdef __SANITIZE_ADDRESS__
void announce_switch(place_in_stack *from, const place_in_stack *to)
{
    __sanitizer_start_switch_fiber(&from->fake_stack, to->bottom, to->bytes);
}

/* `left`: the stack that this one was switched to from, whose bounds are to be learnt; or null. */
void complete_switch(place_in_stack *to, place_in_stack *left)
{
    __sanitizer_finish_switch_fiber(to->fake_stack, left == nullptr ? nullptr : &left->bottom,
                                    left == nullptr ? nullptr : &left->bytes);
}
#else
void announce_switch(place_in_stack *, const place_in_stack *)
{
}
void complete_switch(place_in_stack *, place_in_stack *)
{
}
#endif

/* Unlike longjmp, the compiler's own jump does not have the address sanitizer forget what it knows
 * of a stack, which costs it two system calls. It has to be in another function than its target. */
[[noreturn]] __attribute__((noinline, no_sanitize_address)) void jump(place_in_stack *to)
{
    if (to->jumps)
        __builtin_longjmp(to->jump, 1);
    setcontext(&to->context);
    abort();
}

/* Comes back when somebody switches to `from`. */
__attribute__((noinline, no_sanitize_address)) void switch_stacks(place_in_stack *from,
                                                                  place_in_stack *to)
{
    from->jumps = true;
    announce_switch(from, to);
    if (__builtin_setjmp(from->jump) == 0)
        jump(to);
}

/* A stack that runs threads of a block, one at a time until each is done. */
struct fiber {
    place_in_stack at = {};
    std::unique_ptr<char[]> stack;
    unsigned thread = 0;
    const meeting *waits_for = nullptr;
    uint64_t seen = 0;
    bool idle = true;
};

struct machine {
    place_in_stack scheduler;
    std::vector<std::unique_ptr<fiber>> fibers;
    fiber *running = nullptr;
    const std::function<void()> *thread = nullptr;
    unsigned threads = 0, started = 0;
    bool reversed = false;
    meeting block;
    warp warps[MOST_THREADS / WARP];
} m;

[[noreturn]] void refuse(const char *why)
{
    fprintf(stderr, "emulated: block (%u, %u, %u), thread %u: %s\n", blockIdx.x, blockIdx.y,
            blockIdx.z, m.running == nullptr ? 0 : m.running->thread, why);
    abort();
}

void place(unsigned thread)
{
    threadIdx.x = thread % blockDim.x;
    threadIdx.y = thread / blockDim.x % blockDim.y;
    threadIdx.z = thread / (blockDim.x * blockDim.y);
}

/* From a fiber to what runs the blocks, which may be another thread's each time. */
void leave(fiber *self)
{
    switch_stacks(&self->at, &m.scheduler);
    complete_switch(&self->at, &m.scheduler);
}

/* What every fiber does: takes threads that nobody has started, as long as there are any. */
void take_threads()
{
    complete_switch(&m.running->at, &m.scheduler);
    for (;;) {
        fiber *self = m.running;
        while (m.started < m.threads) {
            const unsigned next = m.started++;
            self->thread = m.reversed ? m.threads - 1 - next : next;
            place(self->thread);
            (*m.thread)();
        }
        self->idle = true;
        leave(self);
    }
}

void resume(fiber *f)
{
    m.running = f;
    place(f->thread);
    switch_stacks(&m.scheduler, &f->at);
    complete_switch(&m.scheduler, nullptr);
    m.running = nullptr;
}

fiber *idle_fiber(size_t from)
{
    for (size_t i = from; i < m.fibers.size(); i++)
        if (m.fibers[i]->idle)
            return m.fibers[i].get();
    m.fibers.push_back(std::make_unique<fiber>());
    fiber *f = m.fibers.back().get();
    f->stack = std::make_unique<char[]>(STACK_BYTES);
    f->at.bottom = f->stack.get();
    f->at.bytes = STACK_BYTES;
    ucontext_t *context = &f->at.context;
    getcontext(context);
    context->uc_stack.ss_sp = f->stack.get();
    context->uc_stack.ss_size = STACK_BYTES;
    context->uc_link = nullptr;
    makecontext(context, take_threads, 0);
    return f;
}

/* Lets every thread that waits for nothing any more go on; false where there was none. */
bool resume_ready()
{
    bool moved = false;
    for (size_t first = 0; first < m.fibers.size(); first += WARP)
        for (bool again = true; again;) {
            again = false;
            for (size_t i = first; i < first + WARP && i < m.fibers.size(); i++) {
                fiber *f = m.fibers[i].get();
                if (f->idle || f->waits_for->held == f->seen)
                    continue;
                again = moved = true;
                resume(f);
            }
        }
    return moved;
}

bool all_idle()
{
    for (const auto &f : m.fibers)
        if (!f->idle)
            return false;
    return true;
}

void run_block()
{
    m.started = 0;
    m.block = meeting();
    for (warp &w : m.warps)
        w.lanes = meeting();
    for (size_t used = 0; m.started < m.threads; used++) {
        fiber *f = idle_fiber(used);
        f->idle = false;
        resume(f);
    }
    while (resume_ready()) {
    }
    if (!all_idle())
        refuse("a barrier or a shuffle waits for threads that never come to it");
}

/* The calling thread waits until `all` threads have come. */
void meet(meeting *at, unsigned all)
{
    if (++at->arrived == all) {
        at->arrived = 0;
        at->held++;
        return;
    }
    fiber *self = m.running;
    self->waits_for = at;
    self->seen = at->held;
    leave(self);
}

unsigned lanes_of(unsigned warp)
{
    const unsigned left = m.threads - warp * WARP;
    return left < WARP ? left : WARP;
}

warp *warp_of_caller(unsigned mask)
{
    const unsigned lanes = lanes_of(m.running->thread / WARP);
    const unsigned all = lanes == WARP ? 0xffffffffu : (1u << lanes) - 1;
    if ((mask & all) != all)
        refuse("a shuffle or __syncwarp of some lanes only: not emulated");
    return &m.warps[m.running->thread / WARP];
}

} // namespace

void eth_hpp_simt_run(dim3 grid, dim3 block, const std::function<void()> &thread)
{
    gridDim = grid;
    blockDim = block;
    m.threads = block.x * block.y * block.z;
    if (m.threads == 0 || m.threads > MOST_THREADS || grid.y > 65535 || grid.z > 65535 ||
        grid.x == 0 || grid.y == 0 || grid.z == 0)
        refuse("no GPU takes a grid or a block of that size");
    m.thread = &thread;
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) {
                m.reversed = (blockIdx.x + blockIdx.y + blockIdx.z) % 2 == 1;
                run_block();
            }
}

void __syncthreads(void)
{
    meet(&m.block, m.threads);
}

void __syncwarp(unsigned mask)
{
    warp *w = warp_of_caller(mask);
    meet(&w->lanes, lanes_of(m.running->thread / WARP));
}

int eth_hpp_emulated_lane(void)
{
    return (int)(m.running->thread % WARP);
}

uint64_t eth_hpp_emulated_shuffle(unsigned mask, uint64_t bits, int source)
{
    warp *w = warp_of_caller(mask);
    const unsigned lanes = lanes_of(m.running->thread / WARP);
    if ((unsigned)source >= lanes)
        refuse("a shuffle reads a lane that does not exist");
    uint64_t *handed = w->handed[w->lanes.held % 2];
    handed[m.running->thread % WARP] = bits;
    meet(&w->lanes, lanes);
    return handed[source];
}
