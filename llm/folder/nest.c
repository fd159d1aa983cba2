/* Configurations of models of several parts, of which that of text is read.
 *
 *     {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", ...},
 *      "vision_config": {...}, "image_token_index": 262144, ...}
 *
 * becomes {"model_type": "gemma3_text", ...}: what text_config has, then what the file has and
 * text_config has not, but for the keys of other parts, then the defaults of this kind of model.
 * Older files of Qwen2.5-VL have no text_config; then the file's own members are all. */
#include <string.h>
#include <sys/stat.h>

/* A config.json, or that of a folder. */
static zf_json *zfl_read_file(const char *path, zf_error *error)
{
    struct stat about;
    char file[1024];
    if (stat(path, &about) || !S_ISDIR(about.st_mode)) return zf_json_read(path, NULL, error);
    snprintf(file, sizeof file, "%s/config.json", path);
    return zf_json_read(file, NULL, error);
}

static const char zfl_text_part[] = "text_config";

static const zf_config_nest *zfl_nest_of(const zf_config_table *t, const zf_json *json)
{
    const char *type = NULL;
    zf_error none = {ZF_OK, ""};
    const zf_config_nest *n = t->nests;
    zf_json_to_string(zf_json_member(json, "model_type"), &type, &none);
    while (n && n->type && (!type || strcmp(n->type, type))) n++;
    return n && n->type ? n : NULL;
}

/* Keys that are set here. */
static const char *const zfl_own_keys[] = {"model_type", zfl_text_part, "tie_word_embeddings",
                                           NULL};

static bool zfl_ties(const zf_config_nest *nest, const zf_json *json, const zf_json *text,
                     zf_error *error)
{
    bool tied = nest->tied, inner = false;
    zf_json_to_bool(zf_config_member(json, "tie_word_embeddings"), &tied, error);
    zf_json_to_bool(zf_config_member(text, "tie_word_embeddings"), &inner, error);
    return tied || (nest->either && inner);
}

/* Appends the members of an object that are none of these two objects', nor in the list. */
static void zfl_add_members(zf_text *out, const zf_json *object, const zf_json *a, const zf_json *b,
                            const char *const *but)
{
    for (const zf_json *v = zf_json_first(object); v; v = zf_json_next(v)) {
        const char *key = zf_json_key(v, NULL);
        if (zfl_is_listed(zfl_own_keys, key) || zf_json_member(a, key) || zf_json_member(b, key) ||
            (but && zfl_is_listed(but, key)))
            continue;
        zf_text_add_string(out, ", ");
        zf_text_add_json_member(out, v);
    }
}

/* The configuration of the text part, where it lies among others; else `json`. Frees `json` if it
 * gives another one, or NULL with *error. */
static zf_json *zfl_take_text_part(const zf_config_table *t, zf_json *json, zf_error *error)
{
    const zf_config_nest *nest = zfl_nest_of(t, json);
    const zf_json *text = zf_config_member(json, zfl_text_part);
    zf_json *defaults, *part = NULL;
    zf_text out = {.at = NULL};
    if (!nest) return json;
    if (text && zf_json_type_of(text) != ZF_JSON_OBJECT) {
        zf_json_expected(text, error, "an object");
        zf_json_free(json);
        return NULL;
    }
    defaults = zf_json_parse(nest->defaults, strlen(nest->defaults), NULL, error);
    zf_text_add_string(&out, "{\"model_type\": \"");
    zf_text_add_string(&out, nest->inner);
    zf_text_add_string(&out, "\", \"tie_word_embeddings\": ");
    zf_text_add_string(&out, zfl_ties(nest, json, text, error) ? "true" : "false");
    zfl_add_members(&out, text, NULL, NULL, NULL);
    zfl_add_members(&out, json, text, NULL, nest->others);
    zfl_add_members(&out, defaults, text, json, NULL);
    zf_text_add_string(&out, "}");
    if (defaults && !out.failed && !error->status)
        part = zf_json_parse(out.at, out.count, NULL, error);
    else if (!error->status) zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    zf_text_free(&out);
    zf_json_free(defaults);
    zf_json_free(json);
    return part;
}

bool zf_config_text_part(const zf_config_table *t, const char *path, char type[ZF_CONFIG_TYPE],
                         zf_error *error)
{
    zf_json *json = zfl_read_file(path, error);
    const zf_config_nest *nest = json ? zfl_nest_of(t, json) : NULL;
    snprintf(type, ZF_CONFIG_TYPE, "%s", nest ? nest->type : "");
    zf_json_free(json);
    return nest != NULL;
}
