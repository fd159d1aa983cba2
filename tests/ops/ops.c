/* Every operator, with the table of op_cases.h: its results against the same graph in f64, its
 * gradient against central differences, equal bits for every number of threads, odd and empty
 * shapes, results written over operands. */
#include "op_cases.h"
#include "../support/numbers.h"

static const char *const isas[] = {"portable", "avx2", "avx512", "neon", "amx"};
enum { AMX = 4 }; /* has other kernels than avx512 for products of bf16 */

/* -------------------------------------------------------------------------------- tests */

/* Operators that zf_zero appends need several ranks: tests/ranks/comm.c and
 * tests/passes/zero_*.zf run these. tests/rewrites/precision.c has a table of the loss scale. */
static const char *const elsewhere[] = {
    "loss_scale",     "loss_scale_update", "bucket",     "accumulator", "shard",   "all_gather",
    "reduce_scatter", "all_reduce",        "all_to_all", "bcast",       "send",    "release",
    "wait",           "copy",              "piece",      "delay", "part",    "collect",
    "reduce"};

/* The operator of that name; none where there is none. */
static zf_op op_called(const char *name)
{
    int op = ZF_OP_COUNT;
    while (--op > ZF_OP_none && strcmp(zf_op_name((zf_op)op), name)) {
    }
    return (zf_op)op;
}

/* Of TEST_CASE, for tests of all operators. */
static bool has_case(const test_case *self, const char *row)
{
    (void)self;
    for (int n = 0; n < CASES; n++)
        if (!strcmp(cases[n].row, row)) return true;
    return false;
}

/* The first case from number n on of an operator that is tested; CASES: none. */
static int next_case(int n)
{
    while (n < CASES && !test_concerns(cases[n].row)) n++;
    return n;
}

#define EACH_CASE(n) (int n = next_case(0); n < CASES; n = next_case(n + 1))

/* A row without a case fails. */
TEST_ONCE(operators_have_cases)
{
    for (int op = ZF_OP_none + 1; op < ZF_OP_COUNT; op++) {
        const char *row = zf_op_name((zf_op)op);
        bool found = false;
        for (int n = 0; n < CASES; n++) found |= !strcmp(cases[n].row, row);
        for (size_t n = 0; n < sizeof elsewhere / sizeof elsewhere[0]; n++)
            found |= !strcmp(elsewhere[n], row);
        if (!found) test_fail(t, __FILE__, __LINE__, row, "this row of ZF_OPS has no case");
    }
}

/* Whether a case of that row has a program with the code, or an activation of that name. */
static bool has_instruction(const char *row, int code, const char *name)
{
    for (int n = 0; n < CASES; n++) {
        const char *text = strstr(cases[n].text, name ? name : "program=[");
        if (strcmp(cases[n].row, row) || !text) continue;
        if (name) return true;
        for (text = strchr(text, '[') + 1; *text && text[-1] != ']';) {
            char *end;
            if (strtol(text, &end, 10) == code) return true;
            for (int k = 0; k < 2 && *end == ','; k++) (void)strtol(end + 1, &end, 10);
            text = end + 1;
        }
    }
    return false;
}

/* So does an instruction of chains, or an activation of linear, that no case has. */
TEST_ONCE(instructions_have_cases)
{
#define NOTHING(...)
#define ROW(name, least, most, attributes) attributes
#define CODE(op, code, kind, form, activation) {#op, "activation=" #op, code, form, activation},
    static const struct {
        const char *op, *name;
        int code, form, activation;
    } all[] = {ZF_OPS(ROW, NOTHING, NOTHING, CODE)};
#undef NOTHING
#undef ROW
#undef CODE
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++) {
        if (!has_instruction("chain", all[n].code, NULL))
            test_fail(t, __FILE__, __LINE__, all[n].op, "no case of chain has this instruction");
        if (all[n].activation && !has_instruction("linear", 0, all[n].name))
            test_fail(t, __FILE__, __LINE__, all[n].op, "no case of linear has this activation");
    }
}

static double growth_of(const op_case *c, int64_t i)
{
    return kind_of(c, 1) ? fabs(operand[0][i]) * (1 + fabs(operand[1][i]))
                         : 1 + fabs(operand[0][i]);
}

/* The bound for the error of the result: units of 2^-24 of the scale, and half a unit of a 16-bit
 * result, which the reference rounds from double and all others from f32. `sums`: it has the dtype
 * of sums. */
static double bound_of(const op_case *c, const sizes *z, zf_dtype dtype, bool reference, bool sums,
                       double exact, double terms, double largest)
{
    double units = c->units + (c->per ? (double)size_of(c->per, z) : 0);
    double scale = c->scale == TERMS || c->scale == GROWTH ? terms
                   : c->scale == NORM                      ? fmax(1, largest)
                                                           : fabs(exact);
    double bound = (reference ? 0x1.01p-24 * fabs(exact) : units * 0x1p-24 * scale) + 0x1p-149;
    if (c->scale == EXACT) return 0;
    if (sums) return bound;
    if (dtype == ZF_BF16) return bound + 0x1.01p-8 * (fabs(exact) + bound) + 0x1p-134;
    if (dtype == ZF_F16) return bound + 0x1.01p-11 * (fabs(exact) + bound) + 0x1p-25;
    return bound;
}

/* Compares kept[0], of `dtype`, with kept[1] in f64. */
static void compare(test *t, int line, const op_case *c, const sizes *z, zf_dtype dtype,
                    const char *kernel, int64_t count)
{
    const char *type = strrchr(c->text, ':');
    bool reference = !strcmp(kernel, "reference"), sums = type && type[2] == 'g';
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        if (fabs(kept[1][i]) > largest) largest = fabs(kept[1][i]);
    for (int64_t i = 0; i < count; i++) {
        double got = kept[0][i], exact = kept[1][i];
        double bound = bound_of(c, z, dtype, reference, sums, exact, kept[2][i], largest);
        if (got == exact || (isnan(got) && isnan(exact)) || fabs(got - exact) <= bound) continue;
        wrong(t, line, c, z,
              "%s, %s: element %lld is %.9g, exactly %.17g, %.3g times the bound off",
              zf_dtype_name(dtype), kernel, (long long)i, got, exact, fabs(got - exact) / bound);
        return;
    }
}

/* One case in one size against f64, by every instruction set and by the reference: in f32, and
 * where nothing on the way to the result is rounded to 16 bits in bf16 and f16, the reference in
 * small sizes. */
static void check_values(test *t, session *s, const op_case *c, const sizes *z)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    const char *second = strchr(c->text, '\n');
    bool one_row = !second, wide_start = second && strstr(c->text, ": g[R,2]\n") == second - 8;
    bool narrow =
        (one_row || wide_start) && is_float_kind(c->operands[0]) && strcmp(c->row, "cast") &&
        /* these round on the way: tests/attention/attention.c, tests/attention/cache.c,
         * tests/ops/logp.c */
        !strstr(c->row, "attention") && strcmp(c->row, "head_logp_grad");
    zf_cpu_desc plain = {.threads = 2};
    result got = {.values = kept[0]}, exact = {.values = kept[1]}, terms = {.values = kept[2]};
    for (int d = 0; d < (narrow ? 3 : 1); d++) {
        fill(c, z, dtypes[d], true);
        if (c->scale == TERMS && run_case(t, s, c, z, ZF_F64, plain, 0, &terms)) goto stop;
        session_close(s);
        fill(c, z, dtypes[d], false);
        for (int64_t i = 0; i < z->R * z->N && c->scale == GROWTH; i++)
            kept[2][i] = growth_of(c, i);
        if (run_case(t, s, c, z, ZF_F64, plain, 0, &exact)) goto stop;
        session_close(s);
        for (int k = one_row && (d == 0 || z->N < 100) ? -1 : 0; k <= AMX; k++) {
            zf_cpu_desc cpu = {.threads = 2, .reference = k < 0, .isa = k < 0 ? NULL : isas[k]};
            if (k >= 0 && !test_has_isa(t, isas[k])) continue;
            if (k == AMX && dtypes[d] != ZF_BF16) continue;
            if (run_case(t, s, c, z, dtypes[d], cpu, 0, &got)) goto stop;
            session_close(s);
            if (got.count != exact.count)
                wrong(t, __LINE__, c, z, "the f64 graph has another shape");
            else compare(t, __LINE__, c, z, dtypes[d], k < 0 ? "reference" : isas[k], got.count);
        }
    }
    return;
stop:
    stopped(t, __LINE__, c, z, s);
    session_close(s);
}

/* It has the same sizes for all z: it is run with the first. */
static bool has_one_size(const op_case *c)
{
    for (const char *at = c->operands; *at; at++)
        if (*at >= 'A' && *at <= 'Z') return false;
    for (const char *at = c->text; *at; at++)
        if (*at >= 'A' && *at <= 'Z') return false;
    return true;
}

TEST_CASE(operators_agree_with_f64, true, has_case)
{
    static const sizes some[] = {{1, 1, 1}, {3, 5, 2},  {0, 4, 3},    {4, 0, 2},
                                 {2, 3, 0}, {7, 33, 3}, {33, 257, 5}, {17, 1027, 3}};
    static session s;
    test_defer(t, session_end, &s);
    for EACH_CASE(n)
        for (size_t z = 0; z < sizeof some / sizeof some[0]; z++) {
            if (z > 4 && !TEST_TAKES(z + (size_t)n)) continue; /* the large ones */
            if (z && has_one_size(&cases[n])) break;
            if (fits(&cases[n], &some[z])) check_values(t, &s, &cases[n], &some[z]);
        }
}

/* Pieces of work are cut alike for any number of threads, so every instruction set has one result
 * to the last bit. */
TEST_CASE(operators_do_not_depend_on_threads, true, has_case)
{
    static const sizes big = {19, 1027, 3}, tall = {1027, 19, 3};
    static session s;
    test_defer(t, session_end, &s);
    for EACH_CASE(n)
        for (int k = 0; k <= AMX; k++)
            for (int threads = 1; threads <= 3 && test_has_isa(t, isas[k]); threads++) {
                const op_case *c = &cases[n];
                const zf_dtype dtype = k == AMX ? ZF_BF16 : ZF_F32;
                const bool many = strpbrk(c->operands, "XY"); /* elements of each of R */
                const sizes *z = (n % 2 || many) && fits(c, &big) ? &big : &tall;
                if (!TEST_TAKES(n + k)) continue;
                if (k == AMX && (c->scale != TERMS || !has_one_size(c))) continue;
                result r = {.values = kept[0], .raw = kept_raw[threads > 1]};
                if (threads == 1) fill(c, z, dtype, false);
                if (run_case(t, &s, c, z, dtype, (zf_cpu_desc){.threads = threads, .isa = isas[k]},
                             0, &r)) {
                    stopped(t, __LINE__, c, z, &s);
                    return;
                }
                session_close(&s);
                if (threads > 1 && memcmp(kept_raw[0], kept_raw[1], r.bytes))
                    wrong(t, __LINE__, c, z, "%s: %d threads give other bits than 1", isas[k],
                          threads);
            }
}

/* The case over parameters, in another precision. */
static zf_status run_retyped(test *t, session *s, const op_case *c, const sizes *z, zf_dtype dtype,
                             result *r)
{
    zf_status status = session_graph(t, s, c, z, ZF_F32, true, 0);
    if (!status && zf_precision(s->graph, &(zf_precision_desc){.dtype = dtype, .scale = 1}))
        status = session_failed(s);
    if (!status)
        status =
            session_compile(t, s, (zf_cpu_desc){.reference = true}, (zf_compile_desc){.seed = 5});
    if (!status) status = session_step(s, c);
    return status ? status : session_result(s, c, r);
}

/* zf_precision takes every row: in bf16 its value, which keeps its dtype, is that of f32 within a
 * rounding for each line, of operands that bf16 holds. */
TEST_CASE(operators_may_be_retyped, true, has_case)
{
    static const sizes z = {5, 12, 3};
    static session s;
    zf_dtype was = ZF_F32;
    int64_t count = 0;
    test_defer(t, session_end, &s);
    for EACH_CASE(n)
        for (int dtype = ZF_F32; dtype <= ZF_F16 && !(cases[n].flags & MUTATES); dtype++) {
            const op_case *c = &cases[n];
            result r = {.values = kept[dtype > 0]};
            double most = 1, lines = 2;
            zf_dtype is;
            for (const char *at = c->text; *at; at++) lines += *at == '\n';
            fill(c, &z, ZF_BF16, false);
            if (run_retyped(t, &s, c, &z, (zf_dtype)dtype, &r)) {
                stopped(t, __LINE__, c, &z, &s);
                return;
            }
            is = zf_tensor_dtype(zf_graph_find(s.graph, "y"));
            if (!dtype) was = is, count = r.count;
            session_close(&s);
            if (dtype && is != was && strcmp(c->row, "param") && strcmp(c->row, "cache"))
                wrong(t, __LINE__, c, &z, "%s of %s", zf_dtype_name(is), zf_dtype_name(was));
            if (dtype != ZF_BF16) continue;
            for (int64_t i = 0; i < count; i++)
                if (fabs(kept[0][i]) > most) most = fabs(kept[0][i]);
            for (int64_t i = 0; i < count; i++)
                if (!(fabs(kept[1][i] - kept[0][i]) <= lines * 0x1p-8 * most)) {
                    wrong(t, __LINE__, c, &z, "element %d is %g in bf16, %g in f32", (int)i,
                          kept[1][i], kept[0][i]);
                    break;
                }
        }
}

/* A case gives the same bits whichever operands it may write over, and does not change the
 * others. */
static void check_in_place(test *t, session *s, const op_case *c, const sizes *z, zf_dtype dtype)
{
    unsigned floats = 0;
    for (int k = 0; kind_of(c, k); k++) floats |= (unsigned)is_float_kind(kind_of(c, k)) << k;
    fill(c, z, dtype, false);
    for (unsigned copied = 0; copied <= floats; copied++) {
        result r = {.values = kept[0], .raw = kept_raw[copied != 0]};
        if (copied & ~floats) continue;
        if (run_case(t, s, c, z, dtype, (zf_cpu_desc){.threads = 2}, copied, &r)) {
            stopped(t, __LINE__, c, z, s);
            return;
        }
        if (copied && memcmp(kept_raw[0], kept_raw[1], r.bytes))
            wrong(t, __LINE__, c, z, "%s: other bits when operands %#x may be written over",
                  zf_dtype_name(dtype), copied);
        for (int k = 0; kind_of(c, k); k++) {
            zf_tensor x = zf_graph_find(s->graph, operand_name(k));
            int64_t count = zf_shape_count(zf_tensor_shape(x));
            zf_read(s->program, x, raw, zf_tensor_bytes(x));
            decode(kept[1], zf_tensor_dtype(x), raw, count);
            for (int64_t i = 0; i < count; i++)
                if (kept[1][i] != operand[k][i]) {
                    wrong(t, __LINE__, c, z, "%s: the step changed its operand %d",
                          zf_dtype_name(dtype), k);
                    break;
                }
        }
        session_close(s);
    }
}

TEST_CASE(operators_write_in_place, true, has_case)
{
    static const sizes small = {7, 33, 3}, pieces = {150, 64, 3}; /* of 1024 elements, in bf16 */
    static session s;
    test_defer(t, session_end, &s);
    for EACH_CASE(n) {
        if (!(zf_op_traits_of(op_called(cases[n].row)) & (ZF_OP_INPLACE | ZF_OP_VIEW))) continue;
        check_in_place(t, &s, &cases[n], &small, ZF_F32);
        if (is_float_kind(cases[n].operands[0])) check_in_place(t, &s, &cases[n], &pieces, ZF_BF16);
    }
}

/* The loss with element i of operand k moved by `by`. */
static zf_status loss_at(test *t, session *s, const op_case *c, int k, int64_t i, double by,
                         double *loss)
{
    double old = operand[k][i];
    zf_status status = ZF_OK;
    if (c->flags & RANDOM) { /* the mask is the first step's */
        zf_program_free(s->program);
        s->program = NULL;
        status = session_compile(t, s, (zf_cpu_desc){.threads = 1}, (zf_compile_desc){.seed = 5});
        if (!status) status = session_write(s, "weights", operand[OPERANDS - 1]);
    }
    operand[k][i] = old + by;
    if (!status) status = session_step(s, c);
    operand[k][i] = old;
    if (status) return status;
    return session_check(s,
                         zf_read(s->program, zf_graph_find(s->graph, "loss"), loss, sizeof *loss));
}

/* The gradient of sum(weights * result) in f64 against the five-point central difference, whose
 * error with a step of 1e-3 is 1e-12 / 30 of the fifth derivative (at most some 1e4 here) and 1e-13
 * of rounding. */
static void check_gradient(test *t, session *s, const op_case *c, const sizes *z)
{
    const double h = 1e-3;
    static double gradient[OPERANDS][4096];
    zf_tensor y, loss;
    bool has[OPERANDS] = {false};
    if (session_graph(t, s, c, z, ZF_F64, true, 0)) goto stop;
    y = zf_graph_find(s->graph, "y");
    loss = zf_sum(
        zf_mul(zf_cast(y, ZF_F64), zf_input(s->graph, "weights", ZF_F64, zf_tensor_shape(y))));
    s->error.status = zf_autograd(s->graph, loss);
    if (c->flags & REFUSED) {
        char expected[128];
        bool said = s->error.status == ZF_ERR_ARGUMENT;
        snprintf(expected, sizeof expected, "autograd: %%%d = %s has no gradient of its own",
                 (int)y.id, c->row);
        if (!said || strcmp(zf_graph_error(s->graph), expected))
            wrong(t, __LINE__, c, z, "autograd must refuse, but says: %s",
                  zf_graph_error(s->graph));
        session_close(s);
        return;
    }
    for (int k = 0; kind_of(c, k) && !s->error.status; k++) {
        char name[16];
        zf_tensor dx = zf_gradient(s->graph, zf_graph_find(s->graph, operand_name(k)));
        snprintf(name, sizeof name, "d%d", k);
        has[k] = zf_valid(dx);
        if (has[k]) zf_output(dx, name);
        else if (is_float_kind(kind_of(c, k)))
            wrong(t, __LINE__, c, z, "operand %d has no gradient", k);
    }
    if (session_failed(s)) goto stop;
    if (session_compile(t, s, (zf_cpu_desc){.threads = 1},
                        (zf_compile_desc){.seed = 5, .poison = true}))
        goto stop;
    fill(c, z, ZF_F64, false);
    for (int64_t i = 0; i < 4096; i++)
        operand[OPERANDS - 1][i] = value_of('f', mix((uint64_t)i + 99), 0);
    if (session_write(s, "weights", operand[OPERANDS - 1]) || session_step(s, c)) goto stop;
    for (int k = 0; kind_of(c, k); k++) {
        char name[16];
        zf_tensor dx;
        snprintf(name, sizeof name, "d%d", k);
        dx = zf_graph_find(s->graph, name);
        if (has[k] && session_check(s, zf_read(s->program, dx, gradient[k], zf_tensor_bytes(dx))))
            goto stop;
    }
    for (int k = 0; kind_of(c, k); k++) {
        int64_t count = zf_shape_count(zf_tensor_shape(zf_graph_find(s->graph, operand_name(k))));
        for (int64_t i = 0; i < count && has[k]; i++) {
            double at[4], slope;
            for (int p = 0; p < 4; p++)
                if (loss_at(t, s, c, k, i, (double[]){-2 * h, -h, h, 2 * h}[p], &at[p])) goto stop;
            slope = (8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * h);
            if (fabs(slope - gradient[k][i]) <= 1e-9 * fmax(1, fabs(slope))) continue;
            wrong(t, __LINE__, c, z, "d/dx%d[%lld] is %.12g, by differences %.12g", k, (long long)i,
                  gradient[k][i], slope);
            session_close(s);
            return;
        }
    }
    session_close(s);
    return;
stop:
    stopped(t, __LINE__, c, z, s);
    session_close(s);
}

TEST_CASE(operators_have_the_gradient_of_differences, true, has_case)
{
    static const sizes some[] = {{3, 5, 2}, {5, 4, 3}, {1, 3, 1}};
    static session s;
    test_defer(t, session_end, &s);
    for EACH_CASE(n)
        for (size_t z = 0; z < sizeof some / sizeof some[0]; z++) {
            if (z && (has_one_size(&cases[n]) || TEST_SANITIZED)) break;
            if (!(cases[n].flags & (NO_GRADIENT | MUTATES)))
                check_gradient(t, &s, &cases[n], &some[z]);
        }
}

/* Every case once, small, forward and backward, for the out-of-memory run. */
TEST_CASE(operators_survive_refused_memory, false, has_case)
{
    static const sizes z = {3, 5, 2};
    static session s;
    test_defer(t, session_end, &s);
    for EACH_CASE(n) {
        const op_case *c = &cases[n];
        bool trained = !(c->flags & (NO_GRADIENT | MUTATES | REFUSED));
        if (session_graph(t, &s, c, &z, ZF_F32, trained, 0)) break;
        if (trained && zf_autograd(s.graph, zf_sum(zf_graph_find(s.graph, "y"))) &&
            session_failed(&s))
            break;
        if (session_compile(t, &s, (zf_cpu_desc){.threads = 1}, (zf_compile_desc){.poison = true}))
            break;
        fill(c, &z, ZF_F32, false);
        if (session_step(&s, c)) break;
        session_close(&s);
    }
    if (s.error.status) test_unwind(t, __FILE__, __LINE__, "a case", s.error.status, s.error.text);
}

/* ----------------------------------------------------------------------------- examples */

/* Results worked out by hand, and what rows do with infinities, NaN and the ends of ranges.
 * Operands as above; their values are separated by ';'. What is compared is the value, then the
 * operands that change. */
typedef struct example {
    const char *operands, *text, *values, *expected;
    zf_dtype dtype;
} example;

static const example examples[] = {
    {"f[2,2] f[2]", "add %1, %2 : f[2,2]", "1 2 3 4; 10 20", "11 22 13 24", ZF_F32},
    {"i[2] i[2]", "add %1, %2 : i32[2]", "2147483647 5; 1 7", "-2147483648 12", ZF_F32},
    {"f[2,1] f[2]", "sub %1, %2 : f[2,2]", "1 2; 10 20", "-9 -19 -8 -18", ZF_F32},
    {"j[1] j[1]", "sub %1, %2 : i64[1]", "-9223372036854775808; -9223372036854775808", "0", ZF_F32},
    {"f[3] f[]", "mul %1, %2 : f[3]", "1 inf nan; 0", "0 nan nan", ZF_F32},
    {"f[4] f[]", "div %1, %2 : f[4]", "1 -1 0 nan; 0", "inf -inf nan nan", ZF_F32},
    {"i[5] i[5]", "div %1, %2 : i32[5]", "7 -7 7 -2147483648 9; 2 2 -2 -1 0",
     "3 -3 -3 -2147483648 0", ZF_F32},
    {"f[4] f[4]", "maximum %1, %2 : f[4]", "1 3 nan 1; 2 2 1 nan", "2 3 1 nan", ZF_F32},
    {"f[4] f[4]", "minimum %1, %2 : f[4]", "1 3 nan 1; 2 2 1 nan", "1 2 1 nan", ZF_F32},
    {"f[4] f[4]", "equal %1, %2 : bool[4]", "1 -0 nan inf; 2 0 nan inf", "0 1 0 1", ZF_F32},
    {"l[3] l[]", "equal %1, %2 : bool[3]", "-100 5 -100; -100", "1 0 1", ZF_F32},
    {"f[4] f[4]", "less %1, %2 : bool[4]", "1 2 nan -inf; 2 2 1 inf", "1 0 0 1", ZF_F32},
    {"f[5] f[5]", "equal %1, %2 {negated=true} : bool[5]", "1 -0 nan inf 3; 2 0 nan inf nan",
     "1 0 1 0 1", ZF_F32},
    {"f[4] f[4]", "less %1, %2 {or_equal=true} : bool[4]", "1 2 nan 3; 2 2 1 2", "1 1 0 0", ZF_F32},
    {"b[4] b[4]", "maximum %1, %2 : bool[4]", "0 0 1 1; 0 1 0 1", "0 1 1 1", ZF_F32},
    {"b[4] b[4]", "minimum %1, %2 : bool[4]", "0 0 1 1; 0 1 0 1", "0 0 0 1", ZF_F32},
    {"f[6] f[6]", "pow %1, %2 : f[6]", "2 -2 0 nan -8 4; 3 3 0 0 0.5 -0.5", "8 -8 1 1 nan 0.5",
     ZF_F32},
    {"f[4]", "abs %1 : f[4]", "-1 -0 -inf nan", "1 0 inf nan", ZF_F32},
    {"f[3]", "sin %1 : f[3]", "0 inf nan", "0 nan nan", ZF_F32},
    {"f[3]", "cos %1 : f[3]", "0 -inf nan", "1 nan nan", ZF_F32},
    {"i[2,2]", "sum %1 {axis=0} : i32[2]", "2147483647 1 1 2", "-2147483648 3", ZF_F32},
    {"f[2,3]", "cumsum %1 {axis=1} : f[2,3]", "1 2 3 10 20 30", "1 3 6 10 30 60", ZF_F32},
    {"f[2,3]", "cumsum %1 {axis=1 reverse=true} : f[2,3]", "1 2 3 10 20 30", "6 5 3 60 50 30",
     ZF_F32},
    {"i[3,2]", "cumsum %1 {axis=0} : i32[3,2]", "2147483647 1 1 2 0 3", "2147483647 1 -2147483648 3 "
     "-2147483648 6", ZF_F32},
    {"f[2,3] i[2,2]", "gather %1, %2 {axis=1} : f[2,2]", "1 2 nan 4 5 6; 2 0 1 1", "nan 1 5 5", ZF_F32},
    {"f[2,3] i[1,3]", "gather %1, %2 {axis=0} : f[1,3]", "1 2 3 4 5 6; 1 0 1", "4 2 6", ZF_F32},
    {"f[2,3] i[2,3]", "scatter_add %1, %2 {axis=1 size=4} : f[2,4]", "1 2 3 4 5 6; 3 0 3 1 1 1",
     "2 0 0 4 0 15 0 0", ZF_F32},
    {"f[2,4]", "top_k %1 {k=3} : i32[2,3]", "1 3 3 2 -inf nan 5 -inf", "1 2 3 1 2 0", ZF_F32},
    {"l[3]", "one_hot %1 {classes=2 to=f32} : f32[3,2]", "1 -100 0", "0 1 0 0 1 0", ZF_F32},
    {"f[1,1,3,3] f[1,1,2,2]",
     "conv %1, %2 {stride=[1,1] pad=[0,0] dilation=[1,1] groups=1} : f[1,1,2,2]",
     "1 2 3 4 5 6 7 8 9; 1 10 100 1000", "5421 6532 8754 9865", ZF_F32},
    {"f[1,2,1,3] f[2,1,1,2]",
     "conv %1, %2 {stride=[1,2] pad=[0,1] dilation=[1,2] groups=2} : f[1,2,1,2]",
     "1 2 3 4 5 6; 1 10 1 10", "20 2 50 5", ZF_F32},
    {"k[4] f[4] f[]", "where %1, %2, %3 : f[4]", "0 1 2 255; 1 2 3 nan; 9", "9 2 3 nan", ZF_F32},
    {"f[3]", "neg %1 : f[3]", "1 -2 inf", "-1 2 -inf", ZF_F32},
    {"f[3]", "scale %1 {by=0.5} : f[3]", "1 -3 nan", "0.5 -1.5 nan", ZF_F32},
    {"f[6]", "exp %1 : f[6]", "0 inf -inf nan 1000 -1000", "1 inf 0 nan inf 0", ZF_F32},
    {"f[5]", "log %1 : f[5]", "1 0 -1 inf nan", "0 -inf nan inf nan", ZF_F32},
    {"f[5]", "sqrt %1 : f[5]", "4 0 -1 inf nan", "2 0 nan inf nan", ZF_F32},
    {"f[5]", "rsqrt %1 : f[5]", "4 0 -1 inf nan", "0.5 inf nan 0 nan", ZF_F32},
    {"f[6]", "tanh %1 : f[6]", "0 inf -inf nan 100 -100", "0 1 -1 nan 1 -1", ZF_F32},
    {"f[2] f[2]", "tanh_grad %1, %2 : f[2]", "8 3; 0.5 1", "6 0", ZF_F32},
    {"f[6]", "sigmoid %1 : f[6]", "0 inf -inf nan 1000 -1000", "0.5 1 0 nan 1 0", ZF_F32},
    {"f[2] f[2]", "sigmoid_grad %1, %2 : f[2]", "16 5; 0.25 1", "3 0", ZF_F32},
    {"f[5]", "relu %1 : f[5]", "-1 0 2 nan -inf", "0 0 2 nan 0", ZF_F32},
    {"f[3] f[3]", "relu_grad %1, %2 : f[3]", "5 6 7; 2 0 1e-30", "5 0 7", ZF_F32},
    {"f[5]", "gelu %1 : f[5]", "0 100 -100 inf nan", "0 100 0 inf nan", ZF_F32},
    {"f[5]", "gelu %1 {form=tanh} : f[5]", "0 100 -100 inf nan", "0 100 0 inf nan", ZF_F32},
    {"f[3] f[3]", "gelu_grad %1, %2 : f[3]", "2 3 3; 0 100 nan", "1 3 nan", ZF_F32},
    {"f[3] f[3]", "gelu_grad %1, %2 {form=tanh} : f[3]", "2 3 3; 0 100 nan", "1 3 nan", ZF_F32},
    {"f[4]", "silu %1 : f[4]", "0 100 inf nan", "0 100 inf nan", ZF_F32},
    {"f[3] f[3]", "silu_grad %1, %2 : f[3]", "4 3 3; 0 200 nan", "2 3 nan", ZF_F32},
    {"f[6] f[]", "chain %1, %2 {program=[0,0,1,14,2,0,3,3,0]} : f[6]", "1 -3 0 inf -inf nan; 2",
     "3 0 inf nan 0 nan", ZF_F32},
    {"f[2,3] f[3]", "chain %1, %2 {program=[2,0,1,5,0,2,4,2,0]} : f[2,3]",
     "1 2 nan inf -2 3; 2 -1 inf", "2 2 nan inf 2 inf", ZF_F32},
    {"f[1] f[1,1]", "chain %1, %2 {program=[8,0,0,1,2,1]} : f[1]", "0; 3", "-2", ZF_F32},
    {"f[] f[]", "chain %1, %2 {program=[6,0,0]} : f[]", "5; 3", "-5", ZF_F32},
    {"f[5]", "cast %1 {to=i32} : i32[5]", "1.9 -1.9 nan 1e20 -1e20",
     "1 -1 0 2147483647 -2147483648", ZF_F32},
    {"f[3]", "cast %1 {to=i64} : i64[3]", "-0.5 1e20 -inf",
     "0 9223372036854775807 -9223372036854775808", ZF_F32},
    {"f[4]", "cast %1 {to=u8} : u8[4]", "-5 255.9 300 7.99", "0 255 255 7", ZF_F32},
    {"f[3]", "cast %1 {to=bool} : bool[3]", "0.5 -0 nan", "1 0 1", ZF_F32},
    {"f[4]", "cast %1 {to=bf16} : bf16[4]", "1.00390625 1.01171875 3.4e38 nan",
     "1 1.015625 inf nan", ZF_F64},
    {"f[6]", "cast %1 {to=f16} : f16[6]", "65519 65520 0x1p-25 0x3p-25 0x1p-14 nan",
     "65504 inf 0 0x1p-23 0x1p-14 nan", ZF_F64},
    {"f[2]", "cast %1 {to=f32} : f32[2]", "0x1.000001p0 0x1.0000010000001p0", "1 0x1.000002p0",
     ZF_F64},
    {"j[2]", "cast %1 {to=i32} : i32[2]", "4294967296 -4294967296", "2147483647 -2147483648",
     ZF_F32},
    /* 2^60 + 2^36 is half way between two floats: a last bit beyond a double decides. */
    {"j[2] j[2]", "add %1, %2 : i64[2]\ncast %3 {to=f32} : f32[2]",
     "1152921573326323712 -1152921573326323712; 1 -1", "0x1.000002p60 -0x1.000002p60", ZF_F32},
    {"f[4]", "dropout %1 : f[4]", "1 2 3 nan", "1 2 3 nan", ZF_F32},
    {"f[2,3]", "reshape %1 {shape=[3,2]} : f[3,2]", "1 2 3 4 5 6", "1 2 3 4 5 6", ZF_F32},
    {"f[2,3]", "slice %1 {axis=1 start=1 stop=3} : f[2,2]", "1 2 3 4 5 6", "2 3 5 6", ZF_F32},
    {"f[2,3]", "slice %1 {axis=0 start=1 stop=2} : f[1,3]", "1 2 3 4 5 6", "4 5 6", ZF_F32},
    {"f[2,2]", "pad %1 {axis=1 before=1 after=2} : f[2,5]", "1 2 3 4", "0 1 2 0 0 0 3 4 0 0",
     ZF_F32},
    {"f[2,3]", "transpose %1 {order=[1,0]} : f[3,2]", "1 2 3 4 5 6", "1 4 2 5 3 6", ZF_F32},
    {"f[1,2,2,2]", "transpose %1 {order=[0,2,1,3]} : f[1,2,2,2]", "1 2 3 4 5 6 7 8",
     "1 2 5 6 3 4 7 8", ZF_F32},
    {"f[2,1] f[2,2]", "concat %1, %2 {axis=1} : f[2,3]", "1 2; 3 4 5 6", "1 3 4 2 5 6", ZF_F32},
    {"f[2,1]", "broadcast %1 {shape=[2,2,2]} : f[2,2,2]", "1 2", "1 1 2 2 1 1 2 2", ZF_F32},
    {"f[2,2,2]", "sum_to %1 {shape=[2,1]} : f[2,1]", "1 2 3 4 5 6 7 8", "14 22", ZF_F32},
    {"f[0,2]", "sum_to %1 {shape=[2]} : f[2]", "", "0 0", ZF_F32},
    {"f[2,2] f[2,2]", "matmul %1, %2 : f[2,2]", "1 2 3 4; 5 6 7 8", "19 22 43 50", ZF_F32},
    {"f[2,2] f[2,2]", "matmul %1, %2 {transpose_a=true} : f[2,2]", "1 2 3 4; 5 6 7 8",
     "26 30 38 44", ZF_F32},
    {"f[2,2] f[2,2]", "matmul %1, %2 {transpose_b=true} : f[2,2]", "1 2 3 4; 5 6 7 8",
     "17 23 39 53", ZF_F32},
    {"f[2,0] f[0,2]", "matmul %1, %2 : f[2,2]", "", "0 0 0 0", ZF_F32},
    {"f[2,3]", "sum %1 {axis=1} : f[2]", "1 2 3 4 5 nan", "6 nan", ZF_F32},
    {"f[2,3]", "sum %1 : f[3]", "1 2 3 4 5 inf", "5 7 inf", ZF_F32},
    {"f[3,3]", "max %1 {axis=1} : f[3]", "1 3 2 nan 1 2 1 nan -inf", "3 nan nan", ZF_F32},
    {"f[3,3]", "max %1 : f[3]", "1 3 2 nan 1 2 1 nan -inf", "nan nan 2", ZF_F32},
    {"f[2,0]", "max %1 {axis=1} : f[2]", "", "-inf -inf", ZF_F32},
    {"f[4,3]", "argmax %1 {axis=1} : i32[4]", "1 3 3 nan 1 2 5 nan nan -inf -inf -inf", "1 0 1 0",
     ZF_F32},
    {"f[3,2]", "argmax %1 : i32[2]", "1 3 nan 3 nan 2", "1 0", ZF_F32},
    {"f[4,2]", "logsumexp %1 : f[4]", "5 -inf -inf -inf inf 0 nan 0", "5 -inf inf nan", ZF_F32},
    {"f[3]", "block_norms %1 : g[1]", "2 -3 6", "7", ZF_F32},
    {"f[0]", "block_norms %1 : g[0]", "", "", ZF_F32},
    {"f[2] f[1,1] f[0]", "norm %1, %2, %3 : f[]", "2 -3; 6", "7", ZF_F32},
    {"f[0]", "norm %1 : f[]", "", "0", ZF_F32},
    {"f[2]", "block_norms %1 : g[1]", "0x3p-70 -0x1p-68", "0x5p-70", ZF_F32},
    {"f[2]", "block_norms %1 : g[1]", "0x3p-149 -0x1p-147", "0x5p-149", ZF_F32},
    {"f[2]", "block_norms %1 : g[1]", "0x3p124 -0x1p126", "0x5p124", ZF_F32},
    {"f[2]", "block_norms %1 : g[1]", "0x3p-90 -0x1p-88", "0x5p-90", ZF_BF16},
    {"f[2]", "block_norms %1 : g[1]", "0x3p-600 -0x1p-598", "0x5p-600", ZF_F64},
    {"f[2]", "block_norms %1 : g[1]", "0x3p1020 -0x1p1022", "0x5p1020", ZF_F64},
    {"f[2]", "block_norms %1 : g[1]", "0x3p-70 -inf", "inf", ZF_F32},
    {"f[3]", "block_norms %1 : g[1]", "0x3p-70 nan 0", "nan", ZF_F32},
    {"f[1] f[1]", "norm %1, %2 : f[]", "0x3p-149; -0x1p-147", "0x5p-149", ZF_F32},
    {"f[3]", "squares %1 {unit=1} : f64[34]\nnorm_of_squares %2, %2 : f32[]", "1 -1 4", "6", ZF_F32},
    {"f[2]", "squares %1 : f64[34]\nnorm_of_squares %2 : f32[]", "0x3p124 -0x1p126", "0x5p124",
     ZF_F32},
    {"f[2]", "squares %1 : f64[34]\nnorm_of_squares %2 : f32[]", "0x3p-149 -0x1p-147", "0x5p-149",
     ZF_F32},
    {"f[3]", "squares %1 : f64[34]\nnorm_of_squares %2 {wide=true} : f64[]", "0x3p60 nan 1", "inf",
     ZF_F64},
    {"f[0]", "squares %1 : f64[34]\nnorm_of_squares %2 : f32[]", "", "0", ZF_F32},
    {"f[1] f[1]", "norm %1, %2 : f[]", "0x3p124; -0x1p126", "0x5p124", ZF_F32},
    {"f[1] f[1]", "norm %1, %2 : f[]", "0x3p-1074; -0x1p-1072", "0x5p-1074", ZF_F64},
    {"f[1] f[1]", "norm %1, %2 : f[]", "nan; inf", "nan", ZF_F32},
    {"f[1] f[1]", "norm %1, %2 : f[]", "-inf; 1", "inf", ZF_F32},
    {"f[3]", "norms %1 {blocks=[0,1,1,3]} : f[2]", "0x3p-600 0x3p1020 -0x1p1022",
     "0x3p-600 0x5p1020", ZF_F64},
    {"f[2] f[1,1] f[0]", "total %1, %2, %3 : f[]", "1 2; 4", "7", ZF_F32},
    {"f[3] f[]", "total %1, %2 : f[]", "0x1p60 1 -0x1p60; 1", "1",
     ZF_F32}, /* 2^60 + 1 is 2^60 in double */
    {"f[4,2]", "softmax %1 : f[4,2]", "7 7 -inf 3 -inf -inf nan 0", "0.5 0.5 0 1 0 0 nan nan",
     ZF_F32},
    {"f[2] f[2]", "softmax_grad %1, %2 : f[2]", "1 3; 0.5 0.5", "-0.5 0.5", ZF_F32},
    {"f[1,2]", "moments %1 : f[1,2]", "1 5", "3 0.5", ZF_F32},
    {"f[1,2]", "rms %1 : f[1,2]", "2 2", "0 0.5", ZF_F32},
    {"f[1,2] f[1,2] f[2] f[2]", "layer_norm %1, %2, %3, %4 : f[1,2]", "1 5; 3 0.5; 2 4; 1 -1",
     "-1 3", ZF_F32},
    {"f[1,2] f[1,2] f[2]", "rms_norm %1, %2, %3 : f[1,2]", "2 4; 0 0.5; 2 4", "2 8", ZF_F32},
    {"f[3,2] i[2]", "gather_rows %1, %2 : f[2,2]", "1 2 3 4 5 6; 2 0", "5 6 1 2", ZF_F32},
    {"f[3,2] i[3]", "scatter_rows %1, %2 {rows=4} : f[4,2]", "1 2 3 4 5 6; 2 0 2",
     "3 4 0 0 6 8 0 0", ZF_F32},
    {"f[2,2] f[2] l[2]", "cross_entropy %1, %2, %3 {ignore=-100} : f[2]", "1 2 3 4; 5 6; 1 -100",
     "3 0", ZF_F32},
    {"f[2] f[2,2] f[2] l[2]", "cross_entropy_grad %1, %2, %3, %4 {ignore=-100} : f[2,2]",
     "2 2; 1 1 3 3; 1 3; 1 -100", "2 0 0 0", ZF_F32},
    {"t[]", "update:\nadvance %1", "41", "42", ZF_F32},
    {"w[2] f[2] f[]", "update:\nsgd %1, %2, %3", "1 2; 4 -4; 0.5", "-1 4", ZF_F32},
    {"w[1] f[1] f[] m[1]", "update:\nsgd %1, %2, %3, %4 {momentum=0.5}", "1; 4; 0.5; 2", "-1.5 5",
     ZF_F32},
    {"w[1] f[1] f[] m[1]", "update:\nsgd %1, %2, %3, %4 {momentum=0.5 nesterov=true}",
     "1; 4; 0.5; 2", "-2.25 5", ZF_F32},
    {"w[2] f[2] f[] f[] f[]", "update:\nlamb_apply %1, %2, %3, %4, %5 {least=0.01 most=10}",
     "1 2; 4 8; 0.5; 2; 4", "0 0", ZF_F32},
    {"w[2] f[2] f[] f[] f[]", "update:\nlamb_apply %1, %2, %3, %4, %5 {least=0.01 most=10}",
     "1 2; 4 8; 0.5; 0; 4", "-1 -2", ZF_F32},
    {"w[2] f[2] f[] f[] f[]", "update:\nlamb_apply %1, %2, %3, %4, %5 {least=0.01 most=10}",
     "1 2; 4 8; 0.5; 0x1p-100; 0x1p-99", "0 0", ZF_F32},
};

/* Reads numbers up to ';' or the end; returns how many. */
static int64_t read_numbers(const char **text, double *x)
{
    int64_t count = 0;
    for (char *end; **text && **text != ';'; count++) {
        x[count] = strtod(*text, &end);
        if (end == *text) break;
        *text = end;
    }
    *text += **text == ';';
    return count;
}

TEST_ONCE(operators_give_the_examples)
{
    static const sizes none = {0, 0, 0};
    static session s;
    test_defer(t, session_end, &s);
    for (size_t n = 0; n < sizeof examples / sizeof examples[0]; n++)
        for (int reference = 0; reference < 2; reference++) {
            const example *e = &examples[n];
            op_case c = {"example", e->operands, e->text, EXACT, 0, 0, 0};
            const char *values = e->values, *expected = e->expected;
            result r = {.values = kept[0]};
            int64_t count = read_numbers(&expected, kept[1]);
            for (int k = 0; kind_of(&c, k); k++) read_numbers(&values, operand[k]);
            if (run_case(t, &s, &c, &none, e->dtype, (zf_cpu_desc){.reference = reference}, 0,
                         &r)) {
                stopped(t, __LINE__, &c, &none, &s);
                return;
            }
            session_close(&s);
            if (r.count != count)
                wrong(t, __LINE__, &c, &none, "%lld numbers, not %lld", (long long)r.count,
                      (long long)count);
            for (int64_t i = 0; i < count; i++)
                if (kept[0][i] != kept[1][i] && !(isnan(kept[0][i]) && isnan(kept[1][i])))
                    wrong(t, __LINE__, &c, &none, "%s: number %lld is %.9g, not %.9g",
                          reference ? "reference" : "fast", (long long)i, kept[0][i], kept[1][i]);
        }
}

/* ------------------------------------------------------------------------------ goldens */

/* PyTorch's values in f64 (tests/golden/ops/make.py). `build` makes y of the float inputs x and the
 * integers. */
typedef struct golden {
    const char *name, *inputs[4], *integers;
    zf_tensor (*build)(const zf_tensor *x, zf_tensor integers, double eps);
    double units; /* of f32, as NORM */
} golden;

static zf_tensor golden_gelu(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, (void)eps, zf_gelu(x[0]);
}
static zf_tensor golden_gelu_tanh(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, (void)eps, zf_gelu_tanh(x[0]);
}
static zf_tensor golden_silu(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, (void)eps, zf_silu(x[0]);
}
static zf_tensor golden_softmax(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, (void)eps, zf_softmax(x[0]);
}
static zf_tensor golden_log_softmax(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, (void)eps, zf_log_softmax(x[0]);
}
static zf_tensor golden_layer_norm(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, zf_layer_norm(x[0], x[1], x[2], eps);
}
static zf_tensor golden_rms_norm(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, zf_rms_norm(x[0], x[1], eps);
}
static zf_tensor golden_cross_entropy(const zf_tensor *x, zf_tensor labels, double eps)
{
    return (void)eps, zf_reshape(zf_cross_entropy(x[0], labels, ZF_NONE), ZF_SHAPE(1));
}
static zf_tensor golden_embedding(const zf_tensor *x, zf_tensor ids, double eps)
{
    return (void)eps, zf_embedding(x[0], ids);
}

/* softmax(q k^T / sqrt(size), -inf where not seen) v */
static zf_tensor attend(const zf_tensor *x, zf_tensor seen)
{
    zf_tensor scores =
        zf_scale(zf_matmul_ex(x[0], x[1], &(zf_matmul_desc){.transpose_b = true}), 1 / sqrt(5));
    zf_tensor never = zf_constant(x[0].graph, zf_tensor_dtype(x[0]), ZF_SCALAR, -INFINITY);
    return zf_matmul(zf_softmax(zf_where(seen, scores, never)), x[2]);
}
static zf_tensor golden_attention(const zf_tensor *x, zf_tensor mask, double eps)
{
    return (void)eps, attend(x, zf_reshape(zf_cast(mask, ZF_BOOL), ZF_SHAPE(2, 1, 1, 7)));
}
static zf_tensor golden_causal(const zf_tensor *x, zf_tensor none, double eps)
{
    double seen[49];
    (void)none, (void)eps;
    for (int i = 0; i < 49; i++) seen[i] = i % 7 <= i / 7;
    return attend(x, zf_values(x[0].graph, ZF_BOOL, ZF_SHAPE(7, 7), seen));
}

/* Units: a row of softmax is shifted by 1000, one of layer_norm has a mean of 100 (24 roundings in
 * its sum), one of cross_entropy has logits near 500. gelu and silu run to 40. */
/* Of x [batch,token,head,size] with three heads. */
static zf_tensor golden_turn(zf_tensor x, const zf_rope_desc *desc)
{
    zf_shape s = zf_tensor_shape(x);
    return zf_reshape(zf_rope(zf_reshape(x, ZF_SHAPE(s.dims[0], s.dims[1], -1)), desc), s);
}
static zf_tensor golden_rope(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, (void)eps, golden_turn(x[0], &(zf_rope_desc){.heads = 3});
}
static zf_tensor golden_rope_llama3(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, (void)eps,
           golden_turn(x[0], &(zf_rope_desc){.heads = 3,
                                             .theta = 500000,
                                             .scaling = ZF_ROPE_LLAMA3,
                                             .original = 32});
}

static const golden goldens[] = {
    {"gelu_erf", {"x"}, NULL, golden_gelu, 16},
    {"gelu_tanh", {"x"}, NULL, golden_gelu_tanh, 24},
    {"silu", {"x"}, NULL, golden_silu, 24},
    {"softmax", {"x"}, NULL, golden_softmax, 48},
    {"log_softmax", {"x"}, NULL, golden_log_softmax, 2000},
    {"layer_norm", {"x", "gamma", "beta"}, NULL, golden_layer_norm, 2400},
    {"rms_norm", {"x", "gamma"}, NULL, golden_rms_norm, 160},
    {"cross_entropy", {"x"}, "labels", golden_cross_entropy, 1000},
    {"embedding", {"weight"}, "ids", golden_embedding, 4},
    {"attention", {"q", "k", "v"}, "mask", golden_attention, 128},
    {"attention_causal", {"q", "k", "v"}, NULL, golden_causal, 128},
    {"rope", {"x"}, NULL, golden_rope, 8},
    {"rope_llama3", {"x"}, NULL, golden_rope_llama3, 8},
};

static zf_safetensors *golden_file;

static void golden_close(void *unused)
{
    (void)unused;
    zf_safetensors_close(golden_file);
    golden_file = NULL;
}

/* The entry NAME.PART (NAME.dPART where `d`), its data into `out`; NULL where there is none. */
static const zf_safetensors_entry *golden_part(const golden *g, bool d, const char *part, void *out,
                                               zf_error *error)
{
    char name[64];
    int32_t index;
    snprintf(name, sizeof name, "%s.%s%s", g->name, d ? "d" : "", part);
    index = zf_safetensors_find(golden_file, name);
    if (index < 0) return NULL;
    if (zf_safetensors_read(golden_file, index, out, zf_safetensors_at(golden_file, index)->bytes,
                            error))
        return NULL;
    return zf_safetensors_at(golden_file, index);
}

/* Reads the output `name` and compares it with the golden NAME.PART. */
static zf_status check_golden(test *t, session *s, const golden *g, const char *name, bool d,
                              const char *part, zf_dtype dtype)
{
    zf_tensor from = zf_graph_find(s->graph, name);
    int64_t count = zf_shape_count(zf_tensor_shape(from));
    double largest = 1, units = dtype == ZF_F64 ? 0x1p-53 * 32 * g->units : 0x1p-24 * g->units;
    if (!golden_part(g, d, part, kept[1], &s->error)) return s->error.status = ZF_ERR_ARGUMENT;
    if (session_check(s, zf_read(s->program, from, raw, zf_tensor_bytes(from))))
        return s->error.status;
    decode(kept[0], dtype, raw, count);
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(kept[1][i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(kept[0][i] - kept[1][i]) <= units * largest)) {
            char text[200];
            snprintf(
                text, sizeof text,
                "%s.%s%s %s: element %lld is %.12g, PyTorch's is %.17g, %.3g times the bound off",
                g->name, d ? "d" : "", part, zf_dtype_name(dtype), (long long)i, kept[0][i],
                kept[1][i], fabs(kept[0][i] - kept[1][i]) / (units * largest));
            test_fail(t, __FILE__, __LINE__, "golden", text);
            break;
        }
    return ZF_OK;
}

static zf_status run_golden(test *t, session *s, const golden *g, zf_dtype dtype)
{
    zf_tensor x[4], integers = ZF_NONE, y;
    const zf_safetensors_entry *entry;
    double eps = 0;
    zf_status status;
    s->error = (zf_error){ZF_OK, ""};
    s->graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    if (!s->graph) return s->error.status = ZF_ERR_NOMEM;
    for (int k = 0; k < 4 && g->inputs[k]; k++) {
        entry = golden_part(g, false, g->inputs[k], operand[k], &s->error);
        if (!entry) return s->error.status = ZF_ERR_ARGUMENT;
        x[k] = zf_param(s->graph, g->inputs[k], entry->shape, &(zf_param_desc){.dtype = dtype});
    }
    if (g->integers) {
        entry = golden_part(g, false, g->integers, operand[5], &s->error);
        if (!entry) return s->error.status = ZF_ERR_ARGUMENT;
        integers = zf_input(s->graph, g->integers, ZF_I64, entry->shape);
    }
    golden_part(g, false, "eps", &eps, &s->error);
    y = zf_output(g->build(x, integers, eps), "y");
    zf_autograd(s->graph, zf_sum(zf_mul(y, zf_input(s->graph, "dy", dtype, zf_tensor_shape(y)))));
    for (int k = 0; k < 4 && g->inputs[k]; k++) {
        char name[32];
        snprintf(name, sizeof name, "d %s", g->inputs[k]);
        zf_output(zf_gradient(s->graph, x[k]), name);
    }
    if (session_failed(s) ||
        session_compile(t, s, (zf_cpu_desc){.threads = 2}, (zf_compile_desc){.poison = true}))
        return s->error.status;
    for (int k = 0; k < 4 && g->inputs[k]; k++)
        if (session_write(s, g->inputs[k], operand[k])) return s->error.status;
    if (g->integers &&
        session_check(s, zf_write(s->program, integers, operand[5], zf_tensor_bytes(integers))))
        return s->error.status;
    if (!golden_part(g, false, "dy", operand[6], &s->error))
        return s->error.status = ZF_ERR_ARGUMENT;
    if (session_write(s, "dy", operand[6]) || session_check(s, zf_step(s->program)))
        return s->error.status;
    status = check_golden(t, s, g, "y", false, "y", dtype);
    for (int k = 0; k < 4 && g->inputs[k] && !status; k++) {
        char name[32];
        snprintf(name, sizeof name, "d %s", g->inputs[k]);
        status = check_golden(t, s, g, name, true, g->inputs[k], dtype);
    }
    return status;
}

/* The sine of an element that the two ways of sin (ops/unary.c) round differently has the same bits
 * next to one that only the slower way takes. */
TEST(operators_sin_does_not_depend_on_other_elements)
{
    static const float x[2][2] = {{0x1.4c105ep-1f, 1}, {0x1.4c105ep-1f, 0x1p21f}};
    float y[2][2];
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_program *p;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_output(zf_sin(zf_input(g, "x", ZF_F32, ZF_SHAPE(2))), "y");
    p = zf_compile(g, NULL);
    if (!p) OK(t, zf_graph_status(g), zf_graph_error(g));
    test_defer(t, (test_cleanup *)zf_program_free, p);
    for (int k = 0; k < 2; k++) {
        OK(t, zf_write(p, zf_graph_find(g, "x"), x[k], sizeof x[k]), zf_program_error(p));
        OK(t, zf_step(p), zf_program_error(p));
        OK(t, zf_read(p, zf_graph_find(g, "y"), y[k], sizeof y[k]), zf_program_error(p));
    }
    CHECK(t, !memcmp(&y[0][0], &y[1][0], sizeof y[0][0]));
    CHECK_NEAR(t, y[1][1], sin(0x1p21), 1e-7);
}

TEST(operators_agree_with_pytorch)
{
    static session s;
    zf_error error = {ZF_OK, ""};
    test_defer(t, golden_close, NULL);
    golden_file = zf_safetensors_open("tests/golden/ops/ops.safetensors", &t->allocator, &error);
    NEED(t, golden_file, &error);
    test_defer(t, session_end, &s);
    for (size_t n = 0; n < sizeof goldens / sizeof goldens[0]; n++)
        for (int wide = 0; wide < 2; wide++) {
            OK(t, run_golden(t, &s, &goldens[n], wide ? ZF_F64 : ZF_F32), s.error.text);
            session_close(&s);
        }
}

/* Every pair of special values goes through the elementwise kernels as through the reference. What
 * gradients are taken at is finite. */
TEST_CASE(operators_treat_special_values_alike, true, has_case)
{
    static const double special[] = {NAN,
                                     0,
                                     -0.0,
                                     1,
                                     -1,
                                     0.5,
                                     -0.5,
                                     8,
                                     -8,
                                     0x1p-100,
                                     -0x1p-100,
                                     INFINITY,
                                     -INFINITY,
                                     0x1.fffffep127,
                                     -0x1.fffffep127};
    enum { ALL = sizeof special / sizeof special[0], FINITE = 11, BELOW_1 = 7, PAIRS = ALL * ALL };
    static const sizes z = {ALL, ALL, 1};
    static session s;
    test_defer(t, session_end, &s);
    for EACH_CASE(n) {
        const op_case *c = &cases[n];
        bool gradient = strstr(c->row, "_grad") != NULL;
        int second = kind_of(c, 1) == 'u' ? BELOW_1 : gradient ? FINITE : ALL;
        result exact = {.values = kept[1]}, got = {.values = kept[0]};
        char shape[16] = "f[R,N] f[R,N]";
        memcpy(shape, c->operands, 1);
        if (strlen(c->operands) > 7) shape[7] = c->operands[7];
        else shape[6] = '\0';
        if (!is_float_kind(*shape) || strcmp(c->operands, shape) || strchr(c->text, '\n') ||
            !strcmp(c->row, "softmax") || !strstr(c->text + strlen(c->text) - 6, "[R,N]"))
            continue;
        for (int i = 0; i < PAIRS; i++) {
            operand[0][i] = special[i % ALL];
            operand[1][i] = special[i / ALL % second];
        }
        if (run_case(t, &s, c, &z, ZF_F32, (zf_cpu_desc){.reference = true}, 0, &exact)) goto stop;
        session_close(&s);
        for (int k = 0; k < 4; k++) {
            if (!test_has_isa(t, isas[k])) continue;
            if (run_case(t, &s, c, &z, ZF_F32, (zf_cpu_desc){.isa = isas[k]}, 0, &got)) goto stop;
            session_close(&s);
            for (int i = 0; i < PAIRS; i++) {
                double a = kept[0][i], b = kept[1][i],
                       scale = c->scale == GROWTH ? growth_of(c, i) : fabs(b);
                if (a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= c->units * 0x1p-24 * scale)
                    continue;
                wrong(t, __LINE__, c, &z, "%s: of %g (and %g) it makes %.9g, the reference %.9g",
                      isas[k], operand[0][i], operand[1][i], a, b);
                break;
            }
        }
    }
    return;
stop:
    test_fail(t, __FILE__, __LINE__, "special values", s.error.text);
}

/* ----------------------------------------------------------------------------- messages */

static const struct {
    const char *operands, *text, *message;
} mistakes[] = {
    {"f[1,2,3,4] f[3,2]", "conv %1, %2 {stride=[1,1] pad=[0,0] dilation=[1,1] groups=1} : f[1]",
     "3: conv: it takes x [batch, channels, height, width] and w [channels of the result, channels of "
     "a group, height, width]; %1 = f32[1,2,3,4], %2 = f32[3,2]"},
    {"f[1,2,3,4] f[3,2,1,1]", "conv %1, %2 {stride=[1] pad=[0,0] dilation=[1,1] groups=1} : f[1]",
     "3: conv: stride, pad and dilation are two numbers each, up to 2^30, of at least 1, 0 and 1; "
     "groups is 1 or more; %1 = f32[1,2,3,4], %2 = f32[3,2,1,1]"},
    {"f[1,4,3,4] f[3,2,1,1]",
     "conv %1, %2 {stride=[1,1] pad=[0,0] dilation=[1,1] groups=2} : f[1]",
     "3: conv: x has 4 channels, w 2 of 2 groups, and 3 of the result, which must be a multiple of the "
     "groups; %1 = f32[1,4,3,4], %2 = f32[3,2,1,1]"},
    {"f[1,3,3,4] f[3,2,1,1]",
     "conv_grad_x %1, %2 {stride=[1,1] pad=[0,0] dilation=[1,1] groups=1 size=[3]} : f[1]",
     "3: conv_grad_x: size is a height and a width; %1 = f32[1,3,3,4], %2 = f32[3,2,1,1]"},
    {"f[1,3,3,4] f[3,2,1,1]",
     "conv_grad_x %1, %2 {stride=[1,1] pad=[0,0] dilation=[1,1] groups=1 size=[3,5]} : f[1]",
     "3: conv_grad_x: the gradient of the result must be f32[1,3,3,5]; %1 = f32[1,3,3,4], %2 = "
     "f32[3,2,1,1]"},
    {"f[1,2,3,4] f[1,3,3,4]",
     "conv_grad_w %1, %2 {stride=[1,1] pad=[0,0] dilation=[1,1] groups=1 taps=[0,1]} : f[1]",
     "3: conv_grad_w: taps is a height and a width; %1 = f32[1,2,3,4], %2 = f32[1,3,3,4]"},
    {"f[2,3] f[2]", "add %1, %2 : f[2,3]",
     "3: add: the shapes do not broadcast: dimensions, aligned at the last, must be equal or 1; %1 "
     "= f32[2,3], %2 = "
     "f32[2]"},
    {"f[2] i[2]", "mul %1, %2 : f[2]",
     "3: mul: the operands must have one dtype (zf_cast converts); %1 = f32[2], %2 = i32[2]"},
    {"b[2] b[2]", "sub %1, %2 : bool[2]",
     "3: sub: the operands must be float or integer; %1 = bool[2], %2 = bool[2]"},
    {"f[2] f[2] f[2]", "where %1, %2, %3 : f[2]",
     "4: where: the condition must be bool or u8; %1 = f32[2], %2 = f32[2], %3 = f32[2]"},
    {"i[2]", "tanh %1 : i32[2]",
     "2: tanh: the operand must be float: f32, bf16, f16 or f64; %1 = i32[2]"},
    {"f[2] f[3]", "tanh_grad %1, %2 : f[2]",
     "3: tanh_grad: the operands must have one shape; %1 = f32[2], %2 = f32[3]"},
    {"f[2]", "dropout %1 {p=1} : f[2]",
     "2: dropout: p = 1 must be at least 0 and below 1; %1 = f32[2]"},
    {"f[2]", "dropout %1 {p=nan} : f[2]",
     "2: dropout: p = nan must be at least 0 and below 1; %1 = f32[2]"},
    {"f[2]", "dropout %1 {p=0.5 stream=-1} : f[2]",
     "2: dropout: stream -1 must be 0 to 2^32 - 1; %1 = f32[2]"},
    {"f[2] i[2]", "chain %1, %2 {program=[0,0,1]} : f[2]",
     "3: chain: the operands must have one dtype (zf_cast converts); %1 = f32[2], %2 = i32[2]"},
    {"f[2,3] f[2,1]", "chain %1, %2 {program=[0,0,1]} : f[2,3]",
     "3: chain: operand 1 must have the shape of operand 0, one element, or be a vector over the "
     "last dimension; %1 = f32[2,3], %2 = f32[2,1]"},
    {"f[2]", "chain %1 : f[2]",
     "2: chain: a program is 1 to 16 times 3 numbers (code, a, b), not 0; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[6,0,0,6]} : f[2]",
     "2: chain: a program is 1 to 16 times 3 numbers (code, a, b), not 4; %1 = f32[2]"},
    {"f[2]",
     "chain %1 {program=[6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,"
     "6,0,0,6,0,0,6,0,0,6,0,0,6,0,0]} : f[2]",
     "2: chain: a program is 1 to 16 times 3 numbers (code, a, b), not 51; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[99,0,0]} : f[2]",
     "2: chain: instruction 0: there is no code 99; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[-1,0,0]} : f[2]",
     "2: chain: instruction 0: there is no code -1; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[6,0,0,0,1,2]} : f[2]",
     "2: chain: instruction 1 reads registers 1 and 2, but there are 0 to 1; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[6,-1,0]} : f[2]",
     "2: chain: instruction 0 reads registers -1 and 0, but there are 0 to 0; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[6,0,1]} : f[2]",
     "2: chain: instruction 0: b must be 0, not 1; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[7,0,1] values=[1]} : f[2]",
     "2: chain: instruction 0: there is no value 1; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[24,0,0] values=[0.5]} : f[2]",
     "2: chain: instruction 0: p and stream are not values 0 and on; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[24,0,9223372036854775807] values=[0.5,1]} : f[2]",
     "2: chain: instruction 0: p and stream are not values 9223372036854775807 and on; %1 = "
     "f32[2]"},
    {"f[2]", "chain %1 {program=[24,0,0] values=[1,3]} : f[2]",
     "2: chain: instruction 0: p = 1 must be at least 0 and below 1; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[24,0,0] values=[0.5,1.5]} : f[2]",
     "2: chain: instruction 0: stream 1.5 must be 0 to 2^32 - 1, and whole; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[24,0,0] values=[0.5,nan]} : f[2]",
     "2: chain: instruction 0: stream nan must be 0 to 2^32 - 1, and whole; %1 = f32[2]"},
    {"f[2,3]", "reshape %1 {shape=[7]} : f[7]",
     "2: reshape: f32[7] has 7 elements, the operand 6; %1 = f32[2,3]"},
    {"f[2,3]", "reshape %1 {shape=[-2,-3]} : f[6]",
     "2: reshape: a shape has 0 to 6 dimensions, none negative, and fewer than 2^63 elements; %1 = "
     "f32[2,3]"},
    {"f[1]", "reshape %1 {shape=[1,1,1,1,1,1,1]} : f[1]",
     "2: reshape: a shape has 0 to 6 dimensions, none negative, and fewer than 2^63 elements; %1 = "
     "f32[1]"},
    {"f[2,3]", "slice %1 {axis=2 stop=1} : f[2,3]",
     "2: slice: axis 2 of a tensor of rank 2; 0 to 1 is possible; %1 = f32[2,3]"},
    {"f[]", "slice %1 : f[]", "2: slice: a scalar has no axis; %1 = f32[]"},
    {"f[2,3]", "slice %1 {axis=1 start=2 stop=4} : f[2,2]",
     "2: slice: start 2 and stop 4; 0 <= start <= stop <= 3 is possible; %1 = f32[2,3]"},
    {"f[2,3]", "pad %1 {axis=1 before=-1} : f[2,2]",
     "2: pad: -1 before and 0 after; neither may be negative, nor their sum with 3 over 2^63 - 1; "
     "%1 = f32[2,3]"},
    {"f[2,3]", "pad %1 {axis=1 before=9223372036854775806} : f[2,3]",
     "2: pad: 9223372036854775806 before and 0 after; neither may be negative, nor their sum with "
     "3 over 2^63 - 1; %1 = "
     "f32[2,3]"},
    {"f[2,3]", "pad %1 {axis=1 before=9223372036854775000} : f[2,3]",
     "2: pad: the result has a negative dimension, or 2^60 elements or more"},
    {"f[2,3]", "transpose %1 {order=[0]} : f[2,3]",
     "2: transpose: the order has 1 entries, the operand 2 dimensions; %1 = f32[2,3]"},
    {"f[2,3]", "transpose %1 {order=[1,1]} : f[3,3]",
     "2: transpose: the order must name each of the axes 0 to 1 once; %1 = f32[2,3]"},
    {"f[2,3] f[2,4]", "concat %1, %2 : f[4,3]",
     "3: concat: operand 1, f32[2,4], must have operand 0's dimensions but for axis 0; %1 = "
     "f32[2,3], %2 = f32[2,4]"},
    {"f[2] i[2]", "concat %1, %2 : f[4]",
     "3: concat: the operands must have one dtype (zf_cast converts); %1 = f32[2], %2 = i32[2]"},
    {"f[2,3]", "broadcast %1 {shape=[3,3]} : f[3,3]",
     "2: broadcast: the operand does not broadcast to f32[3,3]: aligned at the last, each "
     "dimension must be equal or 1; %1 "
     "= f32[2,3]"},
    {"f[2,3]", "sum_to %1 {shape=[2]} : f[2]",
     "2: sum_to: f32[2] does not broadcast to the operand's shape: aligned at the last, each "
     "dimension must be equal or 1; "
     "%1 = f32[2,3]"},
    {"i[2,3]", "sum_to %1 {shape=[3]} : i32[3]",
     "2: sum_to: the operand must be float: f32, bf16, f16 or f64; %1 = i32[2,3]"},
    {"f[2,3]", "sum %1 {axis=-1} : f[2]",
     "2: sum: axis -1 of a tensor of rank 2; 0 to 1 is possible; %1 = f32[2,3]"},
    {"f[]", "max %1 : f[]", "2: max: a scalar has no axis; %1 = f32[]"},
    {"f[2,0]", "argmax %1 {axis=1} : i32[2]",
     "2: argmax: the axis has 0 elements; 1 to 2^31 - 1 is possible; %1 = f32[2,0]"},
    {"f[2,3] f[4,3] f[4] f[2,4]", "linear %1, %2, %3, %4 {activation=relu} : f[2,4]",
     "5: linear: there is no activation of a sum (operand 3); %1 = f32[2,3], %2 = f32[4,3], %3 = "
     "f32[4], %4 = f32[2,4]"},
    {"f[2,3] f[4,3] f[4] f[4]", "linear %1, %2, %3, %4 : f[2,4]",
     "5: linear: what is added must be f32[2,4]; %1 = f32[2,3], %2 = f32[4,3], %3 = f32[4], %4 = "
     "f32[4]"},
    {"f[2,6] f[6,3]", "matmul %1, %2 {sections=4} : f[2,3]",
     "3: matmul: 4 sections of sums of 6 terms: they must divide these; %1 = f32[2,6], %2 = "
     "f32[6,3]"},
    {"f[2,6] f[6,3]", "matmul %1, %2 {sections=-1} : f[2,3]",
     "3: matmul: -1 sections of sums of 6 terms: they must divide these; %1 = f32[2,6], %2 = "
     "f32[6,3]"},
    {"f[2,6] f[6,3]", "matmul %1, %2 {sections=2 runs=2} : f[2,3]",
     "3: matmul: 2 runs of 2 sections each, in sums of 6 terms: they must divide these; %1 = "
     "f32[2,6], %2 = f32[6,3]"},
    {"f[2,6] f[6,3] f[2,3]", "matmul %1, %2, %3 {wide=true} : f[2,3]",
     "4: matmul: to a wide product nothing can be added; %1 = f32[2,6], %2 = f32[6,3], %3 = "
     "f32[2,3]"},
    {"f[2,6] f[3,6]", "linear %1, %2 {sections=5} : f[2,3]",
     "3: linear: 5 sections of sums of 6 terms: they must divide these; %1 = f32[2,6], %2 = "
     "f32[3,6]"},
    {"f[2,6] f[3,6]", "linear %1, %2 {activation=relu wide=true} : f[2,3]",
     "3: linear: to a wide product nothing can be added; %1 = f32[2,6], %2 = f32[3,6]"},
    {"f[2] i[2]", "total %1, %2 : f[]",
     "3: total: the operands must have one dtype (zf_cast converts); %1 = f32[2], %2 = i32[2]"},
};

TEST(operators_explain_mistakes)
{
    static const sizes none = {0, 0, 0};
    static session s;
    test_defer(t, session_end, &s);
    for (size_t n = 0; n < sizeof mistakes / sizeof mistakes[0]; n++) {
        op_case c = {"mistake", mistakes[n].operands, mistakes[n].text, EXACT, 0, 0, 0};
        zf_status status = session_graph(t, &s, &c, &none, ZF_F32, false, 0);
        if (status == ZF_ERR_NOMEM) OK(t, status, s.error.text);
        CHECK_TEXT(t, s.error.text, mistakes[n].message);
        CHECK(t, status == ZF_ERR_PARSE);
        session_close(&s);
    }
}

/* A sum of no terms is 0 in any number of sections and runs, by the reference too. */
TEST_ONCE(products_of_no_terms_are_0)
{
    static const char *const products[] = {"matmul %1, %2 {transpose_b=true sections=2}",
                                           "linear %1, %2 {sections=3}",
                                           "matmul %1, %2 {transpose_b=true runs=3}"};
    for (int k = 0; k < 12; k++) {
        const char *dtype = k % 4 / 2 ? "f64" : "f32";
        numbers got = {.count = 0};
        char text[400];
        zf_error error;
        bool ran;
        snprintf(text, sizeof text,
                 "%%1 = input \"a\" : %s[2,0]\n%%2 = input \"b\" : %s[3,0]\n%%3 = %s : %s[2,3]\n"
                 "output %%3 \"y\"\n",
                 dtype, dtype, products[k / 4], dtype);
        ran = numbers_of(&got, text, &(numbers_desc){.fast = k % 2, .poison = true}, &error);
        for (int i = 0; i < 6 && ran; i++)
            ran = number_at(numbers_find(&got, "1 output y"), i) == 0;
        numbers_free(&got);
        CHECK(t, ran);
    }
}
