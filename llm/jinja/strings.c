/* Strings as Python's str has them: spaces, case, searching, splitting, and formats. */

/* str.isspace of Python. */
static bool zfj_is_blank(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

static zfj_string zfj_part(zfj_string s, size_t from, size_t to)
{
    return (zfj_string){s.at + from, to > from ? to - from : 0};
}

/* The character that ends at byte `end`, and where it begins. */
static size_t zfj_last_character(zfj_string s, size_t end, uint32_t *c)
{
    size_t at = end - 1;
    while (at && (s.at[at] & 0xC0) == 0x80) at--;
    zfj_next_character(s.at + at, s.at + end, c);
    return at;
}

static bool zfj_is_among(uint32_t c, const zfj_string *set)
{
    uint32_t other;
    if (!set) return zfj_is_blank(c);
    for (size_t at = 0; at < set->bytes;) {
        at += zfj_next_character(set->at + at, set->at + set->bytes, &other);
        if (other == c) return true;
    }
    return false;
}

/* Without the characters of `set` at its ends; NULL: white space. */
static zfj_string zfj_strip(zfj_string s, const zfj_string *set, bool left, bool right)
{
    size_t begin = 0, end = s.bytes;
    uint32_t c;
    while (left && begin < end) {
        size_t n = zfj_next_character(s.at + begin, s.at + end, &c);
        if (!zfj_is_among(c, set)) break;
        begin += n;
    }
    while (right && end > begin) {
        size_t at = zfj_last_character(s, end, &c);
        if (!zfj_is_among(c, set)) break;
        end = at;
    }
    return zfj_part(s, begin, end);
}

/* The place of `part` in s[from..], or SIZE_MAX. */
static size_t zfj_find(zfj_machine *m, zfj_string s, zfj_string part, size_t from)
{
    for (size_t at = from; at + part.bytes <= s.bytes; at++) {
        const char *p =
            part.bytes ? memchr(s.at + at, part.at[0], s.bytes - part.bytes - at + 1) : s.at + at;
        if (!p) break;
        zfj_charge(m, ((size_t)(p - s.at) - at) / 16 + part.bytes / 16);
        at = (size_t)(p - s.at);
        if (!part.bytes || !memcmp(p, part.at, part.bytes)) return at;
        zfj_charge(m, 1);
    }
    return SIZE_MAX;
}

/* The last place of `part` that ends by `end`. */
static size_t zfj_find_last(zfj_machine *m, zfj_string s, zfj_string part, size_t end)
{
    if (part.bytes > end) return SIZE_MAX;
    for (size_t at = end - part.bytes + 1; at-- > 0;) {
        if (!part.bytes || !memcmp(s.at + at, part.at, part.bytes)) return at;
        zfj_charge(m, 1);
    }
    return SIZE_MAX;
}

static bool zfj_begins(zfj_string s, zfj_string part)
{
    return s.bytes >= part.bytes && (!part.bytes || !memcmp(s.at, part.at, part.bytes));
}

static bool zfj_ends(zfj_string s, zfj_string part)
{
    return s.bytes >= part.bytes &&
           (!part.bytes || !memcmp(s.at + s.bytes - part.bytes, part.at, part.bytes));
}

/* ------------------------------------------------------------------------------------- case */

static void zfj_put_lowered(zfj_machine *m, zfj_out *out, uint32_t c)
{
    uint32_t lower[3];
    int count = c < 0x80 ? 0 : zfl_uni_lower(c, lower);
    char ascii = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
    if (c == 0x3A3) zfj_stop(m, "lower case of the Greek letter sigma is not supported");
    if (c < 0x80) zfj_put(m, out, &ascii, 1);
    for (int i = 0; i < count; i++) zfj_put_character(m, out, lower[i]);
}

/* Characters in blocks of Unicode that have no case. */
static bool zfj_has_no_case(uint32_t c)
{
    static const uint32_t without[][2] = {
        {0x80, 0xA9},     {0xAB, 0xB4},       {0xB6, 0xB9},      {0xBB, 0xBF},     {0xD7, 0xD7},
        {0xF7, 0xF7},     {0x590, 0x109F},    {0x2000, 0x206F},  {0x20A0, 0x20FF}, {0x2190, 0x245F},
        {0x2500, 0x2BFF}, {0x2E80, 0xA63F},   {0xAC00, 0xD7A3},  {0xF900, 0xFAFF}, {0xFE30, 0xFE4F},
        {0xFF01, 0xFF20}, {0x1F000, 0x1F12F}, {0x1F200, 0x3FFFF}};
    for (size_t k = 0; k < sizeof without / sizeof *without; k++)
        if (c >= without[k][0] && c <= without[k][1]) return true;
    return false;
}

/* The one character of which c is the lower case; c if it is an upper case; 0: there is none, or
 * several. */
static uint32_t zfj_raised(uint32_t c)
{
    uint32_t lower[3], found = 0;
    if (c == 0xDF || (c >= 0x1C4 && c <= 0x1F3) || (c >= 0x1F80 && c <= 0x1FFF)) return 0;
    if (zfl_uni_lower(c, lower) != 1 || lower[0] != c) return c;
    for (size_t k = 0; k < sizeof zfl_uni_lower_runs / sizeof *zfl_uni_lower_runs; k++) {
        const zfl_uni_run *run = &zfl_uni_lower_runs[k];
        uint32_t from = run->first + (run->mode & 1 ? c - run->to : 0);
        if (from == c || zfl_uni_lower(from, lower) != 1 || lower[0] != c) continue;
        if (found && found != from) return 0;
        found = from;
    }
    return found;
}

static void zfj_put_raised(zfj_machine *m, zfj_out *out, uint32_t c)
{
    char ascii = (char)(c >= 'a' && c <= 'z' ? c - 32 : c);
    uint32_t raised = c >= 0x80 && !zfj_has_no_case(c) ? zfj_raised(c) : c;
    if (c < 0x80) zfj_put(m, out, &ascii, 1);
    else if (raised) zfj_put_character(m, out, raised);
    else zfj_stop(m, "upper case of the character U+%04X is not supported", (unsigned)c);
}

/* Each character as `put` writes it. */
static zfj_string zfj_mapped(zfj_machine *m, zfj_string s,
                             void (*put)(zfj_machine *m, zfj_out *out, uint32_t c))
{
    zfj_out out = {.at = NULL};
    uint32_t c;
    for (size_t at = 0; at < s.bytes;) {
        at += zfj_next_character(s.at + at, s.at + s.bytes, &c);
        put(m, &out, c);
    }
    return zfj_taken(&out);
}

static zfj_string zfj_lower(zfj_machine *m, zfj_string s)
{
    return zfj_mapped(m, s, zfj_put_lowered);
}

static zfj_string zfj_upper(zfj_machine *m, zfj_string s)
{
    return zfj_mapped(m, s, zfj_put_raised);
}

/* The first letter is raised, and each one after a character of which `begins` is true; NULL: only
 * the first of all. */
static zfj_string zfj_capitals(zfj_machine *m, zfj_string s,
                               bool (*begins)(zfj_machine *, uint32_t))
{
    zfj_out out = {.at = NULL};
    bool first = true;
    uint32_t c;
    for (size_t at = 0; at < s.bytes;) {
        at += zfj_next_character(s.at + at, s.at + s.bytes, &c);
        if (first) zfj_put_raised(m, &out, c);
        else zfj_put_lowered(m, &out, c);
        first = begins && begins(m, c);
    }
    return zfj_taken(&out);
}

/* What the filter `title` takes for the end of a word. */
static bool zfj_ends_word(zfj_machine *m, uint32_t c)
{
    (void)m;
    return zfj_is_blank(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
}

static bool zfj_is_ascii_letter(uint32_t c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

/* What the method title() takes for it. */
static bool zfj_is_uncased(zfj_machine *m, uint32_t c)
{
    if (c >= 0x80 && !zfj_has_no_case(c))
        zfj_stop(m, "case of the character U+%04X is not supported", (unsigned)c);
    return !zfj_is_ascii_letter(c);
}

/* isupper and islower: there are cased letters, and none of the other case. */
static bool zfj_is_cased(zfj_machine *m, zfj_string s, bool upper)
{
    bool any = false;
    uint32_t c;
    for (size_t at = 0; at < s.bytes;) {
        at += zfj_next_character(s.at + at, s.at + s.bytes, &c);
        if (zfj_is_uncased(m, c)) continue;
        if ((c < 'a') != upper) return false;
        any = true;
    }
    return any;
}

/* isdigit, isalpha, isalnum, isspace: all characters are such, and there is one. */
static bool zfj_is_all(zfj_machine *m, zfj_string s, bool digits, bool letters, bool blanks)
{
    uint32_t c;
    for (size_t at = 0; at < s.bytes;) {
        at += zfj_next_character(s.at + at, s.at + s.bytes, &c);
        if (blanks && zfj_is_blank(c)) continue;
        if (c >= 0x80 && !blanks)
            zfj_stop(m, "the kind of the character U+%04X is not supported", (unsigned)c);
        if (!(digits && c >= '0' && c <= '9') && !(letters && zfj_is_ascii_letter(c))) return false;
    }
    return s.bytes != 0;
}

/* ---------------------------------------------------------------------------------- splitting */

/* A part of a string, safe as that is. */
static zfj_value zfj_like(zfj_value of, zfj_string s)
{
    zfj_value v = zfj_text(s);
    v.safe = of.kind == ZFJ_STRING && of.safe;
    return v;
}

/* Splits at white space, at most `most` times; -1: at all of it. */
static zfj_value zfj_split_blank(zfj_machine *m, zfj_value v, int64_t most)
{
    zfj_value list = zfj_list_new(m, ZFJ_LIST);
    zfj_string rest = zfj_strip(v.as.text, NULL, true, false);
    uint32_t c;
    for (; rest.bytes && (most < 0 || (int64_t)list.as.list->count < most);) {
        size_t end = 0, n = 0;
        for (; end < rest.bytes; end += n) {
            n = zfj_next_character(rest.at + end, rest.at + rest.bytes, &c);
            if (zfj_is_blank(c)) break;
        }
        zfj_push(m, list.as.list, zfj_like(v, zfj_part(rest, 0, end)));
        rest = zfj_strip(zfj_part(rest, end, rest.bytes), NULL, true, false);
    }
    if (rest.bytes) zfj_push(m, list.as.list, zfj_like(v, zfj_strip(rest, NULL, false, most < 0)));
    return list;
}

static void zfj_reverse_list(zfj_list *list)
{
    for (size_t i = 0, j = list->count; i + 1 < j; i++) {
        zfj_value v = list->at[i];
        list->at[i] = list->at[--j];
        list->at[j] = v;
    }
}

static zfj_value zfj_split_blank_last(zfj_machine *m, zfj_value v, int64_t most)
{
    zfj_value list = zfj_list_new(m, ZFJ_LIST);
    zfj_string rest = zfj_strip(v.as.text, NULL, false, true);
    uint32_t c;
    for (; rest.bytes && (most < 0 || (int64_t)list.as.list->count < most);) {
        size_t begin = rest.bytes;
        while (begin) {
            size_t at = zfj_last_character(rest, begin, &c);
            if (zfj_is_blank(c)) break;
            begin = at;
        }
        zfj_push(m, list.as.list, zfj_like(v, zfj_part(rest, begin, rest.bytes)));
        rest = zfj_strip(zfj_part(rest, 0, begin), NULL, false, true);
    }
    if (rest.bytes) zfj_push(m, list.as.list, zfj_like(v, rest));
    zfj_reverse_list(list.as.list);
    return list;
}

static zfj_value zfj_split(zfj_machine *m, zfj_value v, zfj_string by, int64_t most)
{
    zfj_value list = zfj_list_new(m, ZFJ_LIST);
    zfj_string s = v.as.text;
    size_t from = 0, at;
    if (!by.bytes) zfj_stop(m, "split by an empty separator");
    while ((most < 0 || (int64_t)list.as.list->count < most) &&
           (at = zfj_find(m, s, by, from)) != SIZE_MAX) {
        zfj_push(m, list.as.list, zfj_like(v, zfj_part(s, from, at)));
        from = at + by.bytes;
    }
    zfj_push(m, list.as.list, zfj_like(v, zfj_part(s, from, s.bytes)));
    return list;
}

static zfj_value zfj_split_last(zfj_machine *m, zfj_value v, zfj_string by, int64_t most)
{
    zfj_value list = zfj_list_new(m, ZFJ_LIST);
    zfj_string s = v.as.text;
    size_t end = s.bytes, at;
    if (!by.bytes) zfj_stop(m, "rsplit by an empty separator");
    while ((most < 0 || (int64_t)list.as.list->count < most) &&
           (at = zfj_find_last(m, s, by, end)) != SIZE_MAX) {
        zfj_push(m, list.as.list, zfj_like(v, zfj_part(s, at + by.bytes, end)));
        end = at;
    }
    zfj_push(m, list.as.list, zfj_like(v, zfj_part(s, 0, end)));
    zfj_reverse_list(list.as.list);
    return list;
}

static bool zfj_ends_line(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

static zfj_value zfj_split_lines(zfj_machine *m, zfj_value v, bool keep)
{
    zfj_value list = zfj_list_new(m, ZFJ_LIST);
    zfj_string s = v.as.text;
    size_t from = 0;
    uint32_t c;
    for (size_t at = 0, n; at < s.bytes; at += n) {
        n = zfj_next_character(s.at + at, s.at + s.bytes, &c);
        if (!zfj_ends_line(c)) continue;
        if (c == '\r' && at + 1 < s.bytes && s.at[at + 1] == '\n') n = 2;
        zfj_push(m, list.as.list, zfj_like(v, zfj_part(s, from, keep ? at + n : at)));
        from = at + n;
    }
    if (from < s.bytes) zfj_push(m, list.as.list, zfj_like(v, zfj_part(s, from, s.bytes)));
    return list;
}

/* `most` < 0: all of them. */
static zfj_string zfj_replace(zfj_machine *m, zfj_string s, zfj_string old, zfj_string new,
                              int64_t most)
{
    zfj_out out = {.at = NULL};
    size_t from = 0;
    for (int64_t count = 0; most < 0 || count < most; count++) {
        size_t at = zfj_find(m, s, old, from + (!old.bytes && count)), end;
        zfj_charge(m, 1);
        if (at == SIZE_MAX) break;
        while (!old.bytes && at < s.bytes && (s.at[at] & 0xC0) == 0x80) at++;
        zfj_put_string(m, &out, zfj_part(s, from, at));
        zfj_put_string(m, &out, new);
        end = at + old.bytes;
        if (!old.bytes && at >= s.bytes) return zfj_taken(&out);
        from = end;
    }
    zfj_put_string(m, &out, zfj_part(s, from, s.bytes));
    return zfj_taken(&out);
}

static zfj_string zfj_join(zfj_machine *m, zfj_string by, const zfj_list *list, bool convert)
{
    zfj_out out = {.at = NULL};
    for (size_t i = 0; i < list->count; i++) {
        if (i) zfj_put_string(m, &out, by);
        if (!convert && list->at[i].kind != ZFJ_STRING)
            zfj_stop_kind(m, list->at[i], "join, which takes strings");
        zfj_put_string(m, &out, zfj_str(m, list->at[i]));
    }
    return zfj_taken(&out);
}

/* With &, <, >, " and ' as HTML writes them. */
static zfj_string zfj_escape(zfj_machine *m, zfj_string s)
{
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    zfj_out out = {.at = NULL};
    for (size_t i = 0; i < s.bytes; i++) {
        const char *found = s.at[i] ? strchr(from, s.at[i]) : NULL;
        if (found) zfj_put_literal(m, &out, to[found - from]);
        else zfj_put(m, &out, s.at + i, 1);
    }
    return zfj_taken(&out);
}

static bool zfj_is_plain(zfj_string s)
{
    for (size_t i = 0; i < s.bytes; i++)
        if (s.at[i] && strchr("&<>\"'", s.at[i])) return false;
    return true;
}

/* ------------------------------------------------------------------------------------ formats */

/* The text of a number or string in the width, with flags, of %[flags][width][.precision]c. */
typedef struct zfj_spec {
    bool left, zero, plus, space, other; /* other: # */
    int64_t width, precision;            /* -1: none */
    char type;
} zfj_spec;

static size_t zfj_read_number(zfj_string s, size_t at, int64_t *out)
{
    *out = 0;
    while (at < s.bytes && s.at[at] >= '0' && s.at[at] <= '9') {
        if (*out < 1 << 24) *out = *out * 10 + (s.at[at] - '0');
        at++;
    }
    return at;
}

/* Reads what follows a % (and a name in parentheses). */
static size_t zfj_read_spec(zfj_machine *m, zfj_string s, size_t at, zfj_spec *spec)
{
    *spec = (zfj_spec){.precision = -1};
    for (; at < s.bytes && s.at[at] && strchr("-0+ #", s.at[at]); at++) {
        spec->left |= s.at[at] == '-';
        spec->zero |= s.at[at] == '0';
        spec->plus |= s.at[at] == '+';
        spec->space |= s.at[at] == ' ';
        spec->other |= s.at[at] == '#';
    }
    at = zfj_read_number(s, at, &spec->width);
    if (at < s.bytes && s.at[at] == '.') at = zfj_read_number(s, at + 1, &spec->precision);
    if (at >= s.bytes || !s.at[at]) zfj_stop(m, "a format ends within its %%");
    if (spec->width > 10000 || spec->precision > 300)
        zfj_stop(m, "a width of %lld or precision of %lld in a format", (long long)spec->width,
                 (long long)spec->precision);
    spec->type = s.at[at];
    return at + 1;
}

static void zfj_put_number(zfj_machine *m, zfj_out *out, const zfj_spec *spec, zfj_value v)
{
    char format[16], text[700];
    const bool real = strchr("eEfFgG", spec->type) != NULL;
    if (!zfj_is_number(v)) zfj_stop_kind(m, v, "a number in a format");
    if (spec->other || (!real && spec->precision >= 0))
        zfj_stop(m, "the format %%%s%c is not supported", spec->other ? "#" : ".", spec->type);
    snprintf(format, sizeof format, "%%%s%s%s*.*%s%c", spec->left ? "-" : "",
             spec->zero && !spec->left ? "0" : "",
             spec->plus    ? "+"
             : spec->space ? " "
                           : "",
             real ? "" : "ll", real ? spec->type : 'd');
    if (spec->width >= 300) zfj_stop(m, "a width of %lld in a format", (long long)spec->width);
    if (real && !isfinite(zfj_real(v))) zfj_stop(m, "a number that is not finite in a format");
    if (real)
        snprintf(text, sizeof text, format, (int)spec->width,
                 spec->precision < 0 ? 6 : (int)spec->precision, zfj_real(v));
    else {
        double whole = trunc(zfj_real(v));
        if (v.kind == ZFJ_FLOAT && !(fabs(whole) < 9e18))
            zfj_stop(m, "an integer of more than 64 bits");
        snprintf(text, sizeof text, format, (int)spec->width, -1,
                 v.kind == ZFJ_FLOAT ? (long long)whole : (long long)zfj_integer(v));
    }
    zfj_put_literal(m, out, text);
}

static void zfj_put_hex(zfj_machine *m, zfj_out *out, const zfj_spec *spec, zfj_value v)
{
    char text[40];
    if (!zfj_is_integer(v) || zfj_integer(v) < 0 || spec->width || spec->other || spec->plus ||
        spec->precision >= 0)
        zfj_stop(m, "the format %%%c of this number is not supported", spec->type);
    snprintf(text, sizeof text,
             spec->type == 'x'   ? "%llx"
             : spec->type == 'X' ? "%llX"
                                 : "%llo",
             (long long)zfj_integer(v));
    zfj_put_literal(m, out, text);
}

static void zfj_put_formatted(zfj_machine *m, zfj_out *out, const zfj_spec *spec, zfj_value v)
{
    zfj_out text = {.at = NULL};
    size_t count;
    if (strchr("diueEfFgG", spec->type)) {
        zfj_put_number(m, out, spec, v);
        return;
    }
    if (strchr("xXo", spec->type)) {
        zfj_put_hex(m, out, spec, v);
        return;
    }
    if (spec->type != 's' && spec->type != 'r')
        zfj_stop(m, "the format %%%c is not supported", spec->type);
    zfj_put_value(m, &text, v, spec->type == 'r');
    if (spec->precision >= 0) zfj_stop(m, "the format %%.%c is not supported", spec->type);
    count = zfj_characters(m, zfj_taken(&text));
    if (!spec->left && (size_t)spec->width > count) zfj_fill(m, out, (size_t)spec->width - count);
    zfj_put_string(m, out, zfj_taken(&text));
    if (spec->left && (size_t)spec->width > count) zfj_fill(m, out, (size_t)spec->width - count);
}

/* A %(name) at s[at..]: its value in the dict, and the place after it. */
static size_t zfj_read_key(zfj_machine *m, zfj_string s, size_t at, zfj_value args, zfj_value *v)
{
    const zfj_value *found = NULL;
    size_t end = zfj_find(m, s, zfj_string_of(")"), at);
    if (end == SIZE_MAX) zfj_stop(m, "a format ends within %%(");
    if (args.kind != ZFJ_DICT) zfj_stop_kind(m, args, "a format with names, which takes a dict");
    found = zfj_dict_get(m, args.as.dict, zfj_part(s, at, end));
    if (!found)
        zfj_stop(m, "a format has the name %.*s, which is not given", (int)(end - at), s.at + at);
    *v = *found;
    return end + 1;
}

/* s % args. */
static zfj_string zfj_format(zfj_machine *m, zfj_string s, zfj_value args)
{
    zfj_out out = {.at = NULL};
    const bool many = args.kind == ZFJ_TUPLE;
    const size_t given = many ? args.as.list->count : 1;
    size_t used = 0;
    for (size_t at = 0, next; at < s.bytes;) {
        zfj_spec spec;
        zfj_value v = zfj_none;
        bool named = false;
        next = zfj_find(m, s, zfj_string_of("%"), at);
        zfj_put_string(m, &out, zfj_part(s, at, next == SIZE_MAX ? s.bytes : next));
        if (next == SIZE_MAX) break;
        at = next + 1;
        if (at < s.bytes && s.at[at] == '(')
            at = zfj_read_key(m, s, at + 1, args, &v), named = true;
        at = zfj_read_spec(m, s, at, &spec);
        if (spec.type == '%') {
            zfj_put_literal(m, &out, "%");
            continue;
        }
        if (named) used = given;
        else if (used >= given) zfj_stop(m, "a format takes more values than it is given");
        else v = many ? args.as.list->at[used] : args, used++;
        zfj_put_formatted(m, &out, &spec, v);
    }
    if (used < given && args.kind != ZFJ_DICT)
        zfj_stop(m, "a format takes fewer values than it is given");
    return zfj_taken(&out);
}
