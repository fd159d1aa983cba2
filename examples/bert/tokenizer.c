/* Text to WordPiece ids.
 *
 *     bytes --decode--> characters --clean, fold, split--> one word, as UTF-8 --match--> ids
 *
 * One word is held at a time, so that a text of any length needs no memory. unicode.h decomposes
 * character by character; what is left of canonical order is done here: a character that combines
 * and yet survives accent stripping (some vowel signs, stems of notes) moves before those of a
 * higher combining class, but never past a starter.
 */
#include "tokenizer.h"
#include "unicode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_LIMIT = 1 << 28 };
const char *const bert_special_tokens[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

/* ---------------------------------------------------------------------------------------- words */

/* The length of the UTF-8 sequence at p, whose character goes to *c; 0 when the n > 0 bytes begin
 * with none (stray, cut or overlong, a surrogate, beyond U+10FFFF). */
static int decode(const unsigned char *p, size_t n, uint32_t *c)
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
    int barrier; /* those before it keep their place */
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

static void put_folded(splitter *s, uint32_t c)
{
    uint32_t parts[3];
    int n = uni_fold(c, parts);
    for (int i = 0; i < n; i++) put(s, parts[i], uni_class(parts[i]));
}

void bert_words(const char *text, size_t bytes, bool lower_case, bert_word *emit, void *user)
{
    const unsigned char *p = (const unsigned char *)text;
    splitter s;
    s.emit = emit;
    s.user = user;
    s.n = s.barrier = 0;
    for (size_t i = 0; i < bytes;) {
        uint32_t c;
        unsigned class;
        int length = decode(p + i, bytes - i, &c);
        i += length ? (size_t)length : 1;
        if (!length) continue;
        class = uni_class(c);
        switch (class & 7) {
        case UNI_SPACE: flush(&s); break;
        case UNI_DROP: break;
        case UNI_CJK:
            flush(&s);
            if (lower_case) put_folded(&s, c);
            else put(&s, c, UNI_LETTER);
            flush(&s);
            break;
        case UNI_MARK:
            if (!lower_case) put(&s, c, UNI_LETTER);
            else if (!(class >> 3)) s.barrier = s.n;
            break;
        default:
            if (!lower_case) put(&s, c, class & 7); /* no NFD, so no order: without the rank */
            else if (c < 128) put(&s, c >= 'A' && c <= 'Z' ? c + 32 : c, class);
            else put_folded(&s, c);
        }
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

struct bert_vocab {
    bool lower_case;
    int32_t size, special[BERT_SPECIAL_COUNT];
    char *text; /* the file, each token terminated by 0 */
    token *tokens;
    slot *slots; /* by piece (without ##) and whether it continues; open, at most half full */
    uint32_t mask;
    size_t longest[2]; /* bytes of the longest beginning and the longest continuation */
};

/* The hash of a piece starts from one of two seeds and takes a byte at a time: the hashes of all
 * its prefixes are on the way. */
static const uint32_t seeds[2] = {2166136261u, 374761393u};

static uint32_t hash_byte(uint32_t hash, char byte)
{
    return (hash ^ (unsigned char)byte) * 16777619u;
}

/* The slot of a piece, or the free one where it would go. */
static slot *find(const bert_vocab *v, uint32_t hash, const char *piece, size_t length,
                  bool continues)
{
    for (uint32_t at = hash ^ hash >> 15;; at++) { /* the low bits alone know little of the high */
        slot *s = &v->slots[at & v->mask];
        const token *t;
        if (s->id < 0) return s;
        if (s->hash != hash) continue;
        t = &v->tokens[s->id];
        if ((t->prefix != 0) == continues && (size_t)(t->length - t->prefix) == length &&
            !memcmp(v->text + t->at + t->prefix, piece, length))
            return s;
    }
}

/* 2 when the token is a continuation; "##" alone is none. */
static uint16_t prefix_of(const char *text, size_t length)
{
    return length > 2 && text[0] == '#' && text[1] == '#' ? 2 : 0;
}

/* The same for a token as it is written, whose hash goes to *hash. */
static slot *find_token(const bert_vocab *v, const char *text, size_t length, uint32_t *hash)
{
    uint16_t prefix = prefix_of(text, length);
    *hash = seeds[prefix != 0];
    for (size_t i = prefix; i < length; i++) *hash = hash_byte(*hash, text[i]);
    return find(v, *hash, text + prefix, length - prefix, prefix != 0);
}

/* Enters v->text[at..at+length) as the next token; false, with a message, when it cannot be one. */
static bool add_line(bert_vocab *v, size_t at, size_t length, const char *name, char *err,
                     size_t err_size)
{
    const char *line = v->text + at;
    token *t = &v->tokens[v->size];
    int number = v->size + 1;
    uint32_t hash, c;
    slot *s;
    if (!length) {
        snprintf(err, err_size, "%s:%d: empty line: every line is a token and its number the id",
                 name, number);
        return false;
    }
    if (length > BERT_TOKEN_BYTES) {
        snprintf(err, err_size, "%s:%d: a line of %zu bytes: a token has at most %d", name, number,
                 length, BERT_TOKEN_BYTES);
        return false;
    }
    for (size_t i = 0; i < length;) {
        int bytes = decode((const unsigned char *)line + i, length - i, &c);
        if (!bytes || !c) {
            snprintf(err, err_size, "%s:%d: %s at byte %zu of the line", name, number,
                     bytes ? "a zero" : "invalid UTF-8", i + 1);
            return false;
        }
        i += (size_t)bytes;
    }
    s = find_token(v, line, length, &hash);
    if (s->id >= 0) {
        snprintf(err, err_size, "%s:%d: the token %.*s is on line %d already", name, number,
                 (int)length, line, s->id + 1);
        return false;
    }
    *s = (slot){hash, v->size++};
    *t = (token){(uint32_t)at, (uint16_t)length, prefix_of(line, length)};
    if (length - t->prefix > v->longest[t->prefix / 2])
        v->longest[t->prefix / 2] = length - t->prefix;
    return true;
}

/* Cuts v->text, a file of `bytes` with room for one more, into tokens and indexes them. */
static bool index_lines(bert_vocab *v, size_t bytes, const char *name, char *err, size_t err_size)
{
    size_t lines = 0, slots = 16;
    if (!bytes) {
        snprintf(err, err_size, "%s: empty file: a vocabulary has one token per line", name);
        return false;
    }
    if (bytes >= 3 && !memcmp(v->text, "\xEF\xBB\xBF", 3)) {
        snprintf(err, err_size, "%s:1: a byte order mark, which would be part of the first token",
                 name);
        return false;
    }
    if (v->text[bytes - 1] != '\n') v->text[bytes++] = '\n';
    for (size_t i = 0; i < bytes; i++) lines += v->text[i] == '\n';
    while (slots < 2 * lines) slots *= 2;
    v->mask = (uint32_t)(slots - 1);
    v->tokens = malloc(lines * sizeof *v->tokens);
    v->slots = malloc(slots * sizeof *v->slots);
    if (!v->tokens || !v->slots) {
        snprintf(err, err_size, "%s: out of memory", name);
        return false;
    }
    for (size_t i = 0; i < slots; i++) v->slots[i].id = -1;
    for (size_t at = 0; at < bytes;) {
        char *end = memchr(v->text + at, '\n', bytes - at);
        size_t next = (size_t)(end - v->text) + 1, length = next - 1 - at;
        if (length && end[-1] == '\r') length--;
        if (!add_line(v, at, length, name, err, err_size)) return false;
        v->text[at + length] = 0;
        at = next;
    }
    for (int k = 0; k < BERT_SPECIAL_COUNT; k++) {
        v->special[k] = bert_vocab_id(v, bert_special_tokens[k]);
        if (v->special[k] >= 0) continue;
        snprintf(err, err_size, "%s: no %s: [PAD], [UNK], [CLS], [SEP] and [MASK] must be there",
                 name, bert_special_tokens[k]);
        return false;
    }
    return true;
}

/* A vocabulary of `text`, from malloc with room for bytes + 1, which it takes over in any case. */
static bert_vocab *adopt(char *text, size_t bytes, const char *name, bool lower_case, char *err,
                         size_t err_size)
{
    bert_vocab *v = calloc(1, sizeof *v);
    if (!v) {
        snprintf(err, err_size, "%s: out of memory", name);
        free(text);
        return NULL;
    }
    v->text = text;
    v->lower_case = lower_case;
    if (index_lines(v, bytes, name, err, err_size)) return v;
    bert_vocab_free(v);
    return NULL;
}

bert_vocab *bert_vocab_parse(const char *text, size_t bytes, const char *name, bool lower_case,
                             char *err, size_t err_size)
{
    char *copy = bytes > FILE_LIMIT ? NULL : malloc(bytes + 1);
    if (copy && bytes) memcpy(copy, text, bytes);
    if (copy) return adopt(copy, bytes, name, lower_case, err, err_size);
    snprintf(err, err_size, "%s: %s", name,
             bytes > FILE_LIMIT ? "too large for a vocabulary" : "out of memory");
    return NULL;
}

bert_vocab *bert_vocab_load(const char *path, bool lower_case, char *err, size_t err_size)
{
    FILE *f = fopen(path, "rb");
    const char *why = NULL;
    char *text = NULL;
    size_t bytes = 0, room = 1 << 15; /* doubled at once: a pipe does not tell its size */
    if (!f) why = strerror(errno);
    while (!why && !feof(f)) {
        if (!text || bytes == room) {
            char *more = realloc(text, (room *= 2) + 1);
            if (!more) {
                why = "out of memory";
                break;
            }
            text = more;
        }
        bytes += fread(text + bytes, 1, room - bytes, f);
        if (ferror(f)) why = strerror(errno);
        else if (bytes > FILE_LIMIT) why = "too large for a vocabulary";
    }
    if (f) fclose(f);
    if (!why) return adopt(text, bytes, path, lower_case, err, err_size);
    snprintf(err, err_size, "%s: %s", path, why);
    free(text);
    return NULL;
}

void bert_vocab_free(bert_vocab *v)
{
    if (!v) return;
    free(v->slots);
    free(v->tokens);
    free(v->text);
    free(v);
}

int32_t bert_vocab_size(const bert_vocab *v) { return v->size; }

const char *bert_vocab_token(const bert_vocab *v, int32_t id)
{
    return id >= 0 && id < v->size ? v->text + v->tokens[id].at : NULL;
}

int32_t bert_vocab_id(const bert_vocab *v, const char *text)
{
    uint32_t hash;
    return find_token(v, text, strlen(text), &hash)->id;
}

bool bert_vocab_starts_word(const bert_vocab *v, int32_t id)
{
    return id >= 0 && id < v->size && !v->tokens[id].prefix;
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

/* The length of the longest token that the rest of a word begins with, its id to *id; 0: none. */
static size_t longest_match(const bert_vocab *v, const char *rest, size_t bytes, bool continues,
                            int32_t *id)
{
    uint32_t hashes[4 * BERT_WORD_CHARS + 1];
    size_t n = bytes < v->longest[continues] ? bytes : v->longest[continues];
    hashes[0] = seeds[continues];
    for (size_t i = 0; i < n; i++) hashes[i + 1] = hash_byte(hashes[i], rest[i]);
    for (; n; n--) {
        *id = find(v, hashes[n], rest, n, continues)->id;
        if (*id >= 0) break;
    }
    return n;
}

/* Greedy: the longest token, then the longest continuation, ...; one [UNK] for the whole word when
 * that does not come out even. */
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

int64_t bert_encode(const bert_vocab *v, const char *text, size_t bytes, unsigned flags,
                    int32_t *ids, int64_t cap)
{
    encoder e = {v, ids, 0, cap};
    size_t start = 0;
    if (!bytes) return 0;
    if (flags & BERT_SPECIAL_TOKENS)
        for (size_t i = 0; i < bytes; i++)
            for (int k = 0; text[i] == '[' && k < BERT_SPECIAL_COUNT; k++) {
                const char *special = bert_special_tokens[k];
                size_t length = strlen(special);
                if (bytes - i < length || memcmp(text + i, special, length)) continue;
                bert_words(text + start, i - start, v->lower_case, encode_word, &e);
                put_id(&e, v->special[k]);
                start = i + length;
                i = start - 1;
                break;
            }
    bert_words(text + start, bytes - start, v->lower_case, encode_word, &e);
    return e.n;
}
