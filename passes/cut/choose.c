/* Choose: which classes zf_cut cuts. A class is cut if it may be at each of its places, if a
 * product sums over it with a parameter (the second layer of two), and if no value has a dimension
 * of another class that is cut. */

static bool zfi_is_chosen(zfi_parallel *c, int32_t node, int32_t d)
{
    return c->at[zfi_class_of(c, node, d)].chosen;
}

/* The parts into which a dimension is cut; 1: it is not. */
static int64_t zfi_cut_parts(zfi_parallel *c, int32_t node, int32_t d)
{
    const zfi_cut_class *k = &c->at[zfi_class_of(c, node, d)];
    return k->chosen ? k->parts : 1;
}

/* Elements of a dimension that a rank has, with padding. */
static int64_t zfi_cut_size(zfi_parallel *c, int32_t node, int32_t d)
{
    const zfi_cut_class *k = &c->at[zfi_class_of(c, node, d)];
    const int64_t size = c->graph->nodes[node].shape.dims[d];
    if (!k->chosen || c->d.parts == 1) return size;
    if (!k->padded) return size / k->parts;
    return zfi_section_size(size, c->d.sections) * (c->d.sections / c->d.parts);
}

/* The axis over which so many parts are. */
static uint8_t zfi_over_of(const zfi_parallel *c, int64_t parts)
{
    return parts < c->d.parts ? ZF_OVER_GROUP : ZF_OVER_TENSOR;
}

/* The value is flat, and has those of an operand that is cut. */
static bool zfi_is_flat_and_cut(zfi_parallel *c, int32_t node)
{
    bool cut = false;
    for (int32_t d = 0; c->flat[node] && d < c->graph->nodes[c->flat[node]].shape.rank; d++)
        cut |= zfi_is_chosen(c, c->flat[node], d);
    return cut;
}

/* Chains the places of each class. */
static void zfi_parallel_chain(zfi_parallel *c)
{
    const zf_graph *g = c->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        for (int32_t d = 0; d < g->nodes[g->order[i]].shape.rank; d++) {
            const int32_t root = zfi_class_of(c, g->order[i], d);
            c->next[g->order[i] * ZF_MAX_RANK + d] = c->at[root].first;
            c->at[root].first = 1 + g->order[i] * ZF_MAX_RANK + d;
        }
}

/* Others have copies of its heads, and it is cut where these are. One head is not cut. */
static bool zfi_has_copies(const zfi_cut_class *k) { return k->copies && k->heads > 1; }

/* The class is cut, or will be where its copies are. */
static bool zfi_is_cut_or_copied(zfi_parallel *c, const zfi_cut_class *k)
{
    return k->chosen || (zfi_has_copies(k) && c->at[zfi_class_root(c, k->copies - 1)].chosen);
}

/* A value has a dimension of the class and one of another that is cut, or two of the class. */
static bool zfi_parallel_meets(zfi_parallel *c, int32_t root)
{
    for (int32_t place = c->at[root].first; place; place = c->next[place - 1]) {
        const int32_t node = (place - 1) / ZF_MAX_RANK;
        int32_t cut = 0;
        for (int32_t d = 0; d < c->graph->nodes[node].shape.rank; d++) {
            const int32_t its = zfi_class_of(c, node, d);
            cut += its == root || zfi_is_cut_or_copied(c, &c->at[its]);
        }
        if (cut > 1) return true;
    }
    return false;
}

/* What keeps heads keeps their copies, and the other way round. */
static void zfi_parallel_keep_copies(zfi_parallel *c)
{
    for (int pass = 0; pass < 2; pass++)
        for (int32_t place = 0; place < c->count * ZF_MAX_RANK; place++) {
            zfi_cut_class *few = &c->at[place], *many;
            if (few->parent != place || !zfi_has_copies(few)) continue;
            many = &c->at[zfi_class_root(c, few->copies - 1)];
            if (!many->why) many->why = few->why;
            if (!few->why) few->why = many->why;
        }
}

/* The error that ranks cannot share the heads of which there are copies. */
static void zfi_refuse_heads(zfi_parallel *c, int32_t node, const zfi_cut_class *k)
{
    zf_graph *g = c->graph;
    zfi_fail(&g->error, ZF_ERR_ARGUMENT,
             "zf_cut: %s %%%d has %lld key-value heads, and there are %d ranks: one of these must "
             "divide the other, for all attention alike",
             g->records[g->nodes[node].op]->name, (int)node, (long long)k->heads,
             (int)c->d.parts);
}

/* Of heads that there are fewer of than ranks, ranks have copies. */
static void zfi_parallel_choose_heads(zfi_parallel *c)
{
    const zf_graph *g = c->graph;
    for (int32_t place = 0; place < c->count * ZF_MAX_RANK && !g->error.status; place++) {
        zfi_cut_class *k = &c->at[place];
        if (k->parent != place || !zfi_has_copies(k)) continue;
        k->chosen = c->at[zfi_class_root(c, k->copies - 1)].chosen;
        k->parts = zfi_cut_parts_at_most(zfi_gcd(k->most, c->d.parts), k->upto);
        if (!k->chosen || k->parts == c->d.parts) continue;
        if (k->parts != k->heads || (c->groups && c->groups != k->parts))
            zfi_refuse_heads(c, place / ZF_MAX_RANK, k);
        c->groups = (int32_t)k->parts;
    }
}

/* The class may be cut; of runs, by sections of each. */
static bool zfi_parallel_may(zfi_parallel *c, int32_t root, int64_t size)
{
    const zfi_cut_class *its = &c->at[root];
    if (its->chosen || its->why || zfi_parallel_meets(c, root)) return false;
    return !its->runs || (!its->plain && size / its->runs % c->d.sections == 0);
}

/* The class that is cut with this one, which may be cut too; -1: there is none; -2: it may not. */
static int32_t zfi_parallel_twin(zfi_parallel *c, int32_t root)
{
    const int32_t place = c->at[root].twin - 1;
    if (place < 0) return -1;
    root = zfi_class_root(c, place);
    return zfi_parallel_may(c, root,
                            c->graph->nodes[place / ZF_MAX_RANK].shape.dims[place % ZF_MAX_RANK])
               ? root
               : -2;
}

/* Dimension d of a parameter is cut, and what is its twin; false: it is not. */
static bool zfi_parallel_take(zfi_parallel *c, int32_t param, int32_t d)
{
    zf_graph *g = c->graph;
    const int32_t root = zfi_class_of(c, param, d);
    zfi_cut_class *its = &c->at[root];
    const int64_t most = its->padded ? its->free : its->most;
    int32_t twin;
    if (its->copies || !zfi_parallel_may(c, root, g->nodes[param].shape.dims[d]) ||
        (twin = zfi_parallel_twin(c, root)) < -1)
        return false;
    if (most % c->d.parts || c->d.parts > its->upto)
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_cut: dimension %d of \"%.200s\" may be cut into divisors of %lld, and there "
                 "are %d ranks",
                 (int)d, g->nodes[param].name,
                 (long long)zfi_cut_parts_at_most(most, its->upto), (int)c->d.parts);
    its->chosen = true, its->parts = c->d.parts;
    if (twin >= 0) c->at[twin].chosen = true, c->at[twin].parts = c->d.parts;
    return true;
}

/* ------------------------------------------------------------------------------------ the store
 *
 * Another program over a store cuts parameters as the store has them, whatever its own graph would
 * give: evaluation has no gradients, which keep some dimensions from being cut. */

/* The tensor of the store that ranks along tensor may have parts of; NULL: there is none. */
static const zfi_stored *zfi_shared_already(const zfi_parallel *c, int32_t param)
{
    const zfi_node *node = &c->graph->nodes[param];
    const int32_t at = c->store && zfi_axis_at(&c->store->axes, ZF_OVER_TENSOR) >= 0
                           ? zfi_store_find(c->store, node->name)
                           : -1;
    const zfi_stored *t = at < 0 ? NULL : &c->store->tensors[at];
    return t && !t->host && t->shape.rank == node->shape.rank ? t : NULL;
}

/* The dimension is cut in the store: so it is here. */
static void zfi_parallel_follow_cut(zfi_parallel *c, int32_t param, int32_t d)
{
    zf_graph *g = c->graph;
    const zfi_cut_class *its = &c->at[zfi_class_of(c, param, d)];
    const int32_t by = its->why;
    if (its->chosen || its->copies || zfi_parallel_take(c, param, d) || g->error.status) return;
    zfi_fail(&g->error, ZF_ERR_ARGUMENT,
             "zf_cut: dimension %d of \"%.200s\" is cut in the store, and %s%s keeps it whole here",
             (int)d, g->nodes[param].name, by ? g->records[g->nodes[by].op]->name : "another one",
             by ? " of this graph" : " that is cut");
}

/* Cuts what the store has cut, and keeps whole what it has whole. */
static void zfi_parallel_follow(zfi_parallel *c)
{
    const zf_graph *g = c->graph;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t k = 0; k < zfi_len(g->params) && !g->error.status; k++) {
            const int32_t param = g->params[k];
            const zfi_stored *t = zfi_shared_already(c, param);
            for (int32_t d = 0; t && d < g->nodes[param].shape.rank; d++) {
                zfi_cut_class *its = &c->at[zfi_class_of(c, param, d)];
                if (zfi_axes_in(t->spread.at[d]) & zfi_axes_met(zfi_axis_bit(ZF_OVER_TENSOR))) {
                    if (pass) zfi_parallel_follow_cut(c, param, d);
                } else if (!pass && !its->why) its->why = param;
            }
        }
}

/* The dimension may be cut; of an adapter's, which is small, into as many parts as sections. */
static bool zfi_is_candidate(zfi_parallel *c, int32_t param, int32_t d)
{
    const zfi_cut_class *its = &c->at[zfi_class_of(c, param, d)];
    return its->second && (c->graph->nodes[param].role != ZFI_ROLE_ADAPTER ||
                           (its->most % c->d.sections == 0 && c->d.sections <= its->upto));
}

/* Chooses classes of parameters; those of adapters come last: what is cut with the weight that is
 * adapted is no rank of an adapter. */
static void zfi_parallel_choose(zfi_parallel *c)
{
    zf_graph *g = c->graph;
    zfi_parallel_follow(c);
    zfi_parallel_keep_copies(c);
    for (int adapters = 0; adapters < 2; adapters++)
        for (int32_t k = 0; k < zfi_len(g->params) && !g->error.status; k++)
            for (int32_t d = 0; d < g->nodes[g->params[k]].shape.rank; d++)
                if ((g->nodes[g->params[k]].role == ZFI_ROLE_ADAPTER) == adapters &&
                    zfi_is_candidate(c, g->params[k], d))
                    zfi_parallel_take(c, g->params[k], d);
    zfi_parallel_choose_heads(c);
}

/* A class is cut. */
static bool zfi_parallel_cuts_some(const zfi_parallel *c)
{
    for (int32_t place = 0; place < c->count * ZF_MAX_RANK; place++)
        if (c->at[place].chosen) return true;
    return false;
}

/* The parameter is a piece of zf_tile, whose rows are not cut. */
static bool zfi_is_tile(zfi_parallel *c, int32_t param)
{
    const zf_graph *g = c->graph;
    const int32_t by = c->at[zfi_class_of(c, param, 0)].why;
    return zfi_cut_rows_of(&g->nodes[param]).rows && by &&
           (g->nodes[by].op == ZF_OP_concat || g->nodes[by].op == ZF_OP_gather_rows);
}

/* The error that nothing can be cut, with what keeps the first candidate. */
static zf_status zfi_parallel_none(zfi_parallel *c)
{
    zf_graph *g = c->graph;
    for (int32_t k = 0; k < zfi_len(g->params); k++) {
        const char *name = g->nodes[g->params[k]].name;
        if (zfi_is_tile(c, g->params[k]))
            return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                            "zf_cut: no layer can be cut: \"%.*s\" is in pieces, which each rank "
                            "has whole; zf_tile must leave layers in one",
                            (int)zfi_whole_name(name), name);
    }
    for (int32_t k = 0; k < zfi_len(g->params); k++)
        for (int32_t d = 0; d < g->nodes[g->params[k]].shape.rank; d++) {
            const zfi_cut_class *its = &c->at[zfi_class_of(c, g->params[k], d)];
            if (its->second && its->why)
                return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                                "zf_cut: no layer can be cut: dimension %d of \"%.200s\" is kept "
                                "by %s %%%d",
                                (int)d, g->nodes[g->params[k]].name,
                                g->records[g->nodes[its->why].op]->name, (int)its->why);
        }
    return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                    "zf_cut: no layer can be cut: no product with a parameter follows another");
}
