/* zf_context: sequences of a small language model are cut over ranks, and the steps have the bits of
 * one rank with as many sections, at each stage of ZeRO; what cannot be cut says why. */
#include "team.h"

#include "../tools/pass.h"

#include <math.h>

enum { B = 2, S = 16, WORDS = 11, WIDTH = 16, STEPS = 3, TEXT = 6000, MOST = 1024 };

/* Two kinds of positions, norms, attention of four heads with a window, two layers with biases, the
 * head tied to the embedding. `$`: a float dtype. */
static const char *const model =
    "%1 = param \"e\" {init=normal b=0.5} : $[11,16]\n%2 = input \"tokens\" : i32[2,16]\n"
    "%3 = gather_rows %1, %2 : $[2,16,16]\n%4 = param \"p\" {init=normal b=0.5} : $[20,16]\n"
    "%5 = slice %4 {stop=16} : $[16,16]\n%6 = add %3, %5 : $[2,16,16]\n%7 = rms %6 : @[2,16,2]\n"
    "%8 = param \"g\" {init=normal a=1 b=0.5} : $[16]\n%9 = rms_norm %6, %7, %8 : $[2,16,16]\n"
    "%10 = param \"q\" {init=normal b=0.3} : $[16,16]\n%11 = linear %9, %10 : $[2,16,16]\n"
    "%12 = rope %11 {heads=4 theta=100} : $[2,16,16]\n"
    "%13 = param \"k\" {init=normal b=0.3} : $[16,16]\n%14 = linear %9, %13 : $[2,16,16]\n"
    "%15 = rope %14 {heads=4 theta=100} : $[2,16,16]\n"
    "%16 = param \"v\" {init=normal b=0.3} : $[16,16]\n%17 = linear %9, %16 : $[2,16,16]\n"
    "%18 = attention %12, %15, %17 {heads=4 scale=0.5 causal=true window=7} : $[2,16,16]\n"
    "%19 = param \"o\" {init=normal b=0.3} : $[16,16]\n%20 = linear %18, %19 : $[2,16,16]\n"
    "%21 = add %20, %6 : $[2,16,16]\n%22 = param \"up\" {init=normal b=0.3} : $[32,16]\n"
    "%23 = param \"upb\" {init=normal b=0.3} : $[32]\n%24 = linear %21, %22, %23 : $[2,16,32]\n"
    "%25 = gelu %24 : $[2,16,32]\n%26 = param \"down\" {init=normal b=0.3} : $[16,32]\n"
    "%27 = linear %25, %26 : $[2,16,16]\n%28 = add %27, %21 : $[2,16,16]\n"
    "%29 = reshape %28 {shape=[32,16]} : $[32,16]\n%30 = input \"labels\" : i32[2,16]\n"
    "%31 = reshape %30 {shape=[32]} : i32[32]\n%32 = input \"weight\" : @[]\n"
    "%33 = head_loss %29, %1, %31, %32 {ignore=-100} : @[]\noutput %33 \"loss\" role=loss\n"
    "%34 = input \"lr\" : @[]\n";

/* Dropout of tokens, of attention and, with FLAT, of rows of all sequences. */
#define DROPS(tokens, rows, width, heads, flat)                                                    \
    "%1 = param \"e\" {init=normal b=0.5} : $[11," width "]\n"                                     \
    "%2 = input \"tokens\" : i32[2," tokens "]\n"                                                  \
    "%3 = gather_rows %1, %2 : $[2," tokens "," width "]\n"                                        \
    "%4 = dropout %3 {p=0.25 stream=1} : $[2," tokens "," width "]\n"                              \
    "%5 = attention %4, %4, %4 {heads=" heads " scale=0.5 causal=true p=0.25 stream=2} : "         \
    "$[2," tokens "," width "]\n"                                                                  \
    "%6 = param \"o\" {init=normal b=0.3} : $[" width "," width "]\n"                              \
    "%7 = linear %5, %6 : $[2," tokens "," width "]\n"                                             \
    "%8 = reshape %7 {shape=[" rows "," width "]} : $[" rows "," width "]\n"                       \
    "%9 = " flat " : $[" rows "," width "]\n%10 = input \"labels\" : i32[2," tokens "]\n"          \
    "%11 = reshape %10 {shape=[" rows "]} : i32[" rows "]\n%12 = input \"weight\" : @[]\n"         \
    "%13 = head_loss %9, %1, %11, %12 {ignore=-100} : @[]\noutput %13 \"loss\" role=loss\n"        \
    "%14 = input \"lr\" : @[]\n"

static const char *source; /* of the graphs that are made; NULL: model */

static const char *const params[] = {"e", "p", "g", "q", "k", "v", "o", "up", "upb", "down"};

static const char *passes; /* of team_change */

static zf_status team_change(zf_graph *g)
{
    char message[600] = "";
    if (pass_run(g, passes, NULL, message, sizeof message) == PASS_DONE) return ZF_OK;
    return zf_graph_status(g) ? zf_graph_status(g) : ZF_ERR_ARGUMENT;
}

static void write_model(char text[TEXT], const char *dtype)
{
    const char *const wide = strcmp(dtype, "bf16") ? dtype : "f32";
    size_t at = 0;
    for (const char *c = source ? source : model; *c && at + 5 < TEXT; c++)
        if (*c == '$' || *c == '@')
            at += (size_t)snprintf(text + at, TEXT - at, "%s", *c == '$' ? dtype : wide);
        else text[at++] = *c;
    text[at] = '\0';
}

static void write_number(test *t, zf_program *p, zf_tensor to, double x)
{
    const float f = (float)x;
    OK(t, zf_write(p, to, zf_tensor_dtype(to) == ZF_F64 ? (const void *)&x : &f,
                   zf_tensor_bytes(to)),
       zf_program_error(p));
}

/* Steps of ranks, of which `sharing` neighbours have one part of the batch. */
static void step_all(test *t, team *m, int sharing, int steps)
{
    for (int step = 0; step < steps && !t->failed; step++) {
        for (int r = 0; r < m->world; r++) {
            int32_t tokens[MOST], labels[MOST];
            zf_graph *g = m->members[r].graph;
            const size_t bytes = zf_tensor_bytes(zf_graph_find(g, "tokens"));
            for (int i = 0; i < (int)(bytes / sizeof *tokens); i++) {
                tokens[i] = (i * 7 + step + 3 * (r / sharing)) % WORDS;
                labels[i] = i % 5 ? (i * 3 + r / sharing) % WORDS : -100;
            }
            zf_write(m->programs[r], zf_graph_find(g, "tokens"), tokens, bytes);
            zf_write(m->programs[r], zf_graph_find(g, "labels"), labels, bytes);
            write_number(t, m->programs[r], zf_graph_find(g, "weight"), 1.0 / 26);
            write_number(t, m->programs[r], zf_graph_find(g, "lr"), 0.01);
        }
        team_step(t, m);
    }
}

static bool make(test *t, team *m, int ranks, int sharing, const char *dtype, const char *line,
                 int steps)
{
    char text[TEXT];
    write_model(text, dtype);
    passes = line;
    if (!team_new(t, m, text, ranks, ranks == 1, team_change)) return false;
    step_all(t, m, sharing, steps);
    return !t->failed;
}

/* A value as ranks of a team have it. */
static void read_value(test *t, const team *m, int rank, const char *name, void *x)
{
    const zf_tensor of = zf_graph_find(m->members[rank].graph, name);
    OK(t, zf_read(m->programs[rank], of, x, zf_tensor_bytes(of)), zf_program_error(m->programs[rank]));
}

/* All ranks of a team have the loss and the parameters of one rank. */
static void check_bits(test *t, const team *one, const team *all)
{
    static char mine[MOST * 8], its[MOST * 8];
    for (size_t k = 0; k <= sizeof params / sizeof *params && !t->failed; k++) {
        const char *name = k < sizeof params / sizeof *params ? params[k] : "loss";
        const zf_tensor of = zf_graph_find(one->members[0].graph, name);
        const size_t bytes = of.id ? zf_tensor_bytes(of) : 0;
        if (!bytes) continue;
        read_value(t, one, 0, name, its);
        for (int r = 0; r < all->world; r++) {
            read_value(t, all, r, name, mine);
            if (memcmp(mine, its, bytes))
                test_fail(t, __FILE__, __LINE__, name, "not that of one rank");
        }
    }
}

#define TRAINS "autograd loss; simplify; adamw lr; "

static void check_ranks(test *t, const char *dtype, const char *alone, int parts, const char *line)
{
    static team one, all;
    test_defer(t, team_end, &one);
    test_defer(t, team_end, &all);
    if (make(t, &one, 1, 1, dtype, alone, STEPS) && make(t, &all, parts, parts, dtype, line, STEPS))
        check_bits(t, &one, &all);
    team_end(&all);
    team_end(&one);
}

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

/* A rank's addends are added as they are: no chain reads a sum over ranks that is still to be made. */
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
    static double x[MOST], y[MOST];
    test_defer(t, team_end, &one);
    test_defer(t, team_end, &all);
    if (!make(t, &one, 1, 1, "f64", "autograd loss; simplify; adamw lr", 5)) return;
    if (!make(t, &all, 4, 4, "f64", TRAINS "context parts=4", 5)) return;
    for (size_t k = 0; k < sizeof params / sizeof *params; k++) {
        const zf_tensor of = zf_graph_find(one.members[0].graph, params[k]);
        double far = 0, most = 0;
        read_value(t, &one, 0, params[k], x);
        read_value(t, &all, 3, params[k], y);
        for (size_t i = 0; i < zf_tensor_bytes(of) / sizeof(double); i++)
            far = fmax(far, fabs(x[i] - y[i])), most = fmax(most, fabs(x[i]));
        if (!(far <= 1e-12 * most)) test_fail(t, __FILE__, __LINE__, params[k], "is far");
    }
}

/* The calls over context of a step, and their bytes: x/C (C-1)/C for q, k, v and what attention gives,
 * forward and backward, and for the gradient of positions. */
TEST(context_bytes_are_those_of_the_formulas)
{
    enum { C = 2, X = B * S * WIDTH * 4, POSITIONS = S * WIDTH * 4 };
    const size_t exchanged = (8 * (size_t)X + POSITIONS) / C * (C - 1) / C;
    char text[TEXT], message[600] = "";
    zf_error error = {ZF_OK, ""};
    zf_plan plan;
    zf_graph *g;
    write_model(text, "f32");
    g = team_parsed(t, text, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    if (pass_run(g, TRAINS "context parts=2; memory", NULL, message, sizeof message) != PASS_DONE) {
        OK(t, zf_graph_status(g), message);
        return;
    }
    OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
    CHECK(t, plan.traffic_over[ZF_OVER_CONTEXT].all_to_all.calls == 9);
    CHECK(t, plan.traffic_over[ZF_OVER_CONTEXT].all_to_all.bytes == exchanged);
    CHECK(t, plan.traffic_over[ZF_OVER_CONTEXT].all_gather.calls == 1); /* of positions' gradient */
}

static void check_refused(test *t, const char *text, const char *line, const char *expected)
{
    char message[600] = "";
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, text, &error);
    zf_status status;
    int result;
    NEED(t, g, &error);
    result = (int)pass_run(g, line, NULL, message, sizeof message);
    status = zf_graph_status(g);
    zf_graph_free(g);
    if (status == ZF_ERR_NOMEM) OK(t, status, message);
    else if (result != PASS_FAILED || !strstr(message, expected))
        test_fail(t, __FILE__, __LINE__, expected, message);
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
        {TRAINS "context parts=8", "zf_context: attention %18 cannot be cut into 8 parts, neither by "
                                   "tokens nor by heads: heads and key-value heads must be multiples "
                                   "of that"},
        {TRAINS "context parts=2; context parts=2", "zf_context: the ranks have other axes already"},
    };
    char text[TEXT];
    write_model(text, "f32");
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong && !t->failed; k++)
        check_refused(t, text, wrong[k].passes, wrong[k].error);
    check_refused(t,
                  "%1 = input \"x\" : f32[2,8,4]\n%2 = param \"g\" : f32[4]\n"
                  "%3 = residual_norm %1, %1, %2 {p=0.5 stream=1 form=rms} : f32[2,8,4]\n"
                  "output %3 \"y\"\n",
                  "context parts=2",
                  "zf_context: residual_norm %3 draws random numbers, which are those of a whole "
                  "tensor: it is not cut over context");
}

/* Descriptions that ask for more than there is. */
TEST(context_goes_with_what_it_can)
{
    char text[TEXT];
    write_model(text, "f32");
    for (int k = 0; k < 5; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = team_parsed(t, text, &error);
        zf_training how = {.context = 2};
        NEED(t, g, &error);
        how.loss = zf_graph_find(g, "loss");
        if (k == 0) how.tensor = 2;
        if (k == 1) how.stages.ranks = 2;
        if (k == 2) how.context = 1, how.sections.context = 2, how.sections.tensor = 2;
        if (k == 3) how.fit.device = 1 << 30;
        if (k == 4) how.expert = 2;
        CHECK(t, zf_passes(g, &how) != ZF_OK);
        CHECK_TEXT(t, zf_graph_error(g),
                   k == 4 ? "zf_passes: ranks along context share no experts yet: context and "
                            "sections.context must be left out with expert and sections.expert"
                   : k == 3 ? "zf_passes: fit plans ranks that have all layers whole; it must be left "
                            "out with tensor, context, expert, sections or stages"
                          : "zf_passes: ranks along context share no layers yet: context and "
                            "sections.context must be left out with tensor, sections.tensor or "
                            "stages");
        zf_graph_free(g);
    }
}
