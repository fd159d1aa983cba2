/* What a record says of its operator, tested by running the operator. Passes, plan and verifier all
 * use the record, so none of them would notice a wrong one.
 *
 * Every launch of every case of op_cases.h is run several times, over copies of its operands:
 *
 *     | guard | operand | guard |  ...  | guard | result, poisoned | guard |  | guard | scratch |
 *
 * and the results are compared. A claim that no case has tested fails too. */
#include "op_cases.h"
#include "records.h"

#include <pthread.h>

enum {
    GUARD = 64,
    ARRAYS = OPERANDS + 1 + ZF_MAX_SAVED, /* operands, the result, what is saved */
    REST = 8                              /* the guard's pattern */
};

/* What has been seen of an operator, as bits. */
enum {
    RAN = 1,
    MOVED = 2,  /* its elements or rows, in another order, gave the same in that order */
    DREW = 4,   /* another seed gave another result */
    SHOWED = 8, /* it was the bytes of an operand */
    FOLDED = 16,
    RATED = 32, /* without a learning rate it left its parameter alone */
    COUNTED = 64
};

static struct watch {
    test *t;
    const op_case *c;
    const sizes *z;
    session *session;
    zf_backend inner;              /* whose launch this one is in the place of */
    uint32_t seen[ZF_OP_COUNT];    /* of these bits */
    uint32_t written[ZF_OP_COUNT]; /* operands that have changed, */
    uint32_t writes[ZF_OP_COUNT];  /* and those that may */
} watch;

/* A launch over memory of its own. */
typedef struct copy {
    zf_launch launch;
    zf_array args[OPERANDS], saved[ZF_MAX_SAVED];
    zf_run run;
    unsigned char *memory[ARRAYS + 1]; /* with their guards; the last is scratch */
    size_t bytes[ARRAYS + 1];
} copy;

static size_t bytes_of(const zf_array *a)
{
    return (size_t)zf_shape_count(a->shape) * zf_dtype_size(a->dtype);
}

/* Memory between guards, holding `from`, or poison. */
static void *guarded(copy *c, int k, const void *from, size_t bytes, unsigned char poison)
{
    unsigned char *p = c->memory[k] = malloc(bytes + 2 * GUARD + 64);
    c->bytes[k] = bytes;
    if (!p) return NULL;
    memset(p, REST, bytes + 2 * GUARD + 64);
    if (from && bytes) memcpy(p + GUARD, from, bytes);
    else memset(p + GUARD, poison, bytes);
    return p + GUARD;
}

static void copy_free(copy *c)
{
    for (int k = 0; k <= ARRAYS; k++) free(c->memory[k]);
}

/* Where array k of the copy lies; NULL where there is none. */
static unsigned char *array_at(const copy *c, int k) { return c->memory[k] + GUARD; }

/* Runs the launch over copies of its operands; all other memory holds `poison`. Operand k comes
 * from from[k] where that is not NULL. False where it failed or broke a rule. */
static bool run_copy(const zf_launch *l, copy *c, unsigned char poison, const zf_run *run,
                     const void *const *from)
{
    size_t scratch;
    bool good = true;
    memset(c, 0, sizeof *c);
    c->launch = *l;
    c->launch.args = c->args;
    c->run = *run;
    c->launch.run = &c->run;
    for (int k = 0; k < l->arg_count; k++) {
        c->args[k] = l->args[k];
        for (int j = 0; j < k; j++) /* one operand twice */
            if (l->args[j].data == l->args[k].data && l->args[k].data && !(from && from[k]))
                c->args[k].data = c->args[j].data;
        if (c->args[k].data == l->args[k].data)
            c->args[k].data = guarded(c, k, from && from[k] ? from[k] : l->args[k].data,
                                      bytes_of(&l->args[k]), poison);
    }
    if (l->out.data) c->launch.out.data = guarded(c, OPERANDS, NULL, bytes_of(&l->out), poison);
    for (int k = 0; k < ZF_MAX_SAVED && l->saved; k++) {
        c->saved[k] = l->saved[k];
        if (l->saved[k].data)
            c->saved[k].data = guarded(c, OPERANDS + 1 + k, NULL, bytes_of(&l->saved[k]), poison);
    }
    if (l->saved) c->launch.saved = c->saved;
    scratch = watch.inner.scratch(watch.inner.self, l);
    c->launch.scratch = scratch ? guarded(c, ARRAYS, NULL, scratch, poison) : NULL;
    good = !watch.inner.launch(watch.inner.self, &c->launch);
    for (int k = 0; k <= ARRAYS && good; k++)
        for (int i = 0; c->memory[k] && i < GUARD && good; i++)
            good = c->memory[k][i] == REST && array_at(c, k)[c->bytes[k] + (size_t)i] == REST;
    if (!good)
        wrong(watch.t, __LINE__, watch.c, watch.z, "%s: %s", zf_op_name(l->op),
              l->error->status ? l->error->text : "it writes where it must not");
    return good;
}

/* The result and what is saved are the same in both. */
static bool same_results(const copy *a, const copy *b)
{
    for (int k = OPERANDS; k < ARRAYS; k++)
        if (a->memory[k] && memcmp(array_at(a, k), array_at(b, k), a->bytes[k])) return false;
    return true;
}

#define claim(l, condition, ...)                                                                   \
    do {                                                                                           \
        char said[200];                                                                            \
        if (condition) break;                                                                      \
        snprintf(said, sizeof said, __VA_ARGS__);                                                  \
        wrong(watch.t, __LINE__, watch.c, watch.z, "%s: %s", zf_op_name((l)->op), said);           \
    } while (0)

/* Operands that are written may change, all others do not. */
static void check_writes(const zf_launch *l, const claims *of, const copy *c)
{
    for (int k = 0; k < l->arg_count; k++) {
        bool changed =
            l->args[k].data && c->memory[k] && memcmp(array_at(c, k), l->args[k].data, c->bytes[k]);
        claim(l, !changed || of->writes >> k & 1, "operand %d has changed, which it does not write",
              k);
        watch.written[l->op] |= (uint32_t)changed << k;
    }
    watch.writes[l->op] |= of->writes;
}

/* to = from with its units of `unit` bytes in another order: each takes the place of the one
 * `by` units further on. */
static void turn(unsigned char *to, const unsigned char *from, size_t bytes, size_t unit, size_t by)
{
    for (size_t i = 0; i < bytes; i += unit) memcpy(to + (i + by * unit) % bytes, from + i, unit);
}

/* Elements (unit in elements) of the operands in `turned` in another order: the result's are in it
 * too. */
static void check_turned(const zf_launch *l, const copy *c, uint32_t turned, const int64_t *unit,
                         int64_t out_unit, const char *what)
{
    unsigned char *memory[OPERANDS] = {NULL}, *expected = kept_raw[0];
    const void *from[OPERANDS] = {NULL};
    copy again;
    size_t size = zf_dtype_size(l->out.dtype), bytes = bytes_of(&l->out);
    for (int k = 0; k < l->arg_count; k++)
        if (turned >> k & 1 && (memory[k] = malloc(bytes_of(&l->args[k]) + 1))) {
            turn(memory[k], l->args[k].data, bytes_of(&l->args[k]),
                 (size_t)unit[k] * zf_dtype_size(l->args[k].dtype), 1);
            from[k] = memory[k];
        }
    if (run_copy(l, &again, 0xa5, l->run, from)) {
        turn(expected, array_at(c, OPERANDS), bytes, (size_t)out_unit * size, 1);
        claim(l, !memcmp(expected, array_at(&again, OPERANDS), bytes),
              "it is not %s: another order of the operands is not that of the result", what);
        watch.seen[l->op] |= MOVED;
        copy_free(&again);
    }
    for (int k = 0; k < OPERANDS; k++) free(memory[k]);
}

/* Elements, or rows over the last dimension where some operand is one for all of them. */
static void check_elementwise(const zf_launch *l, const copy *c)
{
    int64_t count = zf_shape_count(l->out.shape), unit[OPERANDS],
            last = l->out.shape.rank ? l->out.shape.dims[l->out.shape.rank - 1] : 1;
    uint32_t turned = 0;
    bool vectors = false;
    for (int k = 0; k < l->arg_count; k++) {
        int64_t n = zf_shape_count(l->args[k].shape);
        if (n == count) turned |= 1u << k;
        else if (n == last && l->args[k].shape.rank == 1) vectors = true;
        else if (n != 1) return;
    }
    if (count < 3 || (vectors && count / last < 2)) return;
    for (int k = 0; k < OPERANDS; k++) unit[k] = vectors ? last : 1;
    check_turned(l, c, turned, unit, unit[0], "ELEMENTWISE");
}

static void check_rows(const zf_launch *l, const claims *of, const copy *c)
{
    const zf_shape *over = &l->args[of->rows].shape;
    int64_t rows = zf_shape_count(*over) / (over->rank ? over->dims[over->rank - 1] : 1);
    int64_t unit[OPERANDS] = {0};
    uint32_t turned = 0;
    if (rows < 3) return;
    claim(l, zf_shape_count(l->out.shape) % rows == 0,
          "it is not BY_ROWS: the result has other rows");
    if (zf_shape_count(l->out.shape) % rows) return;
    for (int k = 0; k < l->arg_count; k++) {
        if (of->whole >> k & 1) continue;
        claim(l, zf_shape_count(l->args[k].shape) % rows == 0, "operand %d has other rows", k);
        unit[k] = zf_shape_count(l->args[k].shape) / rows;
        turned |= 1u << k;
    }
    check_turned(l, c, turned, unit, zf_shape_count(l->out.shape) / rows, "BY_ROWS");
}

/* Another seed changes the result of an operator that draws random numbers, or whose coin is its
 * attribute, and of no other. */
static void check_random(const zf_launch *l, const copy *c, uint32_t traits)
{
    zf_run other = *l->run;
    copy again;
    other.seed += 12345;
    other.step += 1;
    if (run_copy(l, &again, 0xa5, &other, NULL)) {
        bool same = same_results(c, &again);
        claim(l, same || traits & ZF_OP_RANDOM || l->op == ZF_OP_layer_drop,
              "another seed or step gives another result");
        if (!same) watch.seen[l->op] |= DREW;
        copy_free(&again);
    }
}

/* The result is the bytes of the operand of which it is a view, and a kernel that writes there does
 * not change them. */
static void check_view(const zf_launch *l, const claims *of, const copy *c)
{
    zf_launch over = *l;
    const unsigned char *bytes = l->args[of->views].data;
    unsigned char *from = array_at(c, of->views) + of->at;
    claim(l, !memcmp(array_at(c, OPERANDS), bytes + of->at, c->bytes[OPERANDS]),
          "it is not the bytes of operand %d from %lld on", (int)of->views, (long long)of->at);
    over.args = c->args;
    over.out.data = from;
    claim(l,
          !watch.inner.launch(watch.inner.self, &over) &&
              !memcmp(from, bytes + of->at, c->bytes[OPERANDS]),
          "it moves bytes where it is a view");
    watch.seen[l->op] |= SHOWED;
}

/* Constants are folded by the reference kernel, so it and the fast one round alike. */
static void check_folded(test *t, const zf_launch *l, const copy *c)
{
    zf_error error = {ZF_OK, ""};
    zf_backend *reference;
    zf_launch plain = *l;
    copy again;
    zf_backend inner = watch.inner;
    if (l->out.dtype != ZF_F32) return;
    if (l->op == ZF_OP_scale && ZF_FLOAT(l, scale, by) != (float)ZF_FLOAT(l, scale, by)) return;
    reference =
        zf_cpu_backend(&(zf_cpu_desc){.reference = true, .allocator = t->allocator}, &error);
    if (!reference) return;
    watch.inner = *reference;
    plain.backend = reference->self;
    if (run_copy(&plain, &again, 0xa5, l->run, NULL)) {
        claim(l, same_results(c, &again), "it is not FOLDABLE: the reference gives other bits");
        watch.seen[l->op] |= FOLDED;
        copy_free(&again);
    }
    watch.inner = inner;
    zf_backend_free(reference);
}

/* With a learning rate of 0 an update leaves operand 0 alone. */
static void check_rate(const zf_launch *l, const claims *of)
{
    static const unsigned char none[16];
    const void *from[OPERANDS] = {NULL};
    copy again;
    from[of->rate] = none;
    if (run_copy(l, &again, 0xa5, l->run, from)) {
        claim(l, !memcmp(array_at(&again, 0), l->args[0].data, again.bytes[0]),
              "operand %d is no learning rate: without one the parameter changes", (int)of->rate);
        watch.seen[l->op] |= RATED;
        copy_free(&again);
    }
}

/* A sum of products of ones counts them: an element of a bilinear result is how many were added.
 * What a product begins with is 0. */
static void check_flops(const zf_launch *l)
{
    const void *from[OPERANDS] = {kept_raw[0], kept_raw[1], kept[1]};
    copy again;
    int64_t count = zf_shape_count(l->out.shape);
    double sum = 0;
    memset(kept[1], 0, sizeof kept[1]);
    for (int k = 0; k < 2; k++) {
        int64_t n = zf_shape_count(l->args[k].shape);
        for (int64_t i = 0; i < n; i++) kept[0][i] = 1;
        encode(kept_raw[k], l->args[k].dtype, kept[0], n);
    }
    if (run_copy(l, &again, 0xa5, l->run, from)) {
        decode(kept[0], l->out.dtype, array_at(&again, OPERANDS), count);
        for (int64_t i = 0; i < count; i++) sum += kept[0][i];
        claim(l, zf_launch_flops(l) == 2 * sum, "%g FLOPs are said, %g are done",
              zf_launch_flops(l), 2 * sum);
        watch.seen[l->op] |= COUNTED;
        copy_free(&again);
    }
}

static zf_status watched_launch(void *self, const zf_launch *l)
{
    uint32_t traits = zf_op_traits_of(l->op);
    claims of = claims_of(watch.session->graph, l->node);
    copy first, second;
    bool small = l->arg_count <= OPERANDS;
    (void)self;
    if (!small || !run_copy(l, &first, 0xa5, l->run, NULL)) goto run;
    watch.seen[l->op] |= RAN;
    check_writes(l, &of, &first);
    if (run_copy(l, &second, 0x3c, l->run, NULL)) {
        claim(l, same_results(&first, &second),
              "its result depends on what was there before, in the result or in scratch");
        copy_free(&second);
    }
    if (l->out.data && zf_shape_count(l->out.shape) > 0) {
        bool random = traits & ZF_OP_RANDOM;
        check_random(l, &first, traits);
        if (traits & ZF_OP_ELEMENTWISE && !random) check_elementwise(l, &first);
        if (traits & ZF_OP_BY_ROWS) check_rows(l, &of, &first);
        if (of.views >= 0 && of.at >= 0 && !(of.writes >> of.views & 1)) check_view(l, &of, &first);
        if (traits & ZF_OP_FOLDABLE) check_folded(watch.t, l, &first);
        if (l->op == ZF_OP_matmul ||
            (l->op == ZF_OP_linear && l->arg_count == 2 && !ZF_INT(l, linear, activation)))
            check_flops(l);
    }
    if (of.rate) check_rate(l, &of);
    copy_free(&first);
run:
    return watch.inner.launch(watch.inner.self, l);
}

/* Plans place a view over its operand and do not launch it. Here it is launched, over bytes that
 * another case has left. */
static void check_views(const session *s)
{
    static const zf_run run = {.seed = 5, .step = 1, .world = 1, .nodes = 1};
    zf_array args[64];
    zf_launch l;
    for (int32_t i = 0; launch_at(s->graph, i, &l, args); i++) {
        claims of = claims_of(s->graph, l.node);
        if (of.views < 0 || !(zf_op_traits_of(l.op) & ZF_OP_VIEW) || of.at < 0) continue;
        for (int k = 0; k < l.arg_count; k++) args[k].data = operand[k];
        l.out.data = kept[2];
        l.run = &run, l.error = &watch.session->error, l.backend = watch.inner.self;
        watched_launch(NULL, &l);
    }
}

/* The operators that have a trait have shown it, unless no case runs them here. */
static void check_seen(test *t, uint32_t trait, uint32_t but, uint32_t seen, const char *text)
{
    for (int op = ZF_OP_none + 1; op < ZF_OP_COUNT; op++) {
        uint32_t traits = zf_op_traits_of((zf_op)op);
        if (!(traits & trait) || traits & but || !(watch.seen[op] & RAN)) continue;
        if (!(watch.seen[op] & seen)) test_fail(t, __FILE__, __LINE__, zf_op_name((zf_op)op), text);
    }
}

TEST_ONCE(operators_are_what_their_records_say)
{
    static const sizes z = {7, 33, 3};
    static session s;
    memset(&watch, 0, sizeof watch);
    watch.t = t, watch.z = &z, watch.session = &s;
    test_defer(t, session_end, &s);
    for (int n = 0; n < CASES; n++) {
        zf_backend *cpu = session_cpu(t, &s, (zf_cpu_desc){.threads = 2}), watched;
        if (!cpu || !fits(&cases[n], &z)) return;
        watch.c = &cases[n];
        watch.inner = watched = *cpu;
        watched.launch = watched_launch;
        watched.run = NULL;
        fill(watch.c, &z, ZF_F32, false);
        if (!session_graph(t, &s, watch.c, &z, ZF_F32, false, 0) &&
            !(s.program = zf_compile(s.graph, &(zf_compile_desc){.backend = &watched, .seed = 5})))
            session_failed(&s);
        if (s.error.status || session_step(&s, watch.c)) {
            stopped(t, __LINE__, watch.c, &z, &s);
            return;
        }
        check_views(&s);
        session_close(&s);
    }
    check_seen(t, ZF_OP_ELEMENTWISE, ZF_OP_RANDOM, MOVED, "no case shows that it is ELEMENTWISE");
    check_seen(t, ZF_OP_BY_ROWS, 0, MOVED, "no case shows that it is BY_ROWS");
    check_seen(t, ZF_OP_RANDOM, 0, DREW, "no case shows that it is RANDOM");
    check_seen(t, ZF_OP_VIEW, ZF_OP_COLLECTIVE, SHOWED, "no case shows what it is a view of");
    check_seen(t, ZF_OP_FOLDABLE, 0, FOLDED, "no case shows that it is FOLDABLE");
    for (int op = ZF_OP_none + 1; op < ZF_OP_COUNT; op++)
        if (watch.written[op] != (watch.writes[op] & (uint32_t) - (int32_t)(watch.seen[op] & RAN)))
            test_fail(t, __FILE__, __LINE__, zf_op_name((zf_op)op),
                      "it is said to write an operand that never changes");
    CHECK(t, watch.seen[ZF_OP_matmul] & COUNTED && watch.seen[ZF_OP_linear] & COUNTED);
    CHECK(t, watch.seen[ZF_OP_sgd] & RATED && watch.seen[ZF_OP_adamw] & RATED);
    CHECK(t, watch.seen[ZF_OP_lamb_apply] & RATED && watch.seen[ZF_OP_lion] & RATED);
}
/* ------------------------------------------------------------------------------- collectives */

enum { WORLD = 3 };

static const char *const collectives[] = {
    "%1 = input \"x\" : f32[6]\n"
    "%2 = all_reduce %1 {world=3} : f32[6]\n"
    "%3 = all_to_all %1 {world=3} : f32[6]\n"
    "%4 = bcast %1 {world=3 root=2} : f32[6]\n"
    "%5 = all_gather %1 {world=3} : f32[18]\n"
    "%6 = reduce_scatter %1 {world=3} : f32[2]\n"
    "%7 = accumulator : f32[2]\n"
    "%8 = reduce_scatter %1, %7 {world=3} : f32[2]\n"
    "%9 = accumulator : f32[6]\n"
    "%10 = all_reduce %1, %9 {world=3} : f32[6]\n",
    "%1 = param \"w\" : f32[6]\n"
    "%2 = bucket %1 {at=[0] size=3072} : f32[3072]\n"
    "%3 = shard %2 {world=3} : f32[1024]\n"
    "update:\n"
    "%4 = all_gather %3, %2 {world=3} : f32[3072]\n",
    ("mesh context=3\n%1 = input \"x\" : f32[6]+context\n"
     "%2 = reduce %1 {world=3 over=context root=1} : f32[6@context]\n"),
    "mesh pipe=3\n%1 = input \"x\" : f32[6]\n%2 = send %1 {world=3 over=pipe from=2 to=1} : f32[6]\n"};

/* One rank's launch, over memory of its own. */
typedef struct member {
    const zf_launch *launch;
    int32_t rank;
    int64_t micro;
    bool over;   /* the result lies over operand 0 */
    int32_t view; /* it lies over this operand; -1: over none */
    float before; /* in operand 1, and as poison */
    zf_comm *comm;
    zf_backend *cpu;
    zf_error error;
    copy copy;
    float result[3072];
    bool good;
} member;

/* Element i of operand k of a rank: small, so that sums are exact. */
static float collective_element(const member *m, int k, int64_t i)
{
    return k ? m->before + (float)(i % 5) : (float)((i * 7 + m->rank * 5) % 11) - 5;
}

static void *run_member(void *object)
{
    member *m = object;
    copy *c = &m->copy;
    const size_t bytes = bytes_of(&m->launch->out);
    memset(c, 0, sizeof *c);
    c->launch = *m->launch;
    c->launch.args = c->args;
    c->run = (zf_run){.seed = 5,
                      .step = 1,
                      .micro = m->micro,
                      .rank = m->rank,
                      .world = WORLD,
                      .nodes = 1,
                      .shard = m->rank};
    c->launch.run = &c->run;
    c->launch.error = &m->error;
    if (c->launch.op == ZF_OP_send)
        c->launch.group = m->rank ? (zf_group){1, 1, 2} : (zf_group){0, 1, 1};
    c->launch.comm = m->comm, c->launch.backend = m->cpu->self;
    for (int k = 0; k < c->launch.arg_count; k++) {
        c->args[k] = m->launch->args[k];
        c->args[k].data = guarded(c, k, NULL, bytes_of(&c->args[k]), 0);
        for (int64_t i = 0; c->args[k].data && i < zf_shape_count(c->args[k].shape); i++)
            ((float *)c->args[k].data)[i] = collective_element(m, k, i);
    }
    c->launch.out.data = m->view >= 0 ? c->args[m->view].data
                         : m->over    ? c->args[0].data
                                      : guarded(c, OPERANDS, NULL, bytes, (unsigned char)m->before);
    m->good = !m->cpu->launch(m->cpu->self, &c->launch);
    if (m->good) memcpy(m->result, c->launch.out.data, bytes);
    else m->comm->abort(m->comm->self, m->error.status, m->error.text);
    return NULL;
}

/* Runs the launch on all ranks and looks at their operands. False where it failed. */
static bool run_members(const zf_launch *l, const claims *of, member *members, zf_backend *const *cpus)
{
    pthread_t threads[WORLD];
    zf_local *group = zf_local_new(&(zf_local_desc){.world = WORLD}, NULL);
    bool good = group != NULL;
    for (int r = 0; r < WORLD && group; r++) {
        member *m = &members[r];
        m->launch = l, m->rank = r, m->cpu = cpus[r];
        m->comm = zf_local_comm(group, r);
        m->view = of->views;
        m->error = (zf_error){ZF_OK, ""};
        if (pthread_create(&threads[r], NULL, run_member, m)) abort();
    }
    for (int r = 0; r < WORLD && group; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < WORLD && group; r++) {
        copy *c = &members[r].copy;
        good = good && members[r].good;
        claim(l, members[r].good, "rank %d: %s", r, members[r].error.text);
        for (int k = 0; k <= OPERANDS; k++)
            for (int i = 0; c->memory[k] && i < GUARD; i++)
                if (c->memory[k][i] != REST || array_at(c, k)[c->bytes[k] + (size_t)i] != REST)
                    good = false;
        claim(l, good, "it writes where it must not");
        for (int k = 0; k < l->arg_count && good; k++) {
            bool changed = false;
            for (int64_t i = 0; i < zf_shape_count(l->args[k].shape); i++)
                changed |= ((float *)c->args[k].data)[i] != collective_element(&members[r], k, i);
            if (k == 0 && members[r].over) continue;
            claim(l, !changed || of->writes >> k & 1,
                  "operand %d has changed, which it does not write", k);
            watch.written[l->op] |= (uint32_t)changed << k;
        }
        copy_free(c);
    }
    watch.writes[l->op] |= of->writes;
    watch.seen[l->op] |= RAN;
    zf_local_free(group);
    return good;
}

/* The results are the same, on all ranks; `added`: but for what was in operand 1. */
static bool same_members(const zf_launch *l, const member *a, const member *b, bool added)
{
    for (int r = 0; r < WORLD; r++)
        for (int64_t i = 0; i < zf_shape_count(l->out.shape); i++)
            if (a[r].result[i] !=
                b[r].result[i] - (added ? collective_element(&b[r], 1, i) : 0))
                return false;
    return true;
}

/* Collectives: which operands they write, where their results lie, and that these depend only on
 * the operands, unless there is an accumulator. */
static void check_collective(const zf_launch *l, const claims *of, zf_backend *const *cpus)
{
    static member first[WORLD], again[WORLD];
    uint32_t traits = zf_op_traits_of(l->op);
    const bool sums = l->op == ZF_OP_reduce_scatter || l->op == ZF_OP_all_reduce;
    memset(first, 0, sizeof first), memset(again, 0, sizeof again);
    claim(l, !(traits & ZF_OP_MUTATES) || l->arg_count == 1 || of->writes,
          "it has operand 1 and does not write it");
    claim(l, of->views < 0 || (of->at == 0 && of->writes >> of->views & 1),
          "its result lies over operand %d, which it does not write", (int)of->views);
    for (int r = 0; r < WORLD; r++) first[r].before = 1, again[r].before = 60;
    if (!run_members(l, of, first, cpus) || !run_members(l, of, again, cpus)) return;
    claim(l, same_members(l, first, again, false), "its result depends on what was there before");
    for (int r = 0; r < WORLD && sums && l->arg_count > 1; r++) again[r].micro = 1;
    if (again->micro && run_members(l, of, again, cpus))
        claim(l, same_members(l, first, again, true),
              "a later micro-batch is not added to what was there");
    for (int r = 0; r < WORLD; r++) again[r].micro = 0, again[r].over = true;
    if (traits & ZF_OP_INPLACE && l->arg_count == 1 && run_members(l, of, again, cpus))
        claim(l, same_members(l, first, again, false), "it is not INPLACE: over operand 0 it differs");
}

TEST_ONCE(collectives_are_what_their_records_say)
{
    static const sizes z = {7, 33, 3};
    static const op_case none = {.row = "a collective", .operands = "", .text = ""};
    static session s;
    zf_backend *cpus[WORLD];
    memset(&watch, 0, sizeof watch);
    watch.t = t, watch.z = &z, watch.c = &none, watch.session = &s;
    for (int r = 0; r < WORLD; r++) {
        NEED(t, cpus[r] = zf_cpu_backend(NULL, &s.error), &s.error);
        test_defer(t, (test_cleanup *)zf_backend_free, cpus[r]);
    }
    for (size_t k = 0; k < sizeof collectives / sizeof *collectives; k++) {
        zf_array args[64];
        zf_launch l;
        char text[1024];
        zf_graph *g;
        snprintf(text, sizeof text, "%s%s",
                 *collectives[k] == 'm' ? "" : "zero stage=1 world=3 micro_batches=1\n",
                 collectives[k]);
        g = zf_graph_parse(text, strlen(text), NULL, &s.error);
        NEED(t, g, &s.error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        for (int32_t i = 0; launch_at(g, i, &l, args); i++) {
            claims of = claims_of(g, l.node);
            if (zf_op_traits_of(l.op) & ZF_OP_COLLECTIVE) check_collective(&l, &of, cpus);
        }
    }
    for (int op = ZF_OP_none + 1; op < ZF_OP_COUNT; op++) {
        if (!(zf_op_traits_of((zf_op)op) & ZF_OP_COLLECTIVE)) continue;
        if (!(watch.seen[op] & RAN))
            test_fail(t, __FILE__, __LINE__, zf_op_name((zf_op)op), "no case runs it");
        if (watch.writes[op] & ~watch.written[op])
            test_fail(t, __FILE__, __LINE__, zf_op_name((zf_op)op),
                      "it is said to write an operand that never changes");
    }
}
