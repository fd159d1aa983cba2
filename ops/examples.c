/* gather_examples, scatter_examples: the examples of all ranks along data, for losses over the
 * global batch (zf_all_gather).
 *
 *     %2 = gather_examples %1 {ranks=4} : f32[8,6]    of f32[2,6]: the rows of rank 0, of 1, ...
 *     %2 = scatter_examples %1 {ranks=4} : f32[2,6]   of f32[8,6]: this rank's rows of the sum over
 *                                                     the ranks, which adds rank 0, 1, 2, ...
 *
 * Each is the gradient of the other; saved: nothing. zf_zero puts an all_gather or a reduce_scatter
 * in their place (passes/zero/examples.c). Those of one rank are x itself. */

static zf_status zfi_infer_examples(zfi_infer *c)
{
    const int64_t ranks = ZF_INT(c, gather_examples, ranks);
    zfi_infer_like(c, 0);
    if (ranks < 1 || ranks > INT32_MAX)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "ranks is %lld; it must be 1 or more",
                              (long long)ranks);
    if (c->shape.rank < 1)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "a scalar has no examples: they are the first dimension");
    return ZF_OK;
}

static zf_status zfi_infer_gather_examples(zfi_infer *c)
{
    const zf_status status = zfi_infer_examples(c);
    const int64_t ranks = ZF_INT(c, gather_examples, ranks), count = zfi_node_count(c->args[0]);
    if (status) return status;
    if (count && ranks > INT64_MAX / 8 / count)
        return zfi_infer_fail(c, ZF_ERR_LIMIT, "%lld ranks of %lld elements are too many",
                              (long long)ranks, (long long)count);
    c->shape.dims[0] *= ranks;
    return ZF_OK;
}

static zf_status zfi_infer_scatter_examples(zfi_infer *c)
{
    const zf_status status = zfi_infer_examples(c);
    const int64_t ranks = ZF_INT(c, scatter_examples, ranks);
    if (status) return status;
    if (c->shape.dims[0] % ranks)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "%lld ranks do not divide the %lld examples",
                              (long long)ranks, (long long)c->shape.dims[0]);
    c->shape.dims[0] /= ranks;
    return ZF_OK;
}

static void zfi_grad_gather_examples(zf_grad *c)
{
    c->dx[0] = zfi_op(scatter_examples, zfi_with({.i = ZF_INT(c, gather_examples, ranks)}), c->dy);
}

static void zfi_grad_scatter_examples(zf_grad *c)
{
    c->dx[0] = zfi_op(gather_examples, zfi_with({.i = ZF_INT(c, scatter_examples, ranks)}), c->dy);
}

static int32_t zfi_views_examples(const zf_graph *g, const zfi_node *node, int64_t *at)
{
    (void)g, (void)at;
    return ZF_INT(node, gather_examples, ranks) == 1 ? 0 : -1;
}

static bool zfi_is_of_examples(const zfi_node *node)
{
    return node->op == ZF_OP_gather_examples || node->op == ZF_OP_scatter_examples;
}

/* Before a plan: only zf_zero knows the ranks. */
static zf_status zfi_check_gathered(zf_graph *g)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        char where[320];
        if (!zfi_is_of_examples(node) || ZF_INT(node, gather_examples, ranks) == 1) continue;
        zfi_where(where, sizeof where, node->scope, node->file, node->line);
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "%%%d%s gathers the examples of %lld ranks: zf_zero with this world must "
                        "have been run",
                        (int)g->order[i], where, (long long)ZF_INT(node, gather_examples, ranks));
    }
    return ZF_OK;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(scatter_examples, gather_examples, ranks)
ZFI_OPERATOR(gather_examples, .infer = zfi_infer_gather_examples, .grad = zfi_grad_gather_examples,
             .cpu = zfi_cpu_reshape, .views = zfi_views_examples, .ranks = ZFI_RANKS_VIEW,
             .linear_in = 1, .traits = ZF_OP_VIEW)
ZFI_OPERATOR(scatter_examples, .infer = zfi_infer_scatter_examples,
             .grad = zfi_grad_scatter_examples, .cpu = zfi_cpu_reshape, .views = zfi_views_examples,
             .ranks = ZFI_RANKS_VIEW, .linear_in = 1, .traits = ZF_OP_VIEW)
