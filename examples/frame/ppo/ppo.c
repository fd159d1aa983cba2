/* The kind of ppo. Tokens are rewarded by -beta (log p - reference), and the last one by the score
 * as well; their advantages and returns are those of GAE over the values of the critic; advantages
 * are whitened over all answers of the iteration. */
#include "ppo.h"
#include "../options/fail.h"
#include "critic.h"
#include "numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* experience.own */
typedef struct ppo {
    critic critic;
    float *values, *returns; /* [answers, sequence] */
    double beta, used;       /* of the next iteration, and of this one */
    double explained;
} ppo;

/* ------------------------------------------------------------------------------------- opening */

/* DIR of a reward "[W*]model:DIR"; NULL: it is another one. */
static const char *model_of(const char *spec)
{
    char *end;
    const double weight = strtod(spec, &end);
    (void)weight;
    if (end != spec && *end == '*') spec = end + 1;
    return strncmp(spec, "model:", 6) ? NULL : spec + 6;
}

/* The folder that the critic comes from; NULL: it is new. */
static const char *folder_of(const policy_options *o)
{
    const char *folder = o->ppo.critic;
    for (int64_t k = 0; k < (int64_t)o->reward.count && !folder; k++)
        folder = model_of(o->reward.at[k]);
    return folder;
}

/* The factor of the KL divergence: that of a checkpoint, where it changes. */
static bool read_beta(ppo *p, const experience *e, zf_error *error)
{
    const settings *run = e->desc->run;
    char text[40];
    p->beta = e->desc->o->advantage.kl_reward;
    if (!run->load || !(e->desc->o->ppo.kl_target > 0)) return true;
    if (zf_checkpoint_note(run->load, SAMPLE_NOTE, text, sizeof text, error)) return false;
    p->beta = strtod(text, NULL);
    return true;
}

static void close_ppo(experience *e)
{
    ppo *p = e->own;
    if (!p) return;
    critic_close(&p->critic);
    free(p->values), free(p->returns);
    free(p);
    e->own = NULL;
}

static bool open_ppo(experience *e, session *s, zf_error *error)
{
    const size_t cells = (size_t)(e->answers * e->desc->sequence);
    ppo *p = e->own = calloc(1, sizeof *p);
    if (p) p->values = malloc(cells * sizeof *p->values);
    if (p) p->returns = malloc(cells * sizeof *p->returns);
    if (!p || !p->values || !p->returns) fail(error, ZF_ERR_NOMEM, "out of memory");
    if (!error->status && read_beta(p, e, error) &&
        critic_open(&p->critic, e, s, folder_of(e->desc->o), error))
        return true;
    close_ppo(e);
    return false;
}

/* ----------------------------------------------------------------------------------- advantages */

/* Sets advantages and returns. column: room for 6 * cells numbers. */
static void compute(experience *e, ppo *p, double *column, int64_t cells)
{
    const policy_options *o = e->desc->o;
    const zf_answers a = {e->answers, e->desc->sequence, e->labels};
    double *logp = column, *reference = logp + cells, *value = reference + cells,
           *reward = value + cells, *advantage = reward + cells, *returns = advantage + cells;
    zf_advantage_desc d = o->advantage;
    d.kl_reward = p->used = p->beta;
    if (d.lambda == 0) d.lambda = ZF_ZERO;
    for (int64_t k = 0; k < cells; k++) {
        logp[k] = (double)e->old[k], reference[k] = (double)e->reference[k];
        value[k] = (double)p->values[k];
    }
    zf_token_rewards(&a, e->reward, logp, reference, &d, reward);
    zf_returns(&a, reward, value, &d, advantage, returns);
    p->explained = ppo_explained(&a, value, returns);
    if (!o->ppo.no_whiten) zf_whiten(&a, advantage);
    for (int64_t k = 0; k < cells; k++)
        e->advantage[k] = (float)advantage[k], p->returns[k] = (float)returns[k];
    p->beta = ppo_beta(p->beta, ppo_kl(&a, logp, reference), o->ppo.kl_target, e->answers,
                       o->ppo.kl_horizon);
}

static bool advantages(experience *e, session *s, zf_error *error)
{
    ppo *p = e->own;
    const int64_t cells = e->answers * e->desc->sequence;
    double *column;
    (void)s;
    if (!experience_score(e, &p->critic.evaluate, "values", p->values, error)) return false;
    column = malloc(6 * (size_t)cells * sizeof *column);
    if (!column) return fail(error, ZF_ERR_NOMEM, "out of memory");
    compute(e, p, column, cells);
    free(column);
    return true;
}

/* ---------------------------------------------------------------------------------------- steps */

/* The schedule of the policy, with the rates of the critic. */
static zf_schedule schedule_of(const settings *run, double lr)
{
    zf_schedule s = settings_schedule(run);
    const bool rates =
        s.kind != ZF_WARMUP_COSINE_LR; /* there start and end are shares of the peak */
    s.peak = lr;
    if (rates) s.start = run->lr > 0 ? s.start / run->lr * lr : 0;
    if (rates) s.end = run->lr > 0 ? s.end / run->lr * lr : 0;
    return s;
}

static bool train_critic(experience *e, session *s, int64_t batch, int64_t step, zf_error *error)
{
    const ppo_options *o = &e->desc->o->ppo;
    const zf_schedule schedule = schedule_of(e->desc->run, o->critic_lr);
    ppo *p = e->own;
    (void)s;
    p->critic.loss = p->critic.clipped = NAN;
    if (step >= 0 && (step + 1) % o->critic_every) return true;
    return critic_step(&p->critic, e, batch, p->values, p->returns,
                       step < 0 ? o->critic_lr : zf_schedule_at(&schedule, step + 1), error);
}

static bool number(const experience *e, const char *name, double *out)
{
    const ppo *p = e->own;
    if (!p) return false;
    if (!strcmp(name, "value_loss")) *out = p->critic.loss;
    else if (!strcmp(name, "value_clipped")) *out = p->critic.clipped;
    else if (!strcmp(name, "explained_variance")) *out = p->explained;
    else if (!strcmp(name, "kl_reward")) *out = p->used;
    else return false;
    return true;
}

static int parts(const experience *e, experience_part *out)
{
    const ppo *p = e->own;
    out[0] = (experience_part){"values", &p->critic.evaluate, false};
    out[1] = (experience_part){"critic", &p->critic.train, false};
    return 2;
}

static int keeps(experience *e, experience_region *out)
{
    ppo *p = e->own;
    const size_t bytes = (size_t)(e->answers * e->desc->sequence) * sizeof *p->values;
    out[0] = (experience_region){p->values, bytes};
    out[1] = (experience_region){p->returns, bytes};
    out[2] = (experience_region){&p->used, sizeof p->used};
    out[3] = (experience_region){&p->explained, sizeof p->explained};
    return 4;
}

static void note(const experience *e, char *text, size_t size)
{
    const ppo *p = e->own;
    snprintf(text, size, "%.17g", p ? p->beta : e->desc->o->advantage.kl_reward);
}

/* -------------------------------------------------------------------------------------- options */

#define ADVANTAGE(kind, member, default_, range, ...)                                              \
    ZF_OPTION(zf_advantage_desc, kind, member, default_, range, __VA_ARGS__)
#define OWN(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(ppo_options, kind, member, default_, range, __VA_ARGS__)
#define CHANGES ZF_OPTION_CHANGES
#define BASIC   ZF_OPTION_BASIC

static const zf_option advantage_rows[] = {
    ADVANTAGE(NUMBER, kl_reward, 0.05, "[0,inf)", .traits = CHANGES | BASIC, .unit = "BETA",
              .help =
                  "BETA (log p - log p of the reference) is taken from the reward of each token"),
    ADVANTAGE(NUMBER, reward_clip, 5, "[0,inf)", .traits = CHANGES,
              .help = "the score of an answer is within +- this; 0: as it is"),
    ADVANTAGE(FLAG, score_after, 0, NULL, .traits = CHANGES,
              .help = "the score belongs to an action after the last token, which is not trained "
                      "(DeepSpeed-Chat)"),
    ADVANTAGE(NUMBER, gamma, 1, "(0,1]", .traits = CHANGES, .help = "discount of a token"),
    ADVANTAGE(NUMBER, lambda, 0.95, "[0,1]", .traits = CHANGES,
              .help = "how far advantages look ahead (GAE)"),
    {.name = NULL}};

static const zf_option own_rows[] = {
    OWN(NUMBER, kl_target, 0, "[0,inf)", .unit = "KL", .traits = CHANGES,
        .help =
            "BETA of --kl-reward is adapted until the mean of that difference is KL; 0: it stays"),
    OWN(COUNT, kl_horizon, 10000, "[1,1000000000]", .with = "kl_target", .traits = CHANGES,
        .unit = "N", .help = "answers in which BETA changes by a fifth at most"),
    OWN(FLAG, no_whiten, 0, NULL, .traits = CHANGES,
        .help = "leave advantages as they are; without this option they have the mean 0 and the "
                "variance 1 over all tokens of an iteration"),
    OWN(TEXT, critic, 0, NULL, .unit = "DIR", .topic = "critic",
        .traits = ZF_OPTION_PATH | ZF_OPTION_READS | BASIC,
        .help = "the reward model that the critic begins as; else that of --reward model:DIR, or a "
                "new one over the weights of --model"),
    OWN(NUMBER, critic_lr, 5e-6, "[0,1000]", .traits = CHANGES | BASIC,
        .help = "highest learning rate of the critic"),
    OWN(NUMBER, value.clip, 0.2, "(0,inf)", .flag = "value-clip", .traits = CHANGES,
        .help = "how far a value may move from that of the parameters that sampled"),
    OWN(COUNT, critic_every, 1, "[1,1000000]", .unit = "N", .traits = CHANGES,
        .help = "the critic makes a step at each N-th step"),
    OWN(COUNT, critic_warmup, 0, "[0,1000000]", .unit = "N", .traits = CHANGES,
        .help = "iterations before the first step, in which the critic alone is trained"),
    OWN(TEXT, ptx, 0, NULL, .unit = "FILE", .topic = "text",
        .traits = ZF_OPTION_PATH | ZF_OPTION_READS | BASIC,
        .help = "a text that the policy goes on predicting (PPO-ptx): documents with blank lines "
                "between them"),
    OWN(COUNT, ptx_rows, 0, "[0,1048576]", .with = "ptx", .traits = CHANGES, .unit = "N",
        .help = "rows of --ptx in a step, each as long as a prompt and its answer; 0: --batch"),
    OWN(NUMBER, ptx_coefficient, 27.8, "(0,inf)", .with = "ptx", .traits = CHANGES, .unit = "X",
        .help = "the mean loss of a token of --ptx is added X times to that of answers"),
    {.name = NULL}};

static const zf_option rows[] = {
    ZF_OPTION(policy_options, COUNT, group, 1, "[1,65536]", .traits = CHANGES,
              .help = "answers to each prompt"),
    ZF_OPTION(policy_options, DESC, advantage, 0, NULL, .rows = advantage_rows, .topic = "policy"),
    ZF_OPTION(policy_options, DESC, loss, 0, NULL, .rows = NULL),
    ZF_OPTION(policy_options, DESC, ppo, 0, NULL, .rows = own_rows),
    {.name = NULL}};

static const char *wrong(const policy_options *own, const settings *o)
{
    if (own->advantage.kl_reward > 0 && !settings_first(o))
        return "--kl-reward compares with the first weights, and these are random: --model DIR, or "
               "--kl-reward 0";
    if (own->ppo.kl_target > 0 && own->advantage.kl_reward == 0)
        return "--kl-target adapts --kl-reward, which must not be 0";
    return NULL;
}

/* -------------------------------------------------------------------------------------- command */

static const settings_default defaults[] = {
    {"batch", "64"},           {"schedule", "constant"}, {"lr", "1e-6"},
    {"seq", "1024"},           {"weight-decay", "0"},    {"eval-batches", "0"},
    {"no-fuse", "accumulate"}, {"loss", "bnpo"},         {NULL, NULL}};

const policy_kind ppo_kind = {
    .usage = "ppo --model DIR --data FILE --reward SPEC [OPTIONS]",
    .defaults = defaults,
    .rows = rows,
    .wrong = wrong,
    .columns = {"loss", "reward", "kl1", "kl3", "kl_reward",
                "entropy", "ratio_low", "ratio_high", "clipped",
                "length", "ended", "mismatch", "value_loss",
                "value_clipped", "explained_variance",
                "ptx_loss", "reward_deviation", "held_out"},
    .open = open_ppo,
    .close = close_ppo,
    .advantages = advantages,
    .step = train_critic,
    .parts = parts,
    .keeps = keeps,
    .number = number,
    .note = note};

int ppo_command(const sample_model *sample, int argc, char **argv)
{
    return policy_command(sample, &ppo_kind, argc, argv);
}
