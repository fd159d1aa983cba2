/* The text of graphs: it reads back as printed; text that is no graph or no plan is refused, with a
 * message that names the line or the node. */
#include "../support/numbers.h"

/* Reads text; the graph is freed at the end of the body. */
static zf_graph *parse(test *t, const char *text, zf_error *error)
{
    zf_graph *g =
        zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, error);
    if (g) test_defer(t, (test_cleanup *)zf_graph_free, g);
    return g;
}

typedef struct mistake {
    const char *text, *error;
} mistake;

/* Checks that every text is refused with its message, also when it ends at the last byte of its
 * memory. */
static void check_mistakes(test *t, const mistake *mistakes, int count)
{
    for (int k = 0; k < count; k++) {
        size_t bytes = strlen(mistakes[k].text);
        char *exact = malloc(bytes), both[1400];
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        memcpy(exact, mistakes[k].text, bytes);
        g = zf_graph_parse(exact, bytes, &(zf_graph_desc){.allocator = t->allocator}, &error);
        free(exact);
        zf_graph_free(g);
        if (t->refused) {
            test_unwind(t, __FILE__, __LINE__, "zf_graph_parse", error.status, error.text);
            return;
        }
        snprintf(both, sizeof both, "of %s\n    got      %s\n    expected %s", mistakes[k].text,
                 g ? "no error" : error.text, mistakes[k].error);
        if (g || strcmp(error.text, mistakes[k].error))
            test_fail(t, __FILE__, __LINE__, "the error", both);
        if (!g && error.status != ZF_ERR_PARSE && error.status != ZF_ERR_VERIFY)
            test_fail(t, __FILE__, __LINE__, "the status", mistakes[k].text);
    }
}

/* ------------------------------------------------------------------------------------ mistakes */

#define X "%1 = input \"x\" : f32[4]\n"
#define W "%2 = param \"w\" : f32[4]\n"

/* What is not IR: where, and what was expected. */
TEST(ir_refuses_bad_text)
{
    static const mistake mistakes[] = {
        {"%1", "1:3: expected '='"},
        {X "training a", "2:11: the first line may be: training NAME"},
        {X "adapter a", "2:10: the first line may be: adapter NAME"},
        {"adapter a\nadapter b\n" X, "2:10: the first line may be: adapter NAME"},
        {"zero stage=4 world=2 micro_batches=1",
         "1:37: the first line may be: zero stage=0..3 world=1.. micro_batches=1.."},
        {"zero stage=1 world=4 micro_batches=1 nodes=3",
         "1:45: nodes must divide the world, with several ranks in each"},
        {"zero stage=1 world=4 micro_batches=1 nodes=2 shards=3",
         "1:54: shards must be those of all ranks, or of a node's"},
        {X "output %1 \"a\" role=foo", "2:23: 'foo' is no role"},
        {X "%3 = neg %1 : f32[4] queue=foo",
         "2:31: 'foo' is none of the queues compute, gather, reduce, pipe, download, upload, read, write"},
        {X "%3 = neg %1 : f32[4] micro", "2:27: 'micro' marks what is below 'update:'"},
        {X "%3 = state \"s\" : f32[4] recompute", "2:34: state cannot be a recomputed node"},
        {"%1 =", "1:5: expected an operator"},
        {"%1 = 3", "1:6: '3' is no operator"},
        {"%1 = inptu \"x\" : f32[4]", "1:6: 'inptu' is no operator"},
        {"%1 = input \"x\" : f32[4", "1:23: expected ']'"},
        {"%1 = input \"x\" : f32[4,]", "1:24: expected an integer"},
        {"%1 = input \"x\" : f32[1,1,1,1,1,1,1]", "1:34: more than 6 dimensions"},
        {"%1 = input \"x\" : f32", "1:21: expected '['"},
        {"%1 = input \"x\" : float[4]",
         "1:23: expected a dtype: f32, bf16, f16, f64, i32, i64, u8 or bool"},
        {"%1 = input \"x\"", "1:15: expected ':'"},
        {"%1 = input \"x : f32[4]", "1:23: the name has no closing quote"},
        {"%1 = input x : f32[4]", "1:12: expected ':'"},
        {"%1 = input : f32[4]",
         "1: input: a name has 1 to 255 characters, none of them \", \\ or a control character"},
        {"%1 = input \"\" : f32[4]",
         "1: input: a name has 1 to 255 characters, none of them \", \\ or a control character"},
        {"%1 = input \"a\\b\" : f32[4]",
         "1: input: a name has 1 to 255 characters, none of them \", \\ or a control character"},
        {"%1 = input \"x\" : f32[4] 5", "1:25: expected the end of the line"},
        {"%1 = input \"x\" : f32[-4]",
         "1: input: a shape has 0 to 6 dimensions, none negative, and fewer than 2^63 elements"},
        {"%1 = input \"x\" : f32[99999999999999999999]", "1:40: the integer is too large"},
        {"%1 = input \"x\" : f32[4000000000,4000000000]",
         "1: input: a shape has 0 to 6 dimensions, none negative, and fewer than 2^63 elements"},
        {"%1 = input \"x\" : f32[2000000000,2000000000]",
         "1: input: the result has a negative dimension, or 2^60 elements or more"},
        {"%0 = input \"x\" : f32[4]", "1:3: %0 is no id"},
        {"%-1 = input \"x\" : f32[4]", "1:4: %-1 is no id"},
        {"%65800 = input \"x\" : f32[4]", "1:1: %65800 is too large an id for a text of 27 bytes"},
        {"%99999999999999999999 = input \"x\" : f32[4]",
         "1:1: %99999999 is too large an id for a text of 42 bytes"},
        {"1 = input \"x\" : f32[4]", "1:1: '1' is no operator"},
        {"input \"x\" : f32[4]", "1:1: input needs an id: %n = input ..."},
        {X "%1 = neg %1 : f32[4]", "2:3: %1 is defined already"},
        {X "%2 = input \"x\" : f32[4]", "2: input: the name \"x\" is taken by %1"},
        {X "%2 = neg \"y\" %1 : f32[4]", "2:11: neg takes no name"},
        {X "%2 = neg %1 \"y\" : f32[4]", "2:14: neg takes no name"},
        {X "%2 = neg %1, : f32[4]", "2:14: expected '%'"},
        {X "%2 = neg : f32[4]", "2: neg: 0 operands, but it takes 1"},
        {X "%2 = add %1 : f32[4]", "2: add: 1 operands, but it takes 2"},
        {X "%2 = neg %1, %1 : f32[4]", "2: neg: 2 operands, but it takes 1"},
        {X "%2 = neg %3 : f32[4]\n"
           "%3 = neg %2 : f32[4]",
         "2:12: %3 is not defined above"},
        {X "%2 = neg %2 : f32[4]", "2:12: %2 is not defined above"},
        {X "%2 = neg %1 : f32[5]", "2:6: the operands of neg give f32[4]"},
        {X "%2 = neg %1 : f64[4]", "2:6: the operands of neg give f32[4]"},
        {X "%2 = add %1, %1 : f32[1,4]", "2:6: the operands of add give f32[4]"},
        {X "%2 = output %1 \"y\"", "2:6: output has no value, so no id"},
        {X "neg %1 : f32[4]", "2:1: neg needs an id: %n = neg ..."},
        {X "output %1",
         "2: output: a name has 1 to 255 characters, none of them \", \\ or a control character"},
        {X "output %1 \"x\"", "2: output: the name \"x\" is taken by %1"},
        {X "output %1 \"y\" : f32[4]", "2:15: expected the end of the line"},
        {X "output %1 \"y\" @0+16", "2:15: expected the end of the line"},
        {X "output %1 \"y\"\n"
           "%2 = neg %3 : f32[4]",
         "3: neg: operand 0, output, has no value"},
        {X "advance %1", "2: advance: operand 0 must be a state i64[] or i32[]; %1 = f32[4]"},
        {X "gradient %1, %1",
         "2: gradient: operand 0 must be a param or a bucket; %1 = f32[4], %1 = f32[4]"},
        {X "%2 = scale %1 {by=} : f32[4]", "2:19: expected a number"},
        {X "%2 = scale %1 {by=two} : f32[4]", "2:19: expected a number"},
        {X "%2 = scale %1 {by=1.2.3} : f32[4]", "2:19: expected a number"},
        {X "%2 = scale %1 {to=2} : f32[4]", "2:18: scale has these attributes: by:f"},
        {X "%2 = scale %1 {by=1 by=2} : f32[4]", "2:23: by is given twice"},
        {X "%2 = scale %1 {by=1 : f32[4]", "2:21: expected an attribute or '}'"},
        {X "%2 = scale %1 {by 1} : f32[4]", "2:19: expected '='"},
        {X "%2 = neg %1 {by=1} : f32[4]", "2:16: neg has no attributes"},
        {X "%2 = cast %1 {to=int} : i32[4]",
         "2:21: expected a dtype: f32, bf16, f16, f64, i32, i64, u8 or bool"},
        {X "%2 = gelu %1 {form=sin} : f32[4]", "2:23: expected one of (erf|tanh)"},
        {X "%2 = sum %1 {keep=1} : f32[1]", "2:19: expected true or false"},
        {X "%2 = sum %1 {axis=1} : f32[]",
         "2: sum: axis 1 of a tensor of rank 1; 0 to 0 is possible; %1 = f32[4]"},
        {X "%2 = sum %1 {axis=x} : f32[]", "2:19: expected an integer"},
        {X "%2 = sum %1 {axis=-} : f32[]", "2:20: expected an integer"},
        {X "%2 = reshape %1 {shape=4} : f32[4]", "2:24: expected '['"},
        {X "%2 = reshape %1 {shape=[2,2} : f32[2,2]", "2:28: expected ']'"},
        {X "%2 = reshape %1 {shape=[2,3]} : f32[2,3]",
         "2: reshape: f32[2,3] has 6 elements, the operand 4; %1 = f32[4]"},
        {X "%2 = reshape %1 {shape=[1,1,1,1,1,1,4]} : f32[4]",
         "2: reshape: a shape has 0 to 6 dimensions, none negative, and fewer than 2^63 elements; "
         "%1 = f32[4]"},
        {"%1 = constant : f32[4]", "1: constant: takes 1 value or as many as elements, 4, not 0"},
        {"%1 = constant {values=[1,2]} : f32[4]",
         "1: constant: takes 1 value or as many as elements, 4, not 2"},
        {"%1 = constant {values=[1,]} : f32[1]", "1:26: expected a number"},
        {"%1 = param \"w\" {init=gauss} : f32[4]",
         "1:27: expected one of (zeros|ones|constant|normal|truncated|uniform)"},
        {"%1 = param \"w\" {init=normal b=inf} : f32[4]",
         "1: param: init needs finite values (of f32 at most 3.40282e+38), std >= 0 and low <= "
         "high"},
        {"%1 = param \"w\" : i32[4]", "1: param: a parameter is f32, bf16, f16 or f64, or with bits u8, not i32"},
        {"update", "1:1: 'update' is no operator"},
        {"update: %1 = input \"x\" : f32[4]", "1:9: expected the end of the line"},
        {"nonsense", "1:1: 'nonsense' is no operator"},
        {"\x01", "1:1: expected an operator"},
    };
    check_mistakes(t, mistakes, (int)(sizeof mistakes / sizeof *mistakes));
}

/* What is IR, but no graph. */
TEST(ir_refuses_graphs_that_break_a_rule)
{
    static const mistake mistakes[] = {
        {X W "%3 = state \"s\" : i64[]\n"
             "advance %3\n"
             "update:\n"
             "%4 = neg %1 : f32[4]\n"
             "advance %2",
         "7: advance: operand 0 must be a state i64[] or i32[]; %2 = f32[4]"},
        {X W "%3 = neg %1 : f32[4]\n"
             "gradient %2, %3\n"
             "gradient %2, %3",
         "verify: gradient %2, %3: %2 has a gradient already"},
        {X W "output %1 \"a\" role=loss\noutput %2 \"b\" role=loss",
         "verify: there are two nodes with the role loss"},
        {X W "output %1 \"a\" role=moment",
         "verify: output %1 \"a\" role=moment: the role moment is that of a state"},
        {X W "output %1 \"a\" role=adapter",
         "verify: output %1 \"a\" role=adapter: the role adapter is that of a parameter"},
        {X W "%3 = state \"adamw.m/w\" : f32[4] role=moment",
         "verify: %3 = state \"adamw.m/w\" : f32[4] role=moment: a state with the role "
         "moment is of a parameter above it"},
        {X W "%3 = state \"adamw.step\" : i64[] role=count of=%2",
         "verify: %3 = state \"adamw.step\" : i64[] role=count of=%2: the role count is of no "
         "parameter, but it is of %2"},
        {X W "%3 = state \"a\" : f32[4] role=moment of=%2\n"
             "%4 = state \"b\" : f32[4] role=moment of=%2",
         "verify: there are two nodes with the role moment of w"},
        {X W "%3 = state \"a\" : f32[4] role=master of=%2",
         "verify: %3 = state \"a\" : f32[4] role=master of=%2: master weights begin with the values "
         "of their parameter"},
        {X W "gradient %2, %2", "verify: gradient %2, %2: %2 is a param, which updates change"},
        {X "%3 = copy %1 {to=host} : f32[4] host\n"
           "%4 = copy %3 {to=disk} : f32[4] disk\n"
           "%5 = neg %4 : f32[4] disk",
         "verify: %5 = neg %4 : f32[4] disk: a value on the disk can only be copied"},
        {"zero stage=0 world=2 micro_batches=1\n" X "%3 = copy %1 {to=host} : f32[4] host\n"
         "%4 = all_reduce %3 {world=2} : f32[4] host",
         "verify: %4 = all_reduce %3 {world=2} : f32[4] host: collectives take values on the "
         "device, and this one lies in host"},
        {X W "%3 = bucket %2 {at=[0] size=1024} : f32[1024]\n"
             "%4 = neg %2 : f32[4]",
         "verify: %4 = neg %2 : f32[4]: %2 has no storage: it lies in the bucket %3"},
        {X W "%3 = state \"s\" : f32[4]\n"
             "gradient %2, %3",
         "verify: gradient %2, %3: %3 is a state, which updates change"},
        {X W "%3 = input \"lr\" : f32[]\n"
             "%4 = exp %2 : f32[4]\n"
             "update:\n"
             "sgd %4, %1, %3",
         "6: sgd: operand 0 must be a param, a bucket or a shard of one, not the result of exp; %4 "
         "= "
         "f32[4], %1 = f32[4], %3 = "
         "f32[]"},
        {X W "%3 = input \"lr\" : f32[]\n"
             "update:\n"
             "sgd %2, %1, %3\n"
             "sgd %2, %1, %3",
         "verify: sgd %2, %1, %3: %2 has an update already"},
        {X W "%3 = input \"lr\" : f32[]\n"
             "update:\n"
             "sgd %2, %1, %3 {momentum=0.9}",
         "5: sgd: momentum = 0.9 needs a buffer, a state, as operand 3; %2 = f32[4], %1 = f32[4], "
         "%3 = f32[]"},
        {X W "%3 = input \"lr\" : f32[]\n"
             "%4 = input \"m\" : f32[4]\n"
             "update:\n"
             "sgd %2, %1, %3, %4 {momentum=0.9}",
         "6: sgd: operand 3, the momentum buffer, must be a state f32[4]; %2 = f32[4], %1 = "
         "f32[4], %3 = f32[], %4 = f32[4]"},
        {X W "%3 = input \"lr\" : f32[]\n"
             "%4 = state \"m\" : f32[4]\n"
             "%5 = state \"t\" : i64[]\n"
             "update:\n"
             "adamw %2, %1, %4, %4, %3, %5 {beta1=0.9 beta2=0.9}",
         "7: adamw: operands 2 and 3, mean and variance, must be two states; %2 = f32[4], %1 = "
         "f32[4], %4 = f32[4], %4 = f32[4]"},
    };
    check_mistakes(t, mistakes, (int)(sizeof mistakes / sizeof *mistakes));
}

/* Places that are none. */
TEST(ir_refuses_bad_places)
{
    static const mistake mistakes[] = {
        {X "%2 = neg %1 : f32[4] @64+16\n"
           "output %2 \"y\"\n"
           "peak 128 %2",
         "verify: %1 = input \"x\" : f32[4]: it has no place"},
        {"%1 = input \"x\" : f32[4] @0+16\n"
         "%2 = neg %1 : f32[4] @64+16\n"
         "output %2 \"y\"",
         "2: values have places, but the last line, 'peak', is missing"},
        {"%1 = input \"x\" : f32[4] @0+16\n"
         "%2 = neg %1 : f32[4]\n"
         "output %2 \"y\"\n"
         "peak 128 %2",
         "verify: %2 = neg %1 : f32[4]: it has no place"},
        {"%1 = input \"x\" : f32[4] @0+16\n"
         "peak 64 %2",
         "2:11: %2 is not defined above"},
        {"%1 = input \"x\" : f32[4] @0+16\n"
         "output %1 \"y\"\n"
         "peak 64 %2",
         "3:11: %2 is not defined above"},
        {"%1 = input \"x\" : f32[4] @0+16\n"
         "peak 64 %1 live=65",
         "2:19: expected 0 <= live <= peak"},
        {"%1 = input \"x\" : f32[4] @0+16\n"
         "peak -64 %1",
         "2:12: expected 0 <= live <= peak"},
        {"%1 = input \"x\" : f32[4] @0+16\n"
         "peak 64",
         "2:8: expected '%'"},
        {"%1 = input \"x\" : f32[4] @0+16\n"
         "peak 64 %1\n"
         "%2 = neg %1 : f32[4] @64+16",
         "3: neg: every value has its place in memory already: nothing can be added"},
        {"%1 = input \"x\" : f32[4] @0+16\n"
         "peak 64 %1 5",
         "2:12: expected the end of the line"},
        {"%1 = input \"x\" : f32[4] @-64+16\n"
         "peak 64 %1",
         "1:32: a place is not negative"},
        {"%1 = input \"x\" : f32[4] @0\n"
         "peak 64 %1",
         "1:27: expected '+'"},
        {"%1 = input \"x\" : f32[4] @0+20\n"
         "peak 64 %1",
         "verify: %1 = input \"x\" : f32[4] @0+20: its bytes do not fit its type or the arena of "
         "64"},
        {"%1 = input \"x\" : f32[4] @64+16\n"
         "peak 64 %1",
         "verify: %1 = input \"x\" : f32[4] @64+16: its bytes do not fit its type or the arena of "
         "64"},
        {"%1 = input \"x\" : f32[4] @9223372036854775744+16\n"
         "peak 64 %1",
         "verify: %1 = input \"x\" : f32[4] @9223372036854775744+16: its bytes do not fit its type "
         "or the arena of 64"},
        {"%1 = input \"x\" : f32[4] @4+16\n"
         "peak 64 %1",
         "verify: %1 = input \"x\" : f32[4] @4+16: places are multiples of 64"},
        {"%1 = input \"x\" : f32[4] @0+16\n"
         "%2 = neg %1 : f32[4] @64+16 scratch=64+64\n"
         "peak 128 %2",
         "verify: %2 = neg %1 : f32[4] @64+16 scratch=64+64: its result overlaps its scratch"},
        {"%1 = input \"x\" : f32[4] @0+16\n"
         "%2 = neg %1 : f32[4] @64+16 scratch=128+64\n"
         "peak 128 %2",
         "verify: %2 = neg %1 : f32[4] @64+16 scratch=128+64: its scratch does not fit the arena "
         "of 128"},
        {"%1 = input \"x\" : f32[4] @0+16\n"
         "%2 = neg %1 : f32[4] @64+16 scratch=130+8\n"
         "peak 192 %2",
         "verify: %2 = neg %1 : f32[4] @64+16 scratch=130+8: places are multiples of 64"},
    };
    check_mistakes(t, mistakes, (int)(sizeof mistakes / sizeof *mistakes));
}

#undef X
#undef W

/* --------------------------------------------------------------------------------- planted bugs */

/* A plan with a view of a parameter, a view of a shard, an output that is a view, a result in
 * place.
 */
static const char plan[] = "%1  = input \"x\" : f32[4,16] @0+256\n"
                           "%2  = param \"w\" {init=normal b=1} : f32[4,16] @320+256\n"
                           "%3  = input \"lr\" : f32[] @256+4\n"
                           "%4  = mul %1, %2 : f32[4,16] @576+256\n"
                           "%5  = reshape %2 {shape=[64]} : f32[64] @320+256\n"
                           "%6  = exp %4 : f32[4,16] @576+256\n"
                           "%7  = reshape %6 {shape=[64]} : f32[64] @576+256\n"
                           "%8  = slice %7 {start=16 stop=32} : f32[16] @640+64\n"
                           "%9  = mul %5, %7 : f32[64] @832+256\n"
                           "%10 = sum %8 : f32[] @1088+4\n"
                           "%11 = reshape %9 {shape=[4,16]} : f32[4,16] @832+256\n"
                           "      gradient %2, %11\n"
                           "      output %10 \"loss\"\n"
                           "      output %8 \"shard\"\n"
                           "update:\n"
                           "      sgd %2, %11, %3\n"
                           "peak 1152 %10\n";

/* The plan is that of the memory pass. */
TEST(ir_plan_is_good)
{
    zf_error error = {ZF_OK, ""};
    zf_graph *g = parse(t, plan, &error);
    char text[2000];
    NEED(t, g, &error);
    CHECK(t, zf_graph_text(g, text, sizeof text) < sizeof text);
    CHECK_TEXT(t, text, plan);
}

/* One thing in it is changed, and the error names the broken rule and the node. */
TEST(ir_planted_bugs_are_found)
{
    static const struct {
        const char *from[2], *to[2], *error;
    } bugs[] = {
        /* two values that live at the same time on the same bytes */
        {{"f32[] @1088+4", NULL},
         {"f32[] @832+4", NULL},
         "verify: %11 = reshape %9 {shape=[4,16]} : f32[4,16] @832+256: the bytes of %9 belong to "
         "%10"},
        {{"f32[64] @832+256", "f32[4,16] @832+256"},
         {"f32[64] @576+256", "f32[4,16] @576+256"},
         "verify: %10 = sum %8 : f32[] @1088+4: the bytes of %8 belong to %9"},
        {{"f32[64] @832+256", "f32[4,16] @832+256"},
         {"f32[64] @640+256", "f32[4,16] @640+256"},
         "verify: %9 = mul %5, %7 : f32[64] @640+256: its result overlaps %7, which it still "
         "reads"},
        {{"f32[] @1088+4", NULL},
         {"f32[] @640+4", NULL},
         "verify: %10 = sum %8 : f32[] @640+4: its result overlaps %8, which it still reads"},
        {{"mul %1, %2 : f32[4,16] @576+256", NULL},
         {"mul %1, %2 : f32[4,16] @512+256", NULL},
         "verify: %4 = mul %1, %2 : f32[4,16] @512+256: its result overlaps %2, which it still "
         "reads"},
        {{"f32[] @256+4", NULL},
         {"f32[] @320+4", NULL},
         "verify: %3 = input \"lr\" : f32[] @320+4: it overlaps %2, whose bytes are never free"},
        {{"f32[] @256+4", NULL},
         {"f32[] @832+4", NULL},
         "verify: sgd %2, %11, %3: the bytes of %3 belong to %9"},
        {{"output %10 \"loss\"\n", "peak 1152"},
         {"output %10 \"loss\"\n%12 = neg %9 : f32[64] @576+256\n", "peak 1152"},
         "verify: output %8 \"shard\": the bytes of %8 belong to %12"},
        /* a view that is not where its bytes are */
        {{"f32[16] @640+64", NULL},
         {"f32[16] @576+64", NULL},
         "verify: %8 = slice %7 {start=16 stop=32} : f32[16] @576+64: its result overlaps %7, "
         "which "
         "it still reads"},
        {{"f32[16] @640+64", NULL},
         {"f32[16] @704+64", NULL},
         "verify: %8 = slice %7 {start=16 stop=32} : f32[16] @704+64: its result overlaps %7, "
         "which "
         "it still reads"},
        {{"f32[64] @320+256", NULL},
         {"f32[64] @896+256", NULL},
         "verify: %9 = mul %5, %7 : f32[64] @832+256: its result overlaps %5, which it still "
         "reads"},
        /* scratch on what is alive */
        {{"f32[64] @832+256", NULL},
         {"f32[64] @832+256 scratch=576+8", NULL},
         "verify: %9 = mul %5, %7 : f32[64] @832+256 scratch=576+8: the bytes of %7 are gone"},
        {{"f32[] @1088+4", NULL},
         {"f32[] @1088+4 scratch=832+8", NULL},
         "verify: %11 = reshape %9 {shape=[4,16]} : f32[4,16] @832+256: the bytes of %9 are gone"},
        /* a parameter is written, and then a view of it is read */
        {{"sgd %2, %11, %3\n", NULL},
         {"sgd %2, %11, %3\n%12 = neg %5 : f32[64] @576+256\n", NULL},
         "verify: %12 = neg %5 : f32[64] @576+256: %5 is a view of %2, which has been written "
         "since"},
        {{"sgd %2, %11, %3\n", NULL},
         {"sgd %2, %11, %3\noutput %5 \"old\"\n", NULL},
         "verify: output %5 \"old\": %5 is a view of %2, which has been written since"},
        /* a node is missing, comes too late or twice; a write to what is no leaf */
        {{"%6  = exp %4 : f32[4,16] @576+256\n", NULL},
         {"", NULL},
         "6:17: %6 is not defined above"},
        {{"%3  = input \"lr\" : f32[] @256+4\n", "peak 1152"},
         {"", "peak 1152"},
         "15:22: %3 is not defined above"},
        {{"%9  = mul %5, %7 : f32[64] @832+256\n", "      gradient %2, %11\n"},
         {"", "      gradient %2, %11\n%9  = mul %5, %7 : f32[64] @832+256\n"},
         "10:17: %9 is not defined above"},
        {{"sgd %2, %11, %3\n", NULL},
         {"sgd %2, %11, %3\n      sgd %2, %11, %3\n", NULL},
         "verify: sgd %2, %11, %3: %2 has an update already"},
        {{"gradient %2, %11\n", NULL},
         {"gradient %2, %11\n      gradient %2, %11\n", NULL},
         "verify: gradient %2, %11: %2 has a gradient already"},
        {{"sgd %2, %11", NULL},
         {"sgd %4, %11", NULL},
         "16: sgd: operand 0 must be a param, a bucket or a shard of one, not the result of mul; "
         "%4 = "
         "f32[4,16], %11 = "
         "f32[4,16], %3 = f32[]"},
        {{"gradient %2, %11\n", NULL},
         {"gradient %4, %11\n", NULL},
         "12: gradient: operand 0 must be a param or a bucket; %4 = f32[4,16], %11 = f32[4,16]"},
        /* an arena that is too small */
        {{"peak 1152", NULL},
         {"peak 1088", NULL},
         "verify: %10 = sum %8 : f32[] @1088+4: its bytes do not fit its type or the arena of "
         "1088"},
    };
    for (int k = 0; k < (int)(sizeof bugs / sizeof *bugs); k++) {
        char text[2400], changed[2400];
        snprintf(text, sizeof text, "%s", plan);
        for (int i = 0; i < 2 && bugs[k].from[i]; i++) {
            char *at = strstr(text, bugs[k].from[i]);
            CHECK(t, at);
            snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, bugs[k].to[i],
                     at + strlen(bugs[k].from[i]));
            memcpy(text, changed, sizeof text);
        }
        check_mistakes(t, &(mistake){text, bugs[k].error}, 1);
        if (t->refused) return;
    }
}

/* ---------------------------------------------------------------------------------- reading back
 */

/* Text as people write it, and as it is printed. */
TEST(ir_reads_what_people_write)
{
    static const struct {
        const char *loose, *printed;
    } cases[] = {
        {"", ""},
        {"\n\n# nothing\n   # more of it", ""},
        {"%1=input\"x\":f32[4]", "%1 = input \"x\" : f32[4]\n"},
        {"\t%1 = input \"x\" : f32[ 4 , 2 ]  # a comment\r\n", "%1 = input \"x\" : f32[4,2]\n"},
        {"%1 = input \"a # no comment: é\" : bool[] # one",
         "%1 = input \"a # no comment: é\" : bool[]\n"},
        {"%7 = input \"x\" : i32[]\n%3 = neg %8 : f32[]", NULL},
        /* ids with gaps and in any order; a node without use */
        {"%7 = input \"x\" : f32[]\n%3 = neg %7 : f32[]\n%100 = exp %3 : f32[]",
         "%7   = input \"x\" : f32[]\n%3   = neg %7 : f32[]\n%100 = exp %3 : f32[]\n"},
        /* effects have no id, wherever they stand */
        {"%9 = state \"s\" : i64[]\noutput %9 \"a\"\n%2 = cast %9 : f32[]\noutput %2 "
         "\"b\"\nupdate:\nadvance %9",
         "%9 = state \"s\" : i64[]\n     output %9 \"a\"\n%2 = cast %9 : f32[]\n     output %2 "
         "\"b\"\nupdate:\n"
         "     advance %9\n"},
        /* attributes in any order, with commas or without; those that say nothing are left out */
        {"%1 = param \"w\" {b=2,init=normal, a=+1.0 frozen=false} : f32[2]",
         "%1 = param \"w\" {init=normal a=1 b=2} : f32[2]\n"},
        {"%1 = input \"x\" : f32[2,2]\n%2 = sum %1 {keep=true axis=0} : f32[1,2]\n%3 = gelu %2 "
         "{form=erf} : f32[1,2]",
         "%1 = input \"x\" : f32[2,2]\n%2 = sum %1 {keep=true} : f32[1,2]\n%3 = gelu %2 : "
         "f32[1,2]\n"},
        {"%1 = input \"x\" : f32[1]\n%2 = reshape %1 {shape=[]} : f32[]\n%3 = reshape %2 {} : "
         "f32[]",
         "%1 = input \"x\" : f32[1]\n%2 = reshape %1 : f32[]\n%3 = reshape %2 : f32[]\n"},
        /* numbers: the shortest text that reads back */
        {"%1 = constant {values=[1e3, .5, 5., -0, 0.1, 1e-320, 1e400, -inf, nan, "
         "3.0000000000000001]} : f64[10]",
         "%1 = constant {values=[1000,0.5,5,-0,0.1,9.99988867182683e-321,inf,-inf,nan,3]} : "
         "f64[10]\n"},
        {"%1 = constant {values=[0.1000000000000000055511151231257827021181583404541015625]} : "
         "f64[]",
         "%1 = constant {values=[0.1]} : f64[]\n"},
        {"%1 = input \"x\" : f32[]\n%2 = scale %1 {by=0} : f32[]\n%3 = scale %1 {by=-0} : f32[]",
         "%1 = input \"x\" : f32[]\n%2 = scale %1 : f32[]\n%3 = scale %1 {by=-0} : f32[]\n"},
        {"update:\nupdate:\n%1 = state \"s\" : i64[]", "update:\n%1 = state \"s\" : i64[]\n"},
        {"peak 0 %0", "peak 0 %0\n"},
        {"peak 64 %0 live=0", "peak 64 %0 live=0\n"},
    };
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g, *again;
        char text[1000];
        if (!cases[k].printed) continue;
        g = parse(t, cases[k].loose, &error);
        NEED(t, g, &error);
        CHECK(t, zf_graph_text(g, text, sizeof text) < sizeof text);
        CHECK_TEXT(t, text, cases[k].printed);
        again = parse(t, text, &error);
        NEED(t, again, &error);
        CHECK(t, zf_graph_hash(again) == zf_graph_hash(g));
    }
}

/* The text of a graph reads back as the same graph after every pass, although effects get other
 * ids. */
TEST(ir_reads_back_after_every_pass)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator}), *again;
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.1};
    zf_tensor x, y, loss = ZF_NONE;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(2, 4));
    for (int pass = 0; pass < 7; pass++) {
        zf_status status = ZF_OK;
        zf_error error = {ZF_OK, ""};
        char *text;
        if (pass == 0) {
            y = zf_gelu_tanh(zf_matmul(x, zf_param(g, "w", ZF_SHAPE(4, 4), &normal)));
            zf_output(y, "hidden");
            y = zf_dropout(y, 0.25);
            loss = zf_mean(zf_mul(y, y));
        } else if (pass == 1) {
            status = zf_autograd(g, loss);
        } else if (pass == 2) {
            status = zf_clip(g, 0.7);
        } else if (pass == 3) {
            status = zf_lamb(g, zf_input(g, "lr", ZF_F32, ZF_SCALAR), NULL);
        } else if (pass == 4) {
            status = zf_simplify(g);
        } else if (pass == 5) {
            status = zf_memory(g, NULL);
        }
        OK(t, status ? status : zf_graph_status(g), zf_graph_error(g));
        text = text_of(g);
        again =
            zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
        free(text);
        NEED(t, again, &error);
        y.id = zf_graph_hash(again) == zf_graph_hash(g);
        zf_graph_free(again);
        CHECK(t, y.id);
    }
}

/* Passes accept a graph that was read from text like the graph that was printed. */
TEST(ir_stages_are_read_from_the_nodes)
{
    static const char text[] =
        "%1 = input \"x\" : f32[4]\n%2 = param \"w\" : f32[4]\n%3 = mul %1, %2 : f32[4]\n"
        "gradient %2, %3\n";
    zf_error error = {ZF_OK, ""};
    zf_graph *g = parse(t, text, &error);
    NEED(t, g, &error);
    OK(t, zf_clip(g, 1), zf_graph_error(g));
    CHECK(t, zf_autograd(g, zf_graph_find(g, "x")) == ZF_ERR_STAGE);
    CHECK_TEXT(t, zf_graph_error(g), "zf_autograd: zf_autograd has been run already; there are no second derivatives");
}

/* Ranks come after the gradients, where there are to be any. */
TEST(ir_autograd_comes_before_zero)
{
    static const char text[] = "%1 = input \"x\" : f32[]\n%2 = param \"w\" : f32[]\n"
                               "%3 = mul %1, %2 : f32[]\noutput %3 \"loss\"\n";
    zf_error error = {ZF_OK, ""};
    zf_graph *g = parse(t, text, &error);
    NEED(t, g, &error);
    OK(t, zf_zero(g, &(zf_zero_desc){.world = 2}), zf_graph_error(g));
    GIVES(t, zf_autograd(g, zf_graph_find(g, "loss")), ZF_ERR_STAGE, zf_graph_error(g));
    CHECK_TEXT(t, zf_graph_error(g), "zf_autograd: must come before zf_zero, which has been run");
}

/* A dropout that is added to a graph from text gets a stream of its own: the first free one of its
 * scope. */
TEST(ir_streams_go_on)
{
    static const char text[] =
        "%1 = input \"x\" : f32[4]\n%2 = dropout %1 {p=0.5 stream=3264523141} : f32[4]\n";
    zf_error error = {ZF_OK, ""};
    zf_graph *g = parse(t, text, &error);
    char printed[400];
    NEED(t, g, &error);
    zf_dropout(zf_graph_find(g, "x"), 0.5);
    zf_push(g, "layer.1");
    zf_dropout(zf_graph_find(g, "x"), 0.5);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    zf_graph_text(g, printed, sizeof printed);
    CHECK_TEXT(t, printed,
               "%1 = input \"x\" : f32[4]\n%2 = dropout %1 {p=0.5 stream=3264523141} : f32[4]\n"
               "%3 = dropout %1 {p=0.5 stream=3735643311} : f32[4]\n"
               "%4 = dropout %1 {p=0.5 stream=2423947921} : f32[4]\n");
}

/* A text of any length, a name of any length, an error into nothing. */
TEST(ir_odd_arguments)
{
    char text[400] = "%1 = input \"";
    zf_error error = {ZF_OK, ""};
    zf_graph *g;
    CHECK(t, !zf_graph_parse("%", 1, NULL, NULL));
    g = zf_graph_parse(NULL, 5, &(zf_graph_desc){.allocator = t->allocator}, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    CHECK(t, zf_graph_text(g, NULL, 0) == 0);
    CHECK(t, !zf_graph_parse("%1 = input \"x\0y\" : f32[]", 25,
                             &(zf_graph_desc){.allocator = t->allocator}, &error));
    if (t->refused) OK(t, error.status, error.text);
    CHECK_TEXT(t, error.text, "1:16: a NUL in a name");
    memset(text + 12, 'n', 255);
    memcpy(text + 12 + 255, "\" : f32[]", 10);
    g = parse(t, text, &error);
    error = (zf_error){ZF_OK, ""};
    if (!g) g = parse(t, text, &error);
    NEED(t, g, &error);
    memcpy(text + 12 + 255, "n\" : f32[]", 11);
    CHECK(t, !parse(t, text, &error));
}
