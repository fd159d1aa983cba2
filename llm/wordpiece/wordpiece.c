/* Text to WordPiece ids.
 *
 *     bytes --decode--> characters --clean, fold, split--> one word, as UTF-8 --match--> ids
 *
 * Only one word is in memory at a time, so a text may have any length. unicode.h decomposes single
 * characters; canonical order is completed here: a combining character that accent stripping keeps
 * (some vowel signs, stems of notes) moves before those of a higher combining class, but never past
 * a starter. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "wordpiece_unicode.h"

const char *zf_wordpiece_special_token(int32_t which)
{
    static const char *const tokens[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    return tokens[which];
}

/* ---------------------------------------------------------------------------------------- words */

/* Whether Unicode has it as a space (White_Space). */
static bool zfl_is_space(uint32_t c)
{
    return (zfl_uni_class(c) & 7) == ZFL_UNI_SPACE || c == 0x0B || c == 0x0C || c == 0x85;
}

/* Appends a character to the n bytes of `out` and returns their new number. */
static size_t zfl_put_utf8(char *out, size_t n, uint32_t c)
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

typedef struct zfl_splitter {
    zf_wordpiece_word *emit;
    void *user;
    int n; /* characters of the word so far; all beyond ZF_WORDPIECE_WORD_CHARS count as one */
    int barrier; /* characters before it keep their place */
    uint32_t chars[ZF_WORDPIECE_WORD_CHARS];
    uint8_t ranks[ZF_WORDPIECE_WORD_CHARS];
} zfl_splitter;

/* Ends the word, if there is one. */
static void zfl_wordpiece_flush(zfl_splitter *s)
{
    char word[4 * ZF_WORDPIECE_WORD_CHARS];
    size_t bytes = 0;
    if (!s->n) return;
    if (s->n <= ZF_WORDPIECE_WORD_CHARS) {
        for (int i = 0; i < s->n; i++) bytes = zfl_put_utf8(word, bytes, s->chars[i]);
        s->emit(s->user, word, bytes);
    } else {
        s->emit(s->user, NULL, 0);
    }
    s->n = s->barrier = 0;
}

/* Adds a cleaned and folded character, in canonical order; punctuation is a word of its own. */
static void zfl_wordpiece_put(zfl_splitter *s, uint32_t c, unsigned class)
{
    uint8_t rank = (uint8_t)(class >> 3);
    int at = s->n;
    if ((class & 7) == ZFL_UNI_PUNCT) {
        zfl_wordpiece_flush(s);
        s->chars[s->n++] = c;
        zfl_wordpiece_flush(s);
        return;
    }
    if (at >= ZF_WORDPIECE_WORD_CHARS) {
        s->n = ZF_WORDPIECE_WORD_CHARS + 1;
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
static void zfl_put_lower(zfl_splitter *s, uint32_t c, unsigned class)
{
    uint32_t parts[3];
    int n = zfl_uni_lower(c, parts);
    for (int i = 0; i < n; i++) zfl_wordpiece_put(s, parts[i], class);
}

/* Adds the parts of a character without its accents, in canonical order. */
static void zfl_put_stripped(zfl_splitter *s, uint32_t c, bool lower)
{
    uint32_t parts[3];
    int n = zfl_uni_strip(c, parts);
    for (int i = 0; i < n; i++) {
        unsigned class = zfl_uni_class(parts[i]);
        if (lower) zfl_put_lower(s, parts[i], class);
        else zfl_wordpiece_put(s, parts[i], class);
    }
}

const zf_wordpiece_options *zf_wordpiece_cased(bool cased)
{
    static const zf_wordpiece_options options = {.lower_case = ZF_WORDPIECE_NO};
    return cased ? &options : NULL;
}

zf_wordpiece_options zf_wordpiece_resolve(const zf_wordpiece_options *options)
{
    zf_wordpiece_options o = {ZF_WORDPIECE_UNSAID, ZF_WORDPIECE_UNSAID, ZF_WORDPIECE_UNSAID,
                              ZF_WORDPIECE_UNSAID};
    if (options) o = *options;
    if (!o.lower_case) o.lower_case = ZF_WORDPIECE_YES;
    if (!o.strip_accents) o.strip_accents = o.lower_case;
    if (!o.chinese_chars) o.chinese_chars = ZF_WORDPIECE_YES;
    if (!o.clean_text) o.clean_text = ZF_WORDPIECE_YES;
    return o;
}

void zf_wordpiece_words(const char *text, size_t bytes, const zf_wordpiece_options *options,
                        zf_wordpiece_word *emit, void *user)
{
    const unsigned char *p = (const unsigned char *)text;
    const zf_wordpiece_options o = zf_wordpiece_resolve(options);
    const bool lower = o.lower_case == ZF_WORDPIECE_YES,
               strip = o.strip_accents == ZF_WORDPIECE_YES;
    zfl_splitter s;
    s.emit = emit;
    s.user = user;
    s.n = s.barrier = 0;
    for (size_t i = 0; i < bytes;) {
        uint32_t c;
        unsigned class, kind;
        bool alone; /* an ideograph that is a word */
        int length = zfl_utf8_decode(p + i, bytes - i, &c);
        i += length ? (size_t)length : 1;
        if (!length) continue;
        class = zfl_uni_class(c);
        kind = class & 7;
        if (kind == ZFL_UNI_DROP) {
            if (o.clean_text == ZF_WORDPIECE_YES) continue;
            kind = zfl_is_space(c) ? ZFL_UNI_SPACE : ZFL_UNI_LETTER;
        }
        alone = kind == ZFL_UNI_CJK && o.chinese_chars == ZF_WORDPIECE_YES;
        if (kind == ZFL_UNI_SPACE || alone) zfl_wordpiece_flush(&s);
        if (kind == ZFL_UNI_SPACE) continue;
        if (kind == ZFL_UNI_MARK && strip) {
            if (!(class >> 3)) s.barrier = s.n;
        } else if (c < 128) {
            zfl_wordpiece_put(&s, lower && c >= 'A' && c <= 'Z' ? c + 32 : c, kind);
        } else if (strip) {
            zfl_put_stripped(&s, c, lower);
        } else if (lower) { /* without a decomposition there is no order: no rank */
            zfl_put_lower(&s, c, kind == ZFL_UNI_PUNCT ? ZFL_UNI_PUNCT : ZFL_UNI_LETTER);
        } else {
            zfl_wordpiece_put(&s, c, kind == ZFL_UNI_PUNCT ? ZFL_UNI_PUNCT : ZFL_UNI_LETTER);
        }
        if (alone) zfl_wordpiece_flush(&s);
    }
    zfl_wordpiece_flush(&s);
}

/* ----------------------------------------------------------------------------------- vocabulary */

typedef struct zfl_token {
    uint32_t at;     /* into the text */
    uint16_t length; /* with ## */
    uint16_t prefix; /* 2 for a continuation, otherwise 0 */
} zfl_token;

typedef struct zfl_slot {
    uint32_t hash;
    int32_t id; /* -1: free */
} zfl_slot;

/* A table for finding tokens. One is for words: by piece (without ##) and whether it continues a
 * word. The other is for added tokens, which occur in a text as they are and never continue a
 * word. */
typedef struct zfl_table {
    zfl_slot *slots; /* open addressing, at most half full */
    uint32_t mask;
    size_t longest[2]; /* maximum bytes of a beginning and of a continuation */
    bool whole;        /* ## is part of the piece */
} zfl_table;

struct zf_wordpiece {
    zf_wordpiece_options options;
    zf_wordpiece_file source;
    int32_t size, special[ZF_WORDPIECE_SPECIAL_COUNT];
    char *text;        /* the tokens, each terminated by 0 */
    zfl_token *tokens; /* by id */
    zfl_table pieces, added;
    bool first[256]; /* bytes with which an added token begins */
};

/* The hash of a piece starts from one of two zfl_seeds and takes one byte at a time, so the
 * hashes of all its prefixes are computed on the way. */
static const uint32_t zfl_seeds[2] = {2166136261u, 374761393u};

static uint32_t zfl_hash_byte(uint32_t hash, char byte)
{
    return (hash ^ (unsigned char)byte) * 16777619u;
}

/* The slot of a piece, or the free slot where it belongs. */
static zfl_slot *zfl_wordpiece_find(const zf_wordpiece *v, const zfl_table *in, uint32_t hash,
                                    const char *piece, size_t length, bool continues)
{
    for (uint32_t at = hash ^ hash >> 15;; at++) { /* low bits depend little on high ones */
        zfl_slot *s = &in->slots[at & in->mask];
        const zfl_token *t;
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
static uint16_t zfl_prefix_of(const char *text, size_t length)
{
    return length > 2 && text[0] == '#' && text[1] == '#' ? 2 : 0;
}

/* The same for a token as it is written; *hash: its hash. */
static zfl_slot *zfl_wordpiece_find_token(const zf_wordpiece *v, const zfl_table *in,
                                          const char *text, size_t length, uint32_t *hash)
{
    uint16_t prefix = in->whole ? 0 : zfl_prefix_of(text, length);
    *hash = zfl_seeds[prefix != 0];
    for (size_t i = prefix; i < length; i++) *hash = zfl_hash_byte(*hash, text[i]);
    return zfl_wordpiece_find(v, in, *hash, text + prefix, length - prefix, prefix != 0);
}

static bool zfl_is_in(const zf_wordpiece *v, const zfl_table *in, int32_t id)
{
    uint32_t hash;
    const zfl_token *t;
    if (id < 0 || id >= v->size) return false;
    t = &v->tokens[id];
    return zfl_wordpiece_find_token(v, in, v->text + t->at, t->length, &hash)->id == id;
}

bool zf_wordpiece_is_added(const zf_wordpiece *v, int32_t id)
{
    return zfl_is_in(v, &v->added, id);
}

bool zf_wordpiece_is_piece(const zf_wordpiece *v, int32_t id)
{
    return zfl_is_in(v, &v->pieces, id);
}

/* Enters a token; it replaces an equal one. */
static void zfl_enter(const zf_wordpiece *v, zfl_table *in, int32_t id)
{
    const zfl_token *t = &v->tokens[id];
    size_t prefix = in->whole ? 0 : t->prefix, length = t->length - prefix;
    uint32_t hash;
    zfl_slot *s = zfl_wordpiece_find_token(v, in, v->text + t->at, t->length, &hash);
    *s = (zfl_slot){hash, id};
    if (length > in->longest[prefix / 2]) in->longest[prefix / 2] = length;
}

/* Room for so many tokens. */
static bool zfl_make_table(zfl_table *t, size_t tokens)
{
    size_t slots = 16;
    while (slots < 2 * tokens) slots *= 2;
    t->mask = (uint32_t)(slots - 1);
    t->slots = malloc(slots * sizeof *t->slots);
    for (size_t i = 0; i < slots && t->slots; i++) t->slots[i].id = -1;
    return t->slots != NULL;
}

/* Copies the tokens into v->text and v->tokens; ids without a token are left empty. */
static bool zfl_copy_tokens(zf_wordpiece *v, const zf_wordpiece_entry *tokens, size_t count)
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
        const zf_wordpiece_entry *t = &tokens[i];
        if (t->bytes) memcpy(v->text + at, t->text, t->bytes);
        v->text[at + t->bytes] = 0;
        v->tokens[t->id] =
            (zfl_token){(uint32_t)at, (uint16_t)t->bytes, zfl_prefix_of(v->text + at, t->bytes)};
        at += t->bytes + 1;
    }
    return true;
}

/* Enters all tokens into their tables, the last of equal ones, and finds the five special ones. */
static bool zfl_index_tokens(zf_wordpiece *v, const zf_wordpiece_entry *tokens, size_t count,
                             const char *name, zf_error *error)
{
    for (size_t i = 0; i < count; i++)
        if (!tokens[i].added) zfl_enter(v, &v->pieces, tokens[i].id);
    for (size_t i = 0; i < count; i++) /* of equal tokens, only the last keeps its id */
        if (!tokens[i].added && !zf_wordpiece_is_piece(v, tokens[i].id))
            v->tokens[tokens[i].id] = (zfl_token){0, 0, 0};
    for (size_t i = 0; i < count; i++)
        if (tokens[i].added && tokens[i].bytes) zfl_enter(v, &v->added, tokens[i].id);
    for (int k = 0; k < ZF_WORDPIECE_SPECIAL_COUNT; k++) {
        v->special[k] = zf_wordpiece_id(v, zf_wordpiece_special_token(k));
        if (v->special[k] < 0) {
            zfl_tell(error, ZF_ERR_FORMAT,
                     "%s: no %s: [PAD], [UNK], [CLS], [SEP] and [MASK] must be there", name,
                     zf_wordpiece_special_token(k));
            return false;
        }
        zfl_enter(v, &v->added, v->special[k]);
    }
    for (size_t i = 0; i <= v->added.mask; i++)
        if (v->added.slots[i].id >= 0)
            v->first[(unsigned char)v->text[v->tokens[v->added.slots[i].id].at]] = true;
    return true;
}

zf_wordpiece *zf_wordpiece_new(const zf_wordpiece_entry *tokens, size_t count,
                               const zf_wordpiece_options *options, const zf_wordpiece_file *source,
                               const char *name, zf_error *error)
{
    zf_wordpiece *v = calloc(1, sizeof *v);
    char *data = v ? malloc(source->bytes + 1) : NULL;
    size_t added = ZF_WORDPIECE_SPECIAL_COUNT;
    for (size_t i = 0; i < count; i++) added += tokens[i].added;
    if (data) {
        if (source->bytes) memcpy(data, source->data, source->bytes);
        v->options = zf_wordpiece_resolve(options);
        v->source = (zf_wordpiece_file){source->name, data, source->bytes};
        v->added.whole = true;
        if (zfl_copy_tokens(v, tokens, count) && zfl_make_table(&v->pieces, count) &&
            zfl_make_table(&v->added, added)) {
            if (zfl_index_tokens(v, tokens, count, name, error)) return v;
            zf_wordpiece_free(v);
            return NULL;
        }
    }
    zf_wordpiece_free(v);
    zfl_tell(error, ZF_ERR_NOMEM, "%s: out of memory", name);
    return NULL;
}

void zf_wordpiece_free(zf_wordpiece *v)
{
    if (!v) return;
    free(v->pieces.slots);
    free(v->added.slots);
    free(v->tokens);
    free(v->text);
    free((void *)v->source.data);
    free(v);
}

zf_wordpiece_options zf_wordpiece_options_of(const zf_wordpiece *v) { return v->options; }

zf_wordpiece_file zf_wordpiece_source(const zf_wordpiece *v) { return v->source; }

int32_t zf_wordpiece_size(const zf_wordpiece *v) { return v->size; }

const char *zf_wordpiece_token(const zf_wordpiece *v, int32_t id)
{
    return id >= 0 && id < v->size ? v->text + v->tokens[id].at : NULL;
}

int32_t zf_wordpiece_id(const zf_wordpiece *v, const char *text)
{
    uint32_t hash;
    int32_t id = zfl_wordpiece_find_token(v, &v->pieces, text, strlen(text), &hash)->id;
    return id >= 0 ? id : zfl_wordpiece_find_token(v, &v->added, text, strlen(text), &hash)->id;
}

bool zf_wordpiece_starts_word(const zf_wordpiece *v, int32_t id)
{
    return id >= 0 && id < v->size && v->tokens[id].length && !v->tokens[id].prefix;
}

bool zf_wordpiece_is_special(const zf_wordpiece *v, int32_t id)
{
    for (int k = 0; k < ZF_WORDPIECE_SPECIAL_COUNT; k++)
        if (v->special[k] == id) return true;
    return false;
}

uint64_t zf_wordpiece_digest(const zf_wordpiece *v)
{
    const zf_wordpiece_options *o = &v->options;
    uint64_t digest = 0xCBF29CE484222325u; /* FNV-1a */
    const unsigned char rules[] = {(unsigned char)o->lower_case, (unsigned char)o->strip_accents,
                                   (unsigned char)o->chinese_chars, (unsigned char)o->clean_text};
    for (size_t i = 0; i < sizeof rules; i++) digest = (digest ^ rules[i]) * 0x100000001B3u;
    for (int32_t id = 0; id < v->size; id++) {
        const char *text = zf_wordpiece_token(v, id);
        for (; *text; text++) digest = (digest ^ (unsigned char)*text) * 0x100000001B3u;
        digest ^= 0x100u | (zf_wordpiece_is_added(v, id) ? 1 : 0) |
                  (zf_wordpiece_is_piece(v, id) ? 2 : 0);
        digest *= 0x100000001B3u;
    }
    return digest;
}

/* ------------------------------------------------------------------------------------- encoding */

typedef struct zfl_encoder {
    const zf_wordpiece *v;
    int32_t *ids;
    int64_t n, cap;
} zfl_encoder;

static void zfl_wordpiece_put_id(zfl_encoder *e, int32_t id)
{
    if (e->n < e->cap) e->ids[e->n] = id;
    e->n++;
}

/* The length of the longest token with which the rest of a word begins; *id: its id; 0: none. */
static size_t zfl_longest_match(const zf_wordpiece *v, const char *rest, size_t bytes,
                                bool continues, int32_t *id)
{
    uint32_t hashes[4 * ZF_WORDPIECE_WORD_CHARS + 1];
    size_t longest = v->pieces.longest[continues], n = bytes < longest ? bytes : longest;
    hashes[0] = zfl_seeds[continues];
    for (size_t i = 0; i < n; i++) hashes[i + 1] = zfl_hash_byte(hashes[i], rest[i]);
    for (; n; n--) {
        *id = zfl_wordpiece_find(v, &v->pieces, hashes[n], rest, n, continues)->id;
        if (*id >= 0) break;
    }
    return n;
}

/* Greedy: the longest token, then the longest continuation, ...; one [UNK] for the whole word if
 * that fails. */
static void zfl_encode_word(void *user, const char *word, size_t bytes)
{
    zfl_encoder *e = user;
    int32_t pieces[4 * ZF_WORDPIECE_WORD_CHARS];
    size_t at = 0, n = 0, length = 1;
    for (; at < bytes && length; at += length)
        length = zfl_longest_match(e->v, word + at, bytes - at, at > 0, &pieces[n++]);
    if (!word || !length) {
        zfl_wordpiece_put_id(e, e->v->special[ZF_WORDPIECE_UNK]);
        return;
    }
    for (size_t i = 0; i < n; i++) zfl_wordpiece_put_id(e, pieces[i]);
}

/* The length of the longest added token with which the text begins; *id: its id; 0: none. */
static size_t zfl_longest_added(const zf_wordpiece *v, const char *text, size_t bytes,
                                unsigned flags, int32_t *id)
{
    size_t n = bytes < v->added.longest[0] ? bytes : v->added.longest[0], longest = 0;
    uint32_t hash = zfl_seeds[0];
    for (size_t i = 1; i <= n; i++) {
        int32_t found;
        hash = zfl_hash_byte(hash, text[i - 1]);
        found = zfl_wordpiece_find(v, &v->added, hash, text, i, false)->id;
        if (found < 0 || (!(flags & ZF_WORDPIECE_SPECIAL) && zf_wordpiece_is_special(v, found)))
            continue;
        *id = found;
        longest = i;
    }
    return longest;
}

int64_t zf_wordpiece_encode(const zf_wordpiece *v, const char *text, size_t bytes, unsigned flags,
                            int32_t *ids, int64_t cap)
{
    zfl_encoder e = {v, ids, 0, cap};
    size_t start = 0;
    if (!bytes) return 0;
    for (size_t i = 0; i < bytes; i++) {
        int32_t id;
        size_t length;
        if (!v->first[(unsigned char)text[i]]) continue;
        length = zfl_longest_added(v, text + i, bytes - i, flags, &id);
        if (!length) continue;
        zf_wordpiece_words(text + start, i - start, &v->options, zfl_encode_word, &e);
        zfl_wordpiece_put_id(&e, id);
        start = i + length;
        i = start - 1;
    }
    zf_wordpiece_words(text + start, bytes - start, &v->options, zfl_encode_word, &e);
    return e.n;
}
