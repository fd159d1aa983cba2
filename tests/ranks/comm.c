/* Communicators: sums in rank order; ranks as threads of this process exchange the right data in
 * any world; and when one fails, all get the same error. */
#define _POSIX_C_SOURCE 200809L
#include "collective.h"

#include <pthread.h>
#include <time.h>

/* The same on every machine: element i of rank `rank` in case `seed`. Floats of many magnitudes, so
 * that another order of additions has other bits; integers whose sums fit a byte. */
static double element(uint64_t seed, int rank, int64_t i, zf_dtype dtype)
{
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xbf58476d1ce4e5b9u +
                 (uint64_t)i * 0x94d049bb133111ebu;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 29) * 0x94d049bb133111ebu;
    x ^= x >> 32;
    switch (dtype) {
    case ZF_I32:
    case ZF_I64: return (double)(int64_t)(x % 2001) - 1000;
    case ZF_U8: return (double)(x % 16);
    case ZF_BOOL: return (double)(x % 8 == 0);
    default: return ldexp((double)(int64_t)(x >> 12 | 1) - 0x1p51, (int)(x % 12) - 57);
    }
}

static void set(void *data, zf_dtype dtype, int64_t i, double value)
{
    if (dtype == ZF_F32) ((float *)data)[i] = (float)value;
    else if (dtype == ZF_F64) ((double *)data)[i] = value;
    else zf_convert((char *)data + (size_t)i * zf_dtype_size(dtype), dtype, &value, ZF_F64, 1);
}

static double get(const void *data, zf_dtype dtype, int64_t i)
{
    double value;
    if (dtype == ZF_F32) return ((const float *)data)[i];
    if (dtype == ZF_F64) return ((const double *)data)[i];
    zf_convert(&value, ZF_F64, (const char *)data + (size_t)i * zf_dtype_size(dtype), dtype, 1);
    return value;
}

/* The definition of a sum: terms left to right, in f32 (f64 for f64, integers for integers),
 * rounded once. */
static double sum_of(zf_dtype dtype, const double *terms, int count)
{
    float single = (float)terms[0];
    double sum = terms[0];
    for (int k = 1; k < count; k++) sum += terms[k], single += (float)terms[k];
    return dtype == ZF_F32 || dtype == ZF_BF16 || dtype == ZF_F16 ? single : sum;
}

/* The same by a balanced tree, a level after the other. */
static double tree_of(zf_dtype dtype, const double *terms, int count)
{
    double level[16];
    memcpy(level, terms, (size_t)count * sizeof *terms);
    for (int left; count > 1; count = left) {
        left = 0;
        for (int k = 0; k < count; k += 2)
            level[left++] = k + 1 < count ? sum_of(dtype, level + k, 2) : level[k];
    }
    return level[0];
}

/* The sum of `old`, if there is one, and of what the ranks have: in order, or by trees of `run`. */
static double added(zf_dtype dtype, int run, const double *old, const double *terms, int count)
{
    double all[16];
    int n = 0;
    if (old) all[n++] = *old;
    for (int r = 0; r < count && run; r += run) all[n++] = tree_of(dtype, terms + r, run);
    if (!run) memcpy(all + n, terms, (size_t)count * sizeof *terms), n += count;
    return sum_of(dtype, all, n);
}

/* ------------------------------------------------------------------------------------ additions */

enum { MOST_PARTS = 8, MOST_COUNT = 2500 };

/* Every dtype; lengths around the ends of vectors and tiles; out separate, added to, or one of the
 * parts. run: of ranks that are a tree; 0: there are none. */
static void sums_are_in_order(test *t, zf_dtype dtype, int64_t count, int world, int run)
{
    static double room[MOST_PARTS + 2][MOST_COUNT];
    const size_t size = zf_dtype_size(dtype);
    for (int mode = -2; mode < world; mode++) { /* -2: apart, -1: added to, else out is a part */
        const void *parts[MOST_PARTS];
        void *out = mode < 0 ? room[world] : room[mode], *want = room[world + 1];
        int orders = 0;
        for (int r = 0; r <= world; r++)
            for (int64_t i = 0; i < count; i++) set(room[r], dtype, i, element(1, r, i, dtype));
        for (int r = 0; r < world; r++) parts[r] = room[r];
        for (int64_t i = 0; i < count; i++) {
            double terms[MOST_PARTS], reversed[MOST_PARTS], old = get(room[world], dtype, i);
            const double *onto = mode == -1 ? &old : NULL;
            for (int r = 0; r < world; r++) terms[r] = get(room[r], dtype, i);
            for (int r = 0; r < world; r++) reversed[r] = terms[world - 1 - r];
            set(want, dtype, i, added(dtype, run, onto, terms, world));
            orders += added(dtype, run, onto, terms, world) !=
                      added(dtype, 0, onto, run ? terms : reversed, world);
        }
        if (!run) zf_add_ranks(out, parts, world, count, dtype, mode == -1);
        else if (run == world) zf_add_ranks_by_tree(out, parts, world, count, dtype, mode == -1);
        else zf_add_ranks_by_trees(out, parts, world, run, count, dtype, mode == -1);
        CHECK(t, !memcmp(out, want, (size_t)count * size));
        if ((dtype == ZF_F32 || dtype == ZF_F64) && world > 2 + (run > 0) && count > 30)
            CHECK(t, orders > 0);
    }
}

/* In the order of ranks, by a tree, and by trees of two ranks. */
TEST_ONCE(comm_sums_are_in_order)
{
    static const int64_t counts[] = {0, 1, 7, 8, 31, 1023, 1024, 1025, MOST_COUNT};
    for (int dtype = ZF_F32; dtype <= ZF_BOOL && !t->failed; dtype++)
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
            for (int world = 1; world <= MOST_PARTS && !t->failed; world += world < 4 ? 1 : 2)
                for (int runs = 0; runs < 3; runs++) /* none, one, several */
                    if (runs < 2 || (world > 2 && world % 2 == 0))
                        sums_are_in_order(t, (zf_dtype)dtype, counts[k], world,
                                          runs == 2 ? 2 : runs * world);
}

/* By hand: the effect of order, precision and rounding on a few numbers. */
TEST(comm_sums_by_hand)
{
    static const struct {
        zf_dtype dtype;
        double terms[5], want;
    } rows[] = {
        {ZF_F32, {1e8, 1, -1e8, 1, 0}, 1}, /* 1e8 + 1 is 1e8; from the right it is 2 */
        {ZF_F32, {1, -1e8, 1e8, 1, 0}, 1}, /* 1 - 1e8 is -1e8 */
        {ZF_F32, {1, 1, -1e8, 1e8, 0}, 0},
        {ZF_F64, {1e17, 1, -1e17, 1, 0}, 1},
        {ZF_F64, {1, 0x1p-40, 0, 0, 0}, 1 + 0x1p-40},
        {ZF_BF16, {1, 0x1p-9, 0x1p-9, 0x1p-9, 0x1p-9}, 1 + 0x1p-7}, /* rounded once */
        {ZF_BF16, {0x1p30, 1, -0x1p30, 1, 0}, 1},
        {ZF_F16, {1, 0x1p-12, 0x1p-12, 0x1p-12, 0x1p-12}, 1 + 0x1p-10},
        {ZF_F16, {60000, 60000, -60000, 0, 0}, 60000}, /* no f16 in between */
        {ZF_I32, {2147483647, -5, -1, 0, 0}, 2147483641},
        {ZF_I64, {0x1p53, 2, -0x1p53, 0, 0}, 2},
        {ZF_U8, {100, 100, 50, 5, 0}, 255},
        {ZF_BOOL, {0, 1, 1, 0, 0}, 1},
        {ZF_F32, {-0.0, -0.0, -0.0, -0.0, -0.0}, -0.0},
        {ZF_F64, {-0.0, -0.0, -0.0, -0.0, -0.0}, -0.0},
        {ZF_BF16, {-0.0, -0.0, -0.0, -0.0, -0.0}, -0.0},
        {ZF_F16, {-0.0, -0.0, -0.0, -0.0, -0.0}, -0.0},
        {ZF_F32, {-0.0, -0.0, 0.0, -0.0, -0.0}, 0.0},
        {ZF_F32, {1, INFINITY, 1, -INFINITY, 1}, NAN},
        {ZF_BF16, {1, NAN, 1, 1, 1}, NAN},
        {ZF_F16, {1, NAN, 1, 1, 1}, NAN},
        {ZF_F64, {1, 1, 1, 1, NAN}, NAN},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++)
        for (int add = 0; add < 2; add++) {
            double terms[5], out = 0, got; /* of 8 bytes: room for any dtype */
            const void *parts[5];
            for (int r = 0; r < 5; r++) {
                set(&terms[r], rows[k].dtype, 0, rows[k].terms[r]);
                parts[r] = &terms[r];
            }
            if (add) set(&out, rows[k].dtype, 0, rows[k].terms[0]);
            zf_add_ranks(&out, parts + add, 5 - add, 1, rows[k].dtype, add);
            got = get(&out, rows[k].dtype, 0);
            CHECK(t, isnan(rows[k].want) ? isnan(got) : got == rows[k].want);
            CHECK(t, isnan(got) || signbit(got) == signbit(rows[k].want));
        }
}

/* A NaN stays where it is, also in the middle of a vector. */
TEST(comm_nan_stays_in_its_element)
{
    float a[40], b[40];
    const void *parts[] = {a, b};
    for (int at = 0; at < 40; at++) {
        for (int i = 0; i < 40; i++) a[i] = (float)i, b[i] = 1;
        b[at] = NAN;
        zf_add_ranks(a, parts, 2, 40, ZF_F32, false);
        for (int i = 0; i < 40; i++) CHECK(t, i == at ? isnan(a[i]) : a[i] == (float)(i + 1));
    }
}

/* ---------------------------------------------------------------------------------- rank threads
 */

enum { MOST_RANKS = 8 };

typedef struct member member;
typedef void member_body(member *);

/* One thread of one rank. It reports a mistake in `said`. */
struct member {
    zf_comm *comm;
    int rank, world, channel; /* of the group, if it is one */
    zf_group group;
    void *context;
    member_body *body;
    pthread_t thread;
    zf_error error; /* of the call that failed */
    char said[600];
    long done; /* calls that were well */
};

static void *member_main(void *m)
{
    ((member *)m)->body(m);
    return NULL;
}

/* Runs the body on `count` threads; that of rank r has members[r]. With channels, on as many
 * threads for each rank. */
static void run_members(test *t, zf_local *group, int world, int channels, member_body *body,
                        void *context, member *members)
{
    int started = 0;
    for (; started < world * channels; started++) {
        member *m = &members[started];
        *m = (member){.comm = zf_local_comm(group, started % world),
                      .rank = started % world,
                      .world = world,
                      .channel = started / world,
                      .context = context,
                      .body = body};
        if (pthread_create(&m->thread, NULL, member_main, m)) break;
    }
    for (int k = 0; k < started; k++) pthread_join(members[k].thread, NULL);
    CHECK(t, started == world * channels);
}

/* All threads were content. */
static void check_members(test *t, const member *members, int count)
{
    for (int k = 0; k < count; k++) CHECK_TEXT(t, members[k].said, "");
}

static zf_status call(member *m, const zf_collective *c)
{
    zf_status status = m->comm->run(m->comm->self, c, &m->error);
    if (!status) m->done++;
    return status;
}

/* ----------------------------------------------------------------------------------- collectives
 */

typedef struct one_call {
    zf_op op;
    zf_dtype dtype;
    int64_t count;
    place place;
    int root;
    uint64_t seed;
} one_call;

/* Half of the sums are made by a tree. */
static bool is_by_tree(const one_call *c)
{
    return (c->op == ZF_OP_reduce_scatter || c->op == ZF_OP_all_reduce || c->op == ZF_OP_reduce) &&
           c->seed & 1;
}

/* Element i that rank `rank` must find in out. */
static double expected(const one_call *c, int rank, int world, int64_t i)
{
    double terms[MOST_RANKS + 1], value;
    int n = 0;
    int64_t at = c->op == ZF_OP_reduce_scatter ? rank * c->count + i : i;
    switch (c->op) {
    case ZF_OP_all_gather: return element(c->seed, (int)(i / c->count), i % c->count, c->dtype);
    case ZF_OP_all_to_all:
        return element(c->seed, (int)(i / c->count), rank * c->count + i % c->count, c->dtype);
    case ZF_OP_bcast: return element(c->seed, c->root, i, c->dtype);
    default: break;
    }
    for (int r = 0; r < world; r++) terms[n++] = element(c->seed, r, at, c->dtype);
    terms[n++] = element(c->seed, 99, at, c->dtype);
    for (int k = 0; k < n; k++) { /* as the dtype holds them */
        set(&value, c->dtype, 0, terms[k]);
        terms[k] = get(&value, c->dtype, 0);
    }
    return added(c->dtype, is_by_tree(c) ? world : 0,
                 c->place == ADDED ? &terms[world] : NULL, terms, world);
}

/* Makes the call and compares with the definition. Bytes around `out`, and a separate `in`, must
 * not change. The buffers are freed at once, so that a rank that still reads them is noticed. */
static bool one(member *m, const one_call *c)
{
    enum { FENCE = 64 };
    const int64_t world = m->world,
                  in_count = c->op == ZF_OP_reduce_scatter || c->op == ZF_OP_all_to_all
                                 ? world * c->count
                                 : c->count,
                  out_count = c->op == ZF_OP_all_gather || c->op == ZF_OP_all_to_all
                                  ? world * c->count
                                  : c->count;
    const size_t size = zf_dtype_size(c->dtype), out_bytes = (size_t)out_count * size;
    unsigned char *room = malloc(out_bytes + 2 * FENCE), *out = room + FENCE, *apart, *in;
    bool good = true;
    zf_collective k = {.op = c->op,
                       .node = (int32_t)(c->seed % 1000),
                       .channel = m->channel,
                       .dtype = c->dtype,
                       .count = c->count,
                       .add = c->place == ADDED,
                       .tree = is_by_tree(c),
                       .root = c->root,
                       .group = m->group};
    in = apart = c->place == IN_PLACE ? NULL : malloc((size_t)in_count * size + 1);
    if (c->place == IN_PLACE)
        in = c->op == ZF_OP_all_gather ? out + (size_t)(m->rank * c->count) * size : out;
    if (!room || !in) {
        snprintf(m->said, sizeof m->said, "out of memory");
        free(room), free(apart);
        return false;
    }
    memset(room, 0x5a, out_bytes + 2 * FENCE);
    for (int64_t i = 0; i < out_count && c->place == ADDED; i++)
        set(out, c->dtype, i,
            element(c->seed, 99, c->op == ZF_OP_reduce_scatter ? m->rank * c->count + i : i,
                    c->dtype));
    for (int64_t i = 0; i < in_count; i++)
        set(in, c->dtype, i, element(c->seed, m->rank, i, c->dtype));
    k.in = in, k.out = out;
    if (call(m, &k)) good = false;
    for (int64_t i = 0; i < out_count && good && (c->op != ZF_OP_reduce || c->root == m->rank);
         i++) {
        double want;
        set(&want, c->dtype, 0, expected(c, m->rank, m->world, i));
        good = !memcmp(out + (size_t)i * size, &want, size);
    }
    for (int64_t i = 0; i < in_count && good && apart; i++) {
        double was;
        set(&was, c->dtype, 0, element(c->seed, m->rank, i, c->dtype));
        good = !memcmp(in + (size_t)i * size, &was, size);
    }
    for (size_t i = 0; i < FENCE && good; i++) good = room[i] == 0x5a && out[out_bytes + i] == 0x5a;
    if (!good && !m->error.status) {
        snprintf(m->said, sizeof m->said, "rank %d of %d: op %d %s count %lld place %d seed %llu",
                 m->rank, m->world, (int)c->op, zf_dtype_name(c->dtype), (long long)c->count,
                 (int)c->place, (unsigned long long)c->seed);
        /* the others need not wait */
        m->comm->abort(m->comm->self, ZF_ERR_ARGUMENT, "wrong numbers");
    }
    memset(room, 0xff, out_bytes + 2 * FENCE);
    if (apart) memset(apart, 0xff, (size_t)in_count * size);
    free(room), free(apart);
    return good;
}

/* The same, where an error of the call is wrong as well. */
static bool one_well(member *m, const one_call *c)
{
    bool good = one(m, c);
    if (m->error.status && !*m->said) snprintf(m->said, sizeof m->said, "%s", m->error.text);
    return good;
}

typedef struct sweep {
    const int64_t *counts;
    const zf_dtype *dtypes;
    int count_count, dtype_count;
} sweep;

static void sweep_body(member *m)
{
    const sweep *s = m->context;
    one_call c = {.seed = 0};
    for (int d = 0; d < s->dtype_count; d++)
        for (int n = 0; n < s->count_count; n++)
            for (size_t op = 0; op < sizeof ops / sizeof ops[0]; op++)
                for (int p = 0; p < PLACES; p++) {
                    c.op = ops[op], c.dtype = s->dtypes[d], c.count = s->counts[n];
                    c.place = (place)p, c.root = (int)(++c.seed % (uint64_t)m->world);
                    if (possible(c.op, c.place) && !one_well(m, &c)) return;
                }
}

/* Sends between any two ranks. */
static const int64_t sent_counts[] = {0, 1, 255, 5003};

/* Rank `to` gets what `from` has; others have no part in it. What neither end reads is NULL. */
static bool send_between(member *m, int from, int to, int64_t count, zf_dtype dtype, bool in_place)
{
    const int low = from < to ? from : to, high = from < to ? to : from;
    const size_t size = zf_dtype_size(dtype);
    const uint64_t seed = (uint64_t)(from * 8 + to);
    char *data = m->rank == from || m->rank == to ? malloc((size_t)count * size + 1) : NULL;
    zf_collective c = {.op = ZF_OP_send,
                       .node = 50,
                       .channel = (from + to) % 3,
                       .dtype = dtype,
                       .count = count,
                       .root = from > to,
                       .group = {low, high - low, 2}};
    bool good = data != NULL;
    if (!data) return m->rank != from && m->rank != to;
    memset(data, 0x5a, (size_t)count * size + 1);
    for (int64_t i = 0; i < count && m->rank == from; i++)
        set(data, dtype, i, element(seed, from, i, dtype));
    if (m->rank == from || in_place) c.in = data;
    if (m->rank == to || in_place) c.out = data;
    if (call(m, &c)) good = false;
    for (int64_t i = 0; i < count && good; i++) {
        double want;
        set(&want, dtype, 0, element(seed, from, i, dtype));
        good = !memcmp(data + (size_t)i * size, &want, size);
    }
    good = good && data[(size_t)count * size] == 0x5a;
    if (!good)
        snprintf(m->said, sizeof m->said, "rank %d, %lld %s from %d to %d: %.200s", m->rank,
                 (long long)count, zf_dtype_name(dtype), from, to, m->error.text);
    free(data);
    return good;
}

static void sends_body(member *m)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_I64};
    for (int from = 0; from < m->world; from++)
        for (int to = 0; to < m->world; to++)
            for (int k = 0; k < 4 * 3 && from != to; k++)
                if (!send_between(m, from, to, sent_counts[k / 3], dtypes[k % 3], k % 2)) {
                    m->comm->abort(m->comm->self, ZF_ERR_ARGUMENT, "wrong numbers");
                    return;
                }
}

TEST(comm_local_sends)
{
    for (int world = 2; world <= 4 && !t->failed; world++) {
        zf_error error = {ZF_OK, ""};
        member members[MOST_RANKS];
        zf_local *group =
            zf_local_new(&(zf_local_desc){.world = world, .allocator = t->allocator}, &error);
        NEED(t, group, &error);
        test_defer(t, (test_cleanup *)zf_local_free, group);
        run_members(t, group, world, 1, sends_body, NULL, members);
        check_members(t, members, world);
    }
}

/* A send that no rank takes, ends that differ, and a group of three. */
static void lost_send_body(member *m)
{
    const int *form = m->context;
    float x = 1;
    zf_collective c = {.op = ZF_OP_send, .node = 50, .dtype = ZF_F32, .count = 1, .in = &x};
    c.out = &x, c.group = (zf_group){1, 2, *form == 2 ? 3 : 2};
    if (*form == 1 && m->rank == 3) c.root = 1;
    if (m->rank == 1 || (*form == 1 && m->rank == 3)) call(m, &c);
}

TEST_ONCE(comm_sends_fail_by_name)
{
    static const char *const errors[] = {
        "send %50 over ranks 1, 3: rank 3 of 6 did not come within 0.05 s",
        ("rank 1 is at send %50 over ranks 1, 3 of 1 f32 from rank 1, rank 3 at send %50 over ranks "
         "1, 3 of 1 f32 from rank 3"),
        "send %50 over ranks 1, 3, ..., 5: a send is between two ranks, not 3"};
    for (int form = 0; form < 3 && !t->failed; form++) {
        zf_error error = {ZF_OK, ""};
        member members[MOST_RANKS];
        zf_local *group = zf_local_new(&(zf_local_desc){.world = 6,
                                                        .deadline_seconds = form ? 60 : 0.05,
                                                        .allocator = t->allocator},
                                       &error);
        NEED(t, group, &error);
        test_defer(t, (test_cleanup *)zf_local_free, group);
        run_members(t, group, 6, 1, lost_send_body, &form, members);
        CHECK_TEXT(t, members[1].error.text, errors[form]);
    }
}

static const int worlds[] = {1, 2, 3, 4, 8};

/* All worlds; and only zf_local_new allocates. */
static void run_sweep(test *t, sweep *s)
{
    for (size_t k = 0; k < sizeof worlds / sizeof worlds[0] && !t->failed; k++) {
        zf_error error = {ZF_OK, ""};
        member members[MOST_RANKS];
        zf_local *group =
            zf_local_new(&(zf_local_desc){.world = worlds[k], .allocator = t->allocator}, &error);
        long allocations = t->allocations;
        NEED(t, group, &error);
        test_defer(t, (test_cleanup *)zf_local_free, group);
        run_members(t, group, worlds[k], 1, sweep_body, s, members);
        check_members(t, members, worlds[k]);
        CHECK(t, t->allocations == allocations);
    }
}

TEST(comm_local_collectives)
{
    static const int64_t counts[] = {0, 1, 7, 1024, 1025};
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16, ZF_F64,
                                      ZF_I32, ZF_I64,  ZF_U8,  ZF_BOOL};
    run_sweep(t, &(sweep){counts, dtypes, 5, 8});
}

TEST(comm_local_large_collectives)
{
    static const int64_t counts[] = {9001}; /* several tiles of each of 8 ranks */
    static const zf_dtype dtypes[] = {ZF_F32, ZF_F64};
    run_sweep(t, &(sweep){counts, dtypes, 1, TEST_LARGE ? 2 : 1});
}

/* Any call after any other: with one, two and three meetings. Each channel has its own order. */
static void mixed_body(member *m)
{
    const long rounds = *(const long *)m->context;
    uint64_t random = 77 + (uint64_t)m->channel;
    for (long n = 0; n < rounds; n++) {
        one_call c = {.seed = (uint64_t)n * 3 + (uint64_t)m->channel};
        random = random * 6364136223846793005u + 1442695040888963407u;
        c.op = ops[(random >> 33) % OPS];
        c.dtype = (random >> 40) % 3 ? ZF_F32 : ZF_F64;
        c.count = (int64_t)((random >> 43) % 300);
        c.place = (place)((random >> 55) % PLACES);
        c.root = (int)((random >> 58) % (uint64_t)m->world);
        if (!possible(c.op, c.place)) c.place = APART;
        if (!one_well(m, &c)) return;
    }
}

TEST(comm_local_many_rounds)
{
    for (int world = 2; world <= 4; world += 2) {
        long rounds = 2000;
        zf_error error = {ZF_OK, ""};
        member members[MOST_RANKS];
        zf_local *group =
            zf_local_new(&(zf_local_desc){.world = world, .allocator = t->allocator}, &error);
        NEED(t, group, &error);
        test_defer(t, (test_cleanup *)zf_local_free, group);
        run_members(t, group, world, 1, mixed_body, &rounds, members);
        check_members(t, members, world);
    }
}

TEST(comm_local_channels_at_once)
{
    for (int channels = 2; channels <= 3; channels++) {
        long rounds = 500;
        zf_error error = {ZF_OK, ""};
        member members[3 * MOST_RANKS];
        zf_local *group =
            zf_local_new(&(zf_local_desc){.world = 3, .allocator = t->allocator}, &error);
        NEED(t, group, &error);
        test_defer(t, (test_cleanup *)zf_local_free, group);
        run_members(t, group, 3, channels, mixed_body, &rounds, members);
        check_members(t, members, 3 * channels);
    }
}

/* Calls of all ranks and of groups along both axes of a mesh, in any order, on each channel; each
 * group has numbers of its own. */
typedef struct mesh_case {
    long rounds;
    int world, nodes;
} mesh_case;

static void groups_body(member *m)
{
    const mesh_case *d = m->context;
    const int local = d->world / d->nodes, rank = m->comm->rank;
    uint64_t random = 99 + (uint64_t)m->channel;
    for (long n = 0; n < d->rounds; n++) {
        one_call c = {.seed = (uint64_t)n * 5 + (uint64_t)m->channel};
        random = random * 6364136223846793005u + 1442695040888963407u;
        switch ((random >> 30) % 3) {
        case 0: m->group = (zf_group){0, 0, 0}; break;
        case 1: m->group = (zf_group){rank / local * local, 1, local}; break;
        default: m->group = (zf_group){rank % local, local, d->nodes};
        }
        m->world = m->group.count ? m->group.count : d->world;
        m->rank = m->group.count ? (rank - m->group.first) / m->group.stride : rank;
        c.seed += 1000 * (uint64_t)m->group.first;
        c.op = ops[(random >> 33) % OPS];
        c.dtype = (random >> 40) % 3 ? ZF_F32 : ZF_BF16;
        c.count = (int64_t)((random >> 43) % 500);
        c.place = (place)((random >> 55) % PLACES);
        c.root = (int)((random >> 58) % (uint64_t)m->world);
        if (!possible(c.op, c.place)) c.place = APART;
        if (!one_well(m, &c)) return;
    }
}

TEST_ONCE(comm_local_groups)
{
    static const int meshes[][2] = {{4, 2}, {6, 3}, {8, 2}};
    for (int k = 0; k < 3; k++) {
        mesh_case d = {300, meshes[k][0], meshes[k][1]};
        zf_error error = {ZF_OK, ""};
        member members[2 * MOST_RANKS];
        zf_local *group = zf_local_new(&(zf_local_desc){.world = d.world}, &error);
        NEED(t, group, &error);
        test_defer(t, (test_cleanup *)zf_local_free, group);
        run_members(t, group, d.world, 2, groups_body, &d, members);
        check_members(t, members, 2 * d.world);
    }
}

/* Groups {0, 1} and {2, 3}: rank 3 does not come, asks for something else, is not of the group that
 * it names, or gives up. All ranks get that error, in whatever group they are. */
typedef enum group_fault { ABSENT, DIFFERENT, FOREIGN, GIVES_UP, GROUP_FAULTS } group_fault;

static void group_fault_body(member *m)
{
    const group_fault fault = *(const group_fault *)m->context;
    const int32_t rank = m->comm->rank;
    const bool odd = rank == 3;
    float in[4] = {0}, out[8];
    zf_collective c = {.op = ZF_OP_all_gather,
                       .node = 7,
                       .dtype = ZF_F32,
                       .count = odd && fault == DIFFERENT ? 3 : 4,
                       .in = in,
                       .out = out,
                       .group = {rank / 2 * 2, 1, 2}};
    if (odd && fault == ABSENT) return;
    if (odd && fault == GIVES_UP) m->comm->abort(m->comm->self, ZF_ERR_LIMIT, "enough");
    if (odd && fault == FOREIGN) c.group = (zf_group){0, 2, 2};
    while (!call(m, &c)) {
    }
}

TEST_ONCE(comm_local_faults_of_groups)
{
    static const char *const want[] = {
        "all_gather %7 over ranks 2, 3: rank 3 of 4 did not come within 0.2 s",
        "rank 2 is at all_gather %7 over ranks 2, 3 of 4 f32, rank 3 at all_gather %7 over ranks "
        "2, 3 of 3 f32",
        "rank 3 gave up: all_gather %7 over ranks 0, 2: the group {0, 2, 2} (first, stride, count) "
        "must be of ranks 0 to 3, rank 3 among them",
        "rank 3 gave up: enough"};
    for (group_fault fault = ABSENT; fault < GROUP_FAULTS; fault++) {
        zf_error error = {ZF_OK, ""};
        member members[4];
        zf_local *group =
            zf_local_new(&(zf_local_desc){.world = 4, .deadline_seconds = 0.2}, &error);
        NEED(t, group, &error);
        test_defer(t, (test_cleanup *)zf_local_free, group);
        run_members(t, group, 4, 1, group_fault_body, &fault, members);
        for (int r = 0; r < 4; r++) {
            if (r == 3 && (fault == ABSENT || fault == FOREIGN)) continue;
            CHECK(t, members[r].error.status == ZF_ERR_COMM);
            CHECK_TEXT(t, members[r].error.text, want[fault]);
        }
        if (fault == FOREIGN) CHECK_TEXT(t, members[3].error.text, want[FOREIGN] + 16);
    }
}

/* Rank 3 does not come. Rank 0 gives up first, unless the machine is slow, where it waits for rank 2,
 * which waits for rank 3 in another group; so does rank 1. With `busy`, rank 3 waits at another channel for all. */
static void late_body(member *m)
{
    const bool busy = *(const bool *)m->context;
    static const zf_group groups[4] = {{0, 2, 2}, {1, 2, 2}, {2, 1, 2}, {0, 1, 4}};
    const int32_t rank = m->comm->rank;
    float in[4] = {0}, out[16];
    zf_collective c = {.op = ZF_OP_all_gather,
                       .node = 7,
                       .channel = rank == 3,
                       .dtype = ZF_F32,
                       .count = 4,
                       .in = in,
                       .out = out,
                       .group = groups[rank]};
    if (rank) nanosleep(&(struct timespec){0, 100000000}, NULL);
    if (rank < 3 || busy) call(m, &c);
}

TEST_ONCE(comm_local_names_who_is_late)
{
    for (int busy = 0; busy < 2; busy++) {
        const bool context = busy;
        zf_error error = {ZF_OK, ""};
        member members[4];
        zf_local *group =
            zf_local_new(&(zf_local_desc){.world = 4, .deadline_seconds = 1.5}, &error);
        NEED(t, group, &error);
        test_defer(t, (test_cleanup *)zf_local_free, group);
        run_members(t, group, 4, 1, late_body, (void *)(uintptr_t)&context, members);
        for (int r = 0; r < 3 + busy; r++) {
            const char *text = members[r].error.text; /* that of the rank which gave up first */
            CHECK_TEXT(t, text, members[0].error.text);
            CHECK(t, strstr(text, "all_gather %7 over ranks ") == text);
            CHECK(t, strstr(text, ": rank 3 of 4 did not come within 1.5 s"));
        }
    }
}

/* Channels do not wait for one another: all calls of rank 1 on channel 1 end before it comes to
 * channel 0, where rank 0 waits all the time. */
static void apart_body(member *m)
{
    one_call c = {.op = ZF_OP_all_reduce, .count = 9, .seed = 5};
    if (m->channel == 1)
        for (int n = 0; n < 20; n++)
            if (!one_well(m, &c)) return;
    if (m->rank == 0 && m->channel == 0) one_well(m, &c);
    if (m->rank == 1 && m->channel == 1) m->channel = 0, one_well(m, &c);
}

TEST(comm_local_channels_are_independent)
{
    zf_error error = {ZF_OK, ""};
    member members[4];
    zf_local *group = zf_local_new(&(zf_local_desc){.world = 2, .allocator = t->allocator}, &error);
    NEED(t, group, &error);
    test_defer(t, (test_cleanup *)zf_local_free, group);
    run_members(t, group, 2, 2, apart_body, NULL, members);
    check_members(t, members, 4);
}

/* ---------------------------------------------------------------------------------------- faults
 */

/* One call of 300 or 3 floats, to be made from any thread. */
static zf_status simple(zf_comm *comm, zf_op op, int32_t node, int32_t channel, int64_t count,
                        zf_error *error)
{
    float in[900], out[900];
    zf_collective c = {.op = op, .node = node, .channel = channel, .count = count};
    for (int i = 0; i < 900; i++) in[i] = 1, out[i] = 0;
    c.in = in, c.out = out;
    return comm->run(comm->self, &c, error);
}

/* Every rank but the last, after a call of all. */
static void missing_body(member *m)
{
    if (simple(m->comm, ZF_OP_all_reduce, 58, 0, 1, &m->error)) return;
    m->done++;
    if (m->rank < m->world - 1) simple(m->comm, ZF_OP_all_gather, 59, 0, 300, &m->error);
}

/* Later calls fail at once, on every channel and rank, with the same text. */
static void check_failed_as(test *t, zf_local *group, int world, zf_status status, const char *text)
{
    for (int r = 0; r < world; r++)
        for (int channel = 0; channel < 3; channel++) {
            zf_error error = {ZF_OK, ""};
            zf_comm *comm = zf_local_comm(group, r);
            CHECK(t, simple(comm, ZF_OP_all_reduce, 7, channel, 3, &error) == status);
            CHECK(t, error.status == status);
            CHECK_TEXT(t, error.text, text);
            CHECK(t, simple(comm, ZF_OP_all_reduce, 7, channel, 3, NULL) == status);
            comm->abort(comm->self, status == ZF_ERR_IO ? ZF_ERR_NOMEM : ZF_ERR_IO,
                        "another reason");
        }
}

static void check_failed(test *t, zf_local *group, int world, const char *text)
{
    check_failed_as(t, group, world, ZF_ERR_COMM, text);
}

TEST_ONCE(comm_local_missing_rank)
{
    zf_error error = {ZF_OK, ""};
    member members[3];
    zf_local *group = zf_local_new(&(zf_local_desc){.world = 3, .deadline_seconds = 2}, &error);
    NEED(t, group, &error);
    test_defer(t, (test_cleanup *)zf_local_free, group);
    run_members(t, group, 3, 1, missing_body, NULL, members);
    for (int r = 0; r < 3; r++) CHECK(t, members[r].done == 1);
    for (int r = 0; r < 2; r++) {
        CHECK(t, members[r].error.status == ZF_ERR_COMM);
        CHECK_TEXT(t, members[r].error.text, "all_gather %59: rank 2 of 3 did not come within 2 s");
    }
    CHECK(t, !members[2].error.status);
    check_failed(t, group, 3, members[0].error.text);
}

/* Only one rank comes: with a large, a small and an empty call. A long list of missing ranks is
 * shortened. */
TEST(comm_local_many_missing_ranks)
{
    static const struct {
        int world;
        int64_t count;
        const char *text;
    } rows[] = {
        {2, 300, "bcast %12: rank 1 of 2 did not come within 0.01 s"},
        {4, 0, "bcast %12: ranks 1, 2, 3 of 4 did not come within 0.01 s"},
        {4096, 3,
         "bcast %12: ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 4079 more of "
         "4096 did not come within 0.01 s"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        zf_error error = {ZF_OK, ""};
        zf_local_desc desc = {
            .world = rows[k].world, .deadline_seconds = 0.01, .allocator = t->allocator};
        zf_local *group = zf_local_new(&desc, &error);
        NEED(t, group, &error);
        test_defer(t, (test_cleanup *)zf_local_free, group);
        CHECK(t, simple(zf_local_comm(group, 0), ZF_OP_bcast, 12, 2, rows[k].count, &error) ==
                     ZF_ERR_COMM);
        CHECK_TEXT(t, error.text, rows[k].text);
        check_failed(t, group, 2, rows[k].text);
    }
}

/* Each rank waits on a channel of its own: a deadlock is a message for both. */
static void crossed_body(member *m)
{
    simple(m->comm, ZF_OP_all_reduce, 20 + m->rank, m->rank, 3, &m->error);
}

TEST(comm_local_crossed_channels)
{
    zf_error error = {ZF_OK, ""};
    member members[2];
    zf_local_desc desc = {.world = 2, .deadline_seconds = 0.05, .allocator = t->allocator};
    zf_local *group = zf_local_new(&desc, &error);
    NEED(t, group, &error);
    test_defer(t, (test_cleanup *)zf_local_free, group);
    run_members(t, group, 2, 1, crossed_body, NULL, members);
    CHECK_TEXT(t, members[0].error.text, members[1].error.text);
    CHECK(t, !strcmp(members[0].error.text,
                     "all_reduce %20: rank 1 of 2 did not come within 0.05 s") ||
                 !strcmp(members[0].error.text,
                         "all_reduce %21: rank 0 of 2 did not come within 0.05 s"));
}

typedef struct differing {
    zf_collective calls[2]; /* of ranks 0 and 1; rank 2 makes rank 0's */
    const char *text[2];    /* whether it is rank 0 or rank 2 that meets rank 1 */
} differing;

static void differing_body(member *m)
{
    const differing *d = m->context;
    float in[900] = {0}, out[900];
    zf_collective c = d->calls[m->rank == 1];
    c.in = in, c.out = out;
    call(m, &c);
}

TEST(comm_local_different_calls)
{
#define SUM    .op = ZF_OP_all_reduce, .node = 5
#define CAST   .op = ZF_OP_bcast, .node = 5, .count = 3
#define GATHER .op = ZF_OP_all_gather, .node = 5, .count = 3
    static const differing rows[] = {
        {{{SUM, .count = 3}, {GATHER}},
         {"rank 0 is at all_reduce %5 of 3 f32, rank 1 at all_gather %5 of 3 f32",
          "rank 1 is at all_gather %5 of 3 f32, rank 2 at all_reduce %5 of 3 f32"}},
        {{{GATHER}, {.op = ZF_OP_all_gather, .node = 6, .count = 3}},
         {"rank 0 is at all_gather %5 of 3 f32, rank 1 at all_gather %6 of 3 f32",
          "rank 1 is at all_gather %6 of 3 f32, rank 2 at all_gather %5 of 3 f32"}},
        {{{SUM, .count = 3}, {SUM, .count = 800}}, /* one small, one not */
         {"rank 0 is at all_reduce %5 of 3 f32, rank 1 at all_reduce %5 of 800 f32",
          "rank 1 is at all_reduce %5 of 800 f32, rank 2 at all_reduce %5 of 3 f32"}},
        {{{SUM, .count = 3}, {SUM, .count = 3, .dtype = ZF_BF16}},
         {"rank 0 is at all_reduce %5 of 3 f32, rank 1 at all_reduce %5 of 3 bf16",
          "rank 1 is at all_reduce %5 of 3 bf16, rank 2 at all_reduce %5 of 3 f32"}},
        {{{CAST, .root = 2}, {CAST, .root = 1}},
         {"rank 0 is at bcast %5 of 3 f32 from rank 2, rank 1 at bcast %5 of 3 f32 from rank 1",
          "rank 1 is at bcast %5 of 3 f32 from rank 1, rank 2 at bcast %5 of 3 f32 from rank 2"}},
        {{{SUM, .count = 3}, {SUM, .count = 3, .add = true}},
         {"rank 0 is at all_reduce %5 of 3 f32, rank 1 at all_reduce %5 of 3 f32 added to out",
          "rank 1 is at all_reduce %5 of 3 f32 added to out, rank 2 at all_reduce %5 of 3 f32"}},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        differing d = rows[k];
        zf_error error = {ZF_OK, ""};
        member members[3];
        zf_local *group =
            zf_local_new(&(zf_local_desc){.world = 3, .allocator = t->allocator}, &error);
        NEED(t, group, &error);
        test_defer(t, (test_cleanup *)zf_local_free, group);
        run_members(t, group, 3, 1, differing_body, &d, members);
        CHECK_TEXT(t, members[0].error.text,
                   d.text[strncmp(members[0].error.text, "rank 0", 6) != 0]);
        for (int r = 0; r < 3; r++) {
            CHECK(t, members[r].error.status == ZF_ERR_COMM);
            CHECK_TEXT(t, members[r].error.text, members[0].error.text);
        }
        check_failed(t, group, 3, members[0].error.text);
    }
}

/* Parameters that only bcast uses may differ in other calls, and so may what non-root ranks
 * pass. */
static void root_body(member *m)
{
    float x[2] = {(float)m->rank + 1, 0}, y[2] = {0, 0};
    zf_collective sum = {
        .op = ZF_OP_all_reduce, .count = 1, .in = x, .out = y, .root = m->rank * 1000};
    zf_collective cast = {.op = ZF_OP_bcast, .count = 2, .in = m->rank ? NULL : x, .out = y};
    if (call(m, &sum) || y[0] != 3) snprintf(m->said, sizeof m->said, "sum: %s", m->error.text);
    if (call(m, &cast) || y[0] != 1) snprintf(m->said, sizeof m->said, "cast: %s", m->error.text);
}

TEST(comm_local_root_is_of_bcast)
{
    zf_error error = {ZF_OK, ""};
    member members[2];
    zf_local *group = zf_local_new(&(zf_local_desc){.world = 2, .allocator = t->allocator}, &error);
    NEED(t, group, &error);
    test_defer(t, (test_cleanup *)zf_local_free, group);
    run_members(t, group, 2, 1, root_body, NULL, members);
    check_members(t, members, 2);
}

/* An I/O error is one on all ranks. Every other reason is ZF_ERR_COMM there. */
TEST(comm_local_abort_before)
{
    static const struct {
        zf_status status;
        const char *reason;
    } rows[] = {{ZF_ERR_IO, "the disk is full"},
                {ZF_ERR_LIMIT, "the disk is full"},
                {ZF_ERR_IO, ""},
                {ZF_ERR_BACKEND, NULL},
                {ZF_OK, NULL}};
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        char text[64];
        zf_error error = {ZF_OK, ""};
        zf_local *group =
            zf_local_new(&(zf_local_desc){.world = 3, .allocator = t->allocator}, &error);
        zf_comm *comm;
        NEED(t, group, &error);
        test_defer(t, (test_cleanup *)zf_local_free, group);
        comm = zf_local_comm(group, 1);
        comm->abort(comm->self, rows[k].status, rows[k].reason);
        snprintf(text, sizeof text, "rank 1 gave up%s", k < 2 ? ": the disk is full" : "");
        check_failed_as(t, group, 3, rows[k].status == ZF_ERR_IO ? ZF_ERR_IO : ZF_ERR_COMM, text);
    }
}

/* A reason of any length is shortened, without overrun. */
TEST(comm_local_abort_with_much_to_say)
{
    char reason[2000], want[512];
    zf_error error = {ZF_OK, ""};
    zf_local *group = zf_local_new(&(zf_local_desc){.world = 2, .allocator = t->allocator}, &error);
    zf_comm *comm;
    NEED(t, group, &error);
    test_defer(t, (test_cleanup *)zf_local_free, group);
    memset(reason, 'x', sizeof reason - 1), reason[sizeof reason - 1] = '\0';
    comm = zf_local_comm(group, 0);
    comm->abort(comm->self, ZF_ERR_LIMIT, reason);
    memset(want, 'x', sizeof want - 1), want[sizeof want - 1] = '\0';
    memcpy(want, "rank 0 gave up: ", 16);
    check_failed(t, group, 2, want);
}

/* Calls one after another until one fails; those before it are right to the last byte. */
static void until_body(member *m)
{
    one_call c = {.seed = 0};
    for (; !m->error.status && !*m->said; c.seed++) {
        if (m->rank == 1 && m->channel == 0 && m->done == 100) {
            m->comm->abort(m->comm->self, ZF_ERR_LIMIT, "enough");
            return;
        }
        c.op = ops[c.seed % OPS], c.count = c.seed % 3 ? 700 : 2,
        c.place = (place)(c.seed % PLACES);
        if (!possible(c.op, c.place)) c.place = APART;
        one(m, &c);
    }
}

/* One rank aborts while the others wait for it, and while other threads of all ranks are in calls
 * on other channels: each call takes place for all ranks or for none. */
TEST(comm_local_abort_in_the_middle)
{
    zf_error error = {ZF_OK, ""};
    member members[3 * 4];
    zf_local *group = zf_local_new(&(zf_local_desc){.world = 4, .allocator = t->allocator}, &error);
    NEED(t, group, &error);
    test_defer(t, (test_cleanup *)zf_local_free, group);
    run_members(t, group, 4, 3, until_body, NULL, members);
    check_members(t, members, 12);
    for (int k = 0; k < 12; k++) {
        CHECK(t, members[k].done == members[k / 4 * 4].done);
        if (k == 1) continue; /* it gave up itself */
        CHECK(t, members[k].error.status == ZF_ERR_COMM);
        CHECK_TEXT(t, members[k].error.text, "rank 1 gave up: enough");
    }
    CHECK(t, members[0].done == 100);
    check_failed(t, group, 4, "rank 1 gave up: enough");
}

/* An invalid call is refused, and the others need not wait for it. */
TEST(comm_local_bad_calls)
{
    static float data[8];
    static char stream;
    static const struct {
        zf_collective c;
        const char *text;
    } rows[] = {
        {{.op = ZF_OP_none}, "a communicator was called with no collective"},
        {{.op = ZF_OP_matmul, .count = 1}, "a communicator was called with no collective"},
        {{.op = ZF_OP_COUNT}, "a communicator was called with no collective"},
        {{.op = (zf_op)-1}, "a communicator was called with no collective"},
        {{GATHER, .channel = 4}, "all_gather %5: channel 4; it must be 0 to 3"},
        {{GATHER, .channel = -1}, "all_gather %5: channel -1; it must be 0 to 3"},
        {{GATHER, .dtype = (zf_dtype)8}, "all_gather %5: 8 is no dtype"},
        {{SUM, .count = -1}, "all_reduce %5: count is -1; it must be 0 to 1152921504606846975"},
        {{SUM, .count = INT64_MAX / 4},
         "all_reduce %5: count is 2305843009213693951; it must be 0 to 1152921504606846975"},
        {{GATHER, .out = data}, "all_gather %5: in is NULL"},
        {{GATHER, .in = data}, "all_gather %5: out is NULL"},
        {{CAST, .out = data}, "bcast %5: in is NULL"},
        {{CAST, .in = data, .out = data, .root = 2}, "bcast %5: root 2 is no rank of a world of 2"},
        {{.op = ZF_OP_reduce, .node = 5, .count = 3, .in = data, .out = data, .root = 2},
         "reduce %5: root 2 is no rank of a world of 2"},
        {{.op = ZF_OP_reduce, .node = 5, .count = 3, .out = data}, "reduce %5: in is NULL"},
        {{CAST, .in = data, .out = data, .before = 1},
         "bcast %5: from 1 ranks before and 0 after a rank of 2: fewer than all, of an all_gather or a "
         "reduce_scatter by a tree"},
        {{CAST, .in = data, .out = data, .root = -1},
         "bcast %5: root -1 is no rank of a world of 2"},
        {{GATHER, .in = data, .out = data, .stream = &stream},
         "all_gather %5: ranks of one process have no streams; stream must be NULL"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0] + 1; k++) {
        bool none = k == sizeof rows / sizeof rows[0];
        const char *text = rows[none ? 0 : k].text;
        char others[200];
        zf_error error = {ZF_OK, ""};
        zf_local *group =
            zf_local_new(&(zf_local_desc){.world = 2, .allocator = t->allocator}, &error);
        zf_comm *comm;
        NEED(t, group, &error);
        test_defer(t, (test_cleanup *)zf_local_free, group);
        comm = zf_local_comm(group, 0);
        CHECK(t, comm->run(comm->self, none ? NULL : &rows[k].c, &error) == ZF_ERR_ARGUMENT);
        CHECK_TEXT(t, error.text, text);
        snprintf(others, sizeof others, "rank 0 gave up: %s", text);
        check_failed(t, group, 2, others);
    }
}
#undef SUM
#undef CAST
#undef GATHER

/* Two threads of one rank on one channel: the second to come is refused, the first need not wait.
 */
static void twice_body(member *m)
{
    simple(zf_local_comm(m->context, 0), ZF_OP_all_reduce, 5, 1, 3, &m->error);
}

TEST(comm_local_two_threads_on_a_channel)
{
    zf_error error = {ZF_OK, ""};
    member members[2];
    int second;
    zf_local *group = zf_local_new(&(zf_local_desc){.world = 2, .allocator = t->allocator}, &error);
    NEED(t, group, &error);
    test_defer(t, (test_cleanup *)zf_local_free, group);
    run_members(t, group, 2, 1, twice_body, group, members);
    second = members[1].error.status == ZF_ERR_ARGUMENT;
    CHECK_TEXT(t, members[second].error.text,
               "all_reduce %5: another thread of rank 0 is using channel 1");
    CHECK(t, members[!second].error.status == ZF_ERR_COMM);
    CHECK_TEXT(t, members[!second].error.text,
               "rank 0 gave up: all_reduce %5: another thread of rank 0 is using channel 1");
}

/* A thread that is cancelled while it waits leaves the group usable: the others get their error. */
static void cancelled_body(member *m)
{
    crossed_body(m);
    pthread_testcancel();
    m->done = 1;
}

TEST(comm_local_cancelled_thread)
{
    zf_error error = {ZF_OK, ""};
    zf_local_desc desc = {.world = 2, .deadline_seconds = 0.05, .allocator = t->allocator};
    zf_local *group = zf_local_new(&desc, &error);
    member m = {.body = cancelled_body};
    NEED(t, group, &error);
    test_defer(t, (test_cleanup *)zf_local_free, group);
    m.comm = zf_local_comm(group, 0);
    CHECK(t, !pthread_create(&m.thread, NULL, member_main, &m));
    CHECK(t, !pthread_cancel(m.thread));
    pthread_join(m.thread, NULL);
    CHECK(t, !m.done);
    check_failed(t, group, 2, "all_reduce %20: rank 1 of 2 did not come within 0.05 s");
}

/* --------------------------------------------------------------------------------------- the group
 */

TEST(comm_local_refuses_bad_values)
{
    static const struct {
        zf_local_desc desc;
        const char *text;
    } rows[] = {
        {{.world = -1}, "zf_local_new: world is -1; it must be 1 to 4096"},
        {{.world = 4097}, "zf_local_new: world is 4097; it must be 1 to 4096"},
        {{.deadline_seconds = -1},
         "zf_local_new: deadline_seconds is -1; it must be positive and "
         "finite, or 0 for 60"},
        {{.deadline_seconds = INFINITY},
         "zf_local_new: deadline_seconds is inf; it must be "
         "positive and finite, or 0 for 60"},
    };
    zf_local_desc nan = {.deadline_seconds = NAN};
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        zf_error error = {ZF_OK, ""};
        CHECK(t, !zf_local_new(&rows[k].desc, &error));
        CHECK(t, error.status == ZF_ERR_ARGUMENT);
        CHECK_TEXT(t, error.text, rows[k].text);
        CHECK(t, !zf_local_new(&rows[k].desc, NULL));
    }
    CHECK(t, !zf_local_new(&nan, NULL));
}

TEST(comm_local_group)
{
    zf_error error = {ZF_OK, ""};
    zf_local *alone = zf_local_new(NULL, &error), *group;
    zf_local_desc desc = {.world = 5, .deadline_seconds = 1e300, .allocator = t->allocator};
    test_defer(t, (test_cleanup *)zf_local_free, alone);
    CHECK(t, alone && zf_local_comm(alone, 0)->world == 1 && !zf_local_comm(alone, 1));
    CHECK(t, !simple(zf_local_comm(alone, 0), ZF_OP_all_reduce, 1, 0, 300, &error));
    group = zf_local_new(&desc, &error);
    NEED(t, group, &error);
    test_defer(t, (test_cleanup *)zf_local_free, group);
    for (int r = 0; r < 5; r++) {
        zf_comm *comm = zf_local_comm(group, r);
        CHECK(t, comm && comm->rank == r && comm->world == 5);
        CHECK(t, comm == zf_local_comm(group, r));
        zf_comm_free(comm); /* it is the group's: nothing happens */
    }
    CHECK(t, !zf_local_comm(group, -1) && !zf_local_comm(group, 5) && !zf_local_comm(NULL, 0));
    zf_local_free(NULL);
    zf_comm_free(NULL);
}
