/* quantize and dequantize (ops/quantize.c): the scale and the bound of the error against f64, equal
 * bits of all instruction sets and the reference, numbers that are none. */
#include "../support/test.h"

#include <float.h>

enum { PATTERN = 2048, PATTERNS = 10, COUNT = PATTERN * PATTERNS, BYTES = COUNT + COUNT / 16 };

static float values[COUNT];
static uint8_t records[5][BYTES];
static float back[5][COUNT];

/* Blocks of every size lie within one pattern. */
static void fill(float most)
{
    uint32_t state = 7;
    for (int i = 0; i < COUNT; i++) {
        const int pattern = i / PATTERN, at = i % PATTERN;
        float random;
        state = state * 1664525u + 1013904223u;
        random = (float)(int32_t)state * 0x1p-31f;
        values[i] = pattern == 0   ? 0
                    : pattern == 1 ? -0.7f                               /* all equal */
                    : pattern == 2 ? random
                    : pattern == 3 ? (at % 64 ? (float)(at % 13) - 6.5f : most) /* ties: scale 1 */
                    : pattern == 4 ? random * 0x1p-126f                  /* subnormal, */
                    : pattern == 5 ? (float)(int)(random * 9) * 0x1p-149f /* and their last bits */
                    : pattern == 6 ? random * FLT_MAX
                    : pattern == 7 ? random * random * random * 1e-20f
                    : pattern == 8 ? (at % 64 == 17 ? INFINITY : random)
                                   : (at % 64 == 63 ? NAN : random);
    }
}

typedef struct session {
    zf_backend *cpu;
    zf_graph *graph;
    zf_program *program;
} session;

static void session_free(void *object)
{
    session *s = object;
    zf_program_free(s->program);
    zf_graph_free(s->graph);
    zf_backend_free(s->cpu);
    *s = (session){NULL, NULL, NULL};
}

static session s;

/* Quantises `values`, and back; false after an error. */
static bool run(test *t, const zf_quantize_desc *d, const zf_cpu_desc *cpu, int k)
{
    zf_error error = {ZF_OK, ""};
    zf_tensor x, q, y;
    zf_status status;
    s.cpu = zf_cpu_backend(cpu, &error);
    s.graph = zf_graph_new(NULL);
    if (!s.cpu || !s.graph) return test_unwind(t, __FILE__, __LINE__, "run", ZF_ERR_NOMEM, NULL);
    x = zf_input(s.graph, "x", ZF_F32, ZF_SHAPE(COUNT));
    q = zf_quantize(x, d);
    y = zf_dequantize(q, ZF_F32, d);
    zf_output(q, "q"), zf_output(y, "y");
    s.program = zf_compile(s.graph, &(zf_compile_desc){.backend = s.cpu});
    status = s.program ? zf_write(s.program, x, values, sizeof values) : zf_graph_status(s.graph);
    if (!status) status = zf_step(s.program);
    if (!status) status = zf_read(s.program, q, records[k], zf_tensor_bytes(q));
    if (!status) status = zf_read(s.program, y, back[k], sizeof values);
    if (status) test_unwind(t, __FILE__, __LINE__, "run", status, zf_graph_error(s.graph));
    session_free(&s);
    return !status;
}

/* The bound that ops/quantize.c derives, and the scale by definition. */
static void check_block(test *t, const zf_quantize_desc *d, int64_t first, const uint8_t *record,
                        const float *y)
{
    const double most = d->bits == 8 ? 127 : 7, unit = d->scale == ZF_F32 ? 0x1p-149 : 0x1p-133;
    double largest = 0, bound;
    float scale = 0, want;
    bool finite = true;
    uint16_t half;
    for (int64_t i = first; i < first + d->block; i++) {
        finite &= isfinite(values[i]) != 0;
        largest = fmax(largest, fabs((double)values[i]));
    }
    want = (float)(largest / most);
    if (d->scale == ZF_BF16) {
        memcpy(&half, record, sizeof half);
        zf_convert(&scale, ZF_F32, &half, ZF_BF16, 1);
        zf_convert(&half, ZF_BF16, &want, ZF_F32, 1);
        zf_convert(&want, ZF_F32, &half, ZF_BF16, 1);
    } else {
        memcpy(&scale, record, sizeof scale);
    }
    CHECK(t, finite ? scale == want : isnan(scale));
    bound = (double)scale * (0.5 + 0x1p-15) + most * unit / 2;
    for (int64_t i = 0; i < d->block; i++) {
        const double x = values[first + i], off = fabs((double)y[i] - x);
        if (finite ? off <= bound : isnan(y[i]) != 0) continue;
        CHECK(t, off <= bound);
        return;
    }
}

/* Ties: at the scale 1, halves go to even integers. */
static void check_ties(test *t, const zf_quantize_desc *d, const float *y)
{
    for (int i = 3 * PATTERN; i < 4 * PATTERN; i++)
        if (d->scale == ZF_F32) CHECK(t, y[i] == nearbyintf(values[i]));
}

TEST_ONCE(quantize_keeps_its_bound)
{
    static const char *const isas[] = {"portable", "avx2", "avx512", "neon"};
    static const int64_t blocks[] = {64, 128, 256, 2048};
    test_defer(t, session_free, &s);
    for (int n = 0; n < 16; n++) {
        const zf_quantize_desc d = {.bits = n & 1 ? 4 : 8,
                                    .block = blocks[n / 4],
                                    .scale = n & 2 ? ZF_BF16 : ZF_F32};
        const size_t record = zf_dtype_size(d.scale) + (size_t)(d.block * d.bits / 8);
        const int64_t count = COUNT / d.block;
        fill(d.bits == 8 ? 127 : 7);
        if (!run(t, &d, &(zf_cpu_desc){.reference = true}, 4)) return;
        for (int64_t k = 0; k < count; k++)
            check_block(t, &d, k * d.block, records[4] + (size_t)k * record,
                        back[4] + k * d.block);
        check_ties(t, &d, back[4]);
        for (int k = 0; k < 4; k++) {
            if (!test_has_isa(t, isas[k])) continue;
            if (!run(t, &d, &(zf_cpu_desc){.threads = 2, .isa = isas[k]}, k)) return;
            CHECK(t, !memcmp(records[k], records[4], (size_t)count * record));
            CHECK(t, !memcmp(back[k], back[4], sizeof back[k]));
        }
    }
}

/* A result of f32, and one of bf16: what zf_dequantize_values gives, and that rounded. */
TEST_ONCE(dequantize_is_rounded)
{
    enum { MUCH = 1 << 15 };
    const zf_quantize_desc d = {.bits = 8};
    zf_error error = {ZF_OK, ""};
    float *x = malloc(2 * MUCH * sizeof *x), *want = x + MUCH;
    uint8_t *q = malloc(MUCH / 256 * 260);
    uint16_t *narrow = malloc(2 * MUCH * sizeof *narrow);
    zf_tensor in, y[2];
    test_defer(t, free, x), test_defer(t, free, q), test_defer(t, free, narrow);
    test_defer(t, session_free, &s);
    CHECK(t, x && q && narrow);
    for (uint32_t i = 0; i < MUCH; i++)
        x[i] = i == 5000 ? INFINITY : (float)(int32_t)(i * 2654435761u) * 0x1p-31f;
    OK(t, zf_quantize_values(q, x, MUCH, &d), "");
    OK(t, zf_dequantize_values(want, q, MUCH, &d), "");
    zf_convert(narrow, ZF_BF16, want, ZF_F32, MUCH);
    s.cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = 2}, &error);
    NEED(t, s.cpu, &error);
    s.graph = zf_graph_new(NULL);
    in = zf_input(s.graph, "q", ZF_U8, ZF_SHAPE(MUCH / 256 * 260));
    for (int k = 0; k < 2; k++)
        y[k] = zf_output(zf_dequantize(in, k ? ZF_BF16 : ZF_F32, &d), k ? "bf16" : "f32");
    s.program = zf_compile(s.graph, &(zf_compile_desc){.backend = s.cpu});
    OK(t, zf_graph_status(s.graph), zf_graph_error(s.graph));
    OK(t, zf_write(s.program, in, q, MUCH / 256 * 260), zf_program_error(s.program));
    OK(t, zf_step(s.program), zf_program_error(s.program));
    OK(t, zf_read(s.program, y[0], x, MUCH * sizeof *x), zf_program_error(s.program));
    OK(t, zf_read(s.program, y[1], narrow + MUCH, MUCH * sizeof *narrow),
       zf_program_error(s.program));
    CHECK(t, isnan(x[5000]) && !memcmp(x, want, MUCH * sizeof *x));
    CHECK(t, !memcmp(narrow, narrow + MUCH, MUCH * sizeof *narrow));
}

TEST(quantize_explains_mistakes)
{
    static const struct {
        zf_quantize_desc d;
        const char *says;
    } rows[] = {{{.bits = 7}, "bits is 7; it must be 8 or 4"},
                {{.block = 32}, "block is 32; it must be a multiple of 64, at most 2048"},
                {{.block = 4096}, "block is 4096; it must be a multiple of 64, at most 2048"},
                {{.scale = ZF_F16}, "scale must be f32 or bf16"},
                {{.block = 64}, "the last dimension of the operand is 96; it must be a multiple of "
                                "64, the elements of a block"}};
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_quantize(zf_input(g, "x", ZF_F32, ZF_SHAPE(2, 96)), &rows[n].d);
        if (zf_graph_status(g) == ZF_ERR_NOMEM || !g) {
            zf_graph_free(g);
            OK(t, ZF_ERR_NOMEM, "");
        }
        if (!strstr(zf_graph_error(g), rows[n].says))
            test_fail(t, __FILE__, __LINE__, rows[n].says, zf_graph_error(g));
        zf_graph_free(g);
    }
}

/* ---------------------------------------------------------------------------------------- ranks */

enum { RANKS = 4, WIDTH = 3 * 1024, SLOTS = 8, STEPS = 3, RESET = 2 };

#define BETA 0.75f

static session ranks[RANKS];
static zf_comm comms[RANKS];

static void ranks_free(void *object)
{
    (void)object;
    for (int r = 0; r < RANKS; r++) session_free(&ranks[r]);
}

static float weight_at(int64_t i) { return sinf((float)i * 0.37f) * (float)(i % 7 + 1); }

static float part_at(int64_t slot, int64_t i)
{
    return cosf((float)(i * (slot + 3)) * 0.11f) * (float)(slot * slot + 1);
}

/* What x is after it has been sent: by definition, in blocks of 256. errors: what is kept for the
 * next time, with the average of LoCo; NULL: nothing is. */
static void send(float *x, float *errors, int64_t n, float most)
{
    static float h[WIDTH];
    for (int64_t i = 0; i < n && errors; i++) h[i] = x[i] += errors[i];
    for (int64_t first = 0; first < n; first += 256) {
        float scale = 0;
        for (int64_t i = first; i < first + 256; i++) scale = fmaxf(scale, fabsf(x[i]));
        scale /= most;
        for (int64_t i = first; i < first + 256; i++)
            x[i] = scale > 0 ? nearbyintf(x[i] * (1 / scale)) * scale : 0;
    }
    for (int64_t i = 0; i < n && errors; i++) {
        const float kept = BETA * errors[i], rest = (float)(1 - (double)BETA) * (h[i] - x[i]);
        errors[i] = kept + rest;
    }
}

/* sum = what `count` ranks send, added in their order; parts[k] may change. errors: theirs, or
 * NULL. */
static void send_all(float *sum, float (*parts)[WIDTH], float (*errors)[WIDTH], int count,
                     bool onto)
{
    for (int k = 0; k < count; k++) {
        send(parts[k], errors ? errors[k] : NULL, WIDTH, 7);
        for (int64_t i = 0; i < WIDTH; i++) sum[i] = onto || k ? sum[i] + parts[k][i] : parts[k][i];
    }
}

/* The ranks of a step; micro-batches and nodes as given. */
static bool ranks_new(test *t, zf_program **programs, int32_t nodes, int64_t micro_batches,
                      bool loco, const float *w)
{
    ranks_free(NULL);
    for (int32_t r = 0; r < RANKS; r++) {
        zf_graph *g = ranks[r].graph = zf_graph_new(NULL);
        zf_tensor p = zf_param(g, "w", ZF_SHAPE(WIDTH), NULL),
                  lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR), loss;
        float one = 1;
        loss = zf_sum(zf_mul(p, zf_input(g, "x", ZF_F32, ZF_SHAPE(WIDTH))));
        zf_autograd(g, loss);
        zf_sgd(g, lr, NULL);
        zf_zero(g, &(zf_zero_desc){.stage = 3,
                                   .world = RANKS,
                                   .nodes = nodes,
                                   .micro_batches = micro_batches,
                                   .quantized_weights = true,
                                   .quantized_gradients = true,
                                   .loco = loco,
                                   .loco_beta = loco ? (double)BETA : 0,
                                   .loco_reset = loco ? RESET : 0});
        comms[r] = (zf_comm){.rank = r, .world = RANKS};
        programs[r] = ranks[r].program =
            zf_compile(g, &(zf_compile_desc){.comm = &comms[r], .verify = true});
        if (zf_graph_status(g) || zf_write(programs[r], lr, &one, sizeof one) ||
            zf_write(programs[r], p, w, WIDTH * sizeof *w)) {
            test_fail(t, __FILE__, __LINE__, "ranks_new", zf_graph_error(g));
            return false;
        }
    }
    return true;
}

/* The tensor of `count` floats is what it should be, to the last bit but for the sign of 0. */
static void is_tensor(test *t, const zf_lockstep_desc *d, const char *name, const float *want,
                      int64_t count)
{
    static float got[RANKS * WIDTH];
    zf_error error = {ZF_OK, ""};
    OK(t, zf_lockstep_read(d, name, got, (size_t)count * sizeof *got, &error), error.text);
    for (int64_t i = 0; i < count; i++)
        if (got[i] != want[i]) {
            CHECK_NEAR(t, (double)got[i], (double)want[i], 0);
        }
}

/* By definition: the sums of quantised gradients, inside nodes and then between them, micro-batch
 * after micro-batch, with and without error feedback; and the loss, of quantised weights. The
 * gradient of sum(w x) is x, so that an update by sgd at the rate 1 shows it, on weights that are
 * not rounded. */
TEST_ONCE(quantize_sums_by_definition)
{
    static float sum[WIDTH], parts[RANKS][WIDTH], nodes[RANKS][WIDTH], w[WIDTH], x[WIDTH],
        errors[RANKS][WIDTH], between[RANKS][WIDTH];
    test_defer(t, ranks_free, NULL);
    for (int n = 0; n < 8; n++) {
        const int32_t in = n % 2 ? 2 : 1, local = RANKS / in;
        const int64_t micro_batches = n / 2 % 2 ? 2 : 1;
        const bool loco = n >= 4;
        zf_program *programs[RANKS];
        const zf_lockstep_desc lockstep = {programs, RANKS, 0};
        zf_error error = {ZF_OK, ""};
        for (int64_t i = 0; i < WIDTH; i++) w[i] = weight_at(i);
        if (!ranks_new(t, programs, in, micro_batches, loco, w)) return;
        for (int64_t m = 0; m < (loco ? STEPS : 1) * micro_batches; m++) {
            const int64_t step = m / micro_batches, micro = m % micro_batches;
            if (!micro && step % RESET == 0)
                memset(errors, 0, sizeof errors), memset(between, 0, sizeof between);
            for (int32_t r = 0; r < RANKS; r++) {
                for (int64_t i = 0; i < WIDTH; i++)
                    x[i] = parts[r][i] = part_at(m * RANKS + r, i);
                OK(t,
                   zf_write(programs[r], zf_graph_find(ranks[r].graph, "x"), x, sizeof x),
                   zf_program_error(programs[r]));
            }
            if (in == 1) {
                send_all(sum, parts, loco ? errors : NULL, RANKS, micro > 0);
            } else {
                for (int k = 0; k < in; k++)
                    send_all(nodes[k], parts + k * local, loco ? errors + k * local : NULL, local,
                             false);
                send_all(sum, nodes, loco ? between : NULL, in, micro > 0);
            }
            OK(t,
               micro + 1 < micro_batches ? zf_lockstep_micro(&lockstep, &error)
                                         : zf_lockstep_step(&lockstep, &error),
               error.text);
            if (micro + 1 < micro_batches) continue;
            for (int64_t i = 0; i < WIDTH; i++) w[i] -= sum[i];
            is_tensor(t, &lockstep, "w", w, WIDTH);
        }
        if (loco) is_tensor(t, &lockstep, "loco.error/w", errors[0], RANKS * WIDTH);
        if (loco && in > 1) is_tensor(t, &lockstep, "loco.between/w", between[0], in * WIDTH);
    }
}

/* A loss of a product with a quantised weight, or with what that weight says; its gradients of x and
 * of the bias, in *out. */
static bool run_product(test *t, const zf_quantize_desc *d, zf_dtype dtype, bool fused, float *out)
{
    enum { ROWS = 3, IN = 128, OUT = 70 };
    const zf_param_desc normal = {.dtype = dtype, .init = ZF_NORMAL, .std = 0.5};
    static float weight[OUT * IN];
    zf_error error = {ZF_OK, ""};
    zf_tensor x, w, q, y, bias, c, lost;
    zf_status status;
    for (int i = 0; i < OUT * IN; i++) weight[i] = values[2 * PATTERN + i * 7 % PATTERN];
    s.cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = 2}, &error);
    s.graph = zf_graph_new(NULL);
    if (!s.cpu || !s.graph) return test_unwind(t, __FILE__, __LINE__, "run", ZF_ERR_NOMEM, NULL);
    w = zf_input(s.graph, "w", ZF_F32, ZF_SHAPE(OUT, IN));
    x = zf_param(s.graph, "x", ZF_SHAPE(ROWS, IN), &normal);
    bias = zf_param(s.graph, "bias", ZF_SHAPE(OUT), &normal);
    c = zf_param(s.graph, "c", ZF_SHAPE(ROWS, OUT),
                 &(zf_param_desc){.dtype = dtype, .init = ZF_NORMAL, .std = 1, .frozen = true});
    q = zf_quantize(w, d);
    y = fused ? zf_quantized_linear(x, q, bias, d)
              : zf_linear(x, zf_dequantize(q, dtype, d), bias);
    lost = zf_cast(zf_sum(zf_mul(y, c)), ZF_F32);
    zf_autograd(s.graph, lost);
    (void)zf_output(zf_gradient(s.graph, x), "dx"), (void)zf_output(zf_gradient(s.graph, bias), "db");
    s.program = zf_compile(s.graph, &(zf_compile_desc){.backend = s.cpu, .seed = 3});
    status = zf_graph_status(s.graph);
    if (!status) status = zf_write(s.program, w, weight, sizeof weight);
    if (!status) status = zf_step(s.program);
    for (int k = 0; k < 2 && !status; k++) {
        char raw[ROWS * IN * 8];
        zf_tensor of = zf_graph_find(s.graph, k ? "db" : "dx");
        status = zf_read(s.program, of, raw, zf_tensor_bytes(of));
        zf_convert(out + k * ROWS * IN, ZF_F32, raw, dtype,
                   (size_t)zf_shape_count(zf_tensor_shape(of)));
    }
    if (status)
        test_unwind(t, __FILE__, __LINE__, "run", status,
                    s.program ? zf_program_error(s.program) : zf_graph_error(s.graph));
    session_free(&s);
    return !status;
}

/* Reads what a new program gives for a tensor of its graph. */
static bool read_step(test *t, zf_graph *g, zf_tensor of, void *data, zf_tensor also, void *more)
{
    zf_status status;
    s.graph = g;
    s.program = zf_compile(g, &(zf_compile_desc){.seed = 9});
    status = s.program ? zf_step(s.program) : zf_graph_status(g);
    if (!status) status = zf_read(s.program, of, data, zf_tensor_bytes(of));
    if (!status) status = zf_read(s.program, also, more, zf_tensor_bytes(also));
    if (status) test_unwind(t, __FILE__, __LINE__, "a step", status, zf_graph_error(g));
    session_free(&s);
    return !status;
}

/* A parameter begins with the records of the floats that it would begin with; numbers are made
 * records as by the operator, and back. */
TEST_ONCE(quantized_parameters)
{
    enum { ROWS = 37, IN = 192, NUMBERS = ROWS * IN };
    const zf_quantize_desc descs[] = {{8, 64, ZF_BF16}, {4, 192, ZF_F32}};
    static float floats[NUMBERS], wide[NUMBERS], numbers[NUMBERS];
    static uint8_t first[2 * NUMBERS], made[2 * NUMBERS], by_hand[2 * NUMBERS];
    test_defer(t, session_free, &s);
    for (int k = 0; k < 2; k++) {
        const zf_quantize_desc *d = &descs[k];
        zf_param_desc desc = {.init = ZF_NORMAL, .std = 0.5};
        zf_graph *g = zf_graph_new(NULL);
        zf_tensor w;
        NEED(t, s.graph = g, NULL);
        w = zf_param(g, "w", ZF_SHAPE(ROWS, IN), &desc);
        CHECK(t, read_step(t, g, zf_output(zf_quantize(w, d), "q"), made, w, floats));
        desc.quantized = *d;
        NEED(t, s.graph = g = zf_graph_new(NULL), NULL);
        w = zf_param(g, "w", ZF_SHAPE(ROWS, IN), &desc);
        OK(t, zf_graph_status(g), zf_graph_error(g));
        CHECK(t, zf_valid(w) && zf_tensor_dtype(w) == ZF_U8 && zf_param_blocks(w).bits == d->bits);
        CHECK(t, zf_param_shape(w).dims[0] == ROWS && zf_param_shape(w).dims[1] == IN);
        const size_t bytes = zf_tensor_bytes(w);
        CHECK(t, bytes == (k ? 37 * (4 + 96) : 37 * 3 * (2 + 64)));
        CHECK(t, read_step(t, g, w, first, zf_output(zf_dequantize(w, ZF_F32, d), "y"), wide));
        OK(t, zf_quantize_values(by_hand, floats, NUMBERS, d), "");
        OK(t, zf_dequantize_values(numbers, by_hand, NUMBERS, d), "");
        CHECK(t, !memcmp(first, made, bytes) && !memcmp(first, by_hand, bytes));
        CHECK(t, !memcmp(numbers, wide, sizeof wide) && memcmp(numbers, floats, sizeof floats));
        CHECK(t, zf_quantize_values(by_hand, floats, 65, d) == ZF_ERR_ARGUMENT);
        CHECK(t, zf_dequantize_values(numbers, by_hand, 64, &(zf_quantize_desc){.bits = 3}) ==
                     ZF_ERR_ARGUMENT);
    }
}

/* The gradient of x goes through the weight, dequantised tile by tile. */
TEST_ONCE(quantized_linear_has_gradients)
{
    enum { GRADIENTS = 3 * 128 + 70 };
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    const zf_quantize_desc descs[] = {{.block = 64}, {.bits = 4, .block = 128, .scale = ZF_BF16}};
    static float fused[GRADIENTS], plain[GRADIENTS];
    test_defer(t, session_free, &s);
    fill(1);
    for (int n = 0; n < 6; n++) {
        const zf_dtype dtype = dtypes[n % 3];
        const double unit = dtype == ZF_F32 ? 1e-6 : dtype == ZF_BF16 ? 0x1p-8 : 0x1p-10;
        double most = 0;
        if (!run_product(t, &descs[n / 3], dtype, true, fused) ||
            !run_product(t, &descs[n / 3], dtype, false, plain))
            return;
        for (int i = 0; i < GRADIENTS; i++) most = fmax(most, fabs((double)plain[i]));
        CHECK(t, most > 0.5);
        for (int i = 0; i < GRADIENTS; i++) CHECK_NEAR(t, fused[i], plain[i], 2 * unit * most);
    }
}

/* The products of rows 0..9 and 12..40 of x with matrices of three experts, of which the second has
 * no rows, and the gradient of x: by records, or by what these are as floats. */
static bool run_experts(test *t, const zf_quantize_desc *d, zf_dtype dtype, bool few, bool alone,
                        const int32_t bounds[6], float *out)
{
    enum { ROWS = 41, IN = 192, OUT = 150 };
    const zf_param_desc normal = {.dtype = dtype, .init = ZF_NORMAL, .std = 1};
    zf_graph *g = s.graph = zf_graph_new(NULL);
    zf_tensor x, w, q, of, y, c, lost;
    zf_status status;
    x = zf_param(g, "x", ZF_SHAPE(ROWS, IN), &normal);
    w = zf_param(g, "w", ZF_SHAPE(3, OUT, IN),
                 &(zf_param_desc){.init = ZF_NORMAL, .std = 0.3, .frozen = true});
    c = zf_param(g, "c", ZF_SHAPE(ROWS, OUT),
                 &(zf_param_desc){.dtype = dtype, .init = ZF_NORMAL, .std = 1, .frozen = true});
    q = zf_quantize(w, d);
    of = zf_input(g, "bounds", ZF_I32, ZF_SHAPE(3, 2));
    y = few ? zf_grouped_linear_ex(
                      x, q, of, &(zf_grouped_linear_desc){.quantized = *d, .alone = alone})
                : zf_grouped_linear(x, zf_dequantize(q, dtype, d), of);
    lost = zf_cast(zf_sum(zf_mul(y, c)), ZF_F32);
    (void)zf_output(zf_cast(y, ZF_F32), "y");
    zf_autograd(g, lost);
    (void)zf_output(zf_cast(zf_gradient(g, x), ZF_F32), "dx");
    s.cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = 2}, NULL);
    s.program = zf_compile(g, &(zf_compile_desc){.backend = s.cpu, .seed = 3});
    status = zf_graph_status(g);
    if (!status) status = zf_write(s.program, of, bounds, 6 * sizeof *bounds);
    if (!status) status = zf_step(s.program);
    if (!status) status = zf_read(s.program, zf_graph_find(g, "y"), out, ROWS * OUT * sizeof *out);
    if (!status)
        status = zf_read(s.program, zf_graph_find(g, "dx"), out + ROWS * OUT, ROWS * IN * sizeof *out);
    if (status)
        test_unwind(t, __FILE__, __LINE__, "run", status,
                    s.program ? zf_program_error(s.program) : zf_graph_error(g));
    session_free(&s);
    return !status;
}

/* Matrices of records have the products of the floats that they are; a row has the same bits whatever
 * rows its expert has besides. */
TEST_ONCE(quantized_experts_are_those_of_floats)
{
    enum { ROWS = 41, IN = 192, OUT = 150, ALL = ROWS * (OUT + IN) };
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    static const int32_t bounds[6] = {0, 10, 10, 10, 12, 41}, few[6] = {3, 4, 10, 10, 12, 14};
    const zf_quantize_desc descs[] = {{.bits = 8, .block = 64},
                                     {.bits = 4, .block = 192, .scale = ZF_BF16}};
    static float made[ALL], plain[ALL], some[ALL];
    test_defer(t, session_free, &s);
    for (int n = 0; n < 12; n++) {
        const zf_dtype dtype = dtypes[n % 3];
        const zf_quantize_desc *d = &descs[n / 3 % 2];
        const double unit = dtype == ZF_F32 ? 1e-6 : dtype == ZF_BF16 ? 0x1p-8 : 0x1p-10;
        double most = 0;
        if (!run_experts(t, d, dtype, true, n / 6, bounds, made) ||
            !run_experts(t, d, dtype, false, false, bounds, plain) ||
            !run_experts(t, d, dtype, true, n / 6, few, some))
            return;
        for (int i = 0; i < ALL; i++) most = fmax(most, fabs((double)plain[i]));
        CHECK(t, most > 0.5);
        for (int i = 0; i < ALL; i++) CHECK_NEAR(t, made[i], plain[i], 2 * unit * most);
        for (int i = 10 * OUT; i < 12 * OUT; i++) CHECK(t, made[i] == 0);
        CHECK(t, !memcmp(made + 3 * OUT, some + 3 * OUT, OUT * sizeof *made));
        CHECK(t, !memcmp(made + 12 * OUT, some + 12 * OUT, 2 * OUT * sizeof *made));
    }
}

/* The rows of a product of x with a weight, the same in each call, where x has the rows of the same
 * numbers from row `first` on: [rows], or so many matrices of `each` rows. */
static bool few_rows(test *t, const zf_quantize_desc *d, zf_dtype dtype, int64_t first, int64_t rows,
                     int64_t each, float *out)
{
    enum { IN = 192, OUT = 37, MOST = 48 };
    static float numbers[MOST * IN];
    zf_graph *g = s.graph = zf_graph_new(NULL);
    zf_tensor x, w, y;
    zf_status status;
    for (int i = 0; i < MOST * IN; i++) numbers[i] = (float)(i * 7919 % 1999 - 999) / 500;
    x = zf_input(g, "x", ZF_F32, each ? ZF_SHAPE(rows / each, each, IN) : ZF_SHAPE(rows, IN));
    w = zf_param(g, "w", ZF_SHAPE(OUT, IN),
                 &(zf_param_desc){.init = ZF_NORMAL, .std = 0.5, .quantized = *d});
    y = zf_quantized_linear(dtype == ZF_F32 ? x : zf_cast(x, dtype), w, ZF_NONE, d);
    y = zf_output(dtype == ZF_F32 ? y : zf_cast(y, ZF_F32), "y");
    s.program = zf_compile(g, &(zf_compile_desc){.seed = 9, .evaluate = true});
    status = s.program ? zf_write(s.program, x, numbers + first * IN, (size_t)(rows * IN) * 4)
                       : zf_graph_status(g);
    if (!status) status = zf_step(s.program);
    if (!status) status = zf_read(s.program, y, out, (size_t)(rows * OUT) * 4);
    if (status) test_unwind(t, __FILE__, __LINE__, "a product", status, zf_graph_error(g));
    session_free(&s);
    return !status;
}

/* One row has the bits that it has among others, and a matrix of rows, of which a prompt is one, those
 * that it has among other matrices, however many there are. */
TEST_ONCE(quantized_rows_are_alike)
{
    enum { OUT = 37, MOST = 48 };
    static const struct {
        int64_t all, each, some;
    } shapes[] = {{16, 0, 1}, {16, 0, 8}, {16, 0, 15}, {40, 1, 1}, {40, 1, 17}, {46, 23, 23}, {40, 5, 5}};
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    static const zf_quantize_desc descs[] = {{8, 64, ZF_BF16}, {4, 192, ZF_F32}};
    static float all[MOST * OUT], one[MOST * OUT];
    test_defer(t, session_free, &s);
    for (int n = 0; n < 6 * (int)(sizeof shapes / sizeof *shapes); n++) {
        const zf_quantize_desc *d = &descs[n % 2];
        const zf_dtype dtype = dtypes[n % 3];
        const int64_t rows = shapes[n / 6].some, each = shapes[n / 6].each;
        if (!few_rows(t, d, dtype, 0, shapes[n / 6].all, each, all) ||
            !few_rows(t, d, dtype, each ? each : 1, rows, each, one))
            return;
        CHECK(t, !memcmp(one, all + (each ? each : 1) * OUT, (size_t)(rows * OUT) * sizeof *one));
    }
}

/* once=true: the records of the first micro-batch of a step are those of the others. */
TEST(quantize_once_a_step)
{
    static const char text[] = "zero stage=0 world=1 micro_batches=2\n"
                               "%1 = param \"w\" : f32[256]\n"
                               "%2 = quantize %1 {bits=8 block=256 once=true} : u8[260]\n"
                               "%3 = dequantize %2 {bits=8 block=256} : f32[256]\n"
                               "output %3 \"y\"\n";
    static float w[256], y[256];
    zf_error error = {ZF_OK, ""};
    zf_status status = ZF_OK;
    test_defer(t, session_free, &s);
    s.graph = zf_graph_parse(text, strlen(text), NULL, &error);
    NEED(t, s.graph, &error);
    s.program = zf_compile(s.graph, NULL);
    if (!s.program) OK(t, zf_graph_status(s.graph), zf_graph_error(s.graph));
    for (int k = 0; k < 4 && !status; k++) {
        for (int i = 0; i < 256; i++) w[i] = (float)(k + 1);
        status = zf_write(s.program, zf_graph_find(s.graph, "w"), w, sizeof w);
        if (!status) status = k % 2 ? zf_step(s.program) : zf_micro(s.program);
        if (!status) status = zf_read(s.program, zf_graph_find(s.graph, "y"), y, sizeof y);
        if (!status) CHECK_NEAR(t, y[5], (float)(k / 2 * 2 + 1), 1e-5);
    }
    OK(t, status, zf_program_error(s.program));
}
