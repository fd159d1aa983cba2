/* Many answers by one decoder: the texts of the decoder are rows, and a row whose answer has ended
 * gets the next one that waits.
 *
 *     row 0   | prompt 0 | answer ... end | prompt 3 | answer ...
 *     row 1   | prompt 1     | answer ............. end | ...
 */
#include <stdlib.h>

typedef struct zfl_queue {
    const zf_answers_desc *d;
    zf_answer *answers;
    int64_t count, next; /* answers; the first of those that wait */
    int64_t *answer;     /* [texts]: whose row it is; -1: nobody's */
    int64_t *news;       /* [texts]: tokens that the decoder has not seen */
    const int32_t **ids; /* [texts] */
    zf_sampler sampler;
} zfl_queue;

static bool zfl_queue_open(zfl_queue *r, zf_error *error)
{
    const zf_decoder *decoder = r->d->decoder;
    const size_t texts = (size_t)decoder->texts;
    zf_sampling how = r->d->sampling;
    if (how.top_p == 0) how.top_p = 1;
    if (how.repetition == 0) how.repetition = 1;
    r->answer = malloc(texts * sizeof *r->answer);
    r->news = calloc(texts, sizeof *r->news);
    r->ids = calloc(texts, sizeof *r->ids);
    for (size_t k = 0; k < texts && r->answer; k++) r->answer[k] = -1;
    return (r->answer && r->news && r->ids && zf_sampler_open(&r->sampler, &how, decoder->vocab)) ||
           zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
}

static void zfl_queue_close(zfl_queue *r)
{
    zf_sampler_close(&r->sampler);
    free(r->answer);
    free(r->news);
    free(r->ids);
}

/* Row k goes on with the next answer. */
static bool zfl_take_next(zfl_queue *r, int64_t k, zf_error *error)
{
    zf_answer *a = &r->answers[r->next];
    if (r->d->logp && !(a->logp = calloc((size_t)r->d->tokens, sizeof *a->logp)))
        return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    r->answer[k] = r->next++;
    r->news[k] = (int64_t)a->ids.count;
    zf_decoder_rewind(r->d->decoder, k, 0);
    return true;
}

/* Gives rows to answers that wait. A step with prompts computes all rows of the decoder, so it
 * waits until a quarter of them is free. False with *error, and where no row has an answer. */
static bool zfl_refill(zfl_queue *r, zf_error *error)
{
    const int64_t texts = r->d->decoder->texts;
    int64_t free_rows = 0;
    for (int64_t k = 0; k < texts; k++) free_rows += r->answer[k] < 0;
    if (4 * free_rows >= texts)
        for (int64_t k = 0; k < texts && r->next < r->count; k++) {
            if (r->answer[k] >= 0) continue;
            if (!zfl_take_next(r, k, error)) return false;
            free_rows--;
        }
    return free_rows < texts;
}

/* The decoder sees the new tokens of all rows. */
static bool zfl_add_news(zfl_queue *r, zf_error *error)
{
    zf_decoder *decoder = r->d->decoder;
    for (int64_t k = 0; k < decoder->texts; k++) {
        const zf_ids *ids = r->answer[k] < 0 ? NULL : &r->answers[r->answer[k]].ids;
        if (!ids) continue;
        if (r->d->slides && decoder->past[k] + r->news[k] > decoder->context) {
            zf_decoder_rewind(decoder, k, 0);
            r->news[k] = (decoder->context + 1) / 2;
        }
        r->ids[k] = ids->at + ids->count - r->news[k];
    }
    return zf_decoder_add(decoder, r->ids, r->news, error);
}

/* Draws the next token of row k. An answer that has ended leaves its row. */
static bool zfl_draw_next(zfl_queue *r, int64_t k, zf_error *error)
{
    const zf_answers_desc *d = r->d;
    zf_answer *a = &r->answers[r->answer[k]];
    const int64_t place = (int64_t)a->ids.count, drawn = place - (int64_t)a->given;
    const int32_t id = zf_sampler_draw(&r->sampler, d->decoder->logits + k * d->decoder->vocab,
                                       a->ids.at, place, zf_sampler_dice(d->seed, a->owner, place));
    if (a->logp) a->logp[drawn] = (float)zf_sampler_logp(&r->sampler, id);
    if (!zf_answer_put(a, d->how, id, error) ||
        (!a->done && drawn + 1 == d->tokens && !zf_answer_put(a, d->how, -1, error)))
        return false;
    if (d->show) d->show(d->user, a);
    r->news[k] = !a->done;
    if (a->done) r->answer[k] = -1;
    return true;
}

static bool zfl_write_queue(zfl_queue *r, zf_error *error)
{
    while (zfl_refill(r, error)) {
        if (!zfl_add_news(r, error)) return false;
        for (int64_t k = 0; k < r->d->decoder->texts; k++)
            if (r->answer[k] >= 0 && !zfl_draw_next(r, k, error)) return false;
    }
    return !error->status;
}

static bool zfl_answers_fit(const zf_answer *answers, int64_t count, const zf_answers_desc *d,
                            zf_error *error)
{
    const long long most = d->tokens, context = d->decoder->context;
    for (int64_t k = 0; k < count && !d->slides; k++)
        if ((long long)answers[k].ids.count + most > context)
            return zfl_fail(error, ZF_ERR_ARGUMENT,
                            "a prompt of %lld tokens and %lld more are too long for a context of "
                            "%lld",
                            (long long)answers[k].ids.count, most, context);
    return true;
}

bool zf_answers_write(zf_answer *answers, int64_t count, const zf_answers_desc *d, zf_error *error)
{
    zfl_queue r = {.d = d, .answers = answers, .count = count};
    bool good;
    *error = (zf_error){ZF_OK, ""};
    good = zfl_answers_fit(answers, count, d, error) && zfl_queue_open(&r, error) &&
           zfl_write_queue(&r, error);
    zfl_queue_close(&r);
    if (error->status == ZF_ERR_NAN) zf_decoder_blame(d->decoder, error);
    return good;
}
