#include "../base/fail.h"
#include "tokens_inside.h"
#include "wordpiece.h"

#include <stdlib.h>
#include <string.h>

void tokens_free(tokens *t)
{
    if (!t) return;
    for (size_t i = 0; i < t->added_count; i++) {
        free(t->added[i].text);
        free(t->added[i].form);
    }
    free(t->added);
    free(t->added_of);
    free(t->raw.nodes);
    free(t->normalized.nodes);
    regex_free(t->word);
    steps_free(&t->normalize);
    steps_free(&t->split);
    steps_free(&t->decode);
    id_list_free(&t->before);
    id_list_free(&t->behind);
    bpe_close(&t->bpe);
    free(t);
}

int32_t tokens_size(const tokens *t) { return t->size; }

static const added_token *added_of(const tokens *t, int32_t id)
{
    return id >= 0 && id < t->size && t->added_of[id] >= 0 ? &t->added[t->added_of[id]] : NULL;
}

const char *tokens_text(const tokens *t, int32_t id, size_t *bytes)
{
    const added_token *added = added_of(t, id);
    const bpe_token *token = &t->bpe.tokens[0];
    if (added) {
        *bytes = added->form ? added->form_bytes : added->bytes;
        return added->form ? added->form : added->text;
    }
    if (id < 0 || id >= t->bpe.size || token[id].bytes < 0) return NULL;
    *bytes = (size_t)token[id].bytes;
    return t->bpe.text.at + token[id].at;
}

int32_t tokens_id(const tokens *t, const char *text)
{
    size_t bytes = strlen(text);
    for (size_t i = 0; i < t->added_count; i++)
        if (t->added[i].bytes == bytes && !memcmp(t->added[i].text, text, bytes))
            return t->added[i].id;
    return bpe_find(&t->bpe, text, bytes);
}

bool tokens_is_special(const tokens *t, int32_t id)
{
    const added_token *added = added_of(t, id);
    return added && added->special;
}

/* ------------------------------------------------------------------------------ added tokens */

static int32_t trie_put(trie *t)
{
    trie_node *nodes = list_grow(t->nodes, t->count, &t->room, sizeof *nodes);
    if (!nodes) return -1;
    t->nodes = nodes;
    t->nodes[t->count] = (trie_node){.added = -1};
    return (int32_t)t->count++;
}

static int32_t trie_child(const trie *t, int32_t node, char byte)
{
    int32_t child = t->nodes[node].child;
    while (child && t->nodes[child].byte != byte) child = t->nodes[child].sibling;
    return child;
}

bool trie_add(trie *t, const char *text, size_t bytes, int32_t added)
{
    int32_t node = 0;
    if (!t->count && trie_put(t) < 0) return false;
    for (size_t i = 0; i < bytes; i++) {
        int32_t child = trie_child(t, node, text[i]);
        if (!child) {
            if ((child = trie_put(t)) < 0) return false;
            t->nodes[child].byte = text[i];
            t->nodes[child].sibling = t->nodes[node].child;
            t->nodes[node].child = child;
        }
        node = child;
    }
    t->nodes[node].added = added;
    return true;
}

/* A search for added tokens in a text, from left to right. */
typedef struct search {
    const tokens *tokens;
    const trie *in;
    const char *text;
    size_t bytes, at, done; /* at: where it continues; done: the end of the last token */
    unsigned flags;
} search;

static void note(void *user, size_t begin, size_t end)
{
    (void)begin, (void)end;
    *(bool *)user = true;
}

/* Whether the character at p belongs to a word. */
static bool is_word(const search *s, const char *p, size_t bytes)
{
    bool is = false;
    zf_error none;
    return regex_each(s->tokens->word, p, bytes, note, &is, &none) && is;
}

static size_t character_before(const char *text, size_t at)
{
    size_t begin = at - 1;
    while (begin && ((unsigned char)text[begin] & 0xC0) == 0x80) begin--;
    return begin;
}

static bool stands_alone(const search *s, size_t begin, size_t end)
{
    const unsigned char *p = (const unsigned char *)s->text;
    uint32_t c;
    if (begin) {
        size_t at = character_before(s->text, begin);
        if (is_word(s, s->text + at, begin - at)) return false;
    }
    if (end == s->bytes) return true;
    return !is_word(s, s->text + end, (size_t)bert_decode(p + end, s->bytes - end, &c));
}

static size_t strip_left(const search *s, size_t begin)
{
    const unsigned char *p = (const unsigned char *)s->text;
    while (begin > s->done) {
        size_t at = character_before(s->text, begin);
        uint32_t c;
        if (!bert_decode(p + at, begin - at, &c) || !bert_is_space(c)) break;
        begin = at;
    }
    return begin;
}

static size_t strip_right(const search *s, size_t end)
{
    const unsigned char *p = (const unsigned char *)s->text;
    uint32_t c;
    while (end < s->bytes) {
        int length = bert_decode(p + end, s->bytes - end, &c);
        if (!length || !bert_is_space(c)) break;
        end += (size_t)length;
    }
    return end;
}

/* The next added token, and its place in the text; NULL: there is none. */
static const added_token *next_added(search *s, size_t *begin, size_t *end)
{
    const trie *in = s->in;
    while (in->count && s->at < s->bytes) {
        const added_token *a;
        int32_t node = 0, found = -1;
        size_t stop = s->at;
        for (size_t at = s->at; at < s->bytes && (node = trie_child(in, node, s->text[at]));)
            if (at++, in->nodes[node].added >= 0) found = in->nodes[node].added, stop = at;
        *begin = s->at, *end = stop;
        s->at = found < 0 ? s->at + 1 : stop;
        if (found < 0) continue;
        a = &s->tokens->added[found];
        if (a->special && s->flags & TOKENS_LITERAL) continue;
        if (a->single_word && !stands_alone(s, *begin, *end)) continue;
        if (a->lstrip) *begin = strip_left(s, *begin);
        if (a->rstrip) *end = strip_right(s, *end);
        return a;
    }
    return NULL;
}

/* ---------------------------------------------------------------------------------- encoding */

typedef struct encoding {
    const tokens *tokens;
    unsigned flags;
    pieces a, b, words, room;
    bpe_work work;
    id_list *out;
    zf_error *error;
} encoding;

/* Encodes normalized text without added tokens. */
static bool encode_words(encoding *e, const char *text, size_t bytes, bool first)
{
    pieces_clear(&e->words);
    pieces_add(&e->words, text, bytes, first);
    if (!steps_run(&e->tokens->split, &e->words, &e->room, e->error)) return false;
    for (size_t i = 0; i < e->words.count; i++) {
        piece p = e->words.list[i];
        if (!bpe_word(&e->tokens->bpe, &e->work, e->words.text.at + p.begin, p.end - p.begin,
                      e->out))
            return fail(e->error, ZF_ERR_NOMEM, "out of memory");
    }
    return true;
}

typedef bool encode_stretch(encoding *, const char *text, size_t bytes, bool first);

/* Splits a text at added tokens of one kind, and encodes the text between them. */
static bool set_apart(encoding *e, const trie *in, const char *text, size_t bytes, bool first,
                      encode_stretch *go_on)
{
    search s = {.tokens = e->tokens, .in = in, .text = text, .bytes = bytes, .flags = e->flags};
    const added_token *a;
    size_t begin, end;
    while ((a = next_added(&s, &begin, &end))) {
        if (begin > s.done && !go_on(e, text + s.done, begin - s.done, first && !s.done))
            return false;
        id_list_add(e->out, a->id);
        s.done = end;
    }
    return s.done >= bytes || go_on(e, text + s.done, bytes - s.done, first && !s.done);
}

/* Normalizes and encodes text between the added tokens that are found before normalization. */
static bool normalize(encoding *e, const char *text, size_t bytes, bool first)
{
    pieces_clear(&e->a);
    pieces_add(&e->a, text, bytes, first);
    return steps_run(&e->tokens->normalize, &e->a, &e->b, e->error) &&
           set_apart(e, &e->tokens->normalized, e->a.text.at, e->a.text.count, first, encode_words);
}

bool tokens_encode(const tokens *t, const char *text, size_t bytes, unsigned flags, id_list *out,
                   zf_error *error)
{
    encoding e = {.tokens = t, .flags = flags, .out = out, .error = error};
    size_t valid = utf8_valid(text, bytes);
    bool good;
    if (valid < bytes)
        return fail(error, ZF_ERR_FORMAT, "the text is not UTF-8 at byte %zu", valid + 1);
    for (size_t i = 0; i < t->before.count && flags & TOKENS_FRAME; i++)
        id_list_add(out, t->before.at[i]);
    good = set_apart(&e, &t->raw, text, bytes, true, normalize);
    for (size_t i = 0; i < t->behind.count && flags & TOKENS_FRAME; i++)
        id_list_add(out, t->behind.at[i]);
    pieces_free(&e.a);
    pieces_free(&e.b);
    pieces_free(&e.words);
    pieces_free(&e.room);
    bpe_work_free(&e.work);
    return good && (!out->failed || fail(error, ZF_ERR_NOMEM, "out of memory"));
}

/* ---------------------------------------------------------------------------------- decoding */

bool tokens_decode(const tokens *t, const int32_t *ids, size_t count, unsigned flags, buffer *out,
                   zf_error *error)
{
    pieces p = {.list = NULL}, room = {.list = NULL};
    bool good;
    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        const char *text = tokens_text(t, ids[i], &bytes);
        if (!text || (flags & TOKENS_NO_SPECIAL && tokens_is_special(t, ids[i]))) continue;
        if (p.count && !t->decodes) buffer_add_text(&p.text, " ");
        pieces_add(&p, text, bytes, !p.count);
    }
    good = steps_run(&t->decode, &p, &room, error);
    if (good && p.text.count) buffer_add(out, p.text.at, p.text.count);
    else if (good) buffer_add_text(out, "");
    pieces_free(&p);
    pieces_free(&room);
    return good && (!out->failed || fail(error, ZF_ERR_NOMEM, "out of memory"));
}

/* maximum of ids that wait for the rest of a character; then they are decoded as they are */
enum { WAITING = 16 };

bool token_stream_open(token_stream *s, const tokens *t, unsigned flags, const int32_t *ids,
                       size_t count, zf_error *error)
{
    size_t from = count > WAITING ? count - WAITING : 0;
    *s = (token_stream){.tokens = t, .flags = flags};
    for (size_t i = from; i < count; i++) id_list_add(&s->ids, ids[i]);
    s->given = s->ids.count;
    if (!s->ids.failed) return true;
    token_stream_close(s);
    return fail(error, ZF_ERR_NOMEM, "out of memory");
}

void token_stream_close(token_stream *s)
{
    id_list_free(&s->ids);
    buffer_free(&s->before);
    buffer_free(&s->text);
}

/* The next text depends on the ids of the last one. */
static const char *give(token_stream *s, size_t from, size_t *bytes)
{
    size_t count = s->ids.count - s->given;
    memmove(s->ids.at, s->ids.at + s->given, count * sizeof *s->ids.at);
    s->ids.count = s->given = count;
    *bytes = s->text.count - from;
    return s->text.at + from;
}

/* Decodes all ids, and those of the last text: the new text begins at *from. */
static bool decode_both(token_stream *s, size_t *from, zf_error *error)
{
    buffer_clear(&s->before);
    buffer_clear(&s->text);
    if (!tokens_decode(s->tokens, s->ids.at, s->given, s->flags, &s->before, error) ||
        !tokens_decode(s->tokens, s->ids.at, s->ids.count, s->flags, &s->text, error))
        return false;
    for (*from = 0; *from < s->before.count && *from < s->text.count; ++*from)
        if (s->before.at[*from] != s->text.at[*from]) break;
    return true;
}

const char *token_stream_put(token_stream *s, int32_t id, size_t *bytes, zf_error *error)
{
    static const char incomplete[] = "\xEF\xBF\xBD";
    size_t from;
    bool waits;
    *bytes = 0;
    id_list_add(&s->ids, id);
    if (s->ids.failed) return fail(error, ZF_ERR_NOMEM, "out of memory"), NULL;
    if (!decode_both(s, &from, error)) return NULL;
    waits = s->text.count >= 3 && s->ids.count - s->given < WAITING &&
            !memcmp(s->text.at + s->text.count - 3, incomplete, 3);
    return waits || from == s->text.count ? "" : give(s, from, bytes);
}

const char *token_stream_end(token_stream *s, size_t *bytes, zf_error *error)
{
    size_t from;
    *bytes = 0;
    if (!s->ids.count) return "";
    return decode_both(s, &from, error) ? give(s, from, bytes) : NULL;
}
