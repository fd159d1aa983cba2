/* One checkpoint for all layouts of a model with experts: ranks that share them, their layers or
 * sequences, or have some of these, at any stage of ZeRO, load what ranks in another layout have
 * saved, and the bits are those of a run that was never interrupted. */
#include "../files/layouts.h"

enum { PARTS = 8 };

/* The text of a Mixtral of so many experts, `dense`: the layers without, a bit each; the caller frees
 * it. Choices are dropped by chance, and the router has losses. */
static char *mixture_text(int64_t experts, int64_t dense)
{
    zf_causal_config c;
    zf_error error = {ZF_OK, ""};
    if (!llm_config_load("moe-15m", &c, &error)) abort();
    c.vocab = VOCAB, c.hidden = 16, c.layers = 2, c.heads = 2, c.kv_heads = 2, c.width = 8;
    c.intermediate = c.expert_width = 24, c.positions = 16, c.tied = true, c.dense[0] = dense;
    c.experts = experts;
    c.of = (zf_causal_routing){.aux_loss = 0.02, .z_loss = 0.001, .capacity = 1.25, .random = 1};
    return text_of(&c);
}

static void check_experts(test *t, char *text, int tensor, const layout *chain, int count)
{
    static const layout one = {1, 4, 1, 0, 1, 0};
    test_defer(t, free, text);
    parts_of_step = PARTS;
    how.sections.tensor = tensor;
    how.clip = 0.5, how.sections.expert = 4;
    check_chain(t, text, chain, count, &one);
}

TEST_ONCE(expert_layouts_share_a_checkpoint)
{
    static const layout chain[] = {{1, 4, 1, 3, 4, 0}, {1, 4, 1, 0, 1, 0}, {1, 8, 1, 3, 4, 0},
                                   {2, 4, 1, 3, 4, 0}, {1, 4, 1, 1, 2, 0}, {2, 4, 1, 2, 2, 0}};
    how = (zf_training){.ema.decay = 0.9};
    check_experts(t, mixture_text(4, 0), 1, chain, (int)(sizeof chain / sizeof *chain));
}

/* The first stage has no layer of experts; layers are recomputed, and of experts in host memory those
 * with rows are fetched. */
TEST_ONCE(expert_layouts_of_stages_without_experts)
{
    static const layout chain[] = {{2, 4, 1, 0, 4, 0}, {2, 4, 1, 0, 1, 0}, {2, 4, 1, 3, 2, 0}};
    how = (zf_training){.recompute.mode = ZF_RECOMPUTE_LAYERS};
    stages_in = ZF_HOST;
    check_experts(t, mixture_text(8, 1), 1, chain, (int)(sizeof chain / sizeof *chain));
    stages_in = ZF_DEVICE;
}

/* Ranks along tensor share experts, too: each has a part of their hidden numbers. */
TEST_ONCE(expert_layouts_of_experts_that_are_cut)
{
    static const layout chain[] = {{1, 4, 2, 3, 4, 0}, {1, 4, 1, 0, 1, 0}, {1, 4, 2, 1, 2, 0},
                                   {1, 4, 1, 2, 4, 0}};
    how = (zf_training){.recompute.mode = ZF_RECOMPUTE_OFF};
    check_experts(t, mixture_text(4, 0), 2, chain, (int)(sizeof chain / sizeof *chain));
}

/* In 16 bits, too: between layers ranks along tensor have parts of the tokens. */
TEST_ONCE(expert_layouts_in_16_bits)
{
    static const layout chain[] = {{1, 2, 2, 0, 1, 0}, {1, 2, 1, 0, 1, 0}, {1, 2, 2, 3, 2, 0}},
                        whole = {1, 2, 1, 0, 1, 0};
    char *text = mixture_text(4, 0);
    test_defer(t, free, text);
    parts_of_step = 2;
    how = (zf_training){.precision.dtype = ZF_BF16,
                        .sections = {.tensor = 2, .expert = 2},
                        .optimizer = ZF_SGD,
                        .clip = 0.5};
    check_chain(t, text, chain, (int)(sizeof chain / sizeof *chain), &whole);
}

/* Eight sections: what four ranks that share experts have saved at stage 3 is loaded by one, two and
 * eight. */
TEST_ONCE(expert_layouts_of_eight_ranks)
{
    static const layout chain[] = {{1, 8, 1, 3, 4, 0}, {1, 8, 1, 0, 1, 0}, {1, 8, 1, 3, 4, 0},
                                   {1, 8, 1, 1, 2, 0}, {1, 8, 1, 3, 4, 0}, {1, 8, 1, 2, 8, 0}},
                        one = {1, 8, 1, 0, 1, 0};
    char *text = mixture_text(8, 0);
    test_defer(t, free, text);
    parts_of_step = PARTS;
    how = (zf_training){.clip = 0.5, .sections = {.tensor = 1, .expert = 8}};
    check_chain(t, text, chain, (int)(sizeof chain / sizeof *chain), &one);
}

/* Ranks that share sequences have the rows of their tokens, and share experts with those that have the
 * same tokens of other sequences. */
static void check_context(test *t, zf_context_kind kind, const layout *chain, int count)
{
    how = (zf_training){.context_kind = kind, .sections.context = 4};
    check_experts(t, mixture_text(4, 0), 1, chain, count);
}

TEST_ONCE(expert_layouts_of_ranks_that_share_sequences)
{
    static const layout chain[] = {{1, 4, 1, 3, 4, 2}, {1, 4, 1, 0, 1, 1}, {1, 4, 1, 1, 2, 2},
                                   {2, 4, 1, 2, 4, 1}, {1, 4, 1, 2, 1, 2}};
    check_context(t, ZF_CONTEXT_GATHER, chain, (int)(sizeof chain / sizeof *chain));
}

TEST_ONCE(expert_layouts_of_ranks_that_share_halves_of_sequences)
{
    static const layout chain[] = {{1, 4, 1, 3, 2, 2}, {1, 4, 1, 0, 1, 1}, {1, 4, 1, 0, 4, 2}};
    check_context(t, ZF_CONTEXT_ZIGZAG, chain, (int)(sizeof chain / sizeof *chain));
}

/* Of two parts of the batch: layers, sequences and experts are shared at once; and stages. */
static void check_axes(test *t, zf_context_kind kind, zf_dtype dtype, const layout *chain, int count)
{
    static const layout whole = {1, 2, 1, 0, 1, 1};
    char *text = mixture_text(4, 0);
    test_defer(t, free, text);
    parts_of_step = 4;
    how = (zf_training){.precision.dtype = dtype,
                        .context_kind = kind,
                        .sequence = "none",
                        .sections = {.tensor = 2, .context = 2, .expert = 2},
                        .clip = 0.5};
    check_chain(t, text, chain, count, &whole);
}

TEST_ONCE(expert_layouts_of_four_axes)
{
    static const layout chain[] = {{1, 2, 2, 3, 2, 2}, {2, 2, 1, 1, 1, 2}, {1, 2, 1, 0, 1, 1},
                                   {1, 2, 2, 0, 2, 2}, {2, 2, 1, 2, 2, 2}};
    check_axes(t, ZF_CONTEXT_RING, ZF_F32, chain, (int)(sizeof chain / sizeof *chain));
}

TEST_ONCE(expert_layouts_of_four_axes_in_16_bits)
{
    static const layout chain[] = {{1, 2, 2, 1, 2, 2}, {1, 2, 1, 0, 1, 1}, {2, 2, 1, 3, 2, 2}};
    check_axes(t, ZF_CONTEXT_GATHER, ZF_BF16, chain, (int)(sizeof chain / sizeof *chain));
}
