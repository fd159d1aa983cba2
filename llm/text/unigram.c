/* Unigram (Kudo 2018): each token has a score, the logarithm of a probability; a word becomes the
 * tokens with the largest sum of scores (Viterbi).
 *
 *     hugs   hug s: -3.1 - 4.2   h ug s: -5.0 - 3.9 - 4.2   -- hug s
 *
 * The sum is made from left to right in f64; of equal sums that with the longest last token counts,
 * as in the package `tokenizers`. */
#include <stdlib.h>
#include <string.h>

typedef struct zfl_unigram {
    double *scores;     /* by id */
    int32_t *sorted;    /* ids by their texts, as bytes */
    int32_t count;      /* of sorted; 0: the model is not of this kind */
    int32_t first[257]; /* the place in `sorted` of the first text that begins with a byte */
    double unknown;     /* the score of a character without a token */
} zfl_unigram;

/* The best way to a place in a word. */
typedef struct zfl_unigram_node {
    double sum;
    int32_t begin, id; /* of the last token; -1: no way leads here, or none was looked for */
    int32_t after;     /* the end of the next token on the best way to the end */
} zfl_unigram_node;

typedef struct zfl_unigram_work {
    zfl_unigram_node *nodes;
    size_t room;
} zfl_unigram_work;

static void zfl_unigram_close(zfl_unigram *u)
{
    free(u->scores);
    free(u->sorted);
    *u = (zfl_unigram){.count = 0};
}

/* ------------------------------------------------------------------------------------ sorting */

static int zfl_compare_tokens(const zfl_bpe *b, int32_t left, int32_t right)
{
    const zfl_bpe_token *x = &b->tokens[left], *y = &b->tokens[right];
    const int32_t n = x->bytes < y->bytes ? x->bytes : y->bytes;
    const int order = memcmp(b->text.at + x->at, b->text.at + y->at, (size_t)n);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Merges two sorted halves of ids, by way of `room`. */
static void zfl_merge_halves(const zfl_bpe *b, int32_t *ids, int32_t middle, int32_t count,
                             int32_t *room)
{
    int32_t left = 0, right = middle;
    for (int32_t k = 0; k < count; k++) {
        const bool from_left =
            right == count || (left < middle && zfl_compare_tokens(b, ids[left], ids[right]) <= 0);
        room[k] = from_left ? ids[left++] : ids[right++];
    }
    memcpy(ids, room, (size_t)count * sizeof *ids);
}

static void zfl_sort_tokens(const zfl_bpe *b, int32_t *ids, int32_t count, int32_t *room)
{
    const int32_t middle = count / 2;
    if (count < 2) return;
    zfl_sort_tokens(b, ids, middle, room);
    zfl_sort_tokens(b, ids + middle, count - middle, room);
    zfl_merge_halves(b, ids, middle, count, room);
}

static unsigned char zfl_byte_of(const zfl_bpe *b, int32_t id, int32_t at)
{
    return (unsigned char)b->text.at[b->tokens[id].at + (size_t)at];
}

/* Prepares the tokens of the vocabulary for searches, once it is whole; texts that several ids have
 * are found by the last one. False out of memory. */
static bool zfl_unigram_sort(zfl_unigram *u, const zfl_bpe *b)
{
    int32_t *room = malloc(((size_t)b->size + 1) * sizeof *room);
    u->sorted = malloc(((size_t)b->size + 1) * sizeof *u->sorted);
    if (!room || !u->sorted) {
        free(room);
        return false;
    }
    for (int32_t id = 0; id < b->size; id++)
        if (b->tokens[id].bytes > 0 &&
            zfl_bpe_find(b, b->text.at + b->tokens[id].at, (size_t)b->tokens[id].bytes) == id)
            u->sorted[u->count++] = id;
    zfl_sort_tokens(b, u->sorted, u->count, room);
    free(room);
    for (int32_t k = 0, byte = 0; byte <= 256; byte++) {
        while (k < u->count && zfl_byte_of(b, u->sorted[k], 0) < byte) k++;
        u->first[byte] = k;
    }
    return true;
}

/* -------------------------------------------------------------------------------------- words */

/* The first place from `low` on whose text has at `at` a byte not below `byte`, which is at most
 * 256. All texts of the range are longer than `at`. */
static int32_t zfl_unigram_bound(const zfl_unigram *u, const zfl_bpe *b, int32_t low, int32_t high,
                                 int32_t at, int byte)
{
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (zfl_byte_of(b, u->sorted[middle], at) < byte) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void zfl_unigram_reach(zfl_unigram_node *node, double sum, int32_t begin, int32_t id)
{
    if (node->begin >= 0 && !(sum > node->sum)) return;
    node->sum = sum, node->begin = begin, node->id = id;
}

/* Goes on from a place by all tokens that begin there. */
static void zfl_unigram_go_on(const zfl_unigram *u, const zfl_bpe *b, zfl_unigram_node *nodes,
                              const unsigned char *text, int32_t place, int32_t bytes)
{
    uint32_t c;
    const int length = zfl_utf8_decode(text + place, (size_t)(bytes - place), &c);
    const int32_t character = length ? length : 1;
    int32_t low = u->first[text[place]], high = u->first[text[place] + 1], at = 1;
    bool alone = false;
    while (low < high) {
        const int32_t id = u->sorted[low];
        if (b->tokens[id].bytes == at) { /* it sorts before those that it begins */
            zfl_unigram_reach(&nodes[place + at], u->scores[id] + nodes[place].sum, place, id);
            alone = alone || at == character;
            low++;
        }
        if (place + at == bytes) break;
        low = zfl_unigram_bound(u, b, low, high, at, text[place + at]);
        high = zfl_unigram_bound(u, b, low, high, at, text[place + at] + 1);
        at++;
    }
    if (!alone)
        zfl_unigram_reach(&nodes[place + character], u->unknown + nodes[place].sum, place,
                          b->unknown);
}

/* The tokens of some unknown characters in a row: the token that they are together, those of their
 * bytes, or the unknown one. */
static void zfl_unigram_unknown(const zfl_bpe *b, const char *text, size_t bytes, zf_ids *out)
{
    const int32_t id = zfl_bpe_find(b, text, bytes);
    if (id >= 0 || !zfl_has_bytes(b, text, bytes)) {
        zf_ids_add(out, id >= 0 ? id : b->unknown);
        return;
    }
    for (size_t i = 0; i < bytes; i++) zf_ids_add(out, b->bytes[(unsigned char)text[i]]);
}

/* Appends the tokens of a word; false with *error. text: UTF-8. */
static bool zfl_unigram_word(const zfl_unigram *u, const zfl_bpe *b, zfl_unigram_work *w,
                             const char *text, size_t bytes, zf_ids *out, zf_error *error)
{
    const int32_t count = (int32_t)bytes;
    zfl_unigram_node *nodes;
    if (bytes > INT32_MAX / 2) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    while (w->room <= bytes) {
        nodes = zfl_list_grow(w->nodes, w->room, &w->room, sizeof *nodes);
        if (!nodes) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
        w->nodes = nodes;
    }
    nodes = w->nodes;
    for (int32_t k = 0; k <= count; k++) nodes[k] = (zfl_unigram_node){.begin = -1, .id = -1};
    nodes[0].begin = 0;
    for (int32_t k = 0; k < count; k++)
        if (nodes[k].begin >= 0)
            zfl_unigram_go_on(u, b, nodes, (const unsigned char *)text, k, count);
    for (int32_t k = count; k > 0; k = nodes[k].begin) nodes[nodes[k].begin].after = k;
    for (int32_t k = 0, end; k < count; k = end) {
        end = nodes[k].after;
        while (nodes[end].id == b->unknown && end < count &&
               nodes[nodes[end].after].id == b->unknown)
            end = nodes[end].after;
        if (nodes[end].id < 0)
            return zfl_fail(error, ZF_ERR_FORMAT,
                            "the tokenizer has no token for \"%.*s\", and no unk_id",
                            end - k < 100 ? (int)(end - k) : 100, text + k);
        if (nodes[end].id != b->unknown) zf_ids_add(out, nodes[end].id);
        else zfl_unigram_unknown(b, text + k, (size_t)(end - k), out);
    }
    return !out->failed || zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
}
