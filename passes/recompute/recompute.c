/* recompute: the backward pass recomputes values of the forward pass instead of keeping them.
 *
 * requires: zf_autograd; after the optimizer and the last zf_fuse, before zf_zero
 * ensures:  numbers are unchanged to the last bit. A recomputed node is the same operator with the
 *           same attributes (dropout's stream too) over the same operands or recomputed ones, and
 *           it saves the values that the first node saved. It is directly above its first
 *           reader and has the mark `recompute`
 *
 *     layers    every layer keeps its inputs and recomputes the rest
 *     a limit   recomputes what the plan needs to stay within the limit, at the minimum of FLOPs:
 *               the first steps of the order (order.c), as few as possible. Bisection
 *               finds how many: each try plans a copy of the graph, with the passes that follow.
 *               Each rank along pipe keeps to the limit by steps of its own nodes
 *
 * before:   %4 = tanh %3    %5 = matmul %4, %2       ...     %9 = tanh_grad %8, %4
 * after:    %4 = tanh %3    %5 = matmul %4, %2       ...     %20 = tanh %3 recompute
 *           %9 = tanh_grad %8, %20
 */

/* A rewrite of a graph: of the one that was asked for, or of a copy. By node of the graph
 * before: */
typedef struct zfi_remaker {
    zfi_recompute *r; /* its member `graph` is this graph during the rewrite */
    int32_t *copy;    /* the recomputed node; 0: none */
    int32_t *copy_in; /* the layer for which it was recomputed */
    bool *placed;     /* it is in the new order */
} zfi_remaker;

/* The trace takes a node's saved values too, which an inverse does not leave. */
static bool zfi_is_whole(const zfi_recompute *r, int32_t id)
{
    return r->of[id].whole == r->stamp;
}

/* The operand to use for `id` in a node that is recomputed in a layer. */
static int32_t zfi_remade(const zfi_remaker *m, int32_t id, int32_t layer)
{
    return m->copy[id] && m->copy_in[id] == layer ? m->copy[id] : id;
}

/* Puts a node of the graph before here, unless it is further up. */
static void zfi_put_above(zfi_remaker *m, int32_t id)
{
    zf_graph *g = m->r->graph;
    if (m->placed[id] || g->memory.failed) return;
    zfi_push(&g->memory, g->order, id);
    m->placed[id] = true;
}

/* Recomputes the result of a node from its saved value; if a node of this layer computes it anyway,
 * no later than in this section, uses that, which reads what the forward pass has made. */
static int32_t zfi_remake_inverse(zfi_remaker *m, int32_t id, int32_t layer)
{
    zf_graph *g = m->r->graph;
    int32_t left = zfi_makes_result(m->r, id), inverse = m->r->of[id].inverse;
    zfi_put_above(m, left);
    if (!inverse || m->r->of[inverse].layer != layer || g->nodes[inverse].task > g->in_task)
        return zfi_record_of(g, id)->remake(g, id, left);
    zfi_put_above(m, inverse);
    return inverse;
}

static int32_t zfi_remake_node(zfi_remaker *m, int32_t id, int32_t layer)
{
    zf_graph *g = m->r->graph;
    const zfi_node node = g->nodes[id]; /* appending moves the nodes */
    size_t count = (size_t)node.arg_count;
    int32_t *args, made = 0;
    int64_t at;
    if (node.op == ZF_OP_saved)
        return zfi_saved((zf_tensor){g, zfi_remade(m, node.args[0], layer)},
                         ZF_INT(&node, saved, index))
            .id;
    if (zfi_viewed(g, &node, &at) >= 0 && zfi_remade(m, node.args[0], layer) == node.args[0])
        return id;
    if (zfi_makes_result(m->r, id) && !zfi_is_whole(m->r, id))
        return zfi_remake_inverse(m, id, layer);
    if (m->r->of[id].sum) return zfi_record_of(g, id)->remake_from_sum(g, id, m->r->of[id].sum);
    args = zfi_calloc(&g->memory, count, sizeof *args);
    for (size_t k = 0; args && k < count; k++) args[k] = zfi_remade(m, node.args[k], layer);
    if (args) made = zfi_append_op(g, node.op, args, node.arg_count, node.attributes);
    zfi_free(&g->memory, args, count * sizeof *args);
    return made;
}

/* The position at which a node is computed; for a saved value, that of its operand. */
static int64_t zfi_making_order(const zfi_recompute *r, int32_t id)
{
    int32_t maker = zfi_maker(r->graph, id);
    return 2 * (int64_t)r->position[maker] + (maker != id);
}

static void zfi_sort_list(zfi_recompute *r)
{
    for (int32_t gap = zfi_len(r->list) / 2; gap; gap /= 2)
        for (int32_t i = gap; i < zfi_len(r->list); i++) {
            int32_t id = r->list[i], k = i;
            int64_t at = zfi_making_order(r, id);
            for (; k >= gap && zfi_making_order(r, r->list[k - gap]) > at; k -= gap)
                r->list[k] = r->list[k - gap];
            r->list[k] = id;
        }
}

/* The operand to use for `id` in a node of the backward pass in `layer`; recomputed nodes are put
 * above that node. */
static int32_t zfi_remake(zfi_remaker *m, int32_t id, int32_t layer)
{
    zfi_recompute *r = m->r;
    zf_graph *g = r->graph;
    int32_t of = zfi_bytes_of(g, id), maker = zfi_maker(g, of);
    if (!zfi_is(r, id, ZFI_FORWARD_VALUE) || zfi_is_there(r, of)) return id;
    if (!zfi_is(r, maker, ZFI_CROSSES)) layer = r->of[maker].layer;
    zfi_trace(r, id, layer);
    zfi_sort_list(r);
    for (int32_t k = 0; k < zfi_len(r->list) && !g->error.status && !g->memory.failed; k++) {
        int32_t v = r->list[k], before = zfi_len(g->nodes), made;
        if (m->copy[v] && m->copy_in[v] == layer &&
            (!zfi_is_whole(r, v) || g->nodes[m->copy[v]].op == g->nodes[v].op))
            continue;
        g->scope = g->nodes[v].scope, g->file = g->nodes[v].file, g->line = g->nodes[v].line;
        made = zfi_remake_node(m, v, layer);
        m->copy[v] = made, m->copy_in[v] = layer;
        for (; before < zfi_len(g->nodes); before++) g->nodes[before].recompute = true;
    }
    return zfi_remade(m, id, layer);
}

/* Removes saved nodes that were read before and no longer are, since recomputed nodes save the
 * values again. */
static void zfi_drop_unread(zf_graph *g, const int32_t *uses, size_t nodes)
{
    size_t all = (size_t)zfi_len(g->nodes);
    int32_t *now = zfi_calloc(&g->memory, all, sizeof *now), kept = 0;
    if (!now) return;
    zfi_count_uses(g, now);
    for (int32_t i = zfi_len(g->order); zfi_down(i);) {
        int32_t id = g->order[i];
        if (now[id] || ((size_t)id < nodes && !uses[id]) ||
            zfi_has(g, id, ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_LEAF))
            continue;
        for (int32_t k = 0; k < g->nodes[id].arg_count; k++) now[g->nodes[id].args[k]]--;
        zfi_replace(g, id, 0);
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].op != ZF_OP_none) g->order[kept++] = g->order[i];
    if (g->order) stbds_header(g->order)->length = (size_t)kept;
    zfi_free(&g->memory, now, all * sizeof *now);
}

/* Rewrites the graph r->graph by the steps that are taken. */
static void zfi_remake_all(zfi_recompute *r)
{
    zf_graph *g = r->graph;
    int32_t *order = g->order, *uses;
    const char *scope = g->scope;
    size_t nodes = (size_t)zfi_len(g->nodes);
    zfi_remaker m = {.r = r};
    uses = zfi_calloc(&g->memory, 3 * nodes, sizeof *uses);
    m.placed = zfi_calloc(&g->memory, nodes, sizeof *m.placed);
    if (uses && m.placed) {
        m.copy = uses + nodes, m.copy_in = uses + 2 * nodes;
        zfi_count_uses(g, uses);
        g->order = NULL;
        for (int32_t i = 0; i < zfi_len(order) && !g->error.status && !g->memory.failed; i++) {
            int32_t id = order[i];
            zfi_append_for(g, id);
            for (int32_t k = 0; k < g->nodes[id].arg_count; k++)
                if (zfi_is(r, id, ZFI_BACKWARD_VALUE) && !m.placed[id]) {
                    int32_t again = zfi_remake(&m, g->nodes[id].args[k], r->of[id].layer);
                    g->nodes[id].args[k] = again;
                }
            zfi_put_above(&m, id);
        }
        zfi_array_free(&g->memory, order);
        if (!g->error.status && !g->memory.failed) zfi_drop_unread(g, uses, nodes);
        zfi_link_saved(g);
    }
    g->scope = scope;
    g->file = NULL;
    zfi_free(&g->memory, uses, 3 * nodes * sizeof *uses);
    zfi_free(&g->memory, m.placed, nodes * sizeof *m.placed);
}

/* ---------------------------------------------------------------------------- the passes after */

/* A pass of zf_passes: runs if the description asks for it. */
typedef struct zfi_pass {
    const char *name;
    bool (*wanted)(const zf_training *);
    zf_status (*run)(zf_graph *, const zf_training *);
} zfi_pass;

static bool zfi_wants_offload(const zf_training *t)
{
    const zf_offload_desc *d = &t->offload;
    return d->optimizer != ZF_DEVICE || d->parameters != ZF_DEVICE || d->gradients != ZF_DEVICE ||
           d->activations != ZF_DEVICE;
}

/* Some of the store's parameters are in buckets; NULL: none. */
static bool zfi_has_buckets(const zf_store *s)
{
    for (int32_t k = 0; s && k < zfi_len(s->buckets); k++)
        if (s->buckets[k].flat) return true;
    return false;
}

static bool zfi_wants_zero(const zf_training *t)
{
    return zfi_wants_offload(t) || t->zero.stage || t->zero.world || t->zero.micro_batches ||
           t->zero.bucket_bytes || zfi_has_buckets(t->zero.store);
}

static bool zfi_wants_prefetch(const zf_training *t)
{
    return zfi_wants_zero(t) && (t->prefetch.bytes || t->prefetch.keep_gathered);
}

static zf_status zfi_pass_zero(zf_graph *g, const zf_training *t)
{
    zf_zero_desc d = t->zero;
    d.experts_apart |= t->offload.parameters != ZF_DEVICE;
    return zf_zero(g, &d);
}

static zf_status zfi_pass_offload(zf_graph *g, const zf_training *t)
{
    return zf_offload(g, &t->offload);
}

static const zfi_pass zfi_rank_passes[] = {{"zero", zfi_wants_zero, zfi_pass_zero},
                                           {"offload", zfi_wants_offload, zfi_pass_offload},
                                           {"prefetch", zfi_wants_prefetch, zf_prefetch}};

/* ---------------------------------------------------------------------------------- the limit */

/* The plan of a trial: its bytes, where the peak is, and the bytes that recomputing cannot save. */
typedef struct zfi_tried {
    int64_t peak, base;
    char where[200];
} zfi_tried;

/* For a placed graph: bytes of leaves, and of values of the micro section that the update section
 * reads, such as gradients. */
static int64_t zfi_base_bytes(zf_graph *g)
{
    size_t nodes = (size_t)zfi_len(g->nodes);
    bool *counted = zfi_calloc(&g->memory, nodes, sizeof *counted);
    int64_t persistent = 0, bytes = 0;
    for (int32_t i = 0; counted && i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->space != ZF_DEVICE) continue;
        if (zfi_is_persistent(g, node) && node->offset + zfi_aligned(node->bytes) > persistent)
            persistent = node->offset + zfi_aligned(node->bytes);
        for (int32_t k = 0; k < node->arg_count && node->update; k++) {
            int32_t x = zfi_bytes_of(g, node->args[k]);
            if (counted[x] || g->nodes[x].update || zfi_is_persistent(g, &g->nodes[x])) continue;
            counted[x] = true;
            bytes += zfi_aligned(g->nodes[x].bytes);
        }
    }
    if (!counted) zfi_graph_nomem(g);
    zfi_free(&g->memory, counted, nodes * sizeof *counted);
    return persistent + bytes;
}

/* The passes that follow recomputation, on a copy of a graph. */
static void zfi_run_rank_passes(zf_graph *trial, const zf_training *t)
{
    zf_training after = *t;
    after.prefetch.keep_gathered = false; /* it would only use memory that is free */
    for (int k = 0; k < ZFI_COUNT(zfi_rank_passes); k++)
        if (zfi_rank_passes[k].wanted(&after)) zfi_rank_passes[k].run(trial, &after);
}

/* Plans a copy of a graph after its recomputation is decided, with the passes that follow; of the
 * nodes of a rank along pipe, or of all (-1). */
static zf_status zfi_plan_trial(zf_graph *trial, const zf_training *t, int32_t rank)
{
    zfi_run_rank_passes(trial, t);
    if (rank >= 0) zf_keep_stage(trial, rank);
    return zf_memory(trial, &(zf_memory_desc){.backend = t->backend});
}

/* Plans with the first `taken` steps and with the passes that follow; false with the graph's
 * error. */
static bool zfi_try_steps(zfi_recompute *r, const zf_training *t, int32_t taken, zfi_tried *tried)
{
    zf_graph *g = r->graph, *trial;
    int32_t all = r->taken;
    const zfi_node *most;
    if (!(trial = zf_graph_copy(g))) return zfi_graph_nomem(g), false;
    trial->trial = true;
    r->graph = trial, r->taken = taken;
    if (r->taken_by) r->taken_by[r->rank + 1] = taken;
    zfi_remake_all(r);
    r->graph = g, r->taken = all;
    if (trial->memory.failed) zfi_graph_nomem(trial);
    if (!zfi_plan_trial(trial, t, r->rank)) {
        most = &trial->nodes[trial->peaks[ZF_DEVICE].node];
        tried->peak = trial->peaks[ZF_DEVICE].bytes;
        tried->base = zfi_base_bytes(trial);
        snprintf(tried->where, sizeof tried->where, "%s%s%.150s",
                 trial->peaks[ZF_DEVICE].node ? g->records[most->op]->name : "the leaves",
                 trial->peaks[ZF_DEVICE].node && *most->scope ? " in " : "",
                 trial->peaks[ZF_DEVICE].node ? most->scope : "");
    }
    if (trial->error.status) zfi_fail(&g->error, trial->error.status, "%s", trial->error.text);
    zf_graph_free(trial);
    return !g->error.status;
}

static zf_status zfi_over_limit(const zfi_recompute *r, const zfi_tried *least, size_t limit)
{
    zf_graph *g = r->graph;
    char of[40] = "";
    if (r->rank >= 0) snprintf(of, sizeof of, "rank %d along pipe: ", (int)r->rank);
    if (least->base > (int64_t)limit)
        return zfi_fail(&g->error, ZF_ERR_LIMIT,
                        "zf_recompute: %sparameters, gradients, states and inputs alone take %lld "
                        "bytes, %lld more than the limit of %zu",
                        of, (long long)least->base, (long long)(least->base - (int64_t)limit),
                        limit);
    return zfi_fail(&g->error, ZF_ERR_LIMIT,
                    "zf_recompute: %sthe plan takes %lld bytes at least, %lld more than the limit "
                    "of %zu; most is alive at %s",
                    of, (long long)least->peak, (long long)(least->peak - (int64_t)limit), limit,
                    least->where);
}

/* The search for the fewest steps whose plan fits. The order knows the live bytes after each step
 * (r->peaks); a plan adds about as much to them as the last trial did. */
typedef struct zfi_search {
    zfi_recompute *r;
    const zf_training *training;
    int64_t limit;
    int32_t over, fits; /* the first `over` steps do not fit, `fits` do; none: all + 1 */
    double added;
    zfi_tried least;
} zfi_search;

/* False with the graph's error. */
static bool zfi_search_try(zfi_search *s, int32_t steps)
{
    zfi_tried tried;
    if (!zfi_try_steps(s->r, s->training, steps, &tried)) return false;
    s->added = (double)tried.peak - s->r->peaks[steps];
    if (tried.peak < s->least.peak) s->least = tried;
    if (tried.peak <= s->limit) s->fits = steps;
    else if (steps > s->over) s->over = steps;
    return true;
}

/* The smallest number of steps after `over` and before `fits` that should fit; 0: there is none. */
static int32_t zfi_search_next(const zfi_search *s)
{
    for (int32_t steps = s->over + 1; steps < s->fits; steps++)
        if (s->r->peaks[steps] + s->added <= (double)s->limit) return steps;
    return 0;
}

/* Where no number of steps should fit: tries the one with the smallest estimate, since recomputed
 * values need memory too. */
static void zfi_search_least(zfi_search *s)
{
    enum { TRIALS = 3 };
    const double *peaks = s->r->peaks;
    int32_t all = s->r->taken, first = s->over + 1, least = first, last;
    for (int32_t steps = first; steps <= all; steps++)
        if (peaks[steps] < peaks[least]) least = steps;
    for (last = all; last > least && peaks[last] > 1.02 * peaks[least];) last--;
    for (int k = 0; k < TRIALS && s->fits > all && least <= all; k++)
        if (!zfi_search_try(s, least + (int32_t)((int64_t)(last - least) * k / (TRIALS - 1))))
            return;
}

/* Finds the fewest steps whose plan fits the limit: r->taken. `none`: the plan without any. */
static zf_status zfi_fit(zfi_recompute *r, const zf_training *t, const zfi_tried *none)
{
    zf_graph *g = r->graph;
    int32_t all = r->taken;
    zfi_search s = {
        r, t, (int64_t)t->recompute.bytes, 0, all + 1, (double)none->peak - r->peaks[0], *none};
    for (int tries = 0; s.fits - s.over > 1 && !g->error.status; tries++) {
        int32_t steps = zfi_search_next(&s);
        if (tries > 4 && s.fits <= all) steps = s.over + (s.fits - s.over) / 2;
        else if (!steps && s.fits <= all) steps = s.fits - 1;
        if (steps) {
            zfi_search_try(&s, steps);
            continue;
        }
        zfi_search_least(&s);
        if (s.fits > all) break;
    }
    if (g->error.status) return g->error.status;
    if (s.fits > all) return zfi_over_limit(r, &s.least, t->recompute.bytes);
    r->taken = s.fits;
    return ZF_OK;
}

/* -------------------------------------------------------------------------------------- the pass
 */

static const zf_option zfi_recompute_options[] = {
    ZF_OPTION(zf_recompute_desc, CHOICE, mode, 0, "off|layers|as_needed",
              .help = "what is recomputed; as_needed: as much as the limit requires"),
    ZF_OPTION(zf_recompute_desc, BYTES, bytes, 0, NULL, .flag = "memory",
              .help = "limit of the peak; 0: none"),
    {.name = NULL}};

/* A limit without a mode is kept by recomputing as much as it requires. */
static zf_recompute_mode zfi_recompute_mode(const zf_training *t)
{
    const bool limit_alone = t->recompute.mode == ZF_RECOMPUTE_OFF && t->recompute.bytes;
    return limit_alone ? ZF_RECOMPUTE_AS_NEEDED : t->recompute.mode;
}

/* With the bytes that it goes by; 0: any. */
static zf_recompute_desc zfi_recompute_resolved(const zf_training *t)
{
    zf_recompute_desc d = t->recompute;
    d.mode = zfi_recompute_mode(t);
    if (d.mode == ZF_RECOMPUTE_AS_NEEDED && !d.bytes) d.bytes = t->memory_limit;
    if (d.bytes > INT64_MAX / 2) d.bytes = INT64_MAX / 2;
    return d;
}

/* Nodes of the backward pass that make a result of what was left. */
static void zfi_find_inverses(zfi_recompute *r)
{
    const zf_graph *g = r->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i], of = zfi_remade_of(g, &g->nodes[id], true);
        if (of && zfi_is(r, id, ZFI_BACKWARD_VALUE)) r->of[of].inverse = id;
    }
}

/* Everything that the choice goes by. */
static void zfi_learn(zfi_recompute *r, const zfi_placement *uses)
{
    zf_graph *g = r->graph;
    bool *written = zfi_calloc(&g->memory, r->nodes, sizeof *written);
    r->position = uses->position;
    if (!written) return;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count && k < 31 && !node->update; k++)
            if (zfi_written_args(g, node) >> k & 1)
                written[zfi_written_leaf(g, node->args[k])] = true;
    }
    zfi_mark_directions(r);
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (zfi_is_given(r, &g->nodes[g->order[i]], written)) r->of[g->order[i]].marks |= ZFI_GIVEN;
    zfi_free(&g->memory, written, r->nodes * sizeof *written);
    zfi_mark_uses(r, uses);
    zfi_find_layers(r);
    if (g->memory.failed) return;
    zfi_find_first_sums(r);
    zfi_mark_crossing(r);
    zfi_find_inverses(r);
    zfi_find_candidates(r);
}

/* Every candidate of a numbered layer is the first step. */
static void zfi_take_layers(zfi_recompute *r)
{
    bool numbered = false;
    for (int32_t l = 0; l < zfi_len(r->layers); l++) numbered |= r->layers[l].length > 0;
    if (!numbered)
        zfi_fail(
            &r->graph->error, ZF_ERR_ARGUMENT,
            "zf_recompute: there are no layers: no scope and no parameter's name has a number, "
            "as \"layer.7\" has; a limit (ZF_RECOMPUTE_AS_NEEDED) does without");
    for (int32_t n = 0; n < zfi_len(r->candidates); n++)
        if (r->layers[r->of[r->candidates[n].node].layer].length && !r->candidates[n].result)
            r->of[r->candidates[n].node].step = 1;
    r->taken = 1;
}

/* Finds how many steps a rank along pipe needs, of those of its own nodes: taken[1 + rank]. */
static void zfi_fit_rank(zfi_recompute *r, const zf_training *t, int32_t *taken,
                         const zfi_tried *none)
{
    const int64_t limit = (int64_t)t->recompute.bytes;
    const int32_t all = r->taken;
    int32_t over = 0, fits = all;
    zfi_tried tried = *none, least = *none;
    r->taken_by = taken;
    for (; fits > 0 && zfi_try_steps(r, t, fits, &tried) && tried.peak > limit; fits -= all / 4 + 1)
        if (tried.peak < least.peak) least = tried; /* recomputed values need memory too */
    if (fits <= 0) zfi_over_limit(r, &least, t->recompute.bytes);
    while (fits - over > 1 && !r->graph->error.status) {
        const int32_t steps = over + (fits - over) / 2;
        if (!zfi_try_steps(r, t, steps, &tried)) break;
        if (tried.peak > limit) over = steps;
        else fits = steps;
    }
    taken[r->rank + 1] = fits;
    r->taken_by = NULL;
}

/* Recomputes as little as the limit allows: of all nodes, or of those of rank r->rank, whose steps
 * become taken[1 + rank]. */
static void zfi_fit_limit(zfi_recompute *r, const zf_training *t, const zfi_placement *uses,
                          int32_t *taken)
{
    const int64_t limit = (int64_t)t->recompute.bytes;
    const bool layers = t->recompute.mode == ZF_RECOMPUTE_LAYERS;
    zfi_tried tried = {.peak = 0};
    if (!zfi_try_steps(r, t, layers ? r->taken : 0, &tried) || tried.peak <= limit) return;
    if (layers || tried.base > limit) {
        zfi_over_limit(r, &tried, t->recompute.bytes);
        return;
    }
    if (!r->peaks) zfi_find_order(r, uses);
    if (r->graph->memory.failed) return;
    if (taken) zfi_fit_rank(r, t, taken, &tried);
    else zfi_fit(r, t, &tried);
}

static void zfi_run_recompute(zfi_recompute *r, const zf_training *t, const zfi_placement *uses)
{
    zf_graph *g = r->graph;
    const int32_t ranks = zfi_mesh_size(zfi_mesh_of(g), ZF_OVER_PIPE);
    const bool layers = t->recompute.mode == ZF_RECOMPUTE_LAYERS;
    int32_t *taken = NULL;
    r->rank = -1;
    zfi_learn(r, uses);
    if (g->memory.failed || g->error.status) return;
    if (layers) zfi_take_layers(r);
    if (t->recompute.bytes && ranks > 1)
        taken = zfi_calloc(&g->memory, (size_t)ranks + 1, sizeof *taken);
    else if (t->recompute.bytes && !g->error.status) zfi_fit_limit(r, t, uses, NULL);
    for (; taken && r->rank + 1 < ranks && !g->error.status && !g->memory.failed;) {
        r->rank++;
        zfi_fit_limit(r, t, uses, taken);
    }
    r->taken_by = layers ? NULL : taken;
    if (r->taken && !g->error.status && !g->memory.failed) zfi_remake_all(r);
    zfi_free(&g->memory, taken, ((size_t)ranks + 1) * sizeof *taken);
}

ZF_API zf_status zf_recompute(zf_graph *g, const zf_training *training)
{
    zf_training t = training ? *training : (zf_training){.loss = ZF_NONE};
    zf_status status = zfi_enter(g, "zf_recompute", ZFI_STAGE_GRADIENTS,
                                 ZFI_STAGE_RECOMPUTE | ZFI_STAGE_RANKS | ZFI_STAGE_PLACED);
    zfi_recompute r = {.graph = g};
    zfi_placement uses = {.graph = g};
    if (status) return status;
    t.recompute.mode = zfi_recompute_mode(&t);
    if ((unsigned)t.recompute.mode > ZF_RECOMPUTE_AS_NEEDED)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_recompute: there is no mode %d; the last one is %d",
                        (int)t.recompute.mode, ZF_RECOMPUTE_AS_NEEDED);
    if (t.recompute.mode == ZF_RECOMPUTE_OFF) return zfi_leave(g, 0);
    t.recompute = zfi_recompute_resolved(&t);
    r.nodes = uses.nodes = (size_t)zfi_len(g->nodes);
    r.of = zfi_calloc(&g->memory, r.nodes, sizeof *r.of);
    uses.last_use = zfi_calloc(&g->memory, 4 * r.nodes, sizeof *uses.last_use);
    if (r.of && uses.last_use) {
        uses.written = uses.last_use + r.nodes;
        uses.written_last = uses.last_use + 2 * r.nodes;
        uses.position = uses.last_use + 3 * r.nodes;
        zfi_find_uses(&uses);
        zfi_run_recompute(&r, &t, &uses);
    }
    zfi_free(&g->memory, r.of, r.nodes * sizeof *r.of);
    zfi_free(&g->memory, uses.last_use, 4 * r.nodes * sizeof *uses.last_use);
    for (int32_t n = 0; n < zfi_len(r.candidates); n++)
        zfi_array_free(&g->memory, r.candidates[n].products);
    zfi_array_free(&g->memory, r.candidates);
    zfi_array_free(&g->memory, r.runs);
    zfi_array_free(&g->memory, r.peaks);
    zfi_array_free(&g->memory, r.layers);
    zfi_array_free(&g->memory, r.list);
    zfi_array_free(&g->memory, r.there);
    zfi_array_free(&g->memory, r.stack);
    if (g->memory.failed) return zfi_graph_nomem(g);
    return g->error.status ? g->error.status : zfi_leave(g, ZFI_STAGE_RECOMPUTE);
}
