/* experts: ranks along data share experts, each those of its own.
 *
 * requires: no zero yet; after autograd, simplify and the optimizer, so that gradients and updates
 *           are cut with the experts
 * ensures:  an axis expert of the mesh, a part of data; matrices of experts, their gradients and
 *           states are cut over it
 * before:   %4 = expert_rows %3 {experts=8 rows=64} : i32[64]    %5 = saved %4 : i32[8,2]
 *           %7 = dispatch %1, %4, %6 : f32[64,16]
 *           %8 = param "w" : f32[8,32,16]
 *           %9 = grouped_linear %7, %8, %5 : f32[64,32]
 *           %10 = combine %9, %4, %6, %2 : f32[32,32]
 * after:    mesh expert=2
 *           %4 = expert_rows %3 {experts=8 rows=128 blocks=2} : i32[128]   %5 = saved %4 : i32[8,2]
 *           %11 = all_to_all %5 {world=2 over=expert} : i32[8,2]
 *           %7 = dispatch %1, %4, %6 : f32[128,16]
 *           %12 = all_to_all %7 {world=2 over=expert} : f32[128,16]
 *           %8 = param "w" : f32[4@expert,32,16]
 *           %9 = grouped_linear %12, %8, %11 {sources=2} : f32[128,32]
 *           %13 = all_to_all %9 {world=2 over=expert} : f32[128,32]
 *           %10 = combine %13, %4, %6, %2 : f32[32,32]
 *
 * A rank puts the rows for the experts of each rank in a block of their own. All ranks exchange
 * blocks, whether these have rows or not, so no rank waits for one without tokens for it. How many
 * rows a block has is planned: as many as there can be, or `rows` times the mean; more are an error
 * of the step. A row has the bits that it has on one rank, and results are added in the order of
 * experts.
 *
 * With dispatch=int8 rows are exchanged as records (ops/quantize.c):
 *
 *           %11 = quantize %7 {bits=8 block=16} : u8[128,20]
 *           %12 = all_to_all %11 {world=2 over=expert} : u8[128,20]
 *           %13 = dequantize %12 {bits=8 block=16} : f32[128,16]
 *
 * Where ranks along context have parts of the tokens (passes/cut/choices.c), each of them shares
 * experts with those that have the same part of other sequences. A section of a gradient is then
 * the sum over the tokens of all ranks along context of one part of the batch, so these sums are
 * made first, of the rows of each rank along data apart, and those of P ranks added after them:
 *
 *           %14 = grouped_outer %20, %12, %11 : f32[8,32,16]+context
 *           %15 = all_reduce %14 {world=2 over=context order=tree} : f32[8,32,16]
 * after:    %14 = grouped_outer %20, %12, %11 {sources=2 sections=2 apart=true}
 *                                                                : f32[2,4@expert,32,16]+context
 *           %15 = all_reduce %14 {world=2 over=context order=tree} : f32[2,4@expert,32,16]
 *           %21 = slice %15 {stop=1}    %22 = slice %15 {start=1 stop=2}    %23 = add %21, %22
 *           %24 = sum %23 {axis=0} : f32[4@expert,32,16]
 *
 * Gradients of matrices are sums over the ranks whose tokens an expert has had, each rank's a
 * section: a balanced tree of `sections` neighbours along data (base/tree.c), of which the ranks
 * that share experts make a part. zf_zero adds the rest over the copies of an expert, and trees in
 * order. So bits are those of any number of ranks that divides the sections, one among them. */

/* Of ranks along expert, at most, that are added after those along context. */
enum { ZFI_ADDENDS = 64 };
enum { ZFI_SHARED_NOT, ZFI_SHARED_ROWS, ZFI_SHARED_CUT, ZFI_SHARED_APART };

typedef struct zfi_sharing {
    zf_graph *graph;
    zf_experts_desc d;
    uint8_t *kind; /* by node: rows at their experts; one part for each rank along expert; or the
                    * addends of these ranks to its own part */
    int32_t *as;   /* by node: what its readers read; 0: itself */
    int32_t *back; /* by node, of rows: these at their tokens; 0: not yet */
    bool *again;   /* by node: it has been appended again */
    int32_t count;
} zfi_sharing;

/* x from, or for, the ranks that share experts. */
static int32_t zfi_share_exchange(const zfi_sharing *c, int32_t x)
{
    if (!x || c->d.parts < 2) return x;
    return zfi_append_nodes(c->graph, all_to_all,
                            zfi_with({.i = c->d.parts}, {.i = ZF_OVER_EXPERT}), x);
}

/* The numbers of a block of rows that are sent in 8 bits. */
static int64_t zfi_share_block(const zfi_node *rows)
{
    return zfi_gcd(zfi_last(&rows->shape), 256);
}

/* The same of rows, perhaps in 8 bits. */
static int32_t zfi_share_rows_of(const zfi_sharing *c, int32_t x)
{
    zf_graph *g = c->graph;
    const zfi_node *rows = &g->nodes[x];
    const zf_attribute bits = {.i = 8}, block = {.i = x ? zfi_share_block(rows) : 0},
                       scale = {.i = ZF_F32}, to = {.i = rows->dtype};
    if (!x || c->d.dispatch != ZF_DISPATCH_INT8) return zfi_share_exchange(c, x);
    if (!zfi_are_blocks(8, block.i, ZF_F32))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_experts: rows of %lld numbers are no blocks of %d to 256: dispatch int8 "
                        "is for a multiple of %d",
                        (long long)zfi_last(&rows->shape), ZFI_BLOCK_LEAST, ZFI_BLOCK_LEAST),
               x;
    x = zfi_append_nodes(g, quantize, zfi_with(bits, block, scale), x);
    x = zfi_share_exchange(c, x);
    return x ? zfi_append_nodes(g, dequantize, zfi_with(bits, block, scale, to), x) : 0;
}

/* ----------------------------------------------------------------------------------- matrices */

/* Marks x and what it is made of, up to a parameter. */
static void zfi_share_matrices(zfi_sharing *c, int32_t id, int32_t x)
{
    zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[x];
    for (; !zfi_has(g, x, ZF_OP_LEAF); x = node->args[0], node = &g->nodes[x]) {
        c->kind[x] = ZFI_SHARED_CUT;
        if (node->arg_count != 1 || !zfi_has(g, x, ZF_OP_ELEMENTWISE)) break;
    }
    c->kind[x] = ZFI_SHARED_CUT;
    if (node->op != ZF_OP_param)
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_experts: %s %%%d has matrices of experts in %%%d, which is made by %s: ranks "
                 "share parameters",
                 g->records[g->nodes[id].op]->name, (int)id, (int)x, g->records[node->op]->name);
    else if (zfi_cut_rows_of(node).rows && c->d.parts > 1)
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_experts: \"%s\" is a piece of a weight of experts (zf_tile), and ranks share "
                 "weights of all experts: bytes of zf_tile must be 0, or larger",
                 node->name);
    else if (node->shape.dims[0] % c->d.parts)
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_experts: %d ranks do not divide the %lld experts of \"%s\"", (int)c->d.parts,
                 (long long)node->shape.dims[0], node->name);
}

/* Finds the matrices of experts, and states that are like them. Returns whether there are any. */
static bool zfi_share_find(zfi_sharing *c)
{
    zf_graph *g = c->graph;
    bool any = false;
    zfi_cuts cuts;
    for (int32_t i = 0; i < zfi_len(g->order) && !g->error.status; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (!zfi_attribute_of(g, node, "sources") || !zfi_cut_of(g, node, &cuts)) continue;
        any = true;
        for (int32_t k = 0; k < node->arg_count && !g->error.status; k++)
            if (zfi_is_matrices(g, node, &cuts, k, 0))
                zfi_share_matrices(c, g->order[i], node->args[k]);
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op == ZF_OP_state && node->of && c->kind[node->of] == ZFI_SHARED_CUT &&
            zfi_same_shape(&node->shape, &g->nodes[node->of].shape))
            c->kind[g->order[i]] = ZFI_SHARED_CUT;
    }
    return any;
}

/* The rank's part of a value with a matrix for each expert. */
static void zfi_share_cut(zfi_sharing *c, int32_t id)
{
    zfi_node *node = &c->graph->nodes[id];
    c->kind[id] = ZFI_SHARED_CUT;
    if (c->d.parts < 2) return;
    node->shape.dims[0] /= c->d.parts;
    node->spread.at[0] = zfi_axes_add(node->spread.at[0], ZF_OVER_EXPERT);
}

/* ---------------------------------------------------------------------------------- each node */

/* Rows for the experts of one rank, of so many choices in a part of the tokens. */
static int64_t zfi_share_rows(const zfi_sharing *c, const zfi_node *node)
{
    const zf_shape *choices = &c->graph->nodes[node->args[0]].shape;
    const int64_t tokens = choices->dims[0] / zfi_max(ZF_INT(node, expert_rows, parts), 1),
                  each = ZF_INT(node, expert_rows, experts) / c->d.parts,
                  most = tokens * zfi_min(choices->dims[1], each);
    const double mean = (double)(tokens * choices->dims[1]) / c->d.parts,
                 rows = c->d.rows > 0 ? ceil(c->d.rows * mean) : (double)most;
    return rows < (double)most ? (int64_t)rows : most;
}

/* Appends the node again, under its id, with operands of now; attributes NULL: its own. */
static void zfi_share_again(zfi_sharing *c, int32_t id, const zf_attribute *attributes)
{
    zf_graph *g = c->graph;
    const zfi_node old = g->nodes[id];
    zfi_new n = {.op = old.op,
                 .args = old.args,
                 .arg_count = old.arg_count,
                 .role = (zfi_role)old.role,
                 .of = old.of,
                 .id = id};
    memcpy(n.attributes, attributes ? attributes : old.attributes, sizeof n.attributes);
    c->again[id] = true;
    if (!g->error.status) zfi_append(g, &n);
}

/* Choices, whose rows are in blocks for ranks. */
static void zfi_share_choices(zfi_sharing *c, int32_t id)
{
    zfi_node old = c->graph->nodes[id];
    ZF_INT(&old, expert_rows, blocks) = c->d.parts > 1 ? c->d.parts : 0;
    if (c->d.parts > 1 && !ZF_INT(&old, expert_rows, capacity))
        ZF_INT(&old, expert_rows, rows) = zfi_share_rows(c, &old) * c->d.parts *
                                          zfi_max(ZF_INT(&old, expert_rows, parts), 1);
    zfi_share_again(c, id, old.attributes);
}

/* The node adds up what ranks along context have. */
static bool zfi_adds_context(const zfi_node *node)
{
    return node->op == ZF_OP_all_reduce && ZF_INT(node, all_reduce, over) == ZF_OVER_CONTEXT;
}

/* Ranks along context have addends of the sum over rows. */
static bool zfi_share_adds_context(const zfi_sharing *c, int32_t id)
{
    return c->d.parts > 1 && c->graph->nodes[id].spread.sum & zfi_axis_bit(ZF_OVER_CONTEXT);
}

/* The sum over ranks along expert of their addends, by a balanced tree. */
static int32_t zfi_share_together(const zfi_sharing *c, int32_t x)
{
    zf_graph *g = c->graph;
    int32_t *addends = zfi_calloc(&g->memory, (size_t)c->d.parts, sizeof *addends), sum;
    if (!addends) return 0;
    if (c->d.parts > ZFI_ADDENDS)
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_experts: %d ranks share experts, and with ranks along context %d can",
                 (int)c->d.parts, ZFI_ADDENDS);
    for (int32_t k = 0; k < c->d.parts; k++)
        addends[k] = zfi_append_nodes(g, slice, zfi_with({.i = 0}, {.i = k}, {.i = k + 1}), x);
    sum = zfi_add_by_tree(g, addends, c->d.parts);
    zfi_free(&g->memory, addends, (size_t)c->d.parts * sizeof *addends);
    return sum ? zfi_append_nodes(g, sum, zfi_with({.i = 0}), sum) : 0;
}

/* The sum over context of what ranks along expert have apart. */
static void zfi_share_all_reduce(zfi_sharing *c, int32_t id)
{
    zfi_share_again(c, id, NULL);
    if (!c->graph->error.status) c->as[id] = zfi_share_together(c, id);
    c->kind[id] = ZFI_SHARED_CUT;
}

/* A product of rows at their experts, or a sum over them. */
static void zfi_share_product(zfi_sharing *c, int32_t id, bool sums)
{
    zf_graph *g = c->graph;
    const zfi_record *record = g->records[g->nodes[id].op];
    const zf_dtype dtype = g->nodes[id].dtype;
    const bool apart = sums && zfi_share_adds_context(c, id);
    zf_attribute attributes[ZF_MAX_ATTRIBUTES];
    memcpy(attributes, g->nodes[id].attributes, sizeof attributes);
    zfi_attribute_in(record, attributes, "sources")->i = c->d.parts > 1 ? c->d.parts : 0;
    if (sums) zfi_attribute_in(record, attributes, "sections")->i = c->d.sections;
    if (apart) zfi_attribute_in(record, attributes, "apart")->i = 1;
    zfi_share_again(c, id, attributes);
    c->kind[id] = apart ? ZFI_SHARED_APART : sums ? ZFI_SHARED_CUT : ZFI_SHARED_ROWS;
    if (!sums || apart || g->error.status) return;
    c->as[id] = zfi_parallel_cast(g, id, dtype);
}

/* Squares of what is cut over experts, which count once: the sum over ranks. */
static void zfi_share_squares(zfi_sharing *c, int32_t id)
{
    const zf_attribute ranks = {.i = c->d.parts}, over = {.i = ZF_OVER_EXPERT};
    zfi_share_again(c, id, NULL);
    if (c->d.parts > 1 && !c->graph->error.status)
        c->as[id] = zfi_append_nodes(c->graph, all_reduce, zfi_with(ranks, over, {.i = 1}), id);
}

/* A node that reads matrices, or what has their shape: of the same shape, or none. */
static void zfi_share_like(zfi_sharing *c, int32_t id, const zf_shape *whole)
{
    zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[id];
    if (!zfi_has(g, id, ZF_OP_EFFECT)) {
        if (!zfi_same_shape(&node->shape, whole))
            zfi_fail(
                &g->error, ZF_ERR_ARGUMENT,
                "zf_experts: %s %%%d reads the matrices of all experts, and each rank has those "
                "of its own",
                g->records[node->op]->name, (int)id);
        else zfi_share_cut(c, id);
    }
    zfi_push(&g->memory, g->order, id);
}

/* A node that reads rows at their experts: it is by rows. */
static void zfi_share_by_rows(zfi_sharing *c, int32_t id, int64_t before)
{
    zf_graph *g = c->graph;
    const zf_shape was = g->nodes[id].shape;
    if (was.rank < 1 || was.dims[0] != before) {
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_experts: %s %%%d is not by rows, and other ranks have rows of these experts "
                 "too",
                 g->records[g->nodes[id].op]->name, (int)id);
        return;
    }
    zfi_share_again(c, id, NULL);
    c->kind[id] = ZFI_SHARED_ROWS;
}

/* Rows of experts go back to their tokens. */
static void zfi_share_return(zfi_sharing *c, int32_t id)
{
    int32_t *rows = &c->graph->nodes[id].args[0];
    if (*rows < c->count && c->kind[*rows] == ZFI_SHARED_ROWS) {
        int32_t *back = &c->back[*rows];
        if (!*back) *back = zfi_share_rows_of(c, c->as[*rows] ? c->as[*rows] : *rows);
        c->graph->nodes[id].args[0] = *back;
    }
    zfi_share_again(c, id, NULL);
}

static int32_t zfi_share_kind(const zfi_sharing *c, const zfi_node *node, uint8_t kind)
{
    for (int32_t k = 0; k < node->arg_count; k++)
        if (c->kind[node->args[k]] == kind) return node->args[k];
    return 0;
}

static void zfi_share_saved(zfi_sharing *c, int32_t id)
{
    zf_graph *g = c->graph;
    const int32_t of = g->nodes[id].args[0];
    zfi_share_again(c, id, NULL);
    if (g->nodes[of].op == ZF_OP_expert_rows) {
        if (ZF_INT(&g->nodes[id], saved, index) == ZFI_ROWS_BOUNDS)
            c->as[id] = zfi_share_exchange(c, id);
    } else if (c->kind[of] == ZFI_SHARED_ROWS) c->kind[id] = ZFI_SHARED_ROWS;
}

static void zfi_share_node(zfi_sharing *c, int32_t id, const zf_shape *shapes)
{
    zf_graph *g = c->graph;
    zfi_node *node = &g->nodes[id];
    const bool returns = node->op == ZF_OP_combine || node->op == ZF_OP_choice_dots;
    const int32_t rows = zfi_share_kind(c, node, ZFI_SHARED_ROWS),
                  cut = zfi_share_kind(c, node, ZFI_SHARED_CUT);
    g->in_update = node->update, g->scope = node->scope;
    for (int32_t k = returns ? 1 : 0; k < node->arg_count && node->op != ZF_OP_saved; k++)
        if (c->as[node->args[k]]) node->args[k] = c->as[node->args[k]];
    if (zfi_has(g, id, ZF_OP_LEAF)) {
        if (c->kind[id] == ZFI_SHARED_CUT) zfi_share_cut(c, id);
        zfi_push(&g->memory, g->order, id);
    } else if (node->op == ZF_OP_saved && c->again[node->args[0]]) zfi_share_saved(c, id);
    else if (node->op == ZF_OP_expert_rows && node->saved[ZFI_ROWS_BOUNDS])
        zfi_share_choices(c, id);
    else if (node->op == ZF_OP_dispatch) {
        zfi_share_again(c, id, NULL);
        c->as[id] = zfi_share_rows_of(c, id), c->kind[id] = ZFI_SHARED_ROWS;
    } else if (returns) zfi_share_return(c, id);
    else if (zfi_attribute_of(g, node, "sources")) zfi_share_product(c, id, !cut);
    else if (zfi_adds_context(node) && zfi_share_kind(c, node, ZFI_SHARED_APART))
        zfi_share_all_reduce(c, id);
    else if (rows) zfi_share_by_rows(c, id, shapes[rows].dims[0]);
    else if (cut && node->op == ZF_OP_squares) zfi_share_squares(c, id);
    else if (cut) zfi_share_like(c, id, &shapes[cut]);
    else zfi_push(&g->memory, g->order, id);
}

/* Squares of what is cut are added in runs that are those of any number of ranks: of one matrix. */
static void zfi_share_units(zfi_sharing *c)
{
    zf_graph *g = c->graph;
    int64_t unit = ZFI_NORM_BLOCK;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < zfi_len(g->order); i++) {
            zfi_node *node = &g->nodes[g->order[i]];
            const zfi_node *x = node->arg_count ? &g->nodes[node->args[0]] : node;
            if (node->op != ZF_OP_squares) continue;
            if (!c->again[g->order[i]]) continue;
            if (pass) ZF_INT(node, squares, unit) = unit;
            else unit = zfi_gcd(unit, zfi_span(&x->shape, 1, x->shape.rank));
            if (!pass && ZF_INT(node, squares, unit))
                unit = zfi_gcd(unit, ZF_INT(node, squares, unit));
        }
}

/* The axis expert, after data. */
static void zfi_add_expert_axis(zf_graph *g, int32_t ranks)
{
    zfi_other_axes *axes = &g->axes;
    zfi_other_axis *at = axes->axis + axes->slower;
    if (ranks < 2) return;
    memmove(at + 1, at, (size_t)(axes->count - axes->slower) * sizeof *at);
    *at = (zfi_other_axis){ZF_OVER_EXPERT, ranks};
    axes->count++;
}

static void zfi_share_run(zfi_sharing *c)
{
    zf_graph *g = c->graph;
    int32_t *order = g->order;
    zf_shape *shapes;
    if (!zfi_share_find(c) && !g->error.status)
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_experts: there are no experts that ranks can share");
    if (g->error.status || !(shapes = zfi_calloc(&g->memory, (size_t)c->count, sizeof *shapes)))
        return;
    for (int32_t id = 0; id < c->count; id++) shapes[id] = g->nodes[id].shape;
    zfi_add_expert_axis(g, c->d.parts);
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->error.status && !g->memory.failed; i++)
        zfi_share_node(c, order[i], shapes);
    if (!g->error.status && !g->memory.failed) zfi_share_units(c);
    zfi_array_free(&g->memory, order);
    zfi_free(&g->memory, shapes, (size_t)c->count * sizeof *shapes);
}

#define ZFI_DISPATCHES "float|int8"
static const zf_option zfi_experts_options[] = {
    ZF_OPTION(zf_experts_desc, COUNT, parts, 1, "[1,1048576]", .flag = ""),
    ZF_OPTION(zf_experts_desc, COUNT, sections, 0, "[0,1048576]", .flag = ""),
    ZF_OPTION(zf_experts_desc, NUMBER, rows, 0, "[0,1e4]", .flag = ""),
    ZF_OPTION(zf_experts_desc, CHOICE, dispatch, 0, ZFI_DISPATCHES, .flag = ""),
    {.name = NULL}};

ZF_API zf_status zf_experts(zf_graph *g, const zf_experts_desc *desc)
{
    zfi_sharing c = {.graph = g};
    const char *scope;
    zf_status status = zfi_enter(g, "zf_experts", 0, ZFI_STAGE_RANKS | ZFI_STAGE_PLACED);
    if (status) return status;
    if (desc) c.d = *desc;
    if (zfi_settle_desc("zf_experts", zfi_experts_options, &c.d, &g->error)) return g->error.status;
    if (zfi_settle_sections(g, "zf_experts", c.d.parts, 1, &c.d.sections)) return g->error.status;
    if (zfi_axis_at(&g->axes, ZF_OVER_EXPERT) >= 0)
        return zfi_fail(&g->error, ZF_ERR_STAGE, "zf_experts: ranks share experts already");
    if (c.d.sections == 1 && c.d.dispatch)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_experts: dispatch int8 is of rows that go to other ranks, and there is one "
                        "part and one section");
    if (c.d.sections == 1) return zfi_leave(g, 0);
    if (zfi_check_dense(g, "zf_experts", "ranks along expert sum whole gradients"))
        return g->error.status;
    if (g->settled != zfi_len(g->params) && (status = zfi_settle(g))) return status;
    scope = g->scope;
    zfi_parallel_norms(g);
    c.count = zfi_len(g->nodes);
    c.kind = zfi_calloc(&g->memory, (size_t)c.count, sizeof *c.kind);
    c.as = zfi_calloc(&g->memory, (size_t)c.count, sizeof *c.as);
    c.back = zfi_calloc(&g->memory, (size_t)c.count, sizeof *c.back);
    c.again = zfi_calloc(&g->memory, (size_t)c.count, sizeof *c.again);
    if (c.kind && c.as && c.back && c.again) zfi_share_run(&c);
    zfi_free(&g->memory, c.kind, (size_t)c.count * sizeof *c.kind);
    zfi_free(&g->memory, c.as, (size_t)c.count * sizeof *c.as);
    zfi_free(&g->memory, c.back, (size_t)c.count * sizeof *c.back);
    zfi_free(&g->memory, c.again, (size_t)c.count * sizeof *c.again);
    g->scope = scope;
    if (g->memory.failed) return zfi_graph_nomem(g);
    return g->error.status ? g->error.status : zfi_leave(g, 0);
}
