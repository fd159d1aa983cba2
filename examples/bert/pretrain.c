/* bert pretrain: masked words and next sentences on a text, or steps on given batches for
 * comparison with other systems. */
#define _POSIX_C_SOURCE 200809L
#include "../common/fail.h"
#include "../common/config.h"
#include "../common/folder.h"
#include "../common/digest.h"
#include "../common/output.h"
#include "run.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool bert_run_fail(bert_run *r, zf_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    r->error.status = status;
    vsnprintf(r->error.text, sizeof r->error.text, format, args);
    va_end(args);
    return false;
}

bool bert_run_agree(bert_run *r)
{
    r->agreed = !alike_good(r->comm, &r->error);
    return !r->agreed;
}

int64_t bert_job_parts(const bert_job *job) { return job->ranks.world * job->o.micro_batches; }

/* Of the matrix products of a step, on all ranks. */
static double step_flops(const bert_run *r)
{
    return zf_program_info_of(r->session.program).flops * (double)r->job->ranks.world;
}

/* ------------------------------------------------------------------------------------ the end */

/* A session over the run's parameters that only evaluates, cut into the same parts. */
static bool open_evaluation(bert_run *r, bert_session *s)
{
    bert_session_desc d = {.config = r->job->config,
                           .shape = r->job->shape,
                           .sharing = {.micro_batches = r->job->o.micro_batches},
                           .no_fuse = r->job->o.no_fuse,
                           .share = &r->session};
    return bert_session_open(s, &d, &r->error);
}

/* Loss and accuracy on the held-out split, without dropout. */
static bool evaluate(bert_run *r)
{
    bert_session s;
    bool good;
    if (!open_evaluation(r, &s)) return false;
    good =
        bert_session_score(&s, r->job->text.held_out, r->job->o.eval_batches, &r->score, &r->error);
    bert_session_close(&s);
    return good;
}

/* The losses of the batch that would come next, of a batch file. */
static bool evaluate_batch(bert_run *r)
{
    const bert_batch_file *batches = r->job->batches;
    const bert_batch *b = &batches->batch[zf_program_step(r->session.program) % batches->entries];
    bert_session s;
    zf_status status;
    if (!open_evaluation(r, &s)) return false;
    status = bert_session_feed_parts(&s, b, b->labelled, b->pairs);
    if (!status) status = zf_step(s.program);
    if (status) {
        bert_run_fail(r, status, "%s", zf_program_error(s.program));
    } else {
        r->score = (bert_score){bert_session_scalar(&s, s.model.mlm_loss),
                                bert_session_scalar(&s, s.model.mlm_correct) /
                                    (b->labelled ? b->labelled : 1),
                                bert_session_scalar(&s, s.model.nsp_loss), b->labelled};
        if (r->leads)
            printf("loss %.9g  mlm_loss %.9g  nsp_loss %.9g\n",
                   bert_session_scalar(&s, s.model.loss), r->score.mlm_loss, r->score.nsp_loss);
    }
    bert_session_close(&s);
    return !status;
}

/* The losses without an update: of one batch of a batch file, or of the held-out split. */
static bool only_evaluate(bert_run *r)
{
    if (r->job->batches) return evaluate_batch(r);
    if (!r->job->o.eval_batches) return true;
    if (!evaluate(r)) return false;
    if (r->leads) {
        printf("held out: MLM loss %.9g, accuracy %.2f%%", r->score.mlm_loss,
               100 * r->score.mlm_accuracy);
        if (r->job->config.nsp) printf(", NSP loss %.9g", r->score.nsp_loss);
        printf("\n");
    }
    return true;
}

static bool write_report(bert_run *r)
{
    const bert_job *job = r->job;
    const bert_settings *o = &job->o;
    bert_session *s = &r->session;
    zf_program_info info = zf_program_info_of(s->program);
    const bert_log_row *last = r->log.count ? &r->log.rows[r->log.count - 1] : NULL;
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_status status;
    zf_json_begin_object(w);
    zf_json_put_key(w, "model"), zf_json_put_string(w, o->model);
    zf_json_put_key(w, "parameters"), zf_json_put_int(w, info.param_count);
    zf_json_put_key(w, "batch"), zf_json_put_int(w, o->batch);
    zf_json_put_key(w, "sequence"), zf_json_put_int(w, o->seq);
    zf_json_put_key(w, "steps"), zf_json_put_int(w, zf_program_step(r->session.program));
    zf_json_put_key(w, "ranks"), zf_json_put_int(w, job->ranks.world);
    zf_json_put_key(w, "zero"), zf_json_put_int(w, o->zero);
    zf_json_put_key(w, "micro_batches"), zf_json_put_int(w, o->micro_batches);
    zf_json_put_key(w, "threads"), zf_json_put_int(w, o->threads);
    zf_json_put_key(w, "precision");
    zf_json_put_string(w, zf_dtype_name((zf_dtype)o->precision));
    if (o->precision == ZF_F16)
        zf_json_put_key(w, "skipped_steps"), zf_json_put_int(w, bert_session_skipped(s));
    zf_json_put_key(w, "predicted_peak_bytes"), zf_json_put_int(w, (int64_t)info.peak_bytes);
    zf_json_put_key(w, "allocated_peak_bytes"), zf_json_put_int(w, (int64_t)info.allocated_bytes);
    zf_json_put_key(w, "communicator_bytes"), zf_json_put_int(w, (int64_t)info.comm_bytes);
    zf_json_put_key(w, "live_peak_bytes"), zf_json_put_int(w, (int64_t)info.live_bytes);
    zf_json_put_key(w, "resident_peak_bytes"),
        zf_json_put_int(w, (int64_t)(bert_peak_mib() * 1048576));
    zf_json_put_key(w, "flops_per_step"), zf_json_put_double(w, step_flops(r));
    zf_json_put_key(w, "tokens_per_s"), zf_json_put_double(w, bert_run_speed(r));
    zf_json_put_key(w, "loss"),
        zf_json_put_double(w, last ? last->loss : r->score.mlm_loss + r->score.nsp_loss);
    if (r->score.labelled) {
        zf_json_put_key(w, job->batches ? "mlm_loss" : "held_out_mlm_loss"),
            zf_json_put_double(w, r->score.mlm_loss);
        zf_json_put_key(w, job->batches ? "mlm_accuracy" : "held_out_mlm_accuracy");
        zf_json_put_double(w, r->score.mlm_accuracy);
        if (job->config.nsp) zf_json_put_key(w, job->batches ? "nsp_loss" : "held_out_nsp_loss");
        if (job->config.nsp) zf_json_put_double(w, r->score.nsp_loss);
    }
    if (job->text.corpus)
        zf_json_put_key(w, "unigram_entropy"),
            zf_json_put_double(w, job->text.corpus->unigram_nats);
    if (r->feeder)
        zf_json_put_key(w, "feeder_waits"), zf_json_put_int(w, bert_feeder_waits(r->feeder));
    zf_json_end(w);
    status = zf_json_save(w, o->report, &r->error);
    zf_json_writer_free(w);
    return !status;
}

static bool finish(bert_run *r)
{
    const bert_job *job = r->job;
    if (job->o.save && !bert_run_save(r)) return false;
    if (r->interrupted) {
        if (r->leads) training_tell_interrupted(&job->told, zf_program_step(r->session.program));
        return true;
    }
    if (job->text.corpus && job->o.eval_batches) {
        if (!evaluate(r)) return false;
        if (r->leads) {
            printf("held out: ");
            bert_score_print(&r->score, &job->config, job->text.corpus->unigram_nats);
        }
        if (!bert_show_guesses(&r->session, &job->config, &job->text, job->o.seq, 5, &r->error))
            return false;
    }
    return true;
}

static bool write_results(bert_run *r)
{
    const bert_settings *o = &r->job->o;
    const bert_corpus *corpus = r->job->text.corpus;
    bert_session *s = &r->session;
    if (o->dump_grads && zf_program_step(s->program) == r->first_step)
        return bert_run_fail(r, ZF_ERR_ARGUMENT,
                             "--dump-grads %s: the checkpoint had all %lld steps, so there was "
                             "none to take gradients of",
                             o->dump_grads, (long long)o->steps);
    if (o->dump &&
        bert_export(s->program, s->graph, r->leads ? o->dump : NULL, false, ZF_F32, &r->error))
        return false;
    if (o->dump_grads &&
        bert_export(s->program, s->graph, r->leads ? o->dump_grads : NULL, true, ZF_F32, &r->error))
        return false;
    if (!r->leads) return true;
    if (o->svg && !bert_log_plot(&r->log, o->svg, corpus ? corpus->unigram_nats : 0,
                                 "unigram entropy", corpus ? r->score.mlm_loss : 0, &r->error))
        return false;
    return !o->report || write_report(r);
}

/* ---------------------------------------------------------------------------------- beginning */

/* The size of a part of a global batch; what does not divide is an error that says what would. */
static bool cut_batch(bert_job *job, zf_error *error)
{
    const bert_settings *o = &job->o;
    int64_t parts = bert_job_parts(job), less = o->batch / parts * parts;
    char fewer[40] = "";
    if (o->batch % parts) {
        if (less) snprintf(fewer, sizeof fewer, "%lld or ", (long long)less);
        return fail(error, ZF_ERR_ARGUMENT,
                    "%.300s%s%lld examples cannot be cut into %lld equal parts (ranks %d x "
                    "micro-batches %lld); %s%lld can",
                    o->batch_file ? o->batch_file : "--batch", o->batch_file ? ": " : " ",
                    (long long)o->batch, (long long)parts, (int)job->ranks.world,
                    (long long)o->micro_batches, fewer, (long long)(less + parts));
    }
    job->shape = (bert_shape){o->batch / parts, o->seq, 0};
    job->shape.predictions = job->batches ? bert_batch_file_predictions(job->batches, parts)
                                          : bert_predictions(job->shape.batch, o->seq, o->masked);
    return true;
}

/* Text or batches. */
static bool open_data(bert_job *job, zf_error *error)
{
    bert_settings *o = &job->o;
    bert_tokenizer_options options = tokenizing_options(&o->words);
    if (o->no_nsp) job->config.nsp = 0;
    if (o->batch_file) {
        job->batches =
            bert_batch_file_load(o->batch_file, job->config.vocab, job->config.types, error);
        if (!job->batches) return false;
        o->batch = job->batches->examples, o->seq = job->batches->sequence;
        if (!job->batches->next_sentences) job->config.nsp = 0;
        return true;
    }
    if (!bert_text_open(&job->text, o->corpus, o->vocab, &options, job->config.nsp, o->seq,
                        o->masked, (uint64_t)o->seed, o->threads, error))
        return false;
    if (!config_is_path(o->model)) {
        job->config.vocab = bert_vocab_size(job->text.vocab);
        job->config.pad = bert_vocab_id(job->text.vocab, bert_special_tokens[BERT_PAD]);
    }
    if (job->config.vocab < bert_vocab_size(job->text.vocab))
        return fail(error, ZF_ERR_ARGUMENT, "%.200s: vocab_size is %lld, but %.200s has %d tokens",
                    o->model, (long long)job->config.vocab, o->vocab,
                    (int)bert_vocab_size(job->text.vocab));
    return true;
}

/* Where the run will write, tried before it is long: a run must not end with the news that it
 * cannot. Rank 0 writes, and the others their parts of a checkpoint. */
static bool open_outputs(bert_job *job, zf_error *error)
{
    const bert_settings *o = &job->o;
    const output outputs[] = {{"dump", o->dump},
                              {"dump-grads", o->dump_grads},
                              {"report", o->report},
                              {"svg", o->svg},
                              {"save-cost", o->save_cost}};
    const saving_desc d = {.path = o->save,
                           .load = o->load,
                           .overwrite = o->overwrite,
                           .follows = job->ranks.first > 0,
                           .keep = o->keep};
    if (!d.follows && !output_try(outputs, sizeof outputs / sizeof *outputs, error)) return false;
    return !o->save || saving_open(&job->saving, &d, error);
}

static bool measures(const bert_settings *o) { return o->cost && !strcmp(o->cost, "measure"); }

/* What the ranks of this process share. False with *error. */
static bool open_job(bert_job *job, zf_error *error)
{
    bert_settings *o = &job->o;
    if (o->seconds > 0 && job->ranks.world > 1)
        return fail(error, ZF_ERR_ARGUMENT,
                    "--seconds measures the step of one rank; for %d, say --steps",
                    (int)job->ranks.world);
    if (o->cost && !measures(o) && zf_cost_read(o->cost, &job->cost, NULL, error)) return false;
    if (!open_outputs(job, error) || !bert_config_load(o->model, &job->config, error) ||
        !open_data(job, error) || !cut_batch(job, error))
        return false;
    if (o->init && !o->load && !bert_config_take(&job->config, o->init, error)) return false;
    if (o->dropout >= 0) job->config.dropout = job->config.attention_dropout = o->dropout;
    if (o->seconds > 0 && o->load) { /* the steps were chosen when the run began */
        char steps[40];
        if (zf_checkpoint_note(o->load, "steps", steps, sizeof steps, error)) return false;
        o->steps = strtoll(steps, NULL, 10);
    } else if (o->seconds > 0 && o->steps && !bert_job_pace(job, error)) {
        return false;
    }
    if (o->warmup < 0 && o->load) {
        char warmup[40];
        if (zf_checkpoint_note(o->load, "warmup", warmup, sizeof warmup, error)) return false;
        o->warmup = strtoll(warmup, NULL, 10);
    }
    if (o->warmup < 0) o->warmup = o->steps / 10;
    return true;
}

/* What must be alike in all processes, as it is resolved now. */
static bool compare_settings(bert_job *job, const option_row *rows, zf_error *error)
{
    /* Rank 0 alone has use for them, or each rank for itself. */
    static const char *const own[] = {"model",    "tuning",    "threads", "ranks",     "rendezvous",
                                      "deadline", "save-cost", "keep",    "overwrite", "log",
                                      "svg",      "report",    "quiet",   NULL};
    static const char *const given[] = {"corpus", "vocab",      "init",       "load", "save",
                                        "dump",   "dump-grads", "batch-file", NULL};
    const bert_settings *o = &job->o;
    zf_json_writer *config;
    const char *text;
    size_t bytes;
    if (!job->ranks.launcher) return true;
    alike_add_options(&job->alike, rows, own, given);
    config = bert_config_json(&job->config);
    if ((text = zf_json_text(config, &bytes, error)))
        alike_add(&job->alike, "the digest of the model", "%016llx",
                  (unsigned long long)digest_bytes(DIGEST_START, text, bytes));
    zf_json_writer_free(config);
    if (job->text.vocab)
        alike_add(&job->alike, "the digest of the vocabulary", "%016llx",
                  (unsigned long long)bert_vocab_digest(job->text.vocab));
    if (job->text.corpus)
        alike_add(&job->alike, "the digest of the corpus", "%016llx",
                  (unsigned long long)job->text.corpus->digest);
    return text && alike_add_file(&job->alike, "the digest of --init", o->init, error) &&
           alike_add_file(&job->alike, "the digest of --load", o->load, error) &&
           alike_add_file(&job->alike, "the digest of --batch-file", o->batch_file, error);
}

static void close_job(bert_job *job)
{
    saving_close(&job->saving);
    bert_text_close(&job->text);
    bert_batch_file_free(job->batches);
}

static void print_beginning(const bert_run *r)
{
    const bert_job *job = r->job;
    const bert_settings *o = &job->o;
    const bert_corpus *corpus = job->text.corpus;
    zf_program_info info = zf_program_info_of(r->session.program);
    printf("BERT %s: %.3g million parameters, batch %lld x %lld tokens", o->model,
           1e-6 * (double)info.param_count, (long long)o->batch, (long long)o->seq);
    if (bert_job_parts(job) > 1) printf(" in %lld parts", (long long)bert_job_parts(job));
    printf(", %.3g GFLOP a step, plan %.3g MiB", 1e-9 * step_flops(r),
           (double)info.peak_bytes / 1048576);
    if (info.plan.inverted) printf(", %d values made again (invert)", (int)info.plan.inverted);
    if (job->ranks.world > 1)
        printf(" on each of %d ranks (ZeRO stage %d)", (int)job->ranks.world, (int)o->zero);
    printf("\n");
    if (measures(o))
        printf("measured: %.3g GFLOP/s, memory %.3g GB/s, link %.3g GB/s after %.3g us\n",
               1e-9 * r->session.cost.flops_per_s, 1e-9 * r->session.cost.bytes_per_s,
               1e-9 * r->session.cost.link_bytes_per_s, 1e6 * r->session.cost.link_latency_s);
    device_print_remark("bert", r->session.program);
    if (corpus)
        printf(
            "%s: %lld tokens in %lld documents, %lld of them held out; unigram entropy %.4f nats\n",
            o->corpus, (long long)corpus->tokens, (long long)corpus->documents,
            (long long)corpus->held_out.count, corpus->unigram_nats);
}

bert_session_desc bert_job_session(const bert_job *job)
{
    const bert_settings *o = &job->o;
    int64_t workers = o->threads / job->ranks.here;
    bert_session_desc d = {.config = job->config,
                           .shape = job->shape,
                           .sharing = {.micro_batches = o->micro_batches,
                                       .stage = o->zero,
                                       .bucket = o->bucket,
                                       .prefetch = o->prefetch,
                                       .cost = o->cost ? &job->cost : NULL,
                                       .measure = measures(o)},
                           .train = true,
                           .device = o->device,
                           .threads = workers > 1 ? workers : 1,
                           .seed = (uint64_t)o->seed,
                           .optimizer = (zf_optimizer)o->optimizer,
                           .weight_decay = o->weight_decay,
                           .beta1 = o->beta1,
                           .beta2 = o->beta2,
                           .eps = o->eps,
                           .momentum = o->momentum,
                           .min_coeff = o->min_coeff,
                           .max_coeff = o->max_coeff,
                           .clip = o->clip,
                           .no_fuse = o->no_fuse,
                           .dtype = (zf_dtype)o->precision,
                           .keep_gradients = o->dump_grads != NULL};
    bert_recompute(o->recompute, &d.recompute, &d.memory); /* contradiction() has checked it */
    return d;
}

/* The session, with its first or its saved parameters. */
static bool begin(bert_run *r)
{
    const bert_settings *o = &r->job->o;
    bert_session_desc d = bert_job_session(r->job);
    weights_report report;
    d.sharing.comm = r->comm;
    if (r->comm) d.device.index = bert_ranks_device(&r->job->ranks, r->comm->rank);
    /* A mistake is told by all to all; but those that measure have calls of their own under way. */
    if (!bert_session_open(&r->session, &d, &r->error) && measures(o)) return false;
    if (!bert_run_agree(r)) return false;
    if (o->save_cost && r->leads && zf_cost_save(&r->session.cost, o->save_cost, NULL, &r->error))
        return false;
    if (o->init && !o->load) {
        (void)bert_session_take(&r->session, o->init, &report, &r->error);
        if (!bert_run_agree(r)) return false;
        if (r->leads) weights_print(o->init, &report);
    }
    if (!o->load && !o->init && !bert_run_first_values(r)) return false;
    if (o->load && !bert_run_resume(r)) return false;
    if (r->leads) {
        print_beginning(r);
        training_tell_beginning(&r->job->told, zf_program_step(r->session.program));
    }
    return true;
}

static void end(bert_run *r)
{
    zf_error lost = {ZF_OK, ""};
    if (!bert_log_close(&r->log, &lost) && !r->error.status) r->error = lost;
    bert_feeder_stop(r->feeder);
    bert_session_close(&r->session);
}

/* All that one rank does. */
static bool run_rank(void *user, const zf_comm *comm, zf_error *error)
{
    bert_job *job = user;
    bert_run r = {.job = job, .comm = comm, .leads = !comm || comm->rank == 0};
    bool good;
    /* mpirun gives its processes a terminal even where its own output goes to a file. */
    r.terminal = r.leads && !job->ranks.launcher && isatty(STDOUT_FILENO) != 0;
    r.error = job->error;
    good = bert_run_agree(&r);
    if (good) r.agreed = !(good = alike_compare(&job->alike, comm, &r.error));
    good = good && begin(&r);
    if (good) good = job->o.steps ? bert_run_train(&r) && finish(&r) : only_evaluate(&r);
    if (good && !job->o.steps && job->o.save) good = bert_run_save(&r);
    if (good && !r.interrupted) good = write_results(&r);
    if (r.leads) job->interrupted = r.interrupted;
    if (job->ranks.launcher) job->agreed = r.agreed; /* this is the process's only rank */
    end(&r);
    *error = r.error;
    return good && !error->status;
}

/* Whether this process tells the error: rank 0's does, and another one what is its own, and no echo
 * of what failed on another rank, or on all. */
static bool tells(const bert_job *job, const zf_error *error)
{
    char mine[32];
    if (!job->ranks.first) return true;
    snprintf(mine, sizeof mine, "rank %d: ", (int)job->ranks.first);
    if (!strncmp(error->text, mine, strlen(mine))) return true;
    return !job->agreed && error->status != ZF_ERR_COMM && error->status != ZF_ERR_NAN &&
           error->status != ZF_ERR_MISMATCH && strncmp(error->text, "rank ", 5);
}

/* -------------------------------------------------------------------------------- the command */

/* What is wrong with the options as a whole, or NULL. */
static const char *contradiction(const bert_settings *o)
{
    zf_recompute_mode mode;
    int64_t memory;
    if (settings_no_text(&o->common)) return settings_no_text(&o->common);
    if (o->seconds > 0 && o->batch_file)
        return "--seconds measures steps on --corpus; with --batch-file, say --steps";
    if (o->init && (o->sinusoids || o->unigrams))
        return "--init has the first values: without --first-positions and --first-bias";
    if (o->unigrams && o->batch_file) return "--first-bias unigrams needs a text: --corpus FILE";
    if (o->min_coeff > o->max_coeff) return "--min-ratio must not be above --max-ratio";
    if (settings_nowhere_to_save(&o->common)) return settings_nowhere_to_save(&o->common);
    if (o->rendezvous && o->device.kind != DEVICE_CUDA)
        return "--rendezvous is for ranks with GPUs (--device cuda); those on CPUs meet by MPI";
    if (o->cost && o->prefetch < 0)
        return "--cost decides when --prefetch gathers: --prefetch BYTES";
    if (!bert_recompute(o->recompute, &mode, &memory))
        return "--recompute is off, layers or a number of bytes, perhaps with K, M, G or T behind";
    if (o->save_cost && !measures(o)) return "--save-cost saves what --cost measure measures";
    if (o->dump_grads && o->precision == ZF_F16)
        return "--dump-grads writes gradients without a loss scale, so --precision f32 or bf16";
    if (o->dump_grads && !o->steps) return "--dump-grads needs a step, and --steps 0 makes none";
    if (o->corpus && !o->steps && !o->eval_batches && !o->save)
        return "--steps 0 only evaluates, and --eval-batches 0 leaves nothing to evaluate";
    return NULL;
}

int bert_command_pretrain(int argc, char **argv)
{
    bert_job job = {.o = {.seq = 128,
                          .masked = 15,
                          .batch = 16,
                          .steps = 1000,
                          .optimizer = ZF_ADAMW,
                          .schedule = ZF_LINEAR,
                          .warmup = -1,
                          .seed = 1,
                          .threads = 1,
                          .eval_batches = 16,
                          .keep = 2,
                          .compare_every = 1000,
                          .micro_batches = 1,
                          .prefetch = -1,
                          .lr = 1e-3,
                          .weight_decay = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.999,
                          .momentum = 0.9,
                          .min_coeff = 0.01,
                          .max_coeff = 10,
                          .first_rate = 1,
                          .clip = 1,
                          .dropout = -1,
                          .deadline = 60},
                    .told = {.argc = argc, .argv = argv}};
    bert_settings *o = &job.o;
    static const char names[] =
        "model corpus vocab cased strip-accents chinese-chars seq masked no-nsp batch "
        "steps seconds optimizer lr end-lr schedule warmup first-rate beta1 beta2 eps "
        "momentum min-ratio max-ratio weight-decay clip dropout seed device tuning "
        "spare-processors threads ranks rendezvous zero micro-batches bucket prefetch "
        "cost save-cost precision no-fuse recompute deadline init first-positions "
        "first-bias save save-every keep compare-every overwrite load eval-batches log "
        "svg report batch-file dump dump-grads quiet";
    const option_row own[] = {
        {"model", OPTION_TEXT, "NAME|DIR|FILE", &o->model, 0, 0,
         "tiny mini small medium base large, or a config.json, perhaps of a folder; else that of\n"
         "                                    --load or --init, else mini"},
        {"seq", OPTION_COUNT, "T", &o->seq, 8, 65536, "tokens of an example"},
        {"masked", OPTION_COUNT, "PERCENT", &o->masked, 1, 100,
         "of the words of training examples; held-out ones have 15"},
        {"no-nsp", OPTION_FLAG, NULL, &o->no_nsp, 0, 0,
         "masked words alone: no next sentences, examples of one segment"},
        {"seconds", OPTION_NUMBER, "S", &o->seconds, 0, 1e9,
         "only as many steps as fit, but 200, by measuring one; 0: all --steps"},
        {"optimizer", OPTION_CHOICE, "adamw|lamb|sgd", &o->optimizer, 0, 0, "the update"},
        {"beta1", OPTION_NUMBER, "X", &o->beta1, 1e-9, 0.9999999, "of AdamW and LAMB"},
        {"beta2", OPTION_NUMBER, "X", &o->beta2, 1e-9, 0.9999999, "of AdamW and LAMB"},
        {"eps", OPTION_NUMBER, "X", &o->eps, 0, 1, "of AdamW and LAMB; 0: 1e-8 and 1e-6"},
        {"momentum", OPTION_NUMBER, "X", &o->momentum, 0, 0.9999999, "of SGD"},
        {"min-ratio", OPTION_NUMBER, "X", &o->min_coeff, 1e-9, 1e9,
         "of norms, that LAMB multiplies the rate by, at least"},
        {"max-ratio", OPTION_NUMBER, "X", &o->max_coeff, 1e-9, 1e9, "at most"},
        {"seed", OPTION_COUNT, "K", &o->seed, 0, 9e15, "of parameters, dropout, masks and pairs"},
        {"spare-processors", OPTION_COUNT, "N", &o->device.spare, 0, 1024,
         "of CUDA: multiprocessors that products leave to the ranks' communication"},
        {"threads", OPTION_COUNT, "N", &o->threads, 1, 1024, "workers of the process"},
        {"ranks", OPTION_COUNT, "N", &o->ranks, 0, 1024,
         "ranks, as threads; 0: the processes that a launcher started, else 1"},
        {"rendezvous", OPTION_TEXT, "HOST:PORT|FILE", &o->rendezvous, 0, 0,
         "where processes with GPUs find one another; else MASTER_ADDR and MASTER_PORT say it"},
        {"zero", OPTION_COUNT, "STAGE", &o->zero, 0, 3,
         "cut over the ranks: 1 optimizer states, 2 and gradients, 3 and parameters"},
        {"micro-batches", OPTION_COUNT, "N", &o->micro_batches, 1, 1 << 20,
         "of a step on each rank; the batch is cut into ranks times N parts"},
        {"bucket", OPTION_COUNT, "BYTES", &o->bucket, 0, 1e12,
         "of parameters that move together; 0: those of a layer"},
        {"prefetch", OPTION_COUNT, "BYTES", &o->prefetch, -1, 1e15,
         "of parameters gathered ahead of their use; -1: none, nothing overlaps"},
        {"cost", OPTION_TEXT, "FILE|measure", &o->cost, 0, 0,
         "rates by which it is decided when to gather; measure: of this machine"},
        {"save-cost", OPTION_TEXT, "FILE", &o->save_cost, 0, 0, "what --cost measure has measured"},
        {"precision", OPTION_CHOICE, "f32|bf16|f16", &o->precision, 0, 0,
         "of the computation; bf16 and f16 over f32 master weights, f16 with a loss scale"},
        {"recompute", OPTION_TEXT, "off|layers|BYTES", &o->recompute, 0, 0,
         "values made again in the backward pass: inside each layer, or for a peak of BYTES"},
        {"deadline", OPTION_NUMBER, "SECONDS", &o->deadline, 0.001, 1e6,
         "that ranks wait for one another"},
        {"first-positions", OPTION_CHOICE, "drawn|sinusoids", &o->sinusoids, 0, 0,
         "the position embedding of a new model"},
        {"first-bias", OPTION_CHOICE, "zero|unigrams", &o->unigrams, 0, 0,
         "the bias of the words of a new model; unigrams: their shares of the text"},
        {"compare-every", OPTION_COUNT, "N", &o->compare_every, 0, 1e12,
         "steps after which ranks compare their parameters, as at saves; 0: never"},
        {"eval-batches", OPTION_COUNT, "N", &o->eval_batches, 0, 1e6,
         "of the held-out split, at the end"},
        {"svg", OPTION_TEXT, "FILE", &o->svg, 0, 0, "the loss curve"},
        {"dump", OPTION_TEXT, "FILE", &o->dump, 0, 0,
         "parameters after the last step, Hugging Face names"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    option_row rows[SETTINGS_ROWS];
    const char *wrong;
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    settings_rows(rows, names, own, &o->common);
    if (!command_options(argc, argv, "pretrain --corpus FILE --vocab FILE [OPTIONS]", rows, NULL,
                         &status))
        return status;
    settings_look_into_folders(&o->common, "mini");
    if ((wrong = contradiction(o))) return command_usage_error(argv, wrong);
    if (!bert_ranks_open(&job.ranks,
                         &(bert_ranks_desc){.count = o->ranks,
                                            .deadline = o->deadline,
                                            .gpus = o->device.kind == DEVICE_CUDA,
                                            .rendezvous = o->rendezvous},
                         &error))
        return command_error("%s", error.text);
    if (open_job(&job, &job.error)) compare_settings(&job, rows, &job.error);
    job.told.save = o->save, job.told.load = o->load, job.told.init = o->init;
    job.told.steps = o->steps;
    job.told.launcher = job.ranks.launcher, job.told.world = job.ranks.world;
    good = bert_ranks_run(&job.ranks, run_rank, &job, &error);
    if (!good && tells(&job, &error)) command_error("%s", error.text);
    close_job(&job);
    bert_ranks_close(&job.ranks, good ? NULL : &error);
    return !good ? EXIT_FAILED : job.interrupted ? 130 : EXIT_GOOD;
}
