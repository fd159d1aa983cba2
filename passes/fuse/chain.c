/* fuse, chains: an elementwise node and its elementwise operands, and theirs, become one loop
 * (ops/chain.c). All have one type, of at least ZFI_CHAIN_LEAST elements. Nothing else reads an
 * operand that is merged; it is no output, gradient or saved value. Between the merged nodes there
 * are only leaves, views and members of the chain, so that no value lives longer than before. The
 * update section does not change, nor do sums over ranks that are still to be made, nor dropout of
 * what ranks share.
 *
 * bits: equal in f32 and f64. In bf16 and f16 only the chain's result is rounded
 *
 *   before:  %5 = add %1, %2   %6 = dropout %5 {p=0.1 stream=7}   %7 = add %3, %6
 *   after:   %7 = chain %1, %2, %3 {program=[0,0,1,24,3,0,0,2,4] values=[0.1,7]}
 */

enum { ZFI_CHAIN_LEAST = 1024 };

typedef struct zfi_chainer {
    zf_graph *graph;
    /* By node: how often it is an operand; its last reader; the root of the chain of which it is a
     * member, 0: none */
    int32_t *uses, *reader, *root;
    /* The current chain, from the root up: */
    int32_t members[ZFI_CHAIN_LONGEST], count;
    int32_t args[ZFI_CHAIN_OPERANDS], arg_count; /* its operands, first one of its shape */
} zfi_chainer;

/* The node can be an instruction of a chain of its own shape. */
static bool zfi_can_chain(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    bool full = false;
    if (node->update || node->spread.sum || !zfi_is_float(node->dtype) || zfi_code_of(node) < 0 ||
        zfi_node_count(node) < ZFI_CHAIN_LEAST)
        return false;
    if (node->op == ZF_OP_dropout && zfi_spread_cut(&node->spread)) return false;
    for (int k = 0; k < ZF_MAX_SAVED; k++)
        if (node->saved[k]) return false;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zf_shape *x = &g->nodes[node->args[k]].shape;
        if (!zfi_chain_reads(x, &node->shape)) return false;
        full |= zfi_same_shape(x, &node->shape);
    }
    return full;
}

/* Lists the operands of the chain of `root`, first one of its shape; false: there are too many. */
static bool zfi_chain_operands(zfi_chainer *c, int32_t root)
{
    const zf_graph *g = c->graph;
    int32_t full = 0, first;
    c->arg_count = 0;
    for (int32_t m = c->count - 1; m >= 0; m--) {
        const zfi_node *node = &g->nodes[c->members[m]];
        for (int32_t k = 0; k < node->arg_count; k++) {
            int32_t at = 0;
            if (c->root[node->args[k]] == root) continue;
            while (at < c->arg_count && c->args[at] != node->args[k]) at++;
            if (at == ZFI_CHAIN_OPERANDS) return false;
            c->args[at] = node->args[k];
            if (at == c->arg_count) c->arg_count++;
        }
    }
    while (!zfi_same_shape(&g->nodes[c->args[full]].shape, &g->nodes[root].shape)) full++;
    first = c->args[full];
    c->args[full] = c->args[0], c->args[0] = first;
    return true;
}

/* Adds a node to the chain of `root`; false where the chain would have too many operands. */
static bool zfi_chain_add(zfi_chainer *c, int32_t id, int32_t root)
{
    if (c->count == ZFI_CHAIN_LONGEST) return false;
    c->members[c->count++] = id;
    c->root[id] = root;
    if (zfi_chain_operands(c, root)) return true;
    c->count--;
    c->root[id] = 0;
    return false;
}

/* Finds the chain whose last node is at `position` of the order. */
static void zfi_chain_grow(zfi_chainer *c, int32_t position)
{
    const zf_graph *g = c->graph;
    int32_t root = g->order[position];
    int64_t at;
    c->count = 0;
    zfi_chain_add(c, root, root);
    while (--position >= 0) {
        int32_t id = g->order[position];
        const zfi_node *node = &g->nodes[id];
        bool joins = c->uses[id] == 1 && c->root[c->reader[id]] == root && zfi_can_chain(g, id) &&
                     node->dtype == g->nodes[root].dtype &&
                     zfi_same_shape(&node->shape, &g->nodes[root].shape);
        if (joins && zfi_chain_add(c, id, root)) continue;
        if (!zfi_has(g, id, ZF_OP_LEAF) && zfi_viewed(g, node, &at) < 0) return;
    }
}

/* The register that holds a value of the chain. */
static int32_t zfi_chain_register(const zfi_chainer *c, int32_t id)
{
    for (int32_t m = 0; m < c->count; m++)
        if (c->members[m] == id) return c->arg_count + c->count - 1 - m;
    for (int32_t k = 0; k < c->arg_count; k++)
        if (c->args[k] == id) return k;
    return 0;
}

/* Turns the root into the chain, and removes the other members. */
static void zfi_chain_make(zfi_chainer *c, int32_t root)
{
    zf_graph *g = c->graph;
    int64_t program[3 * ZFI_CHAIN_LONGEST] = {0}, *at = program;
    double values[2 * ZFI_CHAIN_LONGEST];
    int64_t count = 0;
    zf_chain_kind kind;
    zfi_node *node = &g->nodes[root];
    int32_t *args;
    void *lists[2];
    zfi_chain_operands(c, root);
    for (int32_t m = c->count - 1; m >= 0; m--, at += 3) {
        const zfi_node *member = &g->nodes[c->members[m]];
        at[0] = zfi_code_of(member);
        at[1] = zfi_chain_register(c, member->args[0]);
        if (member->arg_count > 1) at[2] = zfi_chain_register(c, member->args[1]);
        kind = zfi_instructions[at[0]].kind;
        if (kind != ZF_CHAIN_SCALE && kind != ZF_CHAIN_DROPOUT) continue;
        at[2] = count;
        values[count++] = ZF_FLOAT(member, scale, by);
        if (kind == ZF_CHAIN_DROPOUT) values[count++] = (double)ZF_INT(member, dropout, stream);
    }
    args = zfi_bytes_copy(&g->memory, &g->text, c->args, (size_t)c->arg_count * sizeof *args);
    lists[0] = zfi_bytes_copy(&g->memory, &g->text, program, (size_t)(at - program) * 8);
    lists[1] = zfi_bytes_copy(&g->memory, &g->text, values, (size_t)count * 8);
    if (g->memory.failed) return;
    node->op = ZF_OP_chain;
    node->args = args, node->arg_count = c->arg_count;
    memset(node->attributes, 0, sizeof node->attributes);
    ZF_LIST(node, chain, program).data = lists[0],
                         ZF_LIST(node, chain, program).count = at - program;
    ZF_LIST(node, chain, values).data = lists[1], ZF_LIST(node, chain, values).count = count;
    for (int32_t m = 1; m < c->count; m++) zfi_replace(g, c->members[m], 0);
}

/* Makes all chains, from the end of the graph on, so that each is as long as possible. */
static void zfi_chain_all(zfi_chainer *c)
{
    zf_graph *g = c->graph;
    int32_t kept = 0;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count; k++)
            c->uses[node->args[k]]++, c->reader[node->args[k]] = g->order[i];
    }
    for (int32_t i = zfi_len(g->order); zfi_down(i) && !g->memory.failed;) {
        int32_t id = g->order[i];
        if (c->root[id] || !zfi_can_chain(g, id)) continue;
        zfi_chain_grow(c, i);
        if (c->count > 1) zfi_chain_make(c, id);
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].op != ZF_OP_none) g->order[kept++] = g->order[i];
    if (g->order) stbds_header(g->order)->length = (size_t)kept;
}

static void zfi_fuse_chains(zf_graph *g)
{
    size_t nodes = (size_t)zfi_len(g->nodes);
    zfi_chainer c = {.graph = g, .uses = zfi_calloc(&g->memory, 3 * nodes, sizeof *c.uses)};
    if (!c.uses) return;
    c.reader = c.uses + nodes, c.root = c.uses + 2 * nodes;
    zfi_chain_all(&c);
    zfi_free(&g->memory, c.uses, 3 * nodes * sizeof *c.uses);
}
