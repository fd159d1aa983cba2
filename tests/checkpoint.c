/* Checkpoints: training goes on with the same bits, damage is found and named, nothing is ever half replaced. */
#define _GNU_SOURCE
#include "test.h"

/* ------------------------------------------------------------------------------------ a model */

enum { ROWS = 6, IN = 5, HIDDEN = 7, OUT = 3 };

typedef enum rule { ADAMW, LAMB, SGD, NONE } rule;

typedef struct model_desc {
    rule rule;
    uint64_t seed;
    int64_t hidden;
    zf_dtype dtype;
    zf_backend *backend;
} model_desc;

typedef struct model {
    zf_graph *graph;
    zf_program *program;
    zf_tensor x, y, lr, loss;
} model;

static void model_free(void *object)
{
    model *m = object;
    zf_program_free(m->program);
    zf_graph_free(m->graph);
}

/* A perceptron with dropout, clipping and an optimizer. Returns the program, or NULL with the graph's error. */
static zf_program *model_new(test *t, model *m, const model_desc *d)
{
    int64_t hidden = d->hidden ? d->hidden : HIDDEN;
    zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.3};
    zf_tensor h, error;
    zf_graph *g = m->graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    m->program = NULL;
    if (!g) return NULL;
    m->x = zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, IN));
    m->y = zf_input(g, "y", ZF_F32, ZF_SHAPE(ROWS, OUT));
    m->lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    h = zf_matmul(m->x, zf_param(g, "in.weight", ZF_SHAPE(IN, hidden), &normal));
    h = zf_dropout(zf_tanh(zf_add(h, zf_param(g, "in.bias", ZF_SHAPE(hidden), NULL))), 0.3);
    h = zf_matmul(h, zf_param(g, "out.weight", ZF_SHAPE(hidden, OUT), &normal));
    error = zf_sub(h, m->y);
    m->loss = zf_output(zf_mean(zf_mul(error, error)), "error");
    if (d->rule != NONE) {
        zf_autograd(g, m->loss);
        zf_clip(g, 0.1);
    }
    if (d->rule == ADAMW) zf_adamw(g, m->lr, &(zf_adamw_desc){.weight_decay = 0.01});
    if (d->rule == LAMB) zf_lamb(g, m->lr, &(zf_lamb_desc){.weight_decay = 0.01});
    if (d->rule == SGD) zf_sgd(g, m->lr, NULL);
    m->program = zf_compile(g, &(zf_compile_desc){.backend = d->backend, .seed = d->seed});
    return m->program;
}

/* Trains until `steps` are done; losses[step] is that of each. */
static zf_status train(model *m, int64_t steps, float *losses)
{
    zf_status status = ZF_OK;
    while (zf_program_step(m->program) < steps && !status) {
        int64_t step = zf_program_step(m->program);
        float x[ROWS * IN], y[ROWS * OUT], lr = 0.01f * (float)(step + 1);
        for (int i = 0; i < ROWS * IN; i++) x[i] = (float)((i * 7 + step * 3) % 11) / 11 - 0.4f;
        for (int i = 0; i < ROWS * OUT; i++) y[i] = (float)((i * 5 + step) % 7) / 7;
        status = zf_write(m->program, m->x, x, sizeof x);
        if (!status) status = zf_write(m->program, m->y, y, sizeof y);
        if (!status) status = zf_write(m->program, m->lr, &lr, sizeof lr);
        if (!status) status = zf_step(m->program);
        if (!status) status = zf_read(m->program, m->loss, &losses[step], sizeof *losses);
    }
    return status;
}

static const char *const names[] = {
    "in.weight",         "in.bias",          "out.weight",        "adamw.step",       "adamw.m/in.weight",
    "adamw.v/in.weight", "adamw.m/in.bias",  "adamw.v/in.bias",   "adamw.m/out.weight", "adamw.v/out.weight",
    "lamb.step",         "lamb.m/in.weight", "lamb.v/in.weight",  "lamb.m/in.bias",   "lamb.v/in.bias",
    "lamb.m/out.weight", "lamb.v/out.weight",
};

enum { IMAGE = 4096 };

/* Every parameter and state of the program, one behind the other; returns their bytes. */
static size_t image_of(model *m, unsigned char image[IMAGE])
{
    size_t at = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        zf_tensor tensor = zf_graph_find(m->graph, names[i]);
        size_t bytes = zf_tensor_bytes(tensor);
        if (!zf_valid(tensor)) continue;
        if (at + bytes > IMAGE || zf_read(m->program, tensor, image + at, bytes)) return 0;
        at += bytes;
    }
    return at;
}

static bool same_image(model *a, model *b)
{
    static unsigned char of_a[IMAGE], of_b[IMAGE];
    size_t bytes = image_of(a, of_a);
    return bytes && bytes == image_of(b, of_b) && !memcmp(of_a, of_b, bytes);
}

/* ------------------------------------------------------------------------------- going on */

static void goes_on(test *t, rule rule)
{
    const char *path = test_path("going-on");
    float straight[10], first[10], second[10];
    static model a, b, c; /* what is deferred runs when the body has returned */
    test_defer(t, model_free, &a);
    NEED(t, model_new(t, &a, &(model_desc){.rule = rule, .seed = UINT64_MAX - 3}), NULL);
    OK(t, train(&a, 10, straight), zf_program_error(a.program));
    test_defer(t, model_free, &b);
    NEED(t, model_new(t, &b, &(model_desc){.rule = rule, .seed = UINT64_MAX - 3}), NULL);
    OK(t, train(&b, 5, first), zf_program_error(b.program));
    OK(t, zf_save(b.program, path, NULL), zf_program_error(b.program));
    test_defer(t, model_free, &c);
    NEED(t, model_new(t, &c, &(model_desc){.rule = rule, .seed = 99}), NULL);
    CHECK(t, !same_image(&b, &c));
    OK(t, zf_load(c.program, path, NULL), zf_program_error(c.program));
    CHECK(t, zf_program_step(c.program) == 5 && same_image(&b, &c));
    memcpy(second, first, sizeof second);
    OK(t, train(&c, 10, second), zf_program_error(c.program));
    CHECK(t, same_image(&a, &c) && !memcmp(straight, second, sizeof straight));
    /* Saving leaves no trace in the program that is saved. */
    OK(t, train(&b, 10, first), zf_program_error(b.program));
    CHECK(t, same_image(&a, &b) && !memcmp(straight, first, sizeof straight));
}

TEST(checkpoint_goes_on_adamw) { goes_on(t, ADAMW); }
TEST(checkpoint_goes_on_lamb) { goes_on(t, LAMB); }
TEST(checkpoint_goes_on_sgd) { goes_on(t, SGD); }
