/* 1-bit optimizers: compression to signs against its definition, whole runs against references in
 * f64, equal bits of stages, buckets, threads, prefetch and after checkpoints, bytes, and what is
 * refused. */
#include "../../examples/bert/model.h"
#include "../../examples/frame/model/session.h"
#include "../support/test.h"

#include <pthread.h>

enum { RANKS = 4, MOST_VARIANTS = 4, ROWS = 3, IN = 60, OUT = 40, WEIGHTS = IN * OUT,
       PARAMS = WEIGHTS + OUT, BLOCK = 1024 };

typedef struct setup {
    zf_optimizer optimizer;
    int32_t world, stage;
    int64_t micro_batches, freeze_step;
    size_t bucket_bytes;
    zf_dtype dtype;
    bool prefetch, threads;
    double clip;
    zf_zero_one_adam_desc zero_one;
    zf_onebit_lamb_desc lamb;
    double limit; /* of all three */
    int32_t first; /* the variant that is compiled before the others, and makes the store */
} setup;

typedef struct team team;

typedef struct member {
    team *team;
    zf_graph *graphs[MOST_VARIANTS];
    zf_program *programs[MOST_VARIANTS];
    pthread_t thread;
    zf_status status;
} member;

struct team {
    setup s;
    zf_training training;
    zf_local *group;
    zf_comm comms[RANKS];
    member members[RANKS];
    int64_t until; /* steps that threads run to */
};

static team teams[2];

static void team_free(void *object)
{
    team *m = object;
    for (int r = 0; r < RANKS; r++)
        for (int v = 0; v < MOST_VARIANTS; v++) {
            zf_program_free(m->members[r].programs[v]);
            zf_graph_free(m->members[r].graphs[v]);
        }
    zf_local_free(m->group);
    *m = (team){.group = NULL};
}

/* A layer and the mean of its squared errors. Parameters are not declared in the order of their
 * use. */
static zf_tensor build(zf_graph *g)
{
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.2};
    zf_tensor b = zf_param(g, "layer.1.b", ZF_SHAPE(OUT), NULL);
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, IN)),
              y = zf_input(g, "y", ZF_F32, ZF_SHAPE(ROWS, OUT)),
              weight = zf_input(g, "weight", ZF_F32, ZF_SCALAR), h;
    h = zf_matmul(x, zf_param(g, "layer.0.w", ZF_SHAPE(IN, OUT), &normal));
    h = zf_sub(zf_add(h, b), y);
    return zf_mul(zf_sum(zf_mul(h, h)), weight);
}

static zf_training training_of(const setup *s)
{
    zf_training t = {.optimizer = s->optimizer,
                     .precision.dtype = s->dtype,
                     .clip = s->clip,
                     .zero = {.stage = s->stage,
                              .world = s->world,
                              .micro_batches = s->micro_batches,
                              .bucket_bytes = s->bucket_bytes}};
    if (s->optimizer == ZF_ZERO_ONE_ADAM) t.zero_one_adam = s->zero_one;
    else if (s->optimizer == ZF_ONEBIT_LAMB) t.onebit_lamb = s->lamb;
    if (s->optimizer != ZF_ZERO_ONE_ADAM) test_set(&t, "weight-decay", 0.1);
    if (s->limit != 0 && s->optimizer >= ZF_ONEBIT_ADAM) test_set(&t, "limit", s->limit);
    if (s->freeze_step && s->optimizer != ZF_ZERO_ONE_ADAM && s->optimizer >= ZF_ONEBIT_ADAM)
        test_set(&t, "freeze-step", (double)s->freeze_step);
    if (s->prefetch) t.prefetch.bytes = 1 << 20;
    return t;
}

static bool team_new(test *t, team *m, const setup *s)
{
    zf_error error = {ZF_OK, ""};
    team_free(m);
    m->s = *s;
    m->training = training_of(s);
    if (s->threads)
        m->group =
            zf_local_new(&(zf_local_desc){.world = s->world, .deadline_seconds = 30}, &error);
    for (int32_t r = 0; r < s->world; r++) {
        member *k = &m->members[r];
        zf_training d = m->training;
        m->comms[r] = (zf_comm){.rank = r, .world = s->world};
        k->team = m;
        d.loss = (zf_tensor){NULL, 1};
        for (int32_t n = 0, count = zf_variant_count(&d); n < count; n++) {
            const int32_t v = (s->first + n) % count;
            zf_graph *g = k->graphs[v] = zf_graph_new(NULL);
            d.variant = v;
            d.loss = build(g);
            d.zero.store = n ? zf_program_store(k->programs[s->first]) : NULL;
            zf_passes(g, &d);
            k->programs[v] =
                zf_compile(g, &(zf_compile_desc){.store = (zf_store *)(uintptr_t)d.zero.store,
                                                 .seed = n ? 0 : 3,
                                                 .verify = true,
                                                 .comm = s->threads ? zf_local_comm(m->group, r)
                                                                    : &m->comms[r]});
            if (k->programs[v]) continue;
            test_fail(t, __FILE__, __LINE__, "zf_compile", zf_graph_error(g));
            return false;
        }
    }
    m->training.loss = (zf_tensor){NULL, 1};
    return true;
}

static int64_t steps_done(const team *m)
{
    return zf_store_step(zf_program_store(m->members[0].programs[0]));
}

/* The variant of the next step. */
static int32_t next_variant(const team *m, const member *k)
{
    return zf_variant_at(&m->training,
                         zf_store_step(zf_program_store(k->programs[0])) + 1);
}

/* A number in [-1, 1) of the step, the part of its batch, and an index. */
static float number(int64_t step, int64_t slot, int64_t index)
{
    uint64_t x = (uint64_t)(step * 1000003 + slot * 7919 + index + 1) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 32;
    return (float)(x >> 40) * 0x1p-23f - 1;
}

static double rate(int64_t step) { return 0.01 / (double)(1 + step % 3); }

/* One feature is always 0: its weights never have a gradient. */
static void batch_of(int64_t step, int64_t slot, float *x, float *y)
{
    for (int i = 0; i < ROWS * IN; i++) x[i] = i % IN == 7 ? 0 : number(step, slot, i);
    for (int i = 0; i < ROWS * OUT; i++) y[i] = number(step, slot, 100000 + i);
}

static float weight_of(const setup *s)
{
    return 1 / (float)(ROWS * OUT * s->world * s->micro_batches);
}

static zf_status feed(const team *m, const member *k, int32_t variant, int64_t micro)
{
    const int32_t rank = (int32_t)(k - m->members);
    zf_program *p = k->programs[variant];
    zf_graph *g = k->graphs[variant];
    const int64_t step = zf_store_step(zf_program_store(p));
    float x[ROWS * IN], y[ROWS * OUT], lr = (float)rate(step), weight = weight_of(&m->s);
    zf_status status;
    batch_of(step, micro * m->s.world + rank, x, y);
    status = zf_write(p, zf_graph_find(g, "x"), x, sizeof x);
    if (!status) status = zf_write(p, zf_graph_find(g, "y"), y, sizeof y);
    if (!status) status = zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr);
    return status ? status
                  : zf_write(p, zf_graph_find(g, "weight"), &weight, sizeof weight);
}

static void *member_main(void *object)
{
    member *k = object;
    const team *m = k->team;
    while (!k->status && zf_store_step(zf_program_store(k->programs[0])) < m->until) {
        const int32_t v = next_variant(m, k);
        for (int64_t micro = 0; micro < m->s.micro_batches && !k->status; micro++)
            if (!(k->status = feed(m, k, v, micro)))
                k->status = micro + 1 < m->s.micro_batches ? zf_micro(k->programs[v])
                                                           : zf_step(k->programs[v]);
    }
    return NULL;
}

/* Steps of all ranks until `until` are done. */
static bool run(test *t, team *m, int64_t until)
{
    zf_error error = {ZF_OK, ""};
    zf_status status = ZF_OK;
    m->until = until;
    if (m->s.threads) {
        for (int r = 0; r < m->s.world; r++)
            if (pthread_create(&m->members[r].thread, NULL, member_main, &m->members[r])) abort();
        for (int r = 0; r < m->s.world; r++) pthread_join(m->members[r].thread, NULL);
        for (int r = 0; r < m->s.world && !status; r++) status = m->members[r].status;
    }
    while (!m->s.threads && !status && steps_done(m) < until) {
        const int32_t v = next_variant(m, &m->members[0]);
        zf_program *programs[RANKS];
        const zf_lockstep_desc lockstep = {programs, m->s.world, 0};
        for (int r = 0; r < m->s.world; r++) programs[r] = m->members[r].programs[v];
        for (int64_t micro = 0; micro < m->s.micro_batches && !status; micro++) {
            for (int32_t r = 0; r < m->s.world && !status; r++)
                status = feed(m, &m->members[r], v, micro);
            if (!status)
                status = micro + 1 < m->s.micro_batches ? zf_lockstep_micro(&lockstep, &error)
                                                        : zf_lockstep_step(&lockstep, &error);
        }
    }
    if (status) test_fail(t, __FILE__, __LINE__, "run", error.text);
    return !status;
}

/* The parameters of a rank as f32. */
static void params_of(const team *m, int32_t rank, float *p)
{
    zf_program *program = m->members[rank].programs[0];
    static const char *const names[] = {"layer.0.w", "layer.1.b"};
    const size_t counts[] = {WEIGHTS, OUT};
    uint16_t half[WEIGHTS];
    for (int k = 0; k < 2; p += counts[k++])
        if (m->s.dtype == ZF_F32) {
            zf_store_read(zf_program_store(program), names[k], p, counts[k] * sizeof *p);
        } else {
            zf_store_read(zf_program_store(program), names[k], half, counts[k] * sizeof *half);
            zf_convert(p, ZF_F32, half, m->s.dtype, counts[k]);
        }
}

static bool same_params(const team *a, const team *b)
{
    static float p[PARAMS], q[PARAMS];
    params_of(a, 0, p);
    for (int r = 0; r < b->s.world; r++) {
        params_of(b, r, q);
        if (memcmp(p, q, sizeof p)) return false;
    }
    return true;
}

static bool save(test *t, const team *m, const char *path)
{
    zf_program *programs[RANKS];
    zf_error error = {ZF_OK, ""};
    for (int r = 0; r < m->s.world; r++) programs[r] = m->members[r].programs[0];
    if (!zf_lockstep_save(&(zf_lockstep_desc){programs, m->s.world, 0}, path, NULL, &error))
        return true;
    test_fail(t, __FILE__, __LINE__, "zf_lockstep_save", error.text);
    return false;
}

static bool load(test *t, const team *m, const char *path)
{
    zf_program *programs[RANKS];
    zf_error error = {ZF_OK, ""};
    for (int r = 0; r < m->s.world; r++) programs[r] = m->members[r].programs[0];
    if (!zf_lockstep_load(&(zf_lockstep_desc){programs, m->s.world, 0}, path, NULL, &error))
        return true;
    test_fail(t, __FILE__, __LINE__, "zf_lockstep_load", error.text);
    return false;
}

/* ----------------------------------------------------------------------------------- compression */

/* One block of `count` elements through sign_compress, twice where a part of another tensor is
 * before it. */
static bool compress(test *t, const float *x, float *e, int64_t count, unsigned char *row)
{
    char text[400];
    zf_error error = {ZF_OK, ""};
    zf_graph *g;
    zf_program *p;
    bool good;
    snprintf(text, sizeof text,
             "%%1 = input \"x\" : f32[%lld]\n%%2 = state \"e\" : f32[%lld]\nupdate:\n"
             "%%3 = sign_compress %%1, %%2 : u8[%lld,132]\noutput %%3 \"signs\"\n",
             (long long)count, (long long)count, (long long)(count + BLOCK - 1) / BLOCK);
    g = zf_graph_parse(text, strlen(text), NULL, &error);
    p = g ? zf_compile(g, NULL) : NULL;
    good = p && !zf_write(p, zf_graph_find(g, "x"), x, (size_t)count * sizeof *x) &&
           !zf_write(p, zf_graph_find(g, "e"), e, (size_t)count * sizeof *e) && !zf_step(p) &&
           !zf_read(p, zf_graph_find(g, "e"), e, (size_t)count * sizeof *e) &&
           !zf_read(p, zf_graph_find(g, "signs"), row, (size_t)(count + BLOCK - 1) / BLOCK * 132);
    if (!good)
        test_fail(t, __FILE__, __LINE__, "sign_compress",
                  p ? zf_program_error(p) : g ? zf_graph_error(g) : error.text);
    zf_program_free(p);
    zf_graph_free(g);
    return good;
}

/* Elements between the tensors of a bucket are 0, after them too, whatever was in their place. */
TEST(onebit_what_is_between_tensors_is_zero)
{
    enum { COUNT = 3 * BLOCK, ROW = 132, STEPS = 2 };
    static const char text[] =
        "%1 = input \"signs\" : u8[6,132]\n"
        "%2 = sign_expand %1 {shape=[3072] parts=2 at=[0,2048] count=[1500,7]} : f32[3072]\n"
        "%3 = neg %2 : f32[3072]\noutput %3 \"y\"\n";
    static unsigned char rows[6 * ROW];
    static float y[COUNT];
    const float scale = 0.5f;
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
    zf_program *p;
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    p = zf_compile(g, &(zf_compile_desc){.poison = true});
    OK(t, zf_graph_status(g), zf_graph_error(g));
    test_defer(t, (test_cleanup *)zf_program_free, p);
    memset(rows, 0xff, sizeof rows);
    for (int r = 0; r < 6; r++) memcpy(rows + r * ROW, &scale, sizeof scale);
    OK(t, zf_write(p, zf_graph_find(g, "signs"), rows, sizeof rows), zf_program_error(p));
    for (int step = 0; step < STEPS; step++) OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, zf_graph_find(g, "y"), y, sizeof y), zf_program_error(p));
    for (int i = 0; i < COUNT; i++)
        CHECK(t, fabsf(y[i]) == (i < 1500 || (i >= 2048 && i < 2055) ? 0.5f : 0));
}

/* What is sent and what is kept: m + e_old = s q + e_new, each in f32; s the root of the mean square
 * of the block, q the sign, + for 0. Nothing else is lost than the rounding of e. */
TEST_ONCE(onebit_compression_by_definition)
{
    enum { COUNT = 2 * BLOCK + 37 };
    static float x[COUNT], e[COUNT], before[COUNT];
    unsigned char rows[3 * 132];
    for (int kind = 0; kind < 4; kind++) {
        for (int i = 0; i < COUNT; i++) {
            x[i] = kind == 1 ? 0 : kind == 2 ? (i % 3 ? 0.25f : -0.25f) : number(1, kind, i);
            if (kind == 3) x[i] *= 0x1p-130f; /* denormal */
            before[i] = e[i] = kind == 0 ? number(2, kind, i) * 0.5f : 0;
        }
        if (kind == 0) x[5] = -0.0f, before[5] = e[5] = 0;
        if (!compress(t, x, e, COUNT, rows)) return;
        for (int b = 0; b < 3; b++) {
            const int n = b < 2 ? BLOCK : 37;
            double sum = 0;
            float s;
            memcpy(&s, rows + 132 * b, sizeof s);
            for (int i = b * BLOCK; i < b * BLOCK + n; i++) {
                const float c = x[i] + before[i];
                const bool negative = rows[132 * b + 4 + (i % BLOCK) / 8] >> i % 8 & 1;
                const float kept = c - (negative ? -s : s);
                CHECK(t, negative == (c < 0));
                CHECK(t, !memcmp(&kept, &e[i], sizeof kept));
                CHECK(t, fabs((double)c - (negative ? -(double)s : (double)s) - (double)e[i]) <=
                             0x1p-24 * fmax(fabs((double)c), (double)s));
                sum += (double)c * c;
                if (kind == 1 || kind == 2) CHECK(t, e[i] == 0);
            }
            for (int i = n; i < BLOCK; i++) CHECK(t, !(rows[132 * b + 4 + i / 8] >> i % 8 & 1));
            CHECK_NEAR(t, s, sqrt(sum / n), 1e-6 * sqrt(sum / n));
        }
    }
    x[BLOCK + 3] = NAN; /* its block becomes NaN, and no other */
    if (!compress(t, x, e, COUNT, rows)) return;
    for (int b = 0; b < 3; b++) {
        float s;
        memcpy(&s, rows + 132 * b, sizeof s);
        CHECK(t, isnan(s) == (b == 1) && isnan(e[b * BLOCK]) == (b == 1));
    }
}

/* --------------------------------------------------------------------------------------- 1-bit Adam */

/* A reference in f64, element by element, as the papers define it. */
typedef struct reference {
    double p[PARAMS], m[PARAMS], v[PARAMS], worker[RANKS][PARAMS], server[PARAMS];
    double g[RANKS][PARAMS]; /* of each rank's part, times the number of ranks */
    double at[RANKS][PARAMS]; /* where each rank computes */
    double u[RANKS][PARAMS], own[RANKS][PARAMS], rate, weight; /* of 0/1 Adam */
    double fresh[PARAMS]; /* of 1-bit LAMB; and of its two tensors: */
    double coefficient[2], factor[2], rms[2];
    int limited; /* elements that a limit has held back */
    int clipped; /* gradients that the norm has */
    int bounds; /* which bounds of ratios and factors were met, as bits */
} reference;

static reference ref;

/* The gradients of a step, by the rules of calculus. */
static void reference_gradients(const setup *s, int64_t step)
{
    memset(ref.g, 0, sizeof ref.g);
    for (int64_t slot = 0; slot < s->world * s->micro_batches; slot++) {
        float x[ROWS * IN], y[ROWS * OUT];
        double *g = ref.g[slot % s->world];
        const double *p = ref.at[slot % s->world];
        batch_of(step, slot, x, y);
        for (int row = 0; row < ROWS; row++)
            for (int o = 0; o < OUT; o++) {
                double h = p[WEIGHTS + o] - (double)y[row * OUT + o];
                for (int i = 0; i < IN; i++) h += (double)x[row * IN + i] * p[i * OUT + o];
                h *= 2 * (double)weight_of(s) * s->world;
                for (int i = 0; i < IN; i++) g[i * OUT + o] += h * (double)x[row * IN + i];
                g[WEIGHTS + o] += h;
            }
    }
}

static double norm_of(const double *x)
{
    double sum = 0;
    for (int i = 0; i < PARAMS; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* All gradients are scaled by the norm of their mean, or each by its own, which noise makes sqrt(world)
 * times as large. */
static void reference_clip(const setup *s, bool compressed)
{
    double mean[PARAMS] = {0};
    for (int i = 0; i < PARAMS; i++)
        for (int r = 0; r < s->world; r++) mean[i] += ref.g[r][i] / s->world;
    for (int r = 0; r < s->world && s->clip > 0; r++) {
        const double norm = compressed ? norm_of(ref.g[r]) / sqrt(s->world) : norm_of(mean),
                     by = fmax(1, (norm + 1e-6) / s->clip);
        ref.clipped += by > 1;
        for (int i = 0; i < PARAMS; i++) ref.g[r][i] /= by;
    }
}

/* The tensor of an element begins and ends here. */
static int tensor_begin(int i) { return i < WEIGHTS ? 0 : WEIGHTS; }
static int tensor_end(int i) { return i < WEIGHTS ? WEIGHTS : PARAMS; }

/* c = s q + error for every block of every tensor; s q replaces c. */
static void reference_compress(double *c, double *error)
{
    for (int begin = 0, end; begin < PARAMS; begin = end) {
        const int first = tensor_begin(begin);
        double sum = 0, s;
        end = first + (begin - first) / BLOCK * BLOCK + BLOCK;
        if (end > tensor_end(begin)) end = tensor_end(begin);
        for (int i = begin; i < end; i++) c[i] += error[i], sum += c[i] * c[i];
        s = sqrt(sum / (end - begin));
        for (int i = begin; i < end; i++) {
            const double q = c[i] < 0 ? -s : s;
            error[i] = c[i] - q;
            c[i] = q;
        }
    }
}

/* The average over ranks of what each compresses, itself compressed. */
static void reference_mean(int32_t world, double parts[RANKS][PARAMS], double *mean)
{
    memset(mean, 0, sizeof ref.p);
    for (int r = 0; r < world; r++) {
        reference_compress(parts[r], ref.worker[r]);
        for (int i = 0; i < PARAMS; i++) mean[i] += parts[r][i] / world;
    }
    reference_compress(mean, ref.server);
}

/* m / (sqrt(v) + eps), but an element without variance is not moved. */
static double moved(double m, double v, double eps) { return v == 0 ? 0 : m / (sqrt(v) + eps); }

static double limit_of(const setup *s) { return s->limit != 0 ? s->limit : 1; }

/* The same within the limit, which counts. */
static double limited(const setup *s, double m, double v, double eps)
{
    const double by = moved(m, v, eps), limit = limit_of(s);
    ref.limited += fabs(by) > limit;
    return fmin(fmax(by, -limit), limit);
}

static void reference_onebit_adam(const setup *s, int64_t step)
{
    static double parts[RANKS][PARAMS];
    const double beta1 = 0.9, beta2 = 0.999, lr = (double)(float)rate(step);
    const int64_t t = step + 1, k = t < s->freeze_step ? t : s->freeze_step;
    for (int r = 0; r < s->world; r++) memcpy(ref.at[r], ref.p, sizeof ref.p);
    reference_gradients(s, step);
    reference_clip(s, t > s->freeze_step);
    for (int i = 0; i < PARAMS; i++) {
        double g = 0;
        for (int r = 0; r < s->world; r++) g += ref.g[r][i] / s->world;
        for (int r = 0; r < s->world; r++)
            parts[r][i] = beta1 * ref.m[i] + (1 - beta1) * ref.g[r][i];
        ref.m[i] = beta1 * ref.m[i] + (1 - beta1) * g;
        if (t <= s->freeze_step) ref.v[i] = beta2 * ref.v[i] + (1 - beta2) * g * g;
    }
    if (t > s->freeze_step) reference_mean(s->world, parts, ref.m);
    for (int i = 0; i < PARAMS; i++) {
        const double m = ref.m[i] / (1 - pow(beta1, (double)t)),
                     v = ref.v[i] / (1 - pow(beta2, (double)k));
        ref.p[i] -= lr * (i < WEIGHTS ? 0.1 : 0) * ref.p[i];
        ref.p[i] -= lr * (t > s->freeze_step ? limited(s, m, v, 1e-8) : moved(m, v, 1e-8));
    }
}

static void reference_begin(const team *m)
{
    float p[PARAMS];
    params_of(m, 0, p);
    memset(&ref, 0, sizeof ref);
    for (int i = 0; i < PARAMS; i++) ref.p[i] = (double)p[i];
}

/* The largest difference between a rank's parameters and the reference's. */
static double reference_distance(const team *m, int32_t rank)
{
    float p[PARAMS];
    double most = 0;
    params_of(m, rank, p);
    for (int i = 0; i < PARAMS; i++) most = fmax(most, fabs((double)p[i] - ref.p[i]));
    return most;
}

/* The warm-up is long enough for every variance: an element that has hardly had a gradient before
 * makes large steps, in which the rounding of f32 shows. */
TEST_ONCE(onebit_adam_is_the_reference)
{
    static const setup rows[] = {
        {ZF_ONEBIT_ADAM, .world = 2, .stage = 0, .micro_batches = 1, .freeze_step = 4},
        {ZF_ONEBIT_ADAM, .world = 4, .stage = 1, .micro_batches = 2, .freeze_step = 3, .clip = 0.05},
        {ZF_ONEBIT_ADAM, .world = 4, .stage = 0, .micro_batches = 1, .freeze_step = 3,
         .bucket_bytes = 4 * WEIGHTS, .limit = INFINITY},
        {ZF_ONEBIT_ADAM, .world = 1, .stage = 0, .micro_batches = 1, .freeze_step = 4,
         .limit = 0.5}};
    test_defer(t, team_free, &teams[0]);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        if (!team_new(t, &teams[0], &rows[n])) return;
        reference_begin(&teams[0]);
        for (int64_t step = 0; step < 8; step++) {
            if (!run(t, &teams[0], step + 1)) return;
            reference_onebit_adam(&rows[n], step);
            for (int r = 0; r < rows[n].world; r++)
                CHECK_NEAR(t, reference_distance(&teams[0], r), 0, 1e-6);
        }
        CHECK(t, (ref.limited > 0) == !isinf(rows[n].limit));
        CHECK(t, (ref.clipped > 0) == (rows[n].clip > 0));
    }
}

/* --------------------------------------------------------------------------------------- 1-bit LAMB */

/* x within [least, most]; notes which bounds it met, as bit `bit` and the next. */
static double bounded(double x, double least, double most, int bit)
{
    if (x < least) ref.bounds |= 1 << bit;
    if (x > most) ref.bounds |= 2 << bit;
    return fmin(fmax(x, least), most);
}

/* The paper's, with AdamW's corrections: momenta are multiplied by the mean RMS of all tensors /
 * their own before compression, and divided after it. */
static void reference_onebit_lamb(const setup *s, const zf_onebit_lamb_desc *d, int64_t step)
{
    static double parts[RANKS][PARAMS], before[PARAMS], u[PARAMS];
    const double beta1 = 0.9, beta2 = 0.999, eps = 1e-6, lr = (double)(float)rate(step);
    const int64_t t = step + 1, k = t < s->freeze_step ? t : s->freeze_step;
    const double of_m = 1 / (1 - pow(beta1, (double)t)), of_v = 1 / (1 - pow(beta2, (double)k)),
                 of_f = 1 / (1 - pow(beta2, (double)t));
    for (int r = 0; r < s->world; r++) memcpy(ref.at[r], ref.p, sizeof ref.p);
    reference_gradients(s, step);
    reference_clip(s, t > s->freeze_step);
    memcpy(before, ref.m, sizeof before);
    for (int i = 0; i < PARAMS; i++) {
        const double scale = (ref.rms[0] + ref.rms[1]) / 2 / ref.rms[i >= WEIGHTS];
        double g = 0;
        for (int r = 0; r < s->world; r++) g += ref.g[r][i] / s->world;
        for (int r = 0; r < s->world; r++)
            parts[r][i] = scale * (beta1 * ref.m[i] + (1 - beta1) * ref.g[r][i]);
        ref.m[i] = beta1 * ref.m[i] + (1 - beta1) * g;
        if (t <= s->freeze_step) ref.v[i] = ref.fresh[i] = beta2 * ref.v[i] + (1 - beta2) * g * g;
    }
    if (t > s->freeze_step) reference_mean(s->world, parts, ref.m);
    for (int tensor = 0; tensor < 2; tensor++) {
        const int begin = tensor ? WEIGHTS : 0, end = tensor ? PARAMS : WEIGHTS;
        const double decay = tensor ? 0 : 0.1;
        double of_p = 0, of_u = 0, of_momentum = 0, ratio = 0, by;
        for (int i = begin; i < end; i++) {
            double g;
            if (t > s->freeze_step) {
                ref.m[i] /= (ref.rms[0] + ref.rms[1]) / 2 / ref.rms[tensor];
                g = (ref.m[i] - beta1 * before[i]) / (1 - beta1);
                ref.fresh[i] = beta2 * ref.fresh[i] + (1 - beta2) * g * g;
            }
            u[i] = decay * ref.p[i] +
                   (t > s->freeze_step ? limited(s, ref.m[i] * of_m, ref.v[i] * of_v, eps)
                                       : moved(ref.m[i] * of_m, ref.v[i] * of_v, eps));
            of_p += ref.p[i] * ref.p[i], of_u += u[i] * u[i], of_momentum += ref.m[i] * ref.m[i];
            if (ref.v[i] != 0)
                ratio = fmax(ratio, (sqrt(ref.v[i] * of_v) + eps) / (sqrt(ref.fresh[i] * of_f) + eps));
        }
        if (t <= s->freeze_step) {
            by = of_p == 0 || of_u == 0
                     ? 1
                     : bounded(sqrt(of_p / of_u), d->min_coeff, d->max_coeff, 0);
            ref.coefficient[tensor] =
                d->coeff_beta * ref.coefficient[tensor] + (1 - d->coeff_beta) * by;
            ref.rms[tensor] = sqrt(of_momentum / (end - begin));
            ref.factor[tensor] = 1;
        } else {
            const double last = ref.factor[tensor];
            ratio = bounded(ratio, d->min_factor, d->max_factor, 2);
            ratio = bounded(ratio, (1 - d->factor_change) * last, (1 + d->factor_change) * last, 4);
            ref.factor[tensor] = ratio;
            by = ratio * ref.coefficient[tensor] / (1 - pow(d->coeff_beta, (double)k));
        }
        for (int i = begin; i < end; i++) ref.p[i] -= lr * by * u[i];
    }
}

/* The defaults, and bounds that are met. */
TEST_ONCE(onebit_lamb_is_the_reference)
{
    static const setup rows[] = {
        {ZF_ONEBIT_LAMB, .world = 2, .stage = 0, .micro_batches = 1, .freeze_step = 4},
        {ZF_ONEBIT_LAMB, .world = 4, .stage = 1, .micro_batches = 2, .freeze_step = 3,
         .lamb = {.min_coeff = 0.05, .max_coeff = 0.1, .coeff_beta = 0.5, .min_factor = 0.97,
                  .max_factor = 1.01, .factor_change = 0.005}},
        {ZF_ONEBIT_LAMB, .world = 3, .stage = 2, .micro_batches = 1, .freeze_step = 3,
         .bucket_bytes = 1, .clip = 0.05,
         .lamb = {.min_coeff = 0.6, .max_coeff = 10, .coeff_beta = 0.8, .min_factor = 3,
                  .max_factor = 4, .factor_change = 0.01}},
        {ZF_ONEBIT_LAMB, .world = 1, .stage = 0, .micro_batches = 1, .freeze_step = 4,
         .lamb = {.max_factor = 0.9, .factor_change = 0.02}, .limit = INFINITY}};
    int bounds = 0;
    test_defer(t, team_free, &teams[0]);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        const zf_training d = training_of(&rows[n]), all = zf_training_resolved(&d);
        if (!team_new(t, &teams[0], &rows[n])) return;
        reference_begin(&teams[0]);
        ref.rms[0] = ref.rms[1] = 1;
        for (int64_t step = 0; step < 9; step++) {
            if (!run(t, &teams[0], step + 1)) return;
            reference_onebit_lamb(&rows[n], &all.onebit_lamb, step);
            for (int r = 0; r < rows[n].world; r++)
                CHECK_NEAR(t, reference_distance(&teams[0], r), 0, 2e-6);
        }
        CHECK(t, (ref.limited > 0) == !isinf(rows[n].limit));
        CHECK(t, (ref.clipped > 0) == (rows[n].clip > 0));
        bounds |= ref.bounds;
    }
    CHECK_NEAR(t, bounds, 63, 0);
}

/* A tensor whose update or whose values are zero has the coefficient 1, and others have that of their
 * norms. */
TEST(onebit_lamb_of_zeros)
{
    const float x[2] = {0, 1};
    float c[3] = {0}, weight = 0;
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_training d = {.optimizer = ZF_ONEBIT_LAMB,
                     .onebit_lamb = {.coeff_beta = 0.75, .max_coeff = 0.3, .min_coeff = 0.2}};
    zf_tensor in, sum = ZF_NONE;
    zf_program *p;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    in = zf_input(g, "x", ZF_F32, ZF_SHAPE(2));
    for (int k = 0; k < 3; k++) { /* "0" has no gradient, "2" is zero */
        const zf_param_desc ones = {.init = k < 2 ? ZF_ONES : ZF_ZEROS};
        const zf_tensor by = zf_reshape(zf_slice(in, 0, k > 0, (k > 0) + 1), ZF_SCALAR);
        zf_tensor y =
            zf_sum(zf_mul(zf_param(g, (const char *[]){"0", "1", "2"}[k], ZF_SHAPE(3), &ones), by));
        sum = k ? zf_add(sum, y) : y;
    }
    d.loss = sum, d.lr = zf_constant(g, ZF_F32, ZF_SCALAR, 0.5);
    d.zero = (zf_zero_desc){.world = 1, .stage = 1};
    OK(t, zf_passes(g, &d), zf_graph_error(g));
    p = zf_compile(g, NULL);
    if (!p) OK(t, zf_graph_status(g), zf_graph_error(g));
    test_defer(t, (test_cleanup *)zf_program_free, p);
    OK(t, zf_write(p, in, x, sizeof x), zf_program_error(p));
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_store_read(STORE(p), "onebit_lamb.coefficient", c, sizeof c), STORE_ERROR(p));
    OK(t, zf_store_read(STORE(p), "onebit_lamb.weight", &weight, sizeof weight), STORE_ERROR(p));
    CHECK(t, weight == 0.25f && c[0] == 0.25f && c[2] == 0.25f);
    CHECK(t, c[1] > 0 && c[1] <= 0.25f * 0.3f);
}

/* ---------------------------------------------------------------------------------------- 0/1 Adam */

/* The steps, by their letters: R refresh, S sync, l local. */
static const setup zero_one = {
    ZF_ZERO_ONE_ADAM,
    .world = 2,
    .micro_batches = 1,
    .zero_one = {.weight_decay = 0.1, .var_freeze_step = 8, .var_update_scaler = 3,
                 .local_step_scaler = 4, .local_step_clipper = 3}};
static const char zero_one_steps[] = "RRRRSRSR" "SSSS" "lSlS" "llSllS" "ll";

TEST(zero_one_adam_has_its_schedule)
{
    zf_training d = training_of(&zero_one);
    d.loss = (zf_tensor){NULL, 1};
    CHECK(t, zf_variant_count(&d) == 3);
    for (int step = 1; step <= (int)sizeof zero_one_steps - 1; step++)
        CHECK(t, zf_variant_at(&d, step) == (int)(strchr("RSl", zero_one_steps[step - 1]) - "RSl"));
    d.zero_one_adam = (zf_zero_one_adam_desc){
        .var_freeze_step = 1, .local_step_scaler = 1, .local_step_clipper = 4};
    for (int step = 1; step <= 12; step++) /* an interval that has begun is not cut */
        CHECK(t, zf_variant_at(&d, step) == (int)(strchr("RSl", "RSlSlllSlllS"[step - 1]) - "RSl"));
    d.zero_one_adam = (zf_zero_one_adam_desc){.var_freeze_step = 0};
    CHECK(t, zf_variant_at(&d, 16) == 0 && zf_variant_at(&d, 17) == 0 && zf_variant_at(&d, 18) == 1);
    CHECK(t, zf_variant_at(&d, 100001) == 1 && zf_variant_at(&d, 132769) == 2);
    CHECK_TEXT(t, zf_variant_name(&d, 2), "local");
    d.zero_one_adam.local_step_clipper = 1;
    CHECK(t, zf_variant_count(&d) == 2 && zf_variant_at(&d, 132769) == 1);
    CHECK(t, !zf_variant_name(&d, 2));
}

static void reference_zero_one(const setup *s, int64_t step)
{
    static double parts[RANKS][PARAMS], mean[PARAMS];
    const double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, lr = (double)(float)rate(step);
    double most;
    const bool together = s->zero_one.local_step_clipper == 1; /* no local steps */
    const char letter = together && zero_one_steps[step] == 'l' ? 'S' : zero_one_steps[step];
    for (int r = 0; r < s->world; r++)
        for (int i = 0; i < PARAMS; i++)
            ref.at[r][i] = ref.p[i] - moved(ref.u[r][i], ref.v[i], eps);
    reference_gradients(s, step);
    reference_clip(s, letter != 'R');
    if (letter == 'R') {
        ref.weight = beta2 * ref.weight + 1 - beta2;
        for (int i = 0; i < PARAMS; i++) {
            double g = 0;
            for (int r = 0; r < s->world; r++) g += ref.g[r][i] / s->world;
            ref.m[i] = beta1 * ref.m[i] + (1 - beta1) * g;
            ref.v[i] += (g * g - ref.v[i]) * (1 - beta2) / ref.weight;
            for (int r = 0; r < s->world; r++) ref.own[r][i] = ref.m[i];
            ref.p[i] -= lr * (i < WEIGHTS ? 0.1 : 0) * ref.p[i];
            ref.p[i] -= lr * moved(ref.m[i], ref.v[i], eps);
        }
        return;
    }
    ref.rate += lr;
    for (int r = 0; r < s->world; r++)
        for (int i = 0; i < PARAMS; i++) {
            ref.own[r][i] = beta1 * ref.own[r][i] + (1 - beta1) * ref.g[r][i];
            ref.u[r][i] += lr * ref.own[r][i];
            parts[r][i] = ref.u[r][i];
            if (letter != 'l') continue;
            most = limit_of(s) * ref.rate * (sqrt(ref.v[i]) + eps);
            ref.limited += fabs(ref.u[r][i]) > most;
            ref.u[r][i] = fmin(fmax(ref.u[r][i], -most), most);
        }
    if (letter == 'l') return;
    reference_mean(s->world, parts, mean);
    for (int i = 0; i < PARAMS; i++) {
        ref.p[i] -= ref.rate * (i < WEIGHTS ? 0.1 : 0) * ref.p[i];
        most = limit_of(s) * (sqrt(ref.v[i]) + eps);
        ref.m[i] = fmin(fmax(mean[i] / ref.rate, -most), most);
        ref.limited += fabs(mean[i] / ref.rate) > most;
        ref.p[i] -= ref.rate * moved(ref.m[i], ref.v[i], eps);
        if (together) ref.m[i] = mean[i] / ref.rate;
        for (int r = 0; r < s->world; r++) ref.own[r][i] = ref.m[i], ref.u[r][i] = 0;
    }
    ref.rate = 0;
}

TEST_ONCE(zero_one_adam_is_the_reference)
{
    test_defer(t, team_free, &teams[0]);
    for (int n = 0; n < 4; n++) {
        setup s = zero_one;
        if (n % 2)
            s.world = 4, s.micro_batches = 2, s.bucket_bytes = 1, s.limit = INFINITY, s.clip = 0.05;
        if (n > 1) s.zero_one.local_step_clipper = 1, s.stage = n - 1;
        if (!team_new(t, &teams[0], &s)) return;
        reference_begin(&teams[0]);
        for (int64_t step = 0; step < (int)sizeof zero_one_steps - 1; step++) {
            if (!run(t, &teams[0], step + 1)) return;
            reference_zero_one(&s, step);
            for (int r = 0; r < s.world; r++)
                CHECK_NEAR(t, reference_distance(&teams[0], r), 0, 1e-5);
        }
        CHECK(t, (ref.limited > 0) == !(n % 2) && (ref.clipped > 0) == n % 2);
    }
}

/* The limit does not turn NaN into a number. */
TEST_ONCE(zero_one_adam_keeps_nan)
{
    static float m[2 * WEIGHTS]; /* of both ranks */
    float p[PARAMS];
    setup s = zero_one;
    s.zero_one.var_freeze_step = 1;
    for (int i = 0; i < 2 * WEIGHTS; i++) m[i] = NAN;
    test_defer(t, team_free, &teams[0]);
    if (!team_new(t, &teams[0], &s) || !run(t, &teams[0], 1)) return;
    CHECK(t, next_variant(&teams[0], &teams[0].members[0]) == 1);
    for (int r = 0; r < s.world; r++) {
        const member *k = &teams[0].members[r];
        OK(t, zf_write(k->programs[1], zf_graph_find(k->graphs[1], "zero_one_adam.own_m/layer.0.w"),
                       m, sizeof m), zf_program_error(k->programs[1]));
    }
    if (!run(t, &teams[0], 2)) return;
    params_of(&teams[0], 0, p);
    CHECK(t, isnan(p[0]) && !isnan(p[WEIGHTS]));
}

/* Local steps send losses alone, and without a limit they go over the states once: of an element they
 * read a gradient, and read and write m_r and u_r. A run goes on in the middle of an interval. */
TEST_ONCE(zero_one_adam_in_an_interval)
{
    enum { ELEMENTS = 4 * BLOCK };
    setup s = zero_one;
    const char *path = test_path("zero_one");
    zf_program_info info;
    zf_graph *g;
    zf_work work;
    test_defer(t, team_free, &teams[0]);
    test_defer(t, team_free, &teams[1]);
    s.limit = INFINITY;
    if (!team_new(t, &teams[0], &s) || !run(t, &teams[0], 17) ||
        !save(t, &teams[0], path))
        return;
    info = zf_program_info_of(teams[0].members[0].programs[2]);
    CHECK(t, !memcmp(&info.counted, &info.plan.traffic, sizeof info.counted));
    CHECK(t, info.counted.all_reduce.bytes == sizeof(float) * 2 && !info.counted.all_gather.calls &&
                 !info.counted.all_to_all.calls && !info.counted.reduce_scatter.calls);
    g = teams[0].members[0].graphs[2];
    OK(t, zf_graph_work(g, ZF_OP_local_sum, &work), zf_graph_error(g));
    CHECK(t, work.bytes == ELEMENTS * 5 * sizeof(float));
    OK(t, zf_graph_work(g, ZF_OP_assign, &work), zf_graph_error(g));
    CHECK(t, work.launches == 1 && work.bytes == 2 * sizeof(float)); /* the sum of the rates */
    OK(t, zf_graph_work(g, ZF_OP_momentum, &work), zf_graph_error(g));
    CHECK(t, work.launches == 0);
    if (!run(t, &teams[0], 20)) return;
    if (!team_new(t, &teams[1], &s) || !load(t, &teams[1], path) ||
        !run(t, &teams[1], 20))
        return;
    CHECK(t, same_params(&teams[0], &teams[1]));
}

/* ------------------------------------------------------------------------------------- same bits */

/* Stages, sizes of buckets, threads, queues and the variant that makes the store change no bit. */
TEST_ONCE(onebit_same_bits)
{
    static const setup base[] = {
        {ZF_ONEBIT_ADAM, .world = 4, .micro_batches = 2, .freeze_step = 2, .clip = 0.5},
        {ZF_ONEBIT_ADAM, .world = 3, .micro_batches = 1, .freeze_step = 2, .dtype = ZF_BF16,
         .clip = 0.5},
        {ZF_ZERO_ONE_ADAM, .world = 3, .micro_batches = 2, .dtype = ZF_BF16, .clip = 0.5,
         .zero_one = {.var_freeze_step = 1, .local_step_scaler = 2, .local_step_clipper = 2}},
        {ZF_ONEBIT_LAMB, .world = 4, .micro_batches = 2, .freeze_step = 2, .clip = 0.5},
        {ZF_ONEBIT_LAMB, .world = 3, .micro_batches = 1, .freeze_step = 2, .dtype = ZF_BF16},
        {ZF_ZERO_ONE_ADAM, .world = 3, .micro_batches = 2, .dtype = ZF_BF16, .clip = 0.5,
         .zero_one = {.var_freeze_step = 4, .var_update_scaler = 2, .local_step_clipper = 1}},
        {ZF_ZERO_ONE_ADAM, .world = 4, .micro_batches = 1,
         .zero_one = {.var_freeze_step = 2, .weight_decay = 0.1, .local_step_clipper = 1}}};
    test_defer(t, team_free, &teams[0]);
    test_defer(t, team_free, &teams[1]);
    for (size_t n = 0; n < sizeof base / sizeof *base; n++) {
        if (!team_new(t, &teams[0], &base[n]) || !run(t, &teams[0], 5)) return;
        for (int way = 0; way < 4; way++) {
            setup s = base[n];
            s.stage = n == 2 ? 0 : way < 3 ? way : 1;
            s.bucket_bytes = way == 1 ? 0 : 1;
            s.prefetch = way != 2;
            s.threads = way > 1;
            s.first = way % (n == 2 ? 3 : 2);
            if (!team_new(t, &teams[1], &s) || !run(t, &teams[1], 5)) return;
            CHECK(t, same_params(&teams[0], &teams[1]));
        }
    }
}

/* The warm-up is AdamW, or LAMB. */
TEST_ONCE(onebit_warm_up_is_the_optimizer)
{
    test_defer(t, team_free, &teams[0]);
    test_defer(t, team_free, &teams[1]);
    for (int lamb = 0; lamb < 2; lamb++) {
        setup s = {lamb ? ZF_ONEBIT_LAMB : ZF_ONEBIT_ADAM, .world = 2, .stage = 1 + lamb,
                   .micro_batches = 2, .freeze_step = 3, .clip = 0.5};
        if (!team_new(t, &teams[0], &s) || !run(t, &teams[0], 3)) return;
        s.optimizer = lamb ? ZF_LAMB : ZF_ADAMW, s.stage = 0;
        if (!team_new(t, &teams[1], &s) || !run(t, &teams[1], 3)) return;
        CHECK(t, same_params(&teams[0], &teams[1]));
        if (!run(t, &teams[0], 4) || !run(t, &teams[1], 4)) return;
        CHECK(t, !same_params(&teams[0], &teams[1]));
    }
}

/* ---------------------------------------------------------------------------------------- bytes */

/* By hand: a bucket of b blocks is cut into shards of b / n. Each rank sends n - 1 of them, 132
 * bytes a block, to their owners, and its own to all others; at stage 1 updated parameters as well,
 * and, of LAMB, a ratio for each block. The loss is one f32, all-reduced. What was predicted is
 * counted. */
TEST_ONCE(onebit_bytes)
{
    enum { W = 4, ROW = 132 };
    test_defer(t, team_free, &teams[0]);
    for (int way = 0; way < 6; way++) {
        const int stage = way % 3;
        const setup s = {way < 3 ? ZF_ONEBIT_ADAM : ZF_ONEBIT_LAMB, .world = W, .stage = stage,
                         .micro_batches = 2, .freeze_step = 1, .bucket_bytes = 1};
        /* 3 blocks of weights and 1 of biases, in buckets of their own: each is padded to 4 */
        const size_t blocks = 8, shard = blocks / W,
                     params = stage ? (4 * BLOCK + (way < 3 ? 0 : 4)) * shard : 0;
        if (!team_new(t, &teams[0], &s)) return;
        for (int32_t v = 0; v < 2; v++) {
            if (!run(t, &teams[0], v + 1)) return;
            for (int r = 0; r < W; r++) {
                const zf_program_info info =
                    zf_program_info_of(teams[0].members[r].programs[v]);
                const zf_traffic *p = &info.plan.traffic;
                CHECK(t, !memcmp(&info.counted, p, sizeof *p));
                CHECK(t, info.plan.peak_bytes == info.allocated_bytes);
                if (!v) continue;
                CHECK(t, p->all_to_all.bytes == (W - 1) * shard * ROW && p->all_to_all.calls == 2);
                CHECK(t, p->all_gather.bytes == (W - 1) * (shard * ROW + params));
                CHECK(t, p->reduce_scatter.bytes == 0);
                CHECK(t, p->all_reduce.bytes == 2 * (W - 1) * sizeof(float) * 2);
            }
        }
    }
}

/* All bytes that a rank has sent in the steps until `until`; of each step, in bytes[], if that is
 * not NULL. */
static size_t sent(test *t, team *m, int64_t until, size_t *bytes)
{
    size_t all = 0;
    for (int64_t step = steps_done(m); step < until; step++) {
        const int32_t v = next_variant(m, &m->members[0]);
        zf_traffic c;
        size_t of_step;
        if (!run(t, m, step + 1)) return 0;
        c = zf_program_info_of(m->members[0].programs[v]).counted;
        of_step = c.all_gather.bytes + c.reduce_scatter.bytes + c.all_reduce.bytes +
                  c.all_to_all.bytes;
        if (bytes) bytes[step] = of_step;
        all += of_step;
    }
    return all;
}

/* Without local steps the stages shard 0/1 Adam's variance and master weights, 8 bytes of an element;
 * m and what a rank compresses stay whole. By hand: a refresh reduces and scatters gradients, and
 * gathers parameters and m. */
TEST_ONCE(zero_one_adam_in_stages)
{
    enum { W = 4, BLOCKS = 8, ROW = 132 };
    size_t states = 0;
    test_defer(t, team_free, &teams[0]);
    for (int stage = 0; stage < 3; stage++) {
        const setup s = {ZF_ZERO_ONE_ADAM, .world = W, .stage = stage, .micro_batches = 1,
                         .bucket_bytes = 1, .dtype = ZF_BF16,
                         .zero_one = {.var_freeze_step = 1, .local_step_clipper = 1}};
        const size_t shard = BLOCKS / W * BLOCK, sent = (W - 1) * shard;
        if (!team_new(t, &teams[0], &s)) return;
        for (int32_t v = 0; v < 2; v++) {
            zf_program_info info;
            const zf_traffic *p = &info.plan.traffic;
            if (!run(t, &teams[0], v + 1)) return;
            info = zf_program_info_of(teams[0].members[1].programs[v]);
            CHECK(t, !memcmp(&info.counted, p, sizeof *p));
            CHECK(t, info.plan.peak_bytes == info.allocated_bytes);
            if (!v) {
                CHECK(t, p->reduce_scatter.bytes == (stage ? 2 * sent : 0));
                CHECK(t, p->all_gather.bytes == (stage ? (2 + 4) * sent : 0));
                continue;
            }
            CHECK(t, p->all_to_all.bytes == sent / BLOCK * ROW && !p->reduce_scatter.bytes);
            CHECK(t, p->all_gather.bytes == sent / BLOCK * ROW + (stage ? 2 * sent : 0));
            /* Rank 1 has the second block of the weights, and no bias. */
            if (!stage) states = info.bound_bytes;
            else CHECK(t, info.bound_bytes == states - 8 * (size_t)(PARAMS - BLOCK));
        }
    }
}

/* Over a run with a warm-up of w of its steps, 1 / (w + (1 - w) r) of the bytes of Adam, where r is
 * 132 bytes for 1024 elements of 16 bits: nearly 1/16. */
TEST_ONCE(onebit_share_of_a_run)
{
    enum { STEPS = 10, WARM_UP = 2 };
    setup s = {ZF_ONEBIT_ADAM, .world = 4, .stage = 0, .micro_batches = 1, .freeze_step = WARM_UP,
               .dtype = ZF_BF16};
    const size_t losses = STEPS * 2 * 3 * sizeof(float);
    size_t onebit, adam;
    test_defer(t, team_free, &teams[0]);
    test_defer(t, team_free, &teams[1]);
    if (!team_new(t, &teams[0], &s) || !(onebit = sent(t, &teams[0], STEPS, NULL))) return;
    s.optimizer = ZF_ADAMW;
    if (!team_new(t, &teams[1], &s) || !(adam = sent(t, &teams[1], STEPS, NULL))) return;
    onebit -= losses, adam -= losses;
    CHECK(t, adam == STEPS * 2 * 3 * (4 * BLOCK / 4) * sizeof(uint16_t));
    CHECK(t, onebit * STEPS * 2048 == adam * (WARM_UP * 2048 + (STEPS - WARM_UP) * 132));
    CHECK_NEAR(t, (double)adam / (double)onebit, 1 / (0.2 + 0.8 / 16), 0.03);
}

/* 0/1 Adam's rounds: gradients in full at refreshes, signs at syncs, and of local steps losses
 * alone. */
TEST_ONCE(zero_one_adam_has_its_rounds)
{
    enum { STEPS = sizeof zero_one_steps - 1 };
    const size_t losses = 2 * sizeof(float), blocks = 4,
                 full = 2 * (blocks / 2) * BLOCK * sizeof(float), signs = 2 * (blocks / 2) * 132;
    size_t bytes[STEPS] = {0}, all, rounds[3] = {0};
    test_defer(t, team_free, &teams[0]);
    if (!team_new(t, &teams[0], &zero_one) || !(all = sent(t, &teams[0], STEPS, bytes))) return;
    for (int step = 0; step < STEPS; step++) {
        const int kind = (int)(strchr("RSl", zero_one_steps[step]) - "RSl");
        CHECK(t, bytes[step] == losses + (kind == 0 ? full : kind == 1 ? signs : 0));
        rounds[kind]++;
    }
    CHECK(t, rounds[0] == 6 && rounds[1] == 10 && rounds[2] == 8);
    CHECK(t, all == STEPS * losses + rounds[0] * full + rounds[1] * signs);
}

/* ------------------------------------------------------------------------------------- memory */

static void close_session(void *s) { session_close(s); }

/* The samples compile the variant with the largest values of a step first; the others lie in its
 * memory. It is not always that of the first step. */
TEST_ONCE(onebit_variants_share_the_largest)
{
    static const zf_optimizer optimizers[] = {ZF_ONEBIT_ADAM, ZF_ONEBIT_LAMB, ZF_ZERO_ONE_ADAM};
    static session s;
    int later = 0;
    for (int n = 0; n < 3; n++) {
        bert_config config;
        session_desc d = {.sample = &bert_sample,
                                .config = &config,
                                .purpose = SAMPLE_TRAIN,
                                .shape = {.batch = 1, .sequence = 8, .predictions = 2},
                                .threads = 1,
                                .training = {.zero.micro_batches = 2,
                                             .optimizer = optimizers[n],
                                             .clip = 1}};
        zf_error error = {ZF_OK, ""};
        int32_t owner = -1;
        OK(t, bert_config_load("tiny", &config, &error) ? ZF_OK : error.status, error.text);
        config.vocab = 50, config.hidden = 8, config.positions = 8, config.intermediate = 16;
        session_set(&d.training, "freeze-step", 1);
        OK(t, session_open(&s, &d, &error) ? ZF_OK : error.status, error.text);
        test_defer(t, close_session, &s);
        CHECK(t, s.variants == (n < 2 ? 2 : 3));
        for (int32_t k = 0; k < s.variants; k++) {
            const zf_program_info info = zf_program_info_of(s.programs[k]);
            if (info.shared[ZF_DEVICE]) CHECK(t, info.shared[ZF_DEVICE] == info.work_bytes);
            else CHECK(t, owner < 0);
            if (!info.shared[ZF_DEVICE]) owner = k;
        }
        CHECK(t, owner >= 0);
        for (int32_t k = 0; k < s.variants; k++)
            CHECK(t, zf_program_info_of(s.programs[k]).work_bytes <=
                         zf_program_info_of(s.programs[owner]).work_bytes);
        CHECK(t, s.program == s.programs[0]);
        later += owner > 0;
        session_close(&s);
    }
    CHECK(t, later > 0);
}

/* ---------------------------------------------------------------------------------- checkpoints */

/* A state of the weights: `parts` times as many floats. */
static bool state_of(test *t, const team *m, const char *name, int parts, float *values)
{
    zf_program *programs[RANKS];
    zf_error error = {ZF_OK, ""};
    for (int r = 0; r < m->s.world; r++) programs[r] = m->members[r].programs[1];
    if (!zf_lockstep_read(&(zf_lockstep_desc){programs, m->s.world, 0}, name, values,
                          (size_t)parts * WEIGHTS * sizeof *values, &error))
        return true;
    test_fail(t, __FILE__, __LINE__, name, error.text);
    return false;
}

/* A run goes on from a checkpoint with the same bits, whether that is of the warm-up or not, and at
 * another stage. */
TEST_ONCE(onebit_resumes)
{
    const char *path = test_path("onebit");
    test_defer(t, team_free, &teams[0]);
    test_defer(t, team_free, &teams[1]);
    static const zf_optimizer optimizers[] = {ZF_ONEBIT_ADAM, ZF_ONEBIT_LAMB, ZF_ZERO_ONE_ADAM};
    for (int way = 0; way < 6; way++) {
        const int64_t at = 1 + way % 2 * 2;
        setup s = {optimizers[way / 2], .world = 4, .stage = 1, .micro_batches = 1, .freeze_step = 2,
                   .zero_one = {.var_freeze_step = 2, .local_step_clipper = 1}};
        if (!team_new(t, &teams[0], &s) || !run(t, &teams[0], at) ||
            !save(t, &teams[0], path) || !run(t, &teams[0], 5))
            return;
        s.stage = at == 1 ? 2 : 0;
        if (!team_new(t, &teams[1], &s) || !load(t, &teams[1], path)) return;
        CHECK(t, steps_done(&teams[1]) == at);
        if (!run(t, &teams[1], 5)) return;
        CHECK(t, same_params(&teams[0], &teams[1]));
    }
}

/* In another world each rank begins with the mean of what the old ranks had of their own, in their
 * order: errors, and in the middle of an interval of 0/1 Adam sums and momentum. Servers' errors stay
 * as they are, in other shards. */
TEST_ONCE(onebit_errors_of_another_world)
{
    static const struct {
        zf_optimizer optimizer;
        int32_t from, stage;
        int64_t at;
        const char *own[3], *whole;
    } rows[] = {{ZF_ONEBIT_ADAM, 1, 1, 4, {"onebit_adam.worker/layer.0.w"},
                 "onebit_adam.server/layer.0.w"},
                {ZF_ONEBIT_ADAM, 4, 1, 4, {"onebit_adam.worker/layer.0.w"},
                 "onebit_adam.server/layer.0.w"},
                {ZF_ONEBIT_LAMB, 4, 2, 4, {"onebit_lamb.worker/layer.0.w"},
                 "onebit_lamb.server/layer.0.w"},
                {ZF_ZERO_ONE_ADAM, 4, 2, 5, {"zero_one_adam.worker/layer.0.w"},
                 "zero_one_adam.server/layer.0.w"},
                {ZF_ZERO_ONE_ADAM, 2, 0, 17,
                 {"zero_one_adam.worker/layer.0.w", "zero_one_adam.u/layer.0.w",
                  "zero_one_adam.own_m/layer.0.w"},
                 "zero_one_adam.server/layer.0.w"}};
    static float before[RANKS * WEIGHTS], after[RANKS * WEIGHTS];
    const char *path = test_path("onebit");
    test_defer(t, team_free, &teams[0]);
    test_defer(t, team_free, &teams[1]);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        const int from = rows[n].from;
        setup s = {rows[n].optimizer, .world = from, .stage = rows[n].stage, .micro_batches = 1,
                   .freeze_step = 2, .zero_one = zero_one.zero_one};
        if (s.stage) s.zero_one.local_step_clipper = 1;
        if (!team_new(t, &teams[0], &s) || !run(t, &teams[0], rows[n].at) ||
            !save(t, &teams[0], path))
            return;
        s.world = 3;
        if (!team_new(t, &teams[1], &s) || !load(t, &teams[1], path)) return;
        for (int k = 0; k < 3 && rows[n].own[k]; k++) {
            bool some = false;
            if (!state_of(t, &teams[0], rows[n].own[k], from, before) ||
                !state_of(t, &teams[1], rows[n].own[k], 3, after))
                return;
            for (int i = 0; i < WEIGHTS; i++) {
                float sum = 0;
                for (int r = 0; r < from; r++) sum += before[r * WEIGHTS + i];
                for (int r = 0; r < 3; r++) CHECK(t, after[r * WEIGHTS + i] == sum / (float)from);
                some |= sum != 0;
            }
            CHECK(t, some);
        }
        if (!state_of(t, &teams[0], rows[n].whole, 1, before) ||
            !state_of(t, &teams[1], rows[n].whole, 1, after))
            return;
        CHECK(t, before[0] != 0 && !memcmp(before, after, WEIGHTS * sizeof *before));
        CHECK(t, same_params(&teams[0], &teams[1]));
        if (!run(t, &teams[1], rows[n].at + 2)) return;
    }
}

/* ----------------------------------------------------------------------------------------- text */

/* The exchange in the text of a compressed step, in its order. */
TEST_ONCE(onebit_in_the_text)
{
    static const char *const words[] = {
        "update:", "momentum", "sign_compress", "all_to_all", "{world=4}", "sign_expand",   "parts=4",
        "sign_compress", "server=true", "all_gather", "sign_expand", "parts=1", "assign",
        "adam_apply", "world=4", "all_gather"};
    static char text[1 << 15];
    const setup s = {ZF_ONEBIT_ADAM, .world = 4, .stage = 2, .micro_batches = 1};
    zf_training d = training_of(&s);
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_new(NULL), *again;
    const char *at = text;
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    d.loss = build(g), d.variant = 1;
    OK(t, zf_passes(g, &d), zf_graph_error(g));
    CHECK(t, zf_graph_text(g, text, sizeof text) < sizeof text);
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
        at = strstr(at, words[k]);
        CHECK(t, at);
        at++;
    }
    again = zf_graph_parse(text, strlen(text), NULL, &error);
    NEED(t, again, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, again);
    CHECK(t, zf_graph_hash(again) == zf_graph_hash(g));
    CHECK(t, strstr(text, "ranks=each") && strstr(text, "each=true") && strstr(text, "ranks=cut"));
}

/* --------------------------------------------------------------------------------------- misuse */

/* Every variant of the step says so. */
/* A compressed step before any that updates the variance is refused. */
TEST_ONCE(onebit_first_step_is_of_the_warm_up)
{
    const zf_optimizer optimizers[] = {ZF_ONEBIT_ADAM, ZF_ONEBIT_LAMB};
    for (int k = 0; k < 2; k++) {
        zf_graph *g = zf_graph_new(NULL);
        zf_program *p;
        zf_passes(g, &(zf_training){.loss = build(g), .optimizer = optimizers[k], .variant = 1});
        p = zf_compile(g, NULL);
        CHECK(t, p != NULL);
        for (int n = 0; n < 4; n++) {
            static const char *const names[] = {"x", "y", "weight", "lr"};
            static const char zeros[1 << 16];
            const zf_tensor x = zf_graph_find(g, names[n]);
            CHECK(t, !zf_write(p, x, zeros, zf_tensor_bytes(x)));
        }
        CHECK(t, zf_step(p) == ZF_ERR_ARGUMENT);
        CHECK(t, strstr(zf_program_error(p),
                        "is 0; it counts updates from 1, so compressed steps come after steps that "
                        "update the variance"));
        zf_program_free(p), zf_graph_free(g);
    }
}

TEST_ONCE(onebit_misuse)
{
    static const struct {
        const char *said;
        zf_training t;
    } rows[] = {
        {"zf_zero: 1-bit optimizers are for stages 0, 1 and 2: each rank compresses the whole "
         "gradient; stage is 3",
         {.zero = {.stage = 3, .world = 2}}},
        {"zf_zero: 1-bit optimizers exchange signs between all ranks alike; nodes must be 1, not 2",
         {.zero = {.stage = 1, .world = 4, .nodes = 2}}},
        {"zf_zero: 1-bit optimizers exchange signs between all ranks alike; nodes must be 1, not 2",
         {.optimizer = ZF_ZERO_ONE_ADAM, .zero = {.world = 4, .nodes = 2}}},
        {"zf_zero: a 1-bit optimizer sends signs of its momentum; quantized_gradients has no meaning "
         "there",
         {.zero = {.stage = 2, .world = 2, .quantized_gradients = true}}},
        {"zf_onebit_adam: it has no steps that a loss scale skips, since each rank's gradients stay "
         "its own; use bf16 or f32",
         {.precision.dtype = ZF_F16}},
        {"zf_zero: local steps of zf_zero_one_adam are for stage 0: each rank makes them with all of "
         "the variance and the master weights; stage is 2, for which local_step_clipper must be 1",
         {.optimizer = ZF_ZERO_ONE_ADAM, .zero = {.stage = 2, .world = 2}}},
        {"zf_zero: 1-bit optimizers are for stages 0, 1 and 2: each rank compresses the whole "
         "gradient; stage is 3",
         {.optimizer = ZF_ZERO_ONE_ADAM, .zero_one_adam.local_step_clipper = 1,
          .zero = {.stage = 3, .world = 2}}},
        {"zf_passes: onebit_adam.freeze_step is -1; it must be a whole number of 1 or more",
         {.onebit_adam.freeze_step = -1}},
        {"zf_passes: onebit_adam.beta2 is 1; it must be a number from 0 to below 1", {.onebit_adam.beta2 = 1}},
        {"zf_passes: onebit_lamb.freeze_step is -3; it must be a whole number of 1 or more",
         {.optimizer = ZF_ONEBIT_LAMB, .onebit_lamb.freeze_step = -3}},
        {"zf_onebit_lamb: min_factor is 5, above max_factor, 4",
         {.optimizer = ZF_ONEBIT_LAMB, .onebit_lamb.min_factor = 5}},
        {"zf_passes: onebit_lamb.factor_change is 1; it must be a number from 0 to below 1",
         {.optimizer = ZF_ONEBIT_LAMB, .onebit_lamb.factor_change = 1}},
        {"zf_passes: onebit_adam.limit is -1; it must be a number above 0",
         {.onebit_adam.limit = -1}},
        {"zf_passes: zero_one_adam.limit is 0; it must be a number above 0",
         {.optimizer = ZF_ZERO_ONE_ADAM, .zero_one_adam.limit = ZF_ZERO}},
        {"zf_passes: onebit_lamb.coeff_beta is -0.1; it must be a number from 0 to below 1",
         {.optimizer = ZF_ONEBIT_LAMB, .onebit_lamb.coeff_beta = -0.1}},
        {"zf_zero: 1-bit optimizers are for stages 0, 1 and 2: each rank compresses the whole "
         "gradient; stage is 3",
         {.optimizer = ZF_ONEBIT_LAMB, .zero = {.stage = 3, .world = 2}}},
        {"zf_offload: with a 1-bit optimizer everything stays on the device; optimizer is host",
         {.optimizer = ZF_ONEBIT_LAMB, .zero = {.stage = 1, .world = 2},
          .offload.optimizer = ZF_HOST}}};
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        zf_training d = rows[n].t;
        if (!d.optimizer) d.optimizer = ZF_ONEBIT_ADAM;
        d.loss = (zf_tensor){NULL, 1};
        for (int32_t count = zf_variant_count(&d); d.variant < count; d.variant++) {
            zf_graph *g = zf_graph_new(NULL);
            d.loss = build(g);
            CHECK(t, zf_passes(g, &d));
            CHECK_TEXT(t, zf_graph_error(g), rows[n].said);
            zf_graph_free(g);
        }
    }
    for (int variant = -1; variant < 2; variant++) {
        zf_graph *g = zf_graph_new(NULL);
        CHECK(t, !zf_passes(g, &(zf_training){.loss = build(g), .variant = variant}) == !variant);
        zf_graph_free(g);
    }
}
