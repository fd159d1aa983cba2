/* Filters and tests: value | NAME(arguments), value is NAME(arguments). */

typedef zfj_value zfj_filter(zfj_machine *m, zfj_value v, zfj_string name,
                             const zfj_value *arg[ZFJ_PARAMETERS]);

static zfj_value zfj_apply_filter(zfj_machine *m, zfj_string name, zfj_value v,
                                  const zfj_args *args);
static bool zfj_apply_test(zfj_machine *m, zfj_string name, zfj_value v, const zfj_args *args);

/* ---------------------------------------------------------------------------------- strings */

/* A value as a string, which stays safe. */
static zfj_value zfj_soft(zfj_machine *m, zfj_value v)
{
    return v.kind == ZFJ_STRING ? v : zfj_text(zfj_str(m, v));
}

static zfj_value zfj_filter_string(zfj_machine *m, zfj_value v, zfj_string name,
                                   const zfj_value *arg[ZFJ_PARAMETERS])
{
    (void)name, (void)arg;
    return zfj_soft(m, v);
}

static zfj_value zfj_filter_safe(zfj_machine *m, zfj_value v, zfj_string name,
                                 const zfj_value *arg[ZFJ_PARAMETERS])
{
    (void)arg;
    if (name.at[0] == 's') v = zfj_soft(m, v);
    else if (v.kind != ZFJ_STRING || !v.safe) v = zfj_text(zfj_escape(m, zfj_str(m, v)));
    v.safe = true;
    return v;
}

static zfj_value zfj_filter_case(zfj_machine *m, zfj_value v, zfj_string name,
                                 const zfj_value *arg[ZFJ_PARAMETERS])
{
    zfj_string s = zfj_str(m, v);
    (void)arg;
    if (zfj_is(name, "upper")) return zfj_like(v, zfj_upper(m, s));
    if (zfj_is(name, "lower")) return zfj_like(v, zfj_lower(m, s));
    if (zfj_is(name, "title")) return zfj_text(zfj_capitals(m, s, zfj_ends_word));
    return zfj_like(v, zfj_capitals(m, s, NULL));
}

static zfj_value zfj_filter_trim(zfj_machine *m, zfj_value v, zfj_string name,
                                 const zfj_value *arg[ZFJ_PARAMETERS])
{
    return zfj_method_strip(m, zfj_soft(m, v), (name.at = "strip", name), arg);
}

static zfj_value zfj_filter_replace(zfj_machine *m, zfj_value v, zfj_string name,
                                    const zfj_value *arg[ZFJ_PARAMETERS])
{
    int64_t most = arg[2] && arg[2]->kind != ZFJ_NONE ? zfj_given_integer(m, arg[2], 0) : -1;
    (void)name;
    return zfj_text(zfj_replace(m, zfj_str(m, v), zfj_str(m, *arg[0]), zfj_str(m, *arg[1]), most));
}

static zfj_value zfj_filter_indent(zfj_machine *m, zfj_value v, zfj_string name,
                                   const zfj_value *arg[ZFJ_PARAMETERS])
{
    const bool first = zfj_given_truth(arg[1]), blank = zfj_given_truth(arg[2]);
    zfj_out out = {.at = NULL}, space = {.at = NULL}, text = {.at = NULL};
    const zfj_list *lines;
    (void)name;
    if (v.kind != ZFJ_STRING) zfj_stop_kind(m, v, "indent");
    if (v.safe) zfj_stop(m, "indent of a safe string is not supported");
    if (arg[0] && arg[0]->kind == ZFJ_STRING) zfj_put_string(m, &space, arg[0]->as.text);
    else
        zfj_put_string(m, &space,
                       zfj_repeat(m, zfj_literal(" "), zfj_given_integer(m, arg[0], 4)).as.text);
    zfj_put_string(m, &text, v.as.text);
    zfj_put_literal(m, &text, "\n");
    lines = zfj_split_lines(m, zfj_text_of(&text), false).as.list;
    for (size_t i = 0; i < lines->count; i++) {
        if (i) zfj_put_literal(m, &out, "\n");
        if (i ? blank || lines->at[i].as.text.bytes : first)
            zfj_put_string(m, &out, zfj_taken(&space));
        zfj_put_string(m, &out, lines->at[i].as.text);
    }
    return zfj_text_of(&out);
}

static zfj_value zfj_filter_wordcount(zfj_machine *m, zfj_value v, zfj_string name,
                                      const zfj_value *arg[ZFJ_PARAMETERS])
{
    zfj_string s = zfj_str(m, v);
    int64_t count = 0;
    bool inside = false;
    uint32_t c;
    (void)name, (void)arg;
    for (size_t at = 0; at < s.bytes;) {
        bool word;
        at += zfj_next_character(s.at + at, s.at + s.bytes, &c);
        if (c >= 0x80 && !zfj_is_blank(c)) zfj_stop(m, "wordcount: only of ASCII");
        word = c == '_' || (c >= '0' && c <= '9') || zfj_is_ascii_letter(c);
        count += word && !inside;
        inside = word;
    }
    return zfj_int(count);
}

static zfj_value zfj_filter_tojson(zfj_machine *m, zfj_value v, zfj_string name,
                                   const zfj_value *arg[ZFJ_PARAMETERS])
{
    zfj_dumps d = {.ascii = zfj_given_truth(arg[0]), .sorted = zfj_given_truth(arg[3])};
    (void)name;
    d.lines = arg[1] && arg[1]->kind != ZFJ_NONE;
    d.comma = zfj_string_of(d.lines ? "," : ", "), d.colon = zfj_string_of(": ");
    if (d.lines && arg[1]->kind == ZFJ_STRING) d.indent = arg[1]->as.text;
    else if (d.lines)
        d.indent = zfj_repeat(m, zfj_literal(" "), zfj_given_integer(m, arg[1], 0)).as.text;
    if (arg[2] && arg[2]->kind != ZFJ_NONE) {
        const zfj_list *both = zfj_iterate(m, *arg[2]);
        if (both->count != 2) zfj_stop(m, "tojson: separators are two strings");
        d.comma = zfj_given_string(m, &both->at[0]), d.colon = zfj_given_string(m, &both->at[1]);
    }
    zfj_dump(m, &d, v, 0);
    return zfj_text_of(&d.out);
}

/* ---------------------------------------------------------------------------------- numbers */

static zfj_value zfj_real_to_int(zfj_machine *m, double real, zfj_value otherwise)
{
    if (!isfinite(real)) return otherwise;
    if (!(fabs(real) < 9.2e18)) zfj_stop(m, "an integer of more than 64 bits");
    return zfj_int((int64_t)real);
}

/* Reads a decimal number with spaces around it; false: it is none. Underscores between digits are
 * as in Python. */
static bool zfj_read_real(zfj_machine *m, zfj_string s, bool whole, double *real, int64_t *integer)
{
    char text[64], *end;
    size_t n = 0;
    s = zfj_strip(s, NULL, true, true);
    if (s.bytes >= sizeof text) zfj_stop(m, "a number of %zu characters", s.bytes);
    for (size_t i = 0; i < s.bytes; i++) {
        bool digit = s.at[i] >= '0' && s.at[i] <= '9';
        if (s.at[i] == '_' && i && i + 1 < s.bytes && text[n - 1] >= '0' && text[n - 1] <= '9' &&
            s.at[i + 1] >= '0' && s.at[i + 1] <= '9')
            continue;
        if (!digit && !(s.at[i] && strchr(whole ? "+-" : "+-.eE", s.at[i]))) return false;
        text[n++] = s.at[i];
    }
    text[n] = 0;
    if (!n) return false;
    *real = strtod(text, &end);
    if (*end || !strpbrk(text, "0123456789")) return false;
    errno = 0;
    *integer = whole ? (int64_t)strtoll(text, NULL, 10) : 0;
    if (errno) zfj_stop(m, "an integer of more than 64 bits");
    return true;
}

static zfj_value zfj_filter_int(zfj_machine *m, zfj_value v, zfj_string name,
                                const zfj_value *arg[ZFJ_PARAMETERS])
{
    const zfj_value otherwise = arg[0] ? *arg[0] : zfj_int(0);
    double real;
    int64_t integer;
    (void)name;
    if (zfj_given_integer(m, arg[1], 10) != 10) zfj_stop(m, "int of another base than 10");
    if (v.kind == ZFJ_UNDEFINED) zfj_stop_undefined(m, v);
    if (zfj_is_integer(v)) return zfj_int(zfj_integer(v));
    if (v.kind == ZFJ_FLOAT) return zfj_real_to_int(m, v.as.real, otherwise);
    if (v.kind != ZFJ_STRING) return otherwise;
    if (zfj_read_real(m, v.as.text, true, &real, &integer)) return zfj_int(integer);
    if (zfj_read_real(m, v.as.text, false, &real, &integer))
        return zfj_real_to_int(m, real, otherwise);
    return otherwise;
}

static zfj_value zfj_filter_float(zfj_machine *m, zfj_value v, zfj_string name,
                                  const zfj_value *arg[ZFJ_PARAMETERS])
{
    double real;
    int64_t integer;
    (void)name;
    if (v.kind == ZFJ_UNDEFINED) zfj_stop_undefined(m, v);
    if (zfj_is_number(v)) return zfj_float(zfj_real(v));
    if (v.kind == ZFJ_STRING && zfj_read_real(m, v.as.text, false, &real, &integer))
        return zfj_float(real);
    return arg[0] ? *arg[0] : zfj_float(0);
}

static zfj_value zfj_filter_abs(zfj_machine *m, zfj_value v, zfj_string name,
                                const zfj_value *arg[ZFJ_PARAMETERS])
{
    (void)name, (void)arg;
    if (!zfj_is_number(v)) zfj_stop_kind(m, v, "abs");
    if (v.kind == ZFJ_BOOL) return zfj_int(v.as.truth);
    return zfj_real(v) < 0 || (v.kind == ZFJ_FLOAT && signbit(v.as.real)) ? zfj_negative(m, v) : v;
}

static zfj_value zfj_filter_round(zfj_machine *m, zfj_value v, zfj_string name,
                                  const zfj_value *arg[ZFJ_PARAMETERS])
{
    const int64_t precision = zfj_given_integer(m, arg[0], 0);
    char text[400];
    (void)name;
    if (arg[1] || precision < 0 || precision > 15)
        zfj_stop(m, "round: this method or precision is not supported");
    if (v.kind == ZFJ_INT) return v;
    if (v.kind != ZFJ_FLOAT) zfj_stop_kind(m, v, "round");
    if (!isfinite(v.as.real)) return v;
    snprintf(text, sizeof text, "%.*f", (int)precision, v.as.real);
    return zfj_float(strtod(text, NULL));
}

/* ------------------------------------------------------------------------------------ lists */

/* How an element is looked at: an attribute of it, as "a.b", if one is given; without case. */
static zfj_value zfj_look_at(zfj_machine *m, zfj_value v, const zfj_value *attribute, bool fold)
{
    zfj_string path;
    if (attribute && attribute->kind != ZFJ_NONE) {
        if (zfj_is_integer(*attribute)) v = zfj_get_item(m, v, *attribute);
        else
            for (path = zfj_given_string(m, attribute);;) {
                size_t end = zfj_find(m, path, zfj_string_of("."), 0);
                zfj_string part = zfj_part(path, 0, end == SIZE_MAX ? path.bytes : end);
                int64_t number;
                v = zfj_get_item(m, v,
                                 part.bytes && zfj_read_number(part, 0, &number) == part.bytes
                                     ? zfj_int(number)
                                     : zfj_text(part));
                if (end == SIZE_MAX) break;
                path = zfj_part(path, end + 1, path.bytes);
            }
    }
    if (fold && v.kind == ZFJ_STRING) v.as.text = zfj_lower(m, v.as.text);
    return v;
}

/* Sorts by keys, in place; equal ones keep their order. */
static void zfj_sort(zfj_machine *m, zfj_value *keys, zfj_value *values, size_t count, bool reverse)
{
    for (size_t i = 1; i < count; i++) {
        const zfj_value key = keys[i], value = values[i];
        size_t at = i;
        while (at &&
               zfj_compare(m, reverse ? keys[at - 1] : key, reverse ? key : keys[at - 1]) == -1) {
            keys[at] = keys[at - 1], values[at] = values[at - 1];
            at--;
        }
        keys[at] = key, values[at] = value;
    }
}

static zfj_value zfj_sorted(zfj_machine *m, const zfj_list *from, const zfj_value *attribute,
                            bool fold, bool reverse)
{
    zfj_value sorted = zfj_list_new(m, ZFJ_LIST);
    zfj_list *keys = zfj_list_new(m, ZFJ_LIST).as.list;
    zfj_push_all(m, sorted.as.list, from);
    for (size_t i = 0; i < from->count; i++)
        zfj_push(m, keys, zfj_look_at(m, from->at[i], attribute, fold));
    zfj_sort(m, keys->at, sorted.as.list->at, from->count, reverse);
    return sorted;
}

static zfj_value zfj_filter_sort(zfj_machine *m, zfj_value v, zfj_string name,
                                 const zfj_value *arg[ZFJ_PARAMETERS])
{
    (void)name;
    if (arg[2] && arg[2]->kind == ZFJ_STRING &&
        zfj_find(m, arg[2]->as.text, zfj_string_of(","), 0) != SIZE_MAX)
        zfj_stop(m, "sort by several attributes is not supported");
    return zfj_sorted(m, zfj_iterate(m, v), arg[2], !zfj_given_truth(arg[1]),
                      zfj_given_truth(arg[0]));
}

static zfj_value zfj_filter_dictsort(zfj_machine *m, zfj_value v, zfj_string name,
                                     const zfj_value *arg[ZFJ_PARAMETERS])
{
    const bool by_value = arg[1] && zfj_is(zfj_given_string(m, arg[1]), "value");
    const zfj_value place = zfj_int(by_value);
    (void)name;
    if (v.kind != ZFJ_DICT) zfj_stop_kind(m, v, "dictsort");
    if (arg[1] && !by_value && !zfj_is(arg[1]->as.text, "key"))
        zfj_stop(m, "dictsort: by is key or value");
    return zfj_sorted(m, zfj_view(m, v.as.dict, "dict_items").as.list, &place,
                      !zfj_given_truth(arg[0]), zfj_given_truth(arg[2]));
}

static zfj_value zfj_filter_items(zfj_machine *m, zfj_value v, zfj_string name,
                                  const zfj_value *arg[ZFJ_PARAMETERS])
{
    (void)name, (void)arg;
    if (v.kind == ZFJ_UNDEFINED) return zfj_list_new(m, ZFJ_GENERATOR);
    if (v.kind != ZFJ_DICT) zfj_stop_kind(m, v, "items");
    v = zfj_view(m, v.as.dict, "dict_items");
    v.kind = ZFJ_GENERATOR;
    return v;
}

static zfj_value zfj_filter_length(zfj_machine *m, zfj_value v, zfj_string name,
                                   const zfj_value *arg[ZFJ_PARAMETERS])
{
    (void)name, (void)arg;
    if (v.kind == ZFJ_UNDEFINED) return zfj_int(0);
    if (v.kind == ZFJ_STRING) return zfj_int((int64_t)zfj_characters(m, v.as.text));
    if (v.kind == ZFJ_DICT) return zfj_int((int64_t)v.as.dict->count);
    if (!zfj_has_list(v) || v.kind == ZFJ_GENERATOR) zfj_stop_kind(m, v, "length");
    return zfj_int((int64_t)v.as.list->count);
}

static zfj_value zfj_filter_list(zfj_machine *m, zfj_value v, zfj_string name,
                                 const zfj_value *arg[ZFJ_PARAMETERS])
{
    zfj_value list = zfj_list_new(m, ZFJ_LIST);
    (void)name, (void)arg;
    zfj_push_all(m, list.as.list, zfj_iterate(m, v));
    return list;
}

static zfj_value zfj_filter_reverse(zfj_machine *m, zfj_value v, zfj_string name,
                                    const zfj_value *arg[ZFJ_PARAMETERS])
{
    zfj_value list = zfj_filter_list(m, v, name, arg);
    zfj_reverse_list(list.as.list);
    if (v.kind == ZFJ_STRING)
        return zfj_like(v, zfj_join(m, zfj_string_of(""), list.as.list, false));
    list.kind = v.kind == ZFJ_GENERATOR ? ZFJ_LIST : ZFJ_GENERATOR;
    return list;
}

static zfj_value zfj_filter_end(zfj_machine *m, zfj_value v, zfj_string name,
                                const zfj_value *arg[ZFJ_PARAMETERS])
{
    const bool last = name.at[0] == 'l';
    const zfj_list *list;
    (void)arg;
    if (last && v.kind == ZFJ_GENERATOR) zfj_stop_kind(m, v, "last");
    if (v.kind == ZFJ_GENERATOR) { /* the others remain */
        zfj_list *rest = v.as.list;
        if (rest->spent || !rest->count)
            return zfj_undefined(zfj_string_of("the first of nothing"));
        rest->count--;
        return *rest->at++;
    }
    list = zfj_iterate(m, v);
    if (!list->count)
        return zfj_undefined(zfj_string_of(last ? "the last of nothing" : "the first of nothing"));
    return list->at[last ? list->count - 1 : 0];
}

static zfj_value zfj_filter_join(zfj_machine *m, zfj_value v, zfj_string name,
                                 const zfj_value *arg[ZFJ_PARAMETERS])
{
    zfj_list *list = zfj_list_new(m, ZFJ_LIST).as.list;
    (void)name;
    zfj_push_all(m, list, zfj_iterate(m, v));
    for (size_t i = 0; i < list->count; i++)
        list->at[i] = zfj_look_at(m, list->at[i], arg[1], false);
    return zfj_text(zfj_join(m, arg[0] ? zfj_str(m, *arg[0]) : zfj_string_of(""), list, true));
}

static zfj_value zfj_filter_unique(zfj_machine *m, zfj_value v, zfj_string name,
                                   const zfj_value *arg[ZFJ_PARAMETERS])
{
    const zfj_list *from = zfj_iterate(m, v);
    zfj_value list = zfj_list_new(m, ZFJ_GENERATOR), seen = zfj_dict_new(m, ZFJ_DICT);
    (void)name;
    for (size_t i = 0; i < from->count; i++) {
        zfj_value key = zfj_look_at(m, from->at[i], arg[1], !zfj_given_truth(arg[0]));
        zfj_need_key(m, key);
        if (zfj_dict_find(m, seen.as.dict, key)) continue;
        zfj_dict_set(m, seen.as.dict, key, zfj_none);
        zfj_push(m, list.as.list, from->at[i]);
    }
    return list;
}

static zfj_value zfj_filter_batch(zfj_machine *m, zfj_value v, zfj_string name,
                                  const zfj_value *arg[ZFJ_PARAMETERS])
{
    const zfj_list *from = zfj_iterate(m, v);
    const int64_t size = zfj_given_integer(m, arg[0], 1);
    zfj_value list = zfj_list_new(m, ZFJ_GENERATOR), part = zfj_none;
    (void)name;
    if (size < 1) zfj_stop(m, "batch: of at least 1");
    for (size_t i = 0; i < from->count; i++) {
        if (i % (size_t)size == 0) {
            part = zfj_list_new(m, ZFJ_LIST);
            zfj_push(m, list.as.list, part);
        }
        zfj_push(m, part.as.list, from->at[i]);
    }
    while (arg[1] && arg[1]->kind != ZFJ_NONE && from->count && (int64_t)part.as.list->count < size)
        zfj_push(m, part.as.list, *arg[1]);
    return list;
}

static zfj_value zfj_filter_sum(zfj_machine *m, zfj_value v, zfj_string name,
                                const zfj_value *arg[ZFJ_PARAMETERS])
{
    const zfj_list *from = zfj_iterate(m, v);
    zfj_value sum = arg[1] ? *arg[1] : zfj_int(0);
    (void)name;
    if (sum.kind == ZFJ_STRING) zfj_stop_kind(m, sum, "sum");
    for (size_t i = 0; i < from->count; i++)
        sum = zfj_arithmetic(m, '+', sum, zfj_look_at(m, from->at[i], arg[0], false));
    return sum;
}

static zfj_value zfj_filter_most(zfj_machine *m, zfj_value v, zfj_string name,
                                 const zfj_value *arg[ZFJ_PARAMETERS])
{
    const zfj_list *from = zfj_iterate(m, v);
    const bool fold = !zfj_given_truth(arg[0]), most = name.at[1] == 'a';
    zfj_value best, key, other;
    if (!from->count) return zfj_undefined(zfj_string_of("the least or most of nothing"));
    best = from->at[0], key = zfj_look_at(m, best, arg[1], fold);
    for (size_t i = 1; i < from->count; i++) {
        other = zfj_look_at(m, from->at[i], arg[1], fold);
        if (zfj_compare(m, most ? key : other, most ? other : key) == -1)
            best = from->at[i], key = other;
    }
    return best;
}

static zfj_value zfj_filter_default(zfj_machine *m, zfj_value v, zfj_string name,
                                    const zfj_value *arg[ZFJ_PARAMETERS])
{
    (void)m, (void)name;
    if (v.kind != ZFJ_UNDEFINED && !(zfj_given_truth(arg[1]) && !zfj_truth(v))) return v;
    return arg[0] ? *arg[0] : zfj_text(zfj_string_of(""));
}

static zfj_value zfj_filter_attr(zfj_machine *m, zfj_value v, zfj_string name,
                                 const zfj_value *arg[ZFJ_PARAMETERS])
{
    zfj_value found;
    (void)name;
    if (v.kind == ZFJ_UNDEFINED) zfj_stop_undefined(m, v);
    if (zfj_attribute(m, v, zfj_given_string(m, arg[0]), &found)) return found;
    return zfj_missing(m, v, *arg[0]);
}

/* --------------------------------------------------------------------- filters of any arguments */

/* The arguments after the first `count`. */
static zfj_args zfj_args_after(const zfj_args *args, size_t count)
{
    zfj_args rest = *args;
    if (count > rest.list.count) count = rest.list.count;
    if (count) rest.list.at += count, rest.list.count -= count;
    return rest;
}

static zfj_value zfj_filter_map(zfj_machine *m, zfj_value v, const zfj_args *args)
{
    const zfj_list *from = zfj_iterate(m, v);
    zfj_value list = zfj_list_new(m, ZFJ_GENERATOR);
    const zfj_value *attribute = zfj_dict_get(m, &args->named, zfj_string_of("attribute")),
                    *otherwise = zfj_dict_get(m, &args->named, zfj_string_of("default"));
    const zfj_args rest = zfj_args_after(args, 1);
    if (!args->list.count && !attribute) zfj_stop(m, "map lacks a filter or an attribute");
    if (!args->list.count && args->named.count != (otherwise ? 2 : 1))
        zfj_stop(m, "map has an argument that is not known");
    for (size_t i = 0; i < from->count; i++) {
        zfj_value one = from->at[i];
        if (args->list.count)
            one = zfj_apply_filter(m, zfj_given_string(m, &args->list.at[0]), one, &rest);
        else one = zfj_look_at(m, one, attribute, false);
        if (!args->list.count && one.kind == ZFJ_UNDEFINED && otherwise) one = *otherwise;
        zfj_push(m, list.as.list, one);
    }
    return list;
}

/* select, reject, selectattr and rejectattr. */
static zfj_value zfj_filter_select(zfj_machine *m, zfj_value v, zfj_string name,
                                   const zfj_args *args)
{
    const bool attribute = zfj_ends(name, zfj_string_of("attr")), rejects = name.at[0] == 'r';
    zfj_value list = zfj_list_new(m, ZFJ_GENERATOR);
    const zfj_list *from = zfj_truth(v) ? zfj_iterate(m, v) : list.as.list;
    const zfj_args rest = zfj_args_after(args, attribute ? 2 : 1);
    if (from->count && attribute && !args->list.count)
        zfj_stop(m, "%.*s lacks an attribute", (int)name.bytes, name.at);
    for (size_t i = 0, count = from->count; i < count; i++) {
        zfj_value one =
            attribute ? zfj_look_at(m, from->at[i], &args->list.at[0], false) : from->at[i];
        bool good =
            args->list.count > attribute
                ? zfj_apply_test(m, zfj_given_string(m, &args->list.at[attribute]), one, &rest)
                : zfj_truth(one);
        if (good != rejects) zfj_push(m, list.as.list, from->at[i]);
    }
    return list;
}

static zfj_value zfj_filter_format(zfj_machine *m, zfj_value v, const zfj_args *args)
{
    zfj_value values = zfj_list_new(m, ZFJ_TUPLE);
    if (args->named.count && args->list.count) zfj_stop(m, "format by names and positions");
    if (v.kind == ZFJ_STRING && v.safe) zfj_stop(m, "a safe string as a format is not supported");
    *values.as.list = args->list;
    if (args->named.count) {
        values = zfj_dict_new(m, ZFJ_DICT);
        *values.as.dict = args->named;
    }
    return zfj_text(zfj_format(m, zfj_str(m, v), values));
}

/* ------------------------------------------------------------------------------------ tables */

static const struct {
    const char *name, *parameters;
    size_t required;
    zfj_filter *apply;
} zfj_filters[] = {
    {"abs", "", 0, zfj_filter_abs},
    {"attr", "name", 1, zfj_filter_attr},
    {"batch", "linecount fill_with", 1, zfj_filter_batch},
    {"capitalize", "", 0, zfj_filter_case},
    {"count", "", 0, zfj_filter_length},
    {"d", "default_value boolean", 0, zfj_filter_default},
    {"default", "default_value boolean", 0, zfj_filter_default},
    {"dictsort", "case_sensitive by reverse", 0, zfj_filter_dictsort},
    {"e", "", 0, zfj_filter_safe},
    {"escape", "", 0, zfj_filter_safe},
    {"first", "", 0, zfj_filter_end},
    {"float", "default", 0, zfj_filter_float},
    {"indent", "width first blank", 0, zfj_filter_indent},
    {"int", "default base", 0, zfj_filter_int},
    {"items", "", 0, zfj_filter_items},
    {"join", "d attribute", 0, zfj_filter_join},
    {"last", "", 0, zfj_filter_end},
    {"length", "", 0, zfj_filter_length},
    {"list", "", 0, zfj_filter_list},
    {"lower", "", 0, zfj_filter_case},
    {"max", "case_sensitive attribute", 0, zfj_filter_most},
    {"min", "case_sensitive attribute", 0, zfj_filter_most},
    {"replace", "old new count", 2, zfj_filter_replace},
    {"reverse", "", 0, zfj_filter_reverse},
    {"round", "precision method", 0, zfj_filter_round},
    {"safe", "", 0, zfj_filter_safe},
    {"sort", "reverse case_sensitive attribute", 0, zfj_filter_sort},
    {"string", "", 0, zfj_filter_string},
    {"sum", "attribute start", 0, zfj_filter_sum},
    {"title", "", 0, zfj_filter_case},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, zfj_filter_tojson},
    {"trim", "chars", 0, zfj_filter_trim},
    {"unique", "case_sensitive attribute", 0, zfj_filter_unique},
    {"upper", "", 0, zfj_filter_case},
    {"wordcount", "", 0, zfj_filter_wordcount},
};

/* Filters by any arguments; and those of Jinja that are not supported. */
static const char *const zfj_other_filters[] = {"map",        "select",     "reject",
                                                "selectattr", "rejectattr", "format"};
static const char *const zfj_missing_filters[] = {
    "center",    "filesizeformat", "forceescape", "groupby", "pprint",   "random", "slice",
    "striptags", "truncate",       "urlencode",   "urlize",  "wordwrap", "xmlattr"};

static bool zfj_is_filter(zfj_string name)
{
    for (size_t k = 0; k < sizeof zfj_filters / sizeof *zfj_filters; k++)
        if (zfj_is(name, zfj_filters[k].name)) return true;
    return ZFJ_ONE_OF(name, zfj_other_filters) || ZFJ_ONE_OF(name, zfj_missing_filters);
}

static zfj_value zfj_apply_filter(zfj_machine *m, zfj_string name, zfj_value v,
                                  const zfj_args *args)
{
    const zfj_value *arg[ZFJ_PARAMETERS];
    zfj_charge(m, 1);
    for (size_t k = 0; k < sizeof zfj_filters / sizeof *zfj_filters; k++) {
        if (!zfj_is(name, zfj_filters[k].name)) continue;
        zfj_bind(m, args, name, zfj_filters[k].parameters, zfj_filters[k].required, arg);
        return zfj_filters[k].apply(m, v, name, arg);
    }
    if (zfj_is(name, "map")) return zfj_filter_map(m, v, args);
    if (zfj_is(name, "format")) return zfj_filter_format(m, v, args);
    if (ZFJ_ONE_OF(name, zfj_other_filters)) return zfj_filter_select(m, v, name, args);
    zfj_stop(m, "the filter %.*s is not %s", (int)(name.bytes < 100 ? name.bytes : 100), name.at,
             zfj_is_filter(name) ? "supported" : "known");
}

/* ------------------------------------------------------------------------------------- tests */

static const struct {
    const char *name;
    int arguments;
} zfj_tests[] = {
    {"boolean", 0}, {"callable", 0}, {"defined", 0},   {"divisibleby", 1}, {"eq", 1},
    {"equalto", 1}, {"==", 1},       {"escaped", 0},   {"even", 0},        {"false", 0},
    {"filter", 0},  {"float", 0},    {"ge", 1},        {">=", 1},          {"greaterthan", 1},
    {"gt", 1},      {">", 1},        {"in", 1},        {"integer", 0},     {"iterable", 0},
    {"le", 1},      {"<=", 1},       {"lessthan", 1},  {"lower", 0},       {"lt", 1},
    {"<", 1},       {"mapping", 0},  {"ne", 1},        {"!=", 1},          {"none", 0},
    {"number", 0},  {"odd", 0},      {"sameas", 1},    {"sequence", 0},    {"string", 0},
    {"test", 0},    {"true", 0},     {"undefined", 0}, {"upper", 0},
};

static int zfj_test_arguments(zfj_string name)
{
    for (size_t k = 0; k < sizeof zfj_tests / sizeof *zfj_tests; k++)
        if (zfj_is(name, zfj_tests[k].name)) return zfj_tests[k].arguments;
    return -1;
}

static bool zfj_same_object(zfj_machine *m, zfj_value a, zfj_value b)
{
    if (a.kind != b.kind) return false;
    if (a.kind == ZFJ_INT || a.kind == ZFJ_FLOAT || a.kind == ZFJ_STRING || a.kind == ZFJ_UNDEFINED)
        zfj_stop(m, "sameas of numbers and strings is not supported");
    if (a.kind == ZFJ_BOOL) return a.as.truth == b.as.truth;
    return a.kind == ZFJ_NONE || a.as.list == b.as.list;
}

static bool zfj_test_number(zfj_machine *m, zfj_string name, zfj_value v, const zfj_value *by)
{
    zfj_value rest = zfj_arithmetic(m, '%', v, by ? *by : zfj_int(2));
    return zfj_equal(m, rest, zfj_int(zfj_is(name, "odd")));
}

static bool zfj_test_order(zfj_machine *m, zfj_string name, zfj_value v, zfj_value by)
{
    const char first = name.at[0], last = name.at[name.bytes - 1];
    int order;
    if (zfj_is(name, "eq") || zfj_is(name, "==") || zfj_is(name, "equalto"))
        return zfj_equal(m, v, by);
    if (zfj_is(name, "ne") || zfj_is(name, "!=")) return !zfj_equal(m, v, by);
    order = zfj_compare(m, v, by);
    if (!order) return last == 'e' || last == '=';
    return order == (first == 'l' || first == '<' ? -1 : 1);
}

static bool zfj_test_kind(zfj_machine *m, zfj_string name, zfj_value v)
{
    const bool undefined = v.kind == ZFJ_UNDEFINED, truth = v.kind == ZFJ_BOOL,
               list = zfj_has_list(v), dict = v.kind == ZFJ_DICT, text = v.kind == ZFJ_STRING;
    if (zfj_is(name, "defined")) return !undefined;
    if (zfj_is(name, "undefined")) return undefined;
    if (zfj_is(name, "none")) return v.kind == ZFJ_NONE;
    if (zfj_is(name, "boolean")) return truth;
    if (zfj_is(name, "true")) return truth && v.as.truth;
    if (zfj_is(name, "false")) return truth && !v.as.truth;
    if (zfj_is(name, "integer")) return v.kind == ZFJ_INT;
    if (zfj_is(name, "float")) return v.kind == ZFJ_FLOAT;
    if (zfj_is(name, "number")) return zfj_is_number(v);
    if (zfj_is(name, "string")) return text;
    if (zfj_is(name, "mapping")) return dict;
    if (zfj_is(name, "sequence")) return undefined || text || zfj_is_indexed(v) || dict;
    if (zfj_is(name, "iterable")) return undefined || text || list || dict || v.kind == ZFJ_LOOP;
    if (zfj_is(name, "callable")) return undefined || v.kind >= ZFJ_MACRO;
    if (zfj_is(name, "escaped")) return text && v.safe;
    if (zfj_is(name, "upper")) return zfj_is_cased(m, zfj_str(m, v), true);
    if (zfj_is(name, "lower")) return zfj_is_cased(m, zfj_str(m, v), false);
    if (zfj_is(name, "filter")) return text && zfj_is_filter(v.as.text);
    return text && zfj_test_arguments(v.as.text) >= 0;
}

static bool zfj_apply_test(zfj_machine *m, zfj_string name, zfj_value v, const zfj_args *args)
{
    const int count = zfj_test_arguments(name);
    const zfj_value *arg = args->list.at;
    zfj_charge(m, 1);
    if (count < 0)
        zfj_stop(m, "the test %.*s is not known", (int)(name.bytes < 100 ? name.bytes : 100),
                 name.at);
    if (args->list.count != (size_t)count || args->named.count)
        zfj_stop(m, "the test %.*s takes %d arguments by position", (int)name.bytes, name.at,
                 count);
    if (zfj_is(name, "odd") || zfj_is(name, "even")) return zfj_test_number(m, name, v, NULL);
    if (zfj_is(name, "divisibleby")) return zfj_test_number(m, name, v, arg);
    if (zfj_is(name, "in")) return zfj_contains(m, *arg, v);
    if (zfj_is(name, "sameas")) return zfj_same_object(m, v, *arg);
    return count ? zfj_test_order(m, name, v, *arg) : zfj_test_kind(m, name, v);
}
