/* How values depend on ranks, checked from the nodes alone: every gradient is summed exactly once
 * over the global batch, and parameters of two ranks cannot differ.
 *
 * Each value has a set of properties, from the batch, of which every rank and micro-batch has its
 * own part, to the parameters, which are equal on all:
 *
 *     OTHER     ranks have different values: it depends on the batch, or on dropout
 *     BATCH     it depends on one micro-batch
 *     SHARD     it is this rank's shard of a value
 *     RANKS     its elements are sums over the ranks
 *     BATCHES   its elements are sums over the micro-batches
 *     KNOWN     it depends on constants alone
 *
 *     stage 2, 4 ranks, 2 micro-batches     OTHER BATCH SHARD RANKS BATCHES
 *     input "x", not of one element           x     x
 *     bucket, view                                                          stage 3: SHARD
 *     matmul of both; pack of gradients       x     x
 *     reduce_scatter onto an accumulator                  x    x     x
 *     block_norms                                         x
 *     all_gather, norm, ...
 *     mul of the sum and a norm                           x    x     x
 *
 * The program must write equal inputs of one element (a learning rate, a loss weight) on all ranks.
 *
 * This is about ranks along the axis data. Those that differ in another axis alone have the same
 * part of the batch; what they have of a value is in its type (graph/spread.c).
 *
 * There is no deadlock. All ranks run one list of nodes (their hashes are compared), and the groups
 * of a collective are a partition of the ranks (base/mesh.c), so each group has one order of
 * calls. Of the calls in which ranks wait, consider the first in the list. Each of its members is
 * in it, or before it and not waiting, and so reaches it. Hence groups never wait in a cycle. The
 * same is true for each queue, since every launch comes before its wait (queues.c).
 *
 *   - collectives come with zf_zero; the ranks they are for, and those for which buckets, shards
 *     and updates are cut, are the graph's; or one, which sums over micro-batches alone
 *   - where the ranks are a mesh, gathers and sums are over one axis after the other, in the order
 *     of base/mesh.c
 *   - a reduce_scatter of examples (attribute examples), whose result is this rank's own as other
 *     activations' gradients, reads what is whole and no sum yet, and needs no accumulator: it is
 *     no sum of a gradient of parameters, and no update takes it for one
 *   - a sum of parts adds one part from each rank of the group in which they were exchanged
 *   - a shard along a dimension (attribute dim of its collective) is gathered along that one, and
 *     is updated nowhere, nor written into what outlives a step: shards of buckets are flat
 *   - a collective along a dimension runs on the queue compute
 *   - what runs in the first micro-batch alone (once) depends on no micro-batch
 *   - the operand of a sum is whole and has not been summed over the same; in the micro section of
 *     several micro-batches the sum has an accumulator, which nothing else reads or writes; one in
 *     host memory is copied to the device before the sum and back after it
 *   - an update reads a sum over all ranks and micro-batches of a pack of gradients, at the places
 *     of their parameters in the bucket; no other bucket is updated by this sum; its other operands
 *     are equal on all ranks, or sharded as the updated value is
 *   - an update of rows of a table (lazy) reads rows and gradients that are equal on all ranks and
 *     of all micro-batches: gathered, and collected, each on an accumulator of its own
 *   - an update may read its gradient from states, if `delay` sets these to a sum as above
 *   - a whole bucket that is updated in shards is gathered before anything reads it, or the
 *     section ends; likewise an updated copy is copied back, and all pieces of it
 *   - the updates of the pieces of a bucket differ in nothing else, and have the same pieces of all
 *     operands
 *   - where the loss is the sum over the global batch divided by its parts, as a mean is, they are
 *     its number, and a gradient is divided by it as well; unless its loss scale begins with that
 *   - outputs of the micro section that are floats of one element are sums over the global batch,
 *     unless they depend on constants alone; no output
 *     is a shard
 */

enum {
    ZFI_OTHER = 1,
    ZFI_BATCH = 2,
    ZFI_SHARD = 4,
    ZFI_RANKS = 8,
    ZFI_BATCHES = 16,
    ZFI_KNOWN = 32,
    ZFI_SUMMED = ZFI_RANKS | ZFI_BATCHES,
    ZFI_MIXED = -1
};

typedef struct zfi_stand {
    uint8_t bits;
    uint8_t cut;  /* SHARD: the axes that it is sharded over */
    uint8_t sums; /* the axes that its elements are sums over; RANKS once these are all */
    uint8_t along; /* SHARD: its dimension, counted from 1 at the last; 0: it is a flat one */
    uint8_t parts; /* its equal parts come from the ranks along these axes, by an all_to_all */
    bool rows;     /* its rows are those of all ranks along expert */
    uint64_t addends; /* at its first dimension: sums of the rows of these ranks, as a mask; 0 */
    int32_t pack; /* the pack of its elements, or of their sums; 0, ZFI_MIXED */
    int32_t sum;  /* the node that computed the sum; the pack where there is nothing to sum */
    int32_t cause; /* OTHER and BATCH: a node that causes them */
    /* The update that has changed only a part or a copy of it, which is not complete yet; 0:
     * none */
    int32_t torn;
    int64_t at, of; /* it is a piece of a value of `of` elements, from `at` on; of 0: it is none */
    int64_t back;   /* elements of its pieces that were updated and are back in their place */
    int32_t pieced; /* of a leaf: the first update of a piece; 0 */
    int32_t late;   /* an update has computed it from this leaf, its gradient; 0 */
    int32_t reader; /* of a leaf: the first update that reads it as its gradient; 0 */
    bool delayed;   /* of a leaf: `delay` sets it */
    int32_t used;  /* an accumulator: the node that adds to it; a sum: the bucket that it updates */
    bool varies;   /* it depends on dropout, or on a leaf that is no constant */
    bool changed;  /* of a leaf: it has been updated */
} zfi_stand;

typedef struct zfi_ranks {
    zf_graph *graph;
    zfi_stand *at;  /* by node */
    uint8_t shares; /* what can differ: OTHER, BATCH */
    bool local;     /* gradients are this rank's, and their momentum is averaged as signs */
    bool scaled;    /* a loss scale, perhaps divided by the parts, begins the backward pass */
    bool mean;      /* the loss is divided by the parts */
} zfi_ranks;

/* The axes of all ranks; none of one rank. */
static uint8_t zfi_all_axes(const zf_graph *g) { return g->world > 1 ? ZFI_AXES : 0; }

/* The lowest bits of a mask, 64 at most. */
static uint64_t zfi_bits_below(int32_t count)
{
    return count < 64 ? ((uint64_t)1 << count) - 1 : ~(uint64_t)0;
}

/* The axes that a collective is over; none where it is of one rank. */
static uint8_t zfi_axes_of(const zfi_node *node)
{
    return ZF_INT(node, all_gather, world) > 1 ? zfi_mesh_axes(ZF_INT(node, all_gather, over)) : 0;
}

/* The axes that buckets, and what is cut as they are, are sharded over. */
static uint8_t zfi_shard_axes(const zf_graph *g)
{
    return g->shards < g->world ? ZFI_AXIS_LOCAL : zfi_all_axes(g);
}

static bool zfi_reduces(zf_op op) { return op == ZF_OP_all_reduce || op == ZF_OP_reduce_scatter; }

/* The node is a collective over another axis than data, or sums what is cut over experts. */
static bool zfi_is_over_other(const zf_graph *g, const zfi_node *node)
{
    const bool collective = g->records[node->op]->traits & ZF_OP_COLLECTIVE;
    const int64_t over = collective ? ZF_INT(node, all_gather, over) : ZF_OVER_ALL;
    return zfi_is_other_axis(over) || (over == ZF_OVER_EXPERT && node->op == ZF_OP_all_reduce);
}

/* The axes of data over which a sum of the rows of all ranks along expert has been made. */
static uint8_t zfi_axes_of_rows(const zf_graph *g)
{
    return zfi_mesh_size(zfi_mesh_of(g), ZF_OVER_OWNERS) > 1 ? zfi_mesh_axes(ZF_OVER_EXPERT)
                                                             : zfi_all_axes(g);
}

/* The axes over which a value of so many shards is cut. */
static uint8_t zfi_axes_of_shards(const zf_graph *g, int64_t shards)
{
    if (zfi_mesh_experts(zfi_mesh_of(g)) > 1 && shards < g->world) return ZFI_AXIS_NODE;
    return zfi_shard_axes(g);
}

/* The node gives each rank the gradients of its own examples, summed over the ranks. */
static bool zfi_scatters_examples(const zfi_node *node)
{
    return node->op == ZF_OP_reduce_scatter && ZF_INT(node, reduce_scatter, examples);
}

/* The node is a sum over ranks along data: a collective, or one of exchanged parts. */
static bool zfi_is_sum(const zfi_node *node)
{
    return (zfi_reduces(node->op) && !zfi_is_other_axis(ZF_INT(node, all_gather, over)) &&
            ZF_INT(node, all_gather, over) != ZF_OVER_EXPERT && !zfi_scatters_examples(node)) ||
           node->op == ZF_OP_dequantize_sum;
}

/* The axes that a collective, or a sum of exchanged parts, is over. */
static uint8_t zfi_axes_at(const zfi_ranks *r, const zfi_node *node)
{
    return node->op == ZF_OP_dequantize_sum ? r->at[node->args[0]].parts : zfi_axes_of(node);
}

/* ------------------------------------------------------------------- where values stand */

/* Joins the sums of two operands that are added, scaled or the like: one sum, if both come from
 * it. */
static void zfi_join_sums(zfi_stand *s, const zfi_stand *x)
{
    if (!x->pack && !(x->bits & ZFI_SUMMED)) return;
    if (!s->pack && !(s->bits & ZFI_SUMMED)) s->pack = x->pack, s->sum = x->sum, s->sums = x->sums;
    else if (s->pack != x->pack || s->sum != x->sum) s->pack = ZFI_MIXED;
    s->bits |= x->bits & ZFI_SUMMED;
}

/* The properties of the result of any operator. It differs if one operand does. It is a shard if
 * all operands with several elements are. */
static zfi_stand zfi_stand_of_args(const zfi_ranks *r, const zfi_node *node)
{
    const zf_graph *g = r->graph;
    bool elementwise = g->records[node->op]->traits & ZF_OP_ELEMENTWISE;
    bool by_element = elementwise, shard = false, whole = false, rows = true;
    uint8_t cut = 0;
    int64_t count = zfi_node_count(node);
    zfi_stand s = {.bits = ZFI_KNOWN};
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_stand *x = &r->at[node->args[k]];
        int64_t size = zfi_node_count(&g->nodes[node->args[k]]);
        if (x->bits & ~s.bits & (ZFI_OTHER | ZFI_BATCH)) s.cause = x->cause;
        s.bits |= x->bits & (ZFI_OTHER | ZFI_BATCH);
        if (x->bits & ZFI_OTHER) rows &= x->rows;
        if (!(x->bits & ZFI_KNOWN)) s.bits &= (uint8_t)~ZFI_KNOWN;
        if (shard && x->bits & ZFI_SHARD && x->cut != cut) by_element = false;
        if (shard && x->bits & ZFI_SHARD && x->along != s.along) by_element = false;
        if (x->bits & ZFI_SHARD) shard = true, cut = x->cut, s.along = x->along;
        else if (size != 1) whole = true;
        if ((x->bits & ZFI_SHARD) && size != count) by_element = false;
        if (elementwise && size == count) zfi_join_sums(&s, x);
    }
    if (shard && by_element && !whole) s.bits |= ZFI_SHARD, s.cut = cut;
    else if (shard) s.bits |= ZFI_OTHER, s.along = 0;
    s.rows = rows && s.bits & ZFI_OTHER;
    return s;
}

/* Those of the value with the same elements. */
static zfi_stand zfi_stand_like(const zfi_ranks *r, int32_t id)
{
    zfi_stand s = r->at[id];
    s.torn = s.used = s.pieced = s.reader = 0;
    s.back = 0, s.delayed = false;
    return s;
}

/* The properties of a view of operand 0. */
static zfi_stand zfi_stand_of_view(const zfi_ranks *r, const zfi_node *node)
{
    zfi_stand s = zfi_stand_like(r, node->args[0]);
    if (zfi_node_count(node) == zfi_node_count(&r->graph->nodes[node->args[0]])) return s;
    s.at = s.of = 0;
    s.parts = 0;
    if (s.bits & ZFI_SHARD) s.bits = (uint8_t)((s.bits & ~ZFI_SHARD) | ZFI_OTHER), s.cut = 0;
    return s;
}

/* The leaf that holds a gradient of the step before, of which the value consists, or from which an
 * update has computed it; 0: none. */
static int32_t zfi_late_gradient(const zfi_ranks *r, int32_t id)
{
    const zf_graph *g = r->graph;
    const int32_t home = (int32_t)(zfi_home_of(g, &g->nodes[id]) - g->nodes);
    return zfi_has(g, home, ZF_OP_LEAF) ? home : r->at[id].late;
}

static zfi_stand zfi_stand_of_piece(const zfi_ranks *r, const zfi_node *node)
{
    zfi_stand s = zfi_stand_like(r, node->args[0]);
    s.at = ZF_INT(node, piece, at);
    s.of = zfi_node_count(&r->graph->nodes[node->args[0]]);
    s.parts = 0;
    return s;
}

/* A pack of all pieces of a value, in their order, is sharded as the value is. */
static zfi_stand zfi_stand_of_pack(const zfi_ranks *r, int32_t id)
{
    const zfi_node *node = &r->graph->nodes[id];
    const int64_t *at = ZF_LIST(node, pack, at).data;
    const zfi_stand *first = &r->at[node->args[0]];
    zfi_stand s = zfi_stand_of_args(r, node);
    bool all = first->of == ZF_INT(node, pack, size);
    int64_t end = 0;
    s.sums = first->sums;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_stand *x = &r->at[node->args[k]];
        s.bits |= x->bits & ZFI_SUMMED;
        s.sums &= x->sums;
        all = all && x->of == first->of && x->at == end && at[k] == end && x->cut == first->cut &&
              x->bits == first->bits;
        end += zfi_node_count(&r->graph->nodes[node->args[k]]);
    }
    if (all && end == first->of) s.bits = first->bits, s.cut = first->cut;
    s.pack = s.sum = id;
    return s;
}

/* The dimension along which the collective is, as zfi_stand.along. */
static uint8_t zfi_along(const zfi_node *node)
{
    const int64_t dim = zfi_collective_dim(node->op, node->attributes);
    return dim ? (uint8_t)(node->shape.rank - dim) : 0;
}

/* The properties of a collective or of a sum of exchanged parts. */
static zfi_stand zfi_stand_of_collective(const zfi_ranks *r, int32_t id)
{
    const zfi_node *node = &r->graph->nodes[id];
    const uint8_t axes = zfi_axes_at(r, node), all = zfi_all_axes(r->graph);
    zfi_stand s = zfi_stand_like(r, node->args[0]);
    const bool rows = s.rows;
    s.parts = 0, s.rows = false;
    if (axes && zfi_scatters_examples(node))
        return (zfi_stand){.bits = (uint8_t)((s.bits & ZFI_BATCH) | ZFI_OTHER), .cause = id};
    if (axes) s.at = s.of = 0;
    if (axes && node->op == ZF_OP_all_gather) {
        if (!(s.bits & ZFI_SHARD)) s.pack = 0, s.bits &= ZFI_OTHER | ZFI_BATCH;
        if (axes == all) s.bits &= (uint8_t)~ZFI_OTHER;
        s.cut &= (uint8_t)~axes;
        if (!s.cut) s.bits &= (uint8_t)~ZFI_SHARD, s.along = 0;
    } else if (axes && zfi_is_sum(node)) {
        s.sums |= axes;
        if (s.sums == all) s.bits = (uint8_t)((s.bits & ~ZFI_OTHER) | ZFI_RANKS);
        if (node->op != ZF_OP_all_reduce)
            s.bits |= ZFI_SHARD, s.cut |= axes, s.along = zfi_along(node);
        s.sum = id;
    } else if (axes && node->op == ZF_OP_all_to_all) { /* of what is not cut over these ranks */
        if (s.cut & axes) s = (zfi_stand){.bits = s.bits & ZFI_BATCH, .sum = s.sum};
        else s.parts = axes;
        s.bits = (uint8_t)((s.bits & (ZFI_BATCH | ZFI_BATCHES | ZFI_SHARD)) | ZFI_OTHER);
        s.cause = id;
        if (ZF_INT(node, all_to_all, over) == ZF_OVER_EXPERT) s.parts = 0, s.rows = !rows;
    } else if (axes) { /* bcast */
        s = (zfi_stand){.bits = (uint8_t)((s.bits & ZFI_BATCH) | (axes != all ? ZFI_OTHER : 0)),
                        .sum = s.sum,
                        .cause = id};
    }
    if (zfi_is_sum(node) && node->arg_count > 1) {
        s.bits = (uint8_t)((s.bits & ~ZFI_BATCH) | ZFI_BATCHES);
        s.sum = id;
    }
    return s;
}

static zfi_stand zfi_stand_by_rule(const zfi_ranks *r, int32_t id)
{
    const zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    bool own = r->shares & ZFI_OTHER;
    zfi_stand s = {.cause = id};
    if (zfi_draws(g, id)) {
        s = zfi_stand_of_args(r, node);
        s.bits = (uint8_t)((s.bits | r->shares) & ~ZFI_KNOWN);
        s.cause = id;
        return s;
    }
    switch (zfi_record_of(g, id)->ranks) {
    case ZFI_RANKS_BATCH:
        if (zfi_node_count(node) != 1 && !zfi_is_held(node)) s.bits = r->shares;
        return s;
    case ZFI_RANKS_BUCKET:
        if (ZF_INT(node, bucket, world) > 1)
            s.bits = ZFI_SHARD,
            s.cut = ZF_INT(node, bucket, each)
                        ? ZFI_AXIS_LOCAL
                        : zfi_axes_of_shards(g, ZF_INT(node, bucket, world));
        if (ZF_INT(node, bucket, each)) s.bits |= r->shares & ZFI_OTHER;
        return s;
    case ZFI_RANKS_KNOWN: s.bits = ZFI_KNOWN; return s;
    case ZFI_RANKS_PARTS: /* of all micro-batches */
        s = zfi_stand_like(r, node->args[0]);
        s.pack = 0, s.bits &= (uint8_t)~(ZFI_BATCH | ZFI_KNOWN);
        return s;
    case ZFI_RANKS_ALIKE: return s;
    case ZFI_RANKS_VIEW: return zfi_stand_of_view(r, node);
    case ZFI_RANKS_FORM: return zfi_stand_like(r, node->args[0]);
    case ZFI_RANKS_SUM: return zfi_stand_of_collective(r, id);
    case ZFI_RANKS_SHARD:
        s = zfi_stand_like(r, node->args[0]);
        if (ZF_INT(node, shard, world) <= 1) return s;
        if (s.bits & ZFI_SHARD) s.bits = (uint8_t)((s.bits & ~ZFI_SHARD) | ZFI_OTHER), s.cut = 0;
        else if (own)
            s.bits |= ZFI_SHARD, s.cut = zfi_axes_of_shards(g, ZF_INT(node, shard, world));
        return s;
    case ZFI_RANKS_PIECE: return zfi_stand_of_piece(r, node);
    case ZFI_RANKS_PACK: return zfi_stand_of_pack(r, id);
    case ZFI_RANKS_BLOCKS: /* a shard consists of whole blocks, and so does a piece */
        s = zfi_stand_of_args(r, node);
        s.at = r->at[node->args[0]].at / ZFI_NORM_BLOCK;
        s.of = zfi_whole_blocks(r->at[node->args[0]].of);
        if (r->at[node->args[0]].bits & ZFI_SHARD) {
            s.bits = r->at[node->args[0]].bits & (ZFI_OTHER | ZFI_BATCH | ZFI_SHARD);
            s.cut = r->at[node->args[0]].cut;
        }
        return s;
    case ZFI_RANKS_GRADIENT:
        s = zfi_stand_like(r, node->args[1]);
        s.late = zfi_late_gradient(r, node->args[1]);
        return s;
    case ZFI_RANKS_SIGNS: /* the parts of all ranks, side by side, are those of this rank's shard */
        s = zfi_stand_like(r, node->args[0]);
        if (node->op != ZF_OP_sign_expand || ZF_INT(node, sign_expand, parts) < 2) return s;
        if (s.parts && s.parts == zfi_all_axes(g))
            s.bits = (uint8_t)((s.bits & ~ZFI_OTHER) | ZFI_SHARD | ZFI_RANKS),
            s.cut = s.sums = s.parts, s.sum = id;
        s.parts = 0;
        return s;
    default:
        if (zfi_is_over_other(g, node))
            return node->op == ZF_OP_all_reduce || node->op == ZF_OP_send ||
                           node->op == ZF_OP_bcast
                       ? zfi_stand_like(r, node->args[0])
                                                : zfi_stand_of_args(r, node);
        return zfi_has(g, id, ZF_OP_COLLECTIVE) ? zfi_stand_of_collective(r, id)
                                                : zfi_stand_of_args(r, node);
    }
}

/* The node adds up its operands, each once. */
static bool zfi_adds_operands(const zfi_node *node)
{
    const int64_t *at = ZF_LIST(node, chain, program).data;
    uint64_t used = 0;
    int64_t i = 0;
    if (node->op != ZF_OP_chain) return node->op == ZF_OP_add;
    for (; i < ZF_LIST(node, chain, program).count; i += 3) {
        const uint64_t both = (uint64_t)1 << at[i + 1] | (uint64_t)1 << at[i + 2];
        if (zfi_instructions[at[i]].op != ZF_OP_add || at[i + 1] == at[i + 2] || used & both)
            return false;
        used |= both;
    }
    return i / 3 == node->arg_count - 1;
}

/* Which sums of the rows of ranks along expert the node has, of those of its operands. */
static uint64_t zfi_addends_of(const zfi_ranks *r, const zfi_node *node)
{
    const uint64_t x = node->arg_count ? r->at[node->args[0]].addends : 0;
    uint64_t all = 0;
    if (node->op == ZF_OP_grouped_outer && ZF_INT(node, grouped_outer, apart))
        return zfi_bits_below((int32_t)ZF_INT(node, grouped_outer, sources));
    if (node->op == ZF_OP_all_reduce || node->op == ZF_OP_send) return x;
    if (node->op == ZF_OP_slice && !ZF_INT(node, slice, axis))
        return x & zfi_bits_below((int32_t)ZF_INT(node, slice, stop)) &
               ~zfi_bits_below((int32_t)ZF_INT(node, slice, start));
    for (int32_t k = 0; k < node->arg_count && zfi_adds_operands(node); k++) {
        const uint64_t one = r->at[node->args[k]].addends;
        if (!one || all & one) return 0;
        all |= one;
    }
    return all;
}

/* The node adds up rows of all ranks along expert: at once, or it has the sum of what each of them
 * has apart, without the dimension of these. */
static bool zfi_sums_rows(const zfi_ranks *r, const zfi_node *node)
{
    const zf_graph *g = r->graph;
    const zf_attribute *sources = zfi_attribute_of(g, node, "sources");
    const int32_t ranks = zfi_mesh_experts(zfi_mesh_of(g));
    if (node->op == ZF_OP_sum && !ZF_INT(node, sum, axis))
        return ranks > 1 && g->nodes[node->args[0]].shape.dims[0] == 1 &&
               r->at[node->args[0]].addends == zfi_bits_below(ranks);
    return sources && sources->i > 1 &&
           !(node->op == ZF_OP_grouped_outer && ZF_INT(node, grouped_outer, apart));
}

/* A sum of the rows of all ranks along expert is one over that axis. */
static void zfi_stand_of_rows(const zfi_ranks *r, int32_t id, zfi_stand *s)
{
    const zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    s->addends = zfi_addends_of(r, node);
    if (!s->rows || !zfi_sums_rows(r, node) ||
        !(zfi_spread_cut(&node->spread) & zfi_axis_bit(ZF_OVER_EXPERT)))
        return;
    s->rows = false, s->sums = zfi_axes_of_rows(g), s->sum = id;
    if (s->sums == zfi_all_axes(g)) s->bits = (uint8_t)((s->bits & ~ZFI_OTHER) | ZFI_RANKS);
}

/* A shard along a dimension is none in another form, as in a view. */
static zfi_stand zfi_stand_of_node(const zfi_ranks *r, int32_t id)
{
    zfi_stand s = zfi_stand_by_rule(r, id);
    const uint32_t keeps = ZF_OP_ELEMENTWISE | ZF_OP_COLLECTIVE;
    if (s.along && !(r->graph->records[r->graph->nodes[id].op]->traits & keeps)) {
        if (s.bits & ZFI_SHARD) s.bits = (uint8_t)((s.bits & ~ZFI_SHARD) | ZFI_OTHER), s.cause = id;
        s.cut = s.along = 0;
    }
    zfi_stand_of_rows(r, id, &s);
    return s;
}

/* ----------------------------------------------------------------------------- collectives */

/* The shards of a value of the node: of what is cut over experts one for each copy. */
static int32_t zfi_shards_at(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    const zfi_spread *s = node->op == ZF_OP_bucket || !node->arg_count
                              ? &node->spread
                              : &g->nodes[node->args[0]].spread;
    const uint8_t experts = zfi_axis_bit(ZF_OVER_EXPERT);
    return g->shards /
           ((zfi_spread_cut(s) | s->differs) & experts ? zfi_mesh_experts(zfi_mesh_of(g)) : 1);
}

/* Checks the world of the node. */
static void zfi_check_world(const zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zf_attribute *world = zfi_attribute_of(g, &g->nodes[id], "world");
    const bool together = zfi_has(g, id, ZF_OP_COLLECTIVE), mesh = zfi_is_mesh(zfi_mesh_of(g));
    const zf_attribute *axis = zfi_attribute_of(g, &g->nodes[id], "over");
    const int64_t over = axis ? axis->i : ZF_OVER_ALL;
    const bool parts = over == ZF_OVER_NODE || over == ZF_OVER_LOCAL;
    const zf_op op = g->nodes[id].op;
    const bool of_node = op == ZF_OP_bucket && ZF_INT(&g->nodes[id], bucket, each);
    const int32_t ranks = axis      ? zfi_mesh_size(zfi_mesh_of(g), over)
                          : of_node ? zfi_mesh_local(zfi_mesh_of(g))
                                    : zfi_shards_at(g, id);
    const bool experts = over == ZF_OVER_EXPERT || over == ZF_OVER_OWNERS;
    if ((zfi_is_other_axis(over) && !ranks) ||
        (experts && zfi_axis_at(&g->axes, ZF_OVER_EXPERT) < 0))
        zfi_verify_fail(g, id, "the ranks have no axis %s: the line mesh must name it",
                        zfi_axis_names[over == ZF_OVER_OWNERS ? ZF_OVER_EXPERT : over]);
    else if (together && !zfi_is_other_axis(over) && over != ZF_OVER_EXPERT &&
             !(g->stages & ZFI_STAGE_RANKS))
        zfi_verify_fail(g, id, "a collective comes with zf_zero, which has not been run");
    else if (over == ZF_OVER_DATA && !g->axes.count)
        zfi_verify_fail(g, id, "ranks have the axis data alone: over=data must not be given");
    else if (together && over == ZF_OVER_ALL && g->axes.count)
        zfi_verify_fail(g, id, "the ranks have several axes: over must name one of them");
    else if (together && zfi_is_other_axis(over) && g->nodes[id].arg_count > 1)
        zfi_verify_fail(g, id, "over %s nothing accumulates, and nothing is gathered into a bucket",
                        zfi_axis_names[over]);
    else if (together && !zfi_is_other_axis(over) && op == ZF_OP_all_to_all &&
             zfi_is_along(op, g->nodes[id].attributes))
        zfi_verify_fail(g, id, "over data the parts are flat: dim and from must not be given");
    else if (parts && !mesh)
        zfi_verify_fail(g, id, "it is over an axis, and the ranks are no mesh");
    else if (world && (world->i > 1 || zfi_is_other_axis(over)) && world->i != ranks)
        zfi_verify_fail(g, id, over ? "it is for %lld ranks, and a group has %d"
                                    : "it is for %lld ranks, and the graph for %d",
                        (long long)world->i, (int)ranks);
    else if (mesh && (!over || over == ZF_OVER_DATA) && world && world->i > 1 &&
             (op == ZF_OP_all_gather || zfi_reduces(op)))
        zfi_verify_fail(g, id, "the ranks are a mesh: it must be over one axis after the other");
}

/* Shards are gathered along their dimension, and stay out of what outlives a step. */
static void zfi_check_along(const zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    const bool together = zfi_has(g, id, ZF_OP_COLLECTIVE);
    const bool moves = node->op == ZF_OP_all_gather || node->op == ZF_OP_reduce_scatter ||
                       node->op == ZF_OP_all_to_all;
    const uint8_t along = moves ? zfi_along(node) : 0;
    const zfi_stand *x = &r->at[node->args[0]];
    if (moves && zfi_is_along(node->op, node->attributes) && node->queue)
        zfi_verify_fail(g, id, "along a dimension it runs on the queue compute, not on %s",
                        zfi_queue_names[node->queue]);
    if (moves && x->bits & ZFI_SHARD && zfi_axes_of(node) && x->along != along)
        zfi_verify_fail(g, id,
                        "%%%d is a shard along dimension %d: pieces of it must be along that",
                        (int)node->args[0],
                        x->along ? (int)g->nodes[node->args[0]].shape.rank - x->along : 0);
    if (together || !zfi_written_args(g, node)) return;
    for (int32_t k = 0; k < node->arg_count; k++)
        if (r->at[node->args[k]].along)
            zfi_verify_fail(g, id, "%%%d is a shard along a dimension, and what is written is flat",
                            (int)node->args[k]);
}

/* Shards have their places, and sums their order, where groups take turns as base/mesh.c says. */
static void zfi_check_turn(const zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    const zfi_stand *x = &r->at[node->args[0]];
    const int arg = (int)node->args[0];
    const uint8_t axes = zfi_axes_at(r, node);
    if (!zfi_is_mesh(zfi_mesh_of(g)) || !axes) return;
    if (node->op == ZF_OP_all_gather && x->cut == ZFI_AXES && axes != ZFI_AXIS_NODE)
        zfi_verify_fail(g, id, "%%%d is a shard of all ranks: it is gathered over node first", arg);
    else if (node->op == ZF_OP_all_gather && x->cut && !(x->cut & axes))
        zfi_verify_fail(g, id, "%%%d is the same on all ranks of a group", arg);
    else if (zfi_is_sum(node) && axes == ZFI_AXES)
        zfi_verify_fail(g, id, "the ranks are a mesh: sums are made over one axis after the other");
    else if (zfi_is_sum(node) && axes == ZFI_AXIS_NODE && !(x->sums & ZFI_AXIS_LOCAL))
        zfi_verify_fail(g, id, "%%%d is no sum over a node: sums are made over local first", arg);
    else if (zfi_is_sum(node) && node->op != ZF_OP_all_reduce && axes == ZFI_AXIS_NODE && !x->cut)
        zfi_verify_fail(g, id, "%%%d is whole: shards are made over local first", arg);
}

/* A sum of parts: one from each rank with which they were exchanged. */
static void zfi_check_parts(const zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    const uint8_t axes = r->at[node->args[0]].parts;
    const int64_t parts = ZF_INT(node, dequantize_sum, parts),
                  over = axes == ZFI_AXIS_NODE ? ZF_OVER_NODE
                         : axes == ZFI_AXIS_LOCAL ? ZF_OVER_LOCAL
                                                  : ZF_OVER_ALL;
    if (!axes)
        zfi_verify_fail(g, id, "%%%d has no parts of other ranks: an all_to_all must be above",
                        (int)node->args[0]);
    else if (parts != zfi_mesh_size(zfi_mesh_of(g), over))
        zfi_verify_fail(g, id, "it adds %lld parts, and %%%d has those of %d ranks",
                        (long long)parts, (int)node->args[0],
                        (int)zfi_mesh_size(zfi_mesh_of(g), over));
}

static void zfi_check_sum(zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    const zfi_stand *x = &r->at[node->args[0]];
    int32_t arg = node->args[0];
    const uint8_t axes = zfi_axes_at(r, node);
    bool onto = node->arg_count > 1, part = axes && (x->sums | axes) != zfi_all_axes(g);
    zfi_stand *to = onto ? &r->at[zfi_accumulator_of(g, node->args[1])] : NULL;
    if (x->bits & ZFI_SHARD && (!axes || x->cut & axes))
        zfi_verify_fail(g, id, "%%%d is this rank's shard: ranks would add different elements",
                        (int)arg);
    else if (x->sums & axes)
        zfi_verify_fail(g, id, "%%%d has been summed over the ranks already", (int)arg);
    else if (onto && part)
        zfi_verify_fail(g, id, "it is no sum over all ranks yet, so nothing accumulates there");
    else if (onto && (x->bits & ZFI_BATCHES))
        zfi_verify_fail(g, id, "%%%d has been summed over the micro-batches already", (int)arg);
    else if (onto && node->update)
        zfi_verify_fail(g, id, "the update section runs once, so nothing accumulates there");
    else if (!onto && !part && !node->update && g->micro_batches > 1)
        zfi_verify_fail(g, id, "operand 1, an accumulator of the %lld micro-batches, is missing",
                        (long long)g->micro_batches);
    else if (node->update && (x->bits & ZFI_BATCH))
        zfi_verify_fail(g, id, "%%%d is that of the last micro-batch alone", (int)arg);
    else if (onto && to->used)
        zfi_verify_fail(g, id, "%%%d accumulates %%%d already", (int)node->args[1], (int)to->used);
    if (onto) to->used = id;
}

static void zfi_check_scattered(const zfi_ranks *r, int32_t id)
{
    const zfi_node *node = &r->graph->nodes[id];
    const zfi_stand *x = &r->at[node->args[0]];
    if (x->bits & ZFI_SHARD)
        zfi_verify_fail(r->graph, id,
                        "%%%d is this rank's shard: ranks would add different elements",
                        (int)node->args[0]);
    else if (x->sums)
        zfi_verify_fail(r->graph, id, "%%%d has been summed over the ranks already",
                        (int)node->args[0]);
    else if (node->update)
        zfi_verify_fail(r->graph, id, "the update section has no examples");
}

/* Checks a collective that writes a whole bucket from the ranks' shards. */
static void zfi_check_fill(zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id], *x = &g->nodes[node->args[0]];
    int32_t bucket = node->args[1];
    if (zfi_is_held(&g->nodes[bucket])) return;
    if (x->op == ZF_OP_all_gather && x->arg_count == 1) x = &g->nodes[x->args[0]];
    if (x->op != ZF_OP_shard || x->args[0] != bucket)
        zfi_verify_fail(g, id, "operand 0 must be the shard of %%%d, into which it gathers",
                        (int)bucket);
    else if (!node->update)
        zfi_verify_fail(g, id, "it writes %%%d in the micro section, which may run again",
                        (int)bucket);
    r->at[bucket].torn = 0;
}

/* --------------------------------------------------------------------------------- updates */

/* `holder`, a bucket or a pack, must have an operand for each of the updated ranges of blocks: with
 * that range or, for a pack, covering it. Returns the first block of a range without one; -1: none
 * is missing. */
static int64_t zfi_missing_block(const zf_graph *g, int32_t holder, const zf_attribute *blocks)
{
    const zfi_node *node = &g->nodes[holder];
    const int64_t *at = ZF_LIST(node, bucket, at).data, *range = blocks->list.data;
    int32_t k = 0;
    for (int64_t b = 0; b < blocks->list.count; b += 2) {
        int64_t first = range[b], last = range[b + 1];
        for (; k < node->arg_count; k++) {
            int64_t begin = at[k] / ZFI_NORM_BLOCK,
                    end = begin + zfi_whole_blocks(zfi_node_count(&g->nodes[node->args[k]]));
            bool starts = at[k] % ZFI_NORM_BLOCK == 0;
            if (starts && begin == first && end == last) break;
            if (starts && node->op == ZF_OP_pack && begin <= first && last <= end) break;
        }
        if (k == node->arg_count) return first;
    }
    return -1;
}

/* Each parameter of a bucket has a gradient with its own type along axes. */
static void zfi_check_spreads(zf_graph *g, int32_t id, const zfi_node *pack, const zfi_node *bucket)
{
    const int64_t *at = ZF_LIST(bucket, bucket, at).data;
    for (int32_t k = 0; k < bucket->arg_count && g->axes.count; k++) {
        const zfi_node *param = &g->nodes[bucket->args[k]];
        const zfi_spread its = zfi_spread_within(g, pack, at[k], &param->shape);
        if (!zfi_same_spread(&its, &param->spread))
            zfi_verify_fail(g, id, "the gradient of %%%d and the parameter have two types along "
                                   "axes",
                            (int)bucket->args[k]);
    }
}

/* The parts of the global batch. */
static double zfi_parts_of_batch(const zf_graph *g)
{
    return (double)g->world * (double)g->micro_batches;
}

/* The value is a sum over the global batch times numbers of its own, and one of these is 1 by the
 * parts; or it is no such sum. */
static bool zfi_is_divided(const zfi_ranks *r, int32_t id)
{
    const zf_graph *g = r->graph;
    const int32_t sum = r->at[id].sum;
    for (; sum > 0 && id != sum; id = g->nodes[id].args[0]) {
        const zfi_node *node = &g->nodes[id];
        if (!node->arg_count || zfi_has(g, id, ZF_OP_LEAF) ||
            (node->op == ZF_OP_scale && ZF_FLOAT(node, scale, by) == 1 / zfi_parts_of_batch(g)))
            return true;
    }
    return sum <= 0;
}

/* Checks that operand 1 of an update, or of a mark (`blocks` NULL), is the gradient of `bucket`,
 * summed exactly once. */
static void zfi_check_gradient(zfi_ranks *r, int32_t id, int32_t bucket, const zf_attribute *blocks)
{
    zf_graph *g = r->graph;
    int32_t arg = g->nodes[id].args[1];
    const zfi_stand *x = &r->at[arg];
    const zfi_node *pack = x->pack > 0 ? &g->nodes[x->pack] : NULL;
    int64_t block;
    int32_t *used;
    if (x->pack == ZFI_MIXED)
        zfi_verify_fail(g, id, "%%%d mixes gradients of several sums", (int)arg);
    else if (r->shares & ZFI_OTHER && !(x->bits & ZFI_RANKS) && !(r->local && !blocks))
        zfi_verify_fail(g, id, "%%%d is a gradient that was not summed over the %d ranks", (int)arg,
                        (int)g->world);
    else if (r->shares & ZFI_BATCH && !(x->bits & ZFI_BATCHES))
        zfi_verify_fail(g, id, "%%%d is a gradient that was not summed over the %lld micro-batches",
                        (int)arg, (long long)g->micro_batches);
    else if (x->bits & (r->local && !blocks ? ZFI_BATCH : ZFI_OTHER | ZFI_BATCH))
        zfi_verify_fail(g, id, "%%%d depends on %%%d, which is this rank's and micro-batch's alone",
                        (int)arg, (int)x->cause);
    else if (r->mean && !r->local && !r->scaled && !zfi_is_divided(r, arg))
        zfi_verify_fail(g, id,
                        "%%%d is not divided by the %.0f parts of the global batch, by which the "
                        "loss is",
                        (int)arg, zfi_parts_of_batch(g));
    if (g->nodes[bucket].op != ZF_OP_bucket || g->error.status) return;
    if (!pack || pack->op != ZF_OP_pack)
        zfi_verify_fail(g, id, "%%%d is no gradient: it does not have the elements of a pack",
                        (int)arg);
    else if (ZF_INT(pack, pack, size) != ZF_INT(&g->nodes[bucket], bucket, size))
        zfi_verify_fail(g, id, "the gradients packed in %%%d are not those of bucket %%%d",
                        (int)x->pack, (int)bucket);
    else if (blocks && (block = zfi_missing_block(g, x->pack, blocks)) >= 0)
        zfi_verify_fail(g, id, "what lies at block %lld of bucket %%%d has no gradient in %%%d",
                        (long long)block, (int)bucket, (int)x->pack);
    if (pack && pack->op == ZF_OP_pack) zfi_check_spreads(g, id, pack, &g->nodes[bucket]);
    if (g->error.status || !blocks) return;
    used = &r->at[x->sum].used;
    if (*used && *used != bucket)
        zfi_verify_fail(g, id, "%%%d has the gradients of bucket %%%d, which they update above",
                        (int)arg, (int)*used);
    *used = bucket;
}

/* Checks that operand 1 of an update or mark is rows that all ranks and micro-batches have read,
 * the same on all. Their numbers, its last operand, are checked as other operands are. */
static void zfi_check_lazy_rows(zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    for (int32_t k = 1; k < node->arg_count; k += node->arg_count - 2) {
        const zfi_stand *x = &r->at[node->args[k]];
        if (x->bits & (ZFI_OTHER | ZFI_BATCH | ZFI_SHARD))
            zfi_verify_fail(g, id,
                            "%%%d has the rows of this rank, or of one micro-batch, alone: those "
                            "of all must be gathered above",
                            (int)node->args[k]);
    }
}

/* Checks that a value of each micro-batch is collected, on an accumulator of its own. */
static void zfi_check_collect(zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    int32_t *used = &r->at[zfi_accumulator_of(g, node->args[1])].used;
    if (node->update)
        zfi_verify_fail(g, id, "the update section runs once, so nothing is collected there");
    else if (ZF_INT(node, collect, parts) != g->micro_batches)
        zfi_verify_fail(g, id, "it collects %lld parts, and a step has %lld micro-batches",
                        (long long)ZF_INT(node, collect, parts), (long long)g->micro_batches);
    else if (*used)
        zfi_verify_fail(g, id, "%%%d accumulates %%%d already", (int)node->args[1], (int)*used);
    *used = id;
}

/* Checks that operand k is whole if the updated value is, and a shard if it is. */
static void zfi_check_cut(zfi_ranks *r, int32_t id, int32_t k)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    uint8_t mine = r->at[node->args[0]].cut, its = r->at[node->args[k]].cut;
    if (mine == its) return;
    zfi_verify_fail(g, id, "%%%d is %s, and %%%d is %s", (int)node->args[0],
                    mine ? "this rank's shard" : "whole", (int)node->args[k],
                    its ? "this rank's shard" : "whole");
}

/* Checks operand k, other than the gradient: a state that is sharded as the parameters are, or a
 * value equal on all ranks. */
static void zfi_check_same_rows(zfi_ranks *r, int32_t id, int32_t k, const zf_attribute *blocks)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id], *home = &g->nodes[zfi_updated_leaf(g, node->args[k])];
    int32_t arg = node->args[k], bucket = zfi_updated_leaf(g, node->args[0]);
    const uint32_t shaped = zfi_written_args(g, node) | g->records[node->op]->elementwise;
    const zfi_stand *x = &r->at[arg];
    int64_t block;
    if (!(k < 31 && shaped >> k & 1) && k != zfi_master_arg(g, node)) {
        if (x->bits & (ZFI_OTHER | ZFI_BATCH))
            zfi_verify_fail(g, id, "%%%d depends on %%%d, so ranks would update differently",
                            (int)arg, (int)x->cause);
        else if (x->bits & ZFI_SHARD)
            zfi_verify_fail(g, id, "%%%d is this rank's shard, so ranks would update differently",
                            (int)arg);
        return;
    }
    zfi_check_cut(r, id, k);
    if (g->nodes[bucket].op != ZF_OP_bucket) return;
    if (home->op != ZF_OP_bucket ||
        ZF_INT(home, bucket, size) != ZF_INT(&g->nodes[bucket], bucket, size))
        zfi_verify_fail(g, id, "%%%d is no bucket of states like bucket %%%d", (int)arg,
                        (int)bucket);
    else if ((block = zfi_missing_block(g, (int32_t)(home - g->nodes), blocks)) >= 0)
        zfi_verify_fail(g, id, "what lies at block %lld of bucket %%%d has no state in %%%d",
                        (long long)block, (int)bucket, (int)arg);
}

/* The node is this rank's shard of a leaf that the rank has as a whole, or a copy or piece of
 * it. */
static bool zfi_is_shard(const zf_graph *g, int32_t id)
{
    const zfi_node *node = zfi_home_of(g, &g->nodes[id]);
    return node->op == ZF_OP_shard && ZF_INT(node, shard, world) > 1;
}

/* The attributes are equal, apart from `piece`. */
static bool zfi_alike_but_piece(const zfi_record *record, const zf_attribute *a,
                                const zf_attribute *b)
{
    const char *fields = record->attributes;
    const int piece = zfi_attribute_index(record, "piece");
    zfi_field field;
    for (int k = 0; zfi_next_field(&fields, &field); k++) {
        const bool list = field.kind == 'l' || field.kind == 'v';
        if (k == piece) continue;
        if (list && (a[k].list.count != b[k].list.count ||
                     memcmp(a[k].list.data, b[k].list.data, (size_t)a[k].list.count * 8)))
            return false;
        if (!list && a[k].i != b[k].i) return false;
    }
    return true;
}

/* Checks that operands of the size of the updated value are its pieces at one place; and that the
 * update is that of the other pieces. */
static void zfi_check_pieces(zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    const zf_attribute *piece = zfi_attribute_of(g, node, "piece");
    const zfi_stand *p = &r->at[node->args[0]];
    const int64_t *place = piece && piece->list.count ? piece->list.data : NULL;
    const uint32_t written = zfi_written_args(g, node);
    const int32_t target = zfi_updated_leaf(g, node->args[written & 1 ? 0 : 2]);
    int32_t *first = &r->at[target].pieced;
    if (p->of ? !place || place[0] != p->at || place[1] != p->of : place != NULL) {
        zfi_verify_fail(g, id,
                        p->of ? "%%%d is a piece: piece must be [%lld,%lld]"
                              : "%%%d is no piece: piece must not be given",
                        (int)node->args[0], (long long)p->at, (long long)p->of);
        return;
    }
    if (!p->of) return;
    if (!*first) *first = id;
    if (g->nodes[*first].op != node->op || g->nodes[*first].arg_count != node->arg_count ||
        !zfi_alike_but_piece(g->records[node->op], g->nodes[*first].attributes, node->attributes))
        zfi_verify_fail(g, id, "pieces of %%%d are updated in two ways, here and by %s %%%d",
                        (int)target, g->records[g->nodes[*first].op]->name,
                        (int)g->nodes[*first].args[0]);
    for (int32_t k = 0; k < node->arg_count && !g->error.status; k++) {
        const int32_t arg = node->args[k], other = g->nodes[*first].args[k];
        const zfi_stand *x = &r->at[arg];
        const bool cut = k == 1 || k == zfi_master_arg(g, node) || (k < 31 && written >> k & 1);
        if (cut && (x->at != p->at || x->of != p->of))
            zfi_verify_fail(g, id, "%%%d is no piece of %lld elements from element %lld of %lld on",
                            (int)arg, (long long)zfi_node_count(&g->nodes[node->args[0]]),
                            (long long)p->at, (long long)p->of);
        else if (k == 1 && (x->sum || x->late)
                     ? x->sum != r->at[other].sum || x->late != r->at[other].late
                     : zfi_home_of(g, &g->nodes[arg]) != zfi_home_of(g, &g->nodes[other]))
            zfi_verify_fail(g, id, "%%%d and %%%d, for another piece, are not of one value",
                            (int)arg, (int)other);
    }
}

/* Checks that the operand that decides whether states change is equal on all ranks. */
static void zfi_check_moves(const zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_stand *x = &r->at[node->args[k]];
        if (x->bits & (ZFI_OTHER | ZFI_BATCH))
            zfi_verify_fail(g, id, "%%%d depends on %%%d, so states of ranks would differ",
                            (int)node->args[k], (int)x->cause);
    }
}

/* The update reads its gradient from states; then notes it, to check what they are set to. */
static bool zfi_reads_delayed(zfi_ranks *r, int32_t id, int32_t bucket, const zf_attribute *blocks)
{
    zf_graph *g = r->graph;
    const int32_t leaf = zfi_late_gradient(r, g->nodes[id].args[1]);
    int32_t *reader = &r->at[leaf].reader;
    const zf_attribute *its;
    if (!leaf) return false;
    if (!*reader) *reader = id;
    its = zfi_attribute_of(g, &g->nodes[*reader], "blocks");
    if (zfi_updated_leaf(g, g->nodes[*reader].args[0]) != bucket ||
        its->list.count != blocks->list.count ||
        memcmp(its->list.data, blocks->list.data, (size_t)its->list.count * sizeof(int64_t)))
        zfi_verify_fail(g, id, "%%%d has the gradients of other parameters, updated above",
                        (int)leaf);
    return true;
}

/* Checks that states are set to what the update that reads them may read; or, where none reads them
 * as its gradient, to a value equal on all ranks. */
static void zfi_check_delay(zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    const int32_t reader = r->at[node->args[0]].reader;
    r->at[node->args[0]].delayed = true;
    if (!node->update)
        zfi_verify_fail(g, id, "it sets states in the micro section, which may run again");
    zfi_check_cut(r, id, 1);
    if (reader)
        zfi_check_gradient(r, id, zfi_updated_leaf(g, g->nodes[reader].args[0]),
                           zfi_attribute_of(g, &g->nodes[reader], "blocks"));
    else zfi_check_moves(r, id);
}

static void zfi_check_update(zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    const zf_attribute *blocks = zfi_attribute_of(g, node, "blocks"),
                       *world = zfi_attribute_of(g, node, "world");
    int32_t bucket = zfi_updated_leaf(g, node->args[0]);
    bool shard = r->at[node->args[0]].bits & ZFI_SHARD;
    int64_t block;
    if (!node->update)
        zfi_verify_fail(g, id, "it updates in the micro section, which may run again");
    if (g->nodes[bucket].op == ZF_OP_bucket && (block = zfi_missing_block(g, bucket, blocks)) >= 0)
        zfi_verify_fail(g, id, "at block %lld of bucket %%%d is no parameter like that",
                        (long long)block, (int)bucket);
    if ((world->i > 1) != shard)
        zfi_verify_fail(g, id,
                        shard ? "%%%d is this rank's shard: world must be %d"
                              : "%%%d is whole: world must not be given",
                        (int)node->args[0], (int)zfi_shards_at(g, id));
    if (zfi_is_lazy(g, node)) zfi_check_lazy_rows(r, id);
    else if (!zfi_reads_delayed(r, id, bucket, blocks)) zfi_check_gradient(r, id, bucket, blocks);
    if (!zfi_is_lazy(g, node)) zfi_check_cut(r, id, 1);
    for (int32_t k = 2; k < node->arg_count; k++) zfi_check_same_rows(r, id, k, blocks);
    if (!g->error.status) zfi_check_pieces(r, id);
}

/* Checks that a state, operand k, takes a value of the same kind as the state: its own on each
 * rank, or the same. */
static void zfi_check_assign(zfi_ranks *r, int32_t id, int32_t k)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    const bool each = g->nodes[node->args[k]].op == ZF_OP_bucket &&
                      ZF_INT(&g->nodes[node->args[k]], bucket, each);
    const zfi_stand *x = &r->at[node->args[1]];
    if (!node->update && !zfi_is_held(&g->nodes[node->args[k]]))
        zfi_verify_fail(g, id, "it writes %%%d in the micro section, which may run again",
                        (int)node->args[k]);
    else if (!each && x->bits & (ZFI_OTHER | ZFI_BATCH))
        zfi_verify_fail(g, id, "%%%d depends on %%%d, so states of ranks would differ",
                        (int)node->args[1], (int)x->cause);
    zfi_check_cut(r, id, 1);
}

/* Checks that what is compressed, and the errors that remain, are both of this rank's whole value,
 * or both of its shard. Errors of quantised gradients change in each micro-batch. */
static void zfi_check_errors(zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    const zfi_node *errors = &g->nodes[node->args[1]];
    const bool each = errors->op == ZF_OP_bucket && ZF_INT(errors, bucket, each);
    if (!node->update && node->op == ZF_OP_sign_compress)
        zfi_verify_fail(g, id, "it writes %%%d in the micro section, which may run again",
                        (int)node->args[1]);
    else if (r->at[node->args[0]].bits & ZFI_OTHER && !each)
        zfi_verify_fail(g, id, "%%%d is this rank's alone, and the errors %%%d are not",
                        (int)node->args[0], (int)node->args[1]);
    zfi_check_cut(r, id, 1);
}

/* Checks that a state of variances is set by values that stand as it does, equal on all ranks. */
static void zfi_check_variances(zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    if (!g->nodes[id].update)
        zfi_verify_fail(g, id, "it writes %%%d in the micro section, which may run again",
                        (int)g->nodes[id].args[0]);
    zfi_check_moves(r, id);
    for (int32_t k = 1; k < 4; k++) zfi_check_cut(r, id, k);
}

/* The node has been written elsewhere, or a part of it: until that is in its place, neither it nor
 * what it is a part of may be read. */
static void zfi_tear(zfi_ranks *r, int32_t id, int32_t by)
{
    const zf_graph *g = r->graph;
    for (;; id = g->nodes[id].args[0]) {
        if (!r->at[id].torn) r->at[id].torn = by;
        if (!zfi_is_part(&g->nodes[id])) return;
    }
}

/* What was written to the node is in its place; a bucket of which this rank has updated its shard
 * must still be gathered. */
static void zfi_mend(zfi_ranks *r, int32_t id)
{
    const zf_graph *g = r->graph;
    for (;; id = g->nodes[id].args[0]) {
        const int32_t of = zfi_is_part(&g->nodes[id]) ? g->nodes[id].args[0] : 0;
        r->at[id].torn = 0;
        if (!of || (g->nodes[id].op == ZF_OP_shard && zfi_is_shard(g, id))) return;
        if (g->nodes[id].op != ZF_OP_piece) continue;
        r->at[of].back += zfi_node_count(&g->nodes[id]);
        if (r->at[of].back < zfi_node_count(&g->nodes[of])) return;
        r->at[of].back = 0;
    }
}

/* The node that is a copy: this one, or what it is a piece of; 0: neither is. */
static int32_t zfi_copy_at(const zf_graph *g, int32_t id)
{
    if (g->nodes[id].op == ZF_OP_piece) id = g->nodes[id].args[0];
    return g->nodes[id].op == ZF_OP_copy ? id : 0;
}

/* The node is a copy of `of`; or both are the same piece, of a copy and of its original. */
static bool zfi_is_copy_of(const zfi_ranks *r, int32_t id, int32_t of)
{
    const zfi_node *node = &r->graph->nodes[id], *original = &r->graph->nodes[of];
    if (node->op == ZF_OP_copy) return node->args[0] == of;
    return node->op == ZF_OP_piece && original->op == ZF_OP_piece &&
           zfi_copy_at(r->graph, id) && r->at[id].at == r->at[of].at &&
           r->graph->nodes[node->args[0]].args[0] == original->args[0];
}

/* Checks writes to copies, whose originals do not change before a copy back; and copies back. */
static void zfi_check_copies(zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    int32_t from;
    bool sum;
    for (int32_t k = 0; k < node->arg_count && k < 31; k++) {
        const int32_t x = node->args[k], copy = zfi_copy_at(g, x);
        if (!(zfi_written_args(g, node) >> k & 1) || (!copy && zfi_writes_into(g, id, k))) continue;
        if (copy && zfi_copies_into(&g->nodes[copy]))
            zfi_verify_fail(g, id, "it writes %%%d, which is %%%d, and not that", (int)copy,
                            (int)g->nodes[copy].args[1]);
        if (copy) {
            r->at[x].torn = id;
            r->at[copy].changed = true;
            zfi_tear(r, (int32_t)(zfi_copied(g, &g->nodes[copy]) - g->nodes), id);
        } else if (zfi_is_part(&g->nodes[x])) {
            zfi_tear(r, x, id);
            zfi_mend(r, x);
        }
    }
    if (!zfi_copies_into(node)) return;
    sum = zfi_accumulator_of(g, node->args[1]) != 0;
    from = node->args[0];
    /* onto a copy in this space, or one that has been copied there */
    if (sum && g->nodes[from].arg_count > 1 &&
        (zfi_is_sum(&g->nodes[from]) || g->nodes[from].op == ZF_OP_copy))
        from = g->nodes[from].args[1];
    if (!zfi_is_copy_of(r, from, node->args[1]))
        zfi_verify_fail(g, id,
                        sum ? "operand 0 must be a sum onto a copy of %%%d, which it brings back"
                            : "operand 0 must be a copy of %%%d, which it brings back",
                        (int)node->args[1]);
    else if (!node->update && !sum)
        zfi_verify_fail(g, id, "it writes %%%d in the micro section, which may run again",
                        (int)node->args[1]);
    r->at[from].torn = 0;
    r->at[zfi_bytes_of(g, node->args[1])].changed = true;
    if (g->nodes[node->args[1]].op != ZF_OP_copy) zfi_mend(r, node->args[1]);
}

/* Why operand `arg` must not be read: an update of a part of it, or of a copy, is not complete. */
static const char *zfi_torn_text(const zfi_ranks *r, int32_t arg)
{
    const zf_graph *g = r->graph;
    const int32_t written = g->nodes[r->at[arg].torn].args[0];
    if (zfi_has(g, arg, ZF_OP_LEAF) && zfi_is_shard(g, written))
        return "only this rank's shard of %%%d is updated: an all_gather into it must be above";
    if (r->at[written].of)
        return "pieces of %%%d are updated: all of them must be in their place above";
    return "a copy of %%%d is updated: a copy back must be above";
}

/* ------------------------------------------------------------------------------------ nodes */

/* Checks that the operands of the node have values on this rank. */
static void zfi_check_operands(const zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    for (int32_t k = 0; k < node->arg_count; k++) {
        int32_t arg = node->args[k];
        if (zfi_accumulator_of(g, arg) && node->op != ZF_OP_wait &&
            !(k == 1 && (zfi_is_sum(node) || node->op == ZF_OP_collect)) &&
            !(node->op == ZF_OP_copy && (k == 1) == zfi_copies_into(node)))
            zfi_verify_fail(g, id, "%%%d is an accumulator: its value is that of the sum onto it",
                            (int)arg);
        else if (node->below && r->at[zfi_bytes_of(g, arg)].changed)
            zfi_verify_fail(g, id, "%%%d has been updated above; it must read what that was before",
                            (int)arg);
        else if (r->at[arg].torn && !node->below && !zfi_is_part(node) &&
                 node->op != ZF_OP_gradient && !zfi_copy_at(g, arg) &&
                 !zfi_writes_into(g, id, k))
            zfi_verify_fail(g, id, zfi_torn_text(r, arg), (int)arg);
    }
}

/* Where the sum of the loss is divided afterwards, it is by the number of parts. */
static void zfi_check_divisor(zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *x = &g->nodes[g->nodes[id].args[0]];
    int64_t at;
    while (zfi_viewed(g, x, &at) >= 0) x = &g->nodes[x->args[0]];
    if (x->op != ZF_OP_scale || !(r->at[x - g->nodes].bits & ZFI_SUMMED)) return;
    r->mean = ZF_FLOAT(x, scale, by) == 1 / zfi_parts_of_batch(g);
    if (!r->mean)
        zfi_verify_fail(g, id, "%%%d is the sum over the global batch times %g, and its parts are "
                               "%.0f",
                        (int)(x - g->nodes), ZF_FLOAT(x, scale, by), zfi_parts_of_batch(g));
}

static void zfi_check_output(zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id], *x = &g->nodes[node->args[0]];
    uint8_t bits = r->at[node->args[0]].bits;
    if (bits & ZFI_SHARD)
        zfi_verify_fail(g, id, "%%%d is this rank's shard alone", (int)node->args[0]);
    if (node->update || !zfi_is_number(x) || ZF_INT(node, output, reduction) == ZF_REDUCTION_NONE ||
        zfi_has(g, node->args[0], ZF_OP_LEAF) || !r->at[node->args[0]].varies)
        return;
    if ((r->shares & ZFI_OTHER && !(bits & ZFI_RANKS)) ||
        (r->shares & ZFI_BATCH && !(bits & ZFI_BATCHES)) || bits & (ZFI_OTHER | ZFI_BATCH))
        zfi_verify_fail(g, id,
                        "%%%d is no sum over the global batch, of %d ranks and %lld "
                        "micro-batches",
                        (int)node->args[0], (int)g->world, (long long)g->micro_batches);
    else if (node->role == ZFI_ROLE_LOSS) zfi_check_divisor(r, id);
}

/* What the first micro-batch gathers or sends is that of all. */
static void zfi_check_once(const zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    const zfi_stand *x = &r->at[node->args[0]];
    if (node->update)
        zfi_verify_fail(g, id, "it is below update:, which runs once: once must not be given");
    else if (x->bits & ZFI_BATCH)
        zfi_verify_fail(g, id, "%%%d depends on %%%d, which is of one micro-batch: it is not the "
                               "same in all, so once must not be given",
                        (int)node->args[0], (int)x->cause);
}

static void zfi_check_rank_node(zfi_ranks *r, int32_t id)
{
    zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    zfi_check_operands(r, id);
    if (node->arg_count) zfi_check_along(r, id);
    if (zfi_runs_first(node)) zfi_check_once(r, id);
    if (node->op == ZF_OP_dequantize_sum) zfi_check_parts(r, id);
    if (zfi_has(g, id, ZF_OP_COLLECTIVE) || zfi_is_sum(node)) zfi_check_turn(r, id);
    if (zfi_is_sum(node)) zfi_check_sum(r, id);
    if (zfi_scatters_examples(node)) zfi_check_scattered(r, id);
    if (node->op == ZF_OP_all_gather && node->arg_count > 1) zfi_check_fill(r, id);
    if (zfi_has(g, id, ZF_OP_UPDATE)) zfi_check_update(r, id);
    if (node->op == ZF_OP_delay) zfi_check_delay(r, id);
    if (node->op == ZF_OP_assign || node->op == ZF_OP_local_sum) zfi_check_assign(r, id, 0);
    if (node->op == ZF_OP_local_sum) zfi_check_assign(r, id, 2);
    if (node->op == ZF_OP_sign_compress || node->op == ZF_OP_quantize_feedback)
        zfi_check_errors(r, id);
    if (node->op == ZF_OP_variance_ratio) zfi_check_variances(r, id);
    zfi_check_copies(r, id);
    if (node->op == ZF_OP_advance || node->op == ZF_OP_loss_scale_update) zfi_check_moves(r, id);
    if (node->op == ZF_OP_collect) zfi_check_collect(r, id);
    if (node->op == ZF_OP_gradient && node->arg_count > 2) zfi_check_lazy_rows(r, id);
    else if (node->op == ZF_OP_gradient) zfi_check_gradient(r, id, node->args[0], NULL);
    if (node->op == ZF_OP_output) zfi_check_output(r, id);
    if (zfi_has(g, id, ZF_OP_EFFECT)) return;
    r->at[id] = zfi_stand_of_node(r, id);
    r->at[id].varies =
        zfi_draws(g, id) || (zfi_has(g, id, ZF_OP_LEAF) && node->op != ZF_OP_constant);
    for (int32_t k = 0; k < node->arg_count; k++) r->at[id].varies |= r->at[node->args[k]].varies;
}

/* Checks a graph whose nodes have been verified. Linear in nodes and operands. */
static zf_status zfi_verify_ranks(zf_graph *g)
{
    size_t count = (size_t)zfi_len(g->nodes);
    zfi_ranks r = {.graph = g};
    for (int32_t i = 0; i < zfi_len(g->order) && !g->error.status; i++)
        zfi_check_world(&r, g->order[i]);
    if (g->error.status || !(g->stages & ZFI_STAGE_RANKS)) return g->error.status;
    if (!(r.at = zfi_calloc(&g->memory, count, sizeof *r.at))) return zfi_graph_nomem(g);
    r.shares = (uint8_t)((g->world > 1 ? ZFI_OTHER : 0) | (g->micro_batches > 1 ? ZFI_BATCH : 0));
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        r.local |= g->nodes[g->order[i]].op == ZF_OP_sign_compress ||
                   g->nodes[g->order[i]].op == ZF_OP_adam_drift,
            r.scaled |= g->nodes[g->order[i]].op == ZF_OP_loss_scale;
    for (int32_t i = 0; i < zfi_len(g->order) && !g->error.status; i++)
        zfi_check_rank_node(&r, g->order[i]);
    for (int32_t i = 0; i < zfi_len(g->order) && !g->error.status; i++)
        if (r.at[g->order[i]].reader && !r.at[g->order[i]].delayed)
            zfi_verify_fail(g, r.at[g->order[i]].reader,
                            "%%%d, its gradient, is a state that no delay sets",
                            (int)g->order[i]);
    for (int32_t i = 0; i < zfi_len(g->order) && !g->error.status; i++)
        if (r.at[g->order[i]].torn)
            zfi_verify_fail(
                g, r.at[g->order[i]].torn,
                g->nodes[g->order[i]].op == ZF_OP_copy ? "nothing copies %%%d back, which it writes"
                : zfi_is_shard(g, g->nodes[r.at[g->order[i]].torn].args[0])
                    ? "nothing gathers bucket %%%d, of which it updates this rank's shard"
                    : "it updates a copy of %%%d, and nothing copies it back",
                (int)g->order[i]);
    zfi_free(&g->memory, r.at, count * sizeof *r.at);
    return g->error.status;
}
