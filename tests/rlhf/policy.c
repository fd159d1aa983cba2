/* What holds of losses over judgements (llm/losses) whatever the numbers are: the first pass, what
 * is outside of answers, splits of a batch, the gradient of the KL divergence. The model is a head
 * over rows that the program writes. */
#include "../../zeroflow_llm.h"
#include "../support/test.h"

enum { TEXTS = 16, TOKENS = 5, WIDTH = 6, WORDS = 11, PARTS = 8, CELLS = TEXTS * TOKENS };

/* ------------------------------------------------------------------------------------ the model */

typedef struct made {
    zf_graph *graph;
    zf_tensor logp, labels, value; /* logp and value are flat */
    int64_t texts;
} made;

/* A loss over the model's rows. */
typedef zf_tensor builder(const made *m, int kind);

static zf_tensor of_tokens(const made *m, const char *name)
{
    return zf_input(m->graph, name, ZF_F32, ZF_SHAPE(m->texts, TOKENS));
}

static zf_tensor of_texts(const made *m, const char *name)
{
    return zf_input(m->graph, name, ZF_F32, ZF_SHAPE(m->texts, 1));
}

static zf_tensor preference(const made *m, int weighted)
{
    const zf_tensor weight =
        weighted ? zf_input(m->graph, "pair_weight", ZF_F32, ZF_SHAPE(m->texts / 2)) : ZF_NONE;
    const zf_preference p =
        zf_preference_loss(m->logp, of_tokens(m, "reference"), m->labels, weight, NULL);
    zf_output(p.losses, "losses");
    return p.loss;
}

static zf_tensor pair(const made *m, int weighted)
{
    const zf_tensor weight =
        weighted ? zf_input(m->graph, "pair_weight", ZF_F32, ZF_SHAPE(m->texts / 2)) : ZF_NONE;
    const zf_tensor last = zf_input(m->graph, "last", ZF_F32, ZF_SHAPE(m->texts, WIDTH)),
                    value = zf_graph_find(m->graph, "value");
    return zf_pair_loss(zf_linear(last, value, ZF_NONE), ZF_NONE, weight,
                        &(zf_pair_desc){.center = 0.01})
        .loss;
}

enum { UNWEIGHTED = 16, FIRST = 32, NO_KL = 64 }; /* added to a zf_policy_kind */

static zf_tensor policy(const made *m, int kind)
{
    const zf_policy_desc d = {.loss = (zf_policy_kind)(kind % UNWEIGHTED),
                              .kl_beta = kind & NO_KL ? 0 : 0.04};
    zf_policy_rows rows = {.logp = m->logp,
                           .labels = m->labels,
                           .advantage = of_texts(m, "advantage"),
                           .reference = of_tokens(m, "reference")};
    zf_policy p;
    if (!(kind & FIRST))
        rows.old = of_tokens(m, "old"), rows.correction = of_tokens(m, "correction");
    if (!(kind & UNWEIGHTED)) rows.weight = of_texts(m, "weight");
    p = zf_policy_loss(&rows, &d);
    zf_output(p.ratio, "ratio"), zf_output(p.kl, "kl");
    return p.loss;
}

static zf_tensor critic(const made *m, int kind)
{
    return zf_value_loss(m->value, of_tokens(m, "old"), of_tokens(m, "returns"), m->labels,
                         kind & UNWEIGHTED ? ZF_NONE : of_texts(m, "weight"), NULL)
        .loss;
}

/* --------------------------------------------------------------------------------------- a run */

typedef struct run_desc {
    builder *build;
    int kind;
    zf_dtype dtype;
    int32_t world, stage; /* 0: 1 */
    int64_t micro;        /* 0: 1 */
    double garbage;       /* what inputs have outside of answers */
    bool equal;           /* advantages are 0 */
    int left_out;         /* this text has no answer; 0: all have one */
    int64_t texts;        /* 0: TEXTS */
    double rate;
} run_desc;

typedef struct result {
    float loss, words[WORDS * WIDTH], value[WIDTH], dlogp[CELLS];
} result;

/* Element i of an input of the whole batch. */
static float element(const char *name, int64_t i)
{
    return (float)sin(3.7 * (double)i + name[0] + 2 * name[1]);
}

static bool answers(const run_desc *d, int64_t text, int64_t token)
{
    const int64_t first = text % 3, count = 1 + text * 7 % (TOKENS - 2);
    return token >= first && token < first + count && (!d->left_out || text != d->left_out);
}

/* Weights of the whole batch. */
static void weigh(const run_desc *d, double weight[TEXTS])
{
    int32_t labels[CELLS];
    const zf_answers a = {d->texts ? d->texts : TEXTS, TOKENS, labels};
    for (int64_t i = 0; i < a.texts * TOKENS; i++)
        labels[i] = answers(d, i / TOKENS, i % TOKENS) ? 1 : -100;
    zf_policy_weights(&a, (zf_policy_kind)(d->kind % UNWEIGHTED), TOKENS, weight);
}

static zf_status write_input(zf_program *p, zf_graph *g, const run_desc *d, const char *name,
                             int64_t first, int64_t texts)
{
    const zf_tensor to = zf_graph_find(g, name);
    const int64_t each = zf_valid(to) ? zf_shape_count(zf_tensor_shape(to)) / texts : 0;
    float x[CELLS * WIDTH];
    double weight[TEXTS];
    weigh(d, weight);
    for (int64_t i = 0; i < each * texts; i++) {
        const int64_t at = first * each + i;
        x[i] = element(name, at);
        if (!strcmp(name, "weight")) x[i] = (float)weight[at];
        if (each == TOKENS && !answers(d, at / TOKENS, at % TOKENS)) x[i] = (float)d->garbage;
        if (!strcmp(name, "correction")) x[i] = fabsf(x[i]);
        if (d->equal && !strcmp(name, "advantage")) x[i] = 0;
    }
    return each ? zf_write(p, to, x, (size_t)(each * texts) * sizeof *x) : ZF_OK;
}

/* Writes texts [first, first + texts) of the batch. */
static zf_status feed(zf_program *p, zf_graph *g, const run_desc *d, int64_t first, int64_t texts)
{
    static const char *const names[] = {"hidden",    "last",   "reference", "old",
                                        "advantage", "weight", "returns",   "correction"};
    const float rate = (float)d->rate;
    float pairs[TEXTS / 2];
    int32_t labels[CELLS];
    zf_status status = zf_write(p, zf_graph_find(g, "lr"), &rate, sizeof rate);
    for (size_t k = 0; k < sizeof names / sizeof *names && !status; k++)
        status = write_input(p, g, d, names[k], first, texts);
    for (int64_t i = 0; i < texts * TOKENS; i++) {
        const int64_t at = first * TOKENS + i;
        labels[i] = answers(d, at / TOKENS, at % TOKENS) ? (int32_t)(at * 5 % WORDS) : -100;
    }
    for (int k = 0; k < TEXTS / 2; k++) pairs[k] = 2.0f / TEXTS;
    if (!status && zf_valid(zf_graph_find(g, "labels")))
        status = zf_write(p, zf_graph_find(g, "labels"), labels,
                          (size_t)(texts * TOKENS) * sizeof *labels);
    if (!status && zf_valid(zf_graph_find(g, "pair_weight")))
        status =
            zf_write(p, zf_graph_find(g, "pair_weight"), pairs, (size_t)texts / 2 * sizeof *pairs);
    return status;
}

static zf_graph *model(test *t, const run_desc *d, int64_t texts)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    const zf_param_desc drawn = {.init = ZF_NORMAL, .std = 0.5};
    const zf_tensor x = zf_input(g, "hidden", ZF_F32, ZF_SHAPE(texts * TOKENS, WIDTH)),
                    words = zf_param(g, "words", ZF_SHAPE(WORDS, WIDTH), &drawn),
                    value = zf_param(g, "value", ZF_SHAPE(1, WIDTH), &drawn),
                    labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(texts, TOKENS)),
                    flat = zf_reshape(labels, ZF_SHAPE(-1));
    const made m = {g, zf_head_logp(x, words, ZF_NONE, flat, NULL), labels,
                    zf_linear(x, value, ZF_NONE), texts};
    zf_tensor loss;
    zf_output(m.logp, "logp");
    if ((d->build == policy && !(d->kind & UNWEIGHTED)) || d->build == preference)
        zf_output_gradient(m.logp, "dlogp");
    loss = zf_output(d->build(&m, d->kind), "loss");
    zf_passes(g, &(zf_training){
                     .loss = loss,
                     .optimizer = ZF_SGD,
                     .precision.dtype = d->dtype,
                     .zero = {.stage = d->stage, .world = d->world, .micro_batches = d->micro}});
    return g;
}

typedef struct ranks {
    zf_comm comms[PARTS];
    zf_graph *graphs[PARTS];
    zf_program *programs[PARTS];
    zf_lockstep_desc all;
    zf_error error;
} ranks;

static void ranks_close(void *object)
{
    ranks *r = object;
    for (int k = 0; k < PARTS; k++) zf_program_free(r->programs[k]), zf_graph_free(r->graphs[k]);
    memset(r, 0, sizeof *r);
}

static bool goes_on(const test *t) { return !t->failed && !t->unwound; }

static void open_ranks(test *t, ranks *r, const run_desc *d)
{
    const int32_t world = d->world ? d->world : 1;
    const int64_t micro = d->micro ? d->micro : 1,
                  texts = (d->texts ? d->texts : TEXTS) / (world * micro);
    *r = (ranks){.all = {r->programs, world, 0}};
    for (int32_t k = 0; k < world; k++) {
        r->comms[k] = (zf_comm){.rank = k, .world = world, .groups = true};
        r->graphs[k] = model(t, d, texts);
        r->programs[k] = zf_compile(
            r->graphs[k], &(zf_compile_desc){.comm = &r->comms[k], .seed = 3, .verify = true});
        OK(t, zf_graph_status(r->graphs[k]), zf_graph_error(r->graphs[k]));
    }
}

/* Copies an output of rank 0's last part; nothing where the graph has none. */
static void read_output(test *t, ranks *r, const char *name, void *to, size_t bytes)
{
    const zf_tensor from = zf_graph_find(r->graphs[0], name);
    if (zf_valid(from) && zf_tensor_bytes(from) <= bytes)
        OK(t, zf_read(r->programs[0], from, to, zf_tensor_bytes(from)),
           zf_program_error(r->programs[0]));
}

/* A step over all texts. dlogp: of the last text first where there are several parts. */
static void step(test *t, ranks *r, const run_desc *d, result *out)
{
    const int32_t world = r->all.count;
    const int64_t micro = d->micro ? d->micro : 1,
                  texts = (d->texts ? d->texts : TEXTS) / (world * micro);
    for (int64_t m = 0; m < micro; m++) {
        for (int32_t k = 0; k < world; k++)
            OK(t, feed(r->programs[k], r->graphs[k], d, (m * world + k) * texts, texts),
               zf_program_error(r->programs[k]));
        OK(t,
           m + 1 < micro ? zf_lockstep_micro(&r->all, &r->error)
                         : zf_lockstep_step(&r->all, &r->error),
           r->error.text);
        if (world == 1)
            read_output(t, r, "dlogp", out->dlogp + m * texts * TOKENS,
                        (size_t)(texts * TOKENS) * sizeof *out->dlogp);
    }
    read_output(t, r, "loss", &out->loss, sizeof out->loss);
    if (d->dtype) return;
    OK(t, zf_lockstep_read(&r->all, "words", out->words, sizeof out->words, &r->error),
       r->error.text);
    if (d->build == critic || d->build == pair)
        OK(t, zf_lockstep_read(&r->all, "value", out->value, sizeof out->value, &r->error),
           r->error.text);
}

static result run(test *t, const run_desc *d)
{
    static ranks r;
    result out = {.loss = 0};
    open_ranks(t, &r, d);
    if (goes_on(t)) step(t, &r, d, &out);
    ranks_close(&r);
    return out;
}

/* -------------------------------------------------------------------------------------- splits */

static const struct {
    builder *build;
    int kind;
} losses[] = {{preference, 0},
              {preference, 1},
              {pair, 0},
              {pair, 1},
              {policy, ZF_POLICY_GRPO},
              {policy, ZF_POLICY_DAPO},
              {policy, ZF_POLICY_DR_GRPO},
              {policy, ZF_POLICY_GSPO},
              {policy, ZF_POLICY_CISPO},
              {policy, ZF_POLICY_BNPO | UNWEIGHTED},
              {policy, ZF_POLICY_GRPO | FIRST},
              {critic, ZF_POLICY_BNPO},
              {critic, ZF_POLICY_BNPO | UNWEIGHTED}};
enum { LOSSES = sizeof losses / sizeof *losses };

static void check_close(test *t, const float *x, const float *y, int count)
{
    for (int i = 0; i < count; i++) CHECK_NEAR(t, x[i], y[i], 2e-6 * (1 + fabs(y[i])));
}

/* Answers of uneven lengths: as many parts have the same bits, by ranks or by micro-batches; other
 * numbers of parts have the same loss and parameters up to rounding. */
TEST_ONCE(losses_do_not_depend_on_the_split_of_a_batch)
{
    for (int k = 0; k < LOSSES && goes_on(t); k++) {
        run_desc d = {.build = losses[k].build, .kind = losses[k].kind, .rate = 0.5};
        const result whole = run(t, &d);
        result first = whole, now;
        for (d.world = 1; d.world <= PARTS && goes_on(t); d.world *= 2) {
            d.micro = PARTS / d.world, d.stage = d.world == 2 ? 3 : 0;
            now = run(t, &d);
            if (d.world == 1) first = now;
            if (!goes_on(t)) break;
            CHECK(t, now.loss == first.loss);
            CHECK(t, !memcmp(now.words, first.words, sizeof now.words));
            CHECK(t, !memcmp(now.value, first.value, sizeof now.value));
        }
        if (goes_on(t)) check_close(t, &first.loss, &whole.loss, 1);
        if (goes_on(t)) check_close(t, first.words, whole.words, WORDS * WIDTH);
        if (goes_on(t)) check_close(t, first.value, whole.value, WIDTH);
        if (t->failed) printf("  of loss %d\n", k);
    }
}

/* With weights of the global batch the gradient of a token's log p has the same bits in
 * micro-batches of any size. */
TEST_ONCE(losses_of_a_token_do_not_depend_on_its_micro_batch)
{
    for (int k = 0; k < LOSSES && goes_on(t); k++) {
        run_desc d = {.build = losses[k].build, .kind = losses[k].kind};
        result first = {.loss = 0}, now;
        if (d.build == critic || d.build == pair || d.kind & UNWEIGHTED) continue;
        if (d.build == preference && !d.kind) continue;
        for (d.micro = 1; d.micro <= PARTS && goes_on(t); d.micro *= 2) {
            now = run(t, &d);
            if (d.micro == 1) first = now;
            if (goes_on(t)) CHECK(t, !memcmp(now.dlogp, first.dlogp, sizeof now.dlogp));
        }
    }
}

/* ------------------------------------------------------------------------------------ the rows */

/* What inputs have outside of answers changes no bit. */
TEST_ONCE(losses_read_nothing_outside_of_answers)
{
    for (int k = 0; k < LOSSES && goes_on(t); k++) {
        run_desc d = {.build = losses[k].build, .kind = losses[k].kind, .rate = 0.5};
        const result clean = run(t, &d);
        result now;
        d.garbage = NAN, now = run(t, &d);
        if (goes_on(t)) CHECK(t, !memcmp(&now, &clean, sizeof now));
        d.garbage = 1e30, now = run(t, &d);
        if (goes_on(t)) CHECK(t, !memcmp(&now, &clean, sizeof now));
        if (t->failed) printf("  of loss %d\n", k);
    }
}

/* An answer that is left out is in no divisor: the loss is that of the batch without it. */
TEST_ONCE(losses_do_not_count_answers_that_are_left_out)
{
    for (int k = 0; k < LOSSES && goes_on(t); k++) {
        run_desc d = {.build = losses[k].build, .kind = losses[k].kind, .rate = 0.5};
        result with, without;
        if (d.build == preference || d.build == pair) continue;
        d.left_out = TEXTS - 1, with = run(t, &d);
        d.texts = TEXTS - 1, without = run(t, &d);
        if (goes_on(t)) check_close(t, &with.loss, &without.loss, 1);
        if (goes_on(t)) check_close(t, with.words, without.words, WORDS * WIDTH);
        if (goes_on(t)) check_close(t, with.value, without.value, WIDTH);
    }
}

/* Equal rewards have advantages of 0: no gradient at all. */
TEST_ONCE(losses_of_equal_rewards_have_no_gradient)
{
    for (int k = 0; k < LOSSES && goes_on(t); k++) {
        run_desc d = {.build = losses[k].build, .kind = losses[k].kind | FIRST, .equal = true};
        result now;
        if (d.build != policy || d.kind & UNWEIGHTED) continue;
        d.kind |= NO_KL;
        now = run(t, &d);
        for (int i = 0; i < CELLS && goes_on(t); i++) CHECK(t, now.dlogp[i] == 0);
        d.equal = false, now = run(t, &d);
        if (goes_on(t)) CHECK(t, now.dlogp[TOKENS + 1] != 0);
    }
}

/* In the first pass over an experience the ratio is 1 and the KL divergence 0, and DPO begins with
 * ln 2, to the last bit in every precision: log p of the same graph is what it was before. */
TEST_ONCE(losses_begin_where_the_policy_is_the_reference)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    static ranks r;
    test_defer(t, ranks_close, &r);
    for (int k = 0; k < 6 && goes_on(t); k++) {
        const run_desc d = {.build = k % 2 ? policy : preference,
                            .kind = k % 2 ? ZF_POLICY_GRPO : 0,
                            .dtype = dtypes[k / 2]};
        float logp[CELLS], ratio[CELLS], kl[CELLS], pairs[TEXTS / 2];
        result out;
        open_ranks(t, &r, &d);
        if (goes_on(t)) step(t, &r, &d, &out);
        if (!goes_on(t)) return;
        read_output(t, &r, "logp", logp, sizeof logp);
        for (int i = 0; i < 2 && goes_on(t); i++) {
            const zf_tensor to = zf_graph_find(r.graphs[0], i ? "old" : "reference");
            if (zf_valid(to))
                OK(t, zf_write(r.programs[0], to, logp, sizeof logp),
                   zf_program_error(r.programs[0]));
        }
        OK(t, zf_lockstep_step(&r.all, &r.error), r.error.text);
        read_output(t, &r, "ratio", ratio, sizeof ratio);
        read_output(t, &r, "kl", kl, sizeof kl);
        read_output(t, &r, "losses", pairs, sizeof pairs);
        for (int i = 0; i < CELLS && d.build == policy; i++) CHECK(t, ratio[i] == 1 && kl[i] == 0);
        for (int i = 0; i < TEXTS / 2 && d.build == preference; i++)
            CHECK(t, pairs[i] == (float)log(2));
        ranks_close(&r);
    }
}

/* In a model of bf16, advantages and weights are not rounded: with rho 1 the gradient is made of
 * them alone. */
TEST_ONCE(losses_do_not_round_what_the_program_writes)
{
    static const zf_policy_kind kinds[] = {ZF_POLICY_GRPO, ZF_POLICY_CISPO};
    for (int k = 0; k < 2 && goes_on(t); k++) {
        run_desc d = {.build = policy, .kind = (int)kinds[k] | FIRST | NO_KL};
        const result wide = run(t, &d);
        result narrow;
        d.dtype = ZF_BF16, narrow = run(t, &d);
        if (goes_on(t)) CHECK(t, !memcmp(narrow.dlogp, wide.dlogp, sizeof wide.dlogp));
    }
}

/* ------------------------------------------------------------------- temperature, KL divergence */

/* A program over one graph, with values by name. */
typedef struct small {
    zf_graph *graph;
    zf_program *program;
} small;

static void small_close(void *object)
{
    small *s = object;
    zf_program_free(s->program), zf_graph_free(s->graph);
    *s = (small){.graph = NULL};
}

static void small_open(test *t, small *s)
{
    s->graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    NEED(t, s->graph, NULL);
}

static void small_step(test *t, small *s, zf_tensor loss)
{
    zf_autograd(s->graph, loss);
    zf_output(zf_gradient(s->graph, zf_graph_find(s->graph, "words")), "gradient");
    s->program = zf_compile(s->graph, NULL);
    OK(t, zf_graph_status(s->graph), zf_graph_error(s->graph));
}

static zf_status small_write(small *s, const char *name, const void *x)
{
    const zf_tensor to = zf_graph_find(s->graph, name);
    return zf_valid(to) ? zf_write(s->program, to, x, zf_tensor_bytes(to)) : ZF_OK;
}

static zf_status small_read(small *s, const char *name, void *x)
{
    const zf_tensor from = zf_graph_find(s->graph, name);
    return zf_read(s->program, from, x, zf_tensor_bytes(from));
}

/* Rows of one context with each word as their label: the sum of exp(log p) is 1 at any temperature,
 * and the gradient is 1 / temperature times that of logits that were divided by it. */
TEST_ONCE(logp_has_the_temperature)
{
    static small s;
    double logp[2][WORDS], gradient[2][WORDS * WIDTH];
    test_defer(t, small_close, &s);
    for (int k = 0; k < 2; k++) {
        const double temperature = k ? 1 : 0.6;
        const zf_head_desc head = {.temperature = temperature};
        double x[WORDS * WIDTH], words[WORDS * WIDTH], by[WORDS], sum = 0;
        int32_t labels[WORDS];
        zf_tensor y;
        small_open(t, &s);
        if (!goes_on(t)) return;
        y = zf_head_logp(
            zf_input(s.graph, "x", ZF_F64, ZF_SHAPE(WORDS, WIDTH)),
            zf_param(s.graph, "words", ZF_SHAPE(WORDS, WIDTH), &(zf_param_desc){.dtype = ZF_F64}),
            ZF_NONE, zf_input(s.graph, "labels", ZF_I32, ZF_SHAPE(WORDS)), &head);
        zf_output(y, "logp");
        small_step(t, &s, zf_sum(zf_mul(y, zf_input(s.graph, "by", ZF_F64, ZF_SHAPE(WORDS)))));
        if (!goes_on(t)) return;
        for (int i = 0; i < WORDS * WIDTH; i++) {
            x[i] = element("x", i % WIDTH);
            words[i] = 2 * element("w", i) / (k ? 0.6 : 1);
            if (i < WORDS) labels[i] = i, by[i] = element("by", i);
        }
        OK(t, small_write(&s, "x", x), zf_program_error(s.program));
        OK(t, small_write(&s, "words", words), zf_program_error(s.program));
        OK(t, small_write(&s, "labels", labels), zf_program_error(s.program));
        OK(t, small_write(&s, "by", by), zf_program_error(s.program));
        OK(t, zf_step(s.program), zf_program_error(s.program));
        OK(t, small_read(&s, "logp", logp[k]), zf_program_error(s.program));
        OK(t, small_read(&s, "gradient", gradient[k]), zf_program_error(s.program));
        for (int i = 0; i < WORDS; i++) sum += exp(logp[k][i]);
        CHECK_NEAR(t, sum, 1, 1e-14);
        small_close(&s);
    }
    for (int i = 0; i < WORDS; i++) CHECK_NEAR(t, logp[0][i], logp[1][i], 1e-13);
    for (int i = 0; i < WORDS * WIDTH; i++)
        CHECK_NEAR(t, gradient[0][i], gradient[1][i] / 0.6, 1e-12);
}

/* A language of three words with answers of two, all of which are enumerated: text 3 a + b is "a
 * b". Contexts are the beginning and the three words; the parameter has their logits. */
enum { LANGUAGE = 3, ALL = LANGUAGE * LANGUAGE, CONTEXTS = 1 + LANGUAGE };

typedef enum kl_case {
    KL_EXACT,   /* the gradient of KL(policy, reference) of whole answers, by autograd */
    KL_REWARDS, /* K1 taken from rewards of tokens, advantages without values */
    KL_FIRST,   /* that of KL(policy, reference) of the first word */
    KL_FORWARD, /* that of KL(reference, policy) of the first word */
    KL_LOSS     /* + zf_kl_kind: as a loss of the first word */
} kl_case;

static int kl_context(int text, int token) { return token ? 1 + text / LANGUAGE : 0; }
static int kl_word(int text, int token) { return token ? text % LANGUAGE : text / LANGUAGE; }

/* log p of each token of each text. */
static void kl_scores(const char *name, double logits[LANGUAGE * CONTEXTS], double logp[2 * ALL])
{
    for (int i = 0; i < LANGUAGE * CONTEXTS; i++) logits[i] = element(name, i);
    for (int k = 0; k < 2 * ALL; k++) {
        const int context = kl_context(k / 2, k % 2);
        double sum = 0;
        for (int v = 0; v < LANGUAGE; v++) sum += exp(logits[v * CONTEXTS + context]);
        logp[k] = logits[kl_word(k / 2, k % 2) * CONTEXTS + context] - log(sum);
    }
}

static zf_tensor kl_loss(zf_graph *g, kl_case which, zf_tensor logp, zf_tensor labels)
{
    const zf_shape shape = ZF_SHAPE(ALL, 2);
    const zf_tensor reference = zf_input(g, "reference", ZF_F64, shape),
                    weight = zf_input(g, "weight", ZF_F64, ZF_SHAPE(ALL, 1)),
                    zero = zf_scale(reference, 0);
    const zf_policy_rows rows = {
        .logp = logp,
        .labels = labels,
        .advantage = which == KL_REWARDS ? zf_input(g, "advantage", ZF_F64, shape) : zero,
        .reference = reference,
        .weight = weight};
    const zf_policy_desc d = {.kl_beta = which >= KL_LOSS,
                              .kl = which >= KL_LOSS ? (zf_kl_kind)(which - KL_LOSS) : ZF_KL_K3};
    const int64_t tokens = which == KL_EXACT ? 2 : 1;
    zf_tensor p = zf_slice(zf_reshape(logp, shape), 1, 0, tokens), q;
    if (which == KL_REWARDS || which >= KL_LOSS) return zf_policy_loss(&rows, &d).loss;
    q = zf_sum_ex(zf_sub(p, zf_slice(reference, 1, 0, tokens)), &(zf_reduce_desc){.axis = 1});
    p = zf_exp(zf_sum_ex(p, &(zf_reduce_desc){.axis = 1}));
    if (which == KL_FORWARD) return zf_neg(zf_sum(zf_mul(zf_reshape(weight, ZF_SHAPE(ALL)), q)));
    return zf_scale(zf_sum(zf_mul(p, q)), which == KL_EXACT ? 1 : 1.0 / LANGUAGE);
}

/* Weights are probabilities: of whole answers, or of the first word, shared by the answers with it;
 * of KL_FORWARD under the reference. */
static void kl_gradient(test *t, small *s, kl_case which, double gradient[LANGUAGE * CONTEXTS])
{
    const bool whole = which == KL_REWARDS;
    double words[LANGUAGE * CONTEXTS], other[LANGUAGE * CONTEXTS], logp[2 * ALL],
        reference[2 * ALL];
    double x[2 * ALL * CONTEXTS] = {0}, weight[ALL], reward[2 * ALL], advantage[2 * ALL];
    const double score[ALL] = {0};
    int32_t labels[2 * ALL];
    zf_tensor y, label;
    small_open(t, s);
    if (!goes_on(t)) return;
    label = zf_input(s->graph, "labels", ZF_I32, ZF_SHAPE(ALL, 2));
    y = zf_head_logp(zf_input(s->graph, "x", ZF_F64, ZF_SHAPE(2 * ALL, CONTEXTS)),
                     zf_param(s->graph, "words", ZF_SHAPE(LANGUAGE, CONTEXTS),
                              &(zf_param_desc){.dtype = ZF_F64}),
                     ZF_NONE, zf_reshape(label, ZF_SHAPE(-1)), NULL);
    small_step(t, s, kl_loss(s->graph, which, y, label));
    if (!goes_on(t)) return;
    kl_scores("policy", words, logp), kl_scores("reference", other, reference);
    for (int k = 0; k < 2 * ALL; k++) {
        x[k * CONTEXTS + kl_context(k / 2, k % 2)] = 1;
        labels[k] = k % 2 && !whole && which != KL_EXACT ? -100 : kl_word(k / 2, k % 2);
        weight[k / 2] = whole ? exp(logp[k / 2 * 2] + logp[k / 2 * 2 + 1])
                              : exp((which == KL_FORWARD ? reference : logp)[k / 2 * 2]) / LANGUAGE;
    }
    zf_token_rewards(&(zf_answers){ALL, 2, labels}, score, logp, reference,
                     &(zf_advantage_desc){.kl_reward = 1}, reward);
    zf_returns(&(zf_answers){ALL, 2, labels}, reward, NULL, &(zf_advantage_desc){.lambda = 1},
               advantage, NULL);
    OK(t, small_write(s, "x", x), zf_program_error(s->program));
    OK(t, small_write(s, "words", words), zf_program_error(s->program));
    OK(t, small_write(s, "labels", labels), zf_program_error(s->program));
    OK(t, small_write(s, "reference", reference), zf_program_error(s->program));
    OK(t, small_write(s, "weight", weight), zf_program_error(s->program));
    OK(t, small_write(s, "advantage", advantage), zf_program_error(s->program));
    OK(t, zf_step(s->program), zf_program_error(s->program));
    OK(t, small_read(s, "gradient", gradient), zf_program_error(s->program));
}

/* The expected gradient of each way to hold a policy near its reference. */
TEST_ONCE(kl_gradients_are_what_they_are_said_to_be)
{
    static const struct {
        kl_case way, exact;
        bool none;
    } pairs[] = {{KL_REWARDS, KL_EXACT, false},
                 {KL_LOSS + ZF_KL_K2, KL_FIRST, false},
                 {KL_LOSS + ZF_KL_K3, KL_FORWARD, false},
                 {KL_LOSS + ZF_KL_K1, KL_EXACT, true}};
    static small s;
    test_defer(t, small_close, &s);
    for (int k = 0; k < 4; k++) {
        double way[LANGUAGE * CONTEXTS], exact[LANGUAGE * CONTEXTS], largest = 0;
        kl_gradient(t, &s, pairs[k].way, way), small_close(&s);
        if (!goes_on(t)) return;
        kl_gradient(t, &s, pairs[k].exact, exact), small_close(&s);
        if (!goes_on(t)) return;
        for (int i = 0; i < LANGUAGE * CONTEXTS; i++) {
            CHECK_NEAR(t, way[i], pairs[k].none ? 0 : exact[i], 1e-13);
            largest = fmax(largest, fabs(exact[i]));
        }
        CHECK(t, largest > 0.01);
    }
}
