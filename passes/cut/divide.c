/* divide: what zf_cut cannot cut as it is becomes what it can, in sections.
 *
 * requires: no gradients yet; after zf_fuse, so that gradients are those of the new nodes
 * ensures:  with `sections` of at least 2: the head of a loss whose classes these divide, or are
 *           those of a vocabulary, is in sections (ops/head_part.c); attention with fewer heads of
 *           keys than sections has copies of them (ops/repeat.c), the gradients of which are added
 *           in sections
 * before:   %5 = head_loss %1, %2, %3, %4 {ignore=-100} : f32[]       %2 = param "words" : f32[V,H]
 * after:    %6 = head_part %1, %2, %3 {ignore=-100 temperature=1 sections=4} : f32[P,4,4]
 *           %7 = head_join %6, %3 {ignore=-100} : f32[P]
 *           %8 = sum %7 : f32[]   %9 = mul %8, %4 : f32[]   %5 = neg %9 : f32[]
 *
 *           %3 = attention %0, %1, %2 {heads=8 kv_heads=2}
 * after:    %4 = repeat %1 {heads=2 copies=2}   %5 = repeat %2 {heads=2 copies=2}
 *           %3 = attention %0, %4, %5 {heads=8 kv_heads=4}
 *
 * A graph for one rank with as many sections is the same, so it has the bits of any number of ranks
 * that divides them. Of a row without a label, the class with the largest logit becomes -1. */

/* For a pass: sections, by default `each` of every rank; ranks must divide them. */
static zf_status zfi_settle_sections(zf_graph *g, const char *pass, int32_t ranks, int32_t each,
                                     int32_t *sections)
{
    if (!*sections) *sections = ranks * each;
    return *sections % ranks == 0
               ? ZF_OK
               : zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                          "%s: %d sections are not divided by %d ranks", pass, (int)*sections,
                          (int)ranks);
}

typedef struct zfi_dividing {
    zf_graph *graph;
    int32_t sections, heads; /* of classes; of heads: ranks along two axes may share these */
} zfi_dividing;

/* A parameter with more rows than others, of words. What has some rows, as positions do, is not
 * worth a sum over ranks. */
static bool zfi_is_table(const zfi_node *x)
{
    return x->op == ZF_OP_param && x->shape.rank == 2 && x->shape.dims[0] >= 2 * x->shape.dims[1];
}

/* The node is a head over a parameter whose classes are sections. */
static bool zfi_has_sections_of_head(const zfi_dividing *s, int32_t id)
{
    const zf_graph *g = s->graph;
    const zfi_node *node = &g->nodes[id], *w;
    if (node->op != ZF_OP_head_loss && node->op != ZF_OP_head_logp) return false;
    w = &g->nodes[node->args[1]];
    if (w->op != ZF_OP_param || ZF_INT(node, head_loss, bits)) return false;
    return w->shape.dims[0] % s->sections == 0 ||
           (zfi_is_table(w) && zfi_section_size(w->shape.dims[0], s->sections));
}

/* The log-probability of each row's label, and what the node has saved. */
static zf_tensor zfi_divide_logp(const zfi_dividing *s, int32_t id)
{
    zf_graph *g = s->graph;
    const zfi_node node = g->nodes[id]; /* appending moves the nodes */
    const bool loss = node.op == ZF_OP_head_loss;
    const int32_t bias = loss ? 4 : 3, best = loss ? ZFI_HEAD_BEST : ZFI_LOGP_BEST,
                  entropy = loss ? 0 : node.saved[ZFI_LOGP_ENTROPY];
    int32_t args[4] = {node.args[0], node.args[1], node.args[2], 0};
    zf_attribute attributes[ZF_MAX_ATTRIBUTES] = {{0}};
    zf_tensor logp;
    if (node.arg_count > bias) args[3] = node.args[bias];
    attributes[ZF_AT_head_part_ignore] = node.attributes[ZF_AT_head_loss_ignore];
    attributes[ZF_AT_head_part_temperature].f = loss ? 1 : ZF_FLOAT(&node, head_logp, temperature);
    attributes[ZF_AT_head_part_sections].i = s->sections;
    attributes[ZF_AT_head_part_entropy].i = entropy != 0;
    logp.graph = g;
    logp.id = zfi_append_op(g, ZF_OP_head_part, args, node.arg_count > bias ? 4 : 3, attributes);
    logp.id = zfi_append_nodes(g, head_join, zfi_with(node.attributes[ZF_AT_head_loss_ignore]),
                               logp.id, node.args[2]);
    if (node.saved[best]) zfi_replace(g, node.saved[best], zfi_saved(logp, ZFI_LOGP_BEST).id);
    if (entropy) zfi_replace(g, entropy, zfi_saved(logp, ZFI_LOGP_ENTROPY).id);
    return logp;
}

/* The sum of the losses of rows, with their weights. */
static zf_tensor zfi_divide_loss(zf_graph *g, int32_t weight, zf_tensor logp)
{
    const zf_tensor by = {g, weight};
    const bool each = g->nodes[weight].shape.rank > 0;
    const zf_tensor sum = zf_sum(each ? zf_mul(logp, by) : logp);
    return zf_neg(each ? sum : zf_mul(sum, by));
}

static void zfi_divide_head(const zfi_dividing *s, int32_t id)
{
    zf_graph *g = s->graph;
    const bool loss = g->nodes[id].op == ZF_OP_head_loss;
    const int32_t weight = loss ? g->nodes[id].args[3] : 0;
    zf_tensor y = zfi_divide_logp(s, id);
    if (loss && y.id) y = zfi_divide_loss(g, weight, y);
    if (y.id) zfi_replace(g, id, y.id);
}

/* Copies of each head of keys that attention, which has fewer than sections, needs; 1: none. */
static int64_t zfi_copies_of_heads(const zfi_dividing *s, const zfi_node *node)
{
    const int64_t kv = node->op == ZF_OP_attention ? ZF_INT(node, attention, kv_heads) : 0;
    if (kv < 1 || s->heads % kv || !zfi_attention_is_apart(node->arg_count, node->attributes))
        return 1;
    return zfi_gcd(s->heads / kv, ZF_INT(node, attention, heads) / kv);
}

/* Gives attention the copies. */
static void zfi_divide_attention(const zfi_dividing *s, int32_t id, int64_t copies)
{
    zf_graph *g = s->graph;
    const int64_t kv = ZF_INT(&g->nodes[id], attention, kv_heads);
    for (int32_t k = 1; k < 3; k++) {
        const int32_t made = zfi_append_nodes(g, repeat, zfi_with({.i = kv}, {.i = copies}),
                                              g->nodes[id].args[k]);
        g->nodes[id].args[k] = made;
    }
    ZF_INT(&g->nodes[id], attention, kv_heads) = kv * copies;
    zfi_push(&g->memory, g->order, id);
}

static void zfi_divide_nodes(const zfi_dividing *s)
{
    zf_graph *g = s->graph;
    int32_t *order = g->order;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->error.status && !g->memory.failed; i++) {
        zfi_node *node = &g->nodes[order[i]];
        if (node->op == ZF_OP_none) continue; /* a saved value of a head */
        for (int32_t k = 0; k < node->arg_count; k++)
            node->args[k] = zfi_resolve(g, node->args[k]);
        g->scope = node->scope, g->file = node->file, g->line = node->line;
        const int64_t copies = zfi_copies_of_heads(s, node);
        if (copies > 1) zfi_divide_attention(s, order[i], copies);
        else if (s->sections > 1 && zfi_has_sections_of_head(s, order[i])) zfi_divide_head(s, order[i]);
        else zfi_push(&g->memory, g->order, order[i]);
    }
    zfi_array_free(&g->memory, order);
}

static zf_status zfi_divide(zf_graph *g, int32_t sections, int32_t heads)
{
    const zfi_dividing s = {g, sections, heads};
    const char *scope;
    zf_status status = zfi_enter(g, "zf_divide", 0,
                                 ZFI_STAGE_GRADIENTS | ZFI_STAGE_UPDATES | ZFI_STAGE_RANKS |
                                     ZFI_STAGE_PLACED);
    if (status) return status;
    if (sections < 0)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_divide: %d sections; 0 or more are needed",
                        (int)sections);
    if (heads < 2) return zfi_leave(g, 0);
    if (g->settled != zfi_len(g->params) && (status = zfi_settle(g))) return status;
    scope = g->scope;
    zfi_divide_nodes(&s);
    g->scope = scope;
    if (g->memory.failed) return zfi_graph_nomem(g);
    return g->error.status ? g->error.status : zfi_leave(g, 0);
}

ZF_API zf_status zf_divide(zf_graph *g, int32_t sections)
{
    return zfi_divide(g, sections, sections);
}
