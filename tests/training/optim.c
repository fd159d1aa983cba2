/* The optimizer passes: their numbers against PyTorch's and timm's (tests/golden/optim/make.py says
 * which, and how the files are laid out), clipping, weight decay, and messages. */
#include "../support/test.h"

enum { TENSORS = 6, STEPS = 10, MOST = 4096 };

typedef struct bench {
    zf_safetensors *golden;
    zf_graph *graph;
    zf_backend *cpu;
    zf_program *program;
    zf_tensor p[TENSORS], g[TENSORS], lr;
    zf_error error;
} bench;

static void close_program(bench *b)
{
    zf_program_free(b->program);
    zf_backend_free(b->cpu);
    zf_graph_free(b->graph);
    b->program = NULL, b->cpu = NULL, b->graph = NULL;
}

static void close_bench(void *object)
{
    bench *b = object;
    close_program(b);
    zf_safetensors_close(b->golden);
}

/* Opens golden/optim/NAME.safetensors. */
static zf_status open_golden(test *t, bench *b, const char *name)
{
    char path[64];
    *b = (bench){.golden = NULL};
    test_defer(t, close_bench, b);
    snprintf(path, sizeof path, "tests/golden/optim/%s.safetensors", name);
    b->golden = zf_safetensors_open(path, &t->allocator, &b->error);
    return b->error.status;
}

/* The golden tensor called PREFIX NAME K (K < 0: without a number) as doubles. */
static zf_status golden(bench *b, const char *prefix, const char *name, int k, double out[MOST])
{
    static float narrow[MOST];
    char full[64], number[16] = "";
    const zf_safetensors_entry *entry;
    int32_t index;
    if (k >= 0) snprintf(number, sizeof number, "%d", k);
    snprintf(full, sizeof full, "%s%s%s", prefix, name, number);
    index = zf_safetensors_find(b->golden, full);
    entry = zf_safetensors_at(b->golden, index);
    if (!entry || zf_shape_count(entry->shape) > MOST) {
        snprintf(b->error.text, sizeof b->error.text, "no golden tensor \"%s\"", full);
        return b->error.status = ZF_ERR_FORMAT;
    }
    if (entry->dtype == ZF_F64)
        return zf_safetensors_read(b->golden, index, out, entry->bytes, &b->error);
    if (zf_safetensors_read(b->golden, index, narrow, entry->bytes, &b->error))
        return b->error.status;
    for (int64_t i = 0; i < zf_shape_count(entry->shape); i++) out[i] = narrow[i];
    return ZF_OK;
}

typedef struct rule {
    const char *file; /* "sgd", "adamw", "lamb" or "lion" */
    double hyper[8];  /* as in the golden file */
    bool decay_all;
    double clip; /* NAN: no pass */
    bool no_bias_correction;
} rule;

static zf_status apply(zf_graph *g, zf_tensor lr, const rule *r)
{
    const double *h = r->hyper;
    if (!strcmp(r->file, "sgd"))
        return zf_sgd(g, lr,
                      &(zf_sgd_desc){.momentum = h[0],
                                     .nesterov = h[1] != 0,
                                     .weight_decay = h[2],
                                     .decay_all = r->decay_all});
    if (!strcmp(r->file, "adamw"))
        return zf_adamw(g, lr,
                        &(zf_adamw_desc){.beta1 = h[0],
                                         .beta2 = h[1],
                                         .eps = h[2],
                                         .weight_decay = h[3],
                                         .decay_all = r->decay_all,
                                         .no_bias_correction = r->no_bias_correction});
    if (!strcmp(r->file, "lion"))
        return zf_lion(g, lr,
                       &(zf_lion_desc){.beta1 = h[0],
                                       .beta2 = h[1],
                                       .weight_decay = h[2],
                                       .decay_all = r->decay_all});
    return zf_lamb(g, lr,
                   &(zf_lamb_desc){.beta1 = h[0],
                                   .beta2 = h[1],
                                   .eps = h[2],
                                   .weight_decay = h[3],
                                   .min_coeff = h[4],
                                   .max_coeff = h[5],
                                   .decay_all = r->decay_all,
                                   .no_bias_correction = r->no_bias_correction});
}

/* Records what a program call or the graph says. */
static zf_status note(bench *b, zf_status status)
{
    if (status && !b->error.status) {
        bool of_graph = zf_graph_status(b->graph) != ZF_OK;
        b->error.status = status;
        snprintf(b->error.text, sizeof b->error.text, "%s",
                 of_graph ? zf_graph_error(b->graph) : zf_program_error(b->program));
    }
    return b->error.status;
}

static zf_status put(bench *b, zf_tensor to, const double *x)
{
    static float narrow[MOST];
    bool wide = zf_tensor_dtype(to) == ZF_F64;
    for (int64_t i = 0; i < zf_shape_count(zf_tensor_shape(to)); i++) narrow[i] = (float)x[i];
    return note(b, zf_write(b->program, to, wide ? (const void *)x : narrow, zf_tensor_bytes(to)));
}

static zf_status get(bench *b, zf_tensor from, double *x)
{
    static float narrow[MOST];
    bool wide = zf_tensor_dtype(from) == ZF_F64;
    zf_status status =
        note(b, zf_read(b->program, from, wide ? (void *)x : narrow, zf_tensor_bytes(from)));
    for (int64_t i = 0; i < zf_shape_count(zf_tensor_shape(from)) && !wide; i++) x[i] = narrow[i];
    return status;
}

/* A program whose parameters p have the inputs g as gradients, for the loss is their scalar
 * product. */
static zf_status build(test *t, bench *b, zf_dtype dtype, const rule *r)
{
    zf_tensor loss = ZF_NONE;
    double first[MOST];
    b->graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    if (!b->graph) return b->error.status = ZF_ERR_NOMEM;
    b->lr = zf_input(b->graph, "lr", ZF_F32, ZF_SCALAR);
    for (int k = 0; k < TENSORS; k++) {
        const zf_safetensors_entry *entry;
        char name[16];
        snprintf(name, sizeof name, "p0.%d", k);
        entry = zf_safetensors_at(b->golden, zf_safetensors_find(b->golden, name));
        if (!entry) return b->error.status = ZF_ERR_FORMAT;
        b->p[k] = zf_param(b->graph, name, entry->shape, &(zf_param_desc){.dtype = dtype});
        snprintf(name, sizeof name, "g.%d", k);
        b->g[k] = zf_input(b->graph, name, dtype, entry->shape);
        loss =
            k ? zf_add(loss, zf_sum(zf_mul(b->p[k], b->g[k]))) : zf_sum(zf_mul(b->p[k], b->g[k]));
    }
    if (zf_autograd(b->graph, loss) || (!isnan(r->clip) && zf_clip(b->graph, r->clip)) ||
        apply(b->graph, b->lr, r))
        return note(b, zf_graph_status(b->graph));
    b->cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = 2, .allocator = t->allocator}, &b->error);
    if (!b->cpu) return b->error.status;
    b->program = zf_compile(b->graph, &(zf_compile_desc){.backend = b->cpu});
    if (!b->program) return note(b, zf_graph_status(b->graph));
    for (int k = 0; k < TENSORS && !b->error.status; k++)
        if (!golden(b, "", "p0.", k, first)) put(b, b->p[k], first);
    return b->error.status;
}

/* Step s with the golden gradients times `factor`. */
static zf_status step(bench *b, int s, double lr, double factor)
{
    double g[MOST];
    float rate = (float)lr;
    for (int k = 0; k < TENSORS; k++) {
        int64_t count = zf_shape_count(zf_tensor_shape(b->g[k]));
        if (golden(b, "", "g.", k, g)) return b->error.status;
        for (int64_t i = s * count; i < (s + 1) * count; i++) g[i] *= factor;
        if (put(b, b->g[k], g + s * count)) return b->error.status;
    }
    return note(b, zf_write(b->program, b->lr, &rate, sizeof rate)) ? b->error.status
                                                                    : note(b, zf_step(b->program));
}

/* The largest |x - y| over the largest |y|, or over 1 where that is less; NaN counts as
 * infinite. */
static double difference(const double *x, const double *y, int64_t count)
{
    double most = 0, scale = 1;
    for (int64_t i = 0; i < count; i++) {
        if (fabs(y[i]) > scale) scale = fabs(y[i]);
        if (!(fabs(x[i] - y[i]) <= most))
            most = isnan(x[i]) || isnan(y[i]) ? INFINITY : fabs(x[i] - y[i]);
    }
    return most / scale;
}

/* -------------------------------------------------------------------- published numbers */

/* Runs `with` on the golden steps of `name` and compares every tensor, of rank >= 2 with `name` and
 * of rank 1 with `vector_name`, after every step. */
static zf_status follow(test *t, bench *b, zf_dtype dtype, const rule *with, const char *name,
                        const char *vector_name)
{
    /* Eight roundings of the largest element, in ten steps. */
    double bound = dtype == ZF_F64 ? 0x1p-50 : 0x1p-21, lr[MOST], got[MOST], want[MOST];
    if (build(t, b, dtype, with) || golden(b, name, ".lr", -1, lr)) return b->error.status;
    for (int s = 0; s < STEPS; s++) {
        if (step(b, s, lr[s], 1)) return b->error.status;
        for (int k = 0; k < TENSORS; k++) {
            int64_t count = zf_shape_count(zf_tensor_shape(b->p[k]));
            bool vector = zf_tensor_shape(b->p[k]).rank < 2;
            double error;
            if (golden(b, vector ? vector_name : name, ".p.", k, want) || get(b, b->p[k], got))
                return b->error.status;
            error = difference(got, want + s * count, count);
            if (!(error <= bound)) {
                char text[128];
                snprintf(text, sizeof text, "%s %s %s: tensor %d is off by %.3g after step %d",
                         with->file, name, zf_dtype_name(dtype), k, error, s + 1);
                test_fail(t, __FILE__, __LINE__, "follow", text);
                return ZF_OK;
            }
        }
    }
    close_program(b);
    return ZF_OK;
}

static void check_published(test *t, const char *file, const char *const *names, int count)
{
    static bench b;
    OK(t, open_golden(t, &b, file), b.error.text);
    for (int n = 0; n < count; n++)
        for (int wide = 0; wide < 2; wide++) {
            rule with = {.file = file, .decay_all = true, .clip = n % 2 ? 1e30 : (double)NAN};
            double hyper[MOST];
            OK(t, golden(&b, names[n], ".hyper", -1, hyper), b.error.text);
            memcpy(with.hyper, hyper, sizeof with.hyper);
            OK(t, follow(t, &b, wide ? ZF_F64 : ZF_F32, &with, names[n], names[n]), b.error.text);
        }
}

TEST(optim_sgd_is_pytorchs)
{
    check_published(
        t, "sgd",
        (const char *[]){"plain", "decay", "momentum", "momentum_decay", "nesterov_decay"}, 5);
}

TEST(optim_adamw_is_pytorchs)
{
    check_published(t, "adamw", (const char *[]){"default", "no_decay", "large_eps"}, 3);
}

TEST(optim_lamb_is_timms)
{
    check_published(t, "lamb", (const char *[]){"unbounded", "default", "no_decay", "narrow"}, 4);
}

/* A tensor of AdamW or LAMB with moments as they are, in double. */
typedef struct plain_moments {
    double p[MOST], m[MOST], v[MOST];
} plain_moments;

static void step_plain_moments(plain_moments *x, const rule *r, const double *g, int64_t count,
                               double lr)
{
    const double *h = r->hyper;
    double u[MOST], of_p = 0, of_u = 0, ratio = 1;
    for (int64_t i = 0; i < count; i++) {
        x->m[i] = h[0] * x->m[i] + (1 - h[0]) * g[i];
        x->v[i] = h[1] * x->v[i] + (1 - h[1]) * g[i] * g[i];
        u[i] = x->m[i] / (sqrt(x->v[i]) + h[2]) + h[3] * x->p[i];
        of_p += x->p[i] * x->p[i], of_u += u[i] * u[i];
    }
    if (!strcmp(r->file, "lamb") && of_p > 0 && of_u > 0)
        ratio = fmin(fmax(sqrt(of_p / of_u), h[4]), h[5]);
    for (int64_t i = 0; i < count; i++) x->p[i] -= lr * ratio * u[i];
}

/* Without bias correction the moments of the first steps are small, and so is their quotient in
 * another way than with it; LAMB's ratio is within its bounds. */
static void check_without_correction(test *t, const char *file, const char *name)
{
    static bench b;
    static plain_moments all[TENSORS];
    rule with = {.file = file, .decay_all = true, .clip = NAN, .no_bias_correction = true};
    double hyper[MOST], lr[MOST], g[MOST], got[MOST];
    memset(all, 0, sizeof all);
    OK(t, open_golden(t, &b, file), b.error.text);
    OK(t, golden(&b, name, ".hyper", -1, hyper), b.error.text);
    OK(t, golden(&b, name, ".lr", -1, lr), b.error.text);
    memcpy(with.hyper, hyper, sizeof with.hyper);
    OK(t, build(t, &b, ZF_F32, &with), b.error.text);
    for (int k = 0; k < TENSORS; k++) OK(t, golden(&b, "", "p0.", k, all[k].p), b.error.text);
    for (int s = 0; s < STEPS; s++) {
        OK(t, step(&b, s, lr[s], 1), b.error.text);
        for (int k = 0; k < TENSORS; k++) {
            const int64_t count = zf_shape_count(zf_tensor_shape(b.p[k]));
            OK(t, golden(&b, "", "g.", k, g), b.error.text);
            step_plain_moments(&all[k], &with, g + s * count, count, lr[s]);
            OK(t, get(&b, b.p[k], got), b.error.text);
            CHECK_NEAR(t, difference(got, all[k].p, count), 0, 0x1p-21);
        }
    }
}

TEST(optim_adamw_without_bias_correction) { check_without_correction(t, "adamw", "default"); }
TEST(optim_lamb_without_bias_correction) { check_without_correction(t, "lamb", "narrow"); }

TEST(optim_lion_is_timms)
{
    check_published(t, "lion", (const char *[]){"default", "no_decay", "equal_betas"}, 3);
}

/* Weight decay does not change tensors of rank 1: they follow the numbers without it. */
TEST(optim_decay_spares_vectors)
{
    static bench b;
    rule with = {.file = "adamw", .clip = (double)NAN};
    double hyper[MOST];
    OK(t, open_golden(t, &b, "adamw"), b.error.text);
    OK(t, golden(&b, "default", ".hyper", -1, hyper), b.error.text);
    memcpy(with.hyper, hyper, sizeof with.hyper);
    OK(t, follow(t, &b, ZF_F64, &with, "default", "no_decay"), b.error.text);
}

/* ----------------------------------------------------------------------------- clipping */

/* Clipped steps are those of gradients that were scaled beforehand, and grad_norm is the norm
 * before. */
TEST(optim_clip_scales_gradients)
{
    static bench clipped, scaled;
    static const double limit = 3;
    const rule plain = {.file = "sgd", .hyper = {0.9, 0, 0.1}, .clip = (double)NAN};
    rule with = plain;
    bool small = false, large = false;
    with.clip = limit;
    OK(t, open_golden(t, &clipped, "sgd"), clipped.error.text);
    OK(t, open_golden(t, &scaled, "sgd"), scaled.error.text);
    OK(t, build(t, &clipped, ZF_F64, &with), clipped.error.text);
    OK(t, build(t, &scaled, ZF_F64, &plain), scaled.error.text);
    for (int s = 0; s < STEPS; s++) {
        double squares = 0, norm, got, want, lr = 0.125, before = s % 2 ? 1 : 0.125, x[MOST],
               y[MOST];
        for (int k = 0; k < TENSORS; k++) {
            int64_t count = zf_shape_count(zf_tensor_shape(clipped.g[k]));
            OK(t, golden(&clipped, "", "g.", k, x), clipped.error.text);
            for (int64_t i = s * count; i < (s + 1) * count; i++)
                squares += before * x[i] * before * x[i];
        }
        want = sqrt(squares);
        norm = (want + 1e-6) / limit;
        *(norm > 1 ? &large : &small) = true;
        OK(t, step(&clipped, s, lr, before), clipped.error.text);
        OK(t, step(&scaled, s, lr, before / (norm > 1 ? norm : 1)), scaled.error.text);
        OK(t, get(&clipped, zf_graph_find(clipped.graph, "grad_norm"), &got), clipped.error.text);
        CHECK_NEAR(t, got, want, 1e-14 * want);
        for (int k = 0; k < TENSORS; k++) {
            OK(t, get(&clipped, clipped.p[k], x), clipped.error.text);
            OK(t, get(&scaled, scaled.p[k], y), scaled.error.text);
            CHECK_NEAR(t, difference(x, y, zf_shape_count(zf_tensor_shape(clipped.p[k]))), 0,
                       1e-14);
        }
    }
    CHECK(t, small && large); /* both sides of the limit were met */
}

/* -------------------------------------------------------------------------------- misuse */

#define OPERANDS                                                                                   \
    "%1 = param \"p\" : f32[2,3]\n%2 = input \"g\" : f32[2,3]\n%3 = input \"lr\" : f32[]\n"        \
    "%4 = state \"m\" : f32[2,3]\n%5 = state \"v\" : f32[2,3]\n%6 = state \"t\" : i64[]\n"         \
    "%7 = input \"w\" : f32[3]\n%8 = state \"d\" : f64[2,3]\nupdate:\n"

/* An operator as IR, and what it says, up to the operands. */
static const char *const mistakes[][2] = {
    {"sgd %2, %2, %3",
     "operand 0 must be a param, a bucket or a shard of one, not the result of input"},
    {"sgd %1, %7, %3", "operand 1, the gradient, must be f32[2,3]"},
    {"sgd %1, %8, %3", "operand 1, the gradient, must be f32[2,3]"},
    {"sgd %1, %2, %7", "operand 2, the learning rate, must be one float"},
    {"sgd %1, %2, %6", "operand 2, the learning rate, must be one float"},
    {"sgd %1, %2, %3, %2 {momentum=0.9}",
     "operand 3, the momentum buffer, must be a state f32[2,3]"},
    {"sgd %1, %2, %3 {momentum=0.9}", "momentum = 0.9 needs a buffer, a state, as operand 3"},
    {"sgd %1, %2, %3 {nesterov=true}", "nesterov needs a momentum above 0"},
    {"sgd %1, %2, %3, %4 {momentum=-1}", "momentum = -1 must be finite and not negative"},
    {"sgd %1, %2, %3 {weight_decay=inf}", "weight_decay = inf must be finite and not negative"},
    {"adamw %1, %2, %4, %8, %3, %6", "operand 3, the variance, must be f32[2,3]"},
    {"adamw %1, %2, %4, %4, %3, %6", "operands 2 and 3, mean and variance, must be two states"},
    {"adamw %1, %2, %4, %5, %3, %4", "operand 5, the step, must be a state i64[]"},
    {"adamw %1, %2, %4, %5, %7, %6", "operand 4, the learning rate, must be one float"},
    {"adamw %1, %2, %4, %5, %3, %6 {beta1=1}", "beta1 = 1 must be at least 0 and below 1"},
    {"adamw %1, %2, %4, %5, %3, %6 {beta2=nan}", "beta2 = nan must be at least 0 and below 1"},
    {"adamw %1, %2, %4, %5, %3, %6 {eps=-1}", "eps = -1 must be finite and not negative"},
    {"%9 = lamb_update %1, %2, %4, %5, %6 {weight_decay=-0.5} : f32[2,3]",
     "weight_decay = -0.5 must be finite and not negative"},
    {"lion %1, %2, %7, %3", "operand 2, the mean, must be a state f32[2,3]"},
    {"lion %1, %2, %4, %7", "operand 3, the learning rate, must be one float"},
    {"lion %1, %2, %4, %3 {beta1=1}", "beta1 = 1 must be at least 0 and below 1"},
    {"lion %1, %2, %4, %3 {beta2=-1}", "beta2 = -1 must be at least 0 and below 1"},
    {"lion %1, %2, %4, %3 {weight_decay=nan}", "weight_decay = nan must be finite and not negative"},
    {"lion %1, %2, %4, %3, %3, %3", "6 operands without scaled=true"},
    {"lion %1, %2, %4, %3 {scaled=true}", "scaled=true needs one more operand, the scale"},
    {"sgd %1, %2, %3 {lazy=true}", "lazy=true needs one more operand, the rows"},
    {"sgd %1, %2, %3, %3 {lazy=true}",
     "operand 3 must be the numbers of rows, i32 or i64 [n], and operand 1 n rows of the table, of "
     "its dtype"},
    {"sgd %1, %2, %3, %3 {piece=[0,1024] lazy=true}",
     "lazy=true is for one table, and no piece of a bucket"},
    {"lamb_apply %1, %8, %3, %3, %3 {most=1}", "operand 1, the update, must be f32[2,3]"},
    {"lamb_apply %1, %2, %3, %3, %7 {most=1}", "operand 4, the update's norm, must be one float"},
    {"lamb_apply %1, %2, %3, %3, %3 {least=2 most=1}",
     "the ratio's bounds, 2 and 1, must be 0 <= least <= most"},
};

TEST(optim_mistakes_in_a_graph)
{
    for (size_t n = 0; n < sizeof mistakes / sizeof mistakes[0]; n++) {
        char text[1024];
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        snprintf(text, sizeof text, "%s%s\n", OPERANDS, mistakes[n][0]);
        g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_graph_free(g);
        CHECK(t, !g);
        if (t->refused && error.status == ZF_ERR_NOMEM) return;
        if (!strstr(error.text, mistakes[n][1])) CHECK_TEXT(t, error.text, mistakes[n][1]);
    }
}

/* An update whose step was not advanced is an error when it runs. */
TEST(optim_needs_an_advanced_step)
{
    static bench b;
    static const float zeros[6];
    static const char text[] =
        OPERANDS "adamw %1, %2, %4, %5, %3, %6 {beta1=0.9 beta2=0.999 eps=1e-08}\n";
    b = (bench){.golden = NULL};
    test_defer(t, close_bench, &b);
    b.graph = zf_graph_parse(text, sizeof text - 1, &(zf_graph_desc){.allocator = t->allocator},
                             &b.error);
    NEED(t, b.graph, &b.error);
    b.program = zf_compile(b.graph, NULL);
    if (!b.program) OK(t, zf_graph_status(b.graph), zf_graph_error(b.graph));
    OK(t, zf_write(b.program, zf_graph_find(b.graph, "g"), zeros, sizeof zeros), "g");
    OK(t, zf_write(b.program, zf_graph_find(b.graph, "lr"), zeros, sizeof *zeros), "lr");
    CHECK(t, zf_step(b.program) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_program_step(b.program) == 0);
    CHECK_TEXT(t, zf_program_error(b.program),
               "adamw: the step, operand 5, is 0; it counts updates from 1, so it must be "
               "advanced before");
}

/* Passes out of order and out of range. */
TEST(optim_mistakes_in_passes)
{
    static const struct {
        rule with;
        int calls;  /* of the optimizer pass */
        bool early; /* before zf_autograd */
        const char *expected;
    } some[] = {
        {{"sgd", {0.9, 0, 0}, false, NAN, false}, 1, true, "zf_sgd: needs zf_autograd before it"},
        {{"sgd", {0, 1, 0}, false, NAN, false}, 1, false, "zf_sgd: nesterov requires momentum"},
        {{"sgd", {1, 0, 0}, false, NAN, false}, 1, false, "zf_sgd: momentum is 1; it must be a number from 0 to below 1"},
        {{"sgd", {0, 0, -1}, false, NAN, false},
         1,
         false,
         "zf_sgd: weight_decay is -1; it must be a number of 0 or more"},
        {{"adamw", {1, 0, 0, 0}, false, NAN, false},
         1,
         false,
         "zf_adamw: beta1 is 1; it must be a number from 0 to below 1"},
        {{"adamw", {0, 0, 0, 0}, false, NAN, false},
         2,
         false,
         "zf_adamw: an optimizer (zf_adamw or another) has been run already"},
        {{"lamb", {0, 0, 0, 0, 2, 1}, false, NAN, false},
         1,
         false,
         "zf_lamb: min_coeff is 2, above max_coeff, 1"},
        {{"adamw", {0}, false, 1, false}, 1, true, "zf_clip: needs zf_autograd before it"},
    };
    for (size_t n = 0; n < sizeof some / sizeof some[0]; n++) {
        static bench b;
        zf_tensor p, lr;
        b = (bench){.golden = NULL};
        if (n == 0) test_defer(t, close_bench, &b);
        b.graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        NEED(t, b.graph, NULL);
        p = zf_param(b.graph, "p", ZF_SHAPE(2), NULL);
        lr = zf_input(b.graph, "lr", ZF_F32, ZF_SCALAR);
        if (!some[n].early) zf_autograd(b.graph, zf_sum(p));
        if (!isnan(some[n].with.clip)) zf_clip(b.graph, some[n].with.clip);
        for (int k = 0; k < some[n].calls; k++) apply(b.graph, lr, &some[n].with);
        if (t->refused && zf_graph_status(b.graph) == ZF_ERR_NOMEM) return;
        CHECK_TEXT(t, zf_graph_error(b.graph), some[n].expected);
        close_bench(&b);
    }
}

/* ------------------------------------------------------------------------ master weights */

enum {
    MASTER_ROWS = 40,
    MASTER_WIDTH = 50,
    MASTER_COUNT = MASTER_ROWS * MASTER_WIDTH,
    MASTER_RANKS = 3
};

/* How they are updated, and the state of their master weights. */
typedef enum update_rule {
    BY_SGD,
    BY_MOMENTUM,
    BY_ADAMW,
    BY_LAMB,
    BY_LION,
    RULES
} update_rule;

static const zf_optimizer optimizers[RULES] = {ZF_SGD, ZF_SGD, ZF_ADAMW, ZF_LAMB, ZF_LION};
static const char *const master_of[RULES] = {"sgd.master", "sgd.master", "adamw.master",
                                             "lamb.master", "lion.master"};

/* Ranks of one plan with two parameters of `dtype`, whose gradients are inputs. */
typedef struct masters {
    /* Powers of two that first weights and gradients are multiplied by: to be set before. */
    int of_weights, of_gradients;
    int32_t world;
    zf_backend *cpu;
    zf_comm comms[MASTER_RANKS];
    zf_graph *graphs[MASTER_RANKS];
    zf_program *programs[MASTER_RANKS];
    zf_error error;
} masters;

static void close_masters(void *object)
{
    masters *m = object;
    for (int32_t r = 0; r < MASTER_RANKS; r++) zf_program_free(m->programs[r]);
    for (int32_t r = 0; r < MASTER_RANKS; r++) zf_graph_free(m->graphs[r]);
    zf_backend_free(m->cpu);
    *m = (masters){.world = 0};
}

static zf_graph *masters_graph(test *t, zf_dtype dtype, update_rule by, const zf_zero_desc *zero,
                               int of_weights)
{
    zf_param_desc init = {.dtype = dtype, .init = ZF_NORMAL, .std = ldexp(0.5, of_weights)};
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR), loss = ZF_NONE;
    for (int k = 0; k < 2; k++) {
        zf_shape shape = k ? ZF_SHAPE(MASTER_WIDTH) : ZF_SHAPE(MASTER_ROWS, MASTER_WIDTH);
        zf_tensor p = zf_param(g, k ? "b" : "w", shape, &init),
                  x = zf_input(g, k ? "x.b" : "x.w", dtype, shape), sum = zf_sum(zf_mul(p, x));
        loss = k ? zf_add(loss, sum) : sum;
    }
    zf_training training = {.loss = loss,
                            .lr = lr,
                            .fuse.without = "all",
                            .optimizer = optimizers[by],
                            .sgd.momentum = by == BY_MOMENTUM ? 0.9 : 0,
                            .zero = zero ? *zero : (zf_zero_desc){0}};
    test_set(&training, "weight-decay", 0.1);
    zf_passes(g, &training);
    return g;
}

static zf_status open_masters(test *t, masters *m, zf_dtype dtype, update_rule by, bool reference,
                              int32_t stage, int32_t world)
{
    m->world = world;
    test_defer(t, close_masters, m);
    m->cpu = zf_cpu_backend(&(zf_cpu_desc){.reference = reference, .allocator = t->allocator},
                            &m->error);
    if (!m->cpu) return m->error.status;
    for (int32_t r = 0; r < world; r++) {
        zf_graph *g = m->graphs[r] =
            masters_graph(t, dtype, by,
                          &(zf_zero_desc){.stage = stage, .world = world, .bucket_bytes = 1},
                          m->of_weights);
        if (!g) return m->error.status = ZF_ERR_NOMEM;
        m->comms[r] = (zf_comm){.rank = r, .world = world};
        m->programs[r] = zf_compile(g, &(zf_compile_desc){.backend = m->cpu,
                                                          .seed = 5,
                                                          .comm = world > 1 ? &m->comms[r] : NULL});
        if (m->programs[r]) continue;
        snprintf(m->error.text, sizeof m->error.text, "%s", zf_graph_error(g));
        return m->error.status = zf_graph_status(g);
    }
    return ZF_OK;
}

/* Element i of a gradient: bf16 can hold it. */
static float masters_gradient(const masters *m, int i, int step, int32_t rank)
{
    return ldexpf((float)((i * 37 + step * 11 + rank * 5) % 61 - 30) / 32, m->of_gradients);
}

/* One step. */
static zf_status step_masters(masters *m, int step)
{
    static float x[MASTER_COUNT];
    static char narrow[MASTER_COUNT * 4];
    const float lr = 0.01f;
    for (int32_t r = 0; r < m->world && !m->error.status; r++)
        for (int k = 0; k < 2 && !m->error.status; k++) {
            zf_tensor to = zf_graph_find(m->graphs[r], k ? "x.b" : "x.w");
            int count = k ? MASTER_WIDTH : MASTER_COUNT;
            for (int i = 0; i < count; i++) x[i] = masters_gradient(m, i, step, r);
            zf_convert(narrow, zf_tensor_dtype(to), x, ZF_F32, (size_t)count);
            m->error.status = zf_write(m->programs[r], to, narrow, zf_tensor_bytes(to));
            if (!m->error.status)
                m->error.status =
                    zf_write(m->programs[r], zf_graph_find(m->graphs[r], "lr"), &lr, sizeof lr);
        }
    if (m->error.status) return m->error.status;
    return zf_lockstep_step(&(zf_lockstep_desc){m->programs, m->world, 0}, &m->error);
}

static zf_status read_masters(masters *m, const char *name, void *data)
{
    return zf_lockstep_read(&(zf_lockstep_desc){m->programs, m->world, 0}, name, data,
                            zf_tensor_bytes(zf_graph_find(m->graphs[0], name)), &m->error);
}

/* The master weights of a parameter of 16 bits are the parameter of f32, bit for bit; the parameter
 * is they, rounded. */
static void check_masters(test *t, zf_dtype dtype, update_rule by, bool reference)
{
    static masters narrow, wide;
    static float want[MASTER_COUNT], got[MASTER_COUNT];
    static uint16_t rounded[MASTER_COUNT], parameter[MASTER_COUNT];
    OK(t, open_masters(t, &wide, ZF_F32, by, reference, 0, 1), wide.error.text);
    OK(t, open_masters(t, &narrow, dtype, by, reference, 0, 1), narrow.error.text);
    for (int step = 0; step < 4; step++) {
        for (int k = 0; k < 2; k++) {
            size_t count = k ? MASTER_WIDTH : MASTER_COUNT;
            char master[32];
            snprintf(master, sizeof master, "%s/%s", master_of[by], k ? "b" : "w");
            OK(t, read_masters(&wide, k ? "b" : "w", want), wide.error.text);
            OK(t, read_masters(&narrow, master, got), narrow.error.text);
            OK(t, read_masters(&narrow, k ? "b" : "w", parameter), narrow.error.text);
            zf_convert(rounded, dtype, want, ZF_F32, count);
            CHECK(t, !memcmp(got, want, count * sizeof *want));
            CHECK(t, !memcmp(parameter, rounded, count * sizeof *rounded));
        }
        OK(t, step_masters(&wide, step), wide.error.text);
        OK(t, step_masters(&narrow, step), narrow.error.text);
    }
    close_masters(&narrow), close_masters(&wide);
    t->deferred_count -= 2;
}

TEST(optim_master_weights_are_those_of_f32)
{
    for (int by = 0; by < RULES && !t->failed && !t->refused; by++) {
        check_masters(t, ZF_BF16, (update_rule)by, true);
        if (!t->failed && !t->refused) check_masters(t, ZF_BF16, (update_rule)by, false);
        if (!t->failed && !t->refused) check_masters(t, ZF_F16, (update_rule)by, false);
    }
}

/* Whatever the stage, the master weights and parameters have the same bits. */
TEST_ONCE(optim_master_weights_are_cut)
{
    static masters m;
    static float first[MASTER_COUNT], master[MASTER_COUNT];
    static uint16_t parameter[MASTER_COUNT], rounded[MASTER_COUNT];
    for (int way = 0; way < 2 * RULES; way++)
        for (int32_t stage = 0; stage < 4; stage++) {
            update_rule by = (update_rule)(way / 2);
            char name[32];
            snprintf(name, sizeof name, "%s/w", master_of[by]);
            OK(t, open_masters(t, &m, ZF_BF16, by, way % 2, stage, MASTER_RANKS), m.error.text);
            for (int step = 0; step < 3; step++) OK(t, step_masters(&m, step), m.error.text);
            OK(t, read_masters(&m, name, stage ? master : first), m.error.text);
            OK(t, read_masters(&m, "w", parameter), m.error.text);
            CHECK(t, !stage || !memcmp(first, master, sizeof first));
            zf_convert(rounded, ZF_BF16, first, ZF_F32, MASTER_COUNT);
            CHECK(t, !memcmp(parameter, rounded, sizeof rounded));
            close_masters(&m);
            t->deferred_count--;
        }
}

/* After a write to a parameter, its master weights start from the written values. */
TEST(optim_a_written_parameter_has_new_master_weights)
{
    static masters m;
    static float x[MASTER_COUNT], got[MASTER_COUNT];
    static uint16_t narrow[MASTER_COUNT];
    OK(t, open_masters(t, &m, ZF_BF16, BY_ADAMW, true, 3, 1), m.error.text);
    for (int i = 0; i < MASTER_COUNT; i++) x[i] = (float)(i % 256);
    zf_convert(narrow, ZF_BF16, x, ZF_F32, MASTER_COUNT);
    OK(t, zf_write(m.programs[0], zf_graph_find(m.graphs[0], "w"), narrow, sizeof narrow),
       zf_program_error(m.programs[0]));
    OK(t, read_masters(&m, "adamw.master/w", got), m.error.text);
    CHECK(t, !memcmp(got, x, sizeof x));
}

TEST(optim_master_weights_misused)
{
    static const struct {
        const char *text, *error;
    } rows[] = {
        {"%1 = param \"w\" : f32[4]\n%2 = state %1 \"s\" : f32[5]\n",
         "it can start as a param of its shape does"},
        {"%1 = param \"w\" : f32[4]\n%2 = state %1 \"s\" : i32[4]\n", "and must be float then"},
        {"%1 = param \"w\" : f32[4]\n%2 = input \"g\" : f32[4]\n%3 = state \"m\" : f32[4]\n"
         "%4 = state \"v\" : f32[4]\n%5 = input \"lr\" : f32[]\n%6 = state \"t\" : i64[]\n"
         "%7 = state %1 \"x\" : f32[4]\nupdate:\nadamw %1, %2, %3, %4, %5, %6, %7\n",
         "operand 6: a parameter with master weights is bf16 or f16, not f32"},
        {"%1 = param \"w\" : bf16[4]\n%2 = input \"g\" : bf16[4]\n%3 = state \"m\" : f32[4]\n"
         "%4 = state \"v\" : f32[4]\n%5 = input \"lr\" : f32[]\n%6 = state \"t\" : i64[]\n"
         "update:\nadamw %1, %2, %3, %4, %5, %6, %3\n",
         "operands 2 and 6, the master weights, must be two states"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_parse(rows[k].text, strlen(rows[k].text),
                                     &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_graph_free(g);
        CHECK(t, !g);
        GIVES(t, error.status, ZF_ERR_PARSE, error.text);
        CHECK(t, strstr(error.text, rows[k].error));
    }
}

/* ------------------------------------------------------------------------- LAMB's norms */

/* Weights and gradients whose squares vanish or overflow in f32, or those of the updates do; of
 * gradients of 2^-103 updates are 2^-83. */
static const int lamb_scales[][2] = {{0, 0},       {-83, -103}, {-83, 0}, {0, -103},
                                     {-120, -110}, {-70, -83},  {80, 0},  {110, -10}};

/* The first step in double. */
static void lamb_in_double(const masters *m, const float *p, int count, double decay, double *out)
{
    double of_p = 0, of_u = 0, ratio;
    for (int i = 0; i < count; i++) {
        double g = masters_gradient(m, i, 0, 0), u = g / (fabs(g) + 1e-6) + decay * p[i];
        of_p += (double)p[i] * p[i], of_u += u * u;
        out[i] = u;
    }
    ratio = sqrt(of_p) / sqrt(of_u);
    ratio = ratio < 0.01 ? 0.01 : ratio > 10 ? 10 : ratio;
    for (int i = 0; i < count; i++) out[i] = p[i] - (double)0.01f * ratio * out[i];
}

/* The change of a parameter is LAMB's, whatever the scale of weights and updates. */
TEST(optim_lamb_knows_norms_whose_squares_vanish)
{
    static masters m;
    static float first[MASTER_COUNT], got[MASTER_COUNT];
    static double want[MASTER_COUNT];
    for (int way = 0; way < 2 * (int)(sizeof lamb_scales / sizeof lamb_scales[0]); way++) {
        m.of_weights = lamb_scales[way / 2][0], m.of_gradients = lamb_scales[way / 2][1];
        OK(t, open_masters(t, &m, ZF_F32, BY_LAMB, way % 2, 0, 1), m.error.text);
        OK(t, read_masters(&m, "w", first), m.error.text);
        OK(t, step_masters(&m, 0), m.error.text);
        OK(t, read_masters(&m, "w", got), m.error.text);
        lamb_in_double(&m, first, MASTER_COUNT, 0.1, want);
        for (int i = 0; i < MASTER_COUNT; i++) {
            double change = fabs(want[i] - first[i]);
            CHECK_NEAR(t, got[i], want[i], 0x1p-20 * change + 0x1p-24 * fabs(want[i]) + 0x1p-149);
        }
        close_masters(&m);
        t->deferred_count--;
    }
}

/* Norms of a bucket's parameters are those of the parameters, to the last bit. */
TEST_ONCE(optim_lamb_is_cut_at_any_scale)
{
    static masters m;
    static float first[MASTER_COUNT], got[MASTER_COUNT];
    for (int way = 0; way < (int)(sizeof lamb_scales / sizeof lamb_scales[0]); way++)
        for (int32_t stage = 0; stage < 4; stage++) {
            m.of_weights = lamb_scales[way][0], m.of_gradients = lamb_scales[way][1];
            OK(t, open_masters(t, &m, ZF_F32, BY_LAMB, false, stage, MASTER_RANKS), m.error.text);
            for (int step = 0; step < 3; step++) OK(t, step_masters(&m, step), m.error.text);
            OK(t, read_masters(&m, "w", stage ? got : first), m.error.text);
            CHECK(t, !stage || !memcmp(first, got, sizeof first));
            close_masters(&m);
            t->deferred_count--;
        }
}
