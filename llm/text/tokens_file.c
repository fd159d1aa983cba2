/* Reads tokenizer.json. */
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------- steps */

/* A new step at the end of a list; NULL with an error. */
static zfl_step *zfl_tokens_file_put(zfl_tokens_file_reader *r, zfl_steps *s, zfl_step_kind kind,
                                     const zf_json *v)
{
    if (r->error->status) return NULL;
    if (s->count == ZFL_STEPS) {
        zf_json_fail(v, r->error, "makes more than %d steps", ZFL_STEPS);
        return NULL;
    }
    s->list[s->count] = (zfl_step){.kind = kind};
    return &s->list[s->count++];
}

static void zfl_set_content(zfl_tokens_file_reader *r, zfl_step *s, const char *text, size_t bytes)
{
    if (!s) return;
    s->content = zfl_copy_of(text, bytes, r->error);
    s->bytes = bytes;
}

static void zfl_set_literal(zfl_tokens_file_reader *r, zfl_step *s, const char *text, size_t bytes)
{
    if (!s) return;
    s->literal = zfl_copy_of(text, bytes, r->error);
    s->literal_bytes = bytes;
}

static void zfl_set_regex(zfl_tokens_file_reader *r, zfl_step *s, const char *pattern, size_t bytes,
                          const zf_json *v)
{
    zf_error why = {ZF_OK, ""};
    if (!s || (s->regex = zfl_regex_new(pattern, bytes, &why))) return;
    if (why.status == ZF_ERR_NOMEM) zfl_tokens_file_out_of_memory(r->error);
    else zf_json_fail(v, r->error, "cannot be used: %.300s", why.text);
}

/* {"String": "..."} or {"Regex": "..."} */
static void zfl_set_pattern(zfl_tokens_file_reader *r, zfl_step *s, const zf_json *v)
{
    const zf_json *literal = zf_json_member(v, "String"), *expression = zf_json_member(v, "Regex");
    size_t bytes;
    const char *text;
    if (!literal && !expression && v) zf_json_expected(v, r->error, "{\"String\"} or {\"Regex\"}");
    text = literal || expression ? zfl_text_of(r, literal ? literal : expression, &bytes) : NULL;
    if (text && literal) zfl_set_literal(r, s, text, bytes);
    else if (text) zfl_set_regex(r, s, text, bytes, expression);
}

static void zfl_put_replace(zfl_tokens_file_reader *r, zfl_steps *to, const zf_json *v)
{
    size_t bytes;
    const char *content = zfl_text_of(r, zf_json_require(v, "content", r->error), &bytes);
    zfl_step *s = zfl_tokens_file_put(r, to, ZFL_STEP_REPLACE, v);
    zfl_set_pattern(r, s, zf_json_require(v, "pattern", r->error));
    if (content) zfl_set_content(r, s, content, bytes);
}

/* Reads the elements of a sequence, each by `read`. */
static void zfl_sequence(zfl_tokens_file_reader *r, const zf_json *v, const char *key,
                         void (*read)(zfl_tokens_file_reader *, const zf_json *))
{
    const zf_json *list = zf_json_require(v, key, r->error);
    if (list && zf_json_type_of(list) != ZF_JSON_ARRAY)
        zf_json_expected(list, r->error, "an array");
    if (++r->depth > ZFL_SEQUENCE_DEPTH && v) zf_json_fail(v, r->error, "is a sequence too deep");
    for (list = zf_json_first(list); list && !r->error->status; list = zf_json_next(list))
        read(r, list);
    r->depth--;
}

static void zfl_tokens_file_read_normalizer(zfl_tokens_file_reader *r, const zf_json *v)
{
    static const zfl_object_kind types[] = {{"Lowercase", "type"},
                                            {"NFC", "type"},
                                            {"NFD", "type"},
                                            {"NFKC", "type"},
                                            {"NFKD", "type"},
                                            {"Prepend", "type|prepend"},
                                            {"Replace", "type|pattern|content"},
                                            {"Sequence", "type|normalizers"},
                                            {"Strip", "type|strip_left|strip_right"}};
    static const zf_normal_form forms[] = {ZF_NFC, ZF_NFD, ZF_NFKC, ZF_NFKD};
    zfl_steps *to = &r->t->normalize;
    const char *text;
    size_t bytes;
    zfl_step *s;
    const int type = zfl_type_of(r, v, types, 9);
    switch (type) {
    case 0: zfl_tokens_file_put(r, to, ZFL_STEP_LOWER, v); break;
    case 1:
    case 2:
    case 3:
    case 4:
        if ((s = zfl_tokens_file_put(r, to, ZFL_STEP_FORM, v))) s->form = forms[type - 1];
        break;
    case 5:
        text = zfl_text_of(r, zf_json_require(v, "prepend", r->error), &bytes);
        if (text) zfl_set_content(r, zfl_tokens_file_put(r, to, ZFL_STEP_PREPEND, v), text, bytes);
        r->leads = true;
        break;
    case 6: zfl_put_replace(r, to, v); break;
    case 7: zfl_sequence(r, v, "normalizers", zfl_tokens_file_read_normalizer); break;
    case 8:
        if ((s = zfl_tokens_file_put(r, to, ZFL_STEP_TRIM, v)))
            s->spaces = true, s->left = zfl_truth(r, v, "strip_left", true),
            s->right = zfl_truth(r, v, "strip_right", true);
        break;
    default: break;
    }
}

/* -------------------------------------------------------------------------- pre_tokenizers */

static const char zfl_gpt2_words[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static void zfl_put_split(zfl_tokens_file_reader *r, const char *pattern, zfl_step_split split,
                          const zf_json *v)
{
    zfl_step *s = zfl_tokens_file_put(r, &r->t->split, ZFL_STEP_SPLIT, v);
    if (s) s->split = split;
    zfl_set_regex(r, s, pattern, strlen(pattern), v);
}

/* The character that replaces spaces. */
static const char *zfl_replacement(zfl_tokens_file_reader *r, const zf_json *v, size_t *bytes)
{
    const zf_json *is = zf_json_require(v, "replacement", r->error);
    const char *text = zfl_text_of(r, is, bytes);
    if (text && !*bytes) zf_json_expected(is, r->error, "a character");
    return r->error->status ? NULL : text;
}

/* Where Metaspace adds one: 0 always, 1 before the first word, 2 never. */
static int zfl_scheme_of(zfl_tokens_file_reader *r, const zf_json *v)
{
    static const char *const schemes[] = {"always", "first", "never"};
    const zf_json *scheme = zfl_member(v, "prepend_scheme");
    const bool leads = zfl_truth(r, v, "add_prefix_space", true);
    const int which = scheme ? zfl_choice(r, scheme, schemes, 3) : leads ? 0 : 2;
    if (!leads && which >= 0 && which != 2)
        zf_json_expected(scheme, r->error, "never, since add_prefix_space is false");
    return which;
}

static void zfl_read_metaspace(zfl_tokens_file_reader *r, const zf_json *v)
{
    zfl_steps *to = &r->t->split;
    size_t bytes;
    const char *text = zfl_replacement(r, v, &bytes);
    int scheme = zfl_scheme_of(r, v);
    zfl_step *s;
    if (!text) return;
    s = zfl_tokens_file_put(r, to, ZFL_STEP_REPLACE, v);
    zfl_set_literal(r, s, " ", 1);
    zfl_set_content(r, s, text, bytes);
    if (scheme != 2 && (s = zfl_tokens_file_put(r, to, ZFL_STEP_LEAD, v))) {
        zfl_set_content(r, s, text, bytes);
        s->first_only = scheme == 1, r->leads = true;
    }
    if (zfl_truth(r, v, "split", true) && (s = zfl_tokens_file_put(r, to, ZFL_STEP_SPLIT, v))) {
        zfl_set_literal(r, s, text, bytes);
        s->split = ZFL_SPLIT_BEHIND;
    }
}

static void zfl_read_split(zfl_tokens_file_reader *r, const zf_json *v)
{
    static const char *const behaviors[] = {"Removed", "Isolated", "MergedWithPrevious",
                                            "MergedWithNext", "Contiguous"};
    int split = zfl_choice(r, zf_json_require(v, "behavior", r->error), behaviors, 5);
    zfl_step *s = zfl_tokens_file_put(r, &r->t->split, ZFL_STEP_SPLIT, v);
    if (!s) return;
    s->split = (zfl_step_split)split;
    s->invert = zfl_truth(r, v, "invert", false);
    zfl_set_pattern(r, s, zf_json_require(v, "pattern", r->error));
}

static void zfl_read_pre_tokenizer(zfl_tokens_file_reader *r, const zf_json *v)
{
    static const zfl_object_kind types[] = {
        {"ByteLevel", "type|add_prefix_space|trim_offsets|use_regex"},
        {"Digits", "type|individual_digits"},
        {"Metaspace", "type|replacement|str_rep|prepend_scheme|split|add_prefix_space"},
        {"Sequence", "type|pretokenizers"},
        {"Split", "type|pattern|behavior|invert"},
        {"WhitespaceSplit", "type"}};
    zfl_step *s;
    switch (zfl_type_of(r, v, types, 6)) {
    case 0:
        if (zfl_truth(r, v, "add_prefix_space", true))
            if ((s = zfl_tokens_file_put(r, &r->t->split, ZFL_STEP_LEAD, v)))
                zfl_set_content(r, s, " ", 1), r->leads = true;
        if (zfl_truth(r, v, "use_regex", true))
            zfl_put_split(r, zfl_gpt2_words, ZFL_SPLIT_ISOLATE, v);
        zfl_tokens_file_put(r, &r->t->split, ZFL_STEP_BYTES, v);
        break;
    case 1:
        zfl_put_split(r, zfl_truth(r, v, "individual_digits", false) ? "\\p{N}" : "\\p{N}+",
                      ZFL_SPLIT_ISOLATE, v);
        break;
    case 2: zfl_read_metaspace(r, v); break;
    case 3: zfl_sequence(r, v, "pretokenizers", zfl_read_pre_tokenizer); break;
    case 4: zfl_read_split(r, v); break;
    case 5: zfl_put_split(r, "\\s", ZFL_SPLIT_REMOVE, v); break;
    default: break;
    }
}

/* ---------------------------------------------------------------------------------- decoders */

static void zfl_read_decoder(zfl_tokens_file_reader *r, const zf_json *v)
{
    static const zfl_object_kind types[] = {
        {"ByteFallback", "type"},
        {"ByteLevel", "type|add_prefix_space|trim_offsets|use_regex"},
        {"Fuse", "type"},
        {"Metaspace", "type|replacement|str_rep|prepend_scheme|split|add_prefix_space"},
        {"Replace", "type|pattern|content"},
        {"Sequence", "type|decoders"},
        {"Strip", "type|content|start|stop"}};
    zfl_steps *to = &r->t->decode;
    const char *text;
    size_t bytes;
    zfl_step *s;
    switch (zfl_type_of(r, v, types, 7)) {
    case 0: zfl_tokens_file_put(r, to, ZFL_STEP_FALLBACK, v); break;
    case 1: zfl_tokens_file_put(r, to, ZFL_STEP_UNBYTES, v); break;
    case 2: zfl_tokens_file_put(r, to, ZFL_STEP_FUSE, v); break;
    case 3:
        if (!(text = zfl_replacement(r, v, &bytes))) break;
        if (zfl_scheme_of(r, v) != 2 && (s = zfl_tokens_file_put(r, to, ZFL_STEP_REPLACE, v))) {
            zfl_set_literal(r, s, text, bytes);
            zfl_set_content(r, s, "", 0);
            s->first_only = true;
        }
        s = zfl_tokens_file_put(r, to, ZFL_STEP_REPLACE, v);
        zfl_set_literal(r, s, text, bytes);
        zfl_set_content(r, s, " ", 1);
        break;
    case 4: zfl_put_replace(r, to, v); break;
    case 5: zfl_sequence(r, v, "decoders", zfl_read_decoder); break;
    case 6:
        text = zfl_text_of(r, zf_json_require(v, "content", r->error), &bytes);
        if (!text || !(s = zfl_tokens_file_put(r, to, ZFL_STEP_TRIM, v))) break;
        zfl_set_content(r, s, text, bytes);
        zf_json_to_int(zf_json_require(v, "start", r->error), 0, INT32_MAX, &s->left, r->error);
        zf_json_to_int(zf_json_require(v, "stop", r->error), 0, INT32_MAX, &s->right, r->error);
        break;
    default: break;
    }
}

/* ------------------------------------------------------------------------- post_processors */

/* Adds an id of the tokens around a text. */
static void zfl_tokens_file_put_id(zfl_tokens_file_reader *r, zf_ids *to, const zf_json *v)
{
    int64_t id = 0;
    if (v && !zf_json_to_int(v, 0, r->t->size - 1, &id, r->error)) zf_ids_add(to, (int32_t)id);
    if (to->failed) zfl_tokens_file_out_of_memory(r->error);
}

/* The list for one text: {"SpecialToken": {"id"}} and {"Sequence": {"id": "A"}}. */
static void zfl_tokens_file_read_template(zfl_tokens_file_reader *r, const zf_json *v)
{
    const zf_json *all = zf_json_member(v, "special_tokens"), *ids;
    zf_ids *to = &r->t->before;
    for (v = zf_json_first(zf_json_require(v, "single", r->error)); v && !r->error->status;
         v = zf_json_next(v)) {
        const zf_json *special = zf_json_member(v, "SpecialToken");
        const char *name = NULL;
        if (!special) {
            if (!zf_json_member(v, "Sequence"))
                zf_json_expected(v, r->error, "{\"SpecialToken\"} or {\"Sequence\"}");
            else if (to == &r->t->after)
                zf_json_fail(v, r->error, "has a text for the second time");
            to = &r->t->after;
            continue;
        }
        if (zf_json_to_string(zf_json_require(special, "id", r->error), &name, r->error) || !name)
            return;
        ids = zf_json_require(zf_json_require(all, name, r->error), "ids", r->error);
        if (!all) zf_json_fail(special, r->error, "is not among special_tokens");
        for (ids = zf_json_first(ids); ids; ids = zf_json_next(ids))
            zfl_tokens_file_put_id(r, to, ids);
    }
}

static void zfl_read_post_processor(zfl_tokens_file_reader *r, const zf_json *v)
{
    static const zfl_object_kind types[] = {
        {"BertProcessing", "type|sep|cls"},
        {"ByteLevel", "type|add_prefix_space|trim_offsets|use_regex"},
        {"RobertaProcessing", "type|sep|cls|trim_offsets|add_prefix_space"},
        {"Sequence", "type|processors"},
        {"TemplateProcessing", "type|single|pair|special_tokens"}};
    int type = zfl_type_of(r, v, types, 5);
    if (type < 0 || type == 1) return;
    if (type == 3) {
        zfl_sequence(r, v, "processors", zfl_read_post_processor);
        return;
    }
    if (r->t->before.count || r->t->after.count) {
        zf_json_fail(v, r->error, "is the second one that puts tokens around a text");
    } else if (type == 4) {
        zfl_tokens_file_read_template(r, v);
    } else {
        zfl_tokens_file_put_id(r, &r->t->before,
                               zf_json_element(zf_json_require(v, "cls", r->error), 1));
        zfl_tokens_file_put_id(r, &r->t->after,
                               zf_json_element(zf_json_require(v, "sep", r->error), 1));
    }
}

/* ------------------------------------------------------------------------------------- model */

/* An optional string of the model, without a zero byte, copied. */
static char *zfl_option_text(zfl_tokens_file_reader *r, const zf_json *model, const char *key)
{
    const char *text = NULL;
    const zf_json *v = zfl_member(model, key);
    if (!v || zf_json_to_string(v, &text, r->error) || !*text) return NULL;
    return zfl_copy_of(text, strlen(text), r->error);
}

static void zfl_read_vocab(zfl_tokens_file_reader *r, const zf_json *vocab, size_t merges)
{
    int64_t id = 0, size = 0;
    zfl_bpe *b = &r->t->bpe;
    if (vocab && zf_json_type_of(vocab) != ZF_JSON_OBJECT)
        zf_json_expected(vocab, r->error, "an object of tokens and ids");
    for (const zf_json *v = zf_json_first(vocab); v && !r->error->status; v = zf_json_next(v))
        if (!zf_json_to_int(v, 0, ZFL_TOKENS_FILE_ID_LIMIT - 1, &id, r->error) && id >= size)
            size = id + 1;
    if (r->error->status) return;
    if (!zfl_bpe_open(b, (int32_t)size, merges)) {
        zfl_tokens_file_out_of_memory(r->error);
        return;
    }
    for (const zf_json *v = zf_json_first(vocab); v && !r->error->status; v = zf_json_next(v)) {
        size_t bytes;
        const char *text = zf_json_key(v, &bytes);
        zf_json_to_int(v, 0, ZFL_TOKENS_FILE_ID_LIMIT - 1, &id, r->error);
        if (zfl_bpe_add(b, text, bytes, (int32_t)id)) continue;
        if (b->text.failed) zfl_tokens_file_out_of_memory(r->error);
        else zf_json_fail(v, r->error, "has the id %lld, as another token has", (long long)id);
    }
}

/* The two tokens of a merge, "a b" or ["a", "b"]. */
static bool zfl_merge_parts(zfl_tokens_file_reader *r, const zf_json *v, const char *part[2],
                            size_t bytes[2])
{
    const char *space;
    if (zf_json_type_of(v) == ZF_JSON_ARRAY && zf_json_length(v) == 2) {
        for (int k = 0; k < 2; k++)
            if (!(part[k] = zfl_text_of(r, zf_json_element(v, k), &bytes[k]))) return false;
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

static void zfl_read_merges(zfl_tokens_file_reader *r, const zf_json *merges)
{
    zfl_bpe *b = &r->t->bpe;
    zf_text whole = {.at = NULL};
    size_t prefix = b->prefix ? strlen(b->prefix) : 0;
    int32_t rank = 0;
    for (const zf_json *v = zf_json_first(merges); v && !r->error->status;
         v = zf_json_next(v), rank++) {
        const char *part[2];
        size_t bytes[2], cut;
        int32_t id[2], merged;
        if (!zfl_merge_parts(r, v, part, bytes)) break;
        for (int k = 0; k < 2; k++)
            if ((id[k] = zfl_bpe_find(b, part[k], bytes[k])) < 0)
                zf_json_fail(v, r->error, "has \"%.*s\", which is not in vocab",
                             bytes[k] < 100 ? (int)bytes[k] : 100, part[k]);
        cut = prefix < bytes[1] ? prefix : bytes[1];
        zf_text_clear(&whole);
        zf_text_add(&whole, part[0], bytes[0]);
        zf_text_add(&whole, part[1] + cut, bytes[1] - cut);
        if (whole.failed) zfl_tokens_file_out_of_memory(r->error);
        if (r->error->status) break;
        if ((merged = zfl_bpe_find(b, whole.at, whole.count)) < 0)
            zf_json_fail(v, r->error, "makes \"%.100s\", which is not in vocab", whole.at);
        else zfl_bpe_add_merge(b, id[0], id[1], rank, merged);
    }
    zf_text_free(&whole);
}

/* What both kinds of models have. */
static void zfl_read_fallback(zfl_tokens_file_reader *r, const zf_json *model)
{
    zfl_bpe *b = &r->t->bpe;
    b->fall_back = zfl_truth(r, model, "byte_fallback", false);
    for (int k = 0; k < 256; k++) {
        char text[8];
        b->bytes[k] = zfl_bpe_find(b, text, (size_t)snprintf(text, sizeof text, "<0x%02X>", k));
    }
}

static void zfl_read_bpe(zfl_tokens_file_reader *r, const zf_json *model)
{
    zfl_bpe *b = &r->t->bpe;
    const zf_json *merges = zf_json_require(model, "merges", r->error), *v;
    double dropout = 0;
    char *unknown;
    zfl_expect_members(
        r, model,
        "type|dropout|unk_token|continuing_subword_prefix|end_of_word_suffix|fuse_unk|"
        "byte_fallback|ignore_merges|vocab|merges");
    v = zfl_member(model, "dropout");
    if (v && !zf_json_to_double(v, 0, 1, &dropout, r->error) && dropout > 0)
        zf_json_expected(v, r->error, "null: merges are not dropped");
    if (merges && zf_json_type_of(merges) != ZF_JSON_ARRAY)
        zf_json_expected(merges, r->error, "an array");
    zfl_read_vocab(r, zf_json_require(model, "vocab", r->error), (size_t)zf_json_length(merges));
    if (r->error->status) return;
    b->prefix = zfl_option_text(r, model, "continuing_subword_prefix");
    b->suffix = zfl_option_text(r, model, "end_of_word_suffix");
    b->fuse = zfl_truth(r, model, "fuse_unk", false);
    b->whole = zfl_truth(r, model, "ignore_merges", false);
    unknown = zfl_option_text(r, model, "unk_token");
    if (unknown && (b->unknown = zfl_bpe_find(b, unknown, strlen(unknown))) < 0)
        zf_json_fail(zfl_member(model, "unk_token"), r->error, "is not in vocab");
    free(unknown);
    zfl_read_fallback(r, model);
    zfl_read_merges(r, merges);
}

/* Tokens and scores, [["the", -3.2], ...], in the order of ids. */
static void zfl_read_scores_of(zfl_tokens_file_reader *r, const zf_json *vocab)
{
    zfl_bpe *b = &r->t->bpe;
    zfl_unigram *u = &r->t->unigram;
    const int64_t size = zf_json_length(vocab);
    int32_t id = 0;
    if (vocab && (zf_json_type_of(vocab) != ZF_JSON_ARRAY || size >= ZFL_TOKENS_FILE_ID_LIMIT))
        zf_json_expected(vocab, r->error, "an array of tokens and scores");
    if (r->error->status) return;
    u->scores = malloc(((size_t)size + 1) * sizeof *u->scores);
    if (!zfl_bpe_open(b, (int32_t)size, 0) || !u->scores) {
        zfl_tokens_file_out_of_memory(r->error);
        return;
    }
    for (const zf_json *v = zf_json_first(vocab); v && !r->error->status; v = zf_json_next(v)) {
        size_t bytes = 0;
        const char *text = zf_json_string(zf_json_element(v, 0), &bytes);
        u->scores[id] = 0;
        if (!text || zf_json_length(v) != 2 ||
            zf_json_to_double(zf_json_element(v, 1), -1e300, 1e300, &u->scores[id], r->error))
            zf_json_expected(v, r->error, "a token and its score, [\"the\", -3.2]");
        else if (!zfl_bpe_add(b, text, bytes, id)) zfl_tokens_file_out_of_memory(r->error);
        if (!id || u->scores[id] < u->unknown) u->unknown = u->scores[id];
        id++;
    }
    u->unknown -= 10; /* what sentencepiece takes off the lowest score */
}

static void zfl_read_unigram(zfl_tokens_file_reader *r, const zf_json *model)
{
    zfl_bpe *b = &r->t->bpe;
    int64_t unknown = -1;
    zfl_expect_members(r, model, "type|unk_id|vocab|byte_fallback");
    zfl_read_scores_of(r, zf_json_require(model, "vocab", r->error));
    if (r->error->status) return;
    zf_json_to_int(zfl_member(model, "unk_id"), 0, b->size - 1, &unknown, r->error);
    b->unknown = (int32_t)unknown;
    zfl_read_fallback(r, model);
    if (!zfl_unigram_sort(&r->t->unigram, b)) zfl_tokens_file_out_of_memory(r->error);
}

/* A model without a type is a Unigram if its vocabulary is a list. */
static void zfl_read_model(zfl_tokens_file_reader *r, const zf_json *model)
{
    static const char *const types[] = {"BPE", "Unigram"};
    const zf_json *v = zfl_member(model, "type"), *vocab = zfl_member(model, "vocab");
    const int type = v ? zfl_choice(r, v, types, 2) : zf_json_type_of(vocab) == ZF_JSON_ARRAY;
    if (type == 1) zfl_read_unigram(r, model);
    else if (!type) zfl_read_bpe(r, model);
    r->known = (int32_t)zf_json_length(vocab);
}

/* ------------------------------------------------------------------------------ added tokens */

/* Adds the text by which an added token is found, normalized if it says so. */
static bool zfl_index_added(zfl_tokens_file_reader *r, int32_t number)
{
    zf_tokenizer *t = r->t;
    zfl_added_token *a = &t->added[number];
    zfl_pieces p = {.list = NULL}, room = {.list = NULL};
    bool good;
    if (!a->normalized) return zfl_trie_add(&t->raw, a->text, a->bytes, number);
    zfl_pieces_add(&p, a->text, a->bytes, true);
    good = zfl_steps_run(&t->normalize, &p, &room, r->error);
    good = good && (a->form = zfl_copy_of(p.text.at, p.text.count, r->error)) != NULL;
    if (good) a->form_bytes = p.text.count;
    if (good && p.text.count) good = zfl_trie_add(&t->normalized, a->form, a->form_bytes, number);
    zfl_pieces_free(&p);
    zfl_pieces_free(&room);
    return good;
}

static bool zfl_index_all(zfl_tokens_file_reader *r)
{
    zf_tokenizer *t = r->t;
    bool good = zfl_number_ids(r, t->size);
    for (size_t i = 0; i < t->added_count && good; i++) good = zfl_index_added(r, (int32_t)i);
    return good || zfl_tokens_file_out_of_memory(r->error);
}

/* ------------------------------------------------------------------------------------- files */

/* files: the other files of the folder, or NULL. */
static bool zfl_read_top(zfl_tokens_file_reader *r, const zf_json *top,
                         const zfl_token_files *files)
{
    zf_tokenizer *t = r->t;
    const zf_json *model = zf_json_require(top, "model", r->error),
                  *v = zfl_member(top, "added_tokens");
    zfl_expect_members(r, top,
                       "version|truncation|padding|added_tokens|normalizer|pre_tokenizer|"
                       "post_processor|decoder|model");
    if (model) zfl_read_model(r, model);
    if (v && zf_json_type_of(v) != ZF_JSON_ARRAY) zf_json_expected(v, r->error, "an array");
    if (r->error->status) return false;
    t->size = t->bpe.size;
    for (v = zf_json_first(v); v && !r->error->status; v = zf_json_next(v))
        zfl_tokens_file_read_added(r, v);
    if (files && !r->error->status) zfl_merge_tokens(r, files);
    if ((v = zfl_member(top, "normalizer"))) zfl_tokens_file_read_normalizer(r, v);
    if ((v = zfl_member(top, "pre_tokenizer"))) zfl_read_pre_tokenizer(r, v);
    if ((v = zfl_member(top, "post_processor"))) zfl_read_post_processor(r, v);
    if ((v = zfl_member(top, "decoder"))) {
        t->decodes = true;
        zfl_read_decoder(r, v);
    }
    if (files && !r->error->status) zfl_check_prefix(r, files);
    return !r->error->status && zfl_index_all(r);
}

static zf_tokenizer *zfl_read_tree(zf_json *top, const zfl_token_files *files, zf_error *error)
{
    zfl_tokens_file_reader r = {
        .t = top ? calloc(1, sizeof(zf_tokenizer)) : NULL, .error = error, .last = -1};
    bool good = r.t           ? zfl_read_top(&r, top, files)
                : top != NULL ? zfl_tokens_file_out_of_memory(error)
                              : false;
    zf_json_free(top);
    free(r.contents.nodes);
    free(r.named.nodes);
    if (good) return r.t;
    zf_tokenizer_free(r.t);
    return NULL;
}

zf_tokenizer *zf_tokenizer_parse(const char *text, size_t bytes, const char *name, zf_error *error)
{
    zf_error why = {ZF_OK, ""};
    zf_json *top = zf_json_parse(text, bytes, NULL, &why);
    zf_tokenizer *t = zfl_read_tree(top, NULL, &why);
    if (!t && why.status == ZF_ERR_NOMEM) zfl_fail(error, why.status, "%s", why.text);
    else if (!t) zfl_fail(error, why.status, "%s:%.400s", name, why.text);
    return t;
}

zf_tokenizer *zf_tokenizer_open(const char *path, zf_error *error)
{
    char file[ZF_FOLDER_PATH];
    const bool folder = zf_folder_is(path);
    zf_error why = {ZF_OK, ""};
    zfl_token_files files = {.config = NULL};
    zf_tokenizer *t = NULL;
    if (folder) snprintf(file, sizeof file, "%s/tokenizer.json", path);
    if (!folder || zfl_token_files_read(&files, path, &why))
        t = zfl_read_tree(zf_json_read(folder ? file : path, NULL, &why), folder ? &files : NULL,
                          &why);
    zfl_token_files_free(&files);
    if (!t) *error = why;
    return t;
}
