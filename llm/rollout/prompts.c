/* The prompts of a file of JSON Lines. */
#include <stdlib.h>
#include <string.h>

/* The line as a conversation: its member "prompt" is named "messages". */
static zf_json *zfl_prompt_chat(const zf_prompt *p, const zf_json *value, zf_error *error)
{
    const char *line = p->text.at, *key, *after;
    zf_text text = {.at = NULL};
    zf_json *chat = NULL;
    int64_t row, column;
    zf_json_where(value, &row, &column);
    for (after = line; column > 1; column--) /* a column is a character */
        while ((*++after & 0xC0) == 0x80) continue;
    while (*--after != '"') continue; /* the key's last quotation mark */
    for (key = after; *--key != '"';) continue;
    zf_text_add(&text, line, (size_t)(key - line));
    zf_text_add_string(&text, "\"messages\"");
    zf_text_add_string(&text, after + 1);
    if (text.failed) zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    else chat = zf_json_parse(text.at, text.count, NULL, error);
    zf_text_free(&text);
    return chat;
}

static bool zfl_prompt_ids(zf_prompt *p, const zf_prompts_desc *d, zf_error *error)
{
    const zf_json *v = zf_json_require(p->data, "prompt", error);
    size_t bytes;
    const char *text = zf_json_string(v, &bytes);
    zf_json *chat;
    bool good;
    if (error->status) return false;
    if (text) return zf_answer_prompt(d->how, text, bytes, &p->ids, error);
    if (zf_json_type_of(v) != ZF_JSON_ARRAY)
        return zf_json_expected(v, error, "a text or a list of messages"), false;
    if (!d->how->chat)
        return zf_json_fail(v, error, "is a list of messages, which needs the style of its chats"),
               false;
    chat = zfl_prompt_chat(p, v, error);
    good = chat && zf_answer_prompt_chat(d->how, chat, &p->ids, error);
    zf_json_free(chat);
    return good;
}

static bool zfl_prompt_read(zf_prompt *p, const zf_prompts_desc *d, zf_error *error)
{
    p->data = zf_json_parse(p->text.at, p->text.count, NULL, error);
    if (!p->data) return false;
    if (zf_json_type_of(p->data) != ZF_JSON_OBJECT)
        return zf_json_expected(p->data, error, "an object"), false;
    if (!zfl_prompt_ids(p, d, error)) return false;
    if (!p->ids.count)
        return zfl_fail(error, ZF_ERR_FORMAT, "the prompt is empty, and no token begins a text");
    if (d->longest && (int64_t)p->ids.count > d->longest)
        return zfl_fail(error, ZF_ERR_ARGUMENT, "the prompt has %zu tokens, at most %lld fit",
                        p->ids.count, (long long)d->longest);
    return !d->how->vocab || zf_ids_check(p->ids.at, p->ids.count, d->how->vocab, d->how->tokenizer,
                                          d->how->words, error);
}

static void zfl_prompt_free(zf_prompt *p)
{
    zf_json_free(p->data);
    zf_text_free(&p->text);
    zf_ids_free(&p->ids);
}

/* Room for one more; NULL out of memory. */
static zf_prompt *zfl_prompt_new(zf_prompts *p)
{
    zf_prompt *at = p->at;
    if (!(p->count & (p->count - 1))) /* a power of two, or 0 */
        at = realloc(p->at, (size_t)(p->count ? 2 * p->count : 1) * sizeof *at);
    if (!at) return NULL;
    p->at = at;
    at[p->count] = (zf_prompt){.number = p->count};
    return &at[p->count++];
}

static bool zfl_prompts_line(zf_prompts *p, const char *line, size_t bytes, int64_t number,
                             const zf_prompts_desc *d, zf_error *error)
{
    zf_prompt *new = zfl_prompt_new(p);
    zf_error why = {ZF_OK, ""};
    if (!new) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    new->line = number;
    zf_text_add(&new->text, line, bytes);
    if (new->text.failed) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    if (zfl_prompt_read(new, d, &why)) return true;
    if (why.status == ZF_ERR_NOMEM) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    return zfl_fail(error, why.status, "%s: line %lld: %.250s", p->name, (long long)number,
                    why.text);
}

/* The bytes of a line without white space at its ends. */
static const char *zfl_trimmed(const char *at, size_t *bytes)
{
    while (*bytes && strchr(" \t\r\n", at[*bytes - 1])) --*bytes;
    while (*bytes && strchr(" \t\r\n", *at)) at++, --*bytes;
    return at;
}

bool zf_prompts_read(zf_prompts *p, const char *path, const zf_prompts_desc *d, zf_error *error)
{
    zf_text text = {.at = NULL};
    int64_t number = 1;
    bool good;
    *p = (zf_prompts){.at = NULL};
    *error = (zf_error){ZF_OK, ""};
    snprintf(p->name, sizeof p->name, "%s", path);
    good = zf_text_read_plain(path, &text, error);
    for (size_t at = 0; at < text.count && good; number++) {
        const char *line = text.at + at, *end = memchr(line, '\n', text.count - at);
        size_t bytes = end ? (size_t)(end - line) : text.count - at;
        at += bytes + 1;
        line = zfl_trimmed(line, &bytes);
        good = !bytes || zfl_prompts_line(p, line, bytes, number, d, error);
    }
    if (good && !p->count) good = zfl_fail(error, ZF_ERR_FORMAT, "%s has no prompt", path);
    zf_text_free(&text);
    if (!good) zf_prompts_free(p);
    return good;
}

void zf_prompts_free(zf_prompts *p)
{
    for (int64_t k = 0; k < p->count; k++) zfl_prompt_free(&p->at[k]);
    free(p->at);
    *p = (zf_prompts){.at = NULL};
}
