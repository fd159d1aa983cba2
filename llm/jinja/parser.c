/* A template as a tree, with jinja2's precedence:
 *
 *     a if b else c   or   and   not   == < in   + -   ~   * / // %   **   -x   .x [x] (x)   | is
 */

typedef enum zfj_node_kind {
    ZFJ_NODE_DATA,         /* text */
    ZFJ_NODE_PRINT,        /* a */
    ZFJ_NODE_FOR,          /* target a, of b, if c; body, other: else */
    ZFJ_NODE_IF,           /* list: branches */
    ZFJ_NODE_BRANCH,       /* if a (NULL: else); body */
    ZFJ_NODE_SET,          /* a = b */
    ZFJ_NODE_SET_BLOCK,    /* a = body, through the filters b */
    ZFJ_NODE_MACRO,        /* text; list: parameters; body */
    ZFJ_NODE_CALL_BLOCK,   /* list: parameters; a: the call; body */
    ZFJ_NODE_FILTER_BLOCK, /* body, through the filters a */
    ZFJ_NODE_WITH,         /* list: SET; body */
    ZFJ_NODE_GENERATION,   /* body */
    ZFJ_NODE_BREAK,
    ZFJ_NODE_CONTINUE,
    ZFJ_NODE_CONSTANT,  /* value */
    ZFJ_NODE_NAME,      /* text; in parameters a: the default */
    ZFJ_NODE_MEMBER_OF, /* text.name, of a namespace, to be set: text, value */
    ZFJ_NODE_TUPLE,     /* list */
    ZFJ_NODE_LIST,
    ZFJ_NODE_DICT,   /* list: key, value, key, value */
    ZFJ_NODE_CHOICE, /* a if b else c */
    ZFJ_NODE_OR,
    ZFJ_NODE_AND,
    ZFJ_NODE_NOT,
    ZFJ_NODE_COMPARE,  /* a, list: OPERAND */
    ZFJ_NODE_OPERAND,  /* operator a */
    ZFJ_NODE_OPERATOR, /* a operator b */
    ZFJ_NODE_CONCAT,   /* list */
    ZFJ_NODE_NEGATIVE,
    ZFJ_NODE_POSITIVE,
    ZFJ_NODE_ATTRIBUTE, /* a.text */
    ZFJ_NODE_ITEM,      /* a[b] */
    ZFJ_NODE_SLICE,     /* a[list] */
    ZFJ_NODE_CALL,      /* a(list) */
    ZFJ_NODE_FILTER,    /* a | text(list); a NULL: of the block */
    ZFJ_NODE_TEST,      /* a is text(list) */
    ZFJ_NODE_ARGUMENT   /* a; text: its name; operator * and ^ for *a and **a */
} zfj_node_kind;

typedef struct zfj_node zfj_node;

typedef struct zfj_nodes {
    zfj_node **at;
    size_t count, room;
} zfj_nodes;

struct zfj_node {
    zfj_node_kind kind;
    int line;
    char operator; /* of comparisons = ! < > l g i n: == != < > <= >= in, not in */
    bool takes_kwargs, takes_varargs, takes_caller; /* a macro whose body has these names */
    zfj_string text;
    zfj_value value;
    zfj_node *a, *b, *c;
    zfj_nodes list, body, other;
};

typedef struct zfj_parser {
    zfj_machine *m;
    const zfj_token *at;
    int loops;                    /* around this place, within the macro */
    int choices;                  /* if's around it */
    bool kwargs, varargs, caller; /* names that the macro has so far */
    bool marked;                  /* the template has a generation block */
} zfj_parser;

/* ----------------------------------------------------------------------------------- tokens */

static bool zfj_at_operator(const zfj_parser *p, const char *text)
{
    return p->at->kind == ZFJ_OPERATOR && zfj_is(p->at->text, text);
}

static bool zfj_at_word(const zfj_parser *p, const char *text)
{
    return p->at->kind == ZFJ_NAME && zfj_is(p->at->text, text);
}

static void zfj_next(zfj_parser *p)
{
    if (p->at->kind != ZFJ_END) p->at++;
    p->m->line = p->at->line;
}

static bool zfj_skip_operator(zfj_parser *p, const char *text)
{
    if (!zfj_at_operator(p, text)) return false;
    zfj_next(p);
    return true;
}

static bool zfj_skip_word(zfj_parser *p, const char *text)
{
    if (!zfj_at_word(p, text)) return false;
    zfj_next(p);
    return true;
}

__attribute__((noreturn)) static void zfj_unexpected(zfj_parser *p, const char *expected)
{
    const zfj_string s = p->at->text;
    zfj_stop(p->m, "%s is expected, not %.*s%s", expected, (int)(s.bytes < 40 ? s.bytes : 40), s.at,
             s.bytes < 40 ? "" : "...");
}

static void zfj_expect_operator(zfj_parser *p, const char *text)
{
    if (!zfj_skip_operator(p, text)) zfj_unexpected(p, text);
}

static void zfj_expect_end(zfj_parser *p, zfj_token_kind kind)
{
    if (p->at->kind != kind) zfj_unexpected(p, kind == ZFJ_BLOCK_END ? "%}" : "}}");
    zfj_next(p);
}

static zfj_string zfj_expect_name(zfj_parser *p)
{
    const zfj_string name = p->at->text;
    if (p->at->kind != ZFJ_NAME) zfj_unexpected(p, "a name");
    zfj_next(p);
    return name;
}

static zfj_node *zfj_node_new(zfj_parser *p, zfj_node_kind kind)
{
    zfj_node *n = zfj_arena_clear(p->m, sizeof *n);
    zfj_charge(p->m, 1);
    n->kind = kind, n->line = p->at->line;
    return n;
}

static zfj_node *zfj_node_of(zfj_parser *p, zfj_node_kind kind, zfj_node *a)
{
    zfj_node *n = zfj_node_new(p, kind);
    n->a = a;
    if (a) n->line = a->line;
    return n;
}

static void zfj_add_node(zfj_parser *p, zfj_nodes *list, zfj_node *n)
{
    list->at = zfj_arena_grow(p->m, list->at, list->count, &list->room, sizeof(zfj_node *));
    list->at[list->count++] = n;
}

/* ------------------------------------------------------------------------------ expressions */

static zfj_node *zfj_parse_expression(zfj_parser *p);
static zfj_node *zfj_parse_or(zfj_parser *p);
static zfj_node *zfj_parse_unary(zfj_parser *p, bool filters);
static zfj_node *zfj_parse_tuple(zfj_parser *p, bool choice, const char *end, bool in_brackets);

static zfj_node *zfj_constant(zfj_parser *p, zfj_value value)
{
    zfj_node *n = zfj_node_new(p, ZFJ_NODE_CONSTANT);
    n->value = value;
    return n;
}

static bool zfj_word_value(zfj_string name, zfj_value *value)
{
    if (zfj_is(name, "true") || zfj_is(name, "True")) *value = zfj_bool(true);
    else if (zfj_is(name, "false") || zfj_is(name, "False")) *value = zfj_bool(false);
    else if (zfj_is(name, "none") || zfj_is(name, "None")) *value = zfj_none;
    else return false;
    return true;
}

static zfj_node *zfj_parse_name(zfj_parser *p)
{
    zfj_value value;
    zfj_node *n;
    if (zfj_word_value(p->at->text, &value)) n = zfj_constant(p, value);
    else {
        n = zfj_node_new(p, ZFJ_NODE_NAME);
        n->text = p->at->text;
        p->kwargs |= zfj_is(n->text, "kwargs");
        p->varargs |= zfj_is(n->text, "varargs");
        p->caller |= zfj_is(n->text, "caller");
    }
    zfj_next(p);
    return n;
}

static zfj_node *zfj_parse_strings(zfj_parser *p)
{
    zfj_node *n = zfj_constant(p, zfj_text(p->at->text));
    zfj_out out = {.at = NULL};
    zfj_next(p);
    if (p->at->kind != ZFJ_TEXT) return n;
    zfj_put_string(p->m, &out, n->value.as.text);
    for (; p->at->kind == ZFJ_TEXT; zfj_next(p)) zfj_put_string(p->m, &out, p->at->text);
    n->value = zfj_text_of(&out);
    return n;
}

/* [a, b] or {a: b}; after its first bracket. */
static zfj_node *zfj_parse_elements(zfj_parser *p, zfj_node_kind kind, const char *end)
{
    zfj_node *n = zfj_node_new(p, kind);
    while (!zfj_at_operator(p, end)) {
        if (n->list.count) zfj_expect_operator(p, ",");
        if (zfj_at_operator(p, end)) break;
        zfj_add_node(p, &n->list, zfj_parse_expression(p));
        if (kind != ZFJ_NODE_DICT) continue;
        zfj_expect_operator(p, ":");
        zfj_add_node(p, &n->list, zfj_parse_expression(p));
    }
    zfj_next(p);
    return n;
}

static zfj_node *zfj_parse_primary(zfj_parser *p)
{
    zfj_node *n;
    if (p->at->kind == ZFJ_NAME) return zfj_parse_name(p);
    if (p->at->kind == ZFJ_TEXT) return zfj_parse_strings(p);
    if (p->at->kind == ZFJ_NUMBER) {
        n = zfj_constant(p, p->at->value);
        zfj_next(p);
        return n;
    }
    if (zfj_skip_operator(p, "[")) return zfj_parse_elements(p, ZFJ_NODE_LIST, "]");
    if (zfj_skip_operator(p, "{")) return zfj_parse_elements(p, ZFJ_NODE_DICT, "}");
    if (!zfj_skip_operator(p, "(")) zfj_unexpected(p, "an expression");
    n = zfj_parse_tuple(p, true, NULL, true);
    zfj_expect_operator(p, ")");
    return n;
}

/* The arguments of a call, from its bracket on. */
static void zfj_parse_arguments(zfj_parser *p, zfj_nodes *list)
{
    zfj_expect_operator(p, "(");
    while (!zfj_at_operator(p, ")")) {
        zfj_node *n;
        if (list->count) zfj_expect_operator(p, ",");
        if (zfj_at_operator(p, ")")) break;
        n = zfj_node_new(p, ZFJ_NODE_ARGUMENT);
        if (zfj_skip_operator(p, "*")) n->operator= '*';
        else if (zfj_skip_operator(p, "**")) n->operator= '^';
        else if (p->at->kind == ZFJ_NAME && p->at[1].kind == ZFJ_OPERATOR &&
                 zfj_is(p->at[1].text, "=")) {
            n->text = zfj_expect_name(p);
            zfj_next(p);
        } else if (list->count &&
                   (list->at[list->count - 1]->text.at || list->at[list->count - 1]->operator)) {
            zfj_stop(p->m, "an argument by position after others");
        }
        n->a = zfj_parse_expression(p);
        zfj_add_node(p, list, n);
    }
    zfj_next(p);
}

/* One index, or from:to:by. */
static zfj_node *zfj_parse_subscript(zfj_parser *p, zfj_node *of)
{
    zfj_node *n = zfj_node_of(p, ZFJ_NODE_ITEM, of);
    if (!zfj_at_operator(p, ":")) n->b = zfj_parse_expression(p);
    if (zfj_at_operator(p, ":")) {
        n->kind = ZFJ_NODE_SLICE;
        zfj_add_node(p, &n->list, n->b);
        while (n->list.count < 3 && zfj_skip_operator(p, ":")) {
            bool empty = zfj_at_operator(p, "]") || zfj_at_operator(p, ":");
            zfj_add_node(p, &n->list, empty ? NULL : zfj_parse_expression(p));
        }
    }
    zfj_expect_operator(p, "]");
    return n;
}

static zfj_node *zfj_parse_dot(zfj_parser *p, zfj_node *of)
{
    zfj_node *n = zfj_node_of(p, ZFJ_NODE_ATTRIBUTE, of);
    if (p->at->kind == ZFJ_NUMBER && p->at->value.kind == ZFJ_INT) {
        n->kind = ZFJ_NODE_ITEM;
        n->b = zfj_constant(p, p->at->value);
        zfj_next(p);
    } else n->text = zfj_expect_name(p);
    return n;
}

static zfj_node *zfj_parse_call(zfj_parser *p, zfj_node *of)
{
    zfj_node *n = zfj_node_of(p, ZFJ_NODE_CALL, of);
    zfj_parse_arguments(p, &n->list);
    return n;
}

static zfj_node *zfj_parse_postfix(zfj_parser *p, zfj_node *n)
{
    for (;;) {
        if (zfj_skip_operator(p, ".")) n = zfj_parse_dot(p, n);
        else if (zfj_skip_operator(p, "[")) n = zfj_parse_subscript(p, n);
        else if (zfj_at_operator(p, "(")) n = zfj_parse_call(p, n);
        else return n;
    }
}

/* A filter's or test's name, and whether jinja2 has it: within an if it may be missing. */
static zfj_string zfj_parse_function(zfj_parser *p, bool filter)
{
    zfj_string name = zfj_expect_name(p);
    if (!p->choices && !(filter ? zfj_is_filter(name) : zfj_test_arguments(name) >= 0))
        zfj_stop(p->m, "the %s %.*s is not known", filter ? "filter" : "test",
                 (int)(name.bytes < 100 ? name.bytes : 100), name.at);
    return name;
}

static zfj_node *zfj_parse_filter(zfj_parser *p, zfj_node *of)
{
    zfj_node *n = zfj_node_of(p, ZFJ_NODE_FILTER, of);
    n->line = p->at->line;
    n->text = zfj_parse_function(p, true);
    if (zfj_at_operator(p, "(")) zfj_parse_arguments(p, &n->list);
    return n;
}

static zfj_node *zfj_parse_test(zfj_parser *p, zfj_node *of)
{
    const bool not = zfj_skip_word(p, "not");
    zfj_node *n = zfj_node_of(p, ZFJ_NODE_TEST, of), *argument;
    n->text = zfj_parse_function(p, false);
    if (zfj_at_operator(p, "(")) zfj_parse_arguments(p, &n->list);
    else if ((p->at->kind == ZFJ_NAME && !zfj_at_word(p, "else") && !zfj_at_word(p, "or") &&
              !zfj_at_word(p, "and")) ||
             p->at->kind == ZFJ_TEXT || p->at->kind == ZFJ_NUMBER || zfj_at_operator(p, "[") ||
             zfj_at_operator(p, "{")) {
        if (zfj_at_word(p, "is")) zfj_stop(p->m, "a test of a test");
        argument = zfj_node_new(p, ZFJ_NODE_ARGUMENT);
        argument->a = zfj_parse_postfix(p, zfj_parse_primary(p));
        zfj_add_node(p, &n->list, argument);
    }
    return not ? zfj_node_of(p, ZFJ_NODE_NOT, n) : n;
}

static zfj_node *zfj_parse_filters(zfj_parser *p, zfj_node *n)
{
    for (;;) {
        if (zfj_skip_operator(p, "|")) n = zfj_parse_filter(p, n);
        else if (zfj_skip_word(p, "is")) n = zfj_parse_test(p, n);
        else if (zfj_at_operator(p, "(")) n = zfj_parse_call(p, n);
        else return n;
    }
}

static zfj_node *zfj_parse_unary(zfj_parser *p, bool filters)
{
    zfj_node *n;
    zfj_enter_level(p->m);
    if (zfj_skip_operator(p, "-")) n = zfj_node_of(p, ZFJ_NODE_NEGATIVE, zfj_parse_unary(p, false));
    else if (zfj_skip_operator(p, "+"))
        n = zfj_node_of(p, ZFJ_NODE_POSITIVE, zfj_parse_unary(p, false));
    else n = zfj_parse_primary(p);
    n = zfj_parse_postfix(p, n);
    if (filters) n = zfj_parse_filters(p, n);
    zfj_leave_level(p->m);
    return n;
}

static zfj_node *zfj_binary(zfj_parser *p, char operator, zfj_node * a, zfj_node *b)
{
    zfj_node *n = zfj_node_of(p, ZFJ_NODE_OPERATOR, a);
    n->operator= operator, n->b = b;
    return n;
}

static zfj_node *zfj_parse_power(zfj_parser *p)
{
    zfj_node *n = zfj_parse_unary(p, true);
    while (zfj_skip_operator(p, "**")) n = zfj_binary(p, '^', n, zfj_parse_unary(p, true));
    return n;
}

static zfj_node *zfj_parse_product(zfj_parser *p)
{
    zfj_node *n = zfj_parse_power(p);
    for (;;) {
        if (zfj_skip_operator(p, "*")) n = zfj_binary(p, '*', n, zfj_parse_power(p));
        else if (zfj_skip_operator(p, "/")) n = zfj_binary(p, '/', n, zfj_parse_power(p));
        else if (zfj_skip_operator(p, "//")) n = zfj_binary(p, '_', n, zfj_parse_power(p));
        else if (zfj_skip_operator(p, "%")) n = zfj_binary(p, '%', n, zfj_parse_power(p));
        else return n;
    }
}

static zfj_node *zfj_parse_concat(zfj_parser *p)
{
    zfj_node *n = zfj_parse_product(p), *all;
    if (!zfj_at_operator(p, "~")) return n;
    all = zfj_node_of(p, ZFJ_NODE_CONCAT, NULL);
    zfj_add_node(p, &all->list, n);
    while (zfj_skip_operator(p, "~")) zfj_add_node(p, &all->list, zfj_parse_product(p));
    return all;
}

static zfj_node *zfj_parse_sum(zfj_parser *p)
{
    zfj_node *n = zfj_parse_concat(p);
    for (;;) {
        if (zfj_skip_operator(p, "+")) n = zfj_binary(p, '+', n, zfj_parse_concat(p));
        else if (zfj_skip_operator(p, "-")) n = zfj_binary(p, '-', n, zfj_parse_concat(p));
        else return n;
    }
}

/* The comparison that comes next, which is skipped; 0: none. */
static char zfj_parse_comparison(zfj_parser *p)
{
    static const char *const operators[] = {"==", "!=", "<", ">", "<=", ">="};
    for (size_t k = 0; k < sizeof operators / sizeof *operators; k++)
        if (zfj_skip_operator(p, operators[k])) return "=!<>lg"[k];
    if (zfj_skip_word(p, "in")) return 'i';
    if (!zfj_at_word(p, "not") || p->at[1].kind != ZFJ_NAME || !zfj_is(p->at[1].text, "in"))
        return 0;
    zfj_next(p);
    zfj_next(p);
    return 'n';
}

static zfj_node *zfj_parse_compare(zfj_parser *p)
{
    zfj_node *n = zfj_parse_sum(p), *all = NULL, *operand;
    for (char operator; (operator= zfj_parse_comparison(p));) {
        if (!all) all = zfj_node_of(p, ZFJ_NODE_COMPARE, n);
        operand = zfj_node_new(p, ZFJ_NODE_OPERAND);
        operand->operator= operator, operand->a = zfj_parse_sum(p);
        zfj_add_node(p, &all->list, operand);
    }
    return all ? all : n;
}

static zfj_node *zfj_parse_not(zfj_parser *p)
{
    zfj_node *n;
    if (!zfj_skip_word(p, "not")) return zfj_parse_compare(p);
    zfj_enter_level(p->m);
    n = zfj_node_of(p, ZFJ_NODE_NOT, zfj_parse_not(p));
    zfj_leave_level(p->m);
    return n;
}

/* Operands with `word` between them, from left to right. */
static zfj_node *zfj_parse_joined(zfj_parser *p, const char *word, zfj_node_kind kind,
                                  zfj_node *(*operand)(zfj_parser *p))
{
    zfj_node *n = operand(p), *both;
    while (zfj_skip_word(p, word)) {
        both = zfj_node_of(p, kind, n);
        both->b = operand(p);
        n = both;
    }
    return n;
}

static zfj_node *zfj_parse_and(zfj_parser *p)
{
    return zfj_parse_joined(p, "and", ZFJ_NODE_AND, zfj_parse_not);
}

static zfj_node *zfj_parse_or(zfj_parser *p)
{
    return zfj_parse_joined(p, "or", ZFJ_NODE_OR, zfj_parse_and);
}

static zfj_node *zfj_parse_expression(zfj_parser *p)
{
    zfj_node *n, *choice;
    zfj_enter_level(p->m);
    for (n = zfj_parse_or(p); zfj_skip_word(p, "if"); n = choice) {
        choice = zfj_node_of(p, ZFJ_NODE_CHOICE, n);
        choice->b = zfj_parse_or(p);
        if (zfj_skip_word(p, "else")) choice->c = zfj_parse_expression(p);
    }
    zfj_leave_level(p->m);
    return n;
}

static bool zfj_at_tuple_end(const zfj_parser *p, const char *end)
{
    return p->at->kind == ZFJ_PRINT_END || p->at->kind == ZFJ_BLOCK_END ||
           zfj_at_operator(p, ")") || (end && zfj_at_word(p, end));
}

/* An expression, or several with commas. choice: with `if`; end: a word that ends it too;
 * in_brackets: there may be none. */
static zfj_node *zfj_parse_tuple(zfj_parser *p, bool choice, const char *end, bool in_brackets)
{
    zfj_node *n = zfj_node_new(p, ZFJ_NODE_TUPLE);
    bool many = false;
    for (;;) {
        if (zfj_at_tuple_end(p, end)) break;
        zfj_add_node(p, &n->list, choice ? zfj_parse_expression(p) : zfj_parse_or(p));
        if (!zfj_skip_operator(p, ",")) break;
        many = true;
    }
    if (!many && n->list.count) return n->list.at[0];
    if (!many && !in_brackets) zfj_unexpected(p, "an expression");
    return n;
}

/* ------------------------------------------------------------------------------- statements */

static void zfj_parse_body(zfj_parser *p, zfj_nodes *body, const char *const *ends);

/* The body of a block up to one of the words, at which the parser then is. */
static void zfj_parse_block(zfj_parser *p, zfj_nodes *body, const char *const *ends)
{
    (void)zfj_skip_operator(p, ":");
    zfj_expect_end(p, ZFJ_BLOCK_END);
    zfj_parse_body(p, body, ends);
}

/* The same up to one word, which is skipped. */
static void zfj_parse_to(zfj_parser *p, zfj_nodes *body, const char *end)
{
    const char *const ends[] = {end, NULL};
    zfj_parse_block(p, body, ends);
    zfj_next(p);
}

/* A name that is set, ns.name, or several with commas. */
static zfj_node *zfj_parse_one_target(zfj_parser *p, bool members)
{
    zfj_value value;
    zfj_node *n;
    if (zfj_skip_operator(p, "(")) {
        n = zfj_node_new(p, ZFJ_NODE_TUPLE);
        while (!zfj_at_operator(p, ")")) {
            if (n->list.count) zfj_expect_operator(p, ",");
            if (zfj_at_operator(p, ")")) break;
            zfj_enter_level(p->m);
            zfj_add_node(p, &n->list, zfj_parse_one_target(p, false));
            zfj_leave_level(p->m);
        }
        zfj_next(p);
        return n->list.count == 1 ? n->list.at[0] : n;
    }
    n = zfj_node_new(p, ZFJ_NODE_NAME);
    n->text = zfj_expect_name(p);
    if (zfj_word_value(n->text, &value)) zfj_stop(p->m, "a constant cannot be set");
    if (!members || !zfj_skip_operator(p, ".")) return n;
    n->kind = ZFJ_NODE_MEMBER_OF;
    n->value = zfj_text(zfj_expect_name(p));
    return n;
}

static zfj_node *zfj_parse_target(zfj_parser *p, bool members, const char *end)
{
    zfj_node *n = zfj_parse_one_target(p, members), *all;
    if (!zfj_at_operator(p, ",")) return n;
    all = zfj_node_new(p, ZFJ_NODE_TUPLE);
    zfj_add_node(p, &all->list, n);
    while (zfj_skip_operator(p, ",")) {
        if (zfj_at_operator(p, "=") || zfj_at_tuple_end(p, end)) break;
        zfj_add_node(p, &all->list, zfj_parse_one_target(p, members));
    }
    return all;
}

static zfj_node *zfj_parse_set(zfj_parser *p)
{
    zfj_node *n = zfj_node_new(p, ZFJ_NODE_SET);
    n->a = zfj_parse_target(p, true, NULL);
    if (zfj_skip_operator(p, "=")) {
        n->b = zfj_parse_tuple(p, true, NULL, false);
        return n;
    }
    n->kind = ZFJ_NODE_SET_BLOCK;
    while (zfj_skip_operator(p, "|")) n->b = zfj_parse_filter(p, n->b);
    zfj_parse_to(p, &n->body, "endset");
    return n;
}

static zfj_node *zfj_parse_for(zfj_parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    zfj_node *n = zfj_node_new(p, ZFJ_NODE_FOR);
    n->a = zfj_parse_target(p, false, "in");
    if (!zfj_skip_word(p, "in")) zfj_unexpected(p, "in");
    n->b = zfj_parse_tuple(p, false, "recursive", false);
    if (zfj_skip_word(p, "if")) n->c = zfj_parse_expression(p);
    if (zfj_at_word(p, "recursive")) zfj_stop(p->m, "a recursive loop is not supported");
    p->loops++;
    zfj_parse_block(p, &n->body, ends);
    p->loops--;
    if (zfj_skip_word(p, "else")) zfj_parse_to(p, &n->other, "endfor");
    else zfj_next(p);
    return n;
}

static zfj_node *zfj_parse_if(zfj_parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    zfj_node *n = zfj_node_new(p, ZFJ_NODE_IF), *branch;
    p->choices++;
    for (bool more = true; more;) {
        branch = zfj_node_new(p, ZFJ_NODE_BRANCH);
        branch->a = zfj_parse_tuple(p, false, NULL, false);
        zfj_parse_block(p, &branch->body, ends);
        zfj_add_node(p, &n->list, branch);
        more = zfj_skip_word(p, "elif");
    }
    if (zfj_skip_word(p, "else")) {
        branch = zfj_node_new(p, ZFJ_NODE_BRANCH);
        zfj_parse_to(p, &branch->body, "endif");
        zfj_add_node(p, &n->list, branch);
    } else zfj_next(p);
    p->choices--;
    return n;
}

static void zfj_parse_parameters(zfj_parser *p, zfj_nodes *list)
{
    zfj_expect_operator(p, "(");
    while (!zfj_at_operator(p, ")")) {
        zfj_node *n;
        if (list->count) zfj_expect_operator(p, ",");
        n = zfj_node_new(p, ZFJ_NODE_NAME);
        n->text = zfj_expect_name(p);
        if (zfj_skip_operator(p, "=")) n->a = zfj_parse_expression(p);
        else if (list->count && list->at[list->count - 1]->a)
            zfj_stop(p->m, "a parameter without a default after one that has one");
        zfj_add_node(p, list, n);
    }
    zfj_next(p);
}

/* The body of what is called: a macro, or a block for one. */
static void zfj_parse_called(zfj_parser *p, zfj_node *n, const char *end)
{
    const zfj_parser outer = *p;
    p->loops = 0;
    p->kwargs = p->varargs = p->caller = false;
    zfj_parse_to(p, &n->body, end);
    n->takes_kwargs = p->kwargs, n->takes_varargs = p->varargs, n->takes_caller = p->caller;
    p->loops = outer.loops;
    p->kwargs |= outer.kwargs, p->varargs |= outer.varargs, p->caller |= outer.caller;
}

static zfj_node *zfj_parse_macro(zfj_parser *p)
{
    zfj_node *n = zfj_node_new(p, ZFJ_NODE_MACRO);
    n->text = zfj_expect_name(p);
    zfj_parse_parameters(p, &n->list);
    zfj_parse_called(p, n, "endmacro");
    return n;
}

static zfj_node *zfj_parse_call_block(zfj_parser *p)
{
    zfj_node *n = zfj_node_new(p, ZFJ_NODE_CALL_BLOCK);
    n->text = zfj_string_of("caller");
    if (zfj_at_operator(p, "(")) zfj_parse_parameters(p, &n->list);
    n->a = zfj_parse_expression(p);
    if (n->a->kind != ZFJ_NODE_CALL) zfj_unexpected(p, "a call");
    zfj_parse_called(p, n, "endcall");
    return n;
}

static zfj_node *zfj_parse_filter_block(zfj_parser *p)
{
    zfj_node *n = zfj_node_new(p, ZFJ_NODE_FILTER_BLOCK);
    do n->a = zfj_parse_filter(p, n->a);
    while (zfj_skip_operator(p, "|"));
    zfj_parse_to(p, &n->body, "endfilter");
    return n;
}

static zfj_node *zfj_parse_with(zfj_parser *p)
{
    zfj_node *n = zfj_node_new(p, ZFJ_NODE_WITH), *set;
    while (p->at->kind != ZFJ_BLOCK_END) {
        if (n->list.count) zfj_expect_operator(p, ",");
        set = zfj_node_new(p, ZFJ_NODE_SET);
        set->a = zfj_parse_one_target(p, false);
        zfj_expect_operator(p, "=");
        set->b = zfj_parse_expression(p);
        zfj_add_node(p, &n->list, set);
    }
    zfj_parse_to(p, &n->body, "endwith");
    return n;
}

static zfj_node *zfj_parse_generation(zfj_parser *p)
{
    zfj_node *n = zfj_node_new(p, ZFJ_NODE_GENERATION);
    p->marked = true;
    zfj_parse_called(p, n, "endgeneration");
    return n;
}

static zfj_node *zfj_parse_print(zfj_parser *p)
{
    zfj_node *n = zfj_node_new(p, ZFJ_NODE_CONCAT);
    while (p->at->kind != ZFJ_BLOCK_END) {
        if (n->list.count) zfj_expect_operator(p, ",");
        zfj_add_node(p, &n->list, zfj_parse_expression(p));
    }
    return zfj_node_of(p, ZFJ_NODE_PRINT, n);
}

static zfj_node *zfj_parse_jump(zfj_parser *p, zfj_node_kind kind, const char *word)
{
    if (!p->loops) zfj_stop(p->m, "%s outside of a loop", word);
    return zfj_node_new(p, kind);
}

static zfj_node *zfj_parse_statement(zfj_parser *p)
{
    const zfj_string word = p->at->text;
    if (zfj_skip_word(p, "set")) return zfj_parse_set(p);
    if (zfj_skip_word(p, "for")) return zfj_parse_for(p);
    if (zfj_skip_word(p, "if")) return zfj_parse_if(p);
    if (zfj_skip_word(p, "macro")) return zfj_parse_macro(p);
    if (zfj_skip_word(p, "call")) return zfj_parse_call_block(p);
    if (zfj_skip_word(p, "filter")) return zfj_parse_filter_block(p);
    if (zfj_skip_word(p, "with")) return zfj_parse_with(p);
    if (zfj_skip_word(p, "generation")) return zfj_parse_generation(p);
    if (zfj_skip_word(p, "print")) return zfj_parse_print(p);
    if (zfj_skip_word(p, "break")) return zfj_parse_jump(p, ZFJ_NODE_BREAK, "break");
    if (zfj_skip_word(p, "continue")) return zfj_parse_jump(p, ZFJ_NODE_CONTINUE, "continue");
    zfj_stop(p->m, "the block {%% %.*s %%} is not supported here",
             (int)(word.bytes < 40 ? word.bytes : 40), word.at);
}

static bool zfj_at_one_of(const zfj_parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (zfj_at_word(p, *ends)) return true;
    return false;
}

/* Statements up to one of the words, at which the parser then is; NULL: up to the end. */
static void zfj_parse_body(zfj_parser *p, zfj_nodes *body, const char *const *ends)
{
    const int line = p->m->line;
    zfj_node *n;
    zfj_enter_level(p->m);
    while (p->at->kind != ZFJ_END) {
        if (p->at->kind == ZFJ_DATA) {
            n = zfj_node_new(p, ZFJ_NODE_DATA);
            n->text = p->at->text;
            zfj_next(p);
        } else if (p->at->kind == ZFJ_PRINT_BEGIN) {
            zfj_next(p);
            n = zfj_node_new(p, ZFJ_NODE_PRINT);
            n->a = zfj_parse_tuple(p, true, NULL, false);
            zfj_expect_end(p, ZFJ_PRINT_END);
        } else {
            zfj_next(p);
            if (zfj_at_one_of(p, ends)) break;
            n = zfj_parse_statement(p);
            zfj_expect_end(p, ZFJ_BLOCK_END);
        }
        zfj_add_node(p, body, n);
    }
    if (p->at->kind == ZFJ_END && ends) {
        p->m->line = line;
        zfj_stop(p->m, "a block without {%% %s %%}", ends[0]);
    }
    zfj_leave_level(p->m);
}
