/* JSON: a strict reader into a tree, and a writer.
 *
 * A document is one copy of the text and one array of nodes in the order of the text. Strings are
 * decoded in place: decoding never lengthens them, and the closing quote is replaced by a
 * terminator. A key is a node before its value. A hash table over (object, key) finds members and,
 * while it is filled, duplicates:
 *
 *     {"a": [1, 2], "b": {"c": null}}
 *
 *     0 document   1 object   2 "a" 3 array 4 1 5 2   6 "b" 7 object 8 "c" 9 null
 *                  count 2          end 6                   end 10
 */
struct zf_json {
    uint8_t type;   /* zf_json_type; ZF_JSON_MISSING: the document */
    bool member;    /* the node before it is its key */
    bool last;      /* it is the last in its array or object */
    bool exact;     /* a number that is an integer of 64 bits: as.integer */
    uint32_t index; /* of this node */
    uint32_t line, column;
    uint32_t start; /* string, number: its place in the text; array, object: for its reader */
    uint32_t count; /* bytes of a string or number, elements, members */
    union {
        int64_t integer;
        double number;
        uint32_t end;    /* array, object: the first node after it */
        uint32_t object; /* key: the node of its object */
        struct zfi_json_document *document;
    } as;
};

typedef struct zfi_json_document {
    zfi_memory memory;
    char *text; /* terminated; the name for messages follows it */
    size_t text_size;
    const char *name;
    zf_json *nodes;
    uint32_t *table; /* open addressing: a key's node, 0 where free */
    size_t slots;    /* a power of two */
    uint64_t seed;
} zfi_json_document;

enum { ZFI_JSON_DEPTH = 128, ZFI_QUOTE = 80, ZFI_JSON_FILE_LIMIT = 64 << 20 };

/* ------------------------------------------------------------------------------------ text */

static int zfi_utf8_encode(unsigned char out[4], uint32_t code)
{
    int bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0x00, 0xc0, 0xe0, 0xf0};
    for (int i = bytes - 1; i > 0; i--, code >>= 6) out[i] = (unsigned char)(0x80 | (code & 0x3f));
    out[0] = (unsigned char)(lead[bytes] | code);
    return bytes;
}

/* The escape that JSON requires for an ASCII character; "" if it needs none. */
static const char *zfi_json_escape(char room[8], unsigned char c)
{
    static const char names[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (int i = 0; i < (int)sizeof names - 1; i += 2)
        if (c == (unsigned char)names[i]) {
            snprintf(room, 8, "\\%c", names[i + 1]);
            return room;
        }
    if (c >= 0x20) return "";
    snprintf(room, 8, "\\u%04x", c);
    return room;
}

/* Writes "text" in quotes, at most about 40 bytes, for a message into out[ZFI_QUOTE]. Bytes that
 * are not UTF-8 become '?'. */
static const char *zfi_quote(char out[ZFI_QUOTE], const char *text, size_t bytes)
{
    char room[8];
    int at = 0;
    out[at++] = '"';
    for (size_t i = 0; i < bytes;) {
        int length = zfi_utf8_bytes((const unsigned char *)text + i, bytes - i);
        const char *escape = length == 1 ? zfi_json_escape(room, (unsigned char)text[i]) : "";
        if (at > 40) {
            at += snprintf(out + at, (size_t)(ZFI_QUOTE - at), "...");
            break;
        }
        if (*escape) at += snprintf(out + at, (size_t)(ZFI_QUOTE - at), "%s", escape);
        else if (!length) out[at++] = '?';
        else memcpy(out + at, text + i, (size_t)length), at += length;
        i += length ? (size_t)length : 1;
    }
    out[at++] = '"';
    out[at] = '\0';
    return out;
}

/* Writes the shortest decimal that reads back as `x` (finite) to out[32], with a point or an
 * exponent, so that readers take it for a double. Independent of the locale: only digits and the
 * exponent come from printf. Returns its length. */
static int zfi_json_double(char out[32], double x)
{
    char text[40], digits[20];
    const char *from = text;
    int count = 0, exponent, at = 0;
    for (int digit = 1; digit <= 17; digit++) {
        snprintf(text, sizeof text, "%.*e", digit - 1, x);
        if (strtod(text, NULL) == x) break;
    }
    for (; *from != 'e'; from++)
        if (*from >= '0' && *from <= '9') digits[count++] = *from;
    exponent = (int)strtol(from + 1, NULL, 10);
    if (text[0] == '-') out[at++] = '-';
    if (exponent < -5 || exponent > 16) { /* d.ddde-7 */
        out[at++] = digits[0];
        if (count > 1) out[at++] = '.';
        for (int i = 1; i < count; i++) out[at++] = digits[i];
        return at + snprintf(out + at, (size_t)(32 - at), "e%d", exponent);
    }
    if (exponent < 0) {
        out[at++] = '0', out[at++] = '.';
        for (int i = -1; i > exponent; i--) out[at++] = '0';
    }
    for (int i = 0; i < count || i <= exponent + 1; i++) {
        if (i && i == exponent + 1) out[at++] = '.';
        out[at++] = i < count ? digits[i] : '0';
    }
    out[at] = '\0';
    return at;
}

/* --------------------------------------------------------------------------------- parsing */

typedef struct zfi_json_parser {
    zfi_json_document *document;
    unsigned char *at, *end;
    const unsigned char *line_start;
    uint32_t line, joined; /* joined: bytes of this line that begin no character */
    bool relaxed; /* comments, keys without quotes, commas missing at line ends or at the end */
    zf_error *error;
} zfi_json_parser;

static uint32_t zfi_json_column(const zfi_json_parser *p)
{
    return (uint32_t)(p->at - p->line_start) - p->joined + 1;
}

/* Records an error at a place of the text; always false. */
ZFI_FAILS(4, 5)
static bool zfi_json_refuse(zfi_json_parser *p, uint32_t line, uint32_t column, const char *format,
                            ...)
{
    char text[400];
    const char *name = p->document->name;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    zfi_fail(p->error, ZF_ERR_FORMAT, "%s%s%u:%u: %s", name, *name ? ":" : "", line, column, text);
    return false;
}

#define ZFI_JSON_REFUSE(p, ...) zfi_json_refuse((p), (p)->line, zfi_json_column(p), __VA_ARGS__)

static bool zfi_json_word(int c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* The text at the current place, for a message: 'x', 'NaN', the end of the text, byte 0xff. */
static const char *zfi_json_found(const zfi_json_parser *p, char out[ZFI_QUOTE])
{
    int length = 0;
    while (length < 20 && p->at + length < p->end && zfi_json_word(p->at[length])) length++;
    if (p->at == p->end) return "the end of the text";
    if (!length) length = zfi_utf8_bytes(p->at, (size_t)(p->end - p->at));
    if (length && *p->at >= 0x20) snprintf(out, ZFI_QUOTE, "'%.*s'", length, (const char *)p->at);
    else snprintf(out, ZFI_QUOTE, "byte 0x%02x", *p->at);
    return out;
}

/* Skips a comment: #, // and between slashes with *. False: there is none, or it does not end. */
static bool zfi_json_comment(zfi_json_parser *p)
{
    const bool slash = p->at + 1 < p->end && p->at[0] == '/';
    const unsigned char *end = p->at;
    if (!p->relaxed || (*p->at != '#' && !(slash && (p->at[1] == '/' || p->at[1] == '*'))))
        return false;
    if (*p->at == '#' || p->at[1] == '/') {
        while (p->at < p->end && *p->at != '\n') p->at++;
        return true;
    }
    for (end += 2; end + 1 < p->end && !(end[0] == '*' && end[1] == '/');) end++;
    if (end + 1 >= p->end) return false;
    for (; p->at < end + 2; p->at++)
        if (*p->at == '\n') p->line++, p->line_start = p->at + 1, p->joined = 0;
    return true;
}

static void zfi_json_blank(zfi_json_parser *p)
{
    for (; p->at < p->end; p->at++) {
        if (*p->at == '\n') {
            p->line++;
            p->line_start = p->at + 1;
            p->joined = 0;
        } else if (*p->at != ' ' && *p->at != '\t' && *p->at != '\r') {
            return;
        }
    }
}

static void zfi_json_space(zfi_json_parser *p)
{
    do zfi_json_blank(p);
    while (p->at < p->end && zfi_json_comment(p));
}

/* Four hexadecimal digits at s, or -1. */
static int32_t zfi_json_hex(const unsigned char *s, const unsigned char *end)
{
    int32_t code = 0;
    if (end - s < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int c = s[i] | 32; /* digits have this bit set, letters become lower case */
        if (c >= '0' && c <= '9' && s[i] == c) code = code * 16 + c - '0';
        else if (c >= 'a' && c <= 'f') code = code * 16 + c - 'a' + 10;
        else return -1;
    }
    return code;
}

/* Decodes the escape at the current place (a backslash) to *out, and moves past both. */
static bool zfi_json_unescape(zfi_json_parser *p, unsigned char **out)
{
    static const char names[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    const unsigned char *s = p->at + 1;
    const char *name;
    char found[ZFI_QUOTE];
    int32_t code, low;
    if (s < p->end && *s == 'u') {
        code = zfi_json_hex(s + 1, p->end);
        if (code < 0) return ZFI_JSON_REFUSE(p, "\\u needs four hexadecimal digits");
        p->at += 6;
        if (code >= 0xd800 && code < 0xdc00 && p->end - p->at >= 6 && p->at[0] == '\\' &&
            p->at[1] == 'u' && (low = zfi_json_hex(p->at + 2, p->end)) >= 0xdc00 && low < 0xe000) {
            p->at += 6;
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        } else if (code >= 0xd800 && code < 0xe000) {
            p->at -= 6;
            return ZFI_JSON_REFUSE(
                p, "\\u%04x is half a character: surrogates come in pairs, high then low",
                (unsigned)code);
        }
        *out += zfi_utf8_encode(*out, (uint32_t)code);
        return true;
    }
    for (int i = 0; s < p->end && i < (int)sizeof names - 1; i += 2)
        if (*s == (unsigned char)names[i]) {
            *(*out)++ = (unsigned char)names[i + 1];
            p->at += 2;
            return true;
        }
    p->at++;
    name = zfi_json_found(p, found);
    p->at--;
    return ZFI_JSON_REFUSE(p, "JSON has no escape of a backslash and %s", name);
}

/* Decodes a string in place, from its opening quote on. */
static bool zfi_json_text_of(zfi_json_parser *p, uint32_t *start, uint32_t *count)
{
    uint32_t column = zfi_json_column(p);
    unsigned char *out = ++p->at, *first = out;
    for (;;) {
        unsigned char *at = p->at;
        int bytes;
        /* The common case: ASCII without escapes. The terminator of the text ends the loop too. */
        while (*at >= 0x20 && *at < 0x80 && *at != '"' && *at != '\\') *out++ = *at++;
        p->at = at;
        if (p->at == p->end)
            return zfi_json_refuse(p, p->line, column, "a string that nothing closes");
        if (*p->at == '"') break;
        if (*p->at == '\\') {
            if (!zfi_json_unescape(p, &out)) return false;
            continue;
        }
        if (*p->at < 0x20)
            return ZFI_JSON_REFUSE(p, "a control character in a string: write it as \\u%04x",
                                   *p->at);
        bytes = zfi_utf8_bytes(p->at, (size_t)(p->end - p->at));
        if (!bytes) return ZFI_JSON_REFUSE(p, "byte 0x%02x is not UTF-8", *p->at);
        p->joined += (uint32_t)bytes - 1;
        for (; bytes; bytes--) *out++ = *p->at++;
    }
    p->at++;
    *out = '\0';
    *start = (uint32_t)(first - (unsigned char *)p->document->text);
    *count = (uint32_t)(out - first);
    return true;
}

enum { ZFI_DIGITS = 800 /* more than the 767 that correct rounding of any double needs */ };

/* The value of a number in valid syntax, from its digits and decimal exponent; exact if it is an
 * integer of 64 bits. False if it is too large for a double. */
static bool zfi_json_value_of(const unsigned char *s, const unsigned char *end, zf_json *node)
{
    char digits[ZFI_DIGITS + 64];
    int count = 1, sign = *s == '-';
    int64_t exponent = 0, written = 0;
    bool fraction = false, more = false;
    digits[0] = '-'; /* the sign, skipped for a positive number */
    for (s += sign; s < end && (*s | 32) != 'e'; s++) {
        if (*s == '.') {
            fraction = true;
            continue;
        }
        exponent -= fraction;
        if (count == 1 && *s == '0') continue;
        if (count <= ZFI_DIGITS) {
            digits[count++] = (char)*s;
        } else {
            exponent++;
            more |= *s != '0';
        }
    }
    if (s < end) {
        int minus = *++s == '-';
        for (s += *s == '-' || *s == '+'; s < end; s++)
            if (written < (int64_t)1 << 40) written = written * 10 + (*s - '0');
        exponent += minus ? -written : written;
    }
    if (count == 1) exponent = 0;
    if (more) digits[count++] = '1', exponent--; /* digits that were cut off only affect rounding */
    while (count > 1 && digits[count - 1] == '0') count--, exponent++;
    if (exponent >= 0 && count - 1 + exponent <= 19) {
        uint64_t value = 0, most = (uint64_t)INT64_MAX + (uint64_t)sign;
        for (int i = 1; i < count + (int)exponent; i++)
            value = value * 10 + (uint64_t)(i < count ? digits[i] - '0' : 0);
        if (value <= most) {
            node->exact = true;
            /* -2^63 has no positive counterpart */
            node->as.integer = sign && value ? -(int64_t)(value - 1) - 1 : (int64_t)value;
            return true;
        }
    }
    /* Without a decimal point, whose character depends on the locale. */
    exponent = exponent < -99999 ? -99999 : exponent > 99999 ? 99999 : exponent;
    snprintf(digits + count, sizeof digits - (size_t)count, "e%d", (int)exponent);
    node->as.number = strtod(digits + !sign, NULL);
    return isfinite(node->as.number);
}

static bool zfi_json_number(zfi_json_parser *p, zf_json *node)
{
    const unsigned char *start = p->at, *s = start, *end = p->end;
    const char *missing = NULL;
    s += *s == '-';
    if (s == end || *s < '0' || *s > '9') missing = "a digit must follow '-'";
    else if (*s == '0' && s + 1 < end && s[1] >= '0' && s[1] <= '9')
        missing = "no number begins with 0 and a digit";
    while (s < end && *s >= '0' && *s <= '9') s++;
    if (!missing && s < end && *s == '.') {
        if (++s == end || *s < '0' || *s > '9') missing = "a digit must follow '.'";
        while (s < end && *s >= '0' && *s <= '9') s++;
    }
    if (!missing && s < end && (*s | 32) == 'e') {
        s++;
        s += s < end && (*s == '+' || *s == '-');
        if (s == end || *s < '0' || *s > '9') missing = "a digit must follow the exponent's 'e'";
        while (s < end && *s >= '0' && *s <= '9') s++;
    }
    if (missing) return ZFI_JSON_REFUSE(p, "%s", missing);
    if (!zfi_json_value_of(start, s, node))
        return ZFI_JSON_REFUSE(p, "%.*s%s is too large for a double",
                               s - start > 40 ? 40 : (int)(s - start), (const char *)start,
                               s - start > 40 ? "..." : "");
    node->start = (uint32_t)(start - (unsigned char *)p->document->text);
    node->count = (uint32_t)(s - start);
    p->at += s - start;
    return true;
}

static bool zfi_json_push(zfi_json_parser *p, zf_json node)
{
    zfi_json_document *document = p->document;
    node.index = (uint32_t)stbds_arrlenu(document->nodes);
    return zfi_push(&document->memory, document->nodes, node) || (zfi_nomem(p->error), false);
}

/* A key without quotes: letters, digits, '_', '-' and '.'. The ':' after it is needed. */
static bool zfi_json_bare_key(zfi_json_parser *p, zf_json *node)
{
    unsigned char *at = p->at;
    while (at < p->end && (zfi_json_word(*at) || *at == '-' || *at == '.')) at++;
    if (!p->relaxed || at == p->at || at == p->end || !strchr(": \t", *at)) return false;
    node->start = (uint32_t)(p->at - (unsigned char *)p->document->text);
    node->count = (uint32_t)(at - p->at);
    p->at = at;
    return true;
}

static bool zfi_json_key_of(zfi_json_parser *p, uint32_t object, bool first)
{
    char text[ZFI_QUOTE];
    zf_json node = {.type = ZF_JSON_STRING, .as.object = object};
    zfi_json_space(p);
    if (p->at < p->end && *p->at == '}' && !first)
        return ZFI_JSON_REFUSE(p,
                               "expected a key after ',', found '}': no trailing commas in JSON");
    node.line = p->line;
    node.column = zfi_json_column(p);
    const bool bare = p->at < p->end && zfi_json_bare_key(p, &node);
    if (!bare && (p->at == p->end || *p->at != '"'))
        return ZFI_JSON_REFUSE(p, "expected a key in double quotes%s, found %s",
                               first ? " or '}'" : "", zfi_json_found(p, text));
    if (!bare && !zfi_json_text_of(p, &node.start, &node.count)) return false;
    if (!zfi_json_push(p, node)) return false;
    zfi_json_space(p);
    if (p->at == p->end || *p->at != ':') {
        char key[ZFI_QUOTE];
        return ZFI_JSON_REFUSE(p, "expected ':' after the key %s, found %s",
                               zfi_quote(key, p->document->text + node.start, node.count),
                               zfi_json_found(p, text));
    }
    p->at++;
    if (bare) p->document->text[node.start + node.count] = '\0'; /* the ':' or a blank before it */
    return true;
}

/* A value, or the beginning of an array or object. */
static bool zfi_json_value(zfi_json_parser *p, bool member, bool first)
{
    static const struct {
        const char *word;
        zf_json_type type;
        int value;
    } words[] = {{"null", ZF_JSON_NULL, 0}, {"true", ZF_JSON_BOOL, 1}, {"false", ZF_JSON_BOOL, 0}};
    zf_json node = {.member = member};
    char found[ZFI_QUOTE];
    int c;
    zfi_json_space(p);
    node.line = p->line;
    node.column = zfi_json_column(p);
    c = p->at < p->end ? *p->at : 0;
    if (c == '{' || c == '[') {
        node.type = c == '{' ? ZF_JSON_OBJECT : ZF_JSON_ARRAY;
        p->at++;
    } else if (c == '"') {
        node.type = ZF_JSON_STRING;
        if (!zfi_json_text_of(p, &node.start, &node.count)) return false;
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        node.type = ZF_JSON_NUMBER;
        if (!zfi_json_number(p, &node)) return false;
    } else {
        for (int i = 0; i < ZFI_COUNT(words); i++) {
            size_t length = strlen(words[i].word);
            if ((size_t)(p->end - p->at) < length || memcmp(p->at, words[i].word, length)) continue;
            if (p->at + length < p->end && zfi_json_word(p->at[length])) continue;
            node.type = (uint8_t)words[i].type;
            node.as.integer = words[i].value;
            p->at += length;
            break;
        }
        if (!node.type)
            return ZFI_JSON_REFUSE(p, "expected a value%s, found %s%s", first ? " or ']'" : "",
                                   zfi_json_found(p, found),
                                   p->relaxed && zfi_json_word(c) ? ": a text is in double quotes"
                                   : c == '/' && !p->relaxed      ? ": no comments in JSON"
                                                                  : "");
    }
    return zfi_json_push(p, node);
}

/* Skips the comma that only the end of the array or object follows, where that is allowed. */
static bool zfi_json_last_comma(zfi_json_parser *p, bool object)
{
    const zfi_json_parser before = *p;
    if (!p->relaxed) return false;
    p->at++;
    zfi_json_space(p);
    if (p->at < p->end && *p->at == (object ? '}' : ']')) return true;
    *p = before;
    return false;
}

/* Makes the nodes of the whole text. Open arrays and objects are on a stack, so there is no
 * recursion. */
static bool zfi_json_values(zfi_json_parser *p)
{
    struct {
        uint32_t index, child; /* its node, and that of its latest value */
    } open[ZFI_JSON_DEPTH];
    char found[ZFI_QUOTE];
    int depth = 0;
    bool member = false, first = false;
    for (;;) { /* a value comes next, or the end of an empty array */
        zf_json *nodes, *value;
        if (!zfi_json_value(p, member, first)) return false;
        nodes = p->document->nodes;
        value = &nodes[stbds_arrlenu(nodes) - 1];
        if (depth) open[depth - 1].child = value->index;
        if (value->type >= ZF_JSON_ARRAY) {
            if (depth == ZFI_JSON_DEPTH)
                return zfi_json_refuse(p, value->line, value->column,
                                       "more than %d levels of nesting", ZFI_JSON_DEPTH);
            open[depth].index = value->index;
            open[depth++].child = 0;
            member = value->type == ZF_JSON_OBJECT;
            first = !member;
            zfi_json_space(p);
            if (p->at == p->end || *p->at != (member ? '}' : ']')) {
                if (member && !zfi_json_key_of(p, value->index, true)) return false;
                continue;
            }
        }
        for (;;) { /* after a value, or before the end of an empty array or object */
            zf_json *parent;
            bool object;
            const uint32_t line = p->line;
            zfi_json_space(p);
            if (!depth) return true;
            parent = &nodes[open[depth - 1].index];
            object = parent->type == ZF_JSON_OBJECT;
            parent->count += open[depth - 1].child != 0;
            if (p->at < p->end && *p->at == ',' && !zfi_json_last_comma(p, object)) break;
            if (p->relaxed && line != p->line && p->at < p->end && *p->at != '}' && *p->at != ']') {
                p->at--; /* the line end is the comma */
                break;
            }
            if (p->at == p->end || *p->at != (object ? '}' : ']'))
                return ZFI_JSON_REFUSE(
                    p, "expected ',' or '%c' in the %s that began on line %u, found %s",
                    object ? '}' : ']', object ? "object" : "array", parent->line,
                    zfi_json_found(p, found));
            p->at++;
            parent->as.end = (uint32_t)stbds_arrlenu(nodes);
            nodes[open[depth - 1].child].last = true;
            depth--;
        }
        p->at++;
        member = nodes[open[depth - 1].index].type == ZF_JSON_OBJECT;
        first = false;
        if (member && !zfi_json_key_of(p, open[depth - 1].index, false)) return false;
        zfi_json_space(p);
        if (!member && p->at < p->end && *p->at == ']')
            return ZFI_JSON_REFUSE(
                p, "expected a value after ',', found ']': no trailing commas in JSON");
    }
}

/* --------------------------------------------------------------------------------- members */

/* Seeded, so that nobody can prepare a file whose keys collide. */
static uint64_t zfi_json_hash(uint64_t seed, uint32_t object, const char *key, size_t bytes)
{
    const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t hash = (seed ^ object) * odd ^ bytes, word;
    for (; bytes; key += 8, bytes -= bytes < 8 ? bytes : 8) {
        word = 0;
        memcpy(&word, key, bytes < 8 ? bytes : 8);
        hash = (hash ^ hash >> 29 ^ word) * odd;
    }
    hash = (hash ^ hash >> 32) * odd;
    return hash ^ hash >> 29;
}

/* The slot of a key, or the free slot where it belongs. */
static uint32_t *zfi_json_slot(const zfi_json_document *document, uint32_t object, const char *key,
                               size_t bytes)
{
    size_t slot = (size_t)zfi_json_hash(document->seed, object, key, bytes);
    for (;; slot++) {
        uint32_t *at = &document->table[slot & (document->slots - 1)];
        const zf_json *node = &document->nodes[*at];
        if (!*at || (node->as.object == object && node->count == bytes &&
                     !memcmp(document->text + node->start, key, bytes)))
            return at;
    }
}

/* Fills the table; a duplicate key is an error. */
static bool zfi_json_index(zfi_json_parser *p)
{
    zfi_json_document *document = p->document;
    size_t nodes = stbds_arrlenu(document->nodes), members = 0;
    for (size_t i = 0; i < nodes; i++) members += document->nodes[i].member;
    for (document->slots = 2; document->slots < members * 2;) document->slots *= 2;
    document->seed = (uint64_t)(uintptr_t)document ^ (uint64_t)(uintptr_t)&document << 32;
    document->table = zfi_calloc(&document->memory, document->slots, sizeof *document->table);
    if (!document->table) return zfi_nomem(p->error), false;
    for (size_t i = 1; i < nodes; i++) {
        const zf_json *key = &document->nodes[i] - 1;
        const char *text = document->text + key->start;
        uint32_t *slot;
        if (!document->nodes[i].member) continue;
        slot = zfi_json_slot(document, key->as.object, text, key->count);
        if (*slot) {
            char quoted[ZFI_QUOTE];
            return zfi_json_refuse(
                p, key->line, key->column, "the key %s is already there, on line %u",
                zfi_quote(quoted, text, key->count), document->nodes[*slot].line);
        }
        *slot = key->index;
    }
    return true;
}

static void zfi_json_document_free(zfi_json_document *document)
{
    zfi_memory memory = document->memory;
    zfi_free(&memory, document->table, document->slots * sizeof *document->table);
    zfi_array_free(&memory, document->nodes);
    zfi_free(&memory, document->text, document->text_size);
    zfi_free(&memory, document, sizeof *document);
}

/* As zf_json_parse, with a name for messages ("": none), strictly or as Hjson (relaxed). */
static zf_json *zfi_json_parse_as(const char *text, size_t bytes, const char *name, bool relaxed,
                                  const zf_allocator *allocator, zf_error *error)
{
    zfi_memory memory = zfi_memory_of(allocator);
    zfi_json_document *document;
    zfi_json_parser p = {.line = 1, .relaxed = relaxed, .error = error};
    size_t name_size = strlen(name) + 1;
    char found[ZFI_QUOTE];
    bool good;
    if (bytes > INT32_MAX - 1) {
        zfi_fail(error, ZF_ERR_LIMIT, "%s%sJSON of %zu bytes, at most %d are read", name,
                 *name ? ": " : "", bytes, INT32_MAX - 1);
        return NULL;
    }
    document = zfi_calloc(&memory, 1, sizeof *document);
    if (!document) return zfi_nomem(error), NULL;
    document->memory = memory;
    document->slots = 0;
    document->text_size = bytes + 1 + name_size;
    document->text = zfi_realloc(&document->memory, NULL, 0, document->text_size);
    if (!document->text) {
        zfi_json_document_free(document);
        return zfi_nomem(error), NULL;
    }
    if (bytes) memcpy(document->text, text, bytes);
    document->text[bytes] = '\0';
    document->name = memcpy(document->text + bytes + 1, name, name_size);
    p.document = document;
    p.line_start = p.at = (unsigned char *)document->text;
    p.end = p.at + bytes;
    good = zfi_json_push(&p, (zf_json){.as.document = document});
    if (good && bytes >= 3 && !memcmp(p.at, "\xef\xbb\xbf", 3))
        good = ZFI_JSON_REFUSE(&p, "a byte order mark: save the text as UTF-8 without one");
    good = good && zfi_json_values(&p);
    if (good && p.at < p.end)
        good = ZFI_JSON_REFUSE(&p, "expected the end of the text, found %s",
                               zfi_json_found(&p, found));
    if (!good || !zfi_json_index(&p)) {
        zfi_json_document_free(document);
        return NULL;
    }
    document->nodes[1].last = true;
    return &document->nodes[1];
}

static zf_json *zfi_json_parse(const char *text, size_t bytes, const char *name,
                               const zf_allocator *allocator, zf_error *error)
{
    return zfi_json_parse_as(text, bytes, name, false, allocator, error);
}

ZF_API zf_json *zf_json_parse(const char *text, size_t bytes, const zf_allocator *allocator,
                              zf_error *error)
{
    return zfi_json_parse(text ? text : "", text ? bytes : 0, "", allocator, error);
}

static zf_json *zfi_json_load(const char *path, bool relaxed, const zf_allocator *allocator,
                              zf_error *error)
{
    zfi_memory memory = zfi_memory_of(allocator);
    zf_json *top;
    size_t bytes;
    char *text = zfi_file_load(&memory, path, ZFI_JSON_FILE_LIMIT, &bytes, error);
    if (!text) return NULL;
    top = zfi_json_parse_as(text, bytes, zfi_path_tail(path), relaxed, allocator, error);
    zfi_free(&memory, text, bytes + 1);
    return top;
}

ZF_API zf_json *zf_json_read(const char *path, const zf_allocator *allocator, zf_error *error)
{
    return zfi_json_load(path, false, allocator, error);
}

/* ------------------------------------------------------------------------------ navigation */

static zfi_json_document *zfi_json_document_of(const zf_json *value)
{
    return value[-(ptrdiff_t)value->index].as.document;
}

ZF_API void zf_json_free(zf_json *top)
{
    if (top) zfi_json_document_free(zfi_json_document_of(top));
}

ZF_API zf_json_type zf_json_type_of(const zf_json *value)
{
    return value ? (zf_json_type)value->type : ZF_JSON_MISSING;
}

ZF_API int64_t zf_json_length(const zf_json *value)
{
    return zf_json_type_of(value) >= ZF_JSON_STRING ? value->count : 0;
}

ZF_API void zf_json_where(const zf_json *value, int64_t *line, int64_t *column)
{
    if (line) *line = value ? value->line : 0;
    if (column) *column = value ? value->column : 0;
}

ZF_API const zf_json *zf_json_first(const zf_json *container)
{
    if (zf_json_type_of(container) < ZF_JSON_ARRAY || !container->count) return NULL;
    return container + (container->type == ZF_JSON_OBJECT ? 2 : 1);
}

/* The first node after a value and all that it contains. */
static uint32_t zfi_json_end(const zf_json *value)
{
    return value->type >= ZF_JSON_ARRAY ? value->as.end : value->index + 1;
}

ZF_API const zf_json *zf_json_next(const zf_json *value)
{
    if (!value || value->last) return NULL;
    return value + (zfi_json_end(value) - value->index) + value->member;
}

ZF_API const zf_json *zf_json_element(const zf_json *array, int64_t index)
{
    const zf_json *value;
    if (zf_json_type_of(array) != ZF_JSON_ARRAY || index < 0 || index >= array->count) return NULL;
    if (array->as.end == array->index + 1 + array->count)
        return array + 1 + index; /* each element is one node */
    for (value = array + 1; index; index--) value = zf_json_next(value);
    return value;
}

ZF_API const zf_json *zf_json_member(const zf_json *object, const char *key)
{
    const zfi_json_document *document;
    uint32_t found;
    if (zf_json_type_of(object) != ZF_JSON_OBJECT || !key) return NULL;
    document = zfi_json_document_of(object);
    found = *zfi_json_slot(document, object->index, key, strlen(key));
    return found ? &document->nodes[found + 1] : NULL;
}

ZF_API const char *zf_json_string(const zf_json *value, size_t *bytes)
{
    if (zf_json_type_of(value) != ZF_JSON_STRING) return NULL;
    if (bytes) *bytes = value->count;
    return zfi_json_document_of(value)->text + value->start;
}

ZF_API const char *zf_json_number(const zf_json *value, size_t *bytes)
{
    if (zf_json_type_of(value) != ZF_JSON_NUMBER) return NULL;
    if (bytes) *bytes = value->count;
    return zfi_json_document_of(value)->text + value->start;
}

ZF_API const char *zf_json_key(const zf_json *value, size_t *bytes)
{
    return value && value->member ? zf_json_string(value - 1, bytes) : NULL;
}

/* -------------------------------------------------------------------------------- messages */

enum { ZFI_JSON_PATH = 200 };

/* Writes optimizer.params.betas[1] to out; of a long path only the end. */
static const char *zfi_json_path(const zf_json *value, char out[ZFI_JSON_PATH])
{
    const zf_json *at = &zfi_json_document_of(value)->nodes[1];
    char part[ZFI_QUOTE + 2], quoted[ZFI_QUOTE];
    size_t length = 0;
    snprintf(out, ZFI_JSON_PATH, "the top value");
    while (at != value) {
        const zf_json *child = zf_json_first(at);
        int64_t index = 0;
        size_t bytes, plain = 0;
        const char *key;
        for (; zfi_json_end(child) <= value->index; index++) child = zf_json_next(child);
        key = zf_json_key(child, &bytes);
        while (key && plain < bytes && zfi_json_word((unsigned char)key[plain])) plain++;
        if (!key) snprintf(part, sizeof part, "[%lld]", (long long)index);
        else if (plain == bytes && bytes && bytes < 60) snprintf(part, sizeof part, ".%s", key);
        else snprintf(part, sizeof part, ".%s", zfi_quote(quoted, key, bytes));
        if (length + strlen(part) >= ZFI_JSON_PATH)
            length = (size_t)snprintf(out, ZFI_JSON_PATH, "..");
        length += (size_t)snprintf(out + length, ZFI_JSON_PATH - length, "%s",
                                   part + (!length && *part == '.'));
        at = child;
    }
    return out;
}

/* The value for a message: as in the text, shortened where long; an object or array by its kind. */
static const char *zfi_json_show(const zf_json *value, char out[ZFI_QUOTE])
{
    static const char *const kinds[] = {"nothing", "null", "", "", "", "an array", "an object"};
    zf_json_type type = zf_json_type_of(value);
    const char *text =
        type == ZF_JSON_MISSING ? "" : zfi_json_document_of(value)->text + value->start;
    if (type == ZF_JSON_STRING) return zfi_quote(out, text, value->count);
    if (type == ZF_JSON_BOOL) return value->as.integer ? "true" : "false";
    if (type != ZF_JSON_NUMBER) return kinds[type];
    snprintf(out, ZFI_QUOTE, "%.*s%s", value->count > 40 ? 40 : (int)value->count, text,
             value->count > 40 ? "..." : "");
    return out;
}

static zf_status zfi_json_report(const zf_json *value, zf_error *error, const char *before,
                                 const char *format, va_list args, const char *after)
{
    char text[400], path[ZFI_JSON_PATH];
    const char *name;
    vsnprintf(text, sizeof text, format ? format : "not be so", args);
    if (!value)
        return zfi_fail(error, ZF_ERR_FORMAT, "a value that is missing %s%s%s", before, text,
                        after);
    name = zfi_json_document_of(value)->name;
    return zfi_fail(error, ZF_ERR_FORMAT, "%s%s%u:%u: %s %s%s%s", name, *name ? ":" : "",
                    value->line, value->column, zfi_json_path(value, path), before, text, after);
}

ZF_API zf_status zf_json_fail(const zf_json *value, zf_error *error, const char *format, ...)
{
    zf_status status;
    va_list args;
    va_start(args, format);
    status = zfi_json_report(value, error, "", format, args, "");
    va_end(args);
    return status;
}

ZF_API zf_status zf_json_expected(const zf_json *value, zf_error *error, const char *format, ...)
{
    char shown[ZFI_QUOTE], after[ZFI_QUOTE + 8] = "";
    zf_status status;
    va_list args;
    if (value) snprintf(after, sizeof after, ", not %s", zfi_json_show(value, shown));
    va_start(args, format);
    status = zfi_json_report(value, error, "must be ", format, args, after);
    va_end(args);
    return status;
}

ZF_API const zf_json *zf_json_require(const zf_json *object, const char *key, zf_error *error)
{
    const zf_json *value = zf_json_member(object, key);
    char quoted[ZFI_QUOTE];
    if (value || !object) return value;
    if (!key) return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_json_require: the key is NULL"), NULL;
    if (object->type != ZF_JSON_OBJECT) zf_json_expected(object, error, "an object");
    else zf_json_fail(object, error, "lacks %s", zfi_quote(quoted, key, strlen(key)));
    return NULL;
}

/* ---------------------------------------------------------------------------------- values */

ZF_API zf_status zf_json_to_bool(const zf_json *value, bool *out, zf_error *error)
{
    if (!value) return ZF_OK;
    if (value->type != ZF_JSON_BOOL) return zf_json_expected(value, error, "true or false");
    if (out) *out = value->as.integer != 0;
    return ZF_OK;
}

ZF_API zf_status zf_json_to_int(const zf_json *value, int64_t least, int64_t most, int64_t *out,
                                zf_error *error)
{
    if (!value) return ZF_OK;
    if (value->exact && value->as.integer >= least && value->as.integer <= most) {
        if (out) *out = value->as.integer;
        return ZF_OK;
    }
    if (most < INT64_MAX)
        return zf_json_expected(value, error, "an integer from %lld to %lld", (long long)least,
                                (long long)most);
    if (least == 1) return zf_json_expected(value, error, "a positive integer");
    if (least > INT64_MIN)
        return zf_json_expected(value, error, "an integer of at least %lld", (long long)least);
    return zf_json_expected(value, error, "an integer of 64 bits");
}

ZF_API zf_status zf_json_to_double(const zf_json *value, double least, double most, double *out,
                                   zf_error *error)
{
    char low[32] = "-inf", high[32] = "inf";
    if (!value) return ZF_OK;
    if (value->type == ZF_JSON_NUMBER) {
        double number = value->exact ? (double)value->as.integer : value->as.number;
        if (!number && zfi_json_document_of(value)->text[value->start] == '-') number = -0.0;
        if (number >= least && number <= most) {
            if (out) *out = number;
            return ZF_OK;
        }
    }
    if (isfinite(least)) zfi_json_double(low, least);
    if (isfinite(most)) zfi_json_double(high, most);
    if (isfinite(least) && isfinite(most))
        return zf_json_expected(value, error, "a number from %s to %s", low, high);
    if (isfinite(least)) return zf_json_expected(value, error, "a number of at least %s", low);
    if (isfinite(most)) return zf_json_expected(value, error, "a number of at most %s", high);
    return zf_json_expected(value, error, "a number");
}

ZF_API zf_status zf_json_to_string(const zf_json *value, const char **out, zf_error *error)
{
    const char *text;
    size_t bytes;
    if (!value) return ZF_OK;
    text = zf_json_string(value, &bytes);
    if (!text) return zf_json_expected(value, error, "a string");
    if (strlen(text) != bytes) return zf_json_expected(value, error, "a string without zero bytes");
    if (out) *out = text;
    return ZF_OK;
}

/* --------------------------------------------------------------------------------- writing */

struct zf_json_writer {
    zfi_memory memory;
    zf_error error;
    char *text;
    int indent, depth;
    bool keyed; /* a key has been written, its value not */
    bool done;  /* the value at the top level is complete */
    struct {
        bool object, empty, broken; /* broken: over several lines */
    } open[ZFI_JSON_DEPTH];
};

ZF_API zf_json_writer *zf_json_writer_new(int32_t indent, const zf_allocator *allocator)
{
    zfi_memory memory = zfi_memory_of(allocator);
    zf_json_writer *writer = zfi_calloc(&memory, 1, sizeof *writer);
    if (!writer) return NULL;
    writer->memory = memory;
    writer->indent = indent < 0 ? 0 : indent > 16 ? 16 : indent;
    return writer;
}

ZF_API void zf_json_writer_free(zf_json_writer *writer)
{
    zfi_memory memory;
    if (!writer) return;
    memory = writer->memory;
    zfi_array_free(&memory, writer->text);
    zfi_free(&memory, writer, sizeof *writer);
}

static void zfi_json_append(zf_json_writer *writer, const char *text, size_t bytes)
{
    if (writer->error.status || !bytes) return;
    writer->text = zfi_grow(&writer->memory, writer->text, 1, bytes);
    if (writer->memory.failed) {
        zfi_nomem(&writer->error);
        return;
    }
    memcpy(writer->text + stbds_header(writer->text)->length, text, bytes);
    stbds_header(writer->text)->length += bytes;
}

static void zfi_json_line(zf_json_writer *writer)
{
    static const char spaces[] = "                ";
    if (!writer->indent) return;
    zfi_json_append(writer, "\n", 1);
    for (int level = 0; level < writer->depth; level++)
        zfi_json_append(writer, spaces, (size_t)writer->indent);
}

static void zfi_json_quoted(zf_json_writer *writer, const char *string)
{
    const unsigned char *s = (const unsigned char *)string, *plain = s;
    size_t left = strlen(string);
    char room[8], quoted[ZFI_QUOTE];
    zfi_json_append(writer, "\"", 1);
    while (left) {
        int bytes = zfi_utf8_bytes(s, left);
        const char *escape = bytes == 1 ? zfi_json_escape(room, *s) : "";
        if (!bytes) {
            zfi_fail(&writer->error, ZF_ERR_ARGUMENT,
                     "JSON text must be UTF-8, but byte %zu of %s is 0x%02x",
                     (size_t)(s - (const unsigned char *)string),
                     zfi_quote(quoted, string, strlen(string)), *s);
            return;
        }
        s += bytes;
        left -= (size_t)bytes;
        if (!*escape) continue;
        zfi_json_append(writer, (const char *)plain, (size_t)(s - plain) - 1);
        zfi_json_append(writer, escape, strlen(escape));
        plain = s;
    }
    zfi_json_append(writer, (const char *)plain, (size_t)(s - plain));
    zfi_json_append(writer, "\"", 1);
}

/* Writes what comes between the value before and this key or element. */
static void zfi_json_separate(zf_json_writer *writer, bool on_new_line)
{
    bool empty = writer->open[writer->depth - 1].empty;
    writer->open[writer->depth - 1].empty = false;
    writer->open[writer->depth - 1].broken |= on_new_line;
    if (!empty) zfi_json_append(writer, ", ", !on_new_line && writer->indent ? 2 : 1);
    if (on_new_line) zfi_json_line(writer);
}

/* Begins a value; false if no value is allowed here. */
static bool zfi_json_begin(zf_json_writer *writer, bool container)
{
    if (!writer || writer->error.status) return false;
    if (!writer->depth && writer->done) {
        zfi_fail(&writer->error, ZF_ERR_STAGE, "JSON: a second value at the top");
    } else if (writer->depth && writer->open[writer->depth - 1].object && !writer->keyed) {
        zfi_fail(&writer->error, ZF_ERR_STAGE,
                 "JSON: a value in an object without a key before it");
    } else {
        /* Members have one line each; elements share a line, unless they are arrays or objects. */
        if (writer->depth && !writer->keyed) zfi_json_separate(writer, container);
        writer->keyed = false;
        if (!writer->depth) writer->done = true;
    }
    return !writer->error.status;
}

static void zfi_json_open(zf_json_writer *writer, bool object)
{
    if (!zfi_json_begin(writer, true)) return;
    if (writer->depth == ZFI_JSON_DEPTH) {
        zfi_fail(&writer->error, ZF_ERR_STAGE, "JSON: more than %d levels of nesting",
                 ZFI_JSON_DEPTH);
        return;
    }
    zfi_json_append(writer, object ? "{" : "[", 1);
    writer->open[writer->depth].object = object;
    writer->open[writer->depth].empty = true;
    writer->open[writer->depth++].broken = false;
}

ZF_API void zf_json_begin_object(zf_json_writer *writer) { zfi_json_open(writer, true); }

ZF_API void zf_json_begin_array(zf_json_writer *writer) { zfi_json_open(writer, false); }

ZF_API void zf_json_end(zf_json_writer *writer)
{
    if (!writer || writer->error.status) return;
    if (!writer->depth || writer->keyed) {
        zfi_fail(&writer->error, ZF_ERR_STAGE, "JSON: %s",
                 writer->depth ? "the object ends, but its last key has no value"
                               : "an end, but nothing is open");
        return;
    }
    writer->depth--;
    if (writer->open[writer->depth].broken) zfi_json_line(writer);
    zfi_json_append(writer, writer->open[writer->depth].object ? "}" : "]", 1);
}

ZF_API void zf_json_put_key(zf_json_writer *writer, const char *key)
{
    if (!writer || writer->error.status) return;
    if (!key) {
        zfi_fail(&writer->error, ZF_ERR_ARGUMENT, "JSON: a key is NULL");
        return;
    }
    if (!writer->depth || !writer->open[writer->depth - 1].object || writer->keyed) {
        char quoted[ZFI_QUOTE];
        zfi_fail(&writer->error, ZF_ERR_STAGE, "JSON: the key %s %s",
                 zfi_quote(quoted, key, strlen(key)),
                 writer->keyed ? "follows a key that has no value yet" : "is outside an object");
        return;
    }
    zfi_json_separate(writer, true);
    zfi_json_quoted(writer, key);
    zfi_json_append(writer, ": ", writer->indent ? 2 : 1);
    writer->keyed = true;
}

ZF_API void zf_json_put_string(zf_json_writer *writer, const char *string)
{
    if (!zfi_json_begin(writer, false)) return;
    if (string) zfi_json_quoted(writer, string);
    else zfi_json_append(writer, "null", 4);
}

ZF_API void zf_json_put_int(zf_json_writer *writer, int64_t value)
{
    char text[32];
    if (zfi_json_begin(writer, false))
        zfi_json_append(writer, text,
                        (size_t)snprintf(text, sizeof text, "%lld", (long long)value));
}

ZF_API void zf_json_put_double(zf_json_writer *writer, double value)
{
    char text[32];
    if (!zfi_json_begin(writer, false)) return;
    if (isfinite(value)) zfi_json_append(writer, text, (size_t)zfi_json_double(text, value));
    else zfi_json_append(writer, "null", 4);
}

ZF_API void zf_json_put_bool(zf_json_writer *writer, bool value)
{
    if (zfi_json_begin(writer, false))
        zfi_json_append(writer, value ? "true" : "false", value ? 4 : 5);
}

ZF_API void zf_json_put_null(zf_json_writer *writer)
{
    if (zfi_json_begin(writer, false)) zfi_json_append(writer, "null", 4);
}

ZF_API const char *zf_json_text(zf_json_writer *writer, size_t *bytes, zf_error *error)
{
    if (!writer) return zfi_nomem(error), NULL;
    if (writer->depth || !writer->done) {
        if (!writer->error.status)
            return zfi_fail(error, ZF_ERR_STAGE, "JSON: %s",
                            writer->depth ? "an array or object is still open"
                                          : "nothing was written"),
                   NULL;
    } else {
        zfi_json_append(writer, "\0", 1);
    }
    if (writer->error.status)
        return zfi_fail(error, writer->error.status, "%s", writer->error.text), NULL;
    stbds_header(writer->text)->length--; /* the terminator is not counted */
    if (bytes) *bytes = stbds_arrlenu(writer->text);
    return writer->text;
}

ZF_API zf_status zf_json_save(zf_json_writer *writer, const char *path, zf_error *error)
{
    size_t bytes;
    zf_status status;
    zf_error failed = {ZF_OK, ""};
    if (!zf_json_text(writer, &bytes, &failed))
        return zfi_fail(error, failed.status, "%s", failed.text);
    writer->text[bytes] = '\n';
    status = zfi_file_save(path, writer->text, bytes + 1, error);
    writer->text[bytes] = '\0';
    return status;
}
