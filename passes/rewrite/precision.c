/* precision: a graph of f32 computes in bf16 or f16; a loss scale keeps small gradients.
 *
 * requires: no gradients yet
 * ensures:  f32 parameters and caches have the new dtype, so that optimizers keep f32 master weights
 *           next to parameters, and so have values computed from them; other values that the program writes and
 *           reads keep their dtype; with a loss scale, its states and a mark
 * before:   %3 = matmul %1, %2 : f32[4,8]            of an input and a parameter
 *           %5 = cross_entropy %3, %4, %6 : f32[4]   %4 = logsumexp %3
 * after:    %9 = cast %1 {to=bf16} : bf16[4,8]       %3 = matmul %9, %2 : bf16[4,8]
 *           %10 = cast %3 : f32[4,8]                 %5 = cross_entropy %10, %4, %6 : f32[4]
 *           loss_scale %11, %12, %13, %14, %15 {factor=2 window=1000 hysteresis=2 least=1}
 *
 * Nodes take operands of the new dtype, except that these are f32:
 *
 *   - exp, log, rsqrt, sum, total, norm, logsumexp, cross_entropy: f16 lacks their range, bf16
 *     their precision
 *   - values of one element that are computed from values of one element: losses and their weights.
 *     Not values that are computed from constants alone, a mask for example
 *   - operators with an operand that is f32 by these rules, or by its own operator (moments), if
 *     they do not accept the new dtype with it: log_softmax, which subtracts a logsumexp from its
 *     operand. Products are too large for this: their operands are rounded
 *
 * Whether an operator accepts operands of a dtype is decided by its infer, so the graph may have
 * any operator. An operand is cast once, where it is first needed. A constant is not cast but
 * rewritten in the new dtype; finite values stay finite. The value of an output, and a result of
 * one element, stays f32 under its id: it becomes the cast of a new node.
 *
 * Source: Micikevicius et al. 2018. The list of operators in f32 is close to that of PyTorch's
 * autocast. */

typedef enum zfi_held {
    ZFI_HELD_APART,    /* it was not f32, and does not change */
    ZFI_HELD_NARROW,   /* in the new dtype */
    ZFI_HELD_DATA,     /* f32, written by the program or computed from integers; may be rounded */
    ZFI_HELD_CONSTANT, /* f32 */
    ZFI_HELD_WIDE      /* f32 by a rule */
} zfi_held;

/* The dtypes in which a node gets operands that were f32. */
typedef enum zfi_given {
    ZFI_GIVEN_AS_HELD,
    ZFI_GIVEN_NARROW,      /* narrow, except wide operands and single elements */
    ZFI_GIVEN_NARROW_ONES, /* narrow, except wide operands of several elements */
    ZFI_GIVEN_ALL_NARROW,
    ZFI_GIVEN_F32
} zfi_given;

typedef struct zfi_retype {
    zf_graph *graph;
    zf_dtype to;
    int32_t *order; /* as it was; then by node: */
    uint8_t *held;
    bool *kept;      /* an output reads it */
    int32_t *wide;   /* its value in f32; 0: not made yet */
    int32_t *narrow; /* its value in the new dtype */
} zfi_retype;

static bool zfi_is_one(const zfi_retype *r, int32_t id)
{
    return zfi_node_count(&r->graph->nodes[id]) == 1;
}

/* ------------------------------------------------------------------------------ operands */

/* The dtype that the value's own node has now. */
static zf_dtype zfi_held_dtype(const zfi_retype *r, int32_t id)
{
    return r->held[id] == ZFI_HELD_APART ? r->graph->nodes[id].dtype
           : r->wide[id] == id           ? ZF_F32
                                         : r->to;
}

static zf_dtype zfi_given_dtype(const zfi_retype *r, int32_t id, zfi_given given)
{
    bool wide = r->held[id] == ZFI_HELD_WIDE, one = zfi_is_one(r, id);
    bool number = one && r->wide[id] == id && r->held[id] != ZFI_HELD_CONSTANT;
    if (r->held[id] == ZFI_HELD_APART || given == ZFI_GIVEN_AS_HELD) return zfi_held_dtype(r, id);
    switch (given) {
    case ZFI_GIVEN_NARROW: return wide || number ? ZF_F32 : r->to;
    case ZFI_GIVEN_NARROW_ONES: return wide && !one ? ZF_F32 : r->to;
    case ZFI_GIVEN_ALL_NARROW: return r->to;
    default: return ZF_F32;
    }
}

/* The constant in the new dtype; finite values stay finite. */
static int32_t zfi_narrow_constant(zfi_retype *r, int32_t id)
{
    zf_graph *g = r->graph;
    double most = r->to == ZF_F16 ? 65504.0 : 0x1.fep127;
    zfi_new n = {.op = ZF_OP_constant, .dtype = r->to, .shape = g->nodes[id].shape};
    int64_t count = ZF_LIST(&g->nodes[id], constant, values).count;
    const double *from = ZF_LIST(&g->nodes[id], constant, values).data;
    double *values = zfi_calloc(&g->memory, (size_t)count, sizeof *values);
    int32_t made = 0;
    if (!values) {
        zfi_graph_nomem(g);
    } else {
        for (int64_t i = 0; i < count; i++)
            values[i] = !isfinite(from[i])     ? from[i]
                        : fabs(from[i]) > most ? copysign(most, from[i])
                                               : from[i];
        ZF_LIST(&n, constant, values).data = values;
        ZF_LIST(&n, constant, values).count = count;
        made = zfi_append(g, &n);
    }
    zfi_free(&g->memory, values, (size_t)count * sizeof *values);
    return made;
}

/* The node with the value of `id` in `dtype`; appends one if there is none. */
static int32_t zfi_in_dtype(zfi_retype *r, int32_t id, zf_dtype dtype)
{
    int32_t *there = dtype == ZF_F32 ? &r->wide[id] : &r->narrow[id];
    zfi_new n = {.op = ZF_OP_cast, .arg_count = 1, .attributes = {{.i = dtype}}};
    if (r->held[id] == ZFI_HELD_APART) return id;
    if (*there) return *there;
    n.args = dtype == ZF_F32 ? &r->narrow[id] : &r->wide[id];
    return *there = r->held[id] == ZFI_HELD_CONSTANT ? zfi_narrow_constant(r, id)
                                                     : zfi_append(r->graph, &n);
}

/* Infers the node's result for operands in these dtypes. Not ZF_OK, but no error of the graph, if
 * the operator does not accept them. */
static zf_status zfi_infer_given(zfi_retype *r, int32_t id, zfi_given given, zfi_infer *infer)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    const zfi_node **args = zfi_calloc(&g->memory, (size_t)node->arg_count + 1, sizeof *args);
    zf_error before = g->error;
    zf_status status;
    if (!args) return zfi_graph_nomem(g);
    for (int32_t k = 0; k < node->arg_count; k++) {
        args[k] = &g->nodes[node->args[k]];
        g->nodes[node->args[k]].dtype = zfi_given_dtype(r, node->args[k], given);
    }
    *infer = (zfi_infer){g,           zfi_record_of(g, id), args, node->arg_count, node->attributes,
                         node->dtype, node->shape};
    status = infer->record->infer(infer);
    for (int32_t k = 0; k < node->arg_count; k++)
        g->nodes[node->args[k]].dtype = zfi_held_dtype(r, node->args[k]);
    if (status && status != ZF_ERR_NOMEM) g->error = before;
    zfi_free(&g->memory, args, ((size_t)node->arg_count + 1) * sizeof *args);
    return status;
}

/* ---------------------------------------------------------------------------------- nodes */

/* Chooses the dtypes of the node's operands, and infers its result. */
static zfi_given zfi_choose_given(zfi_retype *r, int32_t id, zfi_infer *infer)
{
    static const zfi_given ways[] = {ZFI_GIVEN_ALL_NARROW, ZFI_GIVEN_NARROW, ZFI_GIVEN_NARROW_ONES};
    const zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    bool ones = true, held = false, compares = zfi_has(g, id, ZF_OP_COMPARES);
    bool constants = !zfi_is_one(r, id);
    zfi_given last = ZFI_GIVEN_F32;
    for (int32_t k = 0; k < node->arg_count; k++) {
        int32_t arg = node->args[k];
        if (r->held[arg] == ZFI_HELD_APART) continue;
        ones &= zfi_is_one(r, arg);
        constants &= r->held[arg] == ZFI_HELD_CONSTANT;
        /* Operands of a comparison are not rounded. */
        held |= compares && (r->held[arg] == ZFI_HELD_DATA || r->held[arg] == ZFI_HELD_WIDE);
    }
    if (node->op == ZF_OP_cast || (zfi_has(g, id, ZF_OP_EFFECT) && node->op != ZF_OP_set))
        last = ZFI_GIVEN_AS_HELD;
    else if (node->op != ZF_OP_set && (!ones || constants) && !held &&
             !zfi_has(g, id, ZF_OP_WANTS_F32))
        for (int way = !zfi_has(g, id, ZF_OP_PRODUCT); way < ZFI_COUNT(ways); way++)
            if (!zfi_infer_given(r, id, ways[way], infer)) return ways[way];
    zfi_infer_given(r, id, last, infer);
    return last;
}

/* Replaces the node by a cast of a new node with its computation, so that its id stays f32. */
static void zfi_keep_wide(zfi_retype *r, int32_t id)
{
    zf_graph *g = r->graph;
    zfi_new n = {
        .op = g->nodes[id].op, .args = g->nodes[id].args, .arg_count = g->nodes[id].arg_count};
    memcpy(n.attributes, g->nodes[id].attributes, sizeof n.attributes);
    if (n.op == ZF_OP_saved)
        g->nodes[n.args[0]].saved[ZF_INT(&n, saved, index)] = 0; /* the new node saves it */
    r->narrow[id] = zfi_append(g, &n);
    r->wide[id] = id;
    memset(g->nodes[id].attributes, 0, sizeof n.attributes);
    g->nodes[id].op = ZF_OP_cast;
    ZF_INT(&g->nodes[id], cast, to) = ZF_F32;
    g->nodes[id].args[0] = r->narrow[id];
    g->nodes[id].arg_count = 1;
}

static void zfi_retype_leaf(zfi_retype *r, int32_t id)
{
    zfi_node *node = &r->graph->nodes[id];
    if (node->dtype != ZF_F32) return;
    r->held[id] = node->op == ZF_OP_param || node->op == ZF_OP_cache ? ZFI_HELD_NARROW
                  : node->op == ZF_OP_constant                       ? ZFI_HELD_CONSTANT
                                                                     : ZFI_HELD_DATA;
    if (r->held[id] == ZFI_HELD_NARROW) node->dtype = r->to, r->narrow[id] = id;
    else r->wide[id] = id;
}

/* Gives saved values of a node the dtypes that its new dtype implies. */
static void zfi_retype_saved(zfi_retype *r, int32_t id)
{
    zf_graph *g = r->graph;
    int32_t of = g->nodes[id].args[0];
    bool was_f32 = g->nodes[id].dtype == ZF_F32;
    zf_dtype dtype = g->nodes[id].dtype;
    zf_shape shape;
    if (r->held[of] == ZFI_HELD_NARROW) g->nodes[id].args[0] = of = r->narrow[of];
    (void)zfi_saved_type(g, &g->nodes[of], ZF_INT(&g->nodes[id], saved, index), &dtype, &shape);
    if (was_f32) r->held[id] = dtype == r->to ? ZFI_HELD_NARROW : ZFI_HELD_WIDE;
    if (was_f32 && dtype == r->to && r->kept[id]) {
        zfi_keep_wide(r, id);
    } else if (was_f32) {
        g->nodes[id].dtype = dtype;
        *(dtype == r->to ? &r->narrow[id] : &r->wide[id]) = id;
    }
    if (!g->error.status) zfi_push(&g->memory, g->order, id);
}

static void zfi_retype_node(zfi_retype *r, int32_t id)
{
    zf_graph *g = r->graph;
    zfi_infer infer = {.graph = g};
    zfi_given given = zfi_choose_given(r, id, &infer);
    bool was_f32 = g->nodes[id].dtype == ZF_F32 && !zfi_has(g, id, ZF_OP_EFFECT), data;
    data = g->nodes[id].op == ZF_OP_cast && !zfi_is_float(g->nodes[g->nodes[id].args[0]].dtype);
    if (g->error.status) return;
    g->scope = g->nodes[id].scope, g->file = g->nodes[id].file, g->line = g->nodes[id].line;
    for (int32_t k = 0; k < g->nodes[id].arg_count && !g->error.status; k++) {
        int32_t arg = g->nodes[id].args[k];
        arg = zfi_in_dtype(r, arg, zfi_given_dtype(r, arg, given));
        g->nodes[id].args[k] = arg;
    }
    if (was_f32 && infer.dtype == r->to) {
        r->held[id] = ZFI_HELD_NARROW;
        if (r->kept[id] || zfi_is_one(r, id)) zfi_keep_wide(r, id);
        else g->nodes[id].dtype = r->to, r->narrow[id] = id;
    } else if (was_f32) {
        r->held[id] = data ? ZFI_HELD_DATA : ZFI_HELD_WIDE;
        r->wide[id] = id;
    } else if (zfi_has(g, id, ZF_OP_EFFECT)) {
        g->nodes[id].dtype = infer.dtype;
    }
    if (!g->error.status) zfi_push(&g->memory, g->order, id);
}

/* Removes f32 constants that are only used in the new dtype: the id becomes the new constant. */
static void zfi_drop_constants(zfi_retype *r)
{
    zf_graph *g = r->graph;
    int32_t count = zfi_len(g->nodes), kept = 0;
    bool *used = zfi_calloc(&g->memory, (size_t)count, sizeof *used);
    if (!used) return;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        for (int32_t k = 0; k < g->nodes[g->order[i]].arg_count; k++)
            used[g->nodes[g->order[i]].args[k]] = true;
    for (int32_t i = 0; i < zfi_len(r->order); i++) {
        int32_t id = r->order[i];
        if (r->held[id] == ZFI_HELD_CONSTANT && r->narrow[id] && !used[id])
            zfi_replace(g, id, r->narrow[id]);
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].op != ZF_OP_none) g->order[kept++] = g->order[i];
    if (g->order) stbds_header(g->order)->length = (size_t)kept;
    zfi_free(&g->memory, used, (size_t)count * sizeof *used);
}

static void zfi_retype_graph(zf_graph *g, zf_dtype to)
{
    zfi_retype r = {.graph = g, .to = to};
    size_t nodes = (size_t)zfi_len(g->nodes);
    const char *scope = g->scope;
    r.held = zfi_calloc(&g->memory, nodes, sizeof *r.held);
    r.kept = zfi_calloc(&g->memory, nodes, sizeof *r.kept);
    r.wide = zfi_calloc(&g->memory, 2 * nodes, sizeof *r.wide);
    if (r.held && r.kept && r.wide) {
        r.narrow = r.wide + nodes;
        r.order = g->order;
        g->order = NULL;
        for (int32_t i = 0; i < zfi_len(r.order); i++)
            if (g->nodes[r.order[i]].op == ZF_OP_set) r.kept[g->nodes[r.order[i]].args[1]] = true;
            else if (g->nodes[r.order[i]].op == ZF_OP_output)
                for (int32_t k = 0; k < g->nodes[r.order[i]].arg_count; k++)
                    r.kept[g->nodes[r.order[i]].args[k]] = true;
        for (int32_t i = 0; i < zfi_len(r.order) && !g->error.status && !g->memory.failed; i++) {
            int32_t id = r.order[i];
            if (zfi_has(g, id, ZF_OP_MUTATES) && !zfi_writes_only_caches(g, &g->nodes[id])) {
                zfi_fail(&g->error, ZF_ERR_STAGE,
                         "zf_precision: must come before what changes parameters and states: %s",
                         zfi_record_of(g, id)->name);
            } else if (zfi_has(g, id, ZF_OP_LEAF)) {
                zfi_retype_leaf(&r, id);
                zfi_push(&g->memory, g->order, id);
            } else if (g->nodes[id].op == ZF_OP_saved) {
                zfi_retype_saved(&r, id);
            } else {
                zfi_retype_node(&r, id);
            }
        }
        for (int32_t i = 0; i < zfi_len(g->declared); i++) /* those that are in pieces, too */
            if (g->nodes[g->declared[i]].dtype == ZF_F32) g->nodes[g->declared[i]].dtype = to;
        if (!g->error.status && !g->memory.failed) zfi_drop_constants(&r);
    }
    g->scope = scope;
    zfi_free(&g->memory, r.held, nodes * sizeof *r.held);
    zfi_free(&g->memory, r.kept, nodes * sizeof *r.kept);
    zfi_free(&g->memory, r.wide, 2 * nodes * sizeof *r.wide);
    zfi_array_free(&g->memory, r.order);
    if (g->memory.failed) zfi_graph_nomem(g);
}

/* Appends the states of the loss scale, and the mark that names them. */
static void zfi_append_scaler(zf_graph *g, const zf_precision_desc *d)
{
    const char *scope = g->scope;
    zf_tensor states[ZFI_SCALER_STATES];
    g->scope = "";
    states[0] = zfi_state(g, "scaler.scale", ZF_F32, ZF_SCALAR, d->scale);
    states[1] = zfi_state(g, "scaler.hysteresis", ZF_I64, ZF_SCALAR, d->hysteresis);
    states[2] = zfi_state(g, "scaler.iteration", ZF_I64, ZF_SCALAR, 0);
    states[3] = zfi_state(g, "scaler.last_overflow", ZF_I64, ZF_SCALAR, -1);
    states[4] = zfi_state(g, "scaler.skipped", ZF_I64, ZF_SCALAR, 0);
    (void)zfi_build(ZF_OP_loss_scale, ZFI_SCALER_STATES, states,
                    zfi_with({.f = d->factor}, {.i = d->window}, {.i = d->hysteresis},
                             {.f = d->min_scale}, {.i = d->consecutive_hysteresis}));
    g->scope = scope;
}

static const zf_option zfi_precision_options[] = {
    ZF_OPTION(zf_precision_desc, CHOICE, dtype, 0, "f32|bf16|f16", .flag = "precision",
              .traits = ZF_OPTION_CHANGES | ZF_OPTION_BASIC,
              .help = "dtype of the computation; bf16 and f16 over f32 master weights, f16 with a "
                      "loss scale"),
    ZF_OPTION(zf_precision_desc, NUMBER, scale, 0, "[0,1.7014118346046923e+38)",
              .flag = "loss-scale", .traits = ZF_OPTION_CHANGES,
              .help =
                  "first loss scale; 0: none; without this option 65536 of f16, none of others"),
    ZF_OPTION(zf_precision_desc, NUMBER, factor, 2, "[1,inf)", .flag = "loss-scale-factor",
              .traits = ZF_OPTION_CHANGES,
              .help = "factor by which the loss scale changes; 1: it is constant"),
    ZF_OPTION(zf_precision_desc, COUNT, window, 1000, "[1,inf)", .flag = "loss-scale-window",
              .unit = "STEPS", .traits = ZF_OPTION_CHANGES,
              .help = "finite steps after which the loss scale grows"),
    ZF_OPTION(zf_precision_desc, COUNT, hysteresis, 2, "[1,inf)", .flag = "hysteresis",
              .traits = ZF_OPTION_CHANGES,
              .help = "the overflow that first divides the loss scale"),
    ZF_OPTION(zf_precision_desc, NUMBER, min_scale, 1,
              "[1.1754943508222875e-38,1.7014118346046923e+38)", .flag = "min-loss-scale",
              .traits = ZF_OPTION_CHANGES, .help = "minimum of the loss scale"),
    ZF_OPTION(zf_precision_desc, FLAG, consecutive_hysteresis, 0, NULL, .traits = ZF_OPTION_CHANGES,
              .help = "any finite step restores the hysteresis"),
    {.name = NULL}};

/* The first loss scale depends on the dtype. */
static zf_precision_desc zfi_precision_resolved(const zf_precision_desc *desc)
{
    zf_precision_desc d = desc ? *desc : (zf_precision_desc){.dtype = ZF_F32};
    if (d.scale == 0 && d.dtype == ZF_F16) d.scale = 65536;
    zf_options_resolve(&(zf_options){.rows = zfi_precision_options, .desc = &d}, 1);
    return d;
}

ZF_API zf_status zf_precision(zf_graph *g, const zf_precision_desc *desc)
{
    zf_precision_desc d = zfi_precision_resolved(desc);
    const char *name = "zf_precision";
    zf_status status = zfi_enter(g, name, 0,
                                 ZFI_STAGE_GRADIENTS | ZFI_STAGE_CLIPPED | ZFI_STAGE_UPDATES |
                                     ZFI_STAGE_RANKS | ZFI_STAGE_OVERLAP | ZFI_STAGE_PLACED);
    if (status) return status;
    if (desc)
        status = zfi_options_check(&(zf_options){.rows = zfi_precision_options, .desc = &d}, 1,
                                   false, "zf_precision: ", &g->error);
    if (status) return status;
    if (d.scale > 0 && d.factor > 1 && d.scale < d.min_scale)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_precision: scale is %g, below min_scale, %g", d.scale, d.min_scale);
    if (zfi_scaler_node(g, ZF_OP_loss_scale))
        return zfi_fail(&g->error, ZF_ERR_STAGE, "zf_precision: has been run already");
    if (d.dtype != ZF_F32) zfi_retype_graph(g, d.dtype);
    if (d.scale > 0) zfi_append_scaler(g, &d);
    return zfi_leave(g, 0);
}
