/* Values of a template, as Python has them, and the memory of a template and of its runs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------------- memory */

typedef struct zfj_block {
    struct zfj_block *next;
    size_t bytes;
} zfj_block;

/* All memory of a template, or of one run of it, is in blocks that are freed together. An error
 * leaves by longjmp for the function that owns them; nothing between owns anything. */
typedef struct zfj_machine {
    jmp_buf leave;
    zf_error *error;
    const char *name; /* of the template, in messages */
    int line;         /* of what is parsed or run */
    zfj_block *blocks;
    char *at;            /* the free part of a block */
    size_t left, bytes;  /* of it; of all blocks */
    size_t most;         /* of `bytes` */
    int64_t steps;       /* that are left */
    int64_t now;         /* in seconds, for strftime_now */
    int depth;           /* of expressions, statements and calls in one another */
    const char *exceeds; /* what has too many steps, in messages */
} zfj_machine;

enum { ZFJ_BLOCK = 1 << 14, ZFJ_DEPTH = 600 };

/* Ends the parsing or the run with an error: NAME: line N: TEXT. */
__attribute__((noreturn, format(printf, 2, 3))) static void zfj_stop(zfj_machine *m,
                                                                     const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    text[zfl_utf8_valid(text, strlen(text))] = 0; /* a character may have been cut */
    zfl_fail(m->error, ZF_ERR_FORMAT, "%.300s: line %d: %s", m->name, m->line, text);
    longjmp(m->leave, 1);
}

__attribute__((noreturn)) static void zfj_stop_memory(zfj_machine *m)
{
    zfl_fail(m->error, ZF_ERR_NOMEM, "out of memory");
    longjmp(m->leave, 1);
}

static void zfj_charge(zfj_machine *m, size_t steps)
{
    if ((uint64_t)m->steps < steps)
        zfj_stop(m, "%s takes more steps than it may: does it end?", m->exceeds);
    m->steps -= (int64_t)steps;
}

static void zfj_enter_level(zfj_machine *m)
{
    if (++m->depth > ZFJ_DEPTH) zfj_stop(m, "more than %d levels in one another", ZFJ_DEPTH);
}

static void zfj_leave_level(zfj_machine *m) { m->depth--; }

static void *zfj_new_block(zfj_machine *m, size_t bytes)
{
    zfj_block *block;
    if (bytes > m->most || m->bytes > m->most - bytes)
        zfj_stop(m, "%s takes more than %zu MiB of memory", m->exceeds, m->most >> 20);
    if (!(block = malloc(sizeof *block + bytes))) zfj_stop_memory(m);
    *block = (zfj_block){m->blocks, bytes};
    m->blocks = block, m->bytes += bytes;
    return block + 1;
}

/* What is large has a block of its own, and leaves the rest of the newest one. */
static void *zfj_arena_take(zfj_machine *m, size_t bytes)
{
    void *taken;
    bytes = bytes ? (bytes + 15) / 16 * 16 : 16;
    if (bytes > m->left && bytes > ZFJ_BLOCK / 4) return zfj_new_block(m, bytes);
    if (bytes > m->left) m->at = zfj_new_block(m, ZFJ_BLOCK), m->left = ZFJ_BLOCK;
    taken = m->at;
    m->at += bytes, m->left -= bytes;
    return taken;
}

static void *zfj_arena_clear(zfj_machine *m, size_t bytes)
{
    return memset(zfj_arena_take(m, bytes), 0, bytes);
}

static void zfj_free_blocks(zfj_block *block)
{
    while (block) {
        zfj_block *next = block->next;
        free(block);
        block = next;
    }
}

/* The list, which may have moved, with room for one more element. */
static void *zfj_arena_grow(zfj_machine *m, void *list, size_t count, size_t *room, size_t size)
{
    size_t more = *room ? 2 * *room : 4;
    void *moved;
    if (count < *room) return list;
    moved = zfj_arena_take(m, more * size);
    if (count) memcpy(moved, list, count * size);
    *room = more;
    return moved;
}

/* ----------------------------------------------------------------------------------- values */

typedef enum zfj_kind {
    ZFJ_UNDEFINED,
    ZFJ_NONE,
    ZFJ_BOOL,
    ZFJ_INT,
    ZFJ_FLOAT,
    ZFJ_STRING,
    ZFJ_LIST,
    ZFJ_TUPLE,
    ZFJ_RANGE,     /* range(): as a tuple */
    ZFJ_VIEW,      /* what keys(), values() and items() return: it has a length, and no elements */
    ZFJ_GENERATOR, /* what many filters return: it can be gone through once */
    ZFJ_DICT,
    ZFJ_NAMESPACE,
    ZFJ_LOOP,
    ZFJ_MACRO,
    ZFJ_METHOD,  /* of a value */
    ZFJ_FUNCTION /* a global one */
} zfj_kind;

typedef struct zfj_string {
    const char *at; /* UTF-8, not terminated */
    size_t bytes;
} zfj_string;

typedef struct zfj_value {
    zfj_kind kind;
    bool safe; /* a string of `safe` or `escape`: text that is added to it is escaped */
    union {
        bool truth;
        int64_t integer;
        double real;
        zfj_string text; /* of UNDEFINED: its name, or why there is none */
        struct zfj_list *list;
        struct zfj_dict *dict; /* of a namespace too */
        struct zfj_loop *loop;
        struct zfj_macro *macro;
        struct zfj_method *method;
        const char *function;
    } as;
} zfj_value;

typedef struct zfj_list {
    zfj_value *at;
    size_t count, room;
    const char *name;       /* of a view: dict_keys, dict_values, dict_items */
    bool spent;             /* a generator that has been gone through */
    int64_t from, to, step; /* of a range */
} zfj_list;

typedef struct zfj_pair {
    zfj_value key, value;
} zfj_pair;

typedef struct zfj_dict {
    zfj_pair *at;
    size_t count, room;
} zfj_dict;

typedef struct zfj_method {
    zfj_value self;
    zfj_string name;
} zfj_method;

static const zfj_value zfj_none = {.kind = ZFJ_NONE};

static zfj_string zfj_string_of(const char *text) { return (zfj_string){text, strlen(text)}; }

static bool zfj_is(zfj_string s, const char *text)
{
    return s.bytes == strlen(text) && !memcmp(s.at, text, s.bytes);
}

static bool zfj_same(zfj_string a, zfj_string b)
{
    return a.bytes == b.bytes && !memcmp(a.at, b.at, a.bytes);
}

static zfj_value zfj_bool(bool truth) { return (zfj_value){.kind = ZFJ_BOOL, .as.truth = truth}; }

static zfj_value zfj_int(int64_t value)
{
    return (zfj_value){.kind = ZFJ_INT, .as.integer = value};
}

static zfj_value zfj_float(double value)
{
    return (zfj_value){.kind = ZFJ_FLOAT, .as.real = value};
}

static zfj_value zfj_text(zfj_string s) { return (zfj_value){.kind = ZFJ_STRING, .as.text = s}; }

static zfj_value zfj_literal(const char *text) { return zfj_text(zfj_string_of(text)); }

static zfj_value zfj_undefined(zfj_string why)
{
    return (zfj_value){.kind = ZFJ_UNDEFINED, .as.text = why};
}

static zfj_value zfj_list_new(zfj_machine *m, zfj_kind kind)
{
    zfj_list *list = zfj_arena_clear(m, sizeof *list);
    return (zfj_value){.kind = kind, .as.list = list};
}

static void zfj_push(zfj_machine *m, zfj_list *list, zfj_value v)
{
    zfj_charge(m, 1);
    list->at = zfj_arena_grow(m, list->at, list->count, &list->room, sizeof *list->at);
    list->at[list->count++] = v;
}

static zfj_value zfj_pair_of(zfj_machine *m, zfj_value a, zfj_value b)
{
    zfj_value pair = zfj_list_new(m, ZFJ_TUPLE);
    zfj_push(m, pair.as.list, a);
    zfj_push(m, pair.as.list, b);
    return pair;
}

/* A string that grows. */
typedef struct zfj_out {
    char *at;
    size_t count, room;
} zfj_out;

static void zfj_put(zfj_machine *m, zfj_out *out, const char *text, size_t bytes)
{
    if (!bytes) return;
    zfj_charge(m, bytes / 16);
    if (out->room - out->count < bytes) {
        size_t room = 2 * (out->count + bytes) + 32;
        char *moved = zfj_arena_take(m, room);
        if (out->count) memcpy(moved, out->at, out->count);
        out->at = moved, out->room = room;
    }
    memcpy(out->at + out->count, text, bytes);
    out->count += bytes;
}

static void zfj_put_string(zfj_machine *m, zfj_out *out, zfj_string s)
{
    zfj_put(m, out, s.at, s.bytes);
}

static void zfj_put_literal(zfj_machine *m, zfj_out *out, const char *text)
{
    zfj_put(m, out, text, strlen(text));
}

static void zfj_put_character(zfj_machine *m, zfj_out *out, uint32_t c)
{
    char bytes[4];
    zfj_put(m, out, bytes, zfl_put_utf8(bytes, 0, c));
}

static void zfj_fill(zfj_machine *m, zfj_out *out, size_t count)
{
    for (size_t i = 0; i < count; i++) zfj_put(m, out, " ", 1);
}

static zfj_string zfj_taken(const zfj_out *out)
{
    return (zfj_string){out->at ? out->at : "", out->count};
}

static zfj_value zfj_text_of(const zfj_out *out) { return zfj_text(zfj_taken(out)); }

/* The character at p, which is before `end`, and how many bytes it has. Strings are UTF-8. */
static size_t zfj_next_character(const char *p, const char *end, uint32_t *c)
{
    int bytes = zfl_utf8_decode((const unsigned char *)p, (size_t)(end - p), c);
    return bytes ? (size_t)bytes : 1;
}

static size_t zfj_characters(zfj_machine *m, zfj_string s)
{
    size_t count = 0;
    zfj_charge(m, s.bytes / 16);
    for (size_t i = 0; i < s.bytes; i++) count += (s.at[i] & 0xC0) != 0x80;
    return count;
}

/* ------------------------------------------------------------------------------------ kinds */

static bool zfj_is_number(zfj_value v)
{
    return v.kind == ZFJ_BOOL || v.kind == ZFJ_INT || v.kind == ZFJ_FLOAT;
}

static bool zfj_is_integer(zfj_value v) { return v.kind == ZFJ_BOOL || v.kind == ZFJ_INT; }

static int64_t zfj_integer(zfj_value v) { return v.kind == ZFJ_BOOL ? v.as.truth : v.as.integer; }

static double zfj_real(zfj_value v)
{
    return v.kind == ZFJ_FLOAT ? v.as.real : (double)zfj_integer(v);
}

/* It is kept in a list. */
static bool zfj_has_list(zfj_value v) { return v.kind >= ZFJ_LIST && v.kind <= ZFJ_GENERATOR; }

/* Its elements have numbers. */
static bool zfj_is_indexed(zfj_value v) { return v.kind >= ZFJ_LIST && v.kind <= ZFJ_RANGE; }

static const char *zfj_kind_name(zfj_value v)
{
    static const char *const names[] = {"undefined", "None",    "bool",      "int",   "float",
                                        "str",       "list",    "tuple",     "range", "view",
                                        "generator", "dict",    "namespace", "loop",  "macro",
                                        "method",    "function"};
    return names[v.kind];
}

/* An operation on what is not defined. */
__attribute__((noreturn)) static void zfj_stop_undefined(zfj_machine *m, zfj_value v)
{
    zfj_stop(m, "%.*s is undefined", (int)(v.as.text.bytes < 200 ? v.as.text.bytes : 200),
             v.as.text.at);
}

/* The value is of a kind for which `what` is not done. */
__attribute__((noreturn)) static void zfj_stop_kind(zfj_machine *m, zfj_value v, const char *what)
{
    if (v.kind == ZFJ_UNDEFINED) zfj_stop_undefined(m, v);
    zfj_stop(m, "%s: not for a value of the kind %s", what, zfj_kind_name(v));
}

static bool zfj_truth(zfj_value v)
{
    switch (v.kind) {
    case ZFJ_UNDEFINED:
    case ZFJ_NONE: return false;
    case ZFJ_BOOL: return v.as.truth;
    case ZFJ_INT: return v.as.integer != 0;
    case ZFJ_FLOAT: return v.as.real != 0;
    case ZFJ_STRING: return v.as.text.bytes != 0;
    case ZFJ_LIST:
    case ZFJ_TUPLE:
    case ZFJ_RANGE:
    case ZFJ_VIEW: return v.as.list->count != 0;
    case ZFJ_DICT: return v.as.dict->count != 0;
    default: return true;
    }
}

/* ------------------------------------------------------------------------------- comparison */

static bool zfj_equal(zfj_machine *m, zfj_value a, zfj_value b);
static const zfj_value *zfj_dict_find(zfj_machine *m, const zfj_dict *d, zfj_value key);

static bool zfj_equal_lists(zfj_machine *m, const zfj_list *a, const zfj_list *b)
{
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++)
        if (!zfj_equal(m, a->at[i], b->at[i])) return false;
    return true;
}

static bool zfj_equal_dicts(zfj_machine *m, const zfj_dict *a, const zfj_dict *b)
{
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++) {
        const zfj_value *other = zfj_dict_find(m, b, a->at[i].key);
        if (!other || !zfj_equal(m, a->at[i].value, *other)) return false;
    }
    return true;
}

static bool zfj_equal_alike(zfj_machine *m, zfj_value a, zfj_value b)
{
    switch (a.kind) {
    case ZFJ_UNDEFINED:
    case ZFJ_NONE: return true;
    case ZFJ_STRING: zfj_charge(m, a.as.text.bytes / 16); return zfj_same(a.as.text, b.as.text);
    case ZFJ_LIST:
    case ZFJ_TUPLE:
    case ZFJ_RANGE: return zfj_equal_lists(m, a.as.list, b.as.list);
    case ZFJ_DICT: return zfj_equal_dicts(m, a.as.dict, b.as.dict);
    case ZFJ_FUNCTION: return !strcmp(a.as.function, b.as.function);
    default: return a.as.list == b.as.list;
    }
}

static int zfj_compare_numbers(zfj_value a, zfj_value b)
{
    double x = zfj_real(a), y = zfj_real(b);
    if (zfj_is_integer(a) && zfj_is_integer(b)) {
        int64_t i = zfj_integer(a), j = zfj_integer(b);
        return i < j ? -1 : i > j;
    }
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2; /* 2: not a number */
}

static bool zfj_equal(zfj_machine *m, zfj_value a, zfj_value b)
{
    bool same;
    zfj_charge(m, 1);
    if (zfj_is_number(a) && zfj_is_number(b)) return !zfj_compare_numbers(a, b);
    if (a.kind != b.kind) return false;
    zfj_enter_level(m);
    same = zfj_equal_alike(m, a, b);
    zfj_leave_level(m);
    return same;
}

/* -1, 0 or 1; 2: neither is less, and they are not equal. */
static int zfj_compare(zfj_machine *m, zfj_value a, zfj_value b)
{
    zfj_charge(m, 1);
    if (zfj_is_number(a) && zfj_is_number(b)) return zfj_compare_numbers(a, b);
    if (a.kind == ZFJ_UNDEFINED) zfj_stop_undefined(m, a);
    if (b.kind == ZFJ_UNDEFINED) zfj_stop_undefined(m, b);
    if (a.kind == ZFJ_STRING && b.kind == ZFJ_STRING) {
        zfj_string s = a.as.text, t = b.as.text;
        int order = memcmp(s.at, t.at, s.bytes < t.bytes ? s.bytes : t.bytes);
        zfj_charge(m, s.bytes / 16);
        if (!order) return s.bytes < t.bytes ? -1 : s.bytes > t.bytes;
        return order < 0 ? -1 : 1;
    }
    if (a.kind == b.kind && (a.kind == ZFJ_LIST || a.kind == ZFJ_TUPLE)) {
        const zfj_list *s = a.as.list, *t = b.as.list;
        int order = 0;
        zfj_enter_level(m);
        for (size_t i = 0; !order && i < s->count && i < t->count; i++)
            if (!zfj_equal(m, s->at[i], t->at[i])) order = zfj_compare(m, s->at[i], t->at[i]);
        zfj_leave_level(m);
        return order ? order : s->count < t->count ? -1 : s->count > t->count;
    }
    zfj_stop(m, "a value of the kind %s and one of the kind %s have no order", zfj_kind_name(a),
             zfj_kind_name(b));
}

/* ------------------------------------------------------------------------------------- dicts */

static void zfj_need_key(zfj_machine *m, zfj_value key)
{
    if (key.kind == ZFJ_LIST || key.kind == ZFJ_DICT || key.kind >= ZFJ_LOOP)
        zfj_stop_kind(m, key, "a key");
}

static const zfj_value *zfj_dict_find(zfj_machine *m, const zfj_dict *d, zfj_value key)
{
    for (size_t i = 0; i < d->count; i++)
        if (zfj_equal(m, d->at[i].key, key)) return &d->at[i].value;
    return NULL;
}

static const zfj_value *zfj_dict_get(zfj_machine *m, const zfj_dict *d, zfj_string key)
{
    return zfj_dict_find(m, d, zfj_text(key));
}

static void zfj_dict_set(zfj_machine *m, zfj_dict *d, zfj_value key, zfj_value value)
{
    zfj_need_key(m, key);
    for (size_t i = 0; i < d->count; i++)
        if (zfj_equal(m, d->at[i].key, key)) {
            d->at[i].value = value;
            return;
        }
    d->at = zfj_arena_grow(m, d->at, d->count, &d->room, sizeof *d->at);
    d->at[d->count++] = (zfj_pair){key, value};
}

static void zfj_dict_put(zfj_machine *m, zfj_dict *d, const char *key, zfj_value value)
{
    zfj_dict_set(m, d, zfj_literal(key), value);
}

static zfj_value zfj_dict_new(zfj_machine *m, zfj_kind kind)
{
    zfj_dict *dict = zfj_arena_clear(m, sizeof *dict);
    return (zfj_value){.kind = kind, .as.dict = dict};
}

/* What a loop goes through, in a list: elements, keys or characters. A generator is spent then. */
static zfj_list *zfj_iterate(zfj_machine *m, zfj_value v)
{
    zfj_list *list;
    if (v.kind == ZFJ_GENERATOR) {
        list = zfj_list_new(m, ZFJ_LIST).as.list;
        if (!v.as.list->spent) *list = *v.as.list;
        v.as.list->spent = true;
        return list;
    }
    if (zfj_has_list(v)) return v.as.list;
    list = zfj_list_new(m, ZFJ_LIST).as.list;
    if (v.kind == ZFJ_STRING) {
        zfj_string s = v.as.text;
        uint32_t c;
        for (size_t at = 0, n; at < s.bytes; at += n) {
            n = zfj_next_character(s.at + at, s.at + s.bytes, &c);
            zfj_push(m, list, zfj_text((zfj_string){s.at + at, n}));
            list->at[list->count - 1].safe = v.safe;
        }
    } else if (v.kind == ZFJ_DICT) {
        for (size_t i = 0; i < v.as.dict->count; i++) zfj_push(m, list, v.as.dict->at[i].key);
    } else if (v.kind != ZFJ_UNDEFINED) {
        zfj_stop_kind(m, v, "going through its elements");
    }
    return list;
}
