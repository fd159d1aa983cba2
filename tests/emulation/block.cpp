/* CUDA on the CPU, for tests: this file runs the blocks of a kernel.
 *
 * zeroflow_cuda.cu is compiled by g++, with the toolkit's headers for types. kernel.h is included
 * before it: it replaces the two macros for launches and shared memory, and has the functions that
 * device code calls. Functions that host code calls are linked: runtime.cpp (memory, streams,
 * events, graphs), cublas.cpp, nccl.cpp. emulation.h is the interface for tests.
 *
 *     zeroflow_cuda.cu + kernel.h --g++--> object --+
 *     block.cpp, runtime.cpp, cublas.cpp, nccl.cpp -+--> build/emulated/tests
 *     tests/cuda/ops.c, NAME.h ---------gcc---------+
 *
 *     make build/emulated/tests && build/emulated/tests layer_norm     # rows of that name
 *     make build/emulated/asan/tests                                   # with AddressSanitizer
 *
 * A thread of a block is a fiber: a stack, with switches that take some nanoseconds. Threads that
 * never wait run one after the other on one stack, without a switch.
 *
 *     thread 0  runs ........ __syncthreads                                runs ...
 *     thread 1                             runs ... __syncthreads  runs ...
 *
 * The order of blocks, of threads that begin, and of threads that continue after a barrier is drawn
 * from a seed. So warps run far ahead of others or level with them, and code that lacks a barrier
 * reads data that are not written yet. Shared memory is NaN (0xff) when a block begins, and so is
 * device memory when it is allocated. A finding is a line of emulation_report, and the device fails
 * as after a kernel that crashed:
 *
 *   - a barrier that some threads do not reach, because they left or wait elsewhere
 *   - a warp operation whose mask names a lane that does not come, or lacks the lane that calls
 *   - named barriers that too few threads come to; a thread that leaves with products in flight
 *   - writes after shared memory and around allocations (AddressSanitizer sees reads as well, and
 *     the host's own reads and writes of device memory)
 *
 * A product of a warpgroup (cuda/cores/wgmma.cu) is computed at once in some blocks, and in others
 * when it is waited for, so that results read too early, or operands overwritten too early, are
 * wrong.
 *
 * It tests logic, not the device: no tensor cores, no PTX, no two threads at the same time;
 * products and functions come from libm, which rounds differently than a GPU. */
#include "kernel.h"
#include "emulation.h"
#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define WITH_ASAN 1
#else
#define WITH_ASAN 0
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulation
{

enum { THREADS = 1024, LANES = 32, STACK = 256 << 10, GUARD = 256, BARRIERS = 16 };
/* Stacks begin at different lines of the caches, so that hundreds of them can be in these. */
enum { APART = 576, COLOURS = 113 };

/* --------------------------------------------------------------------------------- fibers */

/* A stack that runs threads, one after the other, until one waits. */
struct fiber {
    void *pointer; /* of its stack, while it does not run */
    char *stack;   /* and its lowest byte; of the host's, as it is known from the sanitizer */
    size_t size;   /* as far as it is used */
    void *fake; /* the sanitizer's */
};

static fiber host, *running = &host, *before;
static fiber *idle[THREADS + 1]; /* there are no more */
static int idle_count;

#if defined(__x86_64__) && !defined(EMULATION_UCONTEXT)
/* Saves what a call must keep on this stack, stores its pointer, and goes on with another. */
extern "C" void emulation_switch(void **from, void *to);
asm(".text\n"
    ".globl emulation_switch\n"
    ".type emulation_switch, @function\n"
    "emulation_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size emulation_switch, . - emulation_switch\n");

/* Lets the fiber begin with `entry` when it is switched to. */
static void prepare(fiber *f, void (*entry)())
{
    void **end = reinterpret_cast<void **>(f->stack + f->size);
    memset(end - 8, 0, 8 * sizeof *end); /* six registers, and no caller */
    end[-2] = reinterpret_cast<void *>(entry);
    f->pointer = end - 8;
}
static void change(fiber *from, fiber *to) { emulation_switch(&from->pointer, to->pointer); }
#else
#include <ucontext.h>
static ucontext_t *context(fiber *f)
{
    if (!f->pointer) f->pointer = calloc(1, sizeof(ucontext_t));
    return static_cast<ucontext_t *>(f->pointer);
}
static void prepare(fiber *f, void (*entry)())
{
    getcontext(context(f));
    context(f)->uc_stack.ss_sp = f->stack;
    context(f)->uc_stack.ss_size = f->size;
    makecontext(context(f), entry, 0);
}
static void change(fiber *from, fiber *to) { swapcontext(context(from), context(to)); }
#endif

/* After every switch: where the stack is that was left, the host's for one. */
static void arrived(fiber *self)
{
#if WITH_ASAN
    const void *stack;
    size_t size;
    __sanitizer_finish_switch_fiber(self->fake, &stack, &size);
    before->stack = static_cast<char *>(const_cast<void *>(stack));
    before->size = size;
#else
    (void)self;
#endif
}

static void go_to(fiber *to)
{
    fiber *self = running;
    before = self;
    running = to;
#if WITH_ASAN
    __sanitizer_start_switch_fiber(&self->fake, to->stack, to->size);
#endif
    change(self, to);
    arrived(self);
}

static void fiber_main();

static void begin_anew(fiber *f)
{
#if WITH_ASAN
    __asan_unpoison_memory_region(f->stack, f->size);
#endif
    f->fake = NULL;
    prepare(f, fiber_main);
}

static fiber *some_fiber()
{
    static int made;
    fiber *f;
    if (!idle_count) {
        f = new fiber();
        f->size = (size_t)(STACK - made++ % COLOURS * APART);
        f->stack = static_cast<char *>(mmap(NULL, STACK, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (f->stack == MAP_FAILED) abort();
        mprotect(f->stack, 4096, PROT_NONE);
        begin_anew(f);
        return f;
    }
    return idle[--idle_count];
}

/* ---------------------------------------------------------------------------------- block */

enum state { NEW, RUNS, AT_BARRIER, IN_WARP, LEFT };

struct thread {
    fiber *on; /* while it waits */
    enum state state;
    const char *what, *file; /* what it waits in */
    int line;
    uint64_t value, answer;
    /* Products in flight, the group of each, and how many groups were committed. */
    std::vector<std::pair<int, std::function<void()>>> products;
    int groups;
};

/* A named barrier: who waits, and how many have come. */
struct meeting {
    std::vector<int> waiting;
    int expected, arrived;
};

/* A warp operation that lanes wait in. */
struct gathering {
    warp_kind kind;
    unsigned mask, arrived;
    const char *file;
    int line;
};

struct warp {
    gathering pending[LANES];
    int count;
};

static struct {
    const char *kernel;
    const std::function<void()> *call;
    numbers order;
    thread threads[THREADS];
    warp warps[THREADS / LANES];
    meeting meetings[BARRIERS + THREADS / LANES]; /* then those of waves */
    std::vector<unsigned char> of_lanes[THREADS / LANES]; /* what a wave's lanes have put there */
    int count, current, unstarted, left;
    int first, step; /* thread first + i step begins as number i */
    bool new_first;  /* threads that have not begun go first, rather than those that may go on */
    bool newest;     /* of these, those go on that came last */
    bool late;       /* products are made when they are waited for */
    int ready[THREADS], ready_first, ready_count;
    int at_barrier, first_there, barrier_sum;
    bool barrier_all, failed;
    char *shared;
    size_t shared_bytes;
} b;

void *shared_memory() { return b.shared; }

static uint3 indices[THREADS]; /* of the threads of this kernel's blocks */

static uint3 index_of(int t)
{
    uint3 at;
    at.x = (unsigned)t % blockDim.x;
    at.y = (unsigned)t / blockDim.x % blockDim.y;
    at.z = (unsigned)t / blockDim.x / blockDim.y;
    return at;
}

static const char *name_of(int t)
{
    static char names[4][96];
    static int turn;
    uint3 at = index_of(t);
    char *name = names[turn++ % 4];
    if (blockDim.y * blockDim.z == 1)
        snprintf(name, sizeof names[0], "thread %u (warp %d, lane %d)", at.x, t / LANES, t % LANES);
    else
        snprintf(name, sizeof names[0], "thread (%u,%u,%u) (warp %d, lane %d)", at.x, at.y, at.z,
                 t / LANES, t % LANES);
    return name;
}

/* Both are __FILE__. */
static bool same_file(const char *a, const char *b) { return a == b || !strcmp(a, b); }

/* What thread t does instead of arriving. */
static std::string instead(int t)
{
    char text[300];
    const thread *d = &b.threads[t];
    if (d->state == LEFT) return "has left the kernel";
    if (d->state == NEW || d->state == RUNS) return "has not come";
    snprintf(text, sizeof text, "waits in %s at %s:%d", d->what, d->file, d->line);
    return text;
}

static void become(int t)
{
    b.current = t;
    b.threads[t].state = RUNS;
    threadIdx = indices[t];
}

static void may_go_on(int t)
{
    b.threads[t].state = RUNS;
    b.ready[(b.ready_first + b.ready_count++) % THREADS] = t;
}

/* The thread to continue with; *begins: it has not begun. -1: all wait or have ended. */
static int choose(bool *begins)
{
    *begins = b.unstarted && (b.new_first || !b.ready_count);
    if (*begins) {
        int t = (b.first + (int)((int64_t)(b.count - b.unstarted) * b.step % b.count)) % b.count;
        b.unstarted--;
        return t;
    }
    if (!b.ready_count) return -1;
    b.ready_count--;
    if (b.newest) return b.ready[(b.ready_first + b.ready_count) % THREADS];
    b.ready_first = (b.ready_first + 1) % THREADS;
    return b.ready[(b.ready_first + THREADS - 1) % THREADS];
}

/* Ends the block from within it. */
static void fail()
{
    b.failed = true;
    b.threads[b.current].on = running;
    go_to(&host);
}

#define FOUND(format, ...)                                                                         \
    found("%s: block (%u,%u,%u): " format, b.kernel, blockIdx.x, blockIdx.y, blockIdx.z,           \
          __VA_ARGS__)

static const char *const warp_names[] = {
    "__shfl_sync",       "__shfl_up_sync",    "__shfl_down_sync",  "__shfl_xor_sync",
    "__ballot_sync",     "__any_sync",        "__all_sync",        "__syncwarp",
    "__match_any_sync",  "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
    "__reduce_min_sync", "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync",
    "__reduce_xor_sync"};
static const char *const barrier_names[] = {"__syncthreads", "__syncthreads_count",
                                            "__syncthreads_and", "__syncthreads_or"};

/* No thread can continue: reports which threads wait for which. */
static void report_deadlock()
{
    for (int w = 0; w * LANES < b.count; w++)
        for (int g = 0; g < b.warps[w].count; g++) {
            const gathering *p = &b.warps[w].pending[g];
            int here = w * LANES + __builtin_ctz(p->arrived),
                missing = w * LANES + __builtin_ctz(p->mask & ~p->arrived);
            FOUND("incomplete %s at %s:%d: %s waits for lane %d of mask %#x, which %s",
                  warp_names[p->kind], p->file, p->line, name_of(here), missing % LANES, p->mask,
                  missing < b.count ? instead(missing).c_str() : "is beyond the block");
            return;
        }
    for (int id = 0; id < BARRIERS + THREADS / LANES; id++) {
        const meeting *m = &b.meetings[id];
        if (m->waiting.empty()) continue;
        FOUND("barrier %d: %s waits at %s:%d; of %d threads %d have come", id,
              name_of(m->waiting[0]), b.threads[m->waiting[0]].file, b.threads[m->waiting[0]].line,
              m->expected, m->arrived);
        return;
    }
    for (int here = 0; here < b.count; here++)
        for (int t = 0; t < b.count && b.threads[here].state == AT_BARRIER; t++)
            if (b.threads[t].state != AT_BARRIER) {
                FOUND("divergent barrier: %s waits in %s at %s:%d for %s, which %s", name_of(here),
                      b.threads[here].what, b.threads[here].file, b.threads[here].line, name_of(t),
                      instead(t).c_str());
                return;
            }
}

/* The scheduler: begins or continues the chosen thread, until none is left (then the host
 * continues). Returns when this fiber has a thread to begin. */
static void leave_fiber()
{
    for (;;) {
        bool begins;
        int t = choose(&begins);
        if (begins) {
            become(t);
            return;
        }
        idle[idle_count++] = running;
        if (t < 0) {
            if (b.left < b.count) {
                report_deadlock();
                b.failed = true;
            }
            go_to(&host);
        } else {
            become(t);
            go_to(b.threads[t].on);
        }
        return; /* the thread that came back has set one */
    }
}

static void fiber_main()
{
    arrived(running);
    for (;;) {
        (*b.call)();
        if (!b.threads[b.current].products.empty()) {
            FOUND("%s leaves with products in flight", name_of(b.current));
            fail();
        }
        b.threads[b.current].state = LEFT;
        b.left++;
        leave_fiber();
    }
}

/* The current thread waits until may_go_on and its turn. */
static void wait_here()
{
    int self = b.current, t;
    bool begins;
    b.threads[self].on = running;
    t = choose(&begins);
    if (t < 0) {
        report_deadlock();
        fail();
    }
    become(t);
    if (t != self) go_to(begins ? some_fiber() : b.threads[t].on);
    b.threads[self].on = NULL;
}

int barrier(barrier_kind kind, int value, const char *file, int line)
{
    thread *me = &b.threads[b.current];
    int self = b.current;
    if (b.at_barrier == 0) {
        b.first_there = self;
        b.barrier_sum = 0;
        b.barrier_all = true;
    } else {
        const thread *other = &b.threads[b.first_there];
        if (other->what != barrier_names[kind] || other->line != line ||
            !same_file(other->file, file)) {
            FOUND("divergent barrier: %s waits in %s at %s:%d, %s comes to %s at %s:%d",
                  name_of(b.first_there), other->what, other->file, other->line, name_of(self),
                  barrier_names[kind], file, line);
            fail();
        }
    }
    b.barrier_sum += value != 0;
    b.barrier_all = b.barrier_all && value != 0;
    me->what = barrier_names[kind], me->file = file, me->line = line;
    me->state = AT_BARRIER;
    if (++b.at_barrier == b.count) {
        int answer = kind == SYNCTHREADS_COUNT ? b.barrier_sum
                     : kind == SYNCTHREADS_AND ? b.barrier_all
                                               : b.barrier_sum != 0;
        int from = (int)b.order.below((size_t)b.count), step = b.order.next() & 1 ? 1 : b.count - 1;
        b.at_barrier = 0;
        for (int i = 0, t = from; i < b.count; i++, t = (t + step) % b.count) {
            b.threads[t].answer = (uint64_t)answer;
            may_go_on(t);
        }
    }
    wait_here();
    return (int)me->answer;
}

void named_barrier(int id, int threads, bool waits, const char *file, int line)
{
    thread *me = &b.threads[b.current];
    meeting *m = &b.meetings[id];
    if (m->arrived && m->expected != threads) {
        FOUND("barrier %d at %s:%d: %s comes for %d threads, others for %d", id, file, line,
              name_of(b.current), threads, m->expected);
        fail();
    }
    m->expected = threads;
    m->arrived++;
    if (waits) {
        me->what = "bar.sync", me->file = file, me->line = line;
        me->state = IN_WARP;
        m->waiting.push_back(b.current);
    }
    if (m->arrived == threads) {
        std::vector<int> all;
        all.swap(m->waiting);
        m->arrived = 0;
        if (b.order.next() & 1) std::reverse(all.begin(), all.end());
        for (int t : all) may_go_on(t);
    }
    if (waits) wait_here();
}

void product(const std::function<void()> &make)
{
    thread *me = &b.threads[b.current];
    me->products.emplace_back(me->groups, b.late ? make : std::function<void()>());
    if (!b.late) make();
}

void products_commit() { b.threads[b.current].groups++; }

void products_wait(int groups)
{
    thread *me = &b.threads[b.current];
    size_t done = 0;
    for (; done < me->products.size() && me->products[done].first < me->groups - groups; done++)
        if (me->products[done].second) me->products[done].second();
    me->products.erase(me->products.begin(), me->products.begin() + (long)done);
}

/* The result for lane `lane` of an operation to which all lanes of the mask have come. */
static uint64_t answer_of(const gathering *p, const thread *lanes, int lane, int argument, int width)
{
    int first = lane & ~(width - 1), from = lane;
    uint64_t answer = 0;
    uint32_t sum = 0, value;
    bool begun = false;
    switch (p->kind) {
    case SHUFFLE: from = first + (argument & (width - 1)); break;
    case SHUFFLE_UP: from = lane - argument < first ? lane : lane - argument; break;
    case SHUFFLE_DOWN: from = lane + argument >= first + width ? lane : lane + argument; break;
    case SHUFFLE_XOR: from = (lane ^ argument) >= first + width ? lane : lane ^ argument; break;
    case SYNCWARP: return 0;
    case BALLOT:
    case ANY:
        for (int i = 0; i < LANES; i++)
            if (p->mask >> i & 1 && lanes[i].value) answer |= (uint64_t)1 << i;
        return p->kind == BALLOT ? answer : answer != 0;
    case ALL:
        answer = 1;
        for (int i = 0; i < LANES; i++)
            if (p->mask >> i & 1 && !lanes[i].value) answer = 0;
        return answer;
    case MATCH_ANY:
        for (int i = 0; i < LANES; i++)
            if (p->mask >> i & 1 && lanes[i].value == lanes[lane].value) answer |= (uint64_t)1 << i;
        return answer;
    default:
        for (int i = 0; i < LANES; i++) {
            if (!(p->mask >> i & 1)) continue;
            value = (uint32_t)lanes[i].value;
            if (!begun) sum = value;
            else if (p->kind == REDUCE_ADD) sum += value;
            else if (p->kind == REDUCE_MIN_INT) sum = (int32_t)value < (int32_t)sum ? value : sum;
            else if (p->kind == REDUCE_MAX_INT) sum = (int32_t)value > (int32_t)sum ? value : sum;
            else if (p->kind == REDUCE_MIN) sum = value < sum ? value : sum;
            else if (p->kind == REDUCE_MAX) sum = value > sum ? value : sum;
            else if (p->kind == REDUCE_AND) sum &= value;
            else if (p->kind == REDUCE_OR) sum |= value;
            else sum ^= value;
            begun = true;
        }
        return sum;
    }
    if (!(p->mask >> from & 1)) {
        FOUND("%s at %s:%d: lane %d reads lane %d, which mask %#x does not name",
              warp_names[p->kind], p->file, p->line, lane, from, p->mask);
        fail();
    }
    return lanes[from].value;
}

uint64_t exchange(warp_kind kind, unsigned mask, uint64_t bits, int argument, int width,
                  const char *file, int line)
{
    int self = b.current, lane = self % LANES;
    thread *me = &b.threads[self], *lanes = me - lane;
    warp *w = &b.warps[self / LANES];
    gathering *p = NULL;
    static struct {
        int argument, width;
    } asks[THREADS];
    if (!(mask >> lane & 1)) {
        FOUND("%s at %s:%d: mask %#x does not name the lane that calls, %s", warp_names[kind], file,
              line, mask, name_of(self));
        fail();
    }
    for (int g = 0; g < w->count && !p; g++)
        if (w->pending[g].mask == mask) p = &w->pending[g];
    if (p && (p->kind != kind || p->line != line || !same_file(p->file, file))) {
        FOUND(
            "incomplete %s at %s:%d: %s waits for lane %d of mask %#x, which comes to %s at %s:%d",
            warp_names[p->kind], p->file, p->line, name_of(self - lane + __builtin_ctz(p->arrived)),
            lane, mask, warp_names[kind], file, line);
        fail();
    }
    if (!p) {
        p = &w->pending[w->count++];
        *p = {kind, mask, 0, file, line};
    }
    p->arrived |= 1u << lane;
    me->value = bits;
    asks[self] = {argument, width};
    if (p->arrived != mask) {
        me->what = warp_names[kind], me->file = file, me->line = line;
        me->state = IN_WARP;
        wait_here();
        return me->answer;
    }
    /* All have their results now, and the place is free: lanes that continue may come to the next
     * operation before others have left this one. */
    gathering done = *p;
    *p = w->pending[--w->count];
    bool upward = b.order.next() & 1;
    for (int i = 0; i < LANES; i++) {
        int l = upward ? i : LANES - 1 - i, t = self - lane + l;
        if (!(mask >> l & 1)) continue;
        lanes[l].answer = answer_of(&done, lanes, l, asks[t].argument, asks[t].width);
        if (l != lane) may_go_on(t);
    }
    return me->answer;
}

static int lanes_of_wave = LANES;
static int cores = EMULATION_MMA;

int wave_lane() { return b.current & (lanes_of_wave - 1); }

uint64_t wave_read(uint64_t bits, int from, const char *file, int line)
{
    const int other = (from ^ wave_lane()) & (lanes_of_wave - 1) & LANES;
    const uint64_t has = exchange(SHUFFLE, 0xffffffffu, bits, from % LANES, LANES, file, line);
    return other ? b.order.next() : has;
}

uint64_t wave_ballot(bool says, const char *file, int line)
{
    const uint64_t own = exchange(BALLOT, 0xffffffffu, says, 0, LANES, file, line);
    const int first = wave_lane() & LANES;
    if (lanes_of_wave == LANES) return own;
    return own << first | (uint64_t)(uint32_t)b.order.next() << (LANES - first);
}

std::vector<unsigned char> wave_all(const void *mine, size_t bytes, const char *file, int line)
{
    const int wave = b.current / lanes_of_wave, id = BARRIERS + wave;
    std::vector<unsigned char> *all = &b.of_lanes[wave], copy;
    all->resize(bytes * (size_t)lanes_of_wave);
    memcpy(all->data() + bytes * (size_t)wave_lane(), mine, bytes);
    named_barrier(id, lanes_of_wave, true, file, line);
    copy = *all;
    named_barrier(id, lanes_of_wave, true, file, line);
    return copy;
}

int has_cores() { return cores; }

/* ----------------------------------------------------------------------------------- grid */

static void run_block()
{
    static const int orders[] = {1, -1, 5, 33};
    bool begins;
    b.unstarted = b.count;
    b.left = b.ready_first = b.ready_count = b.at_barrier = 0;
    b.failed = false;
    b.new_first = b.order.next() & 1;
    b.newest = b.order.next() & 1;
    b.late = b.order.next() & 1;
    b.first = (int)b.order.below((size_t)b.count);
    b.step = orders[b.order.below(4)];
    if (b.step < 0) b.step += b.count;
    if (std::gcd(b.step, b.count) != 1) b.step = 1;
    for (int t = 0; t < b.count; t++) {
        b.threads[t].state = NEW, b.threads[t].on = NULL;
        b.threads[t].products.clear(), b.threads[t].groups = 0;
    }
    for (meeting &m : b.meetings) m.waiting.clear(), m.arrived = 0;
    for (int w = 0; w * LANES < b.count; w++) b.warps[w].count = 0;
    memset(b.shared, 0xff, b.shared_bytes + (WITH_ASAN ? 0 : GUARD));
    become(choose(&begins));
    go_to(some_fiber());
    if (b.failed) { /* what waits is given up */
        for (int t = 0; t < b.count; t++)
            if (b.threads[t].on) {
                begin_anew(b.threads[t].on);
                idle[idle_count++] = b.threads[t].on;
            }
    }
    for (size_t i = 0; i < GUARD && !WITH_ASAN && !b.failed; i++)
        if ((unsigned char)b.shared[b.shared_bytes + i] != 0xff) {
            FOUND("writes %zu bytes after its %zu bytes of shared memory", i, b.shared_bytes);
            b.failed = true;
        }
}

bool run_grid(const char *kernel, dim3 grid, dim3 block, size_t shared,
              const std::function<void()> &call, numbers order)
{
    int64_t blocks = (int64_t)grid.x * grid.y * grid.z, first = 0, step = 1;
    void *memory = NULL;
    b.kernel = kernel;
    b.call = &call;
    b.order = order;
    b.count = (int)(block.x * block.y * block.z);
    b.shared_bytes = shared;
    if (posix_memalign(&memory, 1024, shared + (WITH_ASAN ? 0 : GUARD) + !shared)) abort();
    b.shared = static_cast<char *>(memory);
    gridDim = grid;
    blockDim = block;
    for (int t = 0; t < b.count; t++) indices[t] = index_of(t);
    if (b.order.next() & 1) step = blocks - 1;
    first = (int64_t)b.order.below((size_t)blocks);
    for (int64_t i = 0; i < blocks && (i == 0 || !b.failed); i++) {
        int64_t n = (first + i * step) % blocks;
        blockIdx.x = (unsigned)(n % grid.x);
        blockIdx.y = (unsigned)(n / grid.x % grid.y);
        blockIdx.z = (unsigned)(n / grid.x / grid.y);
        run_block();
    }
    free(memory);
    return !b.failed;
}

} /* namespace emulation */

extern "C" void emulation_waves(int lanes, int cores)
{
    emulation::lanes_of_wave = lanes;
    emulation::cores = cores;
}
