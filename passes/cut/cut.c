/* cut: ranks along the axis tensor share layers.
 *
 * requires: no zero yet; after autograd, simplify and the optimizer, so that gradients and updates
 *           are cut with the layers
 * ensures:  an axis tensor of the mesh; each value has the type that its operands give
 * before:   %3 = linear %1, %2 : f32[4,16]         %2 = param "up" : f32[16,8]
 *           %6 = linear %4, %5 : f32[4,8]          %5 = param "down" : f32[8,16]
 * after:    mesh tensor=2
 *           %3 = linear %1, %2 : f32[4,8@tensor]   %2 = param "up" : f32[8@tensor,8]
 *           %6 = linear %4, %5 {sections=1 wide=true} : f32[4,8]+tensor
 *           %9 = all_reduce %6 {world=2 over=tensor order=tree} : f32[4,8]
 *
 * Dimensions that must be cut together are a class (classes.c), of which some are chosen (choose.c).
 * So weights of q, k and v are cut by heads, and that of the output by what it sums over. What sums
 * over a cut dimension is a balanced tree over `sections`, of which a rank has a part
 * (base/tree.c): the bits are those of any number of ranks with as many sections. What can be cut
 * for one rank is cut for all numbers, or is an error: which sums have sections does not depend on
 * the ranks. Between these layers each rank has a part of the tokens (sequence.c). */

static void zfi_parallel_run(zfi_parallel *c)
{
    zf_graph *g = c->graph;
    for (int32_t place = 0; place < c->count * ZF_MAX_RANK; place++) {
        const zfi_node *node = &g->nodes[place / ZF_MAX_RANK];
        const int32_t d = place % ZF_MAX_RANK;
        const int64_t size = d < node->shape.rank ? node->shape.dims[d] : 0;
        c->at[place] = (zfi_cut_class){.parent = place, .most = size, .upto = INT64_MAX};
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) zfi_parallel_node(c, g->order[i]);
    if (g->error.status) return;
    zfi_parallel_chain(c);
    zfi_parallel_choose(c);
    if (!g->error.status && !c->store && !zfi_parallel_cuts_some(c)) zfi_parallel_none(c);
    if (!g->error.status) zfi_parallel_units(c);
    if (!g->error.status) zfi_parallel_rewrite(c);
    if (g->error.status || g->memory.failed || c->d.tokens == ZF_TOKENS_WHOLE) return;
    zfi_sequence_note(c);
    if (c->d.later) g->shares_later = (uint8_t)(1 + c->d.tokens);
    else if (zfi_sequence_sections(g, zfi_context_tokens(g), 1, c->d.tokens)) zfi_sequence(g, 1, false);
}

static const zf_option zfi_sections_options[] = {
    ZF_OPTION(zf_sections, COUNT, tensor, 0, "[0,1048576]", .traits = ZF_OPTION_CHANGES),
    ZF_OPTION(zf_sections, COUNT, context, 0, "[0,1048576]", .traits = ZF_OPTION_CHANGES),
    ZF_OPTION(zf_sections, COUNT, expert, 0, "[0,1048576]", .traits = ZF_OPTION_CHANGES),
    {.name = NULL}};

static const zf_option zfi_cut_options[] = {
    ZF_OPTION(zf_cut_desc, COUNT, parts, 1, "[1,1048576]", .flag = ""),
    ZF_OPTION(zf_cut_desc, COUNT, sections, 0, "[0,1048576]", .flag = ""),
    ZF_OPTION(zf_cut_desc, CHOICE, tokens, 0, "fit|cut|whole", .flag = ""),
    ZF_OPTION(zf_cut_desc, FLAG, later, 0, NULL, .flag = ""),
    {.name = NULL}};

/* zf_cut; `store`: parameters that it has are cut as there; NULL: none. */
static zf_status zfi_cut_layers(zf_graph *g, const zf_cut_desc *desc, const zf_store *store)
{
    zfi_parallel c = {.graph = g, .store = store};
    const char *scope;
    zf_status status = zfi_enter(g, "zf_cut", 0, ZFI_STAGE_RANKS | ZFI_STAGE_PLACED);
    if (status) return status;
    if (desc) c.d = *desc;
    if (zfi_settle_desc("zf_cut", zfi_cut_options, &c.d, &g->error)) return g->error.status;
    if (zfi_settle_sections(g, "zf_cut", c.d.parts, 1, &c.d.sections)) return g->error.status;
    if (g->axes.count)
        return zfi_fail(&g->error, ZF_ERR_STAGE, "zf_cut: the ranks have other axes already");
    if (c.d.sections == 1) return zfi_leave(g, 0);
    if (zfi_check_dense(g, "zf_cut", "ranks along tensor share whole gradients"))
        return g->error.status;
    if (g->settled != zfi_len(g->params) && (status = zfi_settle(g))) return status;
    scope = g->scope;
    zfi_parallel_norms(g);
    if (c.d.tokens != ZF_TOKENS_WHOLE) zfi_set_drops_apart(g, true);
    c.count = zfi_len(g->nodes);
    c.at = zfi_calloc(&g->memory, (size_t)c.count * ZF_MAX_RANK, sizeof *c.at);
    c.next = zfi_calloc(&g->memory, (size_t)c.count * ZF_MAX_RANK, sizeof *c.next);
    c.flat = zfi_calloc(&g->memory, (size_t)c.count, sizeof *c.flat);
    c.sums = zfi_calloc(&g->memory, (size_t)c.count, sizeof *c.sums);
    c.instead = zfi_calloc(&g->memory, (size_t)c.count, sizeof *c.instead);
    if (c.at && c.next && c.flat && c.sums && c.instead) zfi_parallel_run(&c);
    zfi_free(&g->memory, c.at, (size_t)c.count * ZF_MAX_RANK * sizeof *c.at);
    zfi_free(&g->memory, c.next, (size_t)c.count * ZF_MAX_RANK * sizeof *c.next);
    zfi_free(&g->memory, c.flat, (size_t)c.count * sizeof *c.flat);
    zfi_free(&g->memory, c.sums, (size_t)c.count * sizeof *c.sums);
    zfi_free(&g->memory, c.instead, (size_t)c.count * sizeof *c.instead);
    g->scope = scope;
    if (g->memory.failed) return zfi_graph_nomem(g);
    return g->error.status ? g->error.status : zfi_leave(g, 0);
}

ZF_API zf_status zf_cut(zf_graph *g, const zf_cut_desc *desc)
{
    return zfi_cut_layers(g, desc, NULL);
}
