/* Error feedback of quantised gradients (LoCo): what is kept against its definition, a problem that
 * is learnt with it alone, errors of another world, after a failed step, and in a checkpoint that
 * has none. tests/ops/quantize.c has the sums by definition, tests/ranks/groups.c and
 * tests/files/shards.c the bits of stages, threads and checkpoints. */
#include "../support/test.h"

enum { BLOCK = 64, COUNT = 12 * BLOCK, RANKS = 6, WIDTH = 2100 };

/* ----------------------------------------------------------------------------------- by definition
 * */

static float x[COUNT], before[COUNT], after[COUNT], said[COUNT];

static float random_number(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 0x1p-31f;
}

/* Blocks with zeros, equal numbers, ties, subnormal numbers, large ones, and some that are none. */
static void fill(void)
{
    uint32_t state = 3;
    for (int i = 0; i < COUNT; i++) {
        const int at = i % BLOCK;
        const float random = random_number(&state);
        before[i] = random_number(&state) * 0.1f;
        switch (i / BLOCK) {
        case 0: x[i] = before[i] = 0; break;
        case 1: x[i] = -before[i]; break;
        case 2: x[i] = 0.75f, before[i] = 0.25f; break;
        case 3: x[i] = at ? (float)(at % 13) - 6.5f : 7, before[i] = 0; break; /* ties: scale 1 */
        case 4: x[i] = random * 0x1p-126f, before[i] *= 0x1p-126f; break;
        case 5: x[i] = random * 0x1p-145f, before[i] = 0; break;
        case 6: x[i] = random * 0x1p126f, before[i] *= 0x1p126f; break;
        case 7: x[i] = at == 5 ? INFINITY : random; break;
        case 8: x[i] = at == 63 ? NAN : random; break;
        default: x[i] = random * random * random;
        }
    }
}

/* How errors are kept: in records, with a loss scale (0: there is none), and whether they begin. */
typedef struct keeping {
    const char *attributes;
    double beta;
    bool begins, records, skipped;
    float scale;
} keeping;

enum { KEPT = COUNT / BLOCK * (4 + BLOCK) };

static uint8_t records_before[KEPT], records_after[KEPT];

/* One step of quantize_feedback, and what its records say; false after an error. */
static bool step_of(test *t, const keeping *w, const zf_cpu_desc *cpu)
{
    const zf_quantize_desc kept = {.block = BLOCK};
    char text[900], errors[40], scaler[300] = "";
    zf_error error = {ZF_OK, ""};
    zf_backend *backend = zf_cpu_backend(cpu, &error);
    const int bits = strstr(w->attributes, "bits=8") ? 8 : 4,
              bytes = (strstr(w->attributes, "bf16") ? 2 : 4) + BLOCK * bits / 8;
    zf_graph *g;
    zf_program *p;
    bool good = true;
    snprintf(errors, sizeof errors, w->records ? "u8[%d]" : "f32[%d]", w->records ? KEPT : COUNT);
    if (w->scale > 0)
        snprintf(scaler, sizeof scaler,
                 "%%3 = state \"s\" {value=%g} : f32[]\n%%4 = state \"i\" {value=5} : i64[]\n"
                 "%%5 = state \"o\" {value=%d} : i64[]\n",
                 (double)w->scale, w->skipped ? 4 : 3);
    snprintf(text, sizeof text,
             "%%1 = input \"x\" : f32[%d]\n%%2 = state \"e\" : %s\n%s"
             "%%6 = quantize_feedback %%1, %%2%s {%s} : u8[%d]\n"
             "%%7 = dequantize %%6 {bits=%d block=%d%s} : f32[%d]\noutput %%7 \"y\"\n",
             COUNT, errors, scaler, w->scale > 0 ? ", %3, %4, %5" : "", w->attributes,
             COUNT / BLOCK * bytes, bits, BLOCK, strstr(w->attributes, "bf16") ? " scale=bf16" : "",
             COUNT);
    if (w->records)
        good = !zf_quantize_values(records_before, before, COUNT, &kept) &&
               !zf_dequantize_values(before, records_before, COUNT, &kept);
    g = zf_graph_parse(text, strlen(text), NULL, &error);
    p = g && backend ? zf_compile(g, &(zf_compile_desc){.backend = backend}) : NULL;
    good = good && p && !zf_write(p, zf_graph_find(g, "x"), x, sizeof x) &&
           !zf_write(p, zf_graph_find(g, "e"), w->records ? (void *)records_before : before,
                     w->records ? sizeof records_before : sizeof before) &&
           !zf_step(p) &&
           !zf_read(p, zf_graph_find(g, "e"), w->records ? (void *)records_after : after,
                    w->records ? sizeof records_after : sizeof after) &&
           !zf_read(p, zf_graph_find(g, "y"), said, sizeof said);
    if (good && w->records) good = !zf_dequantize_values(after, records_after, COUNT, &kept);
    if (!good)
        test_fail(t, __FILE__, __LINE__, "quantize_feedback",
                  p   ? zf_program_error(p)
                  : g ? zf_graph_error(g)
                      : error.text);
    zf_program_free(p);
    zf_graph_free(g);
    zf_backend_free(backend);
    return good;
}

/* Without an average nothing is lost: x + S e_old = s q + S e_new to the last bit, in f32 and in
 * f64. With it e_new is the average of e_old and of that; in records, that average as they say it.
 * Every instruction set and the reference have the same bits. */
TEST_ONCE(loco_keeps_what_is_not_sent)
{
    static const keeping ways[] = {
        {"bits=4 block=64", .beta = 0},
        {"bits=8 block=64 beta=0.75", .beta = 0.75},
        {"bits=4 block=64 scale=bf16", .beta = 0},
        {"bits=4 block=64 beta=0.8 reset=3", .beta = 0.8, .begins = true},
        {"bits=4 block=64", .scale = 8},
        {"bits=8 block=64 beta=0.5 scale=bf16", .beta = 0.5, .scale = 0.25, .records = true},
        {"bits=4 block=64 beta=0.8", .beta = 0.8, .records = true},
        {"bits=4 block=64 beta=0.8", .beta = 0.8, .records = true, .scale = 4, .skipped = true,
         .begins = true}};
    static float first[2][COUNT], kept[COUNT];
    static uint8_t records[KEPT];
    for (int n = 0; n < (int)(sizeof ways / sizeof *ways); n++) {
        const keeping *w = &ways[n];
        const float beta = (float)w->beta, rest = (float)(1 - w->beta),
                    scale = w->scale > 0 ? w->scale : 1;
        fill();
        for (int k = 0; k < 5; k++) {
            static const char *const isas[] = {"portable", "avx2", "avx512", "neon", NULL};
            const zf_cpu_desc cpu = {.isa = isas[k], .reference = k == 4, .threads = 1 + k % 2};
            if (k < 4 && !test_has_isa(t, isas[k])) continue;
            if (!step_of(t, w, &cpu)) return;
            if (!k) memcpy(first[0], after, sizeof after), memcpy(first[1], said, sizeof said);
            CHECK(t, !memcmp(first[0], after, sizeof after));
            CHECK(t, !memcmp(first[1], said, sizeof said));
        }
        for (int i = 0; i < COUNT; i++) {
            const float e = w->begins ? 0 : before[i], h = x[i] + scale * e, r = h - said[i];
            const float old = beta * e, more = rest / scale * r;
            if (i / BLOCK == 7 || i / BLOCK == 8) {
                CHECK(t, isnan(said[i]) && after[i] == e);
                kept[i] = e;
                continue;
            }
            CHECK(t, (double)said[i] + (double)r == (double)h);
            kept[i] = old + more;
            CHECK(t, w->records || after[i] == kept[i]);
        }
        if (!w->records) continue;
        OK(t, zf_quantize_values(records, kept, COUNT, &(zf_quantize_desc){.block = BLOCK}), "");
        for (int k = 0; k < KEPT; k++)
            if (k / (4 + BLOCK) < 7 || k / (4 + BLOCK) > 8)
                CHECK(t, records[k] == records_after[k]);
    }
}

/* ------------------------------------------------------------------------------------------ ranks
 * */

typedef struct setup {
    int32_t world, nodes, stage;
    bool plain;  /* without error feedback, */
    bool floats; /* without quantisation */
    bool f64;
    int32_t bits; /* of errors; 0: 32 */
    float scale;  /* of the loss; 0: none. It doubles after every other step */
} setup;

typedef struct team {
    setup s;
    zf_comm comms[RANKS];
    zf_graph *graphs[RANKS];
    zf_program *programs[RANKS];
} team;

static team teams[2];

static void team_free(void *object)
{
    team *m = object;
    for (int r = 0; r < RANKS; r++) zf_program_free(m->programs[r]), zf_graph_free(m->graphs[r]);
    *m = (team){.s.world = 0};
}

/* The loss is the sum over ranks of (w - 1)^2 / (2 ranks) + noise w, with sgd: the gradient of an
 * element is its part of w - 1 plus noise. */
static bool team_new(test *t, team *m, const setup *s)
{
    team_free(m);
    m->s = *s;
    for (int32_t r = 0; r < s->world; r++) {
        zf_graph *g = m->graphs[r] = zf_graph_new(NULL);
        const zf_param_desc zeros = {.dtype = s->f64 ? ZF_F64 : ZF_F32};
        zf_tensor w = zf_param(g, "w", ZF_SHAPE(WIDTH), &zeros),
                  noise = zf_input(g, "noise", zeros.dtype, ZF_SHAPE(WIDTH)),
                  lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR), h, loss;
        h = zf_add(w, zf_constant(g, zeros.dtype, ZF_SCALAR, -1));
        loss = zf_add(zf_sum(zf_scale(zf_mul(h, h), 0.5 / s->world)), zf_sum(zf_mul(w, noise)));
        zf_output_ex(loss, "loss", &(zf_output_desc){ZF_REDUCTION_SUM});
        zf_precision(g, &(zf_precision_desc){.dtype = ZF_F32,
                                             .scale = s->scale > 0 ? (double)s->scale : ZF_ZERO,
                                             .window = 2,
                                             .hysteresis = 1});
        zf_autograd(g, loss);
        zf_sgd(g, lr, NULL);
        zf_zero(g, &(zf_zero_desc){.stage = s->stage,
                                   .world = s->world,
                                   .nodes = s->nodes,
                                   .quantized_gradients = !s->floats,
                                   .loco = !s->floats && !s->plain,
                                   .loco_bits = s->floats || s->plain ? 0 : s->bits});
        m->comms[r] = (zf_comm){.rank = r, .world = s->world};
        m->programs[r] = zf_compile(g, &(zf_compile_desc){.comm = &m->comms[r], .verify = true});
        if (m->programs[r]) continue;
        test_fail(t, __FILE__, __LINE__, "zf_compile", zf_graph_error(g));
        return false;
    }
    return true;
}

/* One step. Noise of the even elements is large, and its sum over ranks is 0; a rank that is `bad`
 * has an infinite loss. */
static zf_status step(team *m, int32_t bad, zf_error *error)
{
    const zf_lockstep_desc lockstep = {m->programs, m->s.world, 0};
    for (int32_t r = 0; r < m->s.world; r++) {
        const int64_t at = zf_program_step(m->programs[r]);
        double noise[WIDTH];
        float narrow[WIDTH], lr = 0.05f;
        for (int64_t i = 0; i < WIDTH; i++) {
            noise[i] = i % 2 ? 0 : (r % 2 ? -1.0 : 1.0) * (double)((at * 7 + i) % 5 + 8);
            narrow[i] = (float)noise[i];
        }
        if (r == bad) noise[3] = INFINITY, narrow[3] = INFINITY;
        if (zf_write(m->programs[r], zf_graph_find(m->graphs[r], "noise"),
                     m->s.f64 ? (void *)noise : (void *)narrow,
                     m->s.f64 ? sizeof noise : sizeof narrow) ||
            zf_write(m->programs[r], zf_graph_find(m->graphs[r], "lr"), &lr, sizeof lr))
            return snprintf(error->text, sizeof error->text, "zf_write"), ZF_ERR_ARGUMENT;
    }
    return zf_lockstep_step(&lockstep, error);
}

static bool steps(test *t, team *m, int count)
{
    zf_error error = {ZF_OK, ""};
    for (int k = 0; k < count; k++)
        if (step(m, -1, &error)) {
            test_fail(t, __FILE__, __LINE__, "a step", error.text);
            return false;
        }
    return true;
}

/* A tensor, as the lockstep reads it; `count` floats. */
static bool read_of(test *t, const team *m, const char *name, void *out, size_t bytes)
{
    const zf_lockstep_desc lockstep = {(zf_program *const *)m->programs, m->s.world, 0};
    zf_error error = {ZF_OK, ""};
    if (!zf_lockstep_read(&lockstep, name, out, bytes, &error)) return true;
    test_fail(t, __FILE__, __LINE__, name, error.text);
    return false;
}

/* The mean of |w - 1| over the elements without noise, whose gradients are far below a step of 4
 * bits. */
static double distance(test *t, const team *m)
{
    double wide[WIDTH], sum = 0;
    float w[WIDTH];
    if (!read_of(t, m, "w", m->s.f64 ? (void *)wide : (void *)w, m->s.f64 ? sizeof wide : sizeof w))
        return NAN;
    for (int i = 1; i < WIDTH; i += 2) sum += fabs((m->s.f64 ? wide[i] : (double)w[i]) - 1);
    return sum / (WIDTH / 2);
}

/* Next to large gradients, small ones are rounded to 0 in every step: only with error feedback they
 * are learnt, as fast as without quantisation, up to what is left to send. */
TEST_ONCE(loco_learns_what_quantisation_loses)
{
    static const setup rows[] = {{.world = 2, .stage = 1},
                                 {.world = 4, .nodes = 2, .stage = 3},
                                 {.world = 4, .nodes = 2, .stage = 1, .bits = 8},
                                 {.world = 4, .nodes = 2, .stage = 2, .f64 = true}};
    test_defer(t, team_free, &teams[0]);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        setup s = rows[n];
        double far[3];
        for (int way = 0; way < 3; way++) {
            s.plain = way == 1, s.floats = way == 2;
            if (!team_new(t, &teams[0], &s) || !steps(t, &teams[0], 60)) return;
            far[way] = distance(t, &teams[0]);
        }
        CHECK(t, far[1] == 1);
        CHECK(t, far[2] < 0.06);
        CHECK(t, far[0] < 0.2);
    }
}

/* ----------------------------------------------------------------------------------- loss scale */

/* Writes a number to a state of all ranks. */
static void write_all(test *t, team *m, const char *name, float value)
{
    for (int32_t r = 0; r < m->s.world; r++)
        OK(t, zf_write(m->programs[r], zf_graph_find(m->graphs[r], name), &value, sizeof value),
           zf_program_error(m->programs[r]));
}

static void same_tensor(test *t, const char *name, size_t bytes)
{
    static char values[2][RANKS * WIDTH * 4];
    for (int k = 0; k < 2; k++)
        if (!read_of(t, &teams[k], name, values[k], bytes)) return;
    CHECK(t, !memcmp(values[0], values[1], bytes));
}

/* Errors are those of gradients without the scale: a power of 2, which grows on the way, changes no
 * bit of them nor of parameters. After steps that overflow, which change no parameter, they begin
 * with 0. The gradients of five steps repeat. */
TEST_ONCE(loco_with_a_loss_scale)
{
    enum { WORLD = 4, RECORDS = (WIDTH + 255) / 256 * 260 };
    test_defer(t, team_free, &teams[0]);
    test_defer(t, team_free, &teams[1]);
    for (int way = 0; way < 2; way++) {
        setup s = {.world = WORLD, .nodes = 2, .stage = 2 + way, .bits = way ? 8 : 0};
        const size_t bytes = way ? RECORDS : WIDTH * sizeof(float);
        zf_error error = {ZF_OK, ""};
        if (!team_new(t, &teams[0], &s)) return;
        s.scale = 8;
        if (!team_new(t, &teams[1], &s) || !steps(t, &teams[0], 7) || !steps(t, &teams[1], 7))
            return;
        same_tensor(t, "w", WIDTH * sizeof(float));
        same_tensor(t, "loco.error/w", WORLD * bytes);
        same_tensor(t, "loco.between/w", 2 * bytes);
        for (int k = 0; k < 5; k++) {
            write_all(t, &teams[1], "scaler.scale", 0x1p127f);
            if (!steps(t, &teams[1], 1)) return;
        }
        same_tensor(t, "w", WIDTH * sizeof(float));
        write_all(t, &teams[1], "scaler.scale", 4);
        CHECK(t, step(&teams[0], 1, &error) == ZF_ERR_NAN); /* its errors are 0 */
        if (!steps(t, &teams[0], 3) || !steps(t, &teams[1], 3)) return;
        same_tensor(t, "w", WIDTH * sizeof(float));
        same_tensor(t, "loco.error/w", WORLD * bytes);
    }
}

/* -------------------------------------------------------------------------------- another world */

/* The same of records, which are as before, or 0 where they were others or none. */
static void is_kept(test *t, const char *name, int olds, int news)
{
    enum { RECORDS = (WIDTH + 255) / 256 * 260 };
    static uint8_t old[RANKS * RECORDS], now[RANKS * WIDTH * sizeof(float)];
    const bool same = teams[0].s.bits == teams[1].s.bits && olds == news;
    const size_t bytes = (size_t)news * (teams[1].s.bits ? RECORDS : WIDTH * sizeof(float));
    if (!news || (same && !read_of(t, &teams[0], name, old, bytes)) ||
        !read_of(t, &teams[1], name, now, bytes))
        return;
    for (size_t i = 0; i < bytes; i++) CHECK(t, now[i] == (same ? old[i] : 0));
}

/* Of a tensor with values for each of `olds` ranks or nodes, each of `news` has an equal part of
 * the sum, which is made in the order of shards; the same where they are as many. 0 olds: all are
 * 0. */
static void is_shared(test *t, const char *name, int olds, int news)
{
    const int nodes = olds == teams[0].s.world && teams[0].s.nodes ? teams[0].s.nodes : 1;
    static float old[RANKS * WIDTH], now[RANKS * WIDTH];
    if (teams[0].s.bits || teams[1].s.bits) {
        is_kept(t, name, olds, news);
        return;
    }
    memset(old, 0, sizeof old);
    if (!news || (olds && !read_of(t, &teams[0], name, old, (size_t)olds * WIDTH * sizeof *old)) ||
        !read_of(t, &teams[1], name, now, (size_t)news * WIDTH * sizeof *now))
        return;
    for (int i = 0; i < WIDTH; i++) {
        float sum = 0;
        for (int k = 0; k < olds; k++)
            sum += old[(k % nodes * (olds / nodes) + k / nodes) * WIDTH + i];
        for (int r = 0; r < news; r++)
            CHECK(t, now[r * WIDTH + i] == (olds == news ? old[r * WIDTH + i] : sum / (float)news));
    }
}

/* Each rank begins with an equal part of the sum of the errors that the old ranks had, and so does
 * each node with those between nodes; these are left out where there is one node, and 0 where there
 * was one. Errors in records are 0 in another world, or where they were floats. */
TEST_ONCE(loco_errors_of_another_world)
{
    static const setup rows[] = {{.world = 4, .nodes = 2, .stage = 3},
                                 {.world = 2, .stage = 1},
                                 {.world = 3, .stage = 2},
                                 {.world = 6, .nodes = 3, .stage = 1},
                                 {.world = 4, .nodes = 2, .stage = 3},
                                 {.world = 6, .nodes = 2, .stage = 3},
                                 {.world = 4, .nodes = 2, .stage = 3, .plain = true},
                                 {.world = 4, .nodes = 2, .stage = 2},
                                 {.world = 4, .nodes = 2, .stage = 3, .bits = 8},
                                 {.world = 4, .nodes = 2, .stage = 1, .bits = 8},
                                 {.world = 2, .stage = 1, .bits = 8},
                                 {.world = 2, .stage = 2}};
    const char *path = test_path("loco");
    zf_error error = {ZF_OK, ""};
    test_defer(t, team_free, &teams[0]);
    test_defer(t, team_free, &teams[1]);
    for (size_t n = 0; n + 1 < sizeof rows / sizeof *rows; n++) {
        const setup *from = &rows[n], *to = &rows[n + 1];
        if (!team_new(t, &teams[0], from) || !steps(t, &teams[0], 3) ||
            !team_new(t, &teams[1], to) || !steps(t, &teams[1], 1))
            return;
        OK(t,
           zf_lockstep_save(&(zf_lockstep_desc){teams[0].programs, from->world, 0}, path, NULL,
                            &error),
           error.text);
        OK(t,
           zf_lockstep_load(&(zf_lockstep_desc){teams[1].programs, to->world, 0}, path, NULL,
                            &error),
           error.text);
        is_shared(t, "loco.error/w", from->plain ? 0 : from->world, to->plain ? 0 : to->world);
        is_shared(t, "loco.between/w", from->plain ? 0 : from->nodes, to->plain ? 0 : to->nodes);
        if (!steps(t, &teams[1], 1)) return;
    }
}

/* A store without programs takes a checkpoint, which notes no roles: errors are known by their
 * names. They begin with 0 after a checkpoint that has none. A state of the user's that is called
 * almost so is no error: the other checkpoint lacks it. */
TEST_ONCE(loco_errors_by_name)
{
    static const setup with = {.world = 2, .stage = 1}, without = {.world = 2, .stage = 1, .plain = true};
    static float errors[2 * WIDTH];
    char path[2][300];
    bool some = false;
    zf_error error = {ZF_OK, ""};
    zf_store *store = zf_store_new(NULL, &error), *other = zf_store_new(NULL, &error);
    zf_graph *g = zf_graph_new(NULL);
    zf_program *p;
    test_defer(t, (test_cleanup *)zf_store_free, store);
    test_defer(t, (test_cleanup *)zf_store_free, other);
    NEED(t, store && other, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    test_defer(t, team_free, &teams[0]);
    for (int k = 0; k < 2; k++) {
        snprintf(path[k], sizeof path[k], "%s", test_path(k ? "loco-none" : "loco-some"));
        if (!team_new(t, &teams[0], k ? &without : &with) || !steps(t, &teams[0], 3)) return;
        OK(t, zf_lockstep_save(&(zf_lockstep_desc){teams[0].programs, 2, 0}, path[k], NULL, &error),
           error.text);
    }
    OK(t, zf_load(store, path[0], NULL), zf_store_error(store));
    OK(t, zf_store_read(store, "loco.error/w", errors, sizeof errors), zf_store_error(store));
    for (int i = 0; i < 2 * WIDTH; i++) some |= errors[i] != 0;
    CHECK(t, some);
    OK(t, zf_load(store, path[1], NULL), zf_store_error(store));
    OK(t, zf_store_read(store, "loco.error/w", errors, sizeof errors), zf_store_error(store));
    for (int i = 0; i < 2 * WIDTH; i++) CHECK(t, errors[i] == 0);
    zf_output(zf_add(zf_param(g, "w", ZF_SHAPE(WIDTH), NULL),
                     zf_state(g, "my.error/w", ZF_F32, ZF_SHAPE(WIDTH), 1)), "y");
    p = zf_compile(g, &(zf_compile_desc){.store = store});
    NEED(t, p, NULL);
    test_defer(t, (test_cleanup *)zf_program_free, p);
    OK(t, zf_save(store, path[0], NULL), zf_store_error(store));
    OK(t, zf_load(other, path[0], NULL), zf_store_error(other));
    CHECK(t, zf_load(other, path[1], NULL) == ZF_ERR_MISMATCH);
    CHECK(t, strstr(zf_store_error(other), "the checkpoint lacks the state \"my.error/w\""));
}

/* ------------------------------------------------------------------------------------ failed steps
 * */

/* After a step that failed, errors are 0 again on all ranks, and the run goes on. */
TEST_ONCE(loco_after_a_failed_step)
{
    enum { WORLD = 4 };
    static float errors[WORLD * WIDTH];
    const setup s = {.world = WORLD, .nodes = 2, .stage = 2};
    zf_error error = {ZF_OK, ""};
    bool some = false;
    test_defer(t, team_free, &teams[0]);
    if (!team_new(t, &teams[0], &s) || !steps(t, &teams[0], 2) ||
        !read_of(t, &teams[0], "loco.error/w", errors, sizeof errors))
        return;
    for (int i = 0; i < WORLD * WIDTH; i++) some |= errors[i] != 0;
    CHECK(t, some);
    CHECK(t, step(&teams[0], 1, &error) == ZF_ERR_NAN);
    if (!read_of(t, &teams[0], "loco.error/w", errors, sizeof errors)) return;
    for (int i = 0; i < WORLD * WIDTH; i++) CHECK(t, errors[i] == 0);
    if (!read_of(t, &teams[0], "loco.between/w", errors, 2 * WIDTH * sizeof *errors)) return;
    for (int i = 0; i < 2 * WIDTH; i++) CHECK(t, errors[i] == 0);
    CHECK(t, steps(t, &teams[0], 1));
}
