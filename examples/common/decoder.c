#include "decoder.h"
#include "causal.h"
#include "fail.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 256 }; /* tokens of a step, by default */

int64_t decoder_bits(int64_t choice) { return choice == 1 ? 8 : choice == 2 ? 4 : 0; }

/* A session with a copy of the parameters of s->share, whole on each rank. */
static bool open_copy(session *copy, session_desc *s, zf_error *error)
{
    session *from = s->share;
    s->dtype = from->dtype, s->sharing = from->sharing;
    s->sharing.stage = 0, s->sharing.micro_batches = 1, s->sharing.hpz = s->sharing.mics = false;
    s->share = NULL;
    if (!session_open(copy, s, error)) return false;
    if (!zf_store_copy(zf_program_store(copy->program), zf_program_store(from->program)))
        return true;
    fail(error, ZF_ERR_BACKEND, "%s", zf_store_error(zf_program_store(copy->program)));
    session_close(copy);
    return false;
}

/* Quantises data [n, k] of a float dtype into a state of the store. */
static bool quantize(zf_store *to, zf_backend *cpu, const zf_stored *state, const zf_stored *from,
                     const void *data, int64_t bits, zf_error *error)
{
    const zf_quantize_desc blocks = causal_blocks(bits);
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor x = zf_input(g, "x", from->dtype, from->shape),
              y = zf_output(zf_quantize(x, &blocks), "y");
    zf_program *p = g ? zf_compile(g, &(zf_compile_desc){.backend = cpu}) : NULL;
    size_t bytes = zf_tensor_bytes(y);
    void *records = malloc(bytes);
    zf_status status = !g || !records ? ZF_ERR_NOMEM : zf_graph_status(g);
    const char *why = status == ZF_ERR_NOMEM ? "out of memory" : zf_graph_error(g);
    if (!status && (status = zf_write(p, x, data, zf_tensor_bytes(x)))) why = zf_program_error(p);
    if (!status && (status = zf_step(p))) why = zf_program_error(p);
    if (!status && (status = zf_read(p, y, records, bytes))) why = zf_program_error(p);
    if (!status && (status = zf_store_write(to, state->name, records, bytes))) why = zf_store_error(to);
    if (status) fail(error, status, "%s: %s", state->name, why);
    free(records);
    zf_program_free(p);
    zf_graph_free(g);
    return !status;
}

/* Copies all that `to` has from another store, which has its weights as floats. */
static bool take_weights(session *to, const session *from, int64_t bits, zf_error *error)
{
    zf_store *mine = zf_program_store(to->program), *theirs = zf_program_store(from->program);
    bool good = true;
    for (int32_t k = 0; k < zf_store_count(mine) && good; k++) {
        zf_stored a = zf_store_at(mine, k);
        int32_t index = zf_store_find(theirs, a.name);
        zf_stored b = zf_store_at(theirs, index);
        size_t bytes = index < 0 ? 0 : (size_t)zf_shape_count(b.shape) * zf_dtype_size(b.dtype);
        void *data = malloc(bytes + 1);
        good = (data || fail(error, ZF_ERR_NOMEM, "out of memory")) &&
               (index >= 0 || fail(error, ZF_ERR_MISMATCH, "there is no weight %s", a.name)) &&
               (!zf_store_read(theirs, b.name, data, bytes) ||
                fail(error, ZF_ERR_BACKEND, "%s", zf_store_error(theirs)));
        if (good && a.state) good = quantize(mine, to->backend, &a, &b, data, bits, error);
        else if (good && zf_store_write(mine, a.name, data, bytes))
            good = fail(error, ZF_ERR_BACKEND, "%s", zf_store_error(mine));
        free(data);
    }
    return good;
}

/* A session whose weights have few bits, by those of s->share or of the folder. *config becomes its
 * configuration. */
static bool open_quantized(session *q, session_desc *s, config_any *config, int64_t bits,
                           const char *load, int64_t dtype, zf_error *error)
{
    const config_table *table = s->sample->config;
    session floats;
    session_desc whole = *s;
    bool good;
    memcpy(config, s->config, table->bytes);
    if (!config_facts_of(table, config).bits)
        return fail(error, ZF_ERR_ARGUMENT, "weights of a %s stay floats", s->sample->title);
    if (s->adapter || (s->share && s->share->world > 1))
        return fail(error, ZF_ERR_ARGUMENT,
                    "weights of few bits are made on one rank, of a model without an adapter: merge "
                    "it before");
    *config_facts_of(table, config).bits = bits;
    whole.purpose = SAMPLE_EVALUATE, whole.shape = (sample_shape){.batch = 1, .sequence = 1};
    if (!s->share && !session_open_folder(&floats, load, &whole, dtype, error)) return false;
    s->config = config, s->dtype = s->share ? s->share->dtype : floats.dtype;
    whole.share = s->share, s->share = NULL;
    good = session_open(q, s, error);
    if (good && !take_weights(q, whole.share ? whole.share : &floats, bits, error)) {
        session_close(q);
        good = false;
    }
    if (!whole.share) session_close(&floats);
    return good;
}

static bool open_programs(decoder *d, const decoder_desc *desc, session_desc *s, const char *load,
                          int64_t dtype, zf_error *error)
{
    config_any config;
    s->purpose = SAMPLE_GENERATE;
    s->shape = (sample_shape){
        .batch = d->texts, .sequence = d->chunk, .predictions = d->context, .rows = SAMPLE_FULL};
    if (desc->bits     ? !open_quantized(&d->prompt, s, &config, desc->bits, load, dtype, error)
        : !s->share    ? !session_open_folder(&d->prompt, load, s, dtype, error)
        : desc->whole  ? !open_copy(&d->prompt, s, error)
                       : !session_open(&d->prompt, s, error))
        return false;
    s->shape.sequence = 1, s->share = &d->prompt;
    return session_open(&d->token, s, error);
}

bool decoder_open(decoder *d, const decoder_desc *desc, session_desc *s, const char *load,
                  int64_t dtype, zf_error *error)
{
    int64_t positions = config_positions(s->sample->config, s->config), texts = desc->texts;
    *d = (decoder){.texts = texts, .context = desc->context, .chunk = desc->chunk};
    if (!d->chunk) d->chunk = CHUNK / texts > 0 ? CHUNK / texts : 1;
    if (d->chunk > d->context) d->chunk = d->context;
    if (d->context > positions)
        return fail(error, ZF_ERR_ARGUMENT,
                    "a context of %lld tokens is too long for the model's %lld positions",
                    (long long)d->context, (long long)positions);
    if (open_programs(d, desc, s, load, dtype, error)) {
        d->vocab = zf_tensor_shape(zf_graph_find(d->token.graph, "logits")).dims[1];
        d->past = calloc((size_t)texts, sizeof *d->past);
        d->logits = calloc((size_t)(texts * d->vocab), sizeof *d->logits);
        d->row = malloc((size_t)(texts * d->vocab) * sizeof *d->row);
        d->ids = malloc((size_t)(texts * d->chunk) * sizeof *d->ids);
        d->at = malloc((size_t)(texts * d->chunk) * sizeof *d->at);
        d->counts = malloc((size_t)(2 * texts) * sizeof *d->counts);
        if (d->past && d->logits && d->row && d->ids && d->at && d->counts) return true;
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
            if (count[k] - done[k] > most) most = count[k] - done[k];
            if (d->counts[k] && done[k] == count[k])
                memcpy(d->logits + k * d->vocab, d->row + k * d->vocab,
                       (size_t)d->vocab * sizeof *d->logits);
        }
    }
    free(done);
    return !status || fail(error, status, "%s", zf_program_error(s->program));
}

void decoder_rewind(decoder *d, int64_t text, int64_t past)
{
    if (past < d->past[text]) d->past[text] = (int32_t)past;
}
