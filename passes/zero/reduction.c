/* zero, reductions: how the values of a scalar output for the parts of the global batch make one
 * (graph/parts.c), and by what the sum of their gradients is multiplied.
 *
 *     sum     the sum over the parts
 *     mean    the sum times 1 / parts; so is the sum of gradients of a loss
 *     ratio   of sums, n / f(d): a part computes n / f(c), with a constant c in place of its sum d,
 *             since those of other parts are not known yet. The sum of these, and of the gradients
 *             of a loss, is multiplied by f(c) / f(sum of d). c is a power of 2, about the number of
 *             terms of all parts, so that 16-bit gradients have the size that they have on one rank
 *     none    no sum: no example decides it, or each rank keeps its own
 *
 * Every part of a batch is treated alike, so bits depend on the number of parts alone. With a loss
 * scale, a mean's 1 / parts is a factor of the scale, so that sums of f16 gradients do not
 * overflow. */

/* A sum by which a ratio is divided. */
typedef struct zfi_quotient {
    int32_t sum, divisor; /* d and f(d) */
    int32_t constant;     /* c, which readers of d read instead; 0: not yet */
    int32_t factor;       /* f(c) / f(sum of d); 0: not yet */
} zfi_quotient;

typedef struct zfi_reductions {
    zf_graph *graph;
    zfi_parted *known; /* by node */
    int32_t *mixes;    /* by node: an index of a ratio, + 1, by whose constant it is decided; 0 */
    size_t nodes;
    zfi_quotient *ratios; /* growing array */
    double parts;         /* of the global batch; 1: nothing is reduced */
    zf_reduction loss;    /* SUM or MEAN; or: */
    int32_t loss_ratio;   /* the index of the loss's ratio, + 1 */
    bool seeded;          /* the backward pass begins with 1 / parts */
} zfi_reductions;

/* The index of the ratio whose sum the node is, + 1; 0: none. */
static int32_t zfi_ratio_of(const zfi_reductions *r, int32_t sum)
{
    for (int32_t k = 0; k < zfi_len(r->ratios); k++)
        if (r->ratios[k].sum == sum) return k + 1;
    return 0;
}

/* The index of an output's ratio, + 1; 0: it is none. */
static int32_t zfi_ratio_marked(const zfi_reductions *r, const zfi_node *mark)
{
    return mark->arg_count > 1 ? zfi_ratio_of(r, mark->args[mark->arg_count - 1]) : 0;
}

ZFI_FAILS(3, 4)
static zf_reduction zfi_reduction_fail(const zfi_reductions *r, int32_t mark, const char *format,
                                       ...)
{
    const zfi_node *node = &r->graph->nodes[mark];
    char text[320], where[320];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    zfi_where(where, sizeof where, node->scope, node->file, node->line);
    zfi_fail(&r->graph->error, ZF_ERR_ARGUMENT, "zf_zero: the output \"%.80s\", %%%d%s: %s",
             node->name, (int)node->args[0], where, text);
    return ZF_REDUCTION_NONE;
}

static zf_reduction zfi_unsaid(const zfi_reductions *r, int32_t mark)
{
    if (zfi_parted_in(r->known, r->graph->nodes[mark].args[0]).scaled)
        return zfi_reduction_fail(
            r, mark,
            "a sum times a number below 1 may be part of a mean over one of %g parts of the batch, "
            "or "
            "over all: say ZF_REDUCTION_MEAN or ZF_REDUCTION_SUM (zf_output_ex), or use zf_mean",
            r->parts);
    return zfi_reduction_fail(
        r, mark,
        "how its values for %g parts of the batch make one is not said: it is no sum, mean or "
        "ratio "
        "of sums over examples. Say ZF_REDUCTION_MEAN, _SUM or _NONE (zf_output_ex), or give "
        "zf_cross_entropy a weight",
        r->parts);
}

/* The reduction of an output of a number in the micro section; of a ratio SUM. */
static zf_reduction zfi_reduction_of(const zfi_reductions *r, int32_t mark)
{
    const zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[mark];
    const int32_t x = node->args[0];
    const int64_t said = ZF_INT(node, output, reduction);
    const bool loss = node->role == ZFI_ROLE_LOSS;
    if (said == ZF_REDUCTION_NONE && loss)
        return zfi_reduction_fail(r, mark,
                                  "a loss has a sum or a mean; ZF_REDUCTION_NONE is for "
                                  "other outputs");
    if (said) return (zf_reduction)said;
    if (node->sums || node->arg_count > 1) return ZF_REDUCTION_SUM;
    if (node->untold) return zfi_unsaid(r, mark);
    switch ((zfi_parted_kind)zfi_parted_in(r->known, x).kind) {
    case ZFI_PART_SUM: return ZF_REDUCTION_SUM;
    case ZFI_PART_MEAN: return ZF_REDUCTION_MEAN;
    case ZFI_PART_SAME: return ZF_REDUCTION_NONE;
    case ZFI_PART_ROWS:
        if (g->nodes[x].shape.rank && !loss) return ZF_REDUCTION_NONE;
        break;
    default: break;
    }
    return zfi_unsaid(r, mark);
}

/* A constant in place of a ratio's sum is no value of this part: what is made of it is a ratio
 * itself, or gradients. */
static void zfi_check_mixed(const zfi_reductions *r, int32_t mark)
{
    const int32_t mixed = r->mixes[r->graph->nodes[mark].args[0]];
    if (mixed && mixed != zfi_ratio_marked(r, &r->graph->nodes[mark]))
        zfi_reduction_fail(
            r, mark,
            "it is made of a mean that is divided by %%%d, a sum over all %g parts of "
            "the batch, which is known after them: give zf_cross_entropy a weight, 1 / "
            "(labelled rows of the global batch), or divide by an input",
            (int)(mixed < 0 ? 0 : r->ratios[mixed - 1].sum), r->parts);
}

/* Finds ratios among the outputs, and what their sums decide. */
static void zfi_find_ratios(zfi_reductions *r)
{
    zf_graph *g = r->graph;
    for (int32_t i = 0; i < zfi_len(g->order) && !g->nodes[g->order[i]].update; i++) {
        zfi_node *mark = &g->nodes[g->order[i]];
        zfi_parted x;
        if (!zfi_marks_number(g, mark) || ZF_INT(mark, output, reduction)) continue;
        x = zfi_parted_in(r->known, mark->args[0]);
        if (mark->arg_count == 1 && x.kind == ZFI_PART_RATIO) {
            const int32_t args[3] = {mark->args[0], x.divisor, x.sum};
            mark->args = zfi_bytes_copy(&g->memory, &g->text, args, sizeof args);
            if (mark->args) mark->arg_count = 3;
        }
        if (!mark->args || mark->arg_count == 1 || zfi_ratio_marked(r, mark)) continue;
        zfi_push(
            &g->memory, r->ratios,
            ((zfi_quotient){.sum = mark->args[mark->arg_count - 1], .divisor = mark->args[1]}));
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        int32_t *mixed = &r->mixes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count && !zfi_has(g, g->order[i], ZF_OP_EFFECT); k++) {
            const int32_t sum = zfi_ratio_of(r, node->args[k]),
                          more = sum ? sum : r->mixes[node->args[k]];
            if (more) *mixed = *mixed && *mixed != more ? -1 : more;
        }
    }
}

/* The reduction of the loss whose gradients there are. */
static void zfi_find_loss_reduction(zfi_reductions *r)
{
    const zf_graph *g = r->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *mark = &g->nodes[g->order[i]];
        if (mark->op != ZF_OP_output || mark->role != ZFI_ROLE_LOSS || mark->update) continue;
        r->loss = zfi_reduction_of(r, g->order[i]), r->loss_ratio = zfi_ratio_marked(r, mark);
        if (r->loss == ZF_REDUCTION_NONE) r->loss = ZF_REDUCTION_MEAN; /* the same for each part */
        return;
    }
}

static void zfi_find_reductions(zfi_reductions *r, zf_graph *g, double parts)
{
    *r = (zfi_reductions){.graph = g, .parts = parts, .loss = ZF_REDUCTION_SUM};
    if (parts == 1) return;
    r->known = zfi_find_parts(g, &r->nodes);
    r->mixes = zfi_calloc(&g->memory, r->nodes, sizeof *r->mixes);
    if (!r->known || !r->mixes) return;
    zfi_find_ratios(r);
    if (!g->memory.failed) zfi_find_loss_reduction(r);
}

static void zfi_free_reductions(zfi_reductions *r)
{
    if (!r->graph) return;
    zfi_free(&r->graph->memory, r->known, r->nodes * sizeof *r->known);
    zfi_free(&r->graph->memory, r->mixes, r->nodes * sizeof *r->mixes);
    zfi_array_free(&r->graph->memory, r->ratios);
}

/* After a ratio's sum: the constant that stands for it. */
static void zfi_make_constant(zfi_reductions *r, int32_t id)
{
    const int32_t k = (size_t)id < r->nodes ? zfi_ratio_of(r, id) : 0;
    const zfi_node node = r->graph->nodes[id];
    double terms, value = 1;
    if (!k) return;
    for (terms = r->known[id].terms * r->parts; value < terms;) value *= 2;
    r->ratios[k - 1].constant = zf_constant(r->graph, node.dtype, node.shape, value).id;
}

/* What a node of the micro section reads in place of operand x: the constant of a ratio's sum. */
static int32_t zfi_stands_for(const zfi_reductions *r, int32_t x)
{
    const int32_t k = zfi_ratio_of(r, x);
    return k && r->ratios[k - 1].constant ? r->ratios[k - 1].constant : x;
}

/* f(total), where node id is f(d). */
static int32_t zfi_divisor_again(zfi_reductions *r, int32_t k, int32_t id, int32_t total)
{
    zf_graph *g = r->graph;
    const zfi_node node = g->nodes[id];
    int32_t args[ZFI_OPERANDS];
    if (id == r->ratios[k].sum || id == r->ratios[k].constant) return total;
    if ((size_t)id >= r->nodes || r->mixes[id] != k + 1 || node.arg_count > ZFI_OPERANDS) return id;
    for (int32_t a = 0; a < node.arg_count; a++)
        args[a] = zfi_divisor_again(r, k, node.args[a], total);
    return zfi_append_op(g, node.op, args, node.arg_count, node.attributes);
}

/* The factor of ratio k, whose sum over all parts is `total`. */
static void zfi_make_factor(zfi_reductions *r, int32_t k, int32_t total)
{
    zfi_quotient *ratio = &r->ratios[k];
    const int32_t divisor = zfi_divisor_again(r, k, ratio->divisor, total),
                  mine = ratio->divisor == ratio->sum ? ratio->constant : ratio->divisor;
    if (divisor) ratio->factor = zfi_append_nodes(r->graph, div, NULL, mine, divisor);
}

/* x, a sum over the parts, times the factor of a reduction. Elements of 16 bits are rounded
 * once. */
static int32_t zfi_times_factor(zfi_reductions *r, zf_reduction how, int32_t ratio, int32_t x)
{
    zf_graph *g = r->graph;
    const zf_dtype dtype = x ? g->nodes[x].dtype : ZF_F32;
    int32_t factor;
    if (!x || (how != ZF_REDUCTION_MEAN && !ratio)) return x;
    if (!ratio) return zfi_append_nodes(g, scale, zfi_with({.f = 1 / r->parts}), x);
    factor = r->ratios[ratio - 1].factor;
    if (zfi_wide(dtype) != dtype) x = zfi_append_nodes(g, cast, zfi_with({.i = ZF_F32}), x);
    if (!x || !factor) return 0;
    if (g->nodes[factor].dtype != g->nodes[x].dtype)
        factor = zfi_append_nodes(g, cast, zfi_with({.i = g->nodes[x].dtype}), factor);
    if (g->nodes[factor].shape.rank)
        factor = zfi_append_nodes(g, reshape, zfi_with(zfi_listed(NULL, 0)), factor);
    x = factor ? zfi_append_nodes(g, mul, NULL, x, factor) : 0;
    if (x && g->nodes[x].dtype != dtype) x = zfi_append_nodes(g, cast, zfi_with({.i = dtype}), x);
    return x;
}

/* The bucket's gradient of the global batch, of the sum over the parts. */
static int32_t zfi_reduced_gradient(zfi_reductions *r, int32_t x)
{
    if (r->parts == 1 || (r->seeded && !r->loss_ratio)) return x;
    return zfi_times_factor(r, r->loss, r->loss_ratio, x);
}

/* The node by which the loss scale begins the backward pass of a mean: times 1 / parts. */
static void zfi_seed_mean(zfi_reductions *r, int32_t id, int32_t scaler)
{
    zfi_node *node = &r->graph->nodes[id];
    if (!scaler || r->parts == 1 || r->loss != ZF_REDUCTION_MEAN || r->loss_ratio ||
        node->op != ZF_OP_scale || node->args[0] != r->graph->nodes[scaler].args[0] || r->seeded)
        return;
    ZF_FLOAT(node, scale, by) /= r->parts;
    r->seeded = true;
}
