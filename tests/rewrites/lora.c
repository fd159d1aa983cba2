#define _POSIX_C_SOURCE 200809L
/* LoRA as a pass: equal bits at every stage, world, prefetch, offload and after an interruption;
 * what frozen parameters cost; adapters that are merged. */
#include "../support/numbers.h"

#include <sys/stat.h>
#include <unistd.h>

/* Two layers of an attention's projections and of a norm: q [out, in], o [in, out] with a bias. */
static const char model[] = "%1 = input \"x\" : f32[6,40]\n"
                            "%2 = param \"layer.0.q.weight\" {init=normal b=0.3} : f32[40,40]\n"
                            "%3 = param \"layer.0.v.weight\" {init=normal b=0.3} : f32[40,40]\n"
                            "%4 = param \"layer.0.norm.weight\" {init=ones} : f32[40]\n"
                            "%5 = param \"layer.1.o.weight\" {init=normal b=0.3} : f32[40,60]\n"
                            "%6 = param \"layer.1.o.bias\" {init=normal b=0.3} : f32[60]\n"
                            "%7 = param \"head.weight\" {init=normal b=0.3} : f32[8,60]\n"
                            "%8 = input \"lr\" : f32[]\n"
                            "%9 = linear %1, %2 : f32[6,40]\n"
                            "%10 = linear %1, %3 : f32[6,40]\n"
                            "%11 = mul %9, %10 : f32[6,40]\n"
                            "%12 = mul %11, %4 : f32[6,40]\n"
                            "%13 = matmul %12, %5 : f32[6,60]\n"
                            "%14 = add %13, %6 : f32[6,60]\n"
                            "%15 = tanh %14 : f32[6,60]\n"
                            "%16 = linear %15, %7 : f32[6,8]\n"
                            "%17 = mul %16, %16 : f32[6,8]\n"
                            "%18 = reshape %17 {shape=[48]} : f32[48]\n"
                            "%19 = sum %18 : f32[]\n"
                            "      output %19 \"loss\"\n";

/* The same kind of model over weights of 8 and 4 bits, and over floats. */
#define BEFORE_WEIGHTS                                                                             \
    "%1 = input \"x\" : f32[6,64]\n"                                                               \
    "%4 = param \"layer.0.norm.weight\" {init=ones} : f32[64]\n"                                  \
    "%6 = param \"layer.1.o.bias\" {init=normal b=0.3} : f32[128]\n"                              \
    "%8 = input \"lr\" : f32[]\n"
#define BEHIND_PRODUCTS                                                                            \
    "%17 = mul %16, %16 : f32[6,8]\n"                                                              \
    "%18 = reshape %17 {shape=[48]} : f32[48]\n"                                                   \
    "%19 = sum %18 : f32[]\n"                                                                      \
    "      output %19 \"loss\"\n"

static const char
    quantised[] = BEFORE_WEIGHTS
    "%2 = param \"layer.0.q.weight\" {init=normal b=0.2 frozen=true bits=8 block=64} : u8[64,68]\n"
    "%3 = param \"layer.0.v.weight\" {init=normal b=0.2 frozen=true bits=4 block=64 scale=bf16} : "
    "u8[64,34]\n"
    "%5 = param \"layer.1.o.weight\" {init=normal b=0.2 frozen=true bits=8 block=64 scale=bf16} : "
    "u8[128,66]\n"
    "%7 = param \"head.weight\" {init=uniform a=-0.3 b=0.3 frozen=true bits=4 block=128} : u8[8,68]\n"
    "%9 = quantized_linear %1, %2 {bits=8 block=64} : f32[6,64]\n"
    "%10 = quantized_linear %1, %3 {bits=4 block=64 scale=bf16} : f32[6,64]\n"
    "%11 = mul %9, %10 : f32[6,64]\n"
    "%12 = mul %11, %4 : f32[6,64]\n"
    "%14 = quantized_linear %12, %5, %6 {bits=8 block=64 scale=bf16} : f32[6,128]\n"
    "%15 = tanh %14 : f32[6,128]\n"
    "%16 = quantized_linear %15, %7 {bits=4 block=128} : f32[6,8]\n" BEHIND_PRODUCTS,
    floats[] = BEFORE_WEIGHTS "%2 = param \"layer.0.q.weight\" : f32[64,64]\n"
                              "%3 = param \"layer.0.v.weight\" : f32[64,64]\n"
                              "%5 = param \"layer.1.o.weight\" : f32[128,64]\n"
                              "%7 = param \"head.weight\" : f32[8,128]\n"
                              "%9 = linear %1, %2 : f32[6,64]\n"
                              "%10 = linear %1, %3 : f32[6,64]\n"
                              "%11 = mul %9, %10 : f32[6,64]\n"
                              "%12 = mul %11, %4 : f32[6,64]\n"
                              "%14 = linear %12, %5, %6 : f32[6,128]\n"
                              "%15 = tanh %14 : f32[6,128]\n"
                              "%16 = linear %15, %7 : f32[6,8]\n" BEHIND_PRODUCTS;

/* Products of three experts, [out, in] and [in, out]. */
static const char of_experts[] =
    "%1 = input \"x\" : f32[6,40]\n"
    "%2 = param \"gate.weight\" {init=normal b=0.3} : f32[3,40]\n"
    "%3 = linear %1, %2 : f32[6,3]\n"
    "%4 = route %3 {k=2 normalize=true} : f32[6,2]\n%5 = saved %4 : i32[6,2]\n"
    "%6 = expert_rows %5 {experts=3 rows=12} : i32[12]\n%7 = saved %6 : i32[3,2]\n"
    "%8 = saved %6 {index=1} : i32[6,2]\n"
    "%9 = dispatch %1, %6, %8 : f32[12,40]\n"
    "%10 = param \"experts.v.weight\" {init=normal b=0.3} : f32[3,16,40]\n"
    "%11 = grouped_linear %9, %10, %7 : f32[12,16]\n"
    "%12 = tanh %11 : f32[12,16]\n"
    "%13 = param \"layer.1.o.weight\" {init=normal b=0.3} : f32[3,16,20]\n"
    "%14 = grouped_linear %12, %13, %7 {transpose=true} : f32[12,20]\n"
    "%15 = combine %14, %6, %8, %4 : f32[6,20]\n"
    "%16 = mul %15, %15 : f32[6,20]\n%17 = reshape %16 {shape=[120]} : f32[120]\n"
    "%18 = sum %17 : f32[]\n%19 = input \"lr\" : f32[]\n"
    "      output %18 \"loss\"\n";

/* Parameters, states and losses after five steps by the passes `before`, and by `before` and
 * `after`, are equal. */
static bool same_bits(test *t, const char *text, const char *before, const char *after)
{
    char line[800], why[600] = "";
    numbers one = {0}, many = {0};
    zf_error error = {ZF_OK, ""};
    const char *folder = test_path("lora");
    numbers_desc d = {
        .steps = 5, .fast = true, .no_gradients = true, .seed = 7, .offload_dir = folder};
    char *plain, *other;
    bool good;
    mkdir(folder, 0700);
    snprintf(line, sizeof line, "%s; %s", before, after);
    plain = text_after(t, text, before);
    other = plain ? text_after(t, text, line) : NULL;
    d.slots = 4;
    good = other && numbers_of(&one, plain, &d, &error) && numbers_of(&many, other, &d, &error) &&
           numbers_compare(&one, &many, "", why, sizeof why) > 12;
    if (!good)
        test_fail(t, __FILE__, __LINE__, line, *why ? why : *error.text ? error.text : "too few");
    numbers_free(&one);
    numbers_free(&many);
    free(plain);
    free(other);
    rmdir(folder); /* there are no files left in it */
    return good;
}

/* One run in four micro-batches on one rank, and every stage on 1, 2 and 4 ranks with as many
 * parts, with budgets of prefetch, offload, precision, clipping and recomputation in turn. */
TEST_ONCE(lora_keeps_the_bits)
{
    static const char *const loras[] = {"lora rank=3 alpha=5 dropout=0.2 targets=q,v",
                                        "lora rank=2",
                                        "lora rank=4 dropout=0.1 targets=layer.1.o,v dora"},
                             *const precisions[] = {"", "precision bf16; ",
                                                    "precision f16 scale=200000 hysteresis=1; "},
                             *const kinds[] = {"", "offload parameters=host; ", "",
                                               "offload optimizer=disk; ",
                                               "offload parameters=disk optimizer=host; "};
    int n = 0;
    for (int world = 1; world <= 4; world *= 2)
        for (int stage = 0; stage < 4; stage++, n++) {
            const bool whole = world > 1 && (stage == 1 || stage == 2);
            char before[300], after[300];
            snprintf(before, sizeof before, "%s; %sautograd loss; %sadamw lr weight_decay=0.1%s%s",
                     loras[n % 3], precisions[n / 2 % 3], n % 3 == 1 ? "clip 0.5; " : "",
                     n % 2 ? "; fuse" : "", n % 5 == 1 ? "; recompute layers" : "");
            snprintf(after, sizeof after,
                     "zero stage=%d world=%d micro_batches=%d bucket=%d; %sprefetch bytes=%d; "
                     "memory threads=1; verify",
                     stage, world, 4 / world, n % 3 ? 20000 : 1, kinds[whole ? n % 2 * 3 : n % 5],
                     n % 4 * 5000);
            CHECK(t, same_bits(t, model, before, after));
        }
}

/* The same over weights of few bits. */
TEST_ONCE(lora_over_records_keeps_the_bits)
{
    static const char *const before[] = {
        "lora rank=3 dropout=0.2 targets=q,v; autograd loss; clip 0.5; adamw lr; fuse",
        "lora rank=2; precision bf16; autograd loss; adamw lr",
        "lora rank=2; autograd loss; adamw lr; recompute layers",
    };
    static const char offloaded[] = "zero stage=3 world=4 micro_batches=1 bucket=1; "
                                    "offload parameters=disk optimizer=host; prefetch bytes=5000";
    static const char *const after[] = {
        "zero stage=3 world=2 micro_batches=2; prefetch bytes=5000",
        offloaded,
        "zero stage=2 world=2 micro_batches=2 bucket=20000",
        "zero stage=1 world=4 micro_batches=1; offload optimizer=disk",
        "zero stage=0 world=2 micro_batches=2; offload parameters=host",
        "zero stage=3 world=1 micro_batches=4",
    };
    for (int n = 0; n < 6; n++) {
        char line[300];
        snprintf(line, sizeof line, "%s; memory threads=%d; verify", after[n], 1 + n % 2);
        CHECK(t, same_bits(t, quantised, before[n % 3], line));
    }
}

/* Parameters that ranks send as integers of 8 bits: those of records are sent as they are. */
TEST(lora_over_records_sends_them_as_they_are)
{
    char *text = text_after(t, quantised,
                             "lora rank=2; autograd loss; adamw lr; zero stage=3 world=2 "
                             "quantized_weights; memory");
    const char *at = text;
    int gathers = 0, dequantised = 0;
    CHECK(t, text);
    for (; (at = strstr(at, "= all_gather ")); at++) gathers++;
    for (at = text; (at = strstr(at, "= dequantize ")); at++) dequantised++;
    free(text);
    CHECK(t, gathers > dequantised && dequantised > 0);
}

/* Frozen parameters have no gradients, no states and no reduction; at stage 3 a rank holds its part
 * of them. */
TEST(lora_frozen_parameters_cost_nothing_else)
{
    enum { A = 2 * 40, B = 2 * 40, PAIRS = 2 };
    zf_error error = {ZF_OK, ""};
    zf_plan plan[2] = {{.nodes = 0}, {.nodes = 0}};
    zf_graph *graphs[2];
    for (int sharded = 0; sharded < 2; sharded++) {
        zf_graph *g = graphs[sharded] = zf_graph_parse(
            model, strlen(model), &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_training training = {.lora = {.rank = 2, .targets = "q,v"},
                                .zero = {.stage = sharded ? 3 : 0, .world = 2}};
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        training.loss = zf_graph_find(g, "loss");
        OK(t, zf_passes(g, &training), zf_graph_error(g));
        for (int32_t k = 0; k < zf_param_count(g); k++) {
            zf_tensor param = zf_param_at(g, k);
            char state[300];
            bool trained = strstr(zf_tensor_name(param), ".lora_") != NULL;
            snprintf(state, sizeof state, "adamw.m/%s", zf_tensor_name(param));
            CHECK(t, zf_valid(zf_graph_find(g, state)) == trained);
        }
        OK(t, zf_memory(g, NULL), zf_graph_error(g));
        OK(t, zf_graph_plan(g, &plan[sharded]), zf_graph_error(g));
    }
    /* One bucket of four tensors, each padded to a block of 1024, shared by two ranks */
    CHECK(t, plan[0].traffic.all_reduce.calls == 1 + 1); /* and the loss */
    CHECK(t, plan[0].traffic.all_reduce.bytes < 4 * 1024 * 4 + 100);
    CHECK(t, plan[0].traffic.reduce_scatter.calls == 0 && plan[0].traffic.all_gather.calls == 0);
    CHECK(t, plan[1].traffic.reduce_scatter.bytes < 4 * 1024 * 4);
    CHECK(t, plan[1].traffic.all_gather.bytes > 2 * 40 * 40 * 4);
    CHECK(t, plan[1].most[ZF_PARAMETERS] < plan[0].most[ZF_PARAMETERS] * 3 / 4);
}

typedef struct trial {
    zf_graph *graph;
    zf_program *program; /* NULL after a failed check */
} trial;

/* A program over a model, perhaps with an adapter. */
static trial trial_with(test *t, const char *text, zf_store *store, const zf_lora_desc *lora, bool trains)
{
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_parse(text, strlen(text),
                                 &(zf_graph_desc){.allocator = t->allocator}, &error);
    zf_training training = {.optimizer = ZF_ADAMW, .keep_gradients = true};
    zf_program *p;
    if (!g) {
        test_unwind(t, __FILE__, __LINE__, "a graph", error.status, error.text);
        return (trial){NULL, NULL};
    }
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    if (lora) training.lora = *lora;
    if (trains) training.loss = zf_graph_find(g, "loss");
    zf_passes(g, &training);
    p = zf_compile(g, &(zf_compile_desc){.store = store, .evaluate = !trains});
    if (!p) test_unwind(t, __FILE__, __LINE__, "zf_compile", zf_graph_status(g), zf_graph_error(g));
    else test_defer(t, (test_cleanup *)zf_program_free, p);
    return (trial){g, p};
}

/* `adapts`: with an adapter of two modules. */
static trial trial_over(test *t, const char *text, zf_store *store, bool adapts, bool trains)
{
    static const zf_lora_desc of_two = {.rank = 3, .alpha = 5, .targets = "v,layer.1.o"};
    return trial_with(t, text, store, adapts ? &of_two : NULL, trains);
}

static trial trial_of(test *t, zf_store *store, bool adapts, bool trains)
{
    return trial_over(t, model, store, adapts, trains);
}

static zf_store *store_of(test *t)
{
    zf_error error = {ZF_OK, ""};
    zf_store *store = zf_store_new(&(zf_store_desc){.seed = 3, .allocator = t->allocator}, &error);
    if (store) test_defer(t, (test_cleanup *)zf_store_free, store);
    else test_unwind(t, __FILE__, __LINE__, "zf_store_new", error.status, error.text);
    return store;
}

/* The loss of one step on fixed data; NAN after a failed check. */
static float step(test *t, trial of, float rate)
{
    zf_graph *g = of.graph;
    zf_program *p = of.program;
    float x[6 * 40], loss = NAN;
    for (int i = 0; i < 6 * 40; i++) x[i] = (float)(i * 7 % 31 - 15) / 23;
    if (zf_write(p, zf_graph_find(g, "x"), x, sizeof x) ||
        zf_write(p, zf_graph_find(g, "lr"), &rate, sizeof rate) || zf_step(p) ||
        zf_read(p, zf_graph_find(g, "loss"), &loss, sizeof loss))
        test_unwind(t, __FILE__, __LINE__, "a step", ZF_ERR_BACKEND, zf_program_error(p));
    return loss;
}

static bool is_adapter(void *user, const zf_stored *tensor)
{
    (void)user;
    return tensor->state || strstr(tensor->name, ".lora_");
}

/* The base in one checkpoint, the adapter with its states in another: training goes on with the
 * same bits. */
TEST_ONCE(lora_goes_on_with_the_same_bits)
{
    const char *base = test_path("lora-base"), *path = test_path("lora-adapter");
    zf_store *stores[2] = {store_of(t), store_of(t)};
    trial p[2];
    float loss[2] = {0};
    CHECK(t, stores[0] && stores[1] && trial_of(t, stores[0], false, false).program);
    OK(t, zf_save(stores[0], base, NULL), zf_store_error(stores[0]));
    CHECK(t, (p[0] = trial_of(t, stores[0], true, true)).program);
    for (int k = 0; k < 3; k++) step(t, p[0], 0.01f);
    OK(t, zf_save(stores[0], path, &(zf_save_desc){.select = is_adapter}),
       zf_store_error(stores[0]));
    OK(t, zf_load(stores[1], base, &(zf_load_desc){.params_only = true}),
       zf_store_error(stores[1]));
    CHECK(t, (p[1] = trial_of(t, stores[1], true, true)).program);
    OK(t, zf_load(stores[1], path, &(zf_load_desc){.merge = true}), zf_store_error(stores[1]));
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < 2; k++) loss[r] = step(t, p[r], 0.01f);
    CHECK(t, zf_store_step(stores[0]) == 5 && zf_store_step(stores[1]) == 5);
    CHECK(t, !memcmp(&loss[0], &loss[1], sizeof loss[0]));
    for (int32_t k = 0; k < zf_param_count(p[0].graph); k++) {
        const char *name = zf_tensor_name(zf_param_at(p[0].graph, k));
        float x[2][2400];
        size_t bytes = zf_tensor_bytes(zf_param_at(p[0].graph, k));
        for (int r = 0; r < 2; r++)
            OK(t, zf_store_read(stores[r], name, x[r], bytes), zf_store_error(stores[r]));
        CHECK(t, !memcmp(x[0], x[1], bytes));
    }
}

/* Merged, the base alone gives the loss that it gave with the adapter; so does the program with the
 * adapter, whose B is zeros then. */
static void check_merged(test *t, const char *text)
{
    zf_store *store = store_of(t);
    trial train, adapted, base;
    float with, without, merged, still, b[60 * 3];
    CHECK(t, store && (train = trial_over(t, text, store, true, true)).program);
    CHECK(t, (adapted = trial_over(t, text, store, true, false)).program &&
                 (base = trial_over(t, text, store, false, false)).program);
    without = step(t, base, 0);
    for (int k = 0; k < 5; k++) step(t, train, 0.03f);
    with = step(t, adapted, 0);
    CHECK(t, step(t, base, 0) == without && fabsf(with - without) > 0.05f * without);
    OK(t, zf_lora_merge(store, &(zf_lora_desc){.rank = 3, .alpha = 5}), zf_store_error(store));
    merged = step(t, base, 0), still = step(t, adapted, 0);
    CHECK_NEAR(t, merged, with, 1e-5 * with);
    CHECK_NEAR(t, still, with, 1e-5 * with);
    OK(t, zf_store_read(store, "layer.1.o.lora_B.weight", b, sizeof b), zf_store_error(store));
    for (int k = 0; k < 60 * 3; k++) CHECK(t, b[k] == 0);
}

TEST(lora_merged_gives_the_same)
{
    check_merged(t, model);
    check_merged(t, of_experts);
}

/* What zf_lora says of the products of experts. */
static void check_experts_refused(test *t, zf_lora_desc d, const char *says)
{
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_parse(of_experts, strlen(of_experts),
                                 &(zf_graph_desc){.allocator = t->allocator}, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    GIVES(t, zf_lora(g, &d), ZF_ERR_ARGUMENT, zf_graph_error(g));
    CHECK_TEXT(t, zf_graph_error(g), says);
}

/* All products are those with one matrix: of experts there are none among them. */
TEST(lora_of_experts_is_by_name)
{
    zf_store *store = store_of(t);
    const zf_lora_desc all = {.rank = 2};
    trial one;
    CHECK(t, store && (one = trial_with(t, of_experts, store, &all, false)).program);
    CHECK(t, zf_valid(zf_graph_find(one.graph, "gate.lora_A.weight")) &&
                 !zf_valid(zf_graph_find(one.graph, "experts.v.lora_A.weight")));
    check_experts_refused(t, (zf_lora_desc){.targets = "v", .dropout = 0.1},
                          "zf_lora: \"experts.v.weight\" has matrices of experts, for which there is "
                          "no dropout: targets must leave it out, or dropout must be 0");
    check_experts_refused(t, (zf_lora_desc){.targets = "layer.1.o", .dora = true},
                          "zf_lora: \"layer.1.o.weight\" has matrices of experts, for which there is "
                          "no dora: targets must leave it out, or dora must be 0");
}

/* Magnitudes begin as the lengths of the weights, with which nothing changes, and are merged with the
 * products: rows of v, columns of layer.1.o. */
TEST(lora_magnitudes_begin_and_are_merged)
{
    static const zf_lora_desc desc = {.rank = 3, .targets = "v,layer.1.o", .dora = true, .name = "a"};
    zf_store *store = store_of(t);
    trial train, adapted, base;
    float before, with, without, merged, still, length[60], row[60], column[60] = {0};
    CHECK(t, store && (train = trial_with(t, model, store, &desc, true)).program);
    CHECK(t, (adapted = trial_with(t, model, store, &desc, false)).program &&
                 (base = trial_of(t, store, false, false)).program);
    CHECK(t, step(t, adapted, 0) != step(t, base, 0));
    OK(t, zf_lora_magnitudes(train.program), zf_program_error(train.program));
    before = step(t, adapted, 0), without = step(t, base, 0);
    CHECK_NEAR(t, before, without, 1e-5 * without);
    for (int k = 0; k < 5; k++) step(t, train, 0.03f);
    with = step(t, adapted, 0);
    CHECK(t, fabsf(with - without) > 0.05f * without);
    OK(t, zf_lora_merge(store, &(zf_lora_desc){.name = "a"}), zf_store_error(store));
    merged = step(t, base, 0), still = step(t, adapted, 0);
    CHECK_NEAR(t, merged, with, 1e-5 * with);
    CHECK_NEAR(t, still, with, 1e-5 * with);
    OK(t, zf_store_read(store, "layer.1.o.lora_magnitude_vector.a.weight", length, sizeof length),
       zf_store_error(store));
    for (int r = 0; r < 40; r++) {
        float w[40 * 60];
        OK(t, zf_store_read(store, "layer.1.o.weight", w, sizeof w), zf_store_error(store));
        memcpy(row, w + 60 * r, sizeof row);
        for (int c = 0; c < 60; c++) column[c] += row[c] * row[c];
    }
    for (int c = 0; c < 60; c++) CHECK_NEAR(t, length[c], sqrtf(column[c]), 1e-5 * length[c]);
}

/* Gives the floats of `to`, f64, the numbers that the parameters of `from` have. */
static bool take_numbers(zf_store *to, zf_store *from, zf_graph *g)
{
    bool good = true;
    for (int32_t k = 0; k < zf_param_count(g) && good; k++) {
        zf_tensor param = zf_param_at(g, k);
        const zf_quantize_desc blocks = zf_param_blocks(param);
        static unsigned char bytes[1 << 16];
        static float x[1 << 14];
        static double wide[1 << 14];
        const size_t count = (size_t)zf_shape_count(zf_param_shape(param));
        good = !zf_store_read(from, zf_tensor_name(param), bytes, zf_tensor_bytes(param));
        if (blocks.bits) good = good && !zf_dequantize_values(x, bytes, count, &blocks);
        else memcpy(x, bytes, count * sizeof *x);
        for (size_t i = 0; i < count; i++) wide[i] = x[i];
        good = good && !zf_store_write(to, zf_tensor_name(param), wide, count * sizeof *wide);
    }
    return good;
}

/* A step of fixed data; the loss of an f64 graph, or of one of f32. */
static double step_over(test *t, trial of)
{
    zf_graph *g = of.graph;
    zf_program *p = of.program;
    const bool wide = zf_tensor_dtype(zf_graph_find(g, "x")) == ZF_F64;
    double x[6 * 64], rate = 0.01, loss = NAN;
    float narrow[6 * 64], narrow_rate = 0.01f, narrow_loss = NAN;
    for (int i = 0; i < 6 * 64; i++) x[i] = narrow[i] = (float)(i * 7 % 31 - 15) / 32;
    rate = narrow_rate;
    if (zf_write(p, zf_graph_find(g, "x"), wide ? (void *)x : narrow,
                 wide ? sizeof x : sizeof narrow) ||
        zf_write(p, zf_graph_find(g, "lr"), wide ? (void *)&rate : &narrow_rate,
                 wide ? sizeof rate : sizeof narrow_rate) ||
        zf_step(p) ||
        zf_read(p, zf_graph_find(g, "loss"), wide ? (void *)&loss : &narrow_loss,
                wide ? sizeof loss : sizeof narrow_loss))
        test_unwind(t, __FILE__, __LINE__, "a step", ZF_ERR_BACKEND, zf_program_error(p));
    return wide ? loss : narrow_loss;
}

/* How far a value of the f32 program is from that of the f64 one: normalised squared error. */
static double value_off(trial narrow, trial wide, const char *name)
{
    static float x[1 << 14];
    static double y[1 << 14];
    double off = 0, all = 0;
    zf_tensor of = zf_graph_find(narrow.graph, name), to = zf_graph_find(wide.graph, name);
    const int64_t count = zf_shape_count(zf_tensor_shape(of));
    if (zf_read(narrow.program, of, x, zf_tensor_bytes(of)) ||
        zf_read(wide.program, to, y, zf_tensor_bytes(to)))
        return INFINITY;
    for (int64_t i = 0; i < count; i++) off += (x[i] - y[i]) * (x[i] - y[i]), all += y[i] * y[i];
    return all > 0 ? off / all : INFINITY;
}

/* Adapters over weights of few bits are trained as over the floats that these stand for, in f64:
 * gradients, and twenty steps. */
TEST_ONCE(lora_over_records_is_that_over_their_numbers)
{
    char *text = text_in_f64(floats), name[300];
    zf_store *stores[2] = {store_of(t), store_of(t)};
    trial narrow, wide;
    CHECK(t, text);
    test_defer(t, free, text);
    CHECK(t, stores[0] && stores[1] &&
                 (narrow = trial_over(t, quantised, stores[0], true, true)).program &&
                 (wide = trial_over(t, text, stores[1], true, true)).program);
    CHECK(t, take_numbers(stores[1], stores[0], narrow.graph));
    for (int k = 0; k < 20; k++) {
        const double loss = step_over(t, narrow), truth = step_over(t, wide);
        CHECK_NEAR(t, loss, truth, 1e-5 * truth);
        for (int32_t i = 0; i < zf_param_count(narrow.graph) && (k == 1 || k == 19); i++) {
            const char *param = zf_tensor_name(zf_param_at(narrow.graph, i));
            if (!strstr(param, ".lora_")) continue;
            snprintf(name, sizeof name, "gradient/%s", param);
            CHECK(t, value_off(narrow, wide, name) < 1e-8);
            CHECK(t, value_off(narrow, wide, param) < 1e-8);
        }
    }
}

TEST(lora_merge_that_fits_nothing)
{
    zf_store *store = store_of(t);
    CHECK(t, store && trial_of(t, store, false, false).program);
    GIVES(t, zf_lora_merge(store, NULL), ZF_ERR_MISMATCH, zf_store_error(store));
    CHECK_TEXT(t, zf_store_error(store),
               "zf_lora_merge: the store has no parameter NAME.lora_A.weight");
    CHECK(t, trial_of(t, store, true, false).program);
    GIVES(t, zf_lora_merge(store, &(zf_lora_desc){.rank = 4}), ZF_ERR_MISMATCH,
          zf_store_error(store));
    CHECK_TEXT(t, zf_store_error(store),
               "zf_lora_merge: layer.0.v.weight is f32[40,40], A f32[3,40] and B f32[40,3]; they "
               "must be [out, in], [rank, in] and [out, rank], of the rank that is given");
    CHECK(t, zf_lora_merge(NULL, NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, (store = store_of(t)) && trial_over(t, of_experts, store, true, false).program);
    GIVES(t, zf_lora_merge(store, &(zf_lora_desc){.rank = 4}), ZF_ERR_MISMATCH,
          zf_store_error(store));
    CHECK_TEXT(t, zf_store_error(store),
               "zf_lora_merge: experts.v.weight is f32[3,16,40], A f32[3,3,40] and B f32[3,16,3]; "
               "they must be [experts, out, in], [experts, rank, in] and [experts, out, rank], of "
               "the rank that is given");
    CHECK(t, (store = store_of(t)) && trial_over(t, quantised, store, true, false).program);
    GIVES(t, zf_lora_merge(store, NULL), ZF_ERR_DTYPE, zf_store_error(store));
    CHECK_TEXT(t, zf_store_error(store),
               "zf_lora_merge: \"layer.0.v.weight\" is quantised: merge into a store that has it as "
               "floats");
}

/* ---------------------------------------------------------------------------------------- by name */

/* A program over the store with the adapter `name`, which keeps the norm. */
static trial named(test *t, zf_store *store, const char *name, int64_t rank, bool trains)
{
    zf_error error = {ZF_OK, ""};
    zf_graph *g =
        zf_graph_parse(model, strlen(model), &(zf_graph_desc){.allocator = t->allocator}, &error);
    zf_training d = {.name = trains ? name : NULL,
                     .lora = {.name = name, .rank = rank, .targets = "q,v", .keep = "norm"}};
    zf_program *p;
    if (!g) {
        test_unwind(t, __FILE__, __LINE__, "a graph", error.status, error.text);
        return (trial){NULL, NULL};
    }
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    if (trains) d.loss = zf_graph_find(g, "loss");
    zf_passes(g, &d);
    p = zf_compile(g, &(zf_compile_desc){.store = store, .evaluate = !trains});
    if (!p) test_unwind(t, __FILE__, __LINE__, "zf_compile", zf_graph_status(g), zf_graph_error(g));
    else test_defer(t, (test_cleanup *)zf_program_free, p);
    return (trial){g, p};
}

/* A name changes no number; a copy has the values of what it was made of, and stays as it is. */
TEST(lora_by_name_is_that_without)
{
    zf_store *plain = store_of(t), *store = store_of(t);
    trial one, actor, ref;
    float loss[2], before;
    char name[80];
    CHECK(t, plain && store && (one = named(t, plain, NULL, 3, true)).program);
    CHECK(t, (actor = named(t, store, "actor", 3, true)).program &&
                 (ref = named(t, store, "ref", 3, false)).program);
    for (int k = 0; k < 3; k++) {
        loss[0] = step(t, one, 0.03f), loss[1] = step(t, actor, 0.03f);
        CHECK(t, loss[0] == loss[1]);
    }
    OK(t, zf_lora_copy(store, "ref", "actor"), zf_store_error(store));
    before = step(t, ref, 0);
    CHECK(t, before < loss[0] && before == step(t, actor, 0.03f));
    step(t, actor, 0.03f);
    CHECK(t, step(t, ref, 0) == before && step(t, actor, 0) < before);
    for (int32_t k = 0; k < zf_param_count(actor.graph); k++) {
        const zf_tensor param = zf_param_at(actor.graph, k);
        const char *of = zf_param_adapter(param);
        zf_param_plain_name(param, name, sizeof name);
        CHECK(t, zf_valid(zf_graph_find(one.graph, name)));
        CHECK(t, !of == !zf_param_adapter(zf_graph_find(one.graph, name)));
        CHECK(t, !of || (!strcmp(of, "actor") && strstr(zf_tensor_name(param), ".actor.")));
        CHECK(t, of || !strcmp(name, zf_tensor_name(param)));
    }
    CHECK(t, !zf_param_adapter(ZF_NONE) && zf_store_find(store, "layer.0.norm.weight") < 0);
    CHECK(t, !strcmp(zf_store_at(store, zf_store_find(store, "layer.0.norm.ref.weight")).adapter, "ref"));
    { /* A checkpoint says of which adapter a parameter is. */
        const char *path = test_path("lora-named");
        zf_store *loose = store_of(t);
        OK(t, zf_save(store, path, NULL), zf_store_error(store));
        CHECK(t, loose);
        OK(t, zf_load(loose, path, NULL), zf_store_error(loose));
        for (int32_t k = 0; k < zf_store_count(loose); k++) {
            const zf_stored here = zf_store_at(loose, k),
                            there = zf_store_at(store, zf_store_find(store, here.name));
            CHECK(t, !here.adapter == !there.adapter);
            CHECK(t, !here.adapter || !strcmp(here.adapter, there.adapter));
        }
    }
    OK(t, zf_lora_merge(store, &(zf_lora_desc){.name = "actor"}), zf_store_error(store));
    CHECK(t, zf_lora_merge(store, NULL) == ZF_ERR_MISMATCH);
}

TEST(lora_copy_that_fits_nothing)
{
    zf_store *store = store_of(t);
    CHECK(t, store && named(t, store, "actor", 3, false).program &&
                 named(t, store, "low", 2, false).program && trial_of(t, store, true, false).program);
    GIVES(t, zf_lora_copy(store, "critic", "actor"), ZF_ERR_ARGUMENT, zf_store_error(store));
    CHECK_TEXT(t, zf_store_error(store),
               "zf_lora_copy: the store has no adapter \"critic\"; a program that has been compiled "
               "over it must have one (zf_lora_desc.name)");
    GIVES(t, zf_lora_copy(store, "actor", "actor"), ZF_ERR_ARGUMENT, zf_store_error(store));
    CHECK_TEXT(t, zf_store_error(store),
               "zf_lora_copy: the adapter \"actor\" is both the one that changes and the one that is "
               "copied");
    GIVES(t, zf_lora_copy(store, "low", "actor"), ZF_ERR_MISMATCH, zf_store_error(store));
    CHECK_TEXT(t, zf_store_error(store),
               "zf_lora_copy: \"layer.0.q.lora_A.low.weight\" is f32[2,40] and "
               "\"layer.0.q.lora_A.actor.weight\" f32[3,40]");
    GIVES(t, zf_lora_copy(store, "actor", NULL), ZF_ERR_MISMATCH, zf_store_error(store));
    CHECK_TEXT(t, zf_store_error(store),
               "zf_lora_copy: for \"layer.0.q.lora_A.actor.weight\", f32[3,40], the store has no "
               "\"layer.0.q.lora_A.weight\"");
    CHECK(t, zf_lora_copy(NULL, "a", "b") == ZF_ERR_ARGUMENT);
}

/* Ranks and alphas of modules are numbers, of modules that are adapted. */
TEST(lora_numbers_that_fit_nothing)
{
    static const struct {
        zf_lora_desc d;
        const char *says;
    } bad[] = {
        {{.targets = "q", .ranks = "k:2"}, "zf_lora: ranks has \"k\", which is no module that is adapted"},
        {{.targets = "q", .ranks = "q:1.5"},
         "zf_lora: ranks has \"q\" without a rank above 0: MODULE:NUMBER,... is needed"},
        {{.targets = "q", .alphas = "q"},
         "zf_lora: alphas has \"q\" without a number: MODULE:NUMBER,... is needed"},
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        zf_output(zf_linear(zf_input(g, "x", ZF_F32, ZF_SHAPE(2, 4)),
                            zf_param(g, "q.weight", ZF_SHAPE(4, 4), NULL), ZF_NONE),
                  "y");
        (void)zf_lora(g, &bad[k].d);
        CHECK_TEXT(t, zf_graph_error(g), bad[k].says);
    }
}
