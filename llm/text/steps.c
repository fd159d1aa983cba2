#define _GNU_SOURCE /* memmem */
#include "steps.h"
#include "../base/fail.h"
#include "normal.h"
#include "wordpiece.h"

#include <stdlib.h>
#include <string.h>

void pieces_clear(pieces *p)
{
    buffer_clear(&p->text);
    p->count = 0;
}

void pieces_free(pieces *p)
{
    buffer_free(&p->text);
    free(p->list);
    *p = (pieces){.list = NULL};
}

/* Makes the text from `begin` on a piece. */
static void close_piece(pieces *p, size_t begin, bool first)
{
    piece *list = list_grow(p->list, p->count, &p->room, sizeof *list);
    if (!list) {
        p->text.failed = true;
        return;
    }
    p->list = list;
    p->list[p->count++] = (piece){begin, p->text.count, first};
}

void pieces_add(pieces *p, const char *text, size_t bytes, bool first)
{
    size_t begin = p->text.count;
    buffer_add(&p->text, text, bytes);
    close_piece(p, begin, first);
}

void steps_free(steps *s)
{
    for (int i = 0; i < s->count; i++) {
        free(s->list[i].content);
        free(s->list[i].literal);
        regex_free(s->list[i].regex);
    }
    s->count = 0;
}

/* ---------------------------------------------------------------------------------- matches */

/* Calls `found` for each match of a step. */
static bool each_match(const step *s, const char *text, size_t bytes, regex_found *found,
                       void *user, zf_error *error)
{
    const char *at = text, *end = text + bytes;
    if (s->regex) return regex_each(s->regex, text, bytes, found, user, error);
    while (s->literal_bytes && at < end &&
           (at = memmem(at, (size_t)(end - at), s->literal, s->literal_bytes))) {
        found(user, (size_t)(at - text), (size_t)(at - text) + s->literal_bytes);
        at += s->literal_bytes;
    }
    return true;
}

/* A piece that is rewritten at matches. */
typedef struct rewriting {
    const step *step;
    const char *text;
    pieces *out;
    size_t last;  /* the end of the last match */
    size_t begin; /* SPLIT: of the piece that is open, which ends at `last` or later */
    bool first, open, open_match;
} rewriting;

static void replace(void *user, size_t begin, size_t end)
{
    rewriting *r = user;
    buffer_add(&r->out->text, r->text + r->last, begin - r->last);
    buffer_add(&r->out->text, r->step->content, r->step->bytes);
    r->last = end;
}

/* Ends the open piece before `end`. */
static void flush(rewriting *r, size_t end)
{
    if (r->open && end > r->begin)
        pieces_add(r->out, r->text + r->begin, end - r->begin, r->first && !r->begin);
    r->open = false;
}

/* Begins a match, or the text between two. */
static void stretch(rewriting *r, size_t begin, bool match)
{
    bool joins = false;
    match = match != r->step->invert;
    switch (r->step->split) {
    case SPLIT_REMOVE:
    case SPLIT_ISOLATE: break;
    case SPLIT_BEFORE: joins = match && !r->open_match; break;
    case SPLIT_BEHIND: joins = !match && r->open_match; break;
    case SPLIT_RUNS: joins = match == r->open_match; break;
    }
    if (!r->open || !joins) {
        flush(r, begin);
        r->begin = begin, r->open = true;
    }
    r->open_match = match;
    if (match && r->step->split == SPLIT_REMOVE) r->open = false;
}

static void split(void *user, size_t begin, size_t end)
{
    rewriting *r = user;
    if (begin > r->last) stretch(r, r->last, false);
    stretch(r, begin, true);
    r->last = end;
}

/* ------------------------------------------------------------------------------------ bytes */

uint32_t byte_character(unsigned char byte)
{
    /* Printed characters stand for themselves; the others follow U+00FF in order. */
    static const unsigned char hidden[][3] = {{0, 0x20, 0}, {0x7F, 0xA0, 33}, {0xAD, 0xAD, 67}};
    for (int k = 0; k < 3; k++)
        if (byte >= hidden[k][0] && byte <= hidden[k][1])
            return 0x100u + hidden[k][2] + byte - hidden[k][0];
    return byte;
}

/* The byte for which a character stands; -1: none. */
static int character_byte(uint32_t c)
{
    if (c < 0x100) return byte_character((unsigned char)c) == c ? (int)c : -1;
    if (c < 0x100 + 33) return (int)(c - 0x100);
    if (c < 0x100 + 67) return (int)(c - 0x100 - 33 + 0x7F);
    return c == 0x100 + 67 ? 0xAD : -1;
}

/* Appends the bytes of a text of such characters; with other characters, the text itself. */
static void add_bytes(buffer *out, const char *text, size_t bytes)
{
    size_t before = out->count, at = 0;
    while (at < bytes) {
        uint32_t c;
        int n = bert_decode((const unsigned char *)text + at, bytes - at, &c), byte;
        if (!n || (byte = character_byte(c)) < 0) {
            if (!out->failed) out->count = before;
            buffer_add(out, text, bytes);
            return;
        }
        buffer_add(out, &(char){(char)byte}, 1);
        at += (size_t)n;
    }
}

/* The length of the invalid bytes at p that one U+FFFD replaces: the longest beginning of a
 * character, or one byte. */
static size_t wrong_bytes(const unsigned char *p, size_t n)
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

static void add_lossy(buffer *out, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t good = utf8_valid(text + at, bytes - at);
        buffer_add(out, text + at, good);
        if ((at += good) == bytes) break;
        buffer_add_character(out, 0xFFFD);
        at += wrong_bytes((const unsigned char *)text + at, bytes - at);
    }
}

/* The byte of a piece <0xHH>; -1: it is no such piece. */
static int fallback_byte(const char *text, size_t bytes)
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
static void end_run(pieces *out, buffer *run, bool first)
{
    size_t begin = out->text.count;
    if (!run->count) return;
    if (utf8_valid(run->at, run->count) == run->count) {
        pieces_add(out, run->at, run->count, first);
    } else {
        for (size_t i = 0; i < run->count; i++) buffer_add_character(&out->text, 0xFFFD);
        close_piece(out, begin, first);
    }
    buffer_clear(run);
}

static void fall_back(const pieces *in, pieces *out)
{
    buffer run = {.at = NULL};
    for (size_t i = 0; i < in->count; i++) {
        const char *text = in->text.at + in->list[i].begin;
        size_t bytes = in->list[i].end - in->list[i].begin;
        int byte = fallback_byte(text, bytes);
        if (byte >= 0) {
            buffer_add(&run, &(char){(char)byte}, 1);
            continue;
        }
        end_run(out, &run, !out->count);
        pieces_add(out, text, bytes, !out->count);
    }
    end_run(out, &run, !out->count);
    out->text.failed |= run.failed;
    buffer_free(&run);
}

/* ------------------------------------------------------------------------------------ steps */

static void trim(const step *s, const char *text, size_t bytes, bool first, pieces *out)
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
            length = bert_decode((const unsigned char *)text + at, bytes - at, &c);
            if (!length) length = 1, c = 0;
            if (!bert_is_space(c)) end = at + (size_t)length;
            else if (s->left && at == begin) begin += (size_t)length;
        }
        if (s->right) bytes = end > begin ? end : begin;
    }
    pieces_add(out, text + begin, bytes - begin, first);
}

/* Applies a step to one piece. */
static bool run_piece(const step *s, const char *text, size_t bytes, piece p, size_t number,
                      pieces *out, zf_error *error)
{
    rewriting r = {.step = s, .text = text, .out = out, .first = p.first};
    size_t begin = out->text.count;
    bool leads;
    switch (s->kind) {
    case STEP_PREPEND:
    case STEP_LEAD:
        leads = s->kind == STEP_LEAD && (bytes >= s->bytes && !memcmp(text, s->content, s->bytes));
        if (bytes && !leads && (!s->first_only || p.first))
            buffer_add(&out->text, s->content, s->bytes);
        buffer_add(&out->text, text, bytes);
        break;
    case STEP_REPLACE:
        if (!s->first_only || !number)
            if (!each_match(s, text, bytes, replace, &r, error)) return false;
        buffer_add(&out->text, text + r.last, bytes - r.last);
        break;
    case STEP_FORM: normal_form(text, bytes, s->compose, &out->text); break;
    case STEP_BYTES:
        for (size_t i = 0; i < bytes; i++)
            buffer_add_character(&out->text, byte_character((unsigned char)text[i]));
        break;
    case STEP_SPLIT:
        if (!each_match(s, text, bytes, split, &r, error)) return false;
        if (bytes > r.last) stretch(&r, r.last, false);
        flush(&r, bytes);
        return true;
    case STEP_TRIM: trim(s, text, bytes, p.first, out); return true;
    default: break;
    }
    close_piece(out, begin, p.first);
    return true;
}

static bool run_step(const step *s, const pieces *in, pieces *out, zf_error *error)
{
    buffer joined = {.at = NULL};
    pieces_clear(out);
    switch (s->kind) {
    case STEP_FALLBACK: fall_back(in, out); return true;
    case STEP_FUSE: pieces_add(out, in->text.at, in->text.count, true); return true;
    case STEP_UNBYTES:
        for (size_t i = 0; i < in->count; i++)
            add_bytes(&joined, in->text.at + in->list[i].begin,
                      in->list[i].end - in->list[i].begin);
        add_lossy(&out->text, joined.at, joined.count);
        close_piece(out, 0, true);
        out->text.failed |= joined.failed;
        buffer_free(&joined);
        return true;
    default: break;
    }
    for (size_t i = 0; i < in->count; i++) {
        piece p = in->list[i];
        if (!run_piece(s, in->text.at + p.begin, p.end - p.begin, p, i, out, error)) return false;
    }
    return true;
}

bool steps_run(const steps *s, pieces *p, pieces *q, zf_error *error)
{
    for (int i = 0; i < s->count; i++) {
        pieces swap = *p;
        if (!run_step(&s->list[i], p, q, error)) return false;
        *p = *q, *q = swap;
        if (p->text.failed || q->text.failed) break;
    }
    return !(p->text.failed || q->text.failed) || fail(error, ZF_ERR_NOMEM, "out of memory");
}
