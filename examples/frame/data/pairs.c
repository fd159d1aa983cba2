#include "pairs.h"
#include "corpus.h"
#include "../options/fail.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- reading */

enum { CHOSEN, REJECTED, ANSWERS };

typedef struct reader {
    const zf_examples_desc *desc;
    pairs *p;
    int answers; /* of a line: ANSWERS, or 1 */
    zf_examples_text text;
    zf_text before;          /* that of the prompt */
    char end[ZF_CHAT_TOKEN]; /* what ends an answer of the template; "": not known */
    zf_error *error;
} reader;

static bool out_of_memory(zf_error *error) { return fail(error, ZF_ERR_NOMEM, "out of memory"); }

/* Room for another text of `count` tokens. */
static bool make_room(pairs *p, size_t count, zf_error *error)
{
    const size_t texts = 2 * (size_t)p->count + 2;
    while (p->token_room < (size_t)p->tokens + count) {
        size_t room = p->token_room ? 2 * p->token_room : 4096;
        int32_t *ids = realloc(p->ids, room * sizeof *ids);
        if (!ids) return out_of_memory(error);
        p->ids = ids, p->token_room = room;
    }
    while (p->room < texts + 1) {
        size_t room = p->room ? 2 * p->room : 64;
        int64_t *at = realloc(p->at, room * sizeof *at), *before;
        double *margin;
        if (at) p->at = at;
        if (!at || !(before = realloc(p->before, room * sizeof *before)))
            return out_of_memory(error);
        p->before = before;
        if (!(margin = realloc(p->margin, room / 2 * sizeof *margin))) return out_of_memory(error);
        p->margin = margin, p->room = room;
    }
    return true;
}

/* Appends the tokens of answer `which`, of which `before` come before the answer. */
static bool put_text(reader *r, int which, size_t before)
{
    pairs *p = r->p;
    const zf_ids *ids = &r->text.ids;
    const int64_t text = r->answers * p->count + which;
    if (!make_room(p, ids->count, r->error)) return false;
    memcpy(p->ids + p->tokens, ids->at, ids->count * sizeof *p->ids);
    for (size_t i = 0; i < ids->count; i++)
        p->digest = bert_mix(p->digest ^ (uint64_t)(uint32_t)ids->at[i]);
    p->begins = bert_mix(p->begins ^ ((uint64_t)ids->count << 32 | before));
    p->at[text] = p->tokens, p->before[text] = (int64_t)before;
    p->tokens += (int64_t)ids->count;
    p->at[text + 1] = p->tokens;
    if ((int64_t)ids->count > p->longest) p->longest = (int64_t)ids->count;
    return true;
}

/* Whether these ids are none, or all the end token. */
static bool only_ends(const zf_examples_desc *d, const int32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] != d->end) return false;
    return true;
}

/* Takes r->text, whose answer `which` begins at byte `begin`. v: the answer, for messages. */
static bool take_text(reader *r, const zf_json *v, int which, size_t begin, unsigned flags,
                      bool ends)
{
    const int32_t end = r->desc->end;
    zf_ids *ids = &r->text.ids;
    size_t before;
    if (!zf_examples_encode(&r->text, flags, r->error) ||
        !zf_examples_ids_before(&r->text, begin, flags, false, &before, r->error))
        return false;
    if (only_ends(r->desc, ids->at + before, ids->count - before))
        return zf_json_fail(v, r->error, "is an answer without a token but that of its end"), false;
    if (!before)
        return zf_json_fail(v, r->error, "has no token before its answer: the prompt is empty"),
               false;
    if (end >= 0 && !ends && ids->at[ids->count - 1] != end) zf_ids_add(ids, end);
    if (ids->failed) return out_of_memory(r->error);
    if ((int64_t)ids->count > r->desc->sequence)
        return zf_json_fail(v, r->error,
                            "has %zu tokens, with those of the prompt: more than the %lld of --seq",
                            ids->count, (long long)r->desc->sequence),
               false;
    return zf_examples_ids_fit(&r->text, r->error) && put_text(r, which, before);
}

/* Both texts of a pair are there. */
static bool finish_pair(reader *r, const zf_json *v)
{
    pairs *p = r->p;
    const int64_t *at = p->at + 2 * p->count, chosen = at[1] - at[0], rejected = at[2] - at[1];
    if (chosen == rejected &&
        !memcmp(p->ids + at[0], p->ids + at[1], (size_t)chosen * sizeof *p->ids))
        return zf_json_fail(zf_json_member(v, "rejected"), r->error, "equals \"chosen\""), false;
    p->margin[p->count] = 0;
    if (zf_json_to_double(zf_json_member(v, "margin"), -1e6, 1e6, &p->margin[p->count], r->error))
        return false;
    if (p->margin[p->count] != 0)
        p->digest = bert_mix(p->digest ^ (uint64_t)(int64_t)(1e6 * p->margin[p->count]));
    p->count++;
    return true;
}

/* ---------------------------------------------------------------------------------- strings */

/* Bytes of the common beginning of two strings: whole characters, without a space at its end. */
static size_t common_bytes(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t n = 0;
    while (n < a_bytes && n < b_bytes && a[n] == b[n]) n++;
    while (n && n < a_bytes && ((unsigned char)a[n] & 0xc0) == 0x80) n--;
    if (n && a[n - 1] == ' ') n--;
    return n;
}

/* Prompt and answer as they are. */
static bool take_strings(reader *r, const zf_json *v, int which, const char *prompt, size_t bytes)
{
    size_t count;
    const char *answer = zf_json_string(v, &count);
    zf_text_clear(&r->text.text);
    zf_text_add(&r->text.text, prompt, bytes);
    zf_text_add(&r->text.text, answer, count);
    return take_text(r, v, which, bytes, ZF_TOKENIZER_FRAME, false);
}

/* The common beginning of two strings is their prompt. */
static bool read_whole_strings(reader *r, const zf_json *v, const zf_json *const answer[ANSWERS])
{
    size_t bytes[ANSWERS], common;
    const char *a = zf_json_string(answer[CHOSEN], &bytes[CHOSEN]),
               *b = zf_json_string(answer[REJECTED], &bytes[REJECTED]);
    if (bytes[CHOSEN] == bytes[REJECTED] && !memcmp(a, b, bytes[CHOSEN]))
        return zf_json_fail(answer[REJECTED], r->error, "equals \"chosen\""), false;
    common = common_bytes(a, bytes[CHOSEN], b, bytes[REJECTED]);
    if (!common)
        return zf_json_fail(v, r->error,
                            "has no prompt, and \"chosen\" and \"rejected\" have no "
                            "common beginning"),
               false;
    for (int k = 0; k < ANSWERS; k++) {
        const char *text = zf_json_string(answer[k], NULL);
        zf_text_clear(&r->text.text);
        zf_text_add(&r->text.text, text, bytes[k]);
        if (!take_text(r, answer[k], k, common, ZF_TOKENIZER_FRAME, false)) return false;
    }
    return true;
}

/* --------------------------------------------------------------------------------- messages */

/* Adds messages: a string is one of this role, of a list the elements from `first` on, `count`. */
static void add_messages(zf_text *out, const zf_json *v, const char *role, int64_t first,
                         int64_t count)
{
    if (zf_json_type_of(v) == ZF_JSON_STRING) {
        zf_text_add_string(out, "{\"role\": \""), zf_text_add_string(out, role);
        zf_text_add_string(out, "\", \"content\": "), zf_text_add_json(out, v);
        zf_text_add_string(out, "}");
        return;
    }
    for (int64_t k = first; k < first + count; k++) {
        if (k > first) zf_text_add_string(out, ", ");
        zf_text_add_json(out, zf_json_element(v, k));
    }
}

/* A prompt, and an answer or NULL. */
typedef struct conversation {
    const zf_json *line, *prompt, *answer;
    int64_t prompt_messages, first; /* of lists: of the prompt; where the answer is in its list */
} conversation;

/* The conversation as a template takes it, to be freed; NULL with *error. */
static zf_json *messages_of(const conversation *c, zf_error *error)
{
    zf_text text = {.at = NULL};
    zf_json *out = NULL;
    zf_text_add_string(&text, "{");
    for (const zf_json *m = zf_json_first(c->line); m; m = zf_json_next(m)) {
        const char *key = zf_json_key(m, NULL);
        if (strcmp(key, "tools") && strcmp(key, "documents") && strcmp(key, "chat_template_kwargs"))
            continue;
        zf_text_add_json_member(&text, m), zf_text_add_string(&text, ", ");
    }
    zf_text_add_string(&text, "\"messages\": [");
    add_messages(&text, c->prompt, "user", 0, c->prompt_messages);
    if (c->answer) zf_text_add_string(&text, ", ");
    if (c->answer) add_messages(&text, c->answer, "assistant", c->first, 1);
    zf_text_add_string(&text, "]}");
    if (text.failed) out_of_memory(error);
    else out = zf_json_parse(text.at, text.count, NULL, error);
    zf_text_free(&text);
    return out;
}

/* Writes the conversation by the template. */
static bool write_chat(reader *r, const conversation *c, zf_text *out)
{
    zf_json *messages = messages_of(c, r->error);
    bool good = messages && zf_chat_write(r->desc->chat, messages, !c->answer, out, NULL, r->error);
    zf_json_free(messages);
    return good && (!out->failed || out_of_memory(r->error));
}

static size_t trimmed(const char *text, size_t bytes)
{
    while (bytes && strchr(" \t\r\n", text[bytes - 1])) bytes--;
    return bytes;
}

/* Whether the text, trimmed to `bytes`, ends with this. */
static bool ends_with(const char *text, size_t bytes, const char *end)
{
    const size_t n = strlen(end);
    return n && bytes >= n && !memcmp(text + bytes - n, end, n);
}

/* An answer without a word: its content is blank, or an end token. */
static bool is_empty(const reader *r, const zf_json *v)
{
    const zf_json *calls = zf_json_member(v, "tool_calls"), *content = zf_json_member(v, "content");
    size_t bytes = 0, first;
    const char *text = zf_json_string(zf_json_type_of(v) == ZF_JSON_STRING ? v : content, &bytes);
    if (!text) return zf_json_length(content) <= 0 && zf_json_length(calls) <= 0;
    first = strspn(text, " \t\r\n");
    bytes = first < bytes ? trimmed(text + first, bytes - first) : 0;
    text += first;
    return (!bytes || (ends_with(text, bytes, r->end) && bytes == strlen(r->end)) ||
            (ends_with(text, bytes, r->desc->chat->end) && bytes == strlen(r->desc->chat->end))) &&
           zf_json_length(calls) <= 0;
}

/* Takes answer `which`; r->before has the text of the prompt and the beginning of an answer. */
static bool take_message(reader *r, const conversation *c, int which)
{
    const zf_json *v = c->answer;
    zf_text *text = &r->text.text;
    size_t bytes;
    bool ends;
    if (zf_json_type_of(v) != ZF_JSON_STRING) v = zf_json_element(v, c->first);
    if (is_empty(r, v))
        return zf_json_fail(v, r->error, "is an answer without a token but that of its end"), false;
    zf_text_clear(text);
    if (!write_chat(r, c, text)) return false;
    if (text->count < r->before.count || memcmp(text->at, r->before.at, r->before.count))
        return zf_json_fail(
                   v, r->error,
                   "changes what the template writes before it: give another one (--chat)"),
               false;
    bytes = trimmed(text->at, text->count);
    ends = ends_with(text->at, bytes, r->end) || ends_with(text->at, bytes, r->desc->chat->end);
    if (ends && bytes > r->before.count) text->count = bytes, text->at[bytes] = 0;
    return take_text(r, c->answer, which, r->before.count, 0, ends);
}

static bool take_messages(reader *r, conversation c, const zf_json *const answer[ANSWERS],
                          int64_t first)
{
    c.answer = NULL;
    zf_text_clear(&r->before);
    if (!write_chat(r, &c, &r->before)) return false;
    c.first = first;
    for (int k = 0; k < r->answers; k++) {
        c.answer = answer[k];
        if (!take_message(r, &c, k)) return false;
    }
    return true;
}

static bool is_equal(const zf_json *a, const zf_json *b)
{
    const zf_json_type type = zf_json_type_of(a);
    size_t m = 0, n = 0;
    const char *p, *q;
    if (type != zf_json_type_of(b)) return false;
    if (type == ZF_JSON_OBJECT || type == ZF_JSON_ARRAY) {
        const zf_json *v = zf_json_first(a), *w = zf_json_first(b);
        for (; v && w; v = zf_json_next(v), w = zf_json_next(w)) {
            p = zf_json_key(v, &m), q = zf_json_key(w, &n);
            if ((p || q) && (!p || !q || m != n || memcmp(p, q, m))) return false;
            if (!is_equal(v, w)) return false;
        }
        return !v && !w;
    }
    if (type == ZF_JSON_BOOL) {
        bool flags[2] = {false, false};
        zf_json_to_bool(a, &flags[0], NULL), zf_json_to_bool(b, &flags[1], NULL);
        return flags[0] == flags[1];
    }
    if (type == ZF_JSON_NULL) return true;
    p = type == ZF_JSON_STRING ? zf_json_string(a, &m) : zf_json_number(a, &m);
    q = type == ZF_JSON_STRING ? zf_json_string(b, &n) : zf_json_number(b, &n);
    return m == n && !memcmp(p, q, m);
}

/* Each answer is one message of the assistant, element `first` of its list and the last. */
static bool are_answers(reader *r, const zf_json *const answer[ANSWERS], int64_t first)
{
    for (int k = 0; k < r->answers; k++) {
        const zf_json *v = zf_json_element(answer[k], first);
        const char *role = zf_json_string(zf_json_member(v, "role"), NULL);
        if (zf_json_length(answer[k]) == first)
            return zf_json_fail(answer[k], r->error, "has no answer after the prompt"), false;
        if (zf_json_length(answer[k]) != first + 1)
            return zf_json_fail(answer[k], r->error,
                                "has %lld messages after the prompt: one is "
                                "the answer",
                                (long long)(zf_json_length(answer[k]) - first)),
                   false;
        if (!role || strcmp(role, "assistant"))
            return zf_json_fail(v, r->error, "is not a message of the assistant"), false;
    }
    return true;
}

/* Lists, with or without a prompt. */
static bool read_lists(reader *r, const zf_json *v, const zf_json *prompt,
                       const zf_json *const answer[ANSWERS])
{
    conversation c = {.line = v, .prompt = prompt ? prompt : answer[CHOSEN]};
    int64_t first = 0;
    if (!r->desc->chat)
        return zf_json_fail(answer[CHOSEN], r->error, "needs the style of its chats: %s",
                            ZF_CHAT_STYLES),
               false;
    if (r->answers > 1 && is_equal(answer[CHOSEN], answer[REJECTED]))
        return zf_json_fail(answer[REJECTED], r->error, "equals \"chosen\""), false;
    if (!prompt && r->answers == 1) first = zf_json_length(answer[CHOSEN]) - 1;
    else if (!prompt)
        while (is_equal(zf_json_element(answer[CHOSEN], first),
                        zf_json_element(answer[REJECTED], first)))
            first++;
    c.prompt_messages = prompt ? zf_json_length(prompt) : first;
    if (c.prompt_messages < 1)
        return zf_json_fail(v, r->error,
                            prompt
                                ? "has an empty prompt"
                                : "has no prompt, and \"chosen\" and \"rejected\" have no common "
                                  "beginning"),
               false;
    return are_answers(r, answer, first) && take_messages(r, c, answer, first);
}

/* ------------------------------------------------------------------------------------ lines */

/* All are strings, or all are lists of messages. */
static bool are_alike(reader *r, const zf_json *prompt, const zf_json *const answer[ANSWERS])
{
    const zf_json_type type = zf_json_type_of(prompt ? prompt : answer[CHOSEN]);
    if (type != ZF_JSON_STRING && type != ZF_JSON_ARRAY)
        return zf_json_expected(prompt ? prompt : answer[CHOSEN], r->error,
                                "a string or a list of messages"),
               false;
    for (int k = 0; k < r->answers; k++)
        if (zf_json_type_of(answer[k]) != type)
            return zf_json_expected(answer[k], r->error,
                                    type == ZF_JSON_STRING
                                        ? "a string, as the others are"
                                        : "a list of messages, as the others are"),
                   false;
    return true;
}

static bool read_strings(reader *r, const zf_json *v, const zf_json *prompt,
                         const zf_json *const answer[ANSWERS])
{
    const conversation c = {.line = v, .prompt = prompt};
    size_t bytes;
    const char *text;
    if (!prompt) return read_whole_strings(r, v, answer);
    if (r->desc->chat) return take_messages(r, c, answer, 0);
    text = zf_json_string(prompt, &bytes);
    for (int k = 0; k < r->answers; k++)
        if (!take_strings(r, answer[k], k, text, bytes)) return false;
    return true;
}

/* All answers of a line, after its prompt or NULL. */
static bool read_answers(reader *r, const zf_json *v, const zf_json *prompt,
                         const zf_json *const answer[ANSWERS])
{
    if (zf_json_type_of(prompt) == ZF_JSON_NULL) prompt = NULL;
    if (!are_alike(r, prompt, answer)) return false;
    return zf_json_type_of(answer[CHOSEN]) == ZF_JSON_STRING ? read_strings(r, v, prompt, answer)
                                                             : read_lists(r, v, prompt, answer);
}

static bool read_pair(void *user, const zf_json *v, zf_error *error)
{
    static const char *const names[ANSWERS] = {"chosen", "rejected"};
    reader *r = user;
    const zf_json *answer[ANSWERS];
    r->error = error;
    for (int k = 0; k < ANSWERS; k++)
        if (!(answer[k] = zf_json_require(v, names[k], error))) return false;
    return read_answers(r, v, zf_json_member(v, "prompt"), answer) && finish_pair(r, v);
}

/* A prompt and its answer, or messages of which the last one is the answer. */
static bool read_text(void *user, const zf_json *v, zf_error *error)
{
    reader *r = user;
    const zf_json *messages = zf_json_member(v, "messages"), *prompt = NULL;
    const char *key = zf_json_member(v, "completion") ? "completion" : "response";
    const zf_json *const answer[ANSWERS] = {messages ? messages : zf_json_require(v, key, error)};
    r->error = error;
    if (!answer[0] || (!messages && !(prompt = zf_json_require(v, "prompt", error)))) return false;
    if (messages && zf_json_type_of(messages) != ZF_JSON_ARRAY)
        return zf_json_expected(messages, error, "a list of messages"), false;
    if (prompt && zf_json_type_of(prompt) == ZF_JSON_NULL)
        return zf_json_expected(prompt, error, "a string or a list of messages"), false;
    if (!read_answers(r, v, prompt, answer)) return false;
    r->p->margin[r->p->count++] = 0;
    return true;
}

/* Lines of so many answers. */
static bool load(pairs *p, const char *path, const zf_examples_desc *d, int answers,
                 zf_examples_line *line, zf_error *error)
{
    reader r = {.desc = d, .p = p, .answers = answers, .text.desc = d};
    bool good;
    *p = (pairs){.count = 0};
    error->status = ZF_OK;
    good = (!d->chat || zf_chat_end(d->chat, r.end, error)) && zf_examples_read(path, line, &r, error);
    zf_examples_text_free(&r.text);
    zf_text_free(&r.before);
    return good;
}

bool pairs_load_texts(pairs *p, const char *path, const zf_examples_desc *d, zf_error *error)
{
    const bool good = load(p, path, d, 1, read_text, error);
    if (!good) pairs_free(p);
    return good && (p->count || fail(error, ZF_ERR_FORMAT, "%s has no text", path));
}

bool pairs_load(pairs *p, const char *path, const zf_examples_desc *d, zf_error *error)
{
    bool good = load(p, path, d, ANSWERS, read_pair, error);
    if (good && p->count < (d->evaluates ? 1 : 2))
        good = fail(error, ZF_ERR_FORMAT, "%s: %lld pairs: %s", path, (long long)p->count,
                    d->evaluates ? "there is nothing to evaluate"
                                 : "one to train on and one to be held out are needed");
    good = good && (p->order = zf_examples_order(d, p->count, &p->held_out, error));
    if (!good) pairs_free(p);
    return good;
}

void pairs_free(pairs *p)
{
    free(p->ids);
    free(p->at);
    free(p->before);
    free(p->margin);
    free(p->order);
    *p = (pairs){.count = 0};
}

/* ---------------------------------------------------------------------------------- batches */

bool pairs_batch_new(pairs_batch *b, int64_t count, int64_t sequence, zf_error *error)
{
    const size_t texts = 2 * (size_t)count, tokens = texts * (size_t)sequence;
    *b = (pairs_batch){.pairs = count, .sequence = sequence};
    b->ids = malloc(tokens * sizeof *b->ids);
    b->labels = malloc(tokens * sizeof *b->labels);
    b->lengths = malloc(texts * sizeof *b->lengths);
    b->predicted = malloc(texts * sizeof *b->predicted);
    b->text = malloc(texts * sizeof *b->text);
    if (b->ids && b->labels && b->lengths && b->predicted && b->text) return true;
    pairs_batch_free(b);
    return out_of_memory(error);
}

void pairs_batch_free(pairs_batch *b)
{
    free(b->ids);
    free(b->labels);
    free(b->lengths);
    free(b->predicted);
    free(b->text);
    *b = (pairs_batch){.pairs = 0};
}

int64_t pairs_text(const pairs *p, int64_t k) { return 2 * p->order[k]; }

/* Text `text` becomes a row; -1: it is empty. */
static void fill(const pairs *p, pairs_batch *b, int64_t row, int64_t text)
{
    int32_t *ids = b->ids + row * b->sequence, *labels = b->labels + row * b->sequence;
    const int64_t from = text < 0 ? 0 : p->at[text], count = text < 0 ? 0 : p->at[text + 1] - from;
    const int64_t before = text < 0 ? 0 : p->before[text];
    for (int64_t i = 0; i < b->sequence; i++) {
        ids[i] = i < count ? p->ids[from + i] : 0;
        labels[i] = i + 1 >= before && i + 1 < count ? p->ids[from + i + 1] : -100;
    }
    b->lengths[row] = (int32_t)count, b->predicted[row] = (int32_t)(count - before);
    b->text[row] = text;
}

/* The pair whose chosen text has this number becomes pair k of the batch; -1: it is empty. */
static void fill_pair(const pairs *p, pairs_batch *b, int64_t k, int64_t text)
{
    fill(p, b, 2 * k, text);
    fill(p, b, 2 * k + 1, text < 0 ? -1 : text + 1);
    b->filled += text >= 0;
}

void pairs_read(const pairs *p, pairs_batch *b, bool held_out, uint64_t seed, int64_t first)
{
    const int64_t train = p->count - p->held_out;
    b->filled = 0;
    for (int64_t k = 0; k < b->pairs; k++) {
        const int64_t at = first + k;
        const int64_t text = !held_out
                                 ? pairs_text(p, p->held_out + zf_examples_drawn(at, train, seed))
                             : at < p->held_out ? pairs_text(p, at)
                                                : -1;
        fill_pair(p, b, k, text);
    }
}

void pairs_read_file(const pairs *p, pairs_batch *b, int64_t first)
{
    b->filled = 0;
    for (int64_t k = 0; k < b->pairs; k++)
        fill_pair(p, b, k, first + k < p->count ? 2 * (first + k) : -1);
}
