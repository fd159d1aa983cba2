/* Byte pair encoding: a word begins as its characters. Repeatedly, the pair of neighbours whose
 * merge comes first in the list of merges becomes one token; of equal pairs, the left one.
 *
 *     h u g s   -- u g: 1st -->   h ug s   -- h ug: 2nd -->   hug s
 *
 * A word of n characters takes time in proportion to n log n. */
#include <stdlib.h>
#include <string.h>

typedef struct zfl_bpe_token {
    size_t at;     /* into the text */
    int32_t bytes; /* -1: no token has this id */
} zfl_bpe_token;

typedef struct zfl_bpe_merge {
    uint64_t pair; /* left << 32 | right */
    int32_t rank;  /* -1: a free slot */
    int32_t id;    /* the token that they become */
} zfl_bpe_merge;

typedef struct zfl_bpe {
    zf_text text;
    zfl_bpe_token *tokens; /* by id */
    int32_t size;          /* the largest id plus one */
    int32_t *slots;        /* ids by hash; -1: free */
    size_t mask;
    zfl_bpe_merge *merges;
    size_t merge_mask;
    char *prefix, *suffix; /* of characters but the first; of the last; may be NULL */
    int32_t unknown;       /* the token for a character without one; -1: none */
    bool fuse;             /* one such token for several in a row */
    bool fall_back;        /* its bytes replace it if all of them have tokens */
    bool whole;            /* a word that is a token is not split */
    int32_t bytes[256];    /* tokens <0x00> .. <0xFF>; -1: there is none */
} zfl_bpe;

/* Memory for splitting a word. */
typedef struct zfl_bpe_work {
    struct zfl_symbol *symbols;
    struct zfl_candidate *heap;
    size_t count, room, waiting, heap_room;
    zf_text key;
} zfl_bpe_work;

/* -------------------------------------------------------------------------------- vocabulary */

/* A power of two that is at least twice the count. */
static size_t zfl_slots_of(size_t count)
{
    size_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    return slots;
}

/* Makes room for ids below `size` and for so many merges; false out of memory. */
static bool zfl_bpe_open(zfl_bpe *b, int32_t size, size_t merges)
{
    size_t slots = zfl_slots_of((size_t)size), merge_slots = zfl_slots_of(merges);
    b->tokens = malloc(((size_t)size + 1) * sizeof *b->tokens);
    b->slots = malloc(slots * sizeof *b->slots);
    b->merges = malloc(merge_slots * sizeof *b->merges);
    b->mask = slots - 1, b->merge_mask = merge_slots - 1;
    b->size = size, b->unknown = -1;
    for (int k = 0; k < 256; k++) b->bytes[k] = -1;
    if (!b->tokens || !b->slots || !b->merges) return false;
    for (int32_t id = 0; id < size; id++) b->tokens[id] = (zfl_bpe_token){0, -1};
    for (size_t k = 0; k < slots; k++) b->slots[k] = -1;
    for (size_t k = 0; k < merge_slots; k++) b->merges[k].rank = -1;
    return true;
}

static void zfl_bpe_close(zfl_bpe *b)
{
    zf_text_free(&b->text);
    free(b->tokens);
    free(b->slots);
    free(b->merges);
    free(b->prefix);
    free(b->suffix);
    *b = (zfl_bpe){.tokens = NULL};
}

/* The slot of a token, or the free slot where it belongs. */
static int32_t *zfl_slot_of(const zfl_bpe *b, const char *text, size_t bytes)
{
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a */
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001B3u;
    for (size_t at = (size_t)(hash ^ hash >> 29);; at++) {
        int32_t *slot = &b->slots[at & b->mask];
        const zfl_bpe_token *t;
        if (*slot < 0) return slot;
        t = &b->tokens[*slot];
        if ((size_t)t->bytes == bytes && !memcmp(b->text.at + t->at, text, bytes)) return slot;
    }
}

/* False: another token has the id, or out of memory (text.failed). */
static bool zfl_bpe_add(zfl_bpe *b, const char *text, size_t bytes, int32_t id)
{
    size_t at = b->text.count;
    if (b->tokens[id].bytes >= 0) return false;
    zf_text_add(&b->text, text, bytes);
    zf_text_add(&b->text, "", 1);
    if (b->text.failed) return false;
    *zfl_slot_of(b, text, bytes) = id;
    b->tokens[id] = (zfl_bpe_token){at, (int32_t)bytes};
    return true;
}

static int32_t zfl_bpe_find(const zfl_bpe *b, const char *text, size_t bytes)
{
    return *zfl_slot_of(b, text, bytes);
}

static zfl_bpe_merge *zfl_merge_of(const zfl_bpe *b, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t hash = pair * 0x9E3779B97F4A7C15u;
    for (size_t at = (size_t)(hash >> 20);; at++) {
        zfl_bpe_merge *m = &b->merges[at & b->merge_mask];
        if (m->rank < 0 || m->pair == pair) return m;
    }
}

static void zfl_bpe_add_merge(zfl_bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    *zfl_merge_of(b, left, right) =
        (zfl_bpe_merge){(uint64_t)(uint32_t)left << 32 | (uint32_t)right, rank, id};
}

/* ------------------------------------------------------------------------------------- words */

/* A token of a word during merging. */
struct zfl_symbol {
    int32_t id;             /* -1: merged into the one before */
    int32_t before, after; /* -1: none */
};

/* A pair that may be merged. */
struct zfl_candidate {
    int32_t rank, at, id;
};

static void zfl_bpe_work_free(zfl_bpe_work *w)
{
    free(w->symbols);
    free(w->heap);
    zf_text_free(&w->key);
    *w = (zfl_bpe_work){.symbols = NULL};
}

static bool zfl_put_symbol(zfl_bpe_work *w, int32_t id)
{
    struct zfl_symbol *symbols = zfl_list_grow(w->symbols, w->count, &w->room, sizeof *symbols);
    if (!symbols) return false;
    w->symbols = symbols;
    w->symbols[w->count] = (struct zfl_symbol){id, (int32_t)w->count - 1, -1};
    if (w->count) w->symbols[w->count - 1].after = (int32_t)w->count;
    w->count++;
    return true;
}

static bool zfl_is_less(const struct zfl_candidate *a, const struct zfl_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

/* Adds the pair of a symbol and the next one to the candidates, if it can be merged. */
static bool zfl_put_candidate(const zfl_bpe *b, zfl_bpe_work *w, int32_t at)
{
    const struct zfl_symbol *s = &w->symbols[at];
    const zfl_bpe_merge *m =
        s->after < 0 ? NULL : zfl_merge_of(b, s->id, w->symbols[s->after].id);
    struct zfl_candidate *heap, c;
    size_t place = w->waiting;
    if (!m || m->rank < 0) return true;
    heap = zfl_list_grow(w->heap, w->waiting, &w->heap_room, sizeof *heap);
    if (!heap) return false;
    w->heap = heap;
    w->waiting++;
    for (c = (struct zfl_candidate){m->rank, at, m->id}; place; place = (place - 1) / 2) {
        if (!zfl_is_less(&c, &heap[(place - 1) / 2])) break;
        heap[place] = heap[(place - 1) / 2];
    }
    heap[place] = c;
    return true;
}

static struct zfl_candidate zfl_take_candidate(zfl_bpe_work *w)
{
    struct zfl_candidate least = w->heap[0], last = w->heap[--w->waiting];
    size_t place = 0, child;
    for (; (child = 2 * place + 1) < w->waiting; place = child) {
        if (child + 1 < w->waiting && zfl_is_less(&w->heap[child + 1], &w->heap[child])) child++;
        if (!zfl_is_less(&w->heap[child], &last)) break;
        w->heap[place] = w->heap[child];
    }
    w->heap[place] = last;
    return least;
}

static bool zfl_bpe_join(const zfl_bpe *b, zfl_bpe_work *w)
{
    w->waiting = 0;
    for (size_t i = 0; i + 1 < w->count; i++)
        if (!zfl_put_candidate(b, w, (int32_t)i)) return false;
    while (w->waiting) {
        struct zfl_candidate c = zfl_take_candidate(w);
        struct zfl_symbol *s = &w->symbols[c.at], *right;
        const zfl_bpe_merge *m;
        if (s->id < 0 || s->after < 0) continue;
        right = &w->symbols[s->after];
        m = zfl_merge_of(b, s->id, right->id);
        if (m->rank < 0 || m->id != c.id) continue; /* one of the two has changed */
        s->id = c.id, s->after = right->after, right->id = -1;
        if (s->after >= 0) w->symbols[s->after].before = c.at;
        if (s->before >= 0 && !zfl_put_candidate(b, w, s->before)) return false;
        if (!zfl_put_candidate(b, w, c.at)) return false;
    }
    return true;
}

/* The tokens of the bytes of a character; false where one has none. */
static bool zfl_has_bytes(const zfl_bpe *b, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (b->bytes[(unsigned char)text[i]] < 0) return false;
    return b->fall_back;
}

/* A character as it is in the vocabulary: with prefix and suffix. */
static const char *zfl_bpe_key_of(const zfl_bpe *b, zfl_bpe_work *w, const char *text,
                                  size_t *bytes, bool first, bool last)
{
    bool prefix = b->prefix && !first, suffix = b->suffix && last;
    if (!prefix && !suffix) return text;
    zf_text_clear(&w->key);
    if (prefix) zf_text_add_string(&w->key, b->prefix);
    zf_text_add(&w->key, text, *bytes);
    if (suffix) zf_text_add_string(&w->key, b->suffix);
    *bytes = w->key.count;
    return w->key.failed ? NULL : w->key.at;
}

/* Makes the symbols of a word's characters. An unknown character is held back until the next known
 * one, to be fused with its neighbours; bytes are not. */
static bool zfl_bpe_begin(const zfl_bpe *b, zfl_bpe_work *w, const char *text, size_t bytes)
{
    bool unknown = false;
    for (size_t at = 0; at < bytes;) {
        uint32_t c;
        int length = zfl_utf8_decode((const unsigned char *)text + at, bytes - at, &c);
        size_t n = length ? (size_t)length : 1;
        const char *key = zfl_bpe_key_of(b, w, text + at, &n, !at, at + n == bytes);
        int32_t id;
        at += length ? (size_t)length : 1;
        if (!key) return false;
        if ((id = zfl_bpe_find(b, key, n)) >= 0) {
            if (unknown && !zfl_put_symbol(w, b->unknown)) return false;
            unknown = false;
            if (!zfl_put_symbol(w, id)) return false;
        } else if (zfl_has_bytes(b, key, n)) {
            for (size_t i = 0; i < n; i++)
                if (!zfl_put_symbol(w, b->bytes[(unsigned char)key[i]])) return false;
        } else if (b->unknown >= 0) {
            if (unknown && !b->fuse && !zfl_put_symbol(w, b->unknown)) return false;
            unknown = true;
        }
    }
    return !unknown || zfl_put_symbol(w, b->unknown);
}

/* Appends the tokens of a word; false out of memory. text: UTF-8. */
static bool zfl_bpe_word(const zfl_bpe *b, zfl_bpe_work *w, const char *text, size_t bytes,
                         zf_ids *out)
{
    int32_t id = b->whole && bytes ? zfl_bpe_find(b, text, bytes) : -1;
    w->count = 0;
    if (id >= 0) {
        zf_ids_add(out, id);
        return !out->failed;
    }
    if (bytes > INT32_MAX / 2 || !zfl_bpe_begin(b, w, text, bytes) || !zfl_bpe_join(b, w))
        return false;
    for (size_t i = 0; i < w->count; i++)
        if (w->symbols[i].id >= 0) zf_ids_add(out, w->symbols[i].id);
    return !out->failed;
}
