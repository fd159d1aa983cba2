/* Vocabularies from files and folders.
 *
 *     vocab.txt               tokens, one per line
 *     tokenizer.json          tokens with their ids, added tokens, options
 *     tokenizer_config.json   options, added tokens
 *     added_tokens.json       next to vocab.txt: added tokens with their ids, if
 *                             tokenizer_config.json has none but says which are special
 *     special_tokens_map.json special tokens, which must be among these
 *
 * The tokens of a folder come from tokenizer.json, or if it has none, from vocab.txt. Options of
 * tokenizer_config.json override those of tokenizer.json, as for a BertTokenizer of Hugging Face's
 * transformers; with a tokenizer_class that serves any model, only tokenizer.json counts. Other
 * members of these files that would change texts are an error. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ZFL_FILE_LIMIT = 1 << 28, ZFL_WORDPIECE_FILE_ID_LIMIT = 1 << 24, ZFL_PATH_SIZE = 4096 };

/* A vocabulary while its files are read. */
typedef struct zfl_wordpiece_file_reader {
    zf_wordpiece_entry *tokens;
    size_t count, room;
    zf_wordpiece_options options;
    bool any_model;         /* tokenizer_class serves any model */
    const char *added_path; /* of added_tokens.json, or NULL */
    const char *map_path;   /* of special_tokens_map.json, or NULL */
    zf_error *error;        /* may be NULL */
} zfl_wordpiece_file_reader;

__attribute__((format(printf, 2, 3))) static bool
zfl_wordpiece_file_fail(zfl_wordpiece_file_reader *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (r->error) zfl_fail_text(r->error, ZF_ERR_FORMAT, format, args);
    va_end(args);
    return false;
}

static bool zfl_wordpiece_file_out_of_memory(zfl_wordpiece_file_reader *r, const char *name)
{
    zfl_tell(r->error, ZF_ERR_NOMEM, "%s: out of memory", name);
    return false;
}

/* Reads a whole file, which the caller frees; NULL with a message. */
static char *zfl_read_whole(zfl_wordpiece_file_reader *r, const char *path, size_t *bytes)
{
    const char *why;
    size_t size, got;
    char *text = NULL;
    FILE *file = zf_file_open(path, &size, &why);
    if (file && size > ZFL_FILE_LIMIT) why = "too large for a vocabulary";
    else if (file && !(text = malloc(size + 1))) why = "out of memory";
    else if (file) {
        got = fread(text, 1, size, file);
        if (ferror(file)) why = strerror(errno);
        *bytes = got;
        text[got] = 0;
    }
    if (file) fclose(file);
    if (!why) return text;
    zfl_tell(r->error, ZF_ERR_IO, "%s: %s", path, why);
    free(text);
    return NULL;
}

static bool zfl_add_token(zfl_wordpiece_file_reader *r, const char *name, zf_wordpiece_entry added)
{
    if (r->count == r->room) {
        size_t room = r->room ? 2 * r->room : 1024;
        zf_wordpiece_entry *more = realloc(r->tokens, room * sizeof *more);
        if (!more) return zfl_wordpiece_file_out_of_memory(r, name);
        r->tokens = more;
        r->room = room;
    }
    r->tokens[r->count++] = added;
    return true;
}

/* ------------------------------------------------------------------------------------ vocab.txt */

/* The length of a line without trailing spaces; -1, with a message, if it cannot be a token. */
static int64_t zfl_token_length(zfl_wordpiece_file_reader *r, const char *line, size_t length,
                                const char *name)
{
    size_t end = 0, number = r->count + 1;
    uint32_t c;
    for (size_t i = 0; i < length;) {
        int bytes = zfl_utf8_decode((const unsigned char *)line + i, length - i, &c);
        if (!bytes || !c) {
            zfl_wordpiece_file_fail(r, "%s:%zu: %s at byte %zu of the line", name, number,
                                    bytes ? "a zero" : "invalid UTF-8", i + 1);
            return -1;
        }
        i += (size_t)bytes;
        if (!zfl_is_space(c)) end = i;
    }
    if (end <= ZF_WORDPIECE_TOKEN_BYTES) return (int64_t)end;
    zfl_wordpiece_file_fail(r, "%s:%zu: a token of %zu bytes: it may have at most %d", name, number,
                            end, ZF_WORDPIECE_TOKEN_BYTES);
    return -1;
}

/* Takes the tokens from lines, without copying them. */
static bool zfl_read_lines(zfl_wordpiece_file_reader *r, const char *text, size_t bytes,
                           const char *name)
{
    if (!bytes)
        return zfl_wordpiece_file_fail(r, "%s: empty file: a vocabulary has one token per line",
                                       name);
    if (bytes >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3))
        return zfl_wordpiece_file_fail(
            r, "%s:1: a byte order mark, which would be part of the first token", name);
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t next = end ? (size_t)(end - text) + 1 : bytes;
        int64_t length = zfl_token_length(r, text + at, next - at - (end != NULL), name);
        zf_wordpiece_entry line = {
            .text = text + at, .bytes = (size_t)length, .id = (int32_t)r->count};
        if (length < 0) return false;
        if (r->count == ZFL_WORDPIECE_FILE_ID_LIMIT)
            return zfl_wordpiece_file_fail(r, "%s: more than %d lines", name,
                                           ZFL_WORDPIECE_FILE_ID_LIMIT);
        if (!zfl_add_token(r, name, line)) return false;
        at = next;
    }
    return true;
}

/* ------------------------------------------------------------------------------- tokenizer.json */

static void *zfl_resize(void *user, void *block, size_t old_bytes, size_t new_bytes)
{
    (void)user, (void)old_bytes;
    if (new_bytes) return realloc(block, new_bytes);
    free(block);
    return NULL;
}

static zf_json *zfl_parse(zfl_wordpiece_file_reader *r, const char *text, size_t bytes,
                          const char *name)
{
    zf_error error = {ZF_OK, ""};
    zf_json *top = zf_json_parse(text, bytes, &(zf_allocator){.fn = zfl_resize}, &error);
    if (error.status == ZF_ERR_NOMEM) zfl_wordpiece_file_out_of_memory(r, name);
    else if (!top) zfl_wordpiece_file_fail(r, "%s:%s", name, error.text);
    return top;
}

/* Sets *choice to yes or no; null or a missing value does not change it. */
static void zfl_read_choice(const zf_json *value, zf_wordpiece_choice *choice, zf_error *error)
{
    bool yes = false;
    if (!value || zf_json_type_of(value) == ZF_JSON_NULL) return;
    if (!zf_json_to_bool(value, &yes, error)) *choice = yes ? ZF_WORDPIECE_YES : ZF_WORDPIECE_NO;
}

/* The value, if there is one, must be this string, or a token with this content. */
static void zfl_require_text(const zf_json *value, const char *text, zf_error *error)
{
    const char *is = NULL;
    if (zf_json_type_of(value) == ZF_JSON_NULL) return;
    if (zf_json_type_of(value) == ZF_JSON_OBJECT) value = zf_json_require(value, "content", error);
    if (value && !zf_json_to_string(value, &is, error) && strcmp(is, text))
        zf_json_expected(value, error, "\"%s\"", text);
}

/* Adds a text of the file as a token. */
static bool zfl_add_json_token(zfl_wordpiece_file_reader *r, const zf_json *value, const char *text,
                               size_t bytes, int64_t id, bool added, const char *name,
                               zf_error *error)
{
    if (memchr(text, 0, bytes)) return zf_json_fail(value, error, "has a zero in its token"), false;
    if (bytes > ZF_WORDPIECE_TOKEN_BYTES)
        return zf_json_fail(value, error, "is a token of %zu bytes: it may have at most %d", bytes,
                            ZF_WORDPIECE_TOKEN_BYTES),
               false;
    return zfl_add_token(r, name, (zf_wordpiece_entry){text, bytes, (int32_t)id, added});
}

/* Reads one of added_tokens. Its id is a member or, in tokenizer_config.json, the key. */
static bool zfl_wordpiece_file_read_added(zfl_wordpiece_file_reader *r, const zf_json *added,
                                          const char *name, zf_error *error)
{
    static const char *const must_not[] = {"normalized", "single_word"};
    const zf_json *content = zf_json_require(added, "content", error), *value;
    const char *key = zf_json_key(added, NULL), *text;
    int64_t id = 0;
    size_t bytes;
    char *end;
    if (key) {
        id = strtoll(key, &end, 10);
        if (*end || end == key || id < 0 || id >= ZFL_WORDPIECE_FILE_ID_LIMIT)
            return zf_json_fail(added, error, "must have an id from 0 to %d as its name",
                                ZFL_WORDPIECE_FILE_ID_LIMIT - 1),
                   false;
    } else if ((value = zf_json_require(added, "id", error))) {
        zf_json_to_int(value, 0, ZFL_WORDPIECE_FILE_ID_LIMIT - 1, &id, error);
    }
    for (size_t i = 0; i < sizeof must_not / sizeof must_not[0]; i++) {
        bool yes = false;
        if (!(value = zf_json_member(added, must_not[i]))) continue;
        if (!zf_json_to_bool(value, &yes, error) && yes) zf_json_expected(value, error, "false");
    }
    text = zf_json_string(content, &bytes);
    if (content && (!text || !bytes)) zf_json_expected(content, error, "a text");
    return !error->status && zfl_add_json_token(r, content, text, bytes, id, true, name, error);
}

/* Reads the list of tokenizer.json, or the object of tokenizer_config.json. */
static bool zfl_read_all_added(zfl_wordpiece_file_reader *r, const zf_json *all, const char *name,
                               zf_error *error)
{
    for (const zf_json *v = zf_json_first(all); v; v = zf_json_next(v))
        if (!zfl_wordpiece_file_read_added(r, v, name, error)) return false;
    return true;
}

static void zfl_wordpiece_file_read_normalizer(zfl_wordpiece_file_reader *r,
                                               const zf_json *normalizer, zf_error *error)
{
    zf_wordpiece_options *o = &r->options;
    if (zf_json_type_of(normalizer) == ZF_JSON_NULL) {
        *o = (zf_wordpiece_options){ZF_WORDPIECE_NO, ZF_WORDPIECE_NO, ZF_WORDPIECE_NO,
                                    ZF_WORDPIECE_NO};
        return;
    }
    zfl_require_text(zf_json_require(normalizer, "type", error), "BertNormalizer", error);
    zfl_read_choice(zf_json_member(normalizer, "lowercase"), &o->lower_case, error);
    zfl_read_choice(zf_json_member(normalizer, "strip_accents"), &o->strip_accents, error);
    zfl_read_choice(zf_json_member(normalizer, "handle_chinese_chars"), &o->chinese_chars, error);
    zfl_read_choice(zf_json_member(normalizer, "clean_text"), &o->clean_text, error);
    *o = zf_wordpiece_resolve(o);
}

/* Reads the tokens of tokenizer.json. Their texts are in the tree. */
static bool zfl_read_tokenizer(zfl_wordpiece_file_reader *r, const zf_json *top, const char *name,
                               zf_error *error)
{
    const zf_json *model = zf_json_require(top, "model", error), *v;
    int64_t longest = ZF_WORDPIECE_WORD_CHARS, id = 0;
    if (zf_json_member(model, "type"))
        zfl_require_text(zf_json_member(model, "type"), "WordPiece", error);
    zfl_require_text(zf_json_require(model, "unk_token", error), "[UNK]", error);
    zfl_require_text(zf_json_require(model, "continuing_subword_prefix", error), "##", error);
    v = zf_json_member(model, "max_input_chars_per_word");
    if (v && !zf_json_to_int(v, 0, INT64_MAX, &longest, error) &&
        longest != ZF_WORDPIECE_WORD_CHARS)
        zf_json_expected(v, error, "%d", ZF_WORDPIECE_WORD_CHARS);
    zfl_wordpiece_file_read_normalizer(r, zf_json_require(top, "normalizer", error), error);
    v = zf_json_require(top, "pre_tokenizer", error);
    if (zf_json_type_of(v) == ZF_JSON_NULL) zf_json_expected(v, error, "a BertPreTokenizer");
    else zfl_require_text(zf_json_require(v, "type", error), "BertPreTokenizer", error);
    v = zf_json_require(model, "vocab", error);
    if (v && zf_json_type_of(v) != ZF_JSON_OBJECT)
        zf_json_expected(v, error, "an object of tokens and ids");
    if (error->status) return false;
    for (v = zf_json_first(v); v; v = zf_json_next(v)) {
        size_t bytes;
        const char *text = zf_json_key(v, &bytes);
        if (zf_json_to_int(v, 0, ZFL_WORDPIECE_FILE_ID_LIMIT - 1, &id, error) ||
            !zfl_add_json_token(r, v, text, bytes, id, false, name, error))
            return false;
    }
    return zfl_read_all_added(r, zf_json_member(top, "added_tokens"), name, error);
}

/* ------------------------------------------------------------------------ tokenizer_config.json */

static const char *const zfl_special_keys[ZF_WORDPIECE_SPECIAL_COUNT] = {
    "pad_token", "unk_token", "cls_token", "sep_token", "mask_token"};

/* Members that only tokenizers of words have, and the values of those that are not read. */
static void zfl_expect_word_config(const zf_json *top, zf_error *error)
{
    static const char *const own[] = {
        "add_prefix_space", "do_basic_tokenize",      "do_lower_case",     "never_split",
        "strip_accents",    "tokenize_chinese_chars", "wordpieces_prefix", NULL};
    const zf_json *never = zf_json_member(top, "never_split"),
                  *basic = zf_json_member(top, "do_basic_tokenize"),
                  *prefix = zf_json_member(top, "wordpieces_prefix");
    zf_wordpiece_choice splits = ZF_WORDPIECE_YES;
    zfl_expect_token_config(top, own, error);
    if (zf_json_type_of(never) > ZF_JSON_NULL && zf_json_length(never))
        zf_json_fail(never, error, "is not empty, which is not read");
    zfl_read_choice(basic, &splits, error);
    if (splits == ZF_WORDPIECE_NO) zf_json_expected(basic, error, "true");
    if (prefix) zfl_require_text(prefix, "##", error);
}

/* A special token that a file names must be one of the vocabulary: an added one, or one of
 * BERT's. */
static void zfl_expect_word(const zfl_wordpiece_file_reader *r, const zf_json *v, zf_error *error)
{
    const char *text = zf_json_string(v, NULL);
    if (zf_json_type_of(v) == ZF_JSON_OBJECT)
        text = zf_json_string(zf_json_member(v, "content"), NULL);
    if (zf_json_type_of(v) <= ZF_JSON_NULL || error->status) return;
    if (!text) zf_json_expected(v, error, "a token");
    for (int k = 0; text && k < ZF_WORDPIECE_SPECIAL_COUNT; k++)
        if (!strcmp(text, zf_wordpiece_special_token(k))) return;
    for (size_t i = 0; text && i < r->count; i++)
        if (r->tokens[i].added && r->tokens[i].bytes == strlen(text) &&
            !memcmp(r->tokens[i].text, text, r->tokens[i].bytes))
            return;
    if (text)
        zf_json_fail(v, error,
                     "names the token \"%.100s\", which is no added token of the "
                     "vocabulary",
                     text);
}

/* All that tokenizer_config.json names. */
static void zfl_expect_words(const zfl_wordpiece_file_reader *r, const zf_json *top,
                             zf_error *error)
{
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens",
                                        "model_specific_special_tokens"};
    for (const zf_json *v = zf_json_first(top); v && !error->status; v = zf_json_next(v))
        if (zfl_is_token_key(zf_json_key(v, NULL))) zfl_expect_word(r, v, error);
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
        for (const zf_json *v = zf_json_first(zf_json_member(top, lists[k])); v;
             v = zf_json_next(v))
            zfl_expect_word(r, v, error);
}

/* Reads a folder's tokenizer_config.json: its options go to *said. */
static bool zfl_wordpiece_file_read_config(zfl_wordpiece_file_reader *r, const zf_json *top,
                                           zf_wordpiece_options *said, const char *name,
                                           zf_error *error)
{
    const zf_json *v = zf_json_member(top, "tokenizer_class");
    const char *kind = zf_json_string(v, NULL);
    if (zf_json_type_of(top) != ZF_JSON_OBJECT) zf_json_expected(top, error, "an object");
    r->any_model =
        kind && (!strcmp(kind, "PreTrainedTokenizerFast") || !strcmp(kind, "TokenizersBackend"));
    for (int k = 0; k < ZF_WORDPIECE_SPECIAL_COUNT; k++)
        if ((v = zf_json_member(top, zfl_special_keys[k])))
            zfl_require_text(v, zf_wordpiece_special_token(k), error);
    zfl_expect_word_config(top, error);
    zfl_read_choice(zf_json_member(top, "do_lower_case"), &said->lower_case, error);
    zfl_read_choice(zf_json_member(top, "strip_accents"), &said->strip_accents, error);
    zfl_read_choice(zf_json_member(top, "tokenize_chinese_chars"), &said->chinese_chars, error);
    if (!said->strip_accents) said->strip_accents = said->lower_case;
    return !error->status &&
           zfl_read_all_added(r, zf_json_member(top, "added_tokens_decoder"), name, error);
}

/* ---------------------------------------------------------------------------- added_tokens.json */

/* tokenizer_config.json, which may be NULL, names the token as a special one. */
static bool zfl_is_named_special(const zf_json *config, const char *text)
{
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    for (int k = 0; k < ZF_WORDPIECE_SPECIAL_COUNT; k++)
        if (!strcmp(text, zf_wordpiece_special_token(k))) return true;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        for (const zf_json *v = zf_json_first(zf_json_member(config, lists[i])); v;
             v = zf_json_next(v)) {
            const char *is = zf_json_string(v, NULL);
            if (!is) is = zf_json_string(zf_json_member(v, "content"), NULL);
            if (is && !strcmp(is, text)) return true;
        }
    return false;
}

/* Tokens that are not special are an error: Hugging Face's tokenizers also find their lower-case
 * and stripped forms, which is not implemented here. */
static bool zfl_read_added_file(zfl_wordpiece_file_reader *r, const zf_json *top,
                                const zf_json *config, zf_error *error)
{
    if (zf_json_type_of(top) != ZF_JSON_OBJECT) zf_json_expected(top, error, "an object");
    for (const zf_json *v = zf_json_first(top); v && !error->status; v = zf_json_next(v)) {
        size_t bytes;
        int64_t id = 0;
        const char *text = zf_json_key(v, &bytes);
        if (zf_json_to_int(v, 0, ZFL_WORDPIECE_FILE_ID_LIMIT - 1, &id, error)) return false;
        if (!zfl_is_named_special(config, text))
            return zf_json_fail(v, error,
                                "is no special token of tokenizer_config.json "
                                "(additional_special_tokens); added tokens must be special"),
                   false;
        if (!zfl_add_json_token(r, v, text, bytes, id, true, r->added_path, error)) return false;
    }
    return !error->status;
}

/* Checks the tokens that special_tokens_map.json names. */
static bool zfl_check_map(zfl_wordpiece_file_reader *r)
{
    size_t bytes;
    char *text = zfl_read_whole(r, r->map_path, &bytes);
    zf_json *map = text ? zfl_parse(r, text, bytes, r->map_path) : NULL;
    zf_error error = {ZF_OK, ""};
    bool good = map != NULL;
    if (good) zfl_expect_token_config(map, NULL, &error);
    if (good && !error.status) zfl_expect_words(r, map, &error);
    if (error.status) good = zfl_wordpiece_file_fail(r, "%s:%s", r->map_path, error.text);
    zf_json_free(map);
    free(text);
    return good;
}

/* Reads r->added_path; *tree, which the caller frees, has the texts. */
static bool zfl_take_added(zfl_wordpiece_file_reader *r, const zf_json *config, zf_json **tree)
{
    size_t bytes;
    char *text = zfl_read_whole(r, r->added_path, &bytes);
    zf_error error = {ZF_OK, ""};
    bool good = text && (*tree = zfl_parse(r, text, bytes, r->added_path)) != NULL &&
                zfl_read_added_file(r, *tree, config, &error);
    if (error.status) zfl_wordpiece_file_fail(r, "%s:%s", r->added_path, error.text);
    free(text);
    return good;
}

/* ---------------------------------------------------------------------------------------- whole */

/* Joins the options of the files with those that were asked for, which must not contradict them. */
static bool zfl_take_options(zfl_wordpiece_file_reader *r, const zf_wordpiece_options *wanted,
                             const char *name)
{
    zf_wordpiece_options *o = &r->options, none = {ZF_WORDPIECE_UNSAID, 0, 0, 0};
    const zf_wordpiece_options *w = wanted ? wanted : &none;
    const struct {
        const char *name;
        zf_wordpiece_choice *is, wanted;
    } all[] = {{"do_lower_case", &o->lower_case, w->lower_case},
               {"strip_accents", &o->strip_accents, w->strip_accents},
               {"tokenize_chinese_chars", &o->chinese_chars, w->chinese_chars},
               {"clean_text", &o->clean_text, w->clean_text}};
    static const char *const words[] = {"null", "false", "true"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!all[i].wanted) continue;
        if (*all[i].is && *all[i].is != all[i].wanted)
            return zfl_wordpiece_file_fail(r, "%s: %s is %s there, but %s was asked for", name,
                                           all[i].name, words[*all[i].is], words[all[i].wanted]);
        *all[i].is = all[i].wanted;
    }
    return true;
}

/* Checks that tokens with an id in the files have this id in the vocabulary: no two tokens share an
 * id, and no token has two. */
static bool zfl_check_ids(zfl_wordpiece_file_reader *r, const zf_wordpiece *v, size_t first,
                          const char *name)
{
    for (size_t i = first; i < r->count; i++) {
        const zf_wordpiece_entry *t = &r->tokens[i];
        const char *other = zf_wordpiece_token(v, t->id);
        char text[ZF_WORDPIECE_TOKEN_BYTES + 1];
        snprintf(text, sizeof text, "%.*s", (int)t->bytes, t->text);
        if (*other && strcmp(other, text))
            return zfl_wordpiece_file_fail(
                r, "%s: the tokens \"%.100s\" and \"%.100s\" both have the id %d", name, text,
                other, (int)t->id);
        if (zf_wordpiece_id(v, text) != t->id)
            return zfl_wordpiece_file_fail(r, "%s: the token \"%.100s\" has the ids %d and %d",
                                           name, text, (int)t->id, (int)zf_wordpiece_id(v, text));
    }
    return true;
}

/* The vocabulary from a file's text, and from a tokenizer_config.json's tree or NULL. */
static zf_wordpiece *zfl_make(zfl_wordpiece_file_reader *r, const zf_wordpiece_file *source,
                              const char *path, const zf_json *config, const char *config_path,
                              const zf_wordpiece_options *wanted, const char *name)
{
    bool json = !strcmp(source->name, "tokenizer.json"), good;
    zf_wordpiece_options said = {ZF_WORDPIECE_UNSAID, ZF_WORDPIECE_UNSAID, ZF_WORDPIECE_UNSAID,
                                 ZF_WORDPIECE_UNSAID};
    zf_error error = {ZF_OK, ""};
    zf_json *top = NULL, *added = NULL;
    zf_wordpiece *v = NULL;
    size_t lines = 0;
    if (json) {
        top = zfl_parse(r, source->data, source->bytes, path);
        good = top && zfl_read_tokenizer(r, top, path, &error);
    } else {
        good = zfl_read_lines(r, source->data, source->bytes, path);
        lines = r->count;
    }
    if (error.status) zfl_wordpiece_file_fail(r, "%s:%s", path, error.text);
    if (good && config) {
        good = zfl_wordpiece_file_read_config(r, config, &said, config_path, &error);
        if (error.status) zfl_wordpiece_file_fail(r, "%s:%s", config_path, error.text);
        if (!json || !r->any_model) {
            if (said.lower_case) r->options.lower_case = said.lower_case;
            if (said.strip_accents) r->options.strip_accents = said.strip_accents;
            if (said.chinese_chars) r->options.chinese_chars = said.chinese_chars;
        }
    }
    if (good && !json && r->added_path && !zf_json_member(config, "added_tokens_decoder"))
        good = zfl_take_added(r, config, &added);
    if (good && config) zfl_expect_words(r, config, &error);
    if (good && error.status) good = zfl_wordpiece_file_fail(r, "%s:%s", config_path, error.text);
    if (good && r->map_path && !zf_json_member(config, "added_tokens_decoder"))
        good = zfl_check_map(r);
    if (good && zfl_take_options(r, wanted, name))
        v = zf_wordpiece_new(r->tokens, r->count, &r->options, source, path, r->error);
    if (v && !zfl_check_ids(r, v, lines, name)) {
        zf_wordpiece_free(v);
        v = NULL;
    }
    zf_json_free(added);
    zf_json_free(top);
    return v;
}

zf_wordpiece *zf_wordpiece_parse(const char *text, size_t bytes, const char *name,
                                 const zf_wordpiece_options *options, zf_error *error)
{
    zfl_wordpiece_file_reader r = {.error = error};
    zf_wordpiece *v = NULL;
    if (bytes > ZFL_FILE_LIMIT) zfl_wordpiece_file_fail(&r, "%s: too large for a vocabulary", name);
    else
        v = zfl_make(&r, &(zf_wordpiece_file){"vocab.txt", text, bytes}, name, NULL, NULL, options,
                     name);
    free(r.tokens);
    return v;
}

/* Finds the folder's file, if it exists. */
static bool zfl_find_file(char out[ZFL_PATH_SIZE], const char *folder, const char *name)
{
    return snprintf(out, ZFL_PATH_SIZE, "%s/%s", folder, name) < ZFL_PATH_SIZE &&
           !access(out, F_OK);
}

/* The vocabulary of the file `path`, with the options of a tokenizer_config.json, or NULL. */
static zf_wordpiece *zfl_load_file(zfl_wordpiece_file_reader *r, const char *path,
                                   const char *config_path, const zf_wordpiece_options *wanted,
                                   const char *name)
{
    zf_wordpiece_file source = {
        zfl_ends_in(path, ".json") ? "tokenizer.json" : "vocab.txt", NULL, 0};
    char *text = zfl_read_whole(r, path, &source.bytes), *config_text = NULL;
    zf_json *config = NULL;
    zf_wordpiece *v = NULL;
    size_t bytes;
    source.data = text;
    if (text && config_path && (config_text = zfl_read_whole(r, config_path, &bytes)))
        config = zfl_parse(r, config_text, bytes, config_path);
    if (text && (!config_path || config))
        v = zfl_make(r, &source, path, config, config_path, wanted, name);
    zf_json_free(config);
    free(config_text);
    free(text);
    return v;
}

zf_wordpiece *zf_wordpiece_open(const char *path, const zf_wordpiece_options *options,
                                zf_error *error)
{
    zfl_wordpiece_file_reader r = {.error = error};
    char file[ZFL_PATH_SIZE], config[ZFL_PATH_SIZE], added[ZFL_PATH_SIZE], map[ZFL_PATH_SIZE];
    struct stat about;
    zf_wordpiece *v = NULL;
    if (stat(path, &about) || !S_ISDIR(about.st_mode)) {
        v = zfl_load_file(&r, path, NULL, options, path);
    } else if (zfl_find_file(file, path, "tokenizer.json") ||
               zfl_find_file(file, path, "vocab.txt")) {
        bool configured = zfl_find_file(config, path, "tokenizer_config.json");
        if (zfl_find_file(added, path, "added_tokens.json")) r.added_path = added;
        if (zfl_find_file(map, path, "special_tokens_map.json")) r.map_path = map;
        v = zfl_load_file(&r, file, configured ? config : NULL, options, path);
    } else {
        zfl_wordpiece_file_fail(&r, "%s: a folder without tokenizer.json and vocab.txt", path);
    }
    free(r.tokens);
    return v;
}
