/* The command pretrain: steps on a text, or on given batches for comparison with other systems. */
#define _POSIX_C_SOURCE 200809L
#include "../options/command.h"
#include "../../../zeroflow_llm.h"
#include "../options/fail.h"
#include "../options/files.h"
#include "frame.h"
#include "../output/output.h"
#include "../run/run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool run_agree(run *r)
{
    r->agreed = !alike_good(r->comm, &r->error);
    return !r->agreed;
}

int32_t run_data_ranks(const run_job *job)
{
    return job->ranks.world / sample_sharing(&job->o.training);
}

int64_t run_parts(const run_job *job)
{
    return run_data_ranks(job) * settings_micro_batches(&job->o);
}

int64_t run_added_first(const run_job *job)
{
    const bool micro = zf_training_resolved(&job->o.training).zero.sum == ZF_SUM_MICRO;
    return micro && run_data_ranks(job) > 1 ? settings_micro_batches(&job->o) : 1;
}

int64_t run_tokens(const run_job *job)
{
    return run_parts(job) * job->shape.batch * job->shape.sequence;
}

int64_t run_tokens_until(const run_job *job, int64_t done)
{
    return job->phases.count ? shape_phases_tokens(&job->phases, done) : done * run_tokens(job);
}

/* FLOPs of the matrix products of a step, on all ranks. */
static double step_flops(const run *r)
{
    return zf_program_info_of(r->session.program).flops * (double)r->job->ranks.world;
}

/* What is known of the step in progress, with the bytes of all its variants, which may share
 * some. */
static zf_program_info step_info(const session *s)
{
    zf_program_info info = zf_program_info_of(s->program);
    info.peak_bytes -= info.shared[ZF_DEVICE];
    for (int32_t k = 0; k < s->variants; k++) {
        const zf_program_info other = zf_program_info_of(s->programs[k]);
        if (s->programs[k] == s->program) continue;
        info.peak_bytes += other.peak_bytes - other.shared[ZF_DEVICE];
        info.allocated_bytes += other.allocated_bytes;
        for (int space = 0; space < ZF_SPACES; space++)
            info.allocated[space] += other.allocated[space];
    }
    return info;
}

/* ------------------------------------------------------------------------------------ the end */

/* Evaluates the held-out text, and prints some answers of the model; for a batch file, only if
 * there were no steps. */
static bool conclude(run *r)
{
    const run_job *job = r->job;
    const objective *of = job->sample->objective;
    bool exact = !job->o.steps;
    if (job->o.batch_file) return !exact || run_evaluate(r);
    if (!job->o.eval_batches) return true;
    if ((exact || r->judged != zf_program_step(r->session.program)) && !run_evaluate(r))
        return false;
    if (r->leads) {
        printf("held out: ");
        of->print(&r->score, &job->config, job->data.unigram_nats, exact);
    }
    /* A vocabulary that ranks share is whole where logits are an output. */
    return exact || !of->show || job->o.training.tensor > 1 ||
           of->show(&r->session, &job->config, &job->data, job->o.seq, &r->error);
}

/* Writes the scores of held-out batches, "mlm_loss" as "held_out_mlm_loss". */
static void put_scores(zf_json_writer *w, run *r)
{
    const objective *of = r->job->sample->objective;
    const char *where = r->job->o.batch_file ? "" : "held_out_";
    for (int k = 0; r->score.labelled && k < SAMPLE_SCORES && of->scores[k].name; k++) {
        char key[80];
        snprintf(key, sizeof key, "%s%s", where, of->scores[k].name);
        if (!strcmp(key, "loss")) continue; /* already written */
        if (!zf_valid(zf_graph_find(r->session.graph, of->scores[k].output))) continue;
        zf_json_put_key(w, key), zf_json_put_double(w, r->score.value[k]);
    }
}

/* Elements of an adapter. */
static int64_t trained_count(zf_graph *g)
{
    int64_t count = 0;
    for (int32_t i = 0; i < zf_param_count(g); i++)
        if (zf_param_adapter(zf_param_at(g, i)))
            count += zf_shape_count(zf_whole_shape(zf_param_at(g, i)));
    return count;
}

/* What a step of this rank moves, by kind. */
static void put_traffic(zf_json_writer *w, const char *key, const zf_traffic *t)
{
    static const struct {
        const char *name;
        size_t at;
    } kinds[] = {{"all_gather", offsetof(zf_traffic, all_gather)},
                 {"reduce_scatter", offsetof(zf_traffic, reduce_scatter)},
                 {"all_reduce", offsetof(zf_traffic, all_reduce)},
                 {"all_to_all", offsetof(zf_traffic, all_to_all)},
                 {"bcast", offsetof(zf_traffic, bcast)},
                 {"download", offsetof(zf_traffic, download)},
                 {"upload", offsetof(zf_traffic, upload)},
                 {"read", offsetof(zf_traffic, read)},
                 {"write", offsetof(zf_traffic, write)}};
    zf_json_put_key(w, key), zf_json_begin_object(w);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const zf_moved *m = (const zf_moved *)(const void *)((const char *)t + kinds[k].at);
        if (m->bytes)
            zf_json_put_key(w, kinds[k].name), zf_json_put_int(w, (int64_t)m->bytes);
    }
    zf_json_end(w);
}

static bool write_report(run *r)
{
    const run_job *job = r->job;
    const settings *o = &job->o;
    const objective *of = job->sample->objective;
    session *s = &r->session;
    zf_program_info info = step_info(s);
    const step_log_row *last = r->log.count ? &r->log.rows[r->log.count - 1] : NULL;
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_status status;
    zf_json_begin_object(w);
    zf_json_put_key(w, "model"), zf_json_put_string(w, o->model);
    zf_json_put_key(w, "parameters"), zf_json_put_int(w, session_parameters(s));
    if (settings_adapts(o)) zf_json_put_key(w, "trained"), zf_json_put_int(w, trained_count(s->graph));
    zf_json_put_key(w, "batch"), zf_json_put_int(w, o->batch);
    zf_json_put_key(w, "sequence"), zf_json_put_int(w, o->seq);
    zf_json_put_key(w, "steps"), zf_json_put_int(w, zf_program_step(r->session.program));
    zf_json_put_key(w, "ranks"), zf_json_put_int(w, job->ranks.world);
    zf_json_put_key(w, "nodes"), zf_json_put_int(w, job->ranks.nodes);
    zf_json_put_key(w, "zero"), zf_json_put_int(w, o->training.zero.stage);
    zf_json_put_key(w, "micro_batches"), zf_json_put_int(w, settings_micro_batches(o));
    zf_json_put_key(w, "threads"), zf_json_put_int(w, o->threads);
    zf_json_put_key(w, "precision");
    zf_json_put_string(w, zf_dtype_name(o->training.precision.dtype));
    if (o->training.precision.dtype == ZF_F16)
        zf_json_put_key(w, "skipped_steps"), zf_json_put_int(w, session_skipped(s));
    zf_json_put_key(w, "predicted_peak_bytes"), zf_json_put_int(w, (int64_t)info.peak_bytes);
    zf_json_put_key(w, "allocated_peak_bytes"), zf_json_put_int(w, (int64_t)info.allocated_bytes);
    if (info.allocated[ZF_HOST])
        zf_json_put_key(w, "host_bytes"), zf_json_put_int(w, (int64_t)info.allocated[ZF_HOST]);
    if (info.allocated[ZF_DISK])
        zf_json_put_key(w, "disk_bytes"), zf_json_put_int(w, (int64_t)info.allocated[ZF_DISK]);
    put_traffic(w, "predicted_traffic_bytes", &info.plan.traffic);
    put_traffic(w, "counted_traffic_bytes", &info.counted);
    zf_json_put_key(w, "communicator_bytes"), zf_json_put_int(w, (int64_t)info.comm_bytes);
    zf_json_put_key(w, "live_peak_bytes"), zf_json_put_int(w, (int64_t)info.live_bytes);
    zf_json_put_key(w, "resident_peak_bytes"),
        zf_json_put_int(w, (int64_t)(run_peak_mib() * 1048576));
    zf_json_put_key(w, "flops_per_step"), zf_json_put_double(w, step_flops(r));
    zf_json_put_key(w, "tokens_per_s"), zf_json_put_double(w, run_speed(r));
    zf_json_put_key(w, "loss"), zf_json_put_double(w, last ? last->losses[0] : r->score.loss);
    put_scores(w, r);
    run_put_experts(r, w);
    if (r->best_step) {
        zf_json_put_key(w, "best_held_out_loss"), zf_json_put_double(w, r->best);
        zf_json_put_key(w, "best_step"), zf_json_put_int(w, r->best_step);
    }
    if (o->corpus)
        zf_json_put_key(w, "unigram_entropy"), zf_json_put_double(w, job->data.unigram_nats);
    if (r->reader && of->waits)
        zf_json_put_key(w, "feeder_waits"), zf_json_put_int(w, r->waits + of->waits(r->reader));
    zf_json_put_key(w, "options"), zf_json_begin_object(w);
    zf_options_put_json(job->tables.all, job->tables.count, w);
    zf_json_end(w);
    if (o->deepspeed_config) {
        zf_json_put_key(w, "deepspeed"), zf_json_begin_object(w);
        zf_deepspeed_put_json(&o->deepspeed, w);
        zf_json_end(w);
    }
    zf_json_end(w);
    status = zf_json_save(w, o->report, &r->error);
    zf_json_writer_free(w);
    return !status;
}

static bool draw_curve(run *r)
{
    const objective *of = r->job->sample->objective;
    const char *loss = of->losses[of->curve];
    double held_out = 0;
    for (int k = 0; r->job->data.vocab && k < SAMPLE_SCORES && of->scores[k].name; k++)
        if (!strcmp(of->scores[k].output, loss)) held_out = r->score.value[k];
    return step_log_plot(&r->log, r->job->o.svg, of->curve, of->curve_title,
                         r->job->data.unigram_nats, "unigram entropy", held_out, &r->error);
}

static bool write_results(run *r)
{
    const settings *o = &r->job->o;
    const sample_model *sample = r->job->sample;
    session *s = &r->session;
    if (o->dump_grads && zf_program_step(s->program) == r->first_step)
        return fail(&r->error, ZF_ERR_ARGUMENT,
                    "--dump-grads %s: the checkpoint had all %lld steps, so there was none to take "
                    "gradients of",
                    o->dump_grads, (long long)o->steps);
    if (o->dump && !zf_exchange_export(sample->exchange(), s->program, s->graph,
                                    r->leads ? o->dump : NULL, false, ZF_F32, &r->error))
        return false;
    if (o->dump_grads && !zf_exchange_export(sample->exchange(), s->program, s->graph,
                                          r->leads ? o->dump_grads : NULL, true, ZF_F32, &r->error))
        return false;
    if (!r->leads) return true;
    if (o->svg && !draw_curve(r)) return false;
    return !o->report || write_report(r);
}

/* Saves at the end, with what the checkpoint keeps of held-out scores. */
static bool save(run *r)
{
    const settings *o = &r->job->o;
    const bool scores = r->job->sample->objective->describe && o->eval_batches && !r->interrupted &&
                        r->judged != zf_program_step(r->session.program);
    return !o->save || ((!scores || run_evaluate(r)) && run_save(r));
}

/* ---------------------------------------------------------------------------------- beginning */

static bool shares_layers(const run_job *job, zf_error *error)
{
    const zf_training *t = &job->o.training;
    const struct {
        const char *name;
        int32_t ranks;
    } axes[] = {{"tensor", t->tensor}, {"context", t->context}, {"pipe", t->stages.ranks}};
    char product[120] = "";
    const int32_t data = job->ranks.world / sample_sharing(t),
                  experts = t->sections.expert > t->expert ? t->sections.expert : t->expert;
    if (job->ranks.world % sample_sharing(t) == 0 && experts > 1 && data % experts)
        return fail(error, ZF_ERR_ARGUMENT,
                    "--%s%d must divide the %d ranks along data, whose neighbours share experts",
                    experts > t->expert ? "sections expert=" : "expert ", (int)experts, (int)data);
    if (job->ranks.world % sample_sharing(t) == 0) return true;
    for (int k = 0; k < 3; k++)
        if (axes[k].ranks > 1)
            snprintf(product + strlen(product), sizeof product - strlen(product), "%s--%s %d",
                     *product ? " times " : "", axes[k].name, (int)axes[k].ranks);
    return fail(error, ZF_ERR_ARGUMENT, "%s does not divide the %d ranks", product,
                (int)job->ranks.world);
}

/* A batch that cannot be split into its parts is an error, which names a number that can. */
static bool fits_parts(const run_job *job, int64_t batch, zf_error *error)
{
    const settings *o = &job->o;
    const int64_t parts = run_parts(job), less = batch / parts * parts;
    char fewer[40] = "";
    if (batch % parts == 0) return true;
    if (less) snprintf(fewer, sizeof fewer, "%lld or ", (long long)less);
    return fail(error, ZF_ERR_ARGUMENT,
                "%.300s%s%lld examples cannot be split into %lld equal parts (ranks %d x "
                "micro-batches %lld); %s%lld can",
                o->batch_file ? o->batch_file : "--batch", o->batch_file ? ": " : " ",
                (long long)batch, (long long)parts, (int)run_data_ranks(job),
                (long long)settings_micro_batches(o), fewer, (long long)(less + parts));
}

/* The shape of one part of a global batch. */
static bool cut(const run_job *job, int64_t batch, int64_t sequence, sample_shape *shape,
                zf_error *error)
{
    const int64_t parts = run_parts(job);
    if (!fits_parts(job, batch, error)) return false;
    *shape = (sample_shape){
        .batch = batch / parts, .sequence = sequence, .layer_drop = job->o.layer_drop};
    job->sample->objective->fit_shape(&job->data, &job->o, parts, shape);
    return true;
}

/* The shapes of a part, of the run and of its phases. */
static bool cut_batch(run_job *job, zf_error *error)
{
    for (int32_t k = 0; k < job->phases.shapes; k++) {
        const shape_phase *of = &job->phases.at[job->phases.first[k]];
        if (!cut(job, of->batch, of->sequence, &job->shapes[k], error)) return false;
    }
    return cut(job, job->o.batch, job->o.seq, &job->shape, error);
}

/* --phase and --curriculum, which only objectives of a --corpus have. */
static bool open_phases(run_job *job, zf_error *error)
{
    settings *o = &job->o;
    const int64_t least = job->sample->objective->least_sequence;
    shape_phases_desc d = {.phase = &o->phase,
                           .curriculum = &o->curriculum,
                           .seq = o->seq,
                           .batch = o->batch,
                           .steps = o->steps,
                           .schedule = settings_schedule(o)};
    if (!shape_phases_make(&job->phases, &d, error)) return false;
    o->seq = o->longest = d.seq, o->batch = d.batch, o->steps = d.steps;
    for (int32_t k = 0; k < job->phases.shapes; k++) {
        const int64_t tokens = job->phases.at[job->phases.first[k]].sequence;
        if (tokens < least)
            return fail(error, ZF_ERR_ARGUMENT, "a phase has %lld tokens; %lld is the least",
                        (long long)tokens, (long long)least);
        if (tokens > o->longest) o->longest = tokens;
    }
    return true;
}

/* The place of the best checkpoint, DIR.best: it belongs to the run that DIR belongs to. */
static bool open_best(run_job *job, const saving_desc *newest, zf_error *error)
{
    char path[1200];
    saving_desc d = *newest;
    job->resumes = saving_resumes(&job->saving, newest->load);
    snprintf(path, sizeof path, "%s.best", job->saving.path);
    d.path = path, d.load = NULL, d.keep = 1;
    d.overwrite = newest->overwrite || job->resumes;
    return saving_open(&job->best, &d, error);
}

/* Tries all outputs before the run, so that a run does not end with an error that they cannot be
 * written. Rank 0 writes; others write their parts of a checkpoint. */
static bool open_outputs(run_job *job, zf_error *error)
{
    const settings *o = &job->o;
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
    named_files files = {.count = 0};
    files_add_options(&files, job->tables.all, job->tables.count);
    if (!d.follows && (!files_apart(&files, error) ||
                       !output_try(outputs, sizeof outputs / sizeof *outputs, error)))
        return false;
    return !o->save ||
           (saving_open(&job->saving, &d, error) && (!o->eval_every || open_best(job, &d, error)));
}

/* A number that was chosen when a checkpoint's run began. */
static bool chosen_before(const char *load, const char *key, int64_t *number, zf_error *error)
{
    char text[40];
    if (zf_checkpoint_note(load, key, text, sizeof text, error)) return false;
    *number = strtoll(text, NULL, 10);
    return true;
}

/* --steps and --warmup, where they are still to be chosen. */
static bool choose_steps(run_job *job, zf_error *error)
{
    settings *o = &job->o;
    if (o->seconds > 0 && o->load) {
        if (!chosen_before(o->load, "steps", &o->steps, error)) return false;
    } else if (o->seconds > 0 && o->steps && !run_pace(job, error)) {
        return false;
    }
    if (o->warmup < 0 && o->load && !chosen_before(o->load, "warmup", &o->warmup, error))
        return false;
    if (o->warmup < 0) o->warmup = o->steps / 10;
    return true;
}

/* Sets the dropouts of the model from the options, or the options from the model. */
static void set_dropouts(run_job *job)
{
    const zf_config_facts facts = zf_config_facts_of(job->sample->config(), &job->config);
    if (job->o.dropout >= 0)
        zf_config_set_dropout(job->sample->config(), &job->config, job->o.dropout);
    if (facts.dropouts[0]) job->o.dropout = *facts.dropouts[0];
}

/* An adapter of a model of texts has the head, which is trained next to it. */
static bool keep_head(run_job *job, zf_error *error)
{
    zf_lora_desc *lora = &job->o.training.lora;
    const objective *of = job->sample->objective;
    const char *head = of->head ? of->head(&job->config) : of->scores_texts ? "score" : NULL;
    if (!head) return true;
    job->keep = session_keep(head, lora->keep, NULL, error);
    lora->keep = job->keep;
    return job->keep != NULL;
}

/* No dropout, where the objective allows none. */
static bool fits_dropout(run_job *job, zf_error *error)
{
    const zf_config_facts facts = zf_config_facts_of(job->sample->config(), &job->config);
    if (!job->sample->objective->no_dropout) return true;
    for (int k = 0; k < ZF_CONFIG_DROPOUTS && facts.dropouts[k]; k++)
        if (*facts.dropouts[k] > 0)
            return fail(error, ZF_ERR_ARGUMENT,
                        "%s has a dropout of %g, and what is compared must be computed without: give "
                        "--dropout 0",
                        job->o.model, *facts.dropouts[k]);
    return job->o.training.lora.dropout <= 0 ||
           fail(error, ZF_ERR_ARGUMENT,
                "--lora dropout=%g: what is compared must be computed without dropout",
                job->o.training.lora.dropout);
}

/* The blocks that tokens see: those of --attention, else of the model. Weights that were trained
 * with others are refused, unless --attention says which. */
static bool set_layout(run_job *job, zf_error *error)
{
    const settings *o = &job->o;
    const zf_config_table *table = job->sample->config();
    const char *from = o->adapter ? o->adapter : o->init;
    char trained[ZF_CONFIG_LAYOUT];
    bool there;
    if (*o->attention)
        return zf_config_set_layout(table, &job->config, o->attention, o->longest, error);
    if (!from) return true;
    if (!zf_config_read_layout(from, trained, &there, error)) return false;
    return !there || !strcmp(trained, zf_config_layout(table, &job->config)) ||
           fail(error, ZF_ERR_MISMATCH,
                "%s was trained with --attention %s: give it, or --attention off", from,
                *trained ? trained : "off");
}

static bool load_config(run_job *job, zf_error *error)
{
    const sample_model *sample = job->sample;
    if (!zf_config_load(sample->config(), job->o.model, &job->config, error)) return false;
    if (sample->configure) sample->configure(&job->config, &job->o);
    return !job->o.adapter || !sample->adapt || sample->adapt(&job->config, job->o.adapter, error);
}

/* Opens what the ranks of this process share. False with *error. */
static bool open_job(run_job *job, zf_error *error)
{
    settings *o = &job->o;
    if (o->seconds > 0 && job->ranks.world > 1)
        return fail(error, ZF_ERR_ARGUMENT,
                    "--seconds measures the step of one rank; for %d, say --steps",
                    (int)job->ranks.world);
    if (!ranks_set_nodes(&job->ranks, o->nodes, o->ranks_per_node ? o->ranks_per_node : o->mics,
                         error))
        return false;
    if (o->cost && !settings_measures(o) && zf_cost_read(o->cost, &job->cost, NULL, error))
        return false;
    if (!open_outputs(job, error) || !open_phases(job, error) ||
        !load_config(job, error) ||
        !zf_config_set_weights(job->sample->config(), &job->config, o->weights, error) ||
        !dataset_open(&job->data, job->sample, o, &job->config, error) || !set_layout(job, error) ||
        !cut_batch(job, error))
        return false;
    if (o->init && (!o->load || settings_adapts(o)) &&
        !session_config_take(job->sample, &job->config, o->init, error))
        return false;
    if (zf_folder_is(o->model) && !zf_folder_texts_read(&job->data.texts, NULL, o->model, error))
        return false;
    if ((settings_adapts(o) || job->sample->objective->joins || job->data.first) && settings_first(o) &&
        (o->save || o->load) && !zf_digest_path(settings_first(o), &job->base, error))
        return false;
    if (settings_adapts(o) && !keep_head(job, error)) return false;
    if (o->adapter && !session_fits_base(o->adapter, o->init, error)) return false;
    set_dropouts(job);
    return fits_dropout(job, error) && choose_steps(job, error);
}

/* Compares what must be equal in all processes, after defaults have been resolved. */
static bool compare_settings(run_job *job, zf_error *error)
{
    const settings *o = &job->o;
    const dataset *d = &job->data;
    zf_json_writer *config;
    const char *text;
    size_t bytes;
    if (!job->ranks.launcher) return true;
    alike_add_options(&job->alike, job->tables.all, job->tables.count);
    alike_add(&job->alike, "the digest of --phase and --curriculum", "%016llx",
              (unsigned long long)zf_digest_bytes(ZF_DIGEST_START, job->phases.text,
                                                  strlen(job->phases.text)));
    config = zf_config_json(job->sample->config(), &job->config);
    if ((text = zf_json_text(config, &bytes, error)))
        alike_add(&job->alike, "the digest of the model", "%016llx",
                  (unsigned long long)zf_digest_bytes(ZF_DIGEST_START, text, bytes));
    zf_json_writer_free(config);
    if (d->vocab) {
        alike_add(&job->alike, "the digest of the vocabulary", "%016llx",
                  (unsigned long long)zf_wordpiece_digest(d->vocab));
        alike_add(&job->alike, "the digest of the corpus", "%016llx",
                  (unsigned long long)d->digest);
    }
    if (o->data || o->batch_file)
        alike_add(&job->alike,
                  o->data ? "the digest of --data" : "the digest of --batch-file", "%016llx",
                  (unsigned long long)(d->digest ^ d->begins));
    return text && alike_add_file(&job->alike, "the digest of --init", o->init, error) &&
           alike_add_file(&job->alike, "the digest of --load", o->load, error);
}

static void close_job(run_job *job)
{
    saving_close(&job->saving);
    saving_close(&job->best);
    dataset_close(&job->data, job->sample);
    free(job->keep);
}

/* The rates that were measured, and the time of a step by those of --cost. */
static void print_estimate(const run *r)
{
    const settings *o = &r->job->o;
    const zf_cost *cost = settings_measures(o) ? &r->session.cost : &r->job->cost;
    zf_estimate e;
    if (settings_measures(o)) {
        printf("measured: %.3g GFLOP/s, memory %.3g GB/s, link %.3g GB/s after %.3g us",
               1e-9 * cost->device.flops_per_s, 1e-9 * cost->device.bytes_per_s,
               1e-9 * cost->link.bytes_per_s, 1e6 * cost->link.latency_s);
        if (o->offload_dir)
            printf(", disk %.3g and %.3g GB/s", 1e-9 * cost->read.bytes_per_s,
                   1e-9 * cost->write.bytes_per_s);
        printf("\n");
    }
    if (zf_graph_estimate(r->session.graph, cost, &e)) return;
    printf("a step is estimated at %.3g s", e.seconds);
    for (int k = ZF_RESOURCE_LINK; k < ZF_RESOURCES; k++)
        if (e.exposed[k] > 0.005 * e.seconds)
            printf(", %.2g of them wait for %s", e.exposed[k], zf_resource_name((zf_resource)k));
    printf("\n");
}

static void print_beginning(const run *r)
{
    const run_job *job = r->job;
    const settings *o = &job->o;
    const dataset *d = &job->data;
    zf_program_info info = step_info(&r->session);
    char floats[500];
    printf("%s %s: %.3g million parameters, batch %lld x %lld tokens", job->sample->title, o->model,
           1e-6 * (double)session_parameters(&r->session), (long long)o->batch,
           (long long)(run_tokens(job) / o->batch));
    if (job->phases.count) printf(" at the end");
    if (run_parts(job) > 1) printf(" in %lld parts", (long long)run_parts(job));
    if (run_added_first(job) > 1)
        printf(", of which each rank adds %lld first (--sum micro)",
               (long long)run_added_first(job));
    printf(", %.3g GFLOP a step, plan %.3g MiB", 1e-9 * step_flops(r),
           (double)info.peak_bytes / 1048576);
    if (info.plan.inverted) printf(", %d values recomputed by invert", (int)info.plan.inverted);
    if (job->ranks.world > 1) {
        const zf_training *t = &o->training;
        printf(" on each of %d ranks (", (int)job->ranks.world);
        if (t->stages.ranks > 1) printf("%d along pipe, ", (int)t->stages.ranks);
        if (t->context > 1) printf("%d along context, ", (int)t->context);
        if (t->tensor > 1) printf("%d along tensor, ", (int)t->tensor);
        if (t->expert > 1) printf("%d share experts, ", (int)t->expert);
        printf("ZeRO stage %d)", (int)t->zero.stage);
    }
    printf("\n");
    if (info.plan.whole_weights)
        printf("%d weights of %.3g MiB are whole on each rank along tensor\n",
               (int)info.plan.whole_weights, (double)info.plan.whole_bytes / 1048576);
    shape_phases_tell(&job->phases);
    if (o->cost) print_estimate(r);
    if (settings_adapts(o))
        printf("LoRA: %.3g million of them are trained, of rank %lld%s%s\n",
               1e-6 * (double)trained_count(r->session.graph),
               (long long)zf_training_resolved(&o->training).lora.rank,
               o->weights == 1   ? ", over weights of 8 bits"
               : o->weights == 2 ? ", over weights of 4 bits"
                                 : "",
               session_floats(r->session.graph, floats, sizeof floats));
    if (o->memory) {
        const zf_choice *c = &r->session.choice;
        char choice[200];
        zf_choice_text(c, choice, sizeof choice);
        printf("within %lld bytes: %s; %.3g times the time of a step without a limit, by estimate\n",
               (long long)o->memory, choice, c->free_seconds > 0 ? c->seconds / c->free_seconds : 1);
    }
    device_print_remark(job->sample->program, r->session.program);
    if (o->data)
        printf("%s: %lld tokens in %lld examples, %lld of them held out\n", o->data,
               (long long)d->tokens, (long long)d->documents, (long long)d->held_out);
    dataset_tell(d, o);
    if (o->corpus)
        printf(
            "%s: %lld tokens in %lld documents, %lld of them held out; unigram entropy %.4f nats\n",
            o->corpus, (long long)d->tokens, (long long)d->documents, (long long)d->held_out,
            d->unigram_nats);
}

session_desc run_session(const run_job *job)
{
    const settings *o = &job->o;
    int64_t workers = o->threads / job->ranks.here;
    session_desc d = {.sample = job->sample,
                      .purpose = SAMPLE_TRAIN,
                      .config = &job->config,
                      .shape = job->shape,
                      .shapes = job->phases.count ? job->shapes : NULL,
                      .phases = &job->phases,
                      .training = o->training,
                      .measure = settings_measures(o),
                      .device = o->device,
                      .threads = workers > 1 ? workers : 1,
                      .seed = (uint64_t)o->seed,
                      .offload_dir = o->offload_dir,
                      .fit = o->memory};
    d.training.zero.nodes = job->ranks.nodes;
    d.training.cost = o->cost ? &job->cost : NULL;
    d.training.keep_gradients = o->dump_grads != NULL;
    return d;
}

/* What --memory has chosen, and what it costs. */
static void print_choice(int64_t memory, const zf_choice *c)
{
    const double mib = 1 << 20;
    char text[200];
    zf_choice_text(c, text, sizeof text);
    printf("--memory %lld: %s; %.1f MiB of memory, %.1f of disk; a step is estimated at %.3g s, %.3g "
           "without a limit\n",
           (long long)memory, text, (double)(c->bytes[ZF_DEVICE] + c->bytes[ZF_HOST]) / mib,
           (double)c->bytes[ZF_DISK] / mib, c->seconds, c->free_seconds);
}

/* What an import reports. */
static void print_report(const char *path, const zf_weights_report *report)
{
    if (report->fresh)
        printf("%s lacks %d tensors, which start anew: %s\n", path, (int)report->fresh,
               report->fresh_names);
    if (report->unused)
        printf("%s has %d tensors that are not used: %s\n", path, (int)report->unused,
               report->unused_names);
    if (report->others)
        printf("%s: the text part is read; %d tensors of other parts are not\n", path,
               (int)report->others);
    if (report->absent)
        printf("the index of %s lists %d tensors that no file has: %s\n", path,
               (int)report->absent, report->absent_names);
    if (report->unlisted)
        printf("%s has %d tensors that its index does not list: %s\n", path,
               (int)report->unlisted, report->unlisted_names);
}

/* Gives the parameters of --adapter their values. Each rank reads the files. */
static bool take_adapter(run *r)
{
    zf_adapter *a = zf_adapter_open(r->job->o.adapter, &r->error);
    if (a)
        (void)zf_adapter_take(a, r->session.program, r->session.graph, r->job->sample->exchange(),
                              &r->error);
    zf_adapter_close(a);
    return run_agree(r);
}

/* Gives a new adapter its first values: those of magnitudes follow from the weights. */
static bool begin_adapter(run *r)
{
    zf_program *p = r->session.program;
    const zf_status status = zf_lora_magnitudes(p);
    if (status) fail(&r->error, status, "%s", zf_program_error(p));
    return run_agree(r);
}

/* Opens the session, with first or saved parameters. */
static bool begin(run *r)
{
    const settings *o = &r->job->o;
    const sample_model *sample = r->job->sample;
    session_desc d = run_session(r->job);
    zf_weights_report report;
    d.comm = r->comm;
    if (r->comm) d.device.index = ranks_device(&r->job->ranks, r->comm->rank);
    if (sample->objective->reserve && !o->memory &&
        !sample->objective->reserve(&r->job->data, &d, &d.reserve, &r->error))
        return run_agree(r);
    /* All ranks report errors to each other; but ranks that measure have calls of their own in
     * flight. */
    if (!session_open(&r->session, &d, &r->error) && settings_measures(o)) return false;
    if (!r->error.status && o->save) (void)zf_adapter_can_write(r->session.graph, &r->error);
    if (!run_agree(r)) return false;
    if (o->memory && r->leads) print_choice(o->memory, &r->session.choice);
    if (o->save_cost && r->leads && zf_cost_save(&r->session.cost, o->save_cost, NULL, &r->error))
        return false;
    if (o->init && (!o->load || settings_adapts(o))) {
        (void)session_take(&r->session, o->init, &report, &r->error);
        if (!run_agree(r)) return false;
        if (r->leads) print_report(o->init, &report);
    }
    if (!o->load && !(o->adapter ? take_adapter(r) : begin_adapter(r))) return false;
    if (!o->load && !o->init && !settings_adapts(o) && sample->first &&
        !sample->first(&r->session, o, &r->job->config, &r->job->data, &r->error))
        return false;
    if (o->load && !run_resume(r)) return false;
    if (!run_refer(r)) return false;
    (void)(run_open_experts(r) && run_open_metrics(r));
    if (!run_agree(r)) return false;
    (void)run_judge_begin(r);
    if (!run_agree(r)) return false;
    if (r->leads) {
        print_beginning(r);
        training_tell_beginning(&r->job->report, zf_program_step(r->session.program));
    }
    return true;
}

static void end(run *r)
{
    zf_error lost = {ZF_OK, ""};
    if (!run_close_metrics(r, &lost) && !r->error.status) r->error = lost;
    if (!step_log_close(&r->log, &lost) && !r->error.status) r->error = lost;
    r->job->sample->objective->stop(r->reader);
    run_close_experts(r);
    session_close(&r->judge);
    session_close(&r->session);
    free(r->reference);
}

/* The work of one rank. */
static bool run_rank(void *user, const zf_comm *comm, zf_error *error)
{
    run_job *job = user;
    run r = {.job = job, .comm = comm, .leads = !comm || comm->rank == 0};
    bool good;
    /* mpirun gives its processes a terminal even where its own output goes to a file. */
    r.terminal = r.leads && !job->ranks.launcher && isatty(STDOUT_FILENO) != 0;
    r.error = job->error;
    good = run_agree(&r);
    if (good) r.agreed = !(good = alike_compare(&job->alike, comm, &r.error));
    good = good && begin(&r);
    if (good && job->o.steps) good = run_train(&r) && save(&r);
    if (good) run_tell_experts(&r);
    if (good && r.interrupted) {
        if (r.leads) training_tell_interrupted(&job->report, zf_program_step(r.session.program));
    } else if (good) {
        good = conclude(&r);
        if (good && !job->o.steps && job->o.save) good = run_save(&r);
        good = good && write_results(&r);
    }
    if (r.leads) job->interrupted = r.interrupted;
    if (job->ranks.launcher) job->agreed = r.agreed; /* this is the process's only rank */
    end(&r);
    *error = r.error;
    return good && !error->status;
}

/* Whether this process prints the error: rank 0's does; another one does if the error is its own,
 * and not the consequence of a failure on another rank or on all. */
static bool tells(const run_job *job, const zf_error *error)
{
    char mine[32];
    if (!job->ranks.first) return true;
    snprintf(mine, sizeof mine, "rank %d: ", (int)job->ranks.first);
    if (!strncmp(error->text, mine, strlen(mine))) return true;
    return !job->agreed && error->status != ZF_ERR_COMM && error->status != ZF_ERR_NAN &&
           error->status != ZF_ERR_MISMATCH && strncmp(error->text, "rank ", 5);
}

/* -------------------------------------------------------------------------------- the command */

int pretrain_command(const sample_model *sample, const settings_desc *desc, int argc, char **argv)
{
    run_job job = {.sample = sample, .report = {.argc = argc, .argv = argv}};
    settings *o = &job.o;
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    job.tables = settings_tables_of(o, sample, desc);
    if (command_asks(argc, argv) < argc) (void)settings_show(o, &job.tables, desc, &error);
    if (command_help(argc, argv, job.tables.all, job.tables.count,
                     desc->usage   ? desc->usage
                     : desc->tunes ? "finetune --model DIR --data FILE [OPTIONS]"
                                 : "pretrain --corpus FILE --vocab FILE [OPTIONS]",
                     NULL, &status))
        return status;
    good = settings_read(o, &job.tables, sample, desc, argc - 1, argv + 1, &error);
    if (!good) {
        settings_free(o);
        return command_usage_error(argv, error.text);
    }
    if (o->check) return settings_free(o), EXIT_GOOD;
    if (!ranks_open(&job.ranks,
                    &(rank_group_desc){.program = sample->program,
                                       .count = o->ranks,
                                       .deadline = o->deadline,
                                       .gpus = o->device.kind != DEVICE_CPU,
                                       .rendezvous = o->rendezvous},
                    &error))
        return command_error("%s", error.text);
    if (!job.ranks.first) settings_tell(o);
    if (!o->threads) o->threads = ranks_processors(&job.ranks);
    if (shares_layers(&job, &job.error) && open_job(&job, &job.error))
        compare_settings(&job, &job.error);
    job.report.save = o->save, job.report.load = o->load;
    job.report.init = settings_adapts(o) ? NULL : o->init; /* an adapter's base is read in any case */
    job.report.steps = o->steps;
    job.report.launcher = job.ranks.launcher, job.report.world = job.ranks.world;
    good = ranks_run(&job.ranks, run_rank, &job, &error);
    if (!good && tells(&job, &error)) command_error("%s", error.text);
    close_job(&job);
    ranks_close(&job.ranks, good ? NULL : &error);
    settings_free(o);
    return !good ? EXIT_FAILED : job.interrupted ? 130 : EXIT_GOOD;
}
