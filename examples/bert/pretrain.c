/* bert pretrain: masked words and next sentences on a text, or steps on given batches for
 * comparison with other systems. */
#define _POSIX_C_SOURCE 200809L
#include "batchfile.h"
#include "commands.h"
#include "log.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef struct settings {
    const char *model, *corpus, *vocab, *init, *save, *load, *log, *svg, *report, *batch_file,
        *dump, *dump_grads;
    int64_t seq, batch, steps, optimizer, schedule, warmup, seed, threads, eval_batches, save_every;
    double lr, end_lr, weight_decay, clip, dropout;
    bool cased, quiet;
} settings;

/* A run under way. */
typedef struct run {
    settings o;
    int argc;
    char **argv;
    bert_config config;
    bert_session session;
    bert_text text;           /* unless there is a batch file */
    bert_batch_file *batches; /* or NULL */
    bert_feeder *feeder;
    bert_log log;
    zf_error error;
    const bert_batch *batch; /* of the step under way */
    int64_t first_step;
    double started, last_step, last_line;
    double shown_loss, shown_correct, shown_labelled; /* sums since the last line */
    int64_t shown_steps;
    bool terminal, interrupted;
    bert_score score;
} run;

static volatile sig_atomic_t interrupts;

/* The first Ctrl-C ends the run after its step, the second one at once. */
static void on_interrupt(int number)
{
    if (++interrupts > 1) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double peak_mib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

/* ------------------------------------------------------------------------------- checkpoints */

static const char *const optimizer_names[] = {"adamw", "lamb", "sgd"}; /* by bert_optimizer */

enum { SETTINGS = 13, SETTING_TEXT = 64 };

/* The settings that must be equal for a run to go on with the same bits, as notes of its
 * checkpoint. `text` holds the values. */
static void setting_notes(const run *r, zf_note notes[SETTINGS], char text[SETTINGS][SETTING_TEXT])
{
    const settings *o = &r->o;
    const struct {
        const char *name, *text; /* text NULL: the number */
        double number;
    } all[SETTINGS] = {
        {"cased", o->cased ? "yes" : "no", 0},
        {"seq", NULL, (double)o->seq},
        {"batch", NULL, (double)o->batch},
        {"optimizer", optimizer_names[o->optimizer], 0},
        {"schedule", zf_schedule_name((zf_schedule_kind)o->schedule), 0},
        {"warmup", NULL, (double)o->warmup},
        {"seed", NULL, (double)o->seed},
        {"lr", NULL, o->lr},
        {"end-lr", NULL, o->end_lr},
        {"weight-decay", NULL, o->weight_decay},
        {"clip", NULL, o->clip},
        {"dropout", NULL, r->config.dropout},
        {"corpus", r->text.corpus ? NULL : "none",
         r->text.corpus ? (double)r->text.corpus->tokens : 0},
    };
    for (int i = 0; i < SETTINGS; i++) {
        int digits = 6; /* as few as read back the same */
        do snprintf(text[i], SETTING_TEXT, "%.*g", digits, all[i].number);
        while (strtod(text[i], NULL) != all[i].number && ++digits <= 17);
        if (all[i].text) snprintf(text[i], SETTING_TEXT, "%s", all[i].text);
        notes[i] = (zf_note){all[i].name, text[i]};
    }
}

/* A whole small file, or NULL; *bytes is its size. */
static char *load_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *data = NULL;
    long size;
    if (file && !fseek(file, 0, SEEK_END) && (size = ftell(file)) >= 0 &&
        !fseek(file, 0, SEEK_SET) && (data = malloc((size_t)size + 1)) != NULL)
        *bytes = fread(data, 1, (size_t)size, file);
    if (file) fclose(file);
    return data;
}

static bool save(run *r)
{
    char text[SETTINGS][SETTING_TEXT];
    zf_note notes[SETTINGS];
    zf_attachment attachments[2] = {{"config.json", NULL, 0}, {"vocab.txt", NULL, 0}};
    zf_json_writer *config = bert_config_json(&r->config);
    char *vocab = r->o.vocab ? load_file(r->o.vocab, &attachments[1].bytes) : NULL;
    zf_save_desc d = {notes, SETTINGS, attachments, r->o.vocab ? 2 : 1};
    setting_notes(r, notes, text);
    attachments[0].data = zf_json_text(config, &attachments[0].bytes, &r->error);
    attachments[1].data = vocab;
    if (r->o.vocab && !vocab) {
        r->error.status = ZF_ERR_IO;
        snprintf(r->error.text, sizeof r->error.text, "%s: cannot be read again", r->o.vocab);
    } else if (attachments[0].data &&
               (r->error.status = zf_save(r->session.program, r->o.save, &d))) {
        snprintf(r->error.text, sizeof r->error.text, "%s", zf_program_error(r->session.program));
    }
    zf_json_writer_free(config);
    free(vocab);
    return !r->error.status;
}

/* Restores a checkpoint after checking that this run is the one it belongs to. */
static bool resume(run *r)
{
    char text[SETTINGS][SETTING_TEXT], saved[SETTING_TEXT], path[1024];
    zf_note notes[SETTINGS];
    bert_config config;
    setting_notes(r, notes, text);
    for (int i = 0; i < SETTINGS; i++) {
        if (zf_checkpoint_note(r->o.load, notes[i].key, saved, sizeof saved, &r->error))
            return false;
        if (!strcmp(saved, notes[i].value)) continue;
        r->error.status = ZF_ERR_MISMATCH;
        snprintf(r->error.text, sizeof r->error.text,
                 "%s was trained with %s = %s%s, not %s: give the same --%s, or start anew from "
                 "its weights with --init "
                 "%s/params.safetensors",
                 r->o.load, notes[i].key, saved, strcmp(notes[i].key, "corpus") ? "" : " tokens",
                 notes[i].value, notes[i].key, r->o.load);
        return false;
    }
    snprintf(path, sizeof path, "%s/config.json", r->o.load);
    if (!bert_config_load(path, &config, &r->error)) return false;
    if (memcmp(&config, &r->config, sizeof config)) {
        r->error.status = ZF_ERR_MISMATCH;
        snprintf(r->error.text, sizeof r->error.text,
                 "%s was trained with another model than --model %s: give the same", r->o.load,
                 r->o.model);
        return false;
    }
    r->error.status = zf_load(r->session.program, r->o.load, NULL);
    if (r->error.status)
        snprintf(r->error.text, sizeof r->error.text, "%s", zf_program_error(r->session.program));
    return !r->error.status;
}

/* -------------------------------------------------------------------------------- live line */

static void clock_text(char *text, size_t size, double seconds)
{
    long s = seconds > 0 && seconds < 1e8 ? (long)(seconds + 0.5) : 0;
    if (s >= 3600) snprintf(text, size, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else snprintf(text, size, "%ld:%02ld", s / 60, s % 60);
}

static void show(run *r, int64_t done)
{
    char eta[32];
    double n = (double)(r->shown_steps ? r->shown_steps : 1), t = now(), spent = t - r->started;
    double tokens = n * (double)(r->session.shape.batch * r->session.shape.sequence);
    int64_t here = done - r->first_step;
    clock_text(eta, sizeof eta, here ? spent / (double)here * (double)(r->o.steps - done) : 0);
    printf("%sstep %lld/%lld  loss %.4f  MLM accuracy %.1f%%  %.0f tokens/s  %.0f MiB  ETA %s%s",
           r->terminal ? "\r\033[K" : "", (long long)done, (long long)r->o.steps, r->shown_loss / n,
           100 * r->shown_correct / (r->shown_labelled > 0 ? r->shown_labelled : 1),
           tokens / (t - r->last_line), peak_mib(), eta, r->terminal ? "" : "\n");
    fflush(stdout);
    r->shown_loss = r->shown_correct = r->shown_labelled = 0;
    r->shown_steps = 0;
    r->last_line = t;
}

/* ------------------------------------------------------------------------------------ steps */

static zf_status feed(void *user, zf_program *program, int64_t step)
{
    run *r = user;
    (void)program;
    if (r->batches) r->batch = &r->batches->batch[step % r->batches->entries];
    else r->batch = bert_feeder_next(r->feeder);
    return bert_session_feed(&r->session, r->batch, r->batch->labelled,
                             (double)r->session.shape.batch);
}

static bool report(void *user, zf_program *program, int64_t done, double lr)
{
    run *r = user;
    bert_session *s = &r->session;
    const bert_model *m = &s->model;
    double tokens = (double)(s->shape.batch * s->shape.sequence), t = now();
    bert_log_row row = {.step = done,
                        .loss = bert_session_scalar(s, m->loss),
                        .mlm_loss = bert_session_scalar(s, m->mlm_loss),
                        .nsp_loss = bert_session_scalar(s, m->nsp_loss),
                        .lr = lr,
                        .grad_norm = bert_session_scalar(s, zf_graph_find(s->graph, "grad_norm")),
                        .tokens_per_s = tokens / (t - r->last_step)};
    (void)program;
    r->shown_loss += row.loss, r->shown_steps++;
    r->shown_correct += bert_session_scalar(s, m->mlm_correct),
        r->shown_labelled += r->batch->labelled;
    if (!bert_log_add(&r->log, &row, &r->error)) return false;
    if (!isfinite(row.loss) || !isfinite(row.grad_norm)) {
        r->error.status = ZF_ERR_ARGUMENT;
        snprintf(r->error.text, sizeof r->error.text,
                 "step %lld: loss %g, gradient norm %g; the run has diverged (a smaller --lr or a "
                 "--clip may help)",
                 (long long)done, row.loss, row.grad_norm);
        return false;
    }
    if (!r->o.quiet && (t - r->last_line > (r->terminal ? 0.5 : 10) || done == r->o.steps))
        show(r, done);
    r->last_step = t;
    if (interrupts) {
        r->interrupted = true;
        return false;
    }
    if (!r->o.save || !r->o.save_every || done % r->o.save_every || done == r->o.steps) return true;
    if (!save(r)) return false;
    r->last_step = now(); /* the next step's time begins here */
    return true;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Tokens per second of the median step of this part of the run; 0 without a step. */
static double speed(const run *r)
{
    double *speeds = malloc((size_t)(r->log.count + 1) * sizeof *speeds), median = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < r->log.count && speeds; i++)
        if (r->log.rows[i].step > r->first_step) speeds[count++] = r->log.rows[i].tokens_per_s;
    if (count) {
        qsort(speeds, (size_t)count, sizeof *speeds, by_value);
        median = speeds[count / 2];
    }
    free(speeds);
    return median;
}

static bool train(run *r)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    bert_session *s = &r->session;
    char err[256];
    zf_nn_train_desc d = {.program = s->program,
                          .steps = r->o.steps,
                          .lr = s->model.lr,
                          .user = r,
                          .feed = feed,
                          .report = report,
                          .schedule = {.kind = (zf_schedule_kind)r->o.schedule,
                                       .peak = r->o.lr,
                                       .end = r->o.end_lr,
                                       .warmup = r->o.warmup,
                                       .steps = r->o.steps}};
    zf_status status;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    r->first_step = zf_program_step(s->program);
    if (!r->batches) {
        bert_feeder_desc f = {.examples = r->text.train,
                              .batch = (int32_t)s->shape.batch,
                              .first = r->first_step * s->shape.batch};
        if (!(r->feeder = bert_feeder_start(&f, err, sizeof err)))
            return bert_error("%s", err), false;
    }
    if (!bert_log_open(&r->log, r->o.log, r->first_step, &r->error)) return false;
    r->started = r->last_step = r->last_line = now();
    status = zf_nn_train(&d);
    if (r->terminal && !r->o.quiet) printf("\n");
    if (!status) return !r->error.status;
    r->error.status = status;
    snprintf(r->error.text, sizeof r->error.text, "%s", zf_program_error(s->program));
    return false;
}

/* ------------------------------------------------------------------------------------ the end */

/* Loss and accuracy on the held-out split, without dropout. */
static bool evaluate(run *r)
{
    bert_session_desc d = {.config = r->config, .shape = r->session.shape, .share = &r->session};
    bert_session s;
    bool good;
    if (!bert_session_open(&s, &d, &r->error)) return false;
    good = bert_session_score(&s, r->text.held_out, r->o.eval_batches, &r->score, &r->error);
    bert_session_close(&s);
    return good;
}

/* The losses of one batch without an update: of the next entry of a batch file, or of the held-out
 * split. */
static bool only_evaluate(run *r)
{
    bert_session_desc d = {.config = r->config, .shape = r->session.shape, .share = &r->session};
    const bert_batch *b;
    bert_session s;
    zf_status status;
    if (!r->batches) {
        if (!evaluate(r)) return false;
        printf("held out: MLM loss %.9g, accuracy %.2f%%, NSP loss %.9g\n", r->score.mlm_loss,
               100 * r->score.mlm_accuracy, r->score.nsp_loss);
        return true;
    }
    if (!bert_session_open(&s, &d, &r->error)) return false;
    b = &r->batches->batch[zf_program_step(r->session.program) % r->batches->entries];
    status = bert_session_feed(&s, b, b->labelled, (double)s.shape.batch);
    if (!status) status = zf_step(s.program);
    if (status) {
        r->error.status = status;
        snprintf(r->error.text, sizeof r->error.text, "%s", zf_program_error(s.program));
    } else {
        r->score = (bert_score){bert_session_scalar(&s, s.model.mlm_loss),
                                bert_session_scalar(&s, s.model.mlm_correct) /
                                    (b->labelled ? b->labelled : 1),
                                bert_session_scalar(&s, s.model.nsp_loss), b->labelled};
        printf("loss %.9g  mlm_loss %.9g  nsp_loss %.9g\n", bert_session_scalar(&s, s.model.loss),
               r->score.mlm_loss, r->score.nsp_loss);
    }
    bert_session_close(&s);
    return !status;
}

static bool write_report(run *r)
{
    zf_program_info info = zf_program_info_of(r->session.program);
    const bert_log_row *last = r->log.count ? &r->log.rows[r->log.count - 1] : NULL;
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_status status;
    zf_json_begin_object(w);
    zf_json_put_key(w, "model"), zf_json_put_string(w, r->o.model);
    zf_json_put_key(w, "parameters"), zf_json_put_int(w, info.param_count);
    zf_json_put_key(w, "batch"), zf_json_put_int(w, r->session.shape.batch);
    zf_json_put_key(w, "sequence"), zf_json_put_int(w, r->session.shape.sequence);
    zf_json_put_key(w, "steps"), zf_json_put_int(w, zf_program_step(r->session.program));
    zf_json_put_key(w, "threads"), zf_json_put_int(w, r->o.threads);
    zf_json_put_key(w, "predicted_peak_bytes"), zf_json_put_int(w, (int64_t)info.peak_bytes);
    zf_json_put_key(w, "allocated_peak_bytes"), zf_json_put_int(w, (int64_t)info.allocated_bytes);
    zf_json_put_key(w, "live_peak_bytes"), zf_json_put_int(w, (int64_t)info.live_bytes);
    zf_json_put_key(w, "resident_peak_bytes"), zf_json_put_int(w, (int64_t)(peak_mib() * 1048576));
    zf_json_put_key(w, "flops_per_step"), zf_json_put_double(w, info.flops);
    zf_json_put_key(w, "tokens_per_s"), zf_json_put_double(w, speed(r));
    zf_json_put_key(w, "loss"),
        zf_json_put_double(w, last ? last->loss : r->score.mlm_loss + r->score.nsp_loss);
    if (r->score.labelled) {
        zf_json_put_key(w, r->batches ? "mlm_loss" : "held_out_mlm_loss"),
            zf_json_put_double(w, r->score.mlm_loss);
        zf_json_put_key(w, r->batches ? "mlm_accuracy" : "held_out_mlm_accuracy");
        zf_json_put_double(w, r->score.mlm_accuracy);
        zf_json_put_key(w, r->batches ? "nsp_loss" : "held_out_nsp_loss"),
            zf_json_put_double(w, r->score.nsp_loss);
    }
    if (r->text.corpus)
        zf_json_put_key(w, "unigram_entropy"), zf_json_put_double(w, r->text.corpus->unigram_nats);
    if (r->feeder)
        zf_json_put_key(w, "feeder_waits"), zf_json_put_int(w, bert_feeder_waits(r->feeder));
    zf_json_end(w);
    status = zf_json_save(w, r->o.report, &r->error);
    zf_json_writer_free(w);
    return !status;
}

/* An argument for a shell: in quotes where it has a character that means something there. */
static void print_argument(const char *text)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=:,./@%";
    bool quote = !*text || text[strspn(text, plain)];
    printf(quote ? " '" : " ");
    for (; *text; text++) printf(*text == '\'' ? "'\\''" : "%c", *text);
    if (quote) printf("'");
}

/* The command that takes the run up again: of two --load the last one counts. */
static void print_continue(const run *r)
{
    printf("interrupted after step %lld; the checkpoint is in %s. To continue:\n ",
           (long long)zf_program_step(r->session.program), r->o.save);
    for (int i = 0; i < r->argc; i++) print_argument(r->argv[i]);
    if (!r->o.load || strcmp(r->o.load, r->o.save)) {
        printf(" --load");
        print_argument(r->o.save);
    }
    printf("\n");
}

static bool finish(run *r)
{
    if (r->o.save && !save(r)) return false;
    if (r->interrupted) {
        if (r->o.save) print_continue(r);
        else
            printf("interrupted after step %lld; without --save nothing is kept\n",
                   (long long)zf_program_step(r->session.program));
        return true;
    }
    if (r->text.corpus && r->o.eval_batches) {
        if (!evaluate(r)) return false;
        printf("held out: MLM loss %.4f, accuracy %.1f%% of %lld masked words; NSP loss %.4f; "
               "unigram entropy %.4f\n",
               r->score.mlm_loss, 100 * r->score.mlm_accuracy, (long long)r->score.labelled,
               r->score.nsp_loss, r->text.corpus->unigram_nats);
        if (!bert_show_guesses(&r->session, &r->config, &r->text, r->o.seq, 5, &r->error))
            return false;
    }
    return true;
}

static bool write_results(run *r)
{
    if (r->o.dump_grads && zf_program_step(r->session.program) == r->first_step)
        return bert_error("--dump-grads %s: the checkpoint had all %lld steps, so there was none "
                          "to take gradients of",
                          r->o.dump_grads, (long long)r->o.steps),
               false;
    if (r->o.dump && bert_export(r->session.program, r->session.graph, r->o.dump, false, &r->error))
        return false;
    if (r->o.dump_grads &&
        bert_export(r->session.program, r->session.graph, r->o.dump_grads, true, &r->error))
        return false;
    if (r->o.svg &&
        !bert_log_plot(&r->log, r->o.svg, r->text.corpus ? r->text.corpus->unigram_nats : 0,
                       "unigram entropy", r->text.corpus ? r->score.mlm_loss : 0, &r->error))
        return false;
    return !r->o.report || write_report(r);
}

/* ---------------------------------------------------------------------------------- beginning */

/* Text or batches, and the sizes that follow from them. */
static bool open_data(run *r, bert_shape *shape)
{
    settings *o = &r->o;
    if (o->batch_file) {
        r->batches =
            bert_batch_file_load(o->batch_file, r->config.vocab, r->config.types, &r->error);
        if (!r->batches) return false;
        o->batch = r->batches->examples, o->seq = r->batches->sequence;
        *shape = (bert_shape){o->batch, o->seq, r->batches->predictions};
        return true;
    }
    if (!bert_text_open(&r->text, o->corpus, o->vocab, o->cased, o->seq, (uint64_t)o->seed,
                        o->threads))
        return false;
    if (strpbrk(o->model, "./") == NULL) r->config.vocab = bert_vocab_size(r->text.vocab);
    if (r->config.vocab < bert_vocab_size(r->text.vocab))
        return bert_error("%s: vocab_size is %lld, but %s has %d tokens", o->model,
                          (long long)r->config.vocab, o->vocab,
                          (int)bert_vocab_size(r->text.vocab)),
               false;
    *shape = (bert_shape){o->batch, o->seq, bert_predictions(o->batch, o->seq)};
    return true;
}

/* Whether a checkpoint can be put where --save says: a long run must not end with the news that it
 * cannot. */
static bool can_save(run *r)
{
    size_t end = strlen(r->o.save);
    char parent[1024];
    while (end > 1 && r->o.save[end - 1] == '/') end--;
    while (end > 0 && r->o.save[end - 1] != '/') end--;
    snprintf(parent, sizeof parent, "%.*s", end ? (int)end : 1, end ? r->o.save : ".");
    if (!access(parent, W_OK | X_OK)) return true;
    return bert_error("--save %s: %s: %s", r->o.save, parent, strerror(errno)), false;
}

static bool begin(run *r)
{
    settings *o = &r->o;
    bert_session_desc d = {.train = true,
                           .threads = o->threads,
                           .seed = (uint64_t)o->seed,
                           .optimizer = (bert_optimizer)o->optimizer,
                           .weight_decay = o->weight_decay,
                           .clip = o->clip,
                           .keep_gradients = o->dump_grads != NULL};
    int fresh;
    zf_program_info info;
    if ((o->save && !can_save(r)) || !bert_config_load(o->model, &r->config, &r->error) ||
        !open_data(r, &d.shape))
        return false;
    if (o->dropout >= 0) r->config.dropout = r->config.attention_dropout = o->dropout;
    if (o->warmup < 0 && o->load) {
        char warmup[SETTING_TEXT];
        if (zf_checkpoint_note(o->load, "warmup", warmup, sizeof warmup, &r->error)) return false;
        o->warmup = strtoll(warmup, NULL, 10);
    }
    if (o->warmup < 0) o->warmup = o->steps / 10;
    d.config = r->config;
    if (!bert_session_open(&r->session, &d, &r->error)) return false;
    if (o->init && !o->load) {
        if (bert_import(r->session.program, r->session.graph, o->init, &fresh, &r->error))
            return false;
        if (fresh) printf("%s lacks %d tensors of the heads; they start anew\n", o->init, fresh);
    }
    if (o->load && !resume(r)) return false;
    info = zf_program_info_of(r->session.program);
    printf("BERT %s: %.3g million parameters, batch %lld x %lld tokens, %.3g GFLOP a step, plan "
           "%.3g MiB\n",
           o->model, 1e-6 * (double)info.param_count, (long long)o->batch, (long long)o->seq,
           1e-9 * info.flops, (double)info.peak_bytes / 1048576);
    if (r->text.corpus)
        printf(
            "%s: %lld tokens in %lld documents, %lld of them held out; unigram entropy %.4f nats\n",
            o->corpus, (long long)r->text.corpus->tokens, (long long)r->text.corpus->documents,
            (long long)r->text.corpus->held_out.count, r->text.corpus->unigram_nats);
    return true;
}

static void end(run *r)
{
    zf_error ignored = {ZF_OK, ""};
    bert_log_close(&r->log, &ignored);
    bert_feeder_stop(r->feeder);
    bert_session_close(&r->session);
    bert_text_close(&r->text);
    bert_batch_file_free(r->batches);
}

/* What is wrong with the options as a whole, or NULL. */
static const char *contradiction(const settings *o)
{
    if (!o->corpus && !o->batch_file)
        return "a text to train on is needed: --corpus FILE, or batches: --batch-file FILE";
    if (o->corpus && o->batch_file) return "--corpus and --batch-file exclude each other";
    if (o->corpus && !o->vocab)
        return "--corpus needs a vocabulary: --vocab FILE, which 'bert vocab' makes";
    if (o->save_every && !o->save)
        return "--save-every needs a place for its checkpoints: --save DIR";
    if (o->dump_grads && !o->steps) return "--dump-grads needs a step, and --steps 0 makes none";
    if (o->corpus && !o->steps && !o->eval_batches)
        return "--steps 0 only evaluates, and --eval-batches 0 leaves nothing to evaluate";
    return NULL;
}

int bert_command_pretrain(int argc, char **argv)
{
    run r = {.o = {.model = "mini",
                   .seq = 128,
                   .batch = 16,
                   .steps = 1000,
                   .optimizer = BERT_ADAMW,
                   .schedule = ZF_LINEAR,
                   .warmup = -1,
                   .seed = 1,
                   .threads = 1,
                   .eval_batches = 16,
                   .lr = 1e-3,
                   .weight_decay = 0.01,
                   .clip = 1,
                   .dropout = -1},
             .argc = argc,
             .argv = argv};
    settings *o = &r.o;
    const option_row rows[] = {
        {"model", OPTION_TEXT, "NAME|FILE", &o->model, 0, 0,
         "tiny mini small medium base large, or a config.json"},
        {"corpus", OPTION_TEXT, "FILE", &o->corpus, 0, 0,
         "one sentence a line, a blank line between documents"},
        {"vocab", OPTION_TEXT, "FILE", &o->vocab, 0, 0, "a vocab.txt, as 'bert vocab' makes it"},
        {"cased", OPTION_FLAG, NULL, &o->cased, 0, 0,
         "the vocabulary tells capitals and accents apart"},
        {"seq", OPTION_COUNT, "T", &o->seq, 8, 65536, "tokens of an example"},
        {"batch", OPTION_COUNT, "B", &o->batch, 1, 1 << 20, "examples of a step"},
        {"steps", OPTION_COUNT, "N", &o->steps, 0, 1e12, "steps in all; 0 only evaluates the loss"},
        {"optimizer", OPTION_CHOICE, "adamw|lamb|sgd", &o->optimizer, 0, 0, "the update"},
        {"lr", OPTION_NUMBER, "X", &o->lr, 0, 1e3, "highest learning rate"},
        {"end-lr", OPTION_NUMBER, "X", &o->end_lr, 0, 1e3,
         "learning rate at the end of the schedule"},
        {"schedule", OPTION_CHOICE, "constant|linear|cosine|polynomial|exponential|one_cycle",
         &o->schedule, 0, 0, "learning rate after the warm-up"},
        {"warmup", OPTION_COUNT, "N", &o->warmup, -1, 1e12, "steps of warm-up; -1: a tenth of all"},
        {"weight-decay", OPTION_NUMBER, "X", &o->weight_decay, 0, 1e3,
         "not on biases and LayerNorm"},
        {"clip", OPTION_NUMBER, "X", &o->clip, 0, INFINITY, "largest gradient norm; 0: any"},
        {"dropout", OPTION_NUMBER, "P", &o->dropout, -1, 0.999, "-1: as the model says"},
        {"seed", OPTION_COUNT, "K", &o->seed, 0, 9e15, "of parameters, dropout, masks and pairs"},
        {"threads", OPTION_COUNT, "N", &o->threads, 1, 1024, "workers"},
        {"init", OPTION_TEXT, "FILE", &o->init, 0, 0,
         "start from the weights of a safetensors file (not with --load)"},
        {"save", OPTION_TEXT, "DIR", &o->save, 0, 0,
         "write a checkpoint at the end, and when interrupted"},
        {"save-every", OPTION_COUNT, "N", &o->save_every, 0, 1e12, "and every N steps"},
        {"load", OPTION_TEXT, "DIR", &o->load, 0, 0, "go on from a checkpoint"},
        {"eval-batches", OPTION_COUNT, "N", &o->eval_batches, 0, 1e6,
         "of the held-out split, at the end"},
        {"log", OPTION_TEXT, "FILE", &o->log, 0, 0, "CSV of the steps"},
        {"svg", OPTION_TEXT, "FILE", &o->svg, 0, 0, "the loss curve"},
        {"report", OPTION_TEXT, "FILE", &o->report, 0, 0, "JSON: memory, speed, losses"},
        {"batch-file", OPTION_TEXT, "FILE", &o->batch_file, 0, 0,
         "train on these batches (safetensors) instead"},
        {"dump", OPTION_TEXT, "FILE", &o->dump, 0, 0,
         "parameters after the last step, Hugging Face names"},
        {"dump-grads", OPTION_TEXT, "FILE", &o->dump_grads, 0, 0,
         "gradients of the last step, before clipping"},
        {"quiet", OPTION_FLAG, NULL, &o->quiet, 0, 0, "no line while it runs"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    const char *wrong;
    int status;
    bool good;
    if (!bert_options(argc, argv, "pretrain --corpus FILE --vocab FILE [OPTIONS]", rows, NULL,
                      &status))
        return status;
    if ((wrong = contradiction(o))) return bert_usage_error(argv, wrong);
    r.terminal = isatty(STDOUT_FILENO) != 0;
    good = begin(&r);
    if (good) good = o->steps ? train(&r) && finish(&r) : only_evaluate(&r);
    if (good && !r.interrupted) good = write_results(&r);
    if (!good && r.error.status) bert_error("%s", r.error.text);
    end(&r);
    return !good ? EXIT_FAILED : r.interrupted ? 130 : EXIT_GOOD;
}
