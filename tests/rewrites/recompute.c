/* Recomputation: the same bits with and without it, at every ZeRO stage; plans that stay within
 * limits and equal what is allocated; impossible limits; predicted FLOPs equal those that are
 * executed. */
#include "../../examples/bert/model.h"
#include "../../tools/pass.h"
#include "../support/numbers.h"

/* ------------------------------------------------------------------------------------- models */

/* A small BERT: LayerNorm after each half of a layer. */
static zf_tensor build_bert(zf_graph *g, double dropout, int64_t batch, int64_t tokens)
{
    bert_config config = {.vocab = 11,
                          .hidden = 16,
                          .layers = 3,
                          .heads = 2,
                          .intermediate = 32,
                          .positions = 32,
                          .types = 3,
                          .eps = 1e-12,
                          .dropout = dropout,
                          .attention_dropout = dropout,
                          .std = 0.02,
                          .pad = -1,
                          .tied = 1,
                          .nsp = 1};
    return bert_build(g, &config,
                      &(sample_shape){.batch = batch, .sequence = tokens, .predictions = 5}, SAMPLE_TRAIN)
        .loss;
}

/* Layers with LayerNorm in front of each half, after an embedding of bytes. */
static zf_tensor build_pre_norm(zf_graph *g, double dropout)
{
    const zf_nn_encoder_desc block = {.heads = 2,
                                      .dropout = dropout,
                                      .attention_dropout = dropout,
                                      .eps = 1e-5,
                                      .pre_norm = true};
    zf_tensor ids = zf_input(g, "ids", ZF_I32, ZF_SHAPE(4, 6)),
              labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(24)),
              weight = zf_input(g, "weight", ZF_F32, ZF_SCALAR);
    zf_tensor table = zf_nn_embedding_table(g, "table", 5, 8, NULL), x = zf_embedding(table, ids);
    zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    for (int k = 0; k < 3; k++) {
        zf_push(g, "h.%d", k);
        x = zf_nn_encoder_block(x, ZF_NONE, &block);
        zf_pop(g);
    }
    x = zf_reshape(zf_nn_layer_norm(x, "ln_f", 1e-5), ZF_SHAPE(24, 8));
    x = zf_matmul_ex(x, table, &(zf_matmul_desc){.transpose_b = true});
    return zf_output(zf_cross_entropy(x, labels, weight), "loss");
}

/* The text of a model, to be freed. */
static char *model_text(int which, double dropout)
{
    zf_graph *g = zf_graph_new(NULL);
    char *text;
    if (which) build_pre_norm(g, dropout);
    else build_bert(g, dropout, 3, 8);
    text = text_of(g);
    zf_graph_free(g);
    return text;
}

/* The text after the passes, to be freed; NULL with why. */
static char *after(const char *text, const char *passes, char *why, size_t size)
{
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_parse(text, strlen(text), NULL, &error);
    char *result = NULL;
    if (!g) snprintf(why, size, "%s", error.text);
    else if (pass_run(g, passes, NULL, why, size) == PASS_DONE) result = text_of(g);
    zf_graph_free(g);
    return result;
}

/* The peak of a placed graph's text. */
static long long peak_of(const char *text)
{
    const char *line = text ? strstr(text, "\npeak ") : NULL;
    return line ? atoll(line + 6) : -1;
}

/* --------------------------------------------------------------------------------------- bits */

/* Three steps of both have the same bits. */
static bool same_bits(const char *a, const char *b, numbers_desc d, numbers_desc e, int least,
                      char *why, size_t size)
{
    zf_error error = {ZF_OK, ""};
    numbers x = {0}, y = {0};
    bool good = numbers_of(&x, a, &d, &error) && numbers_of(&y, b, &e, &error);
    if (!good) snprintf(why, size, "%s", error.text);
    else good = numbers_compare(&x, &y, "", why, size) == x.count && x.count > least;
    numbers_free(&x);
    numbers_free(&y);
    return good;
}

/* Training passes, with fusion and in bf16 where asked for. */
static void training(char *line, size_t size, bool fused, const char *precision)
{
    snprintf(line, size, "%s%sautograd loss; simplify; clip 1; adamw lr weight_decay=0.01%s",
             precision, fused ? "fuse; " : "", fused ? "; fuse" : "");
}

/* `wide`: in f64. Reference kernels of f32 round the result of a fused node once where the fast
 * ones round xhat, and a value recomputed from xhat is rounded twice: they are left out with
 * fusion. */
static void check_bits(test *t, int which, double dropout, bool fused, const char *precision,
                       bool wide)
{
    char line[200], why[700] = "", what[900];
    char *built = model_text(which, dropout), *plain = wide ? text_in_f64(built) : built;
    char *kept, *placed = NULL, *again = NULL;
    long long most, least;
    training(line, sizeof line, fused, precision);
    kept = after(plain, line, why, sizeof why);
    if (kept) placed = after(kept, "memory", why, sizeof why);
    most = peak_of(placed);
    least = kept ? numbers_least_peak(kept) : -1;
    if (most < 0 || least < 0 || least >= most) test_fail(t, __FILE__, __LINE__, line, why);
    for (int k = 0; k <= 3 && kept; k++) {
        char passes[100] = "recompute layers";
        if (k % 3 && (wide || *precision)) continue; /* the extremes */
        if (k)
            snprintf(passes, sizeof passes, "recompute memory=%lld", most - (most - least) * k / 3);
        free(again);
        again = after(kept, passes, why, sizeof why);
        for (int fast = fused && !wide && !*precision; fast < 2; fast++) {
            if (!TEST_TAKES(k + which + fused + wide)) continue;
            numbers_desc d = {.steps = 3, .fast = fast}, e = {.steps = 3, .fast = fast};
            e.threads = 1 + k;
            if (again && strstr(again, " recompute\n") &&
                same_bits(kept, again, d, e, 20, why, sizeof why))
                continue;
            snprintf(what, sizeof what, "model %d, dropout %g, %s; %s, %s", which, dropout, line,
                     passes, fast ? "fast" : "reference");
            test_fail(t, __FILE__, __LINE__, what, again ? why : "no text");
        }
    }
    if (wide) free(plain);
    free(built);
    free(kept);
    free(placed);
    free(again);
}

TEST_ONCE(recompute_keeps_bits)
{
    for (int which = 0; which < 2; which++)
        for (int fused = 0; fused < 2; fused++) {
            check_bits(t, which, 0, fused, "", false);
            check_bits(t, which, 0.25, fused, "", false);
            check_bits(t, which, 0.25, fused, "", true);
            check_bits(t, which, 0.25, fused, "precision bf16; ", false);
        }
}

/* What makes a norm's result of xhat is placed where a recomputed product reads it first. The norm's
 * weight, a value as that of Gemma, is recomputed below it. */
TEST_ONCE(recompute_reads_what_is_above)
{
    static const char *const text =
        "%1 = input \"x\" : f32[4,8]\n%2 = input \"lr\" : f32[]\n"
        "%3 = param \"layer.0.w\" {init=normal b=0.5} : f32[8,8]\n"
        "%4 = param \"layer.0.g\" {init=normal b=0.2} : f32[8]\n"
        "%5 = constant {values=[1]} : f32[]\n"
        "%6 = param \"layer.0.v\" {init=normal b=0.5} : f32[8,8]\n"
        "%7 = param \"layer.0.beta\" {init=normal b=0.5} : f32[8]\n"
        "%8 = param \"layer.1.u\" {init=normal b=0.5} : f32[8]\n"
        "%9 = matmul %1, %3 {transpose_b=true} : f32[4,8]\n%10 = add %1, %9 : f32[4,8]\n"
        "%11 = moments %10 {eps=1e-05} : f32[4,2]\n%12 = add %4, %5 : f32[8]\n"
        "%13 = layer_norm %10, %11, %12, %7 : f32[4,8]\n"
        "%14 = matmul %13, %6 {transpose_b=true} : f32[4,8]\n%15 = tanh %14 : f32[4,8]\n"
        "%16 = matmul %15, %6 : f32[4,8]\n%17 = add %13, %8 : f32[4,8]\n"
        "%18 = add %16, %17 : f32[4,8]\n%19 = reshape %18 {shape=[32]} : f32[32]\n"
        "%20 = sum %19 : f32[]\noutput %20 \"loss\"\n";
    const numbers_desc d = {.steps = 3, .fast = true};
    char why[700] = "", *kept, *again = NULL;
    kept = after(text, "fuse; autograd loss; simplify; sgd lr; fuse", why, sizeof why);
    if (kept) again = after(kept, "recompute layers", why, sizeof why);
    if (!again || !strstr(again, " recompute\n") ||
        !same_bits(kept, again, d, d, 5, why, sizeof why))
        test_fail(t, __FILE__, __LINE__, "recompute layers", why);
    free(kept);
    free(again);
}

/* Ranks in lockstep: the bits of one rank that keeps everything and runs all parts of the global
 * batch. */
TEST_ONCE(recompute_keeps_bits_on_ranks)
{
    static const struct {
        int stage, world, micro;
        const char *prefetch;
    } rows[] = {{0, 2, 1, ""},
                {1, 2, 2, "; prefetch bytes=4096"},
                {2, 4, 1, ""},
                {2, 3, 1, "; prefetch bytes=100000"},
                {3, 2, 1, ""},
                {3, 2, 2, "; prefetch bytes=3000"},
                {3, 4, 1, "; prefetch bytes=1000000 memory=100000000"}};
    char line[200], why[700] = "", passes[300];
    for (int variant = 0; variant < 4; variant++) {
        int fused = variant % 2, which = variant / 2;
        char *plain = model_text(which, 0.25), *kept, *again;
        training(line, sizeof line, fused, "");
        kept = after(plain, line, why, sizeof why);
        for (size_t k = 0; k < sizeof rows / sizeof rows[0] && kept; k++)
            for (int layers = 0; layers < 2; layers++) {
                const int way = (int)k + layers + variant;
                if (way % 2 || !TEST_TAKES(way / 2)) continue;
                numbers_desc d = {.steps = 3,
                                  .fast = true,
                                  .slots = rows[k].world * rows[k].micro,
                                  .no_gradients = true};
                snprintf(passes, sizeof passes,
                         "recompute %s%.0lld; zero stage=%d world=%d micro_batches=%d "
                         "bucket=8192%s; memory threads=1; verify",
                         layers ? "layers memory=" : "memory=",
                         layers ? 1000000000LL : numbers_least_peak(kept), rows[k].stage,
                         rows[k].world, rows[k].micro, rows[k].prefetch);
                again = after(kept, passes, why, sizeof why);
                if (!again || !strstr(again, " recompute\n") ||
                    !same_bits(kept, again, d,
                               (numbers_desc){.steps = 3, .fast = true, .poison = true, .seed = k},
                               20, why, sizeof why))
                    test_fail(t, __FILE__, __LINE__, passes, why);
                free(again);
            }
        free(plain);
        free(kept);
    }
}

/* ------------------------------------------------------------------------------------- limits */

/* A BERT, up to the optimizer. */
static zf_graph *training_graph(test *t, bool fused)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor loss = build_bert(g, 0.1, 16, 32);
    zf_passes(g, &(zf_training){.loss = loss, .fuse.without = fused ? NULL : "all"});
    return g;
}

/* The number at *text, after `words`; -1 where there are others. */
static long long number_after(const char **text, const char *words)
{
    char *end;
    long long found;
    if (strncmp(*text, words, strlen(words))) return -1;
    found = strtoll(*text + strlen(words), &end, 10);
    *text = end;
    return found;
}

/* The minimum that the graph takes, according to the message about a limit below it; frees the
 * graph. A limit below the bytes that recomputing cannot save has a message of its own. */
static long long least_of(test *t, zf_training *d, zf_graph *g)
{
    zf_graph *own = zf_graph_copy(g);
    const char *at;
    long long base, least;
    d->memory_limit = 1;
    if (zf_recompute(own, d) != ZF_ERR_LIMIT) test_fail(t, __FILE__, __LINE__, "no limit", "");
    at = zf_graph_error(own);
    base = number_after(&at, "zf_recompute: parameters, gradients, states and inputs alone take ");
    if (base < 1 || number_after(&at, " bytes, ") != base - 1 ||
        strcmp(at, " more than the limit of 1"))
        test_fail(t, __FILE__, __LINE__, "the message", zf_graph_error(own));
    d->memory_limit = (size_t)base;
    if (zf_recompute(g, d) != ZF_ERR_LIMIT) test_fail(t, __FILE__, __LINE__, "no limit", "");
    at = zf_graph_error(g);
    least = number_after(&at, "zf_recompute: the plan takes ");
    if (least <= base || number_after(&at, " bytes at least, ") != least - base ||
        number_after(&at, " more than the limit of ") != base ||
        strncmp(at, "; most is alive at ", 19))
        test_fail(t, __FILE__, __LINE__, "the message", zf_graph_error(g));
    zf_graph_free(own);
    zf_graph_free(g);
    return least;
}

/* Limits between what the plan takes and its minimum, with the scratch of a backend, with ranks and
 * without: the plan is within the limit, its bytes are those that are allocated, and a lower limit
 * takes at least as many FLOPs. */
TEST_ONCE(recompute_meets_limits)
{
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = 2}, NULL);
    NEED(t, cpu, NULL);
    for (int stage = -1; stage <= 3; stage++) {
        zf_training d = {.recompute.mode = ZF_RECOMPUTE_AS_NEEDED, .backend = cpu};
        if (stage >= 0) {
            d.zero = (zf_zero_desc){.stage = stage, .world = 1, .bucket_bytes = 4096};
            d.prefetch.bytes = 4096;
        }
        double flops = 0;
        long long most = 0, least = 0;
        for (int k = 0; k <= 6; k++) {
            zf_graph *g = training_graph(t, stage % 2);
            zf_plan plan = {0};
            d.memory_limit = k == 0   ? SIZE_MAX
                             : k == 1 ? 1
                                      : (size_t)(most - (most - least) * (k - 1) / 5);
            if (k == 1) {
                least = least_of(t, &d, g);
                CHECK(t, 0 < least && least < most);
                continue;
            }
            zf_recompute(g, &d);
            if (stage >= 0) zf_zero(g, &d.zero), zf_prefetch(g, &d);
            zf_memory(g, &(zf_memory_desc){.backend = cpu});
            if (zf_graph_plan(g, &plan)) test_fail(t, __FILE__, __LINE__, zf_graph_error(g), "");
            if (!k) most = (long long)plan.peak_bytes;
            if (k) {
                zf_program *p = zf_compile(
                    g, &(zf_compile_desc){.backend = cpu, .memory_limit = d.memory_limit});
                if (!p) test_fail(t, __FILE__, __LINE__, zf_graph_error(g), "");
                CHECK(t, p && plan.peak_bytes <= d.memory_limit);
                CHECK(t, zf_program_info_of(p).allocated_bytes == plan.peak_bytes);
                zf_program_free(p);
            }
            CHECK(t, plan.recomputed_flops >= flops);
            flops = plan.recomputed_flops;
            zf_graph_free(g);
        }
        CHECK(t, flops > 0);
    }
    zf_backend_free(cpu);
}

/* ---------------------------------------------------------------------------------------- FLOPs */

/* A backend that counts the products that are launched. */
typedef struct counting {
    zf_backend self, *inner;
    double flops;
} counting;

static void *counting_allocate(void *self, size_t bytes, zf_error *error)
{
    counting *c = self;
    return c->inner->allocate(c->inner->self, bytes, error);
}

static void counting_release(void *self, void *memory, size_t bytes)
{
    counting *c = self;
    c->inner->release(c->inner->self, memory, bytes);
}

static zf_status counting_copy(void *self, void *to, const void *from, size_t bytes, zf_copy kind,
                               zf_error *error)
{
    counting *c = self;
    return c->inner->copy(c->inner->self, to, from, bytes, kind, error);
}

static size_t counting_scratch(void *self, const zf_launch *launch)
{
    counting *c = self;
    zf_launch l = *launch;
    l.backend = c->inner->self;
    return c->inner->scratch(c->inner->self, &l);
}

static zf_status counting_queues(void *self, int32_t count, zf_error *error)
{
    counting *c = self;
    return c->inner->queues(c->inner->self, count, error);
}

static zf_status counting_launch(void *self, const zf_launch *launch)
{
    counting *c = self;
    zf_launch l = *launch;
    const zf_shape *a = l.arg_count ? &l.args[0].shape : NULL;
    bool transposed = l.op == ZF_OP_matmul && ZF_INT(&l, matmul, transpose_a);
    if (l.op == ZF_OP_matmul || l.op == ZF_OP_linear)
        c->flops += 2.0 * (double)zf_shape_count(l.out.shape) *
                    (double)a->dims[a->rank - (transposed ? 2 : 1)];
    l.backend = c->inner->self;
    return c->inner->launch(c->inner->self, &l);
}

static zf_status counting_synchronize(void *self, zf_error *error)
{
    counting *c = self;
    return c->inner->synchronize(c->inner->self, error);
}

static void counting_of(counting *c, zf_backend *inner)
{
    *c = (counting){.inner = inner};
    c->self = (zf_backend){.name = "counting",
                           .self = c,
                           .allocate = counting_allocate,
                           .release = counting_release,
                           .copy = counting_copy,
                           .scratch = counting_scratch,
                           .queues = counting_queues,
                           .launch = counting_launch,
                           .synchronize = counting_synchronize};
}

/* The plan's FLOPs are those of the model whatever is recomputed, and those that a step executes
 * are these and the recomputed ones. The layers are matmul and linear alone. */
TEST_ONCE(recompute_counts_its_flops)
{
    zf_backend *cpu = zf_cpu_backend(NULL, NULL);
    double model = 0;
    NEED(t, cpu, NULL);
    for (int mode = 0; mode <= ZF_RECOMPUTE_LAYERS; mode++) {
        zf_graph *g = zf_graph_new(NULL);
        zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(8, 16)),
                  lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
        zf_program *p;
        zf_program_info info;
        counting c;
        for (int k = 0; k < 4; k++) {
            zf_push(g, "layer.%d", k);
            x = zf_gelu(zf_nn_linear(x, "wide", 64, NULL));
            x = zf_tanh(zf_nn_linear(x, "narrow", 16, NULL));
            zf_pop(g);
        }
        zf_push(g, "head");
        x = zf_sum(zf_mul(x, x));
        zf_pop(g);
        zf_autograd(g, x);
        zf_sgd(g, lr, NULL);
        zf_recompute(g, &(zf_training){.recompute.mode = (zf_recompute_mode)mode});
        zf_zero(g, &(zf_zero_desc){.micro_batches = 3});
        counting_of(&c, cpu);
        p = zf_compile(g, &(zf_compile_desc){.backend = &c.self});
        if (!p) test_fail(t, __FILE__, __LINE__, zf_graph_error(g), "");
        CHECK(t, p);
        CHECK(t, !write_seeded(p, zf_graph_find(g, "x")) && !write_seeded(p, lr));
        CHECK(t, !zf_micro(p) && !zf_micro(p) && !zf_step(p));
        info = zf_program_info_of(p);
        CHECK(t, c.flops == info.plan.flops + info.plan.recomputed_flops);
        if (!mode) model = info.plan.flops;
        CHECK(t, model > 0 && info.plan.flops == model);
        /* Values computed from a layer's input are not kept: the first product is recomputed, with
         * 2 * 8 * 16 * 64 FLOPs. */
        CHECK(t, info.plan.recomputed_flops == (mode ? 3 * 4 * 2.0 * 8 * 16 * 64 : 0));
        zf_program_free(p);
        zf_graph_free(g);
    }
    zf_backend_free(cpu);
}

/* ------------------------------------------------------------------------------------ errors */

TEST(recompute_says_what_would_be_right)
{
    zf_graph *g = training_graph(t, true);
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    OK(t, zf_recompute(g, NULL), zf_graph_error(g));
    OK(t, zf_recompute(g, &(zf_training){.recompute.mode = ZF_RECOMPUTE_LAYERS}),
       zf_graph_error(g));
    CHECK(t, zf_fuse(g, NULL) == ZF_ERR_STAGE);
    CHECK(t,
          !strcmp(zf_graph_error(g), "zf_fuse: must come before zf_recompute, which has been run"));
}
