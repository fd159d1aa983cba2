/* Rewrite: nodes become what a rank runs, once zf_cut has chosen the classes. Shapes and attributes
 * are those of a part. What sums over a cut dimension is in sections and gets an all_reduce; the
 * bias, activation and residual of such a product follow it. What has no attribute for sections, as
 * the gradient of a norm of heads, becomes a node for each section of the rank. */

/* The parts into which a flat value is cut, as the operand that it has. */
static int64_t zfi_flat_parts(zfi_parallel *c, int32_t id)
{
    int64_t parts = 1;
    for (int32_t d = 0; d < c->graph->nodes[c->flat[id]].shape.rank; d++)
        parts *= zfi_cut_parts(c, c->flat[id], d);
    return parts;
}

/* A slice of a flat value: on a rank that is shorter, as the operand is. */
static void zfi_parallel_slice(zfi_parallel *c, zfi_node *node)
{
    const int64_t parts = zfi_flat_parts(c, (int32_t)(node - c->graph->nodes));
    ZF_INT(node, slice, start) /= parts;
    ZF_INT(node, slice, stop) /= parts;
}

/* The attribute shape of a node, as that of its result on a rank. */
static void zfi_parallel_shape(zfi_parallel *c, int32_t id, int32_t attribute)
{
    zf_graph *g = c->graph;
    zfi_node *node = &g->nodes[id];
    int64_t dims[ZF_MAX_RANK];
    const void *copy;
    for (int32_t d = 0; d < node->shape.rank; d++)
        dims[d] = zfi_cut_size(c, id, d);
    copy = zfi_bytes_copy(&g->memory, &g->text, dims, (size_t)node->shape.rank * sizeof *dims);
    if (copy) node->attributes[attribute].list.data = copy;
}

/* The rank has a part of the rows. */
static void zfi_parallel_rows(zfi_parallel *c, zfi_node *node, const zfi_cut_letter *letter)
{
    const int32_t over = zfi_attribute_index(c->graph->records[node->op], "over");
    if (c->d.parts < 2) return;
    node->attributes[letter->of].i = letter->size;
    if (over >= 0) node->attributes[over].i = ZF_OVER_TENSOR;
}

/* The parts into which the letter is cut; 0: it is not. */
static int64_t zfi_letter_parts(zfi_parallel *c, int32_t id, const zfi_cuts *cuts, int32_t l)
{
    const zf_graph *g = c->graph;
    for (int32_t v = 0; v < ZFI_CUT_VALUES; v++) {
        const int32_t value = zfi_parallel_value(g, id, v);
        for (int32_t d = 0; value && d < g->nodes[value].shape.rank; d++)
            if (cuts->given[v] && cuts->at[v][d] == l && zfi_is_chosen(c, value, d))
                return zfi_cut_parts(c, value, d);
    }
    return 0;
}

/* An attribute that is divided as the letter is: the number of its elements, or one that these are
 * a multiple of. */
static int64_t zfi_rank_attribute(zfi_parallel *c, int32_t id, const zfi_cuts *cuts, int32_t l,
                                  int64_t whole)
{
    const zf_graph *g = c->graph;
    for (int32_t v = 0; v < ZFI_CUT_VALUES; v++) {
        const int32_t value = zfi_parallel_value(g, id, v);
        for (int32_t d = 0; value && d < g->nodes[value].shape.rank; d++)
            if (cuts->given[v] && cuts->at[v][d] == l && g->nodes[value].shape.dims[d] == whole)
                return zfi_cut_size(c, value, d);
    }
    return whole / zfi_letter_parts(c, id, cuts, l);
}

/* Heads and copies of a node that a rank runs: those of its group's heads that are its own. */
static void zfi_parallel_own_copies(zfi_parallel *c, int32_t id)
{
    zfi_node *node = &c->graph->nodes[id];
    const int32_t last = node->shape.rank - 1;
    int32_t heads, copies;
    int64_t few, many;
    zfi_copied_values(c->graph, id, &heads, &copies);
    few = zfi_cut_parts(c, heads, last), many = zfi_cut_parts(c, copies, last);
    ZF_INT(node, repeat, heads) /= few;
    ZF_INT(node, repeat, copies) = ZF_INT(node, repeat, copies) * few / many;
    if (few == many) return;
    ZF_INT(node, repeat, over) = few > 1 ? ZF_OVER_COPIES : ZF_OVER_TENSOR;
    if (heads == id) c->sums[id] = (uint8_t)ZF_INT(node, repeat, over);
}

/* The runs in which values have the letter; 0: 1. */
static int32_t zfi_parallel_runs(zfi_parallel *c, int32_t id, const zfi_cuts *cuts, int32_t l)
{
    int32_t runs = 0;
    for (int32_t v = 0; v < ZFI_CUT_VALUES; v++) {
        const int32_t value = zfi_parallel_value(c->graph, id, v);
        for (int32_t d = 0; value && d < c->graph->nodes[value].shape.rank; d++)
            if (cuts->given[v] && cuts->at[v][d] == l)
                runs |= c->at[zfi_class_of(c, value, d)].runs;
    }
    return runs;
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
        const int64_t parts = zfi_letter_parts(c, id, &cuts, l);
        if (zfi_is_of_copies(g, id, &cuts, l)) zfi_parallel_own_copies(c, id);
        if (!parts || zfi_is_of_copies(g, id, &cuts, l)) continue;
        if (!zfi_has(g, id, ZF_OP_EFFECT) && zfi_cut_sums(&cuts, l, ZFI_CUT_RESULT)) {
            c->sums[id] = zfi_over_of(c, parts);
            if (zfi_may_have_sections(g, node)) {
                zf_attribute *runs = zfi_attribute_in(g->records[node->op], node->attributes, "runs");
                zfi_parallel_bare(c, node);
                if (runs) runs->i = zfi_parallel_runs(c, id, &cuts, l);
            }
        }
        for (int a = 0; a < ZF_MAX_ATTRIBUTES; a++)
            if (cuts.letter[l].divided >> a & 1)
                node->attributes[a].i = zfi_rank_attribute(c, id, &cuts, l, node->attributes[a].i);
        if (cuts.letter[l].first >= 0) zfi_parallel_rows(c, node, &cuts.letter[l]);
    }
    if (cuts.shape >= 0) zfi_parallel_shape(c, id, cuts.shape);
}

/* A constant of different values is whole on each rank, which takes its part. */
static bool zfi_is_listed(const zfi_node *node)
{
    double value;
    return node->op == ZF_OP_constant && !zfi_splat(node, &value);
}

/* The rank's part of such a constant; 0: all of it. */
static int32_t zfi_parallel_take_part(zfi_parallel *c, int32_t id)
{
    zf_graph *g = c->graph;
    for (int32_t d = 0; d < g->nodes[id].shape.rank && c->d.parts > 1; d++)
        if (zfi_is_chosen(c, id, d)) {
            const int64_t parts = zfi_cut_parts(c, id, d);
            return zfi_append_nodes(
                g, part, zfi_with({.i = parts}, {.i = zfi_over_of(c, parts)}, {.i = d}), id);
        }
    return 0;
}

/* The node broadcasts a value along a dimension that is cut: each rank has all of that. */
static bool zfi_spreads_alike(zfi_parallel *c, int32_t id)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[id];
    const zf_shape *small = node->arg_count ? &g->nodes[node->args[0]].shape : NULL;
    double value;
    if (node->op != ZF_OP_broadcast || c->d.parts < 2 || zfi_uniform(g, id, &value)) return false;
    for (int32_t d = 0; d < node->shape.rank; d++) {
        const int32_t of = d - node->shape.rank + small->rank;
        if (zfi_is_chosen(c, id, d) && (of < 0 || small->dims[of] == 1)) return true;
    }
    return false;
}

/* The shape and the type of a value on a rank. */
static void zfi_parallel_value_of_rank(zfi_parallel *c, int32_t id)
{
    zfi_node *node = &c->graph->nodes[id];
    const bool several = c->d.parts > 1;
    if (zfi_is_listed(node)) return;
    for (int32_t d = 0; d < node->shape.rank; d++) {
        const int32_t runs = c->at[zfi_class_of(c, id, d)].runs;
        if (!zfi_is_chosen(c, id, d)) continue;
        node->shared |= (uint8_t)(1u << d);
        if (several && c->at[zfi_class_of(c, id, d)].padded)
            node->spread.whole[d] = node->shape.dims[d];
        node->shape.dims[d] = zfi_cut_size(c, id, d);
        if (several && node->op == ZF_OP_reshape && node->shape.dims[d] == 1)
            ZF_INT(node, reshape, cut) = 1 + d;
        if (several)
            node->spread.at[d] =
                zfi_axes_add(node->spread.at[d], zfi_over_of(c, zfi_cut_parts(c, id, d)));
        if (several && runs) node->spread.run[d] = node->shape.dims[d] / runs;
    }
    if (zfi_is_flat_and_cut(c, id)) {
        node->shape.dims[0] /= zfi_flat_parts(c, id);
        if (several) node->spread.differs |= zfi_axis_bit(ZF_OVER_TENSOR);
    }
    if (c->sums[id] && several) node->spread.sum |= zfi_axis_bit(c->sums[id]);
    if (c->sums[id] && zfi_is_half(node->dtype) && zfi_attribute_of(c->graph, node, "wide"))
        node->dtype = ZF_F32;
}

/* What a node was before, as far as it changes. */
typedef struct zfi_before_cut {
    zf_dtype dtype;
    int32_t args;
    int64_t activation; /* of a product; 0: none */
    int32_t letter;     /* over which it sums, a node for each section: 1 + its index; 0: none */
    int32_t pieces;     /* and how many these are */
} zfi_before_cut;

static zfi_before_cut zfi_before_cut_of(const zf_graph *g, const zfi_node *node)
{
    const zf_attribute *activation = zfi_attribute_of(g, node, "activation");
    return (zfi_before_cut){node->dtype, node->arg_count,
                            zfi_may_have_sections(g, node) && activation ? activation->i : 0, 0, 0};
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

/* The class of the letter, by an operand of the node that has it; NULL: none has. */
static const zfi_cut_class *zfi_class_of_letter(zfi_parallel *c, int32_t id, const zfi_cuts *cuts,
                                                int32_t l)
{
    const zfi_node *node = &c->graph->nodes[id];
    for (int32_t k = 0; k < node->arg_count && k < ZFI_CUT_RESULT; k++)
        for (int32_t d = 0; d < c->graph->nodes[node->args[k]].shape.rank; d++)
            if (cuts->given[k] && cuts->at[k][d] == l && node->args[k] < c->count)
                return &c->at[zfi_class_of(c, node->args[k], d)];
    return NULL;
}

/* Sections of the letter that a rank has: all of its own, or of fewer heads of keys as many as
 * divide them on any number of ranks. */
static int32_t zfi_sections_of(zfi_parallel *c, int32_t id, const zfi_cuts *cuts, int32_t l)
{
    const zfi_cut_class *of = zfi_class_of_letter(c, id, cuts, l);
    if (of && of->copies && of->chosen) {
        const int64_t all = zfi_cut_parts_at_most(zfi_gcd(of->most, c->d.sections), of->upto);
        return (int32_t)(all / of->parts);
    }
    return (int32_t)zfi_cut_parts_at_most(
        zfi_gcd(cuts->letter[l].most, c->d.sections / c->d.parts), cuts->letter[l].upto);
}

/* The letter over which the node sums with a node for each section, and how many, as
 * zfi_before_cut. */
static int32_t zfi_letter_of_pieces(zfi_parallel *c, int32_t id, int32_t *pieces)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[id];
    bool whole = !c->sums[id] || c->d.sections == c->d.parts || node->update ||
                 zfi_attribute_of(g, node, "sections") || g->records[node->op]->copies;
    zfi_cuts cuts;
    for (int k = 0; k < ZF_MAX_SAVED; k++) whole |= node->saved[k] != 0;
    if (whole || !zfi_cut_of(g, node, &cuts)) return 0;
    for (int32_t l = 0; l < cuts.letters; l++)
        if (cuts.letter[l].first < 0 && zfi_cut_sums(&cuts, l, ZFI_CUT_RESULT) &&
            zfi_letter_parts(c, id, &cuts, l) &&
            (*pieces = zfi_sections_of(c, id, &cuts, l)) > 1)
            return 1 + l;
    return 0;
}

/* The sum of pieces by a balanced tree. */
static int32_t zfi_add_by_tree(zf_graph *g, int32_t *pieces, int32_t count)
{
    for (; count > 1; count = count / 2 + count % 2) {
        for (int32_t j = 0; j < count / 2; j++)
            pieces[j] = zfi_append_op(g, ZF_OP_add, &pieces[2 * j], 2, NULL);
        if (count % 2) pieces[count / 2] = pieces[count - 1];
    }
    return pieces[0];
}

/* The node on section j of `count` of its letter, in f32 or f64. */
static int32_t zfi_parallel_piece(zf_graph *g, int32_t id, const zfi_cuts *cuts, int32_t l, int64_t j,
                                  int64_t count)
{
    const zfi_node node = g->nodes[id]; /* appending moves the nodes */
    int32_t args[ZFI_CUT_RESULT] = {0};
    int32_t made;
    for (int32_t k = 0; k < node.arg_count && k < ZFI_CUT_RESULT; k++) {
        args[k] = node.args[k];
        for (int32_t d = 0; d < g->nodes[node.args[k]].shape.rank; d++) {
            const int64_t size = g->nodes[node.args[k]].shape.dims[d] / count;
            if (cuts->given[k] && cuts->at[k][d] == l)
                args[k] = zfi_append_nodes(
                    g, slice, zfi_with({.i = d}, {.i = j * size}, {.i = (j + 1) * size}), args[k]);
        }
    }
    made = g->error.status ? 0
                           : zfi_append_op(g, node.op, args, node.arg_count, node.attributes);
    return made && zfi_is_half(g->nodes[made].dtype)
               ? zfi_append_nodes(g, cast, zfi_with({.i = ZF_F32}), made)
               : made;
}

/* The sum of a rank's sections of the letter. */
static int32_t zfi_parallel_pieces(zfi_parallel *c, int32_t id, int32_t l, int32_t count)
{
    zf_graph *g = c->graph;
    int32_t *pieces, x = 0;
    zfi_cuts cuts;
    if (!zfi_cut_of(g, &g->nodes[id], &cuts)) return 0;
    pieces = zfi_calloc(&g->memory, (size_t)count, sizeof *pieces);
    if (!pieces) return 0;
    g->in_layer = true;
    for (int32_t j = 0; j < count; j++) pieces[j] = zfi_parallel_piece(g, id, &cuts, l, j, count);
    g->in_layer = false;
    if (!g->error.status && !g->memory.failed) x = zfi_add_by_tree(g, pieces, count);
    zfi_free(&g->memory, pieces, (size_t)count * sizeof *pieces);
    return x;
}

/* What readers of a sum read: the sum x of this rank over ranks, and what follows it, in the dtype
 * of before. Addends of 16 bits are added in f32; of counted rows all but one are 0. */
static int32_t zfi_parallel_sum(zfi_parallel *c, int32_t id, int32_t x, const zfi_before_cut *of)
{
    zf_graph *g = c->graph;
    if (x && c->d.parts > 1 && zfi_is_half(g->nodes[x].dtype) &&
        !zfi_attribute_of(g, &g->nodes[id], "first"))
        x = zfi_parallel_cast(g, x, ZF_F32);
    if (x && c->d.parts > 1)
        x = zfi_append_op(g, ZF_OP_all_reduce, &x, 1,
                          zfi_with({.i = zfi_mesh_size(zfi_mesh_of(g), c->sums[id])},
                                   {.i = c->sums[id]}, {.i = 1}));
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
static void zfi_add_tensor_axis(zf_graph *g, int32_t ranks, int32_t groups)
{
    if (ranks < 2) return;
    g->axes.groups = groups;
    g->axes.axis[g->axes.count++] = (zfi_other_axis){ZF_OVER_TENSOR, ranks};
}

static void zfi_parallel_rewrite(zfi_parallel *c)
{
    zf_graph *g = c->graph;
    int32_t *order = g->order;
    zfi_before_cut *before = zfi_calloc(&g->memory, (size_t)c->count, sizeof *before);
    if (!before) return;
    zfi_add_tensor_axis(g, c->d.parts, c->groups);
    g->shares = c->d.sections / c->d.parts;
    for (int32_t i = 0; i < zfi_len(order); i++)
        before[order[i]] = zfi_before_cut_of(g, &g->nodes[order[i]]);
    for (int32_t i = 0; i < zfi_len(order); i++) zfi_parallel_attributes(c, order[i]);
    for (int32_t i = 0; i < zfi_len(order); i++) zfi_parallel_value_of_rank(c, order[i]);
    for (int32_t i = 0; i < zfi_len(order); i++)
        before[order[i]].letter = zfi_letter_of_pieces(c, order[i], &before[order[i]].pieces);
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
        g->in_update = node->update, g->scope = node->scope;
        if (zfi_spreads_alike(c, order[i])) { /* what reads it broadcasts by itself */
            c->instead[order[i]] = node->args[0];
            zfi_replace(g, order[i], node->args[0]);
            continue;
        }
        if (before[order[i]].letter) {
            const int32_t x = zfi_parallel_pieces(
                c, order[i], before[order[i]].letter - 1, before[order[i]].pieces);
            c->instead[order[i]] = zfi_parallel_sum(c, order[i], x, &before[order[i]]);
            zfi_replace(g, order[i], c->instead[order[i]]);
            continue;
        }
        zfi_push(&g->memory, g->order, order[i]);
        if (zfi_is_listed(&g->nodes[order[i]]))
            c->instead[order[i]] = zfi_parallel_take_part(c, order[i]);
        if (c->sums[order[i]])
            c->instead[order[i]] = zfi_parallel_sum(c, order[i], order[i], &before[order[i]]);
    }
    zfi_array_free(&g->memory, order);
    zfi_free(&g->memory, before, (size_t)c->count * sizeof *before);
}
