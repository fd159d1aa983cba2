/* Choices: each section of the tokens has rows of experts of its own, so that a rank along context
 * has those of its tokens. What a capacity drops, and how often experts are chosen, is of all
 * tokens of the micro-batch, whose choices each rank gathers: two numbers of a token, of four bytes
 * each.
 *
 * before:   %3 = expert_rows %2 {experts=4 rows=8 capacity=2}     %2 : i32[8,2]
 *           %4 = saved %3 : i32[4,2]    %5 = saved %3 {index=1} : i32[8,2]
 *           %6 = saved %3 {index=2} : i32[4]
 *           %7 = dispatch %1, %3, %5    %9 = grouped_linear %7, %8, %4
 * after:    %20 = expert_rows %2 {experts=4 rows=8 capacity=2}
 *           %21 = saved %20 {index=1} : i32[8,2]    %6 = saved %20 {index=2} : i32[4]
 *           %23 = less %21, %22    %25 = where %23, %2, %24     %22: 8    %24: 4, no expert
 *           %3 = expert_rows %25 {experts=4 rows=16 parts=2 runs=2}
 *           %4 = saved %3 : i32[8,2]    %5 = saved %3 {index=1} : i32[8,2]
 *           %7 = dispatch %1, %3, %5 {parts=2}    %9 = grouped_linear %7, %8, %4 {parts=2}
 *
 * The gradient of a matrix is a sum over sections, which grouped_outer makes by a balanced tree
 * (ops/grouped_linear.c), and an all_reduce over ranks. */

typedef struct zfi_choices_apart {
    zf_graph *graph;
    int64_t sequence; /* tokens */
    int32_t sections;
    bool zigzag;
    int32_t count; /* of nodes, before */
    struct {
        int64_t before, now; /* rows of experts that it has; 0: it has none */
        int32_t as;          /* slots of a capacity, for other readers than those of rows; 0 */
    } *at;                   /* by node */
} zfi_choices_apart;

/* The node reads rows of experts, or where they are. */
static bool zfi_is_by_choices(const zfi_node *node)
{
    return node->op == ZF_OP_dispatch || node->op == ZF_OP_combine ||
           node->op == ZF_OP_choice_dots || node->op == ZF_OP_grouped_linear ||
           node->op == ZF_OP_grouped_outer;
}

/* The same choices, of all tokens: with the capacity, and the counts. Returns the node; 0: nothing
 * reads it. */
static int32_t zfi_choices_of_all(zfi_choices_apart *c, int32_t id)
{
    zf_graph *g = c->graph;
    const zfi_node old = g->nodes[id];
    const int32_t counts = old.saved[ZFI_ROWS_COUNTS], slots = old.saved[ZFI_ROWS_SLOTS];
    const bool drops = ZF_INT(&old, expert_rows, capacity) != 0;
    zfi_new n = {.op = old.op, .args = old.args, .arg_count = old.arg_count};
    int32_t all;
    if (!counts && !drops) return 0;
    memcpy(n.attributes, old.attributes, sizeof n.attributes);
    all = zfi_append(g, &n);
    if (!all) return 0;
    if (drops && slots) c->at[slots].as = zfi_saved((zf_tensor){g, all}, ZFI_ROWS_SLOTS).id;
    if (counts) g->nodes[counts].args[0] = all, g->nodes[all].saved[ZFI_ROWS_COUNTS] = counts;
    g->nodes[id].saved[ZFI_ROWS_COUNTS] = 0;
    return all;
}

/* Choices that no capacity drops; others are of no expert. */
static int32_t zfi_choices_left(zf_graph *g, const zfi_node *old, int32_t all)
{
    const zf_tensor choices = {g, old->args[0]},
                    slots = zfi_saved((zf_tensor){g, all}, ZFI_ROWS_SLOTS);
    const double rows = (double)ZF_INT(old, expert_rows, rows),
                 experts = (double)ZF_INT(old, expert_rows, experts);
    return zf_where(zf_less(slots, zf_constant(g, ZF_I32, ZF_SCALAR, rows)), choices,
                    zf_constant(g, zf_tensor_dtype(choices), ZF_SCALAR, experts))
        .id;
}

/* The rows of each section. */
static void zfi_choices_of_sections(zfi_choices_apart *c, int32_t id)
{
    zf_graph *g = c->graph;
    const zfi_node old = g->nodes[id];
    const zf_shape choices = g->nodes[old.args[0]].shape;
    const int64_t rows = zfi_span(&choices, 0, 2);
    const int32_t all = zfi_choices_of_all(c, id);
    int32_t kept = old.args[0];
    zfi_node *node;
    if (ZF_INT(&old, expert_rows, capacity) && all) kept = zfi_choices_left(g, &old, all);
    else if (ZF_INT(&old, expert_rows, rows) < rows)
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_context: expert_rows %%%d has %lld rows for %lld choices: ranks along context "
                 "need a row for each, or a capacity",
                 (int)id, (long long)ZF_INT(&old, expert_rows, rows), (long long)rows);
    if (g->error.status) return;
    node = &g->nodes[id];
    node->args[0] = kept, node->arg_count = 1;
    c->at[id].before = node->shape.dims[0], c->at[id].now = node->shape.dims[0] = rows;
    ZF_INT(node, expert_rows, rows) = rows, ZF_INT(node, expert_rows, capacity) = 0;
    ZF_INT(node, expert_rows, parts) = c->sections;
    ZF_INT(node, expert_rows, runs) = choices.dims[0] / c->sequence;
    ZF_INT(node, expert_rows, zigzag) = c->zigzag;
    if (node->saved[ZFI_ROWS_BOUNDS])
        g->nodes[node->saved[ZFI_ROWS_BOUNDS]].shape.dims[0] *= c->sections;
}

/* The node is what expert_rows gives, whose rows are those of sections. */
static bool zfi_is_of_sections(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    if (node->op == ZF_OP_saved) node = &g->nodes[node->args[0]];
    return node->op == ZF_OP_expert_rows && ZF_INT(node, expert_rows, parts);
}

/* A node after them: it has as many rows as there are now. */
static void zfi_choices_read(zfi_choices_apart *c, int32_t id)
{
    zf_graph *g = c->graph;
    zfi_node *node = &g->nodes[id];
    const bool reads = zfi_is_by_choices(node);
    int32_t of = 0;
    for (int32_t k = 0; k < node->arg_count; k++) {
        int32_t *arg = &node->args[k];
        if (*arg < c->count && !reads && c->at[*arg].as) *arg = c->at[*arg].as;
        if (*arg >= c->count) continue;
        if (c->at[*arg].now && !of) of = *arg;
        if (!reads && node->op != ZF_OP_saved && zfi_is_of_sections(g, *arg))
            zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                     "zf_context: %s %%%d reads rows of experts in %%%d, and each rank has those "
                     "of its tokens",
                     g->records[node->op]->name, (int)id, (int)*arg);
    }
    if (!of || node->op == ZF_OP_saved) return;
    if (reads) zfi_attribute_in(g->records[node->op], node->attributes, "parts")->i = c->sections;
    if (node->op == ZF_OP_combine || node->op == ZF_OP_choice_dots ||
        node->op == ZF_OP_grouped_outer || !node->shape.rank ||
        node->shape.dims[0] != c->at[of].before)
        return;
    c->at[id] = c->at[of], node->shape.dims[0] = c->at[of].now;
}

/* Sets rows of experts apart by sections of the tokens of sequences. */
static void zfi_set_choices_apart(zf_graph *g, int64_t sequence, int32_t sections, bool zigzag)
{
    zfi_choices_apart c = {
        .graph = g, .sequence = sequence, .sections = sections, .zigzag = zigzag};
    int32_t *order = g->order;
    c.count = zfi_len(g->nodes);
    c.at = zfi_calloc(&g->memory, (size_t)c.count, sizeof *c.at);
    if (!c.at) return;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->error.status && !g->memory.failed; i++) {
        const zfi_node *node = &g->nodes[order[i]];
        const int32_t arg = node->arg_count ? node->args[0] : 0;
        g->in_update = node->update, g->scope = node->scope, g->in_layer = node->layer;
        if (node->op == ZF_OP_expert_rows && g->nodes[arg].shape.dims[0] % sequence == 0)
            zfi_choices_of_sections(&c, order[i]);
        else zfi_choices_read(&c, order[i]);
        zfi_push(&g->memory, g->order, order[i]);
    }
    g->in_layer = false;
    zfi_array_free(&g->memory, order);
    zfi_free(&g->memory, c.at, (size_t)c.count * sizeof *c.at);
}
