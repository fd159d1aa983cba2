/* Examples of a file as rows of tokens. */
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- reading */

typedef struct zfl_tuning_reader {
    const zf_examples_desc *desc;
    zf_tuning *t;
    size_t token_room, example_room;
    zf_examples_text text; /* that of an example */
    zf_error *error;
} zfl_tuning_reader;

/* Appends the example of r->text, truncated to a row; `labelled`: which tokens are predicted. */
static bool zfl_put_example(zfl_tuning_reader *r, const bool *labelled)
{
    zf_tuning *t = r->t;
    const zf_ids *whole = &r->text.ids;
    size_t count = whole->count, any = 0;
    int64_t *at;
    if (!zf_examples_ids_fit(&r->text, r->error)) return false;
    if (count > (size_t)r->desc->sequence) count = (size_t)r->desc->sequence;
    for (size_t i = 1; i < count; i++) any += labelled[i];
    if (!any) {
        t->left_out++;
        return true;
    }
    t->cut += count < whole->count;
    while (r->token_room < (size_t)t->tokens + count) {
        size_t room = r->token_room ? 2 * r->token_room : 4096;
        int32_t *ids = realloc(t->ids, room * sizeof *ids);
        bool *flags = ids ? realloc(t->labelled, room * sizeof *flags) : NULL;
        if (ids) t->ids = ids;
        if (!flags) return zfl_no_room(r->error);
        t->labelled = flags, r->token_room = room;
    }
    if (r->example_room < (size_t)t->examples + 2) {
        size_t room = r->example_room ? 2 * r->example_room : 16;
        if (!(at = realloc(t->at, room * sizeof *at))) return zfl_no_room(r->error);
        t->at = at, r->example_room = room;
    }
    memcpy(t->ids + t->tokens, whole->at, count * sizeof *t->ids);
    memcpy(t->labelled + t->tokens, labelled, count * sizeof *t->labelled);
    for (size_t i = 0; i < count; i++)
        t->digest = zfl_mix(t->digest ^ ((uint64_t)(uint32_t)whole->at[i] << 1 | labelled[i]));
    t->begins = zfl_mix(t->begins ^ (uint64_t)count);
    t->at[t->examples] = t->tokens;
    t->tokens += (int64_t)count;
    t->at[++t->examples] = t->tokens;
    return true;
}

/* Takes the example with the text r->text and the labelled spans. */
static bool zfl_take_text(zfl_tuning_reader *r, const zf_chat_span *spans, size_t count,
                          unsigned flags, int32_t end)
{
    zf_ids *whole = &r->text.ids;
    bool good, *labelled;
    if (!zf_examples_encode(&r->text, flags, r->error)) return false;
    labelled = calloc(whole->count + 2, sizeof *labelled);
    good = labelled || zfl_no_room(r->error);
    for (size_t s = 0; s < count && good; s++) {
        size_t from, to;
        if (spans[s].begin == spans[s].end) continue;
        good = zf_examples_ids_before(&r->text, spans[s].begin, flags, false, &from, r->error) &&
               zf_examples_ids_before(&r->text, spans[s].end, flags, true, &to, r->error);
        if (good && spans[s].end == r->text.text.count) to = whole->count;
        for (size_t i = from; good && i < to; i++) labelled[i] = true;
    }
    if (good && end >= 0 && (!whole->count || whole->at[whole->count - 1] != end)) {
        labelled[whole->count] = true;
        zf_ids_add(whole, end);
        good = !whole->failed || zfl_no_room(r->error);
    }
    good = good && zfl_put_example(r, labelled);
    free(labelled);
    return good;
}

/* Reads "weight", 0 or 1, and "train" of an example or a message: whether it is labelled. *said: it
 * has one of them. */
static bool zfl_read_weight(zfl_tuning_reader *r, const zf_json *object, bool *trained, bool *said)
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
static bool zfl_weigh_messages(zfl_tuning_reader *r, const zf_json *messages, bool labelled,
                               zf_chat_spans *spans)
{
    bool trained, said;
    int64_t number = 0;
    for (const zf_json *v = zf_json_first(messages); v; v = zf_json_next(v), number++) {
        const char *role = zf_json_string(zf_json_member(v, "role"), NULL);
        trained = labelled;
        if (!zfl_read_weight(r, v, &trained, &said)) return false;
        if (said && trained && (!role || strcmp(role, "assistant")))
            return zf_json_expected(v, r->error,
                                    "no weight and no train: the assistant's messages "
                                    "alone are trained on"),
                   false;
        for (size_t i = 0; !trained && i < spans->count; i++) {
            if (labelled && spans->at[i].message < 0 && role && !strcmp(role, "assistant"))
                return zf_json_fail(v, r->error,
                                    "has a weight of 0, and which generation block of "
                                    "the template is its own is not known"),
                       false;
            if (!labelled || spans->at[i].message == number) spans->at[i].end = spans->at[i].begin;
        }
    }
    return true;
}

/* Takes a conversation: what its template says that the assistant has written is labelled. */
static bool zfl_take_chat(zfl_tuning_reader *r, const zf_json *conversation, bool labelled)
{
    zf_chat_spans spans = {.at = NULL};
    bool good;
    zf_text_clear(&r->text.text);
    good = zf_chat_write(r->desc->chat, conversation, false, &r->text.text, &spans, r->error) &&
           zfl_weigh_messages(r, zf_json_member(conversation, "messages"), labelled, &spans) &&
           zfl_take_text(r, spans.at, spans.count, 0, -1);
    zf_chat_spans_free(&spans);
    return good;
}

static const char *zfl_example_member(zfl_tuning_reader *r, const zf_json *object, const char *key,
                                      size_t *bytes)
{
    const zf_json *v = zf_json_require(object, key, r->error);
    const char *text = zf_json_string(v, bytes);
    if (v && !text) zf_json_expected(v, r->error, "a string");
    return text;
}

static bool zfl_take_messages(zfl_tuning_reader *r, const zf_chat_message *m, size_t count,
                              bool labelled)
{
    zf_json *conversation = zf_chat_of(m, count, r->error);
    bool good = conversation && zfl_take_chat(r, conversation, labelled);
    zf_json_free(conversation);
    return good;
}

static bool zfl_read_pair(zfl_tuning_reader *r, const zf_json *v, bool trained)
{
    const char *key = zf_json_member(v, "completion") ? "completion" : "response";
    zf_chat_message m[2] = {{.role = "user"}, {.role = "assistant"}};
    zf_chat_span span;
    m[0].text = zfl_example_member(r, v, "prompt", &m[0].bytes);
    m[1].text = zfl_example_member(r, v, key, &m[1].bytes);
    if (r->error->status) return false;
    if (r->desc->chat) return zfl_take_messages(r, m, 2, trained);
    zf_text_clear(&r->text.text);
    zf_text_add(&r->text.text, m[0].text, m[0].bytes);
    span.begin = r->text.text.count;
    zf_text_add(&r->text.text, m[1].text, m[1].bytes);
    span.end = r->text.text.count;
    if (r->text.text.failed) return zfl_no_room(r->error);
    return zfl_take_text(r, &span, trained, ZF_TOKENIZER_FRAME, trained ? r->desc->end : -1);
}

static bool zfl_read_messages(zfl_tuning_reader *r, const zf_json *v, bool labelled)
{
    if (r->desc->chat) return zfl_take_chat(r, v, labelled);
    return zf_json_fail(zf_json_member(v, "messages"), r->error, "needs the style of its chats: %s",
                        ZF_CHAT_STYLES),
           false;
}

static bool zfl_read_example(void *user, const zf_json *v, zf_error *error)
{
    zfl_tuning_reader *r = user;
    const zf_json *messages = zf_json_member(v, "messages");
    bool trained = true, said;
    r->error = error;
    if (!messages && !zf_json_member(v, "prompt"))
        return zf_json_fail(v, error, "has neither messages nor a prompt"), false;
    if (!zfl_read_weight(r, v, &trained, &said)) return false;
    return messages ? zfl_read_messages(r, v, trained) : zfl_read_pair(r, v, trained);
}

/* ---------------------------------------------------------------------------------- packing */

static int64_t zfl_example_length(const zf_tuning *t, int64_t e) { return t->at[e + 1] - t->at[e]; }

/* Puts each item, the longest first, into the row with the least room that is enough. Rows, and
 * examples in a row, keep the order in which they were begun. */
static bool zfl_pack(const zf_tuning *t, zfl_keyed *items, int64_t count, bool alone,
                     zf_tuning_rows *rows, zf_error *error)
{
    int64_t sequence = t->sequence, *next = malloc((size_t)(count + 1) * sizeof *next),
            *head = malloc((size_t)(sequence + 1) * sizeof *head),
            *row = malloc((size_t)(count + 1) * sizeof *row);
    rows->first = calloc((size_t)count + 2, sizeof *rows->first);
    rows->example = malloc((size_t)(count + 1) * sizeof *rows->example);
    rows->count = 0;
    if (!next || !head || !row || !rows->first || !rows->example) {
        free(next), free(head), free(row);
        return zfl_no_room(error);
    }
    for (int64_t i = 0; i < count; i++)
        items[i].key = (uint64_t)(sequence - zfl_example_length(t, items[i].example));
    qsort(items, (size_t)count, sizeof *items, zfl_by_key);
    for (int64_t room = 0; room <= sequence; room++) head[room] = -1;
    for (int64_t i = 0; i < count; i++) {
        int64_t need = zfl_example_length(t, items[i].example), room = need, r;
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

/* The examples of an order, with their keys: the longest first. */
static zfl_keyed *zfl_items_of(const zf_tuning *t, const int64_t *order, zf_error *error)
{
    zfl_keyed *items = malloc((size_t)(t->examples + 1) * sizeof *items);
    if (!items) return zfl_no_room(error), NULL;
    for (int64_t k = 0; k < t->examples; k++) items[k].example = order[k];
    return items;
}

/* Divides the examples into those to train on and those held out. */
static bool zfl_divide_examples(zf_tuning *t, const zf_examples_desc *d, zf_error *error)
{
    int64_t *order = zf_examples_order(d, t->examples, &t->held_out, error);
    zfl_keyed *items = order ? zfl_items_of(t, order, error) : NULL;
    bool good =
        items && zfl_pack(t, items, t->held_out, d->alone, &t->test, error) &&
        zfl_pack(t, items + t->held_out, t->examples - t->held_out, d->alone, &t->train, error);
    free(items);
    free(order);
    return good;
}

/* ------------------------------------------------------------------------------------ files */

bool zf_tuning_load(zf_tuning *t, const char *path, const zf_examples_desc *d, zf_error *error)
{
    zfl_tuning_reader r = {.desc = d, .t = t, .text.desc = d};
    bool good;
    *t = (zf_tuning){.sequence = d->sequence};
    error->status = ZF_OK;
    good = zf_examples_read(path, zfl_read_example, &r, error);
    zf_examples_text_free(&r.text);
    if (good && t->examples < (d->evaluates ? 1 : 2))
        good =
            zfl_fail(error, ZF_ERR_FORMAT,
                     "%s: %lld examples, besides %lld without a response within %lld tokens: %s",
                     path, (long long)t->examples, (long long)t->left_out, (long long)d->sequence,
                     d->evaluates ? "there is nothing to evaluate"
                                  : "one to train on and one to be held out are needed");
    good = good && zfl_divide_examples(t, d, error);
    if (!good) zf_tuning_free(t);
    return good;
}

void zf_tuning_free(zf_tuning *t)
{
    free(t->ids);
    free(t->labelled);
    free(t->at);
    free(t->train.first);
    free(t->train.example);
    free(t->test.first);
    free(t->test.example);
    *t = (zf_tuning){.ids = NULL};
}

/* ---------------------------------------------------------------------------------- batches */

/* Row `row` of the batch becomes row r of `rows`; empty where there is none. */
static void zfl_fill_row(const zf_tuning *t, zf_causal_batch *b, int64_t row,
                         const zf_tuning_rows *rows, int64_t r)
{
    int64_t to = row * b->sequence, end = to + b->sequence;
    for (int64_t k = r < rows->count ? rows->first[r] : 0;
         r < rows->count && k < rows->first[r + 1]; k++) {
        int64_t e = rows->example[k], from = t->at[e], count = zfl_example_length(t, e);
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

void zf_tuning_read(const zf_tuning *t, zf_causal_batch *b, bool held_out, uint64_t seed,
                    int64_t first)
{
    const zf_tuning_rows *rows = held_out ? &t->test : &t->train;
    b->labelled = 0;
    for (int64_t row = 0; row < b->examples; row++) {
        int64_t at = first + row;
        if (!held_out) at = zf_examples_drawn(at, rows->count, seed);
        /* Rows with long examples come first, so that the first ones are no sample of all. */
        else if (at < rows->count)
            at = zf_examples_shuffled(at, rows->count, zfl_mix(ZFL_HELD_OUT));
        zfl_fill_row(t, b, row, rows, at);
    }
}
