#include "causal.h"
#include "../data/causal_batch.h"
#include "../options/fail.h"
#include "dataset.h"
#include "settings.h"

#include <math.h>
#include <stdlib.h>

/* ------------------------------------------------------------------------------------ graphs */

/* Rows of a text after those of the answers. */
static void begin_texts(zf_graph *g, sample_shape *s, causal_inputs *in)
{
    const zf_shape shape = ZF_SHAPE(in->policy->texts, s->sequence);
    const zf_tensor ids[2] = {in->model.input_ids, zf_input(g, "text_ids", ZF_I32, shape)};
    in->model.input_ids = zf_concat(ids, 2, 0);
    in->text_labels = zf_input(g, "text_labels", ZF_I32, shape);
    in->text_share = zf_input(g, "text_share", ZF_F32, ZF_SCALAR);
    s->batch += in->policy->texts;
}

/* What a loss of a policy takes; evaluation needs labels alone. */
static void begin_policy(zf_graph *g, sample_shape *s, causal_inputs *in)
{
    const zf_shape rows = ZF_SHAPE(s->batch, 1), tokens = ZF_SHAPE(s->batch, s->sequence);
    zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    if (in->scores) return;
    in->advantage = zf_input(g, "advantage", ZF_F32, tokens);
    in->weight = zf_input(g, "weight", ZF_F32, rows);
    in->old = zf_input(g, "old", ZF_F32, tokens);
    in->correction = zf_input(g, "correction", ZF_F32, tokens);
    if (in->policy->loss.kl_beta > 0) in->reference = zf_input(g, "reference", ZF_F32, tokens);
    if (in->policy->texts) begin_texts(g, s, in);
}

causal_inputs causal_none(zf_graph *g)
{
    const zf_tensor none = {g, 0};
    return (causal_inputs){.segments = none,
                           .labels = none,
                           .loss_weight = none,
                           .reference = none,
                           .pair_weight = none,
                           .pair_share = none,
                           .advantage = none,
                           .weight = none,
                           .old = none,
                           .correction = none,
                           .text_labels = none,
                           .text_share = none,
                           .last = none,
                           .penalty = none};
}

causal_inputs causal_begin(zf_graph *g, sample_shape *s, sample_purpose purpose)
{
    causal_inputs in = causal_none(g);
    if (purpose == SAMPLE_GENERATE) {
        const zf_decode_shape shape = {s->batch, s->sequence, s->predictions, s->chunk};
        const zf_decode_inputs decode = zf_decode_begin(g, &shape);
        in.model = zf_causal_of_decode(&decode), in.last = decode.last;
        return in;
    }
    in.model.layer_drop = s->layer_drop;
    in.model.input_ids = zf_input(g, "input_ids", ZF_I32, ZF_SHAPE(s->batch, s->sequence));
    if (purpose == SAMPLE_ANSWER) in.last = zf_input(g, "last", ZF_I32, ZF_SHAPE(s->batch));
    if (zf_valid(in.last)) return in;
    in.labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(s->batch, s->sequence));
    in.policy = s->policy, in.preference = s->preference, in.scores = purpose == SAMPLE_EVALUATE;
    if (in.policy) return begin_policy(g, s, &in), in;
    if (!in.preference) in.loss_weight = zf_input(g, "loss_weight", ZF_F32, ZF_SCALAR);
    else in.pair_weight = zf_input(g, "pair_weight", ZF_F32, ZF_SHAPE(s->batch / 2)),
         in.pair_share = zf_input(g, "pair_share", ZF_F32, ZF_SCALAR);
    if (in.preference && zf_preference_needs_reference(in.preference))
        in.reference = zf_input(g, "reference", ZF_F32, ZF_SHAPE(s->batch, s->sequence));
    zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    if (s->rows == SAMPLE_PADDED)
        in.model.attention_mask =
            zf_input(g, "attention_mask", ZF_U8, ZF_SHAPE(s->batch, s->sequence));
    if (s->rows == SAMPLE_PACKED) {
        in.segments = zf_input(g, "segments", ZF_I32, ZF_SHAPE(s->batch, s->sequence));
        in.model.positions = zf_input(g, "positions", ZF_I32, ZF_SHAPE(s->batch, s->sequence));
        in.model.documents = zf_documents(in.segments);
    }
    return in;
}

/* The mean cross-entropy of the texts, which are the rows of x after `first`. */
static zf_tensor texts_end(zf_tensor x, int64_t first, zf_tensor words, const causal_inputs *in)
{
    const int64_t rows = zf_tensor_shape(x).dims[0];
    const zf_tensor logits = zf_causal_logits(zf_slice(x, 0, first, rows), words, in->cap),
                    labels = zf_reshape(in->text_labels, ZF_SHAPE(-1));
    return zf_output_ex(zf_cross_entropy(logits, labels, in->text_share), "ptx_loss",
                        &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
}

/* The outputs of a policy. */
static zf_tensor policy_end(zf_tensor x, zf_tensor words, const causal_inputs *in)
{
    const zf_head_desc desc = {.temperature = in->policy->temperature,
                               .blocks = zf_param_blocks(words)};
    const int64_t answers = zf_shape_count(zf_tensor_shape(in->labels));
    const bool texts = zf_valid(in->text_labels);
    const zf_tensor logp = zf_head_logp(texts ? zf_slice(x, 0, 0, answers) : x, words, ZF_NONE,
                                        zf_reshape(in->labels, ZF_SHAPE(-1)), &desc);
    const zf_policy_rows rows = {.logp = logp,
                                 .labels = in->labels,
                                 .advantage = in->advantage,
                                 .old = in->old,
                                 .reference = zf_valid(in->reference) ? in->reference : ZF_NONE,
                                 .correction = in->correction,
                                 .weight = in->weight};
    const zf_output_desc own = {.reduction = ZF_REDUCTION_NONE}, sum = {.reduction = ZF_REDUCTION_SUM};
    zf_policy p;
    if (in->scores) {
        zf_output(zf_head_entropy(logp), "entropy");
        return zf_output(logp, "logp");
    }
    p = zf_policy_loss(&rows, &in->policy->loss);
    zf_output_ex(zf_sum(zf_mul(p.clipped, in->weight)), "clipped", &sum);
    zf_output_ex(zf_max(p.ratio), "ratio_high", &own);
    zf_output_ex(zf_neg(zf_max(zf_neg(p.ratio))), "ratio_low", &own);
    if (texts)
        p.loss = zf_add(p.loss, zf_scale(texts_end(x, answers, words, in),
                                         in->policy->text_coefficient));
    return zf_output_ex(p.loss, "loss", &sum);
}

/* The outputs of pairs. */
static zf_tensor preference_end(zf_tensor x, zf_tensor words, const causal_inputs *in)
{
    const zf_tensor weight = in->pair_weight;
    const zf_head_desc head = {.blocks = zf_param_blocks(words)};
    const zf_tensor logp =
        zf_head_logp(x, words, ZF_NONE, zf_reshape(in->labels, ZF_SHAPE(-1)), &head);
    const zf_preference p =
        zf_preference_loss(logp, zf_valid(in->reference) ? in->reference : ZF_NONE, in->labels,
                           weight, in->preference);
    const zf_tensor right = zf_sum(zf_where(zf_less(p.rejected, p.chosen),
                                            zf_constant(x.graph, ZF_F32, ZF_SCALAR, 1),
                                            zf_constant(x.graph, ZF_F32, ZF_SCALAR, 0)));
    zf_output(zf_sum(zf_mul(p.chosen, weight)), "rewards/chosen");
    zf_output(zf_sum(zf_mul(p.rejected, weight)), "rewards/rejected");
    zf_output(zf_mul(right, in->pair_share), "accuracy");
    zf_output(zf_sum(zf_mul(zf_sub(p.chosen, p.rejected), weight)), "margin");
    zf_output(right, "accurate");
    if (in->scores) zf_output(logp, "logp");
    return zf_output(p.loss, "loss");
}

zf_tensor causal_end(zf_tensor x, zf_tensor words, const causal_inputs *in)
{
    const zf_causal_outputs out = {.x = x, .words = words, .penalty = in->penalty};
    zf_tensor loss;
    if (in->cap > 0 && (in->policy || in->preference))
        return zf_fail(x, "the model caps its logits (final_logit_softcapping), which losses over "
                          "log-probabilities do not: dpo, grpo, ppo and rlhf need a model without");
    if (in->policy) return policy_end(x, words, in);
    if (in->preference) return preference_end(x, words, in);
    if (zf_valid(in->last))
        return zf_output(zf_causal_logits(zf_gather_rows(x, in->last), words, in->cap), "logits");
    loss = zf_causal_loss(&out, in->labels, in->loss_weight, in->cap);
    if (!in->moved) return zf_output(loss, "loss");
    return zf_output_ex(loss, "loss", &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
}

/* -------------------------------------------------------------------------------------- data */

/* dataset.own: a text as two lines of tokens, or the batches of a file. */
typedef struct causal_data {
    causal_tokens train, held_out;
    uint64_t seed;
    int64_t sequence;
    bool packed;            /* the documents of a row of a text are apart (--pack), as examples are */
    causal_batch_file file; /* entries 0: there is no file */
    zf_tuning tuning;          /* examples 0: there are none */
} causal_data;

/* The documents of a split, joined. */
static bool join(causal_tokens *out, const bert_corpus *c, const bert_split *split, int32_t end,
                 int64_t sequence, const char *path, zf_error *error)
{
    out->id = malloc((size_t)(split->tokens + split->count) * sizeof *out->id), out->end = end;
    if (!out->id) return fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t d = 0; d < split->count; d++) {
        const int64_t *sentence = c->document + split->documents[d];
        for (int64_t i = c->sentence[sentence[0]]; i < c->sentence[sentence[1]]; i++)
            out->id[out->count++] = bert_corpus_id(c, i);
        out->id[out->count++] = end;
    }
    return out->count > sequence ||
           fail(error, ZF_ERR_ARGUMENT,
                "%s: the training part and the held-out part must each have more than %lld "
                "tokens; one has %lld",
                path, (long long)sequence, (long long)out->count);
}

static bool new_data(dataset *d, zf_error *error)
{
    d->own = calloc(1, sizeof(causal_data));
    return d->own || fail(error, ZF_ERR_NOMEM, "out of memory");
}

static bool open_file(dataset *d, settings *o, const zf_config_facts *facts, void *config,
                      zf_error *error)
{
    causal_data *data;
    (void)config;
    if (!new_data(d, error)) return false;
    data = d->own;
    if (!causal_batch_file_load(&data->file, o->batch_file, *facts->vocab, error)) return false;
    o->batch = data->file.batch[0].examples, o->seq = data->file.batch[0].sequence;
    return true;
}

/* Each document ends with [SEP]. */
static bool open_text(dataset *d, const settings *o, void *config, zf_error *error)
{
    int32_t end = zf_wordpiece_id(d->vocab, "[SEP]");
    const bert_corpus *c = d->corpus;
    causal_data *data;
    (void)config;
    if (!new_data(d, error)) return false;
    data = d->own;
    data->seed = (uint64_t)o->seed, data->sequence = o->seq, data->packed = o->pack;
    if (!join(&data->train, c, &c->train, end, o->longest > o->seq ? o->longest : o->seq, o->corpus,
              error) ||
        !join(&data->held_out, c, &c->held_out, end, o->seq, o->corpus, error))
        return false;
    bert_corpus_free(d->corpus);
    d->corpus = NULL;
    return true;
}

static bool load_examples(dataset *d, const settings *o, const zf_examples_desc *desc, zf_error *error)
{
    causal_data *data = d->own;
    if (!zf_tuning_load(&data->tuning, o->data, desc, error)) return false;
    data->seed = (uint64_t)o->seed, data->sequence = o->seq, data->packed = true;
    d->tokens = data->tuning.tokens, d->documents = data->tuning.examples;
    d->held_out = data->tuning.held_out;
    d->cut = data->tuning.cut, d->left_out = data->tuning.left_out;
    d->digest = data->tuning.digest, d->begins = data->tuning.begins;
    return true;
}

static bool open_data(dataset *d, const settings *o, const zf_config_facts *facts, void *config,
                      zf_error *error)
{
    (void)config;
    return new_data(d, error) && dataset_open_examples(d, o, facts, load_examples, error);
}

static void close_data(dataset *d)
{
    causal_data *data = d->own;
    if (!data) return;
    free(data->train.id);
    free(data->held_out.id);
    causal_batch_file_free(&data->file);
    zf_tuning_free(&data->tuning);
    free(data);
}

static void fit_shape(const dataset *d, const settings *o, int64_t parts, sample_shape *shape)
{
    const causal_data *data = d->own;
    (void)parts, (void)o;
    shape->rows = data->packed          ? SAMPLE_PACKED
                  : data->file.masked   ? SAMPLE_PADDED
                                        : SAMPLE_FULL;
}

static int64_t batches(const dataset *d, int64_t examples)
{
    const causal_data *data = d->own;
    const int64_t rows = data->tuning.test.count;
    return data->file.entries ? data->file.entries : (rows + examples - 1) / examples;
}

typedef struct reader {
    const causal_data *data;
    bool held_out;
    int64_t before;     /* training examples before those of step 0 */
    zf_causal_batch batch; /* for a text */
} reader;

static void stop(void *user)
{
    reader *r = user;
    if (r) zf_causal_batch_free(&r->batch);
    free(r);
}

/* sequence: of a text or of examples. */
static reader *open_reader(const dataset *d, int64_t examples, int64_t sequence, zf_error *error)
{
    reader *r = calloc(1, sizeof *r);
    if (!r) {
        fail(error, ZF_ERR_NOMEM, "out of memory");
        return NULL;
    }
    r->data = d->own;
    if (r->data->file.entries ||
        zf_causal_batch_new(&r->batch, examples, sequence, r->data->packed, error))
        return r;
    stop(r);
    return NULL;
}

static void *start(const dataset *d, bool held_out, int64_t examples, int64_t first,
                   zf_error *error)
{
    const causal_data *data = d->own;
    reader *r = open_reader(d, examples, data->sequence, error);
    (void)first;
    if (r) r->held_out = held_out;
    return r;
}

static void *start_phase(const dataset *d, const shape_phase *of, int64_t first, zf_error *error)
{
    reader *r = open_reader(d, of->batch, of->sequence, error);
    (void)first;
    if (r) r->before = of->before;
    return r;
}

static const void *read_batch(void *user, int64_t step)
{
    reader *r = user;
    const causal_data *data = r->data;
    int64_t first = r->before + step * r->batch.examples;
    if (data->file.entries) return &data->file.batch[step % data->file.entries];
    if (data->tuning.examples)
        zf_tuning_read(&data->tuning, &r->batch, r->held_out, data->seed, first);
    else if (r->held_out) causal_batch_read(&r->batch, &data->held_out, first);
    else causal_batch_draw(&r->batch, &data->train, data->seed, first);
    return &r->batch;
}

/* ------------------------------------------------------------------------------------- steps */

static batch_counts count(const void *batch)
{
    return (batch_counts){((const zf_causal_batch *)batch)->labelled, 0};
}

static zf_status feed(session *s, const void *batch, int64_t part, int64_t parts, bool sums)
{
    const zf_causal_batch *b = batch;
    int64_t share = b->examples / parts * b->sequence, first = part * share;
    size_t bytes = (size_t)share * sizeof *b->ids;
    float weight = sums ? 1 : 1 / (float)(b->labelled ? b->labelled : 1);
    zf_status status = session_write(s, "input_ids", b->ids + first, bytes);
    if (!status) status = session_write(s, "labels", b->labels + first, bytes);
    if (!status && b->mask)
        status = session_write(s, "attention_mask", b->mask + first, (size_t)share);
    if (!status && b->segments) status = session_write(s, "segments", b->segments + first, bytes);
    if (!status && b->positions)
        status = session_write(s, "positions", b->positions + first, bytes);
    return status ? status : session_write(s, "loss_weight", &weight, sizeof weight);
}

static void print_score(const sample_score *score, const void *config, double unigram_nats,
                        bool exact)
{
    (void)config, (void)exact;
    printf("loss %.4f, perplexity %.1f", score->value[0], exp(score->value[0]));
    if (unigram_nats > 0) printf("; unigram entropy %.4f", unigram_nats);
    printf("\n");
}

const objective causal_objective = {
    .shares_layers = true,
    .losses = {"loss"},
    .curve_title = "loss",
    .scores = {{"loss", "loss", false, false}},
    .least_sequence = 1,
    .frame = ZF_FOLDER_GPT,
    .open_file = open_file,
    .open_data = open_data,
    .open_text = open_text,
    .close = close_data,
    .fit_shape = fit_shape,
    .batches = batches,
    .start = start,
    .start_phase = start_phase,
    .read = read_batch,
    .stop = stop,
    .count = count,
    .feed = feed,
    .print = print_score,
};
