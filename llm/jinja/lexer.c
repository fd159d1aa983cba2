/* A template as tokens: the rules of jinja2's lexer with trim_blocks and lstrip_blocks. */
#include <errno.h>

typedef enum zfj_token_kind {
    ZFJ_END, /* of the template */
    ZFJ_DATA,
    ZFJ_PRINT_BEGIN,
    ZFJ_PRINT_END,
    ZFJ_BLOCK_BEGIN,
    ZFJ_BLOCK_END,
    ZFJ_NAME,
    ZFJ_TEXT,
    ZFJ_NUMBER,
    ZFJ_OPERATOR
} zfj_token_kind;

typedef struct zfj_token {
    zfj_token_kind kind;
    int line;
    zfj_string text; /* data, name, value of a string, operator */
    zfj_value value; /* of a number */
} zfj_token;

typedef struct zfj_lexer {
    zfj_machine *m;
    zfj_string source; /* with \n for all line breaks */
    size_t at;
    bool line_starts; /* what was read last ends with a line feed */
    zfj_token *tokens;
    size_t count, room;
    char closing[200]; /* brackets that are open */
    int open;
} zfj_lexer;

enum { ZFJ_TEMPLATE_MOST = 1 << 20 };

static void zfj_add_token(zfj_lexer *l, zfj_token_kind kind, zfj_string text)
{
    zfj_charge(l->m, 1);
    l->tokens = zfj_arena_grow(l->m, l->tokens, l->count, &l->room, sizeof *l->tokens);
    l->tokens[l->count++] = (zfj_token){kind, l->m->line, text, zfj_none};
}

/* The source with \n for all line breaks, without the last one. */
static zfj_string zfj_normal_source(zfj_machine *m, zfj_string s)
{
    zfj_out out = {.at = NULL};
    for (size_t i = 0; i < s.bytes; i++) {
        const char *c = s.at[i] == '\r' ? "\n" : s.at + i;
        if (s.at[i] == '\r' && i + 1 < s.bytes && s.at[i + 1] == '\n') i++;
        zfj_put(m, &out, c, 1);
    }
    if (out.count && out.at[out.count - 1] == '\n') out.count--;
    return zfj_taken(&out);
}

static bool zfj_next_is(const zfj_lexer *l, size_t at, const char *text)
{
    return zfj_begins(zfj_part(l->source, at, l->source.bytes), zfj_string_of(text));
}

/* Moves to `to`, and counts lines. */
static void zfj_advance(zfj_lexer *l, size_t to)
{
    for (size_t i = l->at; i < to; i++) l->m->line += l->source.at[i] == '\n';
    if (to > l->at) l->line_starts = l->source.at[to - 1] == '\n';
    l->at = to;
}

static size_t zfj_skip_blanks(const zfj_lexer *l, size_t at)
{
    uint32_t c;
    while (at < l->source.bytes) {
        size_t n = zfj_next_character(l->source.at + at, l->source.at + l->source.bytes, &c);
        if (!zfj_is_blank(c)) break;
        at += n;
    }
    return at;
}

/* The place after a tag's end `close` ("%}") at `at`, with its sign and the white space that it
 * removes; 0: there is none. */
static size_t zfj_tag_end(const zfj_lexer *l, size_t at, const char *close)
{
    const bool print = close[0] == '}';
    if (zfj_next_is(l, at, "-") && zfj_next_is(l, at + 1, close)) return zfj_skip_blanks(l, at + 3);
    if (!print && zfj_next_is(l, at, "+") && zfj_next_is(l, at + 1, close)) return at + 3;
    if (!zfj_next_is(l, at, close)) return 0;
    return at + 2 + (!print && zfj_next_is(l, at + 2, "\n"));
}

/* Adds the text before a tag, less the white space that its sign (0: none) or its place removes. */
static void zfj_add_data(zfj_lexer *l, size_t end, char sign, bool print)
{
    zfj_string text = zfj_part(l->source, l->at, end);
    size_t line = text.bytes;
    if (sign == '-') text = zfj_strip(text, NULL, false, true);
    while (line && text.bytes == end - l->at && text.at[line - 1] != '\n') line--;
    if (!sign && !print && (line || l->line_starts) &&
        !zfj_strip(zfj_part(text, line, text.bytes), NULL, true, false).bytes)
        text.bytes = line;
    if (text.bytes) zfj_add_token(l, ZFJ_DATA, text);
}

static char zfj_sign_at(const zfj_lexer *l, size_t at)
{
    return zfj_next_is(l, at, "-") ? '-' : (char)(zfj_next_is(l, at, "+") ? '+' : 0);
}

/* ------------------------------------------------------------------------------ expressions */

static uint32_t zfj_read_digits(zfj_lexer *l, zfj_string s, size_t at, int most, int base,
                                size_t *end)
{
    uint32_t value = 0;
    int count = 0;
    for (; count < most && at < s.bytes; at++, count++) {
        const char *digits = "0123456789abcdef",
                   c = (char)(s.at[at] >= 'A' && s.at[at] <= 'F' ? s.at[at] + 32 : s.at[at]);
        const char *found = c ? strchr(digits, c) : NULL;
        if (!found || found - digits >= base) break;
        value = value * (uint32_t)base + (uint32_t)(found - digits);
    }
    if (base == 16 && count < most) zfj_stop(l->m, "an escape with too few digits in a string");
    *end = at;
    return value;
}

/* The escape after a backslash at s[at]; returns the place after it. */
static size_t zfj_unescape(zfj_lexer *l, zfj_string s, size_t at, zfj_out *out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char c = s.at[at];
    const char *found = c ? strchr(from, c) : NULL;
    uint32_t code;
    if (found) {
        zfj_put(l->m, out, to + (found - from), 1);
        return at + 1;
    }
    if (c == '\n') return at + 1;
    if (c == 'N') zfj_stop(l->m, "\\N in a string is not supported");
    if (c == 'x' || c == 'u' || c == 'U')
        code = zfj_read_digits(l, s, at + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, &at);
    else if (c >= '0' && c <= '7') code = zfj_read_digits(l, s, at, 3, 8, &at);
    else {
        if ((unsigned char)c >= 0x80)
            zfj_stop(l->m, "a backslash before a character that is not ASCII is not supported");
        zfj_put_literal(l->m, out, "\\");
        return at;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        zfj_stop(l->m, "an escape in a string that is not a character");
    zfj_put_character(l->m, out, code);
    return at;
}

static void zfj_read_string(zfj_lexer *l)
{
    const char quote = l->source.at[l->at];
    const int line = l->m->line;
    size_t end = l->at + 1;
    zfj_out out = {.at = NULL};
    zfj_string inside;
    while (end < l->source.bytes && l->source.at[end] != quote)
        end += 1 + (l->source.at[end] == '\\');
    if (end >= l->source.bytes) zfj_stop(l->m, "a string without an end");
    inside = zfj_part(l->source, l->at + 1, end);
    for (size_t at = 0; at < inside.bytes;) {
        if (inside.at[at] == '\\') at = zfj_unescape(l, inside, at + 1, &out);
        else zfj_put(l->m, &out, inside.at + at++, 1);
    }
    zfj_advance(l, end + 1);
    zfj_add_token(l, ZFJ_TEXT, zfj_taken(&out));
    l->tokens[l->count - 1].line = line;
}

static bool zfj_is_digit_at(const zfj_lexer *l, size_t at)
{
    return at < l->source.bytes && l->source.at[at] >= '0' && l->source.at[at] <= '9';
}

/* Digits, with _ between two of them. */
static size_t zfj_digits_end(const zfj_lexer *l, size_t at)
{
    while (zfj_is_digit_at(l, at) || (zfj_next_is(l, at, "_") && at && zfj_is_digit_at(l, at - 1) &&
                                      zfj_is_digit_at(l, at + 1)))
        at++;
    return at;
}

static void zfj_read_number_token(zfj_lexer *l)
{
    size_t end = zfj_digits_end(l, l->at), n = 0, exponent;
    const bool may_be_real = !l->at || l->source.at[l->at - 1] != '.';
    bool real = false;
    char text[64];
    if (zfj_next_is(l, l->at, "0") && end == l->at + 1 && end < l->source.bytes &&
        strchr("xXoObB", l->source.at[end]))
        zfj_stop(l->m, "a number that is not decimal is not supported");
    if (may_be_real && zfj_next_is(l, end, ".") && zfj_is_digit_at(l, end + 1))
        end = zfj_digits_end(l, end + 1), real = true;
    exponent = end + 1 + (zfj_next_is(l, end + 1, "+") || zfj_next_is(l, end + 1, "-"));
    if (may_be_real && (zfj_next_is(l, end, "e") || zfj_next_is(l, end, "E")) &&
        zfj_is_digit_at(l, exponent))
        end = zfj_digits_end(l, exponent), real = true;
    if (end - l->at >= sizeof text) zfj_stop(l->m, "a number of %zu digits", end - l->at);
    if (!real && zfj_next_is(l, l->at, "0")) /* 007 is 00 and 7 */
        for (end = l->at + 1; zfj_next_is(l, end, "0");) end++;
    for (size_t i = l->at; i < end; i++)
        if (l->source.at[i] != '_') text[n++] = l->source.at[i];
    text[n] = 0;
    zfj_add_token(l, ZFJ_NUMBER, zfj_part(l->source, l->at, end));
    errno = 0;
    l->tokens[l->count - 1].value =
        real ? zfj_float(strtod(text, NULL)) : zfj_int((int64_t)strtoll(text, NULL, 10));
    if (errno && !real) zfj_stop(l->m, "an integer of more than 64 bits");
    zfj_advance(l, end);
}

static void zfj_check_bracket(zfj_lexer *l, char c)
{
    const char *opens = strchr("([{", c), *closes = strchr(")]}", c);
    if (opens && l->open == sizeof l->closing) zfj_stop(l->m, "too many brackets in one another");
    if (opens) l->closing[l->open++] = ")]}"[opens - "([{"];
    if (closes && (!l->open || l->closing[--l->open] != c)) zfj_stop(l->m, "unexpected %c", c);
}

static void zfj_read_operator(zfj_lexer *l)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    const char c = l->source.at[l->at];
    size_t bytes = 1;
    for (size_t k = 0; k < sizeof two / sizeof *two; k++)
        if (zfj_next_is(l, l->at, two[k])) bytes = 2;
    if (bytes == 1 && (!c || !strchr("+-/*%~[](){}><=.:|,;", c)))
        zfj_stop(l->m, "unexpected character %.*s", (unsigned char)c >= 0x80 || c < 0x20 ? 0 : 1,
                 l->source.at + l->at);
    if (bytes == 1 && strchr("()[]{}", c)) zfj_check_bracket(l, c);
    zfj_add_token(l, ZFJ_OPERATOR, zfj_part(l->source, l->at, l->at + bytes));
    zfj_advance(l, l->at + bytes);
}

/* The tokens of a tag, up to its end `close`. */
static void zfj_read_tag(zfj_lexer *l, const char *close, zfj_token_kind end)
{
    const int line = l->m->line;
    for (;;) {
        size_t to = l->open ? 0 : zfj_tag_end(l, l->at, close);
        char c;
        if (to) {
            zfj_add_token(l, end, zfj_string_of(close));
            zfj_advance(l, to);
            return;
        }
        zfj_advance(l, zfj_skip_blanks(l, l->at));
        if (!l->open && zfj_tag_end(l, l->at, close)) continue;
        if (l->at >= l->source.bytes) {
            l->m->line = line;
            zfj_stop(l->m, "a tag without %s", close);
        }
        c = l->source.at[l->at];
        if (c >= '0' && c <= '9') zfj_read_number_token(l);
        else if (zfj_is_ascii_letter((unsigned char)c) || c == '_') {
            to = l->at;
            while (to < l->source.bytes && (zfj_is_ascii_letter((unsigned char)l->source.at[to]) ||
                                            l->source.at[to] == '_' || zfj_is_digit_at(l, to)))
                to++;
            zfj_add_token(l, ZFJ_NAME, zfj_part(l->source, l->at, to));
            zfj_advance(l, to);
        } else if (c == '\'' || c == '"') zfj_read_string(l);
        else zfj_read_operator(l);
    }
}

/* ------------------------------------------------------------------------------------- blocks */

static void zfj_skip_comment(zfj_lexer *l)
{
    for (size_t at = l->at; at < l->source.bytes; at++) {
        size_t to = zfj_tag_end(l, at, "#}");
        if (!to) continue;
        zfj_advance(l, to);
        return;
    }
    zfj_stop(l->m, "a comment without #}");
}

/* Whether {%, a sign and `word` are at `at`; the place after the word. */
static size_t zfj_word_of_tag(const zfj_lexer *l, size_t at, const char *word)
{
    if (!zfj_next_is(l, at, "{%")) return 0;
    at = zfj_skip_blanks(l, at + 2 + (zfj_sign_at(l, at + 2) != 0));
    return zfj_next_is(l, at, word) ? zfj_skip_blanks(l, at + strlen(word)) : 0;
}

/* The place after {% raw %} at `at`; 0: it is another tag. */
static size_t zfj_raw_begin(const zfj_lexer *l, size_t at)
{
    size_t end = zfj_word_of_tag(l, at, "raw");
    if (!end) return 0;
    if (zfj_next_is(l, end, "-%}")) return zfj_skip_blanks(l, end + 3);
    return zfj_next_is(l, end, "%}") ? end + 2 : 0;
}

static void zfj_read_raw(zfj_lexer *l)
{
    const int line = l->m->line;
    for (size_t at = l->at; at < l->source.bytes; at++) {
        size_t word = zfj_word_of_tag(l, at, "endraw"), end;
        if (!word || !(end = zfj_tag_end(l, word, "%}"))) continue;
        zfj_add_data(l, at, zfj_sign_at(l, at + 2), false);
        zfj_advance(l, end);
        return;
    }
    l->m->line = line;
    zfj_stop(l->m, "raw without endraw");
}

/* The next place of {{, {% or {#. */
static size_t zfj_find_tag(const zfj_lexer *l)
{
    size_t at = l->at;
    while (
        at + 1 < l->source.bytes &&
        !(l->source.at[at] == '{' && strchr("{%#", l->source.at[at + 1]) && l->source.at[at + 1]))
        at++;
    return at + 1 < l->source.bytes ? at : l->source.bytes;
}

static void zfj_read_part(zfj_lexer *l)
{
    const size_t tag = zfj_find_tag(l), raw = zfj_raw_begin(l, tag);
    const bool there = tag < l->source.bytes, print = there && l->source.at[tag + 1] == '{';
    const char sign = there ? zfj_sign_at(l, tag + 2) : '+';
    const char kind = there ? l->source.at[tag + 1] : 0;
    zfj_add_data(l, tag, sign, print);
    zfj_advance(l, raw ? raw : there ? tag + 2 + (sign != 0) : tag);
    if (raw) zfj_read_raw(l);
    else if (kind == '#') zfj_skip_comment(l);
    else if (there) {
        zfj_add_token(l, print ? ZFJ_PRINT_BEGIN : ZFJ_BLOCK_BEGIN,
                      zfj_string_of(print ? "{{" : "{%"));
        zfj_read_tag(l, print ? "}}" : "%}", print ? ZFJ_PRINT_END : ZFJ_BLOCK_END);
    }
}

/* The tokens of a template; the last one is ZFJ_END. */
static const zfj_token *zfj_tokens_of(zfj_machine *m, zfj_string source)
{
    zfj_lexer l = {.m = m, .line_starts = true};
    m->line = 1;
    if (source.bytes > ZFJ_TEMPLATE_MOST)
        zfj_stop(m, "a template of more than %d bytes", ZFJ_TEMPLATE_MOST);
    if (zfl_utf8_valid(source.at, source.bytes) != source.bytes)
        zfj_stop(m, "the template is not UTF-8");
    l.source = zfj_normal_source(m, source);
    while (l.at < l.source.bytes) zfj_read_part(&l);
    zfj_add_token(&l, ZFJ_END, zfj_string_of("the end of the template"));
    return l.tokens;
}
