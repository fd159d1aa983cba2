/* Numbers of a batch of answers (llm/losses/advantage.c) against formulas in float64
 * (tests/golden/losses/make.py), and what holds of them without any. */
#include "../../zeroflow_llm.h"
#include "../support/golden.h"

enum { TEXTS = 8, TOKENS = 7, CELLS = TEXTS * TOKENS, ANSWERS = 12 };

/* The golden table: labels, and values by name. */
typedef struct table {
    zf_safetensors *file;
    int32_t labels[CELLS];
    zf_answers answers;
} table;

/* x[0..count) of the golden file; the test fails where it has no such tensor. */
static void take(test *t, const table *of, const char *name, double *x, int64_t count)
{
    int64_t there = 0;
    double *values = values_of(of->file, name, &there);
    if (values && there == count) memcpy(x, values, (size_t)count * sizeof *x);
    else test_fail(t, __FILE__, __LINE__, name, "is in the golden file");
    free(values);
}

static bool open_table(test *t, table *of)
{
    double labels[CELLS] = {0};
    *of = (table){.file = open_file(t, "tests/golden/losses/losses.safetensors")};
    if (!of->file) return false;
    take(t, of, "labels", labels, CELLS);
    for (int i = 0; i < CELLS; i++) of->labels[i] = (int32_t)labels[i];
    of->answers = (zf_answers){TEXTS, TOKENS, of->labels};
    return !t->failed;
}

static void check_near(test *t, const table *of, const char *name, const double *x, int64_t count)
{
    double exact[CELLS] = {0};
    take(t, of, name, exact, count);
    for (int64_t i = 0; i < count && !t->failed; i++)
        CHECK_NEAR(t, x[i], exact[i], 1e-12 * (1 + fabs(exact[i])));
}

/* Prompts are interleaved; a group has a reward that is NaN, one has equal ones, two have one
 * answer. */
TEST_ONCE(advantages_of_groups)
{
    static const char *const names[] = {"advantage.group", "advantage.mean", "advantage.rloo"};
    double rewards[ANSWERS], group[ANSWERS], advantage[ANSWERS];
    int32_t ids[ANSWERS];
    table of;
    if (!open_table(t, &of)) return;
    take(t, &of, "rewards", rewards, ANSWERS), take(t, &of, "group", group, ANSWERS);
    for (int i = 0; i < ANSWERS; i++) ids[i] = (int32_t)group[i];
    for (int kind = 0; kind < 3; kind++) {
        zf_group_advantages(rewards, ids, ANSWERS, (zf_advantage_kind)kind, advantage);
        check_near(t, &of, names[kind], advantage, ANSWERS);
        if (t->failed) return;
    }
}

/* Rounding of a mean of equal rewards would be divided by a deviation of rounding. */
TEST(advantages_of_equal_rewards_are_0)
{
    static const double rewards[] = {0.95, 0.1, 1e6 / 3, 0.7};
    for (int k = 0; k < 4; k++)
        for (int kind = 0; kind < 3; kind++) {
            double reward[16], advantage[16];
            int32_t group[16];
            for (int i = 0; i < 16; i++) reward[i] = i % 2 ? rewards[k] : i, group[i] = i % 2;
            zf_group_advantages(reward, group, 16, (zf_advantage_kind)kind, advantage);
            for (int i = 1; i < 16; i += 2) CHECK(t, advantage[i] == 0);
            CHECK(t, advantage[0] < -0.5);
            CHECK(t, zf_group_deviation(reward, group, 16, 1) == 0);
            CHECK_NEAR(t, zf_group_deviation(reward, group, 16, 0), sqrt(24), 1e-14);
        }
}

/* The score is at the last token of an answer, whether it ended or was cut at the end of the
 * row. */
TEST(advantages_have_the_score_at_the_last_token)
{
    enum { N = 6 };
    const int32_t labels[2 * N] = {-100, 5, 6, 2, -100, -100, -100, -100, 5, 6, 7, 8};
    const double score[2] = {3, -2};
    const zf_answers a = {2, N, labels};
    double reward[2 * N], advantage[2 * N], returns[2 * N];
    zf_token_rewards(&a, score, NULL, NULL, NULL, reward);
    zf_returns(&a, reward, NULL, &(zf_advantage_desc){.lambda = ZF_ZERO}, advantage, returns);
    for (int k = 0; k < 2 * N; k++) {
        const double there = k == 3 ? 3 : k == 2 * N - 1 ? -2 : 0;
        CHECK(t, advantage[k] == there && returns[k] == there);
    }
    zf_returns(&a, reward, NULL, &(zf_advantage_desc){.lambda = 1}, advantage, NULL);
    for (int k = 0; k < 2 * N; k++)
        CHECK(t, advantage[k] == (labels[k] == -100 ? 0 : k < N ? 3 : -2));
}

TEST_ONCE(advantages_of_tokens)
{
    static const zf_advantage_desc shape = {.kl_reward = 0.1, .reward_clip = 3},
                                   look = {.gamma = 0.97, .lambda = 0.9}, plus = {.lambda = 1};
    double logp[CELLS], reference[CELLS], value[CELLS], score[TEXTS];
    double reward[CELLS], advantage[CELLS], returns[CELLS];
    table of;
    if (!open_table(t, &of)) return;
    take(t, &of, "logp", logp, CELLS), take(t, &of, "reference", reference, CELLS);
    take(t, &of, "value", value, CELLS), take(t, &of, "score_of_texts", score, TEXTS);
    zf_token_rewards(&of.answers, score, logp, reference, &shape, reward);
    check_near(t, &of, "token_rewards", reward, CELLS);
    zf_returns(&of.answers, reward, value, &look, advantage, returns);
    check_near(t, &of, "gae.advantage", advantage, CELLS);
    check_near(t, &of, "gae.returns", returns, CELLS);
    zf_returns(&of.answers, reward, NULL, &plus, advantage, NULL);
    check_near(t, &of, "reinforce.advantage", advantage, CELLS);
    zf_whiten(&of.answers, advantage);
    check_near(t, &of, "reinforce.whitened", advantage, CELLS);
}

/* DeepSpeed-Chat's place of the score, by its code line by line; some answers fill their rows. */
TEST_ONCE(advantages_of_a_score_after_the_answer)
{
    static const zf_advantage_desc d = {.kl_reward = 0.1, .reward_clip = 3, .score_after = true,
                                        .gamma = 0.97, .lambda = 0.9};
    double logp[CELLS], reference[CELLS], value[CELLS], score[TEXTS];
    double reward[CELLS], advantage[CELLS], returns[CELLS];
    table of;
    if (!open_table(t, &of)) return;
    take(t, &of, "logp", logp, CELLS), take(t, &of, "reference", reference, CELLS);
    take(t, &of, "value", value, CELLS), take(t, &of, "score_of_texts", score, TEXTS);
    zf_token_rewards(&of.answers, score, logp, reference, &d, reward);
    check_near(t, &of, "chat.rewards", reward, CELLS);
    zf_returns(&of.answers, reward, value, &d, advantage, returns);
    check_near(t, &of, "chat.advantage", advantage, CELLS);
    check_near(t, &of, "chat.returns", returns, CELLS);
}

/* All of an answer's numbers are those without what is around it, whatever that is. */
TEST(advantages_read_nothing_outside_of_answers)
{
    enum { N = 9 };
    static const int32_t labels[N] = {-100, 1, 2, -100, -100, 3, 4, 5, -100},
                         bare[5] = {1, 2, 3, 4, 5};
    const zf_advantage_desc d = {.kl_reward = 0.3, .gamma = 0.9, .lambda = 0.8};
    const zf_answers all = {1, N, labels}, only = {1, 5, bare};
    const double score = 2;
    double in[3][N], out[3][N], small[3][5], made[3][5];
    for (int k = 0, at = 0; k < N; k++)
        for (int i = 0; i < 3; i++) {
            in[i][k] = labels[k] == -100 ? NAN : sin(7 * k + i);
            if (labels[k] != -100) small[i][at] = in[i][k], at += i == 2;
        }
    zf_token_rewards(&all, &score, in[0], in[1], &d, out[0]);
    zf_token_rewards(&only, &score, small[0], small[1], &d, made[0]);
    zf_returns(&all, out[0], in[2], &d, out[1], out[2]);
    zf_returns(&only, made[0], small[2], &d, made[1], made[2]);
    for (int k = 0; k < N; k++)
        if (labels[k] == -100) out[1][k] = NAN;
    zf_whiten(&all, out[1]), zf_whiten(&only, made[1]);
    for (int k = 0, at = 0; k < N; k++)
        for (int i = 0; i < 3; i++) {
            CHECK(t, out[i][k] == (labels[k] == -100 ? 0 : made[i][at]));
            at += i == 2 && labels[k] != -100;
        }
}

/* None, one and two tokens. */
TEST(advantages_are_whitened_from_two_tokens_on)
{
    const int32_t none[3] = {-100, -100, -100}, one[3] = {-100, 4, -100}, two[3] = {4, -100, 9};
    double x[3] = {NAN, 5, NAN}, y[3] = {1, NAN, 4};
    zf_whiten(&(zf_answers){1, 3, one}, x);
    CHECK(t, x[0] == 0 && x[1] == 5 && x[2] == 0);
    zf_whiten(&(zf_answers){1, 3, none}, x);
    CHECK(t, x[0] == 0 && x[1] == 0 && x[2] == 0);
    zf_whiten(&(zf_answers){1, 3, two}, y); /* the variance of 1 and 4 is 4.5 */
    CHECK_NEAR(t, y[0], -1.5 / sqrt(4.5 + 1e-8), 1e-15);
    CHECK(t, y[1] == 0 && y[2] == -y[0]);
}

TEST(overlong_penalty_falls_to_minus_1)
{
    CHECK(t, zf_overlong_penalty(80, 100, 20) == 0 && zf_overlong_penalty(5, 100, 20) == 0);
    CHECK(t, zf_overlong_penalty(81, 100, 20) == -0.05 && zf_overlong_penalty(90, 100, 20) == -0.5);
    CHECK(t, zf_overlong_penalty(100, 100, 20) == -1 && zf_overlong_penalty(130, 100, 20) == -1);
    CHECK(t, zf_overlong_penalty(100, 100, 0) == 0);
}

/* Corrections of a sampler that has other log-probabilities than the trainer. */
TEST_ONCE(sampler_weights)
{
    static const char *const names[] = {"correction.truncate", "correction.mask",
                                        "correction.sequence"};
    double old[CELLS], sampled[CELLS], weight[CELLS];
    table of;
    if (!open_table(t, &of)) return;
    take(t, &of, "old", old, CELLS), take(t, &of, "sampled", sampled, CELLS);
    for (int kind = 0; kind < 3; kind++) {
        const zf_advantage_desc d = {.correction = (zf_correction_kind)(kind + 1),
                                     .correction_low = 0.8,
                                     .correction_high = 1.5};
        zf_sampler_weights(&of.answers, old, sampled, &d, weight);
        check_near(t, &of, names[kind], weight, CELLS);
        if (t->failed) return;
    }
    zf_sampler_weights(&of.answers, old, sampled, NULL, weight);
    for (int k = 0; k < CELLS; k++) CHECK(t, weight[k] == (of.labels[k] != -100));
}

/* A text without a score is in no count. */
TEST(answers_without_a_score_are_left_out)
{
    int32_t labels[] = {1, 2, -100, 3, -100, -100, 4, 5, 6, -100, -100, -100};
    const double reward[] = {1, NAN, 0, 2};
    const zf_answers a = {4, 3, labels};
    double weight[4];
    CHECK(t,
          zf_answers_leave_out(labels, 4, 3, reward) == 2 && labels[3] == -100 && labels[0] == 1);
    zf_policy_weights(&a, ZF_POLICY_GRPO, 3, weight);
    CHECK(t, weight[0] == 0.25 && weight[1] == 0 && weight[2] == 1.0 / 6 && weight[3] == 0);
    zf_policy_weights(&a, ZF_POLICY_DAPO, 3, weight);
    CHECK(t, weight[0] == 0.2 && weight[1] == 0 && weight[2] == 0.2);
    zf_policy_weights(&a, ZF_POLICY_DR_GRPO, 8, weight);
    CHECK(t, weight[0] == 1.0 / 16 && weight[1] == 0 && weight[2] == 1.0 / 16);
}
