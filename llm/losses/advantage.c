/* Numbers of a batch of answers, in f64. Sums go through texts and tokens in their order.
 *
 *     group       A_i = (R_i - mean) / (std + 1e-4), std^2 = sum (R - mean)^2 / (n - 1)
 *     mean        A_i = R_i - mean
 *     rloo        A_i = R_i - (n mean - R_i) / (n - 1) = n / (n - 1) (R_i - mean)
 *     rewards     r_t = -kl_reward (log p_t - ref_t), + clip(score, +-c) at the last token
 *     GAE         delta_t = r_t + gamma V_t+1 - V_t, A_t = delta_t + gamma lambda A_t+1,
 *                 R_t = A_t + V_t
 *     whitening   (x - mean) / sqrt(sum (x - mean)^2 / (n - 1) + 1e-8)
 *     overlong    -min(length - (most - buffer), buffer) / buffer, from most - buffer on
 *     sampler     w_t = exp(old_t - sampled_t)
 *
 * R is taken relative to the first reward of the group, so that equal rewards give exactly 0. */
#include <math.h>
#include <string.h>

ZF_API const zf_option *zf_advantage_options(void)
{
    static const zf_option rows[] = {
        ZF_OPTION(zf_advantage_desc, CHOICE, advantage, ZF_ADVANTAGE_GROUP,
                  "group|mean|rloo|reward", .topic = "advantages",
                  .traits = ZF_OPTION_CHANGES | ZF_OPTION_BASIC,
                  .help = "what a reward is compared with: its group, with or without the "
                          "deviation, the others, or nothing"),
        ZF_OPTION(zf_advantage_desc, FLAG, whiten, 0, NULL, .traits = ZF_OPTION_CHANGES,
                  .help = "advantages of all tokens get the mean 0 and the variance 1"),
        ZF_OPTION(zf_advantage_desc, NUMBER, kl_reward, 0, "[0,inf)", .traits = ZF_OPTION_CHANGES,
                  .help = "how much the KL divergence to the reference takes from rewards"),
        ZF_OPTION(zf_advantage_desc, NUMBER, reward_clip, 0, "[0,inf)", .traits = ZF_OPTION_CHANGES,
                  .help = "scores are within +- this; 0: as they are"),
        ZF_OPTION(zf_advantage_desc, FLAG, score_after, 0, NULL, .traits = ZF_OPTION_CHANGES,
                  .help = "the score belongs to an action after the last token, which is not "
                          "trained (DeepSpeed-Chat)"),
        ZF_OPTION(zf_advantage_desc, NUMBER, gamma, 1, "(0,1]", .traits = ZF_OPTION_CHANGES,
                  .help = "discount of a token"),
        ZF_OPTION(zf_advantage_desc, NUMBER, lambda, 0.95, "[0,1]", .traits = ZF_OPTION_CHANGES,
                  .help = "how far advantages look ahead (GAE)"),
        ZF_OPTION(zf_advantage_desc, CHOICE, correction, ZF_CORRECTION_NONE,
                  "none|truncate|mask|sequence", .traits = ZF_OPTION_CHANGES,
                  .help = "what is done where sampler and trainer disagree"),
        ZF_OPTION(zf_advantage_desc, NUMBER, correction_low, 0, "[0,1]",
                  .with = "correction=truncate|mask|sequence", .traits = ZF_OPTION_CHANGES,
                  .help = "the least ratio of their probabilities"),
        ZF_OPTION(zf_advantage_desc, NUMBER, correction_high, 2, "[1,inf)",
                  .with = "correction=truncate|mask|sequence", .traits = ZF_OPTION_CHANGES,
                  .help = "the largest ratio of their probabilities"),
        {.name = NULL}};
    return rows;
}

static zf_advantage_desc zfl_advantage_desc(const zf_advantage_desc *desc)
{
    zf_advantage_desc d = desc ? *desc : (zf_advantage_desc){.gamma = 0};
    zf_options_resolve(&(zf_options){.rows = zf_advantage_options(), .desc = &d}, 1);
    return d;
}

static bool zfl_is_answer(const zf_answers *a, int64_t at) { return a->labels[at] != -100; }

static int64_t zfl_answer_length(const zf_answers *a, int64_t text)
{
    int64_t count = 0;
    for (int64_t k = 0; k < a->tokens; k++) count += zfl_is_answer(a, text * a->tokens + k);
    return count;
}

int64_t zf_answers_leave_out(int32_t *labels, int64_t texts, int64_t tokens, const double *reward)
{
    const zf_answers a = {texts, tokens, labels};
    int64_t count = 0;
    for (int64_t i = 0; i < texts; i++) {
        for (int64_t k = 0; k < tokens && isnan(reward[i]); k++) labels[i * tokens + k] = -100;
        count += zfl_answer_length(&a, i) > 0;
    }
    return count;
}

/* ---------------------------------------------------------------------------------- advantages */

/* The group of answer i, whose rewards are taken relative to that of its first one. */
typedef struct zfl_peers {
    double first, mean, std;
    int64_t count;
} zfl_peers;

static zfl_peers zfl_peers_of(const double *reward, const int32_t *group, int64_t count, int32_t id)
{
    zfl_peers g = {.count = 0};
    double squares = 0;
    for (int64_t i = 0; i < count; i++) {
        if (group[i] != id || isnan(reward[i])) continue;
        if (!g.count++) g.first = reward[i];
        g.mean += reward[i] - g.first;
    }
    if (g.count) g.mean /= (double)g.count;
    for (int64_t i = 0; i < count; i++)
        if (group[i] == id && !isnan(reward[i])) squares += pow(reward[i] - g.first - g.mean, 2);
    if (g.count > 1) g.std = sqrt(squares / (double)(g.count - 1));
    return g;
}

static double zfl_advantage(const zfl_peers *g, zf_advantage_kind kind, double reward)
{
    const double by = reward - g->first - g->mean, n = (double)g->count;
    switch (kind) {
    case ZF_ADVANTAGE_GROUP: return by / (g->std + 1e-4);
    case ZF_ADVANTAGE_RLOO: return g->count > 1 ? by * n / (n - 1) : 0;
    case ZF_ADVANTAGE_REWARD: return reward;
    default: return by;
    }
}

void zf_group_advantages(const double *reward, const int32_t *group, int64_t count,
                         zf_advantage_kind kind, double *advantage)
{
    zfl_peers g = {.count = 0};
    for (int64_t i = 0; i < count; i++) {
        if (!i || group[i] != group[i - 1]) g = zfl_peers_of(reward, group, count, group[i]);
        advantage[i] = isnan(reward[i]) ? 0 : zfl_advantage(&g, kind, reward[i]);
    }
}

double zf_group_deviation(const double *reward, const int32_t *group, int64_t count, int32_t id)
{
    return zfl_peers_of(reward, group, count, id).std;
}

/* The place after the last token of an answer; -1: none, or it is outside of the row. */
static int64_t zfl_place_after(const zf_answers *a, int64_t text)
{
    int64_t k = (text + 1) * a->tokens;
    const int64_t end = k;
    while (k > text * a->tokens && !zfl_is_answer(a, k - 1)) k--;
    return k == end || k == text * a->tokens ? -1 : k;
}

void zf_token_rewards(const zf_answers *a, const double *score, const double *logp,
                      const double *reference, const zf_advantage_desc *desc, double *reward)
{
    const zf_advantage_desc d = zfl_advantage_desc(desc);
    const double most = d.reward_clip > 0 ? d.reward_clip : INFINITY;
    for (int64_t i = 0; i < a->texts; i++) {
        const int64_t after = d.score_after ? zfl_place_after(a, i) : -1;
        int64_t last = -1;
        for (int64_t k = i * a->tokens; k < (i + 1) * a->tokens; k++) {
            reward[k] = 0;
            if (!zfl_is_answer(a, k)) continue;
            if (d.kl_reward > 0) reward[k] = -d.kl_reward * (logp[k] - reference[k]);
            last = k;
        }
        if (after >= 0) last = after;
        if (last >= 0) reward[last] += fmax(-most, fmin(score[i], most));
    }
}

void zf_returns(const zf_answers *a, const double *reward, const double *value,
                const zf_advantage_desc *desc, double *advantage, double *returns)
{
    const zf_advantage_desc d = zfl_advantage_desc(desc);
    for (int64_t i = 0; i < a->texts; i++) {
        const int64_t after = d.score_after ? zfl_place_after(a, i) : -1;
        double later = 0, next = 0; /* A and V of the next token */
        for (int64_t k = (i + 1) * a->tokens - 1; k >= i * a->tokens; k--) {
            const bool answers = zfl_is_answer(a, k), acts = answers || k == after;
            const double own = acts && value ? value[k] : 0;
            if (acts) {
                later = reward[k] + d.gamma * next - own + d.gamma * d.lambda * later;
                next = own;
            }
            advantage[k] = answers ? later : 0;
            if (returns) returns[k] = answers ? later + own : 0;
        }
    }
}

void zf_whiten(const zf_answers *a, double *x)
{
    const int64_t all = a->texts * a->tokens;
    double mean = 0, squares = 0, count = 0, by = 1;
    for (int64_t k = 0; k < all; k++)
        if (zfl_is_answer(a, k)) mean += x[k], count++;
    mean = count > 1 ? mean / count : 0;
    for (int64_t k = 0; k < all; k++)
        if (zfl_is_answer(a, k)) squares += (x[k] - mean) * (x[k] - mean);
    if (count > 1) by = 1 / sqrt(squares / (count - 1) + 1e-8);
    for (int64_t k = 0; k < all; k++) x[k] = zfl_is_answer(a, k) ? (x[k] - mean) * by : 0;
}

double zf_overlong_penalty(int64_t length, int64_t most, int64_t buffer)
{
    const int64_t over = length - (most - buffer);
    if (buffer <= 0 || over <= 0) return 0;
    return -(double)(over < buffer ? over : buffer) / (double)buffer;
}

/* ------------------------------------------------------------------------------------- weights */

void zf_policy_weights(const zf_answers *a, zf_policy_kind kind, int64_t longest, double *weight)
{
    int64_t texts = 0, all = 0;
    for (int64_t i = 0; i < a->texts; i++) {
        const int64_t count = zfl_answer_length(a, i);
        texts += count > 0, all += count;
    }
    for (int64_t i = 0; i < a->texts; i++) {
        const int64_t count = zfl_answer_length(a, i);
        double by = (double)all;
        if (kind == ZF_POLICY_GRPO || kind == ZF_POLICY_GSPO) by = (double)texts * (double)count;
        if (kind == ZF_POLICY_DR_GRPO) by = (double)texts * (double)longest;
        weight[i] = count > 0 ? 1 / by : 0;
    }
}

/* old - sampled; 0 where that is not known. */
static double zfl_log_correction(double old, double sampled)
{
    return isnan(sampled) ? 0 : old - sampled;
}

static double zfl_correction(const zf_advantage_desc *d, double log_w)
{
    const double w = exp(log_w);
    if (d->correction == ZF_CORRECTION_NONE) return 1;
    if (d->correction == ZF_CORRECTION_TRUNCATE)
        return fmax(d->correction_low, fmin(w, d->correction_high));
    return w < d->correction_low || w > d->correction_high ? 0 : w;
}

void zf_sampler_weights(const zf_answers *a, const double *old, const double *sampled,
                        const zf_advantage_desc *desc, double *weight)
{
    const zf_advantage_desc d = zfl_advantage_desc(desc);
    for (int64_t i = 0; i < a->texts; i++) {
        double whole = 0;
        for (int64_t k = i * a->tokens; k < (i + 1) * a->tokens; k++)
            if (zfl_is_answer(a, k)) whole += zfl_log_correction(old[k], sampled[k]);
        for (int64_t k = i * a->tokens; k < (i + 1) * a->tokens; k++) {
            const bool answers = zfl_is_answer(a, k);
            const double by = d.correction == ZF_CORRECTION_SEQUENCE || !answers
                                  ? whole
                                  : zfl_log_correction(old[k], sampled[k]);
            weight[k] = answers ? zfl_correction(&d, by) : 0;
        }
    }
}
