/* Text to WordPiece ids.
 *
 *     bytes --decode--> characters --clean, fold, split--> one word, as UTF-8 --match--> ids
 *
 * Only one word is in memory at a time, so a text may have any length. unicode.h decomposes single
 * characters; canonical order is completed here: a combining character that accent stripping keeps
 * (some vowel signs, stems of notes) moves before those of a higher combining class, but never past
 * a starter. */
#include "wordpiece.h"
#include "wordpiece_unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const bert_special_tokens[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

/* ---------------------------------------------------------------------------------------- words */

int bert_decode(const unsigned char *p, size_t n, uint32_t *c)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    int length = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    *c = p[0];
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xC2 || p[0] > 0xF4 || (size_t)length > n) return 0;
    *c &= 0x7Fu >> length;
    for (int i = 1; i < length; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
        *c = *c << 6 | (p[i] & 0x3Fu);
    }
    return *c < least[length] || *c > 0x10FFFF || (*c >= 0xD800 && *c < 0xE000) ? 0 : length;
}

bool bert_is_space(uint32_t c)
{
    return (uni_class(c) & 7) == UNI_SPACE || c == 0x0B || c == 0x0C || c == 0x85;
}

/* Appends a character to the n bytes of `out` and returns their new number. */
static size_t put_utf8(char *out, size_t n, uint32_t c)
{
    if (c < 0x80) {
        out[n++] = (char)c;
        return n;
    }
    if (c < 0x800) {
        out[n++] = (char)(0xC0 | c >> 6);
    } else {
        if (c < 0x10000) {
            out[n++] = (char)(0xE0 | c >> 12);
        } else {
            out[n++] = (char)(0xF0 | c >> 18);
            out[n++] = (char)(0x80 | (c >> 12 & 0x3F));
        }
        out[n++] = (char)(0x80 | (c >> 6 & 0x3F));
    }
    out[n++] = (char)(0x80 | (c & 0x3F));
    return n;
}

typedef struct splitter {
    bert_word *emit;
    void *user;
    int n;       /* characters of the word so far; all beyond BERT_WORD_CHARS count as one */
    int barrier; /* characters before it keep their place */
    uint32_t chars[BERT_WORD_CHARS];
    uint8_t ranks[BERT_WORD_CHARS];
} splitter;

/* Ends the word, if there is one. */
static void flush(splitter *s)
{
    char word[4 * BERT_WORD_CHARS];
    size_t bytes = 0;
    if (!s->n) return;
    if (s->n <= BERT_WORD_CHARS) {
        for (int i = 0; i < s->n; i++) bytes = put_utf8(word, bytes, s->chars[i]);
        s->emit(s->user, word, bytes);
    } else {
        s->emit(s->user, NULL, 0);
    }
    s->n = s->barrier = 0;
}

/* Adds a cleaned and folded character, in canonical order; punctuation is a word of its own. */
static void put(splitter *s, uint32_t c, unsigned class)
{
    uint8_t rank = (uint8_t)(class >> 3);
    int at = s->n;
    if ((class & 7) == UNI_PUNCT) {
        flush(s);
        s->chars[s->n++] = c;
        flush(s);
        return;
    }
    if (at >= BERT_WORD_CHARS) {
        s->n = BERT_WORD_CHARS + 1;
        return;
    }
    for (; rank && at > s->barrier && s->ranks[at - 1] > rank; at--) {
        s->chars[at] = s->chars[at - 1];
        s->ranks[at] = s->ranks[at - 1];
    }
    s->chars[at] = c;
    s->ranks[at] = rank;
    s->n++;
}

/* Adds the lower case of a character. */
static void put_lower(splitter *s, uint32_t c, unsigned class)
{
    uint32_t parts[3];
    int n = uni_lower(c, parts);
    for (int i = 0; i < n; i++) put(s, parts[i], class);
}

/* Adds the parts of a character without its accents, in canonical order. */
static void put_stripped(splitter *s, uint32_t c, bool lower)
{
    uint32_t parts[3];
    int n = uni_strip(c, parts);
    for (int i = 0; i < n; i++) {
        unsigned class = uni_class(parts[i]);
        if (lower) put_lower(s, parts[i], class);
        else put(s, parts[i], class);
    }
}

const bert_tokenizer_options bert_cased_options = {.lower_case = BERT_NO};

bert_tokenizer_options bert_tokenizer_resolve(const bert_tokenizer_options *options)
{
    bert_tokenizer_options o = {BERT_UNSAID, BERT_UNSAID, BERT_UNSAID, BERT_UNSAID};
    if (options) o = *options;
    if (!o.lower_case) o.lower_case = BERT_YES;
    if (!o.strip_accents) o.strip_accents = o.lower_case;
    if (!o.chinese_chars) o.chinese_chars = BERT_YES;
    if (!o.clean_text) o.clean_text = BERT_YES;
    return o;
}

void bert_words(const char *text, size_t bytes, const bert_tokenizer_options *options,
                bert_word *emit, void *user)
{
    const unsigned char *p = (const unsigned char *)text;
    const bert_tokenizer_options o = bert_tokenizer_resolve(options);
    const bool lower = o.lower_case == BERT_YES, strip = o.strip_accents == BERT_YES;
    splitter s;
    s.emit = emit;
    s.user = user;
    s.n = s.barrier = 0;
    for (size_t i = 0; i < bytes;) {
        uint32_t c;
        unsigned class, kind;
        bool alone; /* an ideograph that is a word */
        int length = bert_decode(p + i, bytes - i, &c);
        i += length ? (size_t)length : 1;
        if (!length) continue;
        class = uni_class(c);
        kind = class & 7;
        if (kind == UNI_DROP) {
            if (o.clean_text == BERT_YES) continue;
            kind = bert_is_space(c) ? UNI_SPACE : UNI_LETTER;
        }
        alone = kind == UNI_CJK && o.chinese_chars == BERT_YES;
        if (kind == UNI_SPACE || alone) flush(&s);
        if (kind == UNI_SPACE) continue;
        if (kind == UNI_MARK && strip) {
            if (!(class >> 3)) s.barrier = s.n;
        } else if (c < 128) {
            put(&s, lower && c >= 'A' && c <= 'Z' ? c + 32 : c, kind);
        } else if (strip) {
            put_stripped(&s, c, lower);
        } else if (lower) { /* without a decomposition there is no order: no rank */
            put_lower(&s, c, kind == UNI_PUNCT ? UNI_PUNCT : UNI_LETTER);
        } else {
            put(&s, c, kind == UNI_PUNCT ? UNI_PUNCT : UNI_LETTER);
        }
        if (alone) flush(&s);
    }
    flush(&s);
}

/* ----------------------------------------------------------------------------------- vocabulary */

typedef struct token {
    uint32_t at;     /* into the text */
    uint16_t length; /* with ## */
    uint16_t prefix; /* 2 for a continuation, otherwise 0 */
} token;

typedef struct slot {
    uint32_t hash;
    int32_t id; /* -1: free */
} slot;

/* A table for finding tokens. One is for words: by piece (without ##) and whether it continues a
 * word. The other is for added tokens, which occur in a text as they are and never continue a
 * word. */
typedef struct table {
    slot *slots; /* open addressing, at most half full */
    uint32_t mask;
    size_t longest[2]; /* maximum bytes of a beginning and of a continuation */
    bool whole;        /* ## is part of the piece */
} table;

struct bert_vocab {
    bert_tokenizer_options options;
    bert_vocab_file source;
    int32_t size, special[BERT_SPECIAL_COUNT];
    char *text;    /* the tokens, each terminated by 0 */
    token *tokens; /* by id */
    table pieces, added;
    bool first[256]; /* bytes with which an added token begins */
};

/* The hash of a piece starts from one of two seeds and takes one byte at a time, so the hashes of
 * all its prefixes are computed on the way. */
static const uint32_t seeds[2] = {2166136261u, 374761393u};

static uint32_t hash_byte(uint32_t hash, char byte)
{
    return (hash ^ (unsigned char)byte) * 16777619u;
}

/* The slot of a piece, or the free slot where it belongs. */
static slot *find(const bert_vocab *v, const table *in, uint32_t hash, const char *piece,
                  size_t length, bool continues)
{
    for (uint32_t at = hash ^ hash >> 15;; at++) { /* low bits depend little on high ones */
        slot *s = &in->slots[at & in->mask];
        const token *t;
        size_t prefix;
        if (s->id < 0) return s;
        if (s->hash != hash) continue;
        t = &v->tokens[s->id];
        prefix = in->whole ? 0 : t->prefix;
        if ((prefix != 0) == continues && t->length - prefix == length &&
            !memcmp(v->text + t->at + prefix, piece, length))
            return s;
    }
}

/* 2 if the token is a continuation; "##" alone is not. */
static uint16_t prefix_of(const char *text, size_t length)
{
    return length > 2 && text[0] == '#' && text[1] == '#' ? 2 : 0;
}

/* The same for a token as it is written; *hash: its hash. */
static slot *find_token(const bert_vocab *v, const table *in, const char *text, size_t length,
                        uint32_t *hash)
{
    uint16_t prefix = in->whole ? 0 : prefix_of(text, length);
    *hash = seeds[prefix != 0];
    for (size_t i = prefix; i < length; i++) *hash = hash_byte(*hash, text[i]);
    return find(v, in, *hash, text + prefix, length - prefix, prefix != 0);
}

static bool is_in(const bert_vocab *v, const table *in, int32_t id)
{
    uint32_t hash;
    const token *t;
    if (id < 0 || id >= v->size) return false;
    t = &v->tokens[id];
    return find_token(v, in, v->text + t->at, t->length, &hash)->id == id;
}

bool bert_vocab_is_added(const bert_vocab *v, int32_t id) { return is_in(v, &v->added, id); }

bool bert_vocab_is_piece(const bert_vocab *v, int32_t id) { return is_in(v, &v->pieces, id); }

/* Enters a token; it replaces an equal one. */
static void enter(const bert_vocab *v, table *in, int32_t id)
{
    const token *t = &v->tokens[id];
    size_t prefix = in->whole ? 0 : t->prefix, length = t->length - prefix;
    uint32_t hash;
    slot *s = find_token(v, in, v->text + t->at, t->length, &hash);
    *s = (slot){hash, id};
    if (length > in->longest[prefix / 2]) in->longest[prefix / 2] = length;
}

/* Room for so many tokens. */
static bool make_table(table *t, size_t tokens)
{
    size_t slots = 16;
    while (slots < 2 * tokens) slots *= 2;
    t->mask = (uint32_t)(slots - 1);
    t->slots = malloc(slots * sizeof *t->slots);
    for (size_t i = 0; i < slots && t->slots; i++) t->slots[i].id = -1;
    return t->slots != NULL;
}

/* Copies the tokens into v->text and v->tokens; ids without a token are left empty. */
static bool copy_tokens(bert_vocab *v, const bert_token *tokens, size_t count)
{
    size_t bytes = 1, at = 0; /* a 0 for all empty tokens */
    for (size_t i = 0; i < count; i++) {
        bytes += tokens[i].bytes + 1;
        if (tokens[i].id >= v->size) v->size = tokens[i].id + 1;
    }
    v->text = malloc(bytes);
    v->tokens = calloc((size_t)v->size + 1, sizeof *v->tokens);
    if (!v->text || !v->tokens) return false;
    v->text[at++] = 0;
    for (size_t i = 0; i < count; i++) {
        const bert_token *t = &tokens[i];
        if (t->bytes) memcpy(v->text + at, t->text, t->bytes);
        v->text[at + t->bytes] = 0;
        v->tokens[t->id] =
            (token){(uint32_t)at, (uint16_t)t->bytes, prefix_of(v->text + at, t->bytes)};
        at += t->bytes + 1;
    }
    return true;
}

/* Enters all tokens into their tables, the last of equal ones, and finds the five special ones. */
static bool index_tokens(bert_vocab *v, const bert_token *tokens, size_t count, const char *name,
                         char *err, size_t err_size)
{
    for (size_t i = 0; i < count; i++)
        if (!tokens[i].added) enter(v, &v->pieces, tokens[i].id);
    for (size_t i = 0; i < count; i++) /* of equal tokens, only the last keeps its id */
        if (!tokens[i].added && !bert_vocab_is_piece(v, tokens[i].id))
            v->tokens[tokens[i].id] = (token){0, 0, 0};
    for (size_t i = 0; i < count; i++)
        if (tokens[i].added && tokens[i].bytes) enter(v, &v->added, tokens[i].id);
    for (int k = 0; k < BERT_SPECIAL_COUNT; k++) {
        v->special[k] = bert_vocab_id(v, bert_special_tokens[k]);
        if (v->special[k] < 0) {
            snprintf(err, err_size,
                     "%s: no %s: [PAD], [UNK], [CLS], [SEP] and [MASK] must be there", name,
                     bert_special_tokens[k]);
            return false;
        }
        enter(v, &v->added, v->special[k]);
    }
    for (size_t i = 0; i <= v->added.mask; i++)
        if (v->added.slots[i].id >= 0)
            v->first[(unsigned char)v->text[v->tokens[v->added.slots[i].id].at]] = true;
    return true;
}

bert_vocab *bert_vocab_new(const bert_token *tokens, size_t count,
                           const bert_tokenizer_options *options, const bert_vocab_file *source,
                           const char *name, char *err, size_t err_size)
{
    bert_vocab *v = calloc(1, sizeof *v);
    char *data = v ? malloc(source->bytes + 1) : NULL;
    size_t added = BERT_SPECIAL_COUNT;
    for (size_t i = 0; i < count; i++) added += tokens[i].added;
    if (data) {
        if (source->bytes) memcpy(data, source->data, source->bytes);
        v->options = bert_tokenizer_resolve(options);
        v->source = (bert_vocab_file){source->name, data, source->bytes};
        v->added.whole = true;
        if (copy_tokens(v, tokens, count) && make_table(&v->pieces, count) &&
            make_table(&v->added, added)) {
            if (index_tokens(v, tokens, count, name, err, err_size)) return v;
            bert_vocab_free(v);
            return NULL;
        }
    }
    bert_vocab_free(v);
    snprintf(err, err_size, "%s: out of memory", name);
    return NULL;
}

void bert_vocab_free(bert_vocab *v)
{
    if (!v) return;
    free(v->pieces.slots);
    free(v->added.slots);
    free(v->tokens);
    free(v->text);
    free((void *)v->source.data);
    free(v);
}

bert_tokenizer_options bert_vocab_options(const bert_vocab *v) { return v->options; }

bert_vocab_file bert_vocab_source(const bert_vocab *v) { return v->source; }

int32_t bert_vocab_size(const bert_vocab *v) { return v->size; }

const char *bert_vocab_token(const bert_vocab *v, int32_t id)
{
    return id >= 0 && id < v->size ? v->text + v->tokens[id].at : NULL;
}

int32_t bert_vocab_id(const bert_vocab *v, const char *text)
{
    uint32_t hash;
    int32_t id = find_token(v, &v->pieces, text, strlen(text), &hash)->id;
    return id >= 0 ? id : find_token(v, &v->added, text, strlen(text), &hash)->id;
}

bool bert_vocab_starts_word(const bert_vocab *v, int32_t id)
{
    return id >= 0 && id < v->size && v->tokens[id].length && !v->tokens[id].prefix;
}

bool bert_vocab_is_special(const bert_vocab *v, int32_t id)
{
    for (int k = 0; k < BERT_SPECIAL_COUNT; k++)
        if (v->special[k] == id) return true;
    return false;
}

uint64_t bert_vocab_digest(const bert_vocab *v)
{
    const bert_tokenizer_options *o = &v->options;
    uint64_t digest = 0xCBF29CE484222325u; /* FNV-1a */
    const unsigned char rules[] = {(unsigned char)o->lower_case, (unsigned char)o->strip_accents,
                                   (unsigned char)o->chinese_chars, (unsigned char)o->clean_text};
    for (size_t i = 0; i < sizeof rules; i++) digest = (digest ^ rules[i]) * 0x100000001B3u;
    for (int32_t id = 0; id < v->size; id++) {
        const char *text = bert_vocab_token(v, id);
        for (; *text; text++) digest = (digest ^ (unsigned char)*text) * 0x100000001B3u;
        digest ^=
            0x100u | (bert_vocab_is_added(v, id) ? 1 : 0) | (bert_vocab_is_piece(v, id) ? 2 : 0);
        digest *= 0x100000001B3u;
    }
    return digest;
}

/* ------------------------------------------------------------------------------------- encoding */

typedef struct encoder {
    const bert_vocab *v;
    int32_t *ids;
    int64_t n, cap;
} encoder;

static void put_id(encoder *e, int32_t id)
{
    if (e->n < e->cap) e->ids[e->n] = id;
    e->n++;
}

/* The length of the longest token with which the rest of a word begins; *id: its id; 0: none. */
static size_t longest_match(const bert_vocab *v, const char *rest, size_t bytes, bool continues,
                            int32_t *id)
{
    uint32_t hashes[4 * BERT_WORD_CHARS + 1];
    size_t longest = v->pieces.longest[continues], n = bytes < longest ? bytes : longest;
    hashes[0] = seeds[continues];
    for (size_t i = 0; i < n; i++) hashes[i + 1] = hash_byte(hashes[i], rest[i]);
    for (; n; n--) {
        *id = find(v, &v->pieces, hashes[n], rest, n, continues)->id;
        if (*id >= 0) break;
    }
    return n;
}

/* Greedy: the longest token, then the longest continuation, ...; one [UNK] for the whole word if
 * that fails. */
static void encode_word(void *user, const char *word, size_t bytes)
{
    encoder *e = user;
    int32_t pieces[4 * BERT_WORD_CHARS];
    size_t at = 0, n = 0, length = 1;
    for (; at < bytes && length; at += length)
        length = longest_match(e->v, word + at, bytes - at, at > 0, &pieces[n++]);
    if (!word || !length) {
        put_id(e, e->v->special[BERT_UNK]);
        return;
    }
    for (size_t i = 0; i < n; i++) put_id(e, pieces[i]);
}

/* The length of the longest added token with which the text begins; *id: its id; 0: none. */
static size_t longest_added(const bert_vocab *v, const char *text, size_t bytes, unsigned flags,
                            int32_t *id)
{
    size_t n = bytes < v->added.longest[0] ? bytes : v->added.longest[0], longest = 0;
    uint32_t hash = seeds[0];
    for (size_t i = 1; i <= n; i++) {
        int32_t found;
        hash = hash_byte(hash, text[i - 1]);
        found = find(v, &v->added, hash, text, i, false)->id;
        if (found < 0 || (!(flags & BERT_SPECIAL_TOKENS) && bert_vocab_is_special(v, found)))
            continue;
        *id = found;
        longest = i;
    }
    return longest;
}

int64_t bert_encode(const bert_vocab *v, const char *text, size_t bytes, unsigned flags,
                    int32_t *ids, int64_t cap)
{
    encoder e = {v, ids, 0, cap};
    size_t start = 0;
    if (!bytes) return 0;
    for (size_t i = 0; i < bytes; i++) {
        int32_t id;
        size_t length;
        if (!v->first[(unsigned char)text[i]]) continue;
        length = longest_added(v, text + i, bytes - i, flags, &id);
        if (!length) continue;
        bert_words(text + start, i - start, &v->options, encode_word, &e);
        put_id(&e, id);
        start = i + length;
        i = start - 1;
    }
    bert_words(text + start, bytes - start, &v->options, encode_word, &e);
    return e.n;
}
