/* One description of a training step (zf_passes), and copies of graphs. */
#include "../support/numbers.h"
#include "../support/test.h"

#include <unistd.h>

/* Two layers with dropout and LayerNorm, and a head: x [4,8] -> a loss, with the input "lr". */
static zf_tensor build(zf_graph *g)
{
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(4, 8)),
              labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(4)),
              weight = zf_input(g, "weight", ZF_F32, ZF_SCALAR);
    zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    for (int k = 0; k < 2; k++) {
        zf_tensor y;
        zf_push(g, "layer.%d", k);
        y = zf_dropout(zf_gelu(zf_nn_linear(x, "fc", 8, NULL)), 0.1);
        x = zf_nn_layer_norm(zf_add(x, y), "norm", 1e-5);
        zf_pop(g);
    }
    return zf_cross_entropy(zf_nn_linear(x, "head", 8, NULL), labels, weight);
}

static zf_graph *new_graph(test *t)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    if (g) test_defer(t, (test_cleanup *)zf_graph_free, g);
    return g;
}

/* ------------------------------------------------------------------------------------ the list */

/* What zf_passes does, as calls. */
static void run_lines(zf_graph *g, const zf_training *t)
{
    zf_tensor lr = zf_graph_find(g, "lr");
    bool train = t->loss.id != 0;
    zf_fuse(g, &t->fuse);
    zf_precision(g, &t->precision);
    if (train) zf_autograd(g, t->loss);
    zf_simplify(g);
    if (train && t->clip) zf_clip(g, t->clip);
    if (train && t->optimizer == ZF_ADAMW) zf_adamw(g, lr, &t->adamw);
    if (train && t->optimizer == ZF_LAMB) zf_lamb(g, lr, &t->lamb);
    if (train && t->optimizer == ZF_SGD) zf_sgd(g, lr, &t->sgd);
    if (train) zf_fuse(g, &t->fuse);
    if (train) zf_recompute(g, t);
    if (t->zero.world) zf_zero(g, &t->zero);
    if (t->zero.world) zf_prefetch(g, t);
}

static const zf_cost slow_link = {.device = {.flops_per_s = 1e9, .bytes_per_s = 1e9},
                                  .link = {.bytes_per_s = 1e6, .latency_s = 1e-3}};

/* Each description gives the graph of the single calls. */
TEST_ONCE(passes_make_what_the_calls_make)
{
    const zf_training rows[] = {
        {.fuse.without = NULL},
        {.fuse.without = "all", .clip = 1},
        {.fuse.without = "chain,update", .clip = INFINITY, .optimizer = ZF_LAMB},
        {.optimizer = ZF_SGD, .sgd = {.momentum = 0.5, .weight_decay = 0.1}},
        {.precision = {ZF_F16, .window = 7}, .clip = 1, .adamw = {.beta1 = 0.5}},
        {.recompute.mode = ZF_RECOMPUTE_LAYERS, .lamb = {.min_coeff = 0.5}, .optimizer = ZF_LAMB},
        {.zero = {.world = 1}},
        {.zero = {.stage = 3, .world = 4, .bucket_bytes = 512}, .prefetch.bytes = 4096},
        {.zero = {.stage = 3, .world = 4, .bucket_bytes = 512},
         .prefetch = {.bytes = 4096, .keep_gathered = true},
         .memory_limit = 40000,
         .cost = &slow_link},
        {.recompute.mode = ZF_RECOMPUTE_AS_NEEDED,
         .memory_limit = 146000,
         .zero = {.stage = 2, .world = 2, .micro_batches = 3},
         .prefetch.bytes = 1024},
    };
    for (int n = 0; n < (int)(sizeof rows / sizeof rows[0]); n++)
        for (int train = 0; train < 2; train++) {
            zf_graph *made = zf_graph_new(NULL), *wanted = zf_graph_new(NULL);
            zf_training one = rows[n];
            zf_tensor loss = build(made), other = build(wanted);
            char what[40];
            snprintf(what, sizeof what, "row %d, %s", n, train ? "training" : "evaluation");
            if (!train) zf_output(loss, "loss"), zf_output(other, "loss");
            if (train) one.loss = other;
            run_lines(wanted, &one);
            if (train) one.loss = loss;
            zf_passes(made, &one);
            if (zf_graph_status(made) || zf_graph_status(wanted) ||
                zf_graph_hash(made) != zf_graph_hash(wanted))
                test_fail(t, __FILE__, __LINE__, what, zf_graph_error(made));
            zf_graph_free(made);
            zf_graph_free(wanted);
        }
}

/* NULL and {0} are a step that evaluates; the learning rate is made where there is none. */
/* A pass by its name is the call. */
TEST(passes_by_name)
{
    const zf_training d = {.fuse.without = "norm", .fuse.as_trained = true,
                           .precision.dtype = ZF_BF16, .tile.bytes = 128};
    static const char *const none[] = {"fit", "adamw", "autograd", "clip", "precision.dtype", "",
                                       NULL};
    static char text[2][1 << 14];
    for (int named = 0; named < 2; named++) {
        zf_graph *g = new_graph(t);
        NEED(t, g, NULL);
        build(g);
        OK(t, named ? zf_pass(g, "fuse", &d) : zf_fuse(g, &d.fuse), zf_graph_error(g));
        OK(t, named ? zf_pass(g, "precision", &d) : zf_precision(g, &d.precision),
           zf_graph_error(g));
        OK(t, named ? zf_pass(g, "tile", &d) : zf_tile(g, &d.tile), zf_graph_error(g));
        CHECK(t, zf_graph_text(g, text[named], sizeof *text) < sizeof *text);
    }
    CHECK(t, !strcmp(text[1], text[0]));
    for (size_t k = 0; k < sizeof none / sizeof *none; k++) {
        char expected[80];
        zf_graph *g = new_graph(t);
        NEED(t, g, NULL);
        snprintf(expected, sizeof expected, "zf_pass: there is no pass \"%s\"",
                 none[k] ? none[k] : "");
        CHECK(t, zf_pass(g, none[k], &d) == ZF_ERR_ARGUMENT);
        CHECK_TEXT(t, zf_graph_error(g), expected);
    }
}

TEST(training_has_defaults)
{
    zf_graph *g = new_graph(t), *same, *trained;
    zf_tensor x, w, loss;
    zf_training r;
    NEED(t, g, NULL);
    zf_output(build(g), "loss");
    OK(t, zf_passes(g, NULL), zf_graph_error(g));
    CHECK(t, !zf_valid(zf_gradient(g, zf_param_at(g, 0))));
    same = new_graph(t);
    NEED(t, same, NULL);
    zf_output(build(same), "loss");
    OK(t, zf_passes(same, &(zf_training){.clip = 1, .keep_gradients = true}), zf_graph_error(same));
    CHECK(t, zf_graph_hash(g) == zf_graph_hash(same));

    trained = new_graph(t);
    NEED(t, trained, NULL);
    x = zf_input(trained, "x", ZF_F32, ZF_SHAPE(4));
    w = zf_param(trained, "w", ZF_SHAPE(4), NULL);
    loss = zf_sum(zf_mul(x, w));
    OK(t, zf_passes(trained, &(zf_training){.loss = loss, .keep_gradients = true}),
       zf_graph_error(trained));
    CHECK(t, zf_valid(zf_graph_find(trained, "lr")));
    CHECK(t, zf_valid(zf_graph_find(trained, "gradient/w")));
    CHECK(t, zf_valid(zf_graph_find(trained, "adamw.m/w")));
    CHECK(t, !zf_valid(zf_graph_find(trained, "grad_norm")));

    r = zf_training_resolved(NULL);
    CHECK(t, r.adamw.beta1 == 0.9 && r.adamw.beta2 == 0.999 && r.adamw.eps == 1e-8);
    CHECK(t, r.lamb.eps == 1e-6 && r.lamb.min_coeff == 0.01 && r.lamb.max_coeff == 10);
    CHECK(t, r.precision.scale == 0 && r.precision.factor == 2 && r.precision.window == 1000);
    CHECK(t, r.precision.hysteresis == 2 && r.precision.min_scale == 1);
    CHECK(t, r.zero.world == 1 && r.zero.micro_batches == 1 && !r.recompute.bytes);
    r = zf_training_resolved(&(zf_training){.precision.dtype = ZF_F16,
                                            .adamw = {.beta1 = ZF_ZERO, .eps = 1e-4},
                                            .recompute.mode = ZF_RECOMPUTE_AS_NEEDED,
                                            .memory_limit = 99});
    CHECK(t, r.precision.scale == 65536 && r.adamw.beta1 == 0 && r.adamw.eps == 1e-4);
    CHECK(t, r.recompute.bytes == 99);
    r = zf_training_resolved(
        &(zf_training){.precision = {.dtype = ZF_F16, .scale = ZF_ZERO}, .lamb.min_coeff = ZF_ZERO});
    CHECK(t, r.precision.scale == 0 && r.lamb.min_coeff == 0);
    CHECK_TEXT(t, zf_optimizer_name(ZF_SGD), "sgd");
    CHECK_TEXT(t, zf_optimizer_name(ZF_LION), "lion");
    CHECK(t, r.lion.beta1 == 0.9 && r.lion.beta2 == 0.99);
    CHECK(t, !zf_optimizer_name((zf_optimizer)7) && !zf_optimizer_name((zf_optimizer)-1));
}

/* A field of 0 is its default, of ZF_ZERO 0: AdamW without a first moment, by hand. */
TEST(zero_can_be_said)
{
    const double b2 = 0.999, lr = 0.5;
    double v = 0, p = 0;
    zf_graph *g = new_graph(t);
    zf_tensor x, w, rate;
    zf_program *program;
    NEED(t, g, NULL);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(1));
    w = zf_param(g, "w", ZF_SHAPE(1), NULL);
    rate = zf_constant(g, ZF_F32, ZF_SCALAR, lr);
    OK(t,
       zf_passes(g, &(zf_training){.loss = zf_sum(zf_mul(x, w)),
                                   .lr = rate,
                                   .adamw = {.beta1 = ZF_ZERO, .eps = ZF_ZERO}}),
       zf_graph_error(g));
    program = zf_compile(g, NULL);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    NEED(t, program, NULL);
    test_defer(t, (test_cleanup *)zf_program_free, program);
    for (int step = 1; step <= 3; step++) {
        const float gradient = (float)(step == 2 ? -2 : step);
        float now;
        OK(t, zf_write(program, x, &gradient, sizeof gradient), zf_program_error(program));
        OK(t, zf_step(program), zf_program_error(program));
        OK(t, zf_read(program, w, &now, sizeof now), zf_program_error(program));
        v = b2 * v + (1 - b2) * gradient * gradient;
        p -= lr * gradient / sqrt(v / (1 - pow(b2, step)));
        CHECK_NEAR(t, now, p, 1e-5);
    }
}

/* ------------------------------------------------------------------------------------ printing */

typedef struct notes {
    char passes[200]; /* "fuse autograd ... " */
    char *texts;      /* what print is to hold */
    size_t used;
    uint64_t hash; /* after the last pass */
} notes;

enum { MOST = 1 << 20 };

static void hear(void *user, zf_graph *g, const char *pass)
{
    notes *heard = user;
    bool same = heard->hash == zf_graph_hash(g);
    strcat(heard->passes, pass);
    strcat(heard->passes, " ");
    heard->used += (size_t)snprintf(heard->texts + heard->used, MOST - heard->used,
                                    "# after %s%s\n", pass, same ? ": the same" : "");
    if (!same) heard->used += zf_graph_text(g, heard->texts + heard->used, MOST - heard->used);
    if (!strcmp(pass, "gradients")) zf_output(zf_graph_find(g, "x"), "seen");
    heard->hash = zf_graph_hash(g);
}

TEST_ONCE(passes_show_the_graph)
{
    zf_graph *g = zf_graph_new(NULL);
    notes heard = {.texts = calloc(2, MOST)};
    const char *path = test_path("passes.txt");
    FILE *file = fopen(path, "w+");
    char *printed = heard.texts + MOST;
    size_t bytes;
    zf_tensor loss = build(g);
    CHECK(t, heard.texts && file);
    heard.hash = zf_graph_hash(g);
    OK(t,
       zf_passes(g, &(zf_training){.loss = loss,
                                   .keep_gradients = true,
                                   .clip = 1,
                                   .optimizer = ZF_LAMB,
                                   .recompute.mode = ZF_RECOMPUTE_LAYERS,
                                   .zero = {.stage = 3, .world = 2},
                                   .prefetch.bytes = 4096,
                                   .print = file,
                                   .after = hear,
                                   .user = &heard}),
       zf_graph_error(g));
    CHECK_TEXT(t, heard.passes,
               "fuse autograd simplify gradients clip lamb fuse recompute zero prefetch ");
    rewind(file);
    bytes = fread(printed, 1, MOST - 1, file);
    CHECK(t, bytes == heard.used && !memcmp(printed, heard.texts, bytes));
    CHECK(t, zf_valid(zf_graph_find(g, "seen")));
    fclose(file);
    unlink(path);
    free(heard.texts);
    zf_graph_free(g);
}

/* A full disk during printing is the graph's error. */
TEST_ONCE(passes_that_cannot_be_printed)
{
    FILE *full = fopen("/dev/full", "w");
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor loss = build(g);
    if (!full) {
        test_skip(t, "/dev/full");
    } else {
        setvbuf(full, NULL, _IONBF, 0);
        CHECK(t, zf_passes(g, &(zf_training){.loss = loss, .print = full}) == ZF_ERR_IO);
        CHECK_TEXT(t, zf_graph_error(g), "zf_passes: the graph after fuse could not be printed");
        fclose(full);
    }
    zf_graph_free(g);
}

/* -------------------------------------------------------------------------------------- errors */

TEST(passes_say_what_is_wrong)
{
    zf_graph *g = new_graph(t);
    char text[80];
    zf_tensor loss;
    CHECK(t, zf_passes(NULL, NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_graph_copy(NULL) == NULL);
    NEED(t, g, NULL);
    loss = build(g);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, zf_passes(g, &(zf_training){.loss = loss, .optimizer = ZF_OPTIMIZER_COUNT}));
    snprintf(text, sizeof text, "zf_passes: optimizer is %d; it must be adamw, ",
             (int)ZF_OPTIMIZER_COUNT);
    CHECK(t, t->refused || !strncmp(zf_graph_error(g), text, strlen(text)));

    g = new_graph(t);
    NEED(t, g, NULL);
    loss = build(g);
    CHECK(t, zf_passes(g, &(zf_training){.loss = loss, .adamw.beta2 = 1}));
    CHECK_TEXT(t, zf_graph_error(g), "zf_passes: adamw.beta2 is 1; it must be a number from 0 to below 1");
    CHECK(t, zf_passes(g, NULL) == ZF_ERR_ARGUMENT);

    g = new_graph(t);
    NEED(t, g, NULL);
    loss = build(g);
    CHECK(t, zf_passes(g, &(zf_training){.loss = loss, .fuse.without = "norm,all"}));
    CHECK(t, strstr(zf_graph_error(g), "\"all\" is none of its rewrites") || t->refused);
}

/* -------------------------------------------------------------------------------------- copies */

/* A copy outlives its graph, with the same text; changing one does not change the other. */
TEST(graph_copies_are_their_own)
{
    zf_graph *g = new_graph(t), *copy;
    uint64_t before, trained;
    zf_tensor loss;
    NEED(t, g, NULL);
    zf_push(g, "outer.%d", 1);
    loss = build(g);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    before = zf_graph_hash(g);
    copy = zf_graph_copy(g);
    NEED(t, copy, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, copy);
    CHECK(t, zf_graph_hash(copy) == before);
    CHECK(t, zf_param_count(copy) == zf_param_count(g));
    CHECK_TEXT(t, zf_tensor_name(zf_param_at(copy, 1)), "outer.1.layer.0.fc.bias");
    CHECK(t, zf_tensor_name(zf_param_at(copy, 1)) != zf_tensor_name(zf_param_at(g, 1)));

    /* Scopes are open as they were, and names taken. */
    CHECK(t, zf_valid(zf_param(copy, "more", ZF_SCALAR, NULL)) || zf_graph_status(copy));
    OK(t, zf_graph_status(copy), zf_graph_error(copy));
    CHECK(t, zf_valid(zf_graph_find(copy, "outer.1.more")));
    zf_pop(copy);
    OK(t,
       zf_passes(copy, &(zf_training){.loss = {copy, loss.id},
                                      .zero = {.stage = 3, .world = 2},
                                      .prefetch.bytes = 1024}),
       zf_graph_error(copy));
    CHECK(t, zf_graph_hash(g) == before && !zf_valid(zf_graph_find(g, "outer.1.more")));

    /* After all passes as well, and without the graph that it was made of. */
    trained = zf_graph_hash(copy);
    g = zf_graph_copy(copy);
    NEED(t, g, NULL);
    t->deferred_count--;
    zf_graph_free(copy);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    CHECK(t, zf_graph_hash(g) == trained);
    CHECK(t, zf_prefetch(g, NULL) == ZF_ERR_STAGE);
    copy = zf_graph_copy(g);
    NEED(t, copy, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, copy);
    CHECK_TEXT(t, zf_graph_error(copy), "zf_prefetch: zf_prefetch has been run already");
}

/* Scopes that were open are so in the copy, when its graph is gone. */
TEST(graph_copies_keep_open_scopes)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator}), *copy;
    zf_push(g, "outer");
    zf_push(g, "inner.%d", 7);
    copy = zf_graph_copy(g);
    zf_graph_free(g);
    g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator}); /* where that was, perhaps */
    for (int k = 0; k < 100; k++) zf_push(g, "another.%d", k), zf_pop(g);
    zf_graph_free(g);
    NEED(t, copy, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, copy);
    zf_param(copy, "w", ZF_SCALAR, NULL);
    zf_pop(copy);
    zf_param(copy, "w", ZF_SCALAR, NULL);
    zf_pop(copy);
    zf_param(copy, "w", ZF_SCALAR, NULL);
    OK(t, zf_graph_status(copy), zf_graph_error(copy));
    CHECK_TEXT(t, zf_tensor_name(zf_param_at(copy, 0)), "outer.inner.7.w");
    CHECK_TEXT(t, zf_tensor_name(zf_param_at(copy, 1)), "outer.w");
    CHECK_TEXT(t, zf_tensor_name(zf_param_at(copy, 2)), "w");
}

/* Two programs, of a graph and of its copy, have the same bits. */
TEST(graph_copies_train_alike)
{
    float at[2][8];
    for (int k = 0; k < 2; k++) {
        zf_graph *g = new_graph(t);
        zf_program *p;
        zf_tensor loss;
        NEED(t, g, NULL);
        loss = build(g);
        OK(t, zf_passes(g, &(zf_training){.loss = loss, .clip = 1}), zf_graph_error(g));
        if (k) {
            g = zf_graph_copy(g);
            NEED(t, g, NULL);
            test_defer(t, (test_cleanup *)zf_graph_free, g);
        }
        p = zf_compile(g, &(zf_compile_desc){.seed = 3});
        OK(t, zf_graph_status(g), zf_graph_error(g));
        NEED(t, p, NULL);
        test_defer(t, (test_cleanup *)zf_program_free, p);
        OK(t, write_seeded(p, zf_graph_find(g, "x")), zf_program_error(p));
        OK(t, write_seeded(p, zf_graph_find(g, "labels")), zf_program_error(p));
        OK(t, write_seeded(p, zf_graph_find(g, "weight")), zf_program_error(p));
        OK(t, write_seeded(p, zf_graph_find(g, "lr")), zf_program_error(p));
        for (int step = 0; step < 3; step++) OK(t, zf_step(p), zf_program_error(p));
        OK(t, zf_read(p, zf_graph_find(g, "layer.1.fc.bias"), at[k], sizeof at[k]),
           zf_program_error(p));
    }
    CHECK(t, !memcmp(at[0], at[1], sizeof at[0]));
}

/* Embeddings of which a part is read, as by sequences shorter than a model admits. */
static zf_tensor build_embedded(zf_graph *g)
{
    zf_tensor ids = zf_input(g, "ids", ZF_I32, ZF_SHAPE(2, 3)), x;
    zf_tensor positions = zf_nn_embedding_table(g, "positions", 4, 8, NULL),
              words = zf_nn_embedding_table(g, "words", 5, 8, NULL),
              types = zf_nn_embedding_table(g, "types", 3, 8, NULL);
    zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    x = zf_add(zf_embedding(words, ids), zf_embedding(types, ids));
    x = zf_nn_layer_norm(zf_add(x, zf_slice(positions, 0, 0, 3)), "norm", 1e-5);
    return zf_output(zf_sum(zf_mul(x, x)), "loss");
}

/* Whatever is fused, buckets are the same in a program that trains and in one that evaluates. */
TEST(passes_order_parameters_alike)
{
    static const char *const names[] = {"words.weight", "types.weight", "positions.weight",
                                        "norm.weight", "norm.bias"};
    for (int k = 0; k < 4; k++) {
        zf_graph *g = new_graph(t);
        zf_training d = {.fuse.without = k / 2 ? "all" : NULL, .zero = {.world = 2}};
        zf_tensor loss;
        NEED(t, g, NULL);
        loss = build_embedded(g);
        if (k % 2) d.loss = loss;
        OK(t, zf_passes(g, &d), zf_graph_error(g));
        for (int i = 0; i < 5; i++) CHECK_TEXT(t, zf_tensor_name(zf_param_at(g, i)), names[i]);
    }
}

/* Layers whose values take most of the memory. */
static zf_tensor build_deep(zf_graph *g)
{
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(512, 16));
    zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    for (int k = 0; k < 4; k++) {
        zf_tensor y;
        zf_push(g, "layer.%d", k);
        y = zf_gelu(zf_nn_linear(x, "up", 64, NULL));
        y = zf_dropout(zf_nn_linear(y, "down", 16, NULL), 0.1);
        x = zf_nn_layer_norm(zf_add(x, y), "norm", 1e-5);
        zf_pop(g);
    }
    return zf_sum(zf_mul(x, x));
}

/* The plan of its step within a limit. */
static zf_plan plan_within(test *t, size_t limit, const char *without, zf_invert invert)
{
    zf_graph *g = new_graph(t);
    zf_plan plan = {0};
    zf_training d = {.clip = 1, .memory_limit = limit, .fuse = {.without = without, .invert = invert}};
    if (g) d.loss = build_deep(g);
    if (!g || zf_passes(g, &d) || zf_memory(g, NULL) || zf_graph_plan(g, &plan))
        test_unwind(t, __FILE__, __LINE__, "plan_within", g ? zf_graph_status(g) : ZF_ERR_NOMEM,
                    g ? zf_graph_error(g) : NULL);
    return plan;
}

/* invert as needed: not where the plan fits without it, with it where it does not; and never where
 * it was left out. */
TEST(passes_invert_as_needed)
{
    zf_plan always = plan_within(t, 0, NULL, ZF_INVERT_ALWAYS),
            never = plan_within(t, 0, "chain,invert", ZF_INVERT_AS_NEEDED), plan;
    if (t->failed || !always.peak_bytes || !never.peak_bytes) return;
    CHECK(t, always.inverted > 0 && !never.inverted);
    plan = plan_within(t, 0, NULL, ZF_INVERT_AS_NEEDED);
    CHECK(t, !plan.inverted);
    never = plan;
    CHECK(t, always.peak_bytes < never.peak_bytes);
    plan = plan_within(t, never.peak_bytes, NULL, ZF_INVERT_AS_NEEDED);
    CHECK(t, !plan.inverted && plan.peak_bytes == never.peak_bytes);
    plan = plan_within(t, never.peak_bytes - 1, NULL, ZF_INVERT_AS_NEEDED);
    CHECK(t, plan.inverted == always.inverted && plan.peak_bytes == always.peak_bytes);
    plan = plan_within(t, 1, "invert", ZF_INVERT_AS_NEEDED);
    CHECK(t, !plan.inverted);
}

/* ---------------------------------------------------------------------------------------- fit */

/* The step of the deep model by a description, placed; the graph, or NULL after a failed check. */
static zf_graph *deep_step(test *t, const zf_training *d, zf_plan *plan, zf_estimate *e)
{
    zf_graph *g = new_graph(t);
    zf_training own = *d;
    if (!g) return NULL;
    own.loss = build_deep(g);
    if (zf_passes(g, &own)) return g;
    if (zf_memory(g, NULL) || zf_graph_plan(g, plan) || zf_graph_estimate(g, d->cost, e))
        test_unwind(t, __FILE__, __LINE__, "deep_step", zf_graph_status(g), zf_graph_error(g));
    return g;
}

/* Frees the graph made last. */
static void drop(test *t, zf_graph *g)
{
    zf_graph_free(g);
    t->deferred_count--;
}

static size_t memory_of(const zf_plan *plan)
{
    return plan->spaces[ZF_DEVICE].peak_bytes + plan->spaces[ZF_HOST].peak_bytes;
}

/* By limits of the device, from what it takes without any down to nothing: the choice is within
 * them, is what the plan then is, and no placement that fits is faster, of those without
 * recomputing; without that the graph is that of the choice asked for directly. */
TEST_ONCE(passes_fit_a_step)
{
    zf_training d = {.clip = 1, .zero = {.world = 1, .bucket_bytes = 1 << 16}};
    zf_plan plain, plan;
    zf_estimate free_of, e;
    zf_choice choice;
    bool offloaded = false, recomputed = false;
    if (!deep_step(t, &d, &plain, &free_of)) return;
    d.fit = (zf_fit_desc){.host = 1 << 30, .disk = 1 << 30, .choice = &choice};
    for (int k = 0; k < 5; k++) {
        zf_graph *g, *again;
        zf_training direct = d;
        d.fit.device = plain.peak_bytes - (size_t)k * plain.peak_bytes / 11;
        if (!(g = deep_step(t, &d, &plan, &e))) return;
        OK(t, zf_graph_status(g), zf_graph_error(g));
        CHECK(t, plan.peak_bytes <= d.fit.device && plan.peak_bytes == choice.bytes[ZF_DEVICE]);
        CHECK(t, plan.spaces[ZF_HOST].peak_bytes == choice.bytes[ZF_HOST]);
        CHECK(t, e.seconds == choice.seconds && choice.free_seconds == free_of.seconds);
        CHECK(t, (choice.tried == 1) == (k == 0));
        offloaded |= choice.offload.optimizer == ZF_HOST;
        recomputed |= choice.recompute.mode != ZF_RECOMPUTE_OFF;
        for (int n = 0; n < 9; n++) {
            zf_training other = {.clip = 1,
                                 .zero = d.zero,
                                 .offload = {.optimizer = (zf_space)(n / 3),
                                             .parameters = (zf_space)(n % 3)}};
            if (!(again = deep_step(t, &other, &plan, &e))) return;
            drop(t, again);
            CHECK(t, plan.peak_bytes > d.fit.device || e.seconds >= choice.seconds);
        }
        direct.fit = (zf_fit_desc){.memory = 0};
        direct.offload = choice.offload, direct.recompute = choice.recompute;
        if (!(again = deep_step(t, &direct, &plan, &e))) return;
        CHECK(t, zf_graph_hash(g) == zf_graph_hash(again));
        drop(t, again);
        drop(t, g);
    }
    CHECK(t, offloaded || recomputed);
}

/* Averages of the parameters are counted. */
TEST_ONCE(passes_fit_counts_averages)
{
    zf_training d = {.ema.decay = 0.9, .zero = {.world = 1, .bucket_bytes = 1 << 16}};
    zf_plan plain, plan;
    zf_estimate e;
    zf_choice choice;
    if (!deep_step(t, &d, &plain, &e)) return;
    d.fit = (zf_fit_desc){.device = plain.peak_bytes - 1, .host = 1 << 30, .choice = &choice};
    if (!deep_step(t, &d, &plan, &e)) return;
    CHECK(t, plan.peak_bytes < plain.peak_bytes && choice.bytes[ZF_DEVICE] == plan.peak_bytes);
}

/* Where device and host memory are one: only the disk helps, and recomputing. */
TEST_ONCE(passes_fit_one_memory)
{
    zf_training d = {.clip = 1, .zero = {.world = 1, .bucket_bytes = 1 << 16}};
    zf_plan plain, plan;
    zf_estimate e;
    zf_choice choice;
    zf_graph *g;
    char text[100];
    if (!deep_step(t, &d, &plain, &e)) return;
    d.fit = (zf_fit_desc){.memory = 1, .choice = &choice};
    if (!(g = deep_step(t, &d, &plan, &e))) return;
    GIVES(t, zf_graph_status(g), ZF_ERR_LIMIT, zf_graph_error(g));
    CHECK(t, strstr(zf_graph_error(g), "zf_passes: nothing fits; what comes nearest (") &&
                 strstr(zf_graph_error(g), " bytes of memory, ") &&
                 strstr(zf_graph_error(g), " more than 1"));
    d.fit.memory = memory_of(&plain) - 1, d.fit.disk = 1 << 30;
    if (!(g = deep_step(t, &d, &plan, &e))) return;
    OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, memory_of(&plan) <= d.fit.memory && choice.offload.optimizer != ZF_HOST &&
                 choice.offload.parameters != ZF_HOST);
    d.offload = (zf_offload_desc){.optimizer = ZF_DISK, .parameters = ZF_DISK, .activations = ZF_DISK};
    d.fit.memory = 1 << 30;
    if (!(g = deep_step(t, &d, &plan, &e))) return;
    OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, choice.tried == 1 && choice.bytes[ZF_DISK] == plan.spaces[ZF_DISK].peak_bytes);
    zf_choice_text(&choice, text, sizeof text);
    CHECK_TEXT(t, text, "optimizer=disk,parameters=disk,activations=disk");
    choice = (zf_choice){.offload = {.optimizer = ZF_DISK, .parameters = ZF_HOST},
                         .recompute = {.mode = ZF_RECOMPUTE_LAYERS}};
    CHECK(t, zf_choice_text(&choice, text, sizeof text) == strlen(text));
    CHECK_TEXT(t, text, "optimizer=disk,parameters=host, recompute");
    zf_choice_text(&(zf_choice){.seconds = 0}, text, sizeof text);
    CHECK_TEXT(t, text, "all on the device, nothing recomputed");
    CHECK(t, !zf_choice_text(NULL, text, sizeof text));
}

/* With a disk: device and host together stay within `memory`, though host memory alone has room; and
 * for limits of device and disk alone nothing is put into host memory. */
TEST_ONCE(passes_fit_keeps_each_limit)
{
    zf_training d = {.clip = 1, .zero = {.world = 1, .bucket_bytes = 1 << 16}};
    zf_plan plain, plan;
    zf_estimate e;
    zf_choice choice;
    int fitted[2] = {0, 0};
    if (!deep_step(t, &d, &plain, &e)) return;
    for (int k = 0; k < 8; k++) {
        const bool together = k % 2;
        const size_t all = together ? memory_of(&plain) : plain.peak_bytes,
                     limit = all - all * (size_t)(k / 2 + 1) / 12;
        zf_graph *g;
        zf_space lie[4];
        d.fit = (zf_fit_desc){.disk = 1 << 30, .choice = &choice};
        if (together) d.fit.memory = limit, d.fit.host = 1 << 30;
        else d.fit.device = limit;
        if (!(g = deep_step(t, &d, &plan, &e))) return;
        if (zf_graph_status(g) == ZF_ERR_LIMIT) continue;
        OK(t, zf_graph_status(g), zf_graph_error(g));
        fitted[together]++;
        CHECK(t, (together ? memory_of(&plan) : plan.peak_bytes) <= limit);
        memcpy(lie, (zf_space[4]){choice.offload.optimizer, choice.offload.parameters,
                                  choice.offload.gradients, choice.offload.activations},
               sizeof lie);
        for (int n = 0; n < 4; n++) CHECK(t, together || lie[n] != ZF_HOST);
    }
    CHECK(t, fitted[0] > 1 && fitted[1] > 1);
}

/* Updates that are delayed from some step on: one choice for both kinds of steps, within the limit
 * with the memory of both. */
TEST_ONCE(passes_fit_delayed_steps)
{
    zf_training d = {.clip = 1,
                     .delay = true,
                     .delay_from = 3,
                     .zero = {.world = 1, .bucket_bytes = 1 << 16}};
    zf_plan plans[2], plan;
    zf_estimate e;
    zf_choice choices[2];
    for (int k = 0; k < 2; k++) {
        d.variant = k;
        if (!deep_step(t, &d, &plans[k], &e)) return;
    }
    d.fit = (zf_fit_desc){.host = 1 << 30, .device = plans[1].peak_bytes};
    for (int k = 0; k < 2; k++) {
        zf_graph *g;
        d.variant = k, d.fit.choice = &choices[k];
        if (!(g = deep_step(t, &d, &plan, &e))) return;
        OK(t, zf_graph_status(g), zf_graph_error(g));
        CHECK(t, plan.peak_bytes <= choices[k].bytes[ZF_DEVICE] &&
                     choices[k].bytes[ZF_DEVICE] <= d.fit.device);
        CHECK(t, !k || e.seconds == choices[k].seconds);
        CHECK(t, zf_valid(zf_graph_find(g, "delay.scale")) == (k == 1));
        drop(t, g);
    }
    CHECK(t, !memcmp(&choices[0].offload, &choices[1].offload, sizeof choices[0].offload));
    CHECK(t, choices[0].recompute.mode == choices[1].recompute.mode &&
                 choices[0].recompute.bytes == choices[1].recompute.bytes);
    CHECK(t, choices[0].seconds == choices[1].seconds);
}
