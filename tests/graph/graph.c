/* Graphs and builders: what builders make, and that every mistake is recorded once, with scope,
 * file and line, and says what would be right. */
#include "../support/numbers.h"
#include "../support/test.h"

#include <pthread.h>

/* Tensors of most kinds, in the scope "net". */
typedef struct net {
    zf_graph *g;
    zf_tensor x, v, m, i, c, s, h, d, q; /* %1 ... %9 */
} net;

static net net_new(test *t)
{
    net n = {.g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator})};
    if (n.g) test_defer(t, (test_cleanup *)zf_graph_free, n.g);
    zf_push(n.g, "net");
    n.x = zf_input(n.g, "x", ZF_F32, ZF_SHAPE(2, 3));
    n.v = zf_input(n.g, "v", ZF_F32, ZF_SHAPE(3));
    n.m = zf_input(n.g, "m", ZF_F32, ZF_SHAPE(3, 4));
    n.i = zf_input(n.g, "i", ZF_I32, ZF_SHAPE(2));
    n.c = zf_input(n.g, "c", ZF_BOOL, ZF_SHAPE(2, 3));
    n.s = zf_input(n.g, "s", ZF_F32, ZF_SCALAR);
    n.h = zf_input(n.g, "h", ZF_BF16, ZF_SHAPE(2, 3));
    n.d = zf_input(n.g, "d", ZF_F64, ZF_SHAPE(2, 3));
    n.q = zf_param(n.g, "q", ZF_SHAPE(2, 3, 4), NULL);
    return n;
}

/* Frees the graph before the body ends, so that a body can make many. */
static void net_free(test *t, net *n)
{
    if (n->g) t->deferred_count--;
    zf_graph_free(n->g);
}

static zf_tensor by_id(zf_graph *g, int32_t id) { return (zf_tensor){g, id}; }

static zf_tensor empty_rows(zf_graph *g) { return zf_input(g, "r", ZF_F32, ZF_SHAPE(3, 0)); }

/* `text` with LINE replaced by the line. */
static const char *with_line(const char *text, int line)
{
    static char out[1024];
    const char *at = strstr(text, "LINE");
    if (!at) return text;
    snprintf(out, sizeof out, "%.*s%d%s", (int)(at - text), text, line, at + 4);
    return out;
}

/* The graph has this error, and `result` is invalid; the body may go on. */
static bool fails(test *t, net *n, zf_tensor result, int line, const char *text)
{
    const char *expected = with_line(text, line);
    bool good = n->g && !t->refused && !zf_valid(result) && !strcmp(zf_graph_error(n->g), expected);
    if (t->refused) {
        test_unwind(t, __FILE__, line, "a builder", n->g ? zf_graph_status(n->g) : ZF_ERR_NOMEM,
                    zf_graph_error(n->g));
    } else if (!good) {
        char both[1200];
        snprintf(both, sizeof both, "got      %s\n    expected %s", zf_graph_error(n->g), expected);
        test_fail(t, __FILE__, line, "the error", both);
    }
    net_free(t, n);
    return good;
}

/* A fresh net `n` and one mistake; then its message. */
static net n;
static zf_tensor result;
static int line;

#define TRY(...) (n = net_new(t), result = (__VA_ARGS__), line = __LINE__)
#define SAYS(text)                                                                                 \
    do {                                                                                           \
        if (!fails(t, &n, result, line, text) && !t->failed) return;                               \
    } while (0)

TEST(graph_refuses_bad_leaves)
{
    TRY(zf_input(n.g, "", ZF_F32, ZF_SHAPE(2)));
    SAYS("input in net (graph.c:LINE): a name has 1 to 255 characters, none of them \", \\ or a "
         "control character");
    TRY(zf_input(n.g, NULL, ZF_F32, ZF_SHAPE(2)));
    SAYS("input in net (graph.c:LINE): a name has 1 to 255 characters, none of them \", \\ or a "
         "control character");
    TRY(zf_input(n.g, "a\"b", ZF_F32, ZF_SHAPE(2)));
    SAYS("input in net (graph.c:LINE): a name has 1 to 255 characters, none of them \", \\ or a "
         "control character");
    TRY(zf_input(n.g, "a\nb", ZF_F32, ZF_SHAPE(2)));
    SAYS("input in net (graph.c:LINE): a name has 1 to 255 characters, none of them \", \\ or a "
         "control character");
    TRY(zf_input(n.g, "x", ZF_F32, ZF_SHAPE(2)));
    SAYS("input in net (graph.c:LINE): the name \"net.x\" is taken by %1");
    TRY(zf_output(n.x, "net.x"));
    SAYS("output in net (graph.c:LINE): the name \"net.x\" is taken by %1");
    TRY(zf_input(n.g, "y", (zf_dtype)99, ZF_SHAPE(2)));
    SAYS("input in net (graph.c:LINE): 99 is no dtype");
    TRY(zf_input(n.g, "y", ZF_F32, ZF_SHAPE(2, -3)));
    SAYS("input in net (graph.c:LINE): a shape has 0 to 6 dimensions, none negative, and fewer "
         "than 2^63 elements");
    TRY(zf_input(n.g, "y", ZF_F32, zf_shape_of(7, (int64_t[7]){1})));
    SAYS("input in net (graph.c:LINE): a shape has 0 to 6 dimensions, none negative, and fewer "
         "than 2^63 elements");
    TRY(zf_input(n.g, "y", ZF_F32, zf_shape_of(-2, NULL)));
    SAYS("input in net (graph.c:LINE): a shape has 0 to 6 dimensions, none negative, and fewer "
         "than 2^63 elements");
    TRY(zf_input(n.g, "y", ZF_F32, ZF_SHAPE(INT64_MAX, 2)));
    SAYS("input in net (graph.c:LINE): a shape has 0 to 6 dimensions, none negative, and fewer "
         "than 2^63 elements");
    TRY(zf_input(n.g, "y", ZF_F32, ZF_SHAPE((int64_t)1 << 60)));
    SAYS("input in net (graph.c:LINE): the result has a negative dimension, or 2^60 elements or "
         "more");
    TRY(zf_input(n.g, "y", ZF_F32, ZF_SHAPE(0, (int64_t)1 << 60)));
    SAYS("input in net (graph.c:LINE): the result has a negative dimension, or 2^60 elements or "
         "more");
    TRY(zf_param(n.g, "p", ZF_SHAPE(2), &(zf_param_desc){.dtype = ZF_I32}));
    SAYS("param in net (graph.c:LINE): a parameter is f32, bf16, f16 or f64, or with bits u8, not i32");
    TRY(zf_param(n.g, "p", ZF_SHAPE(2), &(zf_param_desc){.init = (zf_init)6}));
    SAYS("param in net (graph.c:LINE): init 6 is none of zf_init");
    TRY(zf_param(n.g, "p", ZF_SHAPE(2), &(zf_param_desc){.init = ZF_NORMAL, .std = -1}));
    SAYS("param in net (graph.c:LINE): init needs finite values (of f32 at most 3.40282e+38), std >= 0 and low <= high");
    TRY(zf_param(n.g, "p", ZF_SHAPE(2), &(zf_param_desc){.init = ZF_UNIFORM, .low = 1, .high = 0}));
    SAYS("param in net (graph.c:LINE): init needs finite values (of f32 at most 3.40282e+38), std >= 0 and low <= high");
    TRY(zf_param(n.g, "p", ZF_SHAPE(2), &(zf_param_desc){.init = ZF_FILL, .value = NAN}));
    SAYS("param in net (graph.c:LINE): init needs finite values (of f32 at most 3.40282e+38), std >= 0 and low <= high");
    TRY(zf_param(n.g, "p", ZF_SHAPE(-1), NULL));
    SAYS("param in net (graph.c:LINE): a shape has 0 to 6 dimensions, none negative, and fewer "
         "than 2^63 elements");
    TRY(zf_param(n.g, "x", ZF_SHAPE(1), NULL));
    SAYS("param in net (graph.c:LINE): the name \"net.x\" is taken by %1");
    TRY(zf_state(n.g, "s", ZF_F32, ZF_SHAPE(2), 0));
    SAYS("state in net (graph.c:LINE): the name \"net.s\" is taken by %6");
    TRY(zf_state(n.g, "z", (zf_dtype)-1, ZF_SHAPE(2), 0));
    SAYS("state in net (graph.c:LINE): -1 is no dtype");
    TRY(zf_constant(n.g, ZF_F32, ZF_SHAPE(-1), 0));
    SAYS("constant in net (graph.c:LINE): a shape has 0 to 6 dimensions, none negative, and "
         "fewer than 2^63 elements");
    TRY(zf_values(n.g, ZF_F32, ZF_SHAPE(2), NULL));
    SAYS("constant in net (graph.c:LINE): takes 1 value or as many as elements, 2, not 0");
}

TEST(graph_refuses_bad_elementwise)
{
    TRY(zf_add(n.x, n.i));
    SAYS("add in net (graph.c:LINE): the operands must have one dtype (zf_cast converts); %1 = "
         "f32[2,3], %4 = i32[2]");
    TRY(zf_add(n.x, n.m));
    SAYS("add in net (graph.c:LINE): the shapes do not broadcast: dimensions, aligned at the "
         "last, must be equal or 1; %1 = f32[2,3], %3 = f32[3,4]");
    TRY(zf_sub(n.c, n.c));
    SAYS("sub in net (graph.c:LINE): the operands must be float or integer; %5 = bool[2,3], %5 "
         "= bool[2,3]");
    TRY(zf_mul(n.x, n.h));
    SAYS("mul in net (graph.c:LINE): the operands must have one dtype (zf_cast converts); %1 = "
         "f32[2,3], %7 = bf16[2,3]");
    TRY(zf_div(n.q, n.x));
    SAYS("div in net (graph.c:LINE): the shapes do not broadcast: dimensions, aligned at the "
         "last, must be equal or 1; %9 = f32[2,3,4], %1 = f32[2,3]");
    TRY(zf_maximum(n.x, n.d));
    SAYS("maximum in net (graph.c:LINE): the operands must have one dtype (zf_cast converts); "
         "%1 = f32[2,3], %8 = f64[2,3]");
    TRY(zf_minimum(n.c, n.x));
    SAYS("minimum in net (graph.c:LINE): the operands must have one dtype (zf_cast converts); %5 "
         "= bool[2,3], %1 = f32[2,3]");
    TRY(zf_equal(n.x, n.i));
    SAYS("equal in net (graph.c:LINE): the operands must have one dtype (zf_cast converts); %1 "
         "= f32[2,3], %4 = i32[2]");
    TRY(zf_less(n.v, n.m));
    SAYS("less in net (graph.c:LINE): the shapes do not broadcast: dimensions, aligned at the "
         "last, must be equal or 1; %2 = f32[3], %3 = f32[3,4]");
    TRY(zf_where(n.x, n.x, n.x));
    SAYS("where in net (graph.c:LINE): the condition must be bool or u8; %1 = f32[2,3], %1 = "
         "f32[2,3], %1 = f32[2,3]");
    TRY(zf_where(n.c, n.x, n.d));
    SAYS("where in net (graph.c:LINE): the operands must have one dtype (zf_cast converts); %5 "
         "= bool[2,3], %1 = f32[2,3], %8 = f64[2,3]");
    TRY(zf_where(n.c, n.m, n.x));
    SAYS("where in net (graph.c:LINE): the shapes do not broadcast: dimensions, aligned at the "
         "last, must be equal or 1; %5 = bool[2,3], %3 = f32[3,4], %1 = f32[2,3]");
    TRY(zf_neg(n.i));
    SAYS("neg in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_scale(n.i, 2));
    SAYS("scale in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_exp(n.i));
    SAYS("exp in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_log(n.c));
    SAYS("log in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %5 = "
         "bool[2,3]");
    TRY(zf_sqrt(n.i));
    SAYS("sqrt in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_rsqrt(n.i));
    SAYS("rsqrt in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_tanh(n.i));
    SAYS("tanh in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_sigmoid(n.i));
    SAYS("sigmoid in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_relu(n.i));
    SAYS("relu in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_gelu(n.i));
    SAYS("gelu in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_gelu_tanh(n.i));
    SAYS("gelu in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_silu(n.i));
    SAYS("silu in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_cast(n.x, (zf_dtype)42));
    SAYS("cast in net (graph.c:LINE): 42 is no dtype; %1 = f32[2,3]");
    TRY(zf_dropout(n.x, 1));
    SAYS("dropout in net (graph.c:LINE): p = 1 must be at least 0 and below 1; %1 = f32[2,3]");
    TRY(zf_dropout(n.x, -0.1));
    SAYS("dropout in net (graph.c:LINE): p = -0.1 must be at least 0 and below 1; %1 = f32[2,3]");
    TRY(zf_dropout(n.x, NAN));
    SAYS("dropout in net (graph.c:LINE): p = nan must be at least 0 and below 1; %1 = f32[2,3]");
    TRY(zf_dropout(n.i, 0.5));
    SAYS("dropout in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
}

TEST(graph_refuses_bad_shapes)
{
    TRY(zf_reshape(n.x, ZF_SHAPE(4, 2)));
    SAYS("reshape in net (graph.c:LINE): f32[4,2] has 8 elements, the operand 6; %1 = f32[2,3]");
    TRY(zf_reshape(n.x, ZF_SHAPE(-1, -1)));
    SAYS("reshape in net (graph.c:LINE): two dimensions are -1");
    TRY(zf_reshape(n.x, ZF_SHAPE(-1, 4)));
    SAYS("reshape in net (graph.c:LINE): 6 elements, but the dimensions that are not -1 take a "
         "multiple of 4");
    TRY(zf_reshape(n.x, ZF_SHAPE(-1, 0)));
    SAYS("reshape in net (graph.c:LINE): 6 elements, but the dimensions that are not -1 take a "
         "multiple of 0");
    TRY(zf_reshape(n.x, ZF_SHAPE(-2, -3)));
    SAYS("reshape in net (graph.c:LINE): a shape has 0 to 6 dimensions, none negative, and "
         "fewer than 2^63 elements; %1 = f32[2,3]");
    TRY(zf_reshape(n.x, zf_shape_of(9, NULL)));
    SAYS("reshape in net (graph.c:LINE): a shape has 0 to 6 dimensions, none negative, and "
         "fewer than 2^63 elements; %1 = f32[2,3]");
    TRY(zf_transpose(n.x, 0, 2));
    SAYS("transpose in net (graph.c:LINE): axes 0 and 2 of a tensor of rank 2");
    TRY(zf_transpose(n.x, -3, 0));
    SAYS("transpose in net (graph.c:LINE): axes -3 and 0 of a tensor of rank 2");
    TRY(zf_transpose(n.s, 0, 0));
    SAYS("transpose in net (graph.c:LINE): axes 0 and 0 of a tensor of rank 0");
    TRY(zf_permute(n.x, NULL));
    SAYS("transpose in net (graph.c:LINE): the order is NULL");
    TRY(zf_permute(n.x, (int32_t[]){0, 0}));
    SAYS("transpose in net (graph.c:LINE): the order must name each of the axes 0 to 1 once; %1 "
         "= f32[2,3]");
    TRY(zf_permute(n.x, (int32_t[]){1, 2}));
    SAYS("transpose in net (graph.c:LINE): the order must name each of the axes 0 to 1 once; %1 "
         "= f32[2,3]");
    TRY(zf_slice(n.x, 2, 0, 1));
    SAYS("slice in net (graph.c:LINE): axis 2 of a tensor of rank 2");
    TRY(zf_slice(n.x, 1, 2, 1));
    SAYS("slice in net (graph.c:LINE): start 2 and stop 1; 0 <= start <= stop <= 3 is possible; "
         "%1 = f32[2,3]");
    TRY(zf_slice(n.x, 1, -1, 1));
    SAYS("slice in net (graph.c:LINE): start -1 and stop 1; 0 <= start <= stop <= 3 is "
         "possible; %1 = f32[2,3]");
    TRY(zf_slice(n.x, 1, 0, 4));
    SAYS("slice in net (graph.c:LINE): start 0 and stop 4; 0 <= start <= stop <= 3 is possible; "
         "%1 = f32[2,3]");
    TRY(zf_slice(n.s, 0, 0, 0));
    SAYS("slice in net (graph.c:LINE): axis 0 of a tensor of rank 0");
    TRY(zf_pad(n.x, -3, 1, 1));
    SAYS("pad in net (graph.c:LINE): axis -3 of a tensor of rank 2");
    TRY(zf_pad(n.x, 0, -1, 1));
    SAYS("pad in net (graph.c:LINE): -1 before and 1 after; neither may be negative, nor their "
         "sum with 2 over 2^63 - 1; %1 = f32[2,3]");
    TRY(zf_pad(n.x, 0, INT64_MAX, 1));
    SAYS("pad in net (graph.c:LINE): 9223372036854775807 before and 1 after; neither may be "
         "negative, nor their sum with 2 over 2^63 - 1; %1 = f32[2,3]");
    TRY(zf_broadcast(n.x, ZF_SHAPE(3, 3)));
    SAYS("broadcast in net (graph.c:LINE): the operand does not broadcast to f32[3,3]: aligned "
         "at the last, each dimension must be equal or 1; %1 = f32[2,3]");
    TRY(zf_broadcast(n.x, ZF_SHAPE(3)));
    SAYS("broadcast in net (graph.c:LINE): the operand does not broadcast to f32[3]: aligned at "
         "the last, each dimension must be equal or 1; %1 = f32[2,3]");
    TRY(zf_broadcast(n.x, ZF_SHAPE(-1, 3)));
    SAYS("broadcast in net (graph.c:LINE): a shape has 0 to 6 dimensions, none negative, and "
         "fewer than 2^63 elements; %1 = f32[2,3]");
    TRY(zf_sum_to(n.x, ZF_SHAPE(2)));
    SAYS("sum_to in net (graph.c:LINE): f32[2] does not broadcast to the operand's shape: "
         "aligned at the last, each dimension must be equal or 1; %1 = f32[2,3]");
    TRY(zf_sum_to(n.i, ZF_SCALAR));
    SAYS("sum_to in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_concat((zf_tensor[]){n.x, n.m}, 2, 0));
    SAYS("concat in net: operand 1, f32[3,4], must have operand 0's dimensions but for axis 0; "
         "%1 = f32[2,3], %3 = f32[3,4]");
    TRY(zf_concat((zf_tensor[]){n.x, n.x}, 2, 2));
    SAYS("concat in net: axis 2 of a tensor of rank 2");
    TRY(zf_concat((zf_tensor[]){n.x, n.d}, 2, 0));
    SAYS("concat in net: the operands must have one dtype (zf_cast converts); %1 = f32[2,3], %8 "
         "= f64[2,3]");
    TRY(zf_concat((zf_tensor[]){n.x, ZF_NONE}, 2, 0));
    SAYS("concat in net: operand 1 is missing (ZF_NONE)");
    TRY(zf_concat((zf_tensor[]){ZF_NONE, n.x}, 2, 0));
    SAYS("concat in net: operand 0 is missing (ZF_NONE)");
}

TEST(graph_refuses_bad_products_and_reductions)
{
    TRY(zf_matmul(n.x, n.x));
    SAYS("matmul in net (graph.c:LINE): the inner dimensions differ: 3 of a, 2 of b; they must "
         "be equal; %1 = f32[2,3], %1 = f32[2,3]");
    TRY(zf_matmul(n.x, n.v));
    SAYS("matmul in net (graph.c:LINE): both operands need two dimensions or more; %1 = "
         "f32[2,3], %2 = f32[3]");
    TRY(zf_matmul(n.h, n.m));
    SAYS("matmul in net (graph.c:LINE): the operands must have one dtype (zf_cast converts); %7 "
         "= bf16[2,3], %3 = f32[3,4]");
    TRY(zf_matmul(n.i, n.i));
    SAYS("matmul in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2], %4 = i32[2]");
    TRY(zf_matmul_ex(n.x, n.m, &(zf_matmul_desc){.transpose_a = true}));
    SAYS("matmul in net (graph.c:LINE): the inner dimensions differ: 2 of a transposed, 3 of b; "
         "they must be equal; %1 = f32[2,3], %3 = f32[3,4]");
    TRY(zf_matmul_ex(n.q, n.m, &(zf_matmul_desc){.transpose_a = true, .transpose_b = true}));
    SAYS("matmul in net (graph.c:LINE): the inner dimensions differ: 3 of a transposed, 4 of b "
         "transposed; they must be equal; %9 = f32[2,3,4], %3 = f32[3,4]");
    TRY(zf_matmul(n.q, zf_input(n.g, "r", ZF_F32, ZF_SHAPE(3, 4, 2))));
    SAYS("matmul in net (graph.c:LINE): the leading dimensions do not broadcast: equal or 1 is "
         "needed; %9 = f32[2,3,4], %10 = f32[3,4,2]");
    TRY(zf_sum(n.c));
    SAYS("sum in net (graph.c:LINE): the operand must be float or integer (zf_cast converts); %10 = "
         "bool[6]");
    TRY(zf_sum_ex(n.x, &(zf_reduce_desc){.axis = 2}));
    SAYS("sum in net (graph.c:LINE): axis 2 of a tensor of rank 2");
    TRY(zf_sum_ex(n.s, NULL));
    SAYS("sum in net (graph.c:LINE): axis 0 of a tensor of rank 0");
    TRY(zf_mean(n.i));
    SAYS("mean in net (graph.c:LINE): the operand must be float (zf_cast converts)");
    TRY(zf_mean_ex(n.x, &(zf_reduce_desc){.axis = -3}));
    SAYS("sum in net (graph.c:LINE): axis -3 of a tensor of rank 2");
    TRY(zf_max(n.c));
    SAYS("max in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %10 = "
         "bool[6]");
    TRY(zf_max_ex(n.s, NULL));
    SAYS("max in net (graph.c:LINE): axis 0 of a tensor of rank 0");
    TRY(zf_argmax_ex(n.i, NULL));
    SAYS("argmax in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_argmax_ex(empty_rows(n.g), &(zf_reduce_desc){.axis = 1}));
    SAYS("argmax in net (graph.c:LINE): the axis has 0 elements; 1 to 2^31 - 1 is possible; %10 "
         "= f32[3,0]");
}

TEST(graph_refuses_bad_rows)
{
    TRY(zf_softmax(n.i));
    SAYS("softmax in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_softmax(n.s));
    SAYS("softmax in net (graph.c:LINE): needs one dimension or more; %6 = f32[]");
    TRY(zf_logsumexp(n.s));
    SAYS("logsumexp in net (graph.c:LINE): needs one dimension or more; %6 = f32[]");
    TRY(zf_log_softmax(n.i));
    SAYS("logsumexp in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 "
         "= i32[2]");
    TRY(zf_layer_norm(n.x, n.v, n.i, 1e-5));
    SAYS("layer_norm in net (graph.c:LINE): beta must be f32[3]; %1 = f32[2,3], %10 = f32[2,2], "
         "%2 = f32[3], %4 = i32[2]");
    TRY(zf_layer_norm(n.x, n.m, n.v, 1e-5));
    SAYS("layer_norm in net (graph.c:LINE): gamma must be f32[3]; %1 = f32[2,3], %10 = "
         "f32[2,2], %3 = f32[3,4], %2 = f32[3]");
    TRY(zf_layer_norm(n.x, n.v, n.v, -1));
    SAYS("moments in net (graph.c:LINE): eps = -1 must be finite and not negative; %1 = f32[2,3]");
    TRY(zf_layer_norm(n.x, n.v, ZF_NONE, 1e-5));
    SAYS("layer_norm in net (graph.c:LINE): operand 3 is missing (ZF_NONE)");
    TRY(zf_layer_norm(n.s, n.v, n.v, 1e-5));
    SAYS("moments in net (graph.c:LINE): needs one dimension or more; %6 = f32[]");
    TRY(zf_rms_norm(n.x, n.m, 1e-5));
    SAYS("rms_norm in net (graph.c:LINE): gamma must be f32[3]; %1 = f32[2,3], %10 = f32[2,2], "
         "%3 = f32[3,4]");
    TRY(zf_rms_norm(n.x, n.v, NAN));
    SAYS("rms in net (graph.c:LINE): eps = nan must be finite and not negative; %1 = f32[2,3]");
    TRY(zf_rms_norm(n.i, n.v, 1e-5));
    SAYS("rms in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 = "
         "i32[2]");
    TRY(zf_gather_rows(n.x, n.v));
    SAYS("gather_rows in net (graph.c:LINE): the index must be i32 or i64; %1 = f32[2,3], %2 = "
         "f32[3]");
    TRY(zf_gather_rows(n.i, n.i));
    SAYS("gather_rows in net (graph.c:LINE): the table must be float: f32, bf16, f16 or f64; %4 "
         "= i32[2], %4 = i32[2]");
    TRY(zf_gather_rows(n.s, n.i));
    SAYS("gather_rows in net (graph.c:LINE): the table needs one dimension or more; %6 = f32[], "
         "%4 = i32[2]");
    TRY(zf_embedding(n.q, zf_input(n.g, "r", ZF_I64, ZF_SHAPE(1, 1, 1, 1, 1))));
    SAYS("gather_rows in net (graph.c:LINE): the result has more than 6 dimensions; %9 = "
         "f32[2,3,4], %10 = i64[1,1,1,1,1]");
    TRY(zf_cross_entropy(n.x, n.v, ZF_NONE));
    SAYS("cross_entropy in net (graph.c:LINE): the labels must have one element for each row of "
         "the logits; %1 = f32[2,3], %10 = f32[2], %2 = f32[3]");
    TRY(zf_cross_entropy(n.x, zf_input(n.g, "r", ZF_I32, ZF_SHAPE(3)), ZF_NONE));
    SAYS("cross_entropy in net (graph.c:LINE): the labels must have one element for each row of "
         "the logits; %1 = f32[2,3], %11 = f32[2], %10 = i32[3]");
    TRY(zf_cross_entropy(n.q, n.i, ZF_NONE));
    SAYS("cross_entropy in net (graph.c:LINE): the labels must have one element for each row of "
         "the logits; %9 = f32[2,3,4], %10 = f32[2,3], %4 = i32[2]");
    TRY(zf_cross_entropy(n.i, n.i, ZF_NONE));
    SAYS("logsumexp in net (graph.c:LINE): the operand must be float: f32, bf16, f16 or f64; %4 "
         "= i32[2]");
    TRY(zf_cross_entropy(n.x, n.i, n.d));
    SAYS("zf_cross_entropy in net (graph.c:LINE): the weight must be a scalar; it has 2 dimensions");
    TRY(zf_cross_entropy(ZF_NONE, n.i, ZF_NONE));
    SAYS("cross_entropy in net: operand 0 is missing (ZF_NONE)");
}

TEST(graph_refuses_bad_layers)
{
    const zf_residual_desc dropped = {.dropout = 1};
    TRY(zf_linear(n.x, n.m, ZF_NONE));
    SAYS("linear in net (graph.c:LINE): x [..., k] and w [n, k] are needed; %1 = f32[2,3], %3 = "
         "f32[3,4]");
    TRY(zf_linear(n.x, n.x, n.v));
    SAYS("linear in net (graph.c:LINE): the bias must be [2]; %1 = f32[2,3], %1 = f32[2,3], %2 = "
         "f32[3]");
    TRY(zf_linear(n.x, n.d, ZF_NONE));
    SAYS("linear in net (graph.c:LINE): the operands must have one dtype (zf_cast converts); %1 = "
         "f32[2,3], %8 = f64[2,3]");
    TRY(zf_linear(n.x, ZF_NONE, n.v));
    SAYS("linear in net (graph.c:LINE): operand 1 is missing (ZF_NONE)");
    TRY(zf_linear(n.x, n.i, ZF_NONE));
    SAYS("linear in net (graph.c:LINE): the operands must have one dtype (zf_cast converts); %1 = "
         "f32[2,3], %4 = i32[2]");
    TRY(zf_swiglu(n.x, n.m));
    SAYS("swiglu in net (graph.c:LINE): gate and up must have one shape; %1 = f32[2,3], %3 = "
         "f32[3,4]");
    TRY(zf_swiglu(n.x, ZF_NONE));
    SAYS("swiglu in net (graph.c:LINE): one operand holds gate and up: its last dimension must be "
         "even; %1 = f32[2,3]");
    TRY(zf_attention(n.q, n.q, n.q, &(zf_attention_desc){.heads = 3}));
    SAYS("attention in net (graph.c:LINE): operand 0 must be [batch, tokens, hidden], hidden a "
         "multiple of the 3 heads; %9 = f32[2,3,4], %9 = f32[2,3,4], %9 = f32[2,3,4]");
    TRY(zf_attention(n.q, n.q, n.q, &(zf_attention_desc){.heads = 4, .kv_heads = 3}));
    SAYS("attention in net (graph.c:LINE): 4 heads of q must be a multiple of the 3 kv_heads");
    TRY(zf_attention(n.q, n.q, ZF_NONE, NULL));
    SAYS("attention in net (graph.c:LINE): operand 2 is missing (ZF_NONE)");
    TRY(zf_attention(n.q, ZF_NONE, ZF_NONE, &(zf_attention_desc){.heads = 2}));
    SAYS("attention in net (graph.c:LINE): q holds q, k and v: its last dimension, 4, must be a "
         "multiple of their 6 heads");
    TRY(zf_attention(n.x, n.x, n.x, NULL));
    SAYS("attention in net (graph.c:LINE): operand 0 must be [batch, tokens, hidden], hidden a "
         "multiple of the 1 heads; %1 = f32[2,3], %1 = f32[2,3], %1 = f32[2,3]");
    TRY(zf_attention(n.q, n.q, n.q, &(zf_attention_desc){.mask = n.i}));
    SAYS("attention in net (graph.c:LINE): the mask is i32; it must be bool, u8 or f32");
    TRY(zf_attention(n.q, n.q, n.q, &(zf_attention_desc){.window = -2}));
    SAYS("attention in net (graph.c:LINE): window = -2 must not be negative; %9 = f32[2,3,4], %9 ="
         " f32[2,3,4], %9 = f32[2,3,4]");
    TRY(zf_attention(n.q, n.q, n.q, &(zf_attention_desc){.causal = true, .window = -1}));
    SAYS("attention in net (graph.c:LINE): window = -1 must not be negative; %9 = f32[2,3,4], %9 ="
         " f32[2,3,4], %9 = f32[2,3,4]");
    TRY(zf_attention(n.q, n.q, n.q, &(zf_attention_desc){.dropout = -0.5}));
    SAYS("attention in net (graph.c:LINE): p = -0.5 must be at least 0 and below 1; %9 = "
         "f32[2,3,4], %9 = f32[2,3,4], %9 = f32[2,3,4]");
    TRY(zf_attention(n.q, n.q, n.q, &(zf_attention_desc){.causal = true, .past = n.i}));
    SAYS("attention in net (graph.c:LINE): k_cache, v_cache, past and count must be given together");
    TRY(zf_attention(n.q, n.q, n.q, &(zf_attention_desc){.past = n.i}));
    SAYS("attention in net (graph.c:LINE): with caches it takes q, k and v, is causal, and has "
         "no documents or dropout");
    TRY(zf_residual_layer_norm(n.x, n.v, n.v, n.v, NULL));
    SAYS("residual_norm in net (graph.c:LINE): operand 1 must have the shape of operand 0; %1 = "
         "f32[2,3], %2 = f32[3], %2 = f32[3], %2 = f32[3]");
    TRY(zf_residual_layer_norm(n.x, n.x, n.m, n.v, NULL));
    SAYS("residual_norm in net (graph.c:LINE): gamma must be f32[3]; %1 = f32[2,3], %1 = f32[2,3],"
         " %3 = f32[3,4], %2 = f32[3]");
    TRY(zf_residual_layer_norm(n.x, n.x, n.v, ZF_NONE, NULL));
    SAYS("residual_norm in net (graph.c:LINE): operand 3 is missing (ZF_NONE)");
    TRY(zf_residual_layer_norm(n.x, n.x, n.v, n.v, &dropped));
    SAYS("residual_norm in net (graph.c:LINE): p = 1 must be at least 0 and below 1; %1 = "
         "f32[2,3], %1 = f32[2,3], %2 = f32[3], %2 = f32[3]");
    TRY(zf_residual_rms_norm(n.x, n.x, n.v, &(zf_residual_desc){.eps = -1}));
    SAYS("residual_norm in net (graph.c:LINE): eps = -1 must be finite and not negative; %1 = "
         "f32[2,3], %1 = f32[2,3], %2 = f32[3]");
    TRY(zf_residual_rms_norm(n.x, n.x, n.v, &(zf_residual_desc){.bias = n.m}));
    SAYS("residual_norm in net (graph.c:LINE): the bias must be f32[3]; %1 = f32[2,3], %1 = "
         "f32[2,3], %2 = f32[3], %3 = f32[3,4]");
    TRY(zf_residual_rms_norm(ZF_NONE, n.x, n.v, NULL));
    SAYS("");
    TRY(zf_rope(n.x, &(zf_rope_desc){.heads = 2}));
    SAYS("rope in net (graph.c:LINE): the operand must be [..., tokens, hidden], hidden a multiple"
         " of 2 * 2, twice the heads; %1 = f32[2,3]");
    TRY(zf_rope(n.v, NULL));
    SAYS("rope in net (graph.c:LINE): the operand must be [..., tokens, hidden], hidden a multiple"
         " of 2 * 1, twice the heads; %2 = f32[3]");
    TRY(zf_rope(n.q, &(zf_rope_desc){.heads = -1}));
    SAYS("rope in net (graph.c:LINE): heads = -1 must be 1 or more; %9 = f32[2,3,4]");
    TRY(zf_rope(n.q, &(zf_rope_desc){.theta = -10000}));
    SAYS("rope in net (graph.c:LINE): theta = -10000 must be positive; %9 = f32[2,3,4]");
    TRY(zf_rope(n.q, &(zf_rope_desc){.scaling = (zf_rope_scaling)9}));
    SAYS("rope in net (graph.c:LINE): there is no scaling 9; %9 = f32[2,3,4]");
    TRY(zf_rope(n.q, &(zf_rope_desc){.scaling = ZF_ROPE_LLAMA3, .low_factor = 4, .high_factor = 1}));
    SAYS("rope in net (graph.c:LINE): low = 4, high = 1 and original = 8192 must be positive, and "
         "high above low; %9 = f32[2,3,4]");
    TRY(zf_rope(n.q, &(zf_rope_desc){.scaling = ZF_ROPE_YARN, .theta = 0.5}));
    SAYS("rope in net (graph.c:LINE): low = 1, high = 32, original = 8192 and by = 1.20794 must be "
         "positive, high not below low, and theta above 1; %9 = f32[2,3,4]");
    TRY(zf_rope(n.q, &(zf_rope_desc){.positions = n.x}));
    SAYS("rope in net (graph.c:LINE): the positions must be i32 or i64 and one for each token: the"
         " operand's shape without hidden, or [3]; %9 = f32[2,3,4], %1 = f32[2,3]");
    TRY(zf_rope(n.q, &(zf_rope_desc){.positions = n.i}));
    SAYS("rope in net (graph.c:LINE): the positions must be i32 or i64 and one for each token: the"
         " operand's shape without hidden, or [3]; %9 = f32[2,3,4], %4 = i32[2]");
}

TEST(graph_refuses_what_is_no_tensor)
{
    TRY(zf_add(n.x, ZF_NONE));
    SAYS("add in net (graph.c:LINE): operand 1 is missing (ZF_NONE)");
    TRY(zf_add(n.x, zf_graph_find(n.g, "nothing")));
    SAYS("add in net (graph.c:LINE): operand 1 is no tensor of this graph: the graph has no \"nothing\"");
    TRY(zf_neg(zf_graph_find(n.g, "nothing")));
    SAYS("neg in net (graph.c:LINE): operand 0 is no tensor of this graph: the graph has no \"nothing\"");
    TRY(zf_reshape(zf_graph_find(n.g, "nothing"), ZF_SCALAR));
    SAYS("reshape in net (graph.c:LINE): operand 0 is no tensor of this graph: the graph has no \"nothing\"");
    TRY(zf_dropout(zf_graph_find(n.g, "nothing"), 0));
    SAYS("dropout in net (graph.c:LINE): operand 0 is no tensor of this graph: the graph has no \"nothing\"");
    TRY(zf_transpose(zf_gradient(n.g, n.q), 0, 1));
    SAYS("transpose in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_permute(zf_param_at(n.g, 5), NULL));
    SAYS("transpose in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_slice(zf_param_at(n.g, 1), 0, 0, 1));
    SAYS("slice in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_pad(zf_param_at(n.g, -1), 0, 0, 0));
    SAYS("pad in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_broadcast(zf_param_at(n.g, -1), ZF_SCALAR));
    SAYS("broadcast in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_sum_to(zf_param_at(n.g, -1), ZF_SCALAR));
    SAYS("sum_to in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_sum(zf_param_at(n.g, -1)));
    SAYS("reshape in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_max_ex(zf_param_at(n.g, -1), NULL));
    SAYS("max in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_mean(zf_param_at(n.g, -1)));
    SAYS("reshape in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_log_softmax(zf_param_at(n.g, -1)));
    SAYS("logsumexp in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_layer_norm(zf_param_at(n.g, -1), n.v, n.v, 1e-5));
    SAYS("moments in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_cast(zf_param_at(n.g, -1), ZF_F32));
    SAYS("cast in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_output(zf_param_at(n.g, -1), "y"));
    SAYS("output in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_output(n.x, ""));
    SAYS("output in net (graph.c:LINE): a name has 1 to 255 characters, none of them \", \\ or "
         "a control character");
    TRY(zf_output(n.x, NULL));
    SAYS("output in net (graph.c:LINE): a name has 1 to 255 characters, none of them \", \\ or "
         "a control character");
    TRY(zf_neg(by_id(n.g, -5)));
    SAYS("neg in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_neg(by_id(n.g, 1000000)));
    SAYS("neg in net (graph.c:LINE): operand 0 is no tensor of this graph");
    TRY(zf_concat((zf_tensor[]){zf_param_at(n.g, -1)}, 1, 0));
    SAYS("concat in net: operand 0 is no tensor of this graph");
    TRY(zf_fail(n.x, "the head takes %d dimensions, not %d", 3, 2));
    SAYS("build in net (graph.c:LINE): the head takes 3 dimensions, not 2");
}

/* ---------------------------------------------------------------------------- what works */

TEST(graph_tensors_say_what_they_are)
{
    zf_shape shape;
    n = net_new(t);
    NEED(t, n.g, NULL);
    OK(t, zf_graph_status(n.g), zf_graph_error(n.g));
    shape = zf_tensor_shape(n.q);
    CHECK(t, shape.rank == 3 && shape.dims[0] == 2 && shape.dims[1] == 3 && shape.dims[2] == 4);
    CHECK(t, zf_tensor_dtype(n.h) == ZF_BF16 && zf_tensor_bytes(n.h) == 12);
    CHECK(t, zf_tensor_bytes(n.c) == 6 && zf_tensor_bytes(n.s) == 4 && zf_tensor_bytes(n.d) == 48);
    CHECK_TEXT(t, zf_tensor_name(n.q), "net.q");
    CHECK_TEXT(t, zf_tensor_name(zf_neg(n.x)), "");
    CHECK(t, !zf_valid(ZF_NONE) && zf_tensor_shape(ZF_NONE).rank == -1 &&
                 zf_tensor_bytes(ZF_NONE) == 0);
    CHECK(t, zf_tensor_dtype(by_id(n.g, 77)) == ZF_F32 && !zf_valid(by_id(n.g, 77)));
    CHECK_TEXT(t, zf_tensor_name(ZF_NONE), "");
}

/* Of a name that is not there, up to four that may be meant; the last eight such names count. */
TEST(graph_says_which_names_are_near)
{
    zf_tensor old;
    TRY(zf_neg(zf_graph_find(n.g, "q")));
    SAYS("neg in net (graph.c:LINE): operand 0 is no tensor of this graph: the graph has no \"q\"; near "
         "are net.q");
    TRY(zf_neg(zf_graph_find(n.g, "nett.x")));
    SAYS("neg in net (graph.c:LINE): operand 0 is no tensor of this graph: the graph has no \"nett.x\"; "
         "near are net.x");
    TRY(zf_neg(zf_graph_find(n.g, "net.")));
    SAYS("neg in net (graph.c:LINE): operand 0 is no tensor of this graph: the graph has no \"net.\"; "
         "near are net.x, net.v, net.m, net.i");
    TRY(zf_fail(zf_graph_find(n.g, "net.Q"), "no loss"));
    SAYS("build in net (graph.c:LINE): no loss: the graph has no \"net.Q\"; near are net.x, net.v, net.m, "
         "net.i");
    TRY((old = zf_graph_find(n.g, "old"), zf_neg(old)));
    SAYS("neg in net (graph.c:LINE): operand 0 is no tensor of this graph: the graph has no \"old\"");
    TRY((old = zf_graph_find(n.g, "net.q."), zf_graph_find(n.g, ""), zf_neg(old)));
    SAYS("neg in net (graph.c:LINE): operand 0 is no tensor of this graph: the graph has no \"net.q.\"; "
         "near are net.q");
    n = net_new(t);
    NEED(t, n.g, NULL);
    old = zf_graph_find(n.g, "old");
    for (int k = 0; k < 8; k++) zf_graph_find(n.g, "new");
    zf_neg(old);
    OK(t, zf_graph_status(n.g) == ZF_ERR_NOMEM ? ZF_ERR_NOMEM : ZF_OK, zf_graph_error(n.g));
    CHECK(t, strstr(zf_graph_error(n.g), "operand 0 is no tensor of this graph"));
    CHECK(t, !strstr(zf_graph_error(n.g), "the graph has no"));
}

TEST(graph_finds_by_name)
{
    zf_tensor y;
    n = net_new(t);
    NEED(t, n.g, NULL);
    y = zf_neg(n.x);
    CHECK(t, zf_output(y, "y").id == y.id || t->refused);
    OK(t, zf_graph_status(n.g), zf_graph_error(n.g));
    CHECK(t, zf_graph_find(n.g, "net.x").id == n.x.id);
    CHECK(t, zf_graph_find(n.g, "y").id == y.id); /* an output's name is that of its value */
    CHECK(t, !zf_valid(zf_graph_find(n.g, "x")) && !zf_valid(zf_graph_find(n.g, NULL)));
    CHECK(t, !zf_valid(zf_graph_find(NULL, "x")));
    CHECK(t, zf_param_count(n.g) == 1 && zf_param_at(n.g, 0).id == n.q.id);
    CHECK(t, zf_param_count(NULL) == 0 && !zf_valid(zf_param_at(NULL, 0)));
    CHECK(t, !zf_valid(zf_param_at(n.g, 1)) && !zf_valid(zf_param_at(n.g, -1)));
    CHECK(t, !zf_valid(zf_gradient(n.g, n.q)) && !zf_valid(zf_gradient(n.g, n.x)));
    OK(t, zf_graph_status(n.g), zf_graph_error(n.g)); /* to find nothing is no error */
}

TEST(graph_scopes_join_names)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor w;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_push(g, "bert");
    zf_push(g, "layer.%d", 3);
    w = zf_param(g, "w", ZF_SCALAR, NULL);
    zf_pop(g);
    zf_param(g, "b", ZF_SCALAR, NULL);
    zf_pop(g);
    zf_param(g, "w", ZF_SCALAR, NULL);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK_TEXT(t, zf_tensor_name(w), "bert.layer.3.w");
    CHECK(t, zf_valid(zf_graph_find(g, "bert.b")) && zf_valid(zf_graph_find(g, "w")));
    zf_pop(g), line = __LINE__;
    CHECK_TEXT(t, zf_graph_error(g), with_line("zf_pop (graph.c:LINE): no scope is open", line));
}

TEST(graph_refuses_bad_scopes)
{
    static const char *const names[] = {"", "a\"b", "a\\b", "a\tb", NULL};
    char longest[210];
    memset(longest, 'x', sizeof longest);
    longest[201] = '\0';
    for (int k = 0; k < 5; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        zf_push(g, "%s", names[k] ? names[k] : longest), line = __LINE__;
        CHECK_TEXT(t, zf_graph_error(g),
                   with_line("zf_push (graph.c:LINE): a scope's whole name has 1 to 200 "
                             "characters, none of them "
                             "\", \\ or a control character",
                             line));
        CHECK(t, zf_graph_status(g) == ZF_ERR_ARGUMENT);
    }
    longest[200] = '\0';
    for (int k = 0; k < 2; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        zf_push(g, "%s", longest);
        OK(t, zf_graph_status(g), zf_graph_error(g));
        longest[60] = '\0';
        zf_param(g, longest, ZF_SCALAR, NULL); /* 201 + 60 */
        CHECK(t, k ? zf_graph_status(g) != ZF_ERR_ARGUMENT
                   : t->refused || zf_graph_status(g) == ZF_ERR_ARGUMENT);
        OK(t, k ? zf_graph_status(g) : ZF_OK, zf_graph_error(g));
        longest[60] = 'x', longest[100] = '\0';
    }
}

TEST(graph_open_scope_cannot_be_placed)
{
    zf_status status;
    n = net_new(t);
    NEED(t, n.g, NULL);
    status = zf_memory(n.g, NULL);
    if (t->refused) OK(t, status, zf_graph_error(n.g));
    CHECK(t, status == ZF_ERR_STAGE);
    CHECK_TEXT(t, zf_graph_error(n.g),
               "zf_memory: the scope \"net\", opened by zf_push (graph.c:18), is still open (zf_pop "
               "closes it)");
}

TEST(graph_first_error_sticks)
{
    char first[300];
    zf_tensor bad;
    n = net_new(t);
    NEED(t, n.g, NULL);
    bad = zf_add(n.x, n.m);
    OK(t, zf_graph_status(n.g) == ZF_ERR_NOMEM ? ZF_ERR_NOMEM : ZF_OK, zf_graph_error(n.g));
    CHECK(t, zf_graph_status(n.g) == ZF_ERR_SHAPE && bad.graph == n.g && bad.id == 0);
    snprintf(first, sizeof first, "%s", zf_graph_error(n.g));
    bad = zf_softmax(zf_matmul(zf_scale(bad, 2), n.m));
    bad = zf_cross_entropy(bad, n.i, ZF_NONE);
    bad = zf_layer_norm(bad, n.v, n.v, -1);
    bad = zf_reshape(zf_sum(zf_dropout(bad, 3)), ZF_SHAPE(-5));
    bad = zf_concat((zf_tensor[]){bad, n.x}, 2, 9);
    bad = zf_output(zf_cast(bad, ZF_F64), "");
    bad = zf_where(n.c, bad, zf_constant(n.g, ZF_F32, ZF_SCALAR, 1));
    CHECK(t, !zf_valid(bad) && bad.graph == n.g);
    CHECK(t, !zf_valid(zf_input(n.g, "fine", ZF_F32, ZF_SCALAR))); /* nothing is added any more */
    zf_push(n.g, "scope");
    zf_pop(n.g);
    CHECK(t, zf_autograd(n.g, bad) == ZF_ERR_SHAPE && zf_simplify(n.g) == ZF_ERR_SHAPE);
    CHECK(t, zf_clip(n.g, 1) == ZF_ERR_SHAPE && zf_sgd(n.g, bad, NULL) == ZF_ERR_SHAPE);
    CHECK(t, zf_adamw(n.g, bad, NULL) == ZF_ERR_SHAPE && zf_lamb(n.g, bad, NULL) == ZF_ERR_SHAPE);
    CHECK(t, zf_memory(n.g, NULL) == ZF_ERR_SHAPE && zf_compile(n.g, NULL) == NULL);
    CHECK_TEXT(t, zf_graph_error(n.g), first);
}

TEST(graph_without_a_graph)
{
    zf_tensor none = ZF_NONE;
    CHECK(t,
          !zf_add(none, none).graph && !zf_reshape(none, ZF_SCALAR).graph && !zf_sum(none).graph);
    CHECK(t, !zf_slice(none, 0, 0, 0).graph && !zf_concat(&none, 1, 0).graph &&
                 !zf_concat(NULL, 3, 0).graph);
    CHECK(t,
          !zf_output(none, "y").graph && !zf_fail(none, "no").graph && !zf_dropout(none, 0).graph);
    CHECK(t, !zf_input(NULL, "x", ZF_F32, ZF_SCALAR).graph &&
                 !zf_param(NULL, "x", ZF_SCALAR, NULL).graph);
    CHECK(t, !zf_constant(NULL, ZF_F32, ZF_SCALAR, 0).graph && !zf_max_ex(none, NULL).graph);
    CHECK(t,
          !zf_layer_norm(none, none, none, 0).graph && !zf_cross_entropy(none, none, none).graph);
    zf_push(NULL, "x");
    zf_pop(NULL);
    zf_graph_free(NULL);
    CHECK(t, zf_graph_status(NULL) == ZF_ERR_ARGUMENT && zf_graph_hash(NULL) &&
                 zf_graph_text(NULL, NULL, 0) == 0);
    CHECK_TEXT(t, zf_graph_error(NULL), "there is no graph");
    CHECK(t, zf_graph_print(NULL, stdout) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_autograd(NULL, none) == ZF_ERR_ARGUMENT && zf_simplify(NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_clip(NULL, 1) == ZF_ERR_ARGUMENT && zf_sgd(NULL, none, NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_adamw(NULL, none, NULL) == ZF_ERR_ARGUMENT &&
                 zf_lamb(NULL, none, NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_memory(NULL, NULL) == ZF_ERR_ARGUMENT && !zf_compile(NULL, NULL));
    CHECK(t, !zf_valid(zf_gradient(NULL, none)));
}

TEST(graph_two_graphs_do_not_mix)
{
    net a = net_new(t), b = net_new(t);
    zf_tensor y;
    NEED(t, a.g, NULL);
    NEED(t, b.g, NULL);
    y = zf_add(a.x, b.x), line = __LINE__;
    OK(t, zf_graph_status(a.g) == ZF_ERR_NOMEM ? ZF_ERR_NOMEM : ZF_OK, zf_graph_error(a.g));
    OK(t, zf_graph_status(b.g), zf_graph_error(b.g)); /* the other graph is none the worse */
    CHECK_TEXT(
        t, zf_graph_error(a.g),
        with_line("add in net (graph.c:LINE): operand 1 is a tensor of another graph", line));
    CHECK(t, y.graph == a.g && !zf_valid(y));
    zf_pop(b.g);
    GIVES(t, zf_autograd(b.g, a.x), ZF_ERR_ARGUMENT, zf_graph_error(b.g));
    CHECK_TEXT(t, zf_graph_error(b.g), "zf_autograd: the loss is no tensor of this graph");
}

/* An operation that changes nothing adds no node. */
TEST(graph_builders_leave_out_what_does_nothing)
{
    n = net_new(t);
    NEED(t, n.g, NULL);
    CHECK(t, zf_cast(n.x, ZF_F32).id == n.x.id && zf_dropout(n.x, 0).id == n.x.id);
    CHECK(t, zf_reshape(n.x, ZF_SHAPE(2, -1)).id == n.x.id && zf_slice(n.x, -1, 0, 3).id == n.x.id);
    CHECK(t, zf_pad(n.x, 0, 0, 0).id == n.x.id && zf_broadcast(n.x, ZF_SHAPE(2, 3)).id == n.x.id);
    CHECK(t, zf_sum_to(n.i, ZF_SHAPE(2)).id == n.i.id);
    OK(t, zf_graph_status(n.g), zf_graph_error(n.g));
}

TEST(graph_axes_count_from_either_end)
{
    zf_shape shape;
    n = net_new(t);
    NEED(t, n.g, NULL);
    shape = zf_tensor_shape(zf_transpose(n.q, -1, 0));
    CHECK(t, t->refused || (shape.dims[0] == 4 && shape.dims[1] == 3 && shape.dims[2] == 2));
    shape = zf_tensor_shape(zf_sum_ex(n.q, &(zf_reduce_desc){.axis = -2}));
    CHECK(t, t->refused || (shape.rank == 2 && shape.dims[0] == 2 && shape.dims[1] == 4));
    shape = zf_tensor_shape(zf_mean_ex(n.q, &(zf_reduce_desc){.axis = -1, .keep = true}));
    CHECK(t, t->refused || (shape.rank == 3 && shape.dims[2] == 1));
    shape = zf_tensor_shape(zf_concat((zf_tensor[]){n.q, n.q}, 2, -1));
    CHECK(t, t->refused || shape.dims[2] == 8);
    shape = zf_tensor_shape(zf_pad(zf_slice(n.q, -3, 1, 2), -1, 2, 3));
    CHECK(t, t->refused || (shape.dims[0] == 1 && shape.dims[2] == 9));
    OK(t, zf_graph_status(n.g), zf_graph_error(n.g));
}

TEST(graph_hash_is_that_of_the_text)
{
    net a = net_new(t), b = net_new(t);
    uint64_t before;
    NEED(t, a.g, NULL);
    NEED(t, b.g, NULL);
    OK(t, zf_graph_status(a.g), zf_graph_error(a.g));
    OK(t, zf_graph_status(b.g), zf_graph_error(b.g));
    before = zf_graph_hash(a.g);
    CHECK(t, before == zf_graph_hash(b.g) && before == zf_graph_hash(a.g));
    zf_scale(a.x, 0.5);
    OK(t, zf_graph_status(a.g), zf_graph_error(a.g));
    CHECK(t, zf_graph_hash(a.g) != before);
    zf_scale(b.x, 0.25);
    OK(t, zf_graph_status(b.g), zf_graph_error(b.g));
    CHECK(t, zf_graph_hash(a.g) != zf_graph_hash(b.g));
}

/* Two graphs whose builders are called in two orders, as compilers may order nested calls. */
TEST(graph_hash_does_not_depend_on_the_order_of_calls)
{
    uint64_t hashes[2];
    for (int k = 0; k < 2; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(2)), y[2];
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        for (int i = 0; i < 2; i++) y[i ^ k] = i ^ k ? zf_tanh(x) : zf_exp(x);
        zf_output(zf_sub(y[0], y[1]), "y");
        OK(t, zf_fuse(g, &(zf_fuse_desc){0}), zf_graph_error(g));
        hashes[k] = zf_graph_hash(g);
    }
    CHECK(t, hashes[0] == hashes[1]);
}

/* The hash of one small graph, fixed: the same on every machine and in every later version, or a
 * reason is given. */
TEST(graph_hash_is_the_same_everywhere)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    uint64_t hash = 0xcbf29ce484222325u;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    CHECK(t, zf_graph_hash(g) == hash); /* of no text */
    zf_input(g, "x", ZF_F32, ZF_SHAPE(2));
    OK(t, zf_graph_status(g), zf_graph_error(g));
    for (const char *c = "%1 = input \"x\" : f32[2]\n"; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    CHECK(t, zf_graph_hash(g) == hash);
}

TEST(graph_text_fits_what_it_is_given)
{
    static const char whole[] = "%1 = input \"x\" : f32[2]\n";
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    char text[64];
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_input(g, "x", ZF_F32, ZF_SHAPE(2));
    OK(t, zf_graph_status(g), zf_graph_error(g));
    for (size_t size = 0; size < sizeof text; size++) {
        size_t length = strlen(whole), kept = size == 0 ? 0 : size - 1 < length ? size - 1 : length;
        memset(text, '#', sizeof text);
        CHECK(t, zf_graph_text(g, text, size) == length);
        CHECK(t, !memcmp(text, whole, kept) && (size == 0 || text[kept] == '\0'));
        for (size_t i = size; i < sizeof text; i++) CHECK(t, text[i] == '#');
    }
    CHECK(t, zf_graph_text(g, NULL, 10) == strlen(whole));
}

/* A file gets the same text, and one that cannot be written is an error. */
TEST(graph_prints_to_a_file)
{
    const char *path = test_path("graph.zf");
    char text[64] = "", expected[64];
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_status good, bad;
    FILE *file;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_input(g, "x", ZF_F32, ZF_SHAPE(2));
    OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, (file = fopen(path, "w")) != NULL);
    good = zf_graph_print(g, file);
    fclose(file);
    CHECK(t, (file = fopen(path, "r")) != NULL);
    bad = zf_graph_print(g, file); /* it is open for reading */
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    remove(path);
    zf_graph_text(g, expected, sizeof expected);
    CHECK(t, good == ZF_OK && bad == ZF_ERR_IO);
    CHECK_TEXT(t, text, expected);
}

/* What one thread of graph_many_threads builds: true when all went well. */
static void *build_one(void *good)
{
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(2, 3));
    zf_tensor w = zf_param(g, "w", ZF_SHAPE(3, 4), NULL);
    zf_tensor loss = zf_mean(zf_gelu(zf_matmul(x, w)));
    zf_program *p = NULL;
    if (!zf_autograd(g, loss) && !zf_simplify(g)) p = zf_compile(g, NULL);
    *(bool *)good = p && !write_seeded(p, x) && !zf_step(p);
    zf_program_free(p);
    zf_graph_free(g);
    return NULL;
}

/* Graphs of their own on threads of their own have nothing in common. */
TEST_ONCE(graph_many_threads)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    bool good[THREADS] = {false};
    for (int round = 0; round < 10; round++) {
        int made = 0;
        while (made < THREADS && !pthread_create(&threads[made], NULL, build_one, &good[made]))
            made++;
        for (int k = 0; k < made; k++) pthread_join(threads[k], NULL);
        for (int k = 0; k < THREADS; k++) CHECK(t, good[k]);
    }
}

/* Many operands: the list is longer than any fixed one. */
TEST(graph_concatenates_many)
{
    enum { MANY = 300 };
    zf_tensor all[MANY];
    n = net_new(t);
    NEED(t, n.g, NULL);
    for (int k = 0; k < MANY; k++) all[k] = k % 2 ? n.x : n.d;
    CHECK(t, !zf_valid(zf_concat(all, MANY, 0)));
    net_free(t, &n);
    n = net_new(t);
    NEED(t, n.g, NULL);
    for (int k = 0; k < MANY; k++) all[k] = n.x;
    all[0] = zf_concat(all, MANY, 0);
    OK(t, zf_graph_status(n.g), zf_graph_error(n.g));
    CHECK(t, zf_tensor_shape(all[0]).dims[0] == 2 * MANY);
}

TEST(graph_keeps_what_passes_made)
{
    zf_tensor loss, again, gradient;
    n = net_new(t);
    NEED(t, n.g, NULL);
    loss = zf_sum(zf_mul(n.q, n.q));
    again = zf_sum(zf_mul(n.q, n.q));
    zf_output(again, "again");
    zf_pop(n.g);
    OK(t, zf_autograd(n.g, loss), zf_graph_error(n.g));
    gradient = zf_gradient(n.g, n.q);
    CHECK(t, zf_valid(gradient) && zf_tensor_shape(gradient).rank == 3);
    OK(t, zf_simplify(n.g), zf_graph_error(n.g));
    CHECK(t, zf_valid(again) &&
                 zf_graph_find(n.g, "again").id == zf_graph_find(n.g, "loss").id); /* merged */
    CHECK(t, zf_valid(zf_gradient(n.g, n.q)));
    zf_output(zf_gradient(n.g, n.q), "gradient");
    OK(t, zf_sgd(n.g, zf_constant(n.g, ZF_F32, ZF_SCALAR, 0.1), NULL), zf_graph_error(n.g));
    zf_output(zf_scale(loss, 2), "twice"); /* only its nodes follow */
    OK(t, zf_memory(n.g, NULL), zf_graph_error(n.g));
    n.x = zf_neg(n.x), line = __LINE__;
    CHECK_TEXT(
        t, zf_graph_error(n.g),
        with_line(
            "neg (graph.c:LINE): every value has its place in memory already: nothing can be added",
            line));
}
