/* Layers that one product joins, and what else kept attention whole, are cut over ranks along
 * tensor: steps of ranks in any layout, stages among them, have the bits of one, and so has a
 * checkpoint. */
#include "../files/layouts.h"

enum { PARTS = 2 };

/* A small model of a family. */
static zf_causal_config small(zf_causal_family family)
{
    zf_causal_config c;
    zf_error error = {ZF_OK, ""};
    if (!llm_config_load("15m", &c, &error)) abort();
    c.family = family;
    c.vocab = VOCAB, c.hidden = 16, c.layers = 1, c.heads = 8, c.kv_heads = 4, c.width = 4;
    c.intermediate = 24, c.positions = 16;
    return c;
}

static zf_causal_config built;

static zf_graph *build(void)
{
    zf_graph *g = zf_graph_new(NULL);
    if (!g) abort();
    llm_build(g, &built, &(sample_shape){.batch = 1, .sequence = TOKENS}, SAMPLE_TRAIN);
    return g;
}

/* Four ranks along tensor have their columns of `out`, the weight of the output of attention. */
static void check_cut(test *t, const char *out)
{
    static const layout four = {1, 1, 4, 0, 0, 0};
    zf_graph *g = build();
    now = &four;
    OK(t, change(g), zf_graph_error(g));
    CHECK(t, zf_tensor_shape(zf_graph_find(g, out)).dims[1] * 4 == built.heads * built.width);
    zf_graph_free(g);
}

/* Attention is cut, and ranks in each layout go on where others ended. */
static void check_family(test *t, const zf_causal_config *c, const char *out, const layout *chain,
                         int count)
{
    static const layout one = {1, 1, 1, 0, 0, 0};
    parts_of_step = PARTS;
    built = *c, team_builds = build;
    check_cut(t, out);
    if (!t->failed) check_chain(t, NULL, chain, count, &one);
    team_builds = NULL;
}

static const layout two[] = {{1, 1, 2, 0, 0, 0}}, four[] = {{1, 1, 4, 0, 0, 0}},
                    staged[] = {{1, 1, 4, 0, 0, 0}, {2, 1, 2, 1, 0, 0}},
                    sharded[] = {{1, 1, 1, 0, 0, 0}, {1, 2, 2, 3, 0, 0}};

/* q has more columns than k and v. */
TEST_ONCE(families_share_layers_of_phi3)
{
    zf_causal_config c = small(ZF_CAUSAL_PHI3);
    how = (zf_training){.clip = 0.5, .sections.tensor = 4};
    check_family(t, &c, "model.layers.0.self_attn.o_proj.weight", sharded, 2);
    how.precision.dtype = ZF_BF16, c.layers = 2;
    if (!t->failed) check_family(t, &c, "model.layers.0.self_attn.o_proj.weight", staged, 2);
}

/* All heads of queries have one of keys. */
TEST_ONCE(families_share_layers_of_falcon)
{
    zf_causal_config c = small(ZF_CAUSAL_FALCON);
    how = (zf_training){.clip = 0.5, .sections.tensor = 4};
    c.kv_heads = 1, c.parallel = ZF_CAUSAL_PARALLEL_ONE_NORM;
    c.attention_bias = c.mlp_bias = 1;
    check_family(t, &c, "transformer.h.0.self_attention.dense.weight", four, 1);
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
        check_family(t, &c, all[k].out, four, 1);
    }
}

/* Queries have one norm for all heads, and so have keys. */
TEST_ONCE(families_share_layers_of_olmo2)
{
    static const layout *const chains[] = {&staged[1], four, two};
    for (int k = 0; k < 3 && !t->failed; k++) {
        zf_causal_config c = small(ZF_CAUSAL_OLMO2);
        how = (zf_training){.clip = 0.5, .sections.tensor = 4};
        if (k == 1) how.precision.dtype = ZF_BF16;
        if (k == 2) c.kv_heads = 2;
        c.layers = chains[k]->pipe;
        check_family(t, &c, "model.layers.0.self_attn.o_proj.weight", chains[k], 1);
    }
}

/* What sections do not divide stays whole, and is no error: 3 heads. So does a weight of which DoRA
 * reads whole rows. */
TEST_ONCE(families_keep_attention_whole)
{
    static const struct {
        zf_causal_family family;
        int64_t heads, rotated;
        const char *out;
        int32_t whole; /* weights: those of attention, and of words, which sections do not divide */
        const char *adapts;
    } all[] = {{ZF_CAUSAL_PHI3, 3, 0, "model.layers.0.self_attn.o_proj.weight", 2 + 2, NULL},
               {ZF_CAUSAL_OLMO2, 3, 0, "model.layers.0.self_attn.o_proj.weight", 4 + 2, NULL},
               {ZF_CAUSAL_FALCON, 3, 0, "transformer.h.0.self_attention.dense.weight", 2 + 2, NULL},
               {ZF_CAUSAL_PHI3, 8, 0, "model.layers.0.self_attn.o_proj.weight", 2 + 2,
                "qkv_proj"}};
    for (size_t k = 0; k < sizeof all / sizeof *all && !t->failed; k++) {
        zf_causal_config c = small(all[k].family);
        zf_graph *g = zf_graph_new(NULL);
        zf_training d = {.tensor = 2, .zero.world = 1};
        zf_plan plan;
        if (!g) abort();
        if (all[k].adapts) d.lora.rank = 2, d.lora.dora = true, d.lora.targets = all[k].adapts;
        c.heads = all[k].heads, c.kv_heads = k == 2 ? 1 : all[k].heads;
        c.rotated = all[k].rotated;
        llm_build(g, &c, &(sample_shape){.batch = 1, .sequence = TOKENS}, SAMPLE_TRAIN);
        d.loss = zf_graph_find(g, "loss"), d.lr = zf_graph_find(g, "lr");
        zf_passes(g, &d);
        OK(t, zf_graph_status(g), zf_graph_error(g));
        if (!t->failed)
            CHECK(t, zf_tensor_shape(zf_graph_find(g, all[k].out)).dims[1] == 4 * c.heads);
        OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
        CHECK(t, plan.whole_weights == all[k].whole);
        zf_graph_free(g);
    }
}

/* Attention whose joined weight is adapted is whole; so is an adapter of a smaller rank than ranks
 * could share, and a larger one is cut. */
TEST_ONCE(families_share_adapters_of_joined_layers)
{
    static const layout one = {1, 1, 1, 0, 0, 0};
    for (int rank = 2; rank <= 8 && !t->failed; rank += 6) {
        how = (zf_training){.clip = 0.5, .sections.tensor = 2};
        how.lora.rank = rank, how.lora.targets = "qkv_proj";
        parts_of_step = PARTS;
        built = small(ZF_CAUSAL_PHI3), built.layers = 2, team_builds = build;
        check_chain(t, NULL, two, 1, &one);
        team_builds = NULL;
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
                                .training = {.lora = {.rank = 4, .targets = all[k].targets},
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
