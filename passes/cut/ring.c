/* ring: keys and values of ranks along context pass by, each piece in turn (Liu et al. 2023).
 *
 * before:   %5 = attention %1, %2, %3 {heads=4 scale=0.5} : f32[2,8@context,16]
 * after:    %6 = bcast %2 {world=2 over=context} : f32[2,8,16]               %7 of %3: of rank 0
 *           %10 = bcast %2 {world=2 over=context root=1} : f32[2,8,16]       %11 of %3: of rank 1
 *           %8 = attention %1, %6, %7 {heads=4 scale=0.5 of=16 keys=16} : f32[2,8@context,16]
 *           %9 = saved %8 {index=0} : f32[2,4,8@context]
 *           %12 = attention %1, %10, %11 {heads=4 scale=0.5 of=16 key=8 keys=16} : ...
 *           %13 = saved %12 {index=0} : f32[2,4,8@context]
 *           %14 = attention_join %8, %9, %12, %13 {heads=4} : f32[2,8@context,16]
 *
 * Pieces come in ascending order on each rank, section by section, so the bits are those of any
 * number of ranks with as many sections. A rank has keys and values of two ranks at a time: those
 * that it computes with, and the next ones, which come meanwhile (zf_prefetch). Backward, dQ is the
 * sum over pieces in this order, and dK and dV of a piece go to its rank by a `reduce`, a balanced
 * tree over sections of queries. */

typedef struct zfi_key_ring {
    zfi_dealing *c;
    int32_t id, kv; /* the node, and the number of its operand k */
    int32_t own;    /* sections of a rank */
    int32_t pieces; /* of its queries, in which gradients are summed */
    int32_t *args;  /* [pieces][operands]: without k and v */
    int64_t size;   /* tokens of a section */
} zfi_key_ring;

/* The node is attention, or its gradient, of queries that are cut, to keys and values that are: on
 * any number of ranks. With a window that some of the sections have, they are gathered of few
 * ranks. */
static bool zfi_goes_by_ring(const zfi_dealing *c, int32_t id)
{
    const zfi_node *node = &c->graph->nodes[id];
    const int32_t kv = zfi_keys_at(node);
    bool goes = c->d.kind == ZF_CONTEXT_RING && c->at[id].first >= 0 && kv > 0 &&
                !zfi_nearby_of(c, id, c->d.sections).before;
    for (int32_t k = kv; k < kv + 2 && goes; k++) {
        const zfi_tokens *x = &c->at[node->args[k]];
        goes = x->dim == 1 && x->cut == 1 && x->shape.dims[1] == c->sequence;
    }
    return goes;
}

/* The operands of the node on section i of its queries. */
static void zfi_key_ring_args(zfi_key_ring *r, int32_t i)
{
    zfi_dealing *c = r->c;
    const zf_graph *g = c->graph;
    for (int32_t k = 0; k < g->nodes[r->id].arg_count; k++) {
        const int32_t of = g->nodes[r->id].args[k];
        const int8_t want = c->wants[c->at[r->id].wants + k];
        int32_t x;
        if (k == r->kv || k == r->kv + 1) continue;
        x = zfi_deal(c, of, want);
        if (want >= 0 && r->pieces > 1) x = zfi_section(c, x, of, want, i, r->pieces);
        r->args[i * g->nodes[r->id].arg_count + k] = x;
    }
}

/* Of a bias, what is added to scores of keys from `key` on. */
static int32_t zfi_key_ring_bias(const zfi_key_ring *r, int32_t x, int64_t key)
{
    zf_graph *g = r->c->graph;
    const zf_shape *shape = &g->nodes[x].shape;
    if (!shape->rank || zfi_last(shape) != r->c->sequence || zfi_last(shape) == 1) return x;
    return zfi_append_nodes(
        g, slice, zfi_with({.i = shape->rank - 1}, {.i = key}, {.i = key + r->size}), x);
}

/* The node on section i of its queries and section j of the keys. */
static int32_t zfi_key_ring_append(zfi_key_ring *r, int32_t i, int32_t j, const int32_t kv[2])
{
    zf_graph *g = r->c->graph;
    const zfi_node old = g->nodes[r->id];
    int64_t dims[ZF_MAX_RANK];
    int32_t args[ZFI_CUT_RESULT];
    zfi_new n = {.op = old.op, .args = args, .arg_count = old.arg_count};
    const zf_attribute *documents = &old.attributes[ZF_AT_attention_documents];
    memcpy(args, r->args + i * old.arg_count, (size_t)old.arg_count * sizeof *args);
    args[r->kv] = kv[0], args[r->kv + 1] = kv[1];
    if (old.arg_count - (documents->i != 0) == r->kv + 3)
        args[r->kv + 2] = zfi_key_ring_bias(r, args[r->kv + 2], j * r->size);
    memcpy(n.attributes, old.attributes, sizeof n.attributes);
    zfi_context_attributes(r->c, r->id, i, r->pieces, &n, dims);
    n.attributes[ZF_AT_attention_key].i = j * r->size;
    n.attributes[ZF_AT_attention_keys].i = r->c->sequence;
    return g->error.status || g->memory.failed ? 0 : zfi_append(g, &n);
}

/* Keys (k 0) or values of a rank, on all ranks. */
static int32_t zfi_key_ring_piece(const zfi_key_ring *r, int32_t k, int32_t rank)
{
    zf_graph *g = r->c->graph;
    const int32_t x = zfi_deal(r->c, g->nodes[r->id].args[r->kv + k], 1);
    g->nodes[x].dealt = true;
    if (r->c->d.parts == 1) return x;
    return zfi_append_nodes(g, bcast,
                            zfi_with({.i = r->c->d.parts}, {.i = r->c->over}, {.i = rank}), x);
}

/* Section t of a rank's keys or values. */
static int32_t zfi_key_ring_section(const zfi_key_ring *r, int32_t x, int32_t t)
{
    if (r->own == 1) return x;
    return zfi_append_nodes(r->c->graph, slice,
                            zfi_with({.i = 1}, {.i = t * r->size}, {.i = (t + 1) * r->size}), x);
}

/* The gradient of a rank's keys or values, from those of its sections: on that rank, and -0 on
 * others. */
static int32_t zfi_key_ring_reduce(const zfi_key_ring *r, const int32_t *sections, int32_t rank)
{
    zf_graph *g = r->c->graph;
    int32_t x = sections[0];
    if (r->own > 1) x = zfi_append_op(g, ZF_OP_concat, sections, r->own, zfi_with({.i = 1}));
    if (r->c->d.parts == 1) return x;
    return zfi_append_nodes(g, reduce,
                            zfi_with({.i = r->c->d.parts}, {.i = r->c->over}, {.i = 1}, {.i = rank},
                                     {.i = 1}),
                            x);
}

/* Adds attention to section j to that of the sections before: y, of which %lse is saved if there
 * are more. */
static void zfi_key_ring_join(zfi_key_ring *r, int32_t j, const int32_t kv[2], int32_t *y,
                              int32_t *lse)
{
    zf_graph *g = r->c->graph;
    const zf_attribute heads = {.i = ZF_INT(&g->nodes[r->id], attention, heads)};
    const int32_t made = zfi_key_ring_append(r, 0, j, kv);
    if (!made) return;
    if (j) {
        const int32_t own = zfi_saved((zf_tensor){g, made}, 0).id;
        *y = zfi_append_nodes(g, attention_join, zfi_with(heads), *y, *lse, made, own);
    } else *y = made;
    if (*y && j + 1 < r->c->d.sections) *lse = zfi_saved((zf_tensor){g, *y}, 0).id;
}

/* Adds the gradients of section j of the keys to dq[piece], and sets those of k and v. */
static void zfi_key_ring_back(zfi_key_ring *r, int32_t j, const int32_t kv[2], int32_t *dq,
                          int32_t *addends, int32_t dkv[2])
{
    zf_graph *g = r->c->graph;
    for (int32_t i = 0; i < r->pieces; i++) {
        const int32_t made = zfi_key_ring_append(r, i, j, kv);
        if (!made) return;
        dq[i] = j ? zfi_append_nodes(g, add, NULL, dq[i], made) : made;
        for (int32_t k = 0; k < 2; k++)
            addends[k * r->pieces + i] = zfi_saved((zf_tensor){g, made}, k).id;
    }
    for (int32_t k = 0; k < 2; k++) dkv[k] = zfi_add_by_tree(g, addends + k * r->pieces, r->pieces);
}

/* Of all sections of a rank's keys and values, %kv. `room`: of 4 values for each section. */
static void zfi_key_ring_turn(zfi_key_ring *r, int32_t rank, const int32_t kv[2], int32_t *y,
                              int32_t *lse, int32_t *room)
{
    zf_graph *g = r->c->graph;
    int32_t *gradients = room + 2 * r->pieces;
    for (int32_t t = 0; t < r->own && !g->error.status && !g->memory.failed; t++) {
        const int32_t j = rank * r->own + t, k = zfi_key_ring_section(r, kv[0], t),
                      v = zfi_key_ring_section(r, kv[1], t), of[2] = {k, v};
        int32_t dkv[2] = {0, 0};
        if (r->kv == 1) zfi_key_ring_join(r, j, of, y, lse);
        else zfi_key_ring_back(r, j, of, y, room, dkv);
        gradients[t] = dkv[0], gradients[r->own + t] = dkv[1];
    }
}

/* Adds the gradients of k and v of a rank, which the others have as -0, to those in `left`. */
static void zfi_key_ring_leave(zf_graph *g, const int32_t sums[2], int32_t left[2])
{
    for (int32_t k = 0; k < 2 && sums[k] && !g->error.status && !g->memory.failed; k++)
        left[k] = left[k] ? zfi_append_nodes(g, add, NULL, left[k], sums[k]) : sums[k];
}

/* All pieces in turn: y is attention, or dQ of each section of queries, of which the gradients of k
 * and v are in `left`. The next piece comes, and the sums of the one before are made, while one is
 * computed with. */
static void zfi_key_ring_run(zfi_key_ring *r, int32_t *y, int32_t left[2], int32_t *room)
{
    zf_graph *g = r->c->graph;
    int32_t lse = 0, sums[2] = {0, 0}, next[2], of[2];
    next[0] = zfi_key_ring_piece(r, 0, 0), next[1] = zfi_key_ring_piece(r, 1, 0);
    for (int32_t rank = 0; rank < r->c->d.parts && !g->error.status && !g->memory.failed; rank++) {
        memcpy(of, next, sizeof of);
        for (int32_t k = 0; k < 2 && rank + 1 < r->c->d.parts; k++)
            next[k] = zfi_key_ring_piece(r, k, rank + 1);
        zfi_key_ring_turn(r, rank, of, y, &lse, room);
        zfi_key_ring_leave(g, sums, left);
        for (int32_t k = 0; k < 2 && r->kv > 1 && !g->error.status && !g->memory.failed; k++)
            sums[k] = zfi_key_ring_reduce(r, room + 2 * r->pieces + k * r->own, rank);
    }
    zfi_key_ring_leave(g, sums, left);
}

/* Puts attention, or its gradient, to the pieces of all ranks in turn. */
static void zfi_key_ring_cut(zfi_dealing *c, int32_t id)
{
    zf_graph *g = c->graph;
    const zfi_node old = g->nodes[id];
    const bool back = old.op == ZF_OP_attention_backward;
    zfi_key_ring r = {.c = c, .id = id, .kv = zfi_keys_at(&old), .own = c->d.sections / c->d.parts};
    const size_t args = (size_t)old.arg_count * (size_t)r.own, room = 5 * (size_t)r.own;
    int32_t left[2] = {0, 0}, *y;
    r.pieces = back ? r.own : 1, r.size = c->sequence / c->d.sections;
    r.args = zfi_calloc(&g->memory, args + room, sizeof *r.args), y = r.args ? r.args + args : NULL;
    if (!y) return;
    for (int32_t i = 0; i < r.pieces; i++) zfi_key_ring_args(&r, i);
    zfi_key_ring_run(&r, y, left, y + r.own);
    c->at[id].pieces = r.pieces, c->at[id].piece = (int32_t)zfi_len(c->pieces);
    for (int32_t i = 0; i < r.pieces; i++) {
        zfi_push(&g->memory, c->pieces, y[i]);
        y[i] = zfi_parallel_cast(g, y[i], old.dtype);
    }
    zfi_context_join(c, id, y, r.pieces, old.dtype);
    if (c->at[id].id) zfi_replace(g, id, c->at[id].id);
    for (int32_t k = 0; k < 2 && back; k++)
        if (old.saved[k] && left[k])
            c->at[old.saved[k]].id = left[k], zfi_replace(g, old.saved[k], left[k]);
    zfi_free(&g->memory, r.args, (args + room) * sizeof *r.args);
}
