/* Training of a WordPiece vocabulary: pairs of neighbours merged by frequency, over distinct words.
 *
 *     corpus --zf_wordpiece_words--> words with counts    "low" x 5     "lower" x 2
 *     characters become tokens                    l ##o ##w     l ##o ##w ##e ##r
 *     the most frequent pair becomes one token    l ##ow        l ##ow ##e ##r          7 times
 *     and so on                                   low           low ##e ##r
 *
 * Every pair has its count and a list of words in which it may occur, and a heap gives the most
 * frequent one, so a merge costs only what it changes. Counts in the heap may be outdated. One that
 * is too high is put back with the right count when it comes up; a count that rises is entered
 * again. So the largest true count is always found. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ZFL_ALPHABET = 1000, ZFL_LEAST_COUNT = 2, ZFL_BLOCK = 1 << 20 };

/* Makes room for one more element in a growing array. Returns the array, which may have moved; NULL
 * when memory runs out, and then the old one is unchanged. */
static void *zfl_grow(void *array, size_t n, size_t *room, size_t element)
{
    size_t more = *room ? *room : 4;
    if (array && n < *room) return array;
    if (array) {
        if (more > SIZE_MAX / 2 / element) return NULL;
        more *= 2;
    }
    array = realloc(array, more * element);
    if (array) *room = more;
    return array;
}

/* -------------------------------------------------------------------------------- string table */

typedef struct zfl_string {
    size_t at;
    uint32_t bytes, hash;
    int64_t count;
} zfl_string;

/* Distinct strings, numbered in order of insertion. {0} is an empty set. */
typedef struct zfl_strings {
    char *text;
    zfl_string *all;
    int32_t *slots; /* -1: free; at most half full */
    size_t bytes, text_room, n, room, slot_count;
} zfl_strings;

static void zfl_strings_free(zfl_strings *s)
{
    free(s->text);
    free(s->all);
    free(s->slots);
}

/* Doubles the index. */
static bool zfl_strings_rehash(zfl_strings *s)
{
    size_t count = s->slot_count ? 2 * s->slot_count : 1024;
    int32_t *slots = count > SIZE_MAX / sizeof *slots ? NULL : malloc(count * sizeof *slots);
    if (!slots) return false;
    memset(slots, 0xFF, count * sizeof *slots);
    for (size_t i = 0; i < s->n; i++) {
        size_t at = s->all[i].hash & (count - 1);
        while (slots[at] >= 0) at = (at + 1) & (count - 1);
        slots[at] = (int32_t)i;
    }
    free(s->slots);
    s->slots = slots;
    s->slot_count = count;
    return true;
}

/* The number of the string. If it is new, it is entered with `enter`; -1 where it is absent, or
 * where memory runs out. */
static int32_t zfl_strings_find(zfl_strings *s, const char *text, size_t bytes, bool enter)
{
    uint32_t hash = 2166136261u;
    size_t at;
    void *more;
    if (enter && 2 * s->n >= s->slot_count && !zfl_strings_rehash(s)) return -1;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    hash ^= hash >> 15;
    for (at = hash & (s->slot_count - 1); s->slots[at] >= 0; at = (at + 1) & (s->slot_count - 1)) {
        const zfl_string *known = &s->all[s->slots[at]];
        if (known->hash == hash && known->bytes == bytes &&
            !memcmp(s->text + known->at, text, bytes))
            return s->slots[at];
    }
    if (!enter || s->n >= INT32_MAX) return -1;
    if (!(more = zfl_grow(s->all, s->n, &s->room, sizeof *s->all))) return -1;
    s->all = more;
    while (!s->text || s->text_room - s->bytes < bytes) {
        if (!(more = zfl_grow(s->text, s->text_room, &s->text_room, 1))) return -1;
        s->text = more;
    }
    memcpy(s->text + s->bytes, text, bytes);
    s->all[s->n] = (zfl_string){s->bytes, (uint32_t)bytes, hash, 0};
    s->bytes += bytes;
    s->slots[at] = (int32_t)s->n;
    return (int32_t)s->n++;
}

/* The order of two of them, byte by byte. */
static int zfl_strings_compare(const zfl_strings *s, int32_t a, int32_t b)
{
    const zfl_string *x = &s->all[a], *y = &s->all[b];
    int order = memcmp(s->text + x->at, s->text + y->at, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* -------------------------------------------------------------------------------------- trainer */

typedef struct zfl_wordpiece_train_pair {
    int32_t left, right;
    int64_t count;
    int32_t *where; /* words that have or had it, ascending within a merge */
    size_t n, room;
    bool rose; /* in this merge */
} zfl_wordpiece_train_pair;

typedef struct zfl_entry {
    int64_t count;
    int32_t pair;
} zfl_entry;

typedef struct zfl_span {
    size_t at;
    int32_t n;
} zfl_span;

typedef struct zfl_trainer {
    zfl_strings words, characters, tokens;
    int32_t *symbols; /* of all words; a word shrinks in its place */
    zfl_span *spans;  /* one for each word */
    zfl_wordpiece_train_pair *pairs;
    int32_t *slots; /* -1: free; at most half full */
    size_t pair_count, pair_room, slot_count;
    zfl_entry *heap;
    size_t heap_count, heap_room;
    int32_t *risen; /* pairs with `rose` set */
    size_t risen_count, risen_room;
    bool full; /* memory ran out */
} zfl_trainer;

static void zfl_trainer_free(zfl_trainer *t)
{
    zfl_strings_free(&t->words);
    zfl_strings_free(&t->characters);
    zfl_strings_free(&t->tokens);
    for (size_t i = 0; i < t->pair_count; i++) free(t->pairs[i].where);
    free(t->symbols);
    free(t->spans);
    free(t->pairs);
    free(t->slots);
    free(t->heap);
    free(t->risen);
}

static void zfl_count_word(void *user, const char *word, size_t bytes)
{
    zfl_trainer *t = user;
    int32_t at;
    if (!word || t->full) return;
    at = zfl_strings_find(&t->words, word, bytes, true);
    if (at < 0) t->full = true;
    else t->words.all[at].count++;
}

/* Counts the words of the file, one block at a time; a block ends after a blank or a line, which no
 * word crosses. NULL, or the error; *line: of what is no text, else 0. */
static const char *zfl_count_words(zfl_trainer *t, const char *corpus,
                                   const zf_wordpiece_options *options, size_t *line)
{
    size_t bytes = 0, room = ZFL_BLOCK, end, mark, number = 1;
    bool begins = true;
    const char *why;
    FILE *f = zf_file_open(corpus, &end, &why);
    char *text = malloc(room), *more;
    if (!why && !text) why = "out of memory";
    while (!why && !feof(f)) {
        bytes += fread(text + bytes, 1, room - bytes, f);
        if (ferror(f)) {
            why = strerror(errno);
            break;
        }
        end = bytes;
        if (!feof(f))
            while (end && text[end - 1] != '\n' && text[end - 1] != ' ') end--;
        if ((why = zf_text_wrong(text, end, begins, &number))) {
            *line = number;
            break;
        }
        mark = begins ? zf_text_mark(text, end) : 0;
        begins = begins && !end;
        zf_wordpiece_words(text + mark, end - mark, options, zfl_count_word, t);
        memmove(text, text + end, bytes - end);
        bytes -= end;
        if (bytes == room) { /* no blank in all of it */
            more = room > SIZE_MAX / 2 ? NULL : realloc(text, 2 * room);
            if (!more) t->full = true;
            else text = more, room *= 2;
        }
        if (t->full) why = "out of memory";
    }
    if (f) fclose(f);
    free(text);
    if (!why && !t->words.n) why = "no words in it";
    return why;
}

/* The number of bytes of the first character of valid UTF-8. */
static size_t zfl_character_bytes(const char *text)
{
    unsigned char lead = (unsigned char)*text;
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

typedef struct zfl_ranked {
    const zfl_strings *of;
    int32_t id;
} zfl_ranked;

static int zfl_by_bytes(const void *a, const void *b)
{
    const zfl_ranked *x = a, *y = b;
    return zfl_strings_compare(x->of, x->id, y->id);
}

static int zfl_by_count(const void *a, const void *b)
{
    const zfl_ranked *x = a, *y = b;
    int64_t left = x->of->all[x->id].count, right = y->of->all[y->id].count;
    return left != right ? (left < right ? 1 : -1) : zfl_by_bytes(a, b);
}

/* Enters the special tokens and the alphabet, then the continuations that occur. */
static bool zfl_enter_alphabet(zfl_trainer *t)
{
    zfl_strings *chars = &t->characters;
    zfl_ranked *order = NULL;
    bool *inside = NULL, ok = false; /* inside: the character continues some word */
    size_t n;
    char piece[8] = "##";
    for (size_t w = 0; w < t->words.n; w++) {
        const zfl_string *word = &t->words.all[w];
        const char *text = t->words.text + word->at;
        for (size_t i = 0; i < word->bytes; i += zfl_character_bytes(text + i)) {
            int32_t c = zfl_strings_find(chars, text + i, zfl_character_bytes(text + i), true);
            if (c < 0) goto done;
            chars->all[c].count += word->count;
        }
    }
    order = malloc(chars->n * sizeof *order);
    inside = calloc(chars->n, sizeof *inside);
    if (!order || !inside) goto done;
    for (size_t w = 0; w < t->words.n; w++) {
        const zfl_string *word = &t->words.all[w];
        const char *text = t->words.text + word->at;
        for (size_t i = zfl_character_bytes(text); i < word->bytes;
             i += zfl_character_bytes(text + i))
            inside[zfl_strings_find(chars, text + i, zfl_character_bytes(text + i), false)] = true;
    }
    for (size_t i = 0; i < chars->n; i++) order[i] = (zfl_ranked){chars, (int32_t)i};
    n = chars->n < ZFL_ALPHABET ? chars->n : ZFL_ALPHABET;
    qsort(order, chars->n, sizeof *order, zfl_by_count);
    qsort(order, n, sizeof *order, zfl_by_bytes);
    for (int i = 0; i < ZF_WORDPIECE_SPECIAL_COUNT; i++) {
        const char *special = zf_wordpiece_special_token(i);
        if (zfl_strings_find(&t->tokens, special, strlen(special), true) < 0) goto done;
    }
    for (size_t i = 0; i < n; i++) {
        const zfl_string *c = &chars->all[order[i].id];
        if (zfl_strings_find(&t->tokens, chars->text + c->at, c->bytes, true) < 0) goto done;
    }
    for (size_t i = 0; i < n; i++) {
        const zfl_string *c = &chars->all[order[i].id];
        if (!inside[order[i].id]) continue;
        memcpy(piece + 2, chars->text + c->at, c->bytes);
        if (zfl_strings_find(&t->tokens, piece, 2 + c->bytes, true) < 0) goto done;
    }
    ok = true;
done:
    free(order);
    free(inside);
    return ok;
}

static uint32_t zfl_pair_hash(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32);
}

/* The number of the pair, which is entered if new; -1 when memory runs out. */
static int32_t zfl_pair_find(zfl_trainer *t, int32_t left, int32_t right)
{
    size_t at;
    void *more;
    if (2 * t->pair_count >= t->slot_count) {
        size_t count = t->slot_count ? 2 * t->slot_count : 1024;
        int32_t *slots = count > SIZE_MAX / sizeof *slots ? NULL : malloc(count * sizeof *slots);
        if (!slots) return -1;
        memset(slots, 0xFF, count * sizeof *slots);
        for (size_t i = 0; i < t->pair_count; i++) {
            at = zfl_pair_hash(t->pairs[i].left, t->pairs[i].right) & (count - 1);
            while (slots[at] >= 0) at = (at + 1) & (count - 1);
            slots[at] = (int32_t)i;
        }
        free(t->slots);
        t->slots = slots;
        t->slot_count = count;
    }
    for (at = zfl_pair_hash(left, right) & (t->slot_count - 1); t->slots[at] >= 0;
         at = (at + 1) & (t->slot_count - 1)) {
        const zfl_wordpiece_train_pair *known = &t->pairs[t->slots[at]];
        if (known->left == left && known->right == right) return t->slots[at];
    }
    if (t->pair_count >= INT32_MAX) return -1;
    if (!(more = zfl_grow(t->pairs, t->pair_count, &t->pair_room, sizeof *t->pairs))) return -1;
    t->pairs = more;
    t->pairs[t->pair_count] = (zfl_wordpiece_train_pair){.left = left, .right = right};
    t->slots[at] = (int32_t)t->pair_count;
    return (int32_t)t->pair_count++;
}

/* The pair occurs once more (+1) or once less (-1) in word number `word`. */
static bool zfl_count_pair(zfl_trainer *t, int32_t left, int32_t right, int32_t word, int sign)
{
    int32_t at = zfl_pair_find(t, left, right);
    zfl_wordpiece_train_pair *p;
    void *more;
    if (at < 0) return false;
    p = &t->pairs[at];
    p->count += sign * t->words.all[word].count;
    if (sign < 0) return true;
    if (!p->n || p->where[p->n - 1] != word) {
        if (!(more = zfl_grow(p->where, p->n, &p->room, sizeof *p->where))) return false;
        p->where = more;
        p->where[p->n++] = word;
    }
    if (!p->rose) {
        more = zfl_grow(t->risen, t->risen_count, &t->risen_room, sizeof *t->risen);
        if (!more) return false;
        t->risen = more;
        t->risen[t->risen_count++] = at;
        p->rose = true;
    }
    return true;
}

/* Whether a comes out of the heap before b: the more frequent, then the one of older tokens. */
static bool zfl_comes_before(const zfl_trainer *t, zfl_entry a, zfl_entry b)
{
    const zfl_wordpiece_train_pair *p = &t->pairs[a.pair], *q = &t->pairs[b.pair];
    if (a.count != b.count) return a.count > b.count;
    return p->left != q->left ? p->left < q->left : p->right < q->right;
}

static bool zfl_heap_push(zfl_trainer *t, int32_t at)
{
    zfl_entry e = {t->pairs[at].count, at};
    size_t i = t->heap_count;
    void *more;
    if (e.count < ZFL_LEAST_COUNT) return true;
    if (!(more = zfl_grow(t->heap, t->heap_count, &t->heap_room, sizeof *t->heap))) return false;
    t->heap = more;
    t->heap_count++;
    for (; i && zfl_comes_before(t, e, t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = e;
    return true;
}

static zfl_entry zfl_heap_pop(zfl_trainer *t)
{
    zfl_entry top = t->heap[0], last = t->heap[--t->heap_count];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < t->heap_count) {
        if (child + 1 < t->heap_count && zfl_comes_before(t, t->heap[child + 1], t->heap[child]))
            child++;
        if (!zfl_comes_before(t, t->heap[child], last)) break;
        t->heap[i] = t->heap[child];
        i = child;
    }
    t->heap[i] = last;
    return top;
}

/* Enters the pairs whose counts rose since the last call. */
static bool zfl_push_risen(zfl_trainer *t)
{
    while (t->risen_count) {
        int32_t at = t->risen[--t->risen_count];
        t->pairs[at].rose = false;
        if (!zfl_heap_push(t, at)) return false;
    }
    return true;
}

/* Writes the words in characters of the alphabet, without others, and counts all pairs. */
static bool zfl_enter_pairs(zfl_trainer *t)
{
    size_t total = 0, at = 0;
    char piece[8] = "##";
    for (size_t w = 0; w < t->words.n; w++) total += t->words.all[w].bytes;
    if (total > SIZE_MAX / sizeof *t->symbols) return false;
    t->symbols = malloc(total * sizeof *t->symbols);
    t->spans = malloc(t->words.n * sizeof *t->spans);
    if (!t->symbols || !t->spans) return false;
    for (size_t w = 0; w < t->words.n; w++) {
        const zfl_string *word = &t->words.all[w];
        const char *text = t->words.text + word->at;
        size_t start = at, bytes;
        for (size_t i = 0; i < word->bytes; i += bytes) {
            int32_t symbol;
            bytes = zfl_character_bytes(text + i);
            memcpy(piece + 2, text + i, bytes);
            symbol =
                zfl_strings_find(&t->tokens, i ? piece : piece + 2, i ? bytes + 2 : bytes, false);
            if (symbol >= 0) t->symbols[at++] = symbol;
        }
        t->spans[w] = (zfl_span){start, (int32_t)(at - start)};
        for (size_t i = start; i + 1 < at; i++)
            if (!zfl_count_pair(t, t->symbols[i], t->symbols[i + 1], (int32_t)w, +1)) return false;
    }
    return zfl_push_risen(t);
}

/* Replaces the pair by `merged` in one word. */
static bool zfl_merge_in_word(zfl_trainer *t, int32_t left, int32_t right, int32_t merged,
                              int32_t word)
{
    zfl_span *s = &t->spans[word];
    int32_t *x = t->symbols + s->at, n = 0;
    for (int32_t i = 0; i < s->n; i++) {
        if (x[i] != left || i + 1 == s->n || x[i + 1] != right) {
            x[n++] = x[i];
            continue;
        }
        if (n && (!zfl_count_pair(t, x[n - 1], left, word, -1) ||
                  !zfl_count_pair(t, x[n - 1], merged, word, +1)))
            return false;
        if (!zfl_count_pair(t, left, right, word, -1)) return false;
        x[n++] = merged;
        i++;
        if (i + 1 < s->n && (!zfl_count_pair(t, right, x[i + 1], word, -1) ||
                             !zfl_count_pair(t, merged, x[i + 1], word, +1)))
            return false;
    }
    s->n = n;
    return true;
}

/* Makes the pair one token in all words. */
static bool zfl_wordpiece_train_merge(zfl_trainer *t, int32_t at)
{
    zfl_wordpiece_train_pair p = t->pairs[at];
    const zfl_string *left = &t->tokens.all[p.left], *right = &t->tokens.all[p.right];
    char piece[4 * ZF_WORDPIECE_WORD_CHARS + 4];
    int32_t merged;
    bool ok = true;
    memcpy(piece, t->tokens.text + left->at, left->bytes);
    memcpy(piece + left->bytes, t->tokens.text + right->at + 2, right->bytes - 2); /* without ## */
    merged = zfl_strings_find(&t->tokens, piece, left->bytes + right->bytes - 2, true);
    if (merged < 0) return false;
    t->pairs[at].where = NULL; /* the pair will not occur in these words any more */
    t->pairs[at].n = t->pairs[at].room = 0;
    for (size_t i = 0; i < p.n && ok; i++)
        ok = zfl_merge_in_word(t, p.left, p.right, merged, p.where[i]);
    free(p.where);
    return ok && zfl_push_risen(t);
}

/* Merges until there are `size` tokens or no pair is left. */
static bool zfl_merge_pairs(zfl_trainer *t, int32_t size)
{
    while (t->heap_count && t->tokens.n < (size_t)size) {
        zfl_entry e = zfl_heap_pop(t);
        int64_t count = t->pairs[e.pair].count;
        if (e.count == count && !zfl_wordpiece_train_merge(t, e.pair)) return false;
        if (e.count > count && !zfl_heap_push(t, e.pair)) return false;
    }
    return true;
}

/* Writes the tokens, one a line. */
static bool zfl_write_tokens(const zfl_trainer *t, const char *path, zf_error *error)
{
    zf_text text = {.at = NULL};
    bool good;
    for (size_t i = 0; i < t->tokens.n; i++) {
        zf_text_add(&text, t->tokens.text + t->tokens.all[i].at, t->tokens.all[i].bytes);
        zf_text_add_string(&text, "\n");
    }
    good = text.failed ? zfl_fail(error, ZF_ERR_NOMEM, "out of memory")
                       : zf_file_save(path, text.at ? text.at : "", text.count, error);
    zf_text_free(&text);
    return good;
}

int32_t zf_wordpiece_train(const char *corpus, int32_t size, const zf_wordpiece_options *options,
                           const char *path, zf_error *error)
{
    zfl_trainer t = {0};
    zf_error here = {ZF_OK, ""};
    int32_t result = -1;
    size_t line = 0;
    const char *why = zfl_count_words(&t, corpus, options, &line);
    if (why && line) {
        zfl_tell(error, ZF_ERR_FORMAT, "%s: line %zu: %s", corpus, line, why);
    } else if (why) {
        zfl_tell(error, ZF_ERR_IO, "%s: %s", corpus, why);
    } else if (!zfl_enter_alphabet(&t)) {
        zfl_tell(error, ZF_ERR_NOMEM, "%s: out of memory", corpus);
    } else if (size < 0 || t.tokens.n > (size_t)size) {
        zfl_tell(error, ZF_ERR_ARGUMENT, "%s: %d tokens are too few: its characters alone need %zu",
                 corpus, (int)size, t.tokens.n);
    } else if (!zfl_enter_pairs(&t) || !zfl_merge_pairs(&t, size)) {
        zfl_tell(error, ZF_ERR_NOMEM, "%s: out of memory", corpus);
    } else if (zfl_write_tokens(&t, path, &here)) {
        result = (int32_t)t.tokens.n;
    } else {
        const bool full = here.status == ZF_ERR_NOMEM;
        zfl_tell(error, here.status, "%s%s%s", full ? path : "", full ? ": " : "", here.text);
    }
    zfl_trainer_free(&t);
    return result;
}
