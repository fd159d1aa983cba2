/* Parts: how a value of one micro-batch depends on its examples, and so how the values of all parts
 * of the global batch make that of the whole.
 *
 *     same    no example decides it: of parameters, states, constants and scalar inputs
 *     rows    it has elements of examples, and is not reduced over them
 *     sum     of terms of the examples: those of the parts are added
 *     mean    of the examples, perhaps times a number: the mean of those of the parts
 *     ratio   a sum divided by a sum: sum over the parts divided by sum over the parts
 *
 * One function derives it from the operators, whose records say how they act (zfi_record.parts).
 * Examples are the first dimension of inputs. A sum times a constant is a mean where the constant
 * is 1 / its elements or 1 / its rows; else it is a sum, and of a constant below 1 it is not said:
 * 0.5 / rows may be half the mean of a part, or the mean of two parts. Products of sums and means,
 * maxima, functions of them are not said.
 *
 * An output of a scalar float keeps what was derived when it was made, since passes rewrite what it
 * was derived from: attribute `reduction` says mean; of a ratio, operands 1 and 2 are the divisor
 * and the sum from which the divisor is computed. A sum has no mark in the text; without one
 * zf_zero derives it again. */

typedef enum zfi_parted_kind {
    ZFI_PART_UNKNOWN,
    ZFI_PART_SAME,
    ZFI_PART_ROWS,
    ZFI_PART_SUM,
    ZFI_PART_MEAN,
    ZFI_PART_RATIO,
    ZFI_PART_DIVISOR, /* a sum that is at least a number, or plus a number */
    ZFI_PART_INVERSE  /* a number divided by a sum or divisor */
} zfi_parted_kind;

enum { ZFI_DIMS_SUMMED = 1, ZFI_DIMS_AVERAGED = 2 };

typedef struct zfi_parted {
    uint8_t kind; /* zfi_parted_kind */
    bool first;   /* rows: dimension 0 has all examples, as that of an input */
    /* Rows of which it is not known where the examples are: how other dimensions were reduced,
     * which may have been theirs; and before the last operator, if that is a sum */
    uint8_t reduced, before;
    bool scaled;  /* not said, since a sum was multiplied by a number below 1 */
    bool trained; /* a parameter that is not frozen decides it */
    int64_t rows; /* of the part; 0: not known */
    double terms; /* of the sum that was the last operator; 0: it was none */
    /* A ratio, and rows to be summed over a divisor: the divisor, and the sum in it. A divisor and
     * an inverse: the sum */
    int32_t divisor, sum;
} zfi_parted;

static zfi_parted zfi_parted_of(zfi_parted_kind kind)
{
    return (zfi_parted){.kind = (uint8_t)kind};
}

static bool zfi_near_1(double x) { return fabs(fabs(x) - 1) < 1e-5; }

/* A value times a constant. */
static zfi_parted zfi_parted_times(zfi_parted x, double by)
{
    const double rows = x.rows ? (double)x.rows : x.terms;
    const bool mean = zfi_near_1(by * x.terms) || (x.first && zfi_near_1(by * rows));
    if (x.kind == ZFI_PART_ROWS && !x.first && x.terms != 0) {
        if (mean) x.reduced = x.before | ZFI_DIMS_AVERAGED;
    } else if (x.kind == ZFI_PART_SUM) {
        if (mean) x.kind = x.reduced & ZFI_DIMS_SUMMED ? ZFI_PART_UNKNOWN : ZFI_PART_MEAN;
        else if (fabs(by) < 1) x.kind = ZFI_PART_UNKNOWN, x.scaled = true;
    } else if (x.kind == ZFI_PART_DIVISOR) {
        x.kind = ZFI_PART_UNKNOWN;
    }
    x.terms = 0;
    return x;
}

/* Both operands decide a value of kind x.kind. */
static zfi_parted zfi_parted_both(zfi_parted x, zfi_parted y)
{
    x.trained |= y.trained;
    x.scaled |= y.scaled;
    x.reduced |= y.reduced;
    if (y.kind != x.kind) return x.terms = 0, x;
    x.first &= y.first;
    x.rows = (x.rows > y.rows ? x.rows : y.rows);
    if (x.terms != y.terms) x.terms = 0;
    return x;
}

static zfi_parted zfi_parted_sum_of(zfi_parted x, zfi_parted y, int32_t a, int32_t b)
{
    zfi_parted z = zfi_parted_both(x, y);
    if (x.kind == ZFI_PART_SAME && y.kind != ZFI_PART_SAME) return zfi_parted_sum_of(y, x, b, a);
    if (x.kind == ZFI_PART_SUM && y.kind == ZFI_PART_SAME)
        return (zfi_parted){.kind = ZFI_PART_DIVISOR, .trained = z.trained, .sum = a};
    if (x.kind == ZFI_PART_MEAN && y.kind == ZFI_PART_SAME) return z;
    if (x.kind != y.kind || x.kind == ZFI_PART_DIVISOR || x.kind == ZFI_PART_INVERSE ||
        x.divisor != y.divisor)
        z.kind = ZFI_PART_UNKNOWN;
    return z;
}

/* `by`: the number that all elements of y have, where it is known; else NAN. */
static zfi_parted zfi_parted_product(zfi_parted x, zfi_parted y, double by)
{
    zfi_parted z = zfi_parted_both(x, y);
    if (y.kind == ZFI_PART_SAME) {
        if (!isnan(by)) return zfi_parted_times(x, by);
        return z.terms = 0, z;
    }
    if (x.kind == ZFI_PART_ROWS && y.kind == ZFI_PART_ROWS && !(x.divisor && y.divisor)) {
        if (!x.divisor) z.divisor = y.divisor, z.sum = y.sum;
        return z;
    }
    if (y.kind == ZFI_PART_INVERSE && !y.trained && !x.divisor &&
        (x.kind == ZFI_PART_SUM || x.kind == ZFI_PART_ROWS)) {
        if (x.kind == ZFI_PART_SUM) z.kind = ZFI_PART_RATIO;
        z.divisor = y.divisor, z.sum = y.sum;
        return z;
    }
    return zfi_parted_of(x.kind == ZFI_PART_ROWS && !x.divisor && y.kind != ZFI_PART_INVERSE
                             ? ZFI_PART_ROWS
                             : ZFI_PART_UNKNOWN);
}

/* What a division by y, node `b`, multiplies with. */
static zfi_parted zfi_parted_inverse(const zf_graph *g, zfi_parted y, int32_t b)
{
    zfi_parted z = y;
    if (y.kind == ZFI_PART_SAME || y.kind == ZFI_PART_ROWS) return y.divisor = 0, y;
    z.kind = ZFI_PART_INVERSE, z.divisor = b;
    if (y.kind == ZFI_PART_SUM) z.sum = b;
    else if (y.kind != ZFI_PART_DIVISOR) z.kind = ZFI_PART_UNKNOWN;
    if (zfi_node_count(&g->nodes[b]) != 1) z.kind = ZFI_PART_UNKNOWN;
    return z;
}

/* The sum over some dimensions, of so many terms, where one is no sum; `whole`: no dimension that
 * may have examples remains. */
static zfi_parted zfi_parted_summed(zfi_parted x, double terms, bool whole)
{
    if (x.kind != ZFI_PART_ROWS) return x.terms *= terms, x;
    if (whole) {
        x.kind = x.divisor ? ZFI_PART_RATIO : ZFI_PART_SUM;
        if (x.divisor && x.reduced & ZFI_DIMS_AVERAGED) x.kind = ZFI_PART_UNKNOWN;
        x.terms = terms;
    } else if (!x.first && terms > 1) {
        x.before = x.reduced, x.reduced |= ZFI_DIMS_SUMMED, x.terms = terms;
    }
    return x;
}

/* The examples are still all in dimension 0 of a result of this shape. */
static bool zfi_parted_stays_first(const zfi_parted *x, const zf_shape *from, const zf_shape *to)
{
    if (!x->first || !from->rank || !to->rank) return false;
    return to->dims[0] == from->dims[0] || (x->rows && to->dims[0] % x->rows == 0);
}

/* Examples are in dimension 0 of the result, as in that of operand k. */
static bool zfi_parted_keeps_first(const zf_graph *g, const zfi_node *node, int32_t k,
                                   const zfi_parted *x)
{
    const zf_shape *shape = &g->nodes[node->args[k]].shape;
    return x->first && node->shape.rank && node->shape.dims[0] == shape->dims[0] &&
           (shape->rank == node->shape.rank || !(g->records[node->op]->traits & ZF_OP_ELEMENTWISE));
}

/* An operator of which nothing is known but its operands. */
static zfi_parted zfi_parted_opaque(const zf_graph *g, const zfi_node *node,
                                    const zfi_parted *parts, bool draws)
{
    const uint32_t traits = g->records[node->op]->traits;
    zfi_parted z = zfi_parted_of(draws ? ZFI_PART_ROWS : ZFI_PART_SAME);
    bool reduces = (traits & ZF_OP_PRODUCT) != 0;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_parted *x = &parts[node->args[k]];
        z.trained |= x->trained;
        if (x->kind == ZFI_PART_SAME) continue;
        if (x->kind != ZFI_PART_ROWS || x->divisor) return zfi_parted_of(ZFI_PART_UNKNOWN);
        z.kind = ZFI_PART_ROWS, z.reduced |= x->reduced;
        z.rows = x->rows > z.rows ? x->rows : z.rows;
        z.first |= zfi_parted_keeps_first(g, node, k, x);
        reduces |= g->nodes[node->args[k]].shape.rank > node->shape.rank;
    }
    if (z.kind != ZFI_PART_ROWS || z.first || !reduces) return z;
    if (!node->shape.rank) z.kind = ZFI_PART_UNKNOWN;
    z.reduced = ZFI_DIMS_SUMMED | ZFI_DIMS_AVERAGED;
    return z;
}

static zfi_parted zfi_parted_leaf(const zfi_node *node)
{
    zfi_parted z = zfi_parted_of(ZFI_PART_SAME);
    if (node->op == ZF_OP_param) z.trained = !zfi_is_frozen(node);
    if (node->op == ZF_OP_accumulator) return zfi_parted_of(ZFI_PART_UNKNOWN);
    if ((node->op != ZF_OP_input && node->op != ZF_OP_cache) || !node->shape.rank) return z;
    return (zfi_parted){.kind = ZFI_PART_ROWS,
                        .first = node->op == ZF_OP_input,
                        .reduced =
                            node->op == ZF_OP_cache ? ZFI_DIMS_SUMMED | ZFI_DIMS_AVERAGED : 0,
                        .rows = node->shape.dims[0]};
}

static zfi_parted zfi_parted_moved(const zf_graph *g, const zfi_node *node, zfi_parted x)
{
    const zf_shape *from = &g->nodes[node->args[0]].shape;
    const bool turned = node->op == ZF_OP_transpose &&
                        ((const int64_t *)ZF_LIST(node, transpose, order).data)[0] != 0;
    if (node->op == ZF_OP_stop_gradient) x.trained = false;
    if (x.kind == ZFI_PART_ROWS)
        x.first = !turned && zfi_parted_stays_first(&x, from, &node->shape) &&
                  (node->op != ZF_OP_broadcast || from->rank == node->shape.rank);
    return x;
}

/* The sum of operand k, to fewer elements. */
static zfi_parted zfi_parted_summed_to(const zf_graph *g, const zfi_node *node, int32_t k,
                                       zfi_parted x)
{
    const double count = (double)zfi_node_count(node),
                 terms = (double)zfi_node_count(&g->nodes[node->args[k]]) / count;
    if (count > 1) x.first = false;
    return zfi_parted_summed(x, terms, count <= 1);
}

/* The number that all elements of a node have; NAN: they differ, or it is not known. */
static double zfi_parted_number(const zf_graph *g, int32_t id)
{
    double value;
    return zfi_uniform(g, id, &value) ? value : NAN;
}

static zfi_parted zfi_parted_of_node(const zf_graph *g, int32_t id, const zfi_parted *parts)
{
    const zfi_node *node = &g->nodes[id];
    const zfi_record *record = zfi_record_of(g, id);
    const zfi_parted x = node->arg_count > 0 ? parts[node->args[0]] : zfi_parted_of(ZFI_PART_SAME),
                     y = node->arg_count > 1 ? parts[node->args[1]] : zfi_parted_of(ZFI_PART_SAME),
                     all = zfi_parted_opaque(g, node, parts, zfi_draws(g, id));
    const zf_shape *shape = node->arg_count ? &g->nodes[node->args[0]].shape : &node->shape;
    zfi_parted z = all;
    zfi_node inside;
    int64_t axis;
    if (record->traits & ZF_OP_LEAF) return zfi_parted_leaf(node);
    if (all.kind == ZFI_PART_SAME) return all;
    switch (record->parts) {
    case ZFI_PARTS_MOVED: return zfi_parted_moved(g, node, x);
    case ZFI_PARTS_SCALED: return zfi_parted_times(x, ZF_FLOAT(node, scale, by));
    case ZFI_PARTS_ADDED: z = zfi_parted_sum_of(x, y, node->args[0], node->args[1]); break;
    case ZFI_PARTS_MULTIPLIED:
        z = x.kind == ZFI_PART_SAME || (x.kind == ZFI_PART_INVERSE && y.kind != ZFI_PART_SAME)
                ? zfi_parted_product(y, x, zfi_parted_number(g, node->args[0]))
                : zfi_parted_product(x, y, zfi_parted_number(g, node->args[1]));
        break;
    case ZFI_PARTS_DIVIDED:
        z = zfi_parted_inverse(g, y, node->args[1]);
        if (x.kind == ZFI_PART_MEAN && y.kind == ZFI_PART_MEAN && !y.trained &&
            zfi_node_count(&g->nodes[node->args[1]]) == 1)
            return (zfi_parted){.kind = ZFI_PART_RATIO,
                                .trained = x.trained,
                                .divisor = node->args[1],
                                .sum = node->args[1]};
        if (x.kind != ZFI_PART_SAME || z.kind != ZFI_PART_INVERSE)
            z = zfi_parted_product(x, z, 1 / zfi_parted_number(g, node->args[1]));
        break;
    case ZFI_PARTS_BOUNDED:
        if (x.kind == ZFI_PART_SUM || y.kind == ZFI_PART_SUM)
            z = zfi_parted_sum_of(x, y, node->args[0], node->args[1]);
        if (z.kind != ZFI_PART_DIVISOR && all.kind != ZFI_PART_ROWS) z.kind = ZFI_PART_UNKNOWN;
        break;
    case ZFI_PARTS_SUMMED:
        axis = ZF_INT(node, sum, axis);
        z = zfi_parted_summed(x, (double)shape->dims[axis],
                              x.first ? axis == 0 : zfi_node_count(node) == 1);
        return z;
    case ZFI_PARTS_SUMMED_TO:
        z = zfi_parted_summed_to(g, node, 0, x);
        for (int32_t k = 1; k < node->arg_count; k++)
            z = zfi_parted_sum_of(z, zfi_parted_summed_to(g, node, k, parts[node->args[k]]), id,
                                  id);
        return z.kind == ZFI_PART_DIVISOR ? zfi_parted_of(ZFI_PART_UNKNOWN) : z;
    case ZFI_PARTS_SAVED: /* as a result of the operands of its operator */
        inside = *node, inside.args = g->nodes[node->args[0]].args;
        inside.arg_count = g->nodes[node->args[0]].arg_count;
        return zfi_parted_opaque(g, &inside, parts, false);
    case ZFI_PARTS_WEIGHTED: /* head_loss: the sum over rows of labels, operand 2, times operand 3 */
        z = (zfi_parted){.kind = ZFI_PART_SUM, .first = true, .trained = true};
        z.terms = (double)zfi_node_count(&g->nodes[node->args[2]]);
        return zfi_parted_product(z, parts[node->args[3]], zfi_parted_number(g, node->args[3]));
    default: break;
    }
    /* Where examples are is decided by the shapes of all operands. */
    if (z.kind == ZFI_PART_ROWS && all.kind == ZFI_PART_ROWS)
        z.first = all.first, z.reduced = all.reduced;
    if (all.kind == ZFI_PART_ROWS && z.kind != ZFI_PART_ROWS) return all;
    return z;
}

/* What is known of each node, in a list of *count; NULL: no memory. */
static zfi_parted *zfi_find_parts(zf_graph *g, size_t *count)
{
    zfi_parted *parts;
    *count = (size_t)zfi_len(g->nodes);
    parts = zfi_calloc(&g->memory, *count, sizeof *parts);
    for (int32_t i = 0; parts && i < zfi_len(g->order); i++)
        if (!zfi_has(g, g->order[i], ZF_OP_EFFECT))
            parts[g->order[i]] = zfi_parted_of_node(g, g->order[i], parts);
    if (!parts) zfi_graph_nomem(g);
    return parts;
}

static zfi_parted zfi_parted_in(const zfi_parted *parts, int32_t id)
{
    zfi_parted x = parts[id];
    if (x.kind == ZFI_PART_SUM && x.reduced & ZFI_DIMS_AVERAGED) x.kind = ZFI_PART_UNKNOWN;
    return x;
}

/* Appends an output, which keeps what is derived of its value now. */
static int32_t zfi_append_output(zf_graph *g, zfi_new *n)
{
    int32_t args[3], id;
    size_t count;
    zfi_parted *parts, x;
    if (n->arg_count != 1 || ZF_INT(n, output, reduction) || g->stages & ZFI_STAGE_RANKS ||
        g->error.status || !zfi_is_number(&g->nodes[n->args[0]]))
        return zfi_append(g, n);
    if (!(parts = zfi_find_parts(g, &count))) return 0;
    x = zfi_parted_in(parts, n->args[0]);
    zfi_free(&g->memory, parts, count * sizeof *parts);
    if (x.kind == ZFI_PART_MEAN) ZF_INT(n, output, reduction) = ZF_REDUCTION_MEAN;
    if (x.kind == ZFI_PART_RATIO) {
        args[0] = n->args[0], args[1] = x.divisor, args[2] = x.sum;
        n->args = args, n->arg_count = x.divisor == x.sum ? 2 : 3;
    }
    id = zfi_append(g, n);
    if (id) g->nodes[id].sums = x.kind == ZFI_PART_SUM;
    if (id) g->nodes[id].untold = x.kind == ZFI_PART_UNKNOWN;
    return id;
}
