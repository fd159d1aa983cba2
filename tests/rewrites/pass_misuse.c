/* What passes refuse, one wrong input for each: as text with the passes by name, or by calls. What
 * needs more than a line is tested with its subject. */
#include "../../tools/pass.h"
#include "../support/test.h"

#define X   "%1 = input \"x\" : f32[4,8]\n"
#define LR  "%2 = input \"lr\" : f32[]\n"
#define P   "%3 = param \"p\" : f32[4,8]\n"
#define Q   "%4 = param \"q\" : f32[4,8]\n"
#define TWO X LR P Q "%5 = neg %1 : f32[4,8]\n%6 = tanh %1 : f32[4,8]\n"
/* p and q with gradients. */
#define UPDATE TWO "gradient %3, %5\ngradient %4, %6\nupdate:\n"
#define SGD    "sgd %3, %5, %2\nsgd %4, %6, %2\n"
/* The sums of x p and x q. */
#define SUMS                                                                                       \
    X LR P Q "%5 = mul %1, %3 : f32[4,8]\n%6 = mul %1, %4 : f32[4,8]\n"                            \
             "%7 = reshape %5 {shape=[32]} : f32[32]\n%8 = reshape %6 {shape=[32]} : f32[32]\n"    \
             "%9 = sum %7 : f32[]\n%10 = sum %8 : f32[]\n"
#define LOSS SUMS "output %9 \"loss\"\n"
#define X50  "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

static const struct {
    const char *graph, *passes, *error;
} texts[] = {
    {"%1 = input \"x\" : f32[4]\noutput %1 \"y\"\n", "divide sections=-1",
     "zf_divide: -1 sections; 0 or more are needed"},
    {UPDATE "%7 = relu %1 : f32[4,8]\n%8 = mul %5, %7 : f32[4,8]\n"
            "sgd %3, %8, %2\nsgd %4, %6, %2\n",
     "zero stage=1 world=2", "it mixes elements of a parameter with another tensor"},
    {UPDATE "%8 = mul %5, %6 : f32[4,8]\nsgd %3, %8, %2\nsgd %4, %6, %2\n", "zero stage=1 world=2",
     "it mixes elements of two parameters, which may lie on two ranks"},
    {UPDATE "%8 = transpose %5 {order=[1,0]} : f32[8,4]\noutput %8 \"turned\"\n" SGD,
     "zero stage=1 world=2",
     "it reads the elements of a parameter or gradient in a way that cannot be cut over ranks"},
    {"%1 = input \"x\" : f32[]\n%2 = input \"lr\" : f32[]\n"
     "%3 = param \"p\" : f32[536870912,536870912]\n%4 = param \"q\" : f32[536870912,536870912]\n"
     "%5 = mul %3, %4 : f32[536870912,536870912]\n"
     "%6 = reshape %5 {shape=[288230376151711744]} : f32[288230376151711744]\n"
     "%7 = sum %6 : f32[]\noutput %7 \"loss\"\n",
     "autograd loss; sgd lr; zero world=2", "zf_zero: the parameters have 2^59 elements or more"},
    {SUMS "output %9 \"loss\" {reduction=none}\n", "autograd loss; sgd lr; zero world=2",
     "zf_zero: the output \"loss\", %9: a loss has a sum or a mean; ZF_REDUCTION_NONE is for other "
     "outputs"},
    {LOSS "%11 = max %8 : f32[]\noutput %11 \"most\"\n", "autograd loss; sgd lr; zero world=2",
     "the output \"most\", %11: how its values for 2 parts of the batch make one is not said: it "
     "is no sum, mean or ratio of sums over examples. Say ZF_REDUCTION_MEAN, _SUM or _NONE "
     "(zf_output_ex), or give zf_cross_entropy a weight"},
    {TWO "update:\n" SGD, "lora", "zf_lora: must come before updates: sgd"},
    {X "%3 = state \"s\" : f32[4,8]\n%4 = assign %3, %1 : f32[4,8]\noutput %4 \"y\"\n",
     "precision bf16",
     "zf_precision: must come before what changes parameters and states: assign"},
    {UPDATE "%7 = scale %2 {by=2} : f32[]\nsgd %3, %5, %2, %2 {scaled=true}\n"
            "sgd %4, %6, %2, %7 {scaled=true}\n",
     "delay",
     "zf_delay: sgd of \"q\" multiplies gradients by another number than the updates above"},
    {"mesh tensor=2\n" LOSS,
     "autograd loss; onebit_adam lr freeze_step=2 variant=1; zero stage=0 world=2",
     "zf_zero: 1-bit optimizers are for ranks along data alone, and these are a mesh of data=2 "
     "tensor=2"},
    {"mesh tensor=2\n" LOSS, "autograd loss; sgd lr; zero stage=1 world=2 quantized_gradients=true loco=true",
     "zf_zero: loco is for ranks along data alone, and these are a mesh of tensor=2"},
    {"mesh tensor=65536\n" LOSS, "autograd loss; sgd lr; zero world=65536",
     "zf_zero: world is 65536, of ranks along data, and with the other axes (tensor=65536) these "
     "are more than 2147483647"},
    {LOSS, "autograd loss; onebit_adam lr freeze_step=2 variant=1; delay",
     "zf_delay: adam_apply of \"p\" has no attribute scaled, by which the first update is left "
     "out"},
    {LOSS, "autograd loss; zero_one_adam lr variant=2 local_step_clipper=1",
     "zf_zero_one_adam: there is no variant 2; 0 is refresh, 1 sync, and local_step_clipper is 1"},
    {X P "%4 = masked_softmax %1, %3 {scale=1} : f32[4,8]\n%5 = reshape %4 {shape=[32]} : f32[32]\n"
         "%6 = sum %5 : f32[]\noutput %6 \"loss\"\n",
     "autograd loss", "masked_softmax: its bias has no gradient"},
    {"%1 = input \"x\" : f32[]\n%2 = input \"lr\" : f32[]\n%3 = param \"p\" : f64[]\n"
     "%4 = mul %3, %3 : f64[]\noutput %4 \"loss\"\n",
     "autograd loss; onebit_adam lr",
     "zf_onebit_adam: the parameter \"p\" is f64; signs are those of f32"},
    {X "%2 = param \"p\" {frozen=true bits=8 block=64} : u8[64,68]\n"
       "%3 = param \"w.weight\" : f32[8,64]\n%4 = matmul %1, %3 : f32[4,64]\n"
       "%5 = quantized_linear %4, %2 {bits=8 block=64} : f32[4,64]\noutput %5 \"y\"\n",
     "lora keep=p targets=w",
     "zf_lora: keep has \"p\", but \"p\" is frozen: it is not trained, as its numbers have few "
     "bits"},
    {X P "%4 = add %1, %3 : f32[4,8]\noutput %4 \"y\"\n", "lora",
     "zf_lora: the graph has no product with a weight that is a parameter of its own"},
    {X "%2 = param \"w.weight\" : f32[8,8]\n"
       "%3 = linear %1, %2 {activation=gelu} : f32[4,8]\noutput %3 \"y\"\n",
     "lora targets=w", "zf_lora: must come before zf_fuse, which has been run"},
    {X "%2 = param \"w.weight\" : f32[8,8]\n%3 = matmul %1, %2 : f32[4,8]\noutput %3 \"y\"\n",
     "lora targets=w dora",
     "zf_lora: with dora \"w.weight\" must be [out, in]: it is square, so nothing else says which "
     "lengths its magnitudes are"},
    {X P "%4 = param \"a.p\" : f32[4,8]\n%5 = param \"w.weight\" : f32[8,8]\n"
         "%6 = matmul %1, %5 : f32[4,8]\n%7 = add %6, %3 : f32[4,8]\n"
         "%8 = add %7, %4 : f32[4,8]\noutput %8 \"y\"\n",
     "lora name=a keep=p targets=w",
     "zf_lora: \"p\" would be called \"a.p\", which is the name of another value"},
    {X "%3 = param \"" X50 X50 X50 X50 X50 "\" : f32[4,8]\n%5 = param \"w.weight\" : f32[8,8]\n"
       "%6 = matmul %1, %5 : f32[4,8]\n%7 = add %6, %3 : f32[4,8]\noutput %7 \"y\"\n",
     "lora name=adapter keep=" X50 "* targets=w", "\", which is too long for a name"},
};

/* The last of the passes fails, with a part of the error. */
TEST(pass_misuse_in_text)
{
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        zf_error error = {ZF_OK, ""};
        char message[1024] = "";
        zf_graph *g = zf_graph_parse(texts[k].graph, strlen(texts[k].graph),
                                     &(zf_graph_desc){.allocator = t->allocator}, &error);
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        CHECK(t, pass_run(g, texts[k].passes, NULL, message, sizeof message) == PASS_FAILED);
        if (!strstr(message, texts[k].error)) CHECK_TEXT(t, message, texts[k].error);
    }
}

/* -------------------------------------------------------------------------------------- calls */

/* The loss of x w^T, where w [64,64] is a weight. */
static zf_tensor product(zf_graph *g)
{
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(4, 64)),
              w = zf_param(g, "w.weight", ZF_SHAPE(64, 64), NULL);
    return zf_output(zf_mean(zf_linear(x, w, ZF_NONE)), "loss");
}

static zf_tensor rate(zf_graph *g) { return zf_constant(g, ZF_F32, ZF_SCALAR, 1); }

static void variant(zf_graph *g) { zf_passes(g, &(zf_training){.loss = product(g), .variant = 5}); }

static void optimizer(zf_graph *g)
{
    zf_autograd(g, product(g));
    zf_optimize(g, &(zf_training){.optimizer = (zf_optimizer)99, .lr = rate(g)});
}

static void groups_of_inputs(zf_graph *g)
{
    const zf_tensor loss = product(g),
                    tensors[] = {zf_graph_find(g, "w.weight"), loss};
    zf_param_groups(g, &(zf_param_group){.tensors = tensors, .tensor_count = 2, .rate = 2}, 1);
}

static void groups_of_pieces(zf_graph *g)
{
    product(g);
    zf_tile(g, &(zf_tile_desc){.bytes = 4096});
    zf_param_groups(g, &(zf_param_group){.params = "w*", .rate = 2}, 1);
}

static void recompute(zf_graph *g)
{
    zf_autograd(g, product(g));
    zf_recompute(g, &(zf_training){.recompute.mode = (zf_recompute_mode)9});
}

TEST(pass_misuse_in_calls)
{
    static const struct {
        void (*run)(zf_graph *g);
        const char *error;
    } calls[] = {
        {variant, "zf_passes: there is no variant 5; a step of this description has 1 "
                  "(zf_variant_count)"},
        {optimizer, "zf_optimize: there is no optimizer 99"},
        {groups_of_inputs, "zf_param_groups: tensors[1] is no parameter of this graph"},
        {groups_of_pieces, "zf_param_groups: must come before zf_tile"},
        {recompute, "zf_recompute: there is no mode 9; the last one is 2"},
    };
    for (size_t k = 0; k < sizeof calls / sizeof *calls; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        calls[k].run(g);
        CHECK(t, zf_graph_status(g));
        if (!strstr(zf_graph_error(g), calls[k].error))
            CHECK_TEXT(t, zf_graph_error(g), calls[k].error);
    }
}

/* A step over two parameters, the second at half of the rate. */
static zf_program *step_over(test *t, zf_store *store, bool trains, const char **why)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_program *p = NULL;
    zf_tensor loss;
    if (!g) return NULL;
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    loss = zf_output(zf_add(zf_sum(zf_param(g, "p", ZF_SHAPE(8), NULL)),
                            zf_sum(zf_param(g, "q", ZF_SHAPE(8), NULL))),
                     "loss");
    if (trains) {
        zf_param_groups(g, &(zf_param_group){.params = "q", .rate = 0.5}, 1);
        zf_autograd(g, loss);
        zf_sgd(g, rate(g), NULL);
    }
    zf_zero(g, &(zf_zero_desc){.store = store});
    p = zf_compile(g, &(zf_compile_desc){.store = store});
    if (p) test_defer(t, (test_cleanup *)zf_program_free, p);
    *why = zf_graph_error(g);
    return p;
}

/* Buckets are those of the program that was compiled first. */
TEST(pass_misuse_of_buckets)
{
    const char *why = "";
    zf_program *first = step_over(t, NULL, false, &why);
    NEED(t, first, NULL);
    CHECK(t, !step_over(t, zf_program_store(first), true, &why));
    if (!strstr(why, "parameters of one bucket of the store (zf_zero_desc.store) have other rates, "
                     "betas or optimizers here: compile the program that trains them first, or give "
                     "its groups (zf_param_groups) to the program that was"))
        CHECK_TEXT(t, why, "");
}
