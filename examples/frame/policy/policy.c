#define _POSIX_C_SOURCE 200809L
#include "policy.h"
#include "../commands/frame.h"
#include "../experience/rehearsal.h"
#include "../model/session.h"
#include "../options/fail.h"
#include "policy_data.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------------------------------- steps */

typedef struct policy_reader {
    experience e;
    int64_t first, labelled; /* of the step's answers: the first, and tokens of all */
    zf_causal_batch text;       /* of the step; examples 0: there is none */
    const session *trains;   /* NULL: no step has begun */
    int64_t iteration;       /* from 0 on */
    zf_text kept;            /* of the last checkpoint */
    double mismatch;         /* of the first iteration of this part of the run; 0: there was none */
    bool warned;             /* that it has grown */
} policy_reader;

/* After a step: what it moved. */
static void note_step(policy_reader *r)
{
    const experience *e = &r->e;
    if (r->trains)
        phases_count(e->spent, e->desc->batch * e->desc->sequence, r->trains->program, 1);
    r->trains = NULL;
}

/* Prints where the time of the iteration went. */
static void end_iteration(policy_reader *r, bool prints)
{
    char text[600];
    note_step(r);
    if (!r->e.spent || !r->e.spent->some) return;
    phases_end(r->e.spent);
    phases_text(r->e.spent, text, sizeof text);
    r->e.spent->some = false;
    if (!prints || r->e.desc->run->quiet) return;
    printf("%siteration %lld, %s\n", isatty(1) ? "\r\033[K" : "", (long long)r->iteration, text);
    fflush(stdout);
}

static void stop(void *user)
{
    policy_reader *r = user;
    if (!r) return;
    end_iteration(r, r->trains && !r->trains->rank);
    experience_close(&r->e), zf_causal_batch_free(&r->text), zf_text_free(&r->kept);
    free(r);
}

static bool open_texts(policy_reader *r, const policy_data *p, zf_error *error)
{
    if (p->text_rows % p->parts)
        return fail(error, ZF_ERR_ARGUMENT,
                    "--ptx-rows %lld cannot be split into %lld equal parts (ranks x micro-batches)",
                    (long long)p->text_rows, (long long)p->parts);
    return !p->text_rows ||
           zf_causal_batch_new(&r->text, p->text_rows, p->experience.sequence, false, error);
}

static void *start(const dataset *d, bool held_out, int64_t examples, int64_t first,
                   zf_error *error)
{
    const policy_data *p = d->own;
    policy_reader *r = calloc(1, sizeof *r);
    (void)held_out, (void)examples, (void)first;
    if (!r) return fail(error, ZF_ERR_NOMEM, "out of memory"), NULL;
    if (experience_new(&r->e, &p->experience, error) && open_texts(r, p, error)) return r;
    stop(r);
    return NULL;
}

static int64_t steps_of_pass(const policy_reader *r) { return r->e.answers / r->e.desc->batch; }

static int64_t steps_of_iteration(const policy_reader *r)
{
    return steps_of_pass(r) * r->e.desc->o->epochs;
}

/* To which step number `step` belongs; iterations before the first step are counted too. */
static int64_t iteration_of(const policy_reader *r, int64_t step)
{
    return r->e.desc->o->ppo.critic_warmup + step / steps_of_iteration(r);
}

/* What the kind trains besides, on the answers of step k of an iteration. */
static bool train_besides(policy_reader *r, session *s, int64_t k, int64_t step, zf_error *error)
{
    const policy_kind *kind = r->e.desc->o->kind;
    return !kind->step || kind->step(&r->e, s, k % steps_of_pass(r), step, error);
}

static void begin_iteration(policy_reader *r, const session *s, int64_t iteration)
{
    end_iteration(r, !s->rank);
    phases_begin(r->e.spent);
    r->iteration = iteration;
}

/* Says once that what is sampled and what is trained have come apart: five times as far as at
 * first. */
static void warn(policy_reader *r, const session *s)
{
    const double now = r->e.log.mismatch, least = 0.01;
    if (r->mismatch == 0) r->mismatch = now;
    if (r->warned || s->rank || now < least || now < 5 * r->mismatch) return;
    r->warned = true;
    fprintf(stderr,
            "%s: iteration %lld: log p of sampled tokens differ by %.3g from those of the trained "
            "program, and by %.3g at first: --correction truncate weighs tokens by that\n",
            r->e.desc->o->sample->program, (long long)r->iteration, now, r->mismatch);
}

/* The answers of an iteration. */
static bool iterate(policy_reader *r, session *s, int64_t iteration, zf_error *error)
{
    begin_iteration(r, s, iteration);
    if (!experience_make(&r->e, s, iteration, error)) return false;
    warn(r, s);
    phases_enter(r->e.spent, PHASE_TRAIN);
    return true;
}

/* The same, in a run that goes on amid the steps on them: its checkpoint has them. */
static bool go_on(policy_reader *r, session *s, int64_t iteration, zf_error *error)
{
    const char *load = r->e.desc->run->load;
    zf_text text = {.at = NULL};
    zf_error why = {ZF_OK, ""};
    char path[1200];
    bool good;
    begin_iteration(r, s, iteration);
    if (!experience_open(&r->e, s, error)) return false;
    snprintf(path, sizeof path, "%s/" SAMPLE_FILE, load ? load : ".");
    good = zf_text_read(path, &text, error) &&
           (experience_take(&r->e, iteration, &text, &why) ||
            fail(error, why.status, "%.400s: %.400s", path, why.text));
    zf_text_free(&text);
    phases_enter(r->e.spent, PHASE_TRAIN);
    return good;
}

/* Iterations before the first step, in which only that is trained. */
static bool warm_up(policy_reader *r, session *s, zf_error *error)
{
    const int64_t each = steps_of_iteration(r);
    bool good = true;
    for (int64_t k = 0; k < r->e.desc->o->ppo.critic_warmup && good; k++) {
        good = iterate(r, s, k, error);
        for (int64_t b = 0; b < each && good; b++) good = train_besides(r, s, b, -1, error);
    }
    return good;
}

static bool prepare(session *s, void *user, int64_t step, zf_error *error)
{
    policy_reader *r = user;
    const int64_t at = step % steps_of_iteration(r);
    if (!step && !warm_up(r, s, error)) return false;
    note_step(r);
    if (!at && !iterate(r, s, iteration_of(r, step), error)) return false;
    if (at && !r->e.opened && !go_on(r, s, iteration_of(r, step), error)) return false;
    r->trains = s;
    return train_besides(r, s, at, step, error);
}

/* Sampling, or a critic, may need more memory than the policy's step. */
static bool reserve(const dataset *d, const session_desc *train, size_t *bytes, zf_error *error)
{
    const policy_data *p = d->own;
    return rehearse(&p->experience, train, bytes, error);
}

/* The answers to held-out prompts after the last step. */
static bool finish(session *s, void *user, zf_error *error)
{
    policy_reader *r = user;
    const int64_t last = steps_of_iteration(r) - 1, done = zf_program_step(s->program);
    end_iteration(r, !s->rank);
    return !r->e.desc->held_out ||
           experience_evaluate(&r->e, s, iteration_of(r, done + last), error);
}

/* Amid the steps of an iteration: its answers. */
static bool keep(void *user, int64_t done, zf_attachment *out, zf_error *error)
{
    policy_reader *r = user;
    *out = (zf_attachment){.name = SAMPLE_FILE};
    if (done % steps_of_iteration(r) == 0) return true;
    if (!experience_keep(&r->e, r->iteration, &r->kept, error)) return false;
    out->data = r->kept.at, out->bytes = r->kept.count;
    return true;
}

static void note(void *user, char *text, size_t size)
{
    const policy_reader *r = user;
    const policy_kind *kind = r->e.desc->o->kind;
    if (kind->note) kind->note(&r->e, text, size);
    else snprintf(text, size, "none");
}

static const void *read_batch(void *user, int64_t step)
{
    policy_reader *r = user;
    const int64_t sequence = r->e.desc->sequence, batch = r->e.desc->batch;
    r->first = step % steps_of_pass(r) * batch, r->labelled = 0;
    for (int64_t k = 0; k < batch * sequence; k++)
        r->labelled += r->e.labels[r->first * sequence + k] != -100;
    if (r->text.examples)
        causal_batch_draw(&r->text, &r->e.desc->text, r->e.desc->seed, step * r->text.examples);
    return r;
}

static batch_counts count(const void *batch)
{
    return (batch_counts){((const policy_reader *)batch)->labelled, 0};
}

static zf_status feed_texts(session *s, const zf_causal_batch *b, int64_t part, int64_t parts)
{
    const int64_t cells = b->examples / parts * b->sequence, at = part * cells;
    const size_t bytes = (size_t)cells * sizeof *b->ids;
    const float share = b->labelled ? 1 / (float)b->labelled : 0;
    zf_status status = session_write(s, "text_ids", b->ids + at, bytes);
    if (!status) status = session_write(s, "text_labels", b->labels + at, bytes);
    return status ? status : session_write(s, "text_share", &share, sizeof share);
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
    if (!status) status = session_write(s, "advantage", e->advantage + at, cells);
    if (!status) status = session_write(s, "weight", e->weight + first, each);
    return status || !r->text.examples ? status : feed_texts(s, &r->text, part, parts);
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
                   {"mismatch", offsetof(experience_log, mismatch)},
                   {"redrawn", offsetof(experience_log, redrawn)},
                   {"held_out", offsetof(experience_log, held_out)}};
    const policy_reader *r = user;
    const policy_kind *kind = r->e.desc->o->kind;
    if (kind->number && kind->number(&r->e, name, out)) return true;
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        if (!strcmp(numbers[k].name, name))
            return memcpy(out, (const char *)&r->e.log + numbers[k].at, sizeof *out), true;
    return false;
}

/* Without its losses. */
static const objective policy_objective = {
    .curve = 1,
    .curve_title = "reward",
    .also = "reward",
    .least_sequence = 2,
    .no_dropout = true,
    .frame = ZF_FOLDER_GPT,
    .open_data = policy_data_open,
    .close = policy_data_close,
    .fit_shape = policy_data_fit,
    .start = start,
    .prepare = prepare,
    .read = read_batch,
    .reserve = reserve,
    .finish = finish,
    .stop = stop,
    .number = number,
    .note = note,
    .keep = keep,
    .count = count,
    .feed = feed,
};

/* ---------------------------------------------------------------------------------- the
 * commands */

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

static const zf_option correction_rows[] = {
    ZF_OPTION(zf_advantage_desc, CHOICE, correction, 0, "none|truncate|mask|sequence",
              .flag = "correction", .traits = CHANGES,
              .help = "of what was sampled by other log p than those of the steps (TIS)"),
    ZF_OPTION(zf_advantage_desc, NUMBER, correction_high, 2, "(0,inf)", .flag = "correction-high",
              .with = "correction=truncate|mask|sequence", .traits = CHANGES,
              .help = "limit of its factors"),
    {.name = NULL}};

/* What all kinds have. */
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
    ROW(COUNT, tokens, 256, "[1,65535]", .traits = CHANGES | BASIC, .topic = "answers",
        .help = "of an answer, at most; --seq has room for a prompt and these"),
    ROW(FLAG, leave_cut, 0, NULL, .traits = CHANGES,
        .help = "answers that did not end by themselves are left out, of their group as well"),
    ROW(COUNT, answers, 0, "[0,1048576]", .traits = CHANGES,
        .help = "of an iteration, a multiple of --batch; 0: --batch, so that each is one step"),
    ROW(COUNT, epochs, 1, "[1,1000]", .traits = CHANGES,
        .help = "passes over the answers of an iteration"),
    ROW(TEXT, held_out, 0, NULL, .unit = "FILE", .topic = "held out",
        .help = "prompts that are answered with the most likely tokens, and rewarded, for the log"),
    ROW(COUNT, held_out_every, 10, "[1,1000000000]", .unit = "N", .with = "held_out",
        .help = "before iterations 0, N, 2 N, ..., and after the last step"),
    ROW(TEXT, samples, 0, NULL, .unit = "FILE", .with = "held_out",
        .traits = ZF_OPTION_PATH | ZF_OPTION_LOCAL,
        .help = "JSON Lines to which the answers to the first ten of them are added"),
    ROW(TEXTS, stop, 0, NULL, .traits = CHANGES, .help = "ends an answer before this text"),
    ROW(FLAG, off_policy, 0, NULL, .traits = CHANGES,
        .help = "answers may be sampled by other probabilities than those that are trained"),
    ROW(DESC, how, 0, NULL, .rows = sampling_rows),
    ROW(DESC, advantage, 0, NULL, .rows = correction_rows),
    {.name = NULL}};

enum { ROWS = 48 };

/* Appends rows to those there; *count of them, and the last has no name. The rows of the loss are
 * those of the library. */
static void add_rows(zf_option rows[ROWS], int32_t *count, const zf_option *more)
{
    for (; more->name; more++) {
        rows[*count] = *more;
        if (more->kind == ZF_OPTION_DESC && !more->rows) rows[*count].rows = zf_policy_options();
        ++*count;
    }
    rows[*count] = *more;
}

/* An iteration is one step. */
static void complete(void *desc, const settings *o)
{
    policy_options *own = desc;
    if (!own->answers) own->answers = o->batch;
}

static const char *wrong(const settings *o)
{
    const policy_options *own = o->own;
    if (o->corpus || o->batch_file || !o->data) return "prompts are needed: --data FILE";
    if (o->alone) return "--alone: each answer has a row of its own already";
    if (o->eval_batches || o->eval_every)
        return "--eval-batches and --eval-every evaluate what is held out, and of prompts nothing "
               "is";
    if (!own->reward.count) return "a reward is needed: --reward SPEC";
    if (own->answers % o->batch) return "--answers must be a multiple of --batch";
    if (o->batch % own->group)
        return "--batch must be a multiple of --group: a step has whole groups";
    return own->kind->wrong(own, o);
}

int policy_command(const sample_model *sample, const policy_kind *kind, int argc, char **argv)
{
    policy_options own = {.kind = kind, .sample = sample};
    zf_option rows[ROWS];
    int32_t count = 0;
    sample_model with = *sample;
    objective of = policy_objective;
    add_rows(rows, &count, policy_rows), add_rows(rows, &count, kind->rows);
    memcpy(of.losses, kind->columns, sizeof of.losses);
    of.joins = kind->open != NULL;
    with.objective = &of, with.wrong = wrong;
    return pretrain_command(&with,
                            &(settings_desc){.defaults = kind->defaults,
                                             .own = {.rows = rows, .desc = &own},
                                             .complete = complete,
                                             .tunes = true,
                                             .usage = kind->usage},
                            argc, argv);
}
