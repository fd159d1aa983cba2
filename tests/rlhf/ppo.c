/* An iteration of PPO against a script in float64 (tests/golden/ppo/make.py): numbers of all answers,
 * losses, gradients and twenty steps of actor and critic. */
#include "../support/golden.h"

#include "../../examples/frame/ppo/numbers.h"
#include "../../examples/frame/model/causal.h"
#include "../../examples/frame/score/reward.h"
#include "../../examples/gpt/model.h"
#include "../../examples/llm/model.h"
#include "../../examples/opt/model.h"

#define GOLDEN "tests/golden/ppo/ppo.safetensors"

enum { TEXTS = 5, TOKENS = 9, CELLS = TEXTS * TOKENS, ROWS = 2, STEPS = 20, MOST = 37 * 64 };
enum { LONGEST = 8 }; /* tokens that an answer may have */

static void close_session(void *s) { session_close(s); }

/* A tensor of the file, of `count` numbers; false after reporting. */
static bool take(test *t, zf_safetensors *file, const char *name, double *out, int64_t count)
{
    int64_t there = 0;
    double *x = file ? values_of(file, name, &there) : NULL;
    const bool good = x && there == count;
    if (good) memcpy(out, x, (size_t)count * sizeof *out);
    free(x);
    if (!good) test_fail(t, __FILE__, __LINE__, name, "is not in the file, or has another size");
    return good;
}

/* ------------------------------------------------------------------------------------ the host */

static bool near_all(const double *x, const double *y, int64_t count, double error)
{
    for (int64_t k = 0; k < count; k++)
        if (!(fabs(x[k] - y[k]) <= error * (1 + fabs(y[k])))) return false;
    return true;
}

TEST_ONCE(ppo_numbers_are_those_of_trl)
{
    enum { LABELS, OLD, REFERENCE, VALUES, REWARD, ADVANTAGE, RETURNS, COUNT };
    static const char *const names[COUNT] = {"labels", "old",       "reference", "old_values",
                                             "reward", "advantage", "returns"};
    const zf_advantage_desc d = {
        .kl_reward = 0.1, .reward_clip = 1.5, .gamma = 0.97, .lambda = 0.9};
    zf_safetensors *file = open_file(t, GOLDEN);
    double in[COUNT][CELLS], score[TEXTS], beta, share;
    double reward[CELLS], advantage[CELLS], returns[CELLS];
    int32_t labels[CELLS];
    const zf_answers a = {TEXTS, TOKENS, labels};
    for (int k = 0; k < COUNT; k++)
        if (!take(t, file, names[k], in[k], CELLS)) return;
    if (!take(t, file, "score", score, TEXTS) || !take(t, file, "beta", &beta, 1) ||
        !take(t, file, "explained", &share, 1))
        return;
    for (int k = 0; k < CELLS; k++) labels[k] = (int32_t)in[LABELS][k];
    zf_token_rewards(&a, score, in[OLD], in[REFERENCE], &d, reward);
    CHECK(t, near_all(reward, in[REWARD], CELLS, 1e-12));
    zf_returns(&a, reward, in[VALUES], &d, advantage, returns);
    zf_whiten(&a, advantage);
    CHECK(t, near_all(advantage, in[ADVANTAGE], CELLS, 1e-12));
    CHECK(t, near_all(returns, in[RETURNS], CELLS, 1e-12));
    CHECK_NEAR(t, ppo_explained(&a, in[VALUES], returns), share, 1e-12);
    CHECK_NEAR(t, ppo_beta(0.1, ppo_kl(&a, in[OLD], in[REFERENCE]), 0.05, TEXTS, 40), beta, 1e-15);
}

/* No answer, one return, and a factor that is to stay. */
TEST_ONCE(ppo_numbers_without_answers)
{
    const int32_t none[4] = {-100, -100, -100, -100}, one[4] = {-100, 3, -100, -100};
    const zf_answers empty = {2, 2, none}, single = {2, 2, one};
    const double x[4] = {NAN, 1, NAN, NAN}, y[4] = {NAN, 3, NAN, NAN};
    CHECK(t, isnan(ppo_explained(&empty, x, y)) && isnan(ppo_explained(&single, x, y)));
    CHECK(t, ppo_kl(&empty, x, y) == 0 && ppo_kl(&single, x, y) == -2);
    CHECK(t, ppo_beta(0.1, 5, 0, 8, 10) == 0.1 && ppo_beta(0.1, 0.2, 0.2, 8, 10) == 0.1);
    CHECK_NEAR(t, ppo_beta(0.1, 5, 0.2, 5, 10), 0.11, 1e-15);
    CHECK_NEAR(t, ppo_beta(0.1, -5, 0.2, 5, 10), 0.09, 1e-15);
}

/* ---------------------------------------------------------------------------------- the models */

static const zf_value_desc value_loss = {.clip = 0.2};
static const policy_graph graphs[2] = {
    {.loss = {.loss = ZF_POLICY_BNPO, .clip_low = 0.2}, .temperature = 1},
    {.loss = {.loss = ZF_POLICY_BNPO, .clip_low = 0.2},
     .temperature = 1,
     .texts = 1,
     .text_coefficient = 0.7}};

typedef struct model {
    const char *name, *folder, *loss, *losses;
    bool scores;
    const policy_graph *policy;
} model;
static const model
    actor = {"actor", "tests/golden/llm/llama2", "actor.loss", "actor.losses", false, &graphs[0]},
    critic = {"critic", "tests/golden/reward/llama", "critic.loss", "critic.losses", true, NULL},
    text = {"text", "tests/golden/llm/llama2", "actor.text_loss", NULL, false, &graphs[1]};

static zf_policy_kind kind_of(const model *m)
{
    return m->policy ? m->policy->loss.loss : ZF_POLICY_BNPO;
}

static bool open_model(test *t, const sample_model *sample, const model *m, session *s,
                       zf_training training, const char *scope)
{
    static zf_config_any config; /* outlive what the test defers */
    zf_error error = {ZF_OK, ""};
    zf_weights_report report;
    session_desc d = {.sample = sample,
                      .purpose = SAMPLE_TRAIN,
                      .config = &config,
                      .training = training,
                      .threads = 1,
                      .shape = {.batch = TEXTS,
                                .sequence = TOKENS,
                                .policy = m->policy,
                                .value = m->scores ? &value_loss : NULL,
                                .scope = scope}};
    bool good = session_config(sample, m->folder, NULL, &config, &error) &&
                session_open(s, &d, &error);
    if (good) test_defer(t, close_session, s);
    good = good && (scope || session_take(s, m->folder, &report, &error));
    if (!good) test_unwind(t, __FILE__, __LINE__, m->name, error.status, error.text);
    return good;
}

static bool write_floats(session *s, const char *input, const double *x, int64_t count)
{
    float to[CELLS];
    for (int64_t k = 0; k < count; k++) to[k] = (float)x[k];
    return !session_write(s, input, to, (size_t)count * sizeof *to);
}

static bool write_ids(session *s, const char *input, const double *x, int64_t count)
{
    int32_t to[CELLS];
    for (int64_t k = 0; k < count; k++) to[k] = (int32_t)x[k];
    return !session_write(s, input, to, (size_t)count * sizeof *to);
}

/* Writes the answers, with the weights of a loss: numbers that the model does not have are left
 * out. */
static bool write_answers(test *t, zf_safetensors *file, session *s, zf_policy_kind kind)
{
    static const char *const floats[] = {"old", "advantage", "reference", "returns", "old_values"};
    double ids[CELLS], labels[CELLS], x[CELLS], weight[TEXTS], ones[CELLS];
    int32_t words[CELLS];
    if (!take(t, file, "ids", ids, CELLS) || !take(t, file, "labels", labels, CELLS)) return false;
    for (int k = 0; k < CELLS; k++) words[k] = (int32_t)labels[k], ones[k] = 1;
    zf_policy_weights(&(zf_answers){TEXTS, TOKENS, words}, kind, LONGEST, weight);
    for (int k = 0; k < 5; k++)
        if (!take(t, file, floats[k], x, CELLS) || !write_floats(s, floats[k], x, CELLS))
            return false;
    return write_ids(s, "input_ids", ids, CELLS) && write_ids(s, "labels", labels, CELLS) &&
           write_floats(s, "weight", weight, TEXTS) && write_floats(s, "correction", ones, CELLS);
}

/* Row `row` of the text of --ptx. */
static bool write_row(test *t, zf_safetensors *file, session *s, int64_t row)
{
    double ids[ROWS * TOKENS], labels[ROWS * TOKENS];
    const double share = 1.0 / (ROWS * TOKENS);
    return take(t, file, "text_ids", ids, ROWS * TOKENS) &&
           take(t, file, "text_labels", labels, ROWS * TOKENS) &&
           write_ids(s, "text_ids", ids + row * TOKENS, TOKENS) &&
           write_ids(s, "text_labels", labels + row * TOKENS, TOKENS) &&
           write_floats(s, "text_share", &share, 1);
}

/* Gradients against those of the file; an error of 1e-7 is none. */
static void check_gradients(test *t, const model *m, session *s, zf_safetensors *golden)
{
    const char *path = test_path("ppo-gradients.safetensors");
    zf_error error = {ZF_OK, ""};
    zf_safetensors *own;
    CHECK(t, zf_exchange_export(llm_sample.exchange(), s->program, s->graph, path, true, ZF_F32,
                                &error));
    CHECK(t, (own = open_file(t, path)) != NULL);
    for (int32_t i = 0; i < zf_param_count(s->graph); i++) {
        const char *name = zf_tensor_name(zf_param_at(s->graph, i));
        const int64_t count = zf_shape_count(zf_param_shape(zf_param_at(s->graph, i)));
        char wanted[200];
        double x[MOST], y[MOST], off = 0;
        snprintf(wanted, sizeof wanted, "%s/%s", m->name, name);
        CHECK(t, count <= MOST);
        if (!take(t, own, name, x, count) || !take(t, golden, wanted, y, count)) return;
        for (int64_t k = 0; k < count; k++) off += (x[k] - y[k]) * (x[k] - y[k]);
        off = fmax(0, off - 1e-14 * (double)count) / (square_sum(y, count) + 1e-30);
        if (off > 1e-8) test_fail(t, __FILE__, __LINE__, "a gradient is that of torch", wanted);
    }
}

static void check_step(test *t, const model *m)
{
    static session s; /* outlives what the test defers */
    zf_safetensors *golden = open_file(t, GOLDEN);
    const double none = 0;
    double loss;
    if (!take(t, golden, m->loss, &loss, 1) ||
        !open_model(t, &llm_sample, m, &s, (zf_training){.keep_gradients = true}, NULL))
        return;
    CHECK(t, write_floats(&s, "lr", &none, 1) && write_answers(t, golden, &s, kind_of(m)));
    OK(t, zf_step(s.program), zf_program_error(s.program));
    CHECK_NEAR(t, session_scalar(&s, "loss"), loss, 1e-6 * fabs(loss));
    check_gradients(t, m, &s, golden);
    session_close(&s);
}

TEST_ONCE(ppo_actor_loss_is_that_of_torch) { check_step(t, &actor); }
TEST_ONCE(ppo_critic_loss_is_that_of_torch) { check_step(t, &critic); }

/* In two parts, the first of which has all answers, and the second none: each has a row of the text. */
TEST_ONCE(ppo_text_loss_is_that_of_torch)
{
    static session s; /* outlives what the test defers */
    zf_safetensors *golden = open_file(t, GOLDEN);
    const double none = 0;
    double nothing[CELLS], loss;
    for (int k = 0; k < CELLS; k++) nothing[k] = -100;
    if (!take(t, golden, text.loss, &loss, 1) ||
        !open_model(t, &llm_sample, &text, &s,
                    (zf_training){.keep_gradients = true, .zero = {.micro_batches = 2}}, NULL))
        return;
    CHECK(t, write_floats(&s, "lr", &none, 1) && write_answers(t, golden, &s, kind_of(&text)) &&
                 write_row(t, golden, &s, 0));
    OK(t, zf_micro(s.program), zf_program_error(s.program));
    CHECK(t, write_ids(&s, "labels", nothing, CELLS) && write_row(t, golden, &s, 1));
    OK(t, zf_step(s.program), zf_program_error(s.program));
    CHECK_NEAR(t, session_scalar(&s, "loss"), loss, 1e-6 * loss);
    check_gradients(t, &text, &s, golden);
    session_close(&s);
}

/* Opens a model that trains, and writes the answers. */
static bool open_steps(test *t, zf_safetensors *golden, const sample_model *sample, const model *m,
                       session *s)
{
    const zf_training training = {.adamw = {.weight_decay = ZF_ZERO}, .clip = 1};
    const double lr = 1e-3;
    return open_model(t, sample, m, s, training, NULL) && write_floats(s, "lr", &lr, 1) &&
           write_answers(t, golden, s, kind_of(m));
}

static void make_steps(test *t, session *s, const double losses[STEPS])
{
    for (int k = 0; k < STEPS; k++) {
        OK(t, zf_step(s->program), zf_program_error(s->program));
        CHECK_NEAR(t, session_scalar(s, "loss"), losses[k], 1e-5);
    }
    session_close(s);
}

static void check_steps(test *t, const model *m)
{
    static session s; /* outlives what the test defers */
    zf_safetensors *golden = open_file(t, GOLDEN);
    double losses[STEPS];
    CHECK(t, take(t, golden, m->losses, losses, STEPS));
    CHECK(t, open_steps(t, golden, &llm_sample, m, &s));
    make_steps(t, &s, losses);
}

static void check_family(test *t, const sample_model *sample, const model *m)
{
    static session s; /* outlives what the test defers */
    static const char *const own[] = {"old", "reference"};
    zf_safetensors *golden = open_file(t, GOLDEN);
    double losses[STEPS], x[CELLS];
    char name[40];
    snprintf(name, sizeof name, "%s.losses", m->name);
    CHECK(t, take(t, golden, name, losses, STEPS) && open_steps(t, golden, sample, m, &s));
    for (int k = 0; k < 2; k++) {
        snprintf(name, sizeof name, "%s.%s", m->name, own[k]);
        CHECK(t, take(t, golden, name, x, CELLS) && write_floats(&s, own[k], x, CELLS));
    }
    make_steps(t, &s, losses);
}

TEST_ONCE(ppo_steps_are_those_of_torch)
{
    check_steps(t, &actor);
    if (!t->failed) check_steps(t, &critic);
}

/* A loss of GRPO by TRL's code: a first step, and twenty on the same answers, whose ratios leave
 * 1. */
static void check_grpo(test *t, const char *name, zf_policy_kind kind, double beta)
{
    char loss[40], losses[40];
    const bool cispo = kind == ZF_POLICY_CISPO;
    const policy_graph graph = {.loss = {.loss = kind,
                                         .clip_low = cispo ? 0 : 0.2,
                                         .cap = cispo ? 1.2 : 0,
                                         .kl_beta = beta},
                                .temperature = 1};
    const model m = {name, actor.folder, loss, losses, false, &graph};
    snprintf(loss, sizeof loss, "%s.loss", name);
    snprintf(losses, sizeof losses, "%s.losses", name);
    check_step(t, &m);
    if (!t->failed) check_steps(t, &m);
}

TEST_ONCE(grpo_loss_is_that_of_trl) { check_grpo(t, "grpo", ZF_POLICY_GRPO, 0); }
TEST_ONCE(grpo_loss_with_kl_is_that_of_trl) { check_grpo(t, "grpo_kl", ZF_POLICY_GRPO, 0.04); }
TEST_ONCE(grpo_loss_bnpo_is_that_of_trl) { check_grpo(t, "bnpo_kl", ZF_POLICY_BNPO, 0.04); }
TEST_ONCE(grpo_loss_dapo_is_that_of_trl) { check_grpo(t, "dapo", ZF_POLICY_DAPO, 0); }
TEST_ONCE(grpo_loss_dr_grpo_is_that_of_trl)
{
    check_grpo(t, "dr_grpo_kl", ZF_POLICY_DR_GRPO, 0.04);
}
TEST_ONCE(grpo_loss_gspo_is_that_of_trl) { check_grpo(t, "gspo", ZF_POLICY_GSPO, 0); }
TEST_ONCE(grpo_loss_cispo_is_that_of_trl) { check_grpo(t, "cispo_kl", ZF_POLICY_CISPO, 0.04); }

/* A loss of GRPO of other families: twenty steps, before which log p of the parameters that sampled
 * and of the reference are near those of the model. */
TEST_ONCE(grpo_steps_of_every_family_are_those_of_trl)
{
    static const struct {
        const sample_model *sample;
        const char *name, *folder;
    } families[] = {{&llm_sample, "llama3", "tests/golden/llm/llama3"},
                    {&llm_sample, "qwen2", "tests/golden/llm/qwen2"},
                    {&gpt_sample, "gpt2", "tests/golden/hf/gpt"},
                    {&opt_sample, "opt", "tests/golden/opt/before"},
                    {&opt_sample, "opt_after", "tests/golden/opt/after"}};
    const policy_graph graph = {.loss = {.clip_low = 0.2, .kl_beta = 0.04}, .temperature = 1};
    for (size_t k = 0; k < sizeof families / sizeof *families && !t->failed; k++) {
        const model m = {families[k].name, families[k].folder, NULL, NULL, false, &graph};
        check_family(t, families[k].sample, &m);
    }
}

/* A critic with parameters of its own has them in its scope, and inputs and outputs outside of it. */
TEST_ONCE(ppo_critic_has_a_scope)
{
    static session s; /* outlives what the test defers */
    static const sample_model *const samples[] = {&llm_sample, &gpt_sample, &opt_sample};
    static const char *const folders[] = {"llama", "gpt2", "opt"};
    for (int i = 0; i < 3; i++) {
        char folder[100];
        model m = critic;
        snprintf(folder, sizeof folder, "tests/golden/reward/%s", folders[i]);
        m.folder = folder;
        if (!open_model(t, samples[i], &m, &s, (zf_training){.name = "critic"}, "critic")) return;
        for (int32_t k = 0; k < zf_param_count(s.graph); k++)
            CHECK(t, !strncmp(zf_tensor_name(zf_param_at(s.graph, k)), "critic.", 7));
        CHECK(t, zf_valid(zf_graph_find(s.graph, "critic.score.weight")));
        CHECK(t, zf_valid(zf_graph_find(s.graph, "input_ids")));
        CHECK(t, zf_valid(zf_graph_find(s.graph, "returns")));
        session_close(&s);
    }
}
