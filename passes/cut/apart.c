/* Apart: q, k and v of packed attention become values of their own, which zf_context cuts by heads.
 *
 * before:   %5 = attention %4 {heads=4} : f32[2,8,16]       %4 : f32[2,8,48]
 *           %9 = attention_grad %8, %5, %6, %4 {heads=4} : f32[2,8,48]
 * after:    %20 = slice %4 {axis=2 stop=16}   %21 = ...   %22 = ...
 *           %5 = attention %20, %21, %22 {heads=4}
 *           %23 = attention_grad %8, %5, %6, %20, %21, %22 {heads=4} : f32[768]
 *           %9 = concat %25, %27, %29 {axis=2}              %24 = slice %23, %25 = reshape %24, ... */

enum { ZFI_THIRDS = 3 };

/* The operand that is q, k and v; -1: the node is no packed attention. */
static int32_t zfi_packed_at(const zfi_node *node)
{
    const int32_t at = node->op == ZF_OP_attention_grad ? 3 : 0;
    if (node->op != ZF_OP_attention && node->op != ZF_OP_attention_grad) return -1;
    return zfi_attention_is_apart(node->arg_count - at, node->attributes) ? -1 : at;
}

/* The first column of q, k or v in a row; of 3: the end. */
static int64_t zfi_third_at(const zf_graph *g, const zfi_node *node, int32_t packed, int third)
{
    const int64_t heads = ZF_INT(node, attention, heads), kv = ZF_INT(node, attention, kv_heads),
                  keys = kv ? kv : heads, all = g->nodes[packed].shape.dims[2],
                  wide = all / (heads + 2 * keys);
    return third ? wide * (heads + (third - 1) * keys) : 0;
}

/* The node with q, k and v in place of the packed operand: under its own id, of a gradient as
 * another one. */
static int32_t zfi_unpacked(zf_graph *g, int32_t id, int32_t at, const int32_t thirds[ZFI_THIRDS])
{
    const zfi_node old = g->nodes[id];
    int32_t args[ZFI_CUT_RESULT];
    zfi_new n = {.op = old.op, .args = args, .arg_count = old.arg_count + 2};
    n.id = at ? 0 : id;
    if (n.arg_count > ZFI_CUT_RESULT) return 0;
    for (int32_t k = 0; k < n.arg_count; k++)
        args[k] = k < at ? old.args[k] : k < at + ZFI_THIRDS ? thirds[k - at] : old.args[k - 2];
    memcpy(n.attributes, old.attributes, sizeof n.attributes);
    return zfi_append(g, &n);
}

/* The gradient of the packed operand, from the flat one of q, k and v. */
static void zfi_repacked(zf_graph *g, int32_t id, int32_t flat, const int32_t thirds[ZFI_THIRDS])
{
    int32_t parts[ZFI_THIRDS] = {0};
    zfi_new n = {.op = ZF_OP_concat, .args = parts, .arg_count = ZFI_THIRDS, .id = id};
    int64_t at = 0;
    for (int k = 0; k < ZFI_THIRDS && flat; k++) {
        const zf_shape shape = g->nodes[thirds[k]].shape;
        const int64_t count = zf_shape_count(shape);
        parts[k] = zfi_append_nodes(g, slice, zfi_with({.i = 0}, {.i = at}, {.i = at + count}), flat);
        parts[k] = zfi_deal_reshape(g, parts[k], shape);
        at += count;
    }
    n.attributes[ZF_AT_concat_axis].i = 2;
    if (parts[ZFI_THIRDS - 1]) zfi_append(g, &n);
}

/* The thirds of a packed value, which are made once. */
static bool zfi_split_packed(zf_graph *g, int32_t id, int32_t packed, int32_t thirds[ZFI_THIRDS])
{
    for (int k = 0; k < ZFI_THIRDS && !thirds[k]; k++) {
        const zfi_node *node = &g->nodes[id];
        thirds[k] = zfi_append_nodes(g, slice,
                                     zfi_with({.i = 2}, {.i = zfi_third_at(g, node, packed, k)},
                                              {.i = zfi_third_at(g, node, packed, k + 1)}),
                                     packed);
    }
    return thirds[ZFI_THIRDS - 1] != 0;
}

/* What the node has saved: of attention as before; of its gradient, sums of rows. */
static void zfi_saved_apart(zf_graph *g, int32_t id)
{
    const zfi_node old = g->nodes[id];
    const int64_t wide = g->nodes[old.args[0]].shape.dims[2];
    zfi_new n = {.op = old.op, .args = old.args, .arg_count = 1, .id = id};
    memcpy(n.attributes, old.attributes, sizeof n.attributes);
    if (g->nodes[old.args[0]].op == ZF_OP_concat) {
        memset(n.attributes, 0, sizeof n.attributes);
        n.op = ZF_OP_sum_to;
        n.attributes[ZF_AT_sum_to_shape] = (zf_attribute)zfi_listed(&wide, 1);
    }
    zfi_append(g, &n);
}

/* Splits all packed attention. */
static void zfi_set_apart(zf_graph *g)
{
    const int32_t count = (int32_t)zfi_len(g->nodes);
    int32_t *order = g->order, (*thirds)[ZFI_THIRDS] = zfi_calloc(
        &g->memory, (size_t)count, sizeof *thirds);
    bool *changed = zfi_calloc(&g->memory, (size_t)count, sizeof *changed);
    if (thirds && changed) g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && thirds && changed && !g->error.status; i++) {
        const int32_t id = order[i], at = zfi_packed_at(&g->nodes[id]),
                      packed = at < 0 ? 0 : g->nodes[id].args[at];
        g->in_update = g->nodes[id].update, g->scope = g->nodes[id].scope;
        changed[id] = packed != 0;
        if (packed && zfi_split_packed(g, id, packed, thirds[packed])) {
            const int32_t made = zfi_unpacked(g, id, at, thirds[packed]);
            if (at) zfi_repacked(g, id, made, thirds[packed]);
        } else if (g->nodes[id].op == ZF_OP_saved && changed[g->nodes[id].args[0]]) {
            zfi_saved_apart(g, id);
        } else zfi_push(&g->memory, g->order, id);
    }
    if (thirds && changed) zfi_array_free(&g->memory, order);
    zfi_free(&g->memory, thirds, (size_t)count * sizeof *thirds);
    zfi_free(&g->memory, changed, (size_t)count * sizeof *changed);
}

/* --------------------------------------------------------------------------------------- dropout
 *
 * Dropout within a norm becomes a node of its own too, which draws the masks of its part of a value.
 * The gradient of such a norm sums over tokens, in sections that are no parts on one rank.
 *
 * before:   %5 = residual_norm %1, %2, %3, %4 {p=0.1 stream=3}     %9 = residual_norm_grad %8, %6, %7,
 *           %3 {p=0.1 stream=3}    %10 = saved %9 {index=0}    %11 = saved %9 {index=3}
 * after:    %12 = dropout %1 {p=0.1 stream=3}    %5 = residual_norm %12, %2, %3, %4
 *           %9 = residual_norm_grad %8, %6, %7, %3    %13 = dropout %9 {p=0.1 stream=3}
 *           %11 = sum_to %13 {shape=[8]} */

/* The node is a norm with dropout, or its gradient. */
static bool zfi_norm_drops(const zfi_node *node)
{
    return (node->op == ZF_OP_residual_norm || node->op == ZF_OP_residual_norm_grad) &&
           ZF_FLOAT(node, residual_norm, p) > 0;
}

static int32_t zfi_append_drop(zf_graph *g, int32_t norm, int32_t x)
{
    const zfi_node node = g->nodes[norm]; /* appending moves the nodes */
    return zfi_append_op(g, ZF_OP_dropout, &x, 1,
                         zfi_with(ZF_ATTRIBUTE(&node, residual_norm, p),
                                  ZF_ATTRIBUTE(&node, residual_norm, stream)));
}

/* What comes before the norm: bias and dropout. */
static void zfi_drop_before(zf_graph *g, int32_t id)
{
    const zfi_node node = g->nodes[id];
    const int32_t bias = zfi_norm_bias_at(ZF_INT(&node, residual_norm, form));
    int32_t x = node.args[0];
    if (node.arg_count > bias) x = zfi_append_nodes(g, add, NULL, x, node.args[bias]);
    if (x) x = zfi_append_drop(g, id, x);
    if (!x) return;
    g->nodes[id].args[0] = x;
    if (node.arg_count > bias) g->nodes[id].arg_count--;
    zfi_push(&g->memory, g->order, id);
}

/* The gradients before dropout, and of the bias. */
static void zfi_drop_after(zf_graph *g, int32_t id)
{
    const zfi_node node = g->nodes[id];
    const int64_t wide = zfi_last(&node.shape);
    int32_t dx;
    zfi_push(&g->memory, g->order, id);
    dx = zfi_append_drop(g, id, id);
    if (dx && node.saved[ZFI_DX]) zfi_replace(g, node.saved[ZFI_DX], dx);
    if (dx && node.saved[ZFI_DBIAS])
        zfi_replace(g, node.saved[ZFI_DBIAS],
                    zfi_append_nodes(g, sum_to, zfi_with(zfi_listed(&wide, 1)), dx));
    g->nodes[id].saved[ZFI_DX] = g->nodes[id].saved[ZFI_DBIAS] = 0;
}

/* Sets dropout of norms apart. */
static void zfi_drop_apart(zf_graph *g)
{
    int32_t *order = g->order;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->error.status && !g->memory.failed; i++) {
        zfi_node *node = &g->nodes[order[i]];
        const bool drops = zfi_norm_drops(node);
        if (node->op == ZF_OP_none) continue; /* what a gradient has saved */
        for (int32_t k = 0; k < node->arg_count; k++)
            node->args[k] = zfi_resolve(g, node->args[k]);
        g->in_update = node->update, g->scope = node->scope;
        if (drops && node->op == ZF_OP_residual_norm) zfi_drop_before(g, order[i]);
        else if (drops) zfi_drop_after(g, order[i]);
        else zfi_push(&g->memory, g->order, order[i]);
        if (!drops) continue;
        ZF_FLOAT(&g->nodes[order[i]], residual_norm, p) = 0;
        ZF_INT(&g->nodes[order[i]], residual_norm, stream) = 0;
    }
    zfi_array_free(&g->memory, order);
}
