/* Checkpoints of a run contain, in addition to its tensors, its settings, the model's configuration
 * and the tokenizer. A run can only be resumed with the same ones, so that the bits are the
 * same. */
#include "../options/fail.h"
#include "../../../zeroflow_llm.h"
#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The first `equal` of these notes must be equal. After them come those of free_note, which may
 * change. */
enum { NOTES = 96, NOTE = 72 };
enum free_note {
    PARTS, /* of a global batch */
    NODE,  /* ranks in each of several nodes */
    STEPS,
    WORLD /* ranks that have states of their own; 0: states belong to no rank */
};
typedef struct notes {
    int32_t count, equal;
    zf_note note[NOTES + TOKENIZING_NOTES + 3];
    const zf_option *row[NOTES]; /* NULL: not an option */
    char key[NOTES][40], text[NOTES][NOTE], state[NOTE];
    tokenizing_notes words;
} notes;

/* The room for the next note's text. */
static char *add(notes *n, const char *key, const zf_option *row)
{
    const int32_t k = n->count < NOTES - 1 ? n->count++ : n->count;
    n->row[k] = row;
    snprintf(n->key[k], sizeof n->key[k], "%s", key);
    n->note[k] = (zf_note){n->key[k], n->text[k]};
    return n->text[k];
}

/* Options that change numbers. Older programs note whether a flag is given. */
static void add_option(void *user, const zf_option_value *v)
{
    if (!v->flag || !(v->row->traits & ZF_OPTION_CHANGES) || !v->has_effect) return;
    snprintf(add(user, v->flag, v->row), NOTE, "%s",
             v->row->kind != ZF_OPTION_FLAG ? v->text
             : v->given                     ? "given"
                                            : "not given");
}

/* --layer-drop, as text; "": no step leaves out a layer. */
static void add_layer_drop(notes *n, const zf_layer_drop_desc *d)
{
    char *text = add(n, "layer-drop", NULL);
    *text = '\0';
    if (d->theta > 0 && d->theta < 1)
        snprintf(text, NOTE, "theta=%.9g,gamma=%.9g%s%s", d->theta, d->gamma,
                 d->halves ? ",halves=true" : "", d->first_kept ? ",first_kept=true" : "");
}

/* Each rank has states of its own: the errors of what it compresses. */
static bool ranks_have_states(const zf_training *t)
{
    return t->optimizer == ZF_ONEBIT_ADAM || t->optimizer == ZF_ONEBIT_LAMB ||
           t->optimizer == ZF_ZERO_ONE_ADAM || t->zero.loco;
}

/* Sections of the sums over what ranks along three axes share. */
enum { SHARED_AXES = 3 };
static const char *const sections_notes[SHARED_AXES] = {"sections", "sections_context",
                                                        "sections_expert"},
                         *const shared_axes[SHARED_AXES] = {"tensor", "context", "expert"};

/* The note of --sum where it is not the order of parts: "micro 4", with micro-batches on each
 * rank. */
static const char sum_note[] = "sum";

static int64_t sections_of(const run_job *job, int axis)
{
    const zf_sections s = zf_training_resolved(&job->o.training).sections;
    return axis == 2 ? s.expert : axis ? s.context : s.tensor;
}

static void make_notes(notes *n, const run_job *job)
{
    const dataset *d = &job->data;
    char *corpus, lora[64];
    *n = (notes){.count = 0};
    zf_options_each(job->tables.all, job->tables.count, add_option, n);
    corpus = add(n, "corpus", NULL);
    snprintf(corpus, NOTE, "none");
    if (d->tokens) snprintf(corpus, NOTE, "%lld", (long long)d->tokens);
    snprintf(add(n, "lora", NULL), NOTE, "%s", zf_adapter_note(lora, &job->o.training));
    snprintf(add(n, "base", NULL), NOTE, "%016llx", (unsigned long long)job->base);
    add_layer_drop(n, &job->o.layer_drop);
    n->equal = n->count;
    snprintf(add(n, "parts", NULL), NOTE, "%lld", (long long)run_parts(job));
    snprintf(add(n, "node", NULL), NOTE, "%d",
             job->ranks.nodes > 1 ? (int)(job->ranks.world / job->ranks.nodes) : 1);
    snprintf(add(n, "steps", NULL), NOTE, "%lld", (long long)job->o.steps);
    snprintf(add(n, "ranks with states", NULL), NOTE, "%d",
             ranks_have_states(&job->o.training) ? (int)job->ranks.world : 0);
    if (run_added_first(job) > 1)
        snprintf(add(n, sum_note, NULL), NOTE, "micro %lld", (long long)run_added_first(job));
    for (int axis = 0; axis < SHARED_AXES; axis++)
        if (sections_of(job, axis) > 1)
            snprintf(add(n, sections_notes[axis], NULL), NOTE, "%lld",
                     (long long)sections_of(job, axis));
    tokenizing_note(&n->words, &job->o.words, d->vocab, d->digest, d->begins);
}

/* The note of --phase and --curriculum. */
static const char phases_note[] = "phases";

/* A checkpoint of the same phases; without any, of no phases. */
static bool fits_phases(const run_job *job, zf_error *error)
{
    char saved[SHAPE_PHASES_TEXT] = "";
    zf_error none = {ZF_OK, ""};
    (void)zf_checkpoint_note(job->o.load, phases_note, saved, sizeof saved, &none);
    if (none.status && none.status != ZF_ERR_ARGUMENT) return *error = none, false;
    return !strcmp(saved, job->phases.text) ||
           fail(error, ZF_ERR_MISMATCH,
                "%s was trained with other phases (steps x batch x tokens): %.200s, not %.200s; "
                "give the same --phase or --curriculum, or start anew from its weights with --init",
                job->o.load, *saved ? saved : "none",
                *job->phases.text ? job->phases.text : "none");
}

/* What a checkpoint of an adapter has: all but the base, which has no states, and reward models.
 * user: the run. */
static bool is_trained(void *user, const zf_stored *tensor)
{
    const run *r = user;
    if (session_is_judge(&r->session, tensor->adapter)) return false;
    return tensor->state || tensor->adapter ||
           (r->job->sample->objective->joins && !zf_valid(zf_graph_find(r->session.graph, tensor->name)));
}

static bool write_adapter(run *r, zf_adapter_files *files)
{
    const run_job *job = r->job;
    const zf_lora_desc lora = zf_training_resolved(&job->o.training).lora;
    const objective *of = job->sample->objective;
    const char *task = of->scores_texts || of->head  ? "SEQ_CLS"
                       : of->frame == ZF_FOLDER_GPT ? "CAUSAL_LM"
                                                     : NULL;
    const zf_adapter_about about = {.desc = &lora,
                                    .base = job->o.init,
                                    .exchange = job->sample->exchange(),
                                    .task = task};
    return zf_adapter_write(files, r->session.program, r->session.graph, &about, &r->error);
}

/* The scores of held-out examples after the last step, in place of those that the model began
 * with. */
static zf_json_writer *describe(const run *r)
{
    const objective *of = r->job->sample->objective;
    zf_json_writer *w;
    if (!of->describe || !r->score.labelled || r->judged != zf_program_step(r->session.program))
        return NULL;
    w = zf_json_writer_new(2, NULL);
    of->describe(&r->score, w);
    return w;
}

/* The file of a checkpoint that has the options of --deepspeed-config. */
static const char deepspeed_file[] = "deepspeed.json";

/* What DeepSpeed's configuration sets this option to; NULL: it does not. */
static const char *deepspeed_value(const zf_deepspeed *d, const char *option)
{
    for (int32_t k = 0; k < d->count; k++)
        if (!strcmp(d->settings[k].option, option)) return d->settings[k].value;
    return NULL;
}

/* Prints which options of DeepSpeed's configuration differ from those of the checkpoint; those that
 * change numbers have been refused. */
static void tell_deepspeed(const run *r)
{
    const settings *o = &r->job->o;
    const zf_deepspeed *d = &o->deepspeed;
    char path[1100];
    zf_error none;
    snprintf(path, sizeof path, "%s/%s", o->load, deepspeed_file);
    zf_json *saved = o->deepspeed_config ? zf_json_read(path, NULL, &none) : NULL;
    for (const zf_json *of = zf_json_first(saved); of; of = zf_json_next(of)) {
        const char *option = zf_json_key(of, NULL), *before = zf_json_string(of, NULL);
        const char *now = deepspeed_value(d, option);
        if (!before || (now && !strcmp(before, now))) continue;
        if (now) printf("%s was trained with %s = %s, not %s\n", o->load, option, before, now);
        else printf("%s was trained with %s = %s, which the file does not say now\n", o->load, option,
                    before);
    }
    for (int32_t k = 0; saved && k < d->count; k++) {
        const zf_deepspeed_setting *s = &d->settings[k];
        if (*s->option && !zf_json_member(saved, s->option))
            printf("%s was trained with a file that does not say %s, now %s\n", o->load, s->option,
                   s->value);
    }
    zf_json_free(saved);
}

/* The options of --deepspeed-config as JSON, NULL: there is none. */
static zf_json_writer *describe_deepspeed(const run *r)
{
    zf_json_writer *w = r->job->o.deepspeed_config ? zf_json_writer_new(2, NULL) : NULL;
    zf_json_begin_object(w);
    zf_deepspeed_put_json(&r->job->o.deepspeed, w);
    zf_json_end(w);
    return w;
}

/* A file that is kept as it is; of a model that scores, not what was said of earlier scores. */
static const zf_text *kept(const run *r, int which)
{
    static const zf_text none = {.at = NULL};
    return which == ZF_FOLDER_REWARD && r->job->sample->objective->describe
               ? &none
               : &r->job->data.texts.text[which];
}

bool run_save(run *r) { return run_save_to(r, &r->job->saving, NULL); }

bool run_save_to(run *r, const saving *where, const char *held_out)
{
    const run_job *job = r->job;
    const sample_model *sample = job->sample;
    const zf_wordpiece *vocab = job->data.vocab;
    zf_json_writer *config = zf_config_json(sample->config(), &job->config), *about = describe(r);
    zf_json_writer *deepspeed = describe_deepspeed(r);
    zf_attachment attachments[7 + ZF_FOLDER_FILES] = {{"config.json", NULL, 0}};
    zf_folder_tokenizer tokenizer = {.json = NULL};
    zf_adapter_files files = {.config = {.at = NULL}};
    notes n;
    zf_save_desc d = {.attachments = attachments, .attachment_count = vocab ? 3 : 1};
    make_notes(&n, job);
    memcpy(n.note + n.count, n.words.note, sizeof n.words.note);
    d.notes = n.note, d.note_count = n.count + TOKENIZING_NOTES;
    if (sample->objective->note && r->reader) {
        sample->objective->note(r->reader, n.state, sizeof n.state);
        n.note[d.note_count++] = (zf_note){SAMPLE_NOTE, n.state};
    }
    if (sample->objective->keep && r->reader && r->leads) {
        zf_attachment *a = &attachments[d.attachment_count];
        a->data = NULL;
        if (!sample->objective->keep(r->reader, zf_program_step(r->session.program), a, &r->error))
            a->data = NULL;
        d.attachment_count += a->data != NULL;
    }
    if (held_out) n.note[d.note_count++] = (zf_note){"held-out", held_out};
    if (*job->phases.text) n.note[d.note_count++] = (zf_note){phases_note, job->phases.text};
    attachments[0].data = zf_json_text(config, &attachments[0].bytes, &r->error);
    if (vocab && zf_folder_tokenizer_open(&tokenizer, vocab, sample->objective->frame,
                                       zf_config_positions(sample->config(), &job->config), &r->error))
        memcpy(attachments + 1, tokenizer.files, sizeof tokenizer.files);
    for (int k = 0; k < ZF_FOLDER_FILES; k++) {
        const zf_text *text = kept(r, k);
        if (text->at)
            attachments[d.attachment_count++] =
                (zf_attachment){zf_folder_file(k), text->at, text->count};
    }
    if (about) {
        zf_attachment *a = &attachments[d.attachment_count++];
        a->name = zf_folder_file(ZF_FOLDER_REWARD);
        a->data = zf_json_text(about, &a->bytes, &r->error);
    }
    if (deepspeed) {
        zf_attachment *a = &attachments[d.attachment_count++];
        a->name = deepspeed_file;
        a->data = zf_json_text(deepspeed, &a->bytes, &r->error);
    }
    if (r->reference)
        attachments[d.attachment_count++] =
            (zf_attachment){run_reference_file, r->reference, run_reference_bytes(job)};
    if (settings_adapts(&job->o) && write_adapter(r, &files)) {
        attachments[d.attachment_count++] =
            (zf_attachment){"adapter_config.json", files.config.at, files.config.count};
        attachments[d.attachment_count++] =
            (zf_attachment){"adapter_model.safetensors", files.model.at, files.model.count};
        d.select = is_trained, d.user = r;
    }
    if (!r->error.status) saving_save(where, r->leads, r->session.program, &d, &r->error);
    zf_folder_tokenizer_close(&tokenizer);
    zf_adapter_files_free(&files);
    zf_json_writer_free(about);
    zf_json_writer_free(deepspeed);
    zf_json_writer_free(config);
    return !r->error.status;
}

/* Name number `index` of "a|b|c" is this one. */
static bool is_choice(const char *names, int index, const char *name)
{
    for (; index > 0 && *names; index--) names += strcspn(names, "|") + (strchr(names, '|') != NULL);
    return strcspn(names, "|") == strlen(name) && !strncmp(names, name, strlen(name));
}

/* Whether a note of a checkpoint has the same meaning as this one: the text, the number, or the
 * choice by its index. Older programs note 0, or -1 for never, where a default was not resolved. */
static bool is_same(const zf_note *note, const zf_option *row, const char *saved)
{
    char *end, *other_end;
    double number = strtod(saved, &end), other = strtod(note->value, &other_end);
    if (!strcmp(saved, note->value)) return true;
    if (end == saved || *end) return false;
    if (row && row->kind == ZF_OPTION_CHOICE) return is_choice(row->range, (int)number, note->value);
    if (other_end == note->value || *other_end) return false;
    return number == other ||
           (row && number <= 0 && number == floor(number) && other == row->otherwise);
}

/* What was trained with another value of an option. */
static bool refuse(const char *load, const zf_note *note, const zf_option *row, const char *saved,
                   zf_error *error)
{
    const bool flag = row && row->kind == ZF_OPTION_FLAG;
    const char *tokens = strcmp(note->key, "corpus") ? "" : " tokens";
    if (!*saved || (flag && !strcmp(saved, "not given")))
        return fail(error, ZF_ERR_MISMATCH,
                    "%s was trained without --%s: leave it out, or start anew from its weights with "
                    "--init %s",
                    load, note->key, load);
    if (flag || !*note->value)
        return fail(error, ZF_ERR_MISMATCH,
                    "%s was trained with --%s%s%s: give it, or start anew from its weights with "
                    "--init %s",
                    load, note->key, flag ? "" : " ", flag ? "" : saved, load);
    return fail(error, ZF_ERR_MISMATCH,
                "%s was trained with %s = %s%s, not %s: give the same --%s, or start anew from its "
                "weights with --init %s",
                load, note->key, saved, tokens, note->value, note->key, load);
}

/* A checkpoint lacks the notes of options that its program did not have. */
static bool fits_notes(const notes *n, const char *load, zf_error *error)
{
    for (int i = 0; i < n->equal; i++) {
        const zf_note *note = &n->note[i];
        char saved[NOTE];
        zf_error none = {ZF_OK, ""};
        if (!strcmp(note->key, "precision"))
            snprintf(saved, sizeof saved, "%s", zf_dtype_name(zf_folder_precision(load)));
        else if (zf_checkpoint_note(load, note->key, saved, sizeof saved, &none)) {
            if (none.status == ZF_ERR_ARGUMENT) continue;
            *error = none;
            return false;
        }
        if (!is_same(note, n->row[i], saved) && !strcmp(note->key, "base"))
            return fail(error, ZF_ERR_MISMATCH,
                        zf_adapter_is_at(load)
                            ? "%s is an adapter of other weights than those of --init: name the folder "
                              "of the base that it was trained with"
                            : "%s began with other weights than those of --model: name the folder that "
                              "it was trained with",
                        load);
        if (!is_same(note, n->row[i], saved)) return refuse(load, note, n->row[i], saved, error);
    }
    return true;
}

/* Its model sees the same blocks. */
static bool fits_layout(const run_job *job, const zf_config_any *config, zf_error *error)
{
    const char *saved = zf_config_layout(job->sample->config(), config),
               *layout = zf_config_layout(job->sample->config(), &job->config);
    return !strcmp(saved, layout) ||
           fail(error, ZF_ERR_MISMATCH,
                "%s was trained with --attention %s, not %s: give the same, or start anew from its "
                "weights with --init %s",
                job->o.load, *saved ? saved : "off", *layout ? layout : "off", job->o.load);
}

/* Whether the checkpoint belongs to this run; else *error says why not. */
static bool fits(const run_job *job, const notes *n, zf_error *error)
{
    const settings *o = &job->o;
    const char *source = o->data ? o->data : o->batch_file ? o->batch_file : o->corpus;
    char path[1024], init[1100];
    zf_config_any config;
    snprintf(init, sizeof init, "--init %s", o->load);
    if (!tokenizing_fits(&n->words, o->load, o->vocab, source, init, error) ||
        !fits_notes(n, o->load, error))
        return false;
    snprintf(path, sizeof path, "%s/config.json", o->load);
    if (!zf_config_load(job->sample->config(), path, &config, error) ||
        !zf_config_set_weights(job->sample->config(), &config, o->weights, error))
        return false;
    if (job->sample->configure) job->sample->configure(&config, o);
    if (!fits_layout(job, &config, error) || !fits_phases(job, error)) return false;
    return !memcmp(&config, &job->config, job->sample->config()->bytes) ||
           fail(error, ZF_ERR_MISMATCH,
                "%s was trained with another model than --model %s: give the same", o->load,
                o->model);
}

/* Reads a note that may change to saved; whether it differs. */
static bool differs(const run *r, const zf_note *note, const char *otherwise, char saved[NOTE])
{
    zf_error none;
    snprintf(saved, NOTE, "%s", otherwise);
    (void)zf_checkpoint_note(r->job->o.load, note->key, saved, NOTE, &none);
    return strcmp(saved, note->value) != 0;
}

/* Another number of all steps stretches the schedule of the learning rate. */
static void tell_steps(const run *r, const char *saved)
{
    const settings *o = &r->job->o;
    const int64_t before = strtoll(saved, NULL, 10);
    const int64_t done = zf_program_step(r->session.program);
    zf_schedule s = settings_schedule(o);
    double rate, next;
    s.steps = before;
    if (o->schedule_steps || s.kind == ZF_WARMUP_LR || s.kind >= ZF_CYCLE_LR) return;
    if (s.kind == ZF_CONSTANT || !done || !o->steps || !before) return;
    rate = zf_schedule_at(&s, done);
    s.steps = o->steps;
    next = zf_schedule_at(&s, done + 1);
    printf("%s was trained for --steps %s, not %lld: its learning rate goes on as that of %lld steps, "
           "%.3g after %.3g\n",
           o->load, saved, (long long)o->steps, (long long)o->steps, next, rate);
}

/* What may change, and what that changes: sums are split into parts differently, and what belongs
 * to ranks is shared out among others. */
static void tell_changes(const run *r, const notes *n)
{
    const zf_note *const note = &n->note[n->equal];
    const char *load = r->job->o.load;
    char saved[NOTE];
    if (differs(r, &note[NODE], "1", saved))
        printf("%s was trained with %s rank%s in each node, not %s: it goes on, with other bits\n",
               load, saved, strcmp(saved, "1") ? "s" : "", note[NODE].value);
    if (differs(r, &note[PARTS], "1", saved))
        printf("%s was trained on batches in %s part%s (ranks times micro-batches), not %s: it "
               "goes on, with other bits\n",
               load, saved, strcmp(saved, "1") ? "s" : "", note[PARTS].value);
    if (differs(r, &note[WORLD], note[WORLD].value, saved))
        printf("%s was trained on %s ranks, which have states of their own, not %s: it goes on with "
               "their mean, and other bits\n",
               load, saved, note[WORLD].value);
    if (differs(r, &note[STEPS], note[STEPS].value, saved)) tell_steps(r, saved);
}

/* Other sections are other bits, and nothing else. */
static void tell_sections(const run *r)
{
    for (int axis = 0; axis < SHARED_AXES; axis++) {
        char saved[NOTE] = "1";
        zf_error none = {ZF_OK, ""};
        if (zf_checkpoint_note(r->job->o.load, sections_notes[axis], saved, sizeof saved, &none))
            snprintf(saved, sizeof saved, "1");
        if (strtoll(saved, NULL, 10) != sections_of(r->job, axis))
            printf("%s was trained with %s sections of sums, not %lld: bits differ (--sections "
                   "%s=%s)\n",
                   r->job->o.load, saved, (long long)sections_of(r->job, axis), shared_axes[axis],
                   saved);
    }
}

/* The order in which gradients are added, of which each rank adds so many first. */
static const char *sum_text(char text[NOTE], int64_t first)
{
    if (first < 2) return "one part after the other (--sum parts)";
    snprintf(text, NOTE, "those of a rank's %lld micro-batches first (--sum micro)",
             (long long)first);
    return text;
}

/* Another order of sums is other bits, and nothing else. */
static void tell_sum(const run *r)
{
    char saved[NOTE] = "", was[NOTE], is[NOTE];
    zf_error none = {ZF_OK, ""};
    int64_t before = 1;
    if (!zf_checkpoint_note(r->job->o.load, sum_note, saved, sizeof saved, &none) &&
        !strncmp(saved, "micro ", 6))
        before = strtoll(saved + 6, NULL, 10);
    if (before != run_added_first(r->job))
        printf("%s was trained with gradients added %s, not %s: it goes on, with other bits\n",
               r->job->o.load, sum_text(was, before), sum_text(is, run_added_first(r->job)));
}

bool run_resume(run *r)
{
    zf_store *store = zf_program_store(r->session.program);
    const bool merges = settings_adapts(&r->job->o) || r->job->sample->objective->joins;
    zf_status status;
    notes n;
    make_notes(&n, r->job);
    (void)fits(r->job, &n, &r->error);
    if (!run_agree(r)) return false;
    status = zf_load(store, r->job->o.load, &(zf_load_desc){.merge = merges});
    if (status) return fail(&r->error, status, "%s", zf_store_error(store));
    if (r->leads) tell_changes(r, &n), tell_deepspeed(r), tell_sections(r), tell_sum(r);
    return true;
}
