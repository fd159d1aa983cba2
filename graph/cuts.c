/* Cuts: how an operator may be cut over ranks, so that each rank runs it on a part of its operands
 * and has a part of its result. One string in each record says it (zfi_record.cuts); the tests run
 * each operator whole and cut.
 *
 *     "... k, n k, ... n -> ... n"               a value's dimensions are letters; a letter is cut
 *                                                at all its places at once
 *     "v! d, ... -> ... d"                       `!`: not to be cut
 *     "v? d, ... -> ... d"                       `?`: a rank has rows of v, and others give 0 there
 *     "a b+ c+ -> b c"                           `+`: each part has several elements
 *     "b t! h*3 -> b t! h"                       `*3`: the dimension is three runs of the letter,
 *                                                one after the other; a part has its part of each
 *     "t k! -> t_"                               `_`: a part lies together there, also where it is
 *                                                in runs at other places
 *     "wide: m k, n k -> m n | m k!, n k! -> m n"    the first form is for nodes whose attribute
 *                                                `wide` is not 0, "!wide:" for those where it is
 *     "b h, b k h, ~b h k -> b h; b {heads/h}"   saved values follow the result; attribute heads is
 *                                                that of the whole, divided by the number of parts
 *
 * A letter that is missing in a result is summed: each rank has a part of each sum. Where
 * `sections` is divided by it, the parts are added by a balanced tree (base/tree.c), to the bits of
 * one rank; else their sum is one in another order. A letter that only results have is computed in
 * parts, from whole operands. Places of a letter may have different sizes; each is divided.
 *
 *     item        ...    any number of dimensions, which are broadcast as those of add are
 *                 1      a dimension of one element
 *                 [3 4]  the one dimension of a result that has the values of operands 3 and 4,
 *                        one after the other, each cut as that operand is
 *     value       !      of any rank, not to be cut
 *                 ?n k   it may be absent, as may be all after it
 *                 ~b h k it is broadcast: leading dimensions may be absent, any may be 1; one that
 *                        is 1 as a part of a cut dimension is not broadcast
 *                 ... *  so are all other operands
 *     effect      heads/h    the attribute is divided as h is; 0 stays 0
 *                 parts^t    the same, and of 0 t is not to be cut; what lacks t is the sum of
 *                            these parts, by a balanced tree
 *                 sections%v the number of parts of v divides the attribute, which stays
 *                 first+v    the attribute grows by the number of the part's first row
 *                 of=v       the attribute is the size of v, where it is 0
 *                 shape      the attribute is the shape of the result
 *
 * Without a string, an elementwise operator has "... * -> ..."; of one by rows, all dimensions but
 * the last of rows are cut; another is not to be cut. Nor is a node that draws random numbers,
 * unless its record says how those of a share are found (zfi_record.draws). */

enum {
    ZFI_CUT_LETTERS = 16,
    ZFI_CUT_RESULT = 16, /* values: operands, the result, saved values */
    ZFI_CUT_VALUES = ZFI_CUT_RESULT + 1 + ZF_MAX_SAVED,
    ZFI_CUT_TEXT = 1000
};

typedef struct zfi_cut_letter {
    char name;        /* of "...": '0' its last dimension, '1' the one before, ... */
    bool whole;       /* not to be cut */
    bool several;     /* each part has more than one element */
    int64_t most;     /* it may be cut into divisors of this: of all that is divided */
    int64_t upto;     /* and into so many parts at most, each of several elements */
    int64_t size;     /* the largest of its dimensions */
    uint32_t divided, within; /* attributes of effects / and ^, and of %, as masks */
    uint32_t counted;         /* of effects ^ */
    int8_t first, of; /* attributes of effects + and =; -1: none */
} zfi_cut_letter;

/* How a node may be cut. */
typedef struct zfi_cuts {
    int32_t letters, operands, form; /* `form`: the number of the form that fits, from 0 on */
    zfi_cut_letter letter[ZFI_CUT_LETTERS];
    int8_t at[ZFI_CUT_VALUES][ZF_MAX_RANK]; /* the letter of each dimension; -1: none is */
    int8_t runs[ZFI_CUT_VALUES][ZF_MAX_RANK]; /* of the letter in the dimension; 0: 1 */
    bool together[ZFI_CUT_VALUES][ZF_MAX_RANK]; /* a part lies together in the dimension */
    bool given[ZFI_CUT_VALUES];             /* the form has the value */
    bool broadcast[ZFI_CUT_VALUES];         /* its dimensions of one element fit any */
    int8_t flat[ZFI_CUT_VALUES][4]; /* 1 + the operands that it has, one after the other; 0 */
    int32_t shape;                  /* the attribute that is the shape of the result; -1 */
    char text[ZFI_CUT_TEXT];        /* the form */
} zfi_cuts;

/* Text of a node's cuts, as the operators of which dimensions follow from attributes write it. */
typedef struct zfi_cut_text {
    char text[ZFI_CUT_TEXT];
    int length;
} zfi_cut_text;

static void zfi_cut_put(zfi_cut_text *t, const char *words)
{
    const int room = (int)sizeof t->text - t->length;
    const int length = snprintf(t->text + t->length, (size_t)room, "%s", words);
    t->length += length < room ? length : room - 1;
}

/* Puts "a b! 1 ", the dimensions of a shape by their numbers: `mark` for those in `marked`, "1" for
 * those in `ones`. */
static void zfi_cut_put_dims(zfi_cut_text *t, const int32_t *letters, int32_t rank, char mark,
                             uint32_t marked, uint32_t ones)
{
    for (int32_t k = 0; k < rank; k++) {
        const bool has = mark != ' ' && marked >> letters[k] & 1;
        const char item[] = {(char)('a' + letters[k]), has ? mark : ' ', has ? ' ' : 0, 0};
        zfi_cut_put(t, ones >> k & 1 ? "1 " : item);
    }
}

/* 0, 1, 2, ...: the letters of dimensions in their order. */
static const int32_t zfi_cut_order[ZF_MAX_RANK + 1] = {0, 1, 2, 3, 4, 5, 6};

/* ------------------------------------------------------------------------------ derived ones */

/* By rows: the rows of the operand that has them, and of all values with as many. */
static void zfi_cut_by_rows(const zf_graph *g, const zfi_node *node, zfi_cut_text *t)
{
    const zfi_record *record = g->records[node->op];
    const int32_t rank = g->nodes[node->args[record->rows]].shape.rank;
    for (int32_t k = 0; k <= node->arg_count; k++) {
        const bool result = k == node->arg_count;
        const int32_t its = result ? node->shape.rank : g->nodes[node->args[k]].shape.rank;
        const bool whole = !result && record->whole >> k & 1;
        zfi_cut_put(t, result ? " -> " : k ? ", " : "");
        zfi_cut_put(t, whole || its < rank - 1 || its > rank ? "!"
                       : its == rank                         ? "... c!"
                                                             : "...");
    }
}

/* Writes the cuts of the node, all forms; false: it is not to be cut. */
static bool zfi_cut_write(const zf_graph *g, const zfi_node *node, zfi_cut_text *t)
{
    const zfi_record *record = g->records[node->op];
    const zf_attribute *p = zfi_attribute_of(g, node, "p"),
                       *lazy = zfi_attribute_of(g, node, "lazy");
    t->length = 0, t->text[0] = '\0';
    if ((p ? p->f > 0 : zfi_node_stream(g, node) >= 0) && !record->draws) return false;
    if (record->cuts) zfi_cut_put(t, record->cuts);
    else if (record->cut) record->cut(g, node, t);
    else if (record->traits & ZF_OP_ELEMENTWISE) zfi_cut_put(t, "... * -> ...");
    else if (lazy && lazy->i) return false; /* its rows are numbers of whole tables */
    else if (record->traits & ZF_OP_UPDATE)
        zfi_cut_put(t, record->traits & ZF_OP_EFFECT ? "... * ->" : "... * -> ...");
    else if (record->traits & ZF_OP_BY_ROWS) zfi_cut_by_rows(g, node, t);
    return t->length > 0;
}

/* ----------------------------------------------------------------------------------- reading */

typedef struct zfi_cut_reader {
    const zf_graph *graph;
    const zfi_node *node;
    const char *at;
    const char *wrong; /* what is wrong with the text; NULL: nothing */
    bool fits;         /* the form is one of the node */
    zfi_cuts *cut;
} zfi_cut_reader;

static void zfi_cut_spaces(zfi_cut_reader *r)
{
    while (*r->at == ' ') r->at++;
}

static bool zfi_cut_takes(zfi_cut_reader *r, const char *word)
{
    const size_t length = strlen(word);
    zfi_cut_spaces(r);
    if (strncmp(r->at, word, length)) return false;
    r->at += length;
    return true;
}

static bool zfi_cut_is_name(char c)
{
    return (c >= 'a' && c <= 'z') || c == '_' || (c >= '0' && c <= '9');
}

/* Reads the name of an attribute; its index, -1 where it is wrong. */
static int32_t zfi_cut_attribute(zfi_cut_reader *r, const zfi_record *record)
{
    char name[40];
    size_t length = 0;
    int32_t k;
    while (zfi_cut_is_name(r->at[length])) length++;
    if (!length || length >= sizeof name) {
        r->wrong = "an attribute is expected";
        return -1;
    }
    memcpy(name, r->at, length);
    name[length] = '\0';
    r->at += length;
    k = zfi_attribute_index(record, name);
    if (k < 0) r->wrong = "it names an attribute that the operator does not have";
    return k;
}

/* The index of a letter, which is added; -1: there are too many. */
static int8_t zfi_cut_letter_of(zfi_cut_reader *r, char name)
{
    zfi_cuts *c = r->cut;
    int8_t k = 0;
    for (; k < c->letters; k++)
        if (c->letter[k].name == name) return k;
    if (k == ZFI_CUT_LETTERS) {
        r->wrong = "it has too many letters";
        return -1;
    }
    c->letter[c->letters++] = (zfi_cut_letter){.name = name, .first = -1, .of = -1};
    return k;
}

typedef struct zfi_cut_items {
    char item[ZF_MAX_RANK + 1]; /* '.' for "...", '1', or a letter */
    int8_t runs[ZF_MAX_RANK + 1];
    bool together[ZF_MAX_RANK + 1];
    int32_t count, dots;        /* dots: how many of them are "..." */
    bool whole, broadcast, absent;
} zfi_cut_items;

/* Reads "[3 4]". */
static void zfi_cut_read_flat(zfi_cut_reader *r, int32_t value)
{
    int32_t k = 0;
    while (!zfi_cut_takes(r, "]")) {
        if (*r->at < '0' || *r->at > '9' || k == 4) {
            r->wrong = "[ ] has the numbers of at most 4 operands";
            return;
        }
        r->cut->flat[value][k++] = (int8_t)(1 + *r->at++ - '0');
    }
}

/* Reads the items of a value. */
static void zfi_cut_read_items(zfi_cut_reader *r, int32_t value, zfi_cut_items *x)
{
    *x = (zfi_cut_items){.absent = zfi_cut_takes(r, "?")};
    x->broadcast = zfi_cut_takes(r, "~");
    if (zfi_cut_takes(r, "!")) x->whole = true;
    else if (zfi_cut_takes(r, "[")) zfi_cut_read_flat(r, value);
    while (!x->whole && !r->wrong) {
        const bool dots = zfi_cut_takes(r, "...");
        const bool letter = !dots && (*r->at == '1' || (*r->at >= 'a' && *r->at <= 'z'));
        if (!dots && !letter) return;
        if (x->count > ZF_MAX_RANK || (dots && x->count)) {
            r->wrong = dots ? "... is at the start of a value" : "a value has too many dimensions";
            return;
        }
        x->item[x->count++] = dots ? '.' : *r->at++;
        x->dots += dots;
        if (!letter || r->at[-1] == '1') continue;
        zfi_cut_letter *l;
        const int8_t k = zfi_cut_letter_of(r, r->at[-1]);
        if (k < 0) return;
        l = &r->cut->letter[k];
        if (*r->at == '!') l->whole = true, r->at++;
        else if (*r->at == '+') l->several = true, r->at++;
        else if (*r->at == '?') r->at++;
        else if (*r->at == '_') x->together[x->count - 1] = true, r->at++;
        else if (*r->at == '*' && r->at[1] > '1' && r->at[1] <= '9')
            x->runs[x->count - 1] = (int8_t)(r->at[1] - '0'), r->at += 2;
    }
}

/* Sets the letters of a value of the node; false: the form is not for it. */
static bool zfi_cut_match(zfi_cut_reader *r, int32_t value, const zfi_cut_items *x,
                          const zf_shape *shape)
{
    zfi_cuts *c = r->cut;
    const int32_t named = x->count - x->dots, free = shape->rank - named;
    for (int32_t d = 0; d < ZF_MAX_RANK; d++) c->at[value][d] = -1;
    c->given[value] = true, c->broadcast[value] = x->broadcast;
    if (x->whole) return true;
    if (c->flat[value][0]) return shape->rank == 1;
    if (x->broadcast ? free > 0 : x->dots ? free < 0 : free != 0) return false;
    for (int32_t d = 0; d < shape->rank; d++) {
        const int32_t k = d - free + x->dots;
        const char item = d < free ? (char)('0' + free - 1 - d) : x->item[k];
        const int8_t letter = item == '1' && d >= free ? -1 : zfi_cut_letter_of(r, item);
        const int64_t runs = d >= free && x->runs[k] ? x->runs[k] : 1;
        c->at[value][d] = letter, c->runs[value][d] = (int8_t)(runs > 1 ? runs : 0);
        c->together[value][d] = d >= free && x->together[k];
        if (letter >= 0 && shape->dims[d] / runs > c->letter[letter].size)
            c->letter[letter].size = shape->dims[d] / runs;
        if (shape->dims[d] % runs) return false;
    }
    return true;
}

/* The shape of a value of the node: an operand, the result, a saved value; false: there is none. */
static bool zfi_cut_shape(const zf_graph *g, const zfi_node *node, int32_t value, zf_shape *shape)
{
    zf_dtype dtype;
    const zfi_record *record = g->records[node->op];
    if (value < ZFI_CUT_RESULT) {
        if (value >= node->arg_count) return false;
        *shape = g->nodes[node->args[value]].shape;
        return true;
    }
    *shape = node->shape;
    if (value == ZFI_CUT_RESULT) return !(record->traits & ZF_OP_EFFECT);
    return record->saved && record->saved(g, node, value - ZFI_CUT_RESULT - 1, &dtype, shape);
}

/* Reads values between `comma`, from value `first` on; the number of those that must be there. */
static int32_t zfi_cut_read_values(zfi_cut_reader *r, int32_t first, int32_t most,
                                   const char *comma)
{
    int32_t k = 0, least = -1;
    bool more = true;
    for (; more && !r->wrong; k++) {
        zfi_cut_items x;
        zf_shape shape;
        if (k == most) {
            r->wrong = "it has too many values";
            break;
        }
        zfi_cut_read_items(r, first + k, &x);
        if (r->wrong) break;
        if (x.absent && least < 0) least = k;
        if (r->node && zfi_cut_shape(r->graph, r->node, first + k, &shape))
            r->fits = zfi_cut_match(r, first + k, &x, &shape) && r->fits;
        if (comma[0] == ',' && zfi_cut_takes(r, "*")) {
            for (int32_t j = k + 1; r->node && j < r->node->arg_count && j < most; j++) {
                zfi_cut_shape(r->graph, r->node, j, &shape);
                r->fits = zfi_cut_match(r, j, &x, &shape) && r->fits;
            }
            r->cut->operands = ZFI_CUT_RESULT;
            return least < 0 ? k + 1 : least;
        }
        more = zfi_cut_takes(r, comma);
    }
    if (comma[0] == ',') r->cut->operands = k;
    return least < 0 ? k : least;
}

/* Reads "heads/h sections%v first+v of=v shape}". */
static void zfi_cut_read_effects(zfi_cut_reader *r, const zfi_record *record)
{
    while (!r->wrong && !zfi_cut_takes(r, "}")) {
        const int32_t attribute = zfi_cut_attribute(r, record);
        const char sign = *r->at;
        zfi_cut_letter *l = NULL;
        if (r->wrong) return;
        if (!sign || !strchr("/^%+=", sign)) {
            r->cut->shape = attribute;
            continue;
        }
        for (int32_t k = 0; k < r->cut->letters; k++)
            if (r->cut->letter[k].name == r->at[1]) l = &r->cut->letter[k];
        if (!l) {
            r->wrong = "an effect names a letter that no value has";
            return;
        }
        r->at += 2;
        if (sign == '/' || sign == '^') l->divided |= 1u << attribute;
        if (sign == '^') l->counted |= 1u << attribute;
        if (sign == '%') l->within |= 1u << attribute;
        if (sign == '+') l->first = (int8_t)attribute;
        if (sign == '=') l->of = (int8_t)attribute;
    }
}

/* Reads "transpose_a !wide:", if the form begins with conditions. */
static void zfi_cut_read_conditions(zfi_cut_reader *r, const zfi_record *record)
{
    if (r->at[strcspn(r->at, ":>|")] != ':') return;
    while (!r->wrong && !zfi_cut_takes(r, ":")) {
        const bool none = zfi_cut_takes(r, "!");
        const int32_t k = zfi_cut_attribute(r, record);
        if (k >= 0 && r->node) r->fits = r->fits && (r->node->attributes[k].i == 0) == none;
    }
}

/* Reads a form. */
static void zfi_cut_read_form(zfi_cut_reader *r, const zfi_record *record)
{
    int32_t least;
    *r->cut = (zfi_cuts){.shape = -1, .form = r->cut->form};
    r->fits = true;
    zfi_cut_read_conditions(r, record);
    if (r->wrong) return;
    least = zfi_cut_read_values(r, 0, ZFI_CUT_RESULT, ",");
    if (!r->wrong && !zfi_cut_takes(r, "->")) r->wrong = "a value, a comma or -> is expected";
    if (r->wrong) return;
    if (r->node && (r->node->arg_count < least || r->node->arg_count > r->cut->operands))
        r->fits = false;
    zfi_cut_read_values(r, ZFI_CUT_RESULT, 1 + ZF_MAX_SAVED, ";");
    if (!r->wrong && zfi_cut_takes(r, "{")) zfi_cut_read_effects(r, record);
    zfi_cut_spaces(r);
    if (!r->wrong && *r->at && *r->at != '|') r->wrong = "a form ends with | or the text";
}

/* What is wrong with the cuts of an operator; NULL: nothing. */
static const char *zfi_cuts_wrong(const zfi_record *record, const char *text)
{
    zfi_cuts cut = {.form = 0};
    zfi_cut_reader r = {.at = text, .cut = &cut};
    if (strlen(text) >= ZFI_CUT_TEXT) return "it is too long";
    do zfi_cut_read_form(&r, record);
    while (!r.wrong && zfi_cut_takes(&r, "|"));
    return r.wrong;
}

/* ---------------------------------------------------------------------------------- of a node */

static int64_t zfi_gcd(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

/* The largest divisor of `most` that is `upto` or less. */
static int64_t zfi_cut_parts_at_most(int64_t most, int64_t upto)
{
    int64_t least = 1;
    while (least < most && (most % least || most / least > upto)) least++;
    return most / least;
}

/* The letter may be cut into so many parts. */
static bool zfi_cut_fits(const zfi_cut_letter *l, int64_t parts)
{
    return l->most % parts == 0 && parts <= l->upto;
}

/* A dimension of one element fits any, at dimension d of a value, which has a letter there. */
static bool zfi_cut_broadcasts(const zfi_cuts *c, int32_t value, int32_t d)
{
    return c->broadcast[value] || c->letter[c->at[value][d]].name < 'a';
}

/* The elements of a letter, each of which a value may have as one: of heads as many as the node
 * has, not their columns. */
static int64_t zfi_cut_count(const zfi_node *node, const zfi_cut_letter *l)
{
    int64_t most = 0;
    for (int a = 0; a < ZF_MAX_ATTRIBUTES; a++)
        if (l->divided >> a & 1 && node->attributes[a].i > most) most = node->attributes[a].i;
    return most ? most : l->size;
}

/* Value v has one element at dimension d, which is broadcast: it is not a part of a cut one, or
 * there are more than one of these. */
static bool zfi_cut_is_broadcast(const zf_graph *g, const zfi_node *node, const zfi_cuts *c,
                                 int32_t v, int32_t d)
{
    const zfi_cut_letter *l = &c->letter[c->at[v][d]];
    const bool part = v < ZFI_CUT_RESULT && g->nodes[node->args[v]].spread.at[d];
    if (!zfi_cut_broadcasts(c, v, d)) return false;
    return part ? zfi_cut_count(node, l) > 1 : l->size > 1;
}

/* Leaves out dimensions of one element that are broadcast, and computes into how many parts each
 * letter may be cut. */
static void zfi_cut_measure(const zf_graph *g, const zfi_node *node, zfi_cuts *c)
{
    zf_shape shape;
    for (int32_t k = 0; k < c->letters; k++) c->letter[k].upto = INT64_MAX;
    for (int32_t v = 0; v < ZFI_CUT_VALUES; v++) {
        if (!c->given[v] || !zfi_cut_shape(g, node, v, &shape)) continue;
        for (int32_t d = 0; d < shape.rank; d++) {
            const int8_t k = c->at[v][d];
            if (c->runs[v][d]) shape.dims[d] /= c->runs[v][d];
            if (k < 0) continue;
            if (shape.dims[d] == 1 && zfi_cut_is_broadcast(g, node, c, v, d)) c->at[v][d] = -1;
            else {
                c->letter[k].most = zfi_gcd(shape.dims[d], c->letter[k].most);
                if (c->letter[k].several && c->letter[k].upto > shape.dims[d] / 2)
                    c->letter[k].upto = shape.dims[d] / 2;
            }
        }
    }
    for (int32_t k = 0; k < c->letters; k++)
        for (int a = 0; a < ZF_MAX_ATTRIBUTES; a++)
            if ((c->letter[k].divided | c->letter[k].within) >> a & 1)
                c->letter[k].most = c->letter[k].counted >> a & 1 && !node->attributes[a].i
                                        ? 1
                                        : zfi_gcd(node->attributes[a].i, c->letter[k].most);
    for (int32_t k = 0; k < c->letters; k++)
        if (c->letter[k].whole || c->letter[k].most < 1) c->letter[k].most = 1;
}

/* How the node may be cut: the first form that is one for it. False: it is not to be cut. */
static bool zfi_cut_of(const zf_graph *g, const zfi_node *node, zfi_cuts *c)
{
    zfi_cut_text text;
    zfi_cut_reader r = {.graph = g, .node = node, .at = text.text, .cut = c};
    const zfi_record *record = g->records[node->op];
    const char *from;
    if (!zfi_cut_write(g, node, &text)) return false;
    for (c->form = 0;; c->form++) {
        zfi_cut_spaces(&r);
        from = r.at;
        zfi_cut_read_form(&r, record);
        if (r.wrong) return false;
        if (r.fits) break;
        if (!zfi_cut_takes(&r, "|")) return false;
    }
    while (r.at > from && r.at[-1] == ' ') r.at--;
    memcpy(c->text, from, (size_t)(r.at - from));
    c->text[r.at - from] = '\0';
    zfi_cut_measure(g, node, c);
    return true;
}

/* The letter is in operands, and the value lacks it: its elements are parts of sums. */
static bool zfi_cut_sums(const zfi_cuts *c, int32_t letter, int32_t value)
{
    bool operand = false;
    for (int32_t v = 0; v < ZFI_CUT_VALUES; v++)
        for (int32_t d = 0; d < ZF_MAX_RANK; d++)
            if (c->given[v] && c->at[v][d] == letter) {
                if (v == value) return false;
                operand |= v < ZFI_CUT_RESULT;
            }
    return operand && !c->flat[value][0];
}

/* A flat value has those of several operands, one after the other (`[3 4]`). The operand of which
 * the node, a slice of a flat value or a reshape of such a slice, has all values; 0: there is
 * none. */
static int32_t zfi_flat_operand(const zf_graph *g, const zfi_node *node)
{
    const zfi_node *slice = node->op == ZF_OP_reshape ? &g->nodes[node->args[0]] : node, *of;
    int64_t at = 0;
    zfi_cuts c;
    if (slice->op != ZF_OP_slice) return 0;
    of = &g->nodes[slice->args[0]];
    if (!g->records[of->op]->cuts || !strchr(g->records[of->op]->cuts, '[') ||
        !zfi_cut_of(g, of, &c))
        return 0;
    for (int k = 0; k < 4 && c.flat[ZFI_CUT_RESULT][k]; k++) {
        const int32_t operand = of->args[c.flat[ZFI_CUT_RESULT][k] - 1];
        const int64_t count = zfi_node_count(&g->nodes[operand]);
        if (at == ZF_INT(slice, slice, start) && at + count == ZF_INT(slice, slice, stop))
            return operand;
        at += count;
    }
    return 0;
}

ZF_API bool zf_graph_cuts(const zf_graph *g, int32_t place, char *text, size_t size)
{
    zfi_cuts c;
    size_t at = 0;
    const char *between = ": ";
    if (text && size) *text = '\0';
    if (!g || !text || place < 0 || place >= zfi_len(g->order)) return false;
    if (!zfi_cut_of(g, &g->nodes[g->order[place]], &c)) return false;
    at = (size_t)snprintf(text, size, "%s", c.text);
    for (int32_t k = 0; k < c.letters && at < size; k++) {
        const zfi_cut_letter *l = &c.letter[k];
        const int64_t parts = zfi_cut_parts_at_most(l->most, l->upto);
        if (parts < 2) continue;
        at += (size_t)snprintf(text + at, size - at, "%s%c %lld%s", between, l->name,
                               (long long)parts,
                               zfi_cut_sums(&c, k, ZFI_CUT_RESULT) ? " summed" : "");
        between = ", ";
    }
    return true;
}
