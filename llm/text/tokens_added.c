/* Added tokens: those of tokenizer.json, and those that only other files of the folder have, which
 * are added as transformers 5 adds them:
 *
 *     tokenizer_config.json     added_tokens_decoder, in the order of its ids
 *     special_tokens_map.json,  both only where there is no added_tokens_decoder
 *     added_tokens.json
 *     bos_token ... mask_token, other keys ..._token, extra_special_tokens: in this order
 *
 * A new token that model.vocab has gets its id there, another one the next id. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the text has in the trie; -1: it is not there. */
static int32_t zfl_trie_find(const zfl_trie *in, const char *text, size_t bytes)
{
    int32_t node = 0;
    if (!in->count) return -1;
    for (size_t i = 0; i < bytes; i++)
        if (!(node = zfl_trie_child(in, node, text[i]))) return -1;
    return in->nodes[node].added;
}

/* The number of the added token with this text; -1. */
static int32_t zfl_find_added(const zfl_tokens_file_reader *r, const char *text, size_t bytes)
{
    return zfl_trie_find(&r->contents, text, bytes);
}

/* The text and the flags of a token that is an object. */
static zfl_added_token zfl_read_flags(zfl_tokens_file_reader *r, const zf_json *v, bool special,
                                      const char **text)
{
    const zf_json *content = zf_json_require(v, "content", r->error);
    zfl_added_token a = {.id = -1};
    zfl_expect_members(r, v, "id|content|single_word|lstrip|rstrip|normalized|special|__type");
    *text = zfl_text_of(r, content, &a.bytes);
    a.single_word = zfl_truth(r, v, "single_word", false);
    a.lstrip = zfl_truth(r, v, "lstrip", false);
    a.rstrip = zfl_truth(r, v, "rstrip", false);
    a.special = special || zfl_truth(r, v, "special", false);
    a.normalized = zfl_truth(r, v, "normalized", !a.special);
    if (*text && !a.bytes) zf_json_expected(content, r->error, "a text");
    return a;
}

/* Compiles the characters of words, next to which a token with single_word is not found. */
static void zfl_need_words(zfl_tokens_file_reader *r, const zf_json *v)
{
    static const char word[] = "[\\w\\x{200C}\\x{200D}]";
    zf_error why = {ZF_OK, ""};
    if (r->t->word || r->error->status) return;
    if (!(r->t->word = zfl_regex_new(word, sizeof word - 1, &why)))
        zf_json_fail(zfl_member(v, "single_word"), r->error, "cannot be used: %.300s", why.text);
}

/* Makes room in added_of for so many ids. */
static bool zfl_number_ids(zfl_tokens_file_reader *r, int32_t count)
{
    zf_tokenizer *t = r->t;
    int32_t *grown;
    if (count <= t->numbered) return true;
    if (!(grown = realloc(t->added_of, (size_t)count * sizeof *grown)))
        return zfl_tokens_file_out_of_memory(r->error);
    t->added_of = grown;
    while (t->numbered < count) grown[t->numbered++] = -1;
    return true;
}

/* Adds a token that is new. */
static void zfl_put_added(zfl_tokens_file_reader *r, zfl_added_token a, const char *text,
                          const zf_json *v)
{
    zf_tokenizer *t = r->t;
    zfl_added_token *added;
    if (a.single_word) zfl_need_words(r, v);
    if (r->error->status || !(a.text = zfl_copy_of(text, a.bytes, r->error))) return;
    added = zfl_list_grow(t->added, t->added_count, &t->added_room, sizeof *added);
    if (!added || !zfl_trie_add(&r->contents, a.text, a.bytes, (int32_t)t->added_count)) {
        if (added) t->added = added;
        free(a.text);
        zfl_tokens_file_out_of_memory(r->error);
        return;
    }
    t->added = added;
    t->added[t->added_count++] = a;
    if (a.id > r->last) r->last = a.id;
    if (a.id >= t->size) t->size = a.id + 1;
    if (a.id < t->numbered || zfl_number_ids(r, t->size + t->size / 2))
        t->added_of[a.id] = (int32_t)t->added_count - 1;
}

/* A token of tokenizer.json. */
static void zfl_tokens_file_read_added(zfl_tokens_file_reader *r, const zf_json *v)
{
    zf_tokenizer *t = r->t;
    const zf_json *id_value = zf_json_require(v, "id", r->error);
    const char *text;
    zfl_added_token a = zfl_read_flags(r, v, false, &text);
    int64_t id = 0;
    int32_t known;
    zf_json_to_int(id_value, 0, ZFL_TOKENS_FILE_ID_LIMIT - 1, &id, r->error);
    if (r->error->status) return;
    a.id = (int32_t)id;
    known = zfl_bpe_find(&t->bpe, text, a.bytes);
    if (known >= 0 && known != a.id)
        zf_json_expected(id_value, r->error, "%d, the id that the token has in model.vocab",
                         (int)known);
    if (a.id < t->numbered && t->added_of[a.id] >= 0)
        zf_json_fail(id_value, r->error, "is the id of two added tokens");
    if (known < 0 && a.id < t->bpe.size && t->bpe.tokens[a.id].bytes >= 0)
        zf_json_fail(id_value, r->error, "is the id of another token in model.vocab");
    zfl_put_added(r, a, text, v);
}

/* ------------------------------------------------------------------ other files of the folder */

/* NULL: the folder has no such file. */
typedef struct zfl_token_files {
    zf_json *config, *map, *added;
} zfl_token_files;

static void zfl_token_files_free(zfl_token_files *f)
{
    zf_json_free(f->config);
    zf_json_free(f->map);
    zf_json_free(f->added);
}

static bool zfl_token_files_read(zfl_token_files *f, const char *folder, zf_error *error)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json",
                                        "added_tokens.json"};
    zf_json **to[] = {&f->config, &f->map, &f->added};
    char path[ZF_FOLDER_PATH];
    for (int k = 0; k < 3 && !error->status; k++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[k]);
        if (access(path, F_OK)) continue;
        *to[k] = zf_json_read(path, NULL, error);
        if (*to[k] && zf_json_type_of(*to[k]) != ZF_JSON_OBJECT)
            zf_json_expected(*to[k], error, "an object");
    }
    return !error->status;
}

static bool zfl_same_flags(const zfl_added_token *a, const zfl_added_token *b)
{
    return a->single_word == b->single_word && a->lstrip == b->lstrip && a->rstrip == b->rstrip &&
           a->normalized == b->normalized && a->special == b->special;
}

/* The id that a new token gets. */
static int32_t zfl_next_id(const zfl_tokens_file_reader *r, const char *text, size_t bytes)
{
    const int32_t known = zfl_bpe_find(&r->t->bpe, text, bytes);
    return known >= 0 ? known : r->last >= r->known ? r->last + 1 : r->known;
}

/* Adds a token of another file, or gives it the flags that this one says. wanted: the id that the
 * file says; -1: none. */
static void zfl_merge_token(zfl_tokens_file_reader *r, zfl_added_token a, const char *text,
                            int64_t wanted, const zf_json *v)
{
    zf_tokenizer *t = r->t;
    int32_t at = r->error->status ? -1 : zfl_find_added(r, text, a.bytes);
    if (r->error->status) return;
    a.id = at >= 0 ? t->added[at].id : zfl_next_id(r, text, a.bytes);
    if (wanted >= 0 && wanted != a.id) {
        zf_json_fail(v, r->error, "has the token \"%.100s\", whose id would be %d", text,
                     (int)a.id);
    } else if (at < 0 && a.id < t->bpe.size && zfl_bpe_find(&t->bpe, text, a.bytes) < 0 &&
               t->bpe.tokens[a.id].bytes >= 0) {
        zf_json_fail(v, r->error, "has the token \"%.100s\", whose id would be that of another one",
                     text);
    } else if (at < 0) {
        zfl_put_added(r, a, text, v);
    } else if (!zfl_same_flags(&a, &t->added[at])) {
        if (a.single_word) zfl_need_words(r, v);
        a.text = t->added[at].text, a.bytes = t->added[at].bytes;
        t->added[at] = a;
    }
}

/* A token with its id, to be sorted. */
typedef struct zfl_numbered {
    int64_t id;
    const zf_json *v;
} zfl_numbered;

static int zfl_by_id(const void *a, const void *b)
{
    const zfl_numbered *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* The members of added_tokens_decoder, {"32000": {"content": ...}}, or of added_tokens.json,
 * {"<tool>": 32000}, in the order of their ids; to be freed. */
static zfl_numbered *zfl_sorted(zfl_tokens_file_reader *r, const zf_json *object, bool decoder,
                                size_t *count)
{
    zfl_numbered *list = malloc(((size_t)zf_json_length(object) + 1) * sizeof *list);
    *count = 0;
    if (!list) zfl_tokens_file_out_of_memory(r->error);
    for (const zf_json *v = zf_json_first(object); v && !r->error->status; v = zf_json_next(v)) {
        const char *key = zf_json_key(v, NULL);
        zfl_numbered one = {-1, v};
        char *end = NULL;
        if (!decoder) zf_json_to_int(v, 0, ZFL_TOKENS_FILE_ID_LIMIT - 1, &one.id, r->error);
        else one.id = strtoll(key, &end, 10);
        if (decoder && (end == key || *end || one.id < 0 || one.id >= ZFL_TOKENS_FILE_ID_LIMIT))
            zf_json_fail(v, r->error, "has no id as its key");
        list[(*count)++] = one;
    }
    if (list) qsort(list, *count, sizeof *list, zfl_by_id);
    return list;
}

static void zfl_merge_numbered(zfl_tokens_file_reader *r, const zf_json *object, bool decoder)
{
    size_t count;
    zfl_numbered *list = zfl_sorted(r, object, decoder, &count);
    for (size_t i = 0; i < count && !r->error->status; i++) {
        const char *text;
        zfl_added_token a = {.id = -1};
        if (decoder) {
            a = zfl_read_flags(r, list[i].v, false, &text);
        } else {
            text = zf_json_key(list[i].v, &a.bytes);
            if (zfl_find_added(r, text, a.bytes) >= 0)
                continue; /* tokenizer.json knows its flags */
            a.special = zfl_trie_find(&r->named, text, a.bytes) >= 0, a.normalized = !a.special;
        }
        zfl_merge_token(r, a, text, list[i].id, list[i].v);
    }
    free(list);
}

/* ------------------------------------------------------------------------------- named tokens */

static const char *const zfl_token_names[] = {"bos_token", "eos_token", "unk_token",  "sep_token",
                                              "pad_token", "cls_token", "mask_token", NULL};

/* Calls fn for each named special token, in the order in which they are added. */
typedef void zfl_named_fn(void *user, const zf_json *v);

static void zfl_each_element(const zf_json *list, void *user, zfl_named_fn *fn)
{
    for (const zf_json *v = zf_json_first(list); v; v = zf_json_next(v)) fn(user, v);
}

/* Names that only this folder has: those that are objects before those that are texts. */
static void zfl_each_own_name(const zfl_token_files *f, void *user, zfl_named_fn *fn)
{
    const zf_json *tops[] = {f->config,
                             zfl_member(f->config, "added_tokens_decoder") ? NULL : f->map};
    for (int texts = 0; texts < 2; texts++)
        for (int k = 0; k < 2; k++)
            for (const zf_json *v = zf_json_first(tops[k]); v; v = zf_json_next(v)) {
                const char *key = zf_json_key(v, NULL);
                const bool text = zf_json_type_of(v) == ZF_JSON_STRING;
                if (!zfl_is_token_key(key) || zfl_is_listed(zfl_token_names, key) ||
                    zf_json_type_of(v) == ZF_JSON_NULL)
                    continue;
                if ((text && !k) == (texts == 1)) fn(user, v);
            }
}

static void zfl_each_named(const zfl_token_files *f, void *user, zfl_named_fn *fn)
{
    const zf_json *map = zfl_member(f->config, "added_tokens_decoder") ? NULL : f->map;
    const zf_json *extra = zfl_member(f->config, "extra_special_tokens"),
                  *of_map = zfl_member(map, "extra_special_tokens");
    for (int k = 0; zfl_token_names[k]; k++) {
        const zf_json *v = zf_json_member(map, zfl_token_names[k]);
        if (!v) v = zf_json_member(f->config, zfl_token_names[k]);
        if (zf_json_type_of(v) > ZF_JSON_NULL) fn(user, v);
    }
    zfl_each_own_name(f, user, fn);
    if (zf_json_type_of(extra) == ZF_JSON_OBJECT) zfl_each_element(extra, user, fn);
    if (zf_json_type_of(of_map) == ZF_JSON_OBJECT) zfl_each_element(of_map, user, fn);
    zfl_each_element(zfl_member(f->config, "model_specific_special_tokens"), user, fn);
    if (!zf_json_length(extra)) extra = zfl_member(f->config, "additional_special_tokens");
    if (!zf_json_length(extra) && !zf_json_length(of_map))
        extra = zfl_member(map, "additional_special_tokens");
    if (zf_json_type_of(extra) != ZF_JSON_OBJECT) zfl_each_element(extra, user, fn);
    if (zf_json_type_of(of_map) == ZF_JSON_ARRAY) zfl_each_element(of_map, user, fn);
}

/* Notes the text of a named token. */
static void zfl_note_named(void *user, const zf_json *v)
{
    zfl_tokens_file_reader *r = user;
    size_t bytes;
    const char *text = zf_json_string(v, &bytes);
    if (!text) text = zf_json_string(zf_json_member(v, "content"), &bytes);
    if (text && !zfl_trie_add(&r->named, text, bytes, 0)) zfl_tokens_file_out_of_memory(r->error);
}

/* A text, or an object with a text. */
static void zfl_merge_named(void *user, const zf_json *v)
{
    zfl_tokens_file_reader *r = user;
    zfl_added_token a = {.special = true};
    const char *text = zf_json_string(v, &a.bytes);
    if (!text && zf_json_type_of(v) != ZF_JSON_OBJECT) zf_json_expected(v, r->error, "a token");
    else if (!text) a = zfl_read_flags(r, v, true, &text);
    if (!r->error->status && a.bytes && zfl_find_added(r, text, a.bytes) < 0)
        zfl_merge_token(r, a, text, -1, v);
}

/* -------------------------------------------------------------------- tokenizer_config.json */

/* Reads what the other files of the folder say. */
static void zfl_merge_tokens(zfl_tokens_file_reader *r, const zfl_token_files *f)
{
    static const char *const own[] = {"add_prefix_space", "split_special_tokens", NULL};
    const zf_json *decoder = zfl_member(f->config, "added_tokens_decoder");
    zfl_expect_token_config(f->config, own, r->error);
    zfl_expect_token_config(f->map, own, r->error);
    r->t->literal = zfl_truth(r, f->config, "split_special_tokens", false);
    if (r->error->status) return;
    if (!decoder && f->added) zfl_each_named(f, r, zfl_note_named);
    if (decoder) zfl_merge_numbered(r, decoder, true);
    else if (f->added) zfl_merge_numbered(r, f->added, false);
    if (!r->error->status) zfl_each_named(f, r, zfl_merge_named);
}

/* Where both files say whether a text begins with a space, they must say the same. */
static void zfl_check_prefix(zfl_tokens_file_reader *r, const zfl_token_files *f)
{
    const zf_json *v = zfl_member(f->config, "add_prefix_space");
    bool leads = r->leads;
    if (!zf_json_to_bool(v, &leads, r->error) && leads != r->leads)
        zf_json_expected(v, r->error, "%s, as tokenizer.json has it", r->leads ? "true" : "false");
}
