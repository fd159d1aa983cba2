/* Caches of keys and values: attention to them through several steps and two programs, what they
 * are in a plan and in a store, and mistakes. */
#include "../support/test.h"

enum { BATCH = 3, CONTEXT = 80, RING = 64, CHUNK = 8, LONGEST = 77, MOST_WIDTH = 300 };

typedef struct form {
    int64_t heads, kv_heads, d, window;
    zf_dtype dtype;
    double bound;
    bool reference, ring;
    const char *layout; /* as zf_block_mask_parse takes it; NULL: all keys are seen */
} form;

static const form forms[] = {
    {4, 2, 5, 0, ZF_F64, 1e-12, false, false, NULL},
    {3, 1, 70, 0, ZF_F32, 2e-6, false, false, NULL},
    {2, 2, 64, 0, ZF_F32, 2e-6, false, false, NULL},
    {4, 2, 5, 6, ZF_F32, 2e-6, true, false, NULL},
    {4, 4, 8, 70, ZF_F32, 2e-6, false, false, NULL},
    {3, 1, 33, 9, ZF_BF16, 0x1p-7, false, false, NULL},
    {2, 1, 64, 0, ZF_F16, 0x1p-9, false, false, NULL},
    /* The longest text goes round the ring, a prompt and single tokens; one needs all of its
     * rows. */
    {4, 2, 5, 6, ZF_F32, 2e-6, true, true, NULL},
    {4, 4, 8, 57, ZF_F32, 2e-6, false, true, NULL},
    {2, 1, 33, 9, ZF_BF16, 0x1p-7, false, true, NULL},
    {1, 1, 300, 40, ZF_F32, 5e-6, false, true, NULL},
};

static double cap; /* of scaled scores, in all forms; 0: none */

/* Of block masks; the last one's rows are those of `listed`. */
static const form masked[] = {
    {4, 2, 5, 0, ZF_F64, 1e-12, false, false, "window"},
    {3, 1, 70, 0, ZF_F32, 2e-6, false, false, "bigbird,random=1,width=1,per_head"},
    {4, 2, 5, 9, ZF_F32, 2e-6, true, false, "fixed,local=2,patterns=2,per_head"},
    {3, 1, 33, 40, ZF_BF16, 0x1p-7, false, false, "longformer,width=1,block=32"},
    {2, 1, 64, 0, ZF_F16, 0x1p-9, false, false, "window,width=1"},
    {2, 1, 8, 0, ZF_F32, 2e-6, false, false, "file"},
};
/* The third block of tokens sees no key, nor do others its own. */
static const char listed[] = "10000\n10000\n00000\n01000\n11110\n";
static zf_block_mask *mask; /* of the form; NULL: none */

/* Tokens of each example, of which the first go as a prompt. */
static const int64_t lengths[BATCH] = {LONGEST, 9, 24}, prompts[BATCH] = {70, 3, 24};

static double number_of(int k, int64_t b, int64_t t, int64_t i)
{
    return sin((double)(k * 7919 + b * 104729 + t * 1299 + i * 17)) * (k == 2 ? 1 : 1.5);
}

/* A program of `tokens` new tokens, over the caches of another one. */
typedef struct part {
    zf_graph *graph;
    zf_program *program;
    zf_tensor x[3], past, count, y;
} part;

static void free_part(void *object)
{
    part *p = object;
    zf_program_free(p->program);
    zf_graph_free(p->graph);
    *p = (part){.graph = NULL};
}

static void build_over(test *t, part *p, const form *f, int64_t tokens, int64_t context)
{
    static const char *const names[] = {"q", "k", "v"};
    zf_shape kv = ZF_SHAPE(BATCH, tokens, f->kv_heads * f->d);
    zf_shape rows = ZF_SHAPE(BATCH, context, f->kv_heads * f->d);
    zf_graph *g = p->graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    for (int k = 0; k < 3; k++)
        p->x[k] = zf_input(g, names[k], f->dtype,
                           k ? kv : ZF_SHAPE(BATCH, tokens, f->heads * f->d));
    p->past = zf_input(g, "past", ZF_I32, ZF_SHAPE(BATCH));
    p->count = zf_input(g, "count", ZF_I32, ZF_SHAPE(BATCH));
    p->y = zf_output(
        zf_attention(p->x[0], p->x[1], p->x[2],
                     &(zf_attention_desc){.heads = f->heads,
                                          .kv_heads = f->kv_heads,
                                          .causal = true,
                                          .window = f->window,
                                          .ring = f->ring,
                                          .cap = cap,
                                          .k_cache = zf_cache(g, "k_cache", f->dtype, rows),
                                          .v_cache = zf_cache(g, "v_cache", f->dtype, rows),
                                          .past = p->past,
                                          .count = p->count,
                                          .blocks = mask ? zf_block_mask_lists(g, mask) : ZF_NONE}),
        "y");
}

static void build_part(test *t, part *p, const form *f, int64_t tokens)
{
    build_over(t, p, f, tokens, f->ring ? RING : CONTEXT);
}

/* What x of that kind holds after rounding. */
static double rounded(const form *f, double x)
{
    char room[8];
    double y;
    zf_convert(room, f->dtype, &x, ZF_F64, 1);
    zf_convert(&y, ZF_F64, room, f->dtype, 1);
    return y;
}

static bool sees(int64_t head, int64_t m, int64_t n)
{
    const int64_t block = mask ? zf_block_mask_info_of(mask).block : 1;
    return !mask || zf_block_mask_sees(mask, head, m / block, n / block);
}

/* The result y[0..d) of one head of query m of an example, by definition. */
static void expected(const form *f, int64_t b, int64_t m, int64_t head, double *y)
{
    int64_t kv = head / (f->heads / f->kv_heads) * f->d;
    int64_t first = f->window && m + 1 > f->window ? m + 1 - f->window : 0;
    double p[LONGEST], q[MOST_WIDTH], most = -INFINITY, sum = 0;
    for (int64_t e = 0; e < f->d; e++) q[e] = rounded(f, number_of(0, b, m, head * f->d + e)), y[e] = 0;
    for (int64_t n = first; n <= m; n++) {
        p[n] = 0;
        for (int64_t e = 0; e < f->d; e++) p[n] += q[e] * rounded(f, number_of(1, b, n, kv + e));
        p[n] /= sqrt((double)f->d);
        if (cap > 0) p[n] = cap * tanh(p[n] / cap);
        if (!sees(head, m, n)) p[n] = -INFINITY;
        most = fmax(most, p[n]);
    }
    for (int64_t n = first; n <= m; n++) sum += p[n] = most == -INFINITY ? 0 : exp(p[n] - most);
    for (int64_t n = first; n <= m; n++)
        for (int64_t e = 0; e < f->d; e++)
            y[e] += (sum == 0 ? 0 : p[n] / sum) * rounded(f, number_of(2, b, n, kv + e));
}

static zf_status write_part(part *p, const form *f, int64_t tokens, const int32_t *past,
                            const int32_t *count)
{
    static double x[BATCH * CHUNK * MOST_WIDTH];
    static char raw[sizeof x];
    zf_status status = zf_write(p->program, p->past, past, BATCH * sizeof *past);
    for (int k = 0; k < 3 && !status; k++) {
        int64_t width = (k ? f->kv_heads : f->heads) * f->d, n = BATCH * tokens * width;
        for (int64_t at = 0; at < n; at++) {
            int64_t b = at / width / tokens, m = at / width % tokens;
            /* Padding must not matter. */
            x[at] = m < count[b] ? number_of(k, b, past[b] + m, at % width) : NAN;
        }
        zf_convert(raw, f->dtype, x, ZF_F64, (size_t)n);
        status = zf_write(p->program, p->x[k], raw, (size_t)n * zf_dtype_size(f->dtype));
    }
    return status ? status : zf_write(p->program, p->count, count, BATCH * sizeof *count);
}

/* One step: each example gets the tokens that are left of `until`, at most `tokens`. */
static bool advance(test *t, part *p, const form *f, int64_t tokens, int32_t *past,
                    const int64_t *until)
{
    static double y[BATCH * CHUNK * MOST_WIDTH];
    static char raw[sizeof y];
    int64_t width = f->heads * f->d, n = BATCH * tokens * width;
    double head[MOST_WIDTH];
    int32_t count[BATCH];
    zf_status status;
    for (int b = 0; b < BATCH; b++)
        count[b] = (int32_t)(until[b] - past[b] < tokens ? until[b] - past[b] : tokens);
    status = write_part(p, f, tokens, past, count);
    if (!status) status = zf_step(p->program);
    if (!status) status = zf_read(p->program, p->y, raw, (size_t)n * zf_dtype_size(f->dtype));
    if (status) {
        test_fail(t, __FILE__, __LINE__, "a step", zf_program_error(p->program));
        return false;
    }
    zf_convert(y, ZF_F64, raw, f->dtype, (size_t)n);
    for (int64_t at = 0; at < n; at++) {
        int64_t b = at / width / tokens, m = at / width % tokens, e = at % width;
        double exact;
        char text[120];
        if (e % f->d == 0 && m < count[b]) expected(f, b, past[b] + m, e / f->d, head);
        exact = m < count[b] ? head[e % f->d] : 0;
        if (fabs(y[at] - exact) <= f->bound * (m < count[b])) continue;
        snprintf(text, sizeof text, "example %d, token %d, element %d: %.9g, not %.9g", (int)b,
                 (int)(past[b] + m), (int)e, y[at], exact);
        test_fail(t, __FILE__, __LINE__, "attention to a cache", text);
        return false;
    }
    for (int b = 0; b < BATCH; b++) past[b] += count[b];
    return true;
}

/* Prompts in chunks, then tokens one by one, examples of different lengths. */
static void check_form(test *t, const form *f)
{
    static part many, one; /* outlive what the test defers */
    zf_error error = {ZF_OK, ""};
    zf_backend *cpu =
        zf_cpu_backend(&(zf_cpu_desc){.threads = 2, .reference = f->reference}, &error);
    int32_t past[BATCH] = {0};
    free_part(&one), free_part(&many); /* of a form that ended early */
    NEED(t, cpu, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    build_part(t, &many, f, CHUNK);
    test_defer(t, free_part, &many);
    many.program = zf_compile(many.graph, &(zf_compile_desc){.backend = cpu, .verify = true});
    OK(t, zf_graph_status(many.graph), zf_graph_error(many.graph));
    build_part(t, &one, f, 1);
    test_defer(t, free_part, &one);
    one.program = zf_compile(one.graph, &(zf_compile_desc){.store = zf_program_store(many.program),
                                                           .must_exist = true,
                                                           .caches = many.program,
                                                           .verify = true});
    OK(t, zf_graph_status(one.graph), zf_graph_error(one.graph));
    while (past[0] < prompts[0])
        if (!advance(t, &many, f, CHUNK, past, prompts)) return;
    while (past[0] < lengths[0])
        if (!advance(t, &one, f, 1, past, lengths)) return;
    free_part(&one);
    free_part(&many);
}

TEST_ONCE(cache_holds_what_attention_sees)
{
    for (size_t k = 0; k < sizeof forms / sizeof *forms && !t->failed; k++)
        if (!forms[k].ring) check_form(t, &forms[k]);
}

/* The same with a cap. */
TEST_ONCE(cache_holds_what_capped_attention_sees)
{
    cap = 0.7;
    for (size_t k = 0; k < sizeof forms / sizeof *forms && !t->failed; k++)
        if (k % 3 != 1) check_form(t, &forms[k]);
    cap = 0;
}

static void free_mask(void *unused)
{
    (void)unused;
    zf_block_mask_free(mask);
    mask = NULL;
}

/* The mask of a form. */
static bool open_mask(test *t, const form *f)
{
    zf_block_mask_desc d = {.tokens = CONTEXT, .heads = f->heads, .causal = true};
    char text[600], path[512];
    zf_error error = {ZF_OK, ""};
    FILE *file;
    snprintf(path, sizeof path, "%s", test_path("seen.txt"));
    file = fopen(path, "w");
    if (file) fputs(listed, file), fclose(file);
    snprintf(text, sizeof text, strcmp(f->layout, "file") ? "%s" : "%s,path=%s", f->layout, path);
    if (!zf_block_mask_parse(text, &d, &error)) mask = zf_block_mask_new(&d, &error);
    remove(path);
    if (!mask) test_fail(t, __FILE__, __LINE__, f->layout, error.text);
    return mask != NULL;
}

TEST_ONCE(cache_holds_what_a_block_mask_sees)
{
    test_defer(t, free_mask, NULL);
    for (size_t k = 0; k < sizeof masked / sizeof *masked && !t->failed; k++) {
        if (open_mask(t, &masked[k])) check_form(t, &masked[k]);
        free_mask(NULL);
    }
}

TEST_ONCE(cache_rings_hold_what_attention_sees)
{
    for (size_t k = 0; k < sizeof forms / sizeof *forms && !t->failed; k++)
        if (forms[k].ring) check_form(t, &forms[k]);
}

/* Attention of the same prompts over caches of other lengths has the same bits: a text does not
 * depend on the longest one of its batch. */
TEST_ONCE(cache_of_any_length_gives_the_same_bits)
{
    enum { WIDTH = 300 };
    static const form f = {1, 1, WIDTH, 0, ZF_F32, 0, false, false, NULL};
    static const int64_t contexts[] = {60, 78, 130}; /* alone they are cut at 32 and at 64 */
    static float y[3][BATCH * CHUNK * WIDTH];
    static part p;
    for (int k = 0; k < 3; k++) {
        int32_t past[BATCH] = {0}, count[BATCH] = {CHUNK, CHUNK, CHUNK};
        free_part(&p);
        build_over(t, &p, &f, CHUNK, contexts[k]);
        if (!k) test_defer(t, free_part, &p);
        p.program = zf_compile(p.graph, NULL);
        OK(t, zf_graph_status(p.graph), zf_graph_error(p.graph));
        for (; past[0] + CHUNK <= 60; past[0] += CHUNK, past[1] += CHUNK, past[2] += CHUNK) {
            OK(t, write_part(&p, &f, CHUNK, past, count), zf_program_error(p.program));
            OK(t, zf_step(p.program), zf_program_error(p.program));
        }
        OK(t, zf_read(p.program, p.y, y[k], sizeof y[k]), zf_program_error(p.program));
        CHECK(t, !memcmp(y[k], y[0], sizeof y[0]));
    }
}

/* ------------------------------------------------------------------------------- mistakes */

static const form plain = {2, 1, 4, 0, ZF_F32, 0, false, false, NULL};

static void check_error(test *t, zf_graph *g, const char *text)
{
    CHECK_TEXT(t, zf_graph_error(g), text);
}

/* More tokens than there is room for, negative numbers: errors of the step, which leave the caches
 * as they were. */
TEST(cache_overflows)
{
    static const int32_t cases[][2] = {{CONTEXT - 1, 2}, {-1, 1}, {0, CHUNK + 1}, {0, -1}};
    static const char *const texts[] = {
        "cached_attention %8: example 1 has 79 tokens in the cache and 2 new ones, more than "
        "the 80 for which the cache has room",
        "cached_attention %8: example 1 has -1 tokens in the cache and 1 new ones of 8: they "
        "must not be negative, nor more than that",
        "cached_attention %8: example 1 has 0 tokens in the cache and 9 new ones of 8: they "
        "must not be negative, nor more than that",
        "cached_attention %8: example 1 has 0 tokens in the cache and -1 new ones of 8: they "
        "must not be negative, nor more than that"};
    static const char zeros[BATCH * CHUNK * 8 * 4];
    float rows[BATCH * CONTEXT * 4];
    part p;
    build_part(t, &p, &plain, CHUNK);
    NEED(t, p.graph, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, p.graph);
    p.program = zf_compile(p.graph, NULL);
    OK(t, zf_graph_status(p.graph), zf_graph_error(p.graph));
    test_defer(t, (test_cleanup *)zf_program_free, p.program);
    for (int k = 0; k < 3; k++)
        OK(t, zf_write(p.program, p.x[k], zeros, zf_tensor_bytes(p.x[k])),
           zf_program_error(p.program));
    for (int k = 0; k < 4; k++) {
        int32_t past[BATCH] = {0, cases[k][0], 0}, count[BATCH] = {1, cases[k][1], 1};
        OK(t, zf_write(p.program, p.past, past, sizeof past), zf_program_error(p.program));
        OK(t, zf_write(p.program, p.count, count, sizeof count), zf_program_error(p.program));
        GIVES(t, zf_step(p.program), ZF_ERR_ARGUMENT, zf_program_error(p.program));
        CHECK_TEXT(t, zf_program_error(p.program), texts[k]);
    }
    OK(t, zf_read(p.program, zf_graph_find(p.graph, "k_cache"), rows, sizeof rows),
       zf_program_error(p.program));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) CHECK(t, rows[i] == 0);
}

/* Operands that do not fit. */
TEST(cache_operands)
{
    static const struct {
        const char *line, *error;
    } cases[] = {
        {"%8 = cached_attention %1, %2, %3, %4, %5, %2, %7 {heads=2 scale=1 kv_heads=1} : f32[2,3,8]",
         "8: cached_attention: operand 5 must be a cache"},
        {"%8 = cached_attention %1, %2, %3, %4, %5, %6, %6 {heads=2 scale=1 kv_heads=1} : f32[2,3,8]",
         "8: cached_attention: operands 5 and 6 must be two caches"},
        {"%8 = cached_attention %1, %2, %3, %1, %5, %6, %7 {heads=2 scale=1 kv_heads=1} : f32[2,3,8]",
         "8: cached_attention: operand 3, tokens in the caches, must be i32 or i64 [2]"},
        {"%8 = cached_attention %1, %2, %3, %4, %5, %6, %7 {heads=2 scale=1} : f32[2,3,8]",
         "8: cached_attention: operands 1 and 2 must be [2, 3, 8]: 2 heads as wide as those of "
         "operand 0, of its tokens"},
        {"%8 = cached_attention %1, %2, %3, %4, %5, %6, %7 {heads=2 scale=1 kv_heads=3} : f32[2,3,8]",
         "8: cached_attention: heads = 2 must be 1 or more, and a multiple of kv_heads = 3"},
        {"%8 = cached_attention %1, %2, %3, %4, %5, %6, %7 {heads=2 scale=1 kv_heads=1 ring=true} : "
         "f32[2,3,8]",
         "8: cached_attention: a ring needs a window, which is what it keeps"},
        {"%8 = cached_attention %1, %2, %3, %4, %5, %6, %7 {heads=2 scale=1 kv_heads=1 window=3 "
         "ring=true} : f32[2,3,8]",
         "8: cached_attention: a ring of 9 tokens must be a multiple of 64, and have room for the "
         "window of 3 and for the 3 new tokens less 1"},
        {"%8 = cache \"a\" : f32[2,64,4]\n%9 = cache \"b\" : f32[2,64,4]\n%10 = cached_attention "
         "%1, %2, %3, %4, %5, %8, %9 {heads=2 scale=1 kv_heads=1 window=63 ring=true} : f32[2,3,8]",
         "10: cached_attention: a ring of 64 tokens must be a multiple of 64, and have room for the "
         "window of 63 and for the 3 new tokens less 1"},
        {"%8 = input \"b\" : f32[1,2,3,9]\n%9 = cached_attention %1, %2, %3, %4, %5, %6, %7, %8 "
         "{heads=2 scale=1 kv_heads=1 biased=true} : f32[2,3,8]",
         "9: cached_attention: the bias, the last operand, must be f32[1,2,1,9], or of one head"},
        {"%8 = cache \"a\" : f32[2,128,4]\n%9 = cache \"b\" : f32[2,128,4]\n"
         "%10 = input \"c\" : f32[1,2,1,128]\n%11 = cached_attention %1, %2, %3, %4, %5, %8, %9, %10 "
         "{heads=2 scale=1 kv_heads=1 window=63 ring=true biased=true} : f32[2,3,8]",
         "11: cached_attention: a ring has no bias"},
        {"%8 = cached_attention %1, %2, %3, %4, %5, %6, %7, %7 {heads=2 scale=1 kv_heads=1} : "
         "f32[2,3,8]",
         "8: cached_attention: block = 0, and the lists of a block mask are there"},
        {"%8 = add %6, %7 : f32[2,9,4]\noutput %8 \"y\"",
         "verify: %8 = add %6, %7 : f32[2,9,4]: %6 is a cache, which only the node reads that writes "
         "it"},
    };
    static const char leaves[] = "%1 = input \"q\" : f32[2,3,8]\n"
                                 "%2 = input \"k\" : f32[2,3,4]\n"
                                 "%3 = input \"v\" : f32[2,3,4]\n"
                                 "%4 = input \"past\" : i32[2]\n"
                                 "%5 = input \"count\" : i64[2]\n"
                                 "%6 = cache \"k_cache\" : f32[2,9,4]\n"
                                 "%7 = cache \"v_cache\" : f32[2,9,4]\n";
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char text[1024];
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        snprintf(text, sizeof text, "%s%s\n", leaves, cases[k].line);
        g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
        if (g) zf_graph_free(g);
        CHECK(t, !g);
        error.text[strcspn(error.text, ";")] = '\0'; /* the operands */
        CHECK_TEXT(t, error.text, cases[k].error);
    }
}

/* The builder takes all of the four or none, and neither mask nor dropout; a cache is not trained
 * through; a ring needs caches. */
TEST(cache_builders)
{
    for (int k = 0; k < 5; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_tensor x, past;
        zf_attention_desc d = {.causal = true, .ring = k == 4};
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        x = zf_param(g, "x", ZF_SHAPE(1, 2, 6), NULL);
        past = zf_input(g, "past", ZF_I32, ZF_SHAPE(1));
        if (k < 4) {
            d.k_cache = zf_cache(g, "k", ZF_F32, ZF_SHAPE(1, 9, 6));
            d.v_cache = zf_cache(g, "v", ZF_F32, ZF_SHAPE(1, 9, 6));
            d.past = past, d.count = k == 0 ? ZF_NONE : zf_input(g, "count", ZF_I32, ZF_SHAPE(1));
        }
        d.dropout = k == 1 ? 0.5 : 0;
        x = zf_attention(x, k == 2 ? ZF_NONE : x, k == 2 ? ZF_NONE : x, &d);
        if (k == 3) (void)zf_autograd(g, zf_sum(x));
        if (t->refused) continue;
        CHECK(t, zf_graph_status(g));
        if (!strstr(zf_graph_error(g), k == 0   ? "k_cache, v_cache, past and count must be given together"
                                       : k == 3 ? "cached_attention"
                                       : k == 4 ? "only caches can be a ring"
                                                : "with caches it takes q, k and v, is causal"))
            test_fail(t, __FILE__, __LINE__, "what is wrong", zf_graph_error(g));
    }
}

/* ---------------------------------------------------------------------- plans and stores */

/* A cache has its bytes in the plan of the program that has it, in no store, and is another
 * program's only where it is alike. */
TEST(cache_is_of_a_program)
{
    const size_t each = (BATCH * CONTEXT * 4 * sizeof(float) + 63) / 64 * 64;
    form wide = plain;
    part p, other, wrong;
    zf_program_info info;
    zf_program *never;
    build_part(t, &p, &plain, CHUNK);
    NEED(t, p.graph, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, p.graph);
    (void)zf_param(p.graph, "w", ZF_SHAPE(5), NULL);
    p.program = zf_compile(p.graph, NULL);
    OK(t, zf_graph_status(p.graph), zf_graph_error(p.graph));
    test_defer(t, (test_cleanup *)zf_program_free, p.program);
    info = zf_program_info_of(p.program);
    CHECK(t, info.cache_bytes == 2 * each);
    CHECK(t, info.plan.most[ZF_CACHES] == 2 * each && info.plan.at_peak[ZF_CACHES] == 2 * each);
    CHECK(t, info.peak_bytes == info.allocated_bytes && info.state_bytes == 0);
    CHECK(t, info.store_bytes == 64);
    CHECK(t, zf_store_count(STORE(p.program)) == 1);
    CHECK_TEXT(t, zf_kind_name(ZF_CACHES), "caches");

    build_part(t, &other, &plain, 1);
    NEED(t, other.graph, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, other.graph);
    other.program = zf_compile(
        other.graph,
        &(zf_compile_desc){.store = STORE(p.program), .must_exist = true, .caches = p.program});
    OK(t, zf_graph_status(other.graph), zf_graph_error(other.graph));
    test_defer(t, (test_cleanup *)zf_program_free, other.program);
    info = zf_program_info_of(other.program);
    CHECK(t, info.cache_bytes == 0 && info.plan.most[ZF_CACHES] == 0);
    CHECK(t, info.peak_bytes == info.allocated_bytes && info.peak_bytes < each);

    wide.kv_heads = 2;
    build_part(t, &wrong, &wide, 1);
    NEED(t, wrong.graph, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, wrong.graph);
    never = zf_compile(wrong.graph,
                       &(zf_compile_desc){.store = STORE(p.program), .caches = p.program});
    CHECK(t, !never);
    check_error(t, wrong.graph,
                "zf_compile: the cache \"k_cache\" is f32[3,80,8] here and f32[3,80,4] in the program "
                "that lends it (zf_compile_desc.caches)");
}

/* ----------------------------------------------------------------------------- temporary caches */

/* A program with many values, in whose memory the others generate; then a prompt and single
 * tokens. */
typedef struct turns {
    part large, many, one;
} turns;

static void free_turns(void *object)
{
    turns *a = object;
    free_part(&a->one);
    free_part(&a->many);
    free_part(&a->large);
}

static zf_program *in_turns(part *p, const turns *a, bool first, bool temporary)
{
    return p->program = zf_compile(
               p->graph,
               &(zf_compile_desc){.store = STORE(a->large.program),
                                  .shares_memory_with = first ? a->large.program : a->many.program,
                                  .caches = first ? NULL : a->many.program,
                                  .temporary_caches = first && temporary,
                                  .verify = true});
}

static zf_graph *large_graph(test *t)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_output(zf_exp(zf_neg(zf_input(g, "x", ZF_F32, ZF_SHAPE(40000)))), "y");
    return g;
}

static bool open_turns(test *t, turns *a, const form *f, bool temporary)
{
    part *const parts[] = {&a->large, &a->many, &a->one};
    *a = (turns){.large.graph = large_graph(t)};
    a->large.x[0] = zf_graph_find(a->large.graph, "x");
    a->large.y = zf_graph_find(a->large.graph, "y");
    build_part(t, &a->many, f, CHUNK), build_part(t, &a->one, f, 1);
    if ((a->large.program = zf_compile(a->large.graph, NULL)) != NULL &&
        in_turns(&a->many, a, true, temporary) && in_turns(&a->one, a, false, temporary))
        return true;
    for (int k = 0; k < 3; k++)
        if (!parts[k]->graph || zf_graph_status(parts[k]->graph)) {
            test_unwind(t, __FILE__, __LINE__, "turns",
                        parts[k]->graph ? zf_graph_status(parts[k]->graph) : ZF_ERR_NOMEM,
                        zf_graph_error(parts[k]->graph));
            break;
        }
    free_turns(a);
    return false;
}

static zf_status run_large(turns *a)
{
    static float x[40000];
    const zf_status status = zf_write(a->large.program, a->large.x[0], x, sizeof x);
    return status ? status : zf_step(a->large.program);
}

/* Prompts and single tokens of all examples. */
static bool generate(test *t, turns *a, const form *f)
{
    int32_t past[BATCH] = {0};
    while (past[0] < prompts[0])
        if (!advance(t, &a->many, f, CHUNK, past, prompts)) return false;
    while (past[0] < lengths[0])
        if (!advance(t, &a->one, f, 1, past, lengths)) return false;
    return true;
}

/* Every byte of the caches lies in the memory of the large program; what is predicted is what is
 * allocated or lent; generation is what it was, also after that program has run there. */
static void check_temporary(test *t, const form *f)
{
    static turns a, apart;
    const size_t each = ((size_t)(BATCH * (f->ring ? RING : CONTEXT) * f->kv_heads * f->d) *
                             zf_dtype_size(f->dtype) +
                         63) /
                        64 * 64;
    zf_program_info large, many, one, alone;
    zf_store_info store;
    free_turns(&a), free_turns(&apart); /* of a form that ended early */
    if (!open_turns(t, &apart, f, false)) return;
    test_defer(t, free_turns, &apart);
    if (!open_turns(t, &a, f, true)) return;
    test_defer(t, free_turns, &a);
    large = zf_program_info_of(a.large.program), many = zf_program_info_of(a.many.program);
    one = zf_program_info_of(a.one.program), alone = zf_program_info_of(apart.many.program);
    store = zf_store_info_of(STORE(a.large.program));
    CHECK(t, many.cache_bytes == 2 * each && many.peak_bytes == alone.peak_bytes);
    CHECK(t, many.allocated_bytes == alone.allocated_bytes - 2 * each);
    CHECK(t, many.shared[ZF_DEVICE] == alone.shared[ZF_DEVICE] + 2 * each);
    CHECK(t, many.allocated_bytes == many.input_bytes + many.constant_bytes);
    CHECK(t, one.allocated_bytes + one.shared[ZF_DEVICE] == one.peak_bytes);
    CHECK(t, one.allocated_bytes == one.input_bytes + one.constant_bytes);
    CHECK(t, one.plan.at_peak[ZF_CACHES] == 2 * each && one.plan.live_bytes == one.live_bytes);
    CHECK(t, store.bytes + store.program_bytes ==
                 large.allocated_bytes + many.allocated_bytes + one.allocated_bytes);
    for (int turn = 0; turn < 2; turn++) {
        OK(t, run_large(&a), zf_program_error(a.large.program));
        CHECK(t, !zf_has_caches(a.many.program) && !zf_has_caches(a.one.program));
        OK(t, zf_clear_caches(turn ? a.one.program : a.many.program),
           zf_program_error(a.many.program));
        CHECK(t, zf_has_caches(a.many.program) && zf_has_caches(a.one.program));
        if (!generate(t, &a, f)) return;
    }
    free_turns(&a), free_turns(&apart);
}

TEST_ONCE(cache_lies_in_memory_of_another_program)
{
    for (size_t k = 0; k < sizeof forms / sizeof *forms && !t->failed; k++)
        if (forms[k].d <= 8 || forms[k].dtype != ZF_F32) check_temporary(t, &forms[k]);
}

static const char gone[] =
    "nothing is in the temporary caches, or another program has run in their memory "
    "(zf_compile_desc.temporary_caches): after zf_clear_caches each text begins "
    "with its first token";

static void check_gone(test *t, zf_program *p, zf_status status, const char *call)
{
    char text[300];
    snprintf(text, sizeof text, "%s: %s", call, gone);
    GIVES(t, status, ZF_ERR_STAGE, zf_program_error(p));
    CHECK_TEXT(t, zf_program_error(p), text);
}

/* What another program has overwritten is neither used, nor read, nor written in part. */
TEST(cache_that_is_gone)
{
    static turns a;
    static float rows[BATCH * CONTEXT * 4], y[40000];
    zf_tensor cache;
    int32_t past[BATCH] = {0}, count[BATCH] = {1, 1, 1};
    if (!open_turns(t, &a, &plain, true)) return;
    test_defer(t, free_turns, &a);
    cache = zf_graph_find(a.many.graph, "k_cache");
    OK(t, write_part(&a.many, &plain, CHUNK, past, count), zf_program_error(a.many.program));
    OK(t, write_part(&a.one, &plain, 1, past, count), zf_program_error(a.one.program));
    check_gone(t, a.many.program, zf_step(a.many.program), "zf_step");
    OK(t, run_large(&a), zf_program_error(a.large.program));
    OK(t, zf_read(a.large.program, a.large.y, y, sizeof y), zf_program_error(a.large.program));
    OK(t, zf_clear_caches(a.many.program), zf_program_error(a.many.program));
    GIVES(t, zf_read(a.large.program, a.large.y, y, sizeof y), ZF_ERR_STAGE,
          zf_program_error(a.large.program));
    OK(t, zf_read(a.many.program, cache, rows, sizeof rows), zf_program_error(a.many.program));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) CHECK(t, rows[i] == 0);
    OK(t, zf_step(a.many.program), zf_program_error(a.many.program));
    OK(t, zf_step(a.one.program), zf_program_error(a.one.program));
    OK(t, run_large(&a), zf_program_error(a.large.program));
    check_gone(t, a.one.program, zf_step(a.one.program), "zf_step");
    check_gone(t, a.many.program, zf_read(a.many.program, cache, rows, sizeof rows), "zf_read");
    check_gone(t, a.many.program, zf_write(a.many.program, cache, rows, sizeof rows), "zf_write");
    CHECK(t, zf_clear_caches(NULL) == ZF_ERR_ARGUMENT && !zf_has_caches(NULL));
    CHECK(t, zf_has_caches(a.large.program) && !zf_clear_caches(a.large.program));
    check_gone(t, a.one.program, zf_step(a.one.program), "zf_step");
    free_part(&a.one);
    free_part(&a.many);
    OK(t, run_large(&a), zf_program_error(a.large.program)); /* no program's caches are there */
}

/* Caches that outlive other programs are cleared too. */
TEST(cache_is_cleared)
{
    static turns a;
    static float rows[BATCH * CONTEXT * 4];
    zf_tensor cache;
    if (!open_turns(t, &a, &plain, false)) return;
    test_defer(t, free_turns, &a);
    cache = zf_graph_find(a.many.graph, "v_cache");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) rows[i] = 3;
    OK(t, zf_write(a.many.program, cache, rows, sizeof rows), zf_program_error(a.many.program));
    OK(t, run_large(&a), zf_program_error(a.large.program));
    OK(t, zf_read(a.many.program, cache, rows, sizeof rows), zf_program_error(a.many.program));
    CHECK(t, rows[7] == 3);
    OK(t, zf_clear_caches(a.one.program), zf_program_error(a.one.program));
    OK(t, zf_read(a.many.program, cache, rows, sizeof rows), zf_program_error(a.many.program));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) CHECK(t, rows[i] == 0);
}

/* Both programs of generation and the other one are planned together, before any is compiled. */
TEST(cache_is_planned_together)
{
    static turns a;
    part planned[2];
    zf_graph *large;
    zf_turn all[3] = {{.temporary_caches = true}, {.caches = 1}};
    zf_together together;
    zf_error error = {ZF_OK, ""};
    zf_store_info store;
    for (int k = 0; k < 2; k++) {
        build_part(t, &planned[k], &plain, k ? 1 : CHUNK);
        NEED(t, all[k].graph = planned[k].graph, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, planned[k].graph);
    }
    NEED(t, large = large_graph(t), NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, large);
    all[2].graph = large;
    OK(t, zf_plan_together(all, 3, &(zf_together_desc){.allocator = t->allocator}, &together, &error),
       error.text);
    CHECK(t, together.first == 2);
    if (!open_turns(t, &a, &plain, true)) return;
    test_defer(t, free_turns, &a);
    store = zf_store_info_of(STORE(a.large.program));
    CHECK(t, together.bytes[ZF_DEVICE] == store.bytes + store.program_bytes);
    CHECK(t, together.shared[ZF_DEVICE] == zf_program_info_of(a.large.program).work_bytes);
}

/* Temporary caches are the lender's, and a plan that was made without them is refused. */
TEST(cache_that_is_temporary_is_lent)
{
    static turns a;
    part other;
    if (!open_turns(t, &a, &plain, true)) return;
    test_defer(t, free_turns, &a);
    for (int k = 0; k < 2; k++) {
        build_part(t, &other, &plain, 1);
        NEED(t, other.graph, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, other.graph);
        if (k) OK(t, zf_memory(other.graph, NULL), zf_graph_error(other.graph));
        CHECK(t, !zf_compile(other.graph, &(zf_compile_desc){.store = STORE(a.large.program),
                                                             .caches = a.many.program,
                                                             .temporary_caches = !k}));
        GIVES(t, zf_graph_status(other.graph), k ? ZF_ERR_MISMATCH : ZF_ERR_ARGUMENT,
              zf_graph_error(other.graph));
        check_error(t, other.graph,
                    k ? "zf_compile: zf_memory left 0 bytes for temporary caches "
                        "(zf_memory_desc.caches), and zf_compile_desc.caches has 7680"
                      : "zf_compile: temporary_caches is for the program that lends them, and the "
                        "cache \"k_cache\" is another one's");
    }
}
