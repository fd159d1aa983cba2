/* Fuzzes the JSON reader and writer: any bytes are JSON or an error with a place; what is JSON is
 * written, read again, and equal. The first two bytes say which allocation fails (0: none).
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/json.c IMPLEMENTATION.o -lm \
 *         -o build/fuzz-json && build/fuzz-json -runs=1000000 CORPUS tests/fuzz/seeds/json
 *
 * New inputs go to CORPUS, an empty folder.
 */
#include "../../zeroflow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void insist(bool condition)
{
    if (!condition) abort();
}

typedef struct memory {
    long allocations, refuse_at, live;
    bool refused;
} memory;

static void *allocate(void *user, void *ptr, size_t old_size, size_t new_size)
{
    memory *m = user;
    if (!new_size) {
        if (ptr) m->live -= (long)old_size;
        free(ptr);
        return NULL;
    }
    if (m->allocations++ == m->refuse_at) {
        m->refused = true;
        return NULL;
    }
    ptr = realloc(ptr, new_size);
    insist(ptr != NULL);
    m->live += (long)new_size - (long)old_size;
    return ptr;
}

/* No zero bytes inside: such strings are read, but never written. */
static bool plain(const char *text, size_t bytes) { return strlen(text) == bytes; }

/* Asks for everything and writes the value; false when it holds a string with a zero byte. */
static bool copy(zf_json_writer *writer, const zf_json *value)
{
    zf_error error = {ZF_OK, ""};
    int64_t line, column, whole = 0, index = 0;
    double number;
    const char *text;
    size_t bytes;
    bool good = true, yes;
    zf_json_where(value, &line, &column);
    insist(line > 0 && column > 0);
    zf_json_to_int(value, 3, 2, &whole, &error); /* an empty range: always an error */
    insist(error.status == ZF_ERR_FORMAT && strlen(error.text) < sizeof error.text - 1);
    switch (zf_json_type_of(value)) {
    case ZF_JSON_MISSING: abort();
    case ZF_JSON_NULL: zf_json_put_null(writer); break;
    case ZF_JSON_BOOL:
        insist(!zf_json_to_bool(value, &yes, NULL));
        zf_json_put_bool(writer, yes);
        break;
    case ZF_JSON_NUMBER:
        insist(!zf_json_to_double(value, -INFINITY, INFINITY, &number, NULL) && isfinite(number));
        if (!zf_json_to_int(value, INT64_MIN, INT64_MAX, &whole, NULL)) {
            insist((double)whole == number);
            zf_json_put_int(writer, whole);
        } else {
            zf_json_put_double(writer, number);
        }
        break;
    case ZF_JSON_STRING:
        text = zf_json_string(value, &bytes);
        insist(text && text[bytes] == '\0' && zf_json_length(value) == (int64_t)bytes);
        insist((zf_json_to_string(value, &text, NULL) == ZF_OK) == plain(text, bytes));
        zf_json_put_string(writer, text);
        good = plain(text, bytes);
        break;
    case ZF_JSON_ARRAY:
        zf_json_begin_array(writer);
        for (const zf_json *v = zf_json_first(value); v; v = zf_json_next(v), index++) {
            if (index < 4) insist(zf_json_element(value, index) == v);
            insist(!zf_json_key(v, NULL));
            good &= copy(writer, v);
        }
        insist(index == zf_json_length(value) && !zf_json_element(value, index));
        zf_json_end(writer);
        break;
    case ZF_JSON_OBJECT:
        zf_json_begin_object(writer);
        for (const zf_json *v = zf_json_first(value); v; v = zf_json_next(v), index++) {
            text = zf_json_key(v, &bytes);
            insist(text && text[bytes] == '\0');
            if (plain(text, bytes)) insist(zf_json_member(value, text) == v);
            else good = false;
            zf_json_put_key(writer, text);
            good &= copy(writer, v);
        }
        insist(index == zf_json_length(value) && !zf_json_require(value, "\xff none", NULL));
        zf_json_end(writer);
        break;
    }
    return good;
}

static bool same(const zf_json *a, const zf_json *b)
{
    zf_json_type type = zf_json_type_of(a);
    double x = 0, y = 0;
    if (type != zf_json_type_of(b) || zf_json_length(a) != zf_json_length(b)) return false;
    if (type == ZF_JSON_NUMBER) {
        zf_json_to_double(a, -INFINITY, INFINITY, &x, NULL);
        zf_json_to_double(b, -INFINITY, INFINITY, &y, NULL);
        return x == y;
    }
    if (type == ZF_JSON_STRING) return !strcmp(zf_json_string(a, NULL), zf_json_string(b, NULL));
    for (a = zf_json_first(a), b = zf_json_first(b); a; a = zf_json_next(a), b = zf_json_next(b)) {
        if (zf_json_key(a, NULL) && strcmp(zf_json_key(a, NULL), zf_json_key(b, NULL)))
            return false;
        if (!same(a, b)) return false;
    }
    return true;
}

/* Writes the tree, reads that, and compares. */
static void round_trip(const zf_json *top, int32_t indent)
{
    zf_json_writer *writer = zf_json_writer_new(indent, NULL);
    zf_error error = {ZF_OK, ""};
    bool good = copy(writer, top);
    size_t bytes;
    const char *text = zf_json_text(writer, &bytes, &error);
    insist(text && strlen(text) == bytes);
    if (good) {
        zf_json *again = zf_json_parse(text, bytes, NULL, &error);
        insist(again && same(top, again));
        zf_json_free(again);
    }
    zf_json_writer_free(writer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    memory m = {.refuse_at = -1};
    zf_allocator allocator = {allocate, &m};
    zf_error error = {ZF_OK, ""};
    zf_json *top;
    if (size < 2) return 0;
    m.refuse_at = (data[0] | data[1] << 8) - 1L;
    top = zf_json_parse((const char *)data + 2, size - 2, &allocator, &error);
    if (top) {
        insist(!m.refused);
        round_trip(top, 0);
        round_trip(top, 2);
        zf_json_free(top);
    } else {
        insist(error.status == (m.refused ? ZF_ERR_NOMEM : ZF_ERR_FORMAT));
        insist(strlen(error.text) > 3 && strlen(error.text) < sizeof error.text - 1);
    }
    insist(m.live == 0);
    return 0;
}
