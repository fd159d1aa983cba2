/* The ids of a prompt. */
#include <stdlib.h>

static bool zfl_prompt_words(const zf_answer_desc *d, const char *text, size_t bytes, zf_ids *out,
                             zf_error *error)
{
    const int64_t count = zf_wordpiece_encode(d->words, text, bytes, 0, NULL, 0);
    int32_t *ids = malloc((size_t)(count + 1) * sizeof *ids);
    if (!ids) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    zf_wordpiece_encode(d->words, text, bytes, 0, ids, count);
    zf_ids_add(out, d->begin); /* a text begins after the end of another */
    for (int64_t i = 0; i < count; i++) zf_ids_add(out, ids[i]);
    free(ids);
    return !out->failed || zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
}

bool zf_answer_prompt_chat(const zf_answer_desc *d, const zf_json *conversation, zf_ids *out,
                           zf_error *error)
{
    zf_text text = {.at = NULL};
    const bool good = zf_chat_write(d->chat, conversation, true, &text, NULL, error) &&
                      zf_tokenizer_encode(d->tokenizer, text.at, text.count, 0, out, error);
    zf_text_free(&text);
    return good;
}

bool zf_answer_prompt(const zf_answer_desc *d, const char *text, size_t bytes, zf_ids *out,
                      zf_error *error)
{
    const size_t first = out->count;
    if (d->chat) {
        const zf_chat_message m = {"user", text, bytes};
        zf_json *conversation = zf_chat_of(&m, 1, error);
        const bool good = conversation && zf_answer_prompt_chat(d, conversation, out, error);
        zf_json_free(conversation);
        return good;
    }
    if (!d->tokenizer) return zfl_prompt_words(d, text, bytes, out, error);
    if (!zf_tokenizer_encode(d->tokenizer, text, bytes, ZF_TOKENIZER_FRAME, out, error))
        return false;
    while (out->count > first + 1 && zfl_is_end(d, out->at[out->count - 1])) out->count--;
    return true;
}
