/* What cudart offers host code: devices, memory, streams, events, graphs.
 *
 * A stream is a list of work, of which nothing runs when it is put there. Whoever waits (for a
 * stream, an event, the device) takes the heads of the device's streams in an order drawn from the
 * seed until what he waits for is done, and no further: work that nothing waits for is late, and
 * what lacks a wait comes too early. So it is within a graph, with the nodes that may go on. A copy
 * out of pageable memory reads it at once; one out of pinned memory when its turn comes, so that a
 * staging buffer that is written too early is found. Each device has its own order, and is driven
 * by the thread that waits for it.
 *
 *     stream a:  kernel  record e  kernel          stream b:  wait e  copy
 *                ------ taken by turns, as the seed says -------
 */
#include "machine.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <thread>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define WITH_ASAN 1
#else
#define WITH_ASAN                              0
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

using namespace emulation;

/* ------------------------------------------------------------------------------- the state */

namespace emulation
{

std::mutex lock;
std::condition_variable changed;

enum { DEVICES = 8, GUARD_BYTES = 256, DEADLINE = 60 /* seconds */ };
static const size_t DEVICE_BYTES = (size_t)1 << 30, SHARED_BYTES = 48 << 10;
static size_t most_shared_bytes = 227 << 10;
static int processors = 2, capability = 9, driver = CUDART_VERSION;

struct capture;

struct pending {
    const char *name;
    uint64_t ticket; /* the order of calls on the device */
    attempt go;
};

struct device {
    std::vector<CUstream_st *> streams;
    CUstream_st *standard; /* the legacy one, NULL's */
    numbers order;
    size_t bytes;
    cudaError_t failed;
};

static device devices[DEVICES];
static int count_at_first()
{
    const char *text = getenv("EMULATED_DEVICES"); /* of programs that cannot ask */
    const int n = text ? atoi(text) : 0;
    return n > 0 && n <= DEVICES ? n : 2;
}

static int device_count = count_at_first();
static uint64_t tickets;
static long kernels;
static int live;
static std::string report;
static std::vector<capture *> captures;
static std::map<const void *, size_t> most_shared; /* as functions have been allowed */

static thread_local int the_device;
static thread_local cudaError_t last_error;

static struct {
    std::string function;
    int after, code;
} refusal;

enum space { DEVICE, PINNED };

struct block_of_memory {
    char *base; /* as it was allocated, with guards around it; NULL: the application's own, pinned */
    size_t bytes;
    space where;
    int device;
};
static std::map<uintptr_t, block_of_memory> memory;

void found(const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (report.size() < 4096) report += std::string(line) + "\n";
    devices[the_device].failed = cudaErrorLaunchFailure;
}

void count(int by) { live += by; }
void reserve(int number, long bytes) { devices[number].bytes += (size_t)bytes; }
int current_device() { return the_device; }

int refused(const char *function)
{
    if (refusal.function != function) return 0;
    return refusal.after-- > 0 ? 0 : refusal.code;
}

} /* namespace emulation */

/* Streams and events are shared with the work that is still to come when they are destroyed. */
struct CUstream_st {
    int device;
    bool blocking, destroyed;
    std::deque<pending> list;
    uint64_t rank; /* among the device's streams, for a while */
    capture *taken;
    std::vector<int> last; /* the nodes that what is captured next comes after */
};

namespace emulation
{
struct event_state {
    uint64_t recorded, done;
};
} /* namespace emulation */

struct CUevent_st {
    std::shared_ptr<event_state> state;
    capture *taken; /* recorded in it, after these nodes */
    std::vector<int> last;
};

struct CUgraphNode_st {
    work what;
    std::vector<int> after;
};

struct CUgraph_st {
    std::vector<CUgraphNode_st> nodes;
};

struct CUgraphExec_st {
    std::shared_ptr<CUgraph_st> graph;
    std::shared_ptr<event_state> launches; /* one at a time */
};

namespace emulation
{

struct capture {
    CUgraph_st *graph;
    CUstream_st *origin;
    std::vector<CUstream_st *> streams;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    bool broken;
};

static std::vector<std::unique_ptr<capture>> ended; /* events may still name them */

static cudaError_t give(cudaError_t code)
{
    if (code != cudaSuccess && code != cudaErrorNotReady) last_error = code;
    return code;
}

/* What a call of the application's begins with: takes the lock, and may be refused. */
#define CALL(name)                                                                                 \
    std::unique_lock<std::mutex> held(lock);                                                       \
    if (int code_ = refused(#name)) return give((cudaError_t)code_)

#define GIVE(code) return give(code)

static CUstream_st *stream_of(cudaStream_t stream)
{
    device *d = &devices[the_device];
    if (stream && stream != cudaStreamLegacy) return stream;
    if (!d->standard) {
        d->standard = new CUstream_st();
        d->standard->device = the_device;
        d->standard->blocking = true;
        d->streams.push_back(d->standard);
    }
    return d->standard;
}

/* A call that must not come while graphs are captured. */
static bool breaks_capture()
{
    bool breaks = false;
    for (capture *c : captures) {
        if (c->mode == cudaStreamCaptureModeRelaxed) continue;
        if (c->mode == cudaStreamCaptureModeThreadLocal && c->thread != std::this_thread::get_id())
            continue;
        c->broken = breaks = true;
    }
    return breaks;
}

/* --------------------------------------------------------------------------------- memory */

static const block_of_memory *block_at(const void *at, size_t bytes, uintptr_t *start)
{
    auto next = memory.upper_bound((uintptr_t)at);
    if (next == memory.begin()) return NULL;
    --next;
    if ((uintptr_t)at + bytes > next->first + next->second.bytes) return NULL;
    *start = next->first;
    return &next->second;
}

bool on_device(const void *at, size_t bytes)
{
    uintptr_t start;
    const block_of_memory *m = block_at(at, bytes, &start);
    return m && (m->where == PINNED || m->device == the_device);
}

static void check_guard(uintptr_t at, const block_of_memory *m, const char *when)
{
    const unsigned char *bytes = (const unsigned char *)at;
    for (int i = 0; i < GUARD_BYTES && m->base && !WITH_ASAN; i++)
        if (bytes[m->bytes + (size_t)i] != 0xff || bytes[-1 - i] != 0xff) {
            bool end = bytes[m->bytes + (size_t)i] != 0xff;
            found("%s: %d bytes %s an allocation of %zu bytes were written", when, i + !end,
                  end ? "after" : "before", m->bytes);
            memset((char *)at + m->bytes, 0xff, GUARD_BYTES);
            memset((char *)at - GUARD_BYTES, 0xff, GUARD_BYTES);
            return;
        }
}

void check_guards(const char *after)
{
    for (auto &m : memory) check_guard(m.first, &m.second, after);
}

/* While one lives, work may run. With AddressSanitizer, device memory is out of bounds for the host
 * at all other times. */
struct at_work {
    at_work() { open(true); }
    ~at_work() { open(false); }
    static void open(bool is_open)
    {
        for (auto &m : memory) {
            if (m.second.where != DEVICE) continue;
            if (is_open) ASAN_UNPOISON_MEMORY_REGION((void *)m.first, m.second.bytes);
            else ASAN_POISON_MEMORY_REGION((void *)m.first, m.second.bytes);
        }
    }
};

static cudaError_t allocate(void **to, size_t bytes, space where)
{
    size_t guard = WITH_ASAN ? 0 : GUARD_BYTES;
    void *base;
    device *d = &devices[the_device];
    *to = NULL;
    if (breaks_capture()) return cudaErrorStreamCaptureUnsupported;
    if (!bytes) return cudaSuccess;
    if (where == DEVICE && bytes > DEVICE_BYTES - d->bytes) return cudaErrorMemoryAllocation;
    if (posix_memalign(&base, 256, bytes + 2 * guard)) return cudaErrorMemoryAllocation;
    memset(base, 0xff, bytes + 2 * guard);
    *to = (char *)base + guard;
    memory[(uintptr_t)*to] = {(char *)base, bytes, where, the_device};
    if (where == DEVICE) {
        d->bytes += bytes;
        ASAN_POISON_MEMORY_REGION(*to, bytes);
    }
    live++;
    return cudaSuccess;
}

} /* namespace emulation */

/* ------------------------------------------------------------------------------- progress */

namespace emulation
{

/* Among streams that wait for the legacy one, and the other way round, calls keep their order. */
static bool has_turn(const device *d, const CUstream_st *s)
{
    uint64_t ticket = s->list.front().ticket;
    if (!s->blocking || !d->standard) return true;
    if (s != d->standard)
        return d->standard->list.empty() || d->standard->list.front().ticket > ticket;
    for (const CUstream_st *other : d->streams)
        if (other != s && other->blocking && !other->list.empty() &&
            other->list.front().ticket < ticket)
            return false;
    return true;
}

/* Some work of the device that can go on does; false: none can. */
static bool go_on(device *d)
{
    std::vector<CUstream_st *> heads;
    if (d->order.below(8) == 0)
        for (CUstream_st *s : d->streams) s->rank = d->order.next();
    for (size_t i = 0; i < d->streams.size(); i++) {
        CUstream_st *s = d->streams[i];
        if (!s->list.empty()) heads.push_back(s);
        else if (s->destroyed) {
            delete s;
            d->streams.erase(d->streams.begin() + (long)i--);
        }
    }
    std::sort(heads.begin(), heads.end(), [](const CUstream_st *a, const CUstream_st *b) {
        return a->rank != b->rank ? a->rank < b->rank : a < b;
    });
    for (CUstream_st *s : heads) {
        progress p;
        if (!has_turn(d, s)) continue;
        p = s->list.front().go();
        if (p == DONE) {
            s->list.pop_front();
            changed.notify_all();
        }
        if (p != WAITS) return true;
    }
    return false;
}

bool wait_until(int number, std::unique_lock<std::mutex> &held, const std::function<bool()> &done,
                int seconds)
{
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    device *d = &devices[number];
    while (!done()) {
        {
            at_work scope;
            while (!done() && go_on(d)) {
            }
        }
        if (done()) break;
        if (std::chrono::steady_clock::now() > deadline) return false;
        changed.wait_for(held, std::chrono::milliseconds(1));
    }
    return true;
}

/* Runs what must be until `done`. Other devices' threads may have to do their part. */
static cudaError_t run_until(device *d, std::unique_lock<std::mutex> &held,
                             const std::function<bool()> &done)
{
    if (wait_until((int)(d - devices), held, done, DEADLINE)) return d->failed;
    found("a wait that nothing ends, %d seconds long", (int)DEADLINE);
    return cudaErrorLaunchTimeout;
}

static bool is_idle(const device *d)
{
    for (const CUstream_st *s : d->streams)
        if (!s->list.empty()) return false;
    return true;
}

cudaError_t add(cudaStream_t stream, const work &w)
{
    CUstream_st *s = stream_of(stream);
    if (s->taken) {
        if (s->taken->broken) return cudaErrorStreamCaptureInvalidated;
        s->taken->graph->nodes.push_back({w, s->last});
        s->last = {(int)s->taken->graph->nodes.size() - 1};
        return cudaSuccess;
    }
    if (s == devices[the_device].standard && breaks_capture())
        return cudaErrorStreamCaptureImplicit;
    s->list.push_back({w.name, tickets++, w.begin()});
    return cudaSuccess;
}

bool is_captured(cudaStream_t stream) { return stream_of(stream)->taken; }

work simple(const char *name, const std::function<void()> &run)
{
    return {name, [run]() -> attempt {
                return [run]() {
                    run();
                    return DONE;
                };
            }};
}

/* ------------------------------------------------------------------------------ launching */

void enqueue(const char *kernel, const void *function, dim3 grid, dim3 block, size_t shared,
             cudaStream_t stream, std::function<void()> call)
{
    std::unique_lock<std::mutex> held(lock);
    auto allowed = most_shared.find(function);
    int of = the_device;
    if (int code = refused("launch")) {
        give((cudaError_t)code);
        return;
    }
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z || grid.x > 0x7fffffff ||
        grid.y > 65535 || grid.z > 65535 || block.z > 64 || block.x > 1024 || block.y > 1024 ||
        (size_t)block.x * block.y * block.z > 1024) {
        give(cudaErrorInvalidConfiguration);
        return;
    }
    if (shared > (allowed == most_shared.end() ? SHARED_BYTES : allowed->second)) {
        give(cudaErrorInvalidValue);
        return;
    }
    if (stream_of(stream)->device != of) {
        give(cudaErrorInvalidResourceHandle);
        return;
    }
    give(add(stream, simple(kernel, [=]() {
                 device *d = &devices[of];
                 numbers order = {d->order.next()};
                 kernels++;
                 if (d->failed == cudaSuccess) {
                     run_grid(kernel, grid, block, shared, call, order);
                     check_guards(kernel);
                 }
             })));
}

} /* namespace emulation */

/* --------------------------------------------------------------------------- emulation.h */

extern "C" void emulation_seed(uint64_t to)
{
    std::unique_lock<std::mutex> held(lock);
    for (int i = 0; i < DEVICES; i++) devices[i].order = {to * DEVICES + (uint64_t)i};
}

extern "C" void emulation_devices(int n)
{
    std::unique_lock<std::mutex> held(lock);
    device_count = n;
}

extern "C" void emulation_shared(size_t bytes)
{
    std::unique_lock<std::mutex> held(lock);
    most_shared_bytes = bytes;
}

extern "C" void emulation_capability(int major)
{
    std::unique_lock<std::mutex> held(lock);
    capability = major;
}

extern "C" void emulation_driver(int version)
{
    std::unique_lock<std::mutex> held(lock);
    driver = version < 0 ? CUDART_VERSION : version;
}

extern "C" void emulation_processors(int count)
{
    std::unique_lock<std::mutex> held(lock);
    processors = count;
}

extern "C" const char *emulation_report(void)
{
    std::unique_lock<std::mutex> held(lock);
    return report.c_str();
}

extern "C" void emulation_clear(void)
{
    std::unique_lock<std::mutex> held(lock);
    report.clear();
    for (int i = 0; i < DEVICES; i++) devices[i].failed = cudaSuccess;
    last_error = cudaSuccess;
}

extern "C" int emulation_live(void)
{
    std::unique_lock<std::mutex> held(lock);
    return live;
}

extern "C" void emulation_refuse(const char *function, int after, int code)
{
    std::unique_lock<std::mutex> held(lock);
    refusal = {function ? function : "", after, code};
}

extern "C" long emulation_kernels(void)
{
    std::unique_lock<std::mutex> held(lock);
    return kernels;
}

/* -------------------------------------------------------------------------------- devices */

cudaError_t cudaGetDeviceCount(int *count)
{
    CALL(cudaGetDeviceCount);
    if (driver < CUDART_VERSION) GIVE(cudaErrorInsufficientDriver);
    *count = device_count;
    GIVE(device_count ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int number)
{
    CALL(cudaSetDevice);
    if (number < 0 || number >= device_count) GIVE(cudaErrorInvalidDevice);
    the_device = number;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *number)
{
    CALL(cudaGetDevice);
    *number = the_device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int number)
{
    CALL(cudaGetDeviceProperties);
    if (number < 0 || number >= device_count) GIVE(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated GPU");
    p->totalGlobalMem = DEVICE_BYTES;
    p->sharedMemPerBlock = SHARED_BYTES;
    p->sharedMemPerBlockOptin = most_shared_bytes;
    p->sharedMemPerMultiprocessor = most_shared_bytes + 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = 9;
    p->multiProcessorCount = processors;
    p->asyncEngineCount = 3;
    p->unifiedAddressing = p->canMapHostMemory = p->concurrentKernels = 1;
    p->l2CacheSize = 1 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int number)
{
    CALL(cudaDeviceGetAttribute);
    if (number < 0 || number >= device_count) GIVE(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = processors; break;
    case cudaDevAttrComputeCapabilityMajor: *value = capability; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)SHARED_BYTES; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)most_shared_bytes; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)most_shared_bytes + 1024; break;
    case cudaDevAttrL2CacheSize: *value = 1 << 20; break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels: *value = 1; break;
    case cudaDevAttrAsyncEngineCount: *value = 3; break;
    default: GIVE(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    CALL(cudaDriverGetVersion);
    *version = driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    CALL(cudaRuntimeGetVersion);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    CALL(cudaDeviceGetStreamPriorityRange);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    CALL(cudaDeviceSynchronize);
    device *d = &devices[the_device];
    if (breaks_capture()) GIVE(cudaErrorStreamCaptureUnsupported);
    GIVE(run_until(d, held, [d]() { return is_idle(d); }));
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    CALL(cudaMemGetInfo);
    *left = DEVICE_BYTES - devices[the_device].bytes;
    *total = DEVICE_BYTES;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute, int value)
{
    CALL(cudaFuncSetAttribute);
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        (size_t)value > most_shared_bytes)
        GIVE(cudaErrorInvalidValue);
    most_shared[function] = (size_t)value;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *function)
{
    CALL(cudaFuncGetAttributes);
    memset(a, 0, sizeof *a);
    /* As if products of warpgroups had code. */
    a->maxThreadsPerBlock = has_cores() == EMULATION_MMA ? 128 : 1024;
    a->numRegs = 64;
    a->maxDynamicSharedSizeBytes =
        (int)(most_shared.count(function) ? most_shared[function] : SHARED_BYTES);
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *,
                                                                   int threads, size_t shared,
                                                                   unsigned)
{
    CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor);
    if (threads < 1 || threads > 1024 || shared > most_shared_bytes) GIVE(cudaErrorInvalidValue);
    *blocks = std::min(2048 / threads, (int)((most_shared_bytes + 1024) / (shared + 1024)));
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                          int threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared,
                                                                  0);
}

/* --------------------------------------------------------------------------------- errors */

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorStubLibrary, "cudaErrorStubLibrary", "CUDA driver is a stub library"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
};

const char *cudaGetErrorString(cudaError_t code)
{
    for (auto &e : errors)
        if (e.code == code) return e.text;
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t code)
{
    for (auto &e : errors)
        if (e.code == code) return e.name;
    return "unrecognized error code";
}

/* --------------------------------------------------------------------------------- memory */

static cudaError_t release(void *at, space where, std::unique_lock<std::mutex> &held)
{
    auto m = memory.find((uintptr_t)at);
    device *d = &devices[the_device];
    if (!at) return cudaSuccess;
    if (breaks_capture()) return cudaErrorStreamCaptureUnsupported;
    if (m == memory.end() || m->second.where != where || !m->second.base)
        return cudaErrorInvalidValue;
    if (where == DEVICE) d = &devices[m->second.device];
    run_until(d, held, [d]() { return is_idle(d); });
    m = memory.find((uintptr_t)at);
    check_guard(m->first, &m->second, where == DEVICE ? "cudaFree" : "cudaFreeHost");
    ASAN_UNPOISON_MEMORY_REGION(at, m->second.bytes);
    memset(at, 0xff, m->second.bytes);
    if (where == DEVICE) d->bytes -= m->second.bytes;
    free(m->second.base);
    memory.erase(m);
    live--;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **to, size_t bytes)
{
    CALL(cudaMalloc);
    GIVE(allocate(to, bytes, DEVICE));
}

cudaError_t cudaFree(void *at)
{
    CALL(cudaFree);
    GIVE(release(at, DEVICE, held));
}

cudaError_t cudaHostAlloc(void **to, size_t bytes, unsigned)
{
    CALL(cudaHostAlloc);
    GIVE(allocate(to, bytes, PINNED));
}

cudaError_t cudaMallocHost(void **to, size_t bytes)
{
    CALL(cudaMallocHost);
    GIVE(allocate(to, bytes, PINNED));
}

cudaError_t cudaFreeHost(void *at)
{
    CALL(cudaFreeHost);
    GIVE(release(at, PINNED, held));
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned)
{
    CALL(cudaHostRegister);
    auto next = memory.lower_bound((uintptr_t)at);
    uintptr_t start;
    if (!at || !bytes) GIVE(cudaErrorInvalidValue);
    if (breaks_capture()) GIVE(cudaErrorStreamCaptureUnsupported);
    if (block_at(at, 1, &start) || (next != memory.end() && next->first < (uintptr_t)at + bytes))
        GIVE(cudaErrorHostMemoryAlreadyRegistered);
    memory[(uintptr_t)at] = {NULL, bytes, PINNED, the_device};
    live++;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *at)
{
    CALL(cudaHostUnregister);
    auto m = memory.find((uintptr_t)at);
    if (m == memory.end() || m->second.base) GIVE(cudaErrorHostMemoryNotRegistered);
    if (breaks_capture()) GIVE(cudaErrorStreamCaptureUnsupported);
    memory.erase(m);
    live--;
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **to, void *at, unsigned)
{
    uintptr_t start;
    CALL(cudaHostGetDevicePointer);
    const block_of_memory *m = block_at(at, 1, &start);
    if (!m || m->where != PINNED) GIVE(cudaErrorInvalidValue);
    *to = at;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *at)
{
    uintptr_t start;
    CALL(cudaPointerGetAttributes);
    const block_of_memory *m = block_at(at, 1, &start);
    memset(a, 0, sizeof *a);
    a->type = !m                   ? cudaMemoryTypeUnregistered
              : m->where == DEVICE ? cudaMemoryTypeDevice
                                   : cudaMemoryTypeHost;
    a->device = m ? m->device : 0;
    if (m) a->devicePointer = const_cast<void *>(at);
    if (!m || m->where == PINNED) a->hostPointer = const_cast<void *>(at);
    return cudaSuccess;
}

/* A copy put on a stream; *late: the memory of the host is pinned, and is looked at later. */
static cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t stream, bool *late)
{
    uintptr_t start;
    const block_of_memory *t = block_at(to, bytes, &start), *f = block_at(from, bytes, &start);
    bool to_device = t && t->where == DEVICE, from_device = f && f->where == DEVICE;
    std::shared_ptr<std::string> kept;
    *late = true;
    if (!bytes) return cudaSuccess;
    if ((kind == cudaMemcpyHostToDevice && !(to_device && !from_device)) ||
        (kind == cudaMemcpyDeviceToHost && !(from_device && !to_device)) ||
        (kind == cudaMemcpyDeviceToDevice && !(from_device && to_device)) ||
        (kind == cudaMemcpyHostToHost && (from_device || to_device))) {
        found("a copy of %zu bytes whose ends are not what it says they are", bytes);
        return cudaErrorInvalidValue;
    }
    if ((!f || !t) && !stream_of(stream)->taken) {
        *late = t != NULL;
        if (!f) kept = std::make_shared<std::string>((const char *)from, bytes);
    }
    return add(stream, simple("copy", [=]() { memmove(to, kept ? kept->data() : from, bytes); }));
}

static cudaError_t finish(cudaStream_t stream, std::unique_lock<std::mutex> &held)
{
    CUstream_st *s = stream_of(stream);
    return run_until(&devices[s->device], held, [s]() { return s->list.empty(); });
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    bool late;
    CALL(cudaMemcpyAsync);
    cudaError_t code = copy(to, from, bytes, kind, stream, &late);
    if (!code && !late) code = finish(stream, held);
    GIVE(code);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    bool late;
    CALL(cudaMemcpy);
    if (breaks_capture()) GIVE(cudaErrorStreamCaptureUnsupported);
    cudaError_t code = copy(to, from, bytes, kind, NULL, &late);
    if (!code && kind != cudaMemcpyDeviceToDevice) code = finish(NULL, held);
    GIVE(code);
}

static cudaError_t set(void *to, int value, size_t bytes, cudaStream_t stream)
{
    if (!bytes) return cudaSuccess;
    if (!on_device(to, bytes)) {
        found("cudaMemset of %zu bytes that are not the device's", bytes);
        return cudaErrorInvalidValue;
    }
    return add(stream, simple("set", [=]() { memset(to, value, bytes); }));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    CALL(cudaMemsetAsync);
    GIVE(set(to, value, bytes, stream));
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    CALL(cudaMemset);
    if (breaks_capture()) GIVE(cudaErrorStreamCaptureUnsupported);
    GIVE(set(to, value, bytes, NULL));
}

/* -------------------------------------------------------------------------------- streams */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    CALL(cudaStreamCreate);
    CUstream_st *s = new CUstream_st();
    s->device = the_device;
    s->blocking = !(flags & cudaStreamNonBlocking);
    s->rank = devices[the_device].order.next();
    devices[the_device].streams.push_back(s);
    live++;
    *stream = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    CALL(cudaStreamDestroy);
    if (!stream) GIVE(cudaErrorInvalidResourceHandle);
    stream->destroyed = true;
    live--;
    if (stream->list.empty()) {
        auto &all = devices[stream->device].streams;
        all.erase(std::find(all.begin(), all.end(), stream));
        delete stream;
    }
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    CALL(cudaStreamSynchronize);
    if (stream_of(stream)->taken) {
        stream_of(stream)->taken->broken = true;
        GIVE(cudaErrorStreamCaptureUnsupported);
    }
    if (breaks_capture()) GIVE(cudaErrorStreamCaptureUnsupported);
    GIVE(finish(stream, held));
}

/* What a question costs: work goes on for a while. Where none can, whoever asks will ask again, and
 * others need the processor. */
static cudaError_t ask(device *d, std::unique_lock<std::mutex> &held,
                       const std::function<bool()> &done)
{
    bool goes_on = true;
    {
        at_work scope;
        for (int i = 0; i < 64 && goes_on && !done(); i++) goes_on = go_on(d);
    }
    if (!goes_on && !done()) {
        held.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(500));
        held.lock();
    }
    return d->failed ? d->failed : done() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    CALL(cudaStreamQuery);
    CUstream_st *s = stream_of(stream);
    if (breaks_capture()) GIVE(cudaErrorStreamCaptureUnsupported);
    GIVE(ask(&devices[s->device], held, [s]() { return s->list.empty(); }));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user)
{
    CALL(cudaLaunchHostFunc);
    GIVE(add(stream, simple("host function", [=]() { function(user); })));
}

/* --------------------------------------------------------------------------------- events */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    CALL(cudaEventCreate);
    *event = new CUevent_st();
    (*event)->state = std::make_shared<event_state>();
    live++;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    CALL(cudaEventDestroy);
    if (!event) GIVE(cudaErrorInvalidResourceHandle);
    delete event;
    live--;
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned)
{
    CALL(cudaEventRecord);
    CUstream_st *s = stream_of(stream);
    if (s->taken) {
        event->taken = s->taken;
        event->last = s->last;
        return cudaSuccess;
    }
    event->taken = NULL;
    /* One of its own: what waits for an earlier record, perhaps of another stream, still does. */
    auto state = std::make_shared<event_state>(event_state{1, 0});
    event->state = state;
    GIVE(add(stream, simple("record", [state]() { state->done = 1; })));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    CALL(cudaStreamWaitEvent);
    CUstream_st *s = stream_of(stream);
    std::shared_ptr<event_state> state = event->state;
    uint64_t version = state->recorded;
    if (event->taken && std::find(captures.begin(), captures.end(), event->taken) == captures.end())
        GIVE(cudaErrorCapturedEvent);
    if (event->taken && (!s->taken || s->taken == event->taken)) {
        if (!s->taken) event->taken->streams.push_back(s);
        s->taken = event->taken;
        for (int node : event->last)
            if (std::find(s->last.begin(), s->last.end(), node) == s->last.end())
                s->last.push_back(node);
        return cudaSuccess;
    }
    if (s->taken) {
        s->taken->broken = true;
        GIVE(cudaErrorStreamCaptureIsolation);
    }
    if (state->done >= version) return cudaSuccess;
    GIVE(add(stream, {"wait", [state, version]() -> attempt {
                          return
                              [state, version]() { return state->done >= version ? DONE : WAITS; };
                      }}));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    CALL(cudaEventQuery);
    std::shared_ptr<event_state> e = event->state;
    if (event->taken) GIVE(cudaErrorCapturedEvent);
    if (breaks_capture()) GIVE(cudaErrorStreamCaptureUnsupported);
    uint64_t version = e->recorded;
    GIVE(ask(&devices[the_device], held, [e, version]() { return e->done >= version; }));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    CALL(cudaEventSynchronize);
    std::shared_ptr<event_state> e = event->state;
    if (event->taken) GIVE(cudaErrorCapturedEvent);
    if (breaks_capture()) GIVE(cudaErrorStreamCaptureUnsupported);
    uint64_t version = e->recorded;
    GIVE(run_until(&devices[the_device], held, [e, version]() { return e->done >= version; }));
}

/* There is no time here: as much as a kernel that takes a microsecond. */
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t, cudaEvent_t)
{
    CALL(cudaEventElapsedTime);
    *milliseconds = 0.001f;
    return cudaSuccess;
}

/* --------------------------------------------------------------------------------- graphs */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    CALL(cudaStreamBeginCapture);
    CUstream_st *s = stream_of(stream);
    capture *c;
    if (s->taken) GIVE(cudaErrorIllegalState);
    if (s == devices[the_device].standard) GIVE(cudaErrorStreamCaptureUnsupported);
    c = new capture{new CUgraph_st(), s, {s}, mode, std::this_thread::get_id(), false};
    captures.push_back(c);
    s->taken = c;
    s->last.clear();
    live++;
    return cudaSuccess;
}

static void mark(const CUgraph_st *g, int node, std::vector<bool> *seen)
{
    if ((*seen)[(size_t)node]) return;
    (*seen)[(size_t)node] = true;
    for (int before : g->nodes[(size_t)node].after) mark(g, before, seen);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    CALL(cudaStreamEndCapture);
    CUstream_st *s = stream_of(stream);
    capture *c = s->taken;
    cudaError_t code;
    *graph = NULL;
    if (!c || c->origin != s) GIVE(cudaErrorIllegalState);
    std::vector<bool> seen(c->graph->nodes.size());
    for (int node : s->last) mark(c->graph, node, &seen);
    code = c->broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    for (CUstream_st *other : c->streams) {
        for (int node : other->last)
            if (!seen[(size_t)node] && !code) code = cudaErrorStreamCaptureUnjoined;
        other->taken = NULL;
        other->last.clear();
    }
    if (code) {
        delete c->graph;
        live--;
    } else {
        *graph = c->graph;
    }
    captures.erase(std::find(captures.begin(), captures.end(), c));
    ended.emplace_back(c);
    GIVE(code);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    CALL(cudaStreamIsCapturing);
    const capture *c = stream_of(stream)->taken;
    *status = !c          ? cudaStreamCaptureStatusNone
              : c->broken ? cudaStreamCaptureStatusInvalidated
                          : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    CALL(cudaThreadExchangeStreamCaptureMode);
    *mode = cudaStreamCaptureModeGlobal;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    CALL(cudaGraphGetNodes);
    for (size_t i = 0; nodes && i < *count && i < graph->nodes.size(); i++)
        nodes[i] = &graph->nodes[i];
    *count = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    CALL(cudaGraphDestroy);
    delete graph;
    live--;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    CALL(cudaGraphInstantiate);
    *exec =
        new CUgraphExec_st{std::make_shared<CUgraph_st>(*graph), std::make_shared<event_state>()};
    live++;
    return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo *info)
{
    CALL(cudaGraphExecUpdate);
    bool same = exec->graph->nodes.size() == graph->nodes.size();
    for (size_t i = 0; same && i < graph->nodes.size(); i++)
        same = exec->graph->nodes[i].after == graph->nodes[i].after;
    memset(info, 0, sizeof *info);
    info->result = same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
    if (!same) GIVE(cudaErrorGraphExecUpdateFailure);
    exec->graph = std::make_shared<CUgraph_st>(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    CALL(cudaGraphExecDestroy);
    delete exec;
    live--;
    return cudaSuccess;
}

namespace emulation
{
/* One launch of a graph: nodes that may go on do, in an order drawn from the seed. */
struct replay {
    std::shared_ptr<CUgraph_st> graph;
    std::shared_ptr<event_state> launches;
    uint64_t number;
    std::vector<attempt> nodes;
    std::vector<int> missing, ready; /* what a node still waits for; those that wait for nothing */
    size_t left;
};

static progress replay_some(replay *r, numbers *order)
{
    if (r->launches->done + 1 < r->number) return WAITS;
    for (size_t tried = 0, first = order->below(r->ready.size()); tried < r->ready.size();
         tried++) {
        size_t at = (first + tried) % r->ready.size();
        int node = r->ready[at];
        progress p = r->nodes[(size_t)node]();
        if (p == WAITS) continue;
        if (p == WENT_ON) return p;
        r->ready.erase(r->ready.begin() + (long)at);
        for (size_t i = 0; i < r->graph->nodes.size(); i++)
            for (int before : r->graph->nodes[i].after)
                if (before == node && --r->missing[i] == 0) r->ready.push_back((int)i);
        if (--r->left) return WENT_ON;
        r->launches->done = r->number;
        return DONE;
    }
    if (r->left) return WAITS;
    r->launches->done = r->number;
    return DONE;
}
} /* namespace emulation */

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    CALL(cudaGraphLaunch);
    device *d = &devices[the_device];
    if (stream_of(stream)->taken) GIVE(cudaErrorStreamCaptureUnsupported);
    auto r = std::make_shared<replay>();
    r->graph = exec->graph;
    r->launches = exec->launches;
    r->number = ++exec->launches->recorded;
    r->left = exec->graph->nodes.size();
    for (size_t i = 0; i < r->left; i++) {
        r->nodes.push_back(exec->graph->nodes[i].what.begin());
        r->missing.push_back((int)exec->graph->nodes[i].after.size());
        if (!r->missing.back()) r->ready.push_back((int)i);
    }
    GIVE(add(stream, {"graph", [r, d]() -> attempt {
                          return [r, d]() { return replay_some(r.get(), &d->order); };
                      }}));
}
