/* zf_context with gathered keys and values: the bits of one rank with as many sections, at each
 * stage of ZeRO; what is sent. */
#include "context.h"

#define GATHERS " kind=gather"
#define RING    " kind=ring"

/* Causal attention of four heads, of which two share one of k and v. MORE: its other attributes. */
#define GROUPED(more)                                                                              \
    "%1 = param \"e\" {init=normal b=0.5} : $[11,16]\n%2 = input \"tokens\" : i32[2,16]\n"           \
    "%3 = gather_rows %1, %2 : $[2,16,16]\n%4 = param \"q\" {init=normal b=0.3} : $[16,16]\n"       \
    "%5 = linear %3, %4 : $[2,16,16]\n%6 = rope %5 {heads=4 theta=100} : $[2,16,16]\n"             \
    "%7 = param \"k\" {init=normal b=0.3} : $[8,16]\n%8 = linear %3, %7 : $[2,16,8]\n"             \
    "%9 = rope %8 {heads=2 theta=100} : $[2,16,8]\n"                                               \
    "%10 = param \"v\" {init=normal b=0.3} : $[8,16]\n%11 = linear %3, %10 : $[2,16,8]\n"           \
    "%12 = attention %6, %9, %11 {heads=4 kv_heads=2 scale=0.5" more "} : $[2,16,16]\n"           \
    "%13 = param \"o\" {init=normal b=0.3} : $[16,16]\n%14 = linear %12, %13 : $[2,16,16]\n"        \
    "%15 = add %14, %3 : $[2,16,16]\n%16 = reshape %15 {shape=[32,16]} : $[32,16]\n"              \
    "%17 = input \"labels\" : i32[2,16]\n%18 = reshape %17 {shape=[32]} : i32[32]\n"              \
    "%19 = input \"weight\" : @[]\n%20 = head_loss %16, %1, %18, %19 {ignore=-100} : @[]\n"       \
    "output %20 \"loss\" role=loss\n%21 = input \"lr\" : @[]\n"

static const char *const masks[] = {GROUPED(" causal=true"), GROUPED(" causal=true window=5"),
                                    GROUPED(" window=3"),
                                    GROUPED(" causal=true p=0.25 stream=1")};

/* Documents of 6, 7 and 3 tokens, and of 11 and 5. */
#define PACKED                                                                                     \
    "%1 = param \"e\" {init=normal b=0.5} : $[11,16]\n%2 = input \"tokens\" : i32[2,16]\n"           \
    "%3 = gather_rows %1, %2 : $[2,16,16]\n"                                                       \
    "%4 = constant {values=[0,0,0,0,0,0,1,1,1,1,1,1,1,2,2,2,3,3,3,3,3,3,3,3,3,3,3,4,4,4,4,4]} : "  \
    "i32[2,16]\n%5 = documents %4 : i32[2,16,2]\n"                                                \
    "%6 = attention %3, %3, %3, %5 {heads=4 scale=0.5 causal=true documents=true} : $[2,16,16]\n"  \
    "%7 = reshape %6 {shape=[32,16]} : $[32,16]\n%8 = input \"labels\" : i32[2,16]\n"              \
    "%9 = reshape %8 {shape=[32]} : i32[32]\n%10 = input \"weight\" : @[]\n"                      \
    "%11 = head_loss %7, %1, %9, %10 {ignore=-100} : @[]\noutput %11 \"loss\" role=loss\n"         \
    "%12 = input \"lr\" : @[]\n"

#define BLOCKS                                                                                     \
    "%1 = param \"e\" {init=normal b=0.5} : $[11,16]\n%2 = input \"tokens\" : i32[2,64]\n"           \
    "%3 = gather_rows %1, %2 : $[2,64,16]\n"                                                       \
    "%4 = constant {values=[16,1,0,1,3,5,8,0,4,5,7,8,0,0,1,0,2,0,2,3,0,1,2,3,1,2,3,3]} : "         \
    "i32[28]\n"                                                                                    \
    "%5 = attention %3, %3, %3, %4 {heads=4 scale=0.5 block=16 layouts=1} : $[2,64,16]\n"          \
    "%6 = reshape %5 {shape=[128,16]} : $[128,16]\n%7 = input \"labels\" : i32[2,64]\n"            \
    "%8 = reshape %7 {shape=[128]} : i32[128]\n%9 = input \"weight\" : @[]\n"                     \
    "%10 = head_loss %6, %1, %8, %9 {ignore=-100} : @[]\noutput %10 \"loss\" role=loss\n"          \
    "%11 = input \"lr\" : @[]\n"

/* Against one rank without sections, in f64. */
static void check_alone(test *t, const char *line)
{
    static team one, all;
    const int ranks = strstr(line, "parts=2") ? 2 : 4;
    test_defer(t, team_end, &one);
    test_defer(t, team_end, &all);
    if (make(t, &one, 1, 1, "f64", "autograd loss; simplify; adamw lr", 3) &&
        make(t, &all, ranks, ranks, "f64", line, 3))
        check_near(t, &one, &all);
    team_end(&all);
    team_end(&one);
}

static void check_gather(test *t, const char *dtype)
{
    const char *alone = TRAINS "context sections=4" GATHERS;
    check_ranks(t, dtype, alone, 2, TRAINS "context parts=2 sections=4" GATHERS);
    check_ranks(t, dtype, alone, 4, TRAINS "context parts=4" GATHERS);
}

TEST_ONCE(gather_has_the_bits_of_one_rank)
{
    for (int k = 0; k < 4 && !t->failed; k++) {
        source = masks[k];
        check_gather(t, "f32");
        if (!k) check_gather(t, "bf16");
    }
    source = NULL;
    check_gather(t, "f32");
}

/* Documents that begin and end within a rank's tokens, and go on in the next ones. */
TEST_ONCE(gather_keeps_documents_apart)
{
    source = PACKED;
    check_gather(t, "f32");
    check_ranks(t, "f32", TRAINS "context sections=8 kind=zigzag", 4,
                TRAINS "context parts=4 kind=zigzag");
    check_alone(t, TRAINS "context parts=4" GATHERS);
    source = NULL;
}

/* Blocks of 16 of 64 tokens, of which a rank's queries see some. */
TEST_ONCE(gather_has_block_masks)
{
    source = BLOCKS;
    check_gather(t, "f32");
    check_alone(t, TRAINS "context parts=2" GATHERS);
    source = NULL;
}

/* Dealt zig-zag: of 8 pieces a rank has the first and the last, ... */
static void check_zigzag(test *t, const char *dtype)
{
    const char *alone = TRAINS "context sections=8 kind=zigzag";
    check_ranks(t, dtype, alone, 2,
                TRAINS "context parts=2 sections=8 kind=zigzag; order data,context");
    check_ranks(t, dtype, alone, 4, TRAINS "context parts=4 kind=zigzag");
}

TEST_ONCE(zigzag_has_the_bits_of_one_rank)
{
    for (int k = 0; k < 4 && !t->failed; k++) {
        source = masks[k];
        check_zigzag(t, "f32");
        if (!k) check_zigzag(t, "bf16");
    }
    source = DROPS("16", "32", "16", "4", "dropout %8 {p=0.25 stream=3}");
    check_zigzag(t, "f32");
    source = NULL;
    check_zigzag(t, "f32");
}

/* The loss is the sum of what attention computes, whose gradient is one number. */
#define SUMMED                                                                                     \
    "%1 = param \"e\" {init=normal b=0.5} : $[11,16]\n%2 = input \"tokens\" : i32[2,16]\n"           \
    "%3 = gather_rows %1, %2 : $[2,16,16]\n"                                                       \
    "%4 = attention %3, %3, %3 {heads=4 scale=0.5 causal=true} : $[2,16,16]\n"                     \
    "%5 = reshape %4 {shape=[32,16]} : $[32,16]\n%6 = sum %5 : $[16]\n%7 = sum %6 : @[]\n"       \
    "output %7 \"loss\" role=loss\n%8 = input \"lr\" : @[]\n%9 = input \"weight\" : @[]\n"

/* Keys and values of one rank after the other. */
static void check_ring(test *t, const char *dtype)
{
    const char *alone = TRAINS "context sections=4" RING;
    check_ranks(t, dtype, alone, 2, TRAINS "context parts=2 sections=4" RING);
    check_ranks(t, dtype, alone, 4, TRAINS "context parts=4" RING);
}

TEST_ONCE(ring_has_the_bits_of_one_rank)
{
    for (int k = 0; k < 4 && !t->failed; k++) {
        source = masks[k];
        check_ring(t, k == 1 ? "bf16" : "f32");
    }
    source = PACKED;
    check_ring(t, "f32");
    check_alone(t, TRAINS "context parts=4" RING);
    source = DROPS("16", "32", "16", "4", "dropout %8 {p=0.25 stream=3}");
    check_ring(t, "f32");
    source = NULL;
    check_ring(t, "f32");
}

/* Ranks along data too, at each stage, with pieces that come while others are computed with. */
TEST_ONCE(ring_has_the_same_bits_at_each_stage_of_zero)
{
    static team two, all;
    test_defer(t, team_end, &two);
    test_defer(t, team_end, &all);
    source = GROUPED(" causal=true");
    for (int stage = 0; stage < 4 && !t->failed; stage++) {
        char line[200], shared[200];
        float a, b;
        snprintf(line, sizeof line, TRAINS "context sections=4" RING "; zero stage=%d world=2",
                 stage);
        snprintf(shared, sizeof shared,
                 TRAINS "context parts=4" RING "; zero stage=%d world=2; prefetch 1000000", stage);
        if (!make(t, &two, 2, 1, "f32", line, STEPS) || !make(t, &all, 8, 4, "f32", shared, STEPS))
            return;
        if (stage < 3) check_bits(t, &two, &all);
        read_value(t, &two, 0, "loss", &a), read_value(t, &all, 0, "loss", &b);
        CHECK(t, !memcmp(&a, &b, sizeof a));
        team_end(&all);
        team_end(&two);
    }
    source = NULL;
}

/* The line number of what the text has; 0: it has not. */
static long line_of(const char *text, const char *what)
{
    const char *at = strstr(text, what);
    long line = 1;
    for (const char *c = text; at && c < at; c++) line += *c == '\n';
    return at ? line : 0;
}

/* The next piece comes before what is computed with one, and is waited for after it; what is along
 * a dimension stays where it is. */
TEST(ring_pieces_come_during_computation)
{
    static char printed[40000];
    char text[TEXT];
    zf_graph *g;
    zf_error error = {ZF_OK, ""};
    source = GROUPED(" causal=true");
    write_model(text, "f32");
    source = NULL;
    for (int gathers = 0; gathers < 2 && !t->failed; gathers++) {
        g = team_parsed(t, text, &error);
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        passes = gathers ? TRAINS "context parts=2" GATHERS "; zero; prefetch 1000000"
                         : TRAINS "context parts=2" RING "; zero; prefetch 1000000";
        OK(t, team_change(g), zf_graph_error(g));
        zf_graph_text(g, printed, sizeof printed);
        CHECK(t, gathers ? !strstr(printed, "dim=1} : f32[2,16,8] queue=gather")
                         : strstr(printed, "root=1} : f32[2,8,8] queue=gather") != NULL);
        if (!gathers) {
            const long next = line_of(printed, "root=1} : f32[2,8,8] queue=gather"),
                       first = line_of(printed, " = attention "),
                       second = line_of(printed, "key=8 keys=16} : f32[2,8@context,16]");
            CHECK(t, next && next < first && first < second);
            CHECK(t, strstr(printed, "over=context order=tree dim=1} : f32[2,8@context,8] "
                                     "queue=reduce") != NULL);
        }
    }
}

TEST_ONCE(ring_computes_what_one_rank_does)
{
    for (int k = 0; k < 4 && !t->failed; k++) {
        source = masks[k];
        check_alone(t, TRAINS "context parts=4" RING);
        check_alone(t, TRAINS "context parts=2 sections=8" RING);
    }
    source = NULL;
}

/* Ranks along data too, at each stage. */
TEST_ONCE(gather_has_the_same_bits_at_each_stage_of_zero)
{
    static team two, all;
    test_defer(t, team_end, &two);
    test_defer(t, team_end, &all);
    source = GROUPED(" causal=true");
    for (int stage = 0; stage < 4 && !t->failed; stage++) {
        char line[200], shared[200];
        float a, b;
        snprintf(line, sizeof line, TRAINS "context sections=4" GATHERS "; zero stage=%d world=2",
                 stage);
        snprintf(shared, sizeof shared, TRAINS "context parts=4" GATHERS "; zero stage=%d world=2",
                 stage);
        if (!make(t, &two, 2, 1, "f32", line, STEPS) || !make(t, &all, 8, 4, "f32", shared, STEPS))
            return;
        if (stage < 3) check_bits(t, &two, &all);
        read_value(t, &two, 0, "loss", &a), read_value(t, &all, 0, "loss", &b);
        CHECK(t, !memcmp(&a, &b, sizeof a));
        team_end(&all);
        team_end(&two);
    }
    source = NULL;
}

TEST_ONCE(gather_computes_what_one_rank_does)
{
    for (int k = 0; k < 3 && !t->failed; k++) {
        source = masks[k];
        check_alone(t, TRAINS "context parts=4" GATHERS);
        check_alone(t, TRAINS "context parts=4 kind=zigzag");
    }
    source = NULL;
}

/* Keys and values of two heads are gathered, forward and backward, and the sums of their gradients
 * are scattered in f32: a rank sends (C-1)/C of each. */
TEST(gather_bytes_are_those_of_the_formulas)
{
    enum { C = 4, HEADS = B * S * WIDTH / 2 };
    static const struct {
        const char *dtype;
        size_t size;
    } of[] = {{"f32", 4}, {"bf16", 2}};
    for (int k = 0; k < 2 && !t->failed; k++) {
        char text[TEXT];
        zf_plan plan;
        source = GROUPED(" causal=true");
        write_model(text, of[k].dtype);
        source = NULL;
        if (!plan_after(t, text, TRAINS "context parts=4" GATHERS "; memory", &plan)) return;
        const zf_traffic *sent = &plan.traffic_over[ZF_OVER_CONTEXT];
        CHECK(t, sent->all_to_all.calls == 0 && sent->all_gather.calls == 4);
        CHECK(t, sent->all_gather.bytes == 4 * HEADS * of[k].size * (C - 1) / C);
        CHECK(t, sent->reduce_scatter.calls == 2);
        CHECK(t, sent->reduce_scatter.bytes == 2 * HEADS * 4 * (C - 1) / C);
    }
}

/* Of a window, keys and values are gathered of the ranks that queries see, and the gradients of these
 * go to them: one piece for a window of 5 where ranks have 4 tokens, two for one of both ways, and dealt
 * zig-zag for one of 3. */
TEST(windows_take_what_they_see)
{
    enum { C = 4, PIECE = B * S / C * WIDTH / 2 };
    static const struct {
        const char *how;
        int mask;
        size_t pieces;
    } of[] = {{GATHERS, 1, 1}, {GATHERS, 2, 2}, {RING, 1, 1}, {RING, 2, 2}, {GATHERS, 0, C - 1}, {" sections=8" GATHERS, 1, 1},
            {" kind=zigzag", 2, 2}, {" kind=zigzag", 1, C - 1}};
    for (size_t k = 0; k < sizeof of / sizeof *of && !t->failed; k++) {
        char text[TEXT], line[100];
        zf_plan plan;
        source = masks[of[k].mask];
        write_model(text, "bf16");
        source = NULL;
        snprintf(line, sizeof line, TRAINS "context parts=4%s; memory", of[k].how);
        if (!plan_after(t, text, line, &plan)) return;
        const zf_traffic *sent = &plan.traffic_over[ZF_OVER_CONTEXT];
        CHECK(t, sent->bcast.calls == 0 && sent->all_gather.calls == 4);
        CHECK(t, sent->all_gather.bytes == 4 * PIECE * of[k].pieces * 2);
        CHECK(t, sent->reduce_scatter.calls == 2);
        CHECK(t, sent->reduce_scatter.bytes == 2 * PIECE * of[k].pieces * 4);
    }
}

/* Windows that reach as far as a rank has tokens, one further, and over two ranks. */
TEST_ONCE(windows_have_the_bits_of_one_rank)
{
    static const char *const windows[] = {GROUPED(" causal=true window=2"),
                                          GROUPED(" window=2 p=0.25 stream=1"),
                                          GROUPED(" causal=true window=3"),
                                          GROUPED(" causal=true window=6"), GROUPED(" window=4")};
    for (size_t k = 0; k < sizeof windows / sizeof *windows && !t->failed; k++) {
        source = windows[k];
        check_ranks(t, k % 2 ? "bf16" : "f32", TRAINS "context sections=8" GATHERS, 8,
                    TRAINS "context parts=8" GATHERS);
        check_ranks(t, "f32", TRAINS "context sections=8" RING, 4,
                    TRAINS "context parts=4 sections=8" RING);
        check_ranks(t, k % 2 ? "f32" : "bf16", TRAINS "context sections=8 kind=zigzag", 4,
                    TRAINS "context parts=4 kind=zigzag");
    }
    source = NULL;
}

/* A rank sends its keys and values to each other one, twice, and to each the sum of its gradients. */
TEST(ring_bytes_are_those_of_the_formulas)
{
    enum { C = 4, HEADS = B * S * WIDTH / 2 };
    for (int k = 0; k < 2 && !t->failed; k++) {
        const size_t size = k ? 2 : 4;
        char text[TEXT];
        zf_plan plan;
        source = GROUPED(" causal=true");
        write_model(text, k ? "bf16" : "f32");
        source = NULL;
        if (!plan_after(t, text, TRAINS "context parts=4" RING "; memory", &plan)) return;
        const zf_traffic *sent = &plan.traffic_over[ZF_OVER_CONTEXT];
        CHECK(t, sent->all_to_all.calls == 0 && sent->all_gather.calls == 0);
        CHECK(t, sent->bcast.calls == 4 * C && sent->bcast.bytes == 4 * HEADS * size * (C - 1) / C);
        CHECK(t, sent->reduce_scatter.calls == 2 * C &&
                     sent->reduce_scatter.bytes == 2 * HEADS * 4 * (C - 1) / C);
    }
}

/* ------------------------------------------------------------------------------------- errors */

TEST(gather_lines_are_checked)
{
#define DEALT "mesh context=2:zigzag\n%1 = input \"x\" : f32[2,8,4]\n"
#define PART  DEALT "%2 = part %1 {world=2 over=context dim=1 zigzag=true} : f32[2,4@context,4]\n"
    static const char *const wrong[][2] = {
        {"mesh tensor=2:zigzag\n", "only context is dealt zig-zag, not tensor"},
        {DEALT "%2 = part %1 {world=2 over=context dim=1} : f32[2,4@context,4]\n",
         "context is dealt zig-zag: zigzag=true"},
        {"mesh context=2\n%1 = input \"x\" : f32[2,8,4]\n"
         "%2 = part %1 {world=2 over=context dim=1 zigzag=true} : f32[2,4@context,4]\n",
         "context is not dealt zig-zag"},
        {PART "%3 = all_gather %2 {world=2 over=context dim=1} : f32[2,8,4]\n",
         "context is dealt zig-zag: zigzag=true"},
        {"mesh context=2:zigzag\n%1 = input \"x\" : f32[2,6,4]\n"
         "%2 = part %1 {world=2 over=context dim=1 zigzag=true} : f32[2,3@context,4]\n",
         "4 halves do not divide the 6 of dimension 1"},
        {PART "%3 = rope %2 {heads=1 theta=100 of=8} : f32[2,4@context,4]\n",
         "its rows are dealt zig-zag over context: it is to be one of two sections or more of a "
         "rank's part"},
        {"%1 = input \"x\" : f32[2,8,4]\n%2 = input \"p\" : i32[8]\n"
         "%3 = rope %1, %2 {heads=1 theta=100 of=8} : f32[2,8,4]\n",
         "first and of are of positions that are not given"},
        {"%1 = input \"x\" : f32[2,8,12]\n%2 = input \"y\" : f32[2,8,4]\n"
         "%3 = input \"l\" : f32[2,1,8]\n"
         "%4 = attention_backward %2, %2, %3, %1, %2, %2 {heads=1 documents=true block=16} : "
         "f32[2,8,4]\n",
         "operands 3 to 5 must be q, k and v"},
        {"%1 = input \"x\" : f32[2,8,4]\n"
         "%2 = attention %1, %1, %1 {heads=1 first=4 of=10} : f32[2,8,4]\n",
         "8 rows from row 4 on are not in 10"},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0] && !t->failed; k++)
        check_parsed(t, wrong[k][0], wrong[k][1]);
}

#define NEAR                                                                                       \
    "mesh context=4\n%1 = input \"x\" : f32[2,2@context,4]\n"                                       \
    "%2 = all_gather %1 {world=4 over=context dim=1 before=1} : f32[2,8,4]\n"

#define NEAR_HALVES(some)                                                                          \
    "mesh context=4:zigzag\n%1 = input \"x\" : f32[2,16,4]\n"                                        \
    "%2 = part %1 {world=4 over=context dim=1 zigzag=true} : f32[2,4@context,4]\n"                 \
    "%3 = all_gather %2 {world=4 over=context dim=1 zigzag=true" some "} : f32[2,16,4]\n"          \
    "%4 = slice %2 {axis=1 stop=2} : f32[2,2@context:0/2,4]\n"

TEST(windows_are_checked)
{
    static const char *const wrong[][2] = {
        {NEAR_HALVES(" before=1") "%5 = attention %4, %3, %3 {heads=1 scale=1 causal=true window=2 of=16} "
                                  ": f32[2,2@context:0/2,4]\n",
         "%3 is gathered of 1 ranks before a rank and 0 after it: only attention reads it"},
        {NEAR_HALVES(" before=1 after=1") "%5 = attention %4, %3, %3 {heads=1 scale=1 causal=true window=4 "
                                          "of=16} : f32[2,2@context:0/2,4]\n",
         "only attention reads it, as keys or values of a window that is no longer"},
        {NEAR "%3 = tanh %2 : f32[2,8,4]\n", "%2 is gathered of 1 ranks before a rank and 0 after it: only attention reads it, as keys or "
         "values of a window that is no longer"},
        {NEAR "%3 = attention %1, %2, %2 {heads=1 scale=1 causal=true of=8} : f32[2,2@context,4]\n",
         "only attention reads it, as keys or values of a window that is no longer"},
        {NEAR "%3 = attention %1, %2, %2 {heads=1 scale=1 causal=true window=4 of=8} : "
              "f32[2,2@context,4]\n",
         "only attention reads it, as keys or values of a window that is no longer"},
        {NEAR "%3 = attention %1, %2, %2 {heads=1 scale=1 window=3 of=8} : f32[2,2@context,4]\n",
         "only attention reads it, as keys or values of a window that is no longer"},
        {"mesh context=4\n%1 = input \"x\" : f32[2,8,4]+context\n"
         "%2 = reduce_scatter %1 {world=4 over=context order=tree dim=1 after=1} : "
         "f32[2,2@context,4]\n",
         "%1 goes to 1 ranks before a rank and 0 after it: it must be a gradient of keys or values of a "
         "window that is no longer"},
        {"mesh context=4\n%1 = input \"x\" : f32[2,8,4]+context\n"
         "%2 = reduce_scatter %1 {world=4 over=context dim=1 after=1} : f32[2,2@context,4]\n",
         "before=0 after=1: ranks get from some of 4 along a dimension, and sums are made by a "
         "tree"},
        {"mesh context=4\n%1 = input \"x\" : f32[2,2@context,4]\n"
         "%2 = all_gather %1 {world=4 over=context dim=1 before=2 after=2} : f32[2,8,4]\n",
         "before=2 after=2: ranks get from some of 4"},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0] && !t->failed; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = team_parsed(t, wrong[k][0], &error);
        zf_graph_free(g);
        if (error.status == ZF_ERR_NOMEM) NEED(t, g, &error);
        if (!strstr(error.text, wrong[k][1]))
            test_fail(t, __FILE__, __LINE__, wrong[k][1], error.text);
    }
}

/* Each node is looked at once, however many ways lead to it: 40 sums have 2^40. */
TEST(windows_are_checked_once_for_each_node)
{
    char text[TEXT];
    zf_error error = {ZF_OK, ""};
    zf_graph *g;
    int at = snprintf(text, sizeof text, "%s",
                      NEAR "%3 = attention %1, %2, %2 {heads=1 scale=1 causal=true window=3 of=8} : "
                           "f32[2,2@context,4]\n"
                           "%4 = saved %3 {index=0} : f32[2,1,2@context]\n"
                           "%5 = attention_backward %1, %3, %4, %1, %2, %2 {heads=1 scale=1 "
                           "causal=true window=3 of=8} : f32[2,2@context,4]\n"
                           "%6 = saved %5 {index=0} : f32[2,8,4]+context\n");
    for (int k = 6; k < 46; k++)
        at += snprintf(text + at, sizeof text - (size_t)at,
                       "%%%d = add %%%d, %%%d : f32[2,8,4]+context\n", k + 1, k, k);
    snprintf(text + at, sizeof text - (size_t)at,
             "%%47 = reduce_scatter %%46 {world=4 over=context order=tree dim=1 after=1} : "
             "f32[2,2@context,4]\noutput %%47 \"dk\"\n");
    g = team_parsed(t, text, &error);
    NEED(t, g, &error);
    zf_graph_free(g);
}

TEST(gather_cuts_are_checked)
{
    char text[TEXT];
    source = GROUPED(" causal=true");
    write_model(text, "f32");
    source = NULL;
    check_refused(t, text, TRAINS "context parts=4 sections=4 kind=zigzag",
                  "zf_context: 4 sections are not two for each of 4 ranks, nor four, six, ...: "
                  "zigzag deals them in two halves");
    check_refused(t, text, TRAINS "context parts=3" GATHERS,
                  "zf_context: sequences of 16 tokens do not make 3 sections of 2 tokens or more");
    source = DROPS("97", "194", "24", "12", "relu %8");
    write_model(text, "f32");
    source = NULL;
    check_refused(t, text, TRAINS "context parts=3",
                  "zf_context: sequences of 97 tokens do not make 3 sections of 2 tokens or more");
    source = GROUPED(" causal=true");
    write_model(text, "f32");
    source = NULL;
    check_refused(t, text, TRAINS "context parts=2 sections=3" GATHERS,
                  "zf_context: 3 sections are not divided by 2 ranks");
    check_refused(t, text, TRAINS "context parts=3" RING,
                  "zf_context: sequences of 16 tokens do not make 3 sections of 2 tokens or more");
    source = BLOCKS;
    write_model(text, "f32");
    check_refused(t, text, TRAINS "context parts=2" RING,
                  "zf_context: attention %5 has a block mask, of which a ring has no pieces: "
                  "kind=gather or kind=zigzag has them");
    source = GROUPED(" causal=true");
    write_model(text, "f32");
    source = NULL;
    check_refused(t, text, TRAINS "context parts=4",
                  "4 heads and 2 of keys, which 4 sections along context do not divide");
    check_refused(t,
                  "%1 = input \"x\" : f32[4,8]\n%2 = param \"w\" : f32[6,8]\n"
                  "%3 = param \"b\" : f32[6]\n%4 = linear %1, %2, %3 : f32[4,6]\noutput %4 \"y\"\n",
                  "context parts=2" GATHERS,
                  "zf_context: linear %4 is not to be cut by the tokens of its first operand, "
                  "into 2 parts");
}

TEST_ONCE(context_has_gradients_of_one_number)
{
    static const char *const kinds[] = {" kind=gather", " kind=ring", " kind=ulysses", " kind=zigzag"};
    source = SUMMED;
    for (int k = 0; k < 4 && !t->failed; k++) {
        char alone[200], two[200];
        snprintf(alone, sizeof alone, TRAINS "context sections=4%s", kinds[k]);
        snprintf(two, sizeof two, TRAINS "context parts=2 sections=4%s", kinds[k]);
        check_ranks(t, "f32", alone, 2, two);
        check_alone(t, two);
    }
    source = NULL;
}
