/* Classes: dimensions that zf_cut must cut together are one class. They are those of a letter at
 * each node (graph/cuts.c), in both halves of the graph, of parameters, their gradients and states.
 *
 *     %2 = param "up" : f32[16,8]         a class: dimension 0 of %2, its gradient and its states,
 *     %3 = linear %1, %2 : f32[4,16]      dimension 1 of %3, and what follows to the next product
 *
 * A class knows what keeps it from being cut, and into how many parts it may be. Of a letter that
 * some values have in runs (q, k and v of packed attention), these are a class, and the others its
 * twin: both are cut, or none. */

/* A class of dimensions, at its root. */
typedef struct zfi_cut_class {
    int32_t parent;   /* a place: node * ZF_MAX_RANK + dimension */
    int32_t first;    /* place, 1 + its index */
    int32_t why;      /* the node that keeps it from being cut; 0: none */
    int64_t most;     /* it may be cut into divisors of this, */
    int64_t upto;     /* up to this one */
    int64_t parts;    /* into which it is cut, if it is chosen */
    int32_t copies;   /* a place of the class with copies of its heads, 1 + its index; 0: none */
    int64_t heads;    /* of which there are copies; a part has whole ones */
    int32_t twin;     /* a place of the class that is cut with it, 1 + its index; 0: none */
    int32_t runs;     /* of the letter that it has; 0: 1 */
    int64_t free;     /* the same, apart from what its own size allows; 0: all */
    bool padded;      /* sections do not divide it, and the last part has padding at its end */
    bool second;      /* a product with a parameter sums over it */
    bool plain;       /* a product sums over it that cannot sum over runs */
    bool chosen;
} zfi_cut_class;

typedef struct zfi_parallel {
    zf_graph *graph;
    zf_cut_desc d;
    const zf_store *store; /* of whose parameters the program reads some; NULL: none */
    zfi_cut_class *at; /* by place */
    int32_t *next;     /* by place: the next one of its class, 1 + its index; 0: none */
    int32_t *flat;     /* by node: an operand that its flat value has; 0: the value is not flat */
    uint8_t *sums;     /* by node: the axis of a chosen class that it sums over; 0: none */
    int32_t *instead;  /* by node: what its readers read; 0: itself */
    int32_t count;     /* of nodes */
    int32_t groups;    /* of ranks that have other heads of keys than others; 0: all have */
} zfi_parallel;

static int32_t zfi_class_root(zfi_parallel *c, int32_t place)
{
    while (c->at[place].parent != place) {
        c->at[place].parent = c->at[c->at[place].parent].parent;
        place = c->at[place].parent;
    }
    return place;
}

static int32_t zfi_class_of(zfi_parallel *c, int32_t node, int32_t d)
{
    return zfi_class_root(c, node * ZF_MAX_RANK + d);
}

/* Classes a and b become one, `by` a node, and so do their twins. */
static void zfi_class_join(zfi_parallel *c, int32_t a, int32_t b, int32_t by)
{
    while (a != b) {
        zfi_cut_class *to = &c->at[a], *from = &c->at[b];
        const int32_t one = to->twin, other = from->twin;
        from->parent = a;
        if (!to->why) to->why = from->why;
        if (!to->why && to->runs && from->runs && to->runs != from->runs) to->why = by;
        to->most = zfi_gcd(to->most, from->most);
        to->upto = zfi_min(to->upto, from->upto);
        to->free = zfi_gcd(to->free, from->free), to->padded |= from->padded;
        to->second |= from->second, to->plain |= from->plain;
        if (!to->runs) to->runs = from->runs;
        if (!to->copies) to->copies = from->copies, to->heads = from->heads;
        if (!one) to->twin = other;
        if (!one || !other) return;
        a = zfi_class_root(c, one - 1), b = zfi_class_root(c, other - 1);
    }
}

/* The classes of a letter, of one run and of several. */
static void zfi_class_twins(zfi_parallel *c, int32_t one, int32_t runs, int32_t of, int32_t by)
{
    if (c->at[one].twin) zfi_class_join(c, zfi_class_root(c, c->at[one].twin - 1), runs, by);
    one = zfi_class_root(c, one), runs = zfi_class_root(c, runs);
    if (c->at[runs].twin) zfi_class_join(c, zfi_class_root(c, c->at[runs].twin - 1), one, by);
    one = zfi_class_root(c, one), runs = zfi_class_root(c, runs);
    if (one == runs || (c->at[runs].runs && c->at[runs].runs != of)) c->at[one].why = by;
    c->at[one].twin = 1 + runs, c->at[runs].twin = 1 + one, c->at[runs].runs = of;
}

/* The node keeps dimensions of a value from being cut. */
static void zfi_class_keep(zfi_parallel *c, int32_t value, int32_t by)
{
    for (int32_t d = 0; d < c->graph->nodes[value].shape.rank; d++) {
        zfi_cut_class *k = &c->at[zfi_class_of(c, value, d)];
        if (!k->why) k->why = by;
    }
}

/* Dimensions of two values of one shape are cut together. */
static void zfi_class_alike(zfi_parallel *c, int32_t a, int32_t b, int32_t by)
{
    const zf_graph *g = c->graph;
    if (!zfi_same_shape(&g->nodes[a].shape, &g->nodes[b].shape)) {
        zfi_class_keep(c, a, by), zfi_class_keep(c, b, by);
        return;
    }
    for (int32_t d = 0; d < g->nodes[a].shape.rank; d++)
        zfi_class_join(c, zfi_class_of(c, a, d), zfi_class_of(c, b, d), by);
}

/* ------------------------------------------------------------------------------------ letters */

/* The node is a product in one section, which may become one of several. */
static bool zfi_may_have_sections(const zf_graph *g, const zfi_node *node)
{
    const zf_attribute *sections = zfi_attribute_of(g, node, "sections");
    return sections && !sections->i && zfi_is_plain_product(node);
}

/* Operands of a product itself; others follow the sum. */
static int32_t zfi_product_args(const zfi_record *record) { return record->least; }

/* The product alone: in sections, with nothing that follows it. */
static void zfi_parallel_bare(zfi_parallel *c, zfi_node *node)
{
    const zfi_record *record = c->graph->records[node->op];
    zf_attribute *activation = zfi_attribute_in(record, node->attributes, "activation");
    zfi_attribute_in(record, node->attributes, "sections")->i = c->d.sections;
    zfi_attribute_in(record, node->attributes, "wide")->i = 1;
    if (activation) activation->i = 0;
    node->arg_count = zfi_product_args(record);
}

/* What follows a product is cut as its result is: a bias along the last dimension. */
static void zfi_parallel_after(const zf_graph *g, const zfi_node *node, zfi_cuts *cuts)
{
    const int32_t rank = node->shape.rank;
    for (int32_t k = zfi_product_args(g->records[node->op]); k < node->arg_count; k++) {
        const bool bias = g->nodes[node->args[k]].shape.rank < rank;
        cuts->given[k] = true;
        for (int32_t d = 0; d < ZF_MAX_RANK; d++)
            cuts->at[k][d] = bias && d ? -1 : cuts->at[ZFI_CUT_RESULT][bias ? rank - 1 : d];
    }
    cuts->given[ZFI_CUT_RESULT + 1] = true;
    memcpy(cuts->at[ZFI_CUT_RESULT + 1], cuts->at[ZFI_CUT_RESULT], sizeof cuts->at[0]);
}

/* The cuts of a node; of a product, those of one with sections. */
static bool zfi_parallel_cuts(zfi_parallel *c, int32_t id, zfi_cuts *cuts)
{
    zf_graph *g = c->graph;
    zfi_node *node = &g->nodes[id];
    const zfi_node whole = *node;
    bool good;
    if (!zfi_may_have_sections(g, node)) return zfi_cut_of(g, node, cuts);
    zfi_parallel_bare(c, node);
    good = zfi_cut_of(g, node, cuts);
    *node = whole;
    if (good) zfi_parallel_after(g, node, cuts);
    return good;
}

/* The node of a value of a node: an operand, its result, what it saves; 0: there is none. */
static int32_t zfi_parallel_value(const zf_graph *g, int32_t id, int32_t value)
{
    const zfi_node *node = &g->nodes[id];
    if (value < ZFI_CUT_RESULT) return value < node->arg_count ? node->args[value] : 0;
    if (value == ZFI_CUT_RESULT) return zfi_has(g, id, ZF_OP_EFFECT) ? 0 : id;
    return node->saved[value - ZFI_CUT_RESULT - 1];
}

/* The table of words whose rows the node reads; 0: it reads none. */
static int32_t zfi_vocabulary(const zf_graph *g, int32_t id)
{
    for (int32_t k = 0; k < g->nodes[id].arg_count; k++)
        if (zfi_is_table(&g->nodes[g->nodes[id].args[k]])) return g->nodes[id].args[k];
    return 0;
}

/* Sections do not divide the elements of a letter whose parts may have padding: rows of a table. */
static void zfi_parallel_uneven(zfi_parallel *c, int32_t id, const zfi_cut_letter *letter,
                                zfi_cut_class *k)
{
    zf_graph *g = c->graph;
    const int32_t table = zfi_vocabulary(g, id);
    if (zfi_section_size(letter->size, c->d.sections)) k->padded = true;
    else if (!k->why) k->why = id;
    if (table && !zfi_section_size(letter->size, c->d.sections))
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_cut: %d sections of the %lld rows of \"%.200s\" would not have a row each",
                 (int)c->d.sections, (long long)letter->size, g->nodes[table].name);
}

/* Joins the dimensions of one letter. */
static void zfi_parallel_letter(zfi_parallel *c, int32_t id, const zfi_cuts *cuts, int32_t l)
{
    const zf_graph *g = c->graph;
    const zfi_cut_letter *letter = &cuts->letter[l];
    const bool tree = zfi_may_have_sections(g, &g->nodes[id]) &&
                      zfi_cut_sums(cuts, l, ZFI_CUT_RESULT);
    const bool rows = letter->first >= 0;
    bool weighs = false;
    const int64_t most = letter->most, upto = letter->upto;
    int32_t first = -1, in_runs = -1, runs = 0;
    for (int32_t v = 0; v < ZFI_CUT_VALUES; v++) {
        const int32_t value = zfi_parallel_value(g, id, v);
        for (int32_t d = 0; value && d < g->nodes[value].shape.rank; d++) {
            int32_t *root = cuts->runs[v][d] ? &in_runs : &first;
            if (!cuts->given[v] || cuts->at[v][d] != l) continue;
            if (*root < 0) *root = zfi_class_of(c, value, d);
            zfi_class_join(c, *root, zfi_class_of(c, value, d), id);
            *root = zfi_class_root(c, *root), runs = cuts->runs[v][d] ? cuts->runs[v][d] : runs;
            weighs |= v < ZFI_CUT_RESULT && g->nodes[value].op == ZF_OP_param;
        }
    }
    if (first < 0) return;
    if (in_runs >= 0) {
        first = zfi_class_root(c, first), in_runs = zfi_class_root(c, in_runs);
        c->at[in_runs].most = zfi_gcd(c->at[in_runs].most, most);
        c->at[in_runs].upto = zfi_min(c->at[in_runs].upto, upto);
        zfi_class_twins(c, first, in_runs, runs, id);
        first = zfi_class_root(c, first);
    }
    first = zfi_class_root(c, first);
    c->at[first].plain |= tree && !zfi_attribute_of(g, &g->nodes[id], "runs");
    if ((letter->whole || (tree && letter->size % c->d.sections) ||
         (rows && g->nodes[id].attributes[letter->of].i)) && /* of a table in pieces */
        !c->at[first].why)
        c->at[first].why = id;
    c->at[first].upto = zfi_min(c->at[first].upto, upto);
    if (rows && letter->size % c->d.sections) zfi_parallel_uneven(c, id, letter, &c->at[first]);
    else c->at[first].most = zfi_gcd(c->at[first].most, most);
    if (!rows && most != letter->size) c->at[first].free = zfi_gcd(c->at[first].free, most);
    c->at[first].second |= weighs && (tree || (rows && zfi_vocabulary(g, id)));
}

/* The value with the fewer heads of a node that copies heads, and the one with copies of them. */
static void zfi_copied_values(const zf_graph *g, int32_t id, int32_t *heads, int32_t *copies)
{
    const bool adds = g->records[g->nodes[id].op]->copies == ZFI_COPIES_ADDED;
    *heads = adds ? id : g->nodes[id].args[0];
    *copies = adds ? g->nodes[id].args[0] : id;
}

/* Heads may be cut into fewer parts than their copies: the one class knows the other. */
static void zfi_parallel_copies(zfi_parallel *c, int32_t id)
{
    const zfi_node *node = &c->graph->nodes[id];
    const int64_t count = ZF_INT(node, repeat, heads);
    const int32_t last = node->shape.rank - 1;
    int32_t heads, copies;
    zfi_cut_class *few, *many;
    zfi_copied_values(c->graph, id, &heads, &copies);
    few = &c->at[zfi_class_of(c, heads, last)], many = &c->at[zfi_class_of(c, copies, last)];
    few->most = zfi_gcd(few->most, count);
    many->most = zfi_gcd(many->most, count * ZF_INT(node, repeat, copies));
    few->copies = 1 + copies * ZF_MAX_RANK + last, few->heads = count;
}

/* Dimensions without a letter are not cut. */
static void zfi_parallel_unlettered(zfi_parallel *c, int32_t id, const zfi_cuts *cuts)
{
    const zf_graph *g = c->graph;
    for (int32_t v = 0; v < ZFI_CUT_VALUES; v++) {
        const int32_t value = zfi_parallel_value(g, id, v);
        for (int32_t d = 0; value && d < g->nodes[value].shape.rank; d++) {
            zfi_cut_class *k = &c->at[zfi_class_of(c, value, d)];
            if ((!cuts->given[v] || cuts->at[v][d] < 0) && !cuts->flat[v][0] && !k->why)
                k->why = id;
        }
    }
}

static void zfi_parallel_leaf(zfi_parallel *c, int32_t id)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[id];
    if (node->op == ZF_OP_state && node->arg_count) zfi_class_alike(c, id, node->args[0], id);
    else if (node->op == ZF_OP_state && node->of) zfi_class_alike(c, id, node->of, id);
    else if (node->op != ZF_OP_param && node->op != ZF_OP_constant) zfi_class_keep(c, id, id);
    if (node->op == ZF_OP_param && ZF_INT(node, param, bits)) zfi_class_keep(c, id, id);
    for (int32_t d = 1; d < node->shape.rank && zfi_cut_rows_of(node).rows; d++) {
        zfi_cut_class *k = &c->at[zfi_class_of(c, id, d)]; /* a piece is cut at its rows */
        if (!k->why) k->why = id;
    }
}

/* A reader of a flat value that does not take all values of one operand keeps these whole. */
static void zfi_parallel_flat(zfi_parallel *c, int32_t id)
{
    const zfi_node *node = &c->graph->nodes[id];
    for (int32_t k = 0; k < node->arg_count; k++)
        if (c->flat[node->args[k]]) zfi_class_keep(c, c->flat[node->args[k]], id);
}

/* The letter is that of heads which the node copies. */
static bool zfi_is_of_copies(const zf_graph *g, int32_t id, const zfi_cuts *cuts, int32_t l)
{
    const zfi_node *node = &g->nodes[id];
    return g->records[node->op]->copies && cuts->at[ZFI_CUT_RESULT][node->shape.rank - 1] == l;
}

/* Joins the letters of the node. */
static void zfi_parallel_letters(zfi_parallel *c, int32_t id)
{
    const zfi_node *node = &c->graph->nodes[id];
    zfi_cuts cuts;
    if (!zfi_parallel_cuts(c, id, &cuts)) {
        for (int32_t k = 0; k < node->arg_count; k++) zfi_class_keep(c, node->args[k], id);
        zfi_class_keep(c, id, id);
        return;
    }
    for (int32_t l = 0; l < cuts.letters; l++)
        if (zfi_is_of_copies(c->graph, id, &cuts, l)) zfi_parallel_copies(c, id);
        else zfi_parallel_letter(c, id, &cuts, l);
    zfi_parallel_unlettered(c, id, &cuts);
    if (cuts.flat[ZFI_CUT_RESULT][0]) c->flat[id] = node->args[cuts.flat[ZFI_CUT_RESULT][0] - 1];
}

/* The same of a reshape, as one of another value. */
static void zfi_parallel_reshape(zfi_parallel *c, int32_t id, int32_t of)
{
    zfi_node *node = &c->graph->nodes[id];
    int32_t *args = node->args;
    node->args = &of;
    zfi_parallel_letters(c, id);
    node->args = args;
}

/* The node keeps the gradient of a parameter for the program (keep_gradients): it is cut as that
 * is. */
static bool zfi_shows_gradient(const zf_graph *g, const zfi_node *node)
{
    static const char prefix[] = "gradient/";
    const size_t length = sizeof prefix - 1;
    return node->op == ZF_OP_output && !strncmp(node->name, prefix, length) &&
           zfi_map_get(g->names, node->name + length, 0);
}

/* Joins what the node cuts together. */
static void zfi_parallel_node(zfi_parallel *c, int32_t id)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[id];
    const int32_t like = zfi_flat_operand(g, node);
    if (zfi_has(g, id, ZF_OP_LEAF)) zfi_parallel_leaf(c, id);
    else if (node->op == ZF_OP_saved) return; /* with what saves it */
    else if (zfi_shows_gradient(g, node)) return; /* with the parameter */
    else if (node->op == ZF_OP_gradient) zfi_class_alike(c, node->args[0], node->args[1], id);
    else if (like && node->op == ZF_OP_slice) c->flat[id] = like;
    else if (like) zfi_parallel_reshape(c, id, like);
    else zfi_parallel_flat(c, id), zfi_parallel_letters(c, id);
}
