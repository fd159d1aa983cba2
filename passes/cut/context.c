/* context: ranks along the axis context share sequences, each a piece of all.
 *
 * requires: no zero yet; after autograd, simplify and the optimizer, so that gradients are cut too
 * ensures:  an axis context of the mesh; parameters, gradients and updates are equal on its ranks
 * before:   %2 = gather_rows %1, %3 : f32[2,32,8]     %3 = input "tokens" : i32[2,32]
 *           %9 = matmul %7, %8 {transpose_a=true} : f32[8,8]
 * after:    mesh context=2
 *           %10 = part %3 {world=2 over=context dim=1} : i32[2,16@context]
 *           %2 = gather_rows %1, %10 : f32[2,16@context,8]
 *           %9 = matmul %7, %8 {transpose_a=true sections=1 wide=true} : f32[8,8]+context
 *           %11 = all_reduce %9 {world=2 over=context order=tree} : f32[8,8]
 *
 * How each node is cut is chosen in tokens.c, from the inputs on; how a value is brought to what its
 * reader wants is in deal.c. What sums over tokens is a balanced tree over `sections`
 * (base/tree.c), each section of which is a node on its tokens: the bits are those of any number of
 * ranks with as many sections. Attention exchanges tokens for heads (Jacobs et al. 2023, DeepSpeed
 * Ulysses), so it sees whole sequences, with their masks, positions and documents. With
 * ZF_CONTEXT_GATHER it keeps its rank's queries, and gathers keys and values (apart.c); with
 * ZF_CONTEXT_RING these come rank by rank (ring.c). */

/* Appends the node on section j of `pieces`, or with all that a rank has of pieces 1: under its own
 * id. */
static int32_t zfi_context_append(zfi_dealing *c, int32_t id, int32_t j, int32_t pieces)
{
    zf_graph *g = c->graph;
    const zfi_node old = g->nodes[id];
    int32_t *args = zfi_calloc(&g->memory, (size_t)old.arg_count, sizeof *args), made;
    const int32_t kv = zfi_keys_at(&old);
    int64_t dims[ZF_MAX_RANK];
    zfi_new n = {.op = old.op, .args = args, .arg_count = old.arg_count};
    if (!args) return 0;
    n.id = pieces > 1 ? 0 : id;
    memcpy(n.attributes, old.attributes, sizeof n.attributes);
    zfi_context_attributes(c, id, j, pieces, &n, dims);
    for (int32_t k = 0; k < old.arg_count; k++) {
        const int8_t want = c->wants[c->at[id].wants + k];
        if (kv > 0 && (k == kv || k == kv + 1)) c->near = c->at[id].sees;
        args[k] = zfi_deal(c, old.args[k], want);
        c->near = (zfi_nearby){0, 0};
        if (want >= 0 && pieces > 1) args[k] = zfi_section(c, args[k], old.args[k], want, j, pieces);
    }
    made = g->error.status || g->memory.failed ? 0 : zfi_append(g, &n);
    zfi_free(&g->memory, args, (size_t)old.arg_count * sizeof *args);
    return made;
}

/* The node has a sum, or saves one: it is in sections. */
static bool zfi_context_sums(const zfi_dealing *c, int32_t id)
{
    bool sums = c->at[id].sums;
    for (int32_t k = 0; k < ZF_MAX_SAVED; k++) {
        const int32_t saved = c->graph->nodes[id].saved[k];
        sums |= saved && c->at[saved].sums;
    }
    return sums;
}

static void zfi_context_cut(zfi_dealing *c, int32_t id)
{
    zf_graph *g = c->graph;
    const zf_dtype dtype = g->nodes[id].dtype;
    const bool sums = zfi_context_sums(c, id), later = sums && !c->between && c->at[id].later;
    const int32_t pieces = c->at[id].counted      ? 1
                           : sums && !later       ? c->d.sections / c->d.parts
                           : c->at[id].first >= 0 ? zfi_runs_of_part(c)
                                                  : 1;
    int32_t *made = zfi_calloc(&g->memory, (size_t)pieces, sizeof *made);
    if (!made) return;
    c->at[id].pieces = pieces, c->at[id].piece = (int32_t)zfi_len(c->pieces);
    c->at[id].sees = zfi_nearby_of(c, id, c->d.parts);
    for (int32_t j = 0; j < pieces; j++) {
        made[j] = zfi_context_append(c, id, j, pieces);
        zfi_push(&g->memory, c->pieces, made[j]);
    }
    zfi_context_join(c, id, made, pieces, dtype);
    if (pieces > 1) zfi_replace(g, id, c->at[id].id);
    else g->nodes[id].later = later;
    zfi_free(&g->memory, made, (size_t)pieces * sizeof *made);
}

/* What a node that is cut has saved. */
static void zfi_context_saved(zfi_dealing *c, int32_t id)
{
    zf_graph *g = c->graph;
    const zfi_node old = g->nodes[id];
    const zfi_tokens *of = &c->at[old.args[0]];
    int32_t *made = zfi_calloc(&g->memory, (size_t)of->pieces, sizeof *made);
    if (!made) return;
    for (int32_t j = 0; j < of->pieces && !g->error.status; j++) {
        zfi_new n = {.op = old.op, .args = &c->pieces[of->piece + j], .arg_count = 1};
        n.id = of->pieces > 1 ? 0 : id;
        memcpy(n.attributes, old.attributes, sizeof n.attributes);
        made[j] = zfi_append(g, &n);
    }
    c->near = of->sees;
    zfi_context_join(c, id, made, of->pieces, old.dtype);
    c->near = (zfi_nearby){0, 0};
    if (of->pieces > 1) zfi_replace(g, id, c->at[id].id);
    zfi_free(&g->memory, made, (size_t)of->pieces * sizeof *made);
}

/* A reshape, or a slice of a flat value: of what a rank has. */
static void zfi_context_form(zfi_dealing *c, int32_t id, int32_t arg)
{
    zf_graph *g = c->graph;
    const zfi_node old = g->nodes[id];
    const zfi_tokens *y = &c->at[id], *x = &c->at[old.args[0]];
    zf_shape shape = zfi_part_shape(y->shape, y->cut, c->d.parts);
    zfi_new n = {.op = old.op, .args = &arg, .arg_count = 1, .id = id};
    memcpy(n.attributes, old.attributes, sizeof n.attributes);
    if (old.op == ZF_OP_reshape) {
        n.attributes[ZF_AT_reshape_shape] = (zf_attribute)zfi_listed(shape.dims, shape.rank);
        n.attributes[ZF_AT_reshape_cut].i = zfi_one_of_part(c, &shape, y->cut, y->one);
    } else if (x->by_letter) {
        n.attributes[ZF_AT_slice_start].i /= c->d.parts;
        n.attributes[ZF_AT_slice_stop].i /= c->d.parts;
    }
    if (arg) zfi_append(g, &n);
}

/* A reshape of a value that is cut; in the backward pass not of a reshape in the forward pass, but of
 * what that reshapes. */
static void zfi_context_reshape(zfi_dealing *c, int32_t id)
{
    const zfi_tokens *y = &c->at[id];
    int32_t of = y->of;
    while (c->back && c->forward[of] && c->at[of].of) of = c->at[of].of;
    zfi_context_form(c, id, zfi_deal(c, of, y->cut == y->dim ? c->at[of].dim : c->at[of].cut));
}

/* The node as it was, of whole operands. */
static void zfi_context_keep(zfi_dealing *c, int32_t id)
{
    zf_graph *g = c->graph;
    for (int32_t k = 0; k < g->nodes[id].arg_count && !zfi_has(g, id, ZF_OP_LEAF); k++) {
        const int32_t arg = zfi_deal(c, g->nodes[id].args[k], ZFI_UNDEALT);
        g->nodes[id].args[k] = arg;
    }
    zfi_push(&g->memory, g->order, id);
}

/* The sum of ranks, of which each takes its tokens; one of some ranks, which is equal on all of these, is
 * made before. */
static void zfi_context_scatter(zfi_dealing *c, int32_t id)
{
    zf_graph *g = c->graph;
    zfi_tokens *y = &c->at[id];
    const bool runs = zfi_has_runs(y), all = ZF_INT(&g->nodes[id], all_reduce, over) == c->over;
    const zf_attribute ranks = {.i = c->d.parts}, over = {.i = c->over},
                       dim = {.i = zfi_apart_dim(y, y->dim)};
    int32_t x = all ? g->nodes[id].args[0] : id;
    if (!all) zfi_push(&g->memory, g->order, id);
    x = zfi_deal_as(c, x, id, runs, ZFI_UNDEALT, 1);
    if (x && all)
        x = zfi_append_nodes(g, reduce_scatter, zfi_with(ranks, over, {.i = 1}, dim), x);
    else if (x) x = zfi_append_nodes(g, part, zfi_with(ranks, over, dim), x);
    y->id = zfi_deal_as(c, x, id, false, y->dim, c->d.parts);
    if (y->id && all) zfi_replace(g, id, y->id);
}

static void zfi_context_node(zfi_dealing *c, int32_t id)
{
    zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[id];
    const bool completes = node->completes;
    zfi_tokens *y = &c->at[id];
    g->in_update = node->update, g->scope = node->scope, g->in_layer = node->layer;
    if (zfi_has(g, id, ZF_OP_LEAF)) y->cut = ZFI_UNDEALT;
    c->back = c->forward && !c->forward[id];
    if (node->op == ZF_OP_none) return; /* with what saved it */
    if (y->by_letter && zfi_goes_by_ring(c, id)) zfi_key_ring_cut(c, id);
    else if (y->by_letter) zfi_context_cut(c, id);
    else if (y->completes) zfi_context_scatter(c, id);
    else if (node->op == ZF_OP_saved && c->at[node->args[0]].by_letter) zfi_context_saved(c, id);
    else if (y->flat) zfi_context_form(c, id, node->args[0]);
    else if (node->op == ZF_OP_reshape && !y->of && y->cut >= 0)
        zfi_context_form(c, id, node->args[0]);
    else if (y->of && y->cut >= 0) zfi_context_reshape(c, id);
    else zfi_context_keep(c, id);
    g->nodes[id].completes = completes;
}

/* What the update section, of which order[i] is the first node, reads of the micro section: whole, and
 * made there. */
static void zfi_context_gradients(zfi_dealing *c, const int32_t *order, int32_t i)
{
    const zf_graph *g = c->graph;
    for (; i < zfi_len(order); i++)
        for (int32_t k = 0; k < g->nodes[order[i]].arg_count && !g->error.status; k++)
            if (!g->nodes[g->nodes[order[i]].args[k]].update)
                (void)zfi_deal(c, g->nodes[order[i]].args[k], ZFI_UNDEALT);
}

/* What was gathered for the forward pass is not kept for the backward pass, which gathers again. */
static void zfi_context_forget(zfi_dealing *c)
{
    for (int32_t id = 0; id < c->count && c->d.kind != ZF_CONTEXT_ULYSSES; id++)
        for (int k = 0; k < 2; k++)
            if (c->at[id].as_cut[k] == ZFI_UNDEALT) c->at[id].as[k] = 0;
}

/* The node is that of the loss, with which the forward pass ends. */
static bool zfi_context_is_loss(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    return node->op == ZF_OP_output && node->role == ZFI_ROLE_LOSS;
}

/* The axis context, slower than tensor. */
static void zfi_add_context_axis(zf_graph *g, int32_t ranks)
{
    zfi_other_axes *axes = &g->axes;
    memmove(axes->axis + 1, axes->axis, (size_t)axes->count * sizeof *axes->axis);
    axes->axis[0] = (zfi_other_axis){ZF_OVER_CONTEXT, ranks}, axes->count++;
}

/* Notes which values are read in f32 alone: their sums are not rounded before. */
static void zfi_context_readers(zfi_dealing *c)
{
    const zf_graph *g = c->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        const bool wide = node->op == ZF_OP_cast && node->dtype == ZF_F32;
        for (int32_t k = 0; k < node->arg_count; k++)
            c->at[node->args[k]].wide |= wide, c->at[node->args[k]].narrow |= !wide;
    }
}

static void zfi_context_run(zfi_dealing *c)
{
    zf_graph *g = c->graph;
    int32_t *order = g->order;
    zfi_context_readers(c);
    for (int32_t id = 0; id < c->count; id++)
        c->at[id].dim = -1, c->at[id].cut = ZFI_UNDEALT, c->at[id].shaped = c->at[id].first = -1;
    for (int32_t i = 0; i < zfi_len(order) && !g->error.status; i++) zfi_tokens_see(c, order[i]);
    if (g->error.status || g->memory.failed) return;
    if (c->d.parts > 1 && !c->between) zfi_add_context_axis(g, c->d.parts);
    if (c->d.parts > 1 && zfi_deals_zigzag(c)) g->axes.zigzag = true;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->error.status && !g->memory.failed; i++) {
        const bool update = g->nodes[order[i]].update;
        if (update && (!i || !g->nodes[order[i - 1]].update)) zfi_context_gradients(c, order, i);
        zfi_context_node(c, order[i]);
        if (zfi_context_is_loss(g, order[i])) zfi_context_forget(c);
    }
    zfi_array_free(&g->memory, order);
    g->in_layer = false;
}

/* Whether a sequence, or each of `pieces` of it, makes equal sections of several tokens that ranks
 * along tensor share; 0, with an error if `tokens` asks for that: it does not. */
static int32_t zfi_sequence_sections(zf_graph *g, int64_t sequence, int32_t pieces,
                                     zf_cut_tokens tokens)
{
    const int32_t ranks = zfi_mesh_size(zfi_mesh_of(g), ZF_OVER_TENSOR),
                  sections = g->shares * (ranks ? ranks : 1);
    const int64_t each = sequence / pieces;
    if (each > sections && each % sections == 0) return sections;
    if (tokens != ZF_TOKENS_FIT) zfi_refuse_tokens(g, sequence, pieces, sections);
    return 0;
}

/* The tokens of a sequence: dimension 1 of the first input that has one. */
static int64_t zfi_context_tokens(const zf_graph *g)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op == ZF_OP_input && node->shape.rank > 1) return node->shape.dims[1];
    }
    return 0;
}

static void zfi_sequence(zf_graph *g, int32_t pieces, bool dealt);

#define ZFI_CONTEXT_KINDS "ulysses|gather|zigzag|ring"

static const zf_option zfi_context_options[] = {
    ZF_OPTION(zf_context_desc, COUNT, parts, 1, "[1,1048576]", .flag = ""),
    ZF_OPTION(zf_context_desc, COUNT, sections, 0, "[0,1048576]", .flag = ""),
    ZF_OPTION(zf_context_desc, CHOICE, kind, 0, ZFI_CONTEXT_KINDS, .flag = ""),
    {.name = NULL}};

static zf_status zfi_check_context(zfi_dealing *c)
{
    zf_graph *g = c->graph;
    if (zfi_settle_sections(g, "zf_context", c->d.parts, zfi_deals_zigzag(c) ? 2 : 1,
                            &c->d.sections))
        return g->error.status;
    c->sequence = zfi_context_tokens(g);
    if (zfi_deals_zigzag(c) && c->d.sections % (2 * (int64_t)c->d.parts))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_context: %d sections are not two for each of %d ranks, nor four, six, "
                        "...: zigzag deals them in two halves",
                        (int)c->d.sections, (int)c->d.parts);
    if (g->axes.count > 1 || (g->axes.count && g->axes.axis[0].over != ZF_OVER_TENSOR))
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "zf_context: the ranks have other axes than tensor already");
    if (g->shares_tokens)
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "zf_context: ranks along tensor have parts of the tokens already: zf_cut with "
                        "`later` deals them after those along context");
    if (c->sequence % c->d.sections || c->sequence / c->d.sections < 2)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_context: sequences of %lld tokens do not make %d sections of 2 tokens "
                        "or more",
                        (long long)c->sequence, (int)c->d.sections);
    return ZF_OK;
}

/* Notes whether ranks along tensor share tokens later, of the sections that are made here. Two halves
 * of a sequence are no run of them. */
static void zfi_context_shares(zfi_dealing *c)
{
    zf_graph *g = c->graph;
    const zf_cut_tokens tokens = (zf_cut_tokens)(g->shares_later - 1);
    if (!g->shares_later) return;
    g->shares_later = 0;
    if (!zfi_deals_zigzag(c))
        c->shares = zfi_sequence_sections(g, c->sequence, c->d.sections, tokens);
    else if (tokens == ZF_TOKENS_CUT)
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_context: kind=zigzag gives a rank two halves of its tokens, which ranks along "
                 "tensor do not share: zf_cut with tokens=whole leaves them whole");
}

ZF_API zf_status zf_context(zf_graph *g, const zf_context_desc *desc)
{
    zfi_dealing c = {.graph = g, .over = ZF_OVER_CONTEXT};
    const char *scope;
    zf_status status = zfi_enter(g, "zf_context", 0, ZFI_STAGE_RANKS | ZFI_STAGE_PLACED);
    if (status) return status;
    if (desc) c.d = *desc;
    if (zfi_settle_desc("zf_context", zfi_context_options, &c.d, &g->error)) return g->error.status;
    if (c.d.parts == 1 && c.d.sections < 2) return zfi_leave(g, 0);
    if (zfi_check_dense(g, "zf_context", "ranks along context sum whole gradients"))
        return g->error.status;
    if (zfi_check_context(&c)) return g->error.status;
    zfi_context_shares(&c);
    if (g->error.status) return g->error.status;
    if (g->settled != zfi_len(g->params) && (status = zfi_settle(g))) return status;
    scope = g->scope;
    zfi_set_apart(g);
    zfi_set_drops_apart(g, false);
    zfi_set_choices_apart(g, c.sequence, c.d.sections, zfi_deals_zigzag(&c));
    if (g->memory.failed) return zfi_graph_nomem(g);
    if (g->error.status) return g->error.status;
    c.rows = c.d.kind != ZF_CONTEXT_ULYSSES;
    if (c.rows) zfi_set_gradients_apart(g);
    c.count = zfi_len(g->nodes);
    c.at = zfi_calloc(&g->memory, (size_t)c.count, sizeof *c.at);
    if (c.at && !g->error.status) zfi_context_run(&c);
    zfi_free(&g->memory, c.at, (size_t)c.count * sizeof *c.at);
    zfi_array_free(&g->memory, c.wants);
    zfi_array_free(&g->memory, c.pieces);
    if (c.shares && !g->error.status && !g->memory.failed)
        zfi_sequence(g, c.d.sections / c.d.parts, true);
    g->scope = scope;
    if (g->memory.failed) return zfi_graph_nomem(g);
    return g->error.status ? g->error.status : zfi_leave(g, 0);
}
