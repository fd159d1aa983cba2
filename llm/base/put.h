/* Writes a member of a JSON object: its key and its value. */
#ifndef COMMON_PUT_H
#define COMMON_PUT_H

#include "../../zeroflow.h"

static inline void put_text(zf_json_writer *w, const char *key, const char *value)
{
    zf_json_put_key(w, key);
    zf_json_put_string(w, value);
}

static inline void put_bool(zf_json_writer *w, const char *key, bool value)
{
    zf_json_put_key(w, key);
    zf_json_put_bool(w, value);
}

static inline void put_int(zf_json_writer *w, const char *key, int64_t value)
{
    zf_json_put_key(w, key);
    zf_json_put_int(w, value);
}

static inline void put_double(zf_json_writer *w, const char *key, double value)
{
    zf_json_put_key(w, key);
    zf_json_put_double(w, value);
}

#endif
