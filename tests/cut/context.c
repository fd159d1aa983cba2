/* zf_context: sequences of a small language model are cut over ranks, and the steps have the bits
 * of one rank with as many sections, at each stage of ZeRO; what cannot be cut says why. */
#include "context.h"

TEST_ONCE(context_has_the_bits_of_one_rank)
{
    check_ranks(t, "f32", TRAINS "context sections=4", 2, TRAINS "context parts=2 sections=4");
    check_ranks(t, "f32", TRAINS "context sections=4", 4, TRAINS "context parts=4");
    check_ranks(t, "bf16", TRAINS "context sections=4", 2, TRAINS "context parts=2 sections=4");
    check_ranks(t, "bf16", TRAINS "context sections=4", 4, TRAINS "context parts=4");
}

TEST_ONCE(context_drops_what_one_rank_does)
{
    source = DROPS("16", "32", "16", "4", "relu %8");
    check_ranks(t, "f32", TRAINS "context sections=4", 2, TRAINS "context parts=2 sections=4");
    check_ranks(t, "f32", TRAINS "context sections=4", 4, TRAINS "context parts=4");
    source = DROPS("16", "32", "16", "4", "dropout %8 {p=0.25 stream=3}");
    check_ranks(t, "f32", TRAINS "context sections=4", 2, TRAINS "context parts=2 sections=4");
    check_ranks(t, "f32", TRAINS "context sections=4", 4, TRAINS "context parts=4");
    source = NULL;
}

TEST_ONCE(context_has_any_number_of_ranks)
{
    source = DROPS("96", "192", "24", "12", "dropout %8 {p=0.25 stream=3}");
    check_ranks(t, "f32", TRAINS "context sections=3", 3, TRAINS "context parts=3");
    source = DROPS("16", "32", "16", "8", "dropout %8 {p=0.25 stream=3}");
    check_ranks(t, "f32", TRAINS "context sections=8", 8, TRAINS "context parts=8");
    source = NULL;
}

/* A rank's addends are added as they are: no chain reads a sum over ranks that is still to be
 * made. */
TEST_ONCE(context_fuses_what_is_no_addend)
{
    source = DROPS("16", "32", "32", "8", "relu %8");
    check_ranks(t, "f32", TRAINS "context sections=8; fuse", 2,
                TRAINS "context parts=2 sections=8; fuse");
    source = NULL;
}

/* Ranks along data too, at each stage. */
TEST_ONCE(context_has_the_same_bits_at_each_stage_of_zero)
{
    static team two, all;
    test_defer(t, team_end, &two);
    test_defer(t, team_end, &all);
    for (int stage = 0; stage < 4 && !t->failed; stage++) {
        char line[200], shared[200];
        snprintf(line, sizeof line, TRAINS "context sections=2; zero stage=%d world=2", stage);
        snprintf(shared, sizeof shared, TRAINS "context parts=2; zero stage=%d world=2", stage);
        if (make(t, &two, 2, 1, "f32", line, STEPS) && make(t, &all, 4, 2, "f32", shared, STEPS) &&
            stage < 3)
            check_bits(t, &two, &all);
        else if (!t->failed) {
            float a, b;
            read_value(t, &two, 0, "loss", &a), read_value(t, &all, 0, "loss", &b);
            CHECK(t, !memcmp(&a, &b, sizeof a));
        }
        team_end(&all);
        team_end(&two);
    }
}

/* Against one rank without sections, in f64. */
TEST_ONCE(context_computes_what_one_rank_does)
{
    static team one, all;
    test_defer(t, team_end, &one);
    test_defer(t, team_end, &all);
    if (make(t, &one, 1, 1, "f64", "autograd loss; simplify; adamw lr", 5) &&
        make(t, &all, 4, 4, "f64", TRAINS "context parts=4", 5))
        check_near(t, &one, &all);
}

/* The calls over context of a step, and their bytes: x/C (C-1)/C for q, k, v and what attention
 * gives, forward and backward, and for the gradient of positions. */
TEST(context_bytes_are_those_of_the_formulas)
{
    enum { C = 2, X = B * S * WIDTH * 4, POSITIONS = S * WIDTH * 4 };
    const size_t exchanged = (8 * (size_t)X + POSITIONS) / C * (C - 1) / C;
    char text[TEXT];
    zf_plan plan;
    write_model(text, "f32");
    if (!plan_after(t, text, TRAINS "context parts=2; memory", &plan)) return;
    CHECK(t, plan.traffic_over[ZF_OVER_CONTEXT].all_to_all.calls == 9);
    CHECK(t, plan.traffic_over[ZF_OVER_CONTEXT].all_to_all.bytes == exchanged);
    CHECK(t, plan.traffic_over[ZF_OVER_CONTEXT].all_gather.calls == 1); /* of positions' gradient */
}

TEST(context_cuts_are_checked)
{
    static const struct {
        const char *passes, *error;
    } wrong[] = {
        {TRAINS "context parts=3", "zf_context: sequences of 16 tokens do not make 3 sections of 2 "
                                   "tokens or more"},
        {TRAINS "context parts=16", "do not make 16 sections of 2 tokens or more"},
        {TRAINS "context parts=2 sections=3", "zf_context: 3 sections are not divided by 2 ranks"},
        {TRAINS "context parts=8",
         "zf_context: attention %18 has 4 heads, which 8 sections along context do not divide: fewer "
         "sections do, or kind=gather, zigzag or ring, which share tokens"},
        {TRAINS "cut sections=2 tokens=cut; context parts=2",
         "zf_context: ranks along tensor have parts of the tokens already: zf_cut with `later` deals "
         "them after those along context"},
        {TRAINS "context parts=2; context parts=2", "zf_context: the ranks have other axes than tensor already"},
    };
    char text[TEXT];
    zf_plan plan;
    write_model(text, "f32");
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong && !t->failed; k++)
        check_refused(t, text, wrong[k].passes, wrong[k].error);
    source = DROPS("16", "32", "16", "4", "relu %8");
    write_model(text, "f32");
    source = NULL;
    check_refused(t, text, TRAINS "context parts=8",
                  "zf_context: attention %5 has 4 heads, which 8 sections along context do not divide: "
                  "fewer sections do, or kind=gather, zigzag or ring, which share tokens");
    check_refused(t,
                  "%1 = input \"x\" : f32[2,16,16]\n%2 = param \"q\" : f32[16,16]\n"
                  "%3 = param \"k\" : f32[16,16]\n%4 = param \"v\" : f32[16,16]\n"
                  "%5 = param \"o\" : f32[16,16]\n%6 = linear %1, %2 : f32[2,16,16]\n"
                  "%7 = linear %1, %3 : f32[2,16,16]\n%8 = linear %1, %4 : f32[2,16,16]\n"
                  "%9 = attention %6, %7, %8 {heads=4 scale=0.5 p=0.25 stream=1} : f32[2,16,16]\n"
                  "%10 = linear %9, %5 : f32[2,16,16]\n%11 = reshape %10 {shape=[512]} : f32[512]\n"
                  "%12 = sum %11 : f32[]\noutput %12 \"loss\" role=loss\n",
                  "autograd %12; simplify; cut sections=4 tokens=whole; context sections=2",
                  "zf_context: attention_grad %24 has 4 heads, which 2 sections along context times 4 "
                  "along tensor do not divide: fewer sections do, or kind=gather, zigzag or ring, which "
                  "share tokens");
    source = "%1 = param \"e\" : $[11,8]\n%2 = input \"tokens\" : i32[4,16]\n"
             "%3 = gather_rows %1, %2 : $[4,16,8]\n"
             "%4 = constant {values=[16,1,0,1,0,1,0,0]} : i32[8]\n"
             "%5 = attention %3, %3, %3, %4 {heads=2 scale=0.5 block=16 layouts=1} : $[4,16,8]\n"
             "%6 = reshape %5 {shape=[64,8]} : $[64,8]\n%7 = input \"labels\" : i32[4,16]\n"
             "%8 = reshape %7 {shape=[64]} : i32[64]\n%9 = input \"weight\" : @[]\n"
             "%10 = head_loss %6, %1, %8, %9 {ignore=-100} : @[]\noutput %10 \"loss\" role=loss\n"
             "%11 = input \"lr\" : @[]\n";
    write_model(text, "f32");
    source = NULL;
    check_refused(t, text, TRAINS "context parts=2",
                  "zf_context: attention %5 has a block mask, which is not cut by heads: kind=gather "
                  "or kind=zigzag cuts it by its queries");
    plan_after(t, text, TRAINS "context parts=2 kind=gather", &plan);
    check_refused(t,
                  "%1 = input \"x\" : f32[3,8]\n%2 = param \"g\" : f32[8]\n"
                  "%3 = residual_norm %1, %1, %2 {p=0.5 stream=1 form=rms} : f32[3,8]\n"
                  "output %3 \"y\"\n",
                  "context parts=2",
                  "zf_context: residual_norm %3 draws random numbers, which are those of a whole "
                  "tensor: it is not cut over context");
}

/* What the backward pass reshapes is no reshape of the forward pass, nor one of another, but what these
 * reshape: so they need not be kept. */
TEST(context_reshapes_no_reshapes)
{
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t,
                              "%1 = input \"x\" : f32[2,8,6]\n%2 = param \"down\" : f32[16,6]\n"
                              "%3 = linear %1, %2 : f32[2,8,16]\n%4 = param \"up\" : f32[6,16]\n"
                              "%5 = linear %3, %4 : f32[2,8,6]\n%6 = silu %5 : f32[2,8,6]\n"
                              "%7 = reshape %6 {shape=[16,6]} : f32[16,6]\n"
                              "%8 = reshape %7 {shape=[2,8,6]} : f32[2,8,6]\n"
                              "%9 = reshape %8 {shape=[96]} : f32[96]\n%10 = sum %9 : f32[]\n"
                              "output %10 \"loss\" role=loss\n"
                              "%11 = reshape %8 {shape=[16,6]} : f32[16,6]\n%12 = silu %11 : f32[16,6]\n"
                              "output %12 \"of the backward pass\"\n",
                              &error);
    char text[TEXT];
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    OK(t, zf_cut(g, &(zf_cut_desc){.parts = 2, .tokens = ZF_TOKENS_CUT}), zf_graph_error(g));
    zf_graph_text(g, text, sizeof text);
    CHECK(t, strstr(text, "%8  = reshape %7 ") && strstr(text, "%11 = reshape %6 "));
}

/* A description that asks for more than there is. */
TEST(context_kind_is_of_ranks_that_share_sequences)
{
    char text[TEXT];
    zf_error error = {ZF_OK, ""};
    zf_graph *g;
    zf_training how = {.context_kind = ZF_CONTEXT_GATHER};
    write_model(text, "f32");
    g = team_parsed(t, text, &error);
    NEED(t, g, &error);
    how.loss = zf_graph_find(g, "loss");
    CHECK(t, zf_passes(g, &how) != ZF_OK);
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_passes: context_kind is of ranks that share sequences: it must be left out without "
               "context and sections.context");
    zf_graph_free(g);
}

#define ROUTED                                                                                     \
    "%1 = input \"tokens\" : i32[2,8]\n%2 = param \"e\" : f32[11,8]\n"                             \
    "%3 = gather_rows %2, %1 : f32[2,8,8]\n%4 = reshape %3 {shape=[16,8]} : f32[16,8]\n"          \
    "%5 = param \"gate\" : f32[4,8]\n%6 = linear %4, %5 : f32[16,4]\n"                            \
    "%7 = route %6 {k=2} : f32[16,2]\n%8 = saved %7 : i32[16,2]\n"

/* Rows of experts that ranks cannot have of their own tokens. */
TEST(context_needs_rows_of_all_choices)
{
    check_refused(t, ROUTED "%9 = expert_rows %8 {experts=4 rows=20} : i32[20]\n",
                  "context parts=2",
                  "zf_context: expert_rows %9 has 20 rows for 32 choices: ranks along context need a "
                  "row for each, or a capacity");
    check_refused(t,
                  ROUTED "%9 = expert_rows %8 {experts=4 rows=32} : i32[32]\n"
                         "%10 = saved %9 : i32[4,2]\n%11 = slice %10 {stop=2} : i32[2,2]\n"
                         "output %11 \"y\"\n",
                  "context parts=2",
                  "zf_context: slice %11 reads rows of experts in %10, and each rank has those of its "
                  "tokens");
    check_refused(t,
                  "%1 = input \"tokens\" : i32[2,8]\n%2 = param \"e\" : f32[11,8]\n"
                  "%3 = gather_rows %2, %1 : f32[2,8,8]\n%4 = reshape %3 {shape=[16,8]} : f32[16,8]\n"
                  "%5 = param \"gate\" : f32[128,8]\n%6 = linear %4, %5 : f32[16,128]\n"
                  "%7 = route %6 {k=1} : f32[16,1]\n%8 = saved %7 : i32[16,1]\n"
                  "%9 = expert_rows %8 {experts=128 rows=16} : i32[16]\n%10 = saved %9 : i32[128,2]\n"
                  "%11 = saved %9 {index=1} : i32[16,1]\n%12 = dispatch %4, %9, %11 : f32[16,8]\n"
                  "%13 = param \"w\" : f32[128,8,8]\n"
                  "%14 = grouped_linear %12, %13, %10 : f32[16,8]\n"
                  "%15 = combine %14, %9, %11, %7 : f32[16,8]\n%16 = mul %15, %15 : f32[16,8]\n"
                  "%17 = sum %16 {axis=1} : f32[16]\n%18 = sum %17 : f32[]\n"
                  "output %18 \"loss\" role=loss\n",
                  "autograd loss; context parts=2; experts parts=128",
                  "zf_experts: 128 ranks share experts, and with ranks along context 64 can");
    check_refused(t,
                  "%1 = input \"x\" : i32[8,8]\n%2 = expert_rows %1 {experts=4 rows=64} : i32[64]\n"
                  "%3 = saved %2 : i32[4,2]\n",
                  "context parts=2",
                  "zf_context: expert_rows %2 has choices that are not of the tokens of sequences");
}
