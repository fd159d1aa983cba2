/* Updates that multiply their gradients themselves (passes/fuse/update.c). */
#include "../support/numbers.h"

typedef enum scaling_rule { SCALING_SGD, SCALING_ADAMW, SCALING_LAMB, SCALING_RULES } scaling_rule;

typedef struct scaling_texts {
    char *plain, *fused;
    numbers numbers[2];
} scaling_texts;

static void scaling_close(void *object)
{
    scaling_texts *s = object;
    free(s->plain), free(s->fused);
    for (int k = 0; k < 2; k++) numbers_free(&s->numbers[k]);
    *s = (scaling_texts){.plain = NULL};
}

/* Two layers, one parameter of one element, gradients clipped to `clip`, one of the rules; NULL:
 * *error says why. `fused`: updates multiply. stage -1: without zf_zero. */
static char *scaling_text(zf_dtype dtype, scaling_rule rule, double clip, bool fused, int stage,
                          zf_error *error)
{
    zf_graph *g = zf_graph_new(NULL);
    zf_param_desc desc = {.dtype = dtype, .init = ZF_NORMAL, .std = 0.5};
    zf_tensor x = zf_input(g, "x", dtype, ZF_SHAPE(4, 40)), lr, loss;
    char *text = NULL;
    lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    x = zf_tanh(zf_matmul(x, zf_param(g, "w0", ZF_SHAPE(40, 33), &desc)));
    x = zf_add(x, zf_param(g, "b0", ZF_SHAPE(33), &desc));
    x = zf_matmul(x, zf_param(g, "w1", ZF_SHAPE(33, 5), &desc));
    loss = zf_sum(zf_mul(zf_mul(x, x), zf_param(g, "s", ZF_SHAPE(1), &desc)));
    zf_autograd(g, loss);
    zf_simplify(g);
    zf_clip(g, clip);
    if (rule == SCALING_SGD) zf_sgd(g, lr, &(zf_sgd_desc){.momentum = 0.9, .weight_decay = 0.1});
    if (rule == SCALING_ADAMW) zf_adamw(g, lr, &(zf_adamw_desc){.weight_decay = 0.1});
    if (rule == SCALING_LAMB) zf_lamb(g, lr, &(zf_lamb_desc){.weight_decay = 0.1});
    if (fused) zfi_fuse_updates(g);
    if (stage >= 0)
        zf_zero(g,
                &(zf_zero_desc){.stage = stage, .world = 2, .micro_batches = 1, .bucket_bytes = 1});
    if (!zf_graph_status(g)) text = text_of(g);
    *error = (zf_error){zf_graph_status(g), ""};
    snprintf(error->text, sizeof error->text, "%s", zf_graph_error(g));
    zf_graph_free(g);
    return text;
}

/* How often `what` is in the text. */
static int scaling_count(const char *text, const char *what)
{
    int count = 0;
    for (; (text = strstr(text, what)) != NULL; text++) count++;
    return count;
}

/* Both ways give the same bits in all that outlives a step. */
TEST_ONCE(fuse_updates_keeps_every_bit)
{
    static scaling_texts s;
    zf_error error = {ZF_OK, ""};
    test_defer(t, scaling_close, &s);
    for (int rule = 0; rule < SCALING_RULES; rule++)
        for (int wide = 0; wide < 2; wide++)
            for (int stage = -1; stage < 4; stage++) {
                zf_dtype dtype = wide ? ZF_F64 : ZF_F32;
                char why[400] = "";
                NEED(t, s.plain = scaling_text(dtype, rule, 0.01, false, stage, &error), &error);
                NEED(t, s.fused = scaling_text(dtype, rule, 0.01, true, stage, &error), &error);
                CHECK(t, scaling_count(s.plain, "scaled=true") == 0);
                CHECK(t, scaling_count(s.fused, "scaled=true") >= (stage < 0 ? 4 : 1));
                for (int k = 0; k < 2; k++)
                    OK(t,
                       numbers_of(
                           &s.numbers[k], k ? s.fused : s.plain,
                           &(numbers_desc){
                               .steps = 3, .fast = true, .no_gradients = true, .poison = true},
                           &error)
                           ? ZF_OK
                           : error.status,
                       error.text);
                if (numbers_compare(&s.numbers[0], &s.numbers[1], "", why, sizeof why) < 8)
                    test_fail(t, __FILE__, __LINE__, "other numbers", why);
                scaling_close(&s);
            }
}

/* A factor in 16 bits is replaced by the value from which it was rounded; products, and casts that
 * were only for them, are removed; gradient marks then name the unmultiplied gradient. */
TEST_ONCE(fuse_updates_leaves_nothing)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    static scaling_texts s;
    zf_error error = {ZF_OK, ""};
    test_defer(t, scaling_close, &s);
    for (int rule = 0; rule < SCALING_RULES; rule++)
        for (int d = 0; d < 3; d++) {
            NEED(t, s.plain = scaling_text(dtypes[d], rule, 0.01, false, -1, &error), &error);
            NEED(t, s.fused = scaling_text(dtypes[d], rule, 0.01, true, -1, &error), &error);
            CHECK(t, scaling_count(s.fused, "gradient %") == 4);
            CHECK(t, scaling_count(s.plain, " = mul ") == scaling_count(s.fused, " = mul ") + 4);
            CHECK(t, scaling_count(s.plain, " = cast ") ==
                         scaling_count(s.fused, " = cast ") + (d ? 4 : 0));
            CHECK(t, scaling_count(s.fused, "scaled=true") == 4);
            scaling_close(&s);
        }
}

/* The text of a step of sgd on one parameter, `gradient` being the lines that end in its gradient
 * %9, after the pass. */
static char *scaling_of(const char *gradient, zf_error *error)
{
    char text[1024], *after;
    zf_graph *g;
    snprintf(text, sizeof text,
             "%%1 = param \"w\" : f32[8]\n%%2 = input \"lr\" : f32[]\n%%3 = input \"g\" : f32[8]\n"
             "%%4 = constant {values=[1]} : f32[]\n%%5 = input \"n\" : f32[]\n"
             "update:\n%%6 = maximum %%5, %%4 : f32[]\n%%7 = div %%4, %%6 : f32[]\n"
             "%s\nsgd %%1, %%9, %%2\n",
             gradient);
    g = zf_graph_parse(text, strlen(text), NULL, error);
    if (!g) return NULL;
    zfi_fuse_updates(g);
    after = text_of(g);
    zf_graph_free(g);
    return after;
}

/* Nothing changes where something else reads the product, where the factor may be negative, or
 * where its other operand may change before it is read. */
TEST_ONCE(fuse_updates_knows_when_not_to)
{
    static const struct {
        const char *gradient;
        bool fused;
    } cases[] = {
        {"%9 = mul %3, %7 : f32[8]\ngradient %1, %9", true},
        {"%9 = mul %7, %3 : f32[8]", true},
        {"%9 = mul %3, %7 : f32[8]\noutput %9 \"y\"", false},
        {"%9 = mul %3, %7 : f32[8]\n%10 = block_norms %9 : f32[1]\noutput %10 \"y\"", false},
        {"%9 = mul %3, %5 : f32[8]", false},
        {"%9 = mul %1, %7 : f32[8]", false},
        {"%9 = add %3, %7 : f32[8]", false},
        {"%8 = sub %4, %6 : f32[]\n%9 = mul %3, %8 : f32[8]", false},
        {"%8 = broadcast %7 {shape=[8]} : f32[8]\n%9 = mul %3, %8 : f32[8]", false},
    };
    static scaling_texts s;
    zf_error error = {ZF_OK, ""};
    test_defer(t, scaling_close, &s);
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        NEED(t, s.fused = scaling_of(cases[n].gradient, &error), &error);
        if ((scaling_count(s.fused, "scaled=true") == 1) != cases[n].fused ||
            (scaling_count(s.fused, "%9") == 0) != cases[n].fused)
            test_fail(t, __FILE__, __LINE__, cases[n].gradient, s.fused);
        scaling_close(&s);
    }
}

/* An update that takes no more operands is not given one: an error, and the graph as it was. */
TEST(fuse_updates_finds_no_room)
{
    static const char text[] = "%1 = param \"w\" : f32[4]\n"
                               "%2 = input \"lr\" : f32[]\n"
                               "%3 = neg %1 : f32[4]\n"
                               "update:\n"
                               "sgd %1, %3, %2\n";
    enum { SGD_NODE = 4 };
    const zfi_record *records[ZF_OP_COUNT];
    zfi_record narrow = zfi_record_sgd;
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator},
                                 &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    CHECK(t, g->nodes[SGD_NODE].op == ZF_OP_sgd);
    memcpy(records, g->records, sizeof records);
    narrow.most = 3;
    records[ZF_OP_sgd] = &narrow;
    g->records = records;
    zfi_scale_update(g, SGD_NODE, 3, 2);
    g->records = zfi_records;
    CHECK_TEXT(t, zf_graph_error(g),
               "sgd: there is no room for a scale, since it takes 3 operands");
    CHECK(t, g->nodes[SGD_NODE].arg_count == 3);
}
