/* The next tokens of several texts, by two programs over the same caches.
 *
 *     text 0   | past            | new tokens | room ...      |
 *     text 1   | past    | new tokens    | room ...           |
 *              0                                           context
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool zf_decoder_open(zf_decoder *d, const zf_decoder_desc *desc, zf_error *error)
{
    const size_t texts = (size_t)desc->texts, cells = texts * (size_t)desc->prompt.tokens;
    size_t logits;
    *d = (zf_decoder){.prompt = desc->prompt,
                      .token = desc->token,
                      .texts = desc->texts,
                      .context = desc->context,
                      .rings = desc->rings};
    d->vocab = zf_tensor_shape(zf_graph_find(d->token.graph, "logits")).dims[1];
    logits = texts * (size_t)d->vocab;
    d->past = calloc(texts, sizeof *d->past);
    d->most = calloc(texts, sizeof *d->most);
    d->logits = calloc(logits, sizeof *d->logits);
    d->row = malloc(logits * sizeof *d->row);
    d->ids = malloc(cells * sizeof *d->ids);
    d->at = malloc(cells * sizeof *d->at);
    d->counts = malloc(2 * texts * sizeof *d->counts);
    if (d->past && d->most && d->logits && d->row && d->ids && d->at && d->counts) return true;
    zf_decoder_close(d);
    return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
}

void zf_decoder_close(zf_decoder *d)
{
    free(d->past);
    free(d->most);
    free(d->logits);
    free(d->row);
    free(d->ids);
    free(d->at);
    free(d->counts);
    *d = (zf_decoder){.texts = 0};
}

/* Sets ids, places and counts of the next tokens of text k, of which `done` were added before. */
static void zfl_fill_text(zf_decoder *d, int64_t length, int64_t k, const int32_t *ids,
                          int64_t count, int64_t done)
{
    const int64_t left = count - done, n = left < length ? left : length;
    int32_t *last = d->counts + d->texts;
    for (int64_t t = 0; t < length; t++) { /* padding: token 0 at position 0 */
        d->ids[k * length + t] = t < n ? ids[done + t] : 0;
        d->at[k * length + t] = t < n ? d->past[k] + (int32_t)t : 0;
    }
    d->counts[k] = (int32_t)n;
    last[k] = (int32_t)(k * length + (n > 0 ? n - 1 : 0));
}

/* Writes an input; ignores one that the model does not have. */
static zf_status zfl_write_input(const zf_decode_step *s, const char *name, const void *data,
                                 size_t bytes)
{
    const zf_tensor input = zf_graph_find(s->graph, name);
    return zf_valid(input) ? zf_write(s->program, input, data, bytes) : ZF_OK;
}

/* Runs a step with the next tokens of each text, of which done[k] were added before. */
static zf_status zfl_run_decode_step(zf_decoder *d, const zf_decode_step *s,
                                     const int32_t *const *ids, const int64_t *count,
                                     const int64_t *done)
{
    const size_t each = (size_t)d->texts * sizeof *d->ids, cells = each * (size_t)s->tokens;
    zf_status status;
    for (int64_t k = 0; k < d->texts; k++)
        zfl_fill_text(d, s->tokens, k, ids[k], count[k], done[k]);
    status = zfl_write_input(s, "input_ids", d->ids, cells);
    if (!status) status = zfl_write_input(s, "positions", d->at, cells);
    if (!status) status = zfl_write_input(s, "past", d->past, each);
    if (!status) status = zfl_write_input(s, "count", d->counts, each);
    if (!status) status = zfl_write_input(s, "last", d->counts + d->texts, each);
    if (!status) status = zf_step(s->program);
    if (status) return status;
    return zf_read(s->program, zf_graph_find(s->graph, "logits"), d->row,
                   (size_t)(d->texts * d->vocab) * sizeof *d->row);
}

/* After a step: what has been added, and the logits of the texts that are complete. Returns the
 * number of tokens that are still to be added, the largest of all texts. */
static int64_t zfl_after_step(zf_decoder *d, const int64_t *count, int64_t *done)
{
    int64_t most = 0;
    for (int64_t k = 0; k < d->texts; k++) {
        done[k] += d->counts[k], d->past[k] += d->counts[k];
        if (d->past[k] > d->most[k]) d->most[k] = d->past[k];
        if (count[k] - done[k] > most) most = count[k] - done[k];
        if (d->counts[k] && done[k] == count[k])
            memcpy(d->logits + k * d->vocab, d->row + k * d->vocab,
                   (size_t)d->vocab * sizeof *d->logits);
    }
    return most;
}

/* Whether one of the logits is larger than all others can be: neither NaN nor infinite, and not all
 * of them minus infinity. */
static bool zfl_has_choice(const float *logits, int64_t count)
{
    bool any = false;
    for (int64_t v = 0; v < count; v++) {
        if (!(logits[v] < INFINITY)) return false;
        any = any || logits[v] > -INFINITY;
    }
    return any;
}

/* The logits of texts that have new tokens. */
static bool zfl_expect_finite(const zf_decoder *d, const int64_t *count, zf_error *error)
{
    for (int64_t k = 0; k < d->texts; k++)
        if (count[k] && !zfl_has_choice(d->logits + k * d->vocab, d->vocab))
            return zfl_fail(error, ZF_ERR_NAN,
                            "the logits after token %lld of text %lld are not finite numbers",
                            (long long)d->past[k], (long long)k + 1);
    return true;
}

/* Adds count[k] tokens to each text by steps of one program. */
static zf_status zfl_add_by(zf_decoder *d, const zf_decode_step *s, const int32_t *const *ids,
                            const int64_t *count, int64_t *done)
{
    int64_t most = 0;
    zf_status status = ZF_OK;
    for (int64_t k = 0; k < d->texts; k++) {
        done[k] = 0;
        if (count[k] > most) most = count[k];
    }
    while (most > 0 && !status) {
        status = zfl_run_decode_step(d, s, ids, count, done);
        if (!status) most = zfl_after_step(d, count, done);
    }
    return status;
}

/* Temporary caches that another program has overwritten are cleared for texts that begin; the
 * others are gone. */
static bool zfl_begin_again(zf_decoder *d, const int64_t *count, zf_error *error)
{
    zf_status status;
    if (zf_has_caches(d->prompt.program)) return true;
    for (int64_t k = 0; k < d->texts; k++)
        if (d->past[k] && count[k])
            return zfl_fail(error, ZF_ERR_STAGE,
                            "another program has run in the memory of the caches "
                            "(zf_compile_desc.temporary_caches): text %lld, of %lld tokens, begins "
                            "anew (zf_decoder_rewind)",
                            (long long)k + 1, (long long)d->past[k]);
    for (int64_t k = 0; k < d->texts; k++) d->past[k] = d->most[k] = 0;
    status = zf_clear_caches(d->prompt.program);
    return !status || zfl_fail(error, status, "%s", zf_program_error(d->prompt.program));
}

/* Which program takes the tokens of a text depends on no other text: that of prompts takes the
 * first ones and several at a time. */
bool zf_decoder_add(zf_decoder *d, const int32_t *const *ids, const int64_t *count, zf_error *error)
{
    const zf_decode_step *s = &d->prompt;
    int64_t *prompt, *token, *done;
    zf_status status;
    if (!zfl_begin_again(d, count, error)) return false;
    if (!(prompt = calloc(3 * (size_t)d->texts, sizeof *prompt)))
        return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    token = prompt + d->texts, done = token + d->texts;
    for (int64_t k = 0; k < d->texts; k++) {
        *(count[k] > 1 || !d->past[k] ? &prompt[k] : &token[k]) = count[k];
        if (d->past[k] + count[k] <= d->context) continue;
        free(prompt);
        return zfl_fail(error, ZF_ERR_ARGUMENT,
                        "a text of %lld tokens and %lld more is too long for a context of %lld",
                        (long long)d->past[k], (long long)count[k], (long long)d->context);
    }
    d->prompt_seconds -= zfl_now();
    status = zfl_add_by(d, s, ids, prompt, done);
    d->prompt_seconds += zfl_now();
    if (!status) s = &d->token, status = zfl_add_by(d, s, ids, token, done);
    free(prompt);
    if (status) return zfl_fail(error, status, "%s", zf_program_error(s->program));
    return zfl_expect_finite(d, count, error);
}

void zf_decoder_blame(const zf_decoder *d, zf_error *error)
{
    zf_error none = {ZF_OK, ""};
    const zf_tensor param = zf_weights_not_finite(d->token.program, d->token.graph, &none);
    const size_t at = strlen(error->text);
    if (none.status) return;
    if (zf_valid(param))
        snprintf(error->text + at, sizeof error->text - at,
                 "; the weight %.200s has a value that is not a finite number",
                 zf_tensor_name(param));
    else
        snprintf(
            error->text + at, sizeof error->text - at,
            "; all weights are finite: numbers grow too large for the dtype of the computation");
}

int64_t zf_decoder_rewind(zf_decoder *d, int64_t text, int64_t past)
{
    if (past > d->past[text]) past = d->past[text];
    /* A ring has as many tokens in addition to the window as a step adds. A new text needs none of
     * them. */
    if (d->rings && d->most[text] - past >= d->prompt.tokens) past = d->most[text] = 0;
    return d->past[text] = (int32_t)past;
}
