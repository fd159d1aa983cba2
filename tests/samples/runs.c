/* Ranks of a run of the samples: what they compare, and the message when one of them fails. */
#define _POSIX_C_SOURCE 200809L
#include "../support/test.h"

#include "../../examples/bert/masked.h"
#include "../../examples/bert/model.h"
#include "../../examples/frame/run/run.h"
#include "../../examples/gpt/model.h"

#include <signal.h>

#define GOLDEN "tests/golden/bert/"

/* --------------------------------------------------------------------------- what must be alike */

enum { RANKS = 3 };

/* What each rank has, and the error that it gets. */
typedef struct options_of_rank {
    int64_t count, choice, own;
    double number;
    const char *text, *output;
    bool flag;
} options_of_rank;

typedef struct comparison {
    int64_t count[RANKS], choice[RANKS], own[RANKS];
    double number[RANKS];
    const char *text[RANKS], *output[RANKS], *extra[RANKS];
    bool flag[RANKS];
    const char *failure[RANKS]; /* NULL: none */
    zf_error error[RANKS];
} comparison;

static comparison same_on_all(void)
{
    comparison c = {.count = {1, 1, 1}};
    for (int r = 0; r < RANKS; r++) {
        c.number[r] = 0.1, c.text[r] = "off", c.extra[r] = "5";
        c.own[r] = r; /* of no interest to the others */
        c.output[r] = r ? "here" : "there";
    }
    return c;
}

static bool compare_rank(void *user, const zf_comm *comm, zf_error *error)
{
    comparison *c = user;
    int r = comm->rank;
    static const zf_option rows[] = {
        ZF_OPTION(options_of_rank, COUNT, count, 0, "[0,9]", .help = ""),
        ZF_OPTION(options_of_rank, NUMBER, number, 0, "[0,9]", .help = ""),
        ZF_OPTION(options_of_rank, CHOICE, choice, 0, "one|other", .help = ""),
        ZF_OPTION(options_of_rank, TEXT, text, 0, NULL, .help = ""),
        ZF_OPTION(options_of_rank, TEXT, output, 0, NULL, .traits = ZF_OPTION_PATH),
        ZF_OPTION(options_of_rank, FLAG, flag, 0, NULL, .help = ""),
        ZF_OPTION(options_of_rank, COUNT, own, 0, "[0,9]", .traits = ZF_OPTION_LOCAL),
        {.name = NULL}};
    options_of_rank o = {c->count[r], c->choice[r], c->own[r],   c->number[r],
                         c->text[r],  c->output[r], c->flag[r]};
    alike *a = calloc(1, sizeof *a);
    bool good = a != NULL;
    if (c->failure[r]) {
        error->status = ZF_ERR_IO;
        snprintf(error->text, sizeof error->text, "%s", c->failure[r]);
    }
    if (a) {
        alike_add_options(a, &(zf_options){.rows = rows, .desc = &o}, 1);
        alike_add(a, "the extra", "%s", c->extra[r]);
        good = alike_good(comm, error) && alike_compare(a, comm, error);
    }
    free(a);
    c->error[r] = *error;
    return good;
}

/* Checks that all ranks get this error; NULL: none. */
static void compared(test *t, comparison *c, zf_status status, const char *text)
{
    rank_group ranks;
    zf_error error = {ZF_OK, ""};
    OK(t,
       ranks_open(&ranks, &(rank_group_desc){.count = RANKS, .deadline = 20}, &error)
           ? ZF_OK
           : error.status,
       error.text);
    CHECK(t, ranks_run(&ranks, compare_rank, c, &error) == !text);
    ranks_close(&ranks, NULL);
    for (int r = 0; r < RANKS; r++) {
        CHECK_TEXT(t, c->error[r].text, text ? text : "");
        CHECK(t, c->error[r].status == (text ? status : ZF_OK));
    }
}

TEST_ONCE(ranks_have_the_same_options)
{
    comparison c = same_on_all();
    compared(t, &c, ZF_OK, NULL);
    c.count[2] = 7;
    compared(t, &c, ZF_ERR_MISMATCH,
             "--count is 7 on rank 2 and 1 on rank 0: all ranks must have the same");
    c.count[1] = 7, c.flag[1] = true; /* the first option counts */
    compared(t, &c, ZF_ERR_MISMATCH,
             "--count is 7 on ranks 1, 2 and 1 on rank 0: all ranks must have the same");
    c = same_on_all();
    c.count[1] = 7, c.flag[2] = true; /* of all ranks' options */
    compared(t, &c, ZF_ERR_MISMATCH,
             "--count is 7 on rank 1 and 1 on rank 0: all ranks must have the same");
    c.count[1] = 8, c.count[2] = 7;
    compared(t, &c, ZF_ERR_MISMATCH,
             "--count is 8 on rank 1 and 1 on rank 0: all ranks must have the same");
    c = same_on_all();
    c.number[0] = nextafter(0.1, 1);
    compared(t, &c, ZF_ERR_MISMATCH,
             "--number is 0.1 on ranks 1, 2 and 0.10000000000000002 on rank 0: "
             "all ranks must have the same");
    c = same_on_all();
    c.choice[1] = 1;
    compared(t, &c, ZF_ERR_MISMATCH,
             "--choice is other on rank 1 and one on rank 0: all ranks must have the same");
    c = same_on_all();
    c.text[1] = NULL;
    compared(t, &c, ZF_ERR_MISMATCH,
             "--text is not given on rank 1 and off on rank 0: all ranks must have the same");
    c = same_on_all();
    c.output[2] = NULL;
    compared(t, &c, ZF_ERR_MISMATCH,
             "--output is not given on rank 2 and given on rank 0: all ranks must have the same");
    c = same_on_all();
    c.flag[1] = true;
    compared(t, &c, ZF_ERR_MISMATCH,
             "--flag is given on rank 1 and not given on rank 0: all ranks must have the same");
    c = same_on_all();
    c.extra[2] = "6";
    compared(t, &c, ZF_ERR_MISMATCH,
             "the extra is 6 on rank 2 and 5 on rank 0: all ranks must have the same");
}

TEST_ONCE(ranks_share_a_failure)
{
    comparison c = same_on_all();
    c.failure[1] = "lost", c.failure[2] = "lost as well";
    compared(t, &c, ZF_ERR_IO, "rank 1: lost");
    c.failure[0] = c.failure[1] = c.failure[2];
    compared(t, &c, ZF_ERR_IO, "lost as well"); /* of all */
}

/* ------------------------------------------------------------------------------- in their steps */

static void free_batches(void *batches) { bert_batch_file_free(batches); }

/* Two ranks with a golden batch, to be closed; `steps` and the comparison are still to be
 * chosen. */
static bool prepare(test *t, run_job *job)
{
    zf_error error = {ZF_OK, ""};
    static masked_data data;
    bert_batch_file *f = NULL;
    *job = (run_job){.sample = &bert_sample,
                     .o = {.lr = 1e-3, .training.clip = 1, .quiet = true},
                     .data.own = &data};
    if (zf_config_load(bert_sample.config(), GOLDEN "config.json", &job->config, &error))
        f = bert_batch_file_load(GOLDEN "batch.safetensors", 197, 2, &error);
    if (f) test_defer(t, free_batches, f);
    data = (masked_data){.file = f};
    if (!f || !ranks_open(&job->ranks, &(rank_group_desc){.count = 2, .deadline = 20}, &error)) {
        test_fail(t, __FILE__, __LINE__, "there are two ranks and batches", error.text);
        return false;
    }
    job->o.batch = f->examples, job->o.seq = f->sequence;
    job->o.threads = job->o.seed = 1;
    job->shape = (sample_shape){.batch = job->o.batch / 2,
                                .sequence = job->o.seq,
                                .predictions = bert_batch_file_predictions(f, 2)};
    return true;
}

/* Rank 1 changes a parameter to NaN after the first step. */
static bool train_rank(void *user, const zf_comm *comm, zf_error *error)
{
    run_job *job = user, first = *job;
    run r = {.job = &first, .comm = comm, .leads = comm->rank == 0};
    session_desc d = run_session(job);
    bool good;
    d.comm = comm;
    first.o.steps = 1;
    good = session_open(&r.session, &d, &r.error) && run_train(&r);
    step_log_close(&r.log, &(zf_error){ZF_OK, ""});
    masked_objective.stop(r.reader);
    r.reader = NULL;
    if (good && comm->rank == 1) {
        zf_tensor bias = zf_graph_find(r.session.graph, "cls.seq_relationship.bias");
        float values[2] = {0, 1};
        good = zf_valid(bias) && !zf_write(r.session.program, bias, values, sizeof values);
    }
    r.job = job;
    good = good && run_train(&r);
    *error = r.error;
    masked_objective.stop(r.reader);
    session_close(&r.session);
    step_log_close(&r.log, &(zf_error){ZF_OK, ""});
    return good;
}

/* Four steps on two ranks. */
static bool train_both(test *t, int64_t compare_every, zf_error *error)
{
    static run_job job;
    bool good;
    if (!prepare(t, &job)) return false;
    job.o.steps = 4, job.o.compare_every = compare_every;
    good = ranks_run(&job.ranks, train_rank, &job, error);
    ranks_close(&job.ranks, NULL);
    return good;
}

TEST_ONCE(ranks_compare_their_parameters_while_they_train)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE};
    struct sigaction was[5];
    zf_error error = {ZF_OK, ""};
    bool unseen, seen;
    for (int i = 0; i < 5; i++) sigaction(signals[i], NULL, &was[i]);
    unseen = train_both(t, 0, &error);
    seen = !train_both(t, 3, &error);
    for (int i = 0; i < 5; i++) sigaction(signals[i], &was[i], NULL);
    CHECK(t, unseen && seen && error.status == ZF_ERR_MISMATCH);
    CHECK(t, strstr(error.text, "cls.seq_relationship.bias"));
}

/* ----------------------------------------------------------------------------------- evaluation */

static int64_t encode_digits(const void *user, const char *text, size_t bytes, int32_t *ids,
                             int64_t cap)
{
    int64_t n = 0;
    (void)user;
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != ' ' && text[i] != '\n') {
            if (n < cap) ids[n] = 5 + text[i] - '0';
            n++;
        }
    return n;
}

typedef struct evaluation {
    run_job *job;
    const dataset *data; /* held-out examples */
    bool lost;           /* rank 1 has ZF_ERR_COMM, so that the error of rank 0 is reported */
} evaluation;

static bool evaluate_rank(void *user, const zf_comm *comm, zf_error *error)
{
    const evaluation *e = user;
    session_desc d = run_session(e->job);
    session s;
    sample_score score;
    bool good;
    d.comm = comm, d.purpose = SAMPLE_EVALUATE;
    masked_objective.fit_shape(e->data, &e->job->o, 2, &d.shape);
    if (!session_open(&s, &d, error)) return false;
    if (comm->rank == 1) {
        error->status = ZF_ERR_IO;
        snprintf(error->text, sizeof error->text, "the disk of rank 1 has gone");
        comm->abort(comm->self, error->status, error->text);
        if (e->lost) error->status = ZF_ERR_COMM;
        good = false;
    } else {
        good = session_score(&s, e->data, 2, &score, error);
    }
    session_close(&s);
    return good;
}

TEST_ONCE(ranks_say_why_an_evaluation_failed)
{
    static run_job job;
    char err[256] = "", text[4096] = "";
    zf_error error = {ZF_OK, ""};
    bert_corpus_desc d = {.encode = encode_digits, .vocab_size = 20};
    bert_examples_desc x = {.held_out = true, .sequence = 64, .cls = 2, .sep = 3, .mask = 4};
    bert_corpus *corpus;
    bert_examples *examples;
    masked_data data;
    dataset held_out = {.own = &data};
    bool good;
    for (int k = 0; k < 40; k++) strcat(text, "1 2 3 4 5 6\n2 4 6 8 0\n3 6 9 2\n\n");
    corpus = bert_corpus_parse(text, strlen(text), "x.txt", &d, err, sizeof err);
    x.corpus = corpus;
    examples = corpus ? bert_examples_new(&x, err, sizeof err) : NULL;
    good = examples && prepare(t, &job);
    if (good) {
        data = (masked_data){.held_out = examples};
        for (int k = 0; k < 2 && good; k++) {
            evaluation e = {&job, &held_out, k};
            static const char *const texts[] = {"rank 1: the disk of rank 1 has gone",
                                                "rank 1 gave up: the disk of rank 1 has gone"};
            error = (zf_error){ZF_OK, ""};
            good = (!k || prepare(t, &job)) && !ranks_run(&job.ranks, evaluate_rank, &e, &error);
            ranks_close(&job.ranks, NULL);
            CHECK(t, error.status == ZF_ERR_IO);
            CHECK_TEXT(t, error.text, texts[k]);
        }
    }
    bert_examples_free(examples);
    bert_corpus_free(corpus);
    CHECK_TEXT(t, err, "");
    CHECK(t, good);
}

/* --------------------------------------------------------------------------------- going on */

/* Whether a run of GPT with these settings can be resumed from a checkpoint with these notes; else
 * the error after the path. */
static const char *goes_on(test *t, const settings *o, const zf_note *notes, int32_t count)
{
    static run_job job;
    static run r;
    static char path[300];
    zf_training raw;
    zf_json_writer *config;
    zf_attachment attachment = {.name = "config.json"};
    zf_save_desc d = {
        .notes = notes, .note_count = count, .attachments = &attachment, .attachment_count = 1};
    session_desc of;
    bool good;
    snprintf(path, sizeof path, "%s", test_path("older"));
    job = (run_job){.sample = &gpt_sample, .o = *o, .shape = {.batch = 1, .sequence = 8}};
    job.o.load = path, job.ranks.world = job.ranks.here = 1;
    r = (run){.job = &job, .leads = true};
    job.tables = settings_tables_of(&job.o, &gpt_sample, &(settings_desc){.tunes = false});
    raw = job.o.training;
    zf_options_resolve(job.tables.all, job.tables.count);
    job.o.training = raw;
    good = zf_config_load(gpt_sample.config(), "tests/golden/gpt/config.json", &job.config, &r.error);
    of = run_session(&job);
    good = good && session_open(&r.session, &of, &r.error);
    config = zf_config_json(gpt_sample.config(), &job.config);
    attachment.data = zf_json_text(config, &attachment.bytes, &r.error);
    good = good && attachment.data && !zf_save(zf_program_store(r.session.program), path, &d);
    zf_json_writer_free(config);
    if (!good) test_fail(t, __FILE__, __LINE__, "a checkpoint", r.error.text);
    good = good && run_resume(&r);
    session_close(&r.session);
    if (good) return "";
    return strncmp(r.error.text, path, strlen(path)) ? r.error.text : r.error.text + strlen(path);
}

/* A choice may be noted by its number, a number with all its digits; a setting that is not noted is
 * of an option that there was not. */
TEST_ONCE(runs_go_on_from_notes_of_an_older_program)
{
    settings o = {.training.adamw.weight_decay = 0.01, .training.clip = 1};
    const zf_note same[] = {{"cased", "no"}, {"schedule", "2"}, {"dropout", "0.10000000000000001"}},
                  choice[] = {{"cased", "no"}, {"schedule", "1"}},
                  number[] = {{"cased", "no"}, {"lr", "0.0010000000000000002"}},
                  text[] = {{"cased", "no"}, {"optimizer", "adam"}};
    o.schedule = ZF_COSINE, o.dropout = 0.1;
    CHECK_TEXT(t, goes_on(t, &o, same, 3), "");
    CHECK(t, strstr(goes_on(t, &o, choice, 2), " was trained with schedule = 1, not cosine: give "
                                               "the same --schedule, or start anew from its "
                                               "weights with --init "));
    CHECK(t,
          strstr(goes_on(t, &o, number, 2), "with lr = 0.0010000000000000002, not 0.001: give "));
    CHECK(t, strstr(goes_on(t, &o, text, 2), "with optimizer = adam, not adamw: give the same "));
}
