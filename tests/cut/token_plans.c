/* What ranks that share layers and the tokens between them take: bytes of activations, and bytes
 * that are sent, by formulas that are written out here. */
#include "small_models.h"
#include "../ranks/team.h"

#include "../../examples/gpt/model.h"

/* Of a GPT-2, whose inner layers are 4 times as wide. */
static int64_t layers, tokens, hidden, words;

enum { BATCH = 2, HEADS = 4 };

static zf_training how;

static void build(zf_graph *g)
{
    zf_error error = {ZF_OK, ""};
    gpt_config c;
    if (!gpt_config_load("small", &c, &error)) return;
    c.vocab = words, c.hidden = hidden, c.layers = layers, c.heads = HEADS;
    c.intermediate = 4 * hidden, c.positions = tokens;
    c.embedding_dropout = c.attention_dropout = c.residual_dropout = 0;
    gpt_build(g, &c, &(sample_shape){.batch = BATCH, .sequence = tokens}, SAMPLE_TRAIN);
}

static zf_status change(zf_graph *g)
{
    zf_training t = how;
    t.loss = zf_graph_find(g, "loss"), t.lr = zf_graph_find(g, "lr");
    t.precision.dtype = ZF_BF16;
    return zf_passes(g, &t);
}

static void plan_of(test *t, zf_training its, zf_plan *plan)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    build(g), how = its;
    OK(t, change(g), zf_graph_error(g));
    OK(t, zf_memory(g, NULL), zf_graph_error(g));
    OK(t, zf_graph_plan(g, plan), zf_graph_error(g));
}

/* Values of the micro section that are alive at one time, without gradients of parameters, and
 * gathered ones: of two ranks 0.52 of those of one at most, and more without parts of tokens. */
TEST_ONCE(token_plans_of_activations)
{
    zf_plan one, all, half, more;
    double of_one;
    layers = 8, tokens = 64, hidden = 128, words = 512;
    plan_of(t, (zf_training){.clip = 0}, &one);
    plan_of(t, (zf_training){.sections.tensor = 2}, &all);
    plan_of(t, (zf_training){.tensor = 2}, &half);
    plan_of(t, (zf_training){.tensor = 2, .sequence = "none"}, &more);
    if (t->failed) return;
    of_one = (double)(one.most[ZF_ACTIVATIONS] < all.most[ZF_ACTIVATIONS]
                          ? one.most[ZF_ACTIVATIONS]
                          : all.most[ZF_ACTIVATIONS]);
    CHECK(t, (double)(half.most[ZF_ACTIVATIONS] + half.most[ZF_COMMUNICATION]) <= 0.52 * of_one);
    CHECK(t, (double)more.most[ZF_ACTIVATIONS] > 0.58 * of_one);
}

/* Of two ranks along context and two along tensor each has a quarter of the tokens between layers:
 * 0.52 of what two ranks along context have at most. */
TEST_ONCE(token_plans_of_activations_over_context)
{
    zf_plan two, four, more;
    double of_two;
    layers = 8, tokens = 128, hidden = 128, words = 512;
    plan_of(t, (zf_training){.context = 2}, &two);
    plan_of(t, (zf_training){.context = 2, .tensor = 2}, &four);
    plan_of(t, (zf_training){.context = 2, .tensor = 2, .sequence = "none"}, &more);
    if (t->failed) return;
    of_two = (double)(two.most[ZF_ACTIVATIONS] + two.most[ZF_COMMUNICATION]);
    CHECK(t, (double)(four.most[ZF_ACTIVATIONS] + four.most[ZF_COMMUNICATION]) <= 0.52 * of_two);
    CHECK(t, (double)more.most[ZF_ACTIVATIONS] > 0.58 * (double)two.most[ZF_ACTIVATIONS]);
}

/* Of 12 layers over four ranks, with x elements of hidden values: a layer gathers its two inputs
 * and scatters its two sums, in the forward pass; the backward pass gathers gradients of both
 * results and both inputs again, and scatters two sums. Values are gathered in 16 bits, and addends
 * are f32. The head gathers its input twice, too, and scatters its gradient; four numbers for each
 * row and section are scattered, and gathered twice. Rows of words are scattered in 16 bits, and
 * their gradients gathered; so are those of positions. Gradients of two norms and two biases of a
 * layer, and of the last norm, are summed, and the loss. */
TEST_ONCE(token_plans_of_traffic)
{
    enum { L = 12, T = 4, S = 4, NUMBERS = 4 };
    static team m;
    const zf_traffic *over;
    size_t x, rows, numbers;
    zf_graph *g = zf_graph_new(NULL);
    static char text[1 << 17];
    zf_plan plan;
    layers = L, tokens = 16, hidden = 32, words = 128;
    x = (size_t)(BATCH * tokens * hidden), rows = (size_t)(BATCH * tokens);
    numbers = 4 * rows * S * NUMBERS;
    plan_of(t, (zf_training){.tensor = T}, &plan);
    if (t->failed || !g) return;
    over = &plan.traffic_over[ZF_OVER_TENSOR];
    CHECK(t, over->all_gather.bytes ==
                 (2 * x * (6 * L + 3) + 2 * numbers + (size_t)(2 * tokens * hidden)) * (T - 1) / T);
    CHECK(t, over->reduce_scatter.bytes ==
                 (4 * x * (4 * L + 1) + 2 * x + numbers) * (T - 1) / T);
    CHECK(t, over->all_reduce.bytes ==
                 2 * (T - 1) * ((6 * L + 2) * 4 * (size_t)hidden / T + 4));
    build(g), zf_graph_text(g, text, sizeof text), zf_graph_free(g);
    test_defer(t, team_end, &m);
    if (!team_new(t, &m, text, T, false, change)) return;
    for (int r = 0; r < T; r++) feed(m.members[r].graph, m.programs[r], 0, 0);
    team_step(t, &m);
    for (int r = 0; r < T && !t->failed; r++) {
        const zf_program_info info = zf_program_info_of(m.programs[r]);
        CHECK(t, !memcmp(&info.counted_over[ZF_OVER_TENSOR], over, sizeof *over));
    }
}
