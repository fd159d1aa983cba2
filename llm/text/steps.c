/* What tokenizer.json has texts go through: normalizers, pre_tokenizers and decoders, as a list of
 * steps. Each turns pieces of text into pieces of text.
 *
 *     Metaspace    ["the bird"]  replace ["the_bird"]  lead ["_the_bird"]  split ["_the", "_bird"]
 *     ByteLevel    ["der Vögel"] split   ["der", " Vögel"]  bytes ["der", "ĠVÃ¶gel"]
 */
#include <stdlib.h>
#include <string.h>

typedef struct zfl_piece {
    size_t begin, end; /* in the text */
    bool first;        /* it begins where the whole text does */
} zfl_piece;

typedef struct zfl_pieces {
    zf_text text;
    zfl_piece *list;
    size_t count, room;
} zfl_pieces;

typedef enum zfl_step_kind {
    ZFL_STEP_PREPEND,  /* content before each piece that is not empty */
    ZFL_STEP_LEAD,     /* the same, unless the piece begins with it */
    ZFL_STEP_REPLACE,  /* content in place of each match */
    ZFL_STEP_FORM,     /* a normalization form of Unicode */
    ZFL_STEP_LOWER,    /* each character in lower case, whatever its neighbours */
    ZFL_STEP_SPLIT,    /* at matches */
    ZFL_STEP_BYTES,    /* each byte becomes the character that stands for it */
    ZFL_STEP_UNBYTES,  /* the other way; all pieces become one; what is not UTF-8, U+FFFD */
    ZFL_STEP_FALLBACK, /* pieces <0x00> .. <0xFF> become the characters with these bytes */
    ZFL_STEP_FUSE,     /* all pieces become one */
    ZFL_STEP_TRIM /* spaces, or content up to `left` and `right` times, are taken off the ends */
} zfl_step_kind;

/* What becomes of matches. */
typedef enum zfl_step_split {
    ZFL_SPLIT_REMOVE,  /* they go */
    ZFL_SPLIT_ISOLATE, /* they are pieces */
    ZFL_SPLIT_BEFORE,  /* they end the piece before */
    ZFL_SPLIT_BEHIND,  /* they begin the piece after */
    ZFL_SPLIT_RUNS     /* they are pieces, adjacent ones together */
} zfl_step_split;

typedef struct zfl_step {
    zfl_step_kind kind;
    char *content;
    size_t bytes;
    bool first_only;  /* LEAD: the first piece alone; REPLACE: the piece number 0 alone */
    zfl_regex *regex; /* REPLACE, SPLIT: what matches; NULL: literal */
    char *literal;
    size_t literal_bytes;
    zfl_step_split split;
    bool invert;         /* SPLIT: what is between matches is the match */
    zf_normal_form form; /* FORM */
    bool spaces;         /* TRIM: all white space */
    int64_t left, right; /* TRIM */
} zfl_step;

enum { ZFL_STEPS = 16 };

typedef struct zfl_steps {
    zfl_step list[ZFL_STEPS];
    int count;
} zfl_steps;

static void zfl_pieces_clear(zfl_pieces *p)
{
    zf_text_clear(&p->text);
    p->count = 0;
}

static void zfl_pieces_free(zfl_pieces *p)
{
    zf_text_free(&p->text);
    free(p->list);
    *p = (zfl_pieces){.list = NULL};
}

/* Makes the text from `begin` on a piece. */
static void zfl_close_piece(zfl_pieces *p, size_t begin, bool first)
{
    zfl_piece *list = zfl_list_grow(p->list, p->count, &p->room, sizeof *list);
    if (!list) {
        p->text.failed = true;
        return;
    }
    p->list = list;
    p->list[p->count++] = (zfl_piece){begin, p->text.count, first};
}

/* Appends a piece. Out of memory: text.failed. */
static void zfl_pieces_add(zfl_pieces *p, const char *text, size_t bytes, bool first)
{
    size_t begin = p->text.count;
    zf_text_add(&p->text, text, bytes);
    zfl_close_piece(p, begin, first);
}

static void zfl_steps_free(zfl_steps *s)
{
    for (int i = 0; i < s->count; i++) {
        free(s->list[i].content);
        free(s->list[i].literal);
        zfl_regex_free(s->list[i].regex);
    }
    s->count = 0;
}

/* ---------------------------------------------------------------------------------- matches */

/* The first place of some bytes in a text; NULL: they are not in it. */
static const char *zfl_find_bytes(const char *text, const char *end, const char *bytes,
                                  size_t count)
{
    const char *at = text;
    while ((size_t)(end - at) >= count && (at = memchr(at, *bytes, (size_t)(end - at) - count + 1)))
        if (!memcmp(at, bytes, count)) return at;
        else at++;
    return NULL;
}

/* Calls `found` for each match of a step. */
static bool zfl_each_match(const zfl_step *s, const char *text, size_t bytes,
                           zfl_regex_found *found, void *user, zf_error *error)
{
    const char *at = text, *end = text + bytes;
    if (s->regex) return zfl_regex_each(s->regex, text, bytes, found, user, error);
    while (s->literal_bytes && at < end &&
           (at = zfl_find_bytes(at, end, s->literal, s->literal_bytes))) {
        found(user, (size_t)(at - text), (size_t)(at - text) + s->literal_bytes);
        at += s->literal_bytes;
    }
    return true;
}

/* A piece that is rewritten at matches. */
typedef struct zfl_rewriting {
    const zfl_step *step;
    const char *text;
    zfl_pieces *out;
    size_t last;  /* the end of the last match */
    size_t begin; /* SPLIT: of the piece that is open, which ends at `last` or later */
    bool first, open, open_match;
} zfl_rewriting;

static void zfl_replace(void *user, size_t begin, size_t end)
{
    zfl_rewriting *r = user;
    zf_text_add(&r->out->text, r->text + r->last, begin - r->last);
    zf_text_add(&r->out->text, r->step->content, r->step->bytes);
    r->last = end;
}

/* Ends the open piece before `end`. */
static void zfl_steps_flush(zfl_rewriting *r, size_t end)
{
    if (r->open && end > r->begin)
        zfl_pieces_add(r->out, r->text + r->begin, end - r->begin, r->first && !r->begin);
    r->open = false;
}

/* Begins a match, or the text between two. */
static void zfl_stretch(zfl_rewriting *r, size_t begin, bool match)
{
    bool joins = false;
    match = match != r->step->invert;
    switch (r->step->split) {
    case ZFL_SPLIT_REMOVE:
    case ZFL_SPLIT_ISOLATE: break;
    case ZFL_SPLIT_BEFORE: joins = match && !r->open_match; break;
    case ZFL_SPLIT_BEHIND: joins = !match && r->open_match; break;
    case ZFL_SPLIT_RUNS: joins = match == r->open_match; break;
    }
    if (!r->open || !joins) {
        zfl_steps_flush(r, begin);
        r->begin = begin, r->open = true;
    }
    r->open_match = match;
    if (match && r->step->split == ZFL_SPLIT_REMOVE) r->open = false;
}

static void zfl_split(void *user, size_t begin, size_t end)
{
    zfl_rewriting *r = user;
    if (begin > r->last) zfl_stretch(r, r->last, false);
    zfl_stretch(r, begin, true);
    r->last = end;
}

/* ------------------------------------------------------------------------------------ bytes */

/* The character that stands for a byte in the vocabularies of ByteLevel. */
static uint32_t zfl_byte_character(unsigned char byte)
{
    /* Printed characters stand for themselves; the others follow U+00FF in order. */
    static const unsigned char hidden[][3] = {{0, 0x20, 0}, {0x7F, 0xA0, 33}, {0xAD, 0xAD, 67}};
    for (int k = 0; k < 3; k++)
        if (byte >= hidden[k][0] && byte <= hidden[k][1])
            return 0x100u + hidden[k][2] + byte - hidden[k][0];
    return byte;
}

/* The byte that a character means; -1: none. */
static int zfl_character_byte(uint32_t c)
{
    if (c < 0x100) return zfl_byte_character((unsigned char)c) == c ? (int)c : -1;
    if (c < 0x100 + 33) return (int)(c - 0x100);
    if (c < 0x100 + 67) return (int)(c - 0x100 - 33 + 0x7F);
    return c == 0x100 + 67 ? 0xAD : -1;
}

/* Appends the bytes of a text of such characters; with other characters, the text itself. */
static void zfl_add_bytes(zf_text *out, const char *text, size_t bytes)
{
    size_t before = out->count, at = 0;
    while (at < bytes) {
        uint32_t c;
        int n = zfl_utf8_decode((const unsigned char *)text + at, bytes - at, &c), byte;
        if (!n || (byte = zfl_character_byte(c)) < 0) {
            if (!out->failed) out->count = before;
            zf_text_add(out, text, bytes);
            return;
        }
        zf_text_add(out, &(char){(char)byte}, 1);
        at += (size_t)n;
    }
}

/* The length of the invalid bytes at p that one U+FFFD replaces: the longest beginning of a
 * character, or one byte. */
static size_t zfl_wrong_bytes(const unsigned char *p, size_t n)
{
    size_t length = p[0] < 0xC2 || p[0] > 0xF4 ? 1 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4, at;
    unsigned char low = p[0] == 0xE0   ? 0xA0
                        : p[0] == 0xF0 ? 0x90
                                       : 0x80,
                  high = p[0] == 0xED   ? 0x9F
                         : p[0] == 0xF4 ? 0x8F
                                        : 0xBF;
    for (at = 1; at < length && at < n; at++, low = 0x80, high = 0xBF)
        if (p[at] < low || p[at] > high) break;
    return at;
}

static void zfl_add_lossy(zf_text *out, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t good = zfl_utf8_valid(text + at, bytes - at);
        zf_text_add(out, text + at, good);
        if ((at += good) == bytes) break;
        zf_text_add_character(out, 0xFFFD);
        at += zfl_wrong_bytes((const unsigned char *)text + at, bytes - at);
    }
}

/* The byte of a piece <0xHH>; -1: it is no such piece. */
static int zfl_fallback_byte(const char *text, size_t bytes)
{
    static const char digits[] = "0123456789ABCDEF0123456789abcdef";
    const char *high, *low;
    if (bytes != 6 || memcmp(text, "<0x", 3) || text[5] != '>') return -1;
    if (!text[3] || !text[4] || !(high = strchr(digits, text[3])) ||
        !(low = strchr(digits, text[4])))
        return -1;
    return (int)((high - digits) % 16 * 16 + (low - digits) % 16);
}

/* Ends a run of such bytes: valid UTF-8, or else U+FFFD for each. */
static void zfl_end_run(zfl_pieces *out, zf_text *run, bool first)
{
    size_t begin = out->text.count;
    if (!run->count) return;
    if (zfl_utf8_valid(run->at, run->count) == run->count) {
        zfl_pieces_add(out, run->at, run->count, first);
    } else {
        for (size_t i = 0; i < run->count; i++) zf_text_add_character(&out->text, 0xFFFD);
        zfl_close_piece(out, begin, first);
    }
    zf_text_clear(run);
}

static void zfl_fall_back(const zfl_pieces *in, zfl_pieces *out)
{
    zf_text run = {.at = NULL};
    for (size_t i = 0; i < in->count; i++) {
        const char *text = in->text.at + in->list[i].begin;
        size_t bytes = in->list[i].end - in->list[i].begin;
        int byte = zfl_fallback_byte(text, bytes);
        if (byte >= 0) {
            zf_text_add(&run, &(char){(char)byte}, 1);
            continue;
        }
        zfl_end_run(out, &run, !out->count);
        zfl_pieces_add(out, text, bytes, !out->count);
    }
    zfl_end_run(out, &run, !out->count);
    out->text.failed |= run.failed;
    zf_text_free(&run);
}

/* ------------------------------------------------------------------------------------ steps */

static void zfl_trim(const zfl_step *s, const char *text, size_t bytes, bool first, zfl_pieces *out)
{
    size_t begin = 0, n = s->bytes;
    for (int64_t k = 0; !s->spaces && k < s->left && begin + n <= bytes; k++, begin += n)
        if (memcmp(text + begin, s->content, n)) break;
    for (int64_t k = 0; !s->spaces && k < s->right && begin + n <= bytes; k++, bytes -= n)
        if (memcmp(text + bytes - n, s->content, n)) break;
    if (s->spaces) {
        uint32_t c;
        size_t end = begin;
        int length;
        for (size_t at = 0; at < bytes; at += (size_t)length) {
            length = zfl_utf8_decode((const unsigned char *)text + at, bytes - at, &c);
            if (!length) length = 1, c = 0;
            if (!zfl_is_space(c)) end = at + (size_t)length;
            else if (s->left && at == begin) begin += (size_t)length;
        }
        if (s->right) bytes = end > begin ? end : begin;
    }
    zfl_pieces_add(out, text + begin, bytes - begin, first);
}

static void zfl_add_lower(zf_text *out, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        uint32_t c, lower[3];
        const int n = zfl_utf8_decode((const unsigned char *)text + at, bytes - at, &c),
                  count = n ? zfl_uni_lower(c, lower) : 0;
        for (int i = 0; i < count; i++) zf_text_add_character(out, lower[i]);
        at += n ? (size_t)n : 1;
    }
}

/* Applies a step to one piece. */
static bool zfl_run_piece(const zfl_step *s, const char *text, size_t bytes, zfl_piece p,
                          size_t number, zfl_pieces *out, zf_error *error)
{
    zfl_rewriting r = {.step = s, .text = text, .out = out, .first = p.first};
    size_t begin = out->text.count;
    bool leads;
    switch (s->kind) {
    case ZFL_STEP_PREPEND:
    case ZFL_STEP_LEAD:
        leads =
            s->kind == ZFL_STEP_LEAD && (bytes >= s->bytes && !memcmp(text, s->content, s->bytes));
        if (bytes && !leads && (!s->first_only || p.first))
            zf_text_add(&out->text, s->content, s->bytes);
        zf_text_add(&out->text, text, bytes);
        break;
    case ZFL_STEP_REPLACE:
        if (!s->first_only || !number)
            if (!zfl_each_match(s, text, bytes, zfl_replace, &r, error)) return false;
        zf_text_add(&out->text, text + r.last, bytes - r.last);
        break;
    case ZFL_STEP_FORM: zf_text_normalize(text, bytes, s->form, &out->text); break;
    case ZFL_STEP_LOWER: zfl_add_lower(&out->text, text, bytes); break;
    case ZFL_STEP_BYTES:
        for (size_t i = 0; i < bytes; i++)
            zf_text_add_character(&out->text, zfl_byte_character((unsigned char)text[i]));
        break;
    case ZFL_STEP_SPLIT:
        if (!zfl_each_match(s, text, bytes, zfl_split, &r, error)) return false;
        if (bytes > r.last) zfl_stretch(&r, r.last, false);
        zfl_steps_flush(&r, bytes);
        return true;
    case ZFL_STEP_TRIM: zfl_trim(s, text, bytes, p.first, out); return true;
    default: break;
    }
    zfl_close_piece(out, begin, p.first);
    return true;
}

static bool zfl_run_step(const zfl_step *s, const zfl_pieces *in, zfl_pieces *out, zf_error *error)
{
    zf_text joined = {.at = NULL};
    zfl_pieces_clear(out);
    switch (s->kind) {
    case ZFL_STEP_FALLBACK: zfl_fall_back(in, out); return true;
    case ZFL_STEP_FUSE: zfl_pieces_add(out, in->text.at, in->text.count, true); return true;
    case ZFL_STEP_UNBYTES:
        for (size_t i = 0; i < in->count; i++)
            zfl_add_bytes(&joined, in->text.at + in->list[i].begin,
                          in->list[i].end - in->list[i].begin);
        zfl_add_lossy(&out->text, joined.at, joined.count);
        zfl_close_piece(out, 0, true);
        out->text.failed |= joined.failed;
        zf_text_free(&joined);
        return true;
    default: break;
    }
    for (size_t i = 0; i < in->count; i++) {
        zfl_piece p = in->list[i];
        if (!zfl_run_piece(s, in->text.at + p.begin, p.end - p.begin, p, i, out, error))
            return false;
    }
    return true;
}

/* Puts *p through all steps; *q is room. False with *error. */
static bool zfl_steps_run(const zfl_steps *s, zfl_pieces *p, zfl_pieces *q, zf_error *error)
{
    for (int i = 0; i < s->count; i++) {
        zfl_pieces swap = *p;
        if (!zfl_run_step(&s->list[i], p, q, error)) return false;
        *p = *q, *q = swap;
        if (p->text.failed || q->text.failed) break;
    }
    return !(p->text.failed || q->text.failed) || zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
}
