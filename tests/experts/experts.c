/* Experts: which experts tokens get, which rows choices get, what is dropped, and what a step
 * refuses (ops/route.c, experts.c, grouped_linear.c). */
#include "../support/golden.h"

/* What a step of the graph `text` makes: writes `count` inputs, in the order of x, and reads the
 * output "y". `kind`: of the backend. Returns the error, "" if there is none. */
typedef struct in {
    const char *name;
    const void *x;
    size_t bytes;
} in;

static const char *run(test *t, const char *text, const in *x, int count, void *y, size_t bytes)
{
    static char said[512];
    zf_error error = {ZF_OK, ""};
    zf_graph *g =
        zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
    zf_program *p = g ? zf_compile(g, NULL) : NULL;
    zf_status status = p ? ZF_OK : ZF_ERR_ARGUMENT;
    snprintf(said, sizeof said, "%s", g ? zf_graph_error(g) : error.text);
    for (int k = 0; k < count && !status; k++)
        status = zf_write(p, zf_graph_find(g, x[k].name), x[k].x, x[k].bytes);
    if (!status) status = zf_step(p);
    if (!status && y) status = zf_read(p, zf_graph_find(g, "y"), y, bytes);
    if (p) snprintf(said, sizeof said, "%s", status ? zf_program_error(p) : "");
    zf_program_free(p);
    zf_graph_free(g);
    return said;
}

/* Runs it; a refused allocation ends the test. */
#define RUN(t, text, x, y)                                                                         \
    do {                                                                                           \
        const char *said = run((t), (text), (x), (int)(sizeof(x) / sizeof *(x)), (y), sizeof(y));  \
        OK((t), *said ? ((t)->refused ? ZF_ERR_NOMEM : ZF_ERR_ARGUMENT) : ZF_OK, said);            \
    } while (0)

/* The step must fail, and its message have `part`. */
#define REFUSES(t, text, x, part)                                                                  \
    do {                                                                                           \
        const char *said = run((t), (text), (x), (int)(sizeof(x) / sizeof *(x)), NULL, 0);         \
        if (!strstr(said, (part))) {                                                               \
            OK((t), (t)->refused && *said ? ZF_ERR_NOMEM : ZF_OK, said);                           \
            CHECK_TEXT((t), said, (part));                                                         \
        }                                                                                          \
    } while (0)

TEST(experts_of_equal_logits_are_the_lowest)
{
    const float x[8] = {1, 1, 1, 1, 0, 2, 2, 0};
    const in given[] = {{"x", x, sizeof x}};
    int32_t all[8], two[4];
    const int32_t want_all[8] = {0, 1, 2, 3, 1, 2, 0, 3}, want_two[4] = {0, 1, 1, 2};
    RUN(t,
        "%1 = input \"x\" : f32[2,4]\n%2 = route %1 {k=4} : f32[2,4]\n"
        "%3 = saved %2 : i32[2,4]\noutput %3 \"y\"\n",
        given, all);
    CHECK(t, !memcmp(all, want_all, sizeof all));
    RUN(t,
        "%1 = input \"x\" : f32[2,4]\n%2 = route %1 {k=2} : f32[2,2]\n"
        "%3 = saved %2 : i32[2,2]\noutput %3 \"y\"\n",
        given, two);
    CHECK(t, !memcmp(two, want_two, sizeof two));
}

TEST(experts_of_groups_and_a_bias)
{
    /* sigmoid is monotonous; the best pair of groups is that of 2,3 in the first row, and by the
     * bias that of 0,1 in the second. The weights are of scores without bias. */
    const float x[8] = {3, -3, 1, 1, -1, -1, 1, 1}, bias[4] = {0, 0, 0, 0}, other[4] = {9, 8, 0, 0};
    const in given[] = {{"x", x, sizeof x}, {"b", bias, sizeof bias}},
             biased[] = {{"x", x, sizeof x}, {"b", other, sizeof other}};
    const char *text = "%1 = input \"x\" : f32[2,4]\n%2 = input \"b\" : f32[4]\n"
                       "%3 = route %1, %2 {form=sigmoid k=2 groups=2 kept=1 scale=2} : f32[2,2]\n"
                       "output %3 \"y\"\n";
    float y[4];
    RUN(t, text, given, y);
    CHECK_NEAR(t, y[0], 2 / (1 + exp(-1)), 1e-6);
    CHECK_NEAR(t, y[1], 2 / (1 + exp(-1)), 1e-6);
    CHECK_NEAR(t, y[2], 2 / (1 + exp(-1)), 1e-6);
    RUN(t, text, biased, y);
    CHECK_NEAR(t, y[0], 2 / (1 + exp(-3)), 1e-6);
    CHECK_NEAR(t, y[1], 2 / (1 + exp(3)), 1e-6);
    CHECK_NEAR(t, y[2], 2 / (1 + exp(1)), 1e-6);
}

TEST(experts_refuse_nan_and_what_is_too_much)
{
    const float x[8] = {1, 2, 3, 4, 1, NAN, 3, 4}, w[12] = {0};
    const in logits[] = {{"x", x, sizeof x}};
    const int32_t to[6] = {3, 1, 3, 0, 3, 3}, outside[6] = {3, 1, 4, 0, 3, 3}, bounds[4] = {0, 2, 1, 3},
                  rows[4] = {0, 1, 2, 5}, slots[4] = {0, 1, 2, 3};
    const in choices[] = {{"x", to, sizeof to}}, wrong[] = {{"x", outside, sizeof outside}},
             crossed[] = {{"x", x, sizeof x}, {"w", w, sizeof w}, {"b", bounds, sizeof bounds}},
             wild[] = {{"x", x, 16}, {"r", rows, sizeof rows}, {"s", slots, sizeof slots}};
    REFUSES(t,
            "%1 = input \"x\" : f32[2,4]\n%2 = route %1 {k=1} : f32[2,1]\noutput %2 \"y\"\n",
            logits, "route %2: the router's logits of token 1 have a NaN");
    REFUSES(t,
            "%1 = input \"x\" : f32[2,4]\n%2 = route %1 {k=1 form=sigmoid} : f32[2,1]\noutput %2 "
            "\"y\"\n",
            logits, "the router's logits of token 1 have a NaN");
    REFUSES(t,
            "%1 = input \"x\" : i32[3,2]\n%2 = expert_rows %1 {experts=4 rows=5} : i32[5]\n"
            "output %2 \"y\"\n",
            choices,
            "expert_rows %2: 6 choices need as many rows, and there are 5; expert 3 has 4 of them");
    REFUSES(t,
            "%1 = input \"x\" : i32[3,2]\n%2 = expert_rows %1 {experts=4 rows=6} : i32[6]\n"
            "output %2 \"y\"\n",
            wrong, "expert_rows %2: choice 2 is expert 4; it must be at least 0 and less than 4");
    REFUSES(t,
            "%1 = input \"x\" : f32[4,2]\n%2 = input \"w\" : f32[2,3,2]\n%3 = input \"b\" : i32[2,2]\n"
            "%4 = grouped_linear %1, %2, %3 : f32[4,3]\noutput %4 \"y\"\n",
            crossed, "grouped_linear %4: expert 1 has rows 1 to 3 of 4; bounds must ascend");
    REFUSES(t,
            "%1 = input \"x\" : f32[2,2]\n%2 = input \"r\" : i32[4]\n%3 = input \"s\" : i32[2,2]\n"
            "%4 = dispatch %1, %2, %3 : f32[4,2]\noutput %4 \"y\"\n",
            wild,
            "dispatch %4: element 3 of operand 1 is 5; it must be at least 0 and at most 4");
}

/* Rows of choices with and without a capacity: three tokens, two choices, four experts. */
TEST(experts_rows_are_by_expert_then_token)
{
    const int32_t to[6] = {3, 1, 1, 3, 3, 0};
    const in given[] = {{"x", to, sizeof to}};
    const int32_t want[8] = {5, 1, 2, 0, 3, 4, 6, 6}, bounds[8] = {0, 1, 1, 3, 3, 3, 3, 6};
    int32_t y[8], two[8];
    /* Of expert 3 the choices 0 and 4 are first ones; 3 is dropped. */
    const int32_t dropped[8] = {5, 6, 1, 2, 6, 6, 0, 4}, slots[6] = {6, 2, 3, 8, 7, 0};
    int32_t at[6];
    RUN(t,
        "%1 = input \"x\" : i32[3,2]\n%2 = expert_rows %1 {experts=4 rows=8} : i32[8]\n"
        "output %2 \"y\"\n",
        given, y);
    CHECK(t, !memcmp(y, want, sizeof y));
    RUN(t,
        "%1 = input \"x\" : i32[3,2]\n%2 = expert_rows %1 {experts=4 rows=8} : i32[8]\n"
        "%3 = saved %2 : i32[4,2]\noutput %3 \"y\"\n",
        given, two);
    CHECK(t, !memcmp(two, bounds, sizeof two));
    RUN(t,
        "%1 = input \"x\" : i32[3,2]\n%2 = expert_rows %1 {experts=4 rows=8 capacity=2} : i32[8]\n"
        "output %2 \"y\"\n",
        given, y);
    CHECK(t, !memcmp(y, dropped, sizeof y));
    RUN(t,
        "%1 = input \"x\" : i32[3,2]\n%2 = expert_rows %1 {experts=4 rows=8 capacity=2} : i32[8]\n"
        "%3 = saved %2 {index=1} : i32[3,2]\noutput %3 \"y\"\n",
        given, at);
    CHECK(t, !memcmp(at, slots, sizeof at));
}

/* Rows of parts: two sequences of four tokens, each of which has its half in each part; two experts,
 * a block each; and halves that are dealt zig-zag, of four parts. Expert 2 is none. */
TEST(experts_rows_are_by_part)
{
    const int32_t to[8] = {1, 0, 0, 1, 1, 1, 2, 0}; /* parts 0, 0, 1, 1; 0, 0, 1, 1 */
    const in given[] = {{"x", to, sizeof to}};
    const int32_t want[8] = {1, 0, 4, 5, 2, 7, 3, 8}, bounds[8] = {0, 1, 1, 4, 0, 2, 2, 3},
                  blocks[16] = {1, 8, 8, 8, 2, 7, 8, 8, 0, 4, 5, 8, 3, 8, 8, 8},
                  halves[8] = {0, 4, 7, 3, 1, 5, 2, 8};
    int32_t y[8], two[8], more[16];
    RUN(t,
        "%1 = input \"x\" : i32[8,1]\n%2 = expert_rows %1 {experts=2 rows=8 parts=2 runs=2} : "
        "i32[8]\noutput %2 \"y\"\n",
        given, y);
    CHECK(t, !memcmp(y, want, sizeof y));
    RUN(t,
        "%1 = input \"x\" : i32[8,1]\n%2 = expert_rows %1 {experts=2 rows=8 parts=2 runs=2} : "
        "i32[8]\n%3 = saved %2 : i32[4,2]\noutput %3 \"y\"\n",
        given, two);
    CHECK(t, !memcmp(two, bounds, sizeof two));
    RUN(t,
        "%1 = input \"x\" : i32[8,1]\n%2 = expert_rows %1 {experts=2 rows=16 blocks=2 parts=2 "
        "runs=2} : i32[16]\noutput %2 \"y\"\n",
        given, more);
    CHECK(t, !memcmp(more, blocks, sizeof more));
    RUN(t,
        "%1 = input \"x\" : i32[8,1]\n%2 = expert_rows %1 {experts=2 rows=8 parts=4 runs=2 "
        "zigzag=true} : i32[8]\noutput %2 \"y\"\n",
        given, y);
    CHECK(t, !memcmp(y, halves, sizeof y));
}

/* Capacities that no number of rows has are refused, and nothing overflows. */
TEST(experts_have_no_endless_capacity)
{
    static const int64_t capacities[] = {INT64_MAX, INT64_MAX / 3, INT64_MIN, -1};
    for (size_t k = 0; k < sizeof capacities / sizeof *capacities; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        char said[300];
        NEED(t, g, NULL);
        (void)zf_expert_rows(zf_input(g, "x", ZF_I32, ZF_SHAPE(3, 2)),
                             &(zf_expert_rows_desc){.experts = 4, .capacity = capacities[k]});
        snprintf(said, sizeof said, "%s", zf_graph_error(g));
        zf_graph_free(g);
        if (!strstr(said, "for 4 experts needs so many rows of each, not rows = 0")) CHECK_TEXT(t, said, "");
    }
}

/* The largest priorities stay, but no second choice before a first one. */
TEST(experts_keep_what_has_priority)
{
    const int32_t to[8] = {0, 1, 0, 1, 1, 0, 0, 1};
    const float of[8] = {0.25f, 0, 0.5f, 0.75f, 0.5f, 1, 0.75f, 0.875f};
    const in given[] = {{"x", to, sizeof to}, {"p", of, sizeof of}};
    const int32_t want[4] = {2, 6, 4, 7};
    int32_t y[4];
    RUN(t,
        "%1 = input \"x\" : i32[4,2]\n%2 = input \"p\" : f32[4,2]\n"
        "%3 = expert_rows %1, %2 {experts=2 rows=4 capacity=2} : i32[4]\noutput %3 \"y\"\n",
        given, y);
    CHECK(t, !memcmp(y, want, sizeof y));
}

/* The gates of 64 tokens as DeepSpeed's formulas have them: first choices have positions before all
 * second ones, what is at the capacity or beyond is dropped. */
enum { TOKENS = 64, EXPERTS = 4 };

static void gate(const float *logits, int k, int capacity, double *table)
{
    int count[EXPERTS] = {0}, first[TOKENS];
    memset(table, 0, TOKENS * EXPERTS * sizeof *table);
    for (int pass = 0; pass < k; pass++)
        for (int i = 0; i < TOKENS; i++) {
            const float *x = logits + i * EXPERTS;
            double sum = 0;
            int best = -1;
            for (int e = 0; e < EXPERTS; e++) {
                sum += exp(x[e]);
                if ((!pass || e != first[i]) && (best < 0 || x[e] > x[best])) best = e;
            }
            if (!pass) first[i] = best;
            if (count[best]++ < capacity) table[i * EXPERTS + best] = exp(x[best]) / sum;
        }
}

TEST(experts_of_deepspeeds_gates)
{
    static float logits[TOKENS * EXPERTS], y[TOKENS * EXPERTS];
    static double want[TOKENS * EXPERTS];
    const in given[] = {{"x", logits, sizeof logits}};
    for (int i = 0; i < TOKENS * EXPERTS; i++)
        logits[i] = (float)((i * 7919 + i * i * 31) % 1000) / 250 + (i % EXPERTS == 1);
    for (int k = 1; k <= 2; k++) {
        char text[1024];
        const int capacity = 20 * k;
        /* A gate in the column of its expert, where the choice has a row. */
        snprintf(text, sizeof text,
                 "%%1 = input \"x\" : f32[64,4]\n%%2 = route %%1 {k=%d} : f32[64,%d]\n"
                 "%%3 = saved %%2 : i32[64,%d]\n"
                 "%%4 = expert_rows %%3 {experts=4 rows=%d capacity=%d} : i32[%d]\n"
                 "%%5 = saved %%4 {index=1} : i32[64,%d]\n"
                 "%%6 = one_hot %%3 {classes=4 to=f32} : f32[64,%d,4]\n"
                 "%%7 = constant {values=[%d]} : i32[]\n%%8 = less %%5, %%7 : bool[64,%d]\n"
                 "%%9 = cast %%8 {to=f32} : f32[64,%d]\n%%10 = mul %%2, %%9 : f32[64,%d]\n"
                 "%%11 = reshape %%10 {shape=[64,%d,1]} : f32[64,%d,1]\n"
                 "%%12 = mul %%6, %%11 : f32[64,%d,4]\n"
                 "%%13 = sum %%12 {axis=1} : f32[64,4]\noutput %%13 \"y\"\n",
                 k, k, k, 4 * capacity, capacity, 4 * capacity, k, k, 4 * capacity, k, k, k, k, k, k);
        RUN(t, text, given, y);
        gate(logits, k, capacity, want);
        for (int i = 0; i < TOKENS * EXPERTS; i++) CHECK_NEAR(t, y[i], want[i], 1e-6);
    }
}

/* Scores, groups, the bias for the choice, weights and the gradient of logits, as DeepseekV3TopkRouter
 * of transformers has them (tests/golden/router/make.py). */
static void check_deepseek(test *t, const char *path, zf_route_desc d)
{
    enum { ALL = 64, OF = 16, CHOSEN = 4 };
    static const char *const names[] = {"logits", "bias", "by", "experts", "weights", "gradient"};
    static double golden[6][ALL * OF], weights[ALL * CHOSEN], gradient[ALL * OF];
    static int32_t chosen[ALL * CHOSEN];
    zf_safetensors *file = open_file(t, path);
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor x, y, by, loss, of;
    zf_program *p;
    if (!file || !g) return;
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    for (int k = 0; k < 6; k++) {
        int64_t count = 0;
        double *values = values_of(file, names[k], &count);
        if (!values || count > ALL * OF) {
            test_fail(t, __FILE__, __LINE__, path, names[k]);
            return;
        }
        memcpy(golden[k], values, (size_t)count * sizeof *values);
        free(values);
    }
    x = zf_param(g, "x", ZF_SHAPE(ALL, OF), &(zf_param_desc){.dtype = ZF_F64});
    d.k = CHOSEN, d.sigmoid = true, d.bias = zf_input(g, "bias", ZF_F64, ZF_SHAPE(OF));
    d.experts = &of;
    by = zf_input(g, "by", ZF_F64, ZF_SHAPE(ALL, CHOSEN));
    y = zf_route(x, &d);
    (void)zf_output(y, "weights"), (void)zf_output(of, "experts");
    loss = zf_cast(zf_sum(zf_mul(y, by)), ZF_F32);
    zf_autograd(g, loss);
    (void)zf_output(zf_gradient(g, x), "gradient");
    p = zf_compile(g, NULL);
    OK(t, p ? ZF_OK : zf_graph_status(g), zf_graph_error(g));
    test_defer(t, (test_cleanup *)zf_program_free, p);
    OK(t, zf_write(p, x, golden[0], sizeof golden[0]), zf_program_error(p));
    OK(t, zf_write(p, d.bias, golden[1], OF * sizeof(double)), zf_program_error(p));
    OK(t, zf_write(p, by, golden[2], sizeof weights), zf_program_error(p));
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, zf_graph_find(g, "weights"), weights, sizeof weights), zf_program_error(p));
    OK(t, zf_read(p, zf_graph_find(g, "experts"), chosen, sizeof chosen), zf_program_error(p));
    OK(t, zf_read(p, zf_graph_find(g, "gradient"), gradient, sizeof gradient), zf_program_error(p));
    for (int i = 0; i < ALL * CHOSEN; i++) {
        CHECK(t, chosen[i] == (int32_t)golden[3][i]);
        CHECK_NEAR(t, weights[i], golden[4][i], 1e-13);
    }
    for (int i = 0; i < ALL * OF; i++) CHECK_NEAR(t, gradient[i], golden[5][i], 1e-13);
}

TEST_ONCE(experts_of_deepseeks_router)
{
    check_deepseek(t, "tests/golden/router/groups.safetensors",
                   (zf_route_desc){.groups = 4, .kept = 2, .normalize = true, .scale = 2.5});
    check_deepseek(t, "tests/golden/router/plain.safetensors", (zf_route_desc){.groups = 1, .kept = 1});
}
