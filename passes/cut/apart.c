/* Apart: what attention has in one value becomes several, which zf_context cuts.
 *
 * q, k and v of packed attention become values of their own, which are cut by heads:
 *
 * before:   %5 = attention %4 {heads=4} : f32[2,8,16]       %4 : f32[2,8,48]
 *           %9 = attention_grad %8, %5, %6, %4 {heads=4} : f32[2,8,48]
 * after:    %20 = slice %4 {axis=2 stop=16}   %21 = ...   %22 = ...
 *           %5 = attention %20, %21, %22 {heads=4}
 *           %23 = attention_grad %8, %5, %6, %20, %21, %22 {heads=4} : f32[768]
 *           %9 = concat %25, %27, %29 {axis=2}
 *           %24 = slice %23, %25 = reshape %24, ... */

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
        const int64_t count = zfi_node_count(&g->nodes[thirds[k]]);
        parts[k] =
            zfi_append_nodes(g, slice, zfi_with({.i = 0}, {.i = at}, {.i = at + count}), flat);
        parts[k] = zfi_append_as(g, parts[k], thirds[k]);
        g->nodes[parts[k]].shared = g->nodes[thirds[k]].shared;
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
        g->nodes[thirds[k]].shared = g->nodes[packed].shared;
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
    int32_t *order = g->order,
            (*thirds)[ZFI_THIRDS] = zfi_calloc(&g->memory, (size_t)count, sizeof *thirds);
    bool *changed = zfi_calloc(&g->memory, (size_t)count, sizeof *changed);
    if (thirds && changed) g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && thirds && changed && !g->error.status; i++) {
        const int32_t id = order[i], at = zfi_packed_at(&g->nodes[id]),
                      packed = at < 0 ? 0 : g->nodes[id].args[at];
        g->in_update = g->nodes[id].update, g->scope = g->nodes[id].scope;
        g->in_layer = g->nodes[id].layer;
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

/* ------------------------------------------------------------------------------------ gradients
 *
 * The gradients of attention become values of their own, so that queries can be cut: of what a rank
 * or a section has of the queries, dQ is a part, and dK and dV are addends.
 *
 * before:   %9  = attention_grad %8, %5, %6, %1, %2, %3 {heads=4} : bf16[768]
 *           %10 = slice %9 {stop=256}   %11 = reshape %10 {shape=[2,8,16]} : bf16[2,8,16]
 *           %12 = slice %9 {start=256 stop=512}   %13 = reshape %12 {shape=[2,8,16]} : bf16[2,8,16]
 * after:    %20 = attention_backward %8, %5, %6, %1, %2, %3 {heads=4} : bf16[2,8,16], for %11
 *           %21 = saved %20 {index=0} : f32[2,8,16]   %22 = cast %21 {to=bf16}, for %13
 *
 * Keys and values are then gathered by the first reader of the forward pass, and summed gradients
 * are scattered, by what tokens.c and deal.c do with any other node. */

/* What stands for values of the gradients of attention. */
typedef struct zfi_grads_apart {
    int32_t made;               /* the attention_backward in place of an attention_grad; 0 */
    int32_t thirds[ZFI_THIRDS]; /* dQ, dK and dV of it; 0: not made yet */
    int32_t of, third;          /* of a slice of one: the attention_grad, and which third */
} zfi_grads_apart;

/* The node is the gradient of attention with q, k and v apart. */
static bool zfi_has_grads_apart(const zfi_node *node)
{
    return node->op == ZF_OP_attention_grad && zfi_packed_at(node) < 0;
}

static void zfi_make_backward(zf_graph *g, int32_t id, zfi_grads_apart *x)
{
    const zfi_node old = g->nodes[id];
    zfi_new n = {.op = ZF_OP_attention_backward, .args = old.args, .arg_count = old.arg_count};
    memcpy(n.attributes, old.attributes, sizeof n.attributes);
    x->made = x->thirds[0] = zfi_append(g, &n);
    if (x->made) zfi_replace(g, id, x->made);
}

/* dQ, dK or dV, in the dtype of the operands. */
static int32_t zfi_third_of_grads(zf_graph *g, zfi_grads_apart *x, int32_t third)
{
    if (!x->thirds[third] && x->made)
        x->thirds[third] = zfi_parallel_cast(g, zfi_saved((zf_tensor){g, x->made}, third - 1).id,
                                             g->nodes[x->made].dtype);
    return x->thirds[third];
}

/* Which third a slice of the flat value takes: q begins at 0, k where q ends. */
static int32_t zfi_third_of_slice(const zf_graph *g, const zfi_node *slice)
{
    const zfi_node *grad = &g->nodes[slice->args[0]];
    int64_t at = 0;
    for (int32_t third = 0; third < ZFI_THIRDS; third++) {
        if (at == ZF_INT(slice, slice, start)) return third;
        at += zfi_node_count(&g->nodes[grad->args[3 + third]]);
    }
    return -1;
}

/* A reshape of a slice: the value itself, or that in another form. */
static void zfi_reshape_third(zf_graph *g, int32_t id, int32_t value)
{
    zfi_new n = {.op = ZF_OP_reshape, .args = &value, .arg_count = 1, .id = id};
    memcpy(n.attributes, g->nodes[id].attributes, sizeof n.attributes);
    if (!value) return;
    if (zfi_same_shape(&g->nodes[value].shape, &g->nodes[id].shape)) zfi_replace(g, id, value);
    else zfi_append(g, &n);
}

/* Puts the node, or what stands for it. */
static void zfi_put_apart_grads(zf_graph *g, int32_t id, zfi_grads_apart *at)
{
    zfi_node *node = &g->nodes[id];
    const int32_t arg = node->arg_count ? node->args[0] : 0;
    g->in_update = node->update, g->scope = node->scope, g->in_layer = node->layer;
    if (node->op == ZF_OP_slice && at[arg].made) {
        at[id].of = arg, at[id].third = zfi_third_of_slice(g, node);
        return;
    }
    if (node->op == ZF_OP_reshape && at[arg].of && at[arg].third >= 0) {
        zfi_reshape_third(g, id, zfi_third_of_grads(g, &at[at[arg].of], at[arg].third));
        return;
    }
    for (int32_t k = 0; k < node->arg_count; k++) node->args[k] = zfi_resolve(g, node->args[k]);
    if (zfi_has_grads_apart(node)) zfi_make_backward(g, id, &at[id]);
    else zfi_push(&g->memory, g->order, id);
}

/* All slices of the gradient are those of q, k or v, and read by reshapes alone. */
static bool zfi_are_thirds(const zf_graph *g)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count; k++) {
            const zfi_node *x = &g->nodes[node->args[k]];
            if (zfi_has_grads_apart(x) &&
                (node->op != ZF_OP_slice || zfi_third_of_slice(g, node) < 0))
                return false;
            if (x->op == ZF_OP_slice && zfi_has_grads_apart(&g->nodes[x->args[0]]) &&
                node->op != ZF_OP_reshape)
                return false;
        }
    }
    return true;
}

/* Sets the gradients of all attention apart. */
static void zfi_set_gradients_apart(zf_graph *g)
{
    const int32_t count = (int32_t)zfi_len(g->nodes);
    int32_t *order = g->order;
    zfi_grads_apart *at;
    if (g->error.status || g->memory.failed || !zfi_are_thirds(g)) return;
    at = zfi_calloc(&g->memory, (size_t)count, sizeof *at);
    if (!at) return;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->error.status; i++)
        zfi_put_apart_grads(g, order[i], at);
    zfi_array_free(&g->memory, order);
    zfi_free(&g->memory, at, (size_t)count * sizeof *at);
}
