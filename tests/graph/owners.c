/* What is freed in any order: a graph, a program, a store, a backend and ranks live as long as what
 * uses them; outputs before the first step, scopes that are left open, passes inside passes, and what
 * a step does not need. */
#include "../support/test.h"

/* What a test frees. */
typedef struct owned {
    zf_graph *graph;
    zf_program *program, *other; /* other: it uses the caches of `program` */
    zf_graph *other_graph;
    zf_store *store;
    zf_backend *backend;
    zf_local *group;
} owned;

static void owned_free(owned *o, int which)
{
    switch (which) {
    case 0: zf_graph_free(o->graph), zf_graph_free(o->other_graph); break;
    case 1: zf_program_free(o->program); break;
    case 2: zf_store_free(o->store); break;
    case 3: zf_backend_free(o->backend); break;
    case 4: zf_local_free(o->group); break;
    default: zf_program_free(o->other); break;
    }
}

static zf_graph *with_cache(test *t)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor w, cache;
    if (!g) return NULL;
    w = zf_param(g, "w", ZF_SHAPE(1, 2, 4), &(zf_param_desc){.init = ZF_ONES});
    cache = zf_cache(g, "k", ZF_F32, ZF_SHAPE(1, 2, 4));
    zf_output(zf_sum(w), "y");
    zf_output(cache, "kept");
    return g;
}

static void owned_new(test *t, owned *o)
{
    zf_error error = {ZF_OK, ""};
    o->group = zf_local_new(&(zf_local_desc){.allocator = t->allocator}, &error);
    o->backend = zf_cpu_backend(&(zf_cpu_desc){.threads = 2, .allocator = t->allocator}, &error);
    o->graph = with_cache(t), o->other_graph = with_cache(t);
    if (!o->group || !o->backend) return;
    o->store = zf_store_new(&(zf_store_desc){.backend = o->backend,
                                             .comm = zf_local_comm(o->group, 0),
                                             .allocator = t->allocator},
                            &error);
    if (!o->store) return;
    o->program = zf_compile(o->graph, &(zf_compile_desc){.store = o->store});
    o->other =
        zf_compile(o->other_graph, &(zf_compile_desc){.store = o->store, .caches = o->program});
}

/* The k-th order of six things. */
static void order_of(int k, int order[6])
{
    int left[6] = {0, 1, 2, 3, 4, 5}, count = 6, all = 720;
    for (int i = 0; i < 6; i++) {
        int at;
        all /= count, at = k / all, k %= all;
        order[i] = left[at];
        for (count--; at < count; at++) left[at] = left[at + 1];
    }
}

TEST_ONCE(owners_are_freed_in_any_order)
{
    for (int k = 0; k < 720; k += TEST_LARGE ? 1 : 7) {
        owned o = {.graph = NULL};
        int order[6];
        bool good;
        owned_new(t, &o);
        good = o.other && !zf_step(o.program) && !zf_step(o.other);
        order_of(k, order);
        for (int i = 0; i < 6; i++) {
            if (order[i] == 5) good = good && !zf_step(o.other);
            owned_free(&o, order[i]);
        }
        CHECK(t, good);
    }
}

/* A program works after everything else was given up. */
TEST(owners_program_outlives_what_it_uses)
{
    owned o = {.graph = NULL};
    owned_new(t, &o);
    zf_graph_free(o.graph), zf_store_free(o.store), zf_backend_free(o.backend);
    zf_local_free(o.group), zf_program_free(o.program);
    if (o.other) {
        zf_status status = zf_step(o.other);
        float y = 0;
        if (!status) status = zf_read(o.other, zf_graph_find(o.other_graph, "y"), &y, sizeof y);
        if (status)
            test_fail(t, __FILE__, __LINE__, "a step of a program", zf_program_error(o.other));
        else if (y != 8) test_fail(t, __FILE__, __LINE__, "y == 8", "");
    } else if (!t->refused) {
        test_fail(t, __FILE__, __LINE__, "a program", zf_graph_error(o.other_graph));
    } else {
        t->unwound = true;
    }
    zf_graph_free(o.other_graph), zf_program_free(o.other);
}

/* ---------------------------------------------------------------------------------- messages */

static zf_graph *fresh(test *t)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    if (g) test_defer(t, (test_cleanup *)zf_graph_free, g);
    return g;
}

TEST(outputs_have_no_value_before_a_step)
{
    zf_graph *g = fresh(t);
    zf_program *p;
    zf_tensor x, y;
    float in = 3, out = 0;
    NEED(t, g, NULL);
    x = zf_input(g, "x", ZF_F32, ZF_SCALAR), y = zf_output(zf_scale(x, 2), "y");
    p = zf_compile(g, NULL);
    NEED(t, p, &(zf_error){.status = zf_graph_status(g)});
    test_defer(t, (test_cleanup *)zf_program_free, p);
    GIVES(t, zf_read(p, y, &out, sizeof out), ZF_ERR_STAGE, zf_program_error(p));
    CHECK(t, strstr(zf_program_error(p),
                    " scale has no value yet: no step has run (zf_step, zf_micro)"));
    GIVES(t, zf_read(p, x, &out, sizeof out), ZF_ERR_STAGE, zf_program_error(p));
    CHECK(t,
          strstr(zf_program_error(p), "the input \"x\" has no value yet: zf_write gives it one"));
    OK(t, zf_write(p, x, &in, sizeof in), zf_program_error(p));
    OK(t, zf_read(p, x, &out, sizeof out), zf_program_error(p));
    GIVES(t, zf_read(p, y, &out, sizeof out), ZF_ERR_STAGE, zf_program_error(p));
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, y, &out, sizeof out), zf_program_error(p));
    CHECK(t, out == 6);
}

/* A step is not asked for what it does not need: evaluation with a graph that has the loss. */
TEST(programs_leave_out_what_nothing_needs)
{
    zf_graph *g = fresh(t);
    zf_program *p;
    zf_tensor x, labels, logits, loss;
    float in[6] = {1, 2, 3, 4, 5, 6}, out[4];
    int32_t wrong[2] = {7, 7};
    zf_program_info info;
    NEED(t, g, NULL);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(2, 3));
    labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(2));
    logits = zf_nn_linear(x, "out", 2, NULL);
    loss = zf_cross_entropy(logits, labels, ZF_NONE);
    zf_output(logits, "logits");
    p = zf_compile(g, &(zf_compile_desc){.verify = true});
    NEED(t, p, &(zf_error){.status = zf_graph_status(g)});
    test_defer(t, (test_cleanup *)zf_program_free, p);
    OK(t, zf_write(p, x, in, sizeof in), zf_program_error(p));
    OK(t, zf_step(p), zf_program_error(p)); /* labels were not written */
    OK(t, zf_write(p, labels, wrong, sizeof wrong), zf_program_error(p));
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, logits, out, sizeof out), zf_program_error(p));
    info = zf_program_info_of(p);
    CHECK(t, info.left_out > 5 && !strcmp(info.unread, "labels"));
    CHECK(t, info.input_bytes == 64);
    GIVES(t, zf_read(p, loss, out, 4), ZF_ERR_ARGUMENT, zf_program_error(p));
    CHECK(t, strstr(zf_program_error(p),
                    "the tensor was left out, since nothing needs it; zf_output keeps a "
                    "value"));
    GIVES(t, zf_read(p, labels, wrong, sizeof wrong), ZF_ERR_ARGUMENT, zf_program_error(p));
}

TEST(scopes_that_are_open_stop_every_pass)
{
    for (int pass = 0; pass < 3; pass++) {
        zf_graph *g = fresh(t);
        zf_tensor w;
        char expected[200];
        NEED(t, g, NULL);
        zf_push(g, "block");
        snprintf(expected, sizeof expected,
                 "%s: the scope \"block\", opened by zf_push (owners.c:%d), is still open (zf_pop "
                 "closes it)",
                 pass ? pass == 1 ? "zf_autograd" : "zf_memory" : "zf_fuse", __LINE__ - 4);
        w = zf_param(g, "w", ZF_SCALAR, NULL);
        if (pass == 0) zf_passes(g, &(zf_training){.loss = zf_scale(w, 2)});
        if (pass == 1) zf_autograd(g, zf_scale(w, 2));
        if (pass == 2) CHECK(t, !zf_compile(g, NULL));
        CHECK_TEXT(t, zf_graph_error(g), expected);
    }
}

/* ------------------------------------------------------------------------ passes inside passes */

enum { CALLS = 9 };
static int call_of_gradient;

static zf_status own_kernel(const zf_launch *l)
{
    memcpy(l->out.data, l->args[0].data, 4 * (size_t)zf_shape_count(l->out.shape));
    return ZF_OK;
}

static void own_gradient(zf_grad *c)
{
    switch (call_of_gradient) {
    case 0: zf_autograd(c->graph, c->y); break;
    case 1: zf_simplify(c->graph); break;
    case 2: zf_passes(c->graph, &(zf_training){.loss = c->y}); break;
    case 3: zf_program_free(zf_compile(c->graph, NULL)); break;
    case 4: zf_graph_free(c->graph); break;
    case 5: zf_zero(c->graph, &(zf_zero_desc){.world = 2}); break;
    case 6: zf_push(c->graph, "left open"); break;
    case 7: zf_pop(c->graph); break;
    default: zf_adamw(c->graph, c->y, NULL); break;
    }
    c->dx[0] = c->dy;
}

/* The gradient of an operator calls a pass: an error of the graph, which names both. */
TEST(passes_inside_passes_are_refused)
{
    const zf_operator op = {.name = "own", .grad = own_gradient, .cpu = own_kernel};
    for (call_of_gradient = 0; call_of_gradient < CALLS; call_of_gradient++) {
        zf_graph *g = zf_graph_new(
            &(zf_graph_desc){.allocator = t->allocator, .operators = &op, .operator_count = 1});
        zf_tensor h;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        h = zf_mul(zf_input(g, "x", ZF_F32, ZF_SHAPE(4)), zf_param(g, "w", ZF_SHAPE(4), NULL));
        zf_passes(g, &(zf_training){.loss = zf_mean(zf_apply(g, "own", 1, &h, NULL))});
        GIVES(t, zf_graph_status(g), call_of_gradient == 7 ? ZF_ERR_ARGUMENT : ZF_ERR_STAGE,
              zf_graph_error(g));
        CHECK(t, strstr(zf_graph_error(g),
                        call_of_gradient == 6   ? "opened by zf_push"
                        : call_of_gradient == 7 ? "no scope is open"
                        : call_of_gradient == 4
                            ? "zf_graph_free: called while zf_autograd rewrites the graph"
                            : "while zf_autograd rewrites"));
        if (call_of_gradient == 1)
            CHECK(t, strstr(zf_graph_error(g),
                            "simplify: called while zf_autograd rewrites the graph: an operator's "
                            "functions append nodes, and call no pass"));
    }
}

static void new_leaves(zf_grad *c)
{
    zf_param(c->graph, "late", ZF_SCALAR, NULL);
    zf_output(zf_input(c->graph, "also", ZF_F32, ZF_SCALAR), "output");
    c->dx[0] = c->dy;
}

TEST(gradients_may_add_leaves)
{
    const zf_operator op = {.name = "own", .grad = new_leaves, .cpu = own_kernel};
    zf_graph *g = zf_graph_new(
        &(zf_graph_desc){.allocator = t->allocator, .operators = &op, .operator_count = 1});
    zf_tensor h;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    h = zf_mul(zf_input(g, "x", ZF_F32, ZF_SHAPE(4)), zf_param(g, "w", ZF_SHAPE(4), NULL));
    OK(t, zf_passes(g, &(zf_training){.loss = zf_mean(zf_apply(g, "own", 1, &h, NULL))}),
       zf_graph_error(g));
    CHECK(t, !zf_valid(zf_gradient(g, zf_graph_find(g, "late"))));
}

/* A parameter that nothing reads, alone in its bucket, can be written and read. */
TEST(unread_parameters_are_written_and_read)
{
    float in[64], out[64] = {0};
    zf_graph *g = fresh(t);
    zf_tensor x, y, b;
    zf_program *p;
    NEED(t, g, NULL);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(4, 8));
    y = zf_matmul(x, zf_param(g, "a", ZF_SHAPE(8, 8), NULL));
    b = zf_param(g, "b", ZF_SHAPE(8, 8), NULL);
    zf_matmul(y, b);
    zf_output(zf_sum(y), "y");
    zf_zero(g, &(zf_zero_desc){.bucket_bytes = 1});
    zf_simplify(g);
    p = zf_compile(g, NULL);
    NEED(t, p, &(zf_error){.status = zf_graph_status(g)});
    test_defer(t, (test_cleanup *)zf_program_free, p);
    for (int i = 0; i < 64; i++) in[i] = (float)i;
    OK(t, zf_write(p, b, in, sizeof in), zf_program_error(p));
    OK(t, zf_read(p, b, out, sizeof out), zf_program_error(p));
    CHECK(t, !memcmp(in, out, sizeof in));
}
