/* fuse: merges several nodes into one that computes the same. Each rewrite has a name, by which it
 * can be left out.
 *
 * requires: nothing. Before zf_autograd it rewrites the forward pass, whose gradients are then
 *           those of fused nodes; afterwards the nodes of autograd and of the optimizers.
 * ensures:  outputs, gradients and updates have the same values, within the bound of each rewrite
 *
 *   linear     a product, its bias and its activation
 *              bits: equal
 *     before:  %4 = matmul %1, %2 {transpose_b=true}   %5 = add %4, %3   %6 = gelu %5
 *     after:   %7 = linear %1, %2, %3 {activation=gelu}
 *
 *   swiglu     silu of one value times another of its shape, and both as the halves of one product
 *              (ops/swiglu.c)
 *              rounding: in 16 bits silu is not rounded before the product
 *     before:  %3 = silu %1   %4 = mul %3, %2
 *     after:   %5 = swiglu %1, %2
 *
 *   qkv        products of one input with several weights of one shape. The weights become
 *              neighbours in memory (plan/memory.c, passes/zero/buckets.c), so that their concat is a
 *              view; parameters and checkpoints do not change. Not frozen ones with an adapter.
 *              bits: equal forward; gradients of the input are summed within the product
 *              Products with quantised weights (ops/quantized_linear.c) are joined likewise.
 *     before:  %5 = linear %1, %2   %6 = linear %1, %3   %7 = linear %1, %4
 *     after:   %8 = concat %2, %3, %4   %9 = linear %1, %8   %10 = slice %9 {axis=1 stop=8}  ...
 *
 *   softmax    scale, mask, softmax and dropout, where `attention` does not apply. Not if the mask
 *              is trained.
 *              bits: equal
 *     before:  %4 = scale %1   %5 = add %4, %2   %6 = softmax %5   %7 = dropout %6
 *     after:   %8 = masked_softmax %1, %2
 *
 *   attention  scaled products, mask, softmax, dropout and the product with the values, and the
 *              reshapes and transposes that split and join heads. If q, k and v are the thirds of
 *              one product, the packed form (ops/attention.c). Not if the mask is trained. A mask
 *              where(less(t [T,1], s [T]), -inf, 0), with t and s being 0, 1, 2, ..., becomes the
 *              attribute `causal`: keys that no query sees are then skipped.
 *              rounding: online softmax adds in another order
 *     before:  %5 = transpose(reshape %1)   ...   %8 = scale %5   %9 = matmul %8, %6
 *              %10 = add %9, %4   %11 = softmax %10   %12 = dropout %11   %13 = matmul %12, %7
 *              %14 = reshape(transpose %13)
 *     after:   %15 = attention %1, %2, %3, %4
 *
 *   norm       bias, dropout, residual and LayerNorm or RMSNorm. If the sum is also read after the
 *              norm (pre-norm), the fused node saves it, whether the norm is of the same layer or
 *              of the next: zf_recompute keeps that sum alone between layers.
 *              bits: equal, except gradients of bias and beta, whose sums are rounded differently
 *              (ops/fused_norm.c)
 *     before:  %5 = dropout %1   %6 = add %2, %5   %7 = moments %6   %8 = layer_norm %6, %7, %3, %4
 *     after:   %9 = residual_norm %1, %2, %3, %4   or, with other readers of %6,
 *              %9 = residual_norm %1, %2, %3, %4 {sum=saved}   %10 = saved %9 {index=2}
 *
 *   embedding  the sum of word, type and position embeddings, LayerNorm and dropout
 *              bits: as norm
 *     before:  %8 = gather_rows %1, %2   %9 = gather_rows %3, %4   %10 = add %8, %9
 *              %11 = add %10, %5   %12 = moments %11   %13 = layer_norm %11, %12, %6, %7
 *     after:   %14 = embed_norm %1, %2, %3, %4, %5, %6, %7
 *
 *   head       logits, their cross-entropy and argmax, in tiles: neither the logits nor their
 *              gradient, which is computed with the loss, are in memory as a whole (ops/head.c).
 *              Not if anything else reads the logits. The weight may be one of records
 *              (quantized_linear).
 *              rounding: sums over the classes are added in another order
 *     before:  %5 = linear %1, %2, %3   %6 = logsumexp %5   %7 = cross_entropy %5, %6, %4
 *              %8 = sum %7   %10 = mul %8, %9   %11 = argmax %5
 *     after:   %12 = head_loss %1, %2, %4, %9, %3   %13 = saved %12 {index=3}
 *
 *   accumulate a product that is added to a value computed before it starts from that value. A
 *              linear layer without activation, and the gradient of a norm, add it at their end.
 *              What is only reshaped after the product, or exchanged by ranks, moves before it. Not
 *              where ranks exchange the product itself, also on one rank with their sections.
 *              rounding: the product is not rounded before the sum; f32 adds blocks of k to it.
 *              The others are equal in f32 and f64, and in 16 bits are not rounded before the sum
 *     before:  %6 = matmul %1, %2   %7 = add %5, %6
 *     after:   %8 = matmul %1, %2, %5
 *
 *   sums       the gradient of a bias before residual_norm, gelu, silu or packed attention: the
 *              gradient of that node computes it together with the rows that are summed
 *              residual_norm: rounding of the sums (ops/fused_norm.c); the rows are not rounded
 *              before. The others: equal; on CUDA attention may add in another order
 *              (ops/attention.c)
 *     before:  %6 = saved %5 {index=0}   %7 = sum_to %6 {shape=[8]}
 *     after:   %8 = saved %5 {index=3}
 *     before:  %5 = gelu_grad %4, %1     %6 = sum_to %5 {shape=[8]}
 *     after:   %5 = gelu_grad %4, %1     %7 = saved %5 {index=1}
 *
 *   update     clipping and update (passes/fuse/update.c)
 *
 *   chain      elementwise nodes, each reading the one before (passes/fuse/chain.c)
 *
 *   invert     the backward pass recomputes a result of a fused node from the value that the node
 *              saves for its gradient, instead of keeping both: LayerNorm's result from xhat, an
 *              activation from its argument
 *              bits: equal in f32 and f64
 *     before:  %20 = saved %9 {index=0}   ...   %30 = matmul %29, %9 {transpose_a=true}
 *     after:   %20 = saved %9 {index=0}   ...   %31 = affine %20, %3, %4
 *              %30 = matmul %29, %31 {transpose_a=true}
 */

typedef struct zfi_fuser {
    zf_graph *graph;
    size_t nodes; /* number of nodes at the beginning of the sweep */
    /* For each of these nodes: */
    int32_t *uses;    /* how often it is an operand */
    bool *placed;     /* it is in the new order */
    int32_t *becomes; /* the node that replaces it; of a weight, the concat; 0: none */
    int32_t *sibling; /* of a projection: the next one of the same input and shape; 0: none */
    /* Of an input: the last projection so far. Of a saved value: the gradient that is computed from
     * it */
    int32_t *last;
    bool *forward; /* the loss depends on it; or it depends on a trained parameter */
    size_t most;   /* bytes of tables and weights that are not to be tiled; 0: any */
} zfi_fuser;

/* Appends the nodes that replace the root of a pattern and returns the new root; 0: the pattern
 * does not match. The old root is not yet in the new order. */
typedef int32_t zfi_rewrite(zfi_fuser *f, int32_t id);

static const zfi_node *zfi_fuse_node(const zfi_fuser *f, int32_t id)
{
    return &f->graph->nodes[id];
}

/* The node is an `op`, and is an operand exactly once. A product is not, where a fused node could
 * not compute it. */
static bool zfi_used_once(const zfi_fuser *f, int32_t id, zf_op op)
{
    if ((op == ZF_OP_matmul || op == ZF_OP_linear) && !zfi_is_plain_product(&f->graph->nodes[id]))
        return false;
    return f->graph->nodes[id].op == op && (size_t)id < f->nodes && f->uses[id] == 1;
}

/* The node is a product x w^T with a matrix w. */
static bool zfi_is_projection(const zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id);
    return zfi_used_once(f, id, ZF_OP_matmul) && node->arg_count == 2 &&
           !ZF_INT(node, matmul, transpose_a) && ZF_INT(node, matmul, transpose_b) &&
           zfi_fuse_node(f, node->args[1])->shape.rank == 2;
}

/* --------------------------------------------------------------------------------- linear */

static int32_t zfi_fuse_bias(zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id), *bias;
    int32_t product, k;
    if (node->op != ZF_OP_add) return 0;
    k = zfi_is_projection(f, node->args[0]) ? 0 : 1;
    product = node->args[k];
    bias = zfi_fuse_node(f, node->args[1 - k]);
    if (!zfi_is_projection(f, product) || bias->shape.rank != 1 ||
        bias->shape.dims[0] != zfi_last(&node->shape) ||
        !zfi_same_shape(&node->shape, &zfi_fuse_node(f, product)->shape))
        return 0;
    return zfi_append_nodes(f->graph, linear, NULL, zfi_fuse_node(f, product)->args[0],
                            zfi_fuse_node(f, product)->args[1], node->args[1 - k]);
}

static int32_t zfi_fuse_activation(zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id), *linear;
    int activation = zfi_activation_like(node);
    if (!activation) return 0;
    if (!zfi_used_once(f, node->args[0], ZF_OP_linear)) return 0;
    linear = zfi_fuse_node(f, node->args[0]);
    if (ZF_INT(linear, linear, activation) || linear->arg_count > 3) return 0;
    return zfi_append_op(f->graph, ZF_OP_linear, linear->args, linear->arg_count,
                         zfi_with({.i = activation}));
}

/* --------------------------------------------------------------------------------- swiglu */

static int32_t zfi_fuse_swiglu(zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id), *silu, *up;
    int32_t k;
    if (node->op != ZF_OP_mul) return 0;
    k = zfi_used_once(f, node->args[0], ZF_OP_silu) ? 0 : 1;
    silu = zfi_fuse_node(f, node->args[k]), up = zfi_fuse_node(f, node->args[1 - k]);
    if (!zfi_used_once(f, node->args[k], ZF_OP_silu) || !zfi_same_shape(&silu->shape, &up->shape))
        return 0;
    return zfi_append_nodes(f->graph, swiglu, NULL, silu->args[0], node->args[1 - k]);
}

/* The packed form of one whose operands are the halves of a value. */
static int32_t zfi_fuse_halves(zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id), *whole;
    int64_t n = zfi_last(&node->shape);
    int32_t axis = node->shape.rank - 1;
    if (node->op != ZF_OP_swiglu || node->arg_count != 2) return 0;
    for (int k = 0; k < 2; k++) {
        const zfi_node *half = zfi_fuse_node(f, node->args[k]);
        if (!zfi_used_once(f, node->args[k], ZF_OP_slice) || ZF_INT(half, slice, axis) != axis ||
            ZF_INT(half, slice, start) != k * n || ZF_INT(half, slice, stop) != (k + 1) * n ||
            half->args[0] != zfi_fuse_node(f, node->args[0])->args[0])
            return 0;
        whole = zfi_fuse_node(f, half->args[0]);
        if (zfi_last(&whole->shape) != 2 * n) return 0;
    }
    return zfi_append_nodes(f->graph, swiglu, NULL, zfi_fuse_node(f, node->args[0])->args[0]);
}

/* ------------------------------------------------------------------------------------- qkv */

/* The node is a projection; its weight, and its bias if it has one, are parameters. */
static bool zfi_can_join(const zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id);
    if (node->op == ZF_OP_quantized_linear) {
        if (ZF_INT(node, quantized_linear, transposed) ||
            zfi_node_bytes(zfi_fuse_node(f, node->args[1])) % ZFI_ALIGN)
            return false; /* of such sizes the concat would be a copy */
    } else if (node->op != ZF_OP_linear || ZF_INT(node, linear, activation) ||
               node->arg_count > 3 || !zfi_is_plain_product(node)) {
        return false;
    }
    for (int32_t k = 1; k < node->arg_count; k++)
        if (zfi_fuse_node(f, node->args[k])->op != ZF_OP_param) return false;
    return true;
}

/* Which of the nodes without readers depend on a node: bit k % 64 stands for the k-th of them.
 * `losses` has the bits of those with one element, any of which may be the loss. */
typedef struct zfi_ends {
    uint64_t all, losses;
} zfi_ends;

static void zfi_find_ends(const zfi_fuser *f, zfi_ends *ends)
{
    const zf_graph *g = f->graph;
    int32_t count = 0;
    for (int32_t i = zfi_len(g->order); zfi_down(i);) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id],
                       *value = node->op == ZF_OP_output ? &g->nodes[node->args[0]] : node;
        if (!f->uses[id]) {
            ends[id].all = (uint64_t)1 << count++ % 64;
            if (zfi_node_count(value) == 1) ends[id].losses = ends[id].all;
        }
        for (int32_t k = 0; k < node->arg_count; k++) {
            ends[node->args[k]].all |= ends[id].all;
            ends[node->args[k]].losses |= ends[id].losses;
        }
    }
}

/* The projection is frozen, and a product with a trained weight (lora.c) is added to it: of a
 * joined product its part would have to be copied first. */
static bool zfi_has_sibling(const zfi_fuser *f, int32_t id, const int32_t *reader)
{
    const zfi_node *sum = zfi_fuse_node(f, reader[id]), *other;
    if (!zfi_is_frozen(zfi_fuse_node(f, zfi_fuse_node(f, id)->args[1])) || f->uses[id] != 1 ||
        sum->op != ZF_OP_add)
        return false;
    other = zfi_fuse_node(f, sum->args[sum->args[0] == id]);
    return other->op == ZF_OP_matmul && zfi_fuse_node(f, other->args[1])->op == ZF_OP_param &&
           !zfi_is_frozen(zfi_fuse_node(f, other->args[1]));
}

/* Projections of one input that can be joined. The same losses must depend on them: otherwise a
 * joined weight on which the loss does not depend would get a gradient of zeros, and weight decay.
 * Frozen and trained weights, and those of other groups, are in different buckets. */
static bool zfi_are_siblings(const zfi_fuser *f, const zfi_ends *ends, int32_t a, int32_t b)
{
    const zfi_node *x = zfi_fuse_node(f, a), *y = zfi_fuse_node(f, b);
    if (x->op != y->op || x->arg_count != y->arg_count || !(ends[a].all & ends[b].all) ||
        ends[a].losses != ends[b].losses)
        return false;
    for (int k = 0; k < ZF_MAX_ATTRIBUTES && x->op == ZF_OP_quantized_linear; k++)
        if (x->attributes[k].i != y->attributes[k].i) return false;
    for (int32_t k = 1; k < x->arg_count; k++) {
        const zfi_node *p = zfi_fuse_node(f, x->args[k]), *q = zfi_fuse_node(f, y->args[k]);
        if (!zfi_same_shape(&p->shape, &q->shape) || zfi_is_frozen(p) != zfi_is_frozen(q) ||
            !zfi_same_group(p, q))
            return false;
    }
    return true;
}

/* The siblings that begin with a have the parameters of those that begin with b, in their order. */
static bool zfi_have_same_weights(const zfi_fuser *f, int32_t a, int32_t b)
{
    for (; a && b; a = f->sibling[a], b = f->sibling[b]) {
        const zfi_node *x = zfi_fuse_node(f, a), *y = zfi_fuse_node(f, b);
        for (int32_t k = 1; k < x->arg_count; k++)
            if (x->arg_count != y->arg_count || x->args[k] != y->args[k]) return false;
    }
    return !a && !b;
}

/* Takes apart siblings with a parameter that has a reader other than siblings with the same
 * parameters, as those of a model that is built twice have (zf_push_shared): a parameter has one
 * place in memory. `first` and `reads` are 0 for every node. */
static void zfi_part_strangers(zfi_fuser *f, int32_t *first, int32_t *reads)
{
    const zf_graph *g = f->graph;
    int32_t *order = g->order;
    for (int32_t i = 0; i < zfi_len(order); i++) first[f->sibling[order[i]]] = -1;
    for (int32_t i = 0; i < zfi_len(order); i++) {
        const int32_t head = order[i];
        int32_t like = 0; /* siblings that have been compared with these */
        bool same = false;
        if (!f->sibling[head] || first[head]) continue;
        for (int32_t one = head; one; one = f->sibling[one])
            for (int32_t k = 1; k < g->nodes[one].arg_count; k++) {
                const int32_t param = g->nodes[one].args[k];
                if (!first[param]) first[param] = head;
                if (first[param] != like)
                    like = first[param], same = zfi_have_same_weights(f, head, like);
                reads[param] += same;
            }
    }
    for (int32_t i = 0; i < zfi_len(order); i++) {
        bool strange = false;
        if (!f->sibling[order[i]] || first[order[i]]) continue;
        for (int32_t one = order[i]; one; one = f->sibling[one])
            for (int32_t k = 1; k < g->nodes[one].arg_count; k++)
                strange |= reads[g->nodes[one].args[k]] != f->uses[g->nodes[one].args[k]];
        for (int32_t one = order[i], next; strange && one; one = next)
            next = f->sibling[one], f->sibling[one] = 0;
    }
}

/* Finds the siblings of every projection. */
static void zfi_find_siblings(zfi_fuser *f)
{
    const zf_graph *g = f->graph;
    zfi_ends *ends = zfi_calloc(&f->graph->memory, f->nodes, sizeof *ends);
    /* Of a projection: the one before it of the same input; 0: none. Of a node: its last reader */
    int32_t *earlier = zfi_calloc(&f->graph->memory, 2 * f->nodes, sizeof *earlier), *reader;
    if (ends && earlier) {
        reader = earlier + f->nodes;
        zfi_find_ends(f, ends);
        for (int32_t i = 0; i < zfi_len(g->order); i++)
            for (int32_t k = 0; k < g->nodes[g->order[i]].arg_count; k++)
                reader[g->nodes[g->order[i]].args[k]] = g->order[i];
        for (int32_t i = 0; i < zfi_len(g->order); i++) {
            int32_t id = g->order[i], x, other;
            if (!zfi_can_join(f, id) || zfi_has_sibling(f, id, reader)) continue;
            x = g->nodes[id].args[0];
            earlier[id] = f->last[x], f->last[x] = id;
            for (other = earlier[id]; other; other = earlier[other])
                if (!f->sibling[other] && zfi_are_siblings(f, ends, other, id)) break;
            if (other) f->sibling[other] = id;
        }
        memset(earlier, 0, 2 * f->nodes * sizeof *earlier);
        zfi_part_strangers(f, earlier, reader);
    }
    zfi_free(&f->graph->memory, ends, f->nodes * sizeof *ends);
    zfi_free(&f->graph->memory, earlier, 2 * f->nodes * sizeof *earlier);
}

/* The concat of operand k of all siblings. Operands that are declared further down are moved up. */
static int32_t zfi_join_operands(zfi_fuser *f, int32_t id, int32_t k)
{
    zf_graph *g = f->graph;
    const int32_t param = g->nodes[id].args[k];
    int32_t *all = NULL, joined = f->becomes[param]; /* of other siblings with these weights */
    if (joined) return joined;
    for (; id && !g->memory.failed; id = f->sibling[id]) {
        int32_t x = g->nodes[id].args[k];
        if (!f->placed[x]) {
            zfi_push(&g->memory, g->order, x);
            f->placed[x] = true;
        }
        zfi_push(&g->memory, all, x);
    }
    if (!g->memory.failed)
        joined = zfi_append_op(g, ZF_OP_concat, all, zfi_len(all), zfi_with({.i = 0}));
    zfi_array_free(&g->memory, all);
    return f->becomes[param] = joined;
}

static int32_t zfi_fuse_siblings(zfi_fuser *f, int32_t id)
{
    zf_graph *g = f->graph;
    int32_t args[3] = {0}, count, joined, axis;
    int64_t at = 0, n;
    if (g->nodes[id].op == ZF_OP_param) return 0;
    if (f->becomes[id]) return f->becomes[id];
    if (!f->sibling[id]) return 0;
    count = g->nodes[id].arg_count, axis = g->nodes[id].shape.rank - 1;
    n = zfi_last(&g->nodes[id].shape);
    args[0] = g->nodes[id].args[0];
    for (int32_t k = 1; k < count; k++) args[k] = zfi_join_operands(f, id, k);
    joined = zfi_append_op(g, g->nodes[id].op, args, count, g->nodes[id].attributes);
    for (int32_t one = id; one && joined; one = f->sibling[one], at += n)
        f->becomes[one] =
            zfi_append_nodes(g, slice, zfi_with({.i = axis}, {.i = at}, {.i = at + n}), joined);
    return f->becomes[id];
}

/* ------------------------------------------------------------------------------ attention */

/* The value x [B,T,H] of which the node has the heads: [B,heads,T,H / heads]; 0: it is not of this
 * form. */
static int32_t zfi_heads_of(const zfi_fuser *f, int32_t id, int64_t heads)
{
    const zfi_node *node = zfi_fuse_node(f, id), *cut, *x;
    const int64_t *order = ZF_LIST(node, transpose, order).data;
    if (!zfi_used_once(f, id, ZF_OP_transpose) || node->shape.rank != 4 || order[0] != 0 ||
        order[1] != 2 || order[2] != 1 || order[3] != 3 || node->shape.dims[1] != heads)
        return 0;
    cut = zfi_fuse_node(f, node->args[0]);
    if (!zfi_used_once(f, node->args[0], ZF_OP_reshape)) return 0;
    x = zfi_fuse_node(f, cut->args[0]);
    return x->shape.rank == 3 && x->shape.dims[0] == cut->shape.dims[0] &&
                   x->shape.dims[1] == cut->shape.dims[1]
               ? cut->args[0]
               : 0;
}

/* q, k and v [B,T,H] have one batch and width, and k and v one length: none is repeated to fit the
 * others, as one key head for several query heads would be. */
static bool zfi_fit_together(const zfi_fuser *f, const int32_t parts[3])
{
    const zf_shape *q = &zfi_fuse_node(f, parts[0])->shape, *k = &zfi_fuse_node(f, parts[1])->shape;
    return zfi_same_shape(k, &zfi_fuse_node(f, parts[2])->shape) && k->dims[0] == q->dims[0] &&
           k->dims[2] == q->dims[2];
}

/* The value of which q, k and v are the thirds, in this order, if nothing else reads it; 0: there
 * is none. */
static int32_t zfi_packed_of(const zfi_fuser *f, const int32_t parts[3])
{
    int32_t whole = zfi_fuse_node(f, parts[0])->args[0];
    int64_t at = 0;
    for (int k = 0; k < 3; k++) {
        const zfi_node *part = zfi_fuse_node(f, parts[k]);
        if (!zfi_used_once(f, parts[k], ZF_OP_slice) || ZF_INT(part, slice, axis) != 2 ||
            ZF_INT(part, slice, start) != at || part->args[0] != whole)
            return 0;
        at = ZF_INT(part, slice, stop);
    }
    return at == zfi_last(&zfi_fuse_node(f, whole)->shape) ? whole : 0;
}

/* Marks the nodes that depend on a trained parameter. */
static void zfi_find_trained(zfi_fuser *f) { zfi_mark_trained(f->graph, f->forward); }

/* The numbers of a node that is a constant of `count` elements, or a view of one; NULL: it is
 * not. */
static const double *zfi_fuse_constant(const zfi_fuser *f, int32_t id, int64_t count)
{
    const zfi_node *node = zfi_fuse_node(f, id);
    while (node->op == ZF_OP_reshape) node = zfi_fuse_node(f, node->args[0]);
    if (node->op != ZF_OP_constant || ZF_LIST(node, constant, values).count != count) return NULL;
    return ZF_LIST(node, constant, values).data;
}

/* Element i is i, for all i. */
static bool zfi_counts_up(const double *x, int64_t count)
{
    for (int64_t i = 0; x && i < count; i++)
        if (x[i] != (double)i) return false;
    return x != NULL;
}

/* The node is where(less(t [T,1], s [T]), -inf, 0) with t and s counting from 0: query t sees no
 * key after t. */
static bool zfi_is_causal(const zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id), *less;
    const double *hidden, *seen;
    int64_t tokens = node->shape.rank == 2 ? node->shape.dims[1] : 0;
    if (node->op != ZF_OP_where || tokens < 2 || node->shape.dims[0] != tokens) return false;
    less = zfi_fuse_node(f, node->args[0]);
    hidden = zfi_fuse_constant(f, node->args[1], 1);
    seen = zfi_fuse_constant(f, node->args[2], 1);
    if (less->op != ZF_OP_less || !hidden || !seen || *hidden != -INFINITY || *seen != 0)
        return false;
    return zfi_last(&zfi_fuse_node(f, less->args[0])->shape) == 1 &&
           zfi_last(&zfi_fuse_node(f, less->args[1])->shape) == tokens &&
           zfi_counts_up(zfi_fuse_constant(f, less->args[0], tokens), tokens) &&
           zfi_counts_up(zfi_fuse_constant(f, less->args[1], tokens), tokens);
}

static int32_t zfi_fuse_attention(zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id), *x;
    int32_t at = id, parts[3], args[4], count = 0, packed, bias = 0;
    bool causal;
    double scale = 1, p = 0;
    int64_t stream = 0, heads;
    const int64_t *order;
    if (node->op != ZF_OP_reshape || node->shape.rank != 3) return 0;
    at = node->args[0], x = zfi_fuse_node(f, at); /* joins the heads */
    order = ZF_LIST(x, transpose, order).data;
    if (!zfi_used_once(f, at, ZF_OP_transpose) || x->shape.rank != 4 || order[0] != 0 ||
        order[1] != 2 || order[2] != 1 || order[3] != 3 ||
        x->shape.dims[0] != node->shape.dims[0] || x->shape.dims[1] != node->shape.dims[1])
        return 0;
    heads = x->shape.dims[2];
    at = x->args[0], x = zfi_fuse_node(f, at); /* the product with v */
    if (!zfi_used_once(f, at, ZF_OP_matmul) || ZF_INT(x, matmul, transpose_a) ||
        ZF_INT(x, matmul, transpose_b))
        return 0;
    parts[2] = zfi_heads_of(f, x->args[1], heads);
    at = x->args[0], x = zfi_fuse_node(f, at);
    if (zfi_used_once(f, at, ZF_OP_dropout)) {
        p = ZF_FLOAT(x, dropout, p), stream = ZF_INT(x, dropout, stream);
        at = x->args[0], x = zfi_fuse_node(f, at);
    }
    if (!zfi_used_once(f, at, ZF_OP_softmax)) return 0;
    at = x->args[0], x = zfi_fuse_node(f, at);
    if (zfi_used_once(f, at, ZF_OP_add)) { /* a mask, no larger than the scores */
        int32_t k = zfi_used_once(f, x->args[0], ZF_OP_matmul) ||
                            zfi_used_once(f, x->args[0], ZF_OP_scale)
                        ? 0
                        : 1;
        bias = x->args[1 - k];
        if (f->forward[bias] || !zfi_same_shape(&zfi_fuse_node(f, x->args[k])->shape, &x->shape))
            return 0;
        at = x->args[k], x = zfi_fuse_node(f, at);
    }
    if (zfi_used_once(f, at, ZF_OP_scale)) {
        scale = ZF_FLOAT(x, scale, by);
        at = x->args[0], x = zfi_fuse_node(f, at);
    }
    if (!zfi_used_once(f, at, ZF_OP_matmul) || ZF_INT(x, matmul, transpose_a) ||
        !ZF_INT(x, matmul, transpose_b))
        return 0;
    parts[1] = zfi_heads_of(f, x->args[1], heads);
    at = x->args[0], x = zfi_fuse_node(f, at);
    if (zfi_used_once(f, at, ZF_OP_scale)) scale *= ZF_FLOAT(x, scale, by), at = x->args[0];
    parts[0] = zfi_heads_of(f, at, heads);
    if (!parts[0] || !parts[1] || !parts[2] || !zfi_fit_together(f, parts)) return 0;
    packed = zfi_packed_of(f, parts);
    if (packed) args[count++] = packed;
    for (int k = 0; k < 3 && !packed; k++) args[count++] = parts[k];
    causal = bias && zfi_is_causal(f, bias);
    if (bias && !causal) args[count++] = bias;
    return zfi_append_op(
        f->graph, ZF_OP_attention, args, count,
        zfi_with({.f = p}, {.i = stream}, {.i = heads}, {.f = scale}, {.i = causal}));
}

/* The packed form of an attention whose q, k and v are all of one value, in this order. */
static int32_t zfi_fuse_thirds(zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id);
    int32_t args[4], packed;
    if (node->op != ZF_OP_attention ||
        !zfi_attention_is_apart(node->arg_count, node->attributes) ||
        !(packed = zfi_packed_of(f, node->args)))
        return 0;
    args[0] = packed;
    for (int32_t k = 3; k < node->arg_count; k++) args[k - 2] = node->args[k];
    return zfi_append_op(f->graph, ZF_OP_attention, args, node->arg_count - 2, node->attributes);
}

/* -------------------------------------------------------------------------------- softmax */

static int32_t zfi_fuse_softmax(zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id);
    int32_t args[2], count = 1, x;
    double scale = 1;
    if (node->op != ZF_OP_softmax) return 0;
    x = node->args[0];
    node = zfi_fuse_node(f, x);
    if (zfi_used_once(f, x, ZF_OP_add)) { /* the smaller operand, or the one not trained */
        int32_t k = zfi_same_shape(&zfi_fuse_node(f, node->args[0])->shape, &node->shape) &&
                            !f->forward[node->args[1]]
                        ? 0
                        : 1;
        if (!f->forward[node->args[1 - k]] &&
            zfi_same_shape(&zfi_fuse_node(f, node->args[k])->shape, &node->shape))
            args[count++] = node->args[1 - k], x = node->args[k];
    }
    if (zfi_used_once(f, x, ZF_OP_scale))
        scale = ZF_FLOAT(zfi_fuse_node(f, x), scale, by), x = zfi_fuse_node(f, x)->args[0];
    if (x == zfi_fuse_node(f, id)->args[0]) return 0;
    args[0] = x;
    return zfi_append_op(f->graph, ZF_OP_masked_softmax, args, count,
                         zfi_with({.f = 0}, {.i = 0}, {.f = scale}));
}

/* Adds a dropout that follows. */
static int32_t zfi_fuse_softmax_dropout(zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id), *softmax;
    if (node->op != ZF_OP_dropout || !zfi_used_once(f, node->args[0], ZF_OP_masked_softmax))
        return 0;
    softmax = zfi_fuse_node(f, node->args[0]);
    if (ZF_FLOAT(softmax, masked_softmax, p) > 0) return 0;
    return zfi_append_op(
        f->graph, ZF_OP_masked_softmax, softmax->args, softmax->arg_count,
        zfi_with(ZF_ATTRIBUTE(node, dropout, p), ZF_ATTRIBUTE(node, dropout, stream),
                 ZF_ATTRIBUTE(softmax, masked_softmax, scale)));
}

/* ------------------------------------------------------------------- LayerNorm and RMSNorm */

/* A norm of a sum. */
typedef struct zfi_normed {
    int32_t sum, a, b; /* sum = a + b */
    double eps;
    bool rms;
} zfi_normed;

/* The node is the norm of a sum, and nothing else reads its moments. */
static bool zfi_is_norm_of_sum(const zfi_fuser *f, int32_t id, zfi_normed *n)
{
    const zfi_node *node = zfi_fuse_node(f, id), *sum;
    n->rms = node->op == ZF_OP_rms_norm;
    if ((!n->rms && node->op != ZF_OP_layer_norm) ||
        !zfi_used_once(f, node->args[1], n->rms ? ZF_OP_rms : ZF_OP_moments))
        return false;
    n->sum = node->args[0], sum = zfi_fuse_node(f, n->sum);
    if (sum->op != ZF_OP_add || (size_t)n->sum >= f->nodes ||
        zfi_fuse_node(f, node->args[1])->args[0] != n->sum)
        return false;
    n->a = sum->args[0], n->b = sum->args[1];
    n->eps = ZF_FLOAT(zfi_fuse_node(f, node->args[1]), moments, eps);
    return true;
}

/* Finds the first and second reader of each sum: sibling[], last[]. */
static void zfi_find_readers(zfi_fuser *f)
{
    const zf_graph *g = f->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count; k++) {
            int32_t x = node->args[k];
            if (g->nodes[x].op != ZF_OP_add) continue;
            if (!f->sibling[x]) f->sibling[x] = g->order[i];
            else if (!f->last[x]) f->last[x] = g->order[i];
        }
    }
}

/* The other readers of the sum are after the norm. */
static bool zfi_can_leave_sum(const zfi_fuser *f, int32_t id, const zfi_normed *n)
{
    return f->sibling[n->sum] == zfi_fuse_node(f, id)->args[1] && f->last[n->sum] == id;
}

static int32_t zfi_fuse_norm(zfi_fuser *f, int32_t id)
{
    zf_graph *g = f->graph;
    const zfi_node *node = zfi_fuse_node(f, id), *x;
    int32_t args[5], count = 3, a, b, norm, sum;
    zfi_normed n;
    double p = 0;
    int64_t stream = 0;
    bool read;
    if (!zfi_is_norm_of_sum(f, id, &n)) return 0;
    a = n.a, b = n.b, read = f->uses[n.sum] != 2;
    if (!zfi_same_shape(&zfi_fuse_node(f, a)->shape, &node->shape) ||
        !zfi_same_shape(&zfi_fuse_node(f, b)->shape, &node->shape) ||
        (read && !zfi_can_leave_sum(f, id, &n)))
        return 0;
    if (zfi_used_once(f, a, ZF_OP_dropout)) { /* a is the branch, b the residual */
        int32_t swap = a;
        a = b, b = swap;
    }
    if (zfi_used_once(f, b, ZF_OP_dropout)) {
        p = ZF_FLOAT(zfi_fuse_node(f, b), dropout, p),
        stream = ZF_INT(zfi_fuse_node(f, b), dropout, stream);
        b = zfi_fuse_node(f, b)->args[0];
    }
    args[2] = node->args[2];
    if (!n.rms) args[count++] = node->args[3];
    x = zfi_fuse_node(f, b);
    if (zfi_used_once(f, b, ZF_OP_add) && zfi_fuse_node(f, x->args[1])->shape.rank == 1 &&
        zfi_fuse_node(f, x->args[1])->shape.dims[0] == zfi_last(&node->shape) &&
        zfi_same_shape(&zfi_fuse_node(f, x->args[0])->shape, &node->shape))
        b = x->args[0], args[count++] = x->args[1];
    args[0] = b, args[1] = a;
    norm = zfi_append_op(g, ZF_OP_residual_norm, args, count,
                         zfi_with({.f = p}, {.i = stream}, {.f = n.eps},
                                  {.i = n.rms ? ZFI_FORM_RMS : ZFI_FORM_LAYER},
                                  {.i = read ? ZFI_SUM_SAVED : ZFI_SUM_NONE}));
    if (!norm || !read) return norm;
    sum = zfi_saved((zf_tensor){g, norm}, ZFI_SUM).id;
    if (sum) zfi_replace(g, n.sum, sum);
    return norm;
}

/* The node is a param that is to be tiled (zf_fuse_desc.tile_bytes). */
static bool zfi_will_be_tiled(const zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id);
    return f->most && node->op == ZF_OP_param && zfi_node_bytes(node) > f->most;
}

/* The node is gather_rows of a table by ids [B,T]. */
static bool zfi_is_lookup(const zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id);
    return zfi_used_once(f, id, ZF_OP_gather_rows) && node->shape.rank == 3 &&
           !ZF_INT(node, gather_rows, of) && !zfi_will_be_tiled(f, node->args[0]) &&
           !zfi_is_lazy_table(zfi_fuse_node(f, node->args[0])) &&
           zfi_fuse_node(f, node->args[0])->shape.rank == 2;
}

static int32_t zfi_fuse_embedding(zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id), *sum, *words, *types;
    int32_t args[7], two, positions;
    zfi_normed n;
    if (!zfi_is_norm_of_sum(f, id, &n) || n.rms || f->uses[n.sum] != 2 ||
        !zfi_used_once(f, n.a, ZF_OP_add))
        return 0;
    two = n.a, positions = n.b;
    sum = zfi_fuse_node(f, two);
    if (!zfi_is_lookup(f, sum->args[0]) || !zfi_is_lookup(f, sum->args[1]) ||
        zfi_fuse_node(f, positions)->shape.rank != 2 ||
        zfi_fuse_node(f, positions)->shape.dims[0] != node->shape.dims[1])
        return 0;
    words = zfi_fuse_node(f, sum->args[0]), types = zfi_fuse_node(f, sum->args[1]);
    if (ZF_INT(types, gather_rows, padded)) return 0; /* only words may have padding */
    if (!zfi_same_shape(&words->shape, &node->shape) ||
        !zfi_same_shape(&types->shape, &node->shape))
        return 0; /* one of them is broadcast */
    args[0] = words->args[0], args[1] = words->args[1];
    args[2] = types->args[0], args[3] = types->args[1];
    args[4] = positions, args[5] = node->args[2], args[6] = node->args[3];
    return zfi_append_op(f->graph, ZF_OP_embed_norm, args, 7,
                         zfi_with({.f = 0}, {.i = 0}, {.f = n.eps},
                                  ZF_ATTRIBUTE(words, gather_rows, padded),
                                  ZF_ATTRIBUTE(words, gather_rows, padding)));
}

/* Adds a dropout that follows. */
static int32_t zfi_fuse_embedding_dropout(zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id), *norm;
    if (node->op != ZF_OP_dropout || !zfi_used_once(f, node->args[0], ZF_OP_embed_norm)) return 0;
    norm = zfi_fuse_node(f, node->args[0]);
    if (ZF_FLOAT(norm, embed_norm, p) > 0) return 0;
    return zfi_append_op(
        f->graph, ZF_OP_embed_norm, norm->args, norm->arg_count,
        zfi_with(ZF_ATTRIBUTE(node, dropout, p), ZF_ATTRIBUTE(node, dropout, stream),
                 ZF_ATTRIBUTE(norm, embed_norm, eps), ZF_ATTRIBUTE(norm, embed_norm, padded),
                 ZF_ATTRIBUTE(norm, embed_norm, padding)));
}

/* ----------------------------------------------------------------------------------- head */

/* The node is the argmax of [rows, classes], as i32[rows]. */
static bool zfi_is_best(const zfi_fuser *f, int32_t id)
{
    const zfi_node *node = zfi_fuse_node(f, id);
    return node->op == ZF_OP_argmax && zfi_fuse_node(f, node->args[0])->shape.rank == 2 &&
           ZF_INT(node, argmax, axis) == 1 && !ZF_INT(node, argmax, keep);
}

/* Counts the argmaxes of each value: last[]. */
static void zfi_find_guesses(zfi_fuser *f)
{
    const zf_graph *g = f->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (zfi_is_best(f, g->order[i])) f->last[g->nodes[g->order[i]].args[0]]++;
}

/* The product of x with a weight [n, k], and perhaps a bias. */
static bool zfi_is_head_product(const zfi_node *node)
{
    return zfi_weight_kind(node) == ZFI_WEIGHT_OUT_IN && node->arg_count <= 3 &&
           !(node->op == ZF_OP_linear && ZF_INT(node, linear, activation));
}

static int32_t zfi_fuse_head(zfi_fuser *f, int32_t id)
{
    zf_attribute attributes[ZF_MAX_ATTRIBUTES] = {{.i = 0}};
    zf_graph *g = f->graph;
    const zfi_node *node = zfi_fuse_node(f, id), *rows, *product;
    int32_t args[5], count = 4, k, logits, of, loss;
    if (zfi_is_best(f, id) && f->becomes[node->args[0]])
        return zfi_saved((zf_tensor){g, f->becomes[node->args[0]]}, 3).id;
    if (node->op != ZF_OP_mul || node->shape.rank) return 0;
    k = zfi_used_once(f, node->args[0], ZF_OP_sum) ? 0 : 1;
    if (!zfi_used_once(f, node->args[k], ZF_OP_sum)) return 0;
    args[3] = node->args[1 - k];
    rows = zfi_fuse_node(f, zfi_fuse_node(f, node->args[k])->args[0]);
    if (!zfi_used_once(f, zfi_fuse_node(f, node->args[k])->args[0], ZF_OP_cross_entropy) ||
        !zfi_used_once(f, rows->args[1], ZF_OP_logsumexp))
        return 0;
    logits = of = rows->args[0];
    if ((size_t)logits >= f->nodes || f->uses[logits] != 2 + f->last[logits] ||
        zfi_fuse_node(f, rows->args[1])->args[0] != logits)
        return 0;
    if (zfi_fuse_node(f, of)->op == ZF_OP_cast) { /* 16-bit logits: the loss is computed in f32 */
        of = zfi_fuse_node(f, of)->args[0];
        if ((size_t)of >= f->nodes || f->uses[of] != 1) return 0;
    }
    product = zfi_fuse_node(f, of);
    if (!zfi_is_head_product(product) || zfi_will_be_tiled(f, product->args[1])) return 0;
    if (product->shape.rank != 2 || zfi_fuse_node(f, args[3])->shape.rank ||
        zfi_fuse_node(f, args[3])->dtype != zfi_wide(product->dtype))
        return 0;
    args[0] = product->args[0], args[1] = product->args[1], args[2] = rows->args[2];
    if (product->arg_count > 2) args[4] = product->args[2], count = 5;
    attributes[ZF_AT_head_loss_ignore] = ZF_ATTRIBUTE(rows, cross_entropy, ignore);
    if (product->op == ZF_OP_quantized_linear) {
        attributes[ZF_AT_head_loss_bits] = ZF_ATTRIBUTE(product, quantized_linear, bits);
        attributes[ZF_AT_head_loss_block] = ZF_ATTRIBUTE(product, quantized_linear, block);
        attributes[ZF_AT_head_loss_scale] = ZF_ATTRIBUTE(product, quantized_linear, scale);
    }
    loss = zfi_append_op(g, ZF_OP_head_loss, args, count, attributes);
    f->becomes[logits] = loss;
    return loss;
}

/* ----------------------------------------------------------------------------- accumulate */

/* The node, or the node of which it is a reshape, if it takes a value to add as one more operand
 * and nothing else reads it; 0: there is none. A value that several ranks exchange before the sum
 * is none, also on one rank with their sections. */
static int32_t zfi_takes_sum(const zfi_fuser *f, int32_t id)
{
    int32_t (*addend)(const zfi_node *);
    const zfi_node *node;
    while (zfi_used_once(f, id, ZF_OP_reshape) && !zfi_fuse_node(f, id)->dealt)
        id = zfi_fuse_node(f, id)->args[0];
    node = zfi_fuse_node(f, id);
    addend = f->graph->records[node->op]->addend;
    return addend && !node->dealt && node->arg_count == addend(node) &&
                   zfi_used_once(f, id, node->op)
               ? id
               : 0;
}

/* last[]: for a node that takes a value to add, the sum of both. */
static void zfi_find_accumulated(zfi_fuser *f)
{
    const zf_graph *g = f->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op != ZF_OP_add ||
            !zfi_same_shape(&g->nodes[node->args[0]].shape, &g->nodes[node->args[1]].shape))
            continue;
        for (int k = 0; k < 2; k++) {
            int32_t of = zfi_takes_sum(f, node->args[k]);
            if (of) f->last[of] = g->order[i];
        }
    }
}

/* Places x here where it only reshapes or exchanges a value that is placed; true: x is placed.
 * So whether a sum is fused does not depend on exchanges after a product, which one rank does not
 * have. */
static bool zfi_place_form(zfi_fuser *f, int32_t x)
{
    zf_graph *g = f->graph;
    const zfi_node *node = zfi_fuse_node(f, x);
    const bool form = node->op == ZF_OP_reshape || node->op == ZF_OP_part ||
                      node->op == ZF_OP_all_to_all ||
                      (node->op == ZF_OP_all_gather && node->arg_count == 1);
    if (f->placed[x]) return true;
    if (!form || node->update || !zfi_place_form(f, node->args[0])) return false;
    node->args[0] = zfi_resolve(g, node->args[0]);
    zfi_push(&g->memory, g->order, x);
    return f->placed[x] = true;
}

/* Computes the sum at the place of its operand, if the other operand is computed by then. */
static int32_t zfi_fuse_accumulate(zfi_fuser *f, int32_t id)
{
    zf_graph *g = f->graph;
    const zfi_node *node = zfi_fuse_node(f, id), *sum;
    int32_t args[5], count = node->arg_count, x;
    if (f->becomes[id]) return f->becomes[id];
    if (!f->last[id] || zfi_takes_sum(f, id) != id) return 0;
    sum = zfi_fuse_node(f, f->last[id]);
    x = sum->args[zfi_takes_sum(f, sum->args[0]) == id];
    if (f->becomes[f->last[id]] || !zfi_place_form(f, x)) return 0;
    memcpy(args, node->args, (size_t)count * sizeof *args);
    args[count++] = zfi_append_as(g, zfi_resolve(g, x), id);
    node = zfi_fuse_node(f, id);
    x = zfi_append_op(g, node->op, args, count, node->attributes);
    if (x) x = zfi_append_as(g, x, f->last[id]);
    f->becomes[f->last[id]] = x;
    return 0;
}

/* ----------------------------------------------------------------------------------- sums */

/* The value of whose rows `id` consists, before a reshape. */
static int32_t zfi_rows_of(const zfi_fuser *f, int32_t id)
{
    for (const zfi_node *node; (node = zfi_fuse_node(f, id))->op == ZF_OP_reshape;
         id = node->args[0]) {
        const zf_shape *from = &zfi_fuse_node(f, node->args[0])->shape;
        if (!from->rank || !node->shape.rank || zfi_last(from) != zfi_last(&node->shape)) break;
    }
    return id;
}

/* Nothing but this node reads operand k, and it is elementwise: both can become a chain. */
static bool zfi_may_chain(const zfi_fuser *f, const zfi_node *node, int32_t k)
{
    const zfi_node *x = zfi_fuse_node(f, node->args[k]);
    return (f->graph->records[x->op]->traits & ZF_OP_ELEMENTWISE) &&
           zfi_used_once(f, node->args[k], x->op);
}

/* The sum of one column is no sum over rows for sum_to, which adds it in another order. */
static int32_t zfi_fuse_sums(zfi_fuser *f, int32_t id)
{
    zf_graph *g = f->graph;
    const zfi_node *node = zfi_fuse_node(f, id), *x;
    const zfi_record *record;
    int64_t saved = -1;
    int32_t of, sums;
    if (node->op != ZF_OP_sum_to || node->shape.rank != 1) return 0;
    of = zfi_rows_of(f, node->args[0]);
    x = zfi_fuse_node(f, of);
    if (!x->shape.rank || zfi_last(&x->shape) != node->shape.dims[0]) return 0;
    if (x->op == ZF_OP_saved) {
        saved = ZF_INT(x, saved, index), of = x->args[0];
        x = zfi_fuse_node(f, of);
    }
    record = g->records[x->op];
    if (!record->row_sums || (sums = record->row_sums(x, saved)) < 0) return 0;
    if ((record->traits & ZF_OP_ELEMENTWISE) &&
        (node->shape.dims[0] == 1 || zfi_may_chain(f, x, 0)))
        return 0;
    return zfi_saved((zf_tensor){g, of}, sums).id;
}

/* --------------------------------------------------------------------------------- invert */

/* Finds on what the loss depends, and the gradients of activations. */
static void zfi_find_forward(zfi_fuser *f)
{
    const zf_graph *g = f->graph;
    for (int32_t i = zfi_len(g->order); zfi_down(i);) {
        const zfi_node *node = &g->nodes[g->order[i]];
        bool *forward = &f->forward[g->order[i]];
        *forward |= node->role == ZFI_ROLE_LOSS;
        for (int32_t k = 0; k < node->arg_count && *forward; k++) f->forward[node->args[k]] = true;
        if (g->records[node->op]->activates)
            f->last[node->args[g->records[node->op]->activates]] = g->order[i];
    }
}

/* Saved value 0 of node `id`. If its saved node is further down, moves it up. */
static int32_t zfi_saved_above(zfi_fuser *f, int32_t id)
{
    zf_graph *g = f->graph;
    int32_t saved = zfi_saved((zf_tensor){g, id}, 0).id;
    if (saved && (size_t)saved < f->nodes && !f->placed[saved]) {
        zfi_push(&g->memory, g->order, saved);
        f->placed[saved] = true;
    }
    return saved;
}

/* The value of an activation that has saved its argument: from the activation's gradient, if that
 * can be computed by then, else recomputed. */
static int32_t zfi_recomputed_activation(zfi_fuser *f, int32_t id)
{
    zf_graph *g = f->graph;
    int32_t of = zfi_saved_above(f, id), gradient = (size_t)of < f->nodes ? f->last[of] : 0;
    if (gradient && !f->placed[gradient] && f->placed[zfi_resolve(g, g->nodes[gradient].args[0])]) {
        zfi_push(&g->memory, g->order, gradient);
        f->placed[gradient] = true;
    }
    if (gradient && f->placed[gradient]) return zfi_saved((zf_tensor){g, gradient}, 0).id;
    return zfi_record_of(g, id)->remake(g, id, of);
}

/* Recomputes the value of node `id` at this place; 0: that is not possible. */
static int32_t zfi_recomputed(zfi_fuser *f, int32_t id)
{
    zf_graph *g = f->graph;
    zf_dtype dtype;
    zf_shape shape;
    if (!zfi_record_of(g, id)->remake || !zfi_saved_type(g, &g->nodes[id], 0, &dtype, &shape))
        return 0;
    if (g->nodes[id].op == ZF_OP_linear) return zfi_recomputed_activation(f, id);
    return zfi_record_of(g, id)->remake(g, id, zfi_saved_above(f, id));
}

/* Replaces operands of a node of the backward pass by recomputed ones, where that is possible. */
static int32_t zfi_invert(zfi_fuser *f, int32_t id)
{
    zf_graph *g = f->graph;
    if (f->forward[id] || g->nodes[id].op == ZF_OP_saved || zfi_has(g, id, ZF_OP_EFFECT)) return 0;
    for (int32_t k = 0; k < g->nodes[id].arg_count; k++) {
        int32_t x = g->nodes[id].args[k];
        if ((size_t)x >= f->nodes || !f->forward[x]) continue;
        if (!f->becomes[x]) f->becomes[x] = zfi_recomputed(f, x);
        if (f->becomes[x]) g->nodes[id].args[k] = f->becomes[x];
    }
    return 0;
}

/* ---------------------------------------------------------------------------------- sweeps */

enum { ZFI_FORWARD = 1, ZFI_BACKWARD = 2, ZFI_AS_TRAINED = 4 };

static const struct zfi_fusion {
    const char *name;
    int phases;
    zfi_rewrite *rewrite;
    void (*prepare)(zfi_fuser *); /* may be NULL */
    void (*whole)(zf_graph *);    /* instead of a sweep; may be NULL */
} zfi_fusions[] = {
    {"linear", ZFI_FORWARD, zfi_fuse_bias, NULL, NULL},
    {"swiglu", ZFI_FORWARD, zfi_fuse_swiglu, NULL, NULL},
    {"linear", ZFI_FORWARD, zfi_fuse_activation, NULL, NULL},
    {"qkv", ZFI_FORWARD, zfi_fuse_siblings, zfi_find_siblings, NULL},
    {"swiglu", ZFI_FORWARD, zfi_fuse_halves, NULL, NULL},
    {"attention", ZFI_FORWARD, zfi_fuse_attention, zfi_find_trained, NULL},
    {"attention", ZFI_FORWARD, zfi_fuse_thirds, NULL, NULL},
    {"softmax", ZFI_FORWARD, zfi_fuse_softmax, zfi_find_trained, NULL},
    {"softmax", ZFI_FORWARD, zfi_fuse_softmax_dropout, NULL, NULL},
    {"norm", ZFI_FORWARD, zfi_fuse_norm, zfi_find_readers, NULL},
    {"embedding", ZFI_FORWARD, zfi_fuse_embedding, NULL, NULL},
    {"embedding", ZFI_FORWARD, zfi_fuse_embedding_dropout, NULL, NULL},
    {"head", ZFI_FORWARD, zfi_fuse_head, zfi_find_guesses, NULL},
    {"accumulate", ZFI_BACKWARD | ZFI_AS_TRAINED, zfi_fuse_accumulate, zfi_find_accumulated, NULL},
    {"sums", ZFI_BACKWARD, zfi_fuse_sums, NULL, NULL},
    {"invert", ZFI_BACKWARD, zfi_invert, zfi_find_forward, NULL},
    {"update", ZFI_BACKWARD, NULL, NULL, zfi_fuse_updates},
    {"chain", ZFI_BACKWARD, NULL, NULL, zfi_fuse_chains},
};

ZF_API const char *zf_fuse_name(int32_t index)
{
    for (int32_t k = 0; k < ZFI_COUNT(zfi_fusions) && index >= 0; k++) {
        bool again = k > 0 && !strcmp(zfi_fusions[k].name, zfi_fusions[k - 1].name);
        if (!again && index-- == 0) return zfi_fusions[k].name;
    }
    return NULL;
}

/* Checks that every name of the list is a rewrite. */
static zf_status zfi_check_names(zf_graph *g, const char *list)
{
    size_t length;
    for (const char *at; (at = zfi_next_name(&list, &length)) != NULL;) {
        bool known = false;
        char names[256] = "";
        for (int32_t k = 0; zf_fuse_name(k); k++) {
            known |= strlen(zf_fuse_name(k)) == length && !memcmp(at, zf_fuse_name(k), length);
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", k ? ", " : "",
                     zf_fuse_name(k));
        }
        if (!known)
            return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                            "zf_fuse: \"%.*s\" is none of its rewrites: %s; or \"all\" alone",
                            (int)length, at, names);
    }
    return ZF_OK;
}

/* uses[]: how often each node in the order is an operand. */
static void zfi_count_uses(const zf_graph *g, int32_t *uses)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count; k++) uses[node->args[k]]++;
    }
}

/* Removes nodes without readers that had readers before, or are new. It keeps those that replace a
 * node without readers, such as a loss before zf_autograd. */
static void zfi_drop_unused(zfi_fuser *f)
{
    zf_graph *g = f->graph;
    size_t nodes = (size_t)zfi_len(g->nodes);
    int32_t *uses = zfi_calloc(&g->memory, nodes, sizeof *uses), kept = 0;
    if (!uses) return;
    zfi_count_uses(g, uses);
    for (size_t id = 1; id < f->nodes; id++)
        if (g->nodes[id].op == ZF_OP_none && f->placed[id] && !f->uses[id])
            uses[zfi_resolve(g, (int32_t)id)]++;
    for (int32_t i = zfi_len(g->order); zfi_down(i);) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        bool had = (size_t)id >= f->nodes || f->uses[id];
        if (node->op == ZF_OP_none) { /* another node replaces it */
            for (int32_t k = 0; k < node->arg_count; k++) uses[node->args[k]]--;
            continue;
        }
        if (uses[id] || !had || zfi_has(g, id, ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_NAMED))
            continue;
        for (int32_t k = 0; k < node->arg_count; k++) uses[node->args[k]]--;
        zfi_replace(g, id, 0);
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].op != ZF_OP_none) g->order[kept++] = g->order[i];
    if (g->order) stbds_header(g->order)->length = (size_t)kept;
    zfi_free(&g->memory, uses, nodes * sizeof *uses);
}

/* Tries one rewrite at every node, in order. */
static void zfi_fuse_nodes(zfi_fuser *f, const struct zfi_fusion *fusion)
{
    zf_graph *g = f->graph;
    int32_t *order = g->order;
    bool changed = false;
    zfi_count_uses(g, f->uses);
    if (fusion->prepare) fusion->prepare(f);
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->memory.failed; i++) {
        int32_t id = order[i], by = 0;
        zfi_node *node = &g->nodes[id];
        for (int32_t k = 0; k < node->arg_count; k++) node->args[k] = zfi_resolve(g, node->args[k]);
        g->scope = node->scope, g->file = node->file, g->line = node->line;
        if (!g->error.status) by = fusion->rewrite(f, id);
        if (by) zfi_replace(g, id, by), f->placed[id] = changed = true;
        else if (!f->placed[id]) zfi_push(&g->memory, g->order, id), f->placed[id] = true;
    }
    zfi_array_free(&g->memory, order);
    if (changed && !g->memory.failed) zfi_drop_unused(f);
}

static void zfi_fuse_sweep(zf_graph *g, const struct zfi_fusion *fusion, size_t most)
{
    zfi_fuser f = {.graph = g, .nodes = (size_t)zfi_len(g->nodes), .most = most};
    f.uses = zfi_calloc(&g->memory, 4 * f.nodes, sizeof *f.uses);
    f.placed = zfi_calloc(&g->memory, 2 * f.nodes, sizeof *f.placed);
    if (f.uses && f.placed) {
        f.forward = f.placed + f.nodes;
        f.becomes = f.uses + f.nodes;
        f.sibling = f.uses + 2 * f.nodes, f.last = f.uses + 3 * f.nodes;
        zfi_fuse_nodes(&f, fusion);
    }
    zfi_free(&g->memory, f.uses, 4 * f.nodes * sizeof *f.uses);
    zfi_free(&g->memory, f.placed, 2 * f.nodes * sizeof *f.placed);
}

static const zf_option zfi_fuse_options[] = {
    ZF_OPTION(zf_fuse_desc, TEXT, without, 0, NULL, .flag = "no-fuse", .unit = "NAME,...",
              .topic = "memory", .traits = ZF_OPTION_CHANGES,
              .help = "rewrites of fuse to leave out, or all"),
    ZF_OPTION(zf_fuse_desc, CHOICE, invert, 0, "always|as_needed", .flag = ""),
    ZF_OPTION(zf_fuse_desc, BYTES, tile_bytes, 0, NULL, .flag = ""),
    ZF_OPTION(zf_fuse_desc, FLAG, as_trained, 0, NULL, .flag = ""),
    ZF_OPTION_CODED(zf_fuse_desc, miss),
    ZF_OPTION_CODED(zf_fuse_desc, user),
    {.name = NULL}};

ZF_API zf_status zf_fuse(zf_graph *g, const zf_fuse_desc *desc)
{
    zf_status status =
        zfi_enter(g, "zf_fuse", 0, ZFI_STAGE_RECOMPUTE | ZFI_STAGE_RANKS | ZFI_STAGE_PLACED);
    const char *without = desc ? desc->without : NULL, *scope;
    bool none = without && !strcmp(without, "all");
    int phase;
    if (status || (status = zfi_settle(g)) || (!none && (status = zfi_check_names(g, without))))
        return status;
    if (none) return zfi_leave(g, 0);
    scope = g->scope;
    phase = g->stages & ZFI_STAGE_GRADIENTS ? ZFI_BACKWARD
            : desc && desc->as_trained          ? ZFI_AS_TRAINED
                                                : ZFI_FORWARD;
    for (int32_t k = 0; k < ZFI_COUNT(zfi_fusions) && !g->error.status && !g->memory.failed; k++)
        if ((zfi_fusions[k].phases & phase) && !zfi_names(without, zfi_fusions[k].name))
            zfi_fusions[k].whole
                ? zfi_fusions[k].whole(g)
                : zfi_fuse_sweep(g, &zfi_fusions[k], desc ? desc->tile_bytes : 0);
    g->scope = scope;
    if (phase == ZFI_FORWARD && desc && desc->miss && !g->error.status && !g->memory.failed)
        zfi_report_misses(g, desc);
    if (g->memory.failed) return zfi_graph_nomem(g);
    return zfi_leave(g, 0);
}
