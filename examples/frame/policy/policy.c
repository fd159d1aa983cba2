#include "policy.h"
#include "../commands/frame.h"
#include "../model/dataset.h"
#include "../model/session.h"
#include "../options/fail.h"
#include "experience.h"
#include "model_reward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ENDS = ZF_CONFIG_ENDS + 2 };

/* ----------------------------------------------------------------------------------------- data */

typedef struct policy_data {
    zf_tokenizer *tokens;
    zf_chat chat;
    int32_t ends[ENDS];
    zf_answer_desc how;
    zf_prompts prompts;
    zf_rewards *rewards;
    policy_graph graph;
    experience_desc experience;
} policy_data;

/* Either tokenizer of the folder. */
static bool open_tokenizer(dataset *d, policy_data *p, const settings *o, zf_error *error)
{
    const zf_wordpiece_options options = tokenizing_options(&o->words);
    if (!zf_folder_is(o->tokenizer) || zf_folder_has_bpe(o->tokenizer))
        return (p->how.tokenizer = p->tokens = zf_tokenizer_open(o->tokenizer, error)) != NULL;
    if (!(p->how.words = d->vocab = zf_folder_vocab(o->tokenizer, &options, error))) return false;
    p->how.begin = zf_wordpiece_id(d->vocab, "[SEP]");
    return true;
}

/* The tokens that end an answer: by the files of the model, and those of the chat. */
static bool read_ends(policy_data *p, const settings *o, const zf_config_facts *facts,
                      zf_error *error)
{
    char end[ZF_CHAT_TOKEN] = "";
    zf_folder_generation says;
    if (!zf_folder_generation_read(&says, o->init ? o->init : o->model, error)) return false;
    p->ends[ENDS - 1] = p->ends[ENDS - 2] = -1;
    zf_folder_generation_ends(&says, facts, p->ends);
    if (p->how.words && p->ends[0] < 0) p->ends[0] = p->how.begin;
    if (*p->chat.end) p->ends[ENDS - 1] = zf_tokenizer_id(p->tokens, p->chat.end);
    if (!p->chat.plain) return true;
    if (!zf_chat_end(&p->chat, end, error)) return false;
    if (*end) p->ends[ENDS - 2] = zf_tokenizer_id(p->tokens, end);
    return true;
}

static bool open_prompts(policy_data *p, const settings *o, const zf_config_facts *facts,
                         zf_error *error)
{
    const policy_options *own = o->own;
    if (o->seq <= own->tokens)
        return fail(error, ZF_ERR_ARGUMENT,
                    "--seq %lld has no room for a prompt and an answer of --tokens %lld",
                    (long long)o->seq, (long long)own->tokens);
    p->how.chat = p->chat.plain ? &p->chat : NULL;
    p->how.ends = p->ends, p->how.end_count = ENDS;
    p->how.stops = own->stop.at, p->how.stop_count = own->stop.count;
    p->how.vocab = *facts->vocab;
    return zf_prompts_read(&p->prompts, o->data, &(zf_prompts_desc){&p->how, o->seq - own->tokens},
                           error);
}

/* `sequence`: tokens of a prompt and its answer, at most. */
static bool open_rewards(policy_data *p, const settings *o, int64_t sequence, zf_error *error)
{
    const policy_options *own = o->own;
    model_reward_desc model = {.sample = own->sample,
                               .vocab = p->how.vocab,
                               .tokens = sequence,
                               .folder = o->tokenizer,
                               .threads = o->threads,
                               .standardize = own->reward_standardize};
    const zf_reward_kind kind = {"model", model_reward_open, &model};
    p->rewards = zf_rewards_open(&(zf_rewards_desc){.specs = own->reward.at,
                                                    .spec_count = own->reward.count,
                                                    .kinds = &kind,
                                                    .kind_count = 1,
                                                    .tokens = own->tokens,
                                                    .deadline = own->reward_deadline},
                                 error);
    return p->rewards != NULL;
}

/* The desc of the loss, without what it does not have; a 0 is one that was given. */
static zf_policy_desc loss_of(const policy_options *own)
{
    zf_policy_desc d = own->loss;
    if (d.loss != ZF_POLICY_CISPO) d.cap = 0;
    else d.clip_low = d.clip_high = d.dual_clip = 0;
    if (d.loss != ZF_POLICY_CISPO && d.clip_low == 0) d.clip_low = ZF_ZERO;
    if (d.kl_beta == 0) d.kl = 0;
    return d;
}

/* What the prompts say of the data; the tokens of the longest. */
static int64_t count_prompts(dataset *d, const policy_data *p)
{
    int64_t longest = 0;
    d->documents = p->prompts.count, d->digest = ZF_DIGEST_START, d->begins = 1;
    for (int64_t k = 0; k < p->prompts.count; k++) {
        const zf_prompt *at = &p->prompts.at[k];
        d->tokens += (int64_t)at->ids.count;
        d->digest = zf_digest_bytes(d->digest, at->text.at, at->text.count);
        if ((int64_t)at->ids.count > longest) longest = (int64_t)at->ids.count;
    }
    return longest;
}

static void describe(policy_data *p, const settings *o, int64_t sequence, const void *config)
{
    const policy_options *own = o->own;
    p->graph = (policy_graph){loss_of(own), own->how.temperature};
    p->experience = (experience_desc){.o = own,
                                      .data = &p->prompts,
                                      .how = &p->how,
                                      .rewards = p->rewards,
                                      .seed = (uint64_t)o->seed,
                                      .batch = o->batch,
                                      .sequence = sequence,
                                      .config = config,
                                      .no_fuse = o->training.fuse.without,
                                      .reference = settings_adapts(o)};
}

static bool open_data(dataset *d, const settings *o, const zf_config_facts *facts, void *config,
                      zf_error *error)
{
    policy_data *p = d->own = calloc(1, sizeof *p);
    int64_t sequence;
    if (!p) return fail(error, ZF_ERR_NOMEM, "out of memory");
    p->chat.style = -1;
    if (!open_tokenizer(d, p, o, error) || !dataset_open_chat(&p->chat, o, p->tokens, error) ||
        !read_ends(p, o, facts, error) || !open_prompts(p, o, facts, error))
        return false;
    sequence = count_prompts(d, p) + ((const policy_options *)o->own)->tokens;
    if (!open_rewards(p, o, sequence, error)) return false;
    describe(p, o, sequence, config);
    return !p->tokens || zf_folder_texts_read(&d->texts, o->tokenizer, NULL, error);
}

static void close_data(dataset *d)
{
    policy_data *p = d->own;
    if (!p) return;
    zf_rewards_close(p->rewards);
    zf_prompts_free(&p->prompts);
    zf_chat_close(&p->chat);
    zf_tokenizer_free(p->tokens);
    free(p);
}

/* A row is a prompt and its answer. */
static void fit_shape(const dataset *d, const settings *o, int64_t parts, sample_shape *shape)
{
    const policy_data *p = d->own;
    (void)o, (void)parts;
    shape->sequence = p->experience.sequence, shape->policy = &p->graph;
}

/* ---------------------------------------------------------------------------------------- steps */

typedef struct policy_reader {
    experience e;
    int64_t first, labelled; /* of the step's answers: the first, and tokens of all */
} policy_reader;

static void stop(void *user)
{
    policy_reader *r = user;
    if (r) experience_close(&r->e);
    free(r);
}

static void *start(const dataset *d, bool held_out, int64_t examples, int64_t first,
                   zf_error *error)
{
    const policy_data *p = d->own;
    policy_reader *r = calloc(1, sizeof *r);
    (void)held_out, (void)examples, (void)first;
    if (r && experience_new(&r->e, &p->experience, error)) return r;
    stop(r);
    fail(error, ZF_ERR_NOMEM, "out of memory");
    return NULL;
}

static int64_t steps_of_pass(const policy_reader *r) { return r->e.answers / r->e.desc->batch; }

static bool prepare(session *s, void *user, int64_t step, zf_error *error)
{
    policy_reader *r = user;
    const int64_t each = steps_of_pass(r) * r->e.desc->o->epochs;
    if (step % each == 0) return experience_make(&r->e, s, step / each, error);
    return r->e.opened ||
           fail(error, ZF_ERR_ARGUMENT,
                "--load has a checkpoint of step %lld, amid the %lld steps on the answers of an "
                "iteration, which it does not have: --save-every must be a multiple of %lld",
                (long long)step, (long long)each, (long long)each);
}

static const void *read_batch(void *user, int64_t step)
{
    policy_reader *r = user;
    const int64_t sequence = r->e.desc->sequence, batch = r->e.desc->batch;
    r->first = step % steps_of_pass(r) * batch, r->labelled = 0;
    for (int64_t k = 0; k < batch * sequence; k++)
        r->labelled += r->e.labels[r->first * sequence + k] != -100;
    return r;
}

static batch_counts count(const void *batch)
{
    return (batch_counts){((const policy_reader *)batch)->labelled, 0};
}

static zf_status feed(session *s, const void *batch, int64_t part, int64_t parts, bool sums)
{
    const policy_reader *r = batch;
    const experience *e = &r->e;
    const int64_t rows = e->desc->batch / parts, first = r->first + part * rows,
                  at = first * e->desc->sequence;
    const size_t cells = (size_t)(rows * e->desc->sequence) * 4, each = (size_t)rows * 4;
    zf_status status = session_write(s, "input_ids", e->ids + at, cells);
    (void)sums;
    if (!status) status = session_write(s, "labels", e->labels + at, cells);
    if (!status) status = session_write(s, "old", e->old + at, cells);
    if (!status) status = session_write(s, "correction", e->correction + at, cells);
    if (!status) status = session_write(s, "reference", e->reference + at, cells);
    if (!status) status = session_write(s, "advantage", e->advantage + first, each);
    return status ? status : session_write(s, "weight", e->weight + first, each);
}

/* ------------------------------------------------------------------------------------------ log */

static bool number(void *user, const char *name, double *out)
{
    static const struct {
        const char *name;
        size_t at;
    } numbers[] = {{"reward", offsetof(experience_log, reward)},
                   {"reward_deviation", offsetof(experience_log, deviation)},
                   {"no_signal", offsetof(experience_log, no_signal)},
                   {"kl1", offsetof(experience_log, kl1)},
                   {"kl3", offsetof(experience_log, kl3)},
                   {"entropy", offsetof(experience_log, entropy)},
                   {"length", offsetof(experience_log, length)},
                   {"ended", offsetof(experience_log, ended)},
                   {"mismatch", offsetof(experience_log, mismatch)}};
    const policy_reader *r = user;
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        if (!strcmp(numbers[k].name, name))
            return memcpy(out, (const char *)&r->e.log + numbers[k].at, sizeof *out), true;
    return false;
}

const objective policy_objective = {
    .losses = {"loss", "reward", "reward_deviation", "no_signal", "kl1", "kl3", "entropy",
               "ratio_low", "ratio_high", "clipped", "length", "ended", "mismatch"},
    .curve = 1,
    .curve_title = "reward",
    .also = "reward",
    .least_sequence = 2,
    .no_dropout = true,
    .frame = ZF_FOLDER_GPT,
    .open_data = open_data,
    .close = close_data,
    .fit_shape = fit_shape,
    .start = start,
    .prepare = prepare,
    .read = read_batch,
    .stop = stop,
    .number = number,
    .count = count,
    .feed = feed,
};

/* ----------------------------------------------------------------------------------- the command */

#define ROW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(policy_options, kind, member, default_, range, __VA_ARGS__)
#define HOW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(zf_sampling, kind, member, default_, range, __VA_ARGS__)
#define CHANGES ZF_OPTION_CHANGES
#define BASIC   ZF_OPTION_BASIC

static const zf_option sampling_rows[] = {
    HOW(NUMBER, temperature, 1, "(0,100]", .flag = "temperature", .traits = CHANGES,
        .help = "at which answers are sampled, and their log p are computed"),
    HOW(COUNT, top_k, 0, "[0,1000000000]", .unit = "K", .flag = "top-k", .with = "off_policy",
        .traits = CHANGES, .help = "sample of the K most likely tokens; 0: of all"),
    HOW(NUMBER, top_p, 1, "(0,1]", .unit = "P", .flag = "top-p", .with = "off_policy",
        .traits = CHANGES,
        .help = "sample of the most likely tokens whose probabilities add up to P"),
    HOW(NUMBER, repetition, 1, "[0.01,100]", .flag = "repetition-penalty", .with = "off_policy",
        .traits = CHANGES, .help = "above 1, tokens that were there are less likely"),
    {.name = NULL}};

static const zf_option advantage_rows[] = {
    ZF_OPTION(
        zf_advantage_desc, CHOICE, advantage, 0, "group|mean|rloo", .flag = "advantage",
        .traits = CHANGES,
        .help = "of an answer in its group: group: (R - mean) / deviation; mean: R - mean; rloo: R "
                "- mean of the others"),
    ZF_OPTION(zf_advantage_desc, CHOICE, correction, 0, "none|truncate|mask|sequence",
              .flag = "correction", .traits = CHANGES,
              .help = "of what was sampled by other log p than those of the steps (TIS)"),
    ZF_OPTION(zf_advantage_desc, NUMBER, correction_high, 2, "(0,inf)", .flag = "correction-high",
              .with = "correction=truncate|mask|sequence", .traits = CHANGES,
              .help = "limit of its factors"),
    {.name = NULL}};

static const zf_option policy_rows[] = {
    ROW(TEXTS, reward, 0, NULL, .unit = "[W*]SPEC", .topic = "rewards", .traits = CHANGES | BASIC,
        .help = "exact, number, regex:PATTERN, length, overlong:N, cmd:COMMAND or model:DIR; "
                "several are added, "
                "with weights: --reward exact --reward -0.2*length"),
    ROW(NUMBER, reward_deadline, 60, "(0,1000000]", .unit = "SECONDS",
        .help = "that a command may take for the answers of an iteration"),
    ROW(FLAG, reward_standardize, 0, NULL, .traits = CHANGES,
        .help =
            "of model:DIR: without the mean of the scores of held-out answers that its reward.json "
            "says, divided by their deviation"),
    ROW(COUNT, group, 8, "[2,65536]", .traits = CHANGES | BASIC, .topic = "answers",
        .help = "answers to each prompt, which are compared with one another"),
    ROW(COUNT, tokens, 256, "[1,65535]", .traits = CHANGES | BASIC,
        .help = "of an answer, at most; --seq has room for a prompt and these"),
    ROW(COUNT, answers, 0, "[0,1048576]", .traits = CHANGES,
        .help = "of an iteration, a multiple of --batch; 0: --batch, so that each is one step"),
    ROW(COUNT, epochs, 1, "[1,1000]", .traits = CHANGES,
        .help = "passes over the answers of an iteration"),
    ROW(TEXTS, stop, 0, NULL, .traits = CHANGES, .help = "ends an answer before this text"),
    ROW(FLAG, off_policy, 0, NULL, .traits = CHANGES,
        .help = "answers may be sampled by other probabilities than those that are trained"),
    ROW(DESC, how, 0, NULL, .rows = sampling_rows),
    ROW(DESC, advantage, 0, NULL, .rows = advantage_rows, .topic = "policy"),
    ROW(DESC, loss, 0, NULL, .rows = NULL),
    {.name = NULL}};
enum { POLICY_ROWS = sizeof policy_rows / sizeof *policy_rows };

static const char *wrong(const settings *o)
{
    policy_options *own = (policy_options *)(uintptr_t)o->own;
    if (o->corpus || o->batch_file || !o->data) return "prompts are needed: --data FILE";
    if (o->alone) return "--alone: each answer has a row of its own already";
    if (o->eval_batches || o->eval_every)
        return "--eval-batches and --eval-every evaluate what is held out, and of prompts nothing "
               "is";
    if (!own->reward.count) return "a reward is needed: --reward SPEC";
    if (!own->answers) own->answers = o->batch;
    if (own->answers % o->batch == 0 && o->save &&
        (o->steps % (own->answers / o->batch * own->epochs) ||
         o->save_every % (own->answers / o->batch * own->epochs)))
        return "--steps and --save-every must be multiples of the steps of an iteration, --answers "
               "/ "
               "--batch * --epochs: a checkpoint does not have its answers";
    if (own->answers % o->batch) return "--answers must be a multiple of --batch";
    if (o->batch % own->group)
        return "--batch must be a multiple of --group: a step has whole groups";
    if (own->loss.kl_beta > 0 && !settings_adapts(o))
        return "--kl-beta compares with the base of an adapter: --lora";
    return NULL;
}

int policy_command(const sample_model *sample, int argc, char **argv)
{
    /* Without "accumulate", products over an adapter are rounded by the program of a step as by the
     * one that evaluates, so that the first ratios are 1 in 16 bits as well. */
    static const settings_default defaults[] = {{"batch", "64"},
                                                {"schedule", "constant"},
                                                {"lr", "1e-6"},
                                                {"seq", "1024"},
                                                {"weight-decay", "0"},
                                                {"eval-batches", "0"},
                                                {"no-fuse", "accumulate"},
                                                {NULL, NULL}};
    policy_options own = {.sample = sample};
    zf_option rows[POLICY_ROWS];
    sample_model with = *sample;
    memcpy(rows, policy_rows, sizeof rows);
    rows[POLICY_ROWS - 2].rows = zf_policy_options();
    with.objective = &policy_objective, with.wrong = wrong;
    return pretrain_command(&with,
                            &(settings_desc){.defaults = defaults,
                                             .own = {.rows = rows, .desc = &own},
                                             .tunes = true,
                                             .usage = "grpo --model DIR --data FILE --reward SPEC "
                                                      "[OPTIONS]"},
                            argc, argv);
}
