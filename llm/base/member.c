/* Members of JSON objects: whether a key is known, and how they are written. */
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
