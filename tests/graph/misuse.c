/* What a caller can do wrong, call by call in the order of the public header: nothing crashes, and
 * the message names the mistake. Mistakes that need more than a line are tested with their
 * subject. */
#include "../support/test.h"

static zf_graph *new_graph(test *t)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    if (g) test_defer(t, (test_cleanup *)zf_graph_free, g);
    return g;
}

/* The expression sets the graph's error, which contains `part`. */
#define SAYS(t, expression, part)                                                                  \
    do {                                                                                           \
        zf_graph *g = new_graph(t);                                                                \
        zf_tensor x, out;                                                                          \
        NEED(t, g, NULL);                                                                          \
        x = zf_param(g, "x", ZF_SHAPE(4, 8), NULL);                                                \
        OK(t, zf_graph_status(g), zf_graph_error(g));                                              \
        out = (expression);                                                                        \
        CHECK(t, !zf_valid(out) && !zf_valid(x) == (zf_graph_status(g) == ZF_ERR_NOMEM));          \
        if (!strstr(zf_graph_error(g), part)) CHECK_TEXT(t, zf_graph_error(g), part);              \
    } while (0)

static zf_tensor pushed(zf_graph *g, const char *format)
{
    zf_push(g, format, 0);
    return (zf_tensor){g, 0};
}

TEST(misuse_of_builders)
{
    const zf_tensor nothing = zf_concat(NULL, 3, 0);
    CHECK(t, zf_shape_of(2, NULL).rank == -1 && zf_shape_of(0, NULL).rank == 0);
    SAYS(t, pushed(g, NULL), "the format is NULL");
    SAYS(t, zf_fail(x, NULL), "the format is NULL");
    SAYS(t, zf_values(g, ZF_F32, ZF_SHAPE(2), NULL), "takes 1 value or as many as elements, 2, not 0");
    SAYS(t, zf_add(x, zf_concat(&x, 0, 0)), "operand 1 is of a builder that had no graph");
    SAYS(t, zf_add(nothing, x), "operand 0 is of a builder that had no graph or no operands");
    SAYS(t, zf_add(x, zf_relu(ZF_NONE)), "operand 1 is of a builder that had no graph");
    SAYS(t, zf_add(x, zf_input(NULL, "y", ZF_F32, ZF_SCALAR)), "operand 1 is of a builder");
    SAYS(t, zf_add(x, ZF_NONE), "operand 1 is missing (ZF_NONE)");
    /* No optional operand that was left out */
    SAYS(t, zf_nn_attention(x, x, x, nothing, 0), "operand 1 is of a builder that had no graph");
    SAYS(t, zf_nn_attention(ZF_NONE, x, x, ZF_NONE, 0), "q is no tensor");
    SAYS(t, zf_cross_entropy(x, zf_input(g, "y", ZF_I32, ZF_SHAPE(4)), nothing),
         "operand 1 is of a builder that had no graph");
    SAYS(t, zf_add(x, zf_nn_linear(ZF_NONE, "a", 4, NULL)), "operand 1 is of a builder");
    SAYS(t, zf_add(x, zf_nn_layer_norm(ZF_NONE, "a", 0)), "operand 1 is of a builder");
    SAYS(t, zf_add(x, zf_nn_encoder_block(ZF_NONE, ZF_NONE, NULL)), "operand 1 is of a builder");
    SAYS(t, zf_nn_linear(x, NULL, 4, NULL), "a scope's whole name has 1 to 200 characters");
    SAYS(t, zf_nn_layer_norm(x, NULL, 0), "a scope's whole name has 1 to 200 characters");
    SAYS(t, zf_nn_embedding_table(g, NULL, 4, 4, NULL), "a scope's whole name");
}

/* The first of the parts of x. */
static zf_tensor first_of(zf_tensor x, int32_t axis, int32_t count)
{
    zf_tensor parts[8] = {ZF_NONE};
    zf_split(x, axis, count, parts);
    return parts[0].graph ? parts[0] : (zf_tensor){x.graph, 0};
}

/* The last of `count` elements, which a program has not set before. */
static zf_tensor last_of(zf_tensor x, int32_t axis, int32_t count)
{
    zf_tensor parts[4] = {x, x, x, x};
    zf_unstack(x, axis, count, parts);
    return parts[count - 1];
}

static zf_tensor split_into(zf_tensor x, zf_tensor *parts)
{
    zf_split(x, 0, 2, parts);
    return (zf_tensor){x.graph, 0};
}

TEST(misuse_of_parts_and_comparisons)
{
    SAYS(t, first_of(x, 0, 3), "split (misuse.c:");
    SAYS(t, first_of(x, 0, 3), "4 elements cannot be 3 equal parts");
    SAYS(t, first_of(x, 0, -1), "4 elements cannot be -1 equal parts");
    SAYS(t, split_into(x, NULL), "4 elements cannot be 2 equal parts; parts is NULL");
    SAYS(t, first_of(x, 2, 2), "axis 2 of a tensor of rank 2");
    SAYS(t, last_of(x, -3, 4), "axis -3 of a tensor of rank 2");
    SAYS(t, last_of(x, 0, 2), "unstack (misuse.c:");
    SAYS(t, last_of(x, 0, 2), "4 elements cannot be 2 parts of one");
    SAYS(t, last_of(x, 1, 3), "8 elements cannot be 3 parts of one");
    SAYS(t, zf_add(x, last_of(zf_relu(ZF_NONE), 0, 4)), "operand 1 is of a builder");
    SAYS(t, zf_add(x, first_of(ZF_NONE, 0, 2)), "operand 1 is");
    SAYS(t, zf_stack(&x, 1, 3), "axis 3 of a result of rank 3, which is at most 6");
    SAYS(t, zf_stack((zf_tensor[]){x, zf_sum(x)}, 2, 0), "tensor 1 must have the shape of tensor 0");
    SAYS(t, zf_add(x, zf_stack(NULL, 2, 0)), "operand 1 is of a builder that had no graph");
    SAYS(t, zf_pow(x, zf_cast(x, ZF_F64)), "the operands must have one dtype");
    SAYS(t, zf_pow(zf_cast(x, ZF_I32), zf_cast(x, ZF_I32)), "the operand must be float");
    SAYS(t, zf_greater(x, zf_cast(x, ZF_I32)), "the operands must have one dtype");
    SAYS(t, zf_sin(zf_cast(x, ZF_I64)), "the operand must be float");
    SAYS(t, zf_sum(zf_cast(x, ZF_U8)), "the operand must be float or integer");
}

TEST(misuse_of_convolutions)
{
#define OF(...) zf_input(g, "w", ZF_F32, ZF_SHAPE(__VA_ARGS__))
#define IMAGE   zf_input(g, "image", ZF_F32, ZF_SHAPE(2, 4, 8, 8))
#define LINE    zf_input(g, "line", ZF_F32, ZF_SHAPE(2, 4, 8))
#define BIAS(...) zf_input(g, "bias", ZF_F32, ZF_SHAPE(__VA_ARGS__))
    const zf_conv_desc negative = {.padding = {-1, 0}}, far = {.dilation = {1, 4}},
                       groups = {.groups = 3}, many = {.groups = INT64_MAX},
                       huge = {.stride = {INT64_MAX, 1}};
    SAYS(t, zf_conv2d(x, x, ZF_NONE, NULL), "it takes x [batch, channels, height, width] and w");
    SAYS(t, zf_conv2d(IMAGE, OF(6, 3, 3, 3), ZF_NONE, NULL), "x has 4 channels, w 3 of 1 groups");
    SAYS(t, zf_conv2d(IMAGE, OF(6, 1, 3, 3), ZF_NONE, &groups), "x has 4 channels, w 1 of 3 groups");
    SAYS(t, zf_conv2d(IMAGE, OF(6, 4, 3, 3), ZF_NONE, &many), "w 4 of 9223372036854775807 groups");
    SAYS(t, zf_conv2d(IMAGE, OF(6, 4, 9, 3), ZF_NONE, NULL),
         "9 taps 1 apart do not fit into height 8 with 0 before and after");
    SAYS(t, zf_conv2d(IMAGE, OF(6, 4, 3, 3), ZF_NONE, &far),
         "3 taps 4 apart do not fit into width 8 with 0 before and after");
    SAYS(t, zf_conv2d(IMAGE, OF(6, 4, 0, 3), ZF_NONE, NULL), "0 taps 1 apart do not fit");
    SAYS(t, zf_conv2d(IMAGE, OF(6, 4, 3, 3), ZF_NONE, &negative), "stride, pad and dilation are two");
    SAYS(t, zf_conv2d(IMAGE, OF(6, 4, 3, 3), ZF_NONE, &huge), "stride, pad and dilation are two");
    SAYS(t, zf_conv2d(IMAGE, OF(6, 4, 3, 3), x, NULL), "the bias must be [6], a number for each");
    SAYS(t, zf_conv2d(IMAGE, OF(6, 4, 3, 3), BIAS(1), NULL), "the bias must be [6], a number");
    SAYS(t, zf_conv2d(IMAGE, OF(6, 4, 3, 3), BIAS(2, 3), NULL), "the bias must be [6]");
    SAYS(t, zf_conv1d(IMAGE, OF(6, 4, 3), ZF_NONE, NULL), "it takes x [batch, channels, length]");
    SAYS(t, zf_conv1d(LINE, OF(6, 4, 1, 3), ZF_NONE, NULL), "it takes x [batch, channels, length]");
#undef OF
#undef IMAGE
#undef LINE
#undef BIAS
}

TEST(misuse_along_an_axis)
{
    const double nan = NAN;
#define INDEX(...) zf_input(g, "i", ZF_I32, ZF_SHAPE(__VA_ARGS__))
    SAYS(t, zf_cumsum(x, 2), "axis 2 of a tensor of rank 2");
    SAYS(t, zf_cumsum(zf_cast(x, ZF_U8), 0), "the operand must be float or integer");
    SAYS(t, zf_gather(x, x, 0), "the index must be i32 or i64");
    SAYS(t, zf_gather(x, INDEX(4, 7), 0), "the index must have the dimensions of operand 0 but for axis 0");
    SAYS(t, zf_gather(x, INDEX(4), 1), "the dimensions of operand 0 but for axis 1");
    SAYS(t, zf_scatter_add(x, INDEX(4, 7), 1, 3), "the index must have the shape of operand 0");
    SAYS(t, zf_scatter_add(x, INDEX(4, 8), 1, -3), "size = -3 must not be negative");
    SAYS(t, zf_scatter_add(zf_cast(x, ZF_I32), INDEX(4, 8), 1, 3), "operand 0 must be float");
    SAYS(t, zf_top_k(x, 9, NULL), "k = 9 of rows of 8 elements; 1 to 8 is possible");
    SAYS(t, zf_top_k(x, 0, NULL), "k = 0 of rows of 8 elements");
    SAYS(t, zf_top_k(zf_sum(x), 1, NULL), "a scalar has no rows");
    SAYS(t, zf_one_hot(x, 3, ZF_F32), "the index must be i32 or i64");
    SAYS(t, zf_one_hot(INDEX(2), 0, ZF_F32), "classes = 0 must be 1 or more, and the index has fewer than 6 dimensions");
    SAYS(t, zf_one_hot(INDEX(2), 3, (zf_dtype)99), "99 is no dtype");
    SAYS(t, zf_one_hot(INDEX(1 << 30), INT64_MAX, ZF_F32), "the result has more than 2^63 elements");
    SAYS(t, zf_random_uniform(x, 1, 0), "from 1 to 0; the numbers must be finite");
    SAYS(t, zf_random_uniform(INDEX(2), 0, 1), "the operand must be float");
    SAYS(t, zf_random_normal(x, 0, -1), "mean 0 and deviation -1 must be finite");
    SAYS(t, zf_random_normal(x, nan, 1), "mean nan and deviation 1 must be finite");
#undef INDEX
}

/* A parameter of few bits, [rows, columns]. */
static zf_tensor of_bits(zf_graph *g, int32_t bits, int64_t block, zf_dtype scale, int64_t columns)
{
    return zf_param(g, "q", ZF_SHAPE(3, columns),
                    &(zf_param_desc){.quantized = {bits, block, scale}});
}

TEST(misuse_of_few_bits)
{
    SAYS(t, of_bits(g, 5, 64, ZF_F32, 128), "bits is 5; it must be 8 or 4");
    SAYS(t, of_bits(g, 8, 65, ZF_F32, 130), "block is 65; it must be a multiple of 64, at most 2048");
    SAYS(t, of_bits(g, 4, 64, ZF_F16, 128), "scale must be f32 or bf16");
    SAYS(t, of_bits(g, 4, 64, ZF_F32, 130),
         "the last dimension must be whole blocks of 64 numbers");
    SAYS(t, zf_quantized_linear(x, of_bits(g, 8, 64, ZF_F32, 64), ZF_NONE,
                                &(zf_quantize_desc){.bits = 4, .block = 64}),
         "the weight is a parameter that is not quantised like this (zf_param_desc.quantized)");
}

TEST(misuse_of_weights_and_values)
{
#define LABELS zf_input(g, "y", ZF_I32, ZF_SHAPE(4))
    SAYS(t, zf_cross_entropy(x, LABELS, zf_input(g, "w", ZF_F32, ZF_SHAPE(4))),
         "): the weight must be a scalar; it has 1 dimensions");
    SAYS(t, zf_cross_entropy(x, LABELS, zf_input(g, "w", ZF_F32, ZF_SHAPE(1))),
         "the weight must be a scalar");
#undef LABELS
    SAYS(t, zf_state(g, "s", ZF_I32, ZF_SHAPE(2), NAN), "the value nan is no i32");
    SAYS(t, zf_state(g, "s", ZF_BOOL, ZF_SHAPE(2), INFINITY), "the value inf is no bool");
    SAYS(t, zf_constant(g, ZF_I64, ZF_SCALAR, -INFINITY), "the value -inf is no i64");
    SAYS(t, zf_values(g, ZF_U8, ZF_SHAPE(2), ((double[]){1, NAN})), "the value nan is no u8");
    SAYS(t,
         zf_param(g, "p", ZF_SHAPE(2), (&(zf_param_desc){.init = ZF_NORMAL, .std = 1e39})),
         "init needs finite values (of f32 at most 3.40282e+38)");
    SAYS(t,
         zf_param(g, "p", ZF_SHAPE(2),
                  (&(zf_param_desc){.init = ZF_UNIFORM, .low = -1e308, .high = 1e308})),
         "init needs finite values");
    SAYS(t,
         zf_param(g, "p", ZF_SHAPE(2),
                  (&(zf_param_desc){.dtype = ZF_F16, .init = ZF_FILL, .value = 65536})),
         "init needs finite values (of f16 at most 65504)");
    SAYS(t,
         zf_param(g, "p", ZF_SHAPE(2),
                  (&(zf_param_desc){.dtype = ZF_BF16, .init = ZF_FILL, .value = 3.4e38})),
         "init needs finite values (of bf16 at most 3.38953e+38)");
}

/* ----------------------------------------------------------------------------------- programs */

static zf_program *compiled(test *t, zf_graph *g, const zf_compile_desc *desc)
{
    zf_program *p = zf_compile(g, desc);
    if (p) test_defer(t, (test_cleanup *)zf_program_free, p);
    else test_unwind(t, __FILE__, __LINE__, "zf_compile", zf_graph_status(g), zf_graph_error(g));
    return p;
}

/* w -= rate (w - x), where the rate is half of an input, or the input itself. */
static zf_program *slope(test *t, bool derived, int64_t micro_batches, bool allow_nan)
{
    zf_graph *g = new_graph(t);
    zf_tensor w, d, lr;
    if (!g) return test_unwind(t, __FILE__, __LINE__, "graph", ZF_ERR_NOMEM, NULL), NULL;
    w = zf_param(g, "w", ZF_SHAPE(3), &(zf_param_desc){.init = ZF_FILL, .value = 8});
    d = zf_sub(w, zf_input(g, "x", ZF_F32, ZF_SHAPE(3)));
    lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    zf_input(g, "unused", ZF_F32, ZF_SHAPE(3));
    zf_input(g, "empty", ZF_F32, ZF_SHAPE(3, 0));
    if (derived) lr = zf_scale(lr, 0.5);
    zf_autograd(g, zf_output_ex(zf_scale(zf_sum(zf_mul(d, d)), 0.5), "loss",
                                &(zf_output_desc){.reduction = ZF_REDUCTION_SUM}));
    zf_sgd(g, lr, NULL);
    if (micro_batches > 1) zf_zero(g, &(zf_zero_desc){.micro_batches = micro_batches});
    return compiled(t, g, &(zf_compile_desc){.allow_nan = allow_nan});
}

static zf_graph *graph_of(test *t)
{
    return t->deferred[t->deferred_count - 2].object; /* the program's is after it */
}

/* An input that is read must have been written once; others need not. */
TEST(misuse_steps_with_inputs_not_written)
{
    const float x[3] = {1, 2, 3}, lr = 0.5f;
    for (int64_t micro = 1; micro <= 2; micro++) {
        zf_program *p = slope(t, false, micro, false);
        zf_graph *g;
        zf_status (*const run)(zf_program *) = micro > 1 ? zf_micro : zf_step;
        char text[96];
        if (!p) return;
        g = graph_of(t);
        CHECK(t, run(p) == ZF_ERR_STAGE);
        snprintf(text, sizeof text,
                 "%s: the input \"x\" has not been written (zf_write), nor have others",
                 micro > 1 ? "zf_micro" : "zf_step");
        CHECK_TEXT(t, zf_program_error(p), text);
        OK(t, zf_write(p, zf_graph_find(g, "x"), x, sizeof x), zf_program_error(p));
        CHECK(t, run(p) == ZF_ERR_STAGE);
        snprintf(text, sizeof text, "%s: the input \"lr\" has not been written (zf_write)",
                 micro > 1 ? "zf_micro" : "zf_step");
        CHECK_TEXT(t, zf_program_error(p), text);
        OK(t, zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr), zf_program_error(p));
        if (micro > 1) OK(t, zf_micro(p), zf_program_error(p));
        OK(t, zf_step(p), zf_program_error(p));
        CHECK(t, zf_program_step(p) == 1);
    }
}

/* The parameters do not change, and with a finite rate training continues. */
TEST(misuse_of_learning_rates)
{
    const float x[3] = {1, 2, 3}, bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 12; k++) {
        zf_program *p = slope(t, k % 2, 1, k / 2 % 2);
        zf_graph *g;
        float lr = 0.5f, w[3];
        const char *error;
        if (!p) return;
        g = graph_of(t);
        OK(t, zf_write(p, zf_graph_find(g, "x"), x, sizeof x), zf_program_error(p));
        OK(t, zf_write(p, zf_graph_find(g, "lr"), &bad[k / 4], sizeof lr), zf_program_error(p));
        CHECK(t, zf_step(p) == ZF_ERR_ARGUMENT);
        error = zf_program_error(p);
        CHECK(t, !strncmp(error, "step 1: the learning rate %", 27));
        CHECK(t, strstr(error, k % 2 ? " scale is " : " lr is "));
        CHECK(t, strstr(error, "; it must be finite; parameters and states are as they were "
                               "before the step"));
        OK(t, zf_read(p, zf_graph_find(g, "w"), w, sizeof w), zf_program_error(p));
        CHECK(t, w[0] == 8 && w[1] == 8 && w[2] == 8 && zf_program_step(p) == 0);
        OK(t, zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr), zf_program_error(p));
        OK(t, zf_step(p), zf_program_error(p));
        OK(t, zf_read(p, zf_graph_find(g, "w"), w, sizeof w), zf_program_error(p));
        CHECK(t, w[0] == (k % 2 ? 6.25f : 4.5f));
    }
}

/* A communicator that only says who is who. */
TEST(misuse_of_communicators)
{
    const zf_comm who = {.world = 1};
    const zf_collective call = {.op = ZF_OP_all_reduce};
    zf_error error = {ZF_OK, ""};
    zf_graph *g = new_graph(t);
    zf_program *p;
    char text[128];
    NEED(t, g, NULL);
    zf_output(zf_exp(zf_param(g, "w", ZF_SHAPE(3), NULL)), "y");
    OK(t, zf_graph_status(g), zf_graph_error(g));
    if (!(p = compiled(t, g, &(zf_compile_desc){.comm = &who}))) return;
    CHECK(t, zf_step(p) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, zf_program_error(p),
               "the communicator cannot run anything (zf_comm.run is NULL); programs of such ranks "
               "run by zf_lockstep_step");
    CHECK(t, zf_compare_ranks(p) == ZF_ERR_ARGUMENT);
    OK(t, zf_lockstep_step(&(zf_lockstep_desc){&p, 1, 0}, &error), error.text);
    CHECK_TEXT(t, zf_collective_name(text, NULL), "no collective");
    CHECK_TEXT(t, zf_collective_text(text, NULL), "no collective");
    CHECK(t, zf_collective_check(&call, NULL, 1, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "a collective without a communicator");
    CHECK(t, zf_collective_check(NULL, &who, 1, NULL) == ZF_ERR_ARGUMENT);
}

/* Ranks in lockstep whose programs have run other steps; values without a place. */
TEST(misuse_of_lockstep)
{
    static const char text[] = "zero stage=0 world=2 micro_batches=1\n"
                               "%1 = param \"w\" : f32[4]\noutput %1 \"y\"\n";
    const zf_comm comms[2] = {{.rank = 0, .world = 2}, {.rank = 1, .world = 2}};
    zf_program *p[4];
    zf_error error = {ZF_OK, ""};
    for (int k = 0; k < 4; k++) {
        zf_graph *g =
            zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        if (!(p[k] = compiled(t, g, &(zf_compile_desc){.comm = &comms[k % 2]}))) return;
    }
    OK(t, zf_lockstep_step(&(zf_lockstep_desc){p, 2, 0}, &error), error.text);
    p[1] = p[3];
    GIVES(t, zf_lockstep_step(&(zf_lockstep_desc){p, 2, 0}, &error), ZF_ERR_STAGE, error.text);
    CHECK_TEXT(t, error.text,
               "lockstep: rank 1 is at step 0, micro-batch 0, rank 0 at 1, 0");
    error.status = ZF_OK;
    GIVES(t, zf_lockstep_read(&(zf_lockstep_desc){p + 2, 2, 0}, "w", NULL, 16, &error),
          ZF_ERR_ARGUMENT, error.text);
    CHECK_TEXT(t, error.text, "zf_lockstep_read: data is NULL");
}

/* A step with more parts than times can be noted of. */
TEST(misuse_of_times)
{
    static const char text[] = "zero stage=0 world=1 micro_batches=2000000000\n"
                               "%1 = param \"w\" : f32[4]\n%2 = neg %1 : f32[4]\noutput %2 \"y\"\n";
    zf_error error = {ZF_OK, ""};
    zf_graph *g =
        zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
    zf_program *p;
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    if (!(p = compiled(t, g, NULL))) return;
    CHECK(t, zf_measure(p, true) == ZF_ERR_LIMIT);
    CHECK_TEXT(t, zf_program_error(p), "zf_measure: too many micro-batches");
}

/* Steps of several parts in another order than theirs; ranks that are none. */
TEST(misuse_of_micro_batches)
{
    const float x[3] = {1, 2, 3}, lr = 0.5f;
    const zf_comm none = {.rank = 2, .world = 2}, two = {.rank = 0, .world = 2};
    zf_program *p = slope(t, false, 2, false);
    zf_graph *g;
    if (!p) return;
    g = graph_of(t);
    OK(t, zf_write(p, zf_graph_find(g, "x"), x, sizeof x), zf_program_error(p));
    OK(t, zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr), zf_program_error(p));
    GIVES(t, zf_step(p), ZF_ERR_STAGE, zf_program_error(p));
    CHECK_TEXT(t, zf_program_error(p),
               "zf_step: 0 of the step's 2 micro-batches have been run; "
               "zf_micro runs each but the last");
    OK(t, zf_micro(p), zf_program_error(p));
    GIVES(t, zf_micro(p), ZF_ERR_STAGE, zf_program_error(p));
    CHECK_TEXT(t, zf_program_error(p),
               "zf_micro: 1 of the step's 2 micro-batches have been run; "
               "zf_step runs the last one and the update");
    for (int k = 0; k < 2; k++) {
        g = new_graph(t);
        NEED(t, g, NULL);
        zf_output(zf_exp(zf_param(g, "w", ZF_SHAPE(3), NULL)), "y");
        zf_program_free(zf_compile(g, &(zf_compile_desc){.comm = k ? &two : &none}));
        GIVES(t, zf_graph_status(g), ZF_ERR_ARGUMENT, zf_graph_error(g));
        CHECK_TEXT(
            t, zf_graph_error(g),
            k ? "zf_compile: the graph is for 1 ranks (zf_zero_desc.world), the communicator "
                "(zf_compile_desc.comm) has 2"
              : "zf_compile: rank 2 of a world of 2");
    }
}

/* More than a machine has. */
TEST(misuse_of_machines)
{
    zf_error error = {ZF_OK, ""};
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.allocator = t->allocator}, &error);
    zf_store *store;
    zf_graph *g;
    zf_program *p;
    NEED(t, cpu, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    g = new_graph(t);
    NEED(t, g, NULL);
    zf_output(zf_exp(zf_input(g, "x", ZF_F32, ZF_SHAPE((int64_t)1 << 58))), "y");
    p = zf_compile(g, NULL);
    CHECK(t, !p && zf_graph_status(g) == ZF_ERR_NOMEM);
    if (!t->refused) CHECK(t, strstr(zf_graph_error(g), "out of memory: the arena takes "));
#if defined(__x86_64__)
    CHECK(t, !zf_cpu_backend(&(zf_cpu_desc){.isa = "neon", .allocator = t->allocator}, &error));
    if (!t->refused)
        CHECK(t, strstr(error.text, "zf_cpu_backend: this machine has no neon; its best is "));
#endif
    error = (zf_error){ZF_OK, ""};
    store = zf_store_new(&(zf_store_desc){.allocator = t->allocator}, &error);
    NEED(t, store, &error);
    test_defer(t, (test_cleanup *)zf_store_free, store);
    g = new_graph(t);
    NEED(t, g, NULL);
    zf_output(zf_exp(zf_param(g, "w", ZF_SHAPE(3), NULL)), "y");
    CHECK(t, !zf_compile(g, &(zf_compile_desc){.store = store, .host = cpu}));
    GIVES(t, zf_graph_status(g), ZF_ERR_ARGUMENT, zf_graph_error(g));
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_compile: the host's backend is not the store's (zf_store_desc); leave it out");
}

TEST_ONCE(misuse_of_layers)
{
    CHECK(t, zf_nn_train(NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_nn_train(&(zf_nn_train_desc){.steps = 1}) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_schedule_at(NULL, 1) == 0);
    CHECK(t, zf_schedule_at(&(zf_schedule){.kind = ZF_LINEAR,
                                           .peak = 1,
                                           .warmup = INT64_MIN,
                                           .steps = INT64_MAX},
                            1) == 0.5);
}

/* Layers of what is no tensor; k and y are tensors of the graph. */
TEST(misuse_of_layers_without_operands)
{
    static const char *const says[] = {"zf_nn_linear: x is no tensor",
                                       "zf_nn_layer_norm: x is no tensor",
                                       "zf_nn_rms_norm: x is no tensor",
                                       "zf_nn_attention: q is no tensor",
                                       "zf_nn_activation: 99 is no activation",
                                       "zf_nn_encoder_block: x is no tensor",
                                       "zf_nn_blocks: the layout has more than 1023 characters"};
    static char layout[1100];
    memset(layout, 'x', sizeof layout - 1);
    for (int which = 0; which < 7; which++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        const zf_tensor none = {g, 0};
        zf_tensor x;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        x = zf_input(g, "x", ZF_F32, ZF_SHAPE(1, 4, 8));
        if (which == 0) zf_nn_linear(none, "a", 3, NULL);
        if (which == 1) zf_nn_layer_norm(none, "a", 0);
        if (which == 2) zf_nn_rms_norm(none, "a", 0);
        if (which == 3) zf_nn_attention(none, x, x, ZF_NONE, 0);
        if (which == 4) zf_nn_activation(x, (zf_activation)99);
        if (which == 5) zf_nn_encoder_block(none, ZF_NONE, &(zf_nn_encoder_desc){.heads = 2});
        if (which == 6) zf_nn_blocks(g, layout, 64, 2, true);
        GIVES(t, zf_graph_status(g), ZF_ERR_ARGUMENT, zf_graph_error(g));
        if (!strstr(zf_graph_error(g), says[which])) CHECK_TEXT(t, zf_graph_error(g), says[which]);
    }
}

/* Reports on a run. */
TEST(misuse_of_reports)
{
    static char path[4097];
    zf_metrics m = {.count = ZF_SINKS};
    zf_sink sink = {.put = NULL};
    zf_report *r = zf_report_new("r", &t->allocator);
    struct {
        zf_status status;
        zf_error error;
        const char *says;
    } all[9] = {{ZF_OK, {ZF_OK, ""}, NULL}};
    int n = 0;
    NEED(t, r, NULL);
    test_defer(t, (test_cleanup *)zf_report_free, r);
    memset(path, 'x', sizeof path - 1);
#define GETS(call, text) all[n].status = (call), all[n].says = text, n++
    GETS(zf_metrics_add(&m, &sink, &all[n].error),
         "zf_metrics_add: a stream and a sink with `put` are needed");
    sink.put = (zf_status(*)(void *, const zf_metric *, int32_t, zf_error *))(uintptr_t)1;
    GETS(zf_metrics_add(&m, &sink, &all[n].error),
         "zf_metrics_add: the stream has 8 sinks, which is the most");
    GETS(zf_metrics_put(NULL, NULL, 1, &all[n].error),
         "zf_metrics_put: a stream and a list of metrics are needed");
    GETS(zf_progress_sink(&(zf_progress_desc){.out = NULL}, &sink, &all[n].error),
         "zf_progress_sink: a desc with `out`, and a place for the sink, are needed");
    GETS(zf_progress_sink(&(zf_progress_desc){.out = stderr, .steps = -1}, &sink, &all[n].error),
         "zf_progress_sink: wall_time must be finite, steps and first at least 0");
    GETS(zf_report_save(r, NULL, &all[n].error), "zf_report_save: a report and a path are needed");
    GETS(zf_report_sink(r, path, 0, &sink, &all[n].error),
         "zf_report_sink: a report, a place for the sink, and a path of at most 4095 bytes are "
         "needed");
    GETS(zf_trace_save(NULL, "x", &all[n].error), "zf_trace_save: a trace and a path are needed");
#undef GETS
    for (int k = 0; k < n; k++) {
        CHECK(t, all[k].status);
        CHECK_TEXT(t, all[k].error.text, all[k].says);
    }
}

/* -------------------------------------------------------------------------------------- files */

/* What is asked of a file's name, NULL, is ZF_ERR_ARGUMENT with that text. */
#define REFUSED(t, call, wanted)                                                                   \
    do {                                                                                           \
        zf_error error = {ZF_OK, ""};                                                              \
        (void)(call);                                                                              \
        if (t->refused && error.status == ZF_ERR_NOMEM) break;                                     \
        CHECK_TEXT(t, error.text, wanted);                                                         \
        CHECK(t, error.status == ZF_ERR_ARGUMENT);                                                 \
    } while (0)

TEST(misuse_of_files)
{
    zf_error error = {ZF_OK, ""};
    CHECK(t, zf_file_replace(NULL, "x", 1, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_file_replace: a path and data are needed");
    CHECK(t, zf_file_replace(test_path("none"), NULL, 1, &error) == ZF_ERR_ARGUMENT);
}

TEST(misuse_of_json)
{
    static const char text[] = "{\"a\": 1, \"s\": \"x\", \"b\": true}";
    zf_error none = {ZF_OK, ""};
    zf_json *j = zf_json_parse(text, sizeof text - 1, &t->allocator, &none);
    zf_json_writer *w;
    NEED(t, j, &none);
    test_defer(t, (test_cleanup *)zf_json_free, j);
    REFUSED(t, zf_json_read(NULL, &t->allocator, &error), "an empty path");
    REFUSED(t, zf_json_read("", &t->allocator, &error), "an empty path");
    CHECK(t, !zf_json_parse(NULL, 5, &t->allocator, NULL));
    zf_json_where(j, NULL, NULL);
    CHECK(t, !zf_json_member(j, NULL));
    REFUSED(t, zf_json_require(j, NULL, &error), "zf_json_require: the key is NULL");
    CHECK(t, !zf_json_to_bool(zf_json_member(j, "b"), NULL, &none));
    CHECK(t, !zf_json_to_int(zf_json_member(j, "a"), 0, 5, NULL, &none));
    CHECK(t, !zf_json_to_double(zf_json_member(j, "a"), 0, 5, NULL, &none));
    CHECK(t, !zf_json_to_string(zf_json_member(j, "s"), NULL, &none));
    CHECK(t, zf_json_to_int(zf_json_member(j, "s"), 0, 5, NULL, NULL) == ZF_ERR_FORMAT);
    CHECK(t, zf_json_fail(j, NULL, NULL) == ZF_ERR_FORMAT);
    CHECK(t, zf_json_expected(j, NULL, NULL) == ZF_ERR_FORMAT);
    w = zf_json_writer_new(0, &t->allocator);
    NEED(t, w, NULL);
    test_defer(t, (test_cleanup *)zf_json_writer_free, w);
    zf_json_put_int(w, 1);
    REFUSED(t, zf_json_save(w, NULL, &error), "an empty path");
    w = zf_json_writer_new(0, &t->allocator);
    NEED(t, w, NULL);
    test_defer(t, (test_cleanup *)zf_json_writer_free, w);
    zf_json_begin_object(w);
    zf_json_put_key(w, NULL);
    REFUSED(t, zf_json_text(w, NULL, &error), "JSON: a key is NULL");
}

static zf_safetensors_writer *new_writer(test *t, const char *path)
{
    zf_error error = {ZF_OK, ""};
    zf_safetensors_writer *w = zf_safetensors_writer_new(path, &t->allocator, &error);
    if (w) test_defer(t, (test_cleanup *)zf_safetensors_writer_free, w);
    else test_unwind(t, __FILE__, __LINE__, "a writer", error.status, error.text);
    return w;
}

TEST(misuse_of_safetensors)
{
    const char *path = test_path("misuse.safetensors");
    const float two[2] = {1, 2};
    zf_safetensors_writer *w;
    zf_safetensors *file;
    zf_error none = {ZF_OK, ""};
    REFUSED(t, zf_safetensors_open(NULL, &t->allocator, &error), "an empty path");
    REFUSED(t, zf_safetensors_writer_new(NULL, &t->allocator, &error), "an empty path");
    for (int k = 0; k < 4; k++) {
        const char *tail = strrchr(path, '/') + 1, *text;
        if (!(w = new_writer(t, path))) return;
        if (k == 0) zf_safetensors_put_metadata(w, NULL, "value");
        if (k == 1) zf_safetensors_put_metadata(w, "key", NULL);
        if (k == 2) zf_safetensors_declare(w, NULL, ZF_F32, ZF_SCALAR);
        if (k == 3) zf_safetensors_declare(w, "a", ZF_F32, ZF_SHAPE(2));
        if (k == 3) zf_safetensors_write(w, 0, NULL, 8);
        CHECK(t, zf_safetensors_finish(w, &none));
        if (t->refused) return;
        CHECK(t, none.status == ZF_ERR_ARGUMENT && strstr(none.text, tail));
        text = k == 3 ? ": the data of tensor 0 are NULL" : ": a name, key or value is NULL";
        CHECK_TEXT(t, strrchr(none.text, ':') ? strrchr(none.text, ':') : none.text, text);
        none = (zf_error){ZF_OK, ""};
    }
    if (!(w = new_writer(t, path))) return;
    OK(t, zf_safetensors_declare(w, "a", ZF_F32, ZF_SHAPE(2)), "declare");
    OK(t, zf_safetensors_write(w, 0, two, sizeof two), "write");
    OK(t, zf_safetensors_finish(w, &none), none.text);
    file = zf_safetensors_open(path, &t->allocator, &none);
    remove(path);
    NEED(t, file, &none);
    test_defer(t, (test_cleanup *)zf_safetensors_close, file);
    CHECK(t, zf_safetensors_find(file, NULL) == -1);
    CHECK(t, zf_safetensors_read(file, 0, NULL, 8, &none) == ZF_ERR_ARGUMENT);
    CHECK(t, strstr(none.text, "there is no room to read 8 bytes into"));
}
