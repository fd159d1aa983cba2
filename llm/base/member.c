/* Members of JSON objects: whether a key is known, and how they and other values are written. */
#include <string.h>

/* Whether a list, NULL after its last text, has this text. */
static bool zfl_is_listed(const char *const *list, const char *text)
{
    while (list && *list && strcmp(*list, text)) list++;
    return list && *list;
}

/* Writes a member of a JSON object: its key and its value. */
void zf_json_put_text_member(zf_json_writer *w, const char *key, const char *value)
{
    zf_json_put_key(w, key);
    zf_json_put_string(w, value);
}

void zf_json_put_bool_member(zf_json_writer *w, const char *key, bool value)
{
    zf_json_put_key(w, key);
    zf_json_put_bool(w, value);
}

void zf_json_put_int_member(zf_json_writer *w, const char *key, int64_t value)
{
    zf_json_put_key(w, key);
    zf_json_put_int(w, value);
}

void zf_json_put_double_member(zf_json_writer *w, const char *key, double value)
{
    zf_json_put_key(w, key);
    zf_json_put_double(w, value);
}

/* ------------------------------------------------------------------------------------ values */

static void zfl_add_json_string(zf_text *out, const char *text, size_t bytes)
{
    char escape[8];
    zf_text_add(out, "\"", 1);
    for (size_t i = 0; i < bytes; i++) {
        if ((unsigned char)text[i] >= 0x20 && text[i] != '"' && text[i] != '\\') {
            zf_text_add(out, text + i, 1);
            continue;
        }
        snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)text[i]);
        zf_text_add_string(out, escape);
    }
    zf_text_add(out, "\"", 1);
}

void zf_text_add_json_member(zf_text *out, const zf_json *v)
{
    size_t bytes;
    const char *key = zf_json_key(v, &bytes);
    if (key) zfl_add_json_string(out, key, bytes), zf_text_add_string(out, ": ");
    zf_text_add_json(out, v);
}

void zf_text_add_json(zf_text *out, const zf_json *v)
{
    const zf_json_type type = zf_json_type_of(v);
    const bool object = type == ZF_JSON_OBJECT;
    const char *text = "null";
    size_t bytes = 0;
    bool truth = false;
    if (type == ZF_JSON_STRING) {
        text = zf_json_string(v, &bytes);
        zfl_add_json_string(out, text, bytes);
        return;
    }
    if (type == ZF_JSON_NUMBER) {
        text = zf_json_number(v, &bytes);
        zf_text_add(out, text, bytes);
        return;
    }
    if (object || type == ZF_JSON_ARRAY) {
        zf_text_add_string(out, object ? "{" : "[");
        for (const zf_json *m = zf_json_first(v); m; m = zf_json_next(m)) {
            if (m != zf_json_first(v)) zf_text_add_string(out, ", ");
            zf_text_add_json_member(out, m);
        }
        text = object ? "}" : "]";
    } else if (type == ZF_JSON_BOOL) {
        zf_json_to_bool(v, &truth, NULL);
        text = truth ? "true" : "false";
    }
    zf_text_add_string(out, text);
}
