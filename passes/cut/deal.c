/* Dealing: a value in another way on the ranks along an axis, by the one exchange that makes it.
 *
 *     whole -> cut at d        part                cut at d -> whole       all_gather
 *     cut at d -> cut at e     all_to_all          of an input             the input itself
 *
 * A dimension of several sequences, one after the other, is exchanged as two; a reshape, as what it
 * is a reshape of. Each way is made once; between layers that ranks along tensor share, once in
 * each half of the step, so that what is gathered is not kept for the backward pass. What several
 * ranks would exchange is marked on one rank too (`dealt`): zf_fuse does not round it together with
 * its reader. */

/* The shape of a value, with the dimension of tokens as two: sequences, and tokens of one. */
static zf_shape zfi_apart_shape(const zfi_tokens *v)
{
    zf_shape shape = v->shape;
    for (int32_t d = shape.rank++; d > v->dim; d--) shape.dims[d] = shape.dims[d - 1];
    shape.dims[v->dim] /= v->run, shape.dims[v->dim + 1] = v->run;
    return shape;
}

/* The dimension of tokens has several sequences. */
static bool zfi_has_runs(const zfi_tokens *v)
{
    return v->dim >= 0 && v->run != v->shape.dims[v->dim] && v->shape.rank < ZF_MAX_RANK;
}

static int32_t zfi_apart_dim(const zfi_tokens *v, int32_t dim)
{
    return dim + (zfi_has_runs(v) && dim >= v->dim);
}

static zf_shape zfi_part_shape(zf_shape shape, int32_t dim, int64_t parts)
{
    if (dim >= 0) shape.dims[dim] /= parts;
    return shape;
}

/* 1 + the dimension of one element that is cut: the one of which a rank has a part, or `one`. */
static int32_t zfi_one_of_part(const zfi_dealing *c, const zf_shape *part, int32_t dim, int32_t one)
{
    return dim >= 0 && c->d.parts > 1 && part->dims[dim] == 1 ? 1 + dim : one;
}

/* x in the form of v, `apart` or not, of whose dimension `dim` it has one of `parts`; -1: it has
 * all. */
static int32_t zfi_deal_as(zfi_dealing *c, int32_t x, int32_t v, bool apart, int32_t dim,
                           int64_t parts)
{
    const zfi_tokens *of = &c->at[v];
    const zf_shape shape = zfi_part_shape(apart ? zfi_apart_shape(of) : of->shape, dim, parts);
    const int32_t one = of->one && apart ? 1 + zfi_apart_dim(of, of->one - 1) : of->one;
    return zfi_append_form(c->graph, x, shape, zfi_one_of_part(c, &shape, dim, one));
}

/* x, cut at `from`, becomes cut at `to`; whole: -1. */
static int32_t zfi_deal_exchange(zfi_dealing *c, int32_t x, int32_t from, int32_t to)
{
    zf_graph *g = c->graph;
    const zf_attribute ranks = {.i = c->d.parts}, over = {.i = c->over},
                       zigzag = {.i = zfi_deals_zigzag(c)};
    if (from < 0) return zfi_append_nodes(g, part, zfi_with(ranks, over, {.i = to}, zigzag), x);
    if (to >= 0)
        return zfi_append_nodes(g, all_to_all, zfi_with(ranks, over, {.i = to}, {.i = from}), x);
    return zfi_append_nodes(g, all_gather,
                            zfi_with(ranks, over, {.i = from}, {.i = 0}, zigzag,
                                     {.i = c->near.before}, {.i = c->near.after}),
                            x);
}

/* The node that has v, in another way than now: cut at `dim`. */
static int32_t zfi_deal_again(zfi_dealing *c, int32_t v, int32_t dim)
{
    const zfi_tokens *x = &c->at[v];
    const bool runs = zfi_has_runs(x) && (x->cut == x->dim || dim == x->dim);
    const int32_t from = runs && x->cut >= 0 ? zfi_apart_dim(x, x->cut) : x->cut,
                  to = runs && dim >= 0 ? zfi_apart_dim(x, dim) : dim;
    int32_t y = zfi_deal_as(c, x->id ? x->id : v, v, runs, from, c->d.parts);
    y = y ? zfi_deal_exchange(c, y, from, to) : 0;
    return zfi_deal_as(c, y, v, false, dim, c->d.parts);
}

static int32_t zfi_deal(zfi_dealing *c, int32_t v, int32_t dim);

/* The same of a reshape: as of what it reshapes. */
static int32_t zfi_deal_form(zfi_dealing *c, int32_t v, int32_t dim)
{
    const zfi_tokens *y = &c->at[v];
    int32_t from = dim;
    if (dim >= 0 && dim == y->dim) from = c->at[y->of].dim;
    else if (dim >= 0) from = zfi_begins_at(c, y->of, zfi_span(&y->shape, dim, y->shape.rank));
    if (dim >= 0 && from < 0) return c->d.parts > 1 ? zfi_deal_again(c, v, dim)
                                                    : y->id         ? y->id : v;
    return zfi_deal_as(c, zfi_deal(c, y->of, from), v, false, dim, c->d.parts);
}

static bool zfi_same_nearby(zfi_nearby a, zfi_nearby b)
{
    return a.before == b.before && a.after == b.after;
}

/* The parts of the keys that queries of one of `parts` see, of attention with a window. Dealt
 * zig-zag, a piece has half the tokens, and its neighbours are of ranks on either side. */
static zfi_nearby zfi_nearby_of(const zfi_dealing *c, int32_t id, int32_t parts)
{
    const zfi_node *node = &c->graph->nodes[id];
    const bool attends = zfi_keys_at(node) > 0, zigzag = zfi_deals_zigzag(c);
    const int64_t window = attends ? ZF_INT(node, attention, window) : 0,
                  size = c->sequence / parts / (zigzag ? 2 : 1),
                  ranks = size ? zfi_div_up(window - 1, size) : 0;
    const bool both = zigzag || (attends && !ZF_INT(node, attention, causal));
    if (c->at[id].first < 0 || window < 2 || (both ? 2 * ranks : ranks) >= parts - 1)
        return (zfi_nearby){0, 0};
    return (zfi_nearby){(int32_t)ranks, both ? (int32_t)ranks : 0};
}

/* The node that has v cut at dimension `dim`, or whole. The backward pass reshapes by itself, on
 * one rank as on several, since zf_fuse may recompute what it reads (the rewrite `invert`). */
static int32_t zfi_deal(zfi_dealing *c, int32_t v, int32_t dim)
{
    zfi_tokens *x = &c->at[v];
    const bool reshapes = c->back && x->of && c->forward[v];
    int32_t made;
    if (x->cut != dim) c->graph->nodes[x->id ? x->id : v].dealt = true;
    if (x->cut == dim || (c->d.parts == 1 && !reshapes)) return x->id ? x->id : v;
    for (int k = 0; k < 2; k++)
        if (x->as[k] && x->as_cut[k] == dim && x->as_back[k] == c->back &&
            zfi_same_nearby(c->near, x->as_near[k]))
            return x->as[k];
    made = x->of ? zfi_deal_form(c, v, dim) : zfi_deal_again(c, v, dim);
    for (int k = 0; k < 2; k++)
        if (!x->as[k] || x->as_back[k] != c->back) {
            x->as[k] = made, x->as_cut[k] = (int8_t)dim, x->as_back[k] = c->back;
            x->as_near[k] = c->near;
            break;
        }
    return made;
}

/* ------------------------------------------------------------------------------------ sections */

/* Section j of a rank's `pieces`, of the node x that has v cut at `dim`. */
static int32_t zfi_section(zfi_dealing *c, int32_t x, int32_t v, int32_t dim, int32_t j,
                           int32_t pieces)
{
    zf_graph *g = c->graph;
    const zfi_tokens *of = &c->at[v];
    const bool runs = dim == of->dim && zfi_has_runs(of);
    const int32_t axis = runs ? dim + 1 : dim;
    const int64_t size = (runs ? of->run : of->shape.dims[dim]) / ((int64_t)c->d.parts * pieces);
    x = zfi_deal_as(c, x, v, runs, axis, c->d.parts);
    if (x)
        x = zfi_append_nodes(g, slice, zfi_with({.i = axis}, {.i = j * size}, {.i = (j + 1) * size}),
                             x);
    return zfi_deal_as(c, x, v, false, dim, (int64_t)c->d.parts * pieces);
}

/* The sections of v side by side, as a rank has it. */
static int32_t zfi_beside(zfi_dealing *c, int32_t v, const int32_t *pieces, int32_t count)
{
    zf_graph *g = c->graph;
    const zfi_tokens *of = &c->at[v];
    const int32_t dim = of->cut;
    const bool runs = dim == of->dim && zfi_has_runs(of);
    const int32_t axis = runs ? dim + 1 : dim;
    int32_t *apart = zfi_calloc(&g->memory, (size_t)count, sizeof *apart), y;
    if (!apart) return 0;
    for (int32_t j = 0; j < count; j++)
        apart[j] = zfi_deal_as(c, pieces[j], v, runs, axis, (int64_t)c->d.parts * count);
    y = zfi_append_op(g, ZF_OP_concat, apart, count, zfi_with({.i = axis}));
    zfi_free(&g->memory, apart, (size_t)count * sizeof *apart);
    return zfi_deal_as(c, y, v, false, dim, c->d.parts);
}

/* The order in which sections are added that are dealt zig-zag, on any number of ranks: the first
 * and the last, the second and the last but one, ... */
static void zfi_fold_sections(zfi_dealing *c, int32_t *pieces, int32_t count)
{
    zfi_memory *memory = &c->graph->memory;
    int32_t *own = zfi_calloc(memory, (size_t)count, sizeof *own);
    if (!own) return;
    memcpy(own, pieces, (size_t)count * sizeof *own);
    for (int32_t j = 0; j < count; j++) pieces[j] = own[j % 2 ? count - 1 - j / 2 : j / 2];
    zfi_free(memory, own, (size_t)count * sizeof *own);
}

/* A rank's part of the sum of x over ranks, which is v: along its tokens. */
static int32_t zfi_scatter(zfi_dealing *c, int32_t v, int32_t x)
{
    zf_graph *g = c->graph;
    const zfi_tokens *of = &c->at[v];
    const bool runs = zfi_has_runs(of);
    x = zfi_deal_as(c, x, v, runs, ZFI_UNDEALT, 1);
    if (x)
        x = zfi_append_nodes(g, reduce_scatter,
                             zfi_with({.i = c->d.parts}, {.i = c->over}, {.i = 1},
                                      {.i = of->dim + runs}, {.i = 0}, {.i = 0},
                                      {.i = zfi_deals_zigzag(c)}, {.i = c->near.after},
                                      {.i = c->near.before}),
                             x);
    return zfi_deal_as(c, x, v, false, of->dim, c->d.parts);
}

/* The sum of all sections of v: a balanced tree of the rank's, then of ranks. */
static int32_t zfi_sum_sections(zfi_dealing *c, int32_t v, int32_t *pieces, int32_t count,
                                zf_dtype dtype)
{
    zf_graph *g = c->graph;
    int32_t x;
    for (int32_t j = 0; j < count; j++)
        if (pieces[j] && zfi_is_half(g->nodes[pieces[j]].dtype))
            pieces[j] = zfi_parallel_cast(g, pieces[j], ZF_F32);
    if (zfi_deals_zigzag(c)) zfi_fold_sections(c, pieces, count);
    x = zfi_add_by_tree(g, pieces, count);
    if (c->d.parts > 1 && c->at[v].scattered) x = zfi_scatter(c, v, x);
    else if (c->d.parts > 1)
        x = zfi_append_op(g, ZF_OP_all_reduce, &x, 1,
                          zfi_with({.i = c->d.parts}, {.i = c->over}, {.i = 1}));
    return zfi_parallel_cast(g, x, dtype);
}

/* Attributes of the node as it runs on section j of `pieces`. The rows of a rank's part are known
 * where it runs (run/compile/share.c), those of a section of what is whole are not. */
static void zfi_context_attributes(const zfi_dealing *c, int32_t id, int32_t j, int32_t pieces,
                                   zfi_new *n, int64_t dims[ZF_MAX_RANK])
{
    const zfi_tokens *y = &c->at[id];
    const zfi_record *record = c->graph->records[n->op];
    const int64_t parts = (int64_t)c->d.parts * pieces;
    if (y->first >= 0 && !n->attributes[y->all].i) n->attributes[y->all].i = y->rows;
    if (y->first >= 0 && c->d.parts == 1) n->attributes[y->first].i += y->rows / pieces * j;
    for (int a = 0; a < ZF_MAX_ATTRIBUTES; a++)
        if (y->divided >> a & 1) n->attributes[a].i /= parts;
    if (y->bare) {
        zfi_attribute_in(record, n->attributes, "sections")->i = 1;
        zfi_attribute_in(record, n->attributes, "wide")->i = 1;
    }
    if (y->shaped < 0) return;
    for (int32_t d = 0; d < y->shape.rank; d++)
        dims[d] = y->shape.dims[d] / (d == y->cut ? parts : 1);
    n->attributes[y->shaped].list.data = dims;
}

/* The value of the node from those of its sections. */
static void zfi_context_join(zfi_dealing *c, int32_t id, int32_t *pieces, int32_t count,
                             zf_dtype dtype)
{
    zfi_tokens *y = &c->at[id];
    if (c->graph->error.status || c->graph->memory.failed) return;
    if (y->sums)
        y->id = zfi_sum_sections(c, id, pieces, count,
                                 y->wide && !y->narrow && (!c->between || y->later) ? ZF_F32
                                                                                   : dtype);
    else if (count > 1 && y->cut >= 0) y->id = zfi_beside(c, id, pieces, count);
    else y->id = pieces[0];
}
