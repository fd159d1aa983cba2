/* Methods of strings, lists and dicts, and global functions. Those that change a value are refused,
 * as by transformers. */
#include <time.h>

/* ---------------------------------------------------------------------------------- strings */

typedef zfj_value zfj_string_method(zfj_machine *m, zfj_value self, zfj_string name,
                                    const zfj_value *arg[ZFJ_PARAMETERS]);

static zfj_value zfj_method_strip(zfj_machine *m, zfj_value self, zfj_string name,
                                  const zfj_value *arg[ZFJ_PARAMETERS])
{
    const bool given = arg[0] && arg[0]->kind != ZFJ_NONE;
    zfj_string set = given ? zfj_given_string(m, arg[0]) : self.as.text;
    zfj_charge(m, self.as.text.bytes / 16);
    return zfj_like(
        self, zfj_strip(self.as.text, given ? &set : NULL, name.at[0] != 'r', name.at[0] != 'l'));
}

static zfj_value zfj_method_split(zfj_machine *m, zfj_value self, zfj_string name,
                                  const zfj_value *arg[ZFJ_PARAMETERS])
{
    const bool last = name.at[0] == 'r';
    const int64_t most = zfj_given_integer(m, arg[1], -1);
    zfj_charge(m, self.as.text.bytes / 16);
    if (!arg[0] || arg[0]->kind == ZFJ_NONE)
        return last ? zfj_split_blank_last(m, self, most) : zfj_split_blank(m, self, most);
    return last ? zfj_split_last(m, self, zfj_given_string(m, arg[0]), most)
                : zfj_split(m, self, zfj_given_string(m, arg[0]), most);
}

static zfj_value zfj_method_lines(zfj_machine *m, zfj_value self, zfj_string name,
                                  const zfj_value *arg[ZFJ_PARAMETERS])
{
    (void)name;
    return zfj_split_lines(m, self, zfj_given_truth(arg[0]));
}

/* The string between the bounds that an argument may give. */
static zfj_string zfj_within(zfj_machine *m, zfj_value self, const zfj_value *from,
                             const zfj_value *to)
{
    return zfj_slice(m, self, from ? *from : zfj_none, to ? *to : zfj_none, zfj_none).as.text;
}

/* startswith and endswith: of one string, or any of a tuple. */
static zfj_value zfj_method_with(zfj_machine *m, zfj_value self, zfj_string name,
                                 const zfj_value *arg[ZFJ_PARAMETERS])
{
    const zfj_string s = zfj_within(m, self, arg[1], arg[2]);
    const bool ends = name.at[0] == 'e', many = arg[0]->kind == ZFJ_TUPLE;
    bool any = false;
    for (size_t i = 0; i < (many ? arg[0]->as.list->count : 1); i++) {
        zfj_string part = zfj_given_string(m, many ? &arg[0]->as.list->at[i] : arg[0]);
        any |= ends ? zfj_ends(s, part) : zfj_begins(s, part);
    }
    return zfj_bool(any);
}

/* find, rfind, index and rindex. */
static zfj_value zfj_method_find(zfj_machine *m, zfj_value self, zfj_string name,
                                 const zfj_value *arg[ZFJ_PARAMETERS])
{
    const zfj_string s = zfj_within(m, self, arg[1], arg[2]), part = zfj_given_string(m, arg[0]);
    const size_t before = (size_t)(s.at - self.as.text.at),
                 at = name.at[0] == 'r' ? zfj_find_last(m, s, part, s.bytes)
                                        : zfj_find(m, s, part, 0);
    if (at == SIZE_MAX && zfj_ends(name, zfj_string_of("index")))
        zfj_stop(m, "%.*s: the text is not there", (int)name.bytes, name.at);
    if (at == SIZE_MAX) return zfj_int(-1);
    return zfj_int((int64_t)zfj_characters(m, zfj_part(self.as.text, 0, before + at)));
}

static zfj_value zfj_method_count(zfj_machine *m, zfj_value self, zfj_string name,
                                  const zfj_value *arg[ZFJ_PARAMETERS])
{
    const zfj_string s = zfj_within(m, self, arg[1], arg[2]), part = zfj_given_string(m, arg[0]);
    int64_t count = 0;
    (void)name;
    if (!part.bytes) return zfj_int((int64_t)zfj_characters(m, s) + 1);
    for (size_t at = 0; (at = zfj_find(m, s, part, at)) != SIZE_MAX; at += part.bytes) count++;
    return zfj_int(count);
}

static zfj_value zfj_method_replace(zfj_machine *m, zfj_value self, zfj_string name,
                                    const zfj_value *arg[ZFJ_PARAMETERS])
{
    (void)name;
    return zfj_like(self,
                    zfj_replace(m, self.as.text, zfj_given_string(m, arg[0]),
                                zfj_given_string(m, arg[1]), zfj_given_integer(m, arg[2], -1)));
}

static zfj_value zfj_method_remove(zfj_machine *m, zfj_value self, zfj_string name,
                                   const zfj_value *arg[ZFJ_PARAMETERS])
{
    const zfj_string s = self.as.text, part = zfj_given_string(m, arg[0]);
    if (zfj_is(name, "removeprefix"))
        return zfj_like(self, zfj_begins(s, part) ? zfj_part(s, part.bytes, s.bytes) : s);
    return zfj_like(self, zfj_ends(s, part) ? zfj_part(s, 0, s.bytes - part.bytes) : s);
}

static zfj_value zfj_method_partition(zfj_machine *m, zfj_value self, zfj_string name,
                                      const zfj_value *arg[ZFJ_PARAMETERS])
{
    const zfj_string s = self.as.text, by = zfj_given_string(m, arg[0]);
    const bool last = name.at[0] == 'r';
    zfj_value parts = zfj_list_new(m, ZFJ_TUPLE);
    size_t at;
    if (!by.bytes) zfj_stop(m, "partition by an empty separator");
    at = last ? zfj_find_last(m, s, by, s.bytes) : zfj_find(m, s, by, 0);
    if (at == SIZE_MAX && last) {
        zfj_push(m, parts.as.list, zfj_like(self, zfj_string_of("")));
        zfj_push(m, parts.as.list, zfj_like(self, zfj_string_of("")));
        zfj_push(m, parts.as.list, self);
        return parts;
    }
    if (at == SIZE_MAX) at = s.bytes;
    zfj_push(m, parts.as.list, zfj_like(self, zfj_part(s, 0, at)));
    zfj_push(m, parts.as.list, zfj_like(self, at < s.bytes ? by : zfj_string_of("")));
    zfj_push(m, parts.as.list, zfj_like(self, zfj_part(s, at + by.bytes, s.bytes)));
    return parts;
}

static zfj_value zfj_method_join(zfj_machine *m, zfj_value self, zfj_string name,
                                 const zfj_value *arg[ZFJ_PARAMETERS])
{
    (void)name;
    if (self.safe) zfj_stop(m, "join by a safe string is not supported");
    return zfj_text(zfj_join(m, self.as.text, zfj_iterate(m, *arg[0]), false));
}

static zfj_value zfj_method_case(zfj_machine *m, zfj_value self, zfj_string name,
                                 const zfj_value *arg[ZFJ_PARAMETERS])
{
    const zfj_string s = self.as.text;
    (void)arg;
    if (zfj_is(name, "upper")) return zfj_like(self, zfj_upper(m, s));
    if (zfj_is(name, "lower")) return zfj_like(self, zfj_lower(m, s));
    if (zfj_is(name, "title")) return zfj_like(self, zfj_capitals(m, s, zfj_is_uncased));
    return zfj_like(self, zfj_capitals(m, s, NULL));
}

static zfj_value zfj_method_is(zfj_machine *m, zfj_value self, zfj_string name,
                               const zfj_value *arg[ZFJ_PARAMETERS])
{
    const zfj_string s = self.as.text;
    (void)arg;
    if (zfj_is(name, "isupper")) return zfj_bool(zfj_is_cased(m, s, true));
    if (zfj_is(name, "islower")) return zfj_bool(zfj_is_cased(m, s, false));
    return zfj_bool(zfj_is_all(m, s, zfj_is(name, "isdigit") || zfj_is(name, "isalnum"),
                               zfj_is(name, "isalpha") || zfj_is(name, "isalnum"),
                               zfj_is(name, "isspace")));
}

/* ljust, rjust, center and zfill. */
static zfj_value zfj_method_fill(zfj_machine *m, zfj_value self, zfj_string name,
                                 const zfj_value *arg[ZFJ_PARAMETERS])
{
    const int64_t width = zfj_given_integer(m, arg[0], 0);
    const int64_t room = width - (int64_t)zfj_characters(m, self.as.text);
    const bool zero = name.at[0] == 'z';
    const zfj_string with = zero     ? zfj_string_of("0")
                            : arg[1] ? zfj_given_string(m, arg[1])
                                     : zfj_string_of(" ");
    int64_t left = name.at[0] == 'l' ? 0 : name.at[0] == 'c' ? room / 2 + (room & width & 1) : room;
    zfj_out out = {.at = NULL};
    if (room <= 0) return self;
    if (zero && self.as.text.bytes && strchr("+-", self.as.text.at[0]))
        zfj_stop(m, "zfill of a number with a sign is not supported");
    for (int64_t i = 0; i < left; i++) zfj_put_string(m, &out, with), zfj_charge(m, 1);
    zfj_put_string(m, &out, self.as.text);
    for (int64_t i = left; i < room; i++) zfj_put_string(m, &out, with), zfj_charge(m, 1);
    return zfj_like(self, zfj_taken(&out));
}

static zfj_value zfj_method_not_there(zfj_machine *m, zfj_value self, zfj_string name,
                                      const zfj_value *arg[ZFJ_PARAMETERS])
{
    (void)self, (void)arg;
    zfj_stop(m, "the method %.*s of strings is not supported", (int)name.bytes, name.at);
}

static zfj_value zfj_method_format(zfj_machine *m, zfj_value self, const zfj_args *args);

static const struct {
    const char *name, *parameters;
    size_t required;
    zfj_string_method *call;
} zfj_string_methods[] = {
    {"strip", "chars", 0, zfj_method_strip},
    {"lstrip", "chars", 0, zfj_method_strip},
    {"rstrip", "chars", 0, zfj_method_strip},
    {"split", "sep maxsplit", 0, zfj_method_split},
    {"rsplit", "sep maxsplit", 0, zfj_method_split},
    {"splitlines", "keepends", 0, zfj_method_lines},
    {"startswith", "prefix start end", 1, zfj_method_with},
    {"endswith", "suffix start end", 1, zfj_method_with},
    {"find", "sub start end", 1, zfj_method_find},
    {"rfind", "sub start end", 1, zfj_method_find},
    {"index", "sub start end", 1, zfj_method_find},
    {"rindex", "sub start end", 1, zfj_method_find},
    {"count", "sub start end", 1, zfj_method_count},
    {"replace", "old new count", 2, zfj_method_replace},
    {"removeprefix", "prefix", 1, zfj_method_remove},
    {"removesuffix", "suffix", 1, zfj_method_remove},
    {"partition", "sep", 1, zfj_method_partition},
    {"rpartition", "sep", 1, zfj_method_partition},
    {"join", "iterable", 1, zfj_method_join},
    {"upper", "", 0, zfj_method_case},
    {"lower", "", 0, zfj_method_case},
    {"title", "", 0, zfj_method_case},
    {"capitalize", "", 0, zfj_method_case},
    {"isupper", "", 0, zfj_method_is},
    {"islower", "", 0, zfj_method_is},
    {"isdigit", "", 0, zfj_method_is},
    {"isalpha", "", 0, zfj_method_is},
    {"isalnum", "", 0, zfj_method_is},
    {"isspace", "", 0, zfj_method_is},
    {"ljust", "width fillchar", 1, zfj_method_fill},
    {"rjust", "width fillchar", 1, zfj_method_fill},
    {"center", "width fillchar", 1, zfj_method_fill},
    {"zfill", "width", 1, zfj_method_fill},
    {"casefold", "", 0, zfj_method_not_there},
    {"encode", "encoding errors", 0, zfj_method_not_there},
    {"expandtabs", "tabsize", 0, zfj_method_not_there},
    {"format_map", "mapping", 1, zfj_method_not_there},
    {"isascii", "", 0, zfj_method_not_there},
    {"isdecimal", "", 0, zfj_method_not_there},
    {"isidentifier", "", 0, zfj_method_not_there},
    {"isnumeric", "", 0, zfj_method_not_there},
    {"isprintable", "", 0, zfj_method_not_there},
    {"istitle", "", 0, zfj_method_not_there},
    {"maketrans", "x y z", 1, zfj_method_not_there},
    {"swapcase", "", 0, zfj_method_not_there},
    {"translate", "table", 1, zfj_method_not_there},
};

/* Where a safe string meets text that would be escaped. */
static void zfj_need_plain(zfj_machine *m, zfj_string name, const zfj_args *args)
{
    for (size_t i = 0; i < args->list.count; i++)
        if (args->list.at[i].kind == ZFJ_STRING && !zfj_is_plain(args->list.at[i].as.text))
            zfj_stop(m, "%.*s of a safe string with text to be escaped is not supported",
                     (int)name.bytes, name.at);
}

static zfj_value zfj_call_string(zfj_machine *m, zfj_value self, zfj_string name,
                                 const zfj_args *args)
{
    const zfj_value *arg[ZFJ_PARAMETERS];
    if (self.safe) zfj_need_plain(m, name, args);
    if (zfj_is(name, "format")) return zfj_method_format(m, self, args);
    for (size_t k = 0; k < sizeof zfj_string_methods / sizeof *zfj_string_methods; k++) {
        if (!zfj_is(name, zfj_string_methods[k].name)) continue;
        zfj_bind(m, args, name, zfj_string_methods[k].parameters, zfj_string_methods[k].required,
                 arg);
        return zfj_string_methods[k].call(m, self, name, arg);
    }
    zfj_stop(m, "the method %.*s is not known", (int)name.bytes, name.at);
}

/* The value of a field {}, {0} or {name} of a format. */
static zfj_value zfj_field(zfj_machine *m, zfj_string field, const zfj_args *args, size_t *next)
{
    int64_t number = (int64_t)*next;
    const zfj_value *found;
    if (field.bytes && zfj_read_number(field, 0, &number) != field.bytes) {
        if ((found = zfj_dict_get(m, &args->named, field))) return *found;
        zfj_stop(m, "the field {%.*s} of a format is not supported, or not given",
                 (int)(field.bytes < 100 ? field.bytes : 100), field.at);
    }
    if (!field.bytes) ++*next;
    if ((size_t)number >= args->list.count)
        zfj_stop(m, "a format takes more values than it is given");
    return args->list.at[number];
}

static zfj_value zfj_method_format(zfj_machine *m, zfj_value self, const zfj_args *args)
{
    const zfj_string s = self.as.text;
    zfj_out out = {.at = NULL};
    size_t next = 0;
    for (size_t at = 0; at < s.bytes; at++) {
        size_t end;
        if (s.at[at] != '{' && s.at[at] != '}') {
            zfj_put(m, &out, s.at + at, 1);
            continue;
        }
        if (at + 1 < s.bytes && s.at[at + 1] == s.at[at]) {
            zfj_put(m, &out, s.at + at++, 1);
            continue;
        }
        end = s.at[at] == '{' ? zfj_find(m, s, zfj_string_of("}"), at) : SIZE_MAX;
        if (end == SIZE_MAX) zfj_stop(m, "a single brace in a format");
        zfj_put_value(m, &out, zfj_field(m, zfj_part(s, at + 1, end), args, &next), false);
        at = end;
    }
    return zfj_like(self, zfj_taken(&out));
}

/* ---------------------------------------------------------------------------- lists and dicts */

static const char *const zfj_list_methods[] = {"count", "index"};
/* What changes a list or a dict. */
static const char *const zfj_unsafe[] = {"append",  "clear",      "pop",    "reverse",
                                         "insert",  "sort",       "extend", "remove",
                                         "popitem", "setdefault", "update"};
static const char *const zfj_dict_methods[] = {"get", "items", "keys", "values", "copy"};

static bool zfj_is_one_of(zfj_string name, const char *const *names, size_t count)
{
    for (size_t k = 0; k < count; k++)
        if (zfj_is(name, names[k])) return true;
    return false;
}

#define ZFJ_ONE_OF(name, names) zfj_is_one_of(name, names, sizeof(names) / sizeof *(names))

static bool zfj_is_method(zfj_kind kind, zfj_string name)
{
    if (kind == ZFJ_STRING && zfj_is(name, "format")) return true;
    for (size_t k = 0;
         kind == ZFJ_STRING && k < sizeof zfj_string_methods / sizeof *zfj_string_methods; k++)
        if (zfj_is(name, zfj_string_methods[k].name)) return true;
    if (kind == ZFJ_LIST) return ZFJ_ONE_OF(name, zfj_list_methods) || zfj_is(name, "copy");
    if (kind == ZFJ_TUPLE || kind == ZFJ_RANGE) return ZFJ_ONE_OF(name, zfj_list_methods);
    return kind == ZFJ_DICT && ZFJ_ONE_OF(name, zfj_dict_methods);
}

/* A method that changes its value, which is not allowed: Python has it all the same. */
static bool zfj_is_unsafe(zfj_kind kind, zfj_string name)
{
    return (kind == ZFJ_LIST || kind == ZFJ_DICT) && ZFJ_ONE_OF(name, zfj_unsafe) &&
           !(kind == ZFJ_DICT &&
             (zfj_is(name, "append") || zfj_is(name, "reverse") || zfj_is(name, "insert") ||
              zfj_is(name, "sort") || zfj_is(name, "extend") || zfj_is(name, "remove")));
}

static zfj_value zfj_view(zfj_machine *m, const zfj_dict *d, const char *name)
{
    zfj_value view = zfj_list_new(m, ZFJ_VIEW);
    view.as.list->name = name;
    for (size_t i = 0; i < d->count; i++)
        zfj_push(m, view.as.list,
                 name[5] == 'k'   ? d->at[i].key
                 : name[5] == 'v' ? d->at[i].value
                                  : zfj_pair_of(m, d->at[i].key, d->at[i].value));
    return view;
}

static zfj_value zfj_dict_copy(zfj_machine *m, const zfj_dict *d)
{
    zfj_value copy = zfj_dict_new(m, ZFJ_DICT);
    for (size_t i = 0; i < d->count; i++)
        zfj_dict_set(m, copy.as.dict, d->at[i].key, d->at[i].value);
    return copy;
}

static zfj_value zfj_call_dict(zfj_machine *m, const zfj_dict *d, zfj_string name,
                               const zfj_args *args)
{
    const bool get = zfj_is(name, "get");
    const zfj_value *arg[ZFJ_PARAMETERS], *found;
    if (get && args->named.count) zfj_stop(m, "get takes no arguments by name");
    zfj_bind(m, args, name, get ? "key default" : "", get, arg);
    if (get) {
        zfj_need_key(m, *arg[0]);
        found = zfj_dict_find(m, d, *arg[0]);
        return found ? *found : arg[1] ? *arg[1] : zfj_none;
    }
    if (zfj_is(name, "copy")) return zfj_dict_copy(m, d);
    return zfj_view(m, d,
                    zfj_is(name, "keys")     ? "dict_keys"
                    : zfj_is(name, "values") ? "dict_values"
                                             : "dict_items");
}

static zfj_value zfj_call_list(zfj_machine *m, zfj_value self, zfj_string name,
                               const zfj_args *args)
{
    const bool copies = zfj_is(name, "copy");
    const zfj_value *arg[ZFJ_PARAMETERS];
    int64_t count = 0;
    zfj_bind(m, args, name, copies ? "" : "value", !copies, arg);
    if (copies) {
        zfj_value copy = zfj_list_new(m, ZFJ_LIST);
        zfj_push_all(m, copy.as.list, self.as.list);
        return copy;
    }
    for (size_t i = 0; i < self.as.list->count; i++) {
        bool same = zfj_equal(m, self.as.list->at[i], *arg[0]);
        if (same && zfj_is(name, "index")) return zfj_int((int64_t)i);
        count += same;
    }
    if (zfj_is(name, "index")) zfj_stop(m, "index: the element is not there");
    return zfj_int(count);
}

static zfj_value zfj_call_method(zfj_machine *m, const zfj_method *method, const zfj_args *args)
{
    if (method->self.kind == ZFJ_STRING)
        return zfj_call_string(m, method->self, method->name, args);
    if (method->self.kind == ZFJ_DICT)
        return zfj_call_dict(m, method->self.as.dict, method->name, args);
    return zfj_call_list(m, method->self, method->name, args);
}

/* ---------------------------------------------------------------------------------- functions */

enum { ZFJ_RANGE_MOST = 100000 };

static zfj_value zfj_call_range(zfj_machine *m, const zfj_args *args)
{
    zfj_value range = zfj_list_new(m, ZFJ_RANGE);
    zfj_list *list = range.as.list;
    const zfj_value *arg[ZFJ_PARAMETERS];
    zfj_bind(m, args, zfj_string_of("range"), "start stop step", 1, arg);
    list->from = arg[1] ? zfj_given_integer(m, arg[0], 0) : 0;
    list->to = zfj_given_integer(m, arg[1] ? arg[1] : arg[0], 0);
    list->step = zfj_given_integer(m, arg[2], 1);
    if (!list->step) zfj_stop(m, "range with the step 0");
    for (int64_t i = list->from; list->step > 0 ? i < list->to : i > list->to;) {
        if (list->count == ZFJ_RANGE_MOST)
            zfj_stop(m, "a range of more than %d elements", ZFJ_RANGE_MOST);
        zfj_push(m, list, zfj_int(i));
        if (__builtin_add_overflow(i, list->step, &i)) break;
    }
    return range;
}

/* dict() and namespace(): of a dict, and named values. */
static zfj_value zfj_call_dict_new(zfj_machine *m, const zfj_args *args, zfj_kind kind)
{
    zfj_value v = zfj_dict_new(m, kind);
    if (args->list.count > 1) zfj_stop(m, "%s of more than one dict", zfj_kind_name(v));
    for (size_t k = 0; k < 2; k++) {
        const zfj_dict *from = k ? &args->named : NULL;
        if (!k && args->list.count && args->list.at[0].kind != ZFJ_DICT)
            zfj_stop_kind(m, args->list.at[0], "dict or namespace, which take a dict");
        if (!k && args->list.count) from = args->list.at[0].as.dict;
        for (size_t i = 0; from && i < from->count; i++)
            zfj_dict_set(m, v.as.dict, from->at[i].key, from->at[i].value);
    }
    for (size_t i = 0; kind == ZFJ_NAMESPACE && i < v.as.dict->count; i++) {
        zfj_value key = v.as.dict->at[i].key;
        if (key.kind == ZFJ_STRING && key.as.text.bytes && key.as.text.at[0] == '_')
            zfj_stop(m, "a member of a namespace that begins with _");
    }
    return v;
}

static zfj_value zfj_call_strftime(zfj_machine *m, const zfj_args *args)
{
    const zfj_value *arg[ZFJ_PARAMETERS];
    char format[200], text[400];
    time_t now = (time_t)m->now;
    struct tm day;
    zfj_string s;
    char *copy;
    zfj_bind(m, args, zfj_string_of("strftime_now"), "format", 1, arg);
    s = zfj_given_string(m, arg[0]);
    if (s.bytes + 1 >= sizeof format || (s.bytes && memchr(s.at, 0, s.bytes)) ||
        zfj_find(m, s, zfj_string_of("%f"), 0) != SIZE_MAX)
        zfj_stop(m, "this format of strftime_now is not supported");
    snprintf(format, sizeof format, "%.*s ", (int)s.bytes, s.at); /* never empty */
    if (!localtime_r(&now, &day) || !strftime(text, sizeof text, format, &day))
        zfj_stop(m, "the time cannot be written");
    text[strlen(text) - 1] = 0;
    if (zfl_utf8_valid(text, strlen(text)) != strlen(text)) zfj_stop(m, "the time is not UTF-8");
    copy = zfj_arena_take(m, strlen(text) + 1);
    return zfj_literal(strcpy(copy, text));
}

static zfj_value zfj_call_raise(zfj_machine *m, const zfj_args *args)
{
    const zfj_value *arg[ZFJ_PARAMETERS];
    zfj_string text;
    zfj_bind(m, args, zfj_string_of("raise_exception"), "message", 1, arg);
    text = zfj_str(m, *arg[0]);
    zfj_stop(m, "the template refuses these messages: %.*s",
             (int)(text.bytes < 300 ? text.bytes : 300), text.at);
}

/* Global names; lipsum, cycler and joiner are among them and not supported. */
static const char *const zfj_functions[] = {
    "range", "dict", "namespace", "strftime_now", "raise_exception", "lipsum", "cycler", "joiner"};

static zfj_value zfj_call_function(zfj_machine *m, const char *name, const zfj_args *args)
{
    switch (name[0]) {
    case 'r': return name[2] == 'n' ? zfj_call_range(m, args) : zfj_call_raise(m, args);
    case 'd': return zfj_call_dict_new(m, args, ZFJ_DICT);
    case 'n': return zfj_call_dict_new(m, args, ZFJ_NAMESPACE);
    case 's': return zfj_call_strftime(m, args);
    default: zfj_stop(m, "the function %s is not supported", name);
    }
}
