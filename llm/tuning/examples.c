/* What the readers of examples share: lines of JSON, their texts as tokens, and orders. */
#include <stdlib.h>
#include <string.h>

enum { ZFL_HELD_OUT = 20 };

static bool zfl_no_room(zf_error *error) { return zfl_fail(error, ZF_ERR_NOMEM, "out of memory"); }

/* ------------------------------------------------------------------------------------ lines */

static bool zfl_is_blank_line(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!strchr(" \t\r", line[i])) return false;
    return true;
}

static bool zfl_take_line(const char *line, size_t bytes, zf_examples_line *take, void *user,
                          zf_error *error)
{
    zf_json *v = zf_json_parse(line, bytes, NULL, error);
    zf_json *chat = NULL;
    bool good = v != NULL;
    if (good && zf_json_type_of(v) != ZF_JSON_OBJECT)
        good = (zf_json_expected(v, error, "an object"), false);
    good = good && zf_chat_convert(v, &chat, error) && take(user, chat ? chat : v, error);
    zf_json_free(chat);
    zf_json_free(v);
    return good;
}

static bool zfl_take_lines(const zf_text *text, const char *path, zf_examples_line *take,
                           void *user, zf_error *error)
{
    size_t number = 1;
    for (size_t at = 0; at < text->count; number++) {
        const char *line = text->at + at, *end = memchr(line, '\n', text->count - at);
        size_t length = end ? (size_t)(end - line) : text->count - at;
        zf_error why = {ZF_OK, ""};
        at += length + 1;
        if (zfl_is_blank_line(line, length) || zfl_take_line(line, length, take, user, &why))
            continue;
        if (why.status == ZF_ERR_NOMEM) return zfl_no_room(error);
        return zfl_fail(error, why.status, "%s: line %zu: %.400s", path, number, why.text);
    }
    return true;
}

bool zf_examples_read(const char *path, zf_examples_line *take, void *user, zf_error *error)
{
    zf_text text = {.at = NULL};
    bool good =
        zf_text_read_plain(path, &text, error) && zfl_take_lines(&text, path, take, user, error);
    zf_text_free(&text);
    return good;
}

/* ----------------------------------------------------------------------------------- tokens */

void zf_examples_text_free(zf_examples_text *t)
{
    zf_text_free(&t->text);
    zf_ids_free(&t->ids);
    zf_ids_free(&t->part);
    zf_text_free(&t->decoded);
}

/* Appends the ids of a text. */
static bool zfl_encode_example(const zf_examples_desc *d, const char *text, size_t bytes,
                               unsigned flags, zf_ids *out, zf_error *error)
{
    int64_t count = d->words ? zf_wordpiece_encode(d->words, text, bytes, 0, NULL, 0) : 0;
    int32_t *ids = d->words ? malloc((size_t)(count + 1) * sizeof *ids) : NULL;
    if (d->tokens) return zf_tokenizer_encode(d->tokens, text, bytes, flags, out, error);
    if (!ids) return zfl_no_room(error);
    zf_wordpiece_encode(d->words, text, bytes, 0, ids, count);
    if (flags & ZF_TOKENIZER_FRAME) zf_ids_add(out, d->end);
    for (int64_t i = 0; i < count; i++) zf_ids_add(out, ids[i]);
    free(ids);
    return !out->failed || zfl_no_room(error);
}

bool zf_examples_encode(zf_examples_text *t, unsigned flags, zf_error *error)
{
    t->ids.count = 0;
    if (t->text.failed) return zfl_no_room(error);
    return zfl_encode_example(t->desc, t->text.at, t->text.count, flags, &t->ids, error);
}

/* The bytes of the text of ids. */
static bool zfl_bytes_of_ids(zf_examples_text *t, const int32_t *ids, size_t count, size_t *bytes,
                             zf_error *error)
{
    zf_text_clear(&t->decoded);
    if (!zf_tokenizer_decode(t->desc->tokens, ids, count, 0, &t->decoded, error)) return false;
    *bytes = t->decoded.count;
    return true;
}

bool zf_examples_ids_before(zf_examples_text *t, size_t at, unsigned flags, bool across,
                            size_t *count, zf_error *error)
{
    const zf_ids *part = &t->part, *whole = &t->ids;
    size_t n = 0, before, begin = 0, end = 0, k = 0;
    t->part.count = 0;
    if (!zfl_encode_example(t->desc, t->text.at, at, flags, &t->part, error)) return false;
    while (n < part->count && n < whole->count && part->at[n] == whole->at[n]) n++;
    *count = n;
    if (n == part->count || !t->desc->tokens) return true;
    if (!zfl_bytes_of_ids(t, part->at + n, part->count - n, &before, error)) return false;
    for (; n + k < whole->count; k++) {
        if (!zfl_bytes_of_ids(t, whole->at + n, k + 1, &end, error)) return false;
        if (end > before) break;
        begin = end;
    }
    *count = n + k + (across && begin < before && n + k < whole->count);
    return true;
}

bool zf_examples_ids_fit(const zf_examples_text *t, zf_error *error)
{
    const zf_examples_desc *d = t->desc;
    return !d->vocab || zf_ids_check(t->ids.at, t->ids.count, d->vocab, d->tokens, d->words, error);
}

/* ----------------------------------------------------------------------------------- orders */

typedef struct zfl_keyed {
    int64_t example;
    uint64_t key;
} zfl_keyed;

static int zfl_by_key(const void *a, const void *b)
{
    const zfl_keyed *p = a, *q = b;
    if (p->key != q->key) return p->key < q->key ? -1 : 1;
    return (p->example > q->example) - (p->example < q->example);
}

int64_t *zf_examples_order(const zf_examples_desc *d, int64_t count, int64_t *held_out,
                           zf_error *error)
{
    int64_t *order = malloc((size_t)(count + 1) * sizeof *order);
    zfl_keyed *items = order ? malloc((size_t)(count + 1) * sizeof *items) : NULL;
    *held_out = d->evaluates ? count : count / ZFL_HELD_OUT ? count / ZFL_HELD_OUT : 1;
    if (!items) {
        free(order);
        return zfl_no_room(error), NULL;
    }
    for (int64_t e = 0; e < count; e++) items[e] = (zfl_keyed){e, zfl_mix((uint64_t)e + 0x7475)};
    qsort(items, (size_t)count, sizeof *items, zfl_by_key);
    for (int64_t e = 0; e < count; e++) order[e] = items[e].example;
    free(items);
    return order;
}

/* A Feistel network on the next power of four, repeated until the result is in range. */
int64_t zf_examples_shuffled(int64_t at, int64_t count, uint64_t key)
{
    uint64_t x = (uint64_t)at;
    int half = 1;
    while (1ll << 2 * half < count) half++;
    do {
        uint64_t low = x & ((1ull << half) - 1), high = x >> half;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t mixed = zfl_mix(key + zfl_mix(low + (round << 32)));
            uint64_t next = high ^ (mixed & ((1ull << half) - 1));
            high = low, low = next;
        }
        x = high << half | low;
    } while (x >= (uint64_t)count);
    return (int64_t)x;
}

int64_t zf_examples_drawn(int64_t at, int64_t count, uint64_t seed)
{
    return zf_examples_shuffled(at % count, count, zfl_mix(seed) + (uint64_t)(at / count));
}
