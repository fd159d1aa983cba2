/* Layers that one product joins, and what else kept attention whole, are cut over ranks along
 * tensor: steps of 1, 2 and 4 ranks in any layout have the same bits, and so has a checkpoint. */
#include "layouts.h"

enum { LAYERS = 2, PARTS = 4 };

/* A small model of a family. */
static zf_causal_config small(zf_causal_family family)
{
    zf_causal_config c;
    zf_error error = {ZF_OK, ""};
    if (!llm_config_load("15m", &c, &error)) abort();
    c.family = family;
    c.vocab = VOCAB, c.hidden = 16, c.layers = LAYERS, c.heads = 8, c.kv_heads = 4, c.width = 4;
    c.intermediate = 24, c.positions = 16;
    return c;
}

/* What ranks along tensor have of a parameter, along dimension d of `whole` elements. */
static void check_cut(test *t, const team *m, const char *name, int d, int64_t whole)
{
    const zf_tensor x = zf_graph_find(m->members[0].graph, name);
    CHECK(t, zf_valid(x) && zf_tensor_shape(x).dims[d] * now->tensor == whole);
}

/* Both layers of attention are cut, and ranks in each layout go on where others ended. `out`: the
 * weight of the output of attention, of the first layer. A text has no scopes, by which stages find
 * the layer of what OLMo 2 gathers again in the backward pass: it has no stages here. */
static void check_family(test *t, const zf_causal_config *c, const char *out)
{
    static const layout chain[] = {{1, 1, 1, 0, 0}, {1, 1, 4, 0, 0}, {1, 2, 2, 3, 0}, {2, 1, 2, 1, 0}};
    const int count = (int)(sizeof chain / sizeof *chain) - (c->family == ZF_CAUSAL_OLMO2);
    static team m;
    char *text = text_of(c);
    test_defer(t, free, text);
    parts_of_step = PARTS;
    check_chain(t, text, chain, count, chain);
    task.load = task.save = NULL, task.count = 0;
    test_defer(t, team_end, &m);
    if (!t->failed) run(t, &m, text, &chain[1]);
    if (!t->failed) check_cut(t, &m, out, 1, c->heads * c->width);
    team_end(&m);
}

/* q has more columns than k and v. */
TEST_ONCE(families_share_layers_of_phi3)
{
    zf_causal_config c = small(ZF_CAUSAL_PHI3);
    how = (zf_training){.clip = 0.5, .sections.tensor = 4};
    check_family(t, &c, "model.layers.0.self_attn.o_proj.weight");
    how.precision.dtype = ZF_BF16;
    check_family(t, &c, "model.layers.0.self_attn.o_proj.weight");
}

/* All heads of queries have one of keys. */
TEST_ONCE(families_share_layers_of_falcon)
{
    zf_causal_config c = small(ZF_CAUSAL_FALCON);
    how = (zf_training){.clip = 0.5, .sections.tensor = 4};
    c.kv_heads = 1, c.parallel = ZF_CAUSAL_PARALLEL_ONE_NORM;
    c.attention_bias = c.mlp_bias = 1;
    check_family(t, &c, "transformer.h.0.self_attention.dense.weight");
}

/* A number for each head is added to scores. */
TEST_ONCE(families_share_layers_with_alibi)
{
    static const struct {
        zf_causal_family family;
        zf_causal_alibi alibi;
        const char *out;
    } all[] = {{ZF_CAUSAL_BLOOM, ZF_CAUSAL_ALIBI, "transformer.h.0.self_attention.dense.weight"},
               {ZF_CAUSAL_MPT, ZF_CAUSAL_ALIBI_MPT, "transformer.blocks.0.attn.out_proj.weight"}};
    for (size_t k = 0; k < sizeof all / sizeof *all && !t->failed; k++) {
        zf_causal_config c = small(all[k].family);
        how = (zf_training){.clip = 0.5, .sections.tensor = 4};
        c.kv_heads = 8, c.alibi = all[k].alibi, c.mlp_bias = c.attention_bias = !k;
        check_family(t, &c, all[k].out);
    }
}

/* Queries have one norm for all heads, and so have keys. */
TEST_ONCE(families_share_layers_of_olmo2)
{
    for (int k = 0; k < 3 && !t->failed; k++) {
        zf_causal_config c = small(ZF_CAUSAL_OLMO2);
        how = (zf_training){.clip = 0.5, .sections.tensor = 4};
        if (k == 1) how.precision.dtype = ZF_BF16;
        if (k == 2) c.kv_heads = 2;
        check_family(t, &c, "model.layers.0.self_attn.o_proj.weight");
    }
}

/* What sections do not divide stays whole, and is no error: 3 heads; or of heads of which rope
 * rotates a part, one for each section. */
TEST_ONCE(families_keep_attention_whole)
{
    static const struct {
        zf_causal_family family;
        int64_t heads, rotated;
        const char *out;
    } all[] = {{ZF_CAUSAL_PHI3, 3, 0, "model.layers.0.self_attn.o_proj.weight"},
               {ZF_CAUSAL_PHI3, 2, 2, "model.layers.0.self_attn.o_proj.weight"},
               {ZF_CAUSAL_OLMO2, 3, 0, "model.layers.0.self_attn.o_proj.weight"},
               {ZF_CAUSAL_FALCON, 3, 0, "transformer.h.0.self_attention.dense.weight"}};
    for (size_t k = 0; k < sizeof all / sizeof *all && !t->failed; k++) {
        zf_causal_config c = small(all[k].family);
        zf_graph *g = zf_graph_new(NULL);
        zf_training d = {.tensor = 2, .zero.world = 1};
        if (!g) abort();
        c.heads = all[k].heads, c.kv_heads = k == 3 ? 1 : all[k].heads;
        c.rotated = all[k].rotated;
        llm_build(g, &c, &(sample_shape){.batch = 1, .sequence = TOKENS}, SAMPLE_TRAIN);
        d.loss = zf_graph_find(g, "loss"), d.lr = zf_graph_find(g, "lr");
        zf_passes(g, &d);
        OK(t, zf_graph_status(g), zf_graph_error(g));
        if (!t->failed) CHECK(t, zf_tensor_shape(zf_graph_find(g, all[k].out)).dims[1] == 4 * c.heads);
        zf_graph_free(g);
    }
}

static void close_session(void *s) { session_close(s); }

/* A session over the same weights, with or without the adapter; it is closed with the test. */
static void open_over(test *t, session *s, session_desc d, session *of, session_adapter with)
{
    zf_error error = {ZF_OK, ""};
    if (of) d.training = (zf_training){.clip = 0}, d.purpose = SAMPLE_EVALUATE;
    d.share = of, d.with = with;
    if (session_open(s, &d, &error)) test_defer(t, close_session, s);
    else test_unwind(t, __FILE__, __LINE__, "session_open", error.status, error.text);
}

/* A product that joins layers is whole with an adapter, and so it is in the base over the same
 * store, which computes the same. */
TEST_ONCE(families_have_a_base_with_sections)
{
    static const struct {
        zf_causal_family family;
        const char *targets;
        int micro_batches;
    } all[] = {{ZF_CAUSAL_PHI3, "all-linear", 0},
               {ZF_CAUSAL_PHI3, "qkv_proj", 2},
               {ZF_CAUSAL_PHI3, "o_proj", 0},
               {ZF_CAUSAL_FALCON, "all-linear", 0}};
    static session train, base;
    for (size_t k = 0; k < sizeof all / sizeof *all && !t->failed; k++) {
        zf_causal_config c = small(all[k].family);
        double loss;
        const session_desc d = {.sample = &llm_sample,
                                .purpose = SAMPLE_TRAIN,
                                .config = &c,
                                .training = {.lora = {.rank = 2, .targets = all[k].targets},
                                             .zero.micro_batches = all[k].micro_batches,
                                             .sections.tensor = 2},
                                .threads = 1,
                                .seed = 5,
                                .shape = {.batch = 2, .sequence = TOKENS}};
        if (c.family == ZF_CAUSAL_FALCON) c.kv_heads = 1, c.parallel = ZF_CAUSAL_PARALLEL_ONE_NORM;
        open_over(t, &train, d, NULL, SESSION_OWN);
        if (!t->unwound) open_over(t, &base, d, &train, SESSION_BASE);
        if (t->failed || t->unwound) return;
        feed(train.graph, train.program, 0, 0), feed(base.graph, base.program, 0, 0);
        if (all[k].micro_batches) OK(t, zf_micro(train.program), zf_program_error(train.program));
        OK(t, zf_step(train.program), zf_program_error(train.program));
        loss = session_scalar(&train, "loss"); /* the base computes in the same memory */
        OK(t, zf_step(base.program), zf_program_error(base.program));
        CHECK_NEAR(t, (all[k].micro_batches ? 2 : 1) * session_scalar(&base, "loss"), loss, 0);
        session_close(&base), session_close(&train);
    }
}
