/* The command pretrain: the next token of a text, or steps on given batches for comparison with
 * other systems. */
#define _POSIX_C_SOURCE 200809L
#include "command.h"
#include "config.h"
#include "fail.h"
#include "folder.h"
#include "interrupt.h"
#include "lm_session.h"
#include "lm_text.h"
#include "output.h"
#include "resuming.h"
#include "settings.h"
#include "training.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef struct run {
    const lm_kind *kind;
    settings o;
    lm_config config;
    lm_facts facts;     /* of it */
    lm_text text;       /* unless there is a batch file */
    lm_batch_file file; /* entries 0: there is none */
    lm_batch own;       /* of the text */
    lm_session session;
    training told;
    saving saving;
    csv_file log;
    zf_error error;
    int64_t first_step;
    double started, last_step, last_line; /* when: the second step began, ... */
    double loss;                          /* of the last step */
    double held_out;                      /* NAN: not evaluated */
    bool terminal, interrupted;
} run;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool fail_by_program(run *r, zf_status status, const lm_session *s)
{
    return fail(&r->error, status, "%s", zf_program_error(s->program));
}

/* -------------------------------------------------------------------------------- checkpoints */

enum { NOTES = 16, NOTE_TEXT = 32 };

/* The settings that must be equal for a run to go on with the same bits. `text` holds the values.
 */
static void setting_notes(const run *r, zf_note notes[NOTES], char text[NOTES][NOTE_TEXT])
{
    const settings *o = &r->o;
    const struct {
        const char *name;
        double value;
    } all[NOTES - 1] = {
        {"seq", (double)o->seq},
        {"batch", (double)o->batch},
        {"schedule", (double)o->schedule},
        {"warmup", (double)o->warmup},
        {"seed", (double)o->seed},
        {"lr", o->lr},
        {"end-lr", o->end_lr},
        {"weight-decay", o->weight_decay},
        {"clip", o->clip},
        {"dropout", *r->facts.dropouts[0]},
        {"beta1", o->beta1},
        {"beta2", o->beta2},
        {"eps", o->eps},
        {"first-rate", (double)o->first_rate},
        {"corpus tokens", (double)r->text.train.count},
    };
    for (int i = 0; i < NOTES - 1; i++) {
        snprintf(text[i], NOTE_TEXT, "%.17g", all[i].value);
        notes[i] = (zf_note){all[i].name, text[i]};
    }
    notes[NOTES - 1] = (zf_note){"precision", zf_dtype_name((zf_dtype)o->precision)};
}

static resuming identity(const run *r, const zf_note notes[NOTES])
{
    return (resuming){.load = r->o.load,
                      .model = r->o.model,
                      .vocab_path = r->o.vocab,
                      .corpus_path = r->o.corpus,
                      .notes = notes,
                      .note_count = NOTES,
                      .equal = NOTES,
                      .words = &r->o.words,
                      .vocab = r->text.vocab,
                      .digest = r->text.digest,
                      .frame = FOLDER_GPT,
                      .longest = *r->facts.positions,
                      .config = &r->config,
                      .config_bytes = r->kind->config_bytes,
                      .config_load = r->kind->load};
}

static bool save(run *r)
{
    char text[NOTES][NOTE_TEXT];
    zf_note notes[NOTES];
    resuming all;
    setting_notes(r, notes, text);
    all = identity(r, notes);
    return resuming_save(&all, &r->saving, true, r->session.program, r->kind->json(&r->config),
                         &r->error);
}

static bool resume(run *r)
{
    char text[NOTES][NOTE_TEXT];
    zf_note notes[NOTES];
    zf_store *store = zf_program_store(r->session.program);
    zf_status status;
    resuming all;
    setting_notes(r, notes, text);
    all = identity(r, notes);
    if (!resuming_fits(&all, &r->error)) return false;
    status = zf_load(store, r->o.load, NULL);
    return !status || fail(&r->error, status, "%s", zf_store_error(store));
}

/* ----------------------------------------------------------------------------------- the steps */

static const lm_batch *batch_of(run *r, int64_t step)
{
    if (r->file.entries) return &r->file.batch[step % r->file.entries];
    lm_batch_draw(&r->own, &r->text.train, (uint64_t)r->o.seed, step * r->o.batch);
    return &r->own;
}

static zf_status feed(void *user, zf_program *program, int64_t step)
{
    run *r = user;
    (void)program;
    return lm_session_feed(&r->session, batch_of(r, step));
}

static bool report(void *user, zf_program *program, int64_t done, double lr)
{
    run *r = user;
    const settings *o = &r->o;
    double t = now(), tokens = (double)(o->batch * o->seq),
           grad_norm = lm_session_scalar(&r->session, "grad_norm");
    bool last = done == o->steps;
    char row[160];
    (void)program;
    r->loss = lm_session_scalar(&r->session, "loss");
    snprintf(row, sizeof row, "%lld,%.9g,%.9g,%.9g,%.9g\n", (long long)done, r->loss, lr, grad_norm,
             tokens / (t - r->last_step));
    training_log(&r->log, r->kind->program, row);
    /* With a loss scale a gradient that is not finite is a step that was skipped. */
    if (!isfinite(grad_norm) && o->precision != ZF_F16)
        return fail(&r->error, ZF_ERR_NAN,
                    "step %lld: loss %g, gradient norm %g; " TRAINING_DIVERGED, (long long)done,
                    r->loss, grad_norm);
    if (!o->quiet && (last || t - r->last_line > (r->terminal ? 0.5 : 10))) {
        printf("%sstep %lld/%lld  loss %.4f  %.0f tokens/s%s", r->terminal ? "\r\033[K" : "",
               (long long)done, (long long)o->steps, r->loss, tokens / (t - r->last_step),
               r->terminal && !last ? "" : "\n");
        interrupt_flush();
        r->last_line = t;
    }
    if (done == r->first_step + 1) r->started = t;
    r->last_step = t;
    r->interrupted = interrupt_came();
    if (r->interrupted) return false;
    if (!o->save || !o->save_every || done % o->save_every || last) return true;
    if (!save(r)) return false;
    r->started += now() - t; /* saving is not training */
    r->last_step = now();
    return true;
}

static bool train(run *r)
{
    const settings *o = &r->o;
    lm_session *s = &r->session;
    zf_nn_train_desc d = {.program = s->program,
                          .steps = o->steps,
                          .lr = s->model.lr,
                          .user = r,
                          .feed = feed,
                          .report = report,
                          .schedule = {.kind = (zf_schedule_kind)o->schedule,
                                       .peak = o->lr,
                                       .end = o->end_lr,
                                       .warmup = o->warmup,
                                       .steps = o->steps,
                                       .from_zero = !o->first_rate}};
    zf_status status;
    interrupt_catch(false);
    r->first_step = zf_program_step(s->program);
    if (!csv_open(&r->log, o->log, "step,loss,lr,grad_norm,tokens_per_s\n", r->first_step, NULL,
                  NULL, &r->error))
        return false;
    r->started = r->last_step = r->last_line = now();
    status = zf_nn_train(&d);
    if (r->interrupted && r->terminal && !o->quiet) printf("\n");
    if (!status) return !r->error.status;
    if (status == ZF_ERR_NAN)
        return fail(&r->error, status,
                    "step %lld: the loss is not a finite number; " TRAINING_DIVERGED,
                    (long long)zf_program_step(s->program) + 1);
    return fail_by_program(r, status, s);
}

/* ------------------------------------------------------------------------------------- the end */

/* The loss, without dropout, on the first held-out batches, or on the batch that would come next.
 */
static bool evaluate(run *r)
{
    lm_session_desc d = {.kind = r->kind,
                         .purpose = LM_EVALUATE,
                         .config = &r->config,
                         .shape = r->session.shape,
                         .dtype = (zf_dtype)r->o.precision,
                         .no_fuse = r->o.no_fuse,
                         .share = &r->session};
    int64_t batches = r->file.entries ? 1 : r->o.eval_batches;
    double sum = 0;
    lm_session s;
    zf_status status = ZF_OK;
    if (!batches) return true;
    if (!lm_session_open(&s, &d, &r->error)) return false;
    for (int64_t n = 0; n < batches && !status; n++) {
        const lm_batch *b = &r->own;
        if (r->file.entries) b = batch_of(r, zf_program_step(r->session.program));
        else lm_batch_read(&r->own, &r->text.held_out, n * r->o.batch);
        status = lm_session_feed(&s, b);
        if (!status) status = zf_step(s.program);
        if (!status) sum += lm_session_scalar(&s, "loss");
    }
    if (status) fail_by_program(r, status, &s);
    lm_session_close(&s);
    r->held_out = sum / (double)batches;
    if (!status && !isfinite(r->held_out))
        return fail(&r->error, ZF_ERR_NAN, "%s: the loss is not a finite number",
                    r->file.entries ? r->o.batch_file : "held out");
    if (!status && r->file.entries) printf("loss %.9g\n", r->held_out);
    if (!status && !r->file.entries)
        printf("held out: loss %.4f, perplexity %.1f; unigram entropy %.4f\n", r->held_out,
               exp(r->held_out), r->text.unigram_nats);
    return !status;
}

/* Of the steps behind the first; 0: there are none. */
static double tokens_per_s(const run *r)
{
    int64_t steps = zf_program_step(r->session.program) - r->first_step - 1;
    return steps > 0 ? (double)(steps * r->o.batch * r->o.seq) / (r->last_step - r->started) : 0;
}

static bool write_report(run *r)
{
    const settings *o = &r->o;
    zf_program_info info = zf_program_info_of(r->session.program);
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    zf_json_begin_object(w);
    zf_json_put_key(w, "model"), zf_json_put_string(w, o->model);
    zf_json_put_key(w, "parameters"), zf_json_put_int(w, info.param_count);
    zf_json_put_key(w, "batch"), zf_json_put_int(w, o->batch);
    zf_json_put_key(w, "sequence"), zf_json_put_int(w, o->seq);
    zf_json_put_key(w, "steps"), zf_json_put_int(w, zf_program_step(r->session.program));
    zf_json_put_key(w, "threads"), zf_json_put_int(w, o->threads);
    zf_json_put_key(w, "predicted_peak_bytes"), zf_json_put_int(w, (int64_t)info.peak_bytes);
    zf_json_put_key(w, "allocated_peak_bytes"), zf_json_put_int(w, (int64_t)info.allocated_bytes);
    zf_json_put_key(w, "resident_peak_bytes"), zf_json_put_int(w, (int64_t)usage.ru_maxrss * 1024);
    zf_json_put_key(w, "flops_per_step"), zf_json_put_double(w, info.flops);
    zf_json_put_key(w, "tokens_per_s"), zf_json_put_double(w, tokens_per_s(r));
    zf_json_put_key(w, "loss"), zf_json_put_double(w, o->steps ? r->loss : r->held_out);
    if (!r->file.entries) {
        zf_json_put_key(w, "held_out_loss"), zf_json_put_double(w, r->held_out);
        zf_json_put_key(w, "unigram_entropy"), zf_json_put_double(w, r->text.unigram_nats);
    }
    zf_json_end(w);
    (void)zf_json_save(w, o->report, &r->error);
    zf_json_writer_free(w);
    return !r->error.status;
}

static bool finish(run *r)
{
    const settings *o = &r->o;
    lm_session *s = &r->session;
    if (o->save && !save(r)) return false;
    if (r->interrupted) {
        training_tell_interrupted(&r->told, zf_program_step(s->program));
        return true;
    }
    if ((!r->file.entries || !o->steps) && !evaluate(r)) return false;
    if (o->dump && !r->kind->export(s->program, s->graph, o->dump, false, ZF_F32, &r->error))
        return false;
    if (o->dump_grads && zf_program_step(s->program) == r->first_step)
        return fail(&r->error, ZF_ERR_ARGUMENT,
                    "--dump-grads %s: there was no step to take gradients of", o->dump_grads);
    if (o->dump_grads &&
        !r->kind->export(s->program, s->graph, o->dump_grads, true, ZF_F32, &r->error))
        return false;
    return !o->report || write_report(r);
}

/* ------------------------------------------------------------------------------- the beginning */

/* Text or batches. */
static bool open_data(run *r)
{
    settings *o = &r->o;
    bert_tokenizer_options options = tokenizing_options(&o->words);
    int64_t tokens;
    if (o->batch_file) {
        if (!lm_batch_file_load(&r->file, o->batch_file, *r->facts.vocab, &r->error)) return false;
        o->batch = r->file.batch[0].examples, o->seq = r->file.batch[0].sequence;
        return true;
    }
    if (!lm_text_open(&r->text, o->corpus, o->vocab, &options, o->seq, o->threads, &r->error) ||
        !lm_batch_new(&r->own, o->batch, o->seq, &r->error))
        return false;
    tokens = bert_vocab_size(r->text.vocab);
    *r->facts.end = bert_vocab_id(r->text.vocab, "[SEP]");
    if (!config_is_path(o->model)) *r->facts.vocab = tokens;
    if (tokens <= *r->facts.vocab) return true;
    return fail(&r->error, ZF_ERR_ARGUMENT, "%s: vocab_size is %lld, but %s has %lld tokens",
                o->model, (long long)*r->facts.vocab, o->vocab, (long long)tokens);
}

static bool begin(run *r)
{
    settings *o = &r->o;
    lm_session_desc d = {.kind = r->kind,
                         .purpose = LM_TRAIN,
                         .dtype = (zf_dtype)o->precision,
                         .device = o->device,
                         .threads = o->threads,
                         .seed = (uint64_t)o->seed,
                         .weight_decay = o->weight_decay,
                         .beta1 = o->beta1,
                         .beta2 = o->beta2,
                         .eps = o->eps,
                         .clip = o->clip,
                         .no_fuse = o->no_fuse,
                         .keep_gradients = o->dump_grads != NULL};
    weights_report report;
    const output outputs[] = {
        {"dump", o->dump}, {"dump-grads", o->dump_grads}, {"report", o->report}};
    zf_program_info info;
    if (!output_try(outputs, 3, &r->error)) return false;
    if (o->save && !saving_open(&r->saving,
                                &(saving_desc){.path = o->save,
                                               .load = o->load,
                                               .overwrite = o->overwrite,
                                               .keep = o->keep},
                                &r->error))
        return false;
    if (!r->kind->load(o->model, &r->config, &r->error) || !open_data(r)) return false;
    if (o->init && !o->load && !lm_config_take(r->kind, &r->config, o->init, &r->error))
        return false;
    for (int k = 0; k < LM_DROPOUTS && r->facts.dropouts[k] && o->dropout >= 0; k++)
        *r->facts.dropouts[k] = o->dropout;
    if (o->warmup < 0) o->warmup = o->steps / 10;
    d.config = &r->config, d.shape = (lm_shape){o->batch, o->seq, r->file.masked};
    if (!lm_session_open(&r->session, &d, &r->error)) return false;
    if (o->init && !o->load) {
        if (!lm_session_take(&r->session, o->init, &report, &r->error)) return false;
        weights_print(o->init, &report);
    }
    if (o->load && !resume(r)) return false;
    info = zf_program_info_of(r->session.program);
    printf("%s %s: %.3g million parameters, batch %lld x %lld tokens, %.3g GFLOP a step, plan "
           "%.3g MiB\n",
           r->kind->title, o->model, 1e-6 * (double)info.param_count, (long long)o->batch,
           (long long)o->seq, 1e-9 * info.flops, (double)info.peak_bytes / 1048576);
    device_print_remark(r->kind->program, r->session.program);
    if (!r->file.entries)
        printf("%s: %lld tokens, and %lld held out\n", o->corpus, (long long)r->text.train.count,
               (long long)r->text.held_out.count);
    r->told = (training){.argc = r->told.argc,
                         .argv = r->told.argv,
                         .save = o->save,
                         .load = o->load,
                         .init = o->init,
                         .steps = o->steps};
    training_tell_beginning(&r->told, zf_program_step(r->session.program));
    return true;
}

static void end(run *r)
{
    zf_error lost = {ZF_OK, ""};
    if (!csv_close(&r->log, &lost) && !r->error.status) r->error = lost;
    saving_close(&r->saving);
    lm_session_close(&r->session);
    lm_batch_free(&r->own);
    lm_batch_file_free(&r->file);
    lm_text_close(&r->text);
}

int lm_pretrain(const lm_kind *kind, int argc, char **argv)
{
    run r = {.kind = kind,
             .o = {.seq = 128,
                   .batch = 8,
                   .steps = 1000,
                   .schedule = ZF_COSINE,
                   .warmup = -1,
                   .seed = 1,
                   .threads = 1,
                   .eval_batches = 16,
                   .keep = 2,
                   .lr = 1e-3,
                   .weight_decay = 0.1,
                   .beta1 = 0.9,
                   .beta2 = 0.999,
                   .eps = 1e-8,
                   .first_rate = 1,
                   .clip = 1,
                   .dropout = -1},
             .told = {.argc = argc, .argv = argv},
             .loss = NAN,
             .held_out = NAN};
    settings *o = &r.o;
    static const char names[] =
        "model corpus vocab cased strip-accents chinese-chars precision seq batch steps "
        "lr end-lr schedule warmup first-rate beta1 beta2 eps weight-decay clip dropout "
        "seed device tuning threads no-fuse init save save-every keep overwrite load "
        "eval-batches log report batch-file dump dump-grads quiet";
    const option_row own[] = {
        {"model", OPTION_TEXT, "NAME|DIR|FILE", &o->model, 0, 0, kind->models},
        {"precision", OPTION_CHOICE, "f32|bf16|f16", &o->precision, 0, 0,
         "it computes in; optimizers update f32 weights"},
        {"seq", OPTION_COUNT, "T", &o->seq, 1, 65536, "tokens of an example"},
        {"beta1", OPTION_NUMBER, "X", &o->beta1, 1e-9, 0.9999999, "of AdamW"},
        {"beta2", OPTION_NUMBER, "X", &o->beta2, 1e-9, 0.9999999, "of AdamW"},
        {"eps", OPTION_NUMBER, "X", &o->eps, 1e-30, 1, "of AdamW"},
        {"seed", OPTION_COUNT, "K", &o->seed, 0, 9e15, "of parameters, dropout and examples"},
        {"threads", OPTION_COUNT, "N", &o->threads, 1, 1024, "workers"},
        {"eval-batches", OPTION_COUNT, "N", &o->eval_batches, 0, 1e6,
         "of the held-out part, at the end"},
        {"dump", OPTION_TEXT, "FILE", &o->dump, 0, 0,
         "parameters after the last step, as GPT-2's files have them"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    option_row rows[SETTINGS_ROWS];
    const char *wrong;
    int status;
    bool good;
    settings_rows(rows, names, own, o);
    if (!command_options(argc, argv, "pretrain --corpus FILE --vocab FILE [OPTIONS]", rows, NULL,
                         &status))
        return status;
    r.facts = kind->facts(&r.config);
    settings_look_into_folders(o, kind->otherwise);
    if ((wrong = settings_no_text(o)) || (wrong = settings_nowhere_to_save(o)))
        return command_usage_error(argv, wrong);
    r.terminal = isatty(STDOUT_FILENO) != 0;
    good = begin(&r) && (!o->steps || train(&r)) && finish(&r);
    end(&r);
    if (!good || r.error.status) return command_error("%s", r.error.text);
    return r.interrupted ? 130 : EXIT_GOOD;
}
