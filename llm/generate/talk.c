/* A conversation that goes on by turns: what the caches have of it is not computed again. */
#include <stdlib.h>
#include <string.h>

bool zf_talk_say(zf_talk *t, const char *role, const char *text, size_t bytes, zf_error *error)
{
    const size_t room = t->room ? 2 * t->room : 16;
    zf_chat_message *messages = t->messages;
    char *copy = malloc(bytes + 1);
    if (copy && t->count == t->room) {
        if ((messages = realloc(messages, room * sizeof *messages)))
            t->messages = messages, t->room = room;
    }
    if (!copy || !messages) {
        free(copy);
        return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    }
    if (bytes) memcpy(copy, text, bytes);
    copy[bytes] = 0;
    messages[t->count++] = (zf_chat_message){role, copy, bytes};
    return true;
}

void zf_talk_forget(zf_talk *t, size_t count)
{
    while (t->count > count) free((void *)(uintptr_t)t->messages[--t->count].text);
}

void zf_talk_free(zf_talk *t)
{
    zf_talk_forget(t, 0);
    free(t->messages);
    zf_ids_free(&t->seen);
    *t = (zf_talk){.messages = NULL};
}

/* The conversation as tokens, after which the answer begins. */
static bool zfl_begin_turn(zf_talk *t, const zf_answers_desc *d, zf_answer *a, zf_error *error)
{
    const long long context = d->decoder->context, most = d->tokens;
    zf_json *conversation = zf_chat_of(t->messages, t->count, error);
    const bool good = conversation && zf_answer_prompt_chat(d->how, conversation, &a->ids, error);
    zf_json_free(conversation);
    if (good && (long long)a->ids.count + most > context)
        return zfl_fail(error, ZF_ERR_LIMIT,
                        "this chat has %lld tokens, and with %lld for the answer there are more "
                        "than the context of %lld",
                        (long long)a->ids.count, most, context);
    return good && zf_answer_begin(a, d->how, error);
}

/* The decoder sees the tokens that its caches do not have. */
static bool zfl_see_turn(zf_talk *t, zf_decoder *decoder, const zf_answer *a, zf_error *error)
{
    const int32_t *next = a->ids.at + t->seen.count;
    const int64_t count = (int64_t)(a->ids.count - t->seen.count);
    if (!zf_decoder_add(decoder, &next, &count, error)) return false;
    while (t->seen.count < a->ids.count && !t->seen.failed)
        zf_ids_add(&t->seen, a->ids.at[t->seen.count]);
    return !t->seen.failed || zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
}

static bool zfl_write_turn(zf_talk *t, const zf_answers_desc *d, zf_sampler *sampler, zf_answer *a,
                           zf_error *error)
{
    for (int64_t n = 0; !a->done; n++) {
        int32_t id = -1;
        if (n < d->tokens) {
            if (!zfl_see_turn(t, d->decoder, a, error)) return false;
            id = zf_sampler_draw(sampler, d->decoder->logits, a->ids.at, (int64_t)a->ids.count,
                                 zf_sampler_dice(d->seed, a->owner, (int64_t)a->ids.count));
        }
        if (!zf_answer_put(a, d->how, id, error)) return false;
        if (d->show) d->show(d->user, a);
    }
    return true;
}

bool zf_talk_answer(zf_talk *t, const zf_answers_desc *d, zf_answer *a, zf_error *error)
{
    zf_sampling how = d->sampling;
    zf_sampler sampler;
    size_t same = 0;
    bool good;
    if (how.top_p == 0) how.top_p = 1;
    if (how.repetition == 0) how.repetition = 1;
    if (!zfl_begin_turn(t, d, a, error)) return false;
    if (!zf_sampler_open(&sampler, &how, d->decoder->vocab))
        return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    a->owner = zf_sampler_owner(a->ids.at, a->given, 0);
    while (same < t->seen.count && same + 1 < a->ids.count && t->seen.at[same] == a->ids.at[same])
        same++;
    t->seen.count = (size_t)zf_decoder_rewind(d->decoder, 0, (int64_t)same);
    good = zfl_write_turn(t, d, &sampler, a, error);
    zf_sampler_close(&sampler);
    if (error->status == ZF_ERR_NAN) zf_decoder_blame(d->decoder, error);
    return good && zf_talk_say(t, "assistant", a->text.at ? a->text.at : "", a->text.count, error);
}
