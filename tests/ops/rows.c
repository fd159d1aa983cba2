/* Rows by index and by label: what a step says of values that no check beforehand can know, and
 * what is said of operands that do not fit together. */
#include "../support/test.h"

typedef struct bench {
    zf_graph *graph;
    zf_program *program;
    zf_error error;
} bench;

static void close_bench(void *object)
{
    bench *b = object;
    zf_program_free(b->program);
    zf_graph_free(b->graph);
    *b = (bench){.graph = NULL};
}

typedef struct bad_step {
    const char *text;     /* IR with an input "i", i64[2,3] or i32[6] */
    int64_t values[6];    /* of it */
    const char *expected; /* what the step says; "" when it is good */
} bad_step;

static const bad_step steps[] = {
    {"%1 = input \"i\" : i64[2,3]\n%2 = param \"table\" : f32[4,8]\n%3 = gather_rows %2, %1 : "
     "f32[2,3,8]\n"
     "output %3 \"y\"\n",
     {0, 3, 1, 2, 2, 0},
     ""},
    {"%1 = input \"i\" : i64[2,3]\n%2 = param \"table\" : f32[4,8]\n%3 = gather_rows %2, %1 : "
     "f32[2,3,8]\n"
     "output %3 \"y\"\n",
     {0, 3, 1, 2, 4, 0},
     "gather_rows %3: element 4 of the index is 4; it must be at least 0 and less than 4, the "
     "number of rows"},
    {"%1 = input \"i\" : i32[6]\n%2 = param \"table\" : f32[4]\n%3 = gather_rows %2, %1 : "
     "f32[6]\noutput %3 \"y\"\n",
     {0, 3, -1, 2, 9, 0},
     "gather_rows %3: element 2 of the index is -1; it must be at least 0 and less than 4, the "
     "number of rows"},
    {"%1 = input \"i\" : i64[2,3]\n%2 = param \"table\" : f32[0,8]\n%3 = gather_rows %2, %1 : "
     "f32[2,3,8]\n"
     "output %3 \"y\"\n",
     {0},
     "gather_rows %3: element 0 of the index is 0; it must be at least 0 and less than 0, the "
     "number of rows"},
    {"%1 = input \"i\" : i64[2,3]\n%2 = param \"x\" : f32[2,3,8]\n%3 = scatter_rows %2, %1 "
     "{rows=5} : f32[5,8]\n"
     "output %3 \"y\"\n",
     {4, 0, 4294967296, 0, 0, 0},
     "scatter_rows %3: element 2 of the index is 4294967296; it must be at least 0 and less than "
     "5, the number of rows"},
    {"%1 = input \"i\" : i64[2,3]\n%2 = distinct_rows %1 {rows=5} : i32[6]\noutput %2 \"y\"\n",
     {4, -1, 4, 0, 5, 9},
     "distinct_rows %2: element 4 of the index is 5; it must be at least -1 and less than 5, the "
     "number of rows"},
    {"%1 = input \"i\" : i32[6]\n%2 = param \"x\" : f32[6,8]\n%3 = logsumexp %2 : f32[6]\n"
     "%4 = cross_entropy %2, %3, %1 {ignore=-100} : f32[6]\noutput %4 \"y\"\n",
     {7, -100, 0, 1, 2, 3},
     ""},
    {"%1 = input \"i\" : i32[6]\n%2 = param \"x\" : f32[6,8]\n%3 = logsumexp %2 : f32[6]\n"
     "%4 = cross_entropy %2, %3, %1 {ignore=-100} : f32[6]\noutput %4 \"y\"\n",
     {7, -100, 8, 1, 2, 3},
     "cross_entropy %4: the label of row 2 is 8; it must be at least 0 and less than 8, the number "
     "of classes, or -100 to "
     "be ignored"},
    {"%1 = input \"i\" : i32[6]\n%2 = param \"x\" : f32[6,8]\n%3 = param \"r\" : f32[6]\n"
     "%4 = cross_entropy_grad %3, %2, %3, %1 {ignore=9} : f32[6,8]\noutput %4 \"y\"\n",
     {7, 9, 0, 1, -100, 3},
     "cross_entropy_grad %4: the label of row 4 is -100; it must be at least 0 and less than 8, "
     "the number of classes, "
     "or 9 to be ignored"},
};

TEST(rows_bad_indices_and_labels)
{
    static bench b;
    for (size_t n = 0; n < sizeof steps / sizeof steps[0]; n++) {
        const bad_step *s = &steps[n];
        zf_tensor index;
        int32_t narrow[6];
        zf_status status;
        if (n == 0) test_defer(t, close_bench, &b);
        b.graph = zf_graph_parse(s->text, strlen(s->text),
                                 &(zf_graph_desc){.allocator = t->allocator}, &b.error);
        NEED(t, b.graph, &b.error);
        b.program = zf_compile(b.graph, NULL);
        if (!b.program) OK(t, zf_graph_status(b.graph), zf_graph_error(b.graph));
        index = zf_graph_find(b.graph, "i");
        for (int i = 0; i < 6; i++) narrow[i] = (int32_t)s->values[i];
        OK(t,
           zf_write(b.program, index,
                    zf_tensor_dtype(index) == ZF_I64 ? (const void *)s->values : narrow,
                    zf_tensor_bytes(index)),
           zf_program_error(b.program));
        status = zf_step(b.program);
        CHECK(t, status == (*s->expected ? ZF_ERR_ARGUMENT : ZF_OK));
        CHECK_TEXT(t, zf_program_error(b.program), s->expected);
        close_bench(&b);
    }
}

#define OPERANDS                                                                                   \
    "%1 = input \"x\" : f32[2,3]\n%2 = input \"s\" : f32[]\n%3 = input \"v\" : f32[3]\n%4 = "      \
    "input \"m\" : f32[2,2]\n"                                                                     \
    "%5 = input \"i\" : i32[3]\n%6 = input \"d\" : f64[2,3]\n%7 = input \"j\" : i64[2]\n%8 = "     \
    "input \"r\" : f32[2]\n"                                                                       \
    "%9 = input \"w\" : f32[1,1,1,1,1,1]\n"

/* A line of IR and what it says, up to the operands. */
static const char *const mistakes[][2] = {
    {"softmax %2 : f32[]", "needs one dimension or more"},
    {"softmax %5 : i32[3]", "the operand must be float: f32, bf16, f16 or f64"},
    {"softmax_grad %1, %6 : f32[2,3]", "operand 1 must be f32, as operand 0 (zf_cast converts)"},
    {"softmax_grad %1, %3 : f32[2,3]", "operand 1 must have the shape of operand 0"},
    {"moments %1 {eps=-1} : f32[2,2]", "eps = -1 must be finite and not negative"},
    {"moments %1 {eps=nan} : f32[2,2]", "eps = nan must be finite and not negative"},
    {"rms %1 {eps=inf} : f32[2,2]", "eps = inf must be finite and not negative"},
    {"layer_norm %1, %1, %3, %3 : f32[2,3]", "operand 1 must be the moments, f32[2,2]"},
    {"layer_norm %6, %4, %3, %3 : f64[2,3]", "operand 1 must be the moments, f64[2,2]"},
    {"layer_norm %1, %4, %2, %3 : f32[2,3]", "gamma must be f32[3]"},
    {"layer_norm %1, %4, %3, %1 : f32[2,3]", "beta must be f32[3]"},
    {"rms_norm %1, %4, %5 : f32[2,3]", "gamma must be f32[3]"},
    {"rms_norm_grad %1, %6, %4, %3 : f32[2,3]",
     "operand 1 must be f32, as operand 0 (zf_cast converts)"},
    {"layer_norm_grad %1, %1, %4, %3, %3 : f32[2,3]", "the value to add to must be f32[2,3]"},
    {"rms_norm_grad %1, %1, %4, %3, %6 : f32[2,3]", "the value to add to must be f32[2,3]"},
    {"norm_gamma_grad %1, %1, %3 : f32[3]", "operand 2 must be the moments, f32[2,2]"},
    {"gather_rows %1, %3 : f32[3,3]", "the index must be i32 or i64"},
    {"gather_rows %5, %5 : i32[3]", "the table must be float: f32, bf16, f16 or f64"},
    {"gather_rows %2, %5 : f32[3]", "the table needs one dimension or more"},
    {"scatter_rows %1, %7 {rows=-1} : f32[0,3]", "rows = -1 must not be negative"},
    {"scatter_rows %1, %5 {rows=4} : f32[4]", "operand 0 must have the index's dimensions first"},
    {"logsumexp %2 : f32[]", "needs one dimension or more"},
    {"cross_entropy %1, %3, %7 : f32[2]", "lse must have one element for each row of the logits"},
    {"cross_entropy %1, %8, %5 : f32[2]",
     "the labels must have one element for each row of the logits"},
    {"cross_entropy %1, %8, %8 : f32[2]", "the labels must be i32 or i64"},
    {"cross_entropy %6, %8, %7 : f32[2]", "lse must be f64[2]"},
    {"cross_entropy %2, %8, %7 : f32[2]",
     "the logits need one dimension or more, the classes last"},
    {"cross_entropy_grad %3, %1, %8, %7 : f32[2,3]",
     "dy must have one element for each row of the logits"},
};

TEST(rows_mistakes_in_a_graph)
{
    for (size_t n = 0; n < sizeof mistakes / sizeof mistakes[0]; n++) {
        char text[1024];
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        snprintf(text, sizeof text, "%s%%10 = %s\n", OPERANDS, mistakes[n][0]);
        g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_graph_free(g);
        CHECK(t, !g);
        if (t->refused && error.status == ZF_ERR_NOMEM) return;
        if (!strstr(error.text, mistakes[n][1])) CHECK_TEXT(t, error.text, mistakes[n][1]);
    }
}

/* The whole message, as a user of the builders sees it. */
TEST(rows_mistakes_in_builders)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor x, index;
    int line;
    char expected[256];
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_push(g, "embeddings");
    x = zf_param(g, "word", ZF_SHAPE(1, 1, 1, 1, 1, 1), NULL);
    index = zf_input(g, "ids", ZF_I32, ZF_SHAPE(2, 3));
    line = __LINE__, x = zf_gather_rows(x, index);
    if (t->refused && zf_graph_status(g) == ZF_ERR_NOMEM) return;
    snprintf(expected, sizeof expected,
             "gather_rows in embeddings (rows.c:%d): the result has more than 6 dimensions; "
             "%%1 = f32[1,1,1,1,1,1], %%2 = i32[2,3]",
             line);
    CHECK_TEXT(t, zf_graph_error(g), expected);
    CHECK(t, !zf_valid(x));
}

enum { WORDS = 5, WIDTH = 3, TOKENS = 6, PADDING = 2 };

/* The gradient of a table of words, of which one is padding or none, as BERT looks them up. */
static bool gradient_of_words(test *t, bool padded, bool fused, float gradient[WORDS * WIDTH])
{
    static const int32_t ids[TOKENS] = {2, 0, 4, 2, 2, 1};
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 1}, ones = {.init = ZF_ONES};
    static bench b; /* closed before it is used again */
    zf_error error = {ZF_OK, ""};
    zf_graph *g = b.graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor input, words, types, x;
    bool good;
    if (!g) return false;
    input = zf_input(g, "ids", ZF_I32, ZF_SHAPE(2, TOKENS / 2));
    words = zf_param(g, "words", ZF_SHAPE(WORDS, WIDTH), &normal);
    types = zf_param(g, "types", ZF_SHAPE(WORDS, WIDTH), &normal);
    x = zf_embedding_ex(words, input, &(zf_embedding_desc){.padded = padded, .padding = PADDING});
    x = zf_add(x, zf_embedding(types, input));
    x = zf_add(x, zf_param(g, "positions", ZF_SHAPE(TOKENS / 2, WIDTH), &normal));
    x = zf_layer_norm(x, zf_param(g, "gamma", ZF_SHAPE(WIDTH), &ones),
                      zf_param(g, "beta", ZF_SHAPE(WIDTH), NULL), 1e-5);
    x = zf_sum(zf_mul(x, zf_param(g, "by", zf_tensor_shape(x), &normal)));
    x = zf_output(x, "y");
    if (fused) zf_fuse(g, NULL);
    zf_autograd(g, zf_graph_find(g, "y"));
    zf_output(zf_gradient(g, words), "gradient");
    b.program = zf_compile(g, NULL);
    good = b.program && !zf_write(b.program, input, ids, sizeof ids) && !zf_step(b.program) &&
           !zf_read(b.program, zf_graph_find(g, "gradient"), gradient, WORDS * WIDTH * 4);
    if (!good) snprintf(error.text, sizeof error.text, "%s", zf_graph_error(g));
    if (!good && zf_graph_status(g) != ZF_ERR_NOMEM)
        test_fail(t, __FILE__, __LINE__, "a gradient", error.text);
    close_bench(&b);
    return good;
}

/* What is at the padding has none; all else is as without it. */
TEST_ONCE(rows_of_padding_have_no_gradient)
{
    float plain[WORDS * WIDTH], padded[WORDS * WIDTH];
    for (int fused = 0; fused < 2; fused++) {
        CHECK(t, gradient_of_words(t, false, fused, plain));
        CHECK(t, gradient_of_words(t, true, fused, padded));
        for (int i = 0; i < WORDS * WIDTH; i++) {
            if (i / WIDTH == PADDING) CHECK(t, plain[i] != 0 && padded[i] == 0);
            else CHECK(t, padded[i] == plain[i]);
        }
    }
}

TEST(rows_of_padding_that_cannot_be)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    static bench b;
    zf_tensor table, ids;
    NEED(t, g, NULL);
    b = (bench){.graph = g};
    test_defer(t, close_bench, &b);
    table = zf_param(g, "table", ZF_SHAPE(4, 2), NULL);
    ids = zf_input(g, "ids", ZF_I32, ZF_SHAPE(3));
    zf_embedding_ex(table, ids, &(zf_embedding_desc){.padded = true, .padding = 4});
    if (zf_graph_status(g) == ZF_ERR_NOMEM) OK(t, ZF_ERR_NOMEM, zf_graph_error(g));
    CHECK(t, strstr(zf_graph_error(g), "padding = 4 must be one of the 4 rows"));
}
