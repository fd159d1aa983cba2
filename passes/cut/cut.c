/* cut: ranks along the axis tensor share layers.
 *
 * requires: no zero yet; after autograd, simplify and the optimizer, so that gradients and updates
 *           are cut with the layers
 * ensures:  an axis tensor of the mesh; each value has the type that its operands give
 * before:   %3 = linear %1, %2 : f32[4,16]         %2 = param "up" : f32[16,8]
 *           %6 = linear %4, %5 : f32[4,8]          %5 = param "down" : f32[8,16]
 * after:    mesh tensor=2
 *           %3 = linear %1, %2 : f32[4,8@tensor]   %2 = param "up" : f32[8@tensor,8]
 *           %6 = linear %4, %5 {sections=1 wide=true} : f32[4,8]+tensor
 *           %9 = all_reduce %6 {world=2 over=tensor order=tree} : f32[4,8]
 *
 * Dimensions that must be cut together are one class: those of a letter at each node
 * (graph/cuts.c), in both halves of the graph, of parameters, their gradients and states. A class
 * is cut if it may be at each of its places, if a product sums over it with a parameter (the second
 * layer of two), and if no value has a dimension of another class that is cut. So weights of q, k
 * and v are cut by heads, and that of the output by what it sums over. What sums over a cut
 * dimension is a balanced tree over `sections`, of which a rank has a part (base/tree.c): the bits
 * are those of any number of ranks with as many sections. What can be cut for one rank is cut for
 * all numbers, or is an error: which sums have sections does not depend on the ranks. */

/* A class of dimensions, at its root. */
typedef struct zfi_cut_class {
    int32_t parent;   /* a place: node * ZF_MAX_RANK + dimension */
    int32_t first;    /* place, 1 + its index */
    int32_t why;      /* the node that keeps it from being cut; 0: none */
    int64_t most;     /* it may be cut into divisors of this */
    bool second;      /* a product with a parameter sums over it */
    bool chosen;
} zfi_cut_class;

typedef struct zfi_parallel {
    zf_graph *graph;
    zf_cut_desc d;
    zfi_cut_class *at; /* by place */
    int32_t *next;     /* by place: the next one of its class, 1 + its index; 0: none */
    int32_t *flat;     /* by node: an operand that its flat value has; 0: the value is not flat */
    bool *sums;        /* by node: it sums over a chosen class */
    int32_t *instead;  /* by node: what its readers read; 0: itself */
    int32_t count;     /* of nodes */
} zfi_parallel;

static int32_t zfi_class_of(zfi_parallel *c, int32_t node, int32_t d)
{
    int32_t place = node * ZF_MAX_RANK + d;
    while (c->at[place].parent != place) {
        c->at[place].parent = c->at[c->at[place].parent].parent;
        place = c->at[place].parent;
    }
    return place;
}

static void zfi_class_join(zfi_parallel *c, int32_t a, int32_t b)
{
    zfi_cut_class *to = &c->at[a], *from = &c->at[b];
    if (a == b) return;
    from->parent = a;
    if (!to->why) to->why = from->why;
    to->most = zfi_gcd(to->most, from->most);
    to->second |= from->second;
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
        zfi_class_join(c, zfi_class_of(c, a, d), zfi_class_of(c, b, d));
}

/* ------------------------------------------------------------------------------------ letters */

/* The node is a product in one section, which may become one of several. */
static bool zfi_may_have_sections(const zf_graph *g, const zfi_node *node)
{
    const zf_attribute *sections = zfi_attribute_of(g, node, "sections");
    return sections && !sections->i && zfi_is_plain_product(node);
}

/* The product alone: in sections, with nothing that follows it. */
static void zfi_parallel_bare(zfi_parallel *c, zfi_node *node)
{
    const zfi_record *record = c->graph->records[node->op];
    zf_attribute *activation = zfi_attribute_in(record, node->attributes, "activation");
    zfi_attribute_in(record, node->attributes, "sections")->i = c->d.sections;
    zfi_attribute_in(record, node->attributes, "wide")->i = 1;
    if (activation) activation->i = 0;
    node->arg_count = 2;
}

/* What follows a product is cut as its result is: a bias along the last dimension. */
static void zfi_parallel_after(const zf_graph *g, const zfi_node *node, zfi_cuts *cuts)
{
    const int32_t rank = node->shape.rank;
    for (int32_t k = 2; k < node->arg_count; k++) {
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

/* Joins the dimensions of one letter. */
static void zfi_parallel_letter(zfi_parallel *c, int32_t id, const zfi_cuts *cuts, int32_t l)
{
    const zf_graph *g = c->graph;
    const zfi_cut_letter *letter = &cuts->letter[l];
    const bool tree = zfi_may_have_sections(g, &g->nodes[id]) &&
                      zfi_cut_sums(cuts, l, ZFI_CUT_RESULT);
    bool weighs = false;
    int64_t most = letter->most;
    int32_t first = -1;
    for (int32_t v = 0; v < ZFI_CUT_VALUES; v++) {
        const int32_t value = zfi_parallel_value(g, id, v);
        for (int32_t d = 0; value && d < g->nodes[value].shape.rank; d++) {
            if (!cuts->given[v] || cuts->at[v][d] != l) continue;
            if (first < 0) first = zfi_class_of(c, value, d);
            zfi_class_join(c, first, zfi_class_of(c, value, d));
            weighs |= v < ZFI_CUT_RESULT && g->nodes[value].op == ZF_OP_param;
            /* of a dimension of one element nothing says whether it is cut */
            if (cuts->shape >= 0)
                most = zfi_gcd(most, zfi_cut_several(g->nodes[value].shape.dims[d]));
        }
    }
    if (first < 0) return;
    if ((letter->whole || letter->first >= 0 || (tree && letter->size % c->d.sections)) &&
        !c->at[first].why)
        c->at[first].why = id;
    c->at[first].most = zfi_gcd(c->at[first].most, most);
    c->at[first].second |= weighs && tree;
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
    double value;
    if (node->op == ZF_OP_state && node->arg_count) zfi_class_alike(c, id, node->args[0], id);
    else if (node->op == ZF_OP_state && node->of) zfi_class_alike(c, id, node->of, id);
    else if (node->op != ZF_OP_param && !zfi_splat(node, &value)) zfi_class_keep(c, id, id);
    if (zfi_cut_rows_of(node).rows || (node->op == ZF_OP_param && ZF_INT(node, param, bits)))
        zfi_class_keep(c, id, id);
}

/* A reader of a flat value that does not take all values of one operand keeps these whole. */
static void zfi_parallel_flat(zfi_parallel *c, int32_t id)
{
    const zfi_node *node = &c->graph->nodes[id];
    for (int32_t k = 0; k < node->arg_count; k++)
        if (c->flat[node->args[k]]) zfi_class_keep(c, c->flat[node->args[k]], id);
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
    for (int32_t l = 0; l < cuts.letters; l++) zfi_parallel_letter(c, id, &cuts, l);
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

/* Joins what the node cuts together. */
static void zfi_parallel_node(zfi_parallel *c, int32_t id)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[id];
    const int32_t like = zfi_flat_operand(g, node);
    if (zfi_has(g, id, ZF_OP_LEAF)) zfi_parallel_leaf(c, id);
    else if (node->op == ZF_OP_saved) return; /* with what saves it */
    else if (node->op == ZF_OP_gradient) zfi_class_alike(c, node->args[0], node->args[1], id);
    else if (like && node->op == ZF_OP_slice) c->flat[id] = like;
    else if (like) zfi_parallel_reshape(c, id, like);
    else zfi_parallel_flat(c, id), zfi_parallel_letters(c, id);
}

/* ------------------------------------------------------------------------------------ choosing */

static bool zfi_is_chosen(zfi_parallel *c, int32_t node, int32_t d)
{
    return c->at[zfi_class_of(c, node, d)].chosen;
}

/* The value is flat, and has those of an operand that is cut. */
static bool zfi_is_flat_and_cut(zfi_parallel *c, int32_t node)
{
    bool cut = false;
    for (int32_t d = 0; c->flat[node] && d < c->graph->nodes[c->flat[node]].shape.rank; d++)
        cut |= zfi_is_chosen(c, c->flat[node], d);
    return cut;
}

/* Chains the places of each class. */
static void zfi_parallel_chain(zfi_parallel *c)
{
    const zf_graph *g = c->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        for (int32_t d = 0; d < g->nodes[g->order[i]].shape.rank; d++) {
            const int32_t root = zfi_class_of(c, g->order[i], d);
            c->next[g->order[i] * ZF_MAX_RANK + d] = c->at[root].first;
            c->at[root].first = 1 + g->order[i] * ZF_MAX_RANK + d;
        }
}

/* A value has a dimension of the class and one of another that is cut, or two of the class. */
static bool zfi_parallel_meets(zfi_parallel *c, int32_t root)
{
    for (int32_t place = c->at[root].first; place; place = c->next[place - 1]) {
        const int32_t node = (place - 1) / ZF_MAX_RANK;
        int32_t cut = 0;
        for (int32_t d = 0; d < c->graph->nodes[node].shape.rank; d++) {
            const int32_t its = zfi_class_of(c, node, d);
            cut += its == root || c->at[its].chosen;
        }
        if (cut > 1) return true;
    }
    return false;
}

static int32_t zfi_parallel_choose(zfi_parallel *c)
{
    zf_graph *g = c->graph;
    int32_t chosen = 0;
    for (int32_t k = 0; k < zfi_len(g->params); k++)
        for (int32_t d = 0; d < g->nodes[g->params[k]].shape.rank; d++) {
            const int32_t root = zfi_class_of(c, g->params[k], d);
            zfi_cut_class *its = &c->at[root];
            if (its->chosen || its->why || !its->second || zfi_parallel_meets(c, root)) continue;
            if (its->most % c->d.parts)
                zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                         "zf_cut: dimension %d of \"%.200s\" may be cut into divisors of %lld, and "
                         "there are %d ranks",
                         (int)d, g->nodes[g->params[k]].name, (long long)its->most,
                         (int)c->d.parts);
            its->chosen = true;
            chosen++;
        }
    return chosen;
}

/* The error that nothing can be cut, with what keeps the first candidate. */
static zf_status zfi_parallel_none(zfi_parallel *c)
{
    zf_graph *g = c->graph;
    for (int32_t k = 0; k < zfi_len(g->params); k++)
        for (int32_t d = 0; d < g->nodes[g->params[k]].shape.rank; d++) {
            const zfi_cut_class *its = &c->at[zfi_class_of(c, g->params[k], d)];
            if (its->second && its->why)
                return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                                "zf_cut: no layer can be cut: dimension %d of \"%.200s\" is kept "
                                "by %s %%%d",
                                (int)d, g->nodes[g->params[k]].name,
                                g->records[g->nodes[its->why].op]->name, (int)its->why);
        }
    return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                    "zf_cut: no layer can be cut: no product with a parameter follows another");
}

/* ------------------------------------------------------------------------------------- cutting */

/* A slice of a flat value: on a rank that is shorter, as the operand is. */
static void zfi_parallel_slice(zfi_parallel *c, zfi_node *node)
{
    ZF_INT(node, slice, start) /= c->d.parts;
    ZF_INT(node, slice, stop) /= c->d.parts;
}

/* The attribute shape of a node, as that of its result on a rank. */
static void zfi_parallel_shape(zfi_parallel *c, int32_t id, int32_t attribute)
{
    zf_graph *g = c->graph;
    zfi_node *node = &g->nodes[id];
    int64_t dims[ZF_MAX_RANK];
    const void *copy;
    for (int32_t d = 0; d < node->shape.rank; d++)
        dims[d] = node->shape.dims[d] / (zfi_is_chosen(c, id, d) ? c->d.parts : 1);
    copy = zfi_bytes_copy(&g->memory, &g->text, dims, (size_t)node->shape.rank * sizeof *dims);
    if (copy) node->attributes[attribute].list.data = copy;
}

/* Attributes of the node as a rank runs it. */
static void zfi_parallel_attributes(zfi_parallel *c, int32_t id)
{
    zf_graph *g = c->graph;
    zfi_node *node = &g->nodes[id];
    zfi_cuts cuts;
    if (node->op == ZF_OP_slice && zfi_is_flat_and_cut(c, id)) zfi_parallel_slice(c, node);
    if (zfi_has(g, id, ZF_OP_LEAF) || node->op == ZF_OP_gradient || node->op == ZF_OP_saved ||
        !zfi_parallel_cuts(c, id, &cuts))
        return;
    for (int32_t l = 0; l < cuts.letters; l++) {
        bool chosen = false;
        for (int32_t v = 0; v < ZFI_CUT_VALUES; v++) {
            const int32_t value = zfi_parallel_value(g, id, v);
            for (int32_t d = 0; value && d < g->nodes[value].shape.rank; d++)
                if (cuts.given[v] && cuts.at[v][d] == l) chosen |= zfi_is_chosen(c, value, d);
        }
        if (!chosen) continue;
        if (!zfi_has(g, id, ZF_OP_EFFECT) && zfi_cut_sums(&cuts, l, ZFI_CUT_RESULT)) {
            c->sums[id] = true;
            if (zfi_may_have_sections(g, node)) zfi_parallel_bare(c, node);
        }
        for (int a = 0; a < ZF_MAX_ATTRIBUTES; a++)
            if (cuts.letter[l].divided >> a & 1) node->attributes[a].i /= c->d.parts;
    }
    if (cuts.shape >= 0) zfi_parallel_shape(c, id, cuts.shape);
}

/* The shape and the type of a value on a rank. */
static void zfi_parallel_value_of_rank(zfi_parallel *c, int32_t id)
{
    zfi_node *node = &c->graph->nodes[id];
    const bool several = c->d.parts > 1;
    for (int32_t d = 0; d < node->shape.rank; d++) {
        if (!zfi_is_chosen(c, id, d)) continue;
        node->shape.dims[d] /= c->d.parts;
        if (several) node->spread.at[d] = zfi_axes_add(node->spread.at[d], ZF_OVER_TENSOR);
    }
    if (zfi_is_flat_and_cut(c, id)) {
        node->shape.dims[0] /= c->d.parts;
        if (several) node->spread.differs |= zfi_axis_bit(ZF_OVER_TENSOR);
    }
    if (c->sums[id] && several) node->spread.sum |= zfi_axis_bit(ZF_OVER_TENSOR);
    if (c->sums[id] && zfi_is_half(node->dtype)) node->dtype = ZF_F32;
}

/* What a node was before, as far as it changes. */
typedef struct zfi_before_cut {
    zf_dtype dtype;
    int32_t args;
    int64_t activation; /* of a product; 0: none */
} zfi_before_cut;

static zfi_before_cut zfi_before_cut_of(const zf_graph *g, const zfi_node *node)
{
    const zf_attribute *activation = zfi_attribute_of(g, node, "activation");
    return (zfi_before_cut){node->dtype, node->arg_count,
                            zfi_may_have_sections(g, node) && activation ? activation->i : 0};
}

static int32_t zfi_parallel_cast(zf_graph *g, int32_t x, zf_dtype dtype)
{
    if (!x || g->nodes[x].dtype == dtype) return x;
    return zfi_append_nodes(g, cast, zfi_with({.i = dtype}), x);
}

/* The activation of the sum x of a product. */
static int32_t zfi_parallel_activate(zfi_parallel *c, int32_t id, int32_t x,
                                     const zfi_before_cut *of)
{
    zf_graph *g = c->graph;
    const zfi_instruction *activation = zfi_activation(of->activation);
    const int32_t saved = g->nodes[id].saved[0];
    if (saved) c->instead[saved] = zfi_parallel_cast(g, x, of->dtype);
    g->nodes[id].saved[0] = 0;
    return zfi_append_op(g, activation->op, &x, 1, zfi_with({.i = activation->form}));
}

/* What readers of a sum read: the sum over ranks, and what follows it, in the dtype of before. */
static int32_t zfi_parallel_sum(zfi_parallel *c, int32_t id, const zfi_before_cut *of)
{
    zf_graph *g = c->graph;
    int32_t x = id;
    if (c->d.parts > 1)
        x = zfi_append_op(g, ZF_OP_all_reduce, &x, 1,
                          zfi_with({.i = c->d.parts}, {.i = ZF_OVER_TENSOR}, {.i = 1}));
    for (int32_t k = g->nodes[id].arg_count; k < of->args && x; k++) {
        const int32_t arg = g->nodes[id].args[k];
        x = zfi_append_nodes(
            g, add, NULL, x,
            zfi_parallel_cast(g, c->instead[arg] ? c->instead[arg] : arg, g->nodes[x].dtype));
    }
    if (of->activation && x) x = zfi_parallel_activate(c, id, x, of);
    return zfi_parallel_cast(g, x, of->dtype);
}

/* The axis tensor, the fastest. */
static void zfi_add_tensor_axis(zf_graph *g, int32_t ranks)
{
    if (ranks < 2) return;
    g->axes.axis[g->axes.count++] = (zfi_other_axis){ZF_OVER_TENSOR, ranks};
}

static void zfi_parallel_rewrite(zfi_parallel *c)
{
    zf_graph *g = c->graph;
    int32_t *order = g->order;
    zfi_before_cut *before = zfi_calloc(&g->memory, (size_t)c->count, sizeof *before);
    if (!before) return;
    zfi_add_tensor_axis(g, c->d.parts);
    for (int32_t i = 0; i < zfi_len(order); i++)
        before[order[i]] = zfi_before_cut_of(g, &g->nodes[order[i]]);
    for (int32_t i = 0; i < zfi_len(order); i++) zfi_parallel_attributes(c, order[i]);
    for (int32_t i = 0; i < zfi_len(order); i++) zfi_parallel_value_of_rank(c, order[i]);
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->memory.failed && !g->error.status; i++) {
        zfi_node *node = &g->nodes[order[i]];
        const bool saved = node->op == ZF_OP_saved;
        if (saved && c->instead[order[i]]) {
            zfi_replace(g, order[i], c->instead[order[i]]);
            continue;
        }
        for (int32_t k = 0; k < node->arg_count && !saved; k++)
            if (c->instead[node->args[k]]) node->args[k] = c->instead[node->args[k]];
        zfi_push(&g->memory, g->order, order[i]);
        g->in_update = node->update, g->scope = node->scope;
        if (c->sums[order[i]])
            c->instead[order[i]] = zfi_parallel_sum(c, order[i], &before[order[i]]);
    }
    zfi_array_free(&g->memory, order);
    zfi_free(&g->memory, before, (size_t)c->count * sizeof *before);
}

/* ----------------------------------------------------------------------------------- the norm */

/* All operands of a norm are those of blocks of gradients, which nothing else reads. */
static bool zfi_is_norm_of_gradients(const zf_graph *g, const zfi_node *norm, const int32_t *uses,
                                     const bool *gradient)
{
    if (norm->op != ZF_OP_norm) return false;
    for (int32_t k = 0; k < norm->arg_count; k++) {
        const zfi_node *x = &g->nodes[norm->args[k]];
        if (x->op != ZF_OP_block_norms || uses[norm->args[k]] != 1 || !gradient[x->args[0]])
            return false;
    }
    return true;
}

static void zfi_norm_by_squares(zf_graph *g, zfi_node *norm)
{
    for (int32_t k = 0; k < norm->arg_count; k++) {
        zfi_node *x = &g->nodes[norm->args[k]];
        x->op = ZF_OP_squares, x->dtype = ZF_F64, x->shape = ZF_SHAPE(ZFI_SQUARES);
    }
    norm->op = ZF_OP_norm_of_squares;
    ZF_INT(norm, norm_of_squares, wide) = norm->dtype == ZF_F64;
}

/* The norm of all gradients becomes one that does not depend on how ranks share them. */
static void zfi_parallel_norms(zf_graph *g)
{
    const size_t count = (size_t)zfi_len(g->nodes);
    int32_t *uses = zfi_calloc(&g->memory, count, sizeof *uses);
    bool *gradient = zfi_calloc(&g->memory, count, sizeof *gradient);
    for (int32_t i = 0; i < zfi_len(g->order) && uses && gradient; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count; k++) uses[node->args[k]]++;
        if (node->op == ZF_OP_gradient) gradient[zfi_raw_gradient(g, node->args[1])] = true;
    }
    for (int32_t i = 0; i < zfi_len(g->order) && uses && gradient; i++)
        if (zfi_is_norm_of_gradients(g, &g->nodes[g->order[i]], uses, gradient))
            zfi_norm_by_squares(g, &g->nodes[g->order[i]]);
    zfi_free(&g->memory, uses, count * sizeof *uses);
    zfi_free(&g->memory, gradient, count * sizeof *gradient);
}

/* Elements of a value that lie one after the other on any number of ranks: of one section. */
static int64_t zfi_parallel_run_of(zfi_parallel *c, int32_t id)
{
    const zf_shape *shape = &c->graph->nodes[id].shape;
    int64_t run = 0;
    for (int32_t d = 0; d < shape->rank; d++) {
        const int64_t size = shape->dims[d], sections = c->d.sections;
        run *= size;
        if (zfi_is_chosen(c, id, d)) run = size % sections ? 1 : size / sections;
    }
    return run;
}

/* Squares of what is cut are added in runs that are those of any number of ranks. */
static void zfi_parallel_units(zfi_parallel *c)
{
    zf_graph *g = c->graph;
    int64_t unit = ZFI_NORM_BLOCK;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < zfi_len(g->order); i++) {
            zfi_node *node = &g->nodes[g->order[i]];
            const int64_t run =
                node->op == ZF_OP_squares ? zfi_parallel_run_of(c, node->args[0]) : 0;
            if (!run) continue;
            if (pass) ZF_INT(node, squares, unit) = unit;
            else unit = zfi_gcd(unit, run);
        }
}

static void zfi_parallel_run(zfi_parallel *c)
{
    zf_graph *g = c->graph;
    for (int32_t place = 0; place < c->count * ZF_MAX_RANK; place++) {
        const zfi_node *node = &g->nodes[place / ZF_MAX_RANK];
        const int32_t d = place % ZF_MAX_RANK;
        const int64_t size = d < node->shape.rank ? node->shape.dims[d] : 0;
        c->at[place] = (zfi_cut_class){.parent = place, .most = size};
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) zfi_parallel_node(c, g->order[i]);
    zfi_parallel_chain(c);
    if (!zfi_parallel_choose(c)) zfi_parallel_none(c);
    if (!g->error.status) zfi_parallel_units(c);
    if (!g->error.status) zfi_parallel_rewrite(c);
}

static const zf_option zfi_sections_options[] = {
    ZF_OPTION(zf_sections, COUNT, tensor, 0, "[0,1048576]", .traits = ZF_OPTION_CHANGES),
    {.name = NULL}};

static const zf_option zfi_cut_options[] = {
    ZF_OPTION(zf_cut_desc, COUNT, parts, 1, "[1,1048576]", .flag = ""),
    ZF_OPTION(zf_cut_desc, COUNT, sections, 0, "[0,1048576]", .flag = ""),
    {.name = NULL}};

ZF_API zf_status zf_cut(zf_graph *g, const zf_cut_desc *desc)
{
    zfi_parallel c = {.graph = g};
    const char *scope;
    zf_status status = zfi_enter(g, "zf_cut", 0, ZFI_STAGE_RANKS | ZFI_STAGE_PLACED);
    if (status) return status;
    if (desc) c.d = *desc;
    if (zfi_settle_desc("zf_cut", zfi_cut_options, &c.d, &g->error)) return g->error.status;
    if (!c.d.sections) c.d.sections = c.d.parts;
    if (c.d.sections % c.d.parts)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_cut: %d sections are not divided by %d ranks", (int)c.d.sections,
                        (int)c.d.parts);
    if (g->axes.count)
        return zfi_fail(&g->error, ZF_ERR_STAGE, "zf_cut: the ranks have other axes already");
    if (c.d.sections == 1) return zfi_leave(g, 0);
    if (g->settled != zfi_len(g->params) && (status = zfi_settle(g))) return status;
    scope = g->scope;
    zfi_parallel_norms(g);
    c.count = zfi_len(g->nodes);
    c.at = zfi_calloc(&g->memory, (size_t)c.count * ZF_MAX_RANK, sizeof *c.at);
    c.next = zfi_calloc(&g->memory, (size_t)c.count * ZF_MAX_RANK, sizeof *c.next);
    c.flat = zfi_calloc(&g->memory, (size_t)c.count, sizeof *c.flat);
    c.sums = zfi_calloc(&g->memory, (size_t)c.count, sizeof *c.sums);
    c.instead = zfi_calloc(&g->memory, (size_t)c.count, sizeof *c.instead);
    if (c.at && c.next && c.flat && c.sums && c.instead) zfi_parallel_run(&c);
    zfi_free(&g->memory, c.at, (size_t)c.count * ZF_MAX_RANK * sizeof *c.at);
    zfi_free(&g->memory, c.next, (size_t)c.count * ZF_MAX_RANK * sizeof *c.next);
    zfi_free(&g->memory, c.flat, (size_t)c.count * sizeof *c.flat);
    zfi_free(&g->memory, c.sums, (size_t)c.count * sizeof *c.sums);
    zfi_free(&g->memory, c.instead, (size_t)c.count * sizeof *c.instead);
    g->scope = scope;
    if (g->memory.failed) return zfi_graph_nomem(g);
    return g->error.status ? g->error.status : zfi_leave(g, 0);
}
