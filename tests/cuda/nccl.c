/* zf_nccl_comm: the bits of zf_local_new, for every way in which ranks find one another and any
 * kind of memory. A rank that is missing, aborts or fails is an error on all. Programs have the
 * same bits at every stage. Ranks are threads, each with a device of its own: emulated ones, or as
 * many as there are. */
#define _POSIX_C_SOURCE 200809L
#include "../ranks/collective.h"
#include "ranks.h"

#include "../../examples/bert/model.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --------------------------------------------------------------------------------------- the bits
 */

typedef enum where { HOST, DEVICE, STREAM, CAPTURED, WHERES } where;

typedef struct one_call {
    zf_op op;
    zf_dtype dtype;
    int64_t count;
    place place;
    where where;
    int root, channel;
    zf_group group;
    uint64_t seed;
    bool plain;      /* numbers that add up to the same in any order */
    bool may_differ; /* a sum: in its bits, which is counted */
} one_call;

/* Floats of many magnitudes, so that another order of additions has other bits; `plain`: small
 * integers, which add up to the same in any. */
static void fill(void *to, zf_dtype dtype, int64_t count, uint64_t seed, bool plain)
{
    const size_t size = zf_dtype_size(dtype);
    for (int64_t i = 0; i < count; i++) {
        uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i * 0x94d049bb133111ebu;
        double value;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        value = ldexp((double)(int64_t)(x >> 12 | 1) - 0x1p51, (int)(x % 12) - 57);
        if (plain || dtype > ZF_F64) value = (double)(x % 60) - (dtype < ZF_U8 ? 30 : 0);
        if (dtype == ZF_BOOL) value = x % 3 == 0;
        zf_convert((char *)to + (size_t)i * size, dtype, &value, ZF_F64, 1);
    }
}

/* Waits for the stream as a device does: false with the error when the others do not come. */
static bool wait_for(member *m, cudaStream_t stream)
{
    const double start = now();
    cudaError_t code;
    while ((code = cudaStreamQuery(stream)) == cudaErrorNotReady) {
        (void)cudaGetLastError();
        if (m->comm->check(m->comm->self, now() - start, &m->error)) break;
        sched_yield();
    }
    if (code == cudaErrorNotReady) code = cudaStreamSynchronize(stream); /* nothing waits now */
    if (code) snprintf(m->said, sizeof m->said, "%s", cudaGetErrorString(code));
    return !m->error.status && !code;
}

/* Makes the call on a stream, at once or out of a graph. */
static bool on_stream(member *m, zf_collective *c, bool captured)
{
    cudaStream_t stream = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    bool good = !cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    c->stream = stream;
    if (captured) good = good && !cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (good) good = !m->comm->run(m->comm->self, c, &m->error);
    if (captured && cudaStreamEndCapture(stream, &graph)) good = false;
    if (captured && good)
        good = !cudaGraphInstantiate(&exec, graph, 0) && !cudaGraphLaunch(exec, stream);
    good = good && wait_for(m, stream);
    if (exec) cudaGraphExecDestroy(exec);
    if (graph) cudaGraphDestroy(graph);
    if (stream) cudaStreamDestroy(stream);
    return good;
}

/* Makes the call, with out[0..out_bytes) and in from the test, and leaves the result in `out`. If
 * `in` lies inside `out`, it does so on the device too. */
static bool make(member *m, const one_call *k, zf_collective c, unsigned char *in, size_t in_bytes,
                 unsigned char *out, size_t out_bytes)
{
    const bool apart = k->place != IN_PLACE;
    const size_t at = apart ? 0 : (size_t)(in - out);
    unsigned char *din = NULL, *dout = NULL;
    bool good;
    c.in = in, c.out = out;
    if (k->where == HOST) return !m->comm->run(m->comm->self, &c, &m->error);
    good = !cudaMalloc((void **)&dout, out_bytes + 1) &&
           !cudaMemcpy(dout, out, out_bytes, cudaMemcpyHostToDevice);
    if (apart && good)
        good = !cudaMalloc((void **)&din, in_bytes + 1) &&
               !cudaMemcpy(din, in, in_bytes, cudaMemcpyHostToDevice);
    c.in = apart ? din : dout + at, c.out = dout;
    if (good)
        good = k->where == DEVICE ? !m->comm->run(m->comm->self, &c, &m->error)
                                  : on_stream(m, &c, k->where == CAPTURED);
    if (good) good = !cudaMemcpy(out, dout, out_bytes, cudaMemcpyDeviceToHost);
    if (good && apart) good = !cudaMemcpy(in, din, in_bytes, cudaMemcpyDeviceToHost);
    cudaFree(din), cudaFree(dout);
    return good;
}

/* Whether the call gives the same bits as the communicator of the process. */
static bool same(member *m, const one_call *k)
{
    const bool sums = k->op == ZF_OP_reduce_scatter || k->op == ZF_OP_all_reduce ||
                      k->op == ZF_OP_reduce;
    const size_t size = zf_dtype_size(k->dtype), bytes = (size_t)k->count * size,
                 in_bytes = bytes * (k->op == ZF_OP_reduce_scatter || k->op == ZF_OP_all_to_all
                                         ? (size_t)m->world
                                         : 1),
                 out_bytes = bytes * (k->op == ZF_OP_all_gather || k->op == ZF_OP_all_to_all
                                          ? (size_t)m->world
                                          : 1);
    unsigned char *outs[2], *ins[2], *kept = malloc(in_bytes + 1);
    zf_collective c = {.op = k->op,
                       .node = (int32_t)(k->seed % 1000),
                       .channel = k->channel,
                       .dtype = k->dtype,
                       .count = k->count,
                       .add = k->place == ADDED,
                       .tree = sums && k->seed & 1,
                       .root = k->root,
                       .group = k->group};
    zf_status status;
    bool good = false, equal;
    fill(kept, k->dtype, (int64_t)(in_bytes / size), k->seed * 8 + (uint64_t)m->rank, k->plain);
    for (int i = 0; i < 2; i++) {
        outs[i] = malloc(out_bytes + 1);
        ins[i] = k->place != IN_PLACE        ? malloc(in_bytes + 1)
                 : k->op == ZF_OP_all_gather ? outs[i] + bytes * (size_t)m->rank
                                             : outs[i];
        fill(outs[i], k->dtype, (int64_t)(out_bytes / size), k->seed * 8 + 7, k->plain);
        memcpy(ins[i], kept, in_bytes);
    }
    c.in = ins[0], c.out = outs[0];
    status = m->local->run(m->local->self, &c, &m->error);
    if (!status) good = make(m, k, c, ins[1], in_bytes, outs[1], out_bytes);
    equal = !memcmp(outs[0], outs[1], out_bytes);
    if (sums && k->may_differ) m->differ += !equal, equal = true;
    if (good) good = equal && (k->place == IN_PLACE || !memcmp(ins[1], kept, in_bytes));
    if (!good && !m->error.status && !*m->said)
        snprintf(m->said, sizeof m->said,
                 "rank %d of %d: op %d %s count %lld place %d where %d seed %llu", m->rank,
                 m->world, (int)k->op, zf_dtype_name(k->dtype), (long long)k->count, (int)k->place,
                 (int)k->where, (unsigned long long)k->seed);
    if (!good) { /* the others need not wait */
        m->comm->abort(m->comm->self, ZF_ERR_ARGUMENT, "wrong numbers");
        m->local->abort(m->local->self, ZF_ERR_ARGUMENT, "wrong numbers");
    }
    for (int i = 0; i < 2; i++) {
        if (k->place != IN_PLACE) free(ins[i]);
        free(outs[i]);
    }
    free(kept);
    return good;
}

typedef struct sweep {
    zf_dtype dtypes[8];
    int64_t counts[5];
    int dtype_count, count_count, where_first, where_last;
    bool plain, may_differ;
} sweep;

static void sweep_body(member *m)
{
    const sweep *s = m->context;
    one_call k = {.plain = s->plain, .may_differ = s->may_differ};
    for (int d = 0; d < s->dtype_count; d++)
        for (int n = 0; n < s->count_count; n++)
            for (size_t op = 0; op < sizeof ops / sizeof ops[0]; op++)
                for (int p = 0; p < PLACES; p++)
                    for (int w = s->where_first; w <= s->where_last; w++) {
                        k.op = ops[op], k.dtype = s->dtypes[d], k.count = s->counts[n];
                        k.place = (place)p, k.where = (where)w;
                        k.root = (int)(++k.seed % (uint64_t)m->world);
                        k.channel = (int)(k.seed % 3);
                        if (possible(k.op, k.place) && !same(m, &k)) return;
                    }
}

/* In worlds from `least` to `most`; returns how many sums of rank 0 had other bits. */
static long run_sweep(test *t, const sweep *s, const zf_nccl_desc *desc, int least, int most)
{
    long differ = 0;
    const int world_most = ranks(t, most), live = emulation_live();
    for (int world = least; world <= world_most && !t->failed; world++) {
        zf_error error = {ZF_OK, ""};
        member members[MOST];
        zf_nccl_desc d = *desc;
        zf_local *group = zf_local_new(&(zf_local_desc){.world = world}, &error);
        d.id = fresh_id(t);
        emulation_seed((uint64_t)world);
        set_members(members, world, &d, sweep_body, (void *)(uintptr_t)s);
        for (int r = 0; r < world; r++) members[r].local = zf_local_comm(group, r);
        run_well(t, members);
        differ += members[0].differ;
        zf_local_free(group);
    }
    if (emulation_live() != live) test_fail(t, __FILE__, __LINE__, "all is freed", "");
    return differ;
}

/* Calls of all ranks and of groups along both axes of a mesh of 2 nodes, one after the other. */
static void groups_body(member *m)
{
    const int rank = m->rank, world = m->world, local = world / 2;
    const zf_group groups[] = {
        {0, 0, 0}, {rank / local * local, 1, local}, {rank % local, local, 2}};
    uint64_t random = 11;
    bool good = true;
    for (int n = 0; n < 90 && good; n++) {
        one_call k = {.seed = (uint64_t)n, .channel = n % 3, .where = (where)(n / 3 % WHERES)};
        random = random * 6364136223846793005u + 1442695040888963407u;
        k.group = groups[(random >> 33) % 3];
        k.op = ops[(random >> 40) % OPS];
        k.dtype = n % 2 ? ZF_F32 : ZF_BF16;
        k.count = (int64_t)((random >> 45) % (n % 8 ? 300 : 30000)) + 1;
        k.place = possible(k.op, (place)(n % PLACES)) ? (place)(n % PLACES) : APART;
        if (k.group.count) {
            m->rank = (rank - k.group.first) / k.group.stride, m->world = k.group.count;
            k.seed += 1000 * (uint64_t)k.group.first;
        }
        k.root = (int)((random >> 60) % (uint64_t)m->world);
        good = same(m, &k);
        m->rank = rank, m->world = world;
    }
}

/* A call of 3 ranks, or of two rows of two. */
typedef struct counted {
    zf_op op;
    bool rows;
    int64_t count;
} counted;

static void counted_body(member *m)
{
    const counted *of = m->context;
    one_call k = {.op = of->op, .dtype = ZF_F32, .count = of->count, .where = STREAM, .root = 1,
                  .plain = true};
    const int rank = m->rank, world = m->world;
    if (of->rows) k.group = (zf_group){m->rank / 2 * 2, 1, 2}, m->rank %= 2, m->world = 2;
    (void)same(m, &k);
    m->rank = rank, m->world = world;
}

/* Bytes that all ranks send, also to find one another. */
static long sent_by(test *t, counted *of)
{
    const int world = of->rows ? 4 : 3;
    const long before = emulation_sent();
    zf_error error = {ZF_OK, ""};
    member members[MOST];
    zf_nccl_desc d = {.id = fresh_id(t)};
    zf_local *group;
    if (ranks(t, world) < world) return 0;
    group = zf_local_new(&(zf_local_desc){.world = world}, &error);
    set_members(members, world, &d, counted_body, of);
    for (int r = 0; r < world; r++) members[r].local = zf_local_comm(group, r);
    run_well(t, members);
    zf_local_free(group);
    return emulation_sent() - before;
}

/* What ranks send is what plans count: of a sum that one rank gets, the operands of the others. */
TEST_ONCE(nccl_sends_what_plans_count)
{
    for (size_t n = 0; n < 2 * OPS && !t->failed; n++) {
        counted of = {ops[n / 2], n % 2, 3 << 12}, none = {of.op, of.rows, 0};
        const long others = of.rows ? 1 : 2, groups = of.rows ? 2 : 1,
                   parts = of.op == ZF_OP_all_reduce                           ? 2
                           : of.op == ZF_OP_bcast || of.op == ZF_OP_reduce ? 1
                                                                               : others + 1,
                   planned = groups * others * parts * of.count * (long)sizeof(float);
        const long before = emulation_sent(), sent = sent_by(t, &of) - sent_by(t, &none);
        if (before >= 0 && sent != planned)
            test_fail(t, __FILE__, __LINE__, zf_op_name(of.op), of.rows ? "of rows" : "of all");
    }
}

TEST_ONCE(nccl_groups)
{
    for (int world = 4; world <= 6 && !t->failed; world += 2) {
        zf_error error = {ZF_OK, ""};
        member members[MOST];
        zf_nccl_desc d = {.id = fresh_id(t)};
        zf_local *group;
        if (ranks(t, world) < world) return;
        group = zf_local_new(&(zf_local_desc){.world = world}, &error);
        emulation_seed((uint64_t)world);
        set_members(members, world, &d, groups_body, NULL);
        for (int r = 0; r < world; r++) members[r].local = zf_local_comm(group, r);
        run_well(t, members);
        zf_local_free(group);
    }
}

TEST_ONCE(nccl_collectives)
{
    const sweep s = {{ZF_F32, ZF_BF16, ZF_F16, ZF_F64, ZF_I32, ZF_I64, ZF_U8, ZF_BOOL},
                     {0, 1, 7, 300},
                     8,
                     4,
                     STREAM,
                     STREAM,
                     false,
                     false};
    run_sweep(t, &s, &(zf_nccl_desc){.staging_bytes = 2048}, 1, 4);
}

TEST_ONCE(nccl_memory)
{
    const sweep s = {{ZF_BF16, ZF_I64}, {0, 13, 9001}, 2, 3, HOST, CAPTURED, false, false};
    run_sweep(t, &s, &(zf_nccl_desc){.staging_bytes = 8192}, 2, 4);
}

/* More than passes at a time. */
TEST_ONCE(nccl_large_in_host_memory)
{
    const sweep s = {{ZF_F64}, {100003}, 1, 1, HOST, HOST, false, false};
    run_sweep(t, &s, &(zf_nccl_desc){.staging_bytes = 0}, 3, 3);
}

/* NCCL's own sums: right where the order does not matter, and other bits than ours where it does.
 */
TEST_ONCE(nccl_fast)
{
    const sweep plain = {{ZF_F32, ZF_BF16, ZF_F16, ZF_F64, ZF_I32, ZF_I64, ZF_U8, ZF_BOOL},
                         {7, 5003},
                         8,
                         2,
                         STREAM,
                         STREAM,
                         true,
                         false},
                any = {{ZF_F32}, {5003}, 1, 1, STREAM, STREAM, false, true};
    run_sweep(t, &plain, &(zf_nccl_desc){.fast = true}, 3, 3);
    CHECK(t, run_sweep(t, &any, &(zf_nccl_desc){.fast = false}, 3, 3) == 0);
#ifdef EMULATION
    CHECK(t, run_sweep(t, &any, &(zf_nccl_desc){.fast = true}, 3, 3) > 0);
#endif
}

/* ------------------------------------------------------------------------------- finding each
 * other
 */

/* A port that was free a moment ago. */
static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (s < 0 || bind(s, (struct sockaddr *)&at, size) ||
        getsockname(s, (struct sockaddr *)&at, &size))
        at.sin_port = 0;
    close(s);
    return ntohs(at.sin_port);
}

static bool exists(const char *path) { return !access(path, F_OK); }

static void copy_file(test *t, const char *to, const char *from)
{
    char data[4096];
    FILE *f = fopen(from, "rb");
    size_t n = f ? fread(data, 1, sizeof data, f) : 0;
    if (f) fclose(f);
    f = fopen(to, "wb");
    CHECK(t, n && f && fwrite(data, 1, n, f) == n);
    fclose(f);
}

/* The sum of the ranks' numbers, in host memory. */
static zf_status sum_ranks(member *m, int64_t *sum)
{
    const int64_t mine = 1 << (4 * m->rank);
    const zf_collective c = {
        .op = ZF_OP_all_reduce, .node = 7, .dtype = ZF_I64, .count = 1, .in = &mine, .out = sum};
    return m->comm->run(m->comm->self, &c, &m->error);
}

static void sum_body(member *m)
{
    int64_t sum = 0;
    if (!sum_ranks(m, &sum) && sum != ((int64_t)1 << (4 * m->world)) / 15)
        snprintf(m->said, sizeof m->said, "the sum is %lld", (long long)sum);
}

TEST_ONCE(nccl_ranks_meet)
{
    const char *file = test_path("meeting");
    const int world = ranks(t, 3);
    char path[300];
    member members[MOST];
    for (int late = 0; late < world && !t->failed; late++) {
        set_members(members, world, &(zf_nccl_desc){.host = "127.0.0.1", .port = free_port()},
                    sum_body, NULL);
        members[late].late = 0.1;
        run_well(t, members);
        set_members(members, world, &(zf_nccl_desc){.file = file}, sum_body, NULL);
        members[late].late = 0.1;
        run_well(t, members);
        for (int r = 0; r < world; r++) {
            snprintf(path, sizeof path, r ? "%s.%d" : "%s", file, r);
            CHECK(t, !exists(path));
        }
    }
    set_members(members, 1, &(zf_nccl_desc){.host = NULL}, sum_body, NULL);
    run_well(t, members);
}

/* One thread's view of a file that is there for a while. */
typedef struct watch {
    test *t;
    const char *path, *copy;
} watch;

static void *watch_main(void *object)
{
    const watch *w = object;
    for (int i = 0; i < 1000 && !exists(w->path); i++) pause_for(0.002);
    copy_file(w->t, w->copy, w->path);
    return NULL;
}

/* Runs rank `rank` of two alone, which fails; keeps the file that it had at `path` meanwhile. */
static void leave_alone(test *t, int rank, const char *file, const char *path, const char *copy)
{
    member members[MOST];
    pthread_t thread;
    watch w = {t, path, copy};
    set_members(members, 2, &(zf_nccl_desc){.file = file, .deadline_seconds = 0.5}, NULL, NULL);
    members[!rank].absent = true;
    CHECK(t, !pthread_create(&thread, NULL, watch_main, &w));
    run_members(t, members);
    pthread_join(thread, NULL);
    CHECK(t, members[rank].error.status == ZF_ERR_COMM && !exists(path));
}

/* Files left by killed runs are not taken for those of current ranks. */
TEST_ONCE(nccl_old_files)
{
    char file[280], one[300], old[300], old_one[300], text[600];
    member members[MOST];
    snprintf(file, sizeof file, "%s", test_path("old"));
    snprintf(one, sizeof one, "%s.1", file);
    snprintf(old, sizeof old, "%s.kept", file);
    snprintf(old_one, sizeof old_one, "%s.1.kept", file);
    if (ranks(t, 2) < 2) return;
    leave_alone(t, 1, file, one, old_one);
    if (t->failed) return;
    copy_file(t, one, old_one);
    leave_alone(t, 0, file, file, old); /* takes the old rank 1 for one that has come */
    if (t->failed) return;
    copy_file(t, file, old);
    set_members(members, 2, &(zf_nccl_desc){.file = file, .deadline_seconds = 0.5}, NULL, NULL);
    members[0].absent = true;
    run_members(t, members);
    snprintf(text, sizeof text,
             "zf_nccl_comm: rank 0 of 2 did not come within 0.5 s (%s is of an earlier run)", file);
    CHECK_TEXT(t, members[1].error.text, text);
    for (int late = 0; late < 2; late++) {
        copy_file(t, file, old);
        copy_file(t, one, old_one);
        set_members(members, 2, &(zf_nccl_desc){.file = file}, sum_body, NULL);
        members[late].late = 0.1;
        run_well(t, members);
        CHECK(t, !exists(file) && !exists(one));
    }
}

/* A connection from something that is no rank does not keep ranks from meeting (also
 * tests/ranks/rendezvous.c). */
static void *stranger_main(void *object)
{
    const char text[1000] = "GET / HTTP/1.1\r\n";
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t) * (int *)object),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    for (int i = 0; i < 1000 && connect(s, (struct sockaddr *)&at, sizeof at); i++)
        pause_for(0.002);
    if (send(s, text, sizeof text, MSG_NOSIGNAL) > 0) pause_for(0.05);
    close(s);
    return NULL;
}

TEST_ONCE(nccl_strangers)
{
    int port = free_port();
    member members[MOST];
    pthread_t thread;
    if (ranks(t, 2) < 2) return;
    set_members(members, 2, &(zf_nccl_desc){.host = "127.0.0.1", .port = port}, sum_body, NULL);
    members[1].late = 0.2;
    CHECK(t, !pthread_create(&thread, NULL, stranger_main, &port));
    run_well(t, members);
    pthread_join(thread, NULL);
}

/* ---------------------------------------------------------------------------------------- mistakes
 */

TEST_ONCE(nccl_desc_is_checked)
{
    static const char id[ZF_NCCL_ID_BYTES];
    const struct {
        zf_nccl_desc d;
        const char *text;
    } rows[] = {
        {{.world = -1}, "zf_nccl_comm: world is -1; it must be 1 to 16384"},
        {{.rank = 2, .world = 2, .id = id},
         "zf_nccl_comm: rank is 2; in a world of 2 it must be 0 to 1"},
        {{.deadline_seconds = -1},
         "zf_nccl_comm: deadline_seconds is -1; it must be positive and finite, or 0 for 60"},
        {{.world = 4, .id = id, .staging_bytes = 127},
         "zf_nccl_comm: staging_bytes is 127; for a world of 4 it must be 128 to 2^40, or 0 for 32 "
         "MiB"},
        {{.world = 2},
         "zf_nccl_comm: 0 of host, file and id are given; it must be one, by which the ranks find "
         "one another"},
        {{.world = 2, .host = "localhost", .port = 5, .id = id},
         "zf_nccl_comm: 2 of host, file and id are given; it must be one, by which the ranks find "
         "one another"},
        {{.world = 2, .host = "localhost"}, "zf_nccl_comm: port is 0; it must be 1 to 65535"},
        {{.world = 2, .file = ""}, "zf_nccl_comm: file is empty"},
        {{.ctas = 3},
         "zf_nccl_comm: ctas is 3; it must be 1, 2, 4, 8, 16 or 32, or 0 for what fits the device"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        zf_error error = {ZF_OK, ""};
        CHECK(t, !zf_nccl_comm(&rows[k].d, &error) && !zf_nccl_comm(&rows[k].d, NULL));
        CHECK_TEXT(t, error.text, rows[k].text);
        CHECK(t, error.status == ZF_ERR_ARGUMENT);
    }
}

/* All that are not absent fail; the text of each holds one of two. */
static void all_fail(test *t, member *members, zf_status status, const char *text, const char * or)
{
    const int live = emulation_live();
    run_members(t, members);
    emulation_clear();
    for (int r = 0; r < members->world && !t->failed; r++) {
        const char *said = members[r].error.text;
        if (members[r].absent) continue;
        CHECK_TEXT(t, members[r].said, "");
        if (!strstr(said, text) && !(or &&strstr(said, or))) CHECK_TEXT(t, said, text);
        if (! or) CHECK(t, members[r].error.status == status);
        else CHECK(t, members[r].error.status);
    }
    CHECK(t, emulation_live() == live);
}

TEST_ONCE(nccl_rank_does_not_come)
{
    const char *file = test_path("absent");
    const int world = ranks(t, 3);
    char text[300];
    member members[MOST];
    if (world < 3) return;
    for (int absent = 0; absent < world && !t->failed; absent += 2) {
        zf_nccl_desc d = {.host = "127.0.0.1", .port = free_port(), .deadline_seconds = 1.5};
        snprintf(text, sizeof text, "zf_nccl_comm: rank %d of 3 did not come within 1.5 s", absent);
        set_members(members, world, &d, sum_body, NULL);
        members[absent].absent = true;
        all_fail(t, members, ZF_ERR_COMM, text,
                 absent ? "zf_nccl_comm: rank 0 of 3 did not come" : NULL);
        d = (zf_nccl_desc){.file = file, .deadline_seconds = 1.5};
        set_members(members, world, &d, sum_body, NULL);
        members[absent].absent = true;
        all_fail(t, members, ZF_ERR_COMM, text,
                 absent ? "zf_nccl_comm: rank 0 of 3 did not come" : NULL);
        if (!absent) continue;
        d = (zf_nccl_desc){.id = fresh_id(t), .deadline_seconds = 1.5};
        set_members(members, world, &d, sum_body, NULL);
        members[absent].absent = true;
        all_fail(t, members, ZF_ERR_COMM, "zf_nccl_comm: some rank of 3 did not come within 1.5 s",
                 NULL);
    }
}

TEST_ONCE(nccl_ranks_that_do_not_fit)
{
    zf_nccl_desc d = {.host = "127.0.0.1", .port = free_port(), .deadline_seconds = 20};
    member members[MOST];
    if (ranks(t, 2) < 2) return;
    set_members(members, 2, &d, sum_body, NULL);
    members[0].desc.deadline_seconds = 1.5;
    members[1].desc.world = 3;
    all_fail(t, members, ZF_ERR_COMM, "rank 1 came from a world of 3; rank 0 is in one of 2", NULL);
    d.port = free_port();
    set_members(members, 2, &d, sum_body, NULL);
    members[0].desc.deadline_seconds = members[1].desc.deadline_seconds = 1.5;
    members[0].desc.run = "one", members[1].desc.run = "another";
    all_fail(t, members, ZF_ERR_COMM, " (a rank of another run came)",
             " (rank 0 of another run answers there)");
    d.port = free_port();
    set_members(members, 2, &d, sum_body, NULL);
    members[1].desc.staging_bytes = 4096;
    all_fail(t, members, ZF_ERR_ARGUMENT,
             "zf_nccl_comm: fast, staging_bytes or ctas of ranks 0 and 1 are not the same",
             " gave up: ");
    d.port = free_port();
    set_members(members, 2, &d, sum_body, NULL);
    members[1].desc.device = 77;
    all_fail(t, members, ZF_ERR_BACKEND,
             "zf_nccl_comm: device 77: ", "rank 1 gave up: zf_nccl_comm: device 77: ");
    d = (zf_nccl_desc){.host = "no.such.host.invalid", .port = 5, .deadline_seconds = 20};
    set_members(members, 2, &d, sum_body, NULL);
    all_fail(t, members, ZF_ERR_COMM, "zf_nccl_comm: the host 'no.such.host.invalid' is not found",
             NULL);
    d = (zf_nccl_desc){.file = "/no/such/folder/file", .deadline_seconds = 0.2};
    set_members(members, 2, &d, sum_body, NULL);
    all_fail(t, members, ZF_ERR_IO,
             "zf_nccl_comm: /no/such/folder/file.1 cannot be written: No such file or directory",
             "zf_nccl_comm: rank 1 of 2 did not come");
}

/* ------------------------------------------------------------------------------------------ faults
 */

enum { FLOATS = 50 };

/* An all_gather that the last rank does not come to: of all ranks, or of pairs, which the others
 * repeat until it fails. */
typedef struct fault {
    where where;
    bool pairs;
    int silent;   /* what the last rank does: */
    long waiting; /* ranks that have not failed yet */
    pthread_mutex_t mutex;
} fault;

enum { NOTHING, ABORTS, DISK_FAILS, LEAVES, OTHER_COUNT, BAD_ROOT };

static void count_waiting(fault *f, long by)
{
    pthread_mutex_lock(&f->mutex);
    f->waiting += by;
    pthread_mutex_unlock(&f->mutex);
}

static bool any_waiting(fault *f)
{
    bool any;
    pthread_mutex_lock(&f->mutex);
    any = f->waiting > 0;
    pthread_mutex_unlock(&f->mutex);
    return any;
}

static zf_status gather(member *m, const fault *f, int64_t count)
{
    float in[FLOATS] = {0}, out[MOST * FLOATS];
    zf_collective c = {.op = ZF_OP_all_gather, .node = 59, .dtype = ZF_F32, .count = count};
    const one_call k = {.where = f->where};
    if (f->pairs) c.group = (zf_group){m->rank / 2 * 2, 1, 2};
    make(m, &k, c, (unsigned char *)in, (size_t)count * 4, (unsigned char *)out,
         (size_t)count * 4 * (size_t)m->world);
    return m->error.status;
}

static void fault_body(member *m)
{
    fault *f = m->context;
    int64_t sum;
    const zf_collective bad = {
        .op = ZF_OP_bcast, .node = 5, .dtype = ZF_F32, .count = 1, .in = f, .out = f, .root = 7};
    if (sum_ranks(m, &sum)) return;
    if (m->rank < m->world - 1) {
        zf_error again = {ZF_OK, ""};
        zf_collective c = {.op = ZF_OP_all_gather, .dtype = ZF_F32};
        while (!gather(m, f, FLOATS) && f->pairs) {
        }
        count_waiting(f, -1);
        if (m->comm->run(m->comm->self, &c, &again) != m->error.status ||
            strcmp(again.text, m->error.text))
            snprintf(m->said, sizeof m->said, "then: %s", again.text);
        if (m->comm->check(m->comm->self, 0, NULL) != m->error.status)
            snprintf(m->said, sizeof m->said, "it is not known any more");
        return;
    }
    if (f->silent == NOTHING)
        while (any_waiting(f)) pause_for(0.01);
    pause_for(0.05);
    if (f->silent == ABORTS) m->comm->abort(m->comm->self, ZF_ERR_BACKEND, "out of paper");
    if (f->silent == DISK_FAILS) m->comm->abort(m->comm->self, ZF_ERR_IO, "out of paper");
    if (f->silent == BAD_ROOT) m->comm->run(m->comm->self, &bad, &m->error);
    else if (f->silent != LEAVES && !(f->silent == NOTHING && m->desc.id))
        gather(m, f, FLOATS - 1);
    else m->absent = true; /* it has not heard */
}

/* The last of three ranks, or of two pairs, is at fault; the errors of the others hold one of two
 * texts. */
static void faulty(test *t, const zf_nccl_desc *desc, bool pairs, int silent, where on,
                   const char *text, const char * or)
{
    const int world = pairs ? 4 : 3;
    fault f = {.where = on, .pairs = pairs, .silent = silent, .waiting = world - 1};
    member members[MOST];
    zf_nccl_desc d = *desc;
    if (d.host) d.port = free_port();
    if (!d.host && !d.file) d.id = fresh_id(t);
    if (d.id || silent == NOTHING || silent == LEAVES) d.deadline_seconds = 2;
    pthread_mutex_init(&f.mutex, NULL);
    set_members(members, world, &d, fault_body, &f);
    all_fail(t, members, silent == DISK_FAILS ? ZF_ERR_IO : ZF_ERR_COMM, text, or);
    pthread_mutex_destroy(&f.mutex);
}

TEST_ONCE(nccl_faults)
{
    const zf_nccl_desc ways[] = {
        {.host = "127.0.0.1"}, {.file = test_path("faults")}, {.host = NULL}};
    const char *bad = "bcast %5: root 7 is no rank of a world of 3";
    if (ranks(t, 3) < 3) return;
    for (int way = 0; way < 3 && !t->failed; way++)
        for (int stream = 0; stream < 2 && !t->failed; stream++) {
            const zf_nccl_desc *d = &ways[way];
            const where on = !stream ? HOST : way ? CAPTURED : STREAM;
            const char *missing = way ? "all_gather %59: some rank of 3 did not come within 2 s"
                                      : "all_gather %59: rank 2 of 3 did not come within 2 s",
                       *gave_up = "rank 2 gave up: out of paper";
            if (!way || stream == way - 1) faulty(t, d, false, NOTHING, on, missing, NULL);
            if (!t->failed && way < 2) faulty(t, d, false, ABORTS, on, gave_up, NULL);
            if (!t->failed && way < 2) faulty(t, d, false, DISK_FAILS, on, gave_up, NULL);
            if (!t->failed && way == 2 && stream) faulty(t, d, false, ABORTS, on, missing, gave_up);
            if (!t->failed && !way && stream) faulty(t, d, false, LEAVES, on, missing, NULL);
            if (!t->failed && way < 2) faulty(t, d, false, BAD_ROOT, on, bad, bad);
            if (!t->failed && !stream)
                faulty(t, d, false, OTHER_COUNT, on,
                       "rank 0 is at all_gather %59 of 50 f32, rank 2 at all_gather %59 of 49 f32",
                       NULL);
        }
}

/* The last rank is missed by its group, which says so; ranks of other groups end with that too. */
TEST_ONCE(nccl_faults_of_groups)
{
    const zf_nccl_desc d = {.host = "127.0.0.1"};
    const char *missing = "all_gather %59 over ranks 2, 3: rank 3 of 4 did not come within 2 s";
    if (ranks(t, 4) < 4) return;
    for (int captured = 0; captured < 2 && !t->failed; captured++) {
        const where on = captured ? CAPTURED : HOST;
        faulty(t, &d, true, NOTHING, on, missing, NULL);
        if (!t->failed && captured) faulty(t, &d, true, LEAVES, on, missing, NULL);
        if (!t->failed) faulty(t, &d, true, ABORTS, on, "rank 3 gave up: out of paper", NULL);
    }
    if (!t->failed)
        faulty(t, &d, true, OTHER_COUNT, HOST,
               "rank 2 is at all_gather %59 over ranks 2, 3 of 50 f32, rank 3 at all_gather %59 "
               "over ranks 2, 3 of 49 f32",
               NULL);
}

#ifdef EMULATION
static void memory_body(member *m)
{
    const size_t bytes = 4 * ((8192 + (2 << 20)) + (size_t)EMULATION_NCCL_BYTES);
    if (m->comm->memory != bytes)
        snprintf(m->said, sizeof m->said, "it has %zu bytes, not %zu", m->comm->memory, bytes);
}

/* It allocates on the device at once, and reports how much; its kernels are limited. */
TEST_ONCE(nccl_takes_of_the_device)
{
    zf_nccl_desc d = {.host = "127.0.0.1", .port = free_port(), .staging_bytes = 8192};
    member members[MOST];
    const int world = ranks(t, 3);
    set_members(members, world, &d, memory_body, NULL);
    run_well(t, members);
    d.port = free_port(), d.ctas = 2, d.deadline_seconds = 20;
    set_members(members, world, &d, memory_body, NULL);
    all_fail(t, members, ZF_ERR_ARGUMENT,
             "zf_nccl_comm: ctas is 2; those of 4 channels must fit on the 2 multiprocessors of "
             "device ",
             " gave up: ");
}

/* Errors of NCCL, or of the device, on all ranks. */
TEST_ONCE(nccl_errors_of_libraries)
{
    static const struct {
        const char *function;
        int after, code;
        zf_status status;
        const char *text;
    } rows[] = {
        {"ncclCommInitRank", 0, ncclSystemError, ZF_ERR_COMM,
         "zf_nccl_comm: NCCL: unhandled system error"},
        {"ncclCommGetAsyncError", 0, ncclRemoteError, ZF_ERR_COMM,
         "zf_nccl_comm: NCCL: remote process exited or there was a network error"},
        {"ncclAllGather", 12, ncclInternalError, ZF_ERR_COMM, "all_reduce %7: NCCL: internal error"},
        {"cudaMalloc", 4, cudaErrorMemoryAllocation, ZF_ERR_NOMEM,
         "zf_nccl_comm: memory and streams of the device: "},
        {"launch", 0, cudaErrorLaunchFailure, ZF_ERR_BACKEND, "all_reduce %7: zf_cuda_add_ranks: "},
    };
    if (ranks(t, 3) < 3) return;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0] && !t->failed; k++) {
        member members[MOST];
        zf_nccl_desc d = {.host = "127.0.0.1", .port = free_port(), .deadline_seconds = 20};
        set_members(members, 3, &d, sum_body, NULL);
        emulation_refuse(rows[k].function, rows[k].after, rows[k].code);
        all_fail(t, members, rows[k].status, rows[k].text, " gave up: ");
        emulation_refuse(NULL, 0, 0);
    }
}
#endif

/* ---------------------------------------------------------------------------------------- programs
 */

#if defined(__SANITIZE_ADDRESS__)
enum { STEPS = 4 }; /* as they are made in same_at_every_stage, the last one once more */
#else
enum { STEPS = 5 };
#endif
enum { SEQUENCE = 8, LABELS = 2, MICRO = 2, VOCABULARY = 37, NUMBERS = 1 << 14 };

/* The training of a two-layer BERT; each rank keeps its results. */
typedef struct course {
    int32_t stage;
    zf_dtype dtype;
    bool cpu, fast, onebit;
    bool gradients, weights; /* quantised, of two nodes */
    bool loco;               /* gradients with error feedback */
    int steps, stops; /* steps that the last rank makes, if fewer */
    int spoiled;      /* steps before the one in which the last rank has an invalid label */
    float values[MOST][NUMBERS];
    size_t count[MOST];
    double loss[MOST];
} course;

static bool well(member *m, zf_status status, const char *text)
{
    if (status && !m->error.status) {
        m->error.status = status;
        snprintf(m->error.text, sizeof m->error.text, "%s", text);
    }
    return !status;
}

/* Any part of the global batch: the same for whoever runs it. */
static bool feed(member *m, zf_program *p, const bert_model *b, int64_t slot, bool spoiled)
{
    const float weight = 1.0f / (LABELS * MICRO * (float)m->world),
                pair = 1.0f / (MICRO * (float)m->world), lr = 0.01f;
    int32_t ids[SEQUENCE], types[SEQUENCE], at[LABELS], labels[LABELS], next = (int32_t)(slot % 2);
    uint8_t mask[SEQUENCE];
    zf_status s = ZF_OK;
    for (int i = 0; i < SEQUENCE; i++) {
        ids[i] = (int32_t)((slot * 7 + i * 5 + 3) % VOCABULARY);
        types[i] = i > 4;
        mask[i] = i < 7 - slot % 2;
    }
    for (int i = 0; i < LABELS; i++) {
        at[i] = 1 + 3 * i;
        labels[i] = (int32_t)((slot * 3 + i * 11) % VOCABULARY);
    }
    if (spoiled) labels[1] = VOCABULARY;
    if (!s) s = zf_write(p, b->input_ids, ids, sizeof ids);
    if (!s) s = zf_write(p, b->token_type_ids, types, sizeof types);
    if (!s) s = zf_write(p, b->attention_mask, mask, sizeof mask);
    if (!s) s = zf_write(p, b->positions, at, sizeof at);
    if (!s) s = zf_write(p, b->labels, labels, sizeof labels);
    if (!s) s = zf_write(p, b->next_sentence_label, &next, sizeof next);
    if (!s) s = zf_write(p, b->mlm_weight, &weight, sizeof weight);
    if (!s) s = zf_write(p, b->nsp_weight, &pair, sizeof pair);
    if (!s) s = zf_write(p, b->lr, &lr, sizeof lr);
    return well(m, s, zf_program_error(p));
}

static bool train(member *m, zf_program *p, const bert_model *b, const course *c)
{
    const int steps = c->stops && m->rank == m->world - 1 ? c->stops : c->steps;
    for (int step = 0; step < steps; step++)
        for (int micro = 0; micro < MICRO; micro++) {
            const int64_t slot = (int64_t)(step * MICRO + micro) * m->world + m->rank;
            const bool spoiled = c->spoiled && c->spoiled == step && m->rank == m->world - 1;
            zf_status status;
            if (!feed(m, p, b, slot, spoiled)) return false;
            status = micro < MICRO - 1 ? zf_micro(p) : zf_step(p);
            if (!well(m, status, zf_program_error(p))) return false;
        }
    return true;
}

/* Parameters and the last loss. */
static void keep(member *m, zf_graph *g, zf_program *p, const bert_model *b, course *c)
{
    float loss = 0;
    for (int32_t i = 0; i < zf_param_count(g); i++) {
        const zf_tensor x = zf_param_at(g, i);
        const size_t n = zf_tensor_bytes(x) / zf_dtype_size(zf_tensor_dtype(x));
        if (c->count[m->rank] + n > NUMBERS) {
            snprintf(m->said, sizeof m->said, "there is no room for the parameters");
            return;
        }
        if (!well(m, zf_read(p, x, &c->values[m->rank][c->count[m->rank]], zf_tensor_bytes(x)),
                  zf_program_error(p)))
            return;
        c->count[m->rank] += n;
    }
    well(m, zf_read(p, b->loss, &loss, sizeof loss), zf_program_error(p));
    c->loss[m->rank] = loss;
}

/* The graph of a variant of the step, and the model in it. */
static zf_graph *course_graph(const member *m, const course *c, int32_t variant,
                              const zf_store *store, bert_model *model)
{
    const bert_config config = {.vocab = VOCABULARY,
                                .hidden = 16,
                                .layers = 2,
                                .heads = 2,
                                .intermediate = 32,
                                .positions = SEQUENCE,
                                .types = 2,
                                .eps = 1e-12,
                                .dropout = 0.1,
                                .attention_dropout = 0.1,
                                .std = 0.1,
                                .pad = -1,
                                .tied = 1,
                                .nsp = 1};
    zf_graph *g = zf_graph_new(NULL);
    bert_model b =
        bert_build(g, &config,
                   &(sample_shape){.batch = 1, .sequence = SEQUENCE, .predictions = LABELS}, false);
    zf_fuse(g, NULL);
    zf_precision(g, &(zf_precision_desc){.dtype = c->dtype});
    zf_autograd(g, b.loss);
    zf_clip(g, 1);
    if (c->onebit)
        zf_onebit_lamb(g, b.lr, &(zf_onebit_lamb_desc){.weight_decay = 0.01, .variant = variant});
    else zf_adamw(g, b.lr, &(zf_adamw_desc){.weight_decay = 0.01f});
    zf_fuse(g, NULL);
    zf_zero(
        g, &(zf_zero_desc){.stage = c->stage,
                           .world = m->world,
                           .nodes = c->gradients ? 2 : 1,
                           .hpz = c->weights,
                           .quantized_weights = c->weights,
                           .quantized_gradients = c->gradients,
                           .loco = c->loco,
                           .micro_batches = MICRO,
                           .bucket_bytes = 4096,
                           .store = store});
    zf_prefetch(g, &(zf_training){.prefetch = {.bytes = 1 << 20}});
    b.loss = zf_graph_find(g, "loss"); /* of the global batch */
    *model = b;
    return g;
}

/* The steps of 1-bit LAMB's warm-up, and then as many compressed ones. */
static void course_body(member *m)
{
    course *c = m->context;
    bert_model b, compressed;
    zf_graph *g = course_graph(m, c, 0, NULL, &b), *other = NULL;
    zf_backend *backend = c->cpu ? zf_cpu_backend(NULL, &m->error)
                                 : zf_cuda_backend(&(zf_cuda_desc){.device = m->rank}, &m->error);
    zf_program *p = NULL, *then = NULL;
    if (backend)
        p = zf_compile(g, &(zf_compile_desc){.backend = backend,
                                             .seed = 11,
                                             .comm = c->cpu ? m->local : m->comm,
                                             .verify = true});
    if (!p) well(m, zf_graph_status(g), zf_graph_error(g));
    if (p && c->onebit) {
        other = course_graph(m, c, 1, zf_program_store(p), &compressed);
        then = zf_compile(other, &(zf_compile_desc){.store = zf_program_store(p),
                                                    .comm = c->cpu ? m->local : m->comm,
                                                    .verify = true});
        if (!then) well(m, zf_graph_status(other), zf_graph_error(other));
    }
    if (p && train(m, p, &b, c) && (!then || train(m, then, &compressed, c)) && !c->stops)
        keep(m, then ? other : g, then ? then : p, then ? &compressed : &b, c);
    if (c->stops && m->error.status && (!zf_micro(p) || strcmp(zf_program_error(p), m->error.text)))
        snprintf(m->said, sizeof m->said, "then: %s", zf_program_error(p));
    if (p && zf_program_info_of(p).comm_bytes != (c->cpu ? 0 : m->comm->memory))
        snprintf(m->said, sizeof m->said, "the communicator's bytes are not those of the program");
    zf_program_free(then);
    zf_program_free(p);
    zf_graph_free(other);
    zf_graph_free(g);
    zf_backend_free(backend);
}

/* A course of four ranks; false where it went wrong. */
static bool run_course(test *t, course *c)
{
    zf_error error = {ZF_OK, ""};
    member members[MOST];
    zf_local *group = zf_local_new(&(zf_local_desc){.world = MOST}, &error);
    const zf_nccl_desc d = {
        .host = "127.0.0.1", .port = free_port(), .fast = c->fast, .staging_bytes = 4096};
    memset(c->count, 0, sizeof c->count);
    set_members(members, MOST, &d, course_body, c);
    for (int r = 0; r < MOST; r++) members[r].local = zf_local_comm(group, r);
    run_well(t, members);
    zf_local_free(group);
    for (int r = 1; r < MOST && !t->failed; r++)
        if (c->count[r] != c->count[0] || c->loss[r] != c->loss[0] ||
            memcmp(c->values[r], c->values[0], c->count[0] * sizeof *c->values[0]))
            test_fail(t, __FILE__, __LINE__, "all ranks have the same", "");
    return !t->failed;
}

/* A step is made three times: launch by launch, as it is captured, and out of graphs. */
static void same_at_every_stage(test *t, zf_dtype dtype)
{
    static course first, other;
    if (ranks(t, MOST) < MOST) return;
    for (int32_t stage = 0; stage < 4; stage++) {
        if (stage && (stage + (int32_t)dtype) % TEST_ONE_IN) continue;
        course *c = stage ? &other : &first;
        *c = (course){.stage = stage, .dtype = dtype, .steps = STEPS};
        emulation_seed((uint64_t)stage + 5);
        if (!run_course(t, c)) return;
        CHECK(t, c->count[0] > 1000 && c->count[0] == first.count[0]);
        CHECK(t, !memcmp(c->values[0], first.values[0], c->count[0] * sizeof *c->values[0]));
        CHECK(t, c->loss[0] == first.loss[0]);
    }
    other = (course){.stage = 3, .dtype = dtype, .steps = STEPS, .cpu = true};
    if (!run_course(t, &other)) return;
    CHECK_NEAR(t, first.loss[0], other.loss[0], (dtype == ZF_F32 ? 1e-4 : 2e-2) * other.loss[0]);
}

TEST_ONCE(nccl_stages_have_the_same_bits) { same_at_every_stage(t, ZF_F32); }
TEST_ONCE(nccl_stages_have_the_same_bits_in_bf16) { same_at_every_stage(t, ZF_BF16); }

/* With quantised gradients and error feedback too, and near the CPU with quantised parameters. */
TEST_ONCE(nccl_quantized_has_the_same_bits)
{
    static course first, other;
    if (ranks(t, MOST) < MOST) return;
    first = (course){
        .stage = 1, .dtype = ZF_F32, .steps = 2, .gradients = true, .loco = true};
    other = first, other.stage = 3;
    if (!run_course(t, &first) || !run_course(t, &other)) return;
    CHECK(t, first.count[0] > 1000 && first.count[0] == other.count[0]);
    CHECK(t, !memcmp(first.values[0], other.values[0], first.count[0] * sizeof *first.values[0]));
    CHECK(t, first.loss[0] == other.loss[0]);
    first = other, first.weights = other.weights = other.cpu = true;
    if (!run_course(t, &first) || !run_course(t, &other)) return;
    CHECK_NEAR(t, first.loss[0], other.loss[0], 2e-2 * other.loss[0]);
}

/* 1-bit LAMB, its warm-up and compressed steps. */
TEST_ONCE(nccl_onebit_has_the_same_bits)
{
    static course first, other;
    if (ranks(t, MOST) < MOST) return;
    first = (course){.stage = 0, .dtype = ZF_F32, .steps = 2, .onebit = true};
    other = first, other.stage = 2;
    if (!run_course(t, &first) || !run_course(t, &other)) return;
    CHECK(t, first.count[0] > 1000 && first.count[0] == other.count[0]);
    CHECK(t, !memcmp(first.values[0], other.values[0], first.count[0] * sizeof *first.values[0]));
    CHECK(t, first.loss[0] == other.loss[0]);
    other.cpu = true;
    if (!run_course(t, &other)) return;
    CHECK_NEAR(t, first.loss[0], other.loss[0], 1e-3 * other.loss[0]);
}

/* A rank stops while the others run graphs: they end with an error that names the call, and remain
 * failed. */
TEST_ONCE(nccl_rank_stops)
{
    static course c;
    const zf_nccl_desc d = {.host = "127.0.0.1", .port = free_port(), .deadline_seconds = 6};
    member members[MOST];
    if (ranks(t, MOST) < MOST) return;
    c = (course){.stage = 3, .dtype = ZF_F32, .steps = 5, .stops = 3};
    set_members(members, MOST, &d, course_body, &c);
    run_members(t, members);
    emulation_clear();
    CHECK(t, !members[3].error.status);
    for (int r = 0; r < 3; r++) {
        CHECK_TEXT(t, members[r].said, "");
        CHECK(t, members[r].error.status == ZF_ERR_COMM);
        CHECK(t, strstr(members[r].error.text, "all_gather %"));
        CHECK(t, strstr(members[r].error.text, "rank 3 of 4 did not come within 6 s"));
    }
}

/* A rank fails while all run graphs: they end with its error. */
TEST_ONCE(nccl_rank_has_a_bad_label)
{
    static course c;
    const zf_nccl_desc d = {.host = "127.0.0.1", .port = free_port()};
    const int live = emulation_live();
    member members[MOST];
    if (ranks(t, MOST) < MOST) return;
    c = (course){.stage = 2, .dtype = ZF_F32, .steps = 5, .spoiled = 3};
    set_members(members, MOST, &d, course_body, &c);
    run_members(t, members);
    for (int r = 0; r < MOST; r++) {
        CHECK_TEXT(t, members[r].said, "");
        CHECK(t, members[r].error.status == (r < MOST - 1 ? ZF_ERR_COMM : ZF_ERR_ARGUMENT));
        CHECK(t, r == MOST - 1 || strstr(members[r].error.text, "rank 3 gave up: "));
        CHECK(t, strstr(members[r].error.text, "the label of row 1 is 37; it must be at least 0"));
    }
    CHECK(t, emulation_live() == live);
}
