/* Values as text: str() and repr() of Python, and JSON as Python's json.dumps writes it; and values
 * from JSON. */

/* ------------------------------------------------------------------------------ numbers */

static void zfj_put_int(zfj_machine *m, zfj_out *out, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    zfj_put_literal(m, out, text);
}

/* The fewest digits that are read as x again, without a point; *exponent: of the first one. */
static int zfj_shortest(double x, char digits[24], int *exponent)
{
    char text[40];
    int count = 0, precision = 0;
    do snprintf(text, sizeof text, "%.*e", precision, x);
    while (strtod(text, NULL) != x && ++precision < 17);
    for (const char *p = text; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9') digits[count++] = *p;
    *exponent = atoi(strchr(text, 'e') + 1);
    while (count > 1 && digits[count - 1] == '0') count--;
    digits[count] = 0;
    return count;
}

/* As Python's repr: 0.1, 1.0, 1e+16, 1e-05. */
static void zfj_put_float(zfj_machine *m, zfj_out *out, double x)
{
    char digits[24], tail[16];
    int exponent, count;
    if (signbit(x) && !isnan(x)) zfj_put_literal(m, out, "-");
    x = fabs(x);
    if (!isfinite(x)) {
        zfj_put_literal(m, out, isnan(x) ? "nan" : "inf");
        return;
    }
    count = zfj_shortest(x, digits, &exponent);
    if (exponent < -4 || exponent >= 16) {
        zfj_put(m, out, digits, 1);
        if (count > 1) zfj_put_literal(m, out, ".");
        zfj_put_literal(m, out, digits + 1);
        snprintf(tail, sizeof tail, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        zfj_put_literal(m, out, tail);
        return;
    }
    if (exponent < 0) zfj_put(m, out, "0.000", (size_t)(1 - exponent));
    for (int i = 0; i < count || i < exponent + 2; i++) {
        if (i && i == exponent + 1) zfj_put_literal(m, out, ".");
        if (i < count || i <= exponent + 1) zfj_put(m, out, i < count ? digits + i : "0", 1);
    }
}

/* -------------------------------------------------------------------------------- str, repr */

/* What Python's repr writes as it is. Characters that Unicode has not assigned yet are among them
 * here. */
static bool zfj_is_printable(uint32_t c)
{
    static const uint32_t not [][2] = {
        {0, 0x1F},          {0x7F, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},
        {0x61C, 0x61C},     {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x890, 0x891},
        {0x8E2, 0x8E2},     {0x1680, 0x1680},   {0x180E, 0x180E},   {0x2000, 0x200F},
        {0x2028, 0x202F},   {0x205F, 0x206F},   {0x3000, 0x3000},   {0xD800, 0xF8FF},
        {0xFEFF, 0xFEFF},   {0xFFF0, 0xFFFB},   {0xFFFE, 0xFFFF},   {0x110BD, 0x110BD},
        {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
        {0xE0000, 0xE00FF}, {0xE01F0, 0x10FFFF}};
    for (size_t k = 0; k < sizeof not / sizeof *not ; k++)
        if (c >= not [k][0] && c <= not [k][1]) return false;
    return true;
}

static void zfj_put_repr_character(zfj_machine *m, zfj_out *out, uint32_t c, char quote)
{
    char text[12];
    if (c == '\\' || c == (uint32_t)quote) zfj_put_literal(m, out, "\\");
    if (c == '\n' || c == '\t' || c == '\r')
        zfj_put_literal(m, out, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r");
    else if (zfj_is_printable(c)) zfj_put_character(m, out, c);
    else {
        snprintf(text, sizeof text,
                 c < 0x100     ? "\\x%02x"
                 : c < 0x10000 ? "\\u%04x"
                               : "\\U%08x",
                 (unsigned)c);
        zfj_put_literal(m, out, text);
    }
}

static void zfj_put_repr_string(zfj_machine *m, zfj_out *out, zfj_string s)
{
    const bool has_single = s.bytes && memchr(s.at, '\'', s.bytes),
               has_double = s.bytes && memchr(s.at, '"', s.bytes);
    const char quote = has_single && !has_double ? '"' : '\'';
    uint32_t c;
    zfj_put(m, out, &quote, 1);
    for (size_t at = 0; at < s.bytes;) {
        at += zfj_next_character(s.at + at, s.at + s.bytes, &c);
        zfj_put_repr_character(m, out, c, quote);
    }
    zfj_put(m, out, &quote, 1);
}

static void zfj_put_value(zfj_machine *m, zfj_out *out, zfj_value v, bool repr);

static void zfj_put_list(zfj_machine *m, zfj_out *out, zfj_value v)
{
    const zfj_list *list = v.as.list;
    if (v.kind == ZFJ_VIEW) zfj_put_literal(m, out, list->name), zfj_put_literal(m, out, "(");
    zfj_put_literal(m, out, v.kind == ZFJ_TUPLE ? "(" : "[");
    for (size_t i = 0; i < list->count; i++) {
        if (i) zfj_put_literal(m, out, ", ");
        zfj_put_value(m, out, list->at[i], true);
    }
    if (v.kind == ZFJ_TUPLE && list->count == 1) zfj_put_literal(m, out, ",");
    zfj_put_literal(m, out, v.kind == ZFJ_TUPLE ? ")" : "]");
    if (v.kind == ZFJ_VIEW) zfj_put_literal(m, out, ")");
}

static void zfj_put_range(zfj_machine *m, zfj_out *out, const zfj_list *range)
{
    zfj_put_literal(m, out, "range(");
    zfj_put_int(m, out, range->from);
    zfj_put_literal(m, out, ", ");
    zfj_put_int(m, out, range->to);
    if (range->step != 1) zfj_put_literal(m, out, ", "), zfj_put_int(m, out, range->step);
    zfj_put_literal(m, out, ")");
}

static void zfj_put_dict(zfj_machine *m, zfj_out *out, const zfj_dict *d)
{
    zfj_put_literal(m, out, "{");
    for (size_t i = 0; i < d->count; i++) {
        if (i) zfj_put_literal(m, out, ", ");
        zfj_put_value(m, out, d->at[i].key, true);
        zfj_put_literal(m, out, ": ");
        zfj_put_value(m, out, d->at[i].value, true);
    }
    zfj_put_literal(m, out, "}");
}

static void zfj_put_value(zfj_machine *m, zfj_out *out, zfj_value v, bool repr)
{
    zfj_charge(m, 1);
    zfj_enter_level(m);
    switch (v.kind) {
    case ZFJ_UNDEFINED: zfj_put_literal(m, out, repr ? "Undefined" : ""); break;
    case ZFJ_NONE: zfj_put_literal(m, out, "None"); break;
    case ZFJ_BOOL: zfj_put_literal(m, out, v.as.truth ? "True" : "False"); break;
    case ZFJ_INT: zfj_put_int(m, out, v.as.integer); break;
    case ZFJ_FLOAT: zfj_put_float(m, out, v.as.real); break;
    case ZFJ_STRING:
        if (repr && v.safe) zfj_stop(m, "a safe string in a list as text is not supported");
        if (repr) zfj_put_repr_string(m, out, v.as.text);
        else zfj_put_string(m, out, v.as.text);
        break;
    case ZFJ_LIST:
    case ZFJ_TUPLE:
    case ZFJ_VIEW: zfj_put_list(m, out, v); break;
    case ZFJ_RANGE: zfj_put_range(m, out, v.as.list); break;
    case ZFJ_DICT: zfj_put_dict(m, out, v.as.dict); break;
    default: zfj_stop(m, "a value of the kind %s as text is not supported", zfj_kind_name(v));
    }
    zfj_leave_level(m);
}

static zfj_string zfj_str(zfj_machine *m, zfj_value v)
{
    zfj_out out = {.at = NULL};
    if (v.kind == ZFJ_STRING) return v.as.text;
    zfj_put_value(m, &out, v, false);
    return zfj_taken(&out);
}

/* ------------------------------------------------------------------------------------- JSON */

typedef struct zfj_dumps {
    zfj_out out;
    bool ascii, sorted;
    bool lines;        /* a line for each element, */
    zfj_string indent; /* with this at each level */
    zfj_string comma, colon;
} zfj_dumps;

static void zfj_dump_character(zfj_machine *m, zfj_dumps *d, uint32_t c)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    const char *found = c && c < 0x80 ? strchr(from, (int)c) : NULL;
    char text[16];
    if (found) {
        snprintf(text, sizeof text, "\\%c", to[found - from]);
    } else if (c >= 0x10000 && d->ascii) {
        c -= 0x10000;
        snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xD800 | c >> 10),
                 (unsigned)(0xDC00 | (c & 0x3FF)));
    } else if (c < 0x20 || (c >= 0x7F && d->ascii)) {
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    } else {
        zfj_put_character(m, &d->out, c);
        return;
    }
    zfj_put_literal(m, &d->out, text);
}

static void zfj_dump_string(zfj_machine *m, zfj_dumps *d, zfj_string s)
{
    uint32_t c;
    zfj_put_literal(m, &d->out, "\"");
    for (size_t at = 0; at < s.bytes;) {
        at += zfj_next_character(s.at + at, s.at + s.bytes, &c);
        zfj_dump_character(m, d, c);
    }
    zfj_put_literal(m, &d->out, "\"");
}

static void zfj_dump_line(zfj_machine *m, zfj_dumps *d, int level)
{
    if (!d->lines) return;
    zfj_put_literal(m, &d->out, "\n");
    for (int i = 0; i < level; i++) zfj_put_string(m, &d->out, d->indent);
}

static void zfj_dump_number(zfj_machine *m, zfj_out *out, zfj_value v)
{
    if (v.kind == ZFJ_INT) zfj_put_int(m, out, v.as.integer);
    else if (isnan(v.as.real)) zfj_put_literal(m, out, "NaN");
    else if (isinf(v.as.real)) zfj_put_literal(m, out, v.as.real < 0 ? "-Infinity" : "Infinity");
    else zfj_put_float(m, out, v.as.real);
}

/* What JSON has as a name: false, if the value is none. */
static bool zfj_dump_word(zfj_machine *m, zfj_out *out, zfj_value v)
{
    if (v.kind == ZFJ_NONE) zfj_put_literal(m, out, "null");
    else if (v.kind == ZFJ_BOOL) zfj_put_literal(m, out, v.as.truth ? "true" : "false");
    else if (v.kind == ZFJ_INT || v.kind == ZFJ_FLOAT) zfj_dump_number(m, out, v);
    else return false;
    return true;
}

static void zfj_dump_key(zfj_machine *m, zfj_dumps *d, zfj_value key)
{
    zfj_out text = {.at = NULL};
    if (key.kind == ZFJ_STRING) zfj_dump_string(m, d, key.as.text);
    else if (zfj_dump_word(m, &text, key)) zfj_dump_string(m, d, zfj_taken(&text));
    else zfj_stop_kind(m, key, "a key in tojson");
}

static void zfj_sort(zfj_machine *m, zfj_value *keys, zfj_value *values, size_t count,
                     bool reverse);

/* The members of a dict, sorted if they are to be. */
static const zfj_list *zfj_dump_members(zfj_machine *m, const zfj_dict *d, bool sorted,
                                        zfj_list *values)
{
    zfj_list *keys = zfj_list_new(m, ZFJ_LIST).as.list;
    for (size_t i = 0; i < d->count; i++) {
        zfj_push(m, keys, d->at[i].key);
        zfj_push(m, values, d->at[i].value);
    }
    if (sorted) zfj_sort(m, keys->at, values->at, d->count, false);
    return keys;
}

static void zfj_dump(zfj_machine *m, zfj_dumps *d, zfj_value v, int level)
{
    const bool object = v.kind == ZFJ_DICT;
    const zfj_list *keys = NULL, *values = v.as.list;
    zfj_list members = {.at = NULL};
    zfj_charge(m, 1);
    if (v.kind == ZFJ_STRING) {
        zfj_dump_string(m, d, v.as.text);
        return;
    }
    if (zfj_dump_word(m, &d->out, v)) return;
    if (!object && v.kind != ZFJ_LIST && v.kind != ZFJ_TUPLE) zfj_stop_kind(m, v, "tojson");
    zfj_enter_level(m);
    if (object) keys = zfj_dump_members(m, v.as.dict, d->sorted, &members), values = &members;
    zfj_put_literal(m, &d->out, object ? "{" : "[");
    for (size_t i = 0; i < values->count; i++) {
        if (i) zfj_put_string(m, &d->out, d->comma);
        zfj_dump_line(m, d, level + 1);
        if (object) zfj_dump_key(m, d, keys->at[i]), zfj_put_string(m, &d->out, d->colon);
        zfj_dump(m, d, values->at[i], level + 1);
    }
    if (values->count) zfj_dump_line(m, d, level);
    zfj_put_literal(m, &d->out, object ? "}" : "]");
    zfj_leave_level(m);
}

/* ------------------------------------------------------------------------------ from JSON */

/* A number is an integer if it is written as one, as Python's json.loads reads it. */
static zfj_value zfj_from_number(zfj_machine *m, const zf_json *json)
{
    size_t bytes;
    const char *text = zf_json_number(json, &bytes);
    int64_t integer = 0;
    double real = 0;
    bool whole = true;
    for (size_t i = 0; i < bytes; i++) whole = whole && !strchr(".eE", text[i]);
    if (!whole) {
        zf_json_to_double(json, -INFINITY, INFINITY, &real, NULL);
        return zfj_float(real);
    }
    if (zf_json_to_int(json, INT64_MIN, INT64_MAX, &integer, NULL))
        zfj_stop(m, "the integer %.*s has more than 64 bits", (int)(bytes < 60 ? bytes : 60), text);
    return zfj_int(integer);
}

/* The value of JSON. Its texts are not copied, and live as long as the tree. */
static zfj_value zfj_from_json(zfj_machine *m, const zf_json *json)
{
    zfj_value v = zfj_none;
    bool truth = false;
    zfj_string text;
    zfj_charge(m, 1);
    switch (zf_json_type_of(json)) {
    case ZF_JSON_BOOL: zf_json_to_bool(json, &truth, NULL); return zfj_bool(truth);
    case ZF_JSON_NUMBER: return zfj_from_number(m, json);
    case ZF_JSON_STRING: text.at = zf_json_string(json, &text.bytes); return zfj_text(text);
    case ZF_JSON_ARRAY:
        v = zfj_list_new(m, ZFJ_LIST);
        for (json = zf_json_first(json); json; json = zf_json_next(json))
            zfj_push(m, v.as.list, zfj_from_json(m, json));
        return v;
    case ZF_JSON_OBJECT:
        v = zfj_dict_new(m, ZFJ_DICT);
        for (json = zf_json_first(json); json; json = zf_json_next(json)) {
            text.at = zf_json_key(json, &text.bytes);
            zfj_dict *d = v.as.dict; /* names differ: JSON with equal ones is refused */
            d->at = zfj_arena_grow(m, d->at, d->count, &d->room, sizeof *d->at);
            d->at[d->count++] = (zfj_pair){zfj_text(text), zfj_from_json(m, json)};
        }
        return v;
    default: return v;
    }
}
