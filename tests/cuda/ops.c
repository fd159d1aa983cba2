/* Every operator on CUDA against the CPU, with the table of op_cases.h and the shapes that
 * tests/cuda/NAME.h add for kernels with tiles: in f32, bf16 and f16, in odd and empty shapes, with
 * the same bits in every order of concurrent work. It runs under tests/emulation/ (see block.cpp),
 * or on a GPU when it is linked to the toolkit's own libraries.
 *
 *     build/cuda/tests layer_norm      the cases of that row
 */
#include "../ops/op_cases.h"

#ifdef EMULATION
#include "../emulation/emulation.h"
#else
#define emulation_seed(seed) ((void)(seed))
#define emulation_report()   ""
#define emulation_clear()    ((void)0)
#endif

/* A case in sizes of its own: a file of these is a list {{"row", ...}, {R, N, M}}, ... */
typedef struct sized_case {
    op_case c;
    sizes z;
} sized_case;

static const sized_case sized_cases[] = {
#include "attention.h"
#include "experts.h"
#include "head.h"
#include "move.h"
#include "norm.h"
#include "update.h"
};

enum { SIZED_CASES = sizeof sized_cases / sizeof sized_cases[0], ROWS = 192, SEEDS = 3 };

/* -------------------------------------------------------------------- operands of their own
 *
 * A backend around another: what it launches has each operand, result and scratch in an allocation
 * of its own, exactly as long as it is, so that reads and writes outside them are found. Its own
 * memory is the host's.
 *
 *     arena (host)   | a | b | out |        allocations (device)   [a]  [b]  [out]  [scratch]
 */

typedef struct apart {
    zf_backend backend;
    zf_backend *inner;
    size_t shift; /* elements that operands begin after the start of their allocation */
    int share; /* of what draws: -1: it is whole; else a share that is cut along this dimension */
    bool runs; /* whose elements of it are not neighbours */
    test *t;
} apart;

typedef struct piece {
    const void *host;
    size_t bytes, shift;
    char *device;
    bool written;
} piece;

enum { PIECES = 64 };

static void *apart_allocate(void *self, size_t bytes, zf_error *error)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    (void)self;
    if (!memory) error->status = ZF_ERR_NOMEM;
    return memory;
}

static void apart_release(void *self, void *memory, size_t bytes)
{
    (void)self, (void)bytes;
    free(memory);
}

static zf_status apart_copy(void *self, void *to, const void *from, size_t bytes, zf_copy kind,
                            zf_error *error)
{
    (void)self, (void)kind, (void)error;
    if (bytes) memmove(to, from, bytes);
    return ZF_OK;
}

static size_t apart_scratch(void *self, const zf_launch *l)
{
    apart *a = self;
    zf_launch inner = *l;
    inner.backend = a->inner->self;
    return a->inner->scratch(a->inner->self, &inner);
}

static zf_status apart_queues(void *self, int32_t count, zf_error *error)
{
    apart *a = self;
    return a->inner->queues(a->inner->self, count, error);
}

static zf_status apart_check(void *self, const zf_launch *l)
{
    apart *a = self;
    zf_launch inner = *l;
    inner.backend = a->inner->self;
    return a->inner->check ? a->inner->check(a->inner->self, &inner) : ZF_OK;
}

/* The array in device memory: the piece that lies there already, or a new one. */
static bool move_out(apart *a, piece *pieces, int *count, zf_array *array, bool written, bool moved,
                     zf_error *error)
{
    size_t size = zf_dtype_size(array->dtype);
    size_t bytes = (size_t)zf_shape_count(array->shape) * size;
    piece *p = pieces;
    if (!array->data || !bytes) return true;
    while (p < pieces + *count && (p->host != array->data || p->bytes != bytes)) p++;
    if (p == pieces + *count) {
        *p = (piece){array->data, bytes, moved ? a->shift * size : 0, NULL, false};
        p->device = a->inner->allocate(a->inner->self, p->shift + bytes, error);
        if (!p->device) return false;
        ++*count;
        if (!written && a->inner->copy(a->inner->self, p->device + p->shift, p->host, bytes,
                                       ZF_HOST_TO_DEVICE, error))
            return false;
    }
    p->written |= written;
    array->data = p->device + p->shift;
    return true;
}

/* The second of two halves of a value, or every second run of it. */
static zf_share share_of(const apart *a, const zf_launch *l)
{
    const zf_array *of = l->op == ZF_OP_attention_grad ? &l->args[0] : &l->out;
    const bool heads = strstr(zf_launch_name(l), "attention") != NULL && a->share == 2;
    const int d = a->share < of->shape.rank ? a->share : 0;
    const int64_t n = of->shape.dims[d], each = heads ? n / ZF_INT(l, attention, heads) : 1;
    zf_share share = {.whole = of->shape};
    share.whole.dims[d] *= 2, share.at[d] = a->runs ? each : n, share.run[d] = a->runs ? each : 0;
    return share;
}

static zf_status apart_launch(void *self, const zf_launch *l)
{
    apart *a = self;
    zf_launch inner = *l;
    zf_share share;
    zf_array args[PIECES / 2], saved[ZF_MAX_SAVED];
    piece pieces[PIECES];
    int count = 0;
    bool mutates = zf_op_traits_of(l->op) & ZF_OP_MUTATES, good = l->arg_count <= PIECES / 2;
    size_t scratch = apart_scratch(self, l);
    unsigned char *host = NULL;
    inner.backend = a->inner->self;
    if (a->share >= 0 && zf_op_traits_of(l->op) & ZF_OP_RANDOM)
        share = share_of(a, l), inner.share = &share;
    inner.args = args;
    for (int i = 0; i < l->arg_count && good; i++) {
        args[i] = l->args[i];
        good = move_out(a, pieces, &count, &args[i], false, true, l->error);
        for (int k = 0; k < count && mutates; k++) pieces[k].written = true;
    }
    good = good && move_out(a, pieces, &count, &inner.out, true, false, l->error);
    for (int i = 0; i < ZF_MAX_SAVED && l->saved && good; i++) {
        saved[i] = l->saved[i];
        good = move_out(a, pieces, &count, &saved[i], true, false, l->error);
    }
    if (l->saved) inner.saved = saved;
    inner.scratch = NULL;
    if (scratch && good) inner.scratch = a->inner->allocate(a->inner->self, scratch, l->error);
    good = good && (!scratch || inner.scratch) && !a->inner->launch(a->inner->self, &inner) &&
           !a->inner->synchronize(a->inner->self, l->error);
    for (int i = 0; i < count; i++) {
        piece *p = &pieces[i];
        host = good ? malloc(p->bytes) : NULL;
        if (host && a->inner->copy(a->inner->self, host, p->device + p->shift, p->bytes,
                                   ZF_DEVICE_TO_HOST, l->error))
            good = false;
        if (host && good && !p->written && memcmp(host, p->host, p->bytes)) {
            l->error->status = ZF_ERR_BACKEND;
            snprintf(l->error->text, sizeof l->error->text, "node %%%d changed an operand",
                     (int)l->node);
            good = false;
        }
        if (host && good && p->written) memcpy((void *)(uintptr_t)p->host, host, p->bytes);
        free(host);
        a->inner->release(a->inner->self, p->device, p->shift + p->bytes);
    }
    if (inner.scratch) a->inner->release(a->inner->self, inner.scratch, scratch);
    if (!good && !l->error->status) l->error->status = ZF_ERR_BACKEND;
    return good ? ZF_OK : l->error->status;
}

static zf_status apart_wait(void *self, const zf_launch *l)
{
    (void)self, (void)l;
    return ZF_OK;
}

static zf_status apart_synchronize(void *self, zf_error *error)
{
    apart *a = self;
    return a->inner->synchronize(a->inner->self, error);
}

static apart apart_of(test *t, zf_backend *inner, size_t shift)
{
    return (apart){.backend = {.name = "apart",
                               .allocate = apart_allocate,
                               .release = apart_release,
                               .copy = apart_copy,
                               .scratch = apart_scratch,
                               .queues = apart_queues,
                               .launch = apart_launch,
                               .wait = apart_wait,
                               .synchronize = apart_synchronize,
                               .check = apart_check},
                   .inner = inner,
                   .shift = shift,
                   .share = -1,
                   .t = t};
}

/* ----------------------------------------------------------------------------- sessions */

static void free_backend(void *backend) { zf_backend_free(backend); }

/* The results of a step of a case: the value, and the operands that change. */
typedef struct part {
    zf_dtype dtype;
    int64_t first, count;
} part;

enum { PARTS = OPERANDS + 1 };

static int parts_of(session *s, const op_case *c, part *parts)
{
    int count = 0;
    int64_t at = 0;
    for (int k = -1; k < 0 || kind_of(c, k); k++) {
        zf_tensor from = zf_graph_find(s->graph, k < 0 ? "y" : operand_name(k));
        if (!zf_valid(from) || (k >= 0 && !is_mutable(kind_of(c, k)))) continue;
        parts[count] = (part){zf_tensor_dtype(from), at, zf_shape_count(zf_tensor_shape(from))};
        at += parts[count++].count;
    }
    return count;
}

/* run_case on a backend. */
static zf_status run_on(test *t, session *s, zf_backend *backend, const op_case *c, const sizes *z,
                        zf_dtype dtype, result *r)
{
    zf_status status = session_graph(t, s, c, z, dtype, false, 0);
    if (status) return status;
    s->program =
        zf_compile(s->graph, &(zf_compile_desc){.backend = backend, .seed = 5, .poison = true});
    if (!s->program) return session_failed(s);
    status = session_step(s, c);
    return status ? status : session_result(s, c, r);
}

/* ---------------------------------------------------------------------------- comparing */

/* The number of lines of the case, except the last, whose values have the dtype under test: as
 * often a value on the way to the result is rounded. */
static int roundings(const op_case *c)
{
    int count = 0;
    const char *last = strrchr(c->text, '\n');
    for (const char *at = c->text; last && (at = strstr(at, " : f[")) && at < last; at++) count++;
    return count;
}

/* Attention's probabilities, and what they and their gradients are multiplied by, are rounded to 16
 * bits for the products (ops/attention.c); and u, of which linear's activation makes y
 * (ops/linear.cu); a dequantised weight; and dz of a head. */
static int inner_roundings(const op_case *c)
{
    if (strstr(c->text, "linear ") && strstr(c->text, "bits=")) return 1;
    if (strstr(c->text, "head_logp_grad ") || strstr(c->text, "head_part_grad ")) return 1;
    if ((strstr(c->text, "head_logp ") || strstr(c->text, "head_part ")) &&
        strstr(c->text, "bits="))
        return 1;
    if (strstr(c->text, "head_loss ") && strstr(c->text, "bits=")) return 2;
    if (strstr(c->text, "linear ") && strstr(c->text, "activation=")) return 1;
    return strstr(c->text, "attention_grad") ? 3 : strstr(c->text, "attention ") ? 1 : 0;
}

/* Compares kept[0], what CUDA made of operands of `dtype`, with kept[1], what the CPU made of the
 * same numbers in f32.
 *
 * f32: the sum of squared differences is at most 1e-10 of the sum of squares; so no element is off
 * by more than 1e-5 of the root of that, here `near`. 16 bits: a result that is rounded once is off
 * by half a unit of its last place and what f32 is off by, `near`. Where n values on the way are
 * rounded, each to u, the sum of squares is ((n + 1) u)^2 of that of the result's. */
static void compare(test *t, const op_case *c, const sizes *z, zf_dtype dtype, const part *parts,
                    int count, const char *how)
{
    for (int p = 0; p < count; p++) {
        const double *got = kept[0] + parts[p].first, *want = kept[1] + parts[p].first;
        const bool narrow = parts[p].dtype == ZF_BF16 || parts[p].dtype == ZF_F16;
        const double u = dtype == ZF_BF16 ? 0x1p-8 : dtype == ZF_F16 ? 0x1p-11 : 0;
        const int inner = u ? roundings(c) + inner_roundings(c) : 0;
        const bool is_float = narrow || parts[p].dtype == ZF_F32;
        double off = 0, all = 0, near, most;
        for (int64_t i = 0; i < parts[p].count; i++) {
            if (isfinite(want[i])) all += want[i] * want[i];
            if (isfinite(want[i]) && isfinite(got[i]))
                off += (got[i] - want[i]) * (got[i] - want[i]);
            else if (got[i] != want[i] && !(isnan(got[i]) && isnan(want[i]))) off = INFINITY;
            if (off < INFINITY && !((c->scale == EXACT && !inner) || !is_float)) continue;
            if (got[i] == want[i] || (isnan(got[i]) && isnan(want[i]))) continue;
            wrong(t, __LINE__, c, z, "%s, %s: element %lld of part %d is %.9g, on the CPU %.9g",
                  zf_dtype_name(dtype), how, (long long)i, p, got[i], want[i]);
            return;
        }
        near = 1e-5 * sqrt(all);
        if (!(all > 0) && c->scale == NORM) all = 1; /* of what cancels to 0 */
        most = inner ? (inner + 1) * u * ((inner + 1) * u) : 1e-10;
        if (narrow && !inner) {
            for (int64_t i = 0; i < parts[p].count; i++) {
                double bound = near + 0x1.01p0 * u * (fabs(want[i]) + near) +
                               (dtype == ZF_F16 ? 0x1p-25 : 0x1p-134);
                if (!isfinite(want[i]) || fabs(got[i] - want[i]) <= bound) continue;
                wrong(t, __LINE__, c, z,
                      "%s, %s: element %lld of part %d is %.9g, on the CPU in f32 %.9g, %.3g times "
                      "the bound off",
                      zf_dtype_name(dtype), how, (long long)i, p, got[i], want[i],
                      fabs(got[i] - want[i]) / bound);
                return;
            }
        } else if (!(off <= most * all + 1e-60)) {
            wrong(t, __LINE__, c, z, "%s, %s: NMSE %.3g of part %d, which may be %.3g",
                  zf_dtype_name(dtype), how, off / all, p, most);
            return;
        }
    }
}

static void check_report(test *t, const op_case *c, const sizes *z, zf_dtype dtype)
{
    if (*emulation_report())
        wrong(t, __LINE__, c, z, "%s: %s", zf_dtype_name(dtype), emulation_report());
    emulation_clear();
}

/* -------------------------------------------------------------------------------- tests */

/* f64 is the CPU's alone, but for sums of squares. */
static bool needs_f64(const op_case *c)
{
    return strstr(c->text, "f64") && !strstr(c->text, "squares ");
}

/* Runs a case in one size and dtype: against the CPU, in several orders, and unless it is large,
 * with separate operands. Of 16 bits, in an order of the dtype's own, and with operands that begin
 * where only their own size divides. */
static void check_case(test *t, session *s, zf_backend *cuda, const op_case *c, const sizes *z,
                       zf_dtype dtype, bool large)
{
    result got = {.values = kept[0], .raw = kept_raw[0]}, want = {.values = kept[1]};
    part parts[PARTS];
    int count;
    const bool is_f32 = dtype == ZF_F32;
    const uint64_t first = is_f32 ? 2 : SEEDS + (uint64_t)dtype;
    const uint64_t orders = TEST_SANITIZED ? 0 : is_f32 && !large ? SEEDS - 1 : 1;
    fill(c, z, dtype, false);
    if (run_case(t, s, c, z, ZF_F32, (zf_cpu_desc){.reference = true}, 0, &want)) goto stop;
    session_close(s);
    emulation_seed(1);
    if (run_on(t, s, cuda, c, z, dtype, &got)) goto stop;
    count = parts_of(s, c, parts);
    session_close(s);
    check_report(t, c, z, dtype);
    compare(t, c, z, dtype, parts, count, "in one arena");
    for (uint64_t seed = first; seed < first + orders; seed++) {
        got = (result){.values = kept[0], .raw = kept_raw[1]};
        emulation_seed(seed);
        if (run_on(t, s, cuda, c, z, dtype, &got)) goto stop;
        session_close(s);
        if (memcmp(kept_raw[0], kept_raw[1], got.bytes))
            wrong(t, __LINE__, c, z, "%s: other bits in another order, seed %d",
                  zf_dtype_name(dtype), (int)seed);
        check_report(t, c, z, dtype);
    }
    for (size_t shift = !is_f32; shift < 2 && !large; shift++) {
        apart a = apart_of(t, cuda, shift);
        a.backend.self = &a;
        got = (result){.values = kept[0], .raw = kept_raw[1]};
        if (run_on(t, s, &a.backend, c, z, dtype, &got)) goto stop;
        session_close(s);
        check_report(t, c, z, dtype);
        compare(t, c, z, dtype, parts, count, shift ? "operands one element off" : "apart");
    }
    return;
stop:
    check_report(t, c, z, dtype);
    /* Some operands must be f32, though those of their letter are 16 bits: then it is a graph of f32 */
    if (dtype != ZF_F32 && s->error.status == ZF_ERR_PARSE)
        session_close(s), session_graph(t, s, c, z, ZF_F32, false, 0);
    if (s->error.status) stopped(t, __LINE__, c, z, s);
    session_close(s);
}

/* Runs all cases that the table has for the row after which the test is named. */
static void check_row(test *t)
{
    static const sizes some[] = {{1, 1, 1},     {3, 5, 2},    {0, 4, 3},   {4, 0, 2},
                                 {2, 3, 0},     {7, 33, 3},   {12, 64, 4}, {5, 300, 3},
                                 {33, 1027, 5}, {261, 19, 3}}; /* more than emulated blocks do at once */
    const size_t count = sizeof some / sizeof some[0];
    const char *row = t->self->name + strlen("cuda_");
    static session s;
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda = zf_cuda_backend(&(zf_cuda_desc){.allocator = t->allocator}, &error);
    NEED(t, cuda, &error);
    test_defer(t, free_backend, cuda);
    test_defer(t, session_end, &s);
    for (int n = 0; n < CASES + SIZED_CASES; n++) {
        const op_case *c = n < CASES ? &cases[n] : &sized_cases[n - CASES].c;
        const sizes *z = n < CASES ? some : &sized_cases[n - CASES].z;
        bool narrow = is_float_kind(c->operands[0]) && strcmp(c->row, "cast");
        bool squares = strstr(c->text, "attention") != NULL; /* of its length: shapes of its own */
        if (strcmp(c->row, row) || needs_f64(c)) continue;
        for (size_t i = 0; i < (n < CASES ? count : 1); i++)
            for (int dtype = ZF_F32; dtype <= (narrow ? ZF_F16 : ZF_F32); dtype++) {
                bool large = i >= count - 2 || (squares && n >= CASES);
                if (!fits(c, &z[i]) || (squares && i >= count - 3)) continue;
                /* Y is 128 R: more than there is room for. */
                if (z[i].R > 100 && (strstr(c->text, ",Y]") || strstr(c->operands, ",Y]")))
                    continue;
                if (dtype == ZF_F16 && (large || TEST_SANITIZED)) continue;
                if (large && n < CASES && TEST_SANITIZED) continue;
                /* A large one in one of the two dtypes, with many experts in f32. */
                if (large && TEST_ONE_IN > 1 && (n + (int)i + dtype + TEST_TURN) % 2) continue;
                if (c->flags & EXPERTS && z[i].N > 50 && dtype != ZF_F32) continue;
                /* A part of the small ones, and always that of 7 rows of 33. */
                if (i + 5 < count && (n + (int)i + dtype) % TEST_ONE_IN) continue;
                check_case(t, &s, cuda, c, &z[i], (zf_dtype)dtype, large);
            }
    }
}

/* What changes from step to step: a program's second step is captured as a graph, which the others
 * replay. Four steps on the device give the same bits as four without graphs, and what the CPU
 * gives. */
static zf_status run_steps(test *t, session *s, zf_backend *backend, const op_case *c,
                           const sizes *z, result *r)
{
    zf_status status = session_graph(t, s, c, z, ZF_F32, false, 0);
    if (status) return status;
    s->program = zf_compile(s->graph, &(zf_compile_desc){.backend = backend, .seed = 5});
    if (!s->program) return session_failed(s);
    status = session_step(s, c);
    for (int i = 0; i < 3 && !status; i++) status = session_check(s, zf_step(s->program));
    return status ? status : session_result(s, c, r);
}

TEST_ONCE(cuda_replays_steps)
{
    static const sizes z = {7, 33, 3};
    static session s;
    zf_error error = {ZF_OK, ""};
    zf_backend *backends[3] = {NULL};
    part parts[PARTS];
    int count = 0;
    backends[0] =
        zf_cpu_backend(&(zf_cpu_desc){.reference = true, .allocator = t->allocator}, &error);
    NEED(t, backends[0], &error);
    test_defer(t, free_backend, backends[0]);
    for (int b = 1; b < 3; b++) {
        zf_cuda_desc d = {.no_graphs = b == 1, .allocator = t->allocator};
        backends[b] = zf_cuda_backend(&d, &error);
        NEED(t, backends[b], &error);
        test_defer(t, free_backend, backends[b]);
    }
    test_defer(t, session_end, &s);
    for (int n = 0; n < CASES; n++) {
        const op_case *c = &cases[n];
        bool good = true;
        if (!(c->flags & (RANDOM | MUTATES)) || !fits(c, &z)) continue;
        fill(c, &z, ZF_F32, false);
        for (int b = 0; b < 3 && good; b++) {
            result r = {.values = kept[b == 0], .raw = kept_raw[b == 2]};
            emulation_seed((uint64_t)b);
            good = !run_steps(t, &s, backends[b], c, &z, &r);
            if (!good) stopped(t, __LINE__, c, &z, &s);
            if (good) count = parts_of(&s, c, parts);
            session_close(&s);
            check_report(t, c, &z, ZF_F32);
            if (good && b) compare(t, c, &z, ZF_F32, parts, count, b == 1 ? "steps" : "replayed");
            if (good && b == 2 && memcmp(kept_raw[0], kept_raw[1], r.bytes))
                wrong(t, __LINE__, c, &z, "other bits as a graph");
        }
    }
}

/* The operator of a case draws, and its value may be cut along dimension `d`. */
static bool draws_along(const op_case *c, int d)
{
    if (!strncmp(c->row, "attention", 9)) return d < (strstr(c->text, "causal") ? 1 : 3);
    if (!strncmp(c->row, "masked_softmax", 14)) return d < 1;
    return !strcmp(c->row, "dropout") || !strcmp(c->row, "draw");
}

/* What a rank draws of a value that is cut is what the whole value has there, as on the CPU. */
TEST_ONCE(cuda_shares_draw_as_on_the_cpu)
{
    static const sizes some[] = {{7, 33, 3}, {6, 32, 4}};
    static session s;
    zf_error error = {ZF_OK, ""};
    zf_backend *backends[2] = {NULL};
    int ran = 0;
    backends[0] =
        zf_cpu_backend(&(zf_cpu_desc){.reference = true, .allocator = t->allocator}, &error);
    NEED(t, backends[0], &error);
    test_defer(t, free_backend, backends[0]);
    backends[1] = zf_cuda_backend(&(zf_cuda_desc){.allocator = t->allocator}, &error);
    NEED(t, backends[1], &error);
    test_defer(t, free_backend, backends[1]);
    test_defer(t, session_end, &s);
    for (int n = 0; n < 4 * CASES; n++) {
        const op_case *c = &cases[n / 4];
        const sizes *z = &some[n / 4 % 2];
        const zf_dtype dtype = n / 4 % 3 == 2 && is_float_kind(c->operands[0]) ? ZF_BF16 : ZF_F32;
        part parts[PARTS];
        int count = 0;
        bool good = true;
        if (!(c->flags & RANDOM) || !draws_along(c, n % 4) || needs_f64(c) || !fits(c, z)) continue;
        fill(c, z, dtype, false);
        for (int b = 0; b < 2 && good; b++) {
            apart a = apart_of(t, backends[b], 0);
            result r = {.values = kept[!b], .raw = kept_raw[b]};
            a.backend.self = &a, a.share = n % 4, a.runs = n / 8 % 2;
            good = !run_on(t, &s, &a.backend, c, z, b ? dtype : ZF_F32, &r);
            if (!good && s.error.status != ZF_ERR_PARSE) stopped(t, __LINE__, c, z, &s);
            if (good) count = parts_of(&s, c, parts);
            session_close(&s);
        }
        check_report(t, c, z, dtype);
        if (good) compare(t, c, z, dtype, parts, count, "a share");
        ran += good;
    }
    CHECK(t, ran > 15);
}

#ifdef EMULATION
static void usual_device(void *nothing)
{
    (void)nothing;
    emulation_waves(32, EMULATION_MMA);
    emulation_shared(227 << 10);
}

/* A device as AMD's are: without tensor cores, 64 KiB of shared memory, waves of 64 lanes. Each row
 * gives what the CPU gives, with the bits of waves of 32 lanes. */
TEST_ONCE(cuda_waves_of_64_have_the_bits_of_32)
{
    static const sizes z = {7, 33, 3};
    static session s;
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda;
    emulation_waves(32, EMULATION_NO_CORES);
    emulation_shared(64 << 10);
    test_defer(t, usual_device, NULL);
    cuda = zf_cuda_backend(&(zf_cuda_desc){.allocator = t->allocator}, &error);
    NEED(t, cuda, &error);
    test_defer(t, free_backend, cuda);
    test_defer(t, session_end, &s);
    for (int n = 0; n < CASES; n += TEST_ONE_IN) {
        const op_case *c = &cases[n];
        const bool narrow = n % 2 && is_float_kind(c->operands[0]) && strcmp(c->row, "cast");
        const zf_dtype dtype = narrow ? ZF_BF16 : ZF_F32;
        result want = {.values = kept[1]};
        part parts[PARTS];
        int count = 0;
        bool good;
        if (needs_f64(c) || !fits(c, &z)) continue;
        fill(c, &z, dtype, false);
        good = !run_case(t, &s, c, &z, ZF_F32, (zf_cpu_desc){.reference = true}, 0, &want);
        session_close(&s);
        for (int i = 0; i < 2 && good; i++) {
            result r = {.values = kept[0], .raw = kept_raw[i]};
            emulation_waves(32 << i, EMULATION_NO_CORES);
            emulation_seed((uint64_t)i);
            good = !run_on(t, &s, cuda, c, &z, dtype, &r);
            if (!good && !(narrow && s.error.status == ZF_ERR_PARSE))
                stopped(t, __LINE__, c, &z, &s);
            if (good) count = parts_of(&s, c, parts);
            session_close(&s);
            check_report(t, c, &z, dtype);
            if (good && i && memcmp(kept_raw[0], kept_raw[1], r.bytes))
                wrong(t, __LINE__, c, &z, "%s: other bits in waves of 64", zf_dtype_name(dtype));
            if (good && i) compare(t, c, &z, dtype, parts, count, "in waves of 64");
        }
    }
}
#endif

#ifdef EMULATION
/* Devices of AMD with matrix cores: mfma in waves of 64 lanes, wmma in waves of 32, half of the
 * cases each. Products, linear and attention in 16 bits give what the CPU gives. Attention has one
 * tile of a narrow head, or two of a wide one. */
TEST_ONCE(cuda_matrix_cores_of_waves)
{
    static const char *const rows[] = {"matmul", "linear", "attention", "attention_grad"};
    static const sizes sizes_of[] = {{7, 33, 3}, {37, 66, 3}};
    static session s;
    test_defer(t, usual_device, NULL);
    test_defer(t, session_end, &s);
    emulation_shared(64 << 10);
    for (int kind = 0; kind < 2; kind++) {
        zf_error error = {ZF_OK, ""};
        zf_backend *cuda;
        emulation_waves(64 >> kind, kind ? EMULATION_WMMA : EMULATION_MFMA);
        cuda = zf_cuda_backend(&(zf_cuda_desc){.allocator = t->allocator}, &error);
        NEED(t, cuda, &error);
        test_defer(t, free_backend, cuda);
        for (int n = 0; n < CASES; n++) {
            const op_case *c = &cases[n];
            const zf_dtype dtype = n / 2 % 2 ? ZF_BF16 : ZF_F16;
            result want = {.values = kept[1]}, r = {.values = kept[0], .raw = kept_raw[0]};
            const sizes *z = &sizes_of[0];
            part parts[PARTS];
            int row = 0;
            while (row < 4 && strcmp(c->row, rows[row])) row++;
            if (row == 4 || n % 2 != kind) continue;
            if (row > 1 && n % 6 < 2) z = &sizes_of[1];
            if (needs_f64(c) || !fits(c, z)) continue;
            fill(c, z, dtype, false);
            if (run_case(t, &s, c, z, ZF_F32, (zf_cpu_desc){.reference = true}, 0, &want)) {
                session_close(&s);
                continue;
            }
            session_close(&s);
            emulation_seed((uint64_t)n);
            if (run_on(t, &s, cuda, c, z, dtype, &r)) {
                if (s.error.status != ZF_ERR_PARSE) stopped(t, __LINE__, c, z, &s);
            } else {
                compare(t, c, z, dtype, parts, parts_of(&s, c, parts), kind ? "wmma" : "mfma");
            }
            session_close(&s);
            check_report(t, c, z, dtype);
        }
    }
}
#endif

/* A test for each row of the table. */
__attribute__((constructor)) static void rows_register(void)
{
    static test_case tests[ROWS];
    static char names[ROWS][40];
    int count = 0;
    for (int n = 0; n < CASES; n++) {
        bool first = true;
        for (int k = 0; k < n; k++) first = first && strcmp(cases[k].row, cases[n].row);
        if (!first || count == ROWS) continue;
        snprintf(names[count], sizeof names[0], "cuda_%s", cases[n].row);
        tests[count] = (test_case){names[count], __FILE__, check_row, true, NULL, NULL};
        test_register(&tests[count++]);
    }
}
