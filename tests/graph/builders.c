/* Builders of fused nodes, and the near misses of zf_fuse: reports for a program of plain nodes;
 * none for the same program with the builders, and none for the samples. */
#include "../../examples/bert/model.h"
#include "../../examples/gpt/model.h"
#include "../../examples/llm/model.h"
#include "../../examples/opt/model.h"
#include "../support/numbers.h"

#include <stdlib.h>

enum { BATCH = 2, TOKENS = 6, HEADS = 4, KV_HEADS = 2, WIDTH = 8, HIDDEN = HEADS * WIDTH, WIDE = 48 };

/* -------------------------------------------------------------------------- a Llama, twice */

static zf_tensor weight(zf_graph *g, const char *name, int64_t out, int64_t in)
{
    return zf_param(g, name, ZF_SHAPE(out, in), &(zf_param_desc){.init = ZF_NORMAL, .std = 0.2});
}

static zf_tensor gamma_of(zf_graph *g, const char *name)
{
    return zf_param(g, name, ZF_SHAPE(HIDDEN),
                    &(zf_param_desc){.init = ZF_NORMAL, .mean = 1, .std = 0.1});
}

static zf_tensor product(zf_tensor x, zf_tensor w)
{
    return zf_matmul_ex(x, w, &(zf_matmul_desc){.transpose_b = true});
}

/* Cosines or sines of the angles of rope, [TOKENS, WIDTH]; both halves are equal. */
static zf_tensor turns(zf_graph *g, bool sines)
{
    double values[TOKENS * WIDTH];
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < WIDTH; i++) {
            double a = (double)(float)(t * (float)zf_rope_frequency(NULL, WIDTH, i % (WIDTH / 2)));
            values[t * WIDTH + i] = sines ? sin(a) : cos(a);
        }
    return zf_values(g, ZF_F32, ZF_SHAPE(TOKENS, WIDTH), values);
}

/* The heads of x [B,T,H], rotated by plain nodes: x cos + (-x2, x1) sin. */
static zf_tensor turned_heads(zf_tensor x, int64_t heads, bool turn)
{
    zf_graph *g = x.graph;
    zf_tensor y = zf_transpose(zf_reshape(x, ZF_SHAPE(BATCH, TOKENS, heads, WIDTH)), 1, 2), half[2];
    if (!turn) return y;
    half[0] = zf_neg(zf_slice(y, 3, WIDTH / 2, WIDTH));
    half[1] = zf_slice(y, 3, 0, WIDTH / 2);
    return zf_add(zf_mul(y, turns(g, false)), zf_mul(zf_concat(half, 2, 3), turns(g, true)));
}

/* [B,heads,T,WIDTH], each head repeated. */
static zf_tensor repeated(zf_tensor x, int64_t heads, int64_t times)
{
    x = zf_reshape(x, ZF_SHAPE(BATCH, heads, 1, TOKENS, WIDTH));
    x = zf_broadcast(x, ZF_SHAPE(BATCH, heads, times, TOKENS, WIDTH));
    return zf_reshape(x, ZF_SHAPE(BATCH, heads * times, TOKENS, WIDTH));
}

/* -inf where the key comes after the query. */
static zf_tensor causal(zf_graph *g)
{
    double count[TOKENS];
    zf_tensor s;
    for (int i = 0; i < TOKENS; i++) count[i] = i;
    s = zf_values(g, ZF_I32, ZF_SHAPE(TOKENS), count);
    return zf_where(zf_less(zf_reshape(s, ZF_SHAPE(TOKENS, 1)), s),
                    zf_constant(g, ZF_F32, ZF_SCALAR, -INFINITY),
                    zf_constant(g, ZF_F32, ZF_SCALAR, 0));
}

/* One layer of x [B,T,H]; `fused`: by the builders. */
static zf_tensor layer(zf_tensor x, bool fused, int64_t kv_heads)
{
    zf_graph *g = x.graph;
    zf_tensor wq = weight(g, "self_attn.q_proj.weight", HIDDEN, HIDDEN),
              wk = weight(g, "self_attn.k_proj.weight", kv_heads * WIDTH, HIDDEN),
              wv = weight(g, "self_attn.v_proj.weight", kv_heads * WIDTH, HIDDEN),
              wo = weight(g, "self_attn.o_proj.weight", HIDDEN, HIDDEN),
              gate = weight(g, "mlp.gate_proj.weight", WIDE, HIDDEN),
              up = weight(g, "mlp.up_proj.weight", WIDE, HIDDEN),
              down = weight(g, "mlp.down_proj.weight", HIDDEN, WIDE),
              second = gamma_of(g, "post_attention_layernorm.weight"),
              y = zf_rms_norm(x, gamma_of(g, "input_layernorm.weight"), 1e-5), q, k, v, sum;
    if (fused) {
        zf_rope_desc rope = {.heads = HEADS};
        q = zf_rope(zf_linear(y, wq, ZF_NONE), &rope);
        rope.heads = kv_heads;
        k = zf_rope(zf_linear(y, wk, ZF_NONE), &rope), v = zf_linear(y, wv, ZF_NONE);
        y = zf_attention(
            q, k, v,
            &(zf_attention_desc){.heads = HEADS, .kv_heads = kv_heads, .dropout = 0.1, .causal = true});
        y = zf_residual_rms_norm(zf_linear(y, wo, ZF_NONE), x, second,
                                 &(zf_residual_desc){.dropout = 0.1, .sum = &sum});
        y = zf_swiglu(zf_linear(y, gate, ZF_NONE), zf_linear(y, up, ZF_NONE));
        return zf_add(sum, zf_linear(y, down, ZF_NONE));
    }
    q = turned_heads(product(y, wq), HEADS, true);
    k = repeated(turned_heads(product(y, wk), kv_heads, true), kv_heads, HEADS / kv_heads);
    v = repeated(turned_heads(product(y, wv), kv_heads, false), kv_heads, HEADS / kv_heads);
    y = zf_add(zf_scale(product(q, k), 1 / sqrt(WIDTH)), causal(g));
    y = zf_matmul(zf_dropout(zf_softmax(y), 0.1), v);
    y = zf_reshape(zf_transpose(y, 1, 2), ZF_SHAPE(BATCH, TOKENS, HIDDEN));
    sum = zf_add(x, zf_dropout(product(y, wo), 0.1));
    y = zf_rms_norm(sum, second, 1e-5);
    y = zf_mul(zf_silu(product(y, gate)), product(y, up));
    return zf_add(sum, product(y, down));
}

static zf_graph *llama(bool fused, int64_t kv_heads, const zf_allocator *allocator)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = *allocator});
    zf_tensor x;
    if (!g) return NULL;
    x = zf_param(g, "x", ZF_SHAPE(BATCH, TOKENS, HIDDEN),
                 &(zf_param_desc){.init = ZF_NORMAL, .std = 1});
    zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    for (int i = 0; i < 2; i++) {
        zf_push(g, "model.layers.%d", i);
        x = layer(x, fused, kv_heads);
        zf_pop(g);
    }
    x = zf_rms_norm(x, gamma_of(g, "model.norm.weight"), 1e-5);
    zf_output(zf_mean(zf_mul(x, x)), "loss");
    return g;
}

/* ------------------------------------------------------------------------------ near misses */

typedef struct misses {
    char text[3000];
    int count;
} misses;

static void note(void *user, const zf_fuse_miss *miss)
{
    misses *m = user;
    size_t at = strlen(m->text);
    m->count++;
    snprintf(m->text + at, sizeof m->text - at, "%s in %s: %s: %s\n", miss->rewrite, miss->scope,
             miss->op, miss->text);
}

static misses fuse(zf_graph *g)
{
    misses m = {"", 0};
    zf_fuse(g, &(zf_fuse_desc){.miss = note, .user = &m});
    return m;
}

/* A program with rotary positions, RMSNorm and no biases gets a report for each layer; with the
 * builders, with and without grouped heads, it gets none. */
TEST(near_misses_of_a_llama)
{
    static const char *const named[] = {
        "qkv in model.layers.0: matmul: it and ",
        "attention in model.layers.0: masked_softmax: q, ",
        "zf_rope rotates q and k before that",
        "= residual_norm without a bias; zf_linear joins them",
    };
    for (int64_t kv_heads = KV_HEADS; kv_heads <= HEADS; kv_heads += KV_HEADS) {
        zf_graph *plain = llama(false, kv_heads, &t->allocator),
                 *fused = llama(true, kv_heads, &t->allocator);
        misses of_plain, of_fused;
        test_defer(t, (test_cleanup *)zf_graph_free, plain);
        test_defer(t, (test_cleanup *)zf_graph_free, fused);
        NEED(t, plain && fused, NULL);
        of_plain = fuse(plain), of_fused = fuse(fused);
        OK(t, zf_graph_status(plain), zf_graph_error(plain));
        OK(t, zf_graph_status(fused), zf_graph_error(fused));
        CHECK_TEXT(t, of_fused.text, "");
        for (size_t k = 0; k < sizeof named / sizeof named[0]; k++)
            if (!strstr(of_plain.text, named[k])) CHECK_TEXT(t, of_plain.text, named[k]);
        CHECK(t, of_plain.count == 6);
    }
}

TEST(near_miss_of_an_activation)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    misses m;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_push(g, "mlp");
    zf_silu(product(zf_param(g, "x", ZF_SHAPE(3, 4), NULL), weight(g, "w", 5, 4)));
    zf_pop(g);
    m = fuse(g);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK_TEXT(t, m.text,
               "linear in mlp: silu: its product, %3 = matmul, has no bias; zf_linear does "
               "without one\n");
}

/* Plain nodes, builders and fused nodes compute the same numbers. */
TEST_ONCE(builders_compute_what_plain_nodes_do)
{
    zf_allocator none = {NULL, NULL};
    for (int64_t kv_heads = KV_HEADS; kv_heads <= HEADS; kv_heads += KV_HEADS)
        for (int again = 0; again < 2; again++) {
            char why[600] = "", *text[2];
            zf_error error = {ZF_OK, ""};
            numbers x = {0}, y = {0};
            numbers_desc d = {.steps = 1, .fast = true, .threads = 2};
            for (int fused = 0; fused < 2; fused++) {
                zf_graph *g = llama(fused, kv_heads, &none);
                if (fused && again) zf_fuse(g, NULL);
                zf_autograd(g, zf_graph_find(g, "loss"));
                zf_clip(g, INFINITY);
                zf_sgd(g, zf_graph_find(g, "lr"), NULL);
                if (fused && again) zf_fuse(g, NULL);
                OK(t, zf_graph_status(g), zf_graph_error(g));
                text[fused] = text_of(g);
                zf_graph_free(g);
            }
            if (!numbers_of(&x, text[0], &d, &error) || !numbers_of(&y, text[1], &d, &error))
                test_fail(t, __FILE__, __LINE__, "a step", error.text);
            else if (numbers_compare_within(&x, &y, "output", 1e-5, why, sizeof why) <= 0 ||
                     numbers_compare_within(&x, &y, "param", 1e-5, why, sizeof why) <= 0)
                test_fail(t, __FILE__, __LINE__, again ? "fused" : "by builders", why);
            numbers_free(&x), numbers_free(&y);
            free(text[0]), free(text[1]);
        }
}

/* BERT and GPT as the samples build them, for training and evaluation. */
TEST(near_misses_of_the_samples_are_none)
{
    static const char *const berts[] = {"tiny", "base"};
    zf_error error = {ZF_OK, ""};
    for (int k = 0; k < 4; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        bert_config config;
        misses m;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        OK(t, !bert_config_load(berts[k % 2], &config, &error), error.text);
        if (k / 2) config.dropout = config.attention_dropout = 0;
        bert_build(g, &config, &(sample_shape){.batch = 2, .sequence = 16, .predictions = 5},
                   SAMPLE_TRAIN);
        m = fuse(g);
        OK(t, zf_graph_status(g), zf_graph_error(g));
        CHECK_TEXT(t, m.text, "");
    }
    for (int k = 0; k < 8; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        gpt_config config;
        misses m;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        OK(t, !gpt_config_load("small", &config, &error), error.text);
        if (k & 1) config.embedding_dropout = config.attention_dropout = config.residual_dropout = 0;
        config.tied = k >> 1 & 1;
        gpt_build(g, &config, &(sample_shape){.batch = 2, .sequence = 16, .rows = k == 2 || k == 3},
                  k & 4 ? SAMPLE_ANSWER : SAMPLE_TRAIN);
        m = fuse(g);
        OK(t, zf_graph_status(g), zf_graph_error(g));
        CHECK_TEXT(t, m.text, "");
    }
}

/* No first value of a parameter of this graph is drawn. */
static void check_none_drawn(test *t, const zf_graph *g, const char *model)
{
    char *text = text_of(g);
    CHECK(t, text && strstr(text, "init=truncated"));
    if (!text || strstr(text, " b=")) test_fail(t, __FILE__, __LINE__, model, text ? text : "");
    free(text);
}

/* An initializer_range of 0 in config.json is 0, and not the default of a desc. */
TEST_ONCE(samples_of_no_first_values)
{
    const sample_shape shape = {.batch = 2, .sequence = 16, .predictions = 5};
    zf_error error = {ZF_OK, ""};
    zf_graph *g[4];
    bert_config bert;
    gpt_config gpt;
    zf_causal_config llm;
    opt_config opt;
    for (int k = 0; k < 4; k++) g[k] = zf_graph_new(NULL);
    OK(t, !bert_config_load("tiny", &bert, &error), error.text);
    OK(t, !gpt_config_load("small", &gpt, &error), error.text);
    OK(t, !llm_config_load("160m", &llm, &error), error.text);
    OK(t, !zf_config_load(opt_sample.config(), "125m", &opt, &error), error.text);
    bert.std = gpt.std = llm.std = opt.std = 0;
    bert_build(g[0], &bert, &shape, SAMPLE_TRAIN), gpt_build(g[1], &gpt, &shape, SAMPLE_TRAIN);
    llm_build(g[2], &llm, &shape, SAMPLE_TRAIN), opt_build(g[3], &opt, &shape, SAMPLE_TRAIN);
    for (int k = 0; k < 4; k++) {
        OK(t, zf_graph_status(g[k]), zf_graph_error(g[k]));
        check_none_drawn(t, g[k], (const char *const[]){"bert", "gpt", "llm", "opt"}[k]);
        zf_graph_free(g[k]);
    }
}
