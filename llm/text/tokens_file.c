/* Reads tokenizer.json. Members that are not named here have no effect on ids or texts:
 * trim_offsets, fuse_unk without an unk_token, and others. */
#define _POSIX_C_SOURCE 200809L
#include "../base/fail.h"
#include "../folder/folder.h"
#include "tokens_inside.h"

#include <stdlib.h>
#include <string.h>

enum { ID_LIMIT = 1 << 24, SEQUENCE_DEPTH = 8 };

typedef struct reader {
    tokens *t;
    zf_error *error;
    int depth; /* depth of nested sequences */
} reader;

static bool out_of_memory(zf_error *error)
{
    return error->status ? false : fail(error, ZF_ERR_NOMEM, "out of memory");
}

/* A copy, terminated. */
static char *copy_of(const char *text, size_t bytes, zf_error *error)
{
    char *copy = malloc(bytes + 1);
    if (!copy) {
        out_of_memory(error);
        return NULL;
    }
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    return copy;
}

/* A member; NULL where it is absent or null. */
static const zf_json *member(const zf_json *object, const char *key)
{
    const zf_json *v = zf_json_member(object, key);
    return zf_json_type_of(v) == ZF_JSON_NULL ? NULL : v;
}

static bool truth(reader *r, const zf_json *object, const char *key, bool otherwise)
{
    bool yes = otherwise;
    zf_json_to_bool(member(object, key), &yes, r->error);
    return yes;
}

/* A string, which is required and may contain zero bytes. */
static const char *text_of(reader *r, const zf_json *v, size_t *bytes)
{
    const char *text = zf_json_string(v, bytes);
    if (v && !text) zf_json_expected(v, r->error, "a string");
    return text;
}

/* The index of a string among the names; -1 with an error, which lists them. */
static int choice(reader *r, const zf_json *v, const char *const *names, int count)
{
    char all[400] = "";
    size_t used = 0;
    const char *text = NULL;
    if (!v || zf_json_to_string(v, &text, r->error)) return -1;
    for (int k = 0; k < count; k++) {
        if (!strcmp(text, names[k])) return k;
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", k ? ", " : "", names[k]);
    }
    zf_json_expected(v, r->error, "one of %s", all);
    return -1;
}

static int type_of(reader *r, const zf_json *v, const char *const *names, int count)
{
    return choice(r, zf_json_require(v, "type", r->error), names, count);
}

/* ------------------------------------------------------------------------------------- steps */

/* A new step at the end of a list; NULL with an error. */
static step *put(reader *r, steps *s, step_kind kind, const zf_json *v)
{
    if (r->error->status) return NULL;
    if (s->count == STEPS) {
        zf_json_fail(v, r->error, "makes more than %d steps", STEPS);
        return NULL;
    }
    s->list[s->count] = (step){.kind = kind};
    return &s->list[s->count++];
}

static void set_content(reader *r, step *s, const char *text, size_t bytes)
{
    if (!s) return;
    s->content = copy_of(text, bytes, r->error);
    s->bytes = bytes;
}

static void set_literal(reader *r, step *s, const char *text, size_t bytes)
{
    if (!s) return;
    s->literal = copy_of(text, bytes, r->error);
    s->literal_bytes = bytes;
}

static void set_regex(reader *r, step *s, const char *pattern, size_t bytes, const zf_json *v)
{
    zf_error why = {ZF_OK, ""};
    if (!s || (s->regex = regex_new(pattern, bytes, &why))) return;
    if (why.status == ZF_ERR_NOMEM) out_of_memory(r->error);
    else zf_json_fail(v, r->error, "cannot be used: %.300s", why.text);
}

/* {"String": "..."} or {"Regex": "..."} */
static void set_pattern(reader *r, step *s, const zf_json *v)
{
    const zf_json *literal = zf_json_member(v, "String"), *expression = zf_json_member(v, "Regex");
    size_t bytes;
    const char *text;
    if (!literal && !expression && v) zf_json_expected(v, r->error, "{\"String\"} or {\"Regex\"}");
    text = literal || expression ? text_of(r, literal ? literal : expression, &bytes) : NULL;
    if (text && literal) set_literal(r, s, text, bytes);
    else if (text) set_regex(r, s, text, bytes, expression);
}

static void put_replace(reader *r, steps *to, const zf_json *v)
{
    size_t bytes;
    const char *content = text_of(r, zf_json_require(v, "content", r->error), &bytes);
    step *s = put(r, to, STEP_REPLACE, v);
    set_pattern(r, s, zf_json_require(v, "pattern", r->error));
    if (content) set_content(r, s, content, bytes);
}

/* Reads the elements of a sequence, each by `read`. */
static void sequence(reader *r, const zf_json *v, const char *key,
                     void (*read)(reader *, const zf_json *))
{
    const zf_json *list = zf_json_require(v, key, r->error);
    if (list && zf_json_type_of(list) != ZF_JSON_ARRAY)
        zf_json_expected(list, r->error, "an array");
    if (++r->depth > SEQUENCE_DEPTH && v) zf_json_fail(v, r->error, "is a sequence too deep");
    for (list = zf_json_first(list); list && !r->error->status; list = zf_json_next(list))
        read(r, list);
    r->depth--;
}

static void read_normalizer(reader *r, const zf_json *v)
{
    static const char *const types[] = {"NFC", "NFD", "Prepend", "Replace", "Sequence", "Strip"};
    steps *to = &r->t->normalize;
    const char *text;
    size_t bytes;
    step *s;
    int type = type_of(r, v, types, 6);
    switch (type) {
    case 0:
    case 1:
        if ((s = put(r, to, STEP_FORM, v))) s->compose = !type;
        break;
    case 2:
        text = text_of(r, zf_json_require(v, "prepend", r->error), &bytes);
        if (text) set_content(r, put(r, to, STEP_PREPEND, v), text, bytes);
        break;
    case 3: put_replace(r, to, v); break;
    case 4: sequence(r, v, "normalizers", read_normalizer); break;
    case 5:
        if ((s = put(r, to, STEP_TRIM, v)))
            s->spaces = true, s->left = truth(r, v, "strip_left", true),
            s->right = truth(r, v, "strip_right", true);
        break;
    default: break;
    }
}

/* -------------------------------------------------------------------------- pre_tokenizers */

static const char gpt2_words[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static void put_split(reader *r, const char *pattern, step_split split, const zf_json *v)
{
    step *s = put(r, &r->t->split, STEP_SPLIT, v);
    if (s) s->split = split;
    set_regex(r, s, pattern, strlen(pattern), v);
}

/* The character that replaces spaces. */
static const char *replacement(reader *r, const zf_json *v, size_t *bytes)
{
    const zf_json *is = zf_json_require(v, "replacement", r->error);
    const char *text = text_of(r, is, bytes);
    if (text && !*bytes) zf_json_expected(is, r->error, "a character");
    return r->error->status ? NULL : text;
}

/* Where Metaspace adds one: 0 always, 1 before the first word, 2 never. */
static int scheme_of(reader *r, const zf_json *v)
{
    static const char *const schemes[] = {"always", "first", "never"};
    const zf_json *scheme = member(v, "prepend_scheme");
    if (scheme) return choice(r, scheme, schemes, 3);
    return truth(r, v, "add_prefix_space", true) ? 0 : 2;
}

static void read_metaspace(reader *r, const zf_json *v)
{
    steps *to = &r->t->split;
    size_t bytes;
    const char *text = replacement(r, v, &bytes);
    int scheme = scheme_of(r, v);
    step *s;
    if (!text) return;
    s = put(r, to, STEP_REPLACE, v);
    set_literal(r, s, " ", 1);
    set_content(r, s, text, bytes);
    if (scheme != 2 && (s = put(r, to, STEP_LEAD, v))) {
        set_content(r, s, text, bytes);
        s->first_only = scheme == 1;
    }
    if (truth(r, v, "split", true) && (s = put(r, to, STEP_SPLIT, v))) {
        set_literal(r, s, text, bytes);
        s->split = SPLIT_BEHIND;
    }
}

static void read_split(reader *r, const zf_json *v)
{
    static const char *const behaviors[] = {"Removed", "Isolated", "MergedWithPrevious",
                                            "MergedWithNext", "Contiguous"};
    int split = choice(r, zf_json_require(v, "behavior", r->error), behaviors, 5);
    step *s = put(r, &r->t->split, STEP_SPLIT, v);
    if (!s) return;
    s->split = (step_split)split;
    s->invert = truth(r, v, "invert", false);
    set_pattern(r, s, zf_json_require(v, "pattern", r->error));
}

static void read_pre_tokenizer(reader *r, const zf_json *v)
{
    static const char *const types[] = {"ByteLevel", "Digits", "Metaspace",
                                        "Sequence",  "Split",  "WhitespaceSplit"};
    step *s;
    switch (type_of(r, v, types, 6)) {
    case 0:
        if (truth(r, v, "add_prefix_space", true))
            if ((s = put(r, &r->t->split, STEP_LEAD, v))) set_content(r, s, " ", 1);
        if (truth(r, v, "use_regex", true)) put_split(r, gpt2_words, SPLIT_ISOLATE, v);
        put(r, &r->t->split, STEP_BYTES, v);
        break;
    case 1:
        put_split(r, truth(r, v, "individual_digits", false) ? "\\p{N}" : "\\p{N}+", SPLIT_ISOLATE,
                  v);
        break;
    case 2: read_metaspace(r, v); break;
    case 3: sequence(r, v, "pretokenizers", read_pre_tokenizer); break;
    case 4: read_split(r, v); break;
    case 5: put_split(r, "\\s", SPLIT_REMOVE, v); break;
    default: break;
    }
}

/* ---------------------------------------------------------------------------------- decoders */

static void read_decoder(reader *r, const zf_json *v)
{
    static const char *const types[] = {"ByteFallback", "ByteLevel", "Fuse", "Metaspace",
                                        "Replace",      "Sequence",  "Strip"};
    steps *to = &r->t->decode;
    const char *text;
    size_t bytes;
    step *s;
    switch (type_of(r, v, types, 7)) {
    case 0: put(r, to, STEP_FALLBACK, v); break;
    case 1: put(r, to, STEP_UNBYTES, v); break;
    case 2: put(r, to, STEP_FUSE, v); break;
    case 3:
        if (!(text = replacement(r, v, &bytes))) break;
        if (scheme_of(r, v) != 2 && (s = put(r, to, STEP_REPLACE, v))) {
            set_literal(r, s, text, bytes);
            set_content(r, s, "", 0);
            s->first_only = true;
        }
        s = put(r, to, STEP_REPLACE, v);
        set_literal(r, s, text, bytes);
        set_content(r, s, " ", 1);
        break;
    case 4: put_replace(r, to, v); break;
    case 5: sequence(r, v, "decoders", read_decoder); break;
    case 6:
        text = text_of(r, zf_json_require(v, "content", r->error), &bytes);
        if (!text || !(s = put(r, to, STEP_TRIM, v))) break;
        set_content(r, s, text, bytes);
        zf_json_to_int(zf_json_require(v, "start", r->error), 0, INT32_MAX, &s->left, r->error);
        zf_json_to_int(zf_json_require(v, "stop", r->error), 0, INT32_MAX, &s->right, r->error);
        break;
    default: break;
    }
}

/* ------------------------------------------------------------------------- post_processors */

/* Adds an id of the tokens around a text. */
static void put_id(reader *r, id_list *to, const zf_json *v)
{
    int64_t id = 0;
    if (v && !zf_json_to_int(v, 0, r->t->size - 1, &id, r->error)) id_list_add(to, (int32_t)id);
    if (to->failed) out_of_memory(r->error);
}

/* The list for one text: {"SpecialToken": {"id"}} and {"Sequence": {"id": "A"}}. */
static void read_template(reader *r, const zf_json *v)
{
    const zf_json *all = zf_json_member(v, "special_tokens"), *ids;
    id_list *to = &r->t->before;
    for (v = zf_json_first(zf_json_require(v, "single", r->error)); v && !r->error->status;
         v = zf_json_next(v)) {
        const zf_json *special = zf_json_member(v, "SpecialToken");
        const char *name = NULL;
        if (!special) {
            if (!zf_json_member(v, "Sequence"))
                zf_json_expected(v, r->error, "{\"SpecialToken\"} or {\"Sequence\"}");
            else if (to == &r->t->behind)
                zf_json_fail(v, r->error, "has a text for the second time");
            to = &r->t->behind;
            continue;
        }
        if (zf_json_to_string(zf_json_require(special, "id", r->error), &name, r->error) || !name)
            return;
        ids = zf_json_require(zf_json_require(all, name, r->error), "ids", r->error);
        if (!all) zf_json_fail(special, r->error, "is not among special_tokens");
        for (ids = zf_json_first(ids); ids; ids = zf_json_next(ids)) put_id(r, to, ids);
    }
}

static void read_post_processor(reader *r, const zf_json *v)
{
    static const char *const types[] = {"BertProcessing", "ByteLevel", "RobertaProcessing",
                                        "Sequence", "TemplateProcessing"};
    int type = type_of(r, v, types, 5);
    if (type < 0 || type == 1) return;
    if (type == 3) {
        sequence(r, v, "processors", read_post_processor);
        return;
    }
    if (r->t->before.count || r->t->behind.count) {
        zf_json_fail(v, r->error, "is the second one that puts tokens around a text");
    } else if (type == 4) {
        read_template(r, v);
    } else {
        put_id(r, &r->t->before, zf_json_element(zf_json_require(v, "cls", r->error), 1));
        put_id(r, &r->t->behind, zf_json_element(zf_json_require(v, "sep", r->error), 1));
    }
}

/* ------------------------------------------------------------------------------------- model */

/* An optional string of the model, without a zero byte, copied. */
static char *option_text(reader *r, const zf_json *model, const char *key)
{
    const char *text = NULL;
    const zf_json *v = member(model, key);
    if (!v || zf_json_to_string(v, &text, r->error) || !*text) return NULL;
    return copy_of(text, strlen(text), r->error);
}

static void read_vocab(reader *r, const zf_json *vocab, size_t merges)
{
    int64_t id = 0, size = 0;
    bpe *b = &r->t->bpe;
    if (vocab && zf_json_type_of(vocab) != ZF_JSON_OBJECT)
        zf_json_expected(vocab, r->error, "an object of tokens and ids");
    for (const zf_json *v = zf_json_first(vocab); v && !r->error->status; v = zf_json_next(v))
        if (!zf_json_to_int(v, 0, ID_LIMIT - 1, &id, r->error) && id >= size) size = id + 1;
    if (r->error->status) return;
    if (!bpe_open(b, (int32_t)size, merges)) {
        out_of_memory(r->error);
        return;
    }
    for (const zf_json *v = zf_json_first(vocab); v && !r->error->status; v = zf_json_next(v)) {
        size_t bytes;
        const char *text = zf_json_key(v, &bytes);
        zf_json_to_int(v, 0, ID_LIMIT - 1, &id, r->error);
        if (bpe_add(b, text, bytes, (int32_t)id)) continue;
        if (b->text.failed) out_of_memory(r->error);
        else zf_json_fail(v, r->error, "has the id %lld, as another token has", (long long)id);
    }
}

/* The two tokens of a merge, "a b" or ["a", "b"]. */
static bool merge_parts(reader *r, const zf_json *v, const char *part[2], size_t bytes[2])
{
    const char *space;
    if (zf_json_type_of(v) == ZF_JSON_ARRAY && zf_json_length(v) == 2) {
        for (int k = 0; k < 2; k++)
            if (!(part[k] = text_of(r, zf_json_element(v, k), &bytes[k]))) return false;
        return true;
    }
    part[0] = zf_json_string(v, &bytes[1]);
    space = part[0] ? memchr(part[0], ' ', bytes[1]) : NULL;
    if (!space || memchr(space + 1, ' ', (size_t)(part[0] + bytes[1] - space - 1)))
        return zf_json_expected(v, r->error, "two tokens with a space between them"), false;
    part[1] = space + 1;
    bytes[0] = (size_t)(space - part[0]);
    bytes[1] -= bytes[0] + 1;
    return true;
}

static void read_merges(reader *r, const zf_json *merges)
{
    bpe *b = &r->t->bpe;
    buffer whole = {.at = NULL};
    size_t prefix = b->prefix ? strlen(b->prefix) : 0;
    int32_t rank = 0;
    for (const zf_json *v = zf_json_first(merges); v && !r->error->status;
         v = zf_json_next(v), rank++) {
        const char *part[2];
        size_t bytes[2], cut;
        int32_t id[2], merged;
        if (!merge_parts(r, v, part, bytes)) break;
        for (int k = 0; k < 2; k++)
            if ((id[k] = bpe_find(b, part[k], bytes[k])) < 0)
                zf_json_fail(v, r->error, "has \"%.*s\", which is not in vocab",
                             bytes[k] < 100 ? (int)bytes[k] : 100, part[k]);
        cut = prefix < bytes[1] ? prefix : bytes[1];
        buffer_clear(&whole);
        buffer_add(&whole, part[0], bytes[0]);
        buffer_add(&whole, part[1] + cut, bytes[1] - cut);
        if (whole.failed) out_of_memory(r->error);
        if (r->error->status) break;
        if ((merged = bpe_find(b, whole.at, whole.count)) < 0)
            zf_json_fail(v, r->error, "makes \"%.100s\", which is not in vocab", whole.at);
        else bpe_add_merge(b, id[0], id[1], rank, merged);
    }
    buffer_free(&whole);
}

static void read_model(reader *r, const zf_json *model)
{
    static const char *const types[] = {"BPE"};
    bpe *b = &r->t->bpe;
    const zf_json *merges = zf_json_require(model, "merges", r->error), *v = member(model, "type");
    double dropout = 0;
    char *unknown;
    if (v) choice(r, v, types, 1);
    v = member(model, "dropout");
    if (v && !zf_json_to_double(v, 0, 1, &dropout, r->error) && dropout > 0)
        zf_json_expected(v, r->error, "null: merges are not dropped");
    if (merges && zf_json_type_of(merges) != ZF_JSON_ARRAY)
        zf_json_expected(merges, r->error, "an array");
    read_vocab(r, zf_json_require(model, "vocab", r->error), (size_t)zf_json_length(merges));
    if (r->error->status) return;
    b->prefix = option_text(r, model, "continuing_subword_prefix");
    b->suffix = option_text(r, model, "end_of_word_suffix");
    b->fuse = truth(r, model, "fuse_unk", false);
    b->fall_back = truth(r, model, "byte_fallback", false);
    b->whole = truth(r, model, "ignore_merges", false);
    unknown = option_text(r, model, "unk_token");
    if (unknown && (b->unknown = bpe_find(b, unknown, strlen(unknown))) < 0)
        zf_json_fail(member(model, "unk_token"), r->error, "is not in vocab");
    free(unknown);
    for (int k = 0; k < 256; k++) {
        char text[8];
        b->bytes[k] = bpe_find(b, text, (size_t)snprintf(text, sizeof text, "<0x%02X>", k));
    }
    read_merges(r, merges);
}

/* ------------------------------------------------------------------------------ added tokens */

static void read_added(reader *r, const zf_json *v)
{
    tokens *t = r->t;
    const zf_json *id_value = zf_json_require(v, "id", r->error),
                  *content = zf_json_require(v, "content", r->error);
    added_token *added, a = {.text = NULL};
    const char *text = text_of(r, content, &a.bytes);
    int64_t id = 0;
    int32_t known;
    zf_json_to_int(id_value, 0, ID_LIMIT - 1, &id, r->error);
    a.id = (int32_t)id;
    a.single_word = truth(r, v, "single_word", false);
    a.lstrip = truth(r, v, "lstrip", false);
    a.rstrip = truth(r, v, "rstrip", false);
    a.special = truth(r, v, "special", false);
    a.normalized = truth(r, v, "normalized", !a.special);
    if (text && !a.bytes) zf_json_expected(content, r->error, "a text");
    if (r->error->status) return;
    known = bpe_find(&t->bpe, text, a.bytes);
    if (known >= 0 && known != a.id)
        zf_json_expected(id_value, r->error, "%d, the id that the token has in model.vocab",
                         (int)known);
    for (size_t i = 0; i < t->added_count; i++)
        if (t->added[i].id == a.id)
            zf_json_fail(id_value, r->error, "is the id of two added tokens");
    if (known < 0 && a.id < t->bpe.size && t->bpe.tokens[a.id].bytes >= 0)
        zf_json_fail(id_value, r->error, "is the id of another token in model.vocab");
    if (a.single_word && !t->word && !r->error->status) {
        static const char word[] = "[\\w\\x{200C}\\x{200D}]";
        zf_error why = {ZF_OK, ""};
        if (!(t->word = regex_new(word, sizeof word - 1, &why)))
            zf_json_fail(member(v, "single_word"), r->error, "cannot be used: %.300s", why.text);
    }
    if (r->error->status || !(a.text = copy_of(text, a.bytes, r->error))) return;
    added = list_grow(t->added, t->added_count, &t->added_room, sizeof *added);
    if (!added) {
        free(a.text);
        out_of_memory(r->error);
        return;
    }
    t->added = added;
    t->added[t->added_count++] = a;
    if (a.id >= t->size) t->size = a.id + 1;
}

/* Adds the text by which an added token is found, normalized if it says so. */
static bool index_added(reader *r, int32_t number)
{
    tokens *t = r->t;
    added_token *a = &t->added[number];
    pieces p = {.list = NULL}, room = {.list = NULL};
    bool good;
    t->added_of[a->id] = number;
    if (!a->normalized) return trie_add(&t->raw, a->text, a->bytes, number);
    pieces_add(&p, a->text, a->bytes, true);
    good = steps_run(&t->normalize, &p, &room, r->error);
    good = good && (a->form = copy_of(p.text.at, p.text.count, r->error)) != NULL;
    if (good) a->form_bytes = p.text.count;
    if (good && p.text.count) good = trie_add(&t->normalized, a->form, a->form_bytes, number);
    pieces_free(&p);
    pieces_free(&room);
    return good;
}

static bool index_all(reader *r)
{
    tokens *t = r->t;
    bool good;
    t->added_of = malloc(((size_t)t->size + 1) * sizeof *t->added_of);
    good = t->added_of != NULL;
    for (int32_t id = 0; id < t->size && good; id++) t->added_of[id] = -1;
    for (size_t i = 0; i < t->added_count && good; i++) good = index_added(r, (int32_t)i);
    return good || out_of_memory(r->error);
}

/* ------------------------------------------------------------------------------------- files */

static bool read_top(reader *r, const zf_json *top)
{
    tokens *t = r->t;
    const zf_json *model = zf_json_require(top, "model", r->error),
                  *v = member(top, "added_tokens");
    if (model) read_model(r, model);
    if (v && zf_json_type_of(v) != ZF_JSON_ARRAY) zf_json_expected(v, r->error, "an array");
    if (r->error->status) return false;
    t->size = t->bpe.size;
    for (v = zf_json_first(v); v && !r->error->status; v = zf_json_next(v)) read_added(r, v);
    if ((v = member(top, "normalizer"))) read_normalizer(r, v);
    if ((v = member(top, "pre_tokenizer"))) read_pre_tokenizer(r, v);
    if ((v = member(top, "post_processor"))) read_post_processor(r, v);
    if ((v = member(top, "decoder"))) {
        t->decodes = true;
        read_decoder(r, v);
    }
    return !r->error->status && index_all(r);
}

static tokens *read_tree(zf_json *top, zf_error *error)
{
    reader r = {.t = top ? calloc(1, sizeof(tokens)) : NULL, .error = error};
    bool good = r.t ? read_top(&r, top) : top ? out_of_memory(error) : false;
    zf_json_free(top);
    if (good) return r.t;
    tokens_free(r.t);
    return NULL;
}

tokens *tokens_parse(const char *text, size_t bytes, const char *name, zf_error *error)
{
    zf_error why = {ZF_OK, ""};
    zf_json *top = zf_json_parse(text, bytes, NULL, &why);
    tokens *t = read_tree(top, &why);
    if (!t && why.status == ZF_ERR_NOMEM) fail(error, why.status, "%s", why.text);
    else if (!t) fail(error, why.status, "%s:%.400s", name, why.text);
    return t;
}

tokens *tokens_load(const char *path, zf_error *error)
{
    char file[FOLDER_PATH];
    zf_error why = {ZF_OK, ""};
    tokens *t;
    if (folder_is(path)) {
        snprintf(file, sizeof file, "%s/tokenizer.json", path);
        path = file;
    }
    if (!(t = read_tree(zf_json_read(path, NULL, &why), &why))) *error = why;
    return t;
}
