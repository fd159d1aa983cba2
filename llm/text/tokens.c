/* Encoding and decoding by a tokenizer of tokenizer.json. */
#include <stdlib.h>
#include <string.h>

/* The parts of a tokenizer: tokens_file.c fills them in, tokens.c uses them. */
/* Finds the longest added token that begins at a place. */
typedef struct zfl_trie_node {
    int32_t child, sibling; /* 0: none; node 0 is the root */
    int32_t added;          /* token that ends here; -1: none */
    char byte;
} zfl_trie_node;

typedef struct zfl_trie {
    zfl_trie_node *nodes;
    size_t count, room;
} zfl_trie;

typedef struct zfl_added_token {
    char *text;
    size_t bytes;
    char *form; /* normalized tokens: the text that is searched for and decoded; else NULL */
    size_t form_bytes;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} zfl_added_token;

struct zf_tokenizer {
    zfl_bpe bpe;         /* the vocabulary, and how it is merged */
    zfl_unigram unigram; /* scores of the tokens, if it is not merged */
    zfl_added_token *added;
    size_t added_count, added_room;
    int32_t *added_of; /* by id; -1: none */
    int32_t size, numbered; /* numbered: the ids that added_of has, at last all */
    zfl_trie raw, normalized; /* found before normalization; found after it */
    zfl_regex *word;          /* a character of a word; NULL: not needed */
    zfl_steps normalize, split, decode;
    bool decodes;          /* there is a decoder; else tokens are joined with spaces */
    bool literal;          /* special tokens in texts are always ordinary text */
    zf_ids before, after; /* tokens added around a text */
};

void zf_tokenizer_free(zf_tokenizer *t)
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
    zfl_regex_free(t->word);
    zfl_steps_free(&t->normalize);
    zfl_steps_free(&t->split);
    zfl_steps_free(&t->decode);
    zf_ids_free(&t->before);
    zf_ids_free(&t->after);
    zfl_unigram_close(&t->unigram);
    zfl_bpe_close(&t->bpe);
    free(t);
}

int32_t zf_tokenizer_size(const zf_tokenizer *t) { return t->size; }

static const zfl_added_token *zfl_added_of(const zf_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->size && t->added_of[id] >= 0 ? &t->added[t->added_of[id]] : NULL;
}

const char *zf_tokenizer_token(const zf_tokenizer *t, int32_t id, size_t *bytes)
{
    const zfl_added_token *added = zfl_added_of(t, id);
    const zfl_bpe_token *token = &t->bpe.tokens[0];
    if (added) {
        *bytes = added->form ? added->form_bytes : added->bytes;
        return added->form ? added->form : added->text;
    }
    if (id < 0 || id >= t->bpe.size || token[id].bytes < 0) return NULL;
    *bytes = (size_t)token[id].bytes;
    return t->bpe.text.at + token[id].at;
}

int32_t zf_tokenizer_id(const zf_tokenizer *t, const char *text)
{
    size_t bytes = strlen(text);
    for (size_t i = 0; i < t->added_count; i++)
        if (t->added[i].bytes == bytes && !memcmp(t->added[i].text, text, bytes))
            return t->added[i].id;
    return zfl_bpe_find(&t->bpe, text, bytes);
}

bool zf_tokenizer_is_special(const zf_tokenizer *t, int32_t id)
{
    const zfl_added_token *added = zfl_added_of(t, id);
    return added && added->special;
}

/* ------------------------------------------------------------------------------ added tokens */

static int32_t zfl_trie_put(zfl_trie *t)
{
    zfl_trie_node *nodes = zfl_list_grow(t->nodes, t->count, &t->room, sizeof *nodes);
    if (!nodes) return -1;
    t->nodes = nodes;
    t->nodes[t->count] = (zfl_trie_node){.added = -1};
    return (int32_t)t->count++;
}

static int32_t zfl_trie_child(const zfl_trie *t, int32_t node, char byte)
{
    int32_t child = t->nodes[node].child;
    while (child && t->nodes[child].byte != byte) child = t->nodes[child].sibling;
    return child;
}

/* False out of memory. */
static bool zfl_trie_add(zfl_trie *t, const char *text, size_t bytes, int32_t added)
{
    int32_t node = 0;
    if (!t->count && zfl_trie_put(t) < 0) return false;
    for (size_t i = 0; i < bytes; i++) {
        int32_t child = zfl_trie_child(t, node, text[i]);
        if (!child) {
            if ((child = zfl_trie_put(t)) < 0) return false;
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
typedef struct zfl_search {
    const zf_tokenizer *tokens;
    const zfl_trie *in;
    const char *text;
    size_t bytes, at, done; /* at: where it continues; done: the end of the last token */
    unsigned flags;
} zfl_search;

static void zfl_note(void *user, size_t begin, size_t end)
{
    (void)begin, (void)end;
    *(bool *)user = true;
}

/* Whether the character at p belongs to a word. */
static bool zfl_tokens_is_word(const zfl_search *s, const char *p, size_t bytes)
{
    bool is = false;
    zf_error none;
    return zfl_regex_each(s->tokens->word, p, bytes, zfl_note, &is, &none) && is;
}

static size_t zfl_character_before(const char *text, size_t at)
{
    size_t begin = at - 1;
    while (begin && ((unsigned char)text[begin] & 0xC0) == 0x80) begin--;
    return begin;
}

static bool zfl_stands_alone(const zfl_search *s, size_t begin, size_t end)
{
    const unsigned char *p = (const unsigned char *)s->text;
    uint32_t c;
    if (begin) {
        size_t at = zfl_character_before(s->text, begin);
        if (zfl_tokens_is_word(s, s->text + at, begin - at)) return false;
    }
    if (end == s->bytes) return true;
    return !zfl_tokens_is_word(s, s->text + end,
                               (size_t)zfl_utf8_decode(p + end, s->bytes - end, &c));
}

static size_t zfl_strip_left(const zfl_search *s, size_t begin)
{
    const unsigned char *p = (const unsigned char *)s->text;
    while (begin > s->done) {
        size_t at = zfl_character_before(s->text, begin);
        uint32_t c;
        if (!zfl_utf8_decode(p + at, begin - at, &c) || !zfl_is_space(c)) break;
        begin = at;
    }
    return begin;
}

static size_t zfl_strip_right(const zfl_search *s, size_t end)
{
    const unsigned char *p = (const unsigned char *)s->text;
    uint32_t c;
    while (end < s->bytes) {
        int length = zfl_utf8_decode(p + end, s->bytes - end, &c);
        if (!length || !zfl_is_space(c)) break;
        end += (size_t)length;
    }
    return end;
}

/* The next added token, and its place in the text; NULL: there is none. */
static const zfl_added_token *zfl_next_added(zfl_search *s, size_t *begin, size_t *end)
{
    const zfl_trie *in = s->in;
    while (in->count && s->at < s->bytes) {
        const zfl_added_token *a;
        int32_t node = 0, found = -1;
        size_t stop = s->at;
        for (size_t at = s->at; at < s->bytes && (node = zfl_trie_child(in, node, s->text[at]));)
            if (at++, in->nodes[node].added >= 0) found = in->nodes[node].added, stop = at;
        *begin = s->at, *end = stop;
        s->at = found < 0 ? s->at + 1 : stop;
        if (found < 0) continue;
        a = &s->tokens->added[found];
        if (a->special && s->flags & ZF_TOKENIZER_LITERAL) continue;
        if (a->single_word && !zfl_stands_alone(s, *begin, *end)) continue;
        if (a->lstrip) *begin = zfl_strip_left(s, *begin);
        if (a->rstrip) *end = zfl_strip_right(s, *end);
        return a;
    }
    return NULL;
}

/* ---------------------------------------------------------------------------------- encoding */

typedef struct zfl_encoding {
    const zf_tokenizer *tokens;
    unsigned flags;
    zfl_pieces a, b, words, room;
    zfl_bpe_work work;
    zfl_unigram_work ways;
    zf_ids *out;
    zf_error *error;
} zfl_encoding;

static bool zfl_encode_piece(zfl_encoding *e, const char *text, size_t bytes)
{
    const zf_tokenizer *t = e->tokens;
    if (t->unigram.scores)
        return zfl_unigram_word(&t->unigram, &t->bpe, &e->ways, text, bytes, e->out, e->error);
    return zfl_bpe_word(&t->bpe, &e->work, text, bytes, e->out) ||
           zfl_fail(e->error, ZF_ERR_NOMEM, "out of memory");
}

/* Encodes normalized text without added tokens. */
static bool zfl_encode_words(zfl_encoding *e, const char *text, size_t bytes, bool first)
{
    zfl_pieces_clear(&e->words);
    zfl_pieces_add(&e->words, text, bytes, first);
    if (!zfl_steps_run(&e->tokens->split, &e->words, &e->room, e->error)) return false;
    for (size_t i = 0; i < e->words.count; i++) {
        zfl_piece p = e->words.list[i];
        if (!zfl_encode_piece(e, e->words.text.at + p.begin, p.end - p.begin)) return false;
    }
    return true;
}

typedef bool zfl_encode_stretch(zfl_encoding *, const char *text, size_t bytes, bool first);

/* Splits a text at added tokens of one kind, and encodes the text between them. */
static bool zfl_set_apart(zfl_encoding *e, const zfl_trie *in, const char *text, size_t bytes,
                          bool first, zfl_encode_stretch *go_on)
{
    zfl_search s = {.tokens = e->tokens, .in = in, .text = text, .bytes = bytes, .flags = e->flags};
    const zfl_added_token *a;
    size_t begin, end;
    while ((a = zfl_next_added(&s, &begin, &end))) {
        if (begin > s.done && !go_on(e, text + s.done, begin - s.done, first && !s.done))
            return false;
        zf_ids_add(e->out, a->id);
        s.done = end;
    }
    return s.done >= bytes || go_on(e, text + s.done, bytes - s.done, first && !s.done);
}

/* Normalizes and encodes text between the added tokens that are found before normalization. */
static bool zfl_normalize(zfl_encoding *e, const char *text, size_t bytes, bool first)
{
    zfl_pieces_clear(&e->a);
    zfl_pieces_add(&e->a, text, bytes, first);
    return zfl_steps_run(&e->tokens->normalize, &e->a, &e->b, e->error) &&
           zfl_set_apart(e, &e->tokens->normalized, e->a.text.at, e->a.text.count, first,
                         zfl_encode_words);
}

bool zf_tokenizer_encode(const zf_tokenizer *t, const char *text, size_t bytes, unsigned flags,
                         zf_ids *out, zf_error *error)
{
    const unsigned split = t->literal ? ZF_TOKENIZER_LITERAL : 0;
    zfl_encoding e = {.tokens = t, .flags = flags | split, .out = out, .error = error};
    size_t valid = zfl_utf8_valid(text, bytes);
    bool good;
    if (valid < bytes)
        return zfl_fail(error, ZF_ERR_FORMAT, "the text is not UTF-8 at byte %zu", valid + 1);
    for (size_t i = 0; i < t->before.count && flags & ZF_TOKENIZER_FRAME; i++)
        zf_ids_add(out, t->before.at[i]);
    good = zfl_set_apart(&e, &t->raw, text, bytes, true, zfl_normalize);
    for (size_t i = 0; i < t->after.count && flags & ZF_TOKENIZER_FRAME; i++)
        zf_ids_add(out, t->after.at[i]);
    zfl_pieces_free(&e.a);
    zfl_pieces_free(&e.b);
    zfl_pieces_free(&e.words);
    zfl_pieces_free(&e.room);
    zfl_bpe_work_free(&e.work);
    free(e.ways.nodes);
    return good && (!out->failed || zfl_fail(error, ZF_ERR_NOMEM, "out of memory"));
}

/* ---------------------------------------------------------------------------------- decoding */

bool zf_tokenizer_decode(const zf_tokenizer *t, const int32_t *ids, size_t count, unsigned flags,
                         zf_text *out, zf_error *error)
{
    zfl_pieces p = {.list = NULL}, room = {.list = NULL};
    bool good;
    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        const char *text = zf_tokenizer_token(t, ids[i], &bytes);
        if (!text || (flags & ZF_TOKENIZER_NO_SPECIAL && zf_tokenizer_is_special(t, ids[i])))
            continue;
        if (p.count && !t->decodes) zf_text_add_string(&p.text, " ");
        zfl_pieces_add(&p, text, bytes, !p.count);
    }
    good = zfl_steps_run(&t->decode, &p, &room, error);
    if (good && p.text.count) zf_text_add(out, p.text.at, p.text.count);
    else if (good) zf_text_add_string(out, "");
    zfl_pieces_free(&p);
    zfl_pieces_free(&room);
    return good && (!out->failed || zfl_fail(error, ZF_ERR_NOMEM, "out of memory"));
}

bool zf_ids_check(const int32_t *ids, size_t count, int64_t vocab, const zf_tokenizer *tokens,
                  const zf_wordpiece *words, zf_error *error)
{
    const char *text = NULL;
    char shown[101] = "";
    size_t i = 0, bytes;
    while (i < count && ids[i] >= 0 && ids[i] < vocab) i++;
    if (i == count) return true;
    if (tokens) text = zf_tokenizer_token(tokens, ids[i], &bytes);
    else if (words) text = zf_wordpiece_token(words, ids[i]);
    if (text) snprintf(shown, sizeof shown, "%s", text);
    for (char *at = shown; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7F) *at = '?'; /* nothing for a terminal */
    return zfl_fail(error, ZF_ERR_MISMATCH,
                    "the token \"%s\" of the text has the id %d, and the model has only %lld "
                    "ids: it needs the tokenizer that it was trained with",
                    shown, (int)ids[i], (long long)vocab);
}

/* maximum of ids that wait for the rest of a character; then they are decoded as they are */
enum { ZFL_WAITING = 16 };

bool zf_token_stream_open(zf_token_stream *s, const zf_tokenizer *t, unsigned flags,
                          const int32_t *ids, size_t count, zf_error *error)
{
    size_t from = count > ZFL_WAITING ? count - ZFL_WAITING : 0;
    *s = (zf_token_stream){.tokens = t, .flags = flags};
    for (size_t i = from; i < count; i++) zf_ids_add(&s->ids, ids[i]);
    s->given = s->ids.count;
    if (!s->ids.failed) return true;
    zf_token_stream_close(s);
    return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
}

void zf_token_stream_close(zf_token_stream *s)
{
    zf_ids_free(&s->ids);
    zf_text_free(&s->before);
    zf_text_free(&s->text);
}

/* The next text depends on the ids of the last one. */
static const char *zfl_tokens_give(zf_token_stream *s, size_t from, size_t *bytes)
{
    size_t count = s->ids.count - s->given;
    memmove(s->ids.at, s->ids.at + s->given, count * sizeof *s->ids.at);
    s->ids.count = s->given = count;
    *bytes = s->text.count - from;
    return s->text.at + from;
}

/* Decodes all ids, and those of the last text: the new text begins at *from. */
static bool zfl_decode_both(zf_token_stream *s, size_t *from, zf_error *error)
{
    zf_text_clear(&s->before);
    zf_text_clear(&s->text);
    if (!zf_tokenizer_decode(s->tokens, s->ids.at, s->given, s->flags, &s->before, error) ||
        !zf_tokenizer_decode(s->tokens, s->ids.at, s->ids.count, s->flags, &s->text, error))
        return false;
    for (*from = 0; *from < s->before.count && *from < s->text.count; ++*from)
        if (s->before.at[*from] != s->text.at[*from]) break;
    return true;
}

const char *zf_token_stream_put(zf_token_stream *s, int32_t id, size_t *bytes, zf_error *error)
{
    static const char incomplete[] = "\xEF\xBF\xBD";
    size_t from;
    bool waits;
    *bytes = 0;
    zf_ids_add(&s->ids, id);
    if (s->ids.failed) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory"), NULL;
    if (!zfl_decode_both(s, &from, error)) return NULL;
    waits = s->text.count >= 3 && s->ids.count - s->given < ZFL_WAITING &&
            !memcmp(s->text.at + s->text.count - 3, incomplete, 3);
    return waits || from == s->text.count ? "" : zfl_tokens_give(s, from, bytes);
}

const char *zf_token_stream_end(zf_token_stream *s, size_t *bytes, zf_error *error)
{
    size_t from;
    *bytes = 0;
    if (!s->ids.count) return "";
    return zfl_decode_both(s, &from, error) ? zfl_tokens_give(s, from, bytes) : NULL;
}
