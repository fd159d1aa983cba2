/* stages, boundary: one activation goes to the next stage, and one gradient comes back, where
 * fused nodes would have two.
 *
 * A residual sum whose norm is of the next stage (ops/fused_norm.c) is made where its operands are:
 *
 * before:   stage 0: %1, %2     stage 1: %5 = residual_norm %1, %2, %3 {p=0.1 stream=3 sum=saved}
 *                                        %6 = saved %5 {index=2}
 *                                        %9 = residual_norm_grad ... {p=0.1 stream=3}
 *                                        %10 = saved %9 {index=0}, which stage 0 reads
 * after:    stage 0: %11 = chain %1, %2 {add of %2 and dropout of %1}
 *           stage 1: %5 = residual_norm %11, %11, %3 {sum=given}    %9 as before
 *           stage 0: %12 = dropout %9 {p=0.1 stream=3}
 *
 * Without bias and dropout %11 is add %2, %1.
 *
 * What the next stage makes of a result again, from what it has saved, is the result itself:
 *
 * before:   stage 0: %5 = layer_norm %1, %6, %3, %4      stage 1: %7 = linear %5, %8
 *                    %9 = saved %5                                %11 = affine %9, %3, %4
 * after:    stage 0: %5 = layer_norm %1, %6, %3, %4      stage 1: %7 = linear %5, %8
 *                                                                 %5 in the place of %11
 *
 * bits: equal. A saved sum is rounded once, as the result of a chain is. In 16 bits the gradient
 * before dropout is made of ds before that is rounded, and a result is rounded once where one that
 * is made again is rounded twice, so both values are sent there. */

/* A norm that saves the sum of what one other rank along pipe makes. */
static bool zfi_sum_is_elsewhere(const zf_graph *g, const zfi_node *node)
{
    const int32_t bias = zfi_norm_bias_at(ZF_INT(node, residual_norm, form));
    int32_t from;
    if (node->op != ZF_OP_residual_norm || ZF_INT(node, residual_norm, sum) != ZFI_SUM_SAVED)
        return false;
    from = zfi_rank_at(g, g->nodes[node->args[0]].stage);
    for (int32_t k = 1; k < node->arg_count; k++)
        if ((k == 1 || k == bias) && zfi_rank_at(g, g->nodes[node->args[k]].stage) != from)
            return false;
    return from && from != zfi_rank_at(g, node->stage) &&
           (ZF_FLOAT(node, residual_norm, p) == 0 || !zfi_spread_cut(&node->spread));
}

/* residual + dropout(x + bias), rounded once. */
static int32_t zfi_append_sum(zf_graph *g, const zfi_node *norm)
{
    const int32_t bias = zfi_norm_bias_at(ZF_INT(norm, residual_norm, form));
    const bool biased = norm->arg_count > bias, drops = ZF_FLOAT(norm, residual_norm, p) > 0;
    const int64_t add = zfi_code_of(&(zfi_node){.op = ZF_OP_add}),
                  drop = zfi_code_of(&(zfi_node){.op = ZF_OP_dropout});
    const double values[] = {ZF_FLOAT(norm, residual_norm, p),
                             (double)ZF_INT(norm, residual_norm, stream)};
    const int32_t args[] = {norm->args[0], norm->args[1], biased ? norm->args[bias] : 0};
    int64_t program[9], count = 0, x = 0, last = biased ? 2 : 1;
    if (!biased && !drops) return zfi_append_nodes(g, add, NULL, args[1], args[0]);
    if (biased) program[0] = add, program[1] = 0, program[2] = 2, count = 3, x = ++last;
    if (drops)
        program[count] = drop, program[count + 1] = x, program[count + 2] = 0, count += 3,
        x = ++last;
    program[count] = add, program[count + 1] = 1, program[count + 2] = x, count += 3;
    return zfi_append_op(g, ZF_OP_chain, args, biased ? 3 : 2,
                         zfi_with(zfi_listed(program, count), zfi_listed(values, drops ? 2 : 0)));
}

/* The norm takes the sum, which the rank of its operands makes. */
static void zfi_set_sum_apart(zf_graph *g, int32_t id)
{
    const zfi_node norm = g->nodes[id]; /* appending moves the nodes */
    const zfi_node *x = &g->nodes[norm.args[0]];
    const int16_t stage = x->stage;
    int32_t sum;
    g->scope = x->scope;
    sum = zfi_append_sum(g, &norm);
    if (!sum) return;
    g->nodes[sum].stage = stage;
    g->nodes[id].args[0] = g->nodes[id].args[1] = sum;
    g->nodes[id].arg_count = zfi_norm_bias_at(ZF_INT(&norm, residual_norm, form));
    ZF_FLOAT(&g->nodes[id], residual_norm, p) = 0;
    ZF_INT(&g->nodes[id], residual_norm, stream) = 0;
    ZF_INT(&g->nodes[id], residual_norm, sum) = ZFI_SUM_GIVEN;
    if (norm.saved[ZFI_SUM]) zfi_replace(g, norm.saved[ZFI_SUM], sum);
    g->nodes[id].saved[ZFI_SUM] = 0;
}

/* The result that the node makes again, of another rank, with the same bits; 0: none. */
static int32_t zfi_result_elsewhere(const zf_graph *g, const zfi_node *node)
{
    const int32_t of = zfi_is_half(node->dtype) ? 0 : zfi_remade_of(g, node, true);
    const int32_t from = of ? zfi_rank_at(g, g->nodes[of].stage) : 0;
    return from && node->stage && from != zfi_rank_at(g, node->stage) ? of : 0;
}

/* Does both for all nodes, which have their stages. */
static void zfi_share_at_boundaries(zf_graph *g)
{
    int32_t *order = g->order;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->error.status && !g->memory.failed; i++) {
        zfi_node *node = &g->nodes[order[i]];
        int32_t result;
        if (node->op == ZF_OP_none) continue; /* a saved sum */
        for (int32_t k = 0; k < node->arg_count; k++) node->args[k] = zfi_resolve(g, node->args[k]);
        g->in_update = node->update, g->scope = node->scope;
        if ((result = zfi_result_elsewhere(g, node))) {
            zfi_replace(g, order[i], result);
            continue;
        }
        if (zfi_sum_is_elsewhere(g, node)) zfi_set_sum_apart(g, order[i]);
        zfi_push(&g->memory, g->order, order[i]);
    }
    zfi_array_free(&g->memory, order);
}

/* The gradient of a norm of which the value is that before dropout, which another rank can make of
 * it; 0: the value is none, or is rounded otherwise. */
static int32_t zfi_gradient_to_drop(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id],
                   *grad = node->op == ZF_OP_saved ? &g->nodes[node->args[0]] : node;
    return grad != node && grad->op == ZF_OP_residual_norm_grad &&
                   ZF_INT(node, saved, index) == ZFI_DX && ZF_FLOAT(grad, residual_norm, p) > 0 &&
                   !zfi_is_half(node->dtype) && !zfi_spread_cut(&node->spread)
               ? node->args[0]
               : 0;
}
