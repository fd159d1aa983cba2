/* tile: a linear layer whose weight exceeds a limit becomes several, over ranges of its output
 * features, each with its rows of the weight; a lookup in such a table becomes a sum of lookups,
 * and a product of the rows of experts a sum of those over ranges of experts.
 * ("Memory-centric tiling" of ZeRO-Infinity, Rajbhandari et al. 2021, section 5.1.3.)
 *
 * requires: no gradients yet
 * ensures:  a param of more bytes than the limit that only products, as a weight [n,k] or as
 *           weights of experts, and lookups read is replaced by params of ranges of its rows, or
 *           experts; each has a bucket of its own (buckets.c), so that zero and offload bring one
 *           at a time
 * before:   %2 = param "w" : f32[64,32]   %3 = param "b" : f32[64]
 *           %4 = linear %1, %2, %3 {activation=gelu} : f32[8,64]
 * after:    %5 = param "w[0:32]" {rows=64} : f32[32,32]
 *           %6 = param "w[32:64]" {row=32 rows=64} : f32[32,32]   %3 = param "b" : f32[64]
 *           %7 = slice %3 {stop=32}             %8 = linear %1, %5, %7 {activation=gelu}
 *           %9 = slice %3 {start=32 stop=64}    %10 = linear %1, %6, %9 {activation=gelu}
 *           %11 = concat %8, %10 {axis=1} : f32[8,64]
 *
 *           %3 = gather_rows %2, %1 : f32[8,32]      of %2 as above
 *           %7 = gather_rows %5, %1 {of=64}          %8 = gather_rows %6, %1 {first=32 of=64}
 *           %9 = add %7, %8 : f32[8,32]
 *
 *           %5 = grouped_linear %3, %2, %4 : f32[12,8]     of %2 [4,8,16], cut into two pieces
 *           %8 = slice %4 {stop=2}      %9 = grouped_linear %3, %6, %8
 *           %10 = slice %4 {start=2 stop=4}     %11 = grouped_linear %3, %7, %10
 *           %12 = add %9, %11 : f32[12,8]
 *
 * A table that is also the weight of the output layer is cut once for both. Then zf_autograd
 * computes a piece's gradient as a weight where it computes that as a table, at the end of the
 * backward pass, so that one piece is there at a time. What it keeps until then is the gradient of
 * the logits. zf_fuse must have left the lookup and the loss as they were
 * (zf_fuse_desc.tile_bytes).
 *
 * The weight may also be a concat of params (the rewrite qkv of zf_fuse); the ranges are then those
 * of each param. A bias is small, and stays whole; of a concat of biases, each product takes its
 * part.
 *
 * Bits, on the CPU, with y = x w^T + b over k inputs and n features, and M rows of x:
 *
 *     y, u      equal: an element is a sum over k, whose order depends on k alone (cpu/matmul.c)
 *     dw        equal: an element is a sum over the M rows, for the same reason
 *     db        equal: a column sum of du; what the other pieces add to it is 0
 *     dx        rounding: a sum over n becomes sums over the n of each piece, the last piece first,
 *               which are added in the dtype of x. In f32 both are sums of n terms in some order:
 *               each is within (n - 1) 2^-24 sum over n of |du w| of the exact one. In 16 bits dx is
 *               rounded once for each piece, not once
 *     lookups   equal; the table's gradient equal
 *     experts   equal: a row has one expert, and the other pieces add 0 to its product
 *     norms     equal: pieces begin at multiples of 1024 elements, so blocks are the same, and they
 *               are added in the same order
 *
 * On CUDA the algorithm of a product may depend on n, and its bits with it. */

typedef struct zfi_tiler {
    zf_graph *graph;
    int64_t limit;     /* bytes */
    int32_t *order;    /* the order before; by node: */
    bool *stays;       /* something but a product reads it */
    int32_t *pieces;   /* a param that is cut: how many pieces it has, */
    int32_t *first;    /* and the first of them; the ids of the others follow */
} zfi_tiler;

/* The node is a concat of rows of params. */
static bool zfi_is_joined_leaf(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    if (node->op != ZF_OP_concat || ZF_INT(node, concat, axis) != 0) return false;
    for (int32_t k = 0; k < node->arg_count; k++)
        if (g->nodes[node->args[k]].op != ZF_OP_param) return false;
    return true;
}

/* The bias is no concat, or one whose parts belong to the parts of the weight. */
static bool zfi_fits_bias(const zf_graph *g, int32_t weight, int32_t bias)
{
    const zfi_node *w = &g->nodes[weight], *b = &g->nodes[bias];
    if (!zfi_is_joined_leaf(g, bias)) return true;
    if (!zfi_is_joined_leaf(g, weight) || w->arg_count != b->arg_count) return false;
    for (int32_t k = 0; k < w->arg_count; k++)
        if (g->nodes[w->args[k]].shape.dims[0] != g->nodes[b->args[k]].shape.dims[0]) return false;
    return true;
}

/* Operand 1 of the node is a weight [n,k], and operand 0 has rows of k. */
static bool zfi_takes_weight(const zf_graph *g, const zfi_node *node)
{
    return zfi_weight_kind(node) == ZFI_WEIGHT_OUT_IN && node->op != ZF_OP_quantized_linear &&
           node->arg_count < 4 &&
           g->nodes[node->args[1]].shape.rank == 2 && g->nodes[node->args[0]].shape.rank > 0 &&
           (node->arg_count < 3 || zfi_fits_bias(g, node->args[1], node->args[2]));
}

/* The node looks up rows of a table [n,k]. */
static bool zfi_looks_up(const zf_graph *g, const zfi_node *node)
{
    return node->op == ZF_OP_gather_rows && !ZF_INT(node, gather_rows, of) &&
           g->nodes[node->args[0]].shape.rank == 2;
}

/* The node is a product of rows with the weights [experts,...] of operand 1, by bounds. */
static bool zfi_takes_experts(const zf_graph *g, const zfi_node *node)
{
    return g->records[node->op]->by_expert == 1 && node->arg_count == 3 &&
           g->nodes[node->args[1]].shape.rank == 3 &&
           zfi_is_float(g->nodes[node->args[1]].dtype);
}

/* Finds what products alone read, as weights, and lookups; readers stand below. */
static void zfi_find_weights(zfi_tiler *t)
{
    const zf_graph *g = t->graph;
    for (int32_t i = zfi_len(t->order); zfi_down(i);) {
        const zfi_node *node = &g->nodes[t->order[i]];
        const bool weight = zfi_takes_weight(g, node) || zfi_takes_experts(g, node);
        const bool joins = zfi_is_joined_leaf(g, t->order[i]) && !t->stays[t->order[i]];
        for (int32_t k = 0; k < node->arg_count; k++)
            if (!joins && !(weight && k == 1) && !(k == 0 && zfi_looks_up(g, node)))
                t->stays[node->args[k]] = true;
        for (int k = 0; k < ZF_MAX_SAVED && weight; k++)
            if (node->saved[k]) t->stays[node->args[1]] = true;
    }
}

static int64_t zfi_common_divisor(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

/* The rows of each piece of the param but the last, which may have fewer; 0: it stays whole. */
static int64_t zfi_piece_rows(const zfi_tiler *t, int32_t id)
{
    const zfi_node *w = &t->graph->nodes[id];
    int64_t n, row, unit, most;
    if (w->op != ZF_OP_param || t->stays[id] || w->shape.rank < 2 || w->shape.rank > 3 ||
        zfi_cut_rows_of(w).rows || (int64_t)zfi_node_bytes(w) <= t->limit)
        return 0;
    n = w->shape.dims[0], row = zfi_span(&w->shape, 1, w->shape.rank);
    unit = ZFI_NORM_BLOCK / zfi_common_divisor(ZFI_NORM_BLOCK, row);
    most = t->limit / (row * (int64_t)zf_dtype_size(w->dtype)) / unit * unit;
    if (most < unit) most = unit;
    if (most >= n) return 0;
    return (zfi_div_up(n, zfi_div_up(n, most)) + unit - 1) / unit * unit; /* of nearly one size */
}

enum { ZFI_MOST_PIECES = 1 << 16 }; /* of a param, or of an update (offload/pieces.c) */

/* Appends rows [row, row + count) of a param as one of their own; 0 with the graph's error. */
static int32_t zfi_append_rows(zf_graph *g, int32_t id, int64_t row, int64_t count)
{
    const zfi_node whole = g->nodes[id]; /* appending moves the nodes */
    char name[ZFI_PIECE_NAME];
    zfi_new n = {.op = ZF_OP_param,
                 .name = zfi_piece_name(name, whole.name, row, count),
                 .dtype = whole.dtype,
                 .shape = whole.shape,
                 .space = (zf_space)whole.space,
                 .role = (zfi_role)whole.role};
    n.shape.dims[0] = count;
    memcpy(n.attributes, whole.attributes, sizeof n.attributes);
    ZF_INT(&n, param, row) = row, ZF_INT(&n, param, rows) = whole.shape.dims[0];
    return zfi_append(g, &n);
}

/* Puts the pieces of a param in its place. */
static void zfi_cut_param(zfi_tiler *t, int32_t id, int64_t each)
{
    zf_graph *g = t->graph;
    const zfi_node whole = g->nodes[id];
    const int64_t rows = whole.shape.dims[0], pieces = zfi_div_up(rows, each);
    if (pieces > ZFI_MOST_PIECES)
        zfi_fail(
            &g->error, ZF_ERR_LIMIT,
            "zf_tile: \"%s\" would be %lld pieces of %lld rows each, and %d are allowed; bytes, "
            "the maximum of a piece, is %lld",
            whole.name, (long long)pieces, (long long)each, (int)ZFI_MOST_PIECES,
            (long long)t->limit);
    for (int64_t row = 0; row < rows && !g->error.status; row += each) {
        const int32_t piece = zfi_append_rows(g, id, row, zfi_min(each, rows - row));
        if (!t->pieces[id]++) t->first[id] = piece;
    }
}

/* Appends the product with rows of a param, and with elements of the bias, if it is not 0, from
 * `at` on; 0 with the graph's error. */
static int32_t zfi_tile_product(zf_graph *g, int32_t id, int32_t weight, int32_t bias, int64_t at)
{
    const zfi_node node = g->nodes[id]; /* appending moves the nodes */
    const int64_t count = g->nodes[weight].shape.dims[0];
    int32_t args[3] = {node.args[0], weight, bias};
    if (bias && g->nodes[bias].shape.dims[0] != count)
        args[2] =
            zfi_append_nodes(g, slice, zfi_with({.i = 0}, {.i = at}, {.i = at + count}), bias);
    return zfi_append_op(g, node.op, args, node.arg_count, node.attributes);
}

/* The params of a weight; *count of them, at least 1. */
static const int32_t *zfi_weight_params(const zf_graph *g, const int32_t *weight, int32_t *count)
{
    const zfi_node *node = &g->nodes[*weight];
    const bool joined = node->op == ZF_OP_concat;
    *count = joined ? node->arg_count : 1;
    return joined ? node->args : weight;
}

/* A part of the weight is cut. */
static bool zfi_is_cut_weight(const zfi_tiler *t, int32_t weight)
{
    int32_t count;
    const int32_t *params = zfi_weight_params(t->graph, &weight, &count);
    for (int32_t k = 0; k < count; k++)
        if (t->pieces[params[k]]) return true;
    return false;
}

/* The concat of the products with all pieces of the node's weight; 0 with the graph's error. */
static int32_t zfi_tile_node(zfi_tiler *t, int32_t id)
{
    zf_graph *g = t->graph;
    const int32_t weight = g->nodes[id].args[1], axis = g->nodes[id].shape.rank - 1;
    int32_t *all = NULL, joined = 0, count;
    const int32_t *params = zfi_weight_params(g, &weight, &count);
    const int32_t bias = g->nodes[id].arg_count > 2 ? g->nodes[id].args[2] : 0;
    const bool joined_bias = bias && zfi_is_joined_leaf(g, bias);
    int64_t at = 0;
    for (int32_t k = 0; k < count; k++) {
        const int32_t pieces = t->pieces[params[k]];
        const int32_t its_bias = joined_bias ? g->nodes[bias].args[k] : bias;
        if (joined_bias) at = 0;
        for (int32_t n = 0; n < (pieces ? pieces : 1) && !g->error.status; n++) {
            const int32_t part = pieces ? t->first[params[k]] + n : params[k];
            const int32_t made = zfi_tile_product(g, id, part, its_bias, at);
            at += g->nodes[part].shape.dims[0];
            if (made) zfi_push(&g->memory, all, made);
        }
    }
    if (!g->memory.failed && !g->error.status)
        joined = zfi_append_op(g, ZF_OP_concat, all, zfi_len(all), zfi_with({.i = axis}));
    zfi_array_free(&g->memory, all);
    return joined;
}

/* The sum of lookups in all pieces of the node's table; 0 with the graph's error. */
static int32_t zfi_tile_lookup(zfi_tiler *t, int32_t id)
{
    zf_graph *g = t->graph;
    const zfi_node node = g->nodes[id]; /* appending moves the nodes */
    const int64_t of = g->nodes[node.args[0]].shape.dims[0];
    int64_t first = 0;
    int32_t sum = 0;
    for (int32_t n = 0; n < t->pieces[node.args[0]] && !g->error.status; n++) {
        const int32_t part = t->first[node.args[0]] + n;
        const int64_t rows = g->nodes[part].shape.dims[0];
        const int32_t found =
            zfi_append_nodes(g, gather_rows,
                             zfi_with(ZF_ATTRIBUTE(&node, gather_rows, padded),
                                      ZF_ATTRIBUTE(&node, gather_rows, padding), {.i = first},
                                      {.i = of}),
                             part, node.args[1]);
        sum = sum && found ? zfi_append_nodes(g, add, NULL, sum, found) : found;
        first += rows;
    }
    return sum;
}

/* The sum of the products with all pieces of the node's weights of experts; 0 with the graph's
 * error. */
static int32_t zfi_tile_experts(zfi_tiler *t, int32_t id)
{
    zf_graph *g = t->graph;
    const zfi_node node = g->nodes[id]; /* appending moves the nodes */
    int64_t first = 0;
    int32_t sum = 0;
    for (int32_t n = 0; n < t->pieces[node.args[1]] && !g->error.status; n++) {
        const int32_t part = t->first[node.args[1]] + n;
        const int64_t end = first + g->nodes[part].shape.dims[0];
        const int32_t args[3] = {
            node.args[0], part,
            zfi_append_nodes(g, slice, zfi_with({.i = 0}, {.i = first}, {.i = end}), node.args[2])};
        const int32_t made = args[2] ? zfi_append_op(g, node.op, args, 3, node.attributes) : 0;
        sum = sum && made ? zfi_append_nodes(g, add, NULL, sum, made) : made;
        first = end;
    }
    return sum;
}

/* Puts the nodes into the new order. */
static void zfi_tile_nodes(zfi_tiler *t)
{
    zf_graph *g = t->graph;
    for (int32_t i = 0; i < zfi_len(t->order) && !g->error.status && !g->memory.failed; i++) {
        const int32_t id = t->order[i];
        const int64_t rows = zfi_piece_rows(t, id);
        zfi_node *node = &g->nodes[id];
        int32_t by = 0;
        for (int32_t k = 0; k < node->arg_count; k++)
            if (!t->pieces[node->args[k]]) node->args[k] = zfi_resolve(g, node->args[k]);
        g->scope = node->scope, g->file = node->file, g->line = node->line;
        if (rows && zfi_is_lazy_table(node)) {
            zfi_check_dense(g, "zf_tile", "pieces have gradients of all their rows");
        } else if (rows) {
            zfi_cut_param(t, id, rows);
        } else if (zfi_takes_weight(g, node) && zfi_is_cut_weight(t, node->args[1])) {
            if ((by = zfi_tile_node(t, id))) zfi_replace(g, id, by);
        } else if (zfi_looks_up(g, node) && t->pieces[node->args[0]] > 0) {
            if ((by = zfi_tile_lookup(t, id))) zfi_replace(g, id, by);
        } else if (zfi_takes_experts(g, node) && t->pieces[node->args[1]] > 0) {
            if ((by = zfi_tile_experts(t, id))) zfi_replace(g, id, by);
        } else if (node->op == ZF_OP_concat && zfi_is_cut_weight(t, id)) {
            t->pieces[id] = -1; /* its readers take its operands */
        } else {
            zfi_push(&g->memory, g->order, id);
        }
    }
    for (int32_t i = 0; i < zfi_len(t->order) && !g->error.status; i++)
        if (t->pieces[t->order[i]] < 0) zfi_replace(g, t->order[i], 0);
}

/* In the list of parameters pieces, which are those after the first `before`, take the place of
 * their whole, which the program goes on to see. */
static void zfi_list_pieces(zf_graph *g, int32_t before)
{
    int32_t *old = g->params;
    const bool cut = zfi_len(old) > before;
    const size_t nodes = (size_t)zfi_len(g->nodes);
    int32_t *first = zfi_calloc(&g->memory, 2 * nodes, sizeof *first),
            *next = first ? first + nodes : NULL;
    g->params = NULL;
    for (int32_t i = zfi_len(old); first && i-- > before;) { /* of a whole: the first; the next */
        const zfi_node *piece = &g->nodes[old[i]];
        char name[ZFI_PIECE_NAME];
        snprintf(name, sizeof name, "%.*s", (int)zfi_whole_name(piece->name), piece->name);
        int32_t *at = &first[zfi_map_get(g->names, name, 0)];
        next[old[i]] = *at, *at = old[i];
    }
    for (int32_t i = 0; i < before && first && !g->memory.failed; i++) {
        int32_t id = first[old[i]] ? first[old[i]] : old[i];
        for (; id; id = next[id]) zfi_push(&g->memory, g->params, id);
    }
    zfi_free(&g->memory, first, 2 * nodes * sizeof *first);
    g->settled = zfi_len(g->params);
    if (!cut || g->declared) {
        zfi_array_free(&g->memory, old);
        return;
    }
    if (old) stbds_header(old)->length = (size_t)before;
    g->declared = old;
}

static const zf_option zfi_tile_options[] = {
    ZF_OPTION(zf_tile_desc, BYTES, bytes, 0, NULL, .flag = "tile", .traits = ZF_OPTION_CHANGES,
              .help =
                  "linear layers, lookups and experts with larger weights run in pieces, so that "
                  "zero and offload bring one piece at a time; 0: none"),
    {.name = NULL}};

ZF_API zf_status zf_tile(zf_graph *g, const zf_tile_desc *desc)
{
    zfi_tiler t = {.graph = g, .limit = INT64_MAX};
    const int32_t params = g ? zfi_len(g->params) : 0;
    const char *scope;
    size_t nodes;
    zf_status status = zfi_enter(g, "zf_tile", 0,
                                 ZFI_STAGE_GRADIENTS | ZFI_STAGE_UPDATES | ZFI_STAGE_RANKS |
                                     ZFI_STAGE_PLACED);
    if (status) return status;
    if (!desc || !desc->bytes) return zfi_leave(g, 0);
    if ((status = zfi_settle(g))) return status;
    if (desc->bytes < INT64_MAX) t.limit = (int64_t)desc->bytes;
    scope = g->scope;
    nodes = (size_t)zfi_len(g->nodes);
    t.stays = zfi_calloc(&g->memory, nodes, sizeof *t.stays);
    t.pieces = zfi_calloc(&g->memory, 2 * nodes, sizeof *t.pieces);
    if (t.stays && t.pieces) {
        t.first = t.pieces + nodes;
        t.order = g->order;
        g->order = NULL;
        zfi_find_weights(&t);
        zfi_tile_nodes(&t);
        if (!g->error.status && !g->memory.failed) zfi_list_pieces(g, params);
    }
    g->scope = scope;
    zfi_free(&g->memory, t.stays, nodes * sizeof *t.stays);
    zfi_free(&g->memory, t.pieces, 2 * nodes * sizeof *t.pieces);
    zfi_array_free(&g->memory, t.order);
    if (g->memory.failed) return zfi_graph_nomem(g);
    return zfi_leave(g, 0);
}
