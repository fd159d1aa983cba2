/* Losses over judgements (llm/losses) against formulas in float64 (tests/golden/losses/make.py). */
#include "../../zeroflow_llm.h"
#include "../support/golden.h"

static const char golden_path[] = "tests/golden/losses/losses.safetensors";
enum { TEXTS = 8, TOKENS = 7, PAIRS = TEXTS / 2, LONGEST = 12 };

/* A loss, and what is judged by it: the parameter `of`, whose gradient is compared. */
typedef struct judged {
    zf_tensor loss, losses, clipped; /* clipped: ZF_NONE of losses that clip nothing */
} judged;
typedef judged builder(zf_graph *g, zf_dtype dtype, const void *desc);

typedef struct loss_case {
    const char *name, *of;
    builder *build;
    const void *desc;
    zf_policy_kind kind; /* of the weights of a policy's loss */
} loss_case;

static zf_tensor logp_of(zf_graph *g, zf_dtype dtype)
{
    return zf_param(g, "logp", ZF_SHAPE(TEXTS, TOKENS), &(zf_param_desc){.dtype = dtype});
}

static zf_tensor of_tokens(zf_graph *g, const char *name, zf_dtype dtype)
{
    return zf_input(g, name, dtype, ZF_SHAPE(TEXTS, TOKENS));
}

typedef struct session {
    zf_graph *graph;
    zf_backend *cpu;
    zf_program *program;
    zf_policy_kind kind;
    zf_error error;
} session;

static void session_close(void *object)
{
    session *s = object;
    zf_program_free(s->program);
    zf_backend_free(s->cpu);
    zf_graph_free(s->graph);
    *s = (session){.graph = NULL};
}

/* Writes values of the golden file to what the graph has of that name. */
static zf_status write_from(session *s, zf_safetensors *golden, const char *name)
{
    const zf_tensor to = zf_graph_find(s->graph, name);
    int64_t count = 0;
    double *x;
    void *raw;
    zf_status status = ZF_ERR_NOMEM;
    if (!zf_valid(to)) return ZF_OK;
    x = values_of(golden, name, &count), raw = calloc((size_t)count + 1, 8);
    if (x && raw) {
        zf_convert(raw, zf_tensor_dtype(to), x, ZF_F64, (size_t)count);
        status = zf_write(s->program, to, raw, zf_tensor_bytes(to));
    }
    free(x), free(raw);
    return status;
}

static bool read_labels(zf_safetensors *golden, int32_t labels[TEXTS * TOKENS])
{
    int64_t count = 0;
    double *x = values_of(golden, "labels", &count);
    for (int64_t i = 0; x && i < count; i++) labels[i] = (int32_t)x[i];
    free(x);
    return x != NULL;
}

/* The elements of an output as doubles, at most `most`. */
static zf_status read_values(session *s, const char *name, double *x, int64_t most)
{
    const zf_tensor from = zf_graph_find(s->graph, name);
    const int64_t count = zf_valid(from) ? zf_shape_count(zf_tensor_shape(from)) : 0;
    double raw[TEXTS * TOKENS];
    zf_status status;
    if (!count || count > most) return ZF_ERR_SHAPE;
    status = zf_read(s->program, from, raw, zf_tensor_bytes(from));
    if (!status) zf_convert(x, ZF_F64, raw, zf_tensor_dtype(from), (size_t)count);
    return status;
}

static bool goes_on(const test *t) { return !t->failed && !t->unwound; }

/* Compiles the loss with its gradient. */
static void open_session(test *t, session *s, const loss_case *c, zf_dtype dtype,
                         const zf_cpu_desc *cpu)
{
    zf_cpu_desc d = *cpu;
    judged j;
    zf_graph *g = s->graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    NEED(t, g, NULL);
    j = c->build(g, dtype, c->desc);
    s->kind = c->kind;
    zf_output(j.loss, "loss"), zf_output(j.losses, "losses");
    if (zf_valid(j.clipped)) zf_output(j.clipped, "clipped");
    zf_autograd(g, j.loss);
    zf_output(zf_gradient(g, zf_graph_find(g, c->of)), "grad");
    zf_simplify(g);
    d.allocator = t->allocator;
    s->cpu = zf_cpu_backend(&d, &s->error);
    NEED(t, s->cpu, &s->error);
    s->program = zf_compile(g, &(zf_compile_desc){.backend = s->cpu, .seed = 1, .poison = true});
    OK(t, zf_graph_status(g), zf_graph_error(g));
}

static const char *const inputs[] = {"logp",  "reference", "labels",     "pair_weight",
                                     "score", "scores",    "margin",     "pair_positions.weight",
                                     "old",   "advantage", "advantages", "correction",
                                     "value", "old_value", "returns"};

/* The weights of the policy's loss that the session was made of. */
static zf_status write_weights(session *s, zf_safetensors *golden)
{
    const zf_tensor to = zf_graph_find(s->graph, "weight");
    int32_t labels[TEXTS * TOKENS];
    double weights[TEXTS], raw[TEXTS];
    if (!zf_valid(to)) return ZF_OK;
    if (!read_labels(golden, labels)) return ZF_ERR_NOMEM;
    zf_policy_weights(&(zf_answers){TEXTS, TOKENS, labels}, s->kind, LONGEST, weights);
    zf_convert(raw, zf_tensor_dtype(to), weights, ZF_F64, TEXTS);
    return zf_write(s->program, to, raw, zf_tensor_bytes(to));
}

static void step(test *t, session *s, zf_safetensors *golden)
{
    for (size_t k = 0; k < sizeof inputs / sizeof *inputs; k++)
        OK(t, write_from(s, golden, inputs[k]), zf_program_error(s->program));
    OK(t, write_weights(s, golden), zf_program_error(s->program));
    OK(t, zf_step(s->program), zf_program_error(s->program));
}

/* The squared difference of an output to CASE.NAME, by the square of that. */
static double off_by(test *t, session *s, zf_safetensors *golden, const char *c, const char *name)
{
    double x[TEXTS * TOKENS], off = 0, all, *exact;
    char path[80];
    int64_t count = 0;
    zf_status status = read_values(s, name, x, TEXTS * TOKENS);
    snprintf(path, sizeof path, "%s.%s", c, name);
    exact = values_of(golden, path, &count);
    if (status || !exact) test_fail(t, __FILE__, __LINE__, path, zf_program_error(s->program));
    for (int64_t i = 0; exact && !status && i < count; i++)
        off += (x[i] - exact[i]) * (x[i] - exact[i]);
    all = exact ? square_sum(exact, count) : 1;
    free(exact);
    return off / (all > 0 ? all : 1);
}

/* Relative errors: of f32 1e-6, its gradients 1e-8 squared. */
static void compare(test *t, session *s, zf_safetensors *golden, const loss_case *c, zf_dtype dtype)
{
    const double tight = dtype == ZF_F64 ? 1e-26 : 1e-12, loose = dtype == ZF_F64 ? 1e-20 : 1e-8;
    open_session(t, s, c, dtype, &(zf_cpu_desc){.threads = 1});
    if (goes_on(t)) step(t, s, golden);
    if (!goes_on(t)) return;
    CHECK_NEAR(t, off_by(t, s, golden, c->name, "loss"), 0, tight);
    CHECK_NEAR(t, off_by(t, s, golden, c->name, "losses"), 0, tight);
    CHECK_NEAR(t, off_by(t, s, golden, c->name, "grad"), 0, loose);
    if (zf_valid(zf_graph_find(s->graph, "clipped")))
        CHECK_NEAR(t, off_by(t, s, golden, c->name, "clipped"), 0, 0);
}

static void compare_all(test *t, const loss_case *cases, size_t count)
{
    static session s;
    zf_safetensors *golden = open_file(t, golden_path);
    test_defer(t, session_close, &s);
    for (size_t k = 0; golden && k < 2 * count && goes_on(t); k++) {
        compare(t, &s, golden, &cases[k / 2], k % 2 ? ZF_F64 : ZF_F32);
        if (t->failed) printf("  of %s\n", cases[k / 2].name);
        session_close(&s);
    }
}

/* ---------------------------------------------------------------------------------- preferences */

static judged preference(zf_graph *g, zf_dtype dtype, const void *desc)
{
    const zf_preference_desc *d = desc;
    const zf_tensor labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(TEXTS, TOKENS));
    const zf_tensor reference =
        zf_preference_needs_reference(d) ? of_tokens(g, "reference", dtype) : ZF_NONE;
    const zf_preference p = zf_preference_loss(logp_of(g, dtype), reference, labels, ZF_NONE, d);
    return (judged){p.loss, p.losses, ZF_NONE};
}

static judged weighted_preference(zf_graph *g, zf_dtype dtype, const void *desc)
{
    const zf_preference p =
        zf_preference_loss(logp_of(g, dtype), of_tokens(g, "reference", dtype),
                           zf_input(g, "labels", ZF_I32, ZF_SHAPE(TEXTS, TOKENS)),
                           zf_input(g, "pair_weight", dtype, ZF_SHAPE(PAIRS)), desc);
    return (judged){p.loss, p.losses, ZF_NONE};
}

#define PREFERENCE(...)                                                                            \
    &(zf_preference_desc) { __VA_ARGS__ }
static const loss_case preferences[] = {
    {"sigmoid", .of = "logp", .build = preference, .desc = PREFERENCE(.beta = 0.3)},
    {"ipo", .of = "logp", .build = preference,
     .desc = PREFERENCE(.loss = ZF_PREFERENCE_IPO, .beta = 0.3)},
    {"hinge", .of = "logp", .build = preference,
     .desc = PREFERENCE(.loss = ZF_PREFERENCE_HINGE, .beta = 0.3)},
    {"robust", .of = "logp", .build = preference,
     .desc = PREFERENCE(.loss = ZF_PREFERENCE_ROBUST, .beta = 0.3, .smoothing = 0.1)},
    {"norm", .of = "logp", .build = preference,
     .desc = PREFERENCE(.loss = ZF_PREFERENCE_NORM, .beta = 0.3)},
    {"orpo", .of = "logp", .build = preference,
     .desc = PREFERENCE(.loss = ZF_PREFERENCE_ORPO, .beta = 0.3)},
    {"simpo", .of = "logp", .build = preference,
     .desc = PREFERENCE(.loss = ZF_PREFERENCE_SIMPO, .beta = 0.3)},
    {"simpo_smoothed", .of = "logp", .build = preference,
     .desc = PREFERENCE(.loss = ZF_PREFERENCE_SIMPO, .beta = 2, .smoothing = 0.1, .gamma = 1.5)},
    {"sigmoid_weighted", .of = "logp", .build = weighted_preference,
     .desc = PREFERENCE(.smoothing = 0.2)},
    {"hinge_weighted", .of = "logp", .build = weighted_preference,
     .desc = PREFERENCE(.loss = ZF_PREFERENCE_HINGE)}};

TEST_ONCE(losses_of_preferences_are_those_of_the_papers)
{
    compare_all(t, preferences, sizeof preferences / sizeof *preferences);
}

/* Where the policy is the reference, DPO's loss of each pair is ln 2 to the last bit. */
TEST_ONCE(dpo_begins_with_ln_2)
{
    static const char *const isas[] = {"portable", "avx2", "avx512", "neon"};
    static session s;
    zf_safetensors *golden = open_file(t, golden_path);
    test_defer(t, session_close, &s);
    for (int isa = 0; golden && isa < 4 && goes_on(t); isa++) {
        float losses[PAIRS];
        if (!test_has_isa(t, isas[isa])) continue;
        open_session(t, &s, preferences, ZF_F32, &(zf_cpu_desc){.threads = 1, .isa = isas[isa]});
        if (!goes_on(t)) return;
        step(t, &s, golden);
        if (!goes_on(t)) return;
        {
            float logp[TEXTS * TOKENS];
            const zf_tensor own = zf_graph_find(s.graph, "logp"),
                            reference = zf_graph_find(s.graph, "reference");
            OK(t, zf_read(s.program, own, logp, sizeof logp), zf_program_error(s.program));
            OK(t, zf_write(s.program, reference, logp, sizeof logp), zf_program_error(s.program));
        }
        OK(t, zf_step(s.program), zf_program_error(s.program));
        OK(t, zf_read(s.program, zf_graph_find(s.graph, "losses"), losses, sizeof losses),
           zf_program_error(s.program));
        for (int k = 0; k < PAIRS; k++) CHECK(t, losses[k] == (float)log(2));
        session_close(&s);
    }
}

/* Graphs that are refused, by what is wrong. */
static void refused_preference(zf_graph *g, int wrong)
{
    const int64_t texts = wrong == 1 ? TEXTS - 1 : TEXTS;
    const zf_shape shape = ZF_SHAPE(texts, TOKENS);
    zf_tensor logp = zf_input(g, "logp", wrong == 0 ? ZF_I32 : ZF_F32, shape);
    zf_tensor labels = zf_input(g, "labels", wrong == 2 ? ZF_F32 : ZF_I32, shape);
    zf_tensor reference = zf_input(g, "reference", wrong == 3 ? ZF_F64 : ZF_F32, shape);
    zf_tensor weight = zf_input(g, "weight", ZF_F32, ZF_SHAPE(wrong == 4 ? TEXTS : PAIRS));
    zf_preference_desc d = {.beta = 0};
    if (wrong == 5) reference = ZF_NONE;
    if (wrong == 10) logp = ZF_NONE;
    if (wrong == 6) d.loss = ZF_PREFERENCE_ORPO;
    if (wrong == 7) d.beta = -1;
    if (wrong == 8) d.smoothing = 0.1, d.loss = ZF_PREFERENCE_HINGE;
    if (wrong == 9) logp = zf_input(g, "other", ZF_F32, ZF_SHAPE(TEXTS));
    zf_preference_loss(logp, reference, labels, weight, &d);
}

static void refused_pair(zf_graph *g, int wrong)
{
    const int64_t texts = wrong == 1 ? TEXTS - 1 : TEXTS;
    const zf_tensor score = wrong == 0 ? zf_input(g, "score", ZF_F32, ZF_SHAPE(2, 2, 2))
                                       : zf_input(g, "score", ZF_F32, ZF_SHAPE(texts));
    const zf_tensor margin = zf_input(g, "margin", ZF_F32, ZF_SHAPE(wrong == 2 ? TEXTS : PAIRS));
    const zf_tensor weight = zf_input(g, "weight", wrong == 3 ? ZF_I32 : ZF_F32, ZF_SHAPE(PAIRS));
    zf_pair_loss(score, margin, weight, &(zf_pair_desc){.center = wrong == 4 ? -1 : 0});
}

typedef struct refusal {
    void (*build)(zf_graph *g, int wrong);
    int wrong;
    const char *error;
} refusal;

static void check_refusals(test *t, const refusal *all, size_t count)
{
    for (size_t k = 0; k < count && goes_on(t); k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        all[k].build(g, all[k].wrong);
        CHECK(t, zf_graph_status(g));
        if (!strstr(zf_graph_error(g), all[k].error))
            CHECK_TEXT(t, zf_graph_error(g), all[k].error);
    }
}

TEST(losses_of_pairs_explain_mistakes)
{
    static const refusal all[] = {
        {refused_preference, 0, "zf_preference_loss: 56 floats are needed, one for each label"},
        {refused_preference, 1, "7 texts are no pairs: chosen and rejected come in turns"},
        {refused_preference, 2,
         "zf_preference_loss: the labels must be i32 or i64 [texts, tokens]"},
        {refused_preference, 3, "the reference must be f32[8,7]"},
        {refused_preference, 4, "the weight must be f32[4]"},
        {refused_preference, 5, "the reference must be f32[8,7]"},
        {refused_preference, 6, "zf_preference_loss: this loss has no reference"},
        {refused_preference, 7, "beta is -1; it must be a number above 0"},
        {refused_preference, 8, "smoothing requires loss=sigmoid, robust, norm or simpo"},
        {refused_preference, 9, "56 floats are needed"},
        {refused_preference, 10, "zf_preference_loss: log p and labels are needed"},
        {refused_pair, 0, "zf_pair_loss: the scores must be floats [texts] or [texts, tokens]"},
        {refused_pair, 1, "7 texts are no pairs"},
        {refused_pair, 2, "the margin must be f32[4]"},
        {refused_pair, 3, "the weight must be f32[4]"},
        {refused_pair, 4, "center is -1; it must be a number of 0 or more"}};
    check_refusals(t, all, sizeof all / sizeof *all);
}

/* -------------------------------------------------------------------------------------- rewards */

static judged pair(zf_graph *g, zf_dtype dtype, const void *desc)
{
    const zf_tensor score = zf_param(g, "score", ZF_SHAPE(TEXTS), &(zf_param_desc){.dtype = dtype});
    const zf_tensor margin = desc ? zf_input(g, "margin", dtype, ZF_SHAPE(PAIRS)) : ZF_NONE;
    const zf_pair p = zf_pair_loss(score, margin, ZF_NONE, desc);
    return (judged){p.loss, p.losses, ZF_NONE};
}

static judged pair_positions(zf_graph *g, zf_dtype dtype, const void *desc)
{
    const zf_tensor score =
        zf_param(g, "scores", ZF_SHAPE(TEXTS, TOKENS), &(zf_param_desc){.dtype = dtype});
    const zf_tensor weight = zf_input(g, "pair_positions.weight", dtype, ZF_SHAPE(PAIRS, TOKENS));
    const zf_pair p = zf_pair_loss(score, ZF_NONE, weight, desc);
    return (judged){p.loss, p.losses, ZF_NONE};
}

static const loss_case pairs[] = {
    {"pair", .of = "score", .build = pair, .desc = NULL},
    {"pair_center", .of = "score", .build = pair, .desc = &(zf_pair_desc){.center = 0.01}},
    {"pair_positions", .of = "scores", .build = pair_positions, .desc = NULL}};

TEST_ONCE(losses_of_rewards_are_those_of_the_papers)
{
    compare_all(t, pairs, sizeof pairs / sizeof *pairs);
}

/* What DeepSpeed-Chat averages over; texts of 3 and 9 tokens, padding in no weight. */
TEST_ONCE(pair_positions_are_those_of_deepspeed_chat)
{
    static const int32_t ids[][2][TOKENS] = {{{4, 5, 6, 7, 8}, {4, 5, 9}},
                                             {{1, 2, 3}, {1, 2, 3, 4, 5, 6, 7}},
                                             {{3, 3, 3, 3}, {3, 3, 3, 3}},
                                             {{2, 8}, {5, 8}}};
    static const int64_t counts[][2] = {{5, 3}, {3, 7}, {4, 4}, {2, 2}};
    zf_safetensors *golden = open_file(t, golden_path);
    int64_t count = 0;
    double *exact;
    if (!golden) return;
    exact = values_of(golden, "pair_positions.weight", &count);
    NEED(t, exact, NULL);
    test_defer(t, free, exact);
    for (int k = 0; k < PAIRS; k++) {
        float weight[TOKENS];
        zf_pair_positions(ids[k][0], counts[k][0], ids[k][1], counts[k][1], TOKENS, PAIRS, weight);
        for (int i = 0; i < TOKENS; i++) CHECK_NEAR(t, weight[i], exact[k * TOKENS + i], 1e-8);
    }
}

/* ------------------------------------------------------------------------------------- policies */

/* What a policy's loss is made of. */
typedef struct policy_case {
    zf_policy_desc desc;
    bool first;  /* no old log p */
    bool tokens; /* an advantage and a correction for each token */
    bool reference;
} policy_case;

static judged policy(zf_graph *g, zf_dtype dtype, const void *desc)
{
    const policy_case *c = desc;
    const zf_shape column = ZF_SHAPE(TEXTS, 1);
    zf_policy p;
    zf_policy_rows rows = {.logp = logp_of(g, dtype),
                           .labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(TEXTS, TOKENS))};
    rows.advantage =
        c->tokens ? of_tokens(g, "advantages", dtype) : zf_input(g, "advantage", dtype, column);
    if (c->tokens) rows.correction = of_tokens(g, "correction", dtype);
    if (!c->first) rows.old = of_tokens(g, "old", dtype);
    if (c->reference) rows.reference = of_tokens(g, "reference", dtype);
    if (c->desc.loss != ZF_POLICY_BNPO) rows.weight = zf_input(g, "weight", dtype, column);
    p = zf_policy_loss(&rows, &c->desc);
    return (judged){p.loss, p.losses, p.clipped};
}

static judged critic(zf_graph *g, zf_dtype dtype, const void *desc)
{
    const zf_tensor value =
        zf_param(g, "value", ZF_SHAPE(TEXTS, TOKENS, 1), &(zf_param_desc){.dtype = dtype});
    const zf_tensor old = desc ? of_tokens(g, "old_value", dtype) : ZF_NONE;
    const zf_value p =
        zf_value_loss(value, old, of_tokens(g, "returns", dtype),
                      zf_input(g, "labels", ZF_I32, ZF_SHAPE(TEXTS, TOKENS)), ZF_NONE, desc);
    return (judged){p.loss, p.losses, p.clipped};
}

#define POLICY(...)                                                                                \
    &(policy_case) { __VA_ARGS__ }
static const loss_case policies[] = {
    {"grpo", .of = "logp", .build = policy, .desc = POLICY(.first = false)},
    {"bnpo", .of = "logp", .build = policy, .desc = POLICY(.desc.loss = ZF_POLICY_BNPO)},
    {"dr_grpo", .of = "logp", .build = policy, .desc = POLICY(.desc.loss = ZF_POLICY_DR_GRPO),
     .kind = ZF_POLICY_DR_GRPO},
    {"gspo", .of = "logp", .build = policy, .desc = POLICY(.desc.loss = ZF_POLICY_GSPO),
     .kind = ZF_POLICY_GSPO},
    {"dapo", .of = "logp", .build = policy,
     .desc = POLICY(.desc = {.loss = ZF_POLICY_DAPO, .clip_high = 0.28}), .kind = ZF_POLICY_DAPO},
    {"cispo", .of = "logp", .build = policy,
     .desc = POLICY(.desc = {.loss = ZF_POLICY_CISPO, .cap = 1.1}), .kind = ZF_POLICY_CISPO},
    {"dual", .of = "logp", .build = policy, .desc = POLICY(.desc.dual_clip = 1.25)},
    {"grpo_k1", .of = "logp", .build = policy,
     .desc = POLICY(.desc = {.kl_beta = 0.04, .kl = ZF_KL_K1}, .reference = true)},
    {"grpo_k2", .of = "logp", .build = policy,
     .desc = POLICY(.desc = {.kl_beta = 0.04, .kl = ZF_KL_K2}, .reference = true)},
    {"grpo_k3", .of = "logp", .build = policy,
     .desc = POLICY(.desc = {.kl_beta = 0.04}, .reference = true)},
    {"first", .of = "logp", .build = policy,
     .desc = POLICY(.desc.loss = ZF_POLICY_BNPO, .first = true)},
    {"tokens", .of = "logp", .build = policy,
     .desc = POLICY(.desc = {.loss = ZF_POLICY_BNPO, .kl_beta = 0.1}, .tokens = true,
                    .reference = true)},
    {"critic", .of = "value", .build = critic, .desc = &(zf_value_desc){.clip = 0.2}},
    {"critic_unclipped", .of = "value", .build = critic, .desc = NULL}};

TEST_ONCE(losses_of_policies_are_those_of_the_papers)
{
    compare_all(t, policies, sizeof policies / sizeof *policies);
}

static void refused_policy(zf_graph *g, int wrong)
{
    const zf_shape shape = ZF_SHAPE(TEXTS, TOKENS), column = ZF_SHAPE(TEXTS, 1);
    zf_policy_desc d = {.kl_beta = wrong == 0 ? 0.1 : 0};
    zf_policy_rows rows = {.logp = of_tokens(g, "logp", ZF_F32),
                           .labels = zf_input(g, "labels", ZF_I32, shape)};
    rows.advantage = zf_input(g, "advantage", ZF_F32, wrong == 1 ? ZF_SHAPE(TEXTS) : column);
    if (wrong == 2) rows.old = zf_input(g, "old", ZF_F32, column);
    if (wrong == 3) rows.weight = zf_input(g, "weight", ZF_I32, column);
    if (wrong == 4) d.kl = ZF_KL_K2;
    if (wrong == 5) d.loss = ZF_POLICY_CISPO, d.clip_high = 0.2;
    if (wrong == 6) rows.labels = zf_input(g, "flat", ZF_I32, ZF_SHAPE(TEXTS * TOKENS));
    if (wrong == 7) rows.advantage = ZF_NONE;
    zf_policy_loss(&rows, &d);
}

static void refused_value(zf_graph *g, int wrong)
{
    const zf_tensor labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(TEXTS, TOKENS)),
                    value = of_tokens(g, "value", ZF_F32),
                    returns = of_tokens(g, "returns", ZF_F32);
    const zf_tensor old = zf_input(g, "old", ZF_F32, ZF_SHAPE(TEXTS, wrong == 0 ? 1 : TOKENS));
    zf_value_loss(wrong == 1 ? labels : value, old, wrong == 2 ? ZF_NONE : returns, labels, ZF_NONE,
                  &(zf_value_desc){.clip = wrong == 3 ? -1 : 0});
}

TEST(losses_of_policies_explain_mistakes)
{
    static const refusal all[] = {
        {refused_policy, 0, "zf_policy_loss: the reference must be f32[8,7]"},
        {refused_policy, 1, "the advantage must be f32[8,7], or with 1 as the last dimension"},
        {refused_policy, 2, "old must be f32[8,7]"},
        {refused_policy, 3, "the weight must be f32[8,7], or with 1 as the last dimension"},
        {refused_policy, 4, "kl requires kl_beta"},
        {refused_policy, 5, "clip_high requires loss=grpo, bnpo, dapo, dr_grpo or gspo"},
        {refused_policy, 6, "the labels must be i32 or i64 [texts, tokens]"},
        {refused_policy, 7, "the advantage must be f32[8,7]"},
        {refused_value, 0, "zf_value_loss: old must be f32[8,7]"},
        {refused_value, 1, "56 floats are needed, one for each label"},
        {refused_value, 2, "returns must be f32[8,7]"},
        {refused_value, 3, "clip is -1; it must be a number above 0"}};
    check_refusals(t, all, sizeof all / sizeof *all);
}
