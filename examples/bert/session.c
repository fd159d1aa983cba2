#include "session.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool copy_error(zf_error *error, zf_status status, const char *text)
{
    error->status = status;
    snprintf(error->text, sizeof error->text, "%s", text);
    return false;
}

int64_t bert_session_skipped(bert_session *s)
{
    int64_t steps = 0;
    zf_tensor skipped = zf_graph_find(s->graph, "skipped_steps");
    if (zf_valid(skipped)) (void)zf_read(s->program, skipped, &steps, sizeof steps);
    return steps;
}

bool bert_recompute(const char *text, zf_recompute_mode *mode, int64_t *memory)
{
    static const char suffixes[] = "KMGT";
    const char *suffix;
    char *end;
    long long bytes;
    int shift = 0;
    *mode = ZF_RECOMPUTE_OFF, *memory = 0;
    if (!text || !strcmp(text, "off")) return true;
    *mode = ZF_RECOMPUTE_LAYERS;
    if (!strcmp(text, "layers")) return true;
    *mode = ZF_RECOMPUTE_AS_NEEDED;
    errno = 0;
    bytes = strtoll(text, &end, 10);
    if (*end && (suffix = strchr(suffixes, *end))) shift = 10 * (int)(suffix - suffixes + 1), end++;
    if (end == text || *end || errno || bytes < 1 || bytes > INT64_MAX >> shift) return false;
    *memory = bytes << shift;
    return true;
}

zf_training bert_training(const bert_model *m, const bert_session_desc *d)
{
    zf_training t = {.fuse.without = d->no_fuse,
                     .precision.dtype = d->dtype,
                     .keep_gradients = d->keep_gradients,
                     .clip = d->clip > 0 ? d->clip : INFINITY,
                     .optimizer = d->optimizer,
                     .adamw = {.beta1 = d->beta1,
                               .beta2 = d->beta2,
                               .eps = d->eps,
                               .weight_decay = d->weight_decay},
                     .lamb = {.beta1 = d->beta1,
                              .beta2 = d->beta2,
                              .eps = d->eps,
                              .weight_decay = d->weight_decay,
                              .min_coeff = d->min_coeff,
                              .max_coeff = d->max_coeff},
                     .sgd = {.momentum = d->momentum, .weight_decay = d->weight_decay},
                     .recompute = {d->recompute, (size_t)d->memory}};
    if (d->train) t.loss = m->loss, t.lr = m->lr;
    return t;
}

/* The step of one rank; where parameters lie in buckets, it becomes that of each. */
static void run_passes(bert_session *s, const bert_session_desc *d)
{
    const bert_sharing *sharing = &s->sharing;
    zf_training t = bert_training(&s->model, d);
    if (d->share) t.precision.dtype = d->share->dtype;
    if (s->buckets)
        t.zero = (zf_zero_desc){.stage = (int32_t)sharing->stage,
                                .world = s->world,
                                .micro_batches = sharing->micro_batches,
                                .bucket_bytes = (size_t)sharing->bucket};
    if (sharing->prefetch > 0) t.prefetch.bytes = (size_t)sharing->prefetch;
    t.cost = sharing->measure ? &s->cost : sharing->cost;
    t.backend = s->backend;
    /* A GPU is faster without `invert`; several would have to agree on what they leave out. */
    if (s->world == 1 && !d->share && !d->no_fuse && (t.memory_limit = device_memory(&d->device)))
        t.fuse.invert = ZF_INVERT_AS_NEEDED;
    zf_passes(s->graph, &t);
}

/* What is read after a step is now, where there are several parts, the sum over them. */
static void find_outputs(bert_session *s)
{
    s->model.loss = zf_graph_find(s->graph, "loss");
    s->model.mlm_loss = zf_graph_find(s->graph, "mlm_loss");
    s->model.nsp_loss = zf_graph_find(s->graph, "nsp_loss");
    s->model.mlm_correct = zf_graph_find(s->graph, "mlm_correct");
}

bool bert_session_open(bert_session *s, const bert_session_desc *d, zf_error *error)
{
    size_t rows = (size_t)d->shape.predictions;
    zf_store *store = d->share ? zf_program_store(d->share->program) : NULL;
    *s = (bert_session){
        .shape = d->shape, .sharing = d->share ? d->share->sharing : d->sharing, .dtype = d->dtype};
    s->sharing.micro_batches = d->sharing.micro_batches ? d->sharing.micro_batches : 1;
    s->rank = s->sharing.comm ? s->sharing.comm->rank : 0;
    s->world = s->sharing.comm ? s->sharing.comm->world : 1;
    s->buckets = d->share ? d->share->buckets
                          : s->sharing.comm || s->sharing.stage || s->sharing.micro_batches > 1;
    if (d->shape.sequence > d->config.positions) {
        error->status = ZF_ERR_ARGUMENT;
        snprintf(error->text, sizeof error->text,
                 "sequences of %lld tokens are too long for the model's %lld positions",
                 (long long)d->shape.sequence, (long long)d->config.positions);
        return false;
    }
    s->graph = zf_graph_new(NULL);
    s->positions = malloc(rows * sizeof *s->positions);
    s->labels = malloc(rows * sizeof *s->labels);
    if (!s->graph || !s->positions || !s->labels) {
        bert_session_close(s);
        return copy_error(error, ZF_ERR_NOMEM, "out of memory");
    }
    if (d->share) s->cost = d->share->cost;
    if (!d->share &&
        (!(s->backend = device_open(&d->device, d->threads, error)) ||
         (d->sharing.measure && zf_calibrate(s->backend, s->sharing.comm, &s->cost, error)))) {
        bert_session_close(s);
        return false;
    }
    s->model = bert_build(s->graph, &d->config, &d->shape, d->keep_logits);
    run_passes(s, d);
    find_outputs(s);
    s->program = zf_compile(s->graph,
                            &(zf_compile_desc){.backend = d->share ? d->share->backend : s->backend,
                                               .seed = store ? 0 : d->seed,
                                               .store = store,
                                               .bound = store != NULL,
                                               .comm = s->sharing.comm,
                                               .evaluate = !d->train});
    if (s->program) return true;
    copy_error(error, zf_graph_status(s->graph), zf_graph_error(s->graph));
    bert_session_close(s);
    return false;
}

void bert_session_close(bert_session *s)
{
    zf_program_free(s->program);
    zf_backend_free(s->backend);
    zf_graph_free(s->graph);
    free(s->positions);
    free(s->labels);
    *s = (bert_session){.graph = NULL};
}

zf_status bert_session_feed(bert_session *s, const bert_batch *b, double labelled, double pairs)
{
    const bert_model *m = &s->model;
    size_t tokens = (size_t)(s->shape.batch * s->shape.sequence),
           rows = (size_t)s->shape.predictions;
    float mlm = (float)(1 / (labelled > 1 ? labelled : 1)),
          nsp = (float)(1 / (pairs > 1 ? pairs : 1));
    zf_status status = zf_write(s->program, m->input_ids, b->input_ids, tokens * 4);
    if (!status && zf_valid(m->token_type_ids))
        status = zf_write(s->program, m->token_type_ids, b->token_type_ids, tokens * 4);
    if (!status) status = zf_write(s->program, m->attention_mask, b->attention_mask, tokens);
    if (!status) status = zf_write(s->program, m->positions, b->positions, rows * 4);
    if (!status) status = zf_write(s->program, m->labels, b->labels, rows * 4);
    if (!status) status = zf_write(s->program, m->mlm_weight, &mlm, sizeof mlm);
    if (!zf_valid(m->next_sentence_label)) return status;
    if (!status)
        status = zf_write(s->program, m->next_sentence_label, b->next_sentence_label,
                          (size_t)s->shape.batch * 4);
    if (!status) status = zf_write(s->program, m->nsp_weight, &nsp, sizeof nsp);
    return status;
}

zf_status bert_session_feed_parts(bert_session *s, const bert_batch *global, double labelled,
                                  double pairs)
{
    int64_t parts = s->world * s->sharing.micro_batches;
    zf_status status = ZF_OK;
    for (int64_t micro = 0; micro < s->sharing.micro_batches && !status; micro++) {
        bert_batch part = bert_batch_part(global, micro * s->world + s->rank, parts, s->positions,
                                          s->labels, (int32_t)s->shape.predictions);
        status = bert_session_feed(s, &part, labelled, pairs);
        if (!status && micro + 1 < s->sharing.micro_batches) status = zf_micro(s->program);
    }
    return status;
}

double bert_session_scalar(bert_session *s, zf_tensor output)
{
    float value = NAN;
    if (!zf_valid(output)) return 0;
    (void)zf_read(s->program, output, &value, sizeof value);
    return value;
}

bool bert_session_score(bert_session *s, const bert_examples *held_out, int64_t batches,
                        bert_score *score, zf_error *error)
{
    double mlm = 0, nsp = 0, correct = 0;
    char text[256] = "";
    int64_t examples = s->shape.batch * s->world * s->sharing.micro_batches;
    bert_batch *batch = bert_batch_new(held_out, (int32_t)examples, text, sizeof text);
    zf_status status = ZF_OK;
    *score = (bert_score){0, 0, 0, 0};
    if (!batch) return copy_error(error, ZF_ERR_NOMEM, text);
    for (int64_t k = 0; k < batches && !status; k++) {
        bert_batch_fill(batch, held_out, k * examples);
        status = bert_session_feed_parts(s, batch, 1, 1); /* weights of 1: the losses are sums */
        if (!status) status = zf_step(s->program);
        if (status) break; /* reading would clear the error */
        mlm += bert_session_scalar(s, s->model.mlm_loss);
        nsp += bert_session_scalar(s, s->model.nsp_loss);
        correct += bert_session_scalar(s, s->model.mlm_correct);
        score->labelled += batch->labelled;
    }
    bert_batch_free(batch);
    if (status) return copy_error(error, status, zf_program_error(s->program));
    if (!isfinite(mlm) || !isfinite(nsp))
        return copy_error(error, ZF_ERR_NAN, "held out: the loss is not a finite number");
    score->mlm_loss = mlm / (double)(score->labelled ? score->labelled : 1);
    score->mlm_accuracy = correct / (double)(score->labelled ? score->labelled : 1);
    score->nsp_loss = nsp / (double)(batches * examples);
    return true;
}

bool bert_session_guess(bert_session *s, int64_t positions, int64_t tokens, bert_guess *guesses,
                        zf_error *error)
{
    zf_shape shape = zf_tensor_shape(s->model.mlm_logits);
    int64_t vocab = shape.dims[1];
    size_t bytes = zf_tensor_bytes(s->model.mlm_logits);
    float *logits = malloc(bytes);
    zf_status status;
    if (!logits) return copy_error(error, ZF_ERR_NOMEM, "out of memory");
    if (tokens > vocab) tokens = vocab;
    status = zf_step(s->program);
    if (!status) status = zf_read(s->program, s->model.mlm_logits, logits, bytes);
    for (int64_t row = 0; row < positions && !status; row++) {
        const float *x = logits + row * vocab;
        double most = -INFINITY, sum = 0;
        for (int64_t v = 0; v < vocab; v++) most = x[v] > most ? x[v] : most;
        for (int64_t v = 0; v < vocab; v++) sum += exp(x[v] - most);
        for (int n = 0; n < BERT_GUESSES; n++) {
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
    return status ? copy_error(error, status, zf_program_error(s->program)) : true;
}

int64_t bert_fill_batch(bert_batch *b, const bert_vocab *vocab, const char *text)
{
    int32_t cls = bert_vocab_id(vocab, "[CLS]"), sep = bert_vocab_id(vocab, "[SEP]"),
            mask = bert_vocab_id(vocab, "[MASK]");
    int64_t room = b->sequence - 2, masks = 0;
    int64_t n = bert_encode(vocab, text, strlen(text), BERT_SPECIAL_TOKENS, b->input_ids + 1, room);
    if (n > room) return -1;
    memset(b->token_type_ids, 0, (size_t)b->sequence * sizeof *b->token_type_ids);
    for (int32_t t = 0; t < b->sequence; t++) {
        if (t == 0) b->input_ids[t] = cls;
        if (t == n + 1) b->input_ids[t] = sep;
        if (t > n + 1) b->input_ids[t] = bert_vocab_id(vocab, "[PAD]");
        b->attention_mask[t] = t <= n + 1;
    }
    for (int32_t p = 0; p < b->predictions; p++) b->positions[p] = 0, b->labels[p] = -100;
    for (int32_t t = 0; t < n + 2 && masks < b->predictions; t++)
        if (b->input_ids[t] == mask) b->positions[masks] = t, b->labels[masks++] = 0;
    b->next_sentence_label[0] = 0;
    return masks;
}
