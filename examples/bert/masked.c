#include "masked.h"
#include "../frame/options/fail.h"
#include "model.h"
#include "../frame/model/settings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const masked_options *masked_options_of(const settings *o)
{
    static const masked_options none;
    return o->own ? o->own : &none;
}

/* -------------------------------------------------------------------------------------- data */

static bool new_data(dataset *d, zf_error *error)
{
    d->own = calloc(1, sizeof(masked_data));
    return d->own || fail(error, ZF_ERR_NOMEM, "out of memory");
}

bool masked_predicts(const void *config, const char *folder, zf_error *error)
{
    return !((const bert_config *)config)->task ||
           fail(error, ZF_ERR_MISMATCH,
                "%s is a model with labels, which predicts no words: finetune trains it, classify "
                "uses it",
                folder);
}

/* The model predicts words, and is what the options say. */
static bool fits_model(const settings *o, const bert_config *c, zf_error *error)
{
    if (!masked_predicts(c, o->evaluates ? o->load : o->model, error)) return false;
    if (!bert_experts_fit(c))
        return fail(error, ZF_ERR_ARGUMENT, "--experts is for " BERT_WITH_EXPERTS ": not %s", o->model);
    return !c->pre_norm || c->family == BERT_BERT ||
           fail(error, ZF_ERR_ARGUMENT, "--pre-norm is for BERT; %s is of another family", o->model);
}

static bool open_file(dataset *d, settings *o, const zf_config_facts *facts, void *config,
                      zf_error *error)
{
    bert_config *c = config;
    bert_batch_file *f;
    if (!fits_model(o, c, error) || !new_data(d, error) ||
        !(f = bert_batch_file_load(o->batch_file, *facts->vocab, c->types, error)))
        return false;
    ((masked_data *)d->own)->file = f;
    o->batch = f->examples, o->seq = f->sequence;
    if (masked_options_of(o)->no_nsp || !f->next_sentences) c->nsp = 0;
    return true;
}

/* Several documents in an example are for models that see documents apart. */
static bool fits_pack(const settings *o, const bert_config *c, zf_error *error)
{
    if (c->nsp)
        return fail(error, ZF_ERR_ARGUMENT,
                    "--pack is for examples of masked words alone: with --no-nsp");
    return c->family == BERT_BERT || c->family == BERT_ROBERTA ||
           fail(error, ZF_ERR_ARGUMENT, "--pack is for BERT and RoBERTa; %s is of another family",
                o->evaluates ? o->load : o->model);
}

static bool open_text(dataset *d, const settings *o, void *config, zf_error *error)
{
    const masked_options *own = masked_options_of(o);
    bert_config *c = config;
    bert_examples_desc e = {.corpus = d->corpus,
                            .seed = (uint64_t)o->seed,
                            .sequence = (int32_t)o->seq,
                            .masked_percent = (int32_t)own->masked,
                            .pad = zf_wordpiece_id(d->vocab, "[PAD]"),
                            .unk = zf_wordpiece_id(d->vocab, "[UNK]"),
                            .cls = zf_wordpiece_id(d->vocab, "[CLS]"),
                            .sep = zf_wordpiece_id(d->vocab, "[SEP]"),
                            .mask = zf_wordpiece_id(d->vocab, "[MASK]")};
    masked_data *data;
    char err[512] = "out of memory";
    if (!fits_model(o, c, error) || !new_data(d, error)) return false;
    data = d->own;
    if (own->no_nsp) c->nsp = 0;
    if (o->pack && !fits_pack(o, c, error)) return false;
    e.single = !c->nsp, e.pack = o->pack;
    data->desc = e;
    data->train = bert_examples_new(&e, err, sizeof err);
    e.held_out = true, e.masked_percent = 0;
    if (data->train) data->held_out = bert_examples_new(&e, err, sizeof err);
    return data->held_out || fail(error, ZF_ERR_FORMAT, "%s", err);
}

static void close_data(dataset *d)
{
    masked_data *data = d->own;
    if (!data) return;
    bert_examples_free(data->train);
    bert_examples_free(data->held_out);
    bert_batch_file_free(data->file);
    free(data);
}

static void fit_shape(const dataset *d, const settings *o, int64_t parts, sample_shape *shape)
{
    const masked_data *data = d->own;
    int64_t masked = masked_options_of(o)->masked, percent = masked > 15 ? masked : 15;
    if (!data->file && data->desc.pack) shape->rows = SAMPLE_PACKED;
    shape->predictions = data->file ? bert_batch_file_predictions(data->file, parts)
                                    : shape->batch * (((shape->sequence - 3) * percent + 50) / 100);
}

/* A reader of one of three: batches of a file, training examples, held-out examples. */
typedef struct reader {
    bert_batch_file *file;
    bert_feeder *feeder;
    const bert_examples *held_out;
    bert_examples *own; /* of a phase; NULL: none */
    bert_batch *batch;
} reader;

static void stop(void *user)
{
    reader *r = user;
    if (!r) return;
    bert_feeder_stop(r->feeder);
    bert_batch_free(r->batch);
    bert_examples_free(r->own);
    free(r);
}

static void *start(const dataset *d, bool held_out, int64_t examples, int64_t first,
                   zf_error *error)
{
    const masked_data *data = d->own;
    bert_feeder_desc f = {
        .examples = data->train, .batch = (int32_t)examples, .first = first * examples};
    reader *r = calloc(1, sizeof *r);
    char err[256] = "out of memory";
    bool good = r != NULL;
    if (good && data->file) {
        r->file = data->file;
    } else if (good && held_out) {
        r->held_out = data->held_out;
        good = (r->batch = bert_batch_new(r->held_out, (int32_t)examples, err, sizeof err)) != NULL;
    } else if (good) {
        good = (r->feeder = bert_feeder_start(&f, err, sizeof err)) != NULL;
    }
    if (good) return r;
    stop(r);
    fail(error, ZF_ERR_NOMEM, "%s", err);
    return NULL;
}

static void *start_phase(const dataset *d, const shape_phase *of, int64_t first, zf_error *error)
{
    const masked_data *data = d->own;
    bert_examples_desc e = data->desc;
    bert_feeder_desc f = {.batch = (int32_t)of->batch, .first = of->before + first * of->batch};
    reader *r = calloc(1, sizeof *r);
    char err[512] = "out of memory";
    e.sequence = (int32_t)of->sequence;
    if (r) f.examples = r->own = bert_examples_new(&e, err, sizeof err);
    if (r && r->own) r->feeder = bert_feeder_start(&f, err, sizeof err);
    if (r && r->feeder) return r;
    stop(r);
    fail(error, ZF_ERR_FORMAT, "%s", err);
    return NULL;
}

static const void *read_batch(void *user, int64_t step)
{
    reader *r = user;
    if (r->file) return &r->file->batch[step % r->file->entries];
    if (r->feeder) return bert_feeder_next(r->feeder);
    bert_batch_fill(r->batch, r->held_out, step * r->batch->examples);
    return r->batch;
}

static int64_t waits(void *user)
{
    reader *r = user;
    return r->feeder ? bert_feeder_waits(r->feeder) : 0;
}

/* ------------------------------------------------------------------------------------- steps */

static batch_counts count(const void *batch)
{
    const bert_batch *b = batch;
    return (batch_counts){b->labelled, b->pairs};
}

zf_status masked_feed(session *s, const bert_batch *b, double labelled, double pairs)
{
    size_t tokens = (size_t)(s->shape.batch * s->shape.sequence),
           rows = (size_t)s->shape.predictions;
    float mlm = (float)(1 / (labelled > 1 ? labelled : 1)),
          nsp = (float)(1 / (pairs > 1 ? pairs : 1));
    zf_status status = session_write(s, "input_ids", b->input_ids, tokens * 4);
    if (!status) status = session_write(s, "token_type_ids", b->token_type_ids, tokens * 4);
    if (!status) status = session_write(s, "attention_mask", b->attention_mask, tokens);
    if (!status && b->segments) status = session_write(s, "segments", b->segments, tokens * 4);
    if (!status && b->segments) status = session_write(s, "places", b->places, tokens * 4);
    if (!status) status = session_write(s, "positions", b->positions, rows * 4);
    if (!status) status = session_write(s, "labels", b->labels, rows * 4);
    if (!status) status = session_write(s, "mlm_weight", &mlm, sizeof mlm);
    if (!status)
        status = session_write(s, "next_sentence_label", b->next_sentence_label,
                               (size_t)s->shape.batch * 4);
    return status ? status : session_write(s, "nsp_weight", &nsp, sizeof nsp);
}

static zf_status feed(session *s, const void *batch, int64_t part, int64_t parts, bool sums)
{
    const bert_batch *b = batch;
    bert_batch own =
        bert_batch_part(b, part, parts, s->labelled, s->labelled + s->shape.predictions,
                        (int32_t)s->shape.predictions);
    return masked_feed(s, &own, sums ? 1 : b->labelled, sums ? 1 : b->pairs);
}

static void print_score(const sample_score *score, const void *config, double unigram_nats,
                        bool exact)
{
    const bert_config *c = config;
    const double *v = score->value;
    if (exact) {
        printf("MLM loss %.9g, accuracy %.2f%%", v[0], 100 * v[1]);
        if (c->nsp) printf(", NSP loss %.9g", v[2]);
        printf("\n");
        return;
    }
    printf("MLM loss %.4f, accuracy %.1f%% of %lld masked words", v[0], 100 * v[1],
           (long long)score->labelled);
    if (c->nsp) printf("; NSP loss %.4f", v[2]);
    printf("; unigram entropy %.4f\n", unigram_nats);
}

const objective masked_objective = {
    .shares_layers = true,
    .losses = {"loss", "mlm_loss", "nsp_loss"},
    .curve = 1,
    .curve_title = "masked-language loss",
    .hits = {"MLM accuracy", "mlm_correct"},
    .scores = {{"mlm_loss", "mlm_loss", false, false},
               {"mlm_accuracy", "mlm_correct", false, true},
               {"nsp_loss", "nsp_loss", true, false}},
    .least_sequence = 8,
    .frame = ZF_FOLDER_BERT,
    .open_file = open_file,
    .open_text = open_text,
    .close = close_data,
    .fit_shape = fit_shape,
    .start = start,
    .start_phase = start_phase,
    .read = read_batch,
    .waits = waits,
    .stop = stop,
    .count = count,
    .feed = feed,
    .print = print_score,
    .show = masked_show,
};

/* ----------------------------------------------------------------------------------- guesses */

bool masked_guesses(session *s, int64_t positions, int64_t tokens, masked_guess *guesses,
                    zf_error *error)
{
    zf_tensor output = zf_graph_find(s->graph, "mlm_logits");
    int64_t vocab = zf_tensor_shape(output).dims[1];
    size_t bytes = zf_tensor_bytes(output);
    float *logits = malloc(bytes);
    zf_status status;
    if (!logits) return fail(error, ZF_ERR_NOMEM, "out of memory");
    if (tokens > vocab) tokens = vocab;
    status = zf_step(s->program);
    if (!status) status = zf_read(s->program, output, logits, bytes);
    for (int64_t row = 0; row < positions && !status; row++) {
        const float *x = logits + row * vocab;
        double most = -INFINITY, sum = 0;
        for (int64_t v = 0; v < vocab; v++) most = x[v] > most ? x[v] : most;
        for (int64_t v = 0; v < vocab; v++) sum += exp(x[v] - most);
        for (int n = 0; n < MASKED_GUESSES; n++) {
            int32_t best = -1;
            for (int64_t v = 0; v < tokens; v++) {
                bool taken = false;
                for (int k = 0; k < n; k++) taken |= guesses[row].token[k] == v;
                if (!taken && (best < 0 || x[v] > x[best])) best = (int32_t)v;
            }
            guesses[row].token[n] = best;
            guesses[row].probability[n] = exp(x[best] - most) / sum;
        }
    }
    free(logits);
    return !status || fail(error, status, "%s", zf_program_error(s->program));
}

int64_t masked_fill_batch(bert_batch *b, const zf_wordpiece *vocab, const char *text)
{
    int32_t cls = zf_wordpiece_id(vocab, "[CLS]"), sep = zf_wordpiece_id(vocab, "[SEP]"),
            mask = zf_wordpiece_id(vocab, "[MASK]");
    int64_t room = b->sequence - 2, masks = 0;
    int64_t n = zf_wordpiece_encode(vocab, text, strlen(text), ZF_WORDPIECE_SPECIAL,
                                    b->input_ids + 1, room);
    if (n > room) return -1;
    memset(b->token_type_ids, 0, (size_t)b->sequence * sizeof *b->token_type_ids);
    for (int32_t t = 0; t < b->sequence; t++) {
        if (t == 0) b->input_ids[t] = cls;
        if (t == n + 1) b->input_ids[t] = sep;
        if (t > n + 1) b->input_ids[t] = zf_wordpiece_id(vocab, "[PAD]");
        b->attention_mask[t] = t <= n + 1;
    }
    for (int32_t p = 0; p < b->predictions; p++) b->positions[p] = 0, b->labels[p] = -100;
    for (int32_t t = 0; t < n + 2 && masks < b->predictions; t++)
        if (b->input_ids[t] == mask) b->positions[masks] = t, b->labels[masks++] = 0;
    b->next_sentence_label[0] = 0;
    return masks;
}
