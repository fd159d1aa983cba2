#include "decoder.h"
#include "causal.h"
#include "../../../llm/base/fail.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 256 }; /* tokens of a step, by default */

/* A session with a copy of the parameters of s->share, whole on each rank. */
static bool open_copy(session *copy, session_desc *s, zf_error *error)
{
    session *from = s->share;
    s->training = (zf_training){.lora = from->training.lora,
                                .precision = from->training.precision,
                                .tile = from->training.tile};
    s->comm = from->comm, s->share = NULL;
    if (!session_open(copy, s, error)) return false;
    if (!zf_store_copy(zf_program_store(copy->program), zf_program_store(from->program)))
        return true;
    fail(error, ZF_ERR_BACKEND, "%s", zf_store_error(zf_program_store(copy->program)));
    session_close(copy);
    return false;
}

static bool open_programs(decoder *d, const decoder_desc *desc, session_desc *s, const char *load,
                          int64_t dtype, zf_error *error)
{
    s->purpose = SAMPLE_GENERATE;
    s->shape = (sample_shape){
        .batch = d->texts, .sequence = d->chunk, .predictions = d->context, .rows = SAMPLE_FULL,
        .chunk = d->chunk};
    if (!s->share     ? !session_open_folder(&d->prompt, load, s, dtype, error)
        : desc->whole ? !open_copy(&d->prompt, s, error)
                      : !session_open(&d->prompt, s, error))
        return false;
    s->shape.sequence = 1, s->share = &d->prompt;
    return session_open(&d->token, s, error);
}

bool decoder_open(decoder *d, const decoder_desc *desc, session_desc *s, const char *load,
                  int64_t dtype, zf_error *error)
{
    int64_t positions = config_positions(s->sample->config, s->config), texts = desc->texts;
    int64_t window = config_window(s->sample->config, s->config);
    *d = (decoder){.texts = texts, .context = desc->context, .chunk = desc->chunk};
    if (!d->chunk) d->chunk = CHUNK / texts > 0 ? CHUNK / texts : 1;
    if (d->chunk > d->context) d->chunk = d->context;
    d->rings = causal_ring(window, d->context, d->chunk) > 0;
    if (d->context > positions)
        return fail(error, ZF_ERR_ARGUMENT,
                    "a context of %lld tokens is too long for the model's %lld positions",
                    (long long)d->context, (long long)positions);
    if (open_programs(d, desc, s, load, dtype, error)) {
        d->vocab = zf_tensor_shape(zf_graph_find(d->token.graph, "logits")).dims[1];
        d->past = calloc((size_t)texts, sizeof *d->past);
        d->most = calloc((size_t)texts, sizeof *d->most);
        d->logits = calloc((size_t)(texts * d->vocab), sizeof *d->logits);
        d->row = malloc((size_t)(texts * d->vocab) * sizeof *d->row);
        d->ids = malloc((size_t)(texts * d->chunk) * sizeof *d->ids);
        d->at = malloc((size_t)(texts * d->chunk) * sizeof *d->at);
        d->counts = malloc((size_t)(2 * texts) * sizeof *d->counts);
        if (d->past && d->most && d->logits && d->row && d->ids && d->at && d->counts) return true;
        fail(error, ZF_ERR_NOMEM, "out of memory");
    }
    decoder_close(d);
    return false;
}

void decoder_close(decoder *d)
{
    session_close(&d->token);
    session_close(&d->prompt);
    free(d->past);
    free(d->most);
    free(d->logits);
    free(d->row);
    free(d->ids);
    free(d->at);
    free(d->counts);
    *d = (decoder){.texts = 0};
}

/* Runs a step with the next tokens of each text, of which done[k] were added before. */
static zf_status run(decoder *d, session *s, const int32_t *const *ids, const int64_t *count,
                     const int64_t *done)
{
    int64_t length = s->shape.sequence;
    int32_t *last = d->counts + d->texts;
    size_t cells = (size_t)(d->texts * length) * sizeof *d->ids, each = (size_t)d->texts * 4;
    zf_status status;
    for (int64_t k = 0; k < d->texts; k++) {
        int64_t left = count[k] - done[k], n = left < length ? left : length;
        for (int64_t t = 0; t < length; t++) { /* padding: token 0 at position 0 */
            d->ids[k * length + t] = t < n ? ids[k][done[k] + t] : 0;
            d->at[k * length + t] = t < n ? d->past[k] + (int32_t)t : 0;
        }
        d->counts[k] = (int32_t)n;
        last[k] = (int32_t)(k * length + (n > 0 ? n - 1 : 0));
    }
    status = session_write(s, "input_ids", d->ids, cells);
    if (!status) status = session_write(s, "positions", d->at, cells);
    if (!status) status = session_write(s, "past", d->past, each);
    if (!status) status = session_write(s, "count", d->counts, each);
    if (!status) status = session_write(s, "last", last, each);
    if (!status) status = zf_step(s->program);
    if (status) return status;
    return zf_read(s->program, zf_graph_find(s->graph, "logits"), d->row,
                   (size_t)(d->texts * d->vocab) * sizeof *d->row);
}

bool decoder_add(decoder *d, const int32_t *const *ids, const int64_t *count, zf_error *error)
{
    int64_t *done = calloc((size_t)d->texts, sizeof *done), most = 0;
    zf_status status = ZF_OK;
    session *s = &d->token;
    if (!done) return fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t k = 0; k < d->texts; k++) {
        if (count[k] > most) most = count[k];
        if (d->past[k] + count[k] <= d->context) continue;
        free(done);
        return fail(error, ZF_ERR_ARGUMENT,
                    "a text of %lld tokens and %lld more is too long for a context of %lld",
                    (long long)d->past[k], (long long)count[k], (long long)d->context);
    }
    while (most > 0 && !status) {
        s = most > 1 ? &d->prompt : &d->token;
        status = run(d, s, ids, count, done);
        most = 0;
        for (int64_t k = 0; k < d->texts && !status; k++) {
            done[k] += d->counts[k], d->past[k] += d->counts[k];
            if (d->past[k] > d->most[k]) d->most[k] = d->past[k];
            if (count[k] - done[k] > most) most = count[k] - done[k];
            if (d->counts[k] && done[k] == count[k])
                memcpy(d->logits + k * d->vocab, d->row + k * d->vocab,
                       (size_t)d->vocab * sizeof *d->logits);
        }
    }
    free(done);
    return !status || fail(error, status, "%s", zf_program_error(s->program));
}

int64_t decoder_rewind(decoder *d, int64_t text, int64_t past)
{
    if (past > d->past[text]) past = d->past[text];
    /* A ring has as many tokens beside the window as a step adds. A new text needs none of them. */
    if (d->rings && d->most[text] - past >= d->chunk) past = d->most[text] = 0;
    return d->past[text] = (int32_t)past;
}
