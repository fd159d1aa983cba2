/* Runs the tree of a template. Names are looked up from the innermost scope outwards: loops,
 * macros, with, filter, call, generation and set blocks have scopes of their own, an if has
 * none. */

typedef struct zfj_variable {
    zfj_string name;
    zfj_value value;
} zfj_variable;

typedef struct zfj_scope {
    struct zfj_scope *up;
    zfj_variable *at;
    size_t count, room;
} zfj_scope;

typedef struct zfj_macro {
    const zfj_node *node;
    zfj_scope *scope; /* in which it was defined */
} zfj_macro;

typedef struct zfj_loop {
    const zfj_list *items;
    size_t index;
    zfj_value seen; /* by changed() */
} zfj_loop;

typedef struct zfj_run {
    zfj_machine m;
    zfj_scope *globals;
    zfj_out *out, *top;    /* where text goes; the text of the whole template */
    zf_jinja_spans *marks; /* NULL: they are not needed */
} zfj_run;

typedef enum zfj_flow { ZFJ_GO_ON, ZFJ_BREAK, ZFJ_CONTINUE } zfj_flow;

static zfj_value zfj_eval(zfj_run *r, zfj_scope *scope, const zfj_node *n);
static zfj_flow zfj_exec_all(zfj_run *r, zfj_scope *scope, const zfj_nodes *body);

/* ------------------------------------------------------------------------------------ scopes */

static zfj_scope *zfj_scope_new(zfj_run *r, zfj_scope *up)
{
    zfj_scope *scope = zfj_arena_clear(&r->m, sizeof *scope);
    scope->up = up;
    return scope;
}

static zfj_variable *zfj_variable_of(zfj_run *r, zfj_scope *scope, zfj_string name)
{
    zfj_charge(&r->m, scope->count / 8);
    for (size_t i = 0; i < scope->count; i++)
        if (zfj_same(scope->at[i].name, name)) return &scope->at[i];
    return NULL;
}

static void zfj_set_variable(zfj_run *r, zfj_scope *scope, zfj_string name, zfj_value value)
{
    zfj_variable *found = zfj_variable_of(r, scope, name);
    if (!found) {
        scope->at = zfj_arena_grow(&r->m, scope->at, scope->count, &scope->room, sizeof *scope->at);
        found = &scope->at[scope->count++];
        found->name = name;
    }
    found->value = value;
}

static zfj_value zfj_look_up(zfj_run *r, zfj_scope *scope, zfj_string name)
{
    const zfj_variable *found;
    for (; scope; scope = scope->up)
        if ((found = zfj_variable_of(r, scope, name))) return found->value;
    for (size_t k = 0; k < sizeof zfj_functions / sizeof *zfj_functions; k++)
        if (zfj_is(name, zfj_functions[k]))
            return (zfj_value){.kind = ZFJ_FUNCTION, .as.function = zfj_functions[k]};
    if (zfj_is(name, "self"))
        return zfj_dict_new(&r->m, ZFJ_NAMESPACE); /* blocks: there are none */
    return zfj_undefined(name);
}

static void zfj_assign(zfj_run *r, zfj_scope *scope, const zfj_node *target, zfj_value v)
{
    const zfj_list *list;
    zfj_value space;
    if (target->kind == ZFJ_NODE_NAME) {
        zfj_set_variable(r, scope, target->text, v);
    } else if (target->kind == ZFJ_NODE_MEMBER_OF) {
        space = zfj_look_up(r, scope, target->text);
        if (space.kind != ZFJ_NAMESPACE) zfj_stop_kind(&r->m, space, "a member that is set");
        if (target->value.as.text.at[0] == '_')
            zfj_stop(&r->m, "a member of a namespace that begins with _");
        zfj_dict_set(&r->m, space.as.dict, target->value, v);
    } else {
        if (v.kind == ZFJ_UNDEFINED) zfj_stop_undefined(&r->m, v);
        list = zfj_iterate(&r->m, v);
        if (list->count != target->list.count)
            zfj_stop(&r->m, "%zu values for %zu names", list->count, target->list.count);
        for (size_t i = 0; i < list->count; i++)
            zfj_assign(r, scope, target->list.at[i], list->at[i]);
    }
}

/* ------------------------------------------------------------------------------------- calls */

static void zfj_add_arguments(zfj_run *r, zfj_args *args, const zfj_node *n, zfj_value v)
{
    if (n->operator== '*') {
        if (v.kind == ZFJ_UNDEFINED) zfj_stop_undefined(&r->m, v);
        zfj_push_all(&r->m, &args->list, zfj_iterate(&r->m, v));
    } else if (n->operator== '^') {
        if (v.kind != ZFJ_DICT) zfj_stop_kind(&r->m, v, "** of a call");
        for (size_t i = 0; i < v.as.dict->count; i++) {
            if (v.as.dict->at[i].key.kind != ZFJ_STRING)
                zfj_stop_kind(&r->m, v.as.dict->at[i].key, "the name of an argument");
            zfj_dict_set(&r->m, &args->named, v.as.dict->at[i].key, v.as.dict->at[i].value);
        }
    } else if (n->text.at) {
        if (zfj_dict_get(&r->m, &args->named, n->text))
            zfj_stop(&r->m, "the argument %.*s is given twice", (int)n->text.bytes, n->text.at);
        zfj_dict_set(&r->m, &args->named, zfj_text(n->text), v);
    } else {
        zfj_push(&r->m, &args->list, v);
    }
}

static zfj_args zfj_eval_arguments(zfj_run *r, zfj_scope *scope, const zfj_nodes *list)
{
    zfj_args args = {.list = {.at = NULL}};
    for (size_t i = 0; i < list->count; i++)
        zfj_add_arguments(r, &args, list->at[i], zfj_eval(r, scope, list->at[i]->a));
    return args;
}

/* Takes a named argument out of them; NULL: it is not given. */
static const zfj_value *zfj_take_named(zfj_run *r, zfj_args *args, zfj_string name)
{
    zfj_dict rest = {.at = NULL};
    const zfj_value *found = NULL;
    for (size_t i = 0; i < args->named.count; i++) {
        zfj_pair *pair = &args->named.at[i];
        if (zfj_same(pair->key.as.text, name)) found = &pair->value;
        else zfj_dict_set(&r->m, &rest, pair->key, pair->value);
    }
    if (found) args->named = rest;
    return found;
}

/* The output of a body in a scope, as a string. */
static zfj_value zfj_capture(zfj_run *r, zfj_scope *scope, const zfj_nodes *body, zfj_flow *flow)
{
    zfj_out text = {.at = NULL}, *before = r->out;
    r->out = &text;
    *flow = zfj_exec_all(r, scope, body);
    r->out = before;
    return zfj_text_of(&text);
}

static zfj_value zfj_call_macro(zfj_run *r, const zfj_macro *macro, zfj_args args)
{
    const zfj_node *n = macro->node;
    zfj_scope *scope = zfj_scope_new(r, macro->scope);
    const zfj_value *v;
    zfj_value rest = zfj_list_new(&r->m, ZFJ_TUPLE);
    zfj_flow flow;
    for (size_t i = 0; i < n->list.count; i++) {
        const zfj_node *parameter = n->list.at[i];
        v = i < args.list.count ? &args.list.at[i] : zfj_take_named(r, &args, parameter->text);
        zfj_set_variable(r, scope, parameter->text,
                         v              ? *v
                         : parameter->a ? zfj_eval(r, scope, parameter->a)
                                        : zfj_undefined(parameter->text));
    }
    if (n->takes_caller && n->kind == ZFJ_NODE_MACRO) {
        v = zfj_take_named(r, &args, zfj_string_of("caller"));
        zfj_set_variable(r, scope, zfj_string_of("caller"),
                         v ? *v : zfj_undefined(zfj_string_of("caller")));
    }
    *rest.as.list = zfj_args_after(&args, n->list.count).list;
    if (rest.as.list->count && !n->takes_varargs)
        zfj_stop(&r->m, "the macro %.*s takes not more than %zu arguments", (int)n->text.bytes,
                 n->text.at, n->list.count);
    if (args.named.count && !n->takes_kwargs)
        zfj_stop(&r->m, "the macro %.*s takes no argument %.*s", (int)n->text.bytes, n->text.at,
                 (int)args.named.at[0].key.as.text.bytes, args.named.at[0].key.as.text.at);
    if (n->takes_varargs) zfj_set_variable(r, scope, zfj_string_of("varargs"), rest);
    if (n->takes_kwargs) {
        zfj_value named = zfj_dict_new(&r->m, ZFJ_DICT);
        *named.as.dict = args.named;
        zfj_set_variable(r, scope, zfj_string_of("kwargs"), named);
    }
    return zfj_capture(r, scope, &n->body, &flow);
}

static zfj_value zfj_call_loop(zfj_machine *m, zfj_loop *loop, zfj_string name,
                               const zfj_args *args)
{
    zfj_value all = zfj_list_new(m, ZFJ_TUPLE);
    bool changed;
    if (args->named.count) zfj_stop(m, "%.*s takes no argument by name", (int)name.bytes, name.at);
    if (zfj_is(name, "cycle")) {
        if (!args->list.count) zfj_stop(m, "cycle of nothing");
        return args->list.at[loop->index % args->list.count];
    }
    *all.as.list = args->list;
    changed = loop->seen.kind == ZFJ_UNDEFINED || !zfj_equal(m, loop->seen, all);
    loop->seen = all;
    return zfj_bool(changed);
}

static zfj_value zfj_call(zfj_run *r, zfj_value callee, const zfj_args *args)
{
    zfj_charge(&r->m, 1);
    switch (callee.kind) {
    case ZFJ_MACRO: return zfj_call_macro(r, callee.as.macro, *args);
    case ZFJ_FUNCTION: return zfj_call_function(&r->m, callee.as.function, args);
    case ZFJ_METHOD:
        if (callee.as.method->self.kind == ZFJ_LOOP)
            return zfj_call_loop(&r->m, callee.as.method->self.as.loop, callee.as.method->name,
                                 args);
        return zfj_call_method(&r->m, callee.as.method, args);
    default: zfj_stop_kind(&r->m, callee, "a call");
    }
}

static zfj_value zfj_loop_member(zfj_machine *m, zfj_loop *loop, zfj_string name)
{
    const int64_t count = (int64_t)loop->items->count, index = (int64_t)loop->index;
    const zfj_value self = {.kind = ZFJ_LOOP, .as.loop = loop};
    if (zfj_is(name, "index")) return zfj_int(index + 1);
    if (zfj_is(name, "index0")) return zfj_int(index);
    if (zfj_is(name, "first")) return zfj_bool(!index);
    if (zfj_is(name, "last")) return zfj_bool(index + 1 == count);
    if (zfj_is(name, "length")) return zfj_int(count);
    if (zfj_is(name, "revindex")) return zfj_int(count - index);
    if (zfj_is(name, "revindex0")) return zfj_int(count - index - 1);
    if (zfj_is(name, "depth")) return zfj_int(1);
    if (zfj_is(name, "depth0")) return zfj_int(0);
    if (zfj_is(name, "previtem") && index) return loop->items->at[index - 1];
    if (zfj_is(name, "nextitem") && index + 1 < count) return loop->items->at[index + 1];
    if (zfj_is(name, "cycle") || zfj_is(name, "changed")) return zfj_method_of(m, self, name);
    return zfj_undefined(name);
}

/* ------------------------------------------------------------------------------- expressions */

static bool zfj_compared(zfj_run *r, char operator, zfj_value a, zfj_value b)
{
    int order;
    switch (operator) {
    case '=': return zfj_equal(&r->m, a, b);
    case '!': return !zfj_equal(&r->m, a, b);
    case 'i': return zfj_contains(&r->m, b, a);
    case 'n': return !zfj_contains(&r->m, b, a);
    case '<': return zfj_compare(&r->m, a, b) == -1;
    case '>': return zfj_compare(&r->m, a, b) == 1;
    default: order = zfj_compare(&r->m, a, b); return !order || order == (operator== 'l' ? -1 : 1);
    }
}

static zfj_value zfj_eval_compare(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_value a = zfj_eval(r, scope, n->a);
    for (size_t i = 0; i < n->list.count; i++) {
        zfj_value b = zfj_eval(r, scope, n->list.at[i]->a);
        r->m.line = n->line;
        if (!zfj_compared(r, n->list.at[i]->operator, a, b)) return zfj_bool(false);
        a = b;
    }
    return zfj_bool(true);
}

static zfj_value zfj_eval_list(zfj_run *r, zfj_scope *scope, const zfj_node *n, zfj_kind kind)
{
    zfj_value v = zfj_list_new(&r->m, kind);
    for (size_t i = 0; i < n->list.count; i++)
        zfj_push(&r->m, v.as.list, zfj_eval(r, scope, n->list.at[i]));
    return v;
}

static zfj_value zfj_eval_dict(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_value v = zfj_dict_new(&r->m, ZFJ_DICT);
    for (size_t i = 0; i + 1 < n->list.count; i += 2) {
        zfj_value key = zfj_eval(r, scope, n->list.at[i]);
        zfj_dict_set(&r->m, v.as.dict, key, zfj_eval(r, scope, n->list.at[i + 1]));
    }
    return v;
}

static zfj_value zfj_eval_concat(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_out out = {.at = NULL};
    for (size_t i = 0; i < n->list.count; i++)
        zfj_put_value(&r->m, &out, zfj_eval(r, scope, n->list.at[i]), false);
    return zfj_text_of(&out);
}

static zfj_value zfj_eval_slice(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_value of = zfj_eval(r, scope, n->a), part[3] = {zfj_none, zfj_none, zfj_none};
    for (size_t i = 0; i < n->list.count; i++)
        if (n->list.at[i]) part[i] = zfj_eval(r, scope, n->list.at[i]);
    r->m.line = n->line;
    return zfj_slice(&r->m, of, part[0], part[1], part[2]);
}

static zfj_value zfj_eval_filter(zfj_run *r, zfj_scope *scope, const zfj_node *n, zfj_value of)
{
    const bool inner = n->a && n->a->kind == ZFJ_NODE_FILTER;
    zfj_args args;
    zfj_enter_level(&r->m);
    if (n->a) of = inner ? zfj_eval_filter(r, scope, n->a, of) : zfj_eval(r, scope, n->a);
    args = zfj_eval_arguments(r, scope, &n->list);
    r->m.line = n->line;
    of = zfj_apply_filter(&r->m, n->text, of, &args);
    zfj_leave_level(&r->m);
    return of;
}

static zfj_value zfj_eval_test(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_value v = zfj_eval(r, scope, n->a);
    zfj_args args = zfj_eval_arguments(r, scope, &n->list);
    r->m.line = n->line;
    return zfj_bool(zfj_apply_test(&r->m, n->text, v, &args));
}

static zfj_value zfj_eval_call(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_value callee = zfj_eval(r, scope, n->a);
    zfj_args args = zfj_eval_arguments(r, scope, &n->list);
    r->m.line = n->line;
    return zfj_call(r, callee, &args);
}

static zfj_value zfj_eval_choice(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    if (zfj_truth(zfj_eval(r, scope, n->b))) return zfj_eval(r, scope, n->a);
    if (n->c) return zfj_eval(r, scope, n->c);
    return zfj_undefined(zfj_string_of("the value of an if without else"));
}

static zfj_value zfj_eval_operator(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_value a = zfj_eval(r, scope, n->a), b = zfj_eval(r, scope, n->b);
    r->m.line = n->line;
    return zfj_arithmetic(&r->m, n->operator, a, b);
}

static zfj_value zfj_eval_item(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_value of = zfj_eval(r, scope, n->a), key = zfj_eval(r, scope, n->b);
    r->m.line = n->line;
    return zfj_get_item(&r->m, of, key);
}

static zfj_value zfj_eval_sign(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_value v = zfj_eval(r, scope, n->a);
    if (n->kind == ZFJ_NODE_NEGATIVE) return zfj_negative(&r->m, v);
    if (!zfj_is_number(v)) zfj_stop_kind(&r->m, v, "+");
    return v.kind == ZFJ_BOOL ? zfj_int(v.as.truth) : v;
}

static zfj_value zfj_eval_logic(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_value a = zfj_eval(r, scope, n->a);
    return zfj_truth(a) == (n->kind == ZFJ_NODE_OR) ? a : zfj_eval(r, scope, n->b);
}

static zfj_value zfj_eval_kind(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    switch (n->kind) {
    case ZFJ_NODE_CONSTANT: return n->value;
    case ZFJ_NODE_NAME: return zfj_look_up(r, scope, n->text);
    case ZFJ_NODE_TUPLE: return zfj_eval_list(r, scope, n, ZFJ_TUPLE);
    case ZFJ_NODE_LIST: return zfj_eval_list(r, scope, n, ZFJ_LIST);
    case ZFJ_NODE_DICT: return zfj_eval_dict(r, scope, n);
    case ZFJ_NODE_CHOICE: return zfj_eval_choice(r, scope, n);
    case ZFJ_NODE_OR:
    case ZFJ_NODE_AND: return zfj_eval_logic(r, scope, n);
    case ZFJ_NODE_NOT: return zfj_bool(!zfj_truth(zfj_eval(r, scope, n->a)));
    case ZFJ_NODE_COMPARE: return zfj_eval_compare(r, scope, n);
    case ZFJ_NODE_OPERATOR: return zfj_eval_operator(r, scope, n);
    case ZFJ_NODE_CONCAT: return zfj_eval_concat(r, scope, n);
    case ZFJ_NODE_NEGATIVE:
    case ZFJ_NODE_POSITIVE: return zfj_eval_sign(r, scope, n);
    case ZFJ_NODE_ATTRIBUTE: return zfj_get_attribute(&r->m, zfj_eval(r, scope, n->a), n->text);
    case ZFJ_NODE_ITEM: return zfj_eval_item(r, scope, n);
    case ZFJ_NODE_SLICE: return zfj_eval_slice(r, scope, n);
    case ZFJ_NODE_CALL: return zfj_eval_call(r, scope, n);
    case ZFJ_NODE_FILTER: return zfj_eval_filter(r, scope, n, zfj_none);
    default: return zfj_eval_test(r, scope, n);
    }
}

static zfj_value zfj_eval(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_value v;
    zfj_charge(&r->m, 1);
    zfj_enter_level(&r->m);
    r->m.line = n->line;
    v = zfj_eval_kind(r, scope, n);
    zfj_leave_level(&r->m);
    return v;
}

/* -------------------------------------------------------------------------------- statements */

/* The elements that a loop goes through: those for which its condition is true. */
static zfj_list *zfj_items_of(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_list *all = zfj_iterate(&r->m, zfj_eval(r, scope, n->b)), *some;
    if (!n->c) return all;
    some = zfj_list_new(&r->m, ZFJ_LIST).as.list;
    for (size_t i = 0; i < all->count; i++) {
        zfj_scope *inner = zfj_scope_new(r, scope);
        zfj_assign(r, inner, n->a, all->at[i]);
        if (zfj_truth(zfj_eval(r, inner, n->c))) zfj_push(&r->m, some, all->at[i]);
    }
    return some;
}

static zfj_flow zfj_exec_for(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    const zfj_list *items = zfj_items_of(r, scope, n);
    zfj_flow flow;
    zfj_loop *loop = zfj_arena_clear(&r->m, sizeof *loop);
    const zfj_value self = {.kind = ZFJ_LOOP, .as.loop = loop};
    bool whole = false; /* an element has gone through the whole body: else is for loops of none */
    loop->items = items;
    for (; loop->index < items->count; loop->index++) {
        zfj_scope *inner = zfj_scope_new(r, scope);
        zfj_charge(&r->m, 1);
        zfj_set_variable(r, inner, zfj_string_of("loop"), self);
        zfj_assign(r, inner, n->a, items->at[loop->index]);
        flow = zfj_exec_all(r, inner, &n->body);
        whole |= flow == ZFJ_GO_ON;
        if (flow == ZFJ_BREAK) break;
    }
    return whole ? ZFJ_GO_ON : zfj_exec_all(r, zfj_scope_new(r, scope), &n->other);
}

static zfj_flow zfj_exec_if(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    for (size_t i = 0; i < n->list.count; i++) {
        const zfj_node *branch = n->list.at[i];
        if (!branch->a || zfj_truth(zfj_eval(r, scope, branch->a)))
            return zfj_exec_all(r, scope, &branch->body);
    }
    return ZFJ_GO_ON;
}

static zfj_flow zfj_exec_captured(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    const zfj_node *filters = n->kind == ZFJ_NODE_SET_BLOCK ? n->b : n->a;
    zfj_scope *inner = zfj_scope_new(r, scope);
    zfj_flow flow;
    zfj_value text = zfj_capture(r, inner, &n->body, &flow);
    if (flow) return flow;
    if (filters) text = zfj_eval_filter(r, inner, filters, text);
    if (n->kind == ZFJ_NODE_SET_BLOCK) zfj_assign(r, scope, n->a, text);
    else zfj_put_value(&r->m, r->out, text, false);
    return ZFJ_GO_ON;
}

static zfj_value zfj_macro_of(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_macro *macro = zfj_arena_take(&r->m, sizeof *macro);
    *macro = (zfj_macro){n, scope};
    return (zfj_value){.kind = ZFJ_MACRO, .as.macro = macro};
}

static void zfj_exec_call_block(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_value callee = zfj_eval(r, scope, n->a->a);
    zfj_args args = zfj_eval_arguments(r, scope, &n->a->list);
    zfj_dict_put(&r->m, &args.named, "caller", zfj_macro_of(r, scope, n));
    r->m.line = n->line;
    zfj_put_value(&r->m, r->out, zfj_call(r, callee, &args), false);
}

static zfj_flow zfj_exec_with(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    zfj_scope *inner = zfj_scope_new(r, scope);
    for (size_t i = 0; i < n->list.count; i++)
        zfj_assign(r, inner, n->list.at[i]->a, zfj_eval(r, scope, n->list.at[i]->b));
    return zfj_exec_all(r, inner, &n->body);
}

static void zfj_exec_generation(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    const size_t begin = r->out->count;
    zf_jinja_spans *marks = r->marks;
    r->m.line = n->line;
    if (marks && r->out != r->top)
        zfj_stop(&r->m, "a generation block within a macro or a set block has no place in the "
                        "text");
    (void)zfj_exec_all(r, zfj_scope_new(r, scope), &n->body);
    if (!marks) return;
    marks->at = zfj_arena_grow(&r->m, marks->at, marks->count, &marks->room, sizeof *marks->at);
    marks->at[marks->count++] = (zf_jinja_span){begin, r->out->count};
}

static zfj_flow zfj_exec(zfj_run *r, zfj_scope *scope, const zfj_node *n)
{
    switch (n->kind) {
    case ZFJ_NODE_DATA: zfj_put_string(&r->m, r->out, n->text); break;
    case ZFJ_NODE_PRINT: zfj_put_value(&r->m, r->out, zfj_eval(r, scope, n->a), false); break;
    case ZFJ_NODE_FOR: return zfj_exec_for(r, scope, n);
    case ZFJ_NODE_IF: return zfj_exec_if(r, scope, n);
    case ZFJ_NODE_SET: zfj_assign(r, scope, n->a, zfj_eval(r, scope, n->b)); break;
    case ZFJ_NODE_SET_BLOCK:
    case ZFJ_NODE_FILTER_BLOCK: return zfj_exec_captured(r, scope, n);
    case ZFJ_NODE_MACRO: zfj_set_variable(r, scope, n->text, zfj_macro_of(r, scope, n)); break;
    case ZFJ_NODE_CALL_BLOCK: zfj_exec_call_block(r, scope, n); break;
    case ZFJ_NODE_WITH: return zfj_exec_with(r, scope, n);
    case ZFJ_NODE_GENERATION: zfj_exec_generation(r, scope, n); break;
    case ZFJ_NODE_BREAK: return ZFJ_BREAK;
    default: return ZFJ_CONTINUE;
    }
    return ZFJ_GO_ON;
}

static zfj_flow zfj_exec_all(zfj_run *r, zfj_scope *scope, const zfj_nodes *body)
{
    zfj_flow flow = ZFJ_GO_ON;
    zfj_enter_level(&r->m);
    for (size_t i = 0; i < body->count && !flow; i++) {
        zfj_charge(&r->m, 1);
        r->m.line = body->at[i]->line;
        flow = zfj_exec(r, scope, body->at[i]);
    }
    zfj_leave_level(&r->m);
    return flow;
}
