/* Operators of expressions: arithmetic, `in`, elements and slices; arguments of calls. */

/* ------------------------------------------------------------------------------- arithmetic */

__attribute__((noreturn)) static void zfj_stop_operator(zfj_machine *m, const char *operator,
                                                        zfj_value a, zfj_value b)
{
    if (a.kind == ZFJ_UNDEFINED) zfj_stop_undefined(m, a);
    if (b.kind == ZFJ_UNDEFINED) zfj_stop_undefined(m, b);
    zfj_stop(m, "%s between a value of the kind %s and one of the kind %s", operator,
             zfj_kind_name(a), zfj_kind_name(b));
}

static zfj_value zfj_add_strings(zfj_machine *m, zfj_value a, zfj_value b)
{
    zfj_out out = {.at = NULL};
    const bool safe = a.safe || b.safe;
    zfj_put_string(m, &out, safe && !a.safe ? zfj_escape(m, a.as.text) : a.as.text);
    zfj_put_string(m, &out, safe && !b.safe ? zfj_escape(m, b.as.text) : b.as.text);
    a = zfj_text_of(&out);
    a.safe = safe;
    return a;
}

static void zfj_push_all(zfj_machine *m, zfj_list *list, const zfj_list *from)
{
    for (size_t i = 0, count = from->count; i < count; i++) zfj_push(m, list, from->at[i]);
}

static zfj_value zfj_add_lists(zfj_machine *m, zfj_value a, zfj_value b)
{
    zfj_value sum = zfj_list_new(m, a.kind);
    zfj_push_all(m, sum.as.list, a.as.list);
    zfj_push_all(m, sum.as.list, b.as.list);
    return sum;
}

/* A string or list, `count` times. */
static zfj_value zfj_repeat(zfj_machine *m, zfj_value v, int64_t count)
{
    zfj_out out = {.at = NULL};
    zfj_value list;
    if (v.kind == ZFJ_STRING) {
        for (int64_t i = 0; i < count; i++) zfj_charge(m, 1), zfj_put_string(m, &out, v.as.text);
        return zfj_like(v, zfj_taken(&out));
    }
    list = zfj_list_new(m, v.kind);
    for (int64_t i = 0; i < count; i++) zfj_charge(m, 1), zfj_push_all(m, list.as.list, v.as.list);
    return list;
}

static int64_t zfj_floor_divide(int64_t a, int64_t b)
{
    return a / b - (a % b && (a < 0) != (b < 0));
}

static zfj_value zfj_power(zfj_machine *m, int64_t base, int64_t exponent)
{
    int64_t product = 1;
    if (exponent < 0) return zfj_float(pow((double)base, (double)exponent));
    if (base == 0 || base == 1) return zfj_int(exponent ? base : 1);
    if (base == -1) return zfj_int(exponent % 2 ? -1 : 1);
    for (; exponent; exponent--)
        if (__builtin_mul_overflow(product, base, &product))
            zfj_stop(m, "an integer of more than 64 bits");
    return zfj_int(product);
}

static zfj_value zfj_integers(zfj_machine *m, char operator, int64_t a, int64_t b)
{
    int64_t out = 0;
    bool over = false;
    if (!b && strchr("/%_", operator)) zfj_stop(m, "division by zero");
    if (b == -1 && strchr("%_", operator)) { /* the least integer has no negative */
        if (operator== '%') return zfj_int(0);
        over = __builtin_sub_overflow(0, a, &out);
    } else {
        switch (operator) {
        case '+': over = __builtin_add_overflow(a, b, &out); break;
        case '-': over = __builtin_sub_overflow(a, b, &out); break;
        case '*': over = __builtin_mul_overflow(a, b, &out); break;
        case '/': return zfj_float((double)a / (double)b);
        case '_': out = zfj_floor_divide(a, b); break;
        case '%': out = a - b * zfj_floor_divide(a, b); break;
        default: return zfj_power(m, a, b);
        }
    }
    if (over) zfj_stop(m, "an integer of more than 64 bits");
    return zfj_int(out);
}

static zfj_value zfj_reals(zfj_machine *m, char operator, double a, double b)
{
    double rest;
    if (!b && strchr("/%_", operator)) zfj_stop(m, "division by zero");
    switch (operator) {
    case '+': return zfj_float(a + b);
    case '-': return zfj_float(a - b);
    case '*': return zfj_float(a * b);
    case '/': return zfj_float(a / b);
    case '_':
    case '%':
        rest = fmod(a, b);
        if (rest && (rest < 0) != (b < 0)) rest += b;
        return zfj_float(operator== '%' ? rest : floor((a - rest) / b + 0.5));
    default:
        if (a < 0 && b != floor(b)) zfj_stop(m, "a power that is not real");
        if (!a && b < 0) zfj_stop(m, "division by zero");
        return zfj_float(pow(a, b));
    }
}

/* operator: + - * / % **, and _ for the division // that rounds down. */
static zfj_value zfj_arithmetic(zfj_machine *m, char operator, zfj_value a, zfj_value b)
{
    static const char *const names[] = {"+", "-", "*", "/", "%", "//", "**"};
    const bool repeats = operator== '*' && zfj_is_integer(b), sum = operator== '+';
    if (zfj_is_integer(a) && zfj_is_integer(b))
        return zfj_integers(m, operator, zfj_integer(a), zfj_integer(b));
    if (zfj_is_number(a) && zfj_is_number(b))
        return zfj_reals(m, operator, zfj_real(a), zfj_real(b));
    if (sum && a.kind == ZFJ_STRING && b.kind == ZFJ_STRING) return zfj_add_strings(m, a, b);
    if (sum && a.kind == b.kind && (a.kind == ZFJ_LIST || a.kind == ZFJ_TUPLE))
        return zfj_add_lists(m, a, b);
    if (operator== '%' && a.kind == ZFJ_STRING && a.safe)
        zfj_stop(m, "a safe string as a format is not supported");
    if (operator== '%' && a.kind == ZFJ_STRING) return zfj_text(zfj_format(m, a.as.text, b));
    if (repeats && (a.kind == ZFJ_STRING || a.kind == ZFJ_LIST || a.kind == ZFJ_TUPLE))
        return zfj_repeat(m, a, zfj_integer(b));
    if (operator== '*' && zfj_is_integer(a) && b.kind >= ZFJ_STRING && b.kind <= ZFJ_TUPLE)
        return zfj_repeat(m, b, zfj_integer(a));
    zfj_stop_operator(m, names[strchr("+-*/%_^", operator) - "+-*/%_^"], a, b);
}

static zfj_value zfj_negative(zfj_machine *m, zfj_value v)
{
    if (v.kind == ZFJ_FLOAT) return zfj_float(-v.as.real);
    if (!zfj_is_integer(v)) zfj_stop_kind(m, v, "-");
    return zfj_integers(m, '-', 0, zfj_integer(v));
}

static bool zfj_contains(zfj_machine *m, zfj_value in, zfj_value v)
{
    const zfj_list *list;
    if (in.kind == ZFJ_STRING) {
        if (v.kind != ZFJ_STRING) zfj_stop_kind(m, v, "in, within a string");
        return zfj_find(m, in.as.text, v.as.text, 0) != SIZE_MAX;
    }
    if (in.kind == ZFJ_DICT) {
        zfj_need_key(m, v);
        return zfj_dict_find(m, in.as.dict, v) != NULL;
    }
    list = zfj_iterate(m, in);
    for (size_t i = 0; i < list->count; i++)
        if (zfj_equal(m, list->at[i], v)) return true;
    return false;
}

/* --------------------------------------------------------------------------------- elements */

/* "'dict object' has no attribute 'x'": why there is no such element. */
static zfj_value zfj_missing(zfj_machine *m, zfj_value of, zfj_value key)
{
    zfj_out out = {.at = NULL};
    zfj_put_literal(m, &out, "an element ");
    if (key.kind <= ZFJ_STRING && !key.safe) zfj_put_value(m, &out, key, true);
    zfj_put_literal(m, &out, " of a value of the kind ");
    zfj_put_literal(m, &out, zfj_kind_name(of));
    return zfj_undefined(zfj_taken(&out));
}

/* Byte `index` of characters; the string is long enough. */
static size_t zfj_byte_of(zfj_string s, size_t index)
{
    size_t at = 0;
    for (; at < s.bytes; at++)
        if ((s.at[at] & 0xC0) != 0x80 && !index--) break;
    return at;
}

static zfj_value zfj_element(zfj_machine *m, zfj_value of, int64_t index)
{
    const bool text = of.kind == ZFJ_STRING;
    const int64_t count =
        text ? (int64_t)zfj_characters(m, of.as.text) : (int64_t)of.as.list->count;
    size_t at;
    if (index < 0) index += count;
    if (index < 0 || index >= count) return zfj_missing(m, of, zfj_int(index));
    if (!text) return of.as.list->at[index];
    at = zfj_byte_of(of.as.text, (size_t)index);
    return zfj_like(of, zfj_part(of.as.text, at,
                                 at + zfj_byte_of(zfj_part(of.as.text, at, of.as.text.bytes), 1)));
}

static bool zfj_is_method(zfj_kind kind, zfj_string name);
static bool zfj_is_unsafe(zfj_kind kind, zfj_string name);
static zfj_value zfj_loop_member(zfj_machine *m, struct zfj_loop *loop, zfj_string name);

static zfj_value zfj_method_of(zfj_machine *m, zfj_value self, zfj_string name)
{
    zfj_method *method = zfj_arena_clear(m, sizeof *method);
    *method = (zfj_method){self, name};
    return (zfj_value){.kind = ZFJ_METHOD, .as.method = method};
}

static bool zfj_is_number_member(zfj_string name)
{
    static const char *const names[] = {
        "real",      "imag",     "numerator",  "denominator", "conjugate",        "bit_length",
        "bit_count", "to_bytes", "from_bytes", "is_integer",  "as_integer_ratio", "hex",
        "fromhex"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (zfj_is(name, names[k])) return true;
    return false;
}

/* of.NAME, if Python has it. */
static bool zfj_attribute(zfj_machine *m, zfj_value of, zfj_string name, zfj_value *out)
{
    const zfj_value *found = NULL;
    if (of.kind == ZFJ_LOOP) *out = zfj_loop_member(m, of.as.loop, name);
    else if (of.kind == ZFJ_NAMESPACE) {
        if (!(found = zfj_dict_get(m, of.as.dict, name))) return false;
        *out = *found;
    } else if (zfj_is_method(of.kind, name)) *out = zfj_method_of(m, of, name);
    else if (zfj_is_unsafe(of.kind, name)) *out = zfj_missing(m, of, zfj_text(name));
    else if (zfj_is_number(of) && zfj_is_number_member(name))
        zfj_stop(m, "the member %.*s of numbers is not supported", (int)name.bytes, name.at);
    else return false;
    return true;
}

/* of[key], if there is such an element. */
static bool zfj_item(zfj_machine *m, zfj_value of, zfj_value key, zfj_value *out)
{
    const zfj_value *found = NULL;
    if (of.kind == ZFJ_DICT && key.kind != ZFJ_LIST && key.kind != ZFJ_DICT)
        found = zfj_dict_find(m, of.as.dict, key);
    if (found) *out = *found;
    else if (zfj_is_integer(key) && (of.kind == ZFJ_STRING || zfj_is_indexed(of)))
        *out = zfj_element(m, of, zfj_integer(key));
    else return false;
    return true;
}

/* of[key] of a template: an element, else what of.key is. */
static zfj_value zfj_get_item(zfj_machine *m, zfj_value of, zfj_value key)
{
    zfj_value v;
    if (of.kind == ZFJ_UNDEFINED) zfj_stop_undefined(m, of);
    if (of.kind >= ZFJ_MACRO) zfj_stop_kind(m, of, "an element");
    if (zfj_item(m, of, key, &v)) return v;
    if (key.kind == ZFJ_STRING && zfj_attribute(m, of, key.as.text, &v)) return v;
    return zfj_missing(m, of, key);
}

/* of.NAME of a template: what Python has by that name, else an element. */
static zfj_value zfj_get_attribute(zfj_machine *m, zfj_value of, zfj_string name)
{
    zfj_value v;
    if (of.kind == ZFJ_UNDEFINED) zfj_stop_undefined(m, of);
    if (of.kind >= ZFJ_MACRO) zfj_stop_kind(m, of, "a member");
    if (zfj_attribute(m, of, name, &v) || zfj_item(m, of, zfj_text(name), &v)) return v;
    return zfj_missing(m, of, zfj_text(name));
}

/* ----------------------------------------------------------------------------------- slices */

/* A bound of a slice of `count` elements; none: `otherwise`. */
static int64_t zfj_bound(zfj_machine *m, zfj_value v, int64_t count, int64_t step,
                         int64_t otherwise)
{
    int64_t at;
    if (v.kind == ZFJ_NONE) return otherwise;
    if (!zfj_is_integer(v)) zfj_stop_kind(m, v, "a bound of a slice");
    at = zfj_integer(v);
    if (at < 0) at += count;
    if (at < 0) at = step < 0 ? -1 : 0;
    if (at >= count) at = step < 0 ? count - 1 : count;
    return at;
}

/* of[from:to:by]; bounds may be none. */
static zfj_value zfj_slice(zfj_machine *m, zfj_value of, zfj_value from, zfj_value to, zfj_value by)
{
    int64_t count, step, begin, end;
    const zfj_list *list;
    zfj_value part;
    zfj_out out = {.at = NULL};
    if (of.kind != ZFJ_STRING && of.kind != ZFJ_LIST && of.kind != ZFJ_TUPLE)
        zfj_stop_kind(m, of, "a slice");
    if (by.kind != ZFJ_NONE && !zfj_is_integer(by)) zfj_stop_kind(m, by, "the step of a slice");
    step = by.kind == ZFJ_NONE ? 1 : zfj_integer(by);
    if (!step) zfj_stop(m, "a slice with the step 0");
    list = of.kind == ZFJ_STRING && step == 1 ? NULL : zfj_iterate(m, of);
    count = list ? (int64_t)list->count : (int64_t)zfj_characters(m, of.as.text);
    begin = zfj_bound(m, from, count, step, step < 0 ? count - 1 : 0);
    end = zfj_bound(m, to, count, step, step < 0 ? -1 : count);
    if (!list) {
        size_t at = zfj_byte_of(of.as.text, (size_t)begin),
               stop = end > begin ? zfj_byte_of(of.as.text, (size_t)end) : at;
        return zfj_like(of, zfj_part(of.as.text, at, stop));
    }
    part = zfj_list_new(m, of.kind == ZFJ_STRING ? ZFJ_LIST : of.kind);
    for (int64_t i = begin; step > 0 ? i < end : i > end;) {
        zfj_push(m, part.as.list, list->at[i]);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    if (of.kind != ZFJ_STRING) return part;
    for (size_t i = 0; i < part.as.list->count; i++)
        zfj_put_string(m, &out, part.as.list->at[i].as.text);
    return zfj_like(of, zfj_taken(&out));
}

/* -------------------------------------------------------------------------------- arguments */

typedef struct zfj_args {
    zfj_list list;  /* by position */
    zfj_dict named; /* by name */
} zfj_args;

enum { ZFJ_PARAMETERS = 6 };

/* Arguments by the names of parameters, which are words in `names`; NULL: not given. The first
 * `required` must be. `what` is the function in messages. */
static void zfj_bind(zfj_machine *m, const zfj_args *args, zfj_string what, const char *names,
                     size_t required, const zfj_value *out[ZFJ_PARAMETERS])
{
    size_t count = 0, used = 0;
    for (const char *name = names; *name; count++) {
        zfj_string word = {name, strcspn(name, " ")};
        const zfj_value *named = zfj_dict_get(m, &args->named, word);
        out[count] = count < args->list.count ? &args->list.at[count] : named;
        if (count >= args->list.count && named) used++;
        if (count < required && !out[count])
            zfj_stop(m, "%.*s lacks its argument %.*s", (int)what.bytes, what.at, (int)word.bytes,
                     word.at);
        name += word.bytes + (name[word.bytes] == ' ');
    }
    for (size_t k = count; k < ZFJ_PARAMETERS; k++) out[k] = NULL;
    if (args->list.count > count || used < args->named.count)
        zfj_stop(m, "%.*s has an argument that is not known%s%s", (int)what.bytes, what.at,
                 *names ? ": its arguments are " : "", names);
}

static bool zfj_given_truth(const zfj_value *v) { return v && zfj_truth(*v); }

static int64_t zfj_given_integer(zfj_machine *m, const zfj_value *v, int64_t otherwise)
{
    if (!v) return otherwise;
    if (!zfj_is_integer(*v)) zfj_stop_kind(m, *v, "an argument that is an integer");
    return zfj_integer(*v);
}

static zfj_string zfj_given_string(zfj_machine *m, const zfj_value *v)
{
    if (v->kind != ZFJ_STRING) zfj_stop_kind(m, *v, "an argument that is a string");
    return v->as.text;
}
