/* The text of an answer as it grows, and what ends it. */
#include <stdlib.h>
#include <string.h>

bool zf_answer_begin(zf_answer *a, const zf_answer_desc *d, zf_error *error)
{
    if (a->ids.failed || a->text.failed) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    if (!a->ids.count)
        return zfl_fail(error, ZF_ERR_ARGUMENT, "the prompt is empty, and no token begins a text");
    if (d->vocab && !zf_ids_check(a->ids.at, a->ids.count, d->vocab, d->tokenizer, d->words, error))
        return false;
    a->given = a->ids.count, a->prompt = a->text.count;
    return !d->tokenizer || zf_token_stream_open(&a->stream, d->tokenizer, ZF_TOKENIZER_NO_SPECIAL,
                                                 a->ids.at, a->ids.count, error);
}

void zf_answer_free(zf_answer *a)
{
    zf_ids_free(&a->ids);
    zf_text_free(&a->text);
    free(a->logp);
    if (a->stream.tokens) zf_token_stream_close(&a->stream);
    *a = (zf_answer){.given = 0};
}

static bool zfl_is_end(const zf_answer_desc *d, int32_t id)
{
    for (int32_t k = 0; k < d->end_count; k++)
        if (d->ends[k] == id) return true;
    return id < 0;
}

/* Adds a token to the text: with a space before it, unless it continues a word or ends a clause. */
static void zfl_add_word(zf_answer *a, const zf_wordpiece *words, int32_t id)
{
    const char *known = zf_wordpiece_token(words, id), *token = known ? known : "";
    const size_t bytes = strlen(token);
    const size_t mark = !strncmp(token, "##", 2) && !zf_wordpiece_starts_word(words, id) ? 2 : 0;
    const bool closes = bytes == 1 && strchr(".,;:!?)", *token);
    if (!mark && !closes && known) zf_text_add_string(&a->text, " ");
    zf_text_add(&a->text, token + mark, bytes - mark);
}

/* Looks for the first of the stop texts in the text, which is new from `from` on; removes it and
 * what follows. */
static void zfl_look_for_stop(zf_answer *a, const zf_answer_desc *d, size_t from)
{
    char *first = NULL;
    for (int32_t k = 0; k < d->stop_count && a->text.at; k++) {
        const char *stop = d->stops[k];
        const size_t n = strlen(stop);
        char *found;
        if (!n) continue;
        found = strstr(a->text.at + (from - a->prompt > n - 1 ? from - (n - 1) : a->prompt), stop);
        if (found && (!first || found < first)) first = found;
    }
    if (!first) return;
    a->text.count = (size_t)(first - a->text.at);
    *first = 0;
    if (!a->done || a->finish == ZF_FINISH_LENGTH) a->finish = ZF_FINISH_STOP;
    a->done = true;
}

bool zf_answer_put(zf_answer *a, const zf_answer_desc *d, int32_t id, zf_error *error)
{
    const size_t from = a->text.count;
    const char *part;
    size_t bytes;
    if (zfl_is_end(d, id)) a->done = true, a->finish = id < 0 ? ZF_FINISH_LENGTH : ZF_FINISH_END;
    if (!a->done || (id >= 0 && d->keep_end)) zf_ids_add(&a->ids, id);
    if (!d->tokenizer) {
        if (!a->done) zfl_add_word(a, d->words, id);
    } else {
        part = a->done ? zf_token_stream_end(&a->stream, &bytes, error)
                       : zf_token_stream_put(&a->stream, id, &bytes, error);
        if (!part) return false;
        zf_text_add(&a->text, part, bytes);
    }
    zfl_look_for_stop(a, d, from);
    return !(a->text.failed || a->ids.failed) || zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
}

/* The bytes at the text's end with which a stop text may begin. */
static size_t zfl_may_stop(const zf_answer *a, const zf_answer_desc *d)
{
    size_t most = 0;
    for (int32_t s = 0; s < d->stop_count; s++) {
        const size_t n = strlen(d->stops[s]);
        for (size_t k = n ? n - 1 : 0; k > most; k--)
            if (k <= a->text.count - a->prompt &&
                !memcmp(a->text.at + a->text.count - k, d->stops[s], k))
                most = k;
    }
    return most;
}

const char *zf_answer_shown(zf_answer *a, const zf_answer_desc *d, size_t *bytes)
{
    const size_t from = a->shown, end = a->text.count - (a->done ? 0 : zfl_may_stop(a, d));
    *bytes = end > from ? end - from : 0;
    a->shown += *bytes;
    return a->text.at ? a->text.at + from : "";
}
