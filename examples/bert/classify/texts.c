#include "texts.h"
#include "../../frame/data/corpus.h"
#include "../../frame/options/fail.h"

#include <stdlib.h>
#include <string.h>

typedef struct reader {
    texts *t;
    const texts_desc *d;
    zf_examples_text text;
    zf_ids first, row;
    int32_t cls, sep;
    zf_error *error;
} reader;

static bool out_of_memory(zf_error *error) { return fail(error, ZF_ERR_NOMEM, "out of memory"); }

/* ------------------------------------------------------------------------------------- tokens */

/* The tokens around a text. */
static bool find_frame(reader *r)
{
    const zf_examples_desc *e = r->d->examples;
    zf_ids ids = {.at = NULL};
    bool good = true;
    if (e->words) {
        r->cls = zf_wordpiece_id(e->words, "[CLS]"), r->sep = zf_wordpiece_id(e->words, "[SEP]");
        return true;
    }
    good = zf_tokenizer_encode(e->tokens, "", 0, ZF_TOKENIZER_FRAME, &ids, r->error);
    if (good && ids.count != 2)
        good = fail(r->error, ZF_ERR_FORMAT,
                    "the tokenizer puts %d tokens around a text; texts with labels need one before "
                    "and one after it",
                    (int)ids.count);
    if (good) r->cls = ids.at[0], r->sep = ids.at[1];
    zf_ids_free(&ids);
    return good;
}

/* The ids of a text, in r->text.ids. */
static bool encode(reader *r, const char *text, size_t bytes, const char *column)
{
    zf_text_clear(&r->text.text);
    zf_text_add(&r->text.text, text, bytes);
    if (!zf_examples_encode(&r->text, 0, r->error) || !zf_examples_ids_fit(&r->text, r->error)) return false;
    return r->text.ids.count || fail(r->error, ZF_ERR_FORMAT, "\"%s\" is empty", column);
}

static bool reserve(reader *r, size_t tokens)
{
    texts *t = r->t;
    const size_t used = t->at ? (size_t)t->at[t->count] : 0;
    if ((size_t)t->count + 2 > t->room) {
        const size_t room = t->room ? 2 * t->room : 64;
        int64_t *at = realloc(t->at, room * sizeof *at), *second;
        char **said;
        if (at) t->at = at;
        second = realloc(t->second, room * sizeof *second);
        if (second) t->second = second;
        said = realloc(t->said, room * sizeof *said);
        if (said) t->said = said;
        if (!at || !second || !said) return out_of_memory(r->error);
        t->at[t->count] = (int64_t)used, t->room = room;
    }
    if (used + tokens > t->token_room) {
        const size_t room = 2 * (used + tokens) + 1024;
        int32_t *ids = realloc(t->ids, room * sizeof *ids);
        if (!ids) return out_of_memory(r->error);
        t->ids = ids, t->token_room = room;
    }
    return true;
}

/* Appends a row of the ids r->first, and of a pair those of r->text.ids. */
static bool put_row(reader *r, bool pair, const char *label, size_t label_bytes)
{
    texts *t = r->t;
    const zf_ids *b = &r->text.ids;
    const size_t around = 2 + (pair ? 1 + (size_t)r->d->two_separators : 0),
                 most = (size_t)r->d->examples->sequence;
    size_t na = r->first.count, nb = pair ? b->count : 0;
    int32_t *to;
    char *said;
    if (most <= around)
        return fail(r->error, ZF_ERR_ARGUMENT, "rows of %d tokens have no room for a text", (int)most);
    t->cut += na + nb + around > most;
    while (na + nb + around > most) *(nb > na ? &nb : &na) -= 1;
    if (!reserve(r, na + nb + around)) return false;
    if (!(said = malloc(label_bytes + 1))) return out_of_memory(r->error);
    memcpy(said, label, label_bytes), said[label_bytes] = 0, t->said[t->count] = said;
    to = t->ids + t->at[t->count];
    *to++ = r->cls;
    memcpy(to, r->first.at, na * sizeof *to), to += na;
    *to++ = r->sep;
    if (pair && r->d->two_separators) *to++ = r->sep;
    t->second[t->count] = to - t->ids;
    if (pair) memcpy(to, b->at, nb * sizeof *to), to += nb, *to++ = r->sep;
    for (int64_t i = t->at[t->count]; i < to - t->ids; i++)
        t->digest = bert_mix(t->digest ^ (uint64_t)(uint32_t)t->ids[i]);
    for (size_t i = 0; i < label_bytes; i++)
        t->digest = bert_mix(t->digest ^ (uint64_t)(unsigned char)label[i]);
    t->begins = bert_mix(t->begins ^ (uint64_t)(na + nb));
    if (to - t->ids - t->at[t->count] > t->longest) t->longest = to - t->ids - t->at[t->count];
    t->at[++t->count] = to - t->ids;
    return true;
}

/* One text; its parts are those of the columns of the desc. */
static bool take(reader *r, const char *const part[3], const size_t bytes[3])
{
    if (!encode(r, part[0], bytes[0], r->d->text)) return false;
    r->first.count = 0;
    for (size_t i = 0; i < r->text.ids.count; i++) zf_ids_add(&r->first, r->text.ids.at[i]);
    if (r->first.failed) return out_of_memory(r->error);
    if (part[1] && !encode(r, part[1], bytes[1], r->d->pair)) return false;
    if (r->d->label && !bytes[2]) return fail(r->error, ZF_ERR_FORMAT, "\"%s\" is empty", r->d->label);
    if (part[2] && memchr(part[2], 0, bytes[2]))
        return fail(r->error, ZF_ERR_FORMAT, "\"%s\" has a NUL character", r->d->label);
    return put_row(r, part[1] != NULL, part[2] ? part[2] : "", bytes[2]);
}

/* --------------------------------------------------------------------------------- JSON Lines */

/* A label is a text, an integer, a truth or a number. */
static bool label_of(const zf_json *v, char number[40], const char **text, size_t *bytes,
                     zf_error *error)
{
    double value = 0;
    if ((*text = zf_json_string(v, bytes))) return true;
    if (zf_json_type_of(v) == ZF_JSON_BOOL) {
        bool truth = false;
        zf_json_to_bool(v, &truth, error);
        *text = truth ? "true" : "false";
    } else {
        if (zf_json_type_of(v) != ZF_JSON_NUMBER)
            return zf_json_expected(v, error, "a string or a number"), false;
        if (zf_json_to_double(v, -1e300, 1e300, &value, error)) return false;
        snprintf(number, 40, "%.17g", value), *text = number;
    }
    *bytes = strlen(*text);
    return true;
}

static bool take_object(void *user, const zf_json *object, zf_error *error)
{
    reader *r = user;
    const char *keys[3] = {r->d->text, r->d->pair, r->d->label}, *part[3] = {NULL};
    size_t bytes[3] = {0};
    char number[40];
    for (int k = 0; k < 3; k++) {
        const zf_json *v = keys[k] ? zf_json_require(object, keys[k], error) : NULL;
        if (!keys[k]) continue;
        if (!v || (k == 2 && !label_of(v, number, &part[k], &bytes[k], error))) return false;
        if (k < 2 && !(part[k] = zf_json_string(v, &bytes[k])))
            return zf_json_expected(v, error, "a string"), false;
    }
    r->error = error;
    return take(r, part, bytes);
}

/* ---------------------------------------------------------------------------------------- CSV */

enum { COLUMNS = 256 };

typedef struct csv {
    char *at; /* where reading goes on; fields are unquoted in their place (RFC 4180) */
    char separator;
    int64_t line;
    char *field[COLUMNS];
    size_t bytes[COLUMNS];
    int fields;
} csv;

/* Reads a field; false: a quote is not closed, or has text after it. */
static bool read_field(csv *c, char **field, size_t *bytes)
{
    char *to = c->at;
    *field = to;
    if (*c->at != '"') {
        while (*c->at && *c->at != c->separator && *c->at != '\n') c->at++;
        *bytes = (size_t)(c->at - to);
        if (*c->at != c->separator && *bytes && to[*bytes - 1] == '\r') --*bytes;
        return true;
    }
    for (c->at++; *c->at && (*c->at != '"' || c->at[1] == '"'); c->at++) {
        c->at += *c->at == '"';
        c->line += *c->at == '\n';
        *to++ = *c->at;
    }
    *bytes = (size_t)(to - *field);
    if (!*c->at) return false;
    c->at++;
    if (*c->at == '\r' && c->at[1] == '\n') c->at++;
    return !*c->at || *c->at == c->separator || *c->at == '\n';
}

/* Reads a record into the fields; false with *error. */
static bool read_record(csv *c, zf_error *error)
{
    for (c->fields = 0; c->fields < COLUMNS;) {
        const int k = c->fields++;
        if (!read_field(c, &c->field[k], &c->bytes[k]))
            return fail(error, ZF_ERR_FORMAT, "a quote is not closed, or has text after it");
        if (*c->at == c->separator && *c->at) {
            c->at++;
            continue;
        }
        if (*c->at) c->at++;
        return true;
    }
    return fail(error, ZF_ERR_FORMAT, "there are more than %d columns", (int)COLUMNS);
}

static bool find_columns(const csv *c, const texts_desc *d, int at[3], zf_error *error)
{
    const char *keys[3] = {d->text, d->pair, d->label};
    for (int k = 0; k < 3; k++) {
        at[k] = -1;
        for (int i = 0; keys[k] && i < c->fields; i++)
            if (strlen(keys[k]) == c->bytes[i] && !memcmp(keys[k], c->field[i], c->bytes[i])) at[k] = i;
        if (keys[k] && at[k] < 0)
            return fail(error, ZF_ERR_FORMAT, "there is no column \"%.100s\"", keys[k]);
    }
    return true;
}

static bool take_records(reader *r, csv *c)
{
    int at[3], columns;
    if (!read_record(c, r->error) || !find_columns(c, r->d, at, r->error)) return false;
    columns = c->fields;
    while (*c->at) {
        const char *part[3] = {NULL};
        size_t bytes[3] = {0};
        c->line++;
        if (*c->at == '\n' || (*c->at == '\r' && c->at[1] == '\n')) {
            c->at += *c->at == '\r' ? 2 : 1;
            continue;
        }
        if (!read_record(c, r->error)) return false;
        if (c->fields != columns)
            return fail(r->error, ZF_ERR_FORMAT, "there are %d columns, and %d in the first line",
                        c->fields, columns);
        for (int k = 0; k < 3; k++)
            if (at[k] >= 0) part[k] = c->field[at[k]], bytes[k] = c->bytes[at[k]];
        if (!take(r, part, bytes)) return false;
    }
    return true;
}

static bool read_csv(reader *r, const char *path, char separator)
{
    csv c = {.separator = separator, .line = 1};
    zf_text text = {.at = NULL};
    zf_error why = {ZF_OK, ""}, *error = r->error;
    bool good;
    if (!zf_text_read_plain(path, &text, error)) return zf_text_free(&text), false;
    zf_text_add(&text, "", 1), c.at = text.at;
    r->error = &why;
    good = text.failed ? out_of_memory(&why) : take_records(r, &c);
    r->error = error;
    zf_text_free(&text);
    return good || fail(error, why.status, "%.300s:%lld: %.180s", path, (long long)c.line, why.text);
}

/* ------------------------------------------------------------------------------------ the file */

static bool ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

bool texts_load(texts *t, const char *path, const texts_desc *d, zf_error *error)
{
    reader r = {.t = t, .d = d, .text = {.desc = d->examples}, .error = error};
    const int64_t least = d->examples->evaluates ? 1 : 2;
    bool good = find_frame(&r);
    *t = (texts){.ids = NULL};
    if (good) {
        const bool tabs = ends_in(path, ".tsv");
        good = tabs || ends_in(path, ".csv") ? read_csv(&r, path, tabs ? '\t' : ',')
                                             : zf_examples_read(path, take_object, &r, error);
    }
    zf_examples_text_free(&r.text), zf_ids_free(&r.first);
    if (good && t->count < least)
        good = fail(error, ZF_ERR_FORMAT, "%.400s has %lld texts, and %lld are needed", path,
                    (long long)t->count, (long long)least);
    good = good && (t->order = zf_examples_order(d->examples, t->count, &t->held_out, error));
    if (!good) texts_free(t);
    return good;
}

void texts_free(texts *t)
{
    for (int64_t k = 0; k < t->count; k++) free(t->said[k]);
    free(t->ids), free(t->at), free(t->second), free(t->said);
    free(t->label), free(t->number), free(t->order);
    *t = (texts){.ids = NULL};
}
