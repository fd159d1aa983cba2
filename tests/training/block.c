/* Transformer blocks against those of PyTorch (tests/golden/blocks/make.py), and with caches. */
#include "../support/golden.h"

#include "../../zeroflow.h"

#define GOLDEN "tests/golden/blocks/blocks.safetensors"

enum { BATCH = 2, TOKENS = 7, MEMORY = 5, HIDDEN = 16, MOST = 512 };

static void free_graph(void *g) { zf_graph_free(g); }
static void free_program(void *p) { zf_program_free(p); }

typedef struct block_case {
    const char *name;
    bool memory, unseen; /* there is a memory; tokens of padding */
    int32_t params;
    zf_nn_block_desc desc;
} block_case;

/* The last three tokens of the second example are padding. */
static zf_tensor padding_of(zf_graph *g)
{
    static const double seen[BATCH * TOKENS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0};
    return zf_values(g, ZF_U8, ZF_SHAPE(BATCH, 1, 1, TOKENS), seen);
}

static double *golden_of(const block_case *c, zf_safetensors *f, const char *what, const char *name,
                         int64_t *count)
{
    char whole[200];
    snprintf(whole, sizeof whole, "%s.%s%s", c->name, what, name);
    return values_of(f, whole, count);
}

static void write_golden(test *t, const block_case *c, zf_program *p, zf_tensor to,
                         zf_safetensors *f)
{
    float x[MOST];
    int64_t count = 0;
    double *golden = golden_of(c, f, "", zf_tensor_name(to), &count);
    CHECK(t, golden && count == zf_shape_count(zf_tensor_shape(to)) && count <= MOST);
    zf_convert(x, ZF_F32, golden, ZF_F64, (size_t)count);
    free(golden);
    OK(t, zf_write(p, to, x, (size_t)count * sizeof *x), zf_program_error(p));
}

/* What a step computed has the golden values, within a share of the largest. */
static void check_golden(test *t, const block_case *c, zf_program *p, zf_tensor from,
                         zf_safetensors *f, const char *what, const char *name)
{
    float x[MOST];
    int64_t count = 0;
    double *golden = golden_of(c, f, what, name, &count), largest = 0, most = 0;
    CHECK(t, golden && count == zf_shape_count(zf_tensor_shape(from)) && count <= MOST);
    OK(t, zf_read(p, from, x, (size_t)count * sizeof *x), zf_program_error(p));
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(golden[i]));
        most = fmax(most, fabs(golden[i] - x[i]));
    }
    free(golden);
    /* The gradient of a bias of keys is 0 but for rounding. */
    if (!(most <= 5e-6 * largest + 2e-6)) test_fail(t, __FILE__, __LINE__, c->name, name);
}

static void check_case(test *t, const block_case *c)
{
    zf_nn_block_desc d = c->desc;
    zf_graph *g = zf_graph_new(NULL);
    zf_safetensors *f = open_file(t, GOLDEN);
    zf_tensor x, y, w, gradients[32];
    zf_program *p;
    test_defer(t, free_graph, g);
    CHECK(t, f);
    x = zf_param(g, "x", ZF_SHAPE(BATCH, TOKENS, HIDDEN), NULL);
    if (c->memory) d.memory = zf_param(g, "memory", ZF_SHAPE(BATCH, MEMORY, HIDDEN), NULL);
    if (c->unseen) d.attention.mask = padding_of(g);
    w = zf_input(g, "w", ZF_F32, ZF_SHAPE(BATCH, TOKENS, HIDDEN));
    y = zf_output(zf_nn_block(x, &d), "y");
    zf_autograd(g, zf_sum(zf_mul(y, w)));
    OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, zf_param_count(g) == c->params);
    for (int32_t k = 0; k < c->params; k++) {
        char name[120];
        snprintf(name, sizeof name, "gradient/%s", zf_tensor_name(zf_param_at(g, k)));
        gradients[k] = zf_output(zf_gradient(g, zf_param_at(g, k)), name);
    }
    p = zf_compile(g, NULL);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    test_defer(t, free_program, p);
    for (int32_t k = 0; k < c->params; k++) write_golden(t, c, p, zf_param_at(g, k), f);
    write_golden(t, c, p, w, f);
    OK(t, zf_step(p), zf_program_error(p));
    check_golden(t, c, p, y, f, "", "y");
    for (int32_t k = 0; k < c->params; k++)
        check_golden(t, c, p, gradients[k], f, "d.", zf_tensor_name(zf_param_at(g, k)));
}

static const zf_rope_desc rope = {.theta = 10000};
static const block_case post = {
    "post", false, true, 17,
    {.attention = {.heads = 2}, .intermediate = 24, .activation = ZF_ACTIVATION_RELU, .post_norm = true}},
                        cross = {"cross", true, false, 28,
                                 {.attention = {.heads = 4, .causal = true}, .intermediate = 24}},
                        llama = {"llama", false, false, 10,
                                 {.attention = {.heads = 4, .kv_heads = 2, .causal = true},
                                  .rope = &rope,
                                  .width = 6,
                                  .intermediate = 24,
                                  .activation = ZF_ACTIVATION_SILU,
                                  .gated = true,
                                  .rms_norm = true,
                                  .no_bias = true}};

TEST_ONCE(block_of_an_encoder_is_pytorchs) { check_case(t, &post); }
TEST_ONCE(block_with_a_memory_is_pytorchs) { check_case(t, &cross); }
TEST_ONCE(block_of_a_llama_is_that_of_transformers) { check_case(t, &llama); }

/* Names that are given are those of the parameters; others stay. */
TEST(block_names_its_parameters)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    const zf_nn_block_names names = {.q = "attn.q_lin", .up = "ffn.lin1"};
    NEED(t, g, NULL);
    test_defer(t, free_graph, g);
    zf_nn_block(zf_input(g, "x", ZF_F32, ZF_SHAPE(1, 2, 8)), &(zf_nn_block_desc){.names = &names});
    OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, zf_valid(zf_graph_find(g, "attn.q_lin.weight")));
    CHECK(t, zf_valid(zf_graph_find(g, "ffn.lin1.bias")));
    CHECK(t, zf_valid(zf_graph_find(g, "self.k.weight")));
    CHECK(t, zf_param_count(g) == 16);
}

/* The tokens one by one, with caches, have the numbers of all at once. */
TEST_ONCE(block_with_caches_continues_a_text)
{
    zf_nn_block_desc d = llama.desc;
    zf_graph *g = zf_graph_new(NULL);
    zf_safetensors *f = open_file(t, GOLDEN);
    zf_rope_desc placed = rope;
    zf_tensor x, y, past, count;
    zf_program *p;
    int64_t n = 0;
    double *all, *golden;
    test_defer(t, free_graph, g);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(BATCH, 1, HIDDEN));
    past = zf_input(g, "past", ZF_I32, ZF_SHAPE(BATCH));
    count = zf_input(g, "count", ZF_I32, ZF_SHAPE(BATCH));
    placed.positions = zf_reshape(past, ZF_SHAPE(BATCH, 1)), d.rope = &placed;
    d.attention.past = past, d.attention.count = count;
    d.attention.k_cache = zf_cache(g, "k", ZF_F32, ZF_SHAPE(BATCH, TOKENS, 12));
    d.attention.v_cache = zf_cache(g, "v", ZF_F32, ZF_SHAPE(BATCH, TOKENS, 12));
    y = zf_output(zf_nn_block(x, &d), "y");
    p = zf_compile(g, &(zf_compile_desc){.evaluate = true});
    OK(t, zf_graph_status(g), zf_graph_error(g));
    test_defer(t, free_program, p);
    CHECK(t, f);
    for (int32_t k = 0; k < zf_param_count(g); k++)
        write_golden(t, &llama, p, zf_param_at(g, k), f);
    all = golden_of(&llama, f, "", "x", &n), golden = golden_of(&llama, f, "", "y", &n);
    for (int32_t at = 0; at < TOKENS && all && golden; at++) {
        float one[BATCH * HIDDEN];
        const int32_t pasts[BATCH] = {at, at}, counts[BATCH] = {1, 1};
        for (int i = 0; i < BATCH * HIDDEN; i++)
            one[i] = (float)all[(i / HIDDEN * TOKENS + at) * HIDDEN + i % HIDDEN];
        OK(t, zf_write(p, x, one, sizeof one), zf_program_error(p));
        OK(t, zf_write(p, past, pasts, sizeof pasts), zf_program_error(p));
        OK(t, zf_write(p, count, counts, sizeof counts), zf_program_error(p));
        OK(t, zf_step(p), zf_program_error(p));
        OK(t, zf_read(p, y, one, sizeof one), zf_program_error(p));
        for (int i = 0; i < BATCH * HIDDEN; i++)
            CHECK_NEAR(t, one[i], golden[(i / HIDDEN * TOKENS + at) * HIDDEN + i % HIDDEN], 1e-5);
    }
    CHECK(t, all && golden);
    free(all), free(golden);
}

/* Text `desc` makes this error. */
static void refuse(test *t, const zf_nn_block_desc *desc, zf_shape shape, const char *error)
{
    zf_graph *g = zf_graph_new(NULL);
    CHECK(t, !zf_valid(zf_nn_block(zf_input(g, "x", ZF_F32, shape), desc)));
    if (!strstr(zf_graph_error(g), error))
        test_fail(t, __FILE__, __LINE__, error, zf_graph_error(g));
    zf_graph_free(g);
}

TEST_ONCE(block_refuses_what_does_not_fit)
{
    refuse(t, NULL, ZF_SHAPE(3, 8), "zf_nn_block: x must be [batch, tokens, hidden], and its rank is 2");
    refuse(t, &(zf_nn_block_desc){.attention.heads = 3}, ZF_SHAPE(1, 2, 8),
           "zf_nn_block: the 3 heads must be a multiple of the 3 of k and v, and of hidden (8) a "
           "divisor, unless `width` is given");
    refuse(t, &(zf_nn_block_desc){.cross = {.heads = 3, .kv_heads = 2}}, ZF_SHAPE(1, 2, 8),
           "zf_nn_block: the 3 heads of cross must be a multiple of its 2 of k and v");
    CHECK(t, zf_nn_block(ZF_NONE, NULL).graph == NULL);
}

TEST_ONCE(block_needs_a_tensor)
{
    zf_graph *g = zf_graph_new(NULL);
    test_defer(t, free_graph, g);
    CHECK(t, !zf_valid(zf_nn_block((zf_tensor){g, 0}, NULL)));
    CHECK(t, strstr(zf_graph_error(g), "zf_nn_block: x is no tensor"));
}
