/* Programs: their numbers, their memory and FLOPs, their errors; and that none of these depends on
 * how they are run. */
#include "../support/numbers.h"

/* A small model with most of what a transformer has; `training` appends gradients, clipping and
 * AdamW. */
typedef struct model {
    zf_graph *g;
    zf_tensor ids, labels, lr, table, w, loss, logits, flops;
    int64_t rows, hidden, vocab;
} model;

static model model_new(test *t, int64_t rows, int64_t hidden, int64_t vocab, bool training)
{
    model m = {.g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator}),
               .rows = rows,
               .hidden = hidden,
               .vocab = vocab};
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.2}, ones = {.init = ZF_ONES};
    zf_tensor x, gamma, beta;
    if (m.g) test_defer(t, (test_cleanup *)zf_graph_free, m.g);
    m.ids = zf_input(m.g, "ids", ZF_I32, ZF_SHAPE(rows));
    m.labels = zf_input(m.g, "labels", ZF_I32, ZF_SHAPE(rows));
    m.lr = zf_input(m.g, "lr", ZF_F32, ZF_SCALAR);
    m.table = zf_param(m.g, "table", ZF_SHAPE(vocab, hidden), &normal);
    m.w = zf_param(m.g, "w", ZF_SHAPE(hidden, hidden), &normal);
    gamma = zf_param(m.g, "gamma", ZF_SHAPE(hidden), &ones);
    beta = zf_param(m.g, "beta", ZF_SHAPE(hidden), NULL);
    x = zf_embedding(m.table, m.ids);
    x = zf_dropout(zf_layer_norm(x, gamma, beta, 1e-5), 0.1);
    x = zf_add(x, zf_softmax(zf_gelu(zf_matmul(x, m.w))));
    m.logits = zf_matmul_ex(x, m.table, &(zf_matmul_desc){.transpose_b = true});
    m.loss = zf_cross_entropy(m.logits, m.labels, ZF_NONE);
    zf_output(m.logits, "logits");
    if (!training) {
        zf_output(m.loss, "loss");
    } else if (m.g) {
        zf_autograd(m.g, m.loss);
        zf_clip(m.g, 1);
        zf_adamw(m.g, m.lr, &(zf_adamw_desc){.weight_decay = 0.01});
        zf_simplify(m.g);
    }
    return m;
}

/* Writes what the inputs are in all tests. */
static zf_status write_inputs(zf_program *p, const model *m)
{
    int32_t *ids = malloc((size_t)(2 * m->rows) * sizeof *ids), *labels = ids + m->rows;
    float lr = 0.01f;
    zf_status status = ids ? ZF_OK : ZF_ERR_NOMEM;
    for (int64_t i = 0; i < m->rows && ids; i++) {
        ids[i] = (int32_t)(i * 7 % m->vocab);
        labels[i] = i % 5 ? (int32_t)(i * 3 % m->vocab) : -100;
    }
    if (!status) status = zf_write(p, m->ids, ids, (size_t)m->rows * sizeof *ids);
    if (!status) status = zf_write(p, m->labels, labels, (size_t)m->rows * sizeof *ids);
    if (!status) status = zf_write(p, m->lr, &lr, sizeof lr);
    free(ids);
    return status;
}

static zf_program *compile(test *t, zf_graph *g, const zf_compile_desc *desc)
{
    zf_program *p = zf_compile(g, desc);
    if (p) test_defer(t, (test_cleanup *)zf_program_free, p);
    return p;
}

static zf_backend *cpu_of(test *t, int32_t threads, const char *isa)
{
    zf_backend *cpu = zf_cpu_backend(
        &(zf_cpu_desc){.threads = threads, .isa = isa, .allocator = t->allocator}, NULL);
    if (cpu) test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    return cpu;
}

/* The program, or the end of the body: out of memory, or a failed test. */
#define COMPILED(t, g, p)                                                                          \
    do {                                                                                           \
        if (!(p)) {                                                                                \
            test_unwind((t), __FILE__, __LINE__, "zf_compile",                                     \
                        (g) ? zf_graph_status(g) : ZF_ERR_NOMEM, zf_graph_error(g));               \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* Compiling fails with this text. */
#define REFUSED(t, g, desc, text)                                                                  \
    do {                                                                                           \
        zf_program *refused = zf_compile((g), (desc));                                             \
        zf_program_free(refused);                                                                  \
        if ((t)->refused) OK((t), zf_graph_status(g), zf_graph_error(g));                          \
        CHECK((t), !refused);                                                                      \
        CHECK_TEXT((t), zf_graph_error(g), (text));                                                \
    } while (0)

/* A hash of the parameters, the loss and the logits. */
static uint64_t bits_of(zf_program *p, const model *m)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int32_t k = -2; k < zf_param_count(m->g); k++) {
        zf_tensor x = k == -2 ? m->loss : k == -1 ? m->logits : zf_param_at(m->g, k);
        size_t bytes = zf_tensor_bytes(x);
        unsigned char *data = malloc(bytes);
        if (!data || zf_read(p, x, data, bytes)) hash = 0;
        for (size_t i = 0; i < bytes && data; i++) hash = (hash ^ data[i]) * 0x100000001b3u;
        free(data);
    }
    return hash;
}

/* ------------------------------------------------------------------------------- computing */

TEST(program_trains)
{
    model m = model_new(t, 12, 8, 10, true);
    zf_program *p;
    float first = 0, loss = 0;
    COMPILED(t, m.g, p = compile(t, m.g, &(zf_compile_desc){.seed = 1}));
    OK(t, write_inputs(p, &m), zf_program_error(p));
    for (int step = 0; step < 30; step++) {
        OK(t, zf_step(p), zf_program_error(p));
        OK(t, zf_read(p, m.loss, &loss, sizeof loss), zf_program_error(p));
        if (!step) first = loss;
    }
    CHECK(t, first > 2 && loss < 0.8f * first);
    CHECK(t, zf_program_step(p) == 30);
}

/* The same bits for one to four threads, with values apart, and with what is dead poisoned. */
TEST_ONCE(program_bits_do_not_depend_on_how_it_is_run)
{
    uint64_t expected = 0;
    for (int run = 0; run < 7; run++) {
        model m = model_new(t, 150, 144, 70, true);
        zf_compile_desc d = {.seed = 3, .no_reuse = run == 4, .poison = run >= 5};
        zf_program *p;
        d.backend = cpu_of(t, run < 4 ? run + 1 : run == 6 ? 3 : 1, NULL);
        COMPILED(t, m.g, p = compile(t, m.g, &d));
        OK(t, write_inputs(p, &m), zf_program_error(p));
        for (int step = 0; step < 3; step++) OK(t, zf_step(p), zf_program_error(p));
        if (!run) expected = bits_of(p, &m);
        CHECK(t, bits_of(p, &m) == expected);
    }
}

TEST(program_seed_makes_parameters_and_masks)
{
    uint64_t bits[3];
    for (int run = 0; run < 3; run++) {
        model m = model_new(t, 12, 8, 10, true);
        zf_program *p;
        COMPILED(t, m.g, p = compile(t, m.g, &(zf_compile_desc){.seed = run == 2 ? 6 : 5}));
        OK(t, write_inputs(p, &m), zf_program_error(p));
        OK(t, zf_step(p), zf_program_error(p));
        bits[run] = bits_of(p, &m);
    }
    CHECK(t, bits[0] == bits[1] && bits[0] != bits[2]);
}

/* A parameter's first values come from seed, name and index, whatever else is in the graph. */
TEST(program_first_values)
{
    enum { N = 1000 };
    zf_graph *g[2];
    zf_program *p;
    zf_tensor x[2][5];
    float values[2][5][N];
    double sum = 0, squares = 0;
    for (int k = 0; k < 2; k++) {
        zf_param_desc normal = {.init = ZF_NORMAL, .mean = 1, .std = 2};
        zf_param_desc truncated = {.init = ZF_TRUNCATED_NORMAL, .std = 0.5};
        zf_param_desc uniform = {.init = ZF_UNIFORM, .low = -3, .high = -2};
        zf_param_desc fill = {.init = ZF_FILL, .value = 0.25};
        g[k] = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        NEED(t, g[k], NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g[k]);
        if (k) zf_param(g[k], "another", ZF_SHAPE(33), &normal);
        x[k][0] = zf_param(g[k], "normal", k ? ZF_SHAPE(10, 100) : ZF_SHAPE(N), &normal);
        if (k) zf_param(g[k], "third", ZF_SHAPE(7), &uniform);
        x[k][1] = zf_param(g[k], "truncated", ZF_SHAPE(N), &truncated);
        x[k][2] = zf_param(g[k], "uniform", ZF_SHAPE(N), &uniform);
        x[k][3] = zf_param(g[k], "fill", ZF_SHAPE(N), &fill);
        x[k][4] = zf_state(g[k], "state", ZF_F32, ZF_SHAPE(N), -4);
        COMPILED(t, g[k], p = compile(t, g[k], &(zf_compile_desc){.seed = 9}));
        for (int i = 0; i < 5; i++)
            OK(t, zf_read(p, x[k][i], values[k][i], sizeof values[k][i]), zf_program_error(p));
    }
    CHECK(t, !memcmp(values[0], values[1], sizeof values[0]));
    for (int i = 0; i < N; i++) {
        sum += values[0][0][i], squares += values[0][0][i] * values[0][0][i];
        CHECK(t, fabsf(values[0][1][i]) <= 1);
        CHECK(t, values[0][2][i] >= -3 && values[0][2][i] < -2);
        CHECK(t, values[0][3][i] == 0.25f && values[0][4][i] == -4);
    }
    CHECK(t, fabs(sum / N - 1) < 0.25 && fabs(squares / N - 5) < 1); /* four standard errors */
    CHECK(t, memcmp(values[0][0], values[0][1], sizeof values[0][0]) != 0);
}

/* A program that evaluates passes through what dropout drops. */
TEST(program_evaluates_without_dropout)
{
    for (int evaluate = 0; evaluate < 2; evaluate++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        float in[64], out[64];
        int dropped = 0, kept = 0;
        zf_tensor x, y;
        zf_program *p;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        x = zf_input(g, "x", ZF_F32, ZF_SHAPE(64));
        y = zf_output(zf_dropout(x, 0.5), "y");
        COMPILED(t, g, p = compile(t, g, &(zf_compile_desc){.evaluate = evaluate, .seed = 2}));
        for (int i = 0; i < 64; i++) in[i] = (float)(i + 1);
        OK(t, zf_write(p, x, in, sizeof in), zf_program_error(p));
        OK(t, zf_step(p), zf_program_error(p));
        OK(t, zf_read(p, y, out, sizeof out), zf_program_error(p));
        for (int i = 0; i < 64; i++)
            dropped += out[i] == 0, kept += out[i] == (evaluate ? 1 : 2) * in[i];
        CHECK(t, dropped + kept == 64 && (evaluate ? !dropped : dropped > 10 && kept > 10));
        memcpy(in, out, sizeof in);
        OK(t, zf_step(p), zf_program_error(p)); /* the next step has another mask */
        OK(t, zf_read(p, y, out, sizeof out), zf_program_error(p));
        CHECK(t, !evaluate == (memcmp(in, out, sizeof in) != 0));
    }
}

/* ------------------------------------------------------------------------------------ memory */

/* A CPU backend that records its calls. */
typedef struct counted {
    zf_backend backend, *cpu;
    size_t allocated, released;
    int allocations, launches;
    size_t allocate_at_most; /* 0: any */
    int fail_launch;         /* the launch that fails, from 1 */
    bool fail_copy, fail_silently;
} counted;

static void *counted_allocate(void *self, size_t bytes, zf_error *error)
{
    counted *c = self;
    if (c->allocate_at_most && bytes > c->allocate_at_most) {
        error->status = ZF_ERR_BACKEND;
        snprintf(error->text, sizeof error->text, "counted: %zu bytes are too many", bytes);
        return NULL;
    }
    c->allocations++;
    c->allocated += bytes;
    return c->cpu->allocate(c->cpu->self, bytes, error);
}

static void counted_release(void *self, void *memory, size_t bytes)
{
    ((counted *)self)->released += bytes;
    ((counted *)self)->cpu->release(((counted *)self)->cpu->self, memory, bytes);
}

static zf_status counted_copy(void *self, void *to, const void *from, size_t bytes, zf_copy kind,
                              zf_error *error)
{
    counted *c = self;
    if (!c->fail_copy) return c->cpu->copy(c->cpu->self, to, from, bytes, kind, error);
    snprintf(error->text, sizeof error->text, "counted: no copies");
    return error->status = ZF_ERR_BACKEND;
}

static size_t counted_scratch(void *self, const zf_launch *launch)
{
    zf_launch l = *launch;
    l.backend = ((counted *)self)->cpu->self;
    return ((counted *)self)->cpu->scratch(((counted *)self)->cpu->self, &l);
}

static zf_status counted_launch(void *self, const zf_launch *launch)
{
    counted *c = self;
    zf_launch l = *launch;
    if (++c->launches == c->fail_launch) {
        if (c->fail_silently) return ZF_ERR_BACKEND;
        snprintf(l.error->text, sizeof l.error->text, "counted: launch %d", c->launches);
        return l.error->status = ZF_ERR_BACKEND;
    }
    l.backend = c->cpu->self;
    return c->cpu->launch(c->cpu->self, &l);
}

static zf_status counted_queues(void *self, int32_t count, zf_error *error)
{
    return ((counted *)self)->cpu->queues(((counted *)self)->cpu->self, count, error);
}

static zf_status counted_wait(void *self, const zf_launch *launch)
{
    return ((counted *)self)->cpu->wait(((counted *)self)->cpu->self, launch);
}

static zf_status counted_synchronize(void *self, zf_error *error)
{
    return ((counted *)self)->cpu->synchronize(((counted *)self)->cpu->self, error);
}

static void counted_destroy(void *self) { (void)self; }

static counted counted_over(zf_backend *cpu)
{
    return (counted){.cpu = cpu,
                     .backend = {.name = "counted",
                                 .allocate = counted_allocate,
                                 .release = counted_release,
                                 .copy = counted_copy,
                                 .scratch = counted_scratch,
                                 .queues = counted_queues,
                                 .launch = counted_launch,
                                 .wait = counted_wait,
                                 .synchronize = counted_synchronize,
                                 .destroy = counted_destroy}};
}

/* The predicted bytes are those that are allocated, once, and a step allocates nothing. */
TEST(program_allocates_what_it_predicts)
{
    for (int run = 0; run < 3; run++) {
        model m = model_new(t, 12, 8, 10, run != 1);
        zf_backend *cpu = cpu_of(t, 1, NULL);
        counted c;
        zf_program *p;
        zf_program_info info;
        long before;
        if (!cpu) OK(t, ZF_ERR_NOMEM, "");
        c = counted_over(cpu);
        c.backend.self = &c;
        p = zf_compile(m.g, &(zf_compile_desc){.backend = &c.backend, .no_reuse = run == 2});
        COMPILED(t, m.g, p);
        info = zf_program_info_of(p);
        if (write_inputs(p, &m)) info.peak_bytes = 1;
        before = t->allocations;
        for (int step = 0; step < 3; step++)
            if (zf_step(p)) info.peak_bytes = 1;
        if (t->allocations != before) info.peak_bytes = 2;
        zf_program_free(p);
        CHECK(t, c.allocations == 3 && c.allocated == c.released);
        CHECK(t, info.peak_bytes == c.allocated && info.allocated_bytes == c.allocated);
        CHECK(t, info.live_bytes <= info.peak_bytes && info.live_bytes > 0);
        CHECK(t, info.param_bytes + info.state_bytes + info.input_bytes + info.constant_bytes +
                         info.work_bytes ==
                     info.peak_bytes);
    }
}

TEST(program_info_counts)
{
    model m = model_new(t, 12, 8, 10, true);
    zf_program_info info;
    zf_program *p;
    COMPILED(t, m.g, p = compile(t, m.g, NULL));
    info = zf_program_info_of(p);
    CHECK(t, info.param_count == 80 + 64 + 8 + 8);
    CHECK(t, info.param_bytes == 320 + 256 + 64 + 64);
    CHECK(t, info.state_bytes == 64 + 2 * info.param_bytes);
    CHECK(t, info.input_bytes == 64 + 64 + 64);
    CHECK(t, info.flops ==
                 2.0 * 12 * 8 * (8 + 10) * 3); /* two products, each with two in the gradient */
    CHECK(t, info.nodes > 40 && info.peak_node > 0);
    info = zf_program_info_of(NULL);
    CHECK(t, info.peak_bytes == 0 && info.nodes == 0);
}

TEST(program_of_next_to_nothing)
{
    for (int run = 0; run < 3; run++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_tensor x = ZF_NONE, y = ZF_NONE;
        zf_program *p;
        float value = 3;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        if (run) x = zf_input(g, "x", ZF_F32, run == 1 ? ZF_SHAPE(0) : ZF_SHAPE(1));
        if (run == 1) y = zf_output(zf_add(zf_exp(x), zf_reshape(x, ZF_SHAPE(0))), "y");
        if (run == 2) zf_output(x, "y");
        COMPILED(t, g, p = compile(t, g, NULL));
        CHECK(t, zf_program_info_of(p).peak_bytes == (run == 2 ? 64 : 0));
        if (run == 2) OK(t, zf_write(p, x, &value, sizeof value), zf_program_error(p));
        OK(t, zf_step(p), zf_program_error(p));
        if (run == 1) OK(t, zf_read(p, y, NULL, 0), zf_program_error(p));
        value = 0;
        if (run == 2) OK(t, zf_read(p, x, &value, sizeof value), zf_program_error(p));
        CHECK(t, run < 2 || value == 3);
    }
}

TEST(program_memory_limit)
{
    model m = model_new(t, 12, 8, 10, false);
    NEED(t, m.g, NULL);
    OK(t, zf_graph_status(m.g), zf_graph_error(m.g));
    zf_backend *cpu = cpu_of(t, 1, "portable"); /* a workspace depends on the instructions */
    NEED(t, cpu, NULL);
    REFUSED(t, m.g, (&(zf_compile_desc){.backend = cpu, .memory_limit = 1000}),
            "zf_compile: the plan takes 2176 bytes, 1176 more than the limit of 1000; most is "
            "alive at %16 matmul; the largest there are %16 matmul with 480, %15 add with 384, "
            "%4 table with 320 and others with 992");
    CHECK(t, zf_graph_status(m.g) == ZF_ERR_LIMIT);
}

TEST(program_memory_limit_that_fits)
{
    size_t peak = 0;
    for (int run = 0; run < 2; run++) {
        model m = model_new(t, 12, 8, 10, false);
        zf_program *p;
        COMPILED(t, m.g, p = compile(t, m.g, &(zf_compile_desc){.memory_limit = peak}));
        CHECK(t, !run || zf_program_info_of(p).peak_bytes == peak);
        peak = zf_program_info_of(p).peak_bytes;
    }
}

/* ------------------------------------------------------------------------------- one store */

/* Evaluation over the store of a training program: another graph, another batch, no dropout. */
TEST(store_trains_and_evaluates)
{
    model train = model_new(t, 12, 8, 10, true), eval = model_new(t, 5, 8, 10, false);
    zf_program *p, *q;
    float before = 0, after = 0, w[64], shared[64];
    COMPILED(t, train.g, p = compile(t, train.g, &(zf_compile_desc){.seed = 1}));
    COMPILED(t, eval.g,
             q = compile(t, eval.g, &(zf_compile_desc){.store = STORE(p), .evaluate = true}));
    CHECK(t, zf_program_info_of(q).param_bytes == 0 && zf_program_info_of(q).param_count == 160);
    OK(t, write_inputs(p, &train), zf_program_error(p));
    OK(t, write_inputs(q, &eval), zf_program_error(q));
    OK(t, zf_step(q), zf_program_error(q));
    OK(t, zf_read(q, eval.loss, &before, sizeof before), zf_program_error(q));
    for (int step = 0; step < 20; step++) OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_step(q), zf_program_error(q));
    OK(t, zf_read(q, eval.loss, &after, sizeof after), zf_program_error(q));
    CHECK(t, after < before);
    OK(t, zf_read(p, train.w, w, sizeof w), zf_program_error(p));
    OK(t, zf_read(q, eval.w, shared, sizeof shared), zf_program_error(q));
    CHECK(t, !memcmp(w, shared, sizeof w));
    memset(w, 0, sizeof w);
    OK(t, zf_write(q, eval.w, w, sizeof w),
       zf_program_error(q)); /* either program may write them */
    OK(t, zf_read(p, train.w, shared, sizeof shared), zf_program_error(p));
    CHECK(t, !memcmp(w, shared, sizeof w));
    CHECK(t, zf_program_step(p) == 20 && zf_program_step(q) == 2);
}

/* A graph with one leaf, over a store that has "w" as f32[8,8]. */
static zf_graph *graph_of_leaf(test *t, bool state, const char *name, zf_dtype dtype,
                               zf_shape shape)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    if (!g) return NULL;
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    if (state) zf_state(g, name, dtype, shape, 0);
    else zf_param(g, name, shape, &(zf_param_desc){.dtype = dtype});
    return g;
}

TEST(store_refuses_what_does_not_match)
{
    static const struct {
        bool state, bound;
        const char *name;
        zf_dtype dtype;
        int64_t dims;
        const char *text;
    } cases[] = {
        {false, true, "nothing", ZF_F32, 8,
         "zf_compile: the store has no param \"nothing\" (zf_compile_desc.must_exist)"},
        {true, true, "nothing", ZF_F32, 8,
         "zf_compile: the store has no state \"nothing\" (zf_compile_desc.must_exist)"},
        {true, false, "w", ZF_F32, 8,
         "zf_compile: \"w\" is a state f32[8,8] here and a param f32[8,8] in the store"},
        {false, true, "ids", ZF_F32, 8,
         "zf_compile: the store has no param \"ids\" (zf_compile_desc.must_exist)"},
        {false, false, "w", ZF_F32, 9,
         "zf_compile: \"w\" is a param f32[8,9] here and a param f32[8,8] in the store"},
        {false, false, "w", ZF_F64, 8,
         "zf_compile: \"w\" is a param f64[8,8] here and a param f32[8,8] in the store"},
    };
    model m = model_new(t, 5, 8, 10, false);
    zf_program *p;
    COMPILED(t, m.g, p = compile(t, m.g, NULL));
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++) {
        zf_graph *g = graph_of_leaf(t, cases[k].state, cases[k].name, cases[k].dtype,
                                    ZF_SHAPE(8, cases[k].dims));
        NEED(t, g, NULL);
        OK(t, zf_graph_status(g), zf_graph_error(g));
        REFUSED(t, g, (&(zf_compile_desc){.store = STORE(p), .must_exist = cases[k].bound}),
                cases[k].text);
        CHECK(t, zf_graph_status(g) == ZF_ERR_MISMATCH);
        CHECK(t, zf_store_count(STORE(p)) == 4);
    }
}

/* A plan was made for a store, or for none. */
TEST(store_refuses_the_plan_of_another)
{
    model m = model_new(t, 5, 8, 10, false);
    zf_program *p;
    COMPILED(t, m.g, p = compile(t, m.g, NULL));
    for (int stored = 0; stored < 2; stored++) {
        zf_graph *g = graph_of_leaf(t, false, "w", ZF_F32, ZF_SHAPE(8, 8));
        NEED(t, g, NULL);
        OK(t, zf_memory(g, &(zf_memory_desc){.store = stored ? STORE(p) : NULL}),
           zf_graph_error(g));
        REFUSED(t, g, &(zf_compile_desc){.store = stored ? NULL : STORE(p)},
                stored ? "zf_compile: the store has no \"w\"; zf_memory found it in another "
                         "(zf_memory_desc.store)"
                       : "zf_compile: zf_memory gave %1 \"w\" a place of its own, but the store has "
                         "it (zf_memory_desc.store)");
    }
}

/* Backend, communicator and seed are those of the store. */
TEST(store_has_backend_and_seed)
{
    model m = model_new(t, 5, 8, 10, false), other = model_new(t, 5, 8, 10, false),
          third = model_new(t, 5, 8, 10, false);
    zf_backend *cpu = cpu_of(t, 1, NULL);
    zf_program *p;
    if (!cpu) OK(t, ZF_ERR_NOMEM, "");
    NEED(t, other.g && third.g, NULL);
    OK(t, zf_graph_status(other.g), zf_graph_error(other.g));
    OK(t, zf_graph_status(third.g), zf_graph_error(third.g));
    COMPILED(t, m.g, p = compile(t, m.g, &(zf_compile_desc){.seed = 3}));
    REFUSED(t, other.g, (&(zf_compile_desc){.store = STORE(p), .backend = cpu}),
            "zf_compile: the backend is not the store's (zf_store_desc); leave it out");
    REFUSED(t, third.g, (&(zf_compile_desc){.store = STORE(p), .seed = 4}),
            "zf_compile: the seed 4 is not the store's, 3 (zf_store_desc.seed); leave it out");
}

/* A plan that was made for no backend, or for fewer threads, has too little scratch. */
TEST(program_refuses_a_plan_without_scratch)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_backend *cpu;
    zf_tensor x;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(40, 40));
    zf_output(zf_matmul_ex(x, x, &(zf_matmul_desc){.transpose_b = true}), "y");
    OK(t, zf_memory(g, NULL), zf_graph_error(g));
    cpu = cpu_of(t, 1, "portable");
    if (!cpu) OK(t, ZF_ERR_NOMEM, "");
    zf_compile(g, &(zf_compile_desc){.backend = cpu});
    if (t->refused) OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, zf_graph_status(g) == ZF_ERR_STAGE);
    CHECK(t, strstr(zf_graph_error(g), "zf_compile: %2 matmul needs ") == zf_graph_error(g));
    CHECK(t, strstr(zf_graph_error(g), " bytes of scratch on this backend, and zf_memory gave it 0 "
                                       "(zf_memory_desc.backend)"));
}

/* --------------------------------------------------------------------------- reading, writing */

TEST(program_refuses_bad_access)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator}), *other;
    zf_tensor x, w, s, c, y, z, foreign;
    float values[4] = {1, 2, 3, 4};
    zf_program *p;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    other = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    NEED(t, other, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, other);
    foreign = zf_input(other, "x", ZF_F32, ZF_SHAPE(4));
    OK(t, zf_graph_status(other), zf_graph_error(other));
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(4));
    w = zf_param(g, "w", ZF_SHAPE(4), NULL);
    s = zf_state(g, "s", ZF_I64, ZF_SCALAR, 0);
    c = zf_constant(g, ZF_F32, ZF_SHAPE(4), 5);
    y = zf_add(zf_mul(x, w), c);
    z = zf_output(zf_exp(y), "z");
    COMPILED(t, g, p = compile(t, g, NULL));

#define BAD(call, message)                                                                         \
    do {                                                                                           \
        CHECK(t, (call) == ZF_ERR_ARGUMENT);                                                       \
        CHECK_TEXT(t, zf_program_error(p), (message));                                             \
    } while (0)
    BAD(zf_write(p, foreign, values, 16), "zf_write: the tensor is not one of the program's graph");
    BAD(zf_read(p, foreign, values, 16), "zf_read: the tensor is not one of the program's graph");
    BAD(zf_write(p, ZF_NONE, values, 16), "zf_write: the tensor is not one of the program's graph");
    BAD(zf_read(p, zf_graph_find(g, "zz"), values, 16),
        "zf_read: the tensor is not one of the program's graph: the graph has no \"zz\"");
    BAD(zf_write(p, zf_graph_find(g, "xs"), values, 16),
        "zf_write: the tensor is not one of the program's graph: the graph has no \"xs\"");
    BAD(zf_write(p, zf_graph_find(g, ""), values, 16),
        "zf_write: the tensor is not one of the program's graph: the graph has no \"\"; near are x, w, s, "
        "z");
    BAD(zf_write(p, x, values, 12), "zf_write: %1 x is f32[4], 16 bytes, not 12");
    BAD(zf_read(p, w, values, 20), "zf_read: %2 w is f32[4], 16 bytes, not 20");
    BAD(zf_read(p, s, values, 4), "zf_read: %3 s is i64[], 8 bytes, not 4");
    BAD(zf_write(p, c, values, 16), "zf_write: %4 constant is no input, param, state or cache");
    BAD(zf_write(p, z, values, 16), "zf_write: %7 exp is no input, param, state or cache");
    BAD(zf_read(p, y, values, 16), "zf_read: %6 add is not kept; zf_output keeps a value");
    BAD(zf_write(p, x, NULL, 16), "zf_write: data is NULL");
    BAD(zf_write_range(p, x, 0, values, 8),
        "zf_write_range: %1 x is no param or state; zf_write writes it");
    BAD(zf_write_range(p, w, 0, NULL, 8), "zf_write_range: data is NULL");
    BAD(zf_write_range(p, w, 8, values, 12),
        "zf_write_range: 12 bytes from byte 8 of %2 w, which is f32[4], 16 bytes: they must be whole "
        "elements within it");
    BAD(zf_write_range(p, w, 2, values, 4),
        "zf_write_range: 4 bytes from byte 2 of %2 w, which is f32[4], 16 bytes: they must be whole "
        "elements within it");
    BAD(zf_read(p, x, NULL, 16), "zf_read: data is NULL");
#undef BAD
    for (int i = 0; i < 4; i++) values[i] = (float)(i + 1);
    OK(t, zf_write_range(p, w, 0, values, 4), zf_program_error(p));
    OK(t, zf_write_range(p, w, 4, values + 1, 12), zf_program_error(p));
    memset(values, 0, sizeof values);
    OK(t, zf_read(p, w, values, 16), zf_program_error(p));
    CHECK(t, values[0] == 1 && values[1] == 2 && values[3] == 4);
    OK(t, zf_read(p, c, values, 16), zf_program_error(p));
    CHECK(t, values[0] == 5 && values[3] == 5);
    CHECK_TEXT(t, zf_program_error(p), ""); /* the last call was good */
}

TEST(program_without_a_program)
{
    CHECK(t, zf_write(NULL, ZF_NONE, "", 0) == ZF_ERR_ARGUMENT &&
                 zf_write_range(NULL, ZF_NONE, 0, "", 0) == ZF_ERR_ARGUMENT &&
                 zf_read(NULL, ZF_NONE, NULL, 0) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_step(NULL) == ZF_ERR_ARGUMENT && zf_program_step(NULL) == 0);
    CHECK_TEXT(t, zf_program_error(NULL), "there is no program");
    zf_program_free(NULL);
    zf_backend_free(NULL);
}

/* ------------------------------------------------------------------------------------- failing */

/* An index out of range is an error of the step that changes nothing: the next step is as if it had
 * not been. */
TEST(program_bad_index_loses_nothing)
{
    model m = model_new(t, 12, 8, 10, true), n = model_new(t, 12, 8, 10, true);
    zf_program *p, *q;
    int32_t ids[12];
    COMPILED(t, m.g, p = compile(t, m.g, &(zf_compile_desc){.seed = 1}));
    COMPILED(t, n.g, q = compile(t, n.g, &(zf_compile_desc){.seed = 1}));
    OK(t, write_inputs(p, &m), zf_program_error(p));
    OK(t, write_inputs(q, &n), zf_program_error(q));
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_step(q), zf_program_error(q));
    for (int i = 0; i < 12; i++) ids[i] = i == 7 ? 10 : i % 10;
    OK(t, zf_write(p, m.ids, ids, sizeof ids), zf_program_error(p));
    CHECK(t, zf_step(p) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, zf_program_error(p),
               "gather_rows %8: element 7 of the index is 10; it must be at least 0 and less than "
               "10, the number of rows");
    CHECK(t, zf_program_step(p) == 1);
    ids[7] = -1;
    OK(t, zf_write(p, m.ids, ids, sizeof ids), zf_program_error(p));
    CHECK(t, zf_step(p) == ZF_ERR_ARGUMENT && zf_program_step(p) == 1);
    OK(t, write_inputs(p, &m), zf_program_error(p));
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_step(q), zf_program_error(q));
    CHECK(t, zf_program_step(p) == 2 && bits_of(p, &m) == bits_of(q, &n));
}

TEST(program_bad_label)
{
    model m = model_new(t, 12, 8, 10, false);
    zf_program *p;
    int32_t labels[12] = {0, 1, 2, -100, 11};
    COMPILED(t, m.g, p = compile(t, m.g, NULL));
    OK(t, write_inputs(p, &m), zf_program_error(p));
    OK(t, zf_write(p, m.labels, labels, sizeof labels), zf_program_error(p));
    CHECK(t, zf_step(p) == ZF_ERR_ARGUMENT && zf_program_step(p) == 0);
    CHECK(t, strstr(zf_program_error(p),
                    "the label of row 4 is 11; it must be at least 0 and less than 10"));
}

/* A backend's failures become errors of the call during which they happen. */
TEST(program_backend_fails)
{
    for (int run = 0; run < 5; run++) {
        static const char *const texts[] = {"counted: 704 bytes are too many",
                                            "counted: no copies", "counted: launch 3",
                                            "the step failed", ""};
        model m = model_new(t, 12, 8, 10, false);
        zf_backend *cpu = cpu_of(t, 1, NULL);
        counted c;
        zf_program *p;
        zf_status status;
        char text[512];
        if (!cpu) OK(t, ZF_ERR_NOMEM, "");
        c = counted_over(cpu);
        c.backend.self = &c;
        c.allocate_at_most = run == 0;
        c.fail_copy = run == 1;
        c.fail_launch = run == 2 || run == 3 ? 3 : 0;
        c.fail_silently = run == 3;
        p = zf_compile(m.g, &(zf_compile_desc){.backend = &c.backend});
        NEED(t, m.g, NULL);
        if (run >= 2) COMPILED(t, m.g, p);
        if (run < 2 && t->refused) OK(t, zf_graph_status(m.g), zf_graph_error(m.g));
        status = p ? write_inputs(p, &m) : zf_graph_status(m.g);
        if (!status) status = zf_step(p);
        snprintf(text, sizeof text, "%s", p ? zf_program_error(p) : zf_graph_error(m.g));
        zf_program_free(p);
        CHECK(t, c.allocated == c.released && c.allocations == (run > 0 ? 3 : 0));
        CHECK(t, status == (run < 4 ? ZF_ERR_BACKEND : ZF_OK));
        CHECK_TEXT(t, text, texts[run]);
    }
}

TEST(program_bad_cpu)
{
    zf_error error = {ZF_OK, ""};
    CHECK(t, !zf_cpu_backend(&(zf_cpu_desc){.threads = -1}, &error) &&
                 error.status == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_cpu_backend: threads is -1; it must be 1 to 1024");
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !zf_cpu_backend(&(zf_cpu_desc){.threads = 1025}, &error) &&
                 error.status == ZF_ERR_ARGUMENT);
    error = (zf_error){ZF_OK, ""};
    CHECK(t,
          !zf_cpu_backend(&(zf_cpu_desc){.isa = "sse"}, &error) && error.status == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text,
               "zf_cpu_backend: isa \"sse\" is none of portable, avx2, avx512, amx, neon");
    CHECK(t, !zf_cpu_backend(&(zf_cpu_desc){.threads = -1}, NULL));
}

/* Two programs of one graph: the second takes the plan that the first one made. */
TEST(program_twice_from_one_graph)
{
    model m = model_new(t, 12, 8, 10, true);
    zf_program *p, *q;
    COMPILED(t, m.g, p = compile(t, m.g, &(zf_compile_desc){.seed = 1}));
    COMPILED(t, m.g, q = compile(t, m.g, &(zf_compile_desc){.seed = 1}));
    OK(t, write_inputs(p, &m), zf_program_error(p));
    OK(t, write_inputs(q, &m), zf_program_error(q));
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_step(q), zf_program_error(q));
    CHECK(t, bits_of(p, &m) == bits_of(q, &m));
}

/* A plan read from text runs as the one that was printed. */
TEST(program_from_text)
{
    model m = model_new(t, 12, 8, 10, true);
    zf_graph *again;
    zf_program *p, *q;
    zf_error error = {ZF_OK, ""};
    char *text;
    model n;
    COMPILED(t, m.g, p = compile(t, m.g, &(zf_compile_desc){.seed = 1}));
    text = text_of(m.g);
    again = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
    free(text);
    NEED(t, again, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, again);
    CHECK(t, zf_graph_hash(again) == zf_graph_hash(m.g));
    n = m;
    n.g = again;
    n.ids.graph = n.labels.graph = n.lr.graph = n.loss.graph = n.logits.graph = again;
    COMPILED(t, again, q = compile(t, again, &(zf_compile_desc){.seed = 1}));
    CHECK(t, zf_program_info_of(p).live_bytes == zf_program_info_of(q).live_bytes);
    OK(t, write_inputs(p, &m), zf_program_error(p));
    OK(t, write_inputs(q, &n), zf_program_error(q));
    for (int step = 0; step < 3; step++) {
        OK(t, zf_step(p), zf_program_error(p));
        OK(t, zf_step(q), zf_program_error(q));
    }
    CHECK(t, bits_of(p, &m) == bits_of(q, &n));
}
