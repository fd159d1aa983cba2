/* The work of a pass grows as the graph does: four times as many parameters are at most five times as
 * many visits of elements of arrays; with a search in a loop they would be up to sixteen. */

/* A row of tensors that are trained; their loss. */
static zf_tensor row_of(zf_graph *g, int count)
{
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(2));
    for (int k = 0; k < count; k++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", k);
        x = zf_mul(x, zf_param(g, name, ZF_SHAPE(2), NULL));
    }
    return zf_mean(x);
}

typedef struct visited {
    long lora, tile, fuse, autograd, optimizer, ema, zero, compile, save, load, write;
} visited;

/* Visits since the call before. */
static long visits_since(void)
{
    static _Thread_local long last;
    const long n = visits - last;
    last = visits;
    return n;
}

/* Trains so many tensors in 16 bits at the stage with averages, saves and loads them. */
static void visit(test *t, int count, int32_t stage, visited *v)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_program *p;
    const char *path = test_path("visits");
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    const zf_tensor loss = row_of(g, count);
    OK(t, zf_precision(g, &(zf_precision_desc){.dtype = ZF_BF16}), zf_graph_error(g));
    OK(t, zf_autograd(g, loss), zf_graph_error(g));
    (void)visits_since();
    OK(t, zf_adamw(g, zf_constant(g, ZF_F32, ZF_SCALAR, 1), NULL), zf_graph_error(g));
    v->optimizer = visits_since();
    OK(t, zf_ema(g, NULL), zf_graph_error(g));
    v->ema = visits_since();
    OK(t, zf_zero(g, &(zf_zero_desc){.stage = stage, .world = 1, .bucket_bytes = 1 << 10}),
       zf_graph_error(g));
    v->zero = visits_since();
    p = zf_compile(g, NULL);
    v->compile = visits_since();
    NEED(t, p, &g->error);
    test_defer(t, (test_cleanup *)zf_program_free, p);
    OK(t, zf_save(STORE(p), path, NULL), STORE_ERROR(p));
    v->save = visits_since();
    OK(t, zf_load(STORE(p), path, NULL), STORE_ERROR(p));
    v->load = visits_since();
    for (int32_t k = 0; k < zf_param_count(g); k++)
        OK(t, zf_write(p, zf_param_at(g, k), (uint16_t[2]){0}, 4), zf_program_error(p));
    v->write = visits_since();
}

/* Adapts so many layers. */
static void visit_adapted(test *t, int count, visited *v)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor x;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(2, 8));
    for (int k = 0; k < count; k++) {
        char name[16];
        snprintf(name, sizeof name, "h.%d", k);
        x = zf_gelu(zf_nn_linear(x, name, 8, NULL));
    }
    zf_output(zf_mean(zf_reshape(x, ZF_SHAPE(16))), "loss");
    (void)visits_since();
    OK(t, zf_lora(g, &(zf_lora_desc){.rank = 2}), zf_graph_error(g));
    v->lora = visits_since();
}

TEST_ONCE(visits_grow_as_the_layers_of_an_adapter)
{
    visited few = {0}, many = {0};
    visit_adapted(t, 50, &few);
    if (!t->failed && !t->unwound) visit_adapted(t, 200, &many);
    if (t->failed || t->unwound) return;
    CHECK(t, few.lora && many.lora < 5 * few.lora);
}

/* Trains a weight in so many pieces, saves and loads it; *read: bytes of files that were read for
 * each byte of the values. */
static void visit_pieces(test *t, int count, visited *v, double *read)
{
    const size_t piece = 64 * 16 * sizeof(float);
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_program *p;
    zf_tensor loss;
    const char *path = test_path("pieces");
    long before;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    loss = zf_mean(zf_linear(zf_input(g, "x", ZF_F32, ZF_SHAPE(2, 16)),
                             zf_param(g, "w", ZF_SHAPE(64 * count, 16), NULL), ZF_NONE));
    (void)visits_since();
    OK(t, zf_tile(g, &(zf_tile_desc){.bytes = piece}), zf_graph_error(g));
    v->tile = visits_since();
    OK(t, zf_fuse(g, NULL), zf_graph_error(g));
    v->fuse = visits_since();
    OK(t, zf_autograd(g, loss), zf_graph_error(g));
    OK(t, zf_simplify(g), zf_graph_error(g));
    v->autograd = visits_since();
    OK(t, zf_adamw(g, zf_constant(g, ZF_F32, ZF_SCALAR, 1), NULL), zf_graph_error(g));
    v->optimizer = visits_since();
    OK(t, zf_zero(g, &(zf_zero_desc){.stage = 3, .world = 1, .bucket_bytes = piece}),
       zf_graph_error(g));
    v->zero = visits_since();
    p = zf_compile(g, NULL);
    v->compile = visits_since();
    NEED(t, p, &g->error);
    test_defer(t, (test_cleanup *)zf_program_free, p);
    OK(t, zf_save(STORE(p), path, NULL), STORE_ERROR(p));
    v->save = visits_since();
    before = disk_bytes_read;
    OK(t, zf_load(STORE(p), path, NULL), STORE_ERROR(p));
    *read = (double)(disk_bytes_read - before) / (3.0 * count * (double)piece);
    v->load = visits_since();
}

/* Pieces of a weight are a list, whose end is known; what lies under one checksum is read once for
 * all of them, to check it and to take it. */
TEST_ONCE(visits_grow_as_the_pieces_of_a_weight)
{
    visited few = {0}, many = {0};
    double read[2] = {0, 0};
    visit_pieces(t, 60, &few, &read[0]);
    if (!t->failed && !t->unwound) visit_pieces(t, 240, &many, &read[1]);
    if (t->failed || t->unwound) return;
    CHECK(t, few.tile && many.tile < 5 * few.tile && many.fuse < 5 * few.fuse);
    CHECK(t, few.autograd && many.autograd < 5 * few.autograd);
    CHECK(t, few.optimizer && many.optimizer < 5 * few.optimizer && many.zero < 5 * few.zero);
    CHECK(t, few.compile && many.compile < 5 * few.compile && many.save < 5 * few.save);
    CHECK(t, few.load && many.load < 5 * few.load);
    CHECK(t, read[0] > 1.9 && read[0] < 2.5 && read[1] > 1.9 && read[1] < 2.5);
}

TEST_ONCE(visits_grow_as_the_graph)
{
    for (int32_t stage = 0; stage <= 3; stage += 3) {
        visited few = {0}, many = {0};
        visit(t, 50, stage, &few);
        if (!t->failed && !t->unwound) visit(t, 200, stage, &many);
        if (t->failed || t->unwound) return;
        CHECK(t, few.ema && many.optimizer < 5 * few.optimizer && many.ema < 5 * few.ema);
        CHECK(t, few.zero && many.zero < 5 * few.zero && many.compile < 5 * few.compile);
        CHECK(t, few.load && many.save < 5 * few.save && many.load < 5 * few.load);
        CHECK(t, few.write && many.write < 5 * few.write);
    }
}
