/* The CUDA backend: sections as graphs, copies, queues; errors, and the state after them. Without
 * EMULATION it runs on a GPU, except for tests that need calls to fail. */
#include "../support/test.h"

#include <cuda_runtime_api.h>

#ifdef EMULATION
#include "../emulation/emulation.h"
#else
#define emulation_seed(seed) ((void)(seed))
#define emulation_report()   ""
#define emulation_live()     0
#define emulation_kernels()  0L
#endif

enum { ROWS = 6, WIDTH = 16, WORDS = 11, IMAGE = 1 << 16 };

static zf_backend *cuda_of(test *t, const zf_cuda_desc *desc, zf_error *error)
{
    zf_cuda_desc d = *desc;
    zf_backend *cuda;
    d.allocator = t->allocator;
    cuda = zf_cuda_backend(&d, error);
    if (cuda) test_defer(t, (test_cleanup *)zf_backend_free, cuda);
    return cuda;
}

/* A training step with most parts of a transformer: `micro_batches`, buckets, and optionally
 * communication on other queues, and updates in host memory. */
typedef struct setup {
    int32_t stage;
    int64_t micro_batches;
    bool prefetch;
    zf_dtype dtype;
    bool offload;
} setup;

static zf_graph *build(test *t, const setup *s)
{
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.2}, ones = {.init = ZF_ONES};
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor ids = zf_input(g, "ids", ZF_I32, ZF_SHAPE(ROWS)),
              labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(ROWS)),
              table = zf_param(g, "table", ZF_SHAPE(WORDS, WIDTH), &normal),
              w = zf_param(g, "w", ZF_SHAPE(WIDTH, WIDTH), &normal), x, loss;
    if (!g) return NULL;
    x = zf_layer_norm(zf_embedding(table, ids), zf_param(g, "gamma", ZF_SHAPE(WIDTH), &ones),
                      zf_param(g, "beta", ZF_SHAPE(WIDTH), NULL), 1e-5);
    x = zf_add(x, zf_softmax(zf_gelu(zf_matmul(zf_dropout(x, 0.1), w))));
    x = zf_matmul_ex(x, table, &(zf_matmul_desc){.transpose_b = true});
    loss = zf_cross_entropy(x, labels, ZF_NONE);
    zf_output(loss, "loss");
    zf_precision(g, &(zf_precision_desc){.dtype = s->dtype});
    zf_autograd(g, loss);
    zf_clip(g, 1);
    zf_adamw(g, zf_constant(g, ZF_F32, ZF_SCALAR, 0.01), NULL);
    if (s->micro_batches > 1 || s->stage)
        zf_zero(g, &(zf_zero_desc){.stage = s->stage,
                                   .world = 1,
                                   .micro_batches = s->micro_batches,
                                   .bucket_bytes = 256});
    if (s->offload) zf_offload(g, &(zf_offload_desc){.optimizer = ZF_HOST});
    if (s->prefetch) zf_prefetch(g, &(zf_training){.prefetch = {.bytes = 1 << 20}});
    return g;
}

static zf_status feed(zf_program *p, zf_graph *g, int64_t at, int32_t spoil)
{
    int32_t ids[ROWS], labels[ROWS];
    zf_status status;
    for (int i = 0; i < ROWS; i++) {
        ids[i] = (int32_t)((i * 7 + at) % WORDS);
        labels[i] = i % 4 ? (int32_t)((i * 3 + at) % WORDS) : -100;
    }
    if (spoil == 1) ids[2] = WORDS + 3;
    if (spoil == 2) labels[3] = -7;
    status = zf_write(p, zf_graph_find(g, "ids"), ids, sizeof ids);
    if (!status) status = zf_write(p, zf_graph_find(g, "labels"), labels, sizeof labels);
    return status;
}

typedef struct image {
    unsigned char bytes[IMAGE];
    size_t size;
    double loss;
    char remark[720]; /* zf_program_info.remark after the last step */
} image;

static zf_status keep(zf_program *p, zf_tensor x, image *to)
{
    size_t bytes = zf_tensor_bytes(x);
    zf_status status =
        to->size + bytes > IMAGE ? ZF_ERR_LIMIT : zf_read(p, x, to->bytes + to->size, bytes);
    to->size += bytes;
    return status;
}

static zf_status steps(zf_program *p, zf_graph *g, const setup *s, int count, image *to)
{
    zf_status status = ZF_OK;
    for (int step = 0; step < count && !status; step++) {
        float loss;
        for (int64_t micro = 0; micro < s->micro_batches && !status; micro++) {
            status = feed(p, g, step + 2 * micro, 0);
            if (!status) status = micro + 1 < s->micro_batches ? zf_micro(p) : zf_step(p);
        }
        if (status || (status = keep(p, zf_graph_find(g, "loss"), to))) break;
        memcpy(&loss, to->bytes + to->size - sizeof loss, sizeof loss);
        to->loss = loss;
    }
    for (int32_t k = 0; k < zf_param_count(g) && !status; k++)
        status = keep(p, zf_param_at(g, k), to);
    return status;
}

/* Six steps on the backend; false: the test is over. */
static bool train(test *t, const setup *s, zf_backend *backend, bool poison, image *to)
{
    zf_graph *g = build(t, s);
    zf_program *p =
        g ? zf_compile(g, &(zf_compile_desc){.backend = backend, .seed = 2, .poison = poison})
          : NULL;
    zf_status status = p ? ZF_OK : g ? zf_graph_status(g) : ZF_ERR_NOMEM;
    *to = (image){.size = 0};
    if (p) {
        zf_program_info info = zf_program_info_of(p);
        if (info.peak_bytes != info.allocated_bytes)
            test_fail(t, __FILE__, __LINE__, "predicted = allocated bytes", "");
        status = steps(p, g, s, 6, to);
        snprintf(to->remark, sizeof to->remark, "%s", zf_program_info_of(p).remark);
    }
    if (status)
        test_unwind(t, __FILE__, __LINE__, "train", status,
                    p ? zf_program_error(p) : zf_graph_error(g));
    zf_program_free(p);
    zf_graph_free(g);
    if (*emulation_report()) test_fail(t, __FILE__, __LINE__, "report", emulation_report());
    return !status && !t->failed;
}

static bool same(const image *a, const image *b)
{
    return a->size == b->size && !memcmp(a->bytes, b->bytes, a->size);
}

/* ----------------------------------------------------------------------------------- steps */

/* The same bits launch by launch, as graphs, poisoned, and in every order of what is ready; and
 * near the CPU's. */
TEST_ONCE(cuda_steps_as_graphs)
{
    static const setup setups[] = {{0, 1, false, ZF_F32, false}, {0, 1, false, ZF_BF16, false},
                                   {0, 1, false, ZF_F16, false}, {1, 3, false, ZF_F32, false},
                                   {2, 2, true, ZF_F32, false},  {3, 2, true, ZF_BF16, false}};
    static image expected, got;
    for (size_t k = 0; k < sizeof setups / sizeof setups[0]; k++) {
        const setup *s = &setups[k];
        double near = s->dtype == ZF_F32 ? 1e-4 : 0.03;
        if (!train(t, s, NULL, false, &got)) return;
        for (int way = 0; way < 5; way++) {
            zf_error error = {ZF_OK, ""};
            zf_backend *cuda = zf_cuda_backend(&(zf_cuda_desc){.no_graphs = way == 1}, &error);
            double on_cpu = got.loss;
            bool good;
            NEED(t, cuda, &error);
            emulation_seed((uint64_t)way);
            good = train(t, s, cuda, way == 2, way ? &got : &expected);
            zf_backend_free(cuda);
            if (!good) return;
            if (way) CHECK(t, same(&got, &expected));
            else CHECK_NEAR(t, expected.loss, on_cpu, near * fabs(on_cpu));
        }
    }
}

/* Quantised gradients' errors over steps, of floats and in records with a loss scale: the bits of
 * the CPU, launch by launch and out of graphs; they begin anew in the steps 1, 3 and 5, and stay
 * where a number is none. */
TEST_ONCE(cuda_keeps_errors)
{
    enum { N = 512 };
    static const char *const texts[] = {
        "%1 = input \"x\" : f32[512]\n%2 = state \"e\" : f32[512]\n"
        "%3 = quantize_feedback %1, %2 {bits=4 block=128 beta=0.8 reset=2} : u8[272]\n"
        "output %3 \"q\"\n",
        "%1 = input \"x\" : f32[512]\n%2 = state \"e\" : f32[512]\n"
        "%3 = quantize_feedback %1, %2 {bits=8 block=64 scale=bf16 reset=2} : u8[528]\n"
        "output %3 \"q\"\n",
        "%1 = input \"x\" : f32[512]\n%2 = state \"e\" : u8[528]\n%3 = state \"s\" {value=4} : f32[]\n"
        "%4 = state \"i\" {value=7} : i64[]\n%5 = state \"o\" {value=3} : i64[]\n"
        "%6 = quantize_feedback %1, %2, %3, %4, %5 {bits=4 block=128 beta=0.8 reset=2} : u8[272]\n"
        "output %6 \"q\"\n",
        "%1 = input \"x\" : f32[512]\n%2 = state \"e\" : u8[544]\n%3 = state \"s\" {value=4} : f32[]\n"
        "%4 = state \"i\" {value=4} : i64[]\n%5 = state \"o\" {value=3} : i64[]\n"
        "%6 = quantize_feedback %1, %2, %3, %4, %5 {bits=8 block=64 beta=0.8} : u8[544]\n"
        "output %6 \"q\"\n"};
    static float x[N];
    static uint8_t errors[2][5][4 * N], records[2][5][600];
    for (int n = 0; n < 4; n++) {
        for (int on = 0; on < 2; on++) {
            zf_error error = {ZF_OK, ""};
            zf_backend *cuda = on ? cuda_of(t, &(zf_cuda_desc){.device = 0}, &error) : NULL;
            zf_graph *g = zf_graph_parse(texts[n], strlen(texts[n]), NULL, &error);
            zf_program *p = zf_compile(g, &(zf_compile_desc){.backend = cuda});
            NEED(t, !on || cuda, &error);
            NEED(t, p, &error);
            test_defer(t, (test_cleanup *)zf_graph_free, g);
            test_defer(t, (test_cleanup *)zf_program_free, p);
            for (int step = 0; step < 5; step++) {
                const zf_tensor q = zf_graph_find(g, "q"), e = zf_graph_find(g, "e");
                bool some = false;
                for (int i = 0; i < N; i++)
                    x[i] = (float)((i * 37 + step * 11) % 101 - 50) / (float)(1 + i % 7);
                if (step == 3) x[200] = NAN;
                OK(t, zf_write(p, zf_graph_find(g, "x"), x, sizeof x), zf_program_error(p));
                OK(t, zf_step(p), zf_program_error(p));
                OK(t, zf_read(p, e, errors[on][step], zf_tensor_bytes(e)), zf_program_error(p));
                OK(t, zf_read(p, q, records[on][step], zf_tensor_bytes(q)), zf_program_error(p));
                for (int i = 0; i < N; i++) some |= errors[on][step][i] != 0;
                CHECK(t, some);
            }
        }
        CHECK(t, !memcmp(errors[0], errors[1], sizeof errors[0]));
        CHECK(t, !memcmp(records[0], records[1], sizeof records[0]));
    }
}

/* Parameters of all kinds of sizes, of which every other one is a matrix and decays. */
static zf_graph *build_many(test *t, zf_dtype dtype)
{
    static const int64_t sizes[] = {1, 1023, 1024, 1025, 3000, 7, 2048, 5, 4096, 33};
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.2};
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor loss = zf_constant(g, ZF_F32, ZF_SCALAR, 1);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        char name[20];
        zf_tensor p;
        snprintf(name, sizeof name, "p%d", (int)k);
        p = zf_param(g, name, k % 2 ? ZF_SHAPE(1, sizes[k]) : ZF_SHAPE(sizes[k]), &normal);
        loss = zf_add(loss, zf_sum(zf_mul(zf_mul(p, p), p)));
    }
    zf_output(loss, "loss");
    zf_precision(g, &(zf_precision_desc){.dtype = dtype});
    zf_autograd(g, loss);
    zf_clip(g, 0.5);
    zf_adamw(g, zf_constant(g, ZF_F32, ZF_SCALAR, 0.01), &(zf_adamw_desc){.weight_decay = 0.1});
    return g;
}

/* Three steps; how many kernels they took. */
static long train_many(test *t, zf_dtype dtype, zf_backend *backend, image *to)
{
    long before = emulation_kernels();
    zf_graph *g = build_many(t, dtype);
    zf_program *p = zf_compile(g, &(zf_compile_desc){.backend = backend, .seed = 2});
    zf_status status = p ? ZF_OK : zf_graph_status(g);
    *to = (image){.size = 0};
    for (int n = 0; n < 3 && !status; n++) status = zf_step(p);
    for (int32_t k = 0; k < zf_param_count(g) && !status; k++)
        status = keep(p, zf_param_at(g, k), to);
    if (status)
        test_fail(t, __FILE__, __LINE__, "train", p ? zf_program_error(p) : zf_graph_error(g));
    zf_program_free(p);
    zf_graph_free(g);
    if (*emulation_report()) test_fail(t, __FILE__, __LINE__, "report", emulation_report());
    return emulation_kernels() - before;
}

/* Updates that follow each other, and norms, are launched together: fewer kernels, equal bits. */
TEST_ONCE(cuda_updates_together)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16};
    static image together, alone, on_cpu;
    for (int k = 0; k < 2; k++) {
        long kernels[2];
        for (int way = 0; way < 2; way++) {
            zf_error error = {ZF_OK, ""};
            zf_backend *cuda = zf_cuda_backend(&(zf_cuda_desc){.no_graphs = true}, &error);
            NEED(t, cuda, &error);
            if (way) cuda->run = NULL; /* launch by launch */
            kernels[way] = train_many(t, dtypes[k], cuda, way ? &alone : &together);
            zf_backend_free(cuda);
        }
        train_many(t, dtypes[k], NULL, &on_cpu);
        CHECK(t, same(&together, &alone));
        CHECK(t, together.size == on_cpu.size);
        for (size_t i = 0; dtypes[k] == ZF_F32 && i < on_cpu.size; i += sizeof(float)) {
            float x, y;
            memcpy(&x, together.bytes + i, sizeof x), memcpy(&y, on_cpu.bytes + i, sizeof y);
            CHECK_NEAR(t, x, y, 1e-5);
        }
#ifdef EMULATION
        CHECK(t, kernels[0] <= kernels[1] - 3 * 12); /* ten of each by four launches */
#else
        (void)kernels;
#endif
    }
}

/* Operators of a program's own: one whose kernel moves its operand through scratch, one that fails,
 * one that has no kernel here. */
static zf_status host_kernel(const zf_launch *l) { return l->out.data ? ZF_OK : ZF_ERR_BACKEND; }

static size_t passed_bytes(const zf_launch *l)
{
    return (size_t)zf_shape_count(l->out.shape) * zf_dtype_size(l->out.dtype);
}

static zf_status passed_on(const zf_launch *l, void *stream)
{
    const size_t bytes = passed_bytes(l);
    cudaMemcpyAsync(l->scratch, l->args[0].data, bytes, cudaMemcpyDeviceToDevice, stream);
    cudaMemcpyAsync(l->out.data, l->scratch, bytes, cudaMemcpyDeviceToDevice, stream);
    return ZF_OK;
}

static zf_status fails_here(const zf_launch *l, void *stream)
{
    (void)stream;
    if (!l->attributes[0].i) return ZF_ERR_IO;
    return zf_launch_fail(l, ZF_ERR_BACKEND, "not with this attribute");
}

static const zf_operator own_operators[] = {
    {.name = "passed", .cpu = host_kernel, .cuda = passed_on, .cuda_scratch = passed_bytes},
    {.name = "fails", .attributes = "aloud:b", .cpu = host_kernel, .cuda = fails_here},
    {.name = "absent", .cpu = host_kernel}};

/* y = 2 op(x). */
typedef struct own_program {
    zf_graph *graph;
    zf_program *program;
    zf_tensor x, y;
} own_program;

static own_program own_new(test *t, zf_backend *cuda, const char *name, bool aloud, zf_dtype dtype)
{
    own_program o = {.graph = zf_graph_new(&(zf_graph_desc){t->allocator, own_operators, 3})};
    zf_tensor x;
    if (!o.graph) return o;
    test_defer(t, (test_cleanup *)zf_graph_free, o.graph);
    o.x = zf_input(o.graph, "x", ZF_F32, ZF_SHAPE(3, 7));
    x = zf_cast(o.x, dtype);
    x = zf_apply(o.graph, name, 1, &x, &(zf_attribute){.i = aloud});
    o.y = zf_output(zf_cast(zf_scale(x, 2), ZF_F32), "y");
    o.program = zf_compile(o.graph, &(zf_compile_desc){.backend = cuda});
    if (o.program) test_defer(t, (test_cleanup *)zf_program_free, o.program);
    return o;
}

TEST_ONCE(cuda_runs_own_operators)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda = cuda_of(t, &(zf_cuda_desc){.device = 0}, &error);
    own_program o;
    float x[21] = {1}, y[21];
    NEED(t, cuda, &error);
    for (int k = 0; k < 3; k++) {
        o = own_new(t, cuda, "passed", false, dtypes[k]);
        if (!o.program) OK(t, zf_graph_status(o.graph), zf_graph_error(o.graph));
        for (int step = 0; step < 4; step++) { /* launched, captured, replayed */
            for (int i = 0; i < 21; i++) x[i] = (float)(i - 10 * step);
            OK(t, zf_write(o.program, o.x, x, sizeof x), zf_program_error(o.program));
            OK(t, zf_step(o.program), zf_program_error(o.program));
            OK(t, zf_read(o.program, o.y, y, sizeof y), zf_program_error(o.program));
            for (int i = 0; i < 21; i++) CHECK(t, y[i] == 2 * x[i]);
        }
    }
    for (int aloud = 0; aloud < 2; aloud++) {
        o = own_new(t, cuda, "fails", aloud, ZF_F32);
        if (!o.program) OK(t, zf_graph_status(o.graph), zf_graph_error(o.graph));
        OK(t, zf_write(o.program, o.x, x, sizeof x), zf_program_error(o.program));
        CHECK(t, zf_step(o.program) == (aloud ? ZF_ERR_BACKEND : ZF_ERR_IO));
        CHECK_TEXT(t, zf_program_error(o.program),
                   aloud ? "fails %2: not with this attribute"
                         : "fails %2: its CUDA kernel returned \"input/output error\"");
    }
    o = own_new(t, cuda, "absent", false, ZF_F32);
    CHECK(t, !o.program);
    CHECK_TEXT(t, zf_graph_error(o.graph),
               "absent %2: the operator has no kernel for CUDA (zf_operator.cuda)");
}

/* A program that shares another's parameters goes between its steps: each has its own zf_run. */
TEST_ONCE(cuda_programs_share_a_backend)
{
    const setup s = {0, 1, false, ZF_F32, false};
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda = cuda_of(t, &(zf_cuda_desc){.device = 0}, &error);
    static image expected, got;
    zf_graph *g[2];
    zf_program *p[2];
    float losses[2] = {0, 0};
    NEED(t, cuda, &error);
    if (!train(t, &s, cuda, false, &expected)) return;
    for (int k = 0; k < 2; k++) {
        NEED(t, g[k] = build(t, &s), NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g[k]);
        NEED(t,
             p[k] = zf_compile(g[k], &(zf_compile_desc){.backend = cuda,
                                                        .seed = 2,
                                                        .store = k ? zf_program_store(p[0]) : NULL,
                                                        .evaluate = k == 1}),
             NULL);
        test_defer(t, (test_cleanup *)zf_program_free, p[k]);
    }
    got = (image){.size = 0};
    for (int step = 0; step < 6; step++) {
        OK(t, feed(p[0], g[0], step, 0), zf_program_error(p[0]));
        OK(t, zf_step(p[0]), zf_program_error(p[0]));
        OK(t, keep(p[0], zf_graph_find(g[0], "loss"), &got), zf_program_error(p[0]));
        if (step < 5) continue;
        for (int32_t k = 0; k < zf_param_count(g[0]); k++)
            OK(t, keep(p[0], zf_param_at(g[0], k), &got), zf_program_error(p[0]));
        /* Without dropout: other numbers. Its steps update the parameters too */
        for (int turn = 0; turn < 2; turn++) {
            OK(t, feed(p[1], g[1], step, 0), zf_program_error(p[1]));
            OK(t, zf_step(p[1]), zf_program_error(p[1]));
            OK(t, zf_read(p[1], zf_graph_find(g[1], "loss"), &losses[turn], 4), NULL);
        }
        CHECK(t, losses[1] > 0 && losses[1] < losses[0]);
    }
    CHECK(t, same(&expected, &got));
}

/* Two devices of one thread, where there are so many: whichever was used last, each does its own
 * work, the search for products among it. */
TEST_ONCE(cuda_devices_in_turn)
{
    const setup s = {0, 1, false, ZF_F32, false};
    char files[2][256];
    zf_backend *cuda[2];
    static image made[2];
    for (int k = 0; k < 2; k++) {
        zf_error error = {ZF_OK, ""};
        snprintf(files[k], sizeof files[k], "%s", test_path(k ? "products-1" : "products-0"));
        cuda[k] = cuda_of(t, &(zf_cuda_desc){.device = k, .tuning = files[k]}, &error);
        if (k && !cuda[k]) return;
        NEED(t, cuda[k], &error);
    }
    for (int k = 0; k < 2; k++) {
        if (!train(t, &s, cuda[k], false, &made[k])) return;
        CHECK(t, !remove(files[k]));
    }
    CHECK_NEAR(t, made[0].loss, made[1].loss, 1e-4);
}

/* ---------------------------------------------------------------------------------- queues */

enum { Q_LENGTH = 300, Q_LAUNCHES = 10, Q_CUT = 7, Q_ARRAYS = 8 };

/* Launches over three queues, in two sections; `of` says what each makes of what: scaled by a
 * number, the sum of two, or a wait for a launch. h = 198 x comes out, if each is after what it
 * reads. */
static const struct {
    int32_t queue, waits_for;
    int a, b, out; /* arrays x, a, ... h; b 0: scaled */
    double by;
} of[Q_LAUNCHES] = {
    {0, -1, 0, 0, 1, 2}, {1, -1, 1, 0, 2, 3}, {0, -1, 0, 0, 3, 5},  {0, 1, 0, 0, 0, 0},
    {0, -1, 2, 3, 4, 0}, {2, -1, 4, 0, 5, 7}, {1, -1, 4, 0, 6, 11}, {0, 5, 0, 0, 0, 0},
    {0, 6, 0, 0, 0, 0},  {0, -1, 5, 6, 7, 0},
};

/* Everything that the queues need. */
typedef struct queued {
    zf_backend *cuda;
    zf_run run;
    zf_error error;
    float *memory;
    zf_array args[Q_LAUNCHES][2];
    zf_attribute by[Q_LAUNCHES];
    zf_launch launches[Q_LAUNCHES];
    int32_t waits_for[Q_LAUNCHES];
    zf_section sections[2];
} queued;

static void queued_free(void *object)
{
    queued *q = object;
    for (int k = 0; k < 2; k++)
        if (q->sections[k].kept) q->cuda->forget(q->cuda->self, &q->sections[k]);
    if (q->memory) q->cuda->release(q->cuda->self, q->memory, Q_ARRAYS * Q_LENGTH * sizeof(float));
}

static zf_array queued_array(const queued *q, int number)
{
    return (zf_array){q->memory + number * Q_LENGTH, ZF_F32, ZF_SHAPE(Q_LENGTH)};
}

static void queued_fill(queued *q)
{
    for (int n = 0; n < Q_LAUNCHES; n++) {
        q->args[n][0] = queued_array(q, of[n].a);
        q->args[n][1] = queued_array(q, of[n].b);
        q->by[n].f = of[n].by;
        q->waits_for[n] = of[n].waits_for;
        q->launches[n] = (zf_launch){.op = of[n].waits_for >= 0 ? ZF_OP_wait
                                           : of[n].b            ? ZF_OP_add
                                                                : ZF_OP_scale,
                                     .node = n + 1,
                                     .arg_count = of[n].b ? 2 : 1,
                                     .args = q->args[n],
                                     .out = queued_array(q, of[n].out),
                                     .attributes = &q->by[n],
                                     .run = &q->run,
                                     .backend = q->cuda->self,
                                     .queue = of[n].queue,
                                     .error = &q->error};
    }
    q->sections[0] = (zf_section){q->launches, q->waits_for, 0, Q_CUT, NULL, NULL};
    q->sections[1] = (zf_section){q->launches, q->waits_for, Q_CUT, Q_LAUNCHES, NULL, NULL};
}

/* Once, with x full of `value`; the result is in h. */
static zf_status queued_round(queued *q, float value, bool sections, float *h)
{
    float x[Q_LENGTH];
    zf_status status;
    for (int i = 0; i < Q_LENGTH; i++) x[i] = value;
    status = q->cuda->copy(q->cuda->self, q->memory, x, sizeof x, ZF_HOST_TO_DEVICE, &q->error);
    for (int k = 0; k < 2 && sections && !status; k++)
        status = q->cuda->run(q->cuda->self, &q->sections[k], &q->error);
    for (int n = 0; n < Q_LAUNCHES && !sections && !status; n++)
        status = of[n].waits_for >= 0 ? q->cuda->wait(q->cuda->self, &q->launches[of[n].waits_for])
                                      : q->cuda->launch(q->cuda->self, &q->launches[n]);
    if (status) return status;
    return q->cuda->copy(q->cuda->self, h, q->memory + (Q_ARRAYS - 1) * Q_LENGTH,
                         Q_LENGTH * sizeof *h, ZF_DEVICE_TO_HOST, &q->error);
}

/* Launch by launch and in sections: the first time, captured, and replayed. What a section has
 * launched on another queue is waited for in the next. */
TEST_ONCE(cuda_queues)
{
    static queued q;
    float h[Q_LENGTH];
    for (uint64_t seed = 0; seed < 20; seed++) {
        zf_error error = {ZF_OK, ""};
        emulation_seed(seed);
        q = (queued){.cuda = zf_cuda_backend(NULL, &error)};
        NEED(t, q.cuda, &error);
        q.memory = q.cuda->allocate(q.cuda->self, Q_ARRAYS * Q_LENGTH * sizeof(float), &q.error);
        NEED(t, q.memory, &q.error);
        OK(t, q.cuda->queues(q.cuda->self, 3, &q.error), q.error.text);
        queued_fill(&q);
        for (int round = 0; round < 10; round++) {
            float value = (float)(round + 1);
            /* Again launch by launch, followed by what it still has in flight as a graph */
            if (round == 7) q.cuda->forget(q.cuda->self, &q.sections[0]);
            OK(t, queued_round(&q, value, round >= 4, h), q.error.text);
            for (int i = 0; i < Q_LENGTH; i++) CHECK(t, h[i] == 198 * value);
        }
        OK(t, q.cuda->synchronize(q.cuda->self, &q.error), q.error.text);
        queued_free(&q);
        zf_backend_free(q.cuda);
    }
    CHECK_TEXT(t, emulation_report(), "");
}

/* ---------------------------------------------------------------------------------- copies */

/* Streams of their own: 1 to 3 for what ranks say, 4 and 5 for copies to and from host memory. */
TEST_ONCE(cuda_queues_have_streams)
{
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda = cuda_of(t, &(zf_cuda_desc){.device = 0}, &error);
    NEED(t, cuda, &error);
    OK(t, cuda->queues(cuda->self, 6, &error), error.text);
    for (int32_t q = 0; q < 6; q++)
        for (int32_t other = 0; other < q; other++)
            CHECK(t, zf_cuda_stream(cuda, q) != zf_cuda_stream(cuda, other));
    for (int32_t q = 1; q < 6; q++) CHECK(t, zf_cuda_stream(cuda, q));
}

/* Longer than the stages, in and out, with pieces that are no whole stage. */
TEST_ONCE(cuda_copies)
{
    static const size_t sizes[] = {1, 4096, (1 << 20) - 1, 1 << 20, (9 << 20) + 5};
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda = cuda_of(t, &(zf_cuda_desc){.device = 0}, &error);
    NEED(t, cuda, &error);
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        size_t bytes = sizes[k];
        unsigned char *from = malloc(bytes), *to = calloc(bytes, 1), *device[2];
        for (int i = 0; i < 2; i++)
            NEED(t, device[i] = cuda->allocate(cuda->self, bytes, &error), &error);
        for (size_t i = 0; i < bytes; i++) from[i] = (unsigned char)(i * 31 + i / 1000 + k);
        OK(t, cuda->copy(cuda->self, device[0], from, bytes, ZF_HOST_TO_DEVICE, &error),
           error.text);
        memset(from, 0, bytes); /* the host may use it again */
        OK(t, cuda->copy(cuda->self, device[1], device[0], bytes, ZF_DEVICE_TO_DEVICE, &error),
           error.text);
        OK(t, cuda->copy(cuda->self, device[0], from, bytes, ZF_HOST_TO_DEVICE, &error),
           error.text);
        OK(t, cuda->copy(cuda->self, to, device[1], bytes, ZF_DEVICE_TO_HOST, &error), error.text);
        for (size_t i = 0; i < bytes; i++)
            CHECK(t, to[i] == (unsigned char)(i * 31 + i / 1000 + k));
        for (int i = 0; i < 2; i++) cuda->release(cuda->self, device[i], bytes);
        free(from), free(to);
    }
    CHECK_TEXT(t, emulation_report(), "");
}

/* ---------------------------------------------------------------------------------- errors */

/* Errors found by kernels have the text of the CPU's, and come before the update; the next step
 * succeeds. */
TEST_ONCE(cuda_faults_in_the_cpus_words)
{
    const setup s = {0, 1, false, ZF_F32, false};
    char words[2][512];
    for (int spoil = 1; spoil <= 2; spoil++) {
        for (int k = 0; k < 2; k++) {
            zf_error error = {ZF_OK, ""};
            zf_backend *cuda = k ? zf_cuda_backend(&(zf_cuda_desc){.device = 0}, &error) : NULL;
            zf_graph *g = build(t, &s);
            zf_program *p = zf_compile(g, &(zf_compile_desc){.backend = cuda, .seed = 1});
            static image before, after, later;
            zf_status status = ZF_OK;
            CHECK(t, (cuda || !k) && p);
            before = after = later = (image){.size = 0};
            for (int step = 0; step < 3 && !status; step++) /* launches, the capture, the graph */
                if (!(status = feed(p, g, step, 0))) status = zf_step(p);
            if (!status) status = keep(p, zf_graph_find(g, "w"), &before);
            OK(t, status, zf_program_error(p));
            OK(t, feed(p, g, 3, spoil), zf_program_error(p));
            CHECK(t, zf_step(p) == ZF_ERR_ARGUMENT);
            snprintf(words[k], sizeof words[k], "%s", zf_program_error(p));
            OK(t, keep(p, zf_graph_find(g, "w"), &after), zf_program_error(p));
            CHECK(t, same(&before, &after));
            if (!(status = feed(p, g, 4, 0))) status = zf_step(p);
            OK(t, status, zf_program_error(p));
            OK(t, keep(p, zf_graph_find(g, "w"), &later), zf_program_error(p));
            CHECK(t, !same(&before, &later));
            zf_program_free(p);
            zf_backend_free(cuda);
            zf_graph_free(g);
        }
        CHECK_TEXT(t, words[1], words[0]);
    }
}

TEST(cuda_refuses_what_it_lacks)
{
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda = cuda_of(t, &(zf_cuda_desc){.device = 0}, &error);
    zf_local *group;
    zf_graph *g;
    NEED(t, cuda, &error);
    NEED(t, g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator}), NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_output(zf_exp(zf_input(g, "x", ZF_F64, ZF_SHAPE(3))), "y");
    CHECK(t, !zf_compile(g, &(zf_compile_desc){.backend = cuda}));
    OK(t, zf_graph_status(g) == ZF_ERR_BACKEND ? ZF_OK : zf_graph_status(g), zf_graph_error(g));
    CHECK_TEXT(t, zf_graph_error(g),
               "exp %2: there is no f64 on CUDA, but f32, bf16 and f16; the CPU backend has it");
    /* A communicator of threads moves bytes of the host's memory. */
    NEED(t, g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator}), NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    NEED(t, group = zf_local_new(&(zf_local_desc){.world = 2, .allocator = t->allocator}, &error),
         &error);
    test_defer(t, (test_cleanup *)zf_local_free, group);
    zf_autograd(g, zf_sum(zf_param(g, "w", ZF_SHAPE(4), NULL)));
    zf_sgd(g, zf_constant(g, ZF_F32, ZF_SCALAR, 1), NULL);
    zf_zero(g, &(zf_zero_desc){.stage = 1, .world = 2});
    CHECK(t, !zf_compile(g, &(zf_compile_desc){.backend = cuda, .comm = zf_local_comm(group, 0)}));
    OK(t, zf_graph_status(g) == ZF_ERR_BACKEND ? ZF_OK : zf_graph_status(g), zf_graph_error(g));
    CHECK(t, strstr(zf_graph_error(g), ": the communicator (zf_compile_desc.comm) works in host "
                                       "memory; a CUDA backend needs one that works on streams"));
}

TEST(cuda_device_numbers)
{
    zf_error error = {ZF_OK, ""};
    CHECK(t, !zf_cuda_backend(&(zf_cuda_desc){.device = -1}, NULL));
    CHECK(t, !zf_cuda_backend(&(zf_cuda_desc){.device = 900}, &error));
    CHECK(t, error.status == ZF_ERR_BACKEND);
    CHECK(t, strstr(error.text, "zf_cuda_backend: device is 900; CUDA sees ") != NULL);
}

/* Runs a graph with an input "x": writes made-up numbers, runs a step, and says whether the bytes
 * of outputs "a0" and "b0", "a1" and "b1", ... are equal; 0: they are not, -1: it failed. */
static int equal_outputs(test *t, const char *text)
{
    static float x[1 << 18];
    static unsigned char bytes[2][1 << 20];
    zf_error error = {ZF_OK, ""};
    zf_graph *g =
        zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
    zf_backend *cuda = zf_cuda_backend(&(zf_cuda_desc){.allocator = t->allocator}, &error);
    zf_program *p = g && cuda ? zf_compile(g, &(zf_compile_desc){.backend = cuda}) : NULL;
    zf_status status = p ? ZF_OK : ZF_ERR_ARGUMENT;
    bool equal = true;
    for (int i = 0; i < 1 << 18; i++) x[i] = (float)((i * 37 + i / 11 * 5) % 997 - 498) / 83;
    if (!status)
        status = zf_write(p, zf_graph_find(g, "x"), x, zf_tensor_bytes(zf_graph_find(g, "x")));
    if (!status) status = zf_step(p);
    for (int k = 0; !status && equal; k++) {
        char name[] = {'a', (char)('0' + k), 0};
        zf_tensor a = zf_graph_find(g, name), b;
        name[0] = 'b', b = zf_graph_find(g, name);
        if (!zf_valid(a)) {
            equal = k > 0;
            break;
        }
        status = zf_read(p, a, bytes[0], zf_tensor_bytes(a));
        if (!status) status = zf_read(p, b, bytes[1], zf_tensor_bytes(b));
        equal = zf_tensor_bytes(a) == zf_tensor_bytes(b) &&
                !memcmp(bytes[0], bytes[1], zf_tensor_bytes(a));
    }
    if (status) test_fail(t, __FILE__, __LINE__, text, p ? zf_program_error(p) : error.text);
    zf_program_free(p);
    zf_backend_free(cuda);
    zf_graph_free(g);
    return status ? -1 : equal;
}

/* The norm of a saved sum, its xhat and its rstd, from that sum alone: rows of 16 bits in few
 * threads, rows in registers, and rows that are read three times. */
TEST_ONCE(cuda_norm_of_a_saved_sum_has_the_same_bits)
{
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    static const int lengths[] = {256, 1001, 8203};
    for (int k = 0; k < 2 * 3 * 3; k++) {
        const char *d = dtypes[k % 3], *form = k / 9 ? " form=rms" : "",
                   *v = k / 9 ? "%6" : "%6, %7";
        const int n = lengths[k / 3 % 3];
        char text[2000];
        int at = snprintf(text, sizeof text,
                          "%%1 = input \"x\" : f32[15,%d]\n%%2 = cast %%1 {to=%s} : %s[15,%d]\n"
                          "%%3 = slice %%2 {stop=6} : %s[6,%d]\n"
                          "%%4 = slice %%2 {start=6 stop=12} : %s[6,%d]\n",
                          n, d, d, n, d, n, d, n);
        for (int i = 0; i < 3; i++) /* gamma, beta, bias */
            at += snprintf(text + at, sizeof text - (size_t)at,
                           "%%%d = slice %%2 {start=%d stop=%d} : %s[1,%d]\n"
                           "%%%d = reshape %%%d {shape=[%d]} : %s[%d]\n",
                           20 + i, 12 + i, 13 + i, d, n, 6 + i, 20 + i, n, d, n);
        at += snprintf(text + at, sizeof text - (size_t)at,
                       "%%10 = residual_norm %%3, %%4, %s, %%8 {p=0.25 stream=7 eps=1e-05%s "
                       "sum=saved} : %s[6,%d]\n%%11 = saved %%10 {index=2} : %s[6,%d]\n"
                       "%%12 = residual_norm %%11, %%11, %s {eps=1e-05%s sum=given} : %s[6,%d]\n"
                       "output %%10 \"a0\"\noutput %%12 \"b0\"\n",
                       v, form, d, n, d, n, v, form, d, n);
        for (int i = 0; i < 2; i++)
            at += snprintf(text + at, sizeof text - (size_t)at,
                           "%%%d = saved %%%d {index=0} : %s[6,%d]\noutput %%%d \"%c1\"\n"
                           "%%%d = saved %%%d {index=1} : f32[6]\noutput %%%d \"%c2\"\n",
                           30 + i, 10 + 2 * i, d, n, 30 + i, "ab"[i], 40 + i, 10 + 2 * i, 40 + i,
                           "ab"[i]);
        if (equal_outputs(t, text) == 0) test_fail(t, __FILE__, __LINE__, "other bits", text);
    }
}

#ifdef EMULATION

TEST_ONCE(cuda_no_device)
{
    zf_error error = {ZF_OK, ""};
    emulation_devices(0);
    CHECK(t, !zf_cuda_backend(NULL, &error));
    emulation_devices(2);
    CHECK_TEXT(t, error.text,
               "zf_cuda_backend: CUDA sees no device (CUDA_VISIBLE_DEVICES hides some)");
    emulation_refuse("cudaGetDeviceCount", 0, 34);
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !zf_cuda_backend(NULL, &error));
    emulation_refuse(NULL, 0, 0);
    CHECK_TEXT(t, error.text,
               "zf_cuda_backend: libcuda.so.1 is the toolkit's stub; the NVIDIA driver's own must "
               "be found first");
}

static void usual_driver(void *unused)
{
    (void)unused;
    emulation_driver(-1), emulation_capability(9), emulation_refuse(NULL, 0, 0);
}

/* A device that cannot be used, by its driver, its age or its libraries. */
TEST_ONCE(cuda_devices_that_cannot_run)
{
    static const struct {
        int driver, capability;
        const char *function, *text;
    } ways[] = {
        {0, 9, NULL,
         "zf_cuda_backend: this machine has no NVIDIA driver; this program needs one for CUDA "},
        {10020, 9, NULL,
         "zf_cuda_backend: the NVIDIA driver of this machine is for CUDA 10.2; this program needs "
         "one for "},
        {-1, 7, NULL,
         "zf_cuda_backend: device 0 is of compute capability 7.0; it must be 8.0 or newer"},
        {-1, 9, "cudaGetDeviceCount", "zf_cuda_backend: CUDA cannot start: invalid argument"},
        {-1, 9, "cublasLtCreate", "zf_cuda_backend: cublasLtCreate: "},
    };
    test_defer(t, usual_driver, NULL);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        zf_error error = {ZF_OK, ""};
        emulation_driver(ways[k].driver), emulation_capability(ways[k].capability);
        emulation_refuse(ways[k].function, 0, 1 /* cudaErrorInvalidValue */);
        CHECK(t, !zf_cuda_backend(NULL, &error) && error.status == ZF_ERR_BACKEND);
        if (strncmp(error.text, ways[k].text, strlen(ways[k].text)))
            CHECK_TEXT(t, error.text, ways[k].text);
    }
}

/* What a device that is open cannot do: the error names the call, and the next call succeeds. */
TEST_ONCE(cuda_calls_that_fail_are_named)
{
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda = cuda_of(t, &(zf_cuda_desc){.device = 0}, &error);
    const zf_run run = {.seed = 1, .world = 1};
    const zf_launch launch = {.op = ZF_OP_param, .node = 2, .run = &run, .error = &error};
    zf_launch l = launch;
    void *memory;
    NEED(t, cuda, &error);
    l.backend = cuda->self;
    test_defer(t, usual_driver, NULL);
    emulation_refuse("cudaHostRegister", 0, 1 /* cudaErrorInvalidValue */);
    CHECK(t, !cuda->allocate_host(cuda->self, 64, &error));
    CHECK_TEXT(t, error.text,
               "64 bytes of host memory cannot be pinned (cudaHostRegister): invalid argument");
    emulation_refuse(NULL, 0, 0);
    error = (zf_error){ZF_OK, ""};
    NEED(t, memory = cuda->allocate_host(cuda->self, 64, &error), &error);
    cuda->release_host(cuda->self, memory, 64);
    emulation_refuse("launch", 0, 1);
    CHECK(t, cuda->launch(cuda->self, &l) == ZF_ERR_BACKEND);
    CHECK_TEXT(t, error.text, "the step's number to the device: invalid argument");
    error = (zf_error){ZF_OK, ""};
    CHECK(t, zf_cuda_tell(NULL, NULL, NULL, &error) == ZF_ERR_BACKEND);
    CHECK_TEXT(t, error.text, "zf_cuda_tell: invalid argument");
    emulation_refuse("cudaEventSynchronize", 0, 719 /* cudaErrorLaunchFailure */);
    error = (zf_error){ZF_OK, ""};
    CHECK(t, cuda->synchronize(cuda->self, &error) == ZF_ERR_BACKEND);
    CHECK_TEXT(t, error.text,
               "the device has failed: unspecified launch failure (zf_cuda_desc.no_graphs under "
               "compute-sanitizer tells in which kernel)");
    emulation_refuse(NULL, 0, 0);
    error = (zf_error){ZF_OK, ""};
    OK(t, cuda->synchronize(cuda->self, &error), error.text);
    CHECK(t, cuda->launch(cuda->self, &l) == ZF_ERR_BACKEND);
    CHECK_TEXT(t, error.text,
               "param %2: there is no such operator on CUDA; the CPU backend has all");
}

/* Sizes beyond the kernels' counters, of arrays that are nowhere. */
TEST_ONCE(cuda_sizes_have_limits)
{
    const int64_t many = (int64_t)1 << 31;
    const zf_array packed = {NULL, ZF_F32, ZF_SHAPE(1, many, 3)},
                   dy = {NULL, ZF_F32, ZF_SHAPE(many, 4)}, index = {NULL, ZF_I32, ZF_SHAPE(many)},
                   rows = {NULL, ZF_F32, ZF_SHAPE(8, 4)},
                   wide = {NULL, ZF_F32, ZF_SHAPE(1, 1, 1 << 16)},
                   one = {NULL, ZF_I32, ZF_SHAPE(1)};
    const struct {
        zf_op op;
        int arg_count;
        zf_array args[7], out;
        int attribute;
        int64_t value;
        const char *text;
    } ways[] = {
        {ZF_OP_attention,
         1,
         {packed},
         {NULL, ZF_F32, ZF_SHAPE(1, many, 1)},
         ZF_AT_attention_heads,
         1,
         "attention %2: on CUDA tokens, heads of all examples and elements of a token may be 2^30 "
         "each"},
        {ZF_OP_scatter_rows,
         2,
         {dy, index},
         rows,
         ZF_AT_scatter_rows_rows,
         8,
         "scatter_rows %2: 2147483648 indices into 8 rows; fewer than 2^31 - 2048 and 2^32 - 1 are "
         "possible on CUDA"},
        {ZF_OP_cached_attention,
         7,
         {wide, wide, wide, one, one, wide, wide},
         wide,
         ZF_AT_cached_attention_heads,
         1,
         " wide, and there are 2^31 queries at most"},
    };
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda = cuda_of(t, &(zf_cuda_desc){.device = 0}, &error);
    const zf_run run = {.seed = 1, .world = 1};
    NEED(t, cuda, &error);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        zf_attribute attributes[ZF_MAX_ATTRIBUTES] = {{.i = 0}};
        const zf_launch l = {.op = ways[k].op,
                             .node = 2,
                             .arg_count = ways[k].arg_count,
                             .args = ways[k].args,
                             .out = ways[k].out,
                             .attributes = attributes,
                             .run = &run,
                             .backend = cuda->self,
                             .error = &error};
        attributes[ways[k].attribute].i = ways[k].value;
        error = (zf_error){ZF_OK, ""};
        CHECK(t, cuda->launch(cuda->self, &l) == ZF_ERR_BACKEND);
        if (!strstr(error.text, ways[k].text)) CHECK_TEXT(t, error.text, ways[k].text);
    }
}

/* Products with matrices of records read them as they are: no floats of all experts are planned. */
TEST_ONCE(cuda_records_of_experts_take_no_scratch)
{
    const zf_array args[] = {{NULL, ZF_BF16, ZF_SHAPE(40, 128)},
                             {NULL, ZF_U8, ZF_SHAPE(16, 96, 2 * 36)},
                             {NULL, ZF_I32, ZF_SHAPE(16, 2)}};
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda = cuda_of(t, &(zf_cuda_desc){.device = 0}, &error);
    const zf_run run = {.seed = 1, .world = 1};
    zf_attribute attributes[ZF_MAX_ATTRIBUTES] = {{.i = 0}};
    NEED(t, cuda, &error);
    const zf_launch l = {.op = ZF_OP_grouped_linear,
                         .node = 2,
                         .arg_count = 3,
                         .args = args,
                         .out = {NULL, ZF_BF16, ZF_SHAPE(40, 96)},
                         .attributes = attributes,
                         .run = &run,
                         .backend = cuda->self,
                         .error = &error};
    attributes[ZF_AT_grouped_linear_bits].i = 4, attributes[ZF_AT_grouped_linear_block].i = 64;
    attributes[ZF_AT_grouped_linear_scale].i = ZF_F32;
    CHECK(t, cuda->scratch(cuda->self, &l) == 0);
}

/* What is found for products cannot be written: the step says so. */
TEST_ONCE(cuda_search_needs_a_place_for_its_file)
{
    const setup s = {0, 1, false, ZF_F32, false};
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda = cuda_of(t, &(zf_cuda_desc){.tuning = "/dev/null/products"}, &error);
    zf_graph *g = build(t, &s);
    zf_program *p;
    NEED(t, cuda, &error);
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    p = zf_compile(g, &(zf_compile_desc){.backend = cuda, .seed = 2});
    OK(t, zf_graph_status(g), zf_graph_error(g));
    test_defer(t, (test_cleanup *)zf_program_free, p);
    OK(t, feed(p, g, 0, 0), zf_program_error(p));
    CHECK(t, zf_step(p) == ZF_ERR_IO);
    CHECK_TEXT(t, zf_program_error(p),
               "/dev/null/products: the algorithms found for products cannot be written there");
}

static void all_shared(void *unused)
{
    (void)unused;
    emulation_shared(227 << 10);
}

static void two_processors(void *unused)
{
    (void)unused;
    emulation_processors(2);
}

/* The gradient of attention over 5 heads, whose keys are several tiles, on a device with
 * `processors` multiprocessors: the bytes of dq, dk and dv. */
static zf_status attention_gradient(test *t, int processors, const char *dtype, int width,
                                    unsigned char *to, size_t size, size_t *peak)
{
    enum { HEADS = 5, TOKENS = 130, MOST = HEADS * TOKENS * 64 };
    static float x[3 * MOST];
    char text[600];
    zf_error error = {ZF_OK, ""};
    const int all = HEADS * width;
    zf_backend *cuda;
    zf_graph *g;
    zf_program *p;
    zf_tensor y;
    zf_status status = ZF_ERR_ARGUMENT;
    snprintf(text, sizeof text,
             "%%1 = input \"x\" : f32[1,%d,%d]\n%%2 = input \"dy\" : f32[1,%d,%d]\n"
             "%%3 = cast %%1 {to=%s} : %s[1,%d,%d]\n%%4 = cast %%2 {to=%s} : %s[1,%d,%d]\n"
             "%%5 = attention %%3 {heads=%d scale=0.2 causal=true} : %s[1,%d,%d]\n"
             "%%6 = saved %%5 {index=0} : f32[1,%d,%d]\n"
             "%%7 = attention_grad %%4, %%5, %%6, %%3 {heads=%d scale=0.2 causal=true} : "
             "%s[1,%d,%d]\noutput %%7 \"y\"\n",
             TOKENS, 3 * all, TOKENS, all, dtype, dtype, TOKENS, 3 * all, dtype, dtype, TOKENS, all,
             HEADS, dtype, TOKENS, all, HEADS, TOKENS, HEADS, dtype, TOKENS, 3 * all);
    for (int i = 0; i < 3 * MOST; i++) x[i] = (float)((i * 37 + i / 11 * 5) % 101 - 50) / 50;
    emulation_processors(processors);
    g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
    cuda = zf_cuda_backend(&(zf_cuda_desc){.allocator = t->allocator}, &error);
    p = g && cuda ? zf_compile(g, &(zf_compile_desc){.backend = cuda}) : NULL;
    if (p) {
        y = zf_graph_find(g, "y");
        *peak = zf_program_info_of(p).peak_bytes;
        status = zf_tensor_bytes(y) <= size ? ZF_OK : ZF_ERR_ARGUMENT;
        for (int k = 0; k < 2 && !status; k++) {
            const zf_tensor in = zf_graph_find(g, k ? "dy" : "x");
            status = zf_write(p, in, x, zf_tensor_bytes(in));
        }
        if (!status) status = zf_step(p);
        if (!status) status = zf_read(p, y, to, zf_tensor_bytes(y));
    }
    if (status) test_fail(t, __FILE__, __LINE__, dtype, p ? zf_program_error(p) : error.text);
    zf_program_free(p);
    zf_backend_free(cuda);
    zf_graph_free(g);
    return status;
}

/* Heads of a gradient may all be whole, all apart, or apart in the last round: no bit changes. With
 * 2 blocks to a multiprocessor they are 5 for 6 blocks, for 4, and for 32. */
TEST_ONCE(cuda_attention_grad_splits_to_the_same_bits)
{
    static const struct {
        const char *dtype;
        int width;
    } kinds[] = {{"f32", 16}, {"bf16", 32}, {"bf16", 48}};
    static const int processors[] = {3, 2, 16};
    static unsigned char got[3][5 * 130 * 64 * 3 * 4];
    test_defer(t, two_processors, NULL);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        size_t peak[3] = {0}, bytes = 0;
        memset(got, 0, sizeof got);
        for (int i = 0; i < 3; i++)
            if (attention_gradient(t, processors[i], kinds[k].dtype, kinds[k].width, got[i],
                                   sizeof got[i], &peak[i]))
                return;
        CHECK(t, !memcmp(got[0], got[1], sizeof got[0]));
        CHECK(t, !memcmp(got[0], got[2], sizeof got[0]));
        for (size_t i = 0; i < sizeof got[0]; i++) bytes += got[0][i] != 0;
        CHECK(t, bytes > 5 * 130 * 16 * 3);
        CHECK(t, peak[0] != peak[1] && peak[0] != peak[2]); /* they were split in different ways */
    }
    CHECK_TEXT(t, emulation_report(), "");
}

/* Writes zeros to an input. */
static zf_status write_zeros(zf_program *p, zf_tensor x)
{
    void *zeros = calloc(1, zf_tensor_bytes(x));
    zf_status status = zf_write(p, x, zeros, zf_tensor_bytes(x));
    free(zeros);
    return status;
}

/* One layer of attention on a device of which a block has 99 KiB of shared memory: the status. */
static zf_status attend(test *t, const char *text, size_t bytes, zf_error *error)
{
    zf_graph *g = zf_graph_parse(text, bytes, &(zf_graph_desc){.allocator = t->allocator}, error);
    zf_backend *cuda = zf_cuda_backend(&(zf_cuda_desc){.allocator = t->allocator}, error);
    zf_program *p = g && cuda ? zf_compile(g, &(zf_compile_desc){.backend = cuda}) : NULL;
    zf_status status = p               ? write_zeros(p, zf_graph_find(g, "x"))
                       : error->status ? error->status
                                       : ZF_ERR_NOMEM;
    if (p && !status) status = zf_step(p);
    if (p) *error = (zf_error){status, ""};
    if (status && p) snprintf(error->text, sizeof error->text, "%s", zf_program_error(p));
    zf_program_free(p);
    zf_backend_free(cuda);
    zf_graph_free(g);
    return status;
}

TEST_ONCE(cuda_attention_with_little_shared_memory)
{
    static const char narrow[] = "%1 = input \"x\" : bf16[1,128,768]\n"
                                 "%2 = attention %1 {heads=1 scale=0.1} : bf16[1,128,256]\n"
                                 "output %2 \"y\"\n",
                      wide[] = "%1 = input \"x\" : f32[1,64,384]\n"
                               "%2 = attention %1 {heads=1 scale=0.1} : f32[1,64,128]\n"
                               "output %2 \"y\"\n";
    zf_error error = {ZF_OK, ""};
    emulation_shared(99 << 10);
    test_defer(t, all_shared, NULL);
    OK(t, attend(t, narrow, sizeof narrow - 1, &error), error.text);
    CHECK(t, attend(t, wide, sizeof wide - 1, &error) == ZF_ERR_BACKEND);
    CHECK_TEXT(t, error.text,
               "attention %2: heads so wide take 118784 bytes of shared memory for each block, of "
               "which this device has 101376; narrower heads take less");
    CHECK_TEXT(t, emulation_report(), "");
}

/* Calls to the toolkit fail, from one of them on, while a backend is made, compiled for or run for
 * five steps: an error says so, and nothing is leaked. */
TEST_ONCE(cuda_every_call_may_fail)
{
    static const char *const calls[] = {"cudaSetDevice",
                                        "cudaGetDeviceCount",
                                        "cudaDeviceGetAttribute",
                                        "cudaGetDeviceProperties",
                                        "cudaFuncGetAttributes",
                                        "cudaDeviceGetStreamPriorityRange",
                                        "cudaStreamCreateWithFlags",
                                        "cudaStreamCreateWithPriority",
                                        "cudaEventCreateWithFlags",
                                        "cudaHostAlloc",
                                        "cudaHostRegister",
                                        "cudaLaunchHostFunc",
                                        "cudaHostGetDevicePointer",
                                        "cudaMalloc",
                                        "cudaMemcpyAsync",
                                        "cudaEventRecord",
                                        "cudaStreamWaitEvent",
                                        "cudaEventSynchronize",
                                        "cudaStreamSynchronize",
                                        "cudaStreamBeginCapture",
                                        "cudaGraphInstantiate",
                                        "cudaGraphLaunch",
                                        "cublasLtCreate"};
    const setup s = {2, 2, true, ZF_F32, true};
    static image unused;
    for (size_t k = 0; k < sizeof calls / sizeof calls[0]; k++) {
        bool failed = true;
        for (int after = 0; failed; after = after * 5 / 4 + 1) {
            int live = emulation_live();
            zf_error error = {ZF_OK, ""};
            zf_backend *cuda;
            zf_graph *g = NULL;
            zf_program *p = NULL;
            const char *why = error.text;
            unused = (image){.size = 0};
            emulation_refuse(calls[k], after, 2 /* cudaErrorMemoryAllocation */);
            cuda = zf_cuda_backend(NULL, &error);
            failed = !cuda;
            if (cuda) {
                g = build(t, &s);
                p = zf_compile(g, &(zf_compile_desc){.backend = cuda});
                why = p ? zf_program_error(p) : zf_graph_error(g);
                failed = !p || steps(p, g, &s, 5, &unused);
                if (p) why = zf_program_error(p);
            }
            emulation_refuse(NULL, 0, 0);
            if (failed && !*why) test_fail(t, __FILE__, __LINE__, calls[k], "no reason is given");
            zf_program_free(p);
            zf_backend_free(cuda);
            zf_graph_free(g);
            if (emulation_live() != live) test_fail(t, __FILE__, __LINE__, calls[k], "it leaks");
            emulation_clear();
            if (t->failed) return;
        }
    }
}

#endif

#ifdef EMULATION
/* Where sections cannot be captured, they run launch by launch, to the same bits, and the remark
 * says so. */
TEST_ONCE(cuda_runs_what_cannot_be_captured)
{
    static const char *const calls[] = {NULL, "cudaStreamBeginCapture", "cudaGraphInstantiate"};
    static image images[3];
    const setup s = {2, 2, true, ZF_F32, false};
    for (int k = 0; k < 3; k++) {
        zf_error error = {ZF_OK, ""};
        zf_backend *cuda = cuda_of(t, &(zf_cuda_desc){.device = 0}, &error);
        bool runs;
        NEED(t, cuda, &error);
        emulation_refuse(calls[k], 0, 900 /* cudaErrorStreamCaptureUnsupported */);
        runs = train(t, &s, cuda, false, &images[k]);
        emulation_refuse(NULL, 0, 0);
        if (!runs) return;
        CHECK(t, same(&images[k], &images[0]));
        CHECK(t, (strstr(images[k].remark, " run one by one, since they cannot be captured as a "
                                           "CUDA graph: ") != NULL) == (k > 0));
    }
}
#endif

/* A communicator that takes calls on streams, of which one rank has given up. */
typedef struct lost {
    zf_comm comm;
    int calls;
    bool gone;
    cudaEvent_t never; /* NULL, or what calls wait for */
} lost;

static zf_status lost_run(void *self, const zf_collective *call, zf_error *error)
{
    lost *l = self;
    (void)error;
    l->calls += call->stream != NULL;
    if (l->never && cudaStreamWaitEvent(call->stream, l->never, 0)) return ZF_ERR_BACKEND;
    return ZF_OK;
}

static zf_status lost_check(void *self, double seconds, zf_error *error)
{
    if (!((lost *)self)->gone || seconds < 0) return ZF_OK;
    error->status = ZF_ERR_COMM;
    snprintf(error->text, sizeof error->text, "rank 1 has given up");
    return ZF_ERR_COMM;
}

static void lost_abort(void *self, zf_status status, const char *reason)
{
    (void)self, (void)status, (void)reason;
}

/* An all_reduce on queue 2. */
typedef struct lost_call {
    zf_array in;
    zf_attribute world;
    zf_run run;
    zf_launch launch;
} lost_call;

static void lost_call_set(lost_call *c, const zf_backend *cuda, const lost *l, zf_error *error)
{
    *c = (lost_call){.in = {NULL, ZF_F32, ZF_SHAPE(4)}, .world = {.i = 2}, .run = {.world = 2}};
    c->launch = (zf_launch){.op = ZF_OP_all_reduce,
                            .node = 3,
                            .arg_count = 1,
                            .args = &c->in,
                            .out = c->in,
                            .attributes = &c->world,
                            .run = &c->run,
                            .backend = cuda->self,
                            .queue = 2,
                            .comm = &l->comm,
                            .error = error};
}

TEST_ONCE(cuda_asks_how_ranks_fare)
{
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda = cuda_of(t, &(zf_cuda_desc){.device = 0}, &error);
    lost l = {.comm = {.self = &l, .world = 2, .run = lost_run, .abort = lost_abort,
                       .check = lost_check}};
    lost_call call;
    NEED(t, cuda, &error);
    lost_call_set(&call, cuda, &l, &error);
    OK(t, cuda->queues(cuda->self, 3, &error), error.text);
    OK(t, cuda->launch(cuda->self, &call.launch), error.text);
    OK(t, cuda->wait(cuda->self, &call.launch), error.text);
    OK(t, cuda->synchronize(cuda->self, &error), error.text);
    CHECK(t, l.calls == 1);
    l.gone = true;
    OK(t, cuda->synchronize(cuda->self, &error), error.text); /* nothing of theirs is under way */
    OK(t, cuda->launch(cuda->self, &call.launch), error.text);
    CHECK(t, cuda->synchronize(cuda->self, &error) == ZF_ERR_COMM);
    CHECK_TEXT(t, error.text, "rank 1 has given up");
}

#ifdef EMULATION
#if !defined(__SANITIZE_ADDRESS__) /* what is given up is a leak */
static void lost_host(void *unused) { (void)unused; }

/* Work that other ranks should end never ends: the host waits neither for it nor for freeing
 * memory. */
TEST_ONCE(cuda_device_that_does_not_end)
{
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda = zf_cuda_backend(&(zf_cuda_desc){.deadline_seconds = 0.1}, &error);
    lost l = {.comm = {.self = &l, .world = 2, .run = lost_run, .abort = lost_abort,
                       .check = lost_check}};
    cudaStream_t other;
    lost_call call;
    char byte = 0;
    void *memory;
    NEED(t, cuda, &error);
    NEED(t, memory = cuda->allocate(cuda->self, 64, &error), &error);
    /* Nobody drives device 1 meanwhile. */
    CHECK(t, !cudaSetDevice(1) && !cudaStreamCreate(&other) && !cudaEventCreate(&l.never) &&
                 !cudaLaunchHostFunc(other, lost_host, NULL) && !cudaEventRecord(l.never, other));
    lost_call_set(&call, cuda, &l, &error);
    OK(t, cuda->queues(cuda->self, 3, &error), error.text);
    OK(t, cuda->launch(cuda->self, &call.launch), error.text);
    l.gone = true;
    CHECK(t, cuda->synchronize(cuda->self, &error) == ZF_ERR_COMM);
    CHECK_TEXT(t, error.text, "rank 1 has given up");
    error = (zf_error){ZF_OK, ""};
    CHECK(t, cuda->synchronize(cuda->self, &error) == ZF_ERR_BACKEND);
    CHECK_TEXT(t, error.text,
               "device 0 has not come to its end since other ranks were lost: it takes no more work, "
               "and its memory is not freed before the process ends");
    CHECK(t, cuda->launch(cuda->self, &call.launch) == ZF_ERR_BACKEND);
    CHECK(t, !cuda->allocate(cuda->self, 64, NULL));
    CHECK(t, cuda->copy(cuda->self, &byte, memory, 1, ZF_DEVICE_TO_HOST, NULL) == ZF_ERR_BACKEND);
    cuda->release(cuda->self, memory, 64);
    zf_backend_free(cuda);
    CHECK(t, !cudaSetDevice(1) && !cudaStreamSynchronize(other) && !cudaStreamDestroy(other) &&
                 !cudaEventDestroy(l.never));
    CHECK(t, !cudaSetDevice(0) && !cudaDeviceSynchronize() && !cudaFree(memory));
    CHECK_TEXT(t, emulation_report(), "");
}
#endif

/* Products that cuBLASLt does not take are remarked, once for a shape. */
TEST_ONCE(cuda_remarks_plain_products)
{
    static const char *const texts[] = {
        "",
        "products of 1 shape run by a plain kernel, which is slow: cuBLASLt has none for matmul %3 "
        "[8,16] x [16,7] bf16",
        "products of 2 shapes run by a plain kernel, which is slow: cuBLASLt has none for matmul "
        "%3 [8,16] x [16,7] bf16 and others"};
    const int64_t widths[] = {8, 7, 5};
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda = cuda_of(t, &(zf_cuda_desc){.device = 0}, &error);
    NEED(t, cuda, &error);
    for (int k = 0; k < 3; k++) {
        zf_graph *g = zf_graph_new(NULL);
        zf_tensor a = zf_input(g, "a", ZF_BF16, ZF_SHAPE(8, 16)),
                  b = zf_input(g, "b", ZF_BF16, ZF_SHAPE(16, widths[k]));
        zf_program *p;
        zf_output(zf_matmul(a, b), "c");
        NEED(t, p = zf_compile(g, &(zf_compile_desc){.backend = cuda}), NULL);
        OK(t, write_zeros(p, a), zf_program_error(p));
        OK(t, write_zeros(p, b), zf_program_error(p));
        for (int step = 0; step < 3; step++) OK(t, zf_step(p), zf_program_error(p));
        CHECK_TEXT(t, zf_program_info_of(p).remark, texts[k]);
        zf_program_free(p);
        zf_graph_free(g);
    }
    CHECK_TEXT(t, zf_program_info_of(NULL).remark, "");
}

/* Products leave multiprocessors alone, and what was found best for all counts for nothing then. */
TEST_ONCE(cuda_spares_processors)
{
    const char *file = test_path("products");
    const setup s = {0, 1, false, ZF_F32, false};
    static image made[3];
    zf_error error = {ZF_OK, ""};
    for (int k = 0; k < 3; k++) {
        const zf_cuda_desc d = {.tuning = file, .spare_processors = k % 2};
        zf_backend *cuda = zf_cuda_backend(&d, &error);
        char head[256] = "";
        FILE *f;
        NEED(t, cuda, &error);
        made[k] = (image){.size = 0};
        if (!train(t, &s, cuda, false, &made[k])) return;
        CHECK(t, emulation_product_processors() == k % 2);
        zf_backend_free(cuda);
        CHECK(t, (f = fopen(file, "r")) && fgets(head, sizeof head, f));
        CHECK(t, !strstr(head, " on 1") == !(k % 2));
        fclose(f);
    }
    CHECK(t, same(&made[0], &made[2]));
    CHECK_TEXT(t, emulation_report(), "");
    CHECK(t, !zf_cuda_backend(&(zf_cuda_desc){.spare_processors = 2}, &error));
    CHECK_TEXT(t, error.text,
               "zf_cuda_backend: spare_processors is 2; device 0 has 2 multiprocessors, so it must "
               "be 0 to 1");
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !zf_cuda_backend(&(zf_cuda_desc){.deadline_seconds = -1}, &error));
    CHECK_TEXT(t, error.text,
               "zf_cuda_backend: deadline_seconds is -1; it must be positive, or 0 for 60");
}
#endif

enum { TABLE = 300, ROW = 12 };

/* Two steps of two micro-batches of a table of which the rows that are read are updated; the
 * second is a graph. */
static bool train_rows(test *t, zf_backend *backend, zf_optimizer optimizer, float *table)
{
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor i = zf_input(g, "i", ZF_I32, ZF_SHAPE(6)), j = zf_input(g, "j", ZF_I64, ZF_SHAPE(4)),
              rows = zf_param(g, "rows", ZF_SHAPE(TABLE, ROW),
                              &(zf_param_desc){.init = ZF_NORMAL, .std = 1}),
              x = zf_embedding(rows, i),
              loss = zf_add(zf_mean(zf_mul(x, x)), zf_mean(zf_embedding(rows, j)));
    const float lr = 0.1f;
    bool good = true;
    zf_program *p;
    zf_passes(g, &(zf_training){.loss = loss,
                                .clip = 0.1,
                                .param_groups = "rows:lazy_rows",
                                .optimizer = optimizer,
                                .zero.micro_batches = 2});
    p = zf_compile(g, &(zf_compile_desc){.backend = backend, .seed = 5});
    good = p && !zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr);
    for (int n = 0; n < 4 && good; n++) {
        int32_t is[6];
        int64_t js[4];
        for (int k = 0; k < 6; k++) is[k] = (k * k * 7 + n * 31) % TABLE;
        for (int k = 0; k < 4; k++) js[k] = (k * 7 + n * 31) % TABLE;
        good = !zf_write(p, i, is, sizeof is) && !zf_write(p, j, js, sizeof js) &&
               !(n % 2 ? zf_step(p) : zf_micro(p));
    }
    good = good && !zf_read(p, rows, table, TABLE * ROW * sizeof *table);
    if (!good)
        test_fail(t, __FILE__, __LINE__, zf_graph_error(g), p ? zf_program_error(p) : "");
    zf_program_free(p), zf_graph_free(g);
    return good;
}

/* Rows of several micro-batches are collected, sorted and updated as on the CPU. */
TEST_ONCE(cuda_updates_rows_of_micro_batches)
{
    static const zf_optimizer optimizers[] = {ZF_SGD, ZF_ADAMW};
    static float table[2][TABLE * ROW];
    zf_error error = {ZF_OK, ""};
    zf_backend *cuda = cuda_of(t, &(zf_cuda_desc){.device = 0}, &error);
    NEED(t, cuda, &error);
    for (int k = 0; k < 2; k++) {
        CHECK(t, train_rows(t, NULL, optimizers[k], table[0]));
        CHECK(t, train_rows(t, cuda, optimizers[k], table[1]));
        for (int n = 0; n < TABLE * ROW; n++) CHECK_NEAR(t, table[0][n], table[1][n], 1e-6);
    }
    CHECK_TEXT(t, emulation_report(), "");
}
