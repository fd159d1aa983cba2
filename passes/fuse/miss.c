/* fuse, near misses: nodes to which one of its rewrites would apply but for one thing. They are
 * found in the forward graph after zf_fuse, and each is reported with one sentence (zf_fuse_miss):
 *
 *     # near miss: attention in h.0.attn (model.c:41): %33 = softmax: the scores, %32 = add, are
 *     read elsewhere too, by %40 = output
 *
 *   linear     a bias or an activation that is not merged with its product: the product or the sum
 *              is read elsewhere, the weight is [in, out], the bias is no vector or is missing
 *   qkv        products of one value that are not joined: they have no bias, some have one and some
 *              not, weights are [in, out] or read elsewhere
 *   attention  a softmax between two products: something between them is in the way, is read
 *              elsewhere, is trained, or is not split into heads
 *   norm       a norm of a residual sum, or one that is written out in plain operators
 *   embedding  a norm of a sum of three embeddings
 *   head       the cross-entropy of a product whose logits stay in memory
 */

typedef struct zfi_missing {
    zf_graph *graph;
    const zf_fuse_desc *desc;
    int32_t *uses, *reader; /* by node: how often it is an operand, and its last reader */
    bool *trained;          /* it depends on a trained parameter */
} zfi_missing;

static const zfi_node *zfi_miss_node(const zfi_missing *m, int32_t id)
{
    return &m->graph->nodes[id];
}

/* Reports that `rewrite` did not apply to node id. */
ZFI_FAILS(4, 5)
static void zfi_miss(const zfi_missing *m, const char *rewrite, int32_t id, const char *format, ...)
{
    const zfi_node *node = zfi_miss_node(m, id);
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    m->desc->miss(m->desc->user, &(zf_fuse_miss){.rewrite = rewrite,
                                                 .node = id,
                                                 .op = zfi_record_of(m->graph, id)->name,
                                                 .scope = node->scope,
                                                 .file = node->file,
                                                 .line = node->line,
                                                 .text = text});
}

/* "%32 = add" */
typedef struct zfi_miss_name {
    char text[96];
} zfi_miss_name;

static zfi_miss_name zfi_name_of(const zfi_missing *m, int32_t id)
{
    zfi_miss_name name;
    snprintf(name.text, sizeof name.text, "%%%d = %.64s", (int)id,
             zfi_record_of(m->graph, id)->name);
    return name;
}

#define ZFI_NAME(m, id) (zfi_name_of((m), (id)).text)

/* The first reader of the value other than `but`; 0: there is none. */
static int32_t zfi_other_reader(const zfi_missing *m, int32_t id, int32_t but)
{
    const zf_graph *g = m->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        for (int32_t k = 0; k < g->nodes[g->order[i]].arg_count && g->order[i] != but; k++)
            if (g->nodes[g->order[i]].args[k] == id) return g->order[i];
    return 0;
}

/* Reports a reader of the value other than `reader`; false: there is none. */
static bool zfi_is_read_elsewhere(const zfi_missing *m, const char *rewrite, int32_t id,
                                  const char *what, int32_t x, int32_t reader)
{
    int32_t other = m->uses[x] > 1 ? zfi_other_reader(m, x, reader) : 0;
    if (other)
        zfi_miss(m, rewrite, id, "%s, %s, is read elsewhere too, by %s", what, ZFI_NAME(m, x),
                 ZFI_NAME(m, other));
    return other != 0;
}

/* The node is a product of a value and a matrix that is a parameter. */
static bool zfi_is_weighted(const zfi_missing *m, int32_t id)
{
    const zfi_node *node = zfi_miss_node(m, id);
    return zfi_weight_kind(node) && node->op != ZF_OP_quantized_linear &&
           zfi_miss_node(m, node->args[1])->op == ZF_OP_param &&
           zfi_miss_node(m, node->args[1])->shape.rank == 2;
}

static bool zfi_is_turned_weight(const zfi_node *product)
{
    return product->op == ZF_OP_matmul && !ZF_INT(product, matmul, transpose_b);
}

/* Reports that the product's weight is [in, out]; false: it is [out, in]. */
static bool zfi_has_turned_weight(const zfi_missing *m, const char *rewrite, int32_t id,
                                  int32_t product)
{
    const zfi_node *node = zfi_miss_node(m, product);
    if (!zfi_is_turned_weight(node)) return false;
    zfi_miss(m, rewrite, id, "the weight of %s, %s, is [in, out]; zf_linear takes [out, in]",
             ZFI_NAME(m, product), ZFI_NAME(m, node->args[1]));
    return true;
}

/* --------------------------------------------------------------------------------- linear */

static void zfi_miss_bias(const zfi_missing *m, int32_t id)
{
    const zfi_node *node = zfi_miss_node(m, id), *bias;
    char type[ZFI_TYPE_TEXT];
    int32_t product = 0, b = 0;
    for (int k = 0; k < 2 && node->op == ZF_OP_add && !product; k++) {
        bias = zfi_miss_node(m, node->args[1 - k]);
        if (!zfi_is_weighted(m, node->args[k]) || bias->op != ZF_OP_param ||
            zf_shape_count(bias->shape) != zfi_last(&zfi_miss_node(m, node->args[k])->shape))
            continue;
        product = node->args[k], b = node->args[1 - k];
    }
    if (!product) return;
    bias = zfi_miss_node(m, b), node = zfi_miss_node(m, product);
    if (bias->shape.rank != 1)
        zfi_miss(m, "linear", id, "the bias, %s, is %s; it must be a vector", ZFI_NAME(m, b),
                 zfi_type_text(type, bias->dtype, &bias->shape));
    else if (zfi_is_read_elsewhere(m, "linear", id, "its product", product, id) ||
             zfi_has_turned_weight(m, "linear", id, product))
        return;
    else if (node->op == ZF_OP_linear && node->arg_count == 2)
        zfi_miss(m, "linear", id, "%s was built without this bias; zf_linear takes it",
                 ZFI_NAME(m, product));
}

static void zfi_miss_activation(const zfi_missing *m, int32_t id)
{
    const zfi_node *node = zfi_miss_node(m, id), *x;
    int32_t of;
    if (!zfi_activation_like(node)) return;
    of = node->args[0], x = zfi_miss_node(m, of);
    if (!zfi_is_weighted(m, of) || (x->op == ZF_OP_linear && ZF_INT(x, linear, activation)) ||
        zfi_is_read_elsewhere(m, "linear", id, "what it is of", of, id) ||
        zfi_has_turned_weight(m, "linear", id, of))
        return;
    if (x->op == ZF_OP_matmul)
        zfi_miss(m, "linear", id, "its product, %s, has no bias; zf_linear does without one",
                 ZFI_NAME(m, of));
}

/* ------------------------------------------------------------------------------------- qkv */

/* The node is a product that qkv could join with others of its operand, but for one thing. */
static bool zfi_may_join(const zfi_missing *m, int32_t id)
{
    const zfi_node *node = zfi_miss_node(m, id);
    return zfi_is_weighted(m, id) &&
           !(node->op == ZF_OP_linear && ZF_INT(node, linear, activation)) &&
           !(m->uses[id] == 1 && zfi_activation_like(zfi_miss_node(m, m->reader[id])));
}

/* The next product of the same operand and shapes, from `position` of the order in steps of `step`;
 * 0: there is none. */
static int32_t zfi_sibling_from(const zfi_missing *m, int32_t position, int32_t step)
{
    const zf_graph *g = m->graph;
    const zfi_node *node = &g->nodes[g->order[position]];
    for (int32_t i = position + step; i >= 0 && i < zfi_len(g->order); i += step) {
        const zfi_node *other = &g->nodes[g->order[i]];
        if (other->arg_count && other->args[0] == node->args[0] && zfi_may_join(m, g->order[i]) &&
            zfi_same_shape(&other->shape, &node->shape) &&
            zfi_same_shape(&g->nodes[other->args[1]].shape, &g->nodes[node->args[1]].shape))
            return g->order[i];
    }
    return 0;
}

/* Reports each run of siblings once, at its first. */
static void zfi_miss_siblings(const zfi_missing *m, int32_t position)
{
    int32_t id = m->graph->order[position], other, with, without;
    const zfi_node *node = zfi_miss_node(m, id), *next;
    if (!node->arg_count || m->uses[node->args[0]] < 2 || !zfi_may_join(m, id) ||
        zfi_sibling_from(m, position, -1) || !(other = zfi_sibling_from(m, position, 1)))
        return;
    next = zfi_miss_node(m, other);
    if (zfi_has_turned_weight(m, "qkv", id, zfi_is_turned_weight(node) ? id : other) ||
        zfi_is_read_elsewhere(m, "qkv", id, "its weight", node->args[1], id) ||
        zfi_is_read_elsewhere(m, "qkv", id, "the weight of its neighbour", next->args[1], other))
        return;
    if (node->op == ZF_OP_matmul && next->op == ZF_OP_matmul) {
        zfi_miss(m, "qkv", id, "it and %s are products of %s without a bias; zf_linear joins them",
                 ZFI_NAME(m, other), ZFI_NAME(m, node->args[0]));
    } else if ((node->arg_count > 2) != (next->arg_count > 2)) {
        with = node->arg_count > 2 ? id : other, without = with == id ? other : id;
        zfi_miss(m, "qkv", id, "of one value, %s has a bias and %s has none", ZFI_NAME(m, with),
                 ZFI_NAME(m, without));
    }
}

/* ------------------------------------------------------------------------------ attention */

/* The product of two values from which `id` is computed, through nodes of its size; 0: there is
 * none. */
static int32_t zfi_scores_product(const zfi_missing *m, int32_t id)
{
    for (int steps = 0; steps < 8; steps++) {
        const zfi_node *node = zfi_miss_node(m, id);
        int32_t next = 0;
        if (node->op == ZF_OP_matmul)
            return node->shape.rank >= 3 && zfi_miss_node(m, node->args[1])->shape.rank >= 3 ? id
                                                                                             : 0;
        for (int32_t k = 0; k < node->arg_count && !next; k++)
            if (zf_shape_count(zfi_miss_node(m, node->args[k])->shape) ==
                    zf_shape_count(node->shape) &&
                zfi_miss_node(m, node->args[k])->op != ZF_OP_where &&
                !zfi_has(m->graph, node->args[k], ZF_OP_LEAF))
                next = node->args[k];
        if (!next) return 0;
        id = next;
    }
    return 0;
}

/* The transpose exchanges heads and tokens. */
static bool zfi_turns_heads(const zfi_node *node)
{
    const int64_t *order = ZF_LIST(node, transpose, order).data;
    return node->op == ZF_OP_transpose && node->shape.rank == 4 && order[0] == 0 && order[1] == 2 &&
           order[2] == 1 && order[3] == 3;
}

/* Reports that q, k or v is not a [batch, tokens, hidden] value that is split into heads; false: it
 * is one. */
static bool zfi_is_no_heads(const zfi_missing *m, int32_t id, const char *what, int32_t x,
                            int32_t reader)
{
    const zfi_node *node = zfi_miss_node(m, x), *cut;
    if (zfi_is_read_elsewhere(m, "attention", id, what, x, reader)) return true;
    cut = zfi_turns_heads(node) ? zfi_miss_node(m, node->args[0]) : node;
    if (zfi_turns_heads(node) && cut->op == ZF_OP_reshape && m->uses[node->args[0]] == 1 &&
        zfi_miss_node(m, cut->args[0])->shape.rank == 3)
        return false;
    zfi_miss(
        m, "attention", id,
        "%s, %s, is no value [batch, tokens, hidden] that a reshape and a transpose split into "
        "heads%s",
        what, ZFI_NAME(m, x),
        node->op == ZF_OP_add || node->op == ZF_OP_concat ? "; zf_rope rotates q and k before that"
                                                          : "");
    return true;
}

/* Reports a node between the softmax and the product; false: there is none. *product: the other
 * operand of the product. */
static bool zfi_is_apart(const zfi_missing *m, int32_t id, int32_t product)
{
    int32_t x = zfi_miss_node(m, id)->args[0], reader = id;
    bool masked = zfi_miss_node(m, id)->arg_count > 1;
    while (x != product) {
        const zfi_node *node = zfi_miss_node(m, x);
        int32_t mask, k = node->op == ZF_OP_add && node->args[0] != product &&
                                  zfi_scores_product(m, node->args[0]) != product;
        if (zfi_is_read_elsewhere(m, "attention", id, "what it is made of", x, reader)) return true;
        if (node->op == ZF_OP_add && !masked) {
            mask = node->args[1 - k], masked = true;
            if (m->trained[mask]) {
                zfi_miss(m, "attention", id,
                         "the mask, %s, is trained; attention gives it no gradient",
                         ZFI_NAME(m, mask));
                return true;
            }
            if (!zfi_same_shape(&node->shape, &zfi_miss_node(m, node->args[k])->shape)) {
                zfi_miss(m, "attention", id, "the mask, %s, is larger than the scores",
                         ZFI_NAME(m, mask));
                return true;
            }
        } else if (node->op != ZF_OP_scale) {
            zfi_miss(m, "attention", id, "%s is between the product of q and k and the softmax",
                     ZFI_NAME(m, x));
            return true;
        }
        reader = x, x = node->args[k];
    }
    return zfi_is_read_elsewhere(m, "attention", id, "the product of q and k", product, reader);
}

/* The first `op` with x as operand 0; 0: there is none. */
static int32_t zfi_first_reader(const zfi_missing *m, int32_t x, zf_op op)
{
    const zf_graph *g = m->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].op == op && g->nodes[g->order[i]].args[0] == x)
            return g->order[i];
    return 0;
}

static void zfi_miss_attention(const zfi_missing *m, int32_t id)
{
    const zfi_node *node = zfi_miss_node(m, id), *scores, *last;
    int32_t product, result, by, q;
    if (node->op != ZF_OP_softmax && node->op != ZF_OP_masked_softmax) return;
    product = zfi_scores_product(m, node->args[0]);
    if (!product) return;
    by = zfi_first_reader(m, id, ZF_OP_dropout);
    if (!by) by = id;
    result = zfi_first_reader(m, by, ZF_OP_matmul), last = zfi_miss_node(m, result);
    if (!result || ZF_INT(last, matmul, transpose_a)) return;
    scores = zfi_miss_node(m, product);
    if (by != id && node->op == ZF_OP_masked_softmax && ZF_FLOAT(node, masked_softmax, p) > 0) {
        zfi_miss(m, "attention", id, "a second dropout, %s, follows it", ZFI_NAME(m, by));
        return;
    }
    if (zfi_is_read_elsewhere(m, "attention", id, "what it gives", id, by == id ? result : by) ||
        zfi_is_read_elsewhere(m, "attention", id, "what it gives", by, result) ||
        zfi_is_apart(m, id, product))
        return;
    if (ZF_INT(scores, matmul, transpose_a) || !ZF_INT(scores, matmul, transpose_b)) {
        zfi_miss(m, "attention", id,
                 "%s multiplies q by keys that are transposed already; transpose_b does it",
                 ZFI_NAME(m, product));
        return;
    }
    q = scores->args[0];
    if (zfi_miss_node(m, q)->op == ZF_OP_scale && m->uses[q] == 1)
        q = zfi_miss_node(m, q)->args[0];
    if (zfi_is_no_heads(m, id, "q", q, m->reader[q]) ||
        zfi_is_no_heads(m, id, "k", scores->args[1], product) ||
        zfi_is_no_heads(m, id, "v", last->args[1], result))
        return;
    if (!zfi_turns_heads(zfi_miss_node(m, m->reader[result])) ||
        zfi_miss_node(m, m->reader[m->reader[result]])->op != ZF_OP_reshape)
        zfi_miss(m, "attention", id,
                 "a transpose and a reshape do not put the heads of the result, %s, side by side",
                 ZFI_NAME(m, result));
    else
        zfi_miss(m, "attention", id, "q, k and v are not of one batch, width and number of heads");
}

/* ----------------------------------------------------------------------------------- norms */

/* The terms of a sum of at most `most` additions, of which only the next one reads each; returns
 * their number. */
static int zfi_terms(const zfi_missing *m, int32_t id, int32_t *terms, int most)
{
    const zfi_node *node = zfi_miss_node(m, id);
    int count;
    if (node->op != ZF_OP_add || most < 2) return *terms = id, 1;
    count = m->uses[node->args[0]] == 1 ? zfi_terms(m, node->args[0], terms, most - 1)
                                        : (*terms = node->args[0], 1);
    return count + (m->uses[node->args[1]] == 1
                        ? zfi_terms(m, node->args[1], terms + count, most - count)
                        : (terms[count] = node->args[1], 1));
}

/* Reports on a norm of whose sum there is no other reader; false: the sum is not of embeddings, or
 * was fused. */
static bool zfi_miss_embedding(const zfi_missing *m, int32_t id)
{
    const zfi_node *node = zfi_miss_node(m, id), *first, *second, *third;
    int32_t terms[4], lookups = 0, plain = 0;
    int count = zfi_terms(m, node->args[0], terms, 4);
    for (int k = 0; k < count; k++)
        if (zfi_miss_node(m, terms[k])->op == ZF_OP_gather_rows) lookups++;
        else plain = terms[k];
    if (count != 3 || !lookups) return false;
    first = zfi_miss_node(m, terms[0]), second = zfi_miss_node(m, terms[1]);
    third = zfi_miss_node(m, terms[2]);
    for (int k = 0; k < count; k++)
        if (zfi_miss_node(m, terms[k])->op == ZF_OP_gather_rows &&
            zfi_is_read_elsewhere(m, "embedding", id, "a lookup", terms[k], m->reader[terms[k]]))
            return true;
    if (node->op == ZF_OP_rms_norm)
        zfi_miss(m, "embedding", id, "it is an RMSNorm; embeddings are fused with LayerNorm");
    else if (lookups == 3)
        zfi_miss(m, "embedding", id,
                 "the positions, %s, are a lookup too; [tokens, hidden] is fused, as zf_slice of a "
                 "table gives it",
                 ZFI_NAME(m, terms[2]));
    else if (lookups == 1)
        zfi_miss(m, "embedding", id, "%s is added where a lookup of types is fused",
                 ZFI_NAME(m, plain));
    else if (terms[2] != plain)
        zfi_miss(m, "embedding", id, "the positions, %s, are not what is added last",
                 ZFI_NAME(m, plain));
    else if (first->shape.rank != 3 || !zfi_same_shape(&first->shape, &second->shape))
        zfi_miss(m, "embedding", id, "the lookups, %s and %s, are not [batch, tokens, hidden] both",
                 ZFI_NAME(m, terms[0]), ZFI_NAME(m, terms[1]));
    else if (third->shape.rank != 2 || third->shape.dims[0] != first->shape.dims[1])
        zfi_miss(m, "embedding", id, "the positions, %s, are not [tokens, hidden]",
                 ZFI_NAME(m, plain));
    else if (ZF_INT(second, gather_rows, padded))
        zfi_miss(m, "embedding", id, "the lookup added second, %s, has padding; words come first",
                 ZFI_NAME(m, terms[1]));
    else return false;
    return true;
}

/* Reports on a norm with the operand x; `sum` is x, or the value of which x is a cast. */
static void zfi_miss_residual(const zfi_missing *m, int32_t id, int32_t x, int32_t sum)
{
    const zfi_node *node = zfi_miss_node(m, sum);
    int32_t other;
    char type[ZFI_TYPE_TEXT];
    for (int k = 0; k < 2; k++) {
        const zf_shape *of = &zfi_miss_node(m, node->args[k])->shape;
        if (zfi_same_shape(of, &node->shape)) continue;
        if (of->rank == node->shape.rank && zfi_last(of) == zfi_last(&node->shape))
            zfi_miss(m, "norm", id, "the sum, %s, repeats %s; both of its operands must be %s",
                     ZFI_NAME(m, sum), ZFI_NAME(m, node->args[k]),
                     zfi_type_text(type, node->dtype, &node->shape));
        return;
    }
    if (x != sum) {
        zfi_miss(m, "norm", id, "%s is between it and the sum, %s", ZFI_NAME(m, x),
                 ZFI_NAME(m, sum));
        return;
    }
    node = zfi_miss_node(m, id);
    if (zfi_is_read_elsewhere(m, "norm", id, "what it divides by", node->args[1], id)) return;
    other = zfi_other_reader(m, sum, node->args[1]);
    if (other && other != id)
        zfi_miss(m, "norm", id, "the sum, %s, is read before it is normalised, by %s",
                 ZFI_NAME(m, sum), ZFI_NAME(m, other));
}

static void zfi_miss_norm(const zfi_missing *m, int32_t id)
{
    const zfi_node *node = zfi_miss_node(m, id);
    int32_t x, sum;
    if (node->op != ZF_OP_layer_norm && node->op != ZF_OP_rms_norm) return;
    sum = x = node->args[0];
    if (zfi_miss_node(m, x)->op == ZF_OP_cast) sum = zfi_miss_node(m, x)->args[0];
    if (zfi_miss_node(m, sum)->op != ZF_OP_add) return;
    if (x == sum && m->uses[sum] == 2 && !zfi_names(m->desc->without, "embedding") &&
        zfi_miss_embedding(m, id))
        return;
    if (!zfi_names(m->desc->without, "norm")) zfi_miss_residual(m, id, x, sum);
}

/* Finds 1 / sqrt(mean of squares + eps) over the last dimension. */
static void zfi_miss_norm_by_hand(const zfi_missing *m, int32_t id)
{
    const zfi_node *node = zfi_miss_node(m, id), *x;
    int32_t mean;
    if (node->op != ZF_OP_rsqrt && node->op != ZF_OP_sqrt) return;
    x = zfi_miss_node(m, node->args[0]);
    if (x->op != ZF_OP_add) return;
    mean = x->args[zfi_miss_node(m, x->args[0])->op == ZF_OP_constant];
    x = zfi_miss_node(m, mean);
    if (x->op != ZF_OP_scale || zfi_miss_node(m, x->args[0])->op != ZF_OP_sum) return;
    x = zfi_miss_node(m, x->args[0]);
    if (ZF_INT(x, sum, axis) != zfi_miss_node(m, x->args[0])->shape.rank - 1) return;
    x = zfi_miss_node(m, x->args[0]);
    if (x->op == ZF_OP_mul && x->args[0] == x->args[1])
        zfi_miss(m, "norm", id,
                 "a norm of rows is written out; zf_rms_norm or zf_layer_norm of the sum is taken");
}

/* ------------------------------------------------------------------------------------ head */

static void zfi_miss_head(const zfi_missing *m, int32_t id)
{
    const zfi_node *node = zfi_miss_node(m, id), *of;
    int32_t logits, product, guess, other;
    if (node->op != ZF_OP_cross_entropy) return;
    logits = product = node->args[0];
    for (int steps = 0; steps < 6 && !zfi_is_weighted(m, product); steps++) {
        of = zfi_miss_node(m, product);
        if (!of->arg_count || zf_shape_count(zfi_miss_node(m, of->args[0])->shape) !=
                                  zf_shape_count(of->shape))
            return;
        product = of->args[0];
    }
    if (!zfi_is_weighted(m, product)) return;
    of = zfi_miss_node(m, logits);
    if (logits != product && of->op != ZF_OP_cast) {
        zfi_miss(m, "head", id, "%s is between the product, %s, and the loss%s",
                 ZFI_NAME(m, logits), ZFI_NAME(m, product),
                 of->op == ZF_OP_reshape ? "; the product's operand can be reshaped instead" : "");
        return;
    }
    if (zfi_has_turned_weight(m, "head", id, product)) return;
    for (int32_t i = 0; i < zfi_len(m->graph->order); i++) {
        other = m->graph->order[i];
        of = zfi_miss_node(m, other);
        guess = of->op == ZF_OP_argmax && !ZF_INT(of, argmax, keep);
        for (int32_t k = 0; k < of->arg_count; k++)
            if (of->args[k] == logits && other != id && other != node->args[1] && !guess) {
                zfi_miss(m, "head", id, "the logits, %s, are read elsewhere too, by %s",
                         ZFI_NAME(m, logits), ZFI_NAME(m, other));
                return;
            }
    }
    if (logits != product &&
        zfi_is_read_elsewhere(m, "head", id, "the product", product, logits))
        return;
    if (zfi_is_read_elsewhere(m, "head", id, "the sum of exponentials", node->args[1], id)) return;
    of = zfi_miss_node(m, product);
    if (of->op == ZF_OP_linear && ZF_INT(of, linear, activation)) {
        zfi_miss(m, "head", id, "the product, %s, has an activation", ZFI_NAME(m, product));
        return;
    }
    of = zfi_miss_node(m, m->reader[id]);
    if (m->uses[id] != 1 || of->op != ZF_OP_sum ||
        zfi_miss_node(m, m->reader[m->reader[id]])->op != ZF_OP_mul)
        zfi_miss(m, "head", id, "the losses of rows are not summed and weighted as by "
                                "zf_cross_entropy");
}

/* ------------------------------------------------------------------------------------- all */

static void zfi_find_misses(const zfi_missing *m)
{
    const zf_graph *g = m->graph;
    const char *without = m->desc->without;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i];
        if (!zfi_names(without, "linear")) zfi_miss_bias(m, id), zfi_miss_activation(m, id);
        if (!zfi_names(without, "qkv")) zfi_miss_siblings(m, i);
        if (!zfi_names(without, "attention")) zfi_miss_attention(m, id);
        zfi_miss_norm(m, id);
        if (!zfi_names(without, "norm")) zfi_miss_norm_by_hand(m, id);
        if (!zfi_names(without, "head")) zfi_miss_head(m, id);
    }
}

/* Reports the near misses of a forward graph. */
static void zfi_report_misses(zf_graph *g, const zf_fuse_desc *desc)
{
    size_t nodes = (size_t)zfi_len(g->nodes);
    zfi_missing m = {.graph = g, .desc = desc};
    m.uses = zfi_calloc(&g->memory, 2 * nodes, sizeof *m.uses);
    m.trained = zfi_calloc(&g->memory, nodes, sizeof *m.trained);
    if (m.uses && m.trained) {
        m.reader = m.uses + nodes;
        zfi_mark_trained(g, m.trained);
        for (int32_t i = 0; i < zfi_len(g->order); i++) {
            const zfi_node *node = &g->nodes[g->order[i]];
            for (int32_t k = 0; k < node->arg_count; k++)
                m.uses[node->args[k]]++, m.reader[node->args[k]] = g->order[i];
        }
        g->pass = "zf_fuse";
        zfi_find_misses(&m);
        g->pass = NULL;
    }
    zfi_free(&g->memory, m.uses, 2 * nodes * sizeof *m.uses);
    zfi_free(&g->memory, m.trained, nodes * sizeof *m.trained);
}

ZF_API void zf_fuse_miss_print(void *file, const zf_fuse_miss *miss)
{
    char where[320];
    if (!file || !miss || !miss->rewrite || !miss->scope || !miss->op || !miss->text) return;
    fprintf((FILE *)file, "# near miss: %s%s: %%%d = %s: %s\n", miss->rewrite,
            zfi_where(where, sizeof where, miss->scope, miss->file, miss->line), (int)miss->node,
            miss->op, miss->text);
}
