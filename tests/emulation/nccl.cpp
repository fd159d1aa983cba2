/* NCCL among the threads of one process, each with a device of its own.
 *
 * What a rank puts on a stream is posted when its turn comes, after what it has put on that
 * communicator before; it is done when the other ranks have posted their part, and until then the
 * stream waits, for ever if they do not come: no call of the host does. Calls within a group are
 * posted together. A graph refers to the communicators of the calls in it, for as long as there is
 * the graph; they are not freed before: ncclCommAbort and ncclCommDestroy wait. Sums are added as
 * along a ring, which for no rank begins with rank 0, and rounded at each step, as NCCL may: what
 * needs an order must not depend on them.
 *
 *     rank 0   all_gather #7 posted ............ done     moved by whoever posts last
 *     rank 1             all_gather #7 posted -> done
 *
 * Where there is no nccl.h, there is none of this.
 */
#if __has_include(<nccl.h>)
#include "machine.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <nccl.h>
#include <string.h>

#include <chrono>
#include <deque>
#include <map>
#include <vector>

using namespace emulation;

namespace
{

enum { DEADLINE = 60 /* seconds, of a call that blocks until all ranks make it */ };
enum kind { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, SEND, RECEIVE };
const char *const names[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce",
                             "ncclBroadcast", "ncclSend",          "ncclRecv"};

struct request {
    enum kind kind;
    const void *in;
    void *out;
    size_t count; /* as NCCL counts: of a part for ALL_GATHER and REDUCE_SCATTER */
    ncclDataType_t type;
    int other; /* root or peer */
    bool done;
};
typedef std::shared_ptr<request> posted;

/* One collective of all ranks. */
struct meeting {
    std::vector<posted> parts;
    int count;
};

struct member;

/* The ranks of one id. */
struct clique {
    int world, joined;
    std::vector<std::weak_ptr<member>> members; /* who refers to the clique; gone: it has ended */
    std::vector<bool> present;
    std::map<uint64_t, meeting> meetings;
    std::vector<std::deque<posted>> sends, receives; /* [from * world + to] */
};

struct member {
    std::shared_ptr<clique> all;
    int rank, device;
    bool aborted, blocking, busy;
    bool finalized, ended;                 /* by ncclCommFinalize; destroyed or aborted */
    uint64_t begun, finished, collectives; /* groups put on streams, those done; meetings */
    int under_way, graphs;                 /* groups on streams that are not over; in graphs */
    int blocks;                            /* at most, of its kernels */
    bool connected;
    bool is_whole() const { return all->joined == all->world; }
    bool is_quiet() const { return !under_way && !graphs; }
    bool becomes_quiet(std::unique_lock<std::mutex> &held, int seconds)
    {
        return wait_until(
            device, held, [this]() { return is_quiet(); }, seconds);
    }
};

/* A group of calls in a graph and its copies. */
struct reference {
    std::shared_ptr<member> of;
    explicit reference(const std::shared_ptr<member> &m) : of(m) { of->graphs++; }
    ~reference()
    {
        of->graphs--;
        changed.notify_all();
    }
};

std::map<std::string, std::shared_ptr<clique>> cliques;
uint64_t ids;

struct grouped {
    std::shared_ptr<member> of;
    cudaStream_t stream;
    request what;
};
long sent; /* bytes, of all ranks */
thread_local int depth;
thread_local std::vector<grouped> group;

size_t size_of(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
    }
}

template <class T> void add_plain(void *to, const void *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        static_cast<T *>(to)[i] = (T)(static_cast<T *>(to)[i] + static_cast<const T *>(from)[i]);
}

/* to += from, rounded. */
void add_to(void *to, const void *from, size_t n, ncclDataType_t type)
{
    switch (type) {
    case ncclFloat32: add_plain<float>(to, from, n); break;
    case ncclFloat64: add_plain<double>(to, from, n); break;
    case ncclInt8:
    case ncclUint8: add_plain<uint8_t>(to, from, n); break;
    case ncclInt32:
    case ncclUint32: add_plain<uint32_t>(to, from, n); break;
    case ncclInt64:
    case ncclUint64: add_plain<uint64_t>(to, from, n); break;
    case ncclBfloat16:
        for (size_t i = 0; i < n; i++) {
            __nv_bfloat16 *x = static_cast<__nv_bfloat16 *>(to) + i;
            *x = __float2bfloat16_rn(__bfloat162float(*x) +
                                     __bfloat162float(static_cast<const __nv_bfloat16 *>(from)[i]));
        }
        break;
    default:
        for (size_t i = 0; i < n; i++) {
            __half *x = static_cast<__half *>(to) + i;
            *x = __float2half_rn(__half2float(*x) +
                                 __half2float(static_cast<const __half *>(from)[i]));
        }
    }
}

const char *in_of(const meeting &m, int rank)
{
    return static_cast<const char *>(m.parts[(size_t)rank]->in);
}

/* Elements [first, first + n) of all ranks' inputs, added from rank `owner` + 1 on, round the ring.
 */
std::vector<char> ring_sum(const meeting &m, int world, int owner, size_t first, size_t n,
                           ncclDataType_t type)
{
    size_t size = size_of(type);
    int begin = (owner + 1) % world;
    std::vector<char> sum(in_of(m, begin) + first * size, in_of(m, begin) + (first + n) * size);
    for (int i = 1; i < world; i++)
        add_to(sum.data(), in_of(m, (begin + i) % world) + first * size, n, type);
    return sum;
}

/* All parts are there: moves the data. Results are made before any is stored, in may be out. */
void perform(meeting *m, int world)
{
    const request &first = *m->parts[0];
    size_t size = size_of(first.type), n = first.count;
    std::vector<std::vector<char>> made;
    const size_t parts = first.kind == ALL_GATHER || first.kind == REDUCE_SCATTER ? (size_t)world
                         : first.kind == ALL_REDUCE                               ? 2
                                                                                  : 1;
    sent += (long)(parts * (size_t)(world - 1) * n * size);
    switch (first.kind) {
    case ALL_GATHER:
        for (int r = 0; r < world; r++) made.emplace_back(in_of(*m, r), in_of(*m, r) + n * size);
        for (int r = 0; r < world; r++)
            for (int part = 0; part < world && n; part++)
                memcpy(static_cast<char *>(m->parts[(size_t)r]->out) + (size_t)part * n * size,
                       made[(size_t)part].data(), n * size);
        break;
    case REDUCE_SCATTER:
        for (int r = 0; r < world; r++)
            made.push_back(ring_sum(*m, world, r, (size_t)r * n, n, first.type));
        for (int r = 0; r < world && n; r++)
            memcpy(m->parts[(size_t)r]->out, made[(size_t)r].data(), n * size);
        break;
    case ALL_REDUCE:
        for (int r = 0; r < world; r++) { /* cut into as many parts as there are ranks */
            size_t begin = n * (size_t)r / (size_t)world, end = n * (size_t)(r + 1) / (size_t)world;
            made.push_back(ring_sum(*m, world, r, begin, end - begin, first.type));
        }
        for (int r = 0; r < world; r++)
            for (int part = 0; part < world; part++)
                if (!made[(size_t)part].empty())
                    memcpy(static_cast<char *>(m->parts[(size_t)r]->out) +
                               n * (size_t)part / (size_t)world * size,
                           made[(size_t)part].data(), made[(size_t)part].size());
        break;
    default:
        made.emplace_back(in_of(*m, first.other), in_of(*m, first.other) + n * size);
        for (int r = 0; r < world && n; r++)
            memcpy(m->parts[(size_t)r]->out, made[0].data(), n * size);
    }
    for (posted &p : m->parts) p->done = true;
}

void post(member *of, const posted &what)
{
    clique *all = of->all.get();
    if (what->kind == SEND || what->kind == RECEIVE) {
        int from = what->kind == SEND ? of->rank : what->other;
        int to = what->kind == SEND ? what->other : of->rank;
        auto &sends = all->sends[(size_t)(from * all->world + to)];
        auto &receives = all->receives[(size_t)(from * all->world + to)];
        (what->kind == SEND ? sends : receives).push_back(what);
        while (!sends.empty() && !receives.empty()) {
            posted s = sends.front(), r = receives.front();
            sends.pop_front(), receives.pop_front();
            if (s->count * size_of(s->type) != r->count * size_of(r->type))
                found("ncclSend of %zu elements from rank %d, ncclRecv of %zu on rank %d", s->count,
                      from, r->count, to);
            else if (s->count) memmove(r->out, s->in, s->count * size_of(s->type));
            sent += (long)(s->count * size_of(s->type));
            s->done = r->done = true;
        }
        return;
    }
    uint64_t number = of->collectives++;
    meeting &m = all->meetings[number];
    m.parts.resize((size_t)all->world);
    m.parts[(size_t)of->rank] = what;
    if (++m.count < all->world) return;
    for (int r = 1; r < all->world; r++) {
        const request &a = *m.parts[0], &b = *m.parts[(size_t)r];
        if (a.kind == b.kind && a.count == b.count && a.type == b.type && a.other == b.other)
            continue;
        found("collective %llu: rank 0 calls %s of %zu elements, rank %d %s of %zu",
              (unsigned long long)number, names[a.kind], a.count, r, names[b.kind], b.count);
        for (posted &p : m.parts) p->done = true;
        all->meetings.erase(number);
        return;
    }
    perform(&m, all->world);
    all->meetings.erase(number);
}

/* Takes back what the rank has posted and nobody has met: its memory may be freed from now on. */
void withdraw(member *of)
{
    clique *all = of->all.get();
    for (auto &m : all->meetings) {
        posted &mine = m.second.parts[(size_t)of->rank];
        if (mine) m.second.count--;
        mine = nullptr;
    }
    for (int other = 0; other < all->world; other++) {
        all->sends[(size_t)(of->rank * all->world + other)].clear();
        all->receives[(size_t)(other * all->world + of->rank)].clear();
    }
}

/* Before its first call a communicator has no buffers. */
void connect(member *of)
{
    if (!of->connected) reserve(of->device, (long)of->blocks * EMULATION_NCCL_BYTES);
    of->connected = true;
}

/* A group of one communicator's calls as work for a stream. */
work group_of(const std::shared_ptr<member> &of, const std::vector<request> &requests,
              bool captured)
{
    std::shared_ptr<reference> kept = captured ? std::make_shared<reference>(of) : nullptr;
    return {names[requests[0].kind], [of, requests, kept]() -> attempt {
                uint64_t number = of->begun++;
                connect(of.get());
                auto parts = std::make_shared<std::vector<posted>>();
                of->under_way++;
                return [of, requests, number, parts]() {
                    bool done = true, goes_on = parts->empty();
                    if (of->aborted) {
                        of->under_way--;
                        return DONE;
                    }
                    if (of->finished != number) return WAITS;
                    if (goes_on)
                        for (const request &r : requests) {
                            parts->push_back(std::make_shared<request>(r));
                            post(of.get(), parts->back());
                        }
                    for (const posted &p : *parts) done = done && p->done;
                    if (goes_on) changed.notify_all();
                    if (!done) return goes_on ? WENT_ON : WAITS;
                    of->finished++;
                    of->under_way--;
                    return DONE;
                };
            }};
}

/* What was called since the group began goes to its streams. */
ncclResult_t end_group()
{
    std::vector<grouped> calls;
    ncclResult_t result = ncclSuccess;
    calls.swap(group);
    while (!calls.empty()) {
        std::vector<request> together;
        std::vector<grouped> others;
        grouped first = calls[0];
        for (grouped &g : calls) {
            if (g.of == first.of && g.stream == first.stream) together.push_back(g.what);
            else others.push_back(g);
        }
        if (!first.of->is_whole()) return ncclInvalidUsage;
        if (add(first.stream, group_of(first.of, together, is_captured(first.stream))))
            return ncclUnhandledCudaError;
        if (!first.of->blocking) {
            first.of->busy = true;
            result = ncclInProgress;
        }
        calls.swap(others);
    }
    return result;
}

} /* namespace */

struct ncclComm {
    std::shared_ptr<member> of;
};

/* What NCCL waits for before it frees what a rank has, for as long as it takes. */
static ncclResult_t is_over(member *of, const char *name, std::unique_lock<std::mutex> &held)
{
    if (of->becomes_quiet(held, DEADLINE)) return ncclSuccess;
    found("%s of rank %d waits for ever: %d of its groups of calls are in graphs, %d on streams",
          name, of->rank, of->graphs, of->under_way);
    return ncclSystemError;
}

/* Waits for this rank's, as where it is alone in its process; and the last for all others', as
 * where they are all in one. */
static ncclResult_t end(ncclComm_t comm, const char *name, std::unique_lock<std::mutex> &held)
{
    std::shared_ptr<member> of = comm->of;
    ncclResult_t code = of->finalized ? ncclSuccess : is_over(of.get(), name, held);
    bool last = of->is_whole();
    if (of->finalized && !of->is_quiet())
        found("%s of rank %d: the communicator is in use", name, of->rank);
    of->ended = true;
    if (of->connected) reserve(of->device, -(long)of->blocks * EMULATION_NCCL_BYTES);
    for (const auto &weak : of->all->members) {
        std::shared_ptr<member> other = weak.lock();
        last = last && (!other || other->ended);
    }
    for (size_t i = 0; last && !code && i < of->all->members.size(); i++)
        if (std::shared_ptr<member> other = of->all->members[i].lock())
            code = is_over(other.get(), name, held);
    delete comm;
    count(-1);
    return code;
}

#define CALL(name)                                                                                 \
    std::unique_lock<std::mutex> held(lock);                                                       \
    if (int code_ = refused(#name)) return (ncclResult_t)code_

extern "C" long emulation_sent(void)
{
    std::unique_lock<std::mutex> held(lock);
    return sent;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    CALL(ncclGetUniqueId);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "emulated %llu", (unsigned long long)++ids);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int world, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    CALL(ncclCommInitRank);
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(DEADLINE);
    std::shared_ptr<clique> &place = cliques[std::string(id.internal, sizeof id.internal)];
    *comm = NULL;
    if (!place) {
        place = std::make_shared<clique>();
        place->world = world;
        place->present.resize((size_t)world);
        place->sends.resize((size_t)(world * world));
        place->receives.resize((size_t)(world * world));
    }
    std::shared_ptr<clique> all = place;
    if (world < 1 || rank < 0 || rank >= world || all->world != world || all->present[(size_t)rank])
        return ncclInvalidArgument;
    auto of = std::make_shared<member>();
    of->all = all;
    of->rank = rank;
    of->device = current_device();
    of->blocking = !config || config->blocking != 0;
    of->blocks = config && config->maxCTAs > 0 ? config->maxCTAs : 32;
    all->present[(size_t)rank] = true;
    all->members.push_back(of);
    if (++all->joined == world) cliques.erase(std::string(id.internal, sizeof id.internal));
    changed.notify_all();
    count(1);
    *comm = new ncclComm{of};
    while (of->blocking && !of->is_whole()) {
        if (std::chrono::steady_clock::now() > deadline) return ncclSystemError;
        changed.wait_for(held, std::chrono::milliseconds(1));
    }
    return of->is_whole() ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int world, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(comm, world, id, rank, NULL);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    CALL(ncclCommFinalize);
    comm->of->finalized = true;
    if (!comm->of->blocking) return ncclInProgress;
    return is_over(comm->of.get(), "ncclCommFinalize", held);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    CALL(ncclCommDestroy);
    return comm ? end(comm, "ncclCommDestroy", held) : ncclSuccess;
}

/* What the rank has put on streams is given up; the others still wait for it. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    CALL(ncclCommAbort);
    if (!comm) return ncclSuccess;
    comm->of->aborted = true;
    withdraw(comm->of.get());
    changed.notify_all();
    return end(comm, "ncclCommAbort", held);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    CALL(ncclCommGetAsyncError);
    member *of = comm->of.get();
    bool over = !of->finalized || of->becomes_quiet(held, 0);
    *error = !of->is_whole() || of->busy || !over ? ncclInProgress : ncclSuccess;
    of->busy = false; /* asked once, it is done */
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *world)
{
    *world = comm->of->all->world;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->of->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    *device = comm->of->device;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGroupStart(void)
{
    CALL(ncclGroupStart);
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    CALL(ncclGroupEnd);
    if (depth <= 0) return ncclInvalidUsage;
    return --depth ? ncclSuccess : end_group();
}

/* A call, alone or in the group that is open; `in` and `out` have so many elements. */
static ncclResult_t call(ncclComm_t comm, cudaStream_t stream, const request &what, size_t in,
                         size_t out)
{
    size_t size = size_of(what.type);
    std::unique_lock<std::mutex> held(lock);
    if (int code = refused(names[what.kind])) return (ncclResult_t)code;
    if (!comm || !size || what.other < 0 || what.other >= comm->of->all->world)
        return ncclInvalidArgument;
    if (comm->of->aborted) return ncclInvalidUsage;
    if ((in && !on_device(what.in, in * size)) || (out && !on_device(what.out, out * size))) {
        found("%s of rank %d: a buffer is not in an allocation of the device", names[what.kind],
              comm->of->rank);
        return ncclInvalidArgument;
    }
    group.push_back({comm->of, stream, what});
    return depth ? ncclSuccess : end_group();
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call(comm, stream, {ALL_GATHER, in, out, count, type, 0, false}, count,
                comm ? count * (size_t)comm->of->all->world : 0);
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    if (op != ncclSum) return ncclInvalidArgument;
    return call(comm, stream, {REDUCE_SCATTER, in, out, count, type, 0, false},
                comm ? count * (size_t)comm->of->all->world : 0, count);
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    if (op != ncclSum) return ncclInvalidArgument;
    return call(comm, stream, {ALL_REDUCE, in, out, count, type, 0, false}, count, count);
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    bool is_root = comm && comm->of->rank == root;
    return call(comm, stream, {BROADCAST, in, out, count, type, root, false}, is_root ? count : 0,
                count);
}

ncclResult_t ncclBcast(void *data, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream)
{
    return ncclBroadcast(data, data, count, type, root, comm, stream);
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call(comm, stream, {SEND, in, NULL, count, type, peer, false}, count, 0);
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call(comm, stream, {RECEIVE, NULL, out, count, type, peer, false}, 0, count);
}
#endif
