#include "bpe.h"
#include "wordpiece.h"

#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------- vocabulary */

/* A power of two that is at least twice the count. */
static size_t slots_of(size_t count)
{
    size_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    return slots;
}

bool bpe_open(bpe *b, int32_t size, size_t merges)
{
    size_t slots = slots_of((size_t)size), merge_slots = slots_of(merges);
    b->tokens = malloc(((size_t)size + 1) * sizeof *b->tokens);
    b->slots = malloc(slots * sizeof *b->slots);
    b->merges = malloc(merge_slots * sizeof *b->merges);
    b->mask = slots - 1, b->merge_mask = merge_slots - 1;
    b->size = size, b->unknown = -1;
    for (int k = 0; k < 256; k++) b->bytes[k] = -1;
    if (!b->tokens || !b->slots || !b->merges) return false;
    for (int32_t id = 0; id < size; id++) b->tokens[id] = (bpe_token){0, -1};
    for (size_t k = 0; k < slots; k++) b->slots[k] = -1;
    for (size_t k = 0; k < merge_slots; k++) b->merges[k].rank = -1;
    return true;
}

void bpe_close(bpe *b)
{
    buffer_free(&b->text);
    free(b->tokens);
    free(b->slots);
    free(b->merges);
    free(b->prefix);
    free(b->suffix);
    *b = (bpe){.tokens = NULL};
}

/* The slot of a token, or the free slot where it belongs. */
static int32_t *slot_of(const bpe *b, const char *text, size_t bytes)
{
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a */
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001B3u;
    for (size_t at = (size_t)(hash ^ hash >> 29);; at++) {
        int32_t *slot = &b->slots[at & b->mask];
        const bpe_token *t;
        if (*slot < 0) return slot;
        t = &b->tokens[*slot];
        if ((size_t)t->bytes == bytes && !memcmp(b->text.at + t->at, text, bytes)) return slot;
    }
}

bool bpe_add(bpe *b, const char *text, size_t bytes, int32_t id)
{
    size_t at = b->text.count;
    if (b->tokens[id].bytes >= 0) return false;
    buffer_add(&b->text, text, bytes);
    buffer_add(&b->text, "", 1);
    if (b->text.failed) return false;
    *slot_of(b, text, bytes) = id;
    b->tokens[id] = (bpe_token){at, (int32_t)bytes};
    return true;
}

int32_t bpe_find(const bpe *b, const char *text, size_t bytes) { return *slot_of(b, text, bytes); }

static bpe_merge *merge_of(const bpe *b, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t hash = pair * 0x9E3779B97F4A7C15u;
    for (size_t at = (size_t)(hash >> 20);; at++) {
        bpe_merge *m = &b->merges[at & b->merge_mask];
        if (m->rank < 0 || m->pair == pair) return m;
    }
}

void bpe_add_merge(bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    *merge_of(b, left, right) =
        (bpe_merge){(uint64_t)(uint32_t)left << 32 | (uint32_t)right, rank, id};
}

/* ------------------------------------------------------------------------------------- words */

/* A token of a word during merging. */
struct symbol {
    int32_t id;             /* -1: merged into the one before */
    int32_t before, behind; /* -1: none */
};

/* A pair that may be merged. */
struct candidate {
    int32_t rank, at, id;
};

void bpe_work_free(bpe_work *w)
{
    free(w->symbols);
    free(w->heap);
    buffer_free(&w->key);
    *w = (bpe_work){.symbols = NULL};
}

static bool put_symbol(bpe_work *w, int32_t id)
{
    struct symbol *symbols = list_grow(w->symbols, w->count, &w->room, sizeof *symbols);
    if (!symbols) return false;
    w->symbols = symbols;
    w->symbols[w->count] = (struct symbol){id, (int32_t)w->count - 1, -1};
    if (w->count) w->symbols[w->count - 1].behind = (int32_t)w->count;
    w->count++;
    return true;
}

static bool is_less(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

/* Adds the pair of a symbol and the next one to the candidates, if it can be merged. */
static bool put_candidate(const bpe *b, bpe_work *w, int32_t at)
{
    const struct symbol *s = &w->symbols[at];
    const bpe_merge *m = s->behind < 0 ? NULL : merge_of(b, s->id, w->symbols[s->behind].id);
    struct candidate *heap, c;
    size_t place = w->waiting;
    if (!m || m->rank < 0) return true;
    heap = list_grow(w->heap, w->waiting, &w->heap_room, sizeof *heap);
    if (!heap) return false;
    w->heap = heap;
    w->waiting++;
    for (c = (struct candidate){m->rank, at, m->id}; place; place = (place - 1) / 2) {
        if (!is_less(&c, &heap[(place - 1) / 2])) break;
        heap[place] = heap[(place - 1) / 2];
    }
    heap[place] = c;
    return true;
}

static struct candidate take_candidate(bpe_work *w)
{
    struct candidate least = w->heap[0], last = w->heap[--w->waiting];
    size_t place = 0, child;
    for (; (child = 2 * place + 1) < w->waiting; place = child) {
        if (child + 1 < w->waiting && is_less(&w->heap[child + 1], &w->heap[child])) child++;
        if (!is_less(&w->heap[child], &last)) break;
        w->heap[place] = w->heap[child];
    }
    w->heap[place] = last;
    return least;
}

static bool merge(const bpe *b, bpe_work *w)
{
    w->waiting = 0;
    for (size_t i = 0; i + 1 < w->count; i++)
        if (!put_candidate(b, w, (int32_t)i)) return false;
    while (w->waiting) {
        struct candidate c = take_candidate(w);
        struct symbol *s = &w->symbols[c.at], *right;
        const bpe_merge *m;
        if (s->id < 0 || s->behind < 0) continue;
        right = &w->symbols[s->behind];
        m = merge_of(b, s->id, right->id);
        if (m->rank < 0 || m->id != c.id) continue; /* one of the two has changed */
        s->id = c.id, s->behind = right->behind, right->id = -1;
        if (s->behind >= 0) w->symbols[s->behind].before = c.at;
        if (s->before >= 0 && !put_candidate(b, w, s->before)) return false;
        if (!put_candidate(b, w, c.at)) return false;
    }
    return true;
}

/* The tokens of the bytes of a character; false where one has none. */
static bool has_bytes(const bpe *b, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (b->bytes[(unsigned char)text[i]] < 0) return false;
    return b->fall_back;
}

/* A character as it is in the vocabulary: with prefix and suffix. */
static const char *key_of(const bpe *b, bpe_work *w, const char *text, size_t *bytes, bool first,
                          bool last)
{
    bool prefix = b->prefix && !first, suffix = b->suffix && last;
    if (!prefix && !suffix) return text;
    buffer_clear(&w->key);
    if (prefix) buffer_add_text(&w->key, b->prefix);
    buffer_add(&w->key, text, *bytes);
    if (suffix) buffer_add_text(&w->key, b->suffix);
    *bytes = w->key.count;
    return w->key.failed ? NULL : w->key.at;
}

/* Makes the symbols of a word's characters. An unknown character is held back until the next known
 * one, to be fused with its neighbours; bytes are not. */
static bool begin(const bpe *b, bpe_work *w, const char *text, size_t bytes)
{
    bool unknown = false;
    for (size_t at = 0; at < bytes;) {
        uint32_t c;
        int length = bert_decode((const unsigned char *)text + at, bytes - at, &c);
        size_t n = length ? (size_t)length : 1;
        const char *key = key_of(b, w, text + at, &n, !at, at + n == bytes);
        int32_t id;
        at += length ? (size_t)length : 1;
        if (!key) return false;
        if ((id = bpe_find(b, key, n)) >= 0) {
            if (unknown && !put_symbol(w, b->unknown)) return false;
            unknown = false;
            if (!put_symbol(w, id)) return false;
        } else if (has_bytes(b, key, n)) {
            for (size_t i = 0; i < n; i++)
                if (!put_symbol(w, b->bytes[(unsigned char)key[i]])) return false;
        } else if (b->unknown >= 0) {
            if (unknown && !b->fuse && !put_symbol(w, b->unknown)) return false;
            unknown = true;
        }
    }
    return !unknown || put_symbol(w, b->unknown);
}

bool bpe_word(const bpe *b, bpe_work *w, const char *text, size_t bytes, id_list *out)
{
    int32_t id = b->whole && bytes ? bpe_find(b, text, bytes) : -1;
    w->count = 0;
    if (id >= 0) {
        id_list_add(out, id);
        return !out->failed;
    }
    if (bytes > INT32_MAX / 2 || !begin(b, w, text, bytes) || !merge(b, w)) return false;
    for (size_t i = 0; i < w->count; i++)
        if (w->symbols[i].id >= 0) id_list_add(out, w->symbols[i].id);
    return !out->failed;
}
