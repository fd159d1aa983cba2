/* The order in which builders are called changes no bit. C does not define it for arguments. */
#include "../support/test.h"

enum { WORLDS = 3, PARTS = 6, STEPS = 3, ROWS = 2, WIDTH = 40 };

/* A projection with a dropout after it, one of several in its scope. */
static zf_tensor branch(zf_tensor x, const char *name)
{
    zf_graph *g = x.graph;
    zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.3};
    zf_tensor w, b;
    zf_push(g, "%s", name);
    if (*name == 'k') b = zf_param(g, "bias", ZF_SHAPE(WIDTH), &normal);
    w = zf_param(g, "weight", ZF_SHAPE(WIDTH, WIDTH), &normal);
    if (*name != 'k') b = zf_param(g, "bias", ZF_SHAPE(WIDTH), &normal);
    zf_pop(g);
    return zf_dropout(zf_add(zf_matmul_ex(x, w, &(zf_matmul_desc){.transpose_b = true}), b), 0.2);
}

/* Layers whose input three branches read, and a value with two dropouts. turned: calls the builders
 * in the reverse order where any order is allowed. */
static zf_tensor layers(zf_tensor x, bool turned)
{
    static const char *const names[] = {"query", "key", "value"};
    for (int i = 9; i < 12; i++) {
        zf_tensor y[3], once, twice = {NULL, 0};
        zf_push(x.graph, "layer.%d", i);
        for (int k = 0; k < 3; k++) {
            int which = turned ? 2 - k : k;
            y[which] = branch(x, names[which]);
        }
        y[0] = zf_mul(y[0], zf_tanh(y[1]));
        if (turned) twice = zf_dropout(y[0], 0.5);
        once = zf_dropout(y[0], 0.5);
        if (!turned) twice = zf_dropout(y[0], 0.5);
        x = zf_tanh(zf_add(y[2], zf_sub(once, twice)));
        zf_pop(x.graph);
    }
    return x;
}

typedef struct calls {
    zf_comm comms[WORLDS];
    zf_graph *graphs[WORLDS];
    zf_program *programs[WORLDS];
} calls;

static void calls_free(void *object)
{
    calls *c = object;
    for (int r = 0; r < WORLDS; r++) zf_program_free(c->programs[r]);
    for (int r = 0; r < WORLDS; r++) zf_graph_free(c->graphs[r]);
    *c = (calls){.graphs = {NULL}};
}

static void calls_open(test *t, calls *c, bool turned, bool fused, int stage, int world)
{
    calls_free(c);
    for (int32_t r = 0; r < world; r++) {
        zf_graph *g = c->graphs[r] = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_tensor x, lr, loss;
        CHECK(t, g);
        if (turned) lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
        x = zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, WIDTH));
        if (!turned) lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
        x = layers(x, turned);
        loss = zf_output(zf_scale(zf_mean(zf_mul(x, x)), 1.0 / PARTS), "error");
        zf_passes(g, &(zf_training){.loss = loss,
                                    .lr = lr,
                                    .fuse.without = fused ? NULL : "all",
                                    .clip = 0.01,
                                    .zero = {.stage = stage,
                                             .world = world,
                                             .micro_batches = PARTS / world,
                                             .bucket_bytes = 30000}});
        c->comms[r] = (zf_comm){.rank = r, .world = world};
        c->programs[r] =
            zf_compile(g, &(zf_compile_desc){.seed = 5, .comm = world > 1 ? &c->comms[r] : NULL});
        OK(t, zf_graph_status(g), zf_graph_error(g));
    }
}

/* The losses of some steps, and then the bits of all parameters in their order, by name. */
static void calls_train(test *t, calls *c, int world, float *out, size_t *all)
{
    zf_lockstep_desc lockstep = {c->programs, world, 0};
    zf_error error = {ZF_OK, ""};
    size_t count = 0;
    for (int step = 0; step < STEPS; step++) {
        for (int part = 0; part < PARTS; part++) {
            int r = part % world;
            float x[ROWS * WIDTH], lr = 0.01f;
            bool last = part == PARTS - 1;
            for (int i = 0; i < ROWS * WIDTH; i++)
                x[i] = (float)((i * 7 + part * 11 + step * 3) % 23 - 11) / 10;
            CHECK(t,
                  !zf_write(c->programs[r], zf_graph_find(c->graphs[r], "x"), x, sizeof x) &&
                      !zf_write(c->programs[r], zf_graph_find(c->graphs[r], "lr"), &lr, sizeof lr));
            if (r < world - 1) continue;
            if (world > 1)
                OK(t, (last ? zf_lockstep_step : zf_lockstep_micro)(&lockstep, &error), error.text);
            else OK(t, (last ? zf_step : zf_micro)(c->programs[0]), "a step");
        }
        CHECK(t, !zf_read(c->programs[0], zf_graph_find(c->graphs[0], "error"), &out[count++],
                          sizeof *out));
    }
    for (int32_t i = 0; i < zf_param_count(c->graphs[0]); i++) {
        zf_tensor p = zf_param_at(c->graphs[0], i);
        OK(t,
           zf_lockstep_read(&lockstep, zf_tensor_name(p), out + count, zf_tensor_bytes(p), &error),
           error.text);
        count += zf_tensor_bytes(p) / sizeof *out;
    }
    *all = count;
}

TEST_ONCE(calls_in_any_order_give_the_same_bits)
{
    enum { MOST = STEPS + 9 * (WIDTH + 1) * WIDTH };
    static float first[2][MOST], other[MOST];
    static const int worlds[] = {1, 2, 3};
    static calls c;
    char names[2][2000];
    test_defer(t, calls_free, &c);
    for (int k = 0; k < 2 * 4 * 3 * 2; k++) {
        bool turned = k % 2, fused = k / 2 % 2;
        int stage = k / 4 % 4, world = worlds[k / 16];
        char *list = names[turned];
        size_t count = 0, at = 0;
        calls_open(t, &c, turned, fused, stage, world);
        if (t->failed) return;
        calls_train(t, &c, world, k < 4 && !turned ? first[fused] : other, &count);
        CHECK(t, count == MOST);
        if (k >= 4 || turned) CHECK(t, !memcmp(first[fused], other, sizeof other));
        for (int32_t i = 0; i < zf_param_count(c.graphs[0]); i++)
            at += (size_t)snprintf(list + at, sizeof names[0] - at, "%s\n",
                                   zf_tensor_name(zf_param_at(c.graphs[0], i)));
        if (turned) CHECK_TEXT(t, names[0], names[1]);
    }
    CHECK(t, strstr(names[0], "layer.9.value.weight\nlayer.9.value.bias\n") == names[0]);
}

/* When a dropout is added to a branch, those of other branches keep their masks; two dropouts of
 * one value have two masks. */
TEST(calls_scopes_have_their_streams)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor x, y;
    char text[1000];
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(4));
    zf_push(g, "layer.1");
    y = zf_dropout(x, 0.5);
    zf_pop(g);
    x = zf_dropout(x, 0.5);
    y = zf_add(zf_dropout(y, 0.5), x);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    zf_graph_text(g, text, sizeof text);
    CHECK_TEXT(t, text,
               "%1 = input \"x\" : f32[4]\n"
               "%2 = dropout %1 {p=0.5 stream=2423947921} : f32[4]\n"
               "%3 = dropout %1 {p=0.5 stream=3264523141} : f32[4]\n"
               "%4 = dropout %2 {p=0.5 stream=3735643311} : f32[4]\n"
               "%5 = add %4, %3 : f32[4]\n");
    zf_output(zf_sum(y), "y");
    zf_fuse(g, &(zf_fuse_desc){.without = "all"});
    OK(t, zf_graph_status(g), zf_graph_error(g));
    zf_graph_text(g, text, sizeof text);
    CHECK(t, strstr(text, "%4 = dropout %2 {p=0.5 stream=3264523141}") &&
                 strstr(text, "%3 = dropout %1 {p=0.5 stream=3735643311}"));
}
