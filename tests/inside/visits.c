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
    long optimizer, ema, zero, compile, save, load;
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
    }
}
