/* neighbours: what a rank has of the keys of a few ranks is read by attention whose queries see no
 * others.
 *
 *     %5 = all_gather %4 {world=4 over=context dim=1 before=1} : f32[2,32,8]      8 tokens of a rank
 *     %6 = attention %1, %5, %7 {heads=4 causal=true window=9 of=32}              9 keys of a query
 *
 * So is what is scattered to a few: gradients of such keys, which are 0 elsewhere. */

/* The value of which it is another form. */
static const zfi_node *zfi_formed_of(const zf_graph *g, int32_t id)
{
    while (g->nodes[id].op == ZF_OP_reshape) id = g->nodes[id].args[0];
    return &g->nodes[id];
}

/* The operand of attention, or of its gradient, that is keys, before that of values; -1: the node
 * is neither. */
static int32_t zfi_keys_at(const zfi_node *node)
{
    return node->op == ZF_OP_attention ? 1 : node->op == ZF_OP_attention_backward ? 4 : -1;
}

/* How many tokens before and after its own a query sees at most; known false: all. */
typedef struct zfi_sight {
    bool known;
    int64_t before, after;
} zfi_sight;

static zfi_sight zfi_sight_of(const zfi_node *attention)
{
    const int64_t window = ZF_INT(attention, attention, window);
    if (!window) return (zfi_sight){.known = false};
    return (zfi_sight){true, window - 1, ZF_INT(attention, attention, causal) ? 0 : window - 1};
}

/* So many ranks before and after one have these tokens, `tokens` each. Zig-zag each has two pieces,
 * and the next piece is of a neighbour on either side. */
static bool zfi_is_within(const zfi_sight *s, int64_t tokens, int64_t before, int64_t after,
                          bool zigzag)
{
    if (zigzag) tokens /= 2, before = after = zfi_min(before, after);
    return s->known && s->before <= before * tokens && s->after <= after * tokens;
}

/* Node `id` reads operand k, a value that is gathered of a few ranks. */
static void zfi_check_neighbour_reader(zf_graph *g, int32_t id, int32_t k)
{
    const zfi_node *node = &g->nodes[id], *x = zfi_formed_of(g, node->args[k]);
    const int32_t kv = zfi_keys_at(node);
    const zfi_sight sight = kv < 0 ? (zfi_sight){.known = false} : zfi_sight_of(node);
    const int64_t tokens = x->shape.dims[ZF_INT(x, all_gather, dim)] / ZF_INT(x, all_gather, world);
    if (node->op == ZF_OP_reshape || node->op == ZF_OP_release || node->op == ZF_OP_wait) return;
    if (kv < 0 || (k != kv && k != kv + 1) ||
        !zfi_is_within(&sight, tokens, ZF_INT(x, all_gather, before), ZF_INT(x, all_gather, after),
                       ZF_INT(x, all_gather, zigzag)))
        zfi_verify_fail(g, id,
                        "%%%d is gathered of %lld ranks before a rank and %lld after it: only "
                        "attention reads it, as keys or values of a window that is no longer",
                        (int)node->args[k], (long long)ZF_INT(x, all_gather, before),
                        (long long)ZF_INT(x, all_gather, after));
}

/* What the node is made of: gradients of keys of attention, how far from queries; or others. */
static zfi_sight zfi_sight_of_value(const zf_graph *g, int32_t id, const zfi_sight *sights)
{
    const zfi_node *node = &g->nodes[id];
    zfi_sight all = {.known = node->arg_count > 0};
    if (node->op == ZF_OP_saved && g->nodes[node->args[0]].op == ZF_OP_attention_backward)
        return zfi_sight_of(&g->nodes[node->args[0]]);
    if (!(g->records[node->op]->traits & ZF_OP_ELEMENTWISE) && node->op != ZF_OP_reshape &&
        node->op != ZF_OP_cast)
        return (zfi_sight){.known = false};
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_sight *x = &sights[node->args[k]];
        all.known = all.known && x->known;
        all.before = zfi_max(all.before, x->before), all.after = zfi_max(all.after, x->after);
    }
    return all;
}

/* Checks the node's operands that are of a few ranks, and what it scatters to a few. */
static void zfi_check_neighbours(zf_graph *g, int32_t id, const zfi_sight *sights)
{
    const zfi_node *node = &g->nodes[id];
    int32_t before, after;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_node *x = zfi_formed_of(g, node->args[k]);
        if (x->op == ZF_OP_all_gather && zfi_neighbours_of(x->op, x->attributes, &before, &after))
            zfi_check_neighbour_reader(g, id, k);
    }
    if (node->op == ZF_OP_reduce_scatter &&
        zfi_neighbours_of(node->op, node->attributes, &before, &after) &&
        !zfi_is_within(&sights[node->args[0]],
                       node->shape.dims[ZF_INT(node, reduce_scatter, dim)], after, before,
                       ZF_INT(node, reduce_scatter, zigzag)))
        zfi_verify_fail(g, id,
                        "%%%d goes to %d ranks before a rank and %d after it: it must be a gradient "
                        "of keys or values of a window that is no longer",
                        (int)node->args[0], (int)after, (int)before);
}

/* Checks a graph whose nodes have been verified. Linear in nodes and operands. */
static zf_status zfi_verify_neighbours(zf_graph *g)
{
    const size_t count = (size_t)zfi_len(g->nodes);
    bool some = false;
    int32_t before, after;
    zfi_sight *sights; /* by node */
    for (int32_t i = 0; i < zfi_len(g->order) && !some; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        some = zfi_neighbours_of(node->op, node->attributes, &before, &after);
    }
    if (!some) return g->error.status;
    if (!(sights = zfi_calloc(&g->memory, count, sizeof *sights))) return zfi_graph_nomem(g);
    for (int32_t i = 0; i < zfi_len(g->order) && !g->error.status; i++) {
        const int32_t id = g->order[i];
        sights[id] = zfi_sight_of_value(g, id, sights);
        zfi_check_neighbours(g, id, sights);
    }
    zfi_free(&g->memory, sights, count * sizeof *sights);
    return g->error.status;
}
