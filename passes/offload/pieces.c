/* offload, pieces: the update of a large bucket runs in pieces of a bounded size, so that only some
 * of its elements are in host memory at a time (offload.c).
 *
 *     cut        updates of more than piece_bytes that read or write copies of parameters or
 *                states, or read a gradient from a disk, or what such an update has computed (lamb)
 *     pieces     are of one size but for the last, of whole blocks of 1024 elements, and of whole
 *                blocks of the disk where they are that large
 *     norms      block norms of what a cut update reads or computes are computed by pieces too, and
 *                packed. They are sums within a block, so no bit changes
 *
 *     states     | piece 0 | piece 1 | piece 2 |          on the disk
 *                  read      read
 *                  update    |         read
 *                  write     update    |                  as far as zf_prefetch lets them overlap
 *
 * before:   %41 = copy %20 {to=host} : f32[9216000] host     ...
 *           adamw %41, %40, %42, %43, %3, %7 {... blocks=[0,9000]}
 *           copy %41, %20     ...
 * after:    %50 = piece %20 {size=3145728}     %51 = piece %20 {at=3145728 size=3145728}     ...
 *           %60 = copy %50 {to=host} : f32[3145728] host     ...
 *           adamw %60, %54, %61, %62, %3, %7 {... piece=[0,9216000] blocks=[0,9000]}
 *           copy %60, %50     ...
 */

enum {
    ZFI_PIECE_BYTES = 16 << 20,          /* default of piece_bytes where a disk is used */
    ZFI_PIECE_GRAIN = ZFI_DISK_BLOCK / 2 /* elements of 16 bits in a block of the disk */
};

/* Elements of the pieces of a value of `count` elements, but for the last. */
static int64_t zfi_piece_size(const zfi_offloading *o, int64_t count)
{
    const bool disk = o->d.optimizer == ZF_DISK || o->d.parameters == ZF_DISK ||
                      o->d.gradients == ZF_DISK;
    const size_t bytes = o->d.piece_bytes ? o->d.piece_bytes : disk ? ZFI_PIECE_BYTES : SIZE_MAX;
    const int64_t most = bytes / 4 < INT64_MAX / 2 ? (int64_t)(bytes / 4) : INT64_MAX / 2,
                  grain = most >= ZFI_PIECE_GRAIN ? ZFI_PIECE_GRAIN : ZFI_NORM_BLOCK,
                  largest = most < grain ? grain : most / grain * grain,
                  pieces = count > largest ? (count + largest - 1) / largest : 1,
                  even = (count + pieces - 1) / pieces;
    return (even + grain - 1) / grain * grain;
}

/* Operand k of an update has one element for each of the updated value. */
static bool zfi_by_elements(const zf_graph *g, const zfi_node *node, int32_t k)
{
    return k < 2 || k == zfi_master_arg(g, node) || (k < 31 && zfi_written_args(g, node) >> k & 1);
}

/* Finds results of updates that are read otherwise than by pieces. */
static void zfi_find_whole(zfi_offloading *o)
{
    const zf_graph *g = o->graph;
    int32_t update = 0; /* the last one */
    for (int32_t i = 0; i < zfi_len(o->order); i++) {
        const int32_t id = o->order[i];
        const zfi_node *node = &g->nodes[id];
        const bool updates = zfi_has(g, id, ZF_OP_UPDATE);
        for (int32_t k = 0; k < node->arg_count; k++)
            if (!(updates && k == 1) && !(node->op == ZF_OP_block_norms && node->args[k] == update))
                o->whole[node->args[k]] = true;
        if (updates) update = id;
    }
}

/* The update runs in pieces. */
static bool zfi_is_cut_up(const zfi_offloading *o, int32_t id)
{
    const zf_graph *g = o->graph;
    const zfi_node *node = &g->nodes[id];
    const zf_space space = zfi_space_of_update(o, id);
    const int64_t count = zfi_node_count(&g->nodes[node->args[0]]);
    if (!zfi_attribute_of(g, node, "piece") || count <= zfi_piece_size(o, count) || o->whole[id])
        return false;
    if (g->nodes[node->args[0]].op != ZF_OP_bucket && g->nodes[node->args[0]].op != ZF_OP_shard)
        return false;
    if (o->cut_as[node->args[1]] || zfi_stored_gradient(o, node->args[1])) return true;
    for (int32_t k = 0; k < node->arg_count; k++)
        if (k != 1 && zfi_by_elements(g, node, k) &&
            (zf_space)g->nodes[node->args[k]].space != space)
            return true;
    return false;
}

/* Appends the pieces of a value, unless they are there: `of` is it, or its copy that is cut. */
static void zfi_append_pieces(zfi_offloading *o, int32_t id, int32_t of)
{
    zf_graph *g = o->graph;
    const int64_t count = zfi_node_count(&g->nodes[of]), size = zfi_piece_size(o, count);
    if (o->cut_as[id]) return;
    o->cut_as[id] = zfi_len(o->pieces) + 1;
    for (int64_t at = 0; at < count && !g->error.status && !g->memory.failed; at += size)
        zfi_push(&g->memory, o->pieces,
                 zfi_append_nodes(g, piece,
                                  zfi_with({.i = at}, {.i = zfi_min(size, count - at)}), of));
}

static int32_t zfi_nth_piece(const zfi_offloading *o, int32_t id, int64_t n)
{
    return o->pieces[o->cut_as[id] - 1 + n];
}

/* An update that is cut, and block norms of what it reads or computes. */
typedef struct zfi_cut_update {
    int32_t id;
    zfi_node node; /* appending moves the nodes */
    zf_space space;
    int64_t count, size, pieces;
    int32_t args[ZFI_OPERANDS];    /* for the current piece: operands, */
    int32_t piece[ZFI_OPERANDS];   /* their pieces, */
    int32_t between[ZFI_OPERANDS]; /* and copies of these on the way */
    int32_t *norms;   /* growing array: nodes of block norms; each has its source in `sources`: */
    int32_t *sources; /* the number of an operand; -1: the result */
    int32_t *made;    /* growing array: block norms of pieces, one after the other for each piece */
} zfi_cut_update;

/* Finds block norms, up to the next update, that can be computed by pieces with it. */
static void zfi_find_norms(zfi_offloading *o, zfi_cut_update *c, int32_t position)
{
    zf_graph *g = o->graph;
    const uint32_t written = zfi_written_args(g, &c->node);
    for (int32_t i = position + 1; i < zfi_len(o->order) && !g->memory.failed; i++) {
        const zfi_node *node = &g->nodes[o->order[i]];
        if (zfi_has(g, o->order[i], ZF_OP_UPDATE)) return;
        if (node->op != ZF_OP_block_norms) continue;
        for (int32_t k = -1; k < c->node.arg_count; k++) {
            if (node->args[0] != (k < 0 ? c->id : c->node.args[k])) continue;
            if (k == 1 || (k >= 0 && (written >> k & 1 || !zfi_by_elements(g, &c->node, k)))) break;
            zfi_push(&g->memory, c->norms, o->order[i]);
            zfi_push(&g->memory, c->sources, k);
            break;
        }
    }
}

/* Sets the operands of piece n: pieces of values, copied to where the update is computed. */
static void zfi_bring_piece(zfi_offloading *o, zfi_cut_update *c, int64_t n)
{
    zf_graph *g = o->graph;
    for (int32_t k = 0; k < c->node.arg_count && !g->error.status; k++) {
        int32_t x;
        if (!zfi_by_elements(g, &c->node, k)) continue;
        x = c->piece[k] = zfi_nth_piece(o, c->node.args[k], n);
        if ((zf_space)g->nodes[x].space != c->space) {
            if ((zf_space)g->nodes[x].space != ZF_HOST && c->space != ZF_HOST)
                x = zfi_append_copy(g, x, ZF_HOST);
            c->between[k] = x;
            if (x) x = zfi_append_copy(g, x, c->space);
        }
        c->args[k] = x;
    }
}

/* Copies back what the update has written of a piece. */
static void zfi_return_piece(zfi_offloading *o, const zfi_cut_update *c)
{
    zf_graph *g = o->graph;
    const uint32_t written = zfi_written_args(g, &c->node);
    for (int32_t k = 0; k < c->node.arg_count && !g->error.status; k++) {
        int32_t from = c->args[k];
        const zf_space home = (zf_space)g->nodes[c->piece[k]].space;
        if (!(written >> k & 1) || from == c->piece[k]) continue;
        if (c->between[k] != c->piece[k]) {
            zfi_append_nodes(g, copy, zfi_with({.i = ZF_HOST}), from, c->between[k]);
            from = c->between[k];
        }
        zfi_append_nodes(g, copy, zfi_with({.i = home}), from, c->piece[k]);
    }
}

static void zfi_update_piece(zfi_offloading *o, zfi_cut_update *c, int64_t n)
{
    zf_graph *g = o->graph;
    const int64_t place[2] = {n * c->size, c->count};
    zf_attribute attributes[ZF_MAX_ATTRIBUTES];
    int32_t made;
    memcpy(attributes, c->node.attributes, sizeof attributes);
    *zfi_attribute_in(g->records[c->node.op], attributes, "piece") =
        (zf_attribute)zfi_listed(place, 2);
    zfi_bring_piece(o, c, n);
    made = zfi_append_op(g, c->node.op, c->args, c->node.arg_count, attributes);
    if (!(g->records[c->node.op]->traits & ZF_OP_EFFECT) && !g->error.status)
        zfi_push(&g->memory, o->pieces, made);
    for (int32_t m = 0; m < zfi_len(c->norms) && !g->error.status && !g->memory.failed; m++)
        zfi_push(&g->memory, c->made,
                 zfi_append_nodes(g, block_norms, NULL,
                                  c->sources[m] < 0 ? made : c->args[c->sources[m]]));
    zfi_return_piece(o, c);
}

/* In place of each node of block norms: a pack of those of the pieces. */
static void zfi_pack_norms(zfi_offloading *o, const zfi_cut_update *c)
{
    zf_graph *g = o->graph;
    const int32_t norms = zfi_len(c->norms), pieces = (int32_t)c->pieces;
    int32_t *args = zfi_calloc(&g->memory, (size_t)pieces, sizeof *args);
    int64_t *at = zfi_calloc(&g->memory, (size_t)pieces, sizeof *at);
    for (int32_t m = 0; m < norms && args && at && !g->error.status && !g->memory.failed; m++) {
        for (int32_t n = 0; n < pieces; n++) {
            args[n] = c->made[n * norms + m];
            at[n] = n * (c->size / ZFI_NORM_BLOCK);
        }
        zfi_append(g, &(zfi_new){.op = ZF_OP_pack,
                                 .args = args,
                                 .arg_count = pieces,
                                 .attributes = {zfi_listed(at, pieces),
                                                {.i = zfi_whole_blocks(c->count)}},
                                 .id = c->norms[m]});
        o->taken[c->norms[m]] = true;
    }
    zfi_free(&g->memory, args, (size_t)pieces * sizeof *args);
    zfi_free(&g->memory, at, (size_t)pieces * sizeof *at);
}

/* What is cut of operand k, which is %x. */
static int32_t zfi_cut_operand(zfi_offloading *o, int32_t x, int32_t k, zf_space space)
{
    const int32_t stored = zfi_stored_gradient(o, x);
    return stored ? stored : k == 1 ? zfi_operand_in(o, x, space) : x;
}

/* Puts the update at `position`, which is cut, in pieces. */
static void zfi_offload_cut(zfi_offloading *o, int32_t position)
{
    zf_graph *g = o->graph;
    const int32_t id = o->order[position];
    zfi_cut_update c = {.id = id, .node = g->nodes[id], .space = zfi_space_of_update(o, id)};
    const uint32_t written = zfi_written_args(g, &c.node);
    c.count = zfi_node_count(&g->nodes[c.node.args[0]]);
    c.size = zfi_piece_size(o, c.count);
    c.pieces = (c.count + c.size - 1) / c.size;
    if (c.pieces > ZFI_MOST_PIECES) {
        zfi_fail(&g->error, ZF_ERR_LIMIT,
                 "zf_offload: the update of %lld elements would run in %lld pieces, and %d are "
                 "allowed; piece_bytes is %zu",
                 (long long)c.count, (long long)c.pieces, (int)ZFI_MOST_PIECES, o->d.piece_bytes);
        return;
    }
    g->scope = c.node.scope;
    zfi_find_norms(o, &c, position);
    for (int32_t k = 0; k < c.node.arg_count && !g->error.status && !g->memory.failed; k++) {
        const int32_t x = c.node.args[k];
        if (!zfi_by_elements(g, &c.node, k)) c.args[k] = zfi_operand_in(o, x, c.space);
        else if (!o->cut_as[x]) zfi_append_pieces(o, x, zfi_cut_operand(o, x, k, c.space));
    }
    o->cut_as[id] = zfi_len(o->pieces) + 1; /* of its result, if it has one */
    for (int64_t n = 0; n < c.pieces && !g->error.status && !g->memory.failed; n++)
        zfi_update_piece(o, &c, n);
    zfi_pack_norms(o, &c);
    for (int32_t k = 0; k < c.node.arg_count; k++)
        if (written >> k & 1) o->version[zfi_bytes_of(g, c.node.args[k])]++;
    zfi_replace(g, id, 0);
    zfi_array_free(&g->memory, c.norms);
    zfi_array_free(&g->memory, c.sources);
    zfi_array_free(&g->memory, c.made);
}
