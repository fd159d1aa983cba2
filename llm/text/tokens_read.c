/* What the readers of a tokenizer's files share. A member that is not read is an error, unless it
 * has no effect on ids or texts, as trim_offsets. */
#include <stdlib.h>
#include <string.h>

enum { ZFL_TOKENS_FILE_ID_LIMIT = 1 << 24, ZFL_SEQUENCE_DEPTH = 8 };

typedef struct zfl_tokens_file_reader {
    zf_tokenizer *t;
    zf_error *error;
    int depth;         /* depth of nested sequences */
    bool leads;        /* a text begins with a space, or what stands for one */
    int32_t known;     /* tokens of model.vocab */
    int32_t last;      /* the largest id of an added token; -1: there is none */
    zfl_trie contents; /* numbers of added tokens by their texts */
    zfl_trie named;    /* texts of named special tokens */
} zfl_tokens_file_reader;

static bool zfl_tokens_file_out_of_memory(zf_error *error)
{
    return error->status ? false : zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
}

/* A copy, terminated. */
static char *zfl_copy_of(const char *text, size_t bytes, zf_error *error)
{
    char *copy = malloc(bytes + 1);
    if (!copy) {
        zfl_tokens_file_out_of_memory(error);
        return NULL;
    }
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    return copy;
}

/* A member; NULL where it is absent or null. */
static const zf_json *zfl_member(const zf_json *object, const char *key)
{
    const zf_json *v = zf_json_member(object, key);
    return zf_json_type_of(v) == ZF_JSON_NULL ? NULL : v;
}

static bool zfl_truth(zfl_tokens_file_reader *r, const zf_json *object, const char *key,
                      bool otherwise)
{
    bool yes = otherwise;
    zf_json_to_bool(zfl_member(object, key), &yes, r->error);
    return yes;
}

/* A string, which is required and may contain zero bytes. */
static const char *zfl_text_of(zfl_tokens_file_reader *r, const zf_json *v, size_t *bytes)
{
    const char *text = zf_json_string(v, bytes);
    if (v && !text) zf_json_expected(v, r->error, "a string");
    return text;
}

/* The index of a string among the names; -1 with an error, which lists them. */
static int zfl_choice(zfl_tokens_file_reader *r, const zf_json *v, const char *const *names,
                      int count)
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

/* A member that is not in the list "a|b|c" is an error; null says nothing. */
static void zfl_expect_members(zfl_tokens_file_reader *r, const zf_json *object, const char *names)
{
    for (const zf_json *v = zf_json_first(object); v && !r->error->status; v = zf_json_next(v)) {
        const char *key = zf_json_key(v, NULL), *at = names;
        const size_t n = strlen(key);
        while (at && (strncmp(at, key, n) || (at[n] && at[n] != '|')))
            if ((at = strchr(at, '|'))) at++;
        if (!at && zf_json_type_of(v) != ZF_JSON_NULL)
            zf_json_fail(v, r->error, "is not read, and may change the text");
    }
}

/* A kind of object, with the list of its members. */
typedef struct zfl_object_kind {
    const char *name, *members;
} zfl_object_kind;

/* The index of an object's type among the kinds; -1 with an error. */
static int zfl_type_of(zfl_tokens_file_reader *r, const zf_json *v, const zfl_object_kind *kinds,
                       int count)
{
    const char *names[12];
    int type;
    for (int k = 0; k < count; k++) names[k] = kinds[k].name;
    type = zfl_choice(r, zf_json_require(v, "type", r->error), names, count);
    if (type >= 0) zfl_expect_members(r, v, kinds[type].members);
    return type;
}
