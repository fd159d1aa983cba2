#include "tuning.h"
#include "corpus.h"
#include "../../../zeroflow_llm.h"
#include "../options/fail.h"

#include <stdlib.h>
#include <string.h>

enum { HELD_OUT = 20 };

/* ---------------------------------------------------------------------------------- reading */

typedef struct reader {
    const tuning_desc *desc;
    tuning *t;
    size_t token_room, example_room;
    zf_ids whole, part; /* ids of an example, and of its beginning */
    zf_text text, decoded;
    zf_error *error;
} reader;

static bool out_of_memory(zf_error *error) { return fail(error, ZF_ERR_NOMEM, "out of memory"); }

/* Appends the ids of a text. */
static bool encode(reader *r, const char *text, size_t bytes, unsigned flags, zf_ids *out)
{
    const tuning_desc *d = r->desc;
    int64_t count = d->words ? zf_wordpiece_encode(d->words, text, bytes, 0, NULL, 0) : 0;
    int32_t *ids = d->words ? malloc((size_t)(count + 1) * sizeof *ids) : NULL;
    if (d->tokens) return zf_tokenizer_encode(d->tokens, text, bytes, flags, out, r->error);
    if (!ids) return out_of_memory(r->error);
    zf_wordpiece_encode(d->words, text, bytes, 0, ids, count);
    if (flags & ZF_TOKENIZER_FRAME) zf_ids_add(out, d->end);
    for (int64_t i = 0; i < count; i++) zf_ids_add(out, ids[i]);
    free(ids);
    return !out->failed || out_of_memory(r->error);
}

/* The bytes of the text of ids. */
static bool bytes_of(reader *r, const int32_t *ids, size_t count, size_t *bytes)
{
    zf_text_clear(&r->decoded);
    if (!zf_tokenizer_decode(r->desc->tokens, ids, count, 0, &r->decoded, r->error)) return false;
    *bytes = r->decoded.count;
    return true;
}

/* How many ids of the whole text come before byte `at`; `across`: with one that has bytes on both
 * sides. The text before `at` may be cut into other tokens at its end. */
static bool ids_before(reader *r, size_t at, unsigned flags, bool across, size_t *count)
{
    const zf_ids *part = &r->part, *whole = &r->whole;
    size_t n = 0, before, begin = 0, end = 0, k = 0;
    r->part.count = 0;
    if (!encode(r, r->text.at, at, flags, &r->part)) return false;
    while (n < part->count && n < whole->count && part->at[n] == whole->at[n]) n++;
    *count = n;
    if (n == part->count || !r->desc->tokens) return true;
    if (!bytes_of(r, part->at + n, part->count - n, &before)) return false;
    for (; n + k < whole->count; k++) {
        if (!bytes_of(r, whole->at + n, k + 1, &end)) return false;
        if (end > before) break;
        begin = end;
    }
    *count = n + k + (across && begin < before && n + k < whole->count);
    return true;
}

/* Appends the example of r->whole, truncated to a row; `labelled`: which tokens are predicted. */
static bool put_example(reader *r, const bool *labelled)
{
    tuning *t = r->t;
    size_t count = r->whole.count, any = 0;
    int64_t *at;
    if (r->desc->vocab &&
        !zf_ids_check(r->whole.at, count, r->desc->vocab, r->desc->tokens, r->desc->words,
                      r->error))
        return false;
    if (count > (size_t)r->desc->sequence) count = (size_t)r->desc->sequence;
    for (size_t i = 1; i < count; i++) any += labelled[i];
    if (!any) {
        t->left_out++;
        return true;
    }
    t->cut += count < r->whole.count;
    while (r->token_room < (size_t)t->tokens + count) {
        size_t room = r->token_room ? 2 * r->token_room : 4096;
        int32_t *ids = realloc(t->ids, room * sizeof *ids);
        bool *flags = ids ? realloc(t->labelled, room * sizeof *flags) : NULL;
        if (ids) t->ids = ids;
        if (!flags) return out_of_memory(r->error);
        t->labelled = flags, r->token_room = room;
    }
    if (r->example_room < (size_t)t->examples + 2) {
        size_t room = r->example_room ? 2 * r->example_room : 16;
        if (!(at = realloc(t->at, room * sizeof *at))) return out_of_memory(r->error);
        t->at = at, r->example_room = room;
    }
    memcpy(t->ids + t->tokens, r->whole.at, count * sizeof *t->ids);
    memcpy(t->labelled + t->tokens, labelled, count * sizeof *t->labelled);
    for (size_t i = 0; i < count; i++)
        t->digest = bert_mix(t->digest ^ ((uint64_t)(uint32_t)r->whole.at[i] << 1 | labelled[i]));
    t->begins = bert_mix(t->begins ^ (uint64_t)count);
    t->at[t->examples] = t->tokens;
    t->tokens += (int64_t)count;
    t->at[++t->examples] = t->tokens;
    return true;
}

/* Takes the example with the text r->text and the labelled spans. */
static bool take_text(reader *r, const zf_chat_span *spans, size_t count, unsigned flags,
                      int32_t end)
{
    bool good, *labelled;
    r->whole.count = 0;
    if (!encode(r, r->text.at, r->text.count, flags, &r->whole)) return false;
    labelled = calloc(r->whole.count + 2, sizeof *labelled);
    good = labelled || out_of_memory(r->error);
    for (size_t s = 0; s < count && good; s++) {
        size_t from, to;
        if (spans[s].begin == spans[s].end) continue;
        good = ids_before(r, spans[s].begin, flags, false, &from) &&
               ids_before(r, spans[s].end, flags, true, &to);
        if (good && spans[s].end == r->text.count) to = r->whole.count;
        for (size_t i = from; good && i < to; i++) labelled[i] = true;
    }
    if (good && end >= 0 && (!r->whole.count || r->whole.at[r->whole.count - 1] != end)) {
        labelled[r->whole.count] = true;
        zf_ids_add(&r->whole, end);
        good = !r->whole.failed || out_of_memory(r->error);
    }
    good = good && put_example(r, labelled);
    free(labelled);
    return good;
}

/* Reads "weight", 0 or 1, and "train" of an example or a message: whether it is labelled. *said: it
 * has one of them. */
static bool read_weight(reader *r, const zf_json *object, bool *trained, bool *said)
{
    const zf_json *weight = zf_json_member(object, "weight"),
                  *train = zf_json_member(object, "train");
    double number = 1;
    bool flag = true;
    *said = weight || train;
    if (!zf_json_to_double(weight, 0, 1, &number, r->error) && number != 0 && number != 1)
        zf_json_expected(weight, r->error, "0, which leaves it out of the loss, or 1");
    if (!r->error->status) zf_json_to_bool(train, &flag, r->error);
    *trained = *trained && number != 0 && flag;
    return !r->error->status;
}

/* Takes the spans out that are not trained on: of messages with a weight of 0. */
static bool weigh(reader *r, const zf_json *messages, bool labelled, zf_chat_spans *spans)
{
    bool trained, said;
    int64_t number = 0;
    for (const zf_json *v = zf_json_first(messages); v; v = zf_json_next(v), number++) {
        const char *role = zf_json_string(zf_json_member(v, "role"), NULL);
        trained = labelled;
        if (!read_weight(r, v, &trained, &said)) return false;
        if (said && trained && (!role || strcmp(role, "assistant")))
            return zf_json_expected(v, r->error, "no weight and no train: the assistant's messages "
                                                 "alone are trained on"),
                   false;
        for (size_t i = 0; !trained && i < spans->count; i++) {
            if (labelled && spans->at[i].message < 0 && role && !strcmp(role, "assistant"))
                return zf_json_fail(v, r->error, "has a weight of 0, and which generation block of "
                                                 "the template is its own is not known"),
                       false;
            if (!labelled || spans->at[i].message == number) spans->at[i].end = spans->at[i].begin;
        }
    }
    return true;
}

/* Takes a conversation: what its template says that the assistant has written is labelled. */
static bool take_chat(reader *r, const zf_json *conversation, bool labelled)
{
    zf_chat_spans spans = {.at = NULL};
    bool good;
    zf_text_clear(&r->text);
    good = zf_chat_write(r->desc->chat, conversation, false, &r->text, &spans, r->error) &&
           weigh(r, zf_json_member(conversation, "messages"), labelled, &spans) &&
           take_text(r, spans.at, spans.count, 0, -1);
    zf_chat_spans_free(&spans);
    return good;
}

static const char *text_of(reader *r, const zf_json *object, const char *key, size_t *bytes)
{
    const zf_json *v = zf_json_require(object, key, r->error);
    const char *text = zf_json_string(v, bytes);
    if (v && !text) zf_json_expected(v, r->error, "a string");
    return text;
}

static bool take_messages(reader *r, const zf_chat_message *m, size_t count, bool labelled)
{
    zf_json *conversation = zf_chat_of(m, count, r->error);
    bool good = conversation && take_chat(r, conversation, labelled);
    zf_json_free(conversation);
    return good;
}

static bool read_pair(reader *r, const zf_json *v, bool trained)
{
    const char *key = zf_json_member(v, "completion") ? "completion" : "response";
    zf_chat_message m[2] = {{.role = "user"}, {.role = "assistant"}};
    zf_chat_span span;
    m[0].text = text_of(r, v, "prompt", &m[0].bytes);
    m[1].text = text_of(r, v, key, &m[1].bytes);
    if (r->error->status) return false;
    if (r->desc->chat) return take_messages(r, m, 2, trained);
    zf_text_clear(&r->text);
    zf_text_add(&r->text, m[0].text, m[0].bytes);
    span.begin = r->text.count;
    zf_text_add(&r->text, m[1].text, m[1].bytes);
    span.end = r->text.count;
    if (r->text.failed) return out_of_memory(r->error);
    return take_text(r, &span, trained, ZF_TOKENIZER_FRAME, trained ? r->desc->end : -1);
}

static bool read_messages(reader *r, const zf_json *v, bool labelled)
{
    if (r->desc->chat) return take_chat(r, v, labelled);
    return zf_json_fail(zf_json_member(v, "messages"), r->error, "needs the style of its chats: %s",
                        ZF_CHAT_STYLES),
           false;
}

static bool read_line(reader *r, const char *line, size_t bytes)
{
    zf_json *v = zf_json_parse(line, bytes, NULL, r->error);
    const zf_json *messages = zf_json_member(v, "messages");
    bool good = v != NULL, trained = true, said;
    if (good && zf_json_type_of(v) != ZF_JSON_OBJECT)
        good = (zf_json_expected(v, r->error, "an object"), false);
    else if (good && !messages && !zf_json_member(v, "prompt"))
        good = (zf_json_fail(v, r->error, "has neither messages nor a prompt"), false);
    else if (good && !read_weight(r, v, &trained, &said)) good = false;
    else if (good && messages) good = read_messages(r, v, trained);
    else if (good) good = read_pair(r, v, trained);
    zf_json_free(v);
    return good;
}

static bool is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!strchr(" \t\r", line[i])) return false;
    return true;
}

static bool read_lines(reader *r, const char *text, size_t bytes, const char *path, zf_error *error)
{
    size_t number = 1;
    for (size_t at = 0; at < bytes; number++) {
        const char *line = text + at, *end = memchr(line, '\n', bytes - at);
        size_t length = end ? (size_t)(end - line) : bytes - at;
        at += length + 1;
        if (is_blank(line, length) || read_line(r, line, length)) continue;
        if (r->error->status == ZF_ERR_NOMEM) return out_of_memory(error);
        return fail(error, r->error->status, "%s: line %zu: %.400s", path, number, r->error->text);
    }
    return true;
}

/* ---------------------------------------------------------------------------------- packing */

static int64_t length_of(const tuning *t, int64_t e) { return t->at[e + 1] - t->at[e]; }

/* An example, with its sort key. */
typedef struct item {
    int64_t example;
    uint64_t key;
} item;

static int by_key(const void *a, const void *b)
{
    const item *p = a, *q = b;
    if (p->key != q->key) return p->key < q->key ? -1 : 1;
    return (p->example > q->example) - (p->example < q->example);
}

/* Puts each item, the longest first, into the row with the least room that is enough. Rows, and
 * examples in a row, keep the order in which they were begun. */
static bool pack(const tuning *t, item *items, int64_t count, bool alone, tuning_rows *rows,
                 zf_error *error)
{
    int64_t sequence = t->sequence, *next = malloc((size_t)(count + 1) * sizeof *next),
            *head = malloc((size_t)(sequence + 1) * sizeof *head),
            *row = malloc((size_t)(count + 1) * sizeof *row);
    rows->first = calloc((size_t)count + 2, sizeof *rows->first);
    rows->example = malloc((size_t)(count + 1) * sizeof *rows->example);
    rows->count = 0;
    if (!next || !head || !row || !rows->first || !rows->example) {
        free(next), free(head), free(row);
        return out_of_memory(error);
    }
    for (int64_t i = 0; i < count; i++)
        items[i].key = (uint64_t)(sequence - length_of(t, items[i].example));
    qsort(items, (size_t)count, sizeof *items, by_key);
    for (int64_t room = 0; room <= sequence; room++) head[room] = -1;
    for (int64_t i = 0; i < count; i++) {
        int64_t need = length_of(t, items[i].example), room = need, r;
        while (!alone && room < sequence && head[room] < 0) room++;
        if (alone || room == sequence) {
            r = rows->count++, room = sequence;
        } else {
            r = head[room];
            head[room] = next[r];
        }
        row[i] = r;
        rows->first[r + 2]++;
        next[r] = head[room - need], head[room - need] = r;
    }
    for (int64_t r = 0; r < rows->count; r++) rows->first[r + 2] += rows->first[r + 1];
    for (int64_t i = 0; i < count; i++) rows->example[rows->first[row[i] + 1]++] = items[i].example;
    free(next), free(head), free(row);
    return true;
}

/* Holds out every twentieth example, or all, in an order that is independent of theirs. */
static bool divide(tuning *t, const tuning_desc *d, zf_error *error)
{
    item *items = malloc((size_t)(t->examples + 1) * sizeof *items);
    bool good;
    t->held_out = d->evaluates                ? t->examples
                  : t->examples / HELD_OUT ? t->examples / HELD_OUT
                                           : 1;
    if (!items) return out_of_memory(error);
    for (int64_t e = 0; e < t->examples; e++) items[e] = (item){e, bert_mix((uint64_t)e + 0x7475)};
    qsort(items, (size_t)t->examples, sizeof *items, by_key);
    good = pack(t, items, t->held_out, d->alone, &t->test, error) &&
           pack(t, items + t->held_out, t->examples - t->held_out, d->alone, &t->train, error);
    free(items);
    return good;
}

/* ------------------------------------------------------------------------------------ files */

bool tuning_load(tuning *t, const char *path, const tuning_desc *d, zf_error *error)
{
    zf_error why = {ZF_OK, ""};
    reader r = {.desc = d, .t = t, .error = &why};
    zf_text text = {.at = NULL};
    bool good;
    *t = (tuning){.sequence = d->sequence};
    error->status = ZF_OK;
    good = zf_text_read_plain(path, &text, error) && read_lines(&r, text.at, text.count, path, error);
    zf_text_free(&text);
    zf_ids_free(&r.whole);
    zf_ids_free(&r.part);
    zf_text_free(&r.text);
    zf_text_free(&r.decoded);
    if (good && t->examples < (d->evaluates ? 1 : 2))
        good = fail(error, ZF_ERR_FORMAT,
                    "%s: %lld examples, besides %lld without a response within %lld tokens: %s",
                    path, (long long)t->examples, (long long)t->left_out, (long long)d->sequence,
                    d->evaluates ? "there is nothing to evaluate"
                                 : "one to train on and one to be held out are needed");
    good = good && divide(t, d, error);
    if (!good) tuning_free(t);
    return good;
}

void tuning_free(tuning *t)
{
    free(t->ids);
    free(t->labelled);
    free(t->at);
    free(t->train.first);
    free(t->train.example);
    free(t->test.first);
    free(t->test.example);
    *t = (tuning){.ids = NULL};
}

/* ---------------------------------------------------------------------------------- batches */

/* The place of `at` in a permutation of 0..count that depends on the key: a Feistel network on the
 * next power of four, repeated until the result is in range. */
static int64_t shuffled(int64_t at, int64_t count, uint64_t key)
{
    uint64_t x = (uint64_t)at;
    int half = 1;
    while (1ll << 2 * half < count) half++;
    do {
        uint64_t low = x & ((1ull << half) - 1), high = x >> half;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t mixed = bert_mix(key + bert_mix(low + (round << 32)));
            uint64_t next = high ^ (mixed & ((1ull << half) - 1));
            high = low, low = next;
        }
        x = high << half | low;
    } while (x >= (uint64_t)count);
    return (int64_t)x;
}

/* Row `row` of the batch becomes row r of `rows`; empty where there is none. */
static void fill(const tuning *t, causal_batch *b, int64_t row, const tuning_rows *rows, int64_t r)
{
    int64_t to = row * b->sequence, end = to + b->sequence;
    for (int64_t k = r < rows->count ? rows->first[r] : 0;
         r < rows->count && k < rows->first[r + 1]; k++) {
        int64_t e = rows->example[k], from = t->at[e], count = length_of(t, e);
        for (int64_t i = 0; i < count; i++, to++) {
            bool labelled = i + 1 < count && t->labelled[from + i + 1];
            b->ids[to] = t->ids[from + i];
            b->labels[to] = labelled ? t->ids[from + i + 1] : -100;
            b->segments[to] = (int32_t)(k - rows->first[r]) + 1;
            b->positions[to] = (int32_t)i;
            b->labelled += labelled;
        }
    }
    for (; to < end; to++)
        b->ids[to] = b->segments[to] = b->positions[to] = 0, b->labels[to] = -100;
}

void tuning_read(const tuning *t, causal_batch *b, bool held_out, uint64_t seed, int64_t first)
{
    const tuning_rows *rows = held_out ? &t->test : &t->train;
    b->labelled = 0;
    for (int64_t row = 0; row < b->examples; row++) {
        int64_t at = first + row, epoch = at / rows->count;
        if (!held_out) at = shuffled(at % rows->count, rows->count, bert_mix(seed) + (uint64_t)epoch);
        /* Rows with long examples come first, so that the first ones are no sample of all. */
        else if (at < rows->count) at = shuffled(at, rows->count, bert_mix(HELD_OUT));
        fill(t, b, row, rows, at);
    }
}
