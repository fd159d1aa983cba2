/* Regular expressions of tokenizer.json, by PCRE2 (Debian: libpcre2-dev).
 *
 * They are written for Oniguruma. Syntax with another meaning in PCRE2 is rewritten (\s, \w, \v,
 * scripts in \p{...}, {,n}) or is an error that names it (sets within sets, &&, \h, \b, possessive
 * intervals, options other than i). The edition of Unicode is PCRE2's. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct zfl_regex zfl_regex;

/* Calls `found` for each match in order, with its begin and end; an empty match directly after
 * another one does not count. text: UTF-8. False with *error when the search needs more steps or
 * memory than PCRE2 allows. */
typedef void zfl_regex_found(void *user, size_t begin, size_t end);

#if defined(__has_include) && !defined(ZF_WITHOUT_PCRE2)
#if __has_include(<pcre2.h>)
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif
#endif

#ifdef PCRE2_MAJOR

bool zf_regex_there(void) { return true; }

struct zfl_regex {
    pcre2_code *code;
    pcre2_general_context *memory;
};

/* ----------------------------------------------------------------------------- translation */

/* The translation of a pattern. */
typedef struct zfl_translation {
    const char *at, *end, *start;
    zf_text out;
    bool in_set;
    zf_error *error;
} zfl_translation;

static bool zfl_refuse(zfl_translation *t, const char *from, int bytes, const char *why)
{
    return zfl_fail(t->error, ZF_ERR_FORMAT,
                    "the regular expression has %.*s at byte %zu, %s, which is not supported",
                    bytes, from, (size_t)(from - t->start) + 1, why);
}

/* Inside of a set, or as a set. */
static void zfl_put_set(zfl_translation *t, const char *members, const char *set)
{
    zf_text_add_string(&t->out, t->in_set ? members : set);
}

/* Unicode's White_Space, and its complement; \s of PCRE2 also has U+180E. */
#define ZFL_SPACES                                                                                 \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"             \
    "\\x{202f}\\x{205f}\\x{3000}"
#define ZFL_NO_SPACES                                                                              \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}"                   \
    "\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}"                 \
    "\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define ZFL_WORDS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

/* \p{Name}, \P{Name}, \p{^Name}: names of more than two letters are scripts, unless they are
 * properties. */
static bool zfl_property(zfl_translation *t, const char *from)
{
    static const char *const properties[] = {"Any", "Alphabetic", "Lowercase", "Uppercase",
                                             "White_Space"};
    const char *close = memchr(t->at, '}', (size_t)(t->end - t->at)), *name = t->at + 1;
    bool script;
    if (t->at == t->end || *t->at != '{' || !close)
        return zfl_refuse(t, from, 2, "a property without {}");
    zf_text_add(&t->out, from, 3);
    if (*name == '^') zf_text_add(&t->out, name++, 1);
    script = close - name > 2;
    for (size_t k = 0; k < sizeof properties / sizeof properties[0]; k++)
        if ((size_t)(close - name) == strlen(properties[k]) &&
            !memcmp(name, properties[k], strlen(properties[k])))
            script = false;
    if (script) zf_text_add_string(&t->out, "sc:");
    zf_text_add(&t->out, name, (size_t)(close + 1 - name));
    t->at = close + 1;
    return true;
}

/* What follows a \, which `from` points to. */
static bool zfl_escape(zfl_translation *t, const char *from)
{
    char c;
    if (t->at == t->end) return zfl_refuse(t, from, 1, "a \\ at its end");
    c = *t->at++;
    if (c == 's') zfl_put_set(t, ZFL_SPACES, "[" ZFL_SPACES "]");
    else if (c == 'S') zfl_put_set(t, ZFL_NO_SPACES, "[^" ZFL_SPACES "]");
    else if (c == 'w') zfl_put_set(t, ZFL_WORDS, "[" ZFL_WORDS "]");
    else if (c == 'W' && !t->in_set) zf_text_add_string(&t->out, "[^" ZFL_WORDS "]");
    else if (c == 'v') zf_text_add_string(&t->out, "\\x{b}");
    else if (c == 'p' || c == 'P') return zfl_property(t, from);
    else if (c == 'u' && t->end - t->at >= 4) {
        zf_text_add_string(&t->out, "\\x{");
        zf_text_add(&t->out, t->at, 4);
        zf_text_add_string(&t->out, "}");
        t->at += 4;
    } else if (strchr("dDnrtfaexAz", c) || !isalnum((unsigned char)c)) {
        zf_text_add(&t->out, from, 2);
    } else {
        return zfl_refuse(t, from, 2, "an escape");
    }
    return true;
}

/* What follows a (, which `from` points to. */
static bool zfl_group(zfl_translation *t, const char *from)
{
    size_t left = (size_t)(t->end - t->at);
    static const char *const known[] = {"?:", "?=", "?!", "?>", "?<=", "?<!", "?i:", "?-i:"};
    if (left && *t->at != '?' && *t->at != '*') return true;
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
        size_t n = strlen(known[k]);
        if (left < n || memcmp(t->at, known[k], n)) continue;
        zf_text_add(&t->out, t->at, n);
        t->at += n;
        return true;
    }
    if (from == t->start && left >= 3 && !memcmp(t->at, "?i)", 3)) return true;
    return zfl_refuse(t, from, left > 3 ? 4 : (int)left + 1, "a kind of group");
}

/* What follows a {: an interval, or an ordinary character. */
static bool zfl_interval(zfl_translation *t, const char *from)
{
    const char *p = t->at, *low = p, *high;
    while (p < t->end && isdigit((unsigned char)*p)) p++;
    high = p;
    if (p < t->end && *p == ',')
        for (p++; p < t->end && isdigit((unsigned char)*p);) p++;
    if (p == t->end || *p != '}' || p == low || (p == low + 1 && high == low)) return true;
    if (p + 1 < t->end && (p[1] == '+' || (p[1] == '?' && high == p)))
        return zfl_refuse(t, from, (int)(p + 2 - from), "an interval with a sign after it");
    if (high == low) zf_text_add_string(&t->out, "0");
    zf_text_add(&t->out, low, (size_t)(p + 1 - low));
    t->at = p + 1;
    return true;
}

static bool zfl_translate(zfl_translation *t)
{
    const char *set = NULL; /* the first character that can close it */
    while (t->at < t->end) {
        const char *from = t->at++;
        if (*from == '\\') {
            if (!zfl_escape(t, from)) return false;
            continue;
        }
        if (t->in_set) {
            if (*from == '[' || (*from == '&' && t->at < t->end && *t->at == '&'))
                return zfl_refuse(t, from, 1, "a set within a set");
            if (*from == ']' && from > set) t->in_set = false;
        } else if (*from == '[') {
            t->in_set = true;
            set = t->at + (t->at < t->end && *t->at == '^');
        }
        zf_text_add(&t->out, from, 1);
        if (t->in_set) continue;
        if (*from == '(' && !zfl_group(t, from)) return false;
        if (*from == '{' && !zfl_interval(t, from)) return false;
    }
    return true;
}

/* -------------------------------------------------------------------------------- matching */

static void *zfl_take(size_t bytes, void *user)
{
    (void)user;
    return malloc(bytes);
}

static void zfl_regex_give(void *block, void *user)
{
    (void)user;
    free(block);
}

static bool zfl_compile(zfl_regex *r, const zf_text *pattern, zf_error *error)
{
    pcre2_compile_context *how = r->memory ? pcre2_compile_context_create(r->memory) : NULL;
    int code = PCRE2_ERROR_NOMEMORY;
    size_t at = 0;
    char why[128] = "";
    if (how) {
        pcre2_set_newline(how, PCRE2_NEWLINE_LF);
        r->code = pcre2_compile((PCRE2_SPTR)pattern->at, pattern->count,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &at, how);
        pcre2_compile_context_free(how);
    }
    if (r->code) {
        (void)pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* if it fails, matching is slower */
        return true;
    }
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    if (code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED)
        return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    return zfl_fail(error, ZF_ERR_FORMAT, "the regular expression %.200s is wrong at byte %zu: %s",
                    pattern->at, at + 1, why);
}

static void zfl_regex_free(zfl_regex *r)
{
    if (!r) return;
    pcre2_code_free(r->code);
    pcre2_general_context_free(r->memory);
    free(r);
}

/* NULL with *error. */
static zfl_regex *zfl_regex_new(const char *pattern, size_t bytes, zf_error *error)
{
    zfl_translation t = {.at = pattern, .end = pattern + bytes, .start = pattern, .error = error};
    zfl_regex *r = calloc(1, sizeof *r);
    bool good;
    zf_text_add(&t.out, "", 0);
    good = zfl_translate(&t);
    if (good && (!r || t.out.failed)) good = zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    if (good) r->memory = pcre2_general_context_create(zfl_take, zfl_regex_give, NULL);
    good = good && zfl_compile(r, &t.out, error);
    zf_text_free(&t.out);
    if (good) return r;
    zfl_regex_free(r);
    return NULL;
}

/* The end of the character at `at`. */
static size_t zfl_after(const char *text, size_t bytes, size_t at)
{
    for (at++; at < bytes && ((unsigned char)text[at] & 0xC0) == 0x80;) at++;
    return at;
}

static bool zfl_regex_each(const zfl_regex *r, const char *text, size_t bytes,
                           zfl_regex_found *found, void *user, zf_error *error)
{
    pcre2_match_data *data = pcre2_match_data_create(1, r->memory);
    const size_t *place;
    size_t at = 0, last = SIZE_MAX;
    int count = 1;
    char why[128];
    if (!data) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    place = pcre2_get_ovector_pointer(data);
    while (at <= bytes) {
        /* 0: a match, with more groups than there is room for. */
        count = pcre2_match(r->code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK, data, NULL);
        if (count < 0) break;
        if (place[1] > place[0] || place[0] != last) found(user, place[0], place[1]);
        at = last = place[1];
        if (place[1] == place[0]) at = zfl_after(text, bytes, at);
    }
    pcre2_match_data_free(data);
    if (count >= 0 || count == PCRE2_ERROR_NOMATCH) return true;
    if (count == PCRE2_ERROR_NOMEMORY) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    pcre2_get_error_message(count, (PCRE2_UCHAR *)why, sizeof why);
    return zfl_fail(error, ZF_ERR_FORMAT,
                    "the regular expression was given up in a text of %zu bytes: %s", bytes, why);
}

#else

bool zf_regex_there(void) { return false; }

/* NULL with *error. */
static zfl_regex *zfl_regex_new(const char *pattern, size_t bytes, zf_error *error)
{
    (void)bytes;
    zfl_fail(
        error, ZF_ERR_FORMAT,
        "this program was built without PCRE2, which searches for the regular expression %.60s: "
        "install libpcre2-dev and build it again from make clean",
        pattern);
    return NULL;
}

static void zfl_regex_free(zfl_regex *r) { (void)r; }

static bool zfl_regex_each(const zfl_regex *r, const char *text, size_t bytes,
                           zfl_regex_found *found, void *user, zf_error *error)
{
    (void)r, (void)text, (void)bytes, (void)found, (void)user;
    return zfl_fail(error, ZF_ERR_FORMAT, "this program was built without PCRE2");
}

#endif
