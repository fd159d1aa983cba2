/* attention that looks at less, block masks, documents, windows, against sums over all keys in double
 * precision. */
#include "attention_forms.h"

static zf_status run_form(test *t, const form *f, zf_dtype dtype, zf_cpu_desc cpu)
{
    session_close(NULL);
    cpu.allocator = t->allocator;
    return run_form_on(t, f, dtype, zf_cpu_backend(&cpu, &s.error));
}

/* -------------------------------------------------------------------------------------- tests */

TEST_ONCE(attention_of_blocks_and_documents_agrees_with_its_definition)
{
    static const zf_dtype dtypes[] = {ZF_F64, ZF_F32, ZF_BF16, ZF_F16};
    static const char *const isas[] = {NULL, "portable", "avx2"};
    test_defer(t, session_close, NULL);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        for (int k = 0; k < 4; k++) {
            const zf_dtype dtype = dtypes[k];
            double keys = 0;
            if (k > 1 && (k + (int)i) % 2) continue; /* each form has one type of 16 bits */
            for (int isa = 0; isa < (k ? 3 : 1); isa++) {
                /* of the other two sets of instructions, one */
                const int number = k + isa + (int)i;
                if (isa && (number % 2 || !TEST_TAKES(number / 2))) continue;
                if (isa && !test_has_isa(t, isas[isa])) continue;
                OK(t, run_form(t, &forms[i], dtype, (zf_cpu_desc){.threads = 2, .isa = isas[isa]}),
                   s.error.text);
                if (!isa) keys = define(&forms[i], dtype);
                compare(t, __LINE__, &forms[i], dtype, keys);
            }
        }
}

/* Tiles in f32 have the numbers of the kernels in double precision, which compute by element. */
static void check_by_element(test *t, double p, double cap)
{
    test_defer(t, session_close, NULL);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        form f = forms[i];
        f.p = p, f.cap = cap;
        OK(t, run_form(t, &f, ZF_F64, (zf_cpu_desc){.threads = 1}), s.error.text);
        exact = got;
        for (int64_t e = 0; e < exact.count[1]; e++) /* inputs were rounded to f64 */
            CHECK(t, isfinite(exact.value[1][e]));
        OK(t, run_form(t, &f, ZF_F32, (zf_cpu_desc){.threads = 2}), s.error.text);
        /* f32 inputs differ from f64 by a rounding each: as much again as the bound, and 1 / (1 - p)
         * twice */
        for (int part = 0; part < (f.packed ? 2 : 4); part++)
            for (int64_t e = 0; e < got.count[part]; e++)
                CHECK_NEAR(t, got.value[part][e], exact.value[part][e],
                           4 * bound_of(&f, ZF_F32, part, (double)f.tokens));
    }
}

TEST_ONCE(attention_of_blocks_drops_by_element) { check_by_element(t, 0.25, 0); }
TEST_ONCE(attention_of_blocks_caps_by_element) { check_by_element(t, 0, 0.3); }

TEST_ONCE(attention_of_blocks_has_one_result_for_any_threads)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    test_defer(t, session_close, NULL);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        for (int k = 0; k < 12; k++) {
            form f = forms[i];
            const int threads = 1 + k % 4 * 2;
            if (!TEST_TAKES(k / 4 + (int)i)) continue;
            f.p = 0.1;
            OK(t, run_form(t, &f, dtypes[k / 4], (zf_cpu_desc){.threads = threads}), s.error.text);
            if (threads == 1) exact = got;
            for (int part = 0; part < (f.packed ? 2 : 4); part++)
                CHECK(t, !memcmp(got.value[part], exact.value[part],
                                 (size_t)got.count[part] * sizeof(double)));
        }
}

/* A row of blocks that lists nothing gives 0 and gradients of 0, and a column that nobody lists. */
TEST(attention_of_no_blocks_is_zero)
{
    static const zf_dtype dtypes[] = {ZF_F64, ZF_F32, ZF_BF16};
    const form f = {.tokens = 48, .heads = 1, .d = 16};
    char layout[600], path[512];
    form with = f;
    FILE *file;
    test_defer(t, session_close, NULL);
    snprintf(path, sizeof path, "%s", test_path("rows.txt"));
    file = fopen(path, "w");
    CHECK(t, file && fputs("110\n000\n010\n", file) > 0);
    fclose(file);
    snprintf(layout, sizeof layout, "file,path=%s", path);
    with.layout = layout;
    for (int k = 0; k < 3; k++) {
        OK(t, run_form(t, &with, dtypes[k], (zf_cpu_desc){.threads = 2}), s.error.text);
        compare(t, __LINE__, &with, dtypes[k], define(&with, dtypes[k]));
        for (int64_t i = 0; i < 16 * 16; i++) {
            const int64_t row = i / 16 + 16, column = i / 16 + 32, at = i % 16;
            CHECK(t, got.value[0][row * 16 + at] == 0 && got.value[1][row * 16 + at] == 0);
            CHECK(t, got.value[2][column * 16 + at] == 0 && got.value[3][column * 16 + at] == 0);
        }
    }
    remove(path);
}

/* Documents in one row have the numbers that each has in a row of its own. */
TEST(documents_in_a_row_are_each_alone)
{
    const form f = {.tokens = 200, .heads = 2, .d = 16, .documents = true, .causal = true};
    int64_t begin = 0;
    test_defer(t, session_close, NULL);
    OK(t, run_form(t, &f, ZF_F64, (zf_cpu_desc){.threads = 2}), s.error.text);
    for (int64_t end = 1; end <= 200; end++) {
        if (end < 200 && segment_of(&f, 0, end) == segment_of(&f, 0, begin)) continue;
        for (int64_t m = begin; m < end; m++) { /* sums over its own document alone */
            double sum = 0, y = 0;
            for (int64_t n = begin; n <= m; n++) {
                double score = 0;
                for (int64_t i = 0; i < 16; i++)
                    score +=
                        value_of(&f, ZF_F64, 0, 0, m, 0, i) * value_of(&f, ZF_F64, 1, 0, n, 0, i);
                sum += exp(score / 4), y += exp(score / 4) * value_of(&f, ZF_F64, 2, 0, n, 0, 3);
            }
            CHECK_NEAR(t, got.value[0][m * 32 + 3], y / sum, bound_of(&f, ZF_F64, 0, 1));
        }
        begin = end;
    }
}

/* Two products of each listed block, four backward; lists of half the blocks are half of them. */
TEST(attention_counts_the_blocks_that_are_listed)
{
    const form all = {.tokens = 256, .heads = 2, .d = 16, .layout = "window,block=64,width=4"};
    form half = all;
    zf_plan plan[2];
    half.layout = "window,block=64,width=1";
    test_defer(t, session_close, NULL);
    for (int k = 0; k < 2; k++) {
        session_close(NULL);
        OK(t, make_mask(t, k ? &half : &all), s.error.text);
        OK(t, make_graph(t, k ? &half : &all, ZF_F32), zf_graph_error(s.graph));
        OK(t, zf_graph_plan(s.graph, &plan[k]), zf_graph_error(s.graph));
    }
    /* 14 of 16 blocks, and 4 */
    CHECK(t, plan[0].flops == 12.0 * BATCH * 2 * 14 * 64 * 64 * 16);
    CHECK(t, plan[1].flops == 12.0 * BATCH * 2 * 4 * 64 * 64 * 16);
}

/* ------------------------------------------------------------------------------------ messages */

static const struct {
    const char *lists, *attributes, *message;
} mistakes[] = {
    {"constant {values=[16,1,0,1,0,1,0,0]} : i32[8]", "block=48 layouts=1",
     "attention: block = 48 must be 16, 32, 64 or 128, and layouts = 1 1 or the 2 heads; "},
    {"constant {values=[16,1,0,1,0,1,0,0]} : i32[8]", "block=16 layouts=3",
     "attention: block = 16 must be 16, 32, 64 or 128, and layouts = 3 1 or the 2 heads; "},
    {"constant {values=[16,1,0,1,0,1,1,0]} : i32[8]", "block=16 layouts=1",
     "attention: the blocks, operand 1, are no lists of 1 layouts of 1 blocks; "},
    {"constant {values=[16,1,0,1,0,1,0]} : i32[7]", "block=16 layouts=1",
     "attention: the blocks, operand 1, are no lists of 1 layouts of 1 blocks; "},
    {"constant {values=[16,1,0,2,0,1,0,0]} : i32[8]", "block=16 layouts=1",
     "attention: the blocks, operand 1, are no lists of 1 layouts of 1 blocks; "},
    {"constant {values=[32,1,0,1,0,1,0,0]} : i32[8]", "block=16 layouts=1",
     "attention: the blocks, operand 1, are no lists of 1 layouts of 1 blocks; "},
    {"input \"l\" : i32[8]", "block=16 layouts=1",
     "attention: the blocks, operand 1, must be a constant i32 (zf_block_mask_lists); "},
    {"input \"l\" : i32[2,3]", "documents=true",
     "attention: the documents, operand 1, must be i32[2,3,2] (zf_documents); "},
    {"input \"l\" : f32[2,3,2]", "documents=true",
     "attention: the documents, operand 1, must be i32[2,3,2] (zf_documents); "},
};

TEST(attention_explains_mistakes_of_masks)
{
    for (size_t k = 0; k < sizeof mistakes / sizeof mistakes[0]; k++) {
        char text[512];
        zf_error error = {ZF_OK, ""};
        const char *said;
        zf_graph *g;
        sprintf(text,
                "%%1 = input \"x\" : f32[2,3,12]\n%%2 = %s\n"
                "%%3 = attention %%1, %%2 {heads=2 %s} : f32[2,3,4]\n",
                mistakes[k].lists, mistakes[k].attributes);
        g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_graph_free(g);
        if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
        said = strstr(error.text, "attention: ");
        CHECK(t, said);
        CHECK(t, !strncmp(said, mistakes[k].message, strlen(mistakes[k].message)) ||
                     (printf("%s\n", said), false));
    }
}

TEST(attention_takes_blocks_of_a_mask_alone)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor x;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(2, 3, 12));
    zf_attention(x, ZF_NONE, ZF_NONE,
                 &(zf_attention_desc){.heads = 2, .blocks = zf_input(g, "l", ZF_I32, ZF_SHAPE(8))});
    if (zf_graph_status(g) != ZF_ERR_ARGUMENT) OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, zf_graph_status(g) == ZF_ERR_ARGUMENT);
    CHECK(t, strstr(zf_graph_error(g), "the blocks must be the result of zf_block_mask_lists"));
}
