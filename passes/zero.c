/* zero: one rank's graph becomes that of `world` ranks at a ZeRO stage (Rajbhandari et al. 2020).
 *
 * requires: not run before; where there are gradients, an optimizer
 * ensures:  parameters and their states lie in units (units.c), of which a parameter is a view;
 *           the sum over all ranks and micro-batches is made once for each unit; numbers are those
 *           of one rank that runs world * micro_batches micro-batches, to the last bit
 *
 *     stage 0   reduced: all_reduce of each unit's gradient as soon as it is complete
 *     stage 1   states and update on this rank's part: reduce_scatter when all gradients are there,
 *               all_gather of the updated parameters
 *     stage 2   reduce_scatter as soon as complete; the full gradient ends there
 *     stage 3   parameters are parts too: all_gather before a run of uses, release behind it
 *
 * before:   %2 = param "w" : f32[8,32]   %4 = matmul %1, %2   ...   gradient %2, %9
 *           update:   adamw %2, %9, %10, %11, %3, %12 {weight_decay=0.01}
 * after (stage 3, world 4):
 *           %20 = unit %2 {at=[0] size=4096 world=4} : f32[1024]
 *           %21 = all_gather %20 {world=4} : f32[4096]    %22 = view %21 {shape=[8,32]} : f32[8,32]
 *           %4 = matmul %1, %22     release %21     ...
 *           %30 = pack %9 {at=[0] size=4096} : f32[4096]
 *           %31 = reduce_scatter %30 {world=4} : f32[1024]     gradient %20, %31
 *           update:   adamw %20, %31, %32, %33, %3, %12 {world=4 blocks=[0,1] decays=[0.01]}
 *
 * Sums start at 0 and add slot 0, 1, 2, ... of the global batch: the ranks in their order within a
 * micro-batch, micro-batch after micro-batch, in every stage. That is why each micro-batch is
 * reduced, also in stage 0 and 1.
 *
 * In the update section, a value with one element per element of a parameter is lifted to its unit:
 * elementwise operators and updates run once for a unit, on this rank's part from stage 1 on; block
 * sums of squares are gathered, and what is made of them is as before.
 *
 * Scalar float outputs that the micro section computes, and not of constants alone, are summed over
 * the global batch.
 */

/* What a node is to the update section: a value of its own; elements of a parameter; sums of their
 * squares over blocks; the total of these. */
enum { ZFI_LIFT_NONE, ZFI_LIFT_ELEMENTS, ZFI_LIFT_BLOCKS, ZFI_LIFT_TOTAL };

typedef struct zfi_lift {
    int32_t kind;
    int32_t member; /* the parameter (of a value that several share, one of them), by member */
    int32_t value;  /* of the unit: all block sums, all totals, what an update gives; else 0 */
} zfi_lift;

/* A unit as the pass goes along. */
typedef struct zfi_unit_state {
    int32_t unit;      /* nodes: the storage; */
    int32_t part;      /* what an update writes: the unit, or this rank's part of it; 0: not yet */
    int32_t pending;   /* gradients that are still to come */
    int32_t gradients; /* members that have one */
    int32_t reduced;   /* its gradient, summed */
    int32_t gathered;  /* stage 3: all of it, while it is there */
    int32_t updated;   /* members that have an update */
    int32_t lifted;    /* the last of its lifted nodes, an index into `lifted` + 1 */
    int32_t whole;    /* what the program reads, gathered from */
    int32_t whole_of; /* this value */
    bool marked;       /* `gradient` has been put */
} zfi_unit_state;

/* A node that an operator of the update section has become, for all parameters of a unit. */
typedef struct zfi_lifted {
    int32_t node, before; /* the one before of that unit, an index + 1 */
} zfi_lifted;

/* A use of a unit by the node at `position` of the micro section. */
typedef struct zfi_use {
    int32_t position, flat;
    bool opens, closes; /* the first, the last of a run */
} zfi_use;

typedef struct zfi_zero {
    zf_graph *graph;
    zf_zero_desc d;
    bool sharded; /* optimizer states are: stage 1 and more, more than one rank */
    zfi_cutter cut;
    zfi_unit_state *units; /* by flat; growing arrays: */
    zfi_use *uses;
    zfi_lifted *lifted;
    int32_t *outputs;             /* marks: scalars of the micro section to be summed */
    int32_t *kept;                /* marks: gradients to be read */
    int32_t *order;               /* as it was */
    size_t nodes;                 /* there were */
    zfi_lift *lift;               /* by node */
    int32_t *flat_of;   /* by node: of a parameter and of its views; -1 */
    int32_t *member_of; /* by node: of a parameter; -1 */
    int32_t *seen_as;   /* by node that is a parameter or a view of one: its copy of now, 0 */
    int32_t *seen_in;   /* by node: what that copy shows, the unit or a gather of it */
    int32_t *gradient;  /* by member: the value that autograd made, 0 */
    int32_t *packed;    /* by member: that value, or a copy where it is a view of a parameter */
    int32_t *next_same;           /* by member: another one with that value, -1 */
    int32_t *first_same;          /* by node: the first member with that gradient, -1 */
    bool *updated; /* by member */
    bool *varies; /* by node: depends on a leaf that is no constant */
} zfi_zero;

static int32_t zfi_zero_fail(zfi_zero *z, int32_t id, const char *why)
{
    char line[256];
    zfi_writer w = zfi_writer_of(NULL, line, sizeof line);
    zfi_print_node(&w, z->graph, id, 0);
    line[w.length < sizeof line ? w.length : sizeof line - 1] = '\0';
    zfi_fail(&z->graph->error, ZF_ERR_ARGUMENT, "zf_zero: %s: %s", line, why);
    return 0;
}

static int32_t zfi_append_op(zf_graph *g, zf_op op, const int32_t *args, int32_t count,
                             const zf_attribute *attributes)
{
    zfi_new n = {.op = op, .args = args, .arg_count = count};
    if (attributes) memcpy(n.attributes, attributes, sizeof n.attributes);
    for (int32_t k = 0; k < count; k++)
        if (!args[k]) return 0;
    return zfi_append(g, &n);
}

/* op over the node ids that follow */
#define zfi_append_nodes(g, op, attributes, ...)                                                   \
    zfi_append_op(g, ZF_OP_##op, (int32_t[]){__VA_ARGS__},                                         \
                  (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), attributes)

/* Puts a node of before into the new order. */
static void zfi_keep(zfi_zero *z, int32_t id)
{
    if (!z->graph->memory.failed) zfi_push(&z->graph->memory, z->graph->order, id);
}

static int32_t zfi_accumulate(zfi_zero *z, zf_dtype dtype, int64_t count)
{
    zfi_new n = {.op = ZF_OP_accumulator, .dtype = dtype, .shape = ZF_SHAPE(count)};
    return zfi_append(z->graph, &n);
}

static int32_t zfi_cast_node(zf_graph *g, int32_t x, zf_dtype to)
{
    if (!x || g->nodes[x].dtype == to) return x;
    return zfi_append_nodes(g, cast, zfi_with({.i = to}), x);
}

/* A sum over ranks, and over micro-batches where there are several: then of f32 at least, so that
 * it is rounded once. */
static int32_t zfi_reduce_ranks(zfi_zero *z, int32_t x, bool scatter)
{
    zf_graph *g = z->graph;
    zf_op op = scatter ? ZF_OP_reduce_scatter : ZF_OP_all_reduce;
    int64_t world = z->d.world, count = zfi_node_count(&g->nodes[x]) / (scatter ? world : 1);
    zf_dtype dtype = g->nodes[x].dtype;
    if (z->d.micro_batches == 1)
        return world == 1 ? x : zfi_append_op(g, op, &x, 1, zfi_with({.i = world}));
    x = zfi_cast_node(g, x, zfi_wide(dtype));
    if (x)
        x = zfi_append_op(g, op,
                          (int32_t[]){x, zfi_accumulate(z, zfi_wide(dtype), count)}, 2,
                          zfi_with({.i = world}));
    return zfi_cast_node(g, x, dtype);
}

static int32_t zfi_view_node(zf_graph *g, int32_t of, int64_t at, zf_shape shape)
{
    const zfi_node *x = &g->nodes[of];
    if (!at && zfi_same_shape(&x->shape, &shape)) return of;
    return zfi_append_nodes(g, view, zfi_with({.i = at}, zfi_listed(shape.dims, shape.rank)), of);
}

/* ------------------------------------------------------------------------- the micro section */

/* Storage for members of a unit: their leaves, given by node, those that are 0 left out. */
static int32_t zfi_append_unit(zfi_zero *z, const zfi_unit *flat, const int32_t *leaves,
                               bool sharded)
{
    zf_graph *g = z->graph;
    size_t room = (size_t)flat->count;
    int32_t *args = zfi_calloc(&g->memory, room, sizeof *args), count = 0, id = 0;
    int64_t *at = zfi_calloc(&g->memory, room, sizeof *at);
    if (args && at) {
        for (int32_t k = 0; k < flat->count; k++)
            if (leaves[k])
                args[count] = leaves[k], at[count++] = z->cut.members[flat->first + k].at;
        id = zfi_append_op(
            g, ZF_OP_unit, args, count,
            zfi_with(zfi_listed(at, count), {.i = flat->size}, {.i = sharded ? z->d.world : 0}));
    }
    zfi_free(&g->memory, args, room * sizeof *args);
    zfi_free(&g->memory, at, room * sizeof *at);
    if (g->memory.failed) zfi_graph_nomem(g);
    return id;
}

static void zfi_make_units(zfi_zero *z)
{
    zf_graph *g = z->graph;
    for (int32_t i = 0; i < zfi_len(g->params); i++) zfi_keep(z, g->params[i]);
    for (int32_t f = 0; f < zfi_len(z->cut.flats) && !g->error.status; f++) {
        const zfi_unit *flat = &z->cut.flats[f];
        int32_t *leaves = zfi_calloc(&g->memory, (size_t)flat->count, sizeof *leaves);
        for (int32_t k = 0; leaves && k < flat->count; k++)
            leaves[k] = z->cut.members[flat->first + k].param;
        if (leaves)
            z->units[f].unit = zfi_append_unit(z, flat, leaves, z->sharded && z->d.stage == 3);
        zfi_free(&g->memory, leaves, (size_t)flat->count * sizeof *leaves);
    }
}

/* Which nodes use which units, and where runs of uses begin and end: a run ends where another unit
 * is used before the next use. */
static void zfi_find_runs(zfi_zero *z)
{
    zf_graph *g = z->graph;
    int32_t flats = zfi_len(z->cut.flats), end = zfi_len(z->order);
    int32_t *last = zfi_calloc(&g->memory, (size_t)flats, sizeof *last); /* use of a unit, + 1 */
    int32_t recent[2] = {-1, -1}, recent_flat[2] = {-1, -1}; /* last positions of two units */
    if (!last) return;
    for (int32_t i = 0; i < end && !g->nodes[z->order[i]].update; i++) {
        const zfi_node *node = &g->nodes[z->order[i]];
        int32_t before = zfi_len(z->uses), position = recent[0], other = recent[1],
                of = recent_flat[0];
        if (node->op == ZF_OP_gradient || (z->flat_of[z->order[i]] >= 0 &&
                                           z->first_same[z->order[i]] < 0))
            continue;
        for (int32_t k = 0; k < node->arg_count; k++) {
            int32_t f = z->flat_of[node->args[k]], between;
            bool known = false;
            if (f < 0) continue;
            for (int32_t u = before; u < zfi_len(z->uses); u++) known |= z->uses[u].flat == f;
            if (known) continue;
            between = of == f ? other : position; /* where another unit was used last */
            if (!zfi_push(&g->memory, z->uses, ((zfi_use){i, f, false, false}))) break;
            if (!last[f] || z->uses[last[f] - 1].position < between) {
                stbds_arrlast(z->uses).opens = true;
                if (last[f]) z->uses[last[f] - 1].closes = true;
            }
            last[f] = zfi_len(z->uses);
        }
        for (int32_t u = before; u < zfi_len(z->uses); u++) {
            int32_t f = z->uses[u].flat;
            if (recent_flat[0] != f)
                recent[1] = recent[0], recent_flat[1] = recent_flat[0], recent_flat[0] = f;
            recent[0] = i;
        }
    }
    for (int32_t f = 0; f < flats; f++)
        if (last[f]) z->uses[last[f] - 1].closes = true;
    zfi_free(&g->memory, last, (size_t)flats * sizeof *last);
}

/* A parameter, or a view of one, as the node that uses it now sees it. */
static int32_t zfi_seen(zfi_zero *z, int32_t id)
{
    zf_graph *g = z->graph;
    const zfi_unit_state *unit = &z->units[z->flat_of[id]];
    int32_t in = unit->gathered ? unit->gathered : unit->unit, m = z->member_of[id], x;
    const zfi_node node = g->nodes[id];
    if (z->seen_in[id] == in) return z->seen_as[id];
    if (m >= 0) {
        x = zfi_view_node(g, in, z->cut.members[m].at, node.shape);
    } else {
        x = zfi_seen(z, node.args[0]);
        x = zfi_append_op(g, node.op, &x, 1, node.attributes);
    }
    z->seen_in[id] = in;
    return z->seen_as[id] = x;
}

static void zfi_open_run(zfi_zero *z, int32_t f)
{
    z->units[f].gathered =
        zfi_append_nodes(z->graph, all_gather, zfi_with({.i = z->d.world}), z->units[f].unit);
}

static void zfi_close_run(zfi_zero *z, int32_t f)
{
    zfi_append_nodes(z->graph, release, NULL, z->units[f].gathered);
    z->units[f].gathered = 0;
}

/* All gradients of a unit, in their places. */
static int32_t zfi_pack_gradients(zfi_zero *z, int32_t f)
{
    zf_graph *g = z->graph;
    const zfi_unit *flat = &z->cut.flats[f];
    size_t room = (size_t)flat->count;
    int32_t *args = zfi_calloc(&g->memory, room, sizeof *args), count = 0, id = 0;
    int64_t *at = zfi_calloc(&g->memory, room, sizeof *at);
    if (args && at) {
        for (int32_t m = flat->first; m < flat->first + flat->count; m++)
            if (z->gradient[m]) args[count] = z->packed[m], at[count++] = z->cut.members[m].at;
        id = zfi_append_op(g, ZF_OP_pack, args, count,
                           zfi_with(zfi_listed(at, count), {.i = flat->size}));
    }
    zfi_free(&g->memory, args, room * sizeof *args);
    zfi_free(&g->memory, at, room * sizeof *at);
    if (g->memory.failed) zfi_graph_nomem(g);
    return id;
}

/* Unit f's gradient is complete on this rank. */
static void zfi_reduce_unit(zfi_zero *z, int32_t f)
{
    z->units[f].reduced = zfi_reduce_ranks(z, z->units[f].reduced, z->sharded);
}

/* The gradients that node id is: where one was the last of its unit, packs it, and reduces it
 * unless that waits for all others. */
static void zfi_gradient_made(zfi_zero *z, int32_t id)
{
    if ((size_t)id >= z->nodes) return;
    for (int32_t m = z->first_same[id]; m >= 0 && !z->graph->error.status; m = z->next_same[m]) {
        int32_t f = z->flat_of[z->cut.members[m].param];
        if (--z->units[f].pending) continue;
        z->units[f].reduced = zfi_pack_gradients(z, f);
        if (!z->sharded || z->d.stage > 1) zfi_reduce_unit(z, f);
    }
}

static void zfi_micro_node(zfi_zero *z, int32_t id)
{
    zf_graph *g = z->graph;
    bool output = g->nodes[id].op == ZF_OP_output;
    if (g->nodes[id].op == ZF_OP_param || g->nodes[id].op == ZF_OP_gradient) return;
    if (z->flat_of[id] >= 0) { /* a view of a parameter, made where it is used */
        int32_t copy = z->first_same[id] < 0 ? 0 : zfi_seen(z, id);
        if (copy) copy = zfi_append_nodes(g, scale, zfi_with({.f = 1}), copy);
        for (int32_t m = z->first_same[id]; m >= 0; m = z->next_same[m]) z->packed[m] = copy;
        if (copy) zfi_gradient_made(z, id);
        return;
    }
    if (output) {
        int32_t x = g->nodes[id].args[0];
        const zfi_node *value = &g->nodes[x];
        if (z->flat_of[x] >= 0 || z->first_same[x] >= 0) {
            zfi_push(&g->memory, z->kept, id);
            return;
        }
        if (zfi_is_float(value->dtype) && zf_shape_count(value->shape) == 1 &&
            z->varies[x] && !zfi_has(g, x, ZF_OP_LEAF) && z->d.world * z->d.micro_batches > 1) {
            zfi_push(&g->memory, z->outputs, id);
            return;
        }
    }
    for (int32_t k = 0; k < g->nodes[id].arg_count && !g->error.status; k++) {
        int32_t arg = g->nodes[id].args[k];
        if (z->flat_of[arg] < 0) continue;
        arg = zfi_seen(z, arg);
        g->nodes[id].args[k] = arg;
    }
    zfi_keep(z, id);
    zfi_gradient_made(z, id);
}

/* Sums the scalar outputs of one dtype, all of them by one collective. */
static void zfi_sum_outputs(zfi_zero *z, zf_dtype dtype)
{
    zf_graph *g = z->graph;
    int32_t *values = NULL, packed, sum;
    int64_t *at = NULL, count = 0;
    for (int32_t i = 0; i < zfi_len(z->outputs); i++) {
        int32_t x = g->nodes[z->outputs[i]].args[0];
        if (g->nodes[x].dtype != dtype) continue;
        zfi_push(&g->memory, values, x);
        zfi_push(&g->memory, at, count);
        count++;
    }
    if (values && at && !g->memory.failed) {
        packed = zfi_append_op(g, ZF_OP_pack, values, zfi_len(values),
                               zfi_with(zfi_listed(at, count), {.i = count}));
        sum = packed ? zfi_reduce_ranks(z, packed, false) : 0;
        for (int32_t i = 0, n = 0; i < zfi_len(z->outputs) && sum && !g->error.status; i++) {
            int32_t mark = z->outputs[i], x = g->nodes[mark].args[0];
            if (g->nodes[x].dtype != dtype) continue;
            x = zfi_view_node(g, sum, n++, g->nodes[x].shape);
            g->nodes[mark].args[0] = x;
            zfi_keep(z, mark);
        }
    }
    zfi_array_free(&g->memory, values);
    zfi_array_free(&g->memory, at);
}

static void zfi_micro_section(zfi_zero *z)
{
    zf_graph *g = z->graph;
    bool gathers = z->sharded && z->d.stage == 3;
    int32_t use = 0;
    zfi_make_units(z);
    if (gathers) zfi_find_runs(z);
    for (int32_t i = 0; i < zfi_len(z->order) && !g->error.status && !g->memory.failed; i++) {
        int32_t id = z->order[i];
        if (g->nodes[id].update) break;
        g->scope = g->nodes[id].scope;
        for (int32_t u = use; u < zfi_len(z->uses) && z->uses[u].position == i; u++)
            if (z->uses[u].opens) zfi_open_run(z, z->uses[u].flat);
        zfi_micro_node(z, id);
        for (; use < zfi_len(z->uses) && z->uses[use].position == i && !g->error.status; use++)
            if (z->uses[use].closes) zfi_close_run(z, z->uses[use].flat);
    }
    g->scope = "";
    for (int32_t f = 0; f < zfi_len(z->cut.flats) && !g->error.status; f++)
        if (z->sharded && z->d.stage == 1 && z->units[f].gradients) zfi_reduce_unit(z, f);
    for (int d = ZF_F32; d <= ZF_F64 && !g->error.status; d++) zfi_sum_outputs(z, (zf_dtype)d);
}

/* ------------------------------------------------------------------------ the update section */

static int32_t zfi_flat_of_member(const zfi_zero *z, int32_t m)
{
    return z->flat_of[z->cut.members[m].param];
}

/* What an update of unit f writes. */
static int32_t zfi_target(zfi_zero *z, int32_t f)
{
    zfi_unit_state *u = &z->units[f];
    if (!u->part)
        u->part = z->sharded && z->d.stage < 3
                      ? zfi_append_nodes(z->graph, part, zfi_with({.i = z->d.world}), u->unit)
                      : u->unit;
    return u->part;
}

/* A node that is no elements, as an operand in the new graph: itself, or a view of its unit's. */
static int32_t zfi_plain_arg(zfi_zero *z, int32_t id)
{
    zf_graph *g = z->graph;
    zfi_lift *lift = &z->lift[id];
    const zfi_member *m = &z->cut.members[lift->member];
    int32_t real = 0, index = 0;
    if (lift->kind == ZFI_LIFT_NONE) return zfi_resolve(g, id);
    if (lift->kind == ZFI_LIFT_BLOCKS)
        real = zfi_view_node(g, lift->value, m->at / ZFI_NORM_BLOCK,
                             ZF_SHAPE(zfi_whole_blocks(m->count)));
    if (lift->kind == ZFI_LIFT_TOTAL) {
        for (int32_t k = z->cut.flats[zfi_flat_of_member(z, lift->member)].first; k < lift->member;
             k++)
            index += z->updated[k];
        real = zfi_view_node(g, lift->value, index, ZF_SCALAR);
    }
    return real;
}

static bool zfi_is_elementwise(zf_op op)
{
    switch (op) {
    case ZF_OP_add:
    case ZF_OP_sub:
    case ZF_OP_mul:
    case ZF_OP_div:
    case ZF_OP_maximum:
    case ZF_OP_minimum:
    case ZF_OP_neg:
    case ZF_OP_scale:
    case ZF_OP_sqrt:
    case ZF_OP_rsqrt:
    case ZF_OP_cast: return true;
    default: return false;
    }
}

/* The node of unit f over these operands that is there already, or a new one. */
static int32_t zfi_lifted_node(zfi_zero *z, int32_t f, zf_op op, const int32_t *args, int32_t count,
                               const zf_attribute *attributes)
{
    zf_graph *g = z->graph;
    zfi_lifted made = {0, z->units[f].lifted};
    for (int32_t i = made.before; i; i = z->lifted[i - 1].before) {
        const zfi_node *node = &g->nodes[z->lifted[i - 1].node];
        if (node->op == op && node->arg_count == count &&
            !memcmp(node->args, args, (size_t)count * sizeof *args) &&
            (op == ZF_OP_totals || !memcmp(node->attributes, attributes, sizeof node->attributes)))
            return z->lifted[i - 1].node;
    }
    made.node = zfi_append_op(g, op, args, count, attributes);
    if (made.node && zfi_push(&g->memory, z->lifted, made)) z->units[f].lifted = zfi_len(z->lifted);
    return made.node;
}

/* The unit's value for `id`, elements of the parameter `member`, as node `reader` reads it. */
static int32_t zfi_pull(zfi_zero *z, int32_t reader, int32_t member, int32_t id)
{
    zf_graph *g = z->graph;
    const zfi_lift *lift = &z->lift[id];
    int32_t f = zfi_flat_of_member(z, member), args[4] = {0};
    const zfi_node node = g->nodes[id];
    if (z->cut.members[member].param == id) return zfi_target(z, f);
    if (z->gradient[member] == id) return z->units[f].reduced;
    if (lift->value && lift->member == member) return lift->value;
    if (!node.update || !zfi_is_elementwise(node.op) || node.arg_count > ZFI_COUNT(args))
        return zfi_zero_fail(z, reader,
                             "it mixes elements of two parameters, which may lie on two ranks");
    for (int32_t k = 0; k < node.arg_count; k++) {
        int32_t arg = node.args[k];
        if (z->lift[arg].kind == ZFI_LIFT_ELEMENTS) args[k] = zfi_pull(z, id, member, arg);
        else if (zfi_node_count(&g->nodes[arg]) == 1) args[k] = zfi_plain_arg(z, arg);
        else zfi_zero_fail(z, id, "it mixes elements of a parameter with another tensor");
        if (!args[k]) return 0;
    }
    return zfi_lifted_node(z, f, node.op, args, node.arg_count, node.attributes);
}

/* Sums of squares over blocks: those of all ranks. */
static void zfi_lift_blocks(zfi_zero *z, int32_t id, int32_t member)
{
    int32_t value = zfi_pull(z, id, member, z->graph->nodes[id].args[0]), sums,
            f = zfi_flat_of_member(z, member);
    if (!value) return;
    sums = zfi_lifted_node(z, f, ZF_OP_square_sums, &value, 1, z->graph->nodes[id].attributes);
    if (sums && z->sharded)
        sums = zfi_lifted_node(z, f, ZF_OP_all_gather, &sums, 1, zfi_with({.i = z->d.world}));
    z->lift[id] = (zfi_lift){ZFI_LIFT_BLOCKS, member, sums};
}

/* The ranges of blocks of the members of unit f that are updated, to be freed; *count numbers. */
static int64_t *zfi_updated_blocks(zfi_zero *z, int32_t f, int64_t *count)
{
    const zfi_unit *flat = &z->cut.flats[f];
    int64_t *blocks = zfi_calloc(&z->graph->memory, 2 * (size_t)flat->count, sizeof *blocks);
    *count = 0;
    for (int32_t m = flat->first; blocks && m < flat->first + flat->count; m++) {
        const zfi_member *member = &z->cut.members[m];
        if (!z->updated[m]) continue;
        blocks[(*count)++] = member->at / ZFI_NORM_BLOCK;
        blocks[(*count)++] = member->at / ZFI_NORM_BLOCK + zfi_whole_blocks(member->count);
    }
    if (!blocks) zfi_graph_nomem(z->graph);
    return blocks;
}

static void zfi_free_blocks(zfi_zero *z, int64_t *blocks, int32_t f)
{
    zfi_free(&z->graph->memory, blocks, 2 * (size_t)z->cut.flats[f].count * sizeof *blocks);
}

/* The total of one parameter's blocks: an element of its unit's totals. */
static void zfi_lift_total(zfi_zero *z, int32_t id)
{
    zfi_lift from = z->lift[z->graph->nodes[id].args[0]];
    int32_t f = zfi_flat_of_member(z, from.member);
    int64_t count, *blocks = zfi_updated_blocks(z, f, &count);
    if (blocks)
        from.value = zfi_lifted_node(z, f, ZF_OP_totals, &from.value, 1,
                                     zfi_with(zfi_listed(blocks, count)));
    z->lift[id] = (zfi_lift){ZFI_LIFT_TOTAL, from.member, from.value};
    zfi_free_blocks(z, blocks, f);
}

/* Where an update's attributes world, blocks, decays are; -1: it is no update. */
static int zfi_update_attributes(zf_op op)
{
    switch (op) {
    case ZF_OP_sgd: return 3;
    case ZF_OP_adamw:
    case ZF_OP_lamb_update: return 4;
    case ZF_OP_lamb_apply: return 2;
    default: return -1;
    }
}

/* A node of the same operator over another parameter of the unit, in the update section of before:
 * the m-th member's. */
static int32_t zfi_update_of(const zfi_zero *z, zf_op op, int32_t param, int32_t from)
{
    const zf_graph *g = z->graph;
    for (int32_t i = from; i < zfi_len(z->order); i++) {
        const zfi_node *node = &g->nodes[z->order[i]];
        if (node->op == op && node->args[0] == param) return z->order[i];
    }
    return 0;
}

/* The unit of the states that operand k is, of all updates of unit f like the one at `position`,
 * and their decays. */
static int32_t zfi_states_unit(zfi_zero *z, int32_t f, int32_t position, int32_t k)
{
    zf_graph *g = z->graph;
    const zfi_unit *flat = &z->cut.flats[f];
    int32_t *leaves = zfi_calloc(&g->memory, (size_t)flat->count, sizeof *leaves), id = 0;
    if (!leaves) return zfi_graph_nomem(g), 0;
    for (int32_t m = 0; m < flat->count; m++) {
        int32_t other = !z->updated[flat->first + m]
                            ? 0
                            : zfi_update_of(z, g->nodes[z->order[position]].op,
                                            z->cut.members[flat->first + m].param, position);
        leaves[m] = other ? g->nodes[other].args[k] : 0;
    }
    id = zfi_append_unit(z, flat, leaves, z->sharded);
    for (int32_t m = 0; m < flat->count; m++)
        if (leaves[m]) z->lift[leaves[m]] = (zfi_lift){ZFI_LIFT_ELEMENTS, flat->first + m, id};
    zfi_free(&g->memory, leaves, (size_t)flat->count * sizeof *leaves);
    return id;
}

/* The first update of a unit's parameters by this operator: the unit's, for all of them. */
static void zfi_lift_update(zfi_zero *z, int32_t position, int32_t member)
{
    zf_graph *g = z->graph;
    int32_t id = z->order[position], f = zfi_flat_of_member(z, member), args[8] = {0}, made;
    const zfi_unit *flat = &z->cut.flats[f];
    const zfi_node node = g->nodes[id];
    int at = zfi_update_attributes(node.op);
    zf_attribute attributes[ZF_MAX_ATTRIBUTES];
    int64_t count = 0, *blocks = zfi_updated_blocks(z, f, &count);
    double *decays = zfi_calloc(&g->memory, (size_t)flat->count, sizeof *decays);
    bool decaying = at > 2;
    for (int32_t k = 0; blocks && decays && k < node.arg_count && !g->error.status; k++) {
        int32_t arg = node.args[k];
        const zfi_lift *lift = &z->lift[arg];
        if (lift->kind == ZFI_LIFT_TOTAL) args[k] = lift->value;
        else if (lift->kind == ZFI_LIFT_ELEMENTS) args[k] = zfi_pull(z, id, member, arg);
        else if (g->nodes[arg].op == ZF_OP_state &&
                 ((zfi_written_args(&node) >> k & 1) || k == zfi_master_arg(&node)))
            args[k] = zfi_states_unit(z, f, position, k);
        else args[k] = zfi_plain_arg(z, arg);
    }
    if (blocks && decays && !g->error.status) {
        for (int32_t m = flat->first, n = 0; decaying && m < flat->first + flat->count; m++) {
            int32_t other =
                z->updated[m] ? zfi_update_of(z, node.op, z->cut.members[m].param, position) : 0;
            if (other) decays[n++] = g->nodes[other].attributes[at - 1].f;
        }
        memcpy(attributes, node.attributes, sizeof attributes);
        if (decaying) attributes[at - 1].f = 0;
        attributes[at].i = z->sharded ? z->d.world : 0;
        attributes[at + 1] = (zf_attribute)zfi_listed(blocks, count);
        if (decaying) attributes[at + 2] = (zf_attribute)zfi_listed(decays, count / 2);
        made = zfi_append_op(g, node.op, args, node.arg_count, attributes);
        for (int32_t m = flat->first; made && m < flat->first + flat->count; m++) {
            int32_t other =
                z->updated[m] ? zfi_update_of(z, node.op, z->cut.members[m].param, position) : 0;
            if (!other) continue;
            z->lift[other] = (zfi_lift){ZFI_LIFT_ELEMENTS, m, made};
        }
        if (made && zfi_updates_param(node.op) && z->sharded && z->d.stage < 3)
            zfi_append_nodes(g, all_gather, zfi_with({.i = z->d.world}), zfi_target(z, f),
                             z->units[f].unit);
    }
    zfi_free_blocks(z, blocks, f);
    zfi_free(&g->memory, decays, (size_t)flat->count * sizeof *decays);
}

/* The member whose elements one of the operands has; -1. */
static int32_t zfi_lifted_member(const zfi_zero *z, const zfi_node *node)
{
    for (int32_t k = 0; k < node->arg_count; k++)
        if (z->lift[node->args[k]].kind == ZFI_LIFT_ELEMENTS) return z->lift[node->args[k]].member;
    return -1;
}

static void zfi_mark_gradient(zfi_zero *z, int32_t member, int32_t value)
{
    zfi_unit_state *u = &z->units[zfi_flat_of_member(z, member)];
    if (u->marked || !value) return;
    u->marked = true;
    zfi_append_nodes(z->graph, gradient, NULL, u->unit, value);
}

static int32_t zfi_gather_parts(zfi_zero *z, int32_t value)
{
    return zfi_append_nodes(z->graph, all_gather, zfi_with({.i = z->d.world}), value);
}

/* Elements of a parameter, whole: of a value of its unit, of which each rank may have a part. */
static int32_t zfi_whole_value(zfi_zero *z, int32_t member, int32_t value)
{
    const zfi_member *m = &z->cut.members[member];
    if (z->sharded) value = zfi_gather_parts(z, value);
    return value ? zfi_view_node(z->graph, value, m->at, z->graph->nodes[m->param].shape) : 0;
}

static void zfi_update_node(zfi_zero *z, int32_t position)
{
    zf_graph *g = z->graph;
    int32_t id = z->order[position];
    const zfi_node node = g->nodes[id];
    int32_t member = zfi_lifted_member(z, &node);
    if (node.op == ZF_OP_gradient) {
        member = z->member_of[node.args[0]];
        if (member >= 0) zfi_mark_gradient(z, member, zfi_pull(z, id, member, node.args[1]));
    } else if (member >= 0 && zfi_update_attributes(node.op) >= 0) {
        if (z->lift[id].kind == ZFI_LIFT_NONE) zfi_lift_update(z, position, member);
    } else if (member >= 0 && zfi_is_elementwise(node.op)) {
        z->lift[id] = (zfi_lift){ZFI_LIFT_ELEMENTS, member, 0};
    } else if (member >= 0 && node.op == ZF_OP_square_sums) {
        zfi_lift_blocks(z, id, member);
    } else if (member >= 0 && node.op == ZF_OP_output) {
        g->nodes[id].args[0] = zfi_whole_value(z, member, zfi_pull(z, id, member, node.args[0]));
        zfi_keep(z, id);
    } else if (member >= 0) {
        zfi_zero_fail(z, id,
                      "it reads the elements of a parameter or gradient in a way that "
                      "cannot be cut over ranks");
    } else if (node.op == ZF_OP_total && node.arg_count == 1 &&
               z->lift[node.args[0]].kind == ZFI_LIFT_BLOCKS &&
               z->updated[z->lift[node.args[0]].member]) {
        zfi_lift_total(z, id);
    } else {
        for (int32_t k = 0; k < node.arg_count && !g->error.status; k++) {
            int32_t arg = zfi_plain_arg(z, node.args[k]);
            g->nodes[id].args[k] = arg;
        }
        zfi_keep(z, id);
    }
}

/* What the program reads, whole: gradients as they were before clipping and views of parameters,
 * or, at the end, the parameters themselves. */
static void zfi_keep_outputs(zfi_zero *z, bool params)
{
    zf_graph *g = z->graph;
    for (int32_t i = 0; i < zfi_len(z->kept) && !g->error.status; i++) {
        int32_t mark = z->kept[i], x = g->nodes[mark].args[0], m = z->member_of[x],
                f = z->flat_of[x];
        const zfi_unit_state *u;
        if ((m >= 0) != params) continue;
        if (m < 0 && f < 0) m = z->first_same[x];
        u = &z->units[m < 0 ? f : zfi_flat_of_member(z, m)];
        if (m < 0 && z->sharded && z->d.stage == 3 && !u->gathered) zfi_open_run(z, f);
        if (m < 0) x = zfi_seen(z, x);
        else if (!params) x = zfi_whole_value(z, m, u->reduced);
        else if (z->d.stage == 3) x = zfi_whole_value(z, m, u->unit);
        else x = zfi_view_node(g, u->unit, z->cut.members[m].at, g->nodes[x].shape);
        g->nodes[mark].args[0] = x;
        g->nodes[mark].update = true;
        zfi_keep(z, mark);
    }
}

static void zfi_update_section(zfi_zero *z)
{
    zf_graph *g = z->graph;
    int32_t first = 0, end = zfi_len(z->order);
    while (first < end && !g->nodes[z->order[first]].update) first++;
    g->in_update = first < end || zfi_len(z->kept) > 0;
    for (int32_t m = 0; m < zfi_len(z->cut.members); m++) {
        z->lift[z->cut.members[m].param] = (zfi_lift){ZFI_LIFT_ELEMENTS, m, 0};
        if (z->gradient[m]) z->lift[z->gradient[m]] = (zfi_lift){ZFI_LIFT_ELEMENTS, m, 0};
    }
    for (int32_t i = first; i < end; i++)
        if (zfi_has(g, z->order[i], ZF_OP_LEAF)) zfi_keep(z, z->order[i]);
    zfi_keep_outputs(z, false);
    for (int32_t i = first; i < end && !g->error.status && !g->memory.failed; i++) {
        g->scope = g->nodes[z->order[i]].scope;
        if (!zfi_has(g, z->order[i], ZF_OP_LEAF)) zfi_update_node(z, i); /* leaves stand in front */
    }
    g->scope = "";
    /* Marks of the micro section: the sum is complete there, or in front of the updates. */
    for (int32_t m = 0; m < zfi_len(z->cut.members) && !g->error.status; m++)
        if (z->gradient[m]) zfi_mark_gradient(z, m, z->units[zfi_flat_of_member(z, m)].reduced);
    zfi_keep_outputs(z, true);
}

/* -------------------------------------------------------------------------------- the pass */

/* The value that autograd made, behind what passes have made of it: they keep it as operand 0. */
static int32_t zfi_raw_gradient(const zf_graph *g, int32_t id)
{
    while (g->nodes[id].update && g->nodes[id].arg_count) id = g->nodes[id].args[0];
    return id;
}

static void zfi_find_gradients(zfi_zero *z)
{
    const zf_graph *g = z->graph;
    for (int32_t i = 0; i < zfi_len(z->order); i++) {
        const zfi_node *node = &g->nodes[z->order[i]];
        int32_t m, value;
        if (zfi_updates_param(node->op) && z->member_of[node->args[0]] >= 0) {
            z->updated[z->member_of[node->args[0]]] = true;
            z->units[z->flat_of[node->args[0]]].updated++;
        }
        if (node->op != ZF_OP_gradient || z->member_of[node->args[0]] < 0) continue;
        m = z->member_of[node->args[0]];
        value = zfi_raw_gradient(g, node->args[1]);
        z->gradient[m] = z->packed[m] = value;
        z->next_same[m] = z->first_same[value];
        z->first_same[value] = m;
        z->units[z->flat_of[node->args[0]]].pending++;
        z->units[z->flat_of[node->args[0]]].gradients++;
    }
}

/* What is not in the new order is gone. */
static void zfi_forget(zfi_zero *z)
{
    zf_graph *g = z->graph;
    bool *there = zfi_calloc(&g->memory, (size_t)zfi_len(g->nodes), sizeof *there);
    if (!there) return;
    for (int32_t i = 0; i < zfi_len(g->order); i++) there[g->order[i]] = true;
    for (int32_t i = 0; i < zfi_len(z->order); i++)
        if (!there[z->order[i]]) zfi_replace(g, z->order[i], 0);
    zfi_free(&g->memory, there, (size_t)zfi_len(g->nodes) * sizeof *there);
}

static void zfi_run_zero(zfi_zero *z)
{
    zf_graph *g = z->graph;
    for (size_t n = 0; n < z->nodes; n++) z->flat_of[n] = z->member_of[n] = z->first_same[n] = -1;
    for (int32_t f = 0; f < zfi_len(z->cut.flats); f++)
        for (int32_t m = z->cut.flats[f].first; m < z->cut.flats[f].first + z->cut.flats[f].count;
             m++) {
            z->flat_of[z->cut.members[m].param] = f;
            z->member_of[z->cut.members[m].param] = m;
            z->next_same[m] = -1;
        }
    z->order = g->order;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(z->order); i++) {
        const zfi_node *node = &g->nodes[z->order[i]];
        int64_t at;
        if (!node->update && zfi_viewed(g, node, &at) == 0 && z->flat_of[node->args[0]] >= 0)
            z->flat_of[z->order[i]] = z->flat_of[node->args[0]];
        z->varies[z->order[i]] = node->op == ZF_OP_dropout ||
                                 (zfi_has(g, z->order[i], ZF_OP_LEAF) && node->op != ZF_OP_constant);
        for (int32_t k = 0; k < node->arg_count; k++)
            z->varies[z->order[i]] |= z->varies[node->args[k]];
    }
    zfi_find_gradients(z);
    zfi_micro_section(z);
    if (!g->error.status && !g->memory.failed) zfi_update_section(z);
    zfi_forget(z);
}

static zf_status zfi_check_zero(zf_graph *g, const zf_zero_desc *d)
{
    if (d->stage < 0 || d->stage > 3)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_zero: stage is %d; it must be 0, 1, 2 or 3",
                        (int)d->stage);
    if (d->world < 1 || d->world > 1 << 20)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_zero: world is %d; it must be 1 to 2^20",
                        (int)d->world);
    if (d->micro_batches < 1 || d->micro_batches > 1 << 20)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_zero: micro_batches is %lld; it must be 1 to 2^20",
                        (long long)d->micro_batches);
    if (d->bucket_bytes > INT64_MAX / 2)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_zero: bucket_bytes is 2^62 or more");
    if ((g->stages & ZFI_STAGE_GRADIENTS) && !(g->stages & ZFI_STAGE_UPDATES))
        return zfi_fail(&g->error, ZF_ERR_STAGE, "zf_zero: needs %s before it",
                        zfi_stage_advice(ZFI_STAGE_UPDATES));
    if (zfi_len(g->scopes))
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "zf_zero: the scope \"%s\" is still open (zf_pop closes it)", g->scope);
    return ZF_OK;
}

ZF_API zf_status zf_zero(zf_graph *g, const zf_zero_desc *desc)
{
    zfi_zero z = {.graph = g, .d = desc ? *desc : (zf_zero_desc){.stage = 0}, .cut = {.graph = g}};
    zf_status status =
        zfi_enter(g, "zf_zero", 0, ZFI_STAGE_RANKS | ZFI_STAGE_OVERLAP | ZFI_STAGE_PLACED);
    const char *scope;
    size_t members, flats;
    if (status) return status;
    if (!z.d.world) z.d.world = 1;
    if (!z.d.micro_batches) z.d.micro_batches = 1;
    if ((status = zfi_check_zero(g, &z.d))) return status;
    scope = g->scope;
    z.sharded = z.d.world > 1 && z.d.stage > 0;
    z.nodes = (size_t)zfi_len(g->nodes);
    zfi_cut_units(&z.cut, (int64_t)z.d.bucket_bytes, z.d.world);
    members = (size_t)zfi_len(z.cut.members);
    flats = (size_t)zfi_len(z.cut.flats);
    z.units = zfi_calloc(&g->memory, flats, sizeof *z.units);
    z.lift = zfi_calloc(&g->memory, z.nodes, sizeof *z.lift);
    z.flat_of = zfi_calloc(&g->memory, 5 * z.nodes, sizeof *z.flat_of);
    z.gradient = zfi_calloc(&g->memory, 3 * members, sizeof *z.gradient);
    z.updated = zfi_calloc(&g->memory, members, sizeof *z.updated);
    z.varies = zfi_calloc(&g->memory, z.nodes, sizeof *z.varies);
    if (!g->error.status && z.units && z.lift && z.flat_of && z.gradient && z.updated && z.varies) {
        z.member_of = z.flat_of + z.nodes, z.first_same = z.flat_of + 2 * z.nodes;
        z.seen_as = z.flat_of + 3 * z.nodes, z.seen_in = z.flat_of + 4 * z.nodes;
        z.next_same = z.gradient + members, z.packed = z.gradient + 2 * members;
        zfi_run_zero(&z);
    }
    zfi_free(&g->memory, z.units, flats * sizeof *z.units);
    zfi_free(&g->memory, z.lift, z.nodes * sizeof *z.lift);
    zfi_free(&g->memory, z.flat_of, 5 * z.nodes * sizeof *z.flat_of);
    zfi_free(&g->memory, z.gradient, 3 * members * sizeof *z.gradient);
    zfi_free(&g->memory, z.updated, members * sizeof *z.updated);
    zfi_free(&g->memory, z.varies, z.nodes * sizeof *z.varies);
    zfi_array_free(&g->memory, z.cut.members);
    zfi_array_free(&g->memory, z.cut.flats);
    zfi_array_free(&g->memory, z.cut.atoms);
    zfi_array_free(&g->memory, z.uses);
    zfi_array_free(&g->memory, z.lifted);
    zfi_array_free(&g->memory, z.outputs);
    zfi_array_free(&g->memory, z.kept);
    zfi_array_free(&g->memory, z.order);
    g->scope = scope;
    g->zero = z.d.stage, g->world = z.d.world, g->micro_batches = z.d.micro_batches;
    if (g->memory.failed) return zfi_graph_nomem(g);
    return zfi_leave(g, ZFI_STAGE_RANKS);
}
